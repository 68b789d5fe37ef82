//! The settings files in a data folder, and what another server's say for that server alone.

use std::fs;
use std::io;
use std::path::Path;

use super::{file_error, PostgresError};
use crate::disk::write_whole;

/// They stay a node's own, whichever member its rows are copied from.
pub const SETTINGS_FILES: [&str; 4] = ["postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"];

/// Two servers with these would get into each other's way, or be at each other's files.  A copy has the WAL's names of
/// the server that was copied, with other contents: both would archive to the same files.
const OF_ONE_SERVER: [&str; 12] = [
    "archive_command",
    "archive_library",
    "archive_mode",
    "data_directory",
    "external_pid_file",
    "hba_file",
    "ident_file",
    "listen_addresses",
    "log_directory",
    "port",
    "synchronous_standby_names",
    "unix_socket_directories",
];

/// Whether a setting, as it is written in a file, is for one server alone.
pub fn is_of_one_server(name: &str) -> bool {
    OF_ONE_SERVER.iter().any(|of| name.eq_ignore_ascii_case(of))
}

/// Makes a comment of what is for one server alone, in a settings file that was copied from it.  Returns the names.
pub fn leave_out_of_copy(file: &Path) -> Result<Vec<String>, PostgresError> {
    let text = match fs::read(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(file_error("read", file))?,
    };
    let (mut left_out, mut changed) = (Vec::new(), Vec::new());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let line_text = String::from_utf8_lossy(line);
        let name = line_text.trim_start().split(|c: char| !c.is_ascii_alphabetic() && c != '_').next();
        if let Some(name) = name.filter(|name| is_of_one_server(name)) {
            left_out.push(name.to_ascii_lowercase());
            changed.extend_from_slice(b"# of the server that was copied: ");
        }
        changed.extend_from_slice(line);
    }
    if !left_out.is_empty() {
        write_whole(file, &changed).map_err(|e| PostgresError::Refused(e.to_string()))?;
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_one_server_alone_is_left_out_of_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postgresql.conf");
        assert!(leave_out_of_copy(&file).unwrap().is_empty(), "there is none");
        let kept: &[u8] = b"include = 'onetrip.conf'\nport_x = 1\n# archive_mode = on\ncluster_name = '\xff'\n";
        fs::write(
            &file,
            [kept, b"  Archive_Mode on\nPORT=1\nhba_file = '/etc/x'\narchive_command = 'cp %p /wal/%f'"].concat(),
        )
        .unwrap();
        assert_eq!(leave_out_of_copy(&file).unwrap(), ["archive_mode", "port", "hba_file", "archive_command"]);
        let left = fs::read(&file).unwrap();
        assert!(left.starts_with(kept));
        let others = String::from_utf8(left[kept.len()..].to_vec()).unwrap();
        assert!(others.lines().count() == 4 && others.lines().all(|line| line.starts_with("# ")), "{others}");
        assert!(leave_out_of_copy(&file).unwrap().is_empty(), "it is done");
        assert_eq!(fs::read(&file).unwrap(), left);
    }
}
