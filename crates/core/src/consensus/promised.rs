//! What this member has promised to the holders of read leases: to decide nothing that they lack
//! (`docs/decisions/2026-11-24-read-leases.md`).
//!
//! Invariant: while a promise stands, no entry is handed out above what its holder has said to have on disk, in the
//! log of a leader of this member's own term or a later one.  Such a leader has everything that is known to be
//! committed here.

use super::Consensus;
use crate::ids::{LogIndex, NodeId};
use raft::Storage;

impl<S: Storage> Consensus<S> {
    /// From now on nothing is handed out that `holder` has not said to have.
    pub fn promise(&mut self, holder: NodeId) {
        self.holders.insert(holder);
    }

    /// The promise has run out.
    pub fn release(&mut self, holder: NodeId) {
        self.holders.remove(&holder);
    }

    /// Whether others may have promised this to this member: then it tells everybody what its disk has.
    pub fn set_waited_for(&mut self, is_waited_for: bool) {
        self.is_waited_for = is_waited_for;
    }

    /// What is committed, as far as this member knows; some of it may not have been handed out yet.
    pub fn committed(&self) -> LogIndex {
        self.raft.committed()
    }

    /// Up to which index `member` has said that its disk has all that is known to be committed here.
    pub fn said_to_have(&self, member: NodeId) -> LogIndex {
        let said = match self.raft.leads() {
            true => self.raft.follower(member).map(|f| f.matched),
            false => self.notices.of(member, self.raft.term()),
        };
        said.unwrap_or_default()
    }

    pub(super) fn may_hand_out(&self, index: LogIndex) -> bool {
        self.holders.iter().all(|holder| index <= self.said_to_have(*holder))
    }
}
