//! The frames of `docs/agent-protocol.md`: bytes to values and back, nothing else.
//!
//! Both sides of the protocol are here, because tests play PostgreSQL. Which frame may come when is up to the agent
//! server, not to this module.  A PROPOSE keeps its entry undecoded: a malformed entry is refused with a VERDICT, while
//! a malformed frame ends the connection.

use crate::error::{Error, Result};
use crate::ids::{LogIndex, NodeId, RegionId, TxnId};
use crate::row_locks::{self, LockAsk, LockSaid};
use crate::wire::{let_large_buffer_go, put_str, put_txn, Reader};
use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const MAGIC: u32 = 0x3154_544f;
pub const VERSION: u16 = 2;
/// Largest value of a frame's length field.
pub const MAX_FRAME_BYTES: usize = 1 << 30;
/// "No key" in a VERDICT.
pub const NO_KEY: u32 = u32::MAX;
/// In a backend's HELLO, in the place of the applied index, which it has none of: it can read a VERDICT with
/// [`WayTimes`].  An earlier release of the node does not look there.
pub const TAKES_TIMES: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Backend,
    ApplyWorker,
    /// Writes the rows of a large transaction while that arrives, before it is decided.
    ArrivalWorker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version: u16,
    pub role: Role,
    pub pid: u32,
    pub incarnation: u64,
    pub applied: LogIndex,
    pub durable: LogIndex,
}

impl Hello {
    pub fn takes_times(&self) -> bool {
        self.role == Role::Backend && self.applied.0 & TAKES_TIMES != 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromPostgres {
    Hello(Hello),
    /// The entry, undecoded.
    Propose(Bytes),
    Outcome(TxnId),
    Position {
        applied: LogIndex,
        durable: LogIndex,
    },
    Done(TxnId),
    /// Asks like `Outcome`, and has the transaction decided if it is not.
    Settle(TxnId),
    /// The apply worker has been trying for long and cannot apply this entry; `message` says why.
    Stuck {
        at: LogIndex,
        message: String,
    },
    /// A backend asks which entry its server must show so that everything acknowledged before now is visible.
    /// `may_ask`: others may be asked for it.
    Read {
        number: u64,
        may_ask: bool,
    },
    /// A backend's entry is committed here; it asks to be told when all other servers show it.
    Await {
        at: LogIndex,
    },
    /// How is the whole cluster?
    Look {
        number: u64,
    },
    /// A backend is about to change or lock these rows of this table, and wants their locks.
    Lock {
        ask: LockAsk,
        table: String,
    },
    /// It gives back what it got or wanted by requests from this number on.
    Unlock {
        txn: TxnId,
        from: u64,
    },
    /// A backend that is about to propose statements wants them rehearsed in the other regions.
    Rehearse {
        txn: TxnId,
        rehearsal: Rehearsal,
    },
    /// The arrival worker wants the bytes from there on of this transaction; `None`: of the next one that arrives.
    More {
        txn: Option<TxnId>,
        from: u64,
    },
    /// The arrival worker is done with this transaction.  `kept`: all of it is written and waits for the verdict;
    /// otherwise it was given up, and the apply worker is to apply it.
    Written {
        txn: TxnId,
        kept: bool,
    },
}

/// A write set to be carried out and rolled back in other regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// The applied index that the other PostgreSQL must have at least.
    pub base: LogIndex,
    /// How long it may take there in all, and how long it may wait there for one lock.
    pub timeout_ms: u32,
    pub lock_timeout_ms: u32,
    pub write_set: Bytes,
}

/// Why a write set would fail in another region, in the words of its PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The applied index of that PostgreSQL.
    pub at: LogIndex,
    pub sqlstate: String,
    pub message: String,
    pub detail: String,
    pub hint: String,
    pub context: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VerdictOutcome {
    Commit = 1,
    Conflict = 2,
    Window = 3,
    Refused = 4,
    Cancelled = 5,
    /// Like `Refused`, but only for want of room: worth repeating.
    Full = 6,
    /// Aborted in favour of another region, which lost on that key again and again.
    Reserved = 7,
    /// Aborted because a prepared transaction holds that key.
    Held = 8,
    /// Like `Commit`, but the apply worker commits the entry here, too.
    ByWorker = 9,
    /// Aborted because prepared transactions hold as many keys, or are as many, as can be.
    NoRoom = 10,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictFrame {
    pub txn: TxnId,
    pub outcome: VerdictOutcome,
    pub at: LogIndex,
    /// A log index, or with `Window` the oldest base that would have been high enough.
    pub other: LogIndex,
    pub key: u32,
    pub region: RegionId,
    pub message: String,
    /// Of what commits, for those who can read it.
    pub times: Option<WayTimes>,
}

/// How long the parts of a transaction's way took, on the node's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayTimes {
    /// From when the node had it until it knew that a majority has its entry.
    pub replicate_us: u64,
    /// From then until it was decided.
    pub certify_us: u64,
}

impl WayTimes {
    fn read(r: &mut Reader) -> Result<WayTimes> {
        Ok(WayTimes { replicate_us: r.u64("replicate")?, certify_us: r.u64("certify")? })
    }
}

/// Whom a fresh read took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Asked {
    /// There is a read lease.
    Nobody = 0,
    Others = 1,
    /// Others would have to be asked, and were not.
    NotYet = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutcomeState {
    NotSoFar = 0,
    Committed = 1,
    Aborted = 2,
    OlderThanKept = 3,
    /// Committed, and since then left out of every PostgreSQL: nobody shows it.
    LeftOut = 4,
    /// Prepared (PREPARE TRANSACTION); whether it has been ended since is not said here.
    Prepared = 5,
}

/// What an ENTRY is besides a transaction's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryFlags {
    /// Nothing of it is to be applied except its place in the order.
    pub left_out: bool,
    /// It leaves an earlier entry out: the write set is that entry's index.
    pub leaves_out: bool,
}

