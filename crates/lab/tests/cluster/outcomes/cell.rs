//! One COMMIT that pauses at one stop point on its way, and what its client is told in the end.

use std::path::PathBuf;
use std::time::Duration;

use onetrip_lab::Cluster;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::NoTls;

use crate::lab::{self, until, Lab, SOON};

/// The stop points along a COMMIT, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    BeforePropose,
    ProposeHalf,
    ProposeSent,
    /// In the node, from here to `VerdictSent`.
    Received,
    Proposed,
    Appended,
    Committed,
    Certified,
    VerdictSent,
    /// In the backend again.
    VerdictReceived,
    TurnWaiting,
    TurnHeld,
    Recorded,
    Published,
    BeforeDone,
}

use Point::*;

impl Point {
    pub const NODE: [Point; 6] = [Received, Proposed, Appended, Committed, Certified, VerdictSent];
    pub const BACKEND: [Point; 9] = [
        BeforePropose,
        ProposeHalf,
        ProposeSent,
        VerdictReceived,
        TurnWaiting,
        TurnHeld,
        Recorded,
        Published,
        BeforeDone,
    ];

    /// The name of the stop point in the extension or in the node.
    fn file(self) -> &'static str {
        match self {
            BeforePropose => "before-propose",
            ProposeHalf => "propose-half",
            ProposeSent => "propose-sent",
            Received => "received",
            Proposed => "proposed",
            Appended => "appended",
            Committed => "committed",
            Certified => "certified",
            VerdictSent => "told",
            VerdictReceived => "verdict-received",
            TurnWaiting => "turn-waiting",
            TurnHeld => "turn-held",
            Recorded => "committed",
            Published => "published",
            BeforeDone => "before-done",
        }
    }

    /// Those that a session passes which prepares a transaction, or commits a prepared one.
    pub const PREPARED: [Point; 4] = [VerdictReceived, ProposeSent, ProposeHalf, BeforePropose];

    pub fn in_node(self) -> bool {
        (Received..=VerdictSent).contains(&self)
    }

    /// Whether the entry cannot be in the log yet at this point.
    pub fn unproposed(self) -> bool {
        self <= ProposeHalf
    }
}

/// A stop point that is armed until this is dropped.
pub struct Stop {
    file: PathBuf,
}

impl Stop {
    pub fn at_node(lab: &Lab, region: usize, name: &str, order: &str) -> Stop {
        Stop::arm(lab.node(region).folder().join("stop").join(name), order)
    }

    pub fn at_backend(lab: &Lab, region: usize, program: &str, name: &str, order: &str) -> Stop {
        Stop::arm(lab.node(region).postgres_data().join("onetrip.stop").join(format!("{program}.{name}")), order)
    }

    fn arm(file: PathBuf, order: &str) -> Stop {
        let _ = std::fs::remove_file(Stop::hits_of(&file));
        // The file must be complete or absent, since a process may read it at any moment.
        let unfinished = file.with_extension("unfinished");
        std::fs::write(&unfinished, order).and_then(|()| std::fs::rename(&unfinished, &file)).expect("write an order");
        Stop { file }
    }

    fn hits_of(file: &std::path::Path) -> PathBuf {
        let mut name = file.as_os_str().to_owned();
        name.push(".hits");
        name.into()
    }

