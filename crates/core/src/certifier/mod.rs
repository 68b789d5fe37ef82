//! Decides from the log alone whether an entry commits or aborts.
//!
//! Every node feeds the same log to its certifier and gets the same verdicts; there is no other input.  The certifier
//! knows nothing of Raft, time or PostgreSQL.
//!
//! Invariants:
//! - Entries come in log order, each index once ([`Certifier::certify`] or [`Certifier::skip`]).
//! - An entry commits only if, for each of its keys, every committed entry after the key's base is in the window and
//!   none of them took that key in a conflicting mode.
//! - `floor` is the index of the last committed entry that has left the window (0: none has).  A base at or above it is
//!   judged exactly.  A lower one aborts the entry, because part of what was taken after that base is forgotten.
//! - What is kept depends on the log only: at most `window_entries` committed entries and `window_keys` keys.
//! - An entry that is left out of every PostgreSQL ([`Certifier::left_out_by`]) was certified like any other, and its
//!   verdict stays.  The entry that leaves it out takes what that one took again, so that whoever saw the changes
//!   conflicts with it.  If that is forgotten, all that has not seen the entry that leaves it out is below the window.
//! - An entry also aborts if a key of it is held by a prepared transaction (`held`), or is reserved for another node,
//!   which lost on it again and again (`reserved`).
//! - What a prepared transaction holds is taken when it is committed, at that index.
//! - A key of what an entry has only read ([`Entry::taken`]) aborts it like any other, and is not taken.  So an entry
//!   of a SERIALIZABLE transaction commits only if what it read is still so at its own place in the log, and these
//!   transactions come out as if they had run one after the other in the order of the log.  A prepared one holds what
//!   it read as well, so that this is still so where it is committed.
//! - A certifier rebuilt from a checkpoint gives the same answers as the original.

mod apart;
pub(crate) mod checkpoint;
mod committed_indexes;
mod fixed_map;
mod held;
mod outcomes;
mod reserved;
mod taken;

pub use committed_indexes::CommittedIndexes;
pub use held::Prepared;
pub use outcomes::Outcome;

use crate::entry::{Entry, EntryKind, Key, LockMode};
use crate::error::{Error, Result};
use crate::ids::{Base, LogIndex, NodeId, TxnId};
use crate::parts::Arriving;
use apart::{is_apart, Gathered, KeySet};
use held::Held;
use outcomes::Outcomes;
use reserved::Reserved;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use taken::Taken;

/// How much is kept.  Verdicts depend on it, so it is the same on all nodes of a cluster and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Committed entries in the window, at most.
    pub window_entries: u64,
    /// Keys of the entries in the window, at most.
    pub window_keys: u64,
    /// Transactions whose outcome is remembered, at most.
    pub outcomes: u64,
    /// Ended incarnations of each node's PostgreSQL that are remembered, at most.
    pub incarnations: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { window_entries: 100_000, window_keys: 8_000_000, outcomes: 1_000_000, incarnations: 10_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Commit,
    /// Like `Commit`, for PREPARE TRANSACTION: every PostgreSQL gets the entry, its own too, and keeps it.
    Prepared,
    /// Like `Commit`, for COMMIT PREPARED and ROLLBACK PREPARED: every PostgreSQL gets the entry, its own too.
    Ended,
    /// It lost to the committed entry `other` of node `origin` because of key number `key`.
    Conflict {
        other: LogIndex,
        key: u32,
        origin: NodeId,
    },
    /// Key number `key` is reserved for node `node`, whose entry `by` was the last of several to lose.
    Reserved {
        by: LogIndex,
        key: u32,
        node: NodeId,
    },
    /// Key number `key` is held by the transaction of node `origin` that was prepared at `by` and is not ended yet; or
    /// it is the name of that one, which cannot be committed any more.
    Held {
        by: LogIndex,
        key: u32,
        origin: NodeId,
    },
    /// No more can be held ready by prepared transactions.
    NoRoom,
    /// The base of key number `key` is below the window; `oldest` would have been high enough.
    Window {
        oldest: Base,
        key: u32,
    },
    /// Before it reached the log, an earlier entry had ruled that it may not commit any more; or the parts that it
    /// names are not those that arrived; or what it is to end is not held.
    Cancelled,
    /// The node that it came from was not a member at that index.
    NotMember,
}

