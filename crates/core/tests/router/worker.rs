//! What the apply worker gets: which entries, how much at once, and what takes them back from it; and what becomes of a
//! server that does not remember where it was.

use crate::world::{at_start, fed, large, router, said, Entries, Here, NoLog, Wire, FEED_BYTES_MAX};
use bytes::Bytes;
use onetrip_core::agent::{EntryFlags, Hello, OutcomeState, Role, ToPostgres, VerdictOutcome, VERSION};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::router::{AgentEvent, ConnId, Way};
use onetrip_core::{Base, Entry, Key, LockMode, LogIndex, Members, NodeId, TxnId};
use std::sync::Arc;

/// Goal: the apply worker commits what is prepared, and what ends it, in every PostgreSQL; the session is told, and is
/// not in doubt: the worker goes on when it ends.
#[test]
fn the_worker_gets_what_is_prepared_here_too() {
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let key = Key { hash: 7, mode: LockMode::Update, base: Base(0) };
    let txn = |sequence| TxnId { node: NodeId(1), incarnation: 1, sequence };
    let raw = [Entry::encode_prepare(&txn(1), &[key], b"row"), Entry::encode_end(&txn(2), true, 7, Base(1), b"end")];
    let log = Entries { raw: raw.to_vec(), ..Entries::default() };
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut router = router();
    let [session, worker] = [Arc::new(Wire::default()), Arc::new(Wire::default())];
    let zero = LogIndex::ZERO;
    for (n, role, wire) in [(1, Role::Backend, &session), (2, Role::ApplyWorker, &worker)] {
        let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied: zero, durable: zero };
        let opened = AgentEvent::Opened { conn: ConnId(n), hello, outbox: wire.clone() };
        let mut context = at_start(&certifier, &mut committed_indexes, &log, &members);
        router.handle(opened, &mut context).unwrap();
    }
    for (n, raw) in (1..).zip(raw) {
        let (at, conn) = (LogIndex(n), ConnId(1));
        let mut context = at_start(&certifier, &mut committed_indexes, &log, &members);
        let propose = AgentEvent::Propose { conn, txn: txn(n), raw: raw.clone(), permit: None };
        assert!(router.handle(propose, &mut context).unwrap().is_some());
        let decision = certifier.certify(at, &Entry::decode(raw).unwrap()).unwrap();
        let context = at_start(&certifier, &mut committed_indexes, &log, &members);
        router.decided(at, txn(n), decision, Way::default(), &context);
        router.feed_worker(&context).unwrap();
        let Some(Some(ToPostgres::Verdict(verdict))) = session.0.lock().unwrap().pop() else { panic!("no verdict") };
        assert_eq!((verdict.outcome, verdict.at), (VerdictOutcome::ByWorker, at));
        let Some(Some(ToPostgres::Entry { at: fed, .. })) = worker.0.lock().unwrap().pop() else { panic!("no entry") };
        assert_eq!(fed, at);
    }
    let mut context = at_start(&certifier, &mut committed_indexes, &log, &members);
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

/// Goal: PostgreSQL does not keep an entry that is left out.  Method: its worker has been sent an entry when the log
/// leaves that out.  The worker has to begin anew, and then gets the place of that entry and nothing of its changes.
#[test]
fn what_is_left_out_is_taken_back_from_the_worker() {
    let txn = TxnId { node: NodeId(2), incarnation: 1, sequence: 1 };
    let poison = Entry::decode(Entry::encode(&txn, &[], b"rows")).unwrap();
    let raw = vec![Entry::encode(&txn, &[], b"rows"), poison.encode_skip(LogIndex(1))];
    let log = Entries { raw, ..Entries::default() };
    let (mut certifier, mut committed_indexes) = (Certifier::new(Limits::default()), CommittedIndexes::default());
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut router = router();
    let (wire, zero) = (Arc::new(Wire::default()), LogIndex::ZERO);
    let opened = |conn| {
        let (role, pid) = (Role::ApplyWorker, 1);
        let hello = Hello { version: VERSION, role, pid, incarnation: 1, applied: zero, durable: zero };
        AgentEvent::Opened { conn: ConnId(conn), hello, outbox: wire.clone() }
    };
    let entry = |at, previous, flags, write_set: &'static [u8]| {
        let (at, previous, write_set) = (LogIndex(at), LogIndex(previous), Bytes::from_static(write_set));
        Some(ToPostgres::Entry { at, previous, flags, region: "".into(), txn, write_set })
    };

    certifier.certify(LogIndex(1), &poison).unwrap();
    committed_indexes.push(LogIndex(1));
    router.handle(opened(1), &mut at_start(&certifier, &mut committed_indexes, &log, &members)).unwrap();
    assert_eq!(said(&wire)[1..], [entry(1, 0, EntryFlags::default(), b"rows")]);

    let skip = Entry::decode(log.raw[1].clone()).unwrap();
    let decision = certifier.certify(LogIndex(2), &skip).unwrap();
    committed_indexes.push(LogIndex(2));
    let mut context = at_start(&certifier, &mut committed_indexes, &log, &members);
    router.decided(LogIndex(2), txn, decision, Way::default(), &context);
    assert_eq!(said(&wire), [None], "the connection ends");

    router.handle(opened(2), &mut context).unwrap();
    let left_out = EntryFlags { left_out: true, leaves_out: false };
    let leaves_out = EntryFlags { left_out: false, leaves_out: true };
    let index_1 = &[1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(said(&wire)[1..], [entry(1, 0, left_out, b""), entry(2, 1, leaves_out, index_1)]);
    router.handle(AgentEvent::Outcome { conn: ConnId(2), txn }, &mut context).unwrap();
    assert_eq!(said(&wire), [Some(ToPostgres::OutcomeIs { txn, state: OutcomeState::LeftOut, at: LogIndex(2) })]);
}

