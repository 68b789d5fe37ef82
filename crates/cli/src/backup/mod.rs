//! `onetrip backup`: makes a base backup of a running node: its PostgreSQL, and the checkpoint and the log that go with
//! it.
//!
//! ```text
//!   retain the log ──> checkpoint c ──> PostgreSQL shows c ──> copy PostgreSQL
//!                  ──> position p ──> entries (c, p] ──> manifest
//! ```
//! The copy shows every transaction up to c and none above p, and contains its exact position itself.  The manifest is
//! written last: a folder without one is not a backup.

pub mod manifest;

use std::fs::DirEntry;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use bytes::Bytes;
use clap::Args;
use onetrip_client::http;
use onetrip_client::{complain, say};
use onetrip_core::{Checkpoint, LogIndex, Term};
use onetrip_node::archive::{self, Identity, LastBackup, Previous, Writer};
use onetrip_node::config::{NodeConfig, PostgresConfig};
use onetrip_node::disk::write_whole;
use onetrip_node::postgres::{become_user, prepare_folder, BaseBackup, ROOT_BECOMES, SEARCH_PATH};

use serde_json::{json, Value};

use crate::progress::Progress;
use crate::restore::entries::Entries;
use crate::BadUsage;
use manifest::Manifest;

/// Copy a running node's database, so that a cluster can be restored from it
///
/// The node and its clients keep working. With the archive of the log (`[archive]` in node.toml), a cluster can be
/// restored to any position after the backup; without it, only to the backup's own position.
#[derive(Args)]
pub struct BackupArgs {
    /// The node's folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Folder for the backup: a new or an empty one
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// User to run as, if called by root [default: the user that the node was made with]
    #[arg(long)]
    user: Option<String>,
}

/// A PostgreSQL that takes longer to answer hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// How long PostgreSQL may take to show what its node has decided.
const CATCH_UP: Duration = Duration::from_secs(60);
/// After each call the node retains the log for longer than this.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The node writes a checkpoint first, which may be large.
const RETAIN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const BATCH_BYTES: usize = 1 << 20;

pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    let config = NodeConfig::load(&args.data)?;
    let Some(postgres) = config.postgres.clone() else {
        let why = format!("the node in {} has no PostgreSQL: take the backup from another", args.data.display());
        return Err(BadUsage(why).into());
    };
    let to = std::path::absolute(&args.to).context("find the backup's folder")?;
    if to.exists() && std::fs::read_dir(&to).with_context(|| format!("read {}", to.display()))?.next().is_some() {
        return Err(BadUsage(format!("{} is not empty: name a new folder for each backup", to.display())).into());
    }
    let user = args.user.as_deref().or(postgres.user.as_deref()).unwrap_or(ROOT_BECOMES);
    let existed = to.exists();
    prepare_folder(&to, user)?;
    become_user(user, &to)?;
    // Not before: the folders above it are for that user to pass through.
    crate::keep_files_private();
    if !existed {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&to, private).with_context(|| format!("keep {} private", to.display()))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let made = runtime.context("start the runtime")?.block_on(make(&config, &postgres, &to));
    let manifest = match made {
        Ok(manifest) => manifest,
        Err(e) => {
            // First, since what has one is a backup.
            let _ = std::fs::remove_file(to.join(manifest::MANIFEST));
            for name in [manifest::POSTGRES, manifest::LOG] {
                let _ = std::fs::remove_dir_all(to.join(name));
            }
            let _ = std::fs::remove_file(to.join(manifest::CHECKPOINT));
            if !existed {
                // If root called, the user it became may not be allowed to remove the folder; then it stays, empty.
                let _ = std::fs::remove_dir(&to);
            }
            return Err(e.context("the backup was not made"));
        }
    };
    say!(
        "{}: node {} in {} of cluster {}, position {}, {} MB; the archive is needed from entry {} on",
        to.display(),
        manifest.node,
        manifest.region,
        manifest.cluster,
        manifest.position,
        manifest.bytes >> 20,
        manifest.checkpoint.next()
    );
    Ok(ExitCode::SUCCESS)
}