impl Verdict {
    /// The entry is one of those that each PostgreSQL commits, in their order.
    pub fn commits(self) -> bool {
        matches!(self, Verdict::Commit) || self.is_for_workers()
    }

    /// The apply worker commits it in every PostgreSQL, also in the one that it came from.
    pub fn is_for_workers(self) -> bool {
        matches!(self, Verdict::Prepared | Verdict::Ended)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// `previous`: the last committed entry before this one, 0 if none.
    Decided { verdict: Verdict, previous: LogIndex },
    /// The log contained the same transaction before; the entry at `first` decided it.
    Duplicate { first: LogIndex },
    /// The log may have contained the transaction longer ago than outcomes are kept, or the entry is to leave out
    /// something that cannot be left out.  It commits nothing.
    Stale,
    /// The entry contains no transaction.
    NoTransaction,
    /// The entry says that the committed entry `left_out` is to be left out of every PostgreSQL.  It has to be applied
    /// itself, and a PostgreSQL that shows the changes of `left_out` cannot do that.
    LeavesOut { left_out: LogIndex, previous: LogIndex },
    /// A part of a transaction; false: it is void.
    Part { counts: bool },
}

#[derive(Clone, Copy)]
struct WindowEntry {
    index: LogIndex,
    origin: NodeId,
    keys: u32,
    /// They are not among `window_hashes`, but in `taken`.
    apart: bool,
}

/// Entries that are remembered as left out, at most.  Beyond that the oldest are forgotten; no node should need them
/// any more.
const LEFT_OUT_MAX: usize = 1_000;
/// At most so many transactions wait to arrive in parts; others ask again later.
const WAITING_MAX: usize = 1_000;

pub struct Certifier {
    limits: Limits,
    decided: LogIndex,
    last_committed: LogIndex,
    floor: LogIndex,
    window: VecDeque<WindowEntry>,
    /// How many keys the window's entries have taken.
    window_keys: u64,
    /// Hash and mode of every one that is not apart, oldest first.
    window_hashes: VecDeque<u64>,
    window_modes: VecDeque<u8>,
    taken: Taken,
    outcomes: Outcomes,
    reserved: Reserved,
    held: Held,
    /// The entries that are left out of every PostgreSQL, each with the entry that leaves it out.
    left_out: BTreeMap<LogIndex, LogIndex>,
    /// The one transaction whose parts count now, and those that wait until it has arrived.
    arriving: Option<Arriving>,
    waiting: VecDeque<TxnId>,
    /// The keys of the one that is arriving.
    gathering: Option<Gathered>,
    /// Those of the entry that is being decided, if they have been gathered.
    gathered: Option<Gathered>,
}

impl Certifier {
    pub fn new(limits: Limits) -> Self {
        Certifier {
            limits,
            decided: LogIndex::ZERO,
            last_committed: LogIndex::ZERO,
            floor: LogIndex::ZERO,
            window: VecDeque::new(),
            window_keys: 0,
            window_hashes: VecDeque::new(),
            window_modes: VecDeque::new(),
            taken: Taken::default(),
            outcomes: Outcomes::new(&limits),
            reserved: Reserved::default(),
            held: Held::default(),
            left_out: BTreeMap::new(),
            arriving: None,
            waiting: VecDeque::new(),
            gathering: None,
            gathered: None,
        }
    }

    /// The last log index that was handed in.
    pub fn decided(&self) -> LogIndex {
        self.decided
    }

