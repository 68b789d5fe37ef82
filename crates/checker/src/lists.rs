//! What the lists show by themselves: one order for each key, and values that are lost, doubled, aborted or from
//! nowhere.
//!
//! The order of a key is its longest read.  Every other read must be a prefix of it.

use crate::words::{name, short, values};
use crate::{ClientOutcome, Findings, History, Key, Kind, Level, Op, Time, Txn, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Who appended a value.
#[derive(Clone, Copy)]
pub(crate) struct Writer {
    pub txn: u32,
    /// Which of that transaction's appends to the key, from 0.
    nth: u32,
}

#[derive(Default)]
pub(crate) struct OneList {
    pub writers: BTreeMap<Value, Writer>,
    pub order: Vec<Value>,
    /// The transaction whose read gave the order.
    source: u32,
}

pub(crate) struct Lists {
    pub keys: BTreeMap<Key, OneList>,
    /// For each transaction, whether its appends count: it committed, or somebody saw them.
    pub effective: Vec<bool>,
}

impl Lists {
    /// A list that `reader` read, without the values that nobody but `reader` could see.
    pub fn seen_by<'a>(&self, reader: u32, key: Key, list: &'a [Value]) -> &'a [Value] {
        if self.effective[reader as usize] {
            return list;
        }
        let writers = &self.keys[&key].writers;
        let own = list.iter().rev().take_while(|v| writers.get(v).is_some_and(|w| w.txn == reader)).count();
        &list[..list.len() - own]
    }
}

pub(crate) fn read(history: &History, findings: &mut Findings) -> Lists {
    let mut lists = Lists { keys: BTreeMap::new(), effective: Vec::new() };
    well_formed(history, findings);
    collect_writers(history, &mut lists, findings);
    who_took_effect(history, &mut lists);
    find_orders(history, &mut lists);
    for (number, txn) in history.txns.iter().enumerate() {
        internal(number as u32, txn, findings);
        for (key, list) in reads(txn) {
            judge_read(history, &lists, number as u32, key, list, findings);
        }
    }
    for (key, list) in &lists.keys {
        judge_order(history, *key, list, findings);
    }
    nothing_lost(history, &lists, findings);
    lists
}

pub(crate) fn reads(txn: &Txn) -> impl Iterator<Item = (Key, &[Value])> {
    txn.ops.iter().filter_map(|op| match op {
        Op::Read { key, list } => Some((*key, list.as_slice())),
        Op::Append { .. } => None,
    })
}

/// When it was known that the transaction had committed; `None` if that was never known.
fn known(txn: &Txn) -> Option<Time> {
    matches!(txn.outcome, ClientOutcome::Committed | ClientOutcome::FoundCommitted).then_some(txn.completed)
}

fn well_formed(history: &History, findings: &mut Findings) {
    let mut last = BTreeMap::new();
    for (number, txn) in history.txns.iter().enumerate() {
        let before = last.insert(txn.process, txn.completed);
        if txn.completed < txn.invoked || before.is_some_and(|b| b > txn.invoked) {
            let text = || format!("{} begins before the one before it in its process is over", name(number as u32));
            findings.add(Kind::Malformed, text);
        }
    }
}

fn collect_writers(history: &History, lists: &mut Lists, findings: &mut Findings) {
    for (number, txn) in history.txns.iter().enumerate() {
        let mut counts = BTreeMap::<Key, u32>::new();
        for op in &txn.ops {
            match op {
                Op::Append { key, value } => {
                    let nth = counts.entry(*key).or_default();
                    let writer = Writer { txn: number as u32, nth: *nth };
                    *nth += 1;
                    let list = lists.keys.entry(*key).or_default();
                    if let Some(other) = list.writers.insert(*value, writer) {
                        let (a, b) = (name(other.txn), name(writer.txn));
                        let text = || format!("{a} and {b} both append {} to list {}", value.0, key.0);
                        findings.add(Kind::Malformed, text);
                    }
                }
                Op::Read { key, .. } => {
                    lists.keys.entry(*key).or_default();
                }
            }
        }
    }
}

fn who_took_effect(history: &History, lists: &mut Lists) {
    lists.effective = history.txns.iter().map(|t| known(t).is_some()).collect();
    for (number, txn) in history.txns.iter().enumerate() {
        for (key, list) in reads(txn) {
            let writers = &lists.keys[&key].writers;
            for writer in list.iter().filter_map(|v| writers.get(v)).filter(|w| w.txn != number as u32) {
                lists.effective[writer.txn as usize] = true;
            }
        }
    }
}

fn find_orders(history: &History, lists: &mut Lists) {
    for (number, txn) in history.txns.iter().enumerate() {
        for (key, list) in reads(txn) {
            let seen = lists.seen_by(number as u32, key, list);
            let known = lists.keys.get_mut(&key).expect("every key has a list");
            if seen.len() > known.order.len() {
                (known.order, known.source) = (seen.to_vec(), number as u32);
            }
        }
    }
}

