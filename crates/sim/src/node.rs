//! One node: the real consensus, certifier and desk, driven in the order in which the daemon's core thread drives them, on
//! a simulated disk; what it keeps on that disk is in `storage`.
//!
//! Between any two stages of that order the node can be told to die (`fuse`): what it had sent is under way, what it
//! had not synced may be gone.

use crate::agent::{FromNode, Said, ToNode, Wire};
use crate::ctx::{Ctx, Micros, Plant};
use crate::disk::SimLog;
use crate::poison::Shown;
use crate::rng::mix;
use crate::trace;
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, History};
use onetrip_core::consensus::{Committed, Consensus, EntryType, Input, Leadership, Message, Output, Role};
use onetrip_core::decide::decide;
use onetrip_core::desk::{Books, Desk};
use onetrip_core::{Command, Conf, Entry, EntryKind, LogIndex, Members, NodeId, Term};
use std::collections::BTreeMap;
use std::sync::Arc;

const POSITION_TICKS: u64 = 25;
/// More rounds than this in one go mean that consensus never comes to rest.
const ROUNDS_MAX: usize = 10_000;
/// For this long one election draw holds.
const DRAW_TICKS: u64 = 64;

/// How a disk behaves, from outside.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub next_sync_fails: bool,
    pub full_until: Micros,
    pub slow_until: Micros,
}

#[derive(Debug)]
pub enum Arrival {
    Raft(Message),
    /// Applied and durable, of a member's PostgreSQL, if it has said so.
    Position(NodeId, Option<(LogIndex, LogIndex)>),
    Unreachable(NodeId),
    /// A peer says that this node was removed.
    Removed,
    Agent(ToNode),
    Change(Command),
    /// An operator wants the entry at which its PostgreSQL stands still to be left out; `true`: whoever is away.
    Skip(bool),
    /// It is to stop in good order.
    Stop,
    Checkpointed(LogIndex, Bytes),
    Tick(u32),
}

pub enum Departure {
    Raft(Message),
    /// Goes out in any case, as a connection is always tried anew.
    Position(Option<(LogIndex, LogIndex)>),
    Agent(FromNode),
    /// Written by now, if the node lives that long.
    Checkpoint(LogIndex, Bytes),
}

/// Why a node stopped in the middle of its work.
pub enum Stop {
    Crashed,
    /// The disk failed it, and it ended before it said anything that rests on that.
    Disk(&'static str),
    /// It is no member any more.
    Removed,
    Broken(String),
}

pub type Result<T> = std::result::Result<T, Stop>;

pub struct Node {
    pub id: NodeId,
    pub life: u64,
    pub(crate) has_postgres: bool,
    pub(crate) members: Arc<Members>,
    /// The configuration and table that the checker saw last.
    checked: (Conf, Arc<Members>),
    pub(crate) consensus: Consensus<SimLog>,
    pub(crate) certifier: Certifier,
    pub(crate) history: History,
    pub(crate) desk: Desk<Wire>,
    said: Said,
    pub(crate) checkpoint: LogIndex,
    pub(crate) checkpoint_under_way: bool,
    /// Of the other members' PostgreSQL: durable.
    pub(crate) positions: BTreeMap<NodeId, LogIndex>,
    /// The same: what they show.
    pub(crate) shown: BTreeMap<NodeId, Shown>,
    /// When PostgreSQL was last copied because it could not apply an entry.
    pub(crate) healed: Option<Micros>,
    /// The order to copy it is for this entry, and not because it cannot be brought on.
    pub(crate) heals: Option<LogIndex>,
    /// PostgreSQL's data folder has to be made anew, from a copy that shows at least this.
    pub rebuild: Option<LogIndex>,
    /// It has been ordered since the world looked last.
    pub rebuild_ordered: bool,
    leadership: Option<Leadership>,
    pub(crate) tick: u64,
    dropped: Vec<NodeId>,
    /// Stages until it dies.
    pub fuse: Option<u32>,
    pub trouble: Trouble,
    /// It has become leader in the last stretch of work.
    pub elected: bool,
    /// Its own clock within one stretch of work; ahead of the world's while it writes.
    pub(crate) clock: Micros,
    pub busy_until: Micros,
    pub departures: Vec<(Micros, Departure)>,
}

impl Node {
    /// `has_postgres`: its configuration says so; `postgres_is_there`: so does its disk.
    pub fn start(
        id: NodeId,
        life: u64,
        log: SimLog,
        has_postgres: bool,
        postgres_is_there: bool,
        ctx: &mut Ctx,
    ) -> Result<Node> {
        let (state, consensus) = Node::open(id, log, ctx)?;
        let last = consensus.log().last_index();
        let (checkpoint, region) = (state.index(), ctx.region(id));
        let (starts, running) = (consensus.log().starts.clone(), state.certifier.running_incarnation(id));
        trace!(ctx, "n{id} starts, life {life}: log {}..{last}, {state:?}", consensus.log().first_index());
        let known_from = match ctx.options.plant {
            Some(Plant::EarlyWelcome) => LogIndex::ZERO,
            _ => last,
        };
        let mut node = Node {
            id,
            life,
            has_postgres,
            checked: (Conf::default(), consensus.members().clone()),
            members: Arc::new(state.members),
            consensus,
            certifier: state.certifier,
            history: state.history,
            desk: Desk::new(id, region, known_from, &starts, running),
            said: Said::default(),
            checkpoint,
            checkpoint_under_way: false,
            positions: BTreeMap::new(),
            shown: BTreeMap::new(),
            healed: None,
            heals: None,
            rebuild: None,
            rebuild_ordered: false,
            leadership: None,
            tick: 0,
            dropped: Vec::new(),
            fuse: None,
            trouble: Trouble::default(),
            elected: false,
            clock: ctx.now,
            busy_until: ctx.now,
            departures: Vec::new(),
        };
        node.draw(ctx);
        node.check_membership()?;
        if has_postgres && !postgres_is_there {
            node.order_rebuild();
        }
        Ok(node)
    }

