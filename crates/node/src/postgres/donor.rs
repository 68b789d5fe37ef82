//! Where a data folder is copied from: another member's PostgreSQL, reached through a Unix socket of this node.
//!
//! `pg_basebackup` can only dial; so this side listens where nobody but this user gets in, and hands every connection on.

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

/// The port in the socket's name; a real server's is higher, so the two never meet in one folder.
pub(super) const DOOR_PORT: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Donor {
    pub node: NodeId,
    pub region: RegionId,
    /// What its PostgreSQL showed when it was chosen.
    pub shows: LogIndex,
}

pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The other members, as far as a copy of their PostgreSQL goes.
pub trait Donors: Send + Sync + 'static {
    /// Who can be copied now, the best first; or why nobody can.  `at_least`: what has been ordered, if it has.
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
        // Whoever gets in is a superuser there.  Until this line the folder's own mode keeps others out, and a connection
        // made before it is not accepted from another user either.
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
                // Those that have ended.
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

/// Whether the other end belongs to this user or to root.
pub fn is_own_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw())
}

async fn hand_on(mut near: UnixStream, donors: &dyn Donors, donor: NodeId) {
    match donors.connect(donor).await {
        Ok(mut far) => {
            // An end of the connection is pg_basebackup's to explain.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
        Err(e) => tracing::warn!(%donor, "cannot reach the PostgreSQL to copy: {e}"),
    }
}
