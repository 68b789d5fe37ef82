//! Entries that a PostgreSQL cannot apply, and what is done about them: its node copies the PostgreSQL of a member
//! that shows the entry, or an operator has the entry left out everywhere.
//!
//! Times are shorter than the product's, so that much of this happens in one run.

use crate::agent::ToNode;
use crate::ctx::{Ctx, InjectedBug, Micros, MS, SECOND};
use crate::host::SimHost;
use crate::node::{Arrival, Node, Result};
use crate::postgres::{Fed, Postgres, Wish};
use crate::rng::mix;
use crate::session::Doing;
use crate::trace;
use crate::world::{Event, Phase, World};
use onetrip_core::parts;
use onetrip_core::replica::{RebuildFrom, RequestId};
use onetrip_core::{Entry, LogIndex, NodeId, TxnId};
use std::time::Duration;

/// The time between two attempts of the apply worker.
const AGAIN: Micros = 200 * MS;
/// After this many attempts, the node is told.
const STUCK_AFTER: u32 = 3;
/// A PostgreSQL that has not shown the next entry this long after that entry was decided does not get on by itself.
pub const STILL_AFTER: Duration = Duration::from_secs(1);
/// A PostgreSQL is copied because of an entry at most this often.
const HEAL_EVERY: Micros = 2 * SECOND;

/// Which servers cannot apply an entry.  The one in the region that it comes from can, unless none can.
#[derive(Clone, Copy, Debug)]
pub enum Poison {
    One(NodeId),
    AllButOrigin,
    /// Not even the session that proposed it can commit it.
    All,
    /// Each server until a time of its own, when somebody removes the cause there.
    Until(u64),
}

/// The write set of an entry that leaves another one out.
pub(crate) fn index(write_set: &[u8]) -> LogIndex {
    LogIndex(u64::from_le_bytes(write_set.try_into().expect("the router writes good frames")))
}

impl Ctx {
    /// Whether this transaction is to be one of them.
    pub(crate) fn poison(&mut self, txn: TxnId) {
        let parts = [u64::from(txn.node.0), txn.incarnation, txn.sequence];
        let chance = parts.iter().fold(self.options.seed, |sum, part| mix(sum ^ mix(*part + 7)));
        if chance % 1_000_000 >= self.options.poison_per_million {
            return;
        }
        let poison = match mix(chance) % 4 {
            0 => Poison::One(NodeId(1 + (txn.node.0 + (mix(chance + 1) % 2) as u32) % 3)),
            1 => Poison::AllButOrigin,
            2 => Poison::All,
            _ => Poison::Until(chance),
        };
        self.faults.add(match poison {
            Poison::One(_) => "an entry that one PostgreSQL cannot apply",
            Poison::AllButOrigin => "an entry that only its origin can apply",
            Poison::All => "an entry that no PostgreSQL can apply",
            Poison::Until(_) => "an entry that cannot be applied until it is mended",
        });
        self.poison.insert(txn, poison);
    }

    pub(crate) fn is_poison_for(&self, txn: TxnId, node: NodeId) -> bool {
        match self.poison.get(&txn) {
            None => false,
            Some(Poison::One(one)) => node == *one && node != txn.node,
            Some(Poison::AllButOrigin) => node != txn.node,
            Some(Poison::All) => true,
            Some(Poison::Until(chance)) => self.now < mix(chance ^ u64::from(node.0)) % (2 * self.options.safety),
        }
    }

    pub(crate) fn cannot_commit_at_home(&self, txn: TxnId) -> bool {
        matches!(self.poison.get(&txn), Some(Poison::All))
    }
}

impl Postgres {
    pub(crate) fn cannot_apply(&self, fed: &Fed, ctx: &Ctx) -> bool {
        if let Some(left_out) = fed.left_out {
            // It shows what is left out, or the other way round.
            let agrees = self.left_out.contains(&left_out) != fed.flags.left_out;
            return !agrees && ctx.options.bug != Some(InjectedBug::ShowsLeftOut);
        }
        !fed.flags.left_out && ctx.is_poison_for(fed.txn, self.node)
    }

    /// The worker ends, and begins again after a while.
    pub(crate) fn fail_at(&mut self, at: LogIndex, ctx: &mut Ctx) {
        trace!(ctx, "p{} cannot apply {at}", self.node);
        ctx.events.add("an entry was not applied");
        let (times, since) = match self.failing {
            Some((before, times, since)) if before == at => (times + 1, since),
            _ => (1, ctx.now),
        };
        self.failing = Some((at, times, since));
        self.queue.clear();
        if let Some(conn) = self.worker.take() {
            self.wishes.push(Wish::Send(ToNode::Closed { conn }));
        }
        for slot in 0..self.sessions.len() {
            if matches!(self.sessions[slot].doing, Doing::Decided { .. }) {
                self.wake(slot, ctx.now + ctx.options.commit_timeout);
            }
        }
        self.wake_worker(ctx.now + AGAIN);
    }

