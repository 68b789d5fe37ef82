//! What is written ahead: the segment that is prepared, and zeros.

use super::*;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

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
