//! Where the leader is best: how long a COMMIT takes from each member under each possible leader, by measured round
//! trips, and whether a move is worth it.  `docs/decisions/2026-11-23-auto-leader.md` gives the reasons.
//!
//! A COMMIT from origin `o` with leader `l` waits until a majority of the voters has the entry and `o` knows that
//! (`consensus/notices.rs`).  The entry goes from `o` to `l` and on to each voter `v`, whose notice goes to `o`: that
//! takes half the sum of the round trips `o`-`l`, `l`-`v` and `v`-`o`.  With `v = l` and with `v = o` it is the round
//! trip to the leader.  A COMMIT never takes less than that, because `o` hands out only what it has itself.  With `o =
//! l` it is the round trip to `v`.
//!
//! This module knows no network and no clock.  Its numbers are whole, so that everybody who is given the same numbers
//! gets the same result.

use crate::ids::{NodeId, RegionId};
use std::collections::BTreeMap;

/// The round trip between two members, in microseconds; `None`: not measured yet.
pub type RoundTrips<'a> = &'a dyn Fn(NodeId, NodeId) -> Option<u32>;

/// What counts as the round trip between two members that cannot reach each other: more than any way by others takes.
pub const APART_US: u32 = 60_000_000;

/// An origin counts for at least one in this many of all commits, so that a region that is idle now is not forgotten.
const WEIGHT_LEAST: u64 = 20;
/// What a move must gain: both this share of what it was and this many microseconds.
const GAIN_PERCENT: u64 = 5;
const GAIN_US: u64 = 1_000;
/// A region may do worse by this much, the larger of the two, and still count as doing no worse: measuring is not
/// exact.
const SAME_PERCENT: u64 = 2;
const SAME_US: u64 = 500;
/// Each look forgets one in this many parts of a count; so a commit counts half as much after about 0.7 × this many
/// looks.
const FORGETS: u64 = 256;
/// How much one commit adds to a count: enough for forgetting to work in whole numbers.
const COMMIT: u64 = 1 << 16;

/// The voters, which members may lead, and how much each member commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// All voters: a majority is more than half of these.
    pub voters: Vec<NodeId>,
    /// Voters that nobody reaches: nothing comes from them.
    pub away: Vec<NodeId>,
    pub candidates: Vec<(NodeId, RegionId)>,
    /// How much each commits, in any unit.
    pub origins: Vec<(NodeId, u64)>,
}

/// One possible leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    pub region: RegionId,
    /// How long a COMMIT from each origin takes, in microseconds.
    pub commit_us: Vec<(NodeId, u64)>,
    /// Their mean, weighted by how much each origin commits.
    pub mean_us: u64,
}

impl Cluster {
    /// Every place for the leader, the best first; of equals, the one with the lowest id.  `None`: a round trip has not
    /// been measured yet, or no majority can be reached.
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
            // Without origins there is no mean.
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

/// Whether a move from `from` to `to` is worth it: either COMMITs gain clearly on average, or some origin gains clearly
/// and none loses, so that it is better whoever commits.  A move and its way back are never both worth it, nor are
/// moves in a circle: where `from` was clearly worse, it still is.
pub fn is_worth(from: &Place, to: &Place) -> bool {
    let gains = |from: u64, to: u64| to + GAIN_US < from && to * 100 < from * (100 - GAIN_PERCENT);
    let same = |from: u64, to: u64| to <= from + SAME_US.max(from * SAME_PERCENT / 100);
    let mut of_each = from.commit_us.iter().zip(&to.commit_us);
    let mut again = of_each.clone();
    gains(from.mean_us, to.mean_us) || again.all(|(a, b)| same(a.1, b.1)) && of_each.any(|(a, b)| gains(a.1, b.1))
}

/// Where commits have come from lately; every node counts them by the log.
#[derive(Default)]
pub struct Traffic(BTreeMap<NodeId, u64>);

impl Traffic {
    pub fn committed(&mut self, origin: NodeId) {
        let counted = self.0.entry(origin).or_default();
        *counted = counted.saturating_add(COMMIT);
    }

    /// Forgets a part of each count.  To be called at each look.
    pub fn forget(&mut self) {
        self.0.retain(|_, counted| {
            *counted -= counted.div_ceil(FORGETS);
            *counted >= COMMIT / FORGETS
        });
    }

    pub fn of(&self, origin: NodeId) -> u64 {
        // Divided, so that the sum over a hundred members does not overflow.
        self.0.get(&origin).map_or(0, |counted| counted / FORGETS)
    }
}

/// When to move: if another place has been better for a while, and the last move was not just now.
#[derive(Default)]
pub struct Patience {
    belongs: Option<(RegionId, bool)>,
    better: Option<(RegionId, u32)>,
    not_before: u64,
    /// How many moves in a row came as soon as they could after the one before.
    in_a_row: u32,
}

/// How often a rest is doubled, at most.
const DOUBLINGS_MAX: u32 = 6;

impl Patience {
    /// One look found that place better, or none.  Returns how many looks in a row have found it.
    pub fn finds(&mut self, better: Option<&RegionId>) -> u32 {
        self.better = better.map(|region| match self.better.take() {
            Some((same, looks)) if same == *region => (same, looks.saturating_add(1)),
            _ => (region.clone(), 1),
        });
        self.better.as_ref().map_or(0, |(_, looks)| *looks)
    }

    /// The leader now belongs in `region`, and `is_auto` says whether the cluster chose that.  After a move, no other
    /// comes for `rest` ticks, and for twice as long each time that a move comes right after the rest of the one
    /// before.  Otherwise leaders that see things differently would send each other to and fro, for example if one has
    /// restarted and has not counted the commits that the other has.
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

    /// Whether it is resting for longer than after a single move.
    pub fn goes_to_and_fro(&self, tick: u64) -> bool {
        self.in_a_row > 1 && self.rests(tick)
    }

    pub fn rests(&self, tick: u64) -> bool {
        tick < self.not_before
    }
}

#[cfg(test)]
mod tests;
