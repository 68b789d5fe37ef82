//! Entries that an operator has left out of every PostgreSQL (`onetrip skip`): proposed until the log says so, or for ten
//! seconds.
//!
//! What is left out is kept in the folder `skipped` of this node before it is proposed: the entry as it stands in the log, and
//! beside it what can be read of it.

use super::positions::SILENT_AFTER;
use super::CoreThread;
use crate::error::{Error, Result};
use crate::inbox::LeftOut;
use crate::write_set;
use bytes::Bytes;
use onetrip_core::consensus::Input;
use onetrip_core::skip::{refusal, Other, Own};
use onetrip_core::{Entry, LogIndex, NodeId};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::oneshot;

/// 10 s, and 0.5 s between two proposals.
const PATIENCE_TICKS: u64 = 500;
const AGAIN_TICKS: u64 = 25;
/// A member that has shown nothing newer for so long does not get on by itself: its worker has begun anew several times.
const STILL_AFTER: Duration = Duration::from_secs(5);

type Answer = oneshot::Sender<std::result::Result<LeftOut, String>>;

pub(super) struct OpenSkip {
    raw: Bytes,
    left_out: LeftOut,
    answer: Answer,
    give_up_at: u64,
    propose_at: u64,
}

impl CoreThread {
    pub(super) fn ask_skip(&mut self, index: LogIndex, force: bool, answer: Answer) -> Result<()> {
        match self.prepare_skip(index, force)? {
            Ok((raw, left_out)) => {
                let (give_up_at, propose_at) = (self.tick + PATIENCE_TICKS, self.tick);
                self.skips.push(OpenSkip { raw, left_out, answer, give_up_at, propose_at });
                self.work_skips();
            }
            // Nobody waiting any more is no harm.
            Err(why) => drop(answer.send(Err(why))),
        }
        Ok(())
    }

    /// What is to be proposed; or why not.
    fn prepare_skip(&self, index: LogIndex, force: bool) -> Result<std::result::Result<(Bytes, LeftOut), String>> {
        if let Some(by) = self.certifier.was_left_out_by(index) {
            return Ok(Err(format!("log index {index} was left out by log index {by} already")));
        }
        let applied = self.desk.applied();
        let first_missing = applied.and_then(|applied| self.history.after(applied)?.next());
        let own = Own {
            node: self.config.node,
            applied,
            stands_at: first_missing.map(|(at, _)| at).filter(|_| self.desk.comes_no_further()),
            previous: self.history.previous_of(index),
        };
        let peers = self.transport.peers();
        let other = |id: NodeId| {
            let is_there = peers.iter().any(|p| p.id == id && p.connected);
            match self.positions.get(&id) {
                Some(p) if is_there && p.heard.elapsed() < SILENT_AFTER => {
                    Other::Stands { applied: p.applied, still: p.lag >= STILL_AFTER }
                }
                p => Other::Away(p.map(|p| p.applied)),
            }
        };
        if let Some(why) = refusal(index, own, &self.members, other, force) {
            return Ok(Err(why));
        }
        let stored = self.consensus.log().read(index)?;
        let entry = Entry::decode(stored.clone())?;
        let kept = match self.keep_skipped(index, &stored, &entry) {
            Ok(kept) => kept,
            Err(e) => return Ok(Err(format!("what is to be left out cannot be kept, so it is not left out: {e}"))),
        };
        let region = self.members.region_of(entry.txn.node).cloned().unwrap_or_default();
        let (txn, changes) = (entry.txn, write_set::lines(entry.write_set.clone()));
        Ok(Ok((entry.encode_skip(index), LeftOut { index, by: LogIndex::ZERO, txn, region, kept, changes })))
    }

    fn keep_skipped(&self, index: LogIndex, stored: &Bytes, entry: &Entry) -> Result<PathBuf> {
        let folder = self.config.data_dir.join("skipped");
        std::fs::create_dir_all(&folder).map_err(Error::disk(&folder, "making"))?;
        let file = folder.join(index.to_string());
        crate::disk::write_whole(&file, stored)?;
        let mut text = format!("log index {index}, transaction {}\n", entry.txn);
        for line in write_set::lines(entry.write_set.clone()) {
            text.push_str(&line);
            text.push('\n');
        }
        crate::disk::write_whole(&folder.join(format!("{index}.txt")), text.as_bytes())?;
        Ok(file)
    }

    /// To be called on each tick.
    pub(super) fn work_skips(&mut self) {
        for mut open in std::mem::take(&mut self.skips) {
            let index = open.left_out.index;
            if let Some(by) = self.certifier.was_left_out_by(index) {
                open.left_out.by = by;
                let _ = open.answer.send(Ok(open.left_out));
                continue;
            }
            if self.tick >= open.give_up_at {
                let why = format!(
                    "it was not decided within 10 s whether log index {index} is left out: is there a leader, and a majority? Ask again"
                );
                let _ = open.answer.send(Err(why));
                continue;
            }
            if self.tick >= open.propose_at {
                open.propose_at = self.tick + AGAIN_TICKS;
                self.step(Input::Propose(open.raw.clone()));
            }
            self.skips.push(open);
        }
    }
}
