//! DETACH PARTITION CONCURRENTLY in every region: a first entry marks the partition, each region waits for those who
//! may use it without the mark, and a second entry takes it off.  Writers of the other partitions notice nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::jobs::hold_worker_of;
use crate::lab::{lost, number, start, subjects, text, until, Lab, Session, SOON};
use crate::unique_jobs::{beside, failed, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn partitions_are_detached_concurrently_in_every_region() {
    let lab = start("detach", "partitions that are detached while all regions use the other ones").await;
    subjects!(lab, 2;
        in_every_region, with_writers, those_who_use_it, given_up, statements_in_between, older_snapshots, ddl_that_waited, dropped, referenced,
        partitions_of_partitions, as_written, second_entry_loses, again_and_again, published, session_is_killed, away
    );
}

/// A table of three partitions with a row in each, and its name as a prefix of theirs.
async fn make(lab: &Lab, name: &str) {
    lab.session(0)
        .await
        .must(&format!(
            "create table {name} (id int primary key, v int) partition by range (id);
             create table {name}_1 partition of {name} for values from (0) to (100);
             create table {name}_2 partition of {name} for values from (100) to (200);
             create table {name}_3 partition of {name} for values from (200) to (300000);
             insert into {name} values (1, 1), (101, 1), (201, 1)"
        ))
        .await;
    lab.everywhere().await;
}

async fn drop_all(lab: &Lab, name: &str) {
    let drop = format!("drop table if exists {name}, {name}_1, {name}_2, {name}_3 cascade");
    lab.session(0).await.must(&drop).await;
    lab.everywhere().await;
}

async fn equal(lab: &Lab) {
    lab.everywhere().await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "{output}");
}

/// In all regions, how many rows the table shows, and whether the partition is one.
async fn shows(lab: &Lab, name: &str, rows: usize, partition: &str) {
    lab.everywhere().await;
    let query = format!(
        "select (select count(*) from {name}) || ' ' || coalesce((select case when inhdetachpending then 'marked' else 'attached' end
         from pg_inherits where inhrelid = '{name}_1'::regclass), 'detached')"
    );
    lab.shows(&query, &format!("{rows} {partition}")).await;
}

async fn forgotten(lab: &Lab) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        until(&format!("the jobs of region {region} are forgotten"), SOON * 2, || async {
            Ok(number(session, "select (select count(*) from onetrip.jobs) + (select count(*) from onetrip.job_here)")
                .await?
                == 0)
        })
        .await
        .unwrap();
    }
}

/// Stops the worker of a region that waits for those who use partitions, or lets it go on.  It is there for a minute
/// after the last partition was detached.
async fn hold(session: &Session, hold: bool) {
    hold_worker_of(session, "onetrip detach worker", hold).await
}

/// Waits until the partition is marked in the session's region.
async fn marked(session: &Session, partition: &str) {
    let query =
        format!("select count(*) from pg_inherits where inhdetachpending and inhrelid = to_regclass('{partition}')");
    until("the partition is marked", SOON * 2, || async { Ok(number(session, &query).await? == 1) }).await.unwrap();
}

/// Waits until so many regions have told that nobody there uses the partition any more.
async fn told(session: &Session, partition: &str, regions: i64) {
    let query = format!("select count(*) from onetrip.jobs where state = 'done' and index = 'public.{partition}'");
    until(&format!("{regions} regions are done"), SOON * 2, || async { Ok(number(session, &query).await? == regions) })
        .await
        .unwrap();
}

