//! The world of one run: time, network, crashes, and which node hears what when.
//!
//! First there is a safety phase, in which anything may fail at any time.  Then everything heals; within a bound of
//! simulated time the cluster must commit again in every region, and come to rest equal everywhere.

use crate::agent::{ConnId, FromNode, ToNode};
use crate::checker::Checker;
use crate::ctx::{Ctx, InjectedBug, Micros, Options, Stats, MS, SECOND};
use crate::disk::{End, SimLog};
use crate::node::{Arrival, Node, Stop, Trouble};
use crate::operator::Operator;
use crate::postgres::{Postgres, Wish};
use crate::rng::{mix, Rng};
use crate::stream::{Channel, OnStream, Stream};
use crate::trace;
use onetrip_checker as histories;
use onetrip_core::agent::OutcomeState;
use onetrip_core::certifier::Outcome;
use onetrip_core::{Level, LogIndex, NodeId};
use std::collections::BTreeMap;

pub(crate) const TICK: Micros = 20 * MS;
const TICKS_AT_ONCE: u32 = 3;
/// The delay between PostgreSQL and its node.
pub(crate) const SOCKET: Micros = 40;

pub(crate) enum Event {
    Tick(usize, u64),
    Work(usize, u64),
    Arrive(usize, u64, Arrival),
    /// From one peer to another.  The receiver may be in another life by then.
    Deliver(usize, usize, Arrival),
    /// The same, on this connection.
    Stream(usize, usize, Channel, u64, OnStream),
    ToPostgres(usize, u64, FromNode),
    Session(usize, u64, usize, u64),
    Worker(usize, u64),
    ArrivalWorker(usize, u64, u64),
    Flush(usize, u64),
    Ask,
    StartNode(usize, u64),
    EndNode(usize, u64),
    StartPostgres(usize, u64),
    /// A base backup for that machine's PostgreSQL may be complete.
    Copy(usize),
    Operate,
    /// The operator looks whether a region stands still for good.
    Skip,
    Fault,
    Look,
}

#[derive(Clone, Default)]
pub(crate) struct Link {
    pub delay: Micros,
    pub cut_until: Micros,
    pub slow_until: Micros,
    pub last_delivery: Micros,
    pub streams: [Stream; 2],
}

pub(crate) struct Machine {
    pub node: Option<Node>,
    pub disk: Option<SimLog>,
    pub life: u64,
    pub inbox: Vec<Arrival>,
    pub ticks_due: u32,
    pub work_is_due: bool,
    pub paused_until: Micros,
    /// The time between two ticks of its clock.
    pub tick: Micros,
    pub trouble: Trouble,
    /// Its disk is lost, or it was removed: it does not come back.
    pub gone: bool,
    /// A base backup is under way.
    pub copying: bool,
    pub postgres: Option<Postgres>,
}

impl Machine {
    /// The machine has come, and stays.
    pub fn is_here(&self) -> bool {
        !self.gone && (self.node.is_some() || self.disk.is_some())
    }
}

#[derive(PartialEq)]
pub(crate) enum Phase {
    Safety,
    Moving { since: Micros, acknowledged: Vec<Option<u64>> },
    Resting { since: Micros, quiet_since: Micros },
    Over,
}

pub struct World {
    pub(crate) ctx: Ctx,
    pub(crate) machines: Vec<Machine>,
    pub(crate) links: Vec<Vec<Link>>,
    queue: BTreeMap<(Micros, u64), Event>,
    sequence: u64,
    next_conn: u64,
    /// The life of the node to which a connection belongs.
    conn_life: BTreeMap<ConnId, u64>,
    pub(crate) phase: Phase,
    pub(crate) operator: Operator,
    hash: u64,
}

/// The result of one seed.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    pub simulated: Micros,
    pub committed: usize,
    pub acknowledged: usize,
    pub faults: Stats,
    pub events: Stats,
    pub failure: Option<String>,
    /// A hash of all that was handled, when, and what had been drawn by then.
    pub hash: u64,
    pub trace: Vec<u8>,
}

