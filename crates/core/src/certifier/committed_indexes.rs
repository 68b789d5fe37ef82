//! The committed log indexes that this node's PostgreSQL may still have to be fed.
//!
//! They are no part of any verdict: each node keeps as many of them as its own PostgreSQL needs and drops the rest
//! ([`CommittedIndexes::forget_to`]).  A checkpoint contains them, because a restarted node must be able to say what
//! committed below the index from which it replays.

use crate::ids::LogIndex;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedIndexes {
    /// The committed index before the first of `indexes`.  Every committed index after it is known.
    pub(super) known_after: LogIndex,
    pub(super) indexes: VecDeque<LogIndex>,
}

impl CommittedIndexes {
    pub fn push(&mut self, committed: LogIndex) {
        assert!(committed > self.last(), "{committed} after {}", self.last());
        self.indexes.push_back(committed);
    }

    fn last(&self) -> LogIndex {
        self.indexes.back().copied().unwrap_or(self.known_after)
    }

    /// Every committed index after this one is known.
    pub fn known_after(&self) -> LogIndex {
        self.known_after
    }

    /// The committed indexes above `after`, each with the committed index before it; `None` if some of them are
    /// forgotten.
    pub fn after(&self, after: LogIndex) -> Option<impl Iterator<Item = (LogIndex, LogIndex)> + '_> {
        if after < self.known_after {
            return None;
        }
        let first = self.indexes.partition_point(|i| *i <= after);
        let mut previous = first.checked_sub(1).map_or(self.known_after, |i| self.indexes[i]);
        Some(self.indexes.range(first..).map(move |i| (*i, std::mem::replace(&mut previous, *i))))
    }

    /// How far a PostgreSQL must be, at least, if it can be fed only entries from `first` on: the last committed index
    /// below `first`, or [`Self::known_after`].
    pub fn feedable_from(&self, first: LogIndex) -> LogIndex {
        let below = self.indexes.partition_point(|i| *i < first);
        below.checked_sub(1).map_or(self.known_after, |i| self.indexes[i])
    }

    /// Whether `at` committed, and is still known.
    pub fn contains(&self, at: LogIndex) -> bool {
        self.indexes.binary_search(&at).is_ok()
    }

    /// The committed index before `at`, if `at` committed and is still known.
    pub fn previous_of(&self, at: LogIndex) -> Option<LogIndex> {
        let place = self.indexes.binary_search(&at).ok()?;
        Some(place.checked_sub(1).map_or(self.known_after, |i| self.indexes[i]))
    }

    /// Forgets all committed indexes up to `to`: they are safe in PostgreSQL.
    pub fn forget_to(&mut self, to: LogIndex) {
        while self.indexes.front().is_some_and(|i| *i <= to) {
            self.known_after = self.indexes.pop_front().expect("just seen");
        }
    }

    pub fn len(&self) -> usize {
        self.indexes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_answers_only_for_what_it_still_knows() {
        let mut h = CommittedIndexes::default();
        for i in [2, 5, 9] {
            h.push(LogIndex(i));
        }
        let all =
            |h: &CommittedIndexes, a| h.after(LogIndex(a)).map(|it| it.map(|(i, p)| (i.0, p.0)).collect::<Vec<_>>());
        assert_eq!(all(&h, 0), Some(vec![(2, 0), (5, 2), (9, 5)]));
        assert_eq!(all(&h, 5), Some(vec![(9, 5)]));
        h.forget_to(LogIndex(6));
        assert_eq!(all(&h, 4), None);
        assert_eq!(all(&h, 5), Some(vec![(9, 5)]));
        assert_eq!(h.previous_of(LogIndex(9)), Some(LogIndex(5)));
        assert_eq!(h.previous_of(LogIndex(5)), None);
        // Nothing committed between 5 and 9, so a PostgreSQL that shows 5 lacks nothing before 9.
        let from = |h: &CommittedIndexes, first| h.feedable_from(LogIndex(first)).0;
        assert_eq!([from(&h, 1), from(&h, 9), from(&h, 10), from(&h, 99)], [5, 5, 9, 9]);
    }
}
