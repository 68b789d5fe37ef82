//! How often PostgreSQL may be copied anew because it cannot apply an entry.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use onetrip_core::LogIndex;

/// Not more often: a copy is a load on another region, and who stops this one again and again must not get that each time.
const AT_MOST_EVERY: Duration = Duration::from_secs(3600);

/// With less, the disk is full, which ends PostgreSQL by itself again and again, and a copy would not fit.
const ROOM_MIN: u64 = 256 << 20;

/// Keeps in a file of the node's folder when that was last, so that a restart does not forget it.
pub(super) struct Healing {
    file: PathBuf,
    last: Option<SystemTime>,
    /// Why it is not done now, for which entry.
    refused: Option<(LogIndex, String)>,
}

impl Healing {
    pub fn load(data_dir: &Path) -> Healing {
        let file = data_dir.join("healed");
        let last = std::fs::metadata(&file).and_then(|m| m.modified()).ok();
        Healing { file, last, refused: None }
    }

    /// `Err`: why not now.
    pub fn may_order(&self) -> Result<(), String> {
        let room = self.file.parent().and_then(|folder| nix::sys::statvfs::statvfs(folder).ok());
        if room.is_some_and(|room| room.blocks_available() * room.fragment_size() < ROOM_MIN) {
            return Err("its disk has no room for a copy".into());
        }
        let Some(last) = self.last else { return Ok(()) };
        // A clock that was set back passes for no time at all.
        let ago = last.elapsed().unwrap_or_default();
        if ago >= AT_MOST_EVERY {
            return Ok(());
        }
        Err(format!(
            "that was done within the last hour; it is done at once if {} is removed and the node started again",
            self.file.display()
        ))
    }

    /// The copy shows the entry.  Not before: one that a restart of the node cuts short may begin again.
    pub fn done(&mut self, at: LogIndex) {
        self.last = Some(SystemTime::now());
        if let Err(e) = std::fs::write(&self.file, format!("log index {at}\n")) {
            tracing::warn!(
                "cannot write {}, so a restart forgets that PostgreSQL was copied: {e}",
                self.file.display()
            );
        }
    }

    /// Keeps why it is not done; whether that has not been said yet.
    pub fn is_news(&mut self, at: LogIndex, why_not: &str) -> bool {
        let refused = Some((at, why_not.to_string()));
        let news = self.refused != refused;
        self.refused = refused;
        news
    }

    /// Why this entry, which cannot be applied, does not lead to a copy now.
    pub fn why_not(&self, at: LogIndex) -> Option<&str> {
        self.refused.as_ref().filter(|(of, _)| *of == at).map(|(_, why_not)| why_not.as_str())
    }
}
