//! `onetrip.concurrency = locking`: who wants a row that another region is changing waits in line for it, and commits.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::lab::{apart, bounded, builder, lost, number, start_from, subjects, text, told, until, Lab, Session, SOON};

/// A loser is not run again, so that whoever loses is seen.
const LOCKING: &str = "set onetrip.concurrency = locking; set onetrip.statement_retries = 0";
const LEADER: usize = 0;
const ASKED: &str = "select count from onetrip.crossings where cause = 'row lock'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_rows_wait_in_line() {
    let about = "transactions of three regions lock the same rows first, and none of them loses";
    let lab = start_from("row_locks", about, builder().topology(apart(40))).await;
    lab.session(LEADER)
        .await
        .must(
            "create table hot (id int primary key, v int not null, u int unique);
             insert into hot select g, 0 from generate_series(1, 40) g",
        )
        .await;
    lab.everywhere().await;
    subjects!(lab, 1;
        all_commit_and_nothing_is_lost,
        the_leaders_region_asks_nobody_and_the_others_once,
        statements_of_many_rows_take_turns,
        the_newest_version_is_seen,
        in_repeatable_read_it_is_too_late,
        monitoring_shows_who_waits_for_whom,
        a_deadlock_is_found,
        a_deadlock_by_way_of_a_lock_that_the_leader_does_not_see,
        a_wait_ends_with_its_timeout_and_with_a_cancel,
        who_does_not_wait,
        a_savepoint_gives_back,
        rows_of_a_labelled_table_wait_in_line,
        a_circle_over_a_labelled_table_and_another_one,
        a_label_goes_with_its_table,
        what_a_killed_session_had_is_free,
        what_a_region_had_that_hangs_is_free,
        the_leader_ends,
    );
}

async fn locking(lab: &Lab, region: usize) -> Session {
    let session = lab.session(region).await;
    session.must(LOCKING).await;
    session
}

async fn waits_in_line(lab: &Lab, region: usize, pid: i32) {
    let looks = lab.session(region).await;
    let active = format!("select count(*) from pg_stat_activity where pid = {pid} and state = 'active' and wait_event_type = 'Extension'");
    until("it waits", SOON, async || Ok(number(&looks, &active).await? == 1)).await.unwrap();
    // It may also have waited for its connection, or for an answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(number(&looks, &active).await.unwrap(), 1, "it waits in line");
}

async fn all_commit_and_nothing_is_lost(lab: &Lab) {
    const CLIENTS: usize = 9;
    const ROUNDS: usize = 8;
    let mut running = Vec::new();
    for client in 0..CLIENTS {
        let session = locking(lab, client % 3).await;
        running.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let (a, b) = [(1, 2), (2, 3), (1, 3)][(client + round) % 3];
                let sql = format!(
                    "begin; update hot set v = v + 1 where id = {a}; update hot set v = v - 1 where id = {b}; \
                     update hot set v = v + 1 where id = 4; commit"
                );
                session.run(&sql).await.unwrap_or_else(|e| panic!("client {client}, round {round}: {}", told(&e)));
            }
        }));
    }
    for client in running {
        client.await.unwrap();
    }
    lab.shows("select sum(v) from hot where id < 4", "0").await;
    lab.shows("select v from hot where id = 4", &(CLIENTS * ROUNDS).to_string()).await;
}

async fn the_leaders_region_asks_nobody_and_the_others_once(lab: &Lab) {
    let (a, b) = (locking(lab, LEADER).await, locking(lab, 1).await);
    let before = number(&a, ASKED).await.unwrap();
    a.must("update hot set v = 0 where id = 5").await;
    assert_eq!(number(&a, ASKED).await.unwrap(), before, "the leader's region");
    let before = number(&b, ASKED).await.unwrap();
    b.must("begin; update hot set v = 1 where id = 5; update hot set v = 2 where id = 5; update hot set v = 0 where id = 6; commit").await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 2, "once for each row");
    assert_eq!(number(&b, "select round_trips from onetrip.last_commit()").await.unwrap(), 3);
    b.must("begin; insert into hot values (41, 0); update hot set v = 1 where id = 41; rollback").await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 2, "a new row is nobody else's");
    b.must("update hot set v = 0 where id between 20 and 39").await;
    b.must("begin; select * from hot where id between 20 and 39 order by v for update; delete from hot where id = 20; rollback").await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 4, "all rows of a statement at once");
    b.must(
        "begin; declare c cursor for select * from hot where id between 20 and 39 for update; fetch 2 from c; rollback",
    )
    .await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 6, "a cursor as it fetches");
    b.must("begin; set local onetrip.max_trips = 2; update hot set v = 3 where id = 5; commit").await;
    let error = b.refused("begin; set local onetrip.max_trips = 1; update hot set v = 4 where id = 5; update hot set v = 4 where id = 6").await;
    assert!(error.message().contains("cannot lock a row"), "{}", error.message());
    b.must("rollback").await;
}

