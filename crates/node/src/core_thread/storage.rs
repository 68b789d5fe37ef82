//! What the core thread keeps on disk besides the log itself: checkpoints made here, one that came from elsewhere, and
//! how much of the log stays.
//!
//! Invariants:
//! - A checkpoint that came from elsewhere is durable before the log is emptied for it; a crash between the two is
//!   repaired when the node starts.
//! - The log is cut only below the durable checkpoint and below what this node's own PostgreSQL has durably applied; and
//!   below what each other member needs, until it is larger than `log_bytes_max`.

use super::CoreThread;
use crate::config::NodeConfig;
use crate::disk::{sync_dir, CheckpointFile, RaftLog};
use crate::error::{Error, Result};
use crate::inbox::Event;
use crate::stop::stop_point;
use onetrip_core::consensus::{Installed, Persist};
use onetrip_core::members::MemberRole;
use onetrip_core::{checkpoint, Checkpoint, Conf, LogIndex, Term};

/// A checkpoint is made after so many entries (fewer if the certification window is shorter) or bytes.
const CHECKPOINT_ENTRIES_MAX: u64 = 100_000;
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// Entries that stay in the log although nobody should need them: a member may still read them for an append.
const CUT_MARGIN: u64 = 1_000;

/// Checkpoint and log as earlier lives left them, in order and verified.
pub(super) fn open(config: &NodeConfig) -> Result<(CheckpointFile, Checkpoint, RaftLog)> {
    // Whatever stands in it under its name was synced before it got that; the name itself perhaps not.
    sync_dir(&config.data_dir)?;
    let file = CheckpointFile::new(config.checkpoint_file());
    let found = match file.load(config.limits())? {
        Some(found) => found,
        None if config.members.is_empty() => {
            let why =
                "it names no `[[member]]` and there is no checkpoint: `onetrip init` or `onetrip join` makes a node";
            return Err(Error::Config { file: config.data_dir.join(crate::config::FILE_NAME), why: why.into() });
        }
        None => Checkpoint::bootstrap(config.bootstrap_members(), config.limits()),
    };
    let folder = config.data_dir.join("log");
    let mut log = RaftLog::open_limited(&folder, config.log_bytes_max)?;
    let index = found.index();
    if found.installed {
        let (first, last) = (log.first_index(), log.last_index());
        if last < index || (first <= index && log.term_at(index) != Some(found.term)) {
            log.restart(index, found.term, None)?;
        }
        file.settle()?;
    }
    let (first, last) = (log.first_index(), log.last_index());
    let why = if last < index || first > index.next() {
        Some(format!("it holds entries {first} to {last}, but the checkpoint stands at {index}"))
    } else {
        let term = log.term_at(index).unwrap_or(Term(0));
        (term != found.term).then(|| format!("entry {index} is of term {term}, in the checkpoint of {}", found.term))
    };
    if let Some(why) = why {
        return Err(Error::Corrupted { file: folder, why });
    }
    log.raise_commit(index);
    log.stand_on(file.clone(), index, found.conf.clone());
    Ok((file, found, log))
}

impl CoreThread {
    /// Makes durable what consensus asks for.
    pub(super) fn persist(&mut self, persist: Persist) -> Result<()> {
        let log = self.consensus.log_mut();
        if let Some(Installed { index, term, data }) = persist.snapshot {
            tracing::warn!(
                region = %self.config.region, node = %self.config.node, %index, %term, bytes = data.len(),
                "the log of the others begins behind this node's: it goes on from a checkpoint of theirs"
            );
            self.checkpoint_file.install(index, &data)?;
            log.restart(index, term, persist.hard_state.as_ref())?;
            self.checkpoint_file.settle()?;
            self.checkpoint = index;
        }
        // Only the commit index moved: the next write takes it along.
        if persist.must_sync {
            log.append(&persist.entries, persist.hard_state.as_ref(), true)?;
            stop_point(&self.config.data_dir, "appended");
        }
        Ok(())
    }

