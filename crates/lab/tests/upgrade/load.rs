//! Load from every region, which knows what was acknowledged to it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use onetrip_lab::Cluster;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

const SESSIONS: usize = 2;
const SOON: Duration = Duration::from_secs(60);
/// Between two tries while a region is away, and between two transactions.
const REST: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// Of no session but of a region: for who waits until each goes on.
    by_region: [AtomicU64; 3],
    lost: AtomicU64,
}

pub struct Load {
    counts: Arc<Counts>,
    sessions: Vec<JoinHandle<BTreeSet<(i32, i64)>>>,
}

/// Session and number of each transaction whose COMMIT succeeded.
pub struct Acknowledged(BTreeSet<(i32, i64)>);

impl Load {
    pub async fn start(cluster: &Cluster) -> Result<Load> {
        let client = cluster.connect(0).await?;
        client
            .batch_execute(
                "create table events (session int, number bigint, t text, primary key (session, number));
                 create table totals (session int primary key, n bigint not null);
                 create table shared (id int primary key, n bigint not null);
                 insert into totals select s, 0 from generate_series(0, 5) s;
                 insert into shared select s, 0 from generate_series(0, 9) s;",
            )
            .await?;
        cluster.converge().await?;
        let counts = Arc::new(Counts::default());
        let sessions = cluster.nodes().iter().enumerate().flat_map(|(region, node)| {
            let (conninfo, counts) = (node.conninfo(), counts.clone());
            (0..SESSIONS)
                .map(move |n| tokio::spawn(session(region, region * SESSIONS + n, conninfo.clone(), counts.clone())))
        });
        let sessions = sessions.collect();
        Ok(Load { counts, sessions })
    }

    /// Waits until every region has committed ten more.
    pub async fn goes_on(&self) -> Result<()> {
        let now = || self.counts.by_region.each_ref().map(|n| n.load(Ordering::Relaxed));
        let (before, deadline) = (now(), Instant::now() + SOON);
        while now().iter().zip(before).any(|(now, before)| *now < before + 10) {
            ensure!(Instant::now() < deadline, "not every region goes on: {before:?}, {:?}", now());
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    pub fn told(&self) -> String {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        format!("{} acknowledged, {} lost and tried again", of(&self.counts.acknowledged), of(&self.counts.lost))
    }

    pub async fn stop(self) -> Result<Acknowledged> {
        self.counts.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeSet::new();
        for session in self.sessions {
            all.append(&mut tokio::time::timeout(SOON, session).await.context("a session does not end")??);
        }
        Ok(Acknowledged(all))
    }
}

async fn session(region: usize, session: usize, conninfo: String, counts: Arc<Counts>) -> BTreeSet<(i32, i64)> {
    let (mut acknowledged, mut number, id) = (BTreeSet::new(), 0i64, session as i32);
    while !counts.stop.load(Ordering::Relaxed) {
        let connected = tokio::time::timeout(SOON, tokio_postgres::connect(&conninfo, NoTls)).await;
        let Ok(Ok((mut client, connection))) = connected else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let connection = tokio::spawn(connection);
        while !client.is_closed() && !counts.stop.load(Ordering::Relaxed) {
            // Of a number whose COMMIT failed nothing is known, so each is used once.
            number += 1;
            match tokio::time::timeout(SOON, transaction(&mut client, id, number)).await {
                Ok(Ok(())) => {
                    acknowledged.insert((id, number));
                    counts.acknowledged.fetch_add(1, Ordering::Relaxed);
                    counts.by_region[region].fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(REST).await;
        }
        connection.abort();
    }
    acknowledged
}

async fn transaction(
    client: &mut tokio_postgres::Client,
    session: i32,
    number: i64,
) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let shared = (number % 10) as i32;
    transaction
        .execute("insert into events values ($1, $2::bigint, md5($2::bigint::text))", &[&session, &number])
        .await?;
    transaction.execute("update totals set n = n + 1 where session = $1", &[&session]).await?;
    transaction.execute("update shared set n = n + 1 where id = $1", &[&shared]).await?;
    transaction.commit().await
}

impl Acknowledged {
    /// Fails unless all of it is there, and what each transaction changed is there as often as the transaction.
    pub async fn are_in(&self, client: &tokio_postgres::Client) -> Result<()> {
        let rows = client.query("select session, number from events", &[]).await?;
        let there: BTreeSet<(i32, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let missing: Vec<_> = self.0.difference(&there).collect();
        ensure!(missing.is_empty(), "{} acknowledged transactions are missing: {missing:?}", missing.len());
        let sums = "select (select sum(n)::bigint from totals), (select sum(n)::bigint from shared)";
        let sums = client.query_one(sums, &[]).await?;
        let (totals, shared): (i64, i64) = (sums.get(0), sums.get(1));
        let count = there.len() as i64;
        ensure!((totals, shared) == (count, count), "{count} transactions, and sums {totals} and {shared}");
        Ok(())
    }

    pub fn told(&self) -> String {
        format!("{} acknowledged transactions are in every region", self.0.len())
    }
}

/// One client with the addresses of all regions, which goes on elsewhere when its region stops.
pub struct MultiHost {
    stop: Arc<AtomicBool>,
    longest: Arc<Mutex<(u64, Duration)>>,
    client: JoinHandle<()>,
}

impl MultiHost {
    pub async fn start(cluster: &Cluster) -> Result<MultiHost> {
        cluster.connect(0).await?.batch_execute("create table pauses (id bigint primary key)").await?;
        cluster.converge().await?;
        let ports: Vec<String> = cluster.nodes().iter().map(|node| node.postgres_port().to_string()).collect();
        let conninfo = format!(
            "host=127.0.0.1,127.0.0.1,127.0.0.1 port={} user=postgres dbname=onetrip target_session_attrs=read-write \
             connect_timeout=2",
            ports.join(",")
        );
        let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<(u64, Duration)>>::default());
        let client = tokio::spawn(go_on(conninfo, stop.clone(), longest.clone()));
        Ok(MultiHost { stop, longest, client })
    }

    /// How many commits were acknowledged, and the longest time between two of them.
    pub async fn stop(self) -> Result<(u64, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        tokio::time::timeout(SOON, self.client).await.context("the client does not end")??;
        let told = *self.longest.lock().expect("no code that holds this lock panics");
        ensure!(told.0 > 100, "only {} commits", told.0);
        Ok(told)
    }
}

async fn go_on(conninfo: String, stop: Arc<AtomicBool>, longest: Arc<Mutex<(u64, Duration)>>) {
    let (mut last, mut id) = (Instant::now(), 0i64);
    while !stop.load(Ordering::Relaxed) {
        let Ok((client, connection)) = tokio_postgres::connect(&conninfo, NoTls).await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let connection = tokio::spawn(connection);
        while !client.is_closed() && !stop.load(Ordering::Relaxed) {
            id += 1;
            if client.execute("insert into pauses values ($1)", &[&id]).await.is_ok() {
                let mut told = longest.lock().expect("no code that holds this lock panics");
                *told = (told.0 + 1, told.1.max(last.elapsed()));
                last = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        connection.abort();
    }
}
