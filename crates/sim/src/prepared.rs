//! Transactions that are prepared, and that somebody else commits or rolls back later, in any region.
//!
//! A PostgreSQL keeps what is prepared, as its apply worker gets it from the log.  Whoever ends a transaction picks one
//! of those that its own PostgreSQL keeps: the session that prepared it may have died, and its region too.

use crate::ctx::Ctx;
use crate::postgres::Postgres;
use crate::rows::{self, Row};
use bytes::{BufMut, Bytes, BytesMut};
use onetrip_checker::{ClientOutcome, Time};
use onetrip_core::{Base, Entry, LogIndex, TxnId};

/// Bytes of a row as it travels (`rows`): what a prepared transaction is to write has so many more.
const ROW_BYTES: usize = 25;
const KEEP_BYTES: usize = 9;
const END_BYTES: usize = 10;
/// Names are used again and again.
const NAMES: u64 = 12;

/// What a session proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// COMMIT
    Commit,
    /// PREPARE TRANSACTION
    Prepare,
    /// COMMIT PREPARED or ROLLBACK PREPARED
    End { of: TxnId, commit: bool },
}

/// What an entry says, besides rows to write at once.
#[derive(Clone, Debug)]
pub enum Step {
    Keep { name: u64, rows: Vec<Row> },
    End { name: u64, commit: bool },
}

/// A transaction that is prepared, in one PostgreSQL.
#[derive(Clone)]
pub struct Kept {
    name: u64,
    txn: TxnId,
    at: LogIndex,
    rows: Vec<Row>,
    /// The entry that ended it.
    ended: Option<LogIndex>,
}

pub fn encode_keep(name: u64, rows: &[Row]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'K');
    out.put_u64_le(name);
    out.put_slice(&rows::encode(rows));
    out.freeze()
}

fn encode_end(name: u64, commit: bool) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'E');
    out.put_u64_le(name);
    out.put_u8(u8::from(commit));
    out.freeze()
}

/// `None`: these are rows.
pub fn step(raw: &Bytes) -> Option<Step> {
    let name = |raw: &Bytes| u64::from_le_bytes(raw[1..9].try_into().expect("8 bytes"));
    match raw.len() % ROW_BYTES {
        KEEP_BYTES => Some(Step::Keep { name: name(raw), rows: rows::decode(raw.slice(KEEP_BYTES..)) }),
        END_BYTES => Some(Step::End { name: name(raw), commit: raw[9] != 0 }),
        _ => None,
    }
}

pub fn draw_name(ctx: &mut Ctx) -> u64 {
    (1 << 40) + ctx.rng.below(NAMES)
}

impl Ctx {
    /// A client is told that somebody else's prepared transaction has ended; or knows that it is not prepared.
    pub fn prepared_ends(&mut self, txn: TxnId, commit: bool) {
        if let Some(mut record) = self.prepared.remove(&txn) {
            record.outcome = if commit { ClientOutcome::Committed } else { ClientOutcome::Aborted };
            record.completed = Time(self.now);
            self.history.push(record);
        }
    }
}

impl Postgres {
    /// The entry at `at` is applied.  Returns the rows that it writes.
    pub(crate) fn take_step(&mut self, at: LogIndex, txn: TxnId, step: Step, ctx: &mut Ctx) -> Vec<Row> {
        match step {
            Step::Keep { name, rows } => {
                self.prepared.push(Kept { name, txn, at, rows, ended: None });
                Vec::new()
            }
            Step::End { name, commit } => {
                ctx.events.add(if commit { "committed what was prepared" } else { "rolled back what was prepared" });
                let rows = self.rows_of_step(name, commit);
                match self.prepared.iter_mut().find(|kept| kept.name == name && kept.ended.is_none()) {
                    Some(kept) => kept.ended = Some(at),
                    None => ctx.checker.fail(format!("p{}: entry {at} ends what is not kept here", self.node)),
                }
                rows
            }
        }
    }

    pub(crate) fn rows_of_step(&self, name: u64, commit: bool) -> Vec<Row> {
        let kept = self.prepared.iter().find(|kept| kept.name == name && kept.ended.is_none() && commit);
        kept.map_or_else(Vec::new, |kept| kept.rows.clone())
    }

    /// A crash has taken everything back that came after `at`.
    pub(crate) fn prepared_back_to(&mut self, at: LogIndex) {
        self.prepared.retain(|kept| kept.at <= at);
        for kept in &mut self.prepared {
            kept.ended = kept.ended.filter(|ended| *ended <= at);
        }
    }

    /// The entry with which a session ends one of those that are kept here; `None`: there is none.
    pub(crate) fn end_prepared(&mut self, ctx: &mut Ctx) -> Option<(TxnId, What, Bytes)> {
        let kept: Vec<(u64, TxnId)> =
            self.prepared.iter().filter(|kept| kept.ended.is_none()).map(|kept| (kept.name, kept.txn)).collect();
        if kept.is_empty() {
            return None;
        }
        let (name, of) = kept[ctx.rng.below(kept.len() as u64) as usize];
        let commit = !ctx.rng.one_in(3);
        self.sequence += 1;
        let txn = TxnId { node: self.node, incarnation: self.incarnation, sequence: self.sequence };
        let raw = Entry::encode_end(&txn, commit, name, Base(self.applied.0), &encode_end(name, commit));
        ctx.checker.proposes(txn, Vec::new());
        Some((txn, What::End { of, commit }, raw))
    }
}
