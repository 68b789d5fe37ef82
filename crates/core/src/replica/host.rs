//! What a [`super::Replica`] needs of the world outside.

use super::{RebuildFrom, Report};
use crate::certifier::{Certifier, CommittedIndexes, Decision, Limits};
use crate::checkpoint::Frozen;
use crate::consensus::{Committed, Consensus, Leadership, Message, Notice};
use crate::decide::decide;
use crate::error::Error;
use crate::ids::{LogIndex, NodeId, Term, TxnId};
use crate::members::Members;
use crate::router::{Event, Log, Outbox};
use crate::{Checkpoint, Conf};
use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, HardState};
use raft::{GetEntriesContext, Storage};
use std::sync::Arc;
use std::time::Duration;

/// The log on disk, and the checkpoint beside it.
pub trait Store: Storage + Log {
    fn term_at(&self, index: LogIndex) -> Option<Term>;
    /// The checkpoint from which this life goes on: everything up to `index` was committed.
    fn stand_on(&mut self, index: LogIndex, conf: &Conf);
    /// Appends; entries from the first one's index on are replaced.  Durable on return.
    fn append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>) -> Result<(), Self::Error>;
    /// Takes a checkpoint that came from elsewhere, marked so.  Durable on return; the log may be shorter than it.
    fn install_checkpoint(&mut self, index: LogIndex, raw: &Bytes) -> Result<(), Self::Error>;
    /// Forgets all entries: the log goes on after `index`.  What was promised stays.
    fn restart(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) -> Result<(), Self::Error>;
    /// The log is in order again: from now on it may not be shorter than the installed checkpoint.
    fn mark_log_in_order(&mut self) -> Result<(), Self::Error>;
    /// A newer checkpoint is durable.
    fn checkpointed(&mut self, index: LogIndex, conf: &Conf);
    /// A member needs entries that were cut, and the last checkpoint does not serve it.
    fn wants_checkpoint(&self) -> bool;
    /// Raft may be refused entries that it wants to send (`LogTemporarilyUnavailable`) until they have been read beside the
    /// replica's work.  Those of its questions that can be answered now; [`super::Replica::fetched`] asks.
    fn take_fetched(&mut self) -> Vec<GetEntriesContext>;
    /// Drops entries up to `upto`, or fewer.
    fn cut(&mut self, upto: LogIndex) -> Result<(), Self::Error>;
    /// How large it is, in bytes or another unit of [`super::Settings::log_bytes_max`].
    fn bytes(&self) -> u64;
    /// The index after which the entries have no more than so many bytes.
    fn index_leaving(&self, bytes: u64) -> LogIndex;
}

/// Its first and last index; raft's own methods have the same names.
pub(super) fn ends<S: Store>(store: &S) -> (LogIndex, LogIndex) {
    (Log::first_index(store), Log::last_index(store))
}

/// Between which effects a replica is.  Whatever ends a node may end it at any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// As what PostgreSQL runs is durable, and nothing rests on it yet.
    StartsSaved,
    /// The router has a transaction that is to be proposed.
    Received,
    Proposed,
    /// The router may have said something.
    Answered,
    BeforeSend,
    BeforeWrite,
    /// Another node's checkpoint is durable, and the log is not emptied for it yet.
    CheckpointInstalled,
    LogRestarted,
    CheckpointSettled,
    Appended,
    Persisted,
    Restored,
    /// A transaction is committed by a majority, and not certified.
    Committed,
    Certified,
    /// The session that waits has its verdict.
    Told,
    /// The apply worker has what was decided.
    Fed,
    RoundDone,
}

/// The world around a replica.  Nothing here may wait, but for the disk.
pub trait Host {
    type Error: From<Error> + From<<Self::Store as Log>::Error>;
    type Store: Store;
    type Outbox: Outbox;

    /// Monotonic; since when does not matter.
    fn now(&self) -> Duration;
    /// `Err` ends the replica here.
    fn stage(&mut self, stage: Stage) -> Result<(), Self::Error>;

