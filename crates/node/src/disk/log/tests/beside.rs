//! What other threads do: they read checkpoints and old entries, and sync what was appended.

use super::*;
use onetrip_core::replica::Store;
use onetrip_core::{Checkpoint, Member, MemberRole, Members, NodeId};
use raft::eraftpb::Snapshot;
use raft::StorageError;
use std::os::unix::fs::FileExt;

/// A checkpoint with members 1 and 2, at this index.
fn checkpoint_at(index: u64) -> Checkpoint {
    let member = |id: u32| Member {
        id: NodeId(id),
        region: "r".into(),
        address: format!("h:{id}"),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(id),
        replaces: None,
        joined: None,
    };
    let members = Members::bootstrap(vec![member(1), member(2)], "r".into(), 8);
    let mut checkpoint = Checkpoint::bootstrap(members, Default::default());
    (1..=index).for_each(|at| checkpoint.certifier.skip(LogIndex(at)).unwrap());
    checkpoint
}

fn wait_for_snapshot(log: &RaftLog, to: u64) -> Snapshot {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match log.snapshot(0, to) {
            Ok(snapshot) => return snapshot,
            Err(e) => assert_eq!(e, raft::Error::Store(raft::StorageError::SnapshotTemporarilyUnavailable)),
        }
        assert!(std::time::Instant::now() < deadline, "no snapshot");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The checkpoint that was read serves until the log has been cut above it; then the newer one is read.  Nothing is
/// read that is of no use.
#[test]
fn a_snapshot_is_read_beside_the_logs_thread() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(&dir.path().join("log")).unwrap();
    fill(&mut log);
    let file = CheckpointFile::new(dir.path().join("checkpoint"));
    log.keep_checkpoints_in(file.clone());
    let save = |log: &mut RaftLog, index: u64| {
        let checkpoint = checkpoint_at(index);
        file.save(LogIndex(index), &checkpoint.encode()).unwrap();
        log.checkpointed(LogIndex(index), &checkpoint.conf);
        checkpoint.encode()
    };
    file.save(LogIndex(4), &checkpoint_at(4).encode()).unwrap();
    log.stand_on(LogIndex(4), &checkpoint_at(4).conf);
    assert!(log.snapshot(0, 3).is_err() && Store::wants_checkpoint(&log), "3 is no member");
    assert!(log.snapshot(5, 2).is_err() && Store::wants_checkpoint(&log), "it does not reach so far");
    assert!(log.snapshot(0, 2).is_err() && !Store::wants_checkpoint(&log), "it is not read yet");
    let first = wait_for_snapshot(&log, 2);
    assert_eq!((first.get_metadata().index, &first.data), (4, &checkpoint_at(4).encode()));
    // All members get the same bytes.
    assert_eq!(wait_for_snapshot(&log, 1).data.as_ptr(), first.data.as_ptr());
    let newer = save(&mut log, 14);
    assert_eq!(log.snapshot(0, 2).unwrap().get_metadata().index, 4);
    log.cut(LogIndex(12)).unwrap();
    assert!(log.before_first() > 4);
    let second = wait_for_snapshot(&log, 2);
    assert_eq!((second.get_metadata().index, &second.data), (14, &newer));
    // A file that is not a checkpoint does not end the node; a new checkpoint is made.
    std::fs::write(file.path(), b"damaged").unwrap();
    log.checkpointed(LogIndex(16), &checkpoint_at(16).conf);
    log.cut(LogIndex(16)).unwrap();
    assert!(log.before_first() > 14);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !Store::wants_checkpoint(&log) {
        assert!(log.snapshot(0, 2).is_err() && std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    save(&mut log, 18);
    assert_eq!(wait_for_snapshot(&log, 2).get_metadata().index, 18);
}

/// Goal: on a slow disk an append does not wait for the sync, can be read at once, and is told of when it is durable;
/// and what must not wait leaves nothing behind that was begun before it.
#[test]
fn a_slow_disk_is_synced_beside_the_logs_thread() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 10_000).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    log.sync_beside(move || _ = tell.send(())).unwrap();
    assert!(log.begin_append(&[entry(1, 1, b"on a fast disk")], None, 1).unwrap());
    assert_eq!(log.take_synced().unwrap(), None);
    log.sync_takes = BESIDE_FROM;
    assert!(!log.begin_append(&[entry(2, 1, b"two")], Some(&hard(1, 1, 1)), 2).unwrap());
    assert_eq!((log.last(), &log.read(LogIndex(2)).unwrap()[..]), (2, &b"two"[..]));
    told.recv().unwrap();
    assert_eq!(log.take_synced().unwrap(), Some(2));
    assert_eq!(log.take_synced().unwrap(), None);
    assert_ne!(log.sync_takes, BESIDE_FROM, "what it took counts");
    // A disk that is not slow any more.
    log.took(Duration::ZERO);
    assert!(log.begin_append(&[entry(3, 1, b"three")], None, 3).unwrap());
    log.sync_takes = BESIDE_FROM;
    let last = log.last();
    assert!(!log.begin_append(&[entry(last + 1, 1, b"waits")], None, last + 1).unwrap());
    log.append(&[entry(last + 2, 1, b"is there")], Some(&hard(2, 3, 1)), true).unwrap();
    assert_eq!(log.take_synced().unwrap(), Some(last + 1));
    // A new segment begins only when the one before it is durable.
    let segments = log.segments.len();
    while log.segments.len() < segments + 2 {
        log.sync_takes = BESIDE_FROM;
        assert!(!log.begin_append(&[entry(log.last() + 1, 1, &[7; 3_000])], None, log.last() + 1).unwrap());
    }
    assert!(log.take_synced().unwrap().is_some_and(|number| number >= log.last() - 1));
    let all = contents(&log);
    drop(log);
    assert_eq!(contents(&open(dir.path()).unwrap()), all);
}

