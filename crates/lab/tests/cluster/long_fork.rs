//! A local reader never sees log order broken: no two readers disagree on which of two writes came first.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::lab::{apart, builder, duration, start_from};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_readers_disagree_on_the_order() {
    let lab = start_from(
        "long_fork",
        "two writers in two regions, readers in all three: every snapshot is a prefix of one order",
        builder().topology(apart(6)),
    )
    .await;
    lab.session(0)
        .await
        .must("create table t (id int primary key, v bigint); insert into t values (1, 0), (2, 0)")
        .await;
    lab.everywhere().await;
    let until = Instant::now() + duration(15);
    let mut writers = Vec::new();
    // Each increments its own row, in its own region, so nothing collides.
    for (region, id) in [(0, 1), (1, 2)] {
        let session = lab.session(region).await;
        writers.push(tokio::spawn(async move {
            let mut written = 0u64;
            while Instant::now() < until {
                session.must(&format!("update t set v = v + 1 where id = {id}")).await;
                written += 1;
            }
            written
        }));
    }
    let mut readers = Vec::new();
    for region in [0, 1, 2] {
        let session = lab.session(region).await;
        readers.push(tokio::spawn(async move {
            let query = session
                .prepare("select (select v from t where id = 1), (select v from t where id = 2)")
                .await
                .expect("prepare");
            let mut seen: Vec<(i64, i64)> = Vec::new();
            while Instant::now() < until {
                let row = session.query_one(&query, &[]).await.expect("read");
                let observation = (row.get(0), row.get(1));
                if seen.last() != Some(&observation) {
                    seen.push(observation);
                }
            }
            (region, seen)
        }));
    }
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await.expect("a writer"));
    }
    let mut all = BTreeSet::new();
    for reader in readers {
        let (region, seen) = reader.await.expect("a reader");
        for pair in seen.windows(2) {
            assert!(
                pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1,
                "region {region}: a reader saw {:?} and then {:?}",
                pair[0],
                pair[1]
            );
        }
        println!("long_fork: region {region}: {} different snapshots", seen.len());
        assert!(seen.len() > 20, "region {region}: too few snapshots to tell anything");
        all.extend(seen);
    }
    println!("long_fork: {written:?} writes, {} different snapshots together", all.len());
    // Sorted by the first count, the second one never falls: all snapshots lie on one line.
    let all: Vec<(i64, i64)> = all.into_iter().collect();
    for pair in all.windows(2) {
        assert!(pair[0].1 <= pair[1].1, "a long fork: one reader saw {:?}, another {:?}", pair[0], pair[1]);
    }
    lab.shows("select string_agg(v::text, ' ' order by id) from t", &format!("{} {}", written[0], written[1])).await;
    lab.check_equal(1).await;
}
