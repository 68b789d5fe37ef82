//! What the router tells whom, in cases that the simulation would meet only by luck.  Here: what sessions are told of
//! their transactions.

// There is one thread; the lock is needed only because the router shares its wires by `Arc`.
#![allow(clippy::disallowed_types)]

mod arriving;
mod waiting;
mod worker;
mod world;

use bytes::Bytes;
use onetrip_core::agent::{Hello, OutcomeState, Role, ToPostgres, VerdictOutcome, WayTimes, TAKES_TIMES, VERSION};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::router::{AgentEvent, ConnId, Context, Way};
use onetrip_core::{Base, Entry, EntryKind, Key, Level, LockMode, LogIndex, Members, NodeId, TxnId};
use std::sync::Arc;
use std::time::Duration;
use world::{at_start, fed, large, router, said, with_a_backend, Here, NoLog, Wire, APPLY, ZERO};

/// Goal: PostgreSQL never shows an entry without those before it.  Method: a backend sends its proposal again after its
/// node has gone on from another node's checkpoint, whose committed indexes begin after that entry.
#[test]
fn a_verdict_whose_place_is_not_known_is_not_told() {
    for forgotten in [false, true] {
        let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
        let txn = |sequence| TxnId { node: NodeId(1), incarnation: 1, sequence };
        for sequence in 1..=2 {
            let entry = Entry::decode(Entry::encode(&txn(sequence), &[], b"")).unwrap();
            certifier.certify(LogIndex(sequence), &entry).unwrap();
            committed_indexes.push(LogIndex(sequence));
        }
        if forgotten {
            committed_indexes.forget_to(LogIndex(2));
        }
        let members = Members::bootstrap(vec![], "r".into(), 1);
        let mut context = at_start(&certifier, &mut committed_indexes, &NoLog, &members);
        let (mut router, conn, wire) = with_a_backend(&mut context);
        let raw = Entry::encode(&txn(2), &[], b"");
        let again = AgentEvent::Propose { conn, txn: txn(2), raw, permit: None };
        assert!(router.handle(again, &mut context).unwrap().is_none());
        let said = wire.0.lock().unwrap();
        match said.last().unwrap() {
            Some(ToPostgres::Verdict(verdict)) if !forgotten => {
                assert_eq!(
                    (verdict.outcome, verdict.at, verdict.other),
                    (VerdictOutcome::Commit, LogIndex(2), LogIndex(1))
                );
            }
            None if forgotten => {}
            other => panic!("forgotten {forgotten}: {other:?}"),
        }
    }
}

/// Goal: what an earlier release cannot read is refused in words, whether it would travel in one piece or in parts,
/// while such a release may be a member; and nothing of it is proposed.
#[test]
fn what_needs_a_higher_level_is_refused_whatever_its_size() {
    let certifier = Certifier::new(Limits::default());
    let key = Key { hash: 7, mode: LockMode::Share, base: Base(0) };
    for (level, bytes) in [(0, 10), (0, 2 << 20), (1, 10), (1, 2 << 20)] {
        let members = Members { level: Level(level), ..Members::bootstrap(vec![], "r".into(), 1) };
        let mut committed_indexes = CommittedIndexes::default();
        let mut context = at_start(&certifier, &mut committed_indexes, &NoLog, &members);
        let (mut router, conn, wire) = with_a_backend(&mut context);
        let propose = |sequence, reads: &[Key]| {
            let txn = TxnId { node: NodeId(1), incarnation: 1, sequence };
            let raw = Entry::encode_serializable(EntryKind::Transaction, &txn, &[key], reads, &vec![0; bytes]);
            AgentEvent::Propose { conn, txn, raw, permit: None }
        };
        let at_once = router.handle(propose(1, &[key]), &mut context).unwrap();
        let parts = router.parts_to_propose(&[], &context);
        let is_proposed = at_once.is_some() || !parts.is_empty();
        let said = said(&wire);
        match said.last().unwrap() {
            Some(ToPostgres::Verdict(verdict)) if level == 0 => {
                assert_eq!((verdict.outcome, is_proposed), (VerdictOutcome::Refused, false), "{bytes} bytes");
                assert!(verdict.message.contains("needs format level 1"), "{}", verdict.message);
                // The connection is free for the next one.
                assert_eq!(router.handle(propose(2, &[]), &mut context).unwrap().is_some(), bytes == 10);
            }
            Some(ToPostgres::Welcome { .. }) if level == 1 => assert!(is_proposed, "{bytes} bytes"),
            other => panic!("level {level}, {bytes} bytes: {other:?}"),
        }
    }
}

