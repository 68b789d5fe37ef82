//! One type for each kind of position and identity, so that none is taken for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Position in the replicated log.  0 means "before the first entry".
    LogIndex, u64
);
number!(
    /// Raft term.
    Term, u64
);
number!(
    /// The applied index that a transaction had seen when it took a key.
    Base, u64
);
number!(
    /// Which formats of entries and commands are known to a release, or in force in a cluster (`crate::level`).
    Level, u16
);
number!(
    /// A node's number in its cluster, from 1.
    NodeId, u32
);

/// An entry of the log.  Of two entries the one with the higher term is newer, and of one term the one with the higher
/// index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    pub term: Term,
    pub index: LogIndex,
}

impl LogIndex {
    pub const ZERO: LogIndex = LogIndex(0);
    /// No log gets this long, and the sum of two indexes up to this does not overflow.  Terms are limited to it, too.
    pub const MAX: LogIndex = LogIndex(1 << 62);
    pub fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }
}

/// Name of a region, such as `us-east-1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegionId(pub String);

impl RegionId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RegionId {
    fn from(s: &str) -> Self {
        RegionId(s.to_owned())
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one transaction for ever: the node it ran on, that PostgreSQL's incarnation, a count within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId {
    pub node: NodeId,
    pub incarnation: u64,
    pub sequence: u64,
}

/// Text form of `docs/agent-protocol.md`: the last two in lower-case hexadecimal without leading zeros.
impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}-{:x}", self.node, self.incarnation, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_id_prints_as_documented() {
        let txn = TxnId { node: NodeId(3), incarnation: 0xabc0, sequence: 16 };
        assert_eq!(txn.to_string(), "3-abc0-10");
    }
}
