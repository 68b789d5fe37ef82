//! What the router sees of the world: connections, the log, what comes from PostgreSQL, and what goes to the log lines.

use crate::agent::{Hello, ToPostgres, VerdictFrame, VerdictOutcome, NO_KEY};
use crate::error::Error;
use crate::ids::{LogIndex, RegionId, TxnId};
use crate::row_locks::LockAsk;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Names one connection for the life of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A connection's way back to PostgreSQL.
pub trait Outbox {
    /// Sends a frame given in parts, and never blocks.  False: the connection is ending, and the frame is lost.
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool;
    /// Sends an apply worker entries, all at once.  There is room for them, and they take none from other frames.
    fn feed<const N: usize>(&self, entries: Vec<[Bytes; N]>) -> bool {
        entries.into_iter().all(|entry| self.send(entry))
    }
    /// How much of that it is sent ahead of its position; a single entry may have more.
    fn feed_bytes_max(&self) -> usize;
    fn close(&self);
}

/// The log as far as the apply worker is fed from it.
pub trait Log {
    type Error: From<Error>;
    /// Everything from here on that `committed` can be read, with all its parts.
    fn readable_from(&self, committed: impl Fn(LogIndex) -> bool) -> LogIndex;
    fn last_index(&self) -> LogIndex;
    fn read(&self, at: LogIndex) -> Result<Bytes, Self::Error>;
}

/// Whatever is to be released once a proposal is not open any more.
pub type Permit = Option<Box<dyn std::any::Any + Send>>;

/// What comes from PostgreSQL, checked.  On each connection, `Opened` comes first and `Closed` last.
pub enum AgentEvent<O> {
    Opened { conn: ConnId, hello: Hello, outbox: Arc<O> },
    Propose { conn: ConnId, txn: TxnId, raw: Bytes, permit: Permit },
    Outcome { conn: ConnId, txn: TxnId },
    Settle { conn: ConnId, txn: TxnId },
    Position { conn: ConnId, applied: LogIndex, durable: LogIndex },
    Done { conn: ConnId, txn: TxnId },
    Read(Read),
    Await { conn: ConnId, at: LogIndex },
    Lock { conn: ConnId, ask: LockAsk, table: String },
    Unlock { conn: ConnId, txn: TxnId, from: u64 },
    Stuck { conn: ConnId, at: LogIndex, message: String },
    More { conn: ConnId, txn: Option<TxnId>, from: u64 },
    Written { conn: ConnId, txn: TxnId, kept: bool },
    Closed { conn: ConnId },
}

/// A READ of a connection.  Its backend may have given up on it, and have sent another one since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub conn: ConnId,
    pub number: u64,
    /// Other members may be asked for it.
    pub may_ask: bool,
}

/// What a backend wants of the lock table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// The table is for people.
    Ask(ConnId, LockAsk, String),
    Release {
        conn: ConnId,
        txn: TxnId,
        from: u64,
    },
    /// A connection on which locks were asked for has ended.
    Gone(ConnId),
}

/// How an entry came to be decided, for the session that waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The regions whose disks are known to have it.
    pub held_by: String,
    /// When it was known to be on a majority, on the clock of [`super::Context::now`].
    pub committed: Duration,
}

/// Something for the node's own log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    WorkerConnected {
        applied: LogIndex,
        committed: LogIndex,
        missed: usize,
    },
    WorkerDisconnected,
    /// A backend was gone after its verdict had been sent; the apply worker starts over.
    WorkerStartsOver {
        at: LogIndex,
        txn: TxnId,
    },
    /// The worker has been sent, or is trying to apply, an entry that is now to be left out; it starts over.
    WorkerLeavesOut {
        at: LogIndex,
        left_out: LogIndex,
    },
    /// A connection was ended because it made a second proposal while one was open.
    SecondProposal(TxnId),
    /// PostgreSQL cannot be brought on from where it stands.
    NeedsRebuild {
        applied: LogIndex,
        problem: String,
    },
}

/// A VERDICT with outcome 4: nothing was proposed.
pub fn refusal(txn: TxnId, region: &RegionId, message: String) -> Bytes {
    refusal_as(VerdictOutcome::Refused, txn, region, message)
}

/// The same, with outcome 4 or 6.
pub fn refusal_as(outcome: VerdictOutcome, txn: TxnId, region: &RegionId, message: String) -> Bytes {
    let zero = LogIndex::ZERO;
    let region = region.clone();
    let (key, times) = (NO_KEY, None);
    ToPostgres::Verdict(VerdictFrame { txn, outcome, at: zero, other: zero, key, region, message, times }).encode()
}
