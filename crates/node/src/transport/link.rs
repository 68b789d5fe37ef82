//! The way to one peer: two connections that this node dials and writes to.

use super::frame::{Channel, Frame, Hello, HELLO_BYTES_MAX, VERSION};
use super::Transport;
use crate::config::Member;
use crate::inbox::{Event, PeerEvent};
use crate::outbox::{NotSent, Outbox};
use bytes::{Bytes, BytesMut};
use onetrip_core::{NodeId, RegionId};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What may wait for a slow peer; beyond it frames are dropped, which Raft repairs.
const QUEUE_BYTES_MAX: usize = 128 << 20;
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
const PING_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Link {
    pub id: NodeId,
    pub region: RegionId,
    pub delay: Duration,
    address: SocketAddr,
    outboxes: [Mutex<Option<Arc<Outbox<TcpStream>>>>; 2],
    /// Frames in the delay line, in bytes.
    pub held_bytes: AtomicUsize,
    pub cut: AtomicBool,
    /// Last measured round trip in nanoseconds; 0: none yet.
    pub rtt_ns: AtomicU64,
    /// Why the peer cannot be reached, if it cannot.
    pub trouble: Mutex<Option<String>>,
}

impl Link {
    pub fn new(member: &Member) -> Link {
        Link {
            id: member.id,
            region: member.region.clone(),
            delay: Duration::from_secs_f64(member.one_way_ms / 1000.0),
            address: member.address,
            outboxes: Default::default(),
            held_bytes: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
            rtt_ns: AtomicU64::new(0),
            trouble: Mutex::new(Some("not connected yet".into())),
        }
    }

    pub fn outbox(&self, channel: Channel) -> Option<Arc<Outbox<TcpStream>>> {
        self.outboxes[channel as usize].lock().expect("no code that holds this lock panics").clone()
    }

    pub fn is_connected(&self) -> bool {
        !self.cut.load(Ordering::Relaxed) && Channel::ALL.iter().all(|c| self.outbox(*c).is_some())
    }

    /// `false`: there is too much on the way already, the frame is to be dropped.
    pub fn has_room(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) <= QUEUE_BYTES_MAX
    }

    /// Called from the delay line when a frame's time has come.
    pub fn write(&self, channel: Channel, frame: Bytes) {
        self.held_bytes.fetch_sub(frame.len(), Ordering::Relaxed);
        let _ = self.write_now(channel, frame);
    }

    pub fn write_now(&self, channel: Channel, frame: Bytes) -> Result<(), NotSent> {
        if self.cut.load(Ordering::Relaxed) {
            return Err(NotSent::Closed);
        }
        self.outbox(channel).ok_or(NotSent::Closed)?.send([frame])
    }

    fn set_outbox(&self, channel: Channel, outbox: Option<Arc<Outbox<TcpStream>>>) {
        *self.outboxes[channel as usize].lock().expect("no code that holds this lock panics") = outbox;
    }

    fn set_trouble(&self, trouble: Option<String>) -> bool {
        let mut now = self.trouble.lock().expect("no code that holds this lock panics");
        let changed = *now != trouble;
        *now = trouble;
        changed
    }
}

/// Dials the peer for one channel, again and again, for the life of the node.
pub(super) async fn keep_dialling(transport: Arc<Transport>, link: Arc<Link>, channel: Channel) {
    let mut backoff = BACKOFF_MIN;
    loop {
        match dial(&transport, &link, channel).await {
            Ok(stream) => {
                backoff = BACKOFF_MIN;
                link.set_trouble(None);
                tracing::info!(region = %transport.region, node = %transport.me, peer = %link.id, ?channel, "connected to peer");
                serve(&transport, &link, channel, stream).await;
                tracing::info!(region = %transport.region, node = %transport.me, peer = %link.id, ?channel, "lost the connection to peer");
                link.set_trouble(Some("the connection broke".into()));
                transport.inbox.send(Event::Peer(link.id, PeerEvent::Unreachable)).await;
            }
            Err(why) => {
                if link.set_trouble(Some(why.clone())) {
                    tracing::warn!(region = %transport.region, node = %transport.me, peer = %link.id, address = %link.address, "cannot connect to peer: {why}");
                }
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn dial(transport: &Transport, link: &Link, channel: Channel) -> Result<TcpStream, String> {
    let attempt = async {
        let mut stream = TcpStream::connect(link.address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let hello =
            Hello { version: VERSION, cluster: transport.cluster.clone(), from: transport.me, to: link.id, channel };
        stream.write_all(&Frame::Hello(hello).encode()).await.map_err(|e| e.to_string())?;
        let mut buf = BytesMut::with_capacity(512);
        loop {
            match Frame::take(&mut buf, HELLO_BYTES_MAX).map_err(|e| e.to_string())? {
                Some(Frame::HelloReply(None)) => return Ok(stream),
                Some(Frame::HelloReply(Some(why))) => return Err(format!("it refuses this node: {why}")),
                Some(_) => return Err("it answers with something else than a hello".into()),
                None => {}
            }
            if stream.read_buf(&mut buf).await.map_err(|e| e.to_string())? == 0 {
                return Err("it closed the connection at hello".into());
            }
        }
    };
    tokio::time::timeout(HELLO_TIMEOUT, attempt).await.unwrap_or(Err("it does not answer".into()))
}

/// Writes to the peer until the connection ends.
async fn serve(transport: &Transport, link: &Arc<Link>, channel: Channel, stream: TcpStream) {
    let outbox = Arc::new(Outbox::new(stream, QUEUE_BYTES_MAX));
    link.set_outbox(channel, Some(outbox.clone()));
    // The peer never writes on a connection that we dialled, so anything to read is its end.
    let until_end = async {
        let mut byte = [0; 1];
        loop {
            if outbox.socket().readable().await.is_err() {
                return;
            }
            match outbox.socket().try_read(&mut byte) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    };
    let pings = async {
        if channel == Channel::Bulk {
            return std::future::pending().await;
        }
        let mut every = tokio::time::interval(PING_EVERY);
        loop {
            every.tick().await;
            let ping = Frame::Ping { sent_ns: transport.now_ns() };
            transport.send_to(link, channel, ping.encode());
        }
    };
    tokio::select! {
        _ = until_end => {}
        _ = outbox.drain() => {}
        () = pings => {}
    }
    link.set_outbox(channel, None);
    outbox.close();
}
