//! `onetrip leave`: a node leaves the cluster for good.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Result};
use clap::Args;
use serde_json::json;

use crate::admin::{wait_for, Admin};

/// How long the node that left may take to stop its PostgreSQL.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Take a node out of the cluster, for good
///
/// The node of --data leaves, or the one that --node names, which may be dead. A node that has left stops by itself; its
/// folder is of no more use. It is refused if commits would stop, because too few of the remaining voters can be reached, and,
/// without --force, if the cluster could then no longer lose any voter.
#[derive(Args)]
pub struct LeaveArgs {
    /// A running node's folder, or a folder of such folders (then name the node)
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The node that leaves: its number, or its region if it has one node [default: the node of --data]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Also when afterwards the loss of one voter stops commits
    #[arg(long)]
    force: bool,
}

pub fn run(args: &LeaveArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let own = args.data.join(onetrip_node::config::FILE_NAME).is_file();
    let node = match &args.node {
        Some(node) => admin.find(node)?,
        None if own => admin.node.node.0,
        None => bail!("{} holds several nodes: name the one that leaves with --node", args.data.display()),
    };
    let answer = admin.post("/leave", &json!({ "node": node, "force": args.force }))?;
    println!("node {node} has left; {}", answer["means"].as_str().unwrap_or_default());
    if node == admin.node.node.0 {
        wait_for(STOP_TIMEOUT, "it runs", || Ok(!admin.answers()))?;
        println!("it has stopped; {} can be removed", admin.node.data_dir.display());
    }
    Ok(ExitCode::SUCCESS)
}
