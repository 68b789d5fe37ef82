//! `make pairs`: runs `onetrip_lab::pairs` with the `onetrip-lab` command beside this program.

mod generator;
mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::pairs::{run, Options};

/// Have every feature of PostgreSQL meet every other, and compare what comes of it with PostgreSQL
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    generator: generator::Generator,
    /// Do not end before every pair has had its turn
    #[arg(long)]
    sweep: bool,
    /// Only pairs of which one feature's name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

fn main() -> ExitCode {
    let Args { generator, sweep, only } = Args::parse();
    program::run("pairs", &generator.common, |place| async {
        let report = run(&Options { trial: generator.options(place), sweep, only }).await?;
        Ok((report.table(), report.held()))
    })
}
