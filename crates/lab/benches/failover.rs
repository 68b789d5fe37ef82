//! A region dies at full load: how long until commits go on, as clients in the other regions see it?
//!
//! topologies/us.toml, 8 clients in each region, each at its own region's PostgreSQL.  Node and PostgreSQL of one
//! region are killed with kill -9, 20 times in the leader's region and 20 times in another one, and started again
//! each time.  Every acknowledgement is checked at the end: nothing may be lost (RPO 0).
//!
//! `cargo bench -p onetrip-lab --bench failover -- --out docs/measurements/2026-11-22-failover` (or `make
//! bench-failover`) writes README.md and raw.csv there; without `--out` the tables go to standard output.  `--kills`
//! sets the number of kills of each kind, 20 unless given.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use onetrip_lab::machine::{commit, load_averages, repository, Machine};
use onetrip_lab::{postmaster, Cluster, Topology};

const CLIENTS: usize = 8;
const ROWS_EACH: u64 = 100;
/// How long the load runs before each kill, for comparison, and after it.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER_LEADER: Duration = Duration::from_secs(4);
const AFTER_OTHER: Duration = Duration::from_secs(2);
/// If there is no acknowledgement for this long, something is broken.
const GIVE_UP: Duration = Duration::from_secs(30);
const TARGET_MS: f64 = 2_000.0;

/// One statement of one client, autocommit.
#[derive(Clone, Copy)]
struct Commit {
    region: usize,
    sent: Instant,
    acknowledged: Instant,
}

impl Commit {
    fn took_ms(&self) -> f64 {
        ms(self.acknowledged - self.sent)
    }
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    commits: Mutex<Vec<Commit>>,
    /// By client: increments that were acknowledged, and those whose outcome is unknown.
    acknowledged: Vec<AtomicU64>,
    open: Vec<AtomicU64>,
}

struct Kill {
    region: usize,
    /// By surviving region, in order.
    survivors: Vec<Survivor>,
}

