//! Read leases are spans on clocks that nobody sets.  Wall clocks that jump, machines that have been up for different
//! times, and nodes that hang meanwhile make no read stale.
//!
//! Each node and its PostgreSQL have a wall clock of their own (the torture's shim), and a time namespace in which
//! their machine has been up for as long as the others have not.  A client in one region inserts rows, clients in the
//! region with the lease count them.  Each count must have all rows whose inserts were acknowledged, or that another
//! client had counted, before it began; and none whose insert had not begun when it ended.  For rows that are only
//! inserted that is linearizability.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use onetrip_lab::torture::random::Random;
use onetrip_lab::torture::shim::{self, Clock};
use onetrip_lab::Cluster;

use crate::lab::{apart, binary, builder, number, start_prepared, until, Lab, Session, SOON};

const LEADER: usize = 0;
const WRITER: usize = 1;
const HOLDER: usize = 2;
const READERS: usize = 2;
const ROUNDS: usize = 8;
const ROWS: &str = "select count(*) from t";
const ASKED: &str = "select count from onetrip.crossings where cause = 'fresh read'";
/// For how much longer each machine has been up than this one.
const UP_LONGER_S: [u64; 3] = [0, 40 * 86_400, 400 * 86_400];
const UP_LONGER: &str = "ONETRIP_LAB_UP_LONGER_S";
const YEARS_MS: u64 = 10 * 365 * 86_400_000;

#[derive(Default)]
struct Told {
    began: AtomicI64,
    acknowledged: AtomicI64,
    counted: AtomicI64,
    counts: AtomicI64,
    stop: AtomicBool,
}