/// More rows than one request can name, from all regions at once.
async fn statements_of_many_rows_take_turns(lab: &Lab) {
    let makes = lab.session(LEADER).await;
    makes.must("create table many (id int primary key, v int not null)").await;
    makes.must("insert into many select g, 0 from generate_series(1, 25000) g").await;
    lab.everywhere().await;
    let b = locking(lab, 1).await;
    let before = number(&b, ASKED).await.unwrap();
    b.must("update many set v = v + 1").await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 3, "10,000 rows at once");
    let mut running = Vec::new();
    for region in 0..3 {
        let session = locking(lab, region).await;
        running.push(tokio::spawn(async move {
            for round in 0..2 {
                let told = session.run("update many set v = v + 1").await.map_err(|e| told(&e));
                assert_eq!(told, Ok(()), "region {region}, round {round}");
            }
        }));
    }
    for statement in running {
        statement.await.unwrap();
    }
    lab.shows("select min(v) || ' ' || max(v) from many", "7 7").await;
}

/// Who waits in line changes what the one before has left.
async fn the_newest_version_is_seen(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 10 where id = 7").await;
    let pid = c.pid().await.unwrap();
    let waits = async {
        let rows = c.client.query("update hot set v = v + 1 where id = 7 returning v", &[]).await;
        rows.unwrap_or_else(|e| panic!("{}", told(&e)))[0].get::<_, i32>(0)
    };
    let goes_on = async {
        waits_in_line(lab, 2, pid).await;
        b.must("commit").await;
    };
    assert_eq!(bounded("both", async { tokio::join!(waits, goes_on) }).await.0, 11);
}

/// Two transactions stand behind a third one, and every region shows both, as long as they do.
async fn monitoring_shows_who_waits_for_whom(lab: &Lab) {
    const WAITS: &str = "select region, pid, \"table\", mode, locks, waiting > '0.2 s' and waiting < '1 min', behind_region, behind_pid, \
                         hash, transaction_id, behind_transaction_id from onetrip.row_lock_waits";
    let sessions = [locking(lab, LEADER).await, locking(lab, 1).await, locking(lab, 2).await];
    let [a, b, c] = &sessions;
    b.must("begin; update hot set v = 1 where id in (21, 22)").await;
    let mut pids = Vec::new();
    for session in &sessions {
        pids.push(session.pid().await.unwrap());
    }
    let looks = async {
        waits_in_line(lab, 2, pids[2]).await;
        let second = async {
            waits_in_line(lab, LEADER, pids[0]).await;
            for region in 0..3 {
                let monitor = lab.session(region).await;
                monitor.must("set role pg_monitor").await;
                let two = async || Ok(monitor.query(WAITS, &[]).await?.len() == 2);
                until("two wait", SOON, two).await.unwrap();
                let rows = monitor.query(WAITS, &[]).await.unwrap();
                // In order of their arrival; each behind whoever has the lock.
                for (row, (waiter, name, mode, locks)) in
                    rows.iter().zip([(2, "c", "NO KEY UPDATE", 1), (0, "a", "UPDATE", 2)])
                {
                    let shown: (&str, i32, &str, &str) = (row.get(0), row.get(1), row.get(2), row.get(3));
                    assert_eq!(shown, (name, pids[waiter], "public.hot", mode));
                    assert_eq!((row.get::<_, i32>(4), row.get::<_, bool>(5)), (locks, true));
                    assert_eq!((row.get::<_, &str>(6), row.get::<_, i32>(7)), ("b", pids[1]));
                }
                let text = |row: usize, column: usize| rows[row].get::<_, String>(column);
                assert_eq!(text(0, 10), text(1, 10), "both are behind one transaction");
                assert_ne!(text(0, 9), text(1, 9));
                assert_eq!(rows[0].get::<_, i64>(8), rows[1].get::<_, i64>(8), "the same row");
            }
            b.must("rollback").await;
        };
        tokio::join!(a.run("delete from hot where id in (21, 23)"), second).0
    };
    let (changed, deleted) =
        bounded("all", async { tokio::join!(c.run("update hot set v = 2 where id = 21"), looks) }).await;
    changed.unwrap_or_else(|e| panic!("{}", told(&e)));
    deleted.unwrap_or_else(|e| panic!("{}", told(&e)));
    let monitor = lab.session(1).await;
    until("nobody waits", SOON, async || Ok(monitor.query(WAITS, &[]).await?.is_empty())).await.unwrap();
    monitor.must("create role plain; set role plain").await;
    assert_eq!(*monitor.refused("select 1 from onetrip.row_lock_waits").await.code(), SqlState::INSUFFICIENT_PRIVILEGE);
    monitor.must("reset role; drop role plain").await;
}

