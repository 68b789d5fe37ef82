//! The rows of a large transaction are written in the other regions while it arrives.  Whatever becomes of that, the
//! transaction is committed in all regions or in none, and whatever is decided first does not wait for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;

use crate::lab::{apart, builder, number, start_from, subjects, text, until, Lab, Session, SOON};

/// Rows of about 260 bytes that do not compress: an entry of 10 MB.
const ROWS: i64 = 32_000;
const NOISE: &str = "(select string_agg(md5((g * 10 + i)::text), '') from generate_series(1, 8) i)";
const WORKER: &str = "backend_type = 'onetrip arrival worker'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn large_transactions_are_written_while_they_arrive() {
    let about = "10 MB are written before they are decided, and given up whenever something is in the way";
    let lab = start_from("arrival", about, builder().topology(apart(10))).await;
    subjects!(lab, 6;
        rows_are_written_before_they_are_decided,
        values_of_sequences_go_on_after_it,
        a_lock_of_an_idle_session_is_not_waited_for,
        what_is_decided_first_does_not_wait,
        what_is_decided_while_it_is_written_is_waited_for,
        a_definition_that_is_changed_meanwhile,
        what_is_not_written_early_comes_all_the_same,
        the_worker_is_ended_at_any_time,
        its_server_crashes,
        its_node_is_killed,
    );
}

/// The statement that inserts ROWS rows into a table of (who, id, v).
fn insert(table: &str, who: i32) -> String {
    format!("insert into {table} (who, id, v) select {who}, g, {NOISE} from generate_series(1, {ROWS}) g")
}

async fn with_table(lab: &Lab, name: &str) {
    // Values that are looked up by name, and an index that runs a function.
    let columns = format!(
        "who int, id int, v text, n int not null default 0, k {name}_kind not null default 'b', \
         o regclass not null default 'pg_class', primary key (who, id)"
    );
    let kind = format!("create type {name}_kind as enum ('a', 'b')");
    let index = format!("create index on {name} (lower(v))");
    lab.session(0).await.must(&format!("{kind}; create table {name} ({columns}); {index}")).await;
    lab.everywhere().await;
}

fn in_background(session: Session, sql: String) -> JoinHandle<Result<(), tokio_postgres::Error>> {
    tokio::spawn(async move { session.run(&sql).await })
}

/// The transactions that the arrival worker of a region has had, as ids of its server.
struct Watch {
    over: Arc<AtomicBool>,
    seen: JoinHandle<BTreeSet<String>>,
}

impl Watch {
    async fn of(lab: &Lab, region: usize) -> Watch {
        let (session, over) = (lab.session(region).await, Arc::new(AtomicBool::new(false)));
        let until = over.clone();
        let seen = tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            while !until.load(Ordering::Relaxed) {
                let query = format!("select coalesce(max(backend_xid::text), '') from pg_stat_activity where {WORKER}");
                seen.extend(text(&session, &query).await.ok().filter(|xid| !xid.is_empty()));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            seen
        });
        Watch { over, seen }
    }

    async fn seen(self) -> BTreeSet<String> {
        self.over.store(true, Ordering::Relaxed);
        self.seen.await.expect("the watch")
    }
}

/// How often it has come to this in a region.
async fn early(lab: &Lab, region: usize, outcome: &str) -> i64 {
    let query = format!("select count from onetrip.early_writes where outcome = '{outcome}'");
    let session = lab.session(region).await;
    number(&session, &query).await.unwrap()
}

async fn worker(lab: &Lab, region: usize) -> Pid {
    let session = lab.session(region).await;
    let query = format!("select coalesce(max(pid), 0) from pg_stat_activity where {WORKER}");
    until("there is an arrival worker", SOON, || async { Ok(number(&session, &query).await? > 0) }).await.unwrap();
    Pid::from_raw(number(&session, &query).await.unwrap() as i32)
}

/// An arrival worker that does not go on, so that the region of a large transaction waits for it for some seconds.
struct Held(Pid);

