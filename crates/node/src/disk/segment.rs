//! One file of the log: a sequence of numbered, checksummed records.
//!
//! | record | |
//! |---|---|
//! | u32 magic, u32 length of body, u64 number, u32 CRC-32 of length, number and body | 20 bytes |
//! | body | |
//!
//! Body: u8 flags (bit 0: hard state, bit 1: previous, bit 2: stamp, bit 3: it is a restart), [u64 term, u64 vote, u64
//! commit], [u64 index, u64 term], [u64 stamp], u32 n, then n entries (u64 index, u64 term, u8 type, u32 length, data).
//! Types are those of raft-rs, and 3 for a normal entry that needs a format level (`onetrip_core::level`), which
//! releases older than levels refuse.  The *stamp* is a time in the archive, in milliseconds since 1970, and a mark in
//! the Raft log (`life`), where earlier releases wrote none and pass over it.  In the Raft log, numbers run through all
//! segments without a gap; in the archive they start at 0 in each segment.  The first record of a segment says, as
//! *previous*, what came before the segment, so that older segments can be deleted; a *restart* says that they must be.
//!
//! Space is set aside ahead of the records.  It reads as zeros, which mark the end of the records.  In the Raft log,
//! zeros are also written there before a record is: the first write into space that was only set aside changes metadata
//! of the file system, and a sync of the record would depend on the file system's journal.

use crate::error::{Error, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use onetrip_core::{level, Level};
use raft::eraftpb::{Entry as RaftEntry, EntryType, HardState};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const MAGIC: u32 = 0x314c_544f; // "OTL1"
pub(crate) const HEAD_BYTES: usize = 20;
/// Space set aside at once: a write inside it changes no file size, which makes its fsync cheaper.
const SET_ASIDE_BYTES: u64 = 4 << 20;
/// Zeros written before they are synced.
pub(super) const ZEROS_BYTES: u64 = 1 << 20;
/// Zeros given to one write ([`write_zeros`]).
const PAGE_BYTES: u64 = 4096;
/// Length of the record with which a segment of the Raft log begins.
pub(super) const FIRST_RECORD_BYTES: u64 = HEAD_BYTES as u64 + 53;
/// Data larger than this is written from where it is in memory, instead of being copied together with other data first.
const GATHER_BYTES_MAX: usize = 64 << 10;
/// About as much as a member that is behind is sent within a few round trips.
const READ_AHEAD_BYTES: u64 = 16 << 20;
/// What is behind a bad record is checked for good ones until this many times its length has been read.
const CHECKS_MAX: u64 = 4;

/// The type of a normal entry that needs a format level.
const NEEDS_LEVEL: u8 = 3;

fn kind_of(entry: &RaftEntry) -> u8 {
    match entry.get_entry_type() {
        EntryType::EntryNormal if level::of_entry(&entry.data) > Level(0) => NEEDS_LEVEL,
        other => other as u8,
    }
}

/// The index and term before a segment's first entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    pub index: u64,
    pub term: u64,
    /// Segments before this one are obsolete: a checkpoint that came from elsewhere takes their place.
    pub restart: bool,
}

impl Previous {
    pub fn new(index: u64, term: u64) -> Previous {
        Previous { index, term, restart: false }
    }
}

/// Where an entry's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub term: u64,
    pub kind: EntryType,
    pub segment: u64,
    pub offset: u64,
    pub len: u32,
    pub crc: u32,
}

#[derive(Default)]
pub(crate) struct Record {
    pub hard_state: Option<HardState>,
    pub previous: Option<Previous>,
    pub stamp: Option<u64>,
    pub entries: Vec<(u64, Slot, Bytes)>,
}

pub(crate) struct Segment {
    pub number: u64,
    pub path: PathBuf,
    pub previous: Previous,
    /// The lowest index of an entry in it.  A new leader's entries may go back to before `previous`, and so replace
    /// entries of earlier segments.
    pub lowest: u64,
    pub file: Arc<File>,
    /// End of the records.
    pub end: u64,
    set_aside: u64,
    /// Up to here zeros were written ahead in this life of the node, durably.
    pub zeros_end: u64,
    pub entries: Arc<SlotReader>,
}

