//! What `scripts/backup.sh` removes.  A program that writes nothing but a manifest stands for `onetrip`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{ensure, Result};

use crate::told;

/// Folders of the backups and of the archive.
struct Place(tempfile::TempDir);

impl Place {
    /// The archive is of cluster `new`, and its segments begin with these entries.
    fn new(segments: &[u64]) -> Result<Place> {
        let place = Place(tempfile::tempdir()?);
        std::fs::create_dir(place.archive())?;
        std::fs::write(place.archive().join("archive.json"), "{\n  \"format\": 1,\n  \"cluster\": \"new\"\n}")?;
        for first in segments {
            std::fs::write(place.archive().join(format!("{first:016x}.log")), "")?;
        }
        Ok(place)
    }

    fn archive(&self) -> PathBuf {
        self.0.path().join("archive")
    }

    fn backup(&self, name: &str, cluster: &str, checkpoint: u64) -> Result<()> {
        let folder = self.0.path().join("backups").join(name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("manifest.json"), manifest(cluster, checkpoint))?;
        Ok(())
    }

    /// Makes a backup with this checkpoint.
    fn run(&self, checkpoint: u64, keep: u32) -> Result<Output> {
        let program = self.0.path().join("onetrip");
        let script = format!("mkdir -p \"$5\" && cat > \"$5/manifest.json\" <<E\n{}\nE\n", manifest("new", checkpoint));
        // A program that this process has open for writing cannot be run.
        let write = r#"printf '#!/bin/sh\n%s' "$1" > "$0" && chmod 700 "$0""#;
        ensure!(Command::new("sh").arg("-c").arg(write).arg(&program).arg(script).status()?.success());
        let backup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/backup.sh");
        let mut command = Command::new("bash");
        command.arg(backup).arg("node").arg(self.0.path().join("backups")).arg(self.archive()).arg(keep.to_string());
        Ok(command.env("ONETRIP", program).output()?)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let names = std::fs::read_dir(self.0.path().join(folder))?;
        let mut names = names.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn segments(&self) -> Result<Vec<u64>> {
        let names = self.names("archive")?;
        Ok(names.iter().filter_map(|n| u64::from_str_radix(n.strip_suffix(".log")?, 16).ok()).collect())
    }
}

fn manifest(cluster: &str, checkpoint: u64) -> String {
    format!("{{\n  \"cluster\": \"{cluster}\",\n  \"checkpoint\": {checkpoint},\n  \"position\": 99\n}}")
}

#[test]
fn what_any_kept_backup_of_the_archives_cluster_needs_stays() -> Result<()> {
    let place = Place::new(&[1, 10, 20, 30])?;
    // From before a restore to an earlier position.
    place.backup("2026-01-01T000000Z", "old", 5000)?;
    place.backup("2026-01-02T000000Z", "old", 6000)?;
    // The clock was set back in between.
    place.backup("2026-01-03T000000Z", "new", 25)?;
    place.backup("2026-01-04T000000Z", "new", 15)?;
    let output = place.run(35, 4)?;
    ensure!(output.status.success(), "{}", told(&output));
    let backups = place.names("backups")?;
    assert_eq!(backups.len(), 4);
    assert_eq!(backups[..3], ["2026-01-02T000000Z", "2026-01-03T000000Z", "2026-01-04T000000Z"]);
    // Entry 16 is needed.
    assert_eq!(place.segments()?, [10, 20, 30]);
    Ok(())
}

#[test]
fn the_backup_that_was_made_stays_whatever_the_clock_says() -> Result<()> {
    let place = Place::new(&[1, 10])?;
    place.backup("2999-01-01T000000Z", "new", 20)?;
    place.backup("2999-01-02T000000Z", "new", 21)?;
    let output = place.run(22, 2)?;
    ensure!(output.status.success(), "{}", told(&output));
    let backups = place.names("backups")?;
    ensure!(backups.len() == 2 && backups[0].as_str() < "2999" && backups[1] == "2999-01-02T000000Z", "{backups:?}");
    Ok(())
}

#[test]
fn an_archive_that_is_not_there_is_said() -> Result<()> {
    let place = Place::new(&[1, 10])?;
    std::fs::remove_file(place.archive().join("archive.json"))?;
    let output = place.run(22, 1)?;
    ensure!(!output.status.success() && told(&output).contains("is it mounted?"), "{}", told(&output));
    assert_eq!((place.segments()?, place.names("backups")?.len()), (vec![1, 10], 1));
    Ok(())
}
