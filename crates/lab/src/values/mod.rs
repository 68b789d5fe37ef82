//! Values of every type, made by functions, casts, aggregates and extremes, stored in every way, in three regions at once.
//!
//! ```text
//!   types of a round ──> two tables of each, with indexes and constraints ──> statements in three regions ──> judge ──> next round
//! ```
//!
//! - [`catalog`]: what the server offers, by its own lists; [`denied`]: what is left out, and why
//! - [`expression`]: values; [`schema`]: types and tables; [`work`]: statements
//! - [`judge`]: what every region must show
//!
//! A statement that the server refuses is fine; what succeeds must come out alike.  A seed repeats types, tables and statements; how
//! those of different regions meet is the machine's.

pub mod catalog;
pub mod denied;
pub mod effect;
mod expression;
pub(crate) mod judge;
mod schema;
pub(crate) mod sql;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::torture::random::Random;
use crate::Cluster;
use catalog::{Catalog, Type};
use expression::Generator;
use judge::{Difference, Stuck};
use schema::Table;
use sql::{quoted, run as run_sql, shortened, Failure};
use work::Statement;

const REGIONS: usize = 3;
/// Types of one round; each has two tables.
const TYPES_PER_ROUND: usize = 12;
/// Of each region, for each table of the round.
const STATEMENTS_PER_TABLE: usize = 3;
/// Types of one round of the census.
const TYPES_OF_CENSUS: usize = 60;
/// What Onetrip says of a value that no other region could read.
const OWN_REFUSAL: &str = "0A000 of onetrip";
const STATEMENT_TIMEOUT: &str = "set statement_timeout = '5s'";

pub struct Options {
    /// Ends after the first round that is over later than this.
    pub duration: Duration,
    /// Ends when each type has had a round, however long that takes; the duration counts only after that.
    pub sweep: bool,
    pub seed: u64,
    /// One plain table of each type and a few rows of one region: whether values of each type arrive.
    pub census: bool,
    /// This round alone.
    pub round: Option<u64>,
    /// The `onetrip` command.
    pub binary: PathBuf,
    pub folder: PathBuf,
    /// Parts of names of types; empty for all.
    pub only: Vec<String>,
    /// Notes what it finds and goes on with a new cluster, without that type.
    pub explore: bool,
    /// Where each finding is appended, a line each.
    pub findings: Option<PathBuf>,
}

/// Something that must not be.
#[derive(Debug, Clone)]
pub struct Finding {
    pub round: u64,
    pub what: &'static str,
    pub type_name: String,
    pub statement: String,
    pub message: String,
}

#[derive(Default)]
pub struct Report {
    pub rounds: u64,
    pub types: BTreeSet<String>,
    /// Types in whose tables a row was stored.
    pub stored: BTreeSet<String>,
    /// Types that no table can have, with the reason.
    pub no_column: BTreeMap<String, String>,
    /// Of types in whose tables nothing could be stored: how the last statement was refused.
    pub refused: BTreeMap<String, String>,
    /// Types of which Onetrip has refused a value.
    pub refused_here: BTreeSet<String>,
    pub succeeded: u64,
    /// Refused statements by SQLSTATE; those of Onetrip apart.
    pub states: BTreeMap<String, u64>,
    pub findings: Vec<Finding>,
}

struct Field {
    cluster: Cluster,
    catalog: Catalog,
    /// Everything that can be a column's type, in an order of the seed.
    order: Vec<Type>,
}

/// A statement with how it ended.
struct Done {
    region: usize,
    statement: Statement,
    settings: Vec<String>,
    /// Its transaction's id if it was committed.
    committed: Option<String>,
}

pub async fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut clusters = 0;
    let mut field = start(options, clusters).await?;
    println!("values: {} types, {} functions left out", field.order.len(), field.catalog.refused);
    let began = Instant::now();
    let rounds = field.order.len().div_ceil(per_round(options)) as u64;
    let mut skipped: BTreeSet<String> = BTreeSet::new();
    for number in 0.. {
        let number = options.round.unwrap_or(number);
        let over = began.elapsed() >= options.duration && (!options.sweep || number >= rounds);
        if options.round.is_none() && (over || (options.census && number >= rounds)) {
            break;
        }
        let found = round(&field, options, number, &skipped, &mut report).await?;
        report.rounds += 1;
        let stop = !found.is_empty() && !options.explore;
        for finding in &found {
            skipped.insert(finding.type_name.clone());
            tell(options, finding);
        }
        let broken = !found.is_empty();
        report.findings.extend(found);
        if stop || options.round.is_some() {
            break;
        }
        if broken {
            drop(field);
            clusters += 1;
            field = start(options, clusters).await?;
        }
    }
    if let Err(why) = field.cluster.stop().await {
        report.findings.push(Finding {
            round: 0,
            what: "stopping",
            type_name: String::new(),
            statement: String::new(),
            message: format!("{why:#}"),
        });
    }
    Ok(report)
}

