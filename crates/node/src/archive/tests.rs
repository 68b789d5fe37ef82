//! The archive against restarts, damage, torn writes, gaps, and a folder that comes and goes.

use super::writer::Writer;
use super::*;
use crate::disk::segment::path_of;
use crate::disk::segment_numbers;
use bytes::Bytes;
use proptest::prelude::*;

const SEGMENT_BYTES: u64 = 400;

fn identity() -> Identity {
    Identity { format: 1, cluster: "orders".into(), node: NodeId(2), region: "b".into() }
}

fn entry(index: u64) -> RaftEntry {
    let data = Bytes::from(vec![index as u8; (index % 7 * 10) as usize]);
    RaftEntry { index, term: 1 + index / 10, data, ..Default::default() }
}

fn open(dir: &Path) -> Result<Writer> {
    Writer::open_with(dir, &identity(), SEGMENT_BYTES)
}

/// Entries `from..=to` in one batch.
fn append(writer: &mut Writer, from: u64, to: u64, time_ms: u64) {
    let entries: Vec<RaftEntry> = (from..=to).map(entry).collect();
    let previous = Previous::new(from - 1, entry(from - 1).term);
    writer.append(previous, time_ms, &entries).unwrap();
}

/// Indexes and times of all entries from `from` on.
fn read(dir: &Path, from: u64) -> Result<Vec<(u64, u64)>> {
    let mut reader = Reader::open(dir)?;
    let mut found: Vec<(u64, u64)> = Vec::new();
    while let Some(archived) = reader.entry(LogIndex(from + found.len() as u64))? {
        assert_eq!(archived.entry, entry(from + found.len() as u64));
        found.push((archived.entry.index, archived.time_ms.unwrap()));
    }
    Ok(found)
}

/// Ten batches of two entries, over several segments.
fn fill(dir: &Path) -> Writer {
    let mut writer = open(dir).unwrap();
    for n in 0..10 {
        append(&mut writer, 2 * n + 1, 2 * n + 2, 1000 + n);
    }
    writer.sync().unwrap();
    writer
}

#[test]
fn what_was_archived_comes_back_in_order_with_times_that_never_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = fill(dir.path());
    // The clock is set back.
    append(&mut writer, 21, 22, 7);
    writer.close().unwrap();
    let mut writer = open(dir.path()).unwrap();
    assert_eq!((writer.last(), writer.time_ms()), (Some(LogIndex(22)), 1009));
    append(&mut writer, 23, 23, 8);
    writer.append(writer.end().unwrap(), 5000, &[]).unwrap();
    writer.sync().unwrap();
    assert!(segment_numbers(dir.path()).unwrap().len() > 3);
    let found = read(dir.path(), 1).unwrap();
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), (1..=23).collect::<Vec<_>>());
    assert_eq!(found[20..], [(21, 1009), (22, 1009), (23, 1009)]);
    assert_eq!(found[..3], [(1, 1000), (2, 1000), (3, 1001)]);
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!((reader.first(), reader.end().unwrap()), (LogIndex(1), (LogIndex(23), 5000)));
    assert_eq!(*reader.identity(), identity());
}

/// Goal: a clock that was far ahead for a while spoils the times of what came meanwhile, and no others.
#[test]
fn times_go_back_with_a_new_segment_if_the_clock_was_far_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open_with(dir.path(), &identity(), 1 << 20).unwrap();
    append(&mut writer, 1, 2, 1000);
    append(&mut writer, 3, 4, 90_000_000);
    append(&mut writer, 5, 6, 90_000_000 - CLOCK_OFF_MS);
    append(&mut writer, 7, 8, 2000);
    writer.append(writer.end().unwrap(), 3000, &[]).unwrap();
    assert_eq!(writer.time_ms(), 3000);
    writer.close().unwrap();
    assert_eq!(segment_numbers(dir.path()).unwrap(), [1, 7]);
    let times: Vec<u64> = read(dir.path(), 1).unwrap().into_iter().map(|(_, time_ms)| time_ms).collect();
    assert_eq!(times, [1000, 1000, 90_000_000, 90_000_000, 90_000_000, 90_000_000, 2000, 2000]);
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.earliest_after(LogIndex(3)), Some((LogIndex(7), 2000)));
    assert_eq!(reader.earliest_after(LogIndex(7)), None);
    assert_eq!(open(dir.path()).unwrap().time_ms(), 3000);
}

