//! The lab: emulated distances, workloads, measurements, and clusters of real processes to run them on.
//!
//! What it must not know: the inside of a node.  It starts the `onetrip` command, speaks SQL and HTTP to what it started,
//! and sends signals; so what it shows is what a user would see.
//!
//! - [`topology`]: regions and the round trips between them, from a TOML file
//! - [`link`]: a TCP proxy that adds a client's distance to a region
//! - [`cluster`]: a cluster of real nodes and PostgreSQL servers to start, kill and clean up
//! - [`pgbench`]: runs pgbench and reads the latency of each transaction
//! - [`trial`]: what runs the generators of [`values`] and [`poison`]: statements whose outcome is to be alike everywhere
//! - [`torture`]: clusters under every kind of fault, and the proof that nothing was lost
//! - [`report`]: the table of a measurement, for people and for programs

pub mod cluster;
pub mod http;
pub mod link;
mod membership;
mod node_process;
pub mod pgbench;
pub mod poison;
pub mod ports;
pub mod postmaster;
pub mod published;
pub mod report;
pub mod topology;
pub mod torture;
pub mod trial;
pub mod values;

pub use cluster::{Cluster, LinkChange};
pub use node_process::Node;
pub use topology::Topology;

/// PostgreSQL's programs: where `ONETRIP_POSTGRES_BIN` says, else where Debian has them.
pub fn postgres_bin() -> std::path::PathBuf {
    std::env::var_os("ONETRIP_POSTGRES_BIN").map_or_else(|| "/usr/lib/postgresql/15/bin".into(), Into::into)
}
