//! The daemon: one node of a cluster, with its log, its links to the peers, and its PostgreSQL.

pub mod config;
pub mod disk;
pub mod error;

pub use config::{Member, NodeConfig, PostgresConfig};
pub use error::{Error, Result};
