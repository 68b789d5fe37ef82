//! REINDEX CONCURRENTLY is a job in every region: each builds the index anew in its own time, and in all of them it
//! takes the place of the old one at one point of the log.  What other statements see in between is alike everywhere.

use std::time::Duration;

use crate::jobs::{hold_worker, killed_while_building, while_all_write};
use crate::kill9::whole_postgres;
use crate::lab::{bounded, lost, number, start, subjects, text, until, Lab, Session, SOON};
use crate::unique_jobs::{beside, failed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn indexes_are_built_anew_in_every_region() {
    let lab =
        start("reindex", "indexes that every region builds anew in its own time, and what comes in between").await;
    lab.session(0)
        .await
        .must(
            "create table item (id int primary key, name text, price int);
             insert into item select g, 'item ' || g, g from generate_series(1, 500) g;
             create function slow(int) returns int language plpgsql immutable as $$ begin perform pg_sleep(0.002); return $1; end $$;
             create index item_price on item (price);
             create unique index item_name on item (name)",
        )
        .await;
    lab.everywhere().await;
    subjects!(lab, 1;
        in_every_region, named_as_if_left_over, with_writers, statements_in_between, dropped, vacuum_full_in_between, values_that_name_it, without_usage,
        partitions, toast, polite, killed_while_it_is_built, away, first_one_is_down
    );
}

const JOBS: &str = "select (select count(*) from onetrip.jobs where statement ^@ 'REINDEX')
          + (select count(*) from onetrip.job_here where statement ^@ 'REINDEX')";

/// The file of an index in each region, and its OID.
async fn files(lab: &Lab, index: &str) -> Vec<(i64, i64)> {
    let mut files = Vec::new();
    for session in lab.sessions().await {
        let of = |column: &str| format!("select {column}::bigint from pg_class where oid = '{index}'::regclass");
        files.push((number(&session, &of("relfilenode")).await.unwrap(), number(&session, &of("oid")).await.unwrap()));
    }
    files
}

/// No region has a job, or tells of one; the next copy may have the same name.
async fn forgotten(lab: &Lab) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        until(&format!("the jobs of region {region} are forgotten"), SOON * 2, || async {
            Ok(number(session, JOBS).await? == 0)
        })
        .await
        .unwrap();
    }
}

/// Every region has a new file for the index, under the same OID, with all rows; and nothing else is left.
async fn built_anew(lab: &Lab, index: &str, before: &[(i64, i64)]) {
    lab.everywhere().await;
    for (region, ((file, oid), (old_file, old_oid))) in files(lab, index).await.iter().zip(before).enumerate() {
        assert_ne!(file, old_file, "region {region} has the old file of {index}");
        assert_eq!(oid, old_oid, "region {region} has another {index}");
    }
    forgotten(lab).await;
    for (region, session) in lab.sessions().await.iter().enumerate() {
        let missing = number(session, &format!("select onetrip.rows_not_in_index('{index}')")).await.unwrap();
        assert_eq!(missing, 0, "rows that {index} does not find in region {region}");
    }
    lab.shows("select count(*) from pg_class where relname ~ '_(reindex|ccnew|ccold)$'", "0").await;
}

async fn equal(lab: &Lab) {
    lab.everywhere().await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "{output}");
}

/// Waits until that many regions have built the copy of an index, as the session's region knows.
async fn built_in(session: &Session, regions: i64, copy: &str) {
    let query = format!("select count(*) from onetrip.jobs where state = 'built' and index = 'public.{copy}'");
    until(&format!("{regions} regions have built {copy}"), SOON * 2, || async {
        Ok(number(session, &query).await? == regions)
    })
    .await
    .unwrap();
}

async fn in_every_region(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must(
        "create table names (what regclass); insert into names values ('item_price'), ('item_pkey');
         create table refers (id int references item); comment on index item_price is 'kept'",
    )
    .await;
    lab.everywhere().await;
    for (statement, index) in [
        ("reindex index concurrently item_price", "item_price"),
        ("reindex table concurrently item", "item_name"),
        ("reindex (concurrently) schema public", "item_pkey"),
    ] {
        let before = files(lab, index).await;
        b.must(statement).await;
        built_anew(lab, index, &before).await;
    }
    lab.shows("select string_agg(what::text, ' ' order by what::text) || ' ' || obj_description('item_price'::regclass, 'pg_class') from names", "item_pkey item_price kept").await;
    equal(lab).await;
    b.refused("insert into item values (2000, 'item 7', 1)").await;
    b.refused("insert into refers values (2000)").await;
    b.must("update names set what = 'item_name' where what = 'item_price'::regclass; drop table names, refers").await;
    lab.everywhere().await;
}

