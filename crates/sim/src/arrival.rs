//! The arrival worker of the model of PostgreSQL: it writes the rows of a large transaction while that arrives, and
//! commits them if the verdict is commit and comes to it.  Everything that it has not committed is gone when it gives
//! up, when its process ends, or when its connection does.
//!
//! Invariants:
//! - It writes nothing before its PostgreSQL shows the bases of the entry's keys, so whatever is decided before the
//!   entry and needs one of its rows is applied before it has locked that row.
//! - Between its verdict and its commit nobody else commits that entry here.

use crate::agent::{ConnId, ToNode};
use crate::ctx::{Ctx, InjectedBug, Micros, MS, SECOND};
use crate::postgres::{Fed, Postgres, Wish, RECONNECT};
use crate::rows::{self, Row};
use crate::trace;
use bytes::Bytes;
use onetrip_core::agent::{Role, ToPostgres, VerdictFrame, VerdictOutcome};
use onetrip_core::{Entry, EntryKind, LockMode, LogIndex, TxnId};

#[derive(Default)]
pub(crate) struct ArrivalWorker {
    pub conn: Option<ConnId>,
    stage: Stage,
    /// What it gave up last on this connection: something may come that was sent before the node knew.
    given_up: Option<TxnId>,
    /// Only the last wake-up that was asked for counts.
    wake: u64,
}

#[derive(Default)]
enum Stage {
    /// It waits for the next transaction.
    #[default]
    Nothing,
    /// It has some bytes, and has asked for the next ones, or is about to.
    Receiving { txn: TxnId, total: u64, bytes: Vec<u8> },
    /// It has all bytes, and has not written the rows.
    Unwritten(Whole),
    /// Their locks are held.
    Written(Whole),
    /// It has rolled back, and is about to say so.
    GivenUp(TxnId),
    /// It has committed, and is about to say so.
    Committed(TxnId),
}

struct Whole {
    txn: TxnId,
    /// The highest base of its keys.
    base: LogIndex,
    rows: Vec<Row>,
    verdict: Option<Decided>,
}

/// The verdict was commit.
struct Decided {
    at: LogIndex,
    previous: LogIndex,
    /// It has returned from the verdict, and commits as soon as it is its turn.
    ready: bool,
}

impl ArrivalWorker {
    /// The transaction that it may have to commit.
    pub fn txn(&self) -> Option<TxnId> {
        match &self.stage {
            Stage::Receiving { txn, .. } => Some(*txn),
            Stage::Unwritten(whole) | Stage::Written(whole) => Some(whole.txn),
            Stage::Nothing | Stage::GivenUp(_) | Stage::Committed(_) => None,
        }
    }

    /// Somebody else who wants this row in this mode has to wait.
    pub fn holds(&self, hash: u64, mode: LockMode) -> bool {
        match &self.stage {
            Stage::Written(whole) => whole.rows.iter().any(|row| row.hash == hash && row.mode.conflicts_with(mode)),
            _ => false,
        }
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Nothing)
    }

    /// It waits for its turn, and this is it.
    pub fn has_turn(&self, applied: LogIndex) -> bool {
        let Stage::Written(Whole { verdict: Some(decided), .. }) = &self.stage else { return false };
        decided.ready && decided.previous == applied
    }
}

impl Postgres {
    pub(crate) fn wake_arrival_worker(&mut self, at: Micros) {
        self.arrival.wake += 1;
        self.wishes.push(Wish::WakeArrivalWorker { at, wake: self.arrival.wake });
    }

    /// Its process ends, whatever it was doing.
    pub(crate) fn end_arrival_worker(&mut self, ctx: &mut Ctx) -> Option<ConnId> {
        if let Stage::Unwritten(whole) | Stage::Written(whole) = std::mem::take(&mut self.arrival.stage) {
            if whole.verdict.is_some() {
                ctx.events.add("arrival worker ended after its verdict");
            }
        }
        self.arrival.given_up = None;
        self.arrival.conn.take()
    }

    /// It ends while its PostgreSQL goes on, and begins anew after a while.
    fn arrival_worker_dies(&mut self, ctx: &mut Ctx) {
        trace!(ctx, "p{} arrival worker ends, having {:?}", self.node, self.arrival.txn());
        if let Some(conn) = self.end_arrival_worker(ctx) {
            self.wishes.push(Wish::Send(ToNode::Closed { conn }));
        }
        self.wake_arrival_worker(ctx.now + ctx.rng.between(MS, 2 * RECONNECT));
    }

