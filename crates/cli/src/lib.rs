//! The `onetrip` command, as a library: the lab builds it with the feature `lab` (`onetrip-lab`), and `main.rs` is the
//! program that is shipped.
//!
//! Exit codes: 0 all is well; 1 the command failed, `check` found a difference, or `status` a problem; 2 it was called
//! wrongly; 3 the node is not a member any more.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod adopt;
mod backup;
mod certificate;
mod check;
mod conninfo;
mod init;
mod join;
mod join_token;
mod lab;
mod leader;
mod leases;
mod leave;
mod log_line;
mod nodes;
#[cfg(test)]
mod pages;
mod place;
mod progress;
mod release;
mod restore;
mod skip;
mod start;
mod status;
mod token;
mod upgrade;

use onetrip_client::{complain, out};
use onetrip_node::without_errno;
use std::process::ExitCode;

#[cfg(feature = "lab")]
#[doc(hidden)]
pub use backup::manifest::fuzz;
use clap::{CommandFactory, Parser, Subcommand};

/// Whether the node in this build contains what only tests need.
pub const IS_FOR_TESTS: bool = onetrip_node::IS_FOR_TESTS;

const VERSION: &str = match cfg!(debug_assertions) {
    true => concat!(env!("CARGO_PKG_VERSION"), ", built for tests"),
    false => env!("CARGO_PKG_VERSION"),
};

/// One PostgreSQL database that runs in several regions.
///
/// A cluster is a set of regions, each with a node (this program) and the PostgreSQL that it runs. Every region accepts
/// every transaction. Statements run inside the region; only COMMIT communicates with the other regions.
#[derive(Parser)]
#[command(name = "onetrip", version = VERSION, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::InitArgs),
    Adopt(adopt::AdoptArgs),
    Start(start::StartArgs),
    Status(status::StatusArgs),
    Check(check::CheckArgs),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
    Token(token::TokenArgs),
    Join(join::JoinArgs),
    Leave(leave::LeaveArgs),
    Leader(leader::LeaderArgs),
    Leases(leases::LeasesArgs),
    Skip(skip::SkipArgs),
    Upgrade(upgrade::UpgradeArgs),
    Certificate(certificate::CertificateArgs),
    Release(release::ReleaseArgs),
}

/// The command's options, for what is written from them: manual pages and completions (`examples/pages.rs`).
pub fn options() -> clap::Command {
    Arguments::command()
}

/// The command was called wrongly: its exit code is 2.
#[derive(Debug)]
pub(crate) struct BadUsage(pub String);

impl std::fmt::Display for BadUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

/// Runs the command that this process was called with.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Init(args) => init::run(&args),
        Command::Adopt(args) => adopt::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Join(args) => join::run(&args),
        Command::Leave(args) => leave::run(&args),
        Command::Leader(args) => leader::run(&args),
        Command::Leases(args) => leases::run(&args),
        Command::Skip(args) => skip::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Certificate(args) => certificate::run(&args),
        Command::Release(args) => release::run(&args),
    };
    let result = result.map(|code| if out::failed() { ExitCode::FAILURE } else { code });
    match result {
        Ok(code) => code,
        Err(error) => {
            complain!("onetrip: {}", without_errno(told(&error)));
            ExitCode::from(match error.downcast_ref() {
                _ if error.is::<BadUsage>() => 2,
                // Whoever starts nodes again need not start this one.
                Some(onetrip_node::Error::Removed(_)) => 3,
                _ => 1,
            })
        }
    }
}

/// Makes every file that this process creates from now on private to its user: logs, archives and backups contain the
/// data of all tables.
pub(crate) fn keep_files_private() {
    use nix::sys::stat::{umask, Mode};
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}

/// The error with its causes.  A cause with which the message ends already is not repeated.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.ends_with(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let full = || std::io::Error::from_raw_os_error(28);
        let disk = onetrip_node::Error::Disk { file: "log".into(), what: "write", source: full() };
        assert_eq!(told(&anyhow::Error::from(disk)), format!("log: write failed: {}", full()));
        assert_eq!(told(&anyhow::Error::from(full()).context("write x")), format!("write x: {}", full()));
    }
}
