//! Frames to and from the other nodes.
//!
//! Each node dials each other one twice, for control and for bulk, so that a heartbeat never queues behind an append of
//! 100 MB; it writes on what it dialled and reads on what it accepted.  It knows which Raft messages are urgent, and
//! nothing else of Raft.
//!
//! Invariants:
//! - A message reaches the core only from a peer whose hello named this cluster and a member of it, and only under
//!   that member's own id.
//! - What one channel of one link carries keeps its order.  Anything may be lost, nothing comes twice.
//! - Whatever a stranger or a broken peer sends ends that connection and is logged; nothing else is harmed.

mod delay;
mod frame;
mod link;

use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::inbox::{Event, Inbox, PeerEvent};
use bytes::{Bytes, BytesMut};
use delay::DelayLine;
use frame::{Channel, Frame, FRAME_BYTES_MAX, HELLO_BYTES_MAX, VERSION};
use link::Link;
use onetrip_core::consensus::Message;
use onetrip_core::{LogIndex, NodeId, RegionId};
use raft::eraftpb::MessageType;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Transport {
    cluster: String,
    me: NodeId,
    region: RegionId,
    links: BTreeMap<NodeId, Arc<Link>>,
    delays: Arc<DelayLine>,
    inbox: Inbox,
    started: Instant,
}

/// What is known of the way to one peer.
#[derive(Clone, Debug, Serialize)]
pub struct PeerState {
    pub id: NodeId,
    pub region: RegionId,
    pub connected: bool,
    pub rtt_ms: Option<f64>,
    #[serde(skip)]
    pub trouble: Option<String>,
    #[serde(skip)]
    pub cut: bool,
}

impl Transport {
    pub fn new(config: &NodeConfig, inbox: Inbox) -> Arc<Transport> {
        let links: BTreeMap<_, _> = config.peers().map(|m| (m.id, Arc::new(Link::new(m)))).collect();
        Arc::new(Transport {
            cluster: config.cluster.clone(),
            me: config.node,
            region: config.region.clone(),
            links,
            delays: Arc::default(),
            inbox,
            started: Instant::now(),
        })
    }

    /// Starts the delay line's thread, if any link has a delay.
    pub fn start_delays(&self) -> Result<Option<std::thread::JoinHandle<()>>> {
        if self.links.values().all(|l| l.delay.is_zero()) {
            return Ok(None);
        }
        let delays = self.delays.clone();
        let thread = std::thread::Builder::new().name("onetrip-wan".into()).spawn(move || delays.run());
        Ok(Some(thread.map_err(|e| Error::Internal(format!("starting a thread: {e}")))?))
    }

    pub fn stop_delays(&self) {
        self.delays.stop();
    }

