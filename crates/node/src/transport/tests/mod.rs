//! Transports on real sockets, with unauthenticated connections of every kind.

mod join;
mod relay;

use super::frame::{read_frame, Hello, HelloReply, Purpose, HELLO_BYTES_MAX};
use super::*;
use crate::inbox::{Event, Events, PeerEvent};
use crate::tls::{Authority, PeerStream};
use bytes::{Bytes, BytesMut};
use onetrip_core::{level, LogIndex};
use std::io::Write;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

struct Side {
    transport: Arc<Transport>,
    events: Events,
    address: SocketAddr,
    folder: PathBuf,
}

struct Pair {
    sides: Vec<Side>,
    authority: Option<Authority>,
    _dir: tempfile::TempDir,
}

/// Two members of the cluster "test" that dial each other.  `extra` is added to both configurations.
async fn pair(tls: bool, extra: &str) -> Pair {
    pair_with(tls, extra, [None, None]).await
}

/// The same, with these facts about their PostgreSQLs.
async fn pair_with(tls: bool, extra: &str, facts: [Option<Facts>; 2]) -> Pair {
    group(tls, extra, &["r0", "r1"], &facts).await
}

/// Members in these regions, with these facts.
async fn group(tls: bool, extra: &str, regions: &[&str], facts: &[Option<Facts>]) -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let authority = tls.then(|| Authority::new("test").unwrap());
    let mut listeners = Vec::new();
    for _ in regions {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    let mut sides = Vec::new();
    for (i, listener) in listeners.into_iter().enumerate() {
        let folder = dir.path().join(format!("{i}"));
        std::fs::create_dir_all(folder.join(tls::FOLDER)).unwrap();
        if let Some(authority) = &authority {
            authority.save(&folder.join(tls::FOLDER)).unwrap();
            authority.issue(NodeId(i as u32 + 1)).unwrap().save(&folder.join(tls::FOLDER)).unwrap();
        }
        let member = |(n, region): (usize, &&str)| {
            format!("[[member]]\nid = {}\nregion = \"{region}\"\naddress = \"{}\"\n", n + 1, addresses[n])
        };
        let members: String = regions.iter().enumerate().map(member).collect();
        let text = format!(
            "cluster = \"test\"\nnode = {}\nregion = \"{}\"\nlisten = \"{}\"\nhttp = \"127.0.0.1:1\"\ntls = {tls}\n\
             preferred_leader = \"{}\"\nlab = true\n{extra}\n{members}",
            i + 1,
            regions[i],
            addresses[i],
            regions[0]
        );
        std::fs::write(folder.join("node.toml"), text).unwrap();
        let config = NodeConfig::load(&folder).unwrap();
        let (inbox, events) = Inbox::new(config.memory.from_peers_bytes);
        let transport = Transport::new(&config, facts[i].clone(), inbox).unwrap();
        transport.set_members(&config.bootstrap_members());
        tokio::spawn(transport.clone().run(listener));
        sides.push(Side { transport, events, address: addresses[i], folder });
    }
    Pair { sides, authority, _dir: dir }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Pair {
    async fn connected(&self) {
        until("both to be connected", || {
            self.sides.iter().all(|s| s.transport.peers().first().is_some_and(|p| p.connected))
        })
        .await;
    }
}

fn append(from: u32, to: u32, index: u64, bytes: usize) -> Message {
    let (term, log_term) = (1, u64::from(index > 0));
    let mut message = Message { from: from.into(), to: to.into(), term, index, log_term, ..Default::default() };
    message.set_msg_type(MessageType::MsgAppend);
    let data = Bytes::from(vec![index as u8; bytes]);
    message.mut_entries().push(raft::eraftpb::Entry { data, index: index + 1, term, ..Default::default() });
    message
}

/// The indexes of the Raft messages that have arrived.
fn received(side: &Side) -> Vec<u64> {
    let raft = |event| match event {
        Event::Peer(_, PeerEvent::Raft(message)) => {
            assert!(message.get_entries().iter().all(|e| e.data.iter().all(|b| *b == message.index as u8)));
            Some(message.index)
        }
        _ => None,
    };
    side.events.try_iter().filter_map(raft).collect()
}

/// Small and large messages arrive whole and in order, with TLS and without, while the reader keeps up or not.
#[tokio::test]
async fn frames_arrive_in_order_with_tls_and_without() {
    for tls in [false, true] {
        let pair = pair(tls, "").await;
        pair.connected().await;
        for index in 0..300 {
            let bytes = if index % 50 == 0 { 3 << 20 } else { index as usize };
            assert!(pair.sides[0].transport.send_raft(append(1, 2, index, bytes)));
        }
        let mut all = Vec::new();
        until("all messages", || {
            all.extend(received(&pair.sides[1]));
            all.len() >= 300
        })
        .await;
        assert_eq!(all, (0..300).collect::<Vec<_>>(), "tls {tls}");
    }
}

/// The core sends again what a broken connection lost when it hears that the peer is connected again, so it must hear
/// that after it heard of the break.
#[tokio::test]
async fn whoever_is_connected_again_is_told_so_after_the_end() {
    let pair = pair(false, "").await;
    let mut told = Vec::new();
    let mut hear = |times: usize| {
        told.extend(pair.sides[0].events.try_iter().filter_map(|event| match event {
            Event::Peer(NodeId(2), PeerEvent::Connected) => Some("connected"),
            Event::Peer(NodeId(2), PeerEvent::Unreachable) => Some("unreachable"),
            _ => None,
        }));
        told.iter().filter(|t| **t == "connected").count() >= times
    };
    until("both connections", || hear(1)).await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    // A message in another node's name ends the sender's connection.
    one.transport.send_raft(append(9, 2, 1, 1));
    until("them again", || hear(2)).await;
    // Each of the two channels may find both connected, so the event may come twice.
    told.dedup();
    assert_eq!(told, ["connected", "unreachable", "connected"]);
    pair.connected().await;
    one.transport.send_raft(append(1, 2, 9, 1));
    until("a message on it", || received(two) == [9]).await;
}

/// Goal: a message that no correct node sends does not reach the core, and the log names its sender.  Method: an append
/// that follows an entry without a term.
#[tokio::test]
async fn what_no_member_says_ends_its_connection() {
    let (log, _guard) = Log::start();
    let pair = pair(false, "").await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    one.transport.send_raft(Message { log_term: 0, ..append(1, 2, 7, 1) });
    let why = "malformed message of Raft: index 7 with term 0";
    until("it is told", || log.text().lines().any(|line| line.contains("disconnected a peer") && line.contains(why)))
        .await;
    assert!(log.text().lines().any(|line| line.contains(why) && line.contains("peer=1")), "{}", log.text());
    assert!(received(two).is_empty());
}

/// Goal: no small proposal waits behind a large one.  Method: on a slow link, the large one is sent first.
#[tokio::test]
async fn a_small_proposal_overtakes_a_large_one() {
    let pair = pair(false, "").await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    let transport = one.transport.clone();
    let delays = transport.start_delays().unwrap().expect("a lab has a delay line");
    assert!(one.transport.set_link(NodeId(2), LinkSettings { mbit_per_s: 80.0, ..Default::default() }));
    let propose = |index, bytes| {
        let mut message = append(1, 2, index, bytes);
        message.set_msg_type(MessageType::MsgPropose);
        assert!(one.transport.send_raft(message));
    };
    assert!(!one.transport.is_sending(NodeId(2)));
    propose(1, 4 << 20);
    propose(2, 1 << 10);
    assert!(one.transport.is_sending(NodeId(2)));
    let mut all = Vec::new();
    until("both", || {
        all.extend(received(two));
        all.len() == 2
    })
    .await;
    assert_eq!(all, [2, 1]);
    until("all has left", || !one.transport.is_sending(NodeId(2))).await;
    one.transport.stop_delays();
    delays.join().unwrap();
}

/// In a lab, one direction of a link is cut, and then delays and duplicates frames; the other direction is not
/// affected.
#[tokio::test]
async fn a_link_is_shaped_in_one_direction() {
    let pair = pair(false, "").await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    let delays = one.transport.start_delays().unwrap().expect("a lab has them");
    let set = |settings| assert!(one.transport.set_link(NodeId(2), settings));
    set(LinkSettings { cut: true, ..Default::default() });
    one.transport.send_raft(append(1, 2, 1, 10));
    two.transport.send_raft(append(2, 1, 2, 10));
    until("the direction that is not cut", || received(one) == [2]).await;
    set(LinkSettings { duplicate: 1.0, one_way_ms: 1.0, jitter_ms: 3.0, ..Default::default() });
    for index in 3..50 {
        one.transport.send_raft(append(1, 2, index, 10));
    }
    let mut all = Vec::new();
    until("doubles", || {
        all.extend(received(two));
        all.len() >= 2 * 47
    })
    .await;
    assert_eq!(all, (3..50).flat_map(|i| [i, i]).collect::<Vec<_>>(), "what was sent through the cut is lost");
    one.transport.stop_delays();
    delays.join().unwrap();
}

#[tokio::test]
async fn members_are_added_and_removed_while_running() {
    let pair = pair(false, "").await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    let member = |id: u32, side: &Side| (NodeId(id), RegionId(format!("r{}", id - 1)), side.address.to_string());
    one.transport.set_peers([member(1, one)].into_iter(), NodeId(3));
    assert!(one.transport.peers().is_empty());
    until("the removed one to be told so", || {
        let told = |event| matches!(event, Event::Peer(NodeId(1), PeerEvent::Removed(_)));
        two.events.try_iter().any(told)
    })
    .await;
    // The removed node does not dial any more; one that starts anew does.
    two.transport.set_peers([member(2, two)].into_iter(), NodeId(3));
    for side in [one, two] {
        side.transport.set_peers([member(1, one), member(2, two)].into_iter(), NodeId(3));
    }
    pair.connected().await;
    one.transport.send_raft(append(1, 2, 9, 1));
    until("a message to the member that is back", || received(two) == [9]).await;
}

/// A node that was away may know none of the present voters.
#[tokio::test]
async fn a_member_that_came_after_this_nodes_table_is_let_in_and_answered() {
    let pair = pair(true, "").await;
    pair.connected().await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    let member = |id: u32, side: &Side| (NodeId(id), RegionId(format!("r{}", id - 1)), side.address.to_string());
    one.transport.set_peers([member(1, one)].into_iter(), NodeId(3));
    two.transport.set_peers([member(2, two)].into_iter(), NodeId(3));
    until("no connection to be left", || pair.sides.iter().all(|s| s.transport.peers().is_empty())).await;
    one.transport.set_peers([member(1, one)].into_iter(), NodeId(2));
    two.transport.set_peers([member(1, one), member(2, two)].into_iter(), NodeId(3));
    pair.connected().await;
    one.transport.send_raft(append(1, 2, 9, 1));
    until("an answer to the new member", || received(two) == [9]).await;
    // The link to it stays when the older table changes, and goes when a table is set in which its id is a former
    // member's.
    one.transport.set_peers([member(1, one)].into_iter(), NodeId(2));
    assert_eq!(one.transport.peers().len(), 1);
    one.transport.set_peers([member(1, one)].into_iter(), NodeId(3));
    assert!(one.transport.peers().is_empty());
}

fn facts_with(name: &str, value: &str) -> Facts {
    let mut facts = Facts::example();
    facts.alike.insert(name.into(), value.into()).expect("a fact that is compared");
    facts
}

/// Two members whose PostgreSQLs store values differently refuse each other, for frames and for a copy of the server,
/// and both log which fact differs.
#[tokio::test]
async fn a_hello_from_a_postgresql_that_stores_otherwise_is_refused() {
    let (log, _guard) = Log::start();
    let other = facts_with("byte order", "big-endian");
    let pair = pair_with(true, "", [Some(Facts::example()), Some(other)]).await;
    let said = |side: &Side, why: &str| {
        let peers = side.transport.peers();
        peers.iter().any(|p| !p.connected && p.trouble.as_ref().is_some_and(|t| t.contains(why)))
    };
    // Each is told by the other, whose text names the region that dialled first.
    let (by_two, by_one) = (
        "byte order is little-endian in r0 and big-endian in r1",
        "byte order is big-endian in r1 and little-endian in r0",
    );
    until("both to know", || said(&pair.sides[0], by_two) && said(&pair.sides[1], by_one)).await;
    until("both in the log", || [by_one, by_two].iter().all(|why| log.text().contains(why))).await;
    let copy = pair.sides[0].transport.postgres_tunnel(NodeId(2)).await.err().expect("refused").to_string();
    assert!(copy.contains(by_two), "{copy}");
}

/// A witness has nothing to compare, and a member whose PostgreSQL differs only in version is let in.  Each member
/// hears the other's version.
#[tokio::test]
async fn a_witness_and_a_postgresql_of_another_version_are_let_in() {
    let newer = Facts { version: 18, ..Facts::example() };
    let version = |side: &Side| side.transport.peers()[0].postgres_version;
    for (facts, versions) in [
        ([Some(Facts::example()), Some(newer)], [Some(18), Some(15)]),
        ([Some(Facts::example()), None], [None, Some(15)]),
    ] {
        let pair = pair_with(false, "", facts).await;
        pair.connected().await;
        until("the versions", || [version(&pair.sides[0]), version(&pair.sides[1])] == versions).await;
    }
}

/// Collects what the test's thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn hello(from: u32, to: u32) -> Bytes {
    let (from, to, purpose) = (NodeId(from), NodeId(to), Purpose::Frames(Channel::Bulk));
    let (cluster, region, address) = ("test".into(), "r".into(), "127.0.0.1:1".into());
    Frame::Hello(Hello {
        speaks: Speaks::only(12),
        cluster,
        beginning: 0,
        from,
        region,
        address,
        to,
        purpose,
        relay_key: [0; 32],
        postgres: None,
    })
    .encode()
}

