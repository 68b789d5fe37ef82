//! Random definitions, rows, roles, settings and functions from three regions at once: do all regions stay equal, and
//! does none of them get stuck?
//!
//! - [`grammar`]: the statements
//! - [`judge`]: what every region must show
//! - [`crate::values`]: types and values
//!
//! A statement that the server refuses is fine; what succeeds must have the same effect everywhere.  A seed repeats the
//! statements, but not the timing of statements from different regions.  The torture runs the same sessions under
//! faults ([`Field`], [`Sessions`]).

mod grammar;
pub(crate) mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, ensure, Result};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::torture::random::Random;
use crate::trial::sql::{self, run as run_sql, shortened, Failure};
use crate::trial::standing::{converge, watch};
use crate::trial::{self, Finding, Options, Trial, REGIONS};
use crate::values::{connect, Ground};
use crate::{crashes, Cluster};
use grammar::{Column, Grammar};

/// How many transactions each session runs in one round.
const TRANSACTIONS: usize = 25;
/// How many types a round has, each in a column of its own.
const TYPES_PER_ROUND: usize = 8;
/// Each region has one session of a superuser and one of an ordinary role.
const USERS: [&str; 2] = ["postgres", "poison_ordinary"];
/// Tables of each schema that have those columns from the beginning.
const WITH_COLUMNS: [&str; 5] = ["t1", "t2", "t3", "t4", "t6"];
const LIMITS: &str = "set statement_timeout = '5s'; set lock_timeout = '500ms'";
const RETRY_CONNECT: Duration = Duration::from_millis(50);
/// The error of a COMMIT that was decided and had to give way: its entry is applied, but one of its locks was not a
/// key.
const BREACH: &str = "held a lock that an earlier change needs";
/// What every round begins with; then follows [`SET_UP_SCHEMA`] for each of the schemas.
const SET_UP: &str = "create role poison_ordinary; create role poison_1; create role poison_2; create role poison_3;
    grant create on database onetrip to poison_ordinary; grant poison_1 to poison_ordinary;
    grant usage on schema made to public";
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
    create table t6 (id int primary key);
    create table t5 partition of t4 for values from (minvalue) to (maxvalue);
    create function trig() returns trigger language plpgsql as 'begin return coalesce(new, old); end';
    create trigger tr1 before insert on t1 for each row execute function trig();
    create view v1 as select id, c1 from t1; create materialized view m1 as select id, c1 from t1;
    create unique index on m1 (id); create index i1 on t1 (c1);
    alter table t1 owner to poison_ordinary; alter table t2 owner to poison_ordinary; alter view v1 owner to poison_ordinary;
    alter table t3 owner to poison_1; alter function f2(int) owner to poison_ordinary; alter materialized view m1 owner to poison_ordinary;
    grant select, insert on all tables in schema SCHEMA to poison_2, poison_3; reset search_path";

#[derive(Default)]
pub struct Report {
    pub rounds: u64,
    pub committed: u64,
    /// The types that columns had.
    pub types: BTreeSet<String>,
    /// The types of which such a column contained a value at the end of a round.
    pub stored: BTreeSet<String>,
    /// How many statements were refused, by SQLSTATE.
    pub states: BTreeMap<String, u64>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn held(&self) -> bool {
        self.findings.is_empty() && self.committed > 0
    }

    pub fn table(&self) -> String {
        let states: Vec<String> = self.states.iter().map(|(state, count)| format!("{state} {count}")).collect();
        format!(
            "{} rounds, {} transactions committed; columns of {} types, values stored of {}; statements refused: {}\n{} findings",
            self.rounds,
            self.committed,
            self.types.len(),
            self.stored.len(),
            states.join(", "),
            self.findings.len(),
        )
    }
}

/// What the sessions of a round did.
#[derive(Default)]
pub(crate) struct Worked {
    pub committed: Vec<(usize, Vec<String>)>,
    pub states: BTreeMap<String, u64>,
    pub broken: Vec<String>,
}

struct Poison<'a> {
    options: &'a Options,
    field: Field,
    report: Report,
}

pub async fn run(options: &Options) -> Result<Report> {
    let mut poison = Poison { options, field: Field::default(), report: Report::default() };
    let (rounds, findings) = trial::run(&mut poison, options).await?;
    Ok(Report { rounds, findings, ..poison.report })
}

