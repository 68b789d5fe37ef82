//! Everything that follows from the log up to one index, as bytes: what a node keeps on disk, what a Raft snapshot
//! contains, and what a joining node or a backup is given.
//!
//! | part | bytes |
//! |---|---|
//! | mark | u32 magic, u16 version (8 while level 0 is in force, else 9), u16 origin (`MADE` or `INSTALLED`) |
//! | head | index, u64 term, conf (4 × (u32 n, n × u32 id), u8 auto leave), u16 level (version 9), members |
//! | body | certifier and committed indexes (`certifier/checkpoint.rs`) |
//! | end | u32 CRC-32 of head and body |
//!
//! Invariants:
//! - The same log gives the same head and body on every node, except for the committed indexes, of which each node
//!   keeps what its own PostgreSQL needs.
//! - *Installed* says that this node's log may end below the checkpoint, because the checkpoint came from another node.
//!   It becomes *made* as soon as the log has been emptied up to it ([`in_order_origin`]).

use crate::certifier::{checkpoint as certifier, Certifier, CommittedIndexes, Limits};
use crate::error::{Error, Result};
use crate::ids::{Level, LogIndex, NodeId, Term};
use crate::members::Members;
use crate::wire::Reader;
use bytes::{BufMut, Bytes, BytesMut};
use raft::eraftpb::ConfState;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

const MAGIC: u32 = 0x314b_544f; // "OTK1"
/// Releases older than levels know this one, and refuse the other.
const VERSION_OF_LEVEL_0: u16 = 8;
const VERSION: u16 = 9;
const WHAT: &str = "checkpoint";
/// Far apart, so that no small damage turns one into the other.
const MADE: u16 = 0x4d4d;
const INSTALLED: u16 = 0x9292;
/// Where in the bytes the origin is.
pub const ORIGIN_AT: usize = 6;
const MARK_BYTES: usize = 8;

/// A Raft configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conf {
    pub voters: Vec<NodeId>,
    /// If not empty, this is a joint configuration: these vote too, with a majority of their own.
    pub outgoing: Vec<NodeId>,
    pub learners: Vec<NodeId>,
    pub learners_next: Vec<NodeId>,
    pub auto_leave: bool,
}

impl Conf {
    pub fn of_members(members: &Members) -> Conf {
        let ids = |voter: bool| members.members.iter().filter(|m| m.voter == voter).map(|m| m.id).collect();
        Conf { voters: ids(true), learners: ids(false), ..Conf::default() }
    }

    pub fn contains(&self, id: NodeId) -> bool {
        [&self.voters, &self.outgoing, &self.learners, &self.learners_next].iter().any(|ids| ids.contains(&id))
    }

    pub fn votes(&self, id: NodeId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }

    /// Whether Raft can be in this configuration: somebody votes, nobody is two things at once, and what belongs to a
    /// joint configuration is in a joint one only.
    pub(crate) fn is_sound(&self) -> bool {
        let Conf { voters, outgoing, learners, learners_next, auto_leave } = self;
        let all = [voters, outgoing, learners, learners_next];
        let none_of = |ids: &[NodeId], others: &[NodeId]| ids.iter().all(|id| !others.contains(id));
        !voters.is_empty()
            && all.iter().all(|ids| !ids.contains(&NodeId(0)) && ids.iter().collect::<BTreeSet<_>>().len() == ids.len())
            && none_of(learners, voters)
            && none_of(learners, outgoing)
            && none_of(learners_next, voters)
            && none_of(learners_next, learners)
            && learners_next.iter().all(|id| outgoing.contains(id))
            && (self.is_joint() || !auto_leave)
    }

    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

impl From<&ConfState> for Conf {
    fn from(state: &ConfState) -> Conf {
        // raft-rs gives the ids in the order of a hash set.
        let ids = |raw: &[u64]| {
            let mut ids: Vec<NodeId> = raw.iter().map(|id| NodeId(*id as u32)).collect();
            ids.sort_unstable();
            ids
        };
        Conf {
            voters: ids(state.get_voters()),
            outgoing: ids(state.get_voters_outgoing()),
            learners: ids(state.get_learners()),
            learners_next: ids(state.get_learners_next()),
            auto_leave: state.auto_leave,
        }
    }
}

impl From<&Conf> for ConfState {
    fn from(conf: &Conf) -> ConfState {
        let ids = |ids: &[NodeId]| ids.iter().map(|id| u64::from(id.0)).collect::<Vec<_>>();
        let mut state = ConfState::from((ids(&conf.voters), ids(&conf.learners)));
        state.set_voters_outgoing(ids(&conf.outgoing));
        state.set_learners_next(ids(&conf.learners_next));
        state.auto_leave = conf.auto_leave;
        state
    }
}

/// What Raft needs to know about a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub index: LogIndex,
    pub term: Term,
    pub conf: Conf,
    pub members: Members,
    pub installed: bool,
}

