//! The Raft driver: raft-rs behind a narrow interface.
//!
//! It is responsible for the order "persist, then answer, then apply", and knows no disk, socket or clock.  A caller
//! does this, again and again:
//!
//! 1. Call [`Consensus::step`] with everything that has come in (cheap; nothing is written or sent yet).
//! 2. Call [`Consensus::poll`] until it returns `false`.  Each `true` fills an [`Output`]: send `send_now`, carry out
//!    `committed`, and have `persist` on disk before going on.
//! 3. After each such output, call [`Consensus::persisted`] with it.  It adds to `send_after` and fills `notice`,
//!    `restored` and `committed` with what is true only now that the disk has it.
//!
//! A `persist` that `may_wait` need only be written before going on.  Then call [`Consensus::written`] instead, and
//! [`Consensus::synced`] once it is durable (`unsynced`).
//!
//! Why this order (Raft thesis, 3.8 and 10.2.1; etcd's `raft/doc.go`): a leader may send its entries while it writes
//! them itself, because its own copy counts only when it is durable.  Everything that a follower or candidate says is a
//! promise about its disk, so it waits for the disk; and so does everything that a leader says in a term that its disk
//! does not have.
//!
//! Invariants:
//! - `committed` gives each log index once, in order, starting after `Config::applied`, and only indexes that this node
//!   has persisted.
//! - Nothing is handed out that the holder of a read lease may lack (`promised`).
//! - No delay is ever added to gather a batch; what waits together leaves together (`proposals`).
//! - The table of members and the Raft configuration are those at the last index handed out (`applied`).  A change of
//!   the configuration is carried out only when the disk says that it is committed.  Otherwise a node could restart in
//!   the older configuration without knowing of the change, and elect a leader with voters that are not voters any
//!   more.  For the same reason the commit index is written with all entries: if one of them is a change, it says that
//!   the change before is committed.
//! - What a change does to the configuration follows from the table and the command, not from what its proposer wrote.

mod backlog;
mod handover;
mod leadership;
mod membership;
mod notices;
mod promised;
mod proposals;
mod raft_node;
mod received;
mod snapshot;
mod unsynced;

use crate::certifier::Limits;
use crate::checkpoint::{Checkpoint, Conf};
use crate::entry::{EntryKind, KIND_AT};
use crate::error::Result;
use crate::ids::{EntryId, Level, LogIndex, NodeId, Term};
use crate::level;
use crate::members::{Command, Members};
use backlog::Behind;
use bytes::Bytes;
use handover::Handover;
use leadership::Timing;
pub use leadership::PROMOTE_LAG_MAX;
pub use notices::Notice;
use notices::Notices;
pub use proposals::PROPOSALS_BYTES_MAX;
use raft::eraftpb::{Entry as RaftEntry, HardState, MessageType};
pub use raft::eraftpb::{EntryType, Message};
use raft::{GetEntriesContext, Storage};
use raft_node::RaftNode;
pub use received::{check, parse};
use serde::Serialize;
pub use snapshot::Opened;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use unsynced::Unsynced;

/// Entries larger than this travel alone; smaller ones share a message up to this size.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// How many append messages may be under way to a follower that is near (`backlog`).  This only bounds memory: with one
/// commit per message and a round trip of 100 ms it allows 40,000 commits per second.
const INFLIGHT_MESSAGES_MAX: usize = 4096;
/// Bytes of committed entries that are handed out at once; bounds memory while a restarted node catches up.
const COMMITTED_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct Config {
    pub id: NodeId,
    /// Those of the certifier, the same on all nodes of the cluster.
    pub limits: Limits,
    /// The format level that this node's release knows: [`level::KNOWN`], except in a simulation of several releases.
    pub level: Level,
    /// Everything up to here was handed out in an earlier life of this node, and is in its checkpoint.
    pub applied: LogIndex,
    pub heartbeat_ticks: usize,
    /// A follower that hears nothing for this long may call an election; see also [`Consensus::set_election_ticks`].
    pub election_ticks: usize,
    /// How often to look whether the leader should move, and whether a learner may vote.
    pub transfer_ticks: usize,
    /// A snapshot that left this long ago, and of which nothing has been heard, counts as lost; see also
    /// [`Consensus::snapshot_moves`].
    pub snapshot_ticks: usize,
}

