//! The files in a node's folder, in an archive and in a backup.

use super::{member, txn};
use crate::archive::{Identity, Reader, Writer, NOTES};
use crate::disk::segment::{path_of, Previous, HEAD_BYTES};
use crate::disk::{RaftLog, StartsFile, CLOSED_FILE, LIFE_FILE};
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::checkpoint::{self, Checkpoint, Conf};
use onetrip_core::{Entry, Key, LockMode, LogIndex, Members, NodeId, Term, TxnId};
use raft::eraftpb::{Entry as RaftEntry, HardState};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// A checkpoint comes from disk, from a leader or with a join reply.
pub(super) fn checkpoints(bytes: &[u8]) {
    let raw = Bytes::copy_from_slice(bytes);
    let head = checkpoint::peek(&raw);
    if let Ok(read) = Checkpoint::decode(raw, Limits::default()) {
        let head = head.expect("the whole could be read");
        assert_eq!((head.index, head.term, &head.members), (read.index(), read.term, &read.members));
        let again = read.encode();
        let back = Checkpoint::decode(again.clone(), Limits::default()).expect("just written");
        assert_eq!(
            (back.index(), back.term, &back.conf, &back.members),
            (read.index(), read.term, &read.conf, &read.members)
        );
        assert_eq!(back.encode(), again);
    }
}

pub(super) fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let mut certifier = Certifier::new(Limits::default());
    for index in 1..20 {
        let key = Key { hash: index % 5, mode: LockMode::Update, base: onetrip_core::Base(index - 1) };
        let raw = Entry::encode(&TxnId { sequence: index, ..txn() }, &[key], b"rows");
        let entry = Entry::decode(raw).expect("just made");
        certifier.certify(LogIndex(index), &entry).expect("in order");
    }
    let members = Members::bootstrap(vec![member()], "r".into(), 8);
    let conf = Conf { voters: vec![NodeId(1)], ..Default::default() };
    [certifier, Certifier::new(Limits::default())]
        .map(|certifier| {
            checkpoint::freeze(Term(3), &conf, &members, &certifier, &CommittedIndexes::default()).encode().to_vec()
        })
        .to_vec()
}

/// The CRC-32 at the end is that of everything but the mark, the first 8 bytes.
pub(super) fn mend_checkpoint(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(4).filter(|end| *end >= 8) {
        let crc = crc32fast::hash(&bytes[8..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }
}

const FIRST_SEGMENT: u64 = 0;

/// The limit on a log's size: so low that its segments are small and setting space aside for them takes little time.
const LOG_BYTES: u64 = 1 << 20;

/// Takes the bytes as the only file of a log.  Either the log is refused; or it reads the same before and after it is
/// opened for writing, more can be appended to it, and its entries are still the same after that.
pub(super) fn log_files(bytes: &[u8]) {
    in_log_folder(|dir| {
        if std::fs::write(path_of(dir, FIRST_SEGMENT), bytes).is_err() {
            return;
        }
        let read = |log: &RaftLog| {
            let (first, last) = (log.first_index(), log.last_index());
            let entries: Vec<_> = (first.0..=last.0).map(|i| log.read(LogIndex(i)).ok()).collect();
            (first, last, entries)
        };
        let seen = RaftLog::open_to_read(dir, None).map(|log| read(&log));
        // Opening for writing repairs a file that a crash has cut short.
        let Ok(mut log) = RaftLog::open_limited(dir, LOG_BYTES) else { return };
        let (first, last, mut entries) = read(&log);
        assert_eq!(seen.expect("it can be written to"), (first, last, entries.clone()));
        // Setting space aside takes a millisecond, so only every 16th input goes on; which ones depends on the bytes
        // alone.
        if crc32fast::hash(bytes) % 16 != 0 {
            return;
        }
        let term = log.term_at(last).expect("its last entry has a term").0;
        let data = Bytes::from_static(b"one more");
        let entry = RaftEntry { index: last.0 + 1, term, data: data.clone(), ..Default::default() };
        log.append(&[entry], None, true).expect("there is room");
        drop(log);
        entries.push(Some(data));
        let log = RaftLog::open_limited(dir, LOG_BYTES).expect("it could be gone on with");
        assert_eq!(read(&log), (first, LogIndex(last.0 + 1), entries));
    });
}

pub(super) fn log_file_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_log_folder(|dir| {
        let mut log = RaftLog::open(dir).expect("an empty folder");
        for index in 1..6 {
            let entry = RaftEntry { index, term: 1, data: Bytes::from(vec![index as u8; 30]), ..Default::default() };
            let hard_state = HardState { term: 1, vote: 1, commit: index - 1, ..Default::default() };
            log.append(&[entry], Some(&hard_state), true).expect("there is room");
        }
        drop(log);
        seeds.push(records_of(dir, FIRST_SEGMENT));
    });
    seeds
}

/// Takes the bytes as the only file of an archive, which a restore reads, and which the node checks before it goes on
/// writing.
pub(super) fn archive_files(bytes: &[u8]) {
    in_log_folder(|dir| {
        let empty = Writer::open(dir, &archive_identity()).is_ok();
        if !empty || std::fs::write(path_of(dir, 1), bytes).is_err() {
            return;
        }
        if let Ok(mut reader) = Reader::open(dir) {
            if let Ok((last, _)) = reader.end() {
                // Its first index may be any number, so only the last 1,000 entries are read.
                (last.0.saturating_sub(1000)..=last.0).for_each(|i| drop(reader.entry(LogIndex(i))));
            }
        }
        let _ = Writer::open(dir, &archive_identity());
    });
}

pub(super) fn archive_file_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_log_folder(|dir| {
        let mut writer = Writer::open(dir, &archive_identity()).expect("an empty folder");
        for index in 1..6 {
            let entry = RaftEntry { index, term: 1, data: Bytes::from(vec![index as u8; 30]), ..Default::default() };
            writer.append(Previous::new(index - 1, 1), index, &[entry]).expect("there is room");
        }
        writer.close().expect("there is room");
        seeds.push(records_of(dir, 1));
    });
    seeds
}

