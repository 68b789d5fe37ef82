//! The log against restarts, damage at every byte, and cuts.

use super::*;
use crate::disk::life::LIFE_FILE;
use onetrip_core::certifier::Limits;
use onetrip_core::consensus::{Config, Consensus, Input, Message, Output};
use onetrip_core::replica::Store;
use onetrip_core::router::Log;
use onetrip_core::{Change, Checkpoint, Command, Entry, Level, Member, MemberRole, Members, NodeId, TxnId};
use proptest::prelude::*;
use raft::eraftpb::{EntryType, MessageType, Snapshot};
use raft::{GetEntriesContext, Storage, StorageError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

fn entry(index: u64, term: u64, data: &[u8]) -> RaftEntry {
    RaftEntry { index, term, data: Bytes::copy_from_slice(data), ..Default::default() }
}

fn hard(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit, ..Default::default() }
}

fn open(dir: &Path) -> Result<RaftLog> {
    RaftLog::open_with(dir, 300)
}

fn contents(log: &RaftLog) -> Vec<(u64, Vec<u8>)> {
    let range = log.before_first() + 1..log.last() + 1;
    range.map(|i| (log.term(i).unwrap(), log.read(LogIndex(i)).unwrap().to_vec())).collect()
}

/// Ten batches of two entries, over several segments of 300 bytes.
fn fill(log: &mut RaftLog) {
    for n in 0..10 {
        let batch = [entry(2 * n + 1, 1, &[n as u8; 40]), entry(2 * n + 2, 1, b"")];
        log.append(&batch, Some(&hard(1, 2, 2 * n)), true).unwrap();
    }
}

#[test]
fn what_was_appended_is_there_after_a_crash_and_after_a_clean_stop() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    let before = contents(&log);
    assert!(log.segments.len() > 2);
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!((contents(&log), log.hard_state.clone()), (before.clone(), hard(1, 2, 18)));
    log.append(&[entry(21, 2, b"more")], None, true).unwrap();
    log.close().unwrap();
    drop(log);
    let log = open(dir.path()).unwrap();
    assert_eq!(log.last(), 21);
    assert_eq!(contents(&log)[..20], before);
}

/// Goal: the cache takes as much memory as it counts.
#[test]
fn a_small_entry_keeps_nothing_of_the_buffer_that_it_came_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    let buffer = Bytes::from(vec![7; 1 << 20]);
    let entry = |index: u64, bytes| RaftEntry { index, term: 1, data: buffer.slice(..bytes), ..Default::default() };
    log.append(&[entry(1, 300), entry(2, COPIED_BELOW_BYTES)], None, true).unwrap();
    let is_of_buffer = |index| buffer.as_ptr_range().contains(&log.read(LogIndex(index)).unwrap().as_ptr());
    assert_eq!((is_of_buffer(1), is_of_buffer(2)), (false, true));
}

/// Goal: an earlier life's records are on disk before this one promises anything that rests on them.  Method: count the
/// bytes that this thread has given the kernel to write.
#[test]
fn what_a_crash_left_is_written_again_and_what_was_closed_is_not() {
    let written = || {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse::<u64>().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    log.append(&[entry(21, 1, &[7; 200_000])], None, false).unwrap();
    let end = log.active().end;
    assert!(end > 200_000);
    drop(log);
    let before = written();
    let mut log = open(dir.path()).unwrap();
    let life = || std::fs::metadata(dir.path().join(LIFE_FILE)).unwrap().len();
    assert_eq!(written() - before, end + life());
    log.close().unwrap();
    drop(log);
    let before = written();
    assert_eq!(open(dir.path()).unwrap().last(), 21);
    assert_eq!(written() - before, life());
}

#[test]
fn a_new_leaders_entries_replace_the_old_ones_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    log.append(&[entry(5, 3, b"five"), entry(6, 3, b"six")], Some(&hard(3, 1, 4)), true).unwrap();
    let now = contents(&log);
    assert_eq!(now.len(), 6);
    assert_eq!(now[4], (3, b"five".to_vec()));
    drop(log);
    assert_eq!(contents(&open(dir.path()).unwrap()), now);
}

#[test]
fn a_cut_drops_whole_segments_and_keeps_the_term_before_the_first_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    let (last, all) = (log.last(), contents(&log));
    log.cut(LogIndex(11)).unwrap();
    let first = log.first_index().0;
    assert!(first > 1 && first <= 12, "{first}");
    assert_eq!(log.term(first - 1).unwrap(), 1);
    assert!(matches!(log.entries(1, 3, None, GetEntriesContext::empty(false)), Err(raft::Error::Store(_))));
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!((log.first_index().0, log.last()), (first, last));
    assert_eq!(contents(&log), all[first as usize - 1..]);
    log.append(&[entry(last + 1, 2, b"on")], None, true).unwrap();
    log.cut(LogIndex(last + 1)).unwrap();
    assert_eq!(log.read(LogIndex(last + 1)).unwrap(), Bytes::from_static(b"on"));
}

