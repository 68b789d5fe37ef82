//! `make values`: the generator of `onetrip_lab::values` on the `onetrip-lab` command that lies beside this program.

mod generator;
mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::values::{run, Options};

/// Values of every type, made by functions and not by input, stored in every way: are all regions alike?
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    generator: generator::Generator,
    /// One plain table of each type, rows of one region
    #[arg(long)]
    census: bool,
    /// Goes on until each type has had a round
    #[arg(long)]
    sweep: bool,
    /// Only types whose name has this in it; may be given several times
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
