//! One stage of a run: an isolation level, with or without faults, with clients in all regions, whose results are
//! checked at the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use super::evidence;
use super::random::Random;
use super::record::Record;
use super::session::{End, Hangs, Session};
use super::workload::{
    self, Client, Counters, Ddl, Family, Inserts, Isolation, Lists, Prepared, Sequences, Transfers, Workload,
};
use crate::Cluster;

const RETRY_CONNECT: Duration = Duration::from_millis(50);
/// How many transactions a region must commit to count as making progress.
const PROGRESS: u64 = 10;
const BACK: Duration = Duration::from_secs(60);

/// Which workloads run, and with how many clients.
#[derive(Debug, Clone)]
pub struct Load {
    /// Names of workloads; empty for all.
    pub only: Vec<String>,
    /// A multiple of the usual number of clients.
    pub clients: u64,
    /// Clients pause for up to this long between transactions.
    pub pause_ms_max: u64,
}

impl Load {
    pub fn runs(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == workload)
    }
}

pub struct Stage {
    name: String,
    schema: String,
    isolation: Isolation,
    under_faults: bool,
    load: Load,
    cluster: Arc<Cluster>,
    record: Arc<Record>,
    stop: AtomicBool,
    committed: Vec<AtomicU64>,
}

/// A stage with its tables, whose clients are running or can be launched.
pub struct Running {
    stage: Arc<Stage>,
    clients: Vec<JoinHandle<()>>,
    transfers: Arc<Transfers>,
    lists: Arc<Lists>,
    inserts: Arc<Inserts>,
    family: Arc<Family>,
    sequences: Arc<Sequences>,
    prepared: Arc<Prepared>,
    counters: Arc<Counters>,
    ddl: Arc<Ddl>,
}

/// Runs DDL.  Right after a stage a schema or a table may be kept for a region that lost there again and again.
async fn make(session: &mut Session, sql: &str) -> Result<()> {
    let until = Instant::now() + BACK;
    loop {
        match session.run(sql).await {
            Err(why) if why.to_string().contains("ERROR 40001") && Instant::now() < until => {
                tokio::time::sleep(RETRY_CONNECT).await;
            }
            done => return done,
        }
    }
}

impl Stage {
    pub fn new(
        cluster: &Arc<Cluster>,
        record: &Arc<Record>,
        isolation: Isolation,
        under_faults: bool,
        load: Load,
    ) -> Arc<Stage> {
        let when = if under_faults { "faults" } else { "calm" };
        Arc::new(Stage {
            name: format!("{when}, {}", isolation.name()),
            schema: format!("{when}_{}", isolation.short()),
            isolation,
            under_faults,
            load,
            cluster: Arc::clone(cluster),
            record: Arc::clone(record),
            stop: AtomicBool::new(false),
            committed: cluster.nodes().iter().map(|_| AtomicU64::new(0)).collect(),
        })
    }

