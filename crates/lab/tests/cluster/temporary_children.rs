//! A temporary table may inherit from a replicated one.  It exists in the region of its session only.  What PostgreSQL
//! does not do to another session's temporary table fails at COMMIT, or ends its session; no region stands still.

use crate::lab::{start, subjects, text, told_db, until, Lab, Session, HEALED};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_children_of_replicated_tables() {
    let lab = start("temporary_children", "temporary tables that inherit, beside statements of other regions").await;
    lab.session(0)
        .await
        .must("create table t (id int primary key, v int); create table other (id int primary key)")
        .await;
    lab.everywhere().await;
    subjects!(lab, 2;
        statements_of_the_parent_reach_the_child,
        rows_of_the_child_are_its_sessions_own,
        what_the_child_is_in_the_way_of_ends_its_session,
        its_transaction_is_under_way,
        its_server_has_crashed,
        a_table_that_had_one_becomes_a_view,
        statistics_of_that_name_end_their_session,
    );
}

/// A session of region b whose table `mine` is a child of t, with one row.
async fn owner(lab: &Lab) -> Session {
    lab.everywhere().await;
    let b = lab.session(1).await;
    b.must("create temporary table mine () inherits (t); insert into mine values (1000, 1)").await;
    b
}

async fn shown(session: &Session, query: &str) -> String {
    text(&session.client, query).await.unwrap()
}

/// PostgreSQL lets other sessions rename the parent's columns, and its own session all.
async fn statements_of_the_parent_reach_the_child(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    let b = owner(lab).await;
    b.must("alter table t add column w int default 7, add check (id > 0)").await;
    lab.everywhere().await;
    c.must("alter table t rename column w to x; alter table only t alter x set default 8").await;
    lab.everywhere().await;
    assert_eq!(shown(&b, "select id || ' ' || x from t").await, "1000 7");
    a.must("insert into t values (1, 1)").await;
    lab.everywhere().await;
    assert_eq!(shown(&b, "select string_agg(x::text, ' ' order by id) from t").await, "8 7");
    b.must("alter table mine add column z int; alter table t add column z int").await;
    let columns = |table| {
        format!(
            "select string_agg(attname, ' ' order by attnum) from pg_attribute
             where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
        )
    };
    lab.shows(&columns("t"), "id v x z").await;
    lab.check_equal(2).await;
    b.must("alter table t drop column x, drop column z, drop constraint t_id_check; delete from t").await;
    lab.shows(&columns("t"), "id v").await;
    assert_eq!(shown(&b, &columns("mine")).await, "id v z");
    b.must("drop table mine").await;
}

async fn rows_of_the_child_are_its_sessions_own(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("insert into t values (1, 1), (2, 2)").await;
    let b = owner(lab).await;
    b.must("update t set v = v + 10").await;
    b.must("delete from t where id = 2").await;
    lab.shows("select string_agg(id || ':' || v, ' ' order by id) from only t", "1:11").await;
    assert_eq!(shown(&b, "select string_agg(id || ':' || v, ' ' order by id) from t").await, "1:11 1000:11");
    // One transaction with rows of both; it is rolled back with both if it loses.
    b.must("begin; update t set v = 0").await;
    a.must("update t set v = 20").await;
    assert_eq!(b.refused("commit").await.code().code(), "40001");
    lab.everywhere().await;
    assert_eq!(shown(&b, "select string_agg(id || ':' || v, ' ' order by id) from t").await, "1:20 1000:11");
    b.must("truncate t").await;
    lab.shows("select count(*)::text from t", "0").await;
    assert_eq!(shown(&b, "select count(*)::text from mine").await, "0");
    b.must("drop table mine").await;
}

