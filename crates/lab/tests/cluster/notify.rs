//! NOTIFY reaches listeners in every region: once, in the order of commits, and only if the transaction commits.

use std::future::poll_fn;
use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::lab::{bounded, number, start, subjects, told, told_db, until, Lab, Session, SOON};

const WORKER: &str = "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'";
const TABLE: &str = "create table if not exists t (id int primary key, v int)";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Heard {
    channel: String,
    payload: String,
    pid: i32,
}

/// A session that listens, as a client of its own.
struct Listener {
    client: tokio_postgres::Client,
    heard: UnboundedReceiver<Heard>,
}

impl Listener {
    async fn on(lab: &Lab, region: usize, channels: &[&str]) -> Listener {
        let conninfo = lab.node(region).conninfo();
        let connect = tokio_postgres::connect(&conninfo, NoTls);
        let (client, mut connection) = tokio::time::timeout(SOON, connect).await.expect("an answer").expect("connect");
        let (tell, heard) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(n) = message {
                    let (channel, payload) = (n.channel().to_string(), n.payload().to_string());
                    let _ = tell.send(Heard { channel, payload, pid: n.process_id() });
                }
            }
        });
        for channel in channels.iter().chain(&["the_end"]) {
            client.batch_execute(&format!("listen {channel}")).await.expect("LISTEN");
        }
        Listener { client, heard }
    }

    /// What came up to the notification that `end_all` sends.
    async fn all(&mut self) -> Vec<Heard> {
        let mut all = Vec::new();
        loop {
            let next = tokio::time::timeout(SOON, self.heard.recv()).await;
            let heard =
                next.unwrap_or_else(|_| panic!("the end was not heard, only {all:?}")).expect("it is connected");
            if heard.channel == "the_end" {
                return all;
            }
            all.push(heard);
        }
    }

    async fn payloads(&mut self) -> Vec<String> {
        self.all().await.into_iter().map(|heard| format!("{} {}", heard.channel, heard.payload)).collect()
    }
}

async fn listeners(lab: &Lab, channels: &[&str]) -> [Listener; 3] {
    [Listener::on(lab, 0, channels).await, Listener::on(lab, 1, channels).await, Listener::on(lab, 2, channels).await]
}

/// What comes after this in any region was sent after everything that any region shows now.
async fn end_all(lab: &Lab) {
    lab.everywhere().await;
    lab.session(0).await.must("notify the_end").await;
}

async fn worker(lab: &Lab, region: usize) -> i32 {
    let session = lab.session(region).await;
    number(&session, WORKER).await.unwrap() as i32
}

/// The apply worker of a region stands still while this lives.
struct Held(Pid);