    /// The index of the last committed entry, 0 if there is none.
    pub fn last_committed(&self) -> LogIndex {
        self.last_committed
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The oldest base that does not abort an entry.
    pub fn oldest_base(&self) -> Base {
        Base(self.floor.0)
    }

    pub fn outcome(&self, txn: &TxnId) -> Outcome {
        self.outcomes.get(txn)
    }

    /// Whether this may be the id of a transaction, so that it can be settled.
    pub fn may_be_given_out(&self, txn: &TxnId) -> bool {
        self.outcomes.may_be_given_out(txn)
    }

    /// The incarnation that the PostgreSQL of `node` runs as, according to the log; 0 if the log does not say.
    pub fn running_incarnation(&self, node: NodeId) -> u64 {
        self.outcomes.running(node)
    }

    /// The entry that leaves this one out of every PostgreSQL, unless that entry is left out itself.
    pub fn left_out_by(&self, index: LogIndex) -> Option<LogIndex> {
        self.left_out.get(&index).copied().filter(|by| self.left_out_by(*by).is_none())
    }

    /// The entry that left this one out, even if that entry has been left out itself since.
    pub fn was_left_out_by(&self, index: LogIndex) -> Option<LogIndex> {
        self.left_out.get(&index).copied()
    }

    /// The transactions that are prepared and not ended, by name.
    pub fn prepared(&self) -> &BTreeMap<u64, Prepared> {
        &self.held.by_name
    }

    /// Passes over an index that contains no transaction (a leader's first entry): it commits nothing.
    pub fn skip(&mut self, index: LogIndex) -> Result<()> {
        self.follow(index)
    }

    /// Decides the entry at `index`, which must follow the last one.
    pub fn certify(&mut self, index: LogIndex, entry: &Entry) -> Result<Decision> {
        self.decide(index, entry, Self::judge)
    }

    /// Why this entry aborts wherever it comes in the log from now on, if that is certain: a conflict with what has
    /// committed does not go away.
    pub fn has_lost(&self, entry: &Entry) -> Option<Verdict> {
        let verdict = entry.kind.is_of_backend().then(|| self.judge(entry))?;
        Some(verdict).filter(|verdict| matches!(verdict, Verdict::Conflict { .. } | Verdict::Window { .. }))
    }

    /// The same, because of the committed entry at `other`, if that is in the window: less work, if either has many
    /// keys.
    pub fn has_lost_to(&self, other: LogIndex, entry: &Entry) -> Option<Verdict> {
        let few = match self.taken.apart_at(other) {
            _ if !entry.kind.is_of_backend() => return None,
            None => self.taken_at(other)?,
            Some(_) => Vec::new(),
        };
        let few = KeySet::of_taken(few.into_iter().map(|(hash, mode)| (hash, mode as u8)));
        let taken = self.taken.apart_at(other).unwrap_or(&few);
        let lost_on = |key: &Key| key.base.0 < other.0 && taken.takes_against(key.hash, key.mode);
        let (key, _) = (0..).zip(entry.keys()).find(|(_, key)| lost_on(key))?;
        Some(Verdict::Conflict { other, key, origin: self.origin_of(other) })
    }

    /// The last committed entry that took this key in a mode that conflicts with `mode`, as far as it is in the window;
    /// a base below the window is too low for any key.
    pub fn last_taken(&self, hash: u64, mode: LockMode) -> LogIndex {
        self.taken.last(hash, mode, self.floor).max(self.floor)
    }

    /// Decides an entry of a node that is not a member at this index: it commits nothing.
    pub fn refuse(&mut self, index: LogIndex, entry: &Entry) -> Result<Decision> {
        self.decide(index, entry, |_, _| Verdict::NotMember)
    }

    /// `node` is not a member any more from the last decided index on: its transactions that are not in the log by now
    /// are aborted.
    pub fn end(&mut self, node: NodeId) {
        self.outcomes.end(node, self.decided);
        self.reserved.end(node);
        self.waiting.retain(|txn| txn.node != node);
        self.arriving.take_if(|arriving| arriving.txn.node == node);
        self.next_arrives();
    }

    /// The transaction whose parts count now, even if none has arrived yet.
    pub fn arriving(&self) -> Option<&Arriving> {
        self.arriving.as_ref()
    }

    /// Some parts of a transaction have arrived, and not its end.  No checkpoint is made then.
    pub fn is_between_parts(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| !arriving.is_empty())
    }

