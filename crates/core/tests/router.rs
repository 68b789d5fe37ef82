//! What the router tells whom, in cases that the simulation would meet only by luck.

// There is one thread; the lock is needed only because the router shares its wires by `Arc`.
#![allow(clippy::disallowed_types)]

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{
    take_frame, EntryFlags, Hello, OutcomeState, Role, ToPostgres, VerdictOutcome, WayTimes, TAKES_TIMES, VERSION,
};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits, Outcome};
use onetrip_core::consensus::Committed;
use onetrip_core::decide::decide;
use onetrip_core::parts::{Arriving, PartSizes, Progress};
use onetrip_core::router::{AgentEvent, ConnId, Context, Log, Outbox, Router, Way};
use onetrip_core::{
    Base, Entry, EntryKind, Error, Key, Level, LockMode, LogIndex, Member, MemberRole, Members, NodeId, RegionId, Term,
    TxnId,
};
use raft::eraftpb::EntryType;
use std::cell::Cell;
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
    fn feed_bytes_max(&self) -> usize {
        FEED_BYTES_MAX
    }
    fn close(&self) {
        self.0.lock().unwrap().push(None);
    }
}

const FEED_BYTES_MAX: usize = 1_000;

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

/// At tick 0, with a log of nothing.
fn at_start<'a>(
    certifier: &'a Certifier,
    committed_indexes: &'a mut CommittedIndexes,
    members: &'a Members,
) -> Context<'a, NoLog> {
    Context { certifier, committed_indexes, log: &NoLog, members, tick: 0, now: Duration::ZERO }
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
        let mut context = at_start(&certifier, &mut committed_indexes, &members);
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
        let mut context = at_start(&certifier, &mut committed_indexes, &members);
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
    let mut context = at_start(&before, &mut committed_indexes, &members);
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
    let mut context = at_start(&certifier, &mut committed_indexes, &members);
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
        let mut context = at_start(&certifier, &mut committed_indexes, &members);
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

#[derive(Default)]
struct Entries {
    raw: Vec<Bytes>,
    reads: Cell<usize>,
}

impl Log for Entries {
    type Error = Error;
    fn first_index(&self) -> LogIndex {
        LogIndex(1)
    }
    fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.len() as u64)
    }
    fn read(&self, at: LogIndex) -> Result<Bytes, Error> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.raw[at.0 as usize - 1].clone())
    }
}

const APPLY: ConnId = ConnId(1);
const ARRIVAL: ConnId = ConnId(2);
const ZERO: LogIndex = LogIndex::ZERO;
const PART: usize = 41;

/// Node 1 with its apply worker and its arrival worker, and a log in which large transactions arrive.
struct Here {
    certifier: Certifier,
    committed_indexes: CommittedIndexes,
    members: Arc<Members>,
    log: Entries,
    tick: u64,
    now: Duration,
    router: Router<Wire>,
    apply: Arc<Wire>,
    arrival: Arc<Wire>,
}

impl Here {
    fn new() -> Here {
        let member = |id: u32, role| Member {
            id: NodeId(id),
            region: RegionId(format!("r{id}")),
            address: format!("host:{id}"),
            role,
            voter: true,
            slot: None,
            replaces: None,
            joined: None,
        };
        let members = [(1, MemberRole::Voter), (2, MemberRole::Voter), (3, MemberRole::Witness)];
        let members = members.map(|(id, role)| member(id, role)).to_vec();
        let sizes = PartSizes { whole_max: PART, part: PART, written_early: 0, ..PartSizes::default() };
        let mut here = Here {
            certifier: Certifier::new(Limits::default()),
            committed_indexes: CommittedIndexes::default(),
            members: Arc::new(Members::bootstrap(members, "r1".into(), 4)),
            log: Entries::default(),
            tick: 0,
            now: Duration::ZERO,
            router: Router::new(NodeId(1), "r1".into(), sizes, ZERO, &[], 0),
            apply: Arc::default(),
            arrival: Arc::default(),
        };
        here.opens(Role::ApplyWorker);
        here.opens(Role::ArrivalWorker);
        here
    }

