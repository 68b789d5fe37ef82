//! The log as Raft reads it.

use super::{BacklogReader, CheckpointFile, RaftLog, SnapshotReader};
use crate::disk::snapshot::Snapshot as Answer;
use crate::error::{Error, Result};
use bytes::Bytes;
use onetrip_core::replica::Store;
use onetrip_core::{Conf, LogIndex, NodeId, Term};
use raft::eraftpb::{ConfState, Entry as RaftEntry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

impl onetrip_core::router::Log for RaftLog {
    type Error = Error;
    fn readable_from(&self, committed: impl Fn(LogIndex) -> bool) -> LogIndex {
        self.spans.readable_from(self.first_index(), committed)
    }
    fn last_index(&self) -> LogIndex {
        self.last_index()
    }
    fn read(&self, at: LogIndex) -> Result<Bytes> {
        self.read(at)
    }
}

impl Store for RaftLog {
    fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.term_at(index)
    }

    fn stand_on(&mut self, index: LogIndex, conf: &Conf) {
        self.raise_commit(index);
        self.conf = conf.clone();
        self.checkpoint = Some((index, conf.clone()));
    }

    fn append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>) -> Result<()> {
        self.append(entries, hard_state, true)
    }

    fn install_checkpoint(&mut self, index: LogIndex, raw: &Bytes) -> Result<()> {
        self.file()?.install(index, raw)
    }

    fn restart(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) -> Result<()> {
        self.restart(index, term, hard_state)
    }

    fn mark_log_in_order(&mut self) -> Result<()> {
        self.file()?.mark_log_in_order()
    }

    fn checkpointed(&mut self, index: LogIndex, conf: &Conf) {
        if self.checkpoint.as_ref().is_some_and(|(last, _)| index >= *last) {
            self.checkpoint = Some((index, conf.clone()));
        }
    }

    fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.take()
    }

    fn take_fetched(&mut self) -> Vec<GetEntriesContext> {
        self.backlog.as_ref().map(BacklogReader::take_fetched).unwrap_or_default()
    }

    fn cut(&mut self, upto: LogIndex) -> Result<()> {
        self.cut(upto)
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn index_leaving(&self, bytes: u64) -> LogIndex {
        self.index_leaving(bytes)
    }
}

impl RaftLog {
    fn file(&self) -> Result<&CheckpointFile> {
        let snapshots = self.snapshots.as_ref().map(SnapshotReader::file);
        snapshots.ok_or_else(|| Error::Internal("a log that is only read has no checkpoint".into()))
    }
}

/// Ranges are half-open; answers below the first entry are `Compacted`.
impl Storage for RaftLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), ConfState::from(&self.conf)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        let before = self.before_first();
        if low <= before {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "entries up to {high} asked for, the log ends at {}", self.last());
        let (max_size, can_wait) = (max_size.into().unwrap_or(u64::MAX), context.can_async());
        let mut size = 0;
        // The first entry always fits.
        let fits = |index: &u64| {
            size += u64::from(self.slots[(index - before - 1) as usize].len) + 24;
            size <= max_size || *index == low
        };
        let high = low + (low..high).take_while(fits).count() as u64;
        let read = match &self.backlog {
            Some(backlog) if context.can_async() && low <= self.last() - self.cached.len() as u64 => {
                let uncached = low..high.min(self.last() - self.cached.len() as u64 + 1);
                let places = uncached.map(|index| self.place((index - before - 1) as usize));
                let Some(read) = backlog.get(low, places, context) else {
                    return Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable));
                };
                read.map(|data| (low..).zip(data).map(|(index, data)| self.with(LogIndex(index), data)).collect())
            }
            _ => (low..high).map(|index| self.entry(LogIndex(index))).collect(),
        };
        read.or_else(|e| {
            let why = e.to_string();
            self.unreadable.borrow_mut().get_or_insert(e);
            // raft-rs panics at any other error.
            match (can_wait, self.ends_at_damage) {
                (true, _) => Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable)),
                (false, true) => Ok(Vec::new()),
                (false, false) => Err(raft::Error::Store(StorageError::Other(why.into()))),
            }
        })
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.before_first() {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.term_of(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before_first() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The last checkpoint, if it covers what `to` lacks and contains `to` as a member.  Until there is one that has
    /// been read, the answer is that it is not available yet, and Raft asks again.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let unavailable = raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        let serves = |index: LogIndex, conf: &Conf| {
            index.0 >= request_index.max(self.before_first()) && conf.contains(NodeId(to as u32))
        };
        // The file is read only if it is of use.
        let known = self.checkpoint.as_ref().filter(|(index, conf)| serves(*index, conf));
        let Some(snapshots) = self.snapshots.as_ref().filter(|_| known.is_some()) else {
            self.wants_checkpoint.set(true);
            return Err(unavailable);
        };
        let (head, data) = match snapshots.get(|head| serves(head.index, &head.conf)) {
            Answer::Ready(head, data) => (head, data),
            Answer::NotYet => return Err(unavailable),
            Answer::Useless => {
                self.wants_checkpoint.set(true);
                return Err(unavailable);
            }
        };
        let mut snapshot = Snapshot { data, ..Default::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (head.index.0, head.term.0);
        metadata.set_conf_state(ConfState::from(&head.conf));
        Ok(snapshot)
    }
}
