//! What the router tells whom, in cases that the simulation would meet only by luck.

// There is one thread; the lock is needed only because the router shares its wires by `Arc`.
#![allow(clippy::disallowed_types)]

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{
    take_frame, EntryFlags, Hello, OutcomeState, Role, ToPostgres, VerdictOutcome, WayTimes, TAKES_TIMES, VERSION,
};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::parts::PartSizes;
use onetrip_core::router::{AgentEvent, ConnId, Context, Log, Outbox, Router, Way};
use onetrip_core::{Base, Entry, Error, Key, LockMode, LogIndex, Members, NodeId, TxnId};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Frames; `None` is the end of the connection.
#[derive(Default)]
struct Wire(Mutex<Vec<Option<ToPostgres>>>);

impl Outbox for Wire {
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool {
        let frame = take_frame(&mut BytesMut::from(&frame.concat()[..])).unwrap().unwrap();
        self.0.lock().unwrap().push(Some(ToPostgres::decode(frame).unwrap()));
        true
    }
    fn close(&self) {
        self.0.lock().unwrap().push(None);
    }
}

struct NoLog;

impl Log for NoLog {
    type Error = Error;
    fn first_index(&self) -> LogIndex {
        LogIndex(3)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(2)
    }
    fn read(&self, _: LogIndex) -> Result<Bytes, Error> {
        panic!("nothing is read")
    }
}

/// A router of node 1 with the connection of one backend.
fn with_a_backend(context: &mut Context<'_, NoLog>) -> (Router<Wire>, ConnId, Arc<Wire>) {
    let mut router = Router::new(NodeId(1), "r".into(), PartSizes::default(), LogIndex::ZERO, &[], 0);
    let (conn, wire, zero) = (ConnId(1), Arc::new(Wire::default()), LogIndex::ZERO);
    let hello = Hello { version: VERSION, role: Role::Backend, pid: 1, incarnation: 1, applied: zero, durable: zero };
    router.handle(AgentEvent::Opened { conn, hello, outbox: wire.clone() }, context).unwrap();
    (router, conn, wire)
}

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
        let mut context = Context {
            certifier: &certifier,
            committed_indexes: &mut committed_indexes,
            log: &NoLog,
            members: &members,
            tick: 0,
            now: Duration::ZERO,
        };
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
    let mut context = Context {
        certifier: &before,
        committed_indexes: &mut CommittedIndexes::default(),
        log: &NoLog,
        members: &members,
        tick: 0,
        now: Duration::ZERO,
    };
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
    let mut context = Context {
        certifier: &certifier,
        committed_indexes: &mut committed_indexes,
        log: &NoLog,
        members: &members,
        tick: 0,
        now: Duration::ZERO,
    };
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