    /// Everything that has come in, then all the work that follows from it.
    pub fn work(&mut self, arrivals: Vec<Arrival>, ctx: &mut Ctx) -> Result<()> {
        self.clock = ctx.now;
        for arrival in arrivals {
            self.handle(arrival, ctx)?;
        }
        self.stage()?;
        let result = self.advance(ctx);
        self.busy_until = self.clock;
        result
    }

    fn handle(&mut self, arrival: Arrival, ctx: &mut Ctx) -> Result<()> {
        match arrival {
            Arrival::Raft(message) => self.step(Input::Message(message), ctx),
            Arrival::Unreachable(peer) => self.step(Input::Unreachable(peer), ctx),
            Arrival::Change(command) => self.step(Input::Change(command), ctx),
            Arrival::Skip(force) => self.leave_out(force, ctx)?,
            Arrival::Stop => {
                self.desk.stop();
                self.step(Input::HandOver, ctx);
            }
            Arrival::Removed => return Err(Stop::Removed),
            Arrival::Position(_, None) => {}
            Arrival::Position(peer, Some((applied, durable))) => {
                self.positions.insert(peer, durable);
                self.hear(peer, applied);
                self.step(Input::Position(peer, applied), ctx);
            }
            Arrival::Agent(frame) => {
                let event = frame.for_desk(&self.said);
                if let Some(starts) = self.desk.starts_with(&event) {
                    self.consensus.log_mut().starts = starts;
                    self.stage()?;
                }
                let mut books = Books {
                    certifier: &self.certifier,
                    history: &mut self.history,
                    log: self.consensus.log(),
                    members: &self.members,
                    tick: self.tick,
                };
                let raw = self.desk.handle(event, &mut books).map_err(|e| broken(self.id, &e))?;
                self.answer();
                if let Some(raw) = raw {
                    self.propose(raw, ctx);
                }
                self.follow_rebuild();
            }
            Arrival::Checkpointed(index, raw) => self.checkpointed(index, raw, ctx)?,
            Arrival::Tick(times) => {
                for _ in 0..times {
                    self.on_tick(ctx);
                }
            }
        }
        Ok(())
    }

    /// Sends on what the desk has said.
    fn answer(&mut self) {
        let said = std::mem::take(&mut *self.said.lock().expect("one thread"));
        self.departures.extend(said.into_iter().map(|frame| (self.clock, Departure::Agent(frame))));
        self.desk.take_notes();
    }

    fn follow_rebuild(&mut self) {
        if self.desk.is_unfed() && self.rebuild.is_none_or(|at_least| at_least < self.feedable_from()) {
            self.order_rebuild();
        } else if self.rebuild.is_some_and(|at_least| self.desk.is_fed() && self.desk.applied() >= Some(at_least)) {
            (self.rebuild, self.heals) = (None, None);
        }
    }

    fn order_rebuild(&mut self) {
        self.rebuild = Some(self.feedable_from());
        self.heals = None;
        self.rebuild_ordered = true;
    }

    pub(crate) fn step(&mut self, input: Input, ctx: &mut Ctx) {
        // What raft refuses is no fault of this node.
        let _ = self.consensus.step(input);
        self.draw(ctx);
    }

