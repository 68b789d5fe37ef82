//! Who waits for what on a node: open proposals, the apply worker's feed, and which process commits an entry here
//! (`docs/agent-protocol.md`, rules 1 to 4).
//!
//! The router decides nothing about transactions; it passes on the certifier's verdicts.  It knows sockets only as an
//! [`Outbox`] and the log only as a [`Log`]; the daemon and the simulation bring theirs.
//!
//! Invariants:
//! - A verdict goes to the connection that waits for it at that moment, or the entry goes to the apply worker; never
//!   both, and never neither while a worker is connected.
//! - `pending` contains exactly the proposals that a connection waits for.

mod arrival;
mod feed;
mod large;
mod outside;
mod settle;
mod worker;

pub use outside::{refusal, refusal_as, AgentEvent, ConnId, Event, LockEvent, Log, Outbox, Permit, Read, Way};

use crate::agent::{
    Asked, Hello, OutcomeState, Role, ToPostgres, VerdictFrame, VerdictOutcome, WayTimes, NO_KEY, VERSION,
};
use crate::certifier::{Certifier, CommittedIndexes, Decision, Outcome, Verdict};
use crate::entry::Entry;
use crate::ids::{LogIndex, NodeId, RegionId, TxnId};
use crate::level;
use crate::members::{MemberRole, Members};
use crate::parts::{PartSizes, Progress};
use crate::row_locks::LockSaid;
use arrival::ArrivalWorker;
use bytes::Bytes;
use feed::Feed;
use settle::Settling;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A proposal is sent again this many ticks after the last time, with a delay that doubles up to a bound.  A lost
/// leader is noticed at once, so this is only for a message lost on the way.
const RESEND_TICKS: u64 = 50;
const RESEND_TICKS_MAX: u64 = 250;
/// A proposal that nobody took is offered again after this many ticks.
const RETRY_TICKS: u64 = 5;
/// A large proposal is not sent again before it can have arrived, at this speed.
const BYTES_PER_TICK: u64 = 256 << 10;

pub(crate) fn ticks_on_the_way(raw: &Bytes) -> u64 {
    raw.len() as u64 / BYTES_PER_TICK
}

/// An entry with more keys than this is proposed even if it has lost already: looking would take too long.
const JUDGED_KEYS_MAX: usize = 1_000;

struct Conn<O> {
    outbox: Arc<O>,
    is_backend: bool,
    pid: u32,
    /// It can read how long its proposals took.
    takes_times: bool,
    waiting: Option<TxnId>,
    /// A verdict of commit was sent here, and the backend has not said yet that it has committed.
    in_doubt: Option<(TxnId, LogIndex)>,
    /// The number of its open READ.
    reading: Option<u64>,
    /// The entry of its open AWAIT.
    awaiting: Option<LogIndex>,
    /// It has asked for row locks.
    locks: bool,
}

struct Pending {
    conn: ConnId,
    raw: Bytes,
    /// When this node had it.
    taken: Duration,
    resend_at: u64,
    resend_ticks: u64,
    /// Set if it travels in parts.
    parts: Option<Progress>,
    /// It has not lost to this entry, or that is not known to be in the way.
    judged: LogIndex,
    _permit: Permit,
}

