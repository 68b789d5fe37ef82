//! Frames between nodes: u32 length of kind and payload, u32 CRC-32 of both, u8 kind, payload.  Little-endian.
//!
//! The first frame on a connection is `Hello` from the side that dialled, answered by `HelloReply`.  After that only
//! the dialling side sends, unless the hello asked for something else ([`Purpose`]).  A node that wants to join sends
//! `Join` in place of the hello.

use super::error::{PeerError, Result};
use super::rehearsal::Answer;
use super::relayed::Relayed;
use super::speaks::Speaks;
use super::statuses::STATUS_BYTES_MAX;
use crate::core_thread::lag::{Told, TOLD_MAX};
use crate::facts::Facts;
use crate::join::JoinRequest;
use crate::secret::Secret;
use crate::tls::NotTrusted;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use onetrip_core::agent::{Failure, Rehearsal};
use onetrip_core::consensus::{self, Message, Notice};
use onetrip_core::members::MEMBERS_MAX;
use onetrip_core::replica::Report;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::wire::{let_large_buffer_go, put_str, Reader};
use onetrip_core::{checkpoint, EntryId, LogIndex, NodeId, RegionId, Term};
use protobuf::rt::compute_raw_varint32_size;
use protobuf::wire_format::WireType::WireTypeLengthDelimited;
use protobuf::{CodedOutputStream, Message as _};
use raft::eraftpb::MessageType;
use tokio::io::{AsyncRead, AsyncReadExt};

const MAGIC: u32 = 0x3150_544f; // "OTP1"
/// The version that a hello says it is, and that of the first release of which others are let in.
const HELLO_VERSION: u16 = 12;
/// From this version on a request to join says what the new node speaks.
const JOIN_SPEAKS: u16 = 13;
/// Room for an append with the largest entry, and what surrounds it.
pub const FRAME_BYTES_MAX: usize = (1 << 30) + (2 << 20);
/// Added to the code of an answer to a hello if it says what the other end speaks.
const REPLY_SPEAKS: u8 = 3;
/// The kind of [`Frame::Raft`].
const RAFT: u8 = 2;
/// What is read of a connection at once.
pub const BUFFER_BYTES: usize = 64 << 10;
/// The numbers of two fields: `snapshot` in raft-rs' `Message`, and `data` in its `Snapshot` (eraftpb.proto).
const SNAPSHOT_FIELD: u32 = 9;
const DATA_FIELD: u32 = 1;
/// Nobody may send more than this before the hello is accepted.
pub const HELLO_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Small and urgent: heartbeats, votes, acknowledgements, notices, positions, questions for fresh reads, leases and
    /// positions, small proposals.
    Control = 0,
    /// Appends, snapshots and rehearsals, of any size, and large proposals.
    Bulk = 1,
}

