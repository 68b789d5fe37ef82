//! How a new node becomes a member: it shows a token at the peer port of any member, and gets all that it needs to
//! start.
//!
//! The connection is TLS, pinned to the authority that the token names; the new node has no certificate yet.  A token
//! lets one node in.  A node whose join was interrupted asks again with the same token, for the same region and
//! address, and gets another id.  The member that the first answer made is then removed; if that member runs or votes
//! by now, the request is refused instead.
//!
//! This module is the new node's side, which runs before there is a node; the member's side is `transport::accept`.

mod token;

pub use token::{JoinToken, NotAToken};

use crate::config::{KeySeed, NodeConfig};
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::tls::{self, Authority, Issued, PeerStream};
use crate::transport::{join_exchange, PeerError, Speaks};
use bytes::Bytes;
use onetrip_core::{Member, Members, RegionId};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::net::TcpStream;

/// What the new node says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinRequest {
    pub region: RegionId,
    /// Where the other members will reach its peer port, `host:port`.
    pub address: String,
    /// The facts of its PostgreSQL; a witness has none.
    pub postgres: Option<Facts>,
}

/// What is wrong with a request, in a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotARequest(String);

impl JoinRequest {
    pub fn check(&self) -> std::result::Result<(), NotARequest> {
        let region = self.region.as_str();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if region.is_empty() || region.len() > 63 || region.starts_with('-') || !region.chars().all(fits) {
            let why = format!("the region's name {region:?} should be 1 to 63 letters, digits, '-' or '_'");
            return Err(NotARequest(why));
        }
        let address = self.address.rsplit_once(':').filter(|(host, port)| {
            !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        address.map(|_| ()).ok_or_else(|| NotARequest(format!("the address {:?} should be host:port", self.address)))
    }
}

/// What the new node gets in answer.
#[derive(Serialize, Deserialize)]
pub struct JoinReply {
    pub member: Member,
    pub cluster: String,
    pub members: Members,
    pub settings: ClusterSettings,
    /// `None` if the cluster's nodes talk without TLS.
    pub tls: Option<JoinTls>,
    /// The certifier's state at some log index, from which the new node starts.
    #[serde(skip)]
    pub checkpoint: Bytes,
}

/// What must be the same in the `node.toml` of all nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    pub window_entries: u64,
    pub sequence_stride: u32,
    pub max_entry_bytes: u64,
    #[serde(default)]
    pub key_seed: KeySeed,
    /// The replicated database.  `None` if a witness has answered, which does not know it.
    pub database: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub struct JoinTls {
    pub ca_certificate: String,
    /// `None`: the authority's key is kept elsewhere.
    pub ca_key: Option<String>,
    pub node: Issued,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Long enough for a large checkpoint over a slow line.
const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// Asks the member at `address` (host:port of its peer port) to let this node in.  The error is meant for the person
/// who has the token.
pub async fn request_join(address: &str, token: &JoinToken, request: JoinRequest) -> Result<JoinReply> {
    request.check().map_err(|why| Error::Join(why.to_string()))?;
    let reply = match ask(address, token, request.clone(), Speaks::OWN).await? {
        // A member of version 12 hangs up without a word.
        Err(first @ PeerError::Io(_)) => match ask(address, token, request, Speaks::only(12)).await {
            Ok(Ok(reply)) => Ok(reply),
            // Its reason may be about this second request alone.
            Ok(Err(PeerError::Refused(why))) => {
                Err(PeerError::Refused(format!("{first}; asked as an earlier release asks, it says: {why}")))
            }
            _ => Err(first),
        },
        other => other,
    };
    let (head, checkpoint) = reply.map_err(|why| Error::Join(format!("{address}: {why}")))?;
    let mut reply = JoinReply::decode(&head)?;
    reply.checkpoint = checkpoint;
    Ok(reply)
}

/// The inner error is one of the exchange, after a connection was made.
async fn ask(
    address: &str,
    token: &JoinToken,
    request: JoinRequest,
    speaks: Speaks,
) -> Result<std::result::Result<(Bytes, Bytes), PeerError>> {
    let connect = async {
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|e| Error::Join(format!("{address} cannot be reached: {e}")))?;
        match token.authority {
            Some(fingerprint) => tls::pinned(stream, fingerprint).await,
            None => Ok(PeerStream::Plain(stream)),
        }
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
    let stream = connected.map_err(|_| Error::Join(format!("{address} does not answer")))??;
    let exchange = tokio::time::timeout(REPLY_TIMEOUT, join_exchange(stream, token.secret, request, speaks)).await;
    Ok(exchange.unwrap_or(Err(PeerError::TimedOut("it does not answer in time"))))
}

impl JoinReply {
    pub(crate) fn decode(head: &[u8]) -> Result<JoinReply> {
        serde_json::from_slice(head).map_err(|e| Error::Join(format!("the answer cannot be read: {e}")))
    }

    /// Encodes all but the checkpoint.
    pub(crate) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("plain data").into()
    }

    /// Makes `tls/` in the new node's folder, if the cluster has certificates.  The checkpoint is there already.
    pub fn write_tls(&self, node: &NodeConfig) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let Some(key) = &tls.ca_key else {
            let authority = Authority::without_key(&self.cluster, &tls.ca_certificate)?;
            return tls::write_folder(&node.data_dir, &authority, &tls.node);
        };
        let authority = Authority::from_pem(&self.cluster, &tls.ca_certificate, key)?;
        // The member that has let it in does not know where it listens.
        let issued = authority.issue_at(node.node, &node.addresses()?)?;
        tls::write_folder(&node.data_dir, &authority, &issued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_no_member_could_use_is_refused() {
        let check = |region: &str, address: &str| {
            JoinRequest { region: region.into(), address: address.into(), postgres: None }.check()
        };
        for address in ["10.0.0.1:7000", "node-4.example:7000", "[::1]:7000"] {
            check("eu-west_1", address).unwrap();
        }
        for address in ["", "host", ":7000", "host:", "host:0", "host:70000", "a b:1"] {
            check("a", address).unwrap_err();
        }
        for region in ["", "a b", "../a", "-a", "x'y", &"x".repeat(64)] {
            check(region, "host:1").unwrap_err();
        }
    }
}
