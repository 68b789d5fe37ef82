//! Transfers that are prepared first and ended later, by any client in any region, besides ordinary ones of the same
//! accounts.
//!
//! Only one client at a time tries to end what is prepared.  So although answers get lost, it is always known what the
//! regions have to show at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;

use super::bank::Bank;
use super::{Client, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{Done, End, Expected, Hangs};

const BANK: Bank = Bank { accounts: "purse", transfers: "handed", count: 120 };
/// Clients begin nothing new while more than this wait to be ended.
const WAITING: usize = 12;
/// There is no such prepared transaction.
const NONE: &str = "42704";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody knows whether it was prepared.
    Unknown,
    Prepared,
    /// Somebody tries to end it, or has tried and got no answer.
    Ending {
        commit: bool,
    },
}

pub struct Prepared {
    /// Distinguishes the identifiers of stages that run at the same time.
    stage: u64,
    ledger: Ledger,
    /// By tag, what was or may be prepared, and is not known to have ended.
    open: Mutex<BTreeMap<String, State>>,
    /// Tags of `open` that no client is trying to end.
    waiting: Mutex<BTreeSet<String>>,
}

impl Default for Prepared {
    fn default() -> Prepared {
        static STAGES: AtomicU64 = AtomicU64::new(0);
        let stage = STAGES.fetch_add(1, Ordering::Relaxed);
        Prepared { stage, ledger: Ledger::default(), open: Mutex::default(), waiting: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Workload for Prepared {
    const NAME: &'static str = "prepared";
    /// check_violation: the payer has too little money.
    const PROVOKES: &'static [&'static str] = &["23514"];

    fn tables(&self) -> String {
        BANK.tables()
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    async fn step(
        &self,
        session: &mut Session,
        client: Client,
        random: &mut Random,
        expected: Expected,
    ) -> Result<Step, Hangs> {
        let waiting = lock(&self.waiting).len();
        if waiting > WAITING || (waiting > 0 && random.chance(35)) {
            let chosen = random.index(waiting);
            let tag = lock(&self.waiting).iter().nth(chosen).cloned();
            // Another client may have taken it in between.
            if let Some(tag) = tag.filter(|tag| lock(&self.waiting).remove(tag)) {
                return self.end(session, &tag, random.chance(60), expected).await.map(Step::Noted);
            }
        }
        if random.chance(15) {
            return BANK.step_look(session, client, expected).await;
        }
        let drawn = BANK.draw(client, random);
        let statements = [BANK.pays(&drawn), BANK.gets(&drawn), BANK.notes(&drawn)];
        let tag = drawn.tag;
        if random.chance(40) {
            return session.transaction(&statements, expected).await.map(Step::Wrote);
        }
        // Before it is sent: if there is no answer at all, it may be prepared.
        lock(&self.open).insert(tag.clone(), State::Unknown);
        let done = session.prepare(&statements, &self.gid(&tag), expected).await?;
        match &done.end {
            End::Aborted(_) => {
                lock(&self.open).remove(&tag);
                self.ledger.note(&tag, done.end.clone());
            }
            End::Committed if random.chance(50) => {
                lock(&self.open).insert(tag.clone(), State::Prepared);
                return self.end(session, &tag, random.chance(60), expected).await.map(Step::Noted);
            }
            End::Committed => {
                lock(&self.open).insert(tag.clone(), State::Prepared);
                lock(&self.waiting).insert(tag);
            }
            End::NotShownYet | End::Unknown(_) => {}
        }
        Ok(Step::Noted(done))
    }

    async fn settle(&self, session: &mut Session) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let of_stage = format!("torture {} ", self.stage);
        let listed = session.rows("select gid from onetrip.prepared_xacts").await?;
        let gids = listed.into_iter().filter_map(|row| row.into_iter().next().flatten());
        let mut listed: BTreeSet<String> = gids.filter_map(|g| Some(g.strip_prefix(&of_stage)?.to_string())).collect();
        let calm = Expected { under_faults: false, provoked: &[] };
        let open = std::mem::take(&mut *lock(&self.open));
        for (number, (tag, state)) in open.into_iter().enumerate() {
            let there = listed.remove(&tag);
            let commit = match state {
                State::Ending { commit } => commit,
                State::Prepared if !there => {
                    wrong.push(format!("{tag} was prepared, nobody has ended it, and it is gone"));
                    continue;
                }
                State::Unknown if !there => false,
                State::Prepared | State::Unknown => number % 2 == 0,
            };
            if there {
                let done = session.alone(&self.ending(commit, &tag), calm).await;
                let end = done.map_err(|hangs| anyhow::anyhow!("{hangs}"))?.end;
                if end != End::Committed {
                    wrong.push(format!("{tag} is prepared, and cannot be ended at rest (commit: {commit}): {end:?}"));
                }
            }
            self.ended(&tag, commit);
        }
        wrong
            .extend(listed.iter().map(|tag| format!("{tag} is prepared, although it has ended or nobody has sent it")));
        Ok(wrong)
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        BANK.verify(Self::NAME, &self.ledger, name, session).await
    }
}

impl Prepared {
    fn gid(&self, tag: &str) -> String {
        format!("torture {} {tag}", self.stage)
    }

    /// The statement that ends it.
    fn ending(&self, commit: bool, tag: &str) -> String {
        format!("{} prepared '{}'", if commit { "commit" } else { "rollback" }, self.gid(tag))
    }

    fn ended(&self, tag: &str, commit: bool) {
        let end = if commit { End::Committed } else { End::Aborted("rolled back".to_string()) };
        self.ledger.note(tag, end);
    }

    /// Ends what is prepared, as somebody has tried before or else as `commit` says.
    async fn end(&self, session: &mut Session, tag: &str, commit: bool, expected: Expected) -> Result<Done, Hangs> {
        let before = lock(&self.open).get(tag).copied();
        let (commit, again) = match before {
            Some(State::Ending { commit }) => (commit, true),
            _ => (commit, false),
        };
        // Before it is sent, as above.
        lock(&self.open).insert(tag.to_string(), State::Ending { commit });
        // Whoever asked before and got no answer may have ended it.
        let provoked: &[&str] = if again { &[NONE] } else { &[] };
        let done = session.alone(&self.ending(commit, tag), Expected { provoked, ..expected }).await?;
        match &done.end {
            End::Committed | End::NotShownYet => {
                lock(&self.open).remove(tag);
                self.ended(tag, commit);
            }
            End::Aborted(state) if state == NONE => {
                lock(&self.open).remove(tag);
                self.ended(tag, commit);
            }
            End::Aborted(_) => {
                if let Some(before) = before {
                    lock(&self.open).insert(tag.to_string(), before);
                }
                lock(&self.waiting).insert(tag.to_string());
            }
            End::Unknown(_) => {
                lock(&self.waiting).insert(tag.to_string());
            }
        }
        Ok(done)
    }
}
