//! Everything this node has promised, on disk: the Raft log with its hard state, the certifier's checkpoint, and the
//! incarnations of its PostgreSQL.
//!
//! It knows bytes and indexes, nothing of verdicts or peers.
//!
//! Invariants:
//! - When `append` returns `Ok` for something that must be synced, it is on stable storage.
//! - Damage is an error that names the file, never a shorter log; only writes that a crash cut short, and that were
//!   promised to nobody, are dropped.
//! - After a failed write or fsync nothing more is written: the error goes up and the node stops.

mod backlog;
mod checkpoint;
mod life;
mod log;
pub(crate) mod segment;
mod snapshot;
mod spare;
mod starts;
mod syncer;

pub use checkpoint::CheckpointFile;
#[cfg(feature = "lab")]
pub(crate) use life::LIFE_FILE;
pub(crate) use log::segment_numbers;
pub use log::RaftLog;
#[cfg(feature = "lab")]
pub(crate) use log::CLOSED_FILE;
pub use starts::StartsFile;

use crate::error::{Error, Result};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes the creation, renaming or removal of files in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::disk(dir, "fsync of the folder"))
}

/// Replaces a file: all of the new content is there, durably, or all of the old.  Who may read it stays as it was.
pub fn write_whole(file: &Path, raw: &[u8]) -> Result<()> {
    replace(file, raw, std::fs::metadata(file).ok().map(|old| old.permissions()))
}

/// The same for a file that only its owner may read, from its first byte on.
pub(crate) fn write_private(file: &Path, raw: &[u8]) -> Result<()> {
    replace(file, raw, Some(Permissions::from_mode(0o600)))
}

fn replace(file: &Path, raw: &[u8], permissions: Option<Permissions>) -> Result<()> {
    // Behind the whole name: with another ending it could be the name of something else.
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let mode = if permissions.is_some() { 0o600 } else { 0o666 };
    write_new(&unfinished, raw, mode, |written| permissions.map_or(Ok(()), |like| written.set_permissions(like)))?;
    rename(&unfinished, file)
}

/// Writes a file that is durable except for its name; `finish` may change it before that.  An existing file of this
/// name is removed first, so a thread that still writes to that one does no harm.
fn write_new(path: &Path, raw: &[u8], mode: u32, finish: impl FnOnce(&File) -> std::io::Result<()>) -> Result<()> {
    remove(path)?;
    let write = || -> std::io::Result<()> {
        let mut file = File::options().create_new(true).write(true).mode(mode).open(path)?;
        file.write_all(raw)?;
        finish(&file)?;
        file.sync_all()
    };
    write().map_err(Error::disk(path, "write"))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(Error::disk(to, "renaming"))?;
    sync_dir(to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::disk(path, "removing the file")(e)),
        _ => Ok(()),
    }
}
