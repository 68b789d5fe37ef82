//! Who gets a change of a hot row through, and after how long?
//!
//! topologies/us.toml.  Clients in every region transfer between two of a few rows, each transfer one transaction in
//! one message, and repeat it at once for as long as it fails with 40001.  For each region: transfers done in the time,
//! how long one took from its first try to its success, how many tries failed, and the longest that a transfer had
//! been tried for when the time was over.
//!
//! `cargo bench -p onetrip-lab --bench hot_rows`; the tables go to standard output.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::{Cluster, Topology};
use tokio_postgres::error::SqlState;
use tokio_postgres::Client;

/// Rows, and clients in each region.
const LOADS: [(usize, usize); 3] = [(2, 1), (2, 4), (10, 10)];
const FOR: Duration = Duration::from_secs(24);

#[derive(Default)]
struct Done {
    took_ms: Vec<f64>,
    failed: usize,
    open_ms: f64,
}

/// The rows of one transfer, the lower first, so that the clients of one region never deadlock.
fn pair(client: usize, n: usize, rows: usize) -> (usize, usize) {
    let a = (client * 7 + n * 3) % rows;
    let b = (a + 1 + (client + n) % (rows - 1)) % rows;
    (a.min(b), a.max(b))
}

async fn transfers(client: Client, number: usize, rows: usize, end: Instant) -> Result<Done> {
    let mut done = Done::default();
    for n in 0.. {
        let (a, b) = pair(number, n, rows);
        let transfer =
            format!("begin; update hot set v = v - 1 where id = {a}; update hot set v = v + 1 where id = {b}; commit");
        let first = Instant::now();
        loop {
            match client.batch_execute(&transfer).await {
                Ok(()) => break,
                Err(e) if e.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => done.failed += 1,
                Err(e) => bail!("a transfer failed otherwise: {e:?}"),
            }
            client.batch_execute("rollback").await?;
            if Instant::now() > end {
                done.open_ms = first.elapsed().as_secs_f64() * 1e3;
                return Ok(done);
            }
        }
        done.took_ms.push(first.elapsed().as_secs_f64() * 1e3);
        if Instant::now() > end {
            break;
        }
    }
    Ok(done)
}

async fn measure() -> Result<()> {
    let topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).start().await?;
    let leader = cluster.settled().await?;
    println!("the leader is in {}", topology.regions[leader].name);
    println!("| rows | clients in each region | region | round trip, ms | done | p50, ms | p99, ms | slowest, ms | failed tries | longest open, ms |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (rows, clients) in LOADS {
        let table = format!(
            "drop table if exists hot; create table hot (id int primary key, v bigint not null);
             insert into hot select g, 0 from generate_series(0, {}) g",
            rows - 1
        );
        // The rows of the last load may still be kept for a region that has stopped wanting them.
        let client = cluster.connect(leader).await?;
        while let Err(e) = client.batch_execute(&table).await {
            ensure!(e.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE), "cannot make the table: {e:?}");
        }
        cluster.converge().await?;
        let (end, mut running) = (Instant::now() + FOR, Vec::new());
        for number in 0..cluster.nodes().len() * clients {
            let client = cluster.connect(number / clients).await?;
            running.push(tokio::spawn(transfers(client, number, rows, end)));
        }
        let mut regions: Vec<Done> = cluster.nodes().iter().map(|_| Done::default()).collect();
        for (number, client) in running.into_iter().enumerate() {
            let (its, region) = (client.await??, &mut regions[number / clients]);
            region.took_ms.extend(its.took_ms);
            region.failed += its.failed;
            region.open_ms = region.open_ms.max(its.open_ms);
        }
        for (region, mut done) in regions.into_iter().enumerate() {
            done.took_ms.sort_unstable_by(f64::total_cmp);
            let at = |share: f64| {
                let place = (done.took_ms.len() as f64 * share) as usize;
                done.took_ms.get(place).or(done.took_ms.last()).map_or("none".into(), |ms| format!("{ms:.0}"))
            };
            println!(
                "| {rows} | {clients} | {} | {:.0} | {} | {} | {} | {} | {} | {:.0} |",
                topology.regions[region].name,
                majority_rtt_ms(&topology, region),
                done.took_ms.len(),
                at(0.5),
                at(0.99),
                at(1.0),
                done.failed,
                done.open_ms
            );
        }
        cluster.converge().await?;
        let sum = cluster.connect(leader).await?.query_one("select sum(v)::bigint from hot", &[]).await?;
        ensure!(sum.try_get::<_, i64>(0).context("read the sum")? == 0, "money was made or lost");
    }
    cluster.check().await
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}
