//! The section `[memory]` of `node.toml`: how much of it the node's queues and caches may take, at most.
//!
//! What belongs to the cluster is not here, since verdicts depend on it: the certification window and the outcomes that
//! are remembered.

use serde::{Deserialize, Serialize};

/// A queue or cache smaller than this would only slow the node down.
const BYTES_MIN: u64 = 8 << 20;
/// A larger number is a typing error.
const BYTES_MAX: u64 = 1 << 40;

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// The newest part of the log, for members and a PostgreSQL that are a little late.
    pub recent_log_bytes: u64,
    /// What peers have sent and the core thread has not taken; a message that is larger comes in alone.
    pub from_peers_bytes: u64,
    /// What waits for a slow or distant peer, for each.  Beyond that frames are dropped, which Raft repairs.
    pub to_each_peer_bytes: u64,
    /// What the apply worker has been sent and has not applied; an entry that is larger goes alone.
    pub to_server_bytes: u64,
    /// Proposals of this node's own server that are being read, or are open; never less than one of the largest.
    pub proposals_bytes: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            recent_log_bytes: 64 << 20,
            from_peers_bytes: 64 << 20,
            to_each_peer_bytes: 128 << 20,
            to_server_bytes: 64 << 20,
            proposals_bytes: 1 << 30,
        }
    }
}

impl Memory {
    pub fn is_default(&self) -> bool {
        *self == Memory::default()
    }

    /// `Err`: what is wrong with it, in a sentence.
    pub fn validate(&self) -> Result<(), String> {
        for (name, bytes) in [
            ("recent_log_bytes", self.recent_log_bytes),
            ("from_peers_bytes", self.from_peers_bytes),
            ("to_each_peer_bytes", self.to_each_peer_bytes),
            ("to_server_bytes", self.to_server_bytes),
            ("proposals_bytes", self.proposals_bytes),
        ] {
            if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
                return Err(format!("`{name}` of `[memory]` is {bytes}, not within 8 MiB to 1 TiB"));
            }
        }
        Ok(())
    }
}