    /// The whole state comes from a checkpoint of another node; PostgreSQL's does not.
    pub(super) fn restored(&mut self, state: Checkpoint) {
        self.consensus.log_mut().checkpointed(state.index(), state.conf.clone());
        self.certifier = state.certifier;
        self.history = state.history;
        self.bytes_since_checkpoint = 0;
        self.set_members(state.members.into());
        // Whoever waits asks again and hears what became of it; the apply worker says where it stands.
        self.desk.start_over();
    }

    pub(super) fn encoded_checkpoint(&self) -> bytes::Bytes {
        let (index, term) = self.consensus.applied();
        assert_eq!(index, self.certifier.decided(), "everything handed out has been decided");
        checkpoint::encode(term, self.consensus.conf(), self.consensus.members(), &self.certifier, &self.history)
    }

    pub(super) fn consider_checkpoint(&mut self) -> Result<()> {
        let entries = self.certifier.decided().0 - self.checkpoint.0;
        let enough = CHECKPOINT_ENTRIES_MAX.min(self.config.window_entries);
        let wanted = self.holds.wants_checkpoint() || self.consensus.log().wants_checkpoint() && entries > 0;
        // What is above the checkpoint cannot be cut.
        let bytes = CHECKPOINT_BYTES.min(self.config.log_bytes_max / 4);
        if !wanted && entries < enough && self.bytes_since_checkpoint < bytes {
            return Ok(());
        }
        if self.checkpoint_under_way {
            return Ok(());
        }
        self.checkpoint_under_way = true;
        self.bytes_since_checkpoint = 0;
        let (index, raw) = (self.certifier.decided(), self.encoded_checkpoint());
        let conf = self.consensus.conf().clone();
        let (file, inbox) = (self.checkpoint_file.clone(), self.inbox.clone());
        let thread = std::thread::Builder::new().name("onetrip-ckpt".into());
        let write = move || inbox.send_blocking(Event::Checkpointed(file.save(index, &raw).map(|()| (index, conf))));
        thread.spawn(write).map_err(|e| Error::Internal(format!("starting a thread: {e}")))?;
        Ok(())
    }

    pub(super) fn checkpointed(&mut self, result: Result<(LogIndex, Conf)>) -> Result<()> {
        let (index, conf) = result?;
        self.consensus.log_mut().checkpointed(index, conf);
        // One that was installed meanwhile may be newer.
        self.checkpoint = self.checkpoint.max(index);
        self.checkpoint_under_way = false;
        self.holds.checkpointed(self.checkpoint, self.tick);
        if self.config.postgres.is_none() && self.desk.durable().is_none() {
            self.history.forget_to(self.checkpoint);
        }
        self.cut()
    }

    pub(super) fn cut(&mut self) -> Result<()> {
        let Some(own) = self.my_position().map(|p| p.durable.min(self.checkpoint)) else { return Ok(()) };
        let others = self.members.members.iter().filter(|m| m.id != self.config.node);
        // Until all have spoken in this life, nobody knows what is still needed.
        let durable: Option<Vec<LogIndex>> = others.map(|m| self.positions.get(&m.id).map(|p| p.durable)).collect();
        let needed = durable.map_or(LogIndex::ZERO, |durable| {
            let archived = self.archive.as_ref().map(|a| a.archived());
            let held = self.holds.least(self.tick);
            durable.into_iter().chain(archived).chain(held).fold(own, LogIndex::min)
        });
        let mut upto = LogIndex(needed.0.saturating_sub(CUT_MARGIN));
        let (log, bytes_max) = (self.consensus.log(), self.config.log_bytes_max);
        if log.bytes() > bytes_max {
            // Some room, and no more than that: what stays spares a member that is behind a copy.
            let mut droppable = own;
            if self.members.get(self.config.node).is_some_and(|m| m.role == MemberRole::Witness) {
                // One that drops an entry keeps nothing of its rows.
                let durable = |id| self.positions.get(&id).map(|p| p.durable);
                droppable = droppable.min(self.members.rows_safe_to(durable));
            }
            upto = upto.max(droppable.min(log.index_leaving(bytes_max / 4 * 3)));
        }
        self.consensus.log_mut().cut(upto)
    }

    /// PostgreSQL can be brought on from here, and from nowhere below.
    pub(super) fn feedable_from(&self) -> LogIndex {
        self.history.feedable_from(self.consensus.log().first_index())
    }
}
