//! The rows of one PostgreSQL: each is a list to which every writer appends a value of its own.
//!
//! A row keeps the log index of each append, so what a snapshot sees is a prefix of it.  For the checker of
//! histories, a long row is several short lists, each of which is full before the next one begins, because a history
//! contains every list that was read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onetrip_checker::{Key, Op, Value};
use onetrip_core::{LockMode, LogIndex};
use std::collections::BTreeMap;

/// How many values one list of the checker contains.
const LIST_MAX: usize = 16;

/// A changed row as it travels: how many values it has now, and the last one.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub hash: u64,
    pub mode: LockMode,
    pub count: u64,
    pub value: Value,
}

pub fn encode(rows: &[Row]) -> Bytes {
    let mut out = BytesMut::with_capacity(rows.len() * 25);
    for row in rows {
        out.put_u64_le(row.hash);
        out.put_u8(row.mode as u8);
        out.put_u64_le(row.count);
        out.put_u64_le(row.value.0);
    }
    out.freeze()
}

pub fn decode(mut raw: Bytes) -> Vec<Row> {
    let mut rows = Vec::with_capacity(raw.len() / 25);
    while raw.len() >= 25 {
        let (hash, mode) = (raw.get_u64_le(), LockMode::from_u8(raw.get_u8()).expect("written by `encode`"));
        rows.push(Row { hash, mode, count: raw.get_u64_le(), value: Value(raw.get_u64_le()) });
    }
    rows
}

#[derive(Clone, Default)]
pub struct Rows(BTreeMap<u64, Vec<(LogIndex, Value)>>);

impl Rows {
    /// The new row replaces the old one, whatever that was, as an UPDATE does.
    pub fn write(&mut self, at: LogIndex, rows: &[Row]) {
        for row in rows {
            let values = self.0.entry(row.hash).or_default();
            values.truncate((row.count - 1) as usize);
            values.push((at, row.value));
        }
    }

    /// Forgets everything after `at`.
    pub fn back_to(&mut self, at: LogIndex) {
        self.0.values_mut().for_each(|values| values.truncate(values.partition_point(|(i, _)| *i <= at)));
    }

    pub fn count(&self, hash: u64) -> u64 {
        self.0.get(&hash).map_or(0, |values| values.len() as u64)
    }

    pub fn last_change(&self, hash: u64) -> LogIndex {
        self.0.get(&hash).and_then(|values| values.last()).map_or(LogIndex::ZERO, |(at, _)| *at)
    }

    /// What a snapshot at `at` reads of a row, for the checker: the list that is being filled, and one full list
    /// before it.
    pub fn read(&self, hash: u64, at: LogIndex, ops: &mut Vec<Op>) {
        let values = self.0.get(&hash).map_or(&[][..], Vec::as_slice);
        let seen = &values[..values.partition_point(|(i, _)| *i <= at)];
        let from = seen.len() - seen.len() % LIST_MAX;
        let list = |part: &[(LogIndex, Value)]| part.iter().map(|(_, v)| *v).collect();
        if from == seen.len() && from > 0 {
            let full = from - LIST_MAX;
            ops.push(Op::Read { key: key(hash, full), list: list(&seen[full..]) });
        }
        ops.push(Op::Read { key: key(hash, from), list: list(&seen[from..]) });
    }

    /// The append that adds a value to a row of `count` values.
    pub fn append(hash: u64, count: u64, value: Value) -> Op {
        Op::Append { key: key(hash, count as usize), value }
    }

    /// All rows, as the checker's lists.
    pub fn lists(&self) -> BTreeMap<Key, Vec<Value>> {
        let mut lists = BTreeMap::new();
        for (hash, values) in &self.0 {
            for (part, values) in values.chunks(LIST_MAX).enumerate() {
                lists.insert(key(*hash, part * LIST_MAX), values.iter().map(|(_, v)| *v).collect());
            }
        }
        lists
    }
}

fn key(hash: u64, place: usize) -> Key {
    Key(hash * 1_000 + (place / LIST_MAX) as u64)
}
