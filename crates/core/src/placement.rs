//! Where the leader is best: how long a COMMIT takes from each member under each possible leader, by measured round trips, and
//! whether that is worth a move.  `docs/decisions/2026-11-23-auto-leader.md` says why so.
//!
//! What a commit from origin `o` waits for with leader `l` (`consensus/notices.rs`): a majority of the voters has the entry,
//! and `o` knows it.  The entry goes from `o` to `l` and on to each voter `v`, whose notice goes to `o`: half the sum of the
//! round trips `o`-`l`, `l`-`v` and `v`-`o`.  With `v = l` and with `v = o` that is the round trip to the leader, which it
//! never falls below, for `o` hands out only what it has itself.  With `o = l` it is the round trip to `v`.
//!
//! It knows no network and no clock; numbers are whole, so that everybody who is given the same comes to the same.

use crate::ids::{NodeId, RegionId};
use std::collections::BTreeMap;

/// Of two members, in microseconds; `None`: not measured.
pub type RoundTrips<'a> = &'a dyn Fn(NodeId, NodeId) -> Option<u32>;

/// An origin counts at least for this part of all commits, so that a region that is idle now is not forgotten.
const WEIGHT_LEAST: u64 = 20;
/// What a move must gain: so much of what it was, and so many microseconds.
const GAIN_PERCENT: u64 = 5;
const GAIN_US: u64 = 1_000;
/// By so much a region may do worse and count as doing no worse: measuring is not exact.
const SAME_PERCENT: u64 = 2;
const SAME_US: u64 = 500;
/// A commit counts half as much after so many looks, about (0.7 of the inverse of what is forgotten at each).
const FORGETS: u64 = 256;
/// One commit, in the unit that is counted in: fine enough that forgetting a part of it works in whole numbers.
const COMMIT: u64 = 1 << 16;

/// The voters, who may lead, and who commits how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// All that a majority is counted of.
    pub voters: Vec<NodeId>,
    /// Those that cannot be reached: nothing comes from them.
    pub away: Vec<NodeId>,
    pub candidates: Vec<(NodeId, RegionId)>,
    /// In any unit.
    pub origins: Vec<(NodeId, u64)>,
}

/// One possible leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    pub region: RegionId,
    /// How long a COMMIT from each origin takes, in microseconds.
    pub commit_us: Vec<(NodeId, u64)>,
    /// Their mean, by what each commits.
    pub mean_us: u64,
}

impl Cluster {
    /// Every place for the leader, the best first; of equals the one with the lowest number.  `None`: a round trip is not
    /// measured yet, or no majority can be reached.
    pub fn places(&self, round_trips: RoundTrips) -> Option<Vec<Place>> {
        let weights = self.weights();
        let total: u128 = weights.iter().map(|(_, weight)| u128::from(*weight)).sum();
        let place = |(node, region): &(NodeId, RegionId)| {
            let mut commit_us = Vec::with_capacity(weights.len());
            let mut sum = 0u128;
            for (origin, weight) in &weights {
                let us = self.commit_us(*origin, *node, round_trips)?;
                commit_us.push((*origin, us));
                sum += u128::from(us) * u128::from(*weight);
            }
            // Without an origin nothing is asked of a place.
            let mean_us = sum.checked_div(total)? as u64;
            Some(Place { node: *node, region: region.clone(), commit_us, mean_us })
        };
        let mut places = self.candidates.iter().map(place).collect::<Option<Vec<Place>>>()?;
        places.sort_by_key(|place| (place.mean_us, place.node));
        Some(places)
    }

    fn weights(&self) -> Vec<(NodeId, u64)> {
        let all: u64 = self.origins.iter().map(|(_, weight)| *weight).sum();
        self.origins.iter().map(|(origin, weight)| (*origin, (*weight).max(all / WEIGHT_LEAST).max(1))).collect()
    }

