//! How many bytes of a large transaction may be under way.
//!
//! Whatever else its region proposes travels on the same links, and waits behind what is under way there.  So no more
//! should be than the links carry in a round trip: less leaves them idle, more makes a queue.  The times that parts
//! take, from their proposal until they are in the log, tell which of the two it is: where there is no queue, they are
//! close to the least that any part took.
//!
//! They are looked at for every other windowful, much as TCP Vegas does it (Brakmo, O'Malley, Peterson, 1994), and only
//! the least of them counts, which a hiccup of the machine does not make longer.

use std::collections::VecDeque;
use std::time::Duration;

/// What is under way in the beginning, while nothing is known.
const FIRST: usize = 256 << 10;
/// However long the times are, so many bytes in a second are tried: they may be long because of something else, as on
/// a machine that is busy.
const FLOOR_PER_S: f64 = (8 << 20) as f64;
const BUSY: f64 = 1.5;
/// After so many windowfuls with a queue, although there is as little under way as may be, the way itself may have
/// become longer.  So next to nothing is under way for one windowful, and all is measured anew.
const DOUBTS: u32 = 6;
/// A queue may cost so much: the larger of this and of a part of the time that there is without one.
const QUEUE: Duration = Duration::from_millis(4);
const QUEUE_PART: u32 = 4;

pub struct Pace {
    /// It is never more than this.
    max: usize,
    window: usize,
    /// Parts under way: where each ends, and when it was proposed.
    sent: VecDeque<(usize, Duration)>,
    /// The least time that any part took, and that one of this windowful took.
    least: Option<Duration>,
    least_now: Option<Duration>,
    /// This windowful is there when all up to here is; `None`: it is what is under way the next time.
    ends: Option<usize>,
    /// It does not count if it is the first with a new window: it met the queue of the one before.
    counts: bool,
    /// There has been a queue.
    found: bool,
    /// Windowfuls in a row at which the window was at its floor, and there was a queue.
    doubts: u32,
    /// Parts that end here or before have been proposed more than once.
    unsure: usize,
}

impl Pace {
    /// Parts that end at `unsure` or before may have been proposed already.
    pub fn new(max: usize, unsure: usize) -> Pace {
        let window = FIRST.min(max);
        Pace {
            max,
            window,
            sent: VecDeque::new(),
            least: None,
            least_now: None,
            ends: None,
            counts: false,
            found: false,
            doubts: 0,
            unsure,
        }
    }

    pub fn window(&self) -> usize {
        self.window
    }

    /// A part that ends at `end` was proposed.
    pub fn proposed(&mut self, end: usize, now: Duration) {
        self.sent.push_back((end, now));
    }

    /// Everything that has not arrived is proposed again.  Whether a part that arrives then is the first or the second
    /// of its kind is not known, so these tell nothing.
    pub fn again(&mut self) {
        if let Some((end, _)) = self.sent.back() {
            self.unsure = self.unsure.max(*end);
        }
        self.sent.clear();
        self.begin_anew(FIRST);
    }

    fn begin_anew(&mut self, window: usize) {
        self.window = window.min(self.max);
        (self.least, self.least_now, self.ends, self.counts) = (None, None, None, false);
        (self.found, self.doubts) = (false, 0);
    }

    /// The log has everything up to `upto`.
    pub fn arrived(&mut self, upto: usize, now: Duration) {
        let Some((last, _)) = self.sent.back() else { return };
        let ends = *self.ends.get_or_insert(*last);
        while let Some(&(end, at)) = self.sent.front().filter(|(end, _)| *end <= upto) {
            self.sent.pop_front();
            if end <= self.unsure {
                continue;
            }
            let took = now.saturating_sub(at);
            self.least = Some(self.least.map_or(took, |least| least.min(took)));
            self.least_now = Some(self.least_now.map_or(took, |least| least.min(took)));
        }
        if upto < ends {
            return;
        }
        self.ends = None;
        self.counts = !self.counts;
        if let (Some(least), Some(now), false) = (self.least, self.least_now.take(), self.counts) {
            self.adjust(least, now - least);
        }
    }

