//! Which appends reach their follower through another member of its region, the relay, so that their entries cross to
//! that region once.  It decides; it sends nothing, and knows neither sockets nor a clock.
//!
//! Invariants:
//! - A follower is relayed to only over a hop that is short beside the way from here.
//! - What was relayed and not acknowledged is kept.  It goes to the follower directly when it is late, and before
//!   anything that takes another way: so appends do not overtake each other.
//! - Whoever is late is left alone for a while: it is no relay, and none is used for it.
//! - A region with voters has only voters for relays, so that no voter waits for a member that does not vote.

use onetrip_core::consensus::Message;
use onetrip_core::{NodeId, RegionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A follower's acknowledgement is late after one and a half round trips and this.
const PATIENCE: Duration = Duration::from_millis(25);
/// A hop may take this share of the way from here.
const HOP_SHARE: u32 = 10;
/// How long a member is the relay of its region, if another one can take its place then; and how long at most, if there
/// is never a moment without something on its way.
const TURN: Duration = Duration::from_secs(1);
const TURN_MAX: Duration = Duration::from_secs(10);
/// Who was late is left alone for so long, and twice as long each time that it is late again soon.
const ALONE_MIN: Duration = Duration::from_millis(250);
const ALONE_MAX: Duration = Duration::from_secs(64);
/// A follower that lacks more entries than this is catching up, with entries that no other follower gets now.
const IN_STEP: u64 = 256;
/// More than this is not kept for one follower.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// More appends than this are not remembered.  Raft sends half as many before it waits for an answer.
const SENT_MAX: usize = 8192;

/// What is known about the way to a member.  There is none to a member that is not connected, that has not been heard
/// of lately, or to which too much waits already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Round trips.
    pub least: Duration,
    pub median: Duration,
    /// Something waits here for the connection to take it.
    pub waits: bool,
}

/// How an append goes to its follower.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Route {
    /// To be sent directly to the same follower before.
    pub before: Vec<Message>,
    /// Sent to this member, which may be the follower itself; `None`: as any other message.
    pub relay: Option<NodeId>,
}

#[derive(Default)]
pub(super) struct Relays {
    regions: BTreeMap<RegionId, Region>,
    /// The members of `regions`.
    homes: BTreeMap<NodeId, RegionId>,
    term: u64,
}

/// A region with more than one member, and not this node's.
#[derive(Default)]
struct Region {
    members: BTreeMap<NodeId, Follower>,
    relay: Option<(NodeId, Instant)>,
    /// The last entry that was sent to any of them.
    front: u64,
}

#[derive(Default)]
struct Follower {
    voter: bool,
    /// Its own round trips to others, as it reports them.
    round_trips: BTreeMap<NodeId, Duration>,
    /// What it has not acknowledged.
    sent: VecDeque<Sent>,
    kept_bytes: usize,
    /// The last entry that was sent to it.
    sent_to: u64,
    acknowledged: Option<Instant>,
    /// Until when it is left alone, and for how long that was.
    alone: Option<(Instant, Duration)>,
}

struct Sent {
    last: u64,
    late_at: Instant,
    patience: Duration,
    /// Through whom, and what.
    relayed: Option<(NodeId, Message)>,
}

fn last_of(message: &Message) -> u64 {
    message.index + message.entries.len() as u64
}

fn bytes_of(message: &Message) -> usize {
    message.entries.iter().map(|entry| entry.data.len()).sum()
}

