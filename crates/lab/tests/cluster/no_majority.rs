//! Without a majority, a COMMIT of changes ends in time and says that its outcome is not known; reads go on.
//! Afterwards there is one outcome, the same everywhere.

use std::time::{Duration, Instant};

use crate::lab::{ask, found_by_libpq, number, start, text, until, Lab, Session, SOON};

const COMMIT_TIMEOUT_MS: u64 = 1_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_commit_ends_in_time_and_the_outcome_is_one() {
    let lab =
        start("no_majority", "two nodes hang: COMMIT ends with 08007, reads go on; back again, one outcome everywhere")
            .await;
    lab.session(0).await.must("create table t (id int primary key, v text); insert into t values (0, 'before')").await;
    lab.everywhere().await;
    let mut ids = 0;
    // The leader alone, a follower alone, and then the other follower alone.
    for survivor in [0, 1, 2] {
        hang_the_others(&lab, survivor, &mut ids).await;
    }
    cancelled_while_waiting(&lab, &mut ids).await;
    lab.check_equal(1).await;
}

/// A COMMIT that ended with 08007: its transaction id, and the row it wrote.
struct Open {
    txn: String,
    row: u32,
}

async fn hang_the_others(lab: &Lab, survivor: usize, ids: &mut u32) {
    let others: Vec<usize> = (0..3).filter(|r| *r != survivor).collect();
    let session = lab.session(survivor).await;
    session.must(&format!("set onetrip.commit_timeout = {COMMIT_TIMEOUT_MS}")).await;
    let reader = lab.session(survivor).await;
    // One proposal goes through first, so that the next one does not meet a connection that is still being made.
    *ids += 1;
    session.must(&format!("insert into t values ({ids}, 'warm')")).await;
    for other in &others {
        lab.node(*other).pause().expect("SIGSTOP");
    }
    let mut open = Vec::new();
    for _ in 0..2 {
        *ids += 1;
        open.push(ends_in_time(lab, survivor, &session, *ids).await);
        // Reads and local statements go on; the row of the undecided transaction is not visible.
        let rows = number(&reader, &format!("select count(*) from t where id = {ids}")).await.unwrap();
        assert_eq!(rows, 0, "an undecided row is visible");
        reader.must("create temp table mine (x int); insert into mine values (1); drop table mine").await;
        session.must("select count(*) from t").await;
    }
    // It is the majority that does not answer, and not this node.
    let why = session.refused(&format!("select onetrip.outcome('{}', settle => true)", open[1].txn)).await;
    assert_eq!(why.code().code(), "55000", "{}", why.message());
    assert!(why.message().ends_with("could not be settled within onetrip.commit_timeout"), "{}", why.message());
    assert!(why.detail().is_some_and(|detail| detail.contains("a majority of regions")), "{:?}", why.detail());
    until("the node to say that nobody can write here", SOON, || async {
        let (status, why) = ask(lab, survivor, "/writable").await?;
        Ok(status == 503 && why.starts_with("no leader"))
    })
    .await
    .unwrap();
    until("the node to count those that it does not hear", SOON, || async {
        let (status, why) = ask(lab, survivor, "/health").await?;
        let said = ["no leader: 1 of 2 needed members are reachable", "has said nothing for"];
        Ok(status == 503 && said.iter().all(|said| why.contains(said)))
    })
    .await
    .unwrap();
    assert_eq!(ask(lab, survivor, "/readable").await.unwrap(), (200, "ok\n".to_string()));
    assert_eq!(ask(lab, survivor, "/readable?max_lag=60000").await.unwrap().0, 503);
    assert_eq!(ask(lab, survivor, "/leader").await.unwrap(), (503, "no leader\n".to_string()));
    for other in &others {
        lab.node(*other).resume().expect("SIGCONT");
    }
    writes_go_on(lab, ids).await;
    serves_again(lab).await;
    for open in open {
        one_outcome(lab, &open).await;
    }
}

/// What load balancers hear of each node.
async fn serves_again(lab: &Lab) {
    for region in 0..3 {
        for path in ["/writable", "/writable?max_lag=60000", "/readable", "/readable?max_lag=60000", "/health"] {
            until(&format!("{path} in region {region}"), SOON, || async { Ok(ask(lab, region, path).await?.0 == 200) })
                .await
                .unwrap();
        }
        for path in ["/writable", "/readable"] {
            let (status, why) = ask(lab, region, &format!("{path}?max_lag=-1")).await.unwrap();
            assert!(status == 503 && why.contains("ms old"), "{path}: {status} {why}");
            assert_eq!(ask(lab, region, &format!("{path}?lag=1")).await.unwrap().0, 400);
        }
    }
    until("one leader, known to all", SOON, || async {
        let mut answers = Vec::new();
        for region in 0..3 {
            answers.push(ask(lab, region, "/leader").await?);
        }
        let leads = answers.iter().position(|(status, _)| *status == 200);
        let said = leads.map(|leads| format!("node {} in {} leads\n", lab.node(leads).id(), lab.node(leads).region()));
        Ok(answers.iter().filter(|(status, why)| *status == 503 && Some(why) == said.as_ref()).count() == 2)
    })
    .await
    .unwrap();
}