/// Whether the other end answers this hello with a welcome.
async fn is_welcome(stream: &mut PeerStream, hello: &[u8]) -> bool {
    if stream.write_all(hello).await.is_err() || stream.flush().await.is_err() {
        return false;
    }
    let mut buf = BytesMut::new();
    let reply = read_frame(stream, &mut buf, HELLO_BYTES_MAX);
    let reply = tokio::time::timeout(PATIENCE, reply).await.expect("an answer, or the end");
    matches!(reply, Ok(Frame::HelloReply(HelloReply::Welcome, None)))
}

/// Goal: whatever a member's hellos say of its release, the others go on, and take it for what it claims to be.
/// Method: a hand-made member beside a real one; what it says replaces what the real one has said.
#[tokio::test]
async fn a_member_that_lies_about_its_release_harms_nobody_else() {
    let pair = pair(false, "").await;
    pair.connected().await;
    let one = &pair.sides[0];
    let edges = [0, 1, 11, 12, 13, 14, u16::MAX];
    for (least, most) in edges.iter().flat_map(|least| edges.iter().map(move |most| (*least, *most))) {
        for claims in edges {
            let mut relay_key = [9; 32];
            let speaks = Speaks { least, most, level: Level(claims) };
            speaks.hide_in(&mut relay_key);
            let (cluster, region, address) = ("test".into(), "r".into(), "127.0.0.1:1".into());
            let (from, to, purpose) = (NodeId(2), NodeId(1), Purpose::Frames(Channel::Bulk));
            let (beginning, postgres) = (0, None);
            let hello = Hello { speaks, cluster, beginning, from, region, address, to, purpose, relay_key, postgres };
            let mut stream = PeerStream::Plain(TcpStream::connect(one.address).await.unwrap());
            stream.write_all(&Frame::Hello(hello).encode()).await.unwrap();
            let mut buf = BytesMut::new();
            let reply = tokio::time::timeout(PATIENCE, read_frame(&mut stream, &mut buf, HELLO_BYTES_MAX)).await;
            let welcome =
                matches!(reply.expect("an answer, or the end"), Ok(Frame::HelloReply(HelloReply::Welcome, _)));
            // One that makes no sense is of a release that knows one version and no levels.
            assert_eq!(welcome, least <= 13, "{speaks:?}");
            let claimed = if least <= most && most > 12 { Level(claims) } else { Level(0) };
            let told = one.transport.peers()[0].level.expect("the real one has said it");
            assert!(!welcome || told == level::KNOWN || told == claimed, "{speaks:?}: {told}");
        }
    }
    // The real one is still there, and its next hello counts.
    pair.sides[0].transport.links().iter().for_each(|link| link.hang_up());
    pair.connected().await;
    until("its own level", || one.transport.peers()[0].level == Some(level::KNOWN)).await;
}

