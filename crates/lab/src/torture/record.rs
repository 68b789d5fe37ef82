//! What happened in a run: the counts for the table at its end, and what was wrong.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard};

use super::plan::KINDS;
use super::session::End;

/// How many findings of one source are kept: one mistake often shows a thousand times.
const KEPT_PER_SOURCE: usize = 20;

#[derive(Debug, Default, Clone)]
struct Ends {
    committed: u64,
    aborted: BTreeMap<String, u64>,
    open: u64,
    reads: u64,
    /// How many of the open ones `onetrip.outcome` called committed at the end, and how many aborted.
    later_committed: u64,
    later_aborted: u64,
}

#[derive(Debug, Default, Clone)]
struct FaultCount {
    done: u64,
    failed: u64,
    /// Why this fault cannot be caused on this machine.
    cannot: Option<String>,
}

#[derive(Debug, Default)]
struct Book {
    /// By stage and workload.
    ends: BTreeMap<(String, &'static str), Ends>,
    faults: BTreeMap<&'static str, FaultCount>,
    /// How often the nodes and the poison did something remarkable.
    seen: BTreeMap<&'static str, u64>,
    wrong: BTreeMap<String, (u64, Vec<String>)>,
}

#[derive(Default)]
pub struct Record(Mutex<Book>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn count(&self, stage: &str, workload: &'static str, wrote: bool, end: &End) {
        let mut book = self.lock();
        let ends = book.ends.entry((stage.to_string(), workload)).or_default();
        match end {
            End::Committed | End::NotShownYet if wrote => ends.committed += 1,
            End::Committed | End::NotShownYet => ends.reads += 1,
            End::Aborted(state) => *ends.aborted.entry(state.clone()).or_default() += 1,
            End::Unknown(_) => ends.open += 1,
        }
    }

    pub fn resolved(&self, stage: &str, workload: &'static str, committed: bool) {
        let mut book = self.lock();
        let ends = book.ends.entry((stage.to_string(), workload)).or_default();
        match committed {
            true => ends.later_committed += 1,
            false => ends.later_aborted += 1,
        }
    }

    pub fn fault(&self, kind: &'static str, done: bool) {
        let mut book = self.lock();
        let count = book.faults.entry(kind).or_default();
        match done {
            true => count.done += 1,
            false => count.failed += 1,
        }
    }

    /// How many faults there were.
    pub fn faults(&self) -> u64 {
        self.lock().faults.values().map(|count| count.done).sum()
    }

    pub fn cannot(&self, kind: &'static str, why: &str) {
        self.lock().faults.entry(kind).or_default().cannot = Some(why.to_string());
    }

    pub fn seen(&self, what: &'static str, times: u64) {
        *self.lock().seen.entry(what).or_default() += times;
    }

    /// Returns whether this is the first thing that is wrong.
    pub fn wrong(&self, source: &str, what: String) -> bool {
        eprintln!("torture: WRONG: {source}: {what}");
        let mut book = self.lock();
        let first = book.wrong.is_empty();
        let (count, kept) = book.wrong.entry(source.to_string()).or_default();
        *count += 1;
        if kept.len() < KEPT_PER_SOURCE {
            kept.push(what);
        }
        first
    }

    pub fn all_passed(&self) -> bool {
        self.lock().wrong.is_empty()
    }

    pub fn table(&self) -> String {
        let book = self.lock();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:<26} {:<10} {:>9} {:>8} {:>8} {:>6}  of the open: committed, aborted, open for good; aborted by SQLSTATE",
            "stage", "workload", "committed", "reads", "aborted", "open"
        );
        for ((stage, workload), ends) in &book.ends {
            let aborted: u64 = ends.aborted.values().sum();
            let states: Vec<String> = ends.aborted.iter().map(|(state, count)| format!("{state} {count}")).collect();
            let left = ends.open.saturating_sub(ends.later_committed + ends.later_aborted);
            let _ = writeln!(
                text,
                "{stage:<26} {workload:<10} {:>9} {:>8} {aborted:>8} {:>6}  {}, {}, {left}; {}",
                ends.committed,
                ends.reads,
                ends.open,
                ends.later_committed,
                ends.later_aborted,
                states.join(", ")
            );
        }
        let _ = writeln!(text, "\n{:<34} {:>6}", "fault", "times");
        for kind in KINDS {
            let count = book.faults.get(kind).cloned().unwrap_or_default();
            let _ = match &count.cannot {
                Some(why) => writeln!(text, "{kind:<34} skipped: {why}"),
                None if count.failed > 0 => {
                    writeln!(text, "{kind:<34} {:>6}  (not possible {} times)", count.done, count.failed)
                }
                None => writeln!(text, "{kind:<34} {:>6}", count.done),
            };
        }
        for (what, times) in &book.seen {
            let _ = writeln!(text, "{what:<34} {times:>6}");
        }
        let total: u64 = book.wrong.values().map(|(count, _)| count).sum();
        let _ = writeln!(text, "\nanomalies: {total}");
        for (source, (count, kept)) in &book.wrong {
            let _ = writeln!(text, "  {source}: {count}");
            for what in kept {
                let _ = writeln!(text, "    {what}");
            }
        }
        text
    }
}
