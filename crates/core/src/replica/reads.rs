//! Fresh reads: from which entry on a server shows everything that was acknowledged anywhere before a read began.
//!
//! ```text
//!   READ ──> "which is the last entry on your disk?" ──> every voter
//!            the newest that a majority names        <── half a round trip to the nearest majority, and back
//!            (with a lease it is known already: `leases`)
//!            an entry that is not older is decided here ──> READ_AT, the last committed entry
//! ```
//! Whatever was acknowledged is on the disks of a majority, and one of that majority is asked: it names an entry that
//! is not older.  Among committed entries a newer one comes later in the log.  So this node has decided all that was
//! acknowledged as soon as it has decided an entry that is not older than the newest named.  Neither the leader nor a
//! clock has a part in it; `docs/decisions/2026-11-23-fresh-reads.md` has the argument.
//!
//! Invariants:
//! - A question leaves after the reads that it is for have begun, and its number is never used again, in no life of
//!   this node.
//! - What is named is not older than any committed entry that this node has acknowledged.
//! - The majority is one of the configuration that is in force here when the question is answered.  As soon as another
//!   one is in force than when it left, it is asked again: whoever voted then may be gone.
//! - A read that may not ask asks nobody: it is answered under a lease, or told that it would have to.
//! - Nothing is kept of a read that nobody waits for any more, for longer than until voters are asked again.
//!
//! The host asks in the same way whether a moment's commits are all known here ([`Replica::confirm`]).

use super::{Host, Replica, Store};
use crate::agent::Asked;
use crate::checkpoint::Conf;
use crate::ids::{EntryId, LogIndex, NodeId};
use crate::router::{Outbox, Read};
use std::collections::{BTreeMap, VecDeque};

/// With so many questions open, further reads wait for an answer, and then share one.
const OPEN_MAX: usize = 64;
/// Voters that have not answered are asked again this often.
const ASK_AGAIN_TICKS: u64 = 25;

pub(super) struct Reads {
    /// They began after the last question left.
    waiting: Vec<Read>,
    /// What the host wants confirmed, as long as no question has left for it.
    to_confirm: Option<u64>,
    /// The oldest first.
    open: VecDeque<Question>,
    next: u64,
}

struct Question {
    number: u64,
    readers: Vec<Read>,
    confirms: Option<u64>,
    conf: Conf,
    named: BTreeMap<NodeId, EntryId>,
    /// This node held a lease when the reads had begun: the newest entry that they have to wait for.
    leased: Option<EntryId>,
    ask_again_at: u64,
}

impl Question {
    fn voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.conf.voters.iter().chain(&self.conf.outgoing).copied()
    }

    fn is_wanted(&self) -> bool {
        !self.readers.is_empty() || self.confirms.is_some()
    }

    /// The newest entry that was named, once a majority has named one, or by those whose promises make the lease.
    fn newest(&self) -> Option<EntryId> {
        if self.leased.is_some() {
            return self.leased;
        }
        let is_majority = |voters: &Vec<NodeId>| {
            let named = voters.iter().filter(|id| self.named.contains_key(id)).count();
            voters.is_empty() || named > voters.len() / 2
        };
        let are_enough = is_majority(&self.conf.voters) && is_majority(&self.conf.outgoing);
        self.named.values().max().copied().filter(|_| are_enough)
    }
}

impl Reads {
    pub fn new(first_question: u64) -> Reads {
        Reads { waiting: Vec::new(), to_confirm: None, open: VecDeque::new(), next: first_question }
    }

    /// The number of another question.
    pub fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// Has [`Host::confirmed`] called with this mark once everything is decided here that was acknowledged anywhere
    /// before this call.  Does nothing while an earlier mark waits for that.
    pub fn confirm(&mut self, mark: u64) {
        if self.reads.open.iter().all(|open| open.confirms.is_none()) {
            self.reads.to_confirm.get_or_insert(mark);
        }
    }