async fn make(config: &NodeConfig, postgres: &PostgresConfig, to: &Path) -> Result<Manifest> {
    let started = manifest::now_ms();
    let mut progress = Progress::new();
    progress.show("preparing", None, "");
    // One that is made later is in pg_basebackup's way, which says so.
    let tablespaces = tablespaces(&config.data_dir.join("postgres"))?;
    if !tablespaces.is_empty() {
        bail!(
            "this server has tablespaces, which a backup cannot contain ({}): move what is in them (ALTER TABLE ALL and ALTER \
             INDEX ALL IN TABLESPACE ... SET TABLESPACE pg_default), drop them in another database, and run onetrip backup again",
            tablespaces.join(", ")
        );
    }
    let from = Retention::take(config).await?;
    let raw = std::fs::read(config.data_dir.join("certifier.checkpoint")).context("read the node's checkpoint")?;
    let raw = Bytes::from(raw);
    let checkpoint = Checkpoint::decode(raw.clone(), config.limits()).context("the node's checkpoint")?;
    let (index, term) = (checkpoint.index(), checkpoint.term);
    // The entries after this one up to `index` commit nothing, so PostgreSQL never gets them.
    let shown = checkpoint.certifier.last_committed();
    let server = Server::connect(&config.data_dir, postgres.port, ANSWERS_WITHIN).await?;
    server.wait_for(shown, &mut progress).await?;

    let folder = to.join(manifest::POSTGRES);
    let copy = BaseBackup {
        bin_dir: postgres.bin_dir.clone(),
        socket_dir: config.data_dir.clone(),
        port: postgres.port,
        to: folder.clone(),
    };
    copy.run(|now| {
        let part = now.done_kb as f64 / now.total_kb.max(1) as f64;
        progress.show("copying PostgreSQL", Some(part), &format!("{} of {} MB", now.done_kb >> 10, now.total_kb >> 10));
    })
    .await?;
    let position = server.position().await?;
    if position < shown {
        bail!(
            "PostgreSQL was at {position} after the copy and at {shown} before, so its data folder was replaced meanwhile: run \
             onetrip backup again"
        );
    }
    let position = position.max(index);
    progress.show("copying the log", None, "");
    let finished = manifest::now_ms();
    copy_log(config, (index, term), position, finished, to)?;
    drop(from);
    write_whole(&to.join(manifest::CHECKPOINT), &raw)?;
    let manifest = Manifest {
        format: Manifest::FORMAT,
        onetrip_version: env!("CARGO_PKG_VERSION").to_string(),
        cluster: config.cluster.clone(),
        node: config.node,
        region: config.region.clone(),
        database: postgres.database.clone(),
        postgres_version: std::fs::read_to_string(folder.join("PG_VERSION"))
            .context("read PG_VERSION")?
            .trim()
            .to_string(),
        window_entries: config.window_entries,
        max_entry_bytes: config.max_entry_bytes,
        sequence_stride: config.sequence_stride,
        sequence_slot: config.sequence_slot,
        key_seed: config.key_seed,
        checkpoint: index,
        position,
        started: manifest::time_text(started),
        finished: manifest::time_text(finished),
        finished_ms: finished,
        bytes: bytes_in(to)?,
    };
    manifest.save(to)?;
    note_in_archive(config, &manifest);
    progress.end("the backup is complete");
    Ok(manifest)
}

