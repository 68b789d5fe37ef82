//! One-row updates: plain PostgreSQL, PostgreSQL with two standbys of which any one has to have each commit, and Onetrip.
//!
//! All servers of all three run beside each other on this machine, and are measured in turn.  What one of them does for a
//! commit is the CPU time of all its processes in all its regions; pgbench's is not in it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::{sysconf, Pid, SysconfVar};
use onetrip_lab::pgbench::{Measurement, Pgbench};
use onetrip_lab::{postmaster, Cluster, Topology};

use crate::repository;
use crate::server::Server;

const ROWS: u32 = 100_000;

/// Where the clients are, and what the standbys are away from there.
struct Place {
    heading: String,
    topology: Topology,
    region: usize,
    clients: Vec<usize>,
}

/// CPU seconds of these processes, and of their children that have ended.
fn cpu_seconds(pids: impl IntoIterator<Item = Pid>) -> Result<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the clock's ticks are not known")? as f64;
    let mut ticks = 0;
    for pid in pids {
        // One that has ended meanwhile counts in its parent's.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let (_, fields) = stat.rsplit_once(')').context("read /proc")?;
        // proc(5): utime, stime, cutime and cstime are fields 14 to 17; the first one here is field 3.
        ticks += fields.split_whitespace().skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(ticks as f64 / per_second)
}

enum System<'a> {
    Postgres(&'a [&'a Server]),
    Onetrip(&'a Cluster, usize),
}

impl System<'_> {
    fn cpu_seconds(&self) -> Result<f64> {
        match self {
            System::Postgres(servers) => cpu_seconds(servers.iter().flat_map(|s| postmaster::processes(&s.data()))),
            System::Onetrip(cluster, _) => cpu_seconds(cluster.nodes().iter().flat_map(|node| {
                // Its PostgreSQL's processes are told by their folder, whoever their parent is.
                node.pid().into_iter().chain(postmaster::processes(&node.postgres_data()))
            })),
        }
    }

    /// Also CPU seconds for each transaction.
    async fn measure(&self, clients: usize, seconds: u64) -> Result<(Measurement, f64)> {
        let (port, database) = match self {
            System::Postgres(servers) => (servers[0].port, "postgres"),
            System::Onetrip(cluster, region) => (cluster.node(*region).postgres_port(), "onetrip"),
        };
        let folder = tempfile::tempdir()?;
        let pgbench = Pgbench {
            program: onetrip_lab::postgres_bin().join("pgbench"),
            host: "127.0.0.1".into(),
            port,
            user: "postgres".into(),
            database: database.into(),
            clients,
            threads: 2,
            seconds,
            script: Some(format!(
                "\\set id random(1, {ROWS})\n\\set new_value random(1, 1000000)\n\
                 update demo set value = :new_value where id = :id;\n"
            )),
            folder: folder.path().to_owned(),
        };
        let before = self.cpu_seconds()?;
        let measured = pgbench.run().await?;
        if let System::Onetrip(cluster, _) = self {
            cluster.converge().await?;
        }
        let cpu = (self.cpu_seconds()? - before) / measured.transactions.max(1) as f64;
        Ok((measured, cpu))
    }
}

async fn measure_at(place: Place, binary: &Path, seconds: u64) -> Result<()> {
    let table = format!(
        "create table demo (id int primary key, value int) with (fillfactor = 50);
         insert into demo select i, i from generate_series(1, {ROWS}) i"
    );
    let Place { heading, topology, region, clients } = place;
    let others = (0..topology.regions.len()).filter(|other| *other != region);
    let round_trips: Vec<Duration> =
        others.map(|other| Duration::from_secs_f64(topology.rtt_ms(region, other) / 1e3)).collect();
    let plain = Server::start().await?;
    plain.connect().await?.batch_execute(&table).await?;
    let (primary, standbys) = Server::start_with_standbys(&round_trips).await?;
    primary.connect().await?.batch_execute(&table).await?;
    let cluster = Cluster::builder().topology(topology).binary(binary).start().await?;
    cluster.settled().await?;
    cluster.connect(region).await?.batch_execute(&table).await?;
    cluster.converge().await?;
    let replicated: Vec<&Server> = std::iter::once(&primary).chain(&standbys).collect();
    let systems = [
        ("PostgreSQL", System::Postgres(&[&plain])),
        ("PostgreSQL, ANY 1 of 2", System::Postgres(&replicated)),
        ("Onetrip", System::Onetrip(&cluster, region)),
    ];
    println!("\n### One-row updates of {ROWS} rows, {heading}, {seconds} s each\n");
    println!("| clients | | commits/s | mean ms | p99 ms | p99.9 ms | CPU µs/commit | commits, CPU to ANY 1 |");
    println!("|---|---|---|---|---|---|---|---|");
    for count in clients {
        let mut measured = Vec::new();
        for (name, system) in &systems {
            measured.push((name, system.measure(count, seconds).await?));
        }
        let (any, any_cpu) = &measured[1].1;
        for (name, (m, cpu)) in &measured {
            println!(
                "| {count} | {name} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.2}, {:.2} |",
                m.tps,
                m.mean_ms,
                m.p99_ms,
                m.p999_ms,
                cpu * 1e6,
                m.tps / any.tps,
                cpu / any_cpu
            );
        }
    }
    cluster.stop().await
}

pub async fn throughput(binary: &Path, seconds: u64) -> Result<()> {
    let load = |name: &str| Topology::load(&repository().join("topologies").join(name));
    let flat =
        Place { heading: "no distance".into(), topology: load("flat.toml")?, region: 0, clients: vec![1, 8, 32, 64] };
    measure_at(flat, binary, seconds).await?;
    let us = load("us.toml")?;
    let heading =
        format!("clients in {}, the others {} and {} ms away", us.regions[0].name, us.rtt_ms(0, 1), us.rtt_ms(0, 2));
    measure_at(Place { heading, topology: us, region: 0, clients: vec![10, 64] }, binary, seconds).await
}
