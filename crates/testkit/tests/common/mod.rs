//! The store in memory for the suite and the model.

use std::sync::Arc;

use async_trait::async_trait;
use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_testkit::{Fixture, ManualClock, MemoryStore};

/// Opens stores in memory.
pub struct InMemory;

#[async_trait]
impl Fixture for InMemory {
    fn label(&self) -> &'static str {
        "memory"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        MemoryStore::new(clock, observer)
    }

    async fn reopen(&self, _: Arc<dyn Store>, _: Arc<ManualClock>, _: Arc<dyn Observer>) -> Option<Arc<dyn Store>> {
        None
    }
}
