//! kill -9 of a backend, of a whole PostgreSQL, of a node, in each region in turn, under load.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lab::{number, start, until, Lab, Session};
use nix::sys::signal::{kill, Signal};
use onetrip_lab::postmaster;

const CLIENTS: usize = 2;
/// What the others must get done while one is down, and the one that comes back after that.
const PROGRESS: u64 = 20;
const BACK: Duration = Duration::from_secs(60);

/// One client's own list of what it was told.
#[derive(Default)]
struct Diary {
    acknowledged: Mutex<Vec<String>>,
    /// Of those: how many so far.
    count: AtomicU64,
    /// Errors that left it open whether the row was committed.
    open: AtomicU64,
}

struct Load {
    diaries: Vec<Vec<Arc<Diary>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill9_of_anything() {
    let lab = start("kill9", "kill -9 of a backend, a PostgreSQL, a node, in each region, under load; nothing is lost").await;
    lab.session(0)
        .await
        .must("create table kept (id text primary key, region int); create table once (id text, region int); create table hot (id int primary key, n int); insert into hot values (0, 0), (1, 0), (2, 0)")
        .await;
    lab.everywhere().await;
    let load = Load::start(&lab);
    load.all_progress(&lab, &[0, 1, 2], "at the start").await;
    for victim in [1, 0, 2] {
        backend(&lab, victim).await;
        load.all_progress(&lab, &[0, 1, 2], &format!("after kill -9 of a backend in region {victim}")).await;

        whole_postgres(&lab, victim);
        load.others_progress(&lab, victim, "kill -9 of a PostgreSQL").await;
        load.all_progress(&lab, &[victim], &format!("PostgreSQL of region {victim} is to come back")).await;

        lab.node(victim).kill9().expect("kill the node");
        load.others_progress(&lab, victim, "kill -9 of a node").await;
        lab.node(victim).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
        load.all_progress(&lab, &[0, 1, 2], &format!("node of region {victim} is to come back")).await;

        // Both at once: the machine is gone.
        lab.node(victim).kill9().expect("kill the node");
        whole_postgres(&lab, victim);
        load.others_progress(&lab, victim, "the loss of a region").await;
        lab.node(victim).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
        load.all_progress(&lab, &[0, 1, 2], &format!("region {victim} is to come back")).await;
    }
    let diaries = load.finish().await;
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    lab.check_equal(3).await;
    nothing_is_missing(&lab, &diaries).await;
}

async fn nothing_is_missing(lab: &Lab, diaries: &[Vec<Arc<Diary>>]) {
    let acknowledged: Vec<String> =
        diaries.iter().flatten().flat_map(|d| d.acknowledged.lock().expect("no panic").clone()).collect();
    let open: u64 = diaries.iter().flatten().map(|d| d.open.load(Ordering::Relaxed)).sum();
    let mut totals = Vec::new();
    for region in 0..3 {
        let session = lab.session(region).await;
        let rows = session.query("select id from kept", &[]).await.expect("read");
        let there: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
        let missing: Vec<&String> = acknowledged.iter().filter(|id| !there.contains(*id)).collect();
        assert!(missing.is_empty(), "region {region} lacks {} acknowledged rows: {missing:?}", missing.len());
        let twice = number(&session, "select count(*) - count(distinct id) from once").await.unwrap();
        assert_eq!(twice, 0, "region {region} has rows twice");
        let halves = number(
            &session,
            "select count(*) from kept full join once using (id) where kept.region is null or once.region is null",
        )
        .await
        .unwrap();
        assert_eq!(halves, 0, "region {region} has halves of transactions");
        // Counters count what was committed: nothing was applied twice either.
        let counted = number(&session, "select sum(n) from hot").await.unwrap();
        assert_eq!(counted, there.len() as i64, "region {region}: counters and rows disagree");
        assert!(there.len() as u64 <= acknowledged.len() as u64 + open, "region {region} has rows nobody sent");
        totals.push(there.len());
    }
    println!("kill9: {} acknowledged, {open} left open, {} rows in each region", acknowledged.len(), totals[0]);
    assert!(totals.iter().all(|t| *t == totals[0]));
}

/// kill -9 of a backend makes its PostgreSQL start all over.
async fn backend(lab: &Lab, victim: usize) {
    let watcher = lab.session(victim).await;
    let query = "select pid from pg_stat_activity where application_name = 'load' limit 1";
    until("a backend to kill", BACK, || async { Ok(number(&watcher, query).await? > 0) }).await.unwrap();
    let pid = number(&watcher, query).await.expect("a backend to kill");
    kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill a backend");
}

/// The server process first, so that it starts nothing anew.
fn whole_postgres(lab: &Lab, victim: usize) {
    let node = lab.node(victim);
    let processes = postmaster::processes(&node.postgres_data());
    node.kill9_postgres().expect("kill PostgreSQL");
    for pid in processes {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

impl Load {
    fn start(lab: &Lab) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        let mut diaries = Vec::new();
        for region in 0..3 {
            let mut of_region = Vec::new();
            for client in 0..CLIENTS {
                let diary = Arc::new(Diary::default());
                of_region.push(Arc::clone(&diary));
                let conninfo = format!("{} application_name=load", lab.node(region).conninfo());
                let stop = Arc::clone(&stop);
                tasks.push(tokio::spawn(async move { write(&conninfo, region, client, &diary, &stop).await }));
            }
            diaries.push(of_region);
        }
        Load { diaries, stop, tasks }
    }

    fn count(&self, region: usize) -> u64 {
        self.diaries[region].iter().map(|d| d.count.load(Ordering::Relaxed)).sum()
    }

    async fn all_progress(&self, lab: &Lab, regions: &[usize], when: &str) {
        let before: Vec<u64> = regions.iter().map(|r| self.count(*r)).collect();
        for (region, before) in regions.iter().zip(before) {
            let what = format!("{when}: region {} goes on", lab.node(*region).region());
            until(&what, BACK, || async { Ok(self.count(*region) >= before + PROGRESS) }).await.unwrap();
        }
    }

    async fn others_progress(&self, lab: &Lab, victim: usize, when: &str) {
        let others: Vec<usize> = (0..3).filter(|r| *r != victim).collect();
        let when = format!("during {when} in region {}", lab.node(victim).region());
        println!("kill9: {when}");
        self.all_progress(lab, &others, &when).await;
    }

    async fn finish(self) -> Vec<Vec<Arc<Diary>>> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writing client");
        }
        self.diaries
    }
}

