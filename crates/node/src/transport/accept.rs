//! Connections that others open to the peer port.

use super::frame::{Channel, Frame, Hello, HelloReply, FRAME_BYTES_MAX, HELLO_BYTES_MAX, VERSION};
use super::link::{set_options, Link};
use super::Transport;
use crate::error::{Error, Result};
use crate::inbox::{Event, PeerEvent};
use bytes::BytesMut;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

impl Transport {
    pub(super) async fn receive(self: Arc<Self>, mut stream: TcpStream) {
        let from = stream.peer_addr().map_or("?".into(), |a| a.to_string());
        let _ = set_options(&stream);
        let mut buf = BytesMut::with_capacity(64 << 10);
        let hello = tokio::time::timeout(HELLO_TIMEOUT, self.receive_hello(&mut stream, &mut buf)).await;
        let (link, channel) = match hello.unwrap_or(Err("no hello".into())) {
            Ok(known) => known,
            Err(why) => {
                tracing::warn!(region = %self.region, node = %self.me, %from, "refused a connection to the peer port: {why}");
                return;
            }
        };
        let me = self.clone();
        let reader = tokio::spawn({
            let link = link.clone();
            async move {
                let result = tokio::select! {
                    result = me.receive_frames(&link, &mut stream, &mut buf) => result,
                    () = link.removed() => Ok(()),
                };
                if let Err(why) = result {
                    tracing::warn!(region = %me.region, node = %me.me, peer = %link.id, %from, "disconnected a peer: {why}");
                }
            }
        });
        link.set_reader(channel, reader.abort_handle());
    }

    async fn receive_hello(
        &self,
        stream: &mut TcpStream,
        buf: &mut BytesMut,
    ) -> std::result::Result<(Arc<Link>, Channel), String> {
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
        let (reply, result) = match self.judge(&hello) {
            Ok(link) if link.shape.is_cut() => return Err("the link to it was cut by hand".into()),
            Ok(link) => (HelloReply::Welcome, Ok((link, hello.channel))),
            Err(reply) => {
                let (HelloReply::Refused(why) | HelloReply::Removed(why)) = &reply else { unreachable!("a refusal") };
                let why = why.clone();
                (reply, Err(why))
            }
        };
        stream.write_all(&Frame::HelloReply(reply).encode()).await.map_err(|e| e.to_string())?;
        result
    }

    fn judge(&self, hello: &Hello) -> std::result::Result<Arc<Link>, HelloReply> {
        let refused = |why| Err(HelloReply::Refused(why));
        if hello.version != VERSION {
            return refused(format!("it speaks version {}, this node {VERSION}", hello.version));
        }
        if hello.cluster != self.cluster {
            return refused(format!(
                "it belongs to the cluster \"{}\", this node to \"{}\"",
                hello.cluster, self.cluster
            ));
        }
        if hello.to != self.me {
            return refused(format!("it looks for node {}, this is node {}", hello.to, self.me));
        }
        let peers = self.peers.read().expect("no code that holds this lock panics");
        match peers.links.get(&hello.from) {
            Some(link) => Ok(link.clone()),
            None if hello.from < peers.next_id => {
                Err(HelloReply::Removed(format!("node {} was removed from the cluster", hello.from)))
            }
            None => refused(format!("node {} is no member here", hello.from)),
        }
    }

    /// Returns at the end of the connection; an error is what the peer did wrong.
    async fn receive_frames(&self, link: &Arc<Link>, stream: &mut TcpStream, buf: &mut BytesMut) -> Result<()> {
        loop {
            while let Some(frame) = Frame::take(buf, FRAME_BYTES_MAX)? {
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
