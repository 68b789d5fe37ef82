//! What reads bytes from outside, as targets for a fuzzer: each takes any bytes, and must neither panic nor use memory out
//! of proportion to what it got.
//!
//! `crates/lab/tests/fuzz.rs` runs them on arbitrary bytes and on damaged real ones; `cargo fuzz` can call the same
//! functions.

use crate::archive::{Identity, Reader, Writer};
use crate::config::NodeConfig;
use crate::disk::segment::{Previous, HEAD_BYTES};
use crate::disk::RaftLog;
use crate::facts::Facts;
use crate::join::{JoinReply, JoinToken};
use crate::tls::{Authority, Issued, Tls};
use crate::transport::frame::{
    Channel, Frame, Hello, HelloReply, Join, Purpose, FRAME_BYTES_MAX, HELLO_BYTES_MAX, VERSION,
};
use crate::transport::{Answer, LinkSettings};
use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{self, take_frame, EntryFlags, Failure, FromPostgres, Rehearsal, Role, ToPostgres};
use onetrip_core::certifier::{Certifier, CommittedIndexes, Limits};
use onetrip_core::checkpoint::{self, Checkpoint, Conf};
use onetrip_core::consensus::Message;
use onetrip_core::members::{Change, Command, Token};
use onetrip_core::{Entry, Key, LockMode, LogIndex, Member, MemberRole, Members, NodeId, Term, TxnId};
use raft::eraftpb::{Entry as RaftEntry, HardState};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Real inputs, to begin from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes checksums right again after damage, so that what lies behind them is reached too.
    pub mend: Option<fn(&mut [u8])>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "peer frames", run: peer_frames, seeds: peer_frame_seeds, mend: Some(mend_peer_frame) },
    Target { name: "agent frames", run: agent_frames, seeds: agent_frame_seeds, mend: None },
    Target { name: "entries", run: entries, seeds: entry_seeds, mend: None },
    Target { name: "checkpoints", run: checkpoints, seeds: checkpoint_seeds, mend: Some(mend_checkpoint) },
    Target { name: "commands", run: commands, seeds: command_seeds, mend: None },
    Target { name: "join tokens", run: join_token, seeds: join_token_seeds, mend: None },
    Target { name: "join replies", run: join_reply, seeds: join_reply_seeds, mend: None },
    Target { name: "certificates", run: certificates, seeds: certificate_seeds, mend: None },
    Target { name: "node.toml", run: node_toml, seeds: node_toml_seeds, mend: None },
    Target {
        name: "link settings",
        run: link_settings,
        seeds: || vec![br#"{"loss":0.5,"cut":true}"#.to_vec()],
        mend: None,
    },
    Target { name: "log files", run: log_files, seeds: log_file_seeds, mend: Some(mend_log_file) },
    Target { name: "archive files", run: archive_files, seeds: archive_file_seeds, mend: Some(mend_log_file) },
];

/// Before and after authentication.
fn peer_frames(bytes: &[u8]) {
    for max in [HELLO_BYTES_MAX, FRAME_BYTES_MAX] {
        let mut buf = BytesMut::from(bytes);
        while let Ok(Some(frame)) = Frame::take(&mut buf, max) {
            if let Frame::Joined { head, .. } = &frame {
                let _ = JoinReply::decode(head);
            }
        }
    }
}

