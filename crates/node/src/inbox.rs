//! The queue of all events that come to the core thread.
//!
//! It is bounded, by the number of events and by the bytes of what peers send: a sender waits while it is full, which
//! slows the sockets down and nothing else.

use crate::agent::AgentEvent;
use crate::core_thread::lag::Told;
use crate::core_thread::skip::Kept;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::secret::Secret;
use crate::status::CoreStatus;
use bytes::Bytes;
use onetrip_core::consensus::{Message, Notice, Opened};
use onetrip_core::replica::Report;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{
    Conf, EntryId, Level, LogIndex, Member, MemberRole, Members, NodeId, PreferredLeader, RegionId, TxnId,
};
use raft::eraftpb::Entry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const EVENTS_MAX: usize = 8192;
/// What an entry takes in memory beside its data.
const ENTRY_BYTES: usize = 256;

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
    /// An entry that is to be left out is kept, or why it could not be (`core_thread::skip`).
    Kept(std::result::Result<Kept, (LogIndex, Error)>, oneshot::Sender<std::result::Result<LeftOut, String>>),
    /// For a backup: the log is retained above this index for another minute.  `None`: above a checkpoint that is then
    /// made, whose index is the answer.
    Retain(Option<LogIndex>, oneshot::Sender<LogIndex>),
    /// For `GET /status`.
    Status(oneshot::Sender<CoreStatus>),
    /// A checkpoint up to this index, with this Raft configuration, is durable; or why it could not be written.
    Checkpointed(Result<(LogIndex, Conf)>),
    /// A snapshot of another node, decoded; or why it cannot be decoded.
    Opened(Box<onetrip_core::Result<Opened>>),
    /// `node.toml` has other bounds.
    Bounds {
        log_bytes_max: u64,
        memory: Memory,
    },
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
    /// The caller has seen that every member's release knows it.
    RaiseLevel(Level),
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

impl Event {
    fn bytes(&self) -> usize {
        match self {
            Event::Peer(_, PeerEvent::Raft(message)) => {
                let of_entry = |entry: &Entry| entry.data.len() + entry.context.len() + ENTRY_BYTES;
                let entries: usize = message.entries.iter().map(of_entry).sum();
                entries + message.get_snapshot().data.len() + message.context.len()
            }
            Event::Peer(_, PeerEvent::Lock(message)) => message.bytes(),
            _ => 0,
        }
    }
}

#[derive(Clone)]
pub struct Inbox {
    sender: SyncSender<Event>,
    bytes: Arc<AtomicUsize>,
    /// Proposals of this node's own server have a bound of their own (`Permit`).
    bytes_max: Arc<AtomicUsize>,
}

/// The receiving end.
pub struct Events {
    receiver: Receiver<Event>,
    bytes: Arc<AtomicUsize>,
}