impl Relays {
    /// `members` are all but this node, which is in `region`.
    pub fn set(&mut self, region: &RegionId, members: impl Iterator<Item = (NodeId, RegionId, bool)>) {
        let mut regions: BTreeMap<RegionId, Region> = BTreeMap::new();
        for (id, home, voter) in members.filter(|(_, home, _)| home != region) {
            let before = self.regions.get_mut(&home).and_then(|region| region.members.remove(&id));
            let follower = Follower { voter, ..before.unwrap_or_default() };
            regions.entry(home).or_default().members.insert(id, follower);
        }
        regions.retain(|_, region| region.members.len() > 1);
        for (home, region) in &mut regions {
            if let Some(before) = self.regions.get(home) {
                region.front = before.front;
                region.relay = before.relay.filter(|(id, _)| region.members.contains_key(id));
            }
        }
        let home = |(home, region): (&RegionId, &Region)| -> Vec<_> {
            region.members.keys().map(|id| (*id, home.clone())).collect()
        };
        self.homes = regions.iter().flat_map(home).collect();
        self.regions = regions;
    }

    fn follower(&mut self, id: NodeId) -> Option<&mut Follower> {
        self.regions.get_mut(self.homes.get(&id)?)?.members.get_mut(&id)
    }

    /// Whether others are in this member's region, which is not this node's.
    pub fn shares_region(&self, id: NodeId) -> bool {
        self.homes.contains_key(&id)
    }

    /// Takes the round trips that a member reports.
    pub fn reported(&mut self, from: NodeId, round_trips: &[(NodeId, u32)]) {
        if let Some(follower) = self.follower(from) {
            let hop = |(to, us): &(NodeId, u32)| (*to, Duration::from_micros(u64::from(*us)));
            follower.round_trips = round_trips.iter().map(hop).collect();
        }
    }

    /// The way of an append that is sent now.
    pub fn route(&mut self, append: &Message, now: Instant, ways: impl Fn(NodeId) -> Option<Way>) -> Route {
        let to = NodeId(append.to as u32);
        let Some(region) = self.homes.get(&to).and_then(|home| self.regions.get_mut(home)) else {
            return Route::default();
        };
        if append.term != self.term {
            self.term = append.term;
            self.regions.values_mut().for_each(Region::forget);
            return self.route(append, now, ways);
        }
        let last = last_of(append);
        region.front = region.front.max(last);
        let relay = region.relay(now, &ways);
        let (way, waits) = (ways(to), relay.and_then(&ways).is_some_and(|way| way.waits));
        let hop = relay.filter(|relay| *relay != to).map(|relay| region.is_hop(relay, to, way));
        let in_step = append.index + IN_STEP >= region.front;
        let Some(follower) = region.members.get_mut(&to) else { return Route::default() };
        let may = hop.is_none_or(|short| {
            let few = follower.kept_bytes <= KEPT_BYTES_MAX;
            short && in_step && few && !follower.is_alone(now) && !follower.is_late(now, waits)
        });
        let relay = relay.filter(|_| may);
        let before = match follower.sent.iter().any(|s| s.relayed.as_ref().is_some_and(|(by, _)| Some(*by) != relay)) {
            true => follower.take_relayed(now),
            false => Vec::new(),
        };
        if !append.entries.is_empty() {
            if follower.sent.len() == SENT_MAX {
                follower.forget();
            }
            let relayed = relay.filter(|relay| *relay != to).map(|relay| (relay, append.clone()));
            follower.kept_bytes += relayed.as_ref().map_or(0, |(_, message)| bytes_of(message));
            follower.sent_to = last;
            let patience = way.map_or(Duration::ZERO, |way| way.median * 3 / 2) + PATIENCE;
            follower.sent.push_back(Sent { last, late_at: now + patience, patience, relayed });
        }
        Route { before, relay }
    }

    /// Takes a follower's answer to an append.
    pub fn answered(&mut self, answer: &Message, now: Instant) {
        let term = self.term;
        let Some(follower) = self.follower(NodeId(answer.from as u32)).filter(|_| answer.term == term) else { return };
        follower.acknowledged = Some(now);
        if answer.reject {
            // Raft looks for the place where their logs meet, and begins anew there.
            follower.forget();
            follower.alone = follower.alone.filter(|(until, _)| *until > now).or(Some((now + ALONE_MIN, ALONE_MIN)));
        }
        while follower.sent.front().is_some_and(|sent| sent.last <= answer.index) {
            let relayed = follower.sent.pop_front().and_then(|sent| sent.relayed);
            follower.kept_bytes -= relayed.map_or(0, |(_, message)| bytes_of(&message));
        }
    }

