//! Checkpoints: the WAL is copied into the file beside the work, and bounded whatever happens.
//!
//! A thread of its own copies what it can without getting in anybody's way. Under constant
//! load it never gets everything, so when the WAL passes its bound the writer itself copies
//! the little that is left and starts the WAL anew.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use rusqlite::Connection;

use crate::error::OpenError;

/// From here on the copying begins: less would sync the file for every few transactions.
const COPY_FROM_BYTES: u64 = 4 << 20;
/// From here on the writer starts the WAL anew.
const RESTART_FROM_BYTES: u64 = 32 << 20;

/// Keeps the WAL small.
pub(crate) struct Checkpoints {
    wal: PathBuf,
    copy: SyncSender<()>,
    next_copy_at: u64,
}

impl Checkpoints {
    pub(crate) fn start(file: &Path) -> Result<Self, OpenError> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let (copy, requests) = sync_channel::<()>(1);
        thread::Builder::new()
            .name("windlass-checkpoint".into())
            .spawn(move || {
                while requests.recv().is_ok() {
                    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
                        // The writer's own checkpoint decides; here a failure only costs time.
                        tracing::warn!(%error, "background checkpoint failed");
                    }
                }
            })
            .map_err(|error| OpenError::Folder(file.to_owned(), error))?;
        let mut wal = file.to_owned().into_os_string();
        wal.push("-wal");
        Ok(Self { wal: wal.into(), copy, next_copy_at: COPY_FROM_BYTES })
    }

    /// Called by the writer between two transactions.
    pub(crate) fn after_commit(&mut self, writer: &Connection) {
        let size = std::fs::metadata(&self.wal).map_or(0, |metadata| metadata.len());
        if size < self.next_copy_at {
            return;
        }
        if size >= RESTART_FROM_BYTES {
            // A reader may hold it up; then the next transaction tries again.
            let restarted = writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
            match restarted {
                Ok(0) => self.next_copy_at = COPY_FROM_BYTES,
                Ok(_) => tracing::debug!("a reader holds up the checkpoint"),
                Err(error) => tracing::warn!(%error, "checkpoint failed"),
            }
            return;
        }
        match self.copy.try_send(()) {
            Ok(()) => self.next_copy_at = size + COPY_FROM_BYTES,
            Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }
}
