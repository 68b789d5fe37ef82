//! The core thread runs the node's replica (`onetrip_core::replica`): it takes part in Raft, writes the log, decides
//! entries and answers whoever waits.
//!
//! In each round it handles the events that wait in the inbox, so that one fsync covers them all and none waits for a
//! timer.  It uses sockets only through `Transport` and `SendQueue`, which never block.
//!
//! Invariants:
//! - After an error from the disk the thread ends, and the node with it; also when it learns that the node was removed.
//!
//! | module | what |
//! |---|---|
//! | `host` | what the replica runs on: sockets, files, threads, the clock |
//! | `storage` | opens the checkpoint and the log that earlier lives of the node left |
//! | `admin` | requests to read or change the table of members |
//! | `skip` | requests to leave an entry out |
//! | `retain` | which part of the log is needed by backups under way |
//! | `healing` | how often PostgreSQL may be copied because it cannot apply an entry |
//! | `positions`, `lag` | how far behind each PostgreSQL is |

mod admin;
mod healing;
mod host;
pub(crate) mod lag;
mod positions;
mod retain;
pub(crate) mod skip;
mod storage;

use crate::agent::AgentQueue;
use crate::archive::Archive;
use crate::config::NodeConfig;
use crate::disk::{RaftLog, StartsFile};
use crate::error::{Error, Result};
use crate::inbox::{Event, Events, Inbox, PeerEvent};
use crate::memory::Memory;
use crate::postgres::{has_server, RebuildFrom};
use crate::secret;
use crate::status::{CoreStatus, InLineReport, LockSessionReport, Position, ELECTION_MAX};
use crate::traces;
use crate::transport::Transport;
use admin::AdminRequests;
use healing::Healing;
use host::NodeHost;
use lag::LagClock;
use onetrip_core::consensus::Config;
use onetrip_core::parts::PartSizes;
use onetrip_core::replica::{Host, Replica, Settings};
use onetrip_core::router::AgentEvent;
use onetrip_core::{LogIndex, NodeId};
use retain::Retained;
use skip::Skips;
use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const TICK: Duration = Duration::from_millis(20);
/// Sessions with row locks that a status names, and those in line.
const LOCKS_SHOWN_MAX: usize = 100;
const HEARTBEAT_TICKS: usize = 5;
const TRANSFER_TICKS: usize = 25;
/// A follower waits at least this long for its leader: as long as a core thread may be busy with one very large
/// transaction (a guess); longer where round trips are long (`host`).
const ELECTION_TICKS: usize = 40;
/// A guess: 30 s to read and install what the socket has taken.
const SNAPSHOT_TICKS: usize = 1_500;
/// A checkpoint is made after so many entries (fewer if the certification window is shorter) or bytes.
const CHECKPOINT_ENTRIES_MAX: u64 = 100_000;
const CHECKPOINT_BYTES: u64 = 256 << 20;
const CUT_MARGIN: u64 = 1_000;
/// Far less than the queue to a peer can contain.
const NEAR_BYTES: u64 = 8 << 20;
/// The leader moves after another place has been better for 5 s, and at the earliest a minute after the last move.
const LEADER_LOOKS: u32 = 10;
const LEADER_REST_TICKS: u64 = 3_000;
/// By then the apply worker has started over several times.
const STILL_AFTER: Duration = Duration::from_secs(5);
/// A thread that slept too long makes up for this many ticks at most: catching up on all of them could start an
/// election.
const TICKS_AT_ONCE: u32 = 3;
/// At most this many events are handled before the disk is written, and for no longer than a tick, since a leader that
/// is busy with them sends no heartbeats.
const EVENTS_AT_ONCE: usize = 1024;
/// How long a stopping leader waits for its successor.
const HAND_OVER_WAIT: Duration = Duration::from_millis(500);
/// How long a stop waits for a checkpoint under way.
const CHECKPOINT_WAIT: Duration = Duration::from_secs(60);

pub struct CoreThread {
    replica: Replica<RaftLog, AgentQueue>,
    host: NodeHost,
    skips: Skips,
    admin: AdminRequests,
    /// How far the other members' PostgreSQL servers are, as they last reported.
    positions: BTreeMap<NodeId, Position>,
    leaderless: Option<Leaderless>,
    log_bytes_max: u64,
}

/// Since when no leader is known, and whether the log says so.
struct Leaderless {
    since: Instant,
    told: bool,
}

