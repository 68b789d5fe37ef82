//! `onetrip check` on real clusters: tables under load are equal, and a row that differs is named.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use onetrip_lab::{Cluster, Node};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_onetrip-lab");

async fn check(cluster: &Cluster) -> Result<(Option<i32>, Value)> {
    let data = cluster.data();
    let output = tokio::process::Command::new(BIN).args(["check", "--json", "--data"]).arg(&data).output().await?;
    let result = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("check said {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output.status.code(), result))
}

/// Changes a stopped node's tables behind Onetrip's back: a single-user server has no shared memory of the extension,
/// so nothing is captured.
fn behind_its_back(node: &Node, statement: &str) -> Result<Output> {
    use std::io::Write;
    let owner = std::fs::metadata(node.postgres_data())?;
    let mut command = Command::new(onetrip_lab::postgres_bin().join("postgres"));
    command.arg("--single").arg("-D").arg(node.postgres_data()).args(["-c", "exit_on_error=on", "onetrip"]);
    command.current_dir(node.folder()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if nix::unistd::geteuid().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let mut child = command.spawn()?;
    child.stdin.take().context("stdin is piped")?.write_all(format!("{statement}\n").as_bytes())?;
    Ok(child.wait_with_output()?)
}

/// Goal: tables that are written to all the time compare equal at one position, again and again.
#[tokio::test]
async fn tables_under_load_are_equal_at_one_position() -> Result<()> {
    let cluster = Cluster::builder().binary(BIN).copied_servers(true).start().await?;
    let writer = cluster.connect(0).await?;
    writer
        .batch_execute(
            "create table counted (id int primary key, n int, at timestamptz default now());
             insert into counted select i, 0 from generate_series(1, 50) i;
             create table \"Odd name\" (a text, b bytea);
             insert into \"Odd name\" values ('x', '\\x00ff'), (null, null), (null, null)",
        )
        .await?;
    cluster.converge().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for region in 0..3 {
        let client = cluster.connect(region).await?;
        let stop = Arc::clone(&stop);
        writers.push(tokio::spawn(async move {
            let mut written = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let id = i32::try_from(written % 50 + 1).expect("it is small");
                match client.execute("update counted set n = n + 1, at = now() where id = $1", &[&id]).await {
                    Ok(_) => written += 1,
                    // Two regions may meet in one row; one of them loses, which does not matter here.
                    Err(why) => ensure!(!client.is_closed(), "region {region}: {why}"),
                }
            }
            Ok(written)
        }));
    }
    for _ in 0..5 {
        let (code, result) = check(&cluster).await?;
        assert_eq!((code, &result["equal"]), (Some(0), &Value::Bool(true)), "{result}");
        let compared = result["tables"].as_array().context("the tables")?;
        for (table, rows) in [("public.counted", 50), ("public.\"Odd name\"", 3)] {
            let is_it = |compared: &&Value| compared["table"] == table && compared["rows"] == rows;
            assert_eq!(compared.iter().filter(is_it).count(), 1, "{table}: {result}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await?? > 0, "every region wrote meanwhile");
    }
    cluster.stop().await
}

/// Goal: a row that was changed behind Onetrip's back is found and named, with both values and both regions.
#[tokio::test]
async fn a_row_changed_behind_its_back_is_named() -> Result<()> {
    let cluster = Cluster::builder().binary(BIN).copied_servers(true).start().await?;
    let writer = cluster.connect(0).await?;
    writer
        .batch_execute(
            "create table fine (id int primary key); insert into fine values (1);
             create table items (id int primary key, name text);
             insert into items select i, 'item ' || i from generate_series(1, 2000) i",
        )
        .await?;
    cluster.converge().await?;
    cluster.node(1).stop().await?;
    let output = behind_its_back(cluster.node(1), "update items set name = 'forged' where id = 1234")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cluster.node(1).restart().await?;
    cluster.wait_ready().await?;

    let (code, result) = check(&cluster).await?;
    assert_eq!((code, &result["equal"]), (Some(1), &Value::Bool(false)), "{result}");
    assert_eq!(result["different"], serde_json::json!(["public.items"]));
    let difference = &result["difference"];
    assert_eq!(difference["key"], "(id) = (1234)");
    assert_eq!(difference["regions"], serde_json::json!(["a", "b"]));
    assert_eq!(difference["rows"], serde_json::json!(["(1234,\"item 1234\")", "(1234,forged)"]));

    let text = tokio::process::Command::new(BIN).args(["check", "--data"]).arg(cluster.data()).output().await?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("table public.items, row (id) = (1234)"), "{text}");
    cluster.stop().await
}

/// Goal: a row that one region lacks is found as well, in a table without a primary key.
#[tokio::test]
async fn a_missing_row_is_named_without_a_key() -> Result<()> {
    let cluster = Cluster::builder().binary(BIN).copied_servers(true).start().await?;
    let writer = cluster.connect(0).await?;
    writer.batch_execute("create table lines (word text); insert into lines values ('a'), ('b'), ('b'), ('c')").await?;
    cluster.converge().await?;
    cluster.node(2).stop().await?;
    // A table without a key refuses DELETE, so region c gets a row that the others lack.
    let output = behind_its_back(cluster.node(2), "insert into lines values ('b')")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cluster.node(2).restart().await?;
    cluster.wait_ready().await?;
    let (code, result) = check(&cluster).await?;
    assert_eq!(code, Some(1));
    assert_eq!(result["difference"]["rows"], serde_json::json!([null, "(b)"]), "{result}");
    assert_eq!(result["difference"]["regions"], serde_json::json!(["a", "c"]), "{result}");
    cluster.stop().await
}
