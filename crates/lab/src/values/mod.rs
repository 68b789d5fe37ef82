//! Values of every type, also extreme ones, made by functions, casts and aggregates, and stored in every way in three
//! regions at once.
//!
//! ```text
//!   types of a round ──> two tables of each, with indexes and constraints ──> statements in three regions
//!        ──> judge ──> next round
//! ```
//!
//! - [`catalog`]: what the server offers, according to its catalogs; [`denied`]: what is left out, and why
//! - [`expression`]: values; [`schema`]: types and tables; [`work`]: statements
//! - [`judge`]: what every region must show
//!
//! A statement that the server refuses is fine; what succeeds must have the same effect everywhere.  A seed repeats the
//! types, tables and statements, but not the timing of statements from different regions.

pub mod catalog;
pub mod denied;
pub mod effect;
pub mod expression;
mod judge;
pub(crate) mod schema;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::torture::random::Random;
use crate::trial::sql::{self, quoted, run as run_sql, shortened, Failure};
use crate::trial::standing::{self, Stuck};
use crate::trial::{self, Finding, Trial, REGIONS};
use crate::{crashes, Cluster};
use catalog::{Catalog, Type};
use expression::Generator;
use judge::Difference;
use schema::Table;
use work::Statement;

/// How many types a round has; each has two tables.
const TYPES_PER_ROUND: usize = 12;
/// How many statements each region runs in a round, for each table of the round.
const STATEMENTS_PER_TABLE: usize = 3;
/// How many types a round of the census has.
const TYPES_OF_CENSUS: usize = 60;
/// Onetrip's refusal of a value that no other region could read.
const OWN_REFUSAL: &str = "0A000 of onetrip";
const STATEMENT_TIMEOUT: &str = "set statement_timeout = '5s'";

pub struct Options {
    pub trial: trial::Options,
    /// Do not end before each type has had a round, even if the duration is over.
    pub sweep: bool,
    /// Make only one plain table for each type, with a few rows from one region: do values of each type arrive?
    pub census: bool,
    /// Only types whose name contains one of these; empty for all.
    pub only: Vec<String>,
}

#[derive(Default)]
pub struct Report {
    pub rounds: u64,
    pub types: BTreeSet<String>,
    /// Types of which a value was stored.
    pub stored: BTreeSet<String>,
    /// Types that no table can have, with the reason.
    pub no_column: BTreeMap<String, String>,
    /// Types of which no value was stored, with the error of the last statement that was refused.
    pub refused: BTreeMap<String, String>,
    /// Types of which Onetrip has refused a value.
    pub refused_here: BTreeSet<String>,
    pub succeeded: u64,
    /// How many statements were refused, by SQLSTATE; those that Onetrip refused are counted separately.
    pub states: BTreeMap<String, u64>,
    pub findings: Vec<Finding>,
}

/// What types and values are drawn from.
#[derive(Default)]
pub(crate) struct Ground {
    pub catalog: Catalog,
    /// All types of the catalog, in an order that the seed determines.
    pub order: Vec<Type>,
}

struct Values<'a> {
    options: &'a Options,
    ground: Ground,
    /// Types about which there was a finding; later rounds leave them out.
    skipped: BTreeSet<String>,
    report: Report,
}

/// A statement that was run, with its end.
struct Done {
    region: usize,
    statement: Statement,
    settings: Vec<String>,
    /// The id of its transaction, if that was committed.
    committed: Option<String>,
}

pub async fn run(options: &Options) -> Result<Report> {
    let (ground, skipped, report) = Default::default();
    let mut values = Values { options, ground, skipped, report };
    let (rounds, findings) = trial::run(&mut values, &options.trial).await?;
    Ok(Report { rounds, findings, ..values.report })
}

