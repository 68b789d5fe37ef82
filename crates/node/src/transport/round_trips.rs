//! Round trips to a peer, over the last pings: one sample alone says more about a busy machine than about the distance.

use std::collections::VecDeque;
use std::time::Duration;

/// How many pings count: those of the last eight seconds, at one every half second.
const SAMPLES: usize = 16;

#[derive(Debug, Default)]
pub struct RoundTrips(VecDeque<Duration>);

impl RoundTrips {
    pub fn add(&mut self, sample: Duration) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// The distance itself: the sample that waited least on either machine.  `None`: nothing was measured yet.
    pub fn least(&self) -> Option<Duration> {
        self.0.iter().min().copied()
    }

    /// How long the next one will probably take.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_does_not_make_the_way_longer() {
        let mut trips = RoundTrips::default();
        assert_eq!((trips.least(), trips.median()), (None, None));
        let ms = Duration::from_millis;
        [20, 10, 45, 11, 12].into_iter().for_each(|sample| trips.add(ms(sample)));
        assert_eq!((trips.least(), trips.median()), (Some(ms(10)), Some(ms(12))));
        // The distance changes, and what was measured before is forgotten.
        (0..SAMPLES).for_each(|_| trips.add(ms(30)));
        assert_eq!((trips.least(), trips.median()), (Some(ms(30)), Some(ms(30))));
    }
}
