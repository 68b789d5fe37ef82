//! A deterministic simulation of the core: the real consensus and certifier under faults, with a model of PostgreSQL.
//!
//! One seed decides everything: the same seed gives the same run, to the byte.  The simulation knows no clock,
//! thread, socket or file.  A node's loop (`onetrip_core::replica`) is the daemon's own, with faults between any two
//! of its effects.
//!
//! | module | what |
//! |---|---|
//! | `world`, `network`, `stream` | time and crashes; messages, one by one or on connections |
//! | `faults`, `ending` | what goes wrong; what must hold when everything has healed |
//! | `operator` | members join, leave and are replaced; PostgreSQL's data folder is made anew |
//! | `poison` | entries that a PostgreSQL cannot apply; healing by a copy; an operator who has one left out |
//! | `node`, `host`, `disk` | one node: the daemon's replica, and the simulated host and disk that it runs on |
//! | `postgres`, `session`, `rows` | the turn and the apply worker; transactions and their clients; rows as lists |
//! | `arrival` | the worker that writes large transactions while they arrive |
//! | `copies` | whether a copy of PostgreSQL is needed |
//! | `checker` | what must hold, judged from outside by what nodes say and do |
//! | `onetrip_checker` | the same for what clients saw: the histories of their transactions |
//! | [`ctx`] | options drawn from the seed, injected bugs |

mod agent;
mod arrival;
mod checker;
mod copies;
pub mod ctx;
mod disk;
mod ending;
mod faults;
mod host;
mod network;
mod node;
mod notices;
mod operator;
mod poison;
mod postgres;
mod prepared;
mod rng;
mod rows;
mod session;
mod stream;
mod world;

pub use ctx::{InjectedBug, Options, Stats};
pub use world::{run, Report};
