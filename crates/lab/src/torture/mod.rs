//! Torture: real clusters under every kind of fault, with workloads whose invariants any lost, doubled or torn transaction
//! would break.
//!
//! ```text
//!   calm, read committed ──> calm, repeatable read ──> faults, both levels at once ──> rest ──> faults, poison ──> rest ──> table
//! ```
//!
//! - [`plan`]: which fault comes next, from the seed alone; [`faults`]: does it and undoes it; [`extra_node`]: a node that comes and goes
//! - [`workload`]: what runs meanwhile, and at last the random statements of [`crate::poison`]; [`ledger`], [`session`]: what clients were told
//! - [`disk`], [`shim`]: power loss, full disks and wall clocks that jump
//! - [`record`]: the account; [`evidence`]: what the regions looked like when something went wrong
//!
//! A seed repeats the faults, not their timing.  What it must not know: the inside of a node.

pub mod disk;
mod evidence;
mod extra_node;
mod faults;
mod ledger;
mod plan;
pub(crate) mod random;
mod record;
mod session;
mod shim;
mod stage;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{poison, Cluster, Topology};
use disk::Disk;
use faults::{Done, Faults};
use plan::{Fault, Plan};
use random::Random;
use record::Record;
use shim::Clock;
pub use stage::Load;
use stage::{Running, Stage};
use workload::Isolation;

/// Regions with a little distance, so that transactions of different regions meet.
const TOPOLOGY: &str = r#"
preferred_leader = "a"
[[region]]
name = "a"
[[region]]
name = "b"
[[region]]
name = "c"
[[link]]
between = ["a", "b"]
rtt_ms = 4
[[link]]
between = ["a", "c"]
rtt_ms = 10
[[link]]
between = ["b", "c"]
rtt_ms = 8
"#;
/// Of the whole time, each calm stage.
const CALM_SHARE: u32 = 6;
const CALM_MAX: Duration = Duration::from_secs(30);
const POISON: &str = "poison";
/// Of the time under faults, that of the poison.
const POISON_SHARE: u32 = 4;
/// Each round of it.
const POISON_ROUND: Duration = Duration::from_secs(30);
/// Of each of its sessions, in one round: more than there is time for.
const POISON_TRANSACTIONS: usize = 500;
const SMALL_LOG_BYTES: u64 = 1 << 20;
/// Faults between two rests, in which every region has to go on.
const FAULTS_UNTIL_REST: u64 = 8;

pub struct Options {
    pub duration: Duration,
    pub seed: u64,
    /// The `onetrip` command.
    pub binary: PathBuf,
    /// An empty folder below which everything lies; whoever gives it removes it.
    pub folder: PathBuf,
    /// Parts of names of kinds of faults; empty for all.
    pub only: Vec<String>,
    /// Nothing is synced though everybody is told so: power loss must then be found to lose something.
    pub lying_fsync: bool,
    /// Nothing but the stages without faults.
    pub calm: bool,
    pub load: Load,
}

