//! The Raft driver: raft-rs behind a narrow door.
//!
//! It owns the order "persist, then answer, then apply" and knows no disk, no socket and no clock.  What a caller does,
//! again and again:
//!
//! 1. [`Consensus::step`] with everything that has come in (cheap; nothing is written or sent yet);
//! 2. [`Consensus::poll`] until it says `false`.  Each `true` fills an [`Output`], to be worked off top to bottom:
//!    `send_now`, then `persist` (on disk before going on), then `committed`;
//! 3. after each such output [`Consensus::persisted`] with the same output: it fills `send_after` and `committed`
//!    again, with what was only true once the disk had it.
//!
//! Why this order (Raft thesis, 3.8 and 10.2.1; etcd's `raft/doc.go`): a leader may send its entries while it writes
//! them itself, since its own copy counts only when it is durable.  Everything a follower or candidate says is a
//! promise about its disk, so it waits for the disk.
//!
//! Invariants:
//! - `committed` gives each log index once, in order, from the one after `Config::applied` on, and only indexes that
//!   this node has persisted.
//! - No delay is ever added to gather a batch; what waits together leaves together.

use crate::error::{Error, Result};
use crate::ids::{LogIndex, NodeId, Term};
use bytes::Bytes;
pub use raft::eraftpb::Message;
use raft::eraftpb::{Entry as RaftEntry, EntryType, HardState, MessageType};
use raft::{RawNode, StateRole, Storage};
use serde::Serialize;

/// Entries larger than this travel alone; smaller ones share a message up to it.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Append messages under way to one follower.  Bounds memory only: at one commit per message and 100 ms of round trip
/// this is 40,000 commits per second.
const INFLIGHT_MESSAGES_MAX: usize = 4096;
/// After a transfer, or after its heir's connection broke, this many looks are skipped.
const TRANSFER_PAUSE: usize = 10;
/// A member this close to the commit index may take over: while a transfer runs nothing new is proposed, so it arrives.
const TRANSFER_LAG_MAX: u64 = 1024;
/// Committed entries handed over at once; bounds memory while a restarted node catches up.
const COMMITTED_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct Config {
    pub id: NodeId,
    /// Members where the leader should be.
    pub preferred: Vec<NodeId>,
    /// Everything up to here has been handed out by an earlier life of this node.
    pub applied: LogIndex,
    pub heartbeat_ticks: usize,
    /// A follower that hears nothing for this long may call an election.
    pub election_ticks: usize,
    /// Between two looks at whether the leader should move to a preferred member.
    pub transfer_ticks: usize,
}

pub enum Input {
    Tick,
    /// From a peer whose identity the transport has checked.
    Message(Message),
    /// An encoded entry.  [`Error::NoLeader`]: propose it again when there is a leader.  Accepted does not mean that it
    /// will be in the log: it can be lost with a message or a leader.
    Propose(Bytes),
    /// A connection to this member broke; what was under way may be lost.
    Unreachable(NodeId),
    /// This node is about to stop: if it leads, let the member that is furthest take over.
    HandOver,
}

/// What must be durable before going on.
#[derive(Debug)]
pub struct Persist {
    /// Replaces everything from its first index on.
    pub entries: Vec<RaftEntry>,
    pub hard_state: Option<HardState>,
    /// False only if nothing but the commit index changed; then it may be written later, or never.
    pub must_sync: bool,
}

