//! A lost cluster is restored: from a base backup and the archived log, to the log's end, to a position and to a time;
//! and from a surviving node without a majority.  A restore from something damaged or incomplete is refused, with the
//! reason.
//!
//! The test notes each transaction with the log index at which it committed, so it knows for each position what a
//! restored node must show: exactly the transactions at or below it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use onetrip_lab::{postmaster, Cluster, Node};

use crate::lab::{builder, number, onetrip, psql_in, start_prepared, text, until, Lab, Output, Session, SOON};

const CLIENTS: usize = 2;

/// A transaction that was acknowledged.
#[derive(Clone, Debug)]
struct Done {
    index: i64,
    row: String,
    client: usize,
    txn: String,
}

struct Load {
    done: Arc<Mutex<Vec<Done>>>,
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(lab: &Lab, done: Arc<Mutex<Vec<Done>>>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for region in 0..3 {
            for client in region * CLIENTS..(region + 1) * CLIENTS {
                let (conninfo, done, stop) = (lab.node(region).conninfo(), Arc::clone(&done), Arc::clone(&stop));
                clients.push(tokio::spawn(async move { write(&conninfo, client, &done, &stop).await }));
            }
        }
        Load { done, stop, clients }
    }

    async fn more(&self, count: usize) {
        let goal = self.done.lock().unwrap().len() + count;
        let enough = || async { Ok(self.done.lock().unwrap().len() >= goal) };
        until(&format!("{count} more transactions"), SOON, enough).await.unwrap();
    }

    /// Ends the clients, each between two transactions, so that none is left open.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.expect("a client");
        }
    }
}

