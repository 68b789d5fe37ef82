//! Fresh reads: the index in a node's answer covers everything that was acknowledged in any region before the node was
//! asked.

use crate::common::{update, Agent, Cluster};
use anyhow::{ensure, Result};
use onetrip_core::agent::{FromPostgres, ToPostgres, VerdictOutcome};
use onetrip_core::LogIndex;
use std::time::Duration;

async fn read(backend: &mut Agent, number: u64) -> Result<LogIndex> {
    backend.send(&FromPostgres::Read { number, may_ask: true }).await?;
    answer(backend, number).await
}

async fn answer(backend: &mut Agent, number: u64) -> Result<LogIndex> {
    match backend.receive().await? {
        ToPostgres::ReadAt { number: answered, at, .. } if answered == number => Ok(at),
        other => anyhow::bail!("READ {number} was answered with {other:?}"),
    }
}

#[tokio::test]
async fn each_region_names_what_was_acknowledged_in_another() -> Result<()> {
    let mut cluster = Cluster::start(2.0)?;
    cluster.preferred_leads().await?;
    let mut backends = Vec::new();
    for i in 0..3 {
        backends.push(cluster.backend(i).await?);
    }
    let mut base = LogIndex(0);
    for round in 1..=30 {
        let writer = round as usize % 3;
        let verdict = backends[writer].commit(round, &[update(7, base)], b"x").await?;
        ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
        base = verdict.at;
        for (i, backend) in backends.iter_mut().enumerate() {
            let at = read(backend, round).await?;
            ensure!(at >= verdict.at, "acknowledged at {} in region {writer}, region {i} names {at}", verdict.at);
        }
    }
    // Two of three nodes are a majority.
    cluster.stop_node(1).await?;
    let verdict = backends[2].commit(31, &[update(7, base)], b"x").await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{verdict:?}");
    ensure!(read(&mut backends[0], 31).await? >= verdict.at);
    // One is not: there is no answer until there is a majority again.
    cluster.stop_node(2).await?;
    backends[0].send(&FromPostgres::Read { number: 32, may_ask: true }).await?;
    let early = tokio::time::timeout(Duration::from_secs(1), backends[0].receive()).await;
    ensure!(early.is_err(), "without a majority it says {early:?}");
    cluster.start_node(1)?;
    ensure!(answer(&mut backends[0], 32).await? >= verdict.at);
    cluster.stop().await
}

/// A backend that gives up on a READ and sends another one gets no answer to the first that could pass for one to the
/// second.
#[tokio::test]
async fn a_read_that_was_given_up_is_not_answered_in_place_of_the_next() -> Result<()> {
    let mut cluster = Cluster::start(0.0)?;
    cluster.preferred_leads().await?;
    let mut backend = cluster.backend(0).await?;
    for i in 1..3 {
        cluster.stop_node(i).await?;
    }
    for number in 1..=100 {
        backend.send(&FromPostgres::Read { number, may_ask: true }).await?;
    }
    cluster.start_node(1)?;
    answer(&mut backend, 100).await?;
    cluster.stop().await
}