    /// The timeout hangs on seed, node, term, role and time alone, so it does not matter when raft drew its own.
    pub(crate) fn draw(&mut self, ctx: &mut Ctx) {
        let l = self.consensus.leadership();
        let parts = [u64::from(self.id.0), self.life, l.term.0, l.role as u64, self.tick / DRAW_TICKS];
        let draw = parts.iter().fold(ctx.options.seed, |sum, part| mix(sum ^ mix(*part + 1)));
        self.consensus.set_election_draw(draw);
    }

    fn propose(&mut self, raw: Bytes, ctx: &mut Ctx) {
        if let Err(onetrip_core::Error::NoLeader) = self.consensus.step(Input::Propose(raw.clone())) {
            self.desk.not_taken(&raw, self.tick);
        }
        self.draw(ctx);
    }

    fn on_tick(&mut self, ctx: &mut Ctx) {
        self.tick += 1;
        self.step(Input::Tick, ctx);
        for raw in self.desk.resend(self.tick, false) {
            self.propose(raw, ctx);
        }
        if self.tick % POSITION_TICKS == 0 {
            let position = self.my_position();
            if let Some((applied, _)) = position {
                self.step(Input::Position(self.id, applied), ctx);
            }
            self.departures.push((self.clock, Departure::Position(position)));
            self.heal(ctx);
            // As measured round trips would have it.
            let round_trips = ctx.rng.between(1, ctx.options.patience);
            self.consensus.set_election_ticks(ctx.options.election_ticks * round_trips as usize);
            self.cut(ctx);
            self.consider_checkpoint(ctx);
        }
    }

