//! `onetrip join`: adds a new node to a running cluster.
//!
//! The command asks a member, writes the node's folder (node.toml last: a folder with a node.toml is a complete node),
//! and runs the node.  The node then copies a member's PostgreSQL and catches up by itself, while the command shows its
//! progress.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Args;
use onetrip_client::{complain, say};
use onetrip_client::{http, postgres};
use onetrip_core::{Checkpoint, MemberRole, RegionId};
use onetrip_node::config::{NodeConfig, PostgresConfig, FILE_NAME};
use onetrip_node::disk::CheckpointFile;
use onetrip_node::join::{self, JoinReply, JoinRequest, JoinToken};
use onetrip_node::postgres::{become_user, facts, prepare_folder, ROOT_BECOMES};
use serde_json::Value;

use crate::adopt::ADOPTING;
use crate::init::Unfinished;
use crate::join_token::GivenToken;
use crate::lab::LabArgs;
use crate::place::{Place, PlaceArgs};
use crate::progress::Progress;
use crate::release::RELEASED;
use crate::start::{self, Foreground};

const LOOK_EVERY: Duration = Duration::from_millis(200);
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Make a new node of a running cluster, and run it
///
/// Needs a token from `onetrip token`. The node copies a member's PostgreSQL while the cluster keeps working, catches
/// up, and becomes what the token says: a voter, a witness or a replica. It runs in the foreground as with `onetrip
/// start`, which is also how to start it later. After an error, run the command again with the same token.
#[derive(Args)]
pub struct JoinArgs {
    /// The peer port of any member
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    #[command(flatten)]
    token: GivenToken,
    /// The region of this node: a new one, or one that has nodes already
    #[arg(long)]
    region: String,
    /// Folder to make for this node
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// User to run as, if called by root
    #[arg(long, default_value = ROOT_BECOMES)]
    user: String,
    /// Only make the folder; `onetrip start` then does the rest
    #[arg(long)]
    prepare_only: bool,
    #[command(flatten)]
    lab: LabArgs,
    /// Stop when standard input ends
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

pub fn run(args: &JoinArgs) -> Result<ExitCode> {
    let token = args.token.take()?;
    let data = std::path::absolute(&args.data).context("find the data folder")?;
    if data.join(FILE_NAME).exists() {
        bail!("{} contains a node already: run it with `onetrip start`", data.display());
    }
    refuse_leftovers(&data, &[])?;
    prepare_folder(&data, &args.user)?;
    become_user(&args.user, &data)?;
    crate::keep_files_private();
    let config = prepare(args, &token, &data)?;
    let what = format!("node {} of cluster {}, in {}", config.node, config.cluster, config.region);
    if args.prepare_only {
        say!("{what}: {}; start it with: onetrip start --data {}", data.display(), data.display());
        return Ok(ExitCode::SUCCESS);
    }
    complain!("{what}: the cluster has accepted it");
    let address = config.http.to_string();
    let watch = Box::pin(async move { follow(&address).await });
    start::foreground(
        config,
        Foreground {
            until_stdin_closes: args.until_stdin_closes,
            quiet: true,
            beside: Some(watch),
            ..Foreground::default()
        },
    )
}

/// An error if the folder contains what another node has left.
pub fn refuse_leftovers(data: &Path, also: &[&str]) -> Result<()> {
    let Some(name) = left_by_another(data, also)? else { return Ok(()) };
    let data = data.display();
    bail!(
        "{data} contains {name}, which another node has left: remove it with all else there, or choose another folder; nothing \
         was changed"
    )
}

/// What is in the folder of a node that has run, or of one whose making was interrupted, and would become part of the
/// new one: an old log above all, whose entries and votes are another cluster's.  A join that was interrupted leaves
/// none of it.
fn left_by_another(data: &Path, also: &[&str]) -> Result<Option<String>> {
    let is_left = |name: &str| {
        ["log", "log.claimed", "starts", "promised", "skipped", "postgres", ADOPTING, RELEASED, Unfinished::FILE]
            .contains(&name)
            || name.starts_with("postgres.") && !name.starts_with("postgres.facts-")
            || also.contains(&name)
    };
    let entries = match std::fs::read_dir(data) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries.with_context(|| format!("read {}", data.display()))?,
    };
    let names = entries.map(|entry| Ok(entry.context("read a folder")?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>>>()?;
    Ok(names.into_iter().filter(|name| is_left(name)).min())
}

/// Asks a member to let this node join, and writes its folder.
fn prepare(args: &JoinArgs, token: &JoinToken, data: &Path) -> Result<NodeConfig> {
    let place = args.place.choose()?;
    if is_elsewhere(&args.from) {
        place.warn_if_only_here();
    }
    // A witness needs no PostgreSQL, and only the token says what this node is to be.
    let is_there = |bin_dir: &PathBuf| args.place.bin_dir.is_some() || bin_dir.join("postgres").is_file();
    let bin_dir = postgres::bin_dir(args.place.bin_dir.as_deref()).ok().filter(is_there);
    let postgres_facts = bin_dir.map(|bin_dir| facts(&bin_dir, data)).transpose()?;
    let region = RegionId::from(args.region.as_str());
    let request = JoinRequest { region, address: place.address.clone(), postgres: postgres_facts };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let reply = runtime.block_on(join::request_join(&args.from, token, request))?;
    let config = config(args, &reply, &place, data)?;
    let index =
        Checkpoint::decode(reply.checkpoint.clone(), config.limits()).context("read the cluster's state")?.index();
    CheckpointFile::new(config.checkpoint_file()).install(index, &reply.checkpoint)?;
    reply.write_tls(&config)?;
    // Last: a folder with a node.toml is a complete node.
    config.save()?;
    Ok(config)
}

/// Whether the member may be on another machine.
fn is_elsewhere(member: &str) -> bool {
    !member.parse::<SocketAddr>().is_ok_and(|member| member.ip().is_loopback())
}

fn config(args: &JoinArgs, reply: &JoinReply, place: &Place, data: &Path) -> Result<NodeConfig> {
    let role = reply.member.role;
    let postgres = match role.has_postgres() {
        false => None,
        true => {
            let database = reply.settings.database.clone().with_context(|| {
                format!(
                    "{} has no PostgreSQL and does not know the database's name: name another member with --from",
                    args.from
                )
            })?;
            let bin_dir = postgres::bin_dir(args.place.bin_dir.as_deref())?;
            Some(PostgresConfig {
                read_only: role == MemberRole::Replica,
                ..PostgresConfig::new(place.port, bin_dir, database, args.user.clone())
            })
        }
    };
    let (cluster, node, region) = (reply.cluster.clone(), reply.member.id, reply.member.region.clone());
    Ok(NodeConfig {
        preferred_leader: reply.members.preferred(),
        window_entries: reply.settings.window_entries,
        sequence_stride: reply.settings.sequence_stride,
        sequence_slot: reply.member.slot.unwrap_or(0),
        max_entry_bytes: reply.settings.max_entry_bytes,
        key_seed: reply.settings.key_seed,
        lab: args.lab.asked(),
        tls: reply.tls.is_some(),
        postgres,
        data_dir: data.to_path_buf(),
        ..NodeConfig::new(cluster, node, region, place.listen, place.http)
    })
}

/// Shows the progress of the node at this HTTP address, until it has caught up.
async fn follow(address: &str) {
    let mut progress = Progress::new();
    loop {
        match http::get_json(address, "/status", STATUS_TIMEOUT).await {
            Ok(status) => match step(&status) {
                Some(Step { what, part, detail }) => progress.show(&what, part, &detail),
                None => return progress.end(&done(&status)),
            },
            Err(_) => progress.show("starting", None, ""),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct Step {
    what: String,
    part: Option<f64>,
    detail: String,
}

/// What the node is doing until it has caught up; `None` once it has.
fn step(status: &Value) -> Option<Step> {
    let simple = |what: &str, detail: String| Some(Step { what: what.to_string(), part: None, detail });
    let postgres = &status["postgres"];
    if let (Some(done), Some(total)) = (postgres["copy"]["done_kb"].as_u64(), postgres["copy"]["total_kb"].as_u64()) {
        let what = format!("copying the PostgreSQL of {}", postgres["copy"]["region"].as_str().unwrap_or("a member"));
        return match total {
            // The donor's PostgreSQL runs a CHECKPOINT first.
            0 => simple(&what, String::new()),
            _ => Some(Step {
                what,
                part: Some(done as f64 / total as f64),
                detail: format!("{} of {} MB", done / 1024, total / 1024),
            }),
        };
    }
    if postgres.is_object() && postgres["state"] != "ready" {
        let problem = postgres["problem"].as_str().map_or(String::new(), |p| format!("({p})"));
        let copies = postgres["state"] == "copying";
        return simple(if copies { "looking for a PostgreSQL to copy" } else { "starting PostgreSQL" }, problem);
    }
    if own(status).is_some_and(|own| own["caught_up"] == true) {
        return None;
    }
    simple("catching up", status["lag_entries"].as_u64().map_or(String::new(), |n| format!("({n} entries behind)")))
}

fn own(status: &Value) -> Option<&Value> {
    status["members"].as_array()?.iter().find(|m| m["id"] == status["node"])
}

fn done(status: &Value) -> String {
    let role = own(status).and_then(|m| m["role"].as_str()).unwrap_or("member");
    let port =
        status["postgres"]["port"].as_u64().map_or(String::new(), |p| format!("; its PostgreSQL listens on port {p}"));
    format!("node {} in {} is a {role} now{port}", status["node"], status["region"].as_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_on_loopback_is_on_this_machine() {
        assert!(!is_elsewhere("127.0.0.1:7100") && !is_elsewhere("[::1]:7100"));
        assert!(is_elsewhere("10.0.1.10:7100") && is_elsewhere("db.example:7100"));
    }

    #[test]
    fn only_what_an_interrupted_join_leaves_may_be_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("node");
        assert_eq!(left_by_another(&data, &[]).unwrap(), None);
        for left in
            ["tls", "certifier.checkpoint", "certifier.received", "node.toml.new", "postgres.facts-7", "node.log"]
        {
            std::fs::create_dir_all(data.join(left)).unwrap();
        }
        assert_eq!(left_by_another(&data, &[]).unwrap(), None);
        assert_eq!(left_by_another(&data, &["tls", "certifier.received"]).unwrap().unwrap(), "certifier.received");
        for left in [
            "starts",
            "postgres.kept",
            "postgres",
            "node.toml.released",
            "log.claimed",
            "log",
            "init.unfinished",
            "adopting",
        ] {
            std::fs::create_dir(data.join(left)).unwrap();
            assert_eq!(left_by_another(&data, &[]).unwrap().as_deref(), Some(left));
        }
    }
}