pub enum Input {
    Tick,
    /// A message from a peer whose identity the transport has checked.  It is one that a member may send ([`check`]),
    /// and not a snapshot that this node lacks ([`Consensus::lacks`]).
    Message(Message),
    /// A snapshot that this node lacks, opened.
    Snapshot(Opened),
    /// What a peer's disk has; the transport has checked the peer's identity.
    Notice(NodeId, Notice),
    /// An encoded entry.  After [`Error::NoLeader`], propose it again when there is a leader.  Even an accepted entry
    /// need not get into the log: it can be lost with a message or a leader, or come back as [`Output::not_taken`].
    Propose(Bytes),
    /// A change of the membership.  As with `Propose`, an accepted one need not get into the log; and in the log it may
    /// still be refused.  Look at the table, and ask again.
    Change(Command),
    /// How far the member's PostgreSQL is, as it reported itself.  A learner that lags, or that has nothing to show, is
    /// not made a voter.
    Position(NodeId, Option<LogIndex>),
    /// A message of this type to this member was not sent.  If the connection broke, which may have lost anything that
    /// was under way, the type is that of a snapshot.
    Lost(NodeId, MessageType),
    /// The log now has the entries that it refused to give raft ([`crate::replica::Store::take_fetched`]).
    Fetched(GetEntriesContext),
    /// This node is about to stop: if it leads, another member takes over.
    HandOver,
}

/// What must be durable before going on.  A commit index that moves alone need not be: it is written with what follows.
#[derive(Debug)]
pub struct Persist {
    /// In this order: the checkpoint, marked as installed; the log emptied up to it; the rest.
    pub snapshot: Option<Installed>,
    /// Replaces everything from its first index on.
    pub entries: Vec<RaftEntry>,
    pub hard_state: HardState,
    /// It need not be durable before going on ([`Consensus::written`]): `entries` follow the end of the log, and
    /// nothing is promised.
    pub may_wait: bool,
    /// For [`Consensus::synced`]; rises from output to output.
    pub number: u64,
}

/// A checkpoint of another node, which replaces this node's log.
#[derive(Debug)]
pub struct Installed {
    pub index: LogIndex,
    pub term: Term,
    pub data: Bytes,
}

/// An entry that a majority has.
#[derive(Clone, Debug)]
pub struct Committed {
    pub index: LogIndex,
    pub term: Term,
    pub kind: EntryType,
    pub data: Bytes,
    /// The table of members from here on, if this entry changed it.
    pub members: Option<Arc<Members>>,
}

