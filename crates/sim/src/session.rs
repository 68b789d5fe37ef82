//! Sessions of the model of PostgreSQL: statements with row locks and bases, COMMIT, and what their clients are told.
//!
//! Under READ COMMITTED, a statement reads what is visible when it runs.  Under REPEATABLE READ, everything is read
//! as of the first statement, and a row that has changed since cannot be locked.  Under SERIALIZABLE, COMMIT also says
//! which rows were read, unless nothing was changed.

use crate::agent::{ConnId, ToNode};
use crate::checker::TrueKey;
use crate::ctx::{Ctx, InjectedBug, Micros, MS, SECOND};
use crate::postgres::{Postgres, Wish, RECONNECT};
use crate::prepared::{self, What};
use crate::rows::{self, Row, Rows};
use crate::trace;
use bytes::Bytes;
use onetrip_checker::{ClientOutcome, Level, Process, Time, Txn, Value};
use onetrip_core::agent::{Asked, Role, VerdictFrame, VerdictOutcome};
use onetrip_core::row_locks::{LockAsk, LockSaid};
use onetrip_core::{Base, Entry, EntryKind, Key, LockMode, LogIndex, TxnId};

const STATEMENTS_MAX: u64 = 6;
/// Once all is healed, a fresh read is answered within this time, or its connection ends.
const READ_TAKES: Micros = 20 * SECOND;

/// A transaction, as far as it has got.
pub struct Work {
    record: Txn,
    /// Other than under READ COMMITTED, the snapshot of the first statement.
    snapshot: Option<LogIndex>,
    pub keys: Vec<TrueKey>,
    /// Under SERIALIZABLE, what was read.
    reads: Vec<TrueKey>,
    statements_left: u64,
    read_only: bool,
    what: What,
    /// It asks for row locks first (`onetrip.concurrency = locking`), as this transaction.
    locks_as: Option<TxnId>,
}

pub enum Doing {
    Idle,
    Running(Work),
    /// It is to read fresh: it has asked, or is about to, and then waits until its PostgreSQL shows what it was
    /// told.
    Asking {
        work: Work,
        /// Its node may ask others.
        may_ask: bool,
        number: u64,
        sent_on: Option<ConnId>,
        /// Since when it has waited for the answer.
        since: Option<Micros>,
        at: Option<LogIndex>,
        until: Micros,
    },
    /// It has asked for the lock of a row, and then waits until its PostgreSQL shows what it was told.
    Locking {
        work: Work,
        hash: u64,
        mode: LockMode,
        number: u64,
        at: Option<LogIndex>,
        until: Micros,
    },
    Proposed {
        txn: TxnId,
        work: Work,
        raw: Bytes,
        until: Micros,
        sent_on: Option<ConnId>,
        /// It may be in the log although the node refuses it now.
        sent_before: bool,
    },
    /// `ready`: it has returned from the verdict, and waits for its turn.
    Decided {
        txn: TxnId,
        work: Work,
        at: LogIndex,
        previous: LogIndex,
        ready: bool,
    },
}

pub struct Session {
    pub conn: Option<ConnId>,
    pub doing: Doing,
    /// The client; another one after each transaction whose outcome it does not know.
    process: Process,
    /// Only the last wake-up that was asked for counts.
    wake: u64,
}

/// A transaction that the apply worker makes sure does not stay open.
pub struct GivenUp {
    pub txn: TxnId,
    pub since: Micros,
    /// The worker's connection on which it asked for the transaction to be settled.
    pub settled_on: Option<ConnId>,
}

/// A client that got no answer.
pub struct Question {
    pub txn: TxnId,
    pub record: Txn,
}

impl Session {
    pub fn new() -> Session {
        Session { conn: None, doing: Doing::Idle, process: Process(0), wake: 0 }
    }

    pub fn keys(&self) -> &[TrueKey] {
        match &self.doing {
            Doing::Idle => &[],
            Doing::Running(work)
            | Doing::Asking { work, .. }
            | Doing::Locking { work, .. }
            | Doing::Proposed { work, .. }
            | Doing::Decided { work, .. } => &work.keys,
        }
    }

