//! Judges a history of list-append transactions from outside: which anomalies does it hold?
//!
//! Every transaction appends unique values to lists and reads whole lists, so a list read tells the order of all its
//! writers.  From that follow who wrote before whom (ww), who read whose write (wr) and who did not see whose (rw); an
//! isolation level forbids certain circles of these (Adya's thesis, chapter 4; Kingsbury and Alvaro, "Elle", 2020).
//!
//! It knows nothing of Onetrip: no log, no verdict, no node.  The simulation and the torture of real clusters use it.
//!
//! | level | what is forbidden |
//! |---|---|
//! | both | G0, G1a, G1b, G1c, values twice, out of thin air or lost; stale reads that were `fresh`; an order of writes against real time |
//! | READ COMMITTED | each statement's snapshot alone is held to what follows |
//! | REPEATABLE READ | read skew (G-single), lost update, long fork, and every circle without two rw next to each other (G-SIb) |
//!
//! The last line is snapshot isolation exactly (Cerone and Gotsman, "Analysing Snapshot Isolation", 2018), with each
//! process seeing what it saw or did before.  Write skew, with its two rw side by side, is allowed.
//!
//! | module | what |
//! |---|---|
//! | `lists` | what lists say by themselves: their order, values lost, doubled or never written |
//! | `graph` | who comes before whom; circles |
//! | `words` | a circle as sentences |

mod graph;
mod lists;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub u64);

/// Never appended twice to one key in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(pub u64);

/// A client that runs one transaction after another in one region.  One that moves, or that leaves a transaction running,
/// goes on under a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(pub u64);

/// On one clock for all processes that never goes back; the unit does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// One statement that appends without saying what stood there.
    Append { key: Key, value: Value },
    /// One statement that reads the whole list, with what the transaction itself has appended.
    Read { key: Key, list: Vec<Value> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    ReadCommitted,
    /// PostgreSQL's: snapshot isolation.
    RepeatableRead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOutcome {
    /// COMMIT was acknowledged to the process.
    Committed,
    /// It committed, as was learned by other means than the answer to COMMIT, so the process need not see it yet.
    FoundCommitted,
    Aborted,
    /// May or may not have committed.  Taken as committed if somebody saw it.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Txn {
    pub process: Process,
    /// Of the PostgreSQL it ran on; for messages.
    pub region: Arc<str>,
    pub level: Level,
    /// Before its first statement was sent.
    pub invoked: Time,
    /// After its outcome was known.
    pub completed: Time,
    pub outcome: ClientOutcome,
    /// It must see everything that was acknowledged anywhere before `invoked`.
    pub fresh: bool,
    /// Statements that were answered, in order.
    pub ops: Vec<Op>,
}

/// Transactions in the order they were added; messages call them T1, T2, ...
#[derive(Clone, Debug, Default)]
pub struct History {
    txns: Vec<Txn>,
    /// Places of the transactions that read everything at the end.
    rest: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The history was not recorded well: a value appended twice, times in the wrong order.
    Malformed,
    /// A circle of writes over writes.
    G0,
    /// A value of an aborted transaction was read.
    G1a,
    /// A value was read that its transaction followed up before it committed.
    G1b,
    /// A circle in which each saw or overwrote the one before.
    G1c,
    /// Read skew: one read did not see what the rest of its snapshot rests on.
    GSingle,
    /// A list was changed between a transaction's reading it and appending to it.
    LostUpdate,
    /// Two readers saw two writes in opposite order.
    LongFork,
    /// Any other circle that snapshot isolation forbids.
    GSIb,
    /// A value that nobody appended.
    Garbage,
    /// Reads of one list that are not the beginnings of one order, or a transaction's appends out of order.
    Incompatible,
    DuplicateAppend,
    /// A committed append that a region does not show at the end.
    LostAppend,
    /// A fresh read that misses what was acknowledged before it began.
    StaleRead,
    /// A transaction is ordered before one that had been acknowledged when it began.
    WriteOrder,
    /// A transaction does not see its own appends, or (REPEATABLE READ) one list in two states.
    Internal,
}

#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: Kind,
    /// What was seen, with the transactions, in sentences; several lines for a circle.
    pub text: String,
}

/// What was found.  Nothing found is `is_clean()`.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The first ones of each kind.
    pub anomalies: Vec<Anomaly>,
    pub counts: BTreeMap<Kind, u64>,
}

/// So many of one kind are told in words; the others are only counted.
const TOLD_MAX: u64 = 5;

impl Findings {
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= TOLD_MAX {
            self.anomalies.push(Anomaly { kind, text: text() });
        }
    }
}

impl History {
    /// Transactions of one process are added in the order in which it ran them.
    pub fn push(&mut self, txn: Txn) {
        self.txns.push(txn);
    }

    /// What a region shows when everything has come to rest: all lists that are not empty.  Everything that committed
    /// must be in it.  Comes after all transactions.
    pub fn at_rest(&mut self, region: Arc<str>, lists: BTreeMap<Key, Vec<Value>>) {
        let appended = self.txns.iter().flat_map(|t| &t.ops).filter_map(|op| match op {
            Op::Append { key, .. } => Some((*key, Vec::new())),
            Op::Read { .. } => None,
        });
        let mut all: BTreeMap<Key, Vec<Value>> = appended.collect();
        all.extend(lists);
        let end = self.txns.iter().map(|t| t.completed).max().unwrap_or(Time(0));
        // After everything else; a transaction without answer may have `Time(u64::MAX)`.
        let time = Time(end.0.saturating_add(1));
        self.rest.push(self.txns.len() as u32);
        self.push(Txn {
            process: Process(u64::MAX - self.rest.len() as u64),
            region,
            level: Level::RepeatableRead,
            invoked: time,
            completed: time,
            outcome: ClientOutcome::Committed,
            fresh: true,
            ops: all.into_iter().map(|(key, list)| Op::Read { key, list }).collect(),
        });
    }

    pub fn len(&self) -> usize {
        self.txns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.txns.is_empty()
    }

    /// Takes time and memory in proportion to the history, lists included.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::default();
        let lists = lists::read(self, &mut findings);
        graph::check(self, &lists, &mut findings);
        findings
    }
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Malformed => "malformed history",
            Kind::G0 => "G0 (dirty write)",
            Kind::G1a => "G1a (aborted read)",
            Kind::G1b => "G1b (intermediate read)",
            Kind::G1c => "G1c (circular information flow)",
            Kind::GSingle => "G-single (read skew)",
            Kind::LostUpdate => "lost update",
            Kind::LongFork => "long fork",
            Kind::GSIb => "G-SIb (no snapshot)",
            Kind::Garbage => "value out of thin air",
            Kind::Incompatible => "incompatible orders",
            Kind::DuplicateAppend => "duplicate append",
            Kind::LostAppend => "lost append",
            Kind::StaleRead => "stale fresh read",
            Kind::WriteOrder => "writes against real time",
            Kind::Internal => "internal inconsistency",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in &self.counts {
            writeln!(f, "{count} x {kind}")?;
        }
        for anomaly in &self.anomalies {
            writeln!(f, "{}: {}", anomaly.kind, anomaly.text)?;
        }
        Ok(())
    }
}
