//! A node's disk: the log as Raft reads it, and what of it is left by the end of the process and by a loss of power.
//!
//! Invariants:
//! - `written` is what a read finds: the system's cache.  It survives the end of the process, but not a loss of
//!   power.
//! - `safe` is what the disk has for certain; `tail` is what was written after that, in order.  A write that could
//!   not be synced stays in the cache, and no later sync writes it unless somebody writes it again.
//! - A loss of power keeps the safe part, and any of the writes of the tail, each of them whole or not at all (records
//!   carry a checksum and a number).  Whoever opens the log drops those behind the first one that is missing, as the
//!   daemon does; how it knows that none of them was promised is tested there, with pages that are lost one by one.
//!   Nothing else is ever lost.
//! - A checkpoint is written whole, or not at all.  While the folder is not synced, a loss of power may bring back
//!   the one before it.  The mark of a log that starts anew is durable at once, because crashes can come at the
//!   stages before and after it.

use crate::rng::{mix, Rng};
use bytes::{Bytes, BytesMut};
use onetrip_core::parts::Spans;
use onetrip_core::replica::Store;
use onetrip_core::router::Log;
use onetrip_core::{checkpoint, Conf, LogIndex, NodeId, Term};
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// How many of the last entries are kept in memory.
const IN_MEMORY: u64 = 8;
/// No more than this is cut at once, as the daemon removes only a few segments.
const CUT_MAX: u64 = 500;

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
    state: WriteState,
}

#[derive(Clone, Copy, PartialEq)]
enum WriteState {
    /// In the cache, to be written by the next sync or before.
    Dirty,
    /// The system could not write it, reported that once, and counts it as written since.
    Dropped,
    OnDisk,
}

/// What ends a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end of the process alone: the cache stays.
    Process,
    Power,
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

/// The checkpoint as it was when a member needed it: it is read beside the replica's work, and then stays in memory
/// for a while.
struct Reading {
    head: checkpoint::Head,
    raw: Bytes,
    /// How often it is asked for in vain, and how often it is given after that.
    vain: u64,
    given: u64,
}

pub struct SimLog {
    conf: Conf,
    written: Image,
    /// Of what is written.
    spans: Spans,
    safe: Image,
    tail: VecDeque<Write>,
    /// How many writes there have been, with those of the tail.
    writes: u64,
    checkpoint: Option<Bytes>,
    /// What a loss of power may bring back: the new file has its name, but the folder is not synced yet.
    older: Option<Option<Bytes>>,
    /// The incarnations that PostgreSQL has run as and that the log may not contain yet.
    pub starts: Vec<u64>,
    /// There may be promises that read leases rest on.
    pub promised: bool,
    /// A member needs a newer checkpoint than there is.
    wants_checkpoint: Cell<bool>,
    reading: RefCell<Option<Reading>>,
    reads: Cell<u64>,
    /// What Raft wanted to send and is to ask for again; and the first indexes that it will be given then.
    put_off: RefCell<Vec<(u64, GetEntriesContext)>>,
    there: RefCell<Vec<u64>>,
    questions: Cell<u64>,
    wants_reading: Cell<bool>,
    /// After how many more steps the node dies that opens this, and whether it has.
    pub dies_in: Option<u32>,
    pub has_died: bool,
    /// Injected: nobody is given a snapshot.
    pub gives_no_snapshots: bool,
    /// Injected: the log is cut between parts and the entry that names them.
    pub cuts_between_parts: bool,
    /// Injected: an installed checkpoint is marked before the log has been emptied for it.
    pub marks_first: bool,
}

impl SimLog {
    /// `checkpoint`: what a joining node was given.
    pub fn new(checkpoint: Option<Bytes>) -> SimLog {
        let empty = Image { before: (0, 0), entries: VecDeque::new(), hard_state: HardState::default() };
        SimLog::from(empty, checkpoint)
    }

    fn from(image: Image, checkpoint: Option<Bytes>) -> SimLog {
        let mut spans = Spans::default();
        image.entries.iter().for_each(|e| spans.append(LogIndex(e.index), e.get_entry_type(), &e.data));
        SimLog {
            conf: Conf::default(),
            written: image.clone(),
            spans,
            safe: image,
            tail: VecDeque::new(),
            writes: 0,
            checkpoint,
            older: None,
            starts: Vec::new(),
            promised: false,
            wants_checkpoint: Cell::new(false),
            reading: RefCell::default(),
            reads: Cell::new(0),
            put_off: RefCell::default(),
            there: RefCell::default(),
            questions: Cell::new(0),
            wants_reading: Cell::new(false),
            dies_in: None,
            has_died: false,
            gives_no_snapshots: false,
            cuts_between_parts: false,
            marks_first: false,
        }
    }

