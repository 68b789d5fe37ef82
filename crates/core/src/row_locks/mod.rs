//! Row locks across regions (`onetrip.concurrency = locking`): the table that the leader keeps, and what is said about
//! it.
//!
//! The table is soft state.  What commits is up to the certifier alone; a lock that is lost costs somebody a wait or a
//! transaction that has to be repeated.  `docs/decisions/2026-11-25-row-locks-at-the-leader.md` has the argument.

mod table;

pub use table::{InLine, LockTable};

use crate::entry::LockMode;
use crate::error::Result;
use crate::ids::{LogIndex, TxnId};
use crate::wire::{put_txn, Reader};
use bytes::{BufMut, BytesMut};

/// Keys of one request, at most.
pub const KEYS_MAX: usize = 10_000;
/// Transactions that a node may name at once: it has no more connections.
const PRESENT_MAX: usize = 1 << 16;

/// A transaction wants all of these locks, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockAsk {
    pub txn: TxnId,
    /// Counts up within the transaction.
    pub number: u64,
    /// Whether it waits in line if somebody else has one of them.
    pub waits: bool,
    /// Hashes of certification keys.
    pub keys: Vec<(u64, LockMode)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockSaid {
    /// It waits in line.  Only a node hears this.
    Waiting,
    /// All is granted.  What the rows' last holders committed is visible at `at`.
    Granted { at: LogIndex },
    /// `other` has one of the locks, and the request was not to wait.
    Busy { other: TxnId },
    /// `other` waits for this transaction, which would have waited, directly or not, for it.
    Deadlock { other: TxnId },
    /// The table does not take it, or nobody answers: the transaction goes on without these locks.
    NoTable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockAnswer {
    pub txn: TxnId,
    pub number: u64,
    pub said: LockSaid,
}

/// What nodes say to the leader, and the leader to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockMessage {
    Ask(LockAsk),
    /// The transaction had these locks from an earlier leader; it gets those that are free, and no answer.
    Claim(LockAsk),
    /// The transaction gives back what it got or wanted by requests from this number on.
    Release {
        txn: TxnId,
        from: u64,
    },
    /// These are all transactions of the sender that have locks or want some.
    Present(Vec<TxnId>),
    Answer(LockAnswer),
}

const NO_TXN: TxnId = TxnId { node: crate::ids::NodeId(0), incarnation: 0, sequence: 0 };

impl LockAsk {
    pub fn read(r: &mut Reader) -> Result<LockAsk> {
        let (txn, number) = (r.txn()?, r.u64("number")?);
        let waits = match r.u8("waits")? {
            0 => false,
            1 => true,
            other => return Err(r.error(format!("a request for locks with the mark {other}"))),
        };
        let n = r.u32("keys")? as usize;
        if n == 0 || n > KEYS_MAX {
            return Err(r.error(format!("a request for {n} locks")));
        }
        let mut keys = Vec::with_capacity(n.min(r.left() / 9));
        for _ in 0..n {
            let (hash, mode) = (r.u64("hash")?, r.u8("mode")?);
            keys.push((hash, LockMode::from_u8(mode).ok_or_else(|| r.error(format!("lock mode {mode}")))?));
        }
        Ok(LockAsk { txn, number, waits, keys })
    }

    pub fn put(&self, out: &mut BytesMut) {
        put_txn(out, &self.txn);
        out.put_u64_le(self.number);
        out.put_u8(u8::from(self.waits));
        out.put_u32_le(self.keys.len() as u32);
        for (hash, mode) in &self.keys {
            out.put_u64_le(*hash);
            out.put_u8(*mode as u8);
        }
    }
}

impl LockSaid {
    /// The code, and the other transaction, of the frame LOCKED and of an answer between nodes.
    pub fn code(&self) -> (u8, LogIndex, TxnId) {
        match self {
            LockSaid::Waiting => (0, LogIndex::ZERO, NO_TXN),
            LockSaid::Granted { at } => (1, *at, NO_TXN),
            LockSaid::Busy { other } => (2, LogIndex::ZERO, *other),
            LockSaid::Deadlock { other } => (3, LogIndex::ZERO, *other),
            LockSaid::NoTable => (4, LogIndex::ZERO, NO_TXN),
        }
    }

    pub fn from_code((code, at, other): (u8, LogIndex, TxnId)) -> Option<LockSaid> {
        Some(match code {
            0 => LockSaid::Waiting,
            1 => LockSaid::Granted { at },
            2 => LockSaid::Busy { other },
            3 => LockSaid::Deadlock { other },
            4 => LockSaid::NoTable,
            _ => return None,
        })
    }
}

impl LockMessage {
    /// What it takes in memory beside itself.
    pub fn bytes(&self) -> usize {
        match self {
            LockMessage::Ask(ask) | LockMessage::Claim(ask) => std::mem::size_of_val(&ask.keys[..]),
            LockMessage::Present(txns) => std::mem::size_of_val(&txns[..]),
            LockMessage::Release { .. } | LockMessage::Answer(_) => 0,
        }
    }

    pub fn read(r: &mut Reader) -> Result<LockMessage> {
        Ok(match r.u8("what")? {
            0 => LockMessage::Ask(LockAsk::read(r)?),
            1 => LockMessage::Claim(LockAsk::read(r)?),
            2 => LockMessage::Release { txn: r.txn()?, from: r.u64("from")? },
            3 => {
                let n = r.u32("transactions")? as usize;
                if n > PRESENT_MAX {
                    return Err(r.error(format!("{n} transactions with locks")));
                }
                LockMessage::Present((0..n).map(|_| r.txn()).collect::<Result<Vec<_>>>()?)
            }
            4 => {
                let (txn, number) = (r.txn()?, r.u64("number")?);
                let said = (r.u8("outcome")?, r.index("at")?, r.txn()?);
                let said = LockSaid::from_code(said)
                    .ok_or_else(|| r.error(format!("answer {} to a request for locks", said.0)))?;
                LockMessage::Answer(LockAnswer { txn, number, said })
            }
            other => return Err(r.error(format!("message {other} about row locks"))),
        })
    }

    pub fn put(&self, out: &mut BytesMut) {
        match self {
            LockMessage::Ask(ask) => {
                out.put_u8(0);
                ask.put(out);
            }
            LockMessage::Claim(ask) => {
                out.put_u8(1);
                ask.put(out);
            }
            LockMessage::Release { txn, from } => {
                out.put_u8(2);
                put_txn(out, txn);
                out.put_u64_le(*from);
            }
            LockMessage::Present(txns) => {
                out.put_u8(3);
                out.put_u32_le(txns.len() as u32);
                txns.iter().for_each(|txn| put_txn(out, txn));
            }
            LockMessage::Answer(answer) => {
                out.put_u8(4);
                put_txn(out, &answer.txn);
                out.put_u64_le(answer.number);
                let (code, at, other) = answer.said.code();
                out.put_u8(code);
                out.put_u64_le(at.0);
                put_txn(out, &other);
            }
        }
    }
}
