//! Somebody who changes the membership while everything else goes on.  Members join with a token, as learners with a
//! checkpoint that they are given; they are promoted, replace others, and leave.  There are witnesses, replicas and a
//! preferred region that changes.  Base backups, by which a node makes its PostgreSQL's data folder anew, are here
//! too.
//!
//! There is one change at a time.  Any node that runs is asked for it, and another one if there is no answer.  The
//! operator never takes away what a majority needs: what follows from that would be no fault of the cluster.

use crate::ctx::{Micros, MS, SECOND};
use crate::disk::{End, SimLog};
use crate::node::{Arrival, Trouble};
use crate::postgres::Postgres;
use crate::trace;
use crate::world::{Event, Link, Machine, Phase, World, TICK};
use onetrip_core::replica::{Answer, NotDone, RequestId};
use onetrip_core::{
    checkpoint, level, Change, Level, Member, MemberRole, Members, NodeId, PreferredLeader, RegionId, Token,
};
use std::collections::BTreeSet;

const VOTERS_MAX: usize = 5;
const REPLICAS_MAX: usize = 2;
const MEMBERS_EVER_MAX: u32 = 14;
/// Longer than a node takes to answer.
const PATIENCE: Micros = 15 * SECOND;

enum Job {
    Token { token: Token, region: RegionId, address: String },
    Join { token: [u8; 32], region: RegionId, address: String },
    Remove(NodeId),
    Prefer(PreferredLeader),
    Leases(Vec<RegionId>),
    Raise(Level),
}

/// Which node it has asked, in which life of that node, and when.
struct Asked {
    machine: usize,
    life: u64,
    at: Micros,
}

#[derive(Default)]
pub(crate) struct Operator {
    job: Option<Job>,
    tokens: u8,
    requests: u64,
    asked: Option<Asked>,
}

impl Operator {
    pub fn is_busy(&self) -> bool {
        self.job.is_some()
    }
}

impl World {
    pub(crate) fn operate(&mut self) {
        let next = self.ctx.now + 200 * MS;
        self.at(next, Event::Operate);
        self.upgrade();
        let i = self.ctx.rng.below(self.machines.len() as u64) as usize;
        let Some(members) = self.machines[i].node.as_ref().map(|n| n.members().clone()) else { return };
        if self.operator.job.is_none() {
            let may_begin = self.phase == Phase::Safety && members == *self.ctx.checker.newest_members();
            if may_begin && self.ctx.rng.per_million(self.ctx.options.operate_per_million) {
                self.operator.job = self.draw_job(&members);
            }
            return;
        }
        let waits = self.operator.asked.as_ref().is_some_and(|asked| {
            let machine = &self.machines[asked.machine];
            machine.node.is_some() && machine.life == asked.life && asked.at + PATIENCE > self.ctx.now
        });
        if !waits {
            self.ask_node(i);
        }
    }

    /// Nodes that came with an older release meanwhile get the one that they need.  While faults go on, a level that
    /// is to come into force, or that was refused and is in the log, waits until chance gives them that release.
    fn upgrade(&mut self) {
        let wanted = match self.operator.job {
            _ if self.phase == Phase::Safety => Level(0),
            Some(Job::Raise(level)) => level,
            _ => self.ctx.written,
        };
        let level = self.ctx.checker.newest_members().level.max(wanted);
        for i in 0..self.machines.len() {
            if self.machines[i].node.as_ref().is_some_and(|n| n.body.release < level) {
                self.ctx.events.add("older release replaced");
                self.end_node(i, End::Process);
                self.restart_node_later(i);
            }
        }
    }

    /// Every member runs, and with a release that knows more than is in force.
    fn all_know_more(&self, members: &Members) -> bool {
        let node = |m: &Member| self.machines[m.id.0 as usize - 1].node.as_ref();
        members.members.iter().all(|m| node(m).is_some_and(|n| n.body.release > members.level))
    }

    fn ask_node(&mut self, i: usize) {
        let change = match self.operator.job.as_ref() {
            Some(Job::Token { token, .. }) => Change::AddToken(token.clone()),
            Some(Job::Join { token, region, address }) => {
                let (token, attempt) = (*token, self.operator.requests);
                Change::Join { token, attempt, asked_unix_s: 0, region: region.clone(), address: address.clone() }
            }
            Some(Job::Remove(id)) => Change::Remove(*id),
            Some(Job::Prefer(preferred)) => Change::PreferLeader(preferred.clone()),
            Some(Job::Leases(regions)) => Change::LeaseRegions(regions.clone()),
            // A release that does not know the level has no such command.
            Some(Job::Raise(level)) if self.machines[i].node.as_ref().is_none_or(|n| n.body.release < *level) => return,
            Some(Job::Raise(_)) if !self.ctx.rng.one_in(4) => return,
            Some(Job::Raise(level)) => Change::RaiseLevel(*level),
            None => return,
        };
        self.operator.requests += 1;
        let (id, life, at) = (RequestId(self.operator.requests), self.machines[i].life, self.ctx.now);
        trace!(self.ctx, "n{} is asked: {change}", i + 1);
        self.operator.asked = Some(Asked { machine: i, life, at });
        self.at(at, Event::Arrive(i, life, Arrival::Ask(id, change)));
    }