    /// Those that wait for that and have not been decided, the next one first.
    pub fn waiting(&self) -> impl Iterator<Item = TxnId> + '_ {
        self.waiting.iter().copied().filter(|txn| self.outcomes.get(txn) == Outcome::Unknown)
    }

    /// It is the transaction whose parts count, or it waits for that.
    pub fn is_to_arrive(&self, txn: &TxnId) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.txn == *txn) || self.waiting.contains(txn)
    }

    fn next_arrives(&mut self) {
        // It was cancelled, or its PostgreSQL has started anew since.
        let outcomes = &self.outcomes;
        self.arriving.take_if(|arriving| outcomes.get(&arriving.txn) != Outcome::Unknown);
        let arriving = self.arriving.as_ref().map(|arriving| arriving.txn);
        self.gathering.take_if(|gathering| Some(gathering.txn) != arriving);
        while self.arriving.is_none() {
            let Some(next) = self.waiting.pop_front() else { return };
            self.arriving = Some(next).filter(|txn| outcomes.get(txn) == Outcome::Unknown).map(Arriving::new);
        }
    }

    /// A part of a member's transaction.
    pub fn take_part(&mut self, index: LogIndex, entry: &Entry) -> Result<Decision> {
        self.follow(index)?;
        let is_first = entry.part().is_some_and(|part| part.offset == 0);
        if is_first && !self.is_to_arrive(&entry.txn) && self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(entry.txn);
            self.next_arrives();
        }
        let counts = self.arriving.as_mut().is_some_and(|arriving| arriving.add(index, entry));
        match self.arriving.as_mut() {
            Some(arriving) if counts => Gathered::follow(&mut self.gathering, arriving, &self.limits),
            Some(arriving) => arriving.note_written(entry),
            None => {}
        }
        Ok(Decision::Part { counts })
    }

    /// What an entry stands for: itself, unless it names the parts that have arrived.
    pub fn put_together(&mut self, entry: Entry) -> Entry {
        if entry.kind != EntryKind::Whole {
            return entry;
        }
        let arriving = self.arriving.take_if(|arriving| arriving.txn == entry.txn);
        let gathering = self.gathering.take_if(|gathering| gathering.txn == entry.txn);
        let Some(whole) = arriving.and_then(|arriving| arriving.end(&entry)) else { return entry };
        self.gathered = gathering.filter(|gathered| gathered.keys.count() == whole.key_count());
        whole
    }

    fn decide(&mut self, index: LogIndex, entry: &Entry, judge: fn(&Self, &Entry) -> Verdict) -> Result<Decision> {
        self.follow(index)?;
        self.gathered.take_if(|gathered| gathered.txn != entry.txn);
        let decision = self.decision(index, entry, judge);
        self.gathered = None;
        self.next_arrives();
        Ok(decision)
    }

    fn decision(&mut self, index: LogIndex, entry: &Entry, judge: fn(&Self, &Entry) -> Verdict) -> Decision {
        if entry.kind == EntryKind::Incarnation {
            // A write set of another length is ignored, by every node alike.
            if let Ok(before) = <[u8; 8]>::try_from(&entry.write_set[..]) {
                let TxnId { node, incarnation, .. } = entry.txn;
                self.outcomes.begin(node, incarnation, u64::from_le_bytes(before), index);
            }
            return Decision::NoTransaction;
        }
        if entry.kind == EntryKind::Skip {
            return self.leave_out(index, entry);
        }
        match self.outcomes.get(&entry.txn) {
            Outcome::Unknown => {}
            Outcome::Decided { at, .. } => return Decision::Duplicate { first: at },
            Outcome::OlderThanKept => return Decision::Stale,
        }
        let verdict = if entry.kind == EntryKind::Cancel { Verdict::Cancelled } else { judge(self, entry) };
        let previous = self.last_committed;
        match verdict {
            Verdict::Commit => {
                if self.may_have(self.reserved.hashes()) {
                    self.reserved.committed(entry);
                }
                match self.gathered.take().filter(|gathered| gathered.keys.stays_apart(&self.limits)) {
                    Some(gathered) => self.take_apart(index, entry.txn.node, gathered.keys),
                    None => self.take(index, entry.txn.node, entry.taken().map(|key| (key.hash, key.mode))),
                }
            }
            Verdict::Prepared => {
                self.take(index, entry.txn.node, []);
                self.reserved.committed(entry);
                self.held.prepare(index, entry);
            }
            Verdict::Ended => self.end_prepared(index, entry),
            Verdict::Conflict { key, .. } if !entry.kind.ends_prepared() && entry.takes(key) => {
                let key = entry.keys().nth(key as usize).expect("the verdict names one of its keys");
                self.reserved.lost(index, entry, key);
            }
            _ => {}
        }
        self.outcomes.put(entry.txn, index, verdict);
        Decision::Decided { verdict, previous }
    }

    /// An entry can be left out once.  The proposer has checked what this one leaves out; the checks here only make
    /// sure that no node has to leave out something that is not a committed entry.
    fn leave_out(&mut self, index: LogIndex, entry: &Entry) -> Decision {
        let Some(left_out) = entry.leaves_out().filter(|left_out| *left_out < index) else { return Decision::Stale };
        if let Some(first) = self.left_out.get(&left_out) {
            return Decision::Duplicate { first: *first };
        }
        let is_committed = match self.outcomes.get(&entry.txn) {
            Outcome::Decided { at, verdict } if verdict.commits() && at == left_out => true,
            Outcome::Decided { .. } => self.left_out.values().any(|by| *by == left_out),
            Outcome::OlderThanKept => true,
            Outcome::Unknown => false,
        };
        if !is_committed {
            return Decision::Stale;
        }
        let previous = self.last_committed;
        let own: Vec<(u64, LockMode)> = entry.keys().map(|key| (key.hash, key.mode)).collect();
        let taken = self.taken_at(left_out);
        // What has been committed by name may have taken more than its name.
        let knows_all = taken.is_some()
            || matches!(
                self.outcomes.get(&entry.txn),
                Outcome::Decided { verdict: Verdict::Commit | Verdict::Prepared, .. }
            );
        let keys = taken.filter(|taken| taken.len() > own.len()).unwrap_or(own);
        // It may leave out what leaves out another entry, and so on: then the first of these is left out, or no more.
        let mut first = left_out;
        while let Some((before, _)) = self.left_out.iter().find(|(_, by)| **by == first) {
            first = *before;
        }
        let was_left_out_by = self.left_out.get(&first).copied();
        self.left_out.insert(left_out, index);
        let kept = if self.left_out_by(first).is_some() {
            self.held.set_aside(first);
            None
        } else {
            self.held.take_back(first)
        };
        self.held.lose(index, &keys);
        if let Some(prepared) = kept {
            let by = was_left_out_by.unwrap_or_default();
            let is_taken = prepared.keys.iter().any(|key| self.last_taken(key.hash, key.mode) > by);
            self.held.put_back(prepared, is_taken, index);
        }
        self.take(index, entry.txn.node, keys);
        if !knows_all {
            while !self.window.is_empty() {
                self.forget_oldest();
            }
            self.held.lose_after(left_out, index);
        }
        if self.left_out.len() > LEFT_OUT_MAX {
            if let Some((forgotten, _)) = self.left_out.pop_first() {
                self.held.take_back(forgotten);
            }
        }
        Decision::LeavesOut { left_out, previous }
    }

    /// What was held is taken here if it is committed; if not, nothing but its name is, so that a name is used again
    /// only by somebody who has seen this.
    fn end_prepared(&mut self, index: LogIndex, entry: &Entry) {
        let name = entry.keys().next().map(|key| (key.hash, key.mode));
        let held = name.and_then(|(name, _)| self.held.release(name));
        match held.filter(|_| entry.kind == EntryKind::CommitPrepared) {
            Some(held) => self.take(index, entry.txn.node, held.taken()),
            None => self.take(index, entry.txn.node, name),
        }
    }

    fn follow(&mut self, index: LogIndex) -> Result<()> {
        if index != self.decided.next() {
            return Err(Error::OutOfOrder { last: self.decided, got: index });
        }
        self.decided = index;
        Ok(())
    }

    /// Reports the first key that makes the entry abort; a held one only if there is no other, and then a reserved one.
    fn judge(&self, entry: &Entry) -> Verdict {
        // It names other parts than those that have arrived (`put_together`).
        if entry.kind == EntryKind::Whole {
            return Verdict::Cancelled;
        }
        if let Some(verdict) = self.objection_to_keys(entry) {
            return verdict;
        }
        if entry.kind.ends_prepared() {
            return match self.held.ended_by(entry) {
                None => Verdict::Cancelled,
                Some((_, held)) if held.lost_to > LogIndex::ZERO && entry.kind == EntryKind::CommitPrepared => {
                    Verdict::Held { by: held.index, key: 0, origin: held.node }
                }
                Some(_) => Verdict::Ended,
            };
        }
        let may_meet_held = self.held.keys() > entry.key_count() || self.may_have(self.held.hashes());
        if let Some((key, held)) = may_meet_held.then(|| self.held.in_the_way(entry)).flatten() {
            return Verdict::Held { by: held.index, key, origin: held.node };
        }
        let may_meet_reserved = self.may_have(self.reserved.hashes());
        let reserved = may_meet_reserved.then(|| self.reserved.in_the_way(self.decided, entry)).flatten();
        if let Some((key, by, node)) = reserved {
            return Verdict::Reserved { by, key, node };
        }
        match entry.kind {
            // It has no name.
            EntryKind::Prepare if entry.key_count() == 0 => Verdict::Cancelled,
            EntryKind::Prepare if !self.held.has_room_for(entry) => Verdict::NoRoom,
            EntryKind::Prepare => Verdict::Prepared,
            _ => Verdict::Commit,
        }
    }

    /// The verdict about the first key that has been taken since its base, or may have been.
    fn objection_to_keys(&self, entry: &Entry) -> Option<Verdict> {
        if self.gathered.as_ref().is_some_and(|gathered| self.nothing_taken_since(&gathered.keys)) {
            return None;
        }
        let keys = (0..).zip(entry.keys());
        self.taken.first_objection(keys, entry.key_count(), |number, key| self.objection(number, key))
    }

    /// Certain if true: nothing that any of these keys minds has been taken since the lowest of their bases.
    fn nothing_taken_since(&self, keys: &KeySet) -> bool {
        if keys.lowest_base().0 < self.floor.0 {
            return false;
        }
        let from = self.window.partition_point(|entry| entry.index.0 <= keys.lowest_base().0);
        let flat =
            self.window.range(from..).filter(|entry| !entry.apart).map(|entry| entry.keys as usize).sum::<usize>();
        let first = self.window_hashes.len() - flat;
        let mut taken = self.window_hashes.range(first..).zip(self.window_modes.range(first..));
        let apart = self.taken.apart_after(LogIndex(keys.lowest_base().0));
        // If there is more of it than there are keys, to look these up is quicker.
        flat + apart.clone().map(|its| its.taken().len()).sum::<usize>() <= keys.count()
            && !taken.any(|(hash, mode)| keys.minds(*hash, *mode))
            && !apart.flat_map(KeySet::taken).any(|(hash, mode)| keys.minds(hash, mode))
    }

    /// False only if the entry that is being decided has none of these keys.
    fn may_have(&self, mut hashes: impl Iterator<Item = u64>) -> bool {
        self.gathered.as_ref().is_none_or(|gathered| hashes.any(|hash| gathered.keys.has(hash)))
    }

    fn objection(&self, number: u32, key: Key) -> Option<Verdict> {
        if key.base.0 < self.floor.0 {
            return Some(Verdict::Window { oldest: Base(self.floor.0), key: number });
        }
        let other = self.taken.last(key.hash, key.mode, LogIndex(key.base.0));
        (other.0 > key.base.0).then(|| Verdict::Conflict { other, key: number, origin: self.origin_of(other) })
    }

    /// What no node may do: tests make one do it.
    #[doc(hidden)]
    pub fn forget_what_is_reserved(&mut self) {
        self.reserved = Reserved::default();
    }

    /// What no node may do, likewise.
    #[doc(hidden)]
    pub fn forget_what_is_held(&mut self) {
        self.held = Held::default();
    }

    fn origin_of(&self, index: LogIndex) -> NodeId {
        let at = self.window.binary_search_by_key(&index, |e| e.index);
        self.window[at.expect("`taken` contains only indexes of the window")].origin
    }

    /// What the entry at `index` took, if that is in the window.
    fn taken_at(&self, index: LogIndex) -> Option<Vec<(u64, LockMode)>> {
        let at = self.window.binary_search_by_key(&index, |e| e.index).ok()?;
        if let Some(keys) = self.taken.apart_at(index) {
            return keys.taken().map(|(hash, mode)| Some((hash, LockMode::from_u8(mode)?))).collect();
        }
        let from: usize = self.window.range(..at).filter(|e| !e.apart).map(|e| e.keys as usize).sum();
        let keys = from..from + self.window[at].keys as usize;
        let modes = self.window_modes.range(keys.clone()).map(|mode| LockMode::from_u8(*mode));
        self.window_hashes.range(keys).zip(modes).map(|(hash, mode)| Some((*hash, mode?))).collect()
    }

    fn take(&mut self, index: LogIndex, origin: NodeId, keys: impl IntoIterator<Item = (u64, LockMode)>) {
        self.last_committed = index;
        let before = self.window_hashes.len();
        for (hash, mode) in keys {
            self.window_hashes.push_back(hash);
            self.window_modes.push_back(mode as u8);
        }
        let keys = self.window_hashes.len() - before;
        if is_apart(keys, &self.limits) {
            let keys = self.window_hashes.drain(before..).zip(self.window_modes.drain(before..));
            let keys = KeySet::of_taken(keys);
            return self.take_apart(index, origin, keys);
        }
        let new = self.window_hashes.range(before..).zip(self.window_modes.range(before..));
        self.taken.take(index, new.map(|(hash, mode)| (*hash, *mode)));
        self.push(WindowEntry { index, origin, keys: keys as u32, apart: false });
    }

    fn take_apart(&mut self, index: LogIndex, origin: NodeId, keys: KeySet) {
        self.last_committed = index;
        let entry = WindowEntry { index, origin, keys: keys.taken().len() as u32, apart: true };
        self.taken.take_apart(index, Arc::new(keys));
        self.push(entry);
    }

    fn push(&mut self, entry: WindowEntry) {
        self.window_keys += u64::from(entry.keys);
        self.window.push_back(entry);
        while self.window.len() as u64 > self.limits.window_entries || self.window_keys > self.limits.window_keys {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.window.pop_front() else { return };
        self.floor = oldest.index;
        self.window_keys -= u64::from(oldest.keys);
        if oldest.apart {
            return self.taken.forget_apart();
        }
        let keys = ..oldest.keys as usize;
        self.taken.forget(oldest.index, self.window_hashes.drain(keys).zip(self.window_modes.drain(keys)));
    }
}
