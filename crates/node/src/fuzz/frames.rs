//! What comes through sockets, from peers and from PostgreSQL, and what the log contains.

use super::{member, txn};
use crate::join::JoinReply;
use crate::transport::frame::{self, Frame, FRAME_BYTES_MAX, HELLO_BYTES_MAX};
use crate::transport::Speaks;
use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{self, take_frame, EntryFlags, Failure, FromPostgres, Rehearsal, Role, ToPostgres};
use onetrip_core::entry::EntryKind;
use onetrip_core::members::{Change, Command, Token};
use onetrip_core::row_locks::{LockAsk, LockSaid};
use onetrip_core::wire::Reader;
use onetrip_core::{Entry, Key, Level, LockMode, LogIndex, MemberRole, Members, NodeId};

/// Frames as a node reads them before and after authentication, with different limits on their size.
pub(super) fn peer_frames(bytes: &[u8]) {
    for max in [HELLO_BYTES_MAX, FRAME_BYTES_MAX] {
        let mut buf = BytesMut::from(bytes);
        while let Ok(Some(frame)) = Frame::take(&mut buf, max) {
            let back = Frame::take(&mut BytesMut::from(&frame.encode()[..]), FRAME_BYTES_MAX);
            match (back, &frame) {
                // Compared by their debug text: to protobuf's `==`, unknown fields that a later part of the bytes has
                // replaced differ from none.
                (Ok(Some(Frame::Raft(back))), Frame::Raft(message)) => {
                    assert_eq!(format!("{back:?}"), format!("{message:?}"));
                }
                // A version that this release does not speak is read, so that it can say so, and never written.
                (_, Frame::Hello(hello)) if hello.speaks.most < Speaks::OWN.least => {}
                (back, frame) => assert_eq!(back.ok().flatten().as_ref(), Some(frame)),
            }
            if let Frame::Relayed(relayed) = &frame {
                let _ = (relayed.ends(), relayed.open(&frame::RELAY_KEY));
            }
            if let Frame::Joined { head, .. } = &frame {
                let _ = JoinReply::decode(head);
            }
        }
    }
}

pub(super) fn peer_frame_seeds() -> Vec<Vec<u8>> {
    frame::examples().iter().map(|frame| frame.encode().to_vec()).collect()
}

