//! The maintenance that a server would do.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::Store;

/// Runs until it is dropped.
pub struct Upkeep(tokio::task::JoinHandle<()>);

impl Upkeep {
    /// Due tasks, lapsed leases and timeouts, twenty times a second.
    pub fn start(store: &Arc<dyn Store>) -> Self {
        let store = Arc::clone(store);
        Self(tokio::spawn(async move {
            loop {
                let mut more = false;
                for sweep in [store.make_due(500).await, store.lapse_leases(500).await, store.time_out(500).await] {
                    match sweep {
                        Ok(sweep) => more |= sweep.more,
                        Err(error) => eprintln!("upkeep: {error}"),
                    }
                }
                if !more {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }))
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.abort();
    }
}
