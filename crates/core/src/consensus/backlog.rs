//! How much of the log is under way to a follower that is behind.
//!
//! raft-rs would send a follower that has come back all it lacks at once, up to `INFLIGHT_MESSAGES_MAX` messages of
//! `MESSAGE_BYTES_MAX`.  That keeps the leader from everything else, and overruns the way to the follower.

use super::raft_node::Follower;
use super::{Consensus, Message, INFLIGHT_MESSAGES_MAX};
use crate::ids::{LogIndex, NodeId};
use raft::Storage;

/// Append messages of full size under way to a follower that is far behind.  A guess: at 100 ms of round trip it catches up
/// by 160 MB/s.  The log reads them beside this thread ([`crate::replica::Store::take_fetched`]), one after the other.
const BEHIND_MESSAGES_MAX: usize = 16;
/// A follower that is behind and answers nothing of what is under way to it for so long has lost it.  On a connection that
/// holds that never happens; a link that was cut by hand, and other ways to lose a message in silence, are rare: 5 s at 20 ms.
const SILENT_TICKS: u32 = 250;

/// A follower that is not near.
#[derive(Clone, Copy)]
pub(super) struct Behind {
    matched: LogIndex,
    /// For so long it has matched no more than that.
    ticks: u32,
}

impl<S: Storage> Consensus<S> {
    /// A follower whose log matches up to here is near: what it lacks is little.  To be told again and again, before a tick.
    pub fn set_near(&mut self, near: LogIndex) {
        self.near = near;
    }

    /// To be called after each input.
    pub(super) fn fit_windows(&mut self) {
        if !self.raft.leads() {
            // Whoever leads next begins anew with all of them; raft keeps the windows.
            for id in std::mem::take(&mut self.behind).into_keys() {
                self.raft.set_window(id, INFLIGHT_MESSAGES_MAX);
            }
            return;
        }
        let others = self.raft.followers().filter(|f| f.id != self.config.id);
        // Hardly ever anybody, so nothing is allocated.
        let others = others.filter(|f| (f.matched < self.near) != self.behind.contains_key(&f.id));
        for Follower { id, matched, .. } in others.collect::<Vec<_>>() {
            if matched < self.near {
                self.raft.set_window(id, BEHIND_MESSAGES_MAX);
                self.behind.insert(id, Behind { matched, ticks: 0 });
            } else {
                self.raft.set_window(id, INFLIGHT_MESSAGES_MAX);
                self.behind.remove(&id);
            }
        }
    }

    /// Its sender's window is narrow, and [`Self::look_for_lost_appends`] opens it again.  One that lacks little is not
    /// looked after so: raft sends it one more message for each answer to a heartbeat.
    pub(super) fn has_narrow_window(&self, message: &Message) -> bool {
        self.behind.contains_key(&NodeId(message.from as u32))
    }

    /// To be called on each tick: what was sent with a wide window and lost would keep a narrow one full.
    pub(super) fn look_for_lost_appends(&mut self) {
        let mut lost = Vec::new();
        for (id, behind) in &mut self.behind {
            let matched = self.raft.follower(*id).map_or(behind.matched, |f| f.matched);
            let ticks = if matched == behind.matched { behind.ticks + 1 } else { 0 };
            *behind = Behind { matched, ticks: ticks % SILENT_TICKS };
            if ticks == SILENT_TICKS {
                lost.push(*id);
            }
        }
        for id in lost {
            self.raft.unreachable(id);
        }
    }
}
