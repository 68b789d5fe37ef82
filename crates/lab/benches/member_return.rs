//! A member comes back after minutes of full load that it missed: what do clients in the other regions notice while it
//! catches up?
//!
//! topologies/us.toml, 8 clients in each region that stays, each at its own region's PostgreSQL, rows of 4 KB that do
//! not compress.  Node and PostgreSQL of the farthest region are killed, and started again after a while.
//!
//! `cargo bench -p onetrip-lab --bench member_return -- --away 300 --out docs/measurements/2026-11-23-return` (or
//! `make bench-return`) writes README.md there; without `--out` the table goes to standard output.  With `--yields`
//! the member that comes back leaves processors and disk to the others, nearly as if it had a machine of its own: it
//! runs with the lowest priority, and its files are in memory.  This needs `sysctl kernel.sched_autogroup_enabled=0`,
//! and 4 GiB in /dev/shm.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use hdrhistogram::Histogram;
use nix::sys::signal::{kill, Signal};
use onetrip_client::Topology;
use onetrip_lab::machine::{repository, Machine};
use onetrip_lab::{postmaster, Cluster, Node};

const CLIENTS: usize = 8;
const ROWS_EACH: usize = 100;
const ROW_BYTES: usize = 4_000;
const BEFORE: Duration = Duration::from_secs(30);
/// A member that is no further behind than this counts as caught up.
const NEAR_ENTRIES: u64 = 200;
const GIVE_UP: Duration = Duration::from_secs(1_200);

const PHASES: [&str; 4] = ["all are there", "it is away", "its log catches up", "its PostgreSQL catches up"];

/// Times of commits in microseconds, by phase and region.
type Times = Vec<Vec<Histogram<u64>>>;

struct Load {
    stop: AtomicBool,
    phase: AtomicUsize,
    times: Mutex<Times>,
}

async fn client(load: Arc<Load>, conninfo: String, region: usize, number: usize) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let update = client
        .prepare(
            "update load set v = (select string_agg(md5(random()::text || g), '') from generate_series(1, $2 / 32) g)
             where id = $1",
        )
        .await?;
    for n in 0.. {
        if load.stop.load(Ordering::Relaxed) {
            break;
        }
        let (id, bytes) = ((number * ROWS_EACH + n % ROWS_EACH) as i32, ROW_BYTES as i32);
        let (phase, sent) = (load.phase.load(Ordering::Relaxed), Instant::now());
        client.execute(&update, &[&id, &bytes]).await?;
        let took = sent.elapsed().as_micros() as u64;
        load.times.lock().expect("no client panics with the lock")[phase][region].record(took)?;
    }
    Ok(())
}

struct Seen {
    topology: Topology,
    leader: usize,
    away: usize,
    times: Times,
    missed_entries: u64,
    missed_bytes: u64,
    away_for: Duration,
    /// From the start of its node until its PostgreSQL shows (nearly) all.
    caught_up_after: Duration,
    /// From the start of its node until its log is (nearly) complete.
    log_after: Duration,
    terms: (u64, u64),
}

async fn number(cluster: &Cluster, region: usize, name: &str) -> Result<u64> {
    let status = cluster.node(region).status().await?;
    status[name].as_u64().with_context(|| format!("{name} in {status}"))
}

/// A folder in memory, removed when the value is dropped.
struct InMemory(PathBuf);

impl Drop for InMemory {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Moves the files of a node that is down into memory.
fn move_into_memory(node: &Node) -> Result<InMemory> {
    let memory = InMemory(PathBuf::from(format!("/dev/shm/onetrip-member-return-{}", std::process::id())));
    let copied = Command::new("cp").arg("-a").args([node.folder(), &memory.0]).status().context("run cp")?;
    ensure!(copied.success(), "cannot copy {} to {}", node.folder().display(), memory.0.display());
    std::fs::remove_dir_all(node.folder())?;
    std::os::unix::fs::symlink(&memory.0, node.folder())?;
    Ok(memory)
}

/// Starts the node so that it, and everything that it starts, leaves the processors to all others.
fn start_yielding(node: &Node) -> Result<()> {
    let groups = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").unwrap_or_default();
    ensure!(
        groups.trim() != "1",
        "--yields needs kernel.sched_autogroup_enabled = 0: else PostgreSQL's processes are in scheduling groups of their own"
    );
    let start = || {
        // SAFETY: it changes only the priority of this thread, which ends after this; what the thread starts inherits
        // it.
        let set = unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, 19) };
        ensure!(set == 0, "setpriority: {}", std::io::Error::last_os_error());
        node.start()
    };
    std::thread::scope(|scope| scope.spawn(start).join()).expect("starting a node does not panic")
}

