//! The certifier against the lock matrix, tables of cases, and a naive model that keeps every entry.

use bytes::Bytes;
use onetrip_core::certifier::{Certifier, CommittedIndexes, Decision, Limits, Outcome, Verdict};
use onetrip_core::{
    checkpoint, Base, Checkpoint, Conf, Entry, EntryKind, Error, Key, LockMode, LogIndex, Members, NodeId, Term, TxnId,
};
use proptest::prelude::*;

fn txn(node: u32, sequence: u64) -> TxnId {
    TxnId { node: NodeId(node), incarnation: 1, sequence }
}

fn entry(txn: TxnId, keys: &[Key]) -> Entry {
    Entry::decode(Entry::encode(&txn, keys, b"")).unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn each_pair_of_modes_conflicts_as_the_lock_matrix_says() {
    let names = ["key_share", "share", "no_key_update", "update"];
    let mut seen = 0;
    for line in read("lock_matrix.txt").lines().filter(|l| !l.starts_with('#')) {
        let cells: Vec<_> = line.split_whitespace().collect();
        let taken = LockMode::ALL[names.iter().position(|n| *n == cells[0]).unwrap()];
        for (wanted, cell) in LockMode::ALL.into_iter().zip(&cells[1..]) {
            let mut c = Certifier::new(Limits::default());
            let key = |mode| [Key { hash: 5, mode, base: Base(0) }];
            c.certify(LogIndex(1), &entry(txn(1, 1), &key(taken))).unwrap();
            let got = c.certify(LogIndex(2), &entry(txn(2, 1), &key(wanted))).unwrap();
            let lost = matches!(got, Decision::Decided { verdict: Verdict::Conflict { .. }, .. });
            assert_eq!(lost, *cell == "x", "{taken:?} taken, {wanted:?} wanted");
            seen += 1;
        }
    }
    assert_eq!(seen, 16);
}

#[test]
fn the_tables_of_cases_hold() {
    let text: String =
        read("certifier.txt").lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let mut cases = 0;
    for case in text.split("\n\n").map(str::trim).filter(|c| !c.is_empty()) {
        let mut lines = case.lines();
        let title = lines.next().unwrap();
        let mut limits = Limits::default();
        for (name, value) in title.split_whitespace().filter_map(|w| w.split_once('=')) {
            let value = value.parse().unwrap();
            match name {
                "window_entries" => limits.window_entries = value,
                "window_keys" => limits.window_keys = value,
                "outcomes" => limits.outcomes = value,
                other => panic!("{other}"),
            }
        }
        let mut c = Certifier::new(limits);
        for (n, line) in lines.enumerate() {
            let index = LogIndex(n as u64 + 1);
            let (input, want) = line.split_once("->").unwrap();
            assert_eq!(run(&mut c, index, input.trim()), want.trim(), "{title}, index {index}");
        }
        cases += 1;
    }
    assert_eq!(cases, 28);
}

fn run(c: &mut Certifier, index: LogIndex, input: &str) -> String {
    if input == "empty" {
        c.skip(index).unwrap();
        return "none".into();
    }
    let (head, keys) = input.split_once(':').unwrap();
    let head: Vec<_> = head.split_whitespace().collect();
    let keys = keys.split(',').map(str::trim).filter(|k| !k.is_empty()).map(|k| {
        let part: Vec<_> = k.split_whitespace().collect();
        let mode = ["ks", "s", "nku", "u"].iter().position(|m| *m == part[1]).unwrap();
        Key { hash: part[0].parse().unwrap(), mode: LockMode::ALL[mode], base: Base(part[2].parse().unwrap()) }
    });
    let keys: Vec<_> = keys.collect();
    let (number, node) = (head[1].parse().unwrap(), head[3].parse().unwrap());
    let entry = match head[0] {
        "txn" => entry(txn(node, number), &keys),
        "cancel" => Entry::decode(Entry::encode_cancel(&txn(node, number))).unwrap(),
        "start" => {
            let before = head[5].parse().unwrap();
            Entry::decode(Entry::encode_incarnation(NodeId(node), number, before)).unwrap()
        }
        // The number is that of the transaction left out; the last number is the index of its entry.
        "skip" => {
            let left_out = LogIndex(head[5].parse().unwrap());
            Entry::decode(entry(txn(node, number), &keys).encode_skip(left_out)).unwrap()
        }
        other => panic!("{other}"),
    };
    match c.certify(index, &entry).unwrap() {
        Decision::Duplicate { first } => format!("duplicate of {first}"),
        Decision::Stale => "stale".into(),
        Decision::Decided { verdict: Verdict::Commit, previous } => format!("commit after {previous}"),
        Decision::Decided { verdict: Verdict::Conflict { other, key, origin }, .. } => {
            format!("conflict with {other} of {origin} at key {key}")
        }
        Decision::Decided { verdict: Verdict::Window { oldest, key }, .. } => format!("window {oldest} at key {key}"),
        Decision::Decided { verdict: Verdict::Reserved { by, key, node }, .. } => {
            format!("reserved for {node} by {by} at key {key}")
        }
        Decision::Decided { verdict: Verdict::NotMember, .. } => "not a member".into(),
        Decision::Decided { verdict: Verdict::Cancelled, .. } => "cancelled".into(),
        // Prepared transactions have tests of their own.
        Decision::Decided { verdict, .. } => panic!("{verdict:?}"),
        Decision::NoTransaction => "none".into(),
        Decision::Part { counts } => format!("part, counts: {counts}"),
        Decision::LeavesOut { left_out, previous } => format!("leaves out {left_out} after {previous}"),
    }
}

#[test]
fn what_was_cancelled_or_never_came_is_aborted_also_after_a_checkpoint() {
    let limits = Limits::default();
    let mut c = Certifier::new(limits);
    let before = |c: &Certifier, n| c.outcome(&txn(1, n));
    c.certify(LogIndex(1), &Entry::decode(Entry::encode_incarnation(NodeId(1), 1, 0)).unwrap()).unwrap();
    c.certify(LogIndex(2), &entry(txn(1, 1), &[])).unwrap();
    c.certify(LogIndex(3), &Entry::decode(Entry::encode_cancel(&txn(1, 2))).unwrap()).unwrap();
    assert_eq!(before(&c, 3), Outcome::Unknown);
    assert_eq!((c.running_incarnation(NodeId(1)), c.running_incarnation(NodeId(2))), (1, 0));
    c.certify(LogIndex(4), &Entry::decode(Entry::encode_incarnation(NodeId(1), 7, 1)).unwrap()).unwrap();
    let (again, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    for c in [&c, &again] {
        assert_eq!(before(c, 1), Outcome::Decided { at: LogIndex(2), verdict: Verdict::Commit });
        assert_eq!(before(c, 2), Outcome::Decided { at: LogIndex(3), verdict: Verdict::Cancelled });
        assert_eq!(before(c, 3), Outcome::Decided { at: LogIndex(4), verdict: Verdict::Cancelled });
        assert_eq!(c.running_incarnation(NodeId(1)), 7);
        assert_eq!(c.outcome(&TxnId { incarnation: 7, ..txn(1, 3) }), Outcome::Unknown);
    }
}

/// To settle an id that its PostgreSQL will not give out for long would take that PostgreSQL's commits from it, once
/// the record is dropped.
#[test]
fn an_id_far_above_those_in_use_is_not_settled() {
    let limits = Limits { outcomes: 10, ..Limits::default() };
    let mut c = Certifier::new(limits);
    assert!(c.may_be_given_out(&txn(1, 1)) && !c.may_be_given_out(&txn(1, u64::MAX)));
    for n in 1..=100 {
        c.certify(LogIndex(n), &entry(txn(1, 1_000_000 * n), &[])).unwrap();
    }
    let (again, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    for c in [&c, &again] {
        assert!(c.may_be_given_out(&txn(1, 100_000_001)), "it may be under way");
        assert!(!c.may_be_given_out(&txn(1, 100_010_000)));
        assert!(!c.may_be_given_out(&txn(2, 1_000_000)), "another PostgreSQL");
    }
}

/// A final answer stays final, whatever other nodes do; what was dropped is never reported as still possible.
#[test]
fn a_postgresql_that_starts_over_and_over_costs_nobody_else_an_answer() {
    let limits = Limits { incarnations: 3, ..Limits::default() };
    let mut c = Certifier::new(limits);
    let mut index = 0;
    let mut start = |c: &mut Certifier, node, now, before| {
        index += 1;
        let entry = Entry::decode(Entry::encode_incarnation(NodeId(node), now, before)).unwrap();
        c.certify(LogIndex(index), &entry).unwrap();
        LogIndex(index)
    };
    start(&mut c, 1, 1, 0);
    let ended = start(&mut c, 1, 2, 1);
    for now in 1..=20 {
        start(&mut c, 2, now, now - 1);
    }
    let (again, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    let of = |node, incarnation| TxnId { node: NodeId(node), incarnation, sequence: 5 };
    for mut c in [c, again] {
        assert_eq!(c.outcome(&of(1, 1)), Outcome::Decided { at: ended, verdict: Verdict::Cancelled });
        assert_eq!(c.outcome(&of(2, 20)), Outcome::Unknown);
        assert!(matches!(c.outcome(&of(2, 17)), Outcome::Decided { verdict: Verdict::Cancelled, .. }));
        assert_eq!(c.outcome(&of(2, 16)), Outcome::OlderThanKept);
        let late = entry(of(2, 16), &[]);
        assert_eq!(c.certify(LogIndex(23), &late).unwrap(), Decision::Stale, "it must not commit any more");
    }
}

/// The definition, word for word: this keeps every entry for ever and looks at all of them each time.
struct Model {
    limits: Limits,
    index: u64,
    committed: Vec<(u64, NodeId, Vec<Key>)>,
    decided: Vec<(TxnId, u64)>,
    /// Losses that count, and keys that have been reserved and not been given back.
    losses: Vec<(NodeId, Key)>,
    /// Until when each of them counts for the next.
    counts_until: Vec<(NodeId, u64, u64)>,
    reserved: Vec<ReservedKey>,
}

struct ReservedKey {
    node: NodeId,
    key: Key,
    by: u64,
    until: u64,
}

impl Model {
    /// Keys from number `taken` on stand for what was only read.
    fn certify(&mut self, txn: TxnId, keys: &[Key], taken: usize) -> Decision {
        self.index += 1;
        if let Some((_, first)) = self.decided.iter().find(|d| d.0 == txn) {
            return Decision::Duplicate { first: LogIndex(*first) };
        }
        self.decided.push((txn, self.index));
        let previous = LogIndex(self.committed.last().map_or(0, |c| c.0));
        let verdict = match self.judge(keys) {
            Verdict::Commit => self.reserved_for_others(txn.node, &keys[..taken]).unwrap_or(Verdict::Commit),
            lost => lost,
        };
        match verdict {
            Verdict::Commit => {
                self.committed.push((self.index, txn.node, keys[..taken].to_vec()));
                for key in &keys[..taken] {
                    let is_over = |node: NodeId, its: &Key| node == txn.node && its.hash == key.hash;
                    let strongest = |all: &mut dyn Iterator<Item = &Key>| all.map(|k| k.mode).max();
                    let lost = self.losses.iter().filter(|(node, its)| is_over(*node, its));
                    if strongest(&mut lost.map(|l| &l.1)).is_some_and(|mode| mode <= key.mode) {
                        self.losses.retain(|(node, its)| !is_over(*node, its));
                    }
                    let its = self.reserved.iter().filter(|r| is_over(r.node, &r.key));
                    if strongest(&mut its.map(|r| &r.key)).is_some_and(|mode| mode <= key.mode) {
                        self.reserved.retain(|r| !is_over(r.node, &r.key));
                    }
                }
            }
            Verdict::Conflict { key, .. } if (key as usize) < taken => {
                self.lost(txn.node, &keys[..taken], keys[key as usize]);
            }
            _ => {}
        }
        Decision::Decided { verdict, previous }
    }

    /// The first key that another node has reserved in a conflicting mode, and the first to reserve it.
    fn reserved_for_others(&self, node: NodeId, keys: &[Key]) -> Option<Verdict> {
        for (number, key) in keys.iter().enumerate() {
            let others = self.reserved.iter().filter(|r| r.node != node && r.until >= self.index);
            let others = others.filter(|r| r.key.hash == key.hash && r.key.mode.conflicts_with(key.mode));
            if let Some(first) = others.min_by_key(|r| r.by) {
                return Some(Verdict::Reserved { by: LogIndex(first.by), key: number as u32, node: first.node });
            }
        }
        None
    }

    fn lost(&mut self, node: NodeId, keys: &[Key], on: Key) {
        let its = self.counts_until.iter().rev().find(|(of, hash, _)| *of == node && *hash == on.hash);
        if its.is_some_and(|(.., until)| *until < self.index) {
            self.losses.retain(|(of, key)| *of != node || key.hash != on.hash);
        }
        let until = self.index + (3 * (self.index - on.base.0)).clamp(10, 1_500);
        self.counts_until.push((node, on.hash, until));
        self.losses.push((node, on));
        let count = self.losses.iter().filter(|(of, key)| *of == node && key.hash == on.hash).count();
        self.reserved.retain(|r| r.until > self.index);
        if count < 3 || self.reserved_for_others(node, keys).is_some() {
            return;
        }
        let writes = |key: &&Key| matches!(key.mode, LockMode::NoKeyUpdate | LockMode::Update);
        let keys: Vec<Key> = keys.iter().filter(|key| writes(key) || key.hash == on.hash).copied().collect();
        self.losses.retain(|(of, lost)| *of != node || keys.iter().all(|key| key.hash != lost.hash));
        for key in &keys {
            // Nothing becomes longer or stronger.
            let is_before = |r: &ReservedKey| r.node == node && r.key.hash == key.hash && r.by < self.index;
            if !self.reserved.iter().any(is_before) {
                self.reserved.push(ReservedKey { node, key: *key, by: self.index, until });
            }
        }
    }

    /// The newest committed entry that is out of the window: from it on there are too many entries or keys.
    fn floor(&self) -> u64 {
        let (mut entries, mut keys) = (0, 0);
        for (index, _, its) in self.committed.iter().rev() {
            entries += 1;
            keys += its.len() as u64;
            if entries > self.limits.window_entries || keys > self.limits.window_keys {
                return *index;
            }
        }
        0
    }

    fn judge(&self, keys: &[Key]) -> Verdict {
        let floor = self.floor();
        for (number, key) in keys.iter().enumerate() {
            if key.base.0 < floor {
                return Verdict::Window { oldest: Base(floor), key: number as u32 };
            }
            for (index, origin, earlier) in self.committed.iter().rev().filter(|c| c.0 > key.base.0) {
                if earlier.iter().any(|e| e.hash == key.hash && e.mode.conflicts_with(key.mode)) {
                    return Verdict::Conflict { other: LogIndex(*index), key: number as u32, origin: *origin };
                }
            }
        }
        Verdict::Commit
    }
}

#[derive(Clone, Debug)]
enum Op {
    Empty,
    /// Keys as (hash, mode, how far the base is behind), and how many of them stand for what was only read.
    Txn(u32, Vec<(u64, usize, u64)>, usize),
    /// The same, and it arrives in so many parts, between which the other transactions of the log go on.
    Parts(u32, Vec<(u64, usize, u64)>, usize, usize),
    /// The transaction that was proposed so many steps ago, once more.
    Again(usize),
}

/// A transaction some of whose parts have arrived, at these indexes; the others in the opposite order.
struct Arriving {
    txn: TxnId,
    keys: Vec<Key>,
    taken: usize,
    missing: Vec<Entry>,
    indexes: Vec<LogIndex>,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = (0u64..12, 0usize..4, 0u64..14);
    let keys = |max: usize| proptest::collection::vec(key.clone(), 0..max);
    let op = prop_oneof![
        1 => Just(Op::Empty),
        3 => (1u32..4, keys(9), 0usize..4, 1usize..5).prop_map(|(n, k, reads, parts)| Op::Parts(n, k, reads, parts)),
        12 => (1u32..4, keys(5), 0usize..4).prop_map(|(n, k, reads)| Op::Txn(n, k, reads)),
        1 => (0usize..20).prop_map(Op::Again),
    ];
    proptest::collection::vec(op, 1..120)
}

/// The keys behind the first `taken` stand for what was only read.
fn serializable(txn: TxnId, keys: &[Key], taken: usize) -> Bytes {
    let (taken, reads) = keys.split_at(taken);
    Entry::encode_serializable(EntryKind::Transaction, &txn, taken, reads, b"")
}

fn save(certifier: &Certifier, committed_indexes: &CommittedIndexes) -> Bytes {
    let members = Members::bootstrap(vec![], "r".into(), 1);
    checkpoint::freeze(Term(1), &Conf::default(), &members, certifier, committed_indexes).encode()
}

fn load(raw: Bytes, limits: Limits) -> Result<(Certifier, CommittedIndexes), Error> {
    Checkpoint::decode(raw, limits).map(|c| (c.certifier, c.committed_indexes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Verdicts equal those of the model. A certifier rebuilt from a checkpoint anywhere on the way goes on as if
    /// nothing had happened, and makes the same checkpoint at the end.
    #[test]
    fn the_certifier_is_its_definition(
        ops in ops(),
        window_entries in 1u64..40,
        // Above 128, some entries have their keys apart, and others do not.
        window_keys in prop_oneof![1u64..60, 128u64..400],
        restart_at in 0usize..120,
    ) {
        let limits = Limits { window_entries, window_keys, outcomes: 1_000, ..Limits::default() };
        let mut model = Model { limits, index: 0, committed: vec![], decided: vec![], losses: vec![], counts_until: vec![], reserved: vec![] };
        let mut real = Certifier::new(limits);
        let mut committed_indexes = CommittedIndexes::default();
        let mut straight = Certifier::new(limits);
        let mut proposed: Vec<(TxnId, Vec<Key>, usize)> = vec![];
        let mut arriving: Option<Arriving> = None;
        for (n, op) in ops.into_iter().enumerate() {
            if n == restart_at && arriving.is_none() {
                (real, committed_indexes) = load(save(&real, &committed_indexes), limits).unwrap();
            }
            let index = LogIndex(model.index + 1);
            let base = |behind: u64| Base((index.0 - 1).saturating_sub(behind));
            let of = |keys: &[(u64, usize, u64)]| -> Vec<Key> {
                keys.iter().map(|k| Key { hash: k.0, mode: LockMode::ALL[k.1], base: base(k.2) }).collect()
            };
            if let Some(Arriving { txn, keys, taken, missing, indexes }) = &mut arriving {
                // Every other step is its own.
                if n % 2 == 0 {
                    let raw = serializable(*txn, keys, *taken);
                    if let Some(part) = missing.pop() {
                        indexes.push(index);
                        model.index += 1;
                        prop_assert_eq!(real.take_part(index, &part).unwrap(), Decision::Part { counts: true });
                        prop_assert_eq!(straight.take_part(index, &part).unwrap(), Decision::Part { counts: true });
                        continue;
                    }
                    let whole = Entry::encode_whole(txn, crc32fast::hash(&raw), indexes);
                    let want = model.certify(*txn, keys, *taken);
                    for certifier in [&mut real, &mut straight] {
                        let entry = certifier.put_together(Entry::decode(whole.clone()).unwrap());
                        prop_assert_eq!(entry.kind, EntryKind::Transaction);
                        prop_assert_eq!(certifier.certify(index, &entry).unwrap(), want);
                    }
                    if let Decision::Decided { verdict: Verdict::Commit, .. } = want {
                        committed_indexes.push(index);
                    }
                    proposed.push((*txn, keys.clone(), *taken));
                    arriving = None;
                    continue;
                }
            }
            let (txn, keys, taken) = match op {
                Op::Empty => {
                    model.index += 1;
                    real.skip(index).unwrap();
                    straight.skip(index).unwrap();
                    continue;
                }
                Op::Parts(node, keys, reads, count) if arriving.is_none() => {
                    let (txn, taken) = (txn(node, index.0), keys.len().saturating_sub(reads));
                    let keys = of(&keys);
                    let raw = serializable(txn, &keys, taken);
                    let part = |bytes: &[u8]| {
                        let offset = bytes.as_ptr() as usize - raw.as_ptr() as usize;
                        Entry::decode(Entry::encode_part(&txn, raw.len(), offset, bytes)).unwrap()
                    };
                    let missing = raw.chunks(raw.len().div_ceil(count)).rev().map(part).collect();
                    arriving = Some(Arriving { txn, keys, taken, missing, indexes: vec![] });
                    // This step is only an empty entry.
                    model.index += 1;
                    real.skip(index).unwrap();
                    straight.skip(index).unwrap();
                    continue;
                }
                Op::Txn(node, keys, reads) | Op::Parts(node, keys, reads, _) => {
                    let taken = keys.len().saturating_sub(reads);
                    (txn(node, index.0), of(&keys), taken)
                }
                Op::Again(back) if proposed.len() > back => proposed[proposed.len() - 1 - back].clone(),
                Op::Again(_) => (txn(9, index.0), vec![], 0),
            };
            proposed.push((txn, keys.clone(), taken));
            let want = model.certify(txn, &keys, taken);
            let e = Entry::decode(serializable(txn, &keys, taken)).unwrap();
            prop_assert_eq!(real.certify(index, &e).unwrap(), want);
            prop_assert_eq!(straight.certify(index, &e).unwrap(), want);
            if let Decision::Decided { verdict: Verdict::Commit, .. } = want {
                committed_indexes.push(index);
            }
            let first = model.decided.iter().find(|d| d.0 == txn).unwrap().1;
            let remembered = matches!(real.outcome(&txn), Outcome::Decided { at, .. } if at.0 == first);
            prop_assert!(remembered);
        }
        if !real.is_between_parts() {
            prop_assert_eq!(save(&real, &committed_indexes), save(&straight, &committed_indexes));
        }
        let committed: Vec<_> = model.committed.iter().map(|c| LogIndex(c.0)).collect();
        let known: Vec<_> = committed_indexes.after(LogIndex::ZERO).unwrap().map(|x| x.0).collect();
        prop_assert_eq!(known, committed);
    }

    /// Entries with so many keys that their order is changed get the same verdicts, about the same keys.
    #[test]
    fn many_keys_are_judged_as_few_are(
        sizes in proptest::collection::vec(900usize..1_400, 1..10),
        seed in any::<u64>(),
        // In the smaller windows all of them have their keys apart, in the larger ones none has.
        window_keys in prop_oneof![1_000u64..6_000, 100_000u64..400_000],
        window_entries in 1u64..8,
        restart_at in 0usize..10,
    ) {
        let limits = Limits { window_keys, window_entries, ..Limits::default() };
        let mut model = Model { limits, index: 0, committed: vec![], decided: vec![], losses: vec![], counts_until: vec![], reserved: vec![] };
        let mut real = Certifier::new(limits);
        let mut committed_indexes = CommittedIndexes::default();
        let mut random = seed;
        let mut below = |n: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) % n
        };
        for (n, size) in sizes.into_iter().enumerate() {
            if n == restart_at {
                (real, committed_indexes) = load(save(&real, &committed_indexes), limits).unwrap();
            }
            let index = LogIndex(n as u64 + 1);
            // Most bases are as new as can be, so about half of the entries commit.
            let keys: Vec<Key> = (0..size)
                .map(|_| {
                    let behind = if below(500) == 0 { below(4) } else { 0 };
                    let base = Base((index.0 - 1).saturating_sub(behind));
                    Key { hash: below(5_000), mode: LockMode::ALL[below(4) as usize], base }
                })
                .collect();
            // Each comes from another node, so that nothing is reserved.
            let txn = txn(n as u32 + 1, 1);
            let want = model.certify(txn, &keys, size);
            prop_assert_eq!(real.certify(index, &entry(txn, &keys)).unwrap(), want);
            if let Decision::Decided { verdict: Verdict::Commit, .. } = want {
                committed_indexes.push(index);
            }
            for key in &keys[..20] {
                let floor = model.floor();
                let last = model.committed.iter().rev().find(|(_, _, its)| {
                    its.iter().any(|k| k.hash == key.hash && k.mode.conflicts_with(key.mode))
                });
                let last = last.map_or(floor, |l| l.0.max(floor));
                prop_assert_eq!(real.last_taken(key.hash, key.mode), LogIndex(last));
            }
        }
    }

    /// One wrong bit anywhere in a checkpoint is an error, and so is a missing end.
    #[test]
    fn a_damaged_checkpoint_is_refused(byte in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let limits = Limits { window_entries: 3, window_keys: 5, outcomes: 4, incarnations: 3 };
        let mut c = Certifier::new(limits);
        let mut committed_indexes = CommittedIndexes::default();
        for i in 1..8 {
            let keys = [Key { hash: i, mode: LockMode::Update, base: Base(i - 1) }];
            c.certify(LogIndex(i), &entry(txn(1, i), &keys)).unwrap();
            committed_indexes.push(LogIndex(i));
        }
        let good = save(&c, &committed_indexes);
        prop_assert!(load(good.clone(), limits).is_ok());
        let at = byte.index(good.len());
        let mut bad = good.to_vec();
        bad[at] ^= 1 << bit;
        let refused = matches!(load(bad.into(), limits), Err(Error::Corrupted { .. }));
        prop_assert!(refused);
        prop_assert!(load(good.slice(..at), limits).is_err());
    }
}

#[test]
fn a_checkpoint_made_under_other_limits_is_refused() {
    let c = Certifier::new(Limits::default());
    let raw = save(&c, &CommittedIndexes::default());
    let other = Limits { window_entries: 5, ..Limits::default() };
    let error = load(raw, other).err().unwrap().to_string();
    assert!(error.contains("window_entries = 100000, but this node has 5"), "{error}");
}

#[test]
fn an_entry_of_no_member_aborts_unless_it_was_decided_before() {
    let limits = Limits::default();
    let mut c = Certifier::new(limits);
    let (first, second) = (entry(txn(1, 1), &[]), entry(txn(1, 2), &[]));
    let not_member = |d| matches!(d, Decision::Decided { verdict: Verdict::NotMember, .. });
    c.certify(LogIndex(1), &first).unwrap();
    assert_eq!(c.refuse(LogIndex(2), &first).unwrap(), Decision::Duplicate { first: LogIndex(1) });
    assert!(not_member(c.refuse(LogIndex(3), &second).unwrap()));
    let (mut c, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    assert_eq!(c.outcome(&txn(1, 2)), Outcome::Decided { at: LogIndex(3), verdict: Verdict::NotMember });
    assert_eq!(c.certify(LogIndex(4), &second).unwrap(), Decision::Duplicate { first: LogIndex(3) });
    assert_eq!(c.last_committed(), LogIndex(1));
}

#[test]
fn what_is_left_out_is_known_after_a_checkpoint_and_may_be_kept_after_all() {
    let limits = Limits::default();
    let mut c = Certifier::new(limits);
    let poison = entry(txn(1, 1), &[]);
    let skip = |at| Entry::decode(poison.encode_skip(LogIndex(at))).unwrap();
    c.certify(LogIndex(1), &poison).unwrap();
    c.certify(LogIndex(2), &skip(1)).unwrap();
    let (mut c, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    assert_eq!((c.left_out_by(LogIndex(1)), c.left_out_by(LogIndex(2))), (Some(LogIndex(2)), None));
    c.certify(LogIndex(3), &skip(2)).unwrap();
    let (c, _) = load(save(&c, &CommittedIndexes::default()), limits).unwrap();
    assert_eq!((c.left_out_by(LogIndex(1)), c.left_out_by(LogIndex(2))), (None, Some(LogIndex(3))));
    assert_eq!(c.was_left_out_by(LogIndex(1)), Some(LogIndex(2)));
    assert_eq!(c.last_committed(), LogIndex(3));
}

#[test]
fn entries_out_of_order_are_refused() {
    let mut c = Certifier::new(Limits::default());
    c.skip(LogIndex(1)).unwrap();
    assert!(matches!(c.skip(LogIndex(1)), Err(Error::OutOfOrder { .. })));
    assert!(matches!(c.certify(LogIndex(3), &entry(txn(1, 1), &[])), Err(Error::OutOfOrder { .. })));
}

/// Node 1 commits key 7 again and again, and node 2 loses on it three times; returns the next index.
fn lose_three_times(c: &mut Certifier, keys: &[u64]) -> u64 {
    for n in 0..3 {
        let key = |hash, base| Key { hash, mode: LockMode::Update, base: Base(base) };
        let base = c.decided().0;
        c.certify(LogIndex(base + 1), &entry(txn(1, base), &[key(7, base)])).unwrap();
        let keys: Vec<Key> = keys.iter().map(|hash| key(*hash, base)).collect();
        let lost = c.certify(LogIndex(base + 2), &entry(txn(2, base), &keys)).unwrap();
        assert!(matches!(lost, Decision::Decided { verdict: Verdict::Conflict { .. }, .. }), "try {n}: {lost:?}");
    }
    c.decided().0 + 1
}

/// What node 3 gets that has seen everything and wants this key.
fn wants(c: &mut Certifier, index: u64, hash: u64) -> Verdict {
    let key = Key { hash, mode: LockMode::Update, base: Base(index - 1) };
    match c.certify(LogIndex(index), &entry(txn(3, index), &[key])).unwrap() {
        Decision::Decided { verdict, .. } => verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_reserved_for_a_node_that_never_comes_again_ends_though_nothing_commits() {
    let mut c = Certifier::new(Limits::default());
    let first = lose_three_times(&mut c, &[7, 8]);
    let refused = (first..).take_while(|index| wants(&mut c, *index, 7) != Verdict::Commit).count();
    assert_eq!(refused, 10, "a short try is given the shortest time");
}

#[test]
fn what_is_reserved_for_a_node_ends_with_its_membership() {
    let mut c = Certifier::new(Limits::default());
    let first = lose_three_times(&mut c, &[7]);
    let reserved = Verdict::Reserved { by: LogIndex(first - 1), key: 0, node: NodeId(2) };
    assert_eq!(wants(&mut c, first, 7), reserved);
    let (mut again, _) = load(save(&c, &CommittedIndexes::default()), Limits::default()).unwrap();
    assert_eq!(again.outcome(&txn(3, first)), Outcome::Decided { at: LogIndex(first), verdict: reserved });
    for c in [&mut c, &mut again] {
        assert_eq!(wants(c, first + 1, 7), reserved, "also after a checkpoint");
        c.end(NodeId(2));
        assert_eq!(wants(c, first + 2, 7), Verdict::Commit);
    }
}

#[test]
fn a_large_entry_has_nothing_reserved() {
    let keys: Vec<u64> = (7..7 + 1_001).collect();
    let mut c = Certifier::new(Limits::default());
    let first = lose_three_times(&mut c, &keys);
    assert_eq!(wants(&mut c, first, 7), Verdict::Commit);
    let mut c = Certifier::new(Limits::default());
    let first = lose_three_times(&mut c, &keys[..1_000]);
    assert_ne!(wants(&mut c, first, 7), Verdict::Commit);
}

#[test]
fn what_leaves_an_entry_out_is_not_held_up() {
    let mut c = Certifier::new(Limits::default());
    let first = lose_three_times(&mut c, &[7]);
    let key = Key { hash: 7, mode: LockMode::Update, base: Base(0) };
    let skip = Entry::decode(entry(txn(1, 0), &[key]).encode_skip(LogIndex(1))).unwrap();
    let got = c.certify(LogIndex(first), &skip).unwrap();
    assert!(matches!(got, Decision::LeavesOut { .. }), "{got:?}");
}

#[test]
fn a_node_that_loses_now_and_then_is_not_favoured() {
    for (between, is_reserved) in [(8, true), (9, false)] {
        let mut c = Certifier::new(Limits::default());
        for _ in 0..3 {
            for _ in 0..between {
                c.skip(c.decided().next()).unwrap();
            }
            let base = c.decided().0;
            let key = [Key { hash: 7, mode: LockMode::Update, base: Base(base) }];
            c.certify(LogIndex(base + 1), &entry(txn(1, base), &key)).unwrap();
            c.certify(LogIndex(base + 2), &entry(txn(2, base), &key)).unwrap();
        }
        let index = c.decided().0 + 1;
        let reserved = matches!(wants(&mut c, index, 7), Verdict::Reserved { .. });
        assert_eq!(reserved, is_reserved, "{between} entries between its losses");
    }
}
