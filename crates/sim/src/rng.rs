//! The one source of chance.  It is our own code, so that a seed means the same run for as long as this file stays as
//! it is.

/// SplitMix64: small, good enough to draw delays and faults from.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A measure of how often it has been drawn from.
    pub fn state(&self) -> u64 {
        self.0
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0);
        self.draw() % n
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn per_million(&mut self, n: u64) -> bool {
        self.below(1_000_000) < n
    }
}

/// Spreads `n` over the whole word.
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
