//! How much room there is on the disks that a node needs.
//!
//! Invariant: a file system that does not answer holds up nothing but what is known of itself.

use crate::config::NodeConfig;
use crate::error::Result;
use crate::span::spawn_thread;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A file system that takes longer to say how much room it has does not answer.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// Less than both is a problem.
const FREE_MIN: u64 = 1 << 30;
const FREE_SHARE_MIN: u64 = 20;
/// What is left to the log even on a small disk: the segments that it writes ahead, and as much again.
const LOG_ROOM_MIN: u64 = 256 << 20;

/// How much room a file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl Room {
    /// It takes as long as the file system takes.
    pub fn of(folder: &Path) -> io::Result<Room> {
        let room = nix::sys::statvfs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks * room.fragment_size() as u64;
        Ok(Room { free_bytes: bytes(room.blocks_available()), total_bytes: bytes(room.blocks()) })
    }

    /// What has to stay free on the disk of the log, since a node whose log cannot be written ends: about as much as
    /// below which the disk counts as nearly full.
    pub fn of_log(self) -> u64 {
        (self.total_bytes / FREE_SHARE_MIN).clamp(LOG_ROOM_MIN, FREE_MIN)
    }

    /// What something else may take on the disk of the log.
    pub fn beside_log(self) -> u64 {
        self.free_bytes.saturating_sub(self.of_log())
    }
}

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

/// Looks every now and then, in a thread for each folder, which may hang in a file system that does not answer.
pub struct Disks(Vec<Arc<Mutex<Look>>>);

struct Look {
    of: &'static str,
    /// As it was last seen; `None`: not yet, or it could not be found out.
    seen: Option<Room>,
    /// Since when the file system has not answered.
    asked: Option<Instant>,
}

impl Disks {
    /// Looks for as long as somebody has this.  At first nothing is known.
    pub fn watch(config: &NodeConfig) -> Result<Disks> {
        let postgres = config.postgres.as_ref().map(|_| config.data_dir.join("postgres"));
        let folders = [
            ("log", Some(config.data_dir.clone())),
            ("PostgreSQL", postgres),
            ("archive", config.archive.as_ref().map(|archive| archive.folder.clone())),
        ];
        let folders = folders.into_iter().filter_map(|(of, folder)| Some((of, folder?)));
        Disks::watch_with(folders, |folder| Room::of(folder).ok())
    }

    fn watch_with(
        folders: impl IntoIterator<Item = (&'static str, PathBuf)>,
        room: impl Fn(&Path) -> Option<Room> + Copy + Send + 'static,
    ) -> Result<Disks> {
        let watch = |(of, folder): (&'static str, PathBuf)| {
            let look = Arc::new(Mutex::new(Look { of, seen: None, asked: Some(Instant::now()) }));
            let watched = Arc::downgrade(&look);
            spawn_thread("onetrip-disks", move || loop {
                let seen = room(&folder);
                let Some(look) = watched.upgrade() else { return };
                *lock(&look) = Look { of, seen, asked: None };
                drop(look);
                std::thread::sleep(LOOK_EVERY);
                let Some(look) = watched.upgrade() else { return };
                lock(&look).asked = Some(Instant::now());
            })?;
            Ok(look)
        };
        Ok(Disks(folders.into_iter().map(watch).collect::<Result<_>>()?))
    }

    /// What cannot be found out is left out.
    pub fn now(&self) -> Vec<Space> {
        let space = |look: &Arc<Mutex<Look>>| {
            let look = lock(look);
            let Room { free_bytes, total_bytes } = look.seen?;
            Some(Space { of: look.of, free_bytes, total_bytes })
        };
        self.0.iter().filter_map(space).collect()
    }

    /// What the disks are needed for that do not answer.
    pub fn silent(&self) -> Vec<&'static str> {
        let is_silent = |look: &Look| look.asked.is_some_and(|asked| asked.elapsed() > SILENT_MAX);
        self.0.iter().map(|look| lock(look)).filter(|look| is_silent(look)).map(|look| look.of).collect()
    }
}

fn lock(look: &Mutex<Look>) -> std::sync::MutexGuard<'_, Look> {
    look.lock().expect("no code that holds this lock panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { free_bytes: 5 << 30, total_bytes: 100 << 30 };

    /// Goal: a folder on a file system that hangs keeps neither the node from starting nor the others' figures away.
    #[test]
    fn a_file_system_that_hangs_holds_up_nothing_but_itself() {
        let folders = [("archive", PathBuf::from("/hangs")), ("log", PathBuf::from("/answers"))];
        let room = |folder: &Path| match folder == Path::new("/hangs") {
            true => loop {
                std::thread::park();
            },
            false => Some(ROOM),
        };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(Disks::watch_with(folders, room).unwrap()));
        let disks = told.recv_timeout(Duration::from_secs(20)).expect("it starts without figures");
        let deadline = Instant::now() + Duration::from_secs(20);
        while disks.now().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(disks.now(), [Space { of: "log", free_bytes: ROOM.free_bytes, total_bytes: ROOM.total_bytes }]);
        assert!(disks.silent().is_empty());
        let asked = Instant::now().checked_sub(2 * SILENT_MAX);
        disks.0.iter().for_each(|look| {
            let mut look = lock(look);
            look.asked = look.asked.and(asked);
        });
        assert_eq!(disks.silent(), ["archive"]);
    }

    #[test]
    fn what_is_left_to_the_log_follows_the_size_of_its_disk() {
        let of_log = |total_bytes| Room { free_bytes: 0, total_bytes }.of_log();
        assert_eq!((of_log(2 << 30), of_log(10 << 30), of_log(1 << 40)), (256 << 20, 512 << 20, 1 << 30));
        assert_eq!(ROOM.beside_log(), 4 << 30);
        assert_eq!(Room { free_bytes: 1 << 20, ..ROOM }.beside_log(), 0);
    }
}
