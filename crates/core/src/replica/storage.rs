//! What a replica keeps on disk: the log, its own checkpoints, and a checkpoint that came from another node.
//!
//! Invariants:
//! - A checkpoint that came from another node is durable before the log is emptied for it; after a crash between the
//!   two, the next start repairs the log.
//! - The log is cut only below the durable checkpoint and below what this node's own PostgreSQL has durably applied.
//!   It is not cut above what another member needs either, until it is larger than `log_bytes_max`; and never between
//!   the parts of a transaction and the entry that names them.

use super::host::ends;
use super::{Host, Replica, Stage, Store};
#[cfg(doc)]
use crate::certifier::Certifier;
use crate::checkpoint;
use crate::consensus::{Input, Installed, Message, Opened, Output, Persist};
use crate::ids::{LogIndex, Term};
use crate::members::MemberRole;
use crate::router::Outbox;
use crate::{Checkpoint, Conf};
use bytes::Bytes;

/// Snapshots of other nodes.  From the moment when one is opened until it is installed or passed over, only the newest
/// of those that arrive is kept waiting: so memory contains no more of them, and what the host has prepared for one is
/// not in the way of another.
#[derive(Default)]
pub(super) struct Snapshots {
    under_way: UnderWay,
    waiting: Option<Message>,
}

#[derive(Default, PartialEq)]
enum UnderWay {
    #[default]
    Nothing,
    Opening,
    /// Raft has it.
    Opened,
}

impl Snapshots {
    /// The snapshot to be looked at now, if there is one.  What was opened before has been installed or passed over.
    pub fn next(&mut self) -> Option<Message> {
        if self.under_way == UnderWay::Opened {
            self.under_way = UnderWay::Nothing;
        }
        self.waiting.take_if(|_| self.under_way == UnderWay::Nothing)
    }
}

impl<S: Store, O: Outbox> Replica<S, O> {
    /// Repairs what a crash may have left between an installed checkpoint and the log, and lets the log stand on the
    /// checkpoint.  `Ok(Some)`: why the two do not belong together.
    pub fn put_in_order(state: &Checkpoint, store: &mut S) -> Result<Option<String>, S::Error> {
        let index = state.index();
        if state.installed {
            let (first, last) = ends(store);
            if last < index || (first <= index && store.term_at(index) != Some(state.term)) {
                store.restart(index, state.term, None)?;
            }
            store.mark_log_in_order()?;
        }
        let (first, last) = ends(store);
        if last < index || first > index.next() {
            return Ok(Some(format!("it holds entries {first} to {last}, but the checkpoint stands at {index}")));
        }
        let term = store.term_at(index).unwrap_or(Term(0));
        if term != state.term {
            return Ok(Some(format!(
                "entry {index} is of term {term} in the log, and of term {} in the checkpoint",
                state.term
            )));
        }
        store.stand_on(index, &state.conf);
        Ok(None)
    }

    /// Makes durable what consensus asks for, or begins to: whether all that has been written is durable.
    pub(super) fn persist<H: Host<Store = S, Outbox = O>>(
        &mut self,
        persist: Option<Persist>,
        host: &mut H,
    ) -> Result<bool, H::Error> {
        let Some(persist) = persist else { return Ok(!self.consensus.waits_for_disk()) };
        let store = self.consensus.log_mut();
        if let Some(Installed { index, term, data }) = persist.snapshot {
            host.install_checkpoint(store, (index, term), &data)?;
            host.stage(Stage::CheckpointInstalled)?;
            host.restart_log(store, (index, term), Some(&persist.hard_state))?;
            host.stage(Stage::LogRestarted)?;
            store.mark_log_in_order()?;
            host.stage(Stage::CheckpointSettled)?;
            self.checkpoint = index;
        }
        let (entries, hard_state) = (&persist.entries, Some(&persist.hard_state));
        let is_durable = match persist.may_wait {
            true => host.begin_append(store, entries, hard_state, persist.number)?,
            false => host.append(store, entries, hard_state).map(|()| true)?,
        };
        host.stage(Stage::Appended)?;
        Ok(is_durable)
    }

    /// What was written up to output `number` is durable ([`Host::begin_append`]).
    pub fn synced<H: Host<Store = S, Outbox = O>>(&mut self, number: u64, host: &mut H) -> Result<(), H::Error> {
        let mut out = std::mem::take(&mut self.out);
        self.consensus.synced(number, &mut out);
        self.say_what_is_durable(&mut out, host)?;
        self.out = out;
        Ok(())
    }

    /// Sends what waited for the disk.
    pub(super) fn say_what_is_durable<H: Host<Store = S, Outbox = O>>(
        &mut self,
        out: &mut Output,
        host: &mut H,
    ) -> Result<(), H::Error> {
        host.looks(&mut self.consensus, self.tick);
        host.stage(Stage::Persisted)?;
        self.send(std::mem::take(&mut out.send_after), host)?;
        match out.notice.take() {
            Some(notice) => self.tell(notice, host),
            None => Ok(()),
        }
    }

    pub(super) fn open_snapshot<H: Host<Store = S, Outbox = O>>(
        &mut self,
        message: Message,
        host: &mut H,
    ) -> Result<(), H::Error> {
        if self.snapshots.under_way != UnderWay::Nothing {
            self.snapshots.waiting = Some(message);
            return Ok(());
        }
        self.snapshots.under_way = UnderWay::Opening;
        host.open_snapshot(message, self.consensus.limits())
    }

    /// Takes the result of [`Host::open_snapshot`].
    pub fn opened<H: Host<Store = S, Outbox = O>>(&mut self, opened: crate::Result<Opened>, host: &mut H) {
        self.snapshots.under_way = UnderWay::Opened;
        match opened {
            Ok(opened) => self.step(Input::Snapshot(opened), host),
            Err(e) => host.ignored(e),
        }
    }

