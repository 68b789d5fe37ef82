//! TLS clients and servers that a node itself would never be, and TLS below a send queue.

use super::*;
use crate::send_queue::SendQueue;
use bytes::Bytes;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// A certificate that expired yesterday.
pub fn expired(authority: &Authority, node: NodeId) -> Issued {
    let now = OffsetDateTime::now_utc();
    authority.issue_valid(node, &[], (now - time::Duration::days(365), now - time::Duration::days(1))).unwrap()
}

fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()]
}

/// Connects to node 1 with this certificate, or with none.
pub async fn test_client(
    stream: TcpStream,
    authority: &Authority,
    issued: Option<&Issued>,
) -> std::io::Result<PeerStream> {
    let ca = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(roots(&ca).unwrap());
    let config = match issued {
        Some(issued) => config.with_client_auth_cert(chain(issued), private_key(&issued.key).unwrap()).unwrap(),
        None => config.with_no_client_auth(),
    };
    let name = server_name(NodeId(1), "test").unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(PeerStream::Tls(Box::new(tls.into())))
}

/// A server that presents this certificate and asks the client for none.
pub fn test_acceptor(issued: &Issued) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain(issued), private_key(&issued.key).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn node(authority: &Authority, id: u32) -> Tls {
    let same = Authority::from_pem("test", authority.certificate_pem(), &authority.key_pem().unwrap()).unwrap();
    Tls::new(same, &authority.issue(NodeId(id)).unwrap(), "test", NodeId(id)).unwrap()
}

/// Goal: every byte arrives once.  Method: much more data than a socket takes, new keys in between, and a reader that
/// starts late.
#[tokio::test]
async fn a_queue_over_tls_loses_nothing_when_the_socket_is_full_or_keys_change() {
    let authority = Authority::new("test").unwrap();
    let (one, two) = (node(&authority, 1), node(&authority, 2));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dialled = tokio::spawn(async move { one.connect(TcpStream::connect(address).await.unwrap(), NodeId(2)).await });
    let mut server = two.accept(listener.accept().await.unwrap().0).await.unwrap();
    two.check_peer(&server, NodeId(1)).unwrap();
    two.check_peer(&server, NodeId(3)).unwrap_err();
    let queue = Arc::new(SendQueue::new(dialled.await.unwrap().unwrap().into_socket(), Arc::new(usize::MAX.into())));

    let mut sent = Vec::new();
    for i in 0..2_000u32 {
        let chunk = vec![i as u8; (i as usize * 31) % 20_000];
        sent.extend_from_slice(&chunk);
        queue.send([Bytes::from(chunk)]).unwrap();
        if i % 500 == 250 {
            queue.socket().refresh_keys();
        }
    }
    let writer = queue.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = writer.drain() => {}
            () = writer.socket().ended() => {}
        }
    });
    let mut came = vec![0; sent.len()];
    tokio::time::timeout(Duration::from_secs(60), server.read_exact(&mut came)).await.expect("in time").unwrap();
    assert!(came == sent);
    // Nothing is queued now: a small frame leaves at once, even from a thread without a runtime.
    let small = queue.clone();
    std::thread::spawn(move || small.send([Bytes::from_static(b"now")]).unwrap()).join().unwrap();
    let mut now = [0; 3];
    tokio::time::timeout(Duration::from_secs(10), server.read_exact(&mut now)).await.expect("in time").unwrap();
    assert_eq!(&now, b"now");
}

#[test]
fn a_cluster_name_that_fits_no_certificate_is_refused() {
    for good in ["orders", "c0ffee", "a-b.c", "ORDERS"] {
        check_cluster_name(good).unwrap();
        let authority = Authority::new(good).unwrap();
        let issued = authority.issue(NodeId(1)).unwrap();
        Tls::new(authority, &issued, good, NodeId(1)).unwrap();
    }
    for bad in ["my orders", "123", "über", "a..b", &"x".repeat(64)] {
        check_cluster_name(bad).unwrap_err();
    }
}

#[test]
fn a_node_does_not_start_with_the_certificate_of_another() {
    let authority = Authority::new("test").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let load = |id| Tls::load(dir.path(), "test", NodeId(id)).err().map(|e| e.to_string());
    assert!(load(2).unwrap().contains("ca.crt"), "nothing is there");
    authority.save(dir.path()).unwrap();
    assert!(load(2).unwrap().contains("node.crt"));
    authority.issue(NodeId(3)).unwrap().save(dir.path()).unwrap();
    assert!(load(2).unwrap().contains("node-2.test"), "{:?}", load(2));
    expired(&authority, NodeId(2)).save(dir.path()).unwrap();
    assert!(load(2).unwrap().contains("expired"), "{:?}", load(2));
    authority.issue(NodeId(2)).unwrap().save(dir.path()).unwrap();
    assert_eq!(load(2), None);
    // As `onetrip certificate` leaves it if it is interrupted.
    std::fs::write(dir.path().join(NODE_KEY), authority.issue(NodeId(2)).unwrap().key).unwrap();
    let why = load(2).unwrap();
    assert!(why.contains("not that of its certificate; make both anew with `onetrip certificate`"), "{why}");
}

/// Goal: a node that was let in with a key that is lent gets its certificate even if the time is up by then.
#[test]
fn who_may_issue_when_a_join_begins_may_at_its_end() {
    let authority = Authority::new("test").unwrap();
    let issued = authority.issue(NodeId(1)).unwrap();
    let without = Authority::without_key("test", authority.certificate_pem()).unwrap();
    let tls = Tls::new(without, &issued, "test", NodeId(1)).unwrap();
    let lend = |until| tls.lend(tls.with_key(&authority.key_pem().unwrap()).unwrap(), until);
    assert!(tls.issuer().is_none());
    lend(Instant::now());
    assert!(tls.issuer().is_none(), "the time is up");
    lend(Instant::now() + Duration::from_secs(3600));
    let issuer = tls.issuer().unwrap();
    tls.lent.lock().unwrap().as_mut().unwrap().1 = Instant::now();
    assert!(tls.issuer().is_none());
    issuer.issue_at(NodeId(2), &[]).unwrap();
    tls.with_key(&Authority::new("test").unwrap().key_pem().unwrap()).err().expect("another authority's");
}
