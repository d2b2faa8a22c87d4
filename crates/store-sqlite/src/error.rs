//! What SQLite's errors mean for us.

use std::path::PathBuf;

use rusqlite::ErrorCode;
use windlass_core::store::StoreError;
use windlass_ledger::journal::{Fault, JournalError};

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{} is in use by another Windlass process; stop it, or give this one a folder of its own", .0.display())]
    InUse(PathBuf),
    /// The folder cannot be used.
    #[error("cannot use the folder {}: {}", .0.display(), .1)]
    Folder(PathBuf, std::io::Error),
    /// The file was written by a newer version.
    #[error(
        "the store was written by a newer Windlass (schema {found}, this one knows {known}); start that version instead"
    )]
    TooNew {
        /// The schema of the file.
        found: usize,
        /// The newest schema we know.
        known: usize,
    },
    /// The file is damaged or SQLite failed.
    #[error("cannot open the store: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A row makes no sense.
    #[error("the store has a row that makes no sense: {0}")]
    Damaged(String),
}

/// Extended result codes of a failed fsync.
const IOERR_FSYNC: i32 = rusqlite::ffi::SQLITE_IOERR_FSYNC;
const IOERR_DIR_FSYNC: i32 = rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC;

/// An error inside a transaction: it is rolled back and the callers may try again.
#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub(crate) fn in_transaction(error: rusqlite::Error) -> JournalError {
    let (code, extended) = codes(&error);
    // A constraint or a value is the fault of one item; a full disk is not.
    let fault = match code {
        _ if is_lost_fsync(extended) => Fault::Fatal,
        Some(
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::DatabaseBusy
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::OutOfMemory
            | ErrorCode::DatabaseCorrupt,
        ) => Fault::Refused,
        _ => Fault::Item,
    };
    JournalError { reason: error.to_string(), fault }
}

/// An error of the commit itself. A full disk leaves nothing behind; after any other error
/// nobody knows what the disk has, and going on would be pretending.
#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub(crate) fn in_commit(error: rusqlite::Error) -> JournalError {
    let (code, _) = codes(&error);
    let fault = match code {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => Fault::Refused,
        _ => Fault::Fatal,
    };
    JournalError { reason: error.to_string(), fault }
}

fn is_lost_fsync(extended: Option<i32>) -> bool {
    matches!(extended, Some(IOERR_FSYNC | IOERR_DIR_FSYNC))
}

fn codes(error: &rusqlite::Error) -> (Option<ErrorCode>, Option<i32>) {
    match error.sqlite_error() {
        Some(code) => (Some(code.code), Some(code.extended_code)),
        None => (None, None),
    }
}

/// A failed read: nothing was written by it.
pub(crate) fn in_read(error: &rusqlite::Error) -> StoreError {
    StoreError::not_applied(error.to_string())
}

/// A stored text that cannot be decoded.
pub(crate) fn damaged(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
}
