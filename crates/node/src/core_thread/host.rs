//! What the replica runs on in the daemon: sockets, files, threads, the clock.

use super::healing::Healing;
use super::lag::LagClock;
use super::retain::Retained;
use super::TICK;
use crate::agent::{self, AgentQueue};
use crate::archive::Archive;
use crate::config::NodeConfig;
use crate::disk::{CheckpointFile, RaftLog, StartsFile};
use crate::error::{Error, Result};
use crate::inbox::{Event, Inbox};
use crate::postgres::RebuildFrom;
use crate::span;
use crate::stop::stop_point;
use crate::traces::Watch;
use crate::transport::Transport;
use bytes::Bytes;
use nix::time::{clock_gettime, ClockId};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Decision, Limits};
use onetrip_core::checkpoint::Frozen;
use onetrip_core::consensus::{Committed, Leadership, Message, Notice, Opened};
use onetrip_core::decide::decide;
use onetrip_core::replica::{Host, Report, Stage};
use onetrip_core::router;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{Checkpoint, EntryId, LogIndex, Members, NodeId, Term, TxnId};
use raft::eraftpb::{Entry as RaftEntry, HardState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// An election timeout is at least this many round trips to the farthest voter, but no longer than 10 s.
const ELECTION_ROUND_TRIPS: f64 = 5.0;
const ELECTION_TICKS_MAX: usize = 500;

pub(super) struct NodeHost {
    pub config: Arc<NodeConfig>,
    pub transport: Arc<Transport>,
    pub inbox: Inbox,
    pub checkpoint_file: CheckpointFile,
    pub starts_file: StartsFile,
    pub promised_file: StartsFile,
    pub archive: Option<Archive>,
    pub retained: Retained,
    pub healing: Healing,
    /// `Some`: PostgreSQL's data folder has to be made anew.
    pub orders: watch::Sender<Option<RebuildFrom>>,
    /// The table of members has changed since the core thread last looked.
    pub members_changed: bool,
    pub lag: LagClock,
    /// `None`: COMMITs are not traced.
    pub traces: Option<Watch>,
}

impl NodeHost {
    /// Does slow work on a thread of its own, and puts the event that results into the inbox.
    pub fn beside(&self, name: &str, work: impl FnOnce() -> Event + Send + 'static) -> Result<()> {
        let inbox = self.inbox.clone();
        span::spawn_thread(name, move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // The panic itself is on standard error; without this event, whoever waits for the work would wait for
            // ever.
            inbox.send_blocking(result.unwrap_or_else(|_| Event::Broken("a thread of the node panicked")));
        })?;
        Ok(())
    }
}

impl Host for NodeHost {
    type Error = Error;
    type Store = RaftLog;
    type Outbox = AgentQueue;

    fn now(&self) -> Duration {
        // It counts while the machine sleeps.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
        now.into()
    }

    fn stage(&mut self, stage: Stage) -> Result<()> {
        let name = match stage {
            Stage::Received => "received",
            Stage::Proposed => "proposed",
            Stage::Appended => "appended",
            Stage::Committed => "committed",
            Stage::Certified => "certified",
            Stage::Told => "told",
            _ => return Ok(()),
        };
        stop_point(&self.config.data_dir, name);
        Ok(())
    }

    fn send(&mut self, message: Message) -> bool {
        let to = NodeId(message.to as u32);
        let sent = self.transport.send_raft(message);
        if !sent {
            tracing::warn!(peer = %to, "the peer does not keep up, messages dropped");
        }
        sent
    }

    fn is_sending(&mut self, to: NodeId) -> bool {
        self.transport.is_sending(to)
    }

    fn send_notice(&mut self, to: &[NodeId], notice: Notice) {
        self.transport.send_notice(to, notice);
    }

    fn send_question(&mut self, to: &[NodeId], question: u64) {
        self.transport.send_question(to, question);
    }

    fn send_last_entry(&mut self, to: NodeId, question: u64, last: EntryId) {
        self.transport.send_last_entry(to, question, last);
    }

    fn send_lease_question(&mut self, to: &[NodeId], question: u64) {
        self.transport.send_lease_question(to, question);
    }

    fn send_promise(&mut self, to: NodeId, question: u64, last: EntryId) {
        self.transport.send_promise(to, question, last);
    }

    fn send_report(&mut self, to: Option<&[NodeId]>, own: &Report) {
        self.transport.send_report(to, own, self.lag.told(Instant::now()));
    }

    fn send_await(&mut self, to: &[NodeId], at: LogIndex) {
        self.transport.send_await(to, at);
    }

    fn send_lock_message(&mut self, to: NodeId, message: LockMessage) {
        self.transport.send_lock_message(to, message);
    }

    fn round_trips(&mut self) -> Vec<(NodeId, u32)> {
        let us = |way: Duration| u32::try_from(way.as_micros()).unwrap_or(u32::MAX);
        let connected = self.transport.peers().into_iter().filter(|p| p.connected);
        connected.filter_map(|p| Some((p.id, us(p.rtt_least?)))).collect()
    }

    fn election_ticks(&mut self, members: &Members) -> usize {
        let peers = self.transport.peers();
        let voters = peers.iter().filter(|p| members.get(p.id).is_some_and(|m| m.voter));
        let slowest = voters.filter_map(|p| p.rtt_median).max().unwrap_or_default();
        let ticks = (slowest.as_secs_f64() * ELECTION_ROUND_TRIPS / TICK.as_secs_f64()).ceil() as usize;
        ticks.min(ELECTION_TICKS_MAX)
    }

    fn save_starts(&mut self, _log: &mut RaftLog, starts: Vec<u64>) -> Result<()> {
        self.starts_file.save(&starts)
    }