pub struct Router<O> {
    me: NodeId,
    region: RegionId,
    sizes: PartSizes,
    conns: BTreeMap<ConnId, Conn<O>>,
    pending: BTreeMap<TxnId, Pending>,
    /// Those of them that travel in parts; and, with the tick at which they are cancelled, those for which no
    /// session waits any more.
    large: BTreeMap<TxnId, Option<u64>>,
    settling: Settling,
    arrival: Option<ArrivalWorker>,
    /// Which transaction this node has said to be written here, and the tick at which it says so again.
    said_written: (TxnId, u64),
    /// Nodes that were waited for in vain, and when that was.
    late: BTreeMap<NodeId, u64>,
    /// What PostgreSQL showed last, and since which tick although there is more to apply.
    shown_since: (Option<LogIndex>, u64),
    feed: Option<Feed<O>>,
    /// The end of the log when this node started: whatever was acknowledged here before is not above it.
    last_at_start: LogIndex,
    /// An apply worker that came before this node knew how much of that is committed.
    early_worker: Option<(ConnId, Hello, Arc<O>)>,
    /// As PostgreSQL reported last, on this or an earlier connection of its worker.
    applied: Option<LogIndex>,
    durable: Option<LogIndex>,
    stopping: bool,
    problem: Option<String>,
    /// The apply worker is at an index from which this node cannot bring it on; nothing but a copy helps.
    needs_copy: bool,
    /// PostgreSQL's data folder is then of no use any more.
    needs_rebuild: bool,
    /// The index at which the apply worker last began with something to apply, and how often it has begun there.
    begun: (LogIndex, u32),
    /// The incarnation of PostgreSQL whose worker began last, and how many lives in a row have come no further.
    life: u64,
    lost_lives: u32,
    /// An entry that PostgreSQL cannot apply, and why; or that it should show, and has forgotten.
    stuck: Option<(LogIndex, String)>,
    events: Vec<Event>,
    /// Connections with a READ that nobody has looked at yet, and its number.
    reads: Vec<Read>,
    /// The same for AWAIT, and its entry.
    awaits: Vec<(ConnId, LogIndex)>,
    /// What backends want of the lock table, and nobody has looked at yet.
    locks: Vec<LockEvent>,
}

/// For `GET /status`.
#[derive(Clone, Debug, Default)]
pub struct RouterStatus {
    pub applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    pub backends: usize,
    pub pending: usize,
    pub worker_connected: bool,
    pub worker_queue: usize,
    /// The entry that PostgreSQL cannot apply, however long it tries.
    pub stuck_at: Option<LogIndex>,
    /// The log cannot bring PostgreSQL on; nothing but a copy does.
    pub needs_copy: bool,
    pub problem: Option<String>,
}

/// What the router needs to look at while it answers.
pub struct Context<'a, L> {
    pub certifier: &'a Certifier,
    pub committed_indexes: &'a mut CommittedIndexes,
    pub log: &'a L,
    pub members: &'a Members,
    pub tick: u64,
    /// On the host's clock.
    pub now: Duration,
}

impl<O: Outbox> Router<O> {
    /// `starts`: the incarnations that PostgreSQL ran as in earlier lives of this node, as [`Router::starts_with`]
    /// returned them; `logged`: the incarnation that it runs as according to the log.
    pub fn new(
        me: NodeId,
        region: RegionId,
        sizes: PartSizes,
        last_at_start: LogIndex,
        starts: &[u64],
        logged: u64,
    ) -> Router<O> {
        Router {
            me,
            region,
            sizes,
            last_at_start,
            early_worker: None,
            conns: BTreeMap::new(),
            pending: BTreeMap::new(),
            large: BTreeMap::new(),
            settling: Settling::new(me, starts, logged),
            arrival: None,
            said_written: (TxnId::default(), 0),
            late: BTreeMap::new(),
            shown_since: (None, 0),
            feed: None,
            applied: None,
            durable: None,
            stopping: false,
            problem: None,
            needs_copy: false,
            needs_rebuild: false,
            begun: (LogIndex::ZERO, 0),
            life: 0,
            lost_lives: 0,
            stuck: None,
            events: Vec::new(),
            reads: Vec::new(),
            awaits: Vec::new(),
            locks: Vec::new(),
        }
    }

    /// What must be durable before this event is handled: the incarnations that PostgreSQL has run as and that the log
    /// does not contain yet.  `None`: nothing new.
    pub fn starts_with(&self, event: &AgentEvent<O>) -> Option<Vec<u64>> {
        match event {
            AgentEvent::Opened { hello, .. } if hello.role == Role::ApplyWorker => {
                self.settling.starts_with(hello.incarnation)
            }
            _ => None,
        }
    }

