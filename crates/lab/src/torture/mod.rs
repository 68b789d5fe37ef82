//! Torture: real clusters under every kind of fault, with workloads whose invariants break if any transaction is lost,
//! committed twice, or seen in part.
//!
//! ```text
//!   calm, read committed ──> calm, repeatable read ──> faults, both levels at once ──> rest
//!        ──> faults, poison ──> rest ──> table
//! ```
//!
//! - [`plan`]: which fault comes next, from the seed alone
//! - [`faults`]: causes the faults and undoes them; [`extra_node`]: a node that joins and leaves
//! - [`workload`]: what the clients do meanwhile; after the workloads come the random statements of [`crate::poison`]
//! - [`session`], [`ledger`]: what clients were told about their transactions
//! - [`disk`], [`shim`]: power loss, full disks and wall clocks that jump
//! - [`record`]: counts for the table at the end; [`evidence`]: what the regions looked like when something went wrong
//!
//! A seed repeats the faults, but not their timing.  The torture knows nothing about the inside of a node.

pub mod disk;
mod evidence;
mod extra_node;
mod faults;
mod ledger;
mod plan;
pub mod random;
mod record;
mod session;
pub mod shim;
mod stage;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{crashes, poison, Cluster, Topology};
use disk::Disk;
use faults::{Done, Faults};
use plan::{Fault, Plan};
use random::Random;
use record::Record;
use shim::Clock;
pub use stage::Load;
use stage::{Running, Stage};
use workload::Isolation;

/// The regions are a few milliseconds apart, so that transactions of different regions overlap.
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
/// Each calm stage takes one part in this many of the whole time, and at most [`CALM_MAX`].
const CALM_SHARE: u32 = 6;
const CALM_MAX: Duration = Duration::from_secs(30);
const POISON: &str = "poison";
/// The poison takes one part in this many of the time that the calm stages leave.
const POISON_SHARE: u32 = 4;
/// How long one round of the poison takes at most.
const POISON_ROUND: Duration = Duration::from_secs(30);
/// How many transactions each session of the poison has for one round: more than there is time for.
const POISON_TRANSACTIONS: usize = 500;
/// How much longer the syncs of a node and its PostgreSQL take, as on disks of other machines.
const SYNC_SLOWER_US: [u64; 4] = [0, 500, 2_000, 5_000];
const SMALL_LOG_BYTES: u64 = 1 << 20;
/// The number of faults between two rests; at each rest every region must make progress.
const FAULTS_UNTIL_REST: u64 = 8;

pub struct Options {
    pub duration: Duration,
    pub seed: u64,
    /// The `onetrip` command.
    pub binary: PathBuf,
    /// An empty folder for all files of the run; the caller removes it afterwards.
    pub folder: PathBuf,
    /// Parts of names of kinds of faults; empty for all.
    pub only: Vec<String>,
    /// fsync does nothing and reports success.  The torture must then find that power loss loses something.
    pub lying_fsync: bool,
    /// Run only the stages without faults.
    pub calm: bool,
    /// Leave out the stages without faults.
    pub no_calm: bool,
    pub load: Load,
}

