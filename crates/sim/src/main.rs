//! Runs seeds for a while on all cores, or one seed with its trace.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use onetrip_sim::{run, Options, Report, Stats};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One run in this many is repeated in another process, where nothing but the seed is the same.
const REPEAT_EVERY: u64 = 100;
const HASH: &str = "hash of the run: ";

/// Simulates clusters under faults; ends with status 0 only if every seed passes.
#[derive(Parser)]
struct Args {
    /// Run this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Run seeds for this long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed; without it, one is taken from the clock.
    #[arg(long)]
    from: Option<u64>,
    /// How many seeds to run at once [default: one on each core]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: Option<u64>,
    /// With --seed: write what happened to this file.
    #[arg(long, requires = "seed")]
    trace: Option<PathBuf>,
}

/// The results of all runs so far.
#[derive(Default)]
struct Sum {
    seeds: u64,
    repeated: u64,
    simulated: u64,
    committed: usize,
    acknowledged: usize,
    faults: Stats,
    events: Stats,
    failed: Vec<u64>,
}

impl Sum {
    fn add(&mut self, report: &Report, repeated: Option<Result<()>>) {
        self.seeds += 1;
        self.simulated += report.simulated;
        self.committed += report.committed;
        self.acknowledged += report.acknowledged;
        self.faults.merge(&report.faults);
        self.events.merge(&report.events);
        self.repeated += u64::from(repeated.is_some());
        let differs = repeated.and_then(Result::err).map(|why| format!("{why:#}"));
        if let Some(why) = report.failure.clone().or(differs) {
            println!("seed {} FAILED: {why}\n  repeat it with: make sim SEED={}", report.seed, report.seed);
            self.failed.push(report.seed);
        }
    }

    fn print(&self) {
        for (title, stats) in [("faults", &self.faults), ("events", &self.events)] {
            println!("{title}:");
            for (what, n) in &stats.0 {
                println!("  {n:>10} {what}");
            }
        }
        println!(
            "{} seeds, {:.1} simulated hours, {} commits, {} acknowledged, {} repeated in another process, {} failures",
            self.seeds,
            self.simulated as f64 / 3_600e6,
            self.committed,
            self.acknowledged,
            self.repeated,
            self.failed.len()
        );
        if !self.failed.is_empty() {
            println!("failed seeds: {:?}", self.failed);
        }
    }
}

/// The same seed in another process has the same hash.
fn repeat(report: &Report) -> Result<()> {
    let own = std::env::current_exe().context("find the running program")?;
    let out = Command::new(own).args(["--seed", &report.seed.to_string()]).output().context("run it again")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let hash = text.lines().find_map(|line| line.strip_prefix(HASH)).context("the run that repeats it gave no hash")?;
    let here = format!("{:016x}", report.hash);
    ensure!(hash == here, "another process runs it otherwise: hash {hash}, here {here}");
    Ok(())
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut sum = Sum::default();
    if let Some(seed) = args.seed {
        let report = run(Options::draw(seed, None), args.trace.is_some());
        if let Some(file) = &args.trace {
            std::fs::write(file, &report.trace).with_context(|| format!("write {}", file.display()))?;
        }
        sum.add(&report, None);
        println!("{HASH}{:016x}", report.hash);
    } else {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let first = args.from.unwrap_or_else(clock);
        println!("seeds from {first}");
        let end = Instant::now() + Duration::from_secs(args.seconds);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let (next, shared) = (AtomicU64::new(first), Mutex::new(&mut sum));
        let work = || loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let report = run(Options::draw(seed, None), false);
            let repeated = ((seed - first) % REPEAT_EVERY == 0).then(|| repeat(&report));
            shared.lock().expect("no run panics here").add(&report, repeated);
            if Instant::now() >= end {
                break;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..args.jobs.unwrap_or(cores) {
                scope.spawn(work);
            }
        });
    }
    sum.print();
    Ok(if sum.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