async fn in_every_region(lab: &Lab) {
    make(lab, "day").await;
    let [a, b, c] = lab.sessions().await;
    b.must("alter table day detach partition day_1 concurrently").await;
    shows(lab, "day", 2, "detached").await;
    let check =
        "select string_agg(conname || ' ' || pg_get_constraintdef(oid) || ' ' || convalidated, '; ') from pg_constraint
                 where conrelid = 'day_1'::regclass and contype = 'c'";
    lab.shows(check, "day_1_id_check CHECK (((id IS NOT NULL) AND (id >= 0) AND (id < 100))) true").await;
    a.refused("insert into day_1 values (500, 1)").await;
    forgotten(lab).await;

    // Once more: the constraint says the same as the bounds, so there is no second one.
    c.must("alter table day attach partition day_1 for values from (0) to (100)").await;
    lab.everywhere().await;
    a.must("alter table only public.day detach partition public.day_1 concurrently").await;
    shows(lab, "day", 2, "detached").await;
    lab.shows("select count(*) from pg_constraint where conrelid = 'day_1'::regclass and contype = 'c'", "1").await;
    equal(lab).await;

    for (statement, state) in [
        ("alter table day detach partition day_1 concurrently", "42P01"),
        ("alter table day detach partition absent concurrently", "42P01"),
        ("alter table absent detach partition day_1 concurrently", "42P01"),
        ("alter table day detach partition day_2 finalize", "55000"),
    ] {
        assert_eq!(b.refused(statement).await.code().code(), state, "{statement}");
    }
    b.must("create role has_nothing; set role has_nothing").await;
    assert_eq!(b.refused("alter table day detach partition day_2 concurrently").await.code().code(), "42501");
    b.must("reset role; drop role has_nothing").await;

    a.must("create table day_4 partition of day default").await;
    assert_eq!(a.refused("alter table day detach partition day_2 concurrently").await.code().code(), "55000");
    a.must("drop table day_4").await;

    // Unlogged ones, and those of a hash, whose bounds name the partitioned table and leave no constraint.
    a.must("create table h (id int) partition by hash (id); create unlogged table h_0 partition of h for values with (modulus 1, remainder 0)").await;
    lab.everywhere().await;
    c.must("alter table h detach partition h_0 concurrently").await;
    lab.shows("select count(*) from pg_constraint where conrelid = 'h_0'::regclass", "0").await;
    c.must("drop table h, h_0").await;
    drop_all(lab, "day").await;
}

/// Clients of all regions write the other partitions all the time, through the table: none of them loses.
async fn with_writers(lab: &Lab) {
    make(lab, "busy").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for region in 0..3 {
        let (session, stop) = (lab.session(region).await, stop.clone());
        session.must("set onetrip.statement_retries = 0").await;
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) && written < 20_000 {
                let id = 1000 + region * 20_000 + written;
                session.must(&format!("insert into busy values ({id}, 0)")).await;
                session.must(&format!("begin; update busy set v = v + 1 where id = {id}; select count(*) from busy where id < 150; commit")).await;
                written += 1;
            }
            written
        }));
    }
    lab.session(1).await.must("alter table busy detach partition busy_1 concurrently").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 10, "a writer has hardly written anything");
    }
    shows_rows(
        lab,
        "(select count(*) from busy_1) || ' ' || (select bool_and(v > 0 or id < 1000) from busy)",
        "1 true",
    )
    .await;
    forgotten(lab).await;
    drop_all(lab, "busy").await;
}

async fn shows_rows(lab: &Lab, what: &str, expected: &str) {
    lab.everywhere().await;
    lab.shows(&format!("select {what}"), expected).await;
    equal(lab).await;
}

/// Transactions of other regions that use it are waited for, and those that begin later do not see it.
async fn those_who_use_it(lab: &Lab) {
    make(lab, "used").await;
    let [a, b, c] = lab.sessions().await;
    let (reader, repeatable, writer) = (lab.session(2).await, lab.session(0).await, lab.session(0).await);
    reader.must("begin; select count(*) from used").await;
    repeatable.must("begin isolation level repeatable read; select count(*) from used").await;
    writer.must("begin; insert into used values (2, 2)").await;
    let direct = lab.session(0).await;
    direct.must("begin; select count(*) from used_1").await;
    let detaching = beside(lab, 1, "alter table used detach partition used_1 concurrently").await;
    marked(&a, "used_1").await;
    marked(&c, "used_1").await;
    told(&a, "used_1", 1).await;
    for session in [&a, &b, &c] {
        assert_eq!(number(session, "select count(*) from used").await.unwrap(), 2);
        assert_eq!(session.refused("insert into used values (3, 3)").await.code().code(), "23514");
        session.must("update used set v = v + 1 where id > 100").await;
        lab.everywhere().await;
    }
    let states = "select string_agg(region || ' ' || state, ', ' order by node_id) from onetrip.jobs where index = 'public.used_1'";
    until("all regions tell that they wait, or do not", SOON, || async {
        Ok(text(&a, states).await? == "a waiting, b done, c waiting")
    })
    .await
    .unwrap();
    assert_eq!(number(&repeatable, "select count(*) from used").await.unwrap(), 3, "its snapshot has the partition");
    assert_eq!(number(&reader, "select count(*) from used").await.unwrap(), 2);
    writer.must("commit").await;
    repeatable.must("commit").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(text(&a, states).await.unwrap(), "a waiting, b done, c waiting");
    direct.must("commit").await;
    told(&b, "used_1", 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!detaching.is_finished(), "the reader of the third region is waited for");
    reader.must("commit").await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    shows(lab, "used", 2, "detached").await;
    lab.shows("select count(*) from used_1", "2").await;
    forgotten(lab).await;
    drop_all(lab, "used").await;
}