pub struct Checkpoint {
    /// Of the entry at [`Self::index`].
    pub term: Term,
    pub conf: Conf,
    pub members: Members,
    pub certifier: Certifier,
    pub committed_indexes: CommittedIndexes,
    pub installed: bool,
}

impl Checkpoint {
    /// The checkpoint of an empty log.
    pub fn bootstrap(mut members: Members, limits: Limits) -> Checkpoint {
        members.beginning = beginning(&members, &limits);
        Checkpoint {
            term: Term(0),
            conf: Conf::of_members(&members),
            members,
            certifier: Certifier::new(limits),
            committed_indexes: CommittedIndexes::default(),
            installed: false,
        }
    }

    /// The last index that it covers.
    pub fn index(&self) -> LogIndex {
        self.certifier.decided()
    }

    pub fn encode(&self) -> Bytes {
        freeze(self.term, &self.conf, &self.members, &self.certifier, &self.committed_indexes).encode()
    }

    /// Decodes bytes from disk or from a peer.  `limits` are those of the cluster.
    pub fn decode(raw: Bytes, limits: Limits) -> Result<Checkpoint> {
        let Opened { mut r, version, installed } = open(&raw)?;
        let decode = |r: &mut Reader| {
            let (index, term, conf, members) = take_head(r, version)?;
            let (certifier, committed_indexes) = Certifier::decode(r, limits)?;
            if certifier.decided() != index {
                return Err(r.error(format!("it is of index {index}, but its certifier of {}", certifier.decided())));
            }
            if r.left() > 0 {
                return Err(r.error(format!("{} bytes too many", r.left())));
            }
            Ok(Checkpoint { term, conf, members, certifier, committed_indexes, installed })
        };
        decode(&mut r).map_err(corrupted)
    }
}

/// Checksum of what verdicts and rows depend on, and of where the leader belongs: nodes that disagree on that would
/// hand the leader to each other for ever.  Addresses are left out, because one node may reach another under a
/// different address.
fn beginning(members: &Members, limits: &Limits) -> u32 {
    let mut first = Members { beginning: 0, ..members.clone() };
    first.members.iter_mut().for_each(|m| m.address.clear());
    let mut out = BytesMut::new();
    first.put(&mut out);
    limits.put(&mut out);
    if members.level > Level(0) {
        out.put_u16_le(members.level.0);
    }
    crc32fast::hash(&out)
}

/// The head alone, with everything verified.
pub fn peek(raw: &Bytes) -> Result<Head> {
    let Opened { mut r, version, installed } = open(raw)?;
    let (index, term, conf, members) = take_head(&mut r, version).map_err(corrupted)?;
    Ok(Head { index, term, conf, members, installed })
}

/// The CRC-32 of a whole checkpoint, computed from its two ends only: the last four bytes are the CRC of what lies
/// between.  Right only for bytes that [`peek`] has verified.
pub fn crc_of_verified(raw: &[u8]) -> u32 {
    let Some(end) = raw.len().checked_sub(4).filter(|end| *end >= MARK_BYTES) else {
        return crc32fast::hash(raw);
    };
    let inner = u32::from_le_bytes([raw[end], raw[end + 1], raw[end + 2], raw[end + 3]]);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&raw[..MARK_BYTES]);
    crc.combine(&crc32fast::Hasher::new_with_initial_len(inner, (end - MARK_BYTES) as u64));
    crc.update(&raw[end..]);
    crc.finalize()
}

/// A checkpoint of one moment, to be encoded later and elsewhere.
pub struct Frozen {
    term: Term,
    conf: Conf,
    members: Members,
    certifier: certifier::Frozen,
    committed_indexes: CommittedIndexes,
}

/// `term`, `conf` and `members` are those at the last index that the certifier has decided.  The checkpoint's origin is
/// *made*.
pub fn freeze(
    term: Term,
    conf: &Conf,
    members: &Members,
    certifier: &Certifier,
    committed_indexes: &CommittedIndexes,
) -> Frozen {
    let (conf, members, committed_indexes) = (conf.clone(), members.clone(), committed_indexes.clone());
    Frozen { term, conf, members, certifier: certifier.freeze(), committed_indexes }
}

