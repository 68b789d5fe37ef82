//! Real nodes in one process without PostgreSQL.
//!
//! All are in one executable, since linking one is quicker than linking one for each file; `disk_full.rs` needs a
//! process of its own.

mod cluster_view;
mod common;
mod config;
mod join;
mod links;
mod membership;
mod nodes;
mod reads;
mod relay;
mod restore;
mod settle;
mod upgrade;
