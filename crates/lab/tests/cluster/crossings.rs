//! Only COMMIT of a change, DDL's rehearsal and fresh reads ask other regions.

use crate::lab::{apart, builder, number, psql, start_from, text, Lab};

const CROSSED: &str = "select sum(count)::bigint from onetrip.crossings";

/// What psql sends for its commands, and what drivers send when they connect.
const CATALOGS: &str = r"
    \d
    \d+ t
    \dt+
    \di
    \df
    \dn+
    \du
    \l
    \ds
    \dv pg_catalog.pg_stat*
    select * from information_schema.columns where table_name = 't';
    select * from pg_catalog.pg_sequences;
    show all;
    copy t to stdout;
";

/// Each changes nothing that other regions would have to hear of.
const STAYS: &[&str] = &[
    "select * from t where id = 1",
    "explain (analyze, buffers) select * from t join t other using (v)",
    "prepare p as select * from t where id = $1; execute p(1); execute p(2); deallocate p",
    "begin; declare c cursor for select * from t; fetch 2 from c; close c; commit",
    "begin read only; select count(*) from t; commit",
    "begin isolation level repeatable read; select count(*) from t; select max(v) from t; commit",
    "begin; update t set v = v + 1; insert into t values (100, 0); delete from t where id = 2; rollback",
    "begin; savepoint s; update t set v = 0; rollback to s; commit",
    // Region a has just carried out DDL, so without a limit this one would ask whether it is over.
    "begin; set local onetrip.max_trips = 2; create table never (id int); alter table t add column never int; rollback",
    "begin; truncate t; rollback",
    "do $$ begin update t set v = 0; raise exception 'no'; exception when raise_exception then null; end $$",
    "update t set v = 0 where false",
    "insert into t values (1, 1) on conflict do nothing",
    "select nextval('ids'), nextval('ids'), currval('ids')",
    "create temp table mine (id int); insert into mine select generate_series(1, 100); update mine set id = 0",
    "begin; create temp table gone (id int) on commit drop; insert into gone values (1); commit",
    "set work_mem = '8MB'; reset work_mem; set search_path = pg_catalog, public; reset search_path",
    "listen news; unlisten *",
    "select pg_advisory_lock(1), pg_advisory_unlock(1)",
    "analyze t",
    "vacuum t",
    "checkpoint",
    "select onetrip.position(), onetrip.pending_keys(), * from onetrip.status",
    "select * from onetrip.last_commit(), onetrip.conflicts",
];

/// Goal: the reader's bill is nothing.  Method: the regions are 300 ms apart, and the server's own counters say how
/// often somebody asked the others; so this does not depend on how fast the machine is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_commits_and_fresh_reads_asks_other_regions() {
    let about = "connecting, catalog queries, planning, reads, aborts, nextval: none of them asks other regions";
    let lab = start_from("crossings", about, builder().topology(apart(300))).await;
    let a = lab.session(0).await;
    a.must("create table t (id int primary key, v int); create sequence ids").await;
    a.must("insert into t select n, n from generate_series(1, 5) n").await;
    lab.everywhere().await;
    let c = lab.session(2).await;
    let before = number(&c, CROSSED).await.unwrap();
    for _ in 0..3 {
        lab.session(2).await.must("select 1").await;
    }
    let told = psql(&lab, 2, CATALOGS).await;
    assert!(told.contains("t_pkey") && !told.contains("ERROR"), "{told}");
    nothing_crossed(&c, before, "connecting and catalog queries").await;
    for statement in STAYS {
        c.must(statement).await;
        nothing_crossed(&c, before, statement).await;
    }
    // The extended protocol, as drivers use it.
    let prepared = c.prepare("select v from t where id = $1").await.unwrap();
    c.query(&prepared, &[&1]).await.unwrap();
    nothing_crossed(&c, before, "a prepared statement of a driver").await;
    the_first_query_after_ddl_elsewhere(&lab).await;
    catalogs_are_never_read_fresh(&lab).await;
    what_does_cross_is_counted(&lab).await;
    explain_says_what_is_asked(&lab).await;
    no_more_than_is_allowed(&lab).await;
    lab.check_equal(1).await;
}

