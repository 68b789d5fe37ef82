//! Row locks that sessions ask for before they change a row (`onetrip.concurrency = locking`).
//!
//! ```text
//!   LOCK ──> "these locks" ──> the leader, which has the table
//!            granted, and from which entry on the rows are as their last holder left them
//!            <── half a round trip to the leader, and back; nothing if this node leads
//!   LOCKED <─┘
//! ```
//! The locks of a transaction end when the leader decides its entry, when its session says so or is gone, and when its
//! node has not been heard for [`EXPIRE_TICKS`].  Nodes name their transactions every [`ROUND_TICKS`]: what the leader
//! has of others is a rest of which the end was lost.  A follower may decide an entry before the leader does, and still
//! names its transaction for [`DECIDED_TICKS`].
//!
//! A new leader begins with an empty table.  The nodes tell it at once what their sessions had.  It keeps what comes
//! before it has the table, and grants nothing until it has heard all, or [`ROUND_TICKS`] have passed.  What somebody
//! else has got by then is lost, and the certifier decides.
//!
//! Invariants:
//! - The table exists at a leader that has decided an entry of its own term: so what it says of a row's last change is
//!   not older than what any earlier leader had decided.
//! - A session that asks gets an answer, or its node has heard from the leader within [`UNANSWERED_TICKS`] that it
//!   waits in line.

use super::{Host, Replica, Store};
use crate::certifier::Outcome;
use crate::consensus::{Leadership, Role};
use crate::ids::{NodeId, RegionId, Term, TxnId};
use crate::router::{ConnId, LockEvent, Outbox};
use crate::row_locks::{InLine, LockAnswer, LockAsk, LockMessage, LockSaid, LockTable};
use std::collections::{BTreeMap, BTreeSet};

/// How often a node names its transactions, and asks again for what is not answered.
const ROUND_TICKS: u64 = 25;
/// How often it asks again for what waits in line: the answer may have been lost.
const WAITING_TICKS: u64 = 100;
/// A session goes on without locks if its node has heard nothing of its request for this long.
const UNANSWERED_TICKS: u64 = 250;
/// For how long a transaction that is decided here is still named: the leader may come to decide it later.
const DECIDED_TICKS: u64 = 100;
/// The locks of a node that has not been heard for this long are free.
const EXPIRE_TICKS: u64 = 150;
/// What a leader keeps until it takes it, in locks: as many as a table has.
const EARLY_MAX: usize = 1 << 20;

/// The transaction of a session of this node that has asked for locks.
struct Session {
    conn: ConnId,
    /// By their numbers.
    held: BTreeMap<u64, LockAsk>,
    open: Option<Open>,
}

struct Open {
    ask: LockAsk,
    table: String,
    since: u64,
    /// The leader has said that it waits.
    in_line: bool,
    /// When the leader said something about it last, or it was asked first.
    heard_at: u64,
    ask_again_at: u64,
}

/// A session of this node that has row locks, or waits in line for some; for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSession {
    pub txn: TxnId,
    pub pid: Option<u32>,
    /// Locks that it has.
    pub has: usize,
    /// What it waits for: the table, how many locks, and for how many ticks.
    pub waits: Option<(String, usize, u64)>,
}

#[derive(Default)]
pub(super) struct RowLocks {
    sessions: BTreeMap<TxnId, Session>,
    of_conn: BTreeMap<ConnId, TxnId>,
    /// Transactions with locks that are decided here, and until when they are named.
    decided: BTreeMap<TxnId, u64>,
    /// Who has been told of them.
    leader: Option<(NodeId, Term)>,
    round_at: u64,
    /// As leader, in this term.
    table: LockTable,
    term: Term,
    /// Since when it is there.
    since: u64,
    heard: BTreeMap<NodeId, u64>,
    /// Who has said all that it had: it names its transactions last.
    has_told: BTreeSet<NodeId>,
    early: Early,
}

/// What a new leader has been told and does not take yet.  What is lost of it is as if it were lost on the way.
#[derive(Default)]
struct Early {
    term: Term,
    locks: usize,
    /// Requests, until it has heard what all others had.
    asks: BTreeMap<TxnId, (NodeId, LockAsk)>,
    /// The rest, until it has the table.
    rest: Vec<(NodeId, LockMessage)>,
}

impl Early {
    fn keep(&mut self, now: Leadership, peer: NodeId, message: LockMessage) {
        if self.term != now.term {
            *self = Early { term: now.term, ..Early::default() };
        }
        let locks = match &message {
            LockMessage::Ask(ask) | LockMessage::Claim(ask) => ask.keys.len(),
            LockMessage::Present(txns) => 1 + txns.len(),
            LockMessage::Release { .. } | LockMessage::Answer(_) => 1,
        };
        if now.role != Role::Leader || self.locks + locks > EARLY_MAX {
            return;
        }
        self.locks += locks;
        match message {
            LockMessage::Ask(ask) => drop(self.asks.insert(ask.txn, (peer, ask))),
            rest => self.rest.push((peer, rest)),
        }
    }

