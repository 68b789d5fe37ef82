//! Persisted notices: they tell a member that an entry is committed as soon as news from a majority can reach it,
//! without the way to the leader and back.
//!
//! ```text
//!   leader     append ──┬──> sync ──> "I have it up to i" ──┬──> every other member
//!   follower            └──> sync ──> "I match up to i"   ──┘
//! ```
//! After its sync a member tells the others up to which index of the current term it has the leader's log.  Each of
//! them takes the quorum index of what it has heard and commits up to there.  It is Raft's own rule (thesis, 3.6.2),
//! applied by an observer other than the leader; `docs/decisions/2026-11-23-persisted-notices.md` has the argument.
//!
//! Invariants.  For each of them the simulation has an injected bug that breaks it, except for those about changes of
//! the configuration.  Those have a test in `tests/consensus.rs`, because breaking them takes two changes while one
//! node is behind.
//! - A notice is a promise about the disk: it leaves after the sync.
//! - A notice counts in its own term only.
//! - A follower tells what *matched* in that term, not the end of its log, which may contain entries of a leader that
//!   lost.
//! - Only an entry of the current term is committed in this way (thesis, 3.6.2, figure 3.7).
//! - Only voters count, of the incoming and of the outgoing configuration.
//! - Nothing is committed past a change of the configuration that has not been carried out here.

use super::Consensus;
use crate::checkpoint::Conf;
use crate::ids::{LogIndex, NodeId, Term};
use raft::eraftpb::{Entry as RaftEntry, EntryType, Message, MessageType};
use raft::Storage;
use std::collections::{BTreeMap, BTreeSet};

/// The sender's disk has the log of `term`'s leader up to `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    pub term: Term,
    pub index: LogIndex,
}

#[derive(Default)]
pub(super) struct Notices {
    /// The last notice of each other member.
    heard: BTreeMap<NodeId, Notice>,
    /// In this term: what is durable here and the same as in the leader's log, and what the others have been told of
    /// it.
    term: Term,
    matched: LogIndex,
    told: LogIndex,
    /// Changes of the configuration in this log that may not have been carried out yet.
    changes: BTreeSet<LogIndex>,
    /// The log up to here was there when this life began.  It may contain such changes; nobody has looked.
    unknown_upto: LogIndex,
}

impl Notices {
    pub fn new(last: LogIndex) -> Notices {
        Notices { unknown_upto: last, ..Notices::default() }
    }

    /// `entries` replace the log from the first one's index on.
    pub fn appends(&mut self, entries: &[RaftEntry]) {
        if let Some(first) = entries.first() {
            // The changes in the part that these replace are gone.
            let _ = self.changes.split_off(&LogIndex(first.index));
            let changes = entries.iter().filter(|e| e.get_entry_type() != EntryType::EntryNormal);
            self.changes.extend(changes.map(|e| LogIndex(e.index)));
        }
    }

    fn in_term(&mut self, term: Term) -> &mut Notices {
        if self.term != term {
            (self.term, self.matched, self.told) = (term, LogIndex::ZERO, LogIndex::ZERO);
        }
        self
    }

    /// Up to which index `member` has said that it has the log of this term's leader, or of a later one's.
    pub fn of(&self, member: NodeId, term: Term) -> Option<LogIndex> {
        self.heard.get(&member).filter(|n| n.term >= term).map(|n| n.index)
    }

    /// Up to which index a majority, and this member too, is known to have the leader's log.
    fn quorum_index(&self, me: NodeId, conf: &Conf) -> LogIndex {
        let majority = |voters: &Vec<NodeId>| {
            let heard = |id: &NodeId| match *id == me {
                true => self.matched,
                false => self.heard.get(id).filter(|n| n.term == self.term).map_or(LogIndex::ZERO, |n| n.index),
            };
            let mut held: Vec<LogIndex> = voters.iter().map(heard).collect();
            held.sort_unstable();
            // A configuration without voters asks nothing.
            held.len().checked_sub(1).map(|last| held[last / 2])
        };
        let of_both = [&conf.voters, &conf.outgoing].into_iter().filter_map(majority).min();
        of_both.unwrap_or_default().min(self.matched)
    }
}

