//! CREATE INDEX CONCURRENTLY is a job in every region: the index is in the catalogs everywhere in log order, and each
//! region builds it in its own time.  DROP INDEX and DETACH PARTITION CONCURRENTLY wait without holding others up.

use std::time::Duration;

use crate::lab::{number, psql, start, subjects, text, until, Lab, Session, SOON};
use crate::unique_jobs::{beside, failed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn indexes_are_built_concurrently_in_every_region() {
    let lab = start("jobs", "indexes that every region builds in its own time, and what comes in between").await;
    lab.session(0)
        .await
        .must(
            "create table item (id int primary key, name text, price int);
             insert into item select g, 'item ' || g, g from generate_series(1, 1000) g;
             create function slow(int) returns int language plpgsql immutable as $$ begin perform pg_sleep(0.002); return $1; end $$",
        )
        .await;
    lab.everywhere().await;
    subjects!(lab, 2;
        as_frameworks_say_it, with_writers, two_at_once, later_statements_find_it, what_needs_a_valid_index, a_row_that_it_cannot_take,
        functions_that_do_more, quoted_names, dropped_while_it_is_built, cancelled, politely, partitions, killed_while_it_is_built, away
    );
}

/// Waits until the index is valid in all regions, and every region knows that.
async fn built(lab: &Lab, index: &str) {
    let valid =
        format!("select count(*) from pg_index where indexrelid = '{index}'::regclass and indisvalid and indisready");
    let told =
        format!("select count(*) from onetrip.jobs where index = '{index}' and state = 'done' and error is null");
    for region in 0..3 {
        let session = lab.session(region).await;
        until(&format!("{index} is built in region {region}"), SOON * 2, || async {
            Ok(number(&session, &valid).await? == 1)
        })
        .await
        .unwrap();
        until(&format!("region {region} knows that all have built {index}"), SOON * 2, || async {
            Ok(number(&session, &told).await? == 3)
        })
        .await
        .unwrap();
        let missing = number(&session, &format!("select onetrip.rows_not_in_index('{index}')")).await.unwrap();
        assert_eq!(missing, 0, "rows that {index} does not find in region {region}");
    }
}

pub async fn valid(session: &Session, index: &str) -> bool {
    let query = format!(
        "select coalesce(bool_or(indisvalid), false)::int from pg_index where indexrelid = to_regclass('{index}')"
    );
    number(session, &query).await.unwrap() == 1
}

/// Stops the job worker of a region, or lets it go on.  It is stopped between two transactions: one that stood still
/// in the midst of its own would hold up its region with what it has locked.
pub async fn hold_worker(session: &Session, hold: bool) {
    hold_worker_of(session, "onetrip job worker", hold).await
}

/// The same with another worker, which is there or will soon be.
pub async fn hold_worker_of(session: &Session, of: &str, hold: bool) {
    let pid = format!("select coalesce(max(pid), 0) from pg_stat_activity where backend_type = '{of}'");
    until(&format!("the {of} is there"), SOON, || async { Ok(number(session, &pid).await? != 0) }).await.unwrap();
    let pid = number(session, &pid).await.unwrap();
    let send = |signal: &str| {
        let status = std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(status.success());
    };
    if !hold {
        return send("-CONT");
    }
    let locks = format!("select count(*) from pg_locks where pid = {pid}");
    until("the worker is between two transactions", SOON, || async {
        send("-STOP");
        until("it has stopped", SOON, || async {
            Ok(std::fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") T "))
        })
        .await?;
        let stands = number(session, &locks).await? == 0;
        if !stands {
            send("-CONT");
        }
        Ok(stands)
    })
    .await
    .unwrap();
}