    /// A session does not want any more what it asked for.
    fn give_back(&mut self, message: &LockMessage) {
        if let LockMessage::Release { txn, from } = message {
            if self.asks.get(txn).is_some_and(|(_, ask)| ask.number >= *from) {
                self.asks.remove(txn);
            }
        }
    }
}

impl RowLocks {
    /// What it was told may be lost.
    pub(super) fn tell_leader_again(&mut self) {
        self.leader = None;
    }

    fn remove(&mut self, txn: &TxnId) -> Option<Session> {
        let session = self.sessions.remove(txn)?;
        if self.of_conn.get(&session.conn) == Some(txn) {
            self.of_conn.remove(&session.conn);
        }
        Some(session)
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// A member says something about row locks, as the leader or to it.
    pub fn lock_message<H: Host<Store = S, Outbox = O>>(&mut self, peer: NodeId, message: LockMessage, host: &mut H) {
        if let LockMessage::Answer(answer) = message {
            if self.row_locks.leader.is_some_and(|(leader, _)| leader == peer) {
                self.take_lock_answer(answer);
            }
            return;
        }
        if !self.members.contains(peer) {
            return;
        }
        self.row_locks.early.give_back(&message);
        let is_ask = matches!(message, LockMessage::Ask(_));
        if !self.has_lock_table() || is_ask && !self.grants_locks() {
            self.row_locks.early.keep(self.consensus.leadership(), peer, message);
            return;
        }
        self.row_locks.heard.insert(peer, self.tick);
        let (table, certifier) = (&mut self.row_locks.table, &self.certifier);
        let is_own = |txn: &TxnId| txn.node == peer;
        // What came late must not lock anything for a transaction that is over.
        let may_lock = |txn: &TxnId| is_own(txn) && certifier.outcome(txn) == Outcome::Unknown;
        let shown_at = &|hash, mode| certifier.last_taken(hash, mode);
        let answers = match message {
            LockMessage::Ask(ask) if may_lock(&ask.txn) => table.ask(ask, shown_at),
            LockMessage::Claim(ask) if may_lock(&ask.txn) => {
                table.claim(ask);
                Vec::new()
            }
            LockMessage::Release { txn, from } if is_own(&txn) => table.release(txn, from, shown_at),
            LockMessage::Present(txns) => {
                self.row_locks.has_told.insert(peer);
                let present: BTreeSet<TxnId> = txns.into_iter().collect();
                let gone = table.of(peer).into_iter().filter(|txn| !present.contains(txn));
                gone.flat_map(|txn| table.release(txn, 0, shown_at)).collect()
            }
            _ => Vec::new(),
        };
        self.send_lock_answers(answers, host);
    }

    fn send_lock_answers<H: Host<Store = S, Outbox = O>>(&mut self, answers: Vec<LockAnswer>, host: &mut H) {
        for answer in answers {
            match answer.txn.node {
                node if node == self.id => self.take_lock_answer(answer),
                node => {
                    self.tell_who_waits(&[node], host);
                    host.send_lock_message(node, LockMessage::Answer(answer));
                }
            }
        }
    }

    /// Whether the table of row locks is here.
    fn has_lock_table(&self) -> bool {
        let (now, (_, term)) = (self.consensus.leadership(), self.consensus.applied());
        now.role == Role::Leader && term == now.term
    }

    /// Whether it is known what the nodes had from an earlier leader.
    fn grants_locks(&self) -> bool {
        let RowLocks { since, has_told, .. } = &self.row_locks;
        let mut others = self.members.members.iter().filter(|m| m.id != self.id && m.role.has_postgres());
        self.has_lock_table() && (since + ROUND_TICKS <= self.tick || others.all(|m| has_told.contains(&m.id)))
    }

    /// Takes what was told too early.
    fn take_early_rest<H: Host<Store = S, Outbox = O>>(&mut self, now: Leadership, host: &mut H) {
        if now.role != Role::Leader || self.row_locks.early.term != now.term {
            self.row_locks.early = Early::default();
        } else if self.has_lock_table() {
            for (peer, message) in std::mem::take(&mut self.row_locks.early.rest) {
                self.lock_message(peer, message, host);
            }
        }
    }

    fn take_early_asks<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        if !self.row_locks.early.asks.is_empty() && self.grants_locks() {
            for (peer, ask) in std::mem::take(&mut self.row_locks.early.asks).into_values() {
                self.lock_message(peer, LockMessage::Ask(ask), host);
            }
        }
    }