impl Committed {
    /// The encoded transaction; `None` if this index contains none.
    pub fn transaction(&self) -> Option<&Bytes> {
        let is_command = self.data.get(KIND_AT) == Some(&(EntryKind::Command as u8));
        (self.kind == EntryType::EntryNormal && !self.data.is_empty() && !is_command).then_some(&self.data)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Leader,
    Follower,
    Candidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    pub role: Role,
    pub term: Term,
    pub leader: Option<NodeId>,
}

/// Work for the caller; see the head of this file.  Reuse one value: `poll` clears it.
#[derive(Default, Debug)]
pub struct Output {
    pub send_now: Vec<Message>,
    pub persist: Option<Persist>,
    pub send_after: Vec<Message>,
    /// Proposals that consensus accepted and has not handed to Raft, because no leader takes them any more: propose
    /// them again later.
    pub not_taken: Vec<Bytes>,
    /// What this node's disk has, to be told to all members but the leader, at once or later
    /// (`Consensus::leader_says_enough`).  Filled by `persisted`; it may be lost.
    pub notice: Option<Notice>,
    /// The snapshot just persisted.  It replaces the caller's certifier and committed indexes, before `committed` is
    /// carried out.
    pub restored: Option<Box<Checkpoint>>,
    pub committed: Vec<Committed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub leadership: Leadership,
    pub raft_commit: LogIndex,
    pub last: LogIndex,
    /// On the leader: how far each member's log is known to match.
    pub matched: Vec<(NodeId, LogIndex)>,
    pub conf: Conf,
    /// For how many ticks nothing of what was written has become durable.
    pub disk_silent_ticks: usize,
}

pub struct Consensus<S: Storage> {
    raft: RaftNode<S>,
    config: Config,
    ready: Option<raft::Ready>,
    /// They wait for the next `poll` (`proposals`).
    proposals: Vec<RaftEntry>,
    logged: proposals::Logged,
    members: Arc<Members>,
    conf: Conf,
    /// Index and term of the last entry handed out.
    applied: (LogIndex, Term),
    /// Committed but not handed out, because the first in line is a change of the configuration or what a holder of a
    /// lease may lack.
    waiting: VecDeque<RaftEntry>,
    /// The commit index that a restart will find, at least; and the one in the output that is being worked off.
    commit_durable: u64,
    commit_written: u64,
    /// The term and the vote that the disk has.
    promised: (u64, u64),
    unsynced: Unsynced,
    handover: Handover,
    /// The snapshot that raft has been given, decoded.
    incoming: Option<Box<Checkpoint>>,
    /// How far each member's PostgreSQL is.
    positions: BTreeMap<NodeId, LogIndex>,
    /// Where the log of each member begins that has said so to this leader.
    begins: BTreeMap<NodeId, LogIndex>,
    timing: Timing,
    /// Places for the leader, the best first.
    places: Vec<NodeId>,
    /// A follower whose log matches up to here lacks little.
    near: LogIndex,
    /// The followers that are not near.
    behind: BTreeMap<NodeId, Behind>,
    notices: Notices,
    /// Holders of read leases to which this member is bound.
    holders: BTreeSet<NodeId>,
    /// Others may have promised this member the same.
    is_waited_for: bool,
}

impl<S: Storage> Consensus<S> {
    /// `log` must contain the configuration at `Config::applied` (`initial_state`) and everything that earlier lives of
    /// this node persisted; `members` is the table at that index.
    pub fn new(config: Config, log: S, members: Arc<Members>) -> Result<Self> {
        let timing = Timing::new(&config);
        let state = log.initial_state()?;
        let (conf, promised) = (Conf::from(&state.conf_state), promises(&state.hard_state));
        let applied = (config.applied, Term(log.term(config.applied.0)?));
        let raft = RaftNode::new(config.id, config.applied, config.election_ticks, timing.widest.clone(), log)?;
        let (commit_durable, last) = (raft.committed().0, raft.last());
        let mut consensus = Consensus {
            raft,
            config,
            ready: None,
            proposals: Vec::new(),
            logged: Default::default(),
            members,
            conf,
            applied,
            waiting: VecDeque::new(),
            commit_durable,
            commit_written: 0,
            promised,
            unsynced: Unsynced::default(),
            handover: Handover::default(),
            incoming: None,
            positions: BTreeMap::new(),
            begins: BTreeMap::new(),
            timing,
            places: Vec::new(),
            near: LogIndex::ZERO,
            behind: BTreeMap::new(),
            notices: Notices::new(last),
            holders: BTreeSet::new(),
            is_waited_for: false,
        };
        consensus.take_seat();
        consensus.fit_timing();
        Ok(consensus)
    }

    /// Takes the election timeout from `draw` instead of raft-rs's own random source, for a caller whose runs must be
    /// repeatable. raft-rs draws again whenever its role or term changes, so this is called after each `new`, `step`,
    /// `poll` and `persisted`.
    pub fn set_election_draw(&mut self, draw: u64) {
        let range = &self.timing.election;
        let ticks = range.start + (draw % (range.end - range.start) as u64) as usize;
        self.raft.set_election_timeout(ticks);
    }

    /// Makes append messages smaller than usual, for tests of what happens between them.
    pub fn set_message_bytes_max(&mut self, bytes: u64) {
        self.raft.set_message_bytes_max(bytes);
    }

    pub fn log(&self) -> &S {
        self.raft.store()
    }

    /// For writing what `Output::persist` asks for, and for what the log has read; for nothing else.
    pub fn log_mut(&mut self) -> &mut S {
        self.raft.store_mut()
    }

    /// The table of members at the last index handed out.  A checkpoint at that index contains it, and what
    /// [`Self::conf`] and [`Self::applied`] return.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The format level that this node's release knows.
    pub fn level(&self) -> Level {
        self.config.level
    }

    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    pub fn applied(&self) -> (LogIndex, Term) {
        self.applied
    }

    pub fn step(&mut self, input: Input) -> Result<()> {
        assert!(self.ready.is_none(), "an output is being worked off");
        let result = self.take(input);
        self.vote_for_transferee();
        self.fit_timing();
        self.fit_windows();
        result
    }

    fn take(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Tick => {
                self.tick();
                Ok(())
            }
            Input::Message(message) => self.receive(message),
            Input::Snapshot(opened) => self.receive_snapshot(opened),
            Input::Notice(from, notice) => {
                self.hear(from, notice);
                Ok(())
            }
            Input::Propose(data) => self.propose(data),
            Input::Change(command) => self.propose_change(&command),
            Input::Position(member, Some(applied)) => {
                self.positions.insert(member, applied);
                Ok(())
            }
            Input::Position(member, None) => {
                self.positions.remove(&member);
                Ok(())
            }
            Input::Lost(peer, what) => {
                self.lost(peer, what);
                Ok(())
            }
            Input::Fetched(question) => {
                self.raft.fetched(question);
                Ok(())
            }
            Input::HandOver => {
                self.hand_over();
                Ok(())
            }
        }
    }

