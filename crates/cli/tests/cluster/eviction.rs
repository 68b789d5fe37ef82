//! A transaction that holds what another region has changed gives way, and is told why.

use std::time::{Duration, Instant};

use crate::lab::{number, start, until, Lab, Session, SOON};
use tokio_postgres::error::{DbError, SqlState};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_in_the_way_is_evicted_with_40001() {
    let lab =
        start("eviction", "an idle transaction in the way ends with FATAL 40001, a running one with ERROR 40001").await;
    lab.session(0).await.must("create table t (id int primary key, v int, u int unique); insert into t select g, 0 from generate_series(1, 50) g").await;
    lab.everywhere().await;
    idle(&lab, 1, "update t set v = 1 where id = 1", "update t set v = 2 where id = 1").await;
    idle(&lab, 2, "select * from t where id = 2 for update", "update t set v = 2 where id = 2").await;
    idle(&lab, 1, "insert into t values (100, 0)", "insert into t values (100, 1)").await;
    idle(&lab, 2, "update t set u = 7 where id = 3", "update t set u = 7 where id = 4").await;
    running(&lab, 1, "update t set v = 1 where id = 5", "update t set v = 2 where id = 5").await;
    running(&lab, 2, "delete from t where id = 6", "update t set v = 2 where id = 6").await;
    waiting_for_a_lock(&lab).await;
    caught_in_a_block(&lab).await;
    a_reader_stays(&lab).await;
    lab.check_equal(1).await;
}

fn says_what_happened(why: &DbError, severity: &str, other: &str) {
    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
    assert_eq!(why.severity(), severity, "{}", why.message());
    assert!(!why.message().contains("recovery"), "not our words: {}", why.message());
    assert!(why.message().contains(&format!("region \"{other}\"")), "{}", why.message());
    assert!(why.detail().is_some_and(|d| d.contains("public.t")), "the table is not in {:?}", why.detail());
    assert!(why.hint().is_some(), "no hint");
}

/// The change of another region is visible here, so nothing holds it up any more.
async fn arrives(lab: &Lab, region: usize, position: i64) {
    let session = lab.session(region).await;
    until("the change arrives", SOON, || async {
        Ok(number(&session, "select onetrip.position()").await? >= position)
    })
    .await
    .unwrap();
}

async fn change_in_a(lab: &Lab, change: &str) -> i64 {
    let a = lab.session(0).await;
    a.must(change).await;
    number(&a, "select onetrip.position()").await.unwrap()
}

async fn idle(lab: &Lab, region: usize, held: &str, change: &str) {
    lab.everywhere().await;
    let holder = lab.session(region).await;
    holder.must(&format!("begin; {held}")).await;
    let position = change_in_a(lab, change).await;
    arrives(lab, region, position).await;
    // As a driver sees it: the next statement fails, the session is over.
    assert!(holder.run("select 1").await.is_err());
    let why = holder.ended_by().await.unwrap_or_else(|e| panic!("{held}: {e:#}"));
    says_what_happened(&why, "FATAL", "a");
}

async fn running(lab: &Lab, region: usize, held: &str, change: &str) {
    lab.everywhere().await;
    let holder = lab.session(region).await;
    holder.must(&format!("begin; {held}")).await;
    let sleeping = async {
        let began = Instant::now();
        let why = holder.refused("select pg_sleep(60)").await;
        assert!(began.elapsed() < Duration::from_secs(30), "evicted only after {:?}", began.elapsed());
        why
    };
    let changing = async {
        in_sleep(lab, region, &holder).await;
        let position = change_in_a(lab, change).await;
        arrives(lab, region, position).await;
    };
    let (why, ()) = tokio::join!(sleeping, changing);
    says_what_happened(&why, "ERROR", "a");
    holder.must("rollback; select 1").await;
}

async fn in_sleep(lab: &Lab, region: usize, holder: &Session) {
    let watcher = lab.session(region).await;
    // The holder's connection is busy: its process is told by what it runs.
    let query = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    until("the holder sleeps", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
    let _ = holder;
}

/// The one in the way waits itself, for a lock that another local transaction holds.
async fn waiting_for_a_lock(lab: &Lab) {
    lab.everywhere().await;
    let [_, blocker, holder] = [lab.session(2).await, lab.session(2).await, lab.session(2).await];
    blocker.must("begin; update t set v = 1 where id = 10").await;
    holder.must("begin; update t set v = 1 where id = 11").await;
    let waiting = holder.refused("update t set v = 1 where id = 10");
    let changing = async {
        let watcher = lab.session(2).await;
        let query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
        until("the holder waits", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
        let position = change_in_a(lab, "update t set v = 2 where id = 11").await;
        arrives(lab, 2, position).await;
    };
    let (why, ()) = tokio::join!(waiting, changing);
    says_what_happened(&why, "ERROR", "a");
    blocker.must("commit").await;
}

/// An exception block must not swallow the eviction and commit what has lost.
async fn caught_in_a_block(lab: &Lab) {
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = 77 where id = 20").await;
    let catching = holder.run("do $$ begin perform pg_sleep(60); exception when others then perform 1; end $$; commit");
    let changing = async {
        in_sleep(lab, 1, &holder).await;
        let position = change_in_a(lab, "update t set v = 2 where id = 20").await;
        arrives(lab, 1, position).await;
    };
    let (caught, ()) = tokio::join!(catching, changing);
    let why = match caught {
        Ok(()) => panic!("a transaction that was evicted committed"),
        Err(error) => match error.as_db_error() {
            Some(db) => db.clone(),
            None => holder.ended_by().await.unwrap_or_else(|e| panic!("{e:#}")),
        },
    };
    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
    lab.shows("select v from t where id = 20", "2").await;
}

/// A transaction that only reads is left alone by changes of rows, and sees what it saw.
async fn a_reader_stays(lab: &Lab) {
    lab.everywhere().await;
    let reader = lab.session(1).await;
    reader.must("begin isolation level repeatable read").await;
    let before = number(&reader, "select sum(v) from t").await.unwrap();
    let position = change_in_a(lab, "update t set v = v + 1; delete from t where id = 30").await;
    arrives(lab, 1, position).await;
    assert_eq!(number(&reader, "select sum(v) from t").await.unwrap(), before);
    reader.must("commit").await;
    assert_ne!(number(&reader, "select sum(v) from t").await.unwrap(), before);
}