/// What PostgreSQL answers: one that hangs keeps no time itself.
async fn answer<T>(within: Duration, asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T> {
    match tokio::time::timeout(within, asked).await {
        Ok(answered) => Ok(answered?),
        Err(_) => bail!("it has not answered for {} s", within.as_secs()),
    }
}

/// A session with the node's PostgreSQL, in a database that always accepts connections.
struct Server {
    client: tokio_postgres::Client,
    answers_within: Duration,
}

impl Server {
    async fn connect(folder: &Path, port: u16, answers_within: Duration) -> Result<Server> {
        let mut options = tokio_postgres::Config::new();
        options.host_path(folder).port(port).user("postgres").dbname("postgres");
        options.application_name("onetrip backup");
        options.options(format!("-c search_path={SEARCH_PATH}"));
        let connected = answer(answers_within, options.connect(tokio_postgres::NoTls)).await;
        let (client, connection) = connected.with_context(|| {
            format!("connect to PostgreSQL through the socket in {}; is the node running?", folder.display())
        })?;
        tokio::spawn(connection);
        Ok(Server { client, answers_within })
    }

    /// The last entry that this server has committed or is committing: it shows nothing above that.
    async fn position(&self) -> Result<LogIndex> {
        let query = "SELECT coalesce(pg_replication_origin_progress('onetrip', false) - '0/0', 0)::bigint";
        let asked = answer(self.answers_within, self.client.query_one(query, &[])).await;
        let row = asked.context("ask PostgreSQL for its position")?;
        Ok(LogIndex(u64::try_from(row.get::<_, i64>(0)).context("a position below 0")?))
    }

    async fn wait_for(&self, goal: LogIndex, progress: &mut Progress) -> Result<()> {
        let deadline = Instant::now() + CATCH_UP;
        loop {
            let position = self.position().await?;
            if position >= goal {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("PostgreSQL is at entry {position} and does not reach {goal}; see `onetrip status`");
            }
            progress.show("waiting for PostgreSQL", None, &format!("to show entry {goal}; it shows {position} now"));
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Makes the node retain its log until this is dropped, and a little longer.
struct Retention(tokio::task::JoinHandle<()>);

impl Retention {
    /// On return the node has a checkpoint, as a rule a new one, and retains the log after it.
    async fn take(config: &NodeConfig) -> Result<Retention> {
        let socket = config.data_dir.join("admin.sock").display().to_string();
        let ask = move |body: Value| {
            let socket = socket.clone();
            async move { http::post_json(&socket, "/retain", &body, RETAIN_TIMEOUT).await }
        };
        let held = ask(json!({ "index": null })).await.context("ask the node to retain its log; is it running?")?;
        Ok(Retention(tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW_EVERY).await;
                // If this fails and entries are missing in the end, `copy_log` reports it.
                let _ = ask(held.clone()).await;
            }
        })))
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Writes the entries after the checkpoint, up to `position`, into an archive inside the backup.
fn copy_log(config: &NodeConfig, after: (LogIndex, Term), position: LogIndex, time_ms: u64, to: &Path) -> Result<()> {
    let folder = to.join(manifest::LOG);
    std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut writer = Writer::open(&folder, &Identity::of(config))?;
    let mut entries = Entries::of_running(config, position)?;
    let mut previous = Previous::new(after.0 .0, after.1 .0);
    // Even an archive without entries says where it begins.
    writer.append(previous, time_ms, &[])?;
    let (mut batch, mut bytes, mut last) = (Vec::new(), 0, after);
    while last.0 < position {
        let stored = entries
            .after(last)
            .context("the log was cut while the backup ran: raise log_bytes_max, or set [archive], in node.toml")?;
        let Some(stored) = stored else { bail!("the node's log lacks entry {}", last.0.next()) };
        last = (last.0.next(), Term(stored.entry.term));
        bytes += stored.entry.data.len();
        batch.push(stored.entry);
        if bytes >= BATCH_BYTES || last.0 == position {
            writer.append(previous, time_ms, &batch)?;
            previous = Previous::new(last.0 .0, last.1 .0);
            (batch, bytes) = (Vec::new(), 0);
        }
    }
    Ok(writer.close()?)
}

/// The folders of those outside of `data`: links in `pg_tblspc` point there.
fn tablespaces(data: &Path) -> Result<Vec<String>> {
    let links = std::fs::read_dir(data.join("pg_tblspc")).context("read pg_tblspc")?;
    let folder = |link: std::io::Result<DirEntry>| {
        let link = link?.path();
        Ok(std::fs::read_link(&link).unwrap_or(link).display().to_string())
    };
    links.map(folder).collect::<std::io::Result<_>>().context("read pg_tblspc")
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.metadata()?;
        bytes += if kind.is_dir() { bytes_in(&entry.path())? } else { kind.len() };
    }
    Ok(bytes)
}

/// Notes the backup in the archive, so that the node's status can say how old the last backup is.  A failure is only a
/// warning.
fn note_in_archive(config: &NodeConfig, manifest: &Manifest) {
    let Some(archive) = &config.archive else { return };
    let note = LastBackup {
        checkpoint: manifest.checkpoint,
        position: manifest.position,
        finished: manifest.finished.clone(),
        finished_ms: Some(manifest.finished_ms),
    };
    let written = serde_json::to_vec_pretty(&note)
        .map_err(anyhow::Error::from)
        .and_then(|text| Ok(write_whole(&archive.folder.join(archive::LAST_BACKUP_FILE), &text)?));
    if let Err(e) = written {
        complain!("onetrip: the backup is complete, but it could not be noted in the archive: {e:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Goal: a server that hangs is not waited for, neither before it lets the session in nor after.
    #[tokio::test]
    async fn a_postgresql_that_hangs_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join(".s.PGSQL.5433")).unwrap();
        let connect = |within| Server::connect(folder.path(), 5433, within);
        let Err(e) = connect(Duration::from_millis(50)).await else { panic!("it let the session in") };
        assert!(format!("{e:#}").contains("it has not answered"), "{e:#}");
        let lets_in = async {
            loop {
                let mut stream = listener.accept().await.unwrap().0;
                // AuthenticationOk and ReadyForQuery; the one that has given up is gone.
                let _ = stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await;
                std::mem::forget(stream);
            }
        };
        let asked = async { connect(Duration::from_secs(5)).await.unwrap().position().await };
        let e = tokio::select! { asked = asked => asked.unwrap_err(), () = lets_in => unreachable!() };
        assert!(format!("{e:#}").contains("ask PostgreSQL for its position: it has not answered"), "{e:#}");
    }
}
