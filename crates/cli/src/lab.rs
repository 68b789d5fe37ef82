//! What the lab's build of the command takes besides.

use clap::Args;

#[derive(Args)]
pub struct LabArgs {
    /// Emulate the topology's round trips and let links be shaped and cut; nothing is encrypted
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