/// Goal: who asked for a transaction to be settled is told, also if that was decided by another node.
/// Method: the node goes on from a checkpoint in which it is decided, while the question is open.
#[test]
fn who_asked_what_a_checkpoint_tells_is_told() {
    let txn = TxnId { node: NodeId(2), incarnation: 1, sequence: 1 };
    let given_out = TxnId { sequence: 2, ..txn };
    let certifier_of = |entries: &[Bytes]| {
        let mut certifier = Certifier::new(Limits::default());
        for (at, raw) in (1..).zip(entries) {
            certifier.certify(LogIndex(at), &Entry::decode(raw.clone()).unwrap()).unwrap();
        }
        certifier
    };
    let before = certifier_of(&[Entry::encode(&given_out, &[], b"")]);
    let after = certifier_of(&[Entry::encode(&given_out, &[], b""), Entry::encode_cancel(&txn)]);
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut committed_indexes = CommittedIndexes::default();
    let mut context = at_start(&before, &mut committed_indexes, &NoLog, &members);
    let (mut router, conn, wire) = with_a_backend(&mut context);
    let cancel = router.handle(AgentEvent::Settle { conn, txn }, &mut context).unwrap();
    assert_eq!(cancel, Some(Entry::encode_cancel(&txn)));
    wire.0.lock().unwrap().clear();
    router.start_over(&before);
    assert!(wire.0.lock().unwrap().is_empty());
    router.start_over(&after);
    let said = wire.0.lock().unwrap();
    let [Some(ToPostgres::OutcomeIs { txn: of, state: OutcomeState::Aborted, at: LogIndex(2) })] = said.as_slice()
    else {
        panic!("{said:?}");
    };
    assert_eq!(*of, txn);
    assert!(router.resend(1_000, true).iter().all(|raw| *raw != Entry::encode_cancel(&txn)));
}

/// Goal: what a session has left open is settled, however many ids before it never came to the log; ids that nobody may
/// have given out are not.  Method: a backend and the apply worker ask for the same id, far above those in the log.
#[test]
fn the_worker_settles_what_its_server_has_given_out() {
    let mut here = Here::new();
    let wire = Arc::<Wire>::default();
    here.opens_as(ConnId(3), Role::Backend, ZERO, wire.clone());
    said(&wire);
    here.decides(Entry::encode(&large(1, 1).0, &[], b""));
    let txn = large(1, 1 + 8_192).0;
    assert_eq!(here.handle(AgentEvent::Settle { conn: ConnId(3), txn }), None);
    let not_so_far = ToPostgres::OutcomeIs { txn, state: OutcomeState::NotSoFar, at: ZERO };
    assert_eq!(said(&wire), [Some(not_so_far)]);
    assert_eq!(fed(&here.apply), [LogIndex(1)]);
    let cancel = here.handle(AgentEvent::Settle { conn: APPLY, txn });
    assert_eq!(cancel, Some(Entry::encode_cancel(&txn)));
    assert_eq!(said(&here.apply), []);
    here.decides(cancel.unwrap());
    let aborted = ToPostgres::OutcomeIs { txn, state: OutcomeState::Aborted, at: LogIndex(2) };
    assert_eq!(said(&here.apply), [Some(aborted)]);
}

/// Goal: what is certain to lose does not cross regions first.  Method: a backend proposes a row that another node has
/// committed since, and then one that nobody has.
#[test]
fn what_has_lost_already_is_not_proposed() {
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let of = |node, sequence, base| {
        let txn = TxnId { node: NodeId(node), incarnation: 1, sequence };
        let key = Key { hash: 7, mode: LockMode::Update, base: Base(base) };
        (txn, Entry::encode(&txn, &[key], b""))
    };
    certifier.certify(LogIndex(1), &Entry::decode(of(2, 1, 0).1).unwrap()).unwrap();
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut context = at_start(&certifier, &mut committed_indexes, &NoLog, &members);
    let (mut router, conn, wire) = with_a_backend(&mut context);
    let (txn, raw) = of(1, 1, 0);
    let propose = AgentEvent::Propose { conn, txn, raw, permit: None };
    assert!(router.handle(propose, &mut context).unwrap().is_none());
    let Some(Some(ToPostgres::Verdict(verdict))) = wire.0.lock().unwrap().pop() else { panic!("no verdict") };
    let told = (verdict.txn, verdict.outcome, verdict.at, verdict.other, verdict.key);
    assert_eq!(told, (txn, VerdictOutcome::Conflict, LogIndex::ZERO, LogIndex(1), 0));
    assert!(!router.is_pending(&txn));
    let (txn, raw) = of(1, 2, 1);
    let propose = AgentEvent::Propose { conn, txn, raw: raw.clone(), permit: None };
    assert_eq!(router.handle(propose, &mut context).unwrap(), Some(raw));
    assert!(router.is_pending(&txn));
}