    /// How long a COMMIT from `origin` takes when `leader` leads.
    fn commit_us(&self, origin: NodeId, leader: NodeId, round_trips: RoundTrips) -> Option<u64> {
        let between = |a: NodeId, b: NodeId| if a == b { Some(0) } else { round_trips(a, b).map(u64::from) };
        let to_leader = between(origin, leader)?;
        let there = self.voters.iter().filter(|voter| !self.away.contains(voter));
        let by_way_of = there.map(|voter| Some((to_leader + between(leader, *voter)? + between(*voter, origin)?) / 2));
        let mut told = by_way_of.collect::<Option<Vec<u64>>>()?;
        told.sort_unstable();
        told.get(self.voters.len() / 2).map(|majority| to_leader.max(*majority))
    }
}

/// Whether `to` is worth a move from `from`: commits gain clearly on the whole; or some origin does and none loses, so that it is
/// better whoever commits.  Never both ways, nor around a circle: what `from` was clearly worse in, it still is.
pub fn is_worth(from: &Place, to: &Place) -> bool {
    let gains = |from: u64, to: u64| to + GAIN_US < from && to * 100 < from * (100 - GAIN_PERCENT);
    let same = |from: u64, to: u64| to <= from + SAME_US.max(from * SAME_PERCENT / 100);
    let mut of_each = from.commit_us.iter().zip(&to.commit_us);
    let mut again = of_each.clone();
    gains(from.mean_us, to.mean_us) || again.all(|(a, b)| same(a.1, b.1)) && of_each.any(|(a, b)| gains(a.1, b.1))
}

/// Where commits have come from lately; every node counts them in the log.
#[derive(Default)]
pub struct Traffic(BTreeMap<NodeId, u64>);

impl Traffic {
    pub fn committed(&mut self, origin: NodeId) {
        let counted = self.0.entry(origin).or_default();
        *counted = counted.saturating_add(COMMIT);
    }

    /// To be called at each look.
    pub fn forget(&mut self) {
        self.0.retain(|_, counted| {
            *counted -= counted.div_ceil(FORGETS);
            *counted >= COMMIT / FORGETS
        });
    }

    pub fn of(&self, origin: NodeId) -> u64 {
        // Sums of what a hundred members have do not overflow.
        self.0.get(&origin).map_or(0, |counted| counted / FORGETS)
    }
}

/// When to move: what is better has been so for a while, and the last move was not just now.
#[derive(Default)]
pub struct Patience {
    belongs: Option<(RegionId, bool)>,
    better: Option<(RegionId, u32)>,
    not_before: u64,
    /// Moves, each as soon as it could be after the one before.
    in_a_row: u32,
}

/// A rest is doubled so often at most.
const DOUBLINGS_MAX: u32 = 6;

impl Patience {
    /// One look found `better`, or nothing.  How often in a row it has found that now.
    pub fn finds(&mut self, better: Option<&RegionId>) -> u32 {
        self.better = better.map(|region| match self.better.take() {
            Some((same, looks)) if same == *region => (same, looks.saturating_add(1)),
            _ => (region.clone(), 1),
        });
        self.better.as_ref().map_or(0, |(_, looks)| *looks)
    }

    /// The leader belongs there now, and who says so.  After a move of the cluster's own none other comes for `rest` ticks; for
    /// twice as long each time that one came right behind the rest before.  Leaders that see things differently, since one has
    /// restarted and has not counted what the other has, would send each other to and fro.
    pub fn belongs(&mut self, region: &RegionId, is_auto: bool, (tick, rest): (u64, u64)) {
        let before = self.belongs.replace((region.clone(), is_auto));
        match before {
            Some((_, was_auto)) if was_auto != is_auto => (self.not_before, self.in_a_row) = (0, 0),
            Some((other, _)) if other != *region => {
                let soon = self.not_before > 0 && tick < self.not_before + rest;
                self.in_a_row = if soon { (self.in_a_row + 1).min(DOUBLINGS_MAX) } else { 0 };
                self.not_before = tick + (rest << self.in_a_row);
            }
            _ => return,
        }
        self.better = None;
    }

    /// It rests for longer than after a single move.
    pub fn goes_to_and_fro(&self, tick: u64) -> bool {
        self.in_a_row > 1 && self.rests(tick)
    }

    pub fn rests(&self, tick: u64) -> bool {
        tick < self.not_before
    }
}

#[cfg(test)]
mod tests;
