//! Rows that clients in all regions change at the same time.
//!
//! Two questions.  How many transactions fail and how many get done, with each way to deal with conflicts: optimistic,
//! with statements run again, with row locks; beside a PostgreSQL to which the clients have the same distances as to
//! the leader.  Each transaction is one statement, and one that fails is not repeated.  And who gets a transfer
//! between two rows through, and after how long, if he repeats it for as long as it fails?

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use onetrip_lab::page::{self, paragraph};
use tokio_postgres::error::SqlState;
use tokio_postgres::Client;

use crate::figure::Figure;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

/// Where PostgreSQL's primary is: where Onetrip's leader goes.
const HOME: usize = 1;
/// Clients in each region.
const IN_EACH: usize = 10;
/// How many times longer than others these measurements are: the far region gets few done.
const LONGER: u64 = 2;

struct Case {
    name: &'static str,
    rows: usize,
    statement: &'static str,
    /// Published lines: who, commits per second of the clients in each region, and the share that failed.
    published: &'static [(&'static str, [&'static str; 3], &'static str)],
}

const ONE: &str = "update hot set v = v + 1 where id = :a";
const TWO: &str = "update hot set v = v + case id when :a then 1 else -1 end where id in (:a, :b)";
const CASES: [Case; 3] = [
    Case {
        name: "one of 1,000 rows",
        rows: 1000,
        statement: ONE,
        published: &[
            ("Aurora DSQL *", ["433", "265", "no endpoint"], "1.21 to 1.65 %"),
            ("YugabyteDB *", ["491", "283", "-"], "0"),
        ],
    },
    Case { name: "one of 10 rows", rows: 10, statement: ONE, published: &[] },
    Case { name: "two of 10 rows", rows: 10, statement: TWO, published: &[] },
];

const WAYS: [(&str, &str); 3] = [
    ("optimistic", "-c onetrip.statement_retries=0"),
    ("statements run again", "-c onetrip.statement_retries=3"),
    ("locking", "-c onetrip.statement_retries=0 -c onetrip.concurrency=locking"),
];

/// Rows, and clients in each region, of transfers that are repeated.
const TRANSFERS: [(usize, usize); 3] = [(2, 1), (2, 4), (10, 10)];

impl Case {
    /// For pgbench; `b` is another row than `a`.
    fn script(&self) -> String {
        let last = self.rows - 1;
        format!("\\set a random(0, {last})\n\\set b (:a + random(1, {last})) % {}\n{};\n", self.rows, self.statement)
    }
}

/// Keys of the table before may still be kept for a region.
async fn make_table(client: &Client, rows: usize) -> Result<()> {
    let table = format!(
        "drop table if exists hot; create table hot (id int primary key, v bigint not null);
         insert into hot select g, 0 from generate_series(0, {}) g",
        rows - 1
    );
    while let Err(e) = client.batch_execute(&table).await {
        ensure!(e.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE), "cannot make the table: {e:?}");
    }
    Ok(())
}

/// How many of Onetrip's transactions on the table have failed in all regions, by the way in which they lost.
async fn losses(stand: &Stand) -> Result<[i64; 4]> {
    let mut losses = [0; 4];
    for region in 0..stand.cluster.nodes().len() {
        let client = stand.cluster.connect(region).await?;
        let row = client
            .query_one(
                "select coalesce(sum(lost_at_commit), 0)::bigint, coalesce(sum(evicted), 0)::bigint,
                        coalesce(sum(reserved), 0)::bigint, coalesce(sum(too_old), 0)::bigint
                   from onetrip.conflicts_by_table",
                &[],
            )
            .await?;
        for (n, sum) in losses.iter_mut().enumerate() {
            *sum += row.try_get::<_, i64>(n)?;
        }
    }
    Ok(losses)
}

