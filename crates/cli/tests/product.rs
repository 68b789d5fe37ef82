//! The command as it is shipped: it works, and it contains nothing that only tests need.  Everything else is tested
//! with `onetrip-lab`, the same command built with the feature `lab` (`crates/lab/tests`).

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
    fn start(data: &Path) -> Result<Node> {
        let log = std::fs::File::create(data.join("node.log"))?;
        // The node stops when its standard input closes, so it does not outlive this test.
        let mut command = onetrip(&["start", "--until-stdin-closes"], data);
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
    let nodes = folders.iter().map(|folder| Node::start(folder)).collect::<Result<Vec<_>>>()?;
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
    for node in nodes {
        node.stop()?;
    }
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
