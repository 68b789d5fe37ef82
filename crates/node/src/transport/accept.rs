//! Connections that others open to the peer port.
//!
//! Invariant: until the peer has said which member it is, and has proved that if there are certificates, its connection
//! gets [`HELLO_TIMEOUT`], a hello of a few kilobytes, and one of [`UNAUTHENTICATED_MAX`] places.  When all places are
//! taken, one is made free at the cost of the address that has most of them ([`Places`]), so whoever floods the port
//! from one address, however fast, does not keep a member out.

use super::error::{PeerError, Result};
use super::frame::{
    read_frame, Channel, Frame, Hello, HelloReply, Join, Purpose, BUFFER_BYTES, FRAME_BYTES_MAX, HELLO_BYTES_MAX,
};
use super::link::{set_options, Link};
use super::relayed::Relayed;
use super::speaks::Speaks;
use super::tunnel::Tunnel;
use super::Transport;
use crate::config::ip_of;
use crate::facts::Facts;
use crate::inbox::{AdminReply, AdminRequest, Event, PeerEvent};
use crate::join::{JoinReply, JoinRequest, JoinTls};
#[cfg(doc)]
use crate::places::Places;
use crate::secret::{self, Secret};
use crate::tls::PeerStream;
use bytes::{Bytes, BytesMut};
use onetrip_core::members::MEMBERS_MAX;
use onetrip_core::{Members, NodeId, RegionId};
use raft::eraftpb::MessageType;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const UNAUTHENTICATED_MAX: usize = 64;
const REFUSALS_PER_SECOND: usize = 20;
pub(super) const JOINS_AT_ONCE: usize = 8;
const WRONG_TOKEN_COSTS: Duration = Duration::from_secs(1);
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(300);

/// Bounds the log lines that unauthenticated connections can cause.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Said>);

#[derive(Default)]
struct Said {
    second: Option<Instant>,
    said: usize,
    unsaid: usize,
}

impl Refusals {
    /// `None`: this second's limit of log lines is reached.  `Some`: this refusal is to be logged; so many before it
    /// were not.
    fn say(&self) -> Option<usize> {
        let mut now = self.0.lock().expect("no code that holds this lock panics");
        if now.second.is_none_or(|second| second.elapsed() >= Duration::from_secs(1)) {
            now.second = Some(Instant::now());
            now.said = 0;
        }
        if now.said >= REFUSALS_PER_SECOND {
            now.unsaid += 1;
            return None;
        }
        now.said += 1;
        Some(std::mem::take(&mut now.unsaid))
    }
}

async fn send(stream: &mut PeerStream, frame: &Frame) -> Result<()> {
    stream.write_all(&frame.encode()).await?;
    Ok(stream.flush().await?)
}

/// The new node's side of a join: returns the head of the reply, and the checkpoint.
pub(crate) async fn join_exchange(
    mut stream: PeerStream,
    secret: Secret,
    request: JoinRequest,
    speaks: Speaks,
) -> Result<(Bytes, Bytes)> {
    let _ = set_options(stream.tcp());
    send(&mut stream, &Frame::Join(Join { speaks, secret, request })).await?;
    let mut buf = BytesMut::with_capacity(64 << 10);
    match read_frame(&mut stream, &mut buf, FRAME_BYTES_MAX).await? {
        Frame::Joined { head, checkpoint } => Ok((head, checkpoint)),
        Frame::JoinRefused(why) => Err(PeerError::Refused(why)),
        _ => Err(PeerError::violation("its answer is not one to a request to join")),
    }
}

fn no_key() -> PeerError {
    PeerError::refused(
        "this node does not have the authority's key: ask for a token with `onetrip token --authority DIR` here, or \
         join through a node that has the key",
    )
}

/// What an accepted connection is for.
enum Greeted {
    Frames(Channel),
    Postgres(Tunnel),
}

