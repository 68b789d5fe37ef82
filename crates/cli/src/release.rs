//! `onetrip release`: makes a plain PostgreSQL of a node again; or, while `onetrip adopt` has not finished, of what was
//! to become one, with its old settings and in its old place.
//!
//! ```text
//!   node.toml becomes node.toml.released ──> the data folder moves to NODE/postgres.adopting
//!     ──> one transaction: sequences, access method, no extension ──> settings ──> the data folder moves to --to
//! ```
//! From the first step on nobody starts the node, and each step can be repeated: the same command goes on.  Rows are
//! not touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use onetrip_client::say;
use onetrip_node::config::{NodeConfig, FILE_NAME};
use onetrip_node::disk::write_whole;
use onetrip_node::postgres::{
    become_user, control_data, hba, identifier, is_there, processes_left, quoted, Server, SingleUser, ROOT_BECOMES,
    SETTINGS_FILES, SHOWS,
};

use crate::adopt::{self, reached, rename, settings, ADOPTING, MOVING};
use crate::BadUsage;

/// What node.toml is called once the node is one no more.
pub const RELEASED: &str = "node.toml.released";

/// Make a plain PostgreSQL of a stopped node again
///
/// Its data folder moves to --to, with every database, row, role and privilege in it, and without the extension. It
/// shows the log as far as this node's PostgreSQL had come. An adoption that was interrupted is undone: the server is
/// then where and as it was.
#[derive(Args)]
pub struct ReleaseArgs {
    /// The node's folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where the data folder of the plain PostgreSQL is to be, on the same file system [default, for an adoption that
    /// was interrupted: where it came from]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Leave out what is prepared (PREPARE TRANSACTION) [default: refuse if something is]
    #[arg(long)]
    drop_prepared: bool,
    /// User to run as, if called by root [default: the user that the node was made with]
    #[arg(long)]
    user: Option<String>,
}

pub fn run(args: &ReleaseArgs) -> Result<ExitCode> {
    let data = std::path::absolute(&args.data).context("find the node's folder")?;
    let has = |name: &str| is_there(&data.join(name));
    let undone = has(ADOPTING)? && !has(FILE_NAME)? && !has(RELEASED)?;
    let config = match (undone, has(RELEASED)?) {
        (true, _) => adopt::planned_config(&data)?,
        (false, true) => released_config(&data)?,
        (false, false) => NodeConfig::load(&data)?,
    };
    let user = config.postgres.as_ref().and_then(|p| p.user.as_deref());
    become_user(args.user.as_deref().or(user).unwrap_or(ROOT_BECOMES), &data)?;
    crate::keep_files_private();
    let _lock = adopt::lock(&data)?;
    let server = Server::of(&config)?;
    let to = match (&args.to, undone) {
        (Some(to), false) => std::path::absolute(to).context("find --to")?,
        (None, true) => adopt::plan(&data)?.from,
        (Some(_), true) => {
            let why = "--to: this adoption is not finished, and undoing it puts the server back where it was";
            return Err(BadUsage(why.into()).into());
        }
        (None, false) => return Err(BadUsage("--to DIR is missing: where the data folder is to be".into()).into()),
    };
    let position = match undone {
        true => undo(&data, &server, &to)?,
        false => release(&data, &server, &to, args.drop_prepared)
            .with_context(|| format!("not released: call the same command again ({})", way_back(&data)))?,
    };
    if let Some(position) = position {
        say!("it shows the log up to entry {position}");
    }
    // It may have been released before, to another folder.
    ensure!(to.join("PG_VERSION").is_file(), "{} has no PostgreSQL any more, nor has {}", data.display(), to.display());
    let bin_dir = server.bin_dir.display();
    let to = to.display();
    say!("{to}: a plain PostgreSQL; start it with: {bin_dir}/pg_ctl -D {to} start");
    Ok(ExitCode::SUCCESS)
}

fn way_back(data: &Path) -> String {
    match data.join(RELEASED).exists() {
        true => format!("the node does not start any more; what is left of it is in {}", data.display()),
        false => "nothing was changed".to_string(),
    }
}

fn released_config(data: &Path) -> Result<NodeConfig> {
    let mut config = NodeConfig::load(&data.join(RELEASED))?;
    config.data_dir = data.to_path_buf();
    Ok(config)
}