    /// A member asks for the last entry that this node's disk has.
    pub fn question<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, question: u64, host: &mut H) {
        self.tell_who_waits(&[peer], host);
        host.send_last_entry(peer, question, self.consensus.last_on_disk());
    }

    /// A member has answered: its disk has this entry, and none that is newer.  What comes after the answers of a
    /// majority is not needed, and may name an entry that is newer than what the read has to wait for.
    pub fn last_entry_of(&mut self, peer: NodeId, question: u64, last: EntryId) {
        let open = self.reads.open.iter_mut().find(|open| open.number == question);
        if let Some(open) = open.filter(|open| open.conf.votes(peer) && open.newest().is_none()) {
            open.named.insert(peer, last);
        }
    }

    /// Asks for the reads that have begun, and answers those of which enough is known.
    pub(super) fn work_reads<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.reads.waiting.extend(self.router.take_reads());
        self.take_back();
        self.answer_reads(host);
        // The clock is looked at after the reads have begun.
        let is_idle = self.reads.waiting.is_empty() && self.reads.to_confirm.is_none();
        let leased = if is_idle { None } else { self.lease(host) };
        if leased.is_none() {
            let (may_ask, must_not) =
                std::mem::take(&mut self.reads.waiting).into_iter().partition(|read| read.may_ask);
            self.reads.waiting = may_ask;
            let must_not: Vec<Read> = must_not;
            must_not.into_iter().for_each(|read| self.router.answer_read(read, LogIndex::ZERO, Asked::NotYet));
        }
        let are_waiting = !self.reads.waiting.is_empty() || self.reads.to_confirm.is_some();
        if are_waiting && self.reads.open.len() < OPEN_MAX {
            let readers = std::mem::take(&mut self.reads.waiting);
            let confirms = self.reads.to_confirm.take();
            let number = self.reads.number();
            let named = BTreeMap::from([(self.id, self.consensus.last_on_disk())]);
            let conf = self.consensus.conf().clone();
            self.reads.open.push_back(Question {
                number,
                readers,
                confirms,
                conf,
                named,
                leased,
                ask_again_at: self.tick,
            });
            // Perhaps all is known that it takes.
            self.answer_reads(host);
        }
        self.send_questions(host);
    }

    /// Takes back the reads of questions that left while another configuration was in force.
    fn take_back(&mut self) {
        let (conf, Reads { waiting, to_confirm, open, .. }) = (self.consensus.conf(), &mut self.reads);
        open.retain_mut(|open| {
            let is_in_force = open.conf == *conf;
            if !is_in_force {
                waiting.append(&mut open.readers);
                *to_confirm = open.confirms.or(*to_confirm);
            }
            is_in_force
        });
    }

    fn answer_reads<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let (index, term) = self.consensus.applied();
        let decided = EntryId { term, index };
        let is_answered = |open: &Question| open.newest().is_some_and(|newest| newest <= decided);
        // What the newest of them found was acknowledged covers the older ones.
        let Some(last) = self.reads.open.iter().rposition(is_answered) else { return };
        let at: LogIndex = self.certifier.last_committed();
        for Question { readers, confirms, leased, .. } in self.reads.open.drain(..=last) {
            if let Some(mark) = confirms {
                host.confirmed(mark, self.certifier.decided());
            }
            let asked = if leased.is_some() { Asked::Nobody } else { Asked::Others };
            readers.into_iter().for_each(|read| self.router.answer_read(read, at, asked));
        }
    }

    /// Sends the questions that are new, and again those that have been open for long.
    fn send_questions<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let (router, Reads { waiting, open, .. }) = (&self.router, &mut self.reads);
        let is_open = |read: &Read| router.waits_for_read(read);
        let mut is_time = false;
        open.retain_mut(|question| {
            if question.ask_again_at > self.tick {
                return true;
            }
            is_time = true;
            question.ask_again_at = self.tick + ASK_AGAIN_TICKS;
            question.readers.retain(is_open);
            if question.newest().is_none() && question.is_wanted() {
                let silent: Vec<NodeId> = question.voters().filter(|id| !question.named.contains_key(id)).collect();
                host.send_question(&silent, question.number);
            }
            question.is_wanted()
        });
        // There was no room for a question of these.
        if is_time {
            waiting.retain(is_open);
        }
    }
}