/// Only a peer with node 2's certificate gets in as node 2, and the log says where each refused connection came from.
#[tokio::test]
async fn a_peer_with_a_wrong_foreign_expired_or_no_certificate_is_refused() {
    let (log, _guard) = Log::start();
    let pair = pair(true, "").await;
    pair.connected().await;
    let authority = pair.authority.as_ref().unwrap();
    let one = &pair.sides[0];
    let foreign = Authority::new("test").unwrap();
    let two = NodeId(2);
    let cases = [
        ("good", Some(authority.issue(two).unwrap()), ""),
        ("none", None, "it shows no certificate"),
        ("another's", Some(authority.issue(NodeId(3)).unwrap()), "its certificate is not for node-2.test"),
        ("foreign", Some(foreign.issue(two).unwrap()), "BadSignature"),
        ("another cluster's", Some(Authority::new("else").unwrap().issue(two).unwrap()), "UnknownIssuer"),
        ("expired", Some(tls::expired(authority, two)), "expired"),
    ];
    for (name, issued, why) in cases {
        let stream = TcpStream::connect(one.address).await.unwrap();
        let from = stream.local_addr().unwrap().to_string();
        let mut stream =
            tls::test_client(stream, authority, issued.as_ref()).await.expect("node 1's certificate is good");
        assert_eq!(is_welcome(&mut stream, &hello(2, 1)).await, why.is_empty(), "{name}");
        let logged = |log: &Log| log.text().lines().any(|l| l.contains(&from) && l.contains(why));
        until(&format!("{name}: {why} in the log"), || why.is_empty() || logged(&log)).await;
    }
    // A peer with TLS, and a node without.
    let plain = self::pair(false, "").await;
    let stream = TcpStream::connect(plain.sides[0].address).await.unwrap();
    assert!(tls::test_client(stream, authority, None).await.is_err());
    until("the other hint", || log.text().contains("it speaks TLS and this end does not")).await;
    // A peer without TLS, and a node with it.
    let stream = TcpStream::connect(one.address).await.unwrap();
    assert!(!is_welcome(&mut PeerStream::Plain(stream), &hello(2, 1)).await);
    until("the hint", || log.text().contains("is `tls` the same")).await;
    assert!(received(one).is_empty());
}