    /// The entry of this transaction is decided: it needs no locks any more.
    pub(super) fn end_row_locks<H: Host<Store = S, Outbox = O>>(&mut self, txn: TxnId, host: &mut H) {
        if self.row_locks.remove(&txn).is_some() {
            self.row_locks.decided.insert(txn, self.tick + DECIDED_TICKS);
        }
        if self.row_locks.table.is_empty() || !self.has_lock_table() {
            return;
        }
        let certifier = &self.certifier;
        let answers = self.row_locks.table.release(txn, 0, &|hash, mode| certifier.last_taken(hash, mode));
        self.send_lock_answers(answers, host);
    }

    /// To be called whenever something has happened.
    pub(super) fn work_row_locks<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let now = self.consensus.leadership();
        if !self.has_lock_table() || self.row_locks.term != now.term {
            self.row_locks.table = LockTable::default();
            self.row_locks.heard.clear();
            self.row_locks.has_told.clear();
            self.row_locks.term = now.term;
            self.row_locks.since = self.tick;
        }
        self.take_early_rest(now, host);
        let leads = |leader: &NodeId| *leader != self.id || self.has_lock_table();
        let leader = now.leader.filter(leads).map(|leader| (leader, now.term));
        if self.row_locks.leader != leader {
            self.row_locks.leader = leader;
            self.tell_leader_all(host);
            self.tell_leader_present(host);
        }
        self.take_early_asks(host);
        for event in self.router.take_lock_events() {
            self.take_lock_event(event, host);
        }
        if self.row_locks.round_at <= self.tick {
            self.row_locks.round_at = self.tick + ROUND_TICKS;
            self.expire_row_locks(host);
            self.work_own_sessions(host);
        }
    }

    fn tell_leader<H: Host<Store = S, Outbox = O>>(&mut self, message: LockMessage, host: &mut H) {
        match self.row_locks.leader {
            Some((leader, _)) if leader == self.id => self.lock_message(leader, message, host),
            Some((leader, _)) => host.send_lock_message(leader, message),
            None => {}
        }
    }

    /// A leader that knows nothing yet of the sessions here, or has not heard the last of them: it may take for held
    /// what a savepoint has given back.
    fn tell_leader_all<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let sessions = self.row_locks.sessions.values();
        let given_back =
            self.row_locks.sessions.iter().filter(|(_, session)| session.open.is_none()).map(|(txn, session)| {
                let last = session.held.last_key_value();
                LockMessage::Release { txn: *txn, from: last.map_or(0, |(last, _)| last.saturating_add(1)) }
            });
        let had = sessions.clone().flat_map(|session| session.held.values().cloned().map(LockMessage::Claim));
        let open = sessions.filter_map(|session| Some(LockMessage::Ask(session.open.as_ref()?.ask.clone())));
        for message in given_back.chain(had).chain(open).collect::<Vec<_>>() {
            self.tell_leader(message, host);
        }
    }

    fn take_lock_event<H: Host<Store = S, Outbox = O>>(&mut self, event: LockEvent, host: &mut H) {
        match event {
            LockEvent::Ask(conn, ask, table) => {
                let txn = ask.txn;
                if let Some(before) = self.row_locks.of_conn.insert(conn, txn).filter(|before| *before != txn) {
                    self.give_up_row_locks(before, host);
                }
                let (since, heard_at, ask_again_at) = (self.tick, self.tick, self.tick + ROUND_TICKS);
                let open = Open { ask: ask.clone(), table, since, in_line: false, heard_at, ask_again_at };
                let sessions = &mut self.row_locks.sessions;
                let session = sessions.entry(txn).or_insert(Session { conn, held: BTreeMap::new(), open: None });
                session.open = Some(open);
                let before = std::mem::replace(&mut session.conn, conn);
                if before != conn {
                    self.row_locks.of_conn.remove(&before);
                }
                self.tell_leader(LockMessage::Ask(ask), host);
            }
            LockEvent::Release { conn, txn, from } => {
                let Some(session) = self.row_locks.sessions.get_mut(&txn).filter(|session| session.conn == conn) else {
                    return;
                };
                drop(session.held.split_off(&from));
                session.open.take_if(|open| open.ask.number >= from);
                if session.held.is_empty() && session.open.is_none() {
                    self.row_locks.remove(&txn);
                }
                self.tell_leader(LockMessage::Release { txn, from }, host);
            }
            LockEvent::Gone(conn) => {
                if let Some(txn) = self.row_locks.of_conn.get(&conn).copied() {
                    self.give_up_row_locks(txn, host);
                }
            }
        }
    }

    fn give_up_row_locks<H: Host<Store = S, Outbox = O>>(&mut self, txn: TxnId, host: &mut H) {
        self.row_locks.remove(&txn);
        self.tell_leader(LockMessage::Release { txn, from: 0 }, host);
    }

    fn take_lock_answer(&mut self, answer: LockAnswer) {
        let LockAnswer { txn, number, said } = answer;
        let Some(session) = self.row_locks.sessions.get_mut(&txn) else { return };
        let Some(open) = session.open.as_mut().filter(|open| open.ask.number == number) else { return };
        if said == LockSaid::Waiting {
            (open.in_line, open.heard_at, open.ask_again_at) = (true, self.tick, self.tick + WAITING_TICKS);
            return;
        }
        let conn = session.conn;
        if let Some(open) = session.open.take().filter(|_| matches!(said, LockSaid::Granted { .. })) {
            session.held.insert(number, open.ask);
        }
        if session.held.is_empty() {
            self.row_locks.remove(&txn);
        }
        self.tell_session(conn, number, said);
    }

    fn tell_session(&mut self, conn: ConnId, number: u64, said: LockSaid) {
        let region = |node| self.members.region_of(node).cloned().unwrap_or_default();
        let other = match said {
            LockSaid::Busy { other } | LockSaid::Deadlock { other } => region(other.node),
            _ => RegionId::default(),
        };
        let asked = self.row_locks.leader.is_none_or(|(leader, _)| region(leader) != self.settings.region);
        self.router.answer_lock(conn, number, said, asked, other);
    }

    /// The sessions of this node that wait in line, those that have waited longest first, and then those that only have
    /// locks; so many at most.
    pub fn lock_sessions(&self, at_most: usize) -> Vec<LockSession> {
        let session = |(txn, session): (&TxnId, &Session)| LockSession {
            txn: *txn,
            pid: self.router.pid(session.conn),
            has: session.held.values().map(|ask| ask.keys.len()).sum(),
            waits: session.open.as_ref().filter(|open| open.in_line).map(|open| {
                let Open { ask, table, since, .. } = open;
                (table.clone(), ask.keys.len(), self.tick - since)
            }),
        };
        let all = self.row_locks.sessions.iter().map(session);
        let mut all: Vec<LockSession> = all.filter(|s| s.has > 0 || s.waits.is_some()).collect();
        let ticks = |s: &LockSession| s.waits.as_ref().map(|(_, _, ticks)| *ticks);
        all.sort_by_key(|s| std::cmp::Reverse(ticks(s)));
        all.truncate(at_most);
        all
    }

    /// Who waits in line, as far as this node is the leader and has the table.
    pub fn lock_line(&self, at_most: usize) -> Vec<InLine> {
        if self.has_lock_table() && self.row_locks.term == self.consensus.leadership().term {
            self.row_locks.table.in_line(at_most)
        } else {
            Vec::new()
        }
    }

    /// Frees what nodes have that have not been heard for long.
    fn expire_row_locks<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let (tick, me) = (self.tick, self.id);
        let RowLocks { table, heard, .. } = &mut self.row_locks;
        let is_silent = |node: &NodeId| heard.get(node).is_none_or(|heard| heard + EXPIRE_TICKS <= tick);
        let silent = table.nodes().into_iter().filter(|node| *node != me && is_silent(node));
        let gone: Vec<TxnId> = silent.flat_map(|node| table.of(node)).collect();
        let certifier = &self.certifier;
        let shown_at = &|hash, mode| certifier.last_taken(hash, mode);
        let answers = gone.into_iter().flat_map(|txn| table.release(txn, 0, shown_at)).collect();
        self.send_lock_answers(answers, host);
    }

    fn tell_leader_present<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let RowLocks { sessions, decided, .. } = &self.row_locks;
        let present = sessions.keys().chain(decided.keys()).copied().collect();
        self.tell_leader(LockMessage::Present(present), host);
    }

    fn work_own_sessions<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) {
        let tick = self.tick;
        self.row_locks.decided.retain(|_, until| *until > tick);
        if self.row_locks.sessions.is_empty() && self.row_locks.decided.is_empty() {
            return;
        }
        let (mut again, mut unanswered) = (Vec::new(), Vec::new());
        for (txn, session) in &mut self.row_locks.sessions {
            let Some(open) = &mut session.open else { continue };
            if open.heard_at + UNANSWERED_TICKS <= tick {
                unanswered.push((*txn, session.conn, open.ask.number));
            } else if open.ask_again_at <= tick {
                open.ask_again_at = tick + ROUND_TICKS;
                again.push(LockMessage::Ask(open.ask.clone()));
            }
        }
        for (txn, conn, number) in unanswered {
            self.take_lock_event(LockEvent::Release { conn, txn, from: number }, host);
            self.tell_session(conn, number, LockSaid::NoTable);
        }
        self.tell_leader_present(host);
        again.into_iter().for_each(|message| self.tell_leader(message, host));
    }
}
