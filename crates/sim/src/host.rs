//! What a node's replica stands on here, with the faults: between any two of its stages it can be told to die
//! (`fuse`), and what it had sent is then under way, what it had not synced may be gone.

use crate::agent::Wire;
use crate::ctx::{Ctx, InjectedBug, Micros, MS, SECOND};
use crate::disk::SimLog;
use crate::node::{Body, Departure, Result, Stop};
use crate::rng::mix;
use crate::trace;
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, CommittedIndexes, Decision, Limits};
use onetrip_core::checkpoint::Frozen;
use onetrip_core::consensus::{Committed, Consensus, Leadership, Message, Notice, Role};
use onetrip_core::decide::decide;
use onetrip_core::replica::{Host, RebuildFrom, Report, Stage, Store};
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{level, Checkpoint, Entry, EntryId, LogIndex, Members, NodeId, Term, TxnId};
use raft::eraftpb::{Entry as RaftEntry, HardState, MessageType};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of appends and snapshots to one peer that may wait to leave.
const QUEUE_BYTES_MAX: u64 = 20_000;
/// How many bytes each byte of a snapshot counts as on a narrow link: compared with entries, the simulation's
/// snapshots are far too small.
const SNAPSHOT_BYTES: usize = 20;
/// But it leaves within this time: two of them, one behind the other, must not take up all the time for healing.
const SNAPSHOT_LEAVES_MAX: u64 = 10 * SECOND / MS;
/// How long one election draw holds.
const DRAW_TICKS: u64 = 64;

pub struct SimHost<'a> {
    pub body: &'a mut Body,
    pub ctx: &'a mut Ctx,
}

impl Body {
    /// The node's own clock: faster or slower than the world's, always by as much.
    pub fn time(&self, at: Micros) -> Duration {
        Duration::from_micros(at / 1_000 * self.pace + at % 1_000 * self.pace / 1_000)
    }

    /// Passes on what the router has said.
    pub fn answer(&mut self) {
        let said = std::mem::take(&mut *self.said.lock().expect("one thread"));
        self.departures.extend(said.into_iter().map(|frame| (self.clock, Departure::Agent(frame))));
    }
}

