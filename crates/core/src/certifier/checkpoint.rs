//! The certifier and the committed indexes as bytes, and back again.  They are the larger part of a checkpoint
//! (`crate::checkpoint`).
//!
//! | part | bytes |
//! |---|---|
//! | head | 4 × u64 limits, index decided, index last committed, index floor |
//! | window | u64 n, n × (index, u32 origin, u32 keys) |
//! | keys | u64 n, n × u64 hash, n × u8 mode |
//! | outcomes | u64 n, n × (txn, index at, u8 outcome, u64 other, u32 key, u32 origin) |
//! | dropped | u64 n, n × (u32 node, u64 incarnation, u64 sequence) |
//! | incarnations | u64 n, n × (u32 node, u64 incarnation, index at which it ended; 0 if it runs) |
//! | losses | u64 n, n × (u64 hash, u32 node, u32 count, u8 mode, index until) |
//! | reserved keys | u64 n, n × (u64 hash, u32 node, u8 mode, index by, index until) |
//! | held | u64 n, n × (index prepared at, u32 node, u32 keys, index lost to); u64 n, n × (u64 hash, u8 held mode) |
//! | prepared, left out | like held |
//! | left out | u64 n, n × (index, index of the entry that leaves it out) |
//! | to arrive in parts | u64 n, n × txn, the next one first |
//! | committed indexes | index known after, u64 n, n × index |
//!
//! A held mode is a mode, plus 4 for what the transaction has only read.
//!
//! The map of taken keys is not stored: it follows from the window and is rebuilt from it.

