//! Who gets a change of a hot row through, and after how long?
//!
//! topologies/us.toml.  Clients in every region transfer between two of a few rows, each transfer one transaction in
//! one message, and repeat it at once for as long as it fails with 40001.  For each region: transfers done in the time,
//! how long one took from its first try to its success, how many tries failed, and the longest that a transfer had
//! been tried for when the time was over.
//!
//! And what each way to deal with them achieves, beside one PostgreSQL to which the clients have the same distances as
//! to the leader: optimistic, with statements run again, with row locks.  There each transfer is one statement, and one
//! that fails is not repeated.
//!
//! `cargo bench -p onetrip-lab --bench hot_rows`; the tables go to standard output.  With `-- ways` only the second.

#[allow(dead_code)]
#[path = "against_postgresql/server.rs"]
mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::link::ClientLink;
use onetrip_lab::{Cluster, Topology};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

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

fn us() -> Result<Topology> {
    Ok(Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml"))?)
}

/// Rows, and clients in each region, of the second table.
const WAYS_LOAD: (usize, usize) = (10, 10);
const WAYS: [(&str, &str); 3] = [
    ("optimistic", "set onetrip.statement_retries = 0"),
    ("statements run again", "set onetrip.statement_retries = 3"),
    ("locking", "set onetrip.statement_retries = 0; set onetrip.concurrency = locking"),
];

async fn make_table(client: &Client) -> Result<()> {
    let last = WAYS_LOAD.0 - 1;
    let table = format!(
        "drop table if exists hot; create table hot (id int primary key, v bigint not null);
         insert into hot select g, 0 from generate_series(0, {last}) g"
    );
    while let Err(e) = client.batch_execute(&table).await {
        ensure!(e.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE), "cannot make the table: {e:?}");
    }
    Ok(())
}

/// Transfers, each one statement that is tried once.
async fn single_transfers(client: Client, number: usize, end: Instant) -> Result<Done> {
    let mut done = Done::default();
    for n in 0.. {
        if Instant::now() > end {
            break;
        }
        let (a, b) = pair(number, n, WAYS_LOAD.0);
        let transfer = format!("update hot set v = v + case id when {a} then 1 else -1 end where id in ({a}, {b})");
        let first = Instant::now();
        match client.batch_execute(&transfer).await {
            Ok(()) => done.took_ms.push(first.elapsed().as_secs_f64() * 1e3),
            Err(e) if e.code().is_some_and(|code| code.code().starts_with("40")) => done.failed += 1,
            Err(e) => bail!("a transfer failed otherwise: {e:?}"),
        }
    }
    Ok(done)
}

/// The clients of each region transfer for a while; prints a line for each region and one for all.
async fn run_way(way: &str, topology: &Topology, clients: Vec<Vec<Client>>) -> Result<()> {
    let (begin, mut regions) = (Instant::now(), Vec::new());
    let mut number = 0;
    for clients in clients {
        let mut running = Vec::new();
        for client in clients {
            running.push(tokio::spawn(single_transfers(client, number, begin + FOR)));
            number += 1;
        }
        regions.push(running);
    }
    let mut all = Done::default();
    let print = |name: &str, done: &mut Done| {
        done.took_ms.sort_unstable_by(f64::total_cmp);
        let count = done.took_ms.len();
        let at = |share: f64| done.took_ms.get((count as f64 * share) as usize).or(done.took_ms.last());
        let ms = |share| at(share).map_or("none".into(), |ms| format!("{ms:.0}"));
        let share = 100.0 * done.failed as f64 / (count + done.failed).max(1) as f64;
        let per_second = count as f64 / FOR.as_secs_f64();
        println!(
            "| {way} | {name} | {count} | {per_second:.1} | {} | {share:.2} % | {} | {} |",
            done.failed,
            ms(0.5),
            ms(0.99)
        );
    };
    for (region, running) in regions.into_iter().enumerate() {
        let mut done = Done::default();
        for client in running {
            let its = client.await??;
            done.took_ms.extend(its.took_ms);
            done.failed += its.failed;
        }
        print(&topology.regions[region].name, &mut done);
        all.took_ms.extend(done.took_ms);
        all.failed += done.failed;
    }
    print("all", &mut all);
    Ok(())
}

async fn measure_ways() -> Result<()> {
    let topology = us()?;
    let (rows, each) = WAYS_LOAD;
    println!("{rows} rows, {each} clients in each region, {} s", FOR.as_secs());
    println!("| way | region | done | a second | failed | of all tries | p50, ms | p99, ms |");
    println!("|---|---|---|---|---|---|---|---|");
    let cluster = Cluster::builder().topology(topology.clone()).start().await?;
    let leader = cluster.settled().await?;
    for (way, settings) in WAYS {
        make_table(&cluster.connect(leader).await?).await?;
        cluster.converge().await?;
        let mut clients = Vec::new();
        for region in 0..cluster.nodes().len() {
            let mut here = Vec::new();
            for _ in 0..each {
                let client = cluster.connect(region).await?;
                client.batch_execute(settings).await?;
                here.push(client);
            }
            clients.push(here);
        }
        run_way(way, &topology, clients).await?;
        cluster.converge().await?;
        let sum = cluster.connect(leader).await?.query_one("select sum(v)::bigint from hot", &[]).await?;
        ensure!(sum.try_get::<_, i64>(0).context("read the sum")? == 0, "money was made or lost");
    }
    cluster.check().await?;

    let postgres = server::Postgres::start(&[]).await?;
    make_table(&postgres.connect().await?).await?;
    let (mut links, mut clients) = (Vec::new(), Vec::new());
    for region in 0..topology.regions.len() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let target = SocketAddr::from(([127, 0, 0, 1], postgres.port()));
        let rtt = Duration::from_secs_f64(topology.rtt_ms(leader, region) / 1e3);
        let link = ClientLink::start(any, target, rtt)?;
        let conninfo = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", link.address().port());
        let mut here = Vec::new();
        for _ in 0..each {
            let (client, connection) = tokio_postgres::connect(&conninfo, NoTls).await?;
            tokio::spawn(connection);
            here.push(client);
        }
        links.push(link);
        clients.push(here);
    }
    run_way("one PostgreSQL", &topology, clients).await
}

async fn measure() -> Result<()> {
    let topology = us()?;
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
    runtime.block_on(async {
        if !std::env::args().any(|arg| arg == "ways") {
            measure().await?;
        }
        measure_ways().await
    })
}