/// Goal: it can be told how exact an entry's time is, also of the first one of a file.
#[test]
fn a_time_is_as_exact_as_the_one_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open_with(dir.path(), &identity(), 1 << 20).unwrap();
    append(&mut writer, 1, 2, 1000);
    append(&mut writer, 3, 3, 2000);
    writer.append(writer.end().unwrap(), 3000, &[]).unwrap();
    append(&mut writer, 4, 5, 50_000);
    writer.close().unwrap();
    let mut writer = Writer::open_with(dir.path(), &identity(), 1 << 20).unwrap();
    append(&mut writer, 6, 6, 90_000);
    writer.close().unwrap();
    // A segment with nothing but times, which is gone after a restart.
    writer.append(writer.end().unwrap(), 200_000, &[]).unwrap();
    writer.sync().unwrap();
    assert_eq!(segment_numbers(dir.path()).unwrap(), [1, 6, 7]);
    let mut writer = Writer::open_with(dir.path(), &identity(), 1 << 20).unwrap();
    assert_eq!(segment_numbers(dir.path()).unwrap(), [1, 6]);
    append(&mut writer, 7, 7, 201_000);
    writer.sync().unwrap();
    let mut reader = Reader::open(dir.path()).unwrap();
    let mut within = |index| reader.decided_within(LogIndex(index)).unwrap();
    let found = [1, 3, 5, 6, 7].map(|index| within(index).unwrap());
    assert_eq!(found, [(0, 1000), (1000, 2000), (3000, 50_000), (50_000, 90_000), (200_000, 201_000)]);
    assert_eq!(within(8), None);
}

#[test]
fn one_wrong_byte_in_a_finished_segment_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close().unwrap();
    let numbers = segment_numbers(dir.path()).unwrap();
    for number in &numbers[..numbers.len() - 1] {
        let path = path_of(dir.path(), *number);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            std::fs::write(&path, &bad).unwrap();
            let error = read(dir.path(), 1).unwrap_err();
            assert!(matches!(&error, ArchiveError::Damaged { file, .. } if *file == path), "byte {at}: {error}");
        }
        // Cut short between two records or inside of one.
        for len in 0..good.len() {
            std::fs::write(&path, &good[..len]).unwrap();
            assert!(read(dir.path(), 1).is_err(), "{len} bytes of {}", path.display());
        }
        std::fs::write(&path, &good).unwrap();
    }
    assert_eq!(read(dir.path(), 1).unwrap().len(), 20);
}

#[test]
fn a_missing_segment_is_a_gap_that_names_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close().unwrap();
    let numbers = segment_numbers(dir.path()).unwrap();
    std::fs::remove_file(path_of(dir.path(), numbers[1])).unwrap();
    let error = read(dir.path(), 1).unwrap_err();
    let ArchiveError::Gap { from, to, .. } = &error else { panic!("{error}") };
    assert_eq!((from.0, to.0), (numbers[1], numbers[2] - 1));
    assert!(error.to_string().contains(&format!("lacks entries {from} to {to}")), "{error}");
    assert!(read(dir.path(), numbers[2]).is_ok());
    std::fs::remove_file(path_of(dir.path(), numbers[0])).unwrap();
    let error = read(dir.path(), 1).unwrap_err();
    assert!(matches!(error, ArchiveError::BeforeFirst { first, .. } if first.0 == numbers[2]), "{error}");
}

#[test]
fn entries_that_were_cut_before_they_came_leave_a_gap_and_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = fill(dir.path());
    append(&mut writer, 31, 33, 2000);
    writer.sync().unwrap();
    let gap = Some(Gap { from: LogIndex(21), to: LogIndex(30) });
    assert_eq!(writer.gap(), gap);
    drop(writer);
    assert_eq!(open(dir.path()).unwrap().gap(), gap);
    assert!(matches!(read(dir.path(), 1), Err(ArchiveError::Gap { from: LogIndex(21), to: LogIndex(30), .. })));
    assert_eq!(read(dir.path(), 31).unwrap().len(), 3);
}

