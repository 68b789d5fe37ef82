//! Makes the log and the checkpoint of a new cluster's first node, from an old cluster's checkpoint and the entries
//! that followed it.
//!
//! The entries are written as a log of their own and decided anew by the same code as in a running node, with the
//! members of that time.  Then the table of members is replaced: the only member is the new node, under an id that was
//! never used.  When the node starts, it sends PostgreSQL the entries that PostgreSQL lacks, as after any crash.
//!
//! It knows files and entries; the caller says where the entries come from ([`Source`]).

use crate::archive::Stored;
use crate::disk::{CheckpointFile, RaftLog};
use crate::error::Error;
use bytes::Bytes;
use onetrip_core::certifier::Limits;
use onetrip_core::consensus::{Committed, Config, Consensus, Output};
use onetrip_core::replica::Store;
use onetrip_core::{decide, Checkpoint, Conf, LogIndex, Member, MemberRole, Members, NodeId, RegionId, Term};
use raft::eraftpb::{Entry as RaftEntry, HardState};
use std::path::Path;
use std::sync::Arc;

/// Entries are written in pieces of this size.
const BATCH_BYTES: usize = 1 << 20;

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// All there is.
    End,
    /// Up to and with this entry.
    Position(LogIndex),
    /// Up to the last entry decided by then, in milliseconds since 1970.
    Time(u64),
}