    /// Between two steps of a start.
    pub fn step(&mut self) -> onetrip_core::Result<()> {
        self.has_died |= self.dies_in == Some(0);
        self.dies_in = self.dies_in.map(|left| left.saturating_sub(1));
        let why = || onetrip_core::Error::Corrupted { what: "start", why: "the node has died".into() };
        if self.has_died {
            Err(why())
        } else {
            Ok(())
        }
    }

    pub fn checkpoint(&self) -> Option<&Bytes> {
        self.checkpoint.as_ref()
    }

    /// Durable on return; one that is older than what is there changes nothing.
    pub fn save_checkpoint(&mut self, raw: Bytes) {
        self.rename_checkpoint(raw);
        self.sync_folder();
    }

    /// The file is synced and has its name now.  The name is durable after [`SimLog::sync_folder`].
    pub fn rename_checkpoint(&mut self, raw: Bytes) {
        let index = |raw: &Bytes| checkpoint::peek(raw).expect("written by a node").index;
        if self.checkpoint.as_ref().is_none_or(|old| index(old) <= index(&raw)) {
            let before = self.checkpoint.replace(raw);
            self.older.get_or_insert(before);
        }
    }

    pub fn sync_folder(&mut self) {
        self.older = None;
    }

    /// The log goes on after `index`, empty.  This is durable at once.
    pub fn start_after(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) {
        let mut hard_state = hard_state.unwrap_or(&self.written.hard_state).clone();
        hard_state.term = hard_state.term.max(term.0);
        hard_state.commit = hard_state.commit.max(index.0);
        self.written = Image { before: (index.0, term.0), entries: VecDeque::new(), hard_state };
        self.safe = self.written.clone();
        self.spans.clear();
        self.tail.clear();
    }

    pub fn write(&mut self, entries: &[Entry], hard_state: Option<&HardState>) {
        let write = Write { entries: entries.to_vec(), hard_state: hard_state.cloned(), state: WriteState::Dirty };
        self.read_as_written(&write);
        self.tail.push_back(write);
        self.writes += 1;
    }

    fn read_as_written(&mut self, write: &Write) {
        self.written.write(write);
        write.entries.iter().for_each(|e| self.spans.append(LogIndex(e.index), e.get_entry_type(), &e.data));
    }

    /// The number of the last write, for [`SimLog::sync_to`].
    pub fn last_write(&self) -> u64 {
        self.writes
    }

    pub fn sync(&mut self) {
        self.sync_to(self.writes);
    }

    /// A sync that began right after that write.
    pub fn sync_to(&mut self, write: u64) {
        let of_tail = (write + self.tail.len() as u64).saturating_sub(self.writes) as usize;
        let dirty = self.tail.iter_mut().take(of_tail).filter(|w| w.state == WriteState::Dirty);
        dirty.for_each(|w| w.state = WriteState::OnDisk);
        while self.tail.front().is_some_and(|w| w.state == WriteState::OnDisk) {
            let write = self.tail.pop_front().expect("just seen");
            self.safe.write(&write);
        }
    }

    /// A sync that fails: some of the data may have been written, and the system counts the rest as written from now
    /// on.
    pub fn fail_sync(&mut self, rng: &mut Rng) {
        for write in self.tail.iter_mut().filter(|w| w.state == WriteState::Dirty) {
            write.state = if rng.one_in(2) { WriteState::OnDisk } else { WriteState::Dropped };
        }
    }

    /// Writes everything again that a read finds and that may not be on disk.
    pub fn rewrite(&mut self) {
        self.tail.iter_mut().for_each(|w| w.state = WriteState::Dirty);
    }

    /// What the next life finds.
    pub fn after(&self, end: End, rng: &mut Rng) -> SimLog {
        let mut left = SimLog {
            starts: self.starts.clone(),
            promised: self.promised,
            ..SimLog::from(self.safe.clone(), self.checkpoint.clone())
        };
        match (&self.older, end) {
            (Some(older), End::Power) if rng.one_in(2) => left.checkpoint = older.clone(),
            (older, End::Process) => left.older = older.clone(),
            _ => {}
        }
        for write in &self.tail {
            // The system may write data at any time.
            let is_on_disk = match write.state {
                WriteState::OnDisk => true,
                WriteState::Dropped => false,
                WriteState::Dirty => rng.one_in(2),
            };
            if end == End::Process {
                let state = if is_on_disk { WriteState::OnDisk } else { write.state };
                left.read_as_written(write);
                left.tail.push_back(Write { state, ..write.clone() });
                left.writes += 1;
            } else if is_on_disk {
                left.safe.write(write);
                left.read_as_written(write);
            } else {
                break;
            }
        }
        left
    }

    /// Whether something is to be read beside the replica's work, since the last call.
    pub fn wants_reading(&self) -> bool {
        self.wants_reading.take()
    }

