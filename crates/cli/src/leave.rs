//! `onetrip leave`: takes a node out of the cluster for good.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Result};
use clap::Args;
use serde_json::json;

use crate::admin::{wait_for, Admin};
use onetrip_client::say;

/// How long the node that has left may take to stop, with its PostgreSQL.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Take a node out of the cluster, for good
///
/// The node in --data leaves, or the one that --node names, which may be dead. A node that has left stops by itself,
/// and its folder is of no more use. The command is refused if too few of the remaining voters can be reached, because
/// commits would stop. Without --force it is also refused if the loss of one more voter would then stop commits.
#[derive(Args)]
pub struct LeaveArgs {
    /// A running node's folder, or a folder that contains such folders (then give --node)
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The node that leaves: its number, or its region if that has only one node [default: the node in --data]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Proceed even if the loss of one more voter would then stop commits
    #[arg(long)]
    force: bool,
}

pub fn run(args: &LeaveArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let own = args.data.join(onetrip_node::config::FILE_NAME).is_file();
    let node = match &args.node {
        Some(node) => admin.find(node)?,
        None if own => admin.node.node.0,
        None => bail!("{} contains several nodes: say with --node which one leaves", args.data.display()),
    };
    let answer = admin.post("/leave", &json!({ "node": node, "force": args.force }))?;
    say!("node {node} has left; {}", answer["means"].as_str().unwrap_or_default());
    if node == admin.node.node.0 {
        wait_for(STOP_TIMEOUT, "the node is still running", || Ok(!admin.answers()))?;
        say!("it has stopped; {} can be removed", admin.node.data_dir.display());
    }
    Ok(ExitCode::SUCCESS)
}
