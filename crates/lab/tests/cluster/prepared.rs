//! Prepared transactions: they hold what they have changed in every region, outlive the region and the servers that
//! they came from, and are committed or rolled back from any region, once.

use tokio_postgres::error::SqlState;

use crate::kill9::whole_postgres;
use crate::lab::{bounded, number, start, told_db, until, Lab, Session, SOON};

const LISTED: &str = "select coalesce(string_agg(concat_ws(' ', gid, owner, database, region, prepared, log_index), ', ' order by gid), '') \
     from onetrip.prepared_xacts";
const ROWS: &str = "select string_agg(id || '=' || v, ' ' order by id) from accounts";

async fn loses(session: &Session, sql: &str) {
    let error = session.refused(sql).await;
    let said = told_db(&error);
    assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{sql}: {said}");
    assert!(error.message().contains("a prepared transaction of region"), "{sql}: {said}");
}

async fn is_refused(session: &Session, sql: &str, state: &SqlState) {
    let error = session.refused(sql).await;
    assert_eq!(error.code(), state, "{sql}: {}", told_db(&error));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_outlives_its_region_and_is_ended_from_another() {
    let lab = start("prepared", "PREPARE TRANSACTION in one region, which is lost; COMMIT PREPARED in another").await;
    let [a, b, c] = lab.sessions().await;
    a.must("create table accounts (id int primary key, v int)").await;
    a.must("insert into accounts select i, 0 from generate_series(1, 3) i").await;
    a.must("create role clerk; create role other; grant all on accounts to clerk, other").await;
    lab.everywhere().await;

    a.must("set role clerk").await;
    a.must(
        "begin; update accounts set v = 1 where id = 1; insert into accounts values (4, 1); prepare transaction 'one'",
    )
    .await;
    a.must("begin; delete from accounts where id = 2; prepare transaction 'two'").await;
    a.must("reset role").await;
    lab.everywhere().await;
    let listed = lab.shows_alike(LISTED).await;
    assert!(listed.starts_with("one clerk ") && listed.contains(", two clerk "), "{listed}");
    lab.shows(
        "select string_agg(gid, ' ' order by gid) from pg_prepared_xacts where database = current_database()",
        "one two",
    )
    .await;
    lab.shows(ROWS, "1=0 2=0 3=0").await;
    for session in [&a, &b, &c] {
        loses(session, "update accounts set v = 9 where id = 1").await;
        loses(session, "insert into accounts values (4, 9)").await;
        loses(session, "alter table accounts add column w int").await;
        is_refused(session, "commit prepared 'none'", &SqlState::UNDEFINED_OBJECT).await;
    }
    b.must("begin; update accounts set v = 9 where id = 3").await;
    is_refused(&b, "prepare transaction 'one'", &SqlState::DUPLICATE_OBJECT).await;
    b.must("update accounts set v = 3 where id = 3").await;
    b.must("create table unrelated (id int primary key)").await;
    lab.everywhere().await;

    // Values that it draws are known in every region before it is ended: no other session may be given them.
    a.must("create sequence ticket").await;
    a.must("begin; insert into accounts select 50 + n, nextval('ticket') from generate_series(1, 9) n").await;
    let drawn = crate::lab::text(&a, "select currval('ticket')::text").await.unwrap();
    a.must("prepare transaction 'draws'").await;
    lab.shows(&format!("select (last_value >= {drawn})::text from ticket"), "true").await;
    c.must("rollback prepared 'draws'").await;
    // So are those that its region has drawn before it, in transactions without an entry.
    a.must("select nextval('ticket') from generate_series(1, 50)").await;
    let drawn = crate::lab::text(&a, "select currval('ticket')::text").await.unwrap();
    a.must("begin; update accounts set v = 0 where id = 3; prepare transaction 'after a draw'").await;
    lab.shows(&format!("select (last_value >= {drawn})::text from ticket"), "true").await;
    c.must("rollback prepared 'after a draw'").await;

    // Its region is lost for now. What it prepared is not.
    drop(a);
    lab.node(0).kill9().expect("kill the node");
    whole_postgres(&lab, 0);
    until("the others go on", SOON, || async { Ok(b.run("update accounts set v = v + 1 where id = 3").await.is_ok()) })
        .await
        .unwrap();
    loses(&b, "update accounts set v = 9 where id = 1").await;
    b.must("set role other").await;
    is_refused(&b, "commit prepared 'one'", &SqlState::INSUFFICIENT_PRIVILEGE).await;
    b.must("set role clerk").await;
    b.must("commit prepared 'one'").await;
    b.must("reset role").await;
    until("the other region shows it", SOON, || async { Ok(crate::lab::text(&c, ROWS).await? == "1=1 2=0 3=4 4=1") })
        .await
        .unwrap();
    is_refused(&c, "commit prepared 'one'", &SqlState::UNDEFINED_OBJECT).await;
    c.must("rollback prepared 'two'").await;
    c.must("update accounts set v = 2 where id = 2").await;
    lab.node(0).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    lab.everywhere().await;
    lab.shows(ROWS, "1=1 2=2 3=4 4=1").await;
    lab.shows(LISTED, "").await;

    everything_restarts(&lab, c).await;
    at_once_in_another_region(&lab).await;
    two_end_it_at_once(&lab).await;
    cancelled_once_it_is_decided(&lab).await;
    lab.check_equal(3).await;
}

/// All nodes and servers are killed while something is prepared.
async fn everything_restarts(lab: &Lab, session: Session) {
    session.must("begin; update accounts set v = 30 where id = 3; prepare transaction 'three'").await;
    lab.everywhere().await;
    let listed = lab.shows_alike(LISTED).await;
    drop(session);
    for node in lab.nodes() {
        node.kill9().expect("kill the node");
    }
    (0..3).for_each(|region| whole_postgres(lab, region));
    for node in lab.nodes() {
        node.start().unwrap_or_else(|e| panic!("{e:#}"));
    }
    until("they come back", 3 * SOON, || async {
        for region in 0..3 {
            lab.connect(region).await?;
        }
        let session = lab.connect(1).await?;
        Ok(session.batch_execute("update accounts set v = 3 where id = 2").await.is_ok())
    })
    .await
    .unwrap();
    lab.everywhere().await;
    assert_eq!(lab.shows_alike(LISTED).await, listed);
    let [a, b, _] = lab.sessions().await;
    loses(&b, "update accounts set v = 9 where id = 3").await;
    bounded("COMMIT PREPARED", a.must("commit prepared 'three'")).await;
    lab.everywhere().await;
    lab.shows(ROWS, "1=1 2=3 3=30 4=1").await;
}

/// Whoever has been told that it is prepared can end it in any region, without a pause.
async fn at_once_in_another_region(lab: &Lab) {
    let [a, b, c] = lab.sessions().await;
    b.must("set default_transaction_isolation = 'repeatable read'").await;
    for round in 50..60 {
        a.must(&format!("begin; insert into accounts values ({round}, 1); prepare transaction 'quick {round}'")).await;
        [&b, &c][round % 2].must(&format!("commit prepared 'quick {round}'")).await;
    }
    lab.everywhere().await;
    lab.shows("select count(*)::text from accounts where id between 50 and 59", "10").await;
}

/// A COMMIT PREPARED that is cancelled after it is decided succeeds, and the session's next query sees it.
async fn cancelled_once_it_is_decided(lab: &Lab) {
    let a = lab.session(0).await;
    a.must("create table many (id int primary key)").await;
    let mut succeeded = 0;
    for round in 1..=12 {
        let rows = format!("select {round} * 30000 + i from generate_series(1, 30000) i");
        a.must(&format!("begin; insert into many {rows}; prepare transaction 'many'")).await;
        a.must(&format!("set statement_timeout = {}", 4 * round)).await;
        let ended = a.run("commit prepared 'many'").await;
        a.must("set statement_timeout = 0").await;
        let seen = number(&a, "select count(*) from many").await.unwrap();
        if ended.is_ok() {
            succeeded += 1;
            assert_eq!(seen, round * 30000, "round {round}");
        }
        until("it is committed", SOON, || async {
            let _ = a.run("commit prepared 'many'").await;
            Ok(number(&a, "select count(*) from pg_prepared_xacts").await? == 0)
        })
        .await
        .unwrap();
    }
    assert!(succeeded > 0, "all were cancelled before they were decided");
    a.must("truncate many").await;
}

/// Of several that end it at once, in different regions and differently, one does.
async fn two_end_it_at_once(lab: &Lab) {
    let sessions = lab.sessions().await;
    for round in 100..110 {
        sessions[0].must(&format!("begin; insert into accounts values ({round}, 1); prepare transaction 'race'")).await;
        lab.everywhere().await;
        let [a, b, c] = &sessions;
        let (a, b, c) = tokio::join!(
            a.run("commit prepared 'race'"),
            b.run("rollback prepared 'race'"),
            c.run("commit prepared 'race'")
        );
        for error in [&a, &b, &c].into_iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(error.code(), Some(&SqlState::UNDEFINED_OBJECT), "{error:?}");
        }
        assert_eq!([&a, &b, &c].into_iter().filter(|result| result.is_ok()).count(), 1, "{a:?} {b:?} {c:?}");
        lab.everywhere().await;
        let there = if b.is_ok() { "0" } else { "1" };
        lab.shows(&format!("select count(*)::text from accounts where id = {round}"), there).await;
    }
}

