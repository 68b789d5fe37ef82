//! Statements that change the schema, executed in a region that does not lead, take effect in all regions; those that
//! cannot be replicated are refused at once.

use crate::lab::{number, start, subjects, text, Lab, Session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ddl_given_in_any_region_is_there_in_all() {
    let lab = start("ddl", "every kind of DDL from regions that do not lead, and what is refused").await;
    // The objects that the subjects share.
    let shared = "create schema shop; create table shop.thing (id int primary key, title text not null, stock int not null default 7);
                  insert into shop.thing select g, 'item ' || g from generate_series(1, 100) g; update shop.thing set stock = 8 where id = 1";
    lab.session(1).await.must(shared).await;
    subjects!(lab, 6;
        tables, other_objects, roles, settings, tables_from_queries, indexes_made_anew, with_rows_in_one_transaction,
        refused
    );
}

/// Executes a statement in one region; then the query must give this text in all regions.
async fn then_shows(lab: &Lab, session: &Session, statement: &str, query: &str, expected: &str) {
    // The statement's objects may have been created in another region.
    lab.everywhere().await;
    session.must(statement).await;
    lab.shows(query, expected).await;
}

async fn tables(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    then_shows(lab, &b, "create schema depot", "select count(*) from pg_namespace where nspname = 'depot'", "1").await;
    c.must("create table depot.item (id int primary key, name text not null, price numeric default 1)").await;
    lab.everywhere().await;
    b.must("insert into depot.item select g, 'item ' || g from generate_series(1, 100) g").await;
    lab.everywhere().await;
    then_shows(
        lab,
        &c,
        "alter table depot.item add column stock int not null default 7",
        "select sum(stock) from depot.item",
        "700",
    )
    .await;
    then_shows(
        lab,
        &b,
        "alter table depot.item alter column price type float8 using price * 2",
        "select sum(price) from depot.item",
        "200",
    )
    .await;
    then_shows(
        lab,
        &c,
        "alter table depot.item add constraint positive check (price > 0), add constraint once unique (name)",
        "select string_agg(conname, ' ' order by conname) from pg_constraint where conrelid = 'depot.item'::regclass and contype <> 'n'",
        "item_pkey once positive",
    )
    .await;
    then_shows(
        lab,
        &b,
        "create unique index item_lower on depot.item (lower(name)) where id > 0",
        "select indisvalid from pg_index where indexrelid = 'depot.item_lower'::regclass",
        "t",
    )
    .await;
    then_shows(
        lab,
        &c,
        "drop index depot.item_lower",
        "select count(*) from pg_class where relname = 'item_lower'",
        "0",
    )
    .await;
    then_shows(
        lab,
        &b,
        "alter table depot.item rename column name to title; alter table depot.item rename to thing",
        "select count(title) from depot.thing",
        "100",
    )
    .await;
    then_shows(
        lab,
        &c,
        "alter table depot.thing drop column price",
        "select (t.*)::text from depot.thing t where id = 1",
        "(1,\"item 1\",7)",
    )
    .await;
    // Values of rows still get into the right columns after one was dropped.
    then_shows(
        lab,
        &b,
        "update depot.thing set stock = 8 where id = 1",
        "select (t.*)::text from depot.thing t where id = 1",
        "(1,\"item 1\",8)",
    )
    .await;
    b.must("create table depot.gone (id int primary key); insert into depot.gone values (1)").await;
    then_shows(lab, &c, "drop table depot.gone", "select to_regclass('depot.gone') is null", "t").await;
}

async fn other_objects(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    then_shows(
        lab,
        &b,
        "create view shop.few as select * from shop.thing where id < 4",
        "select count(*) from shop.few",
        "3",
    )
    .await;
    then_shows(
        lab,
        &c,
        "create materialized view shop.sum as select sum(stock) from shop.thing; refresh materialized view shop.sum",
        "select * from shop.sum",
        "701",
    )
    .await;
    then_shows(
        lab,
        &b,
        "create function shop.twice(n int) returns int language sql immutable as 'select n * 2'",
        "select shop.twice(21)",
        "42",
    )
    .await;
    then_shows(
        lab,
        &c,
        "create type shop.size as enum ('s', 'm'); alter type shop.size add value 'l'",
        "select enum_range(null::shop.size)",
        "{s,m,l}",
    )
    .await;
    then_shows(
        lab,
        &b,
        "create sequence shop.numbers start 100",
        "select count(*) from pg_class where relname = 'numbers'",
        "1",
    )
    .await;
    then_shows(
        lab,
        &c,
        "create domain shop.short as text check (length(value) < 5); alter domain shop.short set default 'x'",
        "select typdefault from pg_type where typname = 'short'",
        "'x'::text",
    )
    .await;
    then_shows(
        lab,
        &b,
        "create function shop.stamp() returns trigger language plpgsql as $$ begin new.stock := new.stock + 1000; return new; end $$;
         create trigger stamp before insert on shop.thing for each row execute function shop.stamp();
         insert into shop.thing values (101, 'stamped', 1)",
        "select stock from shop.thing where id = 101",
        "1001",
    )
    .await;
    then_shows(
        lab,
        &c,
        "drop trigger stamp on shop.thing; drop function shop.stamp()",
        "select count(*) from pg_trigger where tgname = 'stamp'",
        "0",
    )
    .await;
    then_shows(
        lab,
        &b,
        "create extension if not exists plpgsql; comment on table shop.thing is 'things'",
        "select obj_description('shop.thing'::regclass)",
        "things",
    )
    .await;
    then_shows(
        lab,
        &c,
        "create rule nothing as on delete to shop.thing where old.id = 5 do instead nothing; delete from shop.thing where id = 5",
        "select count(*) from shop.thing where id = 5",
        "1",
    )
    .await;
    then_shows(
        lab,
        &b,
        "alter table shop.thing enable row level security; create policy all_of_it on shop.thing using (true)",
        "select count(*) from pg_policy where polname = 'all_of_it'",
        "1",
    )
    .await;
}

async fn roles(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must("create role clerk login password 'not in the log'; create role staff; grant staff to clerk").await;
    let verifier = text(&b, "select rolpassword from pg_authid where rolname = 'clerk'").await.unwrap();
    lab.shows("select rolpassword from pg_authid where rolname = 'clerk'", &verifier).await;
    c.must(
        "grant usage on schema shop to staff; grant select on shop.thing to staff; alter role clerk connection limit 5",
    )
    .await;
    lab.shows(
        "select has_table_privilege('clerk', 'shop.thing', 'select') || ' ' || has_table_privilege('clerk', 'shop.thing', 'insert')
             || ' ' || (select rolconnlimit from pg_roles where rolname = 'clerk')",
        "true false 5",
    )
    .await;
    // Elsewhere a statement runs as the same role and with the same settings as here.
    b.must("grant create on schema shop to staff; set role clerk; set search_path = shop").await;
    b.must("create table owned (id int primary key); insert into owned values (1); reset role; reset search_path")
        .await;
    lab.shows("select pg_get_userbyid(relowner) from pg_class where oid = 'shop.owned'::regclass", "clerk").await;
    c.must("drop table shop.owned; drop owned by staff; drop role clerk; drop role staff").await;
    lab.shows("select count(*) from pg_roles where rolname in ('clerk', 'staff')", "0").await;
    for node in lab.nodes() {
        let folder = node.folder().join("log");
        let mut statement_is_there = false;
        for file in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let file = file.expect("list the log").path();
            let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let contains = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
            assert!(!contains("not in the log"), "{} contains a password in clear text", file.display());
            statement_is_there |= contains("create role clerk");
        }
        assert!(statement_is_there, "the log of {} does not contain what it was looked through for", node.region());
    }
}

