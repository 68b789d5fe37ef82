//! Connections that others open to the peer port.
//!
//! Invariants: whoever has not said who he is, and proved it if there are certificates, gets [`HELLO_TIMEOUT`], a hello of
//! a few kilobytes, and one of [`STRANGERS_MAX`] places; when those are taken, the oldest has to go, so that strangers who
//! say nothing cannot keep a member out.

use super::frame::{read_frame, Channel, Frame, Hello, HelloReply, Purpose, FRAME_BYTES_MAX, HELLO_BYTES_MAX, VERSION};
use super::link::{set_options, Link};
use super::Transport;
use crate::error::{Error, Result};
use crate::inbox::{Event, PeerEvent};
use crate::tls::PeerStream;
use bytes::BytesMut;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const STRANGERS_MAX: usize = 64;

/// Connections that are not known to be a member's.
#[derive(Default)]
pub(super) struct Strangers(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    last: u64,
    tasks: VecDeque<(u64, AbortHandle)>,
}

impl Strangers {
    pub fn admit(&self, start: impl FnOnce(u64) -> AbortHandle) {
        let mut waiting = self.0.lock().expect("no code that holds this lock panics");
        waiting.last += 1;
        let number = waiting.last;
        waiting.tasks.push_back((number, start(number)));
        if waiting.tasks.len() > STRANGERS_MAX {
            if let Some((_, oldest)) = waiting.tasks.pop_front() {
                tracing::warn!(
                    "more than {STRANGERS_MAX} connections to the peer port say nothing: the oldest is closed"
                );
                oldest.abort();
            }
        }
    }

    fn no_longer(&self, number: u64) {
        let mut waiting = self.0.lock().expect("no code that holds this lock panics");
        waiting.tasks.retain(|(n, _)| *n != number);
    }
}

impl Transport {
    /// `number`: as one of the strangers.
    pub(super) async fn receive(self: Arc<Self>, stream: TcpStream, number: u64) {
        let from = stream.peer_addr().map_or("?".into(), |a| a.to_string());
        let greeted = tokio::time::timeout(HELLO_TIMEOUT, self.greet(stream)).await;
        self.strangers.no_longer(number);
        match greeted.unwrap_or(Err("no hello came".into())) {
            Ok((stream, link, Purpose::Frames(channel))) => self.start_reading(link, channel, stream, from),
            Ok((_, _, Purpose::Postgres)) => {}
            Err(why) => {
                tracing::warn!(region = %self.region, node = %self.me, %from, "refused a connection to the peer port: {why}");
            }
        }
    }

    fn start_reading(self: Arc<Self>, link: Arc<Link>, channel: Channel, mut stream: PeerStream, from: String) {
        let reader = tokio::spawn({
            let link = link.clone();
            async move {
                let result = tokio::select! {
                    result = self.receive_frames(&link, &mut stream) => result,
                    () = link.removed() => Ok(()),
                };
                if let Err(why) = result {
                    tracing::warn!(region = %self.region, node = %self.me, peer = %link.id, %from, "disconnected a peer: {why}");
                }
            }
        });
        link.set_reader(channel, reader.abort_handle());
    }

    /// Finds out who it is and answers; an error says why it is not let in.
    async fn greet(&self, stream: TcpStream) -> std::result::Result<(PeerStream, Arc<Link>, Purpose), String> {
        let _ = set_options(&stream);
        let mut stream = match &self.tls {
            Some(tls) => tls.accept(stream).await?,
            None => PeerStream::Plain(stream),
        };
        let mut buf = BytesMut::with_capacity(1 << 10);
        let Frame::Hello(hello) = read_frame(&mut stream, &mut buf, HELLO_BYTES_MAX).await? else {
            return Err("it does not begin with a hello".into());
        };
        if !buf.is_empty() {
            return Err("it does not wait for the answer to its hello".into());
        }
        if let Some(tls) = &self.tls {
            tls.check_peer(&stream, hello.from)?;
        }
        let (reply, result) = match self.judge(&hello) {
            Ok(link) if link.shape.is_cut() => return Err("the link to it was cut by hand".into()),
            Ok(link) => (HelloReply::Welcome, Ok(link)),
            Err((reply, why)) => (reply, Err(why)),
        };
        let answer = async {
            stream.write_all(&Frame::HelloReply(reply).encode()).await?;
            stream.flush().await
        };
        answer.await.map_err(|e| e.to_string())?;
        Ok((stream, result?, hello.purpose))
    }

    fn judge(&self, hello: &Hello) -> std::result::Result<Arc<Link>, (HelloReply, String)> {
        let why = if hello.version != VERSION {
            format!("it speaks version {}, this node {VERSION}", hello.version)
        } else if hello.cluster != self.cluster {
            format!("it belongs to the cluster \"{}\", this node to \"{}\"", hello.cluster, self.cluster)
        } else if hello.to != self.me {
            format!("it looks for node {}, this is node {}", hello.to, self.me)
        } else {
            let peers = self.peers.read().expect("no code that holds this lock panics");
            match peers.links.get(&hello.from) {
                Some(link) => return Ok(link.clone()),
                None if hello.from < peers.next_id => {
                    let why = format!("node {} was removed from the cluster", hello.from);
                    return Err((HelloReply::Removed(why.clone()), why));
                }
                None => format!("node {} is no member here", hello.from),
            }
        };
        Err((HelloReply::Refused(why.clone()), why))
    }

    /// Returns at the end of the connection; an error is what the peer did wrong.
    async fn receive_frames(&self, link: &Arc<Link>, stream: &mut PeerStream) -> Result<()> {
        let mut buf = BytesMut::with_capacity(64 << 10);
        loop {
            while let Some(frame) = Frame::take(&mut buf, FRAME_BYTES_MAX)? {
                match frame {
                    Frame::Raft(message) => {
                        if message.from != u64::from(link.id.0) || message.to != u64::from(self.me.0) {
                            let why = format!("a message from {} to {}", message.from, message.to);
                            return Err(Error::Internal(why));
                        }
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Raft(message))).await;
                    }
                    Frame::Position { applied, durable } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Position { applied, durable })).await;
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
            match stream.read_buf(&mut buf).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}
