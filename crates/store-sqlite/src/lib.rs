//! The embedded store: a SQLite file is the journal and the truth, the lanes and leases of
//! the ledger are its index in memory.
//!
//! One thread owns the writing connection and carries out whatever was asked meanwhile in
//! one transaction ([`windlass_ledger::batch`]); it answers after the commit is on disk.

mod checkpoint;
mod clock;
mod error;
mod journal;
mod load;
mod reader;
mod rows;
mod schema;

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::Observer;
use windlass_core::ids::IdCodec;
use windlass_core::store::Capabilities;
use windlass_core::time::Clock;
use windlass_ledger::batch::Writer;
use windlass_ledger::journal::JournalError;
use windlass_ledger::store::{Alone, LedgerStore, Parts};
use windlass_ledger::thread::{self, Host};

pub use clock::SlewedClock;
pub use error::OpenError;

/// How to open the store.
pub struct SqliteOptions {
    /// The folder it lives in; made if it is not there.
    pub path: PathBuf,
    /// How long leases last that were live when the store was last closed.
    pub lease: Duration,
    /// A clock of the caller's own; without one, the machine's, made monotonic.
    pub clock: Option<Arc<dyn Clock>>,
    /// Called when nobody knows any more what is on disk. The process must stop: what it
    /// says after this could be untrue.
    pub on_fatal: Arc<dyn Fn(&str) + Send + Sync>,
}

impl SqliteOptions {
    /// The usual options for a folder. A lost disk aborts the process.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), lease: Duration::from_secs(30), clock: None, on_fatal: Arc::new(abort) }
    }
}

fn abort(reason: &str) {
    tracing::error!(reason, "the store can no longer be trusted; stopping");
    eprintln!("windlass: stopping, because the store can no longer be trusted: {reason}");
    std::process::abort();
}

/// The embedded store.
pub struct SqliteStore;

impl SqliteStore {
    /// Opens the store in a folder, or makes it.
    pub fn open(options: SqliteOptions, observer: Arc<dyn Observer>) -> Result<Arc<LedgerStore>, OpenError> {
        let folder = &options.path;
        let unusable = |error| OpenError::Folder(folder.clone(), error);
        std::fs::create_dir_all(folder).map_err(unusable)?;
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // A folder that a power cut takes away takes everything in it along.
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(unusable)?;
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("windlass.lock"))
            .map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(folder.clone())),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        let file = folder.join("windlass.db");
        let mut connection = schema::open_for_writing(&file)?;
        let secret = load::secret(&connection)?;
        let clock = match options.clock {
            Some(clock) => clock,
            None => Arc::new(SlewedClock::starting_at(load::latest_time(&connection)?)),
        };
        let ids = IdCodec::new(secret);
        let ledger = load::load(&connection, secret, Arc::clone(&clock), options.lease)?;
        let checkpoints = checkpoint::Checkpoints::start(&file, &mut connection)?;
        // From here on nobody else writes; the writer must not wait for a reader.
        connection.busy_timeout(Duration::ZERO)?;
        let journal = journal::SqliteJournal::new(connection, ids.clone());
        let (writer, shared) = Writer::new(ledger, journal, observer);
        let archive = Arc::new(reader::Readers::open(&file)?);
        let on_fatal = Arc::clone(&options.on_fatal);
        let host = FileHost { checkpoints, readers: Arc::clone(&archive), on_fatal: options.on_fatal, lock };
        let inbox = thread::start(writer, host, Arc::new(move || on_fatal("the writer panicked"))).map_err(unusable)?;
        Ok(Arc::new(LedgerStore::new(Parts {
            name: "sqlite",
            capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
            clock,
            ids,
            inbox: Arc::new(inbox),
            archive,
            shared,
            others: Arc::new(Alone),
        })))
    }
}

/// What the writer of a file has beside it.
struct FileHost {
    checkpoints: checkpoint::Checkpoints,
    readers: Arc<reader::Readers>,
    on_fatal: Arc<dyn Fn(&str) + Send + Sync>,
    /// Held until the writer ends.
    lock: File,
}

impl Host<journal::SqliteJournal> for FileHost {
    fn after_batch(&mut self, writer: &mut Writer<journal::SqliteJournal>) {
        self.checkpoints.after_commit(writer.journal().connection());
    }

    fn failed(&mut self, _: &mut Writer<journal::SqliteJournal>, error: &JournalError) -> bool {
        self.readers.close();
        (self.on_fatal)(&error.reason);
        false
    }

    fn closed(self, writer: Writer<journal::SqliteJournal>) {
        self.readers.close();
        // The last connection to close copies the WAL into the file and removes it.
        drop(self.checkpoints);
        drop(writer);
        drop(self.lock);
    }
}