    /// The transaction that it has proposed and not yet committed.
    pub fn open_txn(&self) -> Option<TxnId> {
        match self.doing {
            Doing::Proposed { txn, .. } | Doing::Decided { txn, .. } => Some(txn),
            _ => None,
        }
    }
}

fn changed_rows(keys: &[TrueKey]) -> Vec<Row> {
    let writers = keys.iter().filter(|k| k.writes());
    writers.map(|k| Row { hash: k.hash, mode: k.mode, count: k.read + 1, value: k.value }).collect()
}

fn ended(mut work: Work, outcome: ClientOutcome, ctx: &mut Ctx) {
    // What somebody else's transaction has become is in that one's record.
    if matches!(work.what, What::End { .. }) {
        return;
    }
    (work.record.outcome, work.record.completed) = (outcome, Time(ctx.now));
    ctx.history.push(work.record);
}

impl Postgres {
    /// The backend is gone, whatever it was doing.
    pub(crate) fn end_session(&mut self, slot: usize, ctx: &mut Ctx) -> Option<ConnId> {
        let s = &mut self.sessions[slot];
        let conn = s.conn.take();
        match std::mem::replace(&mut s.doing, Doing::Idle) {
            Doing::Proposed { txn, work, .. } | Doing::Decided { txn, work, .. } => self.unknown(slot, txn, work, ctx),
            Doing::Running(work) | Doing::Asking { work, .. } | Doing::Locking { work, .. } => {
                ended(work, ClientOutcome::Aborted, ctx);
            }
            Doing::Idle => {}
        }
        conn
    }

    /// A client that does not know what became of its transaction asks, and goes on as another client.
    fn unknown(&mut self, slot: usize, txn: TxnId, mut work: Work, ctx: &mut Ctx) {
        self.sessions[slot].process = Process(0);
        (work.record.outcome, work.record.completed) = (ClientOutcome::Unknown, Time(ctx.now));
        if work.what == What::Commit {
            ctx.questions.push(Question { txn, record: work.record });
        }
        self.given_up.push(GivenUp { txn, since: ctx.now, settled_on: None });
    }

    /// The transaction is committed, and the apply worker is to show it.
    fn hand_over(&mut self, slot: usize, txn: TxnId, work: Work, ctx: &mut Ctx) {
        if let Some(conn) = self.sessions[slot].conn.take() {
            self.wishes.push(Wish::Send(ToNode::Closed { conn }));
        }
        self.unknown(slot, txn, work, ctx);
    }