pub(super) fn mend_peer_frame(bytes: &mut [u8]) {
    if bytes.len() > 8 {
        let length = (bytes.len() - 8) as u32;
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

pub(super) fn agent_frames(bytes: &[u8]) {
    let mut buf = BytesMut::from(bytes);
    while let Ok(Some(frame)) = take_frame(&mut buf) {
        if let Ok(read) = FromPostgres::decode(frame.clone()) {
            assert_eq!(FromPostgres::decode(body_of(&read.encode())).ok().as_ref(), Some(&read));
            if let FromPostgres::Propose(raw) = read {
                entries(&raw);
            }
        }
        if let Ok(read) = ToPostgres::decode(frame) {
            assert_eq!(ToPostgres::decode(body_of(&read.encode())).ok().as_ref(), Some(&read));
        }
    }
}

fn body_of(frame: &[u8]) -> Bytes {
    take_frame(&mut BytesMut::from(frame)).ok().flatten().expect("a whole frame")
}

fn rehearsal() -> Rehearsal {
    Rehearsal {
        base: LogIndex(7),
        timeout_ms: 2000,
        lock_timeout_ms: 100,
        write_set: Bytes::from_static(b"operations"),
    }
}

fn failure() -> Failure {
    Failure { at: LogIndex(8), sqlstate: "42704".into(), message: "no such role".into(), ..Default::default() }
}

pub(super) fn agent_frame_seeds() -> Vec<Vec<u8>> {
    let hello = agent::Hello {
        version: agent::VERSION,
        role: Role::ApplyWorker,
        pid: 1,
        incarnation: 2,
        applied: LogIndex(3),
        durable: LogIndex(3),
    };
    let (at, durable) = (LogIndex(5), LogIndex(4));
    let welcome = ToPostgres::Welcome { version: 1, node: NodeId(1), region: "r".into(), committed: at };
    let entry = ToPostgres::Entry {
        at,
        previous: durable,
        flags: EntryFlags::default(),
        region: "r".into(),
        txn: txn(),
        write_set: Bytes::from_static(b"rows"),
    };
    vec![
        FromPostgres::Hello(hello).encode().to_vec(),
        FromPostgres::Propose(entry_seeds().remove(0).into()).encode().to_vec(),
        FromPostgres::Outcome(txn()).encode().to_vec(),
        FromPostgres::Position { applied: at, durable }.encode().to_vec(),
        FromPostgres::Stuck { at, message: "no such role".into() }.encode().to_vec(),
        FromPostgres::Rehearse { txn: txn(), rehearsal: rehearsal() }.encode().to_vec(),
        ToPostgres::Rehearsed { txn: txn(), failure: Some(("r".into(), failure())), untried: "s".into() }
            .encode()
            .to_vec(),
        FromPostgres::Await { at }.encode().to_vec(),
        FromPostgres::Lock {
            ask: LockAsk { txn: txn(), number: 4, waits: true, keys: vec![(9, LockMode::Update)] },
            table: "public.hot".into(),
        }
        .encode()
        .to_vec(),
        FromPostgres::Unlock { txn: txn(), from: 4 }.encode().to_vec(),
        ToPostgres::Locked { number: 4, said: LockSaid::Busy { other: txn() }, asked: true, region: "s".into() }
            .encode()
            .to_vec(),
        ToPostgres::Shown { at, missing: "s".into() }.encode().to_vec(),
        FromPostgres::Look { number: 8 }.encode().to_vec(),
        ToPostgres::Seen { number: 8, cluster: Bytes::from_static(b"{}") }.encode().to_vec(),
        welcome.encode().to_vec(),
        entry.encode().to_vec(),
    ]
}

pub(super) fn entries(bytes: &[u8]) {
    let raw = Bytes::copy_from_slice(bytes);
    let _ = Entry::peek_txn(&raw);
    if let Ok(entry) = Entry::decode(raw.clone()) {
        let keys: Vec<Key> = entry.keys().collect();
        assert_eq!(keys.len(), entry.key_count());
        // What is only read may stand anywhere among the keys.
        if entry.kind == EntryKind::Transaction && !entry.has_reads() {
            assert_eq!(Entry::encode(&entry.txn, &keys, &entry.write_set), raw);
        }
        let _ = (entry.leaves_out(), entry.part(), entry.whole());
        let _ = crate::write_set::lines(entry.write_set, |_| None);
    }
}

pub(super) fn entry_seeds() -> Vec<Vec<u8>> {
    let key = |hash| Key { hash, mode: LockMode::Update, base: onetrip_core::Base(3) };
    vec![Entry::encode(&txn(), &[key(1), key(2)], b"a write set").to_vec()]
}

/// The write set of an entry, as `onetrip skip` prints it.
pub(super) fn write_sets(bytes: &[u8]) {
    let _ = crate::write_set::lines(Bytes::copy_from_slice(bytes), |_| None);
}

pub(super) fn write_set_seeds() -> Vec<Vec<u8>> {
    vec![crate::write_set::example()]
}

/// Takes the bytes as one command; and as several, each behind its length in one byte, which are carried out one after
/// another.
pub(super) fn commands(bytes: &[u8]) {
    if let Ok(command) = Command::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(Command::decode(command.encode()).ok().as_ref(), Some(&command));
        let mut members = Members::bootstrap(vec![member()], "r".into(), 8);
        let _ = members.apply(&command);
    }
    let (mut members, mut rest) = (Members::bootstrap(vec![member()], "r".into(), 8), bytes);
    while let Some((raw, behind)) = rest.split_first().and_then(|(n, rest)| rest.split_at_checked(usize::from(*n))) {
        rest = behind;
        let Ok(command) = Command::decode(Bytes::copy_from_slice(raw)) else { continue };
        let command = Command { expected_version: members.version, ..command };
        let is_joint = members.steps(&command.change).len() > 1;
        let before = members.clone();
        match members.apply(&command) {
            // Nothing else changes the table before the joint configuration is left.
            Ok(()) if is_joint => members.left_joint(),
            Ok(()) => {}
            Err(_) => assert_eq!(members, before),
        }
        check_members(&members);
    }
}

fn check_members(members: &Members) {
    let mut raw = BytesMut::new();
    members.put(&mut raw);
    let mut reader = Reader::new("table of members", raw.freeze());
    // The level in force is not among these bytes: a checkpoint has it.
    let read = Members::take(&mut reader).map(|read| Members { level: members.level, ..read });
    assert_eq!(read.ok().as_ref(), Some(members));
    assert_eq!(reader.left(), 0);
    assert!(members.members.iter().any(|m| members.is_data_voter(m.id)), "no voter with PostgreSQL");
    assert!(members.members.iter().any(|m| m.role == MemberRole::Voter && m.region == members.preferred_leader));
    for (n, one) in members.members.iter().enumerate() {
        for other in &members.members[n + 1..] {
            assert!(one.address != other.address || [one.replaces, other.replaces].iter().any(Option::is_some));
            assert!(one.slot.is_none() || one.slot != other.slot, "two members with one slot");
        }
    }
}

pub(super) fn command_seeds() -> Vec<Vec<u8>> {
    let token = Token { hash: [1; 32], role: MemberRole::Witness, replaces: Some(NodeId(1)), expires_unix_s: 9 };
    let changes = [
        Change::AddToken(token),
        Change::Join { token: [1; 32], attempt: 1, asked_unix_s: 9, region: "r".into(), address: "host:1".into() },
        Change::Promote(NodeId(1)),
        Change::PreferLeader("r".into()),
        Change::LeaseRegions(vec!["r".into()]),
        Change::MoveLeader("r".into()),
        Change::Remove(NodeId(2)),
        Change::RaiseLevel(Level(1)),
    ];
    let commands = changes.map(|change| Command { expected_version: 0, change }.encode().to_vec());
    let all = commands.iter().flat_map(|command| [&[command.len() as u8], &command[..]].concat()).collect();
    [commands.to_vec(), vec![all]].concat()
}
