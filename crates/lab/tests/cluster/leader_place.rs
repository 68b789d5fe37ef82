//! With `preferred_leader = "auto"` the leader comes to rest where every region's COMMIT takes one round trip to its
//! nearest majority, and stays there.

use std::path::Path;
use std::time::{Duration, Instant};

use onetrip_lab::Topology;

use crate::lab::{builder, duration, start_from};

/// us-east-2 is on the shortest of the three edges, and us-west-2 is nearer to it than to its other end.
const BEST: &str = "us-east-2";

#[tokio::test]
#[ignore = "long"]
async fn the_leader_comes_to_rest_at_the_best_place_and_stays_there() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/us.toml");
    let topology = Topology::load(&file).expect("read topologies/us.toml");
    assert_eq!(topology.preferred_leader.as_deref(), Some("auto"));
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
