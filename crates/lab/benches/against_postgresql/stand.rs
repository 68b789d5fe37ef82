//! The systems side by side on this machine, at the same distances: PostgreSQL alone, PostgreSQL with synchronous
//! standbys or subscribers, and Onetrip.  They run at the same time and are measured in turn, so only one of them is
//! busy at a time.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::unistd::{sysconf, Pid, SysconfVar};
use onetrip_lab::limit::majority_rtt_ms;
use onetrip_lab::link::ClientLink;
use onetrip_lab::machine::repository;
use onetrip_lab::pgbench::{Commit, Measurement, Pgbench};
use onetrip_lab::traffic::Sockets;
use onetrip_lab::{postmaster, Cluster, Topology};

use crate::figure::Figure;
use crate::server::Postgres;

/// How many rows the table has that is updated.
pub const ROWS: u32 = 100_000;
/// How much longer than asked for a distance may be measured, on a busy machine.
const LATE_MS_MAX: f64 = 2.0;
/// Until a region has the lease that it was given, or has none any more.
const LEASE: Duration = Duration::from_secs(60);

pub fn topology(name: &str) -> Result<Topology> {
    Ok(Topology::load(&repository().join("topologies").join(name))?)
}

/// The table that most parts update, `demo`.
pub fn table() -> String {
    format!(
        "create table demo (id int primary key, value int) with (fillfactor = 50);
         insert into demo select i, i from generate_series(1, {ROWS}) i"
    )
}

/// Updates one row at random.
pub fn one_row() -> String {
    format!(
        "\\set id random(1, {ROWS})\n\\set new_value random(1, 1000000)\n\
         update demo set value = :new_value where id = :id;\n"
    )
}

pub struct Stand {
    servers: Vec<Postgres>,
    pub cluster: Cluster,
    /// Where the primary is.
    home: usize,
}

/// What clients do, all of them in one region.
pub struct Load {
    pub region: usize,
    pub case: String,
    pub clients: usize,
    pub seconds: u64,
    pub script: String,
}

