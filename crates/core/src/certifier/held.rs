//! What transactions hold that are prepared and not ended yet (PREPARE TRANSACTION).
//!
//! A prepared transaction has been certified, and may be committed at any later index, by anybody, from any region.  So
//! until it is ended nothing may commit that would have conflicted with it.  Its keys are kept here, and no base is: an
//! entry that wants one of them in a conflicting mode aborts, whatever it has seen.
//!
//! Keys of what it has only read are kept as well, and marked: an entry that takes one of them in a conflicting mode
//! aborts, since what was read must still be so where the transaction is committed.  An entry that has only read what
//! it is going to change comes before it, and does not mind, unless it is to be prepared itself.  Two reads never
//! conflict.
//!
//! Invariants:
//! - A name is held by one transaction at most: it is one of the keys.
//! - The keys of two held transactions that may be committed do not conflict.
//! - If an entry is left out of every PostgreSQL, what conflicts with it cannot be committed any more, since it may
//!   have seen its changes.
//! - What is left out is not held, and is held again if it is not to be left out after all and its name is free.
//! - What is held follows from the log alone, is part of each checkpoint, and does not end with the node, PostgreSQL or
//!   region that it came from.
//! - Held keys and transactions are limited; a PREPARE TRANSACTION that finds no room aborts, and nothing else does.

use super::fixed_map::FixedMap;
use crate::entry::{Entry, EntryKind, Key, LockMode};
use crate::ids::{LogIndex, NodeId};
use std::collections::BTreeMap;

/// Prepared transactions, at most.
pub(super) const TRANSACTIONS_MAX: usize = 10_000;
/// Keys of all of them together, at most.
const KEYS_MAX: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Of the entry that prepared it.
    pub index: LogIndex,
    /// The node that it came from.
    pub node: NodeId,
    /// The entry that left something out which it may have seen, 0 if none: it can only be rolled back.
    pub(super) lost_to: LogIndex,
    /// The first is its name.
    pub(super) keys: Vec<HeldKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldKey {
    pub hash: u64,
    pub mode: LockMode,
    /// The transaction has only read what it stands for.
    pub read: bool,
}

impl HeldKey {
    fn meets(self, mode: LockMode, read: bool) -> bool {
        !(self.read && read) && self.mode.conflicts_with(mode)
    }
}

impl Prepared {
    fn name(&self) -> u64 {
        self.keys[0].hash
    }

    /// What it takes where it is committed.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u64, LockMode)> + '_ {
        self.keys.iter().filter(|key| !key.read).map(|key| (key.hash, key.mode))
    }
}

#[derive(Default)]
pub(super) struct Held {
    pub by_name: BTreeMap<u64, Prepared>,
    /// For each hash that is held: by whom, by name, and the strongest mode of what is taken and of what was read.  For
    /// look-ups only.
    holders: FixedMap<u64, Vec<(u64, HeldKey)>>,
    keys: usize,
    /// What was prepared and is left out, by the index of the entry that prepared it: if that is not to be left out
    /// after all, it is held again.
    pub aside: BTreeMap<LogIndex, Prepared>,
}

impl Held {
    /// The first key of the entry that is held by a prepared transaction, and by which.
    pub fn in_the_way(&self, entry: &Entry) -> Option<(u32, &Prepared)> {
        if self.by_name.is_empty() {
            return None;
        }
        let minds_reads = entry.kind == EntryKind::Prepare;
        let mut keys = (0..).zip(entry.keys()).filter(|(number, _)| minds_reads || entry.takes(*number));
        keys.find_map(|(number, key)| {
            let holders = self.holders.get(&key.hash)?.iter();
            let held = holders.filter(|(_, held)| held.meets(key.mode, !entry.takes(number)));
            let first = held.filter_map(|(name, _)| self.by_name.get(name)).min_by_key(|held| held.index)?;
            Some((number, first))
        })
    }

