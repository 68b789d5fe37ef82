//! A subscription of the replicated database: what comes from a publisher arrives in all regions, exactly once.
//!
//! The publisher is a local database on the third region's server.  Its ledger has no key, and its counter is
//! changed in place, so that a transaction that is lost or comes twice shows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use onetrip_lab::torture::random::Random;

use crate::kill9::whole_postgres;
use crate::lab::{builder, fragile, number, start_from, subjects, text, until, Lab, Session, HEALED, SOON};

const TABLES: &str =
    "create table thing (id int primary key, v text); create table part_of (id int primary key references thing);
     create table counter (id int primary key, n bigint); create table ledger (n bigint, pad text);
     create table early (n int, pad text); create table restarted (id serial); create table kept (id serial)";
const OTHER_TABLES: &str = "create table there (id int primary key); create table here (id int primary key)";
const SUM: &str = "select (select n from counter) || ' ' || count(*) || ' ' || count(distinct n) || ' ' || coalesce(max(n), 0) from ledger";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn what_a_publisher_sends_arrives_once() {
    let name = "subscription";
    let about = "a subscription in one region: its rows in all, through crashes, and in another region afterwards";
    let builder =
        builder().postgres_setting("wal_level", "logical").postgres_setting("wal_retrieve_retry_interval", "500ms");
    let builder = builder.postgres_setting("onetrip.subscription_move_after", "-1");
    let lab = start_from(name, about, builder).await;
    lab.session(2).await.must("create database source").await;
    let source = publisher(&lab).await;
    source.must(TABLES).await;
    source
        .must("insert into thing select i, 'copied' from generate_series(1, 100) i; insert into counter values (1, 0); insert into early select i, repeat('x', 300) from generate_series(1, 20000) i; create publication all_of_it for all tables")
        .await;
    lab.session(0).await.must(TABLES).await;
    source.must(OTHER_TABLES).await;
    lab.session(0).await.must(OTHER_TABLES).await;
    lab.everywhere().await;
    drop(source);
    subjects!(lab, 4;
        killed_while_tables_are_copied,
        copied_and_followed,
        a_conflict_is_tried_again,
        nothing_is_lost_that_has_disabled_it,
        killed_while_a_publisher_writes,
        refused_where_it_would_begin_anew,
        refused_for_tables_of_the_server,
        taken_over_by_another_region,
        taken_over_from_one_that_lives,
        a_table_is_dropped_elsewhere_before_it_is_copied,
        refreshed_while_others_drop_tables,
        local_and_onetrip_tables_do_not_mix,
        its_owner_is_changed_elsewhere,
        moves_when_its_node_is_lost,
        made_again_when_its_server_was_copied,
        moves_back,
        dropped,
    );
}

fn conninfo(lab: &Lab) -> String {
    lab.node(2).conninfo().replace("dbname=onetrip", "dbname=source")
}

fn create(lab: &Lab, options: &str) -> String {
    format!("create subscription wanted connection '{}' publication all_of_it {options}", conninfo(lab))
}

const TAKE_OVER: &str = "with (create_slot = false, copy_data = false, slot_name = wanted)";

/// Transactions at the publisher: one more in the counter, and in the ledger.
async fn write(source: &Session, transactions: usize) {
    for _ in 0..transactions {
        source.must("begin; update counter set n = n + 1; insert into ledger select n from counter; commit").await;
    }
}

