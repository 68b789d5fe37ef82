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
use super::{file_error, remove_folder, PostgresError, Server};

/// The encoding of every database in a cluster.
pub(super) const ENCODING: &str = "UTF8";

/// Makes the data folder of `server`, which must not exist yet.  What an earlier try left unfinished is removed.
pub fn bootstrap(server: &Server) -> Result<(), PostgresError> {
    server.check()?;
    let data = server.data();
    if data.exists() {
        return Err(PostgresError::Refused(format!("{} exists already; nothing was changed", data.display())));
    }
    let unfinished = server.unfinished();
    remove_folder(&unfinished)?;
    initdb(server, &unfinished)?;
    include_settings(&unfinished)?;
    server.write_settings(&unfinished)?;
    let name = identifier(&server.database);
    single_user(server, &unfinished, "template1", &[format!("CREATE DATABASE {name}")])?;
    single_user(
        server,
        &unfinished,
        &server.database,
        &[
            "CREATE EXTENSION onetrip".to_string(),
            "SELECT pg_catalog.pg_replication_origin_create('onetrip')".to_string(),
            format!("ALTER DATABASE {name} SET default_table_access_method = 'onetrip'"),
        ],
    )?;
    fs::rename(&unfinished, &data).map_err(file_error("rename", &unfinished))?;
    sync_folder(&server.node_folder)
}

fn initdb(server: &Server, data: &Path) -> Result<(), PostgresError> {
    let output = server
        .command("initdb")
        .arg("-D")
        .arg(data)
        .args(["-U", "postgres", "--encoding", ENCODING, "--locale=C.UTF-8", "--auth=trust"])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| PostgresError::Program { program: server.program("initdb"), source })?;
    succeeded("initdb", &output)
}

fn include_settings(data: &Path) -> Result<(), PostgresError> {
    let path = data.join("postgresql.conf");
    let mut file = fs::OpenOptions::new().append(true).open(&path).map_err(file_error("open", &path))?;
    file.write_all(b"\n# Onetrip's own settings, written at each start.\ninclude = 'onetrip.conf'\n\n# Your settings go below this line.\n")
        .map_err(file_error("write", &path))
}

/// Runs statements in single-user mode.  Each is put on one line, since a line is a statement in this mode.
fn single_user(server: &Server, data: &Path, database: &str, statements: &[String]) -> Result<(), PostgresError> {
    let program = server.program("postgres");
    let mut child = server
        .command("postgres")
        .args(["--single", "-c", "exit_on_error=on", "-D"])
        .arg(data)
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| PostgresError::Program { program: program.clone(), source })?;
    let lines: String = statements.iter().map(|s| format!("{}\n", s.replace('\n', " "))).collect();
    if let Some(mut stdin) = child.stdin.take() {
        // Writing fails if the program has ended already.  It says why on its standard error, which is the better
        // message.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(|source| PostgresError::Program { program, source })?;
    succeeded(&format!("making the database ({})", statements.join("; ")), &output)
}

pub(super) fn succeeded(step: &str, output: &Output) -> Result<(), PostgresError> {
    if output.status.success() {
        return Ok(());
    }
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let telling = |l: &&&str| ["FATAL:", "ERROR:", "PANIC:", "error:"].iter().any(|mark| l.contains(mark));
    let reason = lines.iter().find(telling).or(lines.last()).map_or("it said nothing", |l| *l);
    Err(PostgresError::Step { step: step.to_string(), reason: format!("{reason} ({})", output.status) })
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
