//! What goes wrong during the safety phase.  Each call draws one fault.  Faults last for a bounded time, and may
//! overlap.

use crate::ctx::{InjectedBug, Micros, MS, SECOND};
use crate::disk::End;
use crate::node::Arrival;
use crate::trace;
use crate::world::{Event, World, TICK};

impl World {
    pub(crate) fn fault(&mut self) {
        let n = self.machines.len() as u64;
        let i = self.ctx.rng.below(n) as usize;
        let a_while = self.a_while();
        // This one shows if a node ends at one point, starts, and loses power soon after.
        let kinds = if self.ctx.options.bug == Some(InjectedBug::BelieveName) { 6 } else { 20 };
        match self.ctx.rng.below(kinds) {
            0 => {
                self.ctx.faults.add("node crash");
                self.end_node(i, End::Process);
                self.restart_node_later(i);
            }
            1..=3 => {
                let stages = self.ctx.rng.below(60) as u32;
                if let Some(node) = &mut self.machines[i].node {
                    node.body.fuse = Some(stages);
                }
            }
            4 => {
                self.ctx.faults.add("PostgreSQL crash");
                self.crash_postgres(i, a_while);
            }
            5 => {
                self.ctx.faults.add("machine crash");
                self.end_node(i, End::Power);
                self.restart_node_later(i);
                self.crash_postgres(i, a_while);
            }
            6 => self.kill_backend(i),
            7 | 8 => {
                let to = self.ctx.rng.below(n) as usize;
                self.ctx.faults.add("one-way cut");
                self.links[i][to].cut_until = self.ctx.now + a_while;
            }
            9 => {
                self.ctx.faults.add("partition");
                let side = self.ctx.rng.below(1 << n);
                self.partition(side, a_while);
            }
            10 => {
                self.ctx.faults.add("leader cut off");
                let leader = self.machines.iter().position(|m| m.node.as_ref().is_some_and(|n| n.is_leader()));
                self.partition(1 << leader.unwrap_or(i), a_while);
            }
            11 => {
                self.ctx.faults.add("pause");
                self.machines[i].paused_until = self.ctx.now + a_while / 2;
            }
            12 => {
                self.ctx.faults.add("slow link");
                let to = self.ctx.rng.below(n) as usize;
                self.links[i][to].slow_until = self.ctx.now + a_while;
            }
            13 => self.power_loss(),
            14 => self.machines[i].trouble.next_sync_fails = true,
            15 => {
                self.ctx.faults.add("slow disk");
                self.machines[i].trouble.slow_until = self.ctx.now + a_while;
            }
            // This is counted when a node notices it.
            16 => self.machines[i].trouble.full_until = self.ctx.now + a_while,
            17 => self.stop_node(i),
            _ => {
                self.ctx.faults.add("clock changes its pace");
                let (low, high) = if self.ctx.rng.one_in(5) { (50, 200) } else { (80, 125) };
                self.machines[i].tick = TICK * self.ctx.rng.between(low, high) / 100;
            }
        }
    }

    /// A new leader is at its most vulnerable: its first messages may reach nobody, or it may die while it sends
    /// them.
    pub(crate) fn fault_at_election(&mut self, i: usize) {
        if !self.ctx.rng.per_million(self.ctx.options.election_fault_per_million) {
            return;
        }
        if self.ctx.rng.one_in(2) {
            self.ctx.faults.add("leader cut off as it is elected");
            let lasts = self.a_while();
            self.partition(1 << i, lasts);
        } else if let Some(node) = &mut self.machines[i].node {
            node.body.fuse = Some(self.ctx.rng.below(80) as u32);
        }
    }

    fn a_while(&mut self) -> Micros {
        let most = if self.ctx.rng.one_in(4) { 8 * SECOND } else { SECOND };
        self.ctx.rng.between(10 * MS, most)
    }

    fn partition(&mut self, side: u64, lasts: Micros) {
        trace!(self.ctx, "partition {side:b} for {lasts}");
        let until = self.ctx.now + lasts;
        for (a, row) in self.links.iter_mut().enumerate() {
            for (b, link) in row.iter_mut().enumerate() {
                if (side >> a) & 1 != (side >> b) & 1 {
                    link.cut_until = link.cut_until.max(until);
                }
            }
        }
    }

    /// A stop in good order: a leader hands over, proposals are refused, and then the node ends.
    fn stop_node(&mut self, i: usize) {
        if self.machines[i].node.is_none() {
            return;
        }
        self.ctx.faults.add("node stopped and started again");
        let (now, life) = (self.ctx.now, self.machines[i].life);
        self.at(now, Event::Arrive(i, life, Arrival::Stop));
        let end = now + self.ctx.rng.between(MS, 500 * MS);
        self.at(end, Event::EndNode(i, life));
    }

    fn kill_backend(&mut self, i: usize) {
        let slot = self.ctx.rng.below(self.ctx.options.clients as u64) as usize;
        let Some(incarnation) = self.machines[i].postgres.as_ref().map(|p| p.incarnation) else { return };
        self.ctx.faults.add("backend killed");
        self.with_postgres(i, incarnation, |p, _, _, ctx| p.kill_session(slot, ctx));
    }

    /// Everything stops at once.
    fn power_loss(&mut self) {
        if !self.ctx.rng.one_in(3) {
            return;
        }
        self.ctx.faults.add("power loss everywhere");
        for i in 0..self.machines.len() {
            let a_while = self.a_while();
            self.end_node(i, End::Power);
            self.restart_node_later(i);
            self.crash_postgres(i, a_while);
        }
    }
}