/// Goal: a cut of a long log does not keep the core thread, and wherever it stops the log is whole.
#[test]
fn a_long_log_is_cut_bit_by_bit() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    // One in each segment.
    (1..=50).for_each(|index| log.append(&[entry(index, 1, &[7; 200])], None, true).unwrap());
    let (all, bytes) = (contents(&log), log.segments[1].end);
    assert_eq!(log.segments.len(), 50);
    let mut calls = 0;
    while log.first_index() < LogIndex(45) {
        log.cut_bytes_max = 2 * bytes;
        let before = log.segments.len();
        log.cut(LogIndex(44)).unwrap();
        let removed = before - log.segments.len();
        assert!((1..=2).contains(&removed), "{removed} of {before} segments");
        assert_eq!(segment_numbers(dir.path()).unwrap().len(), log.segments.len());
        let left = contents(&log);
        assert_eq!(left, all[all.len() - left.len()..]);
        drop(log);
        log = open(dir.path()).unwrap();
        assert_eq!(contents(&log), left);
        calls += 1;
    }
    assert_eq!(calls, 22);
    // What is larger than that goes alone.
    log.cut_bytes_max = 1;
    log.cut(LogIndex(49)).unwrap();
    assert_eq!(log.first_index(), LogIndex(46));
}

#[test]
fn a_log_can_be_cut_to_a_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    // Entries of 40 bytes and empty ones alternate; the last is empty.
    let leaving = |bytes| log.index_leaving(bytes).0;
    assert_eq!([leaving(0), leaving(21), leaving(81), leaving(82), leaving(u64::MAX)], [20, 19, 19, 18, 0]);
    // Records of 114 bytes, eight in each segment behind one of 73; the bytes that an entry takes begin behind its
    // record's head.
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 1_000).unwrap();
    (1..=100).for_each(|index| log.append(&[entry(index, 1, &[7; 60])], None, true).unwrap());
    assert_eq!((log.segments.len(), record_bytes(None, &[entry(1, 1, &[7; 60])])), (13, 114));
    log.cut(LogIndex(20)).unwrap();
    let leaving = |bytes| log.index_leaving(bytes).0;
    // The last segment has four records, the one before it eight.
    let eight = 4 * 114 + 73 + 4 * 114 - 33;
    assert_eq!([leaving(eight), leaving(eight - 1), leaving(u64::MAX)], [92, 93, 16]);
}

#[test]
fn a_size_limit_gives_at_least_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    let some = |max| log.entries(1, 21, max, GetEntriesContext::empty(false)).unwrap().len();
    assert_eq!((some(0), some(64 + 24), some(u64::MAX)), (1, 2, 20));
}

/// Damages each byte of each file of a log that was closed: every one must be noticed.
#[test]
fn one_wrong_byte_anywhere_in_a_closed_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    log.close().unwrap();
    drop(log);
    let mut tried = 0;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).unwrap();
            let error = open(dir.path()).err().unwrap_or_else(|| panic!("{}, byte {at}", path.display()));
            assert!(matches!(error, Error::Corrupted { .. }), "{error}");
            tried += 1;
            std::fs::write(&path, &good).unwrap();
        }
    }
    assert!(tried > 1000);
    assert!(open(dir.path()).is_ok());
}

/// Goal: damage under a running node ends it, even if Raft has another way to go on.
/// Method: an entry that a member needs changes on disk after the log was opened.
#[test]
fn an_entry_that_raft_cannot_read_is_an_error_of_the_next_append() {
    let dir = tempfile::tempdir().unwrap();
    fill(&mut open(dir.path()).unwrap());
    let mut log = open(dir.path()).unwrap();
    let file = std::fs::File::options().write(true).open(&log.segments[0].path).unwrap();
    file.write_all_at(b"x", log.slots[0].offset).unwrap();
    assert!(Storage::entries(&log, 1, 3, None, GetEntriesContext::empty(false)).is_err());
    let error = log.append(&[entry(21, 1, b"more")], None, true).unwrap_err();
    assert!(matches!(&error, Error::Corrupted { file, .. } if *file == log.segments[0].path), "{error}");
}

/// Goal: the same, if nothing is appended any more: Raft itself does not end over that.
/// Method: a leader's follower lacks everything.
#[test]
fn raft_goes_on_until_the_log_says_that_it_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    fill(&mut open(dir.path()).unwrap());
    let mut log = open(dir.path()).unwrap();
    let member = Member {
        id: NodeId(1),
        region: "r1".into(),
        address: "host:1".into(),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(1),
        replaces: None,
        joined: None,
    };
    let members = Members::bootstrap(vec![member], "r1".into(), 8);
    let conf = Conf { learners: vec![NodeId(2)], ..Conf::of_members(&members) };
    log.stand_on(LogIndex(20), &conf);
    let file = std::fs::File::options().write(true).open(&log.segments[0].path).unwrap();
    file.write_all_at(b"x", log.slots[0].offset).unwrap();
    let config = Config {
        id: NodeId(1),
        limits: Limits::default(),
        applied: LogIndex(20),
        level: onetrip_core::level::KNOWN,
        heartbeat_ticks: 2,
        election_ticks: 10,
        transfer_ticks: 5,
        snapshot_ticks: 100,
    };
    let mut leader = Consensus::new(config, log, members.into()).unwrap();
    let mut out = Output::default();
    while leader.status().last < LogIndex(21) {
        leader.step(Input::Tick).unwrap();
        while leader.poll(&mut out) {
            if let Some(persist) = out.persist.take() {
                leader.log_mut().append(&persist.entries, Some(&persist.hard_state), true).unwrap();
            }
            leader.persisted(&mut out);
        }
    }
    let mut refusal = Message { from: 2, to: 1, term: leader.leadership().term.0, ..Message::default() };
    refusal.set_msg_type(MessageType::MsgAppendResponse);
    (refusal.reject, refusal.index, refusal.reject_hint) = (true, 20, 0);
    leader.step(Input::Message(refusal)).unwrap();
    assert!(!leader.poll(&mut out), "there is nothing to send");
    assert!(matches!(leader.log_mut().take_damage(), Some(Error::Corrupted { .. })));
}