impl Channel {
    pub const ALL: [Channel; 2] = [Channel::Control, Channel::Bulk];
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Frames(Channel),
    /// After the welcome no more frames follow, but PostgreSQL's protocol with the server of the node that was dialled.
    Postgres,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// It also stands in `relay_key`, unless the caller knows one version only.
    pub speaks: Speaks,
    pub cluster: String,
    /// [`Members::beginning`](onetrip_core::Members) of the caller.
    pub beginning: u32,
    pub from: NodeId,
    /// Region and address of the caller, for a node whose table of members does not contain the caller yet.
    pub region: RegionId,
    pub address: String,
    pub to: NodeId,
    pub purpose: Purpose,
    /// For what the caller sends through others ([`Relayed`]).
    pub relay_key: Secret,
    /// About the caller's PostgreSQL; a witness has none.
    pub postgres: Option<Facts>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum HelloReply {
    Welcome,
    /// Why the caller is not let in; that may change.
    Refused(String),
    /// The caller was a member once and never will be again.
    Removed(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    pub speaks: Speaks,
    pub secret: Secret,
    pub request: JoinRequest,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Hello(Hello),
    /// With what the other end speaks, if the hello said that of the caller.
    HelloReply(HelloReply, Option<Speaks>),
    /// Sent in place of a hello by a new node that wants to join.
    Join(Join),
    JoinRefused(String),
    /// `head`: all of the reply except the checkpoint, as JSON.
    Joined {
        head: Bytes,
        checkpoint: Bytes,
    },
    Raft(Box<Message>),
    /// An append whose entries cross to a region once, or what a relay hands on of it.
    Relayed(Relayed),
    /// How much of the log the sender's disk has.
    Notice(Notice),
    /// Asks for the last entry on the receiver's disk.
    Question {
        question: u64,
    },
    /// The last entry on the sender's disk.
    LastEntry {
        question: u64,
        last: EntryId,
    },
    /// Asks for the promise that makes a read lease.
    LeaseQuestion {
        question: u64,
    },
    /// That promise, and the last entry on the sender's disk.
    Promise {
        question: u64,
        last: EntryId,
    },
    /// Asks for a report as soon as the receiver's server shows this entry.
    Await {
        at: LogIndex,
    },
    /// About row locks, from a node to the leader or back.
    Lock(LockMessage),
    /// How far the sender's server is, and how long round trips from the sender to the other nodes take; and while a
    /// server is behind, when the sender decided some entries.
    Report(Report, Told),
    Ping {
        sent_ns: u64,
    },
    /// Goes back the other way, on the connection that the pinged side dialled.
    Pong {
        sent_ns: u64,
    },
    /// Asks the receiver to rehearse this in its PostgreSQL.
    Rehearse {
        id: u64,
        rehearsal: Rehearsal,
    },
    Rehearsed {
        id: u64,
        answer: Answer,
    },
    /// Asks what the receiver says of itself.
    AskStatus {
        id: u64,
    },
    /// `report`: as JSON, at most [`STATUS_BYTES_MAX`] bytes.
    Status {
        id: u64,
        report: Bytes,
    },
}

/// A frame as bytes.  The data of a snapshot stay where they are in memory: they are the second part.
#[derive(Clone, Debug)]
pub struct Encoded([Bytes; 2]);

impl Encoded {
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub fn parts(self) -> [Bytes; 2] {
        self.0
    }
}

impl From<Bytes> for Encoded {
    fn from(whole: Bytes) -> Encoded {
        Encoded([whole, Bytes::new()])
    }
}

/// The same as the `encode` of [`Frame::Raft`], but the data of a snapshot are not copied and their checksum is not
/// computed again: the thread that sends it is the core thread, which must not be held up.
pub fn encode_raft(mut message: Message) -> Encoded {
    if message.get_msg_type() != MessageType::MsgSnapshot {
        return Frame::Raft(Box::new(message)).encode().into();
    }
    let mut snapshot = message.take_snapshot();
    let data = std::mem::take(&mut snapshot.data);
    let (message_bytes, snapshot_bytes) = (message.compute_size(), snapshot.compute_size());
    let mut out = BytesMut::with_capacity((message_bytes + snapshot_bytes) as usize + 64);
    out.put_u64_le(0); // length and checksum, below
    out.put_u8(RAFT);
    let mut writer = out.writer();
    let written = || -> protobuf::ProtobufResult<()> {
        let mut proto = CodedOutputStream::new(&mut writer);
        message.write_to_with_cached_sizes(&mut proto)?;
        // The snapshot's fields are in another order than usual, so that the data are the last bytes of all.
        let length = compute_raw_varint32_size(data.len() as u32);
        proto.write_tag(SNAPSHOT_FIELD, WireTypeLengthDelimited)?;
        proto.write_raw_varint32(snapshot_bytes + 1 + length + data.len() as u32)?;
        snapshot.write_to_with_cached_sizes(&mut proto)?;
        proto.write_tag(DATA_FIELD, WireTypeLengthDelimited)?;
        proto.write_raw_varint32(data.len() as u32)?;
        proto.flush()
    }();
    written.expect("writing to memory");
    out = writer.into_inner();
    let body = (out.len() - 8 + data.len()) as u32;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&out[8..]);
    let of_data = checkpoint::crc_of_verified(&data);
    crc.combine(&crc32fast::Hasher::new_with_initial_len(of_data, data.len() as u64));
    out[..4].copy_from_slice(&body.to_le_bytes());
    out[4..8].copy_from_slice(&crc.finalize().to_le_bytes());
    Encoded([out.freeze(), data])
}

impl Frame {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u64_le(0); // length and checksum, below
        match self {
            Frame::Hello(h) => {
                out.put_u8(0);
                out.put_u32_le(MAGIC);
                out.put_u16_le(if h.speaks.least <= HELLO_VERSION { HELLO_VERSION } else { h.speaks.least });
                put_str(&mut out, &h.cluster);
                out.put_u32_le(h.beginning);
                out.put_u32_le(h.from.0);
                put_str(&mut out, h.region.as_str());
                put_str(&mut out, &h.address);
                out.put_u32_le(h.to.0);
                out.put_u8(match h.purpose {
                    Purpose::Frames(channel) => channel as u8,
                    Purpose::Postgres => 2,
                });
                out.put_slice(&h.relay_key);
                Facts::put(h.postgres.as_ref(), &mut out);
            }
            Frame::HelloReply(reply, speaks) => {
                let (code, why) = match reply {
                    HelloReply::Refused(why) => (0, why.as_str()),
                    HelloReply::Welcome => (1, ""),
                    HelloReply::Removed(why) => (2, why.as_str()),
                };
                out.put_u8(1);
                out.put_u8(if speaks.is_some() { code + REPLY_SPEAKS } else { code });
                put_str(&mut out, why);
                if let Some(speaks) = speaks {
                    speaks.put(&mut out);
                }
            }
            Frame::Join(join) => {
                out.put_u8(6);
                out.put_u32_le(MAGIC);
                out.put_u16_le(join.speaks.most);
                out.put_slice(&join.secret);
                put_str(&mut out, join.request.region.as_str());
                put_str(&mut out, &join.request.address);
                Facts::put(join.request.postgres.as_ref(), &mut out);
                if join.speaks.most >= JOIN_SPEAKS {
                    join.speaks.put(&mut out);
                }
            }
            Frame::JoinRefused(why) => {
                out.put_u8(7);
                put_str(&mut out, why);
            }
            Frame::Joined { head, checkpoint } => {
                out.put_u8(8);
                out.put_u32_le(head.len() as u32);
                out.put_slice(head);
                out.put_slice(checkpoint);
            }
            Frame::Raft(message) => {
                out.put_u8(RAFT);
                let size = message.compute_size() as usize;
                out.reserve(size);
                let mut writer = out.writer();
                message.write_to_writer(&mut writer).expect("writing to memory");
                out = writer.into_inner();
            }
            Frame::Relayed(relayed) => {
                out.put_u8(17);
                relayed.put(&mut out);
            }
            Frame::Report(Report { shown, round_trips }, decided) => {
                out.put_u8(3);
                out.put_u8(u8::from(shown.is_some()));
                if let Some((applied, durable)) = shown {
                    out.put_u64_le(applied.0);
                    out.put_u64_le(durable.0);
                }
                out.put_u32_le(round_trips.len() as u32);
                for (to, us) in round_trips {
                    out.put_u32_le(to.0);
                    out.put_u32_le(*us);
                }
                out.put_u8(decided.len() as u8);
                for (index, ms) in decided {
                    out.put_u64_le(index.0);
                    out.put_u32_le(*ms);
                }
            }
            Frame::Notice(Notice { term, index }) => {
                out.put_u8(12);
                out.put_u64_le(term.0);
                out.put_u64_le(index.0);
            }
            Frame::Question { question } => {
                out.put_u8(13);
                out.put_u64_le(*question);
            }
            Frame::LastEntry { question, last: EntryId { term, index } } => {
                out.put_u8(14);
                out.put_u64_le(*question);
                out.put_u64_le(term.0);
                out.put_u64_le(index.0);
            }
            Frame::LeaseQuestion { question } => {
                out.put_u8(15);
                out.put_u64_le(*question);
            }
            Frame::Promise { question, last: EntryId { term, index } } => {
                out.put_u8(16);
                out.put_u64_le(*question);
                out.put_u64_le(term.0);
                out.put_u64_le(index.0);
            }
            Frame::Await { at } => {
                out.put_u8(18);
                out.put_u64_le(at.0);
            }
            Frame::Lock(message) => {
                out.put_u8(20);
                message.put(&mut out);
            }
            Frame::Ping { sent_ns } => {
                out.put_u8(4);
                out.put_u64_le(*sent_ns);
            }
            Frame::Pong { sent_ns } => {
                out.put_u8(5);
                out.put_u64_le(*sent_ns);
            }
            Frame::Rehearse { id, rehearsal } => {
                out.put_u8(9);
                out.put_u64_le(*id);
                rehearsal.put(&mut out);
            }
            Frame::Rehearsed { id, answer } => {
                out.put_u8(10);
                out.put_u64_le(*id);
                match answer {
                    Answer::Fine => out.put_u8(0),
                    Answer::Fails(failure) => {
                        out.put_u8(1);
                        failure.put(&mut out);
                    }
                    Answer::Untried(why) => {
                        out.put_u8(2);
                        put_str(&mut out, why);
                    }
                }
            }
            Frame::AskStatus { id } => {
                out.put_u8(30);
                out.put_u64_le(*id);
            }
            Frame::Status { id, report } => {
                out.put_u8(31);
                out.put_u64_le(*id);
                out.put_slice(report);
            }
        }
        let body = (out.len() - 8) as u32;
        let crc = crc32fast::hash(&out[8..]);
        out[..4].copy_from_slice(&body.to_le_bytes());
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }

    /// Takes one frame from the front of `buf`.  `None`: more bytes are needed.
    pub fn take(buf: &mut BytesMut, bytes_max: usize) -> Result<Option<Frame>> {
        if buf.len() < 8 {
            let_large_buffer_go(buf, BUFFER_BYTES);
            return Ok(None);
        }
        let length = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
        if length == 0 || length > bytes_max {
            return Err(malformed(format!("its length is {length}")));
        }
        if buf.len() < 8 + length {
            // The buffer grows with what has really arrived, so that a false length costs no memory.
            let missing = 8 + length - buf.len();
            buf.reserve(missing.min(buf.len().max(BUFFER_BYTES)));
            return Ok(None);
        }
        let crc = u32::from_le_bytes([buf[4], buf[5], buf[6], buf[7]]);
        buf.advance(8);
        let body = buf.split_to(length).freeze();
        if crc32fast::hash(&body) != crc {
            return Err(malformed("its checksum does not match".into()));
        }
        decode(body).map(Some)
    }
}

/// Reads the next frame.  The error says what the other end did wrong.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut, bytes_max: usize) -> Result<Frame> {
    loop {
        // This is the start of a TLS record: an alert (0x15) or a handshake (0x16), of version 3.x.
        let is_tls = buf.len() >= 3 && matches!(buf[0], 0x15 | 0x16) && buf[1] == 3;
        let explain = |e: PeerError| match is_tls {
            true => {
                let why = "it speaks TLS and this end does not: `tls` must be the same in all nodes' node.toml";
                NotTrusted(why.into()).into()
            }
            false => e,
        };
        if let Some(frame) = Frame::take(buf, bytes_max).map_err(explain)? {
            return Ok(frame);
        }
        if stream.read_buf(buf).await.map_err(|e| explain(e.into()))? == 0 {
            let closed = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it closed the connection");
            return Err(explain(closed.into()));
        }
    }
}

