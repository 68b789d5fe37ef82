//! A cluster as seen from outside: what the `onetrip` command and the lab both need of it.
//!
//! What it must not know: the inside of a node, and anything that only tests need.
//!
//! - [`http`]: one question to a node, and its answer
//! - [`ports`]: free ports of this machine
//! - [`postgres`]: where PostgreSQL's programs are
//! - [`table`]: aligned columns
//! - [`topology`]: regions and the round trips between them, from a TOML file

pub mod http;
pub mod ports;
pub mod postgres;
pub mod table;
pub mod topology;

pub use topology::Topology;
