//! How far behind a PostgreSQL is, in time: how long ago this node decided the first entry that PostgreSQL does not
//! show.

use onetrip_core::LogIndex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When there are more, every second one is dropped.  With one per tick that is after half an hour, and costs little
/// precision.
const MARKS_MAX: usize = 100_000;

/// Notes, coarsely, when which index was decided here.
#[derive(Default)]
pub(super) struct LagClock {
    marks: VecDeque<(LogIndex, Instant)>,
}

impl LagClock {
    pub fn decided(&mut self, index: LogIndex, now: Instant) {
        if self.marks.back().is_none_or(|(last, _)| *last < index) {
            self.marks.push_back((index, now));
        }
        if self.marks.len() > MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// To be called when every PostgreSQL shows `index`.
    pub fn forget_to(&mut self, index: LogIndex) {
        while self.marks.front().is_some_and(|(mark, _)| *mark <= index) {
            self.marks.pop_front();
        }
    }

    pub fn behind(&self, shown: LogIndex, now: Instant) -> Duration {
        let first = self.marks.partition_point(|(mark, _)| *mark <= shown);
        self.marks.get(first).map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_the_age_of_the_first_entry_that_is_not_shown() {
        let (mut clock, start) = (LagClock::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        for n in 1..=5 {
            clock.decided(LogIndex(n * 10), at(n));
        }
        clock.decided(LogIndex(50), at(9));
        let behind = |clock: &LagClock, shown| clock.behind(LogIndex(shown), at(9)).as_secs();
        assert_eq!([behind(&clock, 0), behind(&clock, 10), behind(&clock, 49), behind(&clock, 50)], [8, 7, 4, 0]);
        clock.forget_to(LogIndex(20));
        assert_eq!([behind(&clock, 0), behind(&clock, 25)], [6, 6]);
    }
}
