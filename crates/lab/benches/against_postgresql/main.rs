//! What Onetrip costs compared with PostgreSQL on the same machine, measured in one run.
//!
//! Each part is a module that makes a section of the page (docs/testing.md, "Measurements"):
//!
//! | part | question |
//! |---|---|
//! | [`published`] | the demo's table, beside published figures of other databases |
//! | [`regions`] | how near is a commit to the limit in each region; a scatter plot of all commits |
//! | [`throughput`] | commits a second and what each costs, with 1 to 64 clients |
//! | [`indexes`], [`rows`], [`voters`] | the same with more indexes, rows in a transaction, and voters |
//! | [`statements`] | 100,000 rows in one statement, which crosses regions once |
//! | [`far`] | reads and updates 78 and 100 ms from the others, beside published figures of other databases |
//! | [`hot`] | rows that all regions change at once: who fails, who gets through, and after how long |
//! | [`leases`] | what read leases cost commits |
//!
//! A run of all parts writes a page (README.md, raw.tsv, drawings) to docs/measurements/DATE-bench or `--out`, and the
//! tables between the marks in the README of the repository and in docs/comparison.md.  `--only regions,rows` runs only
//! these parts; their tables then go to standard output, to `--out` if it is given, and never to these pages.

mod far;
mod figure;
mod hot;
mod indexes;
mod leases;
mod published;
mod regions;
mod report;
mod rows;
mod server;
mod stand;
mod statements;
mod throughput;
mod voters;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use onetrip_lab::machine::repository;
use onetrip_lab::traffic::Sockets;

use figure::Figure;

/// Measure Onetrip beside PostgreSQL, and write a page of results and the tables that other pages show
#[derive(Parser)]
#[command(name = "make bench")]
struct Args {
    /// Length of each measurement; some take a multiple of it
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Run only these parts, and leave other pages alone
    #[arg(long, value_delimiter = ',', value_enum, value_name = "PART,...")]
    only: Vec<Part>,
    /// Folder for the page, from the repository's root [default: docs/measurements/DATE-bench; with --only: none]
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Cargo passes this to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Published,
    Regions,
    Throughput,
    Indexes,
    Rows,
    Statements,
    Voters,
    Far,
    Hot,
    Leases,
}

pub struct Bench {
    /// The command that the nodes run.
    binary: PathBuf,
    seconds: u64,
    /// The command that repeats this run.
    command: String,
}

/// What a part has measured.
pub struct Section {
    heading: &'static str,
    /// What the page has below the section's heading.
    text: String,
    /// What pages show of it, with links as they are from the repository's root; may be empty.
    shown: String,
    figures: Vec<Figure>,
    /// Names and contents of files beside the page.
    files: Vec<(&'static str, String)>,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Published => "published",
            Part::Regions => "regions",
            Part::Throughput => "throughput",
            Part::Indexes => "indexes",
            Part::Rows => "rows",
            Part::Statements => "statements",
            Part::Voters => "voters",
            Part::Far => "far",
            Part::Hot => "hot",
            Part::Leases => "leases",
        }
    }

    async fn section(self, bench: &Bench) -> Result<Section> {
        match self {
            Part::Published => published::section(bench).await,
            Part::Regions => regions::section(bench).await,
            Part::Throughput => throughput::section(bench).await,
            Part::Indexes => indexes::section(bench).await,
            Part::Rows => rows::section(bench).await,
            Part::Statements => statements::section(bench).await,
            Part::Voters => voters::section(bench).await,
            Part::Far => far::section(bench).await,
            Part::Hot => hot::section(bench).await,
            Part::Leases => leases::section(bench).await,
        }
    }
}

/// The command of this run, as a person would type it.
fn command(args: &Args) -> String {
    let mut words = Vec::new();
    if args.seconds != 5 {
        words.push(format!("--seconds {}", args.seconds));
    }
    if !args.only.is_empty() {
        let names: Vec<&str> = args.only.iter().map(|part| part.name()).collect();
        words.push(format!("--only {}", names.join(",")));
    }
    words.extend(args.out.iter().map(|out| format!("--out {out}")));
    if words.is_empty() {
        return "make bench".into();
    }
    format!("make bench ARGS=\"{}\"", words.join(" "))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let whole = args.only.is_empty();
    let binary = std::env::var_os("ONETRIP_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_onetrip-lab").into());
    let bench = Bench { binary: binary.into(), seconds: args.seconds, command: command(&args) };
    let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let today = today.split_once('T').map_or("", |(date, _)| date);
    let out = args.out.or(whole.then(|| format!("docs/measurements/{today}-bench")));
    // These would otherwise fail only after many minutes.
    Sockets::of(&BTreeSet::new())?;
    if whole {
        report::check_places()?;
    }
    let before = report::Before::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut sections = Vec::new();
    for part in Part::value_variants().iter().filter(|part| whole || args.only.contains(part)) {
        let start = Instant::now();
        let section = runtime.block_on(part.section(&bench)).with_context(|| format!("measure {}", part.name()))?;
        println!("\n## {}\n{}", section.heading, section.text);
        eprintln!("bench: {} took {:.0} s", part.name(), start.elapsed().as_secs_f64());
        sections.push((part.name(), section));
    }
    if let Some(out) = &out {
        // cargo runs a bench in its package's folder.
        report::write_page(&bench, &before, &sections, &repository().join(out))?;
    }
    if let Some(out) = out.filter(|_| whole) {
        report::show(&before, &sections, &out)?;
        eprintln!(
            "bench: {out}/README.md, README.md and docs/comparison.md are written; describe the results between the page's marks"
        );
    }
    Ok(())
}
