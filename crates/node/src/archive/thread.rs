//! The archiver: takes batches, writes them, syncs once a second, and tries again when its disk fails.

use super::writer::Writer;
use super::{last_backup, ArchiveError, Batch, Identity, Shared, CLAIMED_FILE, IDENTITY_FILE};
use crate::config::NodeConfig;
use crate::disk::write_whole;
use onetrip_core::LogIndex;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SYNC_EVERY: Duration = Duration::from_secs(1);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// With nothing to write, it shows this often that its disk works.
const IDLE_SYNC_EVERY: Duration = Duration::from_secs(10);

/// Tells when the thread has ended.
pub(super) struct Ended(Receiver<()>);

impl Ended {
    pub fn wait(&self, most: Duration) -> bool {
        matches!(self.0.recv_timeout(most), Err(RecvTimeoutError::Disconnected))
    }
}

struct Archiver {
    folder: PathBuf,
    identity: Identity,
    claimed: PathBuf,
    shared: Arc<Shared>,
    batches: Receiver<Batch>,
    /// A file that failed: its name, and how many bytes of it are known to be good.
    to_cut: Option<(PathBuf, u64)>,
}

enum Why {
    NodeEnds,
    Failed(ArchiveError),
}

pub(super) fn spawn(
    folder: PathBuf,
    config: &NodeConfig,
    shared: Arc<Shared>,
    batches: Receiver<Batch>,
) -> crate::Result<Ended> {
    let (held, ended) = std::sync::mpsc::channel();
    let (identity, claimed) = (Identity::of(config), config.data_dir.join(CLAIMED_FILE));
    let mut archiver = Archiver { folder, identity, claimed, shared, batches, to_cut: None };
    let body = move || {
        archiver.run();
        drop::<std::sync::mpsc::Sender<()>>(held);
    };
    crate::span::spawn_thread("onetrip-archive", body)?;
    Ok(Ended(ended))
}

impl Archiver {
    fn run(&mut self) {
        loop {
            let mut writer = None;
            let why = match self.open() {
                Ok(opened) => self.work(writer.insert(opened)),
                Err(e) => Why::Failed(e),
            };
            let Why::Failed(error) = why else { return };
            self.to_cut = writer.and_then(Writer::broken).or(self.to_cut.take());
            let problem = error.to_string();
            let mut state = self.shared.lock();
            state.opened_at = None;
            if state.problem.as_ref() != Some(&problem) {
                tracing::error!("the archive: {problem}");
            }
            state.problem = Some(problem);
            drop(state);
            if !self.pause() {
                return;
            }
        }
    }

    /// Waits before the next try.  `false`: the node ends.
    fn pause(&self) -> bool {
        let until = Instant::now() + TRY_AGAIN_AFTER;
        loop {
            match self.batches.recv_timeout(until.saturating_duration_since(Instant::now())) {
                // It is for the life that has just ended; its entries are read from the log again.
                Ok(batch) => self.shared.lock().under_way_bytes -= batch.bytes,
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn open(&mut self) -> super::Result<Writer> {
        if let Some((file, bytes)) = &self.to_cut {
            let cut = || {
                let file = std::fs::File::options().write(true).open(file)?;
                file.set_len(*bytes)?;
                file.sync_all()
            };
            match cut() {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(ArchiveError::disk(file, "cutting off what was not synced")(e));
                }
                _ => self.to_cut = None,
            }
        }
        let is_noted = match std::fs::read(&self.claimed) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            noted => noted.map_err(ArchiveError::disk(&self.claimed, "reading"))? == self.folder.as_os_str().as_bytes(),
        };
        // The folder of a disk that is not mounted looks like a new one.
        if is_noted && self.folder.is_dir() && !self.folder.join(IDENTITY_FILE).exists() {
            return Err(ArchiveError::NotMounted { folder: self.folder.clone(), note: self.claimed.clone() });
        }
        let writer = Writer::open(&self.folder, &self.identity)?;
        if !is_noted {
            write_whole(&self.claimed, self.folder.as_os_str().as_bytes())?;
        }
        let last_backup = last_backup(&self.folder);
        let mut state = self.shared.lock();
        state.life += 1;
        state.opened_at = Some(writer.last());
        state.archived = writer.last().or(state.archived);
        state.time_ms = writer.time_ms();
        state.alive = Some(Instant::now());
        state.gap = writer.gap();
        state.last_backup = last_backup;
        state.problem = None;
        tracing::info!(
            folder = %self.folder.display(),
            index = %writer.last().unwrap_or(LogIndex::ZERO), "archive opened"
        );
        Ok(writer)
    }

    fn work(&self, writer: &mut Writer) -> Why {
        let life = self.shared.lock().life;
        let (mut sync_at, mut is_due) = (Instant::now() + IDLE_SYNC_EVERY, false);
        loop {
            let (batch, ends) = match self.batches.recv_timeout(sync_at.saturating_duration_since(Instant::now())) {
                Ok(batch) => (Some(batch), false),
                Err(RecvTimeoutError::Timeout) => (None, false),
                Err(RecvTimeoutError::Disconnected) => (None, true),
            };
            let work = || {
                if let Some(batch) = batch {
                    self.shared.lock().under_way_bytes -= batch.bytes;
                    // While it is empty there is nothing whose time could be noted.
                    if batch.life == life && !(batch.entries.is_empty() && writer.last().is_none()) {
                        writer.append(batch.previous, batch.time_ms, &batch.entries)?;
                        if !std::mem::replace(&mut is_due, true) {
                            sync_at = Instant::now() + SYNC_EVERY;
                        }
                    }
                }
                if ends || sync_at <= Instant::now() {
                    writer.sync()?;
                    (sync_at, is_due) = (Instant::now() + IDLE_SYNC_EVERY, false);
                    let last_backup = last_backup(&self.folder);
                    let mut state = self.shared.lock();
                    state.archived = writer.last().or(state.archived);
                    state.time_ms = writer.time_ms();
                    state.alive = Some(Instant::now());
                    state.gap = writer.gap();
                    state.last_backup = last_backup;
                }
                if ends {
                    writer.close()?;
                }
                Ok(())
            };
            match work() {
                Ok(()) if ends => return Why::NodeEnds,
                Ok(()) => {}
                Err(e) => return Why::Failed(e),
            }
        }
    }
}