/// Runs a statement until it does not lose.
async fn again(session: &Session, statement: &str) {
    until(statement, 2 * SOON, async || match session.run(statement).await {
        Ok(()) => Ok(true),
        Err(e) if e.code().is_some_and(|code| code.code() == "40001") => Ok(false),
        Err(e) => anyhow::bail!("{e:?}"),
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
}

async fn publisher(lab: &Lab) -> Session {
    Session::open(&conninfo(lab)).await.unwrap()
}

/// Waits until the cluster shows what the publisher shows.
async fn same(lab: &Lab, query: &str) {
    let expected = text(&*publisher(lab).await, query).await.unwrap();
    until(&format!("{query}: {expected}"), 4 * SOON, async || {
        let shown = text(&*lab.session(1).await, query).await?;
        anyhow::ensure!(shown == expected, "{shown}, not {expected}");
        Ok(true)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    lab.shows(query, &expected).await;
}

const THINGS: &str = "select coalesce(string_agg(id || v || (p.id is not null), ' ' order by id), '') from thing left join part_of p using (id)";

/// A writer adds to a table that is being copied, and to one that is not, and everything is killed meanwhile.
async fn killed_while_tables_are_copied(lab: &Lab) {
    lab.session(0).await.must(&create(lab, "")).await;
    let (done, writer) = keep_writing(lab, "insert into early select max(n) + 1, 'later' from early");
    let mut random = Random::new(1127);
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(random.draw(1500))).await;
        kill(lab, round, &mut random).await;
    }
    done.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    same(lab, "select count(*) || ' ' || count(distinct n) || ' ' || max(n) from early").await;
    same(lab, SUM).await;
    let done = "select string_agg(srsubstate::text, '' order by 1) from pg_subscription_rel";
    until("all tables to be ready", 4 * SOON, async || Ok(text(&*lab.session(0).await, done).await? == "rrrrrrrrr"))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
}

/// Runs a statement at the publisher again and again, with one more in the counter and in the ledger.
fn keep_writing(lab: &Lab, also: &str) -> (Arc<AtomicBool>, tokio::task::JoinHandle<()>) {
    let done = Arc::new(AtomicBool::new(false));
    let (until_done, conninfo) = (done.clone(), conninfo(lab));
    let write = format!("begin; update counter set n = n + 1; insert into ledger select n, repeat('x', (n % 300)::int) from counter; {also}; commit");
    let writer = tokio::spawn(async move {
        let source = Session::open(&conninfo).await.unwrap();
        while !until_done.load(Ordering::Relaxed) {
            source.must(&write).await;
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    });
    (done, writer)
}

/// Waits until 20 more transactions of the publisher are shown.
async fn goes_on(session: &Session) {
    let before = number(session, "select n from counter").await.unwrap_or_else(|e| panic!("{e:#}"));
    until("the subscription to go on", 2 * SOON, async || {
        Ok(number(session, "select n from counter").await? > before + 20)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
}

/// Kills the subscription's server, its node, or both.
async fn kill(lab: &Lab, round: u64, random: &mut Random) {
    match round % 3 {
        0 => whole_postgres(lab, 0),
        1 => lab.node(0).kill9().expect("kill the node"),
        _ => {
            lab.node(0).kill9().expect("kill the node");
            whole_postgres(lab, 0);
        }
    }
    if round % 3 != 0 {
        tokio::time::sleep(Duration::from_millis(random.draw(2000))).await;
        lab.node(0).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    }
}

async fn copied_and_followed(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    let things =
        "select count(*) || ' ' || coalesce(sum(id), 0) || ' ' || coalesce(string_agg(distinct v, ' '), '') from thing";
    same(lab, things).await;
    lab.shows(
        "select subscription || ' ' || region from onetrip.subscription_position where relid = 0",
        &format!("wanted {}", text(&a, "show onetrip.region").await.unwrap()),
    )
    .await;
    until("all tables to be copied", SOON, async || {
        Ok(text(&a, "select copying::text || (select count(*) from onetrip.subscription_position) from onetrip.subscription_position where relid = 0").await? == "{}1")
    })
    .await
    .unwrap();
    source.must("update thing set v = 'changed' where id % 2 = 0; delete from thing where id > 90; insert into part_of values (3)").await;
    same(lab, things).await;
    same(lab, THINGS).await;
    source.must("truncate thing, part_of; insert into thing values (7, 'seven')").await;
    same(lab, THINGS).await;
    source.must("begin; insert into thing values (8, 'eight'); savepoint s; insert into thing values (9, 'nine'); rollback to s; truncate thing, part_of; insert into thing values (1, 'one'), (2, 'two'); insert into part_of values (2); commit").await;
    same(lab, THINGS).await;
    // Each of the publisher's TRUNCATEs does what it says.
    let other = lab.session(1).await;
    other.must("select nextval('restarted_id_seq'), nextval('kept_id_seq') from generate_series(1, 9)").await;
    let last = "select (select last_value from restarted_id_seq) || ' ' || (select last_value from kept_id_seq)";
    let (before, first) = (
        text(&other, last).await.unwrap(),
        text(&other, "select start_here::text from onetrip.sequences where sequence_name = 'kept_id_seq'")
            .await
            .unwrap(),
    );
    source
        .must(
            "begin; truncate restarted restart identity; truncate restarted, kept; insert into thing values (3, 'three'); commit",
        )
        .await;
    same(lab, THINGS).await;
    let after = format!("{first} {}", before.split_once(' ').unwrap().1);
    assert_eq!(text(&other, last).await.unwrap(), after, "it was {before}");
    source.must("delete from thing where id = 3").await;
    same(lab, THINGS).await;
    a.must("comment on subscription wanted is 'ours'; alter subscription wanted rename to needed; alter subscription needed rename to wanted").await;
    lab.shows("select string_agg(subscription, ' ') from onetrip.subscription_position", "wanted").await;
    lab.shows("select (select count(*) from thing)", "2").await;
}

/// A writer of another region changes the same rows again and again; the counter that the publisher sends is right
/// nevertheless, because a worker that loses starts anew.
async fn a_conflict_is_tried_again(lab: &Lab) {
    let source = publisher(lab).await;
    let other = lab.session(1).await;
    let done = Arc::new(AtomicBool::new(false));
    let until_done = done.clone();
    let writer = tokio::spawn(async move {
        while !until_done.load(Ordering::Relaxed) {
            let _ = other.run("update counter set id = id").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    // A worker has no application name.
    let lost = || lab.node(0).log("postgres.log").unwrap().matches("]  40001 ").count();
    let (before, mut rounds) = (lost(), 0);
    while lost() == before {
        assert!(rounds < 30, "no COMMIT of the worker has lost");
        rounds += 1;
        write(&source, 20).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    done.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    same(lab, SUM).await;
}

/// With `disable_on_error`, a COMMIT that loses disables the subscription.  It goes on where it was.
async fn nothing_is_lost_that_has_disabled_it(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    a.must("alter subscription wanted set (disable_on_error = true)").await;
    let other = lab.session(1).await;
    let mut disabled = 0;
    for _ in 0..1000 {
        if disabled == 3 {
            break;
        }
        write(&source, 1).await;
        let _ = other.run("update counter set id = id").await;
        if text(&a, "select subenabled::text from pg_subscription").await.unwrap() == "false" {
            disabled += 1;
            a.must("alter subscription wanted enable").await;
        }
    }
    assert_eq!(disabled, 3, "no COMMIT of the worker has lost");
    a.must("alter subscription wanted set (disable_on_error = false)").await;
    a.must("alter subscription wanted enable").await;
    same(lab, SUM).await;
}

async fn killed_while_a_publisher_writes(lab: &Lab) {
    let (done, writer) = keep_writing(lab, "select");
    let mut random = Random::new(20261127);
    let b = lab.session(1).await;
    for round in 0..6 {
        goes_on(&b).await;
        tokio::time::sleep(Duration::from_millis(random.draw(300))).await;
        kill(lab, round, &mut random).await;
    }
    done.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    same(lab, SUM).await;
}

async fn refused_where_it_would_begin_anew(lab: &Lab) {
    let b = lab.session(1).await;
    let why = b.refused(&create(lab, "")).await;
    assert_eq!(why.code().code(), "42710", "{}", why.message());
    assert!(why.hint().is_some_and(|hint| hint.contains("create_slot = false")), "{why:?}");
    let why = b.refused(&create(lab, "with (two_phase = true)")).await;
    assert_eq!(why.code().code(), "0A000", "{}", why.message());
}

/// The tables of schema onetrip are the server's own, also for a worker whose owner may write all data.
async fn refused_for_tables_of_the_server(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    source.must("create schema onetrip; create table onetrip.left_out (log_index bigint primary key)").await;
    let why = a.refused("alter subscription wanted refresh publication").await;
    assert_eq!(why.code().code(), "42501", "{}", why.message());
    assert!(why.message().contains("onetrip.left_out"), "{}", why.message());
    source.must("drop schema onetrip cascade").await;
}

/// The first region is stopped, another one goes on, and the first one applies nothing when it is back.
async fn taken_over_by_another_region(lab: &Lab) {
    let source = publisher(lab).await;
    lab.node(0).kill9().expect("kill the node");
    whole_postgres(lab, 0);
    write(&source, 10).await;
    let b = lab.session(1).await;
    b.must(&create(lab, TAKE_OVER)).await;
    let n = number(&source, "select n from counter").await.unwrap();
    until("the other region to go on", SOON, async || Ok(number(&b, "select n from counter").await? == n))
        .await
        .unwrap();
    lab.node(0).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    let a = lab.session(0).await;
    until("the former subscription to be disabled", SOON, async || {
        Ok(text(&a, "select subenabled::text from pg_subscription").await? == "false")
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    let why = a.refused("alter subscription wanted enable").await;
    assert!(why.detail().is_some_and(|detail| detail.contains("taken over")), "{why:?}");
    a.must("alter subscription wanted set (slot_name = none)").await;
    a.must("drop subscription wanted").await;
    write(&source, 10).await;
    same(lab, SUM).await;
}

/// Regions take it from each other, while the publisher sends nothing, so that the worker of the other one has no
/// reason to look; and while that worker writes the row all the time.
async fn taken_over_from_one_that_lives(lab: &Lab) {
    for (to, from, busy) in [(0, 1, false), (1, 0, true), (0, 1, false)] {
        let (to, from) = (lab.session(to).await, lab.session(from).await);
        let writer = busy.then(|| keep_writing(lab, "select"));
        again(&to, &create(lab, TAKE_OVER)).await;
        until("the former subscription to be disabled", SOON, async || {
            Ok(text(&from, "select subenabled::text from pg_subscription").await? == "false")
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
        let why = from.refused("drop subscription wanted").await;
        assert!(why.hint().is_some_and(|hint| hint.contains("slot_name = NONE")), "{why:?}");
        from.must("alter subscription wanted set (slot_name = none)").await;
        from.must("drop subscription wanted").await;
        if let Some((done, writer)) = writer {
            tokio::time::sleep(Duration::from_secs(1)).await;
            done.store(true, Ordering::Relaxed);
            writer.await.unwrap();
        }
        let source = publisher(lab).await;
        write(&source, 10).await;
        same(lab, SUM).await;
    }
}

/// PostgreSQL lets nobody drop a table that is being copied.  A region where nothing is copied does.
async fn a_table_is_dropped_elsewhere_before_it_is_copied(lab: &Lab) {
    let (a, b, source) = (lab.session(0).await, lab.session(1).await, publisher(lab).await);
    source.must("create table twice (id int); insert into twice values (1), (1)").await;
    a.must("create table twice (id int primary key)").await;
    a.must("alter subscription wanted refresh publication").await;
    until("the copy to fail", SOON, async || {
        Ok(number(&a, "select sync_error_count from pg_stat_subscription_stats").await? > 0)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    b.must("drop table twice").await;
    lab.everywhere().await;
    write(&source, 1).await;
    same(lab, SUM).await;
    lab.shows("select copying::text || (select count(*) from onetrip.subscription_position) from onetrip.subscription_position where relid = 0", "{}1").await;
    source.must("drop table twice").await;
    until("the slot of the copy to be free", SOON, async || {
        source
            .run("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'pg%sync%'")
            .await?;
        Ok(true)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
}

/// A refresh that removes tables, and entries that drop others, need the same lock in the region of the subscription.
async fn refreshed_while_others_drop_tables(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    let (b, done) = (lab.session(1).await, Arc::new(AtomicBool::new(false)));
    let until_done = done.clone();
    let dropper = tokio::spawn(async move {
        while !until_done.load(Ordering::Relaxed) {
            for statement in ["create table passing (id int primary key)", "drop table passing"] {
                let _ = b.run(statement).await;
            }
        }
    });
    for _ in 0..5 {
        source.must("create table also (id int primary key)").await;
        again(&a, "create table if not exists also (id int primary key)").await;
        again(&a, "alter subscription wanted refresh publication").await;
        source.must("drop table also").await;
        again(&a, "alter subscription wanted refresh publication").await;
    }
    done.store(true, Ordering::Relaxed);
    dropper.await.unwrap();
    same(lab, SUM).await;
}

/// What of a transaction would be in the log, and what not, cannot be told apart after a crash.
async fn local_and_onetrip_tables_do_not_mix(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    let known = "select count(*) from onetrip.subscription_definition";
    lab.shows(known, "1").await;
    a.must("alter table here set access method heap").await;
    until("the subscription to be one that does not move", SOON, async || Ok(number(&a, known).await? == 0))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    source.must("insert into here values (1)").await;
    until("the row of the local table", SOON, async || Ok(number(&a, "select count(*) from here").await? == 1))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    source.must("begin; insert into here values (2); insert into there values (2); commit").await;
    until("the refusal", SOON, async || {
        Ok(number(&a, "select apply_error_count from pg_stat_subscription_stats").await? > 0)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    lab.shows("select count(*) from there", "0").await;
    a.must("delete from here; alter table here set access method onetrip").await;
    same(lab, "select string_agg(id::text, ' ') from there").await;
    lab.shows("select string_agg(id::text, ' ') from here", "2").await;
    until("the subscription to be one that moves", SOON, async || Ok(number(&a, known).await? == 1))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
}

/// The subscription of one region, roles of all.  Only the region of the subscription knows that the role owns it.
async fn its_owner_is_changed_elsewhere(lab: &Lab) {
    let (a, b) = (lab.session(0).await, lab.session(1).await);
    a.must("create role keeper superuser; create role nobody").await;
    a.must("alter subscription wanted owner to keeper").await;
    let owner = "select owner from onetrip.subscription_definition";
    until("the owner to be known", SOON, async || Ok(text(&b, owner).await? == "keeper"))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    let why = b.refused("drop role keeper").await;
    assert_eq!(why.code().code(), "2BP01", "{}", why.message());
    let why = b.refused("reassign owned by keeper to nobody").await;
    assert_eq!(why.code().code(), "42501", "{}", why.message());
    b.must("alter role keeper rename to minder").await;
    moves(lab, "60s").await;
    until("the new name to be known", SOON, async || Ok(text(&b, owner).await? == "minder"))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    again(&b, "reassign owned by minder to postgres").await;
    again(&b, "drop role minder, nobody").await;
    until("the owner to be known", SOON, async || Ok(text(&b, owner).await? == "postgres"))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    write(&publisher(lab).await, 3).await;
    same(lab, SUM).await;
}

/// Sets how long the node of a subscription may be lost.
async fn moves(lab: &Lab, after: &str) {
    for session in lab.sessions().await {
        session.must(&format!("alter system set onetrip.subscription_move_after = '{after}'")).await;
        session.must("select pg_reload_conf()").await;
    }
}

/// Stops region `from` while the publisher writes, and waits until the subscription goes on in region `to`.  When it
/// is back, nothing is left of it there.
async fn moves_from(lab: &Lab, from: usize, to: usize) {
    let (done, writer) = keep_writing(lab, "select");
    let there = lab.session(to).await;
    goes_on(&there).await;
    lab.node(from).kill9().expect("kill the node");
    whole_postgres(lab, from);
    let is_here = "select count(*) from pg_subscription s join onetrip.subscription_position p on p.relid = 0 and p.subid = s.oid and p.region = current_setting('onetrip.region')";
    until("the subscription to move", 2 * SOON, async || Ok(number(&there, is_here).await? == 1))
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    goes_on(&there).await;
    lab.node(from).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    let former = lab.session(from).await;
    until("the former subscription to be removed", 2 * SOON, async || {
        Ok(number(&former, "select count(*) from pg_subscription").await? == 0)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    done.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    same(lab, SUM).await;
    lab.shows("select count(*) from onetrip.subscription_position", "1").await;
}

/// The first of the others takes it: the second one would wait twice as long.
async fn moves_when_its_node_is_lost(lab: &Lab) {
    moves(lab, "6s").await;
    moves_from(lab, 0, 1).await;
}

/// The server with the subscription is replaced by a copy of another one, which has none.
async fn made_again_when_its_server_was_copied(lab: &Lab) {
    moves(lab, "1h").await;
    lab.session(1).await.must("alter system set onetrip.rebuild_after = '2s'").await;
    lab.session(1).await.must("select pg_reload_conf()").await;
    fragile(lab, "if current_setting('onetrip.region') = 'b' then raise 'not here: %', v; end if;").await;
    lab.session(0).await.must("insert into fragile values (1, 'x')").await;
    until("the server to be copied", HEALED, async || {
        Ok(lab.node(1).folder().join("postgres.kept/PG_VERSION").is_file()
            && number(&lab.connect(1).await?, "select count(*) from fragile").await? == 1)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    until("the subscription to be there again", 2 * SOON, async || {
        Ok(number(&*lab.session(1).await, "select count(*) from pg_subscription where subenabled").await? == 1)
    })
    .await
    .unwrap_or_else(|e| panic!("{e:#}"));
    write(&publisher(lab).await, 10).await;
    same(lab, SUM).await;
}

/// A table that is published and that the former node did not follow is not followed by the other one either.
async fn moves_back(lab: &Lab) {
    let (a, source) = (lab.session(0).await, publisher(lab).await);
    source.must("create table late (id int primary key); insert into late values (1)").await;
    a.must("create table late (id int primary key)").await;
    lab.everywhere().await;
    drop(a);
    moves(lab, "6s").await;
    moves_from(lab, 1, 0).await;
    source.must("insert into late values (2)").await;
    write(&source, 3).await;
    same(lab, SUM).await;
    lab.shows("select count(*) from late", "0").await;
    again(&lab.session(0).await, "alter subscription wanted refresh publication").await;
    same(lab, "select string_agg(id::text, ' ' order by id) from late").await;
}

async fn dropped(lab: &Lab) {
    lab.session(0).await.must("drop subscription wanted").await;
    lab.shows("select (select count(*) from onetrip.subscription_position) + (select count(*) from onetrip.subscription_definition)", "0").await;
    assert_eq!(number(&*publisher(lab).await, "select count(*) from pg_replication_slots").await.unwrap(), 0);
}
