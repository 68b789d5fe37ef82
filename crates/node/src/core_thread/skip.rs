//! Requests of an operator to leave an entry out of every PostgreSQL (`onetrip skip`), and the answers to them.  The
//! replica proposes the entry that does so.
//!
//! Before that is proposed, this node keeps the entry to be left out in its folder `skipped`: its bytes as they are in
//! the log, and beside them a text of what can be read in them.

use super::CoreThread;
use crate::error::{Error, Result};
use crate::inbox::LeftOut;
use crate::write_set;
use bytes::Bytes;
use onetrip_core::parts;
use onetrip_core::replica::{Host, RequestId};
use onetrip_core::{Entry, LogIndex};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokio::sync::oneshot;

type Answer = oneshot::Sender<std::result::Result<LeftOut, String>>;

/// Who waits, and for what.
pub(super) type Skips = BTreeMap<RequestId, (LeftOut, Answer)>;

impl CoreThread {
    pub(super) fn ask_skip(&mut self, index: LogIndex, force: bool, answer: Answer) -> Result<()> {
        match self.prepare_skip(index, force)? {
            Ok((raw, left_out)) => {
                self.admin.last += 1;
                let id = RequestId(self.admin.last);
                self.skips.insert(id, (left_out, answer));
                self.replica.leave_out(id, index, raw, &mut self.host);
                self.answer_skips();
            }
            // It does no harm if nobody waits any more.
            Err(why) => drop(answer.send(Err(why))),
        }
        Ok(())
    }

    /// The entry to be proposed, or why the one at `index` is not left out.
    fn prepare_skip(&self, index: LogIndex, force: bool) -> Result<std::result::Result<(Bytes, LeftOut), String>> {
        if let Some(by) = self.replica.certifier.was_left_out_by(index) {
            return Ok(Err(format!("log index {index} was left out by log index {by} already")));
        }
        if let Some(why) = self.replica.why_not_left_out(index, force, self.host.now()) {
            return Ok(Err(why));
        }
        let entry = parts::read(self.replica.consensus.log(), index)?;
        let kept = match self.keep_skipped(index, &entry) {
            Ok(kept) => kept,
            Err(e) => return Ok(Err(format!("log index {index} is not left out: it cannot be saved first: {e}"))),
        };
        let region = self.replica.members().region_of(entry.txn.node).cloned().unwrap_or_default();
        let (txn, changes) = (entry.txn, write_set::lines(entry.write_set.clone()));
        Ok(Ok((entry.encode_skip(index), LeftOut { by: LogIndex::ZERO, txn, region, kept, changes })))
    }

    fn keep_skipped(&self, index: LogIndex, entry: &Entry) -> Result<PathBuf> {
        let folder = self.host.config.data_dir.join("skipped");
        std::fs::create_dir_all(&folder).map_err(Error::disk(&folder, "making"))?;
        crate::disk::sync_dir(&self.host.config.data_dir)?;
        let file = folder.join(index.to_string());
        crate::disk::write_whole(&file, &entry.encoded())?;
        let mut text = format!("log index {index}, transaction {}\n", entry.txn);
        for line in write_set::lines(entry.write_set.clone()) {
            text.push_str(&line);
            text.push('\n');
        }
        crate::disk::write_whole(&folder.join(format!("{index}.txt")), text.as_bytes())?;
        Ok(file)
    }

    /// To be called whenever the replica may have answers.
    pub(super) fn answer_skips(&mut self) {
        for (id, _, result) in self.replica.take_left_out() {
            let Some((left_out, answer)) = self.skips.remove(&id) else { continue };
            let reply = result.map(|by| LeftOut { by, ..left_out }).map_err(|why| why.to_string());
            // It does no harm if nobody waits any more.
            let _ = answer.send(reply);
        }
    }

    /// To be called on each tick: withdraws the requests that nobody waits for any more.
    pub(super) fn withdraw_skips(&mut self) {
        let replica = &mut self.replica;
        self.skips.retain(|id, (_, answer)| {
            let waits = !answer.is_closed();
            if !waits {
                replica.withdraw(*id);
            }
            waits
        });
    }
}
