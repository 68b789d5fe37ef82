//! Who took each key last, for the keys of the window.
//!
//! Millions of keys are more than any cache has, and a bulk transaction looks up as many at once.  So the keys of an
//! entry that has many are put into the order of the largest table first: in a table of three million, a look-up then
//! takes a tenth of the time.  Nothing that anybody sees depends on that order.

use super::apart::KeySet;
use super::fixed_map::{FixedMap, Mix};
use crate::entry::{Key, LockMode};
use crate::ids::LogIndex;
use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;

/// For one key hash: the index of the last committed entry that took it, by lock mode.
type ByMode = [LogIndex; 4];

/// An entry with fewer keys has them looked up as they come.
const MANY: usize = 1_000;
/// So many keys are put into order at a time.
const CHUNK: usize = 1 << 18;

#[derive(Default)]
pub(super) struct Taken {
    by_hash: FixedMap<u64, ByMode>,
    /// Those of the entries that have them in a table of their own, oldest first.
    apart: VecDeque<(LogIndex, Arc<KeySet>)>,
}

impl Taken {
    /// The last entry that took this key in a mode that conflicts with `mode`; 0: none.  If there is none after
    /// `above`, it may be any other up to that.
    pub fn last(&self, hash: u64, mode: LockMode, above: LogIndex) -> LogIndex {
        let last = self.by_hash.get(&hash).map_or(LogIndex::ZERO, |taken| {
            let conflicting = LockMode::ALL.iter().filter(|other| other.conflicts_with(mode));
            conflicting.map(|other| taken[*other as usize]).fold(LogIndex::ZERO, LogIndex::max)
        });
        let mut later = self.apart.iter().rev().take_while(|(index, _)| *index > last.max(above));
        later.find(|(_, keys)| keys.takes_against(hash, mode)).map_or(last, |(index, _)| *index)
    }

    /// The entry at `index`, the last so far, takes these keys.
    pub fn take(&mut self, index: LogIndex, keys: impl ExactSizeIterator<Item = (u64, u8)>) {
        self.for_each(keys, |taken, key| taken.take_one(index, key));
    }

    /// The entry at `index`, the last so far, takes these keys, which stay apart.
    pub fn take_apart(&mut self, index: LogIndex, keys: Arc<KeySet>) {
        self.apart.push_back((index, keys));
    }

    /// All that is apart.
    pub fn apart(&self) -> &VecDeque<(LogIndex, Arc<KeySet>)> {
        &self.apart
    }

    /// The keys of the entries after `index`, as far as they are apart.
    pub fn apart_after(&self, index: LogIndex) -> impl Iterator<Item = &KeySet> + Clone {
        let from = self.apart.partition_point(|(at, _)| *at <= index);
        self.apart.range(from..).map(|(_, keys)| &**keys)
    }

    /// The keys of the entry at `index`, if they are apart.
    pub fn apart_at(&self, index: LogIndex) -> Option<&KeySet> {
        let at = self.apart.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(&self.apart[at].1)
    }

    /// The oldest entry of the window leaves it, and its keys are apart.
    pub fn forget_apart(&mut self) {
        self.apart.pop_front();
    }

    /// The entry at `index`, which took these keys, leaves the window.
    pub fn forget(&mut self, index: LogIndex, keys: impl ExactSizeIterator<Item = (u64, u8)>) {
        self.for_each(keys, |taken, key| taken.forget_one(index, key));
    }

    /// The first of these numbered keys, `count` in all, about which there is an objection; and what that is.
    pub fn first_objection<V>(
        &self,
        mut keys: impl Iterator<Item = (u32, Key)>,
        count: usize,
        objection: impl Fn(u32, Key) -> Option<V>,
    ) -> Option<V> {
        if count < MANY {
            return keys.find_map(|(number, key)| objection(number, key));
        }
        loop {
            let chunk: Vec<(u32, Key)> = keys.by_ref().take(CHUNK).collect();
            if chunk.is_empty() {
                return None;
            }
            let chunk = self.in_order(chunk, |(_, key)| key.hash).into_iter();
            let objections = chunk.filter_map(|(number, key)| Some((number, objection(number, key)?)));
            if let Some((_, first)) = objections.min_by_key(|(number, _)| *number) {
                return Some(first);
            }
        }
    }

    fn for_each(&mut self, mut keys: impl ExactSizeIterator<Item = (u64, u8)>, work: impl Fn(&mut Taken, (u64, u8))) {
        if keys.len() < MANY {
            return keys.for_each(|key| work(self, key));
        }
        while keys.len() > 0 {
            let chunk = self.in_order(keys.by_ref().take(CHUNK).collect(), |(hash, _)| *hash);
            chunk.into_iter().for_each(|key| work(self, key));
        }
    }

    fn take_one(&mut self, index: LogIndex, (hash, mode): (u64, u8)) {
        self.by_hash.entry(hash).or_default()[usize::from(mode)] = index;
    }

    /// A later entry may have taken the key since; then there is nothing to forget.
    fn forget_one(&mut self, index: LogIndex, (hash, mode): (u64, u8)) {
        let Some(taken) = self.by_hash.get_mut(&hash) else { return };
        if taken[usize::from(mode)] == index {
            taken[usize::from(mode)] = LogIndex::ZERO;
        }
        if *taken == ByMode::default() {
            self.by_hash.remove(&hash);
        }
    }

    /// The keys, about as the table has them in memory.
    fn in_order<T>(&self, mut keys: Vec<T>, hash: impl Fn(&T) -> u64) -> Vec<T> {
        // The standard library's table takes the slot from the low bits of the hash, and fills 7 of 8 slots.
        // What is in the order of a larger one comes by a smaller one in its order, too, several times.
        let apart = self.apart.iter().map(|(_, keys)| keys.capacity());
        let capacity = apart.fold(self.by_hash.capacity(), usize::max);
        let slots = (capacity as u64 / 7 * 8).next_power_of_two();
        keys.sort_unstable_by_key(|key| {
            let mut mix = Mix::default();
            mix.write_u64(hash(key));
            mix.finish() & (slots - 1)
        });
        keys
    }
}
