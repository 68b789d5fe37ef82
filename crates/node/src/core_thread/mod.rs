//! The one thread that agrees, writes, decides and answers.
//!
//! ```text
//!   inbox ──> consensus.step ──> poll ──> send now ──> disk + fsync ──> persisted ──> send after
//!                                  └──> committed entries ──> certifier ──> desk ──> verdicts, entries
//! ```
//!
//! It takes everything that waits in the inbox at once, so that one fsync covers all of it and nothing waits for a timer.
//! It knows no sockets but through `Transport` and `Outbox`, which never block.
//!
//! Invariants:
//! - What `consensus` wants durable is fsynced before anything that depends on it leaves.
//! - Every committed index is certified once, in order.
//! - After an error from the disk the thread ends, and the node with it; also when the log says that it was removed.
//!
//! | module | what |
//! |---|---|
//! | `storage` | checkpoints, and how much of the log stays |
//! | `admin` | changes of the membership that somebody asked for |
//! | `skip` | entries that somebody has left out |
//! | `hold` | how much of the log backups under way need |
//! | `membership` | what a changed table means here; orders to make PostgreSQL's folder anew |
//! | `positions` | how far each PostgreSQL is, and what follows from round trips |
//! | `lag` | how far behind somebody is, in time |

mod admin;
mod healing;
mod hold;
mod lag;
mod membership;
mod positions;
mod skip;
mod storage;

use crate::agent::{self, Desk};
use crate::archive::Archive;
use crate::config::NodeConfig;
use crate::disk::{CheckpointFile, RaftLog, StartsFile};
use crate::error::{Error, Result};
use crate::inbox::{Event, Inbox, PeerEvent};
use crate::postgres::RebuildFrom;
use crate::status::{CoreStatus, Position};
use crate::stop::{ordered, stop_point};
use crate::transport::Transport;
use admin::AdminDesk;
use bytes::Bytes;
use healing::Healing;
use hold::Holds;
use lag::LagClock;
use onetrip_core::certifier::{Certifier, Decision, History};
use onetrip_core::consensus::{Committed, Config, Consensus, Input, Leadership, Message, Output, Role};
use onetrip_core::decide::decide;
use onetrip_core::desk::Books;
use onetrip_core::{LogIndex, Members, NodeId};
use skip::OpenSkip;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const TICK: Duration = Duration::from_millis(20);
const HEARTBEAT_TICKS: usize = 5;
const TRANSFER_TICKS: usize = 25;
/// A follower waits at least this long for its leader: as long as a core thread may be busy with one very large
/// transaction (a guess); longer where round trips are long (`positions`).
const ELECTION_TICKS: usize = 40;
/// Positions go to the peers this often.
const POSITION_TICKS: u64 = 25;
/// A thread that slept too long makes up for this many ticks at most: catching up on all of them could call an election.
const TICKS_AT_ONCE: u32 = 3;
/// Events taken before the disk is written.
const EVENTS_AT_ONCE: usize = 1024;
/// How long a stopping leader waits for its successor.
const HAND_OVER_WAIT: Duration = Duration::from_millis(500);
/// How long a stop waits for a checkpoint under way.
const CHECKPOINT_WAIT: Duration = Duration::from_secs(60);
pub struct CoreThread {
    config: Arc<NodeConfig>,
    consensus: Consensus<RaftLog>,
    certifier: Certifier,
    history: History,
    desk: Desk,
    archive: Option<Archive>,
    transport: Arc<Transport>,
    inbox: Inbox,
    checkpoint_file: CheckpointFile,
    starts_file: StartsFile,
    /// The last durable checkpoint.
    checkpoint: LogIndex,
    checkpoint_under_way: bool,
    bytes_since_checkpoint: u64,
    members: Arc<Members>,
    members_changed: bool,
    admin: AdminDesk,
    skips: Vec<OpenSkip>,
    holds: Holds,
    /// Of the other members' PostgreSQL, as they said last.
    positions: BTreeMap<NodeId, Position>,
    lag: LagClock,
    /// PostgreSQL's data folder has to be made anew.
    rebuild: watch::Sender<Option<RebuildFrom>>,
    healing: Healing,
    leadership: Option<Leadership>,
    tick: u64,
    /// Peers whose queue was full; Raft is told at the next occasion.
    dropped: Vec<NodeId>,
    out: Output,
}

enum Flow {
    GoOn,
    Stop,
}