/// Whoever gives up leaves the partition marked, in every region, until somebody finalizes that.
async fn given_up(lab: &Lab) {
    make(lab, "kept").await;
    let [a, b, c] = lab.sessions().await;
    let reader = lab.session(2).await;
    reader.must("begin; select count(*) from kept").await;
    b.must("set statement_timeout = '2s'").await;
    assert_eq!(b.refused("alter table kept detach partition kept_1 concurrently").await.code().code(), "57014");
    b.must("reset statement_timeout").await;
    shows(lab, "kept", 2, "marked").await;
    equal(lab).await;
    for statement in [
        "alter table kept detach partition kept_1 concurrently",
        "alter table kept detach partition kept_2 concurrently",
        "alter table kept detach partition kept_1",
    ] {
        assert_eq!(a.refused(statement).await.code().code(), "55000", "{statement}");
    }
    let refused = a.refused("begin; alter table kept detach partition kept_1 finalize").await;
    assert!(refused.code().code() == "55000" && refused.message().contains("region \"c\""), "{refused:?}");
    a.must("rollback").await;
    let finalizing = beside(lab, 0, "alter table kept detach partition kept_1 finalize").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!finalizing.is_finished(), "it waits for the reader");
    reader.must("commit").await;
    finalizing.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    shows(lab, "kept", 2, "detached").await;

    // Nobody uses it any more, so it may be finalized within a transaction.
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table kept detach partition kept_2 concurrently").await;
    told(&a, "kept_2", 2).await;
    b.must("select pg_cancel_backend(pid) from pg_stat_activity where query ^@ 'alter table kept detach'").await;
    assert_eq!(failed(detaching).await, "57014");
    hold(&c, false).await;
    told(&c, "kept_2", 3).await;
    lab.everywhere().await;
    c.must("begin; alter table kept detach partition kept_2 finalize; insert into kept_2 values (150, 7); commit")
        .await;
    lab.shows("select (select count(*) from kept) || ' ' || (select count(*) from kept_2)", "1 2").await;
    equal(lab).await;
    forgotten(lab).await;
    drop_all(lab, "kept").await;
}

/// DDL that comes between the two entries has the same effect everywhere.
async fn statements_in_between(lab: &Lab) {
    make(lab, "between").await;
    let [a, b, c] = lab.sessions().await;
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table between detach partition between_1 concurrently").await;
    marked(&a, "between_1").await;
    lab.everywhere().await;
    a.must("alter table between add column extra int default 5; create index between_v on between (v); comment on table between_1 is 'marked'").await;
    assert_eq!(
        a.refused("create table between_9 partition of between for values from (50) to (60)").await.code().code(),
        "42P17"
    );
    b.must("alter table between add column uuid uuid default gen_random_uuid();").await;
    lab.everywhere().await;
    equal(lab).await;
    assert!(!detaching.is_finished());
    c.must("alter table between_1 rename to between_0; alter table between rename to beyond").await;
    hold(&c, false).await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    lab.everywhere().await;
    lab.shows("select (select count(*) from beyond) || ' ' || (select count(*) from between_0) || ' ' || (select count(*) from pg_attribute where attrelid = 'between_0'::regclass and attnum > 0)", "2 1 2").await;
    equal(lab).await;
    a.must("drop table beyond, between_0").await;
    forgotten(lab).await;
}

