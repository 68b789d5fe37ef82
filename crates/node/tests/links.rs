//! Links that lose, duplicate, delay and reorder frames make a cluster slower, and do no other harm.

use crate::common::{http, update, wait_for, Agent, Cluster};
use anyhow::{ensure, Result};
use onetrip_core::agent::VerdictOutcome;
use onetrip_core::{LogIndex, TxnId};
use std::collections::BTreeSet;

const EACH: u64 = 40;

async fn set_all(cluster: &Cluster, settings: &str) -> Result<()> {
    for from in 0..3 {
        for to in (1..=3).filter(|to| *to != from + 1) {
            let body = format!("{{\"peer\": {to}, {settings}}}");
            http(cluster.configs[from].http, "POST", "/links", &body).await?;
        }
    }
    Ok(())
}

async fn commit_all(mut agent: Agent) -> Result<Agent> {
    for sequence in 1..=EACH {
        // Each transaction has a key of its own, so none conflicts with another.
        let key = update(u64::from(agent.node.0) << 32 | sequence, LogIndex(0));
        let verdict = agent.commit(sequence, &[key], b"once").await?;
        ensure!(verdict.outcome == VerdictOutcome::Commit, "{sequence}: {verdict:?}");
    }
    Ok(agent)
}

/// All regions commit at once over bad links.  Afterwards every apply worker gets the same transactions, each once and
/// in the same order.
#[tokio::test]
async fn bad_links_lose_and_double_no_transaction() -> Result<()> {
    let cluster = Cluster::start(1.0)?;
    cluster.preferred_leads().await?;
    set_all(&cluster, "\"loss\": 0.05, \"duplicate\": 0.1, \"jitter_ms\": 8, \"mbit_per_s\": 50").await?;
    let (a, b, c) = (cluster.backend(0).await?, cluster.backend(1).await?, cluster.backend(2).await?);
    // The connections stay open to the end.  Otherwise the node could not know whether the last transactions had
    // committed.
    let _agents = tokio::try_join!(commit_all(a), commit_all(b), commit_all(c))?;
    set_all(&cluster, "\"loss\": 0, \"duplicate\": 0, \"jitter_ms\": 0, \"mbit_per_s\": 0").await?;

    let mut orders: Vec<Vec<(LogIndex, TxnId)>> = Vec::new();
    for node in 0..3 {
        // Until every node has decided all of them.
        wait_for("the last of them", || async {
            let ahead = cluster.status(0).await?["decided"].as_u64();
            ensure!(cluster.status(node).await?["decided"].as_u64() == ahead);
            Ok(())
        })
        .await?;
        let mut worker = cluster.worker(node, LogIndex(0)).await?;
        let mut order = Vec::new();
        while order.len() < 3 * EACH as usize {
            let (at, previous, txn, _) = worker.entry().await?;
            ensure!(previous == order.last().map_or(LogIndex(0), |(at, _)| *at), "node {node} at {at}");
            order.push((at, txn));
            worker.position(at).await?;
        }
        orders.push(order);
    }
    ensure!(orders[0] == orders[1] && orders[1] == orders[2]);
    let once: BTreeSet<_> = orders[0].iter().map(|(_, txn)| *txn).collect();
    ensure!(once.len() == 3 * EACH as usize, "a transaction came twice");
    cluster.stop().await
}