impl Frozen {
    /// The last index that it covers.
    pub fn index(&self) -> LogIndex {
        self.certifier.decided
    }

    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(1024);
        out.put_u32_le(MAGIC);
        let level = self.members.level;
        out.put_u16_le(if level == Level(0) { VERSION_OF_LEVEL_0 } else { VERSION });
        out.put_u16_le(MADE);
        out.put_u64_le(self.index().0);
        out.put_u64_le(self.term.0);
        for ids in [&self.conf.voters, &self.conf.outgoing, &self.conf.learners, &self.conf.learners_next] {
            out.put_u32_le(ids.len() as u32);
            ids.iter().for_each(|id| out.put_u32_le(id.0));
        }
        out.put_u8(u8::from(self.conf.auto_leave));
        if level > Level(0) {
            out.put_u16_le(level.0);
        }
        self.members.put(&mut out);
        self.certifier.encode(&self.committed_indexes, &mut out);
        let crc = crc32fast::hash(&out[MARK_BYTES..]);
        out.put_u32_le(crc);
        out.freeze()
    }
}

/// The same checkpoint, marked as one that came from another node.
pub fn installed(raw: &[u8]) -> Bytes {
    let mut out = BytesMut::from(raw);
    if let Some(origin) = out.get_mut(ORIGIN_AT..MARK_BYTES) {
        origin.copy_from_slice(&installed_origin());
    }
    out.freeze()
}

/// The two bytes at [`ORIGIN_AT`] of a checkpoint that came from another node.
pub fn installed_origin() -> [u8; 2] {
    INSTALLED.to_le_bytes()
}

/// The two bytes at [`ORIGIN_AT`] of a checkpoint whose log is in order.
pub fn in_order_origin() -> [u8; 2] {
    MADE.to_le_bytes()
}

/// A checkpoint with a right mark and checksum.
struct Opened {
    /// It begins at the head.
    r: Reader,
    version: u16,
    installed: bool,
}

fn open(raw: &Bytes) -> Result<Opened> {
    let Some(end) = raw.len().checked_sub(4).filter(|end| *end >= MARK_BYTES) else {
        return Err(Error::corrupted(WHAT, "it is shorter than its mark and checksum"));
    };
    let mut mark = Reader::new(WHAT, raw.slice(..MARK_BYTES));
    let (magic, version, origin) = (mark.u32("magic")?, mark.u16("version")?, mark.u16("origin")?);
    if magic == MAGIC && version > VERSION {
        let why = format!("a later release of Onetrip has written it (version {version}; this one knows {VERSION})");
        return Err(Error::corrupted(WHAT, why));
    }
    if magic != MAGIC || ![VERSION_OF_LEVEL_0, VERSION].contains(&version) {
        return Err(Error::corrupted(WHAT, "it is no checkpoint of this version of Onetrip"));
    }
    if origin != MADE && origin != INSTALLED {
        return Err(Error::corrupted(WHAT, "its mark is damaged"));
    }
    let crc = u32::from_le_bytes([raw[end], raw[end + 1], raw[end + 2], raw[end + 3]]);
    if crc32fast::hash(&raw[MARK_BYTES..end]) != crc {
        return Err(Error::corrupted(WHAT, "its checksum does not match"));
    }
    Ok(Opened { r: Reader::new(WHAT, raw.slice(MARK_BYTES..end)), version, installed: origin == INSTALLED })
}

fn take_head(r: &mut Reader, version: u16) -> Result<(LogIndex, Term, Conf, Members)> {
    let (index, term) = (r.index("index")?, Term(r.u64("term")?));
    let mut ids = || -> Result<Vec<NodeId>> {
        let n = r.u32("count")? as usize;
        let raw = r.take(n.saturating_mul(4), "ids")?;
        let id = |raw: &[u8]| NodeId(u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]));
        Ok(raw.chunks_exact(4).map(id).collect())
    };
    let (voters, outgoing, learners, learners_next) = (ids()?, ids()?, ids()?, ids()?);
    let auto_leave = match r.u8("auto leave")? {
        0 => false,
        1 => true,
        other => return Err(r.error(format!("auto leave {other}"))),
    };
    let conf = Conf { voters, outgoing, learners, learners_next, auto_leave };
    let level = match version {
        VERSION_OF_LEVEL_0 => Level(0),
        _ => Level(r.u16("level")?),
    };
    if version == VERSION && level == Level(0) {
        return Err(r.error("level 0 in a checkpoint of a higher level"));
    }
    Ok((index, term, conf, Members { level, ..Members::take(r)? }))
}

