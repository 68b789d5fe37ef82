//! Lets a cluster grow and shrink: the steps that an operator takes, with the `onetrip` command.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use onetrip_client::ports;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::node_process::Node;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
const TOKEN_PREFIX: &str = "onetrip-join-1.";
const POLL: Duration = Duration::from_millis(25);

impl Cluster {
    /// Makes a node in `region` with a token from node `asked`, starts it, and waits until it has joined.  `token_args`
    /// are further arguments for `onetrip token`.  Returns the node's place among [`Cluster::nodes`].
    pub async fn join(&mut self, asked: usize, region: &str, token_args: &[&str]) -> Result<usize> {
        let index = self.prepare_join(asked, region, token_args).await?;
        self.node(index).start()?;
        self.wait_joined(index).await?;
        Ok(index)
    }

    /// The same as [`Cluster::join`], but does not start the node.
    pub async fn prepare_join(&mut self, asked: usize, region: &str, token_args: &[&str]) -> Result<usize> {
        let folder = self.new_folder(region);
        let node = self.make_member(asked, region, token_args, folder).await?;
        Ok(self.add(node))
    }

    /// Makes a node with a token from node `asked`, ready to be started.  It is not added to [`Cluster::nodes`].
    pub(crate) async fn make_member(
        &self,
        asked: usize,
        region: &str,
        token_args: &[&str],
        folder: PathBuf,
    ) -> Result<Node> {
        let args = self.join_args(asked, region, token_args, &folder).await?;
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--prepare-only"]).collect();
        self.command(&args).await?;
        Node::of_folder(folder, self.binary())
    }

    /// Runs `onetrip join` in the foreground until it says that the node has joined, and stops it in order.  Returns
    /// the place of the node, which does not run any more, and what the command printed.  It is an error if the token
    /// that it was called with is on the command line of the node that runs.
    pub async fn join_in_foreground(
        &mut self,
        asked: usize,
        region: &str,
        token_args: &[&str],
    ) -> Result<(usize, String)> {
        let folder = self.new_folder(region);
        let args = self.join_args(asked, region, token_args, &folder).await?;
        let mut child = Command::new(self.binary())
            .args(&args)
            .arg("--until-stdin-closes")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", self.binary().display()))?;
        let mut lines = BufReader::new(child.stderr.take().context("it has a standard error")?).lines();
        let mut shown = String::new();
        let follow = async {
            while let Some(line) = lines.next_line().await? {
                shown += &line;
                shown.push('\n');
                if line.contains(" is a ") && line.contains(" now") {
                    break;
                }
            }
            let process = child.id().map(|id| format!("/proc/{id}/cmdline"));
            let command_line = process.map(std::fs::read).transpose()?.unwrap_or_default();
            drop(child.stdin.take());
            std::io::Result::Ok((child.wait().await?, String::from_utf8_lossy(&command_line).into_owned()))
        };
        let ended = tokio::time::timeout(JOIN_TIMEOUT, follow).await;
        let (status, command_line) = ended.with_context(|| format!("onetrip join does not end: {shown}"))??;
        if !status.success() {
            bail!("onetrip join ended with {status}: {shown}");
        }
        if !command_line.contains("join") || command_line.contains(TOKEN_PREFIX) {
            bail!("the command line of onetrip join is not without its token");
        }
        let node = Node::of_folder(folder, self.binary())?;
        Ok((self.add(node), shown))
    }

    fn new_folder(&self, region: &str) -> PathBuf {
        self.data().join(format!("{region}-{}", self.nodes().len() + 1))
    }

    async fn join_args(&self, asked: usize, region: &str, token_args: &[&str], folder: &Path) -> Result<Vec<String>> {
        let token = self.token(asked, token_args).await?;
        let ports = ports::free_ports(3)?;
        let (from, data) = (self.node(asked).peer(), folder.display().to_string());
        let [http, port] = [ports[1], ports[2]].map(|port| port.to_string());
        let listen = format!("127.0.0.1:{}", ports[0]);
        let mut args = vec!["join", "--lab", "--from", from, "--token", &token, "--region", region, "--data", &data];
        args.extend(["--listen", &listen, "--http", &http, "--port", &port]);
        Ok(args.into_iter().map(String::from).collect())
    }

    pub async fn token(&self, asked: usize, args: &[&str]) -> Result<String> {
        let folder = self.node(asked).folder().display().to_string();
        let token = self.command(&[&["token", "--data", &folder], args].concat()).await?;
        Ok(token.trim().to_string())
    }

    /// Asks node `asked` to take node `leaving` out of the cluster.  If that node runs, it stops by itself, and this
    /// waits for it.
    pub async fn leave(&self, asked: usize, leaving: usize, args: &[&str]) -> Result<String> {
        let folder = self.node(asked).folder().display().to_string();
        let id = self.node(leaving).id().to_string();
        let said = self.command(&[&["leave", "--data", &folder, "--node", &id], args].concat()).await?;
        if self.node(leaving).running() {
            self.node(leaving).wait_ended(JOIN_TIMEOUT).await?;
        }
        Ok(said)
    }

    pub async fn move_leader(&self, asked: usize, region: &str) -> Result<()> {
        let folder = self.node(asked).folder().display().to_string();
        self.command(&["leader", "--data", &folder, "--to", region]).await?;
        Ok(())
    }

    /// Waits until the node is a voter, or a replica that has caught up, and its PostgreSQL (if it has one) serves.
    pub async fn wait_joined(&self, index: usize) -> Result<()> {
        self.node(index).wait_joined().await
    }

    /// Runs an `onetrip` command and returns its standard output.  If it fails, the error contains its standard error.
    pub async fn command(&self, args: &[&str]) -> Result<String> {
        let run = Command::new(self.binary()).args(args).stdin(Stdio::null()).kill_on_drop(true).output();
        let output = match tokio::time::timeout(COMMAND_TIMEOUT, run).await {
            Ok(output) => output.with_context(|| format!("run {}", self.binary().display()))?,
            Err(_) => bail!("onetrip {args:?} did not end within {} s", COMMAND_TIMEOUT.as_secs()),
        };
        if !output.status.success() {
            bail!("onetrip {}: {}", args[0], String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Node {
    async fn joined(&self) -> Result<()> {
        let status = self.status().await?;
        if let Some(why) = not_joined(&status) {
            bail!("{why}: {status}");
        }
        match self.has_postgres() {
            true => self.connect().await.map(drop),
            false => Ok(()),
        }
    }

    /// Waits until it is a voter, or a replica that has caught up, and its PostgreSQL (if it has one) serves.
    pub async fn wait_joined(&self) -> Result<()> {
        let deadline = Instant::now() + JOIN_TIMEOUT;
        loop {
            self.check_not_ended()?;
            let Err(why) = self.joined().await else { return Ok(()) };
            if Instant::now() >= deadline {
                bail!("node {} has not joined after {} s: {why:#}", self.region(), JOIN_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Why a node with this status has not joined yet; `None` if it has.
fn not_joined(status: &Value) -> Option<&'static str> {
    let mut members = status["members"].as_array().into_iter().flatten();
    match members.find(|m| m["this_node"] == true) {
        None => Some("it does not know yet that it is a member"),
        Some(own) => (own["caught_up"] != true).then_some("it is catching up"),
    }
}
