//! What do updates and deletes cost in a table without a primary key?
//!
//! Three regions without distance; a table of 100,000 rows with a primary key, without one but with an index, and
//! without any index.  One region changes rows at random, each in a transaction of its own, or all rows in one
//! statement.  Measured is the time until another region shows all of it, and how long the statements themselves took.
//!
//! `cargo bench -p onetrip-lab --bench whole_rows`; the table goes to standard output.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use onetrip_lab::Cluster;
use tokio_postgres::Client;

const ROWS: usize = 100_000;
const SINGLE: usize = 2_000;
/// Without an index each of them reads the table.
const SINGLE_BY_SCAN: usize = 200;
/// A round takes longer than this only if something is wrong.
const LONGEST: Duration = Duration::from_secs(300);

struct Took {
    rows: usize,
    here: Duration,
    everywhere: Duration,
}

async fn timed(cluster: &Cluster, client: &Client, rows: usize, statements: &[String]) -> Result<Took> {
    cluster.converge().await?;
    let began = Instant::now();
    for statement in statements {
        client.batch_execute(statement).await?;
    }
    let here = began.elapsed();
    cluster.converge().await?;
    let everywhere = began.elapsed();
    ensure!(everywhere < LONGEST, "{rows} rows took {everywhere:?}");
    Ok(Took { rows, here, everywhere })
}

async fn measure() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    cluster.settled().await?;
    let client = cluster.connect(0).await?;
    println!("| table | change | rows | rows/s where it runs | rows/s until shown everywhere |");
    println!("|---|---|---|---|---|");
    for (table, key, single) in
        [("keyed", "primary key (id)", SINGLE), ("indexed", "", SINGLE), ("bare", "", SINGLE_BY_SCAN)]
    {
        let columns = ["id int", "n int", "note text", key].into_iter().filter(|c| !c.is_empty()).collect::<Vec<_>>();
        client.batch_execute(&format!("create table {table} ({})", columns.join(", "))).await?;
        if table == "indexed" {
            client.batch_execute("create index on indexed (id)").await?;
        }
        let insert = format!("insert into {table} select g, 0, 'row ' || g from generate_series(1, {ROWS}) g");
        client.batch_execute(&insert).await?;
        let step = ROWS / single;
        // The rows of a table without an index are found by their place, so that only the others have to search.
        let ctids = client
            .query(&format!("select ctid::text from {table} where id % {step} = 1 order by md5(note)"), &[])
            .await?;
        let one_by_one: Vec<String> = ctids
            .iter()
            .map(|row| format!("update {table} set n = n + 1 where ctid = '{}'", row.get::<_, String>(0)))
            .collect();
        let changes = [
            ("UPDATE of one row", single, one_by_one),
            ("UPDATE of all rows", ROWS, vec![format!("update {table} set n = n + 1")]),
            ("DELETE of all rows", ROWS, vec![format!("delete from {table}")]),
        ];
        for (change, rows, statements) in changes {
            let took = timed(&cluster, &client, rows, &statements).await?;
            let rate = |time: Duration| took.rows as f64 / time.as_secs_f64();
            println!("| {table} | {change} | {rows} | {:.0} | {:.0} |", rate(took.here), rate(took.everywhere));
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}
