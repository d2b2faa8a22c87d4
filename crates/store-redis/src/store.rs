//! The store itself: the nodes' ledger over these servers.

use std::sync::Arc;
use std::time::Duration;

use windlass_cluster::NodeOptions;
use windlass_cluster::backend::NodeId;
use windlass_core::event::Observer;
use windlass_core::store::Capabilities;
use windlass_core::time::Clock;
use windlass_ledger::archive::Archive;
use windlass_ledger::store::LedgerStore;

use crate::{Durability, OpenError, RedisBackend, RedisOptions};

/// The shared store on Redis or Valkey.
pub struct RedisStore;

impl RedisStore {
    /// Opens the store: one more node of all that share the servers. Leases that are live last this long from now.
    /// Says too what a crash or a failover can lose. A clock is for tests; without one, that of the server counts.
    pub async fn open(
        options: RedisOptions,
        lease: Duration,
        clock: Option<Arc<dyn Clock>>,
        observer: Arc<dyn Observer>,
    ) -> Result<(Arc<LedgerStore>, Durability), OpenError> {
        let backend = Arc::new(RedisBackend::open(options).await?);
        let durability = backend.durability().clone();
        let mut node = [0; 8];
        getrandom::fill(&mut node).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
        let options = NodeOptions {
            name: "redis",
            capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
            lease,
            clock,
            node: NodeId(u64::from_le_bytes(node)),
        };
        let archive: Arc<dyn Archive> = Arc::clone(&backend) as _;
        let store = windlass_cluster::open(backend, archive, options, observer).await;
        Ok((store.map_err(|error| OpenError::Unreachable(error.reason))?, durability))
    }
}