/// An entry that a majority has.  `data` is empty for a position that holds no transaction.
#[derive(Clone, Debug)]
pub struct Committed {
    pub index: LogIndex,
    pub data: Bytes,
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

/// Work for the caller; see the head of this file.  Reuse one value, it is cleared by `poll` and `persisted`.
#[derive(Default, Debug)]
pub struct Output {
    pub send_now: Vec<Message>,
    pub persist: Option<Persist>,
    pub send_after: Vec<Message>,
    pub committed: Vec<Committed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub leadership: Leadership,
    pub raft_commit: LogIndex,
    pub last: LogIndex,
    /// On the leader: how far each member's log is known to match.
    pub matched: Vec<(NodeId, LogIndex)>,
}

pub struct Consensus<S: Storage> {
    raft: RawNode<S>,
    config: Config,
    ready: Option<raft::Ready>,
    ticks_to_transfer: usize,
    /// Election timeouts are drawn from here.
    election_range: std::ops::Range<usize>,
}

impl<S: Storage> Consensus<S> {
    /// `log` must hold the voters (`initial_state`) and everything persisted by earlier lives of this node.
    pub fn new(config: Config, log: S) -> Result<Self> {
        let is_preferred = config.preferred.contains(&config.id);
        // Preferred members grow impatient first; ranges that do not overlap keep them from splitting the vote with
        // the others.
        let election = config.election_ticks;
        let (min, max) = if is_preferred { (election, election * 3 / 2) } else { (election * 3 / 2, election * 5 / 2) };
        let max = max.max(min + 1);
        let raft_config = raft::Config {
            id: u64::from(config.id.0),
            election_tick: election,
            heartbeat_tick: config.heartbeat_ticks,
            min_election_tick: min,
            max_election_tick: max,
            applied: config.applied.0,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: true,
            // raft-rs 0.7.0 (`try_batching`, `is_continuous_ents`) joins entries to a waiting append that has none without
            // looking where that one starts.  After a rejection in the same batch the follower then acknowledges
            // positions that it does not have, and what counted it in is lost.
            batch_append: false,
            priority: i64::from(is_preferred),
            ..Default::default()
        };
        // raft-rs's own log lines are dropped: the node reports state changes itself, from `status`.
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut raft = RawNode::new(&raft_config, log, &logger)?;
        // A member that has never voted starts in term 1: raft-rs 0.7.0 panics where a member of term 0 refuses a pre-vote,
        // as a preferred one does that starts after the others.
        if raft.raft.term == 0 {
            raft.raft.become_follower(1, raft::INVALID_ID);
        }
        Ok(Consensus { raft, ticks_to_transfer: config.transfer_ticks, config, ready: None, election_range: min..max })
    }

    /// Takes the election timeout from `draw` instead of raft-rs's own random source, for a caller whose runs must repeat
    /// themselves.  raft-rs draws anew whenever its role or term changes, so this is called after each `new`, `step`,
    /// `poll` and `persisted`.
    pub fn set_election_draw(&mut self, draw: u64) {
        let range = &self.election_range;
        let ticks = range.start + (draw % (range.end - range.start) as u64) as usize;
        self.raft.raft.set_randomized_election_timeout(ticks);
    }

    /// Lets appends be cut into smaller messages than usual, for tests of what happens between them.
    pub fn set_message_bytes_max(&mut self, bytes: u64) {
        self.raft.raft.max_msg_size = bytes;
    }

    pub fn log(&self) -> &S {
        self.raft.store()
    }

    /// For writing what `Output::persist` asks for, and nothing else.
    pub fn log_mut(&mut self) -> &mut S {
        self.raft.mut_store()
    }

    pub fn step(&mut self, input: Input) -> Result<()> {
        assert!(self.ready.is_none(), "an output is being worked off");
        match input {
            Input::Tick => {
                self.raft.tick();
                self.consider_transfer();
                Ok(())
            }
            Input::Message(message) => match self.raft.step(message) {
                // A follower's forwarded proposal that came too early or too late: its node sends it again.
                Err(raft::Error::ProposalDropped) => Ok(()),
                other => Ok(other?),
            },
            Input::Propose(data) => {
                let mut message = Message::default();
                message.set_msg_type(MessageType::MsgPropose);
                message.from = u64::from(self.config.id.0);
                message.mut_entries().push(RaftEntry { data, ..Default::default() });
                match self.raft.step(message) {
                    Err(raft::Error::ProposalDropped) => Err(Error::NoLeader),
                    other => Ok(other?),
                }
            }
            Input::Unreachable(peer) => {
                let id = u64::from(peer.0);
                self.raft.report_unreachable(id);
                // An heir that has gone would keep proposals waiting until the transfer times out.
                if self.raft.raft.lead_transferee == Some(id) {
                    self.raft.raft.abort_leader_transfer();
                }
                if self.config.preferred.contains(&peer) {
                    self.ticks_to_transfer = self.config.transfer_ticks * TRANSFER_PAUSE;
                }
                Ok(())
            }
            Input::HandOver => {
                let raft = &self.raft.raft;
                if raft.state == StateRole::Leader {
                    let others = raft.prs().iter().filter(|(id, p)| **id != raft.id && p.recent_active);
                    // Of equals the lowest id, so that the choice does not hang on the order of a hash map.
                    if let Some(heir) = others.max_by_key(|(id, p)| (p.matched, u64::MAX - **id)).map(|(id, _)| *id) {
                        self.raft.transfer_leader(heir);
                    }
                }
                Ok(())
            }
        }
    }

