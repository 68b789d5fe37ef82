//! Opens the checkpoint and the log as earlier lives of the node left them.

use crate::config::NodeConfig;
use crate::disk::{segment_numbers, sync_dir, write_whole, CheckpointFile, RaftLog};
use crate::error::{Error, Result};
use onetrip_core::replica::Replica;
use onetrip_core::{Checkpoint, NodeId};
use std::path::Path;

/// In the log's folder: the node whose entries and votes these are, so that no other node takes them for its own.
/// Earlier releases neither write it nor look at it.
const OWNER_FILE: &str = "owner";
/// In the node's folder: the node has a log, so one that is not there is lost, and not one to be made.  Earlier
/// releases write only the files that follow.
const CLAIMED_FILE: &str = "log.claimed";
pub(super) const STARTS_FILE: &str = "starts";
pub(super) const PROMISED_FILE: &str = "promised";

/// Both are verified, and fit together.
pub(super) fn open(config: &NodeConfig) -> Result<(CheckpointFile, Checkpoint, RaftLog)> {
    // The files in it were synced before they got their names; the names themselves may not have been.
    sync_dir(&config.data_dir)?;
    let file = CheckpointFile::new(config.checkpoint_file());
    file.forget_prepared()?;
    let found = match file.load(config.limits())? {
        Some(found) => found,
        None if config.members.is_empty() => {
            let why =
                "it names no `[[member]]` and there is no checkpoint: `onetrip init` or `onetrip join` makes a node";
            return Err(Error::Config { file: config.data_dir.join(crate::config::FILE_NAME), why: why.into() });
        }
        None => Checkpoint::bootstrap(config.bootstrap_members(), config.limits()),
    };
    let folder = config.data_dir.join("log");
    // The folder of a disk that is not mounted looks like that of a new node.
    let of_before = [CLAIMED_FILE, STARTS_FILE, PROMISED_FILE].map(|name| config.data_dir.join(name));
    let has_log = || match folder.try_exists().map_err(Error::disk(&folder, "looking for the log"))? {
        true => Ok::<_, Error>(!segment_numbers(&folder)?.is_empty()),
        false => Ok(false),
    };
    if of_before.iter().any(|file| file.try_exists().unwrap_or(true)) && !has_log()? {
        let why = "this node has had a log, and there is none: its disk may not be mounted".into();
        return Err(Error::Corrupted { file: folder, why });
    }
    let is_new = !is_owned(&folder, &config.cluster, config.node)?;
    let mut log = RaftLog::open_limited(&folder, config.log_bytes_max)?;
    if is_new {
        write_whole(&folder.join(OWNER_FILE), owner(&config.cluster, config.node).as_bytes())?;
    }
    if !of_before[0].exists() {
        write_whole(&of_before[0], owner(&config.cluster, config.node).as_bytes())?;
    }
    log.keep_checkpoints_in(file.clone());
    match Replica::<RaftLog, crate::agent::AgentQueue>::put_in_order(&found, &mut log)? {
        Some(why) => Err(Error::Corrupted { file: folder, why }),
        None => Ok((file, found, log)),
    }
}

fn owner(cluster: &str, node: NodeId) -> String {
    format!("node {node} of cluster {cluster}\n")
}

/// Whether the folder says that it is this node's; an error if it says that it is another's.
fn is_owned(folder: &Path, cluster: &str, node: NodeId) -> Result<bool> {
    let file = folder.join(OWNER_FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) if text == owner(cluster, node) => Ok(true),
        Ok(text) => {
            let why = format!("this is the log of {}, and not of node {node} of cluster {cluster}", text.trim());
            Err(Error::Config { file, why })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Disk { file, what: "read", source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_another_node_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = |cluster, node| is_owned(folder.path(), cluster, NodeId(node)).map_err(|e| e.to_string());
        assert_eq!(of("a", 1), Ok(false), "as an earlier release has made it");
        write_whole(&folder.path().join(OWNER_FILE), owner("a", NodeId(1)).as_bytes()).unwrap();
        assert_eq!(of("a", 1), Ok(true));
        for (cluster, node) in [("a", 2), ("b", 1)] {
            assert!(of(cluster, node).unwrap_err().contains("the log of node 1 of cluster a, and not of"));
        }
    }
}
