//! `manifest.json`: describes a backup.  It is written last, so a folder that contains one is a complete backup.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context, Result};
use onetrip_core::{LogIndex, NodeId, RegionId};
use onetrip_node::config::KeySeed;
use onetrip_node::disk::write_whole;
use serde::{Deserialize, Serialize};

pub const MANIFEST: &str = "manifest.json";
pub const POSTGRES: &str = "postgres";
pub const CHECKPOINT: &str = "certifier.checkpoint";
/// The entries between the checkpoint and `position`, as an archive.
pub const LOG: &str = "log";
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
    /// As in `node.toml`.
    #[serde(default, skip_serializing_if = "KeySeed::is_none")]
    pub key_seed: KeySeed,
    /// The log index of the checkpoint.
    pub checkpoint: LogIndex,
    /// The copied PostgreSQL shows no entry above this one, so this is the lowest position that can be restored.
    pub position: LogIndex,
    pub started: String,
    pub finished: String,
    pub finished_ms: u64,
    pub bytes: u64,
}

impl Manifest {
    pub const FORMAT: u32 = 1;

    pub fn load(backup: &Path) -> Result<Manifest> {
        let file = backup.join(MANIFEST);
        let raw = match std::fs::read(&file) {
            Ok(raw) => raw,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && backup.is_dir() => bail!(
                "{} contains no {MANIFEST}: it is not a backup, or one that was not finished; use another backup",
                backup.display()
            ),
            Err(e) => return Err(e).with_context(|| format!("read {}", file.display())),
        };
        Manifest::parse(&raw, &file)
    }

    pub fn parse(raw: &[u8], file: &Path) -> Result<Manifest> {
        let manifest: Manifest = serde_json::from_slice(raw)
            .with_context(|| format!("{} is damaged; use another backup", file.display()))?;
        if manifest.format != Manifest::FORMAT {
            let reads = Manifest::FORMAT;
            bail!("{} has format {}; this version reads format {reads}", file.display(), manifest.format);
        }
        Ok(manifest)
    }

    /// Durable on return: from now on the folder is a backup.
    pub fn save(&self, backup: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        Ok(write_whole(&backup.join(MANIFEST), &text)?)
    }
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// The end of the year 9999, the last that the format can express.  Only a wrong clock or a damaged archive gets there.
const TIME_MS_MAX: u64 = 253_402_300_799_999;

/// `2026-11-22T01:00:00.250Z`.
pub fn time_text(ms: u64) -> String {
    if ms > TIME_MS_MAX {
        return format!("{ms} ms after 1970");
    }
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// Reads a time in UTC, with or without the `T` and the `Z`.
pub fn parse_time(text: &str) -> std::result::Result<u64, String> {
    let parsed = humantime::parse_rfc3339_weak(text.trim()).map_err(|e| {
        format!(
            "{text:?} is not a valid time ({e}): write UTC, such as 2026-11-22T14:30:00Z or \"2026-11-22 14:30:00.250\""
        )
    })?;
    let since = parsed.duration_since(UNIX_EPOCH).map_err(|_| format!("{text:?} is before 1970"))?;
    Ok(since.as_millis() as u64)
}

/// A fuzz target: `manifest.json`, and times that people type.
#[cfg(feature = "lab")]
pub mod fuzz {
    use super::*;

    pub fn run(bytes: &[u8]) {
        if let Ok(manifest) = Manifest::parse(bytes, Path::new(MANIFEST)) {
            let _ = time_text(manifest.finished_ms);
        }
        if let Ok(ms) = parse_time(&String::from_utf8_lossy(bytes)) {
            assert_eq!(parse_time(&time_text(ms)), Ok(ms));
        }
    }

    pub fn seeds() -> Vec<Vec<u8>> {
        let manifest = Manifest {
            format: Manifest::FORMAT,
            onetrip_version: "0.1.0".into(),
            cluster: "c".into(),
            node: NodeId(1),
            region: "r".into(),
            database: "onetrip".into(),
            postgres_version: "15".into(),
            window_entries: 1,
            max_entry_bytes: 2,
            sequence_stride: 8,
            sequence_slot: 0,
            key_seed: KeySeed::default(),
            checkpoint: LogIndex(3),
            position: LogIndex(4),
            started: "2026-11-22T01:00:00.250Z".into(),
            finished: "2026-11-22T01:00:01.250Z".into(),
            finished_ms: 1_795_309_201_250,
            bytes: 5,
        };
        let manifest = serde_json::to_vec(&manifest).expect("plain data");
        vec![manifest, b"2026-11-22T01:00:00.250Z".to_vec(), b"2026-11-22 01:00:00".to_vec()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_in_and_out() {
        let ms = 1_795_309_200_250;
        assert_eq!(time_text(ms), "2026-11-22T01:00:00.250Z");
        assert_eq!(time_text(TIME_MS_MAX), "9999-12-31T23:59:59.999Z");
        assert_eq!(time_text(u64::MAX), format!("{} ms after 1970", u64::MAX));
        for text in ["2026-11-22T01:00:00.250Z", "2026-11-22 01:00:00.250", " 2026-11-22T01:00:00.25 "] {
            assert_eq!(parse_time(text), Ok(ms), "{text}");
        }
        for text in ["", "yesterday", "2026-11-22", "2026-11-22T01:00:00+02:00", "1969-12-31T23:59:59Z"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
