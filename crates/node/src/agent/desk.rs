//! Who waits for what, on the core thread: open proposals, the apply worker's feed, and who commits an entry here
//! (`docs/agent-protocol.md`, rules 1 to 4).
//!
//! It decides nothing about transactions: verdicts come from the certifier, and it passes them on.
//!
//! Invariants:
//! - A verdict goes to the connection that waits for it at that moment, or the entry goes to the apply worker; never
//!   both, and never neither while a worker is connected.
//! - `pending` holds exactly the proposals that a connection waits for.

use super::feed::Feed;
use super::settle::Settling;
use super::{refusal, AgentEvent, ConnId};
use crate::config::NodeConfig;
use crate::disk::RaftLog;
use crate::error::Result;
use crate::outbox::Outbox;
use crate::stop::ordered;
use bytes::Bytes;
use onetrip_core::agent::{Hello, OutcomeState, Role, ToPostgres, VerdictFrame, VerdictOutcome, NO_KEY, VERSION};
use onetrip_core::certifier::{Certifier, Decision, History, Outcome, Verdict};
use onetrip_core::{Entry, LogIndex, MemberRole, Members, TxnId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::net::UnixStream;

/// A proposal is sent again this many ticks after the last time, doubled each time up to a bound; a lost leader is
/// noticed at once, so this is only for a message lost on the way.
const RESEND_TICKS: u64 = 50;
const RESEND_TICKS_MAX: u64 = 250;
/// One that nobody took is offered again this soon.
const RETRY_TICKS: u64 = 5;
/// And large ones not before they can have arrived, at this speed.
const BYTES_PER_TICK: u64 = 256 << 10;

struct Conn {
    outbox: Arc<Outbox<UnixStream>>,
    is_backend: bool,
    waiting: Option<TxnId>,
    /// A verdict of commit went here, and it has not been said that the commit happened.
    in_doubt: Option<(TxnId, LogIndex)>,
}

struct Pending {
    conn: ConnId,
    raw: Bytes,
    resend_at: u64,
    resend_ticks: u64,
}

pub struct Desk {
    config: Arc<NodeConfig>,
    conns: BTreeMap<ConnId, Conn>,
    pending: BTreeMap<TxnId, Pending>,
    settling: Settling,
    feed: Option<Feed>,
    /// The end of the log when this node started: what was acknowledged here before lies below it.
    last_at_start: LogIndex,
    /// An apply worker that came before this node knew what of that is committed.
    early_worker: Option<(ConnId, Hello, Arc<Outbox<UnixStream>>)>,
    /// As PostgreSQL said last, in this or an earlier connection of its worker.
    applied: Option<LogIndex>,
    durable: Option<LogIndex>,
    stopping: bool,
    problem: Option<String>,
    /// The apply worker stands where this node cannot bring it on from; nothing but a copy helps.
    unfed: bool,
}

/// For `GET /status`.
#[derive(Clone, Debug, Default)]
pub struct DeskStatus {
    pub applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    pub backends: usize,
    pub pending: usize,
    pub worker_connected: bool,
    pub worker_queue: usize,
    pub problem: Option<String>,
}

/// What the desk needs to look at while it answers.
pub struct Books<'a> {
    pub certifier: &'a Certifier,
    pub history: &'a mut History,
    pub log: &'a RaftLog,
    pub members: &'a Members,
    pub tick: u64,
}

impl Desk {
    pub fn new(config: Arc<NodeConfig>, last_at_start: LogIndex) -> Desk {
        Desk {
            config,
            last_at_start,
            early_worker: None,
            conns: BTreeMap::new(),
            pending: BTreeMap::new(),
            settling: Settling::default(),
            feed: None,
            applied: None,
            durable: None,
            stopping: false,
            problem: None,
            unfed: false,
        }
    }

