//! A node's disk: the log as raft reads it, and what of it a crash leaves.
//!
//! Invariants:
//! - `entries` and `hard_state` are what was written; `safe_entries` and `safe_hard_state` what was synced.
//! - A crash keeps the synced part and a prefix of the writes after it, each write whole or not at all (records carry a
//!   checksum).  Nothing else is ever lost.

use crate::rng::Rng;
use bytes::Bytes;
use onetrip_core::{Conf, LogIndex};
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::collections::VecDeque;

#[derive(Clone)]
struct Image {
    /// Index and term of the entry before the first one here.
    before: (u64, u64),
    entries: VecDeque<Entry>,
    hard_state: HardState,
}

#[derive(Clone)]
struct Write {
    entries: Vec<Entry>,
    hard_state: Option<HardState>,
}

impl Image {
    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    fn write(&mut self, write: &Write) {
        if let Some(hs) = &write.hard_state {
            self.hard_state = hs.clone();
        }
        for entry in &write.entries {
            assert!(
                entry.index > self.before.0 && entry.index <= self.last() + 1,
                "{} after {}",
                entry.index,
                self.last()
            );
            self.entries.truncate((entry.index - self.before.0 - 1) as usize);
            self.entries.push_back(entry.clone());
        }
    }

    fn term(&self, index: u64) -> Option<u64> {
        if index == self.before.0 {
            return Some(self.before.1);
        }
        self.entries.get(index.checked_sub(self.before.0 + 1)? as usize).map(|e| e.term)
    }

    fn cut(&mut self, upto: u64) {
        let upto = upto.min(self.last());
        if upto > self.before.0 {
            let term = self.term(upto).expect("it is not above the last");
            self.entries.drain(..(upto - self.before.0) as usize);
            self.before = (upto, term);
        }
    }
}

pub struct SimLog {
    conf: Conf,
    written: Image,
    safe: Image,
    unsynced: Vec<Write>,
    /// Something was lost in the middle: what is written after it will not be found again.
    has_hole: bool,
}

impl SimLog {
    pub fn new(conf: Conf) -> SimLog {
        let empty = Image { before: (0, 0), entries: VecDeque::new(), hard_state: HardState::default() };
        SimLog { conf, written: empty.clone(), safe: empty, unsynced: Vec::new(), has_hole: false }
    }

    /// The Raft configuration at the checkpoint from which a life goes on.
    pub fn stand_on(&mut self, conf: Conf) {
        self.conf = conf;
    }

    pub fn write(&mut self, entries: &[Entry], hard_state: Option<&HardState>) {
        let write = Write { entries: entries.to_vec(), hard_state: hard_state.cloned() };
        self.written.write(&write);
        self.unsynced.push(write);
    }

    pub fn sync(&mut self) {
        for write in self.unsynced.drain(..) {
            if !self.has_hole {
                self.safe.write(&write);
            }
        }
    }

    /// A failed fsync that is passed over: the system drops what it could not write and says nothing the next time.
    pub fn drop_unsynced(&mut self) {
        self.has_hole |= !self.unsynced.is_empty();
        self.unsynced.clear();
    }

    /// What the next life finds.
    pub fn after_crash(&self, rng: &mut Rng) -> SimLog {
        let mut safe = self.safe.clone();
        let findable = if self.has_hole { 0 } else { self.unsynced.len() };
        let kept = rng.below(findable as u64 + 1) as usize;
        for write in &self.unsynced[..kept] {
            safe.write(write);
        }
        SimLog { conf: self.conf.clone(), written: safe.clone(), safe, unsynced: Vec::new(), has_hole: false }
    }

    pub fn first_index(&self) -> LogIndex {
        LogIndex(self.written.before.0 + 1)
    }

    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.written.last())
    }

    pub fn data(&self, index: LogIndex) -> Option<Bytes> {
        let place = index.0.checked_sub(self.written.before.0 + 1)?;
        self.written.entries.get(place as usize).map(|e| e.data.clone())
    }

    pub fn cut(&mut self, upto: LogIndex) {
        // Both, since the segments that go are gone for either.
        let upto = upto.0.min(self.safe.last());
        self.safe.cut(upto);
        self.written.cut(upto);
    }

    pub fn raise_commit(&mut self, index: LogIndex) {
        self.written.hard_state.commit = self.written.hard_state.commit.max(index.0);
    }
}

impl Storage for SimLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let conf = ConfState::from(&self.conf);
        Ok(RaftState::new(self.written.hard_state.clone(), conf))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let log = &self.written;
        if low <= log.before.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(high <= log.last() + 1, "entries up to {high} asked for, the log ends at {}", log.last());
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let (mut entries, mut size) = (Vec::new(), 0);
        for index in low..high {
            let entry = &log.entries[(index - log.before.0 - 1) as usize];
            size += entry.data.len() as u64 + 24;
            if size > max_size && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.written.before.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.written.term(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.written.before.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.written.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, ..Default::default() }
    }

    #[test]
    fn a_crash_takes_only_what_was_not_synced() {
        let mut log = SimLog::new(Conf::default());
        log.write(&[entry(1, 1), entry(2, 1)], None);
        log.sync();
        log.write(&[entry(2, 2)], None);
        log.write(&[entry(3, 2)], None);
        let mut seen = std::collections::BTreeSet::new();
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let after = log.after_crash(&mut rng);
            seen.insert((after.last_index().0, after.term(2).unwrap()));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(2, 1), (2, 2), (3, 2)]);
    }
}
