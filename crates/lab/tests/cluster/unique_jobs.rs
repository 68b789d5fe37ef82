//! CREATE UNIQUE INDEX CONCURRENTLY: each region builds the index in its own time, and it is valid in all regions at
//! one point of the log, or in none.  Regions that do not enforce it yet write values that are there already.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use anyhow::Result;
use tokio_postgres::error::DbError;

use crate::jobs::{again, hold_worker, killed_while_building, valid, while_all_write};
use crate::lab::{number, start, subjects, text, until, Lab, Session, SOON};

const STATES: &str =
    "select coalesce(string_agg(distinct state, ' ' order by state), '') from onetrip.jobs where index = ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn unique_indexes_become_valid_in_all_regions_at_once() {
    let lab = start("unique_jobs", "unique indexes that every region builds in its own time").await;
    lab.session(0)
        .await
        .must(
            "create table item (id int primary key, name text, price int);
             insert into item select g, 'item ' || g, g from generate_series(1, 1000) g;
             create function slow(int) returns int language plpgsql immutable as $$ begin perform pg_sleep(0.002); return $1; end $$",
        )
        .await;
    lab.everywhere().await;
    subjects!(lab, 1;
        enforced_everywhere, with_writers, with_referrers, one_value_in_all_regions, duplicates_from_before,
        a_duplicate_from_where_it_is_not_built, a_duplicate_while_it_is_built, a_value_that_is_too_long, waits_for_those_who_build,
        never_valid_with_duplicates, renamed_and_dropped, what_needs_a_valid_index, killed_while_it_is_built, killed_before_it_is_valid, away
    );
}

/// It is valid everywhere, finds all rows, and there is nothing to tell of it.
async fn all_valid(lab: &Lab, index: &str) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        until(&format!("{index} is valid in region {region}"), SOON * 2, || async { Ok(valid(session, index).await) })
            .await
            .unwrap();
        let missing = number(session, &format!("select onetrip.rows_not_in_index('{index}')")).await.unwrap();
        assert_eq!(missing, 0, "rows that {index} does not find in region {region}");
    }
}

async fn valid_nowhere(lab: &Lab, index: &str) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        assert!(!valid(session, index).await, "{index} is valid in region {region}");
    }
}

/// All regions tell that their job is in one of these states.
async fn told(lab: &Lab, index: &str, states: &str) {
    for (region, session) in lab.sessions().await.iter().enumerate() {
        until(&format!("region {region} knows that {index} is {states} everywhere"), SOON * 2, || async {
            Ok(text(session, &format!("{STATES}'public.{index}'")).await? == states)
        })
        .await
        .unwrap();
    }
}

/// Waits until the session's region knows that two regions have built the index.
async fn built_in_two(session: &Session, index: &str) {
    let query = format!("select count(*) from onetrip.jobs where state = 'built' and index = 'public.{index}'");
    until("two regions have built it", SOON, || async { Ok(number(session, &query).await? == 2) }).await.unwrap();
}

/// The code of the error that the statement ends with.
async fn code(session: &Session, statement: &str) -> String {
    session.refused(statement).await.code().code().to_owned()
}

/// Runs the statement on a connection of its own.
pub async fn beside(lab: &Lab, region: usize, statement: &'static str) -> tokio::task::JoinHandle<Result<()>> {
    let session = lab.session(region).await;
    tokio::spawn(async move {
        match session.run(statement).await {
            Ok(()) => Ok(()),
            Err(error) => Err(session.why(error).await.map_or_else(|e| e, Into::into)),
        }
    })
}

/// The SQLSTATE with which such a statement has failed.
pub async fn failed(statement: tokio::task::JoinHandle<Result<()>>) -> String {
    said(statement.await.unwrap().expect_err("it succeeded")).code().code().to_string()
}

/// What the server said to a statement that has failed beside the test.
pub fn said(error: anyhow::Error) -> DbError {
    error.downcast().unwrap_or_else(|e| panic!("{e:#}"))
}