/// Goal: a session is not told of success if its entry is left out everywhere.  Method: it proposes again, on a new
/// connection, what was prepared, and the COMMIT PREPARED of that; each before and after an entry leaves it out.
#[test]
fn what_is_left_out_and_proposed_again_is_no_success() {
    let key = Key { hash: 7, mode: LockMode::Update, base: Base(0) };
    let txn = |sequence| TxnId { node: NodeId(1), incarnation: 1, sequence };
    let raw = [Entry::encode_prepare(&txn(1), &[key], b"row"), Entry::encode_end(&txn(2), true, 7, Base(1), b"end")];
    let members = Members::bootstrap(vec![], "r".into(), 1);
    for (left_out, is_left_out) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
        let entries = raw.each_ref().map(|raw| Entry::decode(raw.clone()).unwrap());
        let proposed = &entries[left_out - 1];
        let skip = Entry::decode(proposed.encode_skip(LogIndex(left_out as u64))).unwrap();
        for (at, entry) in (1..).zip(entries.iter().chain(is_left_out.then_some(&skip))) {
            certifier.certify(LogIndex(at), entry).unwrap();
            committed_indexes.push(LogIndex(at));
        }
        let mut context = at_start(&certifier, &mut committed_indexes, &NoLog, &members);
        let (mut router, conn, wire) = with_a_backend(&mut context);
        let raw = raw[left_out - 1].clone();
        let again = AgentEvent::Propose { conn, txn: proposed.txn, raw, permit: None };
        assert!(router.handle(again, &mut context).unwrap().is_none());
        let said = wire.0.lock().unwrap();
        match said.last().unwrap() {
            Some(ToPostgres::Verdict(verdict)) if !is_left_out => {
                assert_eq!((verdict.outcome, verdict.at), (VerdictOutcome::ByWorker, LogIndex(left_out as u64)));
            }
            None if is_left_out => {}
            other => panic!("{left_out}, left out: {is_left_out}: {other:?}"),
        }
    }
}

/// Goal: a session learns how long its proposal took, if it can read that, and only of what committed.
///
/// Method: a backend that says so in its HELLO, and one of an earlier release, with a transaction each that commits and
/// one that loses.
#[test]
fn a_backend_that_can_read_times_gets_them() {
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let key = Key { hash: 7, mode: LockMode::Update, base: Base(0) };
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut router = router();
    let (us, mut at) = (Duration::from_micros, LogIndex::ZERO);
    for (n, takes_times) in [(1, true), (2, false)] {
        let (wire, conn) = (Arc::new(Wire::default()), ConnId(n));
        for sequence in [2 * n, 2 * n + 1] {
            let (zero, role) = (LogIndex::ZERO, Role::Backend);
            let applied = if takes_times { LogIndex(TAKES_TIMES) } else { zero };
            let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied, durable: zero };
            let opened = AgentEvent::Opened { conn, hello, outbox: wire.clone() };
            let mut context = at_start(&certifier, &mut committed_indexes, &NoLog, &members);
            router.handle(opened, &mut context).unwrap();
            // The second one of each wants a key that another node's transaction, which it has not seen, got first.
            let txn = TxnId { node: NodeId(1), incarnation: 1, sequence };
            let raw = Entry::encode(&txn, &if sequence % 2 == 0 { vec![] } else { vec![key] }, b"");
            let propose = AgentEvent::Propose { conn, txn, raw: raw.clone(), permit: None };
            context.now = us(1_000);
            router.handle(propose, &mut context).unwrap();
            if sequence % 2 == 1 {
                let first = TxnId { node: NodeId(2), incarnation: 1, sequence };
                let first = Entry::decode(Entry::encode(&first, &[key], b"")).unwrap();
                at.0 += 1;
                certifier.certify(at, &first).unwrap();
            }
            at.0 += 1;
            let decision = certifier.certify(at, &Entry::decode(raw).unwrap()).unwrap();
            let way = Way { held_by: "a".into(), committed: us(81_000) };
            let context = Context { now: us(81_045), ..at_start(&certifier, &mut committed_indexes, &NoLog, &members) };
            router.decided(at, txn, decision, way, &context);
            let Some(Some(ToPostgres::Verdict(verdict))) = wire.0.lock().unwrap().pop() else { panic!("no verdict") };
            let commits = sequence % 2 == 0;
            assert_eq!(verdict.outcome == VerdictOutcome::Commit, commits, "{verdict:?}");
            let times = WayTimes { replicate_us: 80_000, certify_us: 45 };
            assert_eq!(verdict.times, (commits && takes_times).then_some(times));
        }
    }
}
