//! The lab: emulated distances, workloads, measurements, and clusters of real processes to run them on.
//!
//! What it must not know: the inside of a node.  It starts the `onetrip` command, speaks SQL and HTTP to what it started,
//! and sends signals; so what it shows is what a user would see.
//!
//! - [`link`]: a TCP proxy that adds a client's distance to a region
//! - [`limit`]: what physics asks of one commit
//! - [`cluster`]: a cluster of real nodes and PostgreSQL servers to start, kill and clean up
//! - [`pgbench`]: runs pgbench and reads the latency of each transaction
//! - [`trial`]: what runs the generators of [`values`] and [`poison`]: statements whose outcome is to be alike everywhere
//! - [`torture`]: clusters under every kind of fault, and the proof that nothing was lost
//! - [`fuzz`]: what is fuzzed, and what each input is held to
//! - [`traffic`]: what TCP connections have carried
//! - [`machine`], [`page`], [`scatter`]: what a page of figures is made of
//! - [`report`]: the table of a measurement, for people and for programs

pub mod cluster;
pub mod fuzz;
pub mod limit;
pub mod link;
pub mod machine;
mod membership;
mod node_process;
pub mod page;
pub mod pgbench;
pub mod poison;
pub mod postmaster;
pub mod published;
pub mod report;
pub mod scatter;
pub mod torture;
pub mod traffic;
pub mod trial;
pub mod values;

pub use cluster::{Cluster, LinkChange};
pub use node_process::Node;
pub use onetrip_client::postgres::usual_bin_dir as postgres_bin;
pub use onetrip_client::{ports, Topology};