/// Goal: the apply worker commits what is prepared, and what ends it, in every PostgreSQL; the session is told, and is
/// not in doubt: the worker goes on when it ends.
#[test]
fn the_worker_gets_what_is_prepared_here_too() {
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let key = Key { hash: 7, mode: LockMode::Update, base: Base(0) };
    let txn = |sequence| TxnId { node: NodeId(1), incarnation: 1, sequence };
    let raw = [Entry::encode_prepare(&txn(1), &[key], b"row"), Entry::encode_end(&txn(2), true, 7, Base(1), b"end")];
    let log = TwoEntries(raw.clone());
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut router = Router::new(NodeId(1), "r".into(), PartSizes::default(), LogIndex::ZERO, &[], 0);
    let [session, worker] = [Arc::new(Wire::default()), Arc::new(Wire::default())];
    let zero = LogIndex::ZERO;
    for (n, role, wire) in [(1, Role::Backend, &session), (2, Role::ApplyWorker, &worker)] {
        let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied: zero, durable: zero };
        let opened = AgentEvent::Opened { conn: ConnId(n), hello, outbox: wire.clone() };
        let mut context = Context {
            certifier: &certifier,
            committed_indexes: &mut committed_indexes,
            log: &log,
            members: &members,
            tick: 0,
            now: Duration::ZERO,
        };
        router.handle(opened, &mut context).unwrap();
    }
    for (n, raw) in (1..).zip(raw) {
        let (at, conn) = (LogIndex(n), ConnId(1));
        let mut context = Context {
            certifier: &certifier,
            committed_indexes: &mut committed_indexes,
            log: &log,
            members: &members,
            tick: 0,
            now: Duration::ZERO,
        };
        let propose = AgentEvent::Propose { conn, txn: txn(n), raw: raw.clone(), permit: None };
        assert!(router.handle(propose, &mut context).unwrap().is_some());
        let decision = certifier.certify(at, &Entry::decode(raw).unwrap()).unwrap();
        let context = Context {
            certifier: &certifier,
            committed_indexes: &mut committed_indexes,
            log: &log,
            members: &members,
            tick: 0,
            now: Duration::ZERO,
        };
        router.decided(at, txn(n), decision, Way::default(), &context);
        router.feed_worker(&context).unwrap();
        let Some(Some(ToPostgres::Verdict(verdict))) = session.0.lock().unwrap().pop() else { panic!("no verdict") };
        assert_eq!((verdict.outcome, verdict.at), (VerdictOutcome::ByWorker, at));
        let Some(Some(ToPostgres::Entry { at: fed, .. })) = worker.0.lock().unwrap().pop() else { panic!("no entry") };
        assert_eq!(fed, at);
    }
    let mut context = Context {
        certifier: &certifier,
        committed_indexes: &mut committed_indexes,
        log: &log,
        members: &members,
        tick: 0,
        now: Duration::ZERO,
    };
    for n in [1, 2] {
        router.handle(AgentEvent::Outcome { conn: ConnId(1), txn: txn(n) }, &mut context).unwrap();
        let Some(Some(ToPostgres::OutcomeIs { state, .. })) = session.0.lock().unwrap().pop() else {
            panic!("no outcome")
        };
        assert_eq!(state, if n == 1 { OutcomeState::Prepared } else { OutcomeState::Committed });
    }
    router.handle(AgentEvent::Closed { conn: ConnId(1) }, &mut context).unwrap();
    assert!(router.is_fed());
}

struct TwoEntries([Bytes; 2]);

impl Log for TwoEntries {
    type Error = Error;
    fn first_index(&self) -> LogIndex {
        LogIndex(1)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(2)
    }
    fn read(&self, at: LogIndex) -> Result<Bytes, Error> {
        Ok(self.0[at.0 as usize - 1].clone())
    }
}