    pub fn arrival_worker_wakes(&mut self, wake: u64, node_is_up: bool, next_conn: &mut u64, ctx: &mut Ctx) {
        if self.arrival.wake == wake {
            self.arrival_step(node_is_up, next_conn, ctx);
            self.progress(ctx);
        }
    }

    fn arrival_step(&mut self, node_is_up: bool, next_conn: &mut u64, ctx: &mut Ctx) {
        let Some(conn) = self.arrival.conn else {
            if !node_is_up {
                return self.wake_arrival_worker(ctx.now + RECONNECT);
            }
            *next_conn += 1;
            let conn = ConnId(*next_conn);
            self.arrival.conn = Some(conn);
            return self.wishes.push(Wish::Send(ToNode::Hello { conn, hello: self.hello(Role::ArrivalWorker) }));
        };
        if ctx.rng.one_in(20) {
            return self.arrival_worker_dies(ctx);
        }
        match std::mem::take(&mut self.arrival.stage) {
            Stage::Nothing => self.wake_arrival_worker(ctx.now + ctx.rng.between(SECOND, 5 * SECOND)),
            Stage::Receiving { txn, total, bytes } => {
                let from = bytes.len() as u64;
                self.wishes.push(Wish::Send(ToNode::More { conn, txn: Some(txn), from }));
                self.arrival.stage = Stage::Receiving { txn, total, bytes };
            }
            Stage::Unwritten(whole) => self.write_early(whole, ctx),
            Stage::Written(whole) if whole.verdict.is_none() => match ctx.rng.one_in(10) {
                // Not by what the entries need, but by a lock that the model does not know.
                true => self.give_up_arrival(whole, ctx),
                false => {
                    self.arrival.stage = Stage::Written(whole);
                    self.wake_arrival_worker(ctx.now + ctx.rng.between(50 * MS, SECOND));
                }
            },
            Stage::Written(whole) => self.commit_arrived(whole, ctx),
            Stage::GivenUp(txn) => {
                self.arrival.given_up = Some(txn);
                self.wishes.push(Wish::Send(ToNode::Written { conn, txn, kept: false }));
                self.wants_next(ctx);
            }
            Stage::Committed(txn) => {
                self.wishes.push(Wish::Send(ToNode::Done { conn, txn }));
                self.wants_next(ctx);
            }
        }
    }

    fn wants_next(&mut self, ctx: &mut Ctx) {
        self.arrival.stage = Stage::Nothing;
        if let Some(conn) = self.arrival.conn {
            self.wishes.push(Wish::Send(ToNode::More { conn, txn: None, from: 0 }));
        }
        self.wake_arrival_worker(ctx.now + ctx.rng.between(SECOND, 5 * SECOND));
    }

    /// What its node says to it; `None`: its connection has ended.
    pub(crate) fn arrival_worker_hears(&mut self, frame: Option<ToPostgres>, ctx: &mut Ctx) {
        match frame {
            None => {
                self.end_arrival_worker(ctx);
                self.wake_arrival_worker(ctx.now + RECONNECT);
            }
            Some(ToPostgres::Welcome { .. }) => self.wants_next(ctx),
            Some(ToPostgres::Arriving { txn, total, from, bytes }) => self.arrives(txn, total, from, &bytes, ctx),
            Some(ToPostgres::Verdict(verdict)) => self.arrived_is_decided(&verdict, ctx),
            Some(_) => ctx.checker.fail(format!("p{}: the arrival worker is told what it did not ask", self.node)),
        }
    }

    fn arrives(&mut self, txn: TxnId, total: u64, from: u64, more: &[u8], ctx: &mut Ctx) {
        if txn.node == self.node {
            return ctx.checker.fail(format!("p{}: its own {txn} arrives", self.node));
        }
        let mut bytes = match std::mem::take(&mut self.arrival.stage) {
            Stage::Nothing if from == 0 && self.arrival.given_up != Some(txn) => Vec::new(),
            Stage::Receiving { txn: of, bytes, .. } if of == txn && bytes.len() as u64 == from => bytes,
            other => {
                self.arrival.stage = other;
                // It had asked for this before it gave up.
                let was_asked = matches!(self.arrival.stage, Stage::GivenUp(of) if of == txn);
                if !was_asked && self.arrival.given_up != Some(txn) {
                    let why = format!("p{}: bytes of {txn} from {from} on, for which nobody asked", self.node);
                    ctx.checker.fail(why);
                }
                return;
            }
        };
        bytes.extend_from_slice(more);
        let is_slow = ctx.rng.one_in(4);
        let wait = if is_slow { ctx.rng.between(MS, 300 * MS) } else { ctx.rng.between(10, MS) };
        self.wake_arrival_worker(ctx.now + wait);
        if (bytes.len() as u64) < total {
            self.arrival.stage = Stage::Receiving { txn, total, bytes };
            // So that its node may have what it has asked for, and not been answered.
            if !is_slow && ctx.rng.one_in(30) {
                let (conn, from) = (self.arrival.conn, from + more.len() as u64);
                self.wishes.extend(conn.map(|conn| Wish::Send(ToNode::More { conn, txn: Some(txn), from })));
                self.arrival.stage = Stage::GivenUp(txn);
                ctx.events.add("arrival given up");
            }
            return;
        }
        let entry = match Entry::decode(Bytes::from(bytes)) {
            Ok(entry) if entry.txn == txn => entry,
            other => return ctx.checker.fail(format!("p{}: what has arrived is not {txn}: {other:?}", self.node)),
        };
        let base = LogIndex(entry.keys().map(|key| key.base.0).max().unwrap_or(0));
        let is_plain = entry.kind == EntryKind::Transaction;
        let rows = if is_plain { rows::decode(entry.write_set) } else { Vec::new() };
        let whole = Whole { txn, base, rows, verdict: None };
        match is_plain {
            true => self.arrival.stage = Stage::Unwritten(whole),
            false => self.give_up_arrival(whole, ctx),
        }
    }