    fn has_newest_table(&self, i: usize) -> bool {
        let newest = self.ctx.checker.newest_members();
        self.machines[i].node.as_ref().is_some_and(|n| n.members().version == newest.version)
    }

    /// An earlier request was carried out, perhaps after the one that was refused.
    fn is_shown(&self, i: usize, change: &Change) -> bool {
        self.machines[i].node.as_ref().is_some_and(|n| change.is_shown_by(n.members()))
    }

    /// Node `i` answers.
    pub(crate) fn told(&mut self, i: usize, (id, change, result): Answer) {
        trace!(self.ctx, "n{} answers: {change}: {result:?}", i + 1);
        let joined = match (&change, &result) {
            (Change::Join { token, attempt, .. }, Ok(())) => self.came_with(i, token, *attempt),
            _ => None,
        };
        if let Some(member) = &joined {
            // Anybody who asked with the same token meanwhile is out by now, or will be.
            self.joined(member, i);
        }
        if id != RequestId(self.operator.requests) {
            return;
        }
        self.operator.asked = None;
        match (result, self.operator.job.take()) {
            (Ok(()), Some(Job::Token { token, region, address })) => {
                self.operator.job = Some(Job::Join { token: token.hash, region, address });
            }
            (Ok(()), Some(job)) => {
                if matches!(change, Change::Join { .. }) && joined.is_none() {
                    return self.operator.job = Some(job);
                }
                let is_raise = matches!(change, Change::RaiseLevel(_));
                self.ctx.events.add(if is_raise { "format level raised" } else { "membership changed" });
            }
            // The node answered from an old table: the change may have been made meanwhile.
            (Err(NotDone::Refused(_)), Some(job)) if !self.has_newest_table(i) || self.is_shown(i, &change) => {
                self.operator.job = Some(job);
            }
            (Err(NotDone::Refused(_)), _) => self.ctx.events.add("membership change refused"),
            (_, job) => self.operator.job = job,
        }
    }

    /// The member that this attempt has made, as node `i` knows it.
    fn came_with(&self, i: usize, token: &[u8; 32], attempt: u64) -> Option<Member> {
        self.machines[i].node.as_ref()?.members().joined_by(token, attempt).cloned()
    }

    /// The new member is given a checkpoint by the node that knows it.
    fn joined(&mut self, member: &Member, i: usize) {
        trace!(self.ctx, "n{} joins as {:?}", member.id, member.role);
        self.ctx.events.add(match member.role {
            MemberRole::Voter => "voter joined",
            MemberRole::Witness => "witness joined",
            MemberRole::Replica => "replica joined",
        });
        let Some(raw) = self.machines[i].node.as_ref().map(|n| n.encoded_checkpoint()) else { return };
        self.add_machine(member, SimLog::new(Some(checkpoint::installed(&raw))), false);
        let time = self.ctx.now + self.ctx.rng.between(MS, SECOND);
        self.at(time, Event::StartNode(member.id.0 as usize - 1, 1));
    }

    /// Makes a machine for this member, with links to all others.  The machines of members with lower numbers that
    /// have not come yet exist, and are empty.
    pub(crate) fn add_machine(&mut self, member: &Member, disk: SimLog, made: bool) {
        while self.machines.len() < member.id.0 as usize {
            let me = self.machines.len();
            self.machines.push(Machine {
                node: None,
                disk: None,
                life: 0,
                inbox: Vec::new(),
                ticks_due: 0,
                work_is_due: false,
                paused_until: 0,
                tick: TICK,
                trouble: Trouble::default(),
                gone: false,
                copying: false,
                postgres: None,
            });
            self.links.push(vec![Link::default(); me]);
            for peer in 0..=me {
                let delay = self.ctx.rng.between(100, self.ctx.options.one_way_ms_max * MS);
                self.links[peer].push(Link { delay, ..Link::default() });
                self.links[me][peer].delay = delay;
                let ends = (NodeId(me as u32 + 1), NodeId(peer as u32 + 1));
                if me != peer {
                    self.ctx.delays.extend([((ends.0, ends.1), delay), ((ends.1, ends.0), delay)]);
                }
            }
        }
        let machine = &mut self.machines[member.id.0 as usize - 1];
        machine.disk = Some(disk);
        if member.role.has_postgres() {
            let mut p = Postgres::new(member.id, member.region.as_str(), self.ctx.options.clients);
            (p.made, p.read_only) = (made, member.role == MemberRole::Replica);
            machine.postgres = Some(p);
        }
        self.ctx.regions.insert(member.id, member.region.clone());
    }

