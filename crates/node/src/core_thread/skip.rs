//! Requests of an operator to leave an entry out of every PostgreSQL (`onetrip skip`), and the answers to them.  The
//! replica proposes the entry that does so.
//!
//! Before that is proposed, this node keeps the entry to be left out in its folder `skipped`: its bytes as they are in
//! the log, and beside them a text of what can be read in them.  Both may be large, and PostgreSQL prints the values,
//! so a thread of its own writes them.

use super::CoreThread;
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::inbox::{Event, LeftOut};
use crate::postgres::RowTexts;
use crate::printable::printable_part;
use crate::write_set;
use onetrip_core::parts;
use onetrip_core::replica::{Host, RequestId};
use onetrip_core::{Entry, LogIndex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

type Answer = oneshot::Sender<std::result::Result<LeftOut, String>>;

/// Who waits, and for what.
pub(super) type Skips = BTreeMap<RequestId, (LeftOut, Answer)>;

/// An entry that is to be left out, once it is kept.
pub struct Kept {
    index: LogIndex,
    force: bool,
    entry: Entry,
    file: PathBuf,
    changes: Vec<String>,
}

impl CoreThread {
    /// Has the entry kept; [`CoreThread::kept_skipped`] is called then.
    pub(super) fn ask_skip(&mut self, index: LogIndex, force: bool, answer: Answer) -> Result<()> {
        if let Some(why) = self.why_not_skipped(index, force) {
            // It does no harm if nobody waits any more.
            _ = answer.send(Err(why));
            return Ok(());
        }
        let entry = parts::read(self.replica.consensus.log(), index)?;
        let config = self.host.config.clone();
        self.host.beside("onetrip-skip", move || {
            let changes = changes(&config, &entry);
            let kept = keep(&config.data_dir, index, &entry, &changes);
            Event::Kept(kept.map(|file| Kept { index, force, entry, file, changes }).map_err(|e| (index, e)), answer)
        })
    }

    /// Proposes the entry that leaves this one out, unless something has changed meanwhile.
    pub(super) fn kept_skipped(&mut self, kept: std::result::Result<Kept, (LogIndex, Error)>, answer: Answer) {
        // Whoever asked has been told that it was not.
        if answer.is_closed() {
            return;
        }
        let not_kept = |(index, e)| format!("log index {index} is not left out: it cannot be saved first: {e}");
        let may_be = kept.map_err(not_kept).and_then(|kept| match self.why_not_skipped(kept.index, kept.force) {
            Some(why) => Err(why),
            None => Ok(kept),
        });
        let Kept { index, entry, file, changes, .. } = match may_be {
            Ok(kept) => kept,
            Err(why) => return drop(answer.send(Err(why))),
        };
        let region = self.replica.members().region_of(entry.txn.node).cloned().unwrap_or_default();
        let left_out = LeftOut { by: LogIndex::ZERO, txn: entry.txn, region, kept: file, changes };
        self.admin.last += 1;
        let id = RequestId(self.admin.last);
        self.skips.insert(id, (left_out, answer));
        self.replica.leave_out(id, index, entry.encode_skip(index), &mut self.host);
        self.answer_skips();
    }

    fn why_not_skipped(&self, index: LogIndex, force: bool) -> Option<String> {
        match self.replica.certifier.was_left_out_by(index) {
            Some(by) => Some(format!("log index {index} was left out by log index {by} already")),
            None => self.replica.why_not_left_out(index, force, self.host.now()),
        }
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

/// One line for each change, with values as this node's PostgreSQL prints them.
fn changes(config: &NodeConfig, entry: &Entry) -> Vec<String> {
    let mut rows =
        RowTexts::of(config).inspect_err(|e| tracing::warn!("PostgreSQL cannot be asked for rows: {e}")).ok();
    let mut changes = write_set::lines(entry.write_set.clone(), |row| rows.as_mut()?.of_row(row));
    if let Some(why) = rows.and_then(|rows| rows.failed) {
        let told = format!("(PostgreSQL cannot print all rows; the others are as they are stored: {why})");
        changes.insert(0, printable_part(&told));
    }
    changes
}

/// Durable on return.
fn keep(data_dir: &Path, index: LogIndex, entry: &Entry, changes: &[String]) -> Result<PathBuf> {
    // Two requests may be about the same entry, and write the same files.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = data_dir.join("skipped");
    std::fs::create_dir_all(&folder).map_err(Error::disk(&folder, "making"))?;
    crate::disk::sync_dir(data_dir)?;
    let file = folder.join(index.to_string());
    crate::disk::write_whole(&file, &entry.encoded())?;
    let mut text = format!("log index {index}, transaction {}\n", entry.txn);
    for line in changes {
        text.push_str(line);
        text.push('\n');
    }
    crate::disk::write_whole(&folder.join(format!("{index}.txt")), text.as_bytes())?;
    Ok(file)
}