impl EntryFlags {
    fn decode(byte: u8) -> Option<EntryFlags> {
        (byte <= 3).then_some(EntryFlags { left_out: byte & 1 != 0, leaves_out: byte & 2 != 0 })
    }

    fn encode(self) -> u8 {
        u8::from(self.left_out) | u8::from(self.leaves_out) << 1
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPostgres {
    /// `committed`: the last committed entry that the node knows of.
    Welcome {
        version: u16,
        node: NodeId,
        region: RegionId,
        committed: LogIndex,
    },
    Verdict(VerdictFrame),
    OutcomeIs {
        txn: TxnId,
        state: OutcomeState,
        at: LogIndex,
    },
    Entry {
        at: LogIndex,
        previous: LogIndex,
        flags: EntryFlags,
        region: RegionId,
        txn: TxnId,
        write_set: Bytes,
    },
    /// `failure`: in which region it failed, and why; `untried`: the regions that could not try it, and why, as text
    /// for people.
    Rehearsed {
        txn: TxnId,
        failure: Option<(RegionId, Failure)>,
        untried: String,
    },
    /// `at` is 0 if others would have to be asked for it, and may not be.
    ReadAt {
        number: u64,
        at: LogIndex,
        asked: Asked,
    },
    /// `missing`: the regions whose servers may not show it yet, and why, as text for people.
    Shown {
        at: LogIndex,
        missing: String,
    },
    /// `cluster`: how the cluster is, as JSON; empty if the node cannot tell now.
    Seen {
        number: u64,
        cluster: Bytes,
    },
    /// `asked`: another region was asked; `region`: of the other transaction, if there is one.
    Locked {
        number: u64,
        said: LockSaid,
        asked: bool,
        region: RegionId,
    },
    /// Bytes of a transaction that is arriving in parts, which encoded is `total` long.
    Arriving {
        txn: TxnId,
        total: u64,
        from: u64,
        bytes: Bytes,
    },
}

const HELLO: u8 = 0x01;
const PROPOSE: u8 = 0x02;
const OUTCOME: u8 = 0x03;
const POSITION: u8 = 0x04;
const DONE: u8 = 0x05;
const SETTLE: u8 = 0x06;
const STUCK: u8 = 0x07;
const REHEARSE: u8 = 0x08;
const READ: u8 = 0x09;
const AWAIT: u8 = 0x0a;
const LOOK: u8 = 0x0b;
const LOCK: u8 = 0x0c;
const UNLOCK: u8 = 0x0d;
const MORE: u8 = 0x0e;
const WRITTEN: u8 = 0x0f;
const WELCOME: u8 = 0x81;
const VERDICT: u8 = 0x82;
const OUTCOME_IS: u8 = 0x83;
const ENTRY: u8 = 0x84;
const REHEARSED: u8 = 0x85;
const READ_AT: u8 = 0x86;
const SHOWN: u8 = 0x87;
const SEEN: u8 = 0x88;
const LOCKED: u8 = 0x89;
const ARRIVING: u8 = 0x8a;

/// Frames that contain a write set, and so may be large; both begin with a transaction id.
pub fn is_large(frame_type: u8) -> bool {
    matches!(frame_type, PROPOSE | REHEARSE)
}

/// No frame from PostgreSQL is longer, type and body.  The largest of the small ones is STUCK, with a message of up to
/// 255 bytes.
pub fn bytes_max(frame_type: u8) -> usize {
    match frame_type {
        PROPOSE | REHEARSE => MAX_FRAME_BYTES,
        LOCK => 512 + 9 * row_locks::KEYS_MAX,
        _ => 512,
    }
}

/// Takes one whole frame, type and body, off the front of `buf`.  `None`: more bytes are needed, and room for them
/// has been made.
pub fn take_frame(buf: &mut BytesMut) -> Result<Option<Bytes>> {
    if buf.len() < 4 {
        let_large_buffer_go(buf, 8 << 10);
        return Ok(None);
    }
    let length = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
    if length == 0 || length > MAX_FRAME_BYTES {
        return Err(Error::malformed("frame", format!("its length is {length}")));
    }
    if buf.len() < 4 + length {
        // Room grows with what has really arrived, so that a false length costs no memory.
        let missing = 4 + length - buf.len();
        buf.reserve(missing.min(buf.len().max(64 << 10)));
        return Ok(None);
    }
    buf.advance(4);
    Ok(Some(buf.split_to(length).freeze()))
}

impl FromPostgres {
    /// `frame`: type and body, without the length.
    pub fn decode(frame: Bytes) -> Result<FromPostgres> {
        let mut r = Reader::new("frame", frame);
        let decoded = match r.u8("type")? {
            HELLO => {
                if r.u32("magic")? != MAGIC {
                    return Err(r.error("HELLO with a wrong magic number"));
                }
                let version = r.u16("version")?;
                let role = match r.u8("role")? {
                    0 => Role::Backend,
                    1 => Role::ApplyWorker,
                    2 => Role::ArrivalWorker,
                    other => return Err(r.error(format!("HELLO with role {other}"))),
                };
                let (pid, incarnation) = (r.u32("pid")?, r.u64("incarnation")?);
                let (applied, durable) = (r.index("applied")?, r.index("durable")?);
                FromPostgres::Hello(Hello { version, role, pid, incarnation, applied, durable })
            }
            PROPOSE => return Ok(FromPostgres::Propose(r.rest())),
            OUTCOME => FromPostgres::Outcome(r.txn()?),
            POSITION => FromPostgres::Position { applied: r.index("applied")?, durable: r.index("durable")? },
            DONE => FromPostgres::Done(r.txn()?),
            SETTLE => FromPostgres::Settle(r.txn()?),
            STUCK => FromPostgres::Stuck { at: r.index("at")?, message: r.str("message")? },
            REHEARSE => {
                return Ok(FromPostgres::Rehearse { txn: r.txn()?, rehearsal: Rehearsal::read(r)? });
            }
            READ => {
                let number = r.u64("number")?;
                let may_ask = match r.u8("may ask")? {
                    0 => false,
                    1 => true,
                    other => return Err(r.error(format!("READ with the mark {other}"))),
                };
                FromPostgres::Read { number, may_ask }
            }
            AWAIT => FromPostgres::Await { at: r.index("at")? },
            LOOK => FromPostgres::Look { number: r.u64("number")? },
            LOCK => FromPostgres::Lock { ask: LockAsk::read(&mut r)?, table: r.str("table")? },
            UNLOCK => FromPostgres::Unlock { txn: r.txn()?, from: r.u64("from")? },
            MORE => {
                let txn = Some(r.txn()?).filter(|txn| *txn != TxnId::default());
                FromPostgres::More { txn, from: r.u64("from")? }
            }
            WRITTEN => {
                let txn = r.txn()?;
                let kept = match r.u8("kept")? {
                    0 => false,
                    1 => true,
                    other => return Err(r.error(format!("WRITTEN with the mark {other}"))),
                };
                FromPostgres::Written { txn, kept }
            }
            other => return Err(r.error(format!("type 0x{other:02x} does not come from PostgreSQL"))),
        };
        r.end()?;
        Ok(decoded)
    }

    /// The whole frame, length included.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u32_le(0);
        match self {
            FromPostgres::Hello(h) => {
                out.put_u8(HELLO);
                out.put_u32_le(MAGIC);
                out.put_u16_le(h.version);
                out.put_u8(match h.role {
                    Role::Backend => 0,
                    Role::ApplyWorker => 1,
                    Role::ArrivalWorker => 2,
                });
                out.put_u32_le(h.pid);
                out.put_u64_le(h.incarnation);
                out.put_u64_le(h.applied.0);
                out.put_u64_le(h.durable.0);
            }
            FromPostgres::Propose(entry) => {
                out.put_u8(PROPOSE);
                out.put_slice(entry);
            }
            FromPostgres::Outcome(txn) => {
                out.put_u8(OUTCOME);
                put_txn(&mut out, txn);
            }
            FromPostgres::Position { applied, durable } => {
                out.put_u8(POSITION);
                out.put_u64_le(applied.0);
                out.put_u64_le(durable.0);
            }
            FromPostgres::Done(txn) => {
                out.put_u8(DONE);
                put_txn(&mut out, txn);
            }
            FromPostgres::Settle(txn) => {
                out.put_u8(SETTLE);
                put_txn(&mut out, txn);
            }
            FromPostgres::Stuck { at, message } => {
                out.put_u8(STUCK);
                out.put_u64_le(at.0);
                put_str(&mut out, message);
            }
            FromPostgres::Read { number, may_ask } => {
                out.put_u8(READ);
                out.put_u64_le(*number);
                out.put_u8(u8::from(*may_ask));
            }
            FromPostgres::Await { at } => {
                out.put_u8(AWAIT);
                out.put_u64_le(at.0);
            }
            FromPostgres::Look { number } => {
                out.put_u8(LOOK);
                out.put_u64_le(*number);
            }
            FromPostgres::Lock { ask, table } => {
                out.put_u8(LOCK);
                ask.put(&mut out);
                put_str(&mut out, table);
            }
            FromPostgres::Unlock { txn, from } => {
                out.put_u8(UNLOCK);
                put_txn(&mut out, txn);
                out.put_u64_le(*from);
            }
            FromPostgres::More { txn, from } => {
                out.put_u8(MORE);
                put_txn(&mut out, &txn.unwrap_or_default());
                out.put_u64_le(*from);
            }
            FromPostgres::Written { txn, kept } => {
                out.put_u8(WRITTEN);
                put_txn(&mut out, txn);
                out.put_u8(u8::from(*kept));
            }
            FromPostgres::Rehearse { txn, rehearsal } => {
                out.put_u8(REHEARSE);
                put_txn(&mut out, txn);
                rehearsal.put(&mut out);
            }
        }
        finish(out)
    }
}

impl Rehearsal {
    /// Takes all that is left.
    pub fn read(mut r: Reader) -> Result<Rehearsal> {
        Ok(Rehearsal {
            base: r.index("base")?,
            timeout_ms: r.u32("timeout")?,
            lock_timeout_ms: r.u32("lock timeout")?,
            write_set: r.rest(),
        })
    }

