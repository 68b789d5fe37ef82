//! The demo's folder: used by one demo at a time, made anew for each run, and never a folder of something else.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use onetrip_lab::postmaster;

/// This file says that the contents of the folder may be removed; a lock on it says that a demo is running.
const MARK: &str = "onetrip-demo";

pub struct DemoFolder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl DemoFolder {
    /// Takes an existing folder for this run: ends what an earlier demo left running there, and removes its nodes.
    pub fn take(path: &Path) -> Result<Self> {
        let mark = path.join(MARK);
        let entries = fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        if !mark.exists() && entries.count() > 0 {
            bail!("{} is not empty and is not a demo's folder: choose another with --data", path.display());
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&mark)
            .with_context(|| format!("cannot write in {}: does it belong to another user?", path.display()))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err(_) => {
                bail!("another demo is running in {}: end it, or choose another folder with --data", path.display())
            }
        };
        let folder = Self { path: path.to_path_buf(), _lock: lock };
        folder.wait_for_init()?;
        folder.end_leftovers()?;
        folder.remove_nodes()?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new, empty folder for one measurement.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join("pgbench").join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    pub fn remove_nodes(&self) -> Result<()> {
        for name in ["nodes", "pgbench"] {
            let path = self.path.join(name);
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// If a demo was killed while `onetrip init` made its nodes, that goes on until they are made.
    fn wait_for_init(&self) -> Result<()> {
        let Ok(file) = File::open(self.path.join("nodes/init.unfinished")) else { return Ok(()) };
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(_) => Ok(()),
            Err((_, e)) => Err(e).context("wait for `onetrip init` of an earlier demo"),
        }
    }

    fn end_leftovers(&self) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.path.join("nodes")) else { return Ok(()) };
        let folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        // Nodes come first, because they would restart their PostgreSQL.
        for folder in &folders {
            if let Some(pid) = node_of(folder) {
                let _ = kill(pid, Signal::SIGKILL);
                let mut tries = 0;
                while node_of(folder).is_some() && tries < 500 {
                    std::thread::sleep(Duration::from_millis(10));
                    tries += 1;
                }
            }
        }
        for folder in &folders {
            for data in ["postgres", "postgres.unfinished"] {
                postmaster::stop_now(&folder.join(data), Duration::from_secs(20)).map_err(anyhow::Error::msg)?;
            }
        }
        Ok(())
    }
}

/// The running process of the node of `folder`, recognized by its command line.
fn node_of(folder: &Path) -> Option<Pid> {
    let text = fs::read_to_string(folder.join("node.pid")).ok()?;
    let pid = Pid::from_raw(text.trim().parse().ok().filter(|pid| *pid > 1)?);
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
    let named = folder.as_os_str().as_encoded_bytes();
    (postmaster::alive(pid) && words.contains(&&b"start"[..]) && words.contains(&named)).then_some(pid)
}