async fn nothing_crossed(c: &crate::lab::Session, before: i64, what: &str) {
    assert_eq!(number(c, CROSSED).await.unwrap(), before, "{what}");
}

async fn the_first_query_after_ddl_elsewhere(lab: &Lab) {
    let (a, c) = (lab.session(0).await, lab.session(2).await);
    let before = number(&c, CROSSED).await.unwrap();
    for statement in ["alter table t add column later int default 7", "create view seen as select * from t"] {
        a.must(statement).await;
        lab.everywhere().await;
        c.must("select later from t").await;
        nothing_crossed(&c, before, statement).await;
    }
    c.must("select * from seen").await;
    nothing_crossed(&c, before, "a new view").await;
}

/// A role that reads fresh connects, and is told of definitions, as any other does.
async fn catalogs_are_never_read_fresh(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("alter role postgres set onetrip.read = fresh").await;
    lab.everywhere().await;
    let c = lab.session(2).await;
    let before = number(&c, CROSSED).await.unwrap();
    for _ in 0..3 {
        let c = lab.session(2).await;
        assert_eq!(text(&c, "show onetrip.read").await.unwrap(), "fresh");
        nothing_crossed(&c, before, "connecting").await;
    }
    let looks =
        CATALOGS.replace("copy t to stdout;", "select conname from pg_constraint where conrelid = 't'::regclass;");
    let told = psql(lab, 2, &looks).await;
    assert!(told.contains("t_pkey"), "{told}");
    let c = lab.session(2).await;
    nothing_crossed(&c, before, "catalog queries of psql, with onetrip.read = fresh").await;
    // The first query about a table, in the extended protocol, asks once.
    let prepared = c.prepare("select v from t where id = $1").await.unwrap();
    nothing_crossed(&c, before, "preparing").await;
    c.query(&prepared, &[&1]).await.unwrap();
    nothing_crossed(&c, before + 1, "reading").await;
    a.must("alter role postgres reset onetrip.read").await;
    lab.everywhere().await;
}

async fn what_does_cross_is_counted(lab: &Lab) {
    let c = lab.session(2).await;
    let count = |cause: &str| format!("select count from onetrip.crossings where cause = '{cause}'");
    let locks = number(&c, &count("row lock")).await.unwrap();
    for (statement, commits, reads, rehearsals) in [
        ("insert into t values (6, 6)", 1, 0, 0),
        ("begin; insert into t values (7, 7); update t set v = 0; select count(*) from t; commit", 1, 0, 0),
        ("create index on t (v)", 1, 0, 1),
        ("notify news", 1, 0, 0),
        ("begin; notify news, 'x'; insert into t values (80, 8); commit", 1, 0, 0),
        ("begin; notify news; rollback", 0, 0, 0),
        ("set onetrip.read = fresh; select count(*) from t; reset onetrip.read", 0, 1, 0),
        ("begin; set local onetrip.read = fresh; select 1 from t; select 2 from t; commit", 0, 1, 0),
    ] {
        let mut before = Vec::new();
        for cause in ["commit", "fresh read", "rehearsal"] {
            before.push(number(&c, &count(cause)).await.unwrap());
        }
        c.must(statement).await;
        for (n, (cause, expected)) in
            [("commit", commits), ("fresh read", reads), ("rehearsal", rehearsals)].into_iter().enumerate()
        {
            let now = number(&c, &count(cause)).await.unwrap();
            assert_eq!(now - before[n], expected, "{cause}: {statement}");
        }
    }
    // Only DDL asks for one, if another region has carried out DDL within the last seconds.
    a_line_for_ddl(lab, &c, &count("row lock"), locks).await;
}

async fn a_line_for_ddl(lab: &Lab, c: &crate::lab::Session, count: &str, before: i64) {
    assert!(number(c, count).await.unwrap() <= before + 1, "create index");
    lab.session(0).await.must("create table line (id int)").await;
    lab.everywhere().await;
    let before = number(c, count).await.unwrap();
    c.must("begin; alter table line add column v int; alter table line add column w int; commit").await;
    assert_eq!(number(c, count).await.unwrap(), before + 1);
}

