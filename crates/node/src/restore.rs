//! Makes the log and the checkpoint of a new cluster's first node, from an old cluster's checkpoint and the entries
//! that followed it.
//!
//! The entries are written as a log of their own and decided anew by the same code as in a running node, with the
//! members of that time.  Then the table of members is replaced: the only member is the new node, under an id that was
//! never used.  When the node starts, it sends PostgreSQL the entries that PostgreSQL lacks, as after any crash.
//!
//! It knows files and entries; the caller says where the entries come from ([`Source`]).

use crate::archive::{now_ms, Stored, CLOCK_OFF_MS, SILENCE_MS_MAX};
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

/// A time of an archive that lies after this says nothing of when the entry was decided.
fn check_clock(at: LogIndex, time_ms: u64) -> Result<(), RestoreError> {
    match time_ms > now_ms() + CLOCK_OFF_MS {
        true => Err(RestoreError::NotYet { at, time_ms }),
        false => Ok(()),
    }
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
    /// The clock of the node that archived was ahead, or this machine's is behind.
    #[error("entry {at} has the time {time_ms} ms since 1970, which is later than now")]
    NotYet { at: LogIndex, time_ms: u64 },
    #[error("entry {at} has the time {time_ms} ms since 1970, and entry {later}, which follows, {later_ms} ms")]
    TimeWentBack { at: LogIndex, time_ms: u64, later: LogIndex, later_ms: u64 },
    #[error("entry {at} was decided between {from_ms} and {to_ms} ms since 1970, and nobody knows when")]
    Silent { at: LogIndex, from_ms: u64, to_ms: u64 },
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
    /// The earliest time that is known of a later entry, and of which.
    fn earliest_after(&mut self, at: LogIndex) -> Option<(LogIndex, u64)>;
    /// When it was last known that an entry was not decided yet, and when it was first known that it was.
    fn decided_within(&mut self, at: LogIndex) -> (u64, u64);
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
                match stored.time_ms {
                    Some(time_ms) if time_ms > goal => {
                        // Another archive may know it better than the one that the entry is from.
                        let (from_ms, to_ms) = source.decided_within(at);
                        if to_ms > goal {
                            check_clock(at, time_ms)?;
                            let later = source.earliest_after(at).filter(|(_, ms)| ms + CLOCK_OFF_MS < time_ms);
                            if let Some((later, later_ms)) = later {
                                return Err(RestoreError::TimeWentBack { at, time_ms, later, later_ms }.into());
                            }
                            if from_ms < goal && from_ms + SILENCE_MS_MAX < to_ms {
                                return Err(RestoreError::Silent { at, from_ms, to_ms }.into());
                            }
                            break;
                        }
                    }
                    Some(_) => {}
                    // An archive may know that nothing newer was decided by then.
                    None => {
                        let until_ms = source.quiet_until_ms(last)?;
                        if until_ms < goal {
                            return Err(RestoreError::NoTime { at }.into());
                        }
                        check_clock(last, until_ms)?;
                        break;
                    }
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
                Ok(check_clock(last, until_ms)?)
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
        log.end_at_damage();
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
            if let Some(damage) = consensus.log_mut().take_damage() {
                return Err(damage.into());
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    /// Entries with these times, from 1 on.
    struct Times {
        times: Vec<Option<u64>>,
        quiet: (LogIndex, u64),
        later: Option<(LogIndex, u64)>,
    }

    impl Source<RestoreError> for Times {
        fn next(&mut self, last: (LogIndex, Term)) -> Result<Option<Stored>, RestoreError> {
            let found = self.times.get(last.0 .0 as usize);
            Ok(found.map(|time_ms| {
                let entry = RaftEntry { index: last.0.next().0, term: 1, ..Default::default() };
                Stored { entry, time_ms: *time_ms }
            }))
        }
        fn quiet_until_ms(&mut self, last: LogIndex) -> Result<u64, RestoreError> {
            Ok(if last == self.quiet.0 { self.quiet.1 } else { 0 })
        }
        fn earliest_after(&mut self, _: LogIndex) -> Option<(LogIndex, u64)> {
            self.later
        }
        fn decided_within(&mut self, at: LogIndex) -> (u64, u64) {
            let time = |at: u64| self.times[at as usize - 1].unwrap_or(0);
            (time(at.0 - 1), time(at.0))
        }
        fn progress(&mut self, _: LogIndex) {}
    }

    /// For the checkpoint of a cluster that has just begun.
    fn restore_to(folder: &Path, goal: u64) -> Restore<'_> {
        let text = "cluster = 'c'\nnode = 1\nregion = 'a'\nlisten = '127.0.0.1:1'\nhttp = '127.0.0.1:2'\n\
                    preferred_leader = 'a'\n[[member]]\nid = 1\nregion = 'a'\naddress = '127.0.0.1:1'\n";
        let config: NodeConfig = toml::from_str(text).unwrap();
        Restore {
            folder,
            limits: config.limits(),
            region: "a".into(),
            address: "127.0.0.1:1".into(),
            sequence_slot: 0,
            checkpoint: Checkpoint::bootstrap(config.bootstrap_members(), config.limits()).encode(),
            least: LogIndex(1),
            goal: Goal::Time(goal),
        }
    }

    fn restored_to(goal: u64, mut source: Times) -> Result<LogIndex, RestoreError> {
        let folder = tempfile::tempdir().unwrap();
        restore_to(folder.path(), goal).run(&mut source).map(|restored| restored.index)
    }

    /// Goal: a bad disk is said, as the file and what is wrong with it, and is no panic.
    /// Method: an entry changes on disk after the log was opened.
    #[test]
    fn an_entry_that_goes_bad_while_the_log_is_decided_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let restore = restore_to(folder.path(), 0);
        let old = || Checkpoint::decode(restore.checkpoint.clone(), restore.limits).unwrap();
        let start = (old().index(), old().term);
        let path = folder.path().join("log");
        let mut log = RaftLog::open(&path).unwrap();
        log.restart(start.0, start.1, None).unwrap();
        let data = Bytes::from_static(b"of an entry that is none");
        let entry = RaftEntry { index: start.0.next().0, term: 1, data: data.clone(), ..Default::default() };
        let promised = HardState { term: 1, commit: entry.index, ..Default::default() };
        let last = (LogIndex(entry.index), Term(1));
        log.append(&[entry], Some(&promised), true).unwrap();
        log.close().unwrap();

        let log = RaftLog::open(&path).unwrap();
        assert_eq!(log.last_index(), last.0);
        let found = crate::disk::segment_numbers(&path).unwrap();
        let file = path.join(format!("{:016x}.log", found[found.len() - 1]));
        let mut raw = std::fs::read(&file).unwrap();
        let at = raw.windows(data.len()).position(|bytes| bytes == &data[..]).expect("it is there");
        raw[at] ^= 1;
        std::fs::write(&file, raw).unwrap();
        let Err(e) = restore.decide(old(), log, last) else { panic!("it was decided") };
        assert!(matches!(&e, RestoreError::Node(Error::Corrupted { file: named, .. }) if *named == file), "{e}");
    }

    /// Goal: an archive that is complete to the given time is enough, also if a node's log goes further.
    #[test]
    fn what_follows_an_archive_that_was_quiet_until_then_is_left_out() {
        let log = |until_ms| Times {
            times: vec![None, Some(10), Some(20), None],
            quiet: (LogIndex(3), until_ms),
            later: None,
        };
        assert_eq!(restored_to(30, log(30)).unwrap(), LogIndex(3));
        assert_eq!(restored_to(15, log(30)).unwrap(), LogIndex(2));
        assert!(matches!(restored_to(31, log(30)), Err(RestoreError::NoTime { at: LogIndex(4) })));
    }

    /// Goal: what was decided while the archive was away for long, and got a time when it was back, is not taken for
    /// what was decided then.
    #[test]
    fn nothing_is_restored_to_a_time_at_which_the_archive_was_away() {
        let away = || Times {
            times: vec![None, Some(10), Some(50_000), Some(50_000)],
            quiet: (LogIndex(4), 60_000),
            later: None,
        };
        let found = restored_to(20_000, away());
        assert!(
            matches!(found, Err(RestoreError::Silent { at: LogIndex(3), from_ms: 10, to_ms: 50_000 })),
            "{found:?}"
        );
        assert_eq!(restored_to(10, away()).unwrap(), LogIndex(2));
        assert_eq!(restored_to(50_000, away()).unwrap(), LogIndex(4));
    }

    /// Goal: while the archiving node's clock was wrong its times say nothing, and then nothing is restored to them.
    #[test]
    fn a_clock_that_was_wrong_is_found_out() {
        let (soon, ever) = (now_ms() + 2 * CLOCK_OFF_MS, LogIndex(0));
        let jumped = |ahead, later| Times { times: vec![None, Some(10), Some(ahead)], quiet: (ever, 0), later };
        assert_eq!(restored_to(15, jumped(20, None)).unwrap(), LogIndex(2));
        assert!(matches!(restored_to(15, jumped(soon, None)), Err(RestoreError::NotYet { at: LogIndex(3), .. })));
        // By now that time has come, too.
        let ahead = CLOCK_OFF_MS + 1_000;
        let later = |ms| Some((LogIndex(4), ms));
        let found = restored_to(15, jumped(ahead, later(30)));
        assert!(matches!(found, Err(RestoreError::TimeWentBack { later: LogIndex(4), .. })), "{found:?}");
        let found = restored_to(15, jumped(SILENCE_MS_MAX, later(1_000)));
        assert_eq!(found.unwrap(), LogIndex(2));
        // At the end of the log.
        let quiet = |until_ms| Times { times: vec![None, Some(10)], quiet: (LogIndex(2), until_ms), later: None };
        assert_eq!(restored_to(15, quiet(20)).unwrap(), LogIndex(2));
        assert!(matches!(restored_to(15, quiet(soon)), Err(RestoreError::NotYet { at: LogIndex(2), .. })));
    }
}
