//! Transactions that append to lists and read lists, several in each; `onetrip-checker` checks the whole history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use onetrip_checker::{ClientOutcome, History, Key, Level, Process, Time, Txn, Value};

use super::{Client, Isolation, Ledger, Random, Session, Step, Workload};
use crate::torture::session::{End, Expected, Hangs};

/// Keys in use at a time.  The window moves on to new keys, so that lists, and the answers of reads, stay short.
const WINDOW: u64 = 8;
const APPENDS_PER_KEY: u64 = 60;
const OPS_MAX: u64 = 4;

#[derive(Debug, Clone)]
enum Op {
    Append {
        key: Key,
        value: Value,
    },
    /// `list` is `None` until it is answered.
    Read {
        key: Key,
        list: Option<Vec<Value>>,
        /// By its key; else the whole table is read for it.
        by_key: bool,
    },
}

struct Attempt {
    tag: String,
    region: usize,
    process: Process,
    invoked: Time,
    completed: Time,
    fresh: bool,
    ops: Vec<Op>,
}

pub struct Lists {
    ledger: Ledger,
    began: Instant,
    values: AtomicU64,
    history: Mutex<Vec<Attempt>>,
    /// The lists of each region at the end.
    rest: Mutex<Vec<AtRest>>,
    /// By client: how many of its transactions have had an open outcome.  After each it counts as a new process,
    /// because the processes of a history run one transaction after another, and the open one may still commit.
    lives: Mutex<BTreeMap<u64, u64>>,
}

type AtRest = (Arc<str>, BTreeMap<Key, Vec<Value>>);

impl Default for Lists {
    fn default() -> Lists {
        Lists {
            ledger: Ledger::default(),
            began: Instant::now(),
            values: AtomicU64::new(1),
            history: Mutex::default(),
            rest: Mutex::default(),
            lives: Mutex::default(),
        }
    }
}

impl Lists {
    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    fn process(&self, client: Client, end: &End) -> Process {
        const LIVES_MAX: u64 = 1 << 32;
        let mut lives = self.lives.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let life = lives.entry(client.number).or_default();
        let process = Process(client.number * LIVES_MAX + *life);
        *life += u64::from(matches!(end, End::Unknown(_)));
        process
    }

    fn draw(&self, random: &mut Random) -> Vec<Op> {
        let window = self.values.load(Ordering::Relaxed) / APPENDS_PER_KEY;
        (0..1 + random.draw(OPS_MAX))
            .map(|_| {
                let key = Key(window + random.draw(WINDOW));
                match random.chance(50) {
                    true => Op::Append { key, value: Value(self.values.fetch_add(1, Ordering::Relaxed)) },
                    false => Op::Read { key, list: None, by_key: random.chance(75) },
                }
            })
            .collect()
    }

    fn history(&self, isolation: Isolation) -> History {
        let level = match isolation {
            Isolation::ReadCommitted => Level::ReadCommitted,
            Isolation::RepeatableRead => Level::RepeatableRead,
            Isolation::Serializable => Level::Serializable,
        };
        let rest = self.rest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut history = History::default();
        let attempts = self.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // An outcome that was open becomes known at rest.  Until then nobody was promised to see it.
        let at_rest = Time(attempts.iter().map(|attempt| attempt.completed.0 + 1).max().unwrap_or(0));
        for attempt in attempts.iter() {
            let end = self.ledger.get(&attempt.tag);
            let is_open = !end.as_ref().is_some_and(|e| !matches!(e.end, End::Unknown(_)));
            let outcome = match end.as_ref().map(|e| (&e.end, e.committed())) {
                Some((End::Committed, _)) => ClientOutcome::Committed,
                Some((End::NotShownYet, _)) => ClientOutcome::FoundCommitted,
                Some((End::Aborted(_), _)) => ClientOutcome::Aborted,
                Some((End::Unknown(_), Some(true))) => ClientOutcome::FoundCommitted,
                Some((End::Unknown(_), Some(false))) => ClientOutcome::Aborted,
                _ => ClientOutcome::Unknown,
            };
            let op = |op: &Op| match op {
                Op::Append { key, value } => Some(onetrip_checker::Op::Append { key: *key, value: *value }),
                Op::Read { key, list, .. } => {
                    list.as_ref().map(|list| onetrip_checker::Op::Read { key: *key, list: list.clone() })
                }
            };
            history.push(Txn {
                process: attempt.process,
                region: rest.get(attempt.region).map_or_else(|| "?".into(), |(name, _)| Arc::clone(name)),
                level,
                invoked: attempt.invoked,
                completed: if is_open { at_rest } else { attempt.completed },
                outcome,
                fresh: attempt.fresh,
                ops: attempt.ops.iter().filter_map(op).collect(),
            });
        }
        for (name, lists) in rest.iter() {
            history.at_rest(Arc::clone(name), lists.clone());
        }
        history
    }
}

