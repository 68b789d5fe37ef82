//! Writes the archive's files.
//!
//! Invariants:
//! - Within a segment entries are contiguous and times do not go back; a segment begins where the last one ended, or
//!   its name shows that entries are missing before it.  Times that go back by more than the clock's wander begin a
//!   segment.
//! - What was not synced before a failed write or sync is cut off before anything else is written.
//! - Good records behind a hole, which the loss of power leaves where it has lost pages in between, are removed only
//!   when the log has their entries again.  Otherwise the file stays as it is: they may be all that there is.

use super::{
    last_backup, ArchiveError, Gap, Identity, Result, CLOCK_OFF_MS, GAP_FILE, IDENTITY_FILE, IDENTITY_UNFINISHED,
};
use crate::disk::segment::{Previous, Segment, Tail};
use crate::disk::{segment_numbers, sync_dir, write_whole};
use onetrip_core::LogIndex;
use raft::eraftpb::Entry as RaftEntry;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A segment larger or older than this is followed by a new one, and not touched again: it can be moved elsewhere.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENT_AGE: Duration = Duration::from_secs(3600);

pub struct Writer {
    dir: PathBuf,
    open: Option<Open>,
    /// The last entry that was written, or `None` in an empty archive.
    last: Option<Previous>,
    time_ms: u64,
    gap: Option<Gap>,
    /// Segments at the end of the archive that have good records behind a hole.
    holes: Vec<Segment>,
    segment_bytes: u64,
}

/// The segment that grows.
struct Open {
    segment: Segment,
    records: u64,
    /// How long the file was when it was synced last.
    synced: u64,
    since: Instant,
}

impl Writer {
    /// Finds the end of what is there.  The folder must exist; an empty one becomes this node's archive.
    pub fn open(dir: &Path, identity: &Identity) -> Result<Writer> {
        Self::open_with(dir, identity, SEGMENT_BYTES)
    }

    pub(super) fn open_with(dir: &Path, identity: &Identity, segment_bytes: u64) -> Result<Writer> {
        if !dir.is_dir() {
            return Err(ArchiveError::NoFolder { folder: dir.to_owned() });
        }
        claim(dir, identity)?;
        let mut writer = Writer {
            dir: dir.to_owned(),
            open: None,
            last: None,
            time_ms: 0,
            gap: None,
            holes: Vec::new(),
            segment_bytes,
        };
        // A note that cannot be read is as good as none: a restore finds the gap by itself.
        writer.gap = std::fs::read(dir.join(GAP_FILE)).ok().and_then(|raw| serde_json::from_slice(&raw).ok());
        let mut numbers = segment_numbers(dir)?;
        // Segments without an entry are removed: a crash or a full disk left them, or they contain nothing but times.
        while let Some(number) = numbers.pop() {
            let mut segment = Segment::open(dir, number)?;
            let (has_entries, has_hole) = writer.find_end(&mut segment)?;
            if has_hole {
                writer.holes.push(segment);
            } else if !has_entries {
                segment.remove()?;
                sync_dir(dir)?;
            }
            if has_entries {
                break;
            }
        }
        Ok(writer)
    }

    /// Reads a segment, and cuts off what a crash left unfinished.  Returns whether it contains an entry, and whether
    /// good records follow bad ones; these stay there.
    fn find_end(&mut self, segment: &mut Segment) -> Result<(bool, bool)> {
        let (mut offset, mut number) = (0, 0);
        while let Some((record, end)) = segment.record_at(offset, number)? {
            let last = record.entries.last().map(|(index, slot, _)| Previous::new(*index, slot.term));
            self.last = last.or(self.last);
            self.time_ms = record.stamp.unwrap_or(0).max(self.time_ms);
            (offset, number) = (end, number + 1);
        }
        let tail = segment.tail_after(offset, number, |_, _| true)?;
        segment.end = offset;
        segment.rewrite()?;
        if tail == Tail::Damaged {
            tracing::warn!(
                file = %segment.path.display(), offset,
                "record {number} of the archive is missing or damaged, and good ones follow it: they are written again \
                 as far as this node's log has them"
            );
        } else if segment.size() != offset {
            segment.trim()?;
        }
        Ok((self.last.is_some(), tail == Tail::Damaged))
    }

    pub fn last(&self) -> Option<LogIndex> {
        self.last.map(|last| LogIndex(last.index))
    }

    /// The last entry that was written, with its term.
    pub fn end(&self) -> Option<Previous> {
        self.last
    }

