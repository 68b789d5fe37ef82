//! For tests, which make many clusters: the first server that [`super::bootstrap`] makes is kept as a template, in the
//! folder that `ONETRIP_LAB_TEMPLATE` names, and those that would be made in the same way are copies of it.  This
//! exists only in builds with the feature `lab`.
//!
//! So several nodes' servers have the same system identifier, as after a copy from another node, and a loss of power
//! may take what is in them: copies are not synced to disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use ring::digest::{Context, SHA256};

use super::bootstrap::{make, succeeded};
use super::{file_error, hba, is_there, remove_folder, LetIn, PostgresError, Server};

const FOLDER: &str = "ONETRIP_LAB_TEMPLATE";

/// Makes the data folder `data`, which does not exist, from a template if one is asked for.
pub(super) fn make_or_copy(server: &Server, data: &Path, let_in: &LetIn) -> Result<(), PostgresError> {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return make(server, data, let_in) };
    let template = folder.join(key(server, let_in)?);
    let lock = fs::File::create(folder.join("lock")).map_err(file_error("open", &folder))?;
    // Whoever makes the template has the processors for itself; the others have less to do after that.
    let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| file_error("lock", &folder)(e.into()))?;
    if !is_there(&template)? {
        make(server, data, let_in)?;
        let unfinished = template.with_extension("unfinished");
        remove_folder(&unfinished)?;
        copy(data, &unfinished)?;
        return fs::rename(&unfinished, &template).map_err(file_error("rename", &unfinished));
    }
    drop(lock);
    copy(&template, data)?;
    server.write_settings(data).map(|_| ())
}

/// The same for servers that differ in nothing but their settings, which are written behind the copy.
fn key(server: &Server, let_in: &LetIn) -> Result<String, PostgresError> {
    let mut hash = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        hash.update(&part.len().to_le_bytes());
        hash.update(part);
    };
    // initdb looks up the time zone here.
    let zone = std::env::var_os("TZ").unwrap_or_default();
    add(zone.as_encoded_bytes());
    add(server.bin_dir.as_os_str().as_encoded_bytes());
    add(server.database.as_bytes());
    add(hba::own_user()?.as_bytes());
    add(format!("{let_in:?}").as_bytes());
    for file in files_of_extension(server)? {
        add(&fs::read(&file).map_err(file_error("read", &file))?);
    }
    Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Its library, its control file and its scripts, always in the same order.
fn files_of_extension(server: &Server) -> Result<Vec<PathBuf>, PostgresError> {
    let output = server.command("pg_config").args(["--pkglibdir", "--sharedir"]).output();
    let output = output.map_err(|source| PostgresError::Program { program: server.program("pg_config"), source })?;
    succeeded("pg_config", &output)?;
    let folders = String::from_utf8_lossy(&output.stdout);
    let (libraries, shared) = folders.trim_end().split_once('\n').unwrap_or_default();
    let scripts = Path::new(shared).join("extension");
    let mut files = vec![Path::new(libraries).join("onetrip.so")];
    for entry in fs::read_dir(&scripts).map_err(file_error("read", &scripts))? {
        let name = entry.map_err(file_error("read", &scripts))?.file_name();
        if name.to_string_lossy().starts_with("onetrip.") || name.to_string_lossy().starts_with("onetrip--") {
            files.push(scripts.join(name));
        }
    }
    files.sort();
    Ok(files)
}

/// With owners and modes.
fn copy(from: &Path, to: &Path) -> Result<(), PostgresError> {
    let output = Command::new("cp").arg("-a").args([from, to]).output().map_err(file_error("copy", from))?;
    succeeded("copying the template", &output)
}

#[cfg(test)]
mod tests {
    use super::super::{example, write_program};
    use super::*;

    /// Goal: a server that would be made in another way, or with another extension, is no copy of this one.
    #[test]
    fn whatever_gets_into_a_server_is_in_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::create_dir(place("extension")).unwrap();
        write_program(&place("pg_config"), r#"echo "${0%/*}"; echo "${0%/*}""#);
        let files = ["onetrip.so", "extension/onetrip.control", "extension/onetrip--0.1.sql"];
        files.iter().for_each(|name| fs::write(place(name), "as it was").unwrap());
        let server = Server { bin_dir: folder.path().into(), ..example(folder.path()) };
        let mut keys = vec![key(&server, &LetIn::default()).unwrap()];
        let other_node = Server { node_id: 3, port: 5434, region: "other".into(), ..server.clone() };
        assert_eq!(key(&other_node, &LetIn::default()).unwrap(), keys[0]);
        fs::write(place("extension/other--0.1.sql"), "").unwrap();
        assert_eq!(key(&server, &LetIn::default()).unwrap(), keys[0]);

        let other_database = Server { database: "shop".into(), ..server.clone() };
        keys.push(key(&other_database, &LetIn::default()).unwrap());
        keys.push(key(&server, &LetIn { trust: true, verifier: None }).unwrap());
        keys.push(key(&server, &LetIn { trust: false, verifier: Some("secret".into()) }).unwrap());
        for name in files {
            fs::write(place(name), "changed").unwrap();
            keys.push(key(&server, &LetIn::default()).unwrap());
        }
        fs::write(place("extension/onetrip--0.1--0.2.sql"), "").unwrap();
        keys.push(key(&server, &LetIn::default()).unwrap());
        let different: std::collections::BTreeSet<&String> = keys.iter().collect();
        assert_eq!(different.len(), 8, "{keys:?}");
    }
}
