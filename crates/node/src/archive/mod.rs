//! The archive: the committed log in order, kept in a folder outside the node (`docs/backup.md`).
//!
//! ```text
//!   core thread ── batches, within a credit ──> archiver thread ──> segments, synced once a second
//!        ^───────── where the archive ends, what is wrong ─────────┘
//! ```
//!
//! The core thread reads from the log what the archive lacks, so a slow or full archive delays nothing; it only keeps
//! the log from being cut.  A restore reads it back ([`Reader`]).
//!
//! Invariants:
//! - Entries go into it in log order, each once, even across restarts and failures of its disk.
//! - What it lacks for ever (because the log was cut) can be seen from the names of its segments; its report and a
//!   restore say so.

mod error;
mod reader;
mod thread;
mod writer;

pub use error::{ArchiveError, Result};
pub use reader::{Reader, Stored};
pub use writer::Writer;

use crate::config::NodeConfig;
pub use crate::disk::segment::Previous;
use crate::disk::RaftLog;
use onetrip_core::{LogIndex, NodeId, RegionId};
use raft::eraftpb::Entry as RaftEntry;
use raft::{GetEntriesContext, Storage};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thread::Ended;

const IDENTITY_FILE: &str = "archive.json";
/// The same before it has its name.
const IDENTITY_UNFINISHED: &str = "archive.json.unfinished";
/// In the node's folder: the folder of the archive, once there is one.
const CLAIMED_FILE: &str = "archive.claimed";
/// Names the entries that are missing; if there are several gaps, those of the last one.
const GAP_FILE: &str = "gap.json";
/// `onetrip backup` notes here, in the archive's folder, what it has made.
pub const LAST_BACKUP_FILE: &str = "last_backup.json";
/// What lies beside the segments.
#[cfg(feature = "lab")]
pub(crate) const NOTES: [&str; 3] = [IDENTITY_FILE, GAP_FILE, LAST_BACKUP_FILE];
/// How much is read from the log at once.
const BATCH_BYTES: u64 = 1 << 20;
/// How often that is done in a row, if it does not come from the disk.
const BATCHES_AT_ONCE: usize = 4;
/// Handed to the archiver and not yet written.
const UNDER_WAY_BYTES_MAX: usize = 32 << 20;
const BATCHES_MAX: usize = 4096;
/// Entries decided within this time get the same time.
const MARK_EVERY: Duration = Duration::from_millis(10);
/// While the archive cannot be written, this many times are kept (hours of full load); later entries get one time, that
/// of the last of them.
const MARKS_MAX: usize = 1 << 20;
/// A clock that is off by more than this is taken to be wrong, and then to be right again.
pub(crate) const CLOCK_OFF_MS: u64 = 60_000;
/// With nothing to archive, it is noted this often up to what time nothing newer was decided anywhere.
const QUIET_MARK_EVERY: Duration = Duration::from_secs(10);
/// In an archive of a node that works and reaches a majority no two times are further apart than this, whether there is
/// an entry between them or not.
pub(crate) const SILENCE_MS_MAX: u64 = 30_000;
/// An archive that takes longer for a write is reported.
const SLOW_AFTER: Duration = Duration::from_secs(30);
/// How long a node that stops waits for the archive.
const END_WAIT: Duration = Duration::from_secs(5);

/// Whose log is in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub format: u32,
    pub cluster: String,
    pub node: NodeId,
    pub region: RegionId,
}

impl Identity {
    pub fn of(config: &NodeConfig) -> Identity {
        Identity { format: 1, cluster: config.cluster.clone(), node: config.node, region: config.region.clone() }
    }

    fn read(dir: &Path) -> Result<Option<Identity>> {
        let file = dir.join(IDENTITY_FILE);
        let raw = match std::fs::read(&file) {
            Ok(raw) => raw,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ArchiveError::disk(&file, "reading")(e)),
        };
        let identity: Identity =
            serde_json::from_slice(&raw).map_err(|e| ArchiveError::damaged(&file, e.to_string()))?;
        match identity.format {
            1 => Ok(Some(identity)),
            other => Err(ArchiveError::damaged(&file, format!("format {other} is unknown to this version"))),
        }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} ({}) of cluster {}", self.node, self.region, self.cluster)
    }
}

