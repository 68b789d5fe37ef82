//! Wrong bytes, holes and missing segments: what is refused, and what a crash may leave.

use super::*;
use onetrip_core::certifier::Limits;
use onetrip_core::consensus::{Config, Consensus, Input, Message, Output};
use onetrip_core::replica::Store;
use onetrip_core::{Member, MemberRole, Members, NodeId};
use raft::eraftpb::MessageType;
use std::os::unix::fs::FileExt;

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
    for number in segment_numbers(dir.path()).unwrap() {
        std::fs::remove_file(path_of(dir.path(), number)).unwrap();
    }
    assert!(matches!(open(dir.path()), Err(Error::Corrupted { .. })), "all segments");
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
