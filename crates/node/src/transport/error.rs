//! What can go wrong between two nodes.  The variants differ in what either end can do about it.
//!
//! The texts are for operators, in the log and in `onetrip status`; they call the other end "it".

use crate::tls::NotTrusted;
use std::fmt::Display;
use std::io;

pub type Result<T> = std::result::Result<T, PeerError>;

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// One end refuses the other for now.  That may change: try again.
    #[error("{0}")]
    Refused(String),
    /// The caller was a member once and never will be again: do not try again.
    #[error("{0}")]
    Removed(String),
    /// It violates the protocol.  The connection cannot be used any more.
    #[error("{0}")]
    Violation(String),
    /// It did not answer, or did not read, in time.  Try again.
    #[error("{0}")]
    TimedOut(&'static str),
    /// The connection broke, or could not be made.  Try again.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It has not proved who it is.  An operator must fix its certificates, or this end's.
    #[error(transparent)]
    Tls(#[from] NotTrusted),
}

impl PeerError {
    pub fn refused(why: impl Display) -> PeerError {
        PeerError::Refused(why.to_string())
    }

    pub fn violation(why: impl Into<String>) -> PeerError {
        PeerError::Violation(why.into())
    }

    /// Puts what was tried in front of the text.
    pub fn when(self, what: impl Display) -> PeerError {
        match self {
            PeerError::Refused(why) => PeerError::Refused(format!("{what}: {why}")),
            PeerError::Removed(why) => PeerError::Removed(format!("{what}: {why}")),
            PeerError::Violation(why) => PeerError::Violation(format!("{what}: {why}")),
            // This text is fixed where the timeout is noticed, and says there what was awaited.
            PeerError::TimedOut(why) => PeerError::TimedOut(why),
            PeerError::Io(e) => io::Error::new(e.kind(), format!("{what}: {e}")).into(),
            PeerError::Tls(e) => NotTrusted(format!("{what}: {e}")).into(),
        }
    }
}

/// Bytes that cannot be read.
impl From<onetrip_core::Error> for PeerError {
    fn from(e: onetrip_core::Error) -> PeerError {
        PeerError::Violation(e.to_string())
    }
}