/// Who would need more trips than allowed fails before anything is sent.
/// `EXPLAIN (ANALYZE, DIST)` of a statement in region c, without its plan.
async fn bill(c: &crate::lab::Session, statement: &str) -> serde_json::Value {
    let sql = format!("explain (analyze, dist, format json) {statement}");
    let answer = c.simple_query(&sql).await.unwrap();
    let row = answer.iter().find_map(|m| match m {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let queries: serde_json::Value = serde_json::from_str(row.unwrap()).unwrap();
    queries[1]["Distribution"].clone()
}

async fn explain_says_what_is_asked(lab: &Lab) {
    let c = lab.session(2).await;
    let position = number(&c, "select onetrip.position()").await.unwrap();
    let local = bill(&c, "select count(*) from t").await;
    assert_eq!((&local["Round Trips"], &local["Round Trips at COMMIT"]), (&0.into(), &0.into()), "{local}");
    assert!(local["Snapshot Position"].as_i64() >= Some(position), "{local}, not {position}");
    assert_eq!(local["Fresh Read"], serde_json::Value::Null);
    c.must("set onetrip.read = fresh").await;
    let fresh = bill(&c, "select count(*) from t").await;
    assert_eq!((&fresh["Round Trips"], &fresh["Round Trips at COMMIT"]), (&1.into(), &0.into()), "{fresh}");
    let asked = fresh["Fresh Read"]["Asked Other Regions"].as_f64().unwrap();
    assert!((290.0..5_000.0).contains(&asked), "{fresh}: the others are 300 ms away");
    c.must("begin; select 1 from t").await;
    let later = bill(&c, "update t set v = v + 1").await;
    c.must("rollback; reset onetrip.read").await;
    assert_eq!((&later["Round Trips"], &later["Round Trips at COMMIT"]), (&0.into(), &1.into()), "{later}");
    let verdicts = "select (p50_ms between 290 and 5000) and (mean_ms between 290 and 5000) and count > 2
                    from onetrip.commits where part = 'verdict'";
    assert!(c.query_one(verdicts, &[]).await.unwrap().get::<_, bool>(0));
}

async fn no_more_than_is_allowed(lab: &Lab) {
    let c = lab.session(2).await;
    let before = number(&c, CROSSED).await.unwrap();
    for (max, statement) in [
        (0, "insert into t values (8, 8)"),
        (0, "select onetrip.advance()"),
        (0, "begin; insert into t values (8, 8); commit"),
        (1, "create table too_much (id int primary key)"),
        (1, "begin; create table too_much (id int primary key); insert into t values (8, 8); commit"),
        (0, "begin; set local onetrip.read = fresh; select count(*) from t; commit"),
        (0, "begin isolation level repeatable read; set local onetrip.read = fresh; commit"),
        (0, "select * from onetrip.members"),
        (0, "begin; set local onetrip.read = fresh; select * from onetrip.lag; commit"),
        (0, "select onetrip.outcome('1-1-1', settle => true)"),
    ] {
        c.must(&format!("set onetrip.max_trips = {max}")).await;
        let error = c.refused(statement).await;
        assert_eq!(error.code().code(), "53400", "{statement}: {error}");
        c.must("rollback").await;
        nothing_crossed(&c, before, statement).await;
    }
    // What was read fresh counts for the COMMIT.
    let reads_and_writes =
        "begin; set local onetrip.read = fresh; select count(*) from t; insert into t values (8, 8); commit";
    c.must("set onetrip.max_trips = 1").await;
    let error = c.refused(reads_and_writes).await;
    assert_eq!(error.code().code(), "53400", "{error}");
    c.must("rollback; set onetrip.max_trips = 2").await;
    c.must(reads_and_writes).await;
    // Each transaction of a procedure has its own.
    c.must(
        "create procedure two() language plpgsql as
             $$ begin delete from t where id = 8; commit; insert into t values (8, 8); end $$",
    )
    .await;
    c.must("set onetrip.max_trips = 1").await;
    c.must("call two()").await;
}
