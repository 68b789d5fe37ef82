//! What the programs behind `make values` and `make poison` have in common besides.

use std::path::PathBuf;

use onetrip_lab::trial::Options;

use super::program::{Common, Place};

#[derive(clap::Args)]
pub struct Generator {
    #[command(flatten)]
    pub common: Common,
    /// This round of the seed alone
    #[arg(long)]
    round: Option<u64>,
    /// Notes what is found and goes on with a new cluster
    #[arg(long)]
    explore: bool,
    /// Appends each finding to this file, a line each
    #[arg(long, value_name = "FILE")]
    findings: Option<PathBuf>,
}

impl Generator {
    pub fn options(&self, place: Place) -> Options {
        let Place { duration, seed, binary, folder } = place;
        let (round, explore, findings) = (self.round, self.explore, self.findings.clone());
        Options { duration, seed, round, binary, folder, explore, findings }
    }
}
