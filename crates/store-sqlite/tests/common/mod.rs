//! SQLite stores in temporary folders for the suite and the model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_store_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::{Fixture, ManualClock};

/// Opens stores and remembers their folders, so that one can be opened again.
#[derive(Default)]
pub struct Folders(Mutex<HashMap<usize, Arc<TempDir>>>);

fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>() as usize
}

impl Folders {
    fn open_in(&self, folder: Arc<TempDir>, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let mut options = SqliteOptions::new(folder.path());
        options.lease = Duration::from_secs(30);
        options.clock = Some(clock);
        let store: Arc<dyn Store> = SqliteStore::open(options, observer).expect("the store opens");
        self.0.lock().expect("no test panics here").insert(address(&store), folder);
        store
    }
}

#[async_trait]
impl Fixture for Folders {
    fn label(&self) -> &'static str {
        "SQLite"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        self.open_in(Arc::new(tempfile::tempdir().expect("a folder")), clock, observer)
    }

    async fn reopen(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>> {
        let folder = self.0.lock().expect("no test panics here").get(&address(&store)).cloned()?;
        store.close().await;
        Some(self.open_in(folder, clock, observer))
    }
}
