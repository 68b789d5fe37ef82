//! The demo's own table: published figures of other databases beside the same workload here, at the same distances.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use anyhow::{ensure, Context, Result};
use onetrip_lab::page::{self, paragraph};
use onetrip_lab::published::{connecting, Published};
use onetrip_lab::report::Report;

use crate::{Bench, Section};

async fn demo(bench: &Bench) -> Result<Report> {
    let folder = tempfile::Builder::new().prefix("onetrip-bench-").tempdir_in("/var/tmp")?;
    // The demo switches to another user, who must be able to reach its folder.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let json = folder.path().join("demo.json");
    let demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(["--once", "--seconds", &bench.seconds.to_string(), "--json"])
        .arg(&json)
        .arg("--data")
        .arg(folder.path().join("data"))
        .arg("--bin-dir")
        .arg(onetrip_lab::postgres_bin())
        .env("ONETRIP_BIN", &bench.binary)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await?;
    ensure!(demo.success(), "the demo failed");
    let text = std::fs::read_to_string(&json).with_context(|| format!("read {}", json.display()))?;
    serde_json::from_str(&text).context("read what the demo measured")
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let report = demo(bench).await?;
    let head = ["connected to", "indexes", "limit", "Onetrip, mean", "ratio", "p99", "Aurora DSQL", "YugabyteDB"];
    let mut lines = vec![head.map(String::from).to_vec()];
    let published = |figure: &Option<Published>| figure.map_or("-".to_string(), |p| format!("{:.1}", p.mean_ms));
    for row in &report.rows {
        lines.push(vec![
            row.connected_to.clone(),
            if row.secondary_index { "+ one secondary" } else { "primary key" }.into(),
            format!("{:.0}", row.limit_ms),
            format!("{:.1}", row.measured.mean_ms),
            row.ratio_to_limit.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            format!("{:.1}", row.measured.p99_ms),
            published(&row.published.aurora_dsql),
            published(&row.published.yugabytedb),
        ]);
    }
    let head = ["connecting 10 clients to", "Onetrip", "Aurora DSQL", "YugabyteDB"];
    let mut connections = vec![head.map(String::from).to_vec()];
    let ms = |ms: Option<f64>| ms.map_or("-".to_string(), |ms| format!("{ms:.0}"));
    for row in report.rows.iter().filter(|row| !row.secondary_index) {
        let (aurora_dsql, yugabytedb) = connecting(&row.connected_to, report.clients);
        let own = ms(row.measured.initial_connection_ms);
        connections.push(vec![row.connected_to.clone(), own, ms(aurora_dsql), ms(yugabytedb)]);
    }
    let about = |measurements: &str| {
        paragraph(&format!(
            "{} clients update one random row of 1,000; they are in us-east-1 and connect to each region in turn (`make \
             demo`). us-east-1 is 10 ms from us-east-2 and 62 ms from us-west-2, and these two are 50 ms apart. *limit* \
             is what the distances take by themselves: the client's round trip to its region, and one from there to \
             the nearest majority; *ratio* is the mean divided by it. The times are in ms. Those of Aurora DSQL and \
             YugabyteDB are [published ones]({measurements}/2026-11-21-first-slice/published.md), measured in their \
             providers' regions at these distances. Our clients connect without TLS and without a password.",
            report.clients
        ))
    };
    let table = page::table(&lines) + "\n" + &page::table(&connections);
    let text = format!("{}\n{table}", about(".."));
    let shown = format!("{}\n{table}", about("docs/measurements"));
    Ok(Section { heading: "Published figures", text, shown, figures: vec![], files: vec![] })
}
