//! What any sequence of steps leaves, compared with what was written.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;

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
        let readable = log.readable_from(|_| true).0;
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