    /// May be lost.  `false`: the way to its receiver is full.
    fn send(&mut self, message: Message) -> bool;
    /// Of what was sent to it, something large waits to leave, or is moving.  Whoever says so sees to it that this has an
    /// end, or says [`super::Replica::unreachable`].
    fn is_sending(&mut self, to: NodeId) -> bool;
    /// What this node's disk has, to each of these.  May be lost; it must not wait behind anything large.
    fn send_notice(&mut self, to: &[NodeId], notice: Notice);
    /// To all members.
    fn send_report(&mut self, own: &Report);
    /// To the others, as measured lately: the least, in microseconds.  Those that are not connected are not among them.
    fn round_trips(&mut self) -> Vec<(NodeId, u32)>;
    /// How long a follower waits for its leader, as measured round trips would have it.
    fn election_ticks(&mut self, members: &Members) -> usize;

    /// As what PostgreSQL has run and the log may not have heard of; durable on return.
    fn save_starts(&mut self, store: &mut Self::Store, starts: Vec<u64>) -> Result<(), Self::Error>;
    fn append(
        &mut self,
        store: &mut Self::Store,
        entries: &[RaftEntry],
        hard_state: Option<&HardState>,
    ) -> Result<(), Self::Error> {
        Ok(store.append(entries, hard_state)?)
    }
    fn install_checkpoint(
        &mut self,
        store: &mut Self::Store,
        (index, _term): (LogIndex, Term),
        raw: &Bytes,
    ) -> Result<(), Self::Error> {
        Ok(store.install_checkpoint(index, raw)?)
    }
    fn restart_log(
        &mut self,
        store: &mut Self::Store,
        (index, term): (LogIndex, Term),
        hard_state: Option<&HardState>,
    ) -> Result<(), Self::Error> {
        Ok(store.restart(index, term, hard_state)?)
    }
    /// Begins to encode and write a checkpoint, beside the replica's work; [`super::Replica::checkpointed`] is called when it
    /// is durable.
    fn write_checkpoint(&mut self, checkpoint: Frozen) -> Result<(), Self::Error>;
    /// Begins to open another node's snapshot ([`crate::consensus::Opened::open`]), beside the replica's work, and may prepare there what
    /// [`Host::install_checkpoint`] does with it; [`super::Replica::opened`] is called with what came of it.  Until that one is
    /// installed, or passed over, no other one is given.
    fn open_snapshot(&mut self, message: Message, limits: Limits) -> Result<(), Self::Error>;
    /// Somebody waits for a new checkpoint.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// A checkpoint up to `index` is durable.
    fn checkpointed(&mut self, _index: LogIndex, _tick: u64) {}
    /// Entries above it are to stay in the log, for whoever else reads it.
    fn log_needed_above(&mut self, _tick: u64) -> Option<LogIndex> {
        None
    }

    /// PostgreSQL's data folder is to be made anew; `None`: it is not, or not any more.
    fn rebuild(&mut self, order: Option<RebuildFrom>);
    /// May PostgreSQL be copied because it cannot apply an entry?  `Err`: why not now.
    fn may_heal(&self) -> Result<(), String>;
    /// PostgreSQL stands still at `at` because of `why`, and is not copied.
    fn not_healed(&mut self, at: LogIndex, why: &str, why_not: String);

    /// [`decide`], and a look at what it comes to.
    fn decide(
        &mut self,
        entry: &Committed,
        certifier: &mut Certifier,
        committed_indexes: &mut CommittedIndexes,
        members: &mut Arc<Members>,
    ) -> Result<Option<(TxnId, Decision)>, Error> {
        decide(entry, certifier, committed_indexes, members)
    }
    /// After each input and each output of consensus.
    fn looks(&mut self, _consensus: &mut Consensus<Self::Store>, _tick: u64) {}
    /// All that one output of consensus asked for is done.
    fn round_done(&mut self, _consensus: &Consensus<Self::Store>) {}
    fn ignored(&mut self, _error: Error) {}
    fn has_leader(&mut self, now: Leadership, members: &Members, decided: LogIndex);
    fn has_members(&mut self, members: &Arc<Members>, decided: LogIndex);
    /// Another node's checkpoint has taken the place of what this one knew.
    fn restored(&mut self, state: &Checkpoint);
    /// This node is no member any more.
    fn removed(&mut self, decided: LogIndex) -> Self::Error;
    fn router_event(&mut self, _event: Event) {}
}
