//! Where a node's PostgreSQL lives and how it is configured.
//!
//! `postgres/onetrip.conf` is written anew at each start.  `postgres/postgresql.conf` includes it and belongs to the
//! user, who may add settings below that line.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use super::settings::{each_setting, NODE_SETTINGS, SETTINGS_FILES};
use super::{file_error, may_be_there, PostgresError};
use crate::config::{KeySeed, NodeConfig, CHECKPOINT_FILE};
use crate::disk::CheckpointFile;
use crate::space::Room;
use crate::tls;
use onetrip_core::{checkpoint, Level};

/// How long the path of a Unix socket may be, without its final zero byte (`sun_path` of Linux).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A log larger than this is set aside at the next start.
const LOG_BYTES_MAX: u64 = 64 << 20;
const OLDEST_VERSION: u32 = 15;
/// What a line of the owner's does not change.  The extension's library reads its own in [`NODE_SETTINGS`].
const DECIDED: [&str; 13] = [
    "data_directory",
    "listen_addresses",
    "onetrip.agent_socket",
    "onetrip.database",
    "onetrip.format_level",
    "onetrip.key_seed",
    "onetrip.node_id",
    "onetrip.read_only",
    "onetrip.region",
    "onetrip.sequence_slot",
    "onetrip.sequence_stride",
    "onetrip.trace_every",
    "port",
];

/// Below these a server lacks connections for copies, room for its position in the log, or workers that always run.
const AT_LEAST: [(&str, u32); 4] = [
    ("max_wal_senders", 10),
    ("max_replication_slots", 10),
    // Only PostgreSQL 18 and later know it.
    ("max_active_replication_origins", 10),
    ("max_worker_processes", 12),
];

#[derive(Debug, Clone)]
pub struct Server {
    /// The node's folder, which contains the sockets, the log and the data folder.
    pub node_folder: PathBuf,
    pub bin_dir: PathBuf,
    pub listen: String,
    pub port: u16,
    pub database: String,
    pub node_id: u32,
    pub region: String,
    pub sequence_slot: u32,
    pub sequence_stride: u32,
    /// Set on a replica.
    pub read_only: bool,
    /// While there is no majority.
    pub looks_read_only: Arc<Mutex<bool>>,
    /// The server offers TLS to its clients, with the node's certificate.
    pub tls: bool,
    /// The format level with which the cluster began.
    pub level: Level,
    pub key_seed: KeySeed,
    /// Of how many COMMITs one is traced.
    pub trace_every: Option<u32>,
}

impl Server {
    pub fn of(config: &NodeConfig) -> Result<Self, PostgresError> {
        let postgres = config.postgres.as_ref().ok_or_else(|| {
            PostgresError::Refused("node.toml has no [postgres]: this node runs without one".to_string())
        })?;
        Ok(Self {
            node_folder: config.data_dir.clone(),
            bin_dir: postgres.bin_dir.clone(),
            listen: postgres.listen.clone(),
            port: postgres.port,
            database: postgres.database.clone(),
            node_id: config.node.0,
            region: config.region.to_string(),
            sequence_slot: config.sequence_slot,
            sequence_stride: config.sequence_stride,
            read_only: postgres.read_only,
            looks_read_only: Arc::default(),
            tls: config.tls,
            level: config.level,
            key_seed: config.key_seed,
            trace_every: config.traces.as_ref().map(|traces| traces.every()),
        })
    }

    /// PostgreSQL's data folder.
    pub fn data(&self) -> PathBuf {
        self.node_folder.join("postgres")
    }

