//! Who is told what by the desk, where the simulation would need luck to come by.

// A lock only because the desk shares its wires by `Arc`; there is one thread.
#![allow(clippy::disallowed_types)]

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{take_frame, EntryFlags, Hello, OutcomeState, Role, ToPostgres, VerdictOutcome, VERSION};
use onetrip_core::certifier::{Certifier, History, Limits};
use onetrip_core::desk::{AgentEvent, Books, ConnId, Desk, Log, Outbox};
use onetrip_core::{Entry, Error, LogIndex, Members, NodeId, TxnId};
use std::sync::{Arc, Mutex};

/// Frames, and the end of the connection as `None`.
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

/// Goal: PostgreSQL never shows an entry without those before it.  Method: a backend sends its proposal again after its node
/// has gone on from another node's checkpoint, whose history begins after that entry.
#[test]
fn a_verdict_whose_place_is_not_known_is_not_told() {
    for forgotten in [false, true] {
        let (mut certifier, mut history) = (Certifier::new(Limits::default()), History::default());
        let txn = |sequence| TxnId { node: NodeId(1), incarnation: 1, sequence };
        for sequence in 1..=2 {
            let entry = Entry::decode(Entry::encode(&txn(sequence), &[], b"")).unwrap();
            certifier.certify(LogIndex(sequence), &entry).unwrap();
            history.push(LogIndex(sequence));
        }
        if forgotten {
            history.forget_to(LogIndex(2));
        }
        let members = Members::bootstrap(vec![], "r".into(), 1);
        let mut books = Books { certifier: &certifier, history: &mut history, log: &NoLog, members: &members, tick: 0 };
        let mut desk = Desk::new(NodeId(1), "r".into(), LogIndex::ZERO, &[], 0);
        let (conn, wire, zero) = (ConnId(1), Arc::new(Wire::default()), LogIndex::ZERO);
        let hello =
            Hello { version: VERSION, role: Role::Backend, pid: 1, incarnation: 1, applied: zero, durable: zero };
        desk.handle(AgentEvent::Opened { conn, hello, outbox: wire.clone() }, &mut books).unwrap();
        let raw = Entry::encode(&txn(2), &[], b"");
        let again = AgentEvent::Propose { conn, txn: txn(2), raw, held: None };
        assert!(desk.handle(again, &mut books).unwrap().is_none());
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

/// Goal: PostgreSQL is not left with an entry that is left out.  Method: its worker has been sent one when the log says so; it
/// has to begin anew, and then gets the place of that entry and nothing else.
#[test]
fn what_is_left_out_is_taken_back_from_the_worker() {
    let txn = TxnId { node: NodeId(2), incarnation: 1, sequence: 1 };
    let poison = Entry::decode(Entry::encode(&txn, &[], b"rows")).unwrap();
    let log = TwoEntries([Entry::encode(&txn, &[], b"rows"), poison.encode_skip(LogIndex(1))]);
    let (mut certifier, mut history) = (Certifier::new(Limits::default()), History::default());
    let members = Members::bootstrap(vec![], "r".into(), 1);
    let mut desk = Desk::new(NodeId(1), "r".into(), LogIndex::ZERO, &[], 0);
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
    macro_rules! books {
        () => {
            Books { certifier: &certifier, history: &mut history, log: &log, members: &members, tick: 0 }
        };
    }

    certifier.certify(LogIndex(1), &poison).unwrap();
    history.push(LogIndex(1));
    desk.handle(opened(1), &mut books!()).unwrap();
    assert_eq!(said()[1..], [entry(1, 0, EntryFlags::default(), b"rows")]);

    let skip = Entry::decode(log.0[1].clone()).unwrap();
    let decision = certifier.certify(LogIndex(2), &skip).unwrap();
    history.push(LogIndex(2));
    desk.decided(LogIndex(2), txn, decision, &books!()).unwrap();
    assert_eq!(said(), [None], "the connection ends");

    desk.handle(opened(2), &mut books!()).unwrap();
    let left_out = EntryFlags { left_out: true, leaves_out: false };
    let leaves_out = EntryFlags { left_out: false, leaves_out: true };
    let index_1 = &[1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(said()[1..], [entry(1, 0, left_out, b""), entry(2, 1, leaves_out, index_1)]);
    desk.handle(AgentEvent::Outcome { conn: ConnId(2), txn }, &mut books!()).unwrap();
    assert_eq!(said(), [Some(ToPostgres::OutcomeIs { txn, state: OutcomeState::LeftOut, at: LogIndex(2) })]);
}
