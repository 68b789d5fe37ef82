//! The pure part of Onetrip: what an entry is, whether it commits, and how the nodes agree on the log.
//!
//! Nothing here knows a clock, a socket, a disk or a thread: time comes in as ticks, bytes as `Bytes`, and everything
//! that should happen outside is returned as values.  The same inputs give the same outputs on every node, to the bit.
//! That is what lets each node decide alone (`certifier`).
//!
//! | module | what |
//! |---|---|
//! | [`ids`] | one type for each kind of position and identity |
//! | [`entry`] | what is proposed, and what the log contains |
//! | [`agent`] | the frames between PostgreSQL and its node |
//! | [`certifier`] | commit or abort, from the log alone |
//! | [`level`] | which formats of entries a release knows, and which are in force |
//! | [`members`] | who belongs to the cluster, from the log alone |
//! | [`checkpoint`] | all of that up to one index, as bytes |
//! | [`router`] | who waits for what on a node, and who commits an entry there |
//! | [`parts`] | entries that are too large to travel whole |
//! | [`consensus`] | the Raft driver |
//! | [`decide`] | what every node does with a committed entry |
//! | [`replica`] | the loop that drives all of them, on a host that is the daemon or the simulation |
//! | [`skip`] | whether an entry may be left out of every PostgreSQL |
//! | [`row_locks`] | row locks that are asked from the leader before a row is changed |
//! | [`placement`] | where the leader is best |

pub mod agent;
pub mod certifier;
pub mod checkpoint;
pub mod consensus;
pub mod decide;
pub mod entry;
pub mod error;
pub mod ids;
pub mod level;
pub mod members;
mod pace;
pub mod parts;
pub mod placement;
pub mod replica;
pub mod router;
pub mod row_locks;
pub mod skip;
pub mod wire;

pub use checkpoint::{Checkpoint, Conf};
pub use entry::{Entry, EntryKind, Key, LockMode};
pub use error::{Error, Result};
pub use ids::{Base, EntryId, Level, LogIndex, NodeId, RegionId, Term, TxnId};
pub use members::{Change, Command, Joined, Member, MemberRole, Members, PreferredLeader, Token};
