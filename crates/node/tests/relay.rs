//! Several nodes in one region: entries cross to it once, and a relay that stands still holds nothing up.

use crate::common::{http, update, wait_for, Agent, Cluster};
use anyhow::{ensure, Context, Result};
use onetrip_core::agent::VerdictOutcome;
use onetrip_core::LogIndex;

const BYTES: usize = 50_000;
/// The nodes in the region with several, by place.
const FAR: [usize; 3] = [1, 2, 3];

async fn commit(agent: &mut Agent, sequence: u64) -> Result<()> {
    let verdict = agent.commit(sequence, &[update(sequence, LogIndex(0))], &vec![7; BYTES]).await?;
    ensure!(verdict.outcome == VerdictOutcome::Commit, "{sequence}: {verdict:?}");
    Ok(())
}

/// What node `from` has counted in frames for the region with several nodes.
async fn counted(cluster: &Cluster, from: usize, what: &str) -> Result<u64> {
    let status = cluster.status(from).await?;
    let peers = status["peers"].as_array().context("peers")?;
    Ok(peers.iter().filter(|p| p["region"] == "r2").filter_map(|p| p[what].as_u64()).sum())
}

async fn all_have(cluster: &Cluster, places: impl IntoIterator<Item = usize>) -> Result<()> {
    let last = cluster.status(0).await?["decided"].as_u64();
    for i in places {
        wait_for("all entries", || async {
            ensure!(cluster.status(i).await?["decided"].as_u64() >= last, "node {} is behind", i + 1);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A cluster whose leader, the only node in r1, has begun to use a relay in r2.
async fn relaying(one_way_ms: f64, agent_sequence: &mut u64) -> Result<(Cluster, Agent)> {
    let cluster = Cluster::start_in(&["r1", "r2", "r2", "r2", "r3"], one_way_ms)?;
    cluster.preferred_leads().await?;
    let mut agent = cluster.backend(0).await?;
    loop {
        *agent_sequence += 1;
        ensure!(*agent_sequence < 300, "nobody is a relay");
        commit(&mut agent, *agent_sequence).await?;
        for i in FAR {
            if counted(&cluster, i, "relayed_bytes").await? > 0 {
                return Ok((cluster, agent));
            }
        }
    }
}

#[tokio::test]
async fn entries_cross_to_a_region_with_several_nodes_once() -> Result<()> {
    const COMMITS: u64 = 20;
    let mut sequence = 0;
    // So far that a busy machine is not taken for a late member.
    let (cluster, mut agent) = relaying(200.0, &mut sequence).await?;
    let before = counted(&cluster, 0, "sent_bytes").await?;
    for n in 1..=COMMITS {
        commit(&mut agent, sequence + n).await?;
    }
    all_have(&cluster, 0..5).await?;
    let crossed = counted(&cluster, 0, "sent_bytes").await? - before;
    let entries = COMMITS * BYTES as u64;
    // Three copies without a relay.
    ensure!(crossed < entries * 3 / 2, "{crossed} bytes crossed for entries of {entries}");
    cluster.stop().await
}

/// Goal: while a relay stands still, commits go on, and the others of its region get all of them.  Method: nothing that
/// it sends leaves it any more, as in a process that is stopped.
#[tokio::test]
async fn a_relay_that_stands_still_holds_nothing_up() -> Result<()> {
    pass_by(&[1, 2, 3, 4, 5], "\"cut\": true").await
}

/// The same for one that acknowledges and is heard of, and hands nothing on.
#[tokio::test]
async fn a_relay_that_hands_nothing_on_holds_nothing_up() -> Result<()> {
    pass_by(&[2, 3, 4], "\"loss\": 1").await
}

/// What happens to the links from the relay to these nodes.
async fn pass_by(to: &[usize], settings: &str) -> Result<()> {
    const COMMITS: u64 = 240;
    let mut sequence = 0;
    let (cluster, mut agent) = relaying(20.0, &mut sequence).await?;
    // Until the one that is the relay now has nothing more to say.
    let before = [
        counted(&cluster, 1, "relayed_bytes").await?,
        counted(&cluster, 2, "relayed_bytes").await?,
        counted(&cluster, 3, "relayed_bytes").await?,
    ];
    sequence += 1;
    commit(&mut agent, sequence).await?;
    all_have(&cluster, FAR).await?;
    let mut still = None;
    for (n, i) in FAR.into_iter().enumerate() {
        if counted(&cluster, i, "relayed_bytes").await? > before[n] {
            still = Some(i);
        }
    }
    let still = still.unwrap_or(FAR[0]);
    for peer in to.iter().filter(|peer| **peer != still + 1) {
        let body = format!("{{\"peer\": {peer}, {settings}}}");
        http(cluster.configs[still].http, "POST", "/links", &body).await?;
    }
    let handed_on = counted(&cluster, still, "relayed_bytes").await?;
    for n in 1..=COMMITS {
        commit(&mut agent, sequence + n).await?;
    }
    // Raft alone would not do it: what follows an append takes the same way.
    all_have(&cluster, (0..5).filter(|i| *i != still)).await?;
    // What was on its way waited, of more than 400 appends that it would have handed on; and what it was given when it,
    // or a follower that it does not reach, was tried again, which is done less and less often.
    let in_vain = counted(&cluster, still, "relayed_bytes").await? - handed_on;
    ensure!(in_vain < COMMITS * BYTES as u64 / 3, "{in_vain} bytes were given to it in vain");
    cluster.stop().await
}
