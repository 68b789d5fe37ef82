//! What the apply worker is to get, and how much of it at once.
//!
//! Invariants:
//! - Entries go to the worker in log order, each once per connection.
//! - At most `ENTRIES_MAX` entries, or as many bytes as the connection takes, have been sent beyond the worker's last
//!   POSITION (a single entry may have more).

use super::{ConnId, Log, Outbox};
use crate::agent::{entry_head, EntryFlags};
use crate::certifier::Certifier;
use crate::entry::EntryKind;
use crate::ids::{LogIndex, RegionId};
use crate::members::Members;
use crate::parts;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

const ENTRIES_MAX: usize = 1024;

pub(super) struct Feed<O> {
    pub conn: ConnId,
    outbox: Arc<O>,
    /// Still to be sent: committed indexes, each with the committed index before it.
    queue: VecDeque<(LogIndex, LogIndex)>,
    /// Sent and not yet covered by a POSITION: index and bytes.
    under_way: VecDeque<(LogIndex, usize)>,
    under_way_bytes: usize,
    /// Of the first one in the queue, if it was read and had to wait.  It may be large, so it is not read again until
    /// it has room.
    waiting_bytes: Option<usize>,
}

impl<O: Outbox> Feed<O> {
    /// `missed`: what the worker has to be sent first.
    pub fn new(conn: ConnId, outbox: Arc<O>, missed: VecDeque<(LogIndex, LogIndex)>) -> Feed<O> {
        Feed { conn, outbox, queue: missed, under_way: VecDeque::new(), under_way_bytes: 0, waiting_bytes: None }
    }

    pub fn push(&mut self, at: LogIndex, previous: LogIndex) {
        self.queue.push_back((at, previous));
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The worker shows `applied`: entries up to there are not under way any more.
    pub fn position(&mut self, applied: LogIndex) {
        while let Some((at, bytes)) = self.under_way.front().copied() {
            if at > applied {
                break;
            }
            self.under_way.pop_front();
            self.under_way_bytes -= bytes;
        }
    }

    /// Sends what the credit allows, all at once. Of an entry that is left out, it sends only that it is.
    pub fn pump<L: Log>(&mut self, log: &L, certifier: &Certifier, members: &Members) -> Result<(), L::Error> {
        let bytes_max = self.outbox.feed_bytes_max();
        let mut frames = Vec::new();
        while let Some((at, previous)) = self.queue.front().copied() {
            let has_room = |bytes| self.under_way.is_empty() || self.under_way_bytes + bytes <= bytes_max;
            if self.under_way.len() >= ENTRIES_MAX || self.waiting_bytes.is_some_and(|bytes| !has_room(bytes)) {
                break;
            }
            let entry = parts::read(log, at)?;
            let flags =
                EntryFlags { left_out: certifier.left_out_by(at).is_some(), leaves_out: entry.kind == EntryKind::Skip };
            let is_empty = flags.left_out && !flags.leaves_out;
            let write_set = if is_empty { Bytes::new() } else { entry.write_set };
            let bytes = write_set.len();
            if !has_room(bytes) {
                self.waiting_bytes = Some(bytes);
                break;
            }
            self.waiting_bytes = None;
            let unknown = RegionId::default();
            let region = members.region_of(entry.txn.node).unwrap_or(&unknown);
            let head = entry_head(at, previous, flags, region, &entry.txn, bytes);
            frames.push([head, write_set]);
            self.queue.pop_front();
            self.under_way.push_back((at, bytes));
            self.under_way_bytes += bytes;
        }
        // If they are lost the connection is ending, and the next HELLO says where to go on.
        if !frames.is_empty() {
            self.outbox.feed(frames);
        }
        Ok(())
    }

    pub fn close(&self) {
        self.outbox.close();
    }
}
