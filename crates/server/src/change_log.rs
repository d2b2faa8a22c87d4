//! One log line per change of a task, for operators who want it. Payloads are never logged.

use std::sync::Arc;

use windlass_core::event::{Change, Committed, Observer};
use windlass_core::fact::Fact;

use crate::metrics::Metrics;

/// The log target of changes, so that a filter can have or leave them.
pub const TARGET: &str = "windlass::changes";

/// Counts and logs what a store commits.
pub struct Watch {
    metrics: Arc<Metrics>,
}

impl Watch {
    /// Watches a store for these counters and the log.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { metrics })
    }
}

impl Observer for Watch {
    fn committed(&self, changes: &[Committed]) {
        self.metrics.committed(changes);
        if tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            for change in changes {
                log(change);
            }
        }
    }

    /// The node that made a change logs it.
    fn followed(&self, facts: &[Fact]) {
        self.metrics.followed(facts);
    }
}

fn log(committed: &Committed) {
    let (worker, attempt) = match &committed.event.change {
        Change::Claimed { worker, attempt, .. } => (Some(worker.to_string()), Some(*attempt)),
        _ => (None, None),
    };
    tracing::info!(
        target: TARGET,
        task_id = %committed.event.task_id,
        task_type = %committed.lane.task_type,
        queue = %committed.lane.queue,
        from = committed.from.map(windlass_core::status::Status::as_str),
        to = committed.to.as_str(),
        actor = %committed.event.actor,
        worker,
        attempt,
        "{}",
        committed.event.change.kind(),
    );
}