/// Puts the server that was to become a node back, from any step of the adoption.
fn undo(data: &Path, server: &Server, to: &Path) -> Result<Option<i64>> {
    let (moving, done) = (data.join(MOVING), server.data());
    if is_there(&done)? {
        rename(&done, &moving)?;
    }
    reached("undo-moved");
    if is_there(&moving)? {
        ensure!(!is_there(to)?, "{} exists: move it away, the server's folder belongs there", to.display());
        // A server with its settings elsewhere has none of its own before it is converted, nor once it is as it was.
        if is_there(&moving.join("postgresql.conf"))? {
            plain(server, &moving)?;
        }
        reached("undo-plain");
        for name in SETTINGS_FILES {
            match is_there(&data.join(ADOPTING).join("old").join(name))? {
                true => adopt::put_file(data, "old", name)?,
                false => remove(&moving.join(name))?,
            }
            reached("undo-file");
        }
        remove(&moving.join("onetrip.conf"))?;
        // The only copies of the old files go next.
        adopt::sync_all(&moving)?;
        rename(&moving, to)?;
    }
    reached("undo-back");
    // The plan goes last: as long as it is there, this can be repeated.
    for name in ["tls", ADOPTING] {
        onetrip_node::postgres::remove_folder(&data.join(name))?;
    }
    Ok(None)
}