impl Inbox {
    /// `bytes_max`: of what peers send; a message that is larger comes in alone.
    pub fn new(bytes_max: u64) -> (Inbox, Events) {
        let (sender, receiver) = std::sync::mpsc::sync_channel(EVENTS_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        let bytes_max = Arc::new(AtomicUsize::new(bytes_max as usize));
        (Inbox { sender, bytes: bytes.clone(), bytes_max }, Events { receiver, bytes })
    }

    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max as usize, Ordering::Relaxed);
    }

    /// Waits while the queue is full.  Once the core thread has ended, events vanish: the node is ending too.
    pub async fn send(&self, event: Event) {
        let bytes = event.bytes();
        let mut event = event;
        loop {
            if self.has_room(bytes) {
                match self.sender.try_send(event) {
                    Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                    Err(TrySendError::Full(back)) => event = back,
                }
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Takes room for so many bytes, if there is some.
    fn has_room(&self, bytes: usize) -> bool {
        let max = self.bytes_max.load(Ordering::Relaxed);
        let with = |now: usize| (now == 0 || bytes == 0 || now + bytes <= max).then_some(now + bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }

    /// Wakes the core thread, if it does not have work anyway.  Never waits.  Not for messages of peers.
    pub fn wake(&self, event: Event) {
        let _ = self.sender.try_send(event);
    }

    /// The same, for a thread that may block.
    pub fn send_blocking(&self, event: Event) {
        let _ = self.sender.send(event);
    }
}

impl Events {
    pub fn recv_timeout(&self, wait: Duration) -> std::result::Result<Event, RecvTimeoutError> {
        self.receiver.recv_timeout(wait).inspect(|event| self.taken(event))
    }

    pub fn try_recv(&self) -> std::result::Result<Event, TryRecvError> {
        self.receiver.try_recv().inspect(|event| self.taken(event))
    }

    /// This one, and those that wait: so many at most, and no further one at this time or later.
    pub fn round(&self, first: Option<Event>, at_most: usize, until: Instant) -> impl Iterator<Item = Event> + '_ {
        let waiting = std::iter::from_fn(move || (Instant::now() < until).then(|| self.try_recv().ok()).flatten());
        first.into_iter().chain(waiting).take(at_most)
    }

    fn taken(&self, event: &Event) {
        self.bytes.fetch_sub(event.bytes(), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn recv(&self) -> std::result::Result<Event, std::sync::mpsc::RecvError> {
        self.receiver.recv().inspect(|event| self.taken(event))
    }

    #[cfg(test)]
    pub fn try_iter(&self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 64 << 20;

    fn appends(bytes: usize) -> Event {
        let mut message = Message::default();
        message.mut_entries().push(raft::eraftpb::Entry { data: vec![0; bytes].into(), ..Default::default() });
        Event::Peer(NodeId(2), PeerEvent::Raft(Box::new(message)))
    }

    /// Goal: what peers send waits outside once the inbox has its bytes; other events, and a message that is larger
    /// than the bound, do not.
    #[tokio::test]
    async fn peers_wait_while_the_inbox_has_its_bytes() {
        let (inbox, events) = Inbox::new(BYTES_MAX as u64);
        let in_time = |event| tokio::time::timeout(Duration::from_millis(100), inbox.send(event));
        for _ in 0..63 {
            in_time(appends(1 << 20)).await.expect("it fits");
        }
        assert!(in_time(appends(1 << 20)).await.is_err(), "64 entries and what they take beside their data");
        in_time(Event::Fetched).await.expect("it is not a peer's");
        assert!(matches!(events.try_recv(), Ok(Event::Peer(..))));
        in_time(appends(1 << 20)).await.expect("there is room again");
        assert_eq!(events.try_iter().count(), 64);
        in_time(appends(BYTES_MAX + 1)).await.expect("alone");
        assert!(in_time(appends(1)).await.is_err());
        assert_eq!(events.try_iter().count(), 1);
        assert_eq!(inbox.bytes.load(Ordering::Relaxed), 0);
        // So do snapshots, and lists of locks.
        let mut snapshot = Message::default();
        snapshot.mut_snapshot().data = vec![0; BYTES_MAX].into();
        let txns = vec![TxnId { node: NodeId(2), incarnation: 1, sequence: 1 }; BYTES_MAX / 24 + 1];
        for peer in [PeerEvent::Raft(Box::new(snapshot)), PeerEvent::Lock(LockMessage::Present(txns))] {
            in_time(Event::Peer(NodeId(2), peer)).await.expect("alone");
            assert!(in_time(appends(1)).await.is_err());
            assert_eq!(events.try_iter().count(), 1);
        }
        // Entries without data take memory too.
        let mut empty = Message::default();
        empty.set_entries(vec![Default::default(); BYTES_MAX / ENTRY_BYTES].into());
        in_time(Event::Peer(NodeId(2), PeerEvent::Raft(Box::new(empty)))).await.expect("alone");
        assert!(in_time(appends(1)).await.is_err());
        // The bound can change meanwhile.
        inbox.set_bytes_max(2 * BYTES_MAX as u64);
        in_time(appends(1)).await.expect("there is more room");
    }

    /// Goal: the core thread gets to its ticks, however long the events take that wait.
    #[test]
    fn a_round_ends_in_time() {
        let (inbox, events) = Inbox::new(BYTES_MAX as u64);
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(3_600));
        (0..5).for_each(|_| inbox.send_blocking(Event::Fetched));
        assert_eq!(events.round(Some(Event::Synced), 10, past).count(), 1);
        assert_eq!(events.round(Some(Event::Synced), 3, future).count(), 3);
        assert_eq!(events.round(None, 10, future).count(), 3);
    }
}
