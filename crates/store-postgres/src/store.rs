//! The store itself: the nodes' ledger over this database.

use std::sync::Arc;
use std::time::Duration;

use windlass_cluster::NodeOptions;
use windlass_cluster::backend::NodeId;
use windlass_core::event::Observer;
use windlass_core::store::Capabilities;
use windlass_core::time::Clock;
use windlass_ledger::archive::Archive;
use windlass_ledger::store::LedgerStore;

use crate::backend::PostgresBackend;
use crate::error::OpenError;
use crate::options::PostgresOptions;

/// The shared store on PostgreSQL.
pub struct PostgresStore;

impl PostgresStore {
    /// Opens the store: one more node of all that share the database. Leases that are live last this long from now.
    /// A clock is for tests; without one, that of the database counts.
    pub async fn open(
        options: PostgresOptions,
        lease: Duration,
        clock: Option<Arc<dyn Clock>>,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<LedgerStore>, OpenError> {
        let backend = Arc::new(PostgresBackend::connect(options).await?);
        let archive: Arc<dyn Archive> = backend.archive();
        let mut node = [0; 8];
        getrandom::fill(&mut node).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
        let options = NodeOptions {
            name: "postgres",
            capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: true },
            lease,
            clock,
            node: NodeId(u64::from_le_bytes(node)),
        };
        Ok(windlass_cluster::open(backend, archive, options, observer).await?)
    }
}
