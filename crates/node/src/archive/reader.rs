//! Reads the archive's files, for a restore.  It writes nothing; the folder may be mounted read-only, and the node may
//! still be writing to it.

use super::{ArchiveError, Identity, Result};
use crate::disk::segment::{Segment, Slot, Tail};
use crate::disk::segment_numbers;
use onetrip_core::{LogIndex, Term};
use raft::eraftpb::Entry as RaftEntry;
use std::path::{Path, PathBuf};

pub struct Reader {
    dir: PathBuf,
    identity: Identity,
    /// Indexes of the segments' first entries, which are their names.
    firsts: Vec<u64>,
    loaded: Option<Loaded>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub entry: RaftEntry,
    /// When the archiving node knew it to be decided, in milliseconds since 1970.  A node's own log has no times.
    pub time_ms: Option<u64>,
}

/// One segment, verified to its end, or as far as it is good.
struct Loaded {
    number: u64,
    segment: Segment,
    /// Each with its time, and the time before it, if that is in this segment.
    slots: Vec<(Slot, u64, Option<u64>)>,
    /// The term of the entry before its first.
    before: u64,
    /// Up to this time nothing beyond its last entry was decided.
    end_time_ms: u64,
    /// Why what follows its last entry cannot be read.
    damage: Option<String>,
}

