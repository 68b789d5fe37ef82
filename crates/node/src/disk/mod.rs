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

pub use checkpoint::{write_whole, CheckpointFile};
#[cfg(feature = "lab")]
pub(crate) use life::LIFE_FILE;
pub(crate) use log::segment_numbers;
pub use log::RaftLog;
#[cfg(feature = "lab")]
pub(crate) use log::CLOSED_FILE;
pub use starts::StartsFile;

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes the creation, renaming or removal of files in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::disk(dir, "fsync of the folder"))
}

/// Replaces a small file, durably: after a crash it is there as a whole, or as it was.  It has this mode from its first
/// byte on.
pub(crate) fn replace_file(file: &Path, text: &str, mode: u32) -> Result<()> {
    let unfinished = file.with_extension("unfinished");
    let write = || {
        let _ = std::fs::remove_file(&unfinished);
        let mut opened = File::options().create_new(true).write(true).mode(mode).open(&unfinished)?;
        opened.write_all(text.as_bytes())?;
        opened.sync_all()?;
        std::fs::rename(&unfinished, file)
    };
    write().map_err(Error::disk(file, "writing"))?;
    sync_dir(file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}