enum System<'a> {
    Postgres(&'a Postgres),
    Onetrip(&'a Cluster),
}

impl Stand {
    /// Starts all systems.  `alone`: also a PostgreSQL without standbys.
    pub async fn start(binary: &Path, topology: Topology, home: usize, alone: bool) -> Result<Stand> {
        let others = (0..topology.regions.len()).filter(|other| *other != home);
        let round_trips: Vec<Duration> =
            others.map(|other| Duration::from_secs_f64(topology.rtt_ms(home, other) / 1e3)).collect();
        let mut servers = Vec::new();
        if alone {
            servers.push(Postgres::start(&[]).await?);
        }
        servers.push(Postgres::start(&round_trips).await?);
        let cluster = Cluster::builder().topology(topology).binary(binary).start().await?;
        cluster.settled().await?;
        Ok(Stand { servers, cluster, home })
    }

    /// Adds a PostgreSQL with subscribers in the place of standbys, without distance.  Each server runs `sql` first.
    pub async fn add_publisher(&mut self, sql: &str) -> Result<()> {
        let subscribers = self.cluster.nodes().len() - 1;
        self.servers.push(Postgres::start_publisher(subscribers, sql).await?);
        Ok(())
    }

    pub fn region_name(&self, region: usize) -> &str {
        &self.cluster.topology().regions[region].name
    }

    /// Gives these regions read leases, and no others, and waits until they have them.
    pub async fn hold_leases(&self, binary: &Path, regions: &[usize]) -> Result<()> {
        let names: Vec<&str> = regions.iter().map(|region| self.region_name(*region)).collect();
        let mut command = tokio::process::Command::new(binary);
        command.arg("leases").arg("--data").arg(self.cluster.data());
        match names.is_empty() {
            true => command.arg("--none"),
            false => command.args(["--regions", &names.join(",")]),
        };
        ensure!(command.stdout(Stdio::null()).status().await?.success(), "onetrip leases failed");
        let deadline = Instant::now() + LEASE;
        for (region, node) in self.cluster.nodes().iter().enumerate() {
            while node.status().await?["has_lease"] != regions.contains(&region) {
                ensure!(Instant::now() < deadline, "the leases are not those of {}", names.join(", "));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// A client of each system where it takes writes, with the system's name.
    pub async fn clients(&self) -> Result<Vec<(String, tokio_postgres::Client)>> {
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push((server.name.clone(), server.connect().await?));
        }
        clients.push(("Onetrip".into(), self.cluster.connect(self.home).await?));
        Ok(clients)
    }

    /// Runs `sql` in each system.
    pub async fn run_sql(&self, sql: &str) -> Result<()> {
        self.converge().await?;
        for (name, client) in self.clients().await? {
            client.batch_execute(sql).await.with_context(|| format!("{name}: {sql}"))?;
        }
        self.converge().await
    }

    pub async fn converge(&self) -> Result<()> {
        for system in self.systems() {
            system.converge().await?;
        }
        Ok(())
    }

    fn systems(&self) -> impl Iterator<Item = System<'_>> {
        self.servers.iter().map(System::Postgres).chain([System::Onetrip(&self.cluster)])
    }

    /// Measures each system under the same load, one after the other.
    pub async fn compare(&self, load: &Load) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        let mut beside = None;
        for system in self.systems() {
            let figure = self.measure(&system, load).await.with_context(|| format!("measure {}", system.name()))?;
            if matches!(system, System::Postgres(server) if server.has_standbys()) {
                beside = Some((figure.measured.tps, figure.cpu_us));
            }
            figures.push(figure);
        }
        for figure in &mut figures {
            figure.beside = beside.map(|(tps, cpu_us)| (figure.measured.tps / tps, figure.cpu_us / cpu_us));
        }
        Ok(figures)
    }

    /// Measures only Onetrip.
    pub async fn measure_onetrip(&self, load: &Load) -> Result<Figure> {
        self.measure(&System::Onetrip(&self.cluster), load).await
    }

    /// Measures each system under loads that run at the same time; a list of figures for each of them.
    pub async fn compare_together(&self, loads: &[Load]) -> Result<Vec<Vec<Figure>>> {
        let mut all = Vec::new();
        for system in self.systems().filter(|system| matches!(system, System::Postgres(_))) {
            let figures = self.measure_together(&system, loads, "").await;
            all.push(figures.with_context(|| format!("measure {}", system.name()))?);
        }
        Ok(all)
    }

    /// Measures Onetrip likewise, with settings of all sessions: `-c NAME=VALUE ...`.
    pub async fn measure_onetrip_together(&self, loads: &[Load], settings: &str) -> Result<Vec<Figure>> {
        self.measure_together(&System::Onetrip(&self.cluster), loads, settings).await
    }

    async fn measure(&self, system: &System<'_>, load: &Load) -> Result<Figure> {
        let mut figures = self.measure_together(system, std::slice::from_ref(load), "").await?;
        figures.pop().context("a load was measured")
    }

    /// CPU, bytes and packets are those of all loads together.
    async fn measure_together(&self, system: &System<'_>, loads: &[Load], settings: &str) -> Result<Vec<Figure>> {
        let topology = self.cluster.topology();
        // Links and folders end with this measurement.
        let (mut links, mut folders, mut programs) = (Vec::new(), Vec::new(), Vec::new());
        for load in loads {
            let far = Duration::from_secs_f64(topology.rtt_ms(self.home, load.region) / 1e3);
            let (port, database) = match system {
                System::Onetrip(cluster) => (cluster.node(load.region).postgres_port(), topology.database()),
                System::Postgres(server) if far.is_zero() => (server.port(), "postgres"),
                System::Postgres(server) => {
                    let primary = SocketAddr::from(([127, 0, 0, 1], server.port()));
                    links.push(ClientLink::start("127.0.0.1:0".parse()?, primary, far)?);
                    (links.last().context("it was pushed")?.address().port(), "postgres")
                }
            };
            let folder = tempfile::tempdir()?;
            programs.push(Pgbench {
                program: onetrip_lab::postgres_bin().join("pgbench"),
                host: "127.0.0.1".into(),
                port,
                user: "postgres".into(),
                // libpq takes options from here.
                database: format!("dbname='{database}' options='{settings}'"),
                clients: load.clients,
                threads: 2,
                seconds: load.seconds,
                script: Some(load.script.clone()),
                folder: folder.path().to_owned(),
            });
            folders.push(folder);
        }
        // What the last measurement has left to do must not count here.
        system.converge().await?;
        let ports = system.ports().await?;
        let (leader, cpu, sockets) = (system.leader().await?, system.cpu_seconds()?, Sockets::of(&ports)?);
        let running: Vec<_> =
            programs.into_iter().map(|pgbench| tokio::spawn(async move { pgbench.run_each().await })).collect();
        let mut measured = Vec::new();
        for one in running {
            measured.push(one.await??);
        }
        system.converge().await?;
        let (cpu, sent) = (system.cpu_seconds()? - cpu, Sockets::of(&ports)?.since(&sockets));
        let leader_then = system.leader().await?;
        let leader = if leader == leader_then { leader } else { format!("{leader}, then {leader_then}") };
        let each = measured.iter().map(|(m, _)| m.transactions).sum::<u64>().max(1) as f64;
        let figure = |(load, (measured, commits)): (&Load, (Measurement, Vec<Commit>))| Figure {
            region: self.region_name(load.region).to_string(),
            case: load.case.clone(),
            system: system.name().to_string(),
            clients: load.clients,
            limit_ms: majority_rtt_ms(topology, load.region),
            measured,
            commits,
            cpu_us: cpu * 1e6 / each,
            bytes: sent.bytes as f64 / each,
            packets: sent.packets as f64 / each,
            busiest: sent.busiest as f64 / each,
            leader: leader.clone(),
            beside: None,
        };
        Ok(loads.iter().zip(measured).map(figure).collect())
    }

    /// A table of all distances, with its header: from, to, and the ms that were asked for, that Onetrip's links
    /// measured, and that the standbys' links measured.
    pub async fn distances(&self) -> Result<Vec<Vec<String>>> {
        let topology = self.cluster.topology();
        let mut lines = vec![["between", "and", "ms", "Onetrip's links", "standbys' links"].map(String::from).to_vec()];
        for (from, node) in self.cluster.nodes().iter().enumerate() {
            let status = node.status().await?;
            for to in from + 1..topology.regions.len() {
                let id = self.cluster.node(to).id();
                let peer = status["peers"].as_array().into_iter().flatten().find(|peer| peer["id"] == id);
                let measured = peer.and_then(|peer| peer["rtt_ms"].as_f64());
                let names = || format!("{} and {}", self.region_name(from), self.region_name(to));
                let onetrip_ms = measured.with_context(|| format!("no round trip between {}", names()))?;
                let standby_ms = if from == self.home { self.standby_ms(to).await? } else { None };
                let asked_ms = topology.rtt_ms(from, to);
                for ms in std::iter::once(onetrip_ms).chain(standby_ms) {
                    ensure!(
                        (asked_ms..asked_ms + LATE_MS_MAX).contains(&ms),
                        "the distance between {} should be {asked_ms} ms and is measured as {ms:.2}",
                        names()
                    );
                }
                lines.push(vec![
                    self.region_name(from).into(),
                    self.region_name(to).into(),
                    format!("{asked_ms:.0}"),
                    format!("{onetrip_ms:.2}"),
                    standby_ms.map_or(String::new(), |ms| format!("{ms:.2}")),
                ]);
            }
        }
        Ok(lines)
    }

    /// The shortest round trip of a query, in ms, through the link from this region's standby to its primary.
    async fn standby_ms(&self, region: usize) -> Result<Option<f64>> {
        let server = self.servers.iter().find(|server| server.has_standbys()).context("there are no standbys")?;
        let standby = if region > self.home { region - 1 } else { region };
        let Some(client) = server.connect_from(standby).await? else { return Ok(None) };
        let mut least = Duration::MAX;
        for _ in 0..10 {
            let start = Instant::now();
            client.simple_query("").await?;
            least = least.min(start.elapsed());
        }
        Ok(Some(least.as_secs_f64() * 1e3))
    }

    pub async fn stop(self) -> Result<()> {
        self.cluster.stop().await
    }
}

impl System<'_> {
    fn name(&self) -> &str {
        match self {
            System::Postgres(server) => &server.name,
            System::Onetrip(_) => "Onetrip",
        }
    }

    async fn converge(&self) -> Result<()> {
        match self {
            System::Postgres(server) => server.converge().await,
            System::Onetrip(cluster) => cluster.converge().await,
        }
    }

    /// The port at one end of each connection between its servers.
    async fn ports(&self) -> Result<BTreeSet<u16>> {
        match self {
            System::Postgres(server) => server.replication_ports().await,
            System::Onetrip(cluster) => {
                let port = |peer: &str| peer.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                cluster.nodes().iter().map(|node| port(node.peer()).context("a node's port")).collect()
            }
        }
    }

    /// The region of Onetrip's leader; empty for PostgreSQL.
    async fn leader(&self) -> Result<String> {
        match self {
            System::Postgres(_) => Ok(String::new()),
            System::Onetrip(cluster) => {
                let status = cluster.node(0).status().await?;
                Ok(status["leader"]["region"].as_str().context("there is no leader")?.to_string())
            }
        }
    }

    fn cpu_seconds(&self) -> Result<f64> {
        match self {
            System::Postgres(server) => cpu_seconds(server.processes()),
            System::Onetrip(cluster) => cpu_seconds(cluster.nodes().iter().flat_map(|node| {
                // The processes of its PostgreSQL are recognized by their folder, whatever their parent is.
                node.pid().into_iter().chain(postmaster::processes(&node.postgres_data()))
            })),
        }
    }
}

/// CPU seconds of these processes, and of their children that have ended.
fn cpu_seconds(pids: impl IntoIterator<Item = Pid>) -> Result<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the clock's ticks are not known")? as f64;
    let mut ticks = 0;
    for pid in pids {
        // A process that has ended meanwhile is counted with its parent.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let (_, fields) = stat.rsplit_once(')').context("read /proc")?;
        // proc(5): utime, stime, cutime and cstime are fields 14 to 17; the first one here is field 3.
        ticks += fields.split_whitespace().skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(ticks as f64 / per_second)
}
