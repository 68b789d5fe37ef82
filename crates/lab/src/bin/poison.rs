//! `make poison`: runs `onetrip_lab::poison` with the `onetrip-lab` command beside this program.

mod generator;
mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::poison::run;

/// Run random definitions, rows, roles and functions from three regions at once, and check that all regions stay equal
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    generator: generator::Generator,
}

fn main() -> ExitCode {
    let generator = Args::parse().generator;
    program::run("poison", &generator.common, |place| async {
        let report = run(&generator.options(place)).await?;
        Ok((report.table(), report.held()))
    })
}
