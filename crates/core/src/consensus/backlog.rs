//! How much of the log is under way to a follower that is behind, and how commits become known beside it.
//!
//! raft-rs would send a follower that has come back all it lacks at once, up to `INFLIGHT_MESSAGES_MAX` messages of
//! `MESSAGE_BYTES_MAX`.  That keeps the leader from everything else, and overruns the way to the follower.

use super::{Consensus, INFLIGHT_MESSAGES_MAX};
use crate::ids::LogIndex;
use raft::{StateRole, Storage};

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
        let (near, me) = (self.near.0, u64::from(self.config.id.0));
        let raft = &mut self.raft.raft;
        if raft.state != StateRole::Leader {
            // Whoever leads next begins anew with all of them; raft keeps the windows.
            for id in std::mem::take(&mut self.behind) {
                raft.adjust_max_inflight_msgs(id, INFLIGHT_MESSAGES_MAX);
            }
            return;
        }
        let mut overrun = Vec::new();
        for (id, progress) in raft.mut_prs().iter_mut().filter(|(id, _)| **id != me) {
            let is_behind = progress.matched < near;
            if is_behind == self.behind.contains(id) {
                continue;
            }
            progress.ins.set_cap(if is_behind { BEHIND_MESSAGES_MAX } else { INFLIGHT_MESSAGES_MAX });
            if !is_behind {
                self.behind.remove(id);
                continue;
            }
            self.behind.insert(*id);
            if progress.ins.full() {
                overrun.push(*id);
            }
        }
        // What is under way to them was sent with the wide window, and may be lost: raft would wait for answers until it
        // fits the narrow one.
        for id in overrun {
            self.raft.report_unreachable(id);
        }
    }

    /// Tells the followers what is committed, if they may not know and what tells them otherwise waits behind large appends.
    pub fn say_commit(&mut self) {
        let committed = self.raft.raft.raft_log.committed;
        if self.raft.raft.state == StateRole::Leader && committed > self.commit_said {
            self.commit_said = committed;
            self.raft.ping();
        }
    }
}
