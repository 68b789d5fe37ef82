//! Runs the real pgbench and reads the latency of each transaction from its log.
//!
//! Latencies are those of successful transactions; failed ones (SQLSTATE 40001, 40P01) are only counted.  Any other
//! error makes pgbench fail, and the run with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The histogram records longer latencies as this one, in µs.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// What pgbench may need beyond its measuring time, to connect and to finish what is under way.
const OVERTIME: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Pgbench {
    pub program: PathBuf,
    pub host: String,
    pub port: u16,
    pub user: String,
    pub database: String,
    pub clients: usize,
    pub threads: usize,
    pub seconds: u64,
    /// The text of the script; `None`: pgbench's own tpcb-like script.
    pub script: Option<String>,
    /// The folder for the script and the logs; it must exist, and belong to this run alone.
    pub folder: PathBuf,
}

/// One successful transaction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commit {
    /// When it ended, in seconds after the end of the first one.
    pub at_s: f64,
    pub ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub transactions: u64,
    pub failed: u64,
    pub failed_percent: f64,
    /// Successful transactions per second, without the time to connect.
    pub tps: f64,
    pub min_ms: f64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
    /// For all connections together, as pgbench reports it.
    pub initial_connection_ms: Option<f64>,
}

impl Pgbench {
    pub async fn run(&self) -> Result<Measurement> {
        Ok(self.run_each().await?.0)
    }

    /// Like [`Pgbench::run`], and also returns each successful transaction, in the order in which they ended.
    pub async fn run_each(&self) -> Result<(Measurement, Vec<Commit>)> {
        let prefix = self.folder.join("log");
        let mut args: Vec<OsString> = [
            "-n",
            "-l",
            "-h",
            &self.host,
            "-p",
            &self.port.to_string(),
            "-U",
            &self.user,
            "-c",
            &self.clients.to_string(),
            "-j",
            &self.threads.min(self.clients).to_string(),
            "-T",
            &self.seconds.to_string(),
        ]
        .iter()
        .map(OsString::from)
        .collect();
        args.push(format!("--log-prefix={}", prefix.display()).into());
        if let Some(script) = &self.script {
            let path = self.folder.join("script.sql");
            std::fs::write(&path, script).with_context(|| format!("write {}", path.display()))?;
            args.push("-f".into());
            args.push(path.into());
        }
        args.push(self.database.clone().into());
        let child = tokio::process::Command::new(&self.program)
            .args(&args)
            // What it says is read, and some languages have their own words for "tps".
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal reaches only the program that runs pgbench, which then ends it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let limit = Duration::from_secs(self.seconds) + OVERTIME;
        let output = match tokio::time::timeout(limit, child.wait_with_output()).await {
            Ok(output) => output.context("wait for pgbench")?,
            Err(_) => bail!("pgbench did not end within {} s", limit.as_secs()),
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("pgbench failed ({}): {}", output.status, last_lines(&stderr, 3));
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        let log = read_logs(&self.folder)?;
        summarize(&log, &stdout)
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

/// pgbench writes one file for each of its threads: `log.PID`, `log.PID.1`, ...
fn read_logs(folder: &Path) -> Result<String> {
    let mut log = String::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("log.")) {
            log += &std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok(log)
}

/// `log` has lines of "client transaction latency_us script epoch_s epoch_us"; a failed transaction has a word as
/// latency.
fn summarize(log: &str, stdout: &str) -> Result<(Measurement, Vec<Commit>)> {
    let mut latencies = Histogram::<u64>::new_with_bounds(1, LATENCY_US_MAX, 3).context("make a histogram")?;
    let mut sum_us = 0u128;
    let mut failed = 0u64;
    let mut ended = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, latency, _, epoch_s, epoch_us, ..] = words[..] else { bail!("pgbench logged {line:?}") };
        match latency.parse::<u64>() {
            Ok(us) => {
                latencies.saturating_record(us);
                sum_us += u128::from(us);
                let at = (epoch_s.parse::<u64>().ok()).zip(epoch_us.parse::<u64>().ok());
                let (s, fraction_us) = at.with_context(|| format!("pgbench logged {line:?}"))?;
                ended.push((s * 1_000_000 + fraction_us, us));
            }
            Err(_) if matches!(latency, "failed" | "serialization" | "deadlock") => failed += 1,
            Err(_) => bail!("pgbench logged {line:?}"),
        }
    }
    let transactions = latencies.len();
    if transactions == 0 {
        bail!("no transaction succeeded ({failed} failed)");
    }
    let tps = number_after(stdout, "tps = ").context("pgbench did not say its tps")?;
    let ms = |us: u64| us as f64 / 1_000.0;
    let measurement = Measurement {
        transactions,
        failed,
        failed_percent: 100.0 * failed as f64 / (transactions + failed) as f64,
        tps,
        min_ms: ms(latencies.min()),
        mean_ms: sum_us as f64 / transactions as f64 / 1_000.0,
        p50_ms: ms(latencies.value_at_quantile(0.50)),
        p99_ms: ms(latencies.value_at_quantile(0.99)),
        p999_ms: ms(latencies.value_at_quantile(0.999)),
        max_ms: ms(latencies.max()),
        initial_connection_ms: number_after(stdout, "initial connection time = "),
    };
    ended.sort_unstable();
    let first = ended.first().map_or(0, |(at, _)| *at);
    let commit = |(at, us): &(u64, u64)| Commit { at_s: (at - first) as f64 / 1e6, ms: ms(*us) };
    Ok((measurement, ended.iter().map(commit).collect()))
}

fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = &text[text.find(label)? + label.len()..];
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STDOUT: &str = "latency average = 2.0 ms\ninitial connection time = 12.5 ms\n\
                          tps = 833.250000 (without initial connection time)\n";

    #[test]
    fn a_log_becomes_latencies_and_failures() {
        let log =
            "0 1 1000 0 1700000000 1\n1 1 3000 0 1700000001 2\n0 2 failed 0 1700000000 3\n1 2 8000 0 1700000000 4\n";
        let (m, commits) = summarize(log, STDOUT).unwrap();
        assert_eq!((m.transactions, m.failed, m.failed_percent), (3, 1, 25.0));
        assert_eq!((m.tps, m.mean_ms, m.initial_connection_ms), (833.25, 4.0, Some(12.5)));
        assert_eq!(m.min_ms, 1.0);
        let at = |at_s, ms| Commit { at_s, ms };
        assert_eq!(commits, [at(0.0, 1.0), at(0.000_003, 8.0), at(1.000_001, 3.0)]);
        assert!((m.p50_ms - 3.0).abs() < 0.01 && (m.p99_ms - 8.0).abs() < 0.01, "{m:?}");
    }

    #[test]
    fn what_is_not_a_log_is_refused() {
        assert!(summarize("", STDOUT).is_err(), "nothing succeeded");
        assert!(summarize("0 1 failed 0 1 1\n", STDOUT).is_err(), "nothing succeeded");
        assert!(summarize("0 1\n", STDOUT).is_err());
        assert!(summarize("0 1 soon 0 1 1\n", STDOUT).is_err());
        assert!(summarize("0 1 1000 0 1 1\n", "").is_err(), "no tps");
    }
}
