//! Entries that an operator has left out of every PostgreSQL (`onetrip skip`): proposed until the log says so, or for ten
//! seconds.
//!
//! What is left out is kept in the folder `skipped` of this node before it is proposed: the entry as it stands in the log, and
//! beside it what can be read of it.

use super::CoreThread;
use crate::error::{Error, Result};
use crate::inbox::LeftOut;
use crate::write_set;
use bytes::Bytes;
use onetrip_core::consensus::Input;
use onetrip_core::replica::Host;
use onetrip_core::{Entry, LogIndex};
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
                let tick = self.replica.ticks();
                let (give_up_at, propose_at) = (tick + PATIENCE_TICKS, tick);
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
        if let Some(by) = self.replica.certifier.was_left_out_by(index) {
            return Ok(Err(format!("log index {index} was left out by log index {by} already")));
        }
        if let Some(why) = self.replica.why_not_left_out(index, force, STILL_AFTER, self.host.now()) {
            return Ok(Err(why));
        }
        let stored = self.replica.consensus.log().read(index)?;
        let entry = Entry::decode(stored.clone())?;
        let kept = match self.keep_skipped(index, &stored, &entry) {
            Ok(kept) => kept,
            Err(e) => return Ok(Err(format!("what is to be left out cannot be kept, so it is not left out: {e}"))),
        };
        let region = self.replica.members().region_of(entry.txn.node).cloned().unwrap_or_default();
        let (txn, changes) = (entry.txn, write_set::lines(entry.write_set.clone()));
        Ok(Ok((entry.encode_skip(index), LeftOut { index, by: LogIndex::ZERO, txn, region, kept, changes })))
    }

    fn keep_skipped(&self, index: LogIndex, stored: &Bytes, entry: &Entry) -> Result<PathBuf> {
        let folder = self.host.config.data_dir.join("skipped");
        std::fs::create_dir_all(&folder).map_err(Error::disk(&folder, "making"))?;
        crate::disk::sync_dir(&self.host.config.data_dir)?;
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
        let tick = self.replica.ticks();
        for mut open in std::mem::take(&mut self.skips) {
            let index = open.left_out.index;
            if let Some(by) = self.replica.certifier.was_left_out_by(index) {
                open.left_out.by = by;
                let _ = open.answer.send(Ok(open.left_out));
                continue;
            }
            if tick >= open.give_up_at {
                let why = format!(
                    "it was not decided within 10 s whether log index {index} is left out: is there a leader, and a majority? Ask again"
                );
                let _ = open.answer.send(Err(why));
                continue;
            }
            if tick >= open.propose_at {
                open.propose_at = tick + AGAIN_TICKS;
                self.replica.step(Input::Propose(open.raw.clone()), &mut self.host);
            }
            self.skips.push(open);
        }
    }
}