    pub(crate) fn verdict(&mut self, slot: usize, verdict: &VerdictFrame, ctx: &mut Ctx) {
        match std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle) {
            Doing::Proposed { txn, work, sent_before, .. } if txn == verdict.txn => match verdict.outcome {
                VerdictOutcome::Commit => {
                    let (at, previous) = (verdict.at, verdict.other);
                    self.sessions[slot].doing = Doing::Decided { txn, work, at, previous, ready: false };
                    self.wake(slot, ctx.now + ctx.rng.between(10, 2 * MS));
                }
                VerdictOutcome::ByWorker => {
                    ctx.checker.tells_committed(txn, verdict.at);
                    match work.what {
                        What::End { of, commit } => ctx.prepared_ends(of, commit),
                        // Who ends it completes it; meanwhile this client may go on as another one.
                        _ => self.sessions[slot].process = Process(0),
                    }
                    ctx.events.add(if work.what == What::Prepare { "prepared" } else { "ended what was prepared" });
                    self.wake(slot, ctx.now + ctx.rng.between(MS, 100 * MS));
                }
                VerdictOutcome::Refused | VerdictOutcome::Full if sent_before => {
                    self.unknown(slot, txn, work, ctx);
                    self.wake(slot, ctx.now + ctx.rng.between(MS, 50 * MS));
                }
                outcome => {
                    ctx.events.add(match outcome {
                        VerdictOutcome::Reserved => "lost to a reservation",
                        VerdictOutcome::Held => "lost to what is prepared",
                        _ => "lost at certification",
                    });
                    ctx.checker.tells_aborted(txn, "verdict abort");
                    ctx.prepared.remove(&txn);
                    self.unlock(slot, &work, ctx);
                    ended(work, ClientOutcome::Aborted, ctx);
                    self.wake(slot, ctx.now + ctx.rng.between(MS, 50 * MS));
                }
            },
            // This is the verdict of a transaction that it no longer waits for.
            other => self.sessions[slot].doing = other,
        }
    }

    pub(crate) fn read_at(&mut self, slot: usize, answered: u64, (from, asked): (LogIndex, Asked), ctx: &mut Ctx) {
        let Doing::Asking { number, since, at, may_ask, until, .. } = &mut self.sessions[slot].doing else { return };
        if *number != answered {
            return;
        }
        *since = None;
        match (asked, *may_ask) {
            (Asked::NotYet, true) => ctx.checker.fail("a read was told that it may not ask, although it may".into()),
            (Asked::Others, false) => ctx.checker.fail("others were asked for a read that may ask nobody".into()),
            (Asked::NotYet, false) => {
                ctx.events.add("read that may ask nobody refused");
                *until = ctx.now;
            }
            (Asked::Nobody, false) => {
                ctx.events.add("read that may ask nobody answered");
                *at = Some(from);
            }
            _ => *at = Some(from),
        }
        self.wake(slot, ctx.now);
    }

    pub(crate) fn locked(&mut self, slot: usize, answered: u64, said: LockSaid, ctx: &mut Ctx) {
        let Doing::Locking { number, at, until, .. } = &mut self.sessions[slot].doing else { return };
        if *number != answered {
            return;
        }
        match said {
            LockSaid::Granted { at: shown } => {
                ctx.events.add("row lock granted");
                *at = Some(shown);
            }
            LockSaid::NoTable => {
                ctx.events.add("no table of row locks");
                *at = Some(LogIndex::ZERO);
            }
            LockSaid::Deadlock { .. } => {
                ctx.events.add("deadlock over row locks");
                *until = ctx.now;
            }
            LockSaid::Busy { .. } | LockSaid::Waiting => *until = ctx.now,
        }
        self.wake(slot, ctx.now);
    }

    /// The transaction is over without an entry.  That it says so may be lost.
    fn unlock(&mut self, slot: usize, work: &Work, ctx: &mut Ctx) {
        if let (Some(txn), Some(conn)) = (work.locks_as, self.sessions[slot].conn) {
            if !ctx.rng.one_in(20) {
                self.wishes.push(Wish::Send(ToNode::Unlock { conn, txn, from: 0 }));
            }
        }
    }

    pub(crate) fn wake(&mut self, slot: usize, at: Micros) {
        let s = &mut self.sessions[slot];
        s.wake += 1;
        self.wishes.push(Wish::Wake { slot, at, wake: s.wake });
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

    /// The next thing that this session does.  `node`: how far its node has decided, if that node is up and can be
    /// connected to.
    fn session_step(&mut self, slot: usize, node: Option<LogIndex>, next_conn: &mut u64, ctx: &mut Ctx) {
        if node.is_some() && self.sessions[slot].conn.is_none() {
            *next_conn += 1;
            self.sessions[slot].conn = Some(ConnId(*next_conn));
            self.wishes.push(Wish::Send(ToNode::Hello { conn: ConnId(*next_conn), hello: self.hello(Role::Backend) }));
        }
        let doing = std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle);
        let mut again = ctx.now + ctx.rng.between(MS, 40 * MS);
        let next = match doing {
            Doing::Idle if self.closing => return,
            Doing::Idle if !self.lets_clients_in() => {
                again = ctx.now + RECONNECT;
                Doing::Idle
            }
            Doing::Idle if !self.read_only && ctx.rng.one_in(5) => match self.propose_end(slot, node, ctx) {
                Some((doing, until)) => {
                    again = until;
                    doing
                }
                None => Doing::Idle,
            },
            Doing::Idle => match self.begin(slot, ctx) {
                work if ctx.rng.one_in(6) => {
                    again = ctx.now;
                    let until = ctx.now + ctx.options.commit_timeout;
                    let may_ask = !ctx.options.reads_alone || ctx.next_value % 2 == 0;
                    Doing::Asking { work, may_ask, number: 0, sent_on: None, since: None, at: None, until }
                }
                work => Doing::Running(work),
            },
            Doing::Asking { mut work, at: Some(at), .. } if self.applied >= at => {
                ctx.events.add("read fresh");
                work.record.fresh = true;
                Doing::Running(work)
            }
            Doing::Asking { work, until, since, sent_on, .. }
                if ctx.now >= until && !(since.is_some() && self.must_be_answered(slot, sent_on, ctx)) =>
            {
                ctx.events.add("no fresh read in time");
                ended(work, ClientOutcome::Aborted, ctx);
                Doing::Idle
            }
            Doing::Asking { work, may_ask, mut number, mut sent_on, mut since, mut at, until } => {
                let conn = self.sessions[slot].conn;
                if conn.is_some() && sent_on != conn {
                    ctx.next_value += 1;
                    (number, sent_on, since, at) = (ctx.next_value, conn, Some(ctx.now), None);
                    self.wishes.extend(conn.map(|conn| Wish::Send(ToNode::Read { conn, number, may_ask })));
                }
                if let Some(waits) = since.filter(|_| self.must_be_answered(slot, sent_on, ctx)) {
                    let begins = waits.max(ctx.healed.unwrap_or(ctx.now));
                    if begins + READ_TAKES < ctx.now {
                        ctx.checker.fail(format!("p{}: a fresh read has been open since {waits}", self.node));
                    }
                }
                if ctx.now < until {
                    again = again.min(until);
                }
                Doing::Asking { work, may_ask, number, sent_on, since, at, until }
            }
            Doing::Locking { work, hash, mode, at: Some(at), .. } if self.applied >= at => {
                self.change_or_abort(slot, work, (hash, mode), ctx)
            }
            Doing::Locking { work, until, .. } if ctx.now >= until => {
                ctx.events.add("row lock not granted in time");
                self.abort(slot, work, ctx)
            }
            Doing::Locking { work, hash, mode, number, at, until } => {
                again = until;
                if at.is_some() {
                    again = again.min(ctx.now + 5 * MS);
                }
                Doing::Locking { work, hash, mode, number, at, until }
            }
            Doing::Running(work) if work.statements_left > 0 => self.statement(slot, work, ctx),
            Doing::Running(work) => self.begin_commit(slot, work, node, ctx),
            Doing::Proposed { txn, work, raw, until, mut sent_on, mut sent_before } => {
                if ctx.now >= until {
                    ctx.events.add("commit timeout, outcome unknown");
                    if let Some(conn) = self.sessions[slot].conn.take() {
                        self.wishes.push(Wish::Send(ToNode::Closed { conn }));
                    }
                    self.unknown(slot, txn, work, ctx);
                    Doing::Idle
                } else {
                    let conn = self.sessions[slot].conn;
                    if conn.is_some() && sent_on != conn {
                        ctx.events.add("proposed on a new connection");
                        (sent_on, sent_before) = (conn, true);
                        self.wishes
                            .extend(conn.map(|conn| Wish::Send(ToNode::Propose { conn, txn, raw: raw.clone() })));
                    }
                    again = if conn.is_some() { until } else { ctx.now + RECONNECT };
                    Doing::Proposed { txn, work, raw, until, sent_on, sent_before }
                }
            }
            Doing::Decided { txn, work, .. } if self.stands_still(ctx) => {
                ctx.events.add("committed, and not shown in time");
                self.hand_over(slot, txn, work, ctx);
                Doing::Idle
            }
            Doing::Decided { txn, work, at, previous, .. } => {
                self.try_commit(slot, txn, work, at, previous, ctx);
                return self.progress(ctx);
            }
        };
        self.sessions[slot].doing = next;
        self.wake(slot, again.max(ctx.now + 1));
        self.progress(ctx);
    }

    /// Nothing is lost any more, and the connection on which it has asked stands.
    fn must_be_answered(&self, slot: usize, sent_on: Option<ConnId>, ctx: &Ctx) -> bool {
        ctx.healed.is_some() && sent_on.is_some() && sent_on == self.sessions[slot].conn
    }

    fn begin(&mut self, slot: usize, ctx: &mut Ctx) -> Work {
        let process = &mut self.sessions[slot].process;
        if *process == Process(0) {
            ctx.next_process += 1;
            *process = Process(ctx.next_process);
        }
        let level = match ctx.rng.one_in(2) {
            true => Level::ReadCommitted,
            false if ctx.options.serializable => Level::Serializable,
            false => Level::RepeatableRead,
        };
        let record = Txn {
            process: *process,
            region: self.region.clone(),
            level,
            invoked: Time(ctx.now),
            completed: Time(ctx.now),
            outcome: ClientOutcome::Unknown,
            fresh: false,
            ops: Vec::new(),
        };
        let (read_only, statements_left) = (self.read_only || ctx.rng.one_in(4), ctx.rng.between(1, STATEMENTS_MAX));
        let locks_as = (!read_only && ctx.rng.one_in(4)).then(|| self.draw_txn());
        let (keys, reads) = (Vec::new(), Vec::new());
        Work { record, snapshot: None, keys, reads, statements_left, read_only, what: What::Commit, locks_as }
    }

    /// A plain read; or a row lock, and then its base.  A session that meets a lock, or a row that is too new,
    /// aborts.
    fn statement(&mut self, slot: usize, mut work: Work, ctx: &mut Ctx) -> Doing {
        work.statements_left -= 1;
        // A few rows are used most.
        let hash = 1 + ctx.rng.below(ctx.options.keys).min(ctx.rng.below(ctx.options.keys));
        let mode = LockMode::ALL[ctx.rng.below(4) as usize];
        let only_read = ctx.rng.one_in(3) || work.read_only;
        if work.keys.iter().any(|k| k.hash == hash) {
            return Doing::Running(work);
        }
        let snapshot = self.snapshot(&mut work, ctx);
        if only_read {
            self.read(hash, snapshot, &mut work);
            return Doing::Running(work);
        }
        if let (Some(txn), Some(conn)) = (work.locks_as, self.sessions[slot].conn) {
            ctx.next_value += 1;
            let (number, waits) = (ctx.next_value, !ctx.rng.one_in(10));
            let ask = LockAsk { txn, number, waits, keys: vec![(hash, mode)] };
            self.wishes.push(Wish::Send(ToNode::Lock { conn, ask }));
            let until = ctx.now + ctx.rng.between(50 * MS, 2_000 * MS);
            return Doing::Locking { work, hash, mode, number, at: None, until };
        }
        self.change_or_abort(slot, work, (hash, mode), ctx)
    }

    fn abort(&mut self, slot: usize, work: Work, ctx: &mut Ctx) -> Doing {
        self.unlock(slot, &work, ctx);
        ended(work, ClientOutcome::Aborted, ctx);
        Doing::Idle
    }

    fn draw_txn(&mut self) -> TxnId {
        self.sequence += 1;
        TxnId { node: self.node, incarnation: self.incarnation, sequence: self.sequence }
    }

    fn snapshot(&self, work: &mut Work, ctx: &Ctx) -> LogIndex {
        match work.record.level {
            Level::ReadCommitted => self.applied,
            _ if ctx.options.bug == Some(InjectedBug::LateSnapshot) => self.applied,
            Level::RepeatableRead | Level::Serializable => *work.snapshot.get_or_insert(self.applied),
        }
    }

    fn read(&self, hash: u64, snapshot: LogIndex, work: &mut Work) {
        self.rows.read(hash, snapshot, &mut work.record.ops);
        if work.record.level == Level::Serializable {
            let (mode, base, read, value) = (LockMode::Share, snapshot, 0, Value(0));
            work.reads.push(TrueKey { hash, mode, base, read, value, only_read: true });
        }
    }

    /// Takes the lock of a row in this PostgreSQL, and then its base.
    fn change_or_abort(&mut self, slot: usize, mut work: Work, (hash, mode): (u64, LockMode), ctx: &mut Ctx) -> Doing {
        let snapshot = self.snapshot(&mut work, ctx);
        let is_held = self.arrival.holds(hash, mode)
            || self.sessions.iter().flat_map(Session::keys).any(|k| k.hash == hash && k.mode.conflicts_with(mode));
        if is_held || self.rows.last_change(hash) > snapshot {
            ctx.events.add(if is_held { "lost to a row lock" } else { "lost to a newer row" });
            return self.abort(slot, work, ctx);
        }
        let read = self.rows.count(hash);
        self.read(hash, snapshot, &mut work);
        ctx.next_value += 1;
        let key = TrueKey { hash, mode, base: self.applied, read, value: Value(ctx.next_value), only_read: false };
        if key.writes() {
            work.record.ops.push(Rows::append(hash, read, key.value));
        }
        work.keys.push(key);
        Doing::Running(work)
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED, of whatever this PostgreSQL keeps.
    fn propose_end(&mut self, slot: usize, node: Option<LogIndex>, ctx: &mut Ctx) -> Option<(Doing, Micros)> {
        let conn = self.sessions[slot].conn.filter(|_| node.is_some() && !self.stands_still(ctx))?;
        let (txn, what, raw) = self.end_prepared(ctx)?;
        let mut work = self.begin(slot, ctx);
        (work.what, work.locks_as) = (what, None);
        self.wishes.push(Wish::Send(ToNode::Propose { conn, txn, raw: raw.clone() }));
        let until = ctx.now + ctx.options.commit_timeout;
        Some((Doing::Proposed { txn, work, raw, until, sent_on: Some(conn), sent_before: false }, until))
    }

    fn begin_commit(&mut self, slot: usize, mut work: Work, node: Option<LogIndex>, ctx: &mut Ctx) -> Doing {
        if work.keys.is_empty() {
            // Read-only: nobody is asked.
            self.unlock(slot, &work, ctx);
            ended(work, ClientOutcome::Committed, ctx);
            return Doing::Idle;
        }
        let (Some(decided), Some(conn)) = (node, self.sessions[slot].conn) else {
            ended(work, ClientOutcome::Aborted, ctx);
            return Doing::Idle;
        };
        if self.stands_still(ctx) {
            ctx.events.add("refused in a region that stands still");
            return self.abort(slot, work, ctx);
        }
        let txn = work.locks_as.unwrap_or_else(|| self.draw_txn());
        if ctx.rng.one_in(8) {
            work.what = What::Prepare;
        } else {
            ctx.poison(txn);
        }
        let bug = ctx.options.bug;
        let mut proposed: Vec<Key> = work
            .keys
            .iter()
            .map(|k| Key {
                hash: k.hash,
                mode: match k.mode {
                    LockMode::Update if bug == Some(InjectedBug::ForgetMode) => LockMode::KeyShare,
                    mode => mode,
                },
                base: match bug {
                    Some(InjectedBug::HighBase) => Base(decided.max(k.base).0),
                    _ => Base(k.base.0),
                },
            })
            .collect();
        if bug == Some(InjectedBug::ForgetReads) {
            work.reads.clear();
        }
        let reads = work.reads.iter().map(|k| Key { hash: k.hash, mode: k.mode, base: Base(k.base.0) });
        let mut reads: Vec<Key> = reads.collect();
        if bug == Some(InjectedBug::LateReads) {
            reads.iter_mut().for_each(|k| k.base = Base(self.applied.0));
        }
        let rows = changed_rows(&work.keys);
        let raw = match work.what {
            What::Prepare => {
                let name = prepared::draw_name(ctx);
                if bug == Some(InjectedBug::HoldsHalf) {
                    proposed.retain(|k| matches!(k.mode, LockMode::NoKeyUpdate | LockMode::Update));
                    proposed.iter_mut().for_each(|k| k.mode = LockMode::KeyShare);
                }
                proposed.insert(0, Key { hash: name, mode: LockMode::Update, base: Base(self.applied.0) });
                // Whoever ends it will say what became of it.
                ctx.prepared.insert(txn, work.record.clone());
                self.sessions[slot].process = Process(0);
                if bug == Some(InjectedBug::PreparedHoldsNoReads) {
                    reads.clear();
                }
                let keep = prepared::encode_keep(name, &rows);
                Entry::encode_serializable(EntryKind::Prepare, &txn, &proposed, &reads, &keep)
            }
            _ => {
                let rows = rows::encode(&rows);
                Entry::encode_serializable(EntryKind::Transaction, &txn, &proposed, &reads, &rows)
            }
        };
        ctx.checker.proposes(txn, work.keys.iter().chain(&work.reads).copied().collect());
        ctx.events.add("proposed");
        self.wishes.push(Wish::Send(ToNode::Propose { conn, txn, raw: raw.clone() }));
        let until = ctx.now + ctx.options.commit_timeout;
        Doing::Proposed { txn, work, raw, until, sent_on: Some(conn), sent_before: false }
    }

    pub(crate) fn try_commit(
        &mut self,
        slot: usize,
        txn: TxnId,
        work: Work,
        at: LogIndex,
        previous: LogIndex,
        ctx: &mut Ctx,
    ) {
        let has_turn = self.applied == previous || ctx.options.bug == Some(InjectedBug::EarlyTurn);
        if !has_turn {
            if self.applied >= at {
                ctx.checker.fail(format!("p{}: {txn} waits for its turn at {at}, which is over", self.node));
            }
            self.sessions[slot].doing = Doing::Decided { txn, work, at, previous, ready: true };
            return;
        }
        if ctx.cannot_commit_at_home(txn) {
            ctx.events.add("committed, and left to the worker");
            self.hand_over(slot, txn, work, ctx);
            return self.wake(slot, ctx.now + ctx.rng.between(MS, 100 * MS));
        }
        self.commit(at, &changed_rows(&work.keys), ctx);
        ctx.checker.tells_committed(txn, at);
        ended(work, ClientOutcome::Committed, ctx);
        ctx.events.add("acknowledged");
        self.acknowledged += 1;
        if ctx.rng.one_in(3) {
            self.wishes.extend(self.sessions[slot].conn.map(|conn| Wish::Send(ToNode::Done { conn, txn })));
        } else if ctx.rng.one_in(3) {
            self.wishes.extend(self.sessions[slot].conn.map(|conn| Wish::Send(ToNode::Await { conn, at })));
        }
        self.wake(slot, ctx.now + ctx.rng.between(MS, 100 * MS));
    }

    /// A running statement of this session is in the way of an entry that is decided.
    pub(crate) fn evict(&mut self, slot: usize, ctx: &mut Ctx) {
        match std::mem::replace(&mut self.sessions[slot].doing, Doing::Idle) {
            Doing::Running(work) | Doing::Locking { work, .. } => {
                ctx.events.add("evicted");
                self.abort(slot, work, ctx);
            }
            _ => {}
        }
    }

    /// A backend dies.
    pub fn kill_session(&mut self, slot: usize, ctx: &mut Ctx) {
        trace!(ctx, "p{} session {slot} is killed", self.node);
        if let Some(conn) = self.end_session(slot, ctx) {
            self.wishes.push(Wish::Send(ToNode::Closed { conn }));
        }
        self.wake(slot, ctx.now + ctx.rng.between(MS, 200 * MS));
        self.progress(ctx);
    }
}
