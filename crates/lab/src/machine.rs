//! What a measurement ran on: the commit, the machine and its programs, as a page of figures names them.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the sources that this program was built from.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The trimmed standard output of a program, or why it could not be started.
pub fn says(program: impl AsRef<OsStr>, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(repository()).output();
    output.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}

/// The commit that is checked out.
pub fn commit() -> String {
    says("git", &["rev-parse", "--short", "HEAD"])
}

/// The load averages of the last 1, 5 and 15 minutes.
pub fn load_averages() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

pub struct Machine {
    pub cores: usize,
    pub processor: String,
    pub postgres: String,
}

impl Machine {
    pub fn here() -> Machine {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: model.trim_start_matches(['\t', ':', ' ']).to_string(),
            postgres: says(crate::postgres_bin().join("postgres"), &["--version"])
                .replace("postgres (PostgreSQL)", "PostgreSQL"),
        }
    }
}

/// For example "2 cores (name of the processor), PostgreSQL 15.20".
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores ({}), {}", self.cores, self.processor, self.postgres)
    }
}