async fn ends_in_time(lab: &Lab, region: usize, session: &Session, row: u32) -> Open {
    let began = Instant::now();
    let why = session.refused(&format!("insert into t values ({row}, 'open')")).await;
    let took = began.elapsed();
    assert_eq!(why.code().code(), "08007", "{}", why.message());
    let (least, most) = (COMMIT_TIMEOUT_MS - 50, COMMIT_TIMEOUT_MS + 3_000);
    assert!(
        (least..most).contains(&(took.as_millis() as u64)),
        "COMMIT ended after {took:?} with a timeout of {COMMIT_TIMEOUT_MS} ms"
    );
    let txn = transaction_id(why.message());
    assert!(txn.starts_with(&format!("{}-", lab.node(region).id())), "{}", why.message());
    assert!(why.hint().is_some_and(|hint| hint.contains("onetrip.outcome")), "{:?}", why.hint());
    println!("no_majority: region {}: {txn} is open after {} ms", lab.node(region).region(), took.as_millis());
    Open { txn, row }
}

pub fn transaction_id(message: &str) -> String {
    let id = message.split_whitespace().map(|word| word.trim_end_matches(':')).find(|word| {
        let parts: Vec<&str> = word.split('-').collect();
        parts.len() == 3
            && parts[0].parse::<u32>().is_ok()
            && parts[1..].iter().all(|p| u64::from_str_radix(p, 16).is_ok())
    });
    id.unwrap_or_else(|| panic!("no transaction id in {message:?}")).to_string()
}

/// Writes in every region; after these, whatever was on its way before them has been decided.
async fn writes_go_on(lab: &Lab, ids: &mut u32) {
    for region in 0..3 {
        *ids += 1;
        let session = lab.session(region).await;
        let row = *ids;
        until(&format!("region {region} writes again"), SOON, || async {
            session
                .run(&format!("insert into t values ({row}, 'after') on conflict (id) do nothing"))
                .await
                .map_err(|e| anyhow::anyhow!(crate::lab::told(&e)))?;
            Ok(true)
        })
        .await
        .unwrap();
    }
    lab.everywhere().await;
}