fn tell(options: &Options, finding: &Finding) {
    let repeat = format!("make values SEED={} ARGS='--round {}'", options.seed, finding.round);
    println!(
        "values: {}\n  type:      {}\n  statement: {}\n  message:   {}\n  again:     {repeat}",
        finding.what, finding.type_name, finding.statement, finding.message
    );
    let Some(path) = &options.findings else { return };
    let line = format!(
        "seed {} round {} / {} / {} / {} / {}\n",
        options.seed,
        finding.round,
        finding.what,
        finding.type_name,
        shortened(&finding.statement.replace('\n', " "), 3_000),
        shortened(&finding.message.replace('\n', " "), 1_500)
    );
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(why) = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes())) {
        eprintln!("values: {}: {why}", path.display());
    }
}

async fn start(options: &Options, number: u32) -> Result<Field> {
    let cluster = Cluster::builder()
        .binary(&options.binary)
        .folder(options.folder.join(number.to_string()))
        .postgres_setting("log_line_prefix", "%m [%p] %a %e ")
        .postgres_setting("max_connections", "50")
        .start()
        .await?;
    // OIDs are each server's own: let them be far apart.
    for region in 0..REGIONS {
        let client = cluster.connect(region).await?;
        shift_oids(&client, 37 * (region + 1)).await?;
    }
    let client = cluster.connect(0).await?;
    extensions(&client).await?;
    sql::rows(&client, &format!("begin; {}; commit", schema::TYPES)).await.context("make the types")?;
    let catalog = Catalog::read(&client).await?;
    let mut random = Random::new(options.seed);
    for statement in schema::drawn_types(&catalog, &mut random) {
        if let Err(Failure::Lost(why)) = run_sql(&client, &statement).await {
            anyhow::bail!("{statement}: {why}");
        }
    }
    if let Err(stuck) = judge::settle(&cluster).await {
        anyhow::bail!("the types do not arrive in region {}: {}", stuck.region, stuck.message);
    }
    let catalog = Catalog::read(&client).await?;
    let listed = |kind: &Type| !options.census || !catalog.of_system_row(kind);
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()));
    let mut order: Vec<Type> = catalog.types.values().filter(|t| wanted(&t.name) && listed(t)).cloned().collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.index(at + 1));
    }
    // Rows of the server's own tables and views are many and much the same: last.
    order.sort_by_key(|t| catalog.of_system_row(t));
    Ok(Field { cluster, catalog, order })
}

async fn shift_oids(client: &Client, count: usize) -> Result<()> {
    let shift = format!(
        "do $$ begin for i in 1..{count} loop create temp table shift (a int); drop table shift; end loop; end $$"
    );
    sql::rows(client, &shift).await.map(|_| ())
}

/// All that the server offers; some stand in each other's way or need what is not installed.
pub async fn extensions(client: &Client) -> Result<()> {
    // The last two are applications with tables, whose types are their rows.
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
    field: &Field,
    options: &Options,
    number: u64,
    skipped: &BTreeSet<String>,
    report: &mut Report,
) -> Result<Vec<Finding>> {
    let random = Random::new(options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).child();
    let mut generator = Generator::new(&field.catalog, random);
    let first = number as usize * per_round(options);
    // The census has each type once, the others begin anew.
    let count = match options.census {
        true => per_round(options).min(field.order.len().saturating_sub(first)),
        false => per_round(options).min(field.order.len()),
    };
    let types = (first..first + count).map(|at| &field.order[at % field.order.len()]);
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
        let files = field.cluster.node(region).folder().join("postgres").display().to_string();
        works.push(match options.census {
            true => work::inserts(&mut generator, &tables),
            false => work::draw(&mut generator, &tables, region, STATEMENTS_PER_TABLE * tables.len(), &files),
        });
    }
    // All is drawn; what is left out now does not change what others get.
    for work in &mut works {
        work.retain(|statement| !skipped.contains(&tables[statement.table].type_name));
    }
    let finding = |what, table: Option<&Table>, statement: String, message: String| Finding {
        round: number,
        what,
        type_name: table.map_or_else(|| "?".to_string(), |table| table.type_name.clone()),
        statement,
        message,
    };
    if let Err((at, message)) = make_tables(field, number, &mut tables, skipped, report).await? {
        let table = &tables[at];
        return Ok(vec![finding("a definition stops a region", Some(table), table.statements.join("; "), message)]);
    }
    let results: Arc<Mutex<Worked>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for (region, work) in works.into_iter().enumerate() {
        tasks.spawn(session_work(field.cluster.node(region).conninfo(), region, work, Arc::clone(&results)));
    }
    // Where a region stands still, sessions wait for their turn without end.
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = judge::watch(&field.cluster) => tasks.shutdown().await,
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
    let crashes = judge::crashes(&field.cluster);
    if !crashes.is_empty() {
        // Whose it was is in the message: the statement that ran, or none if it was the apply worker.
        let text = crashes.join("\n");
        let table = tables.iter().find(|table| text.contains(&format!("{} ", table.name)));
        found.retain(|f: &Finding| f.what != "a session broke");
        found.push(finding("a server crashed", table, String::new(), text));
    }
    if let Err(stuck) = judge::settle(&field.cluster).await {
        let (statement, table) = guilty(field, &stuck, &all).await;
        let table = table.map(|at| &tables[at]);
        let made = table.map_or(String::new(), |table| format!("{}; ", table.statements.join("; ")));
        found.push(finding(
            "a region stands still",
            table,
            format!("{made}{statement}"),
            format!("region {}: {}", field.cluster.node(stuck.region).region(), stuck.message),
        ));
        return Ok(found);
    }
    if !crashes.is_empty() {
        return Ok(found);
    }
    found.extend(compare(field, &tables, &all, finding).await?);
    let client = field.cluster.connect(0).await?;
    for table in tables.iter().filter(|table| !table.statements.is_empty()) {
        let name = &table.name;
        if !sql::rows(&client, &format!("select from {name} where v is not null limit 1")).await?.is_empty() {
            report.refused.remove(&table.type_name);
            report.stored.insert(table.type_name.clone());
        }
    }
    if found.is_empty() {
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let client = field.cluster.connect(number as usize % REGIONS).await?;
        sql::rows(&client, &format!("drop table if exists {} cascade", names.join(", "))).await?;
        if let Err(stuck) = judge::settle(&field.cluster).await {
            found.push(finding("a definition stops a region", None, "drop table".to_string(), stuck.message));
        }
    }
    Ok(found)
}

