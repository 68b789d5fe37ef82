//! The cluster's certificate authority: it issues the certificates with which nodes prove to each other who they are.
//!
//! A node that has the authority's key (`tls/ca.key`) can let a new node join.  The key may as well be kept elsewhere,
//! and be lent to a node for as long as a token for a new node is valid.
//!
//! Invariants: a node's certificate is for the name [`node_name`], for addresses, and no other name; what `issue`
//! returns has been verified against the authority's own certificate.

use super::der::not_after;
use super::{node_name, private_key, provider, read, wrong, CA_CERTIFICATE, CA_KEY};
use crate::error::{Error, Result};
use onetrip_core::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
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
    /// `None`: it is kept elsewhere, and nothing can be issued here.
    key: Option<KeyPair>,
    /// In seconds since 1970.
    good_until_s: u64,
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
        Authority::new_valid(cluster, validity(CA_YEARS))
    }

    pub(crate) fn new_valid(cluster: &str, (from, until): (OffsetDateTime, OffsetDateTime)) -> Result<Authority> {
        let key = KeyPair::generate().map_err(|e| wrong("making a key", e))?;
        let mut params = params(cluster);
        (params.not_before, params.not_after) = (from, until);
        let certificate = params.self_signed(&key).map_err(|e| wrong("signing", e))?;
        Authority::of(cluster, certificate.pem(), Some(key))
    }

    fn of(cluster: &str, certificate_pem: String, key: Option<KeyPair>) -> Result<Authority> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|e| wrong("reading the authority's certificate", e))?;
        let good_until_s = not_after(&certificate)
            .ok_or_else(|| Error::Tls("the authority's certificate does not say until when it is valid".into()))?;
        Ok(Authority { cluster: cluster.to_owned(), key, good_until_s, certificate, certificate_pem })
    }

    /// One that can issue nothing, from the contents of `ca.crt`.
    pub fn without_key(cluster: &str, certificate: &str) -> Result<Authority> {
        Authority::of(cluster, certificate.to_owned(), None)
    }

    /// Makes an authority from the contents of `ca.crt` and `ca.key`.
    pub fn from_pem(cluster: &str, certificate: &str, key: &str) -> Result<Authority> {
        let key = KeyPair::from_pem(key).map_err(|e| wrong("reading the authority's key", e))?;
        let authority = Authority::of(cluster, certificate.to_owned(), Some(key))?;
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

    /// What a node has of the authority: its key may be kept elsewhere.
    pub fn load_for_node(folder: &Path, cluster: &str) -> Result<Authority> {
        if Authority::key_is_in(folder) {
            return Authority::load(folder, cluster);
        }
        Authority::of_node(folder, cluster)
    }

    /// The one in whose cluster a node is, without its key.
    pub fn of_node(folder: &Path, cluster: &str) -> Result<Authority> {
        let file = folder.join(CA_CERTIFICATE);
        Authority::without_key(cluster, &read(&file)?).map_err(|e| Error::Config { file, why: e.to_string() })
    }

    /// Whether that folder of a node has the key, of this authority or of an older one.
    pub fn key_is_in(folder: &Path) -> bool {
        folder.join(CA_KEY).exists()
    }

    /// Loads the authority in `folder`; if there is none, makes a new one and saves it there.
    pub fn load_or_make(folder: &Path, cluster: &str) -> Result<Authority> {
        let (certificate, key) = (folder.join(CA_CERTIFICATE), folder.join(CA_KEY));
        let is_there = |file: &Path| file.try_exists().map_err(Error::disk(file, "looking for it"));
        match (is_there(&certificate)?, is_there(&key)?) {
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

    /// Writes `ca.key`, if this has the key, and `ca.crt` into `folder`, which must exist.  A folder with a certificate
    /// is complete.
    pub fn save(&self, folder: &Path) -> Result<()> {
        if let Some(key) = self.key_pem() {
            write_private(&folder.join(CA_KEY), &key)?;
        }
        write_private(&folder.join(CA_CERTIFICATE), &self.certificate_pem)
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn key_pem(&self) -> Option<String> {
        self.key.as_ref().map(KeyPair::serialize_pem)
    }

    /// In seconds since 1970.  Nodes accept each other's certificates also after that; clients of PostgreSQL that check
    /// its certificate do not.
    pub fn good_until_s(&self) -> u64 {
        self.good_until_s
    }

    /// The SHA-256 of the certificate.  It is part of a join token, so that a node that joins recognizes the authority.
    pub fn fingerprint(&self) -> [u8; 32] {
        super::sha256(&self.certificate)
    }

    /// Makes a new key and certificate for `node`.
    pub fn issue(&self, node: NodeId) -> Result<Issued> {
        self.issue_at(node, &[])
    }

    /// The same for clients too, who know the node by these addresses.  To other members they mean nothing.
    pub fn issue_at(&self, node: NodeId, addresses: &[IpAddr]) -> Result<Issued> {
        self.issue_valid(node, addresses, validity(NODE_YEARS))
    }

    pub(super) fn issue_valid(
        &self,
        node: NodeId,
        addresses: &[IpAddr],
        (from, until): (OffsetDateTime, OffsetDateTime),
    ) -> Result<Issued> {
        let name = node_name(node, &self.cluster);
        let key = KeyPair::generate().map_err(|e| wrong("making a key", e))?;
        let addresses: BTreeSet<IpAddr> = addresses.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
        // An address becomes one of the kind that clients compare with addresses.
        let names = [name.clone()].into_iter().chain(addresses.iter().map(IpAddr::to_string));
        let mut params =
            CertificateParams::new(names.collect::<Vec<_>>()).map_err(|e| wrong("naming a certificate", e))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (from, until);
        let Some(authority) = &self.key else {
            return Err(Error::Tls("the authority's key is kept elsewhere, so no certificate can be made here".into()));
        };
        let issuer = Issuer::new(self::params(&self.cluster), authority);
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
    crate::disk::write_private(file, text.as_bytes())
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
        std::fs::write(folder.join(CA_KEY), Authority::new("orders").unwrap().key_pem().unwrap()).unwrap();
        let why = make().unwrap_err();
        assert!(why.contains("--new-authority") && why.contains("run it again"), "{why}");
    }

    #[test]
    fn a_key_of_another_authority_or_cluster_is_noticed() {
        let (one, other) = (Authority::new("a").unwrap(), Authority::new("a").unwrap());
        assert!(Authority::from_pem("a", &one.certificate_pem, &other.key_pem().unwrap()).is_err());
        assert!(Authority::from_pem("b", &one.certificate_pem, &one.key_pem().unwrap()).is_err());
        assert!(Authority::from_pem("a", "-----BEGIN nothing", &one.key_pem().unwrap()).is_err());
        assert!(Authority::from_pem("a", &one.certificate_pem, &one.key_pem().unwrap()).is_ok());
    }

    #[test]
    fn the_end_of_an_authority_is_read_from_its_certificate() {
        let at = |s| OffsetDateTime::from_unix_timestamp(s).unwrap();
        for until in [1_800_000_000, 2_524_607_999, 2_524_608_000, 4_102_444_800] {
            let made = Authority::new_valid("a", (at(1_700_000_000), at(until))).unwrap();
            assert_eq!(made.good_until_s(), until as u64);
            let read = Authority::without_key("a", made.certificate_pem()).unwrap();
            assert_eq!((read.good_until_s(), read.fingerprint()), (until as u64, made.fingerprint()));
            for len in 0..made.certificate.len() {
                // It may be cut behind what is read.
                let _ = not_after(&made.certificate[..len]);
            }
        }
    }

    #[test]
    fn a_node_without_the_key_issues_nothing_and_keeps_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let whole = Authority::new("a").unwrap();
        Authority::without_key("a", whole.certificate_pem()).unwrap().save(dir.path()).unwrap();
        assert!(!dir.path().join(CA_KEY).exists());
        let node = Authority::load_for_node(dir.path(), "a").unwrap();
        assert_eq!((node.fingerprint(), node.key_pem()), (whole.fingerprint(), None));
        assert!(node.issue(NodeId(1)).err().unwrap().to_string().contains("kept elsewhere"));
        whole.save(dir.path()).unwrap();
        assert!(Authority::load_for_node(dir.path(), "a").unwrap().issue(NodeId(1)).is_ok());
    }
}