impl SimHost<'_> {
    /// The space for a record is set aside before it is written.
    pub fn check_room(&self, what: &'static str) -> Result<()> {
        match self.body.trouble.full_until > self.body.clock {
            true => Err(Stop::Disk(what)),
            false => Ok(()),
        }
    }

    /// The timeout depends only on seed, node, life, term, role and time, so it does not matter when raft-rs drew
    /// its own.
    fn draw(&self, l: Leadership, tick: u64) -> u64 {
        let parts = [u64::from(self.body.id.0), self.body.life, l.term.0, l.role as u64, tick / DRAW_TICKS];
        parts.iter().fold(self.ctx.options.seed, |sum, part| mix(sum ^ mix(*part + 1)))
    }

    /// When the last byte of the message will have left; `None`: too much is waiting to leave.
    fn departs_at(&mut self, message: &Message) -> Option<Micros> {
        let (now, per_ms) = (self.body.clock, self.ctx.options.bytes_per_ms);
        if per_ms == 0 || !matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgSnapshot) {
            return Some(now);
        }
        let bytes: usize = message.entries.iter().map(|e| e.data.len()).sum();
        let snapshot =
            (message.get_snapshot().data.len() * SNAPSHOT_BYTES).min((SNAPSHOT_LEAVES_MAX * per_ms) as usize);
        let bytes = bytes + snapshot + 64;
        let until = self.body.sending_until.entry(NodeId(message.to as u32)).or_default();
        if *until > now + QUEUE_BYTES_MAX * MS / per_ms {
            return None;
        }
        *until = now.max(*until) + bytes as u64 * MS / per_ms;
        Some(*until)
    }

    /// No member is sent a snapshot while another one is still leaving for it, unless that one may be lost.
    fn leaves(&mut self, message: &Message, until: Micros) {
        if message.get_msg_type() != MessageType::MsgSnapshot {
            return;
        }
        let (to, clock) = (NodeId(message.to as u32), self.body.clock);
        let before = self.body.snapshots_leave.insert(to, (until, None));
        if until > clock + SECOND {
            self.ctx.events.add("a snapshot that leaves for more than a second");
        }
        if before.is_some_and(|(until, _)| until > clock) {
            self.ctx.checker.fail(format!("node {} sends node {to} a snapshot behind another", self.body.id));
        }
    }

    /// How long a sync takes that begins now.
    fn sync_takes(&mut self) -> Micros {
        let slow = if self.body.trouble.slow_until > self.body.clock || self.ctx.rng.one_in(500) { 50 } else { 1 };
        self.ctx.rng.between(50, self.ctx.options.sync_us_max) * slow
    }

    fn sync(&mut self, log: &mut SimLog) -> Result<()> {
        // It waits for one that is under way beside.
        self.body.clock = self.body.clock.max(self.body.syncing_until) + self.sync_takes();
        let last = log.last_write();
        self.end_sync(log, last)
    }

    /// A sync ends that began right after that write.
    pub fn end_sync(&mut self, log: &mut SimLog, write: u64) -> Result<()> {
        if std::mem::take(&mut self.body.trouble.next_sync_fails) {
            log.fail_sync(&mut self.ctx.rng);
            if self.ctx.options.bug != Some(InjectedBug::IgnoreSyncError) {
                return Err(Stop::Disk("fsync error"));
            }
        }
        if self.ctx.options.bug != Some(InjectedBug::SkipSync) {
            log.sync_to(write);
        }
        Ok(())
    }

    /// The injected bug: this node alone, or nobody, knows that the entries of a member that has left are refused.
    fn decide_for_non_member(
        &self,
        entry: &Committed,
        certifier: &mut Certifier,
        members: &mut Arc<Members>,
    ) -> Option<onetrip_core::Result<Option<(TxnId, Decision)>>> {
        let knows = match self.ctx.options.bug {
            Some(InjectedBug::AcceptNonMember) => self.body.id != NodeId(1),
            bug => bug != Some(InjectedBug::AllAcceptNonMember),
        };
        if knows {
            return None;
        }
        if let Some(after) = &entry.members {
            *members = after.clone();
            return Some(certifier.skip(entry.index).map(|()| None));
        }
        let decoded = entry.transaction().and_then(|raw| Entry::decode(raw.clone()).ok())?;
        if !decoded.kind.is_of_backend() || members.contains(decoded.txn.node) {
            return None;
        }
        Some(certifier.certify(entry.index, &decoded).map(|decision| Some((decoded.txn, decision))))
    }

    /// The injected bug: on this node alone a part that arrives a second time passes for the next one.
    fn repeat_part(&self, entry: &Committed, certifier: &Certifier) -> Option<Committed> {
        if self.ctx.options.bug != Some(InjectedBug::RepeatPart) || self.body.id != NodeId(1) {
            return None;
        }
        let (decoded, arriving) = (Entry::decode(entry.transaction()?.clone()).ok()?, certifier.arriving()?);
        let part = decoded.part().filter(|part| decoded.txn == arriving.txn && part.offset < arriving.len() as u64)?;
        let data = Entry::encode_part(&decoded.txn, part.total as usize, arriving.len(), &part.bytes);
        Some(Committed { data, ..entry.clone() })
    }
}

impl SimHost<'_> {
    fn write(&mut self, log: &mut SimLog, entries: &[RaftEntry], hard_state: Option<&HardState>) {
        log.write(entries, hard_state);
        self.wrote(entries);
        self.knows(entries);
        // A leader proposes a change once the one before it is committed.  Whoever has both has to know that, or it
        // could elect a leader in a configuration that has no voter in common with the one in force.
        if log.changes_in_doubt() > 1 {
            let why = format!("node {} has several changes of the configuration in doubt", self.body.id);
            self.ctx.checker.fail(why);
        }
    }

    /// Whoever speaks in a term has it on disk: otherwise it could lead in it twice.  And whoever gives a vote, also to
    /// itself, has that on disk, or a later term, in which it gives none for this one: otherwise it could give two.
    fn speaks(&mut self, message: &Message) {
        let (what, term) = (message.get_msg_type(), message.term);
        let vote = match what {
            MessageType::MsgRequestPreVote | MessageType::MsgRequestPreVoteResponse => return,
            MessageType::MsgRequestVote => Some(message.from),
            MessageType::MsgRequestVoteResponse if !message.reject => Some(message.to),
            _ => None,
        };
        let (has, voted) = self.body.promised;
        if term > has || vote.is_some_and(|vote| term == has && vote != voted) {
            let id = self.body.id;
            let why = format!("node {id} says {what:?} in term {term}, and its disk has term {has} and vote {voted}");
            self.ctx.checker.fail(why);
        }
    }

    /// Nothing gets into a node's log that its release does not know.
    fn knows(&mut self, entries: &[RaftEntry]) {
        let release = self.body.release;
        if let Some(unknown) = entries.iter().find(|entry| level::of_entry(&entry.data) > release) {
            let why = format!("entry {} is in the log of a release that knows level {release}", unknown.index);
            self.ctx.checker.fail(why);
        }
        let highest = entries.iter().map(|entry| level::of_entry(&entry.data)).max();
        self.ctx.written = self.ctx.written.max(highest.unwrap_or_default());
    }
}