    pub fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.base.0);
        out.put_u32_le(self.timeout_ms);
        out.put_u32_le(self.lock_timeout_ms);
        out.put_slice(&self.write_set);
    }
}

impl Failure {
    pub fn read(r: &mut Reader) -> Result<Failure> {
        let at = r.index("at")?;
        let (sqlstate, message, detail) = (r.str("sqlstate")?, r.str("message")?, r.str("detail")?);
        Ok(Failure { at, sqlstate, message, detail, hint: r.str("hint")?, context: r.str("context")? })
    }

    pub fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.at.0);
        for text in [&self.sqlstate, &self.message, &self.detail, &self.hint, &self.context] {
            put_str(out, text);
        }
    }
}

impl ToPostgres {
    /// `frame`: type and body, without the length.
    pub fn decode(frame: Bytes) -> Result<ToPostgres> {
        let mut r = Reader::new("frame", frame);
        let decoded = match r.u8("type")? {
            WELCOME => ToPostgres::Welcome {
                version: r.u16("version")?,
                node: NodeId(r.u32("node")?),
                region: RegionId(r.str("region")?),
                committed: r.index("committed")?,
            },
            VERDICT => {
                let txn = r.txn()?;
                let outcome = match r.u8("outcome")? {
                    1 => VerdictOutcome::Commit,
                    2 => VerdictOutcome::Conflict,
                    3 => VerdictOutcome::Window,
                    4 => VerdictOutcome::Refused,
                    5 => VerdictOutcome::Cancelled,
                    6 => VerdictOutcome::Full,
                    7 => VerdictOutcome::Reserved,
                    8 => VerdictOutcome::Held,
                    9 => VerdictOutcome::ByWorker,
                    10 => VerdictOutcome::NoRoom,
                    other => return Err(r.error(format!("VERDICT with outcome {other}"))),
                };
                ToPostgres::Verdict(VerdictFrame {
                    txn,
                    outcome,
                    at: r.index("at")?,
                    other: r.index("other")?,
                    key: r.u32("key number")?,
                    region: RegionId(r.str("region")?),
                    message: r.str("message")?,
                    times: if r.left() == 0 { None } else { Some(WayTimes::read(&mut r)?) },
                })
            }
            OUTCOME_IS => ToPostgres::OutcomeIs {
                txn: r.txn()?,
                state: match r.u8("state")? {
                    0 => OutcomeState::NotSoFar,
                    1 => OutcomeState::Committed,
                    2 => OutcomeState::Aborted,
                    3 => OutcomeState::OlderThanKept,
                    4 => OutcomeState::LeftOut,
                    5 => OutcomeState::Prepared,
                    other => return Err(r.error(format!("OUTCOME_IS with state {other}"))),
                },
                at: r.index("at")?,
            },
            ENTRY => {
                let (at, previous) = (r.index("at")?, r.index("previous")?);
                let flags = r.u8("flags")?;
                let flags = EntryFlags::decode(flags).ok_or_else(|| r.error(format!("ENTRY with flags {flags}")))?;
                let (region, txn) = (RegionId(r.str("region")?), r.txn()?);
                return Ok(ToPostgres::Entry { at, previous, flags, region, txn, write_set: r.rest() });
            }
            REHEARSED => ToPostgres::Rehearsed {
                txn: r.txn()?,
                failure: match r.u8("failed")? {
                    0 => None,
                    1 => Some((RegionId(r.str("region")?), Failure::read(&mut r)?)),
                    other => return Err(r.error(format!("REHEARSED with result {other}"))),
                },
                untried: r.str("untried")?,
            },
            READ_AT => {
                let (number, at) = (r.u64("number")?, r.index("at")?);
                let asked = match r.u8("asked")? {
                    0 => Asked::Nobody,
                    1 => Asked::Others,
                    2 => Asked::NotYet,
                    other => return Err(r.error(format!("READ_AT with the mark {other}"))),
                };
                ToPostgres::ReadAt { number, at, asked }
            }
            SEEN => return Ok(ToPostgres::Seen { number: r.u64("number")?, cluster: r.rest() }),
            SHOWN => ToPostgres::Shown { at: r.index("at")?, missing: r.str("missing")? },
            LOCKED => {
                let number = r.u64("number")?;
                let said = (r.u8("outcome")?, r.index("at")?, r.txn()?);
                let said = LockSaid::from_code(said).filter(|said| *said != LockSaid::Waiting);
                let said = said.ok_or_else(|| r.error("LOCKED with an outcome that is none"))?;
                let asked = match r.u8("asked")? {
                    0 => false,
                    1 => true,
                    other => return Err(r.error(format!("LOCKED with the mark {other}"))),
                };
                ToPostgres::Locked { number, said, asked, region: RegionId(r.str("region")?) }
            }
            ARRIVING => {
                let (txn, total, from) = (r.txn()?, r.u64("total")?, r.u64("from")?);
                return Ok(ToPostgres::Arriving { txn, total, from, bytes: r.rest() });
            }
            other => return Err(r.error(format!("type 0x{other:02x} does not come from a node"))),
        };
        r.end()?;
        Ok(decoded)
    }

