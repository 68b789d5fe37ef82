//! The log on disk.  Here: what is in it after appends, restarts and cuts, and for those who only read it.

mod beside;
mod damage;
mod model;
mod spare;
mod stored;

use super::*;
use crate::agent::AgentQueue;
use crate::disk::life::LIFE_FILE;
use onetrip_core::certifier::Limits;
use onetrip_core::replica::Replica;
use onetrip_core::router::Log;
use onetrip_core::{Checkpoint, Entry, Members, PreferredLeader, TxnId};
use raft::{GetEntriesContext, Storage};

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

/// Goal: a member that came with a checkpoint starts again, and its server is fed from its log, although the log names
/// parts from before the checkpoint: by an entry that does not count, of a transaction that was proposed once more.
#[test]
fn what_names_parts_from_before_a_checkpoint_is_not_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.restart(LogIndex(30), Term(2), None).unwrap();
    let named = |parts: &[u64]| {
        let parts: Vec<_> = parts.iter().copied().map(LogIndex).collect();
        Entry::encode_whole(&TxnId::default(), 0, &parts)
    };
    let all = [entry(31, 2, b""), entry(32, 2, &named(&[20, 29])), entry(33, 2, b""), entry(34, 2, &named(&[31, 33]))];
    log.append(&all, Some(&hard(2, 1, 34)), true).unwrap();
    drop(log);
    let mut log = open(dir.path()).unwrap();
    let mut state =
        Checkpoint::bootstrap(Members::bootstrap(Vec::new(), PreferredLeader::default(), 1), Limits::default());
    state.term = Term(2);
    for index in 1..=34 {
        state.certifier.skip(LogIndex(index)).unwrap();
        if index == 30 || index == 34 {
            assert_eq!(Replica::<RaftLog, AgentQueue>::put_in_order(&state, &mut log).unwrap(), None);
        }
    }
    assert_eq!(log.readable_from(|at| [31, 34].contains(&at.0)), LogIndex(31));
    // Had it committed, its parts would be missing.
    assert_eq!(log.readable_from(|at| at.0 == 32), LogIndex(33));
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

/// A log that goes on from an installed checkpoint keeps its promises and nothing else, whether the crash comes before
/// or after the old segments are gone.
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