impl Transport {
    /// `number` identifies the connection among the unauthenticated ones.
    async fn receive(self: Arc<Self>, stream: TcpStream, number: u64) {
        let from = stream.peer_addr().map_or("?".into(), |a| a.to_string());
        let refuse = |why: PeerError| self.refused(&from, &why);
        let opened = tokio::time::timeout(HELLO_TIMEOUT, self.open(stream)).await;
        let (mut stream, hello) = match opened.unwrap_or(Err(PeerError::TimedOut("no hello came"))) {
            Ok((stream, Frame::Hello(hello))) => (stream, hello),
            // It counts as unauthenticated until its token is looked at.
            Ok((stream, Frame::Join(join))) => {
                if let Err(why) = self.let_join(stream, join, number, &from).await {
                    refuse(why);
                }
                return self.unauthenticated.leave(number);
            }
            Ok(_) => {
                refuse(PeerError::violation("it does not begin with a hello"));
                return self.unauthenticated.leave(number);
            }
            Err(why) => {
                refuse(why);
                return self.unauthenticated.leave(number);
            }
        };
        let greeted = tokio::time::timeout(HELLO_TIMEOUT, self.greet(&mut stream, &hello)).await;
        self.unauthenticated.leave(number);
        match greeted.unwrap_or(Err(PeerError::TimedOut("it does not read the answer to its hello"))) {
            Ok((link, Greeted::Frames(channel))) => self.start_reading(link, channel, stream, from),
            Ok((link, Greeted::Postgres(tunnel))) => self.forward(&link, stream, tunnel).await,
            Err(why) => refuse(why),
        }
    }

    fn refused(&self, from: &str, why: &PeerError) {
        let Some(unsaid) = self.refusals.say() else { return };
        if unsaid > 0 {
            tracing::warn!(unsaid, "refused more connections than are logged here");
        }
        // Some of it may be a stranger's own words, which must not look like lines of the log.
        let escape = |c: char| match c.is_control() {
            true => c.escape_default().collect(),
            false => String::from(c),
        };
        let why: String = why.to_string().chars().map(escape).collect();
        tracing::warn!(%from, "refused a connection to the peer port: {why}");
    }

