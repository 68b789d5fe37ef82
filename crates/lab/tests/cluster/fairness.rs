//! A region far away gets its changes of a hot row through, however fast nearer regions change it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::lab::{bounded, builder, is, number, start_from, told, Session};
use onetrip_lab::Topology;
use tokio_postgres::error::SqlState;

/// How often the far region is to commit before so many of its statements are lost, each of which is tried four times.
/// Without what favours it, it loses to dozens of commits of the nearer ones in each of its round trips.
const FAR: usize = 5;
const LOST_MAX: usize = 10;

/// Two regions beside each other, and one far away.
fn topology() -> Topology {
    let text = r#"
        preferred_leader = "a"
        [[region]]
        name = "a"
        [[region]]
        name = "b"
        [[region]]
        name = "far"
        [[link]]
        between = ["a", "b"]
        rtt_ms = 2
        [[link]]
        between = ["a", "far"]
        rtt_ms = 60
        [[link]]
        between = ["b", "far"]
        rtt_ms = 60
    "#;
    Topology::parse(text).expect("the text above is a topology")
}

/// Adds one to a row again and again, and repeats what lost.
async fn add(session: Session, row: usize, done: Arc<AtomicUsize>, lost: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        match session.run(&format!("update hot set n = n + 1 where id = {row}")).await {
            Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
            Err(e) => {
                assert!(is(&e, &SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(&e));
                lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_region_gets_its_changes_of_a_hot_row_through() {
    let about = "a far region changes a row that two regions beside each other change as fast as they can";
    let lab = start_from("fairness", about, builder().topology(topology())).await;
    let first = lab.session(0).await;
    first.must("create table hot (id int primary key, n int not null); insert into hot values (1, 0)").await;
    lab.everywhere().await;
    let (near, far) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (near_lost, far_lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for region in 0..3 {
        let (done, lost) = if region == 2 { (&far, &far_lost) } else { (&near, &near_lost) };
        clients.push(tokio::spawn(add(lab.session(region).await, 1, done.clone(), lost.clone(), stop.clone())));
    }
    let passed = async {
        while far.load(Ordering::Relaxed) < FAR && far_lost.load(Ordering::Relaxed) < LOST_MAX {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    bounded("changes of the hot row", passed).await;
    let (by_far, by_near) = (far.load(Ordering::Relaxed), near.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client");
    }
    let lost = far_lost.load(Ordering::Relaxed);
    println!(
        "fairness: the far region committed {by_far} times and lost {lost}, the nearer ones committed {by_near} times"
    );
    assert!(by_far >= FAR, "the far region committed {by_far} times and lost {lost}");

    // Who had to give way is told for whom, and for which table.
    let mut gave_way = 0;
    for region in 0..2 {
        let session = lab.session(region).await;
        let far = "select count(*) from onetrip.conflicts where kind = 'reserved' and lost_to_region = 'far' and \"table\" = 'public.hot'";
        gave_way += number(&session, far).await.unwrap();
    }
    assert!(gave_way > 0, "nobody gave way");
    let all = far.load(Ordering::Relaxed) + near.load(Ordering::Relaxed);
    lab.shows("select n from hot", &all.to_string()).await;
    lab.check_equal(1).await;
}