/// Makes the round's tables in one region.  `Err` in it: the table whose definition does not arrive in another, and why.
async fn make_tables(
    field: &Field,
    number: u64,
    tables: &mut [Table],
    skipped: &BTreeSet<String>,
    report: &mut Report,
) -> Result<Result<(), (usize, String)>> {
    let client = field.cluster.connect(number as usize % REGIONS).await?;
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
    if let Err(stuck) = judge::settle(&field.cluster).await {
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

/// Onetrip's own refusals are told from PostgreSQL's by the file that they come from.
fn class(state: &str, file: &str) -> String {
    const OWN: [&str; 14] = [
        "access_method.c",
        "capture.c",
        "rel_info.c",
        "write_set.c",
        "commit.c",
        "ddl.c",
        "ddl_check.c",
        "ddl_classify.c",
        "wire.c",
        "row_image.c",
        "stored_type.c",
        "object_name.c",
        "evict.c",
        "sequence.c",
    ];
    match OWN.iter().any(|own| file.ends_with(own)) {
        true => format!("{state} of onetrip"),
        false => state.to_string(),
    }
}

/// What sessions have done so far.
#[derive(Default)]
struct Worked {
    all: Vec<Done>,
    /// How statements were refused, and of which table.
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
            // Evicted, or ended in good order.
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

async fn connect(conninfo: &str) -> Result<Client> {
    let connecting = tokio_postgres::connect(conninfo, tokio_postgres::NoTls);
    let (client, connection) = tokio::time::timeout(Duration::from_secs(10), connecting).await.context("connect")??;
    tokio::spawn(connection);
    Ok(client)
}

/// The statement whose entry cannot be applied, and its table.
async fn guilty(field: &Field, stuck: &Stuck, all: &[Done]) -> (String, Option<usize>) {
    let Some(entry) = stuck.entry else { return ("not known".to_string(), None) };
    let wanted = format!("committed at {entry}");
    for region in 0..REGIONS {
        let Ok(client) = field.cluster.connect(region).await else { continue };
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
    field: &Field,
    tables: &[Table],
    all: &[Done],
    finding: impl Fn(&'static str, Option<&Table>, String, String) -> Finding,
) -> Result<Vec<Finding>> {
    let mut clients = Vec::new();
    for region in 0..REGIONS {
        clients.push(field.cluster.connect(region).await?);
    }
    let mut found = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        if table.statements.is_empty() {
            continue;
        }
        let bytes = !field.catalog.holds_oids(table.of);
        let mut what = "rows differ";
        let mut difference = judge::compare(&clients, table, bytes).await;
        // What an index computes from a type with OIDs often has them too, and then other ones in each region.
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
    Ok(found)
}

impl Report {
    pub fn held(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n{:<44} {:>8}\n",
            "rounds",
            self.rounds,
            "types that had tables",
            self.types.len() - self.no_column.len(),
            "types of which a row was stored",
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