/// A full disk again and again takes the first record of a segment and no entry, while the log is cut: that is one gap.
#[test]
fn segments_without_entries_do_not_hide_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = fill(dir.path());
    for index in [24, 28] {
        writer.append(Previous::new(index, 1), 2000, &[]).unwrap();
        drop(writer);
        writer = open(dir.path()).unwrap();
        assert_eq!((writer.last(), writer.time_ms()), (Some(LogIndex(20)), 2000));
    }
    append(&mut writer, 31, 33, 3000);
    let gap = |writer: &Writer| writer.gap().map(|gap| (gap.from.0, gap.to.0));
    assert_eq!(gap(&writer), Some((21, 30)));
    append(&mut writer, 41, 42, 3000);
    assert_eq!(gap(&writer), Some((21, 40)));
    note_backup(dir.path());
    append(&mut writer, 51, 52, 3000);
    assert_eq!(gap(&writer), Some((43, 50)));
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let told = |result: Result<Writer>| result.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(told(open(&gone)).contains("does not exist: make it, mount it"));
    fill(dir.path()).close().unwrap();
    let other = Identity { cluster: "restored".into(), ..identity() };
    let why = told(Writer::open(dir.path(), &other));
    assert!(why.contains("node 2 (b) of cluster orders, this is node 2 (b) of cluster restored"), "{why}");
    let full = tempfile::tempdir().unwrap();
    std::fs::write(full.path().join("letter.txt"), "dear").unwrap();
    assert!(told(open(full.path())).contains("holds files but no archive"));
    assert!(matches!(Reader::open(full.path()), Err(ArchiveError::NoArchive { .. })));
}

/// The file of the segment that was written last, and its length.
fn newest(dir: &Path) -> (PathBuf, u64) {
    let path = path_of(dir, *segment_numbers(dir).unwrap().last().unwrap());
    let bytes = std::fs::metadata(&path).unwrap().len();
    (path, bytes)
}

/// So small that most records have several, and many pages have parts of two records.
const PAGE_BYTES: usize = 32;

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Sync,
    /// The machine dies: of the pages that were not synced, those are there whose bit is 1.  The others read as zeros,
    /// or are missing at the end of the file.
    Crash(u64, bool),
    /// A write fails; the same process goes on.
    Fail,
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u64..5).prop_map(Step::Append),
        2 => Just(Step::Sync),
        2 => (any::<u64>(), any::<bool>()).prop_map(|(kept, zeros)| Step::Crash(kept, zeros)),
        1 => Just(Step::Fail),
        1 => Just(Step::Stop),
    ]
}

/// Fewer cases than usual, since these tests sync files; unless somebody asks for a number.
fn cases() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(48),
    }
}

proptest! {
    #![proptest_config(cases())]

    /// Whatever happens between syncs: synced entries are there, nothing is there twice, nothing is missing in between.
    #[test]
    fn synced_entries_survive_whatever_happens(steps in proptest::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut synced, mut last, mut synced_bytes) = (0, 0, 0);
        let mut writer = open(dir.path()).unwrap();
        for step in steps {
            match step {
                Step::Append(n) => {
                    let files = segment_numbers(dir.path()).unwrap().len();
                    append(&mut writer, last + 1, last + n, 1);
                    if segment_numbers(dir.path()).unwrap().len() > files {
                        // The segment before was closed durably, and the new one's first record is durable.
                        (synced, synced_bytes) = (last, 49);
                    }
                    last += n;
                    continue;
                }
                Step::Sync => {
                    writer.sync().unwrap();
                    synced = last;
                    synced_bytes = writer.open_bytes();
                    continue;
                }
                Step::Stop => {
                    writer.close().unwrap();
                    synced = last;
                }
                Step::Fail => {
                    if let Some((file, bytes)) = writer.broken() {
                        std::fs::File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
                    }
                }
                Step::Crash(kept, zeros) => {
                    let written = writer.open_bytes();
                    drop(writer);
                    if written > 0 {
                        let (path, len) = newest(dir.path());
                        let mut bytes = std::fs::read(&path).unwrap();
                        bytes.truncate(written as usize);
                        let mut end = synced_bytes as usize;
                        for (at, byte) in bytes.iter_mut().enumerate().skip(end) {
                            match kept >> (at / PAGE_BYTES % 64) & 1 {
                                0 => *byte = 0,
                                _ => end = at + 1,
                            }
                        }
                        bytes.resize(if zeros { len as usize } else { end }, 0);
                        std::fs::write(&path, bytes).unwrap();
                    }
                }
            }
            writer = open(dir.path()).unwrap();
            let found = writer.last().map_or(0, |l| l.0);
            prop_assert!((synced..=last).contains(&found), "{synced} to {last}, found {found}");
            (last, synced_bytes) = (found, 0);
            synced = synced.max(found);
        }
        // Before what is not there has been written again, and afterwards.
        if last > 0 {
            let mut reader = Reader::open(dir.path()).unwrap();
            (1..=last).for_each(|index| assert_eq!(reader.entry(LogIndex(index)).unwrap().unwrap().entry, entry(index)));
        }
        append(&mut writer, last + 1, last + 1, 1);
        drop(writer);
        prop_assert_eq!(read(dir.path(), 1).unwrap().len() as u64, last + 1);
    }

    /// Arbitrary bytes neither cause a panic nor are taken for entries.
    #[test]
    fn any_bytes_are_an_error_or_an_end(raw in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..600) {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path()).close().unwrap();
        let numbers = segment_numbers(dir.path()).unwrap();
        let path = path_of(dir.path(), *numbers.last().unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.min(bytes.len());
        bytes.splice(at..(at + raw.len()).min(bytes.len()), raw);
        std::fs::write(&path, &bytes).unwrap();
        match read(dir.path(), 1) {
            Ok(found) => prop_assert!(found.len() as u64 >= numbers.last().unwrap() - 1 && found.len() <= 20),
            Err(e) => prop_assert!(matches!(e, ArchiveError::Damaged { .. }), "{}", e),
        }
    }
}

