//! `onetrip skip`: an entry that no region can apply is left out everywhere.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::admin::Admin;

/// The rest is in the file.
const LINES_MAX: usize = 20;

/// Leave an entry out that no region can apply, everywhere and for good
///
/// The last way out. The transaction was committed, and its client may have been told so: its changes are lost on purpose. It is
/// refused as long as a region shows the entry, because the others can then copy that region's PostgreSQL, and without --force
/// while a region that may show it cannot be reached. What is left out is kept in the folder `skipped` of the node.
#[derive(Args)]
pub struct SkipArgs {
    /// The log index at which the regions stand still (`failing` in onetrip.status)
    #[arg(value_name = "INDEX")]
    index: u64,
    /// The folder of a running node whose PostgreSQL stands still there, or a folder of such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Also while a region that may show it cannot be reached: what it alone has is given up, and it copies another region's
    /// PostgreSQL when it comes back
    #[arg(long)]
    force: bool,
}

pub fn run(args: &SkipArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let answer = admin.post("/skip", &json!({ "index": args.index, "force": args.force }))?;
    let text = |field: &str| answer[field].as_str().unwrap_or("?").to_owned();
    println!("log index {} is left out in every region, by log index {}", args.index, answer["by"]);
    println!("transaction {} of region {}, which changed:", text("transaction"), text("region"));
    let changes: Vec<&str> = answer["changes"].as_array().into_iter().flatten().filter_map(|l| l.as_str()).collect();
    for line in changes.iter().take(LINES_MAX) {
        println!("  {line}");
    }
    if changes.len() > LINES_MAX {
        println!("  and {} more lines", changes.len() - LINES_MAX);
    }
    println!("kept in {} and, to be read, in {}.txt", text("kept"), text("kept"));
    Ok(ExitCode::SUCCESS)
}
