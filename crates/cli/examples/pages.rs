//! Writes the manual pages and the completions of the command into a folder, for `make install`: `man1/onetrip*.1`,
//! `bash/onetrip` and `zsh/_onetrip`.  They follow from the options alone, so they are never behind them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap_complete::Shell;

fn main() -> Result<()> {
    let folder: PathBuf = std::env::args_os().nth(1).context("usage: pages FOLDER")?.into();
    let make = |name: &str| {
        let inside = folder.join(name);
        fs::create_dir_all(&inside).with_context(|| format!("make {}", inside.display()))?;
        Ok::<_, anyhow::Error>(inside)
    };
    clap_mangen::generate_to(onetrip_cli::options(), make("man1")?).context("write the manual pages")?;
    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh")] {
        let inside = make(name)?;
        clap_complete::generate_to(shell, &mut onetrip_cli::options(), "onetrip", &inside)
            .with_context(|| format!("write the completions for {shell}"))?;
    }
    // `_onetrip` is what zsh looks for; bash looks for the name of the command.
    fs::rename(folder.join("bash/onetrip.bash"), folder.join("bash/onetrip")).context("rename the completions")
}
