//! `onetrip adopt`: makes a stopped PostgreSQL the first node of a new cluster, in place.
//!
//! ```text
//!   checks ──> NODE/adopting: the plan, and the settings files, old and new
//!          ──> the data folder moves to NODE/postgres.adopting
//!          ──> settings ──> one transaction: the extension, the tables' access method
//!          ──> NODE/postgres, node.toml;  NODE/adopting becomes NODE/adopted
//! ```
//! Rows are not touched: those of a onetrip table have heap's format.  Sequences get their shares when the node starts
//! for the first time (`sequence_reshare.c`).
//!
//! Invariants:
//! - Until the plan is complete the old server is as it was.  From then on each step can be repeated, so the same
//!   command goes on where it was ended, and `onetrip release` goes back (`release.rs`).
//! - While the data folder is neither the old server's nor the node's, it has a name under which nobody starts it.
//! - node.toml is written last.

mod checks;
pub mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use onetrip_client::{complain, postgres, say};
use onetrip_core::{MemberRole, NodeId, RegionId};
use onetrip_node::config::{KeySeed, Member, NodeConfig, PostgresConfig, FILE_NAME};
use onetrip_node::postgres::{
    become_user, control_data, hba, identifier, prepare_folder, processes_left, quoted, remove_folder, sync_folder,
    Server, SingleUser, SETTINGS_FILES,
};
use onetrip_node::tls::{self, Authority};
use serde::{Deserialize, Serialize};

use crate::init::SequenceArgs;
use crate::join::refuse_leftovers;
use crate::lab::LabArgs;
use crate::place::PlaceArgs;
use crate::release::RELEASED;
use crate::{init, BadUsage};
use checks::{Check, Level};

pub const ADOPTING: &str = "adopting";
pub const MOVING: &str = "postgres.adopting";
const ADOPTED: &str = "adopted";
/// A join that was interrupted leaves another cluster's state.
const OF_A_JOIN: [&str; 2] = ["certifier.checkpoint", "certifier.received"];

/// Make a stopped PostgreSQL the first node of a new cluster, in place
///
/// Its data folder moves into the node's folder; no row is copied or rewritten. With --check nothing is changed: the
/// command lists what will not work, or will work differently, in a server that may be running. If the command is
/// interrupted, call it again, or go back with `onetrip release`.
#[derive(Args)]
pub struct AdoptArgs {
    /// The server's data folder
    #[arg(long, value_name = "DIR", required_unless_present = "connect")]
    from: Option<PathBuf>,
    /// The database to replicate; the server's others become local ones
    #[arg(long, required_unless_present = "connect")]
    database: Option<String>,
    /// Only list what will not work, or will work differently
    #[arg(long)]
    check: bool,
    /// With --check: how to connect to the database, such as "host=10.0.0.5 user=postgres dbname=shop", if only its
    /// rows will be copied; what is about the server is then left out
    #[arg(long, value_name = "CONNINFO", requires = "check")]
    connect: Option<String>,
    /// Folder to make for the node, on the same file system as --from
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    data: Option<PathBuf>,
    /// The node's region
    #[arg(long, required_unless_present = "check")]
    region: Option<String>,
    /// A table that is to keep rows of its own in each region, as schema.table (repeat it for more)
    #[arg(long, value_name = "TABLE")]
    local: Vec<String>,
    /// The server's postgresql.conf, if it is outside of its data folder [default: the one it was started with]
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Name of the cluster [default: a random name]
    #[arg(long)]
    cluster: Option<String>,
    #[command(flatten)]
    sequences: SequenceArgs,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    lab: LabArgs,
}

/// What `adopting/plan.json` says.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    /// Where the data folder came from.
    pub from: PathBuf,
    local: Vec<String>,
}

/// The old server, as far as it is known before anything is changed.
struct Old {
    data: PathBuf,
    config_file: Option<PathBuf>,
    bin_dir: PathBuf,
    database: String,
    os_user: String,
}

impl Old {
    fn single_user(&self) -> SingleUser<'_> {
        SingleUser {
            config_file: self.config_file.as_deref(),
            libraries: Some(""),
            ..SingleUser::of(&self.bin_dir, &self.data)
        }
    }
}