    fn fails_at(&self) -> Option<(LogIndex, u32, Micros)> {
        self.failing.filter(|(at, ..)| *at > self.applied)
    }

    /// Called when the worker has been welcomed.
    pub(crate) fn tell_stuck(&mut self) {
        if let (Some((at, times, _)), Some(conn)) = (self.fails_at(), self.worker) {
            if times >= STUCK_AFTER {
                self.wishes.push(Wish::Send(ToNode::Stuck { conn, at }));
            }
        }
    }

    /// Whether this region would not show anything that commits now.
    pub(crate) fn stands_still(&self, ctx: &Ctx) -> bool {
        self.fails_at().is_some_and(|(_, times, since)| times > 1 && since + ctx.options.commit_timeout <= ctx.now)
    }
}

/// Copies of a PostgreSQL because of an entry that it cannot apply.
#[derive(Default)]
pub struct Copying {
    last: Option<Micros>,
    under_way: bool,
}

impl Copying {
    /// The event as which it is counted.
    pub fn follow(&mut self, order: Option<RebuildFrom>) -> Option<&'static str> {
        let before = std::mem::replace(&mut self.under_way, order.is_some_and(|order| order.keep_old));
        match (before, order) {
            (_, Some(RebuildFrom { keep_old: true, .. })) => Some("copied because of an entry"),
            (true, None) => Some("not copied because of an entry after all"),
            _ => None,
        }
    }

    pub fn done(&mut self, now: Micros) {
        (self.last, self.under_way) = (Some(now), false);
    }

    pub fn may(&self, now: Micros) -> std::result::Result<(), String> {
        match self.last.is_none_or(|last| last + HEAL_EVERY <= now) {
            true => Ok(()),
            false => Err("it was copied a moment ago".into()),
        }
    }
}

impl Node {
    /// The entry at which this node's PostgreSQL stands still, if the rules allow it to be left out.
    pub(crate) fn leave_out(&mut self, force: bool, ctx: &mut Ctx) -> Result<()> {
        let now = self.body.time(self.body.clock);
        let Some(index) = self.replica.stands_at().filter(|_| self.body.skipping.is_none()) else { return Ok(()) };
        if let Some(why) = self.replica.why_not_left_out(index, force, now) {
            trace!(ctx, "n{} does not leave out {index}: {why}", self.id);
            return Ok(());
        }
        let decided = self.body.decided.get(&index).map_or(0, |at| *at);
        if !force && self.body.time(decided) + STILL_AFTER > now {
            ctx.checker.fail(format!("node {} leaves out {index}, which was decided a moment ago", self.id));
        }
        let entry = parts::read(self.replica.consensus.log(), index)?;
        let skip = match ctx.options.bug {
            Some(InjectedBug::SkipTakesNothing) => {
                Entry::decode(Entry::encode(&entry.txn, &[], b""))?.encode_skip(index)
            }
            _ => entry.encode_skip(index),
        };
        trace!(ctx, "n{} leaves out {index}", self.id);
        ctx.checker.asks_to_leave_out(index);
        let id = RequestId(u64::MAX - index.0);
        self.body.skipping = Some(id);
        self.replica.leave_out(id, index, skip, &mut SimHost { body: &mut self.body, ctx });
        Ok(())
    }

    /// What the operator hears.
    pub(crate) fn left_out(&mut self, ctx: &mut Ctx) {
        for (id, index, result) in self.replica.take_left_out() {
            trace!(ctx, "n{} has {index} left out: {result:?}", self.id);
            ctx.events.add(if result.is_ok() { "operator told of what is left out" } else { "operator asks in vain" });
            self.body.skipping.take_if(|open| *open == id);
        }
    }
}

impl World {
    /// An operator sees that a region stands still.  He gives up what a region that is away may have: at once if it
    /// will not come back, and rarely if it might.
    pub(crate) fn leave_out(&mut self) {
        let next = self.ctx.now + 500 * MS;
        self.at(next, Event::Skip);
        if self.ctx.poison.is_empty() {
            return;
        }
        let i = self.ctx.rng.below(self.machines.len() as u64) as usize;
        let members = self.ctx.checker.newest_members().clone();
        let data = members.members.iter().filter(|m| m.role.has_postgres());
        let is_away = |id: NodeId| self.machines.get(id.0 as usize - 1).is_none_or(|m| m.node.is_none() && !m.gone);
        let may_come_back = data.filter(|m| is_away(m.id)).count() > 0;
        let force = !may_come_back || self.phase == Phase::Safety && self.ctx.rng.one_in(20);
        let life = self.machines[i].life;
        self.at(self.ctx.now, Event::Arrive(i, life, Arrival::Skip(force)));
    }
}