    /// How many keys are held.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Of all keys that are held.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_name.values().flat_map(|held| held.keys.iter().map(|key| key.hash))
    }

    pub fn has_room_for(&self, entry: &Entry) -> bool {
        self.by_name.len() < TRANSACTIONS_MAX && self.keys + entry.key_count() <= KEYS_MAX
    }

    /// What is held under the only key of an entry that is to end it, if its author has seen that it is held.
    pub fn ended_by(&self, entry: &Entry) -> Option<(u64, &Prepared)> {
        let name = entry.keys().next().filter(|_| entry.key_count() == 1)?;
        let held = self.by_name.get(&name.hash)?;
        (held.index.0 <= name.base.0).then_some((name.hash, held))
    }

    /// The entry at `index` is prepared.
    pub fn prepare(&mut self, index: LogIndex, entry: &Entry) {
        let held = |(number, key): (u32, Key)| HeldKey { hash: key.hash, mode: key.mode, read: !entry.takes(number) };
        let keys: Vec<HeldKey> = (0..).zip(entry.keys()).map(held).collect();
        self.put(Prepared { index, node: entry.txn.node, lost_to: LogIndex::ZERO, keys });
    }

    pub fn put(&mut self, prepared: Prepared) {
        let name = prepared.name();
        self.keys += prepared.keys.len();
        for key in &prepared.keys {
            let holders = self.holders.entry(key.hash).or_default();
            match holders.iter_mut().find(|(holder, held)| *holder == name && held.read == key.read) {
                Some((_, strongest)) => strongest.mode = strongest.mode.max(key.mode),
                None => holders.push((name, *key)),
            }
        }
        self.by_name.insert(name, prepared);
    }

    pub fn release(&mut self, name: u64) -> Option<Prepared> {
        let prepared = self.by_name.remove(&name)?;
        self.keys -= prepared.keys.len();
        for HeldKey { hash, .. } in &prepared.keys {
            let Some(holders) = self.holders.get_mut(hash) else { continue };
            holders.retain(|(holder, _)| *holder != name);
            if holders.is_empty() {
                self.holders.remove(hash);
            }
        }
        Some(prepared)
    }

    /// The entry at `index` leaves out one that took these keys: whatever conflicts with it may have seen its changes.
    pub fn lose(&mut self, index: LogIndex, keys: &[(u64, LockMode)]) {
        for (hash, mode) in keys {
            let Some(holders) = self.holders.get(hash) else { continue };
            for (name, _) in holders.iter().filter(|(_, held)| held.meets(*mode, false)) {
                if let Some(held) = self.by_name.get_mut(name) {
                    held.lost_to = index;
                }
            }
        }
    }

    /// What was prepared at this index is left out everywhere: it is not held any more.
    pub fn set_aside(&mut self, prepared_at: LogIndex) {
        let name = self.by_name.iter().find(|(_, held)| held.index == prepared_at).map(|(name, _)| *name);
        let Some(prepared) = name.and_then(|name| self.release(name)) else { return };
        self.aside.insert(prepared_at, prepared);
        while self.aside.values().map(|held| held.keys.len()).sum::<usize>() > KEYS_MAX {
            self.aside.pop_first();
        }
    }

    pub fn take_back(&mut self, prepared_at: LogIndex) -> Option<Prepared> {
        self.aside.remove(&prepared_at)
    }

    /// It is left out no more, says the entry at `index`.  If something has taken one of its keys since, committed or
    /// prepared, it can only be rolled back.
    pub fn put_back(&mut self, mut prepared: Prepared, is_taken: bool, index: LogIndex) {
        let name = prepared.name();
        if self.by_name.contains_key(&name) {
            return;
        }
        let is_held = |key: &HeldKey| {
            let holders = self.holders.get(&key.hash);
            holders.is_some_and(|holders| holders.iter().any(|(_, held)| held.meets(key.mode, key.read)))
        };
        if is_taken || prepared.keys.iter().any(is_held) {
            prepared.lost_to = index;
        }
        self.put(prepared);
    }

    /// All that was prepared after the entry at `left_out` may have seen its changes, which the one at `index` leaves
    /// out.
    pub fn lose_after(&mut self, left_out: LogIndex, index: LogIndex) {
        self.by_name.values_mut().filter(|held| held.index > left_out).for_each(|held| held.lost_to = index);
    }
}