    fn opens(&mut self, role: Role) {
        let (conn, outbox) = match role {
            Role::ApplyWorker => (APPLY, self.apply.clone()),
            _ => (ARRIVAL, self.arrival.clone()),
        };
        self.opens_as(conn, role, ZERO, outbox.clone());
        said(&outbox);
    }

    fn opens_as(&mut self, conn: ConnId, role: Role, applied: LogIndex, outbox: Arc<Wire>) {
        let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied, durable: applied };
        self.handle(AgentEvent::Opened { conn, hello, outbox });
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Router<Wire>, &mut Context<'_, Entries>) -> T) -> T {
        let mut context = Context {
            certifier: &self.certifier,
            committed_indexes: &mut self.committed_indexes,
            log: &self.log,
            members: &self.members,
            tick: self.tick,
            now: self.now,
        };
        act(&mut self.router, &mut context)
    }

    fn handle(&mut self, event: AgentEvent<Wire>) -> Option<Bytes> {
        self.with(|router, context| router.handle(event, context).unwrap())
    }

    /// The arrival worker asks for bytes.  Returns what the node proposes.
    fn wants(&mut self, txn: Option<TxnId>, from: usize) -> Option<Bytes> {
        self.handle(AgentEvent::More { conn: ARRIVAL, txn, from: from as u64 });
        self.feeds()
    }

    fn is_done(&mut self, txn: TxnId, kept: bool) -> Option<Bytes> {
        self.handle(AgentEvent::Written { conn: ARRIVAL, txn, kept });
        self.feeds()
    }

    fn feeds(&mut self) -> Option<Bytes> {
        self.with(|router, context| router.feed_arrival_worker(context))
    }

    /// What the node proposes of the transactions that come from here.  The server of node 2 is not away.
    fn parts(&mut self) -> Vec<Bytes> {
        self.with(|router, context| router.parts_to_propose(&[NodeId(2)], context))
    }

    fn shows(&mut self, applied: u64) {
        let applied = LogIndex(applied);
        self.handle(AgentEvent::Position { conn: APPLY, applied, durable: applied });
    }

    /// The next entry of the log.  Returns what the node proposes.
    fn decides(&mut self, raw: Bytes) -> Option<Bytes> {
        self.log.raw.push(raw.clone());
        let (index, term, kind) = (self.log.last_index(), Term(1), EntryType::EntryNormal);
        let committed = Committed { index, term, kind, data: raw, members: None };
        let decided = decide(&committed, &mut self.certifier, &mut self.committed_indexes, &mut self.members).unwrap();
        let (txn, decision) = decided.unwrap();
        self.with(|router, context| {
            router.decided(index, txn, decision, Way::default(), context);
            router.feed_worker(context).unwrap();
        });
        self.feeds()
    }

    /// Part number `number` of a transaction.
    fn part(&mut self, raw: &Bytes, number: usize) -> Option<Bytes> {
        let (from, to) = (number * PART, raw.len().min((number + 1) * PART));
        self.decides(Entry::encode_part(&Entry::peek_txn(raw).unwrap(), raw.len(), from, &raw[from..to]))
    }

    /// The entry that stands for a transaction all of which has arrived.
    fn whole(&mut self, raw: &Bytes) {
        let indexes = self.certifier.arriving().unwrap().indexes.clone();
        self.decides(Entry::encode_whole(&Entry::peek_txn(raw).unwrap(), crc32fast::hash(raw), &indexes));
    }

    /// A transaction arrives, and the arrival worker gets and writes all of it; it is not decided.
    fn written(&mut self, raw: &Bytes) {
        let txn = Entry::peek_txn(raw).unwrap();
        self.wants(None, 0);
        self.part(raw, 0);
        self.wants(Some(txn), PART);
        self.part(raw, 1);
        self.is_done(txn, true);
        let arrived = said(&self.arrival);
        let of = |from: usize, to: usize| {
            let (total, bytes) = (raw.len() as u64, raw.slice(from..to));
            Some(ToPostgres::Arriving { txn, total, from: from as u64, bytes })
        };
        assert_eq!(arrived, [of(0, PART), of(PART, raw.len())]);
    }
}

fn said(wire: &Wire) -> Vec<Option<ToPostgres>> {
    std::mem::take(&mut *wire.0.lock().unwrap())
}

