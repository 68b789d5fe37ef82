//! What waits together leaves together: one message for many proposals, one append for many entries, one
//! acknowledgement for many appends.
//!
//! ```text
//!   sessions ──┐                                  ┌── proposals of others
//!              ├──> gathered ── poll ──> raft <───┘   (a leader gathers those too)
//!   operators ─┘                          │
//!                                         └──> one append to each follower
//! ```
//! A transaction that is under way for long is proposed again.  A leader puts it into the log only once: a second time
//! would say nothing new, and on links that are full already it would only add to the delay.
//!
//! Everything that has come in since the last `poll` goes to raft-rs in one step, which raft-rs answers with one append
//! for each follower.  So nothing has to be joined afterwards, which raft-rs does wrongly (`raft_node`).

use super::{Consensus, Message};
use crate::entry::{Entry, EntryKind, KIND_AT};
use crate::error::{Error, Result};
use crate::ids::{Term, TxnId};
use crate::level;
use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, EntryType, MessageType};
use raft::Storage;
use std::collections::{BTreeSet, VecDeque};

/// Bytes that go to Raft in one step, and so in one message, unless a single entry has more.  No more than the
/// transport takes for a small message; and less than an append may have, or the rest would wait for an answer.
pub const PROPOSALS_BYTES_MAX: usize = 64 << 10;

/// Transactions that a leader remembers having put into its log, at most.
const LOGGED_MAX: usize = 100_000;

/// What this node has put into the log as the leader of one term.  It stays in the log as long as the node leads; and
/// the next leader is proposed everything again.
#[derive(Default)]
pub(super) struct Logged {
    term: Term,
    transactions: BTreeSet<TxnId>,
    oldest_first: VecDeque<TxnId>,
}

impl Logged {
    fn in_term(&mut self, term: Term) -> &mut Logged {
        if self.term != term {
            *self = Logged { term, ..Logged::default() };
        }
        self
    }

    /// False: the log has it already.
    fn add(&mut self, txn: TxnId) -> bool {
        if !self.transactions.insert(txn) {
            return false;
        }
        self.oldest_first.push_back(txn);
        if self.oldest_first.len() > LOGGED_MAX {
            self.oldest_first.pop_front().map(|oldest| self.transactions.remove(&oldest));
        }
        true
    }
}

/// `None`: the entry is not a transaction.
fn transaction(entry: &RaftEntry) -> Option<TxnId> {
    let is_transaction = entry.get_entry_type() == EntryType::EntryNormal
        && entry.data.get(KIND_AT).is_some_and(|kind| EntryKind::from_u8(*kind).is_some_and(EntryKind::is_of_backend));
    Entry::peek_txn(&entry.data).ok().filter(|_| is_transaction)
}

impl<S: Storage> Consensus<S> {
    pub(super) fn propose(&mut self, data: Bytes) -> Result<()> {
        if !self.raft.takes_proposals() {
            return Err(Error::NoLeader);
        }
        level::may_be_proposed(&data, self.members.level)?;
        self.proposals.push(RaftEntry { data, ..Default::default() });
        Ok(())
    }

    /// Proposals of another member.
    pub(super) fn gather(&mut self, message: Message) {
        // If this node does not lead, whoever proposed it proposes it again as soon as it hears of the leader.
        if !self.raft.leads() {
            return;
        }
        let level = self.members.level;
        let fits = |entry: &RaftEntry| !self.loses_rows(entry) && level::may_be_proposed(&entry.data, level).is_ok();
        let entries: Vec<RaftEntry> = message.entries.into_iter().filter(fits).collect();
        if entries.iter().any(|entry| self.removes_me(entry)) {
            return self.hand_over();
        }
        self.proposals.extend(entries);
    }

    /// Hands all that was gathered to Raft.
    pub(super) fn propose_all(&mut self, not_taken: &mut Vec<Bytes>) {
        let mut gathered = std::mem::take(&mut self.proposals);
        // This comes before anything is remembered as logged: what is proposed while a leader hands over gets into no
        // log.
        if !self.raft.takes_proposals() {
            return not_taken.extend(gathered.into_iter().map(|entry| entry.data));
        }
        if self.raft.leads() {
            let logged = self.logged.in_term(self.raft.term());
            gathered.retain(|entry| transaction(entry).is_none_or(|txn| logged.add(txn)));
        }
        let bytes_max = PROPOSALS_BYTES_MAX.min(self.raft.message_bytes_max());
        let mut gathered = gathered.into_iter().peekable();
        while let Some(first) = gathered.next() {
            let mut bytes = first.data.len();
            let mut together = vec![first];
            while let Some(next) = gathered.next_if(|next| bytes + next.data.len() <= bytes_max) {
                bytes += next.data.len();
                together.push(next);
            }
            let data: Vec<Bytes> = together.iter().map(|entry| entry.data.clone()).collect();
            if self.raft.propose(together).is_err() {
                // This should not happen after the check above; if it does, an entry that is in the log twice does no
                // harm.
                self.logged = Logged::default();
                not_taken.extend(data);
            }
        }
    }
}

/// Of several acknowledgements to one member, only the one of the highest index says anything.
pub(super) fn keep_last_acknowledgements(messages: &mut Vec<Message>) {
    let mut last: Option<(u64, u64, u64)> = None;
    messages.reverse();
    messages.retain(|m| {
        if m.get_msg_type() != MessageType::MsgAppendResponse || m.reject {
            return true;
        }
        let (to, term, index) = (m.to, m.term, m.index);
        let says_less = last.is_some_and(|(t, of, covered)| (t, of) == (to, term) && index <= covered);
        if !says_less {
            last = Some((to, term, index));
        }
        !says_less
    });
    messages.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(to: u64, term: u64, index: u64, reject: bool) -> Message {
        let mut message = Message { to, term, index, reject, ..Default::default() };
        message.set_msg_type(MessageType::MsgAppendResponse);
        message
    }

    #[test]
    fn the_highest_acknowledgement_and_every_rejection_stay() {
        let mut vote = Message { to: 2, ..Default::default() };
        vote.set_msg_type(MessageType::MsgRequestVoteResponse);
        let mut messages = vec![
            answer(1, 3, 5, false),
            answer(1, 3, 6, false),
            vote.clone(),
            answer(1, 3, 4, true),
            answer(1, 3, 7, false),
            answer(2, 4, 7, false),
        ];
        keep_last_acknowledgements(&mut messages);
        assert_eq!(messages, [vote, answer(1, 3, 4, true), answer(1, 3, 7, false), answer(2, 4, 7, false)]);
    }
}
