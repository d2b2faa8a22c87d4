//! Stores in schemas of their own, for the suite and the model.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use windlass_core::event::Observer;
use windlass_core::store::Store;
use windlass_store_postgres::{PostgresOptions, PostgresStore};
use windlass_testkit::hopping::Hopping;
use windlass_testkit::rig::LEASE;
use windlass_testkit::{Fixture, ManualClock};

/// The server itself.
pub fn direct() -> String {
    variable("WINDLASS_TEST_POSTGRES_URL")
}

/// The server behind a pooler that hands out connections by the transaction.
pub fn pooled() -> String {
    let url = variable("WINDLASS_TEST_PGBOUNCER_URL");
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}pgbouncer=true")
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test-rust`"))
}

/// A name that no other test has.
pub fn schema() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Opens so many nodes over one schema.
pub struct Schemas {
    url: String,
    nodes: usize,
    /// Schemas of open stores.
    open: Mutex<HashMap<usize, String>>,
    made: Mutex<Vec<String>>,
}

impl Schemas {
    pub fn new(url: String, nodes: usize) -> Self {
        Self { url, nodes, open: Mutex::default(), made: Mutex::default() }
    }

    async fn nodes(&self, schema: String, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..self.nodes {
            let options =
                PostgresOptions { schema: schema.clone(), readers: 2, ..PostgresOptions::new(self.url.clone()) };
            let clock = Some(Arc::clone(&clock) as _);
            let node = PostgresStore::open(options, LEASE, clock, Arc::clone(&observer)).await;
            nodes.push(node.expect("the database is there"));
        }
        let store: Arc<dyn Store> = Arc::new(Hopping::new(nodes));
        self.open.lock().unwrap().insert(Arc::as_ptr(&store).cast::<()>() as usize, schema);
        store
    }
}

impl Drop for Schemas {
    fn drop(&mut self) {
        let schemas = std::mem::take(&mut *self.made.lock().unwrap());
        // Whatever thread this is, it may be inside a runtime already.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let (client, connection) =
                    tokio_postgres::connect(&direct(), tokio_postgres::NoTls).await.expect("the database is there");
                tokio::spawn(connection);
                for schema in schemas {
                    // A test that failed may still hold locks; the next run has another server.
                    let _ = client
                        .batch_execute(&format!(
                            "SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE"
                        ))
                        .await;
                }
            });
        });
        let _ = dropping.join();
    }
}

#[async_trait]
impl Fixture for Schemas {
    fn label(&self) -> &'static str {
        if self.url.contains("pgbouncer=true") { "PgBouncer" } else { "PostgreSQL" }
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let schema = schema();
        self.made.lock().unwrap().push(schema.clone());
        self.nodes(schema, clock, observer).await
    }

    async fn reopen(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>> {
        let place = Arc::as_ptr(&store).cast::<()>() as usize;
        let schema = self.open.lock().unwrap().remove(&place).expect("a store of this fixture");
        Some(self.nodes(schema, clock, observer).await)
    }
}
