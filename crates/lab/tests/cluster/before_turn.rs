//! The worker applies an entry before its turn.  What the entry needs may then be part of an earlier one, which a
//! session of this region is to commit and has not committed yet.

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio::task::JoinHandle;

use crate::lab::{number, start, told_db, until, Lab, Session, SOON};

/// Nobody in region a gets the turn: a session that takes a snapshot at a position is stopped there.
struct Gate {
    exporter: Pid,
    exporting: JoinHandle<()>,
}

impl Gate {
    async fn close(lab: &Lab, a: &Session) -> Gate {
        let session = lab.session(0).await;
        session.must("begin isolation level repeatable read").await;
        let exporter = Pid::from_raw(session.pid().await.unwrap());
        let position = number(a, "select onetrip.position()").await.unwrap();
        let exporting = tokio::spawn(async move {
            session.must(&format!("select onetrip.export_snapshot_at({})", position + 1)).await;
        });
        waits(a, exporter.as_raw(), "wait_event = 'Extension'").await;
        kill(exporter, Signal::SIGSTOP).expect("stop the session");
        let gate = Gate { exporter, exporting };
        a.must("insert into t values (-1, 0)").await;
        gate
    }

    async fn open(mut self) {
        kill(self.exporter, Signal::SIGCONT).expect("let the session go on");
        (&mut self.exporting).await.expect("a snapshot");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = kill(self.exporter, Signal::SIGCONT);
    }
}

async fn waits(session: &Session, pid: i32, what: &str) {
    let query = format!("select count(*) from pg_stat_activity where pid = {pid} and state = 'active' and {what}");
    until("it waits", SOON, || async { Ok(number(session, &query).await? == 1) }).await.unwrap();
}

async fn worker(a: &Session) -> i32 {
    let query = "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'";
    number(a, query).await.unwrap() as i32
}

/// Waits until region a's worker has met what is missing.
async fn meets(lab: &Lab, missing: &str) {
    until(missing, SOON, || async { Ok(lab.node(0).postgres_log_tail(1000).contains(missing)) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_a_session_here_is_about_to_rename() {
    let lab = start("before_turn_sequence", "a sequence is used under the name that it has only in its turn").await;
    let [a, b, _] = lab.sessions().await;
    a.must("create table t (id bigint primary key, v int); create sequence s").await;
    lab.everywhere().await;
    let before = worker(&a).await;
    let gate = Gate::close(&lab, &a).await;
    let renames = lab.session(0).await;
    let renaming = tokio::spawn(async move { renames.must("alter sequence s rename to renamed").await });
    let query = "select count(*) from pg_class where relname = 'renamed'";
    until("region b has it", SOON, || async { Ok(number(&b, query).await? == 1) }).await.unwrap();
    b.must("insert into t values (nextval('renamed'), 1)").await;
    meets(&lab, "relation \"public.renamed\" does not exist").await;
    gate.open().await;
    renaming.await.unwrap();
    lab.shows("select count(*) || ' ' || sum(v) from t", "2 1").await;
    assert_eq!(worker(&a).await, before, "the worker has failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_a_session_here_is_to_commit_and_gives_up() {
    let lab = start("before_turn_row", "a row is changed whose insertion was left to the worker in the meantime").await;
    let [a, b, _] = lab.sessions().await;
    a.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    let before = worker(&a).await;
    let gate = Gate::close(&lab, &a).await;
    let inserts = lab.session(0).await;
    let pid = inserts.pid().await.unwrap();
    let inserting = tokio::spawn(async move { inserts.refused("insert into t values (7, 0)").await });
    let query = "select count(*) from t where id = 7";
    until("region b has it", SOON, || async { Ok(number(&b, query).await? == 1) }).await.unwrap();
    b.must("update t set v = 1 where id = 7").await;
    let query =
        format!("select count(*) from pg_locks where pid = {before} and locktype = 'transactionid' and not granted");
    until("the worker waits for it", SOON, || async { Ok(number(&a, &query).await? == 1) }).await.unwrap();
    a.must(&format!("select pg_terminate_backend({pid})")).await;
    let told = told_db(&inserting.await.unwrap());
    assert!(told.contains("08007") && told.contains("committed at "), "{told}");
    meets(&lab, "row to change is missing in table \"public.t\"").await;
    gate.open().await;
    lab.shows("select count(*) || ' ' || sum(v) from t", "2 1").await;
    assert_eq!(worker(&a).await, before, "the worker has failed");
    lab.check_equal(1).await;
}
