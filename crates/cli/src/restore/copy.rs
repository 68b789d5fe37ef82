//! Copies a backup's PostgreSQL into the new node's folder and has it verified.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};
use onetrip_client::say;
use onetrip_node::postgres::{leave_out_of_copy, Server, SETTINGS_FILES};

use crate::progress::Progress;

/// On return the server's data folder is complete, verified, its own and durable; after an error it is absent.
pub fn postgres(from: &Path, server: &Server, progress: &mut Progress) -> Result<()> {
    let (data, unfinished) = (&server.node_folder, server.node_folder.join("postgres.unfinished"));
    let mut copied = Copied { bytes: 0, progress };
    copied.folder(from, &unfinished)?;
    progress.show("verifying PostgreSQL's files", None, "");
    verify(&unfinished, &server.bin_dir)?;
    for name in &SETTINGS_FILES[..2] {
        let left_out = leave_out_of_copy(&unfinished.join(name))?;
        if !left_out.is_empty() {
            say!("left out of {name}, as the old server's alone: {}", left_out.join(", "));
        }
    }
    progress.show("recovering PostgreSQL", None, "");
    for what in server.make_own(&unfinished)?.ended {
        say!("the old server's alone: {what}");
    }
    let folder = fs::File::open(&unfinished).with_context(|| format!("open {}", unfinished.display()))?;
    nix::unistd::syncfs(&folder).context("write the copy to disk")?;
    let to = server.data();
    fs::rename(&unfinished, &to).with_context(|| format!("rename {}", unfinished.display()))?;
    fs::File::open(data)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("write {} to disk", data.display()))
}

struct Copied<'a> {
    bytes: u64,
    progress: &'a mut Progress,
}

impl Copied<'_> {
    fn folder(&mut self, from: &Path, to: &Path) -> Result<()> {
        let mode = fs::metadata(from).with_context(|| format!("read {}", from.display()))?.permissions().mode();
        fs::DirBuilder::new().mode(mode & 0o777).create(to).with_context(|| format!("make {}", to.display()))?;
        for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
            let entry = entry.with_context(|| format!("read {}", from.display()))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().with_context(|| format!("look at {}", source.display()))?;
            if kind.is_dir() {
                self.folder(&source, &target)?;
            } else if kind.is_file() {
                self.bytes += fs::copy(&source, &target)
                    .with_context(|| format!("copy {} to {}", source.display(), target.display()))?;
                self.progress.show("copying PostgreSQL", None, &format!("{} MB", self.bytes >> 20));
            } else {
                bail!("{} is neither a file nor a folder", source.display());
            }
        }
        Ok(())
    }
}

/// Verifies every file by the manifest that PostgreSQL made with the backup, and the WAL that the backup needs.
fn verify(folder: &Path, bin_dir: &Path) -> Result<()> {
    let program = bin_dir.join("pg_verifybackup");
    let output = Command::new(&program)
        .args(["--exit-on-error", "--quiet"])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {}; is PostgreSQL installed, and --bin-dir right?", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let why = said.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("it said nothing");
        let why = why.trim_start_matches("pg_verifybackup: ").trim_start_matches("error: ");
        bail!("the backup's PostgreSQL is damaged: {why}; use another backup");
    }
    Ok(())
}
