//! A statement that is a transaction of its own, and loses against one of another region, is run again
//! (`onetrip.statement_retries`): its client is told of success, and of what the last run did.

use std::future::Future;

use tokio::io::AsyncWriteExt;
use tokio_postgres::error::SqlState;

use crate::lab::{
    apart, bounded, builder, is, number, start_from, subjects, text, told, until, Lab, Raw, Session, SOON,
};

const ROUNDS: i64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_lose_are_run_again() {
    let name = "retries";
    let about = "single statements of two regions that change the same row both succeed";
    // The distance makes two COMMITs cross each other on the way.
    let lab = start_from(name, about, builder().topology(apart(40)).postgres_setting("wal_level", "logical")).await;
    lab.session(0)
        .await
        .must("create table hot (id int primary key, v int not null); insert into hot select g, 0 from generate_series(1, 20) g")
        .await;
    lab.everywhere().await;
    subjects!(lab, 1;
        both_of_two_updates_commit,
        with_parameters_too,
        rows_of_returning_are_those_that_stay,
        the_count_is_of_the_last_run,
        the_last_run_may_fail_otherwise,
        one_that_is_evicted_while_it_runs,
        a_cancel_by_its_user_right_after_an_eviction,
        a_plan_of_a_table_that_changed_meanwhile,
        in_repeatable_read,
        procedures_if_asked,
        ddl_that_loses_to_other_ddl,
        not_what_has_written_at_a_foreign_server,
        not_what_finds_something_else_the_next_time,
        without_retries_one_of_two_fails,
        a_pipeline_is_one_transaction,
    );
}

async fn losses(sessions: [&Session; 2]) -> i64 {
    let mut sum = 0;
    for session in sessions {
        sum += number(session, "select count(*) from onetrip.conflicts").await.expect("a number");
    }
    sum
}

/// What both say of a statement that each of two regions runs at the same time.
async fn both<T>(work: (impl Future<Output = T>, impl Future<Output = T>)) -> (T, T) {
    bounded("two statements", async { tokio::join!(work.0, work.1) }).await
}

async fn both_of_two_updates_commit(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let before = losses([&b, &c]).await;
    for _ in 0..ROUNDS {
        let sql = "update hot set v = v + 1 where id = 1";
        let said = both((b.run(sql), c.run(sql))).await;
        said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
        said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
    }
    lab.shows("select v from hot where id = 1", &(2 * ROUNDS).to_string()).await;
    assert!(losses([&b, &c]).await > before, "no round met");
}

async fn with_parameters_too(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let before = losses([&b, &c]).await;
    for _ in 0..ROUNDS {
        let sql = "update hot set v = v + $1 where id = $2";
        let said = both((b.execute(sql, &[&1, &2]), c.execute(sql, &[&1, &2]))).await;
        assert_eq!(said.0.unwrap_or_else(|e| panic!("b: {}", told(&e))), 1);
        assert_eq!(said.1.unwrap_or_else(|e| panic!("c: {}", told(&e))), 1);
    }
    lab.shows("select v from hot where id = 2", &(2 * ROUNDS).to_string()).await;
    assert!(losses([&b, &c]).await > before, "no round met");
}

/// Prepared once, run often, so the server has a plan that it keeps.
async fn rows_of_returning_are_those_that_stay(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let before = losses([&b, &c]).await;
    let sql = "update hot set v = v + 1 where id = $1 returning v";
    let (in_b, in_c) = (b.prepare(sql).await.expect("prepare"), c.prepare(sql).await.expect("prepare"));
    let mut returned = Vec::new();
    for _ in 0..ROUNDS {
        let said = both((b.query(&in_b, &[&3]), c.query(&in_c, &[&3]))).await;
        for rows in [said.0, said.1] {
            let rows = rows.unwrap_or_else(|e| panic!("{}", told(&e)));
            assert_eq!(rows.len(), 1);
            returned.push(i64::from(rows[0].get::<_, i32>(0)));
        }
    }
    returned.sort_unstable();
    assert_eq!(returned, (1..=2 * ROUNDS).collect::<Vec<_>>());
    assert!(losses([&b, &c]).await > before, "no round met");
}

async fn the_count_is_of_the_last_run(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let before = losses([&b, &c]).await;
    for round in 0..ROUNDS as i32 {
        let sql = "update hot set v = v + 1 where id = 4 and v = $1";
        let said = both((b.execute(sql, &[&round]), c.execute(sql, &[&round]))).await;
        let counts = (said.0.expect("b"), said.1.expect("c"));
        assert!(counts == (0, 1) || counts == (1, 0), "{counts:?}");
        lab.everywhere().await;
    }
    assert!(losses([&b, &c]).await > before, "no round met");
}

