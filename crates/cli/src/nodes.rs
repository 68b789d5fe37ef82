//! Finds the nodes that a command is about: those whose folders lie in one data folder.

use std::path::Path;

use anyhow::{Context, Result};
use onetrip_node::config::{NodeConfig, FILE_NAME};

use crate::BadUsage;

/// The nodes of `data`, by id: it is one node's folder, or a folder with a folder for each node.
pub fn in_folder(data: &Path) -> Result<Vec<NodeConfig>> {
    if data.join(FILE_NAME).is_file() {
        return Ok(vec![NodeConfig::load(data)?]);
    }
    let mut nodes = Vec::new();
    let entries = std::fs::read_dir(data).with_context(|| format!("read {}", data.display()))?;
    for entry in entries {
        let folder = entry?.path();
        if folder.join(FILE_NAME).is_file() {
            nodes.push(NodeConfig::load(&folder)?);
        }
    }
    if nodes.is_empty() {
        return Err(BadUsage(format!("{} holds no node: make one with `onetrip init`", data.display())).into());
    }
    nodes.sort_by_key(|node| node.node);
    Ok(nodes)
}
