//! Transactions that are too large to travel in one piece: their bytes arrive in the log in parts.
//!
//! A log has an order, so whatever is proposed behind 100 MB waits until these have arrived.  The node that a large
//! transaction comes from therefore proposes it in parts, a few at a time, and other entries find their place between
//! them.  Once all parts are in the log, it proposes an entry that names them ([`EntryKind::Whole`]).  That entry
//! stands for the transaction, which is certified, committed and applied at its index.
//!
//! From a certain size on it waits a moment before that, until the other servers have written its rows
//! ([`crate::router`], `arrival`); each of their nodes says so by a part without bytes, in the log.
//!
//! Invariants:
//! - At any index of the log at most one transaction of the whole cluster is arriving, and a part counts only if it is
//!   the next one of that transaction.  The log alone decides which transaction comes next: the one that asked first.
//! - No checkpoint falls between the first part of a transaction and its end, so a checkpoint need not contain what has
//!   arrived so far.
//! - While a log is needed from some index on, it has the parts of every transaction from there on ([`Spans`]).

use crate::agent::MAX_FRAME_BYTES;
use crate::entry::{Entry, EntryKind, KIND_AT};
use crate::error::Error;
use crate::ids::{LogIndex, NodeId, TxnId};
use crate::members::MEMBERS_MAX;
use crate::pace::Pace;
use crate::router::Log;
use bytes::{Bytes, BytesMut};
use raft::eraftpb::EntryType;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How a node proposes large transactions.  Nodes may differ in this, since the log says where each part belongs.
#[derive(Clone, Copy, Debug)]
pub struct PartSizes {
    /// Bytes of the largest entry that is proposed in one piece.
    pub whole_max: usize,
    /// Bytes of a part.  It never changes, so that parts which are proposed again begin where the first ones did.
    pub part: usize,
    /// Bytes that are proposed and have not arrived yet, at most ([`Pace`]).
    pub under_way: usize,
    /// Bytes of the smallest transaction that other servers write while it arrives.  What is smaller takes them less
    /// time than the round trip that it takes to say so.
    pub written_early: usize,
}

impl Default for PartSizes {
    fn default() -> Self {
        PartSizes { whole_max: 1 << 20, part: 128 << 10, under_way: 4 << 20, written_early: 8 << 20 }
    }
}

/// The transaction whose parts count now.
pub struct Arriving {
    pub txn: TxnId,
    /// Where its parts are in the log, as far as they have arrived.
    pub indexes: Vec<LogIndex>,
    total: u64,
    bytes: BytesMut,
    crc: crc32fast::Hasher,
    /// The nodes whose servers need not be waited for any more: they have written it, or given that up.
    written: BTreeSet<NodeId>,
}

impl Arriving {
    /// No part of it has arrived.
    pub fn new(txn: TxnId) -> Arriving {
        let (indexes, crc) = (Vec::new(), crc32fast::Hasher::new());
        Arriving { txn, indexes, total: 0, bytes: BytesMut::new(), crc, written: BTreeSet::new() }
    }

    /// False if this is not its next part.
    pub fn add(&mut self, index: LogIndex, entry: &Entry) -> bool {
        let Some(part) = entry.part().filter(|part| entry.txn == self.txn && !part.bytes.is_empty()) else {
            return false;
        };
        let total = if self.is_empty() { part.total.min(MAX_FRAME_BYTES as u64) } else { self.total };
        let end = part.offset + part.bytes.len() as u64;
        if part.offset != self.bytes.len() as u64 || part.total != total || end > total {
            return false;
        }
        if self.is_empty() {
            self.total = total;
            self.bytes.reserve(total as usize);
        }
        self.indexes.push(index);
        self.bytes.extend_from_slice(&part.bytes);
        self.crc.update(&part.bytes);
        true
    }

    /// Takes a part without bytes for what it says: the number of a node that is not to be waited for, in the place of
    /// the offset.
    pub fn note_written(&mut self, entry: &Entry) {
        let said = entry.part().filter(|part| entry.txn == self.txn && part.bytes.is_empty());
        let node = said.and_then(|part| u32::try_from(part.offset).ok()).filter(|node| *node > 0);
        if let Some(node) = node.filter(|_| self.written.len() < MEMBERS_MAX) {
            self.written.insert(NodeId(node));
        }
    }