/// Runs the torture; returns the table of what happened, and whether every check passed.  `Err`: it could not be run.
pub async fn run(options: &Options) -> Result<(String, bool)> {
    let mut random = Random::new(options.seed);
    let record = Arc::new(Record::default());
    let (cluster, mut faults) = start(options, &mut random, &record).await?;
    let only_poison = options.load.only == [POISON];
    let levels = Isolation::ALL.len() as u32;
    let calm = match options.calm {
        true => options.duration / levels,
        false if options.no_calm => Duration::ZERO,
        false => (options.duration / CALM_SHARE).min(CALM_MAX),
    };
    for isolation in Isolation::ALL {
        if !record.all_passed() || only_poison || calm.is_zero() {
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
        true => options.duration.saturating_sub(levels * calm) / POISON_SHARE,
        false => Duration::ZERO,
    };
    let mut plan = Plan::new(random.child(), cluster.nodes().len(), &options.only);
    if record.all_passed() && !options.calm && !only_poison {
        let left = options.duration.saturating_sub(levels * calm + poison);
        println!("torture: faults, {} s", left.as_secs());
        let mut stages = Vec::new();
        for isolation in Isolation::ALL {
            // All levels together should not be more load than one of them was alone.
            let pause_ms_max = u64::from(levels) * options.load.pause_ms_max;
            let load = Load { pause_ms_max, ..options.load.clone() };
            let stage = Stage::new(&cluster, &record, isolation, true, load);
            stages.push(stage.prepare().await.context("make the tables")?);
        }
        // After a crash a server shows only what it had flushed, until its node has fed it the rest again.  The clients
        // need the tables all the time, so the tables must be on disk.
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
    if record.all_passed() && !options.calm && record.faults() == 0 {
        record.wrong("faults", "there was none".to_string());
    }
    log_complaints(&cluster, &record);
    if let Err(why) = cluster.stop().await {
        record.wrong("stopping", format!("{why:#}"));
    }
    // The disks can be unmounted only after the processes that use them have ended.
    drop(cluster);
    drop(faults);
    Ok((record.table(), record.all_passed()))
}

/// Runs random statements under faults; after each round all regions must be equal, as the judge of [`crate::poison`]
/// sees them.
async fn poisoned(
    cluster: &Cluster,
    plan: &mut Plan,
    faults: &mut Faults,
    record: &Record,
    random: &mut Random,
    until: Instant,
) -> Result<()> {
    let field = poison::Field::lay(cluster, random.draw(u64::MAX)).await.context("prepare the poison")?;
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
            // If all servers have crashed, they may all show the same and yet less than the log contains.  Once they
            // show this new entry, they show everything before it.
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

/// Starts a cluster.  Each node has its own clock and its own disk, where this machine allows that.
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
        // Vacuum, analyze and checkpoint as often in minutes as a server usually does in days.
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

/// Makes the logs so small that a node that is away for some seconds misses entries that the others have cut, and has
/// to copy another member's PostgreSQL.
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
        // The log files must survive the power loss that they report, so they are not on the node's disk.
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
    let (mut clocks, mut random) = (Vec::new(), Random::new(options.seed));
    for node in cluster.nodes() {
        let clock = Clock::new(folder, node.region())?;
        shim::self_test(&clock, &shim)?;
        let mut environment = clock.environment(&shim);
        let slower_us = SYNC_SLOWER_US[random.draw(SYNC_SLOWER_US.len() as u64) as usize];
        environment.push(("ONETRIP_SLOW_SYNC_US".into(), slower_us.to_string()));
        if options.lying_fsync {
            environment.push(("ONETRIP_NO_SYNC".into(), "1".into()));
        }
        node.set_environment(environment);
        clocks.push(clock);
    }
    Ok(clocks)
}

/// Looks through the logs for what no fault may cause: crashes of our programs, errors of background processes, and
/// locks without a key.
fn log_complaints(cluster: &Cluster, record: &Record) {
    // With these causes PostgreSQL is right to panic: its disk went away.
    const DISK: [&str; 2] = ["Input/output error", "No space left on device"];
    for node in cluster.nodes() {
        for log in crashes::LOGS {
            let wrong = |what: String| record.wrong(&format!("{log} of {}", node.region()), what);
            let text = match node.log(log) {
                Ok(text) => text,
                Err(why) => {
                    wrong(format!("{why:#}"));
                    continue;
                }
            };
            if log == "node.log" {
                let anew = text.matches("PostgreSQL's folder is made anew").count() as u64;
                record.seen("seen: a PostgreSQL made anew", anew);
                record.seen("seen: a leader elected", text.matches("role=Leader").count() as u64);
            }
            let mut panicked = false;
            for (line, next) in crashes::in_log(&text).filter(|(line, _)| !crashes::killed(line)) {
                let disk = |line: &str| DISK.iter().any(|cause| line.contains(cause));
                let panic = line.contains("PANIC:  ");
                let excused = match () {
                    () if panic => disk(line),
                    // A panic ends the process in this way, and has been judged already.
                    () if line.contains("terminated by signal 6") => std::mem::take(&mut panicked),
                    // A node's log storage can report an unreadable disk to Raft only by a panic; the cause is in the
                    // next line.
                    () => line.contains("panicked at") && disk(next),
                };
                panicked |= panic;
                if !excused {
                    wrong(line.to_string());
                }
            }
            let of_workers = background_errors(&text).filter(|_| log == "postgres.log");
            let without_key = text.lines().filter(|line| line.contains("a lock without a key"));
            of_workers.chain(without_key).for_each(|line| _ = wrong(line.to_string()));
        }
    }
}

/// The errors of processes without a client, such as the apply worker, in a server's log.
fn background_errors(log: &str) -> impl Iterator<Item = &str> {
    log.lines().enumerate().filter(|(_, line)| background_error(line)).filter_map(|(at, line)| {
        let expected = analyzes(line, log.lines().skip(at + 1)) && !internal(line);
        (!expected).then_some(line)
    })
}

/// Whether the error in `line` came while autovacuum analyzed a table.  That compares the users' values and calls the
/// functions of their indexes, so with some values (`array[]::oidvector`) it fails on every PostgreSQL.
fn analyzes<'a>(line: &str, after: impl Iterator<Item = &'a str>) -> bool {
    // The context comes behind the error's detail, and its further lines have no prefix.
    let mut context = after.take(20).skip_while(|next| pid(next) != pid(line) || !next.contains(" CONTEXT:  "));
    let first = context.next().into_iter();
    first
        .chain(context.take_while(|more| more.starts_with('\t')))
        .any(|said| said.contains("automatic analyze of table "))
}

fn pid(line: &str) -> Option<&str> {
    line.split_once(" [").and_then(|(_, rest)| rest.split_once("] ")).map(|(pid, _)| pid)
}

/// The SQLSTATE of an ERROR of a process without a client.
fn state(line: &str) -> Option<&str> {
    // A line is "TIME [PID] APPLICATION SQLSTATE ERROR:  ...", and a background process has no application.
    let state = line.split_once("]  ").and_then(|(_, rest)| rest.split_once(" ERROR:  ")).map(|(state, _)| state);
    state.filter(|state| state.len() == 5)
}

fn internal(line: &str) -> bool {
    state(line).is_some_and(|state| state.starts_with("XX"))
}

/// Whether this is an ERROR of a process without a client, such as the apply worker, and the cause is neither the disk
/// nor a stop nor a conflict that made the process give way.
fn background_error(line: &str) -> bool {
    const FINE: [&str; 6] = ["57014", "57P01", "40001", "40P01", "53100", "58030"];
    state(line).is_some_and(|state| !FINE.contains(&state))
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

    #[test]
    fn only_errors_of_values_are_expected_while_a_table_is_analyzed() {
        let log = "2026-12-01 01:00:00.000 UTC [17]  42804 ERROR:  array is not a valid oidvector
2026-12-01 01:00:00.000 UTC [18]  42804 ERROR:  could not apply
2026-12-01 01:00:00.000 UTC [17]  42804 CONTEXT:  automatic analyze of table \"onetrip.a.t6\"
2026-12-01 01:00:00.000 UTC [19]  XX000 ERROR:  no such key
2026-12-01 01:00:00.000 UTC [19]  XX000 CONTEXT:  automatic analyze of table \"onetrip.a.t6\"
2026-12-01 01:00:00.000 UTC [21]  22012 ERROR:  division by zero
2026-12-01 01:00:00.000 UTC [21]  22012 CONTEXT:  SQL function \"f\" statement 1
\tautomatic analyze of table \"onetrip.a.t6\"
2026-12-01 01:00:00.000 UTC [20]  22012 ERROR:  division by zero
2026-12-01 01:00:00.000 UTC [20]  22012 CONTEXT:  automatic vacuum of table \"onetrip.a.t6\"";
        let pids: Vec<_> = background_errors(log).map(pid).collect();
        assert_eq!(pids, [Some("18"), Some("19"), Some("20")]);
    }
}
