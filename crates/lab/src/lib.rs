//! The lab: emulated distances, workloads, measurements, and clusters of real processes to run them on.
//!
//! It must not know the inside of a node.  It starts the `onetrip` command, talks SQL and HTTP to what it started, and
//! sends signals; so it sees what a user would see.
//!
//! - [`link`]: a TCP proxy that adds a client's distance to a region
//! - [`limit`]: how long one commit takes at least, by the distances alone
//! - [`cluster`]: a cluster of real nodes and PostgreSQL servers to start, kill and clean up
//! - [`crashes`]: what their logs say of crashes
//! - [`pgbench`]: runs pgbench and reads the latency of each transaction
//! - [`trial`]: runs the statements that [`values`] and [`poison`] generate, whose outcome must be the same everywhere
//! - [`pairs`]: every feature of PostgreSQL with every other, compared with [`plain`] PostgreSQL
//! - [`torture`]: clusters under every kind of fault, and the proof that nothing was lost
//! - [`fuzz`]: the fuzz targets, and what every input must show
//! - [`traffic`]: how much TCP connections have carried
//! - [`machine`], [`page`], [`scatter`]: the parts of a page of figures
//! - [`report`]: the table of a measurement, for people and for programs

pub mod cluster;
pub mod crashes;
pub mod fuzz;
pub mod limit;
pub mod link;
pub mod machine;
mod membership;
mod node_process;
pub mod page;
pub mod pairs;
pub mod pgbench;
pub mod plain;
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
