//! How much of the log is under way to a follower that is behind, and how commits become known beside it.
//!
//! raft-rs would send a follower that has come back all it lacks at once, up to `INFLIGHT_MESSAGES_MAX` messages of
//! `MESSAGE_BYTES_MAX`.  That keeps the leader from everything else, and overruns the way to the follower.

use super::raft_node::Follower;
use super::{Consensus, INFLIGHT_MESSAGES_MAX};
use crate::ids::LogIndex;
use raft::Storage;

/// Append messages of full size under way to a follower that is far behind.  A guess: at 100 ms of round trip it catches up
/// by 160 MB/s, and one batch of them keeps the core thread for some milliseconds.
const BEHIND_MESSAGES_MAX: usize = 16;

impl<S: Storage> Consensus<S> {
    /// A follower whose log matches up to here is near: what it lacks is little.  To be told again and again.
    pub fn set_near(&mut self, near: LogIndex) {
        self.near = near;
        self.fit_windows();
    }

    /// To be called after each input.
    pub(super) fn fit_windows(&mut self) {
        if !self.raft.leads() {
            // Whoever leads next begins anew with all of them; raft keeps the windows.
            for id in std::mem::take(&mut self.behind) {
                self.raft.set_window(id, INFLIGHT_MESSAGES_MAX);
            }
            return;
        }
        let others: Vec<Follower> = self.raft.followers().filter(|f| f.id != self.config.id).collect();
        for Follower { id, matched, .. } in others {
            let is_behind = matched < self.near;
            if is_behind && self.behind.insert(id) {
                self.raft.set_window(id, BEHIND_MESSAGES_MAX);
            } else if !is_behind && self.behind.remove(&id) {
                self.raft.set_window(id, INFLIGHT_MESSAGES_MAX);
            }
        }
    }

    /// Tells the followers what is committed, if they may not know and what tells them otherwise waits behind large appends.
    pub fn say_commit(&mut self) {
        let committed = self.raft.committed();
        if self.raft.leads() && committed > self.commit_said {
            self.commit_said = committed;
            self.raft.ping();
        }
    }
}
