//! Who may connect to the node's PostgreSQL: `pg_hba.conf` and `pg_ident.conf` of a server that is made or adopted.
//!
//! The node and its commands come through the Unix socket, as the node's user of the operating system or as root, and
//! are let in as the role `postgres` (`peer` with the map `onetrip`).  The map is written anew at each start, since a
//! copy of another node's folder names that node's user.

use std::fs;
use std::path::Path;

use nix::unistd::{geteuid, User};

use super::PostgresError;

pub const BEGIN: &str = "# ---- Onetrip: the settings of the node, written at each start ----";
pub const END: &str = "# ---- end of what Onetrip has added ----";
const NODE: &str = "local all,replication postgres peer map=onetrip";

/// `pg_hba.conf` of a server that `onetrip init` makes, as Debian makes one: roles come through the socket as the user
/// of the operating system with their name, and over TCP with their password.
pub(super) const MADE: &str = "\
# Who may connect to this server, and how it makes sure who that is; the first line that fits counts.
# `SELECT pg_reload_conf()` makes a change effective.  Each region has a file of its own.

# The node and its commands: as the node's user of the operating system, or root (see pg_ident.conf).
local   all,replication postgres                  peer map=onetrip

# TYPE  DATABASE        USER      ADDRESS         METHOD
local   all             all                       peer
host    all             all       127.0.0.1/32    scram-sha-256
host    all             all       ::1/128         scram-sha-256

# For clients on other machines, together with `listen` in node.toml:
# hostssl all           all       10.0.0.0/8      scram-sha-256
";

/// `pg_hba.conf` with the line that lets the node in, before all others.
pub fn with_node(hba: &str) -> String {
    format!("{BEGIN}\n{NODE}\n{END}\n{hba}")
}

/// `pg_ident.conf`, by which the node's user of the operating system, and root, are `postgres`.
pub fn with_map(ident: &str, os_user: &str) -> String {
    // Root may become that user anyway.
    format!("{BEGIN}\nonetrip \"{os_user}\" postgres\nonetrip root postgres\n{END}\n{ident}")
}

/// Without what Onetrip has added.
fn without_map(ident: &str) -> String {
    let (mut kept, mut within) = (String::new(), false);
    for line in ident.split_inclusive('\n') {
        match line.trim() {
            BEGIN => within = true,
            END => within = false,
            _ if !within => kept += line,
            _ => {}
        }
    }
    kept
}

/// Writes the map in the data folder anew for the user that this process runs as, if there is a map.
pub(super) fn write_map(data: &Path) -> Result<(), PostgresError> {
    let path = data.join("pg_ident.conf");
    // Without the file the server says what is wrong.
    let Ok(old) = fs::read_to_string(&path) else { return Ok(()) };
    let new = with_map(&without_map(&old), &own_user()?);
    if !old.lines().any(|line| line.trim() == BEGIN) || new == old {
        return Ok(());
    }
    crate::disk::write_whole(&path, new.as_bytes())
        .map_err(|e| PostgresError::Step { step: "letting this node in".into(), reason: e.to_string() })
}

/// The user of the operating system that this process runs as.
pub(super) fn own_user() -> Result<String, PostgresError> {
    let user = User::from_uid(geteuid()).ok().flatten();
    user.map(|user| user.name).ok_or_else(|| {
        PostgresError::Refused(format!("the user that this program runs as, {}, has no name", geteuid()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_a_copied_folder_names_the_user_here() {
        let dir = tempfile::tempdir().unwrap();
        let (file, me) = (dir.path().join("pg_ident.conf"), own_user().unwrap());
        let theirs = "# MAPNAME\nmine bob app\n";
        write_map(dir.path()).unwrap();
        assert!(!file.exists());
        fs::write(&file, theirs).unwrap();
        write_map(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs, "a server that has no map gets none");
        fs::write(&file, with_map(theirs, "somebody")).unwrap();
        for _ in 0..2 {
            write_map(dir.path()).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            assert_eq!(text, with_map(theirs, &me));
            assert!(!text.contains("somebody") && text.matches(" postgres\n").count() == 2, "{text}");
        }
    }

    #[test]
    fn a_made_server_asks_everybody() {
        let methods: Vec<&str> = MADE.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
        assert_eq!(methods.len(), 4);
        assert!(methods.iter().all(|l| l.contains(" peer") || l.ends_with("scram-sha-256")), "{methods:?}");
    }
}