/// After a crash the last record may be torn, whatever its length; damage before it is still refused.
#[test]
fn after_a_crash_only_the_last_write_may_be_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(1, 1, b"first")], Some(&hard(1, 1, 0)), true).unwrap();
    let start = log.active().end as usize;
    log.append(&[entry(2, 1, b"second")], None, true).unwrap();
    let end = log.active().end as usize;
    let path = log.active().path.clone();
    drop(log);
    let good = std::fs::read(&path).unwrap();
    let life = std::fs::read(dir.path().join(LIFE_FILE)).unwrap();
    for cut in start..end {
        let mut torn = good.clone();
        torn[cut..].fill(0);
        std::fs::write(&path, &torn).unwrap();
        std::fs::write(dir.path().join(LIFE_FILE), &life).unwrap();
        let mut log = RaftLog::open(dir.path()).unwrap();
        assert_eq!(log.last(), 1, "cut at {cut}");
        log.append(&[entry(2, 2, b"other")], None, true).unwrap();
        drop(log);
        assert_eq!(RaftLog::open(dir.path()).unwrap().term(2).unwrap(), 2);
    }
    std::fs::write(dir.path().join(LIFE_FILE), &life).unwrap();
    for at in 0..start {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        assert!(RaftLog::open(dir.path()).is_err(), "byte {at}");
    }
}

/// Where each record of the newest segment begins, and where the last one ends.
fn record_starts(log: &mut RaftLog) -> Vec<usize> {
    let first = log.next_record;
    let segment = log.active();
    let (mut starts, mut number) = (vec![0], segment.first_number().unwrap().unwrap());
    while let Some((_, end)) = segment.record_at(starts[starts.len() - 1] as u64, number).unwrap() {
        starts.push(end as usize);
        number += 1;
    }
    assert_eq!(number, first);
    starts
}

/// Goal: good records behind a hole are damage if the hole was durable before they were written, and a loss of power
/// otherwise.  Method: of six records, in two lives of the node, two were written before one sync that never came; each
/// is made a hole.
#[test]
fn a_hole_is_damage_if_what_follows_was_written_after_its_sync() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(1, 1, b"one")], None, true).unwrap();
    log.append(&[entry(2, 1, b"two")], None, true).unwrap();
    drop(log);
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(3, 1, b"three")], None, false).unwrap();
    log.append(&[entry(4, 1, b"four")], None, true).unwrap();
    log.append(&[entry(5, 1, b"five")], None, false).unwrap();
    log.append(&[entry(6, 1, b"six")], None, false).unwrap();
    let (path, starts) = (log.active().path.clone(), record_starts(&mut log));
    drop(log);
    let good = std::fs::read(&path).unwrap();
    let life = std::fs::read(dir.path().join(LIFE_FILE)).unwrap();
    let found = |hole: std::ops::Range<usize>| {
        let mut bytes = good.clone();
        bytes[hole].fill(0);
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(dir.path().join(LIFE_FILE), &life).unwrap();
        let read = RaftLog::open_to_read(dir.path(), None).map(|log| log.last());
        let opened = RaftLog::open(dir.path()).map(|log| log.last());
        assert_eq!(read.as_ref().ok(), opened.as_ref().ok());
        opened.map_err(|e| assert!(matches!(e, Error::Corrupted { .. }), "{e}"))
    };
    // The entry in each record is named like the record, and record 0 has none.
    let lost: Vec<_> = (0..7).map(|record| found(starts[record]..starts[record + 1])).collect();
    assert_eq!(lost, [Err(()), Err(()), Err(()), Err(()), Err(()), Ok(4), Ok(5)]);
    // What an earlier life left is durable, whether or not something follows it; what no later mark covers may be lost.
    let torn: Vec<_> = (1..7).map(|record| found(starts[record]..starts[7])).collect();
    assert_eq!(torn, [Err(()), Err(()), Ok(2), Ok(3), Ok(4), Ok(5)]);
    // What is left after that is a log like any other.
    assert_eq!(found(starts[5]..starts[6]), Ok(4));
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(5, 2, b"other")], None, true).unwrap();
    drop(log);
    let log = RaftLog::open(dir.path()).unwrap();
    assert_eq!((log.last(), log.term(5).unwrap()), (5, 2));
}