async fn in_repeatable_read_it_is_too_late(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 8").await;
    c.must("begin isolation level repeatable read; select count(*) from hot").await;
    let pid = c.pid().await.unwrap();
    let goes_on = async {
        waits_in_line(lab, 2, pid).await;
        b.must("commit").await;
    };
    let (error, ()) = tokio::join!(c.refused("update hot set v = 2 where id = 8"), goes_on);
    assert_eq!(*error.code(), SqlState::T_R_SERIALIZATION_FAILURE, "{}", error.message());
    c.must("rollback").await;
}

async fn a_deadlock_is_found(lab: &Lab) {
    for (one, other) in [(1, 2), (LEADER, 1), (2, 2)] {
        let (b, c) = (locking(lab, one).await, locking(lab, other).await);
        b.must("begin; update hot set v = 1 where id = 9").await;
        c.must("begin; update hot set v = 1 where id = 10").await;
        let both = async {
            tokio::join!(
                b.run("update hot set v = 2 where id = 10; commit"),
                c.run("update hot set v = 2 where id = 9; commit")
            )
        };
        let error = match bounded("a deadlock", both).await {
            (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
            (x, y) => panic!("{x:?} and {y:?}"),
        };
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{}", told(&error));
    }
}

/// One waits for the other's unique value in PostgreSQL, which waits in line for a row that the first one has.
async fn a_deadlock_by_way_of_a_lock_that_the_leader_does_not_see(lab: &Lab) {
    let (first, second) = (locking(lab, 1).await, locking(lab, 1).await);
    first.must("begin; insert into hot values (50, 0)").await;
    second.must("begin; update hot set v = 1 where id = 11").await;
    let pid = second.pid().await.unwrap();
    let blocked = format!("select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'");
    let looks = lab.session(1).await;
    let then = async {
        until("the second one waits", SOON, async || Ok(number(&looks, &blocked).await? == 1)).await.unwrap();
        let error = first.refused("update hot set v = 2 where id = 11").await;
        first.must("rollback").await;
        error
    };
    let (error, inserted) =
        bounded("a deadlock", async { tokio::join!(then, second.run("insert into hot values (50, 0)")) }).await;
    assert_eq!(*error.code(), SqlState::T_R_DEADLOCK_DETECTED, "{}", error.message());
    inserted.unwrap_or_else(|e| panic!("{}", told(&e)));
    second.must("rollback").await;
}

async fn a_wait_ends_with_its_timeout_and_with_a_cancel(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 12").await;
    for (setting, code) in
        [("lock_timeout", SqlState::LOCK_NOT_AVAILABLE), ("statement_timeout", SqlState::QUERY_CANCELED)]
    {
        c.must(&format!("set {setting} = 400")).await;
        let error = c.refused("update hot set v = 2 where id = 12").await;
        assert_eq!(*error.code(), code, "{}", error.message());
        c.must(&format!("reset {setting}")).await;
    }
    let pid = c.pid().await.unwrap();
    let cancels = async {
        waits_in_line(lab, 2, pid).await;
        lab.session(2).await.must(&format!("select pg_cancel_backend({pid})")).await;
    };
    let (error, ()) = tokio::join!(c.refused("select 1 from hot where id = 12 for update"), cancels);
    assert_eq!(*error.code(), SqlState::QUERY_CANCELED);
    b.must("rollback").await;
    // Nothing of that is left in line.
    locking(lab, LEADER).await.must("set lock_timeout = '5s'; update hot set v = 3 where id = 12").await;
}

async fn who_does_not_wait(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; select 1 from hot where id = 13 for update").await;
    let error = c.refused("select 1 from hot where id = 13 for no key update nowait").await;
    assert_eq!(*error.code(), SqlState::LOCK_NOT_AVAILABLE);
    assert!(error.detail().is_some_and(|detail| detail.contains("region \"b\"")), "{:?}", error.detail());
    let rest =
        "select string_agg(id::text, ',') from (select id from hot where id in (13, 14) for update skip locked) l";
    assert_eq!(text(&c, rest).await.unwrap(), "14");
    b.must("rollback; begin; select 1 from hot where id = 13 for share").await;
    c.must("select 1 from hot where id = 13 for share nowait").await;
    b.must("rollback").await;
}

async fn a_savepoint_gives_back(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 15; savepoint s; update hot set v = 1 where id = 16; rollback to s")
        .await;
    c.must("set lock_timeout = '5s'; update hot set v = 2 where id = 16; set lock_timeout = 300").await;
    let error = c.refused("update hot set v = 2 where id = 15").await;
    assert_eq!(*error.code(), SqlState::LOCK_NOT_AVAILABLE);
    b.must("commit").await;
}

const OPTIMISTIC: &str = "set onetrip.concurrency = optimistic; set onetrip.statement_retries = 0";

async fn optimistic(lab: &Lab, region: usize) -> Session {
    let session = lab.session(region).await;
    session.must(OPTIMISTIC).await;
    session
}

/// Sessions of all regions, which know the table already, take the label into account as soon as their region has it.
async fn rows_of_a_labelled_table_wait_in_line(lab: &Lab) {
    const CLIENTS: usize = 9;
    const ROUNDS: usize = 6;
    let owner = lab.session(1).await;
    owner
        .must(
            "create table ledger (id int primary key, v int not null);
             create table cold (id int primary key, v int not null);
             insert into ledger select g, 0 from generate_series(1, 9) g;
             insert into cold select g, 0 from generate_series(1, 9) g",
        )
        .await;
    lab.everywhere().await;
    let mut sessions = Vec::new();
    for client in 0..CLIENTS {
        let session = optimistic(lab, client % 3).await;
        session.must("begin; update ledger set v = v + 1; update cold set v = v + 1; rollback").await;
        sessions.push(session);
    }
    owner.must("security label for onetrip on table ledger is 'locking'").await;
    lab.everywhere().await;
    let mut running = Vec::new();
    for (client, session) in sessions.into_iter().enumerate() {
        running.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let (a, b) = [(1, 2), (2, 3), (1, 3)][(client + round) % 3];
                let sql = format!(
                    "begin; update ledger set v = v + 1 where id = {a}; update ledger set v = v - 1 where id = {b}; \
                     update cold set v = v + 1 where id = {client} + 1; commit"
                );
                session.run(&sql).await.unwrap_or_else(|e| panic!("client {client}, round {round}: {}", told(&e)));
            }
        }));
    }
    for client in running {
        client.await.unwrap();
    }
    lab.shows("select sum(v) from ledger", "0").await;
    lab.shows("select string_agg(v::text, ',') from cold", &[ROUNDS.to_string().as_str(); CLIENTS].join(",")).await;
    // Only rows of that table are asked for, all of a statement at once.
    let b = optimistic(lab, 1).await;
    let before = number(&b, ASKED).await.unwrap();
    b.must("begin; update cold set v = 0; select 1 from cold for update; delete from cold where id = 9; rollback")
        .await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before, "another table");
    b.must("begin; update ledger set v = 0; delete from ledger where id = 9; rollback").await;
    assert_eq!(number(&b, ASKED).await.unwrap(), before + 1, "the labelled one");
}