struct Survivor {
    region: usize,
    /// From the kill to the end of the longest time without an acknowledgement.
    gap_ms: f64,
    slowest_ms: f64,
    median_before_ms: f64,
    slowest_before_ms: f64,
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

async fn client(load: Arc<Load>, conninfo: String, region: usize, number: usize) {
    let mut random = number as u64 + 1;
    while !load.stop.load(Ordering::Relaxed) {
        let Ok((client, connection)) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        tokio::spawn(connection);
        while !load.stop.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = number as u64 * ROWS_EACH + (random >> 33) % ROWS_EACH;
            let sent = Instant::now();
            match client.batch_execute(&format!("update load set n = n + 1 where id = {id}")).await {
                Ok(()) => {
                    load.acknowledged[number].fetch_add(1, Ordering::Relaxed);
                    let commit = Commit { region, sent, acknowledged: Instant::now() };
                    load.commits.lock().expect("no client panics with the lock").push(commit);
                }
                // Nobody else writes these rows, so this is no conflict: the outcome is unknown, or nothing was sent.
                Err(_) => {
                    load.open[number].fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
    }
}

fn kill_region(cluster: &Cluster, region: usize) -> Result<Instant> {
    let node = cluster.node(region);
    let processes = postmaster::processes(&node.postgres_data());
    let now = Instant::now();
    node.kill9()?;
    node.kill9_postgres()?;
    for pid in processes {
        let _ = kill(pid, Signal::SIGKILL);
    }
    Ok(now)
}

/// Waits until every surviving region has acknowledged something that was sent after the kill.
async fn all_go_on(load: &Load, survivors: &[usize], since: Instant) -> Result<()> {
    let deadline = since + GIVE_UP;
    loop {
        let goes_on = |region: &usize| {
            let commits = load.commits.lock().expect("no client panics with the lock");
            commits.iter().rev().any(|c| c.region == *region && c.sent > since)
        };
        if survivors.iter().all(goes_on) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no commits for {} s", GIVE_UP.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn one_kill(cluster: &Cluster, load: &Load, region: usize, after: Duration) -> Result<Kill> {
    let quiet = Instant::now();
    tokio::time::sleep(BEFORE).await;
    let killed = kill_region(cluster, region)?;
    let survivors: Vec<usize> = (0..cluster.nodes().len()).filter(|r| *r != region).collect();
    tokio::time::sleep(after).await;
    all_go_on(load, &survivors, killed).await?;
    let until = Instant::now();
    let commits = std::mem::take(&mut *load.commits.lock().expect("no client panics with the lock"));
    let survivors =
        survivors.into_iter().map(|region| survivor(&commits, region, quiet, killed, until)).collect::<Result<_>>()?;
    cluster.node(region).start()?;
    cluster.wait_ready().await?;
    cluster.converge().await?;
    load.commits.lock().expect("no client panics with the lock").clear();
    Ok(Kill { region, survivors })
}

/// Everything ran undisturbed from `quiet` until `killed`.
fn survivor(commits: &[Commit], region: usize, quiet: Instant, killed: Instant, until: Instant) -> Result<Survivor> {
    let own = || commits.iter().filter(move |c| c.region == region);
    let mut before: Vec<f64> =
        own().filter(|c| c.sent > quiet && c.acknowledged < killed).map(Commit::took_ms).collect();
    before.sort_by(f64::total_cmp);
    let mut times: Vec<Instant> = own().map(|c| c.acknowledged).filter(|at| *at <= until).collect();
    times.sort();
    let around = times.windows(2).filter(|pair| pair[1] > killed);
    let longest = around.max_by_key(|pair| pair[1] - pair[0]).context("too few commits to see a gap")?;
    let slowest = own().filter(|c| c.acknowledged >= killed).map(Commit::took_ms).fold(0.0, f64::max);
    ensure!(!before.is_empty(), "no commits in region {region} before the kill");
    Ok(Survivor {
        region,
        gap_ms: ms(longest[1] - killed),
        slowest_ms: slowest,
        median_before_ms: before[before.len() / 2],
        slowest_before_ms: before[before.len() - 1],
    })
}

/// Checks in every region that acknowledged increments <= increments that are there <= acknowledged and open ones.
/// Returns how many were acknowledged.
async fn nothing_is_lost(cluster: &Cluster, load: &Load) -> Result<u64> {
    let sum = |counts: &[AtomicU64]| counts.iter().map(|c| c.load(Ordering::Relaxed)).sum::<u64>();
    cluster.wait_ready().await?;
    cluster.converge().await?;
    for region in 0..cluster.nodes().len() {
        let client = cluster.connect(region).await?;
        for number in 0..load.acknowledged.len() {
            let (low, high) = (number as i64 * ROWS_EACH as i64, (number as i64 + 1) * ROWS_EACH as i64);
            let row = client
                .query_one("select sum(n)::int8 from load where id >= $1::int8 and id < $2::int8", &[&low, &high])
                .await?;
            let there = row.get::<_, i64>(0) as u64;
            let acknowledged = load.acknowledged[number].load(Ordering::Relaxed);
            let open = load.open[number].load(Ordering::Relaxed);
            ensure!(
                (acknowledged..=acknowledged + open).contains(&there),
                "region {region}: client {number} has {acknowledged} acknowledged and {open} open increments, {there} are there"
            );
        }
    }
    Ok(sum(&load.acknowledged))
}

struct Measured {
    leader: Vec<Kill>,
    others: Vec<Kill>,
    acknowledged: u64,
    topology: Topology,
}

async fn measure(binary: &Path, kills: usize) -> Result<Measured> {
    let topology = Topology::load(&repository().join("topologies/us.toml"))?;
    let cluster = Cluster::builder().topology(topology.clone()).binary(binary).start().await?;
    let leader = cluster.settled().await?;
    let regions = cluster.nodes().len();
    let rows = (regions * CLIENTS) as u64 * ROWS_EACH;
    cluster
        .connect(leader)
        .await?
        .batch_execute(&format!(
            "create table load (id bigint primary key, n bigint not null); insert into load select g, 0 from generate_series(0, {rows} - 1) g"
        ))
        .await?;
    cluster.converge().await?;
    // A server that has crashed shows only its flushed commits until its node has sent it the later entries again;
    // after a checkpoint the table is always there.
    for node in cluster.nodes() {
        node.connect().await?.batch_execute("checkpoint").await?;
    }
    let counts = || (0..regions * CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let load = Arc::new(Load { acknowledged: counts(), open: counts(), ..Load::default() });
    let mut clients = Vec::new();
    for number in 0..regions * CLIENTS {
        let region = number % regions;
        let conninfo = cluster.node(region).conninfo();
        clients.push(tokio::spawn(client(Arc::clone(&load), conninfo, region, number)));
    }
    let (mut of_leader, mut of_others) = (Vec::new(), Vec::new());
    let followers: Vec<usize> = (0..regions).filter(|r| *r != leader).collect();
    for round in 0..kills {
        of_leader.push(one_kill(&cluster, &load, leader, AFTER_LEADER).await.context("kill the leader's region")?);
        let other = followers[round % followers.len()];
        of_others.push(one_kill(&cluster, &load, other, AFTER_OTHER).await.context("kill another region")?);
        eprintln!("failover: {} of {kills} rounds", round + 1);
    }
    load.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    let acknowledged = nothing_is_lost(&cluster, &load).await?;
    cluster.stop().await?;
    Ok(Measured { leader: of_leader, others: of_others, acknowledged, topology })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

fn tables(result: &Measured) -> String {
    let name = |region: usize| result.topology.regions[region].name.as_str();
    let mut text = String::new();
    let killed = result.leader.first().map_or("?", |kill| name(kill.region));
    let _ = writeln!(text, "## The leader's region ({killed}) dies\n");
    let _ = writeln!(
        text,
        "Time from the kill until commits go on, in ms, {} kills; target: under {TARGET_MS:.0}.\n",
        result.leader.len()
    );
    let _ = writeln!(text, "| clients in | median | worst | commit before: median | met |\n|---|---|---|---|---|");
    for (region, survivors) in by_survivor(&result.leader) {
        let gaps: Vec<f64> = survivors.iter().map(|s| s.gap_ms).collect();
        let before = median(survivors.iter().map(|s| s.median_before_ms).collect());
        let (median, worst) = (median(gaps.clone()), worst(&gaps));
        let met = if worst < TARGET_MS { "yes" } else { "no" };
        let _ = writeln!(text, "| {} | {median:.0} | {worst:.0} | {before:.1} | {met} |", name(region));
    }
    let _ = writeln!(text, "\n## Another region dies\n");
    let _ = writeln!(text, "The slowest commit in each other region from the kill on, in ms.\n");
    let _ = writeln!(
        text,
        "| killed | kills | clients in | slowest commit: median | worst | before the kill: median | slowest |\n|---|---|---|---|---|---|---|"
    );
    let regions: std::collections::BTreeSet<usize> = result.others.iter().map(|kill| kill.region).collect();
    for dead in regions {
        let kills: Vec<&Kill> = result.others.iter().filter(|kill| kill.region == dead).collect();
        for (region, survivors) in by_survivor(kills.iter().copied()) {
            let slowest: Vec<f64> = survivors.iter().map(|s| s.slowest_ms).collect();
            let before = median(survivors.iter().map(|s| s.median_before_ms).collect());
            let slowest_before = worst(&survivors.iter().map(|s| s.slowest_before_ms).collect::<Vec<_>>());
            let (median, worst) = (median(slowest.clone()), worst(&slowest));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {median:.1} | {worst:.1} | {before:.1} | {slowest_before:.1} |",
                name(dead),
                kills.len(),
                name(region)
            );
        }
    }
    let _ = writeln!(
        text,
        "\nNothing was lost: all {} acknowledged increments are there in every region, and no more\nthan were sent.",
        result.acknowledged
    );
    text
}

fn by_survivor<'a>(kills: impl IntoIterator<Item = &'a Kill>) -> std::collections::BTreeMap<usize, Vec<&'a Survivor>> {
    let mut by: std::collections::BTreeMap<usize, Vec<&Survivor>> = Default::default();
    for survivor in kills.into_iter().flat_map(|kill| &kill.survivors) {
        by.entry(survivor.region).or_default().push(survivor);
    }
    by
}

fn raw(result: &Measured) -> String {
    let name = |region: usize| result.topology.regions[region].name.as_str();
    let mut text = String::from("killed,clients_in,gap_ms,slowest_ms,median_before_ms,slowest_before_ms\n");
    for kill in result.leader.iter().chain(&result.others) {
        for s in &kill.survivors {
            let _ = writeln!(
                text,
                "{},{},{:.1},{:.1},{:.2},{:.1}",
                name(kill.region),
                name(s.region),
                s.gap_ms,
                s.slowest_ms,
                s.median_before_ms,
                s.slowest_before_ms
            );
        }
    }
    text
}

fn report(result: &Measured, command: &str) -> String {
    let Machine { cores, processor, postgres } = Machine::here();
    let commit = commit();
    let leader = result.topology.preferred_leader();
    let load = load_averages();
    format!(
        "# A region dies at full load

**Question.** How long does it take until commits go on, as clients in the surviving regions see it,
and is anything lost?

**Set-up.** One machine, {cores} cores ({processor}),
{postgres}, commit {commit}.
Load averages at the end: {load}. Three nodes, three PostgreSQLs and the
clients share the cores. Round trips of topologies/us.toml (10, 50, 62 ms) are emulated between the
nodes. Each region has {CLIENTS} clients, each without pauses, with one-row updates in autocommit. The
leader is in {leader}. The node of a region and all processes of its PostgreSQL are killed (-9); it
comes back and catches up before the next kill. `{command}`; each kill is in
[raw.csv](raw.csv).

\"Commits go on\" is the end of the longest time without an acknowledgement in a region, counted from
the kill. After the death of the leader's region this time includes the election timeout of the
survivor that takes over first (1.1 to 1.2 s after the leader's last message) and the round trip of
the votes. Open COMMITs go on by themselves; no client has to do anything.

{}",
        tables(result)
    )
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).map(|at| args.get(at + 1).cloned());
    let kills = match value("--kills") {
        Some(text) => text.context("--kills takes a number")?.parse().context("read --kills")?,
        None => 20,
    };
    let out = value("--out").map(|text| text.context("--out takes a folder")).transpose()?;
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onetrip-lab"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let result = runtime.block_on(measure(&binary, kills))?;
    let text = report(&result, "make bench-failover");
    println!("{text}");
    if let Some(out) = out {
        // cargo runs a bench in its package's folder.
        let folder = repository().join(out);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("README.md"), text)?;
        std::fs::write(folder.join("raw.csv"), raw(&result))?;
    }
    Ok(())
}
