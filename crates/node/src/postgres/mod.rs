//! The node's own PostgreSQL: made ([`bootstrap`]), configured, started, watched, restarted and stopped
//! ([`Supervisor`]).
//!
//! It must not know of the log, of how other nodes are reached, or of what PostgreSQL says to the agent.  It knows
//! processes, files and exit codes, and that there are [`Donors`] from which it copies a data folder when it is ordered
//! to.
//!
//! Invariants:
//! - at most one server runs on a data folder; a process is recognized as that server by its working folder, never only
//!   by a process id in a file;
//! - the server outlives a node that dies, and the next node that runs on that folder adopts it;
//! - a data folder is complete or absent: it is made under another name and renamed at the end.
//!
//! ```text
//!   starting ──> ready ──> (ended by itself) ──> restarting ──> starting ...
//!       │          └─────> stopping ──> stopped
//!       └ there is something in its way: an error with the reason
//!   no data folder, or an order to make it anew: stopping ──> copying ──> starting ...
//! ```

mod base_backup;
mod bootstrap;
mod counts;
mod donor;
mod facts;
pub mod hba;
mod make_own;
mod os_user;
mod password;
mod process;
mod rebuild;
mod row_texts;
mod server;
mod settings;
mod single_user;
mod supervisor;
#[cfg(feature = "lab")]
mod template;

use std::io;
use std::path::{Path, PathBuf};

pub use base_backup::{remove_folder, BaseBackup, CopyProgress};
pub use bootstrap::{bootstrap, identifier, LetIn};
pub(crate) use counts::{own_session, Counts};
pub use donor::{is_own_user, Boxed, Donor, Donors, Stream};
pub use facts::{control_data, facts};
pub use onetrip_core::replica::RebuildFrom;
pub use os_user::{become_user, prepare_folder, ROOT_BECOMES};
pub use password::scram_verifier;
pub(crate) use process::folder_of;
use process::processes_of;
pub use process::{end_bootstrap_below, processes_left};
pub(crate) use rebuild::{has_server, in_the_way};
pub use rebuild::{sync_folder, CopyState, Rebuild, HEALED_FILE};
pub(crate) use row_texts::RowTexts;
pub use server::{instead_of, is_our_library, quoted, Server};
pub use settings::{is_of_one_server, leave_out_of_copy, SETTINGS_FILES};
pub use single_user::{SingleUser, SHOWS};
pub use supervisor::{PostgresState, ServerState, Supervisor};

/// `search_path` of every session of a node's or a command's own.  These are superusers, and a function or an operator
/// in a user's schema may fit a call better than PostgreSQL's own does.
pub const SEARCH_PATH: &str = "pg_catalog,pg_temp";

#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot run {program}: {source}; is PostgreSQL installed, and bin_dir in node.toml right?")]
    Program { program: PathBuf, source: io::Error },
    /// Something that a person has to put right before the next try; the text says what.
    #[error("{0}")]
    Refused(String),
    #[error("{step} failed: {reason}")]
    Step { step: String, reason: String },
    /// A copy that had begun, for which the other member's server wrote a checkpoint at least.
    #[error("{0}")]
    Copy(String),
    /// A whole copy on which PostgreSQL cannot be started.
    #[error("{0}")]
    OfNoUse(String),
    #[error(
        "{folder} has no room for a copy of another member's PostgreSQL: at least {} MiB and {} MiB for the log have to be free on \
         that disk; make room there, and the copy is made",
        needs_bytes >> 20, log_bytes >> 20
    )]
    NoRoom { folder: PathBuf, needs_bytes: u64, log_bytes: u64 },
}

/// Whether something is there, or may be: what cannot be looked at is not taken for absent.
fn may_be_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// The same where nothing can be done without knowing.
pub fn is_there(path: &Path) -> Result<bool, PostgresError> {
    path.try_exists().map_err(file_error("look at", path))
}

/// For the fuzzer: reads `bytes` as everything that is read from PostgreSQL's programs and from its files.
#[cfg(feature = "lab")]
pub(crate) fn read_output(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    base_backup::read_said(bytes);
    let _ = facts::of_control_file(&text);
    let _ = process::parse_pid_file(&text);
    let _ = server::reason(&text);
}

fn file_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PostgresError + 'a {
    move |source| PostgresError::File { action, path: path.to_path_buf(), source }
}

/// Another process writes it: here, a child that another test starts at this moment would keep it open, and a file that
/// is open for writing cannot be run.
#[cfg(test)]
fn write_program(path: &Path, script: &str) {
    let write = r#"printf '#!/bin/sh\n%s' "$1" > "$0" && chmod 700 "$0""#;
    let written = std::process::Command::new("sh").arg("-c").arg(write).arg(path).arg(script).status();
    assert!(written.unwrap().success());
}

/// A server of a node with this folder.
#[cfg(test)]
fn example(node_folder: &Path) -> Server {
    Server {
        node_folder: node_folder.into(),
        bin_dir: "/bin".into(),
        listen: "127.0.0.1".into(),
        port: 5433,
        database: "onetrip".into(),
        node_id: 2,
        region: "us-east-2".into(),
        sequence_slot: 1,
        sequence_stride: 8,
        read_only: false,
        looks_read_only: std::sync::Arc::default(),
        tls: true,
        level: Default::default(),
        key_seed: Default::default(),
        trace_every: None,
    }
}
