//! How far each PostgreSQL is, this node's and the others', and how far apart the members are.

use super::{CoreThread, TICK};
use crate::status::Position;
use onetrip_core::consensus::Input;
use onetrip_core::{LogIndex, NodeId};
use std::time::{Duration, Instant};

/// Election timeouts have at least so many round trips to the farthest voter, but are never longer than 10 s.
const ELECTION_ROUND_TRIPS: f64 = 5.0;
const ELECTION_TICKS_MAX: usize = 500;
/// Three positions of a peer that did not come.
pub(super) const SILENT_AFTER: Duration = Duration::from_millis(1500);

impl CoreThread {
    /// Of this node's PostgreSQL, once it has said so.  A node without one shows all that it has decided, and needs
    /// nothing of the log below its checkpoint.
    pub(super) fn my_position(&self) -> Option<Position> {
        let (applied, durable) = match (self.desk.applied(), self.desk.durable()) {
            (Some(applied), Some(durable)) => (applied, durable),
            _ if self.config.postgres.is_none() => (self.certifier.decided(), self.checkpoint),
            _ => return None,
        };
        Some(self.position(applied, durable))
    }

    pub(super) fn position(&self, applied: LogIndex, durable: LogIndex) -> Position {
        Position {
            applied,
            durable,
            // What is decided after the last committed transaction, PostgreSQL never sees.
            lag_entries: self.certifier.last_committed().0.saturating_sub(applied.0),
            lag: self.lag.behind(applied, Instant::now()),
            heard: Instant::now(),
        }
    }

    /// Who has fallen silent falls behind.
    pub(super) fn lag_by_now(&self, position: Position) -> Position {
        if position.heard.elapsed() < SILENT_AFTER {
            return position;
        }
        Position { heard: position.heard, ..self.position(position.applied, position.durable) }
    }

    pub(super) fn position_of(&mut self, peer: NodeId, applied: LogIndex, durable: LogIndex) {
        self.positions.insert(peer, self.position(applied, durable));
        self.step(Input::Position(peer, self.shows(applied)));
    }

    /// Who shows the last committed transaction shows all that is decided.
    pub(super) fn shows(&self, applied: LogIndex) -> LogIndex {
        if applied >= self.certifier.last_committed() {
            return applied.max(self.certifier.decided());
        }
        applied
    }

    /// Election timeouts follow measured round trips.
    pub(super) fn follow_round_trips(&mut self) {
        let peers = self.transport.peers();
        let voters = peers.iter().filter(|p| self.members.get(p.id).is_some_and(|m| m.voter));
        let slowest_ms = voters.filter_map(|p| p.rtt_ms).fold(0.0, f64::max);
        let ticks = (slowest_ms * ELECTION_ROUND_TRIPS / TICK.as_millis() as f64).ceil() as usize;
        self.consensus.set_election_ticks(ticks.min(ELECTION_TICKS_MAX));
    }
}
