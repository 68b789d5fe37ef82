//! A leader that hands over votes for its transferee at once, and loses nothing that comes in meanwhile.
//!
//! ```text
//!   leader       waits until the transferee has its whole log, sends "campaign", what it has kept, its vote ──┐
//!   transferee   stands for election, syncs that, counts the vote, leads <────────────────────────────────────┘
//! ```
//! Raft's own way (thesis, 3.10) has the transferee ask everybody for votes first.  But the leader knows what it will
//! be asked, and what it will answer.  With three voters its vote and the transferee's own are a majority.
//!
//! Invariants:
//! - The leader votes only when it sends the order to campaign: then the transferee has acknowledged all of the
//!   leader's log, which is what a candidate has to show.
//! - The vote leaves once it is durable, like any vote.  So a leader whose disk is silent does not give it.
//! - The transferee counts the vote only once its own is durable.  Otherwise it could lead, restart, and vote for
//!   somebody else in that same term.
//! - What comes during a hand-over gets into no log before it is over.  The leader keeps it, and sends it after its
//!   order.  The transferee keeps it until it leads.  Neither is certain, so whoever proposed it proposes it again as
//!   soon as a leader is known, like everything else that is under way.
//! - A change of the configuration has to be looked at by the leader that proposes it.  It is not kept; whoever wants
//!   it asks again.  Nor are parts of large transactions.
//!
//! The price: a leader that has voted does not go on leading if its transferee fails in that moment.  Then the others
//! wait for an election timeout, as when a leader dies.

use super::proposals::batches;
use super::{Consensus, Message, MessageType, Role};
use crate::ids::{NodeId, Term};
use bytes::Bytes;
use raft::eraftpb::Entry as RaftEntry;
use raft::Storage;
use std::collections::BTreeMap;

/// A disk that is silent for longer does not get a vote to sync: the others should not wait for it.
const SILENT_TICKS_MAX: usize = 1;
/// A node keeps no more than this for the next leader.
const KEPT_BYTES_MAX: usize = 16 << 20;

#[derive(Default)]
pub(super) struct Handover {
    /// Whom this node has made the leader of which term, as far as its vote can.
    transferee: Option<(NodeId, Term)>,
    /// Votes that have come before this node's own was durable, by voter.
    early_votes: BTreeMap<u64, Message>,
    /// Of what this node has been proposed and has not handed to Raft.
    kept_bytes: usize,
}

impl<S: Storage> Consensus<S> {
    /// If this leader has just ordered its transferee to campaign, it votes for it.  To be called after each input.
    pub(super) fn vote_for_transferee(&mut self) {
        if self.successor().is_none() {
            self.handover.transferee = None;
        }
        let Some(transferee) = self.raft.has_ordered_to_campaign() else { return };
        // Who votes has given its place up.  So the transferee should be there, and should not have a change of the
        // configuration before it, with which it does not campaign.
        let is_there = self.raft.follower(transferee).is_some_and(|follower| follower.active && follower.answers);
        if !is_there || self.raft.changes_configuration() || self.unsynced.silent_ticks() > SILENT_TICKS_MAX {
            return;
        }
        // The first of them before the vote, so that they go with the transferee's first append.
        let mut kept = batches(self.take_kept(), self.message_bytes()).into_iter();
        kept.next().into_iter().for_each(|first| self.raft.send_proposals(transferee, first));
        self.raft.vote_for(transferee);
        self.handover.transferee = Some((transferee, self.raft.term()));
        kept.for_each(|more| self.raft.send_proposals(transferee, more));
    }

    /// Whether this is a vote that may not be counted yet; it is kept for [`Self::count_early_votes`].
    pub(super) fn keeps_early_vote(&mut self, message: &Message) -> bool {
        let is_vote = message.get_msg_type() == MessageType::MsgRequestVoteResponse && !message.reject;
        let is_early = is_vote && Term(message.term) == self.raft.term() && self.raft.asks_for_votes();
        if is_early {
            self.handover.early_votes.insert(message.from, message.clone());
        }
        is_early
    }

    /// To be called when what this node has promised is durable.
    pub(super) fn count_early_votes(&mut self) {
        for vote in std::mem::take(&mut self.handover.early_votes).into_values() {
            // Whether raft still has a use for it, or not, is no matter here.
            let _ = self.raft.step(vote);
        }
    }

    /// Whom this node has voted for as its successor; `None` once it knows who leads, or looks for a leader itself.
    pub(super) fn successor(&self) -> Option<NodeId> {
        let is_open = self.raft.role() == Role::Follower && self.raft.leader().is_none();
        self.handover.transferee.filter(|(_, term)| is_open && *term == self.raft.term()).map(|(id, _)| id)
    }

    /// What was sent to that member may be lost.
    pub(super) fn may_not_succeed(&mut self, member: NodeId) {
        self.handover.transferee.take_if(|(transferee, _)| *transferee == member);
    }

    /// For a node that is to stop: whether it still leads, or what it has sent to its successor may not have arrived.
    pub fn is_handing_over(&self) -> bool {
        self.raft.leads() || self.successor().is_some()
    }

    /// Whether what is proposed to this node is kept for the leader that comes next.
    pub(super) fn keeps_proposals(&self) -> bool {
        let is_handing_over = self.raft.leads() && self.raft.transferee().is_some() || self.successor().is_some();
        (is_handing_over || self.raft.campaigns()) && self.handover.kept_bytes < KEPT_BYTES_MAX
    }

    /// Adds to what is handed to Raft, or to the next leader, at the next `poll`.
    pub(super) fn keep(&mut self, proposal: RaftEntry) {
        self.handover.kept_bytes += proposal.data.len() + size_of::<RaftEntry>();
        self.proposals.push(proposal);
    }

    pub(super) fn take_kept(&mut self) -> Vec<RaftEntry> {
        self.handover.kept_bytes = 0;
        std::mem::take(&mut self.proposals)
    }

    /// No leader takes proposals: what is kept stays so, goes to this node's successor, or is given back.
    pub(super) fn pass_on(&mut self, not_taken: &mut Vec<Bytes>) {
        if let Some(successor) = self.successor() {
            let kept = batches(self.take_kept(), self.message_bytes());
            kept.into_iter().for_each(|batch| self.raft.send_proposals(successor, batch));
        } else if !self.keeps_proposals() {
            not_taken.extend(self.take_kept().into_iter().map(|entry| entry.data));
        }
    }
}
