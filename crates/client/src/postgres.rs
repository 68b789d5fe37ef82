//! Where PostgreSQL's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

/// The folder that `ONETRIP_POSTGRES_BIN` names, else the folder of Debian's PostgreSQL 15.
pub fn usual_bin_dir() -> PathBuf {
    std::env::var_os("ONETRIP_POSTGRES_BIN").map_or_else(|| "/usr/lib/postgresql/15/bin".into(), Into::into)
}

/// `given` as an absolute path, else [`usual_bin_dir`] if it contains `postgres`, else what `pg_config` says.
pub fn bin_dir(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).context("find bin_dir");
    }
    let usual = usual_bin_dir();
    if usual.join("postgres").is_file() {
        return Ok(usual);
    }
    match Command::new("pg_config").arg("--bindir").output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        _ => bail!("PostgreSQL is not in {}: install postgresql-15 or name its folder with --bin-dir", usual.display()),
    }
}
