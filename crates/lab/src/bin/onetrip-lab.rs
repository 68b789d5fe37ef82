//! The `onetrip` command with what only tests need: emulated distances, and links that can be cut.  The lab's clusters
//! run it.

use std::process::ExitCode;

fn main() -> ExitCode {
    onetrip_cli::main()
}
