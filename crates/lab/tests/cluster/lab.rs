//! What the cluster tests share: a cluster whose logs are kept when a test fails, sessions that can tell why they
//! ended, and waits for conditions.
//!
//! Invariant: two clusters at a time in this process, whatever the number of test threads.

use std::future::{poll_fn, Future};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, ensure, Context, Result};
use onetrip_lab::cluster::ClusterBuilder;
use onetrip_lab::{crashes, Cluster, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, NoTls};

/// These run alone: they measure times that a second cluster would change, or leave it no room.
const ALONE: &[&str] = &[
    "arrival",
    "census_catalogs",
    "cluster_view",
    "everywhere",
    "fairness",
    "fresh",
    "grouped_apply",
    "grouped_lock",
    "lease_clocks",
    "leader_place",
    "leases",
    "nothing_deadlocks",
    "parts",
    "pgbench",
    "poison",
    "rehearsal",
    "rehearsal_away",
    "rehearsal_behind",
    "rehearsal_way",
    "run_again",
    "torture",
    "traces",
    "transfers",
    "values",
];
const CLUSTERS: u32 = 2;
/// Tests wait for most of their time, so two have room on two cores.
static TWO_AT_A_TIME: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(CLUSTERS as usize)));

#[test]
fn whoever_is_to_run_alone_is_a_test() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster")).expect("the tests");
    let files = files.map(|file| file.expect("a file").path());
    let others = files.filter(|file| file.is_file() && !file.ends_with("lab.rs"));
    let tests: String = others.map(|file| std::fs::read_to_string(file).expect("a file of tests")).collect();
    for name in ALONE {
        assert!(tests.contains(&format!("\"{name}\"")), "no test has the name {name}");
    }
}

/// Long enough for a busy machine; a test that needs it all is about to fail.
pub const SOON: Duration = Duration::from_secs(30);
/// Long enough to copy another region's PostgreSQL, with all that comes before and after it.
pub const HEALED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
const CHECK_TIMEOUT: Duration = Duration::from_secs(90);

pub struct Lab {
    name: &'static str,
    cluster: Cluster,
    _turn: Turn,
}

impl Deref for Lab {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

/// Subjects that share a cluster, one after the other.  Each fails by itself: those after it run all the same, and the
/// test names all that failed.  So no subject may need what another one has created.
pub struct Subjects<'a> {
    lab: &'a Lab,
    failed: Vec<&'static str>,
}

/// Runs `async fn subject(lab: &Lab)` for each subject, and then `are_equal`.
macro_rules! subjects {
    ($lab:expr, $tables:expr; $($subject:ident),+ $(,)?) => {{
        let mut subjects = $crate::lab::Subjects::of(&$lab);
        $(subjects.run(stringify!($subject), $subject(&$lab)).await;)+
        subjects.are_equal($tables).await;
    }};
}
pub(crate) use subjects;

impl<'a> Subjects<'a> {
    pub fn of(lab: &'a Lab) -> Subjects<'a> {
        Subjects { lab, failed: Vec::new() }
    }

    pub async fn run(&mut self, name: &'static str, subject: impl Future<Output = ()>) {
        let (mut subject, began) = (pin!(subject), Instant::now());
        let result = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| subject.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(true),
            // The message of the panic has been printed already.
            Err(_) => Poll::Ready(false),
        });
        let passed = result.await;
        let became = if passed { "ok" } else { "FAILED" };
        println!("{}: {name} ... {became} ({:.1} s)", self.lab.name, began.elapsed().as_secs_f64());
        if !passed {
            self.failed.push(name);
        }
    }

    /// To be called last: checks that `tables` tables or more are equal in all regions, and panics if a subject failed.
    pub async fn are_equal(mut self, tables: usize) {
        let lab = self.lab;
        self.run("all_regions_are_equal", lab.check_equal(tables)).await;
        assert!(self.failed.is_empty(), "{}: failed: {}", lab.name, self.failed.join(", "));
    }
}