use super::apart::KeySet;
use super::held::{HeldKey, Prepared};
use super::outcomes::{Outcomes, Record};
use super::reserved::{Losses, Reservation, Reserved};
use super::{Certifier, CommittedIndexes, Limits, Verdict, WindowEntry};
use crate::entry::{LockMode, READ};
use crate::error::{Error, Result};
use crate::ids::{Base, LogIndex, NodeId, TxnId};
use crate::wire::{put_txn, Reader};
use bytes::{BufMut, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

impl Limits {
    pub(crate) fn put(&self, out: &mut BytesMut) {
        for n in [self.window_entries, self.window_keys, self.outcomes, self.incarnations] {
            out.put_u64_le(n);
        }
    }
}

/// What a checkpoint stores of a certifier at one index.  Making one mostly copies flat memory; the maps for look-ups
/// are left out.
pub(crate) struct Frozen {
    limits: Limits,
    pub(crate) decided: LogIndex,
    last_committed: LogIndex,
    floor: LogIndex,
    window: VecDeque<WindowEntry>,
    window_hashes: VecDeque<u64>,
    window_modes: VecDeque<u8>,
    apart: VecDeque<(LogIndex, Arc<KeySet>)>,
    records: VecDeque<Record>,
    highest_dropped: BTreeMap<(NodeId, u64), u64>,
    incarnations: BTreeMap<(NodeId, u64), Option<LogIndex>>,
    reserved: Reserved,
    held: BTreeMap<u64, Prepared>,
    aside: BTreeMap<LogIndex, Prepared>,
    left_out: BTreeMap<LogIndex, LogIndex>,
    waiting: Vec<TxnId>,
}

impl Frozen {
    pub(crate) fn encode(&self, committed_indexes: &CommittedIndexes, out: &mut BytesMut) {
        out.reserve(
            128 + self.window.len() * 16
                + self.window.iter().map(|entry| entry.keys as usize * 9).sum::<usize>()
                + self.records.len() * 45
                + self.highest_dropped.len() * 20
                + self.incarnations.len() * 20
                + self.reserved.losses.len() * 25
                + self.reserved.keys.len() * 29
                + self.held.values().chain(self.aside.values()).map(|held| 24 + held.keys.len() * 9).sum::<usize>()
                + self.left_out.len() * 16
                + self.waiting.len() * 20
                + committed_indexes.indexes.len() * 8,
        );
        self.limits.put(out);
        for i in [self.decided, self.last_committed, self.floor] {
            out.put_u64_le(i.0);
        }
        out.put_u64_le(self.window.len() as u64);
        for e in &self.window {
            out.put_u64_le(e.index.0);
            out.put_u32_le(e.origin.0);
            out.put_u32_le(e.keys);
        }
        out.put_u64_le(self.window.iter().map(|entry| u64::from(entry.keys)).sum());
        self.keys().for_each(|(hash, _)| out.put_u64_le(hash));
        self.keys().for_each(|(_, mode)| out.put_u8(mode));
        out.put_u64_le(self.records.len() as u64);
        for r in &self.records {
            put_txn(out, &r.txn);
            out.put_u64_le(r.at.0);
            let (code, other, key, origin) = match r.verdict {
                Verdict::Commit => (1, 0, 0, 0),
                Verdict::Conflict { other, key, origin } => (2, other.0, key, origin.0),
                Verdict::Window { oldest, key } => (3, oldest.0, key, 0),
                Verdict::Cancelled => (4, 0, 0, 0),
                Verdict::NotMember => (5, 0, 0, 0),
                Verdict::Reserved { by, key, node } => (6, by.0, key, node.0),
                Verdict::Prepared => (7, 0, 0, 0),
                Verdict::Ended => (8, 0, 0, 0),
                Verdict::Held { by, key, origin } => (9, by.0, key, origin.0),
                Verdict::NoRoom => (10, 0, 0, 0),
            };
            out.put_u8(code);
            out.put_u64_le(other);
            out.put_u32_le(key);
            out.put_u32_le(origin);
        }
        out.put_u64_le(self.highest_dropped.len() as u64);
        for ((node, incarnation), sequence) in &self.highest_dropped {
            out.put_u32_le(node.0);
            out.put_u64_le(*incarnation);
            out.put_u64_le(*sequence);
        }
        out.put_u64_le(self.incarnations.len() as u64);
        for ((node, incarnation), ended) in &self.incarnations {
            out.put_u32_le(node.0);
            out.put_u64_le(*incarnation);
            out.put_u64_le(ended.map_or(0, |at| at.0));
        }
        out.put_u64_le(self.reserved.losses.len() as u64);
        for ((hash, node), losses) in &self.reserved.losses {
            out.put_u64_le(*hash);
            out.put_u32_le(node.0);
            out.put_u32_le(losses.count);
            out.put_u8(losses.mode as u8);
            out.put_u64_le(losses.until.0);
        }
        out.put_u64_le(self.reserved.keys.len() as u64);
        for ((hash, node), reservation) in &self.reserved.keys {
            out.put_u64_le(*hash);
            out.put_u32_le(node.0);
            out.put_u8(reservation.mode as u8);
            out.put_u64_le(reservation.by.0);
            out.put_u64_le(reservation.until.0);
        }
        put_prepared(self.held.values(), out);
        put_prepared(self.aside.values(), out);
        out.put_u64_le(self.left_out.len() as u64);
        for (left_out, by) in &self.left_out {
            out.put_u64_le(left_out.0);
            out.put_u64_le(by.0);
        }
        out.put_u64_le(self.waiting.len() as u64);
        self.waiting.iter().for_each(|txn| put_txn(out, txn));
        out.put_u64_le(committed_indexes.known_after.0);
        out.put_u64_le(committed_indexes.indexes.len() as u64);
        for i in &committed_indexes.indexes {
            out.put_u64_le(i.0);
        }
    }

    /// Of the window's entries, in their order.
    fn keys(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let mut flat = self.window_hashes.iter().copied().zip(self.window_modes.iter().copied());
        let mut apart = self.apart.iter();
        self.window.iter().flat_map(move |entry| {
            let (its, keys) = match entry.apart {
                true => (apart.next(), 0),
                false => (None, entry.keys as usize),
            };
            let flat: Vec<(u64, u8)> = flat.by_ref().take(keys).collect();
            its.into_iter().flat_map(|(_, keys)| keys.taken()).chain(flat)
        })
    }
}

impl Certifier {
    pub(crate) fn freeze(&self) -> Frozen {
        assert!(!self.is_between_parts(), "a checkpoint between the parts of a transaction");
        Frozen {
            limits: self.limits,
            decided: self.decided,
            last_committed: self.last_committed,
            floor: self.floor,
            window: self.window.clone(),
            window_hashes: self.window_hashes.clone(),
            window_modes: self.window_modes.clone(),
            apart: self.taken.apart().clone(),
            records: self.outcomes.records.clone(),
            highest_dropped: self.outcomes.highest_dropped.clone(),
            incarnations: self.outcomes.incarnations.clone(),
            reserved: self.reserved.clone(),
            held: self.held.by_name.clone(),
            aside: self.held.aside.clone(),
            left_out: self.left_out.clone(),
            waiting: self.arriving.iter().map(|arriving| arriving.txn).chain(self.waiting.iter().copied()).collect(),
        }
    }

    /// `limits` are those of the cluster.  A certifier made under other limits would give other verdicts, so it is
    /// refused.
    pub(crate) fn decode(r: &mut Reader, limits: Limits) -> Result<(Certifier, CommittedIndexes)> {
        let stored = Limits {
            window_entries: r.u64("window_entries")?,
            window_keys: r.u64("window_keys")?,
            outcomes: r.u64("outcomes")?,
            incarnations: r.u64("incarnations")?,
        };
        if stored != limits {
            return Err(Error::OtherLimits { was: stored, now: limits });
        }
        let mut c = Certifier::new(limits);
        c.decided = r.index("decided")?;
        let (last_committed, floor) = (r.index("last committed")?, r.index("floor")?);
        c.take_window(r)?;
        (c.last_committed, c.floor) = (last_committed, floor);
        let mut outcomes = Outcomes::new(&limits);
        for _ in 0..count(r, 45)? {
            let (txn, at, code) = (r.txn()?, r.index("at")?, r.u8("outcome")?);
            let (other, key, origin) = (r.u64("other")?, r.u32("key")?, NodeId(r.u32("origin")?));
            let verdict = match code {
                1 => Verdict::Commit,
                2 => Verdict::Conflict { other: LogIndex(other), key, origin },
                3 => Verdict::Window { oldest: Base(other), key },
                4 => Verdict::Cancelled,
                5 => Verdict::NotMember,
                6 => Verdict::Reserved { by: LogIndex(other), key, node: origin },
                7 => Verdict::Prepared,
                8 => Verdict::Ended,
                9 => Verdict::Held { by: LogIndex(other), key, origin },
                10 => Verdict::NoRoom,
                _ => return Err(r.error(format!("outcome {code}"))),
            };
            outcomes.put(txn, at, verdict);
        }
        for _ in 0..count(r, 20)? {
            let who = (NodeId(r.u32("node")?), r.u64("incarnation")?);
            outcomes.highest_dropped.insert(who, r.u64("sequence")?);
        }
        for _ in 0..count(r, 20)? {
            let who = (NodeId(r.u32("node")?), r.u64("incarnation")?);
            let ended = r.index("ended")?;
            outcomes.incarnations.insert(who, (ended != LogIndex::ZERO).then_some(ended));
        }
        c.outcomes = outcomes;
        for _ in 0..count(r, 25)? {
            let of = (r.u64("hash")?, NodeId(r.u32("node")?));
            let losses = Losses { count: r.u32("losses")?, mode: mode(r)?, until: r.index("until")? };
            c.reserved.losses.insert(of, losses);
        }
        for _ in 0..count(r, 29)? {
            let of = (r.u64("hash")?, NodeId(r.u32("node")?));
            let reservation = Reservation { mode: mode(r)?, by: r.index("by")?, until: r.index("until")? };
            c.reserved.keys.insert(of, reservation);
        }
        take_prepared(r)?.into_iter().for_each(|prepared| c.held.put(prepared));
        c.held.aside = take_prepared(r)?.into_iter().map(|prepared| (prepared.index, prepared)).collect();
        for _ in 0..count(r, 16)? {
            let (left_out, by) = (r.index("left out")?, r.index("left out by")?);
            if by <= left_out {
                return Err(r.error(format!("{left_out} is left out by {by}")));
            }
            c.left_out.insert(left_out, by);
        }
        for _ in 0..count(r, 20)? {
            c.waiting.push_back(r.txn()?);
        }
        c.next_arrives();
        let mut committed_indexes = CommittedIndexes { known_after: r.index("known after")?, indexes: VecDeque::new() };
        for _ in 0..count(r, 8)? {
            committed_indexes.indexes.push_back(r.index("committed index")?);
        }
        Ok((c, committed_indexes))
    }

    /// The entries of the window take their keys again, in their order.
    fn take_window(&mut self, r: &mut Reader) -> Result<()> {
        let mut entries = Vec::new();
        for _ in 0..count(r, 16)? {
            entries.push((r.index("window index")?, NodeId(r.u32("origin")?), r.u32("keys")? as usize));
        }
        let keys = count(r, 9)?;
        let hashes = (0..keys).map(|_| r.u64("hash")).collect::<Result<Vec<u64>>>()?;
        let modes = (0..keys).map(|_| mode(r)).collect::<Result<Vec<LockMode>>>()?;
        if entries.iter().map(|(_, _, keys)| keys).sum::<usize>() != keys {
            return Err(r.error("the window's entries do not account for its keys"));
        }
        let mut keys = hashes.into_iter().zip(modes);
        for (index, origin, count) in entries {
            self.take(index, origin, keys.by_ref().take(count));
        }
        Ok(())
    }
}

fn put_prepared<'a>(all: impl Iterator<Item = &'a Prepared> + Clone, out: &mut BytesMut) {
    out.put_u64_le(all.clone().count() as u64);
    for prepared in all.clone() {
        out.put_u64_le(prepared.index.0);
        out.put_u32_le(prepared.node.0);
        out.put_u32_le(prepared.keys.len() as u32);
        out.put_u64_le(prepared.lost_to.0);
    }
    out.put_u64_le(all.clone().map(|prepared| prepared.keys.len() as u64).sum());
    for key in all.flat_map(|prepared| &prepared.keys) {
        out.put_u64_le(key.hash);
        out.put_u8(key.mode as u8 | if key.read { READ } else { 0 });
    }
}

