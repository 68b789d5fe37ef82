//! `make values`: runs `onetrip_lab::values` with the `onetrip-lab` command beside this program.

mod generator;
mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::values::{run, Options};

/// Store values of every type, made by functions rather than by input, in every way, and check that all regions stay
/// equal
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    generator: generator::Generator,
    /// Only one plain table for each type, with rows from one region
    #[arg(long)]
    census: bool,
    /// Continue until each type has had a round
    #[arg(long)]
    sweep: bool,
    /// Only types whose name contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let Args { generator, census, sweep, only } = Args::parse();
    program::run("values", &generator.common, |place| async {
        let report = run(&Options { trial: generator.options(place), sweep, census, only }).await?;
        Ok((report.table(), report.held()))
    })
}