/// Whether a library is loaded, which knows what may be set, differs from session to session.
async fn settings(lab: &Lab) {
    const OF_ROLE: &str = "select setconfig::text from pg_db_role_setting where setrole = 'tenant'::regrole";
    const OF_FUNCTION: &str = "select proconfig::text from pg_proc where proname = 'settled'";
    let [a, b, c] = lab.sessions().await;
    a.must("create role tenant; create schema tenant authorization tenant; alter role tenant set app.tenant = '1'")
        .await;
    lab.everywhere().await;
    b.must("do 'begin end'; set session authorization tenant").await;
    let statement = "alter role current_user set plpgsql.check_asserts = off;
                     alter role tenant set plpgsql.extra_warnings = shadowed_variables, strict_multi_assignment;
                     alter role tenant set work_mem = '1MB'";
    let expected = "{app.tenant=1,plpgsql.check_asserts=off,\"plpgsql.extra_warnings=shadowed_variables, strict_multi_assignment\",work_mem=1MB}";
    then_shows(lab, &b, statement, OF_ROLE, expected).await;
    then_shows(lab, &b, "alter role tenant reset all", OF_ROLE, "{app.tenant=1}").await;
    let statement =
        "create function tenant.settled() returns int language sql set plpgsql.check_asserts = off as 'select 1'";
    then_shows(lab, &b, statement, OF_FUNCTION, "{plpgsql.check_asserts=off}").await;
    let statement = "alter function tenant.settled() reset plpgsql.check_asserts set plpgsql.print_strict_params = on";
    then_shows(lab, &b, statement, OF_FUNCTION, "{plpgsql.print_strict_params=on}").await;
    // Nobody checks this here; elsewhere the worker has loaded the library.
    a.must("create function shop.loads() returns int language plpgsql as 'begin return 1; end'").await;
    let statement = "alter role tenant set plpgsql.variable_conflict = 'nonsense'";
    then_shows(lab, &c, statement, OF_ROLE, "{app.tenant=1,plpgsql.variable_conflict=nonsense}").await;
    a.must("drop owned by tenant; drop role tenant; drop function shop.loads()").await;
}

