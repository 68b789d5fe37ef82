//! Large transactions of sessions here, which travel in parts: what to propose of them, for whose arrival workers their
//! end waits, and what ends those that have lost or that nobody waits for.
//!
//! `crate::parts` knows how one of them travels.

use super::{Context, Outbox, Router, JUDGED_KEYS_MAX, RESEND_TICKS};
use crate::entry::Entry;
use crate::ids::{LogIndex, NodeId, TxnId};
use bytes::Bytes;

/// A large transaction for which no session waits any more is cancelled after this long.
const ABANDONED_TICKS: u64 = 100;
/// Who was waited for in vain is not waited for again for this long.
const LATE_TICKS: u64 = 3_000;
/// This node's server stands still if it has not gone on for so long, although there is something to apply.
const BEHIND_TICKS: u64 = 10;

impl<O: Outbox> Router<O> {
    /// A transaction of this node travels in parts.
    pub fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// That one does, and it is known what has become of its session.
    pub fn is_large(&self, txn: &TxnId) -> bool {
        self.large.contains_key(txn)
    }

    /// What to propose now of the transactions that travel in parts.  `servers`: the other nodes that have a server,
    /// and are not away.
    pub fn parts_to_propose<L>(&mut self, servers: &[NodeId], context: &Context<'_, L>) -> Vec<Bytes> {
        let arriving = context.certifier.arriving();
        let (mut proposals, servers) = match self.stands_still(context) {
            true => (self.end_what_has_lost(context).into_iter().collect(), Vec::new()),
            false => (Vec::new(), self.servers_to_wait_for(servers, context.tick)),
        };
        self.large.retain(|txn, cancel_at| {
            let is_to_arrive = context.certifier.is_to_arrive(txn);
            let pending = self.pending.get_mut(txn);
            let Some((pending, parts)) = pending.and_then(|p| p.parts.take().map(|parts| (p, parts))) else {
                // The session may propose it again on a new connection; but other transactions wait for this one.
                if *cancel_at.get_or_insert(context.tick + ABANDONED_TICKS) <= context.tick {
                    *cancel_at = None;
                    proposals.push(Entry::encode_cancel(txn));
                }
                return is_to_arrive;
            };
            let parts = pending.parts.insert(parts);
            let before = proposals.len();
            match arriving {
                Some(arriving) if arriving.txn != *txn => {
                    if !is_to_arrive {
                        proposals.extend(parts.ask(txn, &pending.raw));
                    }
                }
                _ => proposals.extend(parts.next(txn, &pending.raw, arriving, &self.sizes, context.now, &servers)),
            }
            if proposals.len() > before {
                (pending.resend_at, pending.resend_ticks) = (context.tick + RESEND_TICKS, RESEND_TICKS);
            }
            self.late.extend(parts.late.drain(..).map(|node| (node, context.tick)));
            true
        });
        proposals
    }

    /// Ends a large transaction if it has lost to what the server here is to apply next, which may be waiting for its
    /// locks.  Its session is told; what this returns is to be proposed in the place of the rest.  One at a time, since
    /// each may have millions of keys.
    fn end_what_has_lost<L>(&mut self, context: &Context<'_, L>) -> Option<Bytes> {
        let (next, _) = context.committed_indexes.after(self.applied?)?.next()?;
        let is_judged = |txn: &&TxnId| self.pending.get(txn).is_none_or(|pending| pending.judged == next);
        let txn = *self.large.keys().find(|txn| !is_judged(txn))?;
        let pending = self.pending.get_mut(&txn)?;
        pending.judged = next;
        let (conn, mut entry) = (pending.conn, Entry::decode(pending.raw.clone()).ok()?);
        let verdict = context.certifier.has_lost_to(next, &entry)?;
        self.pending.remove(&txn);
        if let Some(c) = self.conns.get_mut(&conn) {
            c.waiting = None;
        }
        let zero = LogIndex::ZERO;
        self.tell(conn, (txn, zero), verdict, zero, (String::new(), None), context.members);
        // Its keys are enough for it to lose, which counts (`certifier::reserved`).
        entry.write_set = Bytes::new();
        Some(match entry.key_count() <= JUDGED_KEYS_MAX {
            true => entry.encoded(),
            false => Entry::encode_cancel(&txn),
        })
    }

    pub(super) fn part_is_there<L>(&mut self, txn: &TxnId, counts: bool, context: &Context<'_, L>) {
        let Some(pending) = self.pending.get_mut(txn) else { return };
        let Some(parts) = &mut pending.parts else { return };
        if counts {
            (pending.resend_at, pending.resend_ticks) = (context.tick + RESEND_TICKS, RESEND_TICKS);
        } else if context.certifier.arriving().is_some_and(|arriving| arriving.txn != *txn) {
            // Another transaction came first, and this one comes after it.
            parts.again();
        }
    }

    /// The server here has not gone on for a while, although there is something to apply: a session may be in the way
    /// that has proposed, and so cannot give way.
    fn stands_still<L>(&mut self, context: &Context<'_, L>) -> bool {
        let is_behind = self.applied.is_some_and(|applied| applied < context.certifier.last_committed());
        if self.shown_since.0 != self.applied || !is_behind {
            self.shown_since = (self.applied, context.tick);
        }
        is_behind && self.shown_since.1 + BEHIND_TICKS <= context.tick
    }

    /// Those of these nodes whose servers are to be waited for.
    fn servers_to_wait_for(&mut self, servers: &[NodeId], tick: u64) -> Vec<NodeId> {
        self.late.retain(|_, since| *since + LATE_TICKS > tick);
        servers.iter().copied().filter(|node| !self.late.contains_key(node)).collect()
    }
}
