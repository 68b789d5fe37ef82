//! Keys that are reserved for a node whose transactions lose again and again.
//!
//! A region far away loses on a hot row for as long as others commit it more often than once in that region's round
//! trip.  So each node's losses are counted by key, and when there are enough of them, the keys of the entry that lost
//! last are reserved: other nodes' entries abort on them, until the node has committed, or has had the time for it.
//! All of this follows from the log alone, and time is counted in entries.
//!
//! Invariants:
//! - A *loss* is an entry that aborted because of a conflict.  It counts for its node and the key that it lost on,
//!   until an entry of that node commits with the key, in at least that mode; or the key is reserved; or the node does
//!   not lose again within the time for which the key would be reserved, which means that it has given up.
//! - What an entry has only read does not count here: nothing is reserved for readers, who may lack the right to keep
//!   writers away, and they need not wait for what is reserved for others, since they take nothing.
//! - With its [`LOSSES`]th loss an entry has the key that it lost on reserved, and those of what it changes: all of
//!   them, in its modes, or none.  None, if any of its keys is reserved for another node in a conflicting mode.  So of
//!   two nodes that need the same two keys, none waits for the other with one of them.  The tables that it uses are not
//!   reserved: DDL does not have to wait.
//! - Each key is given back when an entry of the node commits with it, in at least that mode; else after [`TRIES`]
//!   times the length of the try that lost, from the base of its key to its own index, within [`SPAN`].  Nothing makes
//!   that longer, or the mode stronger.  So a node that gives up keeps others away for a bounded number of entries,
//!   aborted ones included.
//! - What was committed stays committed, and an entry that leaves another one out is not held up.

use crate::entry::{Entry, Key, LockMode};
use crate::ids::{LogIndex, NodeId};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// So many losses in a row on one key reserve it.  A far region then takes up one round trip in so many plus one.
const LOSSES: u32 = 3;
/// How often a transaction could be tried while its keys are reserved: the first try may still have begun too early.
const TRIES: u64 = 3;
/// For so many entries keys are reserved, at least and at most.
const SPAN: RangeInclusive<u64> = 10..=1_500;
/// An entry with more keys than this has none of them reserved.
const ENTRY_KEYS_MAX: usize = 1_000;
/// Reserved keys, and keys with losses.  If there are more, nothing more is reserved, or counting begins anew.
const KEYS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Losses {
    pub count: u32,
    /// The strongest mode in which the key was wanted.
    pub mode: LockMode,
    /// The last index at which another loss counts with these.
    pub until: LogIndex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub mode: LockMode,
    /// The entry that lost.
    pub by: LogIndex,
    /// The last index at which the key is reserved.
    pub until: LogIndex,
}

type OfNode = (u64, NodeId);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    pub losses: BTreeMap<OfNode, Losses>,
    /// Some may be over already.
    pub keys: BTreeMap<OfNode, Reservation>,
}

impl Reserved {
    /// Of all keys that are reserved or have losses.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.keys.keys().chain(self.losses.keys()).map(|(hash, _)| *hash)
    }

    /// The first key of the entry at `index` that is reserved for another node, by which entry, and for whom.
    pub fn in_the_way(&self, index: LogIndex, entry: &Entry) -> Option<(u32, LogIndex, NodeId)> {
        if self.keys.is_empty() {
            return None;
        }
        let mut keys = (0..).zip(entry.keys()).filter(|(number, _)| entry.takes(*number));
        keys.find_map(|(number, key)| {
            let (by, node) = self.for_another(index, entry.txn.node, &key)?;
            Some((number, by, node))
        })
    }

    /// For whom else the key is reserved at this index, so that `node` may not take it; of several, for whom first.
    fn for_another(&self, index: LogIndex, node: NodeId, key: &Key) -> Option<(LogIndex, NodeId)> {
        let its = self.keys.range((key.hash, NodeId(0))..=(key.hash, NodeId(u32::MAX)));
        its.filter(|((_, of), r)| *of != node && r.until >= index && r.mode.conflicts_with(key.mode))
            .map(|((_, of), r)| (r.by, *of))
            .min()
    }

    /// The entry at `index` lost because of `key`.
    pub fn lost(&mut self, index: LogIndex, entry: &Entry, key: Key) {
        let node = entry.txn.node;
        // From the locks to the decision; the base of a key that lost is below its entry.
        let span = (index.0 - key.base.0).saturating_mul(TRIES).clamp(*SPAN.start(), *SPAN.end());
        let until = LogIndex(index.0 + span);
        let before = self.losses.get(&(key.hash, node)).filter(|before| before.until >= index);
        let losses = Losses {
            count: before.map_or(0, |before| before.count).saturating_add(1),
            mode: before.map_or(key.mode, |before| before.mode.max(key.mode)),
            until,
        };
        self.losses.insert((key.hash, node), losses);
        if losses.count >= LOSSES && entry.key_count() <= ENTRY_KEYS_MAX {
            self.reserve(index, entry, key, until);
        }
        if self.losses.len() > KEYS_MAX {
            self.losses.clear();
        }
    }

    fn reserve(&mut self, index: LogIndex, entry: &Entry, lost_on: Key, until: LogIndex) {
        let node = entry.txn.node;
        self.keys.retain(|_, r| r.until > index);
        let is_free = entry.taken().all(|key| self.for_another(index.next(), node, &key).is_none());
        if !is_free || self.keys.len() + entry.key_count() > KEYS_MAX {
            return;
        }
        for key in entry.taken().filter(|key| key.mode >= LockMode::NoKeyUpdate || key.hash == lost_on.hash) {
            self.losses.remove(&(key.hash, node));
            let its = self.keys.entry((key.hash, node)).or_insert(Reservation { mode: key.mode, by: index, until });
            if its.by == index {
                its.mode = its.mode.max(key.mode);
            }
        }
    }

    /// The entry has committed.
    pub fn committed(&mut self, entry: &Entry) {
        if self.losses.is_empty() && self.keys.is_empty() {
            return;
        }
        for key in entry.taken() {
            let of = (key.hash, entry.txn.node);
            if self.losses.get(&of).is_some_and(|losses| losses.mode <= key.mode) {
                self.losses.remove(&of);
            }
            if self.keys.get(&of).is_some_and(|r| r.mode <= key.mode) {
                self.keys.remove(&of);
            }
        }
    }

    /// `node` is not a member any more.
    pub fn end(&mut self, node: NodeId) {
        self.losses.retain(|(_, of), _| *of != node);
        self.keys.retain(|(_, of), _| *of != node);
    }
}
