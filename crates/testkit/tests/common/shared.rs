//! Nodes over a database in memory, for the suite and the model.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use windlass_cluster::backend::NodeId;
use windlass_cluster::{NodeOptions, open};
use windlass_core::event::Observer;
use windlass_core::store::{Capabilities, Store};
use windlass_testkit::hopping::Hopping;
use windlass_testkit::rig::LEASE;
use windlass_testkit::shared_memory::SharedMemory;
use windlass_testkit::{Fixture, ManualClock};

/// Opens so many nodes over one database.
pub struct Nodes {
    pub count: u64,
    /// See [`SharedMemory::lose_every`].
    pub lose_every: u64,
    pub databases: Mutex<HashMap<usize, Arc<SharedMemory>>>,
}

impl Nodes {
    pub fn new(count: u64, lose_every: u64) -> Self {
        Self { count, lose_every, databases: Mutex::default() }
    }

    async fn nodes(
        &self,
        database: Arc<SharedMemory>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Arc<dyn Store> {
        let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
        for number in 1..=self.count {
            let options = NodeOptions {
                name: "shared",
                capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
                lease: LEASE,
                clock: Some(Arc::clone(&clock) as _),
                node: NodeId(number),
            };
            let node = open(Arc::clone(&database) as _, database.archive(), options, Arc::clone(&observer));
            nodes.push(node.await.expect("the database is there"));
        }
        let store: Arc<dyn Store> = Arc::new(Hopping::new(nodes));
        self.databases.lock().unwrap().insert(Arc::as_ptr(&store).cast::<()>() as usize, database);
        store
    }
}

#[async_trait]
impl Fixture for Nodes {
    fn label(&self) -> &'static str {
        "nodes in memory"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let database = SharedMemory::new(Arc::clone(&clock) as _);
        database.lose_every.store(self.lose_every, std::sync::atomic::Ordering::SeqCst);
        self.nodes(database, clock, observer).await
    }

    async fn reopen(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>> {
        let place = Arc::as_ptr(&store).cast::<()>() as usize;
        let database = self.databases.lock().unwrap().remove(&place).expect("a store of this fixture");
        Some(self.nodes(database, clock, observer).await)
    }
}