    fn draw_job(&mut self, members: &Members) -> Option<Job> {
        let all = &members.members;
        if self.ctx.options.two_releases && self.all_know_more(members) {
            // Between the look and the command, one of them is restarted, perhaps with the older release.
            let i = members.members[self.ctx.rng.below(all.len() as u64) as usize].id.0 as usize - 1;
            self.end_node(i, End::Process);
            self.restart_node_later(i);
            return Some(Job::Raise(level::KNOWN));
        }
        let voters = members.voters().count();
        if let Some(on_the_way) = all.iter().find(|m| m.role.votes() && !m.voter) {
            // It may vote by now, and the others are to be a majority without it.
            return if voters > 2 { self.begin_anew(on_the_way) } else { None };
        }
        let is_gone = |id: NodeId| self.machines[id.0 as usize - 1].gone;
        let lost = all.iter().find(|m| m.voter && is_gone(m.id)).map(|m| (m.id, m.role));
        let may_join = members.next_id.0 <= MEMBERS_EVER_MAX;
        let pick = self.ctx.rng.below(8);
        let any = all[self.ctx.rng.below(all.len() as u64) as usize].clone();
        let count = |role| all.iter().filter(|m| m.role == role).count();
        if let Some((id, role)) = lost {
            // What is lost is replaced first of all.
            return match pick {
                0 if voters > 3 => Some(Job::Remove(id)),
                _ if may_join => Some(self.token(role, Some(id), members)),
                _ if voters > 3 => Some(Job::Remove(id)),
                _ => None,
            };
        }
        match pick {
            0 | 1 if may_join && voters < VOTERS_MAX => Some(self.token(MemberRole::Voter, None, members)),
            2 if may_join && voters < VOTERS_MAX && count(MemberRole::Witness) == 0 => {
                Some(self.token(MemberRole::Witness, None, members))
            }
            3 if may_join && count(MemberRole::Replica) < REPLICAS_MAX => {
                Some(self.token(MemberRole::Replica, None, members))
            }
            4 if any.role == MemberRole::Replica && self.ctx.rng.one_in(2) => self.begin_anew(&any),
            4 if any.role == MemberRole::Replica || voters > 3 => Some(Job::Remove(any.id)),
            // An only voter has nobody to hand over to.
            5 if may_join && any.voter && voters > 1 => Some(self.token(any.role, Some(any.id), members)),
            6 if self.ctx.options.lease_regions != 0 && self.ctx.rng.one_in(2) => {
                let regions = all.iter().filter(|m| m.role.has_postgres()).map(|m| m.region.clone());
                let drawn: BTreeSet<RegionId> = regions.filter(|_| self.ctx.rng.one_in(2)).collect();
                Some(Job::Leases(drawn.into_iter().collect()))
            }
            6 if !members.leader_is_auto => Some(Job::Prefer(PreferredLeader::Auto)),
            6 | 7 if any.voter && any.role == MemberRole::Voter => {
                Some(Job::Prefer(PreferredLeader::Region(any.region)))
            }
            _ => None,
        }
    }

    /// A member that does not vote loses its disk, and joins again with the token that it came with.
    fn begin_anew(&mut self, member: &Member) -> Option<Job> {
        let (i, token) = (member.id.0 as usize - 1, member.joined?.token);
        if self.machines[i].gone || !self.ctx.rng.one_in(4) {
            return None;
        }
        self.ctx.faults.add("disk of a learner lost");
        self.end_node(i, End::Power);
        self.retire(i);
        Some(Job::Join { token, region: member.region.clone(), address: member.address.clone() })
    }

    /// The new member joins in a region of its own, or in one that has a member already.
    fn token(&mut self, role: MemberRole, replaces: Option<NodeId>, members: &Members) -> Job {
        self.operator.tokens += 1;
        let hash = [self.operator.tokens; 32];
        let region = match self.ctx.rng.one_in(3) {
            true => members.members[self.ctx.rng.below(members.members.len() as u64) as usize].region.clone(),
            false => RegionId(format!("r{}", members.next_id)),
        };
        let address = format!("host:t{}", self.operator.tokens);
        Job::Token { token: Token { hash, role, replaces, expires_unix_s: u64::MAX }, region, address }
    }

