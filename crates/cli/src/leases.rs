//! `onetrip leases`: says which regions hold read leases.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::admin::Admin;
use onetrip_client::say;

/// Say which regions hold read leases
///
/// In such a region fresh reads ask no other region. In return every commit, wherever it is made, waits until the nodes
/// of these regions have it on disk, so a region that is farther away than the nearest majority makes commits slower.
/// All members must be there: while one is away, fresh reads ask a majority again.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("who").required(true))]
pub struct LeasesArgs {
    /// A running node's folder, or a folder that contains such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The regions, in place of those that hold leases now
    #[arg(long, value_name = "REGION,...", value_delimiter = ',', group = "who")]
    regions: Vec<String>,
    /// No region holds a lease any more
    #[arg(long, group = "who")]
    none: bool,
}

pub fn run(args: &LeasesArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    let done = admin.post("/leases", &json!({ "regions": args.regions }))?;
    say!("{}", done["means"].as_str().unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}