/// Goal: PostgreSQL does not keep an entry that is left out.  Method: its worker has been sent an entry when the log
/// leaves that out.  The worker has to begin anew, and then gets the place of that entry and nothing of its changes.
#[test]
fn what_is_left_out_is_taken_back_from_the_worker() {
    let txn = TxnId { node: NodeId(2), incarnation: 1, sequence: 1 };
    let poison = Entry::decode(Entry::encode(&txn, &[], b"rows")).unwrap();
    let log = TwoEntries([Entry::encode(&txn, &[], b"rows"), poison.encode_skip(LogIndex(1))]);
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut router = Router::new(NodeId(1), "r".into(), PartSizes::default(), LogIndex::ZERO, &[], 0);
    let (wire, zero) = (Arc::new(Wire::default()), LogIndex::ZERO);
    let said = || std::mem::take(&mut *wire.0.lock().unwrap());
    let opened = |conn| {
        let (role, pid) = (Role::ApplyWorker, 1);
        let hello = Hello { version: VERSION, role, pid, incarnation: 1, applied: zero, durable: zero };
        AgentEvent::Opened { conn: ConnId(conn), hello, outbox: wire.clone() }
    };
    let entry = |at, previous, flags, write_set: &'static [u8]| {
        let (at, previous, write_set) = (LogIndex(at), LogIndex(previous), Bytes::from_static(write_set));
        Some(ToPostgres::Entry { at, previous, flags, region: "".into(), txn, write_set })
    };
    macro_rules! context {
        () => {
            Context {
                certifier: &certifier,
                committed_indexes: &mut committed_indexes,
                log: &log,
                members: &members,
                tick: 0,
                now: Duration::ZERO,
            }
        };
    }

    certifier.certify(LogIndex(1), &poison).unwrap();
    committed_indexes.push(LogIndex(1));
    router.handle(opened(1), &mut context!()).unwrap();
    assert_eq!(said()[1..], [entry(1, 0, EntryFlags::default(), b"rows")]);

    let skip = Entry::decode(log.0[1].clone()).unwrap();
    let decision = certifier.certify(LogIndex(2), &skip).unwrap();
    committed_indexes.push(LogIndex(2));
    router.decided(LogIndex(2), txn, decision, Way::default(), &context!());
    assert_eq!(said(), [None], "the connection ends");

    router.handle(opened(2), &mut context!()).unwrap();
    let left_out = EntryFlags { left_out: true, leaves_out: false };
    let leaves_out = EntryFlags { left_out: false, leaves_out: true };
    let index_1 = &[1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(said()[1..], [entry(1, 0, left_out, b""), entry(2, 1, leaves_out, index_1)]);
    router.handle(AgentEvent::Outcome { conn: ConnId(2), txn }, &mut context!()).unwrap();
    assert_eq!(said(), [Some(ToPostgres::OutcomeIs { txn, state: OutcomeState::LeftOut, at: LogIndex(2) })]);
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
        let mut context = Context {
            certifier: &certifier,
            committed_indexes: &mut committed_indexes,
            log: &NoLog,
            members: &members,
            tick: 0,
            now: Duration::ZERO,
        };
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
    let mut router = Router::new(NodeId(1), "r".into(), PartSizes::default(), LogIndex::ZERO, &[], 0);
    let (us, mut at) = (Duration::from_micros, LogIndex::ZERO);
    for (n, takes_times) in [(1, true), (2, false)] {
        let (wire, conn) = (Arc::new(Wire::default()), ConnId(n));
        for sequence in [2 * n, 2 * n + 1] {
            macro_rules! context {
                ($now:expr) => {
                    Context {
                        certifier: &certifier,
                        committed_indexes: &mut committed_indexes,
                        log: &NoLog,
                        members: &members,
                        tick: 0,
                        now: $now,
                    }
                };
            }
            let (zero, role) = (LogIndex::ZERO, Role::Backend);
            let applied = if takes_times { LogIndex(TAKES_TIMES) } else { zero };
            let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied, durable: zero };
            let opened = AgentEvent::Opened { conn, hello, outbox: wire.clone() };
            router.handle(opened, &mut context!(Duration::ZERO)).unwrap();
            // The second one of each wants a key that another node's transaction, which it has not seen, got first.
            let txn = TxnId { node: NodeId(1), incarnation: 1, sequence };
            let raw = Entry::encode(&txn, &if sequence % 2 == 0 { vec![] } else { vec![key] }, b"");
            let propose = AgentEvent::Propose { conn, txn, raw: raw.clone(), permit: None };
            router.handle(propose, &mut context!(us(1_000))).unwrap();
            if sequence % 2 == 1 {
                let first = TxnId { node: NodeId(2), incarnation: 1, sequence };
                let first = Entry::decode(Entry::encode(&first, &[key], b"")).unwrap();
                at.0 += 1;
                certifier.certify(at, &first).unwrap();
            }
            at.0 += 1;
            let decision = certifier.certify(at, &Entry::decode(raw).unwrap()).unwrap();
            let way = Way { held_by: "a".into(), committed: us(81_000) };
            router.decided(at, txn, decision, way, &context!(us(81_045)));
            let Some(Some(ToPostgres::Verdict(verdict))) = wire.0.lock().unwrap().pop() else { panic!("no verdict") };
            let commits = sequence % 2 == 0;
            assert_eq!(verdict.outcome == VerdictOutcome::Commit, commits, "{verdict:?}");
            let times = WayTimes { replicate_us: 80_000, certify_us: 45 };
            assert_eq!(verdict.times, (commits && takes_times).then_some(times));
        }
    }
}