    /// What such a part is proposed as.
    pub fn encode_written(&self, node: NodeId) -> Bytes {
        Entry::encode_part(&self.txn, self.total as usize, node.0 as usize, b"")
    }

    pub fn is_written(&self, node: NodeId) -> bool {
        self.written.contains(&node)
    }

    /// All of it has arrived.
    pub fn is_whole(&self) -> bool {
        !self.is_empty() && self.bytes.len() as u64 == self.total
    }

    /// The bytes of the whole encoded transaction, once the first ones have arrived.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Those that have arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes have arrived.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The transaction for which `whole` stands; `None` if that names other parts, or if they do not make up a
    /// transaction.
    pub fn end(self, whole: &Entry) -> Option<Entry> {
        let (crc, indexes) = whole.whole().filter(|_| whole.txn == self.txn)?;
        if indexes != self.indexes || self.bytes.len() as u64 != self.total || crc != self.crc.finalize() {
            return None;
        }
        let entry = Entry::decode(self.bytes.freeze()).ok()?;
        (entry.txn == whole.txn && entry.kind.is_of_backend()).then_some(entry)
    }
}

/// The committed entry at `at`, put together if it arrived in parts.
pub fn read<L: Log>(log: &L, at: LogIndex) -> Result<Entry, L::Error> {
    let entry = Entry::decode(log.read(at)?)?;
    let Some((_, indexes)) = entry.whole() else { return Ok(entry) };
    let corrupted = |why: String| Error::Corrupted { what: "log", why };
    let mut arriving = Arriving::new(entry.txn);
    for index in indexes {
        if !arriving.add(index, &Entry::decode(log.read(index)?)?) {
            return Err(corrupted(format!("entry {index} is not the part that entry {at} says it is")).into());
        }
    }
    arriving
        .end(&entry)
        .ok_or_else(|| corrupted(format!("the parts of entry {at} do not make up a transaction")).into())
}

/// Which entries of a log name parts, and the first part that each names: what a cut must not separate.
#[derive(Clone, Debug, Default)]
pub struct Spans(BTreeMap<LogIndex, LogIndex>);

impl Spans {
    /// The entry at `from` and all after it are about to be replaced.
    pub fn truncate(&mut self, from: LogIndex) {
        self.0.split_off(&from);
    }

    /// An entry was appended; it replaces all from its index on.
    pub fn append(&mut self, index: LogIndex, kind: EntryType, data: &Bytes) {
        self.truncate(index);
        // The kind is one byte, so other entries cost nothing here.
        if kind != EntryType::EntryNormal || data.get(KIND_AT) != Some(&(EntryKind::Whole as u8)) {
            return;
        }
        let whole = Entry::decode(data.clone()).ok().and_then(|entry| entry.whole());
        if let Some(first) = whole.and_then(|(_, indexes)| indexes.into_iter().min()) {
            self.0.insert(index, first);
        }
    }

    /// The highest index that is not above `upto` and up to which the log may be cut.
    pub fn cut_to(&self, upto: LogIndex) -> LogIndex {
        // From the last one backwards, since the cut that it allows may fall between the parts of an earlier one.
        self.0.iter().rev().fold(upto, |upto, (whole, first)| match *whole > upto {
            true => upto.min(LogIndex(first.0.saturating_sub(1))),
            false => upto,
        })
    }

    /// The lowest index from which on all that `committed` can be read, in a log that begins with `first`.  An entry
    /// that did not commit may well lack its parts: if a transaction is proposed once more after it was decided, what
    /// names its parts then does not count, and a log that came from a checkpoint has these parts no longer.
    pub fn readable_from(&self, first: LogIndex, committed: impl Fn(LogIndex) -> bool) -> LogIndex {
        let lacks_parts = self.0.iter().rev().find(|(whole, part)| **part < first && committed(**whole));
        lacks_parts.map_or(first, |(whole, _)| whole.next().max(first))
    }

