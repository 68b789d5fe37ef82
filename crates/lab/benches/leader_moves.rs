//! The leader moves under load: how long does the slowest commit of each region take then?
//!
//! topologies/us.toml, two clients in each region, each at its own region's PostgreSQL.  `onetrip leader` moves the
//! leader every few seconds.  For each move and region the table has the median before the move, and the slowest commit
//! during the move and in the seconds after it.
//!
//! `cargo bench -p onetrip-lab --bench leader_moves -- --moves 12`; the tables go to standard output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use onetrip_lab::{Cluster, Topology};

const CLIENTS: usize = 2;
const ROWS_EACH: usize = 100;
/// How long the load runs before each move, for comparison, and after it.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
struct Commit {
    region: usize,
    sent: Instant,
    took: Duration,
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    commits: Mutex<Vec<Commit>>,
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Nobody else writes these rows, so no commit may fail, not even while the leader moves.
async fn client(load: Arc<Load>, client: tokio_postgres::Client, region: usize, number: usize) -> Result<()> {
    let mut at = 0;
    while !load.stop.load(Ordering::Relaxed) {
        at = (at + 1) % ROWS_EACH;
        let sent = Instant::now();
        client.batch_execute(&format!("update load set n = n + 1 where id = {}", number * ROWS_EACH + at)).await?;
        let commit = Commit { region, sent, took: sent.elapsed() };
        load.commits.lock().expect("no client panics with the lock").push(commit);
    }
    Ok(())
}

fn move_leader(cluster: &Cluster, to: &str) -> Result<()> {
    let data = cluster.data();
    let moved = Command::new(cluster.binary()).arg("leader").arg("--data").arg(data).args(["--to", to]).output()?;
    ensure!(moved.status.success(), "the leader does not move to {to}: {}", String::from_utf8_lossy(&moved.stderr));
    Ok(())
}

async fn measure(binary: &Path, moves: usize) -> Result<()> {
    let topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).binary(binary).start().await?;
    let mut leader = cluster.settled().await?;
    let regions = cluster.nodes().len();
    let table = format!(
        "create table load (id int primary key, n bigint not null);
         insert into load select g, 0 from generate_series(0, {}) g",
        regions * CLIENTS * ROWS_EACH - 1
    );
    cluster.connect(leader).await?.batch_execute(&table).await?;
    cluster.converge().await?;
    let load = Arc::new(Load::default());
    let mut clients = Vec::new();
    for number in 0..regions * CLIENTS {
        let region = number % regions;
        clients.push(tokio::spawn(client(load.clone(), cluster.connect(region).await?, region, number)));
    }
    println!("| from | to | region | median before, ms | slowest before | slowest during the move | more, ms |");
    println!("|---|---|---|---|---|---|---|");
    for turn in 0..moves {
        let to = (leader + 1 + turn / regions % (regions - 1)) % regions;
        load.commits.lock().expect("no client panics with the lock").clear();
        tokio::time::sleep(BEFORE).await;
        let moved = Instant::now();
        move_leader(&cluster, &topology.regions[to].name)?;
        tokio::time::sleep(AFTER).await;
        let commits = load.commits.lock().expect("no client panics with the lock").clone();
        for region in 0..regions {
            let own = || commits.iter().filter(move |c| c.region == region);
            let mut before: Vec<Duration> = own().filter(|c| c.sent + c.took < moved).map(|c| c.took).collect();
            before.sort_unstable();
            let median = *before.get(before.len() / 2).context("no commits before the move")?;
            let slowest = own().filter(|c| c.sent + c.took >= moved).map(|c| c.took).max();
            let slowest = slowest.context("no commits after the move")?;
            let name = |region: usize| topology.regions[region].name.as_str();
            println!(
                "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} |",
                name(leader),
                name(to),
                name(region),
                ms(median),
                before.last().map_or(0.0, |last| ms(*last)),
                ms(slowest),
                ms(slowest) - ms(median)
            );
        }
        leader = to;
    }
    load.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    cluster.converge().await
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let moves = args.iter().position(|arg| arg == "--moves").and_then(|at| args.get(at + 1));
    let moves = moves.map_or(Ok(12), |n| n.parse()).context("--moves takes a number")?;
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onetrip-lab"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&binary, moves))
}
