//! Finds out the [`Facts`] of a PostgreSQL from its programs, whether it runs or not.
//!
//! What pg_upgrade compares comes from `pg_controldata`, run on the node's data folder.  If that has yet to be copied
//! from a member, or is damaged, it is run on a folder that `initdb` makes for this purpose and that is removed again.
//! Either folder shows how the programs were built, since a server does not start on a folder made by programs that
//! were built differently.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::bootstrap::{succeeded, ENCODING};
use super::server::{in_english, installed_version};
use super::{may_be_there, remove_folder, PostgresError};
use crate::facts::Facts;

/// Each fact as `pg_controldata` calls it, and as a person is told of it.  "Maximum length of identifiers" is
/// NAMEDATALEN; a block's size decides which values fit into an index.
const OF_CONTROL_FILE: [(&str, &str); 7] = [
    ("Maximum data alignment", "maximum data alignment"),
    ("Database block size", "database block size"),
    ("Maximum length of identifiers", "maximum length of identifiers"),
    ("Maximum columns in an index", "maximum number of columns in an index"),
    ("Maximum size of a TOAST chunk", "maximum size of a TOAST chunk"),
    ("Size of a large-object chunk", "size of a large-object chunk"),
    ("Float8 argument passing", "passing of float8 arguments"),
];

/// What `pg_controldata` says of a file with a wrong checksum, on standard output or on standard error, before it shows
/// what is in it.
const DAMAGED: &str = "CRC checksum does not match";

/// The facts of the PostgreSQL whose programs are in `bin_dir`, for the node in `node_folder`.  To be called as the OS
/// user that the server runs as.
pub fn facts(bin_dir: &Path, node_folder: &Path) -> Result<Facts, PostgresError> {
    let programs = Programs { bin_dir, node_folder };
    let mut alike = programs.of_control_file()?;
    alike.extend(of_this_machine());
    alike.push(("lz4 compression", if programs.have_lz4()? { "present" } else { "absent" }.to_string()));
    // Every database that `onetrip init` makes has this encoding; in a database with another one, the extension refuses
    // to be created.
    alike.push(("database encoding", ENCODING.to_string()));
    let version = installed_version(bin_dir)?;
    let version =
        u16::try_from(version).map_err(|_| PostgresError::Refused(format!("there is no PostgreSQL {version}")))?;
    Ok(Facts { version, alike: alike.into_iter().map(|(name, value)| (name.to_string(), value)).collect() })
}

/// What `pg_controldata` says of a data folder, by name.  It is an error if that was made by programs that were built
/// for another kind of machine than this one.
pub fn control_data(bin_dir: &Path, data: &Path) -> Result<BTreeMap<String, String>, PostgresError> {
    let text = Programs { bin_dir, node_folder: data }.control_data(data)?;
    of_control_file(&text).map_err(PostgresError::Refused)?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(name, value)| (name.trim().to_string(), value.trim().to_string())).collect())
}

/// The facts that no program of PostgreSQL shows.  They are those of this node's program, which is built for the
/// machine that its PostgreSQL runs on.
fn of_this_machine() -> Vec<(&'static str, String)> {
    let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
    vec![
        ("byte order", order.to_string()),
        ("alignment of int2", align_of::<i16>().to_string()),
        ("alignment of int4", align_of::<i32>().to_string()),
        ("alignment of int8", align_of::<i64>().to_string()),
        ("alignment of float8", align_of::<f64>().to_string()),
    ]
}

pub(super) fn of_control_file(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let value = |label: &str| {
        let line = text.lines().filter_map(|l| l.split_once(':')).find(|(name, _)| name.trim() == label);
        line.map(|(_, value)| value.trim().to_string()).filter(|value| !value.is_empty())
    };
    let facts: Result<Vec<_>, String> = OF_CONTROL_FILE
        .into_iter()
        .map(|(label, name)| {
            Ok((name, value(label).ok_or_else(|| format!("pg_controldata does not show \"{label}\""))?))
        })
        .collect();
    let facts = facts?;
    // PostgreSQL's MAXALIGN is the largest of these (configure).
    let largest = align_of::<i64>().max(align_of::<f64>()).to_string();
    match facts.iter().find(|(name, _)| *name == "maximum data alignment") {
        Some((name, value)) if *value != largest => Err(format!(
            "{name} is {value} in this PostgreSQL and {largest} in onetrip: build both for the same machine"
        )),
        _ => Ok(facts),
    }
}

struct Programs<'a> {
    bin_dir: &'a Path,
    node_folder: &'a Path,
}