/// Committed: the row is there, once, in every region.  Aborted: it is nowhere.  Every region says the same.
async fn one_outcome(lab: &Lab, open: &Open) {
    let sessions = lab.sessions().await;
    let ask = format!("select onetrip.outcome('{}')", open.txn);
    // A transaction that its backend has given up is decided without anybody asking for it.
    until(&format!("the outcome of {} is final", open.txn), SOON, || async {
        Ok(text(&sessions[0], &ask).await? != "unknown")
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    let first = text(&sessions[0], &ask).await.unwrap();
    println!("no_majority: {} is {first}", open.txn);
    let expected = match first.as_str() {
        "aborted" => 0,
        committed if committed.starts_with("committed at ") => 1,
        other => panic!("outcome {other:?}"),
    };
    for session in &sessions {
        until("each region knows it", SOON, || async { Ok(text(session, &ask).await? != "unknown") }).await.unwrap();
        assert_eq!(text(session, &ask).await.unwrap(), first, "two regions disagree on {}", open.txn);
        let rows =
            number(session, &format!("select count(*) from t where id = {} and v = 'open'", open.row)).await.unwrap();
        assert_eq!(rows, expected, "outcome {first}, but {rows} rows");
    }
}

/// A COMMIT that is canceled while it waits must not claim that nothing happened.
async fn cancelled_while_waiting(lab: &Lab, ids: &mut u32) {
    let session = lab.session(1).await;
    *ids += 1;
    let row = *ids;
    session.must(&format!("set onetrip.commit_timeout = '60s'; insert into t values ({row}, 'warm')")).await;
    *ids += 1;
    let row = *ids;
    for other in [0, 2] {
        lab.node(other).pause().expect("SIGSTOP");
    }
    let pid = session.pid().await.expect("pid");
    let insert = format!("insert into t values ({row}, 'open')");
    let waiting = session.refused(&insert);
    let cancelling = async {
        let other = lab.session(1).await;
        let query =
            format!("select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Extension'");
        until("COMMIT waits", SOON, || async { Ok(number(&other, &query).await? == 1) }).await.unwrap();
        let began = Instant::now();
        other.must(&format!("select pg_cancel_backend({pid})")).await;
        began
    };
    let (why, began) = tokio::join!(waiting, cancelling);
    assert!(began.elapsed() < Duration::from_secs(10), "a cancel took {:?}", began.elapsed());
    assert_eq!(why.code().code(), "08007", "{}", why.message());
    for other in [0, 2] {
        lab.node(other).resume().expect("SIGCONT");
    }
    writes_go_on(lab, ids).await;
    one_outcome(lab, &Open { txn: transaction_id(why.message()), row }).await;
}

/// Goal: ids that clients ask for and never use keep nobody's outcome open.  Method: more than there is room for, and
/// then a COMMIT, while the other regions hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_were_never_proposed_keep_no_outcome_open() {
    let lab = start("told_ids", "20,000 ids asked for and rolled back, then a COMMIT without a majority").await;
    let session = lab.session(1).await;
    session.must("create table t (id int primary key, v text); insert into t values (0, 'before')").await;
    session.must(&format!("set onetrip.commit_timeout = {COMMIT_TIMEOUT_MS}")).await;
    for other in [0, 2] {
        lab.node(other).pause().expect("SIGSTOP");
    }
    let ask = "perform onetrip.current_transaction_id(); rollback;";
    session.must(&format!("do $$ begin for i in 1 .. 20000 loop {ask} end loop; end $$")).await;
    let open = ends_in_time(&lab, 1, &session, 1).await;
    for other in [0, 2] {
        lab.node(other).resume().expect("SIGCONT");
    }
    writes_go_on(&lab, &mut 1).await;
    one_outcome(&lab, &open).await;
}

/// Goal: with `read_only_without_majority`, drivers pass by a region that has no majority, and its open sessions get an
/// error at once; all of that ends with the outage.  Method: regions 0 and 1 hang; region 2 and then its node alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_without_a_majority_looks_read_only_if_it_is_to() {
    let lab = start("looks_read_only", "a region that has no majority looks read-only, if node.toml says so").await;
    lab.session(0).await.must("create table t (id int primary key); create table mine (id int) using heap").await;
    lab.everywhere().await;
    let alone = lab.node(2);
    let file = alone.folder().join("node.toml");
    let as_it_was = std::fs::read_to_string(&file).expect("node.toml");
    let asked = as_it_was.replace("[postgres]\n", "[postgres]\nread_only_without_majority = true\n");
    alone.stop().await.unwrap_or_else(|e| panic!("{e:#}"));
    std::fs::write(&file, asked).expect("write node.toml");
    alone.restart().await.unwrap_or_else(|e| panic!("{e:#}"));

    let (idle, busy) = (lab.session(2).await, lab.session(2).await);
    idle.must("insert into t values (1)").await;
    busy.must("begin; insert into t values (2)").await;
    assert_eq!(found_by_libpq(&lab, &[2, 0], "read-write"), Some(2));
    for other in [0, 1] {
        lab.node(other).pause().expect("SIGSTOP");
    }
    looks_read_only(&lab, "on").await;
    assert_eq!(found_by_libpq(&lab, &[2], "read-write"), None);
    assert_eq!(found_by_libpq(&lab, &[2], "read-only"), Some(2));
    let refused = idle.refused("insert into t values (3)").await;
    assert_eq!(refused.code().code(), "25006", "{refused:?}");
    assert_eq!(number(&idle, "select count(*) from t").await.unwrap(), 1);
    idle.must("begin read write; insert into mine values (1); commit").await;
    // What began before may still be written, and is decided when it can be.
    busy.must("set onetrip.commit_timeout = '200ms'; insert into t values (4)").await;
    let open = busy.refused("commit").await;
    assert_eq!(open.code().code(), "08007", "{open:?}");

    // The next node finds the server as this one has left it, and goes on.
    alone.kill9().expect("SIGKILL");
    alone.start().expect("start the node");
    looks_read_only(&lab, "off").await;
    looks_read_only(&lab, "on").await;
    for other in [0, 1] {
        lab.node(other).resume().expect("SIGCONT");
    }
    looks_read_only(&lab, "off").await;
    idle.must("insert into t values (5)").await;
    assert_eq!(found_by_libpq(&lab, &[2, 0], "read-write"), Some(2));
    one_outcome_of(&lab, &transaction_id(open.message())).await;

    // The server of a node that dies meanwhile does not stay so.
    for other in [0, 1] {
        lab.node(other).pause().expect("SIGSTOP");
    }
    looks_read_only(&lab, "on").await;
    alone.kill9().expect("SIGKILL");
    std::fs::write(&file, as_it_was).expect("write node.toml");
    alone.start().expect("start the node");
    looks_read_only(&lab, "off").await;
    for other in [0, 1] {
        lab.node(other).resume().expect("SIGCONT");
    }
    lab.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.check_equal(1).await;
}

async fn looks_read_only(lab: &Lab, expected: &str) {
    until(&format!("new sessions to show transaction_read_only = {expected}"), SOON, || async {
        let session = lab.session(2).await;
        Ok(text(&session, "show transaction_read_only").await? == expected)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
}

async fn one_outcome_of(lab: &Lab, txn: &str) {
    let ask = format!("select (onetrip.outcome('{txn}') <> 'unknown')::int");
    for session in lab.sessions().await {
        until("the outcome is known", SOON, || async { Ok(number(&session, &ask).await? == 1) })
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
    }
}
