//! Numbers from a seed (SplitMix64): the same seed draws the same faults, on any machine and in any build.

#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `below` - 1.  It is slightly biased, which does not matter for what is drawn here.
    pub fn draw(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    pub fn index(&mut self, below: usize) -> usize {
        self.draw(below as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    /// A new source, for a task whose draws must not depend on how many numbers other tasks draw meanwhile.
    pub fn child(&mut self) -> Random {
        Random(self.next())
    }
}