/// One that is valid is everywhere, whatever its name.
async fn named_as_if_left_over(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    a.must("create index item_ccnew1 on item (price, id)").await;
    lab.everywhere().await;
    for statement in ["reindex index concurrently item_ccnew1", "reindex table concurrently item"] {
        let before = files(lab, "item_ccnew1").await;
        b.must(statement).await;
        built_anew(lab, "item_ccnew1", &before).await;
    }
    b.must("drop index item_ccnew1").await;
    lab.everywhere().await;
}

/// Rows come and go in all regions meanwhile; in the end every region's index has all of them.
async fn with_writers(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create index item_slow on item (slow(price))").await;
    lab.everywhere().await;
    let before = files(lab, "item_slow").await;
    while_all_write(lab, "reindex table concurrently item", (60, Duration::ZERO), |region, i| {
        let id = 10_000 + region * 1000 + i;
        format!(
            "insert into item values ({id}, 'new {id}', {id}); update item set price = price + 1 where id = {}",
            region * 150 + i + 1
        )
    })
    .await;
    for index in ["item_slow", "item_name", "item_price", "item_pkey"] {
        let missing = format!("select onetrip.rows_not_in_index('{index}')");
        lab.shows(&missing, "0").await;
    }
    built_anew(lab, "item_slow", &before).await;
    equal(lab).await;
    a.must("drop index item_slow; delete from item where id >= 10000").await;
    lab.everywhere().await;
}

/// One region has not built it yet.  DDL that meets what is being built has the same effect everywhere.
async fn statements_in_between(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let before = files(lab, "item_price").await;
    let building = beside(lab, 1, "reindex index concurrently item_price").await;
    built_in(&a, 2, "item_price_reindex").await;
    lab.everywhere().await;
    equal(lab).await;
    a.must("create table alike (like item including all); alter index item_price rename to item_cost").await;
    a.must("alter table item add column extra int; insert into item values (3000, 'late', 1, 2); comment on index item_cost is 'renamed'").await;
    let refused = a.refused("reindex table item").await;
    assert_eq!(refused.code().code(), "55000", "{}", refused.message());
    equal(lab).await;
    assert!(!building.is_finished(), "it waits for the third region");
    hold_worker(&c, false).await;
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    lab.everywhere().await;
    let after = files(lab, "item_cost").await;
    assert!(after.iter().zip(&before).all(|(now, then)| now.0 != then.0 && now.1 == then.1), "{after:?} {before:?}");
    equal(lab).await;

    // What makes indexes anew from their definitions leaves no second one behind.
    forgotten(lab).await;
    hold_worker(&c, true).await;
    let building = beside(lab, 1, "reindex index concurrently item_name").await;
    built_in(&a, 2, "item_name_reindex").await;
    a.must("alter table item alter column name type varchar").await;
    assert_eq!(failed(building).await, "42704");
    hold_worker(&c, false).await;
    lab.shows("select count(*) from pg_index where indrelid = 'item'::regclass", "3").await;
    equal(lab).await;
    b.must("alter index item_cost rename to item_price; alter table item drop column extra; drop table alike; delete from item where id = 3000").await;
    lab.everywhere().await;
}

async fn dropped(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    for drop in ["drop index item_price_reindex", "drop index item_price"] {
        hold_worker(&c, true).await;
        let building = beside(lab, 1, "reindex index concurrently item_price").await;
        built_in(&a, 2, "item_price_reindex").await;
        a.must(drop).await;
        assert_eq!(failed(building).await, "42704", "{drop}");
        hold_worker(&c, false).await;
        lab.shows("select to_regclass('item_price_reindex') is null", "t").await;
        forgotten(lab).await;
    }
    a.must("create index item_price on item (price)").await;
    equal(lab).await;
}

/// VACUUM FULL makes an index valid that was not, in its region alone.
async fn vacuum_full_in_between(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let before = files(lab, "item_price").await;
    let building = beside(lab, 1, "reindex index concurrently item_price").await;
    built_in(&a, 2, "item_price_reindex").await;
    b.must("vacuum full item").await;
    c.must("vacuum full item").await;
    equal(lab).await;
    hold_worker(&c, false).await;
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    built_anew(lab, "item_price", &before).await;
    equal(lab).await;
}

/// A reader holds up the exchange, and nobody else meanwhile.
async fn polite(lab: &Lab) {
    let [a, b, _] = lab.sessions().await;
    let before = files(lab, "item_price").await;
    let reader = lab.session(0).await;
    reader.must("begin; select count(*) from item").await;
    let building = beside(lab, 0, "reindex index concurrently item_price").await;
    until("it waits", SOON, || async {
        Ok(number(&a, "select count(*) from pg_class where relname = 'item_price_reindex'").await? == 1)
    })
    .await
    .unwrap();
    for i in 0..20 {
        a.must(&format!("update item set price = 5 where id = {}", i + 1)).await;
    }
    built_in(&b, 3, "item_price_reindex").await;
    // Longer than another region waits for this one when an index is to become valid.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!building.is_finished(), "the reader has a lock on the table");
    reader.must("select count(*) from item; commit").await;
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    built_anew(lab, "item_price", &before).await;
    assert_eq!(text(&b, "select count(*)::text from item where price = 5").await.unwrap(), "20");
}