/// Goal: a client cannot make a node refuse to start after a loss of power.  Method: bytes of records, with and without
/// marks, are the data of an entry whose own record lacks a part.
#[test]
fn what_a_client_has_written_is_not_taken_for_a_record() {
    let away = tempfile::tempdir().unwrap();
    let mut other = RaftLog::open(away.path()).unwrap();
    other.next_record = 1 << 40;
    other.durable = 1 << 40;
    other.append(&[entry(1, 1, b"looks like a record")], None, true).unwrap();
    let unmarked = other.active().append(1 << 41, None, None, None, &[entry(2, 1, b"and so does this")]);
    assert_eq!(unmarked.unwrap().len(), 1);
    let data = std::fs::read(&other.active().path).unwrap()[FIRST_RECORD_BYTES as usize..1000].to_vec();
    assert_eq!(data.windows(4).filter(|w| *w == b"OTL1").count(), 2);

    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(1, 1, b"one")], None, true).unwrap();
    let start = log.active().end as usize;
    log.append(&[entry(2, 1, &data)], None, false).unwrap();
    let path = log.active().path.clone();
    drop(log);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[start..start + 8].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(RaftLog::open(dir.path()).unwrap().last(), 1);
}

/// Goal: a release that knows no marks may take this one's place for a while, and what it wrote is not given up.
/// Method: its records, two of which get a hole; a log that it closed, and one that it did not.
#[test]
fn damage_to_what_a_release_without_marks_has_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open(dir.path()).unwrap();
    log.append(&[entry(1, 1, b"one")], None, true).unwrap();
    for index in 2..6 {
        let number = log.next_record;
        log.active().append(number, None, None, None, &[entry(index, 1, b"of an earlier release")]).unwrap();
        log.next_record += 1;
    }
    let (path, starts) = (log.active().path.clone(), record_starts(&mut log));
    drop(log);
    let good = std::fs::read(&path).unwrap();
    for was_closed in [false, true] {
        if was_closed {
            // This release closed the log before the other one came.
            std::fs::remove_file(dir.path().join(LIFE_FILE)).unwrap();
        }
        for record in if was_closed { 1..5 } else { 3..5 } {
            let mut bytes = good.clone();
            bytes[starts[record]] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert!(matches!(RaftLog::open(dir.path()), Err(Error::Corrupted { .. })), "record {record}");
        }
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(RaftLog::open(dir.path()).unwrap().last(), 5);
}

/// Goal: bytes that look like records take no time.  Method: the heads of many, each of which would have all that
/// follows, behind a bad byte; looking at each of them as a whole would find that none is good.
#[test]
fn heads_inside_of_each_other_are_not_all_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::create(dir.path(), 0, Previous::default()).unwrap();
    segment.append(0, None, Some(Previous::default()), None, &[]).unwrap();
    let (start, mut bytes) = (segment.end, vec![1]);
    for place in (0..100u32).rev() {
        bytes.extend(b"OTL1");
        bytes.extend((place * 20).to_le_bytes());
        bytes.extend(9u64.to_le_bytes());
        bytes.extend([7; 4]);
    }
    segment.file.write_all_at(&bytes, start).unwrap();
    assert_eq!(segment.tail_after(start, 1, |_, _| true).unwrap(), Tail::Damaged);
    assert_eq!(segment.tail_after(start, 1, |_, stamp| stamp == Some(0)).unwrap(), Tail::Torn);
}

#[test]
fn a_missing_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    log.close().unwrap();
    let last = log.active().number;
    drop(log);
    for number in [1, last] {
        let (path, away) = (path_of(dir.path(), number), dir.path().join("away"));
        std::fs::rename(&path, &away).unwrap();
        assert!(matches!(open(dir.path()), Err(Error::Corrupted { .. })), "segment {number}");
        std::fs::rename(&away, &path).unwrap();
    }
    assert!(open(dir.path()).is_ok());
    // Now it was not closed.
    for number in super::segment_numbers(dir.path()).unwrap() {
        std::fs::remove_file(path_of(dir.path(), number)).unwrap();
    }
    assert!(matches!(open(dir.path()), Err(Error::Corrupted { .. })), "all segments");
}

/// Opening a log only to read it changes nothing, not even what a crash left; and a write under way after the entry
/// that is wanted does not disturb it.
#[test]
fn a_log_is_read_without_being_touched() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open(dir.path()).unwrap();
    for index in 1..=6 {
        log.append(&[entry(index, 1, &[7; 30])], None, true).unwrap();
    }
    let (path, all) = (log.active().path.clone(), contents(&log));
    let whole = std::fs::read(&path).unwrap();
    // Record 5, half written by a node that is at work: record 6 is there already.
    let start = whole.windows(4).enumerate().filter(|(_, w)| *w == b"OTL1").map(|(at, _)| at).nth(5).unwrap();
    let mut torn = whole.clone();
    torn[start + 50] = 0;
    std::fs::write(&path, &torn).unwrap();
    assert!(matches!(RaftLog::open_to_read(dir.path(), None), Err(Error::Corrupted { .. })));
    let read = RaftLog::open_to_read(dir.path(), Some(LogIndex(4))).unwrap();
    assert_eq!((read.last(), contents(&read)), (4, all[..4].to_vec()));
    torn.truncate(start + 30);
    std::fs::write(&path, &torn).unwrap();
    assert_eq!(RaftLog::open_to_read(dir.path(), None).unwrap().last(), 4);
    assert_eq!(std::fs::read(&path).unwrap(), torn);
    std::fs::write(&path, &whole).unwrap();
    log.close().unwrap();
    let names = || std::fs::read_dir(dir.path()).unwrap().count();
    let before = names();
    assert_eq!(contents(&RaftLog::open_to_read(dir.path(), None).unwrap()), all);
    assert_eq!(names(), before);
    assert!(RaftLog::open_to_read(dir.path(), Some(LogIndex(9))).is_ok_and(|log| log.last() == 6));
}