fn take_prepared(r: &mut Reader) -> Result<Vec<Prepared>> {
    let mut heads = Vec::new();
    for _ in 0..count(r, 24)? {
        heads.push((r.index("prepared at")?, NodeId(r.u32("node")?), r.u32("keys")? as usize, r.index("lost to")?));
    }
    let (mut left, mut all) = (count(r, 9)?, Vec::with_capacity(heads.len()));
    for (index, node, keys, lost_to) in heads {
        if keys == 0 {
            return Err(r.error("what is prepared has no name"));
        }
        left = left.checked_sub(keys).ok_or_else(|| r.error("what is held has more keys than there are"))?;
        let mut held = Vec::with_capacity(keys);
        for _ in 0..keys {
            let (hash, byte) = (r.u64("held")?, r.u8("mode")?);
            let mode = LockMode::from_u8(byte & !READ).ok_or_else(|| r.error("a lock mode above 3"))?;
            held.push(HeldKey { hash, mode, read: byte & READ != 0 });
        }
        all.push(Prepared { index, node, lost_to, keys: held });
    }
    if left > 0 {
        return Err(r.error(format!("{left} keys are held by nobody")));
    }
    Ok(all)
}

/// Reads a count.  There must still be `bytes_each` bytes for each element, so that a wrong count cannot make us
/// reserve memory.
fn count(r: &mut Reader, bytes_each: usize) -> Result<usize> {
    let n = r.u64("count")?;
    if n > (r.left() / bytes_each) as u64 {
        return Err(r.error(format!("{n} elements announced, {} bytes left", r.left())));
    }
    Ok(n as usize)
}

fn mode(r: &mut Reader) -> Result<LockMode> {
    let mode = r.u8("mode")?;
    LockMode::from_u8(mode).ok_or_else(|| r.error("a lock mode above 3"))
}