/// The checksum is right, so only a wrong program can have written this.
fn corrupted(error: Error) -> Error {
    match error {
        Error::Malformed { what, why } => Error::Corrupted { what, why },
        other => other,
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint {{ index: {}, term: {}, conf: {:?} }}", self.index(), self.term, self.conf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::{Member, MemberRole};
    use proptest::prelude::*;

    fn some() -> Checkpoint {
        let member = |id: u32| Member {
            id: NodeId(id),
            region: "r".into(),
            address: format!("h:{id}"),
            role: MemberRole::Voter,
            voter: id < 4,
            slot: Some(id),
            replaces: None,
            joined: Some(crate::members::Joined { token: [id as u8; 32], attempt: 7, expires_unix_s: 8 }),
        };
        let members = Members::bootstrap((1..=4).map(member).collect(), "r".into(), 8);
        let mut c = Checkpoint::bootstrap(members, Limits::default());
        c.certifier.skip(LogIndex(1)).unwrap();
        c.term = Term(7);
        c.conf.outgoing = vec![NodeId(1), NodeId(2), NodeId(9)];
        c.conf.auto_leave = true;
        c
    }

    /// A different beginning shows if verdicts or the leader's place depend on it; a different address does not.
    #[test]
    fn nodes_that_begin_otherwise_can_be_told_apart() {
        let first = some().members;
        let began = |members: &Members, limits| Checkpoint::bootstrap(members.clone(), limits).members.beginning;
        let same = began(&first, Limits::default());
        let mut elsewhere = first.clone();
        elsewhere.members[0].address = "proxy:1".into();
        assert_eq!(began(&elsewhere, Limits::default()), same);
        assert_ne!(began(&first, Limits { window_entries: 7, ..Limits::default() }), same);
        let mut others = [first.clone(), first.clone(), first.clone(), first.clone(), first];
        others[0].members.pop();
        others[1].members[1].slot = Some(5);
        others[2].stride = 1;
        others[3].preferred_leader = "other".into();
        others[4].leader_is_auto = true;
        assert!(others.iter().all(|members| began(members, Limits::default()) != same));
    }

    #[test]
    fn a_checkpoint_comes_back_and_keeps_its_mark_apart() {
        let c = some();
        let raw = c.encode();
        let back = Checkpoint::decode(raw.clone(), Limits::default()).unwrap();
        assert_eq!((back.term, back.index(), &back.conf, &back.members), (c.term, LogIndex(1), &c.conf, &c.members));
        assert!(!back.installed);
        let moved = installed(&raw);
        assert_eq!([crc_of_verified(&raw), crc_of_verified(&moved)], [crc32fast::hash(&raw), crc32fast::hash(&moved)]);
        assert_eq!(crc_of_verified(&raw[..MARK_BYTES]), crc32fast::hash(&raw[..MARK_BYTES]));
        let head = peek(&moved).unwrap();
        assert!(head.installed && Checkpoint::decode(moved.clone(), Limits::default()).unwrap().installed);
        assert_eq!((head.index, head.term, head.conf, head.members), (LogIndex(1), c.term, c.conf.clone(), c.members));
        let mut settled = moved.to_vec();
        settled[ORIGIN_AT..MARK_BYTES].copy_from_slice(&in_order_origin());
        assert_eq!(settled, raw);
        assert_eq!(Conf::from(&ConfState::from(&c.conf)), c.conf);
    }

    #[test]
    fn one_wrong_bit_anywhere_is_noticed() {
        let raw = some().encode();
        for bit in 0..raw.len() * 8 {
            let mut bad = raw.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(peek(&bad.clone().into()), Err(Error::Corrupted { .. })), "bit {bit}");
            assert!(Checkpoint::decode(bad.into(), Limits::default()).is_err(), "bit {bit}");
        }
    }

    proptest! {
        /// This includes bytes with a right mark and checksum, and anything in between.
        #[test]
        fn decoding_survives_any_bytes(body in proptest::collection::vec(any::<u8>(), 0..400), at in any::<proptest::sample::Index>()) {
            let _ = Checkpoint::decode(body.clone().into(), Limits::default());
            let good = some().encode();
            let keep = MARK_BYTES + at.index(good.len() - MARK_BYTES - 4);
            let mut raw = BytesMut::from(&good[..keep]);
            raw.put_slice(&body);
            let crc = crc32fast::hash(&raw[MARK_BYTES..]);
            raw.put_u32_le(crc);
            let raw = raw.freeze();
            let _ = peek(&raw);
            let _ = Checkpoint::decode(raw, Limits::default());
        }
    }
}