    /// Old entries are mostly not in memory; new ones are.
    fn puts_off(&self, low: u64, context: GetEntriesContext) -> bool {
        let mut there = self.there.borrow_mut();
        if let Some(at) = there.iter().position(|at| *at == low) {
            there.swap_remove(at);
            return false;
        }
        self.questions.set(self.questions.get() + 1);
        let is_old = low + IN_MEMORY <= self.written.last();
        if !context.can_async() || !is_old || mix(low ^ self.questions.get() << 32) % 4 == 0 {
            return false;
        }
        self.put_off.borrow_mut().push((low, context));
        self.wants_reading.set(true);
        true
    }

    pub fn first_index(&self) -> LogIndex {
        LogIndex(self.written.before.0 + 1)
    }

    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.written.last())
    }

    /// How many entries there are that need not be, if those above `upto` are needed.
    pub fn needless(&self, upto: LogIndex) -> u64 {
        self.spans.cut_to(upto).0.saturating_sub(self.written.before.0)
    }

    /// The term and the vote that are on disk for certain.
    pub fn promised(&self) -> (u64, u64) {
        (self.safe.hard_state.term, self.safe.hard_state.vote)
    }

    /// The same as a read finds them.
    pub fn written_promise(&self) -> (u64, u64) {
        (self.written.hard_state.term, self.written.hard_state.vote)
    }

    /// How many changes of the configuration this log has that a restart would not know to be committed.
    pub fn changes_in_doubt(&self) -> usize {
        let Image { entries, hard_state, .. } = &self.written;
        let in_doubt = entries.iter().rev().take_while(|entry| entry.index > hard_state.commit);
        in_doubt.filter(|entry| entry.get_entry_type() != EntryType::EntryNormal).count()
    }

    pub fn entry(&self, index: LogIndex) -> Option<&Entry> {
        let place = index.0.checked_sub(self.written.before.0 + 1)?;
        self.written.entries.get(place as usize)
    }
}

impl Store for SimLog {
    fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.written.term(index.0).map(Term)
    }

    fn stand_on(&mut self, index: LogIndex, conf: &Conf) {
        self.conf = conf.clone();
        self.written.hard_state.commit = self.written.hard_state.commit.max(index.0);
    }

    fn append(&mut self, entries: &[Entry], hard_state: Option<&HardState>) -> onetrip_core::Result<()> {
        self.write(entries, hard_state);
        self.sync();
        Ok(())
    }

    fn install_checkpoint(&mut self, _index: LogIndex, raw: &Bytes) -> onetrip_core::Result<()> {
        self.save_checkpoint(checkpoint::installed(raw));
        Ok(())
    }

    fn restart(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) -> onetrip_core::Result<()> {
        if self.marks_first {
            self.mark_log_in_order()?;
        }
        self.start_after(index, term, hard_state);
        self.step()
    }

    fn mark_log_in_order(&mut self) -> onetrip_core::Result<()> {
        if let Some(raw) = &self.checkpoint {
            let mut raw = BytesMut::from(&raw[..]);
            raw[checkpoint::ORIGIN_AT..][..2].copy_from_slice(&checkpoint::in_order_origin());
            self.checkpoint = Some(raw.freeze());
        }
        self.step()
    }

    fn checkpointed(&mut self, _index: LogIndex, _conf: &Conf) {}

    fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.take()
    }

    fn take_fetched(&mut self) -> Vec<GetEntriesContext> {
        let mut there = self.there.borrow_mut();
        there.clear();
        let questions = std::mem::take(&mut *self.put_off.borrow_mut());
        questions.into_iter().map(|(low, question)| (there.push(low), question).1).collect()
    }

    fn cut(&mut self, upto: LogIndex) -> onetrip_core::Result<()> {
        let upto = if self.cuts_between_parts { upto } else { self.spans.cut_to(upto) };
        let upto = upto.0.min(self.safe.last()).min(self.written.before.0 + CUT_MAX);
        // From both, since segments that are removed are gone for both.
        self.safe.cut(upto);
        self.written.cut(upto);
        self.spans.cut(LogIndex(self.written.before.0));
        Ok(())
    }

    /// In entries.
    fn bytes(&self) -> u64 {
        self.written.entries.len() as u64
    }

    fn index_leaving(&self, entries: u64) -> LogIndex {
        LogIndex(self.written.last() - entries.min(self.bytes()))
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
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let log = &self.written;
        if low <= log.before.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(high <= log.last() + 1, "entries up to {high} asked for, the log ends at {}", log.last());
        if self.puts_off(low, context) {
            return Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable));
        }
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

    /// As in the daemon: the last checkpoint, if it has what `to` lacks and knows `to` as a member, once it has been
    /// read.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let unavailable = || raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        let serves = |head: &checkpoint::Head| {
            head.index.0 >= request_index.max(self.written.before.0) && head.conf.contains(NodeId(to as u32))
        };
        let known = self.checkpoint.as_ref().filter(|_| !self.gives_no_snapshots);
        let known = known.map(|raw| (checkpoint::peek(raw).expect("written by a node"), raw));
        let Some((newest, raw)) = known.filter(|(head, _)| serves(head)) else {
            self.wants_checkpoint.set(true);
            return Err(unavailable());
        };
        let mut reading = self.reading.borrow_mut();
        match reading.as_mut().filter(|r| r.vain > 0 || r.given > 0 && serves(&r.head)) {
            Some(reading) if reading.vain > 0 => {
                reading.vain -= 1;
                Err(unavailable())
            }
            Some(reading) => {
                reading.given -= 1;
                let mut snapshot = Snapshot { data: reading.raw.clone(), ..Default::default() };
                let metadata = snapshot.mut_metadata();
                (metadata.index, metadata.term) = (reading.head.index.0, reading.head.term.0);
                metadata.set_conf_state(ConfState::from(&reading.head.conf));
                Ok(snapshot)
            }
            None => {
                self.reads.set(self.reads.get() + 1);
                let draw = mix(newest.index.0 ^ self.reads.get() << 32 ^ to << 48);
                let vain = [0, 0, 1, 4, 30][draw as usize % 5];
                *reading = Some(Reading { head: newest, raw: raw.clone(), vain, given: 1 + (draw >> 32) % 4 });
                Err(unavailable())
            }
        }
    }
}