    /// When to call [`Relays::late`] next, if at all.
    pub fn next_late(&self) -> Option<Instant> {
        let followers = self.regions.values().flat_map(|region| region.members.values());
        followers.filter_map(|follower| follower.relayed().map(|(sent, _)| sent.late_at)).min()
    }

    /// What was relayed and should have been acknowledged by now, to be sent directly.
    pub fn late(&mut self, now: Instant, ways: impl Fn(NodeId) -> Option<Way>) -> Vec<Message> {
        self.regions.values_mut().flat_map(|region| region.late(now, &ways)).collect()
    }
}

impl Region {
    fn forget(&mut self) {
        self.front = 0;
        self.members.values_mut().for_each(Follower::forget);
    }

    /// Whether the way of `relay` to `to` is short beside this node's.
    fn is_hop(&self, relay: NodeId, to: NodeId, way: Option<Way>) -> bool {
        let hop = self.members.get(&relay).and_then(|follower| follower.round_trips.get(&to));
        hop.zip(way).is_some_and(|(hop, way)| *hop * HOP_SHARE <= way.least)
    }

    fn can_relay(&self, id: NodeId, now: Instant, ways: &impl Fn(NodeId) -> Option<Way>) -> bool {
        let Some(follower) = self.members.get(&id) else { return false };
        let votes = follower.voter || self.members.values().all(|other| !other.voter);
        let in_step = follower.sent_to + IN_STEP >= self.front;
        let mut others = self.members.keys().filter(|other| **other != id);
        votes
            && in_step
            && !follower.is_alone(now)
            && ways(id).is_some_and(|way| !follower.is_late(now, way.waits))
            && others.any(|other| self.is_hop(id, *other, ways(*other)))
    }

    fn relay(&mut self, now: Instant, ways: &impl Fn(NodeId) -> Option<Way>) -> Option<NodeId> {
        let present = self.relay.filter(|(id, _)| self.can_relay(*id, now, ways));
        if let Some((id, since)) = present {
            let busy = self.members.values().any(|follower| follower.relayed().is_some());
            if now < since + if busy { TURN_MAX } else { TURN } {
                return Some(id);
            }
        }
        let last = self.relay.map_or(NodeId(0), |(id, _)| id);
        let (upto, after): (Vec<NodeId>, Vec<NodeId>) = self.members.keys().partition(|id| **id <= last);
        let next = after.into_iter().chain(upto).find(|id| self.can_relay(*id, now, ways));
        self.relay = next.map(|id| (id, now));
        next
    }

    fn late(&mut self, now: Instant, ways: &impl Fn(NodeId) -> Option<Way>) -> Vec<Message> {
        let mut late = Vec::new();
        let ids: Vec<NodeId> = self.members.keys().copied().collect();
        for id in ids {
            let relayed = self.members[&id].relayed().filter(|(sent, _)| sent.late_at <= now);
            let Some(relay) = relayed.map(|(_, relay)| relay) else { continue };
            let waits = ways(relay).is_some_and(|way| way.waits);
            let by = self.members.get(&relay);
            let (moves, stands) = (by.is_some_and(|by| by.moves(now)), by.is_none_or(|by| by.is_late(now, waits)));
            let follower = self.members.get_mut(&id).expect("it was there");
            if waits && moves {
                follower.be_patient(now);
                continue;
            }
            late.extend(follower.take_relayed(now));
            // A relay that has acknowledged what it got itself is not to blame.
            if let Some(blamed) = self.members.get_mut(if stands { &relay } else { &id }) {
                blamed.leave_alone(now);
            }
        }
        late
    }
}