pub fn run(args: &AdoptArgs) -> Result<ExitCode> {
    if let Some(conninfo) = &args.connect {
        return Ok(report(&check_running(conninfo, args)?));
    }
    let from = args.from.as_deref().context("--from is missing")?;
    let from = std::path::absolute(from).context("find --from")?;
    let Some(data) = &args.data else {
        let old = old(args, &from)?;
        become_user(&old.os_user, &old.data)?;
        return check_only(args, &old);
    };
    let data = std::path::absolute(data).context("find the data folder")?;
    if data.join(RELEASED).exists() {
        bail!("{} contains what is left of a node that was released: choose another folder", data.display());
    }
    if !args.check && data.join(ADOPTING).exists() {
        let plan = plan(&data)?;
        ensure!(plan.from == from, "{} is adopting {}: name that with --from", data.display(), plan.from.display());
        become_user(&user_name(&data)?, &data)?;
        crate::keep_files_private();
        complain!("going on with what was begun in {}", data.display());
        return carry_out(&data);
    }
    if data.join(FILE_NAME).exists() {
        bail!("{} contains a node already; nothing was changed", data.display());
    }
    if !args.check {
        ensure!(!from.starts_with(&data), "--from {} is in --data: choose another folder for the node", from.display());
        refuse_leftovers(&data, &OF_A_JOIN)?;
    }
    let old = old(args, &from)?;
    if args.check {
        become_user(&old.os_user, &old.data)?;
        return check_only(args, &old);
    }
    prepare_folder(&data, &old.os_user)?;
    become_user(&old.os_user, &data)?;
    crate::keep_files_private();
    is_stopped(&old.data, &old.bin_dir)?;
    can_move(&old.data, &data)?;
    let found = check_stopped(&old, args)?;
    if report(&found) != ExitCode::SUCCESS {
        bail!("nothing was changed");
    }
    if let Err(e) = prepare(args, &old, &data) {
        for name in ["tls", ADOPTING, "adopting.unfinished"] {
            let _ = fs::remove_dir_all(data.join(name));
        }
        return Err(e.context("nothing was changed"));
    }
    carry_out(&data)
}

/// The name of the user to whom a folder belongs.
fn user_name(folder: &Path) -> Result<String> {
    let uid = fs::metadata(folder).with_context(|| format!("look at {}", folder.display()))?.uid();
    let user = nix::unistd::User::from_uid(uid.into()).context("look up the owner of the folder")?;
    Ok(user.with_context(|| format!("{} belongs to the unknown user {uid}", folder.display()))?.name)
}

fn old(args: &AdoptArgs, from: &Path) -> Result<Old> {
    let data = from.canonicalize().with_context(|| format!("find {}", from.display()))?;
    if !data.join("PG_VERSION").is_file() {
        return Err(BadUsage(format!("{} is not a data folder of PostgreSQL", from.display())).into());
    }
    let bin_dir = postgres::bin_dir(args.place.bin_dir.as_deref())?;
    let given = args.config_file.as_deref().map(std::path::absolute).transpose().context("find --config-file")?;
    let config_file = given.or_else(|| started_with(&data));
    if config_file.is_none() && !data.join("postgresql.conf").is_file() {
        let why = format!("{} has no postgresql.conf: name it with --config-file", from.display());
        return Err(BadUsage(why).into());
    }
    let database = args.database.clone().context("--database is missing")?;
    let os_user = user_name(&data)?;
    Ok(Old { data, config_file, bin_dir, database, os_user })
}

/// The settings file on the command line of the server's last start, which `postmaster.opts` keeps.
fn started_with(data: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(data.join("postmaster.opts")).ok()?;
    let words = text.split('"').map(str::trim);
    let file = words.filter_map(|w| w.trim_start_matches("--").strip_prefix("config_file=")).next_back()?;
    Some(PathBuf::from(file))
}

