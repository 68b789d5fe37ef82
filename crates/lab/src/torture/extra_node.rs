//! An extra node that joins and leaves under faults: as a voter, a witness or a replica, in a region of its own.
//!
//! A join or a leave that fails under faults may have taken effect all the same.  At rest, [`ExtraNode::reconcile`]
//! reads the table of members and starts or removes processes so that they agree with it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use nix::sys::signal::{kill, Signal};
use serde_json::Value;

use crate::{postmaster, Cluster, Node};

/// How long a command may take under faults.  The change that it has begun may go on after that.
const COMMAND: Duration = Duration::from_secs(15);
const REGION: &str = "extra";
const ROLES: [&str; 3] = ["voter", "witness", "replica"];

pub struct ExtraNode {
    cluster: Arc<Cluster>,
    node: Option<Node>,
    /// Number of the last folder; a folder is never used again.
    number: u32,
}

impl ExtraNode {
    pub fn new(cluster: Arc<Cluster>) -> ExtraNode {
        ExtraNode { cluster, node: None, number: 0 }
    }

    /// Adds a member, by asking node `asked`.  `Err`: it did not join this time.
    pub async fn join(&mut self, asked: usize, role: usize) -> Result<()> {
        if self.node.is_some() {
            bail!("the extra node is there already");
        }
        self.number += 1;
        let folder = self.cluster.data().join(format!("{REGION}-{}", self.number));
        let args = ["--role", ROLES[role % ROLES.len()]];
        let making = self.cluster.make_member(asked, REGION, &args, folder.clone());
        let made = tokio::time::timeout(COMMAND, making).await.context("no answer").and_then(|made| made);
        match made {
            Ok(node) => {
                node.start()?;
                self.node = Some(node);
                Ok(())
            }
            Err(why) => {
                let _ = std::fs::remove_dir_all(&folder);
                Err(why)
            }
        }
    }

    pub async fn leave(&mut self, asked: usize) -> Result<()> {
        let id = self.node.as_ref().context("there is no extra node")?.id();
        tokio::time::timeout(COMMAND, self.remove(asked, &id.to_string())).await.context("no answer")??;
        self.forget();
        Ok(())
    }

    async fn remove(&self, asked: usize, id: &str) -> Result<()> {
        let folder = self.cluster.node(asked).folder().display().to_string();
        self.cluster.command(&["leave", "--data", &folder, "--node", id]).await.map(drop)
    }

    /// Kills the node and its PostgreSQL with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        let node = self.node.as_ref().context("there is no extra node")?;
        node.kill9()?;
        for pid in postmaster::processes(&node.postgres_data()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        Ok(())
    }

    pub fn start(&self) -> Result<()> {
        match &self.node {
            Some(node) if !node.running() => node.start(),
            _ => Ok(()),
        }
    }

    /// The node is not a member any more: ends its processes and removes its folder.
    fn forget(&mut self) {
        if let Some(node) = self.node.take() {
            let _ = node.kill9();
            if let Err(why) = postmaster::stop_now(&node.postgres_data(), Duration::from_secs(20)) {
                eprintln!("torture: {why}");
            }
            // Keep its log, in case something went wrong.
            let kept = self.cluster.data().join(format!("../{REGION}-{}-node.log", self.number));
            let _ = std::fs::copy(node.folder().join("node.log"), kept);
            let _ = std::fs::remove_dir_all(node.folder());
        }
    }

    /// Called when all faults are healed.  If the extra node is a member, waits until it runs and has caught up; if it
    /// is not, removes it.  Also removes members that nobody runs.
    pub async fn reconcile(&mut self) -> Result<()> {
        let status = self.cluster.node(0).status().await?;
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let extra_node = self.node.as_ref().map(|node| u64::from(node.id()));
        let is_member = |id: u64| members.iter().filter_map(|m| m["id"].as_u64()).any(|member| member == id);
        if extra_node.is_some_and(|id| !is_member(id)) {
            self.forget();
        }
        let regions = self.cluster.nodes().len() as u64;
        let ids = members.iter().filter_map(|m: &Value| m["id"].as_u64());
        // Such a member was added by a join whose answer was lost.
        for unknown in ids.filter(|id| *id > regions && Some(*id) != extra_node) {
            self.remove(0, &unknown.to_string()).await?;
        }
        self.start()?;
        match &self.node {
            Some(node) => node.wait_joined().await,
            None => Ok(()),
        }
    }
}

impl Drop for ExtraNode {
    fn drop(&mut self) {
        self.forget();
    }
}