/// Where each record of a segment begins, and where the last one ends.
fn record_starts(dir: &Path, number: u64) -> Vec<usize> {
    let segment = crate::disk::segment::Segment::open_to_read(dir, number).unwrap();
    let mut starts = vec![0];
    while let Some((_, end)) = segment.record_at(starts[starts.len() - 1] as u64, starts.len() as u64 - 1).unwrap() {
        starts.push(end as usize);
    }
    starts
}

/// An archive whose newest segment has entries 1 to 8, each in its record, and a hole where entry `lost` was.
fn with_hole(lost: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open_with(dir.path(), &identity(), 1 << 20).unwrap();
    (1..=8).for_each(|index| append(&mut writer, index, index, 1000 + index));
    writer.close().unwrap();
    let (path, starts) = (path_of(dir.path(), 1), record_starts(dir.path(), 1));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[starts[lost]..starts[lost + 1]].fill(0);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// Goal: a hole costs a restore what is behind it, and nothing before it.
#[test]
fn what_is_before_a_hole_is_read_and_what_is_behind_it_is_missed_in_words() {
    let (dir, path) = with_hole(5);
    let mut reader = Reader::open(dir.path()).unwrap();
    (1..5).for_each(|index| assert_eq!(reader.entry(LogIndex(index)).unwrap().unwrap().entry, entry(index)));
    assert_eq!(reader.end().unwrap(), (LogIndex(4), 1004));
    let error = reader.entry(LogIndex(5)).unwrap_err();
    assert!(matches!(&error, ArchiveError::Damaged { file, .. } if *file == path));
    let why = error.to_string();
    assert!(why.contains("record 5 at byte") && why.contains("up to entry 4 (--to-position 4)"), "{why}");
}

/// Goal: the writer goes on by itself, and loses no byte that it cannot write again.  Method: the log still has what
/// the hole has lost, has only later entries than the archive, or has some of those behind the hole.
#[test]
fn a_hole_is_written_again_if_the_log_has_what_was_there() {
    let (dir, path) = with_hole(5);
    let damaged = std::fs::read(&path).unwrap();
    let mut writer = open(dir.path()).unwrap();
    assert_eq!((writer.last(), writer.time_ms()), (Some(LogIndex(4)), 1004));
    // Nobody knows yet that nothing is missing.
    writer.append(writer.end().unwrap(), 9000, &[]).unwrap();
    assert_eq!((writer.time_ms(), std::fs::read(&path).unwrap() == damaged), (1004, true));
    append(&mut writer, 5, 9, 2000);
    writer.close().unwrap();
    assert_eq!(read(dir.path(), 1).unwrap().len(), 9);

    let (dir, path) = with_hole(5);
    let mut writer = open(dir.path()).unwrap();
    append(&mut writer, 7, 9, 2000);
    assert_eq!(writer.gap(), Some(Gap { from: LogIndex(5), to: LogIndex(6) }));
    writer.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == damaged);
    let mut reader = Reader::open(dir.path()).unwrap();
    assert!(reader.entry(LogIndex(4)).unwrap().is_some());
    assert!(matches!(reader.entry(LogIndex(5)), Err(ArchiveError::Damaged { .. })));
    assert_eq!(read(dir.path(), 7).unwrap().len(), 3);
    assert_eq!(open(dir.path()).unwrap().last(), Some(LogIndex(9)));
}