fn is_stopped(data: &Path, bin_dir: &Path) -> Result<()> {
    let shown = data.display();
    if !processes_left(data).is_empty() {
        bail!("the server of {shown} is running: stop it first (pg_ctl stop -m fast -D {shown}); nothing was changed");
    }
    for name in ["standby.signal", "recovery.signal"] {
        ensure!(!data.join(name).exists(), "{shown} contains {name}: promote the server first; nothing was changed");
    }
    let installed = fs::read_to_string(data.join("PG_VERSION")).context("read PG_VERSION")?;
    let control = control_data(bin_dir, data)
        .with_context(|| format!("the data folder is of PostgreSQL {}: is --bin-dir right?", installed.trim()))?;
    let state = control.get("Database cluster state").map_or("", String::as_str);
    if state != "shut down" {
        bail!(
            "the server of {shown} was not shut down cleanly (it is \"{state}\"): start it once more, and stop it with \
             pg_ctl stop -m fast; nothing was changed"
        );
    }
    Ok(())
}

/// Whether the folder can be moved by a rename, which takes no time and loses nothing.
fn can_move(from: &Path, data: &Path) -> Result<()> {
    let parent = from.parent().context("the data folder is the root folder")?;
    on_one_file_system(from, data)?;
    if nix::unistd::access(parent, nix::unistd::AccessFlags::W_OK).is_err() {
        bail!(
            "{} cannot be moved: its user may not write to {}; nothing was changed",
            from.display(),
            parent.display()
        );
    }
    let spaces = from.join("pg_tblspc");
    for entry in fs::read_dir(&spaces).with_context(|| format!("read {}", spaces.display()))? {
        let target = fs::canonicalize(entry.context("read pg_tblspc")?.path()).context("find a tablespace")?;
        if target.starts_with(from) && target.parent() != Some(&spaces) {
            bail!(
                "the tablespace {} is inside the data folder: move it elsewhere; nothing was changed",
                target.display()
            );
        }
    }
    Ok(())
}

pub fn on_one_file_system(from: &Path, to: &Path) -> Result<()> {
    let parent = from.parent().context("the data folder is the root folder")?;
    let device = |path: &Path| {
        let looked_at = fs::metadata(path).with_context(|| format!("look at {}", path.display()));
        Ok::<_, anyhow::Error>(looked_at?.dev())
    };
    let (from_device, shown) = (device(from)?, from.display());
    if from_device != device(parent)? {
        bail!("{shown} is a mount point: move what is in it into a folder of its own there; nothing was changed");
    }
    if from_device != device(to)? {
        bail!(
            "{shown} and {} are on different file systems: choose a folder beside it; nothing was changed",
            to.display()
        );
    }
    Ok(())
}

// ---- the checks ----

type Found = Vec<(Check, Vec<String>)>;

fn check_only(args: &AdoptArgs, old: &Old) -> Result<ExitCode> {
    let pid_file = fs::read_to_string(old.data.join("postmaster.pid")).unwrap_or_default();
    // PostgreSQL's pidfile.h: the port is on line 4, the folder of the first socket on line 5.
    let lines: Vec<&str> = pid_file.lines().collect();
    let found = match (processes_left(&old.data).is_empty(), &lines[..]) {
        (false, [_, _, _, port, socket, ..]) => {
            let dbname = old.database.replace('\\', "\\\\").replace('\'', "\\'");
            let conninfo = format!("host='{socket}' port={port} user=postgres dbname='{dbname}'");
            check_running(&conninfo, args)
                .context("the server runs, and has to let this user in as the role postgres; or stop it first")?
        }
        _ => {
            is_stopped(&old.data, &old.bin_dir)?;
            check_stopped(old, args)?
        }
    };
    Ok(report(&found))
}

fn check_stopped(old: &Old, args: &AdoptArgs) -> Result<Found> {
    let checks = checks::all(args.sequences.stride(), &args.local);
    let queries: Vec<String> = checks.iter().map(|check| check.sql.clone()).collect();
    let rows = old.single_user().rows("looking at the database", &old.database, &queries)?;
    Ok(checks.into_iter().zip(rows).collect())
}