impl Trial for Values<'_> {
    const NAME: &'static str = "values";
    const SETTINGS: &'static [(&'static str, &'static str)] = &[];

    async fn begin(&mut self, cluster: &Cluster) -> Result<()> {
        let Options { trial, census, only, .. } = self.options;
        let mut ground = Ground::lay(cluster, trial.seed).await?;
        let listed = |kind: &Type| !census || !ground.catalog.of_system_row(kind);
        let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
        ground.order.retain(|kind| wanted(&kind.name) && listed(kind));
        if self.ground.order.is_empty() {
            println!("values: {} types, {} functions left out", ground.order.len(), ground.catalog.refused);
        }
        self.ground = ground;
        Ok(())
    }

    fn enough(&self, round: u64, over: bool) -> bool {
        let each_had_one = round >= self.ground.order.len().div_ceil(per_round(self.options)) as u64;
        (self.options.census && each_had_one) || (over && (!self.options.sweep || each_had_one))
    }

    async fn round(&mut self, cluster: &Cluster, number: u64) -> Result<Vec<Finding>> {
        let Values { options, ground, skipped, report } = self;
        let found = round(cluster, ground, options, number, skipped, report).await?;
        skipped.extend(found.iter().map(|finding| finding.type_name.clone()));
        Ok(found)
    }
}

impl Ground {
    /// Creates the extensions and types, which all regions get, and then reads the server's catalogs.
    pub async fn lay(cluster: &Cluster, seed: u64) -> Result<Ground> {
        // Each server assigns its own OIDs.  Make sure that they differ.
        for region in 0..REGIONS {
            let client = cluster.connect(region).await?;
            shift_oids(&client, 37 * (region + 1)).await?;
        }
        let client = cluster.connect(0).await?;
        extensions(&client).await?;
        sql::rows(&client, &format!("begin; {}; commit", schema::TYPES)).await.context("make the types")?;
        let catalog = Catalog::read(&client).await?;
        let mut random = Random::new(seed);
        for statement in schema::drawn_types(&catalog, &mut random) {
            if let Err(Failure::Lost(why)) = run_sql(&client, &statement).await {
                anyhow::bail!("{statement}: {why}");
            }
        }
        if let Err(stuck) = standing::converge(cluster).await {
            anyhow::bail!("the types do not arrive in region {}: {}", stuck.region, stuck.message);
        }
        let catalog = Catalog::read(&client).await?;
        let mut order: Vec<Type> = catalog.types.values().cloned().collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.index(at + 1));
        }
        // The row types of the server's own tables and views are many and similar, so they come last.
        order.sort_by_key(|kind| catalog.of_system_row(kind));
        Ok(Ground { catalog, order })
    }
}

async fn shift_oids(client: &Client, count: usize) -> Result<()> {
    let shift = format!(
        "do $$ begin for i in 1..{count} loop create temp table shift (a int); drop table shift; end loop; end $$"
    );
    sql::rows(client, &shift).await.map(|_| ())
}

/// Creates all extensions that the server offers, except those that conflict with another or need what is not
/// installed.
pub async fn extensions(client: &Client) -> Result<()> {
    // The two extensions of PostGIS are applications with tables, and their types are only the rows of these.
    let offered = "select name from pg_available_extensions
                   where name not in ('onetrip', 'postgis_tiger_geocoder', 'postgis_topology') and name !~ '-[0-9]+$'
                       and installed_version is null
                   order by name";
    for row in sql::rows(client, offered).await? {
        match run_sql(client, &format!("create extension if not exists \"{}\" cascade", row[0])).await {
            Ok(_) => {}
            Err(Failure::Refused { state, message, .. }) => {
                println!("values: extension {} is left out: {state} {message}", row[0]);
            }
            Err(failure) => anyhow::bail!("extension {}: {failure}", row[0]),
        }
    }
    Ok(())
}

fn per_round(options: &Options) -> usize {
    if options.census {
        TYPES_OF_CENSUS
    } else {
        TYPES_PER_ROUND
    }
}

