//! A copy of a running PostgreSQL's data folder, made by `pg_basebackup` through a Unix socket.
//!
//! The caller decides where the socket leads: to the server of this node, or through a tunnel to that of another.
//!
//! Invariants:
//! - If the call succeeds, `to` is a complete data folder that is synced to disk.  If it fails, what it leaves there
//!   does no harm, since the caller gives a name that is not the final one, and renames the folder at the end.
//! - When the future is dropped, `pg_basebackup` is killed.
//! - A copy onto the disk of a node's log leaves the log its room ([`Room::of_log`]).
//! - No copy waits for ever for a server that hangs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::server::in_english;
use super::{file_error, PostgresError};
use crate::space::Room;

const STEP: &str = "the base backup";

/// Followed by the file and the block: a page whose checksum is wrong.
const DAMAGED: &str = "checksum verification failed in file";
/// Within this time a copy writes less than the room that is left to the log.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a donor may send nothing before it counts as one that hangs.  It writes a checkpoint first; at the end what
/// has come is synced to this node's disk, which may take long with a large one.
const PATIENCE_FIRST: Duration = Duration::from_secs(900);
const PATIENCE_BETWEEN: Duration = Duration::from_secs(300);
const PATIENCE_END: Duration = Duration::from_secs(3600);
/// How much is kept of what `pg_basebackup` says besides its progress, to explain a failure; older lines are dropped.
const SAID_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Clone)]
pub struct BaseBackup {
    /// Folder with `pg_basebackup`.
    pub bin_dir: PathBuf,
    /// Folder of the socket, and the port that is part of its name.
    pub socket_dir: PathBuf,
    pub port: u16,
    /// The folder to make.  What an earlier try left there is removed first.
    pub to: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CopyProgress {
    pub done_kb: u64,
    pub total_kb: u64,
    /// More than one means that a part of it is written to other folders.
    #[serde(skip)]
    pub tablespaces: u64,
    #[serde(skip)]
    pub tablespaces_done: u64,
}

/// What a copy is held to.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Beside a node's log: how much room there is.
    pub room: Option<fn(&Path) -> io::Result<Room>>,
    /// How long nothing may come after this.
    pub patience: fn(Option<CopyProgress>) -> Duration,
}

/// The copy ends with [`PostgresError::NoRoom`] as soon as it is known that it does not fit, or there is not more room
/// left than the log needs.
pub(super) const BESIDE_LOG: Limits = Limits { room: Some(Room::of), patience };
const ELSEWHERE: Limits = Limits { room: None, patience };

fn patience(last: Option<CopyProgress>) -> Duration {
    match last {
        Some(last) if last.tablespaces_done >= last.tablespaces => PATIENCE_END,
        Some(last) if last.done_kb > 0 => PATIENCE_BETWEEN,
        _ => PATIENCE_FIRST,
    }
}

impl BaseBackup {
    /// Makes the folder.  `progress` is called from time to time with how far the copy is.
    pub async fn run(&self, progress: impl FnMut(CopyProgress)) -> Result<(), PostgresError> {
        self.run_within(ELSEWHERE, progress).await
    }

    pub(super) async fn run_within(
        &self,
        limits: Limits,
        mut progress: impl FnMut(CopyProgress),
    ) -> Result<(), PostgresError> {
        remove_folder(&self.to)?;
        let program = self.bin_dir.join("pg_basebackup");
        let mut command = Command::from(in_english(&program));
        command
            .arg("--pgdata")
            .arg(&self.to)
            .arg("--host")
            .arg(&self.socket_dir)
            .args(["--port", &self.port.to_string()])
            .args(["--username", "postgres", "--no-password"])
            // With `stream`, the WAL written in the meantime is copied as well, so that a server can start on the copy
            // alone.
            .args(["--wal-method", "stream", "--checkpoint", "fast", "--progress"])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|source| PostgresError::Program { program: program.clone(), source })?;
        let mut said = Said::default();
        if let Some(mut stderr) = child.stderr.take() {
            let mut bytes = [0u8; 4096];
            let (mut last, mut came_at) = (None, Instant::now());
            let mut looks = tokio::time::interval(LOOK_EVERY);
            loop {
                tokio::select! {
                    read = stderr.read(&mut bytes) => {
                        let Ok(count @ 1..) = read else { break };
                        said.take(&bytes[..count], &mut |now| {
                            if last != Some(now) {
                                (last, came_at) = (Some(now), Instant::now());
                            }
                            progress(now);
                        });
                    }
                    _ = looks.tick() => {
                        let why = match limits.room {
                            Some(room) => self.no_room(room, last).await,
                            None => None,
                        };
                        if let Some(why) = why.or_else(|| hangs(came_at.elapsed(), (limits.patience)(last))) {
                            // What it has written is removed by the caller.
                            let _ = child.kill().await;
                            return Err(why);
                        }
                    }
                }
            }
        }
        let status = child.wait().await.map_err(|source| PostgresError::Program { program, source })?;
        if status.success() {
            return Ok(());
        }
        let reason = format!("{} ({status})", said.reason());
        Err(PostgresError::Step { step: STEP.into(), reason })
    }

    async fn no_room(
        &self,
        room: fn(&Path) -> io::Result<Room>,
        progress: Option<CopyProgress>,
    ) -> Option<PostgresError> {
        let beside = self.to.parent()?.to_owned();
        // The file system may hang.  If it does not know how much room it has, the copy goes on as if there was enough.
        let room = tokio::task::spawn_blocking(move || room(&beside)).await.ok()?.ok()?;
        // What is done is told once a second, so something more of it is written already.
        let left = progress
            .filter(|p| p.tablespaces <= 1)
            .map_or(0, |p| (p.total_kb - p.total_kb / 20).saturating_sub(p.done_kb) << 10);
        let fits = room.beside_log() > 0 && left <= room.beside_log();
        (!fits).then(|| PostgresError::NoRoom {
            needs_bytes: progress.map_or(0, |p| p.total_kb << 10),
            log_bytes: room.of_log(),
            folder: self.to.clone(),
        })
    }
}

