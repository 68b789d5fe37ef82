//! Streams between a peer and this node's PostgreSQL, for base backups.
//!
//! They are for members only.  A member is trusted with the server as its OS user is: the stream ends at the server's
//! Unix socket.  The emulated WAN does not delay these streams.

use super::error::{PeerError, Result};
use super::frame::Purpose;
use super::link::{self, Link};
use super::Transport;
use crate::tls::PeerStream;
use onetrip_core::NodeId;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

pub(super) const TUNNELS_MAX: usize = 16;
/// Longer than for a link, since either end may be busy with its disk.
const SILENCE_MAX: Duration = Duration::from_secs(120);
const BUFFER_BYTES: usize = 128 << 10;

/// A connection to this node's server, made before the peer that asks for it is welcomed.
pub(super) struct Tunnel {
    server: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Transport {
    /// A stream to the PostgreSQL of `peer`, as if its superuser had connected to the Unix socket there.
    pub async fn postgres_tunnel(&self, peer: NodeId) -> io::Result<PeerStream> {
        let link = self.link(peer).ok_or_else(|| io::Error::other(format!("node {peer} is no member")))?;
        let stream = link::dial(self, &link, Purpose::Postgres).await.map_err(io::Error::other)?;
        link::set_silence(stream.tcp(), SILENCE_MAX)?;
        Ok(stream)
    }

    /// The error is sent to the peer that asks.
    pub(super) async fn open_tunnel(&self) -> Result<Tunnel> {
        let refused = PeerError::Refused;
        let socket = self.postgres_socket.as_ref();
        let socket = socket.ok_or_else(|| refused(format!("node {} runs no PostgreSQL", self.me)))?;
        let place = self.tunnels.clone().try_acquire_owned();
        let place = place.map_err(|_| refused(format!("{TUNNELS_MAX} streams to its PostgreSQL are open already")))?;
        let server = UnixStream::connect(socket).await;
        let server = server.map_err(|e| refused(format!("its PostgreSQL does not answer: {e}")))?;
        Ok(Tunnel { server, _place: place })
    }

    pub(super) async fn forward(&self, link: &Arc<Link>, mut stream: PeerStream, mut tunnel: Tunnel) {
        tracing::info!(peer = %link.id, "peer connected to this node's PostgreSQL");
        let _ = link::set_silence(stream.tcp(), SILENCE_MAX);
        let both =
            tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut tunnel.server, BUFFER_BYTES, BUFFER_BYTES);
        tokio::select! {
            // An error ends the stream as well, and both ends of it notice that.
            _ = both => {}
            () = link.removed() => {}
        }
    }
}