/// The only thing that was said is a verdict: its outcome, its place, and the committed entry before that.
fn verdict(wire: &Wire) -> (VerdictOutcome, LogIndex, LogIndex) {
    match &said(wire)[..] {
        [Some(ToPostgres::Verdict(verdict))] => (verdict.outcome, verdict.at, verdict.other),
        other => panic!("{other:?}"),
    }
}

fn fed(wire: &Wire) -> Vec<LogIndex> {
    let at = |frame| match frame {
        Some(ToPostgres::Entry { at, .. }) => at,
        other => panic!("{other:?}"),
    };
    said(wire).into_iter().map(at).collect()
}

/// A transaction of so many bytes that it takes two parts.
fn large(node: u32, sequence: u64) -> (TxnId, Bytes) {
    let txn = TxnId { node: NodeId(node), incarnation: 1, sequence };
    let key = Key { hash: 7, mode: LockMode::KeyShare, base: Base(0) };
    let raw = Entry::encode(&txn, &[key], &[sequence as u8; 40]);
    assert_eq!(raw.len(), 2 * PART);
    (txn, raw)
}

/// Goal: one process commits an entry here, whichever it is and however it ends.  Method: the arrival worker has
/// written a transaction and gets its verdict; then its connection ends, with DONE before that or without.
#[test]
fn who_has_written_what_arrived_commits_it() {
    for is_done in [false, true] {
        let mut here = Here::new();
        here.decides(Entry::encode(&large(2, 1).0, &[], b"small"));
        assert_eq!(fed(&here.apply), [LogIndex(1)]);
        let (txn, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        assert_eq!(verdict(&here.arrival), (VerdictOutcome::Commit, LogIndex(4), LogIndex(1)));
        assert_eq!(said(&here.apply), []);
        // The apply worker gets what comes after it.
        here.decides(Entry::encode(&large(2, 3).0, &[], b"small"));
        assert_eq!(fed(&here.apply), [LogIndex(5)]);
        if is_done {
            here.handle(AgentEvent::Done { conn: ARRIVAL, txn });
        }
        here.handle(AgentEvent::Closed { conn: ARRIVAL });
        assert_eq!(said(&here.apply), if is_done { vec![] } else { vec![None] });
        assert_eq!(here.router.is_fed(), is_done);
        if !is_done {
            here.opens_as(ConnId(3), Role::ApplyWorker, LogIndex(1), here.apply.clone());
            here.apply.0.lock().unwrap().remove(0);
            assert_eq!(fed(&here.apply), [LogIndex(4), LogIndex(5)]);
        }
    }
}

/// Goal: a new connection of the arrival worker ends the old one, for which the same holds as if it had ended by
/// itself.
#[test]
fn another_connection_of_the_arrival_worker_ends_the_first() {
    let mut here = Here::new();
    let (_, raw) = large(2, 1);
    here.written(&raw);
    here.whole(&raw);
    said(&here.arrival);
    here.opens_as(ConnId(3), Role::ArrivalWorker, ZERO, Arc::default());
    assert_eq!((said(&here.arrival), said(&here.apply)), (vec![None], vec![None]));
}

/// Goal: what the arrival worker cannot commit the apply worker gets, and what does not commit nobody.  Method: an
/// arrival worker that has some of the bytes, one that has given up with some of them or with all, and a transaction
/// that loses.
#[test]
fn what_is_not_written_goes_to_the_apply_worker() {
    let cancelled = (VerdictOutcome::Cancelled, LogIndex(3), ZERO);

    let mut here = Here::new();
    let (txn, raw) = large(2, 1);
    here.wants(None, 0);
    here.part(&raw, 0);
    here.part(&raw, 1);
    assert_eq!(said(&here.arrival).len(), 1);
    here.whole(&raw);
    assert_eq!((verdict(&here.arrival), fed(&here.apply)), (cancelled, vec![LogIndex(3)]));
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert!(here.router.is_fed());

    let mut here = Here::new();
    here.written(&raw);
    here.is_done(txn, false);
    here.wants(None, 0);
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    // It had asked for more when it gave up.
    let mut here = Here::new();
    here.wants(None, 0);
    here.part(&raw, 0);
    assert_eq!(said(&here.arrival).len(), 1);
    here.wants(Some(txn), PART);
    here.is_done(txn, false);
    here.part(&raw, 1);
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    let mut here = Here::new();
    here.written(&raw);
    here.decides(Entry::encode_cancel(&txn));
    assert_eq!((verdict(&here.arrival), fed(&here.apply)), (cancelled, vec![]));
}

/// Goal: an arrival worker that gives up while its verdict is on the way is not waited for.  Method: WRITTEN comes
/// after the verdict, of that transaction or of an earlier one.
#[test]
fn who_gives_up_after_the_verdict_is_closed() {
    for is_this_one in [true, false] {
        let mut here = Here::new();
        let (txn, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        said(&here.arrival);
        here.is_done(if is_this_one { txn } else { large(2, 1).0 }, false);
        let ends = || if is_this_one { vec![None] } else { vec![] };
        assert_eq!((said(&here.arrival), said(&here.apply)), (ends(), ends()));
        assert_eq!(here.router.is_fed(), !is_this_one);
    }
}

/// Goal: bytes are sent once and in order, and never all at once, so that the worker knows of the transaction before
/// there is a verdict about it.
#[test]
fn what_has_arrived_is_sent_bit_by_bit() {
    let mut here = Here::new();
    let (txn, raw) = large(2, 1);
    here.part(&raw, 0);
    here.part(&raw, 1);
    here.wants(None, 1);
    here.wants(Some(txn), PART);
    assert_eq!(said(&here.arrival), []);
    here.wants(None, 0);
    let of = |from: usize, to: usize| {
        let (total, bytes) = (raw.len() as u64, raw.slice(from..to));
        Some(ToPostgres::Arriving { txn, total, from: from as u64, bytes })
    };
    assert_eq!(said(&here.arrival), [of(0, PART)]);
    here.wants(Some(txn), PART + 1);
    assert_eq!(said(&here.arrival), []);
    here.wants(Some(txn), PART);
    assert_eq!(said(&here.arrival), [of(PART, 2 * PART)]);
    here.wants(Some(txn), 2 * PART);
    here.whole(&raw);
    assert_eq!(verdict(&here.arrival), (VerdictOutcome::Commit, LogIndex(3), ZERO));
}

/// Goal: the arrival worker holds nothing that will not be decided.  Method: the PostgreSQL that a transaction comes
/// from starts anew while that arrives; then comes another transaction.
#[test]
fn what_will_not_arrive_is_let_go() {
    let mut here = Here::new();
    here.decides(Entry::encode_incarnation(NodeId(2), 1, 0));
    let (txn, raw) = large(2, 1);
    here.wants(None, 0);
    here.part(&raw, 0);
    here.wants(Some(txn), PART);
    said(&here.arrival);
    here.decides(Entry::encode_incarnation(NodeId(2), 2, 1));
    assert_eq!(verdict(&here.arrival), (VerdictOutcome::Cancelled, ZERO, ZERO));
    here.wants(None, 0);
    let (txn, raw) = (TxnId { incarnation: 2, ..txn }, large(2, 1).1);
    let raw = Entry::encode(&txn, &[], &Entry::decode(raw).unwrap().write_set);
    here.part(&raw, 0);
    let Some(Some(ToPostgres::Arriving { txn: sent, from: 0, .. })) = said(&here.arrival).pop() else {
        panic!("nothing is sent")
    };
    assert_eq!(sent, txn);
}

/// Goal: a session has written what comes from here, and nobody else does.  What is too small is not written early.
#[test]
fn own_and_small_transactions_are_not_written_early() {
    let (_, raw) = large(1, 1);
    let mut here = Here::new();
    here.wants(None, 0);
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, None));
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));

    let (txn, raw) = large(2, 1);
    let mut here = Here::new();
    let sizes = PartSizes { written_early: raw.len() + 1, ..PartSizes::default() };
    here.router = Router::new(NodeId(1), "r1".into(), sizes, ZERO, &[], 0);
    here.opens(Role::ApplyWorker);
    here.opens(Role::ArrivalWorker);
    here.wants(None, 0);
    let notice = Entry::encode_part(&txn, raw.len(), 1, b"");
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, Some(notice)));
    here.whole(&raw);
    assert_eq!((said(&here.arrival), fed(&here.apply)), (vec![], vec![LogIndex(3)]));
}