async fn round(
    cluster: &Cluster,
    ground: &Ground,
    options: &Options,
    number: u64,
    skipped: &BTreeSet<String>,
    report: &mut Report,
) -> Result<Vec<Finding>> {
    let mut generator = Generator::new(&ground.catalog, options.trial.random(number));
    let first = number as usize * per_round(options);
    // The census has each type once; other runs start again with the first type.
    let count = match options.census {
        true => per_round(options).min(ground.order.len().saturating_sub(first)),
        false => per_round(options).min(ground.order.len()),
    };
    let types = (first..first + count).map(|at| &ground.order[at % ground.order.len()]);
    let mut tables: Vec<Table> = Vec::new();
    for (at, kind) in types.enumerate() {
        report.types.insert(kind.name.clone());
        match options.census {
            true => tables.push(schema::plain_table(kind, at)),
            false => tables.extend(schema::tables(&mut generator, kind, at)),
        }
    }
    let mut works: Vec<Vec<Statement>> = Vec::new();
    for region in 0..if options.census { 1 } else { REGIONS } {
        let files = cluster.node(region).folder().join("postgres").display().to_string();
        works.push(match options.census {
            true => work::inserts(&mut generator, &tables),
            false => work::draw(&mut generator, &tables, region, STATEMENTS_PER_TABLE * tables.len(), &files),
        });
    }
    // Leave statements out only now that all are drawn, so that the others do not depend on what is left out.
    for work in &mut works {
        work.retain(|statement| !skipped.contains(&tables[statement.table].type_name));
    }
    let finding = |what: &str, table: Option<&Table>, statement: String, message: String| Finding {
        round: number,
        what: what.to_string(),
        type_name: table.map_or_else(|| "?".to_string(), |table| table.type_name.clone()),
        statement,
        message,
    };
    if let Err((at, message)) = make_tables(cluster, number, &mut tables, skipped, report).await? {
        let table = &tables[at];
        return Ok(vec![finding("a definition stops a region", Some(table), table.statements.join("; "), message)]);
    }
    let results: Arc<Mutex<Worked>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for (region, work) in works.into_iter().enumerate() {
        tasks.spawn(session_work(cluster.node(region).conninfo(), region, work, Arc::clone(&results)));
    }
    // If a region is stuck, its sessions wait for their turn without end.
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = standing::watch(cluster) => tasks.shutdown().await,
    }
    let Worked { all, states, broken } =
        std::mem::take(&mut *results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    let mut found = Vec::new();
    for (state, of, message) in states {
        if state == OWN_REFUSAL {
            report.refused_here.insert(tables[of].type_name.clone());
        }
        *report.states.entry(state).or_default() += 1;
        if !report.stored.contains(&tables[of].type_name) {
            report.refused.insert(tables[of].type_name.clone(), message);
        }
    }
    for (statement, message) in broken {
        found.push(finding("a session broke", Some(&tables[statement.table]), statement.text, message));
    }
    report.succeeded += all.iter().filter(|done| done.committed.is_some()).count() as u64;
    let crashes = crashes::of(cluster);
    if !crashes.is_empty() {
        // The message names the statement that ran, from which the table follows; it names none for the apply worker.
        let text = crashes.join("\n");
        let table = tables.iter().find(|table| text.contains(&format!("{} ", table.name)));
        found.retain(|f: &Finding| f.what != "a session broke");
        found.push(finding("a server crashed", table, String::new(), text));
    }
    if let Err(stuck) = standing::converge(cluster).await {
        let (statement, table) = guilty(cluster, &stuck, &all).await;
        let table = table.map(|at| &tables[at]);
        let made = table.map_or(String::new(), |table| format!("{}; ", table.statements.join("; ")));
        found.push(finding(
            "a region stands still",
            table,
            format!("{made}{statement}"),
            format!("region {}: {}", cluster.node(stuck.region).region(), stuck.message),
        ));
        return Ok(found);
    }
    if !crashes.is_empty() {
        return Ok(found);
    }
    found.extend(compare(cluster, ground, &tables, &all, finding).await?);
    let client = cluster.connect(0).await?;
    for table in tables.iter().filter(|table| !table.statements.is_empty()) {
        let name = &table.name;
        if !sql::rows(&client, &format!("select from {name} where v is not null limit 1")).await?.is_empty() {
            report.refused.remove(&table.type_name);
            report.stored.insert(table.type_name.clone());
        }
    }
    if found.is_empty() {
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let client = cluster.connect(number as usize % REGIONS).await?;
        sql::rows(&client, &format!("drop table if exists {} cascade", names.join(", "))).await?;
        if let Err(stuck) = standing::converge(cluster).await {
            found.push(finding("a definition stops a region", None, "drop table".to_string(), stuck.message));
        }
    }
    Ok(found)
}

