//! How far behind a PostgreSQL is, in time: how long ago the first entry that it does not show was decided in the
//! cluster.
//!
//! A node that was cut off decides all that it missed when it is back, so it cannot know that by itself.  While a
//! server is behind, the members tell each other a few of their times with their reports, as ages, so that no two
//! clocks have to agree.  An age is too low by the time that it takes to arrive, and never too high.
//!
//! Whoever was cut off cannot know of an entry that it lacks whether there is one.  A majority of the voters has it, so
//! at least two others do, unless there is one voter only.  As long as two others are heard, one of them alone is not
//! believed; and nobody tells what it has only heard of, or it would count as a second one.

use onetrip_core::replica::SILENT_AFTER;
use onetrip_core::{LogIndex, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// When there are more, every second one is dropped.  With one per tick that is after half an hour, and costs little
/// precision.
const MARKS_MAX: usize = 100_000;

/// What is younger than this is not told: nobody who hears of it later was away for long.
const TOLD_FROM: Duration = Duration::from_secs(2);
/// At most so many times are told at once.
pub const TOLD_MAX: usize = 16;

/// Entries, and how many milliseconds ago each was decided.
pub type Told = Vec<(LogIndex, u32)>;

/// Who tells its times, and to whom.
pub(super) struct Teller {
    pub member: NodeId,
    /// Up to where its server shows the log.
    pub shown: LogIndex,
    /// This node has decided the log up to there.
    pub decided: LogIndex,
    /// So many others know, at least, of each entry that this node lacks.
    pub knowing: usize,
}

/// Notes, coarsely, when which index was decided here, or elsewhere if that was clearly before.
///
/// Invariant: indexes rise, and times do not fall.
#[derive(Default)]
pub(super) struct LagClock {
    marks: VecDeque<(LogIndex, Instant)>,
    /// By this node.
    decided: LogIndex,
    forgotten: LogIndex,
    /// The last entry that each member has spoken of, and when it was last heard.
    known: BTreeMap<NodeId, (LogIndex, Instant)>,
}

impl LagClock {
    pub fn decided(&mut self, index: LogIndex, now: Instant) {
        self.decided = self.decided.max(index);
        if self.marks.back().is_none_or(|(last, _)| *last < index) {
            self.marks.push_back((index, now));
        }
        self.thin_out();
    }

    fn thin_out(&mut self) {
        if self.marks.len() > MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// For the other members: times that are spread over all that some PostgreSQL does not show, of what this node has
    /// decided.
    pub fn told(&self, now: Instant) -> Told {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= TOLD_FROM;
        let old = self.marks.partition_point(|(index, at)| *index <= self.decided && is_old(at));
        let told = |(index, at): &(LogIndex, Instant)| {
            let ms = now.saturating_duration_since(*at).as_millis();
            (*index, u32::try_from(ms).unwrap_or(u32::MAX))
        };
        // The first and the last of them, and what is evenly between.
        let (n, steps) = (old.min(TOLD_MAX), TOLD_MAX.min(old).saturating_sub(1).max(1));
        (0..n).map(|i| told(&self.marks[i * (old - 1) / steps])).collect()
    }

    /// Another member has told its times.
    pub fn learn(&mut self, from: &Teller, told: &Told, now: Instant) {
        let Teller { member, shown, decided, knowing } = *from;
        self.known.retain(|_, (_, heard)| now.saturating_duration_since(*heard) < SILENT_AFTER);
        let known = self.known.entry(member).or_insert((shown, now));
        *known = (told.iter().map(|(index, _)| *index).fold(known.0.max(shown), LogIndex::max), now);
        let mut known: Vec<LogIndex> = self.known.values().map(|(index, _)| *index).collect();
        known.sort_unstable();
        let last = decided.max(known[known.len().saturating_sub(knowing)]);
        self.marks.truncate(self.marks.partition_point(|(mark, _)| *mark <= last));
        for (index, ms) in told.iter().filter(|(index, _)| *index <= last) {
            let age = Duration::from_millis((*ms).into());
            let Some(at) = now.checked_sub(age) else { continue };
            let place = self.marks.partition_point(|(mark, _)| mark < index);
            // A little earlier is no news: the list would grow with every report.
            let known = self.marks.get(place).map(|(_, known)| *known);
            if known.is_some_and(|known| known <= at + (age / 16).max(TOLD_FROM / 4)) {
                continue;
            }
            if self.forgotten >= *index {
                continue;
            }
            match self.marks.get_mut(place) {
                Some((mark, known)) if mark == index => *known = at,
                _ => self.marks.insert(place, (*index, at)),
            }
            // What comes before it was decided no later.
            self.marks.iter_mut().take(place).rev().take_while(|(_, known)| *known > at).for_each(|(_, k)| *k = at);
        }
        self.thin_out();
    }

    /// To be called when every PostgreSQL shows `index`.
    pub fn forget_to(&mut self, index: LogIndex) {
        self.forgotten = self.forgotten.max(index);
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

    fn from(member: u32, shown: u64, decided: u64) -> Teller {
        Teller { member: NodeId(member), shown: LogIndex(shown), decided: LogIndex(decided), knowing: 2 }
    }

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

    /// Three and a half minutes of entries, which the one that was away decides within 17 s.
    #[test]
    fn who_was_cut_off_learns_from_the_others_since_when_it_lacks_what_it_shows_late() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let (mut there, mut away) = (LagClock::default(), LagClock::default());
        away.decided(LogIndex(10), at(0));
        away.forget_to(LogIndex(10));
        (1..=210).for_each(|s| there.decided(LogIndex(10 + s * 100), at(s)));
        let told = there.told(at(210));
        assert!((TOLD_MAX / 2..=TOLD_MAX).contains(&told.len()), "{}", told.len());
        // Before it has decided anything of it, and after it has.
        let learn = |away: &mut LagClock, told: &Told, now| away.learn(&from(1, 0, 0), told, now);
        learn(&mut away, &told, at(210));
        assert_eq!(away.behind(LogIndex(10), at(210)), Duration::from_secs(209));
        (1..=17).for_each(|s| away.decided(LogIndex(10 + s * 1_200), at(210 + s)));
        for shown in [10, 5_010, 10_010, 15_010] {
            let (true_lag, lag) = (there.behind(LogIndex(shown), at(227)), away.behind(LogIndex(shown), at(227)));
            assert!(lag <= true_lag && lag + Duration::from_secs(14) >= true_lag, "{shown}: {lag:?}, not {true_lag:?}");
        }
        // What it has not been told yet, it is told with the next report.
        let last = LogIndex(10 + 17 * 1_200);
        learn(&mut away, &there.told(at(227)), at(227));
        assert!(away.behind(last, at(227)) >= Duration::from_secs(17), "{:?}", away.behind(last, at(227)));
        // Told the same again it learns nothing, and what everybody shows it forgets for good.
        let marks = away.marks.clone();
        learn(&mut away, &there.told(at(227)), at(227));
        assert_eq!(away.marks, marks);
        away.forget_to(LogIndex(21_010));
        learn(&mut away, &told, at(227));
        assert!(away.marks.is_empty(), "{:?}", away.marks);
    }

    /// Goal: one member that goes bad does not make anybody's lag wrong with entries that do not exist.
    /// Method: two others tell their times, in either order; one of them, and later both, name an entry far beyond the
    /// log.
    #[test]
    fn an_entry_that_only_one_of_several_knows_does_not_count() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let (good, bad) = (2, 3);
        let true_times = vec![(LogIndex(20), 4_000)];
        let lie = [&true_times[..], &[(LogIndex(1 << 40), 3_600_000)]].concat();
        for order in [[good, bad], [bad, good]] {
            let mut clock = LagClock::default();
            clock.decided(LogIndex(10), at(4_000));
            for id in order {
                clock.learn(&from(id, 0, 10), if id == bad { &lie } else { &true_times }, at(4_010));
            }
            // It lacks what both know.  (Heard alone, the bad one is believed, and makes that look older, too.)
            if order[0] == good {
                assert_eq!(clock.behind(LogIndex(10), at(4_010)), Duration::from_secs(4));
            }
            assert_eq!(clock.behind(LogIndex(20), at(4_010)), Duration::ZERO, "{order:?}");
            clock.decided(LogIndex(30), at(4_011));
            clock.learn(&from(bad, 0, 30), &lie, at(4_011));
            assert_eq!(clock.behind(LogIndex(30), at(4_011)), Duration::ZERO, "{order:?}");
            // Now the other one shows that entry.
            clock.learn(&from(good, 1 << 40, 30), &Told::new(), at(4_011));
            clock.learn(&from(bad, 0, 30), &lie, at(4_011));
            assert_eq!(clock.behind(LogIndex(30), at(4_011)), Duration::from_secs(3_600), "{order:?}");
        }
        // What it has heard of and not decided, it does not pass on as if it knew.
        let mut credulous = LagClock::default();
        credulous.decided(LogIndex(10), at(4_000));
        credulous.learn(&from(bad, 0, 10), &lie, at(4_010));
        let told: Vec<LogIndex> = credulous.told(at(4_010)).into_iter().map(|(index, _)| index).collect();
        assert_eq!(told, [LogIndex(10)]);
        // Where there is nobody else to ask, because the other one is silent or the one is the only voter.
        let (mut alone, later) = (LagClock::default(), at(4_000) + SILENT_AFTER);
        alone.learn(&from(good, 0, 10), &true_times, at(4_000));
        alone.learn(&from(bad, 0, 10), &lie, later);
        assert_eq!(alone.behind(LogIndex(30), later), Duration::from_secs(3_600));
        let mut of_one_voter = LagClock::default();
        of_one_voter.learn(&from(good, 0, 10), &true_times, at(4_000));
        of_one_voter.learn(&Teller { knowing: 1, ..from(bad, 0, 10) }, &lie, at(4_000));
        assert_eq!(of_one_voter.behind(LogIndex(30), at(4_000)), Duration::from_secs(3_600));
    }

    #[test]
    fn nobody_who_keeps_up_is_told_anything() {
        let (mut clock, start) = (LagClock::default(), Instant::now());
        clock.decided(LogIndex(1), start);
        assert!(clock.told(start + Duration::from_millis(1_900)).is_empty());
        assert_eq!(clock.told(start + Duration::from_secs(2)), [(LogIndex(1), 2_000)]);
    }
}