/// No server and no node may have crashed.  Keeps the logs of a failed test, and prints where they are.
impl Drop for Lab {
    fn drop(&mut self) {
        let passed = !std::thread::panicking();
        let mut crashes = crashes::of(&self.cluster);
        // Tests kill processes.
        crashes.retain(|line| !crashes::killed(line));
        if passed && crashes.is_empty() {
            return;
        }
        let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{}", self.name));
        let _ = std::fs::remove_dir_all(&kept);
        for node in self.cluster.nodes() {
            let folder = kept.join(node.folder().file_name().unwrap_or_default());
            if std::fs::create_dir_all(&folder).is_ok() {
                for log in ["node.log", "postgres.log", "node.toml"] {
                    let _ = std::fs::copy(node.folder().join(log), folder.join(log));
                }
            }
        }
        eprintln!("--- {}: the logs are kept in {}", self.name, kept.display());
        assert!(!passed, "{}: crashed: {}", self.name, crashes.join("\n"));
    }
}

/// The room for the clusters of a test, which it has until this is dropped.
pub struct Turn {
    name: &'static str,
    began: Instant,
    /// How long the cluster took to start, of a test that has one of its own.
    started: Option<Duration>,
    _permit: OwnedSemaphorePermit,
}

/// Waits until there is room for the clusters of this test, and prints what it is about.
pub async fn turn(name: &'static str, about: &str) -> Turn {
    let room = if ALONE.contains(&name) { CLUSTERS } else { 1 };
    let permit = Arc::clone(&TWO_AT_A_TIME).acquire_many_owned(room).await.expect("the semaphore is never closed");
    println!("{name}: {about}");
    Turn { name, began: Instant::now(), started: None, _permit: permit }
}

impl Turn {
    fn started(&mut self) {
        let took = self.began.elapsed();
        println!("{}: it runs after {:.1} s", self.name, took.as_secs_f64());
        self.started = Some(took);
    }
}

/// Appends to a file when it ended, its name, how it ended, and the seconds of its start and in all (docs/testing.md).
impl Drop for Turn {
    fn drop(&mut self) {
        let (now, name) = (humantime::format_rfc3339_seconds(SystemTime::now()), self.name);
        let ended = if std::thread::panicking() { "failed" } else { "passed" };
        let started = self.started.map_or("-".into(), |started| format!("{:.1}", started.as_secs_f64()));
        let line = format!("{now}\t{name}\t{ended}\t{started}\t{:.1}\n", self.began.elapsed().as_secs_f64());
        let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/cluster-seconds.tsv");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        if let Err(why) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("{name}: cannot write down how long it took: {why}");
        }
    }
}

/// The `onetrip` command: the one built with this test, unless `ONETRIP_BIN` names another.
pub fn binary() -> PathBuf {
    std::env::var_os("ONETRIP_BIN").map_or_else(|| env!("CARGO_BIN_EXE_onetrip-lab").into(), PathBuf::from)
}

/// With `ONETRIP_TEST_RTT` (milliseconds between any two regions), a test that does not wait for a region to show what
/// another one has committed fails every time, instead of once in a thousand.
pub fn builder() -> ClusterBuilder {
    let mut builder = Cluster::builder();
    if let Some(rtt_ms) = std::env::var("ONETRIP_TEST_RTT").ok().and_then(|v| v.parse().ok()) {
        builder = builder.topology(apart(rtt_ms));
    }
    builder
        .binary(binary())
        .copied_servers(true)
        // Tests look for SQLSTATEs and application names in the servers' logs.
        .postgres_setting("log_line_prefix", "%m [%p] %a %e ")
        .postgres_setting("log_lock_waits", "on")
}

/// Three regions a, b and c with no emulated distance between them; a leads.
pub async fn start(name: &'static str, about: &str) -> Lab {
    start_from(name, about, builder()).await
}