/// Reads "{1,2,3}"; a list that does not exist is empty.
fn parse(text: Option<&str>) -> Result<Vec<Value>> {
    let inner = text.unwrap_or("{}").trim_start_matches('{').trim_end_matches('}');
    let value = |word: &str| word.parse().map(Value).with_context(|| format!("a list reads {text:?}"));
    inner.split(',').filter(|word| !word.is_empty()).map(value).collect()
}

impl Workload for Lists {
    const NAME: &'static str = "lists";
    const CLIENTS_PER_REGION: u64 = 3;

    fn tables(&self) -> String {
        "create table list (key bigint primary key, v bigint[] not null)".to_string()
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
        let mut ops = self.draw(random);
        let fresh = random.chance(20);
        let setting = fresh.then(|| "set local onetrip.read = fresh".to_string());
        let statements: Vec<String> = setting
            .into_iter()
            .chain(ops.iter().map(|op| match op {
                Op::Append { key: Key(key), value: Value(value) } => format!(
                    "insert into list values ({key}, array[{value}]) on conflict (key) do update set v = list.v || excluded.v"
                ),
                Op::Read { key: Key(key), by_key: true, .. } => format!("select v from list where key = {key}"),
                Op::Read { key: Key(key), .. } => format!("select v from list where key + 0 = {key}"),
            }))
            .collect();
        let invoked = self.now();
        let done = session.transaction(&statements, expected).await?;
        let completed = self.now();
        // The statement that failed, and those after it, have no answer.
        let answers = done.answers.get(usize::from(fresh)..).unwrap_or_default();
        ops.truncate(answers.len());
        // Before its first answer it has not been promised anything.
        let fresh = fresh && !ops.is_empty();
        let mut wrong = Vec::new();
        for (op, answer) in ops.iter_mut().zip(answers) {
            if let Op::Read { list, .. } = op {
                match parse(answer.as_deref()) {
                    Ok(values) => *list = Some(values),
                    Err(why) => wrong.push(format!("{why:#}")),
                }
            }
        }
        let wrote = ops.iter().any(|op| matches!(op, Op::Append { .. }));
        let tag = client.tag();
        if !wrote {
            // The caller notes only transactions that write.
            self.ledger.note(&tag, done.end.clone());
        }
        let process = self.process(client, &done.end);
        let attempt = Attempt { tag, region: client.region, process, invoked, completed, fresh, ops };
        self.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(attempt);
        Ok(if wrote { Step::Wrote(done) } else { Step::Read(done, wrong) })
    }

    async fn verify(&self, _region: usize, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let mut lists = BTreeMap::new();
        for row in session.rows("select key, v from list").await? {
            let [Some(key), list] = &row[..] else { bail!("{name}: a list without a key: {row:?}") };
            lists.insert(Key(key.parse()?), parse(list.as_deref())?);
        }
        self.rest.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((name.into(), lists));
        Ok(Vec::new())
    }

    fn verdict(&self, isolation: Isolation) -> Vec<String> {
        let findings = self.history(isolation).check();
        match findings.is_clean() {
            true => Vec::new(),
            false => vec![findings.to_string()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse(None).unwrap(), Vec::new());
        assert_eq!(parse(Some("{}")).unwrap(), Vec::new());
        assert_eq!(parse(Some("{3,1,2}")).unwrap(), vec![Value(3), Value(1), Value(2)]);
        assert!(parse(Some("{3,x}")).is_err());
    }
}
