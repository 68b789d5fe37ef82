//! The `onetrip` command, as it is shipped.

use onetrip_client::complain;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo builds all programs of one call with every feature that any of them asks for.
    if onetrip_cli::IS_FOR_TESTS {
        complain!(
            "onetrip: this was built together with the lab, for tests only; build the command by itself: make build"
        );
        return ExitCode::from(2);
    }
    onetrip_cli::main()
}
