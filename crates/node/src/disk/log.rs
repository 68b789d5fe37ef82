//! The Raft log: segments on disk; in memory, where all entries are, and the data of the newest ones.
//!
//! Invariants:
//! - Entries in `slots` are contiguous, from the one after `segments[0].previous` to the last.
//! - `cached` contains the data of the newest of them.
//! - Entries are cut only when they are committed (the caller's duty), so nothing below the first is ever overwritten.
//! - All segments but the last are durable to their end.  What an earlier life of the node left in the last one is made
//!   durable before anybody reads it, unless that life closed the log.
//! - No two threads sync a segment at the same time (`syncer`).
//! - A record is written over durable zeros, so that syncing it changes no metadata of the file system.  A record that
//!   is larger than those is synced twice.

use super::backlog::BacklogReader;
use super::life::Life;
use super::segment::{path_of, record_bytes, Previous, Segment, Slot, SlotReader, Tail, FIRST_RECORD_BYTES};
use super::snapshot::SnapshotReader;
use super::spare::Spare;
use super::syncer::Syncer;
use super::{sync_dir, CheckpointFile};
use crate::error::{Error, Result};
use bytes::Bytes;
use onetrip_core::parts::Spans;
use onetrip_core::{Conf, LogIndex, Term};
use raft::eraftpb::{Entry as RaftEntry, HardState};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A record that does not fit into this size begins a new segment; one that is larger has a segment of its own.  A log
/// that must stay small has smaller segments.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENTS_MIN: u64 = 16;
/// When one part in so many of a segment is full, the next one is prepared.
const SPARE_FROM: u64 = 4;
/// Data kept in memory, so that in the common case nothing is read from disk for followers or for PostgreSQL; unless
/// [`RaftLog::set_cache_bytes_max`] says otherwise.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// Data smaller than this are copied into the cache: they are part of the buffer that they came in, with other messages
/// or with nothing, and would keep all of that in memory.
const COPIED_BELOW_BYTES: usize = 64 << 10;
/// Of finished segments, no more than this is removed in one call of [`RaftLog::cut`], but always one of them: removing
/// a file takes the file system the longer the larger it is, and the core thread waits for it.
const CUT_BYTES_MAX: u64 = 2 * SEGMENT_BYTES;
/// Bytes that an entry takes in a record besides its data.
const ENTRY_HEAD_BYTES: u64 = 21;
/// If even fast syncs take longer, they are done beside the core thread; that costs two switches between threads.
const BESIDE_FROM: Duration = Duration::from_micros(200);
/// This file says where the log ended at a clean stop.
pub(crate) const CLOSED_FILE: &str = "closed";

pub struct RaftLog {
    dir: PathBuf,
    /// Raft's configuration at the checkpoint from which this life of the node started.
    conf: Conf,
    /// Reads the checkpoint for members that need entries which are no longer here.
    snapshots: Option<SnapshotReader>,
    /// Reads entries that are not in memory, for members that are behind.  `None`: whoever asks for them reads them.
    backlog: Option<BacklogReader>,
    /// Syncs beside the core thread.  `None`: each append syncs by itself.
    syncer: Option<Syncer>,
    /// How long the disk takes for a sync ([`RaftLog::took`]).
    sync_takes: Duration,
    /// Index and configuration of the last checkpoint.
    checkpoint: Option<(LogIndex, Conf)>,
    /// A member needs a newer checkpoint than there is.
    wants_checkpoint: Cell<bool>,
    hard_state: HardState,
    segments: VecDeque<Segment>,
    slots: VecDeque<Slot>,
    cached: VecDeque<Bytes>,
    cached_bytes: usize,
    cache_bytes_max: usize,
    cut_bytes_max: u64,
    next_record: u64,
    /// All records before this one are known to be durable.
    durable: u64,
    life: Life,
    segment_bytes: u64,
    spare: Spare,
    spans: Spans,
    /// An entry could not be read ([`RaftLog::take_damage`]).  Raft was told that it cannot be read yet; if it cannot
    /// wait for it, it panics.
    unreadable: RefCell<Option<Error>>,
    ends_at_damage: bool,
    /// `Some`: the log is only read, and what follows this entry is not looked at.
    read_to: Option<LogIndex>,
}