impl CoreThread {
    /// Reads and verifies what earlier lives left on disk.
    pub fn open(
        config: Arc<NodeConfig>,
        transport: Arc<Transport>,
        inbox: Inbox,
        rebuild: watch::Sender<Option<RebuildFrom>>,
    ) -> Result<CoreThread> {
        let (checkpoint_file, state, log) = storage::open(&config)?;
        let (checkpoint, last) = (state.index(), log.last_index());
        let archive = config.archive.as_ref().map(|a| Archive::start(&config, &a.folder, checkpoint)).transpose()?;
        let raft_config = Config {
            id: config.node,
            limits: config.limits(),
            applied: checkpoint,
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: ELECTION_TICKS,
            transfer_ticks: TRANSFER_TICKS,
        };
        tracing::info!(
            region = %config.region, node = %config.node, term = log.hard_state().term, index = %last, %checkpoint,
            "log opened"
        );
        let members = Arc::new(state.members);
        let folder = config.data_dir.clone();
        let starts_file = StartsFile::new(config.data_dir.join("starts"));
        let mut core = CoreThread {
            desk: Desk::new(
                config.node,
                config.region.clone(),
                last,
                &starts_file.load()?,
                state.certifier.running_incarnation(config.node),
            ),
            starts_file,
            archive,
            consensus: Consensus::new(raft_config, log, members.clone())?,
            config,
            certifier: state.certifier,
            history: state.history,
            transport,
            inbox,
            checkpoint_file,
            checkpoint,
            checkpoint_under_way: false,
            bytes_since_checkpoint: 0,
            members: members.clone(),
            members_changed: false,
            admin: AdminDesk::default(),
            skips: Vec::new(),
            holds: Holds::default(),
            positions: BTreeMap::new(),
            lag: LagClock::default(),
            rebuild,
            healing: Healing::load(&folder),
            leadership: None,
            tick: 0,
            dropped: Vec::new(),
            out: Output::default(),
        };
        core.set_members(members);
        core.check_membership()?;
        if core.config.postgres.is_some() && !core.config.data_dir.join("postgres").join("PG_VERSION").is_file() {
            core.order_rebuild();
        }
        Ok(core)
    }

    /// The thread's body.  `Ok`: it was asked to stop, and all is on disk.
    pub fn run(mut self, events: &Receiver<Event>) -> Result<()> {
        let result = self.work(events).and_then(|()| self.end(events));
        // Whoever waits here is better off asking again.
        self.desk.close_all();
        result
    }