/// DDL in a transaction whose snapshot is from before the mark would see the partition, and no other region would.
async fn older_snapshots(lab: &Lab) {
    make(lab, "old").await;
    let [a, _, c] = lab.sessions().await;
    let repeatable = lab.session(0).await;
    repeatable.must("begin isolation level repeatable read; select 1 from pg_class").await;
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table old detach partition old_1 concurrently").await;
    marked(&a, "old_1").await;
    assert_eq!(repeatable.refused("alter table old add column extra int").await.code().code(), "40001");
    repeatable
        .must("rollback; begin isolation level repeatable read; alter table old add column extra int; commit")
        .await;
    lab.everywhere().await;
    hold(&c, false).await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    c.refused("alter table old attach partition old_1 for values from (0) to (100)").await;
    equal(lab).await;
    drop_all(lab, "old").await;
}

/// DDL that waits for DDL of another region has a snapshot from before the mark that it waited for.
async fn ddl_that_waited(lab: &Lab) {
    make(lab, "waited").await;
    let [a, _, c] = lab.sessions().await;
    for round in 0..3 {
        hold(&c, true).await;
        let early = lab.session(0).await;
        early.must("begin; create schema in_the_way").await;
        let detaching = beside(lab, 1, "alter table waited detach partition waited_1 concurrently").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let session = lab.session(0).await;
        let add = format!("alter table waited add column extra{round} int default 5");
        let waiting = tokio::spawn(async move { session.run(&add).await });
        waiting.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
        lab.everywhere().await;
        lab.shows(
            "select count(*) from pg_attribute where attrelid = 'waited_1'::regclass and attname ^@ 'extra'",
            "0",
        )
        .await;
        equal(lab).await;
        hold(&c, false).await;
        detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
        drop_all(lab, "waited").await;
        make(lab, "waited").await;
    }
    a.must("drop schema if exists in_the_way").await;
    forgotten(lab).await;
    drop_all(lab, "waited").await;
}

/// The partition or its table goes while it is waited for.
async fn dropped(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    for (drop, what) in
        [("drop table gone_1", "partition \"gone_1\" was removed"), ("drop table gone", "table \"gone\" was removed")]
    {
        make(lab, "gone").await;
        hold(&c, true).await;
        let detaching = beside(lab, 1, "alter table gone detach partition gone_1 concurrently").await;
        told(&a, "gone_1", 2).await;
        a.must(drop).await;
        let ended = detaching.await.unwrap().unwrap_err();
        let error = said(ended);
        assert!(error.code().code() == "55000" && error.message().contains(what), "{drop}: {error:?}");
        hold(&c, false).await;
        forgotten(lab).await;
        drop_all(lab, "gone").await;
    }
}

/// Foreign keys that refer to the table: not while rows refer to the partition, and none can once it is marked.
async fn referenced(lab: &Lab) {
    make(lab, "main").await;
    let [a, b, c] = lab.sessions().await;
    a.must("create table refers (id int primary key, main int references main); insert into refers values (1, 1)")
        .await;
    lab.everywhere().await;
    assert_eq!(b.refused("alter table main detach partition main_1 concurrently").await.code().code(), "23503");
    shows(lab, "main", 3, "attached").await;
    b.must("update refers set main = 101").await;
    lab.everywhere().await;
    // A row that another region writes meanwhile: either it loses, or the statement finds it.
    for round in 0..6 {
        let writer = lab.session(0).await;
        writer.must(&format!("begin; insert into refers values ({}, 1)", round + 10)).await;
        let detaching = beside(lab, 1, "alter table main detach partition main_1 concurrently").await;
        tokio::time::sleep(Duration::from_millis(round * 20)).await;
        let written = writer.run("commit").await;
        let detached = detaching.await.unwrap();
        lab.everywhere().await;
        assert!(written.is_err() || detached.is_err(), "a row refers to what is detached");
        if detached.is_ok() {
            c.must("alter table main attach partition main_1 for values from (0) to (100)").await;
        }
        c.must("delete from refers where id >= 10").await;
        equal(lab).await;
    }
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table main detach partition main_1 concurrently").await;
    marked(&a, "main_1").await;
    assert_eq!(a.refused("insert into refers values (2, 1)").await.code().code(), "23503");
    assert_eq!(c.refused("insert into refers values (2, 1)").await.code().code(), "23503");
    hold(&c, false).await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    a.must("delete from main_1").await;
    equal(lab).await;
    a.must("drop table refers").await;
    forgotten(lab).await;
    drop_all(lab, "main").await;
}

