//! The format level in a running cluster of real nodes; PostgreSQL is played by the test.

use crate::common::{update, wait_for, Cluster};
use anyhow::{ensure, Context, Result};
use onetrip_core::agent::VerdictOutcome;
use onetrip_core::{level, Level, LogIndex, MemberRole};
use onetrip_node::AdminRequest;

async fn level_is(cluster: &Cluster, level: Level) -> Result<()> {
    wait_for(&format!("level {level}"), || async {
        for i in (0..cluster.nodes.len()).filter(|i| cluster.nodes[*i].is_some()) {
            let status = cluster.status(i).await?;
            ensure!(status["level"] == level.0, "node {}: {}", i + 1, status["level"]);
        }
        Ok(())
    })
    .await
}

/// Goal: a level that comes into force stays so: after restarts from the log and from a checkpoint, and for a node that
/// joins later.  Transactions commit all the while.
#[tokio::test]
async fn a_level_that_was_raised_stays() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    level_is(&cluster, Level(0)).await?;
    let status = cluster.status(1).await?;
    let peers = status["peers"].as_array().context("peers")?;
    ensure!(peers.iter().all(|peer| peer["level"] == level::KNOWN.0), "{status}");
    cluster.admin(1, AdminRequest::RaiseLevel(level::KNOWN)).await?;
    level_is(&cluster, level::KNOWN).await?;
    for i in 0..3 {
        cluster.stop_node(i).await?;
        cluster.start_node(i)?;
        cluster.preferred_leads().await?;
        level_is(&cluster, level::KNOWN).await?;
    }
    let secret = cluster.token(2, MemberRole::Voter, None).await?;
    let new = cluster.join(2, secret, |_| {}).await?;
    cluster.voters(&[1, 2, 3, 4]).await?;
    level_is(&cluster, level::KNOWN).await?;
    let verdict = cluster.backend(new).await?.commit(1, &[update(1, LogIndex(0))], b"rows").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
    Ok(())
}

/// Goal: a cluster begins with the level in its nodes' files, and a node that begins with another one is refused.
#[tokio::test]
async fn a_cluster_begins_with_a_level() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    for i in 0..2 {
        cluster.configs[i].level = level::KNOWN;
        cluster.configs[i].save()?;
    }
    for i in 0..3 {
        cluster.start_node(i)?;
    }
    wait_for("a leader", || async {
        let status = cluster.status(0).await?;
        ensure!(!status["leader"].is_null() && status["level"] == level::KNOWN.0, "{status}");
        Ok(())
    })
    .await?;
    wait_for("the third to be refused", || async {
        let problems = cluster.status(2).await?["problems"].to_string();
        ensure!(problems.contains("it has begun with other members"), "{problems}");
        Ok(())
    })
    .await
}