async fn the_last_run_may_fail_otherwise(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    for round in 0..ROUNDS {
        let sql = format!("insert into hot values ({}, 0)", 100 + round);
        let said = both((b.run(&sql), c.run(&sql))).await;
        let error = match said {
            (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
            (x, y) => panic!("{x:?} and {y:?}"),
        };
        assert!(is(&error, &SqlState::UNIQUE_VIOLATION), "{}", told(&error));
    }
}

async fn one_that_is_evicted_while_it_runs(lab: &Lab) {
    let (a, b, watch) = (lab.session(0).await, lab.session(1).await, lab.session(1).await);
    let pid = b.pid().await.expect("a pid");
    let evictions = "select count(*) from onetrip.conflicts where kind = 'evicted'";
    let before = number(&watch, evictions).await.expect("a number");
    let change = async {
        let sleeps = format!("select wait_event = 'PgSleep' from pg_stat_activity where pid = {pid}");
        until("it holds the row", SOON, || async { Ok(text(&watch, &sleeps).await? == "t") }).await.expect("sleeps");
        a.run("update hot set v = 1000 where id = 5").await
    };
    let said = both((b.run("update hot set v = v + 1 where id = 5 returning pg_sleep(1)"), change)).await;
    said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
    said.1.unwrap_or_else(|e| panic!("a: {}", told(&e)));
    lab.shows("select v from hot where id = 5", "1001").await;
    assert!(number(&watch, evictions).await.expect("a number") > before, "it was not evicted");
}

/// A statement that runs again since it was evicted is canceled like any other.
async fn a_cancel_by_its_user_right_after_an_eviction(lab: &Lab) {
    let (a, b, watch) = (lab.session(0).await, lab.session(1).await, lab.session(1).await);
    let pid = b.pid().await.expect("a pid");
    let evictions = "select count(*) from onetrip.conflicts where kind = 'evicted'";
    let before = number(&watch, evictions).await.expect("a number");
    let sleeps = async |evicted: i64| {
        let sql = format!(
            "select wait_event = 'PgSleep' and ({evictions}) = {evicted} from pg_stat_activity where pid = {pid}"
        );
        until("it sleeps", SOON, async || Ok(text(&watch, &sql).await? == "t")).await.expect("sleeps");
    };
    let cancels = async {
        sleeps(before).await;
        a.must("update hot set v = 2000 where id = 16").await;
        sleeps(before + 1).await;
        watch.must(&format!("select pg_cancel_backend({pid})")).await;
        Ok(())
    };
    let said = both((b.run("update hot set v = v + 1 where id = 16 returning pg_sleep(5)"), cancels)).await;
    let error = said.0.expect_err("a cancel");
    assert!(is(&error, &SqlState::QUERY_CANCELED), "{}", told(&error));
    lab.shows("select v from hot where id = 16", "2000").await;
}

/// The statement is planned anew, so it knows a column, and the default, that came with what it lost to.
async fn a_plan_of_a_table_that_changed_meanwhile(lab: &Lab) {
    let (a, b, watch) = (lab.session(0).await, lab.session(1).await, lab.session(1).await);
    a.must("create table grows (id int primary key, v int); insert into grows values (1, 0)").await;
    lab.everywhere().await;
    let pid = b.pid().await.expect("a pid");
    let statement =
        b.prepare("update grows set v = v + 1 where id = $1 returning pg_sleep(1)::text").await.expect("prepare");
    let change = async {
        let sleeps = format!("select wait_event = 'PgSleep' from pg_stat_activity where pid = {pid}");
        until("it holds the row", SOON, || async { Ok(text(&watch, &sleeps).await? == "t") }).await.expect("sleeps");
        a.run("begin; alter table grows add column w int default 7; update grows set v = 10 where id = 1; commit")
            .await
            .map(|()| Vec::new())
    };
    let said = both((b.query(&statement, &[&1]), change)).await;
    said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
    said.1.unwrap_or_else(|e| panic!("a: {}", told(&e)));
    lab.shows("select v || ' ' || w from grows where id = 1", "11 7").await;
}

async fn in_repeatable_read(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let before = losses([&b, &c]).await;
    for session in [&b, &c] {
        session.must("set default_transaction_isolation = 'repeatable read'").await;
    }
    for _ in 0..ROUNDS {
        let sql = "update hot set v = v + 1 where id = 9";
        let said = both((b.run(sql), c.run(sql))).await;
        said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
        said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
    }
    lab.shows("select v from hot where id = 9", &(2 * ROUNDS).to_string()).await;
    assert!(losses([&b, &c]).await > before, "no round met");
}

async fn procedures_if_asked(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    b.must(
        "create procedure bump(inout n int) language plpgsql as
         $$ begin update hot set v = v + n where id = 10 returning v into n; end $$",
    )
    .await;
    lab.everywhere().await;
    let before = losses([&b, &c]).await;
    for session in [&b, &c] {
        session.must("set onetrip.retry_procedures = on").await;
    }
    let mut returned = Vec::new();
    for _ in 0..ROUNDS {
        let said = both((b.query("call bump(1)", &[]), c.query("call bump(1)", &[]))).await;
        for rows in [said.0, said.1] {
            let rows = rows.unwrap_or_else(|e| panic!("{}", told(&e)));
            returned.push(i64::from(rows[0].get::<_, i32>(0)));
        }
        let sql = "do $$ begin update hot set v = v + 1 where id = 11; end $$";
        let said = both((b.run(sql), c.run(sql))).await;
        said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
        said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
    }
    returned.sort_unstable();
    assert_eq!(returned, (1..=2 * ROUNDS).collect::<Vec<_>>());
    lab.shows("select v from hot where id = 11", &(2 * ROUNDS).to_string()).await;
    assert!(losses([&b, &c]).await > before, "no round met");
}

/// `postgres_fdw` commits at its server before COMMIT is certified: a second run would write there once more.
async fn not_what_has_written_at_a_foreign_server(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let port = text(&b, "show port").await.unwrap();
    b.must(&format!(
        "create extension postgres_fdw;
         create server here foreign data wrapper postgres_fdw options (host '127.0.0.1', port '{port}', dbname 'onetrip');
         create user mapping for postgres server here;
         create table told (round int);
         create foreign table tell (round int) server here options (table_name 'told');
         create function copies(round int) returns boolean language plpgsql as
         $$ begin execute format('copy tell from program %L', 'echo ' || round); return true; end $$;
         create function tells() returns trigger language plpgsql as
         $$ begin
             if current_setting('test.round', true) <> '' then
                 insert into tell values (current_setting('test.round')::int);
             end if;
             return null;
         end $$;
         create constraint trigger tells after update on hot deferrable initially deferred
         for each row when (new.id = 16) execute function tells()"
    ))
    .await;
    lab.everywhere().await;
    let ways = [
        "with x as (insert into tell values (:round) returning 1) update hot set v = v + 1 where id = 15",
        "with x as materialized (select copies(:round) as c) update hot set v = v + 1 from x where id = 15 and c",
        "update hot set v = v + 1 where id = 16",
    ];
    for (way, sql) in (0..).zip(ways) {
        let mut lost = 0;
        for round in way * ROUNDS..(way + 1) * ROUNDS {
            b.must(&format!("set test.round = {round}")).await;
            let sql = sql.replace(":round", &round.to_string());
            let same = format!("update hot set v = v + 1 where id = {}", if way == 2 { 16 } else { 15 });
            let said = both((b.run(&sql), c.run(&same))).await;
            said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
            if let Err(e) = said.0 {
                assert!(is(&e, &SqlState::T_R_SERIALIZATION_FAILURE), "b: {}", told(&e));
                lost += 1;
            }
        }
        assert!(lost > 0, "no round met: {sql}");
        assert_eq!(number(&b, "select count(*) - count(distinct round) from told").await.unwrap(), 0, "{sql}");
    }
    b.must(
        "drop trigger tells on hot; drop function tells, copies; drop extension postgres_fdw cascade; drop table told",
    )
    .await;
}

/// A second run would lose what the first one took from a slot, and find an advisory lock given back.
async fn not_what_finds_something_else_the_next_time(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    b.must("create publication of_hot for table hot").await;
    b.must(
        "create function gives_back() returns boolean language plpgsql as
         $$ begin return pg_advisory_unlock(17); end $$",
    )
    .await;
    lab.everywhere().await;
    b.must("select pg_create_logical_replication_slot('once', 'pgoutput')").await;
    let took = "select count(*) from pg_logical_slot_get_binary_changes('once', null, null, \
                'proto_version', '1', 'publication_names', 'of_hot')";
    for once in [took, "select gives_back()"] {
        let mut lost = 0;
        for _ in 0..ROUNDS {
            let sql = format!("with x as materialized ({once}) update hot set v = v + 1 from x where id = 17");
            let said = both((b.run(&sql), c.run("update hot set v = v + 1 where id = 17"))).await;
            if let Err(e) = said.1 {
                // After b has lost again and again, which does not try again.
                assert!(told(&e).contains("region \"b\" is to go first"), "c: {}", told(&e));
            }
            if let Err(e) = said.0 {
                assert!(is(&e, &SqlState::T_R_SERIALIZATION_FAILURE), "b: {}", told(&e));
                lost += 1;
            }
        }
        assert!(lost > 0, "no round met: {once}");
    }
    b.must("select pg_drop_replication_slot('once')").await;
    b.must("drop publication of_hot; drop function gives_back()").await;
}

/// DDL about different things, of two regions at the same time; one of them loses, since each changes the schema.
async fn ddl_that_loses_to_other_ddl(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    for session in [&b, &c] {
        // It leaves no trip to wait in line for what the other one does.
        session.must("set onetrip.max_trips = 2").await;
    }
    let before = losses([&b, &c]).await;
    for round in 0..ROUNDS {
        let (table, sequence) =
            (format!("create table made_{round} (id int primary key)"), format!("create sequence numbers_{round}"));
        let said = both((b.run(&table), c.run(&sequence))).await;
        said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
        said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
    }
    assert!(losses([&b, &c]).await > before, "no round met");
    // Each of them happened once, in every region.
    lab.everywhere().await;
    let made = "select count(*)::text from pg_class where relname ~ '^(made|numbers)_[0-9]+$'";
    lab.shows(made, &(2 * ROUNDS).to_string()).await;
    // The next run may fail otherwise. In the extended protocol it is run again too.
    let said = both((b.run("create table made_same (id int)"), c.run("create table made_same (id int)"))).await;
    let failed: Vec<_> = [said.0, said.1].into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 1);
    assert!(is(&failed[0], &SqlState::DUPLICATE_TABLE), "{}", told(&failed[0]));
    let said = both((b.execute("truncate made_0", &[]), c.execute("create view made_view as select 1", &[]))).await;
    said.0.unwrap_or_else(|e| panic!("b: {}", told(&e)));
    said.1.unwrap_or_else(|e| panic!("c: {}", told(&e)));
    lab.everywhere().await;
}