/// "3 at COMMIT, 2 kept for another region"
fn how(before: [i64; 4], after: [i64; 4]) -> String {
    let names = ["at COMMIT", "evicted", "kept for another region", "too old"];
    let some = (0..4).filter(|n| after[*n] > before[*n]).map(|n| format!("{} {}", after[n] - before[n], names[n]));
    some.collect::<Vec<_>>().join(", ")
}

/// One way's line of a table: commits per second in each region and in all, failures, and times.
fn line(case: &str, way: &str, figures: &[Figure], how: String) -> Vec<String> {
    let mut line = vec![case.to_string(), way.to_string()];
    line.extend(figures.iter().map(|f| format!("{:.0}", f.measured.tps)));
    let all: f64 = figures.iter().map(|f| f.measured.tps).sum();
    let (done, failed) =
        figures.iter().fold((0, 0), |(d, f), figure| (d + figure.measured.transactions, f + figure.measured.failed));
    let share = 100.0 * failed as f64 / (done + failed).max(1) as f64;
    line.extend([format!("{all:.0}"), if failed == 0 { "0".into() } else { format!("{share:.2} %") }, how]);
    line.extend(figures.iter().map(|f| format!("{:.0}, {:.0}", f.measured.p50_ms, f.measured.p99_ms)));
    line
}

async fn ways(bench: &Bench, stand: &Stand) -> Result<(String, Vec<Figure>)> {
    let regions = stand.cluster.nodes().len();
    let name = |region: usize| stand.region_name(region);
    let mut head = vec!["each changes".to_string(), "way".into()];
    head.extend((0..regions).map(|r| format!("{}, per s", name(r))));
    head.extend(["all", "failed", "how"].map(String::from));
    head.extend((0..regions).map(|r| format!("{}, p50, p99 ms", name(r))));
    let (mut lines, mut figures) = (vec![head], Vec::new());
    for case in &CASES {
        for (_, client) in stand.clients().await? {
            make_table(&client, case.rows).await?;
        }
        stand.converge().await?;
        let loads = |way: &str| -> Vec<Load> {
            let load = |region| Load {
                region,
                case: format!("{}, {way}", case.name),
                clients: IN_EACH,
                seconds: bench.seconds * LONGER,
                script: case.script(),
            };
            (0..regions).map(load).collect()
        };
        for (way, settings) in WAYS {
            let before = losses(stand).await?;
            let measured = stand.measure_onetrip_together(&loads(way), settings).await;
            let measured = measured.with_context(|| format!("measure {}, {way}", case.name))?;
            lines.push(line(case.name, way, &measured, how(before, losses(stand).await?)));
            figures.extend(measured);
        }
        for measured in stand.compare_together(&loads("")).await? {
            lines.push(line(case.name, &measured[0].system.clone(), &measured, String::new()));
            figures.extend(measured);
        }
        for (who, per_second, failed) in case.published {
            let mut line = vec![case.name.to_string(), who.to_string()];
            line.extend(per_second.map(String::from));
            line.extend(["-", failed, ""].map(String::from));
            line.extend(vec!["-".to_string(); regions]);
            lines.push(line);
        }
    }
    let text = paragraph(&format!(
        "Clients in all regions at once, {IN_EACH} in each, {} s for each line; each transaction is one UPDATE, and one \
         that fails with 40001 or 40P01 is counted and not repeated. Onetrip's clients are at the server of their own \
         region; those of PostgreSQL have the distance to {}, where its primary is and Onetrip's leader goes. The \
         limit of a transaction that waits for nobody is the round trip to the nearest majority: 10, 10 and 50 ms. \
         \\*: published figures, of 10 clients in one region at a time and no others.",
        bench.seconds * LONGER,
        name(HOME)
    ));
    Ok((format!("{text}\n{}", page::table(&lines)), figures))
}

#[derive(Default)]
struct Done {
    took_ms: Vec<f64>,
    failed: usize,
    open_ms: f64,
}

/// The rows of one transfer, the lower first, so that the clients of one region never deadlock.
fn pair(client: usize, n: usize, rows: usize) -> (usize, usize) {
    let a = (client * 7 + n * 3) % rows;
    let b = (a + 1 + (client + n) % (rows - 1)) % rows;
    (a.min(b), a.max(b))
}