    pub fn under_faults(&self) -> bool {
        self.under_faults
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub async fn session(&self, region: usize) -> Result<Session> {
        let settings = format!(
            "set search_path = {}; set default_transaction_isolation = '{}'",
            self.schema,
            self.isolation.name()
        );
        Session::open(&self.cluster.node(region).conninfo(), &settings).await
    }

    pub async fn no_session(&self, region: usize, why: &anyhow::Error) {
        if !self.under_faults {
            self.wrong("connect", vec![format!("region {region}: {why:#}")]);
        }
        tokio::time::sleep(RETRY_CONNECT).await;
    }

    pub fn count(&self, workload: &'static str, region: usize, wrote: bool, end: &End) {
        if wrote && *end == End::Committed {
            self.committed[region].fetch_add(1, Ordering::Relaxed);
        }
        self.record.count(&self.name, workload, wrote, end);
    }

    pub fn wrong(&self, source: &str, what: Vec<String>) {
        for what in what {
            if self.record.wrong(&format!("{}: {source}", self.name), what) {
                // Stop at the first finding: what happens afterwards would only obscure it.
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    pub async fn hangs(&self, workload: &str, region: usize, hangs: &Hangs) {
        evidence::gather(&self.cluster, &format!("{workload} in region {region}: {hangs}")).await;
        self.wrong(workload, vec![format!("region {region}: {hangs}")]);
    }

    /// When a client connects again, it must see what it was told is committed, whatever has happened to the server.
    pub async fn sees_its_own<W: Workload>(&self, workload: &W, client: Client, session: &mut Session) {
        let Some(table) = W::TAGGED else { return };
        let told = |step: &u64| {
            let end = workload.ledger().get(&Client { step: *step, ..client }.tag()).map(|attempt| attempt.end);
            end == Some(End::Committed)
        };
        let Some(last) = (0..=client.step).rev().take(50).find(told) else { return };
        let tag = Client { step: last, ..client }.tag();
        // On an error the server has crashed again, which is not a finding.
        if let Ok(rows) = session.number(&format!("select count(*) from {table} where tag = '{tag}'")).await {
            if rows != 1 {
                let what = format!("region {} shows {tag} {rows} times after it acknowledged it", client.region);
                self.wrong(W::NAME, vec![what]);
            }
        }
    }

    /// Asks another region at once for an outcome that is open.  It is not a finding if there is no answer.
    pub async fn ask_elsewhere<W: Workload>(&self, workload: &W, client: Client, random: &mut Random) {
        let regions = self.cluster.nodes().len();
        let other = (client.region + 1 + random.index(regions - 1)) % regions;
        if let Ok(mut session) = self.session(other).await {
            let _ = workload.ledger().ask(&client.tag(), &mut session).await;
        }
    }

    pub async fn think(&self, random: &mut Random) {
        if self.load.pause_ms_max > 0 {
            tokio::time::sleep(Duration::from_millis(random.draw(self.load.pause_ms_max + 1))).await;
        }
    }

    /// Creates the tables.  [`Running::launch`] starts the clients, once the tables of all stages exist.
    pub async fn prepare(self: &Arc<Self>) -> Result<Running> {
        let mut session = self.session(0).await?;
        make(&mut session, &format!("create schema {0}; set search_path = {0}", self.schema)).await?;
        let running = Running {
            stage: Arc::clone(self),
            clients: Vec::new(),
            transfers: Arc::default(),
            lists: Arc::default(),
            inserts: Arc::default(),
            family: Arc::default(),
            sequences: Arc::default(),
            prepared: Arc::default(),
            counters: Arc::default(),
            ddl: Arc::default(),
        };
        let Running { transfers, lists, inserts, family, sequences, prepared, counters, ddl, .. } = &running;
        let tables = [
            transfers.tables(),
            lists.tables(),
            inserts.tables(),
            family.tables(),
            sequences.tables(),
            prepared.tables(),
            counters.tables(),
            ddl.tables(),
        ];
        for tables in tables {
            make(&mut session, &tables).await?;
        }
        self.cluster.converge().await?;
        Ok(running)
    }
}

impl Running {
    pub fn launch(&mut self, random: &mut Random) {
        self.add(&Arc::clone(&self.transfers), random);
        self.add(&Arc::clone(&self.lists), random);
        self.add(&Arc::clone(&self.inserts), random);
        self.add(&Arc::clone(&self.family), random);
        self.add(&Arc::clone(&self.sequences), random);
        self.add(&Arc::clone(&self.prepared), random);
        self.add(&Arc::clone(&self.counters), random);
        self.add(&Arc::clone(&self.ddl), random);
    }

    fn add<W: Workload>(&mut self, workload: &Arc<W>, random: &mut Random) {
        let stage = &self.stage;
        let load = &stage.load;
        if !load.runs(W::NAME) {
            return;
        }
        let regions = stage.cluster.nodes().len() as u64;
        for number in 0..regions * W::CLIENTS_PER_REGION * load.clients {
            let client = Client { region: (number % regions) as usize, number, step: 0 };
            let (workload, stage) = (Arc::clone(workload), Arc::clone(stage));
            self.clients.push(tokio::spawn(workload::client(workload, stage, client, random.child())));
        }
    }

    pub fn stopping(&self) -> bool {
        self.stage.stopping()
    }

    /// Waits until every region has committed more; a region that does not is a finding.
    pub async fn goes_on(&self, when: &str) {
        let before: Vec<u64> = self.stage.committed.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let deadline = Instant::now() + BACK;
        loop {
            let now = self.stage.committed.iter().map(|c| c.load(Ordering::Relaxed));
            let behind: Vec<usize> =
                now.zip(&before).enumerate().filter(|(_, (n, b))| *n < **b + PROGRESS).map(|(r, _)| r).collect();
            if behind.is_empty() || self.stopping() {
                return;
            }
            if Instant::now() > deadline {
                let what = format!("{when}: regions {behind:?} make no progress within {} s", BACK.as_secs());
                evidence::gather(&self.stage.cluster, &what).await;
                self.stage.wrong("progress", vec![what]);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops the clients; each ends after its current transaction.
    async fn stop(&mut self) -> Result<()> {
        self.stage.stop.store(true, Ordering::Relaxed);
        for client in std::mem::take(&mut self.clients) {
            client.await.context("a client of the torture")?;
        }
        Ok(())
    }

    /// At rest: compares what the clients were told with what each region shows.
    async fn account(&self, since: Instant) -> Result<()> {
        let stage = &self.stage;
        stage.account(&*self.transfers, since).await?;
        stage.account(&*self.lists, since).await?;
        stage.account(&*self.inserts, since).await?;
        stage.account(&*self.family, since).await?;
        stage.account(&*self.sequences, since).await?;
        stage.account(&*self.prepared, since).await?;
        stage.account(&*self.counters, since).await?;
        stage.account(&*self.ddl, since).await
    }
}

/// Ends stages that ran at the same time, and checks that all regions agree with each other and with what the clients
/// were told.
pub async fn finish(cluster: &Cluster, record: &Record, mut stages: Vec<Running>) -> Result<()> {
    for running in &stages {
        running.stage.stop.store(true, Ordering::Relaxed);
    }
    for running in &mut stages {
        running.stop().await?;
    }
    if let Err(why) = super::rest(cluster).await {
        evidence::gather(cluster, &format!("{why:#}")).await;
        record.wrong("rest", format!("{why:#}"));
        return Ok(());
    }
    let since = Instant::now();
    for running in &stages {
        if let Err(why) = running.account(since).await {
            record.wrong("account", format!("{why:#}"));
        }
    }
    if let Err(why) = cluster.check().await {
        record.wrong("check", format!("{why:#}"));
    }
    Ok(())
}

impl Stage {
    async fn account<W: Workload>(&self, workload: &W, since: Instant) -> Result<()> {
        let mut sessions = Vec::new();
        for region in 0..self.cluster.nodes().len() {
            sessions.push(self.session(region).await?);
        }
        self.wrong(W::NAME, workload.settle(&mut sessions[0]).await?);
        self.cluster.converge().await?;
        self.wrong(W::NAME, workload.ledger().resolve(&mut sessions, since).await?);
        for attempt in workload.ledger().all().into_values().filter(|a| matches!(a.end, End::Unknown(_))) {
            if let Some(committed) = attempt.later {
                self.record.resolved(&self.name, W::NAME, committed);
            }
        }
        for (region, session) in sessions.iter_mut().enumerate() {
            let name = self.cluster.node(region).region();
            self.wrong(W::NAME, workload.verify(region, name, session).await?);
        }
        self.wrong(W::NAME, workload.verdict(self.isolation));
        Ok(())
    }
}
