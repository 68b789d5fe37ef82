//! The outcomes of the most recent transactions.
//!
//! When the records of older ones are dropped, the highest dropped sequence is kept for each incarnation of a
//! PostgreSQL: whoever asks for that sequence or a lower one is told "older than kept", never "not in the log".
//!
//! For each node, the log also says which incarnation its PostgreSQL runs as.  The entry that begins an incarnation
//! aborts whatever the one before it had not brought into the log by then, without a record for each transaction.  Only
//! a limited number of ended incarnations is remembered for each node: so a PostgreSQL that crashes over and over costs
//! no other node's clients their answers.  Its own clients are then told "older than kept".

use super::fixed_map::FixedMap;
use super::{Limits, Verdict};
use crate::ids::{LogIndex, NodeId, TxnId};
use std::collections::{BTreeMap, VecDeque};

/// So many ids in a row may have been given out to transactions that never came to the log.
const UNUSED_MAX: u64 = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not in the log so far.
    Unknown,
    Decided {
        at: LogIndex,
        verdict: Verdict,
    },
    OlderThanKept,
}

#[derive(Clone, Copy)]
pub(super) struct Record {
    pub txn: TxnId,
    pub at: LogIndex,
    pub verdict: Verdict,
}

pub(super) struct Outcomes {
    limit: u64,
    ended_limit: u64,
    pub(super) records: VecDeque<Record>,
    /// How many records have ever been dropped; a record's number minus this is its place in `records`.
    dropped: u64,
    numbers: FixedMap<TxnId, u64>,
    pub(super) highest_dropped: BTreeMap<(NodeId, u64), u64>,
    /// The highest sequence recorded of each incarnation that was not settled.  Not in the checkpoint: it follows from
    /// the records.
    highest: BTreeMap<(NodeId, u64), u64>,
    /// The entry that ended the incarnation, `None` while it runs.  At most one of each node runs.
    pub(super) incarnations: BTreeMap<(NodeId, u64), Option<LogIndex>>,
}

impl Outcomes {
    pub fn new(limits: &Limits) -> Self {
        Outcomes {
            limit: limits.outcomes,
            ended_limit: limits.incarnations,
            records: VecDeque::new(),
            dropped: 0,
            numbers: FixedMap::default(),
            highest_dropped: BTreeMap::new(),
            highest: BTreeMap::new(),
            incarnations: BTreeMap::new(),
        }
    }

    pub fn get(&self, txn: &TxnId) -> Outcome {
        if let Some(number) = self.numbers.get(txn) {
            let record = &self.records[(number - self.dropped) as usize];
            return Outcome::Decided { at: record.at, verdict: record.verdict };
        }
        let who = (txn.node, txn.incarnation);
        match self.highest_dropped.get(&who) {
            Some(highest) if txn.sequence <= *highest => return Outcome::OlderThanKept,
            _ => {}
        }
        match self.incarnations.get(&who) {
            Some(Some(ended)) => Outcome::Decided { at: *ended, verdict: Verdict::Cancelled },
            Some(None) => Outcome::Unknown,
            // This incarnation is about to start or has been dropped, and nothing tells which.
            None if self.ended(txn.node).count() as u64 >= self.ended_limit => Outcome::OlderThanKept,
            None => Outcome::Unknown,
        }
    }

    /// Whether this may be the id of a transaction: its PostgreSQL has used an id not far below it.
    ///
    /// To settle made-up ids would harm those who get them later, and once their records are dropped, every
    /// transaction of the same PostgreSQL with a lower one.
    pub fn may_be_given_out(&self, txn: &TxnId) -> bool {
        let who = (txn.node, txn.incarnation);
        let highest = |of: &BTreeMap<(NodeId, u64), u64>| of.get(&who).copied().unwrap_or(0);
        let used = highest(&self.highest).max(highest(&self.highest_dropped));
        txn.sequence <= used.saturating_add(UNUSED_MAX)
    }

    fn ended(&self, node: NodeId) -> impl Iterator<Item = (LogIndex, u64)> + '_ {
        let its = self.incarnations.range((node, 0)..=(node, u64::MAX));
        its.filter_map(|((_, incarnation), ended)| Some(((*ended)?, *incarnation)))
    }

    /// The incarnation that the PostgreSQL of `node` runs as, according to the log; 0 if the log does not say.
    pub fn running(&self, node: NodeId) -> u64 {
        let mut its = self.incarnations.range((node, 0)..=(node, u64::MAX));
        its.find(|(_, ended)| ended.is_none()).map_or(0, |((_, incarnation), _)| *incarnation)
    }

    /// Incarnation `now` follows `before`.  An entry that a later start has overtaken names another `before` and
    /// changes nothing.
    pub fn begin(&mut self, node: NodeId, now: u64, before: u64, at: LogIndex) {
        if self.incarnations.contains_key(&(node, now)) || self.running(node) != before {
            return;
        }
        if before != 0 {
            self.incarnations.insert((node, before), Some(at));
        }
        self.incarnations.insert((node, now), None);
        while self.ended(node).count() as u64 > self.ended_limit {
            let Some((_, oldest)) = self.ended(node).min() else { break };
            self.incarnations.remove(&(node, oldest));
            self.highest.remove(&(node, oldest));
        }
    }

    /// `node` is not a member any more: nothing that it proposes commits after `at`.
    pub fn end(&mut self, node: NodeId, at: LogIndex) {
        let running = self.running(node);
        if running != 0 {
            self.incarnations.insert((node, running), Some(at));
        }
    }

    pub fn put(&mut self, txn: TxnId, at: LogIndex, verdict: Verdict) {
        // One that was settled need not have been given out.
        if verdict != Verdict::Cancelled {
            let highest = self.highest.entry((txn.node, txn.incarnation)).or_default();
            *highest = txn.sequence.max(*highest);
        }
        self.numbers.insert(txn, self.dropped + self.records.len() as u64);
        self.records.push_back(Record { txn, at, verdict });
        while self.records.len() as u64 > self.limit {
            let Some(old) = self.records.pop_front() else { break };
            self.dropped += 1;
            self.numbers.remove(&old.txn);
            let highest = self.highest_dropped.entry((old.txn.node, old.txn.incarnation)).or_default();
            *highest = old.txn.sequence.max(*highest);
        }
    }
}