fn judge_read(history: &History, lists: &Lists, reader: u32, key: Key, list: &[Value], findings: &mut Findings) {
    let known = &lists.keys[&key];
    let who = || name(reader);
    for value in list {
        match known.writers.get(value) {
            None => findings
                .add(Kind::Garbage, || format!("{} read {} in list {}, which nobody appended", who(), value.0, key.0)),
            Some(w) if w.txn != reader && history.txns[w.txn as usize].outcome == ClientOutcome::Aborted => {
                findings.add(Kind::G1a, || {
                    let writer = short(history, w.txn);
                    format!("{} read {} in list {}, appended by {writer}, which aborted", who(), value.0, key.0)
                });
            }
            Some(_) => {}
        }
    }
    if let Some(last) = list.last().and_then(|v| known.writers.get(v)).filter(|w| w.txn != reader) {
        let more = history.txns[last.txn as usize].ops.iter();
        let appended = more.filter(|op| matches!(op, Op::Append { key: k, .. } if *k == key)).count() as u32;
        if last.nth + 1 < appended {
            findings.add(Kind::G1b, || {
                let (value, writer) = (list.last().map_or(0, |v| v.0), short(history, last.txn));
                format!("{} read list {} up to {value}, in the middle of what {writer} appended", who(), key.0)
            });
        }
    }
    let seen = lists.seen_by(reader, key, list);
    if !known.order.starts_with(seen) {
        findings.add(Kind::Incompatible, || {
            let (longest, other) = (values(&known.order), name(known.source));
            format!("list {} was read as {} by {} and as {longest} by {other}", key.0, values(seen), who())
        });
    }
}

fn judge_order(history: &History, key: Key, list: &OneList, findings: &mut Findings) {
    let mut places = BTreeMap::new();
    let mut before: Option<Writer> = None;
    for (place, value) in list.order.iter().enumerate() {
        if let Some(first) = places.insert(*value, place) {
            let reader = name(list.source);
            findings.add(Kind::DuplicateAppend, || {
                format!("{} stands in list {} at places {first} and {place}, read by {reader}", value.0, key.0)
            });
        }
        let Some(writer) = list.writers.get(value) else { continue };
        let follows = before.is_some_and(|b| b.txn == writer.txn && b.nth + 1 == writer.nth);
        if writer.nth > 0 && !follows {
            findings.add(Kind::Incompatible, || {
                let of = short(history, writer.txn);
                format!("{} of {of} stands in list {} apart from what it appended just before", value.0, key.0)
            });
        }
        before = Some(*writer);
    }
    // Walking backwards: the earliest time at which a transaction that comes later in the list was known to have
    // committed.
    let mut earliest: Option<(Time, u32)> = None;
    for writer in list.order.iter().rev().filter_map(|v| list.writers.get(v)) {
        let txn = &history.txns[writer.txn as usize];
        if let Some((_, later)) = earliest.filter(|(time, later)| *time < txn.invoked && *later != writer.txn) {
            findings.add(Kind::WriteOrder, || {
                let (a, b) = (short(history, writer.txn), short(history, later));
                format!("in list {} {a} stands before {b}, which had been acknowledged when it began", key.0)
            });
        }
        earliest = earliest.into_iter().chain(known(txn).map(|time| (time, writer.txn))).min();
    }
}

/// Checks that the lists read at the end contain every append of a committed transaction, in every region.
fn nothing_lost(history: &History, lists: &Lists, findings: &mut Findings) {
    if history.rest.is_empty() {
        return;
    }
    for (key, list) in &lists.keys {
        let seen: BTreeSet<&Value> = list.order.iter().collect();
        for (value, writer) in list.writers.iter().filter(|(v, _)| !seen.contains(v)) {
            if lists.effective[writer.txn as usize] {
                findings.add(Kind::LostAppend, || {
                    format!("{} appended {} to list {}: it is gone", short(history, writer.txn), value.0, key.0)
                });
            }
        }
    }
    for txn in history.rest.iter().map(|number| &history.txns[*number as usize]) {
        for (key, list) in reads(txn) {
            let order = &lists.keys[&key].order;
            if list.len() < order.len() {
                findings.add(Kind::LostAppend, || {
                    let missing = values(&order[list.len()..]);
                    format!("at the end, list {} lacks {missing} in {}; elsewhere they are there", key.0, txn.region)
                });
            }
        }
    }
}

/// Checks that the transaction sees its own appends and, other than under READ COMMITTED, one state of each list.
fn internal(number: u32, txn: &Txn, findings: &mut Findings) {
    // For each list: what it must contain, if it has been read, and what it must end with.
    let mut state = BTreeMap::<Key, (Option<Vec<Value>>, Vec<Value>)>::new();
    for op in &txn.ops {
        match op {
            Op::Append { key, value } => {
                let (whole, own) = state.entry(*key).or_default();
                whole.iter_mut().for_each(|w| w.push(*value));
                own.push(*value);
            }
            Op::Read { key, list } => {
                let (whole, own) = state.entry(*key).or_default();
                let same = whole.as_ref().is_none_or(|w| w == list || txn.level == Level::ReadCommitted);
                if !same || !list.ends_with(own) {
                    findings.add(Kind::Internal, || {
                        let expected = whole.as_ref().map_or(format!("... {}", values(own)), |w| values(w));
                        format!("{} read list {} as {}, expected {expected}", name(number), key.0, values(list))
                    });
                }
                *whole = Some(list.clone());
            }
        }
    }
}