    /// Waits until a process has reached this stop point.
    pub async fn reached(&self) {
        let hits = Stop::hits_of(&self.file);
        until(&format!("{} is reached", self.file.display()), SOON, || async {
            Ok(std::fs::metadata(&hits).is_ok_and(|m| m.len() > 0))
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Makes the folders for stop points, without which a node looks for none.  Everybody can write to them, since the
/// servers may run as another user.
pub fn make_folders(lab: &Cluster) {
    use std::os::unix::fs::PermissionsExt;
    for node in lab.nodes() {
        for folder in [node.folder().join("stop"), node.postgres_data().join("onetrip.stop")] {
            std::fs::create_dir_all(&folder).expect("make a folder");
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).expect("open a folder");
        }
    }
}

/// What a client knows after COMMIT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Committed,
    /// An ERROR other than 08007: it is not committed.
    Aborted(String),
    /// 08007, with the transaction id.
    Unknown(String),
    /// 08007 with the position at which the transaction is committed; here with the transaction id.
    SaysCommitted(String),
    /// The connection ended, with this SQLSTATE if there was one.
    Lost(String),
}

impl Told {
    fn of(result: Result<(), tokio_postgres::Error>) -> Told {
        let Err(error) = result else { return Told::Committed };
        let Some(db) = error.as_db_error() else { return Told::Lost(String::new()) };
        let code = db.code().code().to_string();
        match code.as_str() {
            "08007" => {
                let id = super::transaction_id(db.message());
                match db.message().contains("committed at") {
                    true => Told::SaysCommitted(id),
                    false => Told::Unknown(id),
                }
            }
            _ if db.severity() == "ERROR" => Told::Aborted(code),
            _ => Told::Lost(code),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// BEGIN, INSERT, COMMIT, with the transaction id noted before COMMIT.
    Noted,
    /// The same, without noting it.
    Unnoted,
    /// A procedure that commits, under statement_timeout.
    Procedure(Duration),
    /// The transaction also writes to a table that is not replicated.
    BothTables,
    /// The session has committed another transaction before.
    Again,
    /// The transaction has the lock of a row, at the leader.
    Locking,
    /// It carries out DDL, in line behind that of another region.
    Ddl,
    /// PREPARE TRANSACTION in the place of COMMIT.
    Prepare,
    /// COMMIT PREPARED of a transaction that was prepared before.
    CommitPrepared,
}

impl How {
    /// Whether the statement only sends an entry, which the apply worker carries out here as in other regions.
    pub fn is_prepared(self) -> bool {
        matches!(self, How::Prepare | How::CommitPrepared)
    }
}

/// Prepares a row's transaction, for [`How::CommitPrepared`].
pub async fn prepare(lab: &Lab, row: u32, region: usize) {
    let insert = format!("begin; insert into t values ({row}, ''); prepare transaction '{}'", gid(row));
    lab.session(region).await.must(&insert).await;
}

/// Whether a row's session logs messages.
pub fn is_logged(row: u32) -> bool {
    row / 2 % 2 == 1
}

/// What a row's transaction is prepared as.
pub fn gid(row: u32) -> String {
    format!("cell {row}")
}

/// A COMMIT under way, paused at its point.
pub struct Held {
    pub row: u32,
    pub region: usize,
    pub point: Point,
    pub how: How,
    pub pid: i32,
    pub id: Option<String>,
    pub stop: Option<Stop>,
    /// Whether the session went on after it was told that its row is committed.
    pub alive: bool,
    /// The error that the client got, in full.
    pub message: String,
    connection: AbortHandle,
    told: JoinHandle<(Told, bool, String)>,
}

impl Held {
    /// Starts a COMMIT and waits until it is paused at `point`.
    pub async fn start(lab: &Lab, row: u32, region: usize, point: Point, how: How, commit_timeout: &str) -> Held {
        let program = format!("cell{row}");
        let conninfo = format!("{} application_name={program}", lab.node(region).conninfo());
        let (client, connection) = tokio_postgres::connect(&conninfo, NoTls)
            .await
            .unwrap_or_else(|e| panic!("connect to region {region} for {point:?}: {e}"));
        let connection = tokio::spawn(connection).abort_handle();
        let set = format!("set onetrip.commit_timeout = '{commit_timeout}'");
        client.batch_execute(&set).await.unwrap_or_else(|e| panic!("{set}: {e}"));
        // What the client is told must not depend on what is logged.
        let set = format!("set log_min_messages = {}", if is_logged(row) { "log" } else { "panic" });
        client.batch_execute(&set).await.unwrap_or_else(|e| panic!("{set}: {e}"));
        let pid = client.query_one("select pg_backend_pid()", &[]).await.expect("a pid").get(0);
        let mut id = None;
        let commit = match how {
            How::Procedure(timeout) => {
                let set = format!("set statement_timeout = {}", timeout.as_millis());
                client.batch_execute(&set).await.unwrap_or_else(|e| panic!("{set}: {e}"));
                format!("call write_and_commit({row})")
            }
            How::CommitPrepared => format!("commit prepared '{}'", gid(row)),
            _ => {
                let mut insert = format!("begin; insert into t values ({row}, '')");
                match how {
                    How::BothTables => insert += &format!("; insert into here values ({row})"),
                    How::Again => {
                        let earlier = "update counted set n = n + 1";
                        client.batch_execute(earlier).await.unwrap_or_else(|e| panic!("{earlier}: {e}"));
                    }
                    How::Locking => {
                        insert.insert_str(0, "set onetrip.concurrency = locking; ");
                        insert += "; update counted set n = n + 1";
                    }
                    How::Ddl => {
                        lab.session((region + 1) % 3).await.must(&format!("create table elsewhere_{row} ()")).await;
                        insert += &format!("; create table made_{row} ()");
                    }
                    _ => {}
                }
                client.batch_execute(&insert).await.unwrap_or_else(|e| panic!("{insert}: {e}"));
                if how == How::Noted {
                    let ask = "select onetrip.current_transaction_id()";
                    id = Some(client.query_one(ask, &[]).await.unwrap_or_else(|e| panic!("{ask}: {e}")).get(0));
                }
                match how {
                    How::Prepare => format!("prepare transaction '{}'", gid(row)),
                    _ => "commit".to_string(),
                }
            }
        };
        let stop = match point.in_node() {
            true => Stop::at_node(lab, region, point.file(), "wait"),
            false => Stop::at_backend(lab, region, &program, point.file(), "wait"),
        };
        let told = tokio::spawn(async move {
            let told = match tokio::time::timeout(Duration::from_secs(60), client.batch_execute(&commit)).await {
                Ok(result) => result,
                Err(_) => panic!("COMMIT of row {row}, held at {point:?}, does not end"),
            };
            let message = told.as_ref().err().map(lab::told).unwrap_or_default();
            let told = Told::of(told);
            let alive =
                matches!(told, Told::SaysCommitted(_)) && !how.is_prepared() && sees_its_row(&client, row).await;
            // The session ends after it was told, since BeforeDone is reached only after that.
            drop(client);
            (told, alive, message)
        });
        stop.reached().await;
        Held {
            row,
            region,
            point,
            how,
            pid,
            id,
            stop: Some(stop),
            alive: false,
            message: String::new(),
            connection,
            told,
        }
    }

    /// Makes the client disappear without a word to the server.
    pub fn kill_client(&self) {
        self.connection.abort();
    }

    pub fn release(&mut self) {
        self.stop = None;
    }

    /// Waits until the client is told something, and returns it.
    pub async fn told(&mut self) -> Told {
        match (&mut self.told).await {
            Ok((told, alive, message)) => {
                self.alive = alive;
                self.message = message;
                told
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// A session that was told that its row is committed must see the row, unless it is ended.  Returns whether it goes on.
async fn sees_its_row(client: &tokio_postgres::Client, row: u32) -> bool {
    let Ok(found) = client.query_one("select count(*) from t where id = $1", &[&(row as i32)]).await else {
        return false;
    };
    assert_eq!(found.get::<_, i64>(0), 1, "the session that committed row {row} does not see it");
    // A session that a signal is to end ends within this statement.
    client.batch_execute("select pg_sleep(1)").await.is_ok()
}
