//! `onetrip leader`: says in which region the leader should be.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use onetrip_client::say;
use onetrip_core::members::AUTO;
use serde_json::json;

use crate::admin::{wait_for, Admin};

/// How long a move may take: the leader hands over only when its successor has the whole log.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Say where the leader belongs, now and after every later election
///
/// With `--to auto`, the default of a new cluster, the cluster itself chooses the place where commits take the least
/// time, judging by measured round trips and by where commits come from. With `--to REGION` the leader moves to that
/// region and stays there. Transactions continue meanwhile.
#[derive(Args)]
pub struct LeaderArgs {
    /// A running node's folder, or a folder that contains such folders
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The leader's region, or auto
    #[arg(long, value_name = "REGION")]
    to: String,
}

pub fn run(args: &LeaderArgs) -> Result<ExitCode> {
    let admin = Admin::of(&args.data)?;
    admin.post("/leader", &json!({ "region": args.to }))?;
    if args.to == AUTO {
        let status = admin.status()?;
        let now = status["preferred_leader"].as_str().unwrap_or("no region");
        say!("the cluster chooses where the leader belongs: in {now} for now");
        return Ok(ExitCode::SUCCESS);
    }
    wait_for(MOVE_TIMEOUT, "the cluster prefers that region now, but the leader has not moved there", || {
        Ok(admin.status()?["leader"]["region"].as_str() == Some(&args.to))
    })?;
    say!("{} leads", args.to);
    Ok(ExitCode::SUCCESS)
}
