//! When PostgreSQL's data folder is to be made anew from a copy of another member's; and which entry may be left out of
//! every PostgreSQL because none can apply it.

use super::positions::SILENT_AFTER;
use super::{Host, Replica, Store};
use crate::ids::{LogIndex, NodeId};
use crate::router::Outbox;
use crate::skip::{refusal, Other, Own};
use std::collections::VecDeque;
use std::time::Duration;

/// A donor that has been silent for this long will not deliver the copy; a shorter silence is only a busy moment.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// An order to make the data folder anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildFrom {
    /// The copy must show at least this: either the node has no older entries to bring it on with, or the old folder
    /// cannot get that far.
    pub at_least: LogIndex,
    /// The old folder is kept: until the copy is there, it can be read; it may contain tables of this server alone; and
    /// it tells what went wrong.
    pub keep_old: bool,
}

/// How far this node had decided at each look, and when that was; as far back as anybody asks.
#[derive(Default)]
pub(super) struct Looks(VecDeque<(Duration, LogIndex)>);

impl Looks {
    /// To be called regularly.  Of the looks older than `keep`, only the last is kept.
    pub fn look(&mut self, now: Duration, decided: LogIndex, keep: Duration) {
        while self.0.get(1).is_some_and(|(at, _)| *at + keep <= now) {
            self.0.pop_front();
        }
        self.0.push_back((now, decided));
    }

    /// Whether, according to the looks, `index` was decided at least this long ago.
    fn is_older(&self, index: LogIndex, than: Duration, now: Duration) -> bool {
        self.0.iter().any(|(at, decided)| *at + than <= now && *decided >= index)
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// PostgreSQL can be brought on from this index, and from none below.
    pub fn feedable_from(&self) -> LogIndex {
        self.committed_indexes.feedable_from(self.readable_from())
    }

    fn readable_from(&self) -> LogIndex {
        self.consensus.log().readable_from(|at| self.committed_indexes.contains(at))
    }

    /// The order that is in force.
    pub fn ordered(&self) -> Option<RebuildFrom> {
        self.rebuild
    }

    fn order<H: Host<Store = S, Outbox = O>>(&mut self, order: Option<RebuildFrom>, host: &mut H) {
        self.rebuild = order;
        host.rebuild(order);
    }

    pub(super) fn order_rebuild<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        self.order(Some(RebuildFrom { at_least: self.feedable_from(), keep_old: false }), host);
    }

    /// Orders a new data folder when the apply worker cannot be brought on, and withdraws an order that has been
    /// carried out.
    pub(super) fn follow_rebuild<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let order = self.rebuild;
        // The copy that was ordered shows enough, unless more has been cut meanwhile.
        let asks_too_little = || order.is_none_or(|order| order.at_least < self.feedable_from());
        if self.router.needs_rebuild() && asks_too_little() {
            self.order_rebuild(host);
        } else if order.is_some_and(|o| self.router.is_fed() && self.router.applied() >= Some(o.at_least)) {
            self.order(None, host);
        }
    }

    /// Orders a copy of a PostgreSQL that shows the entry which this one cannot apply, or has forgotten.  Withdraws the
    /// order when there is no such PostgreSQL any more: the old data folder can at least be read.
    pub(super) fn heal<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let now = host.now();
        if let Some(order) = self.rebuild {
            if order.keep_old && !self.is_shown(order.at_least, now, GONE_AFTER) {
                self.order(None, host);
            }
            return;
        }
        let Some((at, why)) = self.router.stuck().cloned() else { return };
        match host.may_heal() {
            Err(why_not) => host.not_healed(at, &why, why_not),
            Ok(()) if !self.is_shown(at, now, SILENT_AFTER) => {
                host.not_healed(at, &why, "no other member that can be reached shows it".to_string());
            }
            Ok(()) => self.order(Some(RebuildFrom { at_least: at, keep_old: true }), host),
        }
    }

    /// Whether another member that can be reached shows `at`.  A witness shows nothing, whatever it has decided.
    fn is_shown(&self, at: LogIndex, now: Duration, within: Duration) -> bool {
        let others = self.members.members.iter().filter(|m| m.id != self.id && m.role.has_postgres());
        others.filter_map(|m| self.heard_within(m.id, now, within)).any(|shown| shown.applied >= at)
    }

    /// The entry at which this node's PostgreSQL stands still.  `None` also if the log does not contain that entry any
    /// more, because it goes on from another node's checkpoint: then PostgreSQL is about to be copied.
    pub fn stands_at(&self) -> Option<LogIndex> {
        let (at, _) = self.committed_indexes.after(self.router.applied()?)?.next()?;
        (self.router.comes_no_further() && at >= self.readable_from()).then_some(at)
    }

    /// Why `index` must not be left out of every PostgreSQL; `None`: it may be.  With `force`, members that are away do
    /// not matter.  A member does not get on by itself if it has shown nothing newer for `Settings::still_after`
    /// although the entry was there to be applied all that time.
    pub fn why_not_left_out(&self, index: LogIndex, force: bool, now: Duration) -> Option<String> {
        let still = self.settings.still_after;
        let was_there = self.looks.is_older(index, still, now);
        let own = Own {
            node: self.id,
            applied: self.router.applied(),
            stands_at: self.stands_at(),
            previous: self.committed_indexes.previous_of(index),
        };
        let other = |id: NodeId| match self.heard_within(id, now, SILENT_AFTER) {
            Some(shown) => Other::Stands { applied: shown.applied, still: was_there && shown.since + still <= now },
            None => Other::Away(self.positions.get(&id).map(|shown| shown.applied)),
        };
        refusal(index, own, &self.members, other, force)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This also holds for an entry that an earlier life decided: it counts from the first look of this one.
    #[test]
    fn an_entry_is_as_old_as_the_last_look_that_did_not_know_it() {
        let (mut looks, second) = (Looks::default(), Duration::from_secs);
        assert!(!looks.is_older(LogIndex(1), second(5), second(100)));
        (0..20).for_each(|n| looks.look(second(100 + n), LogIndex(10 + n / 10), second(5)));
        assert!(looks.is_older(LogIndex(10), second(5), second(119)));
        assert!(looks.is_older(LogIndex(11), second(5), second(119)));
        assert!(!looks.is_older(LogIndex(11), second(10), second(119)));
        assert!(!looks.is_older(LogIndex(12), second(5), second(119)));
        looks.look(second(120), LogIndex(12), second(5));
        assert!(!looks.is_older(LogIndex(12), second(5), second(124)));
        assert!(looks.is_older(LogIndex(12), second(5), second(125)));
        assert!(looks.0.len() <= 7, "{:?}", looks.0);
    }
}