async fn tables_from_queries(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must("create table shop.copy as select id, random() as r, clock_timestamp() as at from shop.thing").await;
    let sum = text(&b, "select count(*) || ' ' || sum(r) || ' ' || max(at) from shop.copy").await.unwrap();
    lab.shows("select count(*) || ' ' || sum(r) || ' ' || max(at) from shop.copy", &sum).await;
    b.must(
        "create type shop.label as enum ('s', 'm');
         create table shop.arrays as select array[id] as ids, '{a}'::varchar(5)[] as vs, '{1.25}'::numeric(5,2)[] as ns,
             array[now()]::timestamptz(3)[] as ts, array['1 day']::interval day to second(2)[] as spans,
             array['1 month']::interval month[] as months, array[b'1']::bit(3)[] as bits, 'x'::varchar(5) as v,
             array['\"x\"=>1'::text]::name[] as names, '{s,m}'::shop.label[] as sizes from shop.thing limit 1",
    )
    .await;
    lab.everywhere().await;
    c.must("select id into shop.into_copy from shop.copy where id <= 10; create table shop.empty as select 1 as x where false").await;
    lab.shows("select (select count(*) from shop.into_copy) || ' ' || (select count(*) from shop.empty)", "10 0").await;
    // Types and collations in a schema that the role may not use.
    b.must(
        "create schema hidden; create type hidden.mood as enum ('ok'); create collation hidden.plain from \"C\";
         create view shop.moods as select 'ok'::hidden.mood as m, array['ok'::hidden.mood] as ms, 'x' collate hidden.plain as t;
         create role asker; grant usage, create on schema shop to asker; grant select on shop.moods to asker",
    )
    .await;
    b.must("set role asker; create table shop.asked as select * from shop.moods; reset role").await;
    lab.shows("select asked::text from shop.asked", "(ok,{ok},x)").await;
    // In all regions now() is the time of the original transaction.
    b.must("create table shop.times (id int primary key); insert into shop.times values (1)").await;
    b.must("alter table shop.times add column at timestamptz not null default now()").await;
    let at = text(&b, "select at from shop.times").await.unwrap();
    lab.shows("select at from shop.times", &at).await;
    // A driver's statement is analyzed when it is prepared, and again when it runs.
    let view = b.prepare("create materialized view shop.dated as select '01/02/2026'::date as d").await.unwrap();
    b.must("set datestyle = 'ISO, DMY'").await;
    b.execute(&view, &[]).await.unwrap();
    b.must("reset datestyle").await;
    lab.shows("select to_char(d, 'DD Mon') from shop.dated", "01 Feb").await;
    c.must("refresh materialized view shop.dated").await;
    lab.shows("select to_char(d, 'DD Mon') from shop.dated", "01 Feb").await;
}