fn check_running(conninfo: &str, args: &AdoptArgs) -> Result<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let client = crate::conninfo::connect(conninfo, "onetrip adopt").await?;
        // One snapshot, and nothing that the checks call can change anything.
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.context("begin")?;
        let mut found = Vec::new();
        let asked = |check: &Check| args.connect.is_none() || !check.of_server;
        for check in checks::all(args.sequences.stride(), &args.local).into_iter().filter(asked) {
            let query = format!("SELECT x FROM ({}) AS t(x) WHERE x IS NOT NULL", check.sql);
            let rows = client.query(&query, &[]).await.with_context(|| format!("look for: {}", check.what))?;
            let names = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>();
            found.push((check, names.context("read what was found")?));
        }
        Ok(found)
    })
}

/// Prints what was found.  It fails if the database cannot be adopted as it is.
fn report(found: &Found) -> ExitCode {
    /// More names than this are counted.
    const NAMES_MAX: usize = 10;
    let found: Vec<_> = found.iter().filter(|(_, names)| !names.is_empty()).collect();
    let mut heading = None;
    for (check, names) in &found {
        if heading != Some(check.level) {
            say!("{}", check.level.heading());
            heading = Some(check.level);
        }
        let more = names.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        say!("  {}: {named}{more}\n    {}", check.what, check.todo);
    }
    match found.iter().filter(|(check, _)| check.level == Level::Stops).count() {
        0 => {
            say!("the database can be adopted");
            ExitCode::SUCCESS
        }
        count => {
            say!("the database cannot be adopted as it is: {count} of these have to be changed first");
            ExitCode::from(1)
        }
    }
}

// ---- the plan ----

/// Writes everything that the steps need into the node's folder.  The old server is only read.
fn prepare(args: &AdoptArgs, old: &Old, data: &Path) -> Result<()> {
    let query = |sql: &str| sql.to_string();
    let rows = old.single_user().rows(
        "reading the settings",
        &old.database,
        &[
            query("SELECT name || chr(10) || setting FROM pg_file_settings WHERE name IS NOT NULL ORDER BY seqno"),
            query("SELECT name || chr(10) || setting FROM pg_settings WHERE name IN ('hba_file', 'ident_file', 'port', 'listen_addresses', 'config_file', 'data_directory')"),
        ],
    )?;
    let pairs = |rows: &[String]| -> BTreeMap<String, String> {
        rows.iter().filter_map(|row| row.split_once('\n')).map(|(n, v)| (n.to_string(), v.to_string())).collect()
    };
    let (in_files, now) = (pairs(&rows[0]), pairs(&rows[1]));
    let now = |name: &str| now.get(name).with_context(|| format!("the server has no setting {name}"));
    let here = Path::new(now("data_directory")?).canonicalize().context("find the server's data_directory")?;
    ensure!(here == old.data, "the settings are those of {}: name the right --config-file", here.display());
    let folder = data.join("adopting.unfinished");
    remove_folder(&folder)?;
    for name in ["", "old", "new"] {
        fs::create_dir(folder.join(name)).with_context(|| format!("make {}", folder.display()))?;
    }
    for name in SETTINGS_FILES {
        let file = old.data.join(name);
        if file.is_file() {
            fs::copy(&file, folder.join("old").join(name)).with_context(|| format!("copy {}", file.display()))?;
        }
    }
    let (text, left_out) = settings::adopted(now("config_file")?, &in_files);
    for (name, value) in left_out.iter().filter(|(name, _)| !["port", "listen_addresses"].contains(&name.as_str())) {
        say!("left out, since the node or the cluster sees to it: {name} = {}", quoted(value));
    }
    let read = |name: &str| -> Result<String> {
        let file = Path::new(now(name)?);
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        ensure!(
            !settings::names_other_files(&text) || file.parent() == Some(&old.data),
            "{} names other files, with @ or include: put what they say into it",
            file.display()
        );
        Ok(text)
    };
    let new = [
        ("postgresql.conf", text),
        (
            "postgresql.auto.conf",
            "# Do not edit this file manually!\n# It will be overwritten by the ALTER SYSTEM command.\n".into(),
        ),
        ("pg_hba.conf", hba::with_node(&read("hba_file")?)),
        ("pg_ident.conf", hba::with_map(&read("ident_file")?, &old.os_user)),
    ];
    for (name, text) in &new {
        fs::write(folder.join("new").join(name), text).with_context(|| format!("write {name}"))?;
    }
    let port = args.place.port.or(now("port")?.parse().ok()).context("read the server's port")?;
    let mut config = config(args, old, port, now("listen_addresses")?)?;
    config.data_dir = data.to_path_buf();
    Server::of(&config)?.check()?;
    if config.tls {
        let authority = Authority::new(&config.cluster)?;
        tls::write_folder(data, &authority, &authority.issue_at(config.node, &config.addresses()?)?)?;
    }
    config.data_dir = folder.clone();
    config.save()?;
    let plan = Plan { from: old.data.clone(), local: args.local.clone() };
    fs::write(folder.join("plan.json"), serde_json::to_string_pretty(&plan)?).context("write the plan")?;
    nix::unistd::syncfs(fs::File::open(&folder)?).context("write the plan to disk")?;
    fs::rename(&folder, data.join(ADOPTING)).context("name the plan")?;
    Ok(sync_folder(data)?)
}