async fn transfers(client: Client, number: usize, rows: usize, end: Instant) -> Result<Done> {
    let mut done = Done::default();
    for n in 0.. {
        let (a, b) = pair(number, n, rows);
        let transfer =
            format!("begin; update hot set v = v - 1 where id = {a}; update hot set v = v + 1 where id = {b}; commit");
        let first = Instant::now();
        loop {
            match client.batch_execute(&transfer).await {
                Ok(()) => break,
                Err(e) if e.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => done.failed += 1,
                Err(e) => bail!("a transfer failed otherwise: {e:?}"),
            }
            client.batch_execute("rollback").await?;
            if Instant::now() > end {
                done.open_ms = first.elapsed().as_secs_f64() * 1e3;
                return Ok(done);
            }
        }
        done.took_ms.push(first.elapsed().as_secs_f64() * 1e3);
        if Instant::now() > end {
            break;
        }
    }
    Ok(done)
}

async fn repeated(bench: &Bench, stand: &Stand) -> Result<String> {
    let seconds = bench.seconds * LONGER;
    let head =
        ["rows", "clients in each", "region", "done", "p50 ms", "p99", "slowest", "failed tries", "longest open"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for (rows, clients) in TRANSFERS {
        make_table(&stand.cluster.connect(HOME).await?, rows).await?;
        stand.cluster.converge().await?;
        let (end, mut running) = (Instant::now() + Duration::from_secs(seconds), Vec::new());
        for number in 0..stand.cluster.nodes().len() * clients {
            let client = stand.cluster.connect(number / clients).await?;
            running.push(tokio::spawn(transfers(client, number, rows, end)));
        }
        let mut regions: Vec<Done> = stand.cluster.nodes().iter().map(|_| Done::default()).collect();
        for (number, client) in running.into_iter().enumerate() {
            let (its, region) = (client.await??, &mut regions[number / clients]);
            region.took_ms.extend(its.took_ms);
            region.failed += its.failed;
            region.open_ms = region.open_ms.max(its.open_ms);
        }
        for (region, mut done) in regions.into_iter().enumerate() {
            done.took_ms.sort_unstable_by(f64::total_cmp);
            let at = |share: f64| {
                let place = (done.took_ms.len() as f64 * share) as usize;
                done.took_ms.get(place).or(done.took_ms.last()).map_or("none".into(), |ms| format!("{ms:.0}"))
            };
            let mut line = vec![rows.to_string(), clients.to_string(), stand.region_name(region).into()];
            line.extend([done.took_ms.len().to_string(), at(0.5), at(0.99), at(1.0)]);
            line.extend([done.failed.to_string(), format!("{:.0}", done.open_ms)]);
            lines.push(line);
        }
        stand.cluster.converge().await?;
        let client = stand.cluster.connect(HOME).await?;
        let sum = client.query_one("select sum(v)::bigint from hot", &[]).await?;
        ensure!(sum.try_get::<_, i64>(0).context("read the sum")? == 0, "money was made or lost");
    }
    let text = paragraph(&format!(
        "Transfers between two of a few rows, each a transaction of two statements in one message, repeated at once \
         for as long as it fails with 40001; {seconds} s. Times are from the first try to the success; the longest \
         open one had been tried for that long when the time was over:"
    ));
    Ok(format!("{text}\n{}", page::table(&lines)))
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let stand = Stand::start(&bench.binary, stand::topology("us.toml")?, HOME, true).await?;
    let (ways, figures) = ways(bench, &stand).await?;
    let repeated = repeated(bench, &stand).await?;
    stand.cluster.check().await?;
    stand.stop().await?;
    Ok(Section {
        heading: "Hot rows",
        text: format!("{ways}\n{repeated}"),
        shown: String::new(),
        figures,
        files: vec![],
    })
}
