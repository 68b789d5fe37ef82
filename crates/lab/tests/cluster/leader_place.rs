//! With `preferred_leader = "auto"` the leader comes to rest where every region's COMMIT takes one round trip to its
//! nearest majority, and stays there; and it leaves a place from which it does not reach everybody.

use std::path::Path;
use std::time::{Duration, Instant};

use onetrip_lab::Topology;

use crate::lab::{builder, duration, start_from, until};

/// us-east-2 is on the shortest of the three edges, and us-west-2 is nearer to it than to its other end.
const BEST: &str = "us-east-2";

/// The cluster places its leader by itself there.
fn topology() -> Topology {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml");
    let topology = Topology::load(&file).expect("read topologies/us.toml");
    assert_eq!(topology.preferred_leader.as_deref(), Some("auto"));
    topology
}

#[tokio::test]
#[ignore = "long"]
async fn the_leader_comes_to_rest_at_the_best_place_and_stays_there() {
    let topology = topology();
    let best = topology.region_index(BEST).expect("the region is in the topology");
    let lab = start_from("leader_place", "the leader chooses its place", builder().topology(topology)).await;
    lab.session(0).await.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    let sessions = lab.sessions().await;

    let settled = lab.settled().await.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(lab.node(settled).region(), BEST);
    let term = async || lab.node(best).status().await.expect("its status")["term"].clone();
    let before = term().await;
    let (began, stays) = (Instant::now(), duration(15));
    let mut id = 0;
    while began.elapsed() < stays {
        for session in &sessions {
            id += 1;
            session.must(&format!("insert into t values ({id}, 0)")).await;
        }
        for node in lab.nodes() {
            let status = node.status().await.expect("its status");
            assert_eq!(status["leader"]["region"], BEST, "by {}: {}", node.region(), status["leader_places"]);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(term().await, before, "there was an election");
    lab.check_equal(1).await;
}

/// A leader that has just moved rests for a minute.
const MOVES_WITHIN: Duration = Duration::from_secs(120);

/// Goal: if a link between two regions is cut, and a third one reaches both, all three commit again.
#[tokio::test]
#[ignore = "long"]
async fn a_cut_link_takes_the_leader_to_the_region_that_reaches_both_ends() {
    let what = "the leader goes to who reaches both ends of a cut link";
    let lab = start_from("cut_link", what, builder().topology(topology())).await;
    lab.session(0).await.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    let leader = lab.settled().await.unwrap_or_else(|e| panic!("{e:#}"));
    let (lost, third) = ((leader + 1) % 3, (leader + 2) % 3);
    lab.cut_link(leader, lost, true).await.expect("cut the link");
    let cut = Instant::now();
    let moved = until("all regions commit", MOVES_WITHIN, || async {
        let session = lab.session(lost).await;
        Ok(session.run("insert into t select coalesce(max(id), 0) + 1, 0 from t").await.is_ok())
    });
    moved.await.unwrap_or_else(|e| panic!("{e:#}"));
    println!("cut_link: region {lost} commits again after {:.1} s", cut.elapsed().as_secs_f64());
    let status = lab.node(lost).status().await.expect("its status");
    assert_eq!(status["leader"]["region"], lab.node(third).region(), "{}", status["leader_places"]);
    for (region, id) in [(leader, 1_001), (lost, 1_002), (third, 1_003)] {
        lab.session(region).await.must(&format!("insert into t values ({id}, 0)")).await;
    }
    lab.cut_link(leader, lost, false).await.expect("mend the link");
    lab.everywhere().await;
    lab.check_equal(1).await;
}
