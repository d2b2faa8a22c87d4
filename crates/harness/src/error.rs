//! What can go wrong in the harness itself, as opposed to what it finds wrong in the server.

use std::path::PathBuf;

/// The harness could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A file or folder could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The server could not be started, ended by itself or did not become ready.
    #[error("{0}")]
    Server(String),
    /// A call that has to succeed for the run to go on did not.
    #[error("{call}: {reason}")]
    Call {
        /// Method and path.
        call: String,
        /// What came back instead.
        reason: String,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
}

impl HarnessError {
    /// A failed call.
    pub fn call(call: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Call { call: call.into(), reason: reason.into() }
    }
}
