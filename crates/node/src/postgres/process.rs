//! Processes of a PostgreSQL server, as the kernel shows them.
//!
//! Every process of a server has its data folder as its working folder.  That distinguishes it from another process
//! that has been given the same process id since.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

const ENDS_WITHIN: Duration = Duration::from_secs(10);
const PID_FILE: &str = "postmaster.pid";

/// What `postmaster.pid` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PidFile {
    pub pid: Pid,
    /// "starting", "ready", "stopping", "standby"; empty early in a start.
    pub status: String,
}

pub(super) fn read_pid_file(data: &Path) -> Option<PidFile> {
    let text = std::fs::read_to_string(data.join(PID_FILE)).ok()?;
    parse_pid_file(&text)
}

/// Line 1 is the process id, line 8 the status (PostgreSQL 15, src/include/utils/pidfile.h).
pub(super) fn parse_pid_file(text: &str) -> Option<PidFile> {
    let mut lines = text.lines();
    let pid: i32 = lines.next()?.trim().parse().ok()?;
    // It is negative if a stand-alone backend has the folder locked.
    let pid = Pid::from_raw(pid.checked_abs().filter(|p| *p > 0)?);
    let status = lines.nth(6).unwrap_or("").trim().to_string();
    Some(PidFile { pid, status })
}

/// Every process of a server of `data`, including orphans of a server that has died.
pub fn processes_of(data: &Path) -> Vec<Pid> {
    processes().filter(|pid| works_in(*pid, data)).collect()
}

/// The same of a server that is to be stopped: waits until the last processes of one that says it has stopped are gone.
/// `pg_ctl stop` returns when the postmaster has removed its file, a moment before it ends.
pub fn processes_left(data: &Path) -> Vec<Pid> {
    let deadline = Instant::now() + ENDS_WITHIN;
    loop {
        let left = processes_of(data);
        if left.is_empty() || data.join(PID_FILE).exists() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether `pid` is a live postgres process of the server of `data`.
pub(super) fn works_in(pid: Pid, data: &Path) -> bool {
    data.canonicalize().is_ok_and(|data| folder_of(pid).is_ok_and(|folder| folder == data))
        && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim().starts_with("postgres"))
}

/// The folder in which a process works.  A zombie no longer has one.
pub(crate) fn folder_of(pid: Pid) -> std::io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd"))
}

/// Ends what an interrupted [`super::bootstrap`] has left running below a node's folder, and waits until it is gone.
pub fn end_bootstrap_below(node_folder: &Path) {
    let Ok(folder) = node_folder.canonicalize() else { return };
    let belongs = |pid: &Pid| {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&folder))
            && std::fs::read_to_string(proc.join("comm"))
                .is_ok_and(|comm| comm.starts_with("postgres") || comm.starts_with("initdb"))
    };
    let deadline = Instant::now() + ENDS_WITHIN;
    loop {
        let left: Vec<Pid> = processes().filter(belongs).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in left {
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
}

pub(super) fn exists(pid: Pid) -> bool {
    matches!(kill(pid, None), Ok(()) | Err(Errno::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_files_are_read_whole_half_written_and_broken() {
        let whole = "4711\n/data\n1700000000\n5433\n/tmp\n127.0.0.1\n  123 456\nready   \n";
        assert_eq!(parse_pid_file(whole).unwrap(), PidFile { pid: Pid::from_raw(4711), status: "ready".into() });
        assert_eq!(parse_pid_file("4711\n/data\n").unwrap().status, "");
        assert_eq!(parse_pid_file("-4711\n").unwrap().pid, Pid::from_raw(4711));
        for broken in ["", "\n", "x\n", "0\n", "99999999999\n", "-2147483648\n"] {
            assert_eq!(parse_pid_file(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_server_that_has_removed_its_file_is_waited_for() {
        let data = tempfile::tempdir().unwrap();
        let program = data.path().join("postgres");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut server = std::process::Command::new(&program).arg("60").current_dir(data.path()).spawn().unwrap();
        let pid_file = data.path().join(PID_FILE);
        std::fs::write(&pid_file, "").unwrap();
        let deadline = Instant::now() + ENDS_WITHIN;
        while processes_of(data.path()).is_empty() {
            assert!(Instant::now() < deadline, "it does not show");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(processes_left(data.path()).len(), 1, "it runs");
        std::fs::remove_file(&pid_file).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            server.kill().and_then(|()| server.wait()).unwrap();
        });
        assert_eq!(processes_left(data.path()), []);
        ends.join().unwrap();
    }

    #[test]
    fn this_test_is_no_postgres() {
        let here = std::env::current_dir().unwrap();
        assert!(!works_in(Pid::this(), &here));
        assert!(exists(Pid::this()));
    }
}