    /// Writes the rows, if it can; what it has not written it cannot commit.
    fn write_early(&mut self, whole: Whole, ctx: &mut Ctx) {
        if self.applied < whole.base && ctx.options.bug != Some(InjectedBug::WritesBeforeBase) {
            ctx.events.add("arrival waits for its base");
            self.arrival.stage = Stage::Unwritten(whole);
            return self.wake_arrival_worker(ctx.now + ctx.rng.between(MS, 50 * MS));
        }
        let is_held = |row: &Row| {
            let keys = self.sessions.iter().flat_map(|session| session.keys());
            keys.into_iter().any(|key| key.hash == row.hash && key.mode.conflicts_with(row.mode))
        };
        if whole.rows.iter().any(is_held) || ctx.is_poison_for(whole.txn, self.node) || ctx.rng.one_in(10) {
            return self.give_up_arrival(whole, ctx);
        }
        if whole.verdict.is_some() {
            ctx.events.add("written after the verdict");
            return self.commit_arrived(whole, ctx);
        }
        trace!(ctx, "p{} has written {}", self.node, whole.txn);
        ctx.events.add("written early");
        self.written(whole, ctx);
    }

    fn written(&mut self, whole: Whole, ctx: &mut Ctx) {
        let txn = whole.txn;
        let conn = self.arrival.conn;
        self.wishes.extend(conn.map(|conn| Wish::Send(ToNode::Written { conn, txn, kept: true })));
        self.arrival.stage = Stage::Written(whole);
        self.wake_arrival_worker(ctx.now + ctx.rng.between(MS, SECOND));
    }

    /// It rolls back.  The apply worker is to apply the entry; if it is decided, that follows from the end of the
    /// connection.
    fn give_up_arrival(&mut self, whole: Whole, ctx: &mut Ctx) {
        let (txn, is_decided) = (whole.txn, whole.verdict.is_some());
        trace!(ctx, "p{} gives up {txn}, decided: {is_decided}", self.node);
        if is_decided {
            self.arrival.stage = Stage::Unwritten(whole);
            return self.arrival_worker_dies(ctx);
        }
        ctx.events.add("arrival given up");
        if ctx.options.bug == Some(InjectedBug::CommitsGivenUp) && !whole.rows.is_empty() {
            return self.written(Whole { rows: Vec::new(), ..whole }, ctx);
        }
        self.arrival.stage = Stage::GivenUp(txn);
        // To roll back may take long, and the origin does not wait for ever.
        let most = if ctx.rng.one_in(4) { 2 * SECOND } else { 20 * MS };
        self.wake_arrival_worker(ctx.now + ctx.rng.between(10, most));
    }