fn malformed(why: String) -> PeerError {
    onetrip_core::Error::Malformed { what: "peer frame", why }.into()
}

fn decode(body: Bytes) -> Result<Frame> {
    let mut r = Reader::new("peer frame", body);
    let frame = match r.u8("kind")? {
        0 => {
            if r.u32("magic")? != MAGIC {
                return Err(malformed("hello with a wrong magic number".into()));
            }
            let version = r.u16("version")?;
            let (cluster, beginning, from) = (r.str("cluster")?, r.u32("beginning")?, NodeId(r.u32("from")?));
            let (region, address, to) = (RegionId(r.str("region")?), r.str("address")?, NodeId(r.u32("to")?));
            let purpose = match r.u8("purpose")? {
                0 => Purpose::Frames(Channel::Control),
                1 => Purpose::Frames(Channel::Bulk),
                2 => Purpose::Postgres,
                other => return Err(malformed(format!("hello for purpose {other}"))),
            };
            let relay_key = r.take(32, "key")?.as_ref().try_into().expect("32 bytes were taken");
            let (speaks, postgres) = (Speaks::of_hello(version, &relay_key), Facts::read(&mut r)?);
            Frame::Hello(Hello { speaks, cluster, beginning, from, region, address, to, purpose, relay_key, postgres })
        }
        1 => {
            let (code, why) = (r.u8("welcome")?, r.str("why")?);
            let speaks = if code >= REPLY_SPEAKS { Some(Speaks::read(&mut r)?) } else { None };
            let reply = match code % REPLY_SPEAKS {
                _ if code >= 2 * REPLY_SPEAKS => return Err(malformed(format!("answer {code} to a hello"))),
                0 => HelloReply::Refused(why),
                1 => HelloReply::Welcome,
                _ => HelloReply::Removed(why),
            };
            Frame::HelloReply(reply, speaks)
        }
        RAFT => {
            // The data of entries are not copied: they stay in the frame's memory.
            let raw = r.rest();
            let message = consensus::parse(&raw)?;
            consensus::check(&message)?;
            return Ok(Frame::Raft(Box::new(message)));
        }
        17 => return Ok(Frame::Relayed(Relayed::read(r)?)),
        3 => {
            let shown = match r.u8("shown")? {
                0 => None,
                1 => Some((r.index("applied")?, r.index("durable")?)),
                other => return Err(malformed(format!("report with the mark {other}"))),
            };
            let n = r.u32("round trips")? as usize;
            if n > MEMBERS_MAX {
                return Err(malformed(format!("{n} round trips in a report, {MEMBERS_MAX} at most")));
            }
            let round_trip = |_| Ok((NodeId(r.u32("peer")?), r.u32("round trip")?));
            let round_trips = (0..n).map(round_trip).collect::<Result<Vec<_>>>()?;
            let n = usize::from(r.u8("times")?);
            if n > TOLD_MAX {
                return Err(malformed(format!("{n} times in a report, {TOLD_MAX} at most")));
            }
            let time = |_| Ok((r.index("decided")?, r.u32("age")?));
            Frame::Report(Report { shown, round_trips }, (0..n).map(time).collect::<Result<_>>()?)
        }
        12 => Frame::Notice(Notice { term: Term(r.u64("term")?), index: r.index("index")? }),
        13 => Frame::Question { question: r.u64("question")? },
        14 => {
            let (question, term) = (r.u64("question")?, Term(r.u64("term")?));
            Frame::LastEntry { question, last: EntryId { term, index: r.index("index")? } }
        }
        15 => Frame::LeaseQuestion { question: r.u64("question")? },
        16 => {
            let (question, term) = (r.u64("question")?, Term(r.u64("term")?));
            Frame::Promise { question, last: EntryId { term, index: r.index("index")? } }
        }
        18 => Frame::Await { at: r.index("at")? },
        20 => Frame::Lock(LockMessage::read(&mut r)?),
        4 => Frame::Ping { sent_ns: r.u64("sent")? },
        5 => Frame::Pong { sent_ns: r.u64("sent")? },
        6 => {
            if r.u32("magic")? != MAGIC {
                return Err(malformed("join with a wrong magic number".into()));
            }
            let version = r.u16("version")?;
            let secret = r.take(32, "secret")?.as_ref().try_into().expect("32 bytes were taken");
            let (region, address) = (RegionId(r.str("region")?), r.str("address")?);
            let request = JoinRequest { region, address, postgres: Facts::read(&mut r)? };
            let speaks = if version >= JOIN_SPEAKS { Speaks::read(&mut r)? } else { Speaks::only(version) };
            if speaks.most != version {
                return Err(malformed(format!("join of version {version} by who speaks {} at most", speaks.most)));
            }
            Frame::Join(Join { speaks, secret, request })
        }
        7 => Frame::JoinRefused(r.str("why")?),
        8 => {
            let length = r.u32("head's length")? as usize;
            let head = r.take(length, "head")?;
            return Ok(Frame::Joined { head, checkpoint: r.rest() });
        }
        9 => {
            let id = r.u64("id")?;
            return Ok(Frame::Rehearse { id, rehearsal: Rehearsal::read(r)? });
        }
        10 => Frame::Rehearsed {
            id: r.u64("id")?,
            answer: match r.u8("answer")? {
                0 => Answer::Fine,
                1 => Answer::Fails(Failure::read(&mut r)?),
                2 => Answer::Untried(r.str("why")?),
                other => return Err(malformed(format!("answer {other} to a rehearsal"))),
            },
        },
        30 => Frame::AskStatus { id: r.u64("id")? },
        31 => {
            let (id, report) = (r.u64("id")?, r.rest());
            if report.len() > STATUS_BYTES_MAX {
                return Err(malformed(format!("a status of {} bytes, {STATUS_BYTES_MAX} at most", report.len())));
            }
            return Ok(Frame::Status { id, report });
        }
        other => return Err(malformed(format!("kind {other}"))),
    };
    r.end()?;
    Ok(frame)
}

