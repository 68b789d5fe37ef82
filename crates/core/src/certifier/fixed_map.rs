//! A hash map with a fixed hash, for look-ups only: it is never iterated, so its order cannot leak into a verdict.

use std::hash::{BuildHasherDefault, Hasher};

// clippy.toml bans hash maps because of their iteration order and random seeds; this one has neither.
#[allow(clippy::disallowed_types)]
pub(super) type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Mix>>;

/// Multiplies and folds.  The keys are hashes or counters already; this only spreads them over both ends of the word,
/// because the table takes its slot from the low bits and its tag from the high ones.
#[derive(Default)]
pub(super) struct Mix(u64);

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        let wide = u128::from((self.0.rotate_left(23)) ^ n) * u128::from(ODD);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}