async fn measure(binary: &Path, away_for: Duration, yields: bool) -> Result<Seen> {
    let topology = Topology::load(&repository().join("topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).binary(binary).start().await?;
    let leader = cluster.settled().await?;
    let regions = cluster.nodes().len();
    let away = regions - 1;
    ensure!(away != leader, "the leader is the last region of the topology");
    let rows = regions * CLIENTS * ROWS_EACH;
    let tables = format!(
        "create table load (id int primary key, v text) with (fillfactor = 50);
         insert into load select g, '' from generate_series(0, {rows} - 1) g"
    );
    cluster.connect(leader).await?.batch_execute(&tables).await?;
    cluster.converge().await?;
    for node in cluster.nodes() {
        node.connect().await?.batch_execute("checkpoint").await?;
    }
    let empty = || (0..regions).map(|_| Histogram::new(3)).collect::<Result<Vec<_>, _>>();
    let times = PHASES.iter().map(|_| empty()).collect::<Result<Times, _>>()?;
    let load = Arc::new(Load { stop: AtomicBool::new(false), phase: AtomicUsize::new(0), times: Mutex::new(times) });
    let clients: Vec<_> = (0..regions * CLIENTS)
        .filter(|number| number % regions != away)
        .map(|number| {
            let conninfo = cluster.node(number % regions).conninfo();
            tokio::spawn(client(load.clone(), conninfo, number % regions, number))
        })
        .collect();
    tokio::time::sleep(BEFORE).await;
    // Away.
    let node = cluster.node(away);
    let processes = postmaster::processes(&node.postgres_data());
    node.kill9()?;
    node.kill9_postgres()?;
    processes.into_iter().for_each(|pid| _ = kill(pid, Signal::SIGKILL));
    load.phase.store(1, Ordering::Relaxed);
    let _memory = if yields { Some(move_into_memory(node)?) } else { None };
    let (first, first_bytes) =
        (number(&cluster, leader, "commit").await?, number(&cluster, leader, "log_bytes").await?);
    tokio::time::sleep(away_for).await;
    let (last, last_bytes) = (number(&cluster, leader, "commit").await?, number(&cluster, leader, "log_bytes").await?);
    let term = number(&cluster, leader, "term").await?;
    // Back.
    load.phase.store(2, Ordering::Relaxed);
    let back = Instant::now();
    match yields {
        true => start_yielding(node)?,
        false => node.start()?,
    }
    let (mut log_after, deadline) = (None, back + GIVE_UP);
    let caught_up_after = loop {
        ensure!(Instant::now() < deadline, "it has not caught up within {} s", GIVE_UP.as_secs());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (Ok(there), all) = (node.status().await, number(&cluster, leader, "commit").await?) else { continue };
        let near = |name: &str| there[name].as_u64().is_some_and(|at| at + NEAR_ENTRIES >= all);
        if log_after.is_none() && near("log_last") {
            log_after = Some(back.elapsed());
            load.phase.store(3, Ordering::Relaxed);
        }
        if near("applied") {
            break back.elapsed();
        }
    };
    let term_after = number(&cluster, leader, "term").await?;
    load.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    cluster.converge().await?;
    cluster.check().await?;
    cluster.stop().await?;
    let times = std::mem::take(&mut *load.times.lock().expect("no client panics with the lock"));
    Ok(Seen {
        topology,
        leader,
        away,
        times,
        missed_entries: last - first,
        missed_bytes: last_bytes.saturating_sub(first_bytes),
        away_for,
        caught_up_after,
        log_after: log_after.context("its log was never near")?,
        terms: (term, term_after),
    })
}

fn report(seen: &Seen, yields: bool, command: &str) -> String {
    let name = |region: usize| seen.topology.regions[region].name.as_str();
    let mut rows = String::new();
    for region in (0..seen.topology.regions.len()).filter(|region| *region != seen.away) {
        for (phase, times) in PHASES.iter().zip(&seen.times) {
            let times = &times[region];
            let ms = |q: f64| times.value_at_quantile(q) as f64 / 1e3;
            rows += &format!(
                "| {} | {phase} | {} | {:.1} | {:.1} | {:.1} |\n",
                name(region),
                times.len(),
                ms(0.5),
                ms(0.99),
                times.max() as f64 / 1e3
            );
        }
    }
    let elections = match seen.terms {
        (before, after) if before == after => "There was no election.".to_string(),
        (before, after) => format!("The term went from {before} to {after}."),
    };
    let cores = Machine::here().cores;
    let share = match yields {
        true => {
            "The
region that comes back runs with the lowest priority (nice 19) and has its files in memory: it takes
what processors and disk the others leave, nearly as if it had a machine of its own."
        }
        false => {
            "So
the CPU time that the returning region takes is missing in the others."
        }
    };
    format!(
        "# A member comes back after minutes of full load

**Question.** A region was away while the others wrote at full load. What do their clients notice
while it catches up?

**Set-up.** One machine, {cores} cores, shared by three nodes, three PostgreSQLs and the clients. {share}
Round trips of
topologies/us.toml (10, 50, 62 ms) are emulated between the nodes. Each region that stays has
{CLIENTS} clients, each without pauses, in autocommit, one update of a row of {ROW_BYTES} bytes at a
time. The leader is in {}. Node and PostgreSQL of {} were killed and started again
after {} s. In that time the log grew by {} entries ({} MiB on disk and not cut).
`{command}`.

**Seen.** Its log was complete {:.1} s after the start of its node, and its PostgreSQL showed all but
{NEAR_ENTRIES} entries after {:.1} s. {elections} All regions were equal at the end
(`onetrip check`).

Commits in ms:

| clients in | while | commits | median | 99 % | worst |
|---|---|---|---|---|---|
{rows}",
        name(seen.leader),
        name(seen.away),
        seen.away_for.as_secs(),
        seen.missed_entries,
        seen.missed_bytes >> 20,
        seen.log_after.as_secs_f64(),
        seen.caught_up_after.as_secs_f64(),
    )
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).map(|at| args.get(at + 1).cloned());
    let away = match value("--away") {
        Some(text) => text.context("--away takes seconds")?.parse().context("read --away")?,
        None => 300,
    };
    let yields = args.iter().any(|a| a == "--yields");
    let out = value("--out").map(|text| text.context("--out takes a folder")).transpose()?;
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onetrip-lab"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let seen = runtime.block_on(measure(&binary, Duration::from_secs(away), yields))?;
    let text = report(&seen, yields, &format!("make bench-return{}", if yields { " ARGS=--yields" } else { "" }));
    println!("{text}");
    if let Some(out) = out {
        // cargo runs a bench in its package's folder.
        let folder = repository().join(out);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("README.md"), text)?;
    }
    Ok(())
}
