//! TLS of the HTTP port: with the node's own certificate, or with one that its clients know.
//!
//! Clients show no certificate here; who may ask is decided by the token (`crate::access`).

use super::der::not_after;
use super::{provider, wrong, FOLDER, NODE_CERTIFICATE, NODE_KEY};
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{version, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// What the HTTP port shows to those who connect now.
pub struct HttpTls(RwLock<Option<Shown>>);

#[derive(Clone)]
struct Shown {
    acceptor: TlsAcceptor,
    /// In seconds since 1970; `None`: it is the node's certificate.
    good_until_s: Option<u64>,
}

impl HttpTls {
    /// Reads the certificate, if the HTTP port of this node is to have one.
    pub fn of(config: &NodeConfig) -> Result<HttpTls> {
        Ok(HttpTls(RwLock::new(shown(config)?)))
    }

    #[cfg(test)]
    pub(crate) fn none() -> HttpTls {
        HttpTls(RwLock::new(None))
    }

    /// New connections use what the files contain now; those that are open stay as they are.
    pub fn reload(&self, config: &NodeConfig) -> Result<()> {
        let new = shown(config)?;
        *self.0.write().expect("no code that holds this lock panics") = new;
        Ok(())
    }

    /// `None`: the port speaks no TLS.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        self.shown().map(|shown| shown.acceptor)
    }

    /// Until when clients accept a certificate that is the port's own.
    pub fn good_until_s(&self) -> Option<u64> {
        self.shown().and_then(|shown| shown.good_until_s)
    }

    fn shown(&self) -> Option<Shown> {
        self.0.read().expect("no code that holds this lock panics").clone()
    }
}

fn shown(config: &NodeConfig) -> Result<Option<Shown>> {
    if !config.http_tls {
        return Ok(None);
    }
    let own = config.http_certificate.clone().zip(config.http_key.clone());
    let is_own = own.is_some();
    let (certificate, key) = own.unwrap_or_else(|| {
        let file = |name: &str| -> PathBuf { config.data_dir.join(FOLDER).join(name) };
        (file(NODE_CERTIFICATE), file(NODE_KEY))
    });
    let of = |file: &Path, why: String| Error::Config { file: file.to_owned(), why };
    let text = |file: &Path| {
        std::fs::read_to_string(file)
            .map_err(|e| of(file, format!("of the HTTP port (`http_tls`): cannot be read: {e}")))
    };
    let chain: Vec<CertificateDer> = CertificateDer::pem_slice_iter(text(&certificate)?.as_bytes())
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| of(&certificate, format!("is no certificate in PEM: {e}")))?;
    let first = chain.first().ok_or_else(|| of(&certificate, "contains no certificate in PEM".into()))?;
    let good_until_s = if is_own { not_after(first) } else { None };
    let key_pem = text(&key)?;
    check_mode(&key)?;
    let private = PrivateKeyDer::from_pem_slice(key_pem.as_bytes());
    let private = private.map_err(|e| of(&key, format!("is no key in PEM: {e}")))?;
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|e| wrong("preparing TLS", e))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| of(&key, format!("cannot be used with {}: {e}", certificate.display())))?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Shown { acceptor: TlsAcceptor::from(Arc::new(server)), good_until_s }))
}

/// A group may read it, as where many services share one certificate.
fn check_mode(key: &Path) -> Result<()> {
    let wrong = |why: String| Error::Config { file: key.to_owned(), why };
    let mode = std::fs::metadata(key).map_err(|e| wrong(format!("cannot be read: {e}")))?.permissions().mode();
    match mode & 0o027 {
        0 => Ok(()),
        _ => Err(wrong(format!(
            "others can read or change the key of the HTTP port's certificate (mode {:03o}): make it `chmod 600` or 640",
            mode & 0o777
        ))),
    }
}
