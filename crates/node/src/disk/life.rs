//! What shows, after a crash, which records of the Raft log were durable.
//!
//! Several records may be written before one sync.  A loss of power takes any of their pages and leaves the others, so
//! good records may follow a hole, none of which was ever promised.  Where a record that was promised is damaged, the
//! file looks the same.  So each record has a *mark*, which says how many of those just before it were not known to be
//! durable when it was written; and the file `life` says with which record this life of the node began, since all that
//! an earlier one left was made durable then.
//!
//! A mark begins with a number that this life drew and nobody else knows.  So what a client has written, which may look
//! like a record, is not taken for one where a part of its own record is lost.
//!
//! Releases before marks write neither, and leave the file as it is.  What one of them wrote when it had taken the
//! place of this one has no marks, so each good record behind a hole is then taken to show that the hole is damage.
//! (Only the first record after this release has crashed is not protected in this way.)
//!
//! The file: the number of the first record, what marks begin with, and a CRC-32 in hexadecimal.  It is there while the
//! log is open for writing, and after a crash.

use super::sync_dir;
use super::write_whole;
use crate::error::{Error, Result};
use std::path::Path;

pub(crate) const LIFE_FILE: &str = "life";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    /// All records before this one are durable.
    pub first: u64,
    secret: u32,
}

impl Life {
    /// This life begins with the record `first`, and all before it are durable.
    pub fn begin(dir: &Path, first: u64) -> Result<Life> {
        Self::begin_with(dir, first, crate::secret::draw_number()? as u32)
    }

    pub(super) fn begin_with(dir: &Path, first: u64, secret: u32) -> Result<Life> {
        let body = format!("{first} {secret}");
        let line = format!("{body} {:08x}\n", crc32fast::hash(body.as_bytes()));
        write_whole(&dir.join(LIFE_FILE), line.as_bytes())?;
        Ok(Life { first, secret })
    }

    /// That of the last node that had the log open, unless it closed it.
    pub fn read(dir: &Path) -> Result<Option<Life>> {
        let file = dir.join(LIFE_FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Disk { file, what: "read", source }),
        };
        let parsed = text.trim_end().rsplit_once(' ').and_then(|(body, crc)| {
            let crc = u32::from_str_radix(crc, 16).ok()?;
            let (first, secret) = body.split_once(' ').filter(|_| crc == crc32fast::hash(body.as_bytes()))?;
            Some(Life { first: first.parse().ok()?, secret: secret.parse().ok()? })
        });
        parsed.map(Some).ok_or(Error::Corrupted { file, why: "it is damaged".into() })
    }

    /// The log is about to be closed: it will say itself where it ends.
    pub fn end(dir: &Path) -> Result<()> {
        let file = dir.join(LIFE_FILE);
        std::fs::remove_file(&file).map_err(Error::disk(&file, "removing the file"))?;
        sync_dir(dir)
    }

    /// The mark of record `number`, at a time when those before `durable` are known to be durable.
    pub fn mark(&self, number: u64, durable: u64) -> u64 {
        let unsynced = u32::try_from(number - durable).expect("nobody waits for so many records");
        u64::from(self.secret) << 32 | u64::from(unsynced)
    }

    /// Whether the good record `found` with this stamp shows that the record at `hole` was durable once.  `last`: the
    /// stamp of the record before the hole.
    pub fn shows(&self, hole: u64, last: Option<u64>, found: u64, stamp: Option<u64>) -> bool {
        if hole < self.first || (hole > self.first && last.is_none()) {
            return true;
        }
        let own = stamp.filter(|stamp| stamp >> 32 == u64::from(self.secret));
        own.is_some_and(|stamp| hole + (stamp & u64::from(u32::MAX)) < found)
    }
}
