//! Stored files: earlier releases' logs are read, and later releases will read what this one writes.

use super::*;
use onetrip_core::{Change, Command, Entry, Level};
use raft::eraftpb::EntryType;

fn of_kind(index: u64, kind: EntryType, data: &[u8]) -> RaftEntry {
    let mut entry = entry(index, 3, data);
    entry.set_entry_type(kind);
    entry
}

fn stored_entries() -> [RaftEntry; 5] {
    [
        of_kind(1, EntryType::EntryNormal, b"transaction"),
        of_kind(2, EntryType::EntryNormal, b""),
        of_kind(3, EntryType::EntryConfChangeV2, b"change"),
        of_kind(4, EntryType::EntryConfChangeV2, b""),
        of_kind(5, EntryType::EntryNormal, &[7; 300]),
    ]
}

/// Goal: a log that an earlier release wrote can be read.  Method: its files are stored.
#[test]
fn the_log_of_an_earlier_release_is_read() {
    // Its type on disk is one that releases older than levels refuse.
    let raise = Command { expected_version: 3, change: Change::RaiseLevel(Level(1)) };
    let with_level = [of_kind(1, EntryType::EntryNormal, &Entry::encode_command(&raise))];
    stored_log("log", &stored_entries());
    stored_log("log-with-level", &with_level);
}

/// Goal: later releases can read what this one writes.  Method: its files are stored; ONETRIP_NEW_FORMATS=1 writes them
/// anew.
#[test]
fn the_log_is_written_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 1 << 20).unwrap();
    log.life = Life::begin_with(dir.path(), log.next_record, 0x1234_5678).unwrap();
    log.restart(LogIndex(0), Term(0), None).unwrap();
    for (n, some) in stored_entries().chunks(2).enumerate() {
        log.append(some, Some(&hard(3, 2, some[0].index)), n == 2).unwrap();
    }
    drop(log);
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        files.push((file.file_name().into_string().unwrap(), bytes[..end].to_vec()));
    }
    files.sort();
    crate::stored::compare("log-with-marks", &files);
    stored_log("log-with-marks", &stored_entries());
}

fn stored_log(name: &str, entries: &[RaftEntry]) {
    let dir = tempfile::tempdir().unwrap();
    for (file, mut bytes) in crate::stored::read(name) {
        if file != LIFE_FILE {
            // The zeros with which the last record may end, and which follow it.
            bytes.resize(bytes.len() + 100, 0);
        }
        std::fs::write(dir.path().join(file), bytes).unwrap();
    }
    let log = RaftLog::open_with(dir.path(), 1 << 20).unwrap();
    assert_eq!(log.hard_state.term, 3);
    let context = GetEntriesContext::empty(false);
    assert_eq!(Storage::entries(&log, 1, log.last() + 1, None, context).unwrap(), entries);
}
