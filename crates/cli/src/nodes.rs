//! Finds the nodes that a command is about: those whose folders are in one data folder.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use onetrip_client::http;
use onetrip_node::config::{NodeConfig, FILE_NAME};
use serde_json::Value;

use crate::BadUsage;

const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of `data`, in order of their ids.  `data` is one node's folder, or contains a folder for each node.
pub fn in_folder(data: &Path) -> Result<Vec<NodeConfig>> {
    // What cannot be looked at is told when it is loaded.
    if data.join(FILE_NAME).try_exists().unwrap_or(true) {
        return Ok(vec![load(data)?]);
    }
    let mut nodes = Vec::new();
    let entries = std::fs::read_dir(data).with_context(|| format!("read {}", data.display()))?;
    for entry in entries {
        let folder = entry?.path();
        if folder.join(FILE_NAME).is_file() {
            nodes.push(load(&folder)?);
        }
    }
    if nodes.is_empty() {
        return Err(BadUsage(format!("{} contains no node: make one with `onetrip init`", data.display())).into());
    }
    nodes.sort_by_key(|node| node.node);
    Ok(nodes)
}

/// Whoever may read the token in the node's folder shows it to the node.
fn load(folder: &Path) -> Result<NodeConfig> {
    let node = NodeConfig::load(folder)?;
    if let Ok(token) = std::fs::read_to_string(node.http_token_file()) {
        http::use_token(&node.http.to_string(), token.trim());
    }
    Ok(node)
}

/// Where a command on the node's machine asks it.  A port that speaks TLS may have a certificate for other names, and
/// who can read the node's folder is its user or root anyway, whom its socket lets in.
pub fn address(node: &NodeConfig) -> String {
    match node.http_tls {
        true => node.admin_socket().display().to_string(),
        false => node.http.to_string(),
    }
}

/// The answers of these addresses to `GET /status`, in the order of the addresses.
pub async fn statuses(addresses: impl IntoIterator<Item = String>) -> Vec<Result<Value>> {
    let ask = |address: String| tokio::spawn(async move { http::get_json(&address, "/status", STATUS_TIMEOUT).await });
    let asked: Vec<_> = addresses.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.context("ask a node").and_then(|answer| answer));
    }
    answers
}

/// The answer with the newest table of members.
pub fn newest<'a>(answers: impl IntoIterator<Item = &'a Result<Value>>) -> Option<&'a Value> {
    answers.into_iter().filter_map(|a| a.as_ref().ok()).max_by_key(|status| status["decided"].as_u64())
}

pub fn members(status: &Value) -> impl Iterator<Item = &Value> {
    status["members"].as_array().into_iter().flatten()
}
