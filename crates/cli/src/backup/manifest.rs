//! `manifest.json`: what a backup is, and that it is whole; it is written last.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context, Result};
use onetrip_core::{LogIndex, NodeId, RegionId};
use serde::{Deserialize, Serialize};

pub const MANIFEST: &str = "manifest.json";
pub const POSTGRES: &str = "postgres";
pub const CHECKPOINT: &str = "certifier.checkpoint";
/// The entries between the checkpoint and `position`, as an archive.
pub const LOG: &str = "log";
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub onetrip_version: String,
    pub cluster: String,
    pub node: NodeId,
    pub region: RegionId,
    pub database: String,
    /// Major version of PostgreSQL.
    pub postgres_version: String,
    pub window_entries: u64,
    pub max_entry_bytes: u64,
    pub sequence_stride: u32,
    pub sequence_slot: u32,
    /// What the log decided up to here is in the checkpoint.
    pub checkpoint: LogIndex,
    /// The copied PostgreSQL shows no entry above this one: the lowest position that can be restored.
    pub position: LogIndex,
    pub started: String,
    pub finished: String,
    pub finished_ms: u64,
    pub bytes: u64,
}

impl Manifest {
    pub const FORMAT: u32 = FORMAT;

    pub fn load(backup: &Path) -> Result<Manifest> {
        let file = backup.join(MANIFEST);
        let raw = match std::fs::read(&file) {
            Ok(raw) => raw,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && backup.is_dir() => bail!(
                "{} holds no {MANIFEST}: it is no backup, or one that was not finished; take another one",
                backup.display()
            ),
            Err(e) => return Err(e).with_context(|| format!("read {}", file.display())),
        };
        let manifest: Manifest = serde_json::from_slice(&raw)
            .with_context(|| format!("{} is damaged; take another backup", file.display()))?;
        if manifest.format != FORMAT {
            bail!("{} has format {}; this version reads format {FORMAT}", file.display(), manifest.format);
        }
        Ok(manifest)
    }

    /// Durable on return: from now on the folder is a backup.
    pub fn save(&self, backup: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        write_durably(&backup.join(MANIFEST), &text)
    }
}

/// Under another name first, so that the file is whole or absent.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let write = || -> std::io::Result<()> {
        std::fs::write(&unfinished, bytes)?;
        std::fs::File::open(&unfinished)?.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().with_context(|| format!("write {}", path.display()))
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// `2026-11-22T01:00:00.250Z`.
pub fn time_text(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// UTC, with or without the `T` and the `Z`.
pub fn parse_time(text: &str) -> std::result::Result<u64, String> {
    let parsed = humantime::parse_rfc3339_weak(text.trim()).map_err(|e| {
        format!(
            "{text:?} is no time ({e}): write it in UTC, such as 2026-11-22T14:30:00Z or \"2026-11-22 14:30:00.250\""
        )
    })?;
    let since = parsed.duration_since(UNIX_EPOCH).map_err(|_| format!("{text:?} is before 1970"))?;
    Ok(since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_in_and_out() {
        let ms = 1_795_309_200_250;
        assert_eq!(time_text(ms), "2026-11-22T01:00:00.250Z");
        for text in ["2026-11-22T01:00:00.250Z", "2026-11-22 01:00:00.250", " 2026-11-22T01:00:00.25 "] {
            assert_eq!(parse_time(text), Ok(ms), "{text}");
        }
        for text in ["", "yesterday", "2026-11-22", "2026-11-22T01:00:00+02:00", "1969-12-31T23:59:59Z"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
