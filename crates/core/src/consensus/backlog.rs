//! How much of the log may be on its way to a follower that is behind.
//!
//! raft-rs would send a follower that has come back everything that it lacks at once, up to `INFLIGHT_MESSAGES_MAX`
//! messages of `MESSAGE_BYTES_MAX`.  That would keep the leader from all other work and overload the link to the
//! follower.

use super::raft_node::Follower;
use super::{Consensus, Message, INFLIGHT_MESSAGES_MAX};
use crate::ids::{LogIndex, NodeId};
use raft::Storage;

/// How many append messages of full size may be under way to a follower that is far behind.  A guess: with a round trip
/// of 100 ms it catches up at 160 MB/s.  The log reads them beside this thread
/// ([`crate::replica::Store::take_fetched`]), one after the other.
const BEHIND_MESSAGES_MAX: usize = 16;
/// A follower that is behind and has answered nothing of what is under way to it for this long has lost it.  That never
/// happens on a connection that lasts; links that are cut by hand, and other ways to lose a message in silence, are
/// rare. 5 s at 20 ms a tick.
const SILENT_TICKS: u32 = 250;

/// A follower that is not near.
#[derive(Clone, Copy)]
pub(super) struct Behind {
    matched: LogIndex,
    /// For so many ticks it has matched no more than that.
    ticks: u32,
}

impl<S: Storage> Consensus<S> {
    /// A follower whose log matches up to `near` is near: it lacks little.  To be called again and again, before a
    /// tick.
    pub fn set_near(&mut self, near: LogIndex) {
        self.near = near;
    }

    /// To be called after each input.
    pub(super) fn fit_windows(&mut self) {
        if !self.raft.leads() {
            // The next leader starts anew with all of them, but raft would keep these windows.
            for id in std::mem::take(&mut self.behind).into_keys() {
                self.raft.set_window(id, INFLIGHT_MESSAGES_MAX);
            }
            return;
        }
        let others = self.raft.followers().filter(|f| f.id != self.config.id);
        // There is hardly ever one, so nothing is allocated.
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

    /// The window of the sender is narrow, and [`Self::look_for_lost_appends`] opens it again if need be.  A follower
    /// that lacks little is not looked after like this: raft sends it one more message for each answer to a heartbeat.
    pub(super) fn has_narrow_window(&self, message: &Message) -> bool {
        self.behind.contains_key(&NodeId(message.from as u32))
    }

    /// To be called on each tick.  Messages that were sent with a wide window and got lost would otherwise keep a
    /// narrow one full.
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