impl Trial for Poison<'_> {
    const NAME: &'static str = "poison";
    const SETTINGS: &'static [(&'static str, &'static str)] =
        &[("onetrip.max_apply_delay", "1s"), ("onetrip.rebuild_after", "0")];

    async fn begin(&mut self, cluster: &Cluster) -> Result<()> {
        self.field = Field::lay(cluster, self.options.seed).await?;
        Ok(())
    }

    fn enough(&self, _round: u64, over: bool) -> bool {
        over
    }

    async fn round(&mut self, cluster: &Cluster, number: u64) -> Result<Vec<Finding>> {
        let Poison { options, field, report } = self;
        let finding = |what: &str, message: String, statement: String| {
            let what = what.to_string();
            Ok(vec![Finding { round: number, what, type_name: String::new(), statement, message }])
        };
        let admin = cluster.connect(0).await?;
        let plots = match field.set_up(cluster, number, options.random(number), TRANSACTIONS, true).await? {
            Ok(plots) => plots,
            Err(stuck) => return finding("a region stands still at the beginning", stuck, String::new()),
        };
        report.types.extend(plots.types.iter().cloned());
        let mut sessions = Sessions::start(cluster, plots, "poison", false);
        // When a region is stuck, its sessions may wait for their turn for a long time.
        tokio::select! {
            () = sessions.done() => {}
            () = watch(cluster) => sessions.tasks.shutdown().await,
        }
        let worked = sessions.end().await;
        report.committed += worked.committed.len() as u64;
        for (state, count) in &worked.states {
            *report.states.entry(state.clone()).or_default() += count;
        }
        let crashes = crashes::of(cluster);
        if !crashes.is_empty() {
            return finding("a server crashed", crashes.join("\n"), last(&worked.committed));
        }
        if let Err(stuck) = converge(cluster).await {
            let message = format!("region {}: {}", cluster.node(stuck.region).region(), stuck.message);
            return finding("a region stands still", message, last(&worked.committed));
        }
        if let Some(broken) = worked.broken.into_iter().next() {
            return finding("a session broke", broken, String::new());
        }
        if let Some(differs) = judge::compare(cluster).await? {
            return finding("regions differ", shortened(&differs, 3_000), last(&worked.committed));
        }
        report.stored.extend(stored(&admin).await?);
        field.clean_up(&admin).await?;
        match converge(cluster).await {
            Ok(()) => Ok(Vec::new()),
            Err(stuck) => finding("a region stands still at the end", stuck.message, String::new()),
        }
    }
}

/// The transactions that were committed, for whoever looks for the cause.
fn last(committed: &[(usize, Vec<String>)]) -> String {
    let lines = committed
        .iter()
        .filter(|(_, statements)| statements.len() > 2)
        .map(|(region, statements)| format!("\n    region {region}: {}", shortened(&statements.join("; "), 2_000)));
    lines.collect()
}

/// The types of the round's columns that contain a value.
async fn stored(admin: &Client) -> Result<Vec<String>> {
    let columns = "select format('select %L from %s where %I is not null limit 1', format_type(a.atttypid, -1), a.attrelid::regclass, a.attname)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where a.attname ~ '^v[0-9]$' and not a.attisdropped and c.relkind in ('r', 'p') and c.relnamespace in ('a'::regnamespace, 'b'::regnamespace)";
    let mut types = Vec::new();
    match run_sql(admin, columns).await {
        Ok(columns) => {
            for column in columns {
                types.extend(sql::rows(admin, &column[0]).await?.concat());
            }
        }
        // The round has dropped a schema.
        Err(Failure::Refused { .. }) => {}
        Err(failure) => bail!("{failure}"),
    }
    Ok(types)
}

/// What all rounds need: the types to draw from, and the extensions that stay when a round is cleaned up.
#[derive(Default)]
pub(crate) struct Field {
    ground: Ground,
    extensions: BTreeSet<String>,
}

/// The transactions of a round's sessions, one plot for each.
pub(crate) struct Plots {
    types: Vec<String>,
    transactions: Vec<(usize, &'static str, Vec<Vec<String>>)>,
}

/// A key is kept for a region for 1,500 entries at most.
const TRIES_MAX: usize = 1_600;

impl Field {
    pub async fn lay(cluster: &Cluster, seed: u64) -> Result<Field> {
        let ground = Ground::lay(cluster, seed).await?;
        let extensions = sql::rows(&cluster.connect(0).await?, "select extname from pg_extension").await?;
        Ok(Field { ground, extensions: extensions.into_iter().flatten().collect() })
    }