impl Reader {
    pub fn open(dir: &Path) -> Result<Reader> {
        let Some(identity) = Identity::read(dir)? else {
            return Err(ArchiveError::NoArchive { folder: dir.to_owned() });
        };
        let firsts = segment_numbers(dir)?;
        if firsts.is_empty() {
            return Err(ArchiveError::Empty { folder: dir.to_owned() });
        }
        Ok(Reader { dir: dir.to_owned(), identity, firsts, loaded: None })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The first entry that is there.
    pub fn first(&self) -> LogIndex {
        LogIndex(self.firsts[0])
    }

    /// The last entry of the last segment, and up to when it was known to be the last.
    pub fn end(&mut self) -> Result<(LogIndex, u64)> {
        let last = *self.firsts.last().expect("there is a segment");
        let loaded = self.load(last)?;
        Ok((LogIndex(loaded.next() - 1), loaded.end_time_ms))
    }

    /// The earliest time with which a segment begins after `index`, and its first entry.  Times go back only between
    /// segments.  What cannot be read is passed over.
    pub fn earliest_after(&self, index: LogIndex) -> Option<(LogIndex, u64)> {
        let later = self.firsts.iter().filter(|first| **first > index.0);
        let begins = later.filter_map(|first| {
            let (record, _) = Segment::open_to_read(&self.dir, *first).ok()?.record_at(0, 0).ok()??;
            Some((LogIndex(*first), record.stamp?))
        });
        begins.min_by_key(|(_, time_ms)| *time_ms)
    }

    /// At the first of these times an entry that is there was not decided yet, as far as the node knew, and at the
    /// second one it was.
    pub fn decided_within(&mut self, index: LogIndex) -> Result<Option<(u64, u64)>> {
        let place = self.firsts.partition_point(|first| *first <= index.0);
        let Some(number) = place.checked_sub(1).map(|place| self.firsts[place]) else { return Ok(None) };
        let older = place.checked_sub(2).map(|place| self.firsts[place]);
        let Some((_, time_ms, noted)) = self.load(number)?.slots.get((index.0 - number) as usize).cloned() else {
            return Ok(None);
        };
        let mut end_of = |number| self.load(number).map_or(0, |loaded| loaded.end_time_ms);
        Ok(Some((noted.or_else(|| older.map(&mut end_of)).unwrap_or(0), time_ms)))
    }

    /// One entry, verified; `None` beyond the end.  Cheap when asked for in order.
    pub fn entry(&mut self, index: LogIndex) -> Result<Option<Stored>> {
        let place = self.firsts.partition_point(|first| *first <= index.0);
        let Some(number) = place.checked_sub(1).map(|place| self.firsts[place]) else {
            return Err(ArchiveError::BeforeFirst { folder: self.dir.clone(), wanted: index, first: self.first() });
        };
        let following = self.firsts.get(place).copied();
        let folder = self.dir.clone();
        let loaded = self.load(number)?;
        if index.0 >= loaded.next() {
            if let Some(why) = &loaded.damage {
                let last = loaded.next() - 1;
                let why = format!("{why}, so the archive can be restored up to entry {last} (--to-position {last})");
                return Err(ArchiveError::damaged(&loaded.segment.path, why));
            }
            // In the last segment that is the end.
            let Some(following) = following else { return Ok(None) };
            let (from, to) = (LogIndex(loaded.next()), LogIndex(following - 1));
            return Err(ArchiveError::Gap { folder, from, to });
        }
        let (slot, time_ms, _) = loaded.slots[(index.0 - number) as usize];
        let data = loaded.segment.entries.read(&slot)?;
        let mut entry = RaftEntry { index: index.0, term: slot.term, data, ..Default::default() };
        entry.set_entry_type(slot.kind);
        Ok(Some(Stored { entry, time_ms: Some(time_ms) }))
    }

    /// The term of the entry before `index`, if the entry at `index` is there.
    pub fn term_before(&mut self, index: LogIndex) -> Result<Option<Term>> {
        let place = self.firsts.partition_point(|first| *first <= index.0);
        let Some(number) = place.checked_sub(1).map(|place| self.firsts[place]) else { return Ok(None) };
        let loaded = self.load(number)?;
        if index.0 >= loaded.next() {
            return Ok(None);
        }
        let before = (index.0 - number).checked_sub(1).map(|place| loaded.slots[place as usize].0.term);
        Ok(Some(Term(before.unwrap_or(loaded.before))))
    }

    fn load(&mut self, number: u64) -> Result<&Loaded> {
        if self.loaded.as_ref().is_none_or(|l| l.number != number) {
            let is_last = self.firsts.last() == Some(&number);
            self.loaded = Some(Loaded::read(&self.dir, number, is_last)?);
        }
        Ok(self.loaded.as_ref().expect("just loaded"))
    }
}

impl Loaded {
    fn read(dir: &Path, number: u64, is_last: bool) -> Result<Loaded> {
        let segment = Segment::open_to_read(dir, number)?;
        let damaged = |why: String| ArchiveError::damaged(&segment.path, why);
        let mut slots: Vec<(Slot, u64, Option<u64>)> = Vec::new();
        let (mut offset, mut records, mut time, mut before) = (0, 0, 0, 0);
        while let Some((record, end)) = segment.record_at(offset, records)? {
            let starts_here = record.previous.is_some_and(|p| p.index + 1 == number);
            if record.previous.is_some() != (offset == 0) || (offset == 0 && !starts_here) {
                return Err(damaged(format!("record {records} at byte {offset} does not belong in this file")));
            }
            let Some(at) = record.stamp.filter(|at| *at >= time) else {
                return Err(damaged(format!("record {records} at byte {offset} has no time, or an earlier one")));
            };
            // Earlier releases wrote a segment's first record with the time of the second one.
            let noted = (records > 1 || time < at).then_some(time);
            time = at;
            before = record.previous.map_or(before, |p| p.term);
            for (index, slot, _) in record.entries {
                if index != number + slots.len() as u64 {
                    return Err(damaged(format!("entry {index} follows entry {}", number + slots.len() as u64 - 1)));
                }
                slots.push((slot, time, noted));
            }
            (offset, records) = (end, records + 1);
        }
        let damage = match segment.tail_after(offset, records, |_, _| true)? {
            // The node is still writing to it, or stopped while it was.
            Tail::Empty | Tail::Torn if is_last => None,
            Tail::Empty if records > 0 => None,
            Tail::Empty | Tail::Torn => Some(format!("it breaks off at byte {offset}")),
            Tail::Damaged => Some(format!("record {records} at byte {offset} is damaged")),
        };
        Ok(Loaded { number, segment, slots, before, end_time_ms: time, damage })
    }

    /// The index after its last entry.
    fn next(&self) -> u64 {
        self.number + self.slots.len() as u64
    }
}
