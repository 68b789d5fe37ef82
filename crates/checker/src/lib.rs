//! Judges a history of list-append transactions from outside: which anomalies does it contain?
//!
//! Every transaction appends unique values to lists and reads whole lists, so reading a list shows the order of all
//! its writers.  From that follows who wrote before whom (ww), who read whose write (wr) and who did not see whose
//! write (rw).  An isolation level forbids certain cycles of these (Adya's thesis, chapter 4; Kingsbury and Alvaro,
//! "Elle", 2020).
//!
//! It knows nothing of Onetrip: no log, no verdict, no node.  The simulation and the torture of real clusters use it.
//!
//! What is forbidden at all levels:
//! - G0, G1a, G1b, G1c;
//! - values that are there twice, come out of thin air, or are lost;
//! - a `fresh` read that is stale, and an order of writes that contradicts real time;
//! - read skew (G-single), lost update, long fork, and every cycle without two rw next to each other (G-SIb).  Under
//!   REPEATABLE READ and SERIALIZABLE a whole transaction is judged in this way, under READ COMMITTED each statement's
//!   snapshot by itself.
//!
//! The last item is exactly snapshot isolation (Cerone and Gotsman, "Analysing Snapshot Isolation", 2018), where each
//! process also sees what it saw or did before.  Write skew, which has two rw next to each other, is allowed.
//!
//! Under SERIALIZABLE every cycle of such transactions is forbidden, write skew included (G2).  As in PostgreSQL,
//! nothing is promised about cycles that contain a transaction of another level.
//!
//! | module | what it does |
//! |---|---|
//! | `lists` | what each list shows by itself: its order, and values that are lost, doubled or never written |
//! | `graph` | who comes before whom; finds cycles |
//! | `words` | describes a cycle in sentences |

mod graph;
mod lists;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub u64);

/// In one history a value is appended to a key at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(pub u64);

/// A client that runs one transaction after another in one region.  A client that moves to another region, or that
/// leaves a transaction running, continues under a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(pub u64);

/// A time on one clock, which all processes share and which never goes back; the unit does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// One statement that appends a value and does not return the list.
    Append { key: Key, value: Value },
    /// One statement that reads the whole list, including what the transaction itself has appended.
    Read { key: Key, list: Vec<Value> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    ReadCommitted,
    /// As in PostgreSQL: snapshot isolation.
    RepeatableRead,
    Serializable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOutcome {
    /// COMMIT was acknowledged to the process.
    Committed,
    /// It committed, but the process learned that in another way than from the answer to COMMIT, so it need not see its
    /// effects yet.
    FoundCommitted,
    Aborted,
    /// It may or may not have committed.  It counts as committed if somebody saw it.
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
    /// The statements that were answered, in order.
    pub ops: Vec<Op>,
}

/// Transactions in the order in which they were added; messages call them T1, T2, ...
#[derive(Clone, Debug, Default)]
pub struct History {
    txns: Vec<Txn>,
    /// The places in `txns` of the transactions that read everything at the end.
    rest: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The history was recorded wrongly: a value appended twice, or times in the wrong order.
    Malformed,
    /// A cycle of writes only.
    G0,
    /// A value of an aborted transaction was read.
    G1a,
    /// A list was read without the later appends of the transaction that made the last append read.
    G1b,
    /// A cycle in which each transaction saw the one before it, or wrote after it.
    G1c,
    /// Read skew: one read did not see what the rest of its snapshot depends on.
    GSingle,
    /// Somebody else changed a list after a transaction had read it and before that transaction appended to it.
    LostUpdate,
    /// Two readers saw two writes in opposite orders.
    LongFork,
    /// Any other cycle that snapshot isolation forbids.
    GSIb,
    /// A cycle of transactions under SERIALIZABLE that snapshot isolation allows.
    G2,
    /// A value that nobody appended.
    Garbage,
    /// Reads of one list that do not all fit one order, or appends of one transaction that are out of order or apart.
    Incompatible,
    DuplicateAppend,
    /// A committed append that a region does not show at the end.
    LostAppend,
    /// A fresh read that lacks something that was acknowledged before it began.
    StaleRead,
    /// A list has a transaction's write before the write of another that had been acknowledged when the first began.
    WriteOrder,
    /// A transaction does not see its own appends, or, other than under READ COMMITTED, sees one list in two states.
    Internal,
}

#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: Kind,
    /// What was seen, and which transactions were involved, in sentences; several lines for a cycle.
    pub text: String,
}

/// The anomalies that were found; `is_clean()` if there are none.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The first few of each kind.
    pub anomalies: Vec<Anomaly>,
    pub counts: BTreeMap<Kind, u64>,
}

/// At most this many anomalies of one kind are described; the others are only counted.
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
    /// Adds a transaction.  Those of one process must be added in the order in which it ran them.
    pub fn push(&mut self, txn: Txn) {
        self.txns.push(txn);
    }

    /// Adds what a region shows in the end, when nothing is under way any more: all lists that are not empty.  They
    /// must contain everything that committed.  Call this after all transactions have been added.
    pub fn at_rest(&mut self, region: Arc<str>, lists: BTreeMap<Key, Vec<Value>>) {
        let appended = self.txns.iter().flat_map(|t| &t.ops).filter_map(|op| match op {
            Op::Append { key, .. } => Some((*key, Vec::new())),
            Op::Read { .. } => None,
        });
        let mut all: BTreeMap<Key, Vec<Value>> = appended.collect();
        all.extend(lists);
        let end = self.txns.iter().map(|t| t.completed).max().unwrap_or(Time(0));
        // This read comes after everything else; a transaction without an answer may have `Time(u64::MAX)`.
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

    /// Finds the anomalies, in time and memory that are proportional to the history, including its lists.
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
            Kind::G2 => "G2 (not serializable)",
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
