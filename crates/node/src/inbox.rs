//! The queue of all events that come to the core thread.
//!
//! It is bounded: a sender waits while it is full, which slows the sockets down and nothing else.

use crate::agent::AgentEvent;
use crate::core_thread::lag::Told;
use crate::error::Result;
use crate::secret::Secret;
use crate::status::CoreStatus;
use bytes::Bytes;
use onetrip_core::consensus::{Message, Notice, Opened};
use onetrip_core::replica::Report;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{Conf, EntryId, LogIndex, Member, MemberRole, Members, NodeId, PreferredLeader, RegionId, TxnId};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const EVENTS_MAX: usize = 8192;

pub enum Event {
    Peer(NodeId, PeerEvent),
    Agent(AgentEvent),
    /// A request of an operator or of a node that wants to join.  Answered when the change is committed here, or with
    /// the reason why it is not.
    Admin(AdminRequest, oneshot::Sender<std::result::Result<AdminReply, String>>),
    /// Leave this entry out of every PostgreSQL; `force`: even if some that may show it cannot be reached.  Answered
    /// when that is committed here, or with the reason why it is not.
    Skip {
        index: LogIndex,
        force: bool,
        answer: oneshot::Sender<std::result::Result<LeftOut, String>>,
    },
    /// For a backup: the log is retained above this index for another minute.  `None`: above a checkpoint that is then
    /// made, whose index is the answer.
    Retain(Option<LogIndex>, oneshot::Sender<LogIndex>),
    /// For `GET /status`.
    Status(oneshot::Sender<CoreStatus>),
    /// A checkpoint up to this index, with this Raft configuration, is durable; or why it could not be written.
    Checkpointed(Result<(LogIndex, Conf)>),
    /// A snapshot of another node, decoded; or why it cannot be decoded.
    Opened(Box<onetrip_core::Result<Opened>>),
    /// Old entries have been read that Raft wants to send.
    Fetched,
    /// More of the log is durable; the log itself says how much.
    Synced,
    /// The node cannot go on.
    Broken(&'static str),
    /// Checkpoint, close the log, end.
    Stop,
}

pub enum AdminRequest {
    /// Make a token with which one node can join, once, within `ttl_s` seconds.
    Token {
        role: MemberRole,
        replaces: Option<NodeId>,
        ttl_s: u64,
    },
    Join {
        secret_hash: [u8; 32],
        region: RegionId,
        /// host:port of its peer port.
        address: String,
        /// Why its PostgreSQL does not fit this cluster, if it does not; for a witness that does not matter.
        unlike: Option<String>,
    },
    Remove {
        node: NodeId,
    },
    PreferLeader(PreferredLeader),
    LeaseRegions(Vec<RegionId>),
    Members,
}

pub enum AdminReply {
    Token(Secret),
    Joined {
        member: Member,
        members: Arc<Members>,
        /// Encodes the checkpoint to start from, to be called by whoever sends it.  The new node marks that as
        /// installed (`checkpoint::installed`).
        checkpoint: Box<dyn FnOnce() -> Bytes + Send>,
    },
    Members(Arc<Members>),
}

/// An entry that no PostgreSQL applies any more.
#[derive(Debug)]
pub struct LeftOut {
    /// The entry that says so.
    pub by: LogIndex,
    pub txn: TxnId,
    pub region: RegionId,
    /// Where it is kept.
    pub kept: PathBuf,
    /// What it changed, as text.
    pub changes: Vec<String>,
}

pub enum PeerEvent {
    Raft(Box<Message>),
    /// What its disk has.
    Notice(Notice),
    /// It asks for the last entry on this node's disk.
    Question(u64),
    /// The last entry on its disk, in answer to a question.
    LastEntry(u64, EntryId),
    /// It asks for the promise that makes a read lease.
    LeaseQuestion(u64),
    /// It promises what was asked for, and names the last entry on its disk.
    Promise(u64, EntryId),
    /// It asks for a report as soon as this node's server shows this entry.
    Await(LogIndex),
    /// About row locks, as the leader or to it.
    Lock(LockMessage),
    Report(Report, Told),
    Unreachable,
    /// Both channels to it are connected, one of them anew; what was sent before may be lost.
    Connected,
    /// It says that this node was removed from the cluster, for good.
    Removed(String),
}

#[derive(Clone)]
pub struct Inbox(SyncSender<Event>);

impl Inbox {
    pub fn new() -> (Inbox, Receiver<Event>) {
        let (sender, receiver) = std::sync::mpsc::sync_channel(EVENTS_MAX);
        (Inbox(sender), receiver)
    }

    /// Waits while the queue is full.  Once the core thread has ended, events vanish: the node is ending too.
    pub async fn send(&self, event: Event) {
        let mut event = event;
        loop {
            match self.0.try_send(event) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => event = back,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Wakes the core thread, if it does not have work anyway.  Never waits.
    pub fn wake(&self, event: Event) {
        let _ = self.0.try_send(event);
    }

    /// The same, for a thread that may block.
    pub fn send_blocking(&self, event: Event) {
        let _ = self.0.send(event);
    }
}