/// Each transaction inserts a row, draws a number from a sequence, and increments its client's counter.
async fn write(conninfo: &str, client: usize, done: &Mutex<Vec<Done>>, stop: &AtomicBool) {
    let session = Session::open(conninfo).await.unwrap();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let unique = done.lock().unwrap().len();
        let row = format!("{client}-{n}-{unique}");
        session
            .must(&format!(
                "begin; insert into kept values ('{row}', {client}); insert into ticket (who) values ('{row}');
                 update counter set n = n + 1 where client = {client}"
            ))
            .await;
        let txn = text(&session, "select onetrip.current_transaction_id()").await.unwrap();
        session.must("commit").await;
        let outcome = text(&session, &format!("select onetrip.outcome('{txn}')")).await.unwrap();
        let index = outcome.strip_prefix("committed at ").and_then(|i| i.parse().ok());
        let index = index.unwrap_or_else(|| panic!("outcome of an acknowledged transaction: {outcome}"));
        done.lock().unwrap().push(Done { index, row, client, txn });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_cluster_comes_back_to_any_position() {
    let lab = start_prepared(
        "backup",
        "base backup and archive under load; all is lost; restored to the end, a position, a time",
        // As a user's servers are made, each with a system identifier of its own.
        builder().copied_servers(false),
        archive,
    )
    .await;
    let place = Place::new(&lab);
    lab.session(0)
        .await
        .must(
            "create table kept (id text primary key, client int); create table ticket (id bigserial primary key, who text);
             create table counter (client int primary key, n bigint); insert into counter select g, 0 from generate_series(0, 5) g;
             create role reader; grant select on kept to reader",
        )
        .await;
    // The first region's server archives its WAL, which no copy of it may do in the same place.
    lab.session(0).await.must("alter system set archive_mode = on").await;
    lab.session(0).await.must("alter system set archive_command = 'true'").await;
    let session = lab.session(0).await;
    assert_eq!(text(&session, "show data_checksums").await.unwrap(), "on");
    drop(session);
    tablespaces_are_named(&lab, &place).await;
    lab.session(0).await.must("alter system set max_prepared_transactions = 5").await;
    // Nor may it be where that server is at a publisher.
    let local = local_database(lab.node(0)).await;
    local.must("create subscription s connection 'port=1' publication p with (connect = false, slot_name = s)").await;
    local.must("alter subscription s enable").await;
    drop(local);
    lab.everywhere().await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let load = Load::start(&lab, Arc::clone(&done));
    load.more(60).await;
    let base = backup_by_script(&lab, &place).await;
    // All of them contain rows.
    for path in [lab.node(0).folder().join("log"), place.archive(0), base.join("log"), base.clone()] {
        nobody_else_may_read(&path);
    }
    load.more(100).await;
    load.end().await;
    // Nothing is under way anywhere while the time is taken.
    archived(&lab, &done).await;
    let middle = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let until_middle = last(&done);
    // After a restart the archive continues in a new segment.
    lab.node(0).stop().await.unwrap();
    lab.node(0).restart().await.unwrap();
    lab.wait_ready().await.unwrap();
    // Whoever prepared it ends it on this server, and on no copy of it.
    psql_in(&lab, 0, "postgres", "begin; create table own (); prepare transaction 'kept'").await;
    let load = Load::start(&lab, Arc::clone(&done));
    load.more(100).await;
    load.end().await;
    archived(&lab, &done).await;
    let all = done.lock().unwrap().clone();

    // Two of three regions are gone for good, with their disks.
    for region in [1, 2] {
        destroy(&lab, region);
    }
    let survivor = place.base("survivor");
    succeeds(&["backup", "--data", &shown(lab.node(0).folder()), "--to", &shown(&survivor)]).await;
    let running = refused(&place, &survivor, &[lab.node(0).folder()], &[]).await;
    assert!(running.contains("is running: stop it first"), "{running}");
    lab.node(0).stop().await.unwrap();
    let mut restored = place.restore(&survivor, &[lab.node(0).folder()], &[]).await;
    is_prefix(&restored, &all, last(&done)).await;
    grows(&mut restored, &all).await;
    drop(restored);
    destroy(&lab, 0);

    let logs = [place.archive(0)];
    let logs: Vec<&Path> = logs.iter().map(PathBuf::as_path).collect();
    let restored = place.restore(&base, &logs, &[]).await;
    is_prefix(&restored, &all, last(&done)).await;
    drop(restored);
    let from = position_of(&base);
    let mut later: Vec<i64> = all.iter().map(|d| d.index).filter(|i| *i >= from).collect();
    later.sort_unstable();
    let goal = later[later.len() / 3];
    let restored = place.restore(&base, &logs, &["--to-position", &goal.to_string()]).await;
    is_prefix(&restored, &all, goal).await;
    drop(restored);
    let restored = place.restore(&base, &logs, &["--to-time", &middle]).await;
    is_prefix(&restored, &all, until_middle).await;
    drop(restored);

    what_cannot_be_restored_is_refused(&place, &base, from, last(&done)).await;
    damage_is_found(&place, &base, &all).await;
}

/// Makes a base backup with `scripts/backup.sh`, as cron would.
async fn backup_by_script(lab: &Lab, place: &Place) -> PathBuf {
    let (bases, script) = (place.base("bases"), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/backup.sh"));
    fs::create_dir(&bases).unwrap();
    let mut command = tokio::process::Command::new("bash");
    command.arg(script).arg(lab.node(0).folder()).arg(&bases).arg(place.archive(0)).arg("1");
    let output = command.env("ONETRIP", crate::lab::binary()).kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "backup.sh: {said}{}", String::from_utf8_lossy(&output.stderr));
    println!("backup: {}", said.trim());
    let made: Vec<PathBuf> = fs::read_dir(&bases).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    made[0].clone()
}

/// Configures an archive for two of the nodes.
pub fn archive(cluster: &Cluster) -> anyhow::Result<()> {
    for node in &cluster.nodes()[..2] {
        let folder = cluster.data().with_file_name("archive").join(node.region());
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        let file = node.folder().join("node.toml");
        let config = fs::read_to_string(&file)?;
        fs::write(&file, format!("{config}\n[archive]\nfolder = \"{}\"\n", folder.display()))?;
    }
    Ok(())
}

/// The mode of the folder, or that of each file in it, must keep everybody but the owner out.
fn nobody_else_may_read(folder: &Path) {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    if mode(folder) == 0 {
        return;
    }
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let open: Vec<PathBuf> = files.filter(|file| mode(file) != 0).collect();
    assert!(open.is_empty(), "others may read {open:?}");
}

/// The folder beside the nodes' folders, with backups, archives and restored nodes.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(lab: &Lab) -> Place {
        Place { folder: lab.data().parent().unwrap().to_path_buf() }
    }

    fn base(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn archive(&self, region: usize) -> PathBuf {
        self.folder.join("archive").join(["a", "b"][region])
    }

    /// Restores into a new folder and starts the node; the folder is removed when the returned cluster is dropped.
    async fn restore(&self, backup: &Path, logs: &[&Path], more: &[&str]) -> Cluster {
        let folder = self.folder.join("restored");
        fs::create_dir_all(folder.join("nodes")).unwrap();
        let made = succeeds(&strings(&restore_args(&folder.join("nodes/a"), backup, logs, more))).await;
        println!("restore {more:?}: {}", made.stdout.trim());
        let cluster = Cluster::of_node(&folder, "a", &crate::lab::binary()).unwrap();
        cluster.node(0).start().unwrap();
        cluster.wait_ready().await.unwrap_or_else(|e| panic!("{e:#}"));
        cluster
    }
}