/// Goal: what is left out is not committed by the arrival worker, which then has to begin anew.  Method: an entry
/// leaves out the one that it is to commit, or another one.
#[test]
fn what_is_left_out_is_taken_back_from_the_arrival_worker() {
    for left_out in [1, 4] {
        let mut here = Here::new();
        let small = Entry::encode(&large(2, 1).0, &[], b"small");
        here.decides(small.clone());
        let (_, raw) = large(2, 2);
        here.written(&raw);
        here.whole(&raw);
        assert_eq!((verdict(&here.arrival).1, fed(&here.apply)), (LogIndex(4), vec![LogIndex(1)]));
        let entry = Entry::decode(if left_out == 1 { small } else { raw }).unwrap();
        here.decides(entry.encode_skip(LogIndex(left_out)));
        assert_eq!(said(&here.arrival), if left_out == 4 { vec![None] } else { vec![] });
        // It has been sent the one, and is to get the other.
        assert_eq!(said(&here.apply), [None]);
    }
}

/// Goal: the origin's node hears that this server need not be waited for once it need not, even if a proposal is lost.
#[test]
fn that_a_server_need_not_be_waited_for_is_proposed_once_it_is_so() {
    let (txn, raw) = large(2, 1);
    let notice = Some(Entry::encode_part(&txn, raw.len(), 1, b""));
    for kept in [true, false] {
        let mut here = Here::new();
        here.wants(None, 0);
        here.part(&raw, 0);
        assert_eq!(here.wants(Some(txn), PART), None);
        if !kept {
            assert_eq!(here.is_done(txn, kept), None, "it is not whole");
            assert_eq!(here.part(&raw, 1), notice);
        } else {
            assert_eq!(here.part(&raw, 1), None, "it is not written");
            assert_eq!(here.is_done(txn, kept), notice);
        }
        here.tick += 49;
        assert_eq!(here.feeds(), None);
        here.tick += 1;
        assert_eq!(here.feeds(), notice);
        assert_eq!(here.feeds(), None);
        // Nobody took it.
        here.router.not_taken(notice.as_ref().unwrap(), here.tick);
        here.tick += 4;
        assert_eq!(here.feeds(), None);
        here.tick += 1;
        assert_eq!(here.feeds(), notice);
        // Its way into the log, which another node's notice has taken before.
        let of = |node| Entry::encode_part(&txn, raw.len(), node, b"");
        here.tick += 50;
        assert_eq!(here.decides(of(2)), notice);
        here.tick += 50;
        assert_eq!(here.decides(of(1)), None);
        let arriving = here.certifier.arriving().unwrap();
        assert_eq!([1, 2, 3].map(|node| arriving.is_written(NodeId(node))), [true, true, false]);
    }

    // Nobody is there who could write it.
    let mut here = Here::new();
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, notice));

    // Nobody waits for a witness.
    let mut here = Here::new();
    let mut members = Members::clone(&here.members);
    members.members[0].role = MemberRole::Witness;
    here.members = Arc::new(members);
    here.handle(AgentEvent::Closed { conn: ARRIVAL });
    assert_eq!((here.part(&raw, 0), here.part(&raw, 1)), (None, None));
}

