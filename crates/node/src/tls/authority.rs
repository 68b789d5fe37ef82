//! The cluster's certificate authority: it issues the certificates with which nodes prove to each other who they are.
//!
//! Every node has the authority's key (`tls/ca.key`), so that any of them can let a new node join.  A node is trusted
//! with the whole database anyway.
//!
//! Invariants: a node's certificate is for the name [`node_name`] and no other; what `issue` returns has been verified
//! against the authority's own certificate.

use super::{node_name, private_key, provider, read, wrong, CA_CERTIFICATE, CA_KEY};
use crate::error::{Error, Result};
use onetrip_core::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::path::Path;
use time::{Duration, OffsetDateTime};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

const YEAR: Duration = Duration::days(365);
const NODE_YEARS: i32 = 10;
/// Longer than a node's certificate, so that one of those can be renewed without renewing this one.
const CA_YEARS: i32 = 20;

pub struct Authority {
    cluster: String,
    key: KeyPair,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
}

/// A node's certificate and its key, in PEM.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// Makes a new authority, with a key of its own.
    pub fn new(cluster: &str) -> Result<Authority> {
        let key = KeyPair::generate().map_err(|e| wrong("making a key", e))?;
        let mut params = params(cluster);
        (params.not_before, params.not_after) = validity(CA_YEARS);
        let certificate = params.self_signed(&key).map_err(|e| wrong("signing", e))?;
        Ok(Authority {
            cluster: cluster.to_owned(),
            key,
            certificate_pem: certificate.pem(),
            certificate: certificate.into(),
        })
    }

    /// Makes an authority from the contents of `ca.crt` and `ca.key`.
    pub fn from_pem(cluster: &str, certificate: &str, key: &str) -> Result<Authority> {
        let authority = Authority {
            cluster: cluster.to_owned(),
            key: KeyPair::from_pem(key).map_err(|e| wrong("reading the authority's key", e))?,
            certificate: CertificateDer::from_pem_slice(certificate.as_bytes())
                .map_err(|e| wrong("reading the authority's certificate", e))?,
            certificate_pem: certificate.to_owned(),
        };
        // Fails if they do not belong together, or belong to another cluster.
        authority.issue(NodeId(1))?;
        Ok(authority)
    }

    pub fn load(folder: &Path, cluster: &str) -> Result<Authority> {
        let (certificate, key) = (read(&folder.join(CA_CERTIFICATE))?, read(&folder.join(CA_KEY))?);
        Authority::from_pem(cluster, &certificate, &key).map_err(|e| Error::Config {
            file: folder.join(CA_CERTIFICATE),
            why: format!("{e}; if `onetrip certificate --new-authority` was interrupted, run it again"),
        })
    }

    /// Loads the authority in `folder`; if there is none, makes a new one and saves it there.
    pub fn load_or_make(folder: &Path, cluster: &str) -> Result<Authority> {
        let (certificate, key) = (folder.join(CA_CERTIFICATE), folder.join(CA_KEY));
        match (certificate.exists(), key.exists()) {
            (true, true) => Authority::load(folder, cluster),
            (false, false) => {
                let authority = Authority::new(cluster)?;
                std::fs::create_dir_all(folder).map_err(Error::disk(folder, "making it"))?;
                authority.save(folder)?;
                Ok(authority)
            }
            (false, true) => Err(half(&key, CA_CERTIFICATE)),
            (true, false) => Err(half(&certificate, CA_KEY)),
        }
    }

    /// Writes `ca.key` and `ca.crt` into `folder`, which must exist.  A folder with a certificate is complete.
    pub fn save(&self, folder: &Path) -> Result<()> {
        write_private(&folder.join(CA_KEY), &self.key_pem())?;
        write_private(&folder.join(CA_CERTIFICATE), &self.certificate_pem)
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The SHA-256 of the certificate.  It is part of a join token, so that a node that joins recognizes the authority.
    pub fn fingerprint(&self) -> [u8; 32] {
        super::sha256(&self.certificate)
    }

    /// Makes a new key and certificate for `node`.
    pub fn issue(&self, node: NodeId) -> Result<Issued> {
        self.issue_valid(node, validity(NODE_YEARS))
    }

    pub(super) fn issue_valid(&self, node: NodeId, (from, until): (OffsetDateTime, OffsetDateTime)) -> Result<Issued> {
        let name = node_name(node, &self.cluster);
        let key = KeyPair::generate().map_err(|e| wrong("making a key", e))?;
        let mut params = CertificateParams::new([name.clone()]).map_err(|e| wrong("naming a certificate", e))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (from, until);
        let issuer = Issuer::new(self::params(&self.cluster), &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(|e| wrong("signing", e))?;
        verify(certificate.der(), &self.certificate, from)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl Issued {
    /// Writes `node.crt` and `node.key` into `folder`, which must exist.
    pub fn save(&self, folder: &Path) -> Result<()> {
        private_key(&self.key)?;
        write_private(&folder.join(super::NODE_CERTIFICATE), &self.certificate)?;
        write_private(&folder.join(super::NODE_KEY), &self.key)
    }
}

/// Only `file` of an authority is there.  A new authority in its place could destroy one that is in use.
fn half(file: &Path, other: &str) -> Error {
    let why = format!(
        "{other} is missing beside it: put it back; if no node has a certificate of this authority yet, since making \
         it was interrupted, remove this file and run the command again"
    );
    Error::Config { file: file.to_owned(), why }
}

fn params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Onetrip cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Begins a year ago, so that a node whose clock is slow is not shut out.
fn validity(years: i32) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - YEAR, now + YEAR * years)
}

fn verify(certificate: &CertificateDer<'_>, authority: &CertificateDer<'static>, at: OffsetDateTime) -> Result<()> {
    let what = "the authority's key and certificate do not belong together, or belong to another cluster";
    let parsed = rustls::server::ParsedCertificate::try_from(certificate).map_err(|e| wrong(what, e))?;
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.unix_timestamp().max(0) as u64 + 1));
    let algorithms = provider().signature_verification_algorithms.all;
    rustls::client::verify_server_cert_signed_by_trust_anchor(&parsed, &super::roots(authority)?, &[], at, algorithms)
        .map_err(|e| wrong(what, e))
}

