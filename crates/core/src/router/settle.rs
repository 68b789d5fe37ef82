//! What is to be decided although no backend waits for it: transactions that somebody has given up on, and whatever an
//! earlier life of this PostgreSQL left open.
//!
//! Both are entries of the log (`EntryKind::Cancel`, `EntryKind::Incarnation`), proposed again until they are decided.
//!
//! Invariant: whoever asked is told the outcome once it is final, and nothing before, unless too many ask at once.

use super::ConnId;
use crate::entry::Entry;
use crate::ids::{NodeId, TxnId};
use bytes::Bytes;

use std::collections::{BTreeMap, VecDeque};

/// As with proposals, a change of leader sends everything again at once; this is only for a message lost on the way.
const RESEND_TICKS: u64 = 50;
/// With this many open, whoever asks next is told that the transaction is not decided so far.
const OPEN_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Settling {
    open: BTreeMap<TxnId, Open>,
    node: NodeId,
    /// The incarnation that this PostgreSQL runs as, according to the log; 0 if the log does not say.
    logged: u64,
    /// The incarnations that it has run as since then, in earlier lives of the node too, oldest first.  Each has to get
    /// into the log, because each may have left something open.
    starts: VecDeque<u64>,
    start_resend_at: u64,
}

struct Open {
    asked: Vec<ConnId>,
    resend_at: u64,
}

impl Settling {
    pub fn new(node: NodeId, starts: &[u64], logged: u64) -> Settling {
        let mut settling = Settling { node, starts: starts.iter().copied().collect(), ..Settling::default() };
        settling.logged(logged);
        settling
    }

    /// The incarnations that have to be saved if this one is new; `None`: it is not.
    pub fn starts_with(&self, incarnation: u64) -> Option<Vec<u64>> {
        let is_new = self.starts.back() != Some(&incarnation) && self.logged != incarnation;
        is_new.then(|| self.starts.iter().copied().chain([incarnation]).collect())
    }

    /// `Some`: an entry to be proposed.  `Err`: too many are open.
    pub fn ask(&mut self, conn: ConnId, txn: TxnId, tick: u64) -> Result<Option<Bytes>, ()> {
        if let Some(open) = self.open.get_mut(&txn) {
            open.asked.push(conn);
            return Ok(None);
        }
        if self.open.len() >= OPEN_MAX {
            return Err(());
        }
        self.open.insert(txn, Open { asked: vec![conn], resend_at: tick + RESEND_TICKS });
        Ok(Some(Entry::encode_cancel(&txn)))
    }

    /// The connections that are to be told.
    pub fn decided(&mut self, txn: &TxnId) -> Vec<ConnId> {
        self.open.remove(txn).map_or_else(Vec::new, |open| open.asked)
    }

    /// The connections that are to be told, of all transactions for which this holds.
    pub fn settled(&mut self, is_settled: impl Fn(&TxnId) -> bool) -> Vec<(TxnId, ConnId)> {
        let mut told = Vec::new();
        self.open.retain(|txn, open| {
            let is_open = !is_settled(txn);
            if !is_open {
                told.extend(open.asked.drain(..).map(|conn| (*txn, conn)));
            }
            is_open
        });
        told
    }

    /// PostgreSQL runs as `incarnation`, and the log says `logged`.  The next `resend` proposes the incarnation.
    pub fn runs(&mut self, incarnation: u64, logged: u64) {
        if self.starts.back() != Some(&incarnation) {
            self.starts.push_back(incarnation);
        }
        self.logged(logged);
    }

    /// According to the log, it now runs as `logged`.
    pub fn logged(&mut self, logged: u64) {
        if let Some(place) = self.starts.iter().position(|start| *start == logged) {
            self.starts.drain(..=place);
        }
        self.logged = logged;
        self.start_resend_at = 0;
    }

    /// What is to be proposed again; with `all`, which is for a change of leader, everything.
    pub fn resend(&mut self, tick: u64, all: bool) -> Vec<Bytes> {
        let mut again = Vec::new();
        if let Some(start) = self.starts.front().filter(|_| all || self.start_resend_at <= tick) {
            self.start_resend_at = tick + RESEND_TICKS;
            again.push(Entry::encode_incarnation(self.node, *start, self.logged));
        }
        for (txn, open) in self.open.iter_mut().filter(|(_, open)| all || open.resend_at <= tick) {
            open.resend_at = tick + RESEND_TICKS;
            again.push(Entry::encode_cancel(txn));
        }
        again
    }
}
