//! A PostgreSQL server as seen from outside: which processes serve a data folder, and how to end them.
//!
//! Processes are recognized by their working folder, which for every process of a PostgreSQL server is its data folder.
//! The number in a pid file is not enough: by now it may belong to another process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// The server that serves `data`, if one runs.
pub fn postmaster(data: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let pid = Pid::from_raw(text.lines().next()?.trim().parse().ok()?);
    serves(pid, &data.canonicalize().ok()?).then_some(pid)
}

/// Every process of the servers that serve `data`.
pub fn processes(data: &Path) -> Vec<Pid> {
    let Ok(data) = data.canonicalize() else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|pid| serves(*pid, &data))
        .collect()
}

fn serves(pid: Pid, data: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == data)
        && std::fs::read_to_string(proc.join("comm")).is_ok_and(|comm| comm.trim().starts_with("postgres"))
}

/// Ends the server of `data` at once, without a CHECKPOINT, and waits until its last process is gone.
pub fn stop_now(data: &Path, timeout: Duration) -> Result<(), String> {
    if let Some(pid) = postmaster(data) {
        // A server that was stopped with SIGSTOP must be able to receive SIGQUIT.
        let _ = kill(pid, Signal::SIGCONT);
        let _ = kill(pid, Signal::SIGQUIT);
    }
    let quiet_until = Instant::now() + timeout / 2;
    let killed_until = Instant::now() + timeout;
    loop {
        let left = processes(data);
        let now = Instant::now();
        if left.is_empty() {
            return Ok(());
        }
        if now >= killed_until {
            return Err(format!("PostgreSQL processes of {} do not end: {left:?}", data.display()));
        }
        if now >= quiet_until {
            for pid in left {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether SIGSTOP has stopped every thread of a process.
pub fn all_threads_stopped(pid: Pid) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    // "pid (name) state ...", where the name may contain anything, even parentheses.
    threads.flatten().all(|thread| {
        std::fs::read_to_string(thread.path().join("stat"))
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    })
}

/// Whether a process exists and has not ended; a zombie has ended.
pub fn alive(pid: Pid) -> bool {
    match kill(pid, None) {
        Ok(()) | Err(Errno::EPERM) => {}
        Err(_) => return false,
    }
    // "pid (name) state ...", where the name may contain anything, even parentheses.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| !rest.starts_with(['Z', 'X'])))
        .unwrap_or(false)
}