    /// Where the data folder is until it is complete.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.node_folder.join("postgres.unfinished")
    }

    pub fn log(&self) -> PathBuf {
        self.node_folder.join("postgres.log")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.node_folder.join("agent.sock")
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// For a program that ends by itself.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = in_english(&self.program(name));
        // PostgreSQL's programs look up their working folder first, and that of the caller may be closed to this user.
        command.current_dir(&self.node_folder);
        command
    }

    /// For the server itself, which speaks the language that it is set up for.
    pub(super) fn command_of_server(&self) -> Command {
        let mut command = without_pg_settings(&self.program("postgres"));
        command.current_dir(&self.node_folder);
        command
    }

    /// Finds what can be known to be wrong before a start.
    pub fn check(&self) -> Result<(), PostgresError> {
        for socket in [self.node_folder.join(format!(".s.PGSQL.{}", self.port)), self.agent_socket()] {
            let bytes = socket.as_os_str().len();
            if bytes > SOCKET_PATH_BYTES_MAX {
                return Err(PostgresError::Refused(format!(
                    "the path {} has {bytes} bytes, but a socket's path may have only {SOCKET_PATH_BYTES_MAX}: use a data folder with a shorter path",
                    socket.display()
                )));
            }
        }
        let installed = installed_version(&self.bin_dir)?;
        if installed < OLDEST_VERSION {
            return Err(PostgresError::Refused(format!(
                "{} is PostgreSQL {installed}; Onetrip needs {OLDEST_VERSION} or later",
                self.bin_dir.display()
            )));
        }
        // Where it is damaged or cannot be read, the server says what is wrong.
        let text = fs::read_to_string(self.data().join("PG_VERSION")).unwrap_or_default();
        match text.trim().parse::<u32>() {
            Ok(made_by) if made_by != installed => Err(PostgresError::Refused(format!(
                "{} was made by PostgreSQL {made_by}, but {} is PostgreSQL {installed}: set bin_dir in node.toml to the right one",
                self.data().display(),
                self.bin_dir.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether there is a data folder, or may be one that cannot be looked at.
    pub(super) fn may_be_there(&self) -> bool {
        may_be_there(&self.data().join("PG_VERSION"))
    }

    /// Returns whether they are others than before.
    pub fn write_settings(&self, data: &Path) -> Result<bool, PostgresError> {
        let path = data.join(NODE_SETTINGS);
        // Until they are written, so that nobody else's, which are older, take their place.
        let looks_read_only = self.looks_read_only();
        let settings = self.settings(installed_version(&self.bin_dir)?, self.level_in_force(), *looks_read_only);
        if fs::read_to_string(&path).is_ok_and(|present| present == settings) {
            return Ok(false);
        }
        // Renamed into its place, since a running server may read it at any time.
        let new = data.join("onetrip.conf.new");
        fs::write(&new, settings).map_err(file_error("write", &new))?;
        fs::rename(&new, &path).map_err(file_error("write", &path))?;
        Ok(true)
    }

    pub(super) fn looks_read_only(&self) -> MutexGuard<'_, bool> {
        // It is whole after each change, whatever has panicked elsewhere.
        self.looks_read_only.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As the node's checkpoint has it, which is not too high: the level never goes down.
    fn level_in_force(&self) -> Level {
        let read = || -> crate::Result<Option<Level>> {
            let file = CheckpointFile::new(self.node_folder.join(CHECKPOINT_FILE));
            let Some(raw) = file.read()? else { return Ok(None) };
            Ok(Some(checkpoint::peek(&raw).map_err(|e| file.corrupted(&e))?.members.level))
        };
        // If it cannot be read the node says so, and does not run.
        read().ok().flatten().unwrap_or_default().max(self.level)
    }

    fn settings(&self, version: u32, level: Level, looks_read_only: bool) -> String {
        let text = quoted;
        let path = |value: &Path| text(&value.display().to_string());
        let mut settings = vec![
            ("listen_addresses", text(&self.listen)),
            ("port", self.port.to_string()),
            ("unix_socket_directories", path(&self.node_folder)),
            ("shared_preload_libraries", text("onetrip")),
            ("onetrip.database", text(&self.database)),
            ("onetrip.node_id", self.node_id.to_string()),
            ("onetrip.region", text(&self.region)),
            ("onetrip.agent_socket", path(&self.agent_socket())),
            ("onetrip.sequence_slot", self.sequence_slot.to_string()),
            ("onetrip.sequence_stride", self.sequence_stride.to_string()),
            ("onetrip.read_only", if self.read_only { "on" } else { "off" }.to_string()),
            ("wal_level", "replica".to_string()),
            ("max_connections", "200".to_string()),
            ("max_replication_slots", "10".to_string()),
            // PostgreSQL's 8, and those of this extension that always run.
            ("max_worker_processes", "12".to_string()),
            ("max_prepared_transactions", "0".to_string()),
            ("shared_buffers", text("128MB")),
            ("log_line_prefix", text("%m [%p] %q%u@%d ")),
        ];
        if self.tls {
            let file = |name: &str| path(&self.node_folder.join(tls::FOLDER).join(name));
            settings.push(("ssl", "on".to_string()));
            settings.push(("ssl_cert_file", file(tls::NODE_CERTIFICATE)));
            settings.push(("ssl_key_file", file(tls::NODE_KEY)));
        }
        if self.read_only || looks_read_only {
            // Drivers that look for a server that can be written ask for this (`target_session_attrs`).
            settings.push(("default_transaction_read_only", "on".to_string()));
        }
        if level > Level(0) {
            // A library that is older than levels does not know the setting.
            settings.push(("onetrip.format_level", level.to_string()));
        }
        if !self.key_seed.is_none() {
            settings.push(("onetrip.key_seed", text(&String::from(self.key_seed))));
        }
        if let Some(every) = self.trace_every {
            settings.push(("onetrip.trace_every", every.to_string()));
        }
        if version < 17 {
            // Every commit that is not flushed wakes the walwriter as long as a whole page is not flushed, and all but
            // one of them for nothing: so it is to flush each page.  From 17 on it is woken only when it has something
            // to flush by this setting.
            settings.push(("wal_writer_flush_after", "0".to_string()));
        }
        let mut lines = String::from(
            "# Written by onetrip at each start; changes here are lost.  Put your own settings into postgresql.conf,\n\
             # below the line that includes this file.\n",
        );
        for (name, value) in settings {
            lines += &format!("{name} = {value}\n");
        }
        lines
    }

    /// Shows what a setting is according to the files in `data`.
    pub(super) fn command_of_setting(&self, data: &Path, name: &str) -> Command {
        let mut command = self.command("postgres");
        command.args(["-C", name, "-D"]).arg(data).arg("-c").arg(format!("data_directory={}", data.display()));
        command
    }

    /// `None`: this PostgreSQL does not know the setting, or the files cannot be read, which the server says itself.
    fn in_files(&self, data: &Path, name: &str) -> Option<String> {
        let output = self.command_of_setting(data, name).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }

    /// What counts over the files in `data`, as names and values, and is to be given to the server when it is started;
    /// and what its owner is to be told of the files.
    pub(super) fn over_files(&self, data: &Path) -> (Vec<(&'static str, String)>, Vec<String>) {
        let mut settings = vec![
            ("data_directory", data.display().to_string()),
            ("listen_addresses", self.listen.clone()),
            ("port", self.port.to_string()),
        ];
        let for_nothing = |line| format!("{line}, has no effect: the node decides that setting; take the line out");
        let mut warnings: Vec<String> = lines_for_nothing(data).into_iter().map(for_nothing).collect();
        let folder = self.node_folder.display().to_string();
        let is_node_folder = |name: &str| name.trim().trim_matches('"') == folder;
        let with = |name, ours: &str, is_ours: &dyn Fn(&str) -> bool| {
            Some((name, with_ours(&self.in_files(data, name)?, ours, is_ours)?))
        };
        settings.extend(with("shared_preload_libraries", "onetrip", &is_our_library));
        settings.extend(with("unix_socket_directories", &folder, &is_node_folder));
        let known = AT_LEAST.iter().map(|(name, _)| *name).chain(["wal_level"]);
        for name in known {
            let Some(value) = self.in_files(data, name) else { continue };
            let Some(instead) = instead_of(name, &value) else { continue };
            warnings.push(format!(
                "PostgreSQL's settings have {name} = {value}, with which it cannot serve: it is started with {instead}"
            ));
            settings.push((name, instead));
        }
        (settings, warnings)
    }

    pub(super) fn log_end(&self) -> u64 {
        fs::metadata(self.log()).map_or(0, |m| m.len())
    }

    /// Sets the log aside if it has grown large.  Returns where the present log ends.
    pub(super) fn rotate_log(&self) -> u64 {
        let bytes = self.log_end();
        if bytes > LOG_BYTES_MAX && fs::rename(self.log(), self.node_folder.join("postgres.log.1")).is_ok() {
            return 0;
        }
        bytes
    }

    /// To be called while the server runs: once its log is large, moves what is in it to `postgres.log.1`.  It takes as
    /// long as the disk takes.
    pub(super) fn trim_log(&self) -> io::Result<()> {
        self.trim_log_above(LOG_BYTES_MAX, &Room::of)
    }

    /// The server has the file open for appending, so it is copied and then emptied; a line that is written between the
    /// last look and that is lost.  If the disk has no room for the copy beside the node's own log, which is needed
    /// more, all of it is lost.
    fn trim_log_above(&self, bytes_max: u64, room: &dyn Fn(&Path) -> io::Result<Room>) -> io::Result<()> {
        let bytes = self.log_end();
        if bytes <= bytes_max {
            return Ok(());
        }
        let log = fs::OpenOptions::new().read(true).write(true).open(self.log())?;
        if room(&self.node_folder)?.beside_log() < bytes {
            tracing::warn!(
                "{} is emptied: it has {} MiB, and its disk has no room for a copy; make room there",
                self.log().display(),
                bytes >> 20
            );
            return log.set_len(0);
        }
        let copy = self.node_folder.join("postgres.log.1.unfinished");
        let copied = copy_all(&log, &copy).and_then(|()| fs::rename(&copy, self.node_folder.join("postgres.log.1")));
        if copied.is_err() {
            // It may be what fills the disk.
            let _ = fs::remove_file(&copy);
        }
        copied?;
        log.set_len(0)
    }

    /// Why the server ended, from what it logged after the offset `from`: the last message that tells of a fatal error,
    /// or else the last line if that is no message of the server itself, or says where these go (logging_collector).
    pub(super) fn reason_in_log(&self, from: u64) -> Option<String> {
        let mut file = fs::File::open(self.log()).ok()?;
        let end = file.seek(SeekFrom::End(0)).ok()?;
        // It has been emptied since.
        let from = if from > end { 0 } else { from };
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(64 << 10)))).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        reason(&String::from_utf8_lossy(&bytes))
    }
}

fn copy_all(mut log: &fs::File, to: &Path) -> io::Result<()> {
    let mut copied = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(to)?;
    // Until there is nothing more.
    while io::copy(&mut log, &mut copied)? > 0 {}
    Ok(())
}

/// A list with what the node needs in it; `None`: it has that already.
fn with_ours(list: &str, ours: &str, is_ours: &dyn Fn(&str) -> bool) -> Option<String> {
    if list.split(',').any(is_ours) {
        return None;
    }
    let others = if list.is_empty() { String::new() } else { format!(", {list}") };
    Some(format!("{ours}{others}"))
}

/// The lines of the owner's files that set what the node decides.
fn lines_for_nothing(data: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for name in &SETTINGS_FILES[..2] {
        each_setting(&data.join(name), &mut |file, line, name, _| {
            if DECIDED.contains(&name) {
                lines.push(format!("{name} in {}, line {line}", file.display()));
            }
        });
    }
    lines
}

/// What a server of a node needs in place of this value of a setting, if it cannot be with that.
pub fn instead_of(name: &str, value: &str) -> Option<String> {
    let least = AT_LEAST.iter().find(|(of, least)| *of == name && value.parse::<u32>().is_ok_and(|v| v < *least));
    match least {
        Some((_, least)) => Some(least.to_string()),
        None => (name == "wal_level" && value == "minimal").then(|| "replica".to_string()),
    }
}

/// Whether a name in `shared_preload_libraries` is that of the extension's library.
pub fn is_our_library(name: &str) -> bool {
    name.trim().trim_matches('"').rsplit('/').next() == Some("onetrip")
}

/// A value as `postgresql.conf` reads it, on one line.
pub fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', r"\\").replace('\'', "''").replace('\n', r"\n").replace('\r', r"\r");
    format!("'{escaped}'")
}

