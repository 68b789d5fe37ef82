//! The whole cluster from one node: the command, the views, and the lag of a region that was cut off.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_client::http::get_json;
use serde_json::Value;

use crate::lab::{number, onetrip, start, text, until, Lab, SOON};

async fn view(lab: &Lab, of: usize) -> anyhow::Result<Value> {
    get_json(lab.node(of).http(), "/cluster", Duration::from_secs(5)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_tells_how_all_are() {
    let lab = start("cluster_view", "one node's word about all: command, views, lag after an outage").await;
    let session = lab.session(0).await;
    session.must("create table t (id int primary key); insert into t values (0)").await;
    lab.everywhere().await;
    what_the_servers_count_is_told(&lab).await;
    the_views_say_the_same(&lab).await;
    the_command_asks_one_node(&lab).await;
    who_was_cut_off_is_as_late_as_it_is(&lab).await;
    lab.check_equal(1).await;
}

async fn what_the_servers_count_is_told(lab: &Lab) {
    until("node 2 to tell what node 1's server counted", SOON, || async {
        let view = view(lab, 1).await?;
        let counts = &view["members"][0]["report"]["counts"];
        let whole = counts["commits"].as_array().context("commits")?.iter().find(|c| c["part"] == "whole");
        let buckets = counts["histogram"].as_array().context("histogram")?;
        let counted: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
        ensure!(whole.is_some_and(|c| c["count"] == counted) && counted >= 1, "{counts}");
        ensure!(counts["version"].as_str().is_some_and(|v| v.starts_with(char::is_numeric)), "{counts}");
        ensure!(counts["wal_bytes"].as_u64() > Some(0) && counts["jobs"] == serde_json::json!([]), "{counts}");
        Ok(true)
    })
    .await
    .unwrap();
}

async fn the_views_say_the_same(lab: &Lab) {
    let session = lab.session(2).await;
    let rows = |sql: &'static str| async { number(&session, sql).await.unwrap() };
    assert_eq!(rows("select count(*) from onetrip.members where heard = 'now' and postgres_state = 'ready'").await, 3);
    assert_eq!(rows("select count(*) from onetrip.members where leads").await, 1);
    assert!(rows("select sum(commits) from onetrip.members").await >= 1);
    assert_eq!(rows("select count(*) from onetrip.links where connected and round_trip_ms > 0").await, 6);
    let late = "select count(*) from onetrip.lag where entries = 0 and behind = interval '0' and caught_up";
    until("all to have caught up", SOON, || async { Ok(number(&session, late).await? == 3) }).await.unwrap();
    let quorum = "select onetrip.cluster() -> 'quorum' ->> 'may_fail'";
    assert_eq!(text(&session, quorum).await.unwrap(), "1");
    // Addresses are for those who monitor.
    session.must("create role plain; create role watches; grant pg_monitor to watches").await;
    for (role, may) in [("plain", false), ("watches", true)] {
        session.must(&format!("set role {role}")).await;
        for what in ["onetrip.members", "onetrip.links", "onetrip.lag", "onetrip.cluster()"] {
            let sql = format!("select count(*) from {what}");
            match may {
                true => assert!(number(&session, &sql).await.unwrap() >= 1, "{what}"),
                false => assert_eq!(session.refused(&sql).await.code().code(), "42501", "{what}"),
            }
        }
        session.must("reset role").await;
    }
    session.must("drop role plain; drop role watches").await;
}

async fn the_command_asks_one_node(lab: &Lab) {
    let socket = lab.node(2).folder().join("admin.sock").display().to_string();
    let data = lab.node(2).folder().display().to_string();
    for by in [["--http", lab.node(2).http()], ["--socket", &socket], ["--data", &data]] {
        let said = onetrip(&[&["status"], &by[..]].concat()).await;
        assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
        for region in ["as node 3 in c sees it: 3 of 3 voters", "1     a", "2     b", "3     c", "leader: node"] {
            assert!(said.stdout.contains(region), "{region}: {}", said.stdout);
        }
        assert!(said.stdout.lines().filter(|l| !l.starts_with("leader:")).all(|l| l.chars().count() <= 120));
    }
    let json = onetrip(&["status", "--http", lab.node(0).http(), "--json"]).await;
    let cluster: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&cluster["schema"], cluster["members"].as_array().map(Vec::len)), (&1.into(), Some(3)));
}

/// Region c misses entries for some seconds, and then its apply worker stands still.  What it shows is as old as the
/// first entry that it missed, not as its node's own knowledge of it.
async fn who_was_cut_off_is_as_late_as_it_is(lab: &Lab) {
    let worker = "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'";
    let worker = number(&lab.session(2).await.client, worker).await.unwrap();
    let worker = Pid::from_raw(i32::try_from(worker).expect("a process id"));
    for other in [0, 1] {
        lab.cut_link(other, 2, true).await.expect("cut the link");
    }
    let writer = lab.session(0).await;
    let missed = Instant::now();
    writer.must("insert into t values (1)").await;
    kill(worker, Signal::SIGSTOP).expect("SIGSTOP");
    // Others count from here too: what is told is older than two seconds.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let away = missed.elapsed();
    for other in [0, 1] {
        lab.cut_link(other, 2, false).await.expect("mend the link");
    }
    // What it says of itself, alone.
    until("c to know how old what it lacks is", SOON, || async {
        let since = missed.elapsed();
        let c = lab.node(2).status().await?;
        let lag = Duration::from_secs_f64(c["lag_ms"].as_f64().unwrap_or(0.0) / 1_000.0);
        ensure!(lag <= missed.elapsed() + Duration::from_millis(100), "{lag:?} is more than {:?}", missed.elapsed());
        Ok(c["lag_entries"].as_u64() >= Some(1) && lag + away / 2 >= since)
    })
    .await
    .unwrap();
    let said = view(lab, 0).await.expect("/cluster")["members"][2].clone();
    assert!(said["heard"] == "now" && said["lag_ms"].as_f64() > Some(away.as_secs_f64() * 500.0), "{said}");
    kill(worker, Signal::SIGCONT).expect("SIGCONT");
    until("c to have caught up", SOON, || async {
        let c = view(lab, 0).await?["members"][2].clone();
        Ok(c["lag_entries"] == 0 && c["lag_ms"] == 0.0)
    })
    .await
    .unwrap();
}