/// Goal: a large transaction waits for the servers that write it while it arrives, and not for ever.
#[test]
fn the_end_of_a_large_transaction_waits_for_those_who_write_it() {
    let (txn, raw) = large(1, 1);
    let sizes = PartSizes { whole_max: 10, part: PART, under_way: 1 << 20, written_early: 0 };
    let arrived = || {
        let mut arriving = Arriving::new(txn);
        for (at, from) in [(1, 0), (2, PART)] {
            let part = Entry::encode_part(&txn, raw.len(), from, &raw[from..raw.len().min(from + PART)]);
            assert!(arriving.add(LogIndex(at), &Entry::decode(part).unwrap()));
        }
        arriving
    };
    let note = |arriving: &mut Arriving, node| {
        let notice = arriving.encode_written(NodeId(node));
        arriving.note_written(&Entry::decode(notice).unwrap());
    };
    let whole = [Entry::encode_whole(&txn, crc32fast::hash(&raw), &[LogIndex(1), LogIndex(2)])];
    let (ms, servers) = (Duration::from_millis, [NodeId(2), NodeId(3)]);

    let (mut arriving, mut progress) = (arrived(), Progress::new(&sizes, None));
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(500), &servers).is_empty());
    note(&mut arriving, 3);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(600), &servers).is_empty());
    note(&mut arriving, 2);
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(700), &servers), whole);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(800), &servers).is_empty(), "once is enough");
    progress.again();
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(900), &servers), whole);

    // Those who say nothing are waited for from when all is there, however often it is proposed again.
    let (arriving, mut progress) = (arrived(), Progress::new(&sizes, None));
    assert_eq!(progress.next(&txn, &raw, None, &sizes, ms(0), &servers).len(), 2);
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(5_000), &servers).is_empty());
    progress.again();
    assert!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(5_999), &servers).is_empty());
    assert_eq!(progress.late, []);
    assert_eq!(progress.next(&txn, &raw, Some(&arriving), &sizes, ms(6_000), &servers), whole);
    assert_eq!(progress.late, servers);

    // Nobody is waited for who is away, nor for what is too small or has been proposed before.
    let mut progress = Progress::new(&sizes, Some(raw.len()));
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &servers), whole);
    let mut progress = Progress::new(&sizes, None);
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &[]), whole);
    let (mut progress, sizes) = (Progress::new(&sizes, None), PartSizes { written_early: raw.len() + 1, ..sizes });
    assert_eq!(progress.next(&txn, &raw, Some(&arrived()), &sizes, ms(0), &servers), whole);
}

