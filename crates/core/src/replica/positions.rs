//! How far each PostgreSQL is, and how far the members are from each other: this node's part, and the others' as they say
//! themselves.

use super::{Host, Replica, Store};
use crate::consensus::Input;
use crate::ids::{LogIndex, NodeId};
use crate::router::Outbox;
use std::collections::BTreeMap;
use std::time::Duration;

/// Three positions of a peer that did not come: it is away.
pub const SILENT_AFTER: Duration = Duration::from_millis(1500);

/// What a member says of itself, twice a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What its PostgreSQL shows, and what of that is safe on disk, once that is known and unless it waits for a copy; the log
    /// below the least of the latter is no longer needed.
    pub shown: Option<(LogIndex, LogIndex)>,
    /// To the members that it is connected with: the least of the last seconds, in microseconds.
    pub round_trips: Vec<(NodeId, u32)>,
}

/// The ways of one member, in times of [`Host::now`].
#[derive(Debug)]
pub(super) struct Ways {
    pub round_trips: BTreeMap<NodeId, u32>,
    pub heard: Duration,
}

/// What a member has said of its PostgreSQL, in times of [`Host::now`].
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub applied: LogIndex,
    pub durable: LogIndex,
    /// Since when it shows no more than that.
    pub since: Duration,
    pub heard: Duration,
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// Applied and durable, once PostgreSQL has said so.  A node without one shows all that it has decided, and needs
    /// nothing of the log below its checkpoint.
    pub fn own_position(&self) -> Option<(LogIndex, LogIndex)> {
        match (self.router.applied(), self.router.durable()) {
            (Some(applied), Some(durable)) => Some((applied, durable)),
            _ if !self.settings.has_postgres => Some((self.certifier.decided(), self.checkpoint)),
            _ => None,
        }
    }

    /// A PostgreSQL that shows this gets the rest from this node's log; else its rows count for nothing, for a copy of another
    /// one takes its place.
    pub(super) fn can_bring_on(&self, applied: LogIndex) -> bool {
        !self.settings.has_postgres || applied >= self.feedable_from()
    }

    /// A member says how far it is.
    pub fn report<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, report: Report, host: &mut H) {
        let heard = host.now();
        if self.members.contains(peer) {
            let round_trips = report.round_trips.into_iter().collect();
            self.ways.insert(peer, Ways { round_trips, heard });
        }
        let Some((applied, durable)) = report.shown else {
            return self.step(Input::Position(peer, None), host);
        };
        let since = self.positions.get(&peer).filter(|s| s.applied == applied).map_or(heard, |s| s.since);
        self.positions.insert(peer, Shown { applied, durable, since, heard });
        self.step(Input::Position(peer, Some(self.shows(applied))), host);
    }

    /// Who shows the last committed transaction shows all that is decided.
    pub(super) fn shows(&self, applied: LogIndex) -> LogIndex {
        match applied >= self.certifier.last_committed() {
            true => applied.max(self.certifier.decided()),
            false => applied,
        }
    }

    /// Of the others, as they said last.
    pub fn positions(&self) -> impl Iterator<Item = (NodeId, Shown)> + '_ {
        self.positions.iter().map(|(id, shown)| (*id, *shown))
    }

    pub(super) fn heard_within(&self, peer: NodeId, now: Duration, within: Duration) -> Option<Shown> {
        self.positions.get(&peer).copied().filter(|shown| shown.heard + within > now)
    }

    pub(super) fn durable_of(&self, peer: NodeId) -> Option<LogIndex> {
        self.positions.get(&peer).map(|shown| shown.durable)
    }
}
