//! One node: the real consensus and the real certifier, driven in the order in which the daemon's core thread drives
//! them, on a simulated disk.
//!
//! Between any two stages of that order the node can be told to die (`fuse`): what it had sent is under way, what it
//! had not synced may be gone.

use crate::agent::{ToNode, ToPostgres};
use crate::ctx::{Ctx, Micros, Plant, MS};
use crate::desk::{Books, Desk};
use crate::disk::SimLog;
use crate::rng::mix;
use crate::trace;
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, History};
use onetrip_core::consensus::{Committed, Config, Consensus, EntryType, Input, Leadership, Message, Output, Role};
use onetrip_core::decide::decide;
use onetrip_core::{checkpoint, Checkpoint, LogIndex, Members, NodeId, Term};
use std::collections::BTreeMap;
use std::sync::Arc;

const HEARTBEAT_TICKS: usize = 5;
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

/// What survives a crash.
pub struct Disk {
    pub log: SimLog,
    pub checkpoint: Option<Bytes>,
}

#[derive(Debug)]
pub enum Arrival {
    Raft(Message),
    Durable(NodeId, LogIndex),
    Unreachable(NodeId),
    Agent(ToNode),
    Checkpointed(LogIndex, Bytes),
    Tick(u32),
}

pub enum Departure {
    Raft(Message),
    Durable(LogIndex),
    Agent(ToPostgres),
    /// Written by now, if the node lives that long.
    Checkpoint(LogIndex, Bytes),
}

/// Why a node stopped in the middle of its work.
pub enum Stop {
    Crashed,
    /// The disk failed it, and it ended before it said anything that rests on that.
    Disk(&'static str),
    Broken(String),
}

type Result<T> = std::result::Result<T, Stop>;

pub struct Node {
    pub id: NodeId,
    pub life: u64,
    has_postgres: bool,
    members: Arc<Members>,
    consensus: Consensus<SimLog>,
    certifier: Certifier,
    history: History,
    desk: Desk,
    checkpoint: LogIndex,
    checkpoint_raw: Option<Bytes>,
    checkpoint_under_way: bool,
    durable_of: BTreeMap<NodeId, LogIndex>,
    leadership: Option<Leadership>,
    tick: u64,
    dropped: Vec<NodeId>,
    /// Stages until it dies.
    pub fuse: Option<u32>,
    pub trouble: Trouble,
    /// It has become leader in the last stretch of work.
    pub elected: bool,
    /// Its own clock within one stretch of work; ahead of the world's while it writes.
    clock: Micros,
    pub busy_until: Micros,
    pub departures: Vec<(Micros, Departure)>,
}

impl Node {
    pub fn start(id: NodeId, life: u64, disk: Disk, ctx: &mut Ctx) -> Result<Node> {
        let o = &ctx.options;
        let state = match &disk.checkpoint {
            Some(raw) => Checkpoint::decode(raw.clone(), o.limits).map_err(|e| broken(id, &e))?,
            None => Checkpoint::bootstrap(o.members(), o.limits),
        };
        let checkpoint = state.index();
        let mut log = disk.log;
        let (first, last) = (log.first_index(), log.last_index());
        if last < checkpoint || first > checkpoint.next() {
            let why = format!("node {id} holds entries {first} to {last}, its checkpoint stands at {checkpoint}");
            return Err(Stop::Broken(why));
        }
        log.raise_commit(checkpoint);
        log.stand_on(state.conf);
        let members = Arc::new(state.members);
        let config = Config {
            id,
            limits: o.limits,
            applied: checkpoint,
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: o.election_ticks,
            transfer_ticks: o.transfer_ticks,
        };
        trace!(ctx, "n{id} starts, life {life}: log {first}..{last}, checkpoint {checkpoint}");
        let mut consensus = Consensus::new(config, log, members.clone()).map_err(|e| broken(id, &e))?;
        consensus.set_message_bytes_max(ctx.options.message_bytes_max);
        let voters = ctx.options.voters;
        let mut node = Node {
            id,
            life,
            has_postgres: !(ctx.options.witness && id.0 == voters),
            members,
            consensus,
            certifier: state.certifier,
            history: state.history,
            desk: Desk::new(last),
            checkpoint,
            checkpoint_raw: disk.checkpoint,
            checkpoint_under_way: false,
            durable_of: BTreeMap::new(),
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
        Ok(node)
    }

    /// What is left after a crash now.
    pub fn crash(self, ctx: &mut Ctx) -> Disk {
        Disk { log: self.consensus.log().after_crash(&mut ctx.rng), checkpoint: self.checkpoint_raw }
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
            Arrival::Durable(peer, durable) => {
                self.durable_of.insert(peer, durable);
            }
            Arrival::Agent(frame) => self.agent(frame, ctx)?,
            Arrival::Checkpointed(..) if self.trouble.full_until > self.clock => {
                return Err(Stop::Disk("disk full at a checkpoint"));
            }
            Arrival::Checkpointed(index, raw) => {
                self.checkpoint = index;
                self.checkpoint_raw = Some(raw);
                self.checkpoint_under_way = false;
                if !self.has_postgres {
                    self.history.forget_to(index);
                }
                self.cut(ctx);
            }
            Arrival::Tick(times) => {
                for _ in 0..times {
                    self.on_tick(ctx);
                }
            }
        }
        Ok(())
    }

