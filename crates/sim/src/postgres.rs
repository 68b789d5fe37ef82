//! A model of one PostgreSQL: sessions with row locks and bases, the turn, the apply worker, and what a crash takes.
//!
//! It keeps the promises that the extension makes (design, sections 4 to 7) and nothing more.  A row is a number that
//! every writer raises by one, so that a lost update shows in the sum.
//!
//! Invariants:
//! - A key's base is read after its row lock is held.
//! - Local commits happen in turn: at `applied == previous`.
//! - A crash goes back to `durable` or to some commit after it, never before.

use crate::agent::{ConnId, ToNode, ToPostgres};
use crate::checker::TrueKey;
use crate::ctx::{Ctx, Micros, Plant, MS};
use crate::trace;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use onetrip_core::certifier::Verdict;
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, NodeId, TxnId};
use std::collections::{BTreeMap, VecDeque};

/// How long a session waits before it connects again.
const RECONNECT: Micros = 50 * MS;
const KEYS_MAX: usize = 5;

enum Doing {
    Idle,
    Running {
        keys: Vec<TrueKey>,
        wanted: usize,
    },
    Proposed {
        txn: TxnId,
        keys: Vec<TrueKey>,
        raw: Bytes,
        until: Micros,
        sent_on: Option<ConnId>,
    },
    /// `ready`: it is back from the verdict and lines up for its turn.
    Decided {
        txn: TxnId,
        keys: Vec<TrueKey>,
        at: LogIndex,
        previous: LogIndex,
        ready: bool,
    },
}

pub struct Session {
    conn: Option<ConnId>,
    doing: Doing,
    /// Ended without an answer; the client asks later.
    asks: Vec<TxnId>,
    /// Of several wake-ups only the last one asked for counts.
    wake: u64,
}

struct Fed {
    at: LogIndex,
    previous: LogIndex,
    txn: TxnId,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
struct Row {
    hash: u64,
    value: u64,
    mode: LockMode,
}

/// What it wants done outside.
pub enum Wish {
    Send(ToNode),
    /// Call `session_step` for this session at that time, unless it asks anew before.
    Wake {
        slot: usize,
        at: Micros,
        wake: u64,
    },
    WakeWorker(Micros),
}

pub struct Postgres {
    node: NodeId,
    pub incarnation: u64,
    pub up: bool,
    sequence: u64,
    pub applied: LogIndex,
    durable: LogIndex,
    pub store: BTreeMap<u64, u64>,
    durable_store: BTreeMap<u64, u64>,
    /// Commits after `durable`.
    journal: VecDeque<(LogIndex, Vec<Row>)>,
    pub sessions: Vec<Session>,
    worker: Option<ConnId>,
    queue: VecDeque<Fed>,
    worker_wakes: bool,
    pub wishes: Vec<Wish>,
    /// Commits of its own sessions since the last look.
    pub acknowledged: u64,
    /// No new transactions.
    pub closing: bool,
}

fn write_set(keys: &[TrueKey]) -> Bytes {
    let mut out = BytesMut::new();
    for row in rows(keys) {
        out.put_u64_le(row.hash);
        out.put_u64_le(row.value);
        out.put_u8(row.mode as u8);
    }
    out.freeze()
}

fn rows(keys: &[TrueKey]) -> Vec<Row> {
    keys.iter().filter(|k| k.writes()).map(|k| Row { hash: k.hash, value: k.read + 1, mode: k.mode }).collect()
}

fn read_write_set(mut raw: Bytes) -> Vec<Row> {
    let mut rows = Vec::new();
    while raw.len() >= 17 {
        let (hash, value, mode) = (raw.get_u64_le(), raw.get_u64_le(), LockMode::from_u8(raw.get_u8()));
        rows.push(Row { hash, value, mode: mode.expect("written by `write_set`") });
    }
    rows
}

impl Postgres {
    pub fn new(node: NodeId, clients: usize) -> Postgres {
        Postgres {
            node,
            incarnation: 0,
            up: false,
            sequence: 0,
            applied: LogIndex::ZERO,
            durable: LogIndex::ZERO,
            store: BTreeMap::new(),
            durable_store: BTreeMap::new(),
            journal: VecDeque::new(),
            sessions: (0..clients)
                .map(|_| Session { conn: None, doing: Doing::Idle, asks: Vec::new(), wake: 0 })
                .collect(),
            worker: None,
            queue: VecDeque::new(),
            worker_wakes: false,
            wishes: Vec::new(),
            acknowledged: 0,
            closing: false,
        }
    }