/// A log that goes on from an installed checkpoint keeps its promises and nothing else, whether the crash comes before
/// or after the old segments are gone.
/// A backup reads the log of a running node, which may cut it meanwhile.
#[test]
fn a_log_that_is_cut_meanwhile_can_be_read() {
    use std::sync::atomic::{AtomicU64, Ordering};
    const CUTS: u64 = 5;
    const ENTRIES: u64 = 200;
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let written = AtomicU64::new(0);
    let mut log = open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 1..=CUTS * ENTRIES {
                log.append(&[entry(index, 1, &[7; 40])], Some(&hard(1, 1, index)), false).unwrap();
                written.store(index, Ordering::Release);
                if index % ENTRIES == 0 {
                    log.cut(LogIndex(index)).unwrap();
                }
            }
        });
        let mut upto = 0;
        while upto < CUTS * ENTRIES {
            upto = written.load(Ordering::Acquire);
            let found = RaftLog::open_to_read(dir.path(), Some(LogIndex(upto))).unwrap();
            assert!(found.last() >= upto, "{} instead of {upto}", found.last());
        }
    });
}

#[test]
fn a_restarted_log_goes_on_after_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    log.append(&[], Some(&hard(4, 3, 18)), true).unwrap();
    log.active().trim().unwrap();
    drop(log);
    // Old segments that a crash left beside the new one.
    let away = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        for file in std::fs::read_dir(from).unwrap() {
            let path = file.unwrap().path();
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    };
    copy(dir.path(), away.path());
    let mut log = open(dir.path()).unwrap();
    log.restart(LogIndex(100), Term(3), None).unwrap();
    assert_eq!((log.first_index().0, log.last(), log.term(100).unwrap(), log.segments.len()), (101, 100, 3, 1));
    assert_eq!(log.hard_state, hard(4, 3, 100));
    drop(log);
    copy(away.path(), dir.path());
    let mut log = open(dir.path()).unwrap();
    assert_eq!((log.first_index().0, log.last(), log.segments.len()), (101, 100, 1));
    assert_eq!(log.hard_state, hard(4, 3, 100));
    for n in 101..120 {
        log.append(&[entry(n, 5, &[1; 50])], None, true).unwrap();
    }
    let all = contents(&log);
    assert!(log.segments.len() > 2);
    drop(log);
    assert_eq!(contents(&open(dir.path()).unwrap()), all);
    assert_eq!(segment_numbers(dir.path()).unwrap()[0], segment_numbers(away.path()).unwrap().last().unwrap() + 1);
    assert_eq!(contents(&RaftLog::open_to_read(dir.path(), None).unwrap()), all);
}

/// Appends until the spare is there, which takes more or fewer records each time.
fn wait_for_spare(log: &mut RaftLog, data: &[u8]) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !log.spare.is_ready() {
        assert!(std::time::Instant::now() < deadline, "no spare");
        if log.active().end <= log.segment_bytes / SPARE_FROM {
            log.append(&[entry(log.last() + 1, 1, data)], None, true).unwrap();
        }
        log.spare.prepare(log.segment_bytes);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn the_next_segment_is_the_file_that_was_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 1 << 20).unwrap();
    wait_for_spare(&mut log, &[7; 50_000]);
    let spare = std::fs::metadata(log.spare.path()).unwrap();
    assert_eq!((spare.len(), log.segments.len()), (1 << 20, 1));
    while log.segments.len() == 1 {
        log.append(&[entry(log.last() + 1, 1, &[8; 50_000])], None, true).unwrap();
    }
    assert_eq!(std::fs::metadata(&log.active().path).unwrap().ino(), spare.ino());
    assert!(log.segments[0].end <= 1 << 20);
    let all = contents(&log);
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(contents(&log), all);
    let first = &log.segments[0];
    assert_eq!(std::fs::metadata(&first.path).unwrap().len(), first.end);
    log.close().unwrap();
}

/// It makes no difference whether that is half written, complete, contains a record that would be the next, or begins
/// as the next segment would.
#[test]
fn what_an_earlier_life_left_as_a_spare_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    fill(&mut log);
    let all = contents(&log);
    let mut next = Segment::create(dir.path(), 999, Previous::new(20, 1)).unwrap();
    next.append(log.next_record, Some(&hard(9, 9, 9)), Some(Previous::new(20, 1)), None, &[]).unwrap();
    next.append(log.next_record + 1, None, None, None, &[entry(21, 9, b"never promised")]).unwrap();
    let begun = std::fs::read(&next.path).unwrap();
    next.remove().unwrap();
    drop(log);
    for left in [vec![], vec![0; 100], vec![0; 300], begun.clone(), begun[..80].to_vec()] {
        let path = Spare::new(dir.path()).path().to_owned();
        std::fs::write(&path, left).unwrap();
        assert_eq!(contents(&RaftLog::open_to_read(dir.path(), None).unwrap()), all);
        assert!(path.exists());
        let log = open(dir.path()).unwrap();
        assert_eq!((contents(&log), log.hard_state.clone()), (all.clone(), hard(1, 2, 18)));
        assert!(!path.exists());
    }
}

