//! The apply worker: from where it goes on when it comes, whether it gets on, and what takes from it what it was sent.
//!
//! Invariants:
//! - It is welcomed only once this node has decided whatever was acknowledged here, and whatever its server shows.
//! - WELCOME leaves before anything that the feed sends.

use super::feed::Feed;
use super::{ConnId, Context, Event, Log, Outbox, Router};
use crate::agent::Hello;
use crate::certifier::CommittedIndexes;
use crate::ids::LogIndex;
use std::collections::VecDeque;
use std::sync::Arc;

/// An apply worker that begins at the same index more often than this does not get on.
const BEGINS_MAX: u32 = 3;
/// PostgreSQL may end at an entry this often before the entry is taken for the cause.
const LIVES_MAX: u32 = 3;

impl<O: Outbox> Router<O> {
    /// The apply worker has come: it gets WELCOME and what it lacks, or has to wait, or its connection ends.  Returns
    /// whether it is connected then.
    pub(super) fn open_worker<L: Log>(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        outbox: &Arc<O>,
        context: &mut Context<'_, L>,
    ) -> Result<bool, L::Error> {
        if !self.can_welcome(hello, context) {
            // What was wrong with the server need not be with this one, which may be a copy: that is judged when it is
            // let in.
            (self.needs_copy, self.needs_rebuild, self.stuck) = (false, false, None);
            self.problem = (hello.applied > context.log.last_index()).then(|| {
                format!(
                    "PostgreSQL stands at log index {}, this node's log ends at {}: the rest must come from the other members first",
                    hello.applied,
                    context.log.last_index()
                )
            });
            if let Some((.., old)) = self.early_worker.replace((conn, hello.clone(), outbox.clone())) {
                old.close();
            }
            return Ok(false);
        }
        let (welcome, committed) = (self.welcome(context.certifier), context.certifier.last_committed());
        if let Some(old) = self.feed.take() {
            self.close(old.conn);
        }
        // Rule 3: the worker gets everything above its applied index, wherever that came from.
        let known = context.committed_indexes.after(hello.applied).map(Iterator::collect::<VecDeque<_>>);
        let first = context.log.readable_from(|at| context.committed_indexes.contains(at));
        let Some(missed) = known.filter(|missed| missed.front().is_none_or(|(at, _)| *at >= first)) else {
            self.cannot_be_brought_on(hello.applied, first, context.committed_indexes);
            outbox.close();
            return Ok(false);
        };
        self.begins(hello, missed.front().map(|(at, _)| *at));
        // This has to leave before anything that the feed sends.
        outbox.send([welcome]);
        self.settling.runs(hello.incarnation, context.certifier.running_incarnation(self.me));
        let feed = Feed::new(conn, outbox.clone(), missed);
        self.events.push(Event::WorkerConnected { applied: hello.applied, committed, missed: feed.waiting() });
        self.feed = Some(feed);
        self.position(hello.applied, hello.durable, context)?;
        Ok(true)
    }

    /// `first`: where this node's log begins.
    fn cannot_be_brought_on(&mut self, applied: LogIndex, first: LogIndex, committed_indexes: &CommittedIndexes) {
        // It was not away: one that was shows at least what it has called safe, and none begins with nothing.
        let forgot = applied == LogIndex::ZERO || self.durable.is_some_and(|safe| applied < safe);
        let problem = match forgot {
            true => format!(
                "PostgreSQL stands at log index {applied}, below what it had safe on disk before: its data folder is an older \
                 one, or its position in the log, the replication origin \"onetrip\", is lost"
            ),
            false => format!(
                "PostgreSQL stands at log index {applied}, but this node can bring it on only from {first}: its data folder \
                 must be made anew from another member's"
            ),
        };
        if self.problem.as_ref() != Some(&problem) {
            self.events.push(Event::NeedsRebuild { applied, problem: problem.clone() });
        }
        (self.needs_copy, self.needs_rebuild) = (true, !forgot);
        // A copy of one that shows this can be brought on, and what this server alone has is kept.
        self.stuck = forgot.then(|| (committed_indexes.feedable_from(first), problem.clone()));
        self.problem = Some(problem);
    }

    /// Notes whether it gets on from one beginning to the next.  `next`: the first entry that it lacks.
    fn begins(&mut self, hello: &Hello, next: Option<LogIndex>) {
        (self.needs_copy, self.needs_rebuild) = (false, false);
        self.problem = None;
        self.stuck = None;
        let no_further = next.is_some() && self.applied == Some(hello.applied);
        let another_life = self.life != 0 && self.life != hello.incarnation;
        self.lost_lives = if no_further { self.lost_lives + u32::from(another_life) } else { 0 };
        self.life = hello.incarnation;
        let Some(next) = next else { return };
        if self.lost_lives >= LIVES_MAX {
            self.stuck = Some((next, format!("PostgreSQL ended {} times while applying it", self.lost_lives)));
        }
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

    pub(super) fn position<L: Log>(
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

    /// Sends the apply worker what was decided, all at once.
    pub fn feed_worker<L: Log>(&mut self, context: &Context<'_, L>) -> Result<(), L::Error> {
        match &mut self.feed {
            Some(feed) => feed.pump(context.log, context.certifier, context.members),
            None => Ok(()),
        }
    }

    /// The entry at `at` leaves one out.  If PostgreSQL does not show that one, it is to forget what it has been sent
    /// of it.
    pub(super) fn leaves_out(&mut self, at: LogIndex, left_out: LogIndex, previous: LogIndex) {
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

    /// This is the apply worker's connection.
    pub(super) fn is_worker(&self, conn: ConnId) -> bool {
        self.feed.as_ref().is_some_and(|feed| feed.conn == conn)
    }

    /// An apply worker is connected and gets what it lacks.
    pub fn is_fed(&self) -> bool {
        self.feed.is_some()
    }

    /// PostgreSQL has begun again and again at the same place, and shows nothing newer.
    pub fn comes_no_further(&self) -> bool {
        self.stuck.is_some() || self.begun.1 > BEGINS_MAX
    }
}
