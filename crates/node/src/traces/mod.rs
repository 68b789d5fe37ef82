//! Traces of COMMITs, for a collector of OpenTelemetry (`[traces]` in `node.toml`, docs/monitoring.md).
//!
//! ```text
//!   backend     prepare ──┬─ verdict ────────────────┬─ turn ─┬─ local ─┬─ everywhere     (the ring of traced.c)
//!   core thread           └ propose replicate certify┘                                   ([`Watch`])
//! ```
//! Server and node each time their part of one transaction in `onetrip.trace_every`, by its number, so neither has to
//! tell the other which.  A thread of its own reads what the server has noted, once a second, puts the two together and
//! sends them (`sender`).  Ids are made from the transaction's own.
//!
//! Invariants: nothing that commits waits for any of this; what there is no room or no collector for is dropped.

mod sender;
mod spans;

pub(crate) use sender::start;

use onetrip_core::certifier::{Decision, Verdict};
use onetrip_core::{LogIndex, NodeId, TxnId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Transactions that were proposed and not decided.  One that lost before it was in the log is never decided.
const OPEN_MAX: usize = 10_000;
const OPEN_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// Where a collector takes OTLP over HTTP, `http://address:port`; `/v1/traces` is added.
    pub endpoint: String,
    /// The part of the transactions that is traced.
    #[serde(default = "default_sample")]
    pub sample: f64,
}

fn default_sample() -> f64 {
    0.01
}

impl TracesConfig {
    /// `Err`: what is wrong with it, in a sentence.
    pub fn validate(&self) -> Result<(), String> {
        let place = self.endpoint.strip_prefix("http://").unwrap_or_default().trim_end_matches('/');
        if place.is_empty() || place.contains('/') || place.parse::<axum::http::uri::Authority>().is_err() {
            return Err(format!(
                "`endpoint` of `[traces]` is \"{}\", not http://address:port; a collector on this machine can send on over TLS",
                self.endpoint
            ));
        }
        match self.sample > 0.0 && self.sample <= 1.0 {
            true => Ok(()),
            false => Err(format!("`sample` of `[traces]` is {}, not above 0 and up to 1", self.sample)),
        }
    }

    /// One transaction in so many is traced.
    pub fn every(&self) -> u32 {
        (1.0 / self.sample).round().clamp(1.0, f64::from(i32::MAX)) as u32
    }
}

/// How the way of a transaction through this node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Committed,
    Conflict { other: LogIndex },
    Aborted,
}

/// The node's part.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub txn: TxnId,
    pub entry: LogIndex,
    /// It came from the server, was found to be on a majority, was decided.
    pub taken: SystemTime,
    pub committed: SystemTime,
    pub decided: SystemTime,
    pub ended: Ended,
}

/// What the core thread keeps of transactions under way.
pub(crate) struct Watch {
    me: NodeId,
    every: u64,
    open: HashMap<TxnId, SystemTime>,
    to_sender: mpsc::Sender<Timed>,
}

impl Watch {
    fn new(me: NodeId, every: u32, to_sender: mpsc::Sender<Timed>) -> Watch {
        Watch { me, every: u64::from(every), open: HashMap::new(), to_sender }
    }

    fn is_watched(&self, txn: &TxnId) -> bool {
        txn.sequence % self.every == 0 && txn.node == self.me
    }

    /// The server has proposed it; perhaps not for the first time.
    pub fn took(&mut self, txn: &TxnId) {
        if !self.is_watched(txn) {
            return;
        }
        let now = SystemTime::now();
        if self.open.len() >= OPEN_MAX {
            self.open.retain(|_, since| now.duration_since(*since).is_ok_and(|open| open < OPEN_FOR));
        }
        if self.open.len() < OPEN_MAX {
            self.open.entry(*txn).or_insert(now);
        }
    }

    /// Its entry was on a majority at `committed`, and is decided now.
    pub fn decided(&mut self, txn: &TxnId, entry: LogIndex, decision: &Decision, committed: SystemTime) {
        let Some(taken) = self.is_watched(txn).then(|| self.open.remove(txn)).flatten() else { return };
        let Decision::Decided { verdict, .. } = decision else { return };
        let ended = match verdict {
            verdict if verdict.commits() => Ended::Committed,
            Verdict::Conflict { other, .. } => Ended::Conflict { other: *other },
            _ => Ended::Aborted,
        };
        // A sender that does not keep up misses some.
        let _ =
            self.to_sender.try_send(Timed { txn: *txn, entry, taken, committed, decided: SystemTime::now(), ended });
    }
}