/// The last base backup, as `onetrip backup` notes it in the archive's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    /// A restore from it needs the entries after this one.
    pub checkpoint: LogIndex,
    pub position: LogIndex,
    pub finished: String,
    /// The same in milliseconds since 1970; the note of an earlier release has only the text.
    #[serde(default)]
    pub finished_ms: Option<u64>,
}

/// Entries that the archive lacks for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    from: LogIndex,
    to: LogIndex,
}

impl Gap {
    /// A restore from this backup needs none of these entries.
    fn is_covered_by(&self, backup: Option<&LastBackup>) -> bool {
        backup.is_some_and(|backup| backup.checkpoint >= self.to)
    }
}

/// A note that cannot be read is as good as none: it only quiets a warning.
fn last_backup(folder: &Path) -> Option<LastBackup> {
    let mut backup: LastBackup = serde_json::from_slice(&std::fs::read(folder.join(LAST_BACKUP_FILE)).ok()?).ok()?;
    let of_text = || {
        let finished = time::OffsetDateTime::parse(&backup.finished, &time::format_description::well_known::Rfc3339);
        u64::try_from(finished.ok()?.unix_timestamp_nanos() / 1_000_000).ok()
    };
    backup.finished_ms = backup.finished_ms.or_else(of_text);
    Some(backup)
}

/// For `GET /status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveReport {
    pub folder: PathBuf,
    /// The last entry that is safe in it.
    pub archived: LogIndex,
    /// Entries that are decided here and not yet archived.
    pub lag_entries: u64,
    /// When the last archived entry was decided, in milliseconds since 1970.
    pub time_ms: u64,
    /// How old what it lacks may be: 0 if it lacks nothing, and absent while it holds nothing.
    pub age_ms: Option<u64>,
    pub last_backup: Option<LastBackup>,
    pub problem: Option<String>,
}

/// The core thread's side.
pub struct Archive {
    folder: PathBuf,
    shared: Arc<Shared>,
    /// `None`: the archiver was told to end.
    batches: Option<SyncSender<Batch>>,
    ended: Ended,
    /// The entry that is sent next, and the life of the archive in which that holds.
    next: Option<(u64, LogIndex)>,
    decided: Marks,
    /// When the last batch was handed over, or others were last asked whether something newer was decided.
    quiet_since: Instant,
    /// The time that others are asked about, unless a batch has been handed over since.
    quiet_asked_ms: Option<u64>,
    /// Up to this time nothing was acknowledged anywhere that is not in `decided`.
    quiet_until_ms: Option<u64>,
}

