//! What is written to disk or sent to another release stays as it is: entries, commands and checkpoints against stored
//! bytes (`testdata/formats`).

mod stored;

use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::{
    Base, Change, Checkpoint, Command, Entry, EntryKind, Joined, Key, Level, LockMode, LogIndex, Member, MemberRole,
    Members, NodeId, PreferredLeader, RegionId, Term, Token, TxnId,
};

const TXN: TxnId = TxnId { node: NodeId(2), incarnation: 0x1122_3344_5566_7788, sequence: 77 };

fn keys() -> Vec<Key> {
    LockMode::ALL.into_iter().map(|mode| Key { hash: mode as u64 + 7, mode, base: Base(0) }).collect()
}

fn named(name: impl ToString, bytes: &[u8]) -> (String, Vec<u8>) {
    (name.to_string(), bytes.to_vec())
}

fn entries() -> Vec<(String, Vec<u8>)> {
    let transaction = Entry::encode(&TXN, &keys(), b"rows");
    let skip = Entry::decode(transaction.clone()).unwrap().encode_skip(LogIndex(17));
    let remove = Command { expected_version: 9, change: Change::Remove(NodeId(3)) };
    vec![
        named("transaction", &transaction),
        named("serializable", &Entry::encode_serializable(EntryKind::Transaction, &TXN, &keys(), &keys(), b"rows")),
        named("transaction without keys", &Entry::encode(&TXN, &[], b"")),
        named("command", &Entry::encode_command(&remove)),
        named("cancel", &Entry::encode_cancel(&TXN)),
        named("incarnation", &Entry::encode_incarnation(NodeId(2), 9, 8)),
        named("skip", &skip),
        named("part", &Entry::encode_part(&TXN, 1000, 3, b"bytes")),
        named("whole", &Entry::encode_whole(&TXN, 0x0102_0304, &[LogIndex(5), LogIndex(9)])),
        named("prepare", &Entry::encode_prepare(&TXN, &keys(), b"rows")),
        named("commit prepared", &Entry::encode_end(&TXN, true, 7, Base(5), b"")),
        named("rollback prepared", &Entry::encode_end(&TXN, false, 7, Base(5), b"")),
    ]
}

