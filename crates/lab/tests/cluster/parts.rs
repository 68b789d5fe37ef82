//! Transactions of megabytes arrive in the log in parts, beside the small commits of all regions, also when the
//! node that they come from, or the leader, is killed between two parts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::lab::{apart, builder, number, start_from, until, Lab, Session, SOON};

/// Rows of about 1,000 bytes that do not compress: 25 MB.
const ROWS: i64 = 25_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transactions_arrive_in_parts_whatever_is_killed_between_them() {
    let about = "25 MB at once from two regions, small commits, nodes killed between two parts";
    let lab = start_from("parts", about, builder().topology(apart(60))).await;
    lab.session(0).await.must("create table big (who int, id int, v bytea, primary key (who, id))").await;
    lab.session(0).await.must("create table small (id bigint generated always as identity primary key, v int)").await;
    lab.everywhere().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for region in 0..3 {
        writers.push(tokio::spawn(write_small(lab.session(region).await, over.clone())));
    }

    let (a, b) = (insert(&lab, 0, 1).await, insert(&lab, 1, 2).await);
    assert!(a.await.expect("region 0") && b.await.expect("region 1"), "nothing was killed yet");
    lab.shows("select count(*) || ' ' || sum(length(v)) from big", &format!("{} {}", 2 * ROWS, 2 * ROWS * 992)).await;

    // Alone it takes a second or so at 60 ms, and it is given six more.
    let hurried = lab.session(2).await;
    hurried.must("set onetrip.commit_timeout = '300ms'").await;
    assert!(insert_by(hurried, 6).await.expect("region 2"), "a large COMMIT has more time");

    // The node that the transaction comes from; another one's waits behind it.
    let (lost, next) = (insert(&lab, 1, 3).await, insert(&lab, 2, 4).await);
    between_parts(&lab).await;
    lab.node(1).kill9().expect("kill the node");
    lab.node(1).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(next.await.expect("region 2"), "the one that waited");
    let outcome = lost.await.expect("region 1");
    println!("parts: killed at its origin, it was {}", if outcome { "committed" } else { "not acknowledged" });

    // The leader; the session may be one of its region.
    let leader = lab.settled().await.unwrap_or_else(|e| panic!("{e:#}"));
    let led = insert(&lab, (leader + 1) % 3, 5).await;
    between_parts(&lab).await;
    lab.node(leader).kill9().expect("kill the leader");
    assert!(led.await.expect("its region"), "another leader takes the rest");
    lab.node(leader).restart().await.unwrap_or_else(|e| panic!("{e:#}"));

    over.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.expect("a writer of small rows") > 0);
    }
    lab.everywhere().await;
    for who in [1, 2, 4, 5, 6] {
        lab.shows(&format!("select count(*) from big where who = {who}"), &ROWS.to_string()).await;
    }
    let halves = "select count(*) from (select who from big group by who having count(*) <> 25000) half";
    lab.shows(halves, "0").await;
    lab.check_equal(2).await;
}

/// 25 MB in one transaction; returns whether it was acknowledged.
async fn insert(lab: &Lab, region: usize, who: i32) -> JoinHandle<bool> {
    insert_by(lab.session(region).await, who)
}

fn insert_by(session: Session, who: i32) -> JoinHandle<bool> {
    let noise = "(select string_agg(sha512((g * 100 + i)::text::bytea), '') from generate_series(1, 15) i)";
    let sql =
        format!("insert into big select {who}, g, {noise} || sha256(g::text::bytea) from generate_series(1, {ROWS}) g");
    tokio::spawn(async move { session.run(&sql).await.is_ok() })
}

/// Some parts of a large transaction are in the log, and not all.
async fn between_parts(lab: &Lab) {
    let is_between = || async {
        for node in lab.nodes() {
            if let Ok(status) = node.status().await {
                return Ok(status["arriving"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0));
            }
        }
        Ok(false)
    };
    until("some parts are in the log, and not all", SOON, is_between).await.unwrap();
}

async fn write_small(session: Session, over: Arc<AtomicBool>) -> i64 {
    while !over.load(Ordering::Relaxed) {
        // While its node is down it waits, or is told so.
        let _ = session.run("insert into small (v) values (1)").await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    number(&session, "select count(*) from small").await.expect("count")
}