    pub fn start(&mut self, ctx: &mut Ctx) {
        self.incarnation += 1;
        self.up = true;
        self.sequence = 0;
        trace!(ctx, "p{} starts, incarnation {}, at {}", self.node, self.incarnation, self.applied);
        for slot in 0..self.sessions.len() {
            self.wake(slot, ctx.now + ctx.rng.between(0, 100 * MS));
        }
        self.wake_worker(ctx.now);
    }

    /// Commits after `durable` may be lost, the last ones first.  Says which connections broke.
    pub fn crash(&mut self, ctx: &mut Ctx) -> Vec<ConnId> {
        self.up = false;
        let kept = ctx.rng.below(self.journal.len() as u64 + 1) as usize;
        let before = self.applied;
        self.applied = self.durable;
        self.store = self.durable_store.clone();
        self.journal.truncate(kept);
        for (at, writes) in &self.journal {
            self.applied = *at;
            self.store.extend(writes.iter().map(|r| (r.hash, r.value)));
        }
        trace!(ctx, "p{} crashes, back from {before} to {}", self.node, self.applied);
        let mut broke: Vec<ConnId> = self.worker.take().into_iter().collect();
        self.queue.clear();
        self.worker_wakes = false;
        for slot in 0..self.sessions.len() {
            broke.extend(self.end_session(slot));
        }
        broke
    }

    /// The backend is gone, whatever it was doing.
    fn end_session(&mut self, slot: usize) -> Option<ConnId> {
        let s = &mut self.sessions[slot];
        if let Doing::Proposed { txn, .. } | Doing::Decided { txn, .. } = s.doing {
            s.asks.push(txn);
        }
        s.doing = Doing::Idle;
        s.conn.take()
    }

    /// A backend dies.
    pub fn kill_session(&mut self, slot: usize, ctx: &mut Ctx) {
        trace!(ctx, "p{} session {slot} is killed", self.node);
        if let Some(conn) = self.end_session(slot) {
            self.wishes.push(Wish::Send(ToNode::Closed { conn }));
        }
        self.wake(slot, ctx.now + ctx.rng.between(MS, 200 * MS));
        self.progress(ctx);
    }

    /// What was committed is on disk now.
    pub fn flush(&mut self) {
        self.durable = self.applied;
        self.durable_store = self.store.clone();
        self.journal.clear();
        self.report();
    }

    fn report(&mut self) {
        if let Some(conn) = self.worker {
            let (applied, durable) = (self.applied, self.durable);
            self.wishes.push(Wish::Send(ToNode::Position { conn, applied, durable }));
        }
    }

    fn wake(&mut self, slot: usize, at: Micros) {
        let s = &mut self.sessions[slot];
        s.wake += 1;
        self.wishes.push(Wish::Wake { slot, at, wake: s.wake });
    }

    fn wake_worker(&mut self, at: Micros) {
        if !self.worker_wakes {
            self.worker_wakes = true;
            self.wishes.push(Wish::WakeWorker(at));
        }
    }

    pub fn receive(&mut self, frame: ToPostgres, ctx: &mut Ctx) {
        match frame {
            ToPostgres::Closed { conn } => {
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
            ToPostgres::Entry { conn, at, previous, txn, write_set } => {
                if self.worker == Some(conn) {
                    self.queue.push_back(Fed { at, previous, txn, rows: read_write_set(write_set) });
                    self.wake_worker(ctx.now + ctx.rng.between(10, 2 * MS));
                }
            }
            ToPostgres::Verdict { conn, txn, at, verdict, previous } => {
                if let Some(slot) = self.slot_of(conn) {
                    self.verdict(slot, txn, at, verdict, previous, ctx);
                }
            }
        }
        self.progress(ctx);
    }

    pub fn conns(&self) -> Vec<ConnId> {
        self.sessions.iter().filter_map(|s| s.conn).chain(self.worker).collect()
    }

    fn slot_of(&self, conn: ConnId) -> Option<usize> {
        self.sessions.iter().position(|s| s.conn == Some(conn))
    }

    fn verdict(&mut self, slot: usize, of: TxnId, at: LogIndex, verdict: Verdict, previous: LogIndex, ctx: &mut Ctx) {
        let doing = std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle);
        match doing {
            Doing::Proposed { txn, keys, .. } if txn == of => {
                if verdict == Verdict::Commit {
                    self.sessions[slot].doing = Doing::Decided { txn, keys, at, previous, ready: false };
                    self.wake(slot, ctx.now + ctx.rng.between(10, 2 * MS));
                } else {
                    ctx.events.add("lost at certification");
                    ctx.checker.tells_aborted(txn, "verdict abort");
                    self.wake(slot, ctx.now + ctx.rng.between(MS, 50 * MS));
                }
            }
            // One that it gave up waiting for.
            other => self.sessions[slot].doing = other,
        }
    }