/// One waits for a row of a labelled table at the leader, and holds up the other by a row of a table that is not.
async fn a_circle_over_a_labelled_table_and_another_one(lab: &Lab) {
    let (first, second) = (optimistic(lab, 1).await, optimistic(lab, 1).await);
    first.must("begin; update cold set v = 1 where id = 1").await;
    second.must("begin; update ledger set v = 1 where id = 1").await;
    let pid = second.pid().await.unwrap();
    let blocked = format!("select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'");
    let looks = lab.session(1).await;
    let then = async {
        until("the second one waits", SOON, async || Ok(number(&looks, &blocked).await? == 1)).await.unwrap();
        let error = first.refused("update ledger set v = 2 where id = 1").await;
        first.must("rollback").await;
        error
    };
    let both = async { tokio::join!(then, second.run("update cold set v = 2 where id = 1; commit")) };
    let (error, done) = bounded("a deadlock", both).await;
    assert_eq!(*error.code(), SqlState::T_R_DEADLOCK_DETECTED, "{}", error.message());
    done.unwrap_or_else(|e| panic!("{}", told(&e)));
    // In two regions the second one does not wait, and commits first.
    let (first, second) = (optimistic(lab, 1).await, optimistic(lab, 2).await);
    lab.everywhere().await;
    first.must("begin; update cold set v = 3 where id = 2").await;
    second.must("begin; update ledger set v = 3 where id = 2").await;
    let pid = first.pid().await.unwrap();
    let then = async {
        waits_in_line(lab, 1, pid).await;
        second.must("update cold set v = 4 where id = 2; commit").await;
    };
    let both = async { tokio::join!(first.refused("update ledger set v = 4 where id = 2"), then) };
    let (error, ()) = bounded("an eviction", both).await;
    assert_eq!(*error.code(), SqlState::T_R_SERIALIZATION_FAILURE, "{}", error.message());
    first.must("rollback").await;
    lab.shows("select (select v from cold where id = 2) || ' ' || (select v from ledger where id = 2)", "4 3").await;
}