/// Goal: COMMIT says so; but a region that was not asked does not stand still.
async fn what_the_child_is_in_the_way_of_ends_its_session(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table ranges (like t) partition by range (id)").await;
    for (statement, undo) in [
        ("alter table t add column w int", "alter table t drop column w"),
        ("alter table t alter v type bigint", "alter table t alter v type int"),
        ("alter table t add constraint positive check (v > 1)", "alter table t drop constraint positive"),
        ("alter table only t add column w int", "alter table t drop column w"),
        ("create publication about for table t", "drop publication about"),
        ("alter table ranges attach partition t for values from (0) to (10)", "alter table ranges detach partition t"),
        ("drop table t", "create table t (id int primary key, v int)"),
    ] {
        let b = owner(lab).await;
        let told = told_db(&a.refused(statement).await);
        assert!(told.contains("a statement fails in region \"b\""), "{statement}: {told}");
        a.must("set onetrip.rehearse = off").await;
        a.must(statement).await;
        a.must("reset onetrip.rehearse").await;
        lab.everywhere().await;
        let ended = b.ended_by().await.unwrap();
        assert_eq!(ended.code().code(), "57P01", "{statement}: {}", told_db(&ended));
        a.must(undo).await;
    }
    a.must("drop table ranges").await;
    lab.everywhere().await;
}

/// Goal: a transaction that holds a lock on one loses against a statement about its parent that comes first.
async fn its_transaction_is_under_way(lab: &Lab) {
    let a = lab.session(0).await;
    for (number, under_way) in [
        "insert into mine values (1001, 1)",
        "select from mine",
        "create index on mine (v)",
        "drop table mine",
        "alter table mine no inherit t",
        "create temporary table below () inherits (mine); drop table below",
        "savepoint s; drop table mine; rollback to s; truncate mine",
    ]
    .iter()
    .enumerate()
    {
        let b = owner(lab).await;
        b.must(&format!("begin; insert into other values ({number}); {under_way}")).await;
        a.must("alter table t add column w int").await;
        let lost = b.refused("commit").await;
        assert_eq!(lost.code().code(), "40001", "{under_way}: {}", told_db(&lost));
        a.must("alter table t drop column w").await;
        lab.everywhere().await;
    }
    // Who only writes the parent does not disturb it, nor the other way round.
    let b = owner(lab).await;
    b.must("begin; insert into other values (100); drop table mine").await;
    a.must("insert into t values (50, 1)").await;
    b.must("commit").await;
    a.must("delete from t").await;
    lab.shows("select count(*)::text from other", "1").await;
}

/// Goal: what a crash leaves behind is in nobody's way.
async fn its_server_has_crashed(lab: &Lab) {
    let a = lab.session(0).await;
    let b = owner(lab).await;
    lab.node(1).kill9_postgres().unwrap();
    drop(b);
    until("region b is back", HEALED, || async { Ok(lab.connect(1).await.is_ok()) }).await.unwrap();
    a.must("set onetrip.rehearse = off; alter table t add column w int; alter table t alter v type bigint").await;
    lab.everywhere().await;
    lab.check_equal(2).await;
}

/// Goal: what each server only believes of a table, until its own VACUUM or ANALYZE, stops no region.
async fn a_table_that_had_one_becomes_a_view(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table seen (id int); create index on seen (id); drop index seen_id_idx").await;
    lab.everywhere().await;
    a.must("vacuum seen").await;
    let b = lab.session(1).await;
    b.must("create temporary table mine () inherits (seen); drop table mine").await;
    a.must("set onetrip.rehearse = off; create rule \"_RETURN\" as on select to seen do instead select 5 as id").await;
    lab.shows("select id::text from seen", "5").await;
    a.must("drop view seen").await;
    // Who asks other regions first asks for the same.
    a.must("create table seen (id int); create index on seen (id); drop index seen_id_idx").await;
    lab.everywhere().await;
    a.must("vacuum seen").await;
    a.must("create rule \"_RETURN\" as on select to seen do instead select 6 as id").await;
    lab.shows("select id::text from seen", "6").await;
    a.must("drop view seen").await;
}

/// In the other regions IF EXISTS finds nothing.
async fn statistics_of_that_name_end_their_session(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    b.must("create temporary table measured (x int, y int); create statistics st on x, y from measured").await;
    a.must("create role no_owner; grant usage on schema public to no_owner").await;
    lab.everywhere().await;
    a.must("set onetrip.rehearse = off; set role no_owner").await;
    a.must("alter statistics if exists public.st set statistics 10").await;
    lab.everywhere().await;
    until("the session has ended", HEALED, || async { Ok(b.run("select 1").await.is_err()) }).await.unwrap();
    a.must("reset role; drop owned by no_owner; drop role no_owner").await;
}