    /// Dials and accepts for the life of the runtime that it runs on.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        for link in self.links.values() {
            for channel in Channel::ALL {
                tokio::spawn(link::keep_dialling(self.clone(), link.clone(), channel));
            }
        }
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let transport = self.clone();
                    tokio::spawn(async move { transport.receive(stream).await });
                }
                // Out of descriptors, most likely: let others end first.
                Err(e) => {
                    tracing::warn!(region = %self.region, node = %self.me, "accepting a peer failed: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Sends a Raft message to the peer it names.  It may be lost; only a full queue is reported (`false`).
    pub fn send_raft(&self, message: Message) -> bool {
        let Some(link) = self.links.get(&NodeId(message.to as u32)) else { return true };
        let channel = match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgPropose | MessageType::MsgSnapshot => Channel::Bulk,
            _ => Channel::Control,
        };
        if link.cut.load(Ordering::Relaxed) || link.outbox(channel).is_none() {
            return true; // lost, and `Unreachable` has been or will be said
        }
        self.send_to(link, channel, Frame::Raft(Box::new(message)).encode())
    }

    pub fn send_position(&self, durable: LogIndex) {
        let frame = Frame::Position { durable }.encode();
        for link in self.links.values() {
            self.send_to(link, Channel::Control, frame.clone());
        }
    }

    fn send_to(&self, link: &Arc<Link>, channel: Channel, frame: Bytes) -> bool {
        if link.delay.is_zero() {
            return link.write_now(channel, frame) != Err(crate::outbox::NotSent::Full);
        }
        if !link.has_room() {
            return false;
        }
        link.held_bytes.fetch_add(frame.len(), Ordering::Relaxed);
        self.delays.push(link.clone(), channel, frame, link.delay);
        true
    }

    /// Cuts or heals the link to `peer`, both ways as far as this node sees.  `false`: no such peer.
    pub fn cut(&self, peer: NodeId, cut: bool) -> bool {
        let Some(link) = self.links.get(&peer) else { return false };
        link.cut.store(cut, Ordering::Relaxed);
        tracing::info!(region = %self.region, node = %self.me, %peer, cut, "link set by hand");
        true
    }

    pub fn peers(&self) -> Vec<PeerState> {
        let state = |l: &Arc<Link>| PeerState {
            id: l.id,
            region: l.region.clone(),
            connected: l.is_connected(),
            rtt_ms: Some(l.rtt_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0).map(|ns| ns as f64 / 1e6),
            trouble: l.trouble.lock().expect("no code that holds this lock panics").clone(),
            cut: l.cut.load(Ordering::Relaxed),
        };
        self.links.values().map(state).collect()
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    async fn receive(&self, mut stream: TcpStream) {
        let from = stream.peer_addr().map_or("?".into(), |a| a.to_string());
        let _ = stream.set_nodelay(true);
        let mut buf = BytesMut::with_capacity(64 << 10);
        let hello = tokio::time::timeout(Duration::from_secs(5), self.receive_hello(&mut stream, &mut buf)).await;
        let link = match hello {
            Ok(Ok(link)) => link,
            Ok(Err(why)) => {
                tracing::warn!(region = %self.region, node = %self.me, %from, "refused a connection to the peer port: {why}");
                return;
            }
            Err(_) => {
                tracing::warn!(region = %self.region, node = %self.me, %from, "refused a connection to the peer port: no hello");
                return;
            }
        };
        if let Err(why) = self.receive_frames(&link, &mut stream, &mut buf).await {
            tracing::warn!(region = %self.region, node = %self.me, peer = %link.id, %from, "disconnected a peer: {why}");
        }
    }

    async fn receive_hello(
        &self,
        stream: &mut TcpStream,
        buf: &mut BytesMut,
    ) -> std::result::Result<Arc<Link>, String> {
        let hello = loop {
            match Frame::take(buf, HELLO_BYTES_MAX).map_err(|e| e.to_string())? {
                Some(Frame::Hello(hello)) => break hello,
                Some(_) => return Err("it does not begin with a hello".into()),
                None => {}
            }
            if stream.read_buf(buf).await.map_err(|e| e.to_string())? == 0 {
                return Err("it closed the connection before its hello".into());
            }
        };
        let refusal = if hello.version != VERSION {
            Some(format!("it speaks version {}, this node {VERSION}", hello.version))
        } else if hello.cluster != self.cluster {
            Some(format!("it belongs to the cluster \"{}\", this node to \"{}\"", hello.cluster, self.cluster))
        } else if hello.to != self.me {
            Some(format!("it looks for node {}, this is node {}", hello.to, self.me))
        } else if !self.links.contains_key(&hello.from) {
            Some(format!("node {} is no member here", hello.from))
        } else {
            None
        };
        stream.write_all(&Frame::HelloReply(refusal.clone()).encode()).await.map_err(|e| e.to_string())?;
        match refusal {
            Some(why) => Err(why),
            None => Ok(self.links[&hello.from].clone()),
        }
    }

    /// Returns at the end of the connection; an error is what the peer did wrong.
    async fn receive_frames(&self, link: &Arc<Link>, stream: &mut TcpStream, buf: &mut BytesMut) -> Result<()> {
        loop {
            while let Some(frame) = Frame::take(buf, FRAME_BYTES_MAX)? {
                if link.cut.load(Ordering::Relaxed) {
                    continue;
                }
                match frame {
                    Frame::Raft(message) => {
                        if message.from != u64::from(link.id.0) || message.to != u64::from(self.me.0) {
                            let why = format!("a message from {} to {}", message.from, message.to);
                            return Err(Error::Internal(why));
                        }
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Raft(message))).await;
                    }
                    Frame::Position { durable } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Durable(durable))).await;
                    }
                    Frame::Ping { sent_ns } => {
                        self.send_to(link, Channel::Control, Frame::Pong { sent_ns }.encode());
                    }
                    Frame::Pong { sent_ns } => {
                        let rtt = self.now_ns().saturating_sub(sent_ns).max(1);
                        link.rtt_ns.store(rtt, Ordering::Relaxed);
                    }
                    Frame::Hello(_) | Frame::HelloReply(_) => {
                        return Err(Error::Internal("a second hello".into()));
                    }
                }
            }
            match stream.read_buf(buf).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}
