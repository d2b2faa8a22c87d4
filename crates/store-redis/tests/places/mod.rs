//! Stores under prefixes of their own, for the suite and the model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_store_redis::RedisStore;
use windlass_testkit::hopping::Hopping;
use windlass_testkit::rig::LEASE;
use windlass_testkit::{Fixture, ManualClock};

use crate::common::Place;

/// Opens so many nodes under one prefix.
pub struct Places {
    variable: &'static str,
    nodes: usize,
    /// Places of open stores.
    open: Mutex<HashMap<usize, Arc<Place>>>,
}

impl Places {
    pub fn new(variable: &'static str, nodes: usize) -> Self {
        Self { variable, nodes, open: Mutex::default() }
    }

    async fn nodes(&self, place: Arc<Place>, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..self.nodes {
            let clock = Some(Arc::clone(&clock) as _);
            let opened = RedisStore::open(place.options(), LEASE, clock, Arc::clone(&observer)).await;
            nodes.push(opened.expect("the servers are there").0);
        }
        let store: Arc<dyn Store> = Arc::new(Hopping::new(nodes));
        self.open.lock().expect("no panic before").insert(Arc::as_ptr(&store).cast::<()>() as usize, place);
        store
    }
}

#[async_trait]
impl Fixture for Places {
    fn label(&self) -> &'static str {
        match self.variable {
            "WINDLASS_TEST_REDIS_CLUSTER_URL" => "Redis Cluster",
            "WINDLASS_TEST_VALKEY_URL" => "Valkey",
            _ => "Redis",
        }
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        self.nodes(Arc::new(Place::new(self.variable)), clock, observer).await
    }

    async fn reopen(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>> {
        let number = Arc::as_ptr(&store).cast::<()>() as usize;
        let place = self.open.lock().expect("no panic before").remove(&number).expect("a store of this fixture");
        Some(self.nodes(place, clock, observer).await)
    }
}
