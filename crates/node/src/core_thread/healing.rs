//! How often PostgreSQL may be copied anew because it cannot apply an entry.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::postgres::HEALED_FILE;
use onetrip_core::LogIndex;

/// A copy is a load on another region, and whoever makes this PostgreSQL fail again and again must not be able to cause
/// one each time.
const AT_MOST_EVERY: Duration = Duration::from_secs(3600);

/// In bytes.  With less free space, the full disk by itself may be what ends PostgreSQL again and again, and a copy
/// would not fit.
const ROOM_MIN: u64 = 256 << 20;

/// Knows when PostgreSQL was last copied from the file that [`crate::postgres`] writes when a copy takes the place of
/// the old folder.
pub(super) struct Healing {
    file: PathBuf,
    /// The last entry for which PostgreSQL was not copied, and why not.
    refused: Option<(LogIndex, String)>,
}

impl Healing {
    pub fn new(node_folder: &Path) -> Healing {
        Healing { file: node_folder.join(HEALED_FILE), refused: None }
    }

    /// `Err`: why not now.
    pub fn may_order(&self) -> Result<(), String> {
        let room = self.file.parent().and_then(|folder| nix::sys::statvfs::statvfs(folder).ok());
        if room.is_some_and(|room| room.blocks_available() * room.fragment_size() < ROOM_MIN) {
            return Err("its disk has no room for a copy".into());
        }
        let Ok(last) = std::fs::metadata(&self.file).and_then(|m| m.modified()) else { return Ok(()) };
        // If the clock was set back, no time counts as passed.
        let ago = last.elapsed().unwrap_or_default();
        if ago >= AT_MOST_EVERY {
            return Ok(());
        }
        Err(format!(
            "that was done within the last hour; it is done again at once if {} is removed",
            self.file.display()
        ))
    }

    /// Remembers why PostgreSQL is not copied.  `true`: that is a new reason, to be logged.
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