    /// Creates roles, schemas and tables in every region, and draws all statements of the round.  `rehearsed`: every
    /// region is up and rehearses what is committed.  The inner `Err` says that a region is stuck.
    pub async fn set_up(
        &self,
        cluster: &Cluster,
        round: u64,
        mut random: Random,
        transactions: usize,
        rehearsed: bool,
    ) -> Result<Result<Plots, String>> {
        let admin = cluster.connect(0).await?;
        // The last round may have dropped some.
        for extension in &self.extensions {
            sql::rows(&admin, &format!("create extension if not exists \"{extension}\" cascade")).await?;
        }
        let columns = self.columns(&admin, round).await?;
        let added: Vec<String> =
            columns.iter().map(|column| format!("add column {} {}", column.name, column.kind.name)).collect();
        let added = added.join(", ");
        sql::rows(&admin, SET_UP).await?;
        for schema in SCHEMAS {
            sql::rows(&admin, &SET_UP_SCHEMA.replace("SCHEMA", schema)).await?;
            for table in WITH_COLUMNS {
                sql::rows(&admin, &format!("alter table {schema}.{table} {added}")).await?;
            }
        }
        let mut grammar = Grammar::new(&self.ground.catalog, &columns, rehearsed, random.child());
        sql::rows(&admin, LIMITS).await?;
        for (number, column) in columns.iter().enumerate() {
            for schema in SCHEMAS {
                let (first, name, value) = (10 * number + 1, &column.name, grammar.value(column));
                let insert = format!(
                    "insert into {schema}.t6 (id, {name}) select g, {value} from generate_series({first}, {first} + 2) g"
                );
                // A value that the server refuses is simply not stored.
                if let Err(Failure::Lost(why)) = run_sql(&admin, &insert).await {
                    bail!("{insert}: {why}");
                }
            }
        }
        let mut plots =
            Plots { types: columns.iter().map(|c| c.kind.name.clone()).collect(), transactions: Vec::new() };
        for region in 0..REGIONS {
            for user in USERS {
                let mut grammar = Grammar::new(&self.ground.catalog, &columns, rehearsed, random.child());
                plots.transactions.push((region, user, (0..transactions).map(|_| grammar.transaction()).collect()));
            }
        }
        Ok(converge(cluster).await.map(|()| plots).map_err(|stuck| stuck.message))
    }

    /// The columns of a round: the next types in order, without those that a table cannot have.
    async fn columns(&self, admin: &Client, round: u64) -> Result<Vec<Column>> {
        let mut columns = Vec::new();
        let first = round as usize * TYPES_PER_ROUND;
        for at in first..first + TYPES_PER_ROUND {
            let kind = &self.ground.order[at % self.ground.order.len()];
            // Some types cannot be added to a table with rows, because they do not allow null.
            let trial = format!(
                "begin; create table made.tried as select 1 as id; alter table made.tried add column v {}; rollback",
                kind.name
            );
            match run_sql(admin, &trial).await {
                Ok(_) => columns.push(Column { name: format!("v{}", columns.len() + 1), kind: kind.clone() }),
                Err(Failure::Refused { .. }) => _ = sql::rows(admin, "rollback").await?,
                Err(failure) => bail!("{}: {failure}", kind.name),
            }
        }
        if columns.is_empty() {
            let text = self.ground.catalog.types.get("text").cloned();
            columns.extend(text.map(|kind| Column { name: "v1".to_string(), kind }));
        }
        Ok(columns)
    }

    /// Drops whatever the round has left, according to the server's own catalogs.
    pub async fn clean_up(&self, admin: &Client) -> Result<()> {
        let kept: Vec<String> = self.extensions.iter().map(|name| sql::quoted(name)).collect();
        let drops = format!(
            "select format('drop event trigger %I', evtname) from pg_event_trigger
             union all select format('drop extension %I cascade', extname) from pg_extension where extname not in ({})
             union all select format('drop schema if exists %I cascade', nspname) from pg_namespace
                 where nspname in ('a', 'b') or nspname ~ '^poison'
             union all select format('drop foreign data wrapper if exists %I cascade', fdwname) from pg_foreign_data_wrapper
                 where fdwname ~ '^w[0-9]$'
             union all select format('drop access method %I cascade', amname) from pg_am where amname ~ '^am[0-9]$'
             union all select 'drop cast (bigint as box)' from pg_cast where castsource = 20 and casttarget = 603
             union all select 'alter database onetrip reset my.setting'
             union all select format('drop owned by %I cascade', rolname) from pg_roles where rolname ~ '^poison'
             union all select format('drop role %I', rolname) from pg_roles where rolname ~ '^poison'",
            kept.join(", ")
        );
        for row in sql::rows(admin, &drops).await? {
            // What a region lost on again and again may be kept for it, for some entries more, and each try is one.
            let mut tries = 0;
            while let Err(failure) = run_sql(admin, &row[0]).await {
                tries += 1;
                let conflicts = matches!(&failure, Failure::Refused { state, .. } if state == "40001");
                ensure!(conflicts && tries < TRIES_MAX, "{failure}, {tries} times, at {}", row[0]);
            }
        }
        Ok(())
    }
}

/// The sessions of a round.
pub(crate) struct Sessions {
    tasks: JoinSet<()>,
    worked: Arc<Mutex<Worked>>,
    stop: Arc<AtomicBool>,
}

impl Sessions {
    /// `under_faults`: a session that is lost, or cannot be opened, is not a finding.
    pub fn start(cluster: &Cluster, plots: Plots, application: &str, under_faults: bool) -> Sessions {
        let (worked, stop) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        for (region, user, transactions) in plots.transactions {
            let conninfo = format!("{} application_name={application}", cluster.node(region).conninfo());
            let (worked, stop) = (Arc::clone(&worked), Arc::clone(&stop));
            let session = Session { conninfo, region, user, under_faults, worked, stop };
            tasks.spawn(session.run(transactions));
        }
        Sessions { tasks, worked, stop }
    }