fn peer_frame_seeds() -> Vec<Vec<u8>> {
    let alike = [("byte order".to_string(), "little-endian".to_string())].into();
    let facts = Facts { version: 15, alike };
    let hello = |purpose| Hello {
        version: VERSION,
        cluster: "c".into(),
        beginning: 7,
        from: NodeId(1),
        region: "r".into(),
        address: "h:1".into(),
        to: NodeId(2),
        purpose,
        postgres: (purpose == Purpose::Postgres).then(|| facts.clone()),
    };
    let mut message = Message { from: 1, to: 2, term: 3, index: 4, ..Default::default() };
    for i in 0..3u64 {
        let data = Bytes::from(vec![i as u8; 40]);
        message.mut_entries().push(RaftEntry { data, index: i, term: 1, ..Default::default() });
    }
    let mut snapshot = Message { from: 1, to: 2, ..Default::default() };
    snapshot.mut_snapshot().set_data(Bytes::from_static(b"a checkpoint"));
    snapshot.mut_snapshot().mut_metadata().mut_conf_state().set_voters(vec![1, 2, 3]);
    let request =
        crate::join::JoinRequest { region: "r".into(), address: "host:7000".into(), postgres: Some(facts.clone()) };
    let frames = [
        Frame::Hello(hello(Purpose::Frames(Channel::Bulk))),
        Frame::Hello(hello(Purpose::Postgres)),
        Frame::HelloReply(HelloReply::Refused("why".into())),
        Frame::Join(Join { version: VERSION, secret: [7; 32], request }),
        Frame::JoinRefused("no".into()),
        Frame::Joined { head: Bytes::from_static(b"{\"member\":1}"), checkpoint: Bytes::from_static(b"state") },
        Frame::Raft(Box::new(message)),
        Frame::Raft(Box::new(snapshot)),
        Frame::Ping { sent_ns: 1 },
        Frame::Rehearse { id: 1, rehearsal: rehearsal() },
        Frame::Rehearsed { id: 1, answer: Answer::Fails(failure()) },
    ];
    frames.iter().map(|f| f.encode().to_vec()).collect()
}

