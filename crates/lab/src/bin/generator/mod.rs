//! What the programs behind `make values` and `make poison` have in common, in addition to `program`.

use std::path::PathBuf;

use onetrip_lab::trial::Options;

use super::program::{Common, Place};

#[derive(clap::Args)]
pub struct Generator {
    #[command(flatten)]
    pub common: Common,
    /// Run only this round of the seed
    #[arg(long)]
    round: Option<u64>,
    /// After a finding, continue with a new cluster
    #[arg(long)]
    explore: bool,
    /// Append each finding to this file, on one line
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