    /// Takes over the whole state from another node's checkpoint; PostgreSQL's own state is not part of it.
    pub(super) fn restored<H: Host<Store = S, Outbox = O>>(
        &mut self,
        state: Checkpoint,
        host: &mut H,
    ) -> Result<(), H::Error> {
        host.restored(&state);
        self.consensus.log_mut().checkpointed(state.index(), &state.conf);
        self.certifier = state.certifier;
        self.committed_indexes = state.committed_indexes;
        self.bytes_since_checkpoint = 0;
        // This closes the connections: sessions ask again what became of their transactions, and the apply worker says
        // where it stands.
        self.router.start_over(&self.certifier);
        self.set_members(state.members.into(), host)
    }

    /// A checkpoint up to the last index that was decided.  There is none between the parts of a transaction
    /// ([`Certifier::is_between_parts`]).
    pub fn encoded_checkpoint(&self) -> Bytes {
        self.frozen_checkpoint().encode()
    }

    /// The same, for a caller that encodes it later.
    pub fn frozen_checkpoint(&self) -> checkpoint::Frozen {
        self.freeze(self.applied_term())
    }

    fn applied_term(&self) -> Term {
        let (index, term) = self.consensus.applied();
        assert_eq!(index, self.certifier.decided(), "everything handed out has been decided");
        term
    }

    /// `term`: of the last entry that was decided.  What has been handed out behind it changes no configuration.
    fn freeze(&self, term: Term) -> checkpoint::Frozen {
        let (conf, members) = (self.consensus.conf(), self.consensus.members());
        checkpoint::freeze(term, conf, members, &self.certifier, &self.committed_indexes)
    }

    /// The last durable checkpoint.
    pub fn checkpoint(&self) -> LogIndex {
        self.checkpoint
    }

    pub fn checkpoint_is_under_way(&self) -> bool {
        self.checkpoint_under_way
    }

    pub(super) fn consider_checkpoint<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let entries = self.certifier.decided().0 - self.checkpoint.0;
        let wanted = host.wants_checkpoint() || self.consensus.log().wants_checkpoint() && entries > 0;
        // The intervals differ from member to member, so that not all make their checkpoints at the same index.
        let share = |of: u64| of - of / 32 * (u64::from(self.id.0) % 8);
        let (entries_max, bytes_max) = (share(self.settings.checkpoint_entries), share(self.settings.checkpoint_bytes));
        // What was wanted while a transaction was arriving is wanted until it can be made.
        let due = self.checkpoint_waits || wanted || entries >= entries_max || self.bytes_since_checkpoint >= bytes_max;
        match due {
            true => self.begin_checkpoint(self.applied_term(), host),
            false => Ok(()),
        }
    }

    /// See [`Replica::freeze`].
    pub(super) fn begin_checkpoint<H: Host<Store = S, Outbox = O>>(
        &mut self,
        term: Term,
        host: &mut H,
    ) -> Result<(), H::Error> {
        self.checkpoint_waits = self.certifier.is_between_parts();
        if self.checkpoint_waits && self.checkpoint > LogIndex::ZERO {
            // The end may be long in coming, and without a majority it never comes.
            host.checkpointed(self.checkpoint, self.tick);
        }
        if self.checkpoint_waits || self.checkpoint_under_way {
            return Ok(());
        }
        self.checkpoint_under_way = true;
        self.bytes_since_checkpoint = 0;
        host.write_checkpoint(self.freeze(term))
    }

    /// A checkpoint up to `index`, with this configuration, is durable.
    pub fn checkpointed<H: Host<Store = S, Outbox = O>>(
        &mut self,
        index: LogIndex,
        conf: &Conf,
        host: &mut H,
    ) -> Result<(), H::Error> {
        self.consensus.log_mut().checkpointed(index, conf);
        // One that was installed meanwhile may be newer.
        self.checkpoint = self.checkpoint.max(index);
        self.checkpoint_under_way = false;
        host.checkpointed(self.checkpoint, self.tick);
        if !self.settings.has_postgres && self.router.durable().is_none() {
            self.committed_indexes.forget_to(self.checkpoint);
        }
        self.cut(host)
    }

    pub(super) fn cut<H: Host<Store = S, Outbox = O>>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let Some(own) = self.own_position().map(|(_, durable)| durable.min(self.checkpoint)) else { return Ok(()) };
        let others = self.members.members.iter().filter(|m| m.id != self.id);
        // Until all members have reported in this life, nobody knows what is still needed.
        let durable: Option<Vec<LogIndex>> = others.map(|m| self.durable_of(m.id)).collect();
        let needed = durable.map_or(LogIndex::ZERO, |durable| {
            durable.into_iter().chain(host.log_needed_above(self.tick)).fold(own, LogIndex::min)
        });
        let mut upto = LogIndex(needed.0.saturating_sub(self.settings.cut_margin));
        let (store, bytes_max) = (self.consensus.log(), self.settings.log_bytes_max);
        if store.bytes() > bytes_max {
            // Makes some room and no more than that: an entry that stays may spare a member that is behind a copy.
            let mut droppable = own;
            if self.members.get(self.id).is_some_and(|m| m.role == MemberRole::Witness) {
                // A witness has no rows: once it has dropped an entry, nothing of it is left here.
                droppable = droppable.min(self.members.rows_safe_to(|id| self.durable_of(id)));
            }
            upto = upto.max(droppable.min(store.index_leaving(bytes_max / 4 * 3)));
        }
        Ok(self.consensus.log_mut().cut(upto)?)
    }
}