    /// Handles one event.  What it returns is to be proposed.
    pub fn handle<L: Log>(
        &mut self,
        event: AgentEvent<O>,
        context: &mut Context<'_, L>,
    ) -> Result<Option<Bytes>, L::Error> {
        match event {
            AgentEvent::Opened { conn, hello, outbox } => self.open(conn, &hello, outbox, context)?,
            AgentEvent::Propose { conn, txn, raw, permit } => return Ok(self.propose(conn, txn, raw, permit, context)),
            AgentEvent::Outcome { conn, txn } => self.answer(conn, txn, context.certifier),
            AgentEvent::Settle { conn, txn } => match context.certifier.outcome(&txn) {
                // The worker asks only for what its server has given out.
                Outcome::Unknown if self.is_worker(conn) || context.certifier.may_be_given_out(&txn) => {
                    match self.settling.ask(conn, txn, context.tick) {
                        Ok(raw) => return Ok(raw),
                        Err(()) => self.answer(conn, txn, context.certifier),
                    }
                }
                _ => self.answer(conn, txn, context.certifier),
            },
            AgentEvent::Position { conn, applied, durable } => {
                if self.is_worker(conn) {
                    self.position(applied, durable, context)?;
                }
            }
            AgentEvent::Stuck { conn, at, message } => {
                if self.is_worker(conn) {
                    self.stuck = Some((at, message));
                }
            }
            AgentEvent::Done { conn, txn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    // If it is not in doubt any more, a later PROPOSE has taken it for done already.
                    if c.in_doubt.is_some_and(|(t, _)| t == txn) {
                        c.in_doubt = None;
                    }
                }
            }
            AgentEvent::Read(read) => {
                if let Some(c) = self.conns.get_mut(&read.conn).filter(|c| c.is_backend) {
                    c.reading = Some(read.number);
                    self.reads.push(read);
                }
            }
            AgentEvent::Await { conn, at } => {
                let is_decided = at <= context.certifier.decided();
                if let Some(c) = self.conns.get_mut(&conn).filter(|c| c.is_backend && is_decided) {
                    // It is committed here, as with DONE.
                    c.in_doubt.take_if(|(_, doubted)| *doubted == at);
                    c.awaiting = Some(at);
                    self.awaits.push((conn, at));
                }
            }
            AgentEvent::Lock { conn, ask, table } => {
                if let Some(c) = self.conns.get_mut(&conn).filter(|c| c.is_backend) {
                    c.locks = true;
                    self.locks.push(LockEvent::Ask(conn, ask, table));
                }
            }
            AgentEvent::Unlock { conn, txn, from } => {
                if self.conns.get(&conn).is_some_and(|c| c.locks) {
                    self.locks.push(LockEvent::Release { conn, txn, from });
                }
            }
            AgentEvent::More { conn, txn, from } => {
                if let Some(worker) = self.arrival.as_mut().filter(|w| w.conn == conn) {
                    worker.wants(txn, from);
                }
            }
            AgentEvent::Written { conn, txn, kept } => {
                let in_doubt = self.conns.get(&conn).and_then(|c| c.in_doubt);
                if let Some(worker) = self.arrival.as_mut().filter(|w| w.conn == conn) {
                    worker.is_done(txn, kept);
                    if !kept && in_doubt.is_some_and(|(doubted, _)| doubted == txn) {
                        // The verdict has crossed this.
                        self.close(conn);
                    }
                }
            }
            AgentEvent::Closed { conn } => self.closed(conn),
        }
        Ok(None)
    }

    fn open<L: Log>(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        outbox: Arc<O>,
        context: &mut Context<'_, L>,
    ) -> Result<(), L::Error> {
        match hello.role {
            Role::ApplyWorker => {
                if !self.open_worker(conn, hello, &outbox, context)? {
                    return Ok(());
                }
            }
            Role::ArrivalWorker => {
                if let Some(old) = self.arrival.take() {
                    self.close(old.conn);
                }
                self.arrival = Some(ArrivalWorker::new(conn));
                outbox.send([self.welcome(context.certifier)]);
            }
            Role::Backend => _ = outbox.send([self.welcome(context.certifier)]),
        }
        let is_backend = hello.role == Role::Backend;
        let (pid, takes_times, locks) = (hello.pid, hello.takes_times(), false);
        let (waiting, in_doubt, reading, awaiting) = (None, None, None, None);
        let fresh = Conn { outbox, is_backend, pid, takes_times, waiting, in_doubt, reading, awaiting, locks };
        self.conns.insert(conn, fresh);
        Ok(())
    }

    fn welcome(&self, certifier: &Certifier) -> Bytes {
        let (node, region, committed) = (self.me, self.region.clone(), certifier.last_committed());
        ToPostgres::Welcome { version: VERSION, node, region, committed }.encode()
    }

    fn propose<L: Log>(
        &mut self,
        conn: ConnId,
        txn: TxnId,
        raw: Bytes,
        permit: Permit,
        context: &mut Context<'_, L>,
    ) -> Option<Bytes> {
        let c = self.conns.get_mut(&conn)?;
        if c.waiting.is_some() {
            self.events.push(Event::SecondProposal(txn));
            self.close(conn);
            return None;
        }
        c.in_doubt = None;
        if self.stopping {
            c.outbox.send([refusal(txn, &self.region, "the node is stopping".into())]);
            return None;
        }
        if context.members.get(self.me).is_some_and(|m| m.role == MemberRole::Replica) {
            let why = format!("region {} has a read replica, which takes no changes", self.region);
            c.outbox.send([refusal(txn, &self.region, why)]);
            return None;
        }
        match context.certifier.outcome(&txn) {
            Outcome::Unknown => {}
            Outcome::Decided { at, verdict } => {
                // It was proposed before, on a connection that is gone.  The worker leaves an entry to the backend that
                // waits for its turn, so this backend still has to carry out the verdict.
                let is_left_out = context.certifier.left_out_by(at).is_some();
                let previous = match (verdict, context.committed_indexes.previous_of(at)) {
                    // It is in no PostgreSQL; the backend asks for the outcome, and is told so.
                    (verdict, _) if is_left_out && verdict.commits() => {
                        self.close(conn);
                        return None;
                    }
                    // The committed indexes that this node knows begin after it, because they came from another node.
                    // PostgreSQL is behind them and will be made anew: committed there now, the entry would stand
                    // alone.
                    (Verdict::Commit, None) => {
                        self.close(conn);
                        return None;
                    }
                    (_, previous) => previous.unwrap_or(LogIndex::ZERO),
                };
                self.tell(conn, (txn, at), verdict, previous, (String::new(), None), context.members);
                return None;
            }
            Outcome::OlderThanKept => {
                // Either the id was given out long before COMMIT, or this proposal is sent again; the backend knows
                // which.
                let why =
                    format!("transaction id {txn} is older than the outcomes that are kept; repeat the transaction");
                if let Some(c) = self.conns.get(&conn) {
                    c.outbox.send([refusal(txn, &self.region, why)]);
                }
                return None;
            }
        }
        // Of what travels in parts, nobody sees before the end what it needs.
        if let Err(e) = level::may_be_proposed(&raw, context.members.level) {
            if let Some(c) = self.conns.get(&conn) {
                c.outbox.send([refusal(txn, &self.region, e.to_string())]);
            }
            return None;
        }
        // It need not cross regions to lose, and hold its locks meanwhile, for which the apply worker may be waiting.
        let entry = Entry::decode(raw.clone()).ok().filter(|entry| entry.key_count() <= JUDGED_KEYS_MAX);
        if let Some(verdict) = entry.and_then(|entry| context.certifier.has_lost(&entry)) {
            let zero = LogIndex::ZERO;
            self.tell(conn, (txn, zero), verdict, zero, (String::new(), None), context.members);
            return None;
        }
        if let Some(c) = self.conns.get_mut(&conn) {
            c.waiting = Some(txn);
        }
        let parts = (raw.len() > self.sizes.whole_max).then(|| {
            let arriving = context.certifier.arriving().filter(|arriving| arriving.txn == txn);
            let is_known = arriving.is_some() || self.large.contains_key(&txn);
            Progress::new(&self.sizes, is_known.then(|| arriving.map_or(0, |arriving| arriving.len())))
        });
        let at_once = if parts.is_some() { None } else { Some(raw.clone()) };
        if parts.is_some() {
            self.large.insert(txn, None);
        }
        let resend_ticks = RESEND_TICKS + at_once.as_ref().map_or(0, ticks_on_the_way);
        let resend_at = context.tick + resend_ticks;
        let taken = context.now;
        let judged = LogIndex::ZERO;
        let pending = Pending { conn, raw, taken, resend_at, resend_ticks, parts, judged, _permit: permit };
        if let Some(earlier) = self.pending.insert(txn, pending) {
            if let Some(c) = self.conns.get_mut(&earlier.conn) {
                c.waiting = None;
            }
            self.close(earlier.conn);
        }
        at_once
    }

    /// A session here waits for it.
    pub fn is_pending(&self, txn: &TxnId) -> bool {
        self.pending.contains_key(txn)
    }

    /// Rule 1, at the moment of certification.  [`Router::feed_worker`] sends what the apply worker is to get.
    /// `way`: how that came, if a session here waits for it.
    pub fn decided<L>(&mut self, at: LogIndex, txn: TxnId, decision: Decision, way: Way, context: &Context<'_, L>) {
        for conn in self.settling.decided(&txn) {
            self.answer(conn, txn, context.certifier);
        }
        let (verdict, previous) = match decision {
            Decision::Decided { verdict, previous } => (verdict, previous),
            Decision::NoTransaction => {
                return self.settling.logged(context.certifier.running_incarnation(self.me));
            }
            Decision::Duplicate { .. } => return,
            Decision::Part { counts } => return self.part_is_there(&txn, counts, context),
            Decision::LeavesOut { left_out, previous } => return self.leaves_out(at, left_out, previous),
            Decision::Stale => {
                if let Some(waiting) = self.pending.get(&txn) {
                    self.close(waiting.conn);
                }
                return;
            }
        };
        if let Some(waiting) = self.pending.remove(&txn) {
            if let Some(c) = self.conns.get_mut(&waiting.conn) {
                c.waiting = None;
            }
            let us = |from: Duration, to: Duration| to.saturating_sub(from).as_micros() as u64;
            let times = WayTimes {
                replicate_us: us(waiting.taken, way.committed),
                certify_us: us(way.committed.max(waiting.taken), context.now),
            };
            self.tell(waiting.conn, (txn, at), verdict, previous, (way.held_by, Some(times)), context.members);
            if !verdict.is_for_workers() {
                return;
            }
        }
        if self.arrival_worker_commits(txn, at, verdict, previous, context) {
            return;
        }
        if let Some(feed) = self.feed.as_mut().filter(|_| verdict.commits()) {
            feed.push(at, previous);
        }
    }

    fn answer(&self, conn: ConnId, txn: TxnId, certifier: &Certifier) {
        let (state, at) = match certifier.outcome(&txn) {
            Outcome::Unknown => (OutcomeState::NotSoFar, LogIndex::ZERO),
            Outcome::Decided { at, verdict } if verdict.commits() => match certifier.left_out_by(at) {
                Some(by) => (OutcomeState::LeftOut, by),
                None if verdict == Verdict::Prepared => (OutcomeState::Prepared, at),
                None => (OutcomeState::Committed, at),
            },
            Outcome::Decided { at, .. } => (OutcomeState::Aborted, at),
            Outcome::OlderThanKept => (OutcomeState::OlderThanKept, LogIndex::ZERO),
        };
        if let Some(c) = self.conns.get(&conn) {
            c.outbox.send([ToPostgres::OutcomeIs { txn, state, at }.encode()]);
        }
    }

    fn tell(
        &mut self,
        conn: ConnId,
        (txn, at): (TxnId, LogIndex),
        verdict: Verdict,
        previous: LogIndex,
        (held_by, times): (String, Option<WayTimes>),
        members: &Members,
    ) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let own = || self.region.clone();
        let (outcome, other, key, region) = match verdict {
            Verdict::Commit => {
                c.in_doubt = Some((txn, at));
                (VerdictOutcome::Commit, previous, NO_KEY, own())
            }
            Verdict::Prepared | Verdict::Ended => (VerdictOutcome::ByWorker, previous, NO_KEY, own()),
            Verdict::Held { by, key, origin } => {
                (VerdictOutcome::Held, by, key, members.region_of(origin).cloned().unwrap_or_default())
            }
            Verdict::NoRoom => (VerdictOutcome::NoRoom, LogIndex::ZERO, NO_KEY, own()),
            Verdict::Conflict { other, key, origin } => {
                (VerdictOutcome::Conflict, other, key, members.region_of(origin).cloned().unwrap_or_default())
            }
            Verdict::Reserved { by, key, node } => {
                (VerdictOutcome::Reserved, by, key, members.region_of(node).cloned().unwrap_or_default())
            }
            Verdict::Window { oldest, key } => (VerdictOutcome::Window, LogIndex(oldest.0), key, own()),
            Verdict::Cancelled | Verdict::NotMember => (VerdictOutcome::Cancelled, LogIndex::ZERO, NO_KEY, own()),
        };
        let message = if verdict.commits() { held_by } else { String::new() };
        let times = times.filter(|_| verdict.commits() && c.takes_times);
        let frame = VerdictFrame { txn, outcome, at, other, key, region, message, times };
        c.outbox.send([ToPostgres::Verdict(frame).encode()]);
    }

    fn closed(&mut self, conn: ConnId) {
        if let Some((.., outbox)) = self.early_worker.take_if(|(early, ..)| *early == conn) {
            outbox.close();
        }
        if self.is_worker(conn) {
            self.feed = None;
            self.events.push(Event::WorkerDisconnected);
        }
        self.close(conn);
    }

    /// Ends a connection from this side, or tidies up after one that has ended.
    fn close(&mut self, conn: ConnId) {
        self.arrival.take_if(|worker| worker.conn == conn);
        let Some(c) = self.conns.remove(&conn) else { return };
        c.outbox.close();
        if c.locks {
            self.locks.push(LockEvent::Gone(conn));
        }
        if let Some(txn) = c.waiting {
            self.pending.remove(&txn);
        }
        if let Some((txn, at)) = c.in_doubt {
            // Rule 2.  What the worker has passed is visible here, and so it is committed.
            if self.applied.is_none_or(|applied| applied < at) {
                if let Some(feed) = self.feed.take() {
                    self.events.push(Event::WorkerStartsOver { at, txn });
                    feed.close();
                    self.conns.remove(&feed.conn);
                }
            }
        }
    }

    /// The process of PostgreSQL at the other end.
    pub fn pid(&self, conn: ConnId) -> Option<u32> {
        self.conns.get(&conn).map(|c| c.pid)
    }

    /// The READs that have come since the last call.
    pub fn take_reads(&mut self) -> Vec<Read> {
        std::mem::take(&mut self.reads)
    }

    /// That READ is still open on this connection.
    pub fn waits_for_read(&self, read: &Read) -> bool {
        self.conns.get(&read.conn).is_some_and(|c| c.reading == Some(read.number))
    }

    /// Everything that was acknowledged before this READ is visible at `at`, unless that is not known yet.
    pub fn answer_read(&mut self, read: Read, at: LogIndex, asked: Asked) {
        let Read { conn, number, .. } = read;
        if let Some(c) = self.conns.get_mut(&conn).filter(|c| c.reading == Some(number)) {
            c.reading = None;
            c.outbox.send([ToPostgres::ReadAt { number, at, asked }.encode()]);
        }
    }

    /// The connections that have sent an AWAIT since the last call, and its entry.
    pub fn take_awaits(&mut self) -> Vec<(ConnId, LogIndex)> {
        std::mem::take(&mut self.awaits)
    }

    /// Every server shows `at`, except for those in `missing`.
    pub fn answer_await(&mut self, conn: ConnId, at: LogIndex, missing: String) {
        if let Some(c) = self.conns.get_mut(&conn).filter(|c| c.awaiting == Some(at)) {
            c.awaiting = None;
            c.outbox.send([ToPostgres::Shown { at, missing }.encode()]);
        }
    }

    /// What backends have wanted of the lock table since the last call.
    pub fn take_lock_events(&mut self) -> Vec<LockEvent> {
        std::mem::take(&mut self.locks)
    }

    /// `asked`: another region was asked; `region`: of the other transaction, if there is one.
    pub fn answer_lock(&mut self, conn: ConnId, number: u64, said: LockSaid, asked: bool, region: RegionId) {
        if let Some(c) = self.conns.get(&conn) {
            c.outbox.send([ToPostgres::Locked { number, said, asked, region }.encode()]);
        }
    }

    /// The proposals that are due to be sent again; with `all`, which is for a change of leader, every open one.
    pub fn resend(&mut self, tick: u64, all: bool) -> Vec<Bytes> {
        let mut again = self.settling.resend(tick, all);
        for pending in self.pending.values_mut() {
            if all || pending.resend_at <= tick {
                if !all {
                    let arrival = if pending.parts.is_some() { 0 } else { ticks_on_the_way(&pending.raw) };
                    pending.resend_ticks = (pending.resend_ticks * 2).min(RESEND_TICKS_MAX + 2 * arrival);
                }
                pending.resend_at = tick + pending.resend_ticks;
                match &mut pending.parts {
                    Some(parts) => parts.again(),
                    None => again.push(pending.raw.clone()),
                }
            }
        }
        again
    }

    /// Nobody took this proposal: there is no leader, or it is handing over.  After a change of leader all are sent
    /// again at once, but the leader may also stay the same.
    pub fn not_taken(&mut self, raw: &Bytes, tick: u64) {
        let txn = Entry::peek_txn(raw).ok();
        if txn == Some(self.said_written.0) {
            self.said_written.1 = tick + RETRY_TICKS;
        }
        let pending = txn.and_then(|txn| self.pending.get_mut(&txn));
        if let Some(pending) = pending {
            pending.resend_at = tick + RETRY_TICKS;
            pending.resend_ticks = RESEND_TICKS;
            pending.parts.iter_mut().for_each(Progress::hold);
        }
    }

    /// From now on proposals are refused.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The state has come from another node, and says what became of the open proposals.  So this closes their
    /// connections, which makes backends ask again, and the worker's, which makes it say again where it stands.  Who
    /// asked for a transaction to be settled is told: the entry that settled it is not decided here any more, and is in
    /// the log only once.
    pub fn start_over(&mut self, certifier: &Certifier) {
        for (txn, conn) in self.settling.settled(|txn| certifier.outcome(txn) != Outcome::Unknown) {
            self.answer(conn, txn, certifier);
        }
        let waiting: Vec<ConnId> = self.pending.values().map(|p| p.conn).collect();
        let workers = self.feed.as_ref().map(|f| f.conn).into_iter().chain(self.arrival.as_ref().map(|w| w.conn));
        for conn in waiting.into_iter().chain(workers.collect::<Vec<_>>()) {
            self.closed(conn);
        }
    }

    /// The entry that PostgreSQL cannot apply, however long it tries, and why.
    pub fn stuck(&self) -> Option<&(LogIndex, String)> {
        self.stuck.as_ref()
    }

    /// PostgreSQL's data folder is of no use any more.
    pub fn needs_rebuild(&self) -> bool {
        self.needs_rebuild
    }

    /// Closes everything; for the end of the node.
    pub fn close_all(&mut self) {
        self.feed = None;
        self.arrival = None;
        if let Some((.., outbox)) = self.early_worker.take() {
            outbox.close();
        }
        for c in std::mem::take(&mut self.conns).into_values() {
            c.outbox.close();
        }
        self.pending.clear();
    }

    /// What PostgreSQL shows, if it has said so.
    pub fn applied(&self) -> Option<LogIndex> {
        self.applied
    }

    /// How far PostgreSQL is safe on disk, if it has said so.
    pub fn durable(&self) -> Option<LogIndex> {
        self.durable
    }

    /// What has happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn status(&self) -> RouterStatus {
        RouterStatus {
            applied: self.applied,
            durable: self.durable,
            backends: self.conns.values().filter(|c| c.is_backend).count(),
            pending: self.pending.len(),
            worker_connected: self.feed.is_some(),
            worker_queue: self.feed.as_ref().map_or(0, Feed::waiting),
            stuck_at: self.stuck.as_ref().map(|(at, _)| *at),
            needs_copy: self.needs_copy,
            problem: self.problem.clone(),
        }
    }
}