/// What is above the checkpoint cannot be cut.
fn checkpoint_bytes(log_bytes_max: u64) -> u64 {
    CHECKPOINT_BYTES.min(log_bytes_max / 4)
}

enum Flow {
    GoOn,
    Stop,
}

impl CoreThread {
    /// Reads and verifies what earlier lives of the node left on disk.
    pub fn open(
        config: Arc<NodeConfig>,
        transport: Arc<Transport>,
        inbox: Inbox,
        orders: watch::Sender<Option<RebuildFrom>>,
    ) -> Result<CoreThread> {
        let (checkpoint_file, state, mut log) = storage::open(&config)?;
        let own = inbox.clone();
        log.read_backlog_beside(move || own.send_blocking(Event::Fetched))?;
        let own = inbox.clone();
        log.sync_beside(move || own.wake(Event::Synced))?;
        let (checkpoint, last) = (state.index(), log.last_index());
        let archive = config.archive.as_ref().map(|a| Archive::start(&config, &a.folder, checkpoint)).transpose()?;
        tracing::info!(
            term = log.hard_state().term, index = %last, %checkpoint,
            "log opened"
        );
        let raft_config = Config {
            id: config.node,
            limits: config.limits(),
            applied: checkpoint,
            level: onetrip_core::level::KNOWN,
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: ELECTION_TICKS,
            transfer_ticks: TRANSFER_TICKS,
            snapshot_ticks: SNAPSHOT_TICKS,
        };
        let settings = Settings {
            region: config.region.clone(),
            has_postgres: config.postgres.is_some(),
            checkpoint_entries: CHECKPOINT_ENTRIES_MAX.min(config.window_entries),
            checkpoint_bytes: checkpoint_bytes(config.log_bytes_max),
            cut_margin: CUT_MARGIN,
            log_bytes_max: config.log_bytes_max,
            near_bytes: NEAR_BYTES,
            leader_looks: LEADER_LOOKS,
            leader_rest_ticks: LEADER_REST_TICKS,
            still_after: STILL_AFTER,
            parts: PartSizes::default(),
            first_question: secret::draw_number()?,
        };
        let starts_file = StartsFile::new(config.data_dir.join(storage::STARTS_FILE));
        let promised_file = StartsFile::new(config.data_dir.join(storage::PROMISED_FILE));
        let has_promised = promised_file.load()?.contains(&1);
        if has_promised {
            tracing::info!("read leases may rest on what this node promised: it waits until they have run out");
        }
        let replica = Replica::new(settings, raft_config, state, log, &starts_file.load()?, has_promised)?;
        let postgres_is_there = has_server(&config.data_dir);
        let traces = traces::start(&config)?;
        let host = NodeHost {
            healing: Healing::new(&config.data_dir),
            config,
            transport,
            inbox,
            checkpoint_file,
            starts_file,
            promised_file,
            archive,
            retained: Retained::default(),
            orders,
            members_changed: false,
            lag: LagClock::default(),
            traces,
        };
        let mut core = CoreThread {
            replica,
            host,
            skips: Skips::default(),
            admin: AdminRequests::default(),
            positions: BTreeMap::new(),
            leaderless: None,
            log_bytes_max: 0,
        };
        let (log_bytes_max, memory) = (core.host.config.log_bytes_max, core.host.config.memory);
        core.set_bounds(log_bytes_max, &memory);
        core.replica.start(postgres_is_there, &mut core.host)?;
        Ok(core)
    }

    /// An entry of the log that Raft could not read, if nobody has heard of it: after a panic, that may be why.
    pub fn take_damage(&mut self) -> Option<Error> {
        self.replica.consensus.log_mut().take_damage()
    }

    /// The thread's body.  `Ok`: it was asked to stop, and all is on disk.
    pub fn run(&mut self, events: &Events) -> Result<()> {
        let result = self.work(events).and_then(|()| self.end(events));
        if let Err(Error::Removed(_)) = &result {
            self.replica.has_left();
            self.answer_requests();
        }
        // Whoever waits for an answer here has to connect and ask again.
        self.replica.router.close_all();
        result
    }

