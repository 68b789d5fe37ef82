//! TLS for a node that joins: it has no certificate yet, and knows only the fingerprint of the cluster's authority.

use super::{provider, roots, sha256, wrong, PeerStream};
use crate::error::Result;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    version, CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme,
};
use tokio_rustls::TlsConnector;

/// Connects to any node whose certificate was signed by the authority with this fingerprint.
pub async fn pinned(stream: TcpStream, fingerprint: [u8; 32]) -> Result<PeerStream> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|e| wrong("preparing TLS", e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned::new(fingerprint)))
        .with_no_client_auth();
    // The authority signs nothing but nodes' certificates, so any name that it signed will do; the name given here is
    // never checked.
    let name = ServerName::try_from("node").expect("a valid name");
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let tls = tls.map_err(|e| wrong("the node there does not belong to the cluster that this token is for", e))?;
    Ok(PeerStream::Tls(Box::new(tls.into())))
}

#[derive(Debug)]
pub(crate) struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    pub(crate) fn new(fingerprint: [u8; 32]) -> Pinned {
        Pinned { fingerprint, provider: provider() }
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let authority = intermediates.iter().find(|c| sha256(c) == self.fingerprint);
        let authority = authority.ok_or(TlsError::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let roots = roots(&authority.clone().into_owned())
            .map_err(|_| TlsError::InvalidCertificate(CertificateError::BadEncoding))?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &roots,
            &[],
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
