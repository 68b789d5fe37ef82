//! Who may talk on the peer port: mutual TLS 1.3 with certificates of the cluster's own authority.
//!
//! | file in `tls/` | |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority, the same on all nodes; the key may be kept elsewhere |
//! | `node.crt`, `node.key` | this node's own, for the name `node-<id>.<cluster>` |
//!
//! The HTTP port may speak TLS too ([`HttpTls`]), where clients need no certificate.
//!
//! Invariants:
//! - No peer counts as a member without a certificate that this authority signed for that member's name.
//! - Both ends prove who they are on every connection: no session is resumed.

mod authority;
mod der;
mod http;
mod pinned;
mod stream;
#[cfg(test)]
mod tests;

pub use authority::{Authority, Issued};
pub use der::end_point;
pub use http::HttpTls;
pub use pinned::pinned;
#[cfg(feature = "lab")]
pub(crate) use pinned::Pinned;
pub use stream::{PeerSocket, PeerStream};
#[cfg(test)]
pub(crate) use tests::{expired, test_acceptor, test_client};

use crate::error::{Error, Result};
use onetrip_core::NodeId;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, version, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The folder of these files in a node's folder.
pub const FOLDER: &str = "tls";
const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
pub(crate) const NODE_CERTIFICATE: &str = "node.crt";
pub(crate) const NODE_KEY: &str = "node.key";

/// Why the other end of a connection does not count as the member it should be, in words for the operators of both
/// ends.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotTrusted(pub(crate) String);

/// A node whose certificate is valid for less than this when it starts logs a warning.
pub(crate) const EXPIRES_SOON: Duration = Duration::from_secs(90 * 86_400);

/// What one node needs to dial and to accept.
pub struct Tls {
    cluster: String,
    authority: Arc<Authority>,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    /// In seconds since 1970: until when peers accept this node's certificate.
    good_until_s: u64,
    /// The authority with its key, if an operator has lent it, and until when.
    lent: Mutex<Option<(Arc<Authority>, Instant)>>,
}

/// The name in a node's certificate.
pub fn node_name(node: NodeId, cluster: &str) -> String {
    format!("node-{node}.{cluster}")
}

/// The error says why this cluster's name cannot be part of the name in a certificate.
pub fn check_cluster_name(cluster: &str) -> std::result::Result<(), String> {
    match ServerName::try_from(node_name(NodeId(u32::MAX), cluster)) {
        Ok(ServerName::DnsName(_)) => Ok(()),
        _ => Err(format!(
            "`cluster` is \"{cluster}\", which cannot be used in a certificate: use letters, digits, '-' and '.', and not digits alone"
        )),
    }
}

/// Creates `tls/` in a node's folder, with all four files, or without `ca.key` if `authority` has no key.
pub fn write_folder(node_folder: &Path, authority: &Authority, issued: &Issued) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = node_folder.join(FOLDER);
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(Error::disk(&folder, "making it"))?;
    authority.save(&folder)?;
    issued.save(&folder)
}

impl Tls {
    /// Reads the files in `folder`, and checks that the certificate is `me`'s and valid now.
    pub fn load(folder: &Path, cluster: &str, me: NodeId) -> Result<Tls> {
        let authority = Authority::load_for_node(folder, cluster)?;
        let file = folder.join(NODE_CERTIFICATE);
        let issued = Issued { certificate: read(&file)?, key: read(&folder.join(NODE_KEY))? };
        Tls::new(authority, &issued, cluster, me).map_err(|e| Error::Config { file, why: e.to_string() })
    }