fn mend_peer_frame(bytes: &mut [u8]) {
    if bytes.len() > 8 {
        let length = (bytes.len() - 8) as u32;
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn agent_frames(bytes: &[u8]) {
    let mut buf = BytesMut::from(bytes);
    while let Ok(Some(frame)) = take_frame(&mut buf) {
        if let Ok(FromPostgres::Propose(raw)) = FromPostgres::decode(frame.clone()) {
            entries(&raw);
        }
        let _ = ToPostgres::decode(frame);
    }
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

fn txn() -> TxnId {
    TxnId { node: NodeId(1), incarnation: 7, sequence: 9 }
}

fn agent_frame_seeds() -> Vec<Vec<u8>> {
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
        welcome.encode().to_vec(),
        entry.encode().to_vec(),
    ]
}

fn entries(bytes: &[u8]) {
    let raw = Bytes::copy_from_slice(bytes);
    let _ = Entry::peek_txn(&raw);
    if let Ok(entry) = Entry::decode(raw) {
        assert_eq!(entry.keys().count(), entry.key_count());
        let _ = entry.leaves_out();
        let _ = crate::write_set::lines(entry.write_set);
    }
}

fn entry_seeds() -> Vec<Vec<u8>> {
    let key = |hash| Key { hash, mode: LockMode::Update, base: onetrip_core::Base(3) };
    vec![Entry::encode(&txn(), &[key(1), key(2)], b"a write set").to_vec()]
}

/// From disk, from a leader, with a join reply.
fn checkpoints(bytes: &[u8]) {
    let raw = Bytes::copy_from_slice(bytes);
    let _ = checkpoint::peek(&raw);
    let _ = Checkpoint::decode(raw, Limits::default());
}

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let mut certifier = Certifier::new(Limits::default());
    for index in 1..20 {
        let key = Key { hash: index % 5, mode: LockMode::Update, base: onetrip_core::Base(index - 1) };
        let raw = Entry::encode(&TxnId { sequence: index, ..txn() }, &[key], b"rows");
        let entry = Entry::decode(raw).expect("just made");
        certifier.certify(LogIndex(index), &entry).expect("in order");
    }
    let members = Members::bootstrap(vec![member()], "r".into(), 8);
    let conf = Conf { voters: vec![NodeId(1)], ..Default::default() };
    vec![checkpoint::encode(Term(3), &conf, &members, &certifier, &CommittedIndexes::default()).to_vec()]
}

/// CRC-32, last, of all but the mark of 8 bytes.
fn mend_checkpoint(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(4).filter(|end| *end >= 8) {
        let crc = crc32fast::hash(&bytes[8..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn commands(bytes: &[u8]) {
    if let Ok(command) = Command::decode(Bytes::copy_from_slice(bytes)) {
        let mut members = Members::bootstrap(vec![member()], "r".into(), 8);
        let _ = members.apply(&command);
    }
}

fn command_seeds() -> Vec<Vec<u8>> {
    let token = Token { hash: [1; 32], role: MemberRole::Witness, replaces: Some(NodeId(1)), expires_unix_s: 9 };
    let changes = [
        Change::AddToken(token),
        Change::Join { token: [1; 32], region: "r".into(), address: "host:1".into() },
        Change::Promote(NodeId(1)),
        Change::PreferLeader("r".into()),
    ];
    changes.map(|change| Command { expected_version: 0, change }.encode().to_vec()).to_vec()
}

fn member() -> Member {
    Member {
        id: NodeId(1),
        region: "r".into(),
        address: "host:7000".into(),
        role: MemberRole::Voter,
        voter: true,
        slot: Some(0),
        replaces: None,
        joined_with: Some([3; 32]),
    }
}

fn join_token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
}

fn join_token_seeds() -> Vec<Vec<u8>> {
    let token = |authority| JoinToken { secret: [9; 32], authority }.to_string().into_bytes();
    vec![token(None), token(Some([200; 32]))]
}

fn join_reply(bytes: &[u8]) {
    let _ = JoinReply::decode(bytes);
}

fn join_reply_seeds() -> Vec<Vec<u8>> {
    let reply = JoinReply {
        members: Members::bootstrap(vec![member()], "r".into(), 8),
        member: member(),
        cluster: "c".into(),
        settings: crate::join::ClusterSettings {
            window_entries: 1,
            sequence_stride: 8,
            max_entry_bytes: 1 << 20,
            database: Some("onetrip".into()),
        },
        tls: None,
        checkpoint: Bytes::new(),
    };
    vec![reply.encode().to_vec()]
}

/// Of a cluster "test" that never was: certificate and key.
fn authority() -> &'static (String, String) {
    static MADE: OnceLock<(String, String)> = OnceLock::new();
    MADE.get_or_init(|| {
        let authority = Authority::new("test").expect("there are random bytes");
        (authority.certificate_pem().to_owned(), authority.key_pem())
    })
}

/// Files in `tls/`, and what a join reply brings: half for the certificate, half for the key.
fn certificates(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let half = text.char_indices().map(|(i, _)| i).nth(text.chars().count() / 2).unwrap_or(0);
    let (certificate, key) = text.split_at(half);
    let _ = Authority::from_pem("test", certificate, key);
    let (ca, ca_key) = authority();
    let authority = Authority::from_pem("test", ca, ca_key).expect("its own");
    let issued = Issued { certificate: certificate.to_owned(), key: key.to_owned() };
    let _ = Tls::new(authority, &issued, "test", NodeId(1));
}

fn certificate_seeds() -> Vec<Vec<u8>> {
    let (ca, ca_key) = authority();
    let issued = Authority::from_pem("test", ca, ca_key).and_then(|a| a.issue(NodeId(1))).expect("its own");
    vec![[ca.as_str(), ca_key].concat().into_bytes(), [issued.certificate, issued.key].concat().into_bytes()]
}

fn node_toml(bytes: &[u8]) {
    let _ = NodeConfig::parse(&String::from_utf8_lossy(bytes));
}

fn node_toml_seeds() -> Vec<Vec<u8>> {
    let text = "cluster = \"test\"\nnode = 1\nregion = \"a\"\nlisten = \"127.0.0.1:7001\"\nhttp = \"127.0.0.1:8001\"\n\
                preferred_leader = \"a\"\nlab = true\ntls = false\n[postgres]\nport = 5433\nbin_dir = \"/bin\"\n\
                [one_way_ms]\na = 5.0\n[[member]]\nid = 1\nregion = \"a\"\naddress = \"127.0.0.1:7001\"\n";
    vec![text.as_bytes().to_vec()]
}

fn link_settings(bytes: &[u8]) {
    if let Ok(settings) = serde_json::from_slice::<LinkSettings>(bytes) {
        let _ = settings.validate();
    }
}

const FIRST_SEGMENT: u64 = 0;

/// The bytes as a log's only file: it is refused, or every entry that it says to have can be read.
fn log_files(bytes: &[u8]) {
    in_log_folder(|dir| {
        if std::fs::write(crate::disk::segment::path_of(dir, FIRST_SEGMENT), bytes).is_err() {
            return;
        }
        let read = |log: RaftLog| (log.first_index().0..=log.last_index().0).for_each(|i| drop(log.read(LogIndex(i))));
        let _ = RaftLog::open_to_read(dir, None).map(read);
        // Opening for writing repairs what a crash has cut short.
        let _ = RaftLog::open(dir).map(read);
    });
}

fn log_file_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_log_folder(|dir| {
        let mut log = RaftLog::open(dir).expect("an empty folder");
        for index in 1..6 {
            let entry = RaftEntry { index, term: 1, data: Bytes::from(vec![index as u8; 30]), ..Default::default() };
            let hard_state = HardState { term: 1, vote: 1, commit: index - 1, ..Default::default() };
            log.append(&[entry], Some(&hard_state), true).expect("there is room");
        }
        drop(log);
        seeds.push(records_of(dir, FIRST_SEGMENT));
    });
    seeds
}

/// The bytes as an archive's only file: what a restore reads, and what the node looks at before it goes on writing.
fn archive_files(bytes: &[u8]) {
    in_log_folder(|dir| {
        let empty = Writer::open(dir, &archive_identity()).is_ok();
        if !empty || std::fs::write(crate::disk::segment::path_of(dir, 1), bytes).is_err() {
            return;
        }
        if let Ok(mut reader) = Reader::open(dir) {
            if let Ok((last, _)) = reader.end() {
                (1..=last.0).for_each(|i| drop(reader.entry(LogIndex(i))));
            }
        }
        let _ = Writer::open(dir, &archive_identity());
    });
}

fn archive_file_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_log_folder(|dir| {
        let mut writer = Writer::open(dir, &archive_identity()).expect("an empty folder");
        for index in 1..6 {
            let entry = RaftEntry { index, term: 1, data: Bytes::from(vec![index as u8; 30]), ..Default::default() };
            writer.append(Previous::new(index - 1, 1), index, &[entry]).expect("there is room");
        }
        writer.close().expect("there is room");
        seeds.push(records_of(dir, 1));
    });
    seeds
}

fn archive_identity() -> Identity {
    Identity { format: 1, cluster: "c".into(), node: NodeId(1), region: "r".into() }
}

/// A segment with less of the space set aside, which reads as zeros.
fn records_of(dir: &Path, number: u64) -> Vec<u8> {
    let mut bytes = std::fs::read(crate::disk::segment::path_of(dir, number)).expect("just written");
    let records = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    bytes.resize(records + 64, 0);
    bytes
}

fn mend_log_file(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(record) = bytes.get_mut(at..).filter(|r| r.len() > HEAD_BYTES) {
        let length = u32::from_le_bytes([record[4], record[5], record[6], record[7]]) as usize;
        let Some(body) = record.get(HEAD_BYTES..HEAD_BYTES + length) else { return };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&record[4..16]);
        crc.update(body);
        record[16..20].copy_from_slice(&crc.finalize().to_le_bytes());
        at += HEAD_BYTES + length;
    }
}

/// An empty folder, in memory where the system has one there, for the time of the call.
fn in_log_folder(work: impl FnOnce(&Path)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = base.join(format!("onetrip-fuzz-{}-{number}", std::process::id()));
    if std::fs::create_dir(&dir).is_ok() {
        work(&dir);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
