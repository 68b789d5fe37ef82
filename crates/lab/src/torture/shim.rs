//! Wall clocks that jump: each node and its PostgreSQL run with `shim.c` preloaded, which reads the clock's offset from
//! a file.  The same library makes syncs slow; and it can make them do nothing and report success, which the torture
//! has to find.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

const SHIM: &str = include_str!("shim.c");

/// Builds the library into `folder` with the C compiler that also builds the extension.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&source, SHIM).with_context(|| format!("write {}", source.display()))?;
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .output()
        .context("start the C compiler (cc)")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(library)
}

pub struct Clock {
    file: std::fs::File,
    path: PathBuf,
}

impl Clock {
    pub fn new(folder: &Path, name: &str) -> Result<Clock> {
        let path = folder.join(format!("{name}.clock"));
        let file = std::fs::File::create(&path).with_context(|| format!("make {}", path.display()))?;
        let clock = Clock { file, path };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets how far this clock is ahead of the machine's.
    pub fn set(&self, offset_ms: i64) -> Result<()> {
        self.file.write_all_at(&(offset_ms * 1_000_000).to_ne_bytes(), 0).context("set a clock")
    }

    /// The environment variables with which a process uses this clock.
    pub fn environment(&self, shim: &Path) -> Vec<(String, String)> {
        vec![
            ("LD_PRELOAD".into(), shim.display().to_string()),
            ("ONETRIP_CLOCK_OFFSET".into(), self.path.display().to_string()),
        ]
    }
}

/// Shows that a process that uses this clock sees it move.
pub fn self_test(clock: &Clock, shim: &Path) -> Result<()> {
    const DAY_MS: i64 = 24 * 3600 * 1000;
    let shown = || -> Result<i64> {
        let output = Command::new("date").arg("+%s").envs(clock.environment(shim)).output().context("start date")?;
        String::from_utf8_lossy(&output.stdout).trim().parse().context("date +%s")
    };
    let before = shown()?;
    clock.set(DAY_MS)?;
    let later = shown();
    clock.set(0)?;
    let moved = later? - before;
    ensure!((86_390..86_460).contains(&moved), "a clock set forward by a day moved by {moved} s");
    Ok(())
}
