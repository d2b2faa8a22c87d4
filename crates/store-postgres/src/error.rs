//! What PostgreSQL's errors mean for us.

use tokio_postgres::error::SqlState;
use windlass_cluster::backend::{BackendError, CommitError};
use windlass_core::store::StoreError;

use crate::options::reason;

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL cannot be used.
    #[error("the URL of the database cannot be used: {0}")]
    Url(String),
    /// The name of the schema cannot be used.
    #[error("'{0}' cannot name the schema: take 1 to 40 lower-case letters, digits and '_', not beginning with pg_")]
    Schema(String),
    /// The certificates cannot be used.
    #[error("the certificates of {path} cannot be used: {reason}")]
    Certificates {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The database is away or refuses.
    #[error("{0}")]
    Database(#[from] BackendError),
    /// The schema was written by a newer version.
    #[error(
        "the schema {schema} was made by a newer Windlass (version {found}, this one knows {known}); start that version \
         instead"
    )]
    TooNew {
        /// Which schema.
        schema: String,
        /// Its version.
        found: i32,
        /// The newest version we know.
        known: i32,
    },
    /// The schema is not there or too old, and we are not to change it.
    #[error(
        "the schema {schema} has version {found} and this Windlass needs {known}; migrate it with a role that may, or \
         let the server do it"
    )]
    NotMigrated {
        /// Which schema.
        schema: String,
        /// Its version; 0 if it is not there.
        found: i32,
        /// What we need.
        known: i32,
    },
    /// The role lacks rights that a server needs.
    #[error(
        "the role {role} may not use {what} of the schema {schema}; grant it what docs/stores.md lists (\"Rights\"), again \
         after every update"
    )]
    Rights {
        /// Who we are.
        role: String,
        /// Which schema.
        schema: String,
        /// Tables and functions.
        what: String,
    },
    /// Text would be mangled.
    #[error("the database stores text as {0}; Windlass needs one with the encoding UTF8")]
    Encoding(String),
    /// A row makes no sense.
    #[error("the store has a row that makes no sense: {0}")]
    Damaged(String),
}

/// An error of a statement, with the server that it came from.
pub(crate) fn failed(server: &str, error: &tokio_postgres::Error) -> BackendError {
    BackendError { reason: format!("{server}: {}", reason(error)), item_at_fault: is_item_at_fault(error) }
}

/// A value that cannot be stored, or a bound of the server that one item is beyond.
fn is_item_at_fault(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) if *code == SqlState::CHECK_VIOLATION => false,
        Some(code) => ["22", "23", "54"].iter().any(|class| code.code().starts_with(class)),
        // Encoding failed before anything was sent.
        None => {
            let text = error.to_string();
            text.contains("serializing parameter") || text.contains("error encoding message")
        }
    }
}

/// A statement of a transaction failed, and with it the transaction.
pub(crate) fn refused(server: &str, error: &tokio_postgres::Error) -> CommitError {
    match error.code() {
        Some(code) if is_fence(error, code) => CommitError::Behind,
        // The server said no before it came to the commit.
        Some(_) => CommitError::Refused(failed(server, error)),
        None if is_item_at_fault(error) => CommitError::Refused(failed(server, error)),
        // The connection went while everything was on its way, the commit too.
        None => CommitError::Unknown(failed(server, error)),
    }
}

/// A statement that is a transaction of its own failed. If the server ended the session it may have been while it
/// committed.
pub(crate) fn alone(server: &str, error: &tokio_postgres::Error) -> CommitError {
    let ended = error.code().is_some_and(|code| code.code().starts_with("57P") || code.code().starts_with("25P"));
    if ended { CommitError::Unknown(failed(server, error)) } else { refused(server, error) }
}

/// The number is taken, or is not the next one: our statements then divide by zero. Or an idempotency key is known.
fn is_fence(error: &tokio_postgres::Error, code: &SqlState) -> bool {
    let fences = [Some("log_pkey"), Some("idempotency_keys_pkey")];
    let taken = *code == SqlState::UNIQUE_VIOLATION
        && error.as_db_error().is_some_and(|error| fences.contains(&error.constraint()));
    taken || *code == SqlState::DIVISION_BY_ZERO
}

/// The commit itself failed. Only a few answers say for certain that nothing was written.
pub(crate) fn in_commit(server: &str, error: &tokio_postgres::Error) -> CommitError {
    let rolled_back =
        error.code().is_some_and(|code| ["23", "25", "40"].iter().any(|class| code.code().starts_with(class)));
    if rolled_back { CommitError::Refused(failed(server, error)) } else { CommitError::Unknown(failed(server, error)) }
}

/// A failed read: nothing was written by it.
pub(crate) fn in_read(error: &BackendError) -> StoreError {
    StoreError::not_applied(error.reason.clone())
}

/// A stored value that cannot be decoded.
pub(crate) fn damaged(what: &str, error: impl std::fmt::Display) -> BackendError {
    BackendError::new(format!("the store has a {what} that makes no sense: {error}"))
}
