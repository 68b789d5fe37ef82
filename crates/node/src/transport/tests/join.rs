//! Joining with a token, and streams to a peer's PostgreSQL.

use super::*;
use crate::inbox::{AdminReply, AdminRequest};
use crate::join::{self, JoinRequest};
use onetrip_core::{Member, MemberRole, Members, PreferredLeader};
use std::sync::atomic::{AtomicUsize, Ordering};

const POSTGRES: &str = "[postgres]\nport = 5432\nbin_dir = \"/usr/lib/postgresql/15/bin\"\n";

/// A stream from one member to the other's PostgreSQL carries any bytes both ways.  The number of streams is limited,
/// and a node whose PostgreSQL does not run refuses them.
#[tokio::test]
async fn a_tunnel_leads_to_the_socket_of_the_peers_postgres() {
    let pair = pair(true, POSTGRES).await;
    let [one, two] = &pair.sides[..] else { panic!("two sides") };
    let error = one.transport.postgres_tunnel(NodeId(2)).await.err().expect("nobody listens there");
    assert!(error.to_string().contains("PostgreSQL does not answer"), "{error}");
    let server = tokio::net::UnixListener::bind(two.folder.join(".s.PGSQL.5432")).unwrap();
    tokio::spawn(async move {
        // Sends back what it receives.
        while let Ok((mut stream, _)) = server.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    let (mut from, mut to) = tokio::io::split(one.transport.postgres_tunnel(NodeId(2)).await.unwrap());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut came = Vec::new();
    tokio::time::timeout(PATIENCE, from.read_to_end(&mut came)).await.expect("in time").unwrap();
    assert!(came == bytes, "{} bytes came back", came.len());
    writer.await.unwrap();
    drop(from);

    let mut open = Vec::new();
    let error = loop {
        match one.transport.postgres_tunnel(NodeId(2)).await {
            Ok(stream) => open.push(stream),
            Err(e) => break e.to_string(),
        }
        assert!(open.len() <= tunnel::TUNNELS_MAX);
    };
    assert!(error.contains("open already"), "{error}");
    assert!(open.len() >= tunnel::TUNNELS_MAX - 1, "the first may not have ended yet");
}

/// Plays the core: it knows one secret, and counts the requests to join.
fn core(events: Events, secret: Secret, checkpoint: Bytes) -> Arc<AtomicUsize> {
    let counter = Arc::new(AtomicUsize::new(0));
    let asked = counter.clone();
    std::thread::spawn(move || {
        while let Ok(event) = events.recv() {
            let Event::Admin(AdminRequest::Join { secret_hash, region, address, unlike }, answer) = event else {
                continue;
            };
            asked.fetch_add(1, Ordering::Relaxed);
            let member = Member {
                id: NodeId(3),
                region: region.clone(),
                address,
                role: MemberRole::Voter,
                voter: false,
                slot: Some(2),
                replaces: None,
                joined: Some(onetrip_core::Joined { token: secret_hash, attempt: 1, expires_unix_s: u64::MAX }),
            };
            let members = Arc::new(Members::bootstrap(vec![member.clone()], PreferredLeader::Region(region), 8));
            let encoded = checkpoint.clone();
            let checkpoint = Box::new(move || encoded);
            let _ = answer.send(match (secret_hash == crate::secret::hash(&secret), unlike) {
                (true, None) => Ok(AdminReply::Joined { member, members, checkpoint }),
                (true, Some(why)) => Err(why),
                (false, _) => Err("this token is unknown".into()),
            });
        }
    });
    counter
}

/// With a valid token a node gets all that it needs to be a member.  A wrong token costs a second, and the log says
/// where it came from.  A node never shows its token to another cluster than the token's.
#[tokio::test]
async fn a_token_lets_a_node_in() {
    let (log, _guard) = Log::start();
    for tls in [true, false] {
        let pair = pair(tls, POSTGRES).await;
        let Pair { sides, _dir, .. } = pair;
        let mut sides = sides.into_iter();
        let one = sides.next().unwrap();
        let (secret, checkpoint) = ([5; 32], Bytes::from(vec![9; 3 << 20]));
        let asked = core(one.events, secret, checkpoint.clone());
        let address = one.address.to_string();
        let request = || JoinRequest { region: "r2".into(), address: "10.0.0.3:7000".into(), postgres: None };
        let token = one.transport.join_token(secret);
        assert_eq!(token.to_string().parse(), Ok(token.clone()));

        let reply = join::request_join(&address, &token, request()).await.unwrap();
        assert_eq!((reply.member.id, reply.member.address.as_str()), (NodeId(3), "10.0.0.3:7000"));
        assert_eq!((reply.cluster.as_str(), &reply.members.members[..]), ("test", &[reply.member.clone()][..]));
        assert_eq!(reply.settings, one.transport.settings);
        assert!(reply.checkpoint == checkpoint);
        let folder = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:1".parse().unwrap();
        let config = NodeConfig::new("test".into(), NodeId(3), "r2".into(), listen, listen);
        reply.write_tls(&NodeConfig { data_dir: folder.path().into(), ..config }).unwrap();
        match tls {
            true => drop(Tls::load(&folder.path().join(tls::FOLDER), "test", NodeId(3)).unwrap()),
            false => assert!(reply.tls.is_none()),
        }

        let wrong = one.transport.join_token([6; 32]);
        let before = Instant::now();
        let error = join::request_join(&address, &wrong, request()).await.err().unwrap().to_string();
        assert!(error.contains("this token is unknown") && error.contains(&address), "{error}");
        assert!(before.elapsed() >= Duration::from_secs(1));
        let logged =
            |l: &str| l.contains("it asks to join in r2: this token is unknown") && l.contains("from=127.0.0.1:");
        until("the refusal in the log", || log.text().lines().any(logged)).await;

        let mut foreign = token.clone();
        foreign.authority = Some([1; 32]);
        join::request_join(&address, &foreign, request()).await.err().unwrap();
        let mut other = token.clone();
        other.authority = if tls { None } else { Some([1; 32]) };
        let error = join::request_join(&address, &other, request()).await.err().unwrap().to_string();
        assert!(error.contains("speaks TLS") || !tls, "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 2, "the good one and the wrong one");
    }
    let text = log.text();
    assert!(!text.contains("[5, 5") && !text.contains("050505"), "no secret in the log");
}

/// Any member tells a new node that its PostgreSQL stores values differently: a member with a PostgreSQL compares it
/// with its own, a witness with what the others have said about theirs.
#[tokio::test]
async fn a_member_and_a_witness_know_which_postgresql_does_not_suit_the_others() {
    let Pair { sides, _dir, .. } = pair_with(true, "", [Some(Facts::example()), None]).await;
    until("the witness to have heard", || sides[1].transport.peers()[0].postgres_version.is_some()).await;
    for side in sides {
        let secret = [5; 32];
        core(side.events, secret, Bytes::new());
        let (address, token) = (side.address.to_string(), side.transport.join_token(secret));
        let request = |postgres| JoinRequest { region: "r2".into(), address: "10.0.0.3:7000".into(), postgres };
        let unlike = facts_with("maximum data alignment", "4");
        let error =
            join::request_join(&address, &token, request(Some(unlike))).await.err().expect("refused").to_string();
        assert!(error.contains("maximum data alignment is 4 in r2 and 8 in r0"), "{error}");
        for suits in [Some(Facts::example()), None] {
            join::request_join(&address, &token, request(suits)).await.unwrap();
        }
    }
}

/// Goal: a node of this release joins through a member of version 12, which hangs up on a request that it cannot read.
#[tokio::test]
async fn a_member_of_version_12_is_asked_again_in_its_own_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let member = tokio::spawn(async move {
        let mut said = Vec::new();
        loop {
            let mut stream = PeerStream::Plain(listener.accept().await.unwrap().0);
            let first = read_frame(&mut stream, &mut BytesMut::new(), HELLO_BYTES_MAX).await.unwrap();
            let Frame::Join(join) = first else { panic!("{first:?}") };
            said.push(join.speaks);
            if join.speaks == Speaks::only(12) {
                stream.write_all(&Frame::JoinRefused("a token of another cluster".into()).encode()).await.unwrap();
                stream.flush().await.unwrap();
                return said;
            }
        }
    });
    let token = JoinToken { secret: [1; 32], authority: None };
    let request = JoinRequest { region: "r4".into(), address: "host:7100".into(), postgres: None };
    let why = join::request_join(&address, &token, request).await.err().expect("it was refused").to_string();
    assert!(why.contains("a token of another cluster"), "{why}");
    assert_eq!(member.await.unwrap(), [Speaks::OWN, Speaks::only(12)]);
}

/// Goal: what broke off a request to join is said, whatever comes of asking again as an earlier release asks.
#[tokio::test]
async fn what_broke_off_a_request_to_join_is_said() {
    for refusal in [None, Some("another release")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for refusal in [None, refusal] {
                let mut stream = PeerStream::Plain(listener.accept().await.unwrap().0);
                read_frame(&mut stream, &mut BytesMut::new(), HELLO_BYTES_MAX).await.unwrap();
                if let Some(why) = refusal {
                    stream.write_all(&Frame::JoinRefused(why.into()).encode()).await.unwrap();
                    stream.flush().await.unwrap();
                }
            }
        });
        let token = JoinToken { secret: [1; 32], authority: None };
        let request = JoinRequest { region: "r4".into(), address: "host:7100".into(), postgres: None };
        let why = join::request_join(&address, &token, request).await.err().expect("no answer").to_string();
        assert!(why.contains("it closed the connection") && why.contains(refusal.unwrap_or_default()), "{why}");
    }
}