fn archive_identity() -> Identity {
    Identity { format: 1, cluster: "c".into(), node: NodeId(1), region: "r".into() }
}

/// The small text files in the folders of the node, the log and the archive.
pub(super) fn notes(bytes: &[u8]) {
    in_log_folder(|dir| {
        let file = dir.join("starts");
        let starts = StartsFile::new(file.clone());
        if std::fs::write(&file, bytes).is_ok() {
            if let Ok(read) = starts.load() {
                starts.save(&read).expect("there is room");
                assert_eq!(starts.load().ok(), Some(read));
            }
        }
        let log = dir.join("log");
        static SEGMENT: OnceLock<Vec<u8>> = OnceLock::new();
        let segment = SEGMENT.get_or_init(|| log_file_seeds().remove(0));
        for name in [CLOSED_FILE, LIFE_FILE] {
            let _ = std::fs::remove_dir_all(&log);
            if std::fs::create_dir(&log).is_ok() && std::fs::write(log.join(name), bytes).is_ok() {
                std::fs::write(path_of(&log, FIRST_SEGMENT), segment).expect("there is room");
                let _ = RaftLog::open_to_read(&log, None);
                let _ = RaftLog::open_limited(&log, LOG_BYTES);
            }
        }
        for name in NOTES {
            let archive = dir.join(name);
            let made = std::fs::create_dir(&archive).is_ok() && Writer::open(&archive, &archive_identity()).is_ok();
            if made && std::fs::write(archive.join(name), bytes).is_ok() {
                let _ = Reader::open(&archive).map(|mut reader| reader.end());
                let _ = Writer::open(&archive, &archive_identity());
            }
        }
    });
}

pub(super) fn note_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        br#"{"from":1,"to":5}"#.to_vec(),
        br#"{"checkpoint":3,"position":5,"finished":"2026-11-22T01:00:00.250Z"}"#.to_vec(),
    ];
    in_log_folder(|dir| {
        let file = dir.join("starts");
        StartsFile::new(file.clone()).save(&[7, u64::MAX]).expect("there is room");
        seeds.extend(std::fs::read(file));
        let archive = dir.join("archive");
        std::fs::create_dir(&archive).expect("there is room");
        Writer::open(&archive, &archive_identity()).and_then(|mut writer| writer.close()).expect("there is room");
        seeds.extend(NOTES.iter().filter_map(|name| std::fs::read(archive.join(name)).ok()));
        let log = dir.join("log");
        std::fs::create_dir(&log).expect("there is room");
        std::fs::write(path_of(&log, FIRST_SEGMENT), log_file_seeds().remove(0)).expect("there is room");
        let mut open = RaftLog::open(&log).expect("there is room");
        seeds.extend(std::fs::read(log.join(LIFE_FILE)));
        open.close().expect("there is room");
        seeds.extend(std::fs::read(log.join(CLOSED_FILE)));
    });
    seeds
}

/// The bytes of a segment, with only a little of the space set aside at its end, which reads as zeros.
fn records_of(dir: &Path, number: u64) -> Vec<u8> {
    let mut bytes = std::fs::read(path_of(dir, number)).expect("just written");
    let records = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    bytes.resize(records + 64, 0);
    bytes
}

pub(super) fn mend_log_file(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(record) = bytes.get_mut(at..).filter(|r| r.len() > HEAD_BYTES) {
        let length = u32::from_le_bytes([record[4], record[5], record[6], record[7]]) as usize;
        let Some(body) = record.get(HEAD_BYTES..HEAD_BYTES + length) else { return };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&record[4..16]);
        crc.update(body);
        record[16..20].copy_from_slice(&crc.finalize().to_le_bytes());
        at += HEAD_BYTES + length;
    }
}

/// Calls `work` with an empty folder, in memory if the system has `/dev/shm`, and then removes the folder.
fn in_log_folder(work: impl FnOnce(&Path)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = base.join(format!("onetrip-fuzz-{}-{number}", std::process::id()));
    if std::fs::create_dir(&dir).is_ok() {
        work(&dir);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