    /// A place between two stages, where the node may die.
    pub(crate) fn stage(&mut self) -> Result<()> {
        match &mut self.fuse {
            Some(0) => Err(Stop::Crashed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn advance(&mut self, ctx: &mut Ctx) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            for peer in std::mem::take(&mut self.dropped) {
                self.step(Input::Unreachable(peer), ctx);
            }
            let mut out = Output::default();
            while self.consensus.poll(&mut out) {
                self.draw(ctx);
                self.one_round(&mut out, ctx)?;
            }
            let mut books = Books {
                certifier: &self.certifier,
                history: &mut self.history,
                log: self.consensus.log(),
                members: &self.members,
                tick: self.tick,
            };
            self.desk.let_worker_in(&mut books).map_err(|e| broken(self.id, &e))?;
            self.answer();
            self.follow_rebuild();
            if !self.notice_leader(ctx) {
                return Ok(());
            }
        }
        Err(Stop::Broken(format!("node {} has work without end", self.id)))
    }

    fn one_round(&mut self, out: &mut Output, ctx: &mut Ctx) -> Result<()> {
        self.send(std::mem::take(&mut out.send_now), ctx)?;
        self.certify(std::mem::take(&mut out.committed), ctx)?;
        self.stage()?;
        if let Some(persist) = out.persist.take() {
            self.persist(persist, ctx)?;
        }
        self.consensus.persisted(out);
        self.draw(ctx);
        self.stage()?;
        self.send(std::mem::take(&mut out.send_after), ctx)?;
        if let Some(state) = out.restored.take() {
            ctx.events.add("snapshot installed");
            self.restored(*state, ctx);
            self.answer();
            self.check_membership()?;
            self.stage()?;
        }
        self.certify(std::mem::take(&mut out.committed), ctx)?;
        if (self.consensus.conf(), &self.members) != (&self.checked.0, &self.checked.1) {
            self.checked = (self.consensus.conf().clone(), self.members.clone());
            let index = self.consensus.applied().0;
            ctx.checker.configured(self.id, index, &self.checked.0, self.consensus.members());
        }
        if ctx.options.plant == Some(Plant::OldTerm) {
            self.count_any_term(ctx)?;
        }
        self.stage()
    }

    fn send(&mut self, messages: Vec<Message>, ctx: &mut Ctx) -> Result<()> {
        for message in messages {
            self.stage()?;
            let to = NodeId(message.to as u32);
            let is_full = ctx.rng.one_in(5_000);
            if is_full {
                ctx.faults.add("queue to a peer full");
            }
            if is_full || self.members.removed(to) {
                self.dropped.push(to);
            } else {
                self.departures.push((self.clock, Departure::Raft(message)));
            }
        }
        Ok(())
    }

    fn certify(&mut self, committed: Vec<Committed>, ctx: &mut Ctx) -> Result<()> {
        for entry in committed {
            let index = entry.index;
            if ctx.options.plant == Some(Plant::OldTerm) && index <= self.certifier.decided() {
                ctx.checker.holds(self.id, index, &entry.data);
                continue;
            }
            let decided = match self.let_stranger_in(&entry, ctx) {
                Some(decided) => decided,
                None => decide(&entry, &mut self.certifier, &mut self.history, &mut self.members),
            };
            let decided = decided.map_err(|e| broken(self.id, &e))?;
            ctx.checker.decides(self.id, index, &entry.data, decided.map(|d| d.1));
            if let Some(members) = &entry.members {
                trace!(ctx, "n{} has table {} at {index}", self.id, members.version);
                ctx.checker.has_members(self.id, index, members);
                self.positions.retain(|id, _| members.contains(*id));
                self.check_membership()?;
            }
            let Some((txn, decision)) = decided else { continue };
            trace!(ctx, "n{} decides {index}: {txn} {decision:?}", self.id);
            let books = Books {
                certifier: &self.certifier,
                history: &mut self.history,
                log: self.consensus.log(),
                members: &self.members,
                tick: self.tick,
            };
            self.desk.decided(index, txn, decision, &books).map_err(|e| broken(self.id, &e))?;
            self.answer();
            self.stage()?;
        }
        Ok(())
    }

    /// A node that is no member any more has nothing to say.
    fn check_membership(&self) -> Result<()> {
        let is_removed = self.members.removed(self.id) && !self.consensus.conf().contains(self.id);
        if is_removed {
            return Err(Stop::Removed);
        }
        Ok(())
    }

    /// The planted mistake: this node alone forgets what it means for its entries that a member has left.
    fn let_stranger_in(&mut self, entry: &Committed, ctx: &mut Ctx) -> Option<onetrip_core::Result<Decided>> {
        if ctx.options.plant != Some(Plant::Stranger) || self.id != NodeId(1) {
            return None;
        }
        if let Some(after) = &entry.members {
            self.members = after.clone();
            return Some(self.certifier.skip(entry.index).map(|()| None));
        }
        let decoded = entry.transaction().and_then(|raw| Entry::decode(raw.clone()).ok())?;
        if decoded.kind != EntryKind::Transaction || self.members.contains(decoded.txn.node) {
            return None;
        }
        Some(self.certifier.certify(entry.index, &decoded).map(|decision| Some((decoded.txn, decision))))
    }

    /// The planted mistake: Raft's paper, figure 8.
    fn count_any_term(&mut self, ctx: &mut Ctx) -> Result<()> {
        let status = self.consensus.status();
        let mut matched: Vec<LogIndex> = status.matched.iter().map(|(_, m)| *m).collect();
        matched.sort_unstable();
        let Some(majority) = matched.get((matched.len().max(1) - 1) / 2).copied() else { return Ok(()) };
        for index in self.certifier.decided().0 + 1..=majority.min(status.last).0 {
            let Some(entry) = self.consensus.log().entry(LogIndex(index)).cloned() else { break };
            if entry.term < status.leadership.term.0 {
                ctx.events.add("entry of an old term counted");
                // The worst moment to die; left to chance it would take too many seeds.
                self.fuse = self.fuse.or(Some(ctx.rng.below(4) as u32));
            }
            let (index, kind) = (LogIndex(index), EntryType::EntryNormal);
            let committed = Committed { index, term: Term(entry.term), kind, data: entry.data, members: None };
            self.certify(vec![committed], ctx)?;
        }
        Ok(())
    }

    /// True: proposals went out again, so there is new work.
    fn notice_leader(&mut self, ctx: &mut Ctx) -> bool {
        let now = self.consensus.leadership();
        if self.leadership == Some(now) {
            return false;
        }
        let before = self.leadership.replace(now);
        trace!(ctx, "n{} {:?} in term {}, leader {:?}", self.id, now.role, now.term, now.leader);
        if now.role == Role::Leader {
            ctx.checker.leads(self.id, now.term);
            ctx.events.add("leader elected");
            self.elected = true;
        }
        let same_leader = before.is_some_and(|b| b.leader == now.leader && b.term == now.term);
        if now.leader.is_none() || same_leader {
            return false;
        }
        for raw in self.desk.resend(self.tick, true) {
            self.propose(raw, ctx);
        }
        true
    }

    pub fn certifier(&self) -> &Certifier {
        &self.certifier
    }

    pub fn log_first(&self) -> LogIndex {
        self.consensus.log().first_index()
    }

    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    pub fn is_leader(&self) -> bool {
        self.leadership.is_some_and(|l| l.role == Role::Leader)
    }
}

type Decided = Option<(onetrip_core::TxnId, onetrip_core::certifier::Decision)>;

pub(crate) fn broken(id: NodeId, error: &onetrip_core::Error) -> Stop {
    Stop::Broken(format!("node {id}: {error}"))
}