impl Follower {
    fn is_alone(&self, now: Instant) -> bool {
        self.alone.is_some_and(|(until, _)| now < until)
    }

    /// It has acknowledged something lately.
    fn moves(&self, now: Instant) -> bool {
        let patience = self.sent.front().map_or(Duration::ZERO, |sent| sent.patience);
        self.acknowledged.is_some_and(|at| now < at + patience)
    }

    /// It has not acknowledged in time what it was sent.  `waits`: the link to it is full, which is not its fault as
    /// long as it gets on.
    fn is_late(&self, now: Instant, waits: bool) -> bool {
        self.sent.front().is_some_and(|sent| sent.late_at <= now) && !(waits && self.moves(now))
    }

    fn leave_alone(&mut self, now: Instant) {
        let again = self.alone.filter(|(until, time)| now < *until + *time);
        let time = again.map_or(ALONE_MIN, |(_, time)| (time * 2).min(ALONE_MAX));
        if !self.is_alone(now) {
            self.alone = Some((now + time, time));
        }
    }

    /// The first of what was relayed, and through whom.
    fn relayed(&self) -> Option<(&Sent, NodeId)> {
        self.sent.iter().find_map(|sent| sent.relayed.as_ref().map(|(by, _)| (sent, *by)))
    }

    /// What was relayed, which is to be sent directly now.
    fn take_relayed(&mut self, now: Instant) -> Vec<Message> {
        self.kept_bytes = 0;
        self.be_patient(now);
        self.sent.iter_mut().filter_map(|sent| sent.relayed.take()).map(|(_, message)| message).collect()
    }

    fn be_patient(&mut self, now: Instant) {
        for sent in self.sent.iter_mut().filter(|sent| sent.relayed.is_some()) {
            sent.late_at = now + sent.patience;
        }
    }