/// Which of two indexes has which copy depends on their OIDs, and so on the order in which they are made anew.
async fn indexes_made_anew(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    b.must(
        "create table shop.alike (id int); create unique index alike_b on shop.alike (id);
         create index alike_a on shop.alike using hash (id)",
    )
    .await;
    lab.everywhere().await;
    // PostgreSQL finds them in the order in which these rows are stored.
    c.must(
        "with gone as (delete from pg_depend where objid = 'shop.alike_b'::regclass returning *)
         insert into pg_depend select * from gone",
    )
    .await;
    b.must(
        "alter table shop.alike alter id type bigint; create table shop.alike_copy (like shop.alike including indexes)",
    )
    .await;
    lab.shows(
        "select string_agg(concat_ws(' ', c.relname, m.amname), ', ' order by c.relname)
         from pg_index join pg_class c on c.oid = indexrelid join pg_am m on m.oid = c.relam
         where indrelid = 'shop.alike_copy'::regclass",
        "alike_copy_id_idx hash, alike_copy_id_idx1 btree",
    )
    .await;
}

async fn with_rows_in_one_transaction(lab: &Lab) {
    let [_, b, c] = lab.sessions().await;
    let before = number(&b, "select proposals from onetrip.status").await.unwrap();
    b.must(
        "begin; create table shop.mixed (id int primary key); insert into shop.mixed values (1), (2);
         alter table shop.mixed add column twice int; update shop.mixed set twice = id * 2; create index on shop.mixed (twice);
         insert into shop.mixed values (3, 6); commit",
    )
    .await;
    assert_eq!(number(&b, "select proposals from onetrip.status").await.unwrap(), before + 1, "one crossing");
    lab.shows("select string_agg(id || ':' || twice, ' ' order by id) from shop.mixed", "1:2 2:4 3:6").await;
    c.must("begin; drop table shop.mixed; create table shop.never (id int); rollback").await;
    c.must(
        "begin; savepoint s; create table shop.never (id int); rollback to s; create table shop.ever (id int); commit",
    )
    .await;
    lab.shows(
        "select (to_regclass('shop.mixed') is null) || ' ' || (to_regclass('shop.never') is null) || ' ' || (to_regclass('shop.ever') is null)",
        "false true false",
    )
    .await;
}

/// A statement that cannot be replicated fails with a hint, and without any effect.
async fn refused(lab: &Lab) {
    let [_, b, _] = lab.sessions().await;
    let position = number(&b, "select onetrip.position()").await.unwrap();
    let statements = [
        "create subscription s connection '' publication p with (connect = false, two_phase = true)",
        "create tablespace t location '/nowhere'",
        "drop database onetrip",
        "drop extension onetrip",
    ];
    for statement in statements {
        let session = lab.session(1).await;
        let why = session.refused(statement).await;
        assert_eq!(why.code().code(), "0A000", "{statement}: {}", why.message());
        assert!(why.hint().is_some_and(|hint| !hint.is_empty()), "{statement}: {} has no hint", why.message());
    }
    let (_kept, table) = prepared(&b, "create table shop.explained as select 1 as x").await;
    let execute = format!("execute {table}");
    for statement in
        ["select 1 as x into shop.explained", "create materialized view shop.explained as select 1 as x", &execute]
    {
        let (_kept, name) = prepared(&b, statement).await;
        let why = b.refused(&format!("explain analyze execute {name}")).await;
        assert_eq!(why.code().code(), "0A000", "{statement}: {}", why.message());
    }
    let why = b.refused("create table shop.shared as select 1 as x; drop extension onetrip").await;
    assert!(why.hint().is_some(), "{}", why.message());
    assert_eq!(number(&b, "select onetrip.position()").await.unwrap(), position, "nothing of it was proposed");
    lab.shows("select to_regclass('shop.shared') is null", "t").await;
}

/// Prepares any statement, as drivers do.  Returns its name, and what has the server keep it until it is dropped.
async fn prepared(session: &Session, statement: &str) -> (tokio_postgres::Statement, String) {
    let kept = session.prepare(statement).await.unwrap();
    let named = format!("select name from pg_prepared_statements where statement = '{statement}'");
    (kept, text(session, &named).await.unwrap())
}
