//! Long readers, LOCK TABLE, DDL, TRUNCATE and cascades in all regions at once: every statement ends, in one of a few
//! ways.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab::{builder, duration, number, start_from, told, told_db, until, Lab, Session};

/// How a statement may fail: it lost to another region, a lock timeout, or a constraint (no such parent, a key that
/// exists already), since the scripts change the same keys.
const ALLOWED: [&str; 4] = ["40001", "55P03", "23503", "23505"];
const HANGS: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Ends {
    by_code: Mutex<BTreeMap<String, u64>>,
    findings: Mutex<Vec<String>>,
    done: AtomicU64,
}

impl Ends {
    fn add(&self, who: &str, sql: &str, error: Option<(String, String)>) {
        let Some((code, line)) = error else {
            self.done.fetch_add(1, Ordering::Relaxed);
            return;
        };
        *self.by_code.lock().expect("no panic").entry(format!("{who} {code}")).or_default() += 1;
        if !ALLOWED.contains(&code.as_str()) {
            self.findings.lock().expect("no panic").push(format!("{who}: {sql}: {line}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_deadlocks() {
    let lab = start_from(
        "nothing_deadlocks",
        "readers, LOCK TABLE, DDL, TRUNCATE and cascades in all regions at once: every statement ends, regions stay equal",
        builder().postgres_setting("onetrip.max_apply_delay", "1500ms"),
    )
    .await;
    lab.session(0)
        .await
        .must(
            "create table a (id int primary key, v int default 0); create table b (id int primary key, a int references a on delete cascade on update cascade, v int default 0);
             create table c (id int primary key, b int references b on delete set null); create table d (id int primary key, v text);
             create table e (id int primary key, v int);
             insert into a select g from generate_series(1, 200) g; insert into b select g, g from generate_series(1, 200) g;
             insert into c select g, g from generate_series(1, 200) g; insert into d select g, 'x' from generate_series(1, 200) g;
             insert into e select g, 0 from generate_series(1, 50) g",
        )
        .await;
    lab.everywhere().await;
    let deadline = Instant::now() + duration(30);
    let ends = Arc::new(Ends::default());
    let mut tasks = Vec::new();
    for region in 0..3 {
        for (name, script) in scripts(region) {
            let (conninfo, ends) = (lab.node(region).conninfo(), Arc::clone(&ends));
            tasks.push(tokio::spawn(async move { repeat(&conninfo, region, name, script, deadline, &ends).await }));
        }
    }
    let heartbeat = advances(&lab, deadline).await;
    for task in tasks {
        task.await.expect("a client");
    }
    println!(
        "nothing_deadlocks: {} statements done, longest standstill {heartbeat:?}",
        ends.done.load(Ordering::Relaxed)
    );
    println!("nothing_deadlocks: ended otherwise: {:?}", ends.by_code.lock().expect("no panic"));
    let findings = std::mem::take(&mut *ends.findings.lock().expect("no panic"));
    assert!(
        findings.is_empty(),
        "{} statements ended otherwise, such as {:#?}",
        findings.len(),
        &findings[..findings.len().min(5)]
    );
    comes_to_rest(&lab).await;
    for region in 0..3 {
        let handovers =
            number(&lab.session(region).await.client, "select handovers from onetrip.status").await.unwrap();
        assert_eq!(handovers, 0, "region {region}: a lock without a key: a decided transaction stood in the way");
    }
    lab.check_equal(5).await;
}

/// The scripts of a region, which clients run over and over, statement by statement; `{n}` is a number that changes.
fn scripts(region: usize) -> Vec<(&'static str, &'static [&'static str])> {
    let mut scripts: Vec<(&'static str, &'static [&'static str])> = vec![
        (
            "write",
            &[
                "update a set v = v + 1 where id = {n}",
                "update b set v = v + 1 where id = {n}",
                "insert into e values (1000 + {n}, 1) on conflict (id) do update set v = e.v + 1",
            ],
        ),
        (
            "read",
            &[
                "begin isolation level repeatable read",
                "select sum(v) from a",
                "select pg_sleep(0.8)",
                "select count(*) from b join c on c.b = b.id",
                "commit",
            ],
        ),
        (
            "cascade",
            &[
                "begin",
                "delete from a where id = {n}",
                "insert into a (id) values ({n}) on conflict do nothing",
                "insert into b (id, a) values ({n}, {n}) on conflict do nothing",
                "commit",
                "update a set id = id + 5000 where id = {n}",
                "update a set id = id - 5000 where id > 5000",
            ],
        ),
    ];
    scripts.push(match region {
        0 => (
            "lock",
            &[
                "begin",
                "lock table a in share row exclusive mode",
                "update a set v = 0 where id = {n}",
                "commit",
                "begin",
                "lock table b",
                "select count(*) from a",
                "commit",
            ],
        ),
        1 => (
            "ddl",
            &[
                "alter table a add column if not exists extra int",
                "create index if not exists extra_index on b (v)",
                "alter table a drop column if exists extra",
                "drop index if exists extra_index",
                "alter table e alter column v set default {n}",
            ],
        ),
        _ => (
            "truncate",
            &[
                "truncate d",
                "insert into d select g, 'y' from generate_series(1, 50) g on conflict do nothing",
                "begin",
                "truncate e",
                "insert into e select g, 1 from generate_series(1, 20) g",
                "commit",
            ],
        ),
    });
    scripts.push(match region {
        0 => (
            "ddl",
            &[
                "alter table d add column if not exists more int default 1",
                "update d set v = 'z' where id = {n}",
                "alter table d drop column if exists more",
            ],
        ),
        1 => (
            "share",
            &[
                "begin",
                "select * from a where id = {n} for share",
                "select * from b where id = {n} for update",
                "update c set b = null where id = {n}",
                "commit",
            ],
        ),
        _ => (
            "lock",
            &[
                "begin",
                "lock table d in exclusive mode",
                "lock table e in access exclusive mode",
                "insert into e values (9000 + {n}, 1) on conflict do nothing",
                "rollback",
            ],
        ),
    });
    scripts
}

async fn repeat(conninfo: &str, region: usize, name: &str, script: &[&str], deadline: Instant, ends: &Ends) {
    let who = format!("region {region} {name}");
    let mut session: Option<Session> = None;
    let mut n = region as u64 * 31;
    while Instant::now() < deadline {
        n = (n * 7 + 13) % 199;
        for statement in script {
            if session.is_none() {
                let fresh = Session::open(conninfo).await.expect("connect");
                fresh.must("set lock_timeout = '3s'").await;
                session = Some(fresh);
            }
            let Some(open) = &session else { unreachable!("just opened") };
            let sql = statement.replace("{n}", &n.to_string());
            let result = match tokio::time::timeout(HANGS, open.client.batch_execute(&sql)).await {
                Ok(result) => result,
                Err(_) => panic!("{who}: {sql} hangs"),
            };
            let Err(error) = result else {
                ends.add(&who, &sql, None);
                continue;
            };
            match error.as_db_error() {
                Some(db) => ends.add(&who, &sql, Some((db.code().code().to_string(), told(&error)))),
                None => {
                    let ended = session.take().expect("in use").ended_by().await;
                    ends.add(
                        &who,
                        &sql,
                        Some(match ended {
                            Ok(db) => (db.code().code().to_string(), told_db(&db)),
                            Err(why) => ("closed".to_string(), format!("{why:#}")),
                        }),
                    );
                    break;
                }
            }
            // The rest of the script depends on this statement.
            if open.client.batch_execute("rollback").await.is_err() {
                session = None;
            }
            break;
        }
    }
    let _ = name;
}

/// Watches the applied indexes while the scripts run; returns the longest time that any region stood still.
async fn advances(lab: &Lab, deadline: Instant) -> Duration {
    let sessions = lab.sessions().await;
    let mut last = [(0, Instant::now()); 3];
    let mut longest = Duration::ZERO;
    while Instant::now() < deadline {
        for (region, session) in sessions.iter().enumerate() {
            let at = number(session, "select onetrip.position()").await.expect("ask for the position");
            if at > last[region].0 {
                last[region] = (at, Instant::now());
            }
            longest = longest.max(last[region].1.elapsed());
            assert!(longest < Duration::from_secs(20), "region {region} stands at {at} for {longest:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    longest
}

/// With no load, every region comes to the same position.
async fn comes_to_rest(lab: &Lab) {
    let sessions = lab.sessions().await;
    until("all regions at one position", Duration::from_secs(30), || async {
        let mut at = Vec::new();
        for session in &sessions {
            at.push(number(session, "select onetrip.position()").await?);
        }
        anyhow::ensure!(at.windows(2).all(|w| w[0] == w[1]), "positions {at:?}");
        Ok(true)
    })
    .await
    .unwrap();
}
