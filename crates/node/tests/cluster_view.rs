//! `GET /cluster`: one node tells how all are, and what it knows of those that do not say.

use crate::common::{http, wait_for, Cluster};
use anyhow::{ensure, Context, Result};
use serde_json::Value;

async fn view(cluster: &Cluster, of: usize) -> Result<Value> {
    Ok(serde_json::from_str(&http(cluster.configs[of].http, "GET", "/cluster", "").await?)?)
}

fn heard(view: &Value) -> Vec<&str> {
    view["members"].as_array().into_iter().flatten().filter_map(|m| m["heard"].as_str()).collect()
}

/// Of `/metrics`: the value of the first sample that begins and goes on so.
fn metric(text: &str, name: &str, label: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(label))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test]
async fn one_node_tells_of_all_and_of_those_that_are_silent_what_is_known() -> Result<()> {
    let mut cluster = Cluster::start(1.0)?;
    cluster.preferred_leads().await?;
    // The ports of the others need not be reachable: they are asked as peers.
    for asked in 0..3 {
        wait_for("all to be heard", || async {
            let view = view(&cluster, asked).await?;
            ensure!(heard(&view) == ["now"; 3], "{view}");
            let members = view["members"].as_array().context("members")?;
            for (id, m) in (1u64..).zip(members) {
                ensure!(m["id"] == id && m["report"]["node"] == id && m["report_age_ms"] == 0.0, "{m}");
                ensure!(m["asked"] == (id == asked as u64 + 1) && m["leads"] == (id == 1), "{m}");
                ensure!(m["report"]["certificate"]["days_left"].as_i64().is_some_and(|days| days > 3_000), "{m}");
            }
            ensure!(view["schema"] == 1 && view["node"] == asked as u64 + 1, "{view}");
            ensure!(view["leader"]["node"] == 1 && view["leader"]["preferred_by"] == "operator", "{view}");
            ensure!(view["quorum"]["may_fail"] == 1 && view["quorum"]["majority"] == 2, "{view}");
            ensure!(view["round_trips"].as_array().map(Vec::len) == Some(3), "{view}");
            ensure!(view["problems"] == serde_json::json!([]), "{view}");
            let text = http(cluster.configs[asked].http, "GET", "/metrics", "").await?;
            let left = |of| metric(&text, "onetrip_certificate_left_seconds{", of).map(|s| s / 86_400.0);
            ensure!(left("of=\"node\"") > Some(3_000.0) && left("of=\"authority\"") > Some(7_000.0), "{text}");
            let disk = |name| metric(&text, name, "disk=\"log\"");
            let (free, size) = (disk("onetrip_disk_free_bytes{"), disk("onetrip_disk_size_bytes{"));
            ensure!(free > Some(0.0) && size > free, "{text}");
            Ok(())
        })
        .await?;
    }

    // Cut from the others, it is still connected to nobody; they show what it said last.
    cluster.stop_node(2).await?;
    let last = wait_for("it to be away", || async {
        let view = view(&cluster, 0).await?;
        ensure!(heard(&view) == ["now", "now", "not_connected"], "{view}");
        ensure!(view["quorum"]["reachable"] == 2 && view["quorum"]["may_fail"] == 0, "{view}");
        let gone = view["members"][2].clone();
        ensure!(gone["report"]["node"] == 3 && gone["report_age_ms"].as_f64().is_some_and(|age| age > 0.0), "{gone}");
        let problems = view["problems"].to_string();
        ensure!(
            problems.contains("member 3 in r3 is not connected") && problems.contains("commits stop"),
            "{problems}"
        );
        ensure!(!problems.contains("os error"), "{problems}");
        Ok(gone)
    })
    .await?;
    wait_for("its report to grow older", || async {
        let age = view(&cluster, 0).await?["members"][2]["report_age_ms"].as_f64();
        ensure!(age > last["report_age_ms"].as_f64());
        Ok(())
    })
    .await?;

    // Without a majority a node still answers.
    cluster.stop_node(1).await?;
    wait_for("no majority", || async {
        let view = view(&cluster, 0).await?;
        ensure!(view["quorum"]["may_fail"] == -1 && view["leader"]["node"].is_null(), "{view}");
        ensure!(view["leader"]["why"] == "there is no majority", "{view}");
        Ok(())
    })
    .await?;
    cluster.start_node(1)?;
    cluster.start_node(2)?;
    wait_for("all to be heard again", || async {
        let view = view(&cluster, 0).await?;
        ensure!(heard(&view) == ["now"; 3] && view["problems"] == serde_json::json!([]), "{view}");
        Ok(())
    })
    .await?;
    cluster.stop().await
}

/// A port that another program has is an error before the log is opened, so also before anything is written.
#[tokio::test]
async fn a_taken_peer_port_is_found_before_the_log_is_opened() -> Result<()> {
    let mut cluster = Cluster::prepare(0.0)?;
    let taken = std::net::TcpListener::bind(cluster.configs[0].listen)?;
    let error = cluster.start_node(0).expect_err("the port is taken").to_string();
    ensure!(error.contains("the peer port") && error.contains(&cluster.configs[0].listen.to_string()), "{error}");
    ensure!(!cluster.configs[0].data_dir.join("log").exists(), "the log was opened");
    drop(taken);
    cluster.start_node(0)?;
    cluster.stop().await
}