impl RaftLog {
    /// Opens or makes the log in `dir`, and verifies every byte of it.
    pub fn open(dir: &Path) -> Result<RaftLog> {
        Self::open_with(dir, SEGMENT_BYTES)
    }

    /// The same for a log that is to be cut when it is larger than `bytes_max`.
    pub fn open_limited(dir: &Path, bytes_max: u64) -> Result<RaftLog> {
        Self::open_with(dir, SEGMENT_BYTES.min(bytes_max / SEGMENTS_MIN))
    }

    pub fn set_cache_bytes_max(&mut self, bytes: usize) {
        self.cache_bytes_max = bytes;
    }

    fn open_with(dir: &Path, segment_bytes: u64) -> Result<RaftLog> {
        std::fs::create_dir_all(dir).map_err(Error::disk(dir, "making the folder"))?;
        sync_dir(dir.parent().unwrap_or(Path::new(".")))?;
        let mut log = RaftLog::empty(dir, segment_bytes);
        log.spare.remove_leftover()?;
        let closed = log.replay()?;
        log.check_closed(closed)?;
        if let Some(last) = log.segments.back().filter(|_| closed.is_none()) {
            last.rewrite()?;
            sync_dir(dir)?;
        }
        if closed.is_some() {
            let file = dir.join(CLOSED_FILE);
            std::fs::remove_file(&file).map_err(Error::disk(&file, "removing the file"))?;
            sync_dir(dir)?;
        }
        log.durable = log.next_record;
        log.life = Life::begin(dir, log.next_record)?;
        if log.segments.is_empty() {
            log.next_segment(Previous::default())?;
        }
        Ok(log)
    }

    /// Opens the log only to read it: the folder stays as it is.  With `upto`, the log may belong to a running node
    /// that has already written that entry; what follows it is not looked at.
    pub fn open_to_read(dir: &Path, upto: Option<LogIndex>) -> Result<RaftLog> {
        loop {
            let oldest = segment_numbers(dir)?.first().copied();
            match Self::open_what_is_there(dir, upto) {
                // That node has cut its log before all of it was open.
                Err(_) if upto.is_some() && segment_numbers(dir)?.first().copied() != oldest => {}
                opened => return opened,
            }
        }
    }

    fn open_what_is_there(dir: &Path, upto: Option<LogIndex>) -> Result<RaftLog> {
        let mut log = RaftLog::empty(dir, SEGMENT_BYTES);
        log.read_to = Some(upto.unwrap_or(LogIndex(u64::MAX)));
        let closed = log.replay()?;
        if upto.is_none() {
            log.check_closed(closed)?;
        }
        Ok(log)
    }

    fn empty(dir: &Path, segment_bytes: u64) -> RaftLog {
        RaftLog {
            dir: dir.to_owned(),
            conf: Conf::default(),
            snapshots: None,
            backlog: None,
            syncer: None,
            sync_takes: Duration::ZERO,
            checkpoint: None,
            wants_checkpoint: Cell::new(false),
            hard_state: HardState::default(),
            segments: VecDeque::new(),
            slots: VecDeque::new(),
            cached: VecDeque::new(),
            cached_bytes: 0,
            cache_bytes_max: CACHE_BYTES_MAX,
            cut_bytes_max: CUT_BYTES_MAX,
            next_record: 0,
            durable: 0,
            life: Life::default(),
            segment_bytes,
            spare: Spare::new(dir),
            spans: Spans::default(),
            unreadable: RefCell::default(),
            ends_at_damage: false,
            read_to: None,
        }
    }

    /// Where the checkpoint is kept.
    pub fn keep_checkpoints_in(&mut self, file: CheckpointFile) {
        self.snapshots = Some(SnapshotReader::new(file));
    }

    /// From now on a thread of its own reads old entries, and Raft does not get them before they have been read.
    /// `tell` is called when some have been: Raft is to ask for them again (`Replica::fetched`).
    pub fn read_backlog_beside(&mut self, tell: impl Fn() + Send + 'static) -> Result<()> {
        self.backlog = Some(BacklogReader::start(tell)?);
        Ok(())
    }

