//! How often PostgreSQL may be copied anew because it cannot apply an entry, and whether its disk has room for that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::postgres::{in_the_way, HEALED_FILE};
use crate::space::Room;
use crate::span::spawn_thread;
use onetrip_core::LogIndex;

/// A copy is a load on another region, and whoever makes this PostgreSQL fail again and again must not be able to cause
/// one each time.
const AT_MOST_EVERY: Duration = Duration::from_secs(3600);

/// To look through a large folder is a load on the disk.
const MEASURE_EVERY: Duration = Duration::from_secs(600);

/// Said until it is known how large PostgreSQL is.
const MEASURING: &str = "how much room a copy takes is being found out";

/// Knows when PostgreSQL was last copied from the file that [`crate::postgres`] writes when a copy takes the place of
/// the old folder.
pub(super) struct Healing {
    folder: PathBuf,
    file: PathBuf,
    /// The last entry for which PostgreSQL was not copied, and why not.
    refused: Option<(LogIndex, String)>,
    size: Arc<Mutex<Size>>,
}

/// How large PostgreSQL is here, which is about what a copy of another member's takes.
#[derive(Default)]
struct Size {
    bytes: Option<u64>,
    /// When a thread was last sent to measure it.
    asked: Option<Instant>,
}

impl Healing {
    pub fn new(node_folder: &Path) -> Healing {
        let (folder, file) = (node_folder.to_owned(), node_folder.join(HEALED_FILE));
        Healing { folder, file, refused: None, size: Arc::default() }
    }

    /// `Err`: why not now.
    pub fn may_order(&self) -> Result<(), String> {
        self.may_order_with(Room::of(&self.folder).ok())
    }

    fn may_order_with(&self, room: Option<Room>) -> Result<(), String> {
        let last = fs::metadata(&self.file).and_then(|m| m.modified());
        // If the clock was set back, no time counts as passed.
        if last.is_ok_and(|last| last.elapsed().unwrap_or_default() < AT_MOST_EVERY) {
            return Err(format!(
                "that was done within the last hour; it is done again at once if {} is removed",
                self.file.display()
            ));
        }
        if let Some(why) = in_the_way(&self.folder) {
            return Err(why);
        }
        let tablespaces = self.tablespaces();
        if !tablespaces.is_empty() {
            return Err(format!(
                "it has tablespaces, whose folders have to be empty for a copy: stop the node, move {} away, set {} aside as if \
                 it was damaged, and start the node",
                tablespaces.join(", "),
                self.folder.join("postgres").display()
            ));
        }
        let Some(room) = room else { return Ok(()) };
        // Another member's may be larger, and meanwhile it is written to.
        let Some(bytes) = self.bytes().map(|bytes| bytes + bytes / 10) else { return Err(MEASURING.into()) };
        if bytes <= room.beside_log() {
            return Ok(());
        }
        // It does not say how much is free, since what it says is logged when it changes.
        Err(format!(
            "its disk has no room for a copy: about {} MiB and {} MiB for the log have to be free in {}",
            bytes >> 20,
            room.of_log() >> 20,
            self.folder.display()
        ))
    }

    /// The folders outside of the data folder.
    fn tablespaces(&self) -> Vec<String> {
        let links = fs::read_dir(self.folder.join("postgres/pg_tblspc")).into_iter().flatten().flatten();
        let mut targets: Vec<String> =
            links.filter_map(|link| Some(fs::read_link(link.path()).ok()?.display().to_string())).collect();
        targets.sort();
        targets
    }

    /// As it was last measured, by a thread of its own.
    fn bytes(&self) -> Option<u64> {
        let mut size = self.size.lock().expect("no code that holds this lock panics");
        if size.asked.is_none_or(|asked| asked.elapsed() > MEASURE_EVERY) {
            size.asked = Some(Instant::now());
            let (result, data) = (self.size.clone(), self.folder.join("postgres"));
            // Without a thread it is tried again.
            let _ = spawn_thread("onetrip-measure", move || {
                let bytes = bytes_in(&data);
                result.lock().expect("no code that holds this lock panics").bytes = Some(bytes);
            });
        }
        size.bytes
    }

    /// Remembers why PostgreSQL is not copied.  `true`: that is a new reason, to be logged.
    pub fn is_news(&mut self, at: LogIndex, why_not: &str) -> bool {
        let refused = Some((at, why_not.to_string()));
        let news = self.refused != refused && why_not != MEASURING;
        self.refused = refused;
        news
    }

    /// Why this entry, which cannot be applied, does not lead to a copy now.
    pub fn why_not(&self, at: LogIndex) -> Option<&str> {
        self.refused.as_ref().filter(|(of, _)| *of == at).map(|(_, why_not)| why_not.as_str())
    }
}

/// What is copied of a data folder.  What cannot be read, or goes away meanwhile, is left out; tablespaces are not
/// here.
fn bytes_in(folder: &Path) -> u64 {
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && entry.file_name() != "pg_wal" => bytes_in(&entry.path()),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    };
    fs::read_dir(folder).map_or(0, |entries| entries.filter_map(Result::ok).map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a copy that does not fit is not begun, since PostgreSQL is down meanwhile.
    #[test]
    fn a_copy_for_which_there_is_no_room_is_not_ordered() {
        let node_folder = tempfile::tempdir().unwrap();
        let data = node_folder.path().join("postgres/base/1");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir(node_folder.path().join("postgres/pg_wal")).unwrap();
        fs::write(node_folder.path().join("postgres/pg_wal/1"), vec![0; 9 << 20]).unwrap();
        fs::write(data.join("1"), vec![0; 4 << 20]).unwrap();
        let mut healing = Healing::new(node_folder.path());
        let room = |free_bytes| Some(Room { free_bytes, total_bytes: 100 << 30 });
        let deadline = Instant::now() + Duration::from_secs(20);
        while healing.may_order_with(room(99 << 30)).is_err_and(|why| why == MEASURING) {
            assert!(!healing.is_news(LogIndex(1), MEASURING) && Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        let enough = (1 << 30) + (4 << 20) + (4 << 20) / 10;
        assert_eq!(healing.may_order_with(room(enough)), Ok(()));
        let why = healing.may_order_with(room(enough - 1)).unwrap_err();
        assert!(why.contains("about 4 MiB and 1024 MiB for the log have to be free"), "{why}");
        fs::create_dir(node_folder.path().join("postgres/pg_tblspc")).unwrap();
        assert_eq!(healing.may_order_with(room(enough)), Ok(()));
        let link = node_folder.path().join("postgres/pg_tblspc/16400");
        std::os::unix::fs::symlink("/srv/quick", &link).unwrap();
        let tablespaces = healing.may_order_with(room(enough)).unwrap_err();
        assert!(tablespaces.contains("move /srv/quick away"), "{tablespaces}");
        fs::remove_file(&link).unwrap();
        assert!(healing.is_news(LogIndex(1), &why) && !healing.is_news(LogIndex(1), &why));
        assert_eq!(healing.why_not(LogIndex(1)), Some(why.as_str()));
        fs::write(node_folder.path().join(HEALED_FILE), "").unwrap();
        assert!(healing.may_order_with(room(99 << 30)).unwrap_err().contains("within the last hour"));
    }
}
