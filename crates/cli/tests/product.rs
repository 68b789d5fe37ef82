//! The command as it is shipped: it works, and it contains nothing that only tests need.  Everything else is tested
//! with `onetrip-lab`, the same command built with the feature `lab` (`crates/lab/tests`).

use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_node::config::NodeConfig;

const REGIONS: [&str; 3] = ["a", "b", "c"];
const SOON: Duration = Duration::from_secs(90);

/// A folder that the servers' user can reach; it is removed at the end.
fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("onetrip-product-test-").tempdir_in("/var/tmp")?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

fn onetrip(args: &[&str], data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetrip"));
    command.args(args).arg("--data").arg(data).stdin(Stdio::null());
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while !done()? {
        if Instant::now() >= deadline {
            bail!("{what}: not within {} s", SOON.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A region's node; if the test ends early, node and PostgreSQL end too.
struct Node(Child);

impl Node {
    fn start(data: &Path, log_format: &str) -> Result<Node> {
        let log = std::fs::File::create(data.join("node.log"))?;
        // The node stops when its standard input closes, so it does not outlive this test.
        let mut command = onetrip(&["start", "--until-stdin-closes", "--log-format", log_format], data);
        Ok(Node(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?))
    }

    fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGTERM)?;
        let mut status = None;
        until("the node ends", || {
            status = self.0.try_wait()?;
            Ok(status.is_some())
        })?;
        ensure!(status.is_some_and(|s| s.success()), "it ended with {status:?}");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + SOON;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

async fn connect(node: &NodeConfig) -> Result<tokio_postgres::Client> {
    let postgres = node.postgres.as_ref().context("it has a PostgreSQL")?;
    let conninfo = format!("host=127.0.0.1 port={} user=postgres dbname={}", postgres.port, postgres.database);
    let (client, connection) = tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Goal: three regions that the command makes and starts, with certificates, accept transactions and are equal.
#[tokio::test(flavor = "multi_thread")]
async fn three_regions_serve() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    std::fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
    let made = onetrip(&["init"], &data).arg("--topology").arg(&topology).output()?;
    ensure!(made.status.success(), "{}", told(&made));
    let folders: Vec<PathBuf> = REGIONS.map(|name| data.join(name)).to_vec();
    let nodes = folders
        .iter()
        .zip(["text", "json", "text"])
        .map(|(folder, log)| Node::start(folder, log))
        .collect::<Result<Vec<_>>>()?;
    until("all is well", || Ok(onetrip(&["status"], &data).output()?.status.success()))?;
    for (id, folder) in folders.iter().enumerate() {
        let client = connect(&NodeConfig::load(folder)?).await?;
        match id {
            0 => client.batch_execute("create table t (id int primary key)").await?,
            _ => until_shown(&client).await?,
        }
        client.execute("insert into t select $1", &[&(id as i32)]).await?;
    }
    let check = onetrip(&["check"], &data).output()?;
    ensure!(check.status.success() && told(&check).contains("equal"), "{}", told(&check));
    one_node_tells_of_all(&folders[1])?;
    nobody_reads(&data, &folders[0])?;
    for node in nodes {
        node.stop()?;
    }
    lines_are_json(&folders[1].join("node.log"), "b")
}

fn one_node_tells_of_all(folder: &Path) -> Result<()> {
    let said = onetrip(&["status", "--json"], folder).output()?;
    ensure!(said.status.success(), "{}", told(&said));
    let cluster: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let regions = cluster["members"].as_array().context("members")?.iter().filter(|m| m["heard"] == "now");
    let regions: Vec<_> = regions.filter_map(|m| m["region"].as_str()).collect();
    assert_eq!((regions.as_slice(), &cluster["schema"], &cluster["node"]), (&REGIONS[..], &1.into(), &2.into()));
    // It goes on until nobody reads it.
    let mut watch = onetrip(&["status", "--json", "--watch", "0.1"], folder).stdout(Stdio::piped()).spawn()?;
    let mut lines = std::io::BufReader::new(watch.stdout.take().context("its output")?).lines();
    for _ in 0..2 {
        let cluster: serde_json::Value = serde_json::from_str(&lines.next().context("a line")??)?;
        ensure!(cluster["members"].as_array().is_some_and(|m| m.len() == 3), "{cluster}");
    }
    drop(lines);
    until("the command ends", || Ok(watch.try_wait()?.is_some()))?;
    ensure!(watch.wait()?.success(), "{:?}", watch.wait()?);
    Ok(())
}

/// The exit code of a command whose output nobody reads, not even its errors.
fn unread(mut command: Command) -> Result<Option<i32>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop((child.stdout.take(), child.stderr.take()));
    Ok(child.wait()?.code())
}

/// Goal: each command does what it was asked to do and ends as it would have, whoever stops reading.
fn nobody_reads(data: &Path, folder: &Path) -> Result<()> {
    let well: [&[&str]; 8] = [
        &["status"],
        &["status", "--json"],
        &["check"],
        &["check", "--json"],
        &["token"],
        &["leases", "--none"],
        &["leader", "--to", "auto"],
        &["certificate"],
    ];
    for command in well {
        // A comparison needs several nodes.
        let of = if command[0] == "check" { data } else { folder };
        let code = unread(onetrip(command, of))?;
        ensure!(code == Some(0), "{command:?} ended with {code:?}");
    }
    let backup = data.join("backup");
    let mut command = onetrip(&["backup"], folder);
    command.arg("--to").arg(&backup);
    let code = unread(command)?;
    ensure!(code == Some(0) && backup.join("manifest.json").is_file(), "backup ended with {code:?}");
    let refused: [&[&str]; 8] = [
        &["status"],
        &["check"],
        &["start"],
        &["leave"],
        &["skip", "1"],
        &["init", "--topology", "/nonexistent"],
        &["join", "--from", "127.0.0.1:1", "--region", "x"],
        &["restore", "--backup", "/nonexistent", "--region", "x"],
    ];
    for command in refused {
        let read = onetrip(command, &data.join("nowhere")).output()?.status.code();
        ensure!(matches!(read, Some(1 | 2)), "{command:?} ended with {read:?}");
        let code = unread(onetrip(command, &data.join("nowhere")))?;
        ensure!(code == read, "{command:?} ended with {code:?}");
    }
    for command in COMMANDS {
        let mut help = Command::new(env!("CARGO_BIN_EXE_onetrip"));
        help.args([command, "--help"]);
        let code = unread(help)?;
        ensure!(code == Some(0), "{command} --help ended with {code:?}");
    }
    Ok(())
}

const COMMANDS: [&str; 13] = [
    "init",
    "start",
    "status",
    "check",
    "backup",
    "restore",
    "token",
    "join",
    "leave",
    "leader",
    "leases",
    "skip",
    "certificate",
];

fn lines_are_json(log: &Path, region: &str) -> Result<()> {
    let text = std::fs::read_to_string(log)?;
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_string())?;
        ensure!(event["message"].is_string() && event["level"].is_string(), "{line}");
        ensure!(event["span"]["region"] == region && event["timestamp"].is_string(), "{line}");
    }
    ensure!(text.lines().any(|line| line.contains("node started")), "{text}");
    Ok(())
}

/// Goal: an `init` that was killed, however far it had come, leaves nothing that is in the way of the next.
#[test]
fn an_interrupted_init_is_not_in_the_way_of_the_next() -> Result<()> {
    let folder = folder()?;
    let (data, topology) = (folder.path().join("nodes"), folder.path().join("topology.toml"));
    std::fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
    let init = || {
        let mut command = onetrip(&["init"], &data);
        command.arg("--topology").arg(&topology);
        command
    };
    let kill_when = |there: &str| -> Result<()> {
        let mut making = init().stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        until(there, || Ok(data.join(there).exists() || making.try_wait()?.is_some()))?;
        making.kill()?;
        making.wait()?;
        Ok(())
    };
    for there in ["init.unfinished", "a", "b/postgres.unfinished/PG_VERSION", "c/postgres", "a/node.toml"] {
        kill_when(there)?;
        // A node that was complete before the others is none yet.
        if data.join("a/node.toml").exists() && data.join("init.unfinished").exists() {
            let said = onetrip(&["start"], &data.join("a")).output()?;
            ensure!(said.status.code() == Some(2) && told(&said).contains("was interrupted"), "{}", told(&said));
        }
        if !data.join("init.unfinished").exists() {
            // It was quicker.
            std::fs::remove_dir_all(&data)?;
        }
    }
    let made = init().output()?;
    ensure!(made.status.success(), "{}", told(&made));
    let mut left: Vec<String> =
        std::fs::read_dir(&data)?.map(|f| Ok(f?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    left.sort_unstable();
    assert_eq!(left, REGIONS);
    // What is complete is never touched.
    let again = init().output()?;
    ensure!(!again.status.success() && told(&again).contains("nothing was changed"), "{}", told(&again));
    ensure!(REGIONS.iter().all(|name| data.join(name).join("node.toml").is_file()));
    Ok(())
}

async fn until_shown(client: &tokio_postgres::Client) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while client.query_one("select to_regclass('t') is null", &[]).await?.get(0) {
        ensure!(Instant::now() < deadline, "the table does not arrive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Goal: a node.toml that asks for what only the lab has is refused with an explanation, and nothing is started.
#[test]
fn emulated_distances_are_refused() -> Result<()> {
    for asks in ["lab = true\n", "[one_way_ms]\nb = 5.0\n"] {
        let folder = folder()?;
        let file = folder.path().join("node.toml");
        let text = format!(
            "cluster = \"test\"\nnode = 1\nregion = \"a\"\nlisten = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:1\"\n\
             preferred_leader = \"a\"\ntls = false\n{asks}[[member]]\nid = 1\nregion = \"a\"\naddress = \"127.0.0.1:1\"\n"
        );
        std::fs::write(&file, text)?;
        let said = onetrip(&["start"], folder.path()).output()?;
        let text = told(&said);
        assert_eq!(said.status.code(), Some(1), "{text}");
        for word in ["node.toml", "`lab`", "`[one_way_ms]`", "built for use", "onetrip-lab"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    Ok(())
}

/// Goal: the command does not have the lab's options.
#[test]
fn there_is_no_option_for_a_lab() -> Result<()> {
    for command in ["init", "join", "restore"] {
        let said = onetrip(&[command, "--lab"], Path::new("/nonexistent")).output()?;
        assert_eq!(said.status.code(), Some(2), "{}", told(&said));
        assert!(told(&said).contains("unexpected argument '--lab'"), "{}", told(&said));
    }
    Ok(())
}