/// Only its owner can read it.
fn write_private(file: &Path, text: &str) -> Result<()> {
    crate::disk::replace_file(file, text, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_comes_back_from_its_files_and_issues_what_the_old_one_vouches_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::new("orders").unwrap();
        first.save(dir.path()).unwrap();
        let again = Authority::load(dir.path(), "orders").unwrap();
        assert_eq!(again.fingerprint(), first.fingerprint());
        let issued = again.issue(NodeId(7)).unwrap();
        let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        verify(&der, &first.certificate, OffsetDateTime::now_utc()).unwrap();
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(dir.path().join(CA_KEY)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn half_an_authority_is_neither_used_nor_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new/ca");
        let make = || Authority::load_or_make(&folder, "orders").map(|a| a.fingerprint()).map_err(|e| e.to_string());
        let first = make().unwrap();
        assert_eq!(make().unwrap(), first);
        for (lost, there) in [(CA_CERTIFICATE, CA_KEY), (CA_KEY, CA_CERTIFICATE)] {
            let aside = dir.path().join(lost);
            std::fs::rename(folder.join(lost), &aside).unwrap();
            let why = make().unwrap_err();
            assert!(why.contains(&format!("{there}: {lost} is missing beside it")), "{why}");
            std::fs::rename(&aside, folder.join(lost)).unwrap();
            assert_eq!(make().unwrap(), first);
        }
        // As `onetrip certificate --new-authority` leaves it if it is interrupted.
        std::fs::write(folder.join(CA_KEY), Authority::new("orders").unwrap().key_pem()).unwrap();
        let why = make().unwrap_err();
        assert!(why.contains("--new-authority") && why.contains("run it again"), "{why}");
    }

    #[test]
    fn a_key_of_another_authority_or_cluster_is_noticed() {
        let (one, other) = (Authority::new("a").unwrap(), Authority::new("a").unwrap());
        assert!(Authority::from_pem("a", &one.certificate_pem, &other.key_pem()).is_err());
        assert!(Authority::from_pem("b", &one.certificate_pem, &one.key_pem()).is_err());
        assert!(Authority::from_pem("a", "-----BEGIN nothing", &one.key_pem()).is_err());
        assert!(Authority::from_pem("a", &one.certificate_pem, &one.key_pem()).is_ok());
    }
}
