//! Clients of all regions run DDL at the same time, each about tables of its own: all of it succeeds.

use std::time::{Duration, Instant};

use crate::lab::{start, told, Session};

/// Statements of each client.
const ROUNDS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ddl_of_all_regions_at_the_same_time_succeeds() {
    let lab =
        start("ddl_at_once", "clients of three regions make, change and drop their own tables, all at once").await;
    let sessions = lab.sessions().await;
    let began = Instant::now();
    let (a, b, c) = tokio::join!(migrate(&sessions[0], "a"), migrate(&sessions[1], "b"), migrate(&sessions[2], "c"),);
    println!("ddl_at_once: slowest statements {a:?}, {b:?}, {c:?}; all of them {:?}", began.elapsed());
    lab.everywhere().await;
    lab.check_equal(3).await;
}

/// How long the slowest statement took.
async fn migrate(session: &Session, name: &str) -> Duration {
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let statement = match round % 4 {
            _ if round == 0 => format!("create table {name} (id int primary key)"),
            1 => format!("alter table {name} add column c{round} int"),
            2 => format!("create index on {name} (c{})", round - 1),
            3 => format!("alter table {name} rename column c{} to d{round}", round - 2),
            _ => format!("comment on table {name} is '{round}'"),
        };
        let began = Instant::now();
        session.run(&statement).await.unwrap_or_else(|error| panic!("{name}: {statement}: {}", told(&error)));
        slowest = slowest.max(began.elapsed());
    }
    slowest
}