/// The same where no entry is before the hole: the segment goes if the log has all that was in it.
#[test]
fn a_segment_that_begins_with_a_hole_goes_only_if_the_log_has_its_entries() {
    for first in [1, 4] {
        let (dir, path) = with_hole(1);
        let mut writer = open(dir.path()).unwrap();
        assert_eq!(writer.last(), None);
        append(&mut writer, first, 9, 2000);
        writer.close().unwrap();
        let kept = matches!(Reader::open(dir.path()).unwrap().entry(LogIndex(1)), Err(ArchiveError::Damaged { .. }));
        assert_eq!((kept, path.exists()), (first > 1, true));
        assert_eq!(read(dir.path(), first).unwrap().len() as u64, 10 - first);
    }
}

fn note_backup(folder: &Path) -> LastBackup {
    let (at, finished) = (LogIndex(42), "now".to_string());
    let backup = LastBackup { checkpoint: at, position: at, finished, finished_ms: Some(7) };
    std::fs::write(folder.join(LAST_BACKUP_FILE), serde_json::to_vec(&backup).unwrap()).unwrap();
    backup
}

/// A node's log with so many entries.
fn log(dir: &Path, entries: u64) -> RaftLog {
    let mut log = RaftLog::open(dir).unwrap();
    for index in log.last_index().0 + 1..=entries {
        log.append(&[entry(index)], None, false).unwrap();
    }
    log
}

fn config(data_dir: &Path) -> NodeConfig {
    let text = "cluster = 'orders'\nnode = 2\nregion = 'b'\nlisten = '127.0.0.1:1'\nhttp = '127.0.0.1:2'\n\
                preferred_leader = 'b'\n[[member]]\nid = 2\nregion = 'b'\naddress = '127.0.0.1:1'\n";
    NodeConfig { data_dir: data_dir.to_owned(), ..toml::from_str(text).unwrap() }
}

/// Pumps until the archive reports this much, at most ten seconds.
fn pump_until(archive: &mut Archive, log: &RaftLog, what: &str, done: impl Fn(&ArchiveReport) -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        archive.pump(log).unwrap();
        let report = archive.report(log.last_index());
        if done(&report) {
            return;
        }
        assert!(Instant::now() < until, "{what}: {report:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_archive_goes_on_from_its_end_after_a_restart_and_after_its_folder_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, away) = (dir.path().join("archive"), dir.path().join("away"));
    let mut node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(0)).unwrap();
    archive.decided(LogIndex(50));
    pump_until(&mut archive, &node_log, "no folder", |r| r.problem.as_ref().is_some_and(|p| p.contains("mount it")));
    assert_eq!(archive.archived(), LogIndex(0), "nothing may be cut");
    std::fs::create_dir(&folder).unwrap();
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(50) && r.problem.is_none());
    archive.end();

    node_log = log(&dir.path().join("log"), 100);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(60)).unwrap();
    archive.decided(LogIndex(80));
    pump_until(&mut archive, &node_log, "archived again", |r| r.archived == LogIndex(80));
    // The disk goes while entries are on their way: none is lost, none comes twice.
    std::fs::rename(&folder, &away).unwrap();
    archive.end();
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(80)).unwrap();
    archive.decided(LogIndex(100));
    pump_until(&mut archive, &node_log, "away", |r| r.problem.is_some() && r.lag_entries > 0);
    std::fs::rename(&away, &folder).unwrap();
    pump_until(&mut archive, &node_log, "back", |r| r.archived == LogIndex(100) && r.problem.is_none());
    archive.end();
    let found = read(&folder, 1).unwrap();
    assert_eq!(found.len(), 100);
    assert!(found.windows(2).all(|w| w[0].1 <= w[1].1));
}