    fn forget(&mut self) {
        self.sent.clear();
        (self.kept_bytes, self.sent_to) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const HERE: NodeId = NodeId(1);
    const ROUND_TRIP: Duration = Duration::from_millis(40);
    const LATE: Duration = Duration::from_millis(60 + 25);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn near(_: NodeId) -> Option<Way> {
        Some(Way { least: ROUND_TRIP, median: ROUND_TRIP, waits: false })
    }

    /// Three voters in the region "far", 1 ms from each other.
    fn three() -> Relays {
        let mut relays = Relays::default();
        let member = |id: u32| (NodeId(id), RegionId::from("far"), true);
        relays.set(&RegionId::from("here"), [2, 3, 4].map(member).into_iter());
        for id in 2..=4u32 {
            relays.reported(NodeId(id), &[2, 3, 4].map(|to| (NodeId(to), 1_000)));
        }
        relays
    }

    fn append(to: u32, index: u64) -> Message {
        let mut append =
            Message { from: HERE.0.into(), to: to.into(), term: 1, index, log_term: 1, ..Message::default() };
        let data = Bytes::from_static(b"entry");
        append.mut_entries().push(raft::eraftpb::Entry { index: index + 1, term: 1, data, ..Default::default() });
        append
    }

    fn acknowledge(relays: &mut Relays, from: u32, index: u64, now: Instant) {
        relays.answered(&Message { from: from.into(), term: 1, index, ..Message::default() }, now);
    }

    /// Sends entry `index + 1` to all; returns through whom each got it.
    fn round(relays: &mut Relays, index: u64, now: Instant) -> [Option<NodeId>; 3] {
        [2, 3, 4].map(|to| {
            let route = relays.route(&append(to, index), now, near);
            assert_eq!(route.before, [], "{to} at {index}");
            route.relay
        })
    }

    fn all(by: u32) -> [Option<NodeId>; 3] {
        [Some(NodeId(by)); 3]
    }

    #[test]
    fn all_of_a_region_are_served_by_one_of_them_and_it_takes_turns() {
        let (mut relays, mut now) = (three(), Instant::now());
        let mut by = Vec::new();
        for index in 0..40 {
            let routes = round(&mut relays, index, now);
            if index > 0 {
                assert!(routes.iter().all(|relay| *relay == routes[0]), "{routes:?}");
                by.extend(routes[0]);
            }
            (2..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now + ROUND_TRIP));
            now += ms(100);
        }
        by.dedup();
        assert_eq!(by.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 3, 4, 2], "a turn is a second");
        // Nobody waits.
        assert!(relays.late(now + ms(1_000), near).is_empty());
        assert_eq!(relays.next_late(), None);
    }

    /// Goal: a relay that stands still delays what is on its way, and nothing else.
    #[test]
    fn what_a_relay_does_not_hand_on_goes_directly_and_the_next_one_takes_over() {
        let (mut relays, start) = (three(), Instant::now());
        round(&mut relays, 0, start);
        (2..=4).for_each(|from| acknowledge(&mut relays, from, 1, start));
        assert_eq!(round(&mut relays, 1, start), all(2));
        assert_eq!(relays.next_late(), Some(start + LATE));
        assert!(relays.late(start + LATE - ms(1), near).is_empty());
        let late = relays.late(start + LATE, near);
        assert_eq!(late.iter().map(|m| (m.to, m.index)).collect::<Vec<_>>(), [(3, 1), (4, 1)]);
        (3..=4).for_each(|from| acknowledge(&mut relays, from, 2, start + LATE + ROUND_TRIP));
        // As long as it acknowledges nothing it is not tried again.
        for index in 2..200 {
            let now = start + LATE + ms(index * 50);
            let routes = round(&mut relays, index, now);
            assert!(!routes.contains(&Some(NodeId(2))), "{routes:?} at {index}");
            assert!(routes[1].is_some() && routes[1] == routes[2]);
            (3..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now + ROUND_TRIP));
            assert!(relays.late(now + ROUND_TRIP, near).iter().all(|m| m.to == 2));
        }
        let now = start + ms(20_000);
        acknowledge(&mut relays, 2, 200, now);
        let served = (200..240).map(|index| {
            let now = now + ms(index * 100);
            let routes = round(&mut relays, index, now);
            (2..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now));
            routes[1]
        });
        assert!(served.collect::<Vec<_>>().contains(&Some(NodeId(2))), "it takes its turns again");
    }

    /// Goal: a follower that is slow itself costs no relay its turn, and is served directly, ever longer.
    #[test]
    fn a_follower_that_is_late_although_its_relay_is_not_is_served_directly() {
        let (mut relays, mut now) = (three(), Instant::now());
        round(&mut relays, 0, now);
        (2..=4).for_each(|from| acknowledge(&mut relays, from, 1, now));
        let (mut relayed, mut sent) = (0, 0);
        for index in 1..400 {
            let routes = round(&mut relays, index, now);
            assert!(routes[0].is_some() && routes[0] != Some(NodeId(4)) || routes[2].is_some(), "{routes:?}");
            sent += 1;
            relayed += usize::from(routes[2].is_some_and(|relay| relay != NodeId(4)));
            (2..=3).for_each(|from| acknowledge(&mut relays, from, index + 1, now + ROUND_TRIP));
            let late = relays.late(now + LATE, near);
            assert!(late.iter().all(|m| m.to == 4), "{late:?}");
            acknowledge(&mut relays, 4, index + 1, now + LATE + ms(1));
            now += ms(100);
        }
        assert!(relayed < sent / 5, "{relayed} of {sent} were sent twice");
    }

    #[test]
    fn what_was_relayed_goes_before_what_takes_another_way() {
        let (mut relays, now) = (three(), Instant::now());
        round(&mut relays, 0, now);
        (2..=4).for_each(|from| acknowledge(&mut relays, from, 1, now));
        assert_eq!(round(&mut relays, 1, now), all(2));
        // The relay is not connected any more.
        let ways = |id: NodeId| near(id).filter(|_| id != NodeId(2));
        let route = relays.route(&append(3, 2), now, ways);
        assert_eq!(route.before.iter().map(|m| (m.to, m.index)).collect::<Vec<_>>(), [(3, 1)]);
        assert_ne!(route.relay, Some(NodeId(2)));
        assert!(relays.route(&append(3, 3), now, ways).before.is_empty(), "once");
    }

    #[test]
    fn nobody_is_served_over_a_hop_that_is_long_beside_the_way() {
        let (mut relays, now) = (three(), Instant::now());
        relays.reported(NodeId(2), &[(NodeId(3), 4_001), (NodeId(4), 4_000)]);
        for index in 0..3 {
            let routes = round(&mut relays, index, now);
            assert!(index == 0 || routes == [Some(NodeId(2)), None, Some(NodeId(2))], "{routes:?}");
            (2..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now));
        }
        // Not connected to each other.
        (2..=4).for_each(|id| relays.reported(NodeId(id), &[]));
        assert_eq!(round(&mut relays, 3, now), [None; 3]);
    }

    #[test]
    fn no_voter_waits_for_a_member_that_does_not_vote() {
        let (mut relays, mut now) = (three(), Instant::now());
        let member = |id: u32| (NodeId(id), RegionId::from("far"), id == 3);
        relays.set(&RegionId::from("here"), [2, 3, 4].map(member).into_iter());
        for index in 0..50 {
            let routes = round(&mut relays, index, now);
            assert!(index == 0 || routes == all(3), "{routes:?}");
            (2..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now));
            now += ms(100);
        }
        acknowledge(&mut relays, 2, 50, now);
        relays.route(&append(3, 50), now, near);
        assert_eq!(relays.route(&append(2, 50), now + LATE, near).relay, None, "the only voter is late");
    }

    #[test]
    fn whoever_catches_up_is_served_directly() {
        let (mut relays, now) = (three(), Instant::now());
        for index in 1_000..1_003 {
            round(&mut relays, index, now);
            (2..=4).for_each(|from| acknowledge(&mut relays, from, index + 1, now));
        }
        assert_eq!(relays.route(&append(4, 10), now, near), Route::default());
        // What the new leader of a later term sends is another log.
        let anew = |to| Message { term: 2, ..append(to, 9_000) };
        assert_eq!(relays.route(&anew(4), now, near), Route::default());
        assert_eq!(relays.route(&anew(2), now, near).relay, Some(NodeId(4)));
    }

    /// A full link is not the relay's fault, as long as that gets on.
    #[test]
    fn nothing_is_sent_twice_because_the_link_is_full() {
        let (mut relays, start) = (three(), Instant::now());
        round(&mut relays, 0, start);
        (2..=4).for_each(|from| acknowledge(&mut relays, from, 1, start));
        assert_eq!(round(&mut relays, 1, start), all(2));
        assert_eq!(round(&mut relays, 2, start), all(2));
        let full = |id: NodeId| near(id).map(|way| Way { waits: true, ..way });
        acknowledge(&mut relays, 2, 2, start + LATE - ms(1));
        assert!(relays.late(start + LATE, full).is_empty());
        assert_eq!(relays.late(start + LATE * 2, full).len(), 4, "it gets on no more");
    }

    #[test]
    fn alone_in_a_region_or_in_this_one_nobody_needs_a_relay() {
        let mut relays = Relays::default();
        let members = [(NodeId(2), RegionId::from("here")), (NodeId(3), RegionId::from("far"))];
        relays.set(&RegionId::from("here"), members.into_iter().map(|(id, region)| (id, region, true)));
        assert!(relays.homes.is_empty());
        assert_eq!(relays.route(&append(2, 1), Instant::now(), near), Route::default());
    }
}
