//! What transactions hold that are prepared and not ended yet (PREPARE TRANSACTION).
//!
//! A prepared transaction has been certified, and may be committed at any later index, by anybody, from any region.  So
//! until it is ended nothing may commit that would have conflicted with it.  Its keys are kept here, and no base is: an
//! entry that wants one of them in a conflicting mode aborts, whatever it has seen.
//!
//! Invariants:
//! - A name is held by one transaction at most: it is one of the keys.
//! - The keys of two held transactions do not conflict.
//! - If an entry is left out of every PostgreSQL, what conflicts with it cannot be committed any more, since it may have
//!   seen its changes.
//! - What is held follows from the log alone, is part of each checkpoint, and does not end with the node, PostgreSQL or
//!   region that it came from.
//! - Held keys and transactions are limited; a PREPARE TRANSACTION that finds no room aborts, and nothing else does.

use super::fixed_map::FixedMap;
use crate::entry::{Entry, LockMode};
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
    pub(super) keys: Vec<(u64, LockMode)>,
}

#[derive(Default)]
pub(super) struct Held {
    pub by_name: BTreeMap<u64, Prepared>,
    /// For each hash that is held: by whom, by name, and the strongest mode.  For look-ups only.
    holders: FixedMap<u64, Vec<(u64, LockMode)>>,
    keys: usize,
}

impl Held {
    /// The first key of the entry that is held by a prepared transaction, and by which.
    pub fn in_the_way(&self, entry: &Entry) -> Option<(u32, &Prepared)> {
        if self.by_name.is_empty() {
            return None;
        }
        let mut keys = (0..).zip(entry.keys());
        keys.find_map(|(number, key)| {
            let holders = self.holders.get(&key.hash)?.iter();
            let held = holders.filter(|(_, mode)| mode.conflicts_with(key.mode));
            let first = held.filter_map(|(name, _)| self.by_name.get(name)).min_by_key(|held| held.index)?;
            Some((number, first))
        })
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
        let keys: Vec<(u64, LockMode)> = entry.keys().map(|key| (key.hash, key.mode)).collect();
        self.put(keys[0].0, Prepared { index, node: entry.txn.node, lost_to: LogIndex::ZERO, keys });
    }

    pub fn put(&mut self, name: u64, prepared: Prepared) {
        self.keys += prepared.keys.len();
        for (hash, mode) in &prepared.keys {
            let holders = self.holders.entry(*hash).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == name) {
                Some((_, strongest)) => *strongest = (*strongest).max(*mode),
                None => holders.push((name, *mode)),
            }
        }
        self.by_name.insert(name, prepared);
    }

    pub fn release(&mut self, name: u64) -> Option<Prepared> {
        let prepared = self.by_name.remove(&name)?;
        self.keys -= prepared.keys.len();
        for (hash, _) in &prepared.keys {
            let Some(holders) = self.holders.get_mut(hash) else { continue };
            holders.retain(|(holder, _)| *holder != name);
            if holders.is_empty() {
                self.holders.remove(hash);
            }
        }
        Some(prepared)
    }

    /// The entry at `index` leaves out the one at `left_out` everywhere, which took these keys.  What that one prepared
    /// is not held any more; and whatever conflicts with it may have seen its changes.
    pub fn leave_out(&mut self, left_out: LogIndex, index: LogIndex, keys: &[(u64, LockMode)]) {
        let prepared = self.by_name.iter().find(|(_, held)| held.index == left_out).map(|(name, _)| *name);
        if let Some(name) = prepared {
            self.release(name);
        }
        for (hash, mode) in keys {
            let Some(holders) = self.holders.get(hash) else { continue };
            for (name, _) in holders.iter().filter(|(_, held)| held.conflicts_with(*mode)) {
                if let Some(held) = self.by_name.get_mut(name) {
                    held.lost_to = index;
                }
            }
        }
    }

    /// Everything prepared after the entry at `left_out` may have seen its changes, which the one at `index` leaves out.
    pub fn lose_after(&mut self, left_out: LogIndex, index: LogIndex) {
        self.by_name.values_mut().filter(|held| held.index > left_out).for_each(|held| held.lost_to = index);
    }
}
