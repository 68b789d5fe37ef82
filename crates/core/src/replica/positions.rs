//! How far each PostgreSQL is, and how far apart the members are: what this node reports, and what the others have
//! reported of themselves.

use super::{Host, Replica, Store};
use crate::consensus::Input;
use crate::ids::{LogIndex, NodeId};
use crate::router::Outbox;
use std::collections::BTreeMap;
use std::time::Duration;

/// After three reports of a peer have not come, it counts as away.
pub const SILENT_AFTER: Duration = Duration::from_millis(1500);

/// What a member reports of itself, twice a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The index that its PostgreSQL shows, and the index up to which that is safe on disk; `None` until both are
    /// known, and while it waits for a copy.  The log is not needed any more below the lowest of all members' durable
    /// indexes.
    pub shown: Option<(LogIndex, LogIndex)>,
    /// The lowest round trip of the last seconds to each member that it is connected to, in microseconds.
    pub round_trips: Vec<(NodeId, u32)>,
}

/// The round trips that one member reported last, and when they were heard ([`Host::now`]).
#[derive(Debug)]
pub(super) struct Ways {
    pub round_trips: BTreeMap<NodeId, u32>,
    pub heard: Duration,
}

/// What a member reported last of its PostgreSQL. Times are those of [`Host::now`].
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub applied: LogIndex,
    pub durable: LogIndex,
    /// Since when it has shown no more than that.
    pub since: Duration,
    pub heard: Duration,
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// The applied and durable index, once PostgreSQL has reported them.  A node without a PostgreSQL counts as showing
    /// everything that it has decided, and needs nothing of the log below its checkpoint.
    pub fn own_position(&self) -> Option<(LogIndex, LogIndex)> {
        match (self.router.applied(), self.router.durable()) {
            (Some(applied), Some(durable)) => Some((applied, durable)),
            _ if !self.settings.has_postgres => Some((self.certifier.decided(), self.checkpoint)),
            _ => None,
        }
    }

    /// Whether a PostgreSQL that shows `applied` can get the rest from this node's log.  If not, what it shows counts
    /// for nothing, because a copy of another one is going to replace it.
    pub(super) fn can_bring_on(&self, applied: LogIndex) -> bool {
        !self.settings.has_postgres || applied >= self.feedable_from()
    }

    /// A member reports how far it is.
    pub fn report<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, report: Report, host: &mut H) {
        // One that was under way when its sender was removed would stay for ever.
        if !self.members.contains(peer) {
            return;
        }
        let (heard, round_trips) = (host.now(), report.round_trips.into_iter().collect());
        self.ways.insert(peer, Ways { round_trips, heard });
        let Some((applied, durable)) = report.shown else {
            return self.step(Input::Position(peer, None), host);
        };
        let since = self.positions.get(&peer).filter(|s| s.applied == applied).map_or(heard, |s| s.since);
        self.positions.insert(peer, Shown { applied, durable, since, heard });
        self.step(Input::Position(peer, Some(self.shows(applied))), host);
    }

    /// A PostgreSQL that shows the last committed entry shows everything that is decided.
    pub(super) fn shows(&self, applied: LogIndex) -> LogIndex {
        match applied >= self.certifier.last_committed() {
            true => applied.max(self.certifier.decided()),
            false => applied,
        }
    }

    /// How far the other members' PostgreSQL are, as last reported.
    pub fn positions(&self) -> impl Iterator<Item = (NodeId, Shown)> + '_ {
        self.positions.iter().map(|(id, shown)| (*id, *shown))
    }

    /// For how long each other member that has reported something has not reported anything.
    pub fn silent(&self, now: Duration) -> impl Iterator<Item = (NodeId, Duration)> + '_ {
        let others = self.ways.iter().filter(|(id, _)| **id != self.id);
        others.map(move |(id, ways)| (*id, now.saturating_sub(ways.heard)))
    }

    /// The round trips between members that have been measured, each under the lower id first.  Both ends measure; the
    /// lower value contains less waiting.
    pub fn round_trips(&self) -> impl Iterator<Item = ((NodeId, NodeId), u32)> + '_ {
        let mut least = BTreeMap::new();
        for (from, ways) in &self.ways {
            for (to, us) in &ways.round_trips {
                let known = least.entry((*from.min(to), *from.max(to))).or_insert(*us);
                *known = (*known).min(*us);
            }
        }
        least.into_iter()
    }

    pub(super) fn heard_within(&self, peer: NodeId, now: Duration, within: Duration) -> Option<Shown> {
        self.positions.get(&peer).copied().filter(|shown| shown.heard + within > now)
    }

    pub(super) fn durable_of(&self, peer: NodeId) -> Option<LogIndex> {
        self.positions.get(&peer).map(|shown| shown.durable)
    }
}
