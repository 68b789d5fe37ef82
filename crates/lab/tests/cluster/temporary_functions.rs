//! A function that depends on a temporary object exists in the region of its session only.  Statements of other
//! regions do the same everywhere, whatever it is called and whatever it depends on, and no region stands still.

use crate::lab::{number, start, subjects, told_db, until, Lab, Session, HEALED, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_functions_are_in_nobodys_way() {
    let lab =
        start("temporary_functions", "functions that depend on a temporary object, beside statements of other regions")
            .await;
    lab.session(0).await.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    subjects!(lab, 1;
        names_are_resolved_as_elsewhere,
        the_same_name_is_given_elsewhere,
        its_schema_is_renamed_and_dropped,
        a_statement_names_no_arguments,
        what_it_depends_on_is_dropped,
        its_body_uses_what_is_temporary,
        its_roles_are_dropped,
        what_other_temporary_objects_depend_on_is_dropped,
        its_transaction_is_under_way,
        its_server_has_crashed,
        check_does_not_see_it,
        nobody_has_waited_in_a_circle,
    );
}

/// A session of region b with a temporary type and a function that returns it.
async fn owner(lab: &Lab, function: &str) -> Session {
    lab.everywhere().await;
    let b = lab.session(1).await;
    until("the last session that had one has ended", SOON, || async { Ok(!exists(&b, function).await) }).await.unwrap();
    b.must("create type pg_temp.label as enum ('temporary')").await;
    b.must(&format!(
        "create function {function} returns pg_temp.label immutable language plpgsql as 'begin return null; end'"
    ))
    .await;
    lab.everywhere().await;
    b
}

async fn exists(session: &Session, function: &str) -> bool {
    let query = format!("select count(to_regprocedure('{function}'))");
    number(&session.client, &query).await.unwrap() == 1
}

/// Goal: `f(1)` finds the permanent `f(bigint)` in each region, though region b has an `f(int)`.
async fn names_are_resolved_as_elsewhere(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must("create function f(bigint) returns text immutable language sql as $$ select 'permanent' $$").await;
    let b = owner(lab, "f(int)").await;
    a.must("create view v as select f(1) as x").await;
    c.must("create materialized view m as select f(2) as x").await;
    a.must("alter table t add column w text default f(3), add constraint c check (f(id) = 'permanent')").await;
    c.must("create function g(a text default f(4)) returns text language sql begin atomic select f(5); end").await;
    let shown = "select concat_ws(' ', (select x from v), (select x from m), pg_get_viewdef('v'), pg_get_functiondef('g'::regproc))";
    let shown = lab.shows_alike(shown).await;
    assert!(shown.starts_with("permanent permanent  SELECT f((1)::bigint) AS x"), "{shown}");
    lab.shows(
        "select count(distinct refobjid)::text from pg_depend where refobjid in (select oid from pg_proc where proname = 'f')",
        "1",
    )
    .await;
    // Region b has it as before, and refuses what would depend on it.
    assert_eq!(number(&b, "select count(*) from t where f(1) is not null").await.unwrap(), 0);
    assert!(exists(&b, "public.f(int)").await);
    let told = told_db(&b.refused("create view w as select f(1)::text as x").await);
    assert!(told.contains("0A000") && told.contains("function f(integer)"), "{told}");
    let other = lab.session(1).await;
    let told = told_db(&other.refused("create view w as select f(1)::text as x").await);
    assert!(told.contains("0A000") && told.contains("function f(integer)"), "{told}");
    b.must("drop function f(int)").await;
    lab.everywhere().await;
    a.must("drop view v; drop materialized view m; alter table t drop column w, drop constraint c; drop function g(text); drop function f(bigint)").await;
    lab.everywhere().await;
}

async fn the_same_name_is_given_elsewhere(lab: &Lab) {
    let a = lab.session(0).await;
    let b = owner(lab, "f(int)").await;
    a.must("create function f(int) returns int language sql as 'select 7'").await;
    lab.shows("select f(1)::text", "7").await;
    // The one of region b is out of the way; its session goes on, and finds the other one.
    assert_eq!(number(&b, "select f(1)").await.unwrap(), 7);
    b.must("comment on function f(int) is 'of all'").await;
    lab.shows("select obj_description('f(int)'::regprocedure)", "of all").await;
    a.must("create or replace function f(int) returns int language sql as 'select 8'").await;
    lab.shows("select f(1)::text", "8").await;
    b.must("drop function f(int)").await;
    lab.shows("select count(to_regproc('f'))::text", "0").await;
    // Taken by a rename.
    b.must("create function f(int) returns pg_temp.label language plpgsql as 'begin return null; end'").await;
    lab.everywhere().await;
    a.must("create function h(int) returns int language sql as 'select 9'; alter function h(int) rename to f").await;
    lab.shows("select f(1)::text", "9").await;
    a.must("drop function f(int)").await;
    lab.everywhere().await;
}

async fn its_schema_is_renamed_and_dropped(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create schema s; create schema r").await;
    let b = owner(lab, "s.f(int)").await;
    b.must("create function r.f(pg_temp.label) returns int language sql as 'select 5'").await;
    lab.everywhere().await;
    a.must("alter schema r rename to renamed").await;
    a.must("drop schema s").await;
    lab.shows("select count(*)::text from pg_namespace where nspname in ('s', 'r')", "0").await;
    assert_eq!(number(&b, "select renamed.f(null)").await.unwrap(), 5);
    assert_eq!(b.refused("select s.f(1)").await.code().code(), "3F000");
    a.must("drop schema renamed").await;
    lab.shows("select count(*)::text from pg_namespace where nspname = 'renamed'", "0").await;
    assert_eq!(number(&b, "select 1").await.unwrap(), 1);
}

/// `DROP FUNCTION f` finds one function elsewhere and two in region b.
async fn a_statement_names_no_arguments(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create function f(bigint) returns int language sql as 'select 1'").await;
    let b = owner(lab, "f(int)").await;
    a.must("comment on function f is 'x'").await;
    a.must("drop function f").await;
    lab.shows("select count(to_regprocedure('f(bigint)'))::text", "0").await;
    assert!(exists(&b, "f(int)").await);
    a.must("drop function if exists f").await;
    lab.everywhere().await;
    assert!(exists(&b, "f(int)").await);
}

/// Goal: a region does not stand still when others drop what the function depends on; the session is ended then.
async fn what_it_depends_on_is_dropped(lab: &Lab) {
    let [a, other, _] = lab.sessions().await;
    a.must("create type pair as (a int, b int); create function one() returns int language sql as 'select 1'").await;
    for (function, dropped) in [
        ("f(pair, pg_temp.label) returns int language sql as 'select 1'", "drop type pair"),
        (
            "f(int default one()) returns pg_temp.label language plpgsql as 'begin return null; end'",
            "drop function one()",
        ),
    ] {
        let b = owner(lab, "g(int)").await;
        b.must(&format!("create function {function}")).await;
        b.must("create temporary view seen as select g(1)").await;
        lab.everywhere().await;
        a.must(dropped).await;
        lab.everywhere().await;
        let ended = b.ended_by().await.unwrap();
        assert_eq!(ended.code().code(), "57P01", "{}", told_db(&ended));
        until("its functions are gone", SOON, || async {
            let query = "select count(*) from pg_proc where proname in ('f', 'g')";
            Ok(number(&other.client, query).await? == 0)
        })
        .await
        .unwrap();
    }
    // With CASCADE they go, and the session stays.
    a.must("create type pair as (a int, b int)").await;
    let b = owner(lab, "g(int)").await;
    b.must("create function f(pair, pg_temp.label) returns int language sql as 'select 1'").await;
    lab.everywhere().await;
    a.must("drop type pair cascade").await;
    lab.everywhere().await;
    assert!(exists(&b, "g(int)").await);
    assert_eq!(number(&b, "select count(*) from pg_proc where proname = 'f'").await.unwrap(), 0);
}

/// Goal: a function whose body uses a temporary table, and one whose body calls that one, are as temporary as others.
async fn its_body_uses_what_is_temporary(lab: &Lab) {
    let [a, other, _] = lab.sessions().await;
    a.must("create table used (id int primary key, v int)").await;
    a.must("create function f(bigint) returns text immutable language sql as $$ select 'permanent' $$").await;
    lab.everywhere().await;
    let b = lab.session(1).await;
    b.must("create temporary table mine (id int)").await;
    b.must("create function f(int) returns text immutable language sql return (select max(mine.id + used.v)::text from mine, used)").await;
    b.must("create function g(int) returns text immutable language sql return f($1)").await;
    lab.everywhere().await;
    a.must("create view v as select f(1) as x").await;
    lab.shows("select x from v", "permanent").await;
    a.must("create function g(int) returns text language sql as 'select 7'").await;
    lab.shows("select g(1)", "7").await;
    lab.check_equal(1).await;
    assert!(exists(&b, "f(int)").await);
    a.must("drop view v; drop function g(int), f(bigint)").await;
    lab.everywhere().await;
    assert_eq!(number(&b, "select count(*) from used where f(1) is null").await.unwrap(), 0);
    let told = told_db(&b.refused("create or replace function f(int) returns text language sql return 'x'").await);
    assert!(told.contains("0A000") && told.contains("becomes permanent"), "{told}");
    a.must("alter table used drop column v").await;
    lab.everywhere().await;
    assert_eq!(b.ended_by().await.unwrap().code().code(), "57P01");
    until("its functions are gone", SOON, || async {
        Ok(number(&other.client, "select count(*) from pg_proc where proname in ('f', 'g')").await? == 0)
    })
    .await
    .unwrap();
    a.must("drop table used").await;
    lab.everywhere().await;
}

async fn its_roles_are_dropped(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create role owning; create role calling; create role passing").await;
    let b = owner(lab, "f(int)").await;
    b.must("alter function f(int) owner to owning").await;
    b.must("grant execute on function f(int) to calling").await;
    lab.everywhere().await;
    a.must("reassign owned by owning to passing; alter role passing rename to passed").await;
    lab.everywhere().await;
    assert!(exists(&b, "f(int)").await);
    a.must("drop role owning, calling, passed").await;
    lab.shows("select count(*)::text from pg_roles where rolname in ('owning', 'calling', 'passed')", "0").await;
    b.ended_by().await.unwrap();
    // DROP OWNED takes them along.
    a.must("create role owning").await;
    let b = owner(lab, "f(int)").await;
    b.must("alter function f(int) owner to owning").await;
    lab.everywhere().await;
    a.must("drop owned by owning; drop role owning").await;
    lab.everywhere().await;
    assert!(!exists(&b, "f(int)").await);
}

/// Goal: what a temporary view or table depends on cannot be dropped in the region of its session, and COMMIT says so;
/// but if that region was not asked, it does not stand still: it ends the session.
async fn what_other_temporary_objects_depend_on_is_dropped(lab: &Lab) {
    let a = lab.session(0).await;
    a.must(
        "create table viewed (id int primary key); create type pair as (a int); create domain small as int;
         create type kind as enum ('x'); create type sort as enum ('x');
         create schema inside create table deep (id int primary key);
         create function one() returns int language sql as 'select 1'; create role owning; create role left_over;
         create table owned (id int primary key); alter table owned owner to left_over; create extension citext",
    )
    .await;
    for (temporary, statement) in [
        ("create temporary view seen as select * from viewed", "drop table viewed"),
        ("create temporary table used (p pair[])", "alter type pair alter attribute a type bigint"),
        (
            "create temporary table used (s small); insert into used values (1)",
            "alter domain small add check (value > 5)",
        ),
        ("create temporary table used (k kind)", "drop type kind"),
        ("create type pg_temp.label as enum ('a'); create cast (sort as pg_temp.label) with inout", "drop type sort"),
        ("create temporary table used (d inside.deep)", "drop table inside.deep"),
        ("create temporary view seen as select id, one() from t", "drop function one()"),
        ("create temporary table used (id int); alter table used owner to owning", "drop role owning"),
        ("create temporary view seen as select * from owned", "drop owned by left_over"),
        ("create temporary table used (c citext)", "drop extension citext"),
    ] {
        lab.everywhere().await;
        let b = lab.session(1).await;
        b.must(temporary).await;
        let told = told_db(&a.refused(statement).await);
        assert!(told.contains("a statement fails in region \"b\""), "{statement}: {told}");
        a.must("set onetrip.rehearse = off").await;
        a.must(statement).await;
        a.must("reset onetrip.rehearse").await;
        lab.everywhere().await;
        let ended = b.ended_by().await.unwrap();
        assert_eq!(ended.code().code(), "57P01", "{statement}: {}", told_db(&ended));
    }
    a.must("drop type pair; drop domain small; drop schema inside; drop role left_over").await;
    lab.everywhere().await;
}

/// Goal: a transaction that makes, changes or drops one loses against a statement of another region that comes first.
async fn its_transaction_is_under_way(lab: &Lab) {
    let a = lab.session(0).await;
    for (number, under_way) in [
        "create function f(int) returns pg_temp.label language plpgsql as 'begin return null; end'",
        "create temporary table mine (id int); create function f(int) returns bigint language sql return (select count(*) from mine)",
        "savepoint s; create function f(int) returns text language sql return k(1)::text; release s",
        "comment on function k(int) is 'x'",
        "drop function k(int)",
        "drop type pg_temp.label cascade",
        "drop function k(int); create function f(int) returns pg_temp.label language plpgsql as 'begin return null; end'",
    ]
    .iter()
    .enumerate()
    {
        let b = owner(lab, "k(int)").await;
        b.must(&format!("begin; insert into t values ({}, 0); {under_way}", 100 + number)).await;
        a.must("create function f(int) returns int language sql as 'select 1'").await;
        let lost = b.refused("commit").await;
        assert_eq!(lost.code().code(), "40001", "{under_way}: {}", told_db(&lost));
        a.must("drop function f(int)").await;
        lab.everywhere().await;
    }
    // It need not have written anything; it is idle, so its session ends.
    let b = owner(lab, "k(int)").await;
    b.must("begin; drop function k(int)").await;
    a.must("create table beside (id int primary key)").await;
    lab.everywhere().await;
    assert_eq!(b.ended_by().await.unwrap().code().code(), "40001");
    a.must("drop table beside").await;
    lab.shows("select count(*)::text from t", "0").await;
}

/// Goal: what a crash leaves behind is in nobody's way either.
async fn its_server_has_crashed(lab: &Lab) {
    let a = lab.session(0).await;
    let b = owner(lab, "f(int)").await;
    b.must("create function g(int) returns pg_temp.label language plpgsql as 'begin return null; end'").await;
    lab.node(1).kill9_postgres().unwrap();
    drop(b);
    until("region b is back", HEALED, || async { Ok(lab.connect(1).await.is_ok()) }).await.unwrap();
    a.must("create function f(int) returns int language sql as 'select 1'").await;
    lab.shows("select f(1)::text", "1").await;
    lab.check_equal(1).await;
    a.must("drop function f(int)").await;
    let b = owner(lab, "f(int)").await;
    b.must("drop function f(int)").await;
}

async fn check_does_not_see_it(lab: &Lab) {
    let b = owner(lab, "f(int)").await;
    b.must("create temporary table item (id int)").await;
    b.must(
        "create function plus(pg_temp.label, item) returns pg_temp.label language plpgsql as 'begin return null; end'",
    )
    .await;
    b.must("create aggregate total(item) (sfunc = plus, stype = pg_temp.label)").await;
    b.must("create procedure p(inout item) language plpgsql as 'begin end'").await;
    b.must("comment on function f(int) is 'x'; grant execute on function f(int) to pg_monitor").await;
    b.must("create function counts() returns bigint language sql return (select count(*) from item)").await;
    b.must("create function again() returns bigint language sql return counts()").await;
    b.must("grant execute on function again() to pg_monitor").await;
    lab.check_equal(1).await;
    assert!(exists(&b, "f(int)").await);
}

async fn nobody_has_waited_in_a_circle(lab: &Lab) {
    let log = lab.node(1).postgres_log_tail(1_000_000);
    for said in ["deadlock detected", "a lock without a key", "tuple concurrently updated"] {
        assert!(!log.contains(said), "{said}: {log}");
    }
}
