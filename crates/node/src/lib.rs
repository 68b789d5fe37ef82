//! The daemon: one node of a cluster, with its log, its links to the peers, and its PostgreSQL.
//!
//! | module | what | thread |
//! |---|---|---|
//! | [`node`] | starts and stops the parts | caller's |
//! | `core_thread` | agrees, writes, decides, answers | one of its own |
//! | [`archive`] | the committed log, kept outside the node | one of its own |
//! | [`disk`] | the Raft log and the certifier's checkpoint | core |
//! | `agent` | PostgreSQL's side door | reading: io, answering: core |
//! | [`tls`] | who is a member: certificates | io |
//! | `transport` | frames to and from the peers | reading: io, writing: core, or the delay line's |
//! | `http` | `GET /status` | io |
//! | `links` | `POST /links`, in builds with the feature `lab` | io |
//! | `admin` | the operator's socket: tokens, leaving, the leader's place, what is left out | io |
//! | `write_set` | what is left out, to be read | core |
//! | [`postgres`] | the server process | caller's runtime |
//! | `rebuild` | whose PostgreSQL is copied | caller's runtime |
//! | [`span`] | whose a log line is | all of them |
//!
//! What decides about transactions lives in `onetrip-core`; here is only what moves bytes.

mod admin;
mod agent;
pub mod archive;
mod bounded_listener;
pub mod config;
mod core_thread;
pub mod disk;
pub mod error;
mod facts;
#[cfg(feature = "lab")]
#[doc(hidden)]
pub mod fuzz;
mod http;
mod inbox;
pub mod join;
#[cfg(feature = "lab")]
mod links;
pub mod node;
pub mod postgres;
mod rebuild;
pub mod restore;
pub mod secret;
mod send_queue;
pub mod span;
pub mod status;
mod stop;
pub mod tls;
mod transport;
mod write_set;

/// Whether this build can do what only tests ask for (the features `lab` and `stop-points`): none for use can.
pub const IS_FOR_TESTS: bool = cfg!(any(feature = "lab", feature = "stop-points"));

pub use config::{ArchiveConfig, Member, NodeConfig, PostgresConfig};
pub use error::{Error, Result};
pub use facts::Facts;
pub use inbox::{AdminReply, AdminRequest};
pub use node::{run, Node};
