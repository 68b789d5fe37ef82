//! The link to one peer: two connections that this node dials and writes to, and the readers of the two that the peer
//! dials.

use super::error::{PeerError, Result};
use super::frame::{read_frame, Channel, Encoded, Frame, Hello, HelloReply, Purpose, HELLO_BYTES_MAX};
use super::round_trips::RoundTrips;
use super::speaks::Speaks;
use super::wan::Shape;
use super::Transport;
use crate::facts::Facts;
use crate::inbox::{Event, PeerEvent};
use crate::secret::Secret;
use crate::send_queue::{NotSent, SendQueue};
use crate::tls::{PeerSocket, PeerStream};
use bytes::BytesMut;
use nix::sys::socket::{setsockopt, sockopt};
use onetrip_core::{Level, NodeId, RegionId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
const PING_EVERY: Duration = Duration::from_millis(500);
/// Long enough for one lost packet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for this long counts as gone.  Without this limit TCP would retry for minutes, at
/// intervals that grow with the length of the outage.  So it also limits how long a link waits after a partition heals.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A peer that accepts no data counts as silent too, and one whose disk is busy may accept none for a while.
const BULK_SILENCE_MAX: Duration = Duration::from_secs(5);
const UNAUTHENTICATED_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Over an idle connection the kernel asks this often, and looks this often whether the silence has lasted too long.
/// By default it would look the second time after 75 s.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Link {
    pub id: NodeId,
    pub region: RegionId,
    /// `host:port`
    pub address: String,
    pub shape: Shape,
    queues: [Mutex<Option<Arc<SendQueue<PeerSocket>>>>; 2],
    /// The tasks that read what this peer writes.  When it dials anew, the new connection replaces its earlier one.
    readers: [Mutex<Option<AbortHandle>>; 2],
    round_trips: Mutex<RoundTrips>,
    /// Why the peer cannot be reached, if it cannot.
    pub trouble: Mutex<Option<String>>,
    /// What its last hello said about its PostgreSQL.
    pub facts: Mutex<Option<Facts>>,
    /// What its last hello, or its last answer to one, said about its release.
    speaks: Mutex<Option<Speaks>>,
    /// The key that its last hello gave for what it sends through relays.
    pub relay_key: Mutex<Option<Secret>>,
    /// When something came from it last, by the transport's clock.
    heard_ns: AtomicU64,
    /// Bytes of the frames for it, and of those among them that this node hands on for others.
    pub sent_bytes: AtomicU64,
    pub relayed_bytes: AtomicU64,
    /// How often it has not tried statements of this region that were to be rehearsed.
    pub not_rehearsed: AtomicU64,
    /// `true` once this link is not to be dialled any more: the peer was removed, or says that this node was.
    removed: watch::Sender<bool>,
}

impl Link {
    pub fn new(id: NodeId, region: RegionId, address: String, shape: Shape) -> Link {
        Link {
            id,
            region,
            address,
            shape,
            queues: Default::default(),
            readers: Default::default(),
            round_trips: Mutex::default(),
            trouble: Mutex::new(Some("not connected yet".into())),
            facts: Mutex::default(),
            speaks: Mutex::default(),
            relay_key: Mutex::default(),
            heard_ns: AtomicU64::default(),
            sent_bytes: AtomicU64::default(),
            relayed_bytes: AtomicU64::default(),
            not_rehearsed: AtomicU64::default(),
            removed: watch::Sender::new(false),
        }
    }

    pub fn queue(&self, channel: Channel) -> Option<Arc<SendQueue<PeerSocket>>> {
        self.queues[channel as usize].lock().expect("no code that holds this lock panics").clone()
    }

    pub fn add_round_trip(&self, sample: Duration) {
        self.round_trips.lock().expect("no code that holds this lock panics").add(sample);
    }

    /// The shortest and the median round trip of the last seconds.
    pub fn round_trip(&self) -> Option<(Duration, Duration)> {
        let trips = self.round_trips.lock().expect("no code that holds this lock panics");
        trips.least().zip(trips.median())
    }