    fn arrived_is_decided(&mut self, verdict: &VerdictFrame, ctx: &mut Ctx) {
        let (txn, at, previous) = (verdict.txn, verdict.at, verdict.other);
        let commits = match verdict.outcome {
            VerdictOutcome::Commit => true,
            VerdictOutcome::Cancelled => false,
            other => return ctx.checker.fail(format!("p{}: the arrival worker is told {other:?}", self.node)),
        };
        match std::mem::take(&mut self.arrival.stage) {
            Stage::Unwritten(whole) | Stage::Written(whole) if whole.txn == txn && whole.verdict.is_some() => {
                ctx.checker.fail(format!("p{}: a second verdict about {txn}, which has arrived", self.node));
            }
            // Its node has started anew, and decides again what it had decided before.
            Stage::Unwritten(whole) | Stage::Written(whole) if whole.txn == txn && commits && self.applied >= at => {
                ctx.events.add("arrived, and shown already");
                self.arrival.stage = Stage::Committed(txn);
                self.wake_arrival_worker(ctx.now);
            }
            Stage::Unwritten(mut whole) if whole.txn == txn && commits => {
                whole.verdict = Some(Decided { at, previous, ready: false });
                self.arrival.stage = Stage::Unwritten(whole);
                self.wake_arrival_worker(ctx.now + ctx.rng.between(10, 20 * MS));
            }
            Stage::Written(mut whole) if whole.txn == txn && commits => {
                whole.verdict = Some(Decided { at, previous, ready: false });
                self.arrival.stage = Stage::Written(whole);
                self.wake_arrival_worker(ctx.now + ctx.rng.between(10, 20 * MS));
            }
            Stage::Receiving { txn: of, .. } if of == txn && commits => {
                ctx.checker.fail(format!("p{}: it is to commit {txn}, which has not arrived here", self.node));
            }
            Stage::Receiving { txn: of, .. } if of == txn => {
                ctx.events.add("arrived in part, and not to be committed");
                self.wants_next(ctx);
            }
            Stage::Unwritten(whole) | Stage::Written(whole) if whole.txn == txn => {
                if ctx.checker.has_committed(&txn) {
                    let why = format!("p{}: the arrival worker has {txn}, which is not left to it", self.node);
                    return ctx.checker.fail(why);
                }
                ctx.events.add("arrived, and not to be committed");
                self.wants_next(ctx);
            }
            Stage::GivenUp(of) if of == txn && (!commits || ctx.options.bug == Some(InjectedBug::IgnoresVerdict)) => {
                self.wants_next(ctx);
            }
            // The verdict and the news that it has given up cross.  When its node has that, it ends the connection.
            other if self.arrival.given_up == Some(txn) || matches!(other, Stage::GivenUp(of) if of == txn) => {
                self.arrival.stage = other;
                if commits {
                    ctx.events.add("given up, and to be committed");
                    if ctx.rng.one_in(2) {
                        self.arrival_worker_dies(ctx);
                    }
                }
            }
            _ => ctx.checker.fail(format!("p{}: a verdict about {txn}, which the arrival worker never had", self.node)),
        }
    }

    /// Commits the rows that it has written, if it is its turn; else it waits.
    fn commit_arrived(&mut self, mut whole: Whole, ctx: &mut Ctx) {
        let Some(decided) = &mut whole.verdict else { return };
        decided.ready = true;
        let (at, previous) = (decided.at, decided.previous);
        if self.applied >= at {
            let why = format!("p{}: {} waits for its turn at {at}, which is over", self.node, whole.txn);
            return ctx.checker.fail(why);
        }
        if self.applied != previous && ctx.options.bug != Some(InjectedBug::ArrivedTakesNoTurn) {
            self.arrival.stage = Stage::Written(whole);
            return self.wake_arrival_worker(ctx.now + ctx.rng.between(MS, 2 * SECOND));
        }
        self.commit(at, &whole.rows, ctx);
        ctx.events.add("committed by the arrival worker");
        self.arrival.stage = Stage::Committed(whole.txn);
        let wait = if ctx.rng.one_in(3) { ctx.rng.between(MS, 300 * MS) } else { 0 };
        self.wake_arrival_worker(ctx.now + wait);
    }

    /// Its turn has come.
    pub(crate) fn arrival_worker_goes_on(&mut self, ctx: &mut Ctx) {
        match std::mem::take(&mut self.arrival.stage) {
            Stage::Written(whole) => self.commit_arrived(whole, ctx),
            other => self.arrival.stage = other,
        }
    }

    /// The apply worker needs the locks that it holds.  It gives up, unless it is decided.
    pub(crate) fn evict_arrival_worker(&mut self, fed: &Fed, ctx: &mut Ctx) {
        if !fed.rows.iter().any(|row| self.arrival.holds(row.hash, row.mode)) {
            return;
        }
        match std::mem::take(&mut self.arrival.stage) {
            Stage::Written(Whole { txn, verdict: Some(Decided { at, .. }), .. }) => {
                let why = format!("p{}: entry {} needs a row of {txn}, decided at {at}: a deadlock", self.node, fed.at);
                ctx.checker.fail(why);
            }
            Stage::Written(whole) => {
                ctx.events.add("arrival worker evicted");
                self.give_up_arrival(whole, ctx);
            }
            other => self.arrival.stage = other,
        }
    }
}