/// Inserts rows that nobody else inserts, each in two tables, and counts them; connects again whenever it has to.
async fn write(conninfo: &str, region: usize, client: usize, diary: &Diary, stop: &AtomicBool) {
    let mut session = None;
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &session else {
            match Session::open(conninfo).await {
                Ok(open) => session = Some(open),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
            continue;
        };
        number += 1;
        let id = format!("{region}-{client}-{number}");
        let sql = format!(
            "begin; insert into kept values ('{id}', {region}); insert into once values ('{id}', {region});
             update hot set n = n + 1 where id = {}; commit",
            (region + usize::from(number % 10 == 0)) % 3
        );
        match tokio::time::timeout(BACK, open.client.batch_execute(&sql)).await {
            Ok(Ok(())) => {
                diary.acknowledged.lock().expect("no panic").push(id);
                diary.count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Err(error)) => {
                let lost = error.as_db_error().is_some_and(|db| ["40001", "55000"].contains(&db.code().code()));
                if !lost {
                    diary.open.fetch_add(1, Ordering::Relaxed);
                }
                if error.is_closed() || error.as_db_error().is_none() || open.client.batch_execute("rollback").await.is_err() {
                    session = None;
                }
            }
            Err(_) => panic!("a COMMIT in region {region} hangs"),
        }
    }
}