async fn killed_while_it_is_built(lab: &Lab) {
    lab.session(0).await.must("create index item_old on item (slow(price), slow(id))").await;
    lab.everywhere().await;
    let before = files(lab, "item_old").await;
    killed_while_building(lab, "reindex index concurrently item_old", "item_old_reindex").await;
    built_anew(lab, "item_old", &before).await;
    equal(lab).await;
    lab.session(1).await.must("drop index item_old").await;
    lab.everywhere().await;
}

/// A region that is away builds it when it is back, and the others wait for that with what they have built.
async fn away(lab: &Lab) {
    let a = lab.session(0).await;
    let before = files(lab, "item_name").await;
    lab.node(2).stop().await.unwrap();
    let building = beside(lab, 1, "reindex index concurrently item_name").await;
    built_in(&a, 2, "item_name_reindex").await;
    a.must("insert into item values (40000, 'late', 5); alter index item_name rename to item_called").await;
    assert!(!building.is_finished(), "it waits for the third region");
    lab.node(2).start().unwrap();
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    built_anew(lab, "item_called", &before).await;
    equal(lab).await;
    a.refused("insert into item values (40001, 'late', 5)").await;
}

/// The region that would exchange the files has built its own, and its server cannot start: the next one does it.
async fn first_one_is_down(lab: &Lab) {
    let b = lab.session(1).await;
    let before = files(lab, "item_price").await;
    let reader = lab.session(0).await;
    reader.must("begin; select count(*) from item").await;
    let building = beside(lab, 1, "reindex index concurrently item_price").await;
    built_in(&b, 3, "item_price_reindex").await;
    let file = lab.node(0).postgres_data().join("postgresql.conf");
    let settings = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{settings}\nthis is no setting\n")).unwrap();
    whole_postgres(lab, 0);
    bounded("the statement in the other region", building).await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    std::fs::write(&file, settings).unwrap();
    lab.node(0).wait_serving(SOON * 2).await.unwrap();
    built_anew(lab, "item_price", &before).await;
    equal(lab).await;
}

