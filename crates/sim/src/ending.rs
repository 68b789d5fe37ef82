//! The end of a run.  Everything heals; then, within a bound of simulated time, every region must commit again, and
//! all must come to rest equal.  Then the histories are judged.

use crate::ctx::{Micros, MS, SECOND};
use crate::node::Trouble;
use crate::trace;
use crate::world::{Event, Machine, Phase, World, TICK};
use onetrip_checker::{ClientOutcome, Time};
use onetrip_core::certifier::Outcome;
use onetrip_core::placement::{is_worth, Place};
use onetrip_core::replica::Store;
use onetrip_core::{LogIndex, MemberRole, NodeId};

/// After healing, each region must have committed again within this time, and everything must be at rest within the
/// same time after that.
const LIVENESS: Micros = 60 * SECOND;
/// If nothing has moved for this long, nothing is under way any more.
const QUIET: Micros = 3 * SECOND;
/// So many entries may have come since a node last looked whether a checkpoint is due.
const SINCE_LAST_LOOK: u64 = 20;

impl World {
    /// From the end of the safety phase on: does the cluster move, and is it at rest?
    pub(crate) fn look(&mut self) {
        let now = self.ctx.now;
        self.at(now + 50 * MS, Event::Look);
        match &self.phase {
            Phase::Safety => {
                let acknowledged = self.acknowledged();
                self.heal();
                self.phase = Phase::Moving { since: now, acknowledged };
            }
            Phase::Moving { since, acknowledged } => {
                let moved = self.acknowledged();
                let before = |i: usize| acknowledged.get(i).copied().flatten().unwrap_or(0);
                let stuck: Vec<NodeId> = (0..moved.len())
                    .filter(|i| moved[*i].is_some_and(|n| n <= before(*i)))
                    .map(|i| NodeId(i as u32 + 1))
                    .collect();
                if stuck.is_empty() && !self.operator.is_busy() {
                    self.phase = Phase::Resting { since: now, quiet_since: now };
                } else if now > since + LIVENESS {
                    let what = if stuck.is_empty() { " is not carried out" } else { "" };
                    self.ctx.checker.fail(format!(
                        "all is healed, but PostgreSQL {stuck:?} commits nothing, or a change of the membership{what}"
                    ));
                }
            }
            Phase::Resting { since, quiet_since } => {
                let (since, quiet_since) = (*since, if self.is_equal() { *quiet_since } else { now });
                for p in self.machines.iter_mut().filter_map(|m| m.postgres.as_mut()) {
                    p.closing = true;
                }
                if now > quiet_since + QUIET || now > since + LIVENESS {
                    self.finish();
                } else {
                    self.phase = Phase::Resting { since, quiet_since };
                }
            }
            Phase::Over => {}
        }
    }

    /// How much the sessions of each PostgreSQL have committed; `None` if it takes no changes.
    fn acknowledged(&self) -> Vec<Option<u64>> {
        let counts = |m: &Machine| m.postgres.as_ref().filter(|p| m.is_here() && !p.read_only).map(|p| p.acknowledged);
        self.machines.iter().map(counts).collect()
    }

    /// All nodes have decided the same, every PostgreSQL shows it, nobody waits, every member has the role that it
    /// should have, and all know what is not needed any more.
    fn is_equal(&self) -> bool {
        let (log, last) = (self.ctx.checker.log_len(), self.ctx.checker.last_committed());
        let members = self.ctx.checker.newest_members();
        let settled = members.members.iter().all(|m| m.voter == m.role.votes());
        settled
            && self.leader_is_at_rest()
            && self.ctx.questions.is_empty()
            && self.machines.iter().filter(|m| m.is_here()).all(|m| {
                m.node.as_ref().is_some_and(|n| n.certifier().decided() == log)
                    && m.postgres.as_ref().is_none_or(|p| p.up && p.applied == last && p.is_idle())
            })
            && self.out_of_bounds().is_none()
    }

    /// Where the cluster chooses, the leader is at the best place, as far as it knows.  The place that the table
    /// prefers may be lost for good; and two leaders may disagree because one has counted what the other has not,
    /// but not for ever.
    fn leader_is_at_rest(&self) -> bool {
        let (now, members) = (self.ctx.now, self.ctx.checker.newest_members());
        if !members.leader_is_auto {
            return true;
        }
        let mut leaders = self.machines.iter().filter_map(|m| m.node.as_ref()).filter(|n| n.is_leader());
        leaders.any(|n| {
            let is_lost = |places: Vec<Place>| {
                let own = places.iter().find(|place| place.node == n.id);
                let is_best = own.is_some_and(|own| own.region == places[0].region || !is_worth(own, &places[0]));
                is_best && !places.iter().any(|place| members.is_preferred(place.node))
            };
            n.leader_is_settled(now) || n.leader_goes_to_and_fro() || n.places(now).is_some_and(is_lost)
        })
    }

    fn heal(&mut self) {
        trace!(self.ctx, "all heals");
        self.ctx.healed = Some(self.ctx.now);
        let o = &mut self.ctx.options;
        (o.loss_per_million, o.duplicate_per_million, o.reorder_per_million) = (0, 0, 0);
        // What is there stays as it is.
        o.poison_per_million = 0;
        for link in self.links.iter_mut().flatten() {
            (link.cut_until, link.slow_until) = (0, 0);
        }
        for i in 0..self.machines.len() {
            let m = &mut self.machines[i];
            (m.paused_until, m.trouble) = (0, Trouble::default());
            // If clocks differed very much, one leader after the other could be given up.
            m.tick = m.tick.clamp(TICK * 9 / 10, TICK * 11 / 10);
            if let Some(node) = &mut self.machines[i].node {
                (node.body.fuse, node.body.trouble) = (None, Trouble::default());
            }
            if self.machines[i].node.is_none() {
                self.start_node(i);
            }
            if let Some(incarnation) = self.machines[i].postgres.as_ref().map(|p| p.incarnation) {
                self.start_postgres(i, incarnation);
            }
        }
    }

