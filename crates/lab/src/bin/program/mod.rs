//! What the programs behind `make torture`, `make values` and `make poison` have in common: they print their seed, keep
//! their folder if something was found, and have the same exit codes.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use onetrip_lab::cluster::BINARY;

#[derive(clap::Args)]
pub struct Common {
    /// How long to run, without the start and the final checks
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Repeat what was drawn from this seed; the timing of what runs concurrently is not repeated [default: from the
    /// clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Empty folder to work in, which is kept [default: one below /var/tmp, removed if everything held]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// What a run works with.
pub struct Place {
    pub duration: Duration,
    pub seed: u64,
    /// The command that the clusters run.
    pub binary: PathBuf,
    pub folder: PathBuf,
}

/// Runs `work`, which returns its table and whether everything held.  Exit code 0: everything held.  1: something did
/// not hold, and the folder is kept.  2: it could not run.
pub fn run<F>(name: &str, common: &Common, work: impl FnOnce(Place) -> F) -> ExitCode
where
    F: Future<Output = Result<(String, bool)>>,
{
    match held(name, common, work) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("{name}: {why:#}");
            ExitCode::from(2)
        }
    }
}

fn held<F>(name: &str, common: &Common, work: impl FnOnce(Place) -> F) -> Result<bool>
where
    F: Future<Output = Result<(String, bool)>>,
{
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let seed = common.seed.unwrap_or(now % 1_000_000_007);
    println!("{name}: SEED={seed}");
    let own = std::env::current_exe().context("find the running program")?;
    let folder = match &common.folder {
        Some(folder) => folder.clone(),
        None => PathBuf::from(format!("/var/tmp/onetrip-{name}-{}", std::process::id())),
    };
    let place = Place {
        duration: Duration::from_secs(common.seconds),
        seed,
        binary: std::env::var_os("ONETRIP_BIN").map_or_else(|| own.with_file_name(BINARY), PathBuf::from),
        folder: folder.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(work(place));
    let held = matches!(result, Ok((_, true)));
    match held && common.folder.is_none() && std::env::var_os("ONETRIP_KEEP").is_none() {
        true => _ = std::fs::remove_dir_all(&folder),
        false => println!("{name}: the cluster's folder is kept: {}", folder.display()),
    }
    let (table, held) = result?;
    println!("\n{table}\nseed {seed}: {}", if held { "everything held" } else { "NOT everything held" });
    Ok(held)
}
