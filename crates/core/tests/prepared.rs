//! Prepared transactions: what they hold, until when, and where that is kept.

use bytes::Bytes;
use onetrip_core::certifier::{Certifier, CommittedIndexes, Decision, Limits, Outcome, Verdict};
use onetrip_core::{
    checkpoint, Base, Checkpoint, Conf, Entry, EntryKind, Key, LockMode, LogIndex, Members, NodeId, Term, TxnId,
};

const NAME: u64 = 1 << 40;

fn txn(node: u32, sequence: u64) -> TxnId {
    TxnId { node: NodeId(node), incarnation: 1, sequence }
}

fn key(hash: u64, mode: LockMode, base: u64) -> Key {
    Key { hash, mode, base: Base(base) }
}

/// Certifies entries one after another, and before each of them goes through a checkpoint.
struct Log {
    certifier: Certifier,
    next: u64,
}

impl Log {
    fn new() -> Log {
        Log::with(Limits::default())
    }

    fn with(limits: Limits) -> Log {
        Log { certifier: Certifier::new(limits), next: 1 }
    }

    fn decide(&mut self, raw: Bytes) -> Decision {
        self.through_a_checkpoint();
        let decision = self.certifier.certify(LogIndex(self.next), &Entry::decode(raw).unwrap()).unwrap();
        self.next += 1;
        decision
    }

    fn verdict(&mut self, raw: Bytes) -> Verdict {
        match self.decide(raw) {
            Decision::Decided { verdict, .. } => verdict,
            other => panic!("{other:?}"),
        }
    }

    fn through_a_checkpoint(&mut self) {
        let members = Members::bootstrap(vec![], "r".into(), 1);
        let conf = Conf { voters: vec![NodeId(1)], ..Conf::default() };
        let raw = checkpoint::freeze(Term(1), &conf, &members, &self.certifier, &CommittedIndexes::default()).encode();
        let back = Checkpoint::decode(raw.clone(), self.certifier.limits()).unwrap();
        assert_eq!(back.encode(), raw);
        self.certifier = back.certifier;
    }

    /// Node 1 prepares something of that name that writes row 7.
    fn prepare(&mut self, sequence: u64, name: u64, base: u64) -> Verdict {
        let keys = [key(name, LockMode::Update, base), key(7, LockMode::Update, base)];
        self.verdict(Entry::encode_prepare(&txn(1, sequence), &keys, b"rows"))
    }

    fn write(&mut self, sequence: u64, hash: u64, mode: LockMode, base: u64) -> Verdict {
        self.verdict(Entry::encode(&txn(2, sequence), &[key(hash, mode, base)], b""))
    }

    fn end(&mut self, sequence: u64, commit: bool, name: u64, base: u64) -> Verdict {
        self.verdict(Entry::encode_end(&txn(3, sequence), commit, name, Base(base), b""))
    }
}

#[test]
fn what_is_prepared_is_held_until_it_is_ended() {
    let mut log = Log::new();
    assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
    // Whatever base it has, a conflicting entry loses; others do not.
    let held = Verdict::Held { by: LogIndex(1), key: 0, origin: NodeId(1) };
    assert_eq!(log.write(1, 7, LockMode::Update, 1), held);
    assert_eq!(log.write(2, 7, LockMode::KeyShare, 2), held);
    assert_eq!(log.write(3, 8, LockMode::Update, 0), Verdict::Commit);
    // The node that it came from ends, and so does its PostgreSQL.
    log.verdict_of_nothing(Entry::encode_incarnation(NodeId(1), 2, 1));
    log.certifier.end(NodeId(1));
    assert_eq!(log.write(4, 7, LockMode::Update, 4), held);
    assert_eq!(log.certifier.prepared().len(), 1);
    assert_eq!(log.end(1, true, NAME, 5), Verdict::Ended);
    // From here on it is like any committed entry, at this index.
    let lost = Verdict::Conflict { other: LogIndex(7), key: 0, origin: NodeId(3) };
    assert_eq!(log.write(5, 7, LockMode::Update, 6), lost);
    assert_eq!(log.write(6, 7, LockMode::Update, 7), Verdict::Commit);
    assert!(log.certifier.prepared().is_empty());
}

impl Log {
    fn verdict_of_nothing(&mut self, raw: Bytes) {
        assert_eq!(self.decide(raw), Decision::NoTransaction);
    }
}

