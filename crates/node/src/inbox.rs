//! What comes to the core thread, from all sides, in one queue.
//!
//! Bounded: a sender waits while it is full, which slows the sockets down and nothing else.

use crate::agent::AgentEvent;
use crate::error::Result;
use crate::status::CoreStatus;
use onetrip_core::consensus::Message;
use onetrip_core::{LogIndex, NodeId};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;
use tokio::sync::oneshot;

const EVENTS_MAX: usize = 8192;

pub enum Event {
    Peer(NodeId, PeerEvent),
    Agent(AgentEvent),
    /// For `GET /status`.
    Status(oneshot::Sender<CoreStatus>),
    /// A checkpoint up to this index is durable, or could not be written.
    Checkpointed(Result<LogIndex>),
    /// Checkpoint, close the log, end.
    Stop,
}

pub enum PeerEvent {
    Raft(Box<Message>),
    /// Its PostgreSQL is safe on disk up to here.
    Durable(LogIndex),
    Unreachable,
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

    /// The same for a thread of its own.
    pub fn send_blocking(&self, event: Event) {
        let _ = self.0.send(event);
    }
}