/// The other way round: a node does not talk to a server that cannot prove that it is the member that was dialled.
#[tokio::test]
async fn a_server_that_is_not_the_member_is_not_talked_to() {
    let (authority, foreign) = (Authority::new("test").unwrap(), Authority::new("test").unwrap());
    let own = authority.issue(NodeId(1)).unwrap();
    let dialler = Tls::new(
        Authority::from_pem("test", authority.certificate_pem(), &authority.key_pem().unwrap()).unwrap(),
        &own,
        "test",
        NodeId(1),
    )
    .unwrap();
    let cases = [
        (Some(authority.issue(NodeId(2)).unwrap()), None),
        (Some(authority.issue(NodeId(3)).unwrap()), Some("not valid for name")),
        (Some(foreign.issue(NodeId(2)).unwrap()), Some("BadSignature")),
        (Some(tls::expired(&authority, NodeId(2))), Some("expired")),
        (None, Some("is `tls` the same")),
    ];
    for (issued, why) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = issued.map(|i| tls::test_acceptor(&i));
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            match acceptor {
                Some(acceptor) => drop(acceptor.accept(stream).await),
                None => stream.write_all(b"HTTP/1.1 400 no TLS here\r\n\r\n").await.unwrap(),
            }
        });
        let stream = TcpStream::connect(address).await.unwrap();
        match (dialler.connect(stream, NodeId(2)).await, why) {
            (Ok(_), None) => {}
            (Err(e), Some(why)) => assert!(e.to_string().contains(why), "{e} for {why}"),
            (result, why) => panic!("{:?} for {why:?}", result.err()),
        }
        server.await.unwrap();
    }
}