    /// From now on a thread of its own syncs what [`RaftLog::begin_append`] writes, if a sync takes long.  `tell` is
    /// called after each sync of that thread: [`RaftLog::take_synced`] must be called then.
    pub fn sync_beside(&mut self, tell: impl Fn() + Send + 'static) -> Result<()> {
        self.syncer = Some(Syncer::start(tell)?);
        Ok(())
    }

    /// From now on Raft gets nothing in the place of what it cannot wait for and that cannot be read.  For who holds no
    /// election, and calls [`RaftLog::take_damage`] after each read.
    pub fn end_at_damage(&mut self) {
        self.ends_at_damage = true;
    }

    /// An error of a read by Raft, which has not been returned yet.  The node must not go on.
    pub fn take_damage(&mut self) -> Option<Error> {
        self.unreadable.take()
    }

    /// What was written up to this number by [`RaftLog::begin_append`] is durable, if that is news.
    pub fn take_synced(&mut self) -> Result<Option<u64>> {
        let Some(synced) = self.syncer.as_mut().map_or(Ok(None), Syncer::take_synced)? else {
            return Ok(None);
        };
        self.took(synced.took);
        self.durable = self.durable.max(synced.records);
        Ok(Some(synced.number))
    }

    /// Waits until nobody else syncs, so that a sync by this thread hears of every failure.
    fn settle(&self) -> Result<()> {
        self.syncer.as_ref().map_or(Ok(()), Syncer::settle)
    }

    /// Where other processes want the processors too, the same sync often takes several times as long: the thread waits
    /// to go on, and not the disk.  So the fastest of the last syncs says what the disk takes.
    fn took(&mut self, took: Duration) {
        self.sync_takes = took.min((self.sync_takes * 63 + took) / 64);
    }

    /// Forgets all entries: the log goes on after `index`, up to which a checkpoint that came from elsewhere is
    /// durable.  What was promised (the hard state) stays.
    pub fn restart(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) -> Result<()> {
        if let Some(hs) = hard_state {
            self.hard_state = hs.clone();
        }
        self.hard_state.term = self.hard_state.term.max(term.0);
        self.raise_commit(index);
        self.next_segment(Previous { index: index.0, term: term.0, restart: true })?;
        self.slots.clear();
        self.spans.clear();
        self.cached.clear();
        self.cached_bytes = 0;
        self.drop_older()
    }

    /// Removes all segments but the last.
    fn drop_older(&mut self) -> Result<()> {
        // The oldest first, so that what a crash leaves has no gap.
        while self.segments.len() > 1 {
            let Some(old) = self.segments.pop_front() else { break };
            if self.read_to.is_none() {
                old.remove()?;
            }
        }
        match self.read_to {
            None => sync_dir(&self.dir),
            Some(_) => Ok(()),
        }
    }

