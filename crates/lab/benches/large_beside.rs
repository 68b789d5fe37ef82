//! A transaction of 100 MB commits: what do the small commits of all regions take meanwhile?
//!
//! topologies/us.toml with links of 1 Gbit/s (MBIT=100: of 100 Mbit/s), two clients in each region that update one row
//! each, at their own region's PostgreSQL.  First alone; then one session after the other, in the region named with
//! it, inserts 100 MB (ROWS=1000000: a million rows of 40 bytes).  Of each region: median, 99th percentile and slowest
//! of the commits that were sent meanwhile, up to the moment in which all regions show the rows.
//!
//! `cargo bench -p onetrip-lab --bench large_beside`; the table goes to standard output.  Another build: ONETRIP_BIN
//! (its `onetrip-lab`).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onetrip_lab::{Cluster, LinkChange, Topology};

const CLIENTS: usize = 2;
const ROWS_EACH: usize = 100;
/// Of each link, both ways, unless MBIT says something else.
const MBIT_PER_S: f64 = 1_000.0;
const ALONE: Duration = Duration::from_secs(15);
const AFTER: Duration = Duration::from_millis(500);
/// So many rows of 1,000 bytes that do not compress, unless ROWS says something else.
const LARGE_ROWS: u32 = 100_000;

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

impl Load {
    fn print(&self, what: &str, topology: &Topology, from: Instant, to: Instant) -> Result<()> {
        let commits = self.commits.lock().expect("no client panics with the lock").clone();
        for (region, place) in topology.regions.iter().enumerate() {
            let meanwhile = commits.iter().filter(|c| c.region == region && c.sent < to && c.sent + c.took > from);
            let mut took: Vec<f64> = meanwhile.map(|c| c.took.as_secs_f64() * 1e3).collect();
            took.sort_unstable_by(f64::total_cmp);
            let at = |share: f64| took.get((took.len() as f64 * share) as usize).or(took.last()).copied();
            let (median, p99, max) = (at(0.5).context("no commits")?, at(0.99).unwrap_or(0.0), at(1.0).unwrap_or(0.0));
            println!("| {what} | {} | {} | {median:.1} | {p99:.1} | {max:.1} |", place.name, took.len());
        }
        Ok(())
    }
}

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

async fn measure() -> Result<()> {
    let many = std::env::var("ROWS").ok().map(|rows| rows.parse::<u32>()).transpose().context("ROWS")?;
    let mbit_per_s = std::env::var("MBIT").map_or(Ok(MBIT_PER_S), |mbit| mbit.parse()).context("MBIT")?;
    let topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).start().await?;
    let leader = cluster.settled().await?;
    let regions = cluster.nodes().len();
    for (from, to) in
        (0..regions).flat_map(|from| (0..regions).map(move |to| (from, to))).filter(|(from, to)| from != to)
    {
        cluster.set_link(from, to, &LinkChange { mbit_per_s: Some(mbit_per_s), ..Default::default() }).await?;
    }
    let tables = format!(
        "create table load (id int primary key, n bigint not null);
         insert into load select g, 0 from generate_series(0, {}) g;
         create table large (id int primary key, v bytea)",
        regions * CLIENTS * ROWS_EACH - 1
    );
    cluster.connect(leader).await?.batch_execute(&tables).await?;
    cluster.converge().await?;
    let load = Arc::new(Load::default());
    let mut clients = Vec::new();
    for number in 0..regions * CLIENTS {
        let region = number % regions;
        clients.push(tokio::spawn(client(load.clone(), cluster.connect(region).await?, region, number)));
    }
    let terms = async || -> Result<String> { Ok(cluster.node(leader).status().await?["term"].to_string()) };
    println!("| 100 MB from | region | commits | median, ms | p99, ms | slowest, ms |");
    println!("|---|---|---|---|---|---|");
    let (began, term) = (Instant::now(), terms().await?);
    tokio::time::sleep(ALONE).await;
    load.print("nowhere", &topology, began, Instant::now())?;
    for region in (0..regions).rev() {
        let session = cluster.connect(region).await?;
        // Made before, so that what is measured is the COMMIT.
        let noise = match many {
            Some(_) => "decode(md5(g::text), 'hex')",
            None => "(select string_agg(sha512((g * 100 + i)::text::bytea), '') from generate_series(1, 15) i)",
        };
        let rows = many.unwrap_or(LARGE_ROWS);
        let first = region as u32 * rows;
        let insert = format!("begin; insert into large select g + {first}, {noise} from generate_series(1, {rows}) g");
        session.batch_execute(&insert).await?;
        let began = Instant::now();
        session.batch_execute("commit").await?;
        let ended = Instant::now();
        cluster.converge().await?;
        let shown = Instant::now();
        // Whoever waits for the rows to be applied has its answer by now, or is about to get it.
        tokio::time::sleep(AFTER).await;
        load.print(&topology.regions[region].name, &topology, began, shown)?;
        let since = |at: Instant| (at - began).as_secs_f64();
        println!("its COMMIT took {:.1} s, and all regions showed it after {:.1} s", since(ended), since(shown));
    }
    println!("term {term} at the beginning, {} at the end", terms().await?);
    load.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    cluster.converge().await
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}
