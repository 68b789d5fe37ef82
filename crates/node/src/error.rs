//! The errors of this crate, by what the caller can do about them.

use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the configuration is wrong: mend it.
    #[error("{}: {why}", file.display())]
    Config { file: PathBuf, why: String },
    /// What is on this disk is not what was written: the node must not vote.  Remove its data and let it join anew, or
    /// restore the file.
    #[error("{}: {why}; the node does not start, since it must not vote on a log that it has lost", file.display())]
    Corrupted { file: PathBuf, why: String },
    /// A write or fsync failed; nothing after it can be promised.
    #[error("{}: {what} failed: {source}", file.display())]
    Disk { file: PathBuf, what: &'static str, source: std::io::Error },
    /// A port or socket could not be opened, or another node runs on the folder.
    #[error("{what}: {source}")]
    Listen { what: String, source: std::io::Error },
    /// No member lets this node join.
    #[error("{0}")]
    Join(String),
    /// Something is wrong with certificates.
    #[error("{0}")]
    Tls(String),
    /// The other members have removed this node; it never comes back under this id.
    #[error("{0}; to come back it joins as a new node, in another folder")]
    Removed(String),
    /// PostgreSQL could not be started.
    #[error(transparent)]
    Postgres(#[from] crate::postgres::PostgresError),
    #[error(transparent)]
    Core(#[from] onetrip_core::Error),
    /// A part of the node ended unexpectedly.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn disk<'a>(file: &'a Path, what: &'static str) -> impl FnOnce(std::io::Error) -> Error + 'a {
        move |source| Error::Disk { file: file.to_owned(), what, source }
    }
}
