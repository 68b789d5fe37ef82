//! The errors of this crate, by what the caller can do about them.

use crate::certifier::Limits;
use crate::ids::{Level, LogIndex, NodeId};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes from a peer or a PostgreSQL break the protocol: end that connection, and harm nothing else.
    #[error("malformed {what}: {why}")]
    Malformed { what: &'static str, why: String },
    /// Bytes that this node wrote have come back changed from disk: do not start.
    #[error("corrupted {what}: {why}")]
    Corrupted { what: &'static str, why: String },
    /// A checkpoint was made with another configuration: do not start.
    #[error(
        "it was made with window_entries = {}, but this node has {}; this cannot be changed: set it back in node.toml ({was:?})",
        was.window_entries, now.window_entries
    )]
    OtherLimits { was: Limits, now: Limits },
    /// There is no leader to take this proposal; propose again when there is one.
    #[error("no leader takes proposals now")]
    NoLeader,
    /// A change of the membership that would leave too few members with the rows.
    #[error("a member may not leave while too few of those that stay are known to have the rows")]
    RowsWouldGo,
    /// This node's release is older than what it is to read: do not start, or do not take it from the peer.
    #[error(
        "this needs format level {needs}, and this release of Onetrip knows {known} at most: install the release that the \
         other members run"
    )]
    Level { needs: Level, known: Level },
    /// What is proposed has to wait until every member knows it.
    #[error("this needs format level {needs}, and {in_force} is in force in this cluster: see `onetrip upgrade`")]
    NotInForce { needs: Level, in_force: Level },
    /// Entries were skipped or came twice; the caller's replay is wrong.
    #[error("entry {got} does not follow {last}")]
    OutOfOrder { last: LogIndex, got: LogIndex },
    /// The leader counts on something that this node does not have: it must not vote any more.
    #[error(
        "this node has acknowledged entry {counted_on} and its log ends at {last}: its disk has lost a part of the log, or its \
         folder is an older copy; replace the node (`onetrip token --replaces`)"
    )]
    LostLog { counted_on: LogIndex, last: LogIndex },
    /// A message that no correct member sends to a node that knows what this one knows: the peer, or this node's disk,
    /// is wrong.
    #[error("node {from} contradicts what is known here: {why}")]
    Contradicts { from: NodeId, why: String },
    /// Raft refused a step or its configuration.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}

impl Error {
    pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Error::Malformed { what, why: why.into() }
    }
    pub(crate) fn corrupted(what: &'static str, why: impl Into<String>) -> Self {
        Error::Corrupted { what, why: why.into() }
    }
}