/// Reads a segment's entries, from any thread.
pub(crate) struct SlotReader {
    path: PathBuf,
    file: Arc<File>,
    /// Up to here the system has been told to read ahead.
    ahead: AtomicU64,
}

pub(crate) fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.log"))
}

impl Segment {
    pub fn create(dir: &Path, number: u64, previous: Previous) -> Result<Segment> {
        let path = path_of(dir, number);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(Error::disk(&path, "creating the segment"))?;
        Ok(Segment::of(file, path, number, previous, 0))
    }

    fn of(file: File, path: PathBuf, number: u64, previous: Previous, set_aside: u64) -> Segment {
        let file = Arc::new(file);
        let entries = Arc::new(SlotReader { path: path.clone(), file: file.clone(), ahead: AtomicU64::new(0) });
        Segment { number, path, previous, lowest: u64::MAX, file, end: 0, set_aside, zeros_end: 0, entries }
    }

    /// The same from a file of so many zeros, all durable, which still has another name ([`Segment::take_name`]).
    pub fn create_from(file: File, bytes: u64, dir: &Path, number: u64, previous: Previous) -> Segment {
        Segment { zeros_end: bytes, ..Segment::of(file, path_of(dir, number), number, previous, bytes) }
    }

    /// Moves the file from where it was made to where segments are.  Not durable before the folder is synced.
    pub fn take_name(&self, from: &Path) -> Result<()> {
        if self.path.try_exists().map_err(Error::disk(&self.path, "creating the segment"))? {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(Error::Disk { file: self.path.clone(), what: "creating the segment", source });
        }
        std::fs::rename(from, &self.path).map_err(Error::disk(&self.path, "renaming"))
    }

    pub fn open(dir: &Path, number: u64) -> Result<Segment> {
        Self::open_with(dir, number, OpenOptions::new().read(true).write(true))
    }

    /// For reading only: neither the file nor its folder need to be writable.
    pub fn open_to_read(dir: &Path, number: u64) -> Result<Segment> {
        Self::open_with(dir, number, OpenOptions::new().read(true))
    }

    fn open_with(dir: &Path, number: u64, options: &OpenOptions) -> Result<Segment> {
        let path = path_of(dir, number);
        let file = options.open(&path);
        let file = file.map_err(Error::disk(&path, "opening the segment"))?;
        let set_aside = file.metadata().map_err(Error::disk(&path, "reading its size"))?.len();
        Ok(Segment::of(file, path, number, Previous::default(), set_aside))
    }

