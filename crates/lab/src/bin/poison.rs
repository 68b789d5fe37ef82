//! `make poison`: the generator of `onetrip_lab::poison` on the `onetrip-lab` command that lies beside this program.

mod generator;
mod program;

use std::process::ExitCode;

use clap::Parser;
use onetrip_lab::poison::run;

/// Random definitions, rows, roles and functions from three regions at once: are all regions alike?
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