    fn agent(&mut self, frame: ToNode, ctx: &mut Ctx) -> Result<()> {
        let mut books = Books {
            certifier: &self.certifier,
            history: &mut self.history,
            log: self.consensus.log(),
            tick: self.tick,
            plant: ctx.options.plant,
        };
        let mut raw = None;
        match frame {
            ToNode::Hello { conn, worker } => self.desk.open(conn, worker, &mut books),
            ToNode::Propose { conn, txn, raw: r } => raw = self.desk.propose(conn, txn, r, &books),
            ToNode::Position { conn, applied, durable } => self.desk.position(conn, applied, durable, &mut books),
            ToNode::Done { conn, txn } => self.desk.done(conn, txn),
            ToNode::Closed { conn } => self.desk.closed(conn),
        }
        self.answer()?;
        if let Some(raw) = raw {
            self.propose(raw, ctx);
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        let clock = self.clock;
        self.departures.extend(self.desk.answers.drain(..).map(|a| (clock, Departure::Agent(a))));
        match self.desk.broken.take() {
            Some(why) => Err(Stop::Broken(format!("node {}: {why}", self.id))),
            None => Ok(()),
        }
    }

    fn step(&mut self, input: Input, ctx: &mut Ctx) {
        // What raft refuses is no fault of this node.
        let _ = self.consensus.step(input);
        self.draw(ctx);
    }

    /// The timeout hangs on seed, node, term, role and time alone, so it does not matter when raft drew its own.
    fn draw(&mut self, ctx: &mut Ctx) {
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
            let durable = self.desk.durable.or((!self.has_postgres).then_some(self.checkpoint));
            if let Some(durable) = durable {
                self.durable_of.insert(self.id, durable);
                self.departures.push((self.clock, Departure::Durable(durable)));
            }
            self.cut(ctx);
            let entries = self.certifier.decided().0 - self.checkpoint.0;
            if entries >= ctx.options.checkpoint_entries && !self.checkpoint_under_way {
                self.checkpoint_under_way = true;
                let (consensus, term) = (&self.consensus, self.consensus.applied().1);
                let (conf, members) = (consensus.conf(), consensus.members());
                let raw = checkpoint::encode(term, conf, members, &self.certifier, &self.history);
                let done = self.clock + ctx.rng.between(0, 200 * MS);
                self.departures.push((done, Departure::Checkpoint(self.certifier.decided(), raw)));
            }
        }
    }

    fn cut(&mut self, ctx: &mut Ctx) {
        let all: Option<Vec<LogIndex>> =
            self.members.members.iter().map(|m| self.durable_of.get(&m.id).copied()).collect();
        let Some(needed) = all.and_then(|d| d.into_iter().min()) else { return };
        let upto = needed.min(self.checkpoint).0.saturating_sub(ctx.options.cut_margin);
        if upto >= self.consensus.log().first_index().0 {
            ctx.events.add("log cut");
            self.consensus.log_mut().cut(LogIndex(upto));
        }
    }