    /// Writes one record at the end.  Not durable before `sync`.
    pub fn append(
        &mut self,
        number: u64,
        hard_state: Option<&HardState>,
        previous: Option<Previous>,
        stamp: Option<u64>,
        entries: &[RaftEntry],
    ) -> Result<Vec<(u64, Slot)>> {
        let mut gathered = BytesMut::with_capacity(256 + entries.len() * 64);
        let body_len = body_len(hard_state, previous, stamp, entries);
        let body_len_u32 = u32::try_from(body_len)
            .map_err(|_| Error::Internal(format!("a log record of {body_len} bytes; the limit is 4 GiB")))?;
        gathered.put_u32_le(MAGIC);
        gathered.put_u32_le(body_len_u32);
        gathered.put_u64_le(number);
        gathered.put_u32_le(0); // the checksum, below
        let restart = previous.is_some_and(|p| p.restart);
        let flags = [hard_state.is_some(), previous.is_some(), stamp.is_some(), restart];
        gathered.put_u8(flags.iter().rev().fold(0, |bits, set| bits << 1 | u8::from(*set)));
        if let Some(hs) = hard_state {
            gathered.put_u64_le(hs.term);
            gathered.put_u64_le(hs.vote);
            gathered.put_u64_le(hs.commit);
        }
        if let Some(p) = previous {
            gathered.put_u64_le(p.index);
            gathered.put_u64_le(p.term);
        }
        if let Some(stamp) = stamp {
            gathered.put_u64_le(stamp);
        }
        gathered.put_u32_le(entries.len() as u32);
        // Pieces in file order: what is gathered, and large data where it is.
        let mut pieces: Vec<Bytes> = Vec::new();
        let mut offset = self.end + gathered.len() as u64;
        let mut slots = Vec::with_capacity(entries.len());
        for e in entries {
            self.lowest = self.lowest.min(e.index);
            gathered.put_u64_le(e.index);
            gathered.put_u64_le(e.term);
            gathered.put_u8(kind_of(e));
            gathered.put_u32_le(e.data.len() as u32);
            offset += 21;
            slots.push((
                e.index,
                Slot {
                    term: e.term,
                    kind: e.get_entry_type(),
                    segment: self.number,
                    offset,
                    len: e.data.len() as u32,
                    crc: crc32fast::hash(&e.data),
                },
            ));
            offset += e.data.len() as u64;
            if e.data.len() > GATHER_BYTES_MAX {
                pieces.push(gathered.split().freeze());
                pieces.push(e.data.clone());
            } else {
                gathered.put_slice(&e.data);
            }
        }
        pieces.push(gathered.freeze());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&pieces[0][4..16]);
        crc.update(&pieces[0][HEAD_BYTES..]);
        pieces[1..].iter().for_each(|p| crc.update(p));
        let mut first = BytesMut::from(&pieces[0][..]);
        first[16..20].copy_from_slice(&crc.finalize().to_le_bytes());
        pieces[0] = first.freeze();