/// The constraint is that of the partitions below, too; and the table may itself be the partition of another.
async fn partitions_of_partitions(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create table tree (id int, kind text, primary key (id, kind)) partition by list (kind);
         create table tree_1 partition of tree for values in ('x', 'it''s') partition by range (id);
         create table tree_2 partition of tree for values in ('y');
         create table tree_1a partition of tree_1 for values from (0) to (10); create table tree_1b partition of tree_1 for values from (10) to (20);
         create table notes (id int primary key); alter table tree add foreign key (id) references notes; insert into notes values (1), (11);
         create index on tree (kind); insert into tree values (1, 'x'), (11, 'x'), (1, 'y')",
    )
    .await;
    lab.everywhere().await;
    b.must("alter table tree_1 detach partition tree_1b concurrently").await;
    b.must("alter table tree detach partition tree_1 concurrently").await;
    lab.everywhere().await;
    lab.shows("select string_agg(conrelid::regclass || ' ' || conname || ' ' || conislocal || ' ' || coninhcount, ', ' order by conrelid::regclass::text)
               from pg_constraint where contype = 'c' and conrelid::regclass::text ^@ 'tree'",
        "tree_1 tree_1_kind_check true 0, tree_1a tree_1_kind_check false 1, tree_1b tree_1b_check true 0").await;
    a.refused("insert into tree_1 values (2, 'y')").await;
    a.refused("delete from notes where id = 11").await;
    equal(lab).await;
    a.must("drop table tree, tree_1, tree_1b, notes").await;
    lab.everywhere().await;
    forgotten(lab).await;
}

/// The region whose session waits dies; another one finalizes.
async fn session_is_killed(lab: &Lab) {
    make(lab, "lost").await;
    let [a, _, c] = lab.sessions().await;
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table lost detach partition lost_1 concurrently").await;
    told(&a, "lost_1", 2).await;
    assert!(!detaching.is_finished());
    lab.node(1).kill9_postgres().unwrap();
    detaching.await.unwrap().expect_err("its server was killed");
    lab.node(1).wait_serving(SOON * 2).await.unwrap();
    hold(&c, false).await;
    a.must("alter table lost detach partition lost_1 finalize").await;
    shows(lab, "lost", 2, "detached").await;
    equal(lab).await;
    forgotten(lab).await;
    drop_all(lab, "lost").await;
}

/// A region that is away is waited for, since its sessions may go on reading.
async fn away(lab: &Lab) {
    make(lab, "far").await;
    let a = lab.session(0).await;
    lab.node(2).stop().await.unwrap();
    let detaching = beside(lab, 1, "alter table far detach partition far_1 concurrently").await;
    told(&a, "far_1", 2).await;
    a.must("insert into far values (202, 2)").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!detaching.is_finished(), "it waits for the third region");
    lab.node(2).start().unwrap();
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    shows(lab, "far", 3, "detached").await;
    equal(lab).await;
    forgotten(lab).await;
    drop_all(lab, "far").await;
}

/// Ways to write it, and settings, that make no difference.
async fn as_written(lab: &Lab) {
    make(lab, "odd").await;
    let [a, b, c] = lab.sessions().await;
    a.must("alter table if exists only absent detach partition odd_1 concurrently").await;
    a.must(
        "create schema \"Odd\"; alter table odd_1 set schema \"Odd\"; alter table \"Odd\".odd_1 rename to \"Part 1\"",
    )
    .await;
    lab.everywhere().await;
    b.must("set quote_all_identifiers = on; set search_path = \"Odd\", public; set default_transaction_isolation = serializable").await;
    b.must("alter table if exists only odd detach partition \"Part 1\" concurrently").await;
    lab.everywhere().await;
    lab.shows("select (select count(*) from odd) || ' ' || (select count(*) from \"Odd\".\"Part 1\")", "2 1").await;
    equal(lab).await;
    c.must("create function evil() returns boolean language plpgsql as $$ begin execute 'alter role ' || current_user || ' connection limit 7'; return true; end $$").await;
    c.must(
        "create temp view pg_class as select oid, relname, relnamespace from pg_catalog.pg_class where public.evil()",
    )
    .await;
    c.must("create temp view pg_namespace as select * from pg_catalog.pg_namespace where public.evil(); set onetrip.max_trips = 2").await;
    c.must("alter table odd detach partition odd_2 concurrently").await;
    equal(lab).await;
    lab.shows("select count(*) from pg_roles where rolconnlimit = 7", "0").await;
    c.must("drop view pg_temp.pg_class, pg_temp.pg_namespace; drop function evil").await;
    a.must("drop schema \"Odd\" cascade; drop table odd, odd_2").await;
    forgotten(lab).await;
}

