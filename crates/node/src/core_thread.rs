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
//! - The log is cut only below what every member's PostgreSQL has durably applied, and below the durable checkpoint.
//! - After an error from the disk the thread ends, and the node with it.

use crate::agent::{Books, Desk};
use crate::archive::Archive;
use crate::config::NodeConfig;
use crate::disk::{CheckpointFile, RaftLog};
use crate::error::{Error, Result};
use crate::inbox::{Event, Inbox, PeerEvent};
use crate::status::CoreStatus;
use crate::stop::stop_point;
use crate::transport::Transport;
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, Decision, History, Verdict};
use onetrip_core::consensus::{Committed, Config, Consensus, Input, Leadership, Message, Output, Role};
use onetrip_core::{Entry, LogIndex, NodeId};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
const HEARTBEAT_TICKS: usize = 5;
const TRANSFER_TICKS: usize = 25;
/// Positions go to the peers this often.
const POSITION_TICKS: u64 = 25;
/// A thread that slept too long makes up for this many ticks at most: catching up on all of them could call an election.
const TICKS_AT_ONCE: u32 = 3;
/// Events taken before the disk is written.
const EVENTS_AT_ONCE: usize = 1024;
/// A checkpoint is made after so many entries (fewer if the certification window is shorter) or bytes.
const CHECKPOINT_ENTRIES_MAX: u64 = 100_000;
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// How long a stopping leader waits for its successor.
const HAND_OVER_WAIT: Duration = Duration::from_millis(500);
/// How long a stop waits for a checkpoint under way.
const CHECKPOINT_WAIT: Duration = Duration::from_secs(60);
/// Entries that stay in the log although nobody should need them: a member may still read them for an append.
const CUT_MARGIN: u64 = 1_000;

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
    /// The last durable checkpoint.
    checkpoint: LogIndex,
    checkpoint_under_way: bool,
    bytes_since_checkpoint: u64,
    durable_of: BTreeMap<NodeId, LogIndex>,
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
    pub fn open(config: Arc<NodeConfig>, transport: Arc<Transport>, inbox: Inbox) -> Result<CoreThread> {
        let voters: Vec<NodeId> = config.members.iter().map(|m| m.id).collect();
        let checkpoint_file = CheckpointFile::new(config.data_dir.join("certifier.checkpoint"));
        let (certifier, history) = checkpoint_file.load(config.limits())?;
        let mut log = RaftLog::open(&config.data_dir.join("log"), &voters)?;
        let checkpoint = certifier.decided();
        let (first, last) = (log.first_index(), log.last_index());
        if last < checkpoint || first > checkpoint.next() {
            let why =
                format!("it holds entries {first} to {last}, but the certifier's checkpoint stands at {checkpoint}");
            return Err(Error::Corrupted { file: config.data_dir.join("log"), why });
        }
        log.raise_commit(checkpoint);
        let archive = config.archive.as_ref().map(|a| Archive::start(&config, &a.folder, checkpoint)).transpose()?;
        let preferred = config.members.iter().filter(|m| m.region == config.preferred_leader).map(|m| m.id).collect();
        let ticks = (config.election_timeout().as_millis() / TICK.as_millis()) as usize;
        let raft_config = Config {
            id: config.node,
            preferred,
            applied: checkpoint,
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: ticks,
            transfer_ticks: TRANSFER_TICKS,
        };
        tracing::info!(
            region = %config.region, node = %config.node, term = log.hard_state().term, index = %last, %checkpoint,
            "log opened"
        );
        Ok(CoreThread {
            desk: Desk::new(config.clone(), last),
            archive,
            consensus: Consensus::new(raft_config, log)?,
            config,
            certifier,
            history,
            transport,
            inbox,
            checkpoint_file,
            checkpoint,
            checkpoint_under_way: false,
            bytes_since_checkpoint: 0,
            durable_of: BTreeMap::new(),
            leadership: None,
            tick: 0,
            dropped: Vec::new(),
            out: Output::default(),
        })
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
            Event::Peer(peer, PeerEvent::Durable(durable)) => {
                self.durable_of.insert(peer, durable);
            }
            Event::Peer(peer, PeerEvent::Unreachable) => self.step(Input::Unreachable(peer)),
            Event::Peer(_, PeerEvent::Removed(why)) => return Err(Error::Removed(why)),
            Event::Agent(event) => {
                let mut books = Books {
                    certifier: &self.certifier,
                    history: &mut self.history,
                    log: self.consensus.log(),
                    tick: self.tick,
                };
                if let Some(raw) = self.desk.handle(event, &mut books)? {
                    stop_point(&self.config.data_dir, "received");
                    self.propose(raw);
                }
            }
            Event::Status(answer) => {
                // Nobody waiting any more is no harm.
                let _ = answer.send(self.status());
            }
            Event::Checkpointed(result) => {
                self.checkpoint = result?;
                self.checkpoint_under_way = false;
                if self.config.postgres.is_none() && self.desk.durable().is_none() {
                    self.history.forget_to(self.checkpoint);
                }
                self.cut()?;
            }
            Event::Stop => return Ok(Flow::Stop),
        }
        Ok(Flow::GoOn)
    }

    fn step(&mut self, input: Input) {
        // What raft-rs refuses (a message of a stranger, a stale one) is no fault of this node.
        if let Err(e) = self.consensus.step(input) {
            tracing::debug!(region = %self.config.region, node = %self.config.node, "raft ignored an input: {e}");
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
        if self.tick % POSITION_TICKS == 0 {
            if let Some(durable) = self.my_durable() {
                self.durable_of.insert(self.config.node, durable);
                self.transport.send_position(durable);
            }
            self.cut()?;
            let entries = self.certifier.decided().0 - self.checkpoint.0;
            let enough = CHECKPOINT_ENTRIES_MAX.min(self.config.window_entries);
            if entries >= enough || self.bytes_since_checkpoint >= CHECKPOINT_BYTES {
                self.start_checkpoint()?;
            }
        }
        Ok(())
    }

    /// A node without PostgreSQL needs nothing of the log below its checkpoint.
    fn my_durable(&self) -> Option<LogIndex> {
        self.desk.durable().or(self.config.postgres.is_none().then_some(self.checkpoint))
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
                // Only the commit index moved: the next write takes it along.
                if persist.must_sync {
                    self.consensus.log_mut().append(&persist.entries, persist.hard_state.as_ref(), true)?;
                    stop_point(&self.config.data_dir, "appended");
                }
            }
            self.consensus.persisted(&mut out);
            self.send(std::mem::take(&mut out.send_after));
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
            tick: self.tick,
        };
        self.desk.let_worker_in(&mut books)?;
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
        for Committed { index, data } in committed {
            self.bytes_since_checkpoint += data.len() as u64;
            if data.is_empty() {
                self.certifier.skip(index)?;
                continue;
            }
            let entry = match Entry::decode(data) {
                Ok(entry) => entry,
                // Every node sees the same bytes, so every node passes over them.
                Err(e) => {
                    tracing::error!(region = %self.config.region, node = %self.config.node, %index, "the log holds no entry here: {e}");
                    self.certifier.skip(index)?;
                    continue;
                }
            };
            stop_point(&self.config.data_dir, "committed");
            let decision = self.certifier.certify(index, &entry)?;
            stop_point(&self.config.data_dir, "certified");
            if let Decision::Decided { verdict: Verdict::Commit, .. } = decision {
                self.history.push(index);
            }
            let books = Books {
                certifier: &self.certifier,
                history: &mut self.history,
                log: self.consensus.log(),
                tick: self.tick,
            };
            self.desk.decided(index, entry.txn, decision, &books)?;
            stop_point(&self.config.data_dir, "told");
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
                let its_region = self.config.region_of(leader).map_or("?", |r| r.as_str());
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
        for raw in self.desk.resend(self.tick, true) {
            self.propose(raw);
        }
        self.advance()
    }

    fn start_checkpoint(&mut self) -> Result<()> {
        if self.checkpoint_under_way {
            return Ok(());
        }
        self.checkpoint_under_way = true;
        self.bytes_since_checkpoint = 0;
        let (index, raw) = (self.certifier.decided(), self.certifier.to_checkpoint(&self.history));
        let (file, inbox) = (self.checkpoint_file.clone(), self.inbox.clone());
        let thread = std::thread::Builder::new().name("onetrip-ckpt".into());
        let write = move || inbox.send_blocking(Event::Checkpointed(file.save(&raw).map(|()| index)));
        thread.spawn(write).map_err(|e| Error::Internal(format!("starting a thread: {e}")))?;
        Ok(())
    }

    fn cut(&mut self) -> Result<()> {
        let members = self.config.members.iter();
        // Until all have spoken in this life, nobody knows what is still needed.
        let all: Option<Vec<LogIndex>> = members.map(|m| self.durable_of.get(&m.id).copied()).collect();
        let Some(needed) = all.and_then(|d| d.into_iter().min()) else { return Ok(()) };
        let needed = self.archive.as_ref().map_or(needed, |a| needed.min(a.archived()));
        let upto = needed.min(self.checkpoint).0.saturating_sub(CUT_MARGIN);
        self.consensus.log_mut().cut(LogIndex(upto))
    }

    fn status(&self) -> CoreStatus {
        CoreStatus {
            raft: self.consensus.status(),
            decided: self.certifier.decided(),
            last_committed: self.certifier.last_committed(),
            log_first: self.consensus.log().first_index(),
            checkpoint: self.checkpoint,
            durable_of: self.durable_of.clone(),
            desk: self.desk.status(),
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
                Ok(Event::Checkpointed(result)) => {
                    self.checkpoint = result?;
                    self.checkpoint_under_way = false;
                }
                Ok(_) => {}
                Err(_) => return Err(Error::Internal("the last checkpoint does not end".into())),
            }
        }
        if let Some(archive) = self.archive.take() {
            archive.end();
        }
        self.checkpoint_file.save(&self.certifier.to_checkpoint(&self.history))?;
        self.consensus.log_mut().close()?;
        tracing::info!(
            region = %self.config.region, node = %self.config.node, index = %self.certifier.decided(), "log closed"
        );
        Ok(())
    }
}
