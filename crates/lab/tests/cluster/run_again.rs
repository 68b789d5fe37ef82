//! The census of statements (`docs/census/statements.tsv`) says of every command tag whether a statement that loses is
//! run again.  Here each example loses: while its server applies nothing, another region commits what it conflicts
//! with.

use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio_postgres::error::SqlState;

use crate::census::Census;
use crate::lab::{bounded, is, number, start, told, Lab, Session};

/// A statement that is run again waits for its server to go on, and so takes longer than this.
const STOPPED: Duration = Duration::from_millis(150);

/// A server whose apply worker is stopped.
struct Stopped(Pid);

impl Stopped {
    fn worker(pid: Pid) -> Stopped {
        kill(pid, Signal::SIGSTOP).expect("stop the apply worker");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn the_census_says_what_is_run_again() {
    let lab =
        start("run_again", "an example of every command tag loses: it is run again, or fails, as the census says")
            .await;
    let watch = lab.session(1).await;
    let census = Census::read("statements.tsv", 1);
    let mut wrong = Vec::new();
    for (number, (tag, columns)) in census.lines.iter().enumerate() {
        let (class, example, again) = (columns[1].as_str(), columns[3].as_str(), columns[5].as_str());
        if ["no statement", "refused"].contains(&class) {
            assert_eq!(again, "-", "{tag}");
            continue;
        }
        let seen = bounded(tag, loses(&lab, &watch, example, number)).await;
        if seen != Ok(again) {
            wrong.push(format!("{tag}: {again} in the census, seen: {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "docs/census/statements.tsv:\n{}", wrong.join("\n"));
    lab.everywhere().await;
    lab.check_equal(20).await;
}

/// `yes`: it lost, was run again and committed; `no`: it failed with 40001; `-`: it did not lose.
async fn loses(lab: &Lab, watch: &Session, example: &str, number_of: usize) -> Result<&'static str, String> {
    let (session, other) = (lab.session(1).await, lab.session(2).await);
    let statements: Vec<&str> = example.split(" ;; ").collect();
    let begins = |s: &&str| s.starts_with("begin") || s.starts_with("start transaction");
    let first = statements.iter().position(begins).unwrap_or(statements.len() - 1);
    for statement in &statements[..first] {
        session.run(statement).await.map_err(|e| format!("{statement}: {}", told(&e)))?;
    }
    // That leaves DDL no trip to wait in line for what the other session does.
    session.must("set onetrip.max_trips = 2").await;
    lab.everywhere().await;
    // The lock is for what changes rows, the sequence for what changes the schema.
    let made = |what: &str| statements[..first].iter().find_map(|s| s.strip_prefix(what)?.split(' ').next());
    let lock = made("create table ").map(|table| format!("lock table {table};")).unwrap_or_default();
    let refresh = made("create materialized view ").map(|view| format!("refresh materialized view {view};"));
    let refresh = refresh.unwrap_or_default();
    let pid = session.pid().await.map_err(|e| format!("{e:#}"))?;
    let losses = format!("select count(*) from onetrip.conflicts where pid = {pid}");
    let worker = number(watch, "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'").await;
    let stopped = Stopped::worker(Pid::from_raw(worker.map_err(|e| format!("{e:#}"))? as i32));
    other.must(&format!("begin; {lock} {refresh} create sequence before_{number_of}; commit")).await;

    let run = async {
        for statement in &statements[first..] {
            // Both protocols.
            match number_of % 2 {
                0 => session.run(statement).await,
                _ => session.execute(*statement, &[]).await.map(|_| ()),
            }?;
        }
        Ok::<_, tokio_postgres::Error>(())
    };
    let go_on = async {
        tokio::time::sleep(STOPPED).await;
        drop(stopped);
    };
    let (said, ()) = tokio::join!(run, go_on);
    let lost = number(watch, &losses).await.map_err(|e| format!("{e:#}"))? > 0;
    match said {
        Ok(()) if lost => Ok("yes"),
        Ok(()) => Ok("-"),
        Err(e) if is(&e, &SqlState::T_R_SERIALIZATION_FAILURE) && lost => Ok("no"),
        Err(e) => Err(told(&e)),
    }
}