/// A value names what is being built when it goes: the entry that drops it, or the one with the value, loses.
async fn values_that_name_it(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("create table noted (round int primary key, what regclass)").await;
    lab.everywhere().await;
    for round in 0..4 {
        hold_worker(&c, true).await;
        let building = beside(lab, 1, "reindex index concurrently item_price").await;
        built_in(&b, 2, "item_price_reindex").await;
        lab.everywhere().await;
        let writer = lab.session(0).await;
        writer.must(&format!("begin; insert into noted values ({round}, 'item_price_reindex')")).await;
        hold_worker(&c, false).await;
        match round % 2 {
            0 => until("it is gone where it was asked for", SOON * 2, || async { Ok(building.is_finished()) })
                .await
                .unwrap(),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        let written = writer.run("commit").await;
        building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
        lab.everywhere().await;
        // In even rounds the value names an index that is gone.
        if round % 2 == 0 || written.is_err() {
            lost(written, writer).await;
        }
        a.must("delete from noted").await;
        lab.everywhere().await;
        forgotten(lab).await;
    }
    a.must("drop table noted").await;
    equal(lab).await;
}

/// Neither the owner of the table nor who asks for it need be allowed to use its schema.
async fn without_usage(lab: &Lab) {
    let a = lab.session(0).await;
    a.must(
        "create role owns_little; create schema closed; create table closed.t (id int primary key, v int);
         insert into closed.t select g, g from generate_series(1, 100) g; alter table closed.t owner to owns_little",
    )
    .await;
    lab.everywhere().await;
    let before = files(lab, "closed.t_pkey").await;
    a.must("reindex table concurrently closed.t").await;
    built_anew(lab, "closed.t_pkey", &before).await;
    a.must("create unique index concurrently t_v on closed.t (v)").await;
    lab.shows("select bool_and(indisvalid) from pg_index where indrelid = 'closed.t'::regclass", "t").await;
    a.must("drop schema closed cascade; drop role owns_little").await;
    lab.everywhere().await;
}

/// Of the table's TOAST index in each region: its file, its OID, and how many chunks it does not find.
const TOAST: &str = "select format('%s %s %s', c.relfilenode, c.oid, onetrip.rows_not_in_index(c.oid::regclass))
     from pg_class t join pg_index i on i.indrelid = t.reltoastrelid and i.indisvalid join pg_class c on c.oid = i.indexrelid
     where t.oid = ";

async fn toast_indexes(lab: &Lab, table: &str) -> Vec<Vec<i64>> {
    let mut indexes = Vec::new();
    for session in lab.sessions().await {
        let index = text(&session, &format!("{TOAST} '{table}'::regclass")).await.unwrap();
        indexes.push(index.split(' ').map(|n| n.parse().unwrap()).collect());
    }
    indexes
}

/// Every region has done its job: it has a new file, under the same OID, with all chunks.
async fn toast_built_anew(lab: &Lab, table: &str, before: &[Vec<i64>]) {
    lab.everywhere().await;
    forgotten(lab).await;
    for (region, (index, old)) in toast_indexes(lab, table).await.iter().zip(before).enumerate() {
        assert_ne!(index[0], old[0], "region {region} has the old file of the TOAST index of {table}");
        assert_eq!(index[1..], [old[1], 0], "region {region} has another TOAST index of {table}");
    }
    equal(lab).await;
}

/// The index of a TOAST table is each region's own: every region builds it anew, and puts it to use by itself.
async fn toast(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    let fill =
        |times: i32| format!("insert into wide select g, repeat(g::text, {times}) from generate_series(1, 20) g");
    a.must("create table wide (id int, v text); alter table wide alter v set storage external").await;
    a.must(&fill(3000)).await;
    lab.everywhere().await;
    for statement in ["reindex table concurrently wide", "reindex (concurrently) schema public"] {
        let before = toast_indexes(lab, "wide").await;
        b.must(statement).await;
        toast_built_anew(lab, "wide", &before).await;
    }

    // One region is held up: the others do not wait for it, and it comes to the same.
    let before = toast_indexes(lab, "wide").await;
    c.must("begin; insert into wide values (100, repeat('x', 9000))").await;
    bounded("it waits for its own region only", b.must("reindex table concurrently wide")).await;
    equal(lab).await;
    let told = "select count(*) from onetrip.jobs where \"table\" = 'public.wide' and state = 'building'";
    until("the others know", SOON, || async { Ok(number(&a, told).await? == 1) }).await.unwrap();
    c.must("commit").await;
    toast_built_anew(lab, "wide", &before).await;

    // It is built, but not in use yet, when the table is emptied or rewritten.
    for statement in ["truncate wide", "alter table wide alter id type bigint"] {
        c.must("begin isolation level repeatable read; select count(*) from item").await;
        b.must("reindex table concurrently wide").await;
        lab.everywhere().await;
        let (session, ready) = (
            lab.session(2).await,
            "select count(*) from pg_index where indisready
                and indrelid = (select reltoastrelid from pg_class where oid = 'wide'::regclass)",
        );
        until("it is built there", SOON, || async { Ok(number(&session, ready).await? == 2) }).await.unwrap();
        a.must(statement).await;
        a.must(&format!("delete from wide; {}", fill(4000))).await;
        lab.everywhere().await;
        c.must("commit").await;
        forgotten(lab).await;
        let missing: Vec<_> = toast_indexes(lab, "wide").await.iter().map(|index| index[2]).collect();
        assert_eq!(missing, [0, 0, 0], "chunks that are not found after {statement}");
        lab.shows("select count(*) from wide where v = repeat(id::text, 4000)", "20").await;
        equal(lab).await;
    }
    a.must("drop table wide").await;
    lab.everywhere().await;
}

/// A partition's index is built anew, and its parent gets one of the same definition, or the partition moves.
async fn partitions(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must(
        "create table whole (id int, v int) partition by list (id); create table part partition of whole for values in (1);
         create index whole_v on whole (v); insert into whole select 1, g from generate_series(1, 100) g",
    )
    .await;
    lab.everywhere().await;
    let before = files(lab, "part_v_idx").await;
    a.must("reindex index concurrently whole_v").await;
    built_anew(lab, "part_v_idx", &before).await;
    for statement in [
        "create index whole_v_again on whole (v)",
        "alter table whole detach partition part; alter table whole attach partition part for values in (1)",
        "alter table part cluster on part_v_idx",
    ] {
        hold_worker(&c, true).await;
        let building = beside(lab, 1, "reindex index concurrently part_v_idx").await;
        built_in(&a, 2, "part_v_idx_reindex").await;
        a.must(statement).await;
        assert_eq!(failed(building).await, "42704", "{statement} drops what is being built");
        hold_worker(&c, false).await;
        lab.shows(
            "select count(*) from pg_index where not indisvalid and indrelid in ('whole'::regclass, 'part'::regclass)",
            "0",
        )
        .await;
        equal(lab).await;
    }
    a.must("drop table whole").await;
    lab.everywhere().await;
}
