//! Random definitions, rows, roles, settings and functions from three regions at once: is every region alike, and does none stand
//! still?
//!
//! - [`grammar`]: the statements; [`judge`]: what every region must show
//!
//! A statement that the server refuses is fine; what succeeds must come out alike.  A seed repeats the statements; how those of
//! different regions meet is the machine's.

mod grammar;
mod judge;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio_postgres::Client;

use crate::torture::random::Random;
use crate::values::judge::{crashes, settle, watch};
use crate::values::sql::{self, run as run_sql, shortened, Failure};
use crate::Cluster;
use grammar::Grammar;

const REGIONS: usize = 3;
/// Of each session, in one round.
const TRANSACTIONS: usize = 25;
/// In each region: as superuser, and as an ordinary role.
const USERS: [&str; 2] = ["postgres", "poison_ordinary"];
/// What every round begins with; then the same in each of the schemas.
const SET_UP: &str = "create role poison_ordinary; create role poison_1; create role poison_2; create role poison_3;
    grant create on database onetrip to poison_ordinary; grant poison_1 to poison_ordinary";
const SCHEMAS: [&str; 2] = ["a", "b"];
const SET_UP_SCHEMA: &str = "create schema SCHEMA; grant all on schema SCHEMA to poison_ordinary, poison_1;
    set search_path = SCHEMA;
    create type mood as enum ('a', 'b'); create type pair as (x int, y text); create domain positive as int check (value > 0);
    create type span as range (subtype = int); create sequence s1; create sequence s2;
    create function f1(i int) returns int immutable language sql as 'select i + 1';
    create function f2(i int) returns int language sql as 'select i - 1';
    create procedure p1(i int) language plpgsql as 'begin null; end';
    create table t1 (id int primary key, c1 text, c2 int, d1 numeric); insert into t1 select g, 'text ' || g, g, g from generate_series(1, 30) g;
    create table t2 (id serial primary key, c1 jsonb, c3 mood); insert into t2 (c1) select to_jsonb(g) from generate_series(1, 10) g;
    create table t3 (id int primary key, c1 int references t1, c2 timestamptz default now());
    create table t4 (id int primary key, c1 int) partition by range (id);
    create table t5 partition of t4 for values from (minvalue) to (maxvalue);
    create function trig() returns trigger language plpgsql as 'begin return coalesce(new, old); end';
    create trigger tr1 before insert on t1 for each row execute function trig();
    create view v1 as select id, c1 from t1; create materialized view m1 as select id, c1 from t1;
    create unique index on m1 (id); create index i1 on t1 (c1);
    alter table t1 owner to poison_ordinary; alter table t2 owner to poison_ordinary; alter view v1 owner to poison_ordinary;
    alter table t3 owner to poison_1; alter function f2(int) owner to poison_ordinary; alter materialized view m1 owner to poison_ordinary;
    grant select, insert on all tables in schema SCHEMA to poison_2, poison_3; reset search_path";

pub struct Options {
    /// Ends after the first round that is over later than this.
    pub duration: Duration,
    pub seed: u64,
    /// This round alone.
    pub round: Option<u64>,
    /// The `onetrip` command.
    pub binary: PathBuf,
    pub folder: PathBuf,
    /// Notes what it finds and goes on with a new cluster.
    pub explore: bool,
}

#[derive(Default)]
pub struct Report {
    pub rounds: u64,
    pub committed: u64,
    /// Refused statements by SQLSTATE.
    pub states: BTreeMap<String, u64>,
    pub findings: Vec<String>,
}

impl Report {
    pub fn held(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn table(&self) -> String {
        let states: Vec<String> = self.states.iter().map(|(state, count)| format!("{state} {count}")).collect();
        format!(
            "{} rounds, {} transactions committed; statements refused: {}\n{} findings\n{}",
            self.rounds,
            self.committed,
            states.join(", "),
            self.findings.len(),
            self.findings.join("\n")
        )
    }
}

/// What the sessions of a round did.
#[derive(Default)]
struct Worked {
    committed: Vec<(usize, Vec<String>)>,
    states: BTreeMap<String, u64>,
    broken: Vec<String>,
}

pub async fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut clusters = 0;
    let mut cluster = start(options, clusters).await?;
    let began = Instant::now();
    for number in 0.. {
        let number = options.round.unwrap_or(number);
        if options.round.is_none() && began.elapsed() >= options.duration {
            break;
        }
        let found = round(&cluster, options, number, &mut report).await?;
        report.rounds += 1;
        let broken = found.is_some();
        if let Some(found) = found {
            let found =
                format!("round {number}: {found}\n  again: make poison SEED={} ARGS='--round {number}'", options.seed);
            println!("poison: {found}");
            report.findings.push(found);
        }
        if options.round.is_some() || (broken && !options.explore) {
            break;
        }
        if broken {
            drop(cluster);
            clusters += 1;
            cluster = start(options, clusters).await?;
        }
    }
    // Where something was found a region may stand still, and its server not stop in time.
    if report.held() {
        cluster.stop().await?;
    }
    Ok(report)
}

async fn start(options: &Options, number: u32) -> Result<Cluster> {
    Cluster::builder()
        .binary(&options.binary)
        .folder(options.folder.join(number.to_string()))
        .postgres_setting("log_line_prefix", "%m [%p] %a %e ")
        .postgres_setting("max_connections", "50")
        .postgres_setting("onetrip.max_apply_delay", "1s")
        .postgres_setting("onetrip.rebuild_after", "0")
        .start()
        .await
}

