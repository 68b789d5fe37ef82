//! What became of each transaction, for the last so many of them.
//!
//! Dropped transactions leave, for each PostgreSQL that ever ran, the highest sequence dropped: whoever asks for one
//! at or below it hears "older than kept" and never "not in the log".

use super::fixed_map::FixedMap;
use super::Verdict;
use crate::ids::{LogIndex, NodeId, TxnId};
use std::collections::{BTreeMap, VecDeque};

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
    pub(super) records: VecDeque<Record>,
    /// How many records have been dropped, ever; a record's number minus this is its place in `records`.
    dropped: u64,
    numbers: FixedMap<TxnId, u64>,
    pub(super) highest_dropped: BTreeMap<(NodeId, u64), u64>,
}

impl Outcomes {
    pub fn new(limit: u64) -> Self {
        Outcomes {
            limit,
            records: VecDeque::new(),
            dropped: 0,
            numbers: FixedMap::default(),
            highest_dropped: BTreeMap::new(),
        }
    }

    pub fn get(&self, txn: &TxnId) -> Outcome {
        if let Some(number) = self.numbers.get(txn) {
            let record = &self.records[(number - self.dropped) as usize];
            return Outcome::Decided { at: record.at, verdict: record.verdict };
        }
        match self.highest_dropped.get(&(txn.node, txn.incarnation)) {
            Some(highest) if txn.sequence <= *highest => Outcome::OlderThanKept,
            _ => Outcome::Unknown,
        }
    }

    pub fn put(&mut self, txn: TxnId, at: LogIndex, verdict: Verdict) {
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
