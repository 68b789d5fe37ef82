//! Read leases: in the region that holds one, fresh reads ask nobody and miss nothing, whoever hangs meanwhile.

use crate::lab::{apart, builder, is, number, start_from, told, until, Lab, Session, SOON};
use tokio_postgres::error::SqlState;

const ROWS: &str = "select count(*) from t";
const ASKED: &str = "select count from onetrip.crossings where cause = 'fresh read'";
/// The region that holds the lease, and the one that leads.
const HOLDER: usize = 2;
const LEADER: usize = 0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_read_under_a_lease_asks_nobody_and_misses_nothing() {
    let about = "fresh reads in a region with a lease; its node, the leader and another one hang or end";
    let lab = start_from("leases", about, builder().topology(apart(50))).await;
    let (a, b, c) = (lab.session(LEADER).await, lab.session(1).await, lab.session(HOLDER).await);
    a.must("create table t (id int generated always as identity, v int)").await;
    lab.everywhere().await;
    for session in [&a, &b, &c] {
        session.must("set onetrip.read = fresh; set onetrip.commit_timeout = '60s'").await;
    }
    let no_such = leases(&lab, &["--regions", "nowhere"]).await.unwrap_err();
    assert!(format!("{no_such:#}").contains("region nowhere has no PostgreSQL"), "{no_such:#}");
    assert_eq!(leases(&lab, &["--regions", "c"]).await.unwrap(), "read leases are held in c\n");

    let mut rows = 0;
    asks_nobody(&lab, &a, &c, &mut rows).await;
    without_a_trip(&lab, &a, &c, &mut rows).await;
    the_holder_hangs(&lab, &a, &c, &mut rows).await;
    asks_nobody(&lab, &b, &c, &mut rows).await;
    the_leader_hangs(&lab, &b, &c, &mut rows).await;
    asks_nobody(&lab, &a, &c, &mut rows).await;
    a_node_that_has_promised_ends(&lab, &a, &c, &mut rows).await;

    assert_eq!(leases(&lab, &["--none"]).await.unwrap(), "no region holds a read lease\n");
    until("the lease ends", SOON, async || Ok(!has_lease(&lab).await?)).await.unwrap();
    let before = number(&c, ASKED).await.unwrap();
    assert_eq!(number(&c, ROWS).await.unwrap(), rows);
    assert_eq!(number(&c, ASKED).await.unwrap(), before + 1);
    lab.check_equal(1).await;
}

async fn leases(lab: &Lab, args: &[&str]) -> anyhow::Result<String> {
    let folder = lab.node(LEADER).folder().display().to_string();
    lab.command(&[&["leases", "--data", &folder], args].concat()).await
}

async fn has_lease(lab: &Lab) -> anyhow::Result<bool> {
    Ok(lab.node(HOLDER).status().await?["has_lease"] == true)
}

async fn insert(writer: &Session, rows: &mut i64) {
    writer.must("insert into t (v) values (0)").await;
    *rows += 1;
}

/// On a busy machine the lease may lapse now and then; then the read asks, and misses as little.
async fn asks_nobody(lab: &Lab, writer: &Session, c: &Session, rows: &mut i64) {
    until("the holder has its lease", SOON, async || has_lease(lab).await).await.unwrap();
    let (mut alone, reads) = (0, 40);
    for _ in 0..reads {
        insert(writer, rows).await;
        let before = number(c, ASKED).await.unwrap();
        assert_eq!(number(c, ROWS).await.unwrap(), *rows);
        alone += i64::from(number(c, ASKED).await.unwrap() == before);
    }
    println!("leases: {alone} of {reads} fresh reads asked nobody");
    assert!(alone * 2 > reads, "{alone} of {reads} fresh reads asked nobody");
    c.must("begin; set local onetrip.max_trips = 1; select count(*) from t; select count(*) from t; commit").await;
}

/// Whether a fresh read that may take no round trip is answered; it sees everything then.
async fn reads_without_a_trip(c: &Session, rows: i64) -> bool {
    c.must("set onetrip.max_trips = 0").await;
    let seen = c.query_one(ROWS, &[]).await;
    c.must("reset onetrip.max_trips").await;
    match seen {
        Ok(seen) => {
            assert_eq!(seen.get::<_, i64>(0), rows);
            true
        }
        Err(e) => {
            assert!(is(&e, &SqlState::CONFIGURATION_LIMIT_EXCEEDED), "{}", told(&e));
            false
        }
    }
}

/// While the lease is in force, `onetrip.max_trips = 0` allows fresh reads.
async fn without_a_trip(lab: &Lab, writer: &Session, c: &Session, rows: &mut i64) {
    until("the holder has its lease", SOON, async || has_lease(lab).await).await.unwrap();
    let before = number(c, ASKED).await.unwrap();
    let mut answered = 0;
    for _ in 0..20 {
        insert(writer, rows).await;
        answered += usize::from(reads_without_a_trip(c, *rows).await);
    }
    assert_eq!(number(c, ASKED).await.unwrap(), before, "other regions were asked");
    println!("leases: 20 fresh reads without a round trip, {answered} answered");
    assert!(answered > 10, "{answered} of 20 fresh reads were answered");
}

/// Commits wait once, and go on.  What they wrote is seen by a read that began while the holder's node hung.
async fn the_holder_hangs(lab: &Lab, writer: &Session, c: &Session, rows: &mut i64) {
    lab.node(HOLDER).pause().expect("SIGSTOP");
    for _ in 0..20 {
        insert(writer, rows).await;
    }
    let read = async {
        let seen = number(c, ROWS).await.unwrap();
        assert_eq!(seen, *rows, "a read that began after all of it was acknowledged");
    };
    let resume = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        lab.node(HOLDER).resume().expect("SIGCONT");
    };
    tokio::join!(read, resume);
}

/// The others elect another leader.  Without the promise of the one that hangs, the holder asks a majority.
async fn the_leader_hangs(lab: &Lab, writer: &Session, c: &Session, rows: &mut i64) {
    lab.node(LEADER).pause().expect("SIGSTOP");
    for _ in 0..20 {
        insert(writer, rows).await;
        assert_eq!(number(c, ROWS).await.unwrap(), *rows);
    }
    until("the lease runs out", SOON, async || Ok(!has_lease(lab).await?)).await.unwrap();
    let before = number(c, ASKED).await.unwrap();
    assert_eq!(number(c, ROWS).await.unwrap(), *rows);
    assert_eq!(number(c, ASKED).await.unwrap(), before + 1);
    assert!(!reads_without_a_trip(c, *rows).await, "there is no lease");
    assert_eq!(number(c, ASKED).await.unwrap(), before + 1, "it asked before it was refused");
    lab.node(LEADER).resume().expect("SIGCONT");
}

/// It waits until its promises have run out, and then goes on.
async fn a_node_that_has_promised_ends(lab: &Lab, writer: &Session, c: &Session, rows: &mut i64) {
    lab.node(1).kill9().expect("SIGKILL");
    lab.node(1).start().expect("start the node");
    for _ in 0..20 {
        insert(writer, rows).await;
        assert_eq!(number(c, ROWS).await.unwrap(), *rows);
    }
    lab.everywhere().await;
    let log = lab.node(1).log_tail(10_000);
    assert!(log.contains("it waits until they have run out"), "{log}");
    until("the holder has its lease again", SOON, async || has_lease(lab).await).await.unwrap();
}
