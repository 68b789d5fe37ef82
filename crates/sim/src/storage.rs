//! What a node keeps on its disk, in the order in which the daemon does it (`core_thread/storage.rs`): checkpoints made
//! here, one that came from elsewhere, and how much of the log stays.

use crate::ctx::{Ctx, Plant, MS};
use crate::disk::{End, SimLog};
use crate::node::{broken, Departure, Node, Result, Stop};
use bytes::Bytes;
use onetrip_core::consensus::{Config, Consensus, Persist};
use onetrip_core::{checkpoint, Checkpoint, LogIndex, NodeId, Term};
use std::sync::Arc;

const HEARTBEAT_TICKS: usize = 5;

impl Node {
    /// Checkpoint and log as earlier lives left them.
    pub(crate) fn open(id: NodeId, mut log: SimLog, ctx: &mut Ctx) -> Result<(Checkpoint, Consensus<SimLog>)> {
        let o = &ctx.options;
        // What an earlier life wrote is believed, so it has to be on disk before anything is promised that rests on it.
        if !matches!(o.plant, Some(Plant::BelieveCache | Plant::SyncOnOpen)) {
            log.rewrite();
        }
        if o.plant != Some(Plant::BelieveCache) {
            log.sync();
        }
        let mut state = match log.checkpoint() {
            Some(raw) => Checkpoint::decode(raw.clone(), o.limits_of(id)).map_err(|e| broken(id, &e))?,
            None => Checkpoint::bootstrap(o.members(), o.limits_of(id)),
        };
        if o.plant == Some(Plant::OtherWindow) {
            // Nobody compares.
            state.members.beginning = 0;
        }
        let index = state.index();
        if state.installed {
            let (first, last) = (log.first_index(), log.last_index());
            if last < index || (first <= index && log.term_at(index) != Some(state.term)) {
                log.restart(index, state.term, None);
            }
            log.settle_checkpoint();
            if o.plant == Some(Plant::LearnerVotes) && !state.conf.votes(id) {
                state.conf.learners.retain(|learner| *learner != id);
                state.conf.voters.push(id);
            }
        }
        let (first, last) = (log.first_index(), log.last_index());
        if last < index || first > index.next() {
            let why = format!("node {id} holds entries {first} to {last}, its checkpoint stands at {index}");
            return Err(Stop::Broken(why));
        }
        let term = log.term_at(index).unwrap_or(Term(0));
        if term != state.term {
            let why = format!("node {id}: entry {index} is of term {term}, in the checkpoint of {}", state.term);
            return Err(Stop::Broken(why));
        }
        log.raise_commit(index);
        log.stand_on(state.conf.clone());
        log.gives_no_snapshots = o.plant == Some(Plant::CutWithoutSnapshot);
        let config = Config {
            id,
            limits: o.limits_of(id),
            applied: index,
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: o.election_ticks,
            transfer_ticks: o.transfer_ticks,
        };
        let members = Arc::new(state.members.clone());
        let mut consensus = Consensus::new(config, log, members).map_err(|e| broken(id, &e))?;
        consensus.set_message_bytes_max(o.message_bytes_max);
        Ok((state, consensus))
    }

    /// What is left after its end now.
    pub fn end(self, end: End, ctx: &mut Ctx) -> SimLog {
        self.consensus.log().after(end, &mut ctx.rng)
    }

    /// Makes durable what consensus asks for.
    pub(crate) fn persist(&mut self, persist: Persist, ctx: &mut Ctx) -> Result<()> {
        if self.trouble.full_until > self.clock && (persist.must_sync || persist.snapshot.is_some()) {
            // The space for a record is set aside before it is written.
            return Err(Stop::Disk("disk full"));
        }
        if let Some(snapshot) = persist.snapshot {
            self.consensus.log_mut().save_checkpoint(checkpoint::installed(&snapshot.data));
            self.stage()?;
            if ctx.options.plant != Some(Plant::SnapshotKeepsLog) {
                self.consensus.log_mut().restart(snapshot.index, snapshot.term, persist.hard_state.as_ref());
            }
            self.stage()?;
            self.consensus.log_mut().settle_checkpoint();
            self.stage()?;
            self.checkpoint = snapshot.index;
        }
        if persist.must_sync {
            self.consensus.log_mut().write(&persist.entries, persist.hard_state.as_ref());
            self.stage()?;
            self.sync(ctx)?;
            self.stage()?;
        }
        Ok(())
    }