    /// Runs until it is asked to stop.
    fn work(&mut self, events: &Events) -> Result<()> {
        let mut next_tick = Instant::now() + TICK;
        self.advance()?;
        loop {
            let wait = next_tick.saturating_duration_since(Instant::now());
            let first = match events.recv_timeout(wait) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("all threads that send events to the core thread have ended".into()));
                }
            };
            for event in events.round(first, EVENTS_AT_ONCE, Instant::now() + TICK) {
                if let Flow::Stop = self.handle(event)? {
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
        let (replica, host) = (&mut self.replica, &mut self.host);
        match event {
            Event::Peer(_, PeerEvent::Raft(message)) => replica.message(*message, host)?,
            Event::Peer(peer, PeerEvent::Notice(notice)) => replica.notice(peer, notice, host),
            Event::Peer(peer, PeerEvent::Question(question)) => replica.question(peer, question, host),
            Event::Peer(peer, PeerEvent::LastEntry(question, last)) => replica.last_entry_of(peer, question, last),
            Event::Peer(peer, PeerEvent::LeaseQuestion(question)) => replica.lease_question(peer, question, host)?,
            Event::Peer(peer, PeerEvent::Promise(question, last)) => replica.promise_of(peer, question, last),
            Event::Peer(peer, PeerEvent::Await(at)) => replica.awaits(peer, at),
            Event::Peer(peer, PeerEvent::Lock(message)) => replica.lock_message(peer, message, host),
            Event::Peer(peer, PeerEvent::Report(report, decided)) => self.report_of(peer, report, &decided),
            Event::Peer(peer, PeerEvent::Unreachable) => replica.unreachable(peer, host),
            Event::Peer(peer, PeerEvent::Connected) => replica.connected(peer, host)?,
            Event::Peer(_, PeerEvent::Removed(why)) => return Err(Error::Removed(why)),
            Event::Agent(event) => {
                if let (Some(traces), AgentEvent::Propose { txn, .. }) = (&mut host.traces, &event) {
                    traces.took(txn);
                }
                replica.agent(event, host)?;
            }
            Event::Skip { index, force, answer } => self.ask_skip(index, force, answer)?,
            Event::Kept(kept, answer) => self.kept_skipped(kept, answer),
            Event::Admin(request, answer) => {
                self.administer(request, answer);
            }
            Event::Retain(None, answer) => host.retained.ask(answer),
            Event::Retain(Some(index), answer) => {
                host.retained.renew(index, replica.ticks());
                let _ = answer.send(index);
            }
            Event::Status(answer) => {
                // It does no harm if nobody waits any more.
                let _ = answer.send(self.status());
            }
            Event::Checkpointed(result) => {
                let (index, conf) = result?;
                replica.checkpointed(index, &conf, host)?;
            }
            Event::Opened(opened) => replica.opened(*opened, host),
            Event::Fetched => replica.fetched(host),
            Event::Bounds { log_bytes_max, memory } => self.set_bounds(log_bytes_max, &memory),
            // `advance` looks.
            Event::Synced => {}
            Event::Broken(why) => return Err(Error::Internal(why.into())),
            Event::Stop => return Ok(Flow::Stop),
        }
        Ok(Flow::GoOn)
    }

    fn set_bounds(&mut self, log_bytes_max: u64, memory: &Memory) {
        self.replica.set_log_bytes(log_bytes_max, checkpoint_bytes(log_bytes_max));
        self.replica.consensus.log_mut().set_cache_bytes_max(memory.recent_log_bytes as usize);
        self.log_bytes_max = log_bytes_max;
    }

    fn on_tick(&mut self) -> Result<()> {
        self.host.lag.decided(self.replica.certifier.last_committed(), Instant::now());
        self.withdraw_requests();
        if let Some(time_ms) = self.host.archive.as_mut().and_then(Archive::asks_whether_quiet) {
            self.replica.confirm(time_ms);
        }
        self.replica.tick(&mut self.host)?;
        self.note_leaderless();
        self.forget_lag();
        Ok(())
    }

    fn note_leaderless(&mut self) {
        let leadership = self.replica.consensus.leadership();
        match (&mut self.leaderless, leadership.leader) {
            (leaderless, Some(_)) => *leaderless = None,
            (leaderless @ None, None) => *leaderless = Some(Leaderless { since: Instant::now(), told: false }),
            (Some(Leaderless { since, told }), None) if !*told && since.elapsed() > ELECTION_MAX => {
                *told = true;
                tracing::warn!(term = %leadership.term, role = ?leadership.role, "no leader for {} s", ELECTION_MAX.as_secs());
            }
            _ => {}
        }
    }

    /// Does all the work that follows from the events that were handled.
    fn advance(&mut self) -> Result<()> {
        if let Some(number) = self.replica.consensus.log_mut().take_synced()? {
            self.replica.synced(number, &mut self.host)?;
        }
        self.replica.advance(&mut self.host)?;
        if let Some(damage) = self.take_damage() {
            return Err(damage);
        }
        if let Some(archive) = &mut self.host.archive {
            archive.decided(self.replica.certifier.decided());
            archive.pump(self.replica.consensus.log())?;
        }
        if std::mem::take(&mut self.host.members_changed) {
            self.positions.retain(|id, _| self.replica.members().contains(*id));
        }
        self.answer_requests();
        Ok(())
    }

    fn status(&self) -> CoreStatus {
        let (replica, host) = (&self.replica, &self.host);
        let mut router = replica.router.status();
        let why_not = replica.router.stuck().and_then(|(at, _)| host.healing.why_not(*at));
        if let (Some(problem), Some(why_not)) = (&mut router.problem, why_not) {
            problem.push_str(&format!("; PostgreSQL is not copied anew: {why_not}"));
        }
        let raft = replica.consensus.status();
        let lock_sessions = replica.lock_sessions(LOCKS_SHOWN_MAX).into_iter();
        CoreStatus {
            disk_silent: TICK * raft.disk_silent_ticks as u32,
            raft,
            decided: replica.certifier.decided(),
            arriving: replica.certifier.arriving().map(|arriving| (arriving.txn, arriving.len())),
            prepared: replica.certifier.prepared().len(),
            prepared_since: replica.certifier.prepared().values().map(|prepared| prepared.index).min(),
            last_committed: replica.certifier.last_committed(),
            log_first: replica.consensus.log().first_index(),
            feedable_from: replica.feedable_from(),
            checkpoint: replica.checkpoint(),
            members: replica.members().clone(),
            own: self.own_position(),
            positions: self.positions.iter().map(|(id, p)| (*id, self.lag_by_now(*p))).collect(),
            silent: replica.silent(host.now()).collect(),
            log_bytes: replica.consensus.log().bytes(),
            log_bytes_max: self.log_bytes_max,
            router,
            places: replica.places(host.now()),
            has_lease: replica.has_lease(host),
            lock_sessions: lock_sessions.map(|session| LockSessionReport::of(session, TICK)).collect(),
            lock_line: replica.lock_line(LOCKS_SHOWN_MAX).into_iter().map(InLineReport::from).collect(),
            leader_settled: replica.leader_is_settled(host.now()),
            archive: host.archive.as_ref().map(|a| a.report(replica.certifier.decided())),
            leaderless: self.leaderless.as_ref().map(|leaderless| leaderless.since.elapsed()),
            round_trips: replica.round_trips().map(|(ends, us)| (ends, Duration::from_micros(us.into()))).collect(),
        }
    }

    fn end(&mut self, events: &Events) -> Result<()> {
        self.replica.stop(&mut self.host);
        self.advance()?;
        let deadline = Instant::now() + HAND_OVER_WAIT;
        while self.replica.consensus.is_handing_over() {
            let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
            self.handle(event)?;
            self.advance()?;
        }
        self.replica.router.close_all();
        // A checkpoint under way writes the same file as the one saved below.
        let deadline = Instant::now() + CHECKPOINT_WAIT;
        while self.replica.checkpoint_is_under_way() {
            match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event @ (Event::Checkpointed(_) | Event::Broken(_))) => _ = self.handle(event)?,
                Ok(_) => {}
                Err(_) => return Err(Error::Internal("a checkpoint under way did not end in time".into())),
            }
        }
        if let Some(archive) = self.host.archive.take() {
            archive.end();
        }
        let decided = self.replica.certifier.decided();
        // If nothing was decided, no checkpoint is saved: a node that the others refused because of its node.toml has
        // to begin anew from the corrected file.  Between the parts of a transaction the last checkpoint serves.
        if decided > LogIndex::ZERO && !self.replica.certifier.is_between_parts() {
            self.host.checkpoint_file.save(decided, &self.replica.encoded_checkpoint())?;
        }
        self.replica.consensus.log_mut().close()?;
        tracing::info!(index = %decided, "log closed");
        Ok(())
    }
}