impl Held {
    async fn hold(lab: &Lab, region: usize) -> Held {
        let pid = worker(lab, region).await;
        kill(pid, Signal::SIGSTOP).expect("stop the worker");
        Held(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// The arrival worker of the region has written all that it got, and waits.
async fn has_written(lab: &Lab, region: usize) {
    let session = lab.session(region).await;
    let size = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn";
    let mut before = (0, Instant::now());
    until("the arrival worker has written all", SOON, || async {
        let has = number(&session, &format!("select count(backend_xid) from pg_stat_activity where {WORKER}")).await?;
        Ok(has == 1)
    })
    .await
    .unwrap();
    // It is done when no more WAL comes.
    while before.1.elapsed() < Duration::from_millis(300) {
        let now = number(&session, size).await.unwrap();
        if now - before.0 > 10_000 {
            before = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn rows_are_written_before_they_are_decided(lab: &Lab) {
    with_table(lab, "early").await;
    let (b, c) = (Watch::of(lab, 1).await, Watch::of(lab, 2).await);
    let before = early(lab, 1, "committed").await;
    lab.session(0).await.must(&insert("early", 1)).await;
    lab.session(0).await.must("update early set v = reverse(v) where who = 1").await;
    lab.shows("select count(*) || ' ' || sum(n) from early", &format!("{ROWS} 0")).await;
    for (region, watch) in [(1, b), (2, c)] {
        let (seen, session) = (watch.seen().await, lab.session(region).await);
        let writer = text(&session, "select distinct xmin from early").await.unwrap();
        assert!(seen.contains(&writer), "region {region}: written by {writer}, the worker had {seen:?}");
        assert!(seen.len() >= 2, "region {region}: the worker had {seen:?}");
    }
    assert!(early(lab, 1, "committed").await > before);
}

async fn values_of_sequences_go_on_after_it(lab: &Lab) {
    lab.session(0).await.must("create table numbered (id bigint generated always as identity, v text)").await;
    lab.everywhere().await;
    let fill = format!("insert into numbered (v) select {NOISE} from generate_series(1, {ROWS}) g");
    lab.session(0).await.must(&fill).await;
    lab.everywhere().await;
    for region in 0..3 {
        lab.session(region).await.must("insert into numbered (v) values ('after it')").await;
    }
    lab.shows("select count(*) - count(distinct id) from numbered", "0").await;
    // Each region has its own share of the values, and goes on near the others.
    let (least, most) = ("select min(id) from numbered where v = 'after it'", "select max(id) from numbered");
    let [a, ..] = lab.sessions().await;
    let (least, most) = (number(&a, least).await.unwrap(), number(&a, most).await.unwrap());
    assert!(least > most / 2, "a region went on at {least}, the others are at {most}");
}

async fn a_lock_of_an_idle_session_is_not_waited_for(lab: &Lab) {
    with_table(lab, "locked").await;
    lab.session(0).await.must(&insert("locked", 1)).await;
    lab.everywhere().await;
    let idle = lab.session(1).await;
    idle.must("begin; select from locked where id = 30000 for update").await;
    let before = early(lab, 1, "lock").await;
    lab.session(0).await.must("update locked set n = n + 1, v = reverse(v)").await;
    lab.shows("select count(*) from locked where n = 1", &ROWS.to_string()).await;
    assert!(early(lab, 1, "lock").await > before);
    let lost = idle.run("commit").await.expect_err("its row has changed");
    assert!(lost.is_closed() || lost.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{lost}");
}

async fn what_is_decided_first_does_not_wait(lab: &Lab) {
    with_table(lab, "contended").await;
    // Twice as many, so that its region waits for three seconds.
    lab.session(0).await.must(&insert("contended", 1)).await;
    lab.session(0).await.must(&insert("contended", 3)).await;
    lab.everywhere().await;
    let held = Held::hold(lab, 2).await;
    let before = early(lab, 1, "evicted").await;
    let a = lab.session(0).await;
    a.must("set onetrip.statement_retries = 0").await;
    let large = in_background(a, "update contended set n = n + 10, v = reverse(v)".into());
    has_written(lab, 1).await;
    assert!(!large.is_finished(), "its region waits for the third one");

    // Another row's change passes by what is only written; a change of the same row is first, and takes its place.
    let (b, c) = (lab.session(1).await, lab.session(2).await);
    c.must("insert into contended values (2, 1, 'beside it')").await;
    c.must("update contended set n = n + 1 where who = 1 and id = 5").await;
    let shown = "select n from contended where who = 1 and id = 5";
    until("region b shows it", SOON, || async { Ok(number(&b, shown).await? == 1) }).await.unwrap();
    let lost = large.await.expect("the task").expect_err("it is based on an older row");
    assert_eq!(lost.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{lost}");
    drop(held);
    lab.shows("select count(*) || ' ' || sum(n) from contended", &format!("{} 1", 2 * ROWS + 1)).await;
    assert!(early(lab, 1, "evicted").await > before);
    // It goes on as if nothing had been.
    lab.session(0).await.must("update contended set n = n + 10, v = reverse(v)").await;
    lab.shows("select sum(n) from contended", &(10 * (2 * ROWS + 1) + 1).to_string()).await;
}

/// The last rows take each region longer than their origin waits for it, so they are written after the verdict.  A
/// change of the last one comes behind, and finds it.
async fn what_is_decided_while_it_is_written_is_waited_for(lab: &Lab) {
    // Few rows of 32 kB, so that even a slow region has all bytes before its time is over: the last 20 are one answer.
    let rows = 300;
    // From a region that has not waited in vain for another one within the last minute.
    let b = lab.session(1).await;
    b.must("create table slow (who int, id int, v text, n int not null default 0, primary key (who, id))").await;
    b.must(&format!(
        "create function slowly(who int, id int) returns int immutable language plpgsql as $$
         begin
             if current_setting('session_replication_role') = 'replica' and id > {} then
                 perform pg_sleep(0.2);
             end if;
             return who;
         end $$;
         create index on slow (slowly(who, id))",
        rows - 20
    ))
    .await;
    lab.everywhere().await;
    let (in_a, in_c) = (Watch::of(lab, 0).await, Watch::of(lab, 2).await);
    let noise = "(select string_agg(md5((g * 1000 + i)::text), '') from generate_series(1, 1000) i)";
    b.must(&format!("insert into slow select 1, g, {noise} from generate_series(1, {rows}) g")).await;
    b.must(&format!("update slow set n = 1 where who = 1 and id = {rows}")).await;
    b.must(&format!("delete from slow where who = 1 and id = {}", rows - 1)).await;
    lab.shows("select count(*) || ' ' || sum(n) from slow", &format!("{} 1", rows - 1)).await;
    for (region, watch) in [(0, in_a), (2, in_c)] {
        let (seen, session) = (watch.seen().await, lab.session(region).await);
        let writer = text(&session, "select xmin from slow where id = 1").await.unwrap();
        assert!(seen.contains(&writer), "region {region}: written by {writer}, the worker had {seen:?}");
        let log = std::fs::read_to_string(lab.node(region).folder().join("postgres.log")).unwrap();
        assert!(!log.contains("row to change is missing"), "region {region}: the apply worker went ahead");
    }
}

async fn a_definition_that_is_changed_meanwhile(lab: &Lab) {
    with_table(lab, "changed").await;
    let held = Held::hold(lab, 2).await;
    let large = in_background(lab.session(0).await, insert("changed", 1));
    has_written(lab, 1).await;
    // It waits for nobody in its own region, and takes the table from the worker in region b.
    lab.session(2).await.must("alter table changed add column more int not null default 7").await;
    let committed = large.await.expect("the task").is_ok();
    drop(held);
    let rows = if committed { ROWS } else { 0 };
    lab.shows("select count(more) from changed", &rows.to_string()).await;
    lab.session(1).await.must(&insert("changed", 2)).await;
    lab.shows("select count(more) from changed where who = 2", &ROWS.to_string()).await;
}

async fn what_is_not_written_early_comes_all_the_same(lab: &Lab) {
    with_table(lab, "otherwise").await;
    let a = lab.session(0).await;
    let before = early(lab, 1, "not done early").await;
    let truncated = format!("begin; truncate otherwise; {}; commit", insert("otherwise", 1));
    a.must(&insert("otherwise", 2)).await;
    a.must(&truncated).await;
    lab.shows("select count(*) || ' ' || max(who) from otherwise", &format!("{ROWS} 1")).await;
    assert!(early(lab, 1, "not done early").await > before);
    let notified = format!("begin; notify early; {}; commit", insert("otherwise", 3));
    a.must(&notified).await;
    a.must("create table keyless (v text, o regclass)").await;
    lab.everywhere().await;
    a.must(&format!("insert into keyless select {NOISE} from generate_series(1, {ROWS}) g")).await;
    a.must("update keyless set v = v || 'x'").await;
    a.must("update keyless set o = 'otherwise'").await;
    lab.shows("select count(*) from keyless where v like '%x' and o = 'otherwise'::regclass", &ROWS.to_string()).await;
    a.must(&format!("begin; {}; prepare transaction 'large'", insert("otherwise", 4))).await;
    lab.session(1).await.must("commit prepared 'large'").await;
    lab.shows("select count(*) from otherwise where who in (3, 4)", &(2 * ROWS).to_string()).await;
}

async fn the_worker_is_ended_at_any_time(lab: &Lab) {
    with_table(lab, "ended").await;
    for round in 0..6 {
        let large = in_background(lab.session(round as usize % 3).await, insert("ended", round));
        let mut wait = 40 * round as u64;
        while !large.is_finished() {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            for region in 0..3 {
                let end = format!("select count(pg_terminate_backend(pid)) from pg_stat_activity where {WORKER}");
                let session = lab.session(region).await;
                number(&session, &end).await.unwrap();
            }
            wait = 150;
        }
        large.await.expect("the task").expect("it is committed, whoever writes it");
    }
    lab.shows("select count(*) from ended", &(6 * ROWS).to_string()).await;
}

async fn its_server_crashes(lab: &Lab) {
    with_table(lab, "crashed").await;
    for round in 0..3 {
        let large = in_background(lab.session(0).await, insert("crashed", round));
        let watch = lab.session(1).await;
        let has = format!("select count(backend_xid) from pg_stat_activity where {WORKER}");
        until("it writes", SOON, || async { Ok(number(&watch, &has).await? == 1) }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100 * round as u64)).await;
        let pid = number(&watch, &format!("select max(pid) from pg_stat_activity where {WORKER}")).await.unwrap();
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill the worker, and so all of its server");
        large.await.expect("the task").expect("it is committed");
        until("its server has gone", SOON, || async { Ok(watch.client.is_closed()) }).await.unwrap();
        until("its server is back", SOON, || async {
            let Ok(session) = Session::open(&lab.node(1).conninfo()).await else { return Ok(false) };
            Ok(number(&session, "select 1").await.is_ok())
        })
        .await
        .unwrap();
    }
    lab.shows("select count(*) from crashed", &(3 * ROWS).to_string()).await;
}

async fn its_node_is_killed(lab: &Lab) {
    with_table(lab, "killed").await;
    let leader = lab.settled().await.unwrap_or_else(|e| panic!("{e:#}"));
    let (origin, other) = ((leader + 1) % 3, (leader + 2) % 3);
    for round in 0..3 {
        let large = in_background(lab.session(origin).await, insert("killed", round));
        tokio::time::sleep(Duration::from_millis(200 + 200 * round as u64)).await;
        lab.node(other).kill9().expect("kill the node");
        large.await.expect("the task").expect("it is committed");
        lab.node(other).restart().await.unwrap_or_else(|e| panic!("{e:#}"));
    }
    lab.shows("select count(*) from killed", &(3 * ROWS).to_string()).await;
}