    pub fn session_wakes(
        &mut self,
        slot: usize,
        wake: u64,
        node: Option<LogIndex>,
        next_conn: &mut u64,
        ctx: &mut Ctx,
    ) {
        if self.sessions[slot].wake == wake {
            self.session_step(slot, node, next_conn, ctx);
        }
    }

    /// The next thing that this session does.  `node`: the certification so far and a way to connect, if its node is up.
    fn session_step(&mut self, slot: usize, node: Option<LogIndex>, next_conn: &mut u64, ctx: &mut Ctx) {
        if node.is_some() && self.sessions[slot].conn.is_none() {
            *next_conn += 1;
            self.sessions[slot].conn = Some(ConnId(*next_conn));
            self.wishes.push(Wish::Send(ToNode::Hello { conn: ConnId(*next_conn), worker: None }));
        }
        let doing = std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle);
        let mut again = ctx.now + ctx.rng.between(MS, 40 * MS);
        let next = match doing {
            Doing::Idle if self.closing => return,
            Doing::Idle => Doing::Running { keys: Vec::new(), wanted: ctx.rng.between(1, KEYS_MAX as u64) as usize },
            Doing::Running { keys, wanted } if keys.len() < wanted => self.take_key(keys, wanted, ctx),
            Doing::Running { keys, .. } => self.begin_commit(slot, keys, node, ctx),
            Doing::Proposed { txn, keys, raw, until, mut sent_on } => {
                if ctx.now >= until {
                    ctx.events.add("commit timeout, outcome unknown");
                    let s = &mut self.sessions[slot];
                    s.asks.push(txn);
                    if let Some(conn) = s.conn.take() {
                        self.wishes.push(Wish::Send(ToNode::Closed { conn }));
                    }
                    Doing::Idle
                } else {
                    let conn = self.sessions[slot].conn;
                    if conn.is_some() && sent_on != conn {
                        ctx.events.add("proposed on a new connection");
                        sent_on = conn;
                        self.wishes
                            .extend(conn.map(|conn| Wish::Send(ToNode::Propose { conn, txn, raw: raw.clone() })));
                    }
                    again = if conn.is_some() { until } else { ctx.now + RECONNECT };
                    Doing::Proposed { txn, keys, raw, until, sent_on }
                }
            }
            Doing::Decided { txn, keys, at, previous, .. } => {
                self.try_commit(slot, txn, keys, at, previous, ctx);
                return self.progress(ctx);
            }
        };
        self.sessions[slot].doing = next;
        self.wake(slot, again.max(ctx.now + 1));
        self.progress(ctx);
    }

    /// One statement: a row lock, then its base.  A row that another session holds ends the transaction.
    fn take_key(&mut self, mut keys: Vec<TrueKey>, wanted: usize, ctx: &mut Ctx) -> Doing {
        let mode = LockMode::ALL[ctx.rng.below(4) as usize];
        // Few keys are hot.
        let hash = 1 + ctx.rng.below(ctx.options.keys).min(ctx.rng.below(ctx.options.keys));
        if keys.iter().any(|k| k.hash == hash) {
            return Doing::Running { keys, wanted: wanted - 1 };
        }
        let held =
            self.sessions.iter().flat_map(|s| locks(&s.doing)).any(|k| k.hash == hash && k.mode.conflicts_with(mode));
        if held {
            return Doing::Idle;
        }
        let read = self.store.get(&hash).copied().unwrap_or(0);
        keys.push(TrueKey { hash, mode, base: self.applied, read });
        Doing::Running { keys, wanted }
    }

    fn begin_commit(&mut self, slot: usize, keys: Vec<TrueKey>, node: Option<LogIndex>, ctx: &mut Ctx) -> Doing {
        let (Some(decided), Some(conn)) = (node, self.sessions[slot].conn) else { return Doing::Idle };
        self.sequence += 1;
        let txn = TxnId { node: self.node, incarnation: self.incarnation, sequence: self.sequence };
        let plant = ctx.options.plant;
        let proposed: Vec<Key> = keys
            .iter()
            .map(|k| Key {
                hash: k.hash,
                mode: match k.mode {
                    LockMode::Update if plant == Some(Plant::ForgetMode) => LockMode::KeyShare,
                    mode => mode,
                },
                base: match plant {
                    Some(Plant::HighBase) => Base(decided.max(k.base).0),
                    _ => Base(k.base.0),
                },
            })
            .collect();
        let raw = Entry::encode(&txn, &proposed, &write_set(&keys));
        ctx.checker.proposes(txn, keys.clone());
        ctx.events.add("proposed");
        self.wishes.push(Wish::Send(ToNode::Propose { conn, txn, raw: raw.clone() }));
        let until = ctx.now + ctx.options.commit_timeout;
        Doing::Proposed { txn, keys, raw, until, sent_on: Some(conn) }
    }

