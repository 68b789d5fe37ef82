//! The options that only the lab's build of the command has.

use clap::Args;

#[derive(Args)]
pub struct LabArgs {
    /// Emulate the topology's round trips, and let tests shape and cut links; nothing is encrypted
    #[cfg(feature = "lab")]
    #[arg(long, hide = true)]
    lab: bool,
}

impl LabArgs {
    pub fn asked(&self) -> bool {
        #[cfg(feature = "lab")]
        return self.lab;
        #[cfg(not(feature = "lab"))]
        false
    }
}