impl Log for SimLog {
    type Error = onetrip_core::Error;
    fn readable_from(&self, committed: impl Fn(LogIndex) -> bool) -> LogIndex {
        match self.cuts_between_parts {
            true => self.first_index(),
            false => self.spans.readable_from(self.first_index(), committed),
        }
    }
    fn last_index(&self) -> LogIndex {
        self.last_index()
    }
    fn read(&self, at: LogIndex) -> onetrip_core::Result<Bytes> {
        let why = || format!("entry {at} is still to be fed and no longer there");
        self.entry(at).map(|e| e.data.clone()).ok_or_else(|| onetrip_core::Error::Corrupted { what: "log", why: why() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::Options;
    use onetrip_core::Checkpoint;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, ..Default::default() }
    }

    fn lasts(log: &SimLog, end: End) -> Vec<(u64, u64)> {
        let (mut seen, mut rng) = (std::collections::BTreeSet::new(), Rng::new(1));
        for _ in 0..100 {
            let after = log.after(end, &mut rng);
            seen.insert((after.last_index().0, after.term(2).unwrap()));
        }
        seen.into_iter().collect()
    }

    fn with_a_tail() -> SimLog {
        let mut log = SimLog::new(None);
        log.write(&[entry(1, 1), entry(2, 1)], None);
        log.sync();
        log.write(&[entry(2, 2)], None);
        log.write(&[entry(3, 2)], None);
        log
    }

    #[test]
    fn the_loss_of_power_takes_only_what_was_not_synced_and_the_end_of_the_process_nothing() {
        let log = with_a_tail();
        assert_eq!(lasts(&log, End::Power), [(2, 1), (2, 2), (3, 2)]);
        assert_eq!(lasts(&log, End::Process), [(3, 2)]);
    }

    /// A snapshot is never there at once.  It comes in the end, and may then be older than the newest checkpoint.
    #[test]
    fn a_snapshot_takes_its_time() {
        let (mut log, members) = (SimLog::new(None), Options::draw(1, None).members());
        let (mut asked, mut older) = (Vec::new(), 0);
        for index in 1..=200 {
            let mut state = Checkpoint::bootstrap(members.clone(), Options::draw(1, None).limits);
            (1..=index).for_each(|at| state.certifier.skip(LogIndex(at)).unwrap());
            log.save_checkpoint(state.encode());
            let given = (1..100).find_map(|n| log.snapshot(0, 2).ok().map(|snapshot| (n, snapshot))).unwrap();
            older += u32::from(given.1.get_metadata().index < index);
            asked.push(given.0);
        }
        assert!(asked[0] > 1 && asked.contains(&1) && asked.contains(&2) && asked.contains(&32), "{asked:?}");
        assert!(older > 20 && older < 180, "{older}");
    }

    #[test]
    fn a_sync_after_one_that_failed_proves_nothing() {
        let mut log = with_a_tail();
        log.tail.iter_mut().for_each(|w| w.state = WriteState::Dropped);
        log.write(&[entry(4, 2)], None);
        log.sync();
        assert_eq!((lasts(&log, End::Process), lasts(&log, End::Power)), (vec![(4, 2)], vec![(2, 1)]));
        log.rewrite();
        log.sync();
        assert_eq!(lasts(&log, End::Power), [(4, 2)]);
    }
}
