//! A node that was started from a terminal, when that is closed.

use crate::{folder, until};
use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{chown, geteuid, Pid, User};
use std::path::Path;
use std::process::{Command, Stdio};

/// Ends the node, if the test ends early.
struct Started(Pid);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGTERM);
    }
}

impl Started {
    /// What has ended, and nobody has waited for yet, has no command line.
    fn has_ended(&self) -> bool {
        std::fs::read(format!("/proc/{}/cmdline", self.0)).map_or(true, |line| line.is_empty())
    }
}

/// Starts a witness on a terminal of its own, and closes that once it runs.
fn closed(folder: &Path, before: &str) -> Result<Started> {
    let ports = onetrip_client::ports::free_ports(2)?;
    let toml = format!(
        "cluster = \"test\"\nnode = 1\nregion = \"a\"\nlisten = \"127.0.0.1:{0}\"\nhttp = \"127.0.0.1:{1}\"\ntls = false\n\
         [[member]]\nid = 1\nregion = \"a\"\naddress = \"127.0.0.1:{0}\"\nrole = \"witness\"\n\
         [[member]]\nid = 2\nregion = \"b\"\naddress = \"127.0.0.1:1\"\n",
        ports[0], ports[1]
    );
    std::fs::write(folder.join("node.toml"), toml)?;
    if geteuid().is_root() {
        let user = User::from_name("postgres")?.context("postgres")?;
        for path in [folder, &folder.join("node.toml")] {
            chown(path, Some(user.uid), Some(user.gid))?;
        }
    }
    let (shown, log, pid) = (folder.display(), folder.join("said"), folder.join("pid"));
    let start = format!(
        "echo $$ > {shown}/pid; exec {before} {} start --data {shown} > {shown}/said 2>&1",
        env!("CARGO_BIN_EXE_onetrip")
    );
    // Its standard input stays open.
    let mut terminal = Command::new("script");
    let terminal = terminal.args(["-q", "-c", &start, "/dev/null"]).env("SHELL", "/bin/sh");
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("script(1)")?;
    let said = |text: &str| Ok(std::fs::read_to_string(&log).unwrap_or_default().contains(text));
    let runs = until("it runs", || said("node started"));
    let pid = std::fs::read_to_string(pid).unwrap_or_default().trim().parse();
    terminal.kill()?;
    terminal.wait()?;
    let started = Started(Pid::from_raw(pid.context("its process id")?));
    runs?;
    Ok(started)
}

/// Goal: a closed terminal stops a node, unless it was told to outlive it, as `nohup` tells it: that one reads its
/// settings again, and stops when it is told to.
#[test]
fn a_closed_terminal_stops_a_node_that_was_not_told_to_stay() -> Result<()> {
    let [stops, stays] = [folder()?, folder()?];
    // Whoever runs this may ignore the signal.
    let node = closed(stops.path(), "env --default-signal=HUP")?;
    until("it stops", || Ok(node.has_ended()))?;
    let node = closed(stays.path(), "nohup")?;
    let log = || std::fs::read_to_string(stays.path().join("said"));
    until(
        "it reads its settings again, or ends",
        || Ok(log()?.contains("node.toml is as it was") || node.has_ended()),
    )?;
    ensure!(!node.has_ended(), "{}", log()?);
    kill(node.0, Signal::SIGTERM)?;
    until("it stops", || Ok(node.has_ended()))
}
