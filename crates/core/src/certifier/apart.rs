//! The keys of one entry that has very many, in a table of their own.
//!
//! To look up a million keys among all that are taken, and then to take them, needs some tenths of a second, in which
//! nothing else is decided.  So they are gathered while the entry arrives in parts, some thousands at a time.  If the
//! entry commits, its table becomes a part of what is taken, as it is.  Nor is each of its keys looked up before that:
//! it suffices to look up among them what has been taken since the lowest of their bases, unless that is more.
//!
//! Invariants:
//! - No verdict depends on which keys are apart.  If something taken since may be in the way, every key is judged.
//! - An entry whose keys are apart takes at least one in [`TABLES`] of all keys that the window has room for, so no
//!   more tables than that are apart.
//! - What such an entry has only read takes no more room in its table than what it takes.

use super::fixed_map::FixedMap;
use super::Limits;
use crate::entry::{arrived_keys, Key, LockMode};
use crate::ids::{Base, TxnId};
use crate::parts::Arriving;

const TABLES: u64 = 64;
/// In the byte of a hash: the modes in which it was only read are above those in which it is taken.
const READ_SHIFT: u32 = 4;

/// For each mode: those that conflict with it, one bit each.
const CONFLICTS: [u8; 4] = {
    let (mut conflicts, mut mode) = ([0; 4], 0);
    while mode < 4 {
        let mut other = 0;
        while other < 4 {
            if LockMode::ALL[mode].conflicts_with(LockMode::ALL[other]) {
                conflicts[mode] |= 1 << other;
            }
            other += 1;
        }
        mode += 1;
    }
    conflicts
};

/// Whether an entry that takes so many keys has them apart.
pub(super) fn is_apart(keys: usize, limits: &Limits) -> bool {
    keys as u64 >= limits.window_keys.div_ceil(TABLES).max(1)
}

pub(super) struct KeySet {
    /// What the entry takes, in its order.
    hashes: Vec<u64>,
    modes: Vec<u8>,
    by_hash: FixedMap<u64, u8>,
    /// With those that it has only read.
    count: usize,
    lowest_base: Base,
}

impl KeySet {
    fn with_capacity(keys: usize) -> KeySet {
        KeySet {
            hashes: Vec::with_capacity(keys),
            modes: Vec::with_capacity(keys),
            by_hash: FixedMap::with_capacity_and_hasher(keys, Default::default()),
            count: 0,
            lowest_base: Base(u64::MAX),
        }
    }

    /// Of keys that are taken, without their bases.
    pub fn of_taken(taken: impl ExactSizeIterator<Item = (u64, u8)>) -> KeySet {
        let mut keys = KeySet::with_capacity(taken.len());
        taken.for_each(|(hash, mode)| keys.take(hash, mode));
        keys.count = keys.hashes.len();
        keys
    }

    fn take(&mut self, hash: u64, mode: u8) {
        self.hashes.push(hash);
        self.modes.push(mode);
        *self.by_hash.entry(hash).or_default() |= 1 << mode;
    }

    fn add(&mut self, key: Key, is_read: bool) {
        match is_read {
            true => *self.by_hash.entry(key.hash).or_default() |= 1 << (key.mode as u32 + READ_SHIFT),
            false => self.take(key.hash, key.mode as u8),
        }
        self.count += 1;
        self.lowest_base = self.lowest_base.min(key.base);
    }

    /// How many keys the entry has, with those that it has only read.
    pub fn count(&self) -> usize {
        self.count
    }

    /// If the entry commits.
    pub fn stays_apart(&self, limits: &Limits) -> bool {
        is_apart(self.hashes.len(), limits) && self.count <= 2 * self.hashes.len()
    }

    /// For how many keys there is room.
    pub fn capacity(&self) -> usize {
        self.by_hash.capacity()
    }

    pub fn lowest_base(&self) -> Base {
        self.lowest_base
    }

    /// What it takes.
    pub fn taken(&self) -> impl ExactSizeIterator<Item = (u64, u8)> + '_ {
        self.hashes.iter().copied().zip(self.modes.iter().copied())
    }

    pub fn has(&self, hash: u64) -> bool {
        self.by_hash.contains_key(&hash)
    }

    fn modes_of(&self, hash: u64) -> u8 {
        self.by_hash.get(&hash).copied().unwrap_or_default()
    }

    /// It takes this key in a mode that conflicts with `mode`.
    pub fn takes_against(&self, hash: u64, mode: LockMode) -> bool {
        self.modes_of(hash) & CONFLICTS[mode as usize] != 0
    }

    /// It takes this key, or has read it, in a mode that conflicts with mode number `mode`.
    pub fn minds(&self, hash: u64, mode: u8) -> bool {
        let modes = self.modes_of(hash);
        (modes | modes >> READ_SHIFT) & CONFLICTS[usize::from(mode)] != 0
    }
}

/// The keys of a transaction that arrives in parts, as far as they have arrived.
pub(super) struct Gathered {
    pub txn: TxnId,
    /// Empty if there are to be too few or too many of them.
    pub keys: KeySet,
    /// How many have been looked at.  What is no key is not among `keys`, and the entry is none then.
    seen: usize,
}

impl Gathered {
    /// A part of a transaction has arrived, which may be its first.
    pub fn follow(gathered: &mut Option<Gathered>, arriving: &Arriving, limits: &Limits) {
        let is_first = arriving.indexes.len() <= 1;
        let gathered = match gathered {
            Some(gathered) if gathered.txn == arriving.txn && !is_first => gathered,
            _ => gathered.insert(Gathered { txn: arriving.txn, keys: KeySet::with_capacity(0), seen: 0 }),
        };
        let Some((count, arrived)) = arrived_keys(arriving.bytes(), arriving.total(), gathered.seen) else { return };
        if !is_apart(count, limits) || count as u64 > limits.window_keys {
            return;
        }
        if gathered.seen == 0 {
            gathered.keys = KeySet::with_capacity(count);
        }
        for key in arrived {
            gathered.seen += 1;
            if let Some((key, is_read)) = key {
                gathered.keys.add(key, is_read);
            }
        }
    }
}
