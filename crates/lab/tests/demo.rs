//! The demo from start to end: it prints its table, and leaves nothing running however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_lab::postmaster;

const FLAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies/flat.toml");
const REGIONS: [&str; 3] = ["a", "b", "c"];

/// A folder that the demo's user can reach; removed at the end.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new().prefix("onetrip-demo-test-").tempdir_in("/var/tmp")?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        Ok(Self(folder))
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("demo")
    }
}

fn demo(data: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.args(["--topology", FLAT, "--clients", "4", "--data"]).arg(data).args(args);
    command
}

/// The processes of the demo's nodes and servers that still run.
fn left_running(data: &Path) -> Vec<Pid> {
    let mut left = Vec::new();
    for region in REGIONS {
        let folder = data.join("nodes").join(region);
        left.extend(postmaster::processes(&folder.join("postgres")));
        let pid = std::fs::read_to_string(folder.join("node.pid")).ok().and_then(|text| text.trim().parse().ok());
        left.extend(pid.map(Pid::from_raw).filter(|pid| postmaster::alive(*pid)));
    }
    left
}

fn wait(what: &str, seconds: u64, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !done()? {
        if Instant::now() >= deadline {
            bail!("{what}: not within {seconds} s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn wait_end(child: &mut Child) -> Result<Option<i32>> {
    let mut code = None;
    wait("the demo ends", 60, || {
        Ok(match child.try_wait()? {
            Some(status) => {
                code = status.code();
                true
            }
            None => false,
        })
    })?;
    Ok(code)
}

/// Starts a demo and reads its output until the psql lines are there.
fn started(data: &Path) -> Result<Child> {
    let mut child = demo(data, &["--seconds", "1"]).stdout(Stdio::piped()).spawn()?;
    let Some(stdout) = child.stdout.take() else { bail!("its output is piped") };
    for line in BufReader::new(stdout).lines() {
        if line?.contains("Ctrl-C ends it") {
            return Ok(child);
        }
    }
    bail!("the demo ended early: {:?}", child.wait()?)
}

/// Goal: with --once the demo ends by itself, with a row for each region and set of indexes, and leaves nothing
/// running.
#[test]
fn once_prints_a_row_for_each_region_and_ends() -> Result<()> {
    let folder = Folder::new()?;
    let json = folder.0.path().join("table.json");
    let output = demo(&folder.data(), &["--once", "--seconds", "2", "--json"]).arg(&json).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table: serde_json::Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let rows = table["rows"].as_array().cloned().unwrap_or_default();
    let shown: Vec<_> = rows.iter().map(|r| (r["connected_to"].as_str(), r["secondary_index"].as_bool())).collect();
    let expected: Vec<_> = [false, true].iter().flat_map(|i| REGIONS.map(|r| (Some(r), Some(*i)))).collect();
    assert_eq!(shown, expected);
    for row in &rows {
        assert!(row["measured"]["transactions"].as_u64() > Some(10), "{row}");
        assert!(row["measured"]["mean_ms"].as_f64() > Some(0.0), "{row}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("connected to") && text.contains("+ one secondary"), "{text}");
    assert_eq!(left_running(&folder.data()), []);
    Ok(())
}

/// Goal: Ctrl-C ends everything, even if a node and another node's PostgreSQL were killed before.
#[test]
fn ctrl_c_leaves_nothing_though_parts_were_killed() -> Result<()> {
    let folder = Folder::new()?;
    let data = folder.data();
    let mut child = started(&data)?;
    assert!(left_running(&data).len() >= 6, "three nodes and three servers run");
    let node: i32 = std::fs::read_to_string(data.join("nodes/b/node.pid"))?.trim().parse()?;
    kill(Pid::from_raw(node), Signal::SIGKILL)?;
    if let Some(server) = postmaster::postmaster(&data.join("nodes/c/postgres")) {
        kill(server, Signal::SIGKILL)?;
    }
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
    wait_end(&mut child)?;
    assert_eq!(left_running(&data), []);
    Ok(())
}

/// Goal: a demo that is itself killed takes its nodes with it, and the next one in that folder runs.
#[test]
fn a_killed_demo_takes_its_nodes_with_it() -> Result<()> {
    let folder = Folder::new()?;
    let data = folder.data();
    let mut child = started(&data)?;
    let second = demo(&data, &["--once"]).output()?;
    let refused = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && refused.contains("another demo is running"), "{refused}");
    child.kill()?;
    child.wait()?;
    wait("its nodes end", 60, || Ok(left_running(&data).is_empty()))?;
    let again = demo(&data, &["--once", "--seconds", "1"]).output()?;
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(left_running(&data), []);
    Ok(())
}