/// PostgreSQL keeps the locks of what it prepares, on that server alone, and DDL of other regions waits for them.  What
/// has only read, or drawn from a sequence, is prepared in the cluster instead; anything else is named once an entry
/// waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgresql_has_prepared_is_named_when_ddl_waits_for_it() {
    let lab = start("prepared_by_postgresql", "PostgreSQL's own PREPARE TRANSACTION in a region, DDL in another").await;
    let a = lab.session(0).await;
    a.must("create table orders (id serial primary key); create table own (id int) using heap").await;
    a.must("create view seen as select 1 as one").await;
    a.must("alter system set max_prepared_transactions = 5").await;
    a.must("alter system set onetrip.max_apply_delay = '1s'").await;
    lab.everywhere().await;
    drop(a);
    lab.node(0).stop().await.expect("stop");
    lab.node(0).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    until("it comes back", SOON, || async { lab.connect(0).await.map(|_| true) }).await.unwrap();

    let [a, b, _] = lab.sessions().await;
    a.must("begin; select nextval('orders_id_seq'); prepare transaction 'drew'").await;
    a.must("begin; select * from seen; prepare transaction 'saw'").await;
    lab.everywhere().await;
    loses(&b, "drop table orders").await;
    loses(&b, "drop view seen").await;
    b.must("rollback prepared 'drew'").await;
    b.must("rollback prepared 'saw'").await;

    a.must("begin; insert into own values (1); prepare transaction 'kept'").await;
    b.must("set onetrip.rehearse = off").await;
    b.must("drop table own").await;
    let said = "select concat_ws(' ', failing is not null, failure) from onetrip.status";
    until("the region says what it waits for", SOON, || async {
        Ok(crate::lab::text(&a, said).await?.starts_with("t it waits for prepared transaction 'kept' of this server"))
    })
    .await
    .unwrap();
    a.must("rollback prepared 'kept'").await;
    lab.everywhere().await;
    b.must("drop table orders; drop view seen").await;
    lab.everywhere().await;
    lab.shows(said, "f").await;

    // It is its server's own, and stays there when another region copies that server.
    b.must("create table own (id serial primary key, v int) using heap").await;
    lab.everywhere().await;
    a.must("begin; insert into own (v) values (1); prepare transaction 'it''s kept'").await;
    for stopped in [1, 2] {
        lab.node(stopped).stop().await.expect("stop");
    }
    std::fs::remove_dir_all(lab.node(1).postgres_data()).expect("lose the data folder");
    lab.node(1).start().unwrap_or_else(|e| panic!("{e:#}"));
    lab.wait_joined(1).await.unwrap_or_else(|e| panic!("{e:#}"));
    let b = lab.session(1).await;
    assert_eq!(number(&b, "select count(*) from pg_prepared_xacts").await.unwrap(), 0);
    assert!(lab.node(1).log_tail(1000).contains("prepared transaction \"it's kept\" of database"));
    a.must("commit prepared 'it''s kept'").await;
    assert_eq!(number(&a, "select count(*) from own").await.unwrap(), 1);
    b.must("insert into own (v) values (2)").await;
    assert_eq!(number(&b, "select count(*) from own").await.unwrap(), 1);
    lab.node(2).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    b.must("drop table own").await;
    lab.everywhere().await;
}