async fn as_frameworks_say_it(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    b.must(r#"CREATE INDEX CONCURRENTLY "shop_item_name_3fa1c2_idx" ON "item" ("name")"#).await;
    assert!(valid(&b, "shop_item_name_3fa1c2_idx").await, "it can be used where the client is");
    built(lab, "public.shop_item_name_3fa1c2_idx").await;
    c.must(r#"DROP INDEX CONCURRENTLY IF EXISTS "shop_item_name_3fa1c2_idx""#).await;
    c.must(r#"CREATE  INDEX CONCURRENTLY "index_items_on_name" ON "item" ("name" DESC) WHERE price > 10"#).await;
    built(lab, "public.index_items_on_name").await;
    lab.everywhere().await;
    a.must(r#"DROP INDEX CONCURRENTLY "index_items_on_name""#).await;
    lab.shows("select count(*) from pg_index where indrelid = 'item'::regclass", "1").await;
    for session in [&a, &b, &c] {
        until("jobs whose index is gone are forgotten", SOON, || async {
            Ok(number(session, "select (select count(*) from onetrip.jobs) + (select count(*) from onetrip.job_here)")
                .await?
                == 0)
        })
        .await
        .unwrap();
    }
}

/// Carries out a statement in the first region, again and again if it loses, while a client of each region makes so
/// many changes; `change` says which, by the numbers of the region and of the change.  No more than half may fail.
pub async fn while_all_write(
    lab: &Lab,
    statement: &str,
    (times, pause): (usize, Duration),
    change: impl Fn(usize, usize) -> String,
) {
    let (a, writers) = (lab.session(0).await, lab.sessions().await);
    let write = |region: usize| {
        let (session, change) = (&writers[region], &change);
        async move {
            let mut lost = 0;
            for i in 0..times {
                lost += session.run(&change(region, i)).await.is_err() as usize;
                tokio::time::sleep(pause).await;
            }
            assert!(lost <= times / 2, "region {region}: {lost} of {times} transactions failed");
        }
    };
    tokio::join!(again(a, statement), write(0), write(1), write(2));
}

/// Rows come and go in all regions while the index is built; in the end every region's index has all of them.
async fn with_writers(lab: &Lab) {
    let statement = "create index concurrently item_written on item (name, slow(price))";
    while_all_write(lab, statement, (60, Duration::ZERO), |region, i| {
        let id = 10_000 + region * 1000 + i;
        format!(
            "insert into item values ({id}, 'new', {id}); update item set name = 'changed {i}' where id = {}",
            region * 500 + i + 1
        )
    })
    .await;
    built(lab, "public.item_written").await;
    lab.everywhere().await;
    lab.session(0).await.must("drop index item_written").await;
}

/// A statement that may meet another region's; then it is repeated, as any that ends with 40001.
pub async fn again(session: Session, statement: &str) {
    for _ in 0..50 {
        match session.run(statement).await {
            Ok(()) => return,
            Err(e) if e.code().is_some_and(|code| code.code() == "40001") => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(e) => panic!("{statement}: {e:?}"),
        }
    }
    panic!("{statement}: 40001 again and again");
}

async fn two_at_once(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must(
        "create table other (id int primary key, v int); insert into other select g, g from generate_series(1, 500) g",
    )
    .await;
    lab.everywhere().await;
    tokio::join!(
        again(a, "create index concurrently item_first on item (slow(price))"),
        again(b, "create index concurrently item_second on item (name, price)"),
        again(c, "create index concurrently other_v on other (slow(v))"),
    );
    for index in ["public.item_first", "public.item_second", "public.other_v"] {
        built(lab, index).await;
    }
    lab.session(0).await.must("drop index item_first, item_second; drop table other").await;
    lab.everywhere().await;
}

/// What comes later in the log finds the index also where it is not built.
async fn later_statements_find_it(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    b.must("create index concurrently item_held on item (price)").await;
    lab.everywhere().await;
    assert!(!valid(&c, "item_held").await, "the region builds it by itself");
    a.must("comment on index item_held is 'waits'; alter index item_held rename to item_renamed; alter index item_renamed set (fillfactor = 80)").await;
    a.must("create index item_held on item (id, price); alter table item add column extra int; insert into item values (20000, 'x', 1, 2)").await;
    lab.everywhere().await;
    assert!(!valid(&c, "item_renamed").await);
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "an index that is still to be built is no difference: {output}");
    hold_worker(&c, false).await;
    built(lab, "public.item_renamed").await;
    lab.everywhere().await;
    a.must("drop index item_held, item_renamed; alter table item drop column extra; delete from item where id = 20000")
        .await;
    lab.everywhere().await;
}

/// Statements that mean something else for an index that is not valid build it first.
async fn what_needs_a_valid_index(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must(
        "create table whole (id int, v int) partition by list (id); create table one (id int, v int);
         insert into one select 1, g from generate_series(1, 100) g",
    )
    .await;
    lab.everywhere().await;
    hold_worker(&c, true).await;
    a.must("create index concurrently item_clustered on item (price)").await;
    a.must("alter table item cluster on item_clustered").await;
    a.must("create index concurrently one_v on one (v)").await;
    a.must("create index whole_v on whole (v); alter table whole attach partition one for values in (1)").await;
    lab.everywhere().await;
    assert!(valid(&c, "item_clustered").await && valid(&c, "one_v").await && valid(&c, "whole_v").await);
    lab.shows("select count(*) || ' ' || (select inhparent::regclass::text from pg_inherits where inhrelid = 'one_v'::regclass) from pg_index where indrelid = 'one'::regclass", "1 whole_v").await;
    hold_worker(&c, false).await;
    built(lab, "public.one_v").await;
    a.must("drop index item_clustered; drop table whole").await;
    lab.everywhere().await;
}

/// Where the index is not built, a row is written that it cannot take.  The others show the row, without the index.
async fn a_row_that_it_cannot_take(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    a.must("create index concurrently item_inverse on item ((1000 / price))").await;
    until("region b has built it", SOON, || async { Ok(valid(&b, "item_inverse").await) }).await.unwrap();
    lab.everywhere().await;
    a.refused("insert into item values (30000, 'free', 0)").await;
    c.must("insert into item values (30000, 'free', 0)").await;
    lab.shows("select count(*) from item where id = 30000", "1").await;
    hold_worker(&c, false).await;
    for (region, session) in [&a, &b, &c].into_iter().enumerate() {
        until(&format!("region {region} knows what is wrong everywhere"), SOON * 2, || async {
            let told = "select count(*) from onetrip.jobs where index = 'public.item_inverse' and state = 'failed' and error = 'division by zero' and attempts > 0";
            Ok(number(session, told).await? == 3)
        })
        .await
        .unwrap();
        assert!(!valid(session, "item_inverse").await, "region {region}");
    }
    b.must("delete from item where id = 30000").await;
    built(lab, "public.item_inverse").await;
    lab.everywhere().await;
    a.must("drop index item_inverse").await;
    lab.everywhere().await;
}

/// The region of the session and another one are in the midst of it when the index is dropped in a third.
async fn dropped_while_it_is_built(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&a, true).await;
    let statement = "create index concurrently item_slow on item (slow(price), slow(id), slow(price + 1), slow(id + 1), slow(price + 2), slow(id + 2))";
    let building = beside(lab, 1, statement).await;
    until("region c is building", SOON, || async {
        Ok(number(
            &c,
            "select count(*) from pg_stat_progress_create_index where index_relid = to_regclass('item_slow')",
        )
        .await?
            == 1)
    })
    .await
    .unwrap();
    assert!(text(&c, "select string_agg(progress, ' ') from onetrip.jobs where index = 'public.item_slow'")
        .await
        .is_ok());
    a.must("drop index item_slow").await;
    hold_worker(&a, false).await;
    assert_eq!(failed(building).await, "42704", "the session that builds it gives way");
    lab.shows("select to_regclass('item_slow') is null", "t").await;
    for session in [&a, &b, &c] {
        until("the job is gone", SOON, || async {
            Ok(number(session, "select (select count(*) from onetrip.jobs) + (select count(*) from onetrip.job_here)")
                .await?
                == 0)
        })
        .await
        .unwrap();
    }
}

/// The client gives up; the index is built all the same.
async fn cancelled(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("set statement_timeout = '2s'").await;
    let why = a.refused("create index concurrently item_given_up on item (slow(price), slow(id))").await;
    assert_eq!(why.code().code(), "57014", "{}", why.message());
    built(lab, "public.item_given_up").await;
    b.must("drop index concurrently item_given_up").await;
    lab.everywhere().await;
}

/// A transaction that has written the table is waited for, and those who come later are not held up meanwhile.
async fn politely(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    for statement in ["create index concurrently item_polite on item (price)", "drop index concurrently item_polite"] {
        let early = lab.session(0).await;
        early.must("begin; update item set name = 'early' where id = 1").await;
        let waiter = lab.session(0).await;
        let waiting = tokio::spawn(async move { waiter.run(statement).await });
        for i in 0..20 {
            a.must(&format!("update item set name = 'meanwhile' where id = {}", i + 2)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "{statement} waits");
        early.must("commit").await;
        waiting.await.unwrap().unwrap_or_else(|e| panic!("{statement}: {e:?}"));
        lab.everywhere().await;
    }
    b.must("begin; update item set name = 'early' where id = 1; commit; set lock_timeout = '1s'").await;
    let early = lab.session(1).await;
    early.must("begin; update item set name = 'early' where id = 1").await;
    let why = b.refused("create index concurrently item_late on item (price)").await;
    assert_eq!(why.code().code(), "55P03", "{}", why.message());
    early.must("rollback").await;
    lab.shows("select to_regclass('item_late') is null", "t").await;
}

async fn partitions(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create table days (day int, v int) partition by range (day); create table today partition of days for values from (1) to (2);
         insert into days values (1, 1)",
    )
    .await;
    lab.everywhere().await;
    b.must("alter table days detach partition today concurrently").await;
    lab.shows("select (select count(*) from days) || ' ' || (select count(*) from today) || ' ' || (select relispartition from pg_class where relname = 'today')", "0 1 false").await;
    lab.session(2).await.must("drop table days, today").await;
    lab.everywhere().await;
}

/// Carries out a statement in the first region that builds this index, and kills the third region's server in the midst
/// of building it.  Returns when that serves again and the statement has succeeded.
pub async fn killed_while_building(lab: &Lab, statement: &'static str, index: &str) {
    let [a, _, c] = lab.sessions().await;
    let building = tokio::spawn(async move { a.run(statement).await });
    until("region c is building", SOON, || async {
        Ok(number(
            &c,
            &format!("select count(*) from pg_stat_progress_create_index where index_relid = to_regclass('{index}')"),
        )
        .await?
            == 1)
    })
    .await
    .unwrap();
    lab.node(2).kill9_postgres().unwrap();
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
}

async fn killed_while_it_is_built(lab: &Lab) {
    killed_while_building(lab, "create index concurrently item_killed on item (slow(price), slow(id))", "item_killed")
        .await;
    built(lab, "public.item_killed").await;
    lab.session(1).await.must("drop index item_killed").await;
    lab.everywhere().await;
}

/// A region that is away builds the index when it is back, and what came after it in the log finds it there.
/// What a function of an index may not do for a row it may not do while an index is built, in no region, and no region
/// tells others what it notifies.
async fn functions_that_do_more(lab: &Lab) {
    let a = lab.session(0).await;
    a.must(
        "create table noted (what text);
         create function writing(int) returns int language plpgsql as $$ begin insert into noted values ('x'); return $1; end $$;
         create function writes(int) returns int language plpgsql immutable as $$ begin return writing($1); end $$;
         create function notifying(int) returns int language plpgsql as $$ begin perform pg_notify('built', 'x'); notify built; return $1; end $$;
         create function notifies(int) returns int language plpgsql immutable as $$ begin return notifying($1); end $$",
    )
    .await;
    lab.everywhere().await;
    lab.node(2).stop().await.unwrap();
    let error = a.refused("create unique index concurrently item_writes on item (writes(id))").await;
    assert_eq!(error.code().code(), "25006", "{}", error.message());
    lab.node(2).start().unwrap();
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
    lab.everywhere().await;
    a.must("drop index item_writes").await;
    lab.shows("select count(*) from noted", "0").await;

    let heard = psql(
        lab,
        1,
        "listen built; create index concurrently item_notifies on item (notifies(id)); select 'is ' || 'built';",
    )
    .await;
    built(lab, "public.item_notifies").await;
    assert!(heard.contains("is built") && !heard.contains("Asynchronous"), "{heard}");
    let heard = psql(lab, 1, "listen built; reindex index concurrently item_notifies; select 'is ' || 'built';").await;
    assert!(heard.contains("is built") && !heard.contains("Asynchronous"), "{heard}");
    lab.everywhere().await;
    a.must("drop index item_notifies; drop table noted; drop function writes, writing, notifies, notifying").await;
    lab.everywhere().await;
}

/// An operator has one region, whose workers tell the others of their jobs by name, quote all names.
async fn quoted_names(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    let restart_workers = || async {
        b.must("select pg_reload_conf()").await;
        b.must("select pg_terminate_backend(pid) from pg_stat_activity where backend_type ~ '^onetrip (job|detach) worker$'").await;
        let query = "select count(*) from pg_stat_activity where backend_type = 'onetrip job worker'";
        until("the job worker is there", SOON, || async { Ok(number(&b, query).await? == 1) }).await.unwrap();
    };
    b.must("alter system set quote_all_identifiers = on").await;
    restart_workers().await;
    a.must("create unique index concurrently item_quoted on item (id)").await;
    a.must("reindex index concurrently item_quoted").await;
    a.must("create table listed (id int primary key) partition by list (id); create table listed_1 partition of listed for values in (1)").await;
    a.must("alter table listed detach partition listed_1 concurrently").await;
    built(lab, "public.item_quoted").await;
    b.must("alter system reset quote_all_identifiers").await;
    restart_workers().await;
    a.must("drop index item_quoted; drop table listed, listed_1").await;
    lab.everywhere().await;
}

async fn away(lab: &Lab) {
    let a = lab.session(0).await;
    lab.node(2).stop().await.unwrap();
    a.must("create index concurrently item_away on item (price)").await;
    a.must("comment on index item_away is 'here'; alter table item cluster on item_away; insert into item values (40000, 'late', 5)").await;
    assert!(valid(&a, "item_away").await);
    lab.node(2).start().unwrap();
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
    built(lab, "public.item_away").await;
    lab.shows("select count(*) from item where id = 40000", "1").await;
}
