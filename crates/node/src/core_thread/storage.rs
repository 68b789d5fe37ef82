//! Opens the checkpoint and the log as earlier lives of the node left them.

use crate::config::NodeConfig;
use crate::disk::{segment_numbers, sync_dir, write_whole, CheckpointFile, RaftLog};
use crate::error::{Error, Result};
use onetrip_core::replica::Replica;
use onetrip_core::{Checkpoint, MemberRole, Members, NodeId};
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
    if let Some(why) = contradiction(config, &found.members) {
        return Err(Error::Config { file: config.data_dir.join(crate::config::FILE_NAME), why });
    }
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

/// Why this node would not be what all others take it for, from the table of members.
fn contradiction(config: &NodeConfig, members: &Members) -> Option<String> {
    let me = members.get(config.node)?;
    if me.region != config.region {
        return Some(format!("`region` is {}, but in the cluster node {} is in {}", config.region, me.id, me.region));
    }
    match (me.role.has_postgres(), &config.postgres) {
        // Tests of nodes alone have none (and those of sequences give a data folder another slot, as a copy does).
        (true, None) => (!config.lab).then(|| {
            let instead = match me.role {
                MemberRole::Voter => format!(
                    ", and for a witness in its place there is `onetrip token --role witness --replaces {}`",
                    me.id
                ),
                _ => String::new(),
            };
            format!(
                "there is no `[postgres]`, but in the cluster node {} is a {}, which has one: put it back; if its server \
                 is lost, another member's is copied{instead}",
                me.id,
                me.role.name()
            )
        }),
        (false, Some(_)) => Some(format!("there is a `[postgres]`, but in the cluster node {} is a witness", me.id)),
        (true, Some(_)) => {
            let own = (config.sequence_slot, config.sequence_stride);
            let (slot, stride) = (me.slot.unwrap_or(own.0), members.stride);
            (own != (slot, stride) && !config.lab).then(|| {
                format!(
                    "`sequence_slot` is {} and `sequence_stride` {}, but in the cluster node {} has {slot} of {stride}: two \
                     regions would give the same values; put {slot} and {stride} there",
                    own.0, own.1, me.id
                )
            })
        }
        (false, None) => None,
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

    /// Goal: a node.toml with which this node would not be what all others take it for is refused before anything is
    /// made.
    #[test]
    fn what_node_toml_says_otherwise_than_the_table_of_members_is_refused() {
        let opened = |role: &str, more: &str| {
            let folder = tempfile::tempdir().unwrap();
            let members = format!(
                "[[member]]\nid = 1\nregion = 'a'\naddress = '127.0.0.1:1'\n[[member]]\nid = 2\nregion = 'b'\n\
                 address = '127.0.0.1:2'\nrole = '{role}'\n"
            );
            let text = "cluster = 'c'\nnode = 2\nregion = 'b'\nlisten = '127.0.0.1:2'\nhttp = '127.0.0.1:3'\n";
            let mut config = NodeConfig::parse(&format!("{text}{more}{members}")).unwrap();
            config.data_dir = folder.path().to_owned();
            let opened = open(&config).map(|_| ()).map_err(|e| e.to_string());
            assert_eq!(folder.path().join("log").exists(), opened.is_ok());
            opened
        };
        let postgres = "[postgres]\nport = 5433\nbin_dir = '/bin'\n";
        let with = |settings: &str| format!("{settings}\n{postgres}");
        opened("witness", "").unwrap();
        opened("voter", &with("sequence_slot = 1")).unwrap();
        opened("voter", &with("sequence_slot = 0\nsequence_stride = 1")).unwrap();
        opened("voter", "lab = true\n").unwrap();
        for (role, settings, why) in [
            ("voter", String::new(), "there is no `[postgres]`, but in the cluster node 2 is a voter"),
            ("witness", with("lab = true"), "there is a `[postgres]`, but in the cluster node 2 is a witness"),
            ("voter", with(""), "`sequence_slot` is 0 and `sequence_stride` 8, but in the cluster node 2 has 1 of 8"),
        ] {
            let error = opened(role, &settings).unwrap_err();
            assert!(error.contains("node.toml") && error.contains(why), "{error}");
        }
    }
}