fn restore_args(data: &Path, backup: &Path, logs: &[&Path], more: &[&str]) -> Vec<String> {
    let mut args = vec!["restore".to_string(), "--lab".into(), "--region".into(), "a".into()];
    args.extend(["--backup".into(), shown(backup), "--data".into(), shown(data)]);
    for log in logs {
        args.extend(["--log".into(), shown(log)]);
    }
    args.extend(more.iter().map(|m| m.to_string()));
    args
}

fn strings(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

async fn succeeds(args: &[&str]) -> Output {
    let output = onetrip(args).await;
    assert_eq!(output.code, Some(0), "onetrip {args:?}: {}{}", output.stdout, output.stderr);
    output
}

/// Of a server with tablespaces no backup is made, and it says which they are.
async fn tablespaces_are_named(lab: &Lab, place: &Place) {
    let session = Session::open(&lab.node(0).conninfo().replace("dbname=onetrip", "dbname=postgres")).await.unwrap();
    session.must("set allow_in_place_tablespaces = on").await;
    session.must("create tablespace aside location ''").await;
    let oid = text(&session, "select oid::text from pg_tablespace where spcname = 'aside'").await.unwrap();
    let to = place.base("with_tablespace");
    let output = onetrip(&["backup", "--data", &shown(lab.node(0).folder()), "--to", &shown(&to)]).await;
    assert_ne!(output.code, Some(0), "{}", output.stdout);
    let said = &output.stderr;
    assert!(said.contains(&format!("pg_tblspc/{oid}): move what is in them")), "{said}");
    session.must("drop tablespace aside").await;
}

/// The restore must fail and leave nothing behind; returns its message.
async fn refused(place: &Place, backup: &Path, logs: &[&Path], more: &[&str]) -> String {
    let data = place.folder.join("refused");
    let output = onetrip(&strings(&restore_args(&data, backup, logs, more))).await;
    assert_ne!(output.code, Some(0), "{logs:?} {more:?} was restored: {}", output.stdout);
    let left = fs::read_dir(&data).map(|left| left.count()).unwrap_or(0);
    assert_eq!(left, 0, "a failed restore has left something");
    output.stderr
}

fn last(done: &Mutex<Vec<Done>>) -> i64 {
    done.lock().unwrap().iter().map(|d| d.index).max().unwrap()
}

fn position_of(backup: &Path) -> i64 {
    let text = fs::read_to_string(backup.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest["position"].as_i64().unwrap()
}

/// Waits until both archives contain everything that was acknowledged.
async fn archived(lab: &Lab, done: &Mutex<Vec<Done>>) {
    let goal = last(done);
    for region in [0, 1] {
        let whole = || async {
            let status = lab.node(region).status().await?;
            anyhow::ensure!(status["archive"]["problem"].is_null(), "{}", status["archive"]);
            Ok(status["archive"]["archived"].as_i64().unwrap_or(0) >= goal)
        };
        until(&format!("region {region} has archived {goal}"), SOON, whole).await.unwrap();
    }
}

/// The region's machine is lost, with its disk.
fn destroy(lab: &Lab, region: usize) {
    let node = lab.node(region);
    node.kill9().expect("kill the node");
    postmaster::stop_now(&node.postgres_data(), SOON).expect("end PostgreSQL");
    fs::remove_dir_all(node.folder()).expect("remove the folder");
}

async fn local_database(node: &Node) -> Session {
    Session::open(&node.conninfo().replace("dbname=onetrip", "dbname=postgres")).await.unwrap()
}

/// The restored node shows exactly the transactions up to `position`, each of them whole, and takes new ones.
async fn is_prefix(restored: &Cluster, all: &[Done], position: i64) {
    let session = Session::open(&restored.node(0).conninfo()).await.unwrap();
    assert_eq!(text(&session, "show archive_mode").await.unwrap(), "off");
    assert_eq!(number(&session, "select count(*) from pg_prepared_xacts").await.unwrap(), 0);
    let enabled = "select bool_or(subenabled)::text from pg_subscription";
    let local = local_database(restored.node(0)).await;
    assert_eq!(text(&local, enabled).await.unwrap(), "false");
    let rows = session.query("select id from kept", &[]).await.unwrap();
    let there: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let expected: BTreeSet<String> = all.iter().filter(|d| d.index <= position).map(|d| d.row.clone()).collect();
    let lost: Vec<&String> = expected.difference(&there).collect();
    let odd: Vec<&String> = there.difference(&expected).collect();
    assert!(
        lost.is_empty() && odd.is_empty(),
        "at {position}: {} lost {lost:?}, {} too many {odd:?}",
        lost.len(),
        odd.len()
    );
    for client in 0..6 {
        let counted = number(&session, &format!("select n from counter where client = {client}")).await.unwrap();
        let expected = all.iter().filter(|d| d.client == client && d.index <= position).count();
        assert_eq!(counted, expected as i64, "client {client} at {position}");
    }
    assert_eq!(number(&session, "select count(*) from ticket").await.unwrap(), there.len() as i64);
    // Transactions of the old cluster still have an outcome; those after `position` never happened here.
    let (before, after): (Vec<&Done>, Vec<&Done>) = all.iter().partition(|d| d.index <= position);
    for done in before.iter().rev().take(3) {
        let outcome = text(&session, &format!("select onetrip.outcome('{}')", done.txn)).await.unwrap();
        assert_eq!(outcome, format!("committed at {}", done.index));
    }
    for done in after.iter().take(1) {
        let outcome = text(&session, &format!("select onetrip.outcome('{}')", done.txn)).await.unwrap();
        // "unknown" if its PostgreSQL was started only after this position.
        assert!(["aborted", "unknown"].contains(&outcome.as_str()), "{outcome}");
    }
    assert_eq!(text(&session, "select has_table_privilege('reader', 'kept', 'select')").await.unwrap(), "t");
    session.must("insert into ticket (who) select 'after' from generate_series(1, 20)").await;
    session.must("begin; update counter set n = n + 1000; create table since (id int primary key); commit").await;
    println!("backup: restored to {position}: {} rows", there.len());
}

/// Another region joins the restored cluster.
async fn grows(restored: &mut Cluster, all: &[Done]) {
    let joined = restored.join(0, "b", &[]).await.unwrap_or_else(|e| panic!("{e:#}"));
    restored.converge().await.unwrap();
    let session = Session::open(&restored.node(joined).conninfo()).await.unwrap();
    assert_eq!(number(&session, "select count(*) from kept").await.unwrap(), all.len() as i64);
    session.must("insert into ticket (who) select 'joined' from generate_series(1, 20)").await;
}

async fn what_cannot_be_restored_is_refused(place: &Place, base: &Path, from: i64, end: i64) {
    let archive = place.archive(0);
    let logs: &[&Path] = &[&archive];
    let why = refused(place, base, logs, &["--to-position", &(from - 1).to_string()]).await;
    assert!(why.contains("lies before this backup"), "{why}");
    let why = refused(place, base, logs, &["--to-position", &(end + 1000).to_string()]).await;
    assert!(why.contains("the log ends at entry") && why.contains("is beyond it"), "{why}");
    let why = refused(place, base, logs, &["--to-time", "2100-01-01T00:00:00Z"]).await;
    assert!(why.contains("is complete until") && why.contains("leave --to-time out"), "{why}");
    let why = refused(place, base, logs, &["--to-time", "2020-01-01T00:00:00Z"]).await;
    assert!(why.contains("when this backup was finished"), "{why}");
    let why = refused(place, base, logs, &["--to-time", "half past two"]).await;
    assert!(why.contains("is not a valid time"), "{why}");
    let why = refused(place, base, &[&place.folder], &[]).await;
    assert!(why.contains("holds no archive"), "{why}");
    let unfinished = place.base("unfinished");
    fs::create_dir(&unfinished).unwrap();
    let why = refused(place, &unfinished, logs, &[]).await;
    assert!(why.contains("contains no manifest.json"), "{why}");
}

async fn damage_is_found(place: &Place, base: &Path, all: &[Done]) {
    let (archive, other) = (place.archive(0), place.archive(1));
    let mut segments: Vec<PathBuf> = fs::read_dir(&archive)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    segments.sort();
    assert!(segments.len() >= 2, "a restart begins a new segment: {segments:?}");
    let first = &segments[segments.len() - 2];
    let good = fs::read(first).unwrap();
    let mut bad = good.clone();
    // After the entries that the backup itself contains.
    let at = bad.len() - 40;
    bad[at] ^= 1;
    fs::write(first, &bad).unwrap();
    let why = refused(place, base, &[&archive], &[]).await;
    assert!(why.contains(&format!("the archived segment {} is damaged", first.display())), "{why}");
    // Another node's archive has the entries that are damaged in this one.
    let restored = place.restore(base, &[&archive, &other], &[]).await;
    is_prefix(&restored, all, all.iter().map(|d| d.index).max().unwrap()).await;
    drop(restored);
    fs::remove_file(first).unwrap();
    let why = refused(place, base, &[&archive], &[]).await;
    assert!(why.contains("begins at entry") || why.contains("lacks entries"), "{why}");
    fs::write(first, &good).unwrap();
    // PostgreSQL's own files are verified as well.
    let file = base.join("postgres/PG_VERSION");
    fs::write(&file, "51\n").unwrap();
    let why = refused(place, base, &[&archive], &[]).await;
    assert!(why.contains("the backup's PostgreSQL is damaged") && why.contains("PG_VERSION"), "{why}");
}