    /// Starts a task for a connection that was opened to this node.
    pub(super) fn admit(self: &Arc<Self>, stream: TcpStream) {
        let from = stream.peer_addr().ok().map(|address| address.ip());
        let start = |number| tokio::spawn(self.clone().receive(stream, number)).abort_handle();
        if let Some(closed) = self.unauthenticated.admit(from, start) {
            let closed = closed.map_or("?".into(), |ip| ip.to_string());
            self.refused(&closed, &PeerError::refused("it is the oldest of too many without a hello"));
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
                    tracing::warn!(peer = %link.id, %from, "disconnected a peer: {why}");
                }
            }
        });
        link.set_reader(channel, reader.abort_handle());
    }

    /// Does the TLS handshake, if there are certificates, and reads the first frame.
    async fn open(&self, stream: TcpStream) -> Result<(PeerStream, Frame)> {
        let _ = set_options(&stream);
        let mut stream = match self.tls() {
            Some(tls) => tls.accept(stream).await?,
            None => PeerStream::Plain(stream),
        };
        let mut buf = BytesMut::with_capacity(1 << 10);
        let first = read_frame(&mut stream, &mut buf, HELLO_BYTES_MAX).await?;
        if !buf.is_empty() {
            return Err(PeerError::violation("it does not wait for the answer to its hello"));
        }
        Ok((stream, first))
    }

    /// Checks that the peer is the member that its hello names, and answers.  An error says why it is not let in.
    async fn greet(&self, stream: &mut PeerStream, hello: &Hello) -> Result<(Arc<Link>, Greeted)> {
        if let Some(tls) = self.tls() {
            tls.check_peer(stream, hello.from)?;
        }
        let greeted = match self.judge(hello) {
            Ok(link) if link.shape.is_cut() => return Err(PeerError::refused("the link to it was cut by hand")),
            Ok(link) => match hello.purpose {
                Purpose::Frames(channel) => Ok((link, Greeted::Frames(channel))),
                Purpose::Postgres => self.open_tunnel().await.map(|tunnel| (link, Greeted::Postgres(tunnel))),
            },
            Err(why) => Err(why),
        };
        let reply = match &greeted {
            Ok(_) => HelloReply::Welcome,
            Err(PeerError::Removed(why)) => HelloReply::Removed(why.clone()),
            Err(why) => HelloReply::Refused(why.to_string()),
        };
        let speaks = (hello.speaks.most > 12).then_some(Speaks::OWN);
        send(stream, &Frame::HelloReply(reply, speaks)).await?;
        greeted
    }

    /// Makes a node that shows a valid token a member.
    async fn let_join(&self, mut stream: PeerStream, join: Join, number: u64, from: &str) -> Result<()> {
        // The place is held while a refusal is delayed.  This limits how fast all peers together can try tokens.
        let place = self.joins.acquire().await.map_err(PeerError::refused)?;
        // From here on it must not be closed to make room: the member may be in the table by then.
        self.unauthenticated.leave(number);
        let region = join.request.region.clone();
        let reply = match self.join(join).await {
            Ok(reply) => reply,
            Err(why) => {
                tokio::time::sleep(WRONG_TOKEN_COSTS).await;
                let refused = Frame::JoinRefused(why.to_string());
                let _ = tokio::time::timeout(HELLO_TIMEOUT, send(&mut stream, &refused)).await;
                return Err(why.when(format_args!("it asks to join in {region}")));
            }
        };
        drop(place);
        tracing::info!(%from, new = %reply.member.id, new_region = %region, "let a node join");
        let frame = Frame::Joined { head: reply.encode(), checkpoint: reply.checkpoint };
        let sent = tokio::time::timeout(CHECKPOINT_TIMEOUT, send(&mut stream, &frame)).await;
        sent.unwrap_or(Err(PeerError::TimedOut("it does not read the answer to its request to join")))
    }

    async fn join(&self, join: Join) -> Result<JoinReply> {
        Speaks::OWN.agree(join.speaks).map_err(PeerError::Refused)?;
        self.suits_level(join.speaks)?;
        join.request.check().map_err(PeerError::refused)?;
        // Before anything is changed.
        let authority = match self.tls() {
            Some(tls) => Some((tls.issuer().ok_or_else(no_key)?, tls)),
            None => None,
        };
        let JoinRequest { region, address, postgres } = join.request;
        let unlike = postgres.and_then(|facts| self.unlike_any(&region, &facts));
        let (answer, answered) = oneshot::channel();
        let request = AdminRequest::Join { secret_hash: secret::hash(&join.secret), region, address, unlike };
        self.inbox.send(Event::Admin(request, answer)).await;
        // The core thread limits the wait; if that thread is gone, the node is stopping.
        let joined = answered.await.unwrap_or(Err("the node is stopping".into())).map_err(PeerError::Refused)?;
        let AdminReply::Joined { member, members, checkpoint } = joined else {
            return Err(PeerError::refused("this node's answer is not one to a request to join"));
        };
        let checkpoint = tokio::task::spawn_blocking(checkpoint).await.map_err(PeerError::refused)?;
        // All that is known here of those in `NodeConfig::addresses`.
        let addresses: Vec<IpAddr> = ip_of(&member.address).into_iter().chain([Ipv4Addr::LOCALHOST.into()]).collect();
        let tls = match authority {
            Some((issuer, tls)) => Some(JoinTls {
                ca_certificate: issuer.certificate_pem().to_owned(),
                // One that is lent is not handed on.
                ca_key: tls.authority().key_pem(),
                node: issuer.issue_at(member.id, &addresses).map_err(PeerError::refused)?,
            }),
            None => None,
        };
        let (cluster, settings) = (self.cluster.clone(), self.settings.clone());
        Ok(JoinReply { member, cluster, members: Members::clone(&members), settings, tls, checkpoint })
    }

    pub(super) fn hello(&self, to: NodeId, purpose: Purpose) -> Hello {
        let peers = self.peers.read().expect("no code that holds this lock panics");
        let (own, beginning) = (peers.own.clone(), peers.beginning);
        drop(peers);
        let (region, address) = own.unwrap_or_else(|| (self.region.clone(), String::new()));
        let (cluster, postgres) = (self.cluster.clone(), self.facts.clone());
        let (speaks, from, relay_key) = (Speaks::OWN, self.me, self.relay_keys.to(to));
        Hello { speaks, cluster, beginning, from, region, address, to, purpose, relay_key, postgres }
    }

    /// Why a PostgreSQL with these facts cannot be a member's.  A witness can tell as well: it compares them with what
    /// its peers have said about theirs.
    fn unlike_any(&self, region: &RegionId, facts: &Facts) -> Option<String> {
        let told = |link: Arc<Link>| {
            let known = link.facts.lock().expect("no code that holds this lock panics").clone();
            known.and_then(|known| known.unlike(&link.region, facts, region))
        };
        let own = self.facts.as_ref().and_then(|own| own.unlike(&self.region, facts, region));
        own.or_else(|| self.links().into_iter().find_map(told))
    }

    /// Checks the hello against this node's settings and its PostgreSQL, but not who sent it.
    fn suits(&self, hello: &Hello) -> Result<()> {
        let refused = |why| Err(PeerError::Refused(why));
        Speaks::OWN.agree(hello.speaks).map_err(PeerError::Refused)?;
        if hello.cluster != self.cluster {
            return refused(format!(
                "it belongs to the cluster \"{}\", this node to \"{}\"",
                hello.cluster, self.cluster
            ));
        }
        let beginning = self.peers.read().expect("no code that holds this lock panics").beginning;
        if beginning != 0 && hello.beginning != beginning {
            return refused(
                "it has begun with other members, another `window_entries`, `key_seed` or `preferred_leader` than this \
                 node, so the two could reach different verdicts, or choose different places for the leader: in a new \
                 cluster, make these the same in all nodes' node.toml"
                    .into(),
            );
        }
        if hello.to != self.me {
            return refused(format!("it looks for node {}, this is node {}", hello.to, self.me));
        }
        self.suits_level(hello.speaks)?;
        let (Some(own), Some(other)) = (&self.facts, &hello.postgres) else { return Ok(()) };
        own.unlike(&self.region, other, &hello.region).map_or(Ok(()), refused)
    }

    /// Whether a release knows the format level that is in force.
    pub(super) fn suits_level(&self, release: Speaks) -> Result<()> {
        let level = self.peers.read().expect("no code that holds this lock panics").level;
        match release.level >= level {
            true => Ok(()),
            false => Err(PeerError::Refused(format!(
                "format level {level} is in force in this cluster, and its release knows {} at most: install the release that \
                 the other members run (docs/upgrade.md)",
                release.level
            ))),
        }
    }

    fn judge(&self, hello: &Hello) -> Result<Arc<Link>> {
        self.suits(hello)?;
        let mut peers = self.peers.write().expect("no code that holds this lock panics");
        match peers.links.get(&hello.from) {
            Some(link) => Ok(link.told(hello)),
            None if hello.from < peers.next_id => {
                Err(PeerError::Removed(format!("node {} was removed from the cluster", hello.from)))
            }
            // It joined after what this node knows.  If there is TLS, its certificate has proved that it belongs here.
            None if hello.from != self.me && peers.links.len() < MEMBERS_MAX => {
                let link = self.new_link(hello.from, hello.region.clone(), hello.address.clone());
                peers.links.insert(hello.from, link.clone());
                Ok(link.told(hello))
            }
            None => Err(PeerError::Refused(format!("node {} is no member here", hello.from))),
        }
    }

    /// Takes an append that came through a relay, or hands it on as one.
    async fn take_relayed(&self, link: &Arc<Link>, relayed: Relayed) -> Result<()> {
        let (from, to) = relayed.ends()?;
        if to == self.me {
            let Some(sender) = self.link(from) else { return Ok(()) };
            let key = *sender.relay_key.lock().expect("no code that holds this lock panics");
            // A tag does not fit if the sender has begun anew meanwhile, or a lab has lost the frame before.
            match key.map_or(Ok(None), |key| relayed.open(&key)) {
                Ok(Some(message)) => self.inbox.send(Event::Peer(from, PeerEvent::Raft(Box::new(message)))).await,
                Err(why) if from == link.id => return Err(why),
                // The relay is not to blame.
                Err(why) => tracing::warn!(peer = %from, "passed over what a peer sent through another: {why}"),
                Ok(None) => tracing::debug!(peer = %link.id, %from, "passed over an append that is not its sender's"),
            }
            return Ok(());
        }
        if from != link.id {
            return Err(PeerError::Violation(format!("a message from {from} to {to}")));
        }
        // A member whose table is older or newer may name one that is not here.
        if let Some(follower) = self.link(to).filter(|follower| follower.region == self.region) {
            let frame = Frame::Relayed(relayed).encode();
            follower.relayed_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
            self.send_to(&follower, Channel::Bulk, frame);
        }
        Ok(())
    }

    /// Returns when the connection ends; an error says what the peer did wrong.
    async fn receive_frames(self: &Arc<Self>, link: &Arc<Link>, stream: &mut PeerStream) -> Result<()> {
        let mut buf = BytesMut::with_capacity(BUFFER_BYTES);
        let mut entries = Bytes::new();
        loop {
            link.heard(self.now_ns());
            while let Some(frame) = Frame::take(&mut buf, FRAME_BYTES_MAX)? {
                match frame {
                    Frame::Raft(message) => {
                        if message.from != u64::from(link.id.0) || message.to != u64::from(self.me.0) {
                            let why = format!("a message from {} to {}", message.from, message.to);
                            return Err(PeerError::Violation(why));
                        }
                        if message.get_msg_type() == MessageType::MsgAppendResponse {
                            self.relaying().relays.answered(&message, Instant::now());
                        }
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Raft(message))).await;
                    }
                    Frame::Relayed(mut relayed) => {
                        relayed.complete(&mut entries);
                        self.take_relayed(link, relayed).await?;
                    }
                    Frame::Report(report, decided) => {
                        self.relaying().relays.reported(link.id, &report.round_trips);
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Report(report, decided))).await;
                    }
                    Frame::Notice(notice) => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Notice(notice))).await;
                    }
                    Frame::Question { question } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Question(question))).await;
                    }
                    Frame::LastEntry { question, last } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::LastEntry(question, last))).await;
                    }
                    Frame::LeaseQuestion { question } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::LeaseQuestion(question))).await;
                    }
                    Frame::Promise { question, last } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Promise(question, last))).await;
                    }
                    Frame::Await { at } => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Await(at))).await;
                    }
                    Frame::Lock(message) => {
                        self.inbox.send(Event::Peer(link.id, PeerEvent::Lock(message))).await;
                    }
                    Frame::Ping { sent_ns } => {
                        self.send_to(link, Channel::Control, Frame::Pong { sent_ns }.encode());
                    }
                    Frame::Pong { sent_ns } => {
                        let rtt = self.now_ns().saturating_sub(sent_ns);
                        link.add_round_trip(Duration::from_nanos(rtt));
                    }
                    Frame::Rehearse { id, rehearsal } => self.try_for(link.clone(), id, rehearsal),
                    Frame::Rehearsed { id, answer } => self.rehearsals.answered(id, link.id, answer),
                    Frame::AskStatus { id } => self.tell_status(link.clone(), id),
                    Frame::Status { id, report } => self.statuses.answered(id, link.id, report),
                    _ => {
                        return Err(PeerError::violation("a frame that belongs at the beginning of a connection"));
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
