//! Every feature with every other: a pair of small pieces of work in one transaction, one after the other from two
//! regions, and at once, on a cluster and on PostgreSQL without Onetrip.
//!
//! ```text
//!   pairs of a round ──> each meeting in a schema of its own, on both ──> what the statements said, what the schemas
//!        contain (pg_dump) ──> next round
//! ```
//!
//! - [`features`]: the pieces, and the schema on which they work
//! - [`meeting`]: the ways in which two of them meet, and what may come of it
//!
//! What follows one another must say and leave what PostgreSQL says and leaves, error for error.  What happens at once
//! must leave what one of the two orders leaves in PostgreSQL, without those that lost.  A refusal of Onetrip's
//! (SQLSTATE 0A000) is counted, and the rest of that meeting is not compared.

mod features;
mod meeting;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use tokio_postgres::Client;

use crate::plain::Server;
use crate::poison::judge;
use crate::torture::random::Random;
use crate::trial::sql::{self, run as run_sql, shortened, Failure};
use crate::trial::standing::converge;
use crate::trial::{self, Finding, Trial};
use crate::{crashes, Cluster};
use features::{Feature, FEATURES, SCHEMA};
use meeting::{Meeting, Said, Seat};

/// How many pairs a round has: it compares dumps once.
const PAIRS_PER_ROUND: usize = 12;
const ROLES: &str = "create role pairs_user createrole; create role pairs_other; grant pairs_other to pairs_user;
    grant set on parameter session_replication_role to pairs_user";
const TRIES_MAX: usize = 20;
const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
/// At other levels than READ COMMITTED it wants a BEGIN, which a procedure that commits has not.
const FRESH: &str = "set onetrip.read = fresh";
/// Refusals that are meant to be: what a prepared transaction cannot bring back.
const REFUSALS: &str = "cannot PREPARE a transaction that has ";
/// What has to be done when the regions have converged: indexes are built, for example.
const JOBS: Duration = Duration::from_secs(60);
/// Settings that change what others see and who waits, but no answer: each with how many round trips DDL takes with it
/// that does not stand in line behind other regions' DDL.  PostgreSQL takes them for settings of the user's own.
const WAYS: [(&str, &str); 5] = [
    ("", "2"),
    ("set onetrip.concurrency = locking", "1000"),
    (FRESH, "1000"),
    ("set onetrip.statement_retries = 0", "2"),
    ("set onetrip.commit_timeout = '15s'", "2"),
];

pub struct Options {
    pub trial: trial::Options,
    /// Do not end before each pair has had its turn, even if the duration is over.
    pub sweep: bool,
    /// Only pairs of which one feature's name contains this.
    pub only: Option<String>,
}

#[derive(Default)]
pub struct Report {
    pub rounds: u64,
    pub pairs: usize,
    pub meetings: usize,
    /// The refusals of Onetrip, by message.
    pub refused: BTreeMap<String, usize>,
    /// What ended transactions that met others at once, by SQLSTATE.
    pub lost: BTreeMap<String, usize>,
    /// How many pairs were both committed, by how they met at once.
    pub both: BTreeMap<String, usize>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn held(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn table(&self) -> String {
        let list = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(what, count)| format!("\n  {count:6}  {what}")).collect::<String>()
        };
        format!(
            "{} pairs of {} features in {} rounds met {} times\nrefused by Onetrip:{}\nlost to the other one at once:{}\nboth committed:{}\n{} findings",
            self.pairs,
            FEATURES.len(),
            self.rounds,
            self.meetings,
            list(&self.refused),
            list(&self.lost),
            list(&self.both),
            self.findings.len(),
        )
    }
}

struct Pairs<'a> {
    options: &'a Options,
    order: Vec<(&'static Feature, &'static Feature)>,
    plain: Server,
    report: Report,
}

