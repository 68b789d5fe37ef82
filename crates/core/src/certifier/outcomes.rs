//! What became of each transaction, for the last so many of them.
//!
//! Dropped transactions leave, for each PostgreSQL that ever ran, the highest sequence dropped: whoever asks for one
//! at or below it hears "older than kept" and never "not in the log".
//!
//! Of each node it is known as which incarnation its PostgreSQL runs.  What an earlier one had not brought into the log
//! by the entry that says so is aborted by that entry, without a record of its own.  So many are known of each node: one
//! whose PostgreSQL crashes over and over costs no other node's clients their answers, and its own then hear "older than kept".

use super::fixed_map::FixedMap;
use super::{Limits, Verdict};
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
    ended_limit: u64,
    pub(super) records: VecDeque<Record>,
    /// How many records have been dropped, ever; a record's number minus this is its place in `records`.
    dropped: u64,
    numbers: FixedMap<TxnId, u64>,
    pub(super) highest_dropped: BTreeMap<(NodeId, u64), u64>,
    /// The entry that ended it, `None` while it runs: at most one of each node.
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
            // It is about to start, or was dropped: nothing tells which.
            None if self.ended(txn.node).count() as u64 >= self.ended_limit => Outcome::OlderThanKept,
            None => Outcome::Unknown,
        }
    }

    fn ended(&self, node: NodeId) -> impl Iterator<Item = (LogIndex, u64)> + '_ {
        let its = self.incarnations.range((node, 0)..=(node, u64::MAX));
        its.filter_map(|((_, incarnation), ended)| Some(((*ended)?, *incarnation)))
    }

    /// As what the PostgreSQL of `node` runs, as far as the log says; 0 if it says nothing.
    pub fn running(&self, node: NodeId) -> u64 {
        let mut its = self.incarnations.range((node, 0)..=(node, u64::MAX));
        its.find(|(_, ended)| ended.is_none()).map_or(0, |((_, incarnation), _)| *incarnation)
    }

    /// `now` follows `before`.  An entry that was overtaken by a later start names another `before` and changes nothing.
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
        }
    }

    /// Nothing of `node` commits after `at`: it is no member any more.
    pub fn end(&mut self, node: NodeId, at: LogIndex) {
        let running = self.running(node);
        if running != 0 {
            self.incarnations.insert((node, running), Some(at));
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
