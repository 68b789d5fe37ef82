//! What can be wrong with an archive, in words that say what to do.

use onetrip_core::LogIndex;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, ArchiveError>;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the archive folder {} does not exist: make it, mount it, or set another one in node.toml", folder.display())]
    NoFolder { folder: PathBuf },
    #[error(
        "the archive folder {} holds no archive, but this node has archived there: is it mounted? To begin a new archive there, \
         remove {}", folder.display(), note.display()
    )]
    NotMounted { folder: PathBuf, note: PathBuf },
    #[error("{} holds files but no archive: give the archive an empty folder", folder.display())]
    NotEmpty { folder: PathBuf },
    #[error(
        "{} is the archive of {found}, this is {wanted}: give each node of each cluster a folder of its own", folder.display()
    )]
    Foreign { folder: PathBuf, found: String, wanted: String },
    #[error("{} holds no archive: it has no {}", folder.display(), super::IDENTITY_FILE)]
    NoArchive { folder: PathBuf },
    #[error("the archive {} holds no segment yet", folder.display())]
    Empty { folder: PathBuf },
    #[error("the archive {} begins at entry {first}, but entry {wanted} is needed: an older segment was removed. Fetch it from \
         another copy of the archive, or take a newer backup", folder.display())]
    BeforeFirst { folder: PathBuf, wanted: LogIndex, first: LogIndex },
    #[error(
        "the archive {} lacks entries {from} to {to}: a segment was removed, or the node had cut its log before it could archive \
         them; restore to a position below {from}, or start from a backup that is newer than {to}", folder.display()
    )]
    Gap { folder: PathBuf, from: LogIndex, to: LogIndex },
    #[error("the archived segment {} is damaged: {why}; fetch it from another copy of the archive", file.display())]
    Damaged { file: PathBuf, why: String },
    #[error("{}: {what} failed: {source}", file.display())]
    Disk { file: PathBuf, what: &'static str, source: std::io::Error },
    #[error(transparent)]
    Other(Box<crate::Error>),
}

impl ArchiveError {
    pub(super) fn damaged(file: &Path, why: String) -> Self {
        ArchiveError::Damaged { file: file.to_owned(), why }
    }

    pub(super) fn disk<'a>(file: &'a Path, what: &'static str) -> impl FnOnce(std::io::Error) -> ArchiveError + 'a {
        move |source| ArchiveError::Disk { file: file.to_owned(), what, source }
    }
}

/// The errors of the disk code are about a log on which the node votes; here it is a copy.
impl From<crate::Error> for ArchiveError {
    fn from(e: crate::Error) -> Self {
        match e {
            crate::Error::Corrupted { file, why } => ArchiveError::Damaged { file, why },
            crate::Error::Disk { file, what, source } => ArchiveError::Disk { file, what, source },
            other => ArchiveError::Other(Box::new(other)),
        }
    }
}
