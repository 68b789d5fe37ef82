//! Faults drawn at random, several at a time, under load of every kind; afterwards all regions agree and nothing is lost.
//!
//! The seed is printed; `ONETRIP_TEST_SEED` draws the same faults again, though not the same timing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lab::{builder, duration, number, start_from, Lab, Session};
use crate::load::{Load, PROGRAM};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_lose_nothing() {
    let lab = start_from(
        "torture",
        "kills, pauses and cuts at random under rows, bulk changes and DDL: regions agree, nothing is lost",
        builder().postgres_setting("onetrip.commit_timeout", "3s").postgres_setting("onetrip.max_apply_delay", "1s"),
    )
    .await;
    let mut random = Random::from_environment();
    lab.session(0)
        .await
        .must(
            "create table bulk (id int primary key, v text, u int unique); create table shape (id int primary key, v int);
             create table part (id int primary key, bulk int references bulk on delete cascade)",
        )
        .await;
    let load = Load::start(&lab).await;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for region in 0..3 {
        let (conninfo, stop, done, seed) =
            (lab.node(region).conninfo(), Arc::clone(&stop), Arc::clone(&done), random.draw(1 << 30));
        tasks.push(tokio::spawn(async move { mixed(&conninfo, Random(seed | 1), &stop, &done).await }));
    }
    let deadline = Instant::now() + duration(20);
    let mut faults = 0;
    while Instant::now() < deadline {
        fault(&lab, &mut random).await;
        faults += 1;
    }
    everything_runs(&lab).await;
    load.progress(&lab, &[0, 1, 2], "after all faults").await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a client");
    }
    println!("torture: {faults} faults, {} mixed statements done", done.load(Ordering::Relaxed));
    load.finish(&lab).await;
    lab.check_equal(6).await;
    for region in 0..3 {
        let handovers =
            number(&lab.session(region).await.client, "select handovers from onetrip.status").await.unwrap();
        assert_eq!(handovers, 0, "region {region}: a lock without a key");
    }
}

struct Random(u64);

impl Random {
    fn from_environment() -> Random {
        let given = std::env::var("ONETRIP_TEST_SEED").ok().and_then(|v| v.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        let seed = given.unwrap_or(now % 1_000_000_007);
        println!("torture: ONETRIP_TEST_SEED={seed}");
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % below
    }
}

/// One fault, held for a while.  What it stops it lets go on, except that a node may stay down until a later fault.
async fn fault(lab: &Lab, random: &mut Random) {
    let victim = random.draw(3) as usize;
    let other = (victim + 1 + random.draw(2) as usize) % 3;
    let node = lab.node(victim);
    let hold = Duration::from_millis(random.draw(1_500));
    match random.draw(7) {
        0 => backend(lab, victim).await,
        1 => {
            let _ = node.kill9_postgres();
        }
        2 => {
            let _ = node.kill9();
        }
        3 => {
            if node.pause().is_ok() {
                tokio::time::sleep(hold).await;
                node.resume().expect("SIGCONT");
            }
        }
        4 => {
            let _ = lab.cut_link(victim, other, true).await;
            tokio::time::sleep(hold).await;
            heal(lab).await;
        }
        5 => {
            for other in (0..3).filter(|r| *r != victim) {
                let _ = lab.cut_link(victim, other, true).await;
            }
            tokio::time::sleep(hold).await;
            heal(lab).await;
        }
        _ => everything_runs(lab).await,
    }
    tokio::time::sleep(hold / 2).await;
}

/// A node that starts anew has no link cut; its peers may have.
async fn heal(lab: &Lab) {
    for (x, y) in [(0, 1), (0, 2), (1, 2)] {
        let _ = lab.cut_link(x, y, false).await;
        let _ = lab.cut_link(y, x, false).await;
    }
}

async fn everything_runs(lab: &Lab) {
    for node in lab.nodes() {
        if !node.running() {
            // Its PostgreSQL may have gone on alone: the node adopts it.
            node.start().unwrap_or_else(|e| panic!("{e:#}"));
        }
    }
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    heal(lab).await;
}

async fn backend(lab: &Lab, victim: usize) {
    let Ok(session) = Session::open(&lab.node(victim).conninfo()).await else { return };
    let query = format!(
        "select coalesce(max(pid), 0) from pg_stat_activity where application_name = '{PROGRAM}' or backend_type like 'onetrip%'"
    );
    if let Ok(pid @ 1..) = number(&session, &query).await {
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
    }
}

/// Bulk changes, DDL, TRUNCATE, cascades; how each ends is its own matter, whether regions agree afterwards is the test's.
async fn mixed(conninfo: &str, mut random: Random, stop: &AtomicBool, done: &AtomicU64) {
    let mut session: Option<Session> = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &session else {
            match Session::open(conninfo).await {
                Ok(open) => session = Some(open),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            continue;
        };
        let n = random.draw(5_000);
        let sql = match random.draw(10) {
            0 => format!("insert into bulk select g, repeat('x', {n}), null from generate_series({n}, {n} + 300) g on conflict (id) do update set v = excluded.v || '+'"),
            1 => format!("delete from bulk where id between {n} and {n} + 200"),
            2 => format!("update bulk set u = {n} where id = (select min(id) from bulk where id > {n})"),
            3 => format!("insert into part select {n}, min(id) from bulk having min(id) is not null on conflict (id) do update set bulk = excluded.bulk"),
            4 => "alter table shape add column if not exists extra int default 7".to_string(),
            5 => "alter table shape drop column if exists extra".to_string(),
            6 => format!("insert into shape (id, v) values ({n}, 1) on conflict (id) do update set v = shape.v + 1"),
            7 if n < 500 => "truncate shape".to_string(),
            7 => format!("begin; savepoint s; delete from bulk where id = {n}; rollback to s; update bulk set v = 'after' where id = {n}; commit"),
            8 => "create index if not exists shape_v on shape (v)".to_string(),
            _ => "drop index if exists shape_v".to_string(),
        };
        match tokio::time::timeout(Duration::from_secs(60), open.client.batch_execute(&sql)).await {
            Ok(Ok(())) => {
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Err(error)) => {
                if error.as_db_error().is_none() || open.client.batch_execute("rollback").await.is_err() {
                    session = None;
                }
            }
            Err(_) => panic!("{sql} hangs"),
        }
    }
}