        self.set_aside_for((HEAD_BYTES + body_len) as u64)?;
        for piece in pieces {
            self.file.write_all_at(&piece, self.end).map_err(Error::disk(&self.path, "write"))?;
            self.end += piece.len() as u64;
        }
        Ok(slots)
    }

    fn set_aside_for(&mut self, bytes: u64) -> Result<()> {
        if self.end + bytes <= self.set_aside {
            return Ok(());
        }
        let upto = (self.end + bytes).next_multiple_of(SET_ASIDE_BYTES);
        set_aside(&self.file, &self.path, upto)?;
        self.set_aside = upto;
        Ok(())
    }

    /// Writes zeros, durably, where the next `bytes` bytes will be; and some more, so that this is rarely needed, but
    /// not beyond `limit`.  For a large record only its beginning is prepared, since others would wait while all of it
    /// is written twice ([`Segment::confirm`]).
    pub fn write_ahead(&mut self, bytes: u64, limit: u64) -> Result<()> {
        let needed = self.end + bytes;
        if needed <= self.zeros_end {
            return Ok(());
        }
        self.set_aside_for(bytes)?;
        let at = self.end.max(self.zeros_end);
        let upto = needed.min(at + ZEROS_BYTES).next_multiple_of(ZEROS_BYTES).min(limit.max(needed));
        write_zeros(&self.file, at, upto).map_err(Error::disk(&self.path, SETTING_ASIDE))?;
        self.sync()?;
        (self.zeros_end, self.set_aside) = (upto, self.set_aside.max(upto));
        Ok(())
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::disk(&self.path, "fsync"))
    }

    /// Writes all records again where they are, and syncs them.  What a read finds may be in the page cache only, and a
    /// sync by itself would not help: after a failed one, Linux treats the pages as written.
    pub fn rewrite(&self) -> Result<()> {
        let mut piece = vec![0; GATHER_BYTES_MAX];
        let mut at = 0;
        while at < self.end {
            let len = piece.len().min((self.end - at) as usize);
            self.file.read_exact_at(&mut piece[..len], at).map_err(Error::disk(&self.path, "read"))?;
            self.file.write_all_at(&piece[..len], at).map_err(Error::disk(&self.path, "write"))?;
            at += len as u64;
        }
        self.file.sync_all().map_err(Error::disk(&self.path, "fsync"))
    }

    /// Gives back what was set aside beyond the records, durably.
    pub fn trim(&mut self) -> Result<()> {
        self.file.set_len(self.end).map_err(Error::disk(&self.path, "cutting the file"))?;
        (self.set_aside, self.zeros_end) = (self.end, 0);
        self.file.sync_all().map_err(Error::disk(&self.path, "fsync"))
    }

    /// Makes sure that a synced record at `start` is durable, if it is larger than what was written ahead.  A sync that
    /// changes metadata can succeed while the file system shuts down, and the change be lost; then one more write or
    /// sync fails.
    pub fn confirm(&self, start: u64) -> Result<()> {
        if self.end <= self.zeros_end {
            return Ok(());
        }
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut head, start).map_err(Error::disk(&self.path, "read"))?;
        self.file.write_all_at(&head, start).map_err(Error::disk(&self.path, "write"))?;
        self.sync()
    }

    /// The file, and the length to which somebody else is to cut it: nothing is appended to it any more.  `None`: it
    /// already has that length.
    pub fn excess(&mut self) -> Result<Option<(File, u64)>> {
        if self.set_aside == self.end {
            return Ok(None);
        }
        (self.set_aside, self.zeros_end) = (self.end, 0);
        Ok(Some((self.file.try_clone().map_err(Error::disk(&self.path, "opening the segment"))?, self.end)))
    }

    pub fn corrupted(&self, why: String) -> Error {
        Error::Corrupted { file: self.path.clone(), why }
    }

    pub fn size(&self) -> u64 {
        self.set_aside
    }

    /// Reads; what is beyond the end of the file reads as zeros, since a running node may have cut it to its records by
    /// now.
    fn read_at(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            match self.file.read_at(bytes, offset) {
                Ok(0) => {
                    bytes.fill(0);
                    return Ok(());
                }
                Ok(read) => (bytes, offset) = (&mut bytes[read..], offset + read as u64),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::disk(&self.path, "read")(e)),
            }
        }
        Ok(())
    }

    /// The number that the first record's head gives, if there is one.
    pub fn first_number(&self) -> Result<Option<u64>> {
        if self.set_aside < HEAD_BYTES as u64 {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        self.read_at(&mut head, 0)?;
        Ok(parse_head(&head).map(|(_, number, _)| number))
    }

    /// The record at `offset`, with the offset after it; `Ok(None)` if there is no complete record with this number.
    pub fn record_at(&self, offset: u64, number: u64) -> Result<Option<(Record, u64)>> {
        let mut head = [0; HEAD_BYTES];
        if offset + HEAD_BYTES as u64 > self.set_aside {
            return Ok(None);
        }
        self.read_at(&mut head, offset)?;
        let Some((len, found, crc)) = parse_head(&head) else { return Ok(None) };
        let end = offset + HEAD_BYTES as u64 + u64::from(len);
        if found != number || end > self.set_aside {
            return Ok(None);
        }
        let mut body = BytesMut::zeroed(len as usize);
        self.read_at(&mut body, offset + HEAD_BYTES as u64)?;
        if checksum(&head, &body) != crc {
            return Ok(None);
        }
        let record = self.decode(body.freeze(), offset + HEAD_BYTES as u64);
        // Its checksum is right, so this is not damage by the disk; but believing it would be worse.
        let record =
            record.ok_or_else(|| self.corrupted(format!("record {number} at byte {offset} makes no sense")))?;
        Ok(Some((record, end)))
    }

    fn decode(&self, mut body: Bytes, start: u64) -> Option<Record> {
        let total = body.len() as u64;
        let mut record = Record::default();
        let flags = body.try_get_u8().ok().filter(|flags| *flags < 16)?;
        if flags & 1 != 0 {
            let (term, vote, commit) =
                (body.try_get_u64_le().ok()?, body.try_get_u64_le().ok()?, body.try_get_u64_le().ok()?);
            record.hard_state = Some(HardState { term, vote, commit, ..Default::default() });
        }
        if flags & 2 != 0 {
            let (index, term) = (position(&mut body)?, body.try_get_u64_le().ok()?);
            record.previous = Some(Previous { index, term, restart: flags & 8 != 0 });
        }
        if flags & 4 != 0 {
            record.stamp = Some(body.try_get_u64_le().ok()?);
        }
        for _ in 0..body.try_get_u32_le().ok()? {
            let (index, term) = (position(&mut body)?, body.try_get_u64_le().ok()?);
            let kind = match body.try_get_u8().ok()? {
                0 => EntryType::EntryNormal,
                1 => EntryType::EntryConfChange,
                2 => EntryType::EntryConfChangeV2,
                NEEDS_LEVEL => EntryType::EntryNormal,
                _ => return None,
            };
            let len = body.try_get_u32_le().ok()?;
            let offset = start + total - body.len() as u64;
            if body.len() < len as usize {
                return None;
            }
            let data = body.split_to(len as usize);
            let crc = crc32fast::hash(&data);
            record.entries.push((index, Slot { term, kind, segment: self.number, offset, len, crc }, data));
        }
        body.is_empty().then_some(record)
    }

    /// Where the zeros at the end of the file begin, at `offset` at the earliest.
    fn zeros_from(&self, offset: u64) -> Result<u64> {
        let (mut piece, mut at, mut from) = (vec![0; GATHER_BYTES_MAX], offset, offset);
        while at < self.set_aside {
            let len = piece.len().min((self.set_aside - at) as usize);
            self.read_at(&mut piece[..len], at)?;
            from = piece[..len].iter().rposition(|b| *b != 0).map_or(from, |last| at + last as u64 + 1);
            at += len as u64;
        }
        Ok(from)
    }

    /// Looks at what follows the last good record, which ends at `offset`.  `shows`: whether a good record with this
    /// number and stamp, behind the bad bytes, shows that these were a record that is missed.
    pub fn tail_after(&self, offset: u64, number: u64, shows: impl Fn(u64, Option<u64>) -> bool) -> Result<Tail> {
        let zeros_from = self.zeros_from(offset)?;
        if zeros_from == offset {
            return Ok(Tail::Empty);
        }
        // A record may end with zeros of its own.
        let mut rest = vec![0; (self.set_aside - offset) as usize];
        let written = (zeros_from - offset) as usize;
        self.read_at(&mut rest[..written], offset)?;
        let mut checks_left = CHECKS_MAX * written as u64;
        for at in 1..written.min(rest.len().saturating_sub(HEAD_BYTES)) {
            if rest[at..at + 4] != MAGIC.to_le_bytes() {
                continue;
            }
            let (head, body) = rest[at..].split_at(HEAD_BYTES);
            let Some((len, found, crc)) = parse_head(head) else { continue };
            let Some(body) = body.get(..len as usize) else { continue };
            // At the start of a segment, the expected number may come from the bad bytes themselves, so any will do.
            if (found <= number && offset > 0) || !shows(found, stamp_of(body)) {
                continue;
            }
            // Bytes that look like thousands of records inside of each other would take hours.
            let Some(left) = checks_left.checked_sub(u64::from(len)) else { return Ok(Tail::Damaged) };
            checks_left = left;
            if checksum(head, body) == crc {
                return Ok(Tail::Damaged);
            }
        }
        Ok(Tail::Torn)
    }

    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(Error::disk(&self.path, "removing the segment"))
    }
}