    /// Until it is asked to stop.
    fn work(&mut self, events: &Receiver<Event>) -> Result<()> {
        let mut next_tick = Instant::now() + TICK;
        self.advance()?;
        loop {
            let wait = next_tick.saturating_duration_since(Instant::now());
            let mut event = match events.recv_timeout(wait) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("everyone who feeds the core thread has ended".into()));
                }
            };
            for _ in 0..EVENTS_AT_ONCE {
                let Some(now) = event.take() else { break };
                if let Flow::Stop = self.handle(now)? {
                    return Ok(());
                }
                event = events.try_recv().ok();
            }
            // The last one taken is not lost when a batch is full.
            if let Some(left) = event {
                if let Flow::Stop = self.handle(left)? {
                    return Ok(());
                }
            }
            let now = Instant::now();
            if now >= next_tick {
                let late = (now - next_tick).as_nanos() / TICK.as_nanos();
                for _ in 0..(late as u32 + 1).min(TICKS_AT_ONCE) {
                    self.on_tick()?;
                }
                next_tick = now + TICK;
            }
            self.advance()?;
        }
    }

    fn handle(&mut self, event: Event) -> Result<Flow> {
        match event {
            Event::Peer(_, PeerEvent::Raft(message)) => self.step(Input::Message(*message)),
            Event::Peer(peer, PeerEvent::Position { applied, durable }) => self.position_of(peer, applied, durable),
            Event::Peer(peer, PeerEvent::Unreachable) => self.step(Input::Unreachable(peer)),
            Event::Peer(peer, PeerEvent::Connected) => {
                if self.consensus.leadership().leader == Some(peer) {
                    self.resend_all();
                }
            }
            Event::Peer(_, PeerEvent::Removed(why)) => return Err(self.removed(why)),
            Event::Agent(event) => {
                if let Some(starts) = self.desk.starts_with(&event) {
                    self.starts_file.save(&starts)?;
                }
                let mut books = Books {
                    certifier: &self.certifier,
                    history: &mut self.history,
                    log: self.consensus.log(),
                    members: &self.members,
                    tick: self.tick,
                };
                self.desk.refuses = ordered(&self.config.data_dir, "refuse");
                if let Some(raw) = self.desk.handle(event, &mut books)? {
                    stop_point(&self.config.data_dir, "received");
                    self.propose(raw);
                }
                self.follow_rebuild();
            }
            Event::Skip { index, force, answer } => self.ask_skip(index, force, answer)?,
            Event::Admin(request, answer) => {
                if let Some(settled) = self.admin.ask(request, answer, self.tick, &self.members) {
                    self.settle(settled)?;
                }
                self.administer()?;
            }
            Event::Hold(None, answer) => self.holds.ask(answer),
            Event::Hold(Some(index), answer) => {
                self.holds.renew(index, self.tick);
                let _ = answer.send(index);
            }
            Event::Status(answer) => {
                // Nobody waiting any more is no harm.
                let _ = answer.send(self.status());
            }
            Event::Checkpointed(result) => self.checkpointed(result)?,
            Event::Stop => return Ok(Flow::Stop),
        }
        Ok(Flow::GoOn)
    }

    fn step(&mut self, input: Input) {
        match self.consensus.step(input) {
            Ok(()) => {}
            // What raft-rs refuses (a message of a stranger, a stale one), and what nobody leads now, is no fault of this node.
            Err(e @ (onetrip_core::Error::Raft(_) | onetrip_core::Error::NoLeader)) => {
                tracing::debug!(region = %self.config.region, node = %self.config.node, "raft ignored an input: {e}");
            }
            Err(e) => {
                tracing::warn!(region = %self.config.region, node = %self.config.node, "refused a peer's message: {e}")
            }
        }
    }

    fn propose(&mut self, raw: Bytes) {
        match self.consensus.step(Input::Propose(raw.clone())) {
            Ok(()) => {}
            Err(onetrip_core::Error::NoLeader) => self.desk.not_taken(&raw, self.tick),
            Err(e) => {
                tracing::warn!(region = %self.config.region, node = %self.config.node, "raft refused a proposal: {e}")
            }
        }
        stop_point(&self.config.data_dir, "proposed");
    }

    fn on_tick(&mut self) -> Result<()> {
        self.tick += 1;
        self.step(Input::Tick);
        for raw in self.desk.resend(self.tick, false) {
            self.propose(raw);
        }
        self.lag.decided(self.certifier.last_committed(), Instant::now());
        self.administer()?;
        self.work_skips();
        if self.tick % POSITION_TICKS == 0 {
            if let Some(Position { applied, durable, .. }) = self.my_position() {
                self.step(Input::Position(self.config.node, self.shows(applied)));
                self.transport.send_position(applied, durable);
            }
            self.heal();
            self.follow_round_trips();
            self.cut()?;
            self.consider_checkpoint()?;
            let shown = self.positions.values().map(|p| p.applied).chain(self.my_position().map(|p| p.applied)).min();
            self.lag.forget_to(shown.unwrap_or_default());
        }
        Ok(())
    }

    /// Works off everything that consensus has to do.
    fn advance(&mut self) -> Result<()> {
        for peer in std::mem::take(&mut self.dropped) {
            self.step(Input::Unreachable(peer));
        }
        // Ends: each round persists or hands on something, and nothing new comes in meanwhile.
        let mut out = std::mem::take(&mut self.out);
        while self.consensus.poll(&mut out) {
            self.send(std::mem::take(&mut out.send_now));
            self.certify(std::mem::take(&mut out.committed))?;
            if let Some(persist) = out.persist.take() {
                self.persist(persist)?;
            }
            self.consensus.persisted(&mut out);
            self.send(std::mem::take(&mut out.send_after));
            if let Some(state) = out.restored.take() {
                self.restored(*state);
            }
            self.certify(std::mem::take(&mut out.committed))?;
        }
        self.out = out;
        if let Some(archive) = &mut self.archive {
            archive.decided(self.certifier.decided());
            archive.pump(self.consensus.log())?;
        }
        let mut books = Books {
            certifier: &self.certifier,
            history: &mut self.history,
            log: self.consensus.log(),
            members: &self.members,
            tick: self.tick,
        };
        self.desk.let_worker_in(&mut books)?;
        for note in self.desk.take_notes() {
            agent::report(note, &self.config.region, self.config.node);
        }
        self.follow_rebuild();
        if std::mem::take(&mut self.members_changed) {
            self.administer()?;
        }
        self.notice_leader()
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = NodeId(message.to as u32);
            if !self.transport.send_raft(message) {
                // Its queue is full: Raft goes back to probing, which sends little.
                tracing::warn!(region = %self.config.region, node = %self.config.node, peer = %to, "the peer does not keep up, messages dropped");
                self.dropped.push(to);
            }
        }
    }

    fn certify(&mut self, committed: Vec<Committed>) -> Result<()> {
        for entry in committed {
            self.bytes_since_checkpoint += entry.data.len() as u64;
            if entry.transaction().is_some() {
                stop_point(&self.config.data_dir, "committed");
            }
            let decided = decide(&entry, &mut self.certifier, &mut self.history, &mut self.members)?;
            if let Some((txn, decision)) = decided {
                stop_point(&self.config.data_dir, "certified");
                if let Decision::LeavesOut { left_out, .. } = decision {
                    let (region, node) = (&self.config.region, self.config.node);
                    tracing::warn!(%region, %node, index = %entry.index, %left_out, %txn, "an entry is left out of every PostgreSQL");
                }
                let books = Books {
                    certifier: &self.certifier,
                    history: &mut self.history,
                    log: self.consensus.log(),
                    members: &self.members,
                    tick: self.tick,
                };
                self.desk.decided(entry.index, txn, decision, &books)?;
                stop_point(&self.config.data_dir, "told");
            } else if let Some(members) = entry.members {
                self.set_members(members);
                self.check_membership()?;
            }
        }
        Ok(())
    }

    /// After a change of leader or term, proposals under way may be lost: all are sent again, at once.
    fn notice_leader(&mut self) -> Result<()> {
        let now = self.consensus.leadership();
        if self.leadership == Some(now) {
            return Ok(());
        }
        let before = self.leadership.replace(now);
        let index = self.certifier.decided();
        match now.leader {
            Some(leader) => {
                let its_region = self.members.region_of(leader).map_or("?", |r| r.as_str());
                tracing::info!(
                    region = %self.config.region, node = %self.config.node, term = %now.term, %index, %leader,
                    leader_region = its_region, role = ?now.role, "leader"
                );
            }
            None => tracing::info!(
                region = %self.config.region, node = %self.config.node, term = %now.term, %index, role = ?now.role, "no leader"
            ),
        }
        let same_leader = before.is_some_and(|b| b.leader == now.leader && b.term == now.term);
        if now.leader.is_none() || same_leader {
            return Ok(());
        }
        self.resend_all();
        self.advance()
    }

    fn resend_all(&mut self) {
        for raw in self.desk.resend(self.tick, true) {
            self.propose(raw);
        }
    }

    fn status(&self) -> CoreStatus {
        let mut desk = self.desk.status();
        let why_not = self.desk.stuck().and_then(|(at, _)| self.healing.why_not(*at));
        if let (Some(problem), Some(why_not)) = (&mut desk.problem, why_not) {
            problem.push_str(&format!("; PostgreSQL is not copied anew: {why_not}"));
        }
        CoreStatus {
            raft: self.consensus.status(),
            decided: self.certifier.decided(),
            last_committed: self.certifier.last_committed(),
            log_first: self.consensus.log().first_index(),
            checkpoint: self.checkpoint,
            members: self.members.clone(),
            own: self.my_position(),
            positions: self.positions.iter().map(|(id, p)| (*id, self.lag_by_now(*p))).collect(),
            log_bytes: self.consensus.log().bytes(),
            desk,
            archive: self.archive.as_ref().map(|a| a.report(self.certifier.decided())),
        }
    }

    fn end(&mut self, events: &Receiver<Event>) -> Result<()> {
        self.desk.stop();
        self.step(Input::HandOver);
        self.advance()?;
        // A leader that hands over spares the others an election timeout.
        let deadline = Instant::now() + HAND_OVER_WAIT;
        while self.consensus.leadership().role == Role::Leader {
            let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
            self.handle(event)?;
            self.advance()?;
        }
        self.desk.close_all();
        // Two writers of one file would spoil it.
        let deadline = Instant::now() + CHECKPOINT_WAIT;
        while self.checkpoint_under_way {
            match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Checkpointed(result)) => self.checkpointed(result)?,
                Ok(_) => {}
                Err(_) => return Err(Error::Internal("the last checkpoint does not end".into())),
            }
        }
        if let Some(archive) = self.archive.take() {
            archive.end();
        }
        // Of nothing there is none: whoever was kept out for what its node.toml says begins anew.
        if self.certifier.decided() > LogIndex::ZERO {
            self.checkpoint_file.save(self.certifier.decided(), &self.encoded_checkpoint())?;
        }
        self.consensus.log_mut().close()?;
        tracing::info!(
            region = %self.config.region, node = %self.config.node, index = %self.certifier.decided(), "log closed"
        );
        Ok(())
    }
}