/// Runs one world to its end.  A panic inside counts as a failure.
pub fn run(options: Options, keep_trace: bool) -> Report {
    let mut world = World::new(options, keep_trace);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
        world.ctx.checker.fail(format!("panic: {text}"));
    }
    let (ctx, hash) = (world.ctx, world.hash);
    Report {
        seed: ctx.options.seed,
        simulated: ctx.now,
        committed: ctx.checker.committed_count(),
        acknowledged: ctx.checker.told_committed_count(),
        failure: ctx.checker.failure().map(str::to_owned),
        hash,
        faults: ctx.faults,
        events: ctx.events,
        trace: ctx.trace.unwrap_or_default(),
    }
}

impl World {
    fn new(options: Options, keep_trace: bool) -> World {
        let members = options.members();
        let rng = Rng::new(options.seed);
        let mut trace = keep_trace.then(Vec::new);
        if let Some(trace) = &mut trace {
            trace.extend(format!("{options:?}\n").into_bytes());
        }
        let mut checker = Checker::default();
        checker.begins_with(members.clone(), options.limits);
        let (faults, events) = (Stats::default(), Stats::default());
        let ctx = Ctx {
            now: 0,
            healed: None,
            rng,
            checker,
            history: histories::History::default(),
            questions: Vec::new(),
            prepared: BTreeMap::new(),
            regions: BTreeMap::new(),
            shown_everywhere: None,
            delays: BTreeMap::new(),
            next_process: 0,
            next_value: 0,
            poison: BTreeMap::new(),
            written: Level(0),
            options,
            faults,
            events,
            trace,
        };
        let mut world = World {
            ctx,
            machines: Vec::new(),
            links: Vec::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            next_conn: 0,
            conn_life: BTreeMap::new(),
            phase: Phase::Safety,
            operator: Operator::default(),
            hash: 0,
        };
        for member in &members.members {
            world.add_machine(member, SimLog::new(None), true);
        }
        world
    }

    pub(crate) fn at(&mut self, time: Micros, event: Event) {
        self.sequence += 1;
        self.queue.insert((time.max(self.ctx.now), self.sequence), event);
    }

