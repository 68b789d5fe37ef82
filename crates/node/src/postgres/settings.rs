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

/// What the node writes, in the data folder.
pub(super) const NODE_SETTINGS: &str = "onetrip.conf";
/// PostgreSQL follows no more includes than this, one in the other.
const INCLUDES_MAX: u32 = 10;

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

/// Calls `found` with each file, number of a line, name in lower case and value of what the owner's file says, and what
/// is included there.  What cannot be read the server itself complains about.
pub(super) fn each_setting(file: &Path, found: &mut dyn FnMut(&Path, usize, &str, &str)) {
    each_setting_below(file, INCLUDES_MAX, found);
}

fn each_setting_below(file: &Path, includes: u32, found: &mut dyn FnMut(&Path, usize, &str, &str)) {
    if includes == 0 || file.ends_with(NODE_SETTINGS) {
        return;
    }
    let text = fs::read(file).unwrap_or_default();
    for (at, line) in String::from_utf8_lossy(&text).lines().enumerate() {
        let (name, value) = name_and_value(line);
        let named = file.with_file_name(value);
        match name.as_str() {
            "" => {}
            "include" | "include_if_exists" => each_setting_below(&named, includes - 1, found),
            "include_dir" => {
                let files = fs::read_dir(named).into_iter().flatten().flatten().map(|entry| entry.path());
                let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|of| of == "conf")).collect();
                files.sort();
                files.iter().for_each(|file| each_setting_below(file, includes - 1, found));
            }
            name => found(file, at + 1, name, value),
        }
    }
}

fn name_and_value(line: &str) -> (String, &str) {
    let line = line.trim_start();
    let (name, rest) =
        line.split_at(line.find(|c: char| !c.is_alphanumeric() && !"_.$".contains(c)).unwrap_or(line.len()));
    let value = rest.trim_start_matches([' ', '\t', '=']);
    let value = match value.strip_prefix('\'') {
        Some(value) => value.split('\'').next(),
        None => value.split([' ', '\t', '#']).next(),
    };
    (name.to_ascii_lowercase(), value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_owners_files_say_is_found_in_every_file_that_is_included() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::create_dir(place("more")).unwrap();
        fs::create_dir(place("more/deep")).unwrap();
        let main =
            "# port = 1\ninclude = 'onetrip.conf'\n\n  Port 2 # two\ninclude_dir 'more'\ninclude 'postgresql.conf'\n";
        fs::write(place("postgresql.conf"), main).unwrap();
        fs::write(place(NODE_SETTINGS), "port = 3\n").unwrap();
        fs::write(place("more/b.conf"), "Onetrip.Key_Seed='4'\n").unwrap();
        fs::write(place("more/a.conf"), "include_if_exists deep/c\ninclude_if_exists none\n").unwrap();
        fs::write(place("more/not"), "port = 5\n").unwrap();
        fs::write(place("more/deep/c"), b"\xff\nport = '6' # six").unwrap();
        let mut found = Vec::new();
        each_setting(&place("postgresql.conf"), &mut |file, line, name, value| {
            let file = file.strip_prefix(folder.path()).unwrap().display();
            found.push(format!("{file}:{line} {name}={value}"));
        });
        let once = ["postgresql.conf:4 port=2", "more/deep/c:2 port=6", "more/b.conf:1 onetrip.key_seed=4"];
        assert_eq!(found.len() % once.len(), 0, "{found:?}");
        assert_eq!(found[..once.len()], once, "and a file that includes itself comes to an end");
    }

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
