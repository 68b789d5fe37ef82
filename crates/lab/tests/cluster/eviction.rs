//! A local transaction in the way of another region's change is evicted, and is told why.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::lab::{builder, number, only_errors, start, start_from, until, Lab, Raw, Session, SOON};
use tokio_postgres::error::{DbError, SqlState};

async fn with_rows(name: &'static str, about: &str) -> Lab {
    let lab = start(name, about).await;
    lab.session(0)
        .await
        .must(
            "create table t (id int primary key, v int, u int unique);
             insert into t select g, 0 from generate_series(1, 50) g",
        )
        .await;
    lab
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_transaction_in_the_way_ends_with_fatal_40001() {
    let lab = with_rows("eviction_idle", "an idle transaction in the way ends with FATAL 40001").await;
    idle(&lab, 1, "update t set v = 1 where id = 1", "update t set v = 2 where id = 1").await;
    idle(&lab, 2, "select * from t where id = 2 for update", "update t set v = 2 where id = 2").await;
    idle(&lab, 1, "insert into t values (100, 0)", "insert into t values (100, 1)").await;
    idle(&lab, 2, "update t set u = 7 where id = 3", "update t set u = 7 where id = 4").await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_transaction_in_the_way_gets_error_40001() {
    let lab = with_rows("eviction_running", "a statement of a transaction in the way fails with ERROR 40001").await;
    running(&lab, 1, "update t set v = 1 where id = 5", "update t set v = 2 where id = 5").await;
    running(&lab, 2, "delete from t where id = 6", "update t set v = 2 where id = 6").await;
    waiting_for_a_lock(&lab).await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_that_is_caught_holds() {
    let lab =
        with_rows("eviction_caught", "exception blocks and savepoints do not save a transaction that is in the way")
            .await;
    caught_in_a_block(&lab).await;
    the_next_statement_fails(&lab).await;
    in_a_savepoint(&lab).await;
    caught_again_and_again(&lab).await;
    lab.check_equal(1).await;
}

fn says_what_happened(why: &DbError, severity: &str, other: &str) {
    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
    assert_eq!(why.severity(), severity, "{}", why.message());
    assert!(!why.message().contains("recovery"), "not our words: {}", why.message());
    assert!(why.message().contains(&format!("region \"{other}\"")), "{}", why.message());
    assert!(why.detail().is_some_and(|d| d.contains("public.t")), "the table is not in {:?}", why.detail());
    assert!(why.hint().is_some(), "no hint");
}

/// Waits until the change of another region is shown here, so nothing delays it any more.
async fn arrives(lab: &Lab, region: usize, position: i64) {
    let session = lab.session(region).await;
    until("the change arrives", SOON, || async {
        Ok(number(&session, "select onetrip.position()").await? >= position)
    })
    .await
    .unwrap();
}

async fn change_in_a(lab: &Lab, change: &str) -> i64 {
    let a = lab.session(0).await;
    a.must(change).await;
    number(&a, "select onetrip.position()").await.unwrap()
}

async fn idle(lab: &Lab, region: usize, held: &str, change: &str) {
    lab.everywhere().await;
    let holder = lab.session(region).await;
    holder.must(&format!("begin; {held}")).await;
    let position = change_in_a(lab, change).await;
    arrives(lab, region, position).await;
    // As a driver sees it: the next statement fails, the session is over.
    assert!(holder.run("select 1").await.is_err());
    let why = holder.ended_by().await.unwrap_or_else(|e| panic!("{held}: {e:#}"));
    says_what_happened(&why, "FATAL", "a");
}

async fn running(lab: &Lab, region: usize, held: &str, change: &str) {
    lab.everywhere().await;
    let holder = lab.session(region).await;
    holder.must(&format!("begin; {held}")).await;
    let sleeping = async {
        let began = Instant::now();
        let why = holder.refused("select pg_sleep(60)").await;
        assert!(began.elapsed() < Duration::from_secs(30), "evicted only after {:?}", began.elapsed());
        why
    };
    let changing = async {
        in_sleep(lab, region, &holder).await;
        let position = change_in_a(lab, change).await;
        arrives(lab, region, position).await;
    };
    let (why, ()) = tokio::join!(sleeping, changing);
    says_what_happened(&why, "ERROR", "a");
    holder.must("rollback; select 1").await;
}

async fn in_sleep(lab: &Lab, region: usize, holder: &Session) {
    let watcher = lab.session(region).await;
    // The holder's connection is busy, so its backend is recognized by what it runs.
    let query = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    until("the holder sleeps", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
    let _ = holder;
}

/// The transaction in the way is itself waiting for a lock that another local transaction holds.
async fn waiting_for_a_lock(lab: &Lab) {
    lab.everywhere().await;
    let [_, blocker, holder] = [lab.session(2).await, lab.session(2).await, lab.session(2).await];
    blocker.must("begin; update t set v = 1 where id = 10").await;
    holder.must("begin; update t set v = 1 where id = 11").await;
    let waiting = holder.refused("update t set v = 1 where id = 10");
    let changing = async {
        let watcher = lab.session(2).await;
        let query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
        until("the holder waits", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
        let position = change_in_a(lab, "update t set v = 2 where id = 11").await;
        arrives(lab, 2, position).await;
    };
    let (why, ()) = tokio::join!(waiting, changing);
    says_what_happened(&why, "ERROR", "a");
    blocker.must("commit").await;
}

/// An exception block must not be able to swallow the eviction, so that the transaction commits after all.
async fn caught_in_a_block(lab: &Lab) {
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = 77 where id = 20").await;
    let catching = holder.run("do $$ begin perform pg_sleep(60); exception when others then perform 1; end $$; commit");
    let changing = async {
        in_sleep(lab, 1, &holder).await;
        let position = change_in_a(lab, "update t set v = 2 where id = 20").await;
        arrives(lab, 1, position).await;
    };
    let (caught, ()) = tokio::join!(catching, changing);
    let why = match caught {
        Ok(()) => panic!("a transaction that was evicted committed"),
        Err(error) => match error.as_db_error() {
            Some(db) => db.clone(),
            None => holder.ended_by().await.unwrap_or_else(|e| panic!("{e:#}")),
        },
    };
    assert_eq!(why.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{}", why.message());
    lab.shows("select v from t where id = 20", "2").await;
}

/// After a block that swallows the error, the next statement fails with it again; the session lives on.
async fn the_next_statement_fails(lab: &Lab) {
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = 77 where id = 21").await;
    let catching =
        holder.refused("do $$ begin perform pg_sleep(60); exception when others then null; end $$; select 1 as next");
    let changing = async {
        in_sleep(lab, 1, &holder).await;
        let position = change_in_a(lab, "update t set v = 2 where id = 21").await;
        arrives(lab, 1, position).await;
    };
    let (why, ()) = tokio::join!(catching, changing);
    says_what_happened(&why, "ERROR", "a");
    holder.must("rollback; select 1").await;
}

/// A statement inside a savepoint gets an ERROR; going back to the savepoint does not help.
async fn in_a_savepoint(lab: &Lab) {
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = 77 where id = 22; savepoint s").await;
    let failing = async {
        let why = holder.refused("select pg_sleep(60)").await;
        says_what_happened(&why, "ERROR", "a");
        // Until its next statement the session is idle and still holds the row lock, so it may be ended.
        match holder.run("rollback to s; select 1").await {
            Ok(()) => panic!("a transaction that was evicted went on"),
            Err(error) if error.as_db_error().is_some() => {
                says_what_happened(error.as_db_error().expect("just seen"), "ERROR", "a");
                holder.must("rollback; select 1").await;
            }
            Err(_) => says_what_happened(&holder.ended_by().await.unwrap_or_else(|e| panic!("{e:#}")), "FATAL", "a"),
        }
    };
    let changing = async {
        let watcher = lab.session(1).await;
        let query = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
        until("the holder sleeps", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
        let position = change_in_a(lab, "update t set v = 2 where id = 22").await;
        arrives(lab, 1, position).await;
    };
    tokio::join!(failing, changing);
}

/// A loop that swallows every error cannot delay a change for ever: if need be, its session is ended.
async fn caught_again_and_again(lab: &Lab) {
    lab.everywhere().await;
    let holder = lab.session(1).await;
    holder.must("begin; update t set v = 77 where id = 23").await;
    let looping = holder
        .run("do $$ begin loop begin perform pg_sleep(0.2); exception when others then null; end; end loop; end $$");
    let changing = async {
        in_sleep(lab, 1, &holder).await;
        let position = change_in_a(lab, "update t set v = 2 where id = 23").await;
        arrives(lab, 1, position).await;
    };
    let (ended, ()) = tokio::join!(looping, changing);
    let why = match ended.expect_err("an endless loop").as_db_error() {
        Some(db) => db.clone(),
        None => holder.ended_by().await.unwrap_or_else(|e| panic!("{e:#}")),
    };
    // It may also be an ERROR, if it came between two rounds of the loop.
    says_what_happened(&why, why.severity(), "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_not_in_the_way_of_a_changed_row_is_left_alone() {
    let lab = with_rows("eviction_reader", "a reader, or who has locked a row's key, is not in the way of rows").await;
    a_reader(&lab).await;
    a_foreign_key(&lab).await;
    lab.check_equal(1).await;
}

/// Its check has locked the key of the row that it refers to, which a change of other columns leaves as it is.
async fn a_foreign_key(lab: &Lab) {
    lab.session(0).await.must("create table child (id int primary key, parent int references t)").await;
    lab.everywhere().await;
    let [alone, first, second] = [lab.session(1).await, lab.session(1).await, lab.session(1).await];
    alone.must("begin; insert into child values (1, 31)").await;
    for (id, holder) in [(2, &first), (3, &second)] {
        holder.must(&format!("begin; insert into child values ({id}, 32)")).await;
    }
    for _ in 0..2 {
        let position = change_in_a(lab, "update t set v = v + 1 where id in (31, 32)").await;
        arrives(lab, 1, position).await;
    }
    for holder in [alone, first, second] {
        holder.must("commit").await;
    }
    lab.shows("select count(*) from child", "3").await;
    idle(lab, 1, "insert into child values (4, 33)", "delete from t where id = 33").await;
    idle(lab, 1, "insert into child values (4, 34)", "update t set id = 134 where id = 34").await;
    idle(lab, 1, "select from t where id = 35 for share", "update t set v = v + 1 where id = 35").await;
}

/// It goes on seeing its own snapshot.
async fn a_reader(lab: &Lab) {
    lab.everywhere().await;
    let reader = lab.session(1).await;
    reader.must("begin isolation level repeatable read").await;
    let before = number(&reader, "select sum(v) from t").await.unwrap();
    let position = change_in_a(lab, "update t set v = v + 1; delete from t where id = 30").await;
    arrives(lab, 1, position).await;
    assert_eq!(number(&reader, "select sum(v) from t").await.unwrap(), before);
    reader.must("commit").await;
    assert_ne!(number(&reader, "select sum(v) from t").await.unwrap(), before);
}

/// A cluster in which `onetrip.max_apply_delay` is too long to ever pass, unless a test sets it.
async fn patient(name: &'static str, about: &str) -> Lab {
    delayed(name, about, "10min").await
}

async fn delayed(name: &'static str, about: &str, max_apply_delay: &str) -> Lab {
    let lab = start_from(name, about, builder().postgres_setting("onetrip.max_apply_delay", max_apply_delay)).await;
    lab.session(0)
        .await
        .must("create table t (id int primary key, v int); insert into t select g, 0 from generate_series(1, 50) g")
        .await;
    lab
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_its_client_does_not_hold_up_another_region() {
    let lab = patient("eviction_client", "idle readers and LOCK TABLE give way to DDL and rows").await;
    an_idle_reader(&lab).await;
    an_idle_locker(&lab).await;
    the_session_after_an_evicted_one(&lab).await;
    lab.check_equal(1).await;
}

/// They come after the change, so they hold up nobody; a reader that came before it is what everybody waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_behind_a_change_is_left_alone() {
    let lab = patient("eviction_behind", "sessions that wait for a table behind the change of another region").await;
    let a = lab.session(0).await;
    a.must("create table over (at int) using heap; create table other (id int primary key, v int); insert into other values (1, 0)").await;
    lab.everywhere().await;
    let [reader, writer, next, watcher] =
        [lab.session(1).await, lab.session(1).await, lab.session(1).await, lab.session(1).await];
    let locks = |granted: bool| {
        format!("select count(*) from pg_locks where relation = 't'::regclass and granted = {granted} and pid <> pg_backend_pid()")
    };
    let waiting = |count: i64| {
        let (watcher, query) = (&watcher, locks(false));
        async move { until("they wait", SOON, || async { Ok(number(watcher, &query).await? == count) }).await.unwrap() }
    };
    let reading = async {
        reader
            .must("do $$ begin perform from t; while not exists (select from over) loop perform pg_sleep(0.05); end loop; end $$")
            .await;
    };
    let behind = async {
        let query = locks(true);
        until("the reader reads", SOON, || async { Ok(number(&watcher, &query).await? == 1) }).await.unwrap();
        let position = change_in_a(&lab, "alter table t add column w int").await;
        waiting(1).await;
        let change = "begin; update other set v = 1 where id = 1; update t set v = 1 where id = 1; commit";
        let coming = async {
            waiting(3).await;
            // Longer than a reader may wait for a lock if it holds up somebody.
            tokio::time::sleep(Duration::from_millis(2_000)).await;
            waiting(3).await;
            watcher.must("insert into over values (1)").await;
        };
        let ((), read, ()) = tokio::join!(writer.must(change), number(&next, "select count(*) from t"), coming);
        assert_eq!(read.unwrap_or_else(|e| panic!("{e:#}")), 50);
        arrives(&lab, 1, position).await;
    };
    tokio::join!(reading, behind);
    lab.shows("select (select v from t where id = 1) + (select v from other)", "2").await;
    lab.check_equal(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_waits_for_its_client_does_not_hold_up_another_region() {
    let lab = patient("eviction_copy", "COPY with a silent client or one that does not read gives way to DDL").await;
    copy_from_a_silent_client(&lab, "copy t from stdin").await;
    copy_to_a_client_that_does_not_read(&lab).await;
    lab.check_equal(1).await;
}

/// The session was ended while it was idle, by a FATAL message that contains `text`.
async fn ended(session: Session, text: &str) {
    let why = session.ended_by().await.unwrap_or_else(|e| panic!("{e:#}"));
    says_what_happened(&why, "FATAL", "a");
    assert!(why.message().contains(text), "{}", why.message());
}

async fn an_idle_reader(lab: &Lab) {
    lab.everywhere().await;
    let reader = lab.session(1).await;
    reader.must("begin; select * from t").await;
    let position = change_in_a(lab, "truncate t").await;
    arrives(lab, 1, position).await;
    ended(reader, "while it waited for its client").await;
}

async fn an_idle_locker(lab: &Lab) {
    lab.everywhere().await;
    let locker = lab.session(1).await;
    locker.must("begin; lock table t in exclusive mode").await;
    let position = change_in_a(lab, "insert into t select g, 0 from generate_series(1, 50) g").await;
    arrives(lab, 1, position).await;
    ended(locker, "while it waited for its client").await;
}

/// A new session that gets the slot of an evicted one is not evicted for that: its statement runs to its end.
async fn the_session_after_an_evicted_one(lab: &Lab) {
    lab.everywhere().await;
    let reader = lab.session(1).await;
    reader.must("begin; select * from t").await;
    let position = change_in_a(lab, "alter table t add column first int").await;
    arrives(lab, 1, position).await;
    ended(reader, "while it waited for its client").await;
    let next = lab.session(1).await;
    next.must("begin; select * from t").await;
    let reading = async { next.must("select pg_sleep(3)").await };
    let changing = async {
        in_sleep(lab, 1, &next).await;
        change_in_a(lab, "alter table t add column second int").await
    };
    let ((), position) = tokio::join!(reading, changing);
    next.must("commit").await;
    arrives(lab, 1, position).await;
}

async fn copy_from_a_silent_client(lab: &Lab, copy: &str) {
    lab.everywhere().await;
    let session = lab.session(1).await;
    let sink = session.copy_in::<_, bytes::Bytes>(copy).await.expect("COPY begins");
    let position = change_in_a(lab, "alter table t add column third int").await;
    arrives(lab, 1, position).await;
    drop(sink);
    drop(session);
    only_errors(lab, 1, "", "40001", 1);
}

/// Its backend is blocked while it sends, so it can only be ended.
async fn copy_to_a_client_that_does_not_read(lab: &Lab) {
    lab.everywhere().await;
    let watcher = lab.session(1).await;
    watcher.must("alter system set onetrip.max_apply_delay = '1s'").await;
    watcher.must("select pg_reload_conf()").await;
    let session = lab.session(1).await;
    let stream = session
        .copy_out("copy (select repeat('x', 1000) from t, generate_series(1, 10000)) to stdout")
        .await
        .expect("COPY begins");
    let query = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite'";
    until("the server waits for its client", SOON, || async { Ok(number(&watcher, query).await? == 1) }).await.unwrap();
    let position = change_in_a(lab, "alter table t add column fourth int").await;
    arrives(lab, 1, position).await;
    drop(stream);
    only_errors(lab, 1, "", "40001", 1);
}

/// Far more than sockets hold.
const UNREAD: &str = "repeat('x', 20000000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_an_error_does_not_hold_up_another_region() {
    let lab = delayed("eviction_unread", "a session whose client does not read gives way", "1s").await;
    let error = format!("select {UNREAD}::int");
    // The savepoint is rolled back already, and the row stays locked.
    let syntax = format!("'{}'", "x".repeat(20_000_000));
    let aborted = ["savepoint s", "select 1 / 0", &syntax];
    unread(&lab, &["update t set v = 1 where id = 1", &error], "update t set v = 2 where id = 1").await;
    unread(&lab, &[&["update t set v = 1 where id = 2"], &aborted[..]].concat(), "update t set v = 2 where id = 2")
        .await;
    unread(&lab, &["select * from t where id = 3", &error], "alter table t add column w int").await;
    read_late(&lab, &error).await;
    lab.check_equal(1).await;
    leaves_at_a_crash(&lab).await;
}

/// Waits until a session waits for its client; and how to ask whether it is still there.
async fn blocked(lab: &Lab, region: usize) -> (Session, String) {
    let watcher = lab.session(region).await;
    let query = "select coalesce(max(pid), 0) from pg_stat_activity where wait_event = 'ClientWrite'";
    let pid = AtomicI64::new(0);
    let seen = || async {
        pid.store(number(&watcher, query).await?, Ordering::Relaxed);
        Ok(pid.load(Ordering::Relaxed) > 0)
    };
    until("the server waits for its client", SOON, seen).await.unwrap();
    (watcher, format!("select count(*) from pg_stat_activity where pid = {}", pid.into_inner()))
}

/// The last statement's answer is not read.
async fn unread(lab: &Lab, statements: &[&str], change: &str) {
    lab.everywhere().await;
    let mut client = Raw::open(lab, 1).await;
    client.send("begin").await;
    for statement in statements {
        client.answer().await;
        client.send(statement).await;
    }
    let (watcher, is_there) = blocked(lab, 1).await;
    let position = change_in_a(lab, change).await;
    arrives(lab, 1, position).await;
    until("its session ends", SOON, || async { Ok(number(&watcher, &is_there).await? == 0) }).await.unwrap();
}

/// Whoever is in nobody's way may take its time, and gets all.
async fn read_late(lab: &Lab, error: &str) {
    let mut client = Raw::open(lab, 1).await;
    client.send("begin; update t set v = 3 where id = 4").await;
    client.answer().await;
    client.send(error).await;
    let (watcher, is_there) = blocked(lab, 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(number(&watcher, &is_there).await.unwrap(), 1, "its session was ended");
    assert_eq!(client.answer().await, "EZ");
    client.send("rollback").await;
    assert_eq!(client.answer().await, "CZ");
}

/// When another process crashes, a session that is sending ends by itself: the server does not have to kill it.
async fn leaves_at_a_crash(lab: &Lab) {
    let mut client = Raw::open(lab, 1).await;
    client.send("select repeat('x', 1000) from generate_series(1, 1000000)").await;
    let (watcher, _) = blocked(lab, 1).await;
    let own = number(&watcher, "select pg_backend_pid()").await.unwrap();
    let position = lab.node(1).log("postgres.log").unwrap().len();
    kill(Pid::from_raw(own as i32), Signal::SIGKILL).expect("kill a backend");
    let log = || lab.node(1).log("postgres.log").unwrap().split_off(position);
    let served = "database system is ready to accept connections";
    until("the server is back", SOON, || async { Ok(log().contains(served)) }).await.unwrap();
    assert!(!log().contains("issuing SIGKILL"), "{}", log());
}

/// PostgreSQL tells at level DEBUG2 what goes with a temporary table, in the middle of COMMIT: others wait for its
/// turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_at_commit_does_not_stop_its_region() {
    let lab = patient("eviction_unread_commit", "a COMMIT whose client does not read").await;
    let columns: Vec<String> = (0..60).map(|i| format!("{}_{i} int default 1", "c".repeat(55))).collect();
    lab.everywhere().await;
    let mut client = Raw::open(&lab, 1).await;
    client.send("begin; update t set v = 1 where id = 1").await;
    assert_eq!(client.answer().await, "CCZ");
    for table in 0..300 {
        client
            .send(&format!("create temporary table {}_{table} ({}) on commit drop", "t".repeat(55), columns.join(", ")))
            .await;
        assert_eq!(client.answer().await, "CZ");
    }
    client.send("set client_min_messages = debug2").await;
    client.answer().await;
    client.send("commit").await;
    let (watcher, is_there) = blocked(&lab, 1).await;
    watcher.must("update t set v = 2 where id = 2").await;
    until("its session ends", SOON, || async { Ok(number(&watcher, &is_there).await? == 0) }).await.unwrap();
    lab.shows("select sum(v) from t", "3").await;
    lab.check_equal(1).await;
}
