//! Transactions and cycles in sentences.

use crate::graph::{Step, Why};
use crate::{ClientOutcome, History, Level, Op, Value};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Of a longer list only the last values are shown.
const VALUES_MAX: usize = 12;

pub(crate) fn name(txn: u32) -> String {
    format!("T{}", txn + 1)
}

/// The name of a transaction, with its process and region.
pub(crate) fn short(history: &History, txn: u32) -> String {
    let t = &history.txns[txn as usize];
    if history.rest.contains(&txn) {
        return format!("{} (the end, {})", name(txn), t.region);
    }
    format!("{} (process {}, {})", name(txn), t.process.0, t.region)
}

pub(crate) fn values(list: &[Value]) -> String {
    let hidden = list.len().saturating_sub(VALUES_MAX);
    let shown: Vec<String> = list[hidden..].iter().map(|v| v.0.to_string()).collect();
    let dots = if hidden > 0 { format!("... {hidden} more ... ") } else { String::new() };
    format!("[{dots}{}]", shown.join(" "))
}

pub(crate) fn circle(history: &History, steps: &[Step]) -> String {
    let mut text = format!("a cycle of {} transactions", transactions(steps).len());
    for step in steps {
        let (from, to) = (name(step.from), name(step.to));
        let _ = write!(text, "\n  {}", sentence(&from, &to, &step.why, history.txns[step.to as usize].process.0));
    }
    for txn in transactions(steps) {
        let _ = write!(text, "\n  {}", whole(history, txn));
    }
    text
}

pub(crate) fn transactions(steps: &[Step]) -> BTreeSet<u32> {
    steps.iter().map(|s| s.from).collect()
}

fn sentence(from: &str, to: &str, why: &Why, process: u64) -> String {
    match why {
        Why::Ww { key, before, after } => {
            format!("{from} appended {} to list {}, {to} then appended {} (ww)", before.0, key.0, after.0)
        }
        Why::Wr { key, value } => format!("{to} read {} in list {}, which {from} appended (wr)", value.0, key.0),
        Why::Rw { key, value } => {
            format!("{from} read list {} without {}, which {to} appended (rw)", key.0, value.0)
        }
        Why::Session if from == to => format!("that is a later statement of {to}"),
        Why::Session => format!("{to} ran after {from} in process {process} (session)"),
        Why::NeverRead(value) => format!("{to} appended {}, which nobody read", value.0),
        Why::RealTime => format!("{from} was acknowledged before {to}, which reads fresh, began (real time)"),
    }
}

fn whole(history: &History, txn: u32) -> String {
    let t = &history.txns[txn as usize];
    let level = match t.level {
        Level::ReadCommitted => "READ COMMITTED",
        Level::RepeatableRead => "REPEATABLE READ",
        Level::Serializable => "SERIALIZABLE",
    };
    let outcome = match t.outcome {
        ClientOutcome::Committed => "committed",
        ClientOutcome::FoundCommitted => "committed, as was found later",
        ClientOutcome::Aborted => "aborted",
        ClientOutcome::Unknown => "outcome unknown",
    };
    let ops: Vec<String> = t.ops.iter().map(op).collect();
    let fresh = if t.fresh { ", fresh" } else { "" };
    let (from, to) = (t.invoked.0, t.completed.0);
    format!("{}: {level}{fresh}, {outcome}, {from} to {to}: {}", short(history, txn), ops.join("; "))
}

fn op(op: &Op) -> String {
    match op {
        Op::Append { key, value } => format!("append {} to {}", value.0, key.0),
        Op::Read { key, list } => format!("read {} = {}", key.0, values(list)),
    }
}