async fn without_retries_one_of_two_fails(lab: &Lab) {
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    let mut failed = 0;
    for session in [&b, &c] {
        session.must("set onetrip.statement_retries = 0").await;
    }
    for _ in 0..ROUNDS {
        let sql = "update hot set v = v + 1 where id = 6";
        let said = both((b.run(sql), c.run(sql))).await;
        for error in [said.0, said.1].into_iter().filter_map(Result::err) {
            assert!(is(&error, &SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(&error));
            failed += 1;
        }
    }
    assert!(failed > 0, "no round met");
    lab.shows("select v from hot where id = 6", &(2 * ROUNDS - failed).to_string()).await;
}

/// Two statements before one Sync are one transaction: the first must not be committed when the second one fails.
async fn a_pipeline_is_one_transaction(lab: &Lab) {
    let mut raw = Raw::open(lab, 1).await;
    let (first, second) = ("update hot set v = 500 where id = 7", "update hot set v = 1 / (v - v) where id = 8");
    let sync = Raw::message(b'S', b"");
    let all = [Raw::execute(first), Raw::execute(second), sync.clone()].concat();
    raw.0.write_all(&all).await.expect("send");
    // Parse, bind and run; then the second: parse, bind, error.
    assert_eq!(raw.answer().await, "12C12EZ");
    // The Sync comes late, so that the server cannot know.
    raw.0.write_all(&Raw::execute(first)).await.expect("send");
    raw.0.flush().await.expect("flush");
    let b = lab.session(1).await;
    let open = "select count(*) from pg_stat_activity where state = 'active' and query like 'update hot set v = 500%' and pid <> pg_backend_pid() and backend_xid is not null";
    until("it has run", SOON, || async { Ok(number(&b, open).await? == 1) }).await.expect("has run");
    assert_eq!(text(&b, "select v from hot where id = 7").await.expect("a number"), "0");
    raw.0.write_all(&[Raw::execute(second), sync.clone()].concat()).await.expect("send");
    assert_eq!(raw.answer().await, "12C12EZ");
    lab.shows("select v from hot where id = 7", "0").await;
    // With its Sync at once, one statement is one transaction.
    raw.0.write_all(&[Raw::execute(first), sync].concat()).await.expect("send");
    assert_eq!(raw.answer().await, "12CZ");
    lab.shows("select v from hot where id = 7", "500").await;
}