    /// Takes in one event; what comes back is to be proposed.
    pub fn handle(&mut self, event: AgentEvent, books: &mut Books<'_>) -> Result<Option<Bytes>> {
        match event {
            AgentEvent::Opened { conn, hello, outbox } => self.open(conn, &hello, outbox, books)?,
            AgentEvent::Propose { conn, txn, raw } => return Ok(self.propose(conn, txn, raw, books)),
            AgentEvent::Outcome { conn, txn } => self.answer(conn, txn, books.certifier.outcome(&txn)),
            AgentEvent::Settle { conn, txn } => match books.certifier.outcome(&txn) {
                Outcome::Unknown => match self.settling.ask(conn, txn, books.tick) {
                    Ok(raw) => return Ok(raw),
                    Err(()) => self.answer(conn, txn, Outcome::Unknown),
                },
                known => self.answer(conn, txn, known),
            },
            AgentEvent::Position { conn, applied, durable } => {
                if self.feed.as_ref().is_some_and(|f| f.conn == conn) {
                    self.position(applied, durable, books)?;
                }
            }
            AgentEvent::Done { conn, txn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    // One that is not in doubt was done by a later PROPOSE already.
                    if c.in_doubt.is_some_and(|(t, _)| t == txn) {
                        c.in_doubt = None;
                    }
                }
            }
            AgentEvent::Closed { conn } => self.closed(conn),
        }
        Ok(None)
    }

    fn open(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        outbox: Arc<Outbox<UnixStream>>,
        books: &mut Books<'_>,
    ) -> Result<()> {
        if hello.role == Role::ApplyWorker && !self.can_welcome(hello, books) {
            self.problem = (hello.applied > books.log.last_index()).then(|| {
                format!(
                    "PostgreSQL stands at log index {}, this node's log ends at {}: the rest must come from the other members first",
                    hello.applied,
                    books.log.last_index()
                )
            });
            if let Some((.., old)) = self.early_worker.replace((conn, hello.clone(), outbox)) {
                old.close();
            }
            return Ok(());
        }
        let committed = books.certifier.last_committed();
        let (node, region) = (self.config.node, self.config.region.clone());
        let _ = outbox.send([ToPostgres::Welcome { version: VERSION, node, region, committed }.encode()]);
        let is_backend = hello.role == Role::Backend;
        if !is_backend {
            if let Some(old) = self.feed.take() {
                self.close(old.conn);
            }
            // Rule 3: everything above its applied index, wherever it came from.
            let known = books.history.after(hello.applied).map(Iterator::collect::<VecDeque<_>>);
            let first = books.log.first_index();
            let Some(missed) = known.filter(|missed| missed.front().is_none_or(|(at, _)| *at >= first)) else {
                let problem = format!(
                    "PostgreSQL stands at log index {}, but this node can bring it on only from {first}: its data folder must be \
                     made anew from another member's",
                    hello.applied
                );
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!(region = %self.config.region, node = %self.config.node, index = %hello.applied, "{problem}");
                }
                self.problem = Some(problem);
                self.unfed = true;
                outbox.close();
                return Ok(());
            };
            self.unfed = false;
            self.problem = None;
            self.settling.runs(node, hello.incarnation, books.certifier.running_incarnation(node));
            let feed = Feed::new(conn, outbox.clone(), missed);
            tracing::info!(
                region = %self.config.region, node = %self.config.node, index = %hello.applied, %committed,
                missed = feed.waiting(), "apply worker connected"
            );
            self.feed = Some(feed);
            self.position(hello.applied, hello.durable, books)?;
        }
        self.conns.insert(conn, Conn { outbox, is_backend, waiting: None, in_doubt: None });
        Ok(())
    }

    /// After a restart the log's end waits for a leader to say what of it is committed, or for being cut off.  Before
    /// that WELCOME would name too low an entry, and PostgreSQL let clients in that miss what was acknowledged to them.
    /// A copy of another member's PostgreSQL may be ahead of what this node has decided.
    fn can_welcome(&self, hello: &Hello, books: &Books<'_>) -> bool {
        books.certifier.decided() >= self.last_at_start.min(books.log.last_index()).max(hello.applied)
    }

    /// Welcomes the apply worker that had to wait.
    pub fn let_worker_in(&mut self, books: &mut Books<'_>) -> Result<()> {
        if self.early_worker.as_ref().is_none_or(|(_, hello, _)| !self.can_welcome(hello, books)) {
            return Ok(());
        }
        match self.early_worker.take() {
            Some((conn, hello, outbox)) => self.open(conn, &hello, outbox, books),
            None => Ok(()),
        }
    }

    fn position(&mut self, applied: LogIndex, durable: LogIndex, books: &mut Books<'_>) -> Result<()> {
        self.applied = Some(applied);
        self.durable = Some(durable);
        books.history.forget_to(durable.min(applied));
        if let Some(feed) = &mut self.feed {
            feed.position(applied);
            feed.pump(books.log, books.members)?;
        }
        Ok(())
    }

    fn propose(&mut self, conn: ConnId, txn: TxnId, raw: Bytes, books: &mut Books<'_>) -> Option<Bytes> {
        let c = self.conns.get_mut(&conn)?;
        if c.waiting.is_some() {
            tracing::warn!(region = %self.config.region, node = %self.config.node, %txn, "ended an agent connection: a second proposal while one is open");
            self.close(conn);
            return None;
        }
        c.in_doubt = None;
        if self.stopping || ordered(&self.config.data_dir, "refuse") {
            let _ = c.outbox.send([refusal(txn, &self.config.region, "the node is stopping".into())]);
            return None;
        }
        if books.members.get(self.config.node).is_some_and(|m| m.role == MemberRole::Replica) {
            let why = format!("region {} holds a replica, which takes no changes", self.config.region);
            let _ = c.outbox.send([refusal(txn, &self.config.region, why)]);
            return None;
        }
        match books.certifier.outcome(&txn) {
            Outcome::Unknown => {}
            Outcome::Decided { at, verdict } => {
                // Proposed before, on a connection that is gone.  The worker leaves the entry to a backend that waits
                // for its turn, so the verdict is still this one's to carry out.
                let previous = books.history.previous_of(at).unwrap_or(LogIndex::ZERO);
                self.tell(conn, txn, at, verdict, previous, books.members);
                return None;
            }
            Outcome::OlderThanKept => {
                // An id that was given out long before COMMIT; or a proposal sent again, and the backend knows which.
                let why = format!("transaction id {txn} is older than what outcomes are remembered for; repeat it");
                if let Some(c) = self.conns.get(&conn) {
                    let _ = c.outbox.send([refusal(txn, &self.config.region, why)]);
                }
                return None;
            }
        }
        if let Some(c) = self.conns.get_mut(&conn) {
            c.waiting = Some(txn);
        }
        let resend_ticks = RESEND_TICKS + raw.len() as u64 / BYTES_PER_TICK;
        let pending = Pending { conn, raw: raw.clone(), resend_at: books.tick + resend_ticks, resend_ticks };
        if let Some(earlier) = self.pending.insert(txn, pending) {
            if let Some(c) = self.conns.get_mut(&earlier.conn) {
                c.waiting = None;
            }
            self.close(earlier.conn);
        }
        Some(raw)
    }

    /// Rule 1, at the moment of certification.
    pub fn decided(&mut self, at: LogIndex, txn: TxnId, decision: Decision, books: &Books<'_>) -> Result<()> {
        for conn in self.settling.decided(&txn) {
            self.answer(conn, txn, books.certifier.outcome(&txn));
        }
        let (verdict, previous) = match decision {
            Decision::Decided { verdict, previous } => (verdict, previous),
            Decision::NoTransaction => {
                self.settling.logged(books.certifier.running_incarnation(self.config.node));
                return Ok(());
            }
            Decision::Duplicate { .. } => return Ok(()),
            Decision::Stale => {
                if let Some(waiting) = self.pending.get(&txn) {
                    self.close(waiting.conn);
                }
                return Ok(());
            }
        };
        if let Some(waiting) = self.pending.remove(&txn) {
            if let Some(c) = self.conns.get_mut(&waiting.conn) {
                c.waiting = None;
            }
            self.tell(waiting.conn, txn, at, verdict, previous, books.members);
        } else if verdict == Verdict::Commit {
            if let Some(feed) = &mut self.feed {
                feed.push(at, previous);
                feed.pump(books.log, books.members)?;
            }
        }
        Ok(())
    }

    fn answer(&self, conn: ConnId, txn: TxnId, outcome: Outcome) {
        let (state, at) = match outcome {
            Outcome::Unknown => (OutcomeState::NotSoFar, LogIndex::ZERO),
            Outcome::Decided { at, verdict: Verdict::Commit } => (OutcomeState::Committed, at),
            Outcome::Decided { at, .. } => (OutcomeState::Aborted, at),
            Outcome::OlderThanKept => (OutcomeState::OlderThanKept, LogIndex::ZERO),
        };
        if let Some(c) = self.conns.get(&conn) {
            let _ = c.outbox.send([ToPostgres::OutcomeIs { txn, state, at }.encode()]);
        }
    }

    fn tell(
        &mut self,
        conn: ConnId,
        txn: TxnId,
        at: LogIndex,
        verdict: Verdict,
        previous: LogIndex,
        members: &Members,
    ) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let own = || self.config.region.clone();
        let (outcome, other, key, region) = match verdict {
            Verdict::Commit => {
                c.in_doubt = Some((txn, at));
                (VerdictOutcome::Commit, previous, NO_KEY, own())
            }
            Verdict::Conflict { other, key, origin } => {
                (VerdictOutcome::Conflict, other, key, members.region_of(origin).cloned().unwrap_or_default())
            }
            Verdict::Window { oldest, key } => (VerdictOutcome::Window, LogIndex(oldest.0), key, own()),
            Verdict::Cancelled | Verdict::Stranger => (VerdictOutcome::Cancelled, LogIndex::ZERO, NO_KEY, own()),
        };
        let frame = VerdictFrame { txn, outcome, at, other, key, region, message: String::new() };
        let _ = c.outbox.send([ToPostgres::Verdict(frame).encode()]);
    }

    fn closed(&mut self, conn: ConnId) {
        if let Some((.., outbox)) = self.early_worker.take_if(|(early, ..)| *early == conn) {
            outbox.close();
        }
        if self.feed.as_ref().is_some_and(|f| f.conn == conn) {
            self.feed = None;
            tracing::info!(region = %self.config.region, node = %self.config.node, "apply worker disconnected");
        }
        self.close(conn);
    }

    /// Ends a connection from this side, or tidies up after one that has ended.
    fn close(&mut self, conn: ConnId) {
        let Some(c) = self.conns.remove(&conn) else { return };
        c.outbox.close();
        if let Some(txn) = c.waiting {
            self.pending.remove(&txn);
        }
        if let Some((txn, at)) = c.in_doubt {
            // Rule 2.  What the worker has passed is visible here, so committed.
            if self.applied.is_none_or(|applied| applied < at) {
                if let Some(feed) = self.feed.take() {
                    tracing::info!(
                        region = %self.config.region, node = %self.config.node, index = %at, %txn,
                        "a backend went after its verdict; the apply worker starts over"
                    );
                    feed.close();
                    self.conns.remove(&feed.conn);
                }
            }
        }
    }

    /// Proposals whose time has come to be sent again; all of them after a change of leader.
    pub fn resend(&mut self, tick: u64, all: bool) -> Vec<Bytes> {
        let mut again = self.settling.resend(tick, all);
        for pending in self.pending.values_mut() {
            if all || pending.resend_at <= tick {
                if !all {
                    let arrival = pending.raw.len() as u64 / BYTES_PER_TICK;
                    pending.resend_ticks = (pending.resend_ticks * 2).min(RESEND_TICKS_MAX + 2 * arrival);
                }
                pending.resend_at = tick + pending.resend_ticks;
                again.push(pending.raw.clone());
            }
        }
        again
    }

    /// There is no leader, or it is handing over: a new one makes all be sent again at once, the same one does not.
    pub fn not_taken(&mut self, raw: &Bytes, tick: u64) {
        let pending = Entry::peek_txn(raw).ok().and_then(|txn| self.pending.get_mut(&txn));
        if let Some(pending) = pending {
            pending.resend_at = tick + RETRY_TICKS;
            pending.resend_ticks = RESEND_TICKS;
        }
    }

    /// From now on proposals are refused.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The state has come from elsewhere: what became of open proposals stands in it, and they ask again; the apply worker
    /// says again where it stands.
    pub fn start_over(&mut self) {
        let waiting: Vec<ConnId> = self.pending.values().map(|p| p.conn).collect();
        for conn in waiting.into_iter().chain(self.feed.as_ref().map(|f| f.conn)) {
            self.closed(conn);
        }
    }

    /// An apply worker is connected and gets what it lacks.
    pub fn is_fed(&self) -> bool {
        self.feed.is_some()
    }

    /// PostgreSQL's data folder is of no use any more.
    pub fn is_unfed(&self) -> bool {
        self.unfed
    }

    /// Closes everything; for the end of the node.
    pub fn close_all(&mut self) {
        self.feed = None;
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

    pub fn status(&self) -> DeskStatus {
        DeskStatus {
            applied: self.applied,
            durable: self.durable,
            backends: self.conns.values().filter(|c| c.is_backend).count(),
            pending: self.pending.len(),
            worker_connected: self.feed.is_some(),
            worker_queue: self.feed.as_ref().map_or(0, Feed::waiting),
            problem: self.problem.clone(),
        }
    }
}
