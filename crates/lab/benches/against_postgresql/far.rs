//! Reads and updates of a region that is far from the others, beside published figures of other databases and beside
//! a PostgreSQL whose primary is far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use anyhow::{Context, Result};
use onetrip_lab::page::{self, paragraph};

use crate::figure::Figure;
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

/// Where PostgreSQL's primary is, and where the client is.
const HOME: usize = 0;
const CLIENT: usize = 1;

const TABLE: &str =
    "create table far (id int primary key, value int); insert into far select i, i from generate_series(1, 1000) i";

/// A transaction of one message, with a random first key.
fn transaction(read: &str, statement: &str) -> String {
    format!("\\set id random(1, 901)\nbegin \\; set local onetrip.read = {read} \\; {statement} \\; commit;\n")
}

const SELECT: &str = "select * from far where id between :id and :id + 99";
const UPDATE: &str = "update far set value = value + 1 where id between :id and :id + 99";
const ONE_ROW: &str = "select value from far where id = :id";

fn load(bench: &Bench, case: &str, script: String) -> Load {
    Load { region: CLIENT, case: case.into(), clients: 1, seconds: bench.seconds, script }
}

/// Gives the client's region a read lease, and waits until it has it.
async fn lease(bench: &Bench, stand: &Stand) -> Result<()> {
    stand.hold_leases(&bench.binary, &[CLIENT]).await
}

async fn onetrip(bench: &Bench, stand: &Stand, case: &str, script: String) -> Result<Figure> {
    stand.measure_onetrip(&load(bench, case, script)).await.with_context(|| format!("measure {case}"))
}

fn mean(figure: &Figure) -> String {
    let ms = figure.measured.mean_ms;
    if ms < 10.0 {
        format!("{ms:.2}")
    } else {
        format!("{ms:.0}")
    }
}

/// A line of a table: what was done, the limit, Onetrip's mean and its p99, and what stands beside it.
fn line<const N: usize>(figure: &Figure, limit_ms: f64, beside: [String; N]) -> Vec<String> {
    let mut line = vec![figure.case.clone(), format!("{limit_ms:.0}"), mean(figure)];
    line.push(format!("{:.1}", figure.measured.p99_ms));
    line.extend(beside);
    line
}

async fn atlantic(bench: &Bench) -> Result<(String, Vec<Figure>)> {
    let stand = Stand::start(&bench.binary, stand::topology("atlantic.toml")?, HOME, false).await?;
    stand.run_sql(TABLE).await?;
    let plain = |statement: &str| format!("\\set id random(1, 901)\n{statement};\n");
    let read = stand.compare(&load(bench, "read", plain(SELECT))).await?;
    let fresh = onetrip(bench, &stand, "read fresh", transaction("fresh", SELECT)).await?;
    let update = stand.compare(&load(bench, "update", plain(UPDATE))).await?;
    lease(bench, &stand).await?;
    let leased = onetrip(bench, &stand, "read fresh, with a read lease", transaction("fresh", SELECT)).await?;
    let leased_update = onetrip(bench, &stand, "update, with a read lease", plain(UPDATE)).await?;
    let names = [stand.region_name(CLIENT).to_string(), stand.region_name(HOME).to_string()];
    stand.stop().await?;

    let ([read_far, read], [update_far, update]) = (&read[..], &update[..]) else {
        anyhow::bail!("two systems were to be measured")
    };
    let head =
        ["", "limit", "Onetrip, mean", "p99", "PostgreSQL, ANY 1", "YugabyteDB, leader far", "and an index near"];
    let mut lines = vec![head.map(String::from).to_vec()];
    let none = || ["-".to_string(), "-".into(), "-".into()];
    lines.push(line(read, 0.0, [mean(read_far), "78".into(), "1.1".into()]));
    lines.push(line(&fresh, fresh.limit_ms, none()));
    lines.push(line(&leased, 0.0, none()));
    lines.push(line(update, update.limit_ms, [mean(update_far), "317".into(), "15824".into()]));
    lines.push(line(&leased_update, leased_update.limit_ms, none()));
    let text = paragraph(&format!(
        "A client in {}, 78 ms from {}, where PostgreSQL's primary is, and 197 ms from the third region, reads or \
         changes 100 of 1,000 rows by a range of keys, in autocommit; ms. *limit* is 0 for what needs no other region, \
         and else the round trip to the nearest majority. YugabyteDB's figures are published ones of its \
         range-sharded tables, the leaders in the same region at the same distance: without and with a duplicate covering index \
         whose leaders are near the reader.",
        names[0], names[1]
    ));
    let figures =
        vec![read_far.clone(), read.clone(), fresh, update_far.clone(), update.clone(), leased, leased_update];
    Ok((format!("{text}\n{}", page::table(&lines)), figures))
}

/// Writes rows in another region for as long as the returned flag is up.
async fn write_elsewhere(stand: &Stand) -> Result<(Arc<AtomicBool>, tokio::task::JoinHandle<Result<()>>)> {
    let client = stand.cluster.connect(HOME).await?;
    let going = Arc::new(AtomicBool::new(true));
    let go_on = going.clone();
    let writer = tokio::spawn(async move {
        while go_on.load(Ordering::Relaxed) {
            client.batch_execute("update far set value = value + 1 where id = 1000").await?;
        }
        Ok(())
    });
    Ok((going, writer))
}

async fn cities(bench: &Bench) -> Result<(String, Vec<Figure>)> {
    let stand = Stand::start(&bench.binary, stand::topology("cities.toml")?, HOME, false).await?;
    stand.run_sql(TABLE).await?;
    let read = |read: &str| transaction(read, ONE_ROW);
    let local = onetrip(bench, &stand, "read", read("local")).await?;
    let fresh = onetrip(bench, &stand, "read fresh", read("fresh")).await?;
    lease(bench, &stand).await?;
    let leased = onetrip(bench, &stand, "read fresh, with a read lease", read("fresh")).await?;
    let (going, writer) = write_elsewhere(&stand).await?;
    let busy = onetrip(bench, &stand, "the same, while another region writes", read("fresh")).await;
    going.store(false, Ordering::Relaxed);
    writer.await??;
    let busy = busy?;
    stand.stop().await?;

    let head = ["", "limit", "Onetrip, mean", "p99", "TiDB"];
    let mut lines = vec![head.map(String::from).to_vec()];
    lines.push(line(&local, 0.0, ["-".to_string()]));
    lines.push(line(&fresh, fresh.limit_ms, ["200, or 100 over one proxy".to_string()]));
    lines.push(line(&leased, 0.0, ["-".to_string()]));
    lines.push(line(&busy, 0.0, ["-".to_string()]));
    let text = paragraph(
        "Three regions 100 ms apart; a client in one of them, where nobody leads, reads one row by its key; ms. TiDB's \
         figures are published ones of its follower reads at that distance.",
    );
    Ok((format!("{text}\n{}", page::table(&lines)), vec![local, fresh, leased, busy]))
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let (near, mut figures) = atlantic(bench).await?;
    let (read, more) = cities(bench).await?;
    figures.extend(more);
    Ok(Section {
        heading: "Far from the others",
        text: format!("{near}\n{read}"),
        shown: String::new(),
        figures,
        files: vec![],
    })
}
