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

/// Without the numbers that the standard library puts behind the operating system's own words: "(os error 111)" tells
/// an operator nothing that the words before it do not.
pub fn without_errno(mut text: String) -> String {
    const MARK: &str = " (os error ";
    let mut from = 0;
    while let Some(at) = text[from..].find(MARK).map(|at| from + at) {
        let digits = text[at + MARK.len()..].bytes().take_while(u8::is_ascii_digit).count();
        let end = at + MARK.len() + digits;
        match digits > 0 && text[end..].starts_with(')') {
            true => text.replace_range(at..=end, ""),
            false => end.clone_into(&mut from),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_and_numbers_go() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(
            without_errno(format!("a: {refused}; b: {refused}")),
            "a: Connection refused; b: Connection refused"
        );
        for other in ["", "x", " (os error ", " (os error )", " (os error 1", "ä (os error x) y"] {
            assert_eq!(without_errno(other.into()), other);
        }
    }
}