/// Makes the round's tables in one region.  The inner `Err` contains the table whose definition does not arrive in
/// another region, and the reason.
async fn make_tables(
    cluster: &Cluster,
    number: u64,
    tables: &mut [Table],
    skipped: &BTreeSet<String>,
    report: &mut Report,
) -> Result<Result<(), (usize, String)>> {
    let client = cluster.connect(number as usize % REGIONS).await?;
    shift_oids(&client, 1 + (number % 5) as usize).await?;
    sql::rows(&client, STATEMENT_TIMEOUT).await?;
    let mut entries = Vec::new();
    for (at, table) in tables.iter_mut().enumerate() {
        let statements = std::mem::take(&mut table.statements);
        if skipped.contains(&table.type_name) {
            continue;
        }
        for (position, statement) in statements.into_iter().enumerate() {
            let transaction = format!("begin; {statement}; select onetrip.current_transaction_id(); commit");
            match run_sql(&client, &transaction).await {
                Ok(rows) => {
                    entries.push((at, rows.concat().pop().unwrap_or_default()));
                    table.statements.push(statement);
                }
                Err(Failure::Refused { state, message, file }) => {
                    run_sql(&client, "rollback").await.ok();
                    *report.states.entry(class(&state, &file)).or_default() += 1;
                    if position == 0 {
                        report.no_column.insert(table.type_name.clone(), format!("{state} {message}"));
                        break;
                    }
                }
                Err(failure) => anyhow::bail!("{statement}: {failure}"),
            }
        }
        table.generated = table.statements.iter().any(|statement| statement.contains(" add column g "));
    }
    if let Err(stuck) = standing::converge(cluster).await {
        let mut at = 0;
        for (table, id) in &entries {
            let outcome =
                sql::rows(&client, &format!("select onetrip.outcome({})", quoted(id))).await?.concat().concat();
            if stuck.entry.is_some_and(|entry| outcome == format!("committed at {entry}")) {
                at = *table;
            }
        }
        return Ok(Err((at, stuck.message)));
    }
    Ok(Ok(()))
}

fn class(state: &str, file: &str) -> String {
    match sql::of_onetrip(file) {
        true => format!("{state} of onetrip"),
        false => state.to_string(),
    }
}

/// What sessions have done so far.
#[derive(Default)]
struct Worked {
    all: Vec<Done>,
    /// For each statement that was refused: the SQLSTATE, the table and the message.
    states: Vec<(String, usize, String)>,
    broken: Vec<(Statement, String)>,
}

/// Runs the statements of one region, in a session of the owner and one of an ordinary role.
async fn session_work(conninfo: String, region: usize, work: Vec<Statement>, results: Arc<Mutex<Worked>>) {
    let results = || results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ordinary = conninfo.replace("user=postgres", "user=writer");
    let mut sessions: [Option<Client>; 2] = [None, None];
    let mut settings: [Vec<String>; 2] = Default::default();
    for statement in work {
        let which = usize::from(statement.ordinary);
        if sessions[which].is_none() {
            let client = match connect(if statement.ordinary { &ordinary } else { &conninfo }).await {
                Ok(client) => client,
                Err(why) => {
                    results().broken.push((statement, format!("{why:#}")));
                    return;
                }
            };
            settings[which].clear();
            run_sql(&client, STATEMENT_TIMEOUT).await.ok();
            sessions[which] = Some(client);
        }
        let Some(client) = &sessions[which] else { continue };
        if let Some(drawn) = &statement.settings {
            settings[which].clear();
            run_sql(client, "reset all").await.ok();
            for set in drawn.iter().map(String::as_str).chain([STATEMENT_TIMEOUT]) {
                if run_sql(client, set).await.is_ok() && set != STATEMENT_TIMEOUT {
                    settings[which].push(set.to_string());
                }
            }
        }
        let transaction = format!("begin; {}; select onetrip.current_transaction_id(); commit", statement.text);
        let ended = run_sql(client, &transaction).await;
        if matches!(ended, Err(Failure::Refused { .. })) {
            if run_sql(client, "rollback").await.is_err() {
                sessions[which] = None;
            }
        } else if ended.is_err() {
            sessions[which] = None;
        }
        let mut results = results();
        let committed = match ended {
            Ok(rows) => rows.concat().pop(),
            Err(Failure::Refused { state, message, file }) => {
                results.states.push((class(&state, &file), statement.table, format!("{state} {message}")));
                None
            }
            // The session was evicted, was ended by an administrator, or its outcome is open; none of these is a
            // finding.
            Err(Failure::Lost(why)) if ["40001", "57P01", "08007"].iter().any(|state| why.starts_with(state)) => {
                results.states.push((why[..5].to_string(), statement.table, why));
                None
            }
            Err(failure) => {
                results.broken.push((statement.clone(), failure.to_string()));
                None
            }
        };
        results.all.push(Done { region, settings: settings[which].clone(), statement, committed });
    }
}