/// The same, but `prepare` may change what `onetrip init` has created before the nodes start.
pub async fn start_with(name: &'static str, about: &str, prepare: impl FnOnce(&Cluster)) -> Lab {
    let mut turn = turn(name, about).await;
    let cluster = builder().init().await.unwrap_or_else(|e| panic!("make the cluster: {e:#}"));
    prepare(&cluster);
    for node in cluster.nodes() {
        node.start().unwrap_or_else(|e| panic!("{e:#}"));
    }
    cluster.wait_ready().await.unwrap_or_else(|e| panic!("start the cluster: {e:#}"));
    turn.started();
    Lab { name, cluster, _turn: turn }
}

pub async fn start_from(name: &'static str, about: &str, builder: ClusterBuilder) -> Lab {
    start_prepared(name, about, builder, |_| Ok(())).await
}

/// `prepare` may change the nodes' folders before they start.
pub async fn start_prepared(
    name: &'static str,
    about: &str,
    builder: ClusterBuilder,
    prepare: impl FnOnce(&Cluster) -> Result<()>,
) -> Lab {
    let mut turn = turn(name, about).await;
    let start = async {
        let cluster = builder.init().await?;
        prepare(&cluster)?;
        cluster.nodes().iter().try_for_each(|node| node.start())?;
        cluster.wait_ready().await?;
        Ok::<_, anyhow::Error>(cluster)
    };
    let cluster = start.await.unwrap_or_else(|e| panic!("start the cluster: {e:#}"));
    turn.started();
    Lab { name, cluster, _turn: turn }
}

/// Three regions with the same round trip between any two.
pub fn apart(rtt_ms: u32) -> Topology {
    let mut text = String::from("preferred_leader = \"a\"\n");
    for name in ["a", "b", "c"] {
        text += &format!("[[region]]\nname = \"{name}\"\n");
    }
    for (x, y) in [("a", "b"), ("a", "c"), ("b", "c")] {
        text += &format!("[[link]]\nbetween = [\"{x}\", \"{y}\"]\nrtt_ms = {rtt_ms}\n");
    }
    Topology::parse(&text).expect("the text above is a topology")
}

/// How long a workload runs.
pub fn duration(default_s: u64) -> Duration {
    let seconds = std::env::var("ONETRIP_TEST_SECONDS").ok().and_then(|v| v.parse().ok()).unwrap_or(15);
    Duration::from_secs(default_s.min(seconds).max(1))
}

