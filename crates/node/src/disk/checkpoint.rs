//! The certifier's checkpoint: one file, replaced whole.

use super::sync_dir;
use crate::error::{Error, Result};
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, History, Limits};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Clone)]
pub struct CheckpointFile(PathBuf);

impl CheckpointFile {
    pub fn new(path: PathBuf) -> Self {
        CheckpointFile(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What was saved last; a fresh certifier if nothing ever was.
    pub fn load(&self, limits: Limits) -> Result<(Certifier, History)> {
        let raw = match std::fs::read(&self.0) {
            Ok(raw) => Bytes::from(raw),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok((Certifier::new(limits), History::default()))
            }
            Err(source) => return Err(Error::Disk { file: self.0.clone(), what: "read", source }),
        };
        Certifier::from_checkpoint(raw, limits)
            .map_err(|e| Error::Corrupted { file: self.0.clone(), why: e.to_string() })
    }

    /// Durable on return; a crash on the way leaves the old one.
    pub fn save(&self, raw: &[u8]) -> Result<()> {
        write_whole(&self.0, raw)
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