/// Goal: who was waited for in vain delays no other transaction for a minute.  Method: node 2 never says anything.
#[test]
fn who_was_waited_for_in_vain_is_not_waited_for_again() {
    let mut here = Here::new();
    here.opens_as(ConnId(3), Role::Backend, ZERO, Arc::default());
    for (n, waits) in [(1, true), (2, false), (3, true)] {
        let (txn, raw) = large(1, n);
        let propose = AgentEvent::Propose { conn: ConnId(3), txn, raw: raw.clone(), permit: None };
        assert_eq!(here.handle(propose), None);
        let parts = here.parts();
        assert_eq!(parts.len(), 2);
        parts.into_iter().for_each(|part| assert_eq!(here.decides(part), None));
        let mut whole = here.parts();
        if waits {
            assert_eq!(whole, [] as [Bytes; 0]);
            here.now += Duration::from_secs(1);
            whole = here.parts();
        }
        here.decides(whole.remove(0));
        here.shows(3 * n);
        here.tick += 2_999 * u64::from(n > 1) + 1;
    }
}

/// Goal: nobody is waited for while the server here does not get on, for which the session that waits may be the
/// reason. Method: nothing happens for long; then something is committed, and the server shows it or not.
#[test]
fn a_server_that_does_not_get_on_waits_for_nobody() {
    for gets_on in [true, false] {
        let mut here = Here::new();
        here.opens_as(ConnId(3), Role::Backend, ZERO, Arc::default());
        here.decides(Entry::encode(&large(2, 1).0, &[], b""));
        here.shows(1);
        let (txn, raw) = large(1, 1);
        here.handle(AgentEvent::Propose { conn: ConnId(3), txn, raw, permit: None });
        here.parts().into_iter().for_each(|part| assert_eq!(here.decides(part), None));
        here.tick += 1_000;
        assert_eq!(here.parts().len(), 0);
        here.decides(Entry::encode(&large(2, 2).0, &[], b""));
        assert_eq!(here.parts().len(), 0, "it has had no time");
        here.tick += 9;
        assert_eq!(here.parts().len(), 0);
        if gets_on {
            here.shows(4);
        }
        here.tick += 1;
        assert_eq!(here.parts().len(), usize::from(!gets_on));
    }
}