    fn try_commit(
        &mut self,
        slot: usize,
        txn: TxnId,
        keys: Vec<TrueKey>,
        at: LogIndex,
        previous: LogIndex,
        ctx: &mut Ctx,
    ) {
        let has_turn = self.applied == previous || ctx.options.plant == Some(Plant::EarlyTurn);
        if !has_turn {
            if self.applied >= at {
                ctx.checker.fail(format!("p{}: {txn} waits for its turn at {at}, which is over", self.node));
            }
            self.sessions[slot].doing = Doing::Decided { txn, keys, at, previous, ready: true };
            return;
        }
        self.commit(at, rows(&keys), ctx);
        ctx.checker.tells_committed(txn, at);
        ctx.events.add("acknowledged");
        self.acknowledged += 1;
        if ctx.rng.one_in(3) {
            self.wishes.extend(self.sessions[slot].conn.map(|conn| Wish::Send(ToNode::Done { conn, txn })));
        }
        self.wake(slot, ctx.now + ctx.rng.between(MS, 100 * MS));
    }

    fn commit(&mut self, at: LogIndex, rows: Vec<Row>, ctx: &mut Ctx) {
        trace!(ctx, "p{} shows {at}", self.node);
        ctx.checker.shows(self.node, self.applied, at);
        self.applied = at;
        self.store.extend(rows.iter().map(|r| (r.hash, r.value)));
        self.journal.push_back((at, rows));
    }

    /// Whoever has the turn now goes on.
    fn progress(&mut self, ctx: &mut Ctx) {
        // Ends: each round commits one session's transaction.
        for _ in 0..=self.sessions.len() {
            let applied = self.applied;
            let next = self
                .sessions
                .iter()
                .position(|s| matches!(s.doing, Doing::Decided { previous, ready: true, .. } if previous == applied));
            let Some(slot) = next else { break };
            let doing = std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle);
            if let Doing::Decided { txn, keys, at, previous, .. } = doing {
                self.try_commit(slot, txn, keys, at, previous, ctx);
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
                let worker = Some((self.applied, self.durable));
                self.wishes.push(Wish::Send(ToNode::Hello { conn, worker }));
            } else {
                self.wake_worker(ctx.now + RECONNECT);
            }
            return;
        }
        let Some(fed) = self.queue.pop_front() else { return };
        if self.applied >= fed.at {
            self.report();
            return self.progress(ctx);
        }
        let has_backend = self.sessions.iter().any(|s| match s.doing {
            Doing::Proposed { txn, .. } | Doing::Decided { txn, .. } => txn == fed.txn,
            _ => false,
        });
        if has_backend || self.applied != fed.previous || !self.make_way(&fed, ctx) {
            // Something else must happen first, and that wakes it again.
            self.queue.push_front(fed);
            return;
        }
        self.commit(fed.at, fed.rows, ctx);
        ctx.events.add("applied");
        self.report();
        self.progress(ctx);
    }

    /// Evicts whoever holds a row that the entry needs.  False: a proposal that is bound to lose must hear so first.
    fn make_way(&mut self, fed: &Fed, ctx: &mut Ctx) -> bool {
        let mut free = true;
        for slot in 0..self.sessions.len() {
            let doing = &self.sessions[slot].doing;
            let meets = |k: &TrueKey| fed.rows.iter().any(|r| r.hash == k.hash && r.mode.conflicts_with(k.mode));
            if !locks(doing).any(meets) {
                continue;
            }
            match doing {
                Doing::Running { .. } => {
                    ctx.events.add("evicted");
                    self.sessions[slot].doing = Doing::Idle;
                }
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

    /// A transaction whose outcome some client would like to know.
    pub fn next_question(&mut self) -> Option<TxnId> {
        self.sessions.iter_mut().find_map(|s| s.asks.pop())
    }

    pub fn ask_again_later(&mut self, txn: TxnId) {
        self.sessions[0].asks.insert(0, txn);
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sessions.iter().all(|s| matches!(s.doing, Doing::Idle))
    }
}

fn locks(doing: &Doing) -> impl Iterator<Item = &TrueKey> {
    let keys: &[TrueKey] = match doing {
        Doing::Idle => &[],
        Doing::Running { keys, .. } | Doing::Proposed { keys, .. } | Doing::Decided { keys, .. } => keys,
    };
    keys.iter()
}