    pub fn new(authority: Authority, issued: &Issued, cluster: &str, me: NodeId) -> Result<Tls> {
        let ca = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes());
        let ca = ca.map_err(|e| wrong("reading the authority's certificate", e))?;
        let own = CertificateDer::from_pem_slice(issued.certificate.as_bytes());
        let own = own.map_err(|e| wrong("reading the node's certificate", e))?;
        let roots = Arc::new(roots(&ca)?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            // A node that wants to join has no certificate yet; a hello without one is refused.
            .allow_unauthenticated()
            .build()
            .map_err(|e| wrong("preparing TLS", e))?;
        use tokio_rustls::rustls::client::danger::ServerCertVerifier;
        let servers = tokio_rustls::rustls::client::WebPkiServerVerifier::builder_with_provider(roots, provider());
        let servers = servers.build().map_err(|e| wrong("preparing TLS", e))?;
        let name = server_name(me, cluster)?;
        let now = UnixTime::now();
        servers.verify_server_cert(&own, &[], &name, &[], now).map_err(|e| wrong("the node's certificate", e))?;
        let is_good_at = |s: u64| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(s));
            servers.verify_server_cert(&own, &[], &name, &[], at).is_ok()
        };
        let good_until_s = last_second(now.as_secs(), is_good_at);
        if good_until_s < now.as_secs() + EXPIRES_SOON.as_secs() {
            tracing::warn!(
                "the node's certificate expires in less than {} days: renew it with `onetrip certificate`",
                EXPIRES_SOON.as_secs() / 86_400
            );
        }
        if authority.good_until_s() < now.as_secs() + EXPIRES_SOON.as_secs() {
            tracing::warn!(
                "the certificate of the cluster's authority expires in less than {} days, or has: make a new one with \
                 `onetrip certificate --new-authority`",
                EXPIRES_SOON.as_secs() / 86_400
            );
        }

        // The authority's certificate is sent along, since a joining node knows only its fingerprint.
        let chain = vec![own, ca];
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| wrong("preparing TLS", e))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), private_key(&issued.key)?)
            .map_err(key_is_wrong)?;
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| wrong("preparing TLS", e))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, private_key(&issued.key)?)
            .map_err(key_is_wrong)?;
        client.resumption = Resumption::disabled();
        Ok(Tls {
            cluster: cluster.to_owned(),
            authority: Arc::new(authority),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
            good_until_s,
            lent: Mutex::default(),
        })
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The authority with this key of it.  The error says why it is not this authority's.
    pub fn with_key(&self, key: &str) -> Result<Authority> {
        Authority::from_pem(&self.cluster, self.authority.certificate_pem(), key)
    }

    /// Lends the authority's key to this node until then.
    pub fn lend(&self, whole: Authority, until: Instant) {
        let mut lent = self.lent.lock().expect("no code that holds this lock panics");
        let until = lent.take().map_or(until, |(_, other)| other.max(until));
        *lent = Some((Arc::new(whole), until));
    }

    /// Whatever key was lent before goes on being lent, if it is this authority's.
    pub(crate) fn take_lent(&self, before: &Tls) {
        let lent = before.lent.lock().expect("no code that holds this lock panics").take();
        let own = lent.filter(|(whole, _)| whole.fingerprint() == self.authority.fingerprint());
        *self.lent.lock().expect("no code that holds this lock panics") = own;
    }

    /// The authority, if this node has its key or is lent it now.  Whoever has this can issue certificates even if the
    /// time for which the key is lent is up meanwhile.
    pub fn issuer(&self) -> Option<Arc<Authority>> {
        let mut lent = self.lent.lock().expect("no code that holds this lock panics");
        lent.take_if(|(_, until)| Instant::now() >= *until);
        let own = || self.authority.key_pem().map(|_| self.authority.clone());
        lent.as_ref().map(|(whole, _)| whole.clone()).or_else(own)
    }

    pub fn good_until_s(&self) -> u64 {
        self.good_until_s
    }

    #[cfg(feature = "lab")]
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(self.acceptor.config())
    }

    #[cfg(feature = "lab")]
    pub(crate) fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(self.connector.config())
    }

    /// The server's side of a handshake.  The error says what the caller did wrong.
    pub async fn accept(&self, stream: TcpStream) -> std::result::Result<PeerStream, NotTrusted> {
        let tls = self.acceptor.accept(stream).await.map_err(explain)?;
        Ok(PeerStream::Tls(Box::new(tls.into())))
    }

    pub async fn connect(&self, stream: TcpStream, to: NodeId) -> std::result::Result<PeerStream, NotTrusted> {
        let name = server_name(to, &self.cluster).map_err(|e| NotTrusted(e.to_string()))?;
        let tls = self.connector.connect(name, stream).await.map_err(explain)?;
        Ok(PeerStream::Tls(Box::new(tls.into())))
    }

    /// Checks that the other end of `stream` has proved that it is `node`.
    pub fn check_peer(&self, stream: &PeerStream, node: NodeId) -> std::result::Result<(), NotTrusted> {
        let certificate = match stream {
            PeerStream::Tls(tls) => tls.get_ref().1.peer_certificates().and_then(|chain| chain.first()),
            PeerStream::Plain(_) => None,
        };
        self.check_certificate(certificate.ok_or_else(|| NotTrusted("it shows no certificate".into()))?, node)
    }

    pub(crate) fn check_certificate(
        &self,
        certificate: &CertificateDer<'_>,
        node: NodeId,
    ) -> std::result::Result<(), NotTrusted> {
        let parsed = ParsedCertificate::try_from(certificate).map_err(|e| NotTrusted(e.to_string()))?;
        let name = server_name(node, &self.cluster).map_err(|e| NotTrusted(e.to_string()))?;
        tokio_rustls::rustls::client::verify_server_name(&parsed, &name).map_err(|e| {
            let name = name.to_str();
            NotTrusted(format!("it calls itself node {node}, but its certificate is not for {name}: {e}"))
        })
    }
}

/// The last second in which a certificate that is good `now` is still good, as those see it who verify it.
fn last_second(now: u64, is_good_at: impl Fn(u64) -> bool) -> u64 {
    let (mut good, mut bad) = (now, now + 100 * 365 * 86_400);
    while bad - good > 1 {
        let between = good + (bad - good) / 2;
        match is_good_at(between) {
            true => good = between,
            false => bad = between,
        }
    }
    good
}

fn server_name(node: NodeId, cluster: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(node_name(node, cluster)).map_err(|e| wrong("the cluster's name in a certificate", e))
}

fn explain(e: std::io::Error) -> NotTrusted {
    let hint = match e.to_string() {
        text if text.contains("corrupt message") => " (is `tls` the same in both nodes' node.toml?)",
        text if text.contains("eof") => " (it ended the handshake: see its log)",
        _ => "",
    };
    NotTrusted(format!("TLS: {e}{hint}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::ring::default_provider())
}

fn roots(authority: &CertificateDer<'static>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(|e| wrong("the authority's certificate", e))?;
    Ok(roots)
}

fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| wrong("reading the node's key", e))
}

/// If it is not the certificate's, replacing the two may have been interrupted.
fn key_is_wrong(e: rustls::Error) -> Error {
    let what = match e {
        rustls::Error::InconsistentKeys(_) => {
            "the node's key is not that of its certificate; make both anew with `onetrip certificate`"
        }
        _ => "the node's key",
    };
    wrong(what, e)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| Error::Config {
        file: file.to_owned(),
        why: format!(
            "cannot be read: {e}; `onetrip init` and `onetrip join` create it; `tls = false` in node.toml turns TLS off"
        ),
    })
}

fn wrong(what: &str, e: impl std::fmt::Display) -> Error {
    Error::Tls(format!("{what}: {e}"))
}