/// The side that dials acts on the kind of the error; the text is for people.
#[tokio::test]
async fn what_goes_wrong_while_dialling_is_told_by_its_kind() {
    let pair = pair(false, "").await;
    let transport = &pair.sides[0].transport;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let link = Link::new(NodeId(2), "r1".into(), address, transport.wan.shape(NodeId(2), &"r1".into()));
    let dial = || async { link::dial(transport, &link, Purpose::Postgres).await.err().expect("no welcome") };
    let reply = |reply| Frame::HelloReply(reply, None).encode();
    let cases = [
        (reply(HelloReply::Refused("no".into())), "refused", "it refuses this node: no"),
        (reply(HelloReply::Removed("gone".into())), "removed", "gone"),
        (Frame::Ping { sent_ns: 1 }.encode(), "violation", "its answer is not one to a hello"),
        (Bytes::from_static(&[0xff; 64]), "violation", "at hello: "),
        (Bytes::new(), "io", "at hello: it closed the connection"),
        (Bytes::from_static(&[0x15, 3, 3, 0, 2, 2, 40]), "tls", "at hello: it speaks TLS and this end does not"),
    ];
    let kind = |e: &PeerError| match e {
        PeerError::Refused(_) => "refused",
        PeerError::Removed(_) => "removed",
        PeerError::Violation(_) => "violation",
        PeerError::TimedOut(_) => "timed out",
        PeerError::Io(_) => "io",
        PeerError::Tls(_) => "tls",
    };
    for (answer, expected, text) in cases {
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_frame(&mut stream, &mut BytesMut::new(), HELLO_BYTES_MAX).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        };
        let (error, ()) = tokio::join!(dial(), answering);
        assert_eq!(kind(&error), expected, "{error}");
        assert!(error.to_string().starts_with(text), "{error}");
    }
    let (error, _silent) = tokio::join!(dial(), listener.accept());
    assert_eq!((kind(&error), error.to_string().as_str()), ("timed out", "it does not answer"));
    drop(listener);
    assert_eq!(kind(&dial().await), "io");
}

