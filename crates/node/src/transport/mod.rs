//! Frames to and from the other nodes.
//!
//! Each node dials every other node twice, for control and for bulk, so that a heartbeat or a small proposal never
//! queues behind an append of 100 MB.  A node writes frames to the connections that it dialled, and reads them from
//! those that it accepted.  This module knows which Raft messages are urgent, and nothing else of Raft.
//!
//! Invariants:
//! - A frame reaches the core only from a peer whose hello named this cluster and the id of a member, or an id newer
//!   than this node's table of members; with certificates, the peer has proved that the id is its own.  A Raft message
//!   must name that id as its sender, or have a tag of the sender that it names ([`relayed`]).
//! - The frames of one channel of one link keep their order.  Any of them may be lost; none arrives twice, unless a lab
//!   asks for that.  An append that was relayed may come again, directly.
//! - Invalid input from an unauthenticated or faulty peer ends that connection and is logged; it does no other harm.

mod accept;
mod asked;
mod error;
pub(crate) mod frame;
mod link;
mod rehearsal;
mod relay;
mod relayed;
mod round_trips;
mod speaks;
mod statuses;
#[cfg(test)]
mod tests;
mod tunnel;
mod wan;

pub(crate) use accept::join_exchange;
pub(crate) use error::PeerError;
pub(crate) use speaks::Speaks;
pub(crate) use statuses::{OwnStatus, STATUS_BYTES_MAX};
#[cfg(feature = "lab")]
pub use wan::LinkSettings;

use crate::config::NodeConfig;
use crate::core_thread::lag::Told;
use crate::error::Result;
use crate::facts::Facts;
use crate::inbox::Inbox;
use crate::join::{ClusterSettings, JoinToken};
use crate::places::Places;
use crate::secret::{self, Secret};
use crate::send_queue::SendQueue;
use crate::tls::{self, PeerSocket, Tls};
use accept::Refusals;
use asked::Asked;
use bytes::Bytes;
use frame::{Channel, Encoded, Frame};
use link::Link;
use onetrip_core::consensus::{Message, Notice, PROPOSALS_BYTES_MAX};
use onetrip_core::replica::Report;
use onetrip_core::row_locks::LockMessage;
use onetrip_core::{EntryId, Level, LogIndex, Members, NodeId, RegionId};
use raft::eraftpb::MessageType;
use relay::{Relays, Route, Way};
use relayed::{Entries, Keys, Relayed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, Notify, Semaphore};
use wan::Wan;

pub struct Transport {
    cluster: String,
    me: NodeId,
    region: RegionId,
    wan: Wan,
    peers: RwLock<Peers>,
    /// New links go to `run`, which dials them; `to_dial` is the receiving end until `run` takes it.
    new_links: mpsc::UnboundedSender<Arc<Link>>,
    to_dial: Mutex<Option<mpsc::UnboundedReceiver<Arc<Link>>>>,
    unauthenticated: Places,
    refusals: Refusals,
    /// Limits how fast tokens can be guessed.
    joins: Semaphore,
    tunnels: Arc<Semaphore>,
    rehearsals: Asked<rehearsal::Answer>,
    rehearsal_places: Arc<Semaphore>,
    statuses: Asked<Bytes>,
    status_places: Arc<Semaphore>,
    own_status: OnceLock<OwnStatus>,
    relaying: Mutex<Relaying>,
    /// Something was relayed.
    relayed: Notify,
    relay_keys: Keys,
    postgres_socket: Option<PathBuf>,
    /// About this node's PostgreSQL.
    facts: Option<Facts>,
    settings: ClusterSettings,
    /// `None`: connections between nodes are neither encrypted nor authenticated.
    tls: Option<RwLock<Arc<Tls>>>,
    inbox: Inbox,
    /// Of each new connection to a peer.
    queue_bytes_max: Arc<AtomicUsize>,
    started: Instant,
}

#[derive(Default)]
struct Peers {
    links: BTreeMap<NodeId, Arc<Link>>,
    /// Ids below this that are not in `links` are those of former members.  Ids from this one on are newer than this
    /// node's table of members.  They are let in, since one of them may be the leader, and only the leader can send
    /// this node the entries that name them.
    next_id: NodeId,
    /// This node's region and address in the table of members.
    own: Option<(RegionId, String)>,
    /// [`Members::beginning`] and the seed of keys; 0 until the table is known.
    beginning: u32,
    /// The format level in force: who does not know it is not let in.
    level: Level,
}