/// It follows the table's new name in every region, is not there for one that gets the old name, and can be taken away.
async fn a_label_goes_with_its_table(lab: &Lab) {
    let (a, c) = (optimistic(lab, LEADER).await, optimistic(lab, 2).await);
    a.must("alter table ledger rename to book; create table ledger (id int primary key, v int); insert into ledger values (1, 0)").await;
    lab.everywhere().await;
    let before = number(&c, ASKED).await.unwrap();
    c.must("begin; update ledger set v = 1; rollback; begin; update book set v = v where id = 1; rollback").await;
    assert_eq!(number(&c, ASKED).await.unwrap(), before + 1);
    lab.shows("select string_agg(objname || ' ' || label, ', ') from pg_seclabels", "book locking").await;
    a.must("security label for onetrip on table book is null").await;
    lab.everywhere().await;
    c.must("begin; update book set v = v where id = 1; rollback").await;
    assert_eq!(number(&c, ASKED).await.unwrap(), before + 1);
    a.must("drop table book, ledger, cold").await;
}

async fn what_a_killed_session_had_is_free(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 17").await;
    let (holder, waiter) = (b.pid().await.unwrap(), c.pid().await.unwrap());
    let kills = async {
        waits_in_line(lab, 2, waiter).await;
        lab.session(1).await.must(&format!("select pg_terminate_backend({holder})")).await;
    };
    let (done, ()) = bounded("both", async { tokio::join!(c.run("update hot set v = 2 where id = 17"), kills) }).await;
    done.unwrap_or_else(|e| panic!("{}", told(&e)));
    lab.shows("select v from hot where id = 17", "2").await;
}

async fn what_a_region_had_that_hangs_is_free(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 18").await;
    lab.node(1).pause().expect("SIGSTOP");
    c.must("update hot set v = 2 where id = 18").await;
    lab.node(1).resume().expect("SIGCONT");
    // It was first in its own region, and is not in the log.
    lost(b.run("commit").await, b).await;
    lab.shows("select v from hot where id = 18", "2").await;
}

/// The next leader is told who has what, and who waits.
async fn the_leader_ends(lab: &Lab) {
    let (b, c) = (locking(lab, 1).await, locking(lab, 2).await);
    b.must("begin; update hot set v = 1 where id = 19").await;
    let pid = c.pid().await.unwrap();
    let goes_on = async {
        waits_in_line(lab, 2, pid).await;
        lab.node(LEADER).kill9().expect("SIGKILL");
        tokio::time::sleep(Duration::from_secs(3)).await;
        b.must("commit").await;
    };
    let (done, ()) =
        bounded("both", async { tokio::join!(c.run("update hot set v = v + 1 where id = 19"), goes_on) }).await;
    done.unwrap_or_else(|e| panic!("{}", told(&e)));
    lab.node(LEADER).start().expect("start the node");
    lab.shows("select v from hot where id = 19", "2").await;
}