pub(crate) async fn connect(conninfo: &str) -> Result<Client> {
    let connecting = tokio_postgres::connect(conninfo, tokio_postgres::NoTls);
    let (client, connection) = tokio::time::timeout(Duration::from_secs(10), connecting).await.context("connect")??;
    tokio::spawn(connection);
    Ok(client)
}

/// The statement whose entry cannot be applied, and its table.
async fn guilty(cluster: &Cluster, stuck: &Stuck, all: &[Done]) -> (String, Option<usize>) {
    let Some(entry) = stuck.entry else { return ("not known".to_string(), None) };
    let wanted = format!("committed at {entry}");
    for region in 0..REGIONS {
        let Ok(client) = cluster.connect(region).await else { continue };
        for done in all.iter().filter(|done| done.region == region) {
            let Some(id) = &done.committed else { continue };
            let outcome = run_sql(&client, &format!("select onetrip.outcome({})", quoted(id))).await;
            if outcome.is_ok_and(|rows| rows.concat().concat() == wanted) {
                return (told(done), Some(done.statement.table));
            }
        }
    }
    (format!("none that was acknowledged: entry {entry}"), None)
}

fn told(done: &Done) -> String {
    let settings: String = done.settings.iter().map(|set| format!("{set}; ")).collect();
    format!("{settings}{}", done.statement.text)
}

async fn compare(
    cluster: &Cluster,
    ground: &Ground,
    tables: &[Table],
    all: &[Done],
    finding: impl Fn(&str, Option<&Table>, String, String) -> Finding,
) -> Result<Vec<Finding>> {
    let mut clients = Vec::new();
    for region in 0..REGIONS {
        clients.push(cluster.connect(region).await?);
    }
    let mut found = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        if table.statements.is_empty() {
            continue;
        }
        let bytes = !ground.catalog.holds_oids(table.of);
        let mut what = "rows differ";
        let mut difference = judge::compare(&clients, table, bytes).await;
        // An index on an expression over a type with OIDs often contains OIDs too, which differ between regions.
        if bytes && matches!(difference, Ok(None)) {
            what = "indexes differ";
            difference = judge::compare_indexes(&clients, table).await;
        }
        let difference = difference.unwrap_or_else(|why| {
            what = "rows cannot be read";
            Some(Difference { id: None, message: format!("{why:#}") })
        });
        let Some(difference) = difference else { continue };
        let of = |done: &&Done| {
            let about =
                difference.id.is_none_or(|id| done.statement.ids.is_empty() || done.statement.ids.contains(&id));
            done.statement.table == at && done.committed.is_some() && about
        };
        let statements: Vec<String> = all.iter().filter(of).map(told).collect();
        let statement = format!("{}; {}", table.statements.join("; "), shortened(&statements.join(";; "), 4_000));
        found.push(finding(what, Some(table), statement, difference.message));
    }
    if found.is_empty() {
        if let Err(why) = cluster.check().await {
            found.push(finding("regions differ", None, String::new(), format!("{why:#}")));
        }
    }
    Ok(found)
}

impl Report {
    pub fn held(&self) -> bool {
        self.findings.is_empty() && self.succeeded > 0
    }

    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n",
            "rounds",
            self.rounds,
            "types that had tables",
            self.types.len() - self.no_column.len(),
            "types of which a value was stored",
            self.stored.len(),
            "statements that succeeded",
            self.succeeded,
            "findings",
            self.findings.len()
        );
        for (state, count) in &self.states {
            text += &format!("refused with {state:<31} {count:>8}\n");
        }
        for (kind, why) in &self.no_column {
            text += &format!("no column: {kind}: {why}\n");
        }
        for (kind, why) in &self.refused {
            text += &format!("nothing stored: {kind}: {}\n", shortened(why, 160));
        }
        text
    }
}