struct Batch {
    life: u64,
    previous: Previous,
    time_ms: u64,
    entries: Vec<RaftEntry>,
    bytes: usize,
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// Counts how often the archive was opened; batches for an earlier life are passed over.
    life: u64,
    /// While it is open: where it ended when it was opened, `Some(None)` if it was empty.
    opened_at: Option<Option<LogIndex>>,
    under_way_bytes: usize,
    archived: Option<LogIndex>,
    /// When the archiver last finished something: opening the archive, or a sync.
    alive: Option<Instant>,
    time_ms: u64,
    gap: Option<Gap>,
    last_backup: Option<LastBackup>,
    problem: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after each statement that changes it, so a panic elsewhere leaves it readable.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Archive {
    /// `decided`: everything up to here was decided before this life of the node, at times that nobody remembers.
    pub fn start(config: &NodeConfig, folder: &Path, decided: LogIndex) -> crate::Result<Archive> {
        let shared = Arc::new(Shared::default());
        shared.lock().alive = Some(Instant::now());
        let (batches, taken) = std::sync::mpsc::sync_channel(BATCHES_MAX);
        let ended = thread::spawn(folder.to_owned(), config, shared.clone(), taken)?;
        let mut marks = Marks::default();
        marks.note(decided, Instant::now(), now_ms());
        Ok(Archive {
            folder: folder.to_owned(),
            shared,
            batches: Some(batches),
            ended,
            next: None,
            decided: marks,
            quiet_since: Instant::now(),
            quiet_asked_ms: None,
            quiet_until_ms: None,
        })
    }

    /// Nothing came for a while: the time for which it wants to be told ([`Archive::quiet_until`]) that all is here.
    pub fn asks_whether_quiet(&mut self) -> Option<u64> {
        if self.quiet_since.elapsed() < QUIET_MARK_EVERY {
            return None;
        }
        self.quiet_since = Instant::now();
        // An answer to an earlier question will do, and says what it was asked.
        Some(*self.quiet_asked_ms.get_or_insert_with(now_ms))
    }

    /// Everything that was acknowledged anywhere before this time is decided here.  That says nothing new if something
    /// has been handed over since it was asked, with a later time.
    pub fn quiet_until(&mut self, time_ms: u64) {
        if self.quiet_asked_ms == Some(time_ms) {
            (self.quiet_asked_ms, self.quiet_until_ms) = (None, Some(time_ms));
        }
    }

    /// Everything up to `index` is decided.
    pub fn decided(&mut self, index: LogIndex) {
        self.decided.note(index, Instant::now(), now_ms());
    }

    /// Hands the archiver what the archive lacks, as far as its credit goes and without keeping the caller long.
    pub fn pump(&mut self, log: &RaftLog) -> crate::Result<()> {
        for number in 0..BATCHES_AT_ONCE {
            let Some((life, next)) = self.next_to_send(log).filter(|(_, next)| number == 0 || log.is_cached(*next))
            else {
                break;
            };
            let Some((decided, time_ms)) = self.decided.from(next) else {
                self.note_quiet(life, next, log)?;
                break;
            };
            let whole = log.entries(next.0, decided.0 + 1, BATCH_BYTES, GetEntriesContext::empty(false));
            let read = whole.and_then(|entries| Ok((entries, log.term(next.0 - 1)?)));
            let (entries, term) =
                read.map_err(|e| crate::Error::Internal(format!("reading the log to archive it: {e}")))?;
            let Some(last) = entries.last().map(|e| LogIndex(e.index)) else { break };
            let previous = Previous::new(next.0 - 1, term);
            let bytes = entries.iter().map(|e| e.data.len() + 64).sum();
            if !self.hand_over(Batch { life, previous, time_ms, entries, bytes }) {
                break;
            }
            self.next = Some((life, last.next()));
        }
        Ok(())
    }

    /// `false`: the archiver takes no more at the moment.
    fn hand_over(&mut self, batch: Batch) -> bool {
        let bytes = batch.bytes;
        self.shared.lock().under_way_bytes += bytes;
        let is_taken = self.batches.as_ref().is_some_and(|batches| batches.try_send(batch).is_ok());
        match is_taken {
            // What it says of the time is newer than what was confirmed before.
            true => (self.quiet_since, self.quiet_asked_ms, self.quiet_until_ms) = (Instant::now(), None, None),
            false => self.shared.lock().under_way_bytes -= bytes,
        }
        is_taken
    }

    /// All that is decided was handed over, up to `next`: so may be the time up to which that is all there was.
    fn note_quiet(&mut self, life: u64, next: LogIndex, log: &RaftLog) -> crate::Result<()> {
        let Some(time_ms) = self.quiet_until_ms else { return Ok(()) };
        let before = next.0 - 1;
        let term =
            log.term(before).map_err(|e| crate::Error::Internal(format!("reading the log to archive it: {e}")))?;
        self.hand_over(Batch { life, previous: Previous::new(before, term), time_ms, entries: Vec::new(), bytes: 0 });
        Ok(())
    }

    /// For which life of the archive and from which entry to go on, if it takes more now.
    fn next_to_send(&mut self, log: &RaftLog) -> Option<(u64, LogIndex)> {
        let mut state = self.shared.lock();
        let end = state.opened_at?;
        if state.under_way_bytes >= UNDER_WAY_BYTES_MAX {
            return None;
        }
        let mut next = match self.next {
            Some((life, next)) if life == state.life => next,
            _ => end.map_or(log.first_index(), LogIndex::next),
        };
        if next.0 > log.last_index().0 + 1 {
            state.problem = Some(format!(
                "it ends at entry {}, this node's log at {}: it was written by another life of this node; set a new folder",
                next.0 - 1,
                log.last_index()
            ));
            return None;
        }
        // What was cut before it came here is missing for ever; the writer notes it.
        next = next.max(log.first_index());
        self.next = Some((state.life, next));
        self.next
    }

    /// The last entry that is safe in the archive: the log is kept from there on.
    pub fn archived(&self) -> LogIndex {
        self.shared.lock().archived.unwrap_or(LogIndex::ZERO)
    }

    pub fn report(&self, decided: LogIndex) -> ArchiveReport {
        let state = self.shared.lock();
        let archived = state.archived.unwrap_or(LogIndex::ZERO);
        let silent = state.alive.map_or(Duration::ZERO, |at| at.elapsed());
        let slow = (silent > SLOW_AFTER && archived < decided).then(|| {
            format!(
                "its disk has not finished a write for {} s, and it is {} entries behind: see to {}",
                silent.as_secs(),
                decided.0 - archived.0,
                self.folder.display()
            )
        });
        let gap = state.gap.filter(|gap| !gap.is_covered_by(state.last_backup.as_ref())).map(|Gap { from, to }| {
            format!(
                "it lacks entries {from} to {to}, some of which were cut before they were archived: make a new base backup \
                 (`onetrip backup`), older ones can be restored only to positions below {from}"
            )
        });
        let lag_entries = decided.0.saturating_sub(archived.0);
        let age_ms = match lag_entries {
            0 => Some(0),
            _ => (state.time_ms > 0).then(|| now_ms().saturating_sub(state.time_ms)),
        };
        ArchiveReport {
            folder: self.folder.clone(),
            archived,
            lag_entries,
            time_ms: state.time_ms,
            age_ms,
            last_backup: state.last_backup.clone(),
            problem: state.problem.clone().or(slow).or(gap),
        }
    }

    /// Ends the archiver, and waits a little for it to write what it has been handed.
    pub fn end(mut self) {
        self.batches = None;
        if !self.ended.wait(END_WAIT) {
            tracing::warn!("the archive does not end in time; it goes on from where it is at the next start");
        }
    }
}

/// Notes up to which index everything was decided at which time, oldest first.
#[derive(Default)]
struct Marks {
    marks: VecDeque<(LogIndex, u64)>,
    last: Option<Instant>,
}

impl Marks {
    fn note(&mut self, index: LogIndex, now: Instant, now_ms: u64) {
        let soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < MARK_EVERY);
        let full = self.marks.len() >= MARKS_MAX;
        match self.marks.back_mut() {
            Some(last) if soon || last.0 >= index => last.0 = last.0.max(index),
            // What is taken to be later than it was is missed by a restore to a time, which says so.
            Some(last) if full => *last = (index, now_ms),
            _ => {
                self.marks.push_back((index, now_ms));
                self.last = Some(now);
            }
        }
    }

    /// The first mark at or above `next`, if that is decided.  Forgets those below, except for the last one: if the
    /// archive loses what it had not synced, those entries get a later time than they had.
    fn from(&mut self, next: LogIndex) -> Option<(LogIndex, u64)> {
        while self.marks.len() > 1 && self.marks[0].0 < next {
            self.marks.pop_front();
        }
        self.marks.front().copied().filter(|(index, _)| *index >= next)
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests;
