//! The worker that writes the rows of a large transaction while that arrives, before it is decided.
//!
//! ```text
//!   parts in the log ──> ARRIVING ──> the worker writes their rows, in a transaction that stays open
//!                        WRITTEN  <── it has all of them
//!   "not to be waited for" ──> log ──> the node that the transaction comes from proposes the last entry
//!   verdict ──> VERDICT commit ──> the worker commits in its turn, as a session would that had proposed it
//! ```
//! The worker is to its server what a session is that has run the same statements: others that are decided first evict
//! it, and from its verdict on rules 1 and 2 hold for it (`docs/agent-protocol.md`).  Whatever goes wrong with it, the
//! apply worker gets the transaction's entry instead.
//!
//! Invariants:
//! - It gets a verdict of commit only for a transaction of which it has been sent every byte, and which it has not
//!   given up; the apply worker is then not fed that entry.
//! - A transaction of this node's own server is none of its business: a session has written that.

use super::{ConnId, Context, Outbox, Router};
use crate::agent::{ToPostgres, VerdictFrame, VerdictOutcome, NO_KEY};
use crate::certifier::Verdict;
use crate::ids::{LogIndex, TxnId};
use bytes::Bytes;

/// Bytes in one answer, at most.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// That a transaction is written is said again this many ticks later, since a proposal may be lost.
const SAY_AGAIN_TICKS: u64 = 50;

pub(super) struct ArrivalWorker {
    pub conn: ConnId,
    /// What it has been sent bytes of, until it has given up or was told the verdict.
    has: Option<Has>,
    /// More bytes are wanted: of this transaction, or of any; from there on.
    wanted: Option<(Option<TxnId>, u64)>,
    /// What it has written, or given up.
    done: Option<TxnId>,
}

struct Has {
    txn: TxnId,
    sent: u64,
    total: u64,
}

impl ArrivalWorker {
    pub fn new(conn: ConnId) -> ArrivalWorker {
        ArrivalWorker { conn, has: None, wanted: None, done: None }
    }

    pub fn wants(&mut self, txn: Option<TxnId>, from: u64) {
        let sent = |of| self.has.as_ref().filter(|has| has.txn == of).map_or(0, |has| has.sent);
        self.wanted = Some((txn, from)).filter(|_| from == txn.map_or(0, sent));
    }

    pub fn is_done(&mut self, txn: TxnId, kept: bool) {
        self.done = Some(txn);
        if !kept {
            self.has.take_if(|has| has.txn == txn);
        }
    }
}

impl<O: Outbox> Router<O> {
    /// Sends the arrival worker what it wants of what has arrived.  What this returns is to be proposed.
    pub fn feed_arrival_worker<L>(&mut self, context: &Context<'_, L>) -> Option<Bytes> {
        let arriving = context.certifier.arriving().filter(|a| !a.is_empty());
        let ended = |worker: &mut ArrivalWorker| worker.has.take_if(|has| arriving.is_none_or(|a| a.txn != has.txn));
        if let Some(has) = self.arrival.as_mut().and_then(ended) {
            // Not by a decision about it: its PostgreSQL has started anew, for example.
            self.arrival_worker_lets_go(has.txn, LogIndex::ZERO);
        }
        let arriving = arriving.filter(|a| a.txn.node != self.me)?;
        let is_early = arriving.total() >= self.sizes.written_early as u64;
        if let Some(worker) = self.arrival.as_mut().filter(|_| is_early) {
            // It may have wanted more before it gave up.
            let is_done = worker.done == Some(arriving.txn);
            let of = |txn: Option<TxnId>| !is_done && txn.is_none_or(|txn| txn == arriving.txn);
            let wanted = worker.wanted.filter(|(txn, from)| of(*txn) && *from < arriving.len() as u64);
            if let (Some((_, from)), Some(c)) = (wanted, self.conns.get(&worker.conn)) {
                let bytes = &arriving.bytes()[from as usize..];
                let (txn, total) = (arriving.txn, arriving.total());
                // Never all at once: the worker is to know the transaction before there can be a verdict on it.
                let most = ANSWER_BYTES_MAX.min(total.div_ceil(2) as usize);
                let bytes = Bytes::copy_from_slice(&bytes[..bytes.len().min(most)]);
                worker.wanted = None;
                worker.has = Some(Has { txn, sent: from + bytes.len() as u64, total });
                c.outbox.send([ToPostgres::Arriving { txn, total, from, bytes }.encode()]);
            }
        }
        let has_server = context.members.get(self.me).is_some_and(|m| m.role.has_postgres());
        // Nor is one waited for that is busy with another transaction, or cannot go on.
        let is_at_it = |worker: &ArrivalWorker| {
            worker.done != Some(arriving.txn) && worker.has.as_ref().is_some_and(|has| has.txn == arriving.txn)
        };
        let is_done = !self.arrival.as_ref().is_some_and(is_at_it) || self.feed.is_none() || self.stuck.is_some();
        if !has_server || !is_done || !arriving.is_whole() || arriving.is_written(self.me) {
            return None;
        }
        let (said, again_at) = self.said_written;
        if said == arriving.txn && context.tick < again_at {
            return None;
        }
        self.said_written = (arriving.txn, context.tick + SAY_AGAIN_TICKS);
        Some(arriving.encode_written(self.me))
    }

    /// Whether the arrival worker commits the entry here, which it is told.
    pub(super) fn arrival_worker_commits<L>(
        &mut self,
        txn: TxnId,
        at: LogIndex,
        verdict: Verdict,
        previous: LogIndex,
        context: &Context<'_, L>,
    ) -> bool {
        let Some(worker) = &mut self.arrival else { return false };
        let Some(has) = worker.has.take_if(|has| has.txn == txn) else { return false };
        let conn = worker.conn;
        let commits = verdict == Verdict::Commit && has.sent == has.total;
        match commits {
            true => self.tell(conn, (txn, at), verdict, previous, (String::new(), None), context.members),
            // The index tells it that the apply worker gets the entry.
            false => self.arrival_worker_lets_go(txn, if verdict == Verdict::Commit { at } else { LogIndex::ZERO }),
        }
        commits
    }

    /// It is to roll back: the transaction is not committed, or the apply worker gets it.
    fn arrival_worker_lets_go(&mut self, txn: TxnId, at: LogIndex) {
        let conn = self.arrival.as_ref().and_then(|worker| self.conns.get(&worker.conn));
        if let Some(c) = conn {
            let (region, message, other) = (self.region.clone(), String::new(), LogIndex::ZERO);
            let outcome = VerdictOutcome::Cancelled;
            let frame = VerdictFrame { txn, outcome, at, other, key: NO_KEY, region, message, times: None };
            c.outbox.send([ToPostgres::Verdict(frame).encode()]);
        }
    }

    pub(super) fn close_arrival_worker(&mut self) {
        if let Some(worker) = self.arrival.take() {
            self.close(worker.conn);
        }
    }
}