/// Goal: what has no room costs nothing until it has.  Method: a large entry waits for the apply worker, which is slow,
/// while others are decided and it says again and again where it is.
#[test]
fn an_entry_that_waits_for_room_is_not_read_again_and_again() {
    let mut here = Here::new();
    let entry = |sequence, bytes| Entry::encode(&large(2, sequence).0, &[], &vec![7; bytes]);
    here.decides(entry(1, 500));
    here.decides(entry(2, 400));
    here.decides(entry(3, FEED_BYTES_MAX - 400));
    assert_eq!((fed(&here.apply), here.log.reads.get()), (vec![LogIndex(1), LogIndex(2)], 3));
    for sequence in 4..100 {
        here.decides(entry(sequence, 1));
        here.shows(0);
    }
    assert_eq!((fed(&here.apply), here.log.reads.get()), (vec![], 3));
    // There is room for it once the first one is applied.  Then the next one is looked at, and waits.
    here.shows(1);
    assert_eq!((fed(&here.apply), here.log.reads.get()), (vec![LogIndex(3)], 5));
    here.shows(2);
    assert_eq!(fed(&here.apply), (4..100).map(LogIndex).collect::<Vec<_>>());
    assert_eq!(here.log.reads.get(), 5 + 96);
}

/// Goal: a server that forgets its position in the log, or goes back in it, is not taken for one that was away, whose
/// data folder is removed; nor is the copy that takes its place, which may have to wait for this node.
#[test]
fn a_server_that_has_forgotten_where_it_was_is_kept() {
    let mut certifier = Certifier::new(Limits::default());
    for sequence in 1..=6 {
        let entry = Entry::encode(&TxnId { node: NodeId(1), incarnation: 1, sequence }, &[], b"");
        certifier.certify(LogIndex(sequence), &Entry::decode(entry).unwrap()).unwrap();
    }
    let members = Members::bootstrap(vec![], "r".into(), 1);
    for (said_before, says, forgot) in [(None, 0, true), (None, 4, false), (Some(4), 2, true), (Some(4), 4, false)] {
        let mut committed_indexes = CommittedIndexes::default();
        (1..=4).for_each(|index| committed_indexes.push(LogIndex(index)));
        let mut router = router();
        let mut opens = |conn, index, committed_indexes: &mut CommittedIndexes| {
            let mut context = at_start(&certifier, committed_indexes, &NoLog, &members);
            let (at, wire) = (LogIndex(index), Arc::new(Wire::default()));
            let role = Role::ApplyWorker;
            let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied: at, durable: at };
            router.handle(AgentEvent::Opened { conn: ConnId(conn), hello, outbox: wire }, &mut context).unwrap();
            (router.status().needs_copy, router.needs_rebuild(), router.stuck().cloned())
        };
        if let Some(index) = said_before {
            assert_eq!(opens(1, index, &mut committed_indexes), (false, false, None));
        }
        // As another node's checkpoint has it.
        (5..=6).for_each(|index| committed_indexes.push(LogIndex(index)));
        committed_indexes.forget_to(LogIndex(6));
        let (needs_copy, needs_rebuild, stuck) = opens(2, says, &mut committed_indexes);
        assert!(needs_copy, "said {said_before:?}, says {says}");
        assert_eq!((needs_rebuild, stuck.is_some()), (!forgot, forgot), "said {said_before:?}, says {says}");
        if let Some((at, why)) = stuck {
            assert!(at == LogIndex(6) && why.contains("below what it had safe on disk"), "{at}: {why}");
        }
        assert_eq!(opens(3, 9, &mut committed_indexes), (false, false, None), "said {says}, copied from one ahead");
    }
}
