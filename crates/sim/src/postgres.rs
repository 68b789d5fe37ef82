//! A model of one PostgreSQL: the turn, the apply worker, who is let in, and what a crash destroys.  Sessions are in
//! `session`, the arrival worker is in `arrival`.
//!
//! It keeps the promises that the extension makes (`docs/agent-protocol.md`) and no others.
//!
//! Invariants:
//! - A key's base is read after its row lock is held.
//! - Local commits happen in turn: at `applied == previous`.
//! - A crash takes it back to `durable`, or to some commit after that, never to one before.
//! - After a start, no client is let in before everything is visible that the node's WELCOME named.

use crate::agent::{ConnId, FromNode, ToNode};
use crate::arrival::ArrivalWorker;
use crate::ctx::{Ctx, Micros, MS};
use crate::poison;
use crate::prepared::{self, Kept, Step};
use crate::rows::{self, Row, Rows};
use crate::session::{Doing, GivenUp, Session};
use crate::trace;
use onetrip_core::agent::{EntryFlags, Hello, OutcomeState, Role, ToPostgres, VERSION};
use onetrip_core::{LogIndex, NodeId, TxnId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// How long a session waits before it connects again.
pub(crate) const RECONNECT: Micros = 50 * MS;
/// A transaction that was given up is settled after this time, because it may still arrive.
const PATIENCE: Micros = 500 * MS;

pub(crate) struct Fed {
    pub at: LogIndex,
    previous: LogIndex,
    pub txn: TxnId,
    pub flags: EntryFlags,
    pub rows: Vec<Row>,
    /// It prepares a transaction, or ends one.
    pub step: Option<Step>,
    /// The entry that this one leaves out.
    pub left_out: Option<LogIndex>,
}

/// What it wants to be done outside.
pub enum Wish {
    Send(ToNode),
    /// Call `session_wakes` for this session at that time, unless it asks for another time before.
    Wake {
        slot: usize,
        at: Micros,
        wake: u64,
    },
    WakeWorker(Micros),
    /// The same as for a session.
    WakeArrivalWorker {
        at: Micros,
        wake: u64,
    },
}

pub struct Postgres {
    pub(crate) node: NodeId,
    pub(crate) region: Arc<str>,
    pub incarnation: u64,
    pub up: bool,
    pub(crate) sequence: u64,
    pub applied: LogIndex,
    pub durable: LogIndex,
    pub rows: Rows,
    /// What is prepared.
    pub(crate) prepared: Vec<Kept>,
    /// Entries that are left out: it shows their place in the order, and nothing else of them.
    pub(crate) left_out: BTreeSet<LogIndex>,
    /// The entry that the worker could not apply, how often that has failed, and since when.
    pub(crate) failing: Option<(LogIndex, u32, Micros)>,
    /// Commits after `durable`.
    journal: VecDeque<LogIndex>,
    /// What must be visible before clients are let in: what the first WELCOME of this incarnation named.
    lets_in_at: Option<LogIndex>,
    pub(crate) sessions: Vec<Session>,
    /// The data folder is there.
    pub made: bool,
    /// It belongs to a read replica.
    pub read_only: bool,
    pub(crate) given_up: Vec<GivenUp>,
    pub(crate) worker: Option<ConnId>,
    pub(crate) queue: VecDeque<Fed>,
    worker_wakes: bool,
    pub(crate) arrival: ArrivalWorker,
    pub wishes: Vec<Wish>,
    /// How many transactions its own sessions have committed since the last look.
    pub acknowledged: u64,
    /// No new transactions begin.
    pub closing: bool,
}

impl Postgres {
    pub fn new(node: NodeId, region: &str, clients: usize) -> Postgres {
        Postgres {
            node,
            region: region.into(),
            incarnation: 0,
            up: false,
            sequence: 0,
            applied: LogIndex::ZERO,
            durable: LogIndex::ZERO,
            rows: Rows::default(),
            prepared: Vec::new(),
            left_out: BTreeSet::new(),
            failing: None,
            journal: VecDeque::new(),
            lets_in_at: None,
            sessions: (0..clients).map(|_| Session::new()).collect(),
            made: true,
            read_only: false,
            given_up: Vec::new(),
            worker: None,
            queue: VecDeque::new(),
            worker_wakes: false,
            arrival: ArrivalWorker::default(),
            wishes: Vec::new(),
            acknowledged: 0,
            closing: false,
        }
    }

    pub fn start(&mut self, ctx: &mut Ctx) {
        self.incarnation += 1;
        self.up = true;
        self.sequence = 0;
        self.lets_in_at = None;
        trace!(ctx, "p{} starts, incarnation {}, at {}", self.node, self.incarnation, self.applied);
        for slot in 0..self.sessions.len() {
            self.wake(slot, ctx.now + ctx.rng.between(0, 100 * MS));
        }
        self.wake_worker(ctx.now);
        if ctx.options.writes_early() {
            self.wake_arrival_worker(ctx.now + ctx.rng.between(0, 100 * MS));
        }
    }

    pub(crate) fn lets_clients_in(&self) -> bool {
        self.lets_in_at.is_some_and(|at| self.applied >= at)
    }

    /// Commits after `durable` may be lost, the last ones first.  Returns the connections that broke.
    pub fn crash(&mut self, ctx: &mut Ctx) -> Vec<ConnId> {
        self.up = false;
        let kept = ctx.rng.below(self.journal.len() as u64 + 1) as usize;
        let before = self.applied;
        self.journal.truncate(kept);
        self.applied = self.journal.back().copied().unwrap_or(self.durable);
        self.rows.back_to(self.applied);
        self.prepared_back_to(self.applied);
        self.left_out.split_off(&self.applied.next());
        self.failing = None;
        trace!(ctx, "p{} crashes, back from {before} to {}", self.node, self.applied);
        let mut broke: Vec<ConnId> = self.worker.take().into_iter().collect();
        self.queue.clear();
        self.worker_wakes = false;
        broke.extend(self.end_arrival_worker(ctx));
        broke.extend(self.end_sessions(ctx));
        // These were in shared memory.
        self.given_up.clear();
        broke
    }

    /// A base backup of `donor` replaces the data folder.
    pub fn become_copy_of(&mut self, donor: &Postgres) {
        assert!(!self.up, "it is stopped first");
        (self.rows, self.applied, self.durable) = (donor.rows.clone(), donor.applied, donor.applied);
        self.left_out = donor.left_out.clone();
        self.prepared = donor.prepared.clone();
        self.journal.clear();
        self.made = true;
    }

    pub(crate) fn hello(&self, role: Role) -> Hello {
        let (applied, durable) = match role {
            Role::Backend | Role::ArrivalWorker => (LogIndex::ZERO, LogIndex::ZERO),
            Role::ApplyWorker => (self.applied, self.durable),
        };
        Hello { version: VERSION, role, pid: 1, incarnation: self.incarnation, applied, durable }
    }

    /// Returns the connections that broke.
    pub fn end_sessions(&mut self, ctx: &mut Ctx) -> Vec<ConnId> {
        (0..self.sessions.len()).filter_map(|slot| self.end_session(slot, ctx)).collect()
    }

    /// What was committed is on disk now.
    pub fn flush(&mut self, ctx: &mut Ctx) {
        self.durable = self.applied;
        self.journal.clear();
        self.report();
        let settle = |g: &mut GivenUp| {
            let conn = self.worker.filter(|conn| g.settled_on != Some(*conn) && g.since + PATIENCE <= ctx.now)?;
            g.settled_on = Some(conn);
            Some(Wish::Send(ToNode::Settle { conn, txn: g.txn }))
        };
        self.wishes.extend(self.given_up.iter_mut().filter_map(settle));
    }

    /// A client asks here what became of a transaction.
    pub fn ask(&mut self, txn: TxnId, settle: bool) {
        let Some(conn) = self.sessions.iter().find_map(|s| s.conn) else { return };
        self.wishes.push(Wish::Send(match settle {
            true => ToNode::Settle { conn, txn },
            false => ToNode::Outcome { conn, txn },
        }));
    }

    fn report(&mut self) {
        if let Some(conn) = self.worker {
            let (applied, durable) = (self.applied, self.durable);
            self.wishes.push(Wish::Send(ToNode::Position { conn, applied, durable }));
        }
    }

    pub(crate) fn wake_worker(&mut self, at: Micros) {
        if !self.worker_wakes {
            self.worker_wakes = true;
            self.wishes.push(Wish::WakeWorker(at));
        }
    }

    pub fn receive(&mut self, from: FromNode, ctx: &mut Ctx) {
        let conn = from.conn;
        if self.arrival.conn == Some(conn) {
            self.arrival_worker_hears(from.decode(), ctx);
            return self.progress(ctx);
        }
        match from.decode() {
            Some(ToPostgres::Welcome { committed, .. }) => {
                if self.worker == Some(conn) {
                    self.lets_in_at.get_or_insert(committed);
                    self.tell_stuck();
                }
            }
            None => {
                if self.worker == Some(conn) {
                    self.worker = None;
                    self.queue.clear();
                    self.wake_worker(ctx.now + RECONNECT);
                }
                if let Some(slot) = self.slot_of(conn) {
                    self.sessions[slot].conn = None;
                    if let Doing::Proposed { sent_on, .. } = &mut self.sessions[slot].doing {
                        *sent_on = None;
                        self.wake(slot, ctx.now + RECONNECT);
                    }
                }
            }
            Some(ToPostgres::Entry { at, previous, flags, txn, write_set, .. }) => {
                if self.worker == Some(conn) {
                    let left_out = flags.leaves_out.then(|| poison::index(&write_set));
                    let step = prepared::step(&write_set).filter(|_| flags == EntryFlags::default());
                    let is_plain = flags == EntryFlags::default() && step.is_none();
                    let rows = if is_plain { rows::decode(write_set) } else { Vec::new() };
                    self.queue.push_back(Fed { at, previous, txn, flags, rows, step, left_out });
                    self.wake_worker(ctx.now + ctx.rng.between(10, 2 * MS));
                }
            }
            Some(ToPostgres::Verdict(verdict)) => {
                if let Some(slot) = self.slot_of(conn) {
                    self.verdict(slot, &verdict, ctx);
                }
            }
            Some(ToPostgres::ReadAt { number, at, asked }) => {
                if let Some(slot) = self.slot_of(conn) {
                    self.read_at(slot, number, (at, asked), ctx);
                }
            }
            Some(ToPostgres::Locked { number, said, .. }) => {
                if let Some(slot) = self.slot_of(conn) {
                    self.locked(slot, number, said, ctx);
                }
            }
            Some(ToPostgres::Shown { at, missing }) => {
                ctx.events.add(if missing.is_empty() { "shown everywhere" } else { "not shown everywhere" });
                ctx.shown_everywhere = missing.is_empty().then_some(at);
            }
            // Nobody here asks for a rehearsal, and bytes may come to an arrival worker that has ended.
            Some(ToPostgres::Rehearsed { .. } | ToPostgres::Seen { .. } | ToPostgres::Arriving { .. }) => {}
            Some(ToPostgres::OutcomeIs { txn, state, at }) => {
                if state != OutcomeState::NotSoFar {
                    self.given_up.retain(|g| g.txn != txn);
                }
                ctx.answered(txn, state, at);
            }
        }
        self.progress(ctx);
    }

    pub fn conns(&self) -> Vec<ConnId> {
        self.sessions.iter().filter_map(|s| s.conn).chain(self.worker).chain(self.arrival.conn).collect()
    }

    fn slot_of(&self, conn: ConnId) -> Option<usize> {
        self.sessions.iter().position(|s| s.conn == Some(conn))
    }

    pub(crate) fn commit(&mut self, at: LogIndex, rows: &[Row], ctx: &mut Ctx) {
        trace!(ctx, "p{} shows {at}", self.node);
        ctx.checker.shows(self.node, self.applied, at);
        self.applied = at;
        self.rows.write(at, rows);
        self.journal.push_back(at);
    }

    /// The session whose turn it is goes on, or the arrival worker.
    pub(crate) fn progress(&mut self, ctx: &mut Ctx) {
        // This ends: each round commits the transaction of one of them.
        for _ in 0..=self.sessions.len() + 1 {
            let applied = self.applied;
            if self.arrival.has_turn(applied) {
                self.arrival_worker_goes_on(ctx);
                continue;
            }
            let next = self
                .sessions
                .iter()
                .position(|s| matches!(s.doing, Doing::Decided { previous, ready: true, .. } if previous == applied));
            let Some(slot) = next else { break };
            let doing = std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle);
            if let Doing::Decided { txn, work, at, previous, .. } = doing {
                self.try_commit(slot, txn, work, at, previous, ctx);
            }
        }
        if !self.queue.is_empty() {
            self.wake_worker(ctx.now + ctx.rng.between(10, MS));
        }
    }

    /// The apply worker connects, or applies its next entry if it can.
    pub fn worker_step(&mut self, node_is_up: bool, next_conn: &mut u64, ctx: &mut Ctx) {
        self.worker_wakes = false;
        if self.worker.is_none() {
            if node_is_up {
                *next_conn += 1;
                let conn = ConnId(*next_conn);
                self.worker = Some(conn);
                self.wishes.push(Wish::Send(ToNode::Hello { conn, hello: self.hello(Role::ApplyWorker) }));
            } else {
                self.wake_worker(ctx.now + RECONNECT);
            }
            return;
        }
        let Some(mut fed) = self.queue.pop_front() else { return };
        if self.applied >= fed.at {
            self.report();
            return self.progress(ctx);
        }
        if let (Some(Step::End { name, commit }), true) = (&fed.step, self.applied == fed.previous) {
            fed.rows = self.rows_of_step(*name, *commit);
        }
        let has_backend =
            self.sessions.iter().any(|s| s.open_txn() == Some(fed.txn)) || self.arrival.txn() == Some(fed.txn);
        if has_backend || self.applied != fed.previous || !self.make_way(&fed, ctx) {
            // Something else must happen first, which will wake it again.
            self.queue.push_front(fed);
            return;
        }
        if self.cannot_apply(&fed, ctx) {
            return self.fail_at(fed.at, ctx);
        }
        if fed.flags.left_out {
            ctx.events.add(match fed.flags.leaves_out {
                true => "left out that an entry is left out",
                false => "left out",
            });
            self.left_out.insert(fed.at);
        }
        if let Some(step) = fed.step.take() {
            fed.rows = self.take_step(fed.at, fed.txn, step, ctx);
        }
        self.commit(fed.at, &fed.rows, ctx);
        if fed.left_out.is_some() {
            ctx.checker.agrees(self.node, fed.at, &self.rows, &self.left_out);
        }
        ctx.events.add("applied");
        self.report();
        self.progress(ctx);
    }

    /// Evicts the sessions that hold a row which the entry needs, and the arrival worker.  `false`: a proposal that is
    /// bound to lose has to be told first.
    fn make_way(&mut self, fed: &Fed, ctx: &mut Ctx) -> bool {
        self.evict_arrival_worker(fed, ctx);
        let mut free = true;
        for slot in 0..self.sessions.len() {
            let session = &self.sessions[slot];
            let meets =
                |row: &Row| session.keys().iter().any(|k| k.hash == row.hash && k.mode.conflicts_with(row.mode));
            if !fed.rows.iter().any(meets) {
                continue;
            }
            match &session.doing {
                Doing::Running(_) | Doing::Locking { .. } => self.evict(slot, ctx),
                Doing::Decided { txn, at, .. } => {
                    let why =
                        format!("p{}: entry {} needs a row of {txn}, decided at {at}: a deadlock", self.node, fed.at);
                    ctx.checker.fail(why);
                }
                _ => free = false,
            }
        }
        free
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.arrival.is_idle() && self.sessions.iter().all(|s| matches!(s.doing, Doing::Idle))
    }
}