/// Goal: threads that wait for a processor do not make a disk look slow.
#[test]
fn a_disk_is_as_fast_as_its_fastest_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 10_000).unwrap();
    let us = Duration::from_micros;
    for round in 0..100 {
        log.took(us(if round % 8 == 0 { 80 } else { 900 }));
        assert!(log.sync_takes < BESIDE_FROM, "{:?} in round {round}", log.sync_takes);
    }
    (0..100).for_each(|_| log.took(us(500)));
    assert!(log.sync_takes > BESIDE_FROM);
}

/// Goal: Raft gets old entries only once another thread has read them, and never entries that have been replaced since.
#[test]
fn old_entries_are_read_beside_the_logs_thread() {
    let dir = tempfile::tempdir().unwrap();
    fill(&mut open(dir.path()).unwrap());
    let mut log = open(dir.path()).unwrap();
    let wait = || GetEntriesContext::empty(true);
    let all = log.entries(1, 21, None, wait()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    log.read_backlog_beside(move || tell.send(()).unwrap()).unwrap();
    let is_put_off = |log: &RaftLog, low, high| {
        let refused = log.entries(low, high, None, wait()).unwrap_err();
        assert!(matches!(refused, raft::Error::Store(StorageError::LogTemporarilyUnavailable)), "{refused}");
    };
    // Two followers want the same entries, and a third one those that follow.
    is_put_off(&log, 3, 9);
    is_put_off(&log, 3, 9);
    is_put_off(&log, 9, 21);
    (0..2).for_each(|_| told.recv().unwrap());
    assert_eq!(log.backlog.as_ref().unwrap().take_fetched().len(), 3);
    (0..2).for_each(|_| assert_eq!(log.entries(3, 9, None, wait()).unwrap(), all[2..8]));
    assert_eq!(log.entries(9, 21, None, wait()).unwrap(), all[8..]);
    // Each was told once.
    is_put_off(&log, 3, 9);
    told.recv().unwrap();
    // Another leader's entries take their place before Raft asks again.
    log.append(&[entry(4, 2, b"other")], None, true).unwrap();
    assert_eq!(log.backlog.as_ref().unwrap().take_fetched().len(), 1);
    is_put_off(&log, 3, 5);
    told.recv().unwrap();
    assert_eq!(log.backlog.as_ref().unwrap().take_fetched().len(), 1);
    // The newest is in memory, and need not be read.
    let (third, fourth) = (log.entries(3, 5, None, wait()).unwrap(), log.entries(4, 5, None, wait()).unwrap());
    assert_eq!((third, fourth[0].data.as_ref(), fourth[0].term), (all[2..3].to_vec(), &b"other"[..], 2));
    // Whoever cannot wait gets them at once.
    assert_eq!(log.entries(1, 4, None, GetEntriesContext::empty(false)).unwrap(), all[..3]);
}

/// Damage that the other thread finds is an error of the next append, like damage that is found by reading directly.
#[test]
fn damage_that_is_found_beside_ends_the_log() {
    let dir = tempfile::tempdir().unwrap();
    fill(&mut open(dir.path()).unwrap());
    let mut log = open(dir.path()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    log.read_backlog_beside(move || tell.send(()).unwrap()).unwrap();
    let place = log.slots[2];
    let file = std::fs::OpenOptions::new().write(true).open(path_of(dir.path(), place.segment)).unwrap();
    file.write_all_at(b"x", place.offset).unwrap();
    log.entries(1, 9, None, GetEntriesContext::empty(true)).unwrap_err();
    told.recv().unwrap();
    assert_eq!(log.backlog.as_ref().unwrap().take_fetched().len(), 1);
    log.entries(1, 9, None, GetEntriesContext::empty(true)).unwrap_err();
    let error = log.append(&[entry(21, 1, b"")], None, true).unwrap_err();
    assert!(error.to_string().contains("has changed since it was written"), "{error}");
}
