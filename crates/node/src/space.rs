//! How much room there is on the disks that a node needs.

use crate::config::NodeConfig;
use crate::error::Result;
use crate::span::spawn_thread;
use serde::Serialize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Less than both is a problem.
const FREE_MIN: u64 = 1 << 30;
const FREE_SHARE_MIN: u64 = 20;

/// For `GET /status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// What the node needs the disk for: `log`, `PostgreSQL`, `archive`.
    pub of: &'static str,
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl Space {
    pub fn is_low(&self) -> bool {
        self.free_bytes < FREE_MIN && self.free_bytes < self.total_bytes / FREE_SHARE_MIN
    }
}

/// Looks every now and then, in a thread that may hang in a file system that does not answer.
pub struct Disks(Arc<Mutex<Vec<Space>>>);

impl Disks {
    /// Looks for as long as somebody has this.
    pub fn watch(config: Arc<NodeConfig>) -> Result<Disks> {
        let seen = Arc::new(Mutex::new(spaces(&config)));
        let watched = Arc::downgrade(&seen);
        spawn_thread("onetrip-disks", move || {
            while watched.strong_count() > 0 {
                std::thread::sleep(LOOK_EVERY);
                let now = spaces(&config);
                if let Some(seen) = watched.upgrade() {
                    *seen.lock().expect("no code that holds this lock panics") = now;
                }
            }
        })?;
        Ok(Disks(seen))
    }

    pub fn now(&self) -> Vec<Space> {
        self.0.lock().expect("no code that holds this lock panics").clone()
    }
}

/// What cannot be found out is left out.  It may take as long as the file systems take.
fn spaces(config: &NodeConfig) -> Vec<Space> {
    let postgres = config.data_dir.join("postgres");
    let folders: [(&'static str, Option<&Path>); 3] = [
        ("log", Some(&config.data_dir)),
        ("PostgreSQL", config.postgres.as_ref().map(|_| postgres.as_path())),
        ("archive", config.archive.as_ref().map(|a| a.folder.as_path())),
    ];
    let of = |(of, folder): (&'static str, Option<&Path>)| {
        let room = nix::sys::statvfs::statvfs(folder?).ok()?;
        let bytes = |blocks: u64| blocks * room.fragment_size() as u64;
        Some(Space { of, free_bytes: bytes(room.blocks_available()), total_bytes: bytes(room.blocks()) })
    };
    folders.into_iter().filter_map(of).collect()
}
