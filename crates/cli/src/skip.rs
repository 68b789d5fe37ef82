//! `onetrip skip`: leaves out, in every region, an entry that no region can apply.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::admin::Admin;
use onetrip_client::say;

/// At most this many changes are printed; the file contains all of them.
const LINES_MAX: usize = 20;

/// Leave out an entry that no region can apply, everywhere and for good
///
/// This is the last resort. The transaction was committed, and its client may have been told so; its changes are lost
/// on purpose. The command is refused while any region shows the entry, because the others can then copy that region's
/// PostgreSQL. Without --force it is also refused while a region that may show the entry cannot be reached. The entry
/// that is left out is kept in the folder `skipped` of the node.
#[derive(Args)]
pub struct SkipArgs {
    /// The log index of the entry that the regions cannot apply (`failing` in onetrip.status)
    #[arg(value_name = "INDEX")]
    index: u64,
    /// The folder of a running node whose PostgreSQL is stuck at that entry, or a folder that contains such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Proceed even if a region that may show the entry cannot be reached: what only that region has is given up, and
    /// it copies another region's PostgreSQL when it comes back
    #[arg(long)]
    force: bool,
}

pub fn run(args: &SkipArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let answer = admin.post("/skip", &json!({ "index": args.index, "force": args.force }))?;
    let text = |field: &str| answer[field].as_str().unwrap_or("?").to_owned();
    say!("log index {} is left out in every region, by log index {}", args.index, answer["by"]);
    say!("transaction {} of region {}, which changed:", text("transaction"), text("region"));
    let changes: Vec<&str> = answer["changes"].as_array().into_iter().flatten().filter_map(|l| l.as_str()).collect();
    for line in changes.iter().take(LINES_MAX) {
        say!("  {line}");
    }
    if changes.len() > LINES_MAX {
        say!("  and {} more lines", changes.len() - LINES_MAX);
    }
    say!("kept in {} and, to be read, in {}.txt", text("kept"), text("kept"));
    Ok(ExitCode::SUCCESS)
}
