//! When PostgreSQL's data folder is to be made anew from a copy of another member's, and which entry may be left out of
//! every PostgreSQL because none can apply it.

use super::host::ends;
use super::positions::SILENT_AFTER;
use super::{Host, Replica, Store};
use crate::ids::{LogIndex, NodeId};
use crate::router::Outbox;
use crate::skip::{refusal, Other, Own};
use std::collections::VecDeque;
use std::time::Duration;

/// A donor that is silent for so long does not give what was ordered of it; a shorter silence is a busy moment.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// An order to make the data folder anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildFrom {
    /// The copy must show at least this: the node has no older entries to bring it on with, or the old folder cannot get
    /// that far.
    pub at_least: LogIndex,
    /// The old folder is kept: until the copy is there it can be read, it may hold tables of this server alone, and says
    /// what went wrong.
    pub keep_old: bool,
}

/// How far this node had decided, and when: at each look, as far back as is asked for.
#[derive(Default)]
pub(super) struct Looks(VecDeque<(Duration, LogIndex)>);

impl Looks {
    /// To be called every now and then; what is older than `keep` is kept once.
    pub fn look(&mut self, now: Duration, decided: LogIndex, keep: Duration) {
        while self.0.get(1).is_some_and(|(at, _)| *at + keep <= now) {
            self.0.pop_front();
        }
        self.0.push_back((now, decided));
    }

    /// `index` was decided at least so long ago, as far as was looked.
    fn is_older(&self, index: LogIndex, than: Duration, now: Duration) -> bool {
        self.0.iter().any(|(at, decided)| *at + than <= now && *decided >= index)
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// PostgreSQL can be brought on from here, and from nowhere below.
    pub fn feedable_from(&self) -> LogIndex {
        self.committed_indexes.feedable_from(ends(self.consensus.log()).0)
    }

    /// The order that holds now.
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

    /// Orders a new data folder when the apply worker cannot be brought on, and takes an order back when it is carried out.
    pub(super) fn follow_rebuild<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        match self.rebuild {
            // A copy that was ordered shows enough, unless more has been cut meanwhile.
            Some(order) if self.router.needs_rebuild() && order.at_least < self.feedable_from() => {
                self.order_rebuild(host)
            }
            Some(order) if self.router.is_fed() && self.router.applied() >= Some(order.at_least) => {
                self.order(None, host);
            }
            Some(_) => {}
            None if self.router.needs_rebuild() => self.order_rebuild(host),
            None => {}
        }
    }

    /// Orders a copy of a PostgreSQL that shows the entry which this one cannot apply, and takes the order back when there is
    /// none any more: the old one can at least be read.
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

    /// By another member that can be reached.  A witness shows nothing, whatever it has decided.
    fn is_shown(&self, at: LogIndex, now: Duration, within: Duration) -> bool {
        let others = self.members.members.iter().filter(|m| m.id != self.id && m.role.has_postgres());
        others.filter_map(|m| self.heard_within(m.id, now, within)).any(|shown| shown.applied >= at)
    }

    /// The entry at which this node's PostgreSQL stands still.  One that the log does not hold any more (it went on from
    /// another node's checkpoint) is nothing to stand at: PostgreSQL is about to be copied.
    pub fn stands_at(&self) -> Option<LogIndex> {
        let (at, _) = self.committed_indexes.after(self.router.applied()?)?.next()?;
        (self.router.comes_no_further() && at >= ends(self.consensus.log()).0).then_some(at)
    }

    /// Why `index` is not to be left out of every PostgreSQL; `None`: it may be.  `force`: whoever is away.  A member does not
    /// get on by itself that has shown nothing newer for `Settings::still_after`, since when the entry was there to be applied.
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

    /// Also an entry that was decided by an earlier life is there only since this one looks.
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