    fn run(&mut self) {
        for i in 0..self.machines.len() {
            let at = self.ctx.rng.below(100 * MS);
            self.at(at, Event::StartNode(i, 1));
            self.at(at, Event::StartPostgres(i, 0));
        }
        self.at(SECOND, Event::Ask);
        self.at(2 * SECOND, Event::Operate);
        self.at(2 * SECOND, Event::Skip);
        self.at(2 * SECOND, Event::Fault);
        self.at(self.ctx.options.safety, Event::Look);
        // This ends: `Look` bounds the time, and each event moves it on or works off a finite batch.
        while let Some(((time, sequence), event)) = self.queue.pop_first() {
            self.ctx.now = time;
            self.hash = [time, sequence, self.ctx.rng.state()].into_iter().fold(self.hash, |h, part| mix(h ^ part));
            self.handle(event);
            if self.phase == Phase::Over || self.ctx.checker.failure().is_some() {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.ctx.now;
        match event {
            Event::Tick(i, life) => {
                if self.lives(i, life) {
                    self.machines[i].ticks_due += 1;
                    self.work_soon(i);
                    let next = now + self.machines[i].tick;
                    self.at(next, Event::Tick(i, life));
                }
            }
            Event::Work(i, life) => {
                if self.lives(i, life) {
                    self.work(i);
                }
            }
            Event::Arrive(i, life, arrival) => {
                if self.lives(i, life) {
                    self.machines[i].inbox.push(arrival);
                    self.work_soon(i);
                }
            }
            Event::Deliver(from, i, arrival) => {
                self.deliver(from, i, arrival);
            }
            Event::Stream(from, to, channel, number, what) => self.on_stream((from, to), channel, number, what),
            Event::ToPostgres(i, incarnation, frame) => {
                self.with_postgres(i, incarnation, |p, _, _, ctx| p.receive(frame, ctx));
                if let Some(at) = self.ctx.shown_everywhere.take() {
                    self.check_shown_everywhere(i, at);
                }
            }
            Event::Session(i, incarnation, slot, wake) => {
                self.with_postgres(i, incarnation, |p, decided, next_conn, ctx| {
                    p.session_wakes(slot, wake, decided, next_conn, ctx);
                });
            }
            Event::Worker(i, incarnation) => {
                self.with_postgres(i, incarnation, |p, decided, next_conn, ctx| {
                    p.worker_step(decided.is_some(), next_conn, ctx);
                });
            }
            Event::ArrivalWorker(i, incarnation, wake) => {
                self.with_postgres(i, incarnation, |p, decided, next_conn, ctx| {
                    p.arrival_worker_wakes(wake, decided.is_some(), next_conn, ctx);
                });
            }
            Event::Flush(i, incarnation) => {
                let next = now + self.ctx.rng.between(100 * MS, SECOND);
                if self.with_postgres(i, incarnation, |p, _, _, ctx| p.flush(ctx)) {
                    self.at(next, Event::Flush(i, incarnation));
                }
            }
            Event::Ask => self.ask(),
            Event::StartNode(i, life) => {
                if self.machines[i].node.is_none() && self.machines[i].life + 1 == life {
                    self.start_node(i);
                }
            }
            Event::EndNode(i, life) => {
                if self.lives(i, life) {
                    self.machines[i].node.iter_mut().for_each(Node::close);
                    self.end_node(i, End::Process);
                    self.restart_node_later(i);
                }
            }
            Event::StartPostgres(i, incarnation) => self.start_postgres(i, incarnation),
            Event::Copy(i) => self.copy(i),
            Event::Operate => self.operate(),
            Event::Skip => self.leave_out(),
            Event::Fault => {
                if self.phase == Phase::Safety {
                    self.fault();
                    let next = now + self.ctx.rng.between(1, 2 * self.ctx.options.fault_every_ms) * MS;
                    self.at(next, Event::Fault);
                }
            }
            Event::Look => self.look(),
        }
    }

    fn lives(&self, i: usize, life: u64) -> bool {
        self.machines[i].node.is_some() && self.machines[i].life == life
    }

    pub(crate) fn work_soon(&mut self, i: usize) {
        let m = &mut self.machines[i];
        let Some(node) = m.node.as_ref().filter(|_| !m.work_is_due) else { return };
        m.work_is_due = true;
        let (time, life) = (node.busy_until.max(m.paused_until), m.life);
        self.at(time, Event::Work(i, life));
    }

    fn work(&mut self, i: usize) {
        let m = &mut self.machines[i];
        m.work_is_due = false;
        if m.paused_until > self.ctx.now {
            return self.work_soon(i);
        }
        let trouble = std::mem::take(&mut m.trouble.next_sync_fails);
        let mut arrivals = std::mem::take(&mut m.inbox);
        let ticks = std::mem::take(&mut m.ticks_due).min(TICKS_AT_ONCE);
        if ticks > 0 {
            arrivals.push(Arrival::Tick(ticks));
        }
        let Some(node) = &mut m.node else { return };
        let body = &mut node.body;
        body.trouble = Trouble { next_sync_fails: body.trouble.next_sync_fails || trouble, ..m.trouble };
        let result = node.work(arrivals, &mut self.ctx);
        let departures = std::mem::take(&mut node.body.departures);
        let rebuild = std::mem::take(&mut node.body.rebuild_ordered);
        // A node that has just crashed answers nobody.
        let answers = if result.is_ok() { node.take_answers() } else { Vec::new() };
        if std::mem::take(&mut node.body.elected) && self.phase == Phase::Safety {
            self.fault_at_election(i);
        }
        for (time, departure) in departures {
            self.depart(i, time, departure);
        }
        for answer in answers {
            self.told(i, answer);
        }
        if rebuild {
            self.check_copy(i);
            self.begin_copy(i);
        }
        match result {
            Ok(()) => {}
            Err(Stop::Crashed) => {
                self.ctx.faults.add("node crash between two stages");
                let end = if self.ctx.rng.one_in(2) { End::Power } else { End::Process };
                self.end_node(i, end);
                self.restart_node_later(i);
            }
            Err(Stop::Disk(what)) => {
                self.ctx.faults.add(what);
                trace!(self.ctx, "n{}: {what}", i + 1);
                self.end_node(i, End::Process);
                if self.can_lose(i) && self.ctx.rng.one_in(2) {
                    self.ctx.faults.add("disk lost for good");
                    self.retire(i);
                } else {
                    self.restart_node_later(i);
                }
            }
            Err(Stop::Removed) => {
                self.ctx.events.add("removed node stopped");
                self.end_node(i, End::Process);
                self.retire(i);
            }
            Err(Stop::Broken(why)) => self.ctx.checker.fail(format!("node {}: {why}", i + 1)),
        }
    }

    /// A session of machine `i` was told that the servers of all members show `at`: nobody can read there what is
    /// older.
    fn check_shown_everywhere(&mut self, i: usize, at: LogIndex) {
        let Some(members) = self.machines[i].node.as_ref().map(|n| n.members().clone()) else { return };
        for server in self.machines.iter().filter_map(|m| m.postgres.as_ref()) {
            let serves = members.contains(server.node) && server.up && server.lets_clients_in();
            if serves && server.applied < at {
                let why = format!("p{} shows {}, and all were said to show {at}", server.node, server.applied);
                self.ctx.checker.fail(why);
            }
        }
    }

    /// Lets PostgreSQL `i` do something, and carries out its wishes.  `false`: it is no longer in that incarnation.
    pub(crate) fn with_postgres(
        &mut self,
        i: usize,
        incarnation: u64,
        act: impl FnOnce(&mut Postgres, Option<LogIndex>, &mut u64, &mut Ctx),
    ) -> bool {
        let m = &mut self.machines[i];
        let Some(p) = m.postgres.as_mut().filter(|p| p.up && p.incarnation == incarnation) else { return false };
        let decided = m.node.as_ref().map(|n| n.certifier().decided());
        act(p, decided, &mut self.next_conn, &mut self.ctx);
        let (wishes, now, life) = (std::mem::take(&mut p.wishes), self.ctx.now, m.life);
        for wish in wishes {
            match wish {
                Wish::Wake { slot, at, wake } => self.at(at, Event::Session(i, incarnation, slot, wake)),
                Wish::WakeWorker(at) => self.at(at, Event::Worker(i, incarnation)),
                Wish::WakeArrivalWorker { at, wake } => self.at(at, Event::ArrivalWorker(i, incarnation, wake)),
                Wish::Send(frame) => {
                    if let ToNode::Hello { conn, .. } = &frame {
                        self.conn_life.insert(*conn, life);
                    }
                    self.send_to_node(i, frame, now + SOCKET);
                }
            }
        }
        true
    }

    fn send_to_node(&mut self, i: usize, frame: ToNode, time: Micros) {
        let conn = frame.conn();
        if let Some(life) = self.conn_life.get(&conn).copied() {
            if matches!(frame, ToNode::Closed { .. }) {
                self.conn_life.remove(&conn);
            }
            self.at(time, Event::Arrive(i, life, Arrival::Agent(frame)));
        }
    }

    /// A client asks in some region what became of its transaction.
    fn ask(&mut self) {
        let now = self.ctx.now;
        self.at(now + 100 * MS, Event::Ask);
        let i = self.ctx.rng.below(self.machines.len() as u64) as usize;
        if self.ctx.questions.is_empty() || self.machines[i].node.is_none() {
            return;
        }
        let which = self.ctx.rng.below(self.ctx.questions.len() as u64) as usize;
        let txn = self.ctx.questions[which].txn;
        let Some(node) = &self.machines[i].node else { return };
        let (outcome, decided) = (node.certifier().outcome(&txn), node.certifier().decided());
        self.ctx.checker.tells_outcome(node.id, decided, txn, outcome);
        if outcome == Outcome::Unknown && self.ctx.options.bug == Some(InjectedBug::GuessOutcome) {
            return self.ctx.answered(txn, OutcomeState::Aborted, LogIndex::ZERO);
        }
        self.ctx.events.add("outcome asked");
        // At the end nothing may stay open, not even of a node that does not come back.
        let settle = self.phase != Phase::Safety || self.ctx.rng.one_in(10);
        let incarnation = self.machines[i].postgres.as_ref().map_or(0, |p| p.incarnation);
        self.with_postgres(i, incarnation, |p, _, _, _| p.ask(txn, settle));
    }

    pub(crate) fn start_node(&mut self, i: usize) {
        let m = &mut self.machines[i];
        if m.gone {
            return;
        }
        let Some(mut disk) = m.disk.take() else { return };
        m.life += 1;
        let (id, life) = (NodeId(i as u32 + 1), m.life);
        let postgres = m.postgres.as_ref();
        let (has_postgres, is_there) = (postgres.is_some(), postgres.is_some_and(|p| p.made));
        let (dies_in, end) = self.ctx.options.start_fault(id, life);
        disk.dies_in = dies_in.filter(|_| self.phase == Phase::Safety);
        let opened = Node::open(id, &mut disk, &self.ctx);
        if disk.has_died {
            self.ctx.faults.add("node crash while it starts");
            trace!(self.ctx, "n{id} dies while it starts");
            self.machines[i].disk = Some(disk.after(end, &mut self.ctx.rng));
            return self.restart_node_later(i);
        }
        let started =
            opened.and_then(|state| Node::start(id, life, (state, disk), has_postgres, is_there, &mut self.ctx));
        let m = &mut self.machines[i];
        match started {
            Ok(node) => {
                m.node = Some(node);
                (m.ticks_due, m.work_is_due) = (0, false);
                let first = self.ctx.now + self.ctx.rng.below(TICK);
                self.at(first, Event::Tick(i, life));
                if self.ctx.options.streams {
                    self.dial_all(i);
                }
                self.work_soon(i);
            }
            Err(Stop::Broken(why)) => self.ctx.checker.fail(format!("node {}: {why}", i + 1)),
            Err(Stop::Removed) => self.retire(i),
            Err(Stop::Crashed | Stop::Disk(_)) => {}
        }
    }

    pub(crate) fn end_node(&mut self, i: usize, end: End) {
        let now = self.ctx.now;
        let m = &mut self.machines[i];
        let Some(node) = m.node.take() else { return };
        trace!(self.ctx, "n{} ends{}", node.id, if end == End::Power { " with its machine" } else { "" });
        m.disk = Some(node.end(end, &mut self.ctx));
        m.inbox.clear();
        m.paused_until = 0;
        // Its connections break, sooner or later.
        if let Some(p) = m.postgres.as_ref().filter(|p| p.up) {
            let (conns, incarnation) = (p.conns(), p.incarnation);
            for conn in conns {
                let time = now + self.ctx.rng.below(20 * MS);
                self.at(time, Event::ToPostgres(i, incarnation, FromNode { conn, frame: None }));
            }
        }
        // What was copied so far is thrown away.
        self.end_copy(i);
        if self.ctx.options.streams {
            return self.hang_up(i);
        }
        for peer in 0..self.machines.len() {
            if peer != i && self.ctx.rng.one_in(2) {
                let time = now + self.links[i][peer].delay;
                self.at(time, Event::Deliver(peer, peer, Arrival::Unreachable(NodeId(i as u32 + 1))));
            }
        }
    }

    pub(crate) fn restart_node_later(&mut self, i: usize) {
        let is_long = self.ctx.rng.one_in(3) && self.ctx.options.bug != Some(InjectedBug::ForgetsPromises);
        let wait = if is_long { 10 * SECOND } else { 500 * MS };
        let time = self.ctx.now + self.ctx.rng.between(MS, wait);
        let life = self.machines[i].life + 1;
        self.at(time, Event::StartNode(i, life));
    }

    pub(crate) fn start_postgres(&mut self, i: usize, after: u64) {
        let gone = self.machines[i].gone || self.machines[i].copying;
        let Some(p) = self.machines[i].postgres.as_mut() else { return };
        if p.up || !p.made || p.incarnation != after || gone {
            return;
        }
        p.start(&mut self.ctx);
        let incarnation = p.incarnation;
        // The start had wishes of its own.
        self.with_postgres(i, incarnation, |_, _, _, _| {});
        let flush = self.ctx.now + 100 * MS;
        self.at(flush, Event::Flush(i, incarnation));
    }

    pub(crate) fn crash_postgres(&mut self, i: usize, down_for: Micros) {
        let now = self.ctx.now;
        let Some(p) = self.machines[i].postgres.as_mut().filter(|p| p.up) else { return };
        let incarnation = p.incarnation;
        let broke = p.crash(&mut self.ctx);
        p.wishes.clear();
        for conn in broke {
            let time = now + SOCKET + self.ctx.rng.below(20 * MS);
            self.send_to_node(i, ToNode::Closed { conn }, time);
        }
        self.at(now + down_for, Event::StartPostgres(i, incarnation));
    }
}
