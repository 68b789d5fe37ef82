//! The `onetrip` command, as it is shipped.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo gives every program of one build the features that any of them asks for.
    if onetrip_cli::IS_FOR_TESTS {
        eprintln!(
            "onetrip: this was built together with the lab, for tests; build the command for use alone: make build"
        );
        return ExitCode::from(2);
    }
    onetrip_cli::main()
}