/// The key of the examples.
#[cfg(any(test, feature = "lab"))]
pub(crate) const RELAY_KEY: Secret = [5; 32];

#[cfg(any(test, feature = "lab"))]
fn relay_key(speaks: Speaks) -> Secret {
    let mut key = RELAY_KEY;
    if speaks.most > HELLO_VERSION {
        speaks.hide_in(&mut key);
    }
    key
}

/// At least one frame of each kind.
#[cfg(any(test, feature = "lab"))]
pub(crate) fn examples() -> Vec<Frame> {
    use super::relayed::Entries;
    use onetrip_core::row_locks::{LockAnswer, LockAsk, LockSaid};
    use onetrip_core::{LockMode, LogIndex, TxnId};

    let hello = |purpose, speaks| Hello {
        speaks,
        cluster: "c".into(),
        beginning: 7,
        from: NodeId(1),
        region: "r".into(),
        address: "h:1".into(),
        to: NodeId(2),
        purpose,
        relay_key: relay_key(speaks),
        postgres: (purpose == Purpose::Postgres).then(Facts::example),
    };
    let join = |postgres, speaks| {
        let request = JoinRequest { region: "r".into(), address: "host:7000".into(), postgres };
        Frame::Join(Join { speaks, secret: [7; 32], request })
    };
    let mut append = Message { from: 1, to: 2, term: 3, index: 4, log_term: 3, ..Default::default() };
    append.set_msg_type(MessageType::MsgAppend);
    for index in 5..8 {
        let data = Bytes::from(vec![index as u8; 40]);
        append.mut_entries().push(raft::eraftpb::Entry { data, index, term: 3, ..Default::default() });
    }
    let mut head = append.clone();
    let entries = Entries::take(&mut head, None).0;
    let relayed = |same| Frame::Relayed(Relayed::new(&RELAY_KEY, &head, &entries, same));
    let (relayed, same) = (relayed(false), relayed(true));
    let mut snapshot = Message { from: 1, to: 2, term: 3, ..Default::default() };
    snapshot.set_msg_type(MessageType::MsgSnapshot);
    (snapshot.mut_snapshot().mut_metadata().index, snapshot.mut_snapshot().mut_metadata().term) = (7, 2);
    snapshot.mut_snapshot().set_data(Bytes::from_static(b"a checkpoint"));
    snapshot.mut_snapshot().mut_metadata().mut_conf_state().set_voters(vec![1, 2, 3]);
    let mut propose = Message { from: 1, to: 2, ..Default::default() };
    propose.set_msg_type(MessageType::MsgPropose);
    propose.mut_entries().push(raft::eraftpb::Entry { data: Bytes::from_static(b"entry"), ..Default::default() });
    let txn = TxnId { node: NodeId(2), incarnation: 5, sequence: 9 };
    let keys = vec![(u64::MAX, LockMode::Share), (1, LockMode::Update)];
    let ask = LockAsk { txn, number: 4, waits: true, keys };
    let lock_answer = |said| Frame::Lock(LockMessage::Answer(LockAnswer { txn, number: 4, said }));
    let rehearsal = Rehearsal {
        base: LogIndex(7),
        timeout_ms: 2000,
        lock_timeout_ms: 100,
        write_set: Bytes::from_static(b"operations"),
    };
    let failure =
        Failure { at: LogIndex(8), sqlstate: "42704".into(), message: "no such role".into(), ..Default::default() };
    vec![
        Frame::Hello(hello(Purpose::Frames(Channel::Control), Speaks::OWN)),
        Frame::Hello(hello(Purpose::Frames(Channel::Bulk), Speaks::OWN)),
        Frame::Hello(hello(Purpose::Postgres, Speaks::OWN)),
        Frame::Hello(hello(Purpose::Frames(Channel::Control), Speaks::only(12))),
        Frame::HelloReply(HelloReply::Welcome, None),
        Frame::HelloReply(HelloReply::Refused("no".into()), None),
        Frame::HelloReply(HelloReply::Removed("gone".into()), None),
        Frame::HelloReply(HelloReply::Welcome, Some(Speaks::OWN)),
        Frame::HelloReply(HelloReply::Refused("no".into()), Some(Speaks::OWN)),
        Frame::HelloReply(HelloReply::Removed("gone".into()), Some(Speaks::OWN)),
        Frame::Raft(Box::new(append)),
        Frame::Raft(Box::new(propose)),
        Frame::Raft(Box::new(snapshot)),
        relayed,
        same,
        Frame::Report(Report { shown: Some((LogIndex(11), LogIndex(9))), round_trips: Vec::new() }, Vec::new()),
        Frame::Report(
            Report {
                shown: Some((LogIndex(11), LogIndex(9))),
                round_trips: vec![(NodeId(2), 10_000), (NodeId(3), 62_000), (NodeId(7), u32::MAX)],
            },
            vec![(LogIndex(12), 210_000), (LogIndex(14), 2_000)],
        ),
        Frame::Report(
            Report { shown: None, round_trips: vec![(NodeId(2), 10_000), (NodeId(7), u32::MAX)] },
            vec![(LogIndex(12), u32::MAX)],
        ),
        Frame::Notice(Notice { term: Term(3), index: LogIndex(12) }),
        Frame::Question { question: 7 },
        Frame::LastEntry { question: 7, last: EntryId { term: Term(3), index: LogIndex(12) } },
        Frame::LeaseQuestion { question: 7 },
        Frame::Promise { question: 7, last: EntryId { term: Term(3), index: LogIndex(12) } },
        Frame::Await { at: LogIndex(12) },
        Frame::Lock(LockMessage::Ask(ask.clone())),
        Frame::Lock(LockMessage::Claim(ask)),
        Frame::Lock(LockMessage::Release { txn, from: 4 }),
        Frame::Lock(LockMessage::Present(vec![txn, txn])),
        lock_answer(LockSaid::Waiting),
        lock_answer(LockSaid::Granted { at: LogIndex(12) }),
        lock_answer(LockSaid::Busy { other: txn }),
        lock_answer(LockSaid::Deadlock { other: txn }),
        lock_answer(LockSaid::NoTable),
        join(None, Speaks::OWN),
        join(Some(Facts::example()), Speaks::OWN),
        join(Some(Facts::example()), Speaks::only(12)),
        Frame::JoinRefused("no".into()),
        Frame::Joined { head: Bytes::from_static(b"{\"member\":1}"), checkpoint: Bytes::from_static(b"state") },
        Frame::Ping { sent_ns: 1 },
        Frame::Pong { sent_ns: 2 },
        Frame::Rehearse { id: 3, rehearsal },
        Frame::Rehearsed { id: 3, answer: Answer::Fine },
        Frame::Rehearsed { id: 3, answer: Answer::Fails(failure) },
        Frame::Rehearsed { id: 3, answer: Answer::Untried("busy".into()) },
        Frame::AskStatus { id: 4 },
        Frame::Status { id: 4, report: Bytes::from_static(b"{\"node\":1}") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored;

    /// The receiver reads the same message as if the frame had been encoded whole, and the data were not copied.
    #[test]
    fn a_snapshot_travels_without_being_copied() {
        let member = |id: u32| onetrip_core::Member {
            id: NodeId(id),
            region: "r".into(),
            address: format!("{:0200}:{id}", 0),
            role: onetrip_core::MemberRole::Voter,
            voter: true,
            slot: Some(id),
            replaces: None,
            joined: None,
        };
        let members = onetrip_core::Members::bootstrap((1..=200).map(member).collect(), "r".into(), 8);
        let data = onetrip_core::Checkpoint::bootstrap(members, Default::default()).encode();
        assert!(data.len() > 1 << 14, "three bytes of length");
        for data in [data, Bytes::new()] {
            let mut message = Message { from: 1, to: 2, term: 9, commit: 300, ..Default::default() };
            message.set_msg_type(MessageType::MsgSnapshot);
            message.mut_snapshot().data = data.clone();
            let metadata = message.mut_snapshot().mut_metadata();
            (metadata.index, metadata.term) = (1 << 40, 7);
            metadata.mut_conf_state().voters = vec![1, 2, 3];
            let parts = encode_raft(message.clone()).parts();
            assert_eq!(parts[1].as_ptr(), data.as_ptr());
            let mut buf = BytesMut::from(&parts.concat()[..]);
            let frame = Frame::take(&mut buf, FRAME_BYTES_MAX).unwrap();
            assert_eq!((frame, buf.len()), (Some(Frame::Raft(Box::new(message))), 0));
        }
    }

    /// Goal: after a large message a connection takes no more memory than before it, and a small one that follows keeps
    /// none of the large one's.
    #[test]
    fn the_buffer_of_a_large_frame_goes_with_it() {
        let read = |bytes: usize, buf: &mut BytesMut| {
            let frame = Frame::Joined { head: Bytes::new(), checkpoint: vec![7; bytes].into() };
            for chunk in frame.encode().chunks(BUFFER_BYTES) {
                assert_eq!(Frame::take(buf, FRAME_BYTES_MAX).unwrap(), None);
                buf.extend_from_slice(chunk);
            }
            assert!(Frame::take(buf, FRAME_BYTES_MAX).unwrap().is_some());
            assert_eq!(Frame::take(buf, FRAME_BYTES_MAX).unwrap(), None);
            buf.capacity()
        };
        let mut buf = BytesMut::with_capacity(BUFFER_BYTES);
        let after_large = read(9 << 20, &mut buf);
        let after_small = read(10, &mut buf);
        assert!(after_large <= 1 << 20 && after_small <= 1 << 20, "{after_large} and {after_small} bytes");
    }

    /// RUSTSEC-2024-0437: skipping nested groups overflows the stack in protobuf 3.  Version 2, which is used
    /// here, refuses the second level.
    #[test]
    fn nested_groups_from_a_peer_are_refused() {
        let wrap = |field: u8, inside: &[u8]| {
            let mut out = BytesMut::from(&[field << 3 | 2][..]);
            let mut length = inside.len();
            while length >= 0x80 {
                out.put_u8(length as u8 | 0x80);
                length >>= 7;
            }
            out.put_u8(length as u8);
            out.put_slice(inside);
            out.freeze()
        };
        // Field 20 as a group, opened again and again: at the top, and inside each kind of nested message.
        let groups = Bytes::from([0xa3, 0x01].repeat(1 << 20));
        let in_conf_state = wrap(9, &wrap(2, &wrap(1, &groups)));
        for message in [groups.clone(), wrap(7, &groups), wrap(9, &groups), in_conf_state] {
            let body = [&[2], &message[..]].concat();
            let head = [(body.len() as u32).to_le_bytes(), crc32fast::hash(&body).to_le_bytes()].concat();
            let mut raw = BytesMut::from(&[head, body].concat()[..]);
            Frame::take(&mut raw, FRAME_BYTES_MAX).unwrap_err();
        }
    }

    #[test]
    fn frames_come_back_as_they_were_and_any_wrong_bit_is_noticed() {
        for frame in examples() {
            let raw = frame.encode();
            let mut buf = BytesMut::from(&raw[..]);
            assert_eq!(Frame::take(&mut buf, FRAME_BYTES_MAX).unwrap(), Some(frame));
            assert!(buf.is_empty());
            for bit in 0..raw.len() * 8 {
                let mut bad = BytesMut::from(&raw[..]);
                bad[bit / 8] ^= 1 << (bit % 8);
                // With a changed length, `take` may just wait for more bytes.
                assert!(!matches!(Frame::take(&mut bad, FRAME_BYTES_MAX), Ok(Some(_))));
            }
        }
    }

    /// By kind and number.
    fn named(frames: &[Frame]) -> Vec<(String, Vec<u8>)> {
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        for frame in frames {
            let debug = format!("{frame:?}");
            let kind = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let before = all.iter().filter(|(name, _)| name.starts_with(&format!("{kind} "))).count();
            all.push((format!("{kind} {}", before + 1), frame.encode().to_vec()));
        }
        all
    }

    fn read_again(file: &str) -> Vec<Frame> {
        let frame = |(name, bytes): (String, Vec<u8>)| {
            let mut buf = BytesMut::from(&bytes[..]);
            let frame = Frame::take(&mut buf, FRAME_BYTES_MAX).unwrap().unwrap();
            assert_eq!((&frame.encode()[..], buf.len()), (&bytes[..], 0), "{name} in {file}");
            frame
        };
        stored::read(file).into_iter().map(frame).collect()
    }

    #[test]
    fn frames_are_as_they_were() {
        stored::compare("peer-13", &named(&examples()));
        assert_eq!(read_again("peer-13"), examples());
    }

    /// What a release that speaks version 12 sends is read; and what is sent to it, apart from hellos and what only
    /// answers to those of this release contain, is the same to the byte.
    #[test]
    fn the_frames_of_version_12_are_read_and_sent() {
        let then = read_again("peer-12");
        let from_12 = |frame: &Frame| match frame {
            Frame::Hello(hello) => hello.speaks == Speaks::only(12),
            Frame::Join(join) => join.speaks == Speaks::only(12),
            _ => true,
        };
        assert!(then.len() > 40 && then.iter().all(from_12));
        let now: Vec<Bytes> = examples().iter().map(Frame::encode).collect();
        for frame in then.iter().filter(|frame| !matches!(frame, Frame::Hello(_) | Frame::Join(_) | Frame::Relayed(_)))
        {
            assert!(now.contains(&frame.encode()), "{frame:?}");
        }
        // Of its length and with the version that it knows, but for the key.
        let (first, own) = (then[0].encode(), now[0].clone());
        assert_eq!((first.len(), &first[9..15]), (own.len(), &own[9..15]));
    }
}