/// Runs it; the table of what happened, and whether all held.  `Err`: it could not be run.
pub async fn run(options: &Options) -> Result<(String, bool)> {
    let mut random = Random::new(options.seed);
    let record = Arc::new(Record::default());
    let (cluster, mut faults) = start(options, &mut random, &record).await?;
    let only_poison = options.load.only == [POISON];
    let calm = match options.calm {
        true => options.duration / 2,
        false => (options.duration / CALM_SHARE).min(CALM_MAX),
    };
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        if !record.all_passed() || only_poison {
            break;
        }
        println!("torture: {} without faults, {} s", isolation.name(), calm.as_secs());
        let stage = Stage::new(&cluster, &record, isolation, false, options.load.clone());
        let mut running = stage.prepare().await.context("make the tables")?;
        running.launch(&mut random);
        let until = Instant::now() + calm;
        while Instant::now() < until && !running.stopping() {
            running.goes_on("without a fault").await;
        }
        stage::finish(&cluster, &record, vec![running]).await?;
    }
    let poison = match options.load.runs(POISON) {
        _ if options.calm => Duration::ZERO,
        true if only_poison => options.duration,
        true => options.duration.saturating_sub(2 * calm) / POISON_SHARE,
        false => Duration::ZERO,
    };
    let mut plan = Plan::new(random.child(), cluster.nodes().len(), &options.only);
    if record.all_passed() && !options.calm && !only_poison {
        let left = options.duration.saturating_sub(2 * calm + poison);
        println!("torture: faults, {} s", left.as_secs());
        let mut stages = Vec::new();
        for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
            // Both levels at once are to be no more load than one was.
            let load = Load { pause_ms_max: 2 * options.load.pause_ms_max, ..options.load.clone() };
            let stage = Stage::new(&cluster, &record, isolation, true, load);
            stages.push(stage.prepare().await.context("make the tables")?);
        }
        // A server that crashed stands at its last flushed commit until its node has fed it again; the tables are to be there.
        for node in cluster.nodes() {
            node.connect().await?.batch_execute("checkpoint").await?;
        }
        for running in &mut stages {
            running.launch(&mut random);
        }
        under_faults(&mut plan, &mut faults, &stages, &record, Instant::now() + left).await;
        stage::finish(&cluster, &record, stages).await?;
    }
    if record.all_passed() && !poison.is_zero() {
        println!("torture: faults and poison, {} s", poison.as_secs());
        let until = Instant::now() + poison;
        if let Err(why) = poisoned(&cluster, &mut plan, &mut faults, &record, &mut random, until).await {
            record.wrong("poison", format!("{why:#}"));
        }
    }
    log_complaints(&cluster, &record);
    if let Err(why) = cluster.stop().await {
        record.wrong("stopping", format!("{why:#}"));
    }
    // The disks are unmounted after what runs on them has ended.
    drop(cluster);
    drop(faults);
    Ok((record.table(), record.all_passed()))
}

/// Random statements under faults; then every region is alike, by the judge of [`crate::poison`].
async fn poisoned(
    cluster: &Cluster,
    plan: &mut Plan,
    faults: &mut Faults,
    record: &Record,
    random: &mut Random,
    until: Instant,
) -> Result<()> {
    let field = poison::Field::lay(cluster, random.draw(u64::MAX)).await.context("lay the ground of the poison")?;
    for round in 0.. {
        let plots = field.set_up(cluster, round, random.child(), POISON_TRANSACTIONS, false).await?;
        let sessions = poison::Sessions::start(cluster, plots.map_err(anyhow::Error::msg)?, "torture", true);
        under_faults(plan, faults, &[], record, until.min(Instant::now() + POISON_ROUND)).await;
        let worked = sessions.end().await;
        record.seen("seen: a transaction of the poison", worked.committed.len() as u64);
        worked.broken.into_iter().for_each(|broken| _ = record.wrong("poison", broken));
        if !record.all_passed() {
            return Ok(());
        }
        let all_shown = async {
            rest(cluster).await?;
            // Servers that crashed, all of them, may show less than the log has; not less than what is committed now.
            cluster.connect(0).await?.batch_execute("comment on schema made is 'at rest'").await?;
            rest(cluster).await
        };
        if let Err(why) = all_shown.await {
            evidence::gather(cluster, &format!("{why:#}")).await;
            return Err(why);
        }
        if let Some(differs) = poison::judge::compare(cluster).await? {
            record.wrong("poison", format!("regions differ: {differs}"));
            return Ok(());
        }
        field.clean_up(&cluster.connect(0).await?).await.context("clean up")?;
        cluster.converge().await?;
        if Instant::now() >= until {
            return Ok(());
        }
    }
    Ok(())
}

async fn rest(cluster: &Cluster) -> Result<()> {
    cluster.wait_ready().await?;
    cluster.converge().await
}