    async fn done(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Ends the sessions, each after its current transaction.
    pub async fn end(mut self) -> Worked {
        self.stop.store(true, Ordering::Relaxed);
        self.done().await;
        std::mem::take(&mut *self.worked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Session {
    conninfo: String,
    region: usize,
    user: &'static str,
    under_faults: bool,
    worked: Arc<Mutex<Worked>>,
    stop: Arc<AtomicBool>,
}

impl Session {
    async fn run(self, transactions: Vec<Vec<String>>) {
        let mut client = None;
        for transaction in &transactions {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if client.is_none() {
                client = self.open().await;
            }
            let Some(open) = &client else { return };
            if !self.transaction(open, transaction).await {
                client = None;
            }
        }
    }

    fn note(&self, f: impl FnOnce(&mut Worked)) {
        f(&mut self.worked.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn open(&self) -> Option<Client> {
        while !self.stop.load(Ordering::Relaxed) {
            let why = match connect(&self.conninfo).await {
                Ok(client) => {
                    let prepare = format!("set session authorization {}; {LIMITS}", self.user);
                    match run_sql(&client, &prepare).await {
                        Ok(_) => return Some(client),
                        // Another session has dropped or renamed the role.
                        Err(Failure::Refused { .. }) if !self.under_faults => return None,
                        Err(failure) => failure.to_string(),
                    }
                }
                Err(why) => format!("{why:#}"),
            };
            if !self.under_faults {
                self.note(|worked| worked.broken.push(format!("connect: {why}")));
                return None;
            }
            tokio::time::sleep(RETRY_CONNECT).await;
        }
        None
    }

    /// `false`: the session is gone.
    async fn transaction(&self, client: &Client, statements: &[String]) -> bool {
        let mut done: Vec<&str> = Vec::new();
        for statement in ["begin"].into_iter().chain(statements.iter().map(String::as_str)).chain(["commit"]) {
            let guarded = !matches!(statement, "begin" | "commit");
            if guarded {
                let _ = run_sql(client, "savepoint guard").await;
            }
            match run_sql(client, statement).await {
                Ok(_) => done.push(statement),
                Err(Failure::Refused { state, message, file }) => {
                    self.refused((&state, &message, &file), &done, statement);
                    // A statement that is refused is rolled back alone; a conflict ends the transaction.
                    if !guarded || state == "40001" || run_sql(client, "rollback to guard").await.is_err() {
                        let _ = run_sql(client, "rollback").await;
                        return true;
                    }
                }
                // The session was evicted while idle, or was ended to get at a lock.  A crash is found in the log.
                Err(Failure::Lost(_)) => return false,
                Err(failure) => {
                    self.note(|worked| worked.broken.push(format!("{statement}: {failure}")));
                    return false;
                }
            }
        }
        let done = done.into_iter().map(str::to_string).collect();
        self.note(|worked| worked.committed.push((self.region, done)));
        true
    }

    fn refused(&self, (state, message, file): (&str, &str, &str), done: &[&str], statement: &str) {
        self.note(|worked| *worked.states.entry(state.to_string()).or_default() += 1);
        let all = || format!("{}; {statement}", done.join("; "));
        if message.contains(BREACH) {
            self.note(|worked| {
                worked.broken.push(format!("a lock without a key, in region {}: {}", self.region, all()))
            });
        }
        // An internal error is a finding, with these exceptions: PostgreSQL's own errors about an object that
        // disappears meanwhile; an index whose function reads its own table (the query is planned with the index, which
        // is still empty); and, unless the extension itself raises it, an error from a statement with drawn values,
        // because many functions raise internal errors for odd values.
        let meanwhile = ["tuple concurrently ", "cache lookup failed", "could not open relation with OID"];
        let drawn = ["public.", "pg_catalog."].iter().any(|schema| all().contains(schema));
        let empty_index =
            message.starts_with("could not read block 0 in file") && message.contains("PL/pgSQL function");
        let fine = drawn || empty_index || meanwhile.iter().any(|words| message.starts_with(words));
        if state.starts_with("XX") && (sql::of_onetrip(file) || (!fine && sql::of_server(file))) {
            self.note(|worked| worked.broken.push(format!("{state} {message} ({file}): {}", all())));
        }
    }
}