impl Host for SimHost<'_> {
    type Error = Stop;
    type Store = SimLog;
    type Outbox = Wire;

    fn now(&self) -> Duration {
        self.body.time(self.body.clock)
    }

    fn stage(&mut self, stage: Stage) -> Result<()> {
        self.body.stage = stage;
        self.body.answer();
        match &mut self.body.fuse {
            Some(0) => Err(Stop::Crashed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn send(&mut self, message: Message) -> bool {
        self.speaks(&message);
        let is_full = self.ctx.rng.one_in(5_000);
        if is_full {
            self.ctx.faults.add("queue to a peer full");
        }
        if is_full || self.body.members.removed(NodeId(message.to as u32)) {
            return false;
        }
        let Some(time) = self.departs_at(&message) else {
            self.ctx.events.add("narrow way full");
            return false;
        };
        self.leaves(&message, time);
        self.answered(&message);
        self.body.departures.push((time, Departure::Raft(message)));
        true
    }

    fn is_sending(&mut self, to: NodeId) -> bool {
        self.body.sending_until.get(&to).is_some_and(|until| *until > self.body.clock)
    }

    fn send_notice(&mut self, to: &[NodeId], notice: Notice) {
        self.body.overheard.said = Some(notice);
        let clock = self.body.clock;
        self.body.departures.extend(to.iter().map(|to| (clock, Departure::Notice(*to, notice))));
    }

    fn send_question(&mut self, to: &[NodeId], question: u64) {
        let before = std::mem::replace(&mut self.body.last_question, question);
        let is_again = before != 0 && question.wrapping_sub(before) as i64 <= 0;
        if is_again && self.ctx.options.bug == Some(InjectedBug::AsksOnce) {
            self.body.last_question = before;
            return;
        }
        let clock = self.body.clock;
        self.body.departures.extend(to.iter().map(|to| (clock, Departure::Question(*to, question))));
    }

    fn send_last_entry(&mut self, to: NodeId, question: u64, mut last: EntryId) {
        if self.ctx.options.bug == Some(InjectedBug::NamesDecided) {
            last.index = self.body.decided.last_key_value().map_or(LogIndex::ZERO, |(index, _)| last.index.min(*index));
        }
        self.body.departures.push((self.body.clock, Departure::LastEntry(to, question, last)));
    }

    fn send_lease_question(&mut self, to: &[NodeId], question: u64) {
        let clock = self.body.clock;
        self.body.departures.extend(to.iter().map(|to| (clock, Departure::LeaseQuestion(*to, question))));
    }

    fn send_promise(&mut self, to: NodeId, question: u64, mut last: EntryId) {
        if self.ctx.options.bug == Some(InjectedBug::PromiseNamesNothing) {
            last = EntryId { term: Term(0), index: LogIndex::ZERO };
        }
        self.ctx.events.add("lease promised");
        self.body.departures.push((self.body.clock, Departure::Promise(to, question, last)));
    }

    fn save_promised(&mut self, log: &mut SimLog, promised: bool) -> Result<()> {
        log.promised = promised;
        Ok(())
    }

    fn send_report(&mut self, to: Option<&[NodeId]>, own: &Report) {
        let mut own = own.clone();
        if self.ctx.options.bug == Some(InjectedBug::TellsDecided) && to.is_some() {
            let decided = self.body.decided.last_key_value().map_or(LogIndex::ZERO, |(index, _)| *index);
            own.shown = own.shown.map(|(applied, durable)| (applied.max(decided), durable));
        }
        self.body.departures.push((self.body.clock, Departure::Report(to.map(<[NodeId]>::to_vec), own)));
    }

    fn send_await(&mut self, to: &[NodeId], at: LogIndex) {
        let clock = self.body.clock;
        self.body.departures.extend(to.iter().map(|to| (clock, Departure::Await(*to, at))));
    }

    fn send_lock_message(&mut self, to: NodeId, message: LockMessage) {
        self.body.departures.push((self.body.clock, Departure::Lock(to, message)));
    }

    /// Now and then a link is not measured, and all measurements are a little too long.
    fn round_trips(&mut self) -> Vec<(NodeId, u32)> {
        let (me, now) = (self.body.id, self.body.clock);
        let ways = self.ctx.delays.range((me, NodeId(0))..=(me, NodeId(u32::MAX)));
        let measured = ways.filter_map(|((_, peer), delay)| {
            let chance = mix(now ^ mix(u64::from(me.0) << 32 | u64::from(peer.0)));
            (chance % 200 > 0).then_some((*peer, (2 * delay + chance % 300) as u32))
        });
        measured.filter(|(peer, _)| self.body.members.contains(*peer)).collect()
    }

    fn election_ticks(&mut self, _members: &Members) -> usize {
        self.ctx.options.election_ticks * self.ctx.rng.between(1, self.ctx.options.patience) as usize
    }

    fn save_starts(&mut self, log: &mut SimLog, starts: Vec<u64>) -> Result<()> {
        log.starts = starts;
        Ok(())
    }

    fn append(&mut self, log: &mut SimLog, entries: &[RaftEntry], hard_state: Option<&HardState>) -> Result<()> {
        self.check_room("disk full")?;
        let before = log.written_promise();
        self.write(log, entries, hard_state);
        self.stage(Stage::BeforeWrite)?;
        if self.ctx.options.bug == Some(InjectedBug::PromiseNotSynced) && log.written_promise() != before {
            return Ok(());
        }
        self.sync(log)
    }

    fn begin_append(
        &mut self,
        log: &mut SimLog,
        entries: &[RaftEntry],
        hard_state: Option<&HardState>,
        number: u64,
    ) -> Result<bool> {
        // One that syncs beside its work changes to and fro, as syncs take longer or shorter.
        if !self.ctx.options.syncs_beside || self.ctx.rng.one_in(8) {
            return self.append(log, entries, hard_state).map(|()| true);
        }
        self.check_room("disk full")?;
        self.write(log, entries, hard_state);
        self.stage(Stage::BeforeWrite)?;
        // What comes while a sync is under way waits for the next one, together with all else that waits for it.
        let takes = self.sync_takes();
        if self.body.sync_begins <= self.body.clock {
            self.body.sync_begins = self.body.clock.max(self.body.syncing_until);
            self.body.syncing_until = self.body.sync_begins + takes;
        }
        self.body.departures.push((self.body.syncing_until, Departure::Synced(number, log.last_write())));
        self.ctx.events.add("log synced beside");
        Ok(self.ctx.options.bug == Some(InjectedBug::WrittenIsDurable))
    }

    fn install_checkpoint(&mut self, log: &mut SimLog, (index, term): (LogIndex, Term), raw: &Bytes) -> Result<()> {
        self.check_room("disk full")?;
        trace!(self.ctx, "n{} goes on from a checkpoint at {index} of term {term}", self.body.id);
        Ok(log.install_checkpoint(index, raw)?)
    }

    fn restart_log(
        &mut self,
        log: &mut SimLog,
        (index, term): (LogIndex, Term),
        hard_state: Option<&HardState>,
    ) -> Result<()> {
        if self.ctx.options.bug != Some(InjectedBug::SnapshotKeepsLog) {
            log.start_after(index, term, hard_state);
        }
        Ok(())
    }

    fn write_checkpoint(&mut self, checkpoint: Frozen) -> Result<()> {
        if self.body.stage == Stage::Told {
            self.ctx.events.add("checkpoint between entries handed out at once");
        }
        if self.ctx.options.bug == Some(InjectedBug::NeverCheckpoints) {
            return Ok(());
        }
        let done = self.body.clock + self.ctx.rng.between(0, 200 * MS);
        let (index, conf) = (checkpoint.index(), checkpoint.conf().clone());
        self.body.departures.push((done, Departure::Checkpoint(index, conf, checkpoint.encode())));
        Ok(())
    }

    fn open_snapshot(&mut self, message: Message, _limits: Limits) -> Result<()> {
        let done = self.body.clock + self.ctx.rng.between(0, 200 * MS);
        self.body.departures.push((done, Departure::Snapshot(message)));
        Ok(())
    }

    fn confirmed(&mut self, told: u64, decided: LogIndex) {
        self.ctx.events.add("confirmed that nothing newer was acknowledged");
        self.ctx.checker.confirms(self.body.id, LogIndex(told), decided);
    }

    fn rebuild(&mut self, order: Option<RebuildFrom>) {
        trace!(self.ctx, "n{} on its PostgreSQL: {order:?}", self.body.id);
        if let Some(event) = self.body.copying.follow(order) {
            self.ctx.events.add(event);
        }
        self.body.rebuild_ordered = order.is_some();
    }

    fn may_heal(&self) -> std::result::Result<(), String> {
        self.body.copying.may(self.body.clock)
    }

    fn not_healed(&mut self, at: LogIndex, _why: &str, why_not: String) {
        trace!(self.ctx, "n{} does not have its PostgreSQL copied for {at}: {why_not}", self.body.id);
    }

    fn decide(
        &mut self,
        entry: &Committed,
        certifier: &mut Certifier,
        committed_indexes: &mut CommittedIndexes,
        members: &mut Arc<Members>,
    ) -> onetrip_core::Result<Option<(TxnId, Decision)>> {
        let (id, index) = (self.body.id, entry.index);
        let counts_by_itself =
            matches!(self.ctx.options.bug, Some(InjectedBug::OldTerm | InjectedBug::NoticeOfOldTerms));
        if counts_by_itself && index <= certifier.decided() {
            self.ctx.checker.holds(id, index, &entry.data);
            return Ok(None);
        }
        let decided = match self.decide_for_non_member(entry, certifier, members) {
            Some(decided) => decided,
            None => {
                let repeated = self.repeat_part(entry, certifier);
                decide(repeated.as_ref().unwrap_or(entry), certifier, committed_indexes, members)
            }
        }?;
        self.ctx.checker.decides(id, index, &entry.data, decided.map(|d| d.1));
        self.body.decided.insert(index, self.body.clock);
        if let Some(members) = &entry.members {
            trace!(self.ctx, "n{id} has table {} at {index}", members.version);
            self.ctx.checker.has_members(id, index, members);
        }
        if let Some((txn, decision)) = decided {
            trace!(self.ctx, "n{id} decides {index}: {txn} {decision:?}");
        }
        Ok(decided)
    }

    fn looks(&mut self, consensus: &mut Consensus<SimLog>, tick: u64) {
        self.body.promised = consensus.log().promised();
        if !self.body.snapshots_leave.is_empty() {
            // A member that has got on without its snapshot may need another one.
            let matched: BTreeMap<NodeId, LogIndex> = consensus.status().matched.into_iter().collect();
            self.body.snapshots_leave.retain(|to, (_, had)| {
                let has = matched.get(to).copied();
                let before = std::mem::replace(had, has);
                before.is_none() || before == has
            });
        }
        consensus.set_election_draw(self.draw(consensus.leadership(), tick));
    }

    fn round_done(&mut self, consensus: &Consensus<SimLog>) {
        let (conf, members) = (consensus.conf(), consensus.members());
        if (conf, members) != (&self.body.checked.0, &self.body.checked.1) {
            self.body.checked = (conf.clone(), members.clone());
            self.ctx.checker.configured(self.body.id, consensus.applied().0, conf, members);
        }
    }

    fn has_leader(&mut self, now: Leadership, _members: &Members, _decided: LogIndex) {
        trace!(self.ctx, "n{} {:?} in term {}, leader {:?}", self.body.id, now.role, now.term, now.leader);
        self.body.snapshots_leave.clear();
        if now.role == Role::Leader {
            self.ctx.checker.leads(self.body.id, now.term);
            self.ctx.events.add("leader elected");
            self.body.elected = true;
        }
    }

    fn has_members(&mut self, members: &Arc<Members>, _decided: LogIndex) {
        if self.body.members.preferred_leader != members.preferred_leader && members.leader_is_auto {
            self.ctx.events.add("leader given another place by itself");
        }
        self.body.members = members.clone();
    }

    fn restored(&mut self, state: &Checkpoint) {
        self.ctx.checker.restored(self.body.id, state.index());
        self.ctx.events.add("snapshot installed");
    }

    fn removed(&mut self, _decided: LogIndex) -> Stop {
        Stop::Removed
    }
}
