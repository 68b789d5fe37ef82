//! Makes a node's data folder anew: copies the PostgreSQL of another member, which goes on running.
//!
//! Invariant: the old folder stays in its place until the copy is whole, and only then the copy replaces it.  What
//! belongs to the operator of this node (settings, who may connect) stays as it was here.

use std::fs;
use std::io;
use std::sync::Arc;

use onetrip_core::{LogIndex, NodeId, RegionId};
use serde::Serialize;
use tokio::sync::watch;

use super::donor::{Donors, Door, DOOR_PORT};
use super::{file_error, remove_folder, BaseBackup, CopyProgress, PostgresError, RebuildFrom, Server};

/// Files that stay this node's own, whichever member its rows are copied from.
const OPERATORS_FILES: [&str; 4] = ["postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"];

/// A file in the node's folder.  Its modification time says when PostgreSQL was last copied because it could not apply
/// an entry.
pub const HEALED_FILE: &str = "healed";

/// The orders to make the data folder anew, and the members from which it can be copied.
#[derive(Clone)]
pub struct Rebuild {
    pub orders: watch::Receiver<Option<RebuildFrom>>,
    pub donors: Arc<dyn Donors>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyState {
    pub node: NodeId,
    pub region: RegionId,
    #[serde(flatten)]
    pub progress: CopyProgress,
}

/// Copies from the first donor from which that succeeds.  The copy shows at least the log index that is returned.
pub(super) async fn copy(
    server: &Server,
    donors: &Arc<dyn Donors>,
    order: Option<RebuildFrom>,
    mut report: impl FnMut(CopyState),
) -> Result<LogIndex, PostgresError> {
    let candidates = donors.choose(order.map(|order| order.at_least)).await.map_err(PostgresError::Refused)?;
    let mut last_error = None;
    for donor in candidates {
        tracing::info!(donor = %donor.node, donor_region = %donor.region, "copying PostgreSQL's folder");
        let mut state = CopyState {
            node: donor.node,
            region: donor.region.clone(),
            progress: CopyProgress { done_kb: 0, total_kb: 0 },
        };
        report(state.clone());
        let door = Door::open(&server.node_folder, Arc::clone(donors), donor.node)?;
        let backup = BaseBackup {
            bin_dir: server.bin_dir.clone(),
            socket_dir: server.node_folder.clone(),
            port: DOOR_PORT,
            to: server.unfinished(),
        };
        let copied = backup
            .run(|progress| {
                state.progress = progress;
                report(state.clone());
            })
            .await;
        drop(door);
        match copied {
            Ok(()) => {
                let server = server.clone();
                let keep_old = order.is_some_and(|order| order.keep_old);
                // Removing a large folder takes a while.
                let span = tracing::Span::current();
                let swapped = tokio::task::spawn_blocking(move || span.in_scope(|| swap(&server, keep_old))).await;
                swapped.map_err(|e| PostgresError::Refused(format!("putting the copy in its place failed: {e}")))??;
                return Ok(donor.shows);
            }
            Err(e) => {
                tracing::warn!(donor = %donor.node, "cannot copy PostgreSQL's folder: {e}");
                last_error = Some((donor, e));
            }
        }
    }
    Err(match last_error {
        Some((donor, e)) => PostgresError::Refused(format!(
            "cannot copy the PostgreSQL of node {} in {}: {e}",
            donor.node, donor.region
        )),
        None => PostgresError::Refused("no member's PostgreSQL can be copied".into()),
    })
}

/// Puts the new folder in the place of the old one.  An old folder that is kept stays until another one is kept.
fn swap(server: &Server, keep_old: bool) -> Result<(), PostgresError> {
    let (data, new) = (server.data(), server.unfinished());
    let (old, kept) = (server.node_folder.join("postgres.old"), server.node_folder.join("postgres.kept"));
    if !data.exists() && old.exists() {
        // A crash came between the two renames below.
        fs::rename(&old, &data).map_err(file_error("rename", &old))?;
    }
    remove_folder(&old)?;
    for name in OPERATORS_FILES {
        let (own, copy) = (data.join(name), new.join(name));
        if own.is_file() {
            fs::copy(&own, &copy).map_err(file_error("copy", &own))?;
            fs::File::open(&copy).and_then(|f| f.sync_all()).map_err(file_error("sync", &copy))?;
        }
    }
    sync_folder(&new)?;
    match fs::rename(&data, &old) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(file_error("rename", &data)(e)),
        _ => {}
    }
    fs::rename(&new, &data).map_err(file_error("rename", &new))?;
    sync_folder(&server.node_folder)?;
    if keep_old && old.exists() {
        remove_folder(&kept)?;
        fs::rename(&old, &kept).map_err(file_error("rename", &old))?;
        sync_folder(&server.node_folder)?;
        tracing::warn!("the data folder of the PostgreSQL that could not apply an entry is kept: {}", kept.display());
    }
    if keep_old {
        write_healed(server);
        return Ok(());
    }
    // The copy is in its place; what is left of the old folder does no harm but take room until the next copy.
    if let Err(e) = remove_folder(&old) {
        tracing::warn!("{e}");
    }
    Ok(())
}

/// Notes that PostgreSQL was copied now ([`HEALED_FILE`]).  This is done only once the copy is in its place, so that a
/// copy that a restart of the node cut short does not count, nor does an order that was withdrawn because the old
/// server got further by itself.
fn write_healed(server: &Server) {
    let file = server.node_folder.join(HEALED_FILE);
    if let Err(e) = fs::write(&file, "PostgreSQL was copied when this file was written\n") {
        tracing::warn!("cannot write {}, so PostgreSQL may be copied more than once an hour: {e}", file.display());
    }
}

/// A rename is durable once its folder is synced.
pub fn sync_folder(folder: &std::path::Path) -> Result<(), PostgresError> {
    fs::File::open(folder).and_then(|f| f.sync_all()).map_err(file_error("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(node_folder: &std::path::Path) -> Server {
        Server {
            node_folder: node_folder.into(),
            bin_dir: "/bin".into(),
            listen: "127.0.0.1".into(),
            port: 5433,
            database: "onetrip".into(),
            node_id: 2,
            region: "us-east-2".into(),
            sequence_slot: 1,
            sequence_stride: 8,
            read_only: false,
            looks_read_only: Arc::default(),
            tls: false,
            level: Default::default(),
            trace_every: None,
        }
    }

    fn folder(path: &std::path::Path, text: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("pg_hba.conf"), text).unwrap();
        fs::write(path.join("PG_VERSION"), text).unwrap();
    }

    /// Goal: the operator's files outlive a copy, also one that a crash interrupted between its two renames.
    #[test]
    fn the_operators_files_stay_and_a_kept_folder_is_replaced_by_the_next() {
        let node_folder = tempfile::tempdir().unwrap();
        let server = server(node_folder.path());
        let read = |path: &std::path::Path, name: &str| fs::read_to_string(path.join(name)).unwrap();
        folder(&server.data(), "own");
        for (round, keep_old) in [false, true, false, true].into_iter().enumerate() {
            folder(&server.unfinished(), &format!("copy {round}"));
            if round == 2 {
                fs::rename(server.data(), node_folder.path().join("postgres.old")).unwrap();
            }
            swap(&server, keep_old).unwrap();
            assert_eq!(read(&server.data(), "pg_hba.conf"), "own", "round {round}");
            assert_eq!(read(&server.data(), "PG_VERSION"), format!("copy {round}"));
            assert!(!node_folder.path().join("postgres.old").exists());
        }
        assert_eq!(read(&node_folder.path().join("postgres.kept"), "PG_VERSION"), "copy 2");
    }
}