    fn save_promised(&mut self, _log: &mut RaftLog, promised: bool) -> Result<()> {
        self.promised_file.save(&[u64::from(promised)])
    }

    fn begin_append(
        &mut self,
        log: &mut RaftLog,
        entries: &[RaftEntry],
        hard_state: Option<&HardState>,
        number: u64,
    ) -> Result<bool> {
        log.begin_append(entries, hard_state, number)
    }

    fn install_checkpoint(&mut self, log: &mut RaftLog, (index, term): (LogIndex, Term), raw: &Bytes) -> Result<()> {
        use onetrip_core::replica::Store;
        tracing::warn!(
            %index, %term, bytes = raw.len(),
            "the other members' log begins after the end of this node's, which goes on from a checkpoint of theirs"
        );
        log.install_checkpoint(index, raw)
    }

    fn write_checkpoint(&mut self, checkpoint: Frozen) -> Result<()> {
        let file = self.checkpoint_file.clone();
        self.beside("onetrip-ckpt", move || {
            let (index, conf) = (checkpoint.index(), checkpoint.conf().clone());
            let saved = file.save(index, &checkpoint.encode());
            Event::Checkpointed(saved.map(|()| (index, conf)))
        })
    }

    fn open_snapshot(&mut self, message: Message, limits: Limits) -> Result<()> {
        let file = self.checkpoint_file.clone();
        self.beside("onetrip-open", move || {
            let opened = Opened::open(message, limits);
            if let Some(Err(e)) = opened.as_ref().ok().map(|opened| file.prepare(opened.data())) {
                tracing::warn!("a checkpoint of another node could not be written yet; this is tried again: {e}");
            }
            Event::Opened(Box::new(opened))
        })
    }

    fn wants_checkpoint(&self) -> bool {
        self.retained.wants_checkpoint()
    }

    fn checkpointed(&mut self, index: LogIndex, tick: u64) {
        self.retained.checkpointed(index, tick);
    }

    fn confirmed(&mut self, time_ms: u64, _decided: LogIndex) {
        if let Some(archive) = &mut self.archive {
            archive.quiet_until(time_ms);
        }
    }

    fn log_needed_above(&mut self, tick: u64) -> Option<LogIndex> {
        let archived = self.archive.as_ref().map(|a| a.archived());
        archived.into_iter().chain(self.retained.least(tick)).min()
    }

    fn rebuild(&mut self, order: Option<RebuildFrom>) {
        match order {
            Some(RebuildFrom { at_least, keep_old: false }) => {
                tracing::warn!(%at_least, "PostgreSQL's data folder has to be made anew");
            }
            Some(RebuildFrom { at_least, .. }) => {
                tracing::warn!(index = %at_least, "PostgreSQL cannot apply an entry: its data folder is made anew");
            }
            None => tracing::info!("PostgreSQL's data folder no longer has to be made anew"),
        }
        self.orders.send_replace(order);
    }

    fn may_heal(&self) -> std::result::Result<(), String> {
        self.healing.may_order()
    }

    fn not_healed(&mut self, at: LogIndex, why: &str, why_not: String) {
        if self.healing.is_news(at, &why_not) {
            tracing::error!(index = %at, why, "PostgreSQL cannot apply an entry and is not copied anew: {why_not}");
        }
    }

    fn decide(
        &mut self,
        entry: &Committed,
        certifier: &mut Certifier,
        committed_indexes: &mut CommittedIndexes,
        members: &mut Arc<Members>,
    ) -> onetrip_core::Result<Option<(TxnId, Decision)>> {
        let committed = self.traces.is_some().then(SystemTime::now);
        let decided = decide(entry, certifier, committed_indexes, members)?;
        if let (Some(traces), Some(committed), Some((txn, decision))) = (&mut self.traces, committed, &decided) {
            traces.decided(txn, entry.index, decision, committed);
        }
        if let Some((txn, Decision::LeavesOut { left_out, .. })) = decided {
            tracing::warn!(index = %entry.index, %left_out, %txn, "an entry is left out of every PostgreSQL");
        }
        Ok(decided)
    }

    fn ignored(&mut self, error: onetrip_core::Error) {
        match error {
            e @ (onetrip_core::Error::Raft(_) | onetrip_core::Error::NoLeader) => {
                tracing::debug!("raft ignored an input: {e}");
            }
            e => tracing::warn!("refused an input: {e}"),
        }
    }

    fn has_leader(&mut self, now: Leadership, members: &Members, decided: LogIndex) {
        match now.leader {
            Some(leader) => {
                let its_region = members.region_of(leader).map_or("?", |r| r.as_str());
                tracing::info!(
                    term = %now.term, index = %decided, %leader, leader_region = its_region, role = ?now.role,
                    "leader"
                );
            }
            None => {
                // Each election begins with it.  `on_tick` says so if it lasts.
                tracing::debug!(term = %now.term, index = %decided, role = ?now.role, "no leader");
            }
        }
    }

    fn has_members(&mut self, members: &Arc<Members>, decided: LogIndex) {
        tracing::info!(
            index = %decided, version = members.version,
            voters = ?members.voters().map(|m| m.id.0).collect::<Vec<_>>(), members = members.members.len(), "members"
        );
        self.transport.set_members(members);
        self.members_changed = true;
    }

    fn restored(&mut self, state: &Checkpoint) {
        tracing::info!(index = %state.index(), "went on from a checkpoint");
    }

    fn removed(&mut self, decided: LogIndex) -> Error {
        Error::Removed(format!("this node was removed from the cluster at log index {decided}"))
    }

    fn router_event(&mut self, event: router::Event) {
        agent::report(event);
    }
}