impl SlotReader {
    /// An entry's data, verified.
    pub fn read(&self, slot: &Slot) -> Result<Bytes> {
        self.read_ahead(slot.offset + u64::from(slot.len));
        let mut data = BytesMut::zeroed(slot.len as usize);
        self.file.read_exact_at(&mut data, slot.offset).map_err(Error::disk(&self.path, "read"))?;
        if crc32fast::hash(&data) != slot.crc {
            let why = format!("the entry at byte {} has changed since it was written", slot.offset);
            return Err(Error::Corrupted { file: self.path.clone(), why });
        }
        Ok(data.freeze())
    }

    /// Whoever reads an old entry usually wants those that follow: they should wait for the disk once, and not each
    /// time.
    fn read_ahead(&self, from: u64) {
        let (to, ahead) = (from + READ_AHEAD_BYTES, self.ahead.load(Ordering::Relaxed));
        // If `from` is far below, this is another reader, who lacks more.
        if ahead >= from + READ_AHEAD_BYTES / 2 && ahead <= to + READ_AHEAD_BYTES {
            return;
        }
        self.ahead.store(to, Ordering::Relaxed);
        // SAFETY: a plain system call on a file descriptor that `self.file` keeps open.  It is advice; an error
        // does no harm.
        unsafe {
            libc::posix_fadvise(
                self.file.as_raw_fd(),
                from as libc::off_t,
                READ_AHEAD_BYTES as libc::off_t,
                libc::POSIX_FADV_WILLNEED,
            );
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    Empty,
    /// The remains of writes that a crash cut short.
    Torn,
    /// Bad bytes, and good records behind them that show that these were a record once.
    Damaged,
}

const SETTING_ASIDE: &str = "setting space aside";

/// Has the file system set aside space for a file, up to this offset.
pub(super) fn set_aside(file: &File, path: &Path, upto: u64) -> Result<()> {
    // SAFETY: a plain system call on a file descriptor that `file` keeps open.
    let rc = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, upto as libc::off_t) };
    match rc {
        0 => Ok(()),
        rc => {
            let source = std::io::Error::from_raw_os_error(rc);
            Err(Error::Disk { file: path.to_owned(), what: SETTING_ASIDE, source })
        }
    }
}