    fn receive(&mut self, mut message: Message) -> Result<()> {
        level::unmark(&mut message, self.config.level)?;
        if message.get_msg_type() == MessageType::MsgPropose {
            self.gather(message);
            return Ok(());
        }
        self.hear_beginning(&message);
        if self.has_narrow_window(&message) && self.raft.only_shows_life(&message) {
            return Ok(());
        }
        if self.keeps_early_vote(&message) {
            return Ok(());
        }
        assert!(!self.lacks(&message), "a snapshot has to be opened before raft takes it: there is no way back");
        self.raft.step(message)
    }

    /// What a message says beyond what raft-rs does.
    fn mark(&self, message: &mut Message) {
        level::mark(message);
        self.say_beginning(message);
    }

    /// Fills `out` with the next piece of work.  `false`: there is none.
    pub fn poll(&mut self, out: &mut Output) -> bool {
        assert!(self.ready.is_none(), "the last output has not been reported as persisted");
        out.clear();
        self.propose_all(&mut out.not_taken);
        let is_held_back = |first: &RaftEntry| !self.may_hand_out(LogIndex(first.index));
        if !self.raft.has_ready() && self.waiting.front().is_none_or(is_held_back) {
            return false;
        }
        let mut ready = self.raft.ready();
        let number = ready.number();
        out.send_now = ready.take_messages();
        out.send_after = ready.take_persisted_messages();
        out.send_now.iter_mut().chain(&mut out.send_after).for_each(|message| self.mark(message));
        let snapshot = (!ready.snapshot().is_empty()).then(|| {
            // What the snapshot covers need not be handed out any more.
            self.waiting.clear();
            let metadata = ready.snapshot().get_metadata();
            let data = ready.snapshot().data.clone();
            Installed { index: LogIndex(metadata.index), term: Term(metadata.term), data }
        });
        self.waiting.extend(ready.take_committed_entries());
        self.hand_out(false, &mut out.committed);
        let entries = ready.take_entries();
        self.notices.appends(&entries);
        let (hard_state, mut must_sync) = (self.raft.hard_state(), ready.must_sync());
        let last = self.raft.store().last_index().ok();
        let mut may_wait = snapshot.is_none() && entries.first().is_some_and(|first| last == Some(first.index - 1));
        // A change of the configuration waits until the disk says that it is committed.  (What a holder of a lease may
        // lack waits, too, but not for the disk.)
        let waits_for_disk = |entry: &RaftEntry| entry.get_entry_type() != EntryType::EntryNormal;
        if self.waiting.front().is_some_and(|front| waits_for_disk(front) && front.index > self.commit_durable) {
            (must_sync, may_wait) = (true, false);
        }
        if promises(&hard_state) != self.promised {
            (self.promised, may_wait) = (promises(&hard_state), false);
            // An only voter stands for election, wins and speaks as the leader at once.
            out.send_after.append(&mut out.send_now);
        }
        self.commit_written = if must_sync { hard_state.commit } else { 0 };
        out.persist = must_sync.then_some(Persist { snapshot, entries, hard_state, may_wait, number });
        self.ready = Some(ready);
        true
    }

    /// To be called when the last output's `persist` is durable, and with it everything that was written before.  Keeps
    /// `send_after`, and adds what may be sent and done only now.
    pub fn persisted(&mut self, out: &mut Output) {
        let ready = self.ready.take().expect("persisted() follows a poll() that gave work");
        let mut own = std::mem::take(&mut out.send_after);
        out.clear();
        self.take_unsynced(ready.number(), out);
        out.send_after.append(&mut own);
        self.commit_durable = self.commit_durable.max(self.commit_written);
        let restored = !ready.snapshot().is_empty();
        let mut light = self.raft.advance_append(ready);
        self.count_early_votes();
        let mut messages = light.take_messages();
        messages.iter_mut().for_each(|message| self.mark(message));
        out.send_after.append(&mut messages);
        proposals::keep_last_acknowledgements(&mut out.send_after);
        if restored {
            let checkpoint = self.incoming.take().expect("raft takes only snapshots that were decoded");
            self.members = Arc::new(checkpoint.members.clone());
            self.conf = checkpoint.conf.clone();
            self.applied = (checkpoint.index(), checkpoint.term);
            self.commit_durable = self.commit_durable.max(checkpoint.index().0);
            out.restored = Some(checkpoint);
            self.take_seat();
        }
        self.waiting.extend(light.take_committed_entries());
        self.hand_out(true, &mut out.committed);
        self.raft.applied(self.applied.0);
        out.notice = self.notice(&out.send_after);
        self.fit_timing();
    }