    /// The log was cut: it begins after `upto`.
    pub fn cut(&mut self, upto: LogIndex) {
        self.0 = self.0.split_off(&upto.next());
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// How long other servers are waited for that write a transaction of so many bytes early.  It leaves time for the rest
/// before a transaction of which nothing more arrives is cancelled.
fn wait_max(bytes: usize) -> Duration {
    (Duration::from_secs(1) + Duration::from_secs(1) * (bytes >> 23) as u32).min(Duration::from_secs(5))
}

/// How much of a large transaction its node has proposed.
pub struct Progress {
    /// Bytes that have been proposed.
    proposed: usize,
    /// The entry that names its parts has been proposed.
    named: bool,
    /// A place among the transactions that wait to arrive has been asked for.
    asked: bool,
    /// Nobody took the last proposal, so nothing is proposed until it is time to try again.
    held: bool,
    crc: crc32fast::Hasher,
    summed: usize,
    pace: Pace,
    /// Since when all of it has been there.
    whole_since: Option<Duration>,
    /// Other servers may be waited for.  Not if it has been proposed before: they have been then.
    waits: bool,
    /// The nodes that were waited for in vain.
    pub late: Vec<NodeId>,
}

impl Progress {
    /// `arrived`: what the log has of it, if it has been proposed before, on another connection of its session or by an
    /// earlier life of this node.
    pub fn new(sizes: &PartSizes, arrived: Option<usize>) -> Self {
        Progress {
            proposed: 0,
            named: false,
            asked: false,
            held: false,
            crc: crc32fast::Hasher::new(),
            summed: 0,
            pace: Pace::new(sizes.under_way, arrived.map_or(0, |arrived| arrived + sizes.under_way)),
            whole_since: None,
            waits: arrived.is_none(),
            late: Vec::new(),
        }
    }

    /// Everything that has not arrived is to be proposed again, since it may be lost.
    pub fn again(&mut self) {
        self.pace.again();
        (self.proposed, self.named, self.asked, self.held) = (0, false, false, false);
    }

    pub fn hold(&mut self) {
        self.held = true;
    }

    /// While another transaction is arriving: a proposal that asks for the place behind it, if that is needed.
    pub fn ask(&mut self, txn: &TxnId, raw: &Bytes) -> Option<Bytes> {
        if self.held || self.asked {
            return None;
        }
        self.asked = true;
        Some(Entry::encode_part(txn, raw.len(), 0, b""))
    }

    /// What to propose of `raw` at the time `now`; `arriving` says how much of it the log has.  `servers`: the nodes
    /// that have a server which is to write it early.
    pub fn next(
        &mut self,
        txn: &TxnId,
        raw: &Bytes,
        arriving: Option<&Arriving>,
        sizes: &PartSizes,
        now: Duration,
        servers: &[NodeId],
    ) -> Vec<Bytes> {
        let mut proposals = Vec::new();
        if self.held {
            return proposals;
        }
        let arrived = arriving.map_or(0, Arriving::len);
        self.proposed = self.proposed.max(arrived);
        self.pace.arrived(arrived, now);
        let window = self.pace.window();
        while self.proposed < raw.len() && self.proposed < arrived + window {
            let end = raw.len().min(self.proposed + sizes.part);
            proposals.push(Entry::encode_part(txn, raw.len(), self.proposed, &raw[self.proposed..end]));
            self.pace.proposed(end, now);
            self.proposed = end;
        }
        // The sum grows with what arrives, so that no step takes long.
        if self.summed < arrived {
            self.crc.update(&raw[self.summed..arrived]);
            self.summed = arrived;
        }
        if let Some(arriving) = arriving.filter(|a| a.len() == raw.len() && !self.named) {
            let since = *self.whole_since.get_or_insert(now);
            let missing = |node: &&NodeId| !arriving.is_written(**node);
            if self.waits && raw.len() >= sizes.written_early && servers.iter().any(|node| missing(&node)) {
                if now < since + wait_max(raw.len()) {
                    return proposals;
                }
                self.late.extend(servers.iter().filter(missing));
            }
            self.named = true;
            proposals.push(Entry::encode_whole(txn, self.crc.clone().finalize(), &arriving.indexes));
        }
        proposals
    }
}