    fn adjust(&mut self, least: Duration, queue: Duration) {
        if queue > QUEUE.max(least / QUEUE_PART) {
            self.found = true;
            // What the links carry in the least time.
            let carried = self.window as f64 * least.as_secs_f64() / (least + queue).as_secs_f64();
            self.window = carried as usize;
        } else {
            self.window += self.window / if self.found { 16 } else { 1 };
        }
        let floor = (FLOOR_PER_S * least.mul_f64(BUSY).as_secs_f64()) as usize;
        self.doubts = if self.window < floor { self.doubts + 1 } else { 0 };
        self.window = self.window.max(floor).min(self.max);
        if self.doubts == DOUBTS {
            self.begin_anew(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 128 << 10;

    /// A link that carries so many bytes in a second, one after the other, and takes `way` there and back besides.
    /// Returns how long 64 MiB took, and how long the queue was on average.
    fn transfer(per_s: f64, way: Duration) -> (Duration, Duration) {
        let total = 64 << 20;
        let mut pace = Pace::new(4 << 20, 0);
        let (mut now, mut free, mut proposed, mut arrived) = (Duration::ZERO, Duration::ZERO, 0, 0);
        let mut under_way: VecDeque<(usize, Duration)> = VecDeque::new();
        let (mut waited, mut parts) = (Duration::ZERO, 0);
        while arrived < total {
            while proposed < total && proposed < arrived + pace.window() {
                proposed += PART;
                waited += free.saturating_sub(now);
                parts += 1;
                free = free.max(now) + Duration::from_secs_f64(PART as f64 / per_s);
                under_way.push_back((proposed, free + way));
                pace.proposed(proposed, now);
            }
            (arrived, now) = under_way.pop_front().expect("something is under way");
            pace.arrived(arrived, now);
        }
        (now, waited / parts)
    }

    #[test]
    fn it_fills_the_link_and_makes_no_long_queue() {
        for mbit in [100.0, 300.0, 1_000.0, 3_000.0] {
            for way in [1, 10, 50, 150].map(Duration::from_millis) {
                let per_s = mbit * 1e6 / 8.0;
                let (took, queue) = transfer(per_s, way);
                // What the link could carry, or 4 MiB in each round trip; and the beginning.
                let physical = (64 << 20) as f64 / per_s.min((4 << 20) as f64 / way.as_secs_f64());
                assert!(
                    took.as_secs_f64() < physical * 1.2 + 15.0 * way.as_secs_f64(),
                    "{mbit} Mbit/s, {way:?}: {took:?}, {physical} s are possible"
                );
                let part = Duration::from_secs_f64(PART as f64 / per_s);
                assert!(queue < way / 4 + part + QUEUE, "{mbit} Mbit/s, {way:?}: a queue of {queue:?}");
            }
        }
    }

    #[test]
    fn parts_that_were_proposed_twice_tell_nothing() {
        let mut pace = Pace::new(4 << 20, 0);
        let at = Duration::from_millis;
        (1..5).for_each(|end| pace.proposed(end, at(0)));
        pace.again();
        (1..9).for_each(|end| pace.proposed(end, at(49)));
        // The first ones come, then the second ones' time is over.
        pace.arrived(4, at(50));
        assert_eq!(pace.least, None);
        pace.arrived(8, at(99));
        assert_eq!(pace.least, Some(at(50)));
    }

    #[test]
    fn a_way_that_gets_longer_is_noticed() {
        let mut pace = Pace::new(4 << 20, 0);
        let (mut now, mut end) = (Duration::ZERO, 0);
        let mut round = |pace: &mut Pace, takes: Duration| {
            let from = end;
            while end < from + pace.window() {
                end += PART;
                pace.proposed(end, now);
            }
            now += takes;
            pace.arrived(end, now);
        };
        (0..20).for_each(|_| round(&mut pace, Duration::from_millis(10)));
        assert_eq!(pace.window(), 4 << 20);
        (0..60).for_each(|_| round(&mut pace, Duration::from_millis(200)));
        assert_eq!(pace.window(), 4 << 20);
    }
}