    /// To be called instead of [`Self::persisted`] when the last output's `persist` can be read back and is not durable
    /// yet; or when it has none that must be synced, while something [`Self::waits_for_disk`].  Keeps only what may be
    /// done before [`Self::synced`].
    pub fn written(&mut self, out: &mut Output) {
        let ready = self.ready.take().expect("written() follows a poll() that gave work");
        let send_after = std::mem::take(&mut out.send_after);
        out.clear();
        self.unsynced.push(ready.number(), ready.must_sync(), send_after, self.commit_written);
        self.raft.advance_append_async(ready);
        self.hand_out(true, &mut out.committed);
        self.raft.applied(self.applied.0);
        self.fit_timing();
    }

    /// Everything that was written up to output `number` is durable.  Fills `send_after` and `notice`; the next `poll`
    /// gives the rest of what follows from that.
    pub fn synced(&mut self, number: u64, out: &mut Output) {
        assert!(self.ready.is_none(), "an output is being worked off");
        out.clear();
        if let Some(last) = self.take_unsynced(number, out) {
            self.raft.on_persist_ready(last);
        }
        proposals::keep_last_acknowledgements(&mut out.send_after);
        out.notice = self.notice(&out.send_after);
        self.fit_timing();
    }

    /// Whether something has been written and is not durable yet.
    pub fn waits_for_disk(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Nothing of what was written has become durable for an election timeout.
    pub fn disk_is_silent(&self) -> bool {
        self.unsynced.silent_ticks() >= self.config.election_ticks
    }

    fn take_unsynced(&mut self, number: u64, out: &mut Output) -> Option<u64> {
        let (last, commit) = self.unsynced.take_to(number, &mut out.send_after)?;
        self.commit_durable = self.commit_durable.max(commit);
        Some(last)
    }

    /// Hands out what is committed, up to a change of the configuration that may not be carried out yet, or what a
    /// holder of a lease may lack.
    fn hand_out(&mut self, may_change: bool, committed: &mut Vec<Committed>) {
        while let Some(entry) = self.waiting.front() {
            if !self.may_hand_out(LogIndex(entry.index)) {
                return;
            }
            let changes = entry.get_entry_type() != EntryType::EntryNormal;
            if changes && (!may_change || entry.index > self.commit_durable) {
                return;
            }
            let Some(entry) = self.waiting.pop_front() else { return };
            let members = self.carry_out(&entry);
            self.applied = (LogIndex(entry.index), Term(entry.term));
            committed.push(Committed {
                index: LogIndex(entry.index),
                term: Term(entry.term),
                kind: entry.get_entry_type(),
                data: entry.data,
                members,
            });
        }
    }

    /// The last entry that this node's disk has; or, if it is about to install a snapshot, the last entry that this
    /// covers.  That one is committed, and so no committed entry that the disk has is newer.
    pub fn last_on_disk(&self) -> EntryId {
        // Until it is installed, raft knows no terms below it, and takes what is on disk for less than it is.
        if let Some((index, term)) = self.raft.to_install() {
            return EntryId { term, index };
        }
        let index = self.raft.persisted();
        let term = self.raft.term_at(index).unwrap_or_default();
        assert!(term > Term(0) || index == LogIndex::ZERO, "entry {index} is on disk and has no term");
        EntryId { term, index }
    }

    pub fn leadership(&self) -> Leadership {
        Leadership { role: self.raft.role(), term: self.raft.term(), leader: self.raft.leader() }
    }

    pub fn status(&self) -> Status {
        let mut matched = Vec::new();
        if self.raft.leads() {
            matched.extend(self.raft.followers().map(|f| (f.id, f.matched)));
            matched.sort_unstable();
        }
        Status {
            leadership: self.leadership(),
            raft_commit: self.raft.committed(),
            last: self.raft.last(),
            matched,
            conf: self.conf.clone(),
            disk_silent_ticks: self.unsynced.silent_ticks(),
        }
    }
}

/// What a node promises by a hard state: its term and its vote.
fn promises(hard_state: &HardState) -> (u64, u64) {
    (hard_state.term, hard_state.vote)
}

impl Output {
    fn clear(&mut self) {
        self.send_now.clear();
        self.persist = None;
        self.send_after.clear();
        self.not_taken.clear();
        self.notice = None;
        self.restored = None;
        self.committed.clear();
    }
}
