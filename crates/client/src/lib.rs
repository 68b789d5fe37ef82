//! A cluster as seen from outside: what the `onetrip` command and the lab both need of it.
//!
//! What it must not know: the inside of a node, and anything that only tests need.
//!
//! - [`http`]: one question to a node, and its answer
//! - [`out`]: what a command prints
//! - [`ports`]: free ports of this machine
//! - [`postgres`]: where PostgreSQL's programs are
//! - [`table`]: aligned columns
//! - [`tls`]: whom a client believes
//! - [`topology`]: regions and the round trips between them, from a TOML file

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod http;
pub mod out;
pub mod ports;
pub mod postgres;
pub mod table;
pub mod tls;
pub mod topology;

pub use topology::Topology;