fn config(args: &AdoptArgs, old: &Old, postgres_port: u16, listen_addresses: &str) -> Result<NodeConfig> {
    let cluster = args.cluster.clone().map_or_else(init::random_name, Ok)?;
    tls::check_cluster_name(&cluster).map_err(BadUsage)?;
    let place = args.place.choose()?;
    place.warn_if_only_here();
    // What node.toml says of the first members are addresses.
    let address = place.address.parse();
    let address =
        address.map_err(|_| BadUsage(format!("--address {}: give an IP address and a port", place.address)))?;
    let region = RegionId::from(args.region.as_deref().context("--region is missing")?);
    Ok(NodeConfig {
        sequence_stride: args.sequences.stride(),
        level: onetrip_core::level::KNOWN,
        key_seed: KeySeed::draw()?,
        lab: args.lab.asked(),
        tls: !args.lab.asked(),
        postgres: Some(PostgresConfig {
            listen: listen_addresses.to_string(),
            ..PostgresConfig::new(postgres_port, old.bin_dir.clone(), old.database.clone(), old.os_user.clone())
        }),
        members: vec![Member { id: NodeId(1), region: region.clone(), address, role: MemberRole::Voter }],
        ..NodeConfig::new(cluster, NodeId(1), region, place.listen, place.http)
    })
}

pub fn plan(data: &Path) -> Result<Plan> {
    let file = data.join(ADOPTING).join("plan.json");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", file.display()))
}

/// The configuration of the node that is being made in `data`.
pub fn planned_config(data: &Path) -> Result<NodeConfig> {
    let mut config = NodeConfig::load(&data.join(ADOPTING))?;
    config.data_dir = data.to_path_buf();
    Ok(config)
}

/// Two commands on one folder would undo each other's steps.  The kernel releases the lock with the process.
pub fn lock(data: &Path) -> Result<Flock<fs::File>> {
    let file = data.join("node.lock");
    let opened = fs::File::options().create(true).truncate(false).write(true).open(&file);
    let opened = opened.with_context(|| format!("open {}", file.display()))?;
    Flock::lock(opened, FlockArg::LockExclusiveNonblock)
        .map_err(|_| anyhow::anyhow!("a node, or another command, runs on {}: stop it first", data.display()))
}

// ---- the steps ----

