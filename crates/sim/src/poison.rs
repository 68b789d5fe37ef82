//! Entries that a PostgreSQL cannot apply, and what is done about them: its node copies another member's that shows the entry, or
//! an operator has it left out everywhere.
//!
//! Times are shorter than the product's, so that much of it happens in a run.

use crate::agent::ToNode;
use crate::ctx::{Ctx, Micros, Plant, MS, SECOND};
use crate::node::{broken, Arrival, Node, Result};
use crate::postgres::{Fed, Postgres, Wish};
use crate::rng::mix;
use crate::session::Doing;
use crate::trace;
use crate::world::{Event, Phase, World};
use onetrip_core::consensus::Input;
use onetrip_core::skip::{refusal, Other, Own};
use onetrip_core::{Entry, LogIndex, NodeId, TxnId};

/// Between two attempts of the apply worker.
const AGAIN: Micros = 200 * MS;
/// So many of them, and the node is told.
const STUCK_AFTER: u32 = 3;
/// A member that has shown nothing newer for so long does not get on by itself.
const STILL: Micros = SECOND;
/// A copy because of an entry, at most so often.
const HEAL_EVERY: Micros = 2 * SECOND;
/// Positions that did not come for so long: it is away.
const SILENT: Micros = 1_500 * MS;

/// Who cannot apply an entry.  The region that it comes from can, unless all cannot.
#[derive(Clone, Copy, Debug)]
pub enum Poison {
    One(NodeId),
    AllButOrigin,
    /// Its own session cannot commit it either.
    All,
    /// Each until a time of its own: somebody mends it there.
    Until(u64),
}

/// What a member has said that it shows.
#[derive(Clone, Copy)]
pub struct Shown {
    pub applied: LogIndex,
    pub since: Micros,
    pub heard: Micros,
}

/// The write set of an entry that leaves another one out.
pub(crate) fn index(write_set: &[u8]) -> LogIndex {
    LogIndex(u64::from_le_bytes(write_set.try_into().expect("the desk writes good frames")))
}

impl Ctx {
    /// Is this transaction to be one of them?
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

    fn is_poison_for(&self, txn: TxnId, node: NodeId) -> bool {
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
            // Who shows what is left out, or the other way round.
            let agrees = self.left_out.contains(&left_out) != fed.flags.left_out;
            return !agrees && ctx.options.plant != Some(Plant::ShowsLeftOut);
        }
        !fed.flags.left_out && ctx.is_poison_for(fed.txn, self.node)
    }

    /// The worker ends, and begins anew in a while.
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

    /// The worker is welcomed.
    pub(crate) fn tell_stuck(&mut self) {
        if let (Some((at, times, _)), Some(conn)) = (self.fails_at(), self.worker) {
            if times >= STUCK_AFTER {
                self.wishes.push(Wish::Send(ToNode::Stuck { conn, at }));
            }
        }
    }

    /// Nothing that commits now would be shown here.
    pub(crate) fn stands_still(&self, ctx: &Ctx) -> bool {
        self.fails_at().is_some_and(|(_, times, since)| times > 1 && since + ctx.options.commit_timeout <= ctx.now)
    }
}

impl Node {
    pub(crate) fn hear(&mut self, peer: NodeId, applied: LogIndex) {
        let now = self.clock;
        let since = self.shown.get(&peer).filter(|s| s.applied == applied).map_or(now, |s| s.since);
        self.shown.insert(peer, Shown { applied, since, heard: now });
    }

    /// `core_thread/membership.rs`.
    pub(crate) fn heal(&mut self, ctx: &mut Ctx) {
        let clock = self.clock;
        let has_postgres = |id: NodeId| self.members.get(id).is_some_and(|m| m.role.has_postgres());
        let shows =
            |at| self.shown.iter().any(|(id, s)| has_postgres(*id) && s.applied >= at && s.heard + SILENT > clock);
        if let Some(at) = self.heals.filter(|_| self.rebuild.is_some()) {
            if !shows(at) {
                trace!(ctx, "n{} does not have its PostgreSQL copied for {at} any more", self.id);
                ctx.events.add("not copied because of an entry after all");
                (self.rebuild, self.heals) = (None, None);
            }
            return;
        }
        let Some((at, _)) = self.desk.stuck().filter(|_| self.rebuild.is_none()) else { return };
        let at = *at;
        if self.healed.is_none_or(|last| last + HEAL_EVERY <= clock) && shows(at) {
            trace!(ctx, "n{} has its PostgreSQL copied, for {at}", self.id);
            ctx.events.add("copied because of an entry");
            self.healed = Some(clock);
            (self.rebuild, self.heals, self.rebuild_ordered) = (Some(at), Some(at), true);
        }
    }

    /// `core_thread/skip.rs`: the entry at which its PostgreSQL stands still, if the rules allow it.
    pub(crate) fn leave_out(&mut self, force: bool, ctx: &mut Ctx) -> Result<()> {
        let applied = self.desk.applied();
        let first = applied.and_then(|applied| self.history.after(applied)?.next());
        let Some((index, previous)) = first.filter(|_| self.desk.comes_no_further()) else { return Ok(()) };
        let own = Own { node: self.id, applied, stands_at: Some(index), previous: Some(previous) };
        let other = |id| match self.shown.get(&id) {
            Some(s) if s.heard + SILENT > self.clock => {
                Other::Stands { applied: s.applied, still: s.since + STILL <= self.clock }
            }
            s => Other::Away(s.map(|s| s.applied)),
        };
        if let Some(why) = refusal(index, own, &self.members, other, force) {
            trace!(ctx, "n{} does not leave out {index}: {why}", self.id);
            return Ok(());
        }
        use onetrip_core::desk::Log;
        let raw = self.consensus.log().read(index).map_err(|e| broken(self.id, &e))?;
        let entry = Entry::decode(raw).map_err(|e| broken(self.id, &e))?;
        let skip = match ctx.options.plant {
            Some(Plant::SkipTakesNothing) => {
                Entry::decode(Entry::encode(&entry.txn, &[], b"")).map_err(|e| broken(self.id, &e))?.encode_skip(index)
            }
            _ => entry.encode_skip(index),
        };
        trace!(ctx, "n{} leaves out {index}", self.id);
        ctx.checker.asks_to_leave_out(index);
        self.step(Input::Propose(skip), ctx);
        Ok(())
    }
}

impl World {
    /// An operator who sees that a region stands still.  He gives up what a region that is away may have: at once if it will not
    /// come back, rarely if it might.
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
