//! Who waits for what on a node: the rules 1 to 4 of `docs/agent-protocol.md`, as the daemon's desk keeps them.
//!
//! The daemon's own desk holds sockets and a log on disk; this one keeps the same rules over values.

use crate::agent::{ConnId, ToPostgres};
use crate::ctx::Plant;
use crate::disk::SimLog;
use bytes::Bytes;
use onetrip_core::certifier::{Certifier, Decision, History, Outcome, Verdict};
use onetrip_core::{Entry, LogIndex, TxnId};
use std::collections::{BTreeMap, VecDeque};

const RESEND_TICKS: u64 = 50;
const RESEND_TICKS_MAX: u64 = 250;
const RETRY_TICKS: u64 = 5;
const ENTRIES_MAX: usize = 32;

#[derive(Default)]
struct Conn {
    waiting: Option<TxnId>,
    in_doubt: Option<(TxnId, LogIndex)>,
}

struct Pending {
    conn: ConnId,
    raw: Bytes,
    resend_at: u64,
    resend_ticks: u64,
}

struct Feed {
    conn: ConnId,
    queue: VecDeque<(LogIndex, LogIndex)>,
    under_way: VecDeque<LogIndex>,
}

pub struct Desk {
    last_at_start: LogIndex,
    /// An apply worker that came before this node knew what of its log is committed; applied and durable.
    early_worker: Option<(ConnId, LogIndex, LogIndex)>,
    conns: BTreeMap<ConnId, Conn>,
    pending: BTreeMap<TxnId, Pending>,
    feed: Option<Feed>,
    applied: Option<LogIndex>,
    pub durable: Option<LogIndex>,
    /// To be sent to PostgreSQL.
    pub answers: Vec<ToPostgres>,
    /// A rule was broken.
    pub broken: Option<String>,
}

pub struct Books<'a> {
    pub certifier: &'a Certifier,
    pub history: &'a mut History,
    pub log: &'a SimLog,
    pub tick: u64,
    pub plant: Option<Plant>,
}

impl Desk {
    pub fn new(last_at_start: LogIndex) -> Desk {
        Desk {
            last_at_start,
            early_worker: None,
            conns: BTreeMap::new(),
            pending: BTreeMap::new(),
            feed: None,
            applied: None,
            durable: None,
            answers: Vec::new(),
            broken: None,
        }
    }

    pub fn open(&mut self, conn: ConnId, worker: Option<(LogIndex, LogIndex)>, books: &mut Books<'_>) {
        let Some((applied, durable)) = worker else {
            self.conns.insert(conn, Conn::default());
            return;
        };
        if !self.knows_its_past(books) {
            if let Some((old, ..)) = self.early_worker.replace((conn, applied, durable)) {
                self.answers.push(ToPostgres::Closed { conn: old });
            }
            return;
        }
        self.conns.insert(conn, Conn::default());
        self.answers.push(ToPostgres::Welcome { conn, committed: books.certifier.last_committed() });
        if let Some(old) = self.feed.take() {
            self.close(old.conn);
        }
        let known = books.history.after(applied).filter(|_| applied <= books.log.last_index());
        let Some(missed) = known.map(Iterator::collect) else {
            self.broken = Some(format!("PostgreSQL stands at {applied}, its node cannot feed it from there"));
            return;
        };
        self.feed = Some(Feed { conn, queue: missed, under_way: VecDeque::new() });
        self.position(conn, applied, durable, books);
    }

    fn knows_its_past(&self, books: &Books<'_>) -> bool {
        books.plant == Some(Plant::EarlyWelcome)
            || books.certifier.decided() >= self.last_at_start.min(books.log.last_index())
    }

    pub fn let_worker_in(&mut self, books: &mut Books<'_>) {
        if self.knows_its_past(books) {
            if let Some((conn, applied, durable)) = self.early_worker.take() {
                self.open(conn, Some((applied, durable)), books);
            }
        }
    }

    pub fn position(&mut self, conn: ConnId, applied: LogIndex, durable: LogIndex, books: &mut Books<'_>) {
        let Some(feed) = self.feed.as_mut().filter(|f| f.conn == conn) else { return };
        self.applied = Some(applied);
        self.durable = Some(durable);
        books.history.forget_to(durable.min(applied));
        while feed.under_way.front().is_some_and(|at| *at <= applied) {
            feed.under_way.pop_front();
        }
        self.pump(books.log);
    }

