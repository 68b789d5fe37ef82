//! What proves an identity: TLS records, and certificates that come from a peer or are in files.

use crate::tls::{node_name, Authority, Issued, Pinned, Tls};
use onetrip_core::NodeId;
use std::io::{self, Read};
use std::sync::OnceLock;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConnection, Connection, ServerConnection};

/// The certificates of a cluster "test" that has never existed.  They are fixed, so that an input always has the same
/// effect.
const CA: [&str; 2] = [
    include_str!("../../../../testdata/certificates/ca.crt"),
    include_str!("../../../../testdata/certificates/ca.key"),
];
const NODE: [&str; 2] = [
    include_str!("../../../../testdata/certificates/node.crt"),
    include_str!("../../../../testdata/certificates/node.key"),
];
const ME: NodeId = NodeId(1);

fn authority() -> Authority {
    Authority::from_pem("test", CA[0], CA[1]).expect("its own")
}

fn issued() -> Issued {
    Issued { certificate: NODE[0].into(), key: NODE[1].into() }
}

fn tls() -> &'static Tls {
    static MADE: OnceLock<Tls> = OnceLock::new();
    MADE.get_or_init(|| Tls::new(authority(), &issued(), "test", ME).expect("its own"))
}

/// TLS records from a stranger, to a node that accepts a connection and to one that opens it.
pub(super) fn records(bytes: &[u8]) {
    let server = ServerConnection::new(tls().server_config()).expect("it has worked before");
    take_records(server.into(), bytes);
    take_records(client().into(), bytes);
}

fn client() -> ClientConnection {
    let name = ServerName::try_from(node_name(ME, "test")).expect("a valid name");
    ClientConnection::new(tls().client_config(), name).expect("it has worked before")
}

fn take_records(mut connection: Connection, mut bytes: &[u8]) {
    let _ = connection.write_tls(&mut io::sink());
    while connection.read_tls(&mut bytes).is_ok_and(|n| n > 0) && connection.process_new_packets().is_ok() {
        let _ = connection.reader().read(&mut [0; 4096]);
        let _ = connection.write_tls(&mut io::sink());
    }
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let mut hello = Vec::new();
    client().write_tls(&mut hello).expect("writing to memory");
    let mut server = ServerConnection::new(tls().server_config()).expect("it has worked before");
    server.read_tls(&mut &hello[..]).expect("reading from memory");
    server.process_new_packets().expect("a good hello");
    let mut answer = Vec::new();
    server.write_tls(&mut answer).expect("writing to memory");
    vec![hello, answer]
}

/// A peer's certificate, as the TLS handshake passes it on to be checked.
pub(super) fn peer_certificates(bytes: &[u8]) {
    let certificate = CertificateDer::from(bytes);
    let [authority] = der([CA[0]]);
    let _ = tls().check_certificate(&certificate, ME);
    let pinned = Pinned::new(tls().authority().fingerprint());
    let name = ServerName::try_from("node").expect("a valid name");
    let now = UnixTime::now();
    let _ = pinned.verify_server_cert(&certificate, &[authority], &name, &[], now);
    // Here the token names the bytes as the authority, so they pass that check and are read further.
    let pinned = Pinned::new(crate::tls::sha256(bytes));
    let [node] = der([NODE[0]]);
    let _ = pinned.verify_server_cert(&node, &[certificate], &name, &[], now);
}

pub(super) fn peer_certificate_seeds() -> Vec<Vec<u8>> {
    der([CA[0], NODE[0]]).map(|c| c.to_vec()).to_vec()
}

fn der<const N: usize>(pem: [&str; N]) -> [CertificateDer<'static>; N] {
    pem.map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).expect("its own"))
}

/// The files in `tls/`, and what a join reply brings.  The first half of the input is the certificate, the second half
/// the key.
pub(super) fn certificate_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let half = text.char_indices().map(|(i, _)| i).nth(text.chars().count() / 2).unwrap_or(0);
    let (certificate, key) = text.split_at(half);
    let _ = Authority::from_pem("test", certificate, key);
    let issued = Issued { certificate: certificate.to_owned(), key: key.to_owned() };
    let _ = Tls::new(authority(), &issued, "test", ME);
}

pub(super) fn certificate_file_seeds() -> Vec<Vec<u8>> {
    [CA, NODE].map(|pair| pair.concat().into_bytes()).to_vec()
}