/// What goes through others.  The lock is held until a frame is in its queue, so that frames leave in the order in
/// which they were thought of.
#[derive(Default)]
struct Relaying {
    relays: Relays,
    /// The entries that were sent to each relay last, and on which connection.
    last: BTreeMap<NodeId, (Weak<SendQueue<PeerSocket>>, Entries)>,
}

/// A member that has said nothing for longer is not waited for: it answers a heartbeat every 100 ms.
const RELAY_SILENCE_MAX: Duration = Duration::from_secs(1);
/// Late appends are looked for no more often than this.
const LOOK_FOR_LATE_EVERY: Duration = Duration::from_millis(5);

/// What this node knows about its link to one peer.
#[derive(Clone, Debug, Serialize)]
pub struct PeerState {
    pub id: NodeId,
    pub region: RegionId,
    pub connected: bool,
    /// The shortest round trip of the last seconds.
    pub rtt_ms: Option<f64>,
    #[serde(skip)]
    pub rtt_least: Option<Duration>,
    /// How long the next round trip will probably take.
    #[serde(skip)]
    pub rtt_median: Option<Duration>,
    /// Major version of its PostgreSQL, if it has one and has said so.
    pub postgres_version: Option<u16>,
    /// Bytes of the frames that were sent to it, and of those among them that this node has handed on for others.
    pub sent_bytes: u64,
    pub relayed_bytes: u64,
    /// How often it has not tried statements of this region that were to be rehearsed.
    pub not_rehearsed: u64,
    /// The format level that its release knows, if it has said so while this node runs.
    pub level: Option<Level>,
    #[serde(skip)]
    pub trouble: Option<String>,
    #[serde(skip)]
    pub cut: bool,
}

/// Proposals up to this size go by the control channel, like heartbeats.
const SMALL_BYTES_MAX: usize = PROPOSALS_BYTES_MAX;
/// They do so only while no more than this is queued there, so that heartbeats do not wait behind many small proposals.
const CONTROL_WAITING_MAX: usize = 256 << 10;

fn is_small_for(link: &Link, message: &Message) -> bool {
    let bytes: usize = message.entries.iter().map(|entry| entry.data.len()).sum();
    let waiting = link.queue(Channel::Control).map_or(0, |queue| queue.waiting_bytes());
    bytes <= SMALL_BYTES_MAX && waiting <= CONTROL_WAITING_MAX
}

impl Transport {
    /// Reads the certificates if the configuration asks for TLS.  `facts` are about the node's PostgreSQL, if it has
    /// one.
    pub fn new(config: &NodeConfig, facts: Option<Facts>, inbox: Inbox) -> Result<Arc<Transport>> {
        let folder = config.data_dir.join(tls::FOLDER);
        let tls = config.tls.then(|| Tls::load(&folder, &config.cluster, config.node)).transpose()?;
        let (new_links, to_dial) = mpsc::unbounded_channel();
        let transport = Transport {
            cluster: config.cluster.clone(),
            me: config.node,
            region: config.region.clone(),
            wan: Wan::new(config),
            peers: RwLock::default(),
            new_links,
            to_dial: Mutex::new(Some(to_dial)),
            unauthenticated: Places::new(accept::UNAUTHENTICATED_MAX),
            refusals: Refusals::default(),
            joins: Semaphore::new(accept::JOINS_AT_ONCE),
            tunnels: Arc::new(Semaphore::new(tunnel::TUNNELS_MAX)),
            rehearsals: Default::default(),
            rehearsal_places: Arc::new(Semaphore::new(rehearsal::PLACES)),
            statuses: Default::default(),
            status_places: Arc::new(Semaphore::new(statuses::PLACES)),
            own_status: OnceLock::new(),
            relaying: Mutex::default(),
            relayed: Notify::new(),
            relay_keys: Keys::new(&secret::draw()?),
            postgres_socket: config.postgres.as_ref().map(|p| config.data_dir.join(format!(".s.PGSQL.{}", p.port))),
            facts,
            settings: ClusterSettings {
                window_entries: config.window_entries,
                sequence_stride: config.sequence_stride,
                max_entry_bytes: config.max_entry_bytes,
                key_seed: config.key_seed,
                database: config.postgres.as_ref().map(|p| p.database.clone()),
            },
            tls: tls.map(|tls| RwLock::new(Arc::new(tls))),
            inbox,
            queue_bytes_max: Arc::new(AtomicUsize::new(config.memory.to_each_peer_bytes as usize)),
            started: Instant::now(),
        };
        Ok(Arc::new(transport))
    }