/// Goal: while the archive's disk is not mounted, nothing goes into the folder below it, and the log is kept.
#[test]
fn an_archive_that_is_not_mounted_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, away) = (dir.path().join("archive"), dir.path().join("away"));
    std::fs::create_dir(&folder).unwrap();
    let node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(40)).unwrap();
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(40));
    archive.end();
    std::fs::rename(&folder, &away).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    let asked = |r: &ArchiveReport| r.problem.as_ref().is_some_and(|p| p.contains("is it mounted?"));
    pump_until(&mut archive, &node_log, "refused", asked);
    assert_eq!((archive.archived(), std::fs::read_dir(&folder).unwrap().count()), (LogIndex(0), 0));
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    pump_until(&mut archive, &node_log, "mounted", |r| r.archived == LogIndex(50) && r.problem.is_none());
    archive.end();
    assert_eq!(read(&folder, 1).unwrap().len(), 50);
    // Somebody wants a new one there.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::remove_file(dir.path().join(CLAIMED_FILE)).unwrap();
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    pump_until(&mut archive, &node_log, "begun anew", |r| r.archived == LogIndex(50) && r.problem.is_none());
    archive.end();
}

#[test]
fn an_archive_with_a_hole_goes_on_by_itself() {
    let (folder, _) = with_hole(5);
    let dir = tempfile::tempdir().unwrap();
    let node_log = log(dir.path(), 50);
    let mut archive = Archive::start(&config(dir.path()), folder.path(), LogIndex(50)).unwrap();
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(50) && r.problem.is_none());
    archive.end();
    assert_eq!(read(folder.path(), 1).unwrap().len(), 50);
}

#[test]
fn a_folder_whose_first_file_was_cut_short_becomes_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(IDENTITY_UNFINISHED), "{").unwrap();
    let mut writer = Writer::open(dir.path(), &identity()).unwrap();
    append(&mut writer, 1, 5, 1);
    writer.close().unwrap();
    assert_eq!(read(dir.path(), 1).unwrap().len(), 5);
    assert!(!dir.path().join(IDENTITY_UNFINISHED).exists());
}

#[test]
fn an_archive_that_hangs_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("archive");
    std::fs::create_dir(&folder).unwrap();
    // Nobody writes to the pipe: whoever opens it to read waits, as with a file server that does not answer.
    let pipe = folder.join(IDENTITY_FILE);
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    archive.pump(&node_log).unwrap();
    assert_eq!(archive.report(LogIndex(50)).problem, None);
    archive.shared.lock().alive = Some(Instant::now() - SLOW_AFTER - Duration::from_secs(1));
    let problem = archive.report(LogIndex(50)).problem.unwrap_or_default();
    assert!(problem.contains("has not finished a write for 31 s, and it is 50 entries behind"), "{problem}");
    // Lets the archiver go on.
    std::fs::write(&pipe, "").unwrap();
    archive.end();
}

#[test]
fn a_backup_is_told_of_though_the_archive_is_never_idle() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("archive");
    std::fs::create_dir(&folder).unwrap();
    let mut node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(50) && r.last_backup.is_none());
    let backup = note_backup(&folder);
    let until = Instant::now() + Duration::from_secs(10);
    for index in 51.. {
        node_log.append(&[entry(index)], None, false).unwrap();
        archive.decided(LogIndex(index));
        archive.pump(&node_log).unwrap();
        if archive.report(LogIndex(index)).last_backup.as_ref() == Some(&backup) {
            break;
        }
        assert!(Instant::now() < until, "it is not told of");
        std::thread::sleep(Duration::from_millis(5));
    }
    archive.end();
}

