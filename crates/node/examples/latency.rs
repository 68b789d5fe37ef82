//! Proposal to verdict at the leader, without PostgreSQL: what the node itself costs.
//!
//! `cargo run --release -p onetrip-node --example latency [seconds per measurement]`
//! Three nodes in one process on loopback, real disks, an entry of one key and 200 bytes.

#[path = "../tests/common/mod.rs"]
mod common;

use anyhow::Result;
use common::{update, Agent, Cluster};
use hdrhistogram::Histogram;
use onetrip_core::agent::VerdictOutcome;
use onetrip_core::LogIndex;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |s| s.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("rtt ms  clients  at        tps   p50 ms   p99 ms   max ms");
    for one_way_ms in [0.0, 5.0] {
        let cluster = Cluster::start(one_way_ms)?;
        runtime.block_on(async {
            cluster.preferred_leads().await?;
            for (place, name) in [(0, "leader"), (1, "follower")] {
                for clients in [1, 10] {
                    let (tps, h) = measure(&cluster, place, clients, Duration::from_secs(seconds)).await?;
                    let ms = |q: f64| h.value_at_quantile(q) as f64 / 1e6;
                    println!(
                        "{:6.1} {clients:8}  {name:8} {tps:6.0} {:8.3} {:8.3} {:8.3}",
                        one_way_ms * 2.0,
                        ms(0.5),
                        ms(0.99),
                        h.max() as f64 / 1e6
                    );
                }
            }
            cluster.stop().await
        })?;
    }
    Ok(())
}

async fn measure(cluster: &Cluster, place: usize, clients: u64, time: Duration) -> Result<(f64, Histogram<u64>)> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for client in 0..clients {
        let agent = cluster.backend(place).await?;
        tasks.push(tokio::spawn(one_client(agent, client, clients, start + time)));
    }
    let mut all = Histogram::new(3)?;
    for task in tasks {
        all.add(task.await??)?;
    }
    Ok((all.len() as f64 / start.elapsed().as_secs_f64(), all))
}

async fn one_client(mut agent: Agent, client: u64, clients: u64, end: Instant) -> Result<Histogram<u64>> {
    let mut h = Histogram::new(3)?;
    // Sequences that no other measurement of this run uses.
    let mut sequence =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64 * 16 + client;
    let mut base = LogIndex(0);
    while Instant::now() < end {
        sequence += clients * 16;
        let before = Instant::now();
        let verdict = agent.commit(sequence, &[update(sequence, base)], &[7; 200]).await?;
        h.record(before.elapsed().as_nanos() as u64)?;
        anyhow::ensure!(matches!(verdict.outcome, VerdictOutcome::Commit | VerdictOutcome::Window), "{verdict:?}");
        base = verdict.at;
    }
    Ok(h)
}
