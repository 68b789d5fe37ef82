//! What does a fresh read cost, in each region, beside a local one?
//!
//! topologies/us.toml.  One client in each region reads one row by its key, first locally, then fresh, each read a
//! transaction of its own: once while nobody writes, and once while two clients of every region update other rows of
//! the table.  Median, 99th percentile and slowest, and the median as a multiple of the round trip to the nearest
//! majority.
//!
//! `cargo bench -p onetrip-lab --bench fresh_reads`; the table goes to standard output.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::{Cluster, Topology};
use tokio_postgres::Client;

const WRITERS: usize = 2;
const ROWS_EACH: usize = 100;
const FOR: Duration = Duration::from_secs(10);

async fn write(client: Client, writer: usize, stop: Arc<AtomicBool>) -> Result<()> {
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        at = (at + 1) % ROWS_EACH;
        client.batch_execute(&format!("update rows set n = n + 1 where id = {}", writer * ROWS_EACH + at)).await?;
    }
    Ok(())
}

/// Milliseconds of each read, the fastest first.
async fn reads(client: Client, setting: &str) -> Result<Vec<f64>> {
    client.batch_execute(&format!("set onetrip.read = {setting}")).await?;
    let read = client.prepare("select n from rows where id = -1").await?;
    let (began, mut took) = (Instant::now(), Vec::new());
    while began.elapsed() < FOR {
        let sent = Instant::now();
        client.query_one(&read, &[]).await?;
        took.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_unstable_by(f64::total_cmp);
    Ok(took)
}

async fn measure() -> Result<()> {
    let topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).start().await?;
    let leader = cluster.settled().await?;
    let regions = cluster.nodes().len();
    let tables = format!(
        "create table rows (id int primary key, n bigint not null);
         insert into rows select g, 0 from generate_series(-1, {}) g",
        regions * WRITERS * ROWS_EACH - 1
    );
    cluster.connect(leader).await?.batch_execute(&tables).await?;
    cluster.converge().await?;
    println!("the leader is in {}", topology.regions[leader].name);
    println!("| region | read | others | reads | median, ms | p99, ms | slowest, ms | of the round trip |");
    println!("|---|---|---|---|---|---|---|---|");
    for others in ["idle", "write"] {
        let stop = Arc::new(AtomicBool::new(others == "idle"));
        let mut writers = Vec::new();
        for writer in 0..regions * WRITERS {
            writers.push(tokio::spawn(write(cluster.connect(writer % regions).await?, writer, stop.clone())));
        }
        for setting in ["local", "fresh"] {
            for region in 0..regions {
                let took = reads(cluster.connect(region).await?, setting).await?;
                let at = |share: f64| took.get((took.len() as f64 * share) as usize).or(took.last()).copied();
                let (median, p99) = (at(0.5).context("no reads")?, at(0.99).unwrap_or(0.0));
                println!(
                    "| {} | {setting} | {others} | {} | {median:.2} | {p99:.2} | {:.2} | {:.2} |",
                    topology.regions[region].name,
                    took.len(),
                    at(1.0).unwrap_or(0.0),
                    median / majority_rtt_ms(&topology, region)
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await??;
        }
    }
    cluster.converge().await
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}
