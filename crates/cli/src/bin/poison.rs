//! `make poison`: the generator of `onetrip_lab::poison` on the `onetrip` command that lies beside this program.
//!
//! Exit code 0: every region came out alike.  1: something did not, and the cluster's folder is kept.  2: it could not be run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use onetrip_lab::poison::{run, Options};

/// Random definitions, rows, roles and functions from three regions at once: are all regions alike?
#[derive(Parser)]
struct Args {
    /// How long, the cluster's start not counted
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// Draws the same statements again [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// This round of the seed alone
    #[arg(long)]
    round: Option<u64>,
    /// Goes on with a new cluster when something was found
    #[arg(long)]
    explore: bool,
    /// Empty folder to work in; kept [default: one below /var/tmp, removed if everything held]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    match poison(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("poison: {why:#}");
            ExitCode::from(2)
        }
    }
}

fn poison(args: &Args) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let seed = args.seed.unwrap_or(now % 1_000_000_007);
    println!("poison: SEED={seed}");
    let own = std::env::current_exe().context("find the running program")?;
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => PathBuf::from(format!("/var/tmp/onetrip-poison-{}", std::process::id())),
    };
    let options = Options {
        duration: Duration::from_secs(args.seconds),
        seed,
        round: args.round,
        binary: std::env::var_os("ONETRIP_BIN").map_or_else(|| own.with_file_name("onetrip"), PathBuf::from),
        folder: folder.clone(),
        explore: args.explore,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run(&options));
    let held = result.as_ref().is_ok_and(|report| report.held());
    match held && args.folder.is_none() && std::env::var_os("ONETRIP_KEEP").is_none() {
        true => _ = std::fs::remove_dir_all(&folder),
        false => println!("poison: the cluster's folder is kept: {}", folder.display()),
    }
    println!("\n{}", result?.table());
    println!("seed {seed}: {}", if held { "all regions came out alike" } else { "NOT all regions came out alike" });
    Ok(held)
}
