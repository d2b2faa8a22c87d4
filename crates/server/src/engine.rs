//! What all handlers share: the configuration, the store, the counters, and the few facts
//! that live only in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::ids::TaskId;
use windlass_core::names::QueueName;
use windlass_core::store::{Store, StoreError};
use windlass_core::task::Task;
use windlass_core::time::Timestamp;

use crate::config::ServerConfig;
use crate::findings::Finding;
use crate::metrics::Metrics;
use crate::observed_store::ObservedStore;
use crate::problem::Problem;

/// The state of a server.
pub struct Engine {
    /// What the operator decided.
    pub config: ServerConfig,
    /// Where the work is kept, as requests use it: no call waits long, and not too many wait.
    pub store: Arc<dyn Store>,
    /// The same store as maintenance uses it: a slice takes the time it takes, and no flood of requests keeps it out.
    pub upkeep: Arc<dyn Store>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The queue of tasks that name none: one shared name instead of one per task.
    pub default_queue: QueueName,
    closing: watch::Receiver<bool>,
    /// Whether this node leads maintenance.
    leads: AtomicBool,
    /// Why the store cannot serve, if it cannot.
    trouble: watch::Sender<Option<StoreError>>,
    /// When this node first saw a finding that has no time of its own.
    first_seen: Mutex<HashMap<(&'static str, String), Timestamp>>,
}

impl Engine {
    /// An engine; `closing` turns true when the server begins to shut down.
    pub fn new(
        config: ServerConfig,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        closing: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let upkeep = ObservedStore::new(store, Arc::clone(&metrics));
        let store = upkeep.bounded(config.store_wait, config.max_store_calls);
        Arc::new(Self {
            config,
            store: Arc::new(store),
            upkeep: Arc::new(upkeep),
            metrics,
            default_queue: QueueName::default(),
            closing,
            leads: AtomicBool::new(false),
            trouble: watch::Sender::default(),
            first_seen: Mutex::default(),
        })
    }

    /// Whether this node leads maintenance.
    pub fn is_leader(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Notes whether this node leads maintenance.
    pub fn set_leader(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// Whether the server is shutting down.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Resolves when the server begins to shut down.
    pub async fn closing(&self) {
        let mut closing = self.closing.clone();
        // An error means that the server is gone, which is closing too.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// Notes why the store cannot serve, or that it can.
    pub fn note_store(&self, trouble: Option<StoreError>) {
        let was_away = self.trouble.send_replace(trouble.clone()).is_some();
        match trouble {
            Some(error) if !was_away => tracing::warn!(%error, "the store cannot serve"),
            None if was_away => tracing::info!("the store serves again"),
            Some(_) | None => {}
        }
    }

    /// Resolves with the reason when the store cannot serve.
    pub async fn store_is_away(&self) -> StoreError {
        let mut trouble = self.trouble.subscribe();
        let away = trouble.wait_for(Option::is_some).await;
        match away.ok().and_then(|trouble| trouble.clone()) {
            Some(error) => error,
            // The sender lives as long as the engine.
            None => std::future::pending().await,
        }
    }

    /// Says of every finding since when it is so; what is gone is forgotten.
    pub fn date_findings(&self, findings: &mut [Finding], now: Timestamp) {
        let mut known = self.first_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut still = HashMap::new();
        for finding in findings.iter_mut().filter(|finding| finding.since.is_none()) {
            let key = (finding.code, finding.subject.clone());
            let since = known.get(&key).copied().unwrap_or(now);
            finding.since = Some(since);
            still.insert(key, since);
        }
        *known = still;
    }

    /// One task, or 404.
    pub async fn task(&self, id: TaskId) -> Result<Task, Problem> {
        let found = self.store.get(vec![id]).await?;
        found.into_iter().next().flatten().ok_or_else(|| Problem::no_such_task(id))
    }

    /// Holds until the task has ended, the time is over, the store is away or the server shuts down.
    pub async fn wait_for_end(&self, id: TaskId, at_most: Duration) -> Result<(), Problem> {
        tokio::select! {
            ended = tokio::time::timeout(at_most, self.store.until_ended(id)) => match ended {
                Ok(ended) => Ok(ended?),
                Err(_) => Ok(()),
            },
            error = self.store_is_away() => Err(error.into()),
            () = self.closing() => Ok(()),
        }
    }

    /// How long `position` tasks take at the present rate, if there is one.
    pub fn estimated_wait_seconds(&self, position: u64) -> Option<f64> {
        let rate = self.metrics.drain_rate(self.store.now());
        (rate > 0.0).then(|| (position as f64 / rate * 10.0).round() / 10.0)
    }
}