    /// Fills `out` with the next piece of work.  `false`: there is none.
    pub fn poll(&mut self, out: &mut Output) -> bool {
        assert!(self.ready.is_none(), "the last output has not been reported as persisted");
        out.clear();
        if !self.raft.has_ready() {
            return false;
        }
        let mut ready = self.raft.ready();
        assert!(ready.snapshot().is_empty(), "this version sends no Raft snapshots");
        out.send_now = ready.take_messages();
        out.send_after = ready.take_persisted_messages();
        take_committed(ready.take_committed_entries(), &mut out.committed);
        let entries = ready.take_entries();
        let hard_state = ready.hs().cloned();
        if !entries.is_empty() || hard_state.is_some() {
            out.persist = Some(Persist { entries, hard_state, must_sync: ready.must_sync() });
        }
        self.ready = Some(ready);
        true
    }

    /// The last output's `persist` is durable.  Keeps `send_after`, adds what may be sent and done only now.
    pub fn persisted(&mut self, out: &mut Output) {
        let ready = self.ready.take().expect("persisted() follows a poll() that gave work");
        out.send_now.clear();
        out.persist = None;
        out.committed.clear();
        let mut light = self.raft.advance_append(ready);
        out.send_after.append(&mut light.take_messages());
        take_committed(light.take_committed_entries(), &mut out.committed);
        self.raft.advance_apply();
    }

    pub fn leadership(&self) -> Leadership {
        let raft = &self.raft.raft;
        Leadership {
            role: match raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            term: Term(raft.term),
            leader: (raft.leader_id != raft::INVALID_ID).then_some(NodeId(raft.leader_id as u32)),
        }
    }

    pub fn status(&self) -> Status {
        let raft = &self.raft.raft;
        let leadership = self.leadership();
        let mut matched = Vec::new();
        if leadership.role == Role::Leader {
            matched.extend(raft.prs().iter().map(|(id, p)| (NodeId(*id as u32), LogIndex(p.matched))));
            matched.sort_unstable();
        }
        Status {
            leadership,
            raft_commit: LogIndex(raft.raft_log.committed),
            last: LogIndex(raft.raft_log.last_index()),
            matched,
        }
    }

    /// A leader outside the preferred region hands over to a member there that is alive and has the whole log but for
    /// what is under way.  Raft ends a transfer that fails after an election timeout; the next try waits longer, so
    /// that a member which keeps failing does not stop proposals again and again.
    fn consider_transfer(&mut self) {
        let raft = &self.raft.raft;
        if raft.state != StateRole::Leader || self.config.preferred.contains(&self.config.id) {
            // A new leader first learns who is alive.
            self.ticks_to_transfer = self.ticks_to_transfer.max(self.config.transfer_ticks * 2);
            return;
        }
        self.ticks_to_transfer = self.ticks_to_transfer.saturating_sub(1);
        if self.ticks_to_transfer > 0 {
            return;
        }
        self.ticks_to_transfer = self.config.transfer_ticks;
        let committed = raft.raft_log.committed;
        let heir = self.config.preferred.iter().map(|id| u64::from(id.0)).find(|id| {
            raft.prs().get(*id).is_some_and(|p| p.recent_active && p.matched + TRANSFER_LAG_MAX >= committed)
        });
        if let Some(heir) = heir {
            self.ticks_to_transfer = self.config.transfer_ticks * TRANSFER_PAUSE;
            self.raft.transfer_leader(heir);
        }
    }
}

impl Output {
    fn clear(&mut self) {
        self.send_now.clear();
        self.persist = None;
        self.send_after.clear();
        self.committed.clear();
    }
}

fn take_committed(entries: Vec<RaftEntry>, committed: &mut Vec<Committed>) {
    committed.extend(entries.into_iter().map(|e| {
        let is_transaction = e.get_entry_type() == EntryType::EntryNormal;
        Committed { index: LogIndex(e.index), data: if is_transaction { e.data } else { Bytes::new() } }
    }));
}
