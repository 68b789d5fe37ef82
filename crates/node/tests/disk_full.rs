//! The disk is full: the node stops and says why, and nothing that was acknowledged is lost.
//!
//! The test is alone in its file, since a limit on file sizes plays the full disk, and that applies to the whole
//! process.

mod common;

use anyhow::{ensure, Context, Result};
use common::Cluster;
use onetrip_core::agent::{FromPostgres, OutcomeState, ToPostgres, VerdictOutcome};
use std::time::Duration;

fn limit_file_size(bytes: libc::rlim_t) -> Result<()> {
    let hard = libc::RLIM_INFINITY;
    // SAFETY: plain system calls; the signal would otherwise end the process instead of failing the write.
    let rc = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &libc::rlimit { rlim_cur: bytes, rlim_max: hard })
    };
    ensure!(rc == 0, std::io::Error::last_os_error());
    Ok(())
}

#[tokio::test]
async fn a_node_whose_disk_is_full_stops_with_the_reason_and_loses_nothing() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    limit_file_size(5 << 20)?;
    let mut acknowledged = Vec::new();
    for n in 1..=20 {
        match backend.commit(n, &[], &vec![n as u8; 900_000]).await {
            Ok(verdict) => {
                ensure!(verdict.outcome == VerdictOutcome::Commit);
                acknowledged.push((n, verdict.at));
            }
            Err(_) => break,
        }
    }
    ensure!(!acknowledged.is_empty() && acknowledged.len() < 20, "{} went through", acknowledged.len());
    for (node, config) in cluster.nodes.iter_mut().zip(&cluster.configs) {
        let mut node = node.take().context("it runs")?;
        let error = tokio::time::timeout(Duration::from_secs(20), node.failed()).await?.expect_err("it goes on");
        let error = error.to_string();
        ensure!(error.contains(config.data_dir.to_str().context("path")?), "{error}");
        ensure!(error.contains("File too large") && error.contains("space aside"), "{error}");
        ensure!(node.stop().await.is_err());
    }
    limit_file_size(libc::RLIM_INFINITY)?;
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    let last = backend.commit(100, &[], b"").await?;
    for (n, at) in acknowledged {
        let txn = backend.txn(n);
        backend.send(&FromPostgres::Outcome(txn)).await?;
        let answer = backend.receive().await?;
        ensure!(answer == ToPostgres::OutcomeIs { txn, state: OutcomeState::Committed, at }, "{answer:?}");
        ensure!(at < last.at);
    }
    cluster.stop().await
}
