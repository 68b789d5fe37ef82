//! Large random histories of a store that keeps its promises are clean; when one promise is broken, they are not.
//!
//! The store is the simplest possible: one log, regions that show a prefix of it, and the first committer wins.

use onetrip_checker::{ClientOutcome, History, Key, Kind, Level, Op, Process, Time, Txn, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// Rows that were changed since the snapshot are overwritten.
    FirstCommitter,
    /// A region shows some entries later than the entries that follow them.
    Prefix,
    /// A region shows some entries in two parts.
    Halves,
    /// A fresh read does not wait until the region shows all entries.
    Fresh,
    /// An acknowledged entry is dropped.
    Lost,
    /// Under SERIALIZABLE, lists that were read may have changed since.
    Reads,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

type Store = BTreeMap<Key, Vec<Value>>;

struct Region {
    name: Arc<str>,
    applied: usize,
    store: Store,
    /// What was left out by mistake; it is shown at the next step.
    late: Vec<(Key, Value)>,
}

/// Longer lists would only make reads expensive.
const LIST_MAX: usize = 30;
const REGIONS: usize = 3;

fn run(seed: u64, txns: usize, level: Option<Level>, broken: Broken) -> History {
    let mut rng = Rng(seed);
    let mut history = History::default();
    let mut log: Vec<Vec<(Key, Value)>> = Vec::new();
    let mut lasts = BTreeMap::<Key, usize>::new();
    let mut regions: Vec<Region> = (0..REGIONS)
        .map(|i| Region { name: format!("r{i}").into(), applied: 0, store: Store::new(), late: Vec::new() })
        .collect();
    let (mut hot, mut next) = (0, 0);
    for step in 0..txns {
        let r = rng.below(REGIONS as u64) as usize;
        let fresh = rng.below(4) == 0;
        let invoked = Time(3 * step as u64);
        let mut target = if fresh && broken != Broken::Fresh { log.len() } else { regions[r].applied };
        target = (target + rng.below(4) as usize).min(log.len());
        show(&mut regions[r], &log, target, broken, &mut rng);
        let any = [Level::ReadCommitted, Level::RepeatableRead, Level::Serializable][rng.below(3) as usize];
        let level = level.unwrap_or(any);
        let base = regions[r].applied;
        let (mut ops, mut appends, mut lost, mut outdated) = (Vec::new(), Vec::new(), false, false);
        for _ in 0..1 + rng.below(5) {
            if level == Level::ReadCommitted && rng.below(2) == 0 {
                let more = (regions[r].applied + 1).min(log.len());
                show(&mut regions[r], &log, more, broken, &mut rng);
            }
            let key = Key(hot + rng.below(8));
            if rng.below(2) == 0 {
                let mut list = regions[r].store.get(&key).cloned().unwrap_or_default();
                list.extend(appends.iter().filter(|(k, _)| *k == key).map(|(_, v)| *v));
                ops.push(Op::Read { key, list });
                outdated |= lasts.get(&key).is_some_and(|at| *at > base);
            } else {
                next += 1;
                // A row's base is what was applied when the row was locked.
                let base = if level == Level::ReadCommitted { regions[r].applied } else { base };
                lost |= broken != Broken::FirstCommitter && lasts.get(&key).is_some_and(|at| *at > base);
                ops.push(Op::Append { key, value: Value(next) });
                appends.push((key, Value(next)));
            }
        }
        let is_checked = level == Level::Serializable && broken != Broken::Reads;
        lost |= is_checked && outdated && !appends.is_empty();
        let outcome = match rng.below(20) {
            _ if lost => ClientOutcome::Aborted,
            0 => ClientOutcome::Aborted,
            1 => ClientOutcome::Unknown,
            2 => ClientOutcome::FoundCommitted,
            _ => ClientOutcome::Committed,
        };
        let happens = match outcome {
            ClientOutcome::Unknown => rng.below(2) == 0,
            ClientOutcome::Aborted => false,
            _ => broken != Broken::Lost || rng.below(100) > 0,
        };
        if happens && !appends.is_empty() {
            appends.iter().for_each(|(key, _)| {
                lasts.insert(*key, log.len() + 1);
            });
            log.push(appends);
            if outcome == ClientOutcome::Committed {
                let all = log.len();
                show(&mut regions[r], &log, all, broken, &mut rng);
            }
        }
        let (region, completed) = (regions[r].name.clone(), Time(3 * step as u64 + 1));
        // Each region has three clients.
        let process = Process((r as u64) * 3 + rng.below(3));
        history.push(Txn { process, region, level, invoked, completed, outcome, fresh, ops });
        if regions[r].store.get(&Key(hot)).is_some_and(|list| list.len() > LIST_MAX) {
            hot += 1;
        }
    }
    for region in &mut regions {
        show(region, &log, log.len(), Broken::Nothing, &mut rng);
        history.at_rest(region.name.clone(), region.store.clone());
    }
    history
}

fn show(region: &mut Region, log: &[Vec<(Key, Value)>], upto: usize, broken: Broken, rng: &mut Rng) {
    for (key, value) in std::mem::take(&mut region.late) {
        region.store.entry(key).or_default().push(value);
    }
    while region.applied < upto {
        let entry = &log[region.applied];
        let now = match broken {
            Broken::Prefix if rng.below(50) == 0 => 0,
            Broken::Halves if rng.below(50) == 0 => entry.len() / 2,
            _ => entry.len(),
        };
        for (key, value) in &entry[..now] {
            region.store.entry(*key).or_default().push(*value);
        }
        region.late.extend(&entry[now..]);
        region.applied += 1;
    }
}

#[test]
fn kept_promises_are_clean() {
    for seed in 0..30 {
        for level in [Some(Level::ReadCommitted), Some(Level::RepeatableRead), Some(Level::Serializable), None] {
            let findings = run(seed, 2_000, level, Broken::Nothing).check();
            assert!(findings.is_clean(), "seed {seed}, {level:?}: {findings}");
        }
    }
}

#[test]
fn a_broken_promise_is_found() {
    use Kind::*;
    let order = [GSingle, LongFork, GSIb, Incompatible];
    for (broken, kinds) in [
        (Broken::FirstCommitter, &[LostUpdate, GSingle, GSIb, Incompatible, Internal][..]),
        (Broken::Prefix, &order),
        (Broken::Halves, &order),
        (Broken::Fresh, &[StaleRead]),
        (Broken::Lost, &[LostAppend]),
    ] {
        for seed in 0..5 {
            let findings = run(seed, 5_000, Some(Level::RepeatableRead), broken).check();
            assert!(kinds.iter().any(|k| findings.counts.contains_key(k)), "{broken:?}, seed {seed}: {findings}");
        }
    }
    for seed in 0..5 {
        let findings = run(seed, 5_000, Some(Level::Serializable), Broken::Reads).check();
        assert_eq!(findings.counts.keys().collect::<Vec<_>>(), [&G2], "seed {seed}: {findings}");
    }
    for broken in [Broken::Prefix, Broken::Halves] {
        let findings = run(1, 5_000, Some(Level::ReadCommitted), broken).check();
        assert!(order.iter().any(|k| findings.counts.contains_key(k)), "{broken:?}: {findings}");
    }
}

/// Goal: judging takes time in proportion to the history.  Method: ten times as many transactions may take at most
/// thirty times as long; a quadratic step would take longer.
#[test]
fn a_hundred_thousand_transactions_are_judged_in_seconds() {
    let seconds = |txns| {
        let history = run(7, txns, None, Broken::Nothing);
        let since = std::time::Instant::now();
        let findings = history.check();
        assert!(findings.is_clean(), "{findings}");
        since.elapsed().as_secs_f64()
    };
    let (small, large) = (seconds(10_000), seconds(100_000));
    println!("10,000 transactions in {small:.2} s, 100,000 in {large:.2} s");
    assert!(large < 30.0 * small, "10,000 took {small:.2} s, 100,000 took {large:.2} s");
}