    /// A place between two stages, where the node may die.
    fn stage(&mut self) -> Result<()> {
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
                tick: self.tick,
                plant: ctx.options.plant,
            };
            self.desk.let_worker_in(&mut books);
            self.answer()?;
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
        if let Some(persist) = out.persist.take().filter(|p| p.must_sync) {
            if self.trouble.full_until > self.clock {
                // The space for a record is set aside before it is written.
                return Err(Stop::Disk("disk full"));
            }
            self.consensus.log_mut().write(&persist.entries, persist.hard_state.as_ref());
            self.stage()?;
            self.sync(ctx)?;
            self.stage()?;
        }
        self.consensus.persisted(out);
        self.draw(ctx);
        self.stage()?;
        self.send(std::mem::take(&mut out.send_after), ctx)?;
        self.certify(std::mem::take(&mut out.committed), ctx)?;
        if ctx.options.plant == Some(Plant::OldTerm) {
            self.count_any_term(ctx)?;
        }
        self.stage()
    }

    fn sync(&mut self, ctx: &mut Ctx) -> Result<()> {
        let slow = if self.trouble.slow_until > self.clock || ctx.rng.one_in(500) { 50 } else { 1 };
        self.clock += ctx.rng.between(50, ctx.options.sync_us_max) * slow;
        if std::mem::take(&mut self.trouble.next_sync_fails) {
            if ctx.options.plant != Some(Plant::IgnoreSyncError) {
                return Err(Stop::Disk("fsync error"));
            }
            self.consensus.log_mut().drop_unsynced();
        }
        if ctx.options.plant != Some(Plant::SkipSync) {
            self.consensus.log_mut().sync();
        }
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>, ctx: &mut Ctx) -> Result<()> {
        for message in messages {
            self.stage()?;
            if ctx.rng.one_in(5_000) {
                ctx.faults.add("queue to a peer full");
                self.dropped.push(NodeId(message.to as u32));
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
                continue;
            }
            let decided = decide(&entry, &mut self.certifier, &mut self.history, &mut self.members);
            let decided = decided.map_err(|e| broken(self.id, &e))?;
            ctx.checker.decides(self.id, index, &entry.data, decided.map(|d| d.1));
            let Some((txn, decision)) = decided else { continue };
            trace!(ctx, "n{} decides {index}: {txn} {decision:?}", self.id);
            let books = Books {
                certifier: &self.certifier,
                history: &mut self.history,
                log: self.consensus.log(),
                tick: self.tick,
                plant: ctx.options.plant,
            };
            self.desk.decided(index, txn, decision, &books);
            self.answer()?;
            self.stage()?;
        }
        Ok(())
    }

    /// The planted mistake: Raft's paper, figure 8.
    fn count_any_term(&mut self, ctx: &mut Ctx) -> Result<()> {
        let status = self.consensus.status();
        let mut matched: Vec<LogIndex> = status.matched.iter().map(|(_, m)| *m).collect();
        matched.sort_unstable();
        let Some(majority) = matched.get((matched.len().max(1) - 1) / 2).copied() else { return Ok(()) };
        for index in self.certifier.decided().0 + 1..=majority.min(status.last).0 {
            let Some(data) = self.consensus.log().data(LogIndex(index)) else { break };
            let term = raft::Storage::term(self.consensus.log(), index).unwrap_or(0);
            if term < status.leadership.term.0 {
                ctx.events.add("entry of an old term counted");
                // The worst moment to die; left to chance it would take too many seeds.
                self.fuse = self.fuse.or(Some(ctx.rng.below(4) as u32));
            }
            let (index, kind) = (LogIndex(index), EntryType::EntryNormal);
            self.certify(vec![Committed { index, term: Term(term), kind, data, members: None }], ctx)?;
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

    pub fn is_leader(&self) -> bool {
        self.leadership.is_some_and(|l| l.role == Role::Leader)
    }
}

fn broken(id: NodeId, error: &onetrip_core::Error) -> Stop {
    Stop::Broken(format!("node {id}: {error}"))
}
