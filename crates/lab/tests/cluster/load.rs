//! A load that notes every acknowledgement, and checks afterwards that nothing is missing.
//!
//! Each client inserts rows that nobody else inserts, into a table with a key and into one without, and counts them
//! in a third: so a lost row, a duplicate row, half a transaction and a transaction applied twice would all show.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lab::{number, until, Lab, Session};

const CLIENTS: usize = 2;
/// How many transactions a region must acknowledge to count as going on.
const PROGRESS: u64 = 20;
pub const BACK: Duration = Duration::from_secs(60);
pub const PROGRAM: &str = "load";

/// The errors that may leave the outcome of a COMMIT unknown: 08007, or the end of the connection.
const OPEN: [&str; 5] = ["08007", "57P01", "57P02", "57P03", CLOSED];
const CLOSED: &str = "connection closed";

/// One client's own list of what it was told.
#[derive(Default)]
pub struct Diary {
    acknowledged: Mutex<Vec<String>>,
    /// How many of them there are so far.
    count: AtomicU64,
    /// How many errors left it unknown whether the row was committed.
    open: AtomicU64,
    /// The same by SQLSTATE.
    errors: Mutex<BTreeMap<String, u64>>,
}

pub struct Load {
    diaries: Vec<Vec<Arc<Diary>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Makes the tables and starts two clients in each region.
    pub async fn start(lab: &Lab) -> Load {
        lab.session(0)
            .await
            .must(
                "create table kept (id text primary key, region int); create table once (id text, region int);
                 create table hot (id int primary key, n int); insert into hot values (0, 0), (1, 0), (2, 0)",
            )
            .await;
        lab.everywhere().await;
        // A server that has crashed shows only its flushed commits until its node has sent it the later entries again;
        // after a checkpoint the tables are always there.
        for region in 0..3 {
            lab.session(region).await.must("checkpoint").await;
        }
        let mut load = Load { diaries: Vec::new(), stop: Arc::new(AtomicBool::new(false)), tasks: Vec::new() };
        for region in 0..3 {
            load.clients_at(lab, region);
        }
        load
    }

    /// Starts two clients at the next node.
    pub fn clients_at(&mut self, lab: &Lab, region: usize) {
        assert_eq!(region, self.diaries.len(), "nodes get their clients in order");
        let diaries: Vec<Arc<Diary>> = (0..CLIENTS).map(|_| Arc::default()).collect();
        for (client, diary) in diaries.iter().enumerate() {
            let (diary, stop) = (Arc::clone(diary), Arc::clone(&self.stop));
            let conninfo = format!("{} application_name={PROGRAM}", lab.node(region).conninfo());
            self.tasks.push(tokio::spawn(async move { write(&conninfo, region, client, &diary, &stop).await }));
        }
        self.diaries.push(diaries);
    }

    fn count(&self, region: usize) -> u64 {
        self.diaries[region].iter().map(|d| d.count.load(Ordering::Relaxed)).sum()
    }

    /// How many errors in this region so far left it unknown whether a row was committed.
    pub fn open(&self, region: usize) -> u64 {
        self.diaries[region].iter().map(|d| d.open.load(Ordering::Relaxed)).sum()
    }

    /// Waits until each of these regions has acknowledged `PROGRESS` more transactions.
    pub async fn progress(&self, lab: &Lab, regions: &[usize], when: &str) {
        let before: Vec<u64> = regions.iter().map(|r| self.count(*r)).collect();
        for (region, before) in regions.iter().zip(before) {
            let what = format!("{when}: region {} goes on", lab.node(*region).region());
            until(&what, BACK, || async { Ok(self.count(*region) >= before + PROGRESS) }).await.unwrap();
        }
    }

    pub async fn others_progress(&self, lab: &Lab, victim: usize, when: &str) {
        let others: Vec<usize> = (0..3).filter(|r| *r != victim).collect();
        let when = format!("during {when} in region {}", lab.node(victim).region());
        println!("{when}");
        self.progress(lab, &others, &when).await;
    }

    /// Stops the clients; then all regions must agree with each other and with what was acknowledged.
    pub async fn finish(self, lab: &Lab) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writing client");
        }
        lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
        lab.everywhere().await;
        lab.check_equal(3).await;
        nothing_is_missing(lab, &self.diaries).await;
    }
}

/// A client that connects again sees the last row that was acknowledged to it, whatever has happened to the server.
async fn sees_its_own(session: &Session, region: usize, diary: &Diary) {
    let last = diary.acknowledged.lock().expect("no panic").last().cloned();
    if let Some(id) = last {
        // An error means that the server has crashed again.
        if let Ok(rows) = number(session, &format!("select count(*) from kept where id = '{id}'")).await {
            assert_eq!(rows, 1, "region {region} does not show row {id}, which it has acknowledged");
        }
    }
}

/// Inserts rows that nobody else inserts, each in two tables, and counts them; connects again whenever it has to.
async fn write(conninfo: &str, region: usize, client: usize, diary: &Diary, stop: &AtomicBool) {
    let mut session = None;
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &session else {
            match Session::open(conninfo).await {
                Ok(open) => {
                    sees_its_own(&open, region, diary).await;
                    session = Some(open);
                }
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
                    let kind =
                        error.as_db_error().map_or_else(|| CLOSED.to_string(), |db| db.code().code().to_string());
                    *diary.errors.lock().expect("no panic").entry(kind).or_default() += 1;
                }
                if error.is_closed()
                    || error.as_db_error().is_none()
                    || open.client.batch_execute("rollback").await.is_err()
                {
                    session = None;
                }
            }
            Err(_) => panic!("a COMMIT in region {region} hangs"),
        }
    }
}
async fn nothing_is_missing(lab: &Lab, diaries: &[Vec<Arc<Diary>>]) {
    let acknowledged: Vec<String> =
        diaries.iter().flatten().flat_map(|d| d.acknowledged.lock().expect("no panic").clone()).collect();
    let open: u64 = diaries.iter().flatten().map(|d| d.open.load(Ordering::Relaxed)).sum();
    let mut totals = Vec::new();
    for region in lab.serving() {
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
        // The counters count what was committed, so nothing was applied twice either.
        let counted = number(&session, "select sum(n) from hot").await.unwrap();
        assert_eq!(counted, there.len() as i64, "region {region}: counters and rows disagree");
        assert!(there.len() as u64 <= acknowledged.len() as u64 + open, "region {region} has rows nobody sent");
        totals.push(there.len());
    }
    println!("{} acknowledged, {open} left open, {} rows in each region", acknowledged.len(), totals[0]);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for diary in diaries.iter().flatten() {
        for (kind, count) in diary.errors.lock().expect("no panic").iter() {
            *kinds.entry(kind.clone()).or_default() += count;
        }
    }
    println!("left open by {kinds:?}");
    for kind in kinds.keys() {
        assert!(OPEN.contains(&kind.as_str()), "an insert may not end with {kind}: {kinds:?}");
    }
    assert!(totals.iter().all(|t| *t == totals[0]));
}
