//! What goes between a node and its PostgreSQL, as values (`docs/agent-protocol.md`); the bytes have tests of their own.

use bytes::Bytes;
use onetrip_core::certifier::Verdict;
use onetrip_core::{LogIndex, TxnId};

/// Never used twice in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

#[derive(Clone, Debug)]
pub enum ToNode {
    /// `worker`: applied and durable, from an apply worker.
    Hello {
        conn: ConnId,
        worker: Option<(LogIndex, LogIndex)>,
    },
    Propose {
        conn: ConnId,
        txn: TxnId,
        raw: Bytes,
    },
    Position {
        conn: ConnId,
        applied: LogIndex,
        durable: LogIndex,
    },
    Done {
        conn: ConnId,
        txn: TxnId,
    },
    Closed {
        conn: ConnId,
    },
}

#[derive(Clone, Debug)]
pub enum ToPostgres {
    /// To an apply worker; nobody looks at a backend's.
    Welcome {
        conn: ConnId,
        committed: LogIndex,
    },
    Verdict {
        conn: ConnId,
        txn: TxnId,
        at: LogIndex,
        verdict: Verdict,
        previous: LogIndex,
    },
    Entry {
        conn: ConnId,
        at: LogIndex,
        previous: LogIndex,
        txn: TxnId,
        write_set: Bytes,
    },
    Closed {
        conn: ConnId,
    },
}
