//! Runs the generators of [`crate::values`], [`crate::poison`] and [`crate::pairs`]: starts a cluster, runs rounds that
//! are drawn from a seed, and collects what they find.  A round that finds something ends the run; with `explore`, the
//! run continues with a new cluster.
//!
//! - [`sql`]: runs statements, with a limit on every wait
//! - [`standing`]: at which entry each region is, and which region is stuck

pub mod sql;
pub mod standing;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::torture::random::Random;
use crate::Cluster;
use sql::shortened;

pub const REGIONS: usize = 3;

pub struct Options {
    /// The run ends after the first round that ends later than this.
    pub duration: Duration,
    pub seed: u64,
    /// Run only this round.
    pub round: Option<u64>,
    /// The `onetrip` command.
    pub binary: PathBuf,
    pub folder: PathBuf,
    /// After a finding, continue with a new cluster.
    pub explore: bool,
    /// The file to which each finding is appended, on one line.
    pub findings: Option<PathBuf>,
}

impl Options {
    /// What a round draws from; it does not depend on the rounds before.
    pub fn random(&self, round: u64) -> Random {
        Random::new(self.seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15)).child()
    }
}

/// Something that must not happen.
#[derive(Debug, Clone)]
pub struct Finding {
    pub round: u64,
    pub what: String,
    /// The type that it is about; empty if it is not about a type.
    pub type_name: String,
    pub statement: String,
    pub message: String,
}

impl Finding {
    fn of_round(round: u64, what: &str, message: String) -> Finding {
        Finding { round, what: what.to_string(), type_name: String::new(), statement: String::new(), message }
    }
}

/// A generator: what it does with a cluster, round by round.
pub(crate) trait Trial {
    /// The target of the Makefile.
    const NAME: &'static str;
    /// Each server's settings, in addition to those of every run.
    const SETTINGS: &'static [(&'static str, &'static str)];

    /// Prepares a new cluster for the rounds.
    async fn begin(&mut self, cluster: &Cluster) -> Result<()>;

    /// Whether nothing is left to do; `over`: the time is over.
    fn enough(&self, round: u64, over: bool) -> bool;

    /// Runs a round.  Without findings it leaves the cluster as it was before.
    async fn round(&mut self, cluster: &Cluster, round: u64) -> Result<Vec<Finding>>;
}

/// Runs the rounds; returns how many there were, and what they found.
pub(crate) async fn run<T: Trial>(trial: &mut T, options: &Options) -> Result<(u64, Vec<Finding>)> {
    let (mut rounds, mut findings, mut clusters) = (0, Vec::new(), 0);
    let mut cluster = start(trial, options, clusters).await?;
    let began = Instant::now();
    for number in 0.. {
        let number = options.round.unwrap_or(number);
        if options.round.is_none() && trial.enough(number, began.elapsed() >= options.duration) {
            break;
        }
        let round = trial.round(&cluster, number).await;
        let found =
            round.unwrap_or_else(|why| vec![Finding::of_round(number, "a round broke off", format!("{why:#}"))]);
        rounds += 1;
        let broken = !found.is_empty();
        found.iter().for_each(|finding| tell::<T>(options, finding));
        findings.extend(found);
        if options.round.is_some() || (broken && !options.explore) {
            break;
        }
        if broken {
            drop(cluster);
            clusters += 1;
            cluster = start(trial, options, clusters).await?;
        }
    }
    // After a finding a region may be stuck, so that its server does not stop in time.
    if findings.is_empty() {
        if let Err(why) = cluster.stop().await {
            findings.push(Finding::of_round(rounds, "stopping", format!("{why:#}")));
        }
    }
    Ok((rounds, findings))
}

async fn start<T: Trial>(trial: &mut T, options: &Options, number: u32) -> Result<Cluster> {
    let mut builder = Cluster::builder()
        .binary(&options.binary)
        .folder(options.folder.join(number.to_string()))
        .postgres_setting("log_line_prefix", "%m [%p] %a %e ")
        .postgres_setting("max_connections", "50");
    for (name, value) in T::SETTINGS {
        builder = builder.postgres_setting(name, value);
    }
    let cluster = builder.start().await?;
    trial.begin(&cluster).await?;
    Ok(cluster)
}

fn tell<T: Trial>(options: &Options, finding: &Finding) {
    let Finding { round, what, type_name, statement, message } = finding;
    let (name, seed) = (T::NAME, options.seed);
    let of_type = if type_name.is_empty() { String::new() } else { format!("  type:      {type_name}\n") };
    println!("{name}: {what}\n{of_type}  statement: {statement}\n  message:   {message}");
    println!("  run again: make {name} SEED={seed} ARGS='--round {round}'");
    let Some(path) = &options.findings else { return };
    let line = |text: &str, length| shortened(&text.replace('\n', " "), length);
    let (statement, message) = (line(statement, 3_000), line(message, 1_500));
    let line = format!("{name} seed {seed} round {round} / {what} / {type_name} / {statement} / {message}\n");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(why) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("{name}: {}: {why}", path.display());
    }
}