async fn under_faults(plan: &mut Plan, faults: &mut Faults, stages: &[Running], record: &Record, until: Instant) {
    let stopping = || stages.iter().any(Running::stopping);
    let mut number = 0;
    while !stopping() {
        let over = Instant::now() >= until;
        if over || number % FAULTS_UNTIL_REST == 0 {
            if let Err(why) = faults.heal().await {
                record.wrong("healing", format!("{why:#}"));
                return;
            }
            for running in stages {
                running.goes_on("after all faults were healed").await;
            }
            if over {
                return;
            }
        }
        number += 1;
        let planned = plan.draw();
        if !faults.can(&planned.fault) {
            continue;
        }
        println!("torture: {number}: {:?} for {} ms", planned.fault, planned.lasts.as_millis());
        match faults.inflict(&planned.fault, planned.lasts).await {
            Ok(Done::Yes) => record.fault(planned.fault.kind(), true),
            Ok(Done::NotNow(why)) => {
                println!("torture: {number}: not done: {why}");
                record.fault(planned.fault.kind(), false);
            }
            Err(why) => {
                record.wrong(planned.fault.kind(), format!("{why:#}"));
                return;
            }
        }
        let next = Instant::now() + planned.pause;
        loop {
            if let Err(why) = faults.undo_due().await {
                record.wrong("healing", format!("{why:#}"));
                return;
            }
            if Instant::now() >= next || stopping() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A cluster whose nodes have clocks and disks of their own, where that can be had.
async fn start(options: &Options, random: &mut Random, record: &Record) -> Result<(Arc<Cluster>, Faults)> {
    let topology = Topology::parse(TOPOLOGY).map_err(anyhow::Error::msg)?;
    let (tls, small_log) = (random.chance(50), random.chance(50));
    println!(
        "torture: {}, {}",
        if tls { "TLS" } else { "no TLS" },
        if small_log { "small logs" } else { "large logs" }
    );
    let mut builder = Cluster::builder();
    if tls {
        builder = builder.init_arg("--tls");
    }
    let cluster = builder
        .topology(topology)
        .binary(&options.binary)
        .folder(&options.folder)
        .postgres_setting("onetrip.commit_timeout", "3s")
        .postgres_setting("onetrip.max_apply_delay", "1s")
        .postgres_setting("max_wal_size", "256MB")
        // Vacuum, analyze and checkpoints as if it were days.
        .postgres_setting("checkpoint_timeout", "30s")
        .postgres_setting("autovacuum_naptime", "1s")
        .postgres_setting("autovacuum_vacuum_threshold", "20")
        .postgres_setting("autovacuum_vacuum_scale_factor", "0.01")
        .postgres_setting("autovacuum_analyze_threshold", "20")
        .postgres_setting("autovacuum_analyze_scale_factor", "0.01")
        .postgres_setting("log_line_prefix", "%m [%p] %a %e ")
        .postgres_setting("log_lock_waits", "on")
        .init()
        .await?;
    if small_log {
        keep_logs_small(&cluster)?;
    }
    let disks = match disk::self_test(&options.folder) {
        Ok(()) => disks(&cluster, &options.folder)?,
        Err(why) => {
            for kind in [
                Fault::PowerLoss { region: 0 }.kind(),
                Fault::PowerLossEverywhere.kind(),
                Fault::FullDisk { region: 0 }.kind(),
            ] {
                record.cannot(kind, &format!("no loop mounts ({why:#})"));
            }
            Vec::new()
        }
    };
    let clocks = clocks(&cluster, options).unwrap_or_else(|why| {
        record.cannot(Fault::ClockJump { region: 0, ms: 0 }.kind(), &format!("{why:#}"));
        Vec::new()
    });
    for node in cluster.nodes() {
        node.start()?;
    }
    cluster.wait_ready().await?;
    let cluster = Arc::new(cluster);
    let faults = Faults::new(Arc::clone(&cluster), disks, clocks);
    Ok((cluster, faults))
}

/// Whoever is away for some seconds misses more than the others keep, and starts over from a copy of another's PostgreSQL.
fn keep_logs_small(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let file = node.folder().join("node.toml");
        let text = std::fs::read_to_string(&file)?;
        let lines = text.lines().filter(|line| !line.starts_with("log_bytes_max"));
        let changed = lines.fold(format!("log_bytes_max = {SMALL_LOG_BYTES}\n"), |all, line| all + line + "\n");
        std::fs::write(&file, changed)?;
    }
    Ok(())
}

fn disks(cluster: &Cluster, folder: &Path) -> Result<Vec<Disk>> {
    let mut disks = Vec::new();
    for node in cluster.nodes() {
        // What the processes say must survive the loss of power that it tells of.
        for log in ["node.log", "postgres.log"] {
            let kept = folder.join(format!("{}-{log}", node.region()));
            std::fs::File::create(&kept)?;
            let owner = std::fs::metadata(node.folder())?;
            std::os::unix::fs::chown(&kept, Some(std::os::unix::fs::MetadataExt::uid(&owner)), None)?;
            let _ = std::fs::remove_file(node.folder().join(log));
            std::os::unix::fs::symlink(&kept, node.folder().join(log))?;
        }
        let image = folder.join(format!("{}.ext4", node.region()));
        disks.push(Disk::new(&image, node.folder())?);
    }
    Ok(disks)
}

fn clocks(cluster: &Cluster, options: &Options) -> Result<Vec<Clock>> {
    let folder = &options.folder;
    let shim = shim::build(folder)?;
    let mut clocks = Vec::new();
    for node in cluster.nodes() {
        let clock = Clock::new(folder, node.region())?;
        shim::self_test(&clock, &shim)?;
        let mut environment = clock.environment(&shim);
        if options.lying_fsync {
            environment.push(("ONETRIP_NO_SYNC".into(), "1".into()));
        }
        node.set_environment(environment);
        clocks.push(clock);
    }
    Ok(clocks)
}

/// What no fault may bring about: crashes of the programs' own, and locks without a key.
fn log_complaints(cluster: &Cluster, record: &Record) {
    const NEVER: [&str; 3] = ["TRAP:", "terminated by signal 11", "a lock without a key"];
    // What PostgreSQL is to do when its disk goes away.
    const DISK: [&str; 2] = ["Input/output error", "No space left on device"];
    for node in cluster.nodes() {
        for log in ["node.log", "postgres.log"] {
            let text = std::fs::read(node.folder().join(log)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            if log == "node.log" {
                let anew = text.matches("PostgreSQL's folder is made anew").count() as u64;
                record.seen("seen: a PostgreSQL made anew", anew);
                record.seen("seen: a leader elected", text.matches("role=Leader").count() as u64);
            }
            let mut panicked = false;
            let mut lines = text.lines().peekable();
            while let Some(line) = lines.next() {
                let disk = |line: &str| DISK.iter().any(|cause| line.contains(cause));
                // Raft's storage has no other way to report a disk that cannot be read; the cause is in the next line.
                let in_rust = line.contains("panicked at") && !lines.peek().is_some_and(|next| disk(next));
                let aborted = line.contains("terminated by signal 6") && !std::mem::take(&mut panicked);
                let panic = line.contains("PANIC:  ");
                panicked |= panic;
                let own_panic = panic && !disk(line);
                let of_worker = log == "postgres.log" && background_error(line);
                if aborted || own_panic || in_rust || of_worker || NEVER.iter().any(|never| line.contains(never)) {
                    record.wrong(&format!("{log} of {}", node.region()), line.to_string());
                }
            }
        }
    }
}

/// An ERROR of a process without a client, such as the apply worker, for another reason than a disk, a stop or giving way.
fn background_error(line: &str) -> bool {
    const FINE: [&str; 6] = ["57014", "57P01", "40001", "40P01", "53100", "58030"];
    // "TIME [PID] APPLICATION SQLSTATE ERROR:  ...": no application.
    let state = line.split_once("]  ").and_then(|(_, rest)| rest.split_once(" ERROR:  ")).map(|(state, _)| state);
    state.is_some_and(|state| state.len() == 5 && !FINE.contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_background_processes_are_told_from_those_of_clients() {
        assert!(background_error("2026-11-22 01:00:00.000 UTC [17]  XX000 ERROR:  could not apply"));
        assert!(!background_error("2026-11-22 01:00:00.000 UTC [17]  57014 ERROR:  canceling autovacuum task"));
        assert!(!background_error("2026-11-22 01:00:00.000 UTC [17] torture 42703 ERROR:  column does not exist"));
        assert!(!background_error("2026-11-22 01:00:00.000 UTC [17]  00000 LOG:  ERROR:  quoted"));
    }
}
