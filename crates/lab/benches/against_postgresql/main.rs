//! What Onetrip's software costs beside PostgreSQL on the same machine, in one run.
//!
//! Two questions, each answered by a table (Markdown, so that it can be kept in docs/measurements/):
//! 1. [`throughput`]: commits in a second and CPU time for each, beside PostgreSQL alone and PostgreSQL with synchronous
//!    standbys, without distance and with it.  All of them share the processors of this machine with the clients.
//! 2. [`statements`]: 100,000 rows in one statement, where each is one crossing.
//!
//! `cargo bench -p onetrip-lab` (or `make bench`); `-- --seconds 10` sets the length of each throughput measurement,
//! `--only throughput` or `--only statements` takes one of the two.

mod server;
mod statements;
mod throughput;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).map(|at| args.get(at + 1));
    let seconds = match value("--seconds") {
        Some(text) => text.context("--seconds takes a number")?.parse().context("read --seconds")?,
        None => 10,
    };
    let only = value("--only").map(|name| name.context("--only takes a name")).transpose()?;
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onetrip-lab"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        if wanted("throughput") {
            throughput::throughput(&binary, seconds).await?;
        }
        if wanted("statements") {
            statements::many_rows(&binary).await?;
        }
        Ok(())
    })
}