async fn enforced_everywhere(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    b.must(r#"CREATE UNIQUE INDEX CONCURRENTLY "index_items_on_name" ON "item" ("name")"#).await;
    assert!(valid(&b, "index_items_on_name").await);
    all_valid(lab, "index_items_on_name").await;
    for session in [&a, &b, &c] {
        assert_eq!(code(session, "insert into item values (2000, 'item 7', 0)").await, "23505");
        session
            .must("insert into item values (2000, 'item 7', 7) on conflict (name) do update set price = item.price")
            .await;
    }
    told(lab, "index_items_on_name", "done").await;
    c.must("drop index concurrently index_items_on_name").await;
    a.must("create unique index concurrently item_part on item (lower(name), price) nulls not distinct where id > 500")
        .await;
    all_valid(lab, "item_part").await;
    assert_eq!(code(&c, "insert into item values (2000, 'ITEM 700', 700)").await, "23505");
    c.must("insert into item values (2000, null, null)").await;
    lab.everywhere().await;
    assert_eq!(code(&b, "insert into item values (2001, null, null)").await, "23505");
    b.must("delete from item where id = 2000; drop index item_part").await;
    lab.everywhere().await;
}

/// It becomes valid although all regions write the table meanwhile.
async fn with_writers(lab: &Lab) {
    let statement = "create unique index concurrently item_written on item (slow(price), name)";
    while_all_write(lab, statement, (80, std::time::Duration::from_millis(20)), |region, i| {
        let id = 10_000 + region * 1000 + i;
        format!(
            "insert into item values ({id}, 'new {id}', {id}); update item set price = -price where id = {}",
            region * 300 + i + 1
        )
    })
    .await;
    all_valid(lab, "item_written").await;
    lab.everywhere().await;
    lab.session(0).await.must("drop index item_written").await;
    lab.everywhere().await;
}

/// It becomes what tells rows apart, so it also excludes those who have only locked rows, as foreign keys do.
async fn with_referrers(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    a.must(
        "create table plain (a int unique, b int not null); insert into plain select g, g from generate_series(1, 2) g;
         create table referrer (id serial primary key, a int references plain (a))",
    )
    .await;
    lab.everywhere().await;
    for _ in 0..2 {
        hold_worker(&c, true).await;
        let building = beside(lab, 0, "create unique index concurrently plain_b on plain (b)").await;
        built_in_two(&a, "plain_b").await;
        let refer = |region: usize| {
            let (session, building) = (lab.session(region), &building);
            async move {
                let session = session.await;
                while !building.is_finished() {
                    if let Err(error) = session.run(&format!("insert into referrer (a) values ({region})")).await {
                        assert_eq!(error.code().map(|code| code.code()), Some("40001"), "region {region}: {error:?}");
                    }
                }
            }
        };
        tokio::join!(hold_worker(&c, false), refer(1), refer(2));
        building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
        all_valid(lab, "plain_b").await;
        lab.everywhere().await;
        a.must("drop index plain_b").await;
        lab.everywhere().await;
    }
    for (region, session) in lab.sessions().await.iter().enumerate() {
        let handovers = number(session, "select handovers from onetrip.status").await.unwrap();
        assert_eq!(handovers, 0, "region {region}: a decided transaction stood in the way");
    }
    a.must("drop table referrer, plain").await;
    lab.everywhere().await;
}

/// From its definition on, no two regions that have not seen each other commit one value.
async fn one_value_in_all_regions(lab: &Lab) {
    let sessions = lab.sessions().await;
    for session in &sessions {
        hold_worker(session, true).await;
    }
    let building = beside(lab, 0, "create unique index concurrently item_price on item (price)").await;
    for session in &sessions {
        until("it is defined", SOON, || async {
            Ok(text(session, "select to_regclass('item_price') is not null").await? == "t")
        })
        .await
        .unwrap();
    }
    for round in 0..10 {
        let all = |region: usize| {
            let session = &sessions[region];
            async move {
                let id = 20_000 + round * 10 + region;
                session.run(&format!("insert into item values ({id}, 'one', {})", 20_000 + round)).await.is_ok()
                    as usize
            }
        };
        let (first, second, third) = tokio::join!(all(0), all(1), all(2));
        assert!(first + second + third >= 1, "nobody has won");
        lab.everywhere().await;
        if first + second + third > 1 {
            // one had seen the other's, which nothing forbids yet
            sessions[0].must(&format!("delete from item where price = {} and id % 10 <> 0", 20_000 + round)).await;
            lab.everywhere().await;
        }
    }
    valid_nowhere(lab, "item_price").await;
    for session in &sessions {
        hold_worker(session, false).await;
    }
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    all_valid(lab, "item_price").await;
    for session in &sessions {
        assert_eq!(code(session, "insert into item values (29999, 'two', 20000)").await, "23505");
    }
    sessions[0].must("drop index item_price; delete from item where id >= 20000").await;
    lab.everywhere().await;
}

async fn duplicates_from_before(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    a.must("insert into item values (3000, 'item 5', 0)").await;
    lab.everywhere().await;
    assert_eq!(code(&b, "create unique index concurrently item_name on item (name)").await, "23505");
    told(lab, "item_name", "failed").await;
    valid_nowhere(lab, "item_name").await;
    assert_eq!(code(&c, "insert into item values (3001, 'item 6', 0) on conflict (name) do nothing").await, "42P10");
    assert_eq!(code(&c, "alter table item add unique using index item_name").await, "55000");
    for session in [&a, &b, &c] {
        let error =
            text(session, "select distinct error from onetrip.jobs where index = 'public.item_name'").await.unwrap();
        assert!(error.starts_with("could not create unique index"), "{error}");
        assert_eq!(code(session, "reindex index item_name").await, "55000");
        assert_eq!(code(session, "reindex table item").await, "55000");
    }
    c.must("delete from item where id = 3000").await;
    all_valid(lab, "item_name").await;
    lab.everywhere().await;
    assert_eq!(code(&c, "insert into item values (3001, 'item 6', 0)").await, "23505");
    c.must("drop index item_name").await;
    lab.everywhere().await;
}

/// A region that has built it refuses duplicates of its own clients, and shows those that another one has committed.
async fn a_duplicate_from_where_it_is_not_built(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let building = beside(lab, 0, "create unique index concurrently item_half on item (name)").await;
    built_in_two(&a, "item_half").await;
    assert_eq!(code(&a, "insert into item values (4000, 'item 9', 0)").await, "23505");
    c.must("insert into item values (4000, 'item 9', 0)").await;
    c.must("update item set name = 'item 10' where id = 11; insert into item values (4001, 'fresh', 1)").await;
    lab.shows("select count(*) from item where name in ('item 9', 'item 10', 'fresh')", "5").await;
    assert_eq!(failed(building).await, "23505", "as in PostgreSQL");
    valid_nowhere(lab, "item_half").await;
    hold_worker(&c, false).await;
    told(lab, "item_half", "failed").await;
    valid_nowhere(lab, "item_half").await;
    b.must("delete from item where id = 4000; update item set name = 'item 11' where id = 11").await;
    all_valid(lab, "item_half").await;
    lab.everywhere().await;
    for session in [&a, &b, &c] {
        assert_eq!(code(session, "insert into item values (4002, 'item 9', 0)").await, "23505");
    }
    a.must("drop index item_half; delete from item where id > 4000 and id < 5000").await;
    lab.everywhere().await;
}

/// A duplicate is written that only the second pass over the table finds, and VACUUM FULL puts into the index.
async fn a_duplicate_while_it_is_built(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    let building = beside(lab, 0, "create unique index concurrently item_pass on item (slow(price), slow(0))").await;
    until("region a is building", SOON, || async {
        Ok(number(
            &a,
            "select count(*) from pg_stat_progress_create_index where index_relid = to_regclass('item_pass') and phase like 'building%'",
        )
        .await?
            == 1)
    })
    .await
    .unwrap();
    a.must("insert into item values (7000, 'pass', 200)").await;
    assert_eq!(failed(building).await, "23505");
    told(lab, "item_pass", "failed").await;
    for session in [&a, &b, &c] {
        session.must("vacuum full item").await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    valid_nowhere(lab, "item_pass").await;
    c.must("delete from item where id = 7000").await;
    all_valid(lab, "item_pass").await;
    b.must("drop index item_pass").await;
    lab.everywhere().await;
}

/// Where it is not built, a value is written that it cannot take.
async fn a_value_that_is_too_long(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let building = beside(lab, 0, "create unique index concurrently item_long on item (name)").await;
    built_in_two(&b, "item_long").await;
    c.must("insert into item select 4500, string_agg(md5(g::text), ''), 0 from generate_series(1, 500) g").await;
    lab.shows("select count(*) from item where id = 4500", "1").await;
    hold_worker(&c, false).await;
    told(lab, "item_long", "failed").await;
    valid_nowhere(lab, "item_long").await;
    let _ = building.await.unwrap();
    a.must("delete from item where id = 4500").await;
    all_valid(lab, "item_long").await;
    b.must("drop index item_long").await;
    lab.everywhere().await;
}

const WITH_DUPLICATES: &str =
    "select (select coalesce(bool_or(indisvalid), false) from pg_index where indexrelid = to_regclass('hot_v'))
     || ' ' || exists (select from hot group by v having count(*) > 1)";

/// Rows with few values come and go in all regions, also such that are there already, while the index is made and
/// dropped again and again.  In no region, at no time, is it valid while two rows have one value.  After a round that
/// met duplicates the next one is written to more slowly: some rounds fail, and on any machine some do not.
async fn never_valid_with_duplicates(lab: &Lab) {
    const ROUNDS: usize = 12;
    const CLEAN: &str = "delete from hot a using hot b where a.v = b.v and a.id > b.id";
    lab.session(0)
        .await
        .must("create table hot (id serial primary key, v int); insert into hot (v) select g from generate_series(1, 60) g")
        .await;
    lab.everywhere().await;
    const SHORTEST: u64 = 40;
    let ended = AtomicBool::new(false);
    let goes_on = || !ended.load(Relaxed);
    let pause = AtomicU64::new(SHORTEST);
    let seen_valid = [const { AtomicUsize::new(0) }; 3];
    let write = |region: usize| {
        let (session, pause) = (lab.session(region), &pause);
        async move {
            let session = session.await;
            for i in region.. {
                if !goes_on() {
                    return;
                }
                let v = i * 7 % 120;
                let change = match i % 20 {
                    0 => format!("insert into hot (v) values ({v})"),
                    1 => format!("update hot set v = {v} where id = (select max(id) from hot)"),
                    n if n % 4 == 2 => format!("delete from hot where v = {v}"),
                    n if n % 4 == 3 => CLEAN.to_owned(),
                    _ => format!("insert into hot (v) select {v} where not exists (select from hot where v = {v})"),
                };
                let _ = session.run(&change).await;
                tokio::time::sleep(std::time::Duration::from_millis(pause.load(Relaxed))).await;
            }
        }
    };
    let watch = |region: usize| {
        let (session, seen_valid) = (lab.session(region), &seen_valid[region]);
        async move {
            let session = session.await;
            while goes_on() {
                if let Ok(seen) = text(&session, WITH_DUPLICATES).await {
                    assert_ne!(seen, "true true", "region {region}: the index is valid with duplicates");
                    seen_valid.fetch_add((seen == "true false") as usize, Relaxed);
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    };
    let build = async {
        let (mut built, mut why) = (0, Vec::new());
        for round in 0..ROUNDS {
            let session = lab.session(round % 3).await;
            session.must("set statement_timeout = '8s'; set onetrip.statement_retries = 20").await;
            let _ = session.run(CLEAN).await;
            match session.run("create unique index concurrently hot_v on hot (v)").await {
                Ok(()) => {
                    built += 1;
                    pause.store(SHORTEST, Relaxed);
                }
                Err(e) => {
                    why.push(e.code().map_or_else(|| e.to_string(), |code| code.code().to_owned()));
                    pause.store((pause.load(Relaxed) * 3 / 2).min(2000), Relaxed);
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            again(session, "drop index if exists hot_v").await;
        }
        ended.store(true, Relaxed);
        (built, why)
    };
    let ((built, why), ..) = tokio::join!(build, write(0), write(1), write(2), watch(0), watch(1), watch(2));
    println!("unique_jobs: {built} of {ROUNDS} indexes became valid, seen {seen_valid:?} times; {why:?}");
    assert!(built > 0 && seen_valid.iter().all(|times| times.load(Relaxed) > 0), "none became valid");
    lab.everywhere().await;
    lab.shows_alike("select md5(coalesce(string_agg(h::text, ' ' order by id), '')) from hot h").await;
    lab.session(0).await.must("drop table hot").await;
    lab.everywhere().await;
}

/// Who is connected and still builds it is waited for.
async fn waits_for_those_who_build(lab: &Lab) {
    let [a, _, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let building = beside(lab, 1, "create unique index concurrently item_waits on item (name)").await;
    built_in_two(&a, "item_waits").await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    valid_nowhere(lab, "item_waits").await;
    assert!(!building.is_finished());
    hold_worker(&c, false).await;
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    all_valid(lab, "item_waits").await;
    a.must("drop index item_waits").await;
    lab.everywhere().await;
}

async fn renamed_and_dropped(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let building = beside(lab, 0, "create unique index concurrently item_first on item (name)").await;
    built_in_two(&b, "item_first").await;
    b.must("alter index item_first rename to item_second; create schema moved; alter table item set schema moved")
        .await;
    hold_worker(&c, false).await;
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    all_valid(lab, "moved.item_second").await;
    a.must("alter table moved.item set schema public; drop schema moved; drop index item_second").await;
    lab.everywhere().await;

    hold_worker(&a, true).await;
    let building = beside(lab, 1, "create unique index concurrently item_gone on item (name)").await;
    built_in_two(&b, "item_gone").await;
    c.must("drop index item_gone").await;
    assert_eq!(failed(building).await, "42704", "the session that builds it gives way");
    hold_worker(&a, false).await;
    lab.shows("select to_regclass('item_gone') is null", "t").await;
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

/// Statements that need it make it valid everywhere, those that would do so in one region are refused.
async fn what_needs_a_valid_index(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    hold_worker(&c, true).await;
    let building = beside(lab, 0, "create unique index concurrently item_clustered on item (name)").await;
    built_in_two(&b, "item_clustered").await;
    let again = beside(lab, 1, "reindex index concurrently item_clustered").await;
    for session in [&a, &c] {
        for statement in [
            "reindex index item_clustered",
            "reindex table item",
            "alter table item alter column id type bigint",
            "alter table item add column r float default random()",
        ] {
            assert_eq!(code(session, statement).await, "55000", "{statement}");
        }
        session.must("vacuum full item").await;
    }
    valid_nowhere(lab, "item_clustered").await;
    b.must("alter table item cluster on item_clustered").await;
    lab.everywhere().await;
    for session in [&a, &b, &c] {
        assert!(valid(session, "item_clustered").await);
        assert_eq!(code(session, "insert into item values (5000, 'item 9', 0)").await, "23505");
    }
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    again.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    hold_worker(&c, false).await;
    c.must("reindex index item_clustered; drop index item_clustered").await;
    lab.everywhere().await;
}

async fn killed_while_it_is_built(lab: &Lab) {
    let statement = "create unique index concurrently item_killed on item (slow(price), slow(id))";
    killed_while_building(lab, statement, "item_killed").await;
    all_valid(lab, "item_killed").await;
    lab.session(1).await.must("drop index item_killed").await;
    lab.everywhere().await;
}

/// The regions that have built it die, one of which would have made it valid.
async fn killed_before_it_is_valid(lab: &Lab) {
    let c = lab.session(2).await;
    hold_worker(&c, true).await;
    let building = beside(lab, 2, "create unique index concurrently item_dies on item (name)").await;
    built_in_two(&c, "item_dies").await;
    lab.node(0).kill9_postgres().unwrap();
    lab.node(1).kill9().unwrap();
    hold_worker(&c, false).await;
    lab.node(1).start().unwrap();
    for node in [0, 1] {
        lab.node(node).wait_serving(SOON * 2).await.unwrap();
    }
    building.await.unwrap().unwrap_or_else(|e| panic!("{e:?}"));
    all_valid(lab, "item_dies").await;
    lab.session(1).await.must("drop index item_dies").await;
    lab.everywhere().await;
}

/// A region that is away is not waited for, and has the index before it shows what comes after it.
async fn away(lab: &Lab) {
    let a = lab.session(0).await;
    lab.node(2).stop().await.unwrap();
    a.must("insert into item values (6000, 'early', 1)").await;
    again(lab.session(0).await, "create unique index concurrently item_away on item (name)").await;
    a.must("insert into item values (6001, 'late', 1)").await;
    assert!(valid(&a, "item_away").await);
    assert_eq!(code(&a, "insert into item values (6002, 'early', 1)").await, "23505");
    lab.node(2).start().unwrap();
    lab.node(2).wait_serving(SOON * 2).await.unwrap();
    lab.everywhere().await;
    all_valid(lab, "item_away").await;
    let c = lab.session(2).await;
    for name in ["early", "late"] {
        assert_eq!(code(&c, &format!("insert into item values (6003, '{name}', 0)")).await, "23505");
    }
    let (code, output) = lab.check(&["--indexes"]).await;
    assert_eq!(code, Some(0), "onetrip check: {output}");
}