/// Since a segment may end with zeros, the next one tells whether it has lost its last record.
#[test]
fn a_segment_that_has_lost_its_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 1 << 20).unwrap();
    log.append(&[entry(1, 1, b"first")], None, true).unwrap();
    let start = log.active().end as usize;
    log.append(&[entry(2, 1, b"second")], None, true).unwrap();
    let (path, end) = (log.active().path.clone(), log.active().end as usize);
    log.next_segment(Previous::new(2, 1)).unwrap();
    drop(log);
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[start..end].fill(0);
    std::fs::write(&path, &bad).unwrap();
    let refused = open(dir.path()).err().expect("it is open");
    assert!(matches!(&refused, Error::Corrupted { why, .. } if why.contains("is missing")), "{refused}");
    std::fs::write(&path, &good).unwrap();
    assert_eq!(open(dir.path()).unwrap().last(), 2);
}

/// The extents of a file as the file system has them on disk: where in the file, where on the disk, how long, and
/// flags.  `None`: the file system does not tell.
fn extents(path: &Path) -> Option<Vec<[u64; 4]>> {
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    #[repr(C)]
    struct Fiemap {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extents: [FiemapExtent; 512],
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct FiemapExtent {
        logical: u64,
        physical: u64,
        length: u64,
        reserved: [u64; 2],
        flags: u32,
        more: [u32; 3],
    }
    let file = std::fs::File::open(path).unwrap();
    let extents = [FiemapExtent::default(); 512];
    let mut map = Fiemap { start: 0, length: u64::MAX, flags: 0, mapped: 0, count: 512, reserved: 0, extents };
    // SAFETY: the structure has the layout of linux/fiemap.h, and room for as many extents as it says.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut map) };
    let of = |e: &FiemapExtent| [e.logical, e.physical, e.length, u64::from(e.flags)];
    (rc == 0).then(|| map.extents[..map.mapped as usize].iter().map(of).collect())
}

/// Goal: syncing a record changes nothing but the blocks in which it is.  Method: compare the file system's map of the
/// segment before and after records were written and synced all over it; in a segment that was prepared, and in one
/// that was not.
#[test]
fn syncing_a_record_changes_no_block_mapping() {
    const UNKNOWN_DELALLOC_OR_UNWRITTEN: u64 = 0x2 | 0x4 | 0x800;
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 2 << 20).unwrap();
    if extents(&log.active().path.clone()).is_none() {
        eprintln!("skipped: the file system of {} does not tell its extents", dir.path().display());
        return;
    }
    for prepared in [false, true] {
        if prepared {
            wait_for_spare(&mut log, &[7; 50_000]);
            log.next_segment(Previous::new(log.last(), 1)).unwrap();
            log.append(&[entry(log.last() + 1, 1, b"")], None, true).unwrap();
        }
        let path = log.active().path.clone();
        let zeros_end = log.active().zeros_end;
        assert_eq!(zeros_end, if prepared { 2 << 20 } else { 1 << 20 });
        let before = extents(&path).unwrap();
        let covered = before.iter().filter(|e| e[0] < zeros_end);
        covered.for_each(|e| assert_eq!(e[3] & UNKNOWN_DELALLOC_OR_UNWRITTEN, 0, "{before:x?}"));
        assert!(before.iter().map(|e| e[2]).sum::<u64>() >= zeros_end, "{before:x?}");
        while log.active().end + 70_000 < zeros_end {
            log.append(&[entry(log.last() + 1, 1, &[9; 60_000])], None, true).unwrap();
            assert_eq!(extents(&path).unwrap(), before);
        }
        assert!(log.segments.len() == if prepared { 2 } else { 1 } && log.active().end > zeros_end / 2);
    }
}

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

/// One of them has a segment of its own, and one is in the rest of a segment that was not written ahead.  They are
/// synced twice, since writing zeros for all of them would take as long again.
#[test]
fn records_larger_than_what_was_written_ahead_are_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RaftLog::open_with(dir.path(), 8 << 20).unwrap();
    for (index, bytes) in [(1, 10), (2, 3 << 20), (3, 10), (4, 11 << 20), (5, 10)] {
        log.append(&[entry(index, 1, &vec![index as u8; bytes])], None, true).unwrap();
        let (end, zeros_end) = (log.active().end, log.active().zeros_end);
        assert_eq!(end > zeros_end, bytes > 2 << 20, "entry {index}: {end}, {zeros_end}");
    }
    assert_eq!(log.segments.len(), 3);
    let all = contents(&log);
    drop(log);
    assert_eq!(contents(&open(dir.path()).unwrap()), all);
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