/// Runs the command in a time namespace, if the environment asks for one and the system has it.
fn wrapper() -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("up-longer.sh");
    let script = format!(
        "#!/bin/sh\n\
         up=\"--time --monotonic ${UP_LONGER} --boottime ${UP_LONGER}\"\n\
         if [ -n \"${UP_LONGER}\" ] && unshare $up true; then exec unshare $up {0} \"$@\"; fi\n\
         exec {0} \"$@\"\n",
        binary().display()
    );
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn clocks(cluster: &Cluster) -> Result<Vec<Clock>> {
    let folder = cluster.data().parent().context("the cluster has a folder")?.to_path_buf();
    let shim = shim::build(&folder)?;
    let mut clocks = Vec::new();
    for (node, up) in cluster.nodes().iter().zip(UP_LONGER_S) {
        let clock = Clock::new(&folder, node.region())?;
        shim::self_test(&clock, &shim)?;
        let mut environment = clock.environment(&shim);
        environment.push((UP_LONGER.into(), up.to_string()));
        node.set_environment(environment);
        clocks.push(clock);
    }
    Ok(clocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn clocks_that_jump_make_no_leased_read_stale() {
    let about = "fresh reads under a lease, while wall clocks jump and the holder's or the leader's node hangs";
    let mut made = Vec::new();
    let prepared = builder().topology(apart(20)).binary(wrapper().expect("write the wrapper"));
    let lab = start_prepared("lease_clocks", about, prepared, |cluster| {
        made = clocks(cluster)?;
        Ok(())
    })
    .await;
    let writer = lab.session(WRITER).await;
    writer.must("create table t (id int generated always as identity, v int)").await;
    lab.everywhere().await;
    they_have_clocks_of_their_own(&lab, &made).await;
    let data = lab.node(LEADER).folder().display().to_string();
    lab.command(&["leases", "--regions", "c", "--data", &data]).await.expect("onetrip leases");

    let told = Arc::new(Told::default());
    let asked = lab.session(HOLDER).await;
    let asked_before = number(&asked, ASKED).await.unwrap();
    let mut clients = vec![tokio::spawn(insert(writer, told.clone()))];
    for _ in 0..READERS {
        clients.push(tokio::spawn(count(lab.session(HOLDER).await, told.clone())));
    }
    let mut random = Random::new(11);
    for round in 0..ROUNDS {
        until("the holder has its lease", SOON, async || has_lease(&lab).await).await.unwrap();
        jump(&made, &mut random);
        passes(&told, 30).await;
        // A promise stands for 2 s: one hangs for less, and one for more.
        let hangs = [HOLDER, LEADER][round % 2];
        let ms = [400, 400, 3_000, 3_000][round % 4];
        lab.node(hangs).pause().expect("SIGSTOP");
        for _ in 0..4 {
            jump(&made, &mut random);
            tokio::time::sleep(Duration::from_millis(ms / 4)).await;
        }
        lab.node(hangs).resume().expect("SIGCONT");
        jump(&made, &mut random);
        passes(&told, 30).await;
    }
    told.stop.store(true, SeqCst);
    for client in clients {
        client.await.expect("a client");
    }
    let counts = told.counts.load(SeqCst);
    let alone = counts - (number(&asked, ASKED).await.unwrap() - asked_before);
    println!("lease_clocks: {counts} counts of up to {} rows, {alone} asked nobody", told.counted.load(SeqCst));
    assert!(alone * 2 > counts, "{alone} of {counts} fresh reads asked nobody");
    made.iter().for_each(|clock| clock.set(0).expect("set a clock"));
    lab.check_equal(1).await;
}

async fn has_lease(lab: &Lab) -> Result<bool> {
    Ok(lab.node(HOLDER).status().await?["has_lease"] == true)
}

/// Each clock goes somewhere else: by years, by seconds, or by less than a lease lasts, forth or back.
fn jump(clocks: &[Clock], random: &mut Random) {
    for clock in clocks {
        let far = [YEARS_MS, 10_000, 1_500][random.draw(3) as usize];
        clock.set(random.draw(2 * far) as i64 - far as i64).expect("set a clock");
    }
}

/// So many counts more.
async fn passes(told: &Told, counts: i64) {
    let enough = told.counts.load(SeqCst) + counts;
    until("fresh reads", SOON, async || Ok(told.counts.load(SeqCst) >= enough)).await.unwrap();
}

async fn insert(session: Session, told: Arc<Told>) {
    session.must("set onetrip.commit_timeout = '60s'").await;
    while !told.stop.load(SeqCst) {
        told.began.fetch_add(1, SeqCst);
        session.must("insert into t (v) values (0)").await;
        told.acknowledged.fetch_add(1, SeqCst);
    }
}

async fn count(session: Session, told: Arc<Told>) {
    session.must("set onetrip.commit_timeout = '60s'; set onetrip.read = fresh").await;
    while !told.stop.load(SeqCst) {
        let least = told.acknowledged.load(SeqCst).max(told.counted.load(SeqCst));
        let rows = number(&session, ROWS).await.expect("a fresh read");
        let most = told.began.load(SeqCst);
        assert!((least..=most).contains(&rows), "{rows} rows, {least} were acknowledged or counted, {most} begun");
        told.counted.fetch_max(rows, SeqCst);
        told.counts.fetch_add(1, SeqCst);
    }
}

/// The wall clocks are set one by one, and the monotonic ones are those of machines that were started at other times.
async fn they_have_clocks_of_their_own(lab: &Lab, clocks: &[Clock]) {
    for (region, clock) in clocks.iter().enumerate() {
        let session = lab.session(region).await;
        let seconds = "select extract(epoch from clock_timestamp())::bigint";
        let before = number(&session, seconds).await.unwrap();
        clock.set(YEARS_MS as i64).expect("set a clock");
        let moved = number(&session, seconds).await.unwrap() - before;
        clock.set(0).expect("set a clock");
        assert!((0..60).contains(&(moved - YEARS_MS as i64 / 1_000)), "PostgreSQL's clock moved by {moved} s");
        let pid = lab.node(region).pid().expect("the node runs");
        let of_process = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        assert!(of_process("maps").contains("shim.so"), "the node has no clock of its own");
        let offsets = of_process("timens_offsets");
        let up = UP_LONGER_S[region].to_string();
        if !offsets.lines().all(|line| line.split_whitespace().nth(1) == Some(&up)) || offsets.is_empty() {
            println!(
                "lease_clocks: NO TIME NAMESPACE for node {region}, all machines have been up for as long: {offsets}"
            );
        }
    }
}
