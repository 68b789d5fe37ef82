//! What a relay saves, and what one that stands still costs.
//!
//! `cargo run --release -p onetrip-node --example relay [seconds per measurement]`
//! Five voters, a process each, without PostgreSQL: one in r1, which leads, three in r2 at a round trip of 20 ms, one
//! in r3 at 60 ms.  Clients commit at the leader, first with all nodes running, then with one node of r2 stopped
//! (SIGSTOP) after a second: the relay.  Without a relay: the same distances, with each node of r2 in a region of its
//! own name.

#[path = "../tests/common/mod.rs"]
mod common;

use anyhow::{bail, ensure, Context, Result};
use common::{update, wait_for, Agent, Cluster};
use hdrhistogram::Histogram;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_core::agent::{Role, VerdictOutcome};
use onetrip_core::{LogIndex, RegionId};
use onetrip_node::{Node, NodeConfig};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
/// The nodes of r2, by place.
const FAR: [usize; 3] = [1, 2, 3];

/// Ends them when it goes.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = std::env::args().nth(1);
    if first.as_deref() == Some("node") {
        let folder = std::env::args().nth(2).context("its folder")?;
        let node = Node::start(NodeConfig::load(Path::new(&folder))?, None)?;
        runtime.block_on(std::future::pending::<()>());
        drop(node);
        bail!("it was not ended");
    }
    let seconds = first.map_or(Ok(15), |s| s.parse())?;
    println!(
        "entry bytes  relay    all run: commits  to r2, bytes each  p50 ms  p99.9   one stopped: p50 ms  p99.9    max"
    );
    for bytes in [200, 8_000] {
        for relay in [false, true, false, true] {
            runtime.block_on(measure(bytes, relay, Duration::from_secs(seconds)))?;
        }
    }
    Ok(())
}

fn distance(one: usize, other: usize) -> f64 {
    match (FAR.contains(&one), FAR.contains(&other)) {
        (true, true) => 0.0,
        _ if one.max(other) == 4 => 30.0,
        _ => 10.0,
    }
}

async fn measure(bytes: usize, relay: bool, time: Duration) -> Result<()> {
    let regions = if relay { ["r1", "r2", "r2", "r2", "r3"] } else { ["r1", "r2a", "r2b", "r2c", "r3"] };
    let mut cluster = Cluster::prepare_in(&regions, 0.0)?;
    let mut processes = Processes(Vec::new());
    for (me, config) in cluster.configs.iter_mut().enumerate() {
        let ways = (0..5).filter(|to| regions[*to] != regions[me]);
        config.one_way_ms = ways.map(|to| (RegionId::from(regions[to]), distance(me, to))).collect();
        config.save()?;
        let child = Command::new(std::env::current_exe()?).arg("node").arg(&config.data_dir).spawn()?;
        processes.0.push(child);
    }
    wait_for("the leader", || async {
        let leader = cluster.status(0).await?["leader"]["node"].as_u64();
        ensure!(leader == Some(1) && cluster.status(0).await?["role"] == "leader", "{leader:?}");
        let status = cluster.status(0).await?;
        let connected = status["peers"].as_array().context("peers")?.iter().filter(|p| p["connected"] == true).count();
        ensure!(connected == 4, "{connected} connected");
        Ok(())
    })
    .await?;
    let mut agents = Vec::new();
    for _ in 0..CLIENTS {
        let config = &cluster.configs[0];
        agents.push(Some(Agent::connect(&config.data_dir, config.node, Role::Backend, LogIndex(0)).await?));
    }
    // Until round trips are known everywhere.
    load(&mut agents, bytes, Duration::from_secs(3)).await?;
    let before = to_far(&cluster).await?;
    let run = load(&mut agents, bytes, time).await?;
    let each = (to_far(&cluster).await? - before) as f64 / run.len() as f64;

    let handed_on = handed_on(&cluster).await?;
    load(&mut agents, bytes, Duration::from_millis(100)).await?;
    let now = self::handed_on(&cluster).await?;
    let victim = (0..FAR.len()).max_by_key(|n| now[*n] - handed_on[*n]).context("three")?;
    let pid = Pid::from_raw(processes.0[FAR[victim]].id() as i32);
    let stop = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        kill(pid, Signal::SIGSTOP)
    });
    let stopped = load(&mut agents, bytes, time).await?;
    stop.await??;
    let ms = |h: &Histogram<u64>, q: f64| h.value_at_quantile(q) as f64 / 1e6;
    println!(
        "{bytes:11}  {}  {:16}  {each:17.0}  {:6.1}  {:5.1}  {:19.1}  {:5.1}  {:5.1}",
        if relay { "with   " } else { "without" },
        run.len(),
        ms(&run, 0.5),
        ms(&run, 0.999),
        ms(&stopped, 0.5),
        ms(&stopped, 0.999),
        ms(&stopped, 1.0)
    );
    Ok(())
}

fn of_far(status: &Value, what: &str) -> u64 {
    let peers = status["peers"].as_array().into_iter().flatten();
    peers.filter(|p| (2..=4).contains(&p["id"].as_u64().unwrap_or(0))).filter_map(|p| p[what].as_u64()).sum()
}

/// Bytes of the frames from the leader to r2.
async fn to_far(cluster: &Cluster) -> Result<u64> {
    Ok(of_far(&cluster.status(0).await?, "sent_bytes"))
}

/// What each node of r2 has handed on.
async fn handed_on(cluster: &Cluster) -> Result<[u64; 3]> {
    let mut bytes = [0; 3];
    for (n, i) in FAR.into_iter().enumerate() {
        bytes[n] = of_far(&cluster.status(i).await?, "relayed_bytes");
    }
    Ok(bytes)
}

async fn load(agents: &mut [Option<Agent>], bytes: usize, time: Duration) -> Result<Histogram<u64>> {
    let end = Instant::now() + time;
    let mut tasks = Vec::new();
    for (n, agent) in agents.iter_mut().enumerate() {
        tasks.push(tokio::spawn(one_client(agent.take().context("an agent")?, n as u64, bytes, end)));
    }
    let mut all = Histogram::new(3)?;
    for (task, agent) in tasks.into_iter().zip(agents) {
        let (back, took) = task.await??;
        *agent = Some(back);
        all.add(took)?;
    }
    Ok(all)
}

async fn one_client(mut agent: Agent, client: u64, bytes: usize, end: Instant) -> Result<(Agent, Histogram<u64>)> {
    let mut h = Histogram::new(3)?;
    // Sequences that no other measurement of this run uses.
    let mut sequence =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64 * 16 + client;
    let mut base = LogIndex(0);
    while Instant::now() < end {
        sequence += CLIENTS * 16;
        let before = Instant::now();
        let verdict = agent.commit(sequence, &[update(sequence, base)], &vec![7; bytes]).await?;
        h.record(before.elapsed().as_nanos() as u64)?;
        ensure!(matches!(verdict.outcome, VerdictOutcome::Commit | VerdictOutcome::Window), "{verdict:?}");
        base = verdict.at;
    }
    Ok((agent, h))
}