/// Goal: a node that is cut off does not say that nothing newer was decided: it cannot know.
#[test]
fn a_quiet_time_is_noted_when_it_is_confirmed_and_all_is_archived() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("archive");
    std::fs::create_dir(&folder).unwrap();
    let mut node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(50));
    let before = archive.report(LogIndex(50)).time_ms;
    assert_eq!(archive.asks_whether_quiet(), None);
    archive.quiet_since = Instant::now() - QUIET_MARK_EVERY;
    let asked = archive.asks_whether_quiet().expect("it was quiet for long");
    assert_eq!(archive.asks_whether_quiet(), None);
    archive.pump(&node_log).unwrap();
    assert_eq!(archive.report(LogIndex(50)).time_ms, before);
    archive.quiet_until(asked);
    pump_until(&mut archive, &node_log, "noted", |r| r.time_ms == asked);
    let ask = |archive: &mut Archive, asked| {
        archive.quiet_asked_ms = Some(asked);
        asked
    };
    // Entries that are decided by then go first, with a time of their own.
    let early = ask(&mut archive, asked + 6000);
    node_log.append(&[entry(51)], None, false).unwrap();
    archive.decided.note(LogIndex(51), Instant::now(), asked + 7000);
    archive.quiet_until(early);
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(51));
    assert_eq!(archive.quiet_until_ms, None);
    // An answer that comes late does not take the time back to when it was asked.
    let late = ask(&mut archive, asked + 8000);
    std::thread::sleep(MARK_EVERY);
    node_log.append(&[entry(52)], None, false).unwrap();
    archive.decided.note(LogIndex(52), Instant::now(), asked + 300_000);
    pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(52));
    archive.quiet_until(late);
    archive.pump(&node_log).unwrap();
    archive.end();
    let mut reader = Reader::open(&folder).unwrap();
    assert_eq!(reader.decided_within(LogIndex(51)).unwrap(), Some((asked, asked + 7000)));
    assert_eq!(reader.decided_within(LogIndex(52)).unwrap(), Some((asked + 7000, asked + 300_000)));
    assert_eq!(reader.end().unwrap(), (LogIndex(52), asked + 300_000));
}

/// Goal: reading a backlog from the disk does not keep the core thread for longer than one batch takes.
#[test]
fn entries_that_are_not_in_memory_are_read_one_batch_at_a_time() {
    for (cache_bytes, after_one) in [(64 << 20, 5), (0, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("archive");
        std::fs::create_dir(&folder).unwrap();
        let mut node_log = RaftLog::open(&dir.path().join("log")).unwrap();
        node_log.set_cache_bytes_max(cache_bytes);
        for index in 1..=8 {
            let data = Bytes::from(vec![7; BATCH_BYTES as usize]);
            let entry = RaftEntry { index, term: 1, data, ..Default::default() };
            node_log.append(&[entry], None, false).unwrap();
        }
        let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(0)).unwrap();
        archive.decided(LogIndex(8));
        let until = Instant::now() + Duration::from_secs(10);
        while archive.shared.lock().opened_at.is_none() {
            assert!(Instant::now() < until, "the archive is not opened");
            std::thread::sleep(Duration::from_millis(1));
        }
        archive.pump(&node_log).unwrap();
        assert_eq!(archive.next.map(|(_, next)| next), Some(LogIndex(after_one)));
        pump_until(&mut archive, &node_log, "archived", |r| r.archived == LogIndex(8));
        archive.end();
    }
}

#[test]
fn an_archive_ahead_of_its_log_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("archive");
    std::fs::create_dir(&folder).unwrap();
    let mut writer = Writer::open(&folder, &identity()).unwrap();
    append(&mut writer, 1, 80, 1);
    writer.close().unwrap();
    let node_log = log(&dir.path().join("log"), 50);
    let mut archive = Archive::start(&config(dir.path()), &folder, LogIndex(50)).unwrap();
    pump_until(&mut archive, &node_log, "refused", |r| {
        r.problem.as_ref().is_some_and(|p| p.contains("written by another life of this node"))
    });
    archive.end();
}

#[test]
fn entries_keep_the_time_at_which_they_were_decided() {
    let (mut marks, start) = (Marks::default(), Instant::now());
    let later = |ms| start + Duration::from_millis(ms);
    for (index, ms) in [(5, 0), (6, 4), (9, 100), (9, 200), (12, 300)] {
        marks.note(LogIndex(index), later(ms), 1_000 + ms);
    }
    assert_eq!(marks.from(LogIndex(1)), Some((LogIndex(6), 1_000)));
    assert_eq!(marks.from(LogIndex(7)), Some((LogIndex(9), 1_100)));
    assert_eq!(marks.from(LogIndex(10)), Some((LogIndex(12), 1_300)));
    assert_eq!(marks.from(LogIndex(13)), None);
    // Some of it was lost: there is still a time for it.
    assert_eq!(marks.from(LogIndex(8)), Some((LogIndex(12), 1_300)));
    // When there are too many, a time that is too early would be believed.
    for n in 2..=MARKS_MAX as u64 + 2 {
        marks.note(LogIndex(20 + n), later(1_000 * n), 1_000 * n);
    }
    assert_eq!(marks.marks.back(), Some(&(LogIndex(22 + MARKS_MAX as u64), 1_000 * (MARKS_MAX as u64 + 2))));
}