/// Writes zeros page by page.  The system keeps what came in one write in one piece, and looks at each page of a piece
/// whenever a record is written into it: that makes a record three times as expensive where the pieces have 1 MiB.
pub(super) fn write_zeros(file: &File, from: u64, upto: u64) -> std::io::Result<()> {
    let mut at = from;
    while at < upto {
        let end = (at + 1).next_multiple_of(PAGE_BYTES).min(upto);
        file.write_all_at(&[0; PAGE_BYTES as usize][..(end - at) as usize], at)?;
        at = end;
    }
    Ok(())
}

/// Length of a record of the Raft log with this hard state and these entries.
pub(super) fn record_bytes(hard_state: Option<&HardState>, entries: &[RaftEntry]) -> u64 {
    (HEAD_BYTES + body_len(hard_state, None, Some(0), entries)) as u64
}

fn body_len(
    hard_state: Option<&HardState>,
    previous: Option<Previous>,
    stamp: Option<u64>,
    entries: &[RaftEntry],
) -> usize {
    5 + hard_state.map_or(0, |_| 24)
        + previous.map_or(0, |_| 16)
        + stamp.map_or(0, |_| 8)
        + entries.iter().map(|e| 21 + e.data.len()).sum::<usize>()
}

/// Length, number, checksum.
fn parse_head(head: &[u8]) -> Option<(u32, u64, u32)> {
    let mut head = head;
    (head.try_get_u32_le().ok()? == MAGIC).then_some(())?;
    let (len, number) = (head.try_get_u32_le().ok()?, position(&mut head)?);
    Some((len, number, head.try_get_u32_le().ok()?))
}

/// What a body has as its stamp, if it is one.
fn stamp_of(mut body: &[u8]) -> Option<u64> {
    let flags = body.try_get_u8().ok().filter(|flags| flags & 4 != 0)?;
    let before = usize::from(flags & 1) * 24 + usize::from(flags >> 1 & 1) * 16;
    body.get(before..)?.try_get_u64_le().ok()
}

/// The number of a record, or an index.  No log gets near 2^62 of them, so sums of such numbers do not overflow.
fn position(bytes: &mut impl Buf) -> Option<u64> {
    bytes.try_get_u64_le().ok().filter(|n| *n < 1 << 62)
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[4..16]);
    crc.update(body);
    crc.finalize()
}