impl Programs<'_> {
    fn run(&self, name: &str, args: &[&str]) -> Result<Output, PostgresError> {
        let program = self.bin_dir.join(name);
        let output = in_english(&program).current_dir(self.node_folder).args(args).output();
        output.map_err(|source| PostgresError::Program { program, source })
    }

    fn of_control_file(&self) -> Result<Vec<(&'static str, String)>, PostgresError> {
        let read = |data: &Path| of_control_file(&self.control_data(data)?).map_err(PostgresError::Refused);
        let data = self.node_folder.join("postgres");
        if may_be_there(&data.join("global/pg_control")) {
            match read(&data) {
                Ok(facts) => return Ok(facts),
                // The server says so as well when it is started; the node votes meanwhile.
                Err(e) => tracing::warn!("{} is damaged or cannot be read: {e}", data.display()),
            }
        }
        let scratch = Scratch::new(self.node_folder)?;
        let folder = scratch.0.display().to_string();
        let made =
            self.run("initdb", &["-D", &folder, "-U", "postgres", "--no-sync", "--locale=C", "--auth=reject"])?;
        succeeded("initdb", &made)?;
        read(&scratch.0)
    }

    /// The output of `pg_controldata`.
    fn control_data(&self, data: &Path) -> Result<String, PostgresError> {
        let output = self.run("pg_controldata", &["-D", &data.display().to_string()])?;
        succeeded("pg_controldata", &output)?;
        let [text, warnings] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
        if text.contains(DAMAGED) || warnings.contains(DAMAGED) {
            let file = data.join("global/pg_control");
            return Err(PostgresError::Refused(format!("the checksum of {} is wrong", file.display())));
        }
        Ok(text)
    }

    /// Asks `postgres -C`, which shows a setting and exits, and refuses a value that this build does not know.  It does
    /// not read the user's configuration files.
    fn have_lz4(&self) -> Result<bool, PostgresError> {
        let folder = self.node_folder.display().to_string();
        let ask = |method: &str| {
            let set = format!("default_toast_compression={method}");
            self.run(
                "postgres",
                &["-C", "default_toast_compression", "-D", &folder, "-c", "config_file=/dev/null", "-c", &set],
            )
        };
        let output = ask("lz4")?;
        if output.status.success() {
            return Ok(true);
        }
        // Every build knows pglz.  If this one refuses it too, it has refused for another reason.
        succeeded("asking PostgreSQL which compression methods it has", &ask("pglz")?)?;
        Ok(false)
    }
}

/// A folder that is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(node_folder: &Path) -> Result<Scratch, PostgresError> {
        let folder = node_folder.join(format!("postgres.facts-{}", std::process::id()));
        remove_folder(&folder)?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::write_program;
    use super::*;

    const TOLD: &str = "pg_control version number:            1300\n\
                        Maximum data alignment:               8\n\
                        Database block size:                  8192\n\
                        Maximum length of identifiers:        64\n\
                        Maximum columns in an index:          32\n\
                        Maximum size of a TOAST chunk:        1996\n\
                        Size of a large-object chunk:         2048\n\
                        Float8 argument passing:              by value\n";

    #[test]
    fn what_pg_controldata_tells_is_read_and_what_it_leaves_out_is_an_error() {
        let facts = of_control_file(TOLD).unwrap();
        assert_eq!(facts.len(), OF_CONTROL_FILE.len());
        assert!(facts.contains(&("maximum size of a TOAST chunk", "1996".into())), "{facts:?}");
        for (label, _) in OF_CONTROL_FILE {
            let left_out: String = TOLD.lines().filter(|l| !l.starts_with(label)).map(|l| format!("{l}\n")).collect();
            assert!(of_control_file(&left_out).unwrap_err().contains(label));
        }
    }

    /// Goal: what has happened to a data folder does not keep the node, and so its vote, away.
    #[test]
    fn a_damaged_control_file_is_told_and_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let bin_dir = folder.path().join("bin");
        let control = folder.path().join("postgres/global/pg_control");
        for folder in [&bin_dir, control.parent().unwrap()] {
            fs::create_dir_all(folder).unwrap();
        }
        // A scratch folder shows what is true; the node's own says `$(cat pg_control)` if that is not empty.
        write_program(&bin_dir.join("initdb"), "mkdir \"$2\"");
        write_program(&bin_dir.join("postgres"), "echo 'postgres (PostgreSQL) 15.20'");
        let own = "grep -q . \"$2/global/pg_control\" && exec cat \"$2/global/pg_control\"; echo 'error: truncated' >&2; exit 1";
        let script = format!("case \"$2\" in */postgres) {own};; esac\ncat <<E\n{TOLD}E\n");
        write_program(&bin_dir.join("pg_controldata"), &script);
        let block = || facts(&bin_dir, folder.path()).map(|facts| facts.alike["database block size"].clone());
        assert_eq!(block().unwrap(), "8192", "there is none");
        let own = TOLD.replace("8192", "4096");
        fs::write(&control, &own).unwrap();
        assert_eq!(block().unwrap(), "4096");
        let warned = format!("WARNING: Calculated CRC checksum does not match value stored in file.\n{own}");
        for damaged in [String::new(), warned, own.replace("Database block size", "Nonsense")] {
            fs::write(&control, &damaged).unwrap();
            assert_eq!(block().unwrap(), "8192", "{damaged}");
            assert!(damaged.contains("Nonsense") || control_data(&bin_dir, &folder.path().join("postgres")).is_err());
        }
    }

    #[test]
    fn a_node_built_for_another_machine_than_its_postgresql_is_refused() {
        let why = of_control_file(&TOLD.replace("alignment:               8", "alignment: 4")).unwrap_err();
        assert!(why.contains("maximum data alignment is 4 in this PostgreSQL and 8 in onetrip"), "{why}");
    }
}