    /// Its PostgreSQL has the rows, or can get them from its own log.  One that waits for a copy has not.  That is a
    /// limit of the product, so no other disk is taken from the cluster meanwhile.
    fn has_rows(&self, i: usize) -> bool {
        let m = &self.machines[i];
        let first = m.node.as_ref().map(|n| n.log_first()).or(m.disk.as_ref().map(SimLog::first_index));
        m.postgres.as_ref().zip(first).is_some_and(|(p, first)| p.made && !m.copying && p.applied.next() >= first)
    }

    /// The cluster can do without this machine for good.
    pub(crate) fn can_lose(&self, i: usize) -> bool {
        let members = self.ctx.checker.newest_members();
        let id = NodeId(i as u32 + 1);
        let is_gone = |m: &&Member| self.machines[m.id.0 as usize - 1].gone || m.id == id;
        let (voters, lost) = (members.voters().count(), members.voters().filter(is_gone).count());
        let on_the_way = members.members.iter().any(|m| m.role.votes() && !m.voter);
        let others: Vec<&Member> = members.voters().filter(|m| m.role == MemberRole::Voter && !is_gone(m)).collect();
        let all_have_rows = !others.is_empty() && others.iter().all(|m| self.has_rows(m.id.0 as usize - 1));
        let so_far = self.machines.iter().filter(|m| m.gone).count();
        let is_calm = self.phase == Phase::Safety && !self.operator.is_busy() && !on_the_way;
        is_calm && so_far < self.ctx.options.losses_max && lost * 2 < voters && all_have_rows
    }

    /// The machine does not come back.
    pub(crate) fn retire(&mut self, i: usize) {
        self.machines[i].gone = true;
        self.machines[i].disk = None;
        self.crash_postgres(i, SECOND);
    }

    /// A node needs its PostgreSQL's data folder made anew: the server stops, and a base backup begins.
    pub(crate) fn begin_copy(&mut self, i: usize) {
        if self.machines[i].copying || self.machines[i].postgres.is_none() {
            return;
        }
        self.crash_postgres(i, SECOND);
        let m = &mut self.machines[i];
        m.copying = true;
        if m.node.as_ref().is_none_or(|n| n.ordered().is_none_or(|order| !order.keep_old)) {
            // This server could not get on, so its rows do not count.
            m.postgres.iter_mut().for_each(|p| p.made = false);
        }
        self.ctx.events.add("base backup begun");
        let time = self.ctx.now + self.ctx.rng.between(50 * MS, 3 * SECOND);
        self.at(time, Event::Copy(i));
    }

    /// The old folder is still there, if it is of any use.
    pub(crate) fn end_copy(&mut self, i: usize) {
        if std::mem::take(&mut self.machines[i].copying) {
            let m = &mut self.machines[i];
            let incarnation = m.postgres.as_ref().map_or(0, |p| p.incarnation);
            // The order was withdrawn: the server can get on after all.
            if m.node.as_ref().is_some_and(|n| n.ordered().is_none()) {
                m.postgres.iter_mut().for_each(|p| p.made = true);
            }
            self.at(self.ctx.now, Event::StartPostgres(i, incarnation));
        }
    }

    pub(crate) fn copy(&mut self, i: usize) {
        let m = &self.machines[i];
        let Some(order) = m.node.as_ref().filter(|_| m.copying && !m.gone).and_then(|n| n.ordered()) else {
            self.end_copy(i);
            return;
        };
        let donor = self.ctx.rng.below(self.machines.len() as u64) as usize;
        let serves =
            self.machines[donor].postgres.as_ref().is_some_and(|p| p.up && p.made && p.applied >= order.at_least);
        if !serves || donor == i {
            let time = self.ctx.now + 300 * MS;
            return self.at(time, Event::Copy(i));
        }
        let Some(mut mine) = self.machines[i].postgres.take() else { return };
        if let Some(theirs) = &self.machines[donor].postgres {
            trace!(self.ctx, "p{} is copied from p{} at {}", i + 1, donor + 1, theirs.applied);
            mine.become_copy_of(theirs);
        }
        let incarnation = mine.incarnation;
        self.machines[i].postgres = Some(mine);
        let m = &mut self.machines[i];
        m.copying = false;
        if let Some(n) = m.node.as_mut().filter(|_| order.keep_old) {
            n.body.copying.done(n.body.clock);
        }
        self.ctx.events.add("base backup complete");
        self.at(self.ctx.now, Event::StartPostgres(i, incarnation));
    }
}
