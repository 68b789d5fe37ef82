//! The checkpoint: one file, always replaced as a whole, except for the two bytes that say whether it was made here.

use super::{remove, rename, write_new};
use crate::error::{Error, Result};
use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::{checkpoint, Checkpoint, LogIndex};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct CheckpointFile {
    path: PathBuf,
    /// Index of the newest one written in this life of the node.  A slower writer of an older one must not replace it.
    newest: Arc<Mutex<LogIndex>>,
    /// The checkpoint that is durable beside the file, ready to be installed.
    prepared: Arc<Mutex<Option<Prepared>>>,
}

/// Identifies a checkpoint: its length, and the CRC-32 of its head and body, which is at its end.  (The CRC-32 of all
/// its bytes is the same for all checkpoints of one length, as it is for any data followed by its own CRC.)
type Prepared = (usize, Vec<u8>);

fn name_of(raw: &[u8]) -> Prepared {
    (raw.len(), raw[raw.len().saturating_sub(4)..].to_vec())
}

impl CheckpointFile {
    pub fn new(path: PathBuf) -> Self {
        CheckpointFile { path, newest: Arc::default(), prepared: Arc::default() }
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

    /// Durable on return; a crash on the way leaves the old one.  `index`: the last entry that it covers.  Only one
    /// caller at a time.
    pub fn save(&self, index: LogIndex, raw: &[u8]) -> Result<()> {
        let temporary = self.path.with_extension("new");
        write_new(&temporary, raw, 0o666, |_| Ok(()))?;
        self.replace(index, &temporary)
    }

    /// Writes a verified checkpoint that came from elsewhere durably beside the file, in place of one that was prepared
    /// before.  So little is left to do for [`CheckpointFile::install`].
    pub fn prepare(&self, raw: &[u8]) -> Result<()> {
        let mut prepared = self.prepared.lock().expect("no code that holds this lock panics");
        *prepared = None;
        let mark = |file: &File| file.write_all_at(&checkpoint::installed_origin(), checkpoint::ORIGIN_AT as u64);
        write_new(&self.prepared_path(), raw, 0o666, mark)?;
        *prepared = Some(name_of(raw));
        Ok(())
    }

    /// Removes what an earlier life of the node prepared, which may be incomplete.
    pub fn forget_prepared(&self) -> Result<()> {
        remove(&self.prepared_path())
    }

    /// The same as [`CheckpointFile::save`] for a checkpoint that came from elsewhere: from now on the log may end
    /// before it.
    pub fn install(&self, index: LogIndex, raw: &[u8]) -> Result<()> {
        if self.take_prepared() != Some(name_of(raw)) {
            self.prepare(raw)?;
            self.take_prepared();
        }
        self.replace(index, &self.prepared_path())
    }

    fn take_prepared(&self) -> Option<Prepared> {
        self.prepared.lock().expect("no code that holds this lock panics").take()
    }

    fn prepared_path(&self) -> PathBuf {
        self.path.with_extension("received")
    }

    /// Replaces the checkpoint by the file `by`, which is written and synced.
    fn replace(&self, index: LogIndex, by: &Path) -> Result<()> {
        let mut newest = self.newest.lock().expect("no code that holds this lock panics");
        if index < *newest {
            return remove(by);
        }
        rename(by, &self.path)?;
        *newest = index;
        Ok(())
    }

    /// The log is in order again: from now on it may not end before the installed checkpoint.
    pub fn mark_log_in_order(&self) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let file = File::options().write(true).open(&self.path)?;
            file.write_all_at(&checkpoint::in_order_origin(), checkpoint::ORIGIN_AT as u64)?;
            file.sync_all()
        };
        write().map_err(Error::disk(&self.path, "write"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was prepared beside the file is used if it is the same checkpoint, and nothing of it is left.
    #[test]
    fn a_checkpoint_is_installed_as_it_came_whatever_was_prepared() {
        let members = onetrip_core::Members::bootstrap(Vec::new(), "r".into(), 8);
        let checkpoint = |index| {
            let mut state = Checkpoint::bootstrap(members.clone(), Limits::default());
            (1..=index).for_each(|at| state.certifier.skip(LogIndex(at)).unwrap());
            state.encode()
        };
        let dir = tempfile::tempdir().unwrap();
        let file = CheckpointFile::new(dir.path().join("certifier.checkpoint"));
        for (index, prepared) in [(1, None), (2, Some(2)), (3, Some(7)), (4, None)] {
            if let Some(prepared) = prepared {
                file.prepare(&checkpoint(prepared)).unwrap();
            }
            file.install(LogIndex(index), &checkpoint(index)).unwrap();
            assert_eq!(file.read().unwrap().unwrap(), checkpoint::installed(&checkpoint(index)), "{index}");
            assert!(!file.prepared_path().exists());
        }
        // A slightly older one, which this node made in the meantime, does not replace it.
        file.save(LogIndex(3), &checkpoint(3)).unwrap();
        assert_eq!(file.load(Limits::default()).unwrap().unwrap().index(), LogIndex(4));
        file.prepare(&checkpoint(9)).unwrap();
        file.forget_prepared().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