pub async fn run(options: &Options) -> Result<Report> {
    let folder = options.trial.folder.join("plain");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let plain = Server::start(&folder, &["max_prepared_transactions=10", "fsync=off"]).await?;
    sql::rows(&plain.connect().await?, ROLES).await?;
    sql::rows(&plain.connect().await?, "grant create on database postgres to pairs_user").await?;
    let order = order(options.trial.seed);
    let mut pairs = Pairs { options, order, plain, report: Report::default() };
    let (rounds, findings) = trial::run(&mut pairs, &options.trial).await?;
    let mut report = Report { rounds, findings, ..pairs.report };
    ensure!(report.pairs > 0, "there is no such pair");
    // If they lose each time, nothing is shown by what is left.
    if report.findings.is_empty() && report.meetings > 150 && (report.both.len() < 3 || report.lost.is_empty()) {
        report.findings.push(Finding {
            round: rounds,
            what: "of two at once never both are committed, or never one loses".to_string(),
            type_name: String::new(),
            statement: String::new(),
            message: format!("both committed: {:?}, lost: {:?}", report.both, report.lost),
        });
    }
    Ok(report)
}

/// All pairs, in an order that is drawn from the seed; the first ones have each feature twice.
fn order(seed: u64) -> Vec<(&'static Feature, &'static Feature)> {
    let mut random = Random::new(seed);
    let mut shuffled = |count: usize| {
        let mut all: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            all.swap(at, random.index(at + 1));
        }
        all
    };
    let (firsts, steps) = (shuffled(FEATURES.len()), shuffled(FEATURES.len()));
    // The second of a pair is so many places behind the first one.
    let pair = |step: usize, at: usize| (&FEATURES[firsts[at]], &FEATURES[firsts[(at + step) % FEATURES.len()]]);
    steps
        .into_iter()
        .flat_map(|step| (0..FEATURES.len()).map(move |at| (step, at)))
        .map(|(step, at)| pair(step, at))
        .collect()
}

impl Trial for Pairs<'_> {
    const NAME: &'static str = "pairs";
    const SETTINGS: &'static [(&'static str, &'static str)] = &[("onetrip.rebuild_after", "0")];

    async fn begin(&mut self, cluster: &Cluster) -> Result<()> {
        let admin = cluster.connect(0).await?;
        sql::rows(&admin, ROLES).await?;
        sql::rows(&admin, "grant create on database onetrip to pairs_user").await?;
        Ok(())
    }

    fn enough(&self, round: u64, over: bool) -> bool {
        let done = round as usize * PAIRS_PER_ROUND;
        done >= self.order.len() || (over && !self.options.sweep)
    }

    async fn round(&mut self, cluster: &Cluster, number: u64) -> Result<Vec<Finding>> {
        let first = number as usize * PAIRS_PER_ROUND;
        let wanted =
            |feature: &Feature| self.options.only.as_ref().is_none_or(|only| feature.name.contains(only.as_str()));
        let pairs: Vec<_> = self.order.iter().skip(first).take(PAIRS_PER_ROUND).collect();
        let pairs: Vec<_> = pairs.into_iter().filter(|(first, second)| wanted(first) || wanted(second)).collect();
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let mut random = self.options.trial.random(number);
        let level = LEVELS[random.index(LEVELS.len())];
        let mut way = WAYS[random.index(WAYS.len())];
        if way.0 == FRESH && level != LEVELS[0] {
            way = WAYS[0];
        }
        let mut round = Round::new(cluster, &self.plain, number, level, way);
        for (at, (first, second)) in pairs.iter().enumerate() {
            round.pair(first, second, at).await?;
        }
        let mut findings = std::mem::take(&mut round.findings);
        let standing = round.standing().await?;
        let sound = standing.is_empty();
        findings.extend(standing);
        if sound {
            findings.extend(round.judge().await?);
            clean_up(&cluster.connect(0).await?).await?;
            clean_up(&self.plain.connect().await?).await?;
        } else {
            clean_up(&self.plain.connect().await?).await?;
        }
        self.report.pairs += pairs.len();
        self.report.meetings += round.met.len();
        let Report { refused, lost, both, .. } = &mut self.report;
        for (counts, more) in [(refused, round.refused), (lost, round.lost), (both, round.both)] {
            for (what, count) in more {
                *counts.entry(what).or_default() += count;
            }
        }
        Ok(findings)
    }
}

/// One way in which a pair has met: in the cluster and in PostgreSQL.
struct Met {
    meeting: Meeting,
    pair: String,
    schema: String,
    /// What may be left of it in PostgreSQL, each in a schema there; empty if the rest is not compared.
    may_leave: Vec<String>,
    said: String,
}

