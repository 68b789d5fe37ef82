//! Makes a node's PostgreSQL: runs initdb, then makes the replicated database in single-user mode, in which no socket
//! is open.
//!
//! The nodes of a new cluster make theirs independently and in the same way; the log starts empty on all of them.  In
//! single-user mode the extension's library has no shared memory and captures nothing, so none of this is replicated.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use super::rebuild::sync_folder;
use super::{file_error, hba, is_there, remove_folder, PostgresError, Server, SingleUser};

/// The encoding of every database in a cluster.
pub(super) const ENCODING: &str = "UTF8";

/// How a server that is made lets clients in.
#[derive(Debug, Clone, Default)]
pub struct LetIn {
    /// Everyone on this machine, as any role; otherwise as Debian does ([`hba`]).
    pub trust: bool,
    /// What is stored of the password of the role `postgres` ([`super::scram_verifier`]); `None`: it has no password.
    pub verifier: Option<String>,
}

/// Makes the data folder of `server`, which must not exist yet.  What an earlier try left unfinished is removed.
pub fn bootstrap(server: &Server, let_in: &LetIn) -> Result<(), PostgresError> {
    server.check()?;
    let data = server.data();
    if is_there(&data)? {
        return Err(PostgresError::Refused(format!("{} exists already; nothing was changed", data.display())));
    }
    let unfinished = server.unfinished();
    remove_folder(&unfinished)?;
    #[cfg(feature = "lab")]
    super::template::make_or_copy(server, &unfinished, let_in)?;
    #[cfg(not(feature = "lab"))]
    make(server, &unfinished, let_in)?;
    fs::rename(&unfinished, &data).map_err(file_error("rename", &unfinished))?;
    sync_folder(&server.node_folder)
}

pub(super) fn make(server: &Server, data: &Path, let_in: &LetIn) -> Result<(), PostgresError> {
    initdb(server, data, let_in)?;
    include_settings(data)?;
    server.write_settings(data)?;
    let name = identifier(&server.database);
    let new = SingleUser::of(&server.bin_dir, data);
    new.run("making the database", "template1", &[format!("CREATE DATABASE {name}")])?;
    let password = let_in.verifier.iter().map(|verifier| format!("ALTER ROLE postgres PASSWORD '{verifier}'"));
    new.run(
        "making the extension",
        &server.database,
        &[
            "CREATE EXTENSION onetrip".to_string(),
            "SELECT pg_catalog.pg_replication_origin_create('onetrip')".to_string(),
            format!("ALTER DATABASE {name} SET default_table_access_method = 'onetrip'"),
        ]
        .into_iter()
        .chain(password)
        .collect::<Vec<_>>(),
    )?;
    Ok(())
}

fn initdb(server: &Server, data: &Path, let_in: &LetIn) -> Result<(), PostgresError> {
    let output = server
        .command("initdb")
        .arg("-D")
        .arg(data)
        .args(["-U", "postgres", "--encoding", ENCODING, "--locale=C.UTF-8"])
        .arg(if let_in.trust { "--auth=trust" } else { "--auth=reject" })
        .stdin(Stdio::null())
        .output()
        .map_err(|source| PostgresError::Program { program: server.program("initdb"), source })?;
    succeeded("initdb", &output)?;
    if let_in.trust {
        return Ok(());
    }
    let (hba, ident) = (data.join("pg_hba.conf"), data.join("pg_ident.conf"));
    fs::write(&hba, hba::MADE).map_err(file_error("write", &hba))?;
    let map = fs::read_to_string(&ident).map_err(file_error("read", &ident))?;
    fs::write(&ident, hba::with_map(&map, &hba::own_user()?)).map_err(file_error("write", &ident))
}

fn include_settings(data: &Path) -> Result<(), PostgresError> {
    let path = data.join("postgresql.conf");
    let mut file = fs::OpenOptions::new().append(true).open(&path).map_err(file_error("open", &path))?;
    file.write_all(b"\n# Onetrip's own settings, written at each start.\ninclude = 'onetrip.conf'\n\n# Your settings go below this line.\n")
        .map_err(file_error("write", &path))
}

pub(super) fn succeeded(step: &str, output: &Output) -> Result<(), PostgresError> {
    if output.status.success() {
        return Ok(());
    }
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let telling = |l: &&&str| ["FATAL:", "ERROR:", "PANIC:", "error:"].iter().any(|mark| l.contains(mark));
    let reason = lines.iter().find(telling).or(lines.last()).map_or("it said nothing", |l| *l);
    let more: String = ["DETAIL:", "HINT:"]
        .iter()
        .filter_map(|mark| lines.iter().find_map(|l| l.find(mark).map(|at| format!("; {}", &l[at..]))))
        .collect();
    Err(PostgresError::Step { step: step.to_string(), reason: format!("{reason}{more} ({})", output.status) })
}

pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