impl Held {
    async fn hold(lab: &Lab, region: usize) -> Held {
        let pid = Pid::from_raw(worker(lab, region).await);
        kill(pid, Signal::SIGSTOP).expect("stop the worker");
        Held(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_reach_every_region() {
    let lab = start("notify", "listeners in three regions hear the same, once and in order").await;
    lab.session(0).await.must(TABLE).await;
    lab.everywhere().await;
    subjects!(lab, 1;
        what_a_transaction_sends,
        many_regions_at_once,
        equal_ones_of_entries_that_share_a_transaction,
        a_function_that_a_statement_runs_in_every_region,
        a_session_that_ended_before_its_turn,
        a_server_that_was_killed,
    );
}

async fn what_a_transaction_sends(lab: &Lab) {
    let [mut a, mut b, mut c] = listeners(lab, &["news", "other"]).await;
    let sender = lab.session(1).await;
    sender
        .must(
            "create function tells() returns trigger language plpgsql as
                 $$ begin perform pg_notify('news', 'row ' || new.id); return new; end $$;
             create function tells_in_sql(text) returns void language sql as 'select pg_notify(''other'', $1)';
             create table watched (id int primary key);
             create trigger tells after insert on watched for each row execute function tells()",
        )
        .await;
    sender.must("begin; notify news, 'one'; notify news, 'two'; select pg_notify('news', 'one'); savepoint s; notify news, 'gone'; rollback to s; notify other, 'one'; commit").await;
    sender.must("begin; insert into watched values (1); notify news, 'rolled back'; rollback").await;
    sender.must("insert into watched values (1), (2)").await;
    sender.must("select tells_in_sql('sql')").await;
    sender.must("notify news").await;
    sender.must("listen mine; notify mine").await;
    let pid = sender.pid().await.unwrap();
    end_all(lab).await;
    let expected = ["news one", "news two", "other one", "news row 1", "news row 2", "other sql", "news "];
    for (region, listener) in [&mut a, &mut b, &mut c].into_iter().enumerate() {
        let heard = listener.all().await;
        let said: Vec<String> = heard.iter().map(|h| format!("{} {}", h.channel, h.payload)).collect();
        assert_eq!(said, expected, "region {region}");
        // The sender's own number where it is a number of a session, else that of the process which sends it there.
        let from = if region == 1 { pid } else { worker(lab, region).await };
        assert!(heard.iter().all(|h| h.pid == from), "region {region}: {heard:?}, not from {from}");
    }
}

async fn many_regions_at_once(lab: &Lab) {
    let [mut a, mut b, mut c] = listeners(lab, &["numbers"]).await;
    let mut senders = Vec::new();
    for region in 0..3 {
        let sender = lab.session(region).await;
        senders.push(tokio::spawn(async move {
            for n in 0..40 {
                let id = 1000 + 100 * region + n;
                // Every other one changes nothing else.
                let change = if n % 2 == 0 { format!("insert into t values ({id}, {n});") } else { String::new() };
                sender.must(&format!("begin; {change} notify numbers, '{id}'; commit")).await;
            }
        }));
    }
    for sender in senders {
        sender.await.unwrap();
    }
    end_all(lab).await;
    let heard = a.payloads().await;
    assert_eq!(heard.len(), 120, "{heard:?}");
    for region in 0..3 {
        let own: Vec<String> = (0..40).map(|n| format!("numbers {}", 1000 + 100 * region + n)).collect();
        let of_region: Vec<String> = heard.iter().filter(|h| own.contains(h)).cloned().collect();
        assert_eq!(of_region, own, "out of order");
    }
    assert_eq!(b.payloads().await, heard);
    assert_eq!(c.payloads().await, heard);
}

/// PostgreSQL sends equal notifications of a transaction once, but the worker commits several entries in one.
async fn equal_ones_of_entries_that_share_a_transaction(lab: &Lab) {
    let [mut a, mut b, mut c] = listeners(lab, &["again"]).await;
    let sender = lab.session(0).await;
    let held = Held::hold(lab, 1).await;
    for id in 1..=10 {
        sender.must(&format!("begin; insert into t values ({id}, 0); notify again, 'same'; commit")).await;
        sender.must(&format!("update t set v = 1 where id = {id}")).await;
    }
    drop(held);
    end_all(lab).await;
    for listener in [&mut a, &mut b, &mut c] {
        assert_eq!(listener.payloads().await, ["again same"; 10]);
    }
}

async fn a_function_that_a_statement_runs_in_every_region(lab: &Lab) {
    let [mut a, mut b, mut c] = listeners(lab, &["loud"]).await;
    let sender = lab.session(2).await;
    sender
        .must(
            "create function loud(v int) returns int immutable language plpgsql as
                 $$ begin perform pg_notify('loud', v || current_setting('onetrip.region')); return v; end $$;
             create table heard_by_all (id int primary key); insert into heard_by_all values (7)",
        )
        .await;
    sender.must("create index on heard_by_all (loud(id))").await;
    sender.must("insert into heard_by_all values (8)").await;
    end_all(lab).await;
    for listener in [&mut a, &mut b, &mut c] {
        assert_eq!(listener.payloads().await, ["loud 7c", "loud 8c"]);
    }
}

/// The worker commits the entry in the session's place: the listeners there hear of it from the worker.
async fn a_session_that_ended_before_its_turn(lab: &Lab) {
    let [mut a, mut b, mut c] = listeners(lab, &["late"]).await;
    let client = lab.session(2).await;
    let sender = lab.session(2).await;
    let pid = sender.pid().await.unwrap();
    let proposals = "select proposals from onetrip.status";
    let proposed = number(&client, proposals).await.unwrap();
    let worker = worker(lab, 2).await;
    let held = Held::hold(lab, 2).await;
    lab.session(0).await.must("insert into t values (500, 0)").await;
    let end = async {
        until("it has proposed", SOON, async || Ok(number(&client, proposals).await? > proposed)).await.unwrap();
        until("it is decided", SOON, || async {
            let status = lab.node(2).status().await?;
            Ok(status["last_committed"].as_u64() > status["applied"].as_u64().map(|at| at + 1))
        })
        .await
        .unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        client.must(&format!("select pg_terminate_backend({pid})")).await;
    };
    let (told, ()) = tokio::join!(sender.run("begin; insert into t values (501, 0); notify late, 'x'; commit"), end);
    let told = told_db(told.expect_err("it was ended").as_db_error().expect("an error of the server"));
    assert!(told.contains("08007") && told.contains("committed at "), "{told}");
    drop(held);
    end_all(lab).await;
    assert_eq!(a.payloads().await, ["late x"]);
    assert_eq!(b.payloads().await, ["late x"]);
    let heard = c.all().await;
    let expected = Heard { channel: "late".into(), payload: "x".into(), pid: worker };
    assert_eq!(heard, [expected], "once, from the worker");
}

/// What was sent before a server admits clients again has no listener there, as on any server that starts.
async fn a_server_that_was_killed(lab: &Lab) {
    let [mut a, lost, mut c] = listeners(lab, &["restart"]).await;
    let sender = lab.session(0).await;
    sender.must("notify restart, 'before'").await;
    let held = Held::hold(lab, 1).await;
    sender.must("begin; insert into t values (600, 0); notify restart, 'while it was away'; commit").await;
    drop(held);
    lab.node(1).kill9_postgres().unwrap();
    until("the server is back", SOON, || async {
        let b = lab.connect(1).await?;
        Ok(number(&b, "select count(*) from t where id = 600").await? == 1)
    })
    .await
    .unwrap();
    drop(lost.client);
    let mut b = Listener::on(lab, 1, &["restart"]).await;
    sender.must("notify restart, 'after'").await;
    end_all(lab).await;
    assert_eq!(b.payloads().await, ["restart after"]);
    for listener in [&mut a, &mut c] {
        assert_eq!(listener.payloads().await, ["restart before", "restart while it was away", "restart after"]);
    }
}

/// NOTIFY in any database of a server keeps all others from theirs until its COMMIT is over, also while that waits for
/// a standby which is away.  Who has the turn waits for it then, and behind that one the region.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_in_another_database_that_waits_for_a_standby_gives_way() {
    let lab =
        start("notify_standby", "NOTIFY in a local database that waits for a standby, and one in the cluster").await;
    let [a, _, _] = lab.sessions().await;
    a.must(TABLE).await;
    a.must("alter system set synchronous_standby_names = 'nobody'").await;
    a.must("alter system set onetrip.max_apply_delay = '1s'").await;
    a.must("select pg_reload_conf()").await;
    let local = Session::open(&format!("{} dbname=postgres", lab.node(0).conninfo())).await.expect("connect");
    let waits = tokio::spawn(async move { local.run("begin; create table seen (); notify elsewhere; commit").await });
    let query = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    until("it waits for the standby", SOON, || async { Ok(number(&a, query).await? == 1) }).await.unwrap();
    bounded("NOTIFY behind it", a.must("begin; insert into t values (1, 1); notify here; commit")).await;
    // It is committed in its own server, and its client is warned that no standby has it, or loses its connection.
    if let Err(e) = waits.await.unwrap() {
        assert!(e.code().is_none_or(|code| *code == SqlState::ADMIN_SHUTDOWN), "{}", told(&e));
    }
    let local = Session::open(&format!("{} dbname=postgres", lab.node(0).conninfo())).await.expect("connect");
    assert_eq!(number(&local, "select count(*) from pg_class where relname = 'seen'").await.unwrap(), 1);
    lab.check_equal(1).await;
}