impl<S: Storage> Consensus<S> {
    /// Takes a notice; the connection that it came on shows that it is from `from`.
    pub(super) fn hear(&mut self, from: NodeId, notice: Notice) {
        // A notice of a later term may come before this node is in that term; those of earlier terms are of no use any
        // more.
        let heard = self.notices.heard.entry(from).or_insert(notice);
        *heard = notice.max(*heard);
        self.commit_what_is_heard();
    }

    /// The voters whose disks are known here to have the entry at `at`, which is committed.  A follower that its leader
    /// has told so, before the notices came, may know of less than a majority.
    pub fn holders(&self, at: LogIndex) -> impl Iterator<Item = NodeId> + '_ {
        let (me, term) = (self.config.id, self.raft.term());
        self.conf.voters.iter().copied().filter(move |id| {
            let heard = self.notices.heard.get(id).is_some_and(|heard| heard.term == term && heard.index >= at);
            match *id == me {
                true => self.raft.persisted() >= at,
                false => heard || (self.raft.leads() && self.raft.follower(*id).is_some_and(|f| f.matched >= at)),
            }
        })
    }

    /// The last notice of this term, for a member that may have missed it.
    pub fn last_notice(&self) -> Option<Notice> {
        let Notices { term, told, .. } = self.notices;
        (term == self.raft.term() && told > LogIndex::ZERO).then_some(Notice { term, index: told })
    }

    /// Whether `member` learns what is committed from its own disk and `leader`'s notices as soon as anybody else could
    /// tell it: the two are a majority, and the append, which came before, told it of the entry.  Not while it may wait
    /// for what this member says.
    pub fn leader_says_enough(&self, leader: NodeId, member: NodeId) -> bool {
        let are_majority =
            |voters: &Vec<NodeId>| voters.len() <= 3 && voters.contains(&leader) && voters.contains(&member);
        let Conf { voters, outgoing, .. } = &self.conf;
        let no_leases = self.members.lease_regions.is_empty() && !self.is_waited_for;
        are_majority(voters) && (outgoing.is_empty() || are_majority(outgoing)) && no_leases
    }

    /// To be called when `sent`, the messages that waited for the disk, may leave.  Returns the notice to send, if
    /// there is news.
    pub(super) fn notice(&mut self, sent: &[Message]) -> Option<Notice> {
        let term = self.raft.term();
        let acknowledged = |m: &Message| {
            let is_promise = m.get_msg_type() == MessageType::MsgAppendResponse && !m.reject && Term(m.term) == term;
            is_promise.then_some(LogIndex(m.index))
        };
        let matched = match self.raft.leads() {
            true => self.raft.persisted(),
            false => sent.iter().filter_map(acknowledged).max().unwrap_or_default(),
        };
        // A holder of a lease that does not vote is waited for too, though it is not counted.
        let is_waited_for = self.is_waited_for || self.members.holds_lease(self.config.id);
        let is_heard = self.conf.votes(self.config.id) || is_waited_for;
        let notices = self.notices.in_term(term);
        notices.matched = matched.max(notices.matched);
        let index = notices.matched;
        let is_news = is_heard && index > notices.told;
        if is_news {
            notices.told = index;
        }
        self.commit_what_is_heard();
        is_news.then_some(Notice { term, index })
    }

    /// A leader needs no notices: it counts what followers answer.
    fn commit_what_is_heard(&mut self) {
        let (term, applied) = (self.raft.term(), self.applied.0);
        if self.raft.leads() || applied < self.notices.unknown_upto {
            return;
        }
        let notices = self.notices.in_term(term);
        // Should there be another leader of this term, which there should not be, its entries may have replaced what
        // matched; so this goes no further than the disk.
        let mut upto = notices.quorum_index(self.config.id, &self.conf).min(self.raft.persisted());
        while let Some(change) = notices.changes.first().copied() {
            if change > applied {
                upto = upto.min(change);
                break;
            }
            notices.changes.pop_first();
        }
        if upto > self.raft.committed() && self.raft.term_at(upto) == Some(term) {
            self.raft.commit_to(upto);
        }
    }
}
