//! `onetrip.ack = applied_everywhere`: COMMIT is answered once plain local reads see the change in every region that is
//! connected, and a region in trouble is named and does not hold it up for ever.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use crate::lab::{bounded, builder, number, start_from, subjects, text, until, Lab, SOON};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_lab::Topology;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const EVERYWHERE: &str = "set onetrip.ack = applied_everywhere";

/// Region a has its majority with b nearby, and c hears of its commits far later.
fn far_c() -> Topology {
    let text =
        "preferred_leader = \"a\"\n[[region]]\nname = \"a\"\n[[region]]\nname = \"b\"\n[[region]]\nname = \"c\"\n\
                [[link]]\nbetween = [\"a\", \"b\"]\nrtt_ms = 10\n[[link]]\nbetween = [\"a\", \"c\"]\nrtt_ms = 100\n\
                [[link]]\nbetween = [\"b\", \"c\"]\nrtt_ms = 100\n";
    Topology::parse(text).expect("the text above is a topology")
}

/// A client that keeps the warnings that it gets.
struct Warned {
    client: Client,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Warned {
    async fn connect(lab: &Lab, region: usize) -> Warned {
        let (client, mut connection) = tokio_postgres::connect(&lab.node(region).conninfo(), NoTls).await.unwrap();
        let warnings: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = warnings.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    let detail = notice.detail().unwrap_or_default();
                    kept.lock().unwrap().push(format!("{}: {} {detail}", notice.severity(), notice.message()));
                }
            }
        });
        client.batch_execute(EVERYWHERE).await.unwrap();
        Warned { client, warnings }
    }

    /// Runs a statement, which must succeed.  Returns the warnings that came with it.
    async fn run(&self, sql: &str) -> String {
        self.warnings.lock().unwrap().clear();
        bounded(sql, self.client.batch_execute(sql)).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        self.warnings.lock().unwrap().concat()
    }

    /// The same beside the test, in a session of that name.
    async fn begin(lab: &Lab, name: &str, sql: &'static str) -> JoinHandle<String> {
        let session = Warned::connect(lab, 0).await;
        session.run(&format!("set application_name = '{name}'")).await;
        tokio::spawn(async move { session.run(sql).await })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_region_shows_what_was_acknowledged() {
    let about = "COMMIT waits until plain reads in every region see it; who is away, hangs or stands still is named";
    let lab = start_from("everywhere", about, builder().topology(far_c())).await;
    lab.session(0).await.must("create table t (id int primary key, v int)").await;
    lab.everywhere().await;
    subjects!(lab, 1;
        plain_reads_see_it,
        it_is_on_the_bill,
        a_server_that_applies_nothing_is_waited_for_once,
        a_cancel_ends_the_wait_and_not_the_commit,
        the_end_of_the_session_ends_the_wait_and_not_the_commit,
        the_loss_of_the_node_ends_the_wait_and_not_the_commit,
        a_node_that_hangs_is_away,
    );
}

async fn plain_reads_see_it(lab: &Lab) {
    const ROUNDS: usize = 60;
    let mut writers = Vec::new();
    for region in 0..3 {
        writers.push(Warned::connect(lab, region).await);
    }
    let readers = lab.sessions().await;
    let mut promised = 0;
    for round in 0..ROUNDS {
        let (writer, id) = (&writers[round % 3], 1000 + round);
        let ways =
            [format!("insert into t values ({id}, 0)"), format!("begin; insert into t values ({id}, 0); commit")];
        // On a machine that is too busy, a region may seem to be away for a moment; then nothing is promised.
        if !writer.run(&ways[round / 3 % 2]).await.is_empty() {
            continue;
        }
        promised += 1;
        for (region, reader) in readers.iter().enumerate() {
            let seen = number(reader, &format!("select count(*) from t where id = {id}")).await.unwrap();
            assert_eq!(seen, 1, "round {round}: region {region} does not see it");
        }
    }
    assert!(promised >= ROUNDS / 2, "in {promised} of {ROUNDS} rounds only did nobody seem to be away");
    for (region, writer) in writers.iter().enumerate() {
        let took = "select string_agg(part || ' ' || round(p50_ms::numeric, 1), ', ') from onetrip.commits";
        println!(
            "everywhere: half of the COMMITs in region {region} took (ms) {}",
            text(&writer.client, took).await.unwrap()
        );
    }
    // Without the setting, region c is behind: that is what the wait is for.
    let mut missed = 0;
    for round in 0..20 {
        let id = 2000 + round;
        readers[0].must(&format!("insert into t values ({id}, 0)")).await;
        missed += 1 - number(&readers[2], &format!("select count(*) from t where id = {id}")).await.unwrap();
    }
    assert!(missed > 0, "region c saw at once what region b's word alone had committed");
}

async fn it_is_on_the_bill(lab: &Lab) {
    const WAITED: &str = "select count from onetrip.crossings where cause = 'applied everywhere'";
    let a = lab.session(0).await;
    a.must(EVERYWHERE).await;
    let before = number(&a, WAITED).await.unwrap();
    a.must("begin; select count(*) from t; commit; begin; insert into t values (3000, 0); rollback").await;
    assert_eq!(number(&a, WAITED).await.unwrap(), before, "who changes nothing does not wait");
    a.must("insert into t values (3001, 0)").await;
    assert_eq!(number(&a, WAITED).await.unwrap(), before + 1);
    let bill = "select round_trips || ' ' || (everywhere_ms >= 80) || ' ' || ('a' = any(held_by)) || ' ' ||
                       (array_length(held_by, 1) >= 2) from onetrip.last_commit()";
    assert_eq!(text(&a, bill).await.unwrap(), "2 true true true");
    a.must("reset onetrip.ack; insert into t values (3002, 0)").await;
    let bill = "select round_trips || ' ' || (everywhere_ms is null) from onetrip.last_commit()";
    assert_eq!(text(&a, bill).await.unwrap(), "1 true");
    let parts = "select count(*) from onetrip.commits e, onetrip.commits w
                 where e.part = 'everywhere' and w.part = 'whole' and e.count > 0 and w.max_ms >= e.max_ms";
    assert_eq!(number(&a, parts).await.unwrap(), 1);
    a.must("set onetrip.max_trips = 1; set onetrip.ack = applied_everywhere").await;
    assert_eq!(a.refused("insert into t values (3003, 0)").await.code().code(), "53400");
    a.must("begin; set local onetrip.ack = quorum; insert into t values (3003, 0); commit").await;
    // DDL is rehearsed only if it is there.
    a.must("set onetrip.max_trips = 3; create table more (id int primary key); drop table more").await;
}

/// The apply worker of region c, stopped until this is dropped.
pub struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

pub async fn stop_worker(lab: &Lab) -> Stopped {
    lab.everywhere().await;
    let c = lab.session(2).await;
    let pid = number(&c, "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'").await.unwrap();
    let worker = Stopped(Pid::from_raw(pid as i32));
    kill(worker.0, Signal::SIGSTOP).unwrap();
    worker
}

async fn go_on(lab: &Lab, worker: Stopped) {
    drop(worker);
    until_all_show(lab).await;
}

async fn until_all_show(lab: &Lab) {
    lab.everywhere().await;
    let a = Warned::connect(lab, 0).await;
    until("nobody is in trouble", SOON, || async {
        Ok(a.run("insert into t values (0, 0) on conflict (id) do update set v = t.v + 1").await.is_empty())
    })
    .await
    .unwrap();
}

async fn a_server_that_applies_nothing_is_waited_for_once(lab: &Lab) {
    let worker = stop_worker(lab).await;
    let a = Warned::connect(lab, 0).await;
    for id in [4000, 4001] {
        let warned = a.run(&format!("insert into t values ({id}, 0)")).await;
        assert!(warned.contains("the transaction is committed") && warned.contains("\"c\" stands still"), "{warned}");
    }
    // Nobody else is named, and b has it.
    let b = lab.session(1).await;
    assert_eq!(number(&b, "select count(*) from t where id in (4000, 4001)").await.unwrap(), 2);
    go_on(lab, worker).await;
}

/// Waits until region a shows the row, whose COMMIT waits for region c.
async fn until_it_waits(lab: &Lab, id: i64) {
    let a = lab.session(0).await;
    until("region a shows it", SOON, || async {
        Ok(number(&a, &format!("select count(*) from t where id = {id}")).await? == 1)
    })
    .await
    .unwrap();
}

async fn a_cancel_ends_the_wait_and_not_the_commit(lab: &Lab) {
    let worker = stop_worker(lab).await;
    let commit = Warned::begin(lab, "canceled", "insert into t values (5000, 0)").await;
    until_it_waits(lab, 5000).await;
    assert!(!commit.is_finished(), "it did not wait");
    lab.session(0)
        .await
        .must("select pg_cancel_backend(pid) from pg_stat_activity where application_name = 'canceled'")
        .await;
    let warned = bounded("the canceled COMMIT", commit).await.unwrap();
    assert!(warned.contains("COMMIT was canceled"), "{warned}");
    // The same for the patience of the session itself.
    let a = Warned::connect(lab, 0).await;
    let warned = a.run("set onetrip.commit_timeout = '300ms'; insert into t values (5001, 0)").await;
    assert!(warned.contains("onetrip.commit_timeout") || warned.contains("stands still"), "{warned}");
    // What is asked and answered later is no answer to what comes then.
    let warned = a.run("reset onetrip.commit_timeout; insert into t values (5002, 0)").await;
    assert!(warned.contains("\"c\" stands still"), "{warned}");
    go_on(lab, worker).await;
    let c = lab.session(2).await;
    assert_eq!(number(&c, "select count(*) from t where id between 5000 and 5002").await.unwrap(), 3);
}

async fn the_end_of_the_session_ends_the_wait_and_not_the_commit(lab: &Lab) {
    let worker = stop_worker(lab).await;
    let commit = Warned::begin(lab, "ended", "insert into t values (6000, 0)").await;
    until_it_waits(lab, 6000).await;
    lab.session(0)
        .await
        .must("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ended'")
        .await;
    let warned = bounded("the COMMIT of a session that is ended", commit).await.unwrap();
    assert!(warned.contains("The session was ended"), "{warned}");
    go_on(lab, worker).await;
    let c = lab.session(2).await;
    assert_eq!(number(&c, "select count(*) from t where id = 6000").await.unwrap(), 1);
}

async fn the_loss_of_the_node_ends_the_wait_and_not_the_commit(lab: &Lab) {
    let worker = stop_worker(lab).await;
    let commit = Warned::begin(lab, "lost", "insert into t values (6500, 0)").await;
    until_it_waits(lab, 6500).await;
    lab.node(0).kill9().unwrap();
    let warned = bounded("the COMMIT whose node is lost", commit).await.unwrap();
    assert!(warned.contains("this region's node was lost"), "{warned}");
    lab.node(0).start().unwrap();
    lab.node(0).wait_serving(SOON).await.unwrap();
    go_on(lab, worker).await;
    let c = lab.session(2).await;
    assert_eq!(number(&c, "select count(*) from t where id = 6500").await.unwrap(), 1);
}

async fn a_node_that_hangs_is_away(lab: &Lab) {
    until_all_show(lab).await;
    lab.node(2).pause().unwrap();
    let a = Warned::connect(lab, 0).await;
    for id in [7000, 7001] {
        let warned = a.run(&format!("insert into t values ({id}, 0)")).await;
        assert!(warned.contains("\"c\" is away"), "{warned}");
    }
    lab.node(2).resume().unwrap();
    until_all_show(lab).await;
}