/// What happens to a log; numbers are taken modulo the number of things that there are.
#[derive(Debug, Clone)]
enum Step {
    /// A record with so many entries of such a length.
    Append(u64, usize),
    /// An entry that names the last so many before it as its parts.
    Whole(u64),
    /// A new leader's entries, which replace so many of those that are not committed.
    Replace(u64, u64),
    Commit(u64),
    Cut(u64),
    /// A crash in the middle of a cut, with so many segments gone.
    CutShort(u64, usize),
    Crash,
    Close,
    /// Synced beside.
    BeginAppend(u64, usize),
    TakeSynced,
    /// After so many records that are synced beside.  Of the pages that are not known to be durable, those are lost
    /// whose bit here is 0.
    PowerLoss(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..4u64, 0..90usize).prop_map(|(n, len)| Step::Append(n, len)),
        4 => (1..4u64, 0..90usize).prop_map(|(n, len)| Step::BeginAppend(n, len)),
        1 => Just(Step::TakeSynced),
        1 => (1..30u64).prop_map(Step::Whole),
        3 => (0..20u64, 0..4u64).prop_map(|(back, n)| Step::Replace(back, n)),
        2 => any::<u64>().prop_map(Step::Commit),
        2 => any::<u64>().prop_map(Step::Cut),
        1 => (any::<u64>(), any::<usize>()).prop_map(|(upto, gone)| Step::CutShort(upto, gone)),
        1 => Just(Step::Crash),
        1 => Just(Step::Close),
        2 => (0..4u64, any::<u64>()).prop_map(|(begun, which)| Step::PowerLoss(begun, which)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// So small that most records have several, and many pages have parts of two records.
const MODEL_PAGE_BYTES: usize = 48;

/// What was written, up to some record.
#[derive(Clone)]
struct Written {
    /// The newest segment, without the zeros at its end.
    segment: (PathBuf, Vec<u8>),
    kept: Vec<(u64, Vec<u8>)>,
    hard_state: HardState,
    /// Durable when the log says so of this number.
    begun: u64,
}

/// A log, and beside it what it should contain: `kept[i]` is entry `i + 1`, even if that was cut.
struct Model {
    dir: tempfile::TempDir,
    segment_bytes: u64,
    log: Option<RaftLog>,
    kept: Vec<(u64, Vec<u8>)>,
    term: u64,
    committed: u64,
    /// The log was cut up to here at most.
    needed: u64,
    /// The last number given to `begin_append`.
    begun: u64,
    /// What is durable, and then what was written after that.
    written: Vec<Written>,
}

impl Model {
    fn snapshot(&mut self) -> Written {
        let log = self.log.as_mut().unwrap();
        let segment = log.active();
        let mut bytes = vec![0; segment.end as usize];
        segment.file.read_exact_at(&mut bytes, 0).unwrap();
        let segment = (segment.path.clone(), bytes);
        Written { segment, kept: self.kept.clone(), hard_state: log.hard_state.clone(), begun: self.begun }
    }

    /// The log says that everything is durable.
    fn all_is_durable(&mut self) {
        self.written = vec![self.snapshot()];
    }

    /// Something was written, and it is not known whether it is durable.
    fn something_is_not_durable(&mut self) {
        let now = self.snapshot();
        let mut before = self.written.last().unwrap().clone();
        if before.segment.0 != now.segment.0 {
            // The segment before it is durable, and so is the first record of the new one.
            before.segment = (now.segment.0.clone(), now.segment.1[..FIRST_RECORD_BYTES as usize].to_vec());
            self.written = vec![before];
        }
        self.written.push(now);
    }

    /// Loses a part of what was not synced: each page of it is there or not, whatever became of the others.
    fn lose_power(&mut self, which: u64) {
        let (now, written) = (self.snapshot(), std::mem::take(&mut self.written));
        drop(self.log.take());
        let (path, old) = &written[0].segment;
        assert_eq!(*path, now.segment.0);
        let mut bytes = now.segment.1;
        for (number, page) in bytes.chunks_mut(MODEL_PAGE_BYTES).enumerate() {
            if which >> (number % 64) & 1 == 0 {
                let at = number * MODEL_PAGE_BYTES;
                (0..page.len()).for_each(|n| page[n] = old.get(at + n).copied().unwrap_or(0));
            }
        }
        std::fs::File::options().write(true).open(path).unwrap().write_all_at(&bytes, 0).unwrap();
        self.reopen();
        let log = self.log.as_ref().unwrap();
        let (found, first) = (contents(log), log.first_index().0 as usize);
        let is_found = |w: &&Written| w.kept[first - 1..] == found && w.hard_state == log.hard_state;
        let left = written.iter().find(is_found).expect("what was durable, and maybe some of what followed");
        self.kept = left.kept.clone();
        self.committed = self.committed.min(self.kept.len() as u64);
        self.all_is_durable();
    }

    fn append(&mut self, entries: u64, len: usize, beside: bool) {
        let first = self.kept.len() as u64 + 1;
        let entries: Vec<_> = (first..first + entries).map(|i| entry(i, self.term, &vec![i as u8; len])).collect();
        let (log, hard_state) = (self.log.as_mut().unwrap(), hard(self.term, 1, self.committed));
        if beside {
            self.begun += 1;
            log.sync_takes = BESIDE_FROM;
            let is_durable = log.begin_append(&entries, Some(&hard_state), self.begun).unwrap();
            assert_eq!(is_durable, log.active().end > log.active().zeros_end);
            self.kept.extend(entries.iter().map(|e| (e.term, e.data.to_vec())));
            if !is_durable {
                return self.something_is_not_durable();
            }
        } else {
            log.append(&entries, Some(&hard_state), true).unwrap();
            self.kept.extend(entries.iter().map(|e| (e.term, e.data.to_vec())));
        }
        self.all_is_durable();
    }

    fn reopen(&mut self) {
        drop(self.log.take());
        let mut log = RaftLog::open_with(self.dir.path(), self.segment_bytes).unwrap();
        log.sync_beside(|| ()).unwrap();
        log.cut_bytes_max = 2 * self.segment_bytes;
        self.log = Some(log);
        self.all_is_durable();
    }

    fn step(&mut self, step: &Step) {
        let log = self.log.as_mut().unwrap();
        match *step {
            Step::Append(entries, len) => self.append(entries, len, false),
            Step::BeginAppend(entries, len) => self.append(entries, len, true),
            Step::TakeSynced => {
                let Some(synced) = log.take_synced().unwrap() else { return };
                assert!(synced <= self.begun);
                let durable = self.written.iter().rposition(|w| w.begun <= synced).unwrap_or(0);
                self.written.drain(..durable);
            }
            Step::Whole(back) => {
                let last = self.kept.len() as u64;
                let parts: Vec<_> =
                    (last.saturating_sub(back).max(log.before_first()) + 1..=last).map(LogIndex).collect();
                let whole = entry(last + 1, self.term, &Entry::encode_whole(&TxnId::default(), 0, &parts));
                log.append(std::slice::from_ref(&whole), Some(&hard(self.term, 1, self.committed)), true).unwrap();
                self.kept.push((self.term, whole.data.to_vec()));
                self.all_is_durable();
            }
            Step::Replace(back, more) => {
                let keep = (self.kept.len() as u64).saturating_sub(back).max(self.committed);
                self.kept.truncate(keep as usize);
                self.term += 1;
                self.append(1 + more, 5, false);
            }
            Step::Commit(upto) => self.committed += upto % (self.kept.len() as u64 - self.committed + 1),
            Step::Cut(upto) => {
                let upto = upto % (self.committed + 1);
                self.needed = self.needed.max(upto);
                log.cut(LogIndex(upto)).unwrap();
            }
            Step::CutShort(upto, gone) => {
                let upto = upto % (self.committed + 1);
                self.needed = self.needed.max(upto);
                let segments = log.segments_to_cut(LogIndex(upto));
                for old in log.segments.iter().take(gone % (segments + 1)) {
                    std::fs::remove_file(&old.path).unwrap();
                }
                self.reopen();
            }
            Step::Crash => self.reopen(),
            Step::Close => {
                log.close().unwrap();
                self.reopen();
            }
            Step::PowerLoss(begun, which) => {
                (0..begun).for_each(|n| self.append(1, 7 * n as usize, true));
                self.lose_power(which);
            }
        }
    }

    fn holds(&self, log: &RaftLog, upto: u64) {
        let first = log.first_index().0;
        assert!(first <= self.committed + 1, "{first} is not committed");
        if first > 1 {
            assert_eq!(
                log.term_of(first - 1),
                Some(self.kept[first as usize - 2].0),
                "the term before the first entry"
            );
        }
        let mut found = contents(log);
        found.truncate((upto + 1 - first) as usize);
        assert_eq!(found, self.kept[first as usize - 1..upto as usize]);
        let readable = Log::first_index(log).0;
        assert!(
            readable <= self.needed + 1,
            "what lacks its parts is below {readable}, and {} is needed",
            self.needed + 1
        );
        for (_, data) in &found[((readable - first) as usize).min(found.len())..] {
            let whole = Entry::decode(data.clone().into()).ok().and_then(|entry| entry.whole());
            for part in whole.into_iter().flat_map(|(_, parts)| parts) {
                assert!(part.0 >= first, "part {part} was cut off");
            }
        }
    }
}

proptest! {
    /// This includes a log in which new leaders have replaced entries of finished segments.  And reading the log of a
    /// running node finds what was committed, not what that replaced.
    #[test]
    fn a_log_holds_what_was_written_last(steps in steps(), segment_bytes in prop_oneof![Just(300u64), Just(2_000)]) {
        // In memory if there is such a folder: thousands of syncs take minutes on a disk, and what a loss of power
        // takes is drawn here.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let mut model = Model {
            dir: dir.unwrap(),
            segment_bytes,
            log: None,
            kept: Vec::new(),
            term: 1,
            committed: 0,
            needed: 0,
            begun: 0,
            written: Vec::new(),
        };
        model.reopen();
        for step in &steps {
            model.step(step);
            let log = model.log.as_ref().unwrap();
            assert_eq!(log.last(), model.kept.len() as u64);
            model.holds(log, log.last());
            let committed = LogIndex(model.committed);
            let seen = RaftLog::open_to_read(model.dir.path(), Some(committed)).unwrap();
            model.holds(&seen, model.committed);
        }
    }
}

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
