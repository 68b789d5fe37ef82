//! Whom a client of TLS believes: for a node's HTTP port, and for a PostgreSQL.

use std::path::Path;
use std::sync::Arc;

use anyhow::{bail, Context, Result};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    version, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

/// What the certificate of a cluster's authority calls itself (`onetrip_node::tls::Authority`).
const CLUSTER_AUTHORITY: &[u8] = b"Onetrip cluster ";

/// Where systems keep the certificates of the authorities that they believe, the first that is there.
const OF_SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[derive(Clone, Debug)]
pub enum Trust {
    /// Everybody: nobody can listen, but it may be anybody who answers.
    Anybody,
    /// Who has a certificate of these authorities, whatever its name.
    AnyNameOf(Arc<RootCertStore>),
    /// Who has a certificate of these authorities for the name or address that was asked for.
    NameOf(Arc<RootCertStore>),
}

/// A client that shows this certificate, if any.
pub fn client(
    trust: Trust,
    shown: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&version::TLS13])?;
    let builder = match trust {
        Trust::NameOf(roots) => builder.with_root_certificates(roots),
        Trust::AnyNameOf(roots) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NameIgnored { roots: Some(roots), provider }))
        }
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NameIgnored { roots: None, provider }))
        }
    };
    match shown {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).context("use the client's certificate"),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The certificates in a file.
pub fn authorities(file: &Path) -> Result<RootCertStore> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.with_context(|| format!("read {}", file.display()))?;
    let mut roots = RootCertStore::empty();
    // A system's bundle may contain one that is not understood here.
    let (added, _) = roots.add_parsable_certificates(found);
    match added {
        0 => bail!("{} contains no certificate of an authority", file.display()),
        _ => Ok(roots),
    }
}

/// The certificate of a cluster's authority, which signs nodes' certificates only, so that no name has to be compared.
pub fn cluster_authority(file: &Path) -> Result<RootCertStore> {
    let roots = authorities(file)?;
    let is_of_cluster = |subject: &[u8]| subject.windows(CLUSTER_AUTHORITY.len()).any(|part| part == CLUSTER_AUTHORITY);
    match roots.roots.iter().all(|root| is_of_cluster(&root.subject)) {
        true => Ok(roots),
        false => bail!(
            "{} is not the certificate of a cluster's authority (tls/ca.crt of a node); to believe another authority, put its \
             certificate among the system's, or name the file in SSL_CERT_FILE",
            file.display()
        ),
    }
}

/// Those whom this system believes; as OpenSSL does, `SSL_CERT_FILE` names others.
pub fn system_authorities() -> Result<RootCertStore> {
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        return authorities(Path::new(&file));
    }
    match OF_SYSTEM.iter().map(Path::new).find(|file| file.exists()) {
        Some(file) => authorities(file),
        None => bail!("this system has no file with the authorities that it believes: name one in SSL_CERT_FILE"),
    }
}

#[derive(Debug)]
struct NameIgnored {
    roots: Option<Arc<RootCertStore>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NameIgnored {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