    /// The whole frame, length included.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(96);
        out.put_u32_le(0);
        match self {
            ToPostgres::Welcome { version, node, region, committed } => {
                out.put_u8(WELCOME);
                out.put_u16_le(*version);
                out.put_u32_le(node.0);
                put_str(&mut out, region.as_str());
                out.put_u64_le(committed.0);
            }
            ToPostgres::Verdict(v) => {
                out.put_u8(VERDICT);
                put_txn(&mut out, &v.txn);
                out.put_u8(v.outcome as u8);
                out.put_u64_le(v.at.0);
                out.put_u64_le(v.other.0);
                out.put_u32_le(v.key);
                put_str(&mut out, v.region.as_str());
                put_str(&mut out, &v.message);
                if let Some(times) = v.times {
                    out.put_u64_le(times.replicate_us);
                    out.put_u64_le(times.certify_us);
                }
            }
            ToPostgres::OutcomeIs { txn, state, at } => {
                out.put_u8(OUTCOME_IS);
                put_txn(&mut out, txn);
                out.put_u8(*state as u8);
                out.put_u64_le(at.0);
            }
            ToPostgres::Entry { at, previous, flags, region, txn, write_set } => {
                out.put_slice(&entry_head(*at, *previous, *flags, region, txn, write_set.len())[4..]);
                out.put_slice(write_set);
            }
            ToPostgres::Rehearsed { txn, failure, untried } => {
                out.put_u8(REHEARSED);
                put_txn(&mut out, txn);
                out.put_u8(failure.is_some().into());
                if let Some((region, failure)) = failure {
                    put_str(&mut out, region.as_str());
                    failure.put(&mut out);
                }
                put_str(&mut out, untried);
            }
            ToPostgres::ReadAt { number, at, asked } => {
                out.put_u8(READ_AT);
                out.put_u64_le(*number);
                out.put_u64_le(at.0);
                out.put_u8(*asked as u8);
            }
            ToPostgres::Shown { at, missing } => {
                out.put_u8(SHOWN);
                out.put_u64_le(at.0);
                put_str(&mut out, missing);
            }
            ToPostgres::Seen { number, cluster } => {
                out.put_u8(SEEN);
                out.put_u64_le(*number);
                out.put_slice(cluster);
            }
            ToPostgres::Locked { number, said, asked, region } => {
                let (code, at, other) = said.code();
                out.put_u8(LOCKED);
                out.put_u64_le(*number);
                out.put_u8(code);
                out.put_u64_le(at.0);
                put_txn(&mut out, &other);
                out.put_u8(u8::from(*asked));
                put_str(&mut out, region.as_str());
            }
            ToPostgres::Arriving { txn, total, from, bytes } => {
                out.reserve(64 + bytes.len());
                out.put_u8(ARRIVING);
                put_txn(&mut out, txn);
                out.put_u64_le(*total);
                out.put_u64_le(*from);
                out.put_slice(bytes);
            }
        }
        finish(out)
    }
}

/// The ENTRY frame up to its write set, length included; so a large write set need not be copied behind it.
pub fn entry_head(
    at: LogIndex,
    previous: LogIndex,
    flags: EntryFlags,
    region: &RegionId,
    txn: &TxnId,
    write_set_len: usize,
) -> Bytes {
    let mut out = BytesMut::with_capacity(64 + region.as_str().len());
    out.put_u32_le(0);
    out.put_u8(ENTRY);
    out.put_u64_le(at.0);
    out.put_u64_le(previous.0);
    out.put_u8(flags.encode());
    put_str(&mut out, region.as_str());
    put_txn(&mut out, txn);
    let length = out.len() - 4 + write_set_len;
    out[..4].copy_from_slice(&frame_length(length));
    out.freeze()
}

fn finish(mut out: BytesMut) -> Bytes {
    let length = out.len() - 4;
    out[..4].copy_from_slice(&frame_length(length));
    out.freeze()
}

fn frame_length(length: usize) -> [u8; 4] {
    // An entry is refused long before this (the node's limit is far below 1 GiB).
    assert!(length <= MAX_FRAME_BYTES, "a frame of {length} bytes");
    (length as u32).to_le_bytes()
}