/// Goal: a large transaction that has lost holds up nobody until its last part has travelled.
///
/// Method: between two of its parts another node commits a key of it, or another key; the server here does not get on,
/// or it does.  There are few of its keys or many.
#[test]
fn what_loses_while_it_travels_is_told_if_the_server_here_waits() {
    let key = |hash| Key { hash, mode: LockMode::Update, base: Base(0) };
    for many in [false, true] {
        for (taken, gets_on, is_told) in [(7, false, true), (8, false, false), (7, true, false)] {
            let (mut here, wire) = (Here::new(), Arc::<Wire>::default());
            here.opens_as(ConnId(3), Role::Backend, ZERO, wire.clone());
            said(&wire);
            let txn = large(1, 1).0;
            let keys: Vec<Key> = (1_000..if many { 2_000 } else { 1_001 }).chain([7]).map(key).collect();
            let raw = Entry::encode(&txn, &keys, &[1; 2 * PART]);
            let propose = AgentEvent::Propose { conn: ConnId(3), txn, raw: raw.clone(), permit: None };
            assert_eq!(here.handle(propose), None);
            let parts = here.parts();
            here.decides(parts[0].clone());
            here.decides(Entry::encode(&large(2, 1).0, &[key(taken)], b""));
            assert_eq!((here.parts(), said(&wire)), (vec![], vec![]), "it may get on");
            if gets_on {
                here.shows(2);
            }
            here.tick += 10;
            let ends = match many {
                false => Entry::encode(&txn, &keys, b""),
                true => Entry::encode_cancel(&txn),
            };
            assert_eq!(here.parts(), if is_told { vec![ends.clone()] } else { vec![] });
            if !is_told {
                assert_eq!(said(&wire), []);
                continue;
            }
            let told = said(&wire);
            let [Some(ToPostgres::Verdict(verdict))] = &told[..] else { panic!("{told:?}") };
            let place = (verdict.at, verdict.other, verdict.key, verdict.region.0.as_str());
            assert_eq!((verdict.txn, verdict.outcome), (txn, VerdictOutcome::Conflict));
            assert_eq!(place, (ZERO, LogIndex(2), keys.len() as u32 - 1, "r2"));
            assert!(!here.router.is_pending(&txn));
            // The rest of it is on its way; or the end is lost, and asked for again.
            here.decides(parts[1].clone());
            assert_eq!(here.parts(), [] as [Bytes; 0]);
            here.tick += 100;
            assert_eq!(here.parts(), [Entry::encode_cancel(&txn)]);
            here.decides(ends);
            assert!(matches!(here.certifier.outcome(&txn), Outcome::Decided { verdict, .. } if !verdict.commits()));
            here.tick += 100;
            assert_eq!((here.parts(), here.router.has_large()), (vec![], false));
            assert_eq!(said(&wire), []);
        }
    }
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
/// data folder is removed.
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
        let mut router = Router::new(NodeId(1), "r".into(), PartSizes::default(), LogIndex::ZERO, &[], 0);
        let mut opens = |conn, index, committed_indexes: &mut CommittedIndexes| {
            let mut context = at_start(&certifier, committed_indexes, &members);
            let (at, wire) = (LogIndex(index), Arc::new(Wire::default()));
            let role = Role::ApplyWorker;
            let hello = Hello { version: VERSION, role, pid: 1, incarnation: 1, applied: at, durable: at };
            router.handle(AgentEvent::Opened { conn: ConnId(conn), hello, outbox: wire }, &mut context).unwrap();
            (router.needs_rebuild(), router.stuck().cloned())
        };
        if let Some(index) = said_before {
            assert_eq!(opens(1, index, &mut committed_indexes), (false, None));
        }
        // As another node's checkpoint has it.
        (5..=6).for_each(|index| committed_indexes.push(LogIndex(index)));
        committed_indexes.forget_to(LogIndex(6));
        let (needs_rebuild, stuck) = opens(2, says, &mut committed_indexes);
        assert_eq!((needs_rebuild, stuck.is_some()), (!forgot, forgot), "said {said_before:?}, says {says}");
        if let Some((at, why)) = stuck {
            assert!(at == LogIndex(6) && why.contains("below what it had safe on disk"), "{at}: {why}");
        }
    }
}