/// A client, with the task of its connection, which tells why the connection ended.
pub struct Session {
    pub client: Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Deref for Session {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Session {
    pub async fn open(conninfo: &str) -> Result<Session> {
        let connect = tokio_postgres::connect(conninfo, NoTls);
        let (client, connection) =
            tokio::time::timeout(SOON, connect).await.context("no answer to a connection")?.context("connect")?;
        Ok(Session { client, connection: tokio::spawn(connection) })
    }

    /// Why the server ended the session while it was idle: the FATAL message that the server sent unasked.
    pub async fn ended_by(self) -> Result<DbError> {
        let ended = tokio::time::timeout(SOON, self.connection).await.context("the connection did not end")??;
        let Err(error) = ended else { bail!("the connection ended without an error") };
        error.as_db_error().cloned().with_context(|| format!("ended without a message: {error}"))
    }

    /// The error of a statement, or, if it did not get to the server, why that had ended the session.
    pub async fn why(self, error: tokio_postgres::Error) -> Result<DbError> {
        match error.as_db_error() {
            Some(db) => Ok(db.clone()),
            None => self.ended_by().await.with_context(|| error.to_string()),
        }
    }

    pub async fn pid(&self) -> Result<i32> {
        number(&self.client, "select pg_backend_pid()").await.map(|pid| pid as i32)
    }

    /// Runs `sql`; see `bounded` for how long it may take.
    pub async fn run(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        bounded(sql, self.client.batch_execute(sql)).await
    }

    /// Runs what must succeed, and may have to wait only for what is reserved for a region that has lost again and
    /// again: that may meet whoever comes after work on hot rows.
    pub async fn must(&self, sql: &str) {
        let mut tries = 0;
        while let Err(error) = self.run(sql).await {
            let reserved = error.as_db_error().is_some_and(|db| db.message().contains("is to go first"));
            assert!(reserved && tries < 200 && !sql.contains("commit"), "{sql}: {}", told(&error));
            tries += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs a statement that must fail, and returns its error.
    pub async fn refused(&self, sql: &str) -> DbError {
        match self.run(sql).await {
            Ok(()) => panic!("{sql}: succeeded and should not have"),
            Err(error) => match error.as_db_error() {
                Some(db) => db.clone(),
                None => panic!("{sql}: {error}"),
            },
        }
    }
}

/// Bytes of the protocol: a driver that is told to run two statements does not send two Executes before one Sync, and
/// always reads.
pub struct Raw(pub TcpStream);

impl Raw {
    pub async fn open(lab: &Lab, region: usize) -> Raw {
        let mut raw = Raw(TcpStream::connect(("127.0.0.1", lab.node(region).postgres_port())).await.expect("connect"));
        let parameters = b"\0\x03\0\0user\0postgres\0database\0onetrip\0\0";
        let length = (parameters.len() as u32 + 4).to_be_bytes();
        raw.0.write_all(&[&length, &parameters[..]].concat()).await.expect("send");
        raw.answer().await;
        raw
    }

    pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
    }

    pub async fn send(&mut self, sql: &str) {
        let query = Raw::message(b'Q', &[sql.as_bytes(), b"\0"].concat());
        self.0.write_all(&query).await.expect("send");
    }

    /// Parse, Bind and Execute.
    pub fn execute(sql: &str) -> Vec<u8> {
        let parse = [b"\0", sql.as_bytes(), b"\0\0\0"].concat();
        [Raw::message(b'P', &parse), Raw::message(b'B', b"\0\0\0\0\0\0\0\0"), Raw::message(b'E', b"\0\0\0\0\0")]
            .concat()
    }

    /// The kinds of the messages up to ReadyForQuery.
    pub async fn answer(&mut self) -> String {
        let mut kinds = String::new();
        while !kinds.ends_with('Z') {
            let kind = bounded("an answer", self.0.read_u8()).await.expect("a kind");
            let length = self.0.read_u32().await.expect("a length");
            let mut body = vec![0; length as usize - 4];
            self.0.read_exact(&mut body).await.expect("a body");
            kinds.push(char::from(kind));
        }
        kinds
    }
}

/// What a session was told that had to lose to others: SQLSTATE 40001, as the error of its statement, or before that as
/// the end of the session.
pub async fn lost(result: Result<(), tokio_postgres::Error>, loser: Session) -> DbError {
    let why = loser.why(result.expect_err("it did not lose")).await.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", told_db(&why));
    why
}

/// Panics when there is no answer in time, so that a statement that hangs makes the test fail instead of hang.
pub async fn bounded<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(120), work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: no answer within 120 s"),
    }
}

impl Lab {
    /// The nodes that run and have a PostgreSQL.
    pub fn serving(&self) -> Vec<usize> {
        let nodes = self.nodes().iter().enumerate();
        nodes.filter(|(_, node)| node.running() && node.has_postgres()).map(|(index, _)| index).collect()
    }

    /// A session in each region.
    pub async fn sessions(&self) -> [Session; 3] {
        [self.session(0).await, self.session(1).await, self.session(2).await]
    }

    pub async fn session(&self, region: usize) -> Session {
        match Session::open(&self.node(region).conninfo()).await {
            Ok(session) => session,
            Err(e) => panic!("region {}: {e:#}", self.node(region).region()),
        }
    }

