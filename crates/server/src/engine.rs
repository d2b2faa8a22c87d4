//! What all handlers share: the configuration, the store, the counters, and the few facts
//! that live only in this process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::names::QueueName;
use windlass_core::store::Store;
use windlass_core::task::Task;
use windlass_core::time::Timestamp;
use windlass_core::worker::Health;

use crate::config::ServerConfig;
use crate::findings::Finding;
use crate::metrics::Metrics;
use crate::problem::Problem;

/// Memory above which a worker is not well.
const MEMORY_PERCENT_MAX: f64 = 90.0;
/// Processor load above which a worker is not well.
const CPU_PERCENT_MAX: f64 = 95.0;

/// The state of a server.
pub struct Engine {
    /// What the operator decided.
    pub config: ServerConfig,
    /// Where the work is kept.
    pub store: Arc<dyn Store>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The queue of tasks that name none: one shared name instead of one per task.
    pub default_queue: QueueName,
    closing: watch::Receiver<bool>,
    /// Workers whose last heartbeat told of too much load. Lost at a restart, which only
    /// means that a sick worker is noticed one heartbeat later.
    strained: Mutex<HashSet<WorkerId>>,
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
        Arc::new(Self {
            config,
            store,
            metrics,
            default_queue: QueueName::default(),
            closing,
            strained: Mutex::default(),
            first_seen: Mutex::default(),
        })
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

    /// Whether two heartbeats in a row told of too much load.
    pub fn is_overloaded(&self, worker: WorkerId, health: Option<&Health>) -> bool {
        let above = |percent: Option<f64>, bound| percent.is_some_and(|percent| percent >= bound);
        let strained = health.is_some_and(|health| {
            above(health.memory_percent, MEMORY_PERCENT_MAX) || above(health.cpu_percent, CPU_PERCENT_MAX)
        });
        let mut known = self.strained.lock().unwrap_or_else(PoisonError::into_inner);
        if strained {
            !known.insert(worker)
        } else {
            known.remove(&worker);
            false
        }
    }

    /// Forgets what was known of a worker that left.
    pub fn forget_worker(&self, worker: WorkerId) {
        self.strained.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
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

    /// Holds until the task has ended, the time is over or the server shuts down.
    pub async fn wait_for_end(&self, id: TaskId, at_most: Duration) -> Result<(), Problem> {
        tokio::select! {
            ended = tokio::time::timeout(at_most, self.store.until_ended(id)) => match ended {
                Ok(ended) => Ok(ended?),
                Err(_) => Ok(()),
            },
            () = self.closing() => Ok(()),
        }
    }

    /// How long `position` tasks take at the present rate, if there is one.
    pub fn estimated_wait_seconds(&self, position: u64) -> Option<f64> {
        let rate = self.metrics.drain_rate();
        (rate > 0.0).then(|| (position as f64 / rate * 10.0).round() / 10.0)
    }
}