    /// Nothing grows for ever: at rest each node has a checkpoint that is new enough, and its log has no more than
    /// somebody may need.  Says who is not so far.
    fn out_of_bounds(&self) -> Option<String> {
        let (o, members) = (&self.ctx.options, self.ctx.checker.newest_members());
        // What a member needs no more of the log.
        let safe_at = |id: NodeId| {
            let m = self.machines.get(id.0 as usize - 1).filter(|m| m.is_here())?;
            let checkpoint = m.node.as_ref()?.checkpoint();
            Some((m.postgres.as_ref().map_or(checkpoint, |p| p.durable), checkpoint))
        };
        let of_all: Option<Vec<LogIndex>> = members.members.iter().map(|m| safe_at(m.id).map(|(at, _)| at)).collect();
        // Who is lost and still a member may come back and need everything.
        let of_all = of_all.and_then(|all| all.into_iter().min()).unwrap_or_default();
        let mut failed = None;
        for node in self.machines.iter().filter(|m| m.is_here()).filter_map(|m| m.node.as_ref()) {
            let (id, decided, log) = (node.id, node.certifier().decided(), node.replica.consensus.log());
            let Some((durable, checkpoint)) = safe_at(id) else { continue };
            if decided.0 - checkpoint.0 > o.checkpoint_entries.saturating_add(SINCE_LAST_LOOK) {
                let most = o.checkpoint_entries;
                failed = Some(format!("node {id} ends at {decided} with a checkpoint at {checkpoint}: {most} at most"));
            }
            let own = durable.min(checkpoint);
            let mut upto = own.min(of_all).0.saturating_sub(o.cut_margin);
            let is_witness = members.get(id).is_some_and(|m| m.role == MemberRole::Witness);
            if log.bytes() > o.log_entries_max && !is_witness {
                upto = upto.max(own.0.min(log.index_leaving(o.log_entries_max).0));
            }
            let needless = log.needless(LogIndex(upto));
            if needless > 0 {
                let (first, last) = (log.first_index(), log.last_index());
                failed =
                    Some(format!("node {id} keeps {needless} entries that nobody needs: its log is {first} to {last}"));
            }
        }
        failed
    }

    fn finish(&mut self) {
        self.phase = Phase::Over;
        if !self.leader_is_at_rest() {
            let leader = self.machines.iter().filter_map(|m| m.node.as_ref()).find(|n| n.is_leader());
            let (members, places) = (self.ctx.checker.newest_members(), leader.map(|n| n.places(self.ctx.now)));
            let (id, belongs) = (leader.map(|n| n.id), members.preferred_leader.clone());
            self.ctx.checker.fail(format!(
                "the leader, node {id:?}, does not come to rest at the best place; it belongs in {belongs}: {places:?}"
            ));
        }
        let checker = &mut self.ctx.checker;
        let txns = checker.txns();
        let mut outcomes: Option<Vec<Outcome>> = None;
        for (i, m) in self.machines.iter().enumerate().filter(|(_, m)| m.is_here()) {
            let p = m.postgres.as_ref();
            let decided = m.node.as_ref().map_or(LogIndex::ZERO, |n| n.certifier().decided());
            checker.finished(NodeId(i as u32 + 1), decided, p.map(|p| p.applied), p.map(|p| (&p.rows, &p.left_out)));
            if p.is_some_and(|p| !p.is_idle()) {
                checker.fail(format!("PostgreSQL {} does not come to rest", i + 1));
            }
            let Some(node) = &m.node else { continue };
            let these: Vec<Outcome> = txns.iter().map(|txn| node.certifier().outcome(txn)).collect();
            for (txn, outcome) in txns.iter().zip(&these) {
                checker.tells_outcome(node.id, decided, *txn, *outcome);
            }
            if outcomes.get_or_insert_with(|| these.clone()) != &these {
                checker.fail(format!("node {} remembers other outcomes than the first", node.id));
            }
        }
        if let Some(why) = self.out_of_bounds() {
            self.ctx.checker.fail(why);
        }
        for p in self.machines.iter_mut().filter_map(|m| m.postgres.as_mut()) {
            p.end_sessions(&mut self.ctx);
        }
        if let Some(question) = self.ctx.questions.first() {
            let why = format!("nobody decides what became of {}", question.txn);
            self.ctx.checker.fail(why);
        }
        let newest = self.ctx.checker.newest_members().clone();
        if let Some(m) = newest.members.iter().find(|m| m.role.votes() && !m.voter) {
            self.ctx.checker.fail(format!("node {} is not made a voter", m.id));
        }
        for question in std::mem::take(&mut self.ctx.questions) {
            self.ctx.history.push(question.record);
        }
        for mut record in std::mem::take(&mut self.ctx.prepared).into_values() {
            (record.outcome, record.completed) = (ClientOutcome::Unknown, Time(self.ctx.now));
            self.ctx.history.push(record);
        }
        for p in self.machines.iter().filter(|m| m.is_here()).filter_map(|m| m.postgres.as_ref()) {
            self.ctx.history.at_rest(p.region.clone(), p.rows.lists());
        }
        let findings = self.ctx.history.check();
        // What clients saw of an entry that is left out is gone, as it should be.
        if !findings.is_clean() && !self.ctx.checker.has_left_out() {
            self.ctx.checker.fail(format!("the history has anomalies\n{findings}"));
        }
    }
}
