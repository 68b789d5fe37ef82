//! `onetrip restore`: makes a new cluster of one node from a base backup and the log that followed it.
//!
//! ```text
//!   backup: PostgreSQL at p, checkpoint at c <= p      log: (c, target] from the backup, archives, stopped nodes
//!        │                    │                              │
//!        ▼                    └───────── decided again ──────┘
//!   postgres/ (a copy)                        ▼
//!        └── fed (p, target] at the next start by the node's own log and checkpoint, in which one member is left
//! ```
//! The cluster is a new one: if members of the old one come back, it refuses them.  node.toml is written last; a folder
//! without it is not a node.

mod copy;
pub mod entries;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail, Context, Result};
use bytes::Bytes;
use clap::Args;
use onetrip_client::postgres;
use onetrip_client::say;
use onetrip_core::{LogIndex, NodeId, RegionId};
use onetrip_node::config::{NodeConfig, PostgresConfig, FILE_NAME};
use onetrip_node::postgres::{become_user, prepare_folder, Server, ROOT_BECOMES};
use onetrip_node::restore::{Goal, Restore, RestoreError, Restored};
use onetrip_node::tls::{self, Authority};

use crate::backup::manifest::{self, Manifest};
use crate::lab::LabArgs;
use crate::place::{Place, PlaceArgs};
use crate::progress::Progress;
use crate::{init, BadUsage};
use entries::Entries;

/// Make a new cluster of one node from a backup and the log
///
/// The node accepts transactions once `onetrip start` has brought its PostgreSQL to the position that was restored. Add
/// further regions with `onetrip token` and `onetrip join`. The old cluster is not touched; do not use it again.
#[derive(Args)]
pub struct RestoreArgs {
    /// The folder that `onetrip backup` made
    #[arg(long, value_name = "DIR")]
    backup: PathBuf,
    /// The log since the backup: an archive, or the folder of a stopped node of the cluster. Repeat it for all that are
    /// left: where they differ, what was decided is restored [default: only the log in the backup itself]
    #[arg(long, value_name = "DIR")]
    log: Vec<PathBuf>,
    /// Restore up to and including this log entry [default: all entries]
    #[arg(long, value_name = "N", conflicts_with = "to_time")]
    to_position: Option<u64>,
    /// Restore what was committed up to this time, in UTC: 2026-11-22T14:30:00Z
    #[arg(long, value_name = "TIME", value_parser = manifest::parse_time)]
    to_time: Option<u64>,
    /// Folder to make for the node
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The node's region
    #[arg(long)]
    region: String,
    /// Name of the new cluster [default: a random name]
    #[arg(long)]
    cluster: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// User to run as, if called by root
    #[arg(long, default_value = ROOT_BECOMES)]
    user: String,
    #[command(flatten)]
    lab: LabArgs,
}

pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    let manifest = Manifest::load(&args.backup)?;
    let goal = goal(args, &manifest)?;
    let data = std::path::absolute(&args.data).context("find the data folder")?;
    if data.exists() && std::fs::read_dir(&data).with_context(|| format!("read {}", data.display()))?.next().is_some() {
        return Err(BadUsage(format!("{} is not empty; nothing was changed", data.display())).into());
    }
    let absolute = |path: &PathBuf| std::path::absolute(path).with_context(|| format!("find {}", path.display()));
    let backup = absolute(&args.backup)?;
    let logs = args.log.iter().map(absolute).collect::<Result<Vec<_>>>()?;
    let bin_dir = postgres::bin_dir(args.place.bin_dir.as_deref())?;
    prepare_folder(&data, &args.user)?;
    become_user(&args.user, &data)?;
    crate::keep_files_private();
    let (config, restored) = match make(args, &manifest, goal, &backup, &logs, &bin_dir, &data) {
        Ok(made) => made,
        Err(e) => {
            empty(&data);
            return Err(e.context("nothing was restored"));
        }
    };
    let when = restored.time_ms.map_or(String::new(), |ms| format!(", decided at {}", manifest::time_text(ms)));
    say!(
        "{}: node {} in {} of the new cluster {}, at position {} of term {}{when}; start it with: onetrip start --data {}",
        data.display(),
        config.node,
        config.region,
        config.cluster,
        restored.index,
        restored.term,
        data.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn goal(args: &RestoreArgs, manifest: &Manifest) -> Result<Goal> {
    if let Some(position) = args.to_position {
        if position < manifest.position.0 {
            let why = format!(
                "position {position} lies before this backup, which shows entries up to {}: use an older backup",
                manifest.position
            );
            return Err(BadUsage(why).into());
        }
        return Ok(Goal::Position(LogIndex(position)));
    }
    let Some(time_ms) = args.to_time else { return Ok(Goal::End) };
    if time_ms < manifest.finished_ms {
        let why = format!(
            "{} lies before {}, when this backup was finished: use an older backup",
            manifest::time_text(time_ms),
            manifest.finished
        );
        return Err(BadUsage(why).into());
    }
    Ok(Goal::Time(time_ms))
}

fn make(
    args: &RestoreArgs,
    manifest: &Manifest,
    goal: Goal,
    backup: &Path,
    logs: &[PathBuf],
    bin_dir: &Path,
    data: &Path,
) -> Result<(NodeConfig, Restored)> {
    let mut entries = Entries::open(&backup.join(manifest::LOG), logs)?;
    if let Some((path, other)) = entries.clusters().find(|(_, cluster)| **cluster != manifest.cluster) {
        bail!("{} is the log of cluster {other}, but the backup is of cluster {}", path.display(), manifest.cluster);
    }
    for (path, index, term) in entries.ends() {
        say!("the log of the node in {} ends at entry {index} of term {term}", path.display());
    }
    let place = args.place.choose()?;
    place.warn_if_only_here();
    let mut config = config(args, manifest, &place, bin_dir, data)?;
    let raw = std::fs::read(backup.join(manifest::CHECKPOINT)).context("read the backup's checkpoint")?;
    let restore = Restore {
        folder: data,
        limits: config.limits(),
        region: config.region.clone(),
        address: place.address,
        sequence_slot: config.sequence_slot,
        checkpoint: Bytes::from(raw),
        least: manifest.position,
        goal,
    };
    let restored = restore.run(&mut entries).map_err(in_words)?;
    config.node = restored.node;
    let mut progress = Progress::new();
    copy::postgres(&backup.join(manifest::POSTGRES), &Server::of(&config)?, &mut progress)?;
    if config.tls {
        let authority = Authority::new(&config.cluster)?;
        tls::write_folder(data, &authority, &authority.issue_at(config.node, &config.addresses()?)?)?;
    }
    config.save()?;
    progress.end("the node is complete");
    Ok((config, restored))
}

fn in_words(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(RestoreError::BeyondTime { last, until_ms: 0 }) => {
            anyhow!("no archive reaches entry {last}, so nobody knows when the last entries were committed; give a position")
        }
        Some(RestoreError::BeyondTime { last, until_ms }) => anyhow!(
            "the archive ends at entry {last} and is complete until {}: leave --to-time out to restore all of it",
            manifest::time_text(*until_ms)
        ),
        Some(RestoreError::NotYet { at, time_ms }) => anyhow!(
            "entry {at} has the time {}, which is later than now: the clock of the node that archived it was ahead, or this \
             machine's is behind; give a position",
            manifest::time_text(*time_ms)
        ),
        Some(RestoreError::TimeWentBack { at, time_ms, later, later_ms }) => anyhow!(
            "entry {at} has the time {}, and entry {later}, which follows it, {}: the clock of the node that archived them was \
             wrong, so nobody knows which of them were committed by then; give a position",
            manifest::time_text(*time_ms),
            manifest::time_text(*later_ms)
        ),
        Some(RestoreError::Silent { at, from_ms: 0, to_ms }) => anyhow!(
            "entry {at} is the first in the archive, which has no time before {}, so nobody knows when it was committed; give a \
             position",
            manifest::time_text(*to_ms)
        ),
        Some(RestoreError::Silent { at, from_ms, to_ms }) => anyhow!(
            "the archive has no time between {} and {}, so nobody knows which of the entries from {at} on were committed by \
             then; give a position",
            manifest::time_text(*from_ms),
            manifest::time_text(*to_ms)
        ),
        _ => error,
    }
}

fn config(args: &RestoreArgs, manifest: &Manifest, place: &Place, bin_dir: &Path, data: &Path) -> Result<NodeConfig> {
    let cluster = match &args.cluster {
        Some(cluster) if *cluster == manifest.cluster => {
            let why = format!(
                "--cluster {cluster} is the old cluster's name: nodes of both clusters would take each other for members"
            );
            return Err(BadUsage(why).into());
        }
        Some(cluster) => cluster.clone(),
        None => init::random_name()?,
    };
    tls::check_cluster_name(&cluster).map_err(BadUsage)?;
    let region = RegionId::from(args.region.as_str());
    let (database, user) = (manifest.database.clone(), args.user.clone());
    Ok(NodeConfig {
        window_entries: manifest.window_entries,
        sequence_stride: manifest.sequence_stride,
        sequence_slot: manifest.sequence_slot,
        max_entry_bytes: manifest.max_entry_bytes,
        key_seed: manifest.key_seed,
        lab: args.lab.asked(),
        tls: !args.lab.asked(),
        postgres: Some(PostgresConfig::new(place.port, bin_dir.to_path_buf(), database, user)),
        data_dir: data.to_path_buf(),
        // The id is set once the log has been decided, to one that no member ever had.  The log's own table says
        // whether an operator has chosen the leader's place.
        ..NodeConfig::new(cluster, NodeId(0), region, place.listen, place.http)
    })
}

/// Removes what a failed restore has made, but not the folder itself, which may be a mount point.
fn empty(data: &Path) {
    for name in ["log", "tls", "postgres", "postgres.unfinished"] {
        let _ = std::fs::remove_dir_all(data.join(name));
    }
    for name in ["certifier.checkpoint", FILE_NAME] {
        let _ = std::fs::remove_file(data.join(name));
    }
}