/// The major version of the PostgreSQL with its programs in `bin_dir`.
pub(super) fn installed_version(bin_dir: &Path) -> Result<u32, PostgresError> {
    let program = bin_dir.join("postgres");
    let output = in_english(&program)
        .arg("--version")
        .output()
        .map_err(|source| PostgresError::Program { program: program.clone(), source })?;
    // "postgres (PostgreSQL) 15.20 (Debian ...)"
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .nth(2)
        .and_then(|word| word.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .ok_or_else(|| PostgresError::Refused(format!("{} --version says {:?}", program.display(), text.trim())))
}

/// A command for a program of PostgreSQL whose output is read, and so is in English whatever the caller's language is.
pub(super) fn in_english(program: &Path) -> Command {
    let mut command = without_pg_settings(program);
    command.env("LC_ALL", "C").env_remove("LANGUAGE");
    command
}

/// A command for a program of PostgreSQL, without the caller's PG* environment variables, which could lead it to
/// another server.  Those stay that say which of a server's processes is to be killed first when memory runs out.
fn without_pg_settings(program: &Path) -> Command {
    let mut command = Command::new(program);
    let is_removed = |v: &str| v.starts_with("PG") && !v.starts_with("PG_OOM_ADJUST_");
    for (variable, _) in std::env::vars_os() {
        if variable.to_str().is_some_and(is_removed) {
            command.env_remove(variable);
        }
    }
    command
}

pub(super) fn reason(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let from_mark = |line: &str, marks: &[&str]| {
        marks.iter().find_map(|mark| line.find(mark).map(|at| line[at..].replace(":  ", ": ")))
    };
    let fatal = |line: &str| from_mark(line, &["PANIC:  ", "FATAL:  ", "could not "]);
    let Some((at, shown)) = lines.iter().enumerate().rev().find_map(|(at, l)| fatal(l).map(|m| (at, m))) else {
        // A message of the server itself has two spaces behind its level; one of the dynamic linker has not.
        let last = lines.last()?;
        let elsewhere = from_mark(last, &["Future log output "]).map(|l| format!("its reason is in another log: {l}"));
        return elsewhere.or_else(|| (!last.contains(":  ")).then(|| last.to_string()));
    };
    let hint = lines[at + 1..].iter().find_map(|l| from_mark(l, &["HINT:  "]));
    // The message "configuration file contains errors" does not say which; the line above it does.
    let above = if shown.contains("contains errors") { at.checked_sub(1) } else { None };
    let above = above.and_then(|at| from_mark(lines[at], &["LOG:  "])).map(|l| l.replace("LOG: ", ""));
    Some(match (above, hint) {
        (Some(more), _) => format!("{shown}: {more}"),
        (None, Some(hint)) => format!("{shown} ({hint})"),
        (None, None) => shown,
    })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn ours_is_added_to_the_libraries_of_the_user() {
        for complete in ["onetrip", "pg_cron, onetrip", "$libdir/onetrip,auto_explain", " \"onetrip\" "] {
            assert_eq!(with_ours(complete, "onetrip", &is_our_library), None, "{complete}");
        }
        for (theirs, all) in
            [("", "onetrip"), ("pg_cron", "onetrip, pg_cron"), ("not_onetrip,\"x\"", "onetrip, not_onetrip,\"x\"")]
        {
            assert_eq!(with_ours(theirs, "onetrip", &is_our_library).as_deref(), Some(all));
        }
    }

    /// Goal: a server that its owner's settings would leave without a worker, its position or connections for copies
    /// has them, and nobody's file makes it another node's.
    #[test]
    fn what_a_server_cannot_be_without_counts_over_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let bin_dir = folder.path().join("bin");
        fs::create_dir(&bin_dir).unwrap();
        let script = "case \"$2\" in shared_preload_libraries) echo onetrip;; unix_socket_directories) echo /tmp;; wal_level) echo minimal;;\n\
                      max_wal_senders) echo 0;; max_replication_slots) echo 10;; max_worker_processes) echo 64;;\n\
                      *) echo unrecognized >&2; exit 1;; esac";
        super::super::write_program(&bin_dir.join("postgres"), script);
        let server = Server { bin_dir, ..example(folder.path()) };
        fs::create_dir(server.data()).unwrap();
        fs::write(server.data().join("postgresql.auto.conf"), "a = 1\nonetrip.key_seed = '1'\n").unwrap();
        let expected = [
            ("data_directory", server.data().display().to_string()),
            ("listen_addresses", "127.0.0.1".into()),
            ("port", "5433".into()),
            ("unix_socket_directories", format!("{}, /tmp", folder.path().display())),
            ("max_wal_senders", "10".into()),
            ("wal_level", "replica".into()),
        ];
        let (settings, warnings) = server.over_files(&server.data());
        assert_eq!(settings, expected);
        let file = server.data().join("postgresql.auto.conf");
        let line = format!("onetrip.key_seed in {}, line 2, has no effect", file.display());
        let told = [line.as_str(), "have max_wal_senders = 0", "have wal_level = minimal"];
        assert!(warnings.len() == 3 && told.iter().zip(&warnings).all(|(t, w)| w.contains(t)), "{warnings:?}");
    }

    #[test]
    fn the_reason_is_the_last_fatal_line_with_its_hint() {
        let log = "2026-11-21 LOG:  starting\n2026-11-21 FATAL:  lock file \"postmaster.pid\" already exists\n\
                   2026-11-21 HINT:  Is another postmaster running?\n2026-11-21 LOG:  database system is shut down\n";
        assert_eq!(
            reason(log).unwrap(),
            "FATAL: lock file \"postmaster.pid\" already exists (HINT: Is another postmaster running?)"
        );
        assert_eq!(reason("a\nb\n\n").unwrap(), "b");
        for ready in ["1 LOG:  ready\n", "1 LOG:  often\n1 HINT:  Consider less.\n", "1 ERROR:  of a session\n"] {
            assert_eq!(reason(ready), None, "killed: the log knows nothing");
        }
        assert_eq!(
            reason("1 LOG:  unrecognized parameter \"x\"\n2 FATAL:  file \"c\" contains errors\n").unwrap(),
            "FATAL: file \"c\" contains errors: unrecognized parameter \"x\""
        );
        assert_eq!(reason(""), None);
        let collected = "1 LOG:  redirecting log output to logging collector process\n\
                         1 HINT:  Future log output will appear in directory \"log\".\n";
        let elsewhere = "its reason is in another log: Future log output will appear in directory \"log\".";
        assert_eq!(reason(collected).unwrap(), elsewhere);
    }

    /// The writer goes on where the file now begins, as the server does.
    #[test]
    fn a_log_that_has_grown_large_is_moved_while_it_is_written() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let server = example(dir.path());
        let mut writer = fs::OpenOptions::new().create(true).append(true).open(server.log()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        writer.write_all(b"one\n").unwrap();
        server.trim_log_above(4, &enough).unwrap();
        assert_eq!(read("postgres.log"), "one\n");
        writer.write_all(b"two\n").unwrap();
        server.trim_log_above(4, &enough).unwrap();
        writer.write_all(b"FATAL:  three\n").unwrap();
        assert_eq!((read("postgres.log"), read("postgres.log.1")), ("FATAL:  three\n".into(), "one\ntwo\n".into()));
        assert_eq!(server.reason_in_log(50).unwrap(), "FATAL: three");
    }

    fn enough(_: &Path) -> io::Result<Room> {
        Ok(Room { free_bytes: 50 << 30, total_bytes: 100 << 30 })
    }

    #[test]
    fn a_log_for_whose_copy_there_is_no_room_leaves_none_behind() {
        let dir = tempfile::tempdir().unwrap();
        let server = example(dir.path());
        let there = || {
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        fs::write(server.log(), "one\n").unwrap();
        let full = |_: &Path| Ok(Room { free_bytes: 1 << 30, total_bytes: 100 << 30 });
        server.trim_log_above(3, &full).unwrap();
        assert_eq!((server.log_end(), there()), (0, vec!["postgres.log".into()]));
        // The copy is written and cannot take its place.
        fs::write(server.log(), "two\n").unwrap();
        fs::create_dir_all(dir.path().join("postgres.log.1/in the way")).unwrap();
        server.trim_log_above(3, &enough).unwrap_err();
        assert_eq!((server.log_end(), there()), (4, vec!["postgres.log".into(), "postgres.log.1".into()]));
    }

    #[test]
    fn settings_quote_what_they_are_given() {
        let server = example(Path::new("/data/it's"));
        let settings = server.settings(15, Level(0), false);
        assert!(settings.contains("unix_socket_directories = '/data/it''s'\n"), "{settings}");
        assert!(settings.contains("onetrip.agent_socket = '/data/it''s/agent.sock'\n"), "{settings}");
        assert!(settings.contains("port = 5433\n") && settings.contains("onetrip.node_id = 2\n"), "{settings}");
        assert!(settings.contains("wal_writer_flush_after = 0\n"), "{settings}");
        assert!(!server.settings(17, Level(0), false).contains("wal_writer"));
        assert!(!settings.contains("format_level"));
        assert!(server.settings(15, Level(1), false).contains("onetrip.format_level = 1\n"));
        assert!(!settings.contains("key_seed"));
        let seeded = Server { key_seed: KeySeed::try_from("1f".to_string()).unwrap(), ..example(Path::new("/data")) };
        assert!(seeded.settings(15, Level(1), false).contains("onetrip.key_seed = '000000000000001f'\n"));
        assert!(settings.contains("ssl = on\nssl_cert_file = '/data/it''s/tls/node.crt'\n"), "{settings}");
        assert!(!Server { tls: false, ..server }.settings(15, Level(0), false).contains("ssl"));
    }
}