/// What to restore, and to where.
pub struct Restore<'a> {
    /// The new node's folder.
    pub folder: &'a Path,
    pub limits: Limits,
    /// The new node.
    pub region: RegionId,
    pub address: String,
    /// Which of the interleaved sequence values are its own; preferably those of the node that the backup is from.
    pub sequence_slot: u32,
    pub checkpoint: Bytes,
    /// PostgreSQL's copy may show entries up to this one, so none below can be the goal.
    pub least: LogIndex,
    pub goal: Goal,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub node: NodeId,
    /// The last entry.
    pub index: LogIndex,
    pub term: Term,
    /// When it was decided, if the log says so.
    pub time_ms: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the log ends at entry {last}; position {wanted} is beyond it")]
    BeyondPosition { last: LogIndex, wanted: LogIndex },
    /// `until_ms`: nothing newer was decided up to then.
    #[error("the log ends at entry {last} and is complete only until {until_ms} ms since 1970")]
    BeyondTime { last: LogIndex, until_ms: u64 },
    #[error("entry {at} has no time: only an archive has times, a node's own log has none; give a position instead")]
    NoTime { at: LogIndex },
    #[error(
        "the log ends at entry {last}, but the backup's own entries go to {least}: the backup is damaged, take another"
    )]
    BelowBackup { last: LogIndex, least: LogIndex },
    #[error("entry {at} is of term {term}, the one before it of {before}: these logs do not belong together")]
    NotOneLog { at: LogIndex, term: Term, before: Term },
    #[error("the backup's checkpoint: {0}")]
    Checkpoint(onetrip_core::Error),
    #[error(transparent)]
    Node(#[from] Error),
    #[error(transparent)]
    Core(#[from] onetrip_core::Error),
}

/// Where the entries are read from.
pub trait Source<E> {
    /// The entry that follows this one in the same log; `None`: there is no more.
    fn next(&mut self, last: (LogIndex, Term)) -> Result<Option<Stored>, E>;
    /// Nothing newer than `last` had been decided up to this time, in milliseconds since 1970.
    fn quiet_until_ms(&mut self, last: LogIndex) -> Result<u64, E>;
    /// Called now and then, to show how far it is.
    fn progress(&mut self, at: LogIndex);
}

struct Copied {
    last: (LogIndex, Term),
    time_ms: Option<u64>,
}

impl Restore<'_> {
    /// Writes `log/` and the checkpoint into the folder.
    pub fn run<E: From<RestoreError>>(&self, source: &mut impl Source<E>) -> Result<Restored, E> {
        let old = Checkpoint::decode(self.checkpoint.clone(), self.limits).map_err(RestoreError::Checkpoint)?;
        let start = (old.index(), old.term);
        let mut log = RaftLog::open(&self.folder.join("log")).map_err(RestoreError::Node)?;
        log.restart(start.0, start.1, None).map_err(RestoreError::Node)?;
        let copied = self.copy(start, &mut log, source)?;
        let (node, state) = self.decide(old, log, copied.last)?;
        let file = CheckpointFile::new(self.folder.join("certifier.checkpoint"));
        file.save(state.index(), &state.encode()).map_err(RestoreError::Node)?;
        Ok(Restored { node, index: copied.last.0, term: copied.last.1, time_ms: copied.time_ms })
    }

    fn copy<E: From<RestoreError>>(
        &self,
        start: (LogIndex, Term),
        log: &mut RaftLog,
        source: &mut impl Source<E>,
    ) -> Result<Copied, E> {
        let mut copied = Copied { last: start, time_ms: None };
        let (mut batch, mut bytes): (Vec<RaftEntry>, usize) = (Vec::new(), 0);
        loop {
            let (last, before) = copied.last;
            let at = last.next();
            let is_beyond = self.goal == Goal::Position(last);
            let stored = if is_beyond { None } else { source.next(copied.last)? };
            let Some(stored) = stored.filter(|_| !is_beyond) else {
                self.check_end(last, source)?;
                break;
            };
            if let (Goal::Time(goal), true) = (self.goal, at > self.least) {
                if stored.time_ms.ok_or(RestoreError::NoTime { at })? > goal {
                    break;
                }
            }
            let term = Term(stored.entry.term);
            if term < before {
                return Err(RestoreError::NotOneLog { at, term, before }.into());
            }
            copied = Copied { last: (at, term), time_ms: stored.time_ms };
            bytes += stored.entry.data.len() + 64;
            batch.push(stored.entry);
            if bytes >= BATCH_BYTES {
                log.append(&batch, None, false).map_err(RestoreError::Node)?;
                (batch, bytes) = (Vec::new(), 0);
                source.progress(at);
            }
        }
        let (last, term) = copied.last;
        if last < self.least {
            return Err(RestoreError::BelowBackup { last, least: self.least }.into());
        }
        let promised = HardState { term: term.0, commit: last.0, ..Default::default() };
        log.append(&batch, Some(&promised), true).map_err(RestoreError::Node)?;
        Ok(copied)
    }

    /// There is no entry after `last`, or none is wanted.  `Err`: that is not enough.
    fn check_end<E: From<RestoreError>>(&self, last: LogIndex, source: &mut impl Source<E>) -> Result<(), E> {
        match self.goal {
            Goal::Position(wanted) if wanted > last => Err(RestoreError::BeyondPosition { last, wanted }.into()),
            Goal::Time(wanted) => {
                let until_ms = source.quiet_until_ms(last)?;
                if until_ms < wanted {
                    return Err(RestoreError::BeyondTime { last, until_ms }.into());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Decides the whole log as a node of the old cluster would, and returns the state of the new cluster.
    fn decide(
        &self,
        old: Checkpoint,
        log: RaftLog,
        last: (LogIndex, Term),
    ) -> Result<(NodeId, Checkpoint), RestoreError> {
        let Checkpoint { conf, members, mut certifier, mut committed_indexes, .. } = old;
        let file = CheckpointFile::new(self.folder.join("certifier.checkpoint"));
        let mut log = log;
        log.keep_checkpoints_in(file);
        log.stand_on(certifier.decided(), &conf);
        let mut members = Arc::new(members);
        let config = Config {
            id: conf.voters.first().copied().unwrap_or(NodeId(1)),
            limits: self.limits,
            applied: certifier.decided(),
            level: onetrip_core::level::KNOWN,
            heartbeat_ticks: 1,
            election_ticks: 10,
            transfer_ticks: 10,
            snapshot_ticks: 10,
        };
        let mut consensus = Consensus::new(config, log, members.clone())?;
        let mut out = Output::default();
        let mut take = |committed: Vec<Committed>| -> Result<(), RestoreError> {
            for committed in committed {
                decide::decide(&committed, &mut certifier, &mut committed_indexes, &mut members)?;
            }
            Ok(())
        };
        // This ends: neither ticks nor messages come, so nothing happens after what is committed has been handed out.
        while consensus.poll(&mut out) {
            take(std::mem::take(&mut out.committed))?;
            if let Some(persist) = out.persist.take() {
                consensus.log_mut().append(&persist.entries, Some(&persist.hard_state), true)?;
            }
            consensus.persisted(&mut out);
            take(std::mem::take(&mut out.committed))?;
        }
        if certifier.decided() != last.0 {
            let why = format!("the log was decided up to {} and holds entries up to {}", certifier.decided(), last.0);
            return Err(Error::Internal(why).into());
        }
        consensus.log_mut().close()?;
        // No transaction of the old members is under way here, and none will come.
        members.members.iter().for_each(|m| certifier.end(m.id));
        let members = self.alone(&members);
        let node = members.members[0].id;
        let (term, conf) = (last.1, Conf::of_members(&members));
        Ok((node, Checkpoint { term, conf, members, certifier, committed_indexes, installed: false }))
    }

    /// A table of members with the new node only.
    fn alone(&self, old: &Members) -> Members {
        let me = Member {
            id: old.next_id,
            region: self.region.clone(),
            address: self.address.clone(),
            role: MemberRole::Voter,
            voter: true,
            slot: Some(self.sequence_slot),
            replaces: None,
            joined: None,
        };
        Members {
            lease_regions: Vec::new(),
            version: old.version + 1,
            beginning: old.beginning,
            members: vec![me],
            preferred_leader: self.region.clone(),
            leader_is_auto: old.leader_is_auto,
            next_id: NodeId(old.next_id.0 + 1),
            stride: old.stride,
            tokens: Vec::new(),
            level: old.level,
        }
    }
}
