//! What a [`super::Replica`] needs from the outside world.

use super::{RebuildFrom, Report};
use crate::certifier::{Certifier, CommittedIndexes, Decision, Limits};
use crate::checkpoint::Frozen;
use crate::consensus::{Committed, Consensus, Leadership, Message, Notice};
use crate::decide::decide;
use crate::error::Error;
use crate::ids::{EntryId, LogIndex, NodeId, Term, TxnId};
use crate::members::Members;
use crate::router::{Event, Log, Outbox};
use crate::row_locks::LockMessage;
use crate::{Checkpoint, Conf};
use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, HardState};
use raft::{GetEntriesContext, Storage};
use std::sync::Arc;
use std::time::Duration;

/// The log on disk, and the checkpoint beside it.
pub trait Store: Storage + Log {
    fn term_at(&self, index: LogIndex) -> Option<Term>;
    /// This life goes on from the checkpoint at `index`: everything up to there was committed.
    fn stand_on(&mut self, index: LogIndex, conf: &Conf);
    /// Appends `entries`, and replaces what the log has from the first one's index on.  Durable on return, with
    /// everything that was written before.
    fn append(&mut self, entries: &[RaftEntry], hard_state: Option<&HardState>) -> Result<(), Self::Error>;
    /// Stores a checkpoint that came from another node, and marks it so.  Durable on return; the log may then end below
    /// it.
    fn install_checkpoint(&mut self, index: LogIndex, raw: &Bytes) -> Result<(), Self::Error>;
    /// Drops all entries: the log goes on after `index`.  What was promised (term and vote) stays.
    fn restart(&mut self, index: LogIndex, term: Term, hard_state: Option<&HardState>) -> Result<(), Self::Error>;
    /// The log is in order again: from now on it may not end below the installed checkpoint.
    fn mark_log_in_order(&mut self) -> Result<(), Self::Error>;
    /// A newer checkpoint is durable.
    fn checkpointed(&mut self, index: LogIndex, conf: &Conf);
    /// A member needs entries that have been cut, and the last checkpoint does not help it.
    fn wants_checkpoint(&self) -> bool;
    /// The log may refuse to give Raft entries that it wants to send (`LogTemporarilyUnavailable`) until they have been
    /// read, which happens beside the replica's work.  Returns those of Raft's requests that can be answered by now;
    /// [`super::Replica::fetched`] calls this.
    fn take_fetched(&mut self) -> Vec<GetEntriesContext>;
    /// Drops entries up to `upto`; it may drop fewer.  The parts of a transaction stay as long as the entry that
    /// names them ([`crate::parts::Spans`]).
    fn cut(&mut self, upto: LogIndex) -> Result<(), Self::Error>;
    /// The log's size in the unit of [`super::Settings::log_bytes_max`], which need not be bytes.
    fn bytes(&self) -> u64;
    /// An index after which the entries of the log take no more than `bytes`.
    fn index_leaving(&self, bytes: u64) -> LogIndex;
}

/// The log's first and last index. (`Storage` has a `last_index` of its own.)
pub(super) fn ends<S: Store>(store: &S) -> (LogIndex, LogIndex) {
    (LogIndex(Storage::first_index(store).unwrap_or(u64::MAX)), Log::last_index(store))
}

/// A point between two effects of a replica's work.  A node may crash at any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The incarnations that PostgreSQL has started as are durable, and nothing rests on them yet.
    StartsSaved,
    /// The router has a transaction that is to be proposed.
    Received,
    Proposed,
    /// The router may have sent something to PostgreSQL.
    Answered,
    BeforeSend,
    BeforeWrite,
    /// Another node's checkpoint is durable, and the log has not been emptied for it yet.
    CheckpointInstalled,
    LogRestarted,
    CheckpointSettled,
    Appended,
    Persisted,
    Restored,
    /// A transaction's entry is committed by a majority, and not certified yet.
    Committed,
    Certified,
    /// The session that waits has been sent its verdict.
    Told,
    /// The apply worker has been sent what was decided.
    Fed,
    RoundDone,
}

/// The world around a replica.  No method may wait, except for the disk.
pub trait Host {
    type Error: From<Error> + From<<Self::Store as Log>::Error>;
    type Store: Store;
    type Outbox: Outbox;

    /// A monotonic clock, read anew on every call; where it starts does not matter.  Read leases rest on how fast it
    /// goes ([`super::leases::DRIFT_MAX_PERCENT`]), also while the machine sleeps.
    fn now(&self) -> Duration;
    /// `Err` ends the replica at this point.
    fn stage(&mut self, stage: Stage) -> Result<(), Self::Error>;