struct Round<'a> {
    cluster: &'a Cluster,
    plain: &'a Server,
    number: u64,
    /// The isolation level, and one of [`WAYS`].
    level: &'static str,
    way: (&'static str, &'static str),
    /// In regions a, b, and a again; then two in PostgreSQL.
    seats: Vec<Seat>,
    met: Vec<Met>,
    findings: Vec<Finding>,
    refused: BTreeMap<String, usize>,
    lost: BTreeMap<String, usize>,
    both: BTreeMap<String, usize>,
}

impl<'a> Round<'a> {
    fn new(
        cluster: &'a Cluster,
        plain: &'a Server,
        number: u64,
        level: &'static str,
        way: (&'static str, &'static str),
    ) -> Round<'a> {
        let places = [0, 1, 0].map(|region| cluster.node(region).conninfo());
        let places = places.into_iter().chain([plain.conninfo(), plain.conninfo()]);
        let seats = places.map(|conninfo| Seat::new(conninfo, level, way.0)).collect();
        let (met, findings, refused, lost, both) = Default::default();
        Round { cluster, plain, number, level, way, seats, met, findings, refused, lost, both }
    }

    fn finding(&mut self, what: &str, pair: &str, message: String) {
        let what = format!("{what} ({} {})", self.level, self.way.0);
        let (statement, type_name) = (pair.to_string(), String::new());
        self.findings.push(Finding { round: self.number, what, type_name, statement, message });
    }

    /// Has a pair meet in every way.
    async fn pair(&mut self, first: &'static Feature, second: &'static Feature, at: usize) -> Result<()> {
        let pair = format!("\"{}\" and \"{}\"", first.name, second.name);
        let id = self.number as usize * PAIRS_PER_ROUND + at;
        let schema = |meeting: Meeting| format!("q{id}{}", meeting.letter());
        let mut plain = BTreeMap::new();
        for meeting in Meeting::PLAIN.into_iter().filter(|meeting| meeting.possible(first, second)) {
            let said = self.meet(meeting, first, second, &schema(meeting), [3, 4]).await?;
            let broken = said.iter().find(|said| meeting == Meeting::FirstOnly && !said.outcome.is_fine());
            if let Some(broken) = broken.filter(|_| !first.fails()) {
                let message = broken.to_string();
                self.finding("a piece that does not work in PostgreSQL", &pair, message);
            }
            plain.insert(meeting, said);
        }
        for meeting in Meeting::CLUSTER.into_iter().filter(|meeting| meeting.possible(first, second)) {
            let seats = if meeting == Meeting::Beside { [0, 2] } else { [0, 1] };
            let said = self.meet(meeting, first, second, &schema(meeting), seats).await?;
            let told: Vec<String> = said.iter().map(Said::to_string).collect();
            let mut met = Met {
                meeting,
                pair: pair.clone(),
                schema: schema(meeting),
                may_leave: Vec::new(),
                said: told.join("\n    "),
            };
            if let Some(refusal) = said.iter().find_map(Said::own_refusal) {
                *self.refused.entry(refusal.to_string()).or_default() += 1;
                if !refusal.starts_with(REFUSALS) {
                    self.finding(&format!("{meeting}: refused"), &pair, met.said.clone());
                }
            } else if meeting.in_order() {
                met.may_leave.push(schema(meeting));
                for (said, plain) in said.iter().zip(&plain[&meeting]) {
                    if !said.alike(plain) {
                        let message = format!("PostgreSQL: {plain}\n    {}", met.said);
                        self.finding(&format!("{meeting}: another answer"), &pair, message);
                        met.may_leave.clear();
                        break;
                    }
                }
            } else {
                match meeting.orders(&said, &plain) {
                    Ok(orders) => {
                        if orders.iter().any(|order| matches!(order, Meeting::Apart | Meeting::Reversed)) {
                            *self.both.entry(meeting.to_string()).or_default() += 1;
                        }
                        met.may_leave.extend(orders.into_iter().map(schema));
                    }
                    Err(why) => {
                        let message = format!("{why}\n    {}", met.said);
                        self.finding(&format!("{meeting}: {why}"), &pair, message);
                    }
                }
                for said in said.iter().filter(|said| said.lost()) {
                    *self.lost.entry(said.outcome.state().to_string()).or_default() += 1;
                }
            }
            self.met.push(met);
        }
        Ok(())
    }

    /// Makes the schema and has a pair meet there, with these two seats.
    async fn meet(
        &mut self,
        meeting: Meeting,
        first: &'static Feature,
        second: &'static Feature,
        schema: &str,
        seats: [usize; 2],
    ) -> Result<Vec<Said>> {
        let number =
            format!("{}", u64::from(meeting.letter() as u8) + 1_000 * self.met.len() as u64 + 100_000 * self.number);
        for seat in seats {
            self.seats[seat].sit_down().await?;
        }
        let of_cluster = seats[0] < 3;
        let maker = &mut self.seats[seats[0]];
        maker.must("set onetrip.ack = applied_everywhere; reset onetrip.max_trips; set lock_timeout = '10s'").await?;
        let make = format!("begin; {}; commit", SCHEMA.replace('Q', schema));
        let mut tries = 0;
        while let Err(why) = maker.must(&make).await {
            tries += 1;
            ensure!(tries < TRIES_MAX, "{schema} was not made: {why:#}");
            maker.sit_down().await?;
        }
        maker.must("reset onetrip.ack").await?;
        // With a trip less, a transaction with DDL does not wait for those with DDL that other regions have open.
        let patience = match meeting.in_order() {
            true => "set lock_timeout = '10s'; reset onetrip.max_trips".to_string(),
            false => format!("set lock_timeout = '100ms'; set onetrip.max_trips = {}", self.way.1),
        };
        for seat in seats {
            self.seats[seat].must(&format!("set search_path = {schema}; {patience}")).await?;
        }
        let mut said: Vec<Said> = Vec::new();
        for (who, key) in meeting.script(first, second) {
            // What one region has answered, another one shows a moment later.
            if of_cluster && meeting == Meeting::Apart && said.last().is_some_and(|last| last.who != who) {
                converge(self.cluster).await.map_err(|stuck| anyhow::anyhow!("{}", stuck.message))?;
            }
            let statement = key.replace("#N", &number).replace("#Q", schema);
            let outcome = self.seats[seats[who]].run(&statement).await;
            said.push(Said { who, key, statement, outcome });
        }
        if meeting == Meeting::Prepared {
            // If it could not be committed, it would be in the way of others.
            self.seats[seats[1]].sit_down().await?;
            self.seats[seats[1]].run(&format!("rollback prepared '{schema}'")).await;
        }
        Ok(said)
    }

    /// Whether all regions stand, and are equal.
    async fn standing(&mut self) -> Result<Vec<Finding>> {
        let found = |what: &str, message: String| {
            vec![Finding {
                round: self.number,
                what: what.to_string(),
                type_name: String::new(),
                statement: self
                    .met
                    .iter()
                    .map(|met| format!("\n  {} {} {}", met.schema, met.meeting, met.pair))
                    .collect(),
                message,
            }]
        };
        let crashes = crashes::of(self.cluster);
        if !crashes.is_empty() {
            return Ok(found("a server crashed", crashes.join("\n")));
        }
        if let Err(stuck) = converge(self.cluster).await {
            let region = self.cluster.node(stuck.region).region();
            return Ok(found("a region stands still", format!("region {region}: {}", stuck.message)));
        }
        let errors = self.internal_errors()?;
        if !errors.is_empty() {
            return Ok(found("an internal error", errors));
        }
        if let Some(jobs) = self.jobs().await? {
            return Ok(found("a job does not end", jobs));
        }
        match judge::compare(self.cluster).await? {
            Some(differs) => Ok(found("regions differ", shortened(&differs, 3_000))),
            None => Ok(Vec::new()),
        }
    }

    /// What the servers have logged with SQLSTATE XX000.
    fn internal_errors(&self) -> Result<String> {
        let mut found = Vec::new();
        for node in self.cluster.nodes() {
            let log = node.log("postgres.log")?;
            found.extend(log.lines().filter(|line| line.contains(" XX000 ")).map(|line| shortened(line, 300)));
        }
        Ok(found.join("\n"))
    }

    /// Waits until all jobs have ended, without which regions differ: for example, indexes that are not built.
    async fn jobs(&self) -> Result<Option<String>> {
        let began = Instant::now();
        loop {
            let mut under_way = Vec::new();
            for region in 0..self.cluster.nodes().len() {
                let jobs = "select format('%s', j) from onetrip.jobs j where state not in ('done', 'failed')";
                under_way.extend(sql::rows(&self.cluster.connect(region).await?, jobs).await?.concat());
            }
            if under_way.is_empty() {
                converge(self.cluster).await.map_err(|stuck| anyhow::anyhow!("{}", stuck.message))?;
                return Ok(None);
            }
            if began.elapsed() > JOBS {
                return Ok(Some(under_way.join("\n")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether each meeting has left what it would leave in PostgreSQL.
    async fn judge(&self) -> Result<Vec<Finding>> {
        let arguments = ["--inserts", "--schema=q*"];
        let ours =
            states(&judge::dump("pg_dump", &with(&arguments, "onetrip"), &self.cluster.node(0).conninfo()).await?);
        let plain = states(&judge::dump("pg_dump", &with(&arguments, "postgres"), &self.plain.conninfo()).await?);
        let nothing = State::new();
        let mut findings = Vec::new();
        for met in self.met.iter().filter(|met| !met.may_leave.is_empty()) {
            let left = ours.get(&met.schema).unwrap_or(&nothing);
            let allowed: Vec<&State> =
                met.may_leave.iter().map(|schema| plain.get(schema).unwrap_or(&nothing)).collect();
            if allowed.contains(&left) {
                continue;
            }
            let differs: Vec<String> = allowed.iter().filter_map(|state| judge::differing(state, left)).collect();
            let message = format!("{}\n    {}", differs.join("\n  or "), met.said);
            let what = format!("{} ({} {}): another result than in PostgreSQL", met.meeting, self.level, self.way.0);
            let (statement, type_name) = (met.pair.clone(), String::new());
            findings.push(Finding { round: self.number, what, type_name, statement, message });
        }
        Ok(findings)
    }
}

/// What a schema contains: parts of a dump, each with how often it is there.
type State = BTreeMap<String, usize>;

fn with<'a>(arguments: &[&'a str], database: &'a str) -> Vec<&'a str> {
    let mut all = arguments.to_vec();
    all.extend(["--dbname", database]);
    all
}

/// The parts of a dump by the schema that they are about.
fn states(dump: &str) -> BTreeMap<String, State> {
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    for (part, count) in judge::parts(dump) {
        let Some(schema) = schema_of(&part) else { continue };
        let part = part.replace(&schema, "q");
        // The values of sequences are shared out among regions.
        if part.starts_with("SELECT pg_catalog.setval(") {
            continue;
        }
        let mut lines: Vec<String> = part.lines().map(str::to_string).collect();
        if part.starts_with("INSERT INTO q.numbered ") {
            lines.iter_mut().for_each(|line| *line = without_numbers(line));
        }
        if part.starts_with("INSERT ") {
            lines.sort_unstable();
        }
        *states.entry(schema).or_default().entry(lines.join("\n")).or_default() += count;
    }
    states
}

/// A row of `numbered` by its text alone: the other two values are from sequences.
fn without_numbers(line: &str) -> String {
    line.rsplit_once(", ").map_or(line, |(_, text)| text).to_string()
}

/// The first name of the form `q12t` in a text.
fn schema_of(text: &str) -> Option<String> {
    let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c: char| !named(c)).find_map(|word| {
        let digits = word.strip_prefix('q')?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
        let rest = &digits[end + 1..];
        (rest.is_empty() || rest.starts_with('_')).then(|| word[..=end + 1].to_string())
    })
}

/// Drops what the pairs have made, according to the server's own catalogs.
async fn clean_up(admin: &Client) -> Result<()> {
    let drops = "select format('drop publication %I', pubname) from pg_publication
        union all select format('select lo_unlink(%s)', oid) from pg_largeobject_metadata
        union all select format('rollback prepared %L', gid) from pg_prepared_xacts
        union all select format('drop schema %I cascade', nspname) from pg_namespace where nspname ~ '^q[0-9]'";
    for row in sql::rows(admin, drops).await? {
        let mut tries = 0;
        while let Err(failure) = run_sql(admin, &row[0]).await {
            tries += 1;
            let lost = matches!(&failure, Failure::Refused { state, .. } if state == "40001" || state == "55P03");
            ensure!(lost && tries < TRIES_MAX, "{}: {failure}", row[0]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_part_is_found() {
        assert_eq!(schema_of("CREATE TABLE q12t.made (q int)").as_deref(), Some("q12t"));
        assert_eq!(schema_of("ALTER TABLE public.q1 ADD q7a_own.x").as_deref(), Some("q7a"));
        assert_eq!(schema_of("CREATE TABLE qt.quick ()"), None);
    }
}