    /// Bytes of all records on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.end).sum()
    }

    /// Reads all segments.  Returns where the log was closed, if it was.
    fn replay(&mut self) -> Result<Option<(u64, u64)>> {
        let numbers = segment_numbers(&self.dir)?;
        let closed = read_closed(&self.dir)?;
        let life = Life::read(&self.dir)?;
        if numbers.is_empty() && life.is_some_and(|life| life.first > 0) {
            let why = "it was in use, and no segment is left".into();
            return Err(Error::Corrupted { file: self.dir.clone(), why });
        }
        let mut is_cut = false;
        for (n, number) in numbers.iter().enumerate() {
            if n > 0 && *number != numbers[n - 1] + 1 {
                let file = path_of(&self.dir, numbers[n - 1] + 1);
                return Err(Error::Corrupted { file, why: "this segment of the log is missing".into() });
            }
            is_cut = self.replay_segment(*number, n + 1 == numbers.len(), is_cut, life)?;
        }
        Ok(closed)
    }

    /// `is_cut`: the segments before this one are left over from a cut that a crash interrupted.  `life`: the last one,
    /// if it did not close the log.  Returns whether this segment is left over too.
    fn replay_segment(&mut self, number: u64, is_last: bool, is_cut: bool, life: Option<Life>) -> Result<bool> {
        let open = if self.read_to.is_some() { Segment::open_to_read } else { Segment::open };
        let mut segment = open(&self.dir, number)?;
        let (mut offset, mut last_stamp) = (0, None);
        if self.segments.is_empty() {
            // The first record of the oldest segment may have any number.
            self.next_record = segment.first_number()?.unwrap_or(0);
        }
        while let Some((record, end)) = segment.record_at(offset, self.next_record)? {
            if offset == 0 {
                let Some(previous) = record.previous else {
                    return Err(segment.corrupted("its first record does not say what came before".into()));
                };
                if previous.restart || is_cut {
                    self.slots.clear();
                    self.spans.clear();
                }
                let follows = self.segments.is_empty() || previous.restart || is_cut || previous.index == self.last();
                if !follows {
                    return Err(segment.corrupted(format!("it follows entry {}, not {}", previous.index, self.last())));
                }
                segment.previous = previous;
            }
            if let Some(hs) = record.hard_state {
                self.hard_state = hs;
            }
            let oldest = self.segments.front().filter(|_| !segment.previous.restart && !is_cut);
            let base = oldest.map_or(segment.previous, |s| s.previous);
            for (index, slot, data) in record.entries {
                segment.lowest = segment.lowest.min(index);
                // The entry replaces one of a segment that is gone, so this segment was to be removed too
                // (`segments_to_cut`).
                if segment.lowest <= base.index && !is_last {
                    continue;
                }
                let keep = index.checked_sub(base.index + 1).filter(|keep| *keep <= self.slots.len() as u64);
                let Some(keep) = keep else {
                    return Err(segment.corrupted(format!("entry {index} follows nothing")));
                };
                self.slots.truncate(keep as usize);
                self.spans.append(LogIndex(index), slot.kind, &data);
                self.slots.push_back(slot);
            }
            (offset, last_stamp) = (end, record.stamp);
            self.next_record += 1;
        }
        segment.end = offset;
        // A running node may be in the middle of writing what follows; that replaces nothing up to there.
        if is_last && self.read_to.is_some_and(|to| self.last() >= to.0) {
            return if offset > 0 { self.push_replayed(segment, is_cut) } else { Ok(false) };
        }
        if let Some(found) = segment.first_number()?.filter(|_| offset == 0) {
            if found != self.next_record && segment.record_at(0, found)?.is_some() {
                let why = format!("it begins with record {found}, but record {} is missing", self.next_record);
                return Err(segment.corrupted(why));
            }
        }
        let hole = self.next_record;
        // The first record of a segment is durable before the second is written.
        let shows = |found, stamp| offset == 0 || life.is_none_or(|life| life.shows(hole, last_stamp, found, stamp));
        match segment.tail_after(offset, hole, shows)? {
            _ if is_last && life.is_some_and(|life| hole < life.first) => {
                return Err(segment.corrupted(format!("record {hole} at byte {offset} is damaged or missing")))
            }
            // A crash came before the segment was cut to the length of its records.
            Tail::Empty if !is_last && self.read_to.is_none() && offset < segment.size() => segment.trim()?,
            Tail::Empty => {}
            Tail::Torn if is_last && self.read_to.is_some() => {}
            Tail::Torn if is_last => {
                tracing::warn!(file = %segment.path.display(), offset, "cut a write that a crash had left unfinished");
                segment.trim()?;
            }
            Tail::Torn => return Err(segment.corrupted(format!("it breaks off at byte {offset}"))),
            Tail::Damaged => return Err(segment.corrupted(format!("record {hole} at byte {offset} is damaged"))),
        }
        if offset == 0 && is_last {
            // A crash came between making a segment and its first record, so it contains nothing.  Only the very first
            // segment of a log can be in that state without another one.
            if self.segments.is_empty() && number > 0 {
                return Err(segment.corrupted("its first record is damaged".into()));
            }
            if self.read_to.is_none() {
                segment.remove()?;
                sync_dir(&self.dir)?;
            }
            return Ok(false);
        }
        if (segment.previous.restart || is_cut) && is_last && self.read_to.is_none() {
            // Its records may be in the page cache only, and the segments that it replaces are about to be removed.
            segment.rewrite()?;
            sync_dir(&self.dir)?;
        }
        self.push_replayed(segment, is_cut)
    }

    fn push_replayed(&mut self, segment: Segment, is_cut: bool) -> Result<bool> {
        let restart = segment.previous.restart;
        self.segments.push_back(segment);
        if restart || is_cut {
            self.drop_older()?;
        }
        let base = self.before_first();
        Ok(self.segments.back().is_some_and(|newest| newest.lowest <= base))
    }

    /// After a clean stop the log must end exactly where it was closed.
    fn check_closed(&self, closed: Option<(u64, u64)>) -> Result<()> {
        let Some((record, last)) = closed else { return Ok(()) };
        if (record, last) != (self.next_record, self.last()) {
            let file = self.segments.back().map_or(self.dir.clone(), |s| s.path.clone());
            let why = format!("the log was closed after entry {last} and now ends at entry {}", self.last());
            return Err(Error::Corrupted { file, why });
        }
        Ok(())
    }

    /// Notes that the log ends here.  Nothing may be appended afterwards.
    pub fn close(&mut self) -> Result<()> {
        self.settle()?;
        self.spare.close()?;
        self.active().trim()?;
        Life::end(&self.dir)?;
        let body = format!("{} {}", self.next_record, self.last());
        let line = format!("{body} {:08x}\n", crc32fast::hash(body.as_bytes()));
        super::write_whole(&self.dir.join(CLOSED_FILE), line.as_bytes())
    }

    fn active(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("there is always a segment")
    }

    fn next_segment(&mut self, previous: Previous) -> Result<()> {
        self.settle()?;
        let number = self.segments.back().map_or(0, |s| s.number + 1);
        if let Some(full) = self.segments.back_mut() {
            full.sync()?;
            self.spare.cut_later(full.excess()?);
        }
        let spare = self.spare.take();
        let is_spare = spare.is_some();
        let mut segment = match spare {
            Some((file, bytes)) => Segment::create_from(file, bytes, &self.dir, number, previous),
            None => Segment::create(&self.dir, number, previous)?,
        };
        segment.write_ahead(FIRST_RECORD_BYTES, self.segment_bytes)?;
        let mark = self.life.mark(self.next_record, self.next_record);
        segment.append(self.next_record, Some(&self.hard_state), Some(previous), Some(mark), &[])?;
        segment.sync()?;
        if is_spare {
            segment.take_name(self.spare.path())?;
        }
        sync_dir(&self.dir)?;
        self.next_record += 1;
        self.durable = self.next_record;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Appends entries, which replace those from the first one's index on.  With `sync`, everything appended so far is
    /// durable on return.  An error of a read since the last call is returned here.
    pub fn append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>, sync: bool) -> Result<()> {
        if let Some(damage) = self.take_damage() {
            return Err(damage);
        }
        let bytes = record_bytes(hard_state, entries);
        let end = self.active().end;
        if end + bytes > self.segment_bytes && end > FIRST_RECORD_BYTES {
            let previous = Previous::new(self.last(), self.term_of(self.last()).unwrap_or(0));
            self.next_segment(previous)?;
        }
        let (number, segment_bytes) = (self.next_record, self.segment_bytes);
        let start = self.active().end;
        if start + bytes > self.active().zeros_end {
            self.settle()?;
            self.active().write_ahead(bytes, segment_bytes)?;
        }
        let mark = self.life.mark(number, self.durable);
        let slots = self.active().append(number, hard_state, None, Some(mark), entries)?;
        self.next_record += 1;
        if sync {
            self.sync_from(start)?;
        }
        if self.active().end > segment_bytes / SPARE_FROM {
            self.spare.prepare(segment_bytes);
        }
        if let Some(hs) = hard_state {
            self.hard_state = hs.clone();
        }
        for ((index, slot), entry) in slots.into_iter().zip(entries) {
            assert!(index > self.before_first() && index <= self.last() + 1, "entry {index} after {}", self.last());
            self.truncate(index);
            self.slots.push_back(slot);
            self.spans.append(LogIndex(index), entry.get_entry_type(), &entry.data);
            self.cached_bytes += entry.data.len();
            self.cached.push_back(match entry.data.len() < COPIED_BELOW_BYTES {
                true => Bytes::copy_from_slice(&entry.data),
                false => entry.data.clone(),
            });
        }
        // The newest entry stays whatever its size: it is about to be read.
        while self.cached_bytes > self.cache_bytes_max && self.cached.len() > 1 {
            self.cached_bytes -= self.cached.pop_front().map_or(0, |d| d.len());
        }
        Ok(())
    }

    /// Makes everything durable that has been appended; `start` is where the last record begins.
    fn sync_from(&mut self, start: u64) -> Result<()> {
        self.settle()?;
        let began = Instant::now();
        self.active().sync()?;
        self.took(began.elapsed());
        self.active().confirm(start)?;
        self.durable = self.next_record;
        Ok(())
    }

    /// Appends entries, which follow the last one.  `false`: they are not durable yet, and
    /// [`RaftLog::take_synced`] will return this `number`, or a higher one, when they are.
    pub fn begin_append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>, number: u64) -> Result<bool> {
        if self.syncer.is_none() || self.sync_takes < BESIDE_FROM {
            self.append(entries, hard_state, true)?;
            return Ok(true);
        }
        self.append(entries, hard_state, false)?;
        let active = self.active();
        if active.end > active.zeros_end {
            // It has to be confirmed (`Segment::confirm`).
            let start = active.end - record_bytes(hard_state, entries);
            self.sync_from(start)?;
            return Ok(true);
        }
        let (file, path) = (active.file.clone(), active.path.clone());
        if let Some(syncer) = &self.syncer {
            syncer.hand_over(file, path, number, self.next_record);
        }
        Ok(false)
    }

    /// Drops entries from `from` on, in memory.  On disk, the record that follows replaces them.
    fn truncate(&mut self, from: u64) {
        while self.last() >= from {
            self.slots.pop_back();
            self.cached_bytes -= self.cached.pop_back().map_or(0, |d| d.len());
        }
    }

    /// Removes segments that contain nothing above `upto`, nor parts of a transaction above it, the oldest first and
    /// not all at once: to be called again and again.  Everything up to there must be committed, and no longer needed
    /// by anyone.
    pub fn cut(&mut self, upto: LogIndex) -> Result<()> {
        let before = self.before_first();
        let old_segments = self.segments_to_cut(upto);
        if let Some(first) = self.segments.get(old_segments) {
            self.slots.drain(..(first.previous.index - before) as usize);
        }
        for old in self.segments.drain(..old_segments) {
            old.remove()?;
        }
        let excess = self.cached.len().saturating_sub(self.slots.len());
        for data in self.cached.drain(..excess) {
            self.cached_bytes -= data.len();
        }
        self.spans.cut(LogIndex(self.before_first()));
        if self.before_first() != before {
            sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// How many of the oldest segments are to be removed now.  Neither the one that is then the oldest nor any later
    /// one may contain an entry that belongs before it: the segments that are left, read by themselves, are then the
    /// same log.  If that is so only after more than can be removed at once, they go all the same.
    fn segments_to_cut(&self, upto: LogIndex) -> usize {
        let upto = self.spans.cut_to(upto);
        let (mut lowest, mut begins) = (u64::MAX, 0);
        for (number, segment) in self.segments.iter().enumerate().skip(1).rev() {
            lowest = lowest.min(segment.lowest);
            if segment.previous.index > upto.0 || segment.previous.index >= lowest {
                continue;
            }
            begins = number;
            if self.segments.range(..number).map(|s| s.end).sum::<u64>() <= self.cut_bytes_max {
                break;
            }
        }
        begins
    }

    /// The lowest index after which the log on disk has no more than so many bytes.
    pub fn index_leaving(&self, bytes: u64) -> LogIndex {
        let first = self.segments.front().map_or(0, |s| s.number);
        let (mut starts, mut all) = (Vec::with_capacity(self.segments.len()), 0);
        for segment in &self.segments {
            starts.push(all);
            all += segment.end;
        }
        let is_too_much = |slot: &Slot| {
            let start = starts[(slot.segment - first) as usize];
            all - (start + slot.offset - ENTRY_HEAD_BYTES) > bytes
        };
        // Entries are on disk in their order.
        LogIndex(self.before_first() + self.slots.partition_point(is_too_much) as u64)
    }

    /// The data of one entry.
    pub fn read(&self, index: LogIndex) -> Result<Bytes> {
        let place = index.0.checked_sub(self.before_first() + 1).filter(|p| *p < self.slots.len() as u64);
        let Some(place) = place else {
            return Err(Error::Internal(format!("entry {index} is not in the log")));
        };
        let uncached = self.slots.len() - self.cached.len();
        if let Some(hit) = (place as usize).checked_sub(uncached) {
            return Ok(self.cached[hit].clone());
        }
        let (slot, file) = self.place(place as usize);
        file.read(slot)
    }

    /// The data of this entry is in memory.
    pub fn is_cached(&self, index: LogIndex) -> bool {
        index.0 + self.cached.len() as u64 > self.last()
    }

    fn place(&self, number: usize) -> (&Slot, &Arc<SlotReader>) {
        let slot = &self.slots[number];
        (slot, &self.segments[(slot.segment - self.segments[0].number) as usize].entries)
    }

    /// One entry, with its index, term and type.
    pub fn entry(&self, index: LogIndex) -> Result<RaftEntry> {
        Ok(self.with(index, self.read(index)?))
    }

    /// An entry that is here, made from its data.
    fn with(&self, index: LogIndex, data: Bytes) -> RaftEntry {
        let slot = &self.slots[(index.0 - self.before_first() - 1) as usize];
        let mut entry = RaftEntry { index: index.0, term: slot.term, data, ..Default::default() };
        entry.set_entry_type(slot.kind);
        entry
    }

    /// The index before the first entry still here.
    fn before_first(&self) -> u64 {
        self.segments.front().map_or(0, |s| s.previous.index)
    }

    fn last(&self) -> u64 {
        self.before_first() + self.slots.len() as u64
    }

    fn term_of(&self, index: u64) -> Option<u64> {
        let before = self.before_first();
        if index == before {
            return Some(self.segments.front().map_or(0, |s| s.previous.term));
        }
        self.slots.get(usize::try_from(index.checked_sub(before + 1)?).ok()?).map(|s| s.term)
    }

    /// The term of an entry that is here, or of the one before the first.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.term_of(index.0).map(Term)
    }

    pub fn first_index(&self) -> LogIndex {
        LogIndex(self.before_first() + 1)
    }

    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.last())
    }

    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// A checkpoint proves that everything up to `index` was committed, though the commit index on disk, which is
    /// written lazily, may be behind.
    pub fn raise_commit(&mut self, index: LogIndex) {
        self.hard_state.commit = self.hard_state.commit.max(index.0);
    }
}

pub(crate) fn segment_numbers(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for file in std::fs::read_dir(dir).map_err(Error::disk(dir, "reading the folder"))? {
        let name = file.map_err(Error::disk(dir, "reading the folder"))?.file_name();
        let stem = name.to_str().and_then(|n| n.strip_suffix(".log"));
        if let Some(number) = stem.and_then(|n| u64::from_str_radix(n, 16).ok()) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Number of the record after the last, and index of the last entry, if the log was closed in good order.
fn read_closed(dir: &Path) -> Result<Option<(u64, u64)>> {
    let file = dir.join(CLOSED_FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Disk { file, what: "read", source }),
    };
    let parsed = text.trim_end().rsplit_once(' ').and_then(|(body, crc)| {
        let crc = u32::from_str_radix(crc, 16).ok().filter(|crc| *crc == crc32fast::hash(body.as_bytes()));
        crc?;
        let (record, last) = body.split_once(' ')?;
        Some((record.parse().ok()?, last.parse().ok()?))
    });
    parsed.map(Some).ok_or(Error::Corrupted { file, why: "it is damaged".into() })
}

mod storage;
#[cfg(test)]
mod tests;
