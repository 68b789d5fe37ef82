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
mod outside;
mod settle;

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
use std::collections::{BTreeMap, VecDeque};
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

/// A large transaction for which no session waits any more is cancelled after this long.
const ABANDONED_TICKS: u64 = 100;
/// An apply worker that begins at the same index more often than this does not get on.
const BEGINS_MAX: u32 = 3;
/// PostgreSQL may end at an entry this often before the entry is taken for the cause.
const LIVES_MAX: u32 = 3;
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
        if hello.role == Role::ApplyWorker && !self.can_welcome(hello, context) {
            self.problem = (hello.applied > context.log.last_index()).then(|| {
                format!(
                    "PostgreSQL stands at log index {}, this node's log ends at {}: the rest must come from the other members first",
                    hello.applied,
                    context.log.last_index()
                )
            });
            if let Some((.., old)) = self.early_worker.replace((conn, hello.clone(), outbox)) {
                old.close();
            }
            return Ok(());
        }
        let committed = context.certifier.last_committed();
        let (node, region) = (self.me, self.region.clone());
        let welcome = ToPostgres::Welcome { version: VERSION, node, region, committed }.encode();
        let is_backend = hello.role == Role::Backend;
        if hello.role == Role::ArrivalWorker {
            if let Some(old) = self.arrival.take() {
                self.close(old.conn);
            }
            self.arrival = Some(ArrivalWorker::new(conn));
        }
        if hello.role == Role::ApplyWorker {
            if let Some(old) = self.feed.take() {
                self.close(old.conn);
            }
            // Rule 3: the worker gets everything above its applied index, wherever that came from.
            let known = context.committed_indexes.after(hello.applied).map(Iterator::collect::<VecDeque<_>>);
            let first = context.log.first_index();
            let Some(missed) = known.filter(|missed| missed.front().is_none_or(|(at, _)| *at >= first)) else {
                // It was not away: one that was shows at least what it has called safe, and none begins with nothing.
                let forgot = hello.applied == LogIndex::ZERO || self.durable.is_some_and(|safe| hello.applied < safe);
                let problem = match forgot {
                    true => format!(
                        "PostgreSQL stands at log index {}, below what it had safe on disk before: its data folder is an older \
                         one, or its position in the log, the replication origin \"onetrip\", is lost",
                        hello.applied
                    ),
                    false => format!(
                        "PostgreSQL stands at log index {}, but this node can bring it on only from {first}: its data folder \
                         must be made anew from another member's",
                        hello.applied
                    ),
                };
                if self.problem.as_ref() != Some(&problem) {
                    self.events.push(Event::NeedsRebuild { applied: hello.applied, problem: problem.clone() });
                }
                self.needs_rebuild = !forgot;
                // A copy of one that shows this can be brought on, and what this server alone has is kept.
                self.stuck = forgot.then(|| (context.committed_indexes.feedable_from(first), problem.clone()));
                self.problem = Some(problem);
                outbox.close();
                return Ok(());
            };
            self.needs_rebuild = false;
            self.problem = None;
            self.stuck = None;
            let no_further = !missed.is_empty() && self.applied == Some(hello.applied);
            let another_life = self.life != 0 && self.life != hello.incarnation;
            self.lost_lives = if no_further { self.lost_lives + u32::from(another_life) } else { 0 };
            self.life = hello.incarnation;
            if let Some((at, _)) = missed.front().filter(|_| self.lost_lives >= LIVES_MAX) {
                let why = format!("PostgreSQL ended {} times while applying it", self.lost_lives);
                self.stuck = Some((*at, why));
            }
            if !missed.is_empty() {
                let again = if self.begun.0 == hello.applied { self.begun.1 + 1 } else { 1 };
                self.begun = (hello.applied, again);
                self.problem = (again > BEGINS_MAX).then(|| {
                    format!(
                        "PostgreSQL's apply worker has begun {again} times at log index {} and comes no further: `SELECT failing, \
                         failure FROM onetrip.status` and postgres.log say why",
                        hello.applied
                    )
                });
            }
            // This has to leave before anything that the feed sends.
            outbox.send([welcome]);
            self.settling.runs(hello.incarnation, context.certifier.running_incarnation(node));
            let feed = Feed::new(conn, outbox.clone(), missed);
            self.events.push(Event::WorkerConnected { applied: hello.applied, committed, missed: feed.waiting() });
            self.feed = Some(feed);
            self.position(hello.applied, hello.durable, context)?;
        } else {
            outbox.send([welcome]);
        }
        let (pid, takes_times, locks) = (hello.pid, hello.takes_times(), false);
        let (waiting, in_doubt, reading, awaiting) = (None, None, None, None);
        let fresh = Conn { outbox, is_backend, pid, takes_times, waiting, in_doubt, reading, awaiting, locks };
        self.conns.insert(conn, fresh);
        Ok(())
    }

    /// After a restart, the end of the log waits for a leader, which says how much of it is committed or truncates it.
    /// Until then WELCOME would name too low an index, and PostgreSQL would let clients in that miss what was
    /// acknowledged to them.  Also, a copy of another member's PostgreSQL may be ahead of what this node has decided.
    fn can_welcome<L: Log>(&self, hello: &Hello, context: &Context<'_, L>) -> bool {
        context.certifier.decided() >= self.last_at_start.min(context.log.last_index()).max(hello.applied)
    }

    /// Welcomes the apply worker that had to wait.
    pub fn let_worker_in<L: Log>(&mut self, context: &mut Context<'_, L>) -> Result<(), L::Error> {
        if self.early_worker.as_ref().is_none_or(|(_, hello, _)| !self.can_welcome(hello, context)) {
            return Ok(());
        }
        match self.early_worker.take() {
            Some((conn, hello, outbox)) => self.open(conn, &hello, outbox, context),
            None => Ok(()),
        }
    }

    fn position<L: Log>(
        &mut self,
        applied: LogIndex,
        durable: LogIndex,
        context: &mut Context<'_, L>,
    ) -> Result<(), L::Error> {
        if self.applied.is_some_and(|before| before < applied) {
            self.lost_lives = 0;
        }
        if self.stuck.as_ref().is_some_and(|(at, _)| *at <= applied) {
            self.stuck = None;
        }
        self.applied = Some(applied);
        self.durable = Some(durable);
        if self.begun.1 > 0 && applied > self.begun.0 {
            if self.begun.1 > BEGINS_MAX {
                self.problem = None;
            }
            self.begun.1 = 0;
        }
        context.committed_indexes.forget_to(durable.min(applied));
        if let Some(feed) = &mut self.feed {
            feed.position(applied);
            feed.pump(context.log, context.certifier, context.members)?;
        }
        Ok(())
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

    /// A transaction of this node travels in parts.
    pub fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// That one does, and it is known what has become of its session.
    pub fn is_large(&self, txn: &TxnId) -> bool {
        self.large.contains_key(txn)
    }

    /// What to propose now of the transactions that travel in parts.  `servers`: the other nodes that have a server,
    /// and are not away.
    pub fn parts_to_propose<L>(&mut self, servers: &[NodeId], context: &Context<'_, L>) -> Vec<Bytes> {
        let arriving = context.certifier.arriving();
        let (mut proposals, servers) = match self.stands_still(context) {
            true => (self.end_what_has_lost(context).into_iter().collect(), Vec::new()),
            false => (Vec::new(), self.servers_to_wait_for(servers, context.tick)),
        };
        self.large.retain(|txn, cancel_at| {
            let is_to_arrive = context.certifier.is_to_arrive(txn);
            let pending = self.pending.get_mut(txn);
            let Some((pending, parts)) = pending.and_then(|p| p.parts.take().map(|parts| (p, parts))) else {
                // The session may propose it again on a new connection; but other transactions wait for this one.
                if *cancel_at.get_or_insert(context.tick + ABANDONED_TICKS) <= context.tick {
                    *cancel_at = None;
                    proposals.push(Entry::encode_cancel(txn));
                }
                return is_to_arrive;
            };
            let parts = pending.parts.insert(parts);
            let before = proposals.len();
            match arriving {
                Some(arriving) if arriving.txn != *txn => {
                    if !is_to_arrive {
                        proposals.extend(parts.ask(txn, &pending.raw));
                    }
                }
                _ => proposals.extend(parts.next(txn, &pending.raw, arriving, &self.sizes, context.now, &servers)),
            }
            if proposals.len() > before {
                (pending.resend_at, pending.resend_ticks) = (context.tick + RESEND_TICKS, RESEND_TICKS);
            }
            self.late.extend(parts.late.drain(..).map(|node| (node, context.tick)));
            true
        });
        proposals
    }

    /// Ends a large transaction if it has lost to what the server here is to apply next, which may be waiting for its
    /// locks.  Its session is told; what this returns is to be proposed in the place of the rest.  One at a time, since
    /// each may have millions of keys.
    fn end_what_has_lost<L>(&mut self, context: &Context<'_, L>) -> Option<Bytes> {
        let (next, _) = context.committed_indexes.after(self.applied?)?.next()?;
        let is_judged = |txn: &&TxnId| self.pending.get(txn).is_none_or(|pending| pending.judged == next);
        let txn = *self.large.keys().find(|txn| !is_judged(txn))?;
        let pending = self.pending.get_mut(&txn)?;
        pending.judged = next;
        let (conn, mut entry) = (pending.conn, Entry::decode(pending.raw.clone()).ok()?);
        let verdict = context.certifier.has_lost_to(next, &entry)?;
        self.pending.remove(&txn);
        if let Some(c) = self.conns.get_mut(&conn) {
            c.waiting = None;
        }
        let zero = LogIndex::ZERO;
        self.tell(conn, (txn, zero), verdict, zero, (String::new(), None), context.members);
        // Its keys are enough for it to lose, which counts (`certifier::reserved`).
        entry.write_set = Bytes::new();
        Some(match entry.key_count() <= JUDGED_KEYS_MAX {
            true => entry.encoded(),
            false => Entry::encode_cancel(&txn),
        })
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

    fn part_is_there<L>(&mut self, txn: &TxnId, counts: bool, context: &Context<'_, L>) {
        let Some(pending) = self.pending.get_mut(txn) else { return };
        let Some(parts) = &mut pending.parts else { return };
        if counts {
            (pending.resend_at, pending.resend_ticks) = (context.tick + RESEND_TICKS, RESEND_TICKS);
        } else if context.certifier.arriving().is_some_and(|arriving| arriving.txn != *txn) {
            // Another transaction came first, and this one comes after it.
            parts.again();
        }
    }

    /// Sends the apply worker what was decided, all at once.
    pub fn feed_worker<L: Log>(&mut self, context: &Context<'_, L>) -> Result<(), L::Error> {
        match &mut self.feed {
            Some(feed) => feed.pump(context.log, context.certifier, context.members),
            None => Ok(()),
        }
    }

    /// The entry at `at` leaves one out.  If PostgreSQL does not show that one, it is to forget what it has been sent
    /// of it.
    fn leaves_out(&mut self, at: LogIndex, left_out: LogIndex, previous: LogIndex) {
        let worker = self.arrival.as_ref().and_then(|worker| self.conns.get(&worker.conn));
        if worker.and_then(|c| c.in_doubt).is_some_and(|(_, doubted)| doubted == left_out) {
            self.close_arrival_worker();
        }
        if self.applied.is_some_and(|applied| applied >= left_out) {
            if let Some(feed) = &mut self.feed {
                feed.push(at, previous);
            }
        } else if let Some(feed) = self.feed.take() {
            self.events.push(Event::WorkerLeavesOut { at, left_out });
            feed.close();
            self.conns.remove(&feed.conn);
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

    /// This is the apply worker's connection.
    fn is_worker(&self, conn: ConnId) -> bool {
        self.feed.as_ref().is_some_and(|feed| feed.conn == conn)
    }

    /// An apply worker is connected and gets what it lacks.
    pub fn is_fed(&self) -> bool {
        self.feed.is_some()
    }

    /// The entry that PostgreSQL cannot apply, however long it tries, and why.
    pub fn stuck(&self) -> Option<&(LogIndex, String)> {
        self.stuck.as_ref()
    }

    /// PostgreSQL has begun again and again at the same place, and shows nothing newer.
    pub fn comes_no_further(&self) -> bool {
        self.stuck.is_some() || self.begun.1 > BEGINS_MAX
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
            problem: self.problem.clone(),
        }
    }
}
