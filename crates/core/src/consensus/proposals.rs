//! What waits together leaves together: one message for many proposals, one append for many entries, one
//! acknowledgement for many appends.
//!
//! ```text
//!   sessions ──┐                                  ┌── proposals of others
//!              ├──> gathered ── poll ──> raft <───┘   (a leader gathers those too)
//!   operators ─┘                          │
//!                                         └──> one append to each follower
//! ```
//! A transaction that is under way for long is proposed again, and so is a request to cancel one or to leave it out.  A
//! leader puts each of them into the log only once: a second time would say nothing new, and on links that are full
//! already it would only add to the delay.
//!
//! Everything that has come in since the last `poll` goes to raft-rs in one step, which raft-rs answers with one append
//! for each follower.  So nothing has to be joined afterwards, which raft-rs does wrongly (`raft_node`).

use super::{Consensus, Message};
use crate::entry::{Entry, EntryKind, KIND_AT};
use crate::error::{Error, Result};
use crate::ids::{LogIndex, Term, TxnId};
use crate::level;
use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, EntryType, MessageType};
use raft::Storage;
use std::collections::{BTreeSet, VecDeque};

/// Bytes that go to Raft in one step, and so in one message, unless a single entry has more.  No more than the
/// transport takes for a small message; and less than an append may have, or the rest would wait for an answer.
pub const PROPOSALS_BYTES_MAX: usize = 64 << 10;

/// Entries that a leader remembers having put into its log, at most.
const LOGGED_MAX: usize = 100_000;

/// What this node has put into the log as the leader of one term.  It stays in the log as long as the node leads; and
/// the next leader is proposed everything again.
#[derive(Default)]
pub(super) struct Logged {
    term: Term,
    entries: BTreeSet<Once>,
    oldest_first: VecDeque<Once>,
}

/// What needs to be in the log once.
type Once = (TxnId, What);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Transaction,
    Cancels,
    /// What leaves out the transaction may be left out itself.
    LeavesOut(LogIndex),
}

impl Logged {
    fn in_term(&mut self, term: Term) -> &mut Logged {
        if self.term != term {
            *self = Logged { term, ..Logged::default() };
        }
        self
    }

    /// False: the log has it already.
    fn add(&mut self, entry: Once) -> bool {
        if !self.entries.insert(entry) {
            return false;
        }
        self.oldest_first.push_back(entry);
        if self.oldest_first.len() > LOGGED_MAX {
            self.oldest_first.pop_front().map(|oldest| self.entries.remove(&oldest));
        }
        true
    }
}

/// `None`: the entry may have to be in the log more often.
fn once(entry: &RaftEntry) -> Option<Once> {
    let is_normal = entry.get_entry_type() == EntryType::EntryNormal;
    let kind = EntryKind::from_u8(*entry.data.get(KIND_AT).filter(|_| is_normal)?)?;
    let txn = Entry::peek_txn(&entry.data).ok()?;
    // One that cannot be read does not stand for one that can.
    let read = || Entry::decode(entry.data.clone()).ok();
    let what = match kind {
        EntryKind::Cancel => read().map(|_| What::Cancels)?,
        EntryKind::Skip => What::LeavesOut(read()?.leaves_out()?),
        _ if kind.is_of_backend() => read().map(|_| What::Transaction)?,
        _ => return None,
    };
    Some((txn, what))
}

/// Parts of large transactions are not kept for another leader: all of them would be in the log twice.
fn is_part(data: &[u8]) -> bool {
    data.get(KIND_AT) == Some(&(EntryKind::Part as u8))
}

impl<S: Storage> Consensus<S> {
    pub(super) fn propose(&mut self, data: Bytes) -> Result<()> {
        if !self.raft.takes_proposals() && (is_part(&data) || !self.keeps_proposals()) {
            return Err(Error::NoLeader);
        }
        level::may_be_proposed(&data, self.members.level)?;
        self.keep(RaftEntry { data, ..Default::default() });
        Ok(())
    }

    /// Proposals of another member.
    pub(super) fn gather(&mut self, message: Message) {
        // If this node does not lead, whoever proposed it proposes it again as soon as it hears of the leader.
        if !self.raft.leads() && !self.keeps_proposals() {
            return;
        }
        let (level, takes_all) = (self.members.level, self.raft.leads() && self.raft.takes_proposals());
        let fits = |entry: &RaftEntry| !self.loses_rows(entry) && level::may_be_proposed(&entry.data, level).is_ok();
        let entries: Vec<RaftEntry> = message.entries.into_iter().filter(fits).collect();
        if self.raft.leads() && entries.iter().any(|entry| self.removes_me(entry)) {
            return self.hand_over();
        }
        let may_be_kept = |entry: &RaftEntry| entry.get_entry_type() == EntryType::EntryNormal && !is_part(&entry.data);
        let kept = |entry: &RaftEntry| takes_all || may_be_kept(entry);
        entries.into_iter().filter(kept).for_each(|entry| self.keep(entry));
    }

    /// Hands all that was gathered to Raft.
    pub(super) fn propose_all(&mut self, not_taken: &mut Vec<Bytes>) {
        // This comes before anything is remembered as logged: what is proposed while a leader hands over gets into no
        // log yet.
        if !self.raft.takes_proposals() {
            return self.pass_on(not_taken);
        }
        let mut gathered = self.take_kept();
        if gathered.is_empty() {
            return;
        }
        if self.raft.leads() {
            let logged = self.logged.in_term(self.raft.term());
            gathered.retain(|entry| once(entry).is_none_or(|once| logged.add(once)));
        }
        let last = self.raft.last();
        for together in batches(gathered, self.message_bytes()) {
            let data: Vec<Bytes> = together.iter().map(|entry| entry.data.clone()).collect();
            if self.raft.propose(together).is_err() {
                // This should not happen after the check above; if it does, an entry that is in the log twice does no
                // harm.
                self.logged = Logged::default();
                not_taken.extend(data);
            }
        }
        if self.raft.leads() {
            self.raft.extend_first_appends(last);
        }
    }

    pub(super) fn message_bytes(&self) -> usize {
        PROPOSALS_BYTES_MAX.min(self.raft.message_bytes_max())
    }
}

/// What goes together in one message.
pub(super) fn batches(entries: Vec<RaftEntry>, bytes_max: usize) -> Vec<Vec<RaftEntry>> {
    let mut batches: Vec<Vec<RaftEntry>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.data.len();
        match batches.last_mut().filter(|_| bytes <= bytes_max) {
            Some(batch) => batch.push(entry),
            None => {
                bytes = entry.data.len();
                batches.push(vec![entry]);
            }
        }
    }
    batches
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