/// Another region writes the partition itself all the time, so the second entry loses; it is tried until it does not.
async fn second_entry_loses(lab: &Lab) {
    make(lab, "fought").await;
    lab.session(0).await.must("create table target (id int primary key); insert into target values (1); alter table fought add foreign key (v) references target").await;
    lab.everywhere().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for region in [0, 2] {
        let (session, stop) = (lab.session(region).await, stop.clone());
        writers.push(tokio::spawn(async move {
            for i in 0..2_000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let _ = session.run("update fought_1 set v = 1").await;
                let _ = session.run(&format!("insert into target values ({})", 100 + i * 3 + region)).await;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }));
    }
    lab.session(1).await.must("alter table fought detach partition fought_1 concurrently").await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    shows(lab, "fought", 2, "detached").await;
    equal(lab).await;
    lab.session(0).await.must("drop table fought, fought_1, target").await;
    forgotten(lab).await;
}

/// The same partition at once from all regions, and again as soon as it is attached.
async fn again_and_again(lab: &Lab) {
    make(lab, "often").await;
    for round in 0..6 {
        let mut all = Vec::new();
        for region in 0..3 {
            all.push(beside(lab, region, "alter table often detach partition often_1 concurrently").await);
        }
        let mut done = 0;
        for one in all {
            match one.await.unwrap() {
                Ok(()) => done += 1,
                Err(e) => {
                    let e = said(e);
                    assert!(["40001", "55000", "42P01"].contains(&e.code().code()), "{e:?}");
                }
            }
        }
        assert_eq!(done, 1, "one of them detaches it");
        lab.everywhere().await;
        let attach = "alter table often attach partition often_1 for values from (0) to (100)";
        lab.session(round % 3).await.must(attach).await;
        lab.everywhere().await;
    }
    // Two that finalize: none waits for the other.
    let c = lab.session(2).await;
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table often detach partition often_1 concurrently").await;
    marked(&c, "often_1").await;
    lab.session(1)
        .await
        .must("select pg_cancel_backend(pid) from pg_stat_activity where query ^@ 'alter table often detach'")
        .await;
    assert_eq!(failed(detaching).await, "57014");
    let finalize = "alter table often detach partition often_1 finalize";
    let both = [beside(lab, 0, finalize).await, beside(lab, 0, finalize).await, beside(lab, 1, finalize).await];
    tokio::time::sleep(Duration::from_millis(500)).await;
    hold(&c, false).await;
    for one in both {
        one.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    }
    shows(lab, "often", 2, "detached").await;
    equal(lab).await;
    forgotten(lab).await;
    drop_all(lab, "often").await;
}

/// Publications: the WAL sender of PostgreSQL would crash if it published all tables by their roots; and what is
/// published of a partition is the same in all regions.
async fn published(lab: &Lab) {
    make(lab, "told").await;
    let [a, b, c] = lab.sessions().await;
    hold(&c, true).await;
    let detaching = beside(lab, 1, "alter table told detach partition told_1 concurrently").await;
    marked(&a, "told_1").await;
    let by_root = "create publication everything for all tables with (publish_via_partition_root)";
    assert_eq!(a.refused(by_root).await.code().code(), "55000");
    hold(&c, false).await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    a.must(by_root).await;
    lab.everywhere().await;
    b.must("alter table told detach partition told_2 concurrently").await;
    lab.shows("select count(*) from pg_inherits where inhparent = 'told'::regclass", "1").await;
    a.must("drop publication everything; create publication one for table told").await;
    lab.everywhere().await;
    let writer = lab.session(0).await;
    writer.must("begin; insert into told values (202, 2)").await;
    let detaching = beside(lab, 1, "alter table told detach partition told_3 concurrently").await;
    marked(&c, "told_3").await;
    // Written as part of what is published, and not part of it in the log.
    lost(writer.run("commit").await, writer).await;
    detaching.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    a.must("drop publication one").await;
    equal(lab).await;
    forgotten(lab).await;
    drop_all(lab, "told").await;
}