/// Idle connections cannot occupy all places: the oldest are closed, and a member gets in.
#[tokio::test]
async fn connections_that_say_nothing_do_not_keep_a_member_out() {
    let (log, _guard) = Log::start();
    let pair = pair(false, "").await;
    pair.connected().await;
    let one = &pair.sides[0];
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(one.address).await.unwrap());
    }
    let mut member = PeerStream::Plain(TcpStream::connect(one.address).await.unwrap());
    assert!(is_welcome(&mut member, &hello(2, 1)).await);
    // The first is closed although its time has not run out.
    let read = tokio::time::timeout(PATIENCE, idle[0].read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)));
    // The others are closed when their time is up.
    let last = tokio::time::timeout(PATIENCE, idle[99].read(&mut [0])).await.unwrap();
    assert!(matches!(last, Ok(0) | Err(_)));
    assert!(log.text().contains("no hello came"));
}

/// Anything but a valid hello ends the connection: arbitrary bytes, a false length, two hellos at once, another frame,
/// a hello of or for a node that is not there, or one that arrives byte by byte.
#[tokio::test]
async fn what_is_no_hello_is_refused() {
    let pair = pair(false, "").await;
    pair.connected().await;
    let one = &pair.sides[0];
    let good = hello(2, 1);
    let mut lying = good.to_vec();
    lying[..4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    let mut twice = good.to_vec();
    twice.extend_from_slice(&good);
    let report = Report { shown: Some((LogIndex(1), LogIndex(1))), round_trips: Vec::new() };
    let position = Frame::Report(report, Vec::new()).encode();
    for (bytes, welcome) in [
        (&good[..], true),
        (b"GET / HTTP/1.1\r\n\r\n", false),
        (b"\x16\x03\x01\x02\x00\x01", false),
        (&lying, false),
        (&twice, false),
        (&position, false),
        (&hello(0, 1), false),
        (&hello(2, 9), false),
    ] {
        let mut stream = PeerStream::Plain(TcpStream::connect(one.address).await.unwrap());
        assert_eq!(is_welcome(&mut stream, bytes).await, welcome, "{bytes:?}");
    }
    // A peer that began with other members or another window would reach other verdicts.
    one.transport.peers.write().unwrap().beginning = 7;
    let mut stream = PeerStream::Plain(TcpStream::connect(one.address).await.unwrap());
    assert!(!is_welcome(&mut stream, &good).await);
    one.transport.peers.write().unwrap().beginning = 0;
    let mut slow = TcpStream::connect(one.address).await.unwrap();
    let start = Instant::now();
    let drip = async {
        // Sending one byte at a time does not extend the time that the hello may take.
        for byte in good.iter().cycle() {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, drip).await.expect("the connection is ended");
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Goal: a release that speaks no common version, or does not know the level in force, is not let in, and the log says
/// why; one without levels is let in while level 0 is in force.
#[tokio::test]
async fn an_older_release_is_let_in_until_its_level_is_too_low() {
    let (log, _guard) = Log::start();
    let pair = pair(false, "").await;
    pair.connected().await;
    let one = &pair.sides[0];
    let connect = || async { PeerStream::Plain(TcpStream::connect(one.address).await.unwrap()) };
    assert!(is_welcome(&mut connect().await, &hello(2, 1)).await);
    let link = || one.transport.link(NodeId(2)).unwrap();
    assert_eq!(link().level(), Some(Level(0)));

    let mut later = hello(2, 1).to_vec();
    // The version that a hello says; the checksum follows from it.
    later[13..15].copy_from_slice(&14u16.to_le_bytes());
    let crc = crc32fast::hash(&later[8..]);
    later[4..8].copy_from_slice(&crc.to_le_bytes());
    assert!(!is_welcome(&mut connect().await, &later).await);
    until("both versions in the log", || {
        log.text().contains("it speaks version 14 of the protocol between nodes, this node versions 12 to 13")
    })
    .await;

    one.transport.peers.write().unwrap().level = level::KNOWN;
    assert!(!is_welcome(&mut connect().await, &hello(2, 1)).await);
    until("the level in the log", || log.text().contains("its release knows 0 at most: install the release")).await;
    // The other side is this release.
    link().hang_up();
    until("it comes back", || link().level() == Some(level::KNOWN) && link().is_connected()).await;
}