#[test]
fn entries_are_as_they_were() {
    stored::compare("entries", &entries());
    let all = stored::read("entries");
    let mut kinds = Vec::new();
    for (name, bytes) in all {
        let entry = Entry::decode(bytes.clone().into()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(entry.encoded(), bytes, "{name}");
        kinds.push(entry.kind);
    }
    let missing = (0..=u8::MAX).filter_map(EntryKind::from_u8).find(|kind| !kinds.contains(kind));
    assert_eq!(missing, None, "a kind without stored bytes");
}

fn token(role: MemberRole, replaces: Option<NodeId>) -> Token {
    Token { hash: [7; 32], role, replaces, expires_unix_s: 1_800_000_000 }
}

fn commands() -> Vec<(String, Vec<u8>)> {
    let join = Change::Join {
        token: [7; 32],
        attempt: 11,
        asked_unix_s: 1_790_000_000,
        region: "eu".into(),
        address: "eu.example:7100".into(),
    };
    let changes = vec![
        ("token for a voter", Change::AddToken(token(MemberRole::Voter, Some(NodeId(2))))),
        ("token for a witness", Change::AddToken(token(MemberRole::Witness, None))),
        ("token for a replica", Change::AddToken(token(MemberRole::Replica, None))),
        ("join", join),
        ("promote", Change::Promote(NodeId(4))),
        ("remove", Change::Remove(NodeId(3))),
        ("prefer auto", Change::PreferLeader(PreferredLeader::Auto)),
        ("prefer a region", Change::PreferLeader(PreferredLeader::Region("eu".into()))),
        ("move leader", Change::MoveLeader("eu".into())),
        ("lease regions", Change::LeaseRegions(vec!["eu".into(), "us".into()])),
        ("raise level", Change::RaiseLevel(Level(1))),
    ];
    let encode = |(name, change)| named(name, &Command { expected_version: 9, change }.encode());
    changes.into_iter().map(encode).collect()
}

#[test]
fn commands_are_as_they_were() {
    stored::compare("commands", &commands());
    let mut kinds = Vec::new();
    for (name, bytes) in stored::read("commands") {
        let command = Command::decode(bytes.clone().into()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(command.encode(), bytes, "{name}");
        kinds.push(bytes[8]);
    }
    for kind in (0..=u8::MAX).filter(|kind| !kinds.contains(kind)) {
        let raw: Vec<u8> = [[0; 8].as_slice(), &[kind], &[0; 200]].concat();
        let why = Command::decode(raw.into()).unwrap_err().to_string();
        assert!(why.contains("unknown kind"), "kind {kind} has no stored bytes: {why}");
    }
}

/// One in which every part of a checkpoint has something.
fn checkpoint() -> Checkpoint {
    let roles = [MemberRole::Voter, MemberRole::Witness, MemberRole::Voter, MemberRole::Replica];
    let member = |(id, role): (u32, MemberRole)| Member {
        id: NodeId(id),
        region: RegionId(format!("r{id}")),
        address: format!("host{id}:7100"),
        role,
        voter: id < 4 && role.votes(),
        slot: (role == MemberRole::Voter).then_some(id - 1),
        replaces: (id == 3).then_some(NodeId(1)),
        joined: (id > 2).then_some(Joined { token: [id as u8; 32], attempt: 7, expires_unix_s: 8 }),
    };
    let mut members = Members::bootstrap((1..).zip(roles).map(member).collect(), "r1".into(), 8);
    members.version = 5;
    members.lease_regions = vec!["r1".into()];
    members.tokens = vec![token(MemberRole::Voter, Some(NodeId(2))), token(MemberRole::Replica, None)];
    let mut state = Checkpoint::bootstrap(members, Limits::default());
    let txn = |sequence| TxnId { node: NodeId(1), incarnation: 5, sequence };
    let key = |hash, base| Key { hash, mode: LockMode::Update, base: Base(base) };
    let first = Entry::encode(&txn(2), &keys(), b"rows");
    let log = [
        Entry::encode_incarnation(NodeId(1), 4, 0),
        Entry::encode_incarnation(NodeId(1), 5, 4),
        first.clone(),
        Entry::encode_prepare(&txn(3), &[key(70, 2), key(71, 2)], b"rows"),
        // It loses against the one before, and against the first.
        Entry::encode(&txn(4), &[key(71, 2)], b"rows"),
        Entry::encode(&txn(5), &[key(10, 2)], b"rows"),
        Entry::decode(first).unwrap().encode_skip(LogIndex(3)),
        Entry::encode_cancel(&txn(9)),
        Entry::encode_part(&txn(10), 2000, 0, b""),
    ];
    for (index, raw) in (1..).map(LogIndex).zip(log) {
        let entry = Entry::decode(raw).unwrap();
        match entry.kind {
            EntryKind::Part => state.certifier.take_part(index, &entry).unwrap(),
            _ => state.certifier.certify(index, &entry).unwrap(),
        };
    }
    state.committed_indexes.push(LogIndex(3));
    state.term = Term(7);
    state.conf.outgoing = vec![NodeId(1), NodeId(2)];
    state.conf.auto_leave = true;
    state
}

fn comes_back(bytes: Vec<u8>) -> Checkpoint {
    let raw = Bytes::from(bytes);
    let state = Checkpoint::decode(raw.clone(), Limits::default()).unwrap();
    assert_eq!(state.encode(), raw);
    state
}

#[test]
fn checkpoints_are_as_they_were() {
    for (file, level) in [("checkpoint-8", Level(0)), ("checkpoint-9", Level(1))] {
        let mut now = checkpoint();
        now.members.level = level;
        stored::compare(file, &[named("checkpoint", &now.encode())]);
        let then = comes_back(stored::read(file).remove(0).1);
        assert_eq!((then.term, then.index(), &then.members), (now.term, now.index(), &now.members));
        assert_eq!(then.certifier.prepared().len(), 1);
    }
}
