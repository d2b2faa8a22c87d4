//! Checkpoints: the WAL is copied into the file beside the work, and bounded whatever happens.
//!
//! A thread of its own copies what it can without getting in anybody's way. Under constant
//! load it never gets everything, so when the WAL passes its bound the writer itself copies
//! the little that is left and begins the WAL anew. The file of the WAL is overwritten, not
//! truncated: syncing a file that grows costs about twice as much.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;

use crate::error::OpenError;

/// After every so many pages (4 MiB) the copying begins: less would sync the file too often.
const COPY_PAGES: u32 = 512;
/// From here on (32 MiB) the writer begins the WAL anew.
const RESTART_PAGES: u32 = 4_096;

/// Keeps the WAL small.
pub(crate) struct Checkpoints {
    /// Pages in the WAL after the last commit, kept by SQLite's hook.
    pages: Arc<AtomicU32>,
    copy: SyncSender<()>,
    copied_at: u32,
}

impl Checkpoints {
    /// Starts the thread and watches the writer's connection.
    pub(crate) fn start(file: &Path, writer: &mut Connection) -> Result<Self, OpenError> {
        let pages = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&pages);
        writer.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, in_wal| {
            counted.store(u32::try_from(in_wal).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
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
        Ok(Self { pages, copy, copied_at: 0 })
    }

    /// Called by the writer between two transactions.
    pub(crate) fn after_commit(&mut self, writer: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.copied_at {
            // SQLite found everything copied and began the WAL anew by itself.
            self.copied_at = 0;
        }
        if pages >= RESTART_PAGES {
            // Far above the bound it is worth waiting for a reader.
            let patience = if pages >= 4 * RESTART_PAGES { Duration::from_millis(300) } else { Duration::ZERO };
            if let Err(error) = writer.busy_timeout(patience) {
                tracing::warn!(%error, "cannot set the busy timeout");
            }
            let restarted = writer.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, i64>(0));
            match restarted {
                Ok(0) => self.copied_at = 0,
                // A reader or the copying thread is in the way; the next transaction tries again.
                Ok(_) => tracing::debug!(pages, "the checkpoint has to wait"),
                Err(error) => tracing::warn!(%error, "checkpoint failed"),
            }
            if !patience.is_zero()
                && let Err(error) = writer.busy_timeout(Duration::ZERO)
            {
                tracing::warn!(%error, "cannot set the busy timeout");
            }
            self.pages.store(0, Ordering::Relaxed);
            return;
        }
        if pages >= self.copied_at + COPY_PAGES {
            match self.copy.try_send(()) {
                Ok(()) => self.copied_at = pages,
                Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
            }
        }
    }
}
