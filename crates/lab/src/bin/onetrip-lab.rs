//! The `onetrip` command with what only tests ask for: emulated distances, links that can be cut.  Clusters of the lab run it.

use std::process::ExitCode;

fn main() -> ExitCode {
    onetrip_cli::main()
}