    /// From now on these are the peers, and former members are refused as removed.
    pub fn set_members(&self, members: &Members) {
        let peers = members.members.iter().map(|m| (m.id, m.region.clone(), m.address.clone()));
        let before = {
            let mut peers = self.peers.write().expect("no code that holds this lock panics");
            peers.beginning = match members.beginning {
                0 => 0,
                beginning => beginning ^ self.settings.key_seed.check(),
            };
            std::mem::replace(&mut peers.level, members.level)
        };
        self.set_peers(peers, members.next_id);
        if before < members.level {
            self.links()
                .iter()
                .filter(|link| link.level().is_some_and(|l| l < members.level))
                .for_each(|l| l.hang_up());
        }
        let others = members.members.iter().filter(|m| m.id != self.me);
        let mut relaying = self.relaying();
        relaying.relays.set(&self.region, others.map(|m| (m.id, m.region.clone(), m.voter)));
        relaying.last.retain(|id, _| members.contains(*id));
    }

    fn relaying(&self) -> MutexGuard<'_, Relaying> {
        self.relaying.lock().expect("no code that holds this lock panics")
    }

    /// Adds and removes links, so that there is one to each of `members` except this node.  Ids below `next_id` that
    /// are not in `members` count as removed; a link to an id from `next_id` on stays.
    fn set_peers(&self, members: impl Iterator<Item = (NodeId, RegionId, String)>, next_id: NodeId) {
        let mut peers = self.peers.write().expect("no code that holds this lock panics");
        let mut before = std::mem::take(&mut peers.links);
        for (id, region, address) in members {
            if id == self.me {
                peers.own = Some((region, address));
                continue;
            }
            let same = before.remove(&id).filter(|l| {
                let same = l.region == region && l.address == address;
                if !same {
                    l.remove();
                }
                same
            });
            let link = same.unwrap_or_else(|| self.new_link(id, region, address));
            peers.links.insert(id, link);
        }
        for (id, link) in before {
            if id >= next_id {
                peers.links.insert(id, link);
                continue;
            }
            tracing::info!(peer = %link.id, peer_region = %link.region, "peer removed");
            link.remove();
        }
        peers.next_id = next_id;
    }

    fn new_link(&self, id: NodeId, region: RegionId, address: String) -> Arc<Link> {
        tracing::info!(peer = %id, peer_region = %region, %address, "peer added");
        let shape = self.wan.shape(id, &region);
        let link = Arc::new(Link::new(id, region, address, shape));
        // The receiver lives as long as the node, so an error means that the node is stopping.
        let _ = self.new_links.send(link.clone());
        link
    }

    /// The token with which a node can join, made from this secret.
    pub fn join_token(&self, secret: Secret) -> JoinToken {
        JoinToken { secret, authority: self.tls().map(|tls| tls.authority().fingerprint()) }
    }

    /// What this node uses to be recognized, if it does.
    pub fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.as_ref().map(|tls| tls.read().expect("no code that holds this lock panics").clone())
    }

    /// New connections use the certificates that are in the folder now; those that are open stay as they are.
    pub fn reload_tls(&self, config: &NodeConfig) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let new = Tls::load(&config.data_dir.join(tls::FOLDER), &self.cluster, self.me)?;
        let mut tls = tls.write().expect("no code that holds this lock panics");
        if new.authority().fingerprint() != tls.authority().fingerprint() {
            let why = "tls/ca.crt is another authority's now, and peers that run with the old one would refuse this \
                       node: stop all nodes, and start them once each has a certificate of the new one";
            return Err(crate::Error::Tls(why.into()));
        }
        new.take_lent(&tls);
        *tls = Arc::new(new);
        Ok(())
    }

    /// A queue is made with its connection and keeps its bound.
    pub fn set_queue_bytes_max(&self, bytes: usize) {
        self.queue_bytes_max.store(bytes, Ordering::Relaxed);
    }

    fn queue_bytes_max(&self) -> Arc<AtomicUsize> {
        self.queue_bytes_max.clone()
    }

    /// Starts the delay line's thread, which only a lab can need.
    pub fn start_delays(&self) -> Result<Option<std::thread::JoinHandle<()>>> {
        self.wan.start()
    }

    pub fn stop_delays(&self) {
        self.wan.stop();
    }

    /// Dials and accepts connections until its runtime ends.  Called once.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let to_dial = self.to_dial.lock().expect("no code that holds this lock panics").take();
        let mut to_dial = to_dial.expect("the transport runs once");
        tokio::spawn(self.clone().serve_late_directly());
        let transport = self.clone();
        tokio::spawn(async move {
            while let Some(link) = to_dial.recv().await {
                for channel in Channel::ALL {
                    tokio::spawn(link::keep_dialling(transport.clone(), link.clone(), channel));
                }
            }
        });
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.admit(stream),
                // Probably no file descriptor is free: let other connections end first.
                Err(e) => {
                    tracing::warn!("accepting a peer failed: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn link(&self, peer: NodeId) -> Option<Arc<Link>> {
        self.peers.read().expect("no code that holds this lock panics").links.get(&peer).cloned()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.peers.read().expect("no code that holds this lock panics").links.values().cloned().collect()
    }

    /// Sends a Raft message to the peer it names.  It may be lost; only a full queue is reported (`false`).
    pub fn send_raft(&self, message: Message) -> bool {
        if message.get_msg_type() == MessageType::MsgAppend {
            return self.send_append(message);
        }
        self.send_directly(message)
    }

    fn send_append(&self, message: Message) -> bool {
        let mut relaying = self.relaying();
        if !relaying.relays.shares_region(NodeId(message.to as u32)) {
            drop(relaying);
            return self.send_directly(message);
        }
        let Route { before, relay } = relaying.relays.route(&message, Instant::now(), |id| self.way(id));
        for message in before {
            self.send_directly(message);
        }
        let link = relay.and_then(|relay| self.link(relay));
        let Some((link, queue)) = link.and_then(|link| link.queue(Channel::Bulk).map(|queue| (link, queue))) else {
            return self.send_directly(message);
        };
        let key = self.relay_keys.to(NodeId(message.to as u32));
        let last = relaying.last.get(&link.id).filter(|(on, _)| on.as_ptr() == Arc::as_ptr(&queue));
        let mut head = message;
        let (entries, same) = Entries::take(&mut head, last.map(|(_, entries)| entries));
        let frame = Frame::Relayed(Relayed::new(&key, &head, &entries, same)).encode();
        let sent = self.send_to(&link, Channel::Bulk, frame);
        if sent && !entries.bytes.is_empty() {
            relaying.last.insert(link.id, (Arc::downgrade(&queue), entries));
        }
        self.relayed.notify_one();
        sent
    }

    /// What is known about the way to a member, for the choice of relays.
    fn way(&self, id: NodeId) -> Option<Way> {
        let link = self.link(id)?;
        let queue = link.queue(Channel::Bulk).filter(|queue| link.is_connected() && !queue.is_full())?;
        let (least, median) = link.round_trip()?;
        let there = !link.shape.is_full() && link.silent(self.now_ns()) <= RELAY_SILENCE_MAX + median;
        there.then(|| Way { least, median, waits: queue.waiting_bytes() > 0 })
    }

    /// Sends what was relayed and is not acknowledged in time to its follower.
    async fn serve_late_directly(self: Arc<Self>) {
        loop {
            let next = self.relaying().relays.next_late();
            let Some(next) = next else {
                self.relayed.notified().await;
                continue;
            };
            let soon = Instant::now() + LOOK_FOR_LATE_EVERY;
            tokio::time::sleep_until(next.max(soon).into()).await;
            let mut relaying = self.relaying();
            for message in relaying.relays.late(Instant::now(), |id| self.way(id)) {
                self.send_directly(message);
            }
        }
    }

    fn send_directly(&self, message: Message) -> bool {
        let Some(link) = self.link(NodeId(message.to as u32)) else { return true };
        let channel = match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgSnapshot => Channel::Bulk,
            // Proposals have no order among themselves, so a small one need not wait for a large one.
            MessageType::MsgPropose if !is_small_for(&link, &message) => Channel::Bulk,
            _ => Channel::Control,
        };
        let Some(queue) = link.queue(channel).filter(|_| !link.shape.is_cut()) else {
            return true; // lost; `Unreachable` has been reported, or will be
        };
        // Checked first, because encoding the message takes longer than this check.
        if queue.is_full() || link.shape.is_full() {
            return false;
        }
        self.send_to(&link, channel, frame::encode_raft(message))
    }

    /// Whether something that was sent to this peer on the bulk channel is still queued here.  Either the queue makes
    /// progress or the connection ends, because TCP is told for how long the peer may accept nothing.
    pub fn is_sending(&self, to: NodeId) -> bool {
        let waits = |link: Arc<Link>| {
            let queue = link.queue(Channel::Bulk);
            queue.is_some_and(|queue| queue.waiting_bytes() > 0) || link.shape.has_delayed()
        };
        self.link(to).is_some_and(waits)
    }

    pub fn send_notice(&self, to: &[NodeId], notice: Notice) {
        self.send_control(to, &Frame::Notice(notice));
    }

    pub fn send_question(&self, to: &[NodeId], question: u64) {
        self.send_control(to, &Frame::Question { question });
    }

    pub fn send_last_entry(&self, to: NodeId, question: u64, last: EntryId) {
        self.send_control(&[to], &Frame::LastEntry { question, last });
    }

    pub fn send_lease_question(&self, to: &[NodeId], question: u64) {
        self.send_control(to, &Frame::LeaseQuestion { question });
    }

    pub fn send_promise(&self, to: NodeId, question: u64, last: EntryId) {
        self.send_control(&[to], &Frame::Promise { question, last });
    }

    /// `to`: `None` is to all.  `decided`: when this node decided some entries.
    pub fn send_report(&self, to: Option<&[NodeId]>, report: &Report, decided: Told) {
        let frame = Frame::Report(report.clone(), decided).encode();
        for link in self.links().into_iter().filter(|link| to.is_none_or(|to| to.contains(&link.id))) {
            self.send_to(&link, Channel::Control, frame.clone());
        }
    }

    pub fn send_await(&self, to: &[NodeId], at: LogIndex) {
        self.send_control(to, &Frame::Await { at });
    }

    pub fn send_lock_message(&self, to: NodeId, message: LockMessage) {
        self.send_control(&[to], &Frame::Lock(message));
    }

    fn send_control(&self, to: &[NodeId], frame: &Frame) {
        let frame = frame.encode();
        for link in to.iter().filter_map(|id| self.link(*id)) {
            self.send_to(&link, Channel::Control, frame.clone());
        }
    }

    fn send_to(&self, link: &Arc<Link>, channel: Channel, frame: impl Into<Encoded>) -> bool {
        let frame = frame.into();
        link.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        self.wan.send(link, channel, frame)
    }

    /// What the link to `peer` does to the frames that this node sends.  `None`: there is no such peer.
    #[cfg(feature = "lab")]
    pub fn link_settings(&self, peer: NodeId) -> Option<LinkSettings> {
        Some(self.link(peer)?.shape.settings())
    }

    /// `false`: there is no such peer, or this node is not a lab's.  The caller checks the settings first
    /// (`LinkSettings::validate`).
    #[cfg(feature = "lab")]
    pub fn set_link(&self, peer: NodeId, settings: LinkSettings) -> bool {
        let set = self.link(peer).is_some_and(|link| self.wan.set(&link, settings));
        if set {
            tracing::info!(%peer, ?settings, "link set by hand");
        }
        set
    }

    pub fn peers(&self) -> Vec<PeerState> {
        let state = |l: Arc<Link>| PeerState {
            id: l.id,
            region: l.region.clone(),
            connected: l.is_connected(),
            rtt_ms: l.round_trip().map(|(least, _)| least.as_secs_f64() * 1e3),
            rtt_least: l.round_trip().map(|(least, _)| least),
            rtt_median: l.round_trip().map(|(_, median)| median),
            postgres_version: l.facts.lock().expect("no code that holds this lock panics").as_ref().map(|f| f.version),
            level: l.level(),
            sent_bytes: l.sent_bytes.load(Ordering::Relaxed),
            relayed_bytes: l.relayed_bytes.load(Ordering::Relaxed),
            not_rehearsed: l.not_rehearsed.load(Ordering::Relaxed),
            trouble: l.trouble.lock().expect("no code that holds this lock panics").clone(),
            cut: l.shape.is_cut(),
        };
        self.links().into_iter().map(state).collect()
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
