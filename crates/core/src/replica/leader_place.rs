//! Where the leader should be (`placement`).  Every node works it out from the round trips that all members report to
//! each other; the leader acts on it if the cluster chooses the leader's place by itself.
//!
//! Each node looks every half second.  To move, the leader proposes a command that changes the preferred region in the
//! table of members, and then follows the table as if an operator had changed it (`consensus/leadership.rs`).  So all
//! nodes agree on where the leader belongs, in an election too.

use super::{Host, Replica, Store, SILENT_AFTER};
use crate::consensus::{Input, Role, PROMOTE_LAG_MAX};
use crate::ids::{NodeId, RegionId};
use crate::members::{Change, Command};
use crate::placement::{is_worth, Cluster, Place, APART_US};
use crate::router::Outbox;
use std::time::Duration;

impl<S: Store, O: Outbox> Replica<S, O> {
    /// Every place for the leader, the best first, as far as this node knows; `None`: a round trip has not been
    /// measured yet.
    pub fn places(&self, now: Duration) -> Option<Vec<Place>> {
        // Both ends measure; the lower value contains less waiting.
        let of = |a: NodeId, b: NodeId| {
            let (there, back) = (self.way(a, b, now), self.way(b, a, now));
            there.into_iter().chain(back).min()
        };
        // They have found others, and not each other: the link between them is cut.
        let apart = |a: NodeId, b: NodeId| {
            let found = [a, b].into_iter().filter(|id| self.is_there(*id, now)).all(|id| self.has_measured(id));
            found.then_some(APART_US)
        };
        self.cluster(now).places(&|a, b| of(a, b).or_else(|| apart(a, b)))
    }

    /// What `from` measures at present.
    fn way(&self, from: NodeId, to: NodeId, now: Duration) -> Option<u32> {
        self.ways.get(&from).filter(|_| self.is_there(from, now)).and_then(|ways| ways.round_trips.get(&to)).copied()
    }

    fn has_measured(&self, id: NodeId) -> bool {
        self.ways.get(&id).is_some_and(|ways| !ways.round_trips.is_empty())
    }

    /// It reports to this node, or another member that does so reaches it.  If only the leader does not, there may be a
    /// better place for the leader.
    fn is_reached(&self, id: NodeId, now: Duration) -> bool {
        self.is_there(id, now) || self.ways.keys().any(|other| self.way(*other, id, now).is_some())
    }

    /// The leader is where it belongs, and no other place is better.
    pub fn leader_is_settled(&self, now: Duration) -> bool {
        let leader = self.leadership.and_then(|l| l.leader).filter(|id| self.members.is_preferred(*id));
        leader.is_some_and(|leader| {
            !self.members.leader_is_auto
                || self.places(now).is_some_and(|places| {
                    places.iter().any(|place| place.node == leader) && better(&places, leader).is_none()
                })
        })
    }

    /// Members disagree about where the leader belongs and have moved it to and fro, so it stays where it is for a
    /// while.
    pub fn leader_goes_to_and_fro(&self) -> bool {
        self.patience.goes_to_and_fro(self.tick)
    }

    fn is_there(&self, id: NodeId, now: Duration) -> bool {
        id == self.id || self.ways.get(&id).is_some_and(|ways| ways.heard + SILENT_AFTER > now)
    }

    /// Its PostgreSQL has reported lately, and shows nearly everything that is decided.
    fn keeps_up(&self, id: NodeId, now: Duration) -> bool {
        let applied = match id == self.id {
            true => self.own_position().map(|(applied, _)| applied),
            false => self.heard_within(id, now, SILENT_AFTER).map(|shown| shown.applied),
        };
        applied.is_some_and(|applied| self.shows(applied).0 + PROMOTE_LAG_MAX >= self.certifier.decided().0)
    }

    fn cluster(&self, now: Duration) -> Cluster {
        let leader = self.leadership.and_then(|l| l.leader);
        let there = || self.members.members.iter().filter(|m| self.is_there(m.id, now));
        let stays = |id: NodeId| self.members.members.iter().all(|m| m.replaces != Some(id));
        // The present leader is always a candidate, since all others are compared with it.
        let able = |id: NodeId| self.consensus.could_take_over(id) && self.keeps_up(id, now);
        let may_lead = |id: NodeId| Some(id) == leader || stays(id) && able(id);
        let candidates = there().filter(|m| self.members.is_data_voter(m.id) && may_lead(m.id));
        // A read replica should commit nothing; if commits have come from one all the same, they count.
        let weight = |id: NodeId| self.traffic.of(id);
        let reached = self.members.members.iter().filter(|m| self.is_reached(m.id, now));
        let origins = reached.filter(|m| self.members.is_data_voter(m.id) || weight(m.id) > 0);
        Cluster {
            voters: self.members.voters().map(|m| m.id).collect(),
            away: self.members.voters().filter(|m| !self.is_reached(m.id, now)).map(|m| m.id).collect(),
            candidates: candidates.map(|m| (m.id, m.region.clone())).collect(),
            origins: origins.map(|m| (m.id, weight(m.id))).collect(),
        }
    }

    /// To be called every `POSITION_TICKS` ticks.
    pub(super) fn place_leader<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.traffic.forget();
        let places = self.places(host.now());
        self.consensus.set_places(places.iter().flatten().map(|place| place.node).collect());
        let better = places.and_then(|places| self.better_place(&places));
        let looks = self.patience.finds(better.as_ref());
        let Some(region) = better.filter(|_| looks >= self.settings.leader_looks) else { return };
        let command = Command { expected_version: self.members.version, change: Change::MoveLeader(region) };
        self.step(Input::Change(command), host);
    }

    /// Where the leader should move, if this node leads and the cluster chooses the place by itself.
    fn better_place(&self, places: &[Place]) -> Option<RegionId> {
        let members = &self.members;
        let decides = self.consensus.leadership().role == Role::Leader
            && members.leader_is_auto
            && !self.patience.rests(self.tick)
            && !self.consensus.conf().is_joint();
        // This leader is about to hand over to a member that the table prefers.
        let moves = !members.is_preferred(self.id) && places.iter().any(|place| members.is_preferred(place.node));
        match decides && !moves {
            true => better(places, self.id),
            false => None,
        }
    }
}

/// The region of the best place, if it is worth a move from where `leader` is.
fn better(places: &[Place], leader: NodeId) -> Option<RegionId> {
    let (best, from) = (places.first()?, places.iter().find(|place| place.node == leader)?);
    (best.region != from.region && is_worth(from, best)).then(|| best.region.clone())
}