    /// The message may be lost.  `false`: the queue for its receiver is full.
    fn send(&mut self, message: Message) -> bool;
    /// Whether something large that was sent to this node still waits to leave, or is on its way.  A host that says so
    /// makes sure that this comes to an end, or calls [`super::Replica::unreachable`].
    fn is_sending(&mut self, to: NodeId) -> bool;
    /// Tells each of these nodes what this node's disk has.  A notice may be lost; it must not wait behind anything
    /// large.
    fn send_notice(&mut self, to: &[NodeId], notice: Notice);
    /// Asks each of these nodes for the last entry on its disk ([`super::Replica::question`]).  A question may be lost;
    /// it must not wait behind anything large.
    fn send_question(&mut self, to: &[NodeId], question: u64);
    /// Answers such a question ([`super::Replica::last_entry_of`]).
    fn send_last_entry(&mut self, to: NodeId, question: u64, last: EntryId);
    /// Asks each of these nodes for a promise ([`super::Replica::lease_question`]).  Like a question.
    fn send_lease_question(&mut self, to: &[NodeId], question: u64);
    /// Promises what was asked for ([`super::Replica::promise_of`]).
    fn send_promise(&mut self, to: NodeId, question: u64, last: EntryId);
    /// Sends this node's report to these members; `None`: to all.
    fn send_report(&mut self, to: Option<&[NodeId]>, own: &Report);
    /// Asks each of these nodes for a report as soon as its server shows `at` ([`super::Replica::awaits`]).  That may
    /// be lost; it must not wait behind anything large.
    fn send_await(&mut self, to: &[NodeId], at: LogIndex);
    /// Says this about row locks ([`super::Replica::lock_message`]).  It may be lost; it must not wait behind anything
    /// large.
    fn send_lock_message(&mut self, to: NodeId, message: LockMessage);
    /// The lowest round trips to the other members measured lately, in microseconds.  Members that are not connected
    /// are not among them.
    fn round_trips(&mut self) -> Vec<(NodeId, u32)>;
    /// How many ticks a follower should wait for its leader, given the measured round trips.
    fn election_ticks(&mut self, members: &Members) -> usize;

    /// Saves the incarnations that PostgreSQL has run as and that the log may not contain yet; durable on return.
    fn save_starts(&mut self, store: &mut Self::Store, starts: Vec<u64>) -> Result<(), Self::Error>;
    /// Saves whether this node may be bound by promises ([`super::leases`]); durable on return.
    fn save_promised(&mut self, store: &mut Self::Store, promised: bool) -> Result<(), Self::Error>;
    fn append(
        &mut self,
        store: &mut Self::Store,
        entries: &[RaftEntry],
        hard_state: Option<&HardState>,
    ) -> Result<(), Self::Error> {
        Ok(store.append(entries, hard_state)?)
    }
    /// The same for entries that follow the end of the log and need not be durable on return.  `false`: they are not,
    /// though they can be read, and [`super::Replica::synced`] will be called with this `number` or a higher one.
    fn begin_append(
        &mut self,
        store: &mut Self::Store,
        entries: &[RaftEntry],
        hard_state: Option<&HardState>,
        _number: u64,
    ) -> Result<bool, Self::Error> {
        self.append(store, entries, hard_state).map(|()| true)
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
    /// Begins to encode and write a checkpoint, beside the replica's work; [`super::Replica::checkpointed`] is called
    /// when it is durable.
    fn write_checkpoint(&mut self, checkpoint: Frozen) -> Result<(), Self::Error>;
    /// Begins to open another node's snapshot ([`crate::consensus::Opened::open`]), beside the replica's work; it may
    /// also prepare what [`Host::install_checkpoint`] will do with it.  [`super::Replica::opened`] is called with the
    /// result.  No other snapshot is given until that one has been installed or passed over.
    fn open_snapshot(&mut self, message: Message, limits: Limits) -> Result<(), Self::Error>;
    /// Whether somebody waits for a checkpoint: a new one, or the last one between the parts of a transaction.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// A checkpoint up to `index` is durable.
    fn checkpointed(&mut self, _index: LogIndex, _tick: u64) {}
    /// All is in `decided` that was acknowledged anywhere before [`super::Replica::confirm`] was called with this mark.
    fn confirmed(&mut self, _mark: u64, _decided: LogIndex) {}
    /// Entries above this index must stay in the log, because the archive or a backup needs them.
    fn log_needed_above(&mut self, _tick: u64) -> Option<LogIndex> {
        None
    }

    /// Has PostgreSQL's data folder made anew, or, with `None`, withdraws the order.
    fn rebuild(&mut self, order: Option<RebuildFrom>);
    /// Whether PostgreSQL may be copied because it cannot apply an entry.  `Err`: why not now.
    fn may_heal(&self) -> Result<(), String>;
    /// PostgreSQL is stuck at `at` because of `why`, and it is not copied because of `why_not`.
    fn not_healed(&mut self, at: LogIndex, why: &str, why_not: String);

    /// Calls [`decide`]; a host may look at the result.
    fn decide(
        &mut self,
        entry: &Committed,
        certifier: &mut Certifier,
        committed_indexes: &mut CommittedIndexes,
        members: &mut Arc<Members>,
    ) -> Result<Option<(TxnId, Decision)>, Error> {
        decide(entry, certifier, committed_indexes, members)
    }
    /// Called after each input to consensus and after each of its outputs.
    fn looks(&mut self, _consensus: &mut Consensus<Self::Store>, _tick: u64) {}
    /// All that one output of consensus asked for is done.
    fn round_done(&mut self, _consensus: &Consensus<Self::Store>) {}
    fn ignored(&mut self, _error: Error) {}
    fn has_leader(&mut self, now: Leadership, members: &Members, decided: LogIndex);
    fn has_members(&mut self, members: &Arc<Members>, decided: LogIndex);
    /// Another node's checkpoint has replaced what this node knew.
    fn restored(&mut self, state: &Checkpoint);
    /// This node is not a member any more.  The replica ends with the error that this returns.
    fn removed(&mut self, decided: LogIndex) -> Self::Error;
    fn router_event(&mut self, _event: Event) {}
}