/// An entry whose keys are gathered while it arrives is judged by what is held like any other.
#[test]
fn what_arrives_in_parts_loses_to_what_is_held() {
    // Three keys are many for this window.
    let mut log = Log::with(Limits { window_keys: 192, ..Limits::default() });
    assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
    let keys = |base| [8, 9, 7].map(|hash| key(hash, LockMode::Update, base));
    let held = Verdict::Held { by: LogIndex(1), key: 2, origin: NodeId(1) };
    assert_eq!(log.arrive(1, &keys(1), 30), held);
    assert_eq!(log.arrive(2, &keys(log.next - 1)[..2], 30), Verdict::Commit);
    // Some parts have arrived when it is cancelled, and when its node ends; then another transaction arrives.
    for (sequence, node_ends) in [(3, false), (5, true)] {
        let raw = Entry::encode(&txn(2, sequence), &keys(0), b"");
        log.part(sequence, &raw, 0..70);
        match node_ends {
            true => log.certifier.end(NodeId(2)),
            false => {
                let cancel = Entry::decode(Entry::encode_cancel(&txn(2, sequence))).unwrap();
                log.certifier.certify(LogIndex(log.next), &cancel).unwrap();
                log.next += 1;
            }
        }
        assert_eq!(log.arrive(sequence + 1, &keys(log.next - 1), 70), held);
    }
    assert_eq!(log.end(1, true, NAME, log.next - 1), Verdict::Ended);
    assert_eq!(log.arrive(7, &keys(log.next - 1), 25), Verdict::Commit);
    let lost = Verdict::Conflict { other: LogIndex(log.next - 1), key: 0, origin: NodeId(2) };
    assert_eq!(log.write(8, 9, LockMode::Update, log.next - 2), lost);
}

impl Log {
    /// These bytes of the transaction that node 2 commits arrive.
    fn part(&mut self, sequence: u64, raw: &Bytes, range: std::ops::Range<usize>) -> LogIndex {
        let part = Entry::encode_part(&txn(2, sequence), raw.len(), range.start, &raw[range]);
        let index = LogIndex(self.next);
        let taken = self.certifier.take_part(index, &Entry::decode(part).unwrap());
        assert_eq!(taken.unwrap(), Decision::Part { counts: true });
        self.next += 1;
        index
    }