fn hangs(silent: Duration, patience: Duration) -> Option<PostgresError> {
    let reason = format!("nothing has come for {} s", silent.as_secs());
    (silent > patience).then(|| PostgresError::Step { step: STEP.into(), reason })
}

/// Removes a folder if it is there.
pub fn remove_folder(folder: &Path) -> Result<(), PostgresError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(file_error("remove", folder)(e)),
        _ => Ok(()),
    }
}

/// Standard error of `pg_basebackup`, line by line: lines of progress end with a carriage return or a newline.
#[derive(Default)]
struct Said {
    line: Vec<u8>,
    /// The end of everything else.
    other: String,
}

impl Said {
    fn take(&mut self, bytes: &[u8], progress: &mut impl FnMut(CopyProgress)) {
        for byte in bytes {
            if !matches!(byte, b'\n' | b'\r') {
                if self.line.len() < SAID_BYTES_MAX {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_string();
            match parse_progress(&line) {
                Some(now) => progress(now),
                None if line.is_empty() => {}
                None => {
                    self.other += &line;
                    self.other.push('\n');
                    if self.other.len() > SAID_BYTES_MAX {
                        let mut from = self.other.len() - SAID_BYTES_MAX / 2;
                        while !self.other.is_char_boundary(from) {
                            from += 1;
                        }
                        self.other.drain(..from);
                    }
                }
            }
        }
    }

    /// The first error, since those that follow are its consequences; and which page the server has found damaged.
    fn reason(&self) -> String {
        let lines: Vec<&str> = self.other.lines().collect();
        let error = lines.iter().find(|l| l.contains("error:") || l.contains("FATAL:")).or(lines.last());
        let error = error.map_or("it said nothing", |l| *l).trim_start_matches("pg_basebackup: error: ");
        let damaged = lines.iter().find_map(|l| l.find(DAMAGED).map(|at| &l[at..]));
        damaged.map_or(error.to_string(), |damaged| format!("{damaged} ({error})"))
    }
}

/// For the fuzzer: reads `bytes` as the standard error of `pg_basebackup`.
#[cfg(feature = "lab")]
pub(super) fn read_said(bytes: &[u8]) {
    let mut said = Said::default();
    bytes.chunks(4096).for_each(|bytes| said.take(bytes, &mut |_| {}));
    let _ = said.reason();
}

/// `12345/67890 kB (18%), 0/1 tablespace` (PostgreSQL 15, progress_report in pg_basebackup.c).
fn parse_progress(line: &str) -> Option<CopyProgress> {
    let (done, rest) = line.split_once('/')?;
    let (total, rest) = rest.split_once(" kB (")?;
    let (before, count) = rest.rsplit_once('/').unwrap_or_default();
    let tablespaces = count.split(' ').next().and_then(|count| count.parse().ok());
    let tablespaces_done = before.rsplit(' ').next().and_then(|count| count.parse().ok());
    Some(CopyProgress {
        done_kb: done.trim().parse().ok()?,
        total_kb: total.trim().parse().ok()?,
        tablespaces: tablespaces.unwrap_or(1),
        tablespaces_done: tablespaces_done.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::write_program;
    use super::*;

    #[test]
    fn progress_and_errors_are_told_apart_however_they_arrive() {
        let text =
            "waiting for checkpoint\n    0/22871 kB (0%), 0/1 tablespace\r 4021/22871 kB (17%), 1/2 tablespaces\n\
                    pg_basebackup: error: could not receive data: a/b\npg_basebackup: removing data directory\n";
        for step in [1, 7, text.len()] {
            let mut said = Said::default();
            let mut seen = Vec::new();
            for chunk in text.as_bytes().chunks(step) {
                said.take(chunk, &mut |p| seen.push((p.done_kb, p.total_kb, p.tablespaces_done, p.tablespaces)));
            }
            assert_eq!(seen, [(0, 22871, 0, 1), (4021, 22871, 1, 2)]);
            assert_eq!(said.reason(), "could not receive data: a/b");
        }
    }

    #[test]
    fn a_damaged_page_is_named() {
        let mut said = Said::default();
        let damaged =
            "checksum verification failed in file \"./base/5/2601\", block 3: calculated 5B0A but expected 41F7";
        said.take(
            format!("WARNING:  {damaged}\npg_basebackup: error: checksum error occurred\n").as_bytes(),
            &mut |_| {},
        );
        assert_eq!(said.reason(), format!("{damaged} (checksum error occurred)"));
    }

    #[test]
    fn what_it_says_is_bounded() {
        let mut said = Said::default();
        for _ in 0..10_000 {
            said.take("näher und näher\n".as_bytes(), &mut |_| {});
            said.take(&[b'x'; 100], &mut |_| {});
        }
        assert!(said.other.len() <= SAID_BYTES_MAX && said.line.len() <= SAID_BYTES_MAX);
    }

    /// A copy by what stands for `pg_basebackup`: it writes a file, says `progress` on standard error, and does `then`.
    async fn copy_by(progress: &str, then: &str, room: fn(&Path) -> io::Result<Room>) -> Result<(), PostgresError> {
        copy_within(progress, then, Limits { room: Some(room), patience }).await
    }

    async fn copy_within(progress: &str, then: &str, limits: Limits) -> Result<(), PostgresError> {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("mkdir \"$2\"\necho 15 > \"$2/PG_VERSION\"\necho '{progress}' >&2\n{then}\n");
        write_program(&dir.path().join("pg_basebackup"), &script);
        let to = dir.path().join("copy");
        let backup = BaseBackup { bin_dir: dir.path().into(), socket_dir: "/".into(), port: 1, to };
        let copied = backup.run_within(limits, |_| {});
        tokio::time::timeout(Duration::from_secs(60), copied).await.expect("the copy ends")
    }

    /// Goal: progress and errors are read in English, which is what the parsing is made for.
    #[tokio::test]
    async fn it_speaks_english_whatever_the_language_of_the_node() {
        let limits = Limits { room: None, patience };
        copy_within("waits", r#"[ "$LC_ALL" = C ] && [ -z "$LANGUAGE" ]"#, limits).await.unwrap();
    }

    fn room(free_bytes: u64) -> io::Result<Room> {
        Ok(Room { free_bytes, total_bytes: 100 << 30 })
    }

    #[tokio::test]
    async fn a_copy_that_takes_the_room_of_the_log_is_stopped() {
        let never_ends = "exec sleep 600";
        let enough: fn(&Path) -> io::Result<Room> = |_| room(10 << 30);
        copy_by("0/1048576 kB (0%), 0/1 tablespace", "", enough).await.unwrap();
        // Too large for the disk, which is known from the start.
        let Err(e) = copy_by("0/10485760 kB (0%), 0/1 tablespace", never_ends, enough).await else { panic!("it fits") };
        let text = e.to_string();
        assert!(text.contains("10240 MiB and 1024 MiB for the log have to be free"), "{text}");
        // Something else has taken the room meanwhile; how much of the copy goes to another disk is not known.
        let nearly_full: fn(&Path) -> io::Result<Room> = |_| room((1 << 30) - 1);
        for progress in ["1048570/1048576 kB (99%), 0/1 tablespace", "0/1048576 kB (0%), 0/2 tablespaces", "waits"] {
            let copied = copy_by(progress, never_ends, nearly_full).await;
            assert!(matches!(copied, Err(PostgresError::NoRoom { .. })), "{progress}: {copied:?}");
        }
        copy_by("0/10485760 kB (0%), 0/2 tablespaces", "", enough).await.unwrap();
    }

    /// Goal: a donor that hangs does not hold the copy for ever; one that is busy is left alone.
    #[tokio::test]
    async fn a_copy_to_which_nothing_comes_is_stopped() {
        let enough: fn(&Path) -> io::Result<Room> = |_| room(10 << 30);
        for room in [Some(enough), None] {
            for progress in ["waits", "0/1048576 kB (0%), 0/1 tablespace", "9/1048576 kB (0%), 0/1 tablespace"] {
                let limits = Limits { room, patience: |_| Duration::from_millis(300) };
                let Err(e) = copy_within(progress, "exec sleep 600", limits).await else { panic!("it is made") };
                assert!(e.to_string().contains("nothing has come for"), "{e}");
            }
        }
        let after = |line| patience(parse_progress(line));
        assert_eq!(after("waiting for checkpoint"), PATIENCE_FIRST);
        assert_eq!(after("0/1048576 kB (0%), 0/2 tablespaces"), PATIENCE_FIRST);
        assert_eq!(after("1048576/1048576 kB (100%), 1/2 tablespaces"), PATIENCE_BETWEEN);
        assert_eq!(after("1048570/1048576 kB (99%), 2/2 tablespaces"), PATIENCE_END);
    }
}