    fn sync(&mut self, ctx: &mut Ctx) -> Result<()> {
        let slow = if self.trouble.slow_until > self.clock || ctx.rng.one_in(500) { 50 } else { 1 };
        self.clock += ctx.rng.between(50, ctx.options.sync_us_max) * slow;
        if std::mem::take(&mut self.trouble.next_sync_fails) {
            self.consensus.log_mut().fail_sync(&mut ctx.rng);
            if ctx.options.plant != Some(Plant::IgnoreSyncError) {
                return Err(Stop::Disk("fsync error"));
            }
        }
        if ctx.options.plant != Some(Plant::SkipSync) {
            self.consensus.log_mut().sync();
        }
        Ok(())
    }

    /// The whole state comes from a checkpoint of another node; PostgreSQL's does not.
    pub(crate) fn restored(&mut self, state: Checkpoint, ctx: &mut Ctx) {
        ctx.checker.restored(self.id, state.index());
        self.certifier = state.certifier;
        self.history = state.history;
        self.members = state.members.into();
        let members = &self.members;
        self.positions.retain(|id, _| members.contains(*id));
        self.desk.start_over();
    }

    pub fn encoded_checkpoint(&self) -> Bytes {
        let (index, term) = self.consensus.applied();
        assert_eq!(index, self.certifier.decided(), "everything handed out has been decided");
        checkpoint::encode(term, self.consensus.conf(), self.consensus.members(), &self.certifier, &self.history)
    }

    pub(crate) fn consider_checkpoint(&mut self, ctx: &mut Ctx) {
        let entries = self.certifier.decided().0 - self.checkpoint.0;
        let wanted = self.consensus.log().wants_checkpoint() && entries > 0;
        if (wanted || entries >= ctx.options.checkpoint_entries) && !self.checkpoint_under_way {
            self.checkpoint_under_way = true;
            let done = self.clock + ctx.rng.between(0, 200 * MS);
            self.departures.push((done, Departure::Checkpoint(self.certifier.decided(), self.encoded_checkpoint())));
        }
    }

    pub(crate) fn checkpointed(&mut self, index: LogIndex, raw: Bytes, ctx: &mut Ctx) -> Result<()> {
        if self.trouble.full_until > self.clock {
            return Err(Stop::Disk("disk full at a checkpoint"));
        }
        self.consensus.log_mut().save_checkpoint(raw);
        // One that was installed meanwhile may be newer.
        self.checkpoint = self.checkpoint.max(index);
        self.checkpoint_under_way = false;
        if !self.has_postgres && self.desk.durable().is_none() {
            self.history.forget_to(self.checkpoint);
        }
        self.cut(ctx);
        Ok(())
    }

    /// Applied and durable.
    pub(crate) fn my_position(&self) -> Option<(LogIndex, LogIndex)> {
        match (self.desk.applied(), self.desk.durable()) {
            (Some(applied), Some(durable)) => Some((applied, durable)),
            _ if !self.has_postgres => Some((self.certifier.decided(), self.checkpoint)),
            _ => None,
        }
    }

    pub(crate) fn cut(&mut self, ctx: &mut Ctx) {
        let Some(own) = self.my_position().map(|(_, durable)| durable.min(self.checkpoint)) else { return };
        let mut needed = own;
        let too_large = self.consensus.log().len() > ctx.options.log_entries_max;
        if too_large && !self.has_postgres {
            needed = needed.min(self.members.rows_safe_to(|id| self.positions.get(&id).copied()));
        }
        if !too_large {
            let others = self.members.members.iter().filter(|m| m.id != self.id);
            // Until all have spoken in this life, nobody knows what is still needed.
            let durable: Option<Vec<LogIndex>> = others.map(|m| self.positions.get(&m.id).copied()).collect();
            let Some(durable) = durable else { return };
            needed = durable.into_iter().fold(own, LogIndex::min);
        }
        let upto = needed.0.saturating_sub(ctx.options.cut_margin);
        if upto >= self.consensus.log().first_index().0 {
            ctx.events.add(if too_large { "log cut by size" } else { "log cut" });
            self.consensus.log_mut().cut(LogIndex(upto));
        }
    }

    /// PostgreSQL can be brought on from here, and from nowhere below.
    pub(crate) fn feedable_from(&self) -> LogIndex {
        self.history.feedable_from(self.consensus.log().first_index())
    }
}
