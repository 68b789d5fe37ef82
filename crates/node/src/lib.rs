//! The daemon: one node of a cluster, with its log, its links to the peers, and its PostgreSQL.
//!
//! | module | what | thread |
//! |---|---|---|
//! | [`node`] | starts and stops the parts | caller's |
//! | `core_thread` | agrees, writes, decides, answers | one of its own |
//! | [`archive`] | the committed log, kept outside the node | one of its own |
//! | [`disk`] | the Raft log and the certifier's checkpoint | core |
//! | `agent` | the socket through which PostgreSQL reaches its node | reading: io, answering: core |
//! | [`tls`] | who is a member: certificates | io |
//! | `transport` | frames to and from the peers | reading: io, writing: core, or the delay line's |
//! | `http` | `GET /status`, `GET /health`, `GET /metrics` | io |
//! | `access` | who may ask the HTTP port | io |
//! | `console` | the page that shows the cluster | io |
//! | `metrics` | the status as metrics | io |
//! | `links` | `POST /links`, in builds with the feature `lab` | io |
//! | `admin` | the operators' socket: tokens, leaving, the preferred leader, entries to leave out, backups | io |
//! | [`traces`] | traces of COMMITs, for a collector | one of its own |
//! | `write_set` | the changes of an entry that is left out, as text | core |
//! | `printable` | text of others, for terminals | caller's |
//! | [`postgres`] | the server process | caller's runtime |
//! | `rebuild` | which member's PostgreSQL is copied | caller's runtime |
//! | [`span`] | from which node a log line is | all of them |
//!
//! What decides about transactions is in `onetrip-core`; the code here only moves bytes.

mod access;
mod admin;
mod agent;
pub mod archive;
mod bounded_listener;
mod cluster;
pub mod config;
mod console;
mod core_thread;
pub mod disk;
pub mod error;
mod facts;
mod files;
#[cfg(feature = "lab")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod inbox;
pub mod join;
#[cfg(feature = "lab")]
mod links;
mod memory;
mod metrics;
mod no_majority;
pub mod node;
mod places;
pub mod postgres;
mod printable;
mod rebuild;
pub mod restore;
pub mod secret;
mod send_queue;
mod space;
pub mod span;
pub mod status;
mod stop;
#[cfg(test)]
#[path = "../../core/tests/stored/mod.rs"]
mod stored;
pub mod tls;
pub mod traces;
mod transport;
mod write_set;

/// Whether this build can do what only tests ask for (the feature `lab`).
pub const IS_FOR_TESTS: bool = cfg!(feature = "lab");

/// The version of the extension's objects that this release brings (`onetrip.control`).
pub const EXTENSION_VERSION: &str = "0.2";

pub use config::{ArchiveConfig, Member, NodeConfig, PostgresConfig};
pub use error::{without_errno, Error, Result};
pub use facts::Facts;
pub use inbox::{AdminReply, AdminRequest};
pub use node::{run, Node};
pub use printable::printable_part;

#[cfg(test)]
mod tests {
    #[test]
    fn the_extension_has_the_version_that_is_told() {
        let control = include_str!("../../../extension/onetrip.control");
        assert!(control.contains(&format!("default_version = '{}'\n", super::EXTENSION_VERSION)));
    }
}
