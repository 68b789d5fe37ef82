//! How many files the node may have open.
//!
//! Many systems let a process open 1,024 unless it asks for more.  Each session that writes has a connection to the
//! node, each 64 MiB of the log are a file, and a node that cannot open a file of its log ends.

use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// As many as systemd's unit allows (`packaging/onetrip@.service.in`).  Not more, since PostgreSQL and what it runs get
/// the limit too, and some programs try to close each file that they could have open.
const ENOUGH: u64 = 65_536;

/// Asks for more if the process may.  Returns how many it may open then.
pub(crate) fn raise_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return ENOUGH };
    let wanted = ENOUGH.min(hard);
    if soft >= wanted {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(e) => {
            tracing::warn!("cannot raise the limit of open files from {soft} to {wanted}: {e}");
            soft
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const INNER: &str = "files::tests::the_limit_is_raised_as_far_as_the_system_allows";

    /// Method: the test runs itself in processes with other limits.
    #[test]
    fn the_limit_is_raised_as_far_as_the_system_allows() {
        if let Ok(wanted) = std::env::var("ONETRIP_TEST_FILES") {
            assert_eq!(raise_limit().to_string(), wanted);
            assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0.to_string(), wanted);
            return;
        }
        for (limits, wanted) in [("-S -n 256", None), ("-n 300", Some(300)), ("-S -n 300; ulimit -H -n 400", Some(400))]
        {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            let wanted = wanted.unwrap_or(ENOUGH.min(hard));
            let mut inner = Command::new("sh");
            inner.arg("-c").arg(format!("ulimit {limits}; exec \"$0\" --exact {INNER}"));
            inner.arg(std::env::current_exe().unwrap()).env("ONETRIP_TEST_FILES", wanted.to_string());
            let output = inner.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{limits}: {said}");
        }
    }
}