    fn pump(&mut self, log: &SimLog) {
        let Some(feed) = &mut self.feed else { return };
        while feed.under_way.len() < ENTRIES_MAX {
            let Some((at, previous)) = feed.queue.pop_front() else { break };
            let Some(entry) = log.data(at).and_then(|raw| Entry::decode(raw).ok()) else {
                self.broken = Some(format!("entry {at} is still to be fed and no longer in the log"));
                return;
            };
            feed.under_way.push_back(at);
            self.answers.push(ToPostgres::Entry {
                conn: feed.conn,
                at,
                previous,
                txn: entry.txn,
                write_set: entry.write_set,
            });
        }
    }

    pub fn propose(&mut self, conn: ConnId, txn: TxnId, raw: Bytes, books: &Books<'_>) -> Option<Bytes> {
        let c = self.conns.get_mut(&conn)?;
        if c.waiting.is_some() {
            self.broken = Some(format!("{txn} is proposed while another proposal of that connection is open"));
            return None;
        }
        c.in_doubt = None;
        match books.certifier.outcome(&txn) {
            Outcome::Unknown => {}
            Outcome::Decided { at, verdict } => {
                let previous = books.history.previous_of(at).unwrap_or(LogIndex::ZERO);
                self.tell(conn, txn, at, verdict, previous);
                return None;
            }
            Outcome::OlderThanKept => {
                self.close(conn);
                return None;
            }
        }
        c.waiting = Some(txn);
        let pending =
            Pending { conn, raw: raw.clone(), resend_at: books.tick + RESEND_TICKS, resend_ticks: RESEND_TICKS };
        if let Some(earlier) = self.pending.insert(txn, pending) {
            if let Some(c) = self.conns.get_mut(&earlier.conn) {
                c.waiting = None;
            }
            self.close(earlier.conn);
        }
        Some(raw)
    }

    pub fn decided(&mut self, at: LogIndex, txn: TxnId, decision: Decision, books: &Books<'_>) {
        let (verdict, previous) = match decision {
            Decision::Decided { verdict, previous } => (verdict, previous),
            Decision::Duplicate { .. } | Decision::NoTransaction => return,
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
            self.tell(waiting.conn, txn, at, verdict, previous);
        } else if verdict == Verdict::Commit {
            if let Some(feed) = &mut self.feed {
                feed.queue.push_back((at, previous));
                self.pump(books.log);
            }
        }
    }

    fn tell(&mut self, conn: ConnId, txn: TxnId, at: LogIndex, verdict: Verdict, previous: LogIndex) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if verdict == Verdict::Commit {
            c.in_doubt = Some((txn, at));
        }
        self.answers.push(ToPostgres::Verdict { conn, txn, at, verdict, previous });
    }

    pub fn done(&mut self, conn: ConnId, txn: TxnId) {
        if let Some(c) = self.conns.get_mut(&conn) {
            if c.in_doubt.is_some_and(|(t, _)| t == txn) {
                c.in_doubt = None;
            }
        }
    }

    pub fn closed(&mut self, conn: ConnId) {
        self.early_worker.take_if(|(early, ..)| *early == conn);
        if self.feed.as_ref().is_some_and(|f| f.conn == conn) {
            self.feed = None;
        }
        self.close(conn);
    }

    fn close(&mut self, conn: ConnId) {
        let Some(c) = self.conns.remove(&conn) else { return };
        self.answers.push(ToPostgres::Closed { conn });
        if let Some(txn) = c.waiting {
            self.pending.remove(&txn);
        }
        if let Some((_, at)) = c.in_doubt {
            if self.applied.is_none_or(|applied| applied < at) {
                if let Some(feed) = self.feed.take() {
                    self.answers.push(ToPostgres::Closed { conn: feed.conn });
                    self.conns.remove(&feed.conn);
                }
            }
        }
    }

    pub fn resend(&mut self, tick: u64, all: bool) -> Vec<Bytes> {
        let mut again = Vec::new();
        for pending in self.pending.values_mut() {
            if all || pending.resend_at <= tick {
                if !all {
                    pending.resend_ticks = (pending.resend_ticks * 2).min(RESEND_TICKS_MAX);
                }
                pending.resend_at = tick + pending.resend_ticks;
                again.push(pending.raw.clone());
            }
        }
        again
    }

    pub fn not_taken(&mut self, raw: &Bytes, tick: u64) {
        let pending = Entry::peek_txn(raw).ok().and_then(|txn| self.pending.get_mut(&txn));
        if let Some(pending) = pending {
            pending.resend_at = tick + RETRY_TICKS;
            pending.resend_ticks = RESEND_TICKS;
        }
    }
}
