//! The checkpoint: one file, replaced whole, but for the two bytes that say whether it was made here.

use super::sync_dir;
use crate::error::{Error, Result};
use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::{checkpoint, Checkpoint, LogIndex};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct CheckpointFile {
    path: PathBuf,
    /// Of the newest that was written in this life.  A slower writer of an older one must not replace it.
    newest: Arc<Mutex<LogIndex>>,
}

impl CheckpointFile {
    pub fn new(path: PathBuf) -> Self {
        CheckpointFile { path, newest: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was saved last, if anything ever was.
    pub fn load(&self, limits: Limits) -> Result<Option<Checkpoint>> {
        let Some(raw) = self.read()? else { return Ok(None) };
        Checkpoint::decode(raw, limits).map(Some).map_err(|e| self.corrupted(&e))
    }

    /// Its bytes, not verified.
    pub fn read(&self) -> Result<Option<Bytes>> {
        match std::fs::read(&self.path) {
            Ok(raw) => Ok(Some(Bytes::from(raw))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Disk { file: self.path.clone(), what: "read", source }),
        }
    }

    pub fn corrupted(&self, why: &onetrip_core::Error) -> Error {
        Error::Corrupted { file: self.path.clone(), why: why.to_string() }
    }

    /// Durable on return; a crash on the way leaves the old one.  `index`: the last that it covers.
    pub fn save(&self, index: LogIndex, raw: &[u8]) -> Result<()> {
        let mut newest = self.newest.lock().expect("no code that holds this lock panics");
        if index < *newest {
            return Ok(());
        }
        write_whole(&self.path, raw)?;
        *newest = index;
        Ok(())
    }

    /// The same for one that came from elsewhere: from now on the log may be shorter than it.
    pub fn install(&self, index: LogIndex, raw: &[u8]) -> Result<()> {
        self.save(index, &checkpoint::installed(raw))
    }

    /// The log is in order again: from now on it may not be shorter than the installed checkpoint.
    pub fn mark_log_in_order(&self) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let file = File::options().write(true).open(&self.path)?;
            file.write_all_at(&checkpoint::in_order_origin(), checkpoint::ORIGIN_AT as u64)?;
            file.sync_all()
        };
        write().map_err(Error::disk(&self.path, "write"))
    }
}

/// Replaces a file: all of the new content is there, durably, or all of the old.
pub(crate) fn write_whole(path: &Path, raw: &[u8]) -> Result<()> {
    let temporary = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(raw)?;
        file.sync_all()
    };
    write().map_err(Error::disk(&temporary, "write"))?;
    std::fs::rename(&temporary, path).map_err(Error::disk(path, "renaming"))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}
