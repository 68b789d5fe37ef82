//! Runs seeds for a while, or one seed with its trace.

use anyhow::Result;
use clap::Parser;
use onetrip_sim::{run, Options, Stats};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Simulates clusters under faults; ends with status 0 only if every seed passes.
#[derive(Parser)]
struct Args {
    /// Run this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Run seeds for this long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// First of the seeds; otherwise drawn from the clock.
    #[arg(long)]
    from: Option<u64>,
    /// With --seed: write what happened to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() * 1_000_000);
    let first = args.seed.or(args.from).unwrap_or_else(clock);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let (mut faults, mut events, mut failed) = (Stats::default(), Stats::default(), Vec::new());
    let (mut seeds, mut simulated, mut committed, mut acknowledged) = (0u64, 0u64, 0usize, 0usize);
    println!("seeds from {first}");
    for seed in first.. {
        let report = run(Options::draw(seed, None), args.trace.is_some());
        seeds += 1;
        simulated += report.simulated;
        committed += report.committed;
        acknowledged += report.acknowledged;
        faults.merge(&report.faults);
        events.merge(&report.events);
        if let Some(why) = report.failure {
            println!("seed {seed} FAILED: {why}\n  repeat it with: make sim SEED={seed}");
            failed.push(seed);
        }
        if let Some(file) = &args.trace {
            std::fs::write(file, report.trace)?;
        }
        if args.seed.is_some() || Instant::now() >= end {
            break;
        }
    }
    for (title, stats) in [("faults", &faults), ("events", &events)] {
        println!("{title}:");
        for (what, n) in &stats.0 {
            println!("  {n:>10} {what}");
        }
    }
    let hours = simulated as f64 / 3_600e6;
    println!(
        "{seeds} seeds, {hours:.1} simulated hours, {committed} commits, {acknowledged} acknowledged, {} failures",
        failed.len()
    );
    if !failed.is_empty() {
        println!("failed seeds: {failed:?}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