    /// Keeps what the peer's hello said.
    pub fn told(self: &Arc<Link>, hello: &Hello) -> Arc<Link> {
        self.facts.lock().expect("no code that holds this lock panics").clone_from(&hello.postgres);
        *self.speaks.lock().expect("no code that holds this lock panics") = Some(hello.speaks);
        *self.relay_key.lock().expect("no code that holds this lock panics") = Some(hello.relay_key);
        self.clone()
    }

    /// Keeps what the peer's answer to a hello said about its release.  Its own hello may come later than this
    /// connection, and until then the one before it, of another release perhaps, would count.
    pub fn answered(&self, speaks: Speaks) {
        *self.speaks.lock().expect("no code that holds this lock panics") = Some(speaks);
    }

    /// The format level that its release knows.
    pub fn level(&self) -> Option<Level> {
        self.speaks.lock().expect("no code that holds this lock panics").map(|speaks| speaks.level)
    }

    /// Ends the connections that it has dialled and those to it.
    pub fn hang_up(&self) {
        for channel in Channel::ALL {
            if let Some(reader) =
                self.readers[channel as usize].lock().expect("no code that holds this lock panics").take()
            {
                reader.abort();
            }
            if let Some(queue) = self.queue(channel) {
                queue.close();
            }
        }
    }

    pub fn heard(&self, now_ns: u64) {
        self.heard_ns.store(now_ns, Ordering::Relaxed);
    }

    pub fn silent(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.heard_ns.load(Ordering::Relaxed)))
    }

    pub fn is_connected(&self) -> bool {
        !self.shape.is_cut() && Channel::ALL.iter().all(|c| self.queue(*c).is_some())
    }

    pub fn write_now(&self, channel: Channel, frame: Encoded) -> std::result::Result<(), NotSent> {
        self.queue(channel).ok_or(NotSent::Closed)?.send(frame.parts())
    }

    /// Ends the link for good.
    pub fn remove(&self) {
        self.removed.send_replace(true);
    }

    pub async fn removed(&self) {
        // The sender lives as long as `self`.
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    pub fn set_reader(&self, channel: Channel, reader: AbortHandle) {
        let mut now = self.readers[channel as usize].lock().expect("no code that holds this lock panics");
        if let Some(earlier) = now.replace(reader) {
            earlier.abort();
        }
    }

    fn set_queue(&self, channel: Channel, queue: Option<Arc<SendQueue<PeerSocket>>>) {
        *self.queues[channel as usize].lock().expect("no code that holds this lock panics") = queue;
    }

    fn set_trouble(&self, trouble: Option<String>) -> bool {
        let mut now = self.trouble.lock().expect("no code that holds this lock panics");
        let changed = *now != trouble;
        *now = trouble;
        changed
    }
}

/// Keeps dialling the peer for one channel until the link is removed or the node stops.
pub(super) async fn keep_dialling(transport: Arc<Transport>, link: Arc<Link>, channel: Channel) {
    tokio::select! {
        () = link.removed() => {}
        () = dial_again_and_again(&transport, &link, channel) => {}
    }
    if let Some(queue) = link.queue(channel) {
        link.set_queue(channel, None);
        queue.close();
    }
}

