//! What errors of the driver and the server mean for us.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use windlass_cluster::backend::BackendError;

/// Why the backend could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL makes no sense.
    #[error("the URL of the store {0}")]
    Url(String),
    /// The certificates cannot be used.
    #[error("the certificates of {path} cannot be used: {reason}")]
    Certificates {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The servers cannot be reached or refuse.
    #[error("cannot open the store: {0}")]
    Unreachable(String),
    /// The servers are not set up so that tasks are safe.
    #[error("the store is not safe for tasks: {0}")]
    Unsafe(String),
    /// What is stored makes no sense.
    #[error("the store has something that makes no sense: {0}")]
    Damaged(String),
}

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// For a person, without secrets.
    pub(crate) reason: String,
    /// Surely nothing was written.
    pub(crate) refused: bool,
    /// The connection is of no more use.
    pub(crate) broken: bool,
    /// The server does not know the script.
    pub(crate) no_script: bool,
}

impl Failure {
    /// Nothing was sent.
    pub(crate) fn before(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), refused: true, broken: true, no_script: false }
    }

    /// Something was sent and no answer came.
    pub(crate) fn lost(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), refused: false, broken: true, no_script: false }
    }

    /// What was answered makes no sense.
    pub(crate) fn odd(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), refused: false, broken: false, no_script: false }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let server = match error.kind() {
            ErrorKind::Server(kind) => Some(kind),
            _ => None,
        };
        let code = error.code().unwrap_or_default().to_owned();
        // The server looks at these before it runs anything.
        let refused = matches!(
            server,
            Some(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::NoScript
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ReadOnly
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::CrossSlot
                    | ServerErrorKind::NoPerm
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::Moved
                    | ServerErrorKind::Ask
            )
        ) || matches!(
            code.as_str(),
            "OOM" | "MISCONF" | "NOREPLICAS" | "NOAUTH" | "BUSY" | "NOPROTO" | "WRONGPASS"
        ) || error.kind() == ErrorKind::AuthenticationFailed
            || error.is_connection_refusal();
        let broken = error.is_io_error()
            || error.is_unrecoverable_error()
            || matches!(server, Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown));
        Self { reason: error.to_string(), refused, broken, no_script: server == Some(ServerErrorKind::NoScript) }
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        Self::new(failure.reason)
    }
}

/// A stored row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored row makes no sense: {0}")]
pub(crate) struct Damaged(pub(crate) String);

impl Damaged {
    pub(crate) fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl From<Damaged> for BackendError {
    fn from(damaged: Damaged) -> Self {
        Self::new(damaged.to_string())
    }
}