    /// When the last entry was decided, or when it was last known that nothing newer was.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The last entries that are missing for ever.
    pub(super) fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Writes entries that follow `previous`; without any, it only notes that nothing newer was decided up to
    /// `time_ms`.  If `previous` is not where the archive ends, entries are missing in between, and a new segment
    /// begins.  Not durable before `sync`.
    pub fn append(&mut self, previous: Previous, time_ms: u64, entries: &[RaftEntry]) -> Result<()> {
        if entries.is_empty() && !self.holes.is_empty() {
            // Something newer was decided, and is not here yet.
            return Ok(());
        }
        self.close_holes(previous)?;
        let missing =
            self.last.map_or(0, |last| previous.index.checked_sub(last.index).expect("it goes on from its end"));
        if let Some(last) = self.last.filter(|_| missing > 0) {
            // Several gaps without a backup between them count as one: an older backup ends before the first of them.
            let backup = last_backup(&self.dir);
            let open = self.gap.filter(|gap| !gap.is_covered_by(backup.as_ref()));
            let from = open.map_or(LogIndex(last.index + 1), |gap| gap.from);
            let gap = Gap { from, to: LogIndex(previous.index) };
            write_whole(&self.dir.join(GAP_FILE), &serde_json::to_vec(&gap).expect("two numbers"))?;
            self.gap = Some(gap);
        }
        // If the clock was set back a little, the archive's times do not follow it.
        let went_back = self.time_ms > time_ms.saturating_add(CLOCK_OFF_MS);
        if went_back {
            tracing::warn!(
                "the archive's times go back by {} s from entry {} on: the clock is wrong, or it was",
                (self.time_ms - time_ms) / 1000,
                previous.index + 1
            );
        }
        // A segment that had only times is not kept, so the next one begins with the last of them.
        let before_ms = if went_back || self.time_ms == 0 { time_ms } else { self.time_ms };
        self.time_ms = if went_back { time_ms } else { self.time_ms.max(time_ms) };
        let fits = |open: &Open| open.segment.end < self.segment_bytes && open.since.elapsed() < SEGMENT_AGE;
        if missing > 0 || went_back || !self.open.as_ref().is_some_and(fits) {
            self.next_segment(previous, before_ms)?;
        }
        let open = self.open.as_mut().expect("just made, if there was none");
        open.segment.append(open.records, None, None, Some(self.time_ms), entries)?;
        open.records += 1;
        self.last = Some(entries.last().map_or(previous, |e| Previous::new(e.index, e.term)));
        Ok(())
    }

    /// The log has all entries after `previous`.
    fn close_holes(&mut self, previous: Previous) -> Result<()> {
        let goes_on = self.last.is_some_and(|last| last.index == previous.index);
        for mut segment in std::mem::take(&mut self.holes) {
            if segment.number > previous.index {
                segment.remove()?;
                sync_dir(&self.dir)?;
            } else if goes_on {
                segment.trim()?;
            }
        }
        Ok(())
    }

    /// A segment's number is the index of its first entry.
    fn next_segment(&mut self, previous: Previous, before_ms: u64) -> Result<()> {
        self.close()?;
        let number = previous.index + 1;
        let mut segment = match Segment::create(&self.dir, number, previous) {
            Ok(segment) => segment,
            // That one contains no entry, only times: the end of the archive is before it.
            Err(crate::Error::Disk { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                Segment::open(&self.dir, number)?.remove()?;
                Segment::create(&self.dir, number, previous)?
            }
            Err(e) => return Err(e.into()),
        };
        segment.append(0, None, Some(previous), Some(before_ms), &[])?;
        segment.sync()?;
        sync_dir(&self.dir)?;
        let synced = segment.end;
        self.open = Some(Open { segment, records: 1, synced, since: Instant::now() });
        Ok(())
    }

    /// All that was appended is durable on return.
    pub fn sync(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open {
            open.segment.sync()?;
            open.synced = open.segment.end;
        }
        Ok(())
    }

    /// Ends the segment; the next entry begins a new one.
    pub fn close(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open {
            open.segment.trim()?;
        }
        self.open = None;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.segment.end)
    }

    /// After a failed write or sync: which file has to be cut back, and to what length, before the archive is opened
    /// again.  What was written after the last good sync may or may not be on disk, whatever the page cache shows.
    pub(super) fn broken(self) -> Option<(PathBuf, u64)> {
        self.open.map(|open| (open.segment.path, open.synced))
    }
}

/// One archive holds the log of one cluster as one node saw it.
fn claim(dir: &Path, identity: &Identity) -> Result<()> {
    if let Some(found) = Identity::read(dir)? {
        if found != *identity {
            return Err(ArchiveError::Foreign {
                folder: dir.to_owned(),
                found: found.to_string(),
                wanted: identity.to_string(),
            });
        }
        return Ok(());
    }
    let mut names = std::fs::read_dir(dir).map_err(ArchiveError::disk(dir, "reading the folder"))?;
    // An attempt to claim it may have been cut short, or have met a full disk.
    let others = |name: std::ffi::OsString| name != "lost+found" && name != IDENTITY_UNFINISHED;
    if names.any(|name| name.is_ok_and(|name| others(name.file_name()))) {
        return Err(ArchiveError::NotEmpty { folder: dir.to_owned() });
    }
    let text = serde_json::to_vec_pretty(identity).expect("plain strings and numbers");
    Ok(write_whole(&dir.join(IDENTITY_FILE), &text)?)
}