fn release(data: &Path, server: &Server, to: &Path, drop_prepared: bool) -> Result<Option<i64>> {
    let (moving, folder) = (data.join(MOVING), server.data());
    if !is_there(&data.join(RELEASED))? {
        ensure!(is_there(&folder.join("PG_VERSION"))?, "there is no PostgreSQL in {}", folder.display());
        ensure!(!is_there(to)?, "{} exists: name a folder that does not", to.display());
        let parent = to.parent().context("--to is the root folder")?;
        adopt::on_one_file_system(&folder, parent)?;
        let running = processes_left(&folder);
        ensure!(running.is_empty(), "its PostgreSQL is running: start the node, and stop it in order");
        let control = control_data(&server.bin_dir, &folder)?;
        let state = control.get("Database cluster state").map_or("", String::as_str);
        if state != "shut down" {
            // What was committed last may be in the node's log alone.
            bail!(
                "its PostgreSQL was not shut down in order (it is \"{state}\"): start the node, and stop it in order"
            );
        }
        would_be_lost(server, &folder, drop_prepared)?;
        rename(&data.join(FILE_NAME), &data.join(RELEASED))?;
    }
    reached("released");
    if is_there(&folder)? {
        rename(&folder, &moving)?;
    }
    reached("release-moved");
    let mut position = None;
    if is_there(&moving)? {
        ensure!(!is_there(to)?, "{} exists: move it away", to.display());
        position = plain(server, &moving)?;
        reached("release-plain");
        own_settings(server, &moving)?;
        reached("release-settings");
        rename(&moving, to)?;
    }
    Ok(position)
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Without the extension's library: none of its hooks is there.  `settings`: [`in_this_folder`].
fn offline<'a>(server: &'a Server, data: &'a Path, settings: &'a [(&'static str, String)]) -> SingleUser<'a> {
    SingleUser { libraries: Some(""), settings, ..SingleUser::of(&server.bin_dir, data) }
}

/// A line in the owner's files that names another folder has not counted either while the node ran the server.
fn in_this_folder(data: &Path) -> [(&'static str, String); 1] {
    [("data_directory", data.display().to_string())]
}

/// DROP EXTENSION would fail for objects of users that depend on the extension, and would drop the extension's table of
/// prepared transactions; what they are is said before anything is changed.
fn would_be_lost(server: &Server, data: &Path, drop_prepared: bool) -> Result<()> {
    let dependents = "SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend m \
                 JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid \
                 WHERE m.deptype = 'e' AND m.refclassid = 'pg_extension'::regclass \
                 AND m.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'onetrip') \
                 AND d.deptype IN ('n', 'a') AND m.classid <> 'pg_am'::regclass \
                 AND d.objid IS DISTINCT FROM to_regclass('pg_catalog.onetrip_large_objects') \
                 AND NOT EXISTS (SELECT FROM pg_depend o WHERE o.classid = d.classid AND o.objid = d.objid \
                 AND o.deptype = 'e') AND pg_describe_object(d.classid, d.objid, d.objsubid) !~ 'onetrip\\.'"
        .to_string();
    let prepared = "SELECT quote_literal(gid) FROM onetrip.prepared".to_string();
    let settings = in_this_folder(data);
    let found =
        offline(server, data, &settings).rows("looking at the database", &server.database, &[dependents, prepared])?;
    ensure!(found[0].is_empty(), "these use what the extension offers: {}; drop them first", found[0].join(", "));
    ensure!(
        found[1].is_empty() || drop_prepared,
        "these transactions are prepared, and the plain PostgreSQL would not have them: {}; start the node and say COMMIT \
         PREPARED or ROLLBACK PREPARED first, or give --drop-prepared",
        found[1].join(", ")
    );
    Ok(())
}

/// In one transaction, which may be there already: the sequences go on above what any region has given out, the tables
/// are heap's, and the extension is gone.  Returns the log index that the server shows, if it had one.
fn plain(server: &Server, data: &Path) -> Result<Option<i64>> {
    let settings = in_this_folder(data);
    let offline = offline(server, data, &settings);
    let queries = ["SELECT 'there' FROM pg_extension WHERE extname = 'onetrip'", SHOWS];
    let rows = offline.rows("opening the server", &server.database, &queries.map(String::from))?;
    let position = rows[1].first().and_then(|text| text.parse().ok());
    if !rows[0].is_empty() {
        offline.run("making the tables plain ones", &server.database, &statements(&server.database))?;
    }
    // The role belongs to the server, and the extension of another database may need it.
    let role = "SELECT 'there' FROM pg_roles r WHERE rolname = 'onetrip_admin' AND NOT EXISTS \
                (SELECT FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = r.oid)";
    if !offline.rows("looking at the roles", &server.database, &[role.to_string()])?[0].is_empty() {
        offline.run("dropping the role", &server.database, &["DROP ROLE onetrip_admin".to_string()])?;
    }
    Ok(position)
}

fn statements(database: &str) -> Vec<String> {
    // A sequence's position is the last value that it gave here.  Up to the next value of its own, others may have been
    // given in other regions.  The next own value is a right position for the node, too, in case this transaction does
    // not commit: positions are not transactional.
    const NEXT: &str = "pg_sequence_last_value(s.seqrelid)::numeric + s.seqincrement";
    let used = "FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid \
                WHERE c.reloptions IS NOT NULL AND pg_sequence_last_value(s.seqrelid) IS NOT NULL";
    let value = |name: &str| format!("max(option_value::bigint) FILTER (WHERE option_name = '{name}')");
    vec![
        "BEGIN".into(),
        format!(
            "SELECT setval(s.seqrelid::regclass, ({NEXT})::bigint, false) {used} AND {NEXT} BETWEEN s.seqmin AND s.seqmax"
        ),
        format!(
            "SELECT setval(s.seqrelid::regclass, CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END, true) {used} \
             AND {NEXT} NOT BETWEEN s.seqmin AND s.seqmax"
        ),
        format!(
            "UPDATE pg_sequence s SET seqstart = o.start, seqincrement = o.increment, seqmin = o.minimum, \
             seqmax = o.maximum, seqcache = coalesce(o.cache, seqcache) \
             FROM (SELECT c.oid, {} AS start, {} AS increment, {} AS minimum, {} AS maximum, {} AS cache \
             FROM pg_class c, pg_options_to_table(c.reloptions) WHERE c.relkind = 'S' GROUP BY c.oid) o \
             WHERE o.oid = s.seqrelid",
            value("start"),
            value("increment"),
            value("minimum"),
            value("maximum"),
            value("cache")
        ),
        "UPDATE pg_class SET reloptions = NULL WHERE relkind = 'S' AND reloptions IS NOT NULL".into(),
        "DELETE FROM pg_depend WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_am'::regclass \
         AND refobjid = (SELECT oid FROM pg_am WHERE amname = 'onetrip')"
            .into(),
        "UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'heap') \
         WHERE relam = (SELECT oid FROM pg_am WHERE amname = 'onetrip')"
            .into(),
        "DROP EXTENSION onetrip".into(),
        "DROP SCHEMA IF EXISTS onetrip".into(),
        "SELECT pg_catalog.pg_replication_origin_drop('onetrip')".into(),
        format!("ALTER DATABASE {} RESET default_table_access_method", identifier(database)),
        "UPDATE pg_db_role_setting SET setconfig = (SELECT array_agg(x) FROM unnest(setconfig) x WHERE x NOT LIKE 'onetrip.%') \
         WHERE EXISTS (SELECT FROM unnest(setconfig) x WHERE x LIKE 'onetrip.%')"
            .into(),
        "DELETE FROM pg_db_role_setting WHERE setconfig IS NULL".into(),
        "COMMIT".into(),
    ]
}

/// The settings of a server that no node runs.  What the node had decided and the owner's settings do not say stays.
fn own_settings(server: &Server, data: &Path) -> Result<()> {
    let ours = data.join("onetrip.conf");
    let instead =
        format!("listen_addresses = {}\nport = {}\nmax_connections = 200\n", quoted(&server.listen), server.port);
    // The map is the node's if the line that uses it is; `onetrip init` has written that for good.
    let hba = fs::read_to_string(data.join("pg_hba.conf")).unwrap_or_default();
    let is_adopted = hba.lines().any(|line| line.trim() == hba::BEGIN);
    for name in SETTINGS_FILES.into_iter().filter(|name| is_adopted || *name != "pg_ident.conf") {
        let file = data.join(name);
        let text = match fs::read_to_string(&file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            text => text.with_context(|| format!("read {}", file.display()))?,
        };
        let instead = if name == "postgresql.conf" { instead.as_str() } else { "" };
        // The owner's settings are nowhere else.
        write_whole(&file, settings::without_ours(&text, instead).as_bytes())?;
    }
    remove(&ours)
}