fn carry_out(data: &Path) -> Result<ExitCode> {
    let _lock = lock(data)?;
    let config = steps(data).with_context(|| {
        let shown = data.display();
        format!("not finished: call the same command again, or go back with `onetrip release --data {shown}`")
    })?;
    say!(
        "{}: node {} in {} of the new cluster {} (PostgreSQL port {}); start it with: onetrip start --data {}",
        data.display(),
        config.node,
        config.region,
        config.cluster,
        config.postgres.as_ref().map_or(0, |p| p.port),
        data.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn steps(data: &Path) -> Result<NodeConfig> {
    reached("planned");
    let (plan, config) = (plan(data)?, planned_config(data)?);
    let server = Server::of(&config)?;
    let (moving, done) = (data.join(MOVING), server.data());
    if !moving.exists() && !done.exists() {
        // Somebody may have started it since the plan was made.
        is_stopped(&plan.from, &server.bin_dir)?;
        rename(&plan.from, &moving)?;
    }
    reached("moved");
    if moving.exists() {
        for name in SETTINGS_FILES {
            put_file(data, "new", name)?;
        }
        server.write_settings(&moving)?;
        // Where there is no postgresql.conf, nothing is converted (`release.rs`).
        sync_all(&moving)?;
        reached("settings");
        convert(&server, &moving, &plan.local)?;
        reached("converted");
        sync_all(&moving)?;
        rename(&moving, &done)?;
    }
    reached("renamed");
    config.save()?;
    sync_folder(data)?;
    reached("saved");
    rename(&data.join(ADOPTING), &data.join(ADOPTED))?;
    Ok(config)
}

/// All of it in one transaction, which may be there already.
fn convert(server: &Server, data: &Path, local: &[String]) -> Result<()> {
    let offline = SingleUser { libraries: Some("onetrip"), ..SingleUser::of(&server.bin_dir, data) };
    let there = "SELECT 'there' FROM pg_extension WHERE extname = 'onetrip'".to_string();
    if !offline.rows("opening the server", &server.database, &[there])?[0].is_empty() {
        return Ok(());
    }
    let database = identifier(&server.database);
    let converted = checks::converted(local);
    let mut statements: Vec<String> = [
        "BEGIN",
        // Default privileges of the superuser are not meant for the extension's objects, which have their own.
        "UPDATE pg_default_acl SET defaclrole = 0 WHERE defaclrole = 10",
        "CREATE EXTENSION onetrip",
        "UPDATE pg_default_acl SET defaclrole = 10 WHERE defaclrole = 0",
        "SELECT pg_catalog.pg_replication_origin_create('onetrip')",
        &format!("ALTER DATABASE {database} SET default_table_access_method = 'onetrip'"),
        // What CREATE TABLE ... USING onetrip notes.
        &format!(
            "INSERT INTO pg_depend SELECT 'pg_class'::regclass, c.oid, 0, 'pg_am'::regclass, am.oid, 0, 'n' \
             FROM pg_class c, pg_am am WHERE am.amname = 'onetrip' AND {converted}"
        ),
        &format!("UPDATE pg_class c SET relam = am.oid FROM pg_am am WHERE am.amname = 'onetrip' AND {converted}"),
    ]
    .map(String::from)
    .into();
    if is_asked_for("converting") {
        offline.run("making the tables replicated ones", &server.database, &statements)?;
        reached("converting");
    }
    statements.push("COMMIT".into());
    offline.run("making the tables replicated ones", &server.database, &statements)?;
    Ok(())
}

/// Copies a settings file of the plan, `new` or `old`, into the data folder: whole, or not at all.
pub fn put_file(data: &Path, from: &str, name: &str) -> Result<()> {
    let (copy, file) = (data.join(ADOPTING).join(name), data.join(MOVING).join(name));
    let put = || -> std::io::Result<()> {
        fs::copy(data.join(ADOPTING).join(from).join(name), &copy)?;
        fs::File::open(&copy)?.sync_all()?;
        fs::rename(&copy, &file)
    };
    put().with_context(|| format!("write {}", file.display()))
}

pub fn sync_all(folder: &Path) -> Result<()> {
    nix::unistd::syncfs(fs::File::open(folder)?).with_context(|| format!("write {} to disk", folder.display()))
}

/// Both folders are on disk when it returns.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("rename {} to {}", from.display(), to.display()))?;
    for path in [from, to] {
        sync_folder(path.parent().context("a folder has a parent")?)?;
    }
    Ok(())
}

/// A test ends the command here, as kill -9 would.
pub fn reached(step: &str) {
    if is_asked_for(step) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}

fn is_asked_for(step: &str) -> bool {
    cfg!(feature = "lab") && std::env::var_os("ONETRIP_KILLED_AT").is_some_and(|at| at.to_str() == Some(step))
}
