//! Where a data folder is copied from: another member's PostgreSQL, reached through a Unix socket of this node.
//!
//! `pg_basebackup` can only connect to a server.  So this node listens on a socket that only its own user (and root)
//! can use, and forwards each connection to the donor.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use onetrip_core::{LogIndex, NodeId, RegionId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::{file_error, PostgresError};

/// The port in the socket's name.  The port of a real server is higher, so the two sockets do not clash in one folder.
pub(super) const DOOR_PORT: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Donor {
    pub node: NodeId,
    pub region: RegionId,
}

pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The other members, as sources for a copy of their PostgreSQL.
pub trait Donors: Send + Sync + 'static {
    /// The members that can be copied now, the best first; or why there are none.  `at_least` is what the copy must
    /// show, if there is an order.
    fn choose(&self, at_least: Option<LogIndex>) -> Boxed<'_, Result<Vec<Donor>, String>>;
    /// A connection to that member's PostgreSQL, as through its own Unix socket.
    fn connect(&self, donor: NodeId) -> Boxed<'_, io::Result<Box<dyn Stream>>>;
}

/// A socket in `folder` that leads to the donor's PostgreSQL for as long as this lives.
pub(super) struct Door {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Door {
    pub fn open(folder: &Path, donors: Arc<dyn Donors>, donor: NodeId) -> Result<Door, PostgresError> {
        let path = folder.join(format!(".s.PGSQL.{DOOR_PORT}"));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(file_error("listen on", &path))?;
        // Whoever can connect is a superuser on the donor.  Until the next line, the mode of the folder keeps others
        // out, and a connection that another user made before it is refused below.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(file_error("protect", &path))?;
        let accept = async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                if !is_own_user(&near) {
                    continue;
                }
                let donors = Arc::clone(&donors);
                connections.spawn(async move { hand_on(near, &*donors, donor).await }.in_current_span());
                // Drops those that have ended.
                while connections.try_join_next().is_some() {}
            }
        };
        let task = tokio::spawn(accept.in_current_span());
        Ok(Door { path, task })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the other end runs as this user or as root.
pub fn is_own_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw())
}

async fn hand_on(mut near: UnixStream, donors: &dyn Donors, donor: NodeId) {
    match donors.connect(donor).await {
        Ok(mut far) => {
            // If the connection breaks, pg_basebackup says so.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
        Err(e) => tracing::warn!(%donor, "cannot reach the PostgreSQL to copy: {e}"),
    }
}