/// What was found, if something was.
async fn round(cluster: &Cluster, options: &Options, number: u64, report: &mut Report) -> Result<Option<String>> {
    let mut random = Random::new(options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).child();
    let admin = cluster.connect(0).await?;
    sql::rows(&admin, SET_UP).await?;
    for schema in SCHEMAS {
        sql::rows(&admin, &SET_UP_SCHEMA.replace("SCHEMA", schema)).await?;
    }
    if let Err(stuck) = settle(cluster).await {
        return Ok(Some(format!("a region stands still at the beginning: {}", stuck.message)));
    }
    let worked: Arc<Mutex<Worked>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for region in 0..REGIONS {
        for user in USERS {
            let client = cluster.connect(region).await?;
            let grammar = Grammar::new(random.child());
            tasks.spawn(session(client, region, user, grammar, Arc::clone(&worked)));
        }
    }
    // Where a region stands still, sessions may wait for their turn for long.
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = watch(cluster) => tasks.shutdown().await,
    }
    let worked = std::mem::take(&mut *worked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    report.committed += worked.committed.len() as u64;
    for (state, count) in worked.states {
        *report.states.entry(state).or_default() += count;
    }
    let crashes = crashes(cluster);
    if !crashes.is_empty() {
        return Ok(Some(format!("a server crashed: {}", crashes.join("\n"))));
    }
    if let Err(stuck) = settle(cluster).await {
        let region = cluster.node(stuck.region).region();
        return Ok(Some(format!("region {region} stands still: {}", stuck.message) + &last(&worked.committed)));
    }
    if let Some(broken) = worked.broken.first() {
        return Ok(Some(format!("a session broke: {broken}")));
    }
    if let Some(differs) = judge::compare(cluster, &options.binary).await? {
        return Ok(Some(format!("regions differ: {}", shortened(&differs, 3_000)) + &last(&worked.committed)));
    }
    clean_up(&admin).await?;
    match settle(cluster).await {
        Ok(()) => Ok(None),
        Err(stuck) => Ok(Some(format!("a region stands still at the end: {}", stuck.message))),
    }
}

/// What was committed last, for whoever looks for the cause.
fn last(committed: &[(usize, Vec<String>)]) -> String {
    let lines = committed
        .iter()
        .filter(|(_, statements)| statements.len() > 2)
        .map(|(region, statements)| format!("\n    region {region}: {}", statements.join("; ")));
    lines.collect()
}

async fn session(client: Client, region: usize, user: &'static str, mut grammar: Grammar, worked: Arc<Mutex<Worked>>) {
    let note = |f: &mut dyn FnMut(&mut Worked)| f(&mut worked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    let prepare = format!("set session authorization {user}; set statement_timeout = '5s'; set lock_timeout = '500ms'");
    if let Err(failure) = run_sql(&client, &prepare).await {
        return note(&mut |w| w.broken.push(format!("{prepare}: {failure}")));
    }
    for _ in 0..TRANSACTIONS {
        let mut done = Vec::new();
        for statement in ["begin".to_string()].into_iter().chain(grammar.transaction()).chain(["commit".to_string()]) {
            let guarded = !matches!(statement.as_str(), "begin" | "commit");
            if guarded {
                let _ = run_sql(&client, "savepoint guard").await;
            }
            match run_sql(&client, &statement).await {
                Ok(_) => done.push(statement),
                Err(Failure::Refused { state, message, .. }) => {
                    note(&mut |w| *w.states.entry(state.clone()).or_default() += 1);
                    // No statement should get so far, but for PostgreSQL's own words for an object that goes away meanwhile.
                    let meanwhile = ["tuple concurrently ", "cache lookup failed", "could not open relation with OID"]
                        .iter()
                        .any(|m| message.starts_with(m));
                    if state.starts_with("XX") && !meanwhile {
                        note(&mut |w| w.broken.push(format!("{state} {message}: {}; {statement}", done.join("; "))));
                    }
                    // What is refused costs the statement; what conflicts, the transaction.
                    if !guarded || state == "40001" || run_sql(&client, "rollback to guard").await.is_err() {
                        let _ = run_sql(&client, "rollback").await;
                        done.clear();
                        break;
                    }
                }
                // An eviction that found it idle, or a lock that only an end could take.  A crash is found in the log.
                Err(Failure::Lost(_)) => return,
                Err(failure) => return note(&mut |w| w.broken.push(format!("{statement}: {failure}"))),
            }
        }
        if done.last().is_some_and(|last| last == "commit") {
            note(&mut |w| w.committed.push((region, done.clone())));
        }
    }
}

/// Whatever the round has left, from the server's own lists.
async fn clean_up(admin: &Client) -> Result<()> {
    let drops = "select format('drop event trigger %I', evtname) from pg_event_trigger
        union all select format('drop extension %I cascade', extname) from pg_extension where extname not in ('plpgsql', 'onetrip')
        union all select format('drop schema %I cascade', nspname) from pg_namespace
            where nspname !~ '^pg_' and nspname not in ('information_schema', 'onetrip', 'public')
        union all select format('drop foreign data wrapper %I cascade', fdwname) from pg_foreign_data_wrapper
        union all select format('drop access method %I cascade', amname) from pg_am where oid >= 16384 and amname <> 'onetrip'
        union all select 'drop cast (bigint as box)' from pg_cast where castsource = 20 and casttarget = 603
        union all select 'alter database onetrip reset my.setting'
        union all select format('drop owned by %I cascade', rolname) from pg_roles where rolname ~ '^poison'
        union all select format('drop role %I', rolname) from pg_roles where rolname ~ '^poison'";
    for row in sql::rows(admin, drops).await? {
        sql::rows(admin, &row[0]).await?;
    }
    Ok(())
}
