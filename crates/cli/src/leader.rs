//! `onetrip leader`: where the leader should be.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::admin::{wait_for, Admin};

/// A leader hands over when its successor has the whole log.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Move the leader to a region, now and after every later election
///
/// A COMMIT from the leader's region needs one round trip to the nearest majority; one from elsewhere needs the way to the
/// leader on top. Transactions go on meanwhile.
#[derive(Args)]
pub struct LeaderArgs {
    /// A running node's folder, or a folder of such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The region that is to lead
    #[arg(long, value_name = "REGION")]
    to: String,
}

pub fn run(args: &LeaderArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    admin.post("/leader", &json!({ "region": args.to }))?;
    wait_for(MOVE_TIMEOUT, "the cluster prefers that region now, but the leader has not moved", || {
        Ok(admin.status()?["leader"]["region"].as_str() == Some(&args.to))
    })?;
    println!("{} leads", args.to);
    Ok(ExitCode::SUCCESS)
}