    /// Waits until every region shows what any region shows now.
    pub async fn everywhere(&self) {
        self.converge().await.unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Waits until what has been committed anywhere is shown everywhere; then the query must give this text in every
    /// region.
    pub async fn shows(&self, query: &str, expected: &str) {
        self.everywhere().await;
        for (region, session) in self.sessions().await.iter().enumerate() {
            let shown = text(session, query).await.unwrap_or_else(|e| panic!("{query}: {e:#}"));
            assert_eq!(shown, expected, "{query} in region {}", self.node(region).region());
        }
    }

    /// The query must give the same text in every region, whatever it is; returns that text.
    pub async fn shows_alike(&self, query: &str) -> String {
        self.everywhere().await;
        let first = text(&self.sessions().await[0], query).await.unwrap_or_else(|e| panic!("{query}: {e:#}"));
        self.shows(query, &first).await;
        first
    }

    /// Runs `onetrip check`; its exit code and its output.
    pub async fn check(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = onetrip(&[&["check", "--data", &self.data().display().to_string()], args].concat()).await;
        (output.code, output.stdout + &output.stderr)
    }

    /// `onetrip check` finds no difference, in `tables` tables or more.
    pub async fn check_equal(&self, tables: usize) {
        let (code, output) = self.check(&["--json"]).await;
        assert_eq!(code, Some(0), "onetrip check: {output}");
        let report: serde_json::Value =
            serde_json::from_str(&output).unwrap_or_else(|e| panic!("onetrip check --json: {e}: {output}"));
        assert_eq!(report["equal"], true, "{output}");
        assert_eq!(report["regions"].as_array().map(Vec::len), Some(self.serving().len()), "{output}");
        let compared = report["tables"].as_array().map_or(0, Vec::len);
        assert!(compared >= tables, "{compared} tables compared, {tables} expected: {output}");
    }
}

pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the `onetrip` command to its end.
pub async fn onetrip(args: &[&str]) -> Output {
    let run = tokio::process::Command::new(binary()).args(args).kill_on_drop(true).output();
    let output = tokio::time::timeout(CHECK_TIMEOUT, run)
        .await
        .unwrap_or_else(|_| panic!("onetrip {args:?} did not end"))
        .expect("run onetrip");
    Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs one of the programs that make up their own statements or faults; it must succeed.
pub async fn program(path: &str, args: &[&str], limit: Duration) {
    let run = tokio::process::Command::new(path).args(args).env("ONETRIP_BIN", binary()).kill_on_drop(true).output();
    let output = tokio::time::timeout(limit, run).await.unwrap_or_else(|_| panic!("{path} does not end"));
    let output = output.unwrap_or_else(|e| panic!("start {path}: {e}"));
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
}

/// Creates a table `fragile (id, v)` with an index whose function carries out `what`, in PL/pgSQL, only where a row is
/// applied, not where it is written.
pub async fn fragile(lab: &Lab, what: &str) {
    lab.session(0)
        .await
        .must(&format!(
            "create table fragile (id int primary key, v text);
             create function only_at_home(v text) returns text immutable language plpgsql as $$
             begin
                 if current_setting('session_replication_role') = 'replica' then {what} end if;
                 return v;
             end $$;
             create index on fragile (only_at_home(v))"
        ))
        .await;
    lab.everywhere().await;
}

/// The one value of a query, as text.
pub async fn text(client: &Client, query: &str) -> Result<String> {
    let rows = bounded(query, client.simple_query(query)).await.map_err(|e| anyhow::anyhow!("{}", told(&e)))?;
    let row = rows.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(row.context("no row")?.get(0).unwrap_or("null").to_string())
}

pub async fn number(client: &Client, query: &str) -> Result<i64> {
    let shown = text(client, query).await?;
    shown.parse().with_context(|| format!("{query} gave {shown:?}"))
}

/// Polls until `look` returns true; the error says what it returned last.
pub async fn until<F, T>(what: &str, limit: Duration, mut look: F) -> Result<()>
where
    F: FnMut() -> T,
    T: Future<Output = Result<bool>>,
{
    let deadline = Instant::now() + limit;
    loop {
        let seen = match look().await {
            Ok(true) => return Ok(()),
            Ok(false) => "not so".to_string(),
            Err(e) => format!("{e:#}"),
        };
        ensure!(Instant::now() < deadline, "{what}: still {seen} after {} s", limit.as_secs());
        tokio::time::sleep(POLL).await;
    }
}

/// SQLSTATE, message, detail and hint in one line.
pub fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => told_db(db),
        None => error.to_string(),
    }
}

pub fn told_db(db: &DbError) -> String {
    let mut line = format!("{} {} {}", db.severity(), db.code().code(), db.message());
    for more in [db.detail(), db.hint()].into_iter().flatten() {
        line += " / ";
        line += more;
    }
    line
}

pub fn is(error: &tokio_postgres::Error, state: &SqlState) -> bool {
    error.code() == Some(state)
}

/// The errors in a server's log that come from programs whose name starts with `program` must all have this SQLSTATE,
/// and there must be `at_least` so many.
pub fn only_errors(lab: &Lab, region: usize, program: &str, state: &str, at_least: usize) {
    let log = lab.node(region).log("postgres.log").unwrap_or_else(|e| panic!("{e:#}"));
    let (wanted, others): (Vec<&str>, Vec<&str>) = log
        .lines()
        .filter(|line| ["ERROR:  ", "FATAL:  ", "PANIC:  "].iter().any(|mark| line.contains(mark)))
        .filter(|line| line.split("] ").nth(1).is_some_and(|rest| rest.starts_with(program)))
        .partition(|line| line.contains(&format!(" {state} ")));
    assert!(others.is_empty(), "region {region}: errors other than {state}: {others:#?}");
    assert!(wanted.len() >= at_least, "region {region}: only {} errors {state}", wanted.len());
}

/// GET on the port of a region's node: the status and the body.
pub async fn ask(lab: &Lab, region: usize, path: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(lab.node(region).http()).await.context("connect")?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok((head.split(' ').nth(1).context("no status")?.parse()?, body.to_string()))
}

/// Runs a script through the real psql in a region; it must succeed.  Returns what it printed.
pub async fn psql(lab: &Lab, region: usize, script: &str) -> String {
    psql_by(&lab.node(region).conninfo(), script).await
}

/// The same in another database of the region's server.
pub async fn psql_in(lab: &Lab, region: usize, database: &str, script: &str) -> String {
    psql_by(&format!("{} dbname={database}", lab.node(region).conninfo()), script).await
}

async fn psql_by(conninfo: &str, script: &str) -> String {
    use std::process::Stdio;
    use tokio::io::AsyncWriteExt;
    let work = async {
        let mut child = tokio::process::Command::new(onetrip_lab::postgres_bin().join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", conninfo])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = bounded("psql", work).await.unwrap_or_else(|e| panic!("run psql: {e}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Which node psql connects to if it may take any of these, in this order, with these `target_session_attrs`.
pub fn found_by_libpq(lab: &Lab, order: &[usize], attributes: &str) -> Option<usize> {
    let port = |node: usize| {
        let conninfo = lab.node(node).conninfo();
        conninfo.split(' ').find_map(|pair| pair.strip_prefix("port=")).expect("a port").to_string()
    };
    let ports: Vec<String> = order.iter().map(|node| port(*node)).collect();
    let psql = onetrip_client::postgres::bin_dir(None).expect("PostgreSQL's programs").join("psql");
    let conninfo = format!(
        "host=127.0.0.1{} port={} user=postgres dbname=onetrip target_session_attrs={attributes}",
        ",127.0.0.1".repeat(order.len() - 1),
        ports.join(",")
    );
    let said = std::process::Command::new(&psql).args(["-XAtc", "show port", &conninfo]).output().expect("psql");
    let at = ports.iter().position(|port| *port == String::from_utf8_lossy(&said.stdout).trim());
    assert_eq!(said.status.success(), at.is_some(), "{said:?}");
    at.map(|at| order[at])
}