async fn dial_again_and_again(transport: &Transport, link: &Arc<Link>, channel: Channel) {
    let mut backoff = BACKOFF_MIN;
    loop {
        match dial(transport, link, Purpose::Frames(channel)).await {
            Ok(stream) => {
                backoff = BACKOFF_MIN;
                link.set_trouble(None);
                tracing::info!(peer = %link.id, ?channel, "connected to peer");
                serve(transport, link, channel, stream).await;
                tracing::info!(peer = %link.id, ?channel, "lost the connection to peer");
                link.set_trouble(Some("the connection broke".into()));
                transport.inbox.send(Event::Peer(link.id, PeerEvent::Unreachable)).await;
            }
            Err(why) => {
                if link.set_trouble(Some(why.to_string())) {
                    tracing::warn!(peer = %link.id, address = %link.address, "cannot connect to peer: {why}");
                }
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Dials the peer, and returns the connection once the peer has welcomed this node on it.
pub(super) async fn dial(transport: &Transport, link: &Link, purpose: Purpose) -> Result<PeerStream> {
    if link.shape.is_cut() {
        return Err(PeerError::refused("the link was cut by hand"));
    }
    let attempt = async {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&link.address)).await;
        let stream = connected.unwrap_or_else(|late| Err(late.into()))?;
        let silence = if purpose == Purpose::Frames(Channel::Control) { SILENCE_MAX } else { BULK_SILENCE_MAX };
        set_options(&stream).and_then(|()| set_silence(&stream, silence))?;
        let mut stream = match transport.tls() {
            Some(tls) => tls.connect(stream, link.id).await?,
            None => PeerStream::Plain(stream),
        };
        let hello = transport.hello(link.id, purpose);
        stream.write_all(&Frame::Hello(hello).encode()).await?;
        stream.flush().await?;
        let mut buf = BytesMut::with_capacity(512);
        match read_frame(&mut stream, &mut buf, HELLO_BYTES_MAX).await.map_err(|e| e.when("at hello"))? {
            Frame::HelloReply(HelloReply::Welcome, other) if buf.is_empty() => {
                let release = other.unwrap_or(Speaks::only(12));
                transport.suits_level(release)?;
                link.answered(release);
                Ok(stream)
            }
            Frame::HelloReply(HelloReply::Refused(why), _) => Err(PeerError::Refused(why).when("it refuses this node")),
            Frame::HelloReply(HelloReply::Removed(why), _) => {
                transport.inbox.send(Event::Peer(link.id, PeerEvent::Removed(why.clone()))).await;
                // Asking again would only fill the peer's log while this node stops.
                link.remove();
                Err(PeerError::Removed(why))
            }
            _ => Err(PeerError::violation("its answer is not one to a hello")),
        }
    };
    tokio::time::timeout(HELLO_TIMEOUT, attempt).await.unwrap_or(Err(PeerError::TimedOut("it does not answer")))
}

/// Sets the TCP options that both ends of a connection between nodes need.
pub(super) fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    set_silence(stream, UNAUTHENTICATED_SILENCE_MAX)
}

/// Sets for how long the other end may acknowledge nothing, or accept no data.
pub(super) fn set_silence(stream: &TcpStream, max: Duration) -> std::io::Result<()> {
    setsockopt(stream, sockopt::TcpKeepIdle, &(KEEPALIVE_EVERY.as_secs() as u32))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &(KEEPALIVE_EVERY.as_secs() as u32))?;
    setsockopt(stream, sockopt::TcpUserTimeout, &(max.as_millis() as u32))?;
    Ok(())
}

/// Writes to the peer until the connection ends.
async fn serve(transport: &Transport, link: &Arc<Link>, channel: Channel, stream: PeerStream) {
    let queue = Arc::new(SendQueue::new(stream.into_socket(), transport.queue_bytes_max()));
    link.set_queue(channel, Some(queue.clone()));
    if link.is_connected() {
        transport.inbox.send(Event::Peer(link.id, PeerEvent::Connected)).await;
    }
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
        () = queue.socket().ended() => {}
        () = queue.drain() => {}
        () = pings => {}
    }
    link.set_queue(channel, None);
    queue.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;

    /// With the kernel's defaults a connection on which nothing is under way would end 75 s later than is said here.
    #[tokio::test]
    async fn an_idle_connection_to_a_silent_peer_ends_in_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set_options(&stream).unwrap();
        set_silence(&stream, SILENCE_MAX).unwrap();
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!(u128::from(getsockopt(&stream, sockopt::TcpUserTimeout).unwrap()), SILENCE_MAX.as_millis());
        let (idle, interval) = (sockopt::TcpKeepIdle, sockopt::TcpKeepInterval);
        let (idle, interval) = (getsockopt(&stream, idle).unwrap(), getsockopt(&stream, interval).unwrap());
        // Long enough for one lost packet.
        assert!(Duration::from_secs((idle + 2 * interval).into()) <= SILENCE_MAX, "{idle} s, then {interval} s");
    }
}
