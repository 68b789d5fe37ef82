//! Entries that have arrived already share one transaction of the apply worker.  These tests are about what must stay
//! the same nevertheless.

use std::time::Duration;

use crate::lab::{number, start, text, until, Lab, Session, SOON};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

const TABLE: &str = "create table t (id int primary key, v int); insert into t values (0, 0)";

/// Stops the apply worker of a region, so that the entries that arrive meanwhile wait for it all at once.
struct Held(Pid);

impl Held {
    async fn hold(session: &Session) -> Held {
        let query = "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'";
        let pid = Pid::from_raw(number(session, query).await.unwrap() as i32);
        kill(pid, Signal::SIGSTOP).expect("stop the worker");
        Held(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

async fn with_table(name: &'static str, about: &str) -> Lab {
    let lab = start(name, about).await;
    lab.session(0).await.must(TABLE).await;
    lab.everywhere().await;
    lab
}

/// How many entries the worker has applied, and in how many transactions.
async fn applied(session: &Session) -> (i64, i64) {
    let entries = number(session, "select applied_entries from onetrip.status").await.unwrap();
    (entries, number(session, "select apply_transactions from onetrip.status").await.unwrap())
}

async fn inserts(session: &Session, ids: std::ops::RangeInclusive<i32>) {
    for id in ids {
        session.must(&format!("insert into t values ({id}, {id})")).await;
    }
}

async fn shows_position(session: &Session, index: i64) {
    until("it is shown", SOON, || async { Ok(number(session, "select onetrip.position()").await? >= index) })
        .await
        .unwrap_or_else(|e| panic!("{index}: {e:#}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_come_shares_transactions() {
    let lab = with_table("grouped_apply", "a hundred entries that lie there are applied in a few transactions").await;
    let [a, b, _] = lab.sessions().await;
    let before = applied(&b).await;
    let held = Held::hold(&b).await;
    for id in 1..=40 {
        a.must(&format!("insert into t values ({id}, 0)")).await;
        // Changes a row that an earlier entry of the same group has inserted.
        a.must(&format!("update t set v = v + {id} where id in (0, {id})")).await;
        if id % 4 == 0 {
            a.must(&format!("delete from t where id = {id}; insert into t values ({id}, -1)")).await;
        }
    }
    drop(held);
    lab.shows("select count(*) || ' ' || sum(v) || ' ' || max(v) from t", "41 1410 820").await;
    let after = applied(&b).await;
    let (entries, transactions) = (after.0 - before.0, after.1 - before.1);
    assert_eq!(entries, 90, "in {transactions} transactions");
    assert!((2..=10).contains(&transactions), "{entries} entries in {transactions} transactions");
    large_and_small(&lab, &a, &b).await;
    lab.check_equal(2).await;
}

/// Entries that do not fit into one read, or are too large to share a transaction, are applied correctly too.
async fn large_and_small(lab: &Lab, a: &Session, b: &Session) {
    a.must("create table large (id int primary key, v text); alter table large alter v set storage external").await;
    lab.everywhere().await;
    let before = applied(b).await;
    let held = Held::hold(b).await;
    for id in 1..=30 {
        let bytes = if id % 10 == 0 { 40_000 } else { 20_000 };
        a.must(&format!("insert into large values ({id}, repeat('{}', {bytes}))", id % 7)).await;
        a.must(&format!("update t set v = {id} where id = 0")).await;
    }
    drop(held);
    lab.shows(
        "select count(*) || ' ' || sum(length(v)) || ' ' || (md5(string_agg(v, ',' order by id)) = md5(string_agg(repeat((id % 7)::text, length(v)), ',' order by id)))::text from large",
        "30 660000 true",
    )
    .await;
    lab.shows("select v from t where id = 0", "30").await;
    let after = applied(b).await;
    let (entries, transactions) = (after.0 - before.0, after.1 - before.1);
    assert_eq!(entries, 60, "in {transactions} transactions");
    assert!((7..=45).contains(&transactions), "{entries} entries in {transactions} transactions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_commit_between_them_keeps_its_place() {
    let lab = with_table("grouped_local", "a commit of this region, and DDL, between entries of another").await;
    let [a, b, _] = lab.sessions().await;
    let before = applied(&b).await;
    let held = Held::hold(&b).await;
    inserts(&a, 1..=10).await;
    let at = number(&a, "select onetrip.position()").await.unwrap();
    let local = lab.session(1).await;
    let local = tokio::spawn(async move { local.must("insert into t values (100, 100)").await });
    // The local commit is decided and waits for the entries before it, which the worker has not applied.
    shows_position(&a, at + 1).await;
    assert!(!local.is_finished());
    assert_eq!(text(&b, "select count(*) from t").await.unwrap(), "1");
    inserts(&a, 11..=20).await;
    a.must("alter table t add column w int default 7").await;
    a.must("insert into t values (21, 21, 21)").await;
    drop(held);
    tokio::time::timeout(SOON, local).await.expect("COMMIT ends").unwrap();
    lab.shows("select count(*) || ' ' || sum(v) || ' ' || sum(w) from t", "23 331 175").await;
    let after = applied(&b).await;
    assert_eq!(after.0 - before.0, 22);
    assert!(after.1 - before.1 >= 4, "{before:?} {after:?}: before and behind the local one, and the statement alone");
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_in_the_middle_is_to_be_had() {
    let lab =
        with_table("grouped_snapshot", "a snapshot at a position that lies within what waits to be applied").await;
    let [a, b, _] = lab.sessions().await;
    let position = number(&b, "select onetrip.position()").await.unwrap();
    let held = Held::hold(&b).await;
    let exporter = lab.session(1).await;
    exporter.must("begin isolation level repeatable read").await;
    let query = format!("select onetrip.export_snapshot_at({})", position + 3);
    let exporting = tokio::spawn(async move { (text(&exporter, &query).await, exporter) });
    until("it waits", SOON, || async {
        let query = "select count(*) from pg_stat_activity where query like '%export_snapshot_at(%' and wait_event = 'Extension'";
        Ok(number(&b, query).await? == 1)
    })
    .await
    .unwrap();
    inserts(&a, 1..=8).await;
    drop(held);
    let (snapshot, exporter) = tokio::time::timeout(SOON, exporting).await.expect("a snapshot").unwrap();
    let snapshot = snapshot.unwrap_or_else(|e| panic!("{e:#}"));
    b.must(&format!("begin isolation level repeatable read; set transaction snapshot '{snapshot}'")).await;
    assert_eq!(text(&b, "select string_agg(id::text, ' ' order by id) from t").await.unwrap(), "0 1 2 3");
    b.must("commit").await;
    drop(exporter);
    lab.shows("select count(*) from t", "9").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn who_waits_for_a_lock_does_not_hold_up_those_before() {
    let lab = with_table("grouped_lock", "an entry that waits for a lock, in the middle of others").await;
    let [a, b, _] = lab.sessions().await;
    a.must("create table other (id int primary key)").await;
    lab.everywhere().await;
    // A session in COPY does not notice its eviction, so it gives way only a second later, when it is ended.
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = -1 where id = 0").await;
    let copy = holder.copy_in::<_, bytes::Bytes>("copy other from stdin").await.expect("COPY begins");
    let held = Held::hold(&b).await;
    inserts(&a, 1..=5).await;
    a.must("update t set v = 1 where id = 0").await;
    let waits_at = number(&a, "select onetrip.position()").await.unwrap();
    inserts(&a, 6..=9).await;
    drop(held);
    until("those before it are there", Duration::from_millis(700), || async {
        Ok(text(&b, "select count(*) || ' ' || min(v) || ' ' || onetrip.position() from t").await?
            == format!("6 0 {}", waits_at - 1))
    })
    .await
    .unwrap();
    lab.shows("select count(*) || ' ' || sum(v) from t", "10 46").await;
    drop(copy);
    lab.check_equal(2).await;
}

/// A rollback does not undo `setval`: if a group that contains one were rolled back and applied again, values drawn in
/// between would be given out a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_setval_among_entries_that_wait_gives_no_value_out_twice() {
    let lab = with_table("grouped_setval", "a sequence is set, and an entry behind that waits for a lock").await;
    let [a, b, _] = lab.sessions().await;
    a.must("create sequence s; create table other (id int primary key)").await;
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = -1 where id = 0").await;
    let copy = holder.copy_in::<_, bytes::Bytes>("copy other from stdin").await.expect("COPY begins");
    let held = Held::hold(&b).await;
    a.must("insert into t values (1, 1)").await;
    a.must("select setval('s', 1000000)").await;
    a.must("insert into t values (2, 2)").await;
    a.must("update t set v = 1 where id = 0").await;
    let drawer = lab.session(1).await;
    let draw = "select count(*) || ' ' || count(distinct n) || ' ' || (max(n) > 1000000)::text
                from (select nextval('s') n, pg_sleep(0.0005) from generate_series(1, 1500)) drawn";
    let drawing = tokio::spawn(async move { text(&drawer, draw).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(held);
    let drawn = tokio::time::timeout(SOON, drawing).await.expect("it ends").unwrap();
    assert_eq!(drawn.unwrap_or_else(|e| panic!("{e:#}")), "1500 1500 true");
    lab.shows("select count(*) || ' ' || sum(v) from t", "3 4").await;
    drop(copy);
    lab.check_equal(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_fails_in_the_middle_fails_by_itself() {
    let lab = with_table("grouped_failure", "an entry that one region cannot apply, in the middle of others").await;
    let [a, b, _] = lab.sessions().await;
    b.must("alter system set onetrip.rebuild_after = 0").await;
    b.must("select pg_reload_conf()").await;
    a.must("create table gone (id int primary key); insert into gone values (1)").await;
    lab.everywhere().await;
    // Behind Onetrip's back, a row is removed in region b only.
    b.must("set allow_system_table_mods = on; update pg_class set relam = (select oid from pg_am where amname = 'heap') where relname = 'gone'").await;
    let surgeon = lab.session(1).await;
    surgeon.must("delete from gone; set allow_system_table_mods = on; update pg_class set relam = (select oid from pg_am where amname = 'onetrip') where relname = 'gone'").await;
    drop(surgeon);
    let b = lab.session(1).await;
    let held = Held::hold(&b).await;
    inserts(&a, 1..=10).await;
    a.must("update gone set id = 2").await;
    let fails_at = number(&a, "select onetrip.position()").await.unwrap();
    inserts(&a, 11..=20).await;
    drop(held);
    until("region b says where it stands still", SOON, || async {
        let query = "select failing || ' ' || applied || ' ' || (failure like 'row to change is missing in table \"public.gone\"%')::text from onetrip.status";
        Ok(text(&b, query).await? == format!("{fails_at} {} true", fails_at - 1))
    })
    .await
    .unwrap();
    assert_eq!(text(&b, "select count(*) from t").await.unwrap(), "11");
    let log = lab.node(1).postgres_log_tail(2000);
    assert!(log.contains("entries are applied one by one: row to change is missing"), "the group is not told of");
    assert!(log.contains(&format!("CONTEXT:  applying log index {fails_at}, transaction")), "the entry is not told of");
    b.must("set allow_system_table_mods = on; update pg_class set relam = (select oid from pg_am where amname = 'heap') where relname = 'gone'").await;
    let surgeon = lab.session(1).await;
    surgeon.must("insert into gone values (1); set allow_system_table_mods = on; update pg_class set relam = (select oid from pg_am where amname = 'onetrip') where relname = 'gone'").await;
    lab.shows("select count(*) || ' ' || (select id from gone) from t", "21 2").await;
    lab.check_equal(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn kill9_in_the_middle_loses_nothing_and_doubles_nothing() {
    let lab = with_table("grouped_kill9", "kill -9 of a server while it applies what has piled up").await;
    let a = lab.session(0).await;
    let mut next = 1;
    for round in 0..8u64 {
        let b = lab.session(1).await;
        let held = Held::hold(&b).await;
        drop(b);
        for id in next..next + 100 {
            a.must(&format!("insert into t values ({id}, 1); update t set v = {id} where id = 0")).await;
        }
        next += 100;
        drop(held);
        tokio::time::sleep(Duration::from_micros(500 * round)).await;
        lab.node(1).kill9_postgres().unwrap();
        until("the server is back", SOON, || async {
            let b = lab.connect(1).await?;
            Ok(number(&b, "select onetrip.position()").await? > 0)
        })
        .await
        .unwrap();
    }
    lab.shows("select count(*) || ' ' || sum(v) from t", &format!("{} {}", next, 2 * (next - 1))).await;
    assert_eq!(lab.node(1).postgres_log_tail(100_000).matches("duplicate key").count(), 0);
    lab.check_equal(1).await;
}
