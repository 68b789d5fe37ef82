//! `make torture`: the torture of `onetrip_lab::torture` on the `onetrip` command that lies beside this program.
//!
//! Exit code 0: everything held.  1: something did not, and the cluster's folder is kept.  2: it could not be run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use onetrip_lab::torture::{disk, run, Load, Options};

/// Real clusters under every kind of fault: does what was promised hold?
#[derive(Parser)]
struct Args {
    /// How long, start and final checks not counted
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..))]
    seconds: u64,
    /// Draws the same faults again, though not their timing [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Only faults whose name has this in it; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Plant a mistake, to see it found: fsync does nothing (use with --only "power loss")
    #[arg(long)]
    plant_no_sync: bool,
    /// No faults at all
    #[arg(long)]
    calm: bool,
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Times the usual number of clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=20))]
    clients: u64,
    /// Clients pause for up to this many milliseconds between transactions
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
    /// Empty folder to work in; kept [default: one below /var/tmp, removed if everything held]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match torture(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("torture: {why:#}");
            ExitCode::from(2)
        }
    }
}

fn torture(args: &Args) -> Result<bool> {
    // Before any thread.  Without it there are no disks of our own, which the table says.
    if let Err(why) = disk::unshare_mounts() {
        eprintln!("torture: {why:#}");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let seed = args.seed.unwrap_or(now % 1_000_000_007);
    println!("torture: SEED={seed}");
    let own = std::env::current_exe().context("find the running program")?;
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => PathBuf::from(format!("/var/tmp/onetrip-torture-{}", std::process::id())),
    };
    let options = Options {
        duration: Duration::from_secs(args.seconds),
        seed,
        binary: std::env::var_os("ONETRIP_BIN").map_or_else(|| own.with_file_name("onetrip"), PathBuf::from),
        folder: folder.clone(),
        only: args.only.clone(),
        plant_no_sync: args.plant_no_sync,
        calm: args.calm,
        load: Load { only: args.workload.clone(), clients: args.clients, pause_ms_max: args.pause_ms },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run(&options));
    let held = matches!(result, Ok((_, true)));
    match held && args.folder.is_none() && std::env::var_os("ONETRIP_KEEP").is_none() {
        true => _ = std::fs::remove_dir_all(&folder),
        false => println!("torture: the cluster's folder is kept: {}", folder.display()),
    }
    let (table, held) = result?;
    println!("\n{table}\nseed {seed}: {}", if held { "everything held" } else { "NOT everything held" });
    Ok(held)
}