    /// A transaction of node 2 arrives in parts of so many bytes.
    fn arrive(&mut self, sequence: u64, keys: &[Key], bytes: usize) -> Verdict {
        let raw = Entry::encode(&txn(2, sequence), keys, b"");
        let offsets = (0..raw.len()).step_by(bytes);
        let parts: Vec<LogIndex> =
            offsets.map(|from| self.part(sequence, &raw, from..raw.len().min(from + bytes))).collect();
        let whole = Entry::encode_whole(&txn(2, sequence), crc32fast::hash(&raw), &parts);
        let whole = self.certifier.put_together(Entry::decode(whole).unwrap());
        let decision = self.certifier.certify(LogIndex(self.next), &whole).unwrap();
        self.next += 1;
        self.through_a_checkpoint();
        match decision {
            Decision::Decided { verdict, .. } => verdict,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_rolled_back_has_taken_nothing() {
    let mut log = Log::new();
    assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
    assert_eq!(log.end(1, false, NAME, 1), Verdict::Ended);
    assert_eq!(log.write(1, 7, LockMode::Update, 0), Verdict::Commit);
    // Its name is free again for whoever has seen that, and for nobody else.
    let in_use = Verdict::Conflict { other: LogIndex(2), key: 0, origin: NodeId(3) };
    assert_eq!(log.prepare(2, NAME, 1), in_use);
    assert_eq!(log.prepare(3, NAME, 3), Verdict::Prepared);
}

#[test]
fn a_name_is_used_once_and_ended_once() {
    let mut log = Log::new();
    assert_eq!(log.end(1, true, NAME, 0), Verdict::Cancelled, "there is none");
    assert_eq!(log.prepare(1, NAME, 1), Verdict::Prepared);
    let in_use = Verdict::Held { by: LogIndex(2), key: 0, origin: NodeId(1) };
    assert_eq!(log.prepare(2, NAME, 2), in_use);
    assert_eq!(log.end(2, true, NAME, 1), Verdict::Cancelled, "its author has not seen it");
    assert_eq!(log.end(3, false, NAME, 4), Verdict::Ended);
    let lost = Verdict::Conflict { other: LogIndex(5), key: 0, origin: NodeId(3) };
    assert_eq!(log.end(4, true, NAME, 4), lost, "somebody else was first");
    assert_eq!(log.end(5, true, NAME, 6), Verdict::Cancelled);
    assert!(matches!(log.certifier.outcome(&txn(1, 1)), Outcome::Decided { verdict: Verdict::Prepared, .. }));
}

#[test]
fn a_prepare_is_certified_like_a_commit() {
    let mut log = Log::new();
    assert_eq!(log.write(1, 7, LockMode::Update, 0), Verdict::Commit);
    let lost = Verdict::Conflict { other: LogIndex(1), key: 1, origin: NodeId(2) };
    assert_eq!(log.prepare(1, NAME, 0), lost);
    assert_eq!(log.verdict(Entry::encode_prepare(&txn(1, 2), &[], b"")), Verdict::Cancelled, "it has no name");
    assert!(log.certifier.prepared().is_empty());
}

/// The strongest of several modes counts, and two that share a key may end in any order.
#[test]
fn a_key_may_be_held_by_several() {
    let mut log = Log::new();
    let shares = |name: u64, sequence: u64| {
        let keys = [key(name, LockMode::Update, 0), key(7, LockMode::KeyShare, 0), key(7, LockMode::Share, 0)];
        Entry::encode_prepare(&txn(1, sequence), &keys, b"")
    };
    assert_eq!(log.verdict(shares(NAME, 1)), Verdict::Prepared);
    assert_eq!(log.verdict(shares(NAME + 1, 2)), Verdict::Prepared);
    assert_eq!(log.write(1, 7, LockMode::Share, 2), Verdict::Commit);
    let held = |by| Verdict::Held { by: LogIndex(by), key: 0, origin: NodeId(1) };
    assert_eq!(log.write(2, 7, LockMode::NoKeyUpdate, 3), held(1));
    assert_eq!(log.end(1, false, NAME, 4), Verdict::Ended);
    assert_eq!(log.write(3, 7, LockMode::NoKeyUpdate, 5), held(2));
    assert_eq!(log.end(2, false, NAME + 1, 6), Verdict::Ended);
    assert_eq!(log.write(4, 7, LockMode::NoKeyUpdate, 7), Verdict::Commit);
}

/// What a prepared transaction has read stays as it was until it is ended, and others may read it.
#[test]
fn what_a_prepared_transaction_has_read_is_held() {
    let mut log = Log::new();
    let (keys, reads) = ([key(NAME, LockMode::Update, 0)], [key(7, LockMode::Share, 0)]);
    let prepare = Entry::encode_serializable(EntryKind::Prepare, &txn(1, 1), &keys, &reads, b"");
    assert_eq!(log.verdict(prepare), Verdict::Prepared);
    assert_eq!(log.write(1, 7, LockMode::Share, 1), Verdict::Commit);
    let held = |by, key| Verdict::Held { by: LogIndex(by), key, origin: NodeId(1) };
    assert_eq!(log.write(2, 7, LockMode::NoKeyUpdate, 2), held(1, 0));
    // Another one may be prepared after it has read the same.
    let (keys, reads) = ([key(NAME + 1, LockMode::Update, 3)], [key(7, LockMode::NoKeyUpdate, 3)]);
    let prepare = Entry::encode_serializable(EntryKind::Prepare, &txn(1, 2), &keys, &reads, b"");
    assert_eq!(log.verdict(prepare), Verdict::Prepared);
    assert_eq!(log.write(3, 7, LockMode::Share, 4), held(4, 0));
    assert_eq!(log.end(1, true, NAME, 5), Verdict::Ended);
    assert_eq!(log.end(2, true, NAME + 1, 6), Verdict::Ended);
    // What was read is taken by nobody.
    assert_eq!(log.write(4, 7, LockMode::NoKeyUpdate, 2), Verdict::Commit);

    // Who has read what a prepared one is going to change comes before it, unless it is to come later itself.
    assert_eq!(log.prepare(3, NAME, 8), Verdict::Prepared);
    let reader = |kind, sequence, name: u64| {
        let (keys, reads) = ([key(name, LockMode::Update, 9)], [key(7, LockMode::Share, 9)]);
        Entry::encode_serializable(kind, &txn(2, sequence), &keys, &reads, b"")
    };
    assert_eq!(log.verdict(reader(EntryKind::Transaction, 5, 99)), Verdict::Commit);
    assert_eq!(log.verdict(reader(EntryKind::Prepare, 6, NAME + 2)), held(9, 1));
}

#[test]
fn what_can_be_held_is_limited() {
    let mut log = Log::new();
    let many = |name: u64, sequence: u64, keys: u64| {
        let first = [key(name, LockMode::Update, 0)].into_iter();
        let keys: Vec<Key> = first.chain((0..keys).map(|n| key(n, LockMode::KeyShare, 0))).collect();
        Entry::encode_prepare(&txn(1, sequence), &keys, b"")
    };
    assert_eq!(log.verdict(many(NAME, 1, 600_000)), Verdict::Prepared);
    assert_eq!(log.verdict(many(NAME + 1, 2, 600_000)), Verdict::NoRoom);
    assert_eq!(log.verdict(many(NAME + 2, 3, 100)), Verdict::Prepared);
    assert_eq!(log.end(1, true, NAME, 2), Verdict::Ended);
    assert_eq!(log.verdict(many(NAME + 3, 4, 600_000)), Verdict::Prepared);
}

/// An entry that is left out everywhere holds nothing.
#[test]
fn what_is_left_out_is_not_held() {
    let mut log = Log::new();
    assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
    let keys = [key(NAME, LockMode::Update, 0), key(7, LockMode::Update, 0)];
    let prepared = Entry::decode(Entry::encode_prepare(&txn(1, 1), &keys, b"rows")).unwrap();
    let decision = log.decide(prepared.encode_skip(LogIndex(1)));
    assert_eq!(decision, Decision::LeavesOut { left_out: LogIndex(1), previous: LogIndex(1) });
    assert_eq!(log.write(1, 7, LockMode::Update, 2), Verdict::Commit);
    assert_eq!(log.end(1, true, NAME, 3), Verdict::Cancelled);
}

/// What an entry that is left out had changed may have been seen by a transaction that is prepared.
#[test]
fn what_rests_on_what_is_left_out_can_only_be_rolled_back() {
    let mut log = Log::new();
    assert_eq!(log.write(1, 7, LockMode::Update, 0), Verdict::Commit);
    assert_eq!(log.prepare(1, NAME, 1), Verdict::Prepared);
    let left_out = Entry::decode(Entry::encode(&txn(2, 1), &[key(7, LockMode::Update, 0)], b"")).unwrap();
    let decision = log.decide(left_out.encode_skip(LogIndex(1)));
    assert_eq!(decision, Decision::LeavesOut { left_out: LogIndex(1), previous: LogIndex(2) });
    let cannot = Verdict::Held { by: LogIndex(2), key: 0, origin: NodeId(1) };
    assert_eq!(log.end(1, true, NAME, 3), cannot);
    assert_eq!(log.end(2, false, NAME, 3), Verdict::Ended);
}

impl Log {
    /// Node 1 prepares something that writes row 7, and node 3 commits it; both are left out later.
    fn commit_prepared(&mut self) -> Entry {
        assert_eq!(self.prepare(1, NAME, 0), Verdict::Prepared);
        let end = Entry::encode_end(&txn(3, 1), true, NAME, Base(1), b"");
        assert_eq!(self.verdict(end.clone()), Verdict::Ended);
        Entry::decode(end).unwrap()
    }

    fn leave_out(&mut self, entry: &Entry, index: u64) {
        let decision = self.decide(entry.encode_skip(LogIndex(index)));
        assert!(matches!(decision, Decision::LeavesOut { left_out, .. } if left_out.0 == index), "{decision:?}");
    }
}

/// Its entry names only the transaction, and has taken what that one held.
#[test]
fn who_saw_a_commit_by_name_that_is_left_out_conflicts_with_it() {
    let mut log = Log::new();
    let end = log.commit_prepared();
    let other = [key(NAME + 1, LockMode::Update, 2), key(7, LockMode::Share, 2)];
    assert_eq!(log.verdict(Entry::encode_prepare(&txn(1, 2), &other, b"")), Verdict::Prepared);
    log.leave_out(&end, 2);
    let lost = Verdict::Conflict { other: LogIndex(4), key: 0, origin: NodeId(3) };
    assert_eq!(log.write(1, 7, LockMode::KeyShare, 3), lost);
    assert_eq!(log.write(2, 8, LockMode::Update, 3), Verdict::Commit);
    let cannot = Verdict::Held { by: LogIndex(3), key: 0, origin: NodeId(1) };
    assert_eq!(log.end(2, true, NAME + 1, 6), cannot);
    assert_eq!(log.end(3, false, NAME + 1, 6), Verdict::Ended);
    // And if that is left out in turn, whoever saw that row 7 was not written.
    let skip = Entry::decode(end.encode_skip(LogIndex(2))).unwrap();
    log.leave_out(&skip, 4);
    let lost = Verdict::Conflict { other: LogIndex(9), key: 0, origin: NodeId(3) };
    assert_eq!(log.write(4, 7, LockMode::KeyShare, 8), lost);
}

/// What it took has left the window: all who may have seen it lose.
#[test]
fn who_may_have_seen_a_commit_by_name_of_long_ago_that_is_left_out_loses() {
    let mut log = Log::with(Limits { window_entries: 3, ..Limits::default() });
    let before = [key(NAME + 2, LockMode::Update, 0), key(9, LockMode::Update, 0)];
    assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
    assert_eq!(log.verdict(Entry::encode_prepare(&txn(1, 2), &before, b"")), Verdict::Prepared);
    let end = Entry::encode_end(&txn(3, 1), true, NAME, Base(2), b"");
    assert_eq!(log.verdict(end.clone()), Verdict::Ended);
    let after = [key(NAME + 1, LockMode::Update, 3), key(7, LockMode::Share, 3)];
    assert_eq!(log.verdict(Entry::encode_prepare(&txn(1, 3), &after, b"")), Verdict::Prepared);
    for n in 5..8 {
        assert_eq!(log.write(n, 10 + n, LockMode::Update, n - 1), Verdict::Commit);
    }
    log.leave_out(&Entry::decode(end).unwrap(), 3);
    let lost = Verdict::Window { oldest: Base(8), key: 0 };
    assert_eq!(log.write(9, 11, LockMode::Update, 7), lost);
    assert_eq!(log.write(10, 11, LockMode::Update, 8), Verdict::Commit);
    let cannot = Verdict::Held { by: LogIndex(4), key: 0, origin: NodeId(1) };
    assert_eq!(log.end(2, true, NAME + 1, 10), cannot);
    assert_eq!(log.end(3, true, NAME + 2, 10), Verdict::Ended, "it was prepared before");
}

/// What is prepared, left out and then not left out after all is in every PostgreSQL, and so it is held.
#[test]
fn what_is_not_left_out_after_all_is_held_again() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Meanwhile {
        Nothing,
        Writes,
        Prepares,
        TakesItsName,
    }
    use Meanwhile::*;
    for meanwhile in [Nothing, Writes, Prepares, TakesItsName] {
        let mut log = Log::new();
        let keys = [key(NAME, LockMode::Update, 0), key(7, LockMode::Update, 0)];
        let prepare = Entry::decode(Entry::encode_prepare(&txn(1, 1), &keys, b"rows")).unwrap();
        assert_eq!(log.prepare(1, NAME, 0), Verdict::Prepared);
        log.leave_out(&prepare, 1);
        let verdict = match meanwhile {
            Nothing => log.write(1, 8, LockMode::Update, 2),
            Writes => log.write(1, 7, LockMode::Update, 2),
            Prepares => log.prepare(2, NAME + 1, 2),
            TakesItsName => {
                let other = [key(NAME, LockMode::Update, 2), key(9, LockMode::Update, 2)];
                log.verdict(Entry::encode_prepare(&txn(1, 2), &other, b""))
            }
        };
        assert!(verdict.commits(), "{meanwhile:?}: {verdict:?}");
        assert_eq!(log.certifier.prepared().contains_key(&NAME), meanwhile == TakesItsName);
        let skip = Entry::decode(prepare.encode_skip(LogIndex(1))).unwrap();
        log.leave_out(&skip, 2);
        let held = &log.certifier.prepared()[&NAME];
        assert_eq!(held.index, LogIndex(if meanwhile == TakesItsName { 3 } else { 1 }));
        if meanwhile != TakesItsName {
            let by = LogIndex(1);
            assert_eq!(log.write(2, 7, LockMode::Update, 4), Verdict::Held { by, key: 0, origin: NodeId(1) });
            let committed = log.end(1, true, NAME, 5);
            let cannot = Verdict::Held { by, key: 0, origin: NodeId(1) };
            assert_eq!(committed, if meanwhile == Nothing { Verdict::Ended } else { cannot }, "{meanwhile:?}");
        }
        if meanwhile == Nothing {
            continue;
        }
        // Left out a third time: only the first one is released.
        let again = Entry::decode(skip.encode_skip(LogIndex(2))).unwrap();
        log.leave_out(&again, 4);
        let held = log.certifier.prepared().values().map(|held| held.index.0).collect::<Vec<_>>();
        assert_eq!(held, if meanwhile == Writes { vec![] } else { vec![3] }, "{meanwhile:?}");
    }
}
