//! How far behind each PostgreSQL is, this node's and the other members'.

use super::lag::{Teller, Told};
use super::CoreThread;
use crate::status::Position;
use onetrip_core::replica::{Report, SILENT_AFTER};
use onetrip_core::{LogIndex, NodeId};
use std::time::Instant;

impl CoreThread {
    pub(super) fn own_position(&self) -> Option<Position> {
        self.replica.own_position().map(|(applied, durable)| self.position(applied, durable))
    }

    fn position(&self, applied: LogIndex, durable: LogIndex) -> Position {
        Position {
            applied,
            durable,
            // Entries after the last committed transaction are not for PostgreSQL.
            lag_entries: self.replica.certifier.last_committed().0.saturating_sub(applied.0),
            lag: self.host.lag.behind(applied, Instant::now()),
            heard: Instant::now(),
        }
    }

    /// The position as it was reported; if the member has been silent since then, with the lag that it has by now.
    pub(super) fn lag_by_now(&self, position: Position) -> Position {
        if position.heard.elapsed() < SILENT_AFTER {
            return position;
        }
        Position { heard: position.heard, ..self.position(position.applied, position.durable) }
    }

    pub(super) fn report_of(&mut self, peer: NodeId, report: Report, decided: &Told) {
        if !self.replica.members().contains(peer) {
            return;
        }
        let voters = self.replica.members().members.iter().filter(|m| m.voter).count();
        let from = Teller {
            member: peer,
            shown: report.shown.map(|(applied, _)| applied).unwrap_or_default(),
            decided: self.replica.certifier.decided(),
            knowing: voters.clamp(1, 2),
        };
        self.host.lag.learn(&from, decided, Instant::now());
        if let Some((applied, durable)) = report.shown {
            self.positions.insert(peer, self.position(applied, durable));
        }
        self.replica.report(peer, report, &mut self.host);
    }

    /// Forgets the times of entries that every PostgreSQL shows.
    pub(super) fn forget_lag(&mut self) {
        let others = self.replica.positions().map(|(_, shown)| shown.applied);
        let shown = others.chain(self.replica.own_position().map(|(applied, _)| applied)).min();
        self.host.lag.forget_to(shown.unwrap_or_default());
    }
}
