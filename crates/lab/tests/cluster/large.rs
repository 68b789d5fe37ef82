//! 100,000 rows of one transaction cross regions once, as one proposal, whatever wrote them; and very many other
//! operations take little memory where they arrive.

use std::time::{Duration, Instant};

use crate::lab::{builder, number, onetrip, start, start_from, until, Lab, Session, SOON};

const ROWS: i64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_rows_cross_once() {
    let about = "100,000 rows by INSERT ... SELECT, with ON CONFLICT, with a trigger: one proposal each, over TLS";
    let lab = start_from("large", about, builder().init_arg("--tls")).await;
    let definitions = "
        create table plain (id int primary key, v text);
        create table upsert (id int primary key, v text);
        create table triggered (id int primary key, v text);
        create function shout() returns trigger language plpgsql as $$ begin new.v := upper(new.v); return new; end $$;
        create trigger shout before insert on triggered for each row execute function shout();";
    lab.session(0).await.must(definitions).await;
    lab.everywhere().await;
    // For comparison: the same tables on the same server, in a database that is not replicated.
    let local =
        Session::open(&lab.node(1).conninfo().replace("dbname=onetrip", "dbname=postgres")).await.expect("connect");
    local.must(&format!("set synchronous_commit = on; {definitions}")).await;
    let rows = format!("select g, 'value ' || g from generate_series(1, {ROWS}) g");
    for (name, sql) in [
        ("INSERT ... SELECT", format!("insert into plain {rows}")),
        ("ON CONFLICT DO NOTHING", format!("insert into upsert {rows} on conflict do nothing")),
        ("with a row trigger", format!("insert into triggered {rows}")),
    ] {
        let alone = timed(&local, &sql).await;
        let (here, arrived) = crosses_once(&lab, &sql).await;
        println!(
            "large: {name}: plain PostgreSQL {} ms, Onetrip {} ms, in all regions after {} ms",
            alone.as_millis(),
            here.as_millis(),
            arrived.as_millis()
        );
    }
    lab.shows(
        "select (select count(*) from plain) + (select count(*) from upsert) + (select count(*) from triggered)",
        "300000",
    )
    .await;
    lab.shows("select count(*) from triggered where v = 'VALUE ' || id", "100000").await;
    // Again, when every row is there already: there is nothing to send.
    let b = lab.session(1).await;
    b.must(&format!("insert into upsert {rows} on conflict do nothing")).await;
    b.must("update plain set v = v || '!'").await;
    lab.everywhere().await;
    lab.session(2).await.must("delete from triggered where id % 2 = 0").await;
    lab.check_equal(3).await;
    a_renewed_certificate_is_used(&lab).await;
}

async fn a_renewed_certificate_is_used(lab: &Lab) {
    let node = lab.node(2);
    let file = node.folder().join("tls/node.crt");
    let before = std::fs::read_to_string(&file).expect("the certificate");
    let folder = node.folder().to_str().expect("text").to_string();
    let output = onetrip(&["certificate", "--data", &folder]).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert_ne!(std::fs::read_to_string(&file).expect("the certificate"), before);
    node.stop().await.expect("stop");
    node.restart().await.expect("start");
    lab.wait_ready().await.expect("the cluster with the new certificate");
    lab.session(2).await.must("insert into plain values (-2, 'renewed')").await;
    lab.everywhere().await;
}

async fn timed(session: &Session, sql: &str) -> Duration {
    let began = Instant::now();
    session.must(sql).await;
    began.elapsed()
}

/// Returns how long the statement took, and how long it took until all regions showed it.
async fn crosses_once(lab: &Lab, sql: &str) -> (Duration, Duration) {
    lab.everywhere().await;
    let sessions = lab.sessions().await;
    let mut before = Vec::new();
    for session in &sessions {
        before.push(number(session, "select proposals from onetrip.status").await.unwrap());
    }
    let position = number(&sessions[1], "select onetrip.position()").await.unwrap();
    let began = Instant::now();
    sessions[1].must(sql).await;
    let here = began.elapsed();
    lab.everywhere().await;
    let arrived = began.elapsed();
    for (region, session) in sessions.iter().enumerate() {
        let proposals = number(session, "select proposals from onetrip.status").await.unwrap() - before[region];
        assert_eq!(proposals, i64::from(region == 1), "{sql}: proposals in region {region}");
        let moved = number(session, "select onetrip.position()").await.unwrap() - position;
        // Some 4 MB: parts of 128 KiB, and the entry that puts them together.
        assert!((2..64).contains(&moved), "{sql}: {moved} entries in region {region}");
    }
    (here, arrived)
}

/// With what one transaction of any role, with no privileges, made each other region need a gigabyte.
const MANY: [(&str, &str); 4] = [
    ("large objects", "select count(lo_creat(-1)) from generate_series(1, 300000)"),
    ("notifications", "select count(pg_notify('c', i::text)) from generate_series(1, 500000) i"),
    ("statements", "do $$ begin for i in 1 .. 20000 loop drop table if exists nosuch; end loop; end $$"),
    (
        "rows and large objects",
        "do $$ begin for i in 1 .. 40000 loop insert into t values (i, i); perform lo_creat(-1); end loop; end $$",
    ),
];
const WORKER: &str = "select coalesce(sum(pid), 0) from pg_stat_activity where backend_type = 'onetrip apply worker'";

/// Goal: an entry of very many small operations takes little memory where it is applied.  Method: how much the apply
/// worker of region b, a new one for each transaction, has had at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_operations_take_little_memory() {
    let lab = start("many_operations", "memory of an apply worker that carries out 20,000 operations and more").await;
    let (a, b) = (lab.session(0).await, lab.session(1).await);
    a.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    let mut too_much = Vec::new();
    for (what, sql) in MANY {
        let before = number(&b, WORKER).await.unwrap();
        b.must(&format!("select pg_terminate_backend({before})")).await;
        until("another worker", SOON, || async { Ok(![0, before].contains(&number(&b, WORKER).await?)) })
            .await
            .unwrap();
        a.must("insert into t values (0, 0) on conflict (id) do update set v = t.v + 1").await;
        lab.everywhere().await;
        let worker = number(&b, WORKER).await.unwrap();
        let before = peak_mb(worker);
        a.must(sql).await;
        lab.everywhere().await;
        assert_eq!(number(&b, WORKER).await.unwrap(), worker, "{what}: the worker has ended");
        let grown = peak_mb(worker) - before;
        println!("many_operations: {what}: {grown} MB");
        if grown >= 70 {
            too_much.push((what, grown));
        }
    }
    assert!(too_much.is_empty(), "in MB: {too_much:?}");
    lab.check_equal(1).await;
}

/// All that the process has ever had mapped at a time: the server's shared memory, and its own.
fn peak_mb(pid: i64) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker's status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")?.strip_suffix("kB")).expect("VmPeak");
    peak.trim().parse::<i64>().expect("a number") / 1024
}
