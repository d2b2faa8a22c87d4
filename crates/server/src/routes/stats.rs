//! How everything stands, without counting a row.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::priority::Priority;
use windlass_core::store::QueueStats;
use windlass_core::time::Timestamp;
use windlass_core::worker::{Worker, WorkerStatus};

use crate::document::seconds;
use crate::engine::Engine;
use crate::problem::Problem;

/// How one priority, or one queue, stands.
#[derive(Clone, Copy, Default, Serialize, ToSchema)]
pub struct Standing {
    /// Tasks that are ready.
    depth: u64,
    /// How long the oldest ready task has waited.
    #[serde(serialize_with = "crate::number::plain")]
    oldest_age_seconds: f64,
    /// Tasks that run.
    executing: u64,
    /// Tasks that wait for a time.
    scheduled: u64,
}

impl Standing {
    fn add(&mut self, stats: &QueueStats, level: usize, now: Timestamp) {
        self.depth += stats.queued[level];
        self.executing += stats.executing[level];
        self.scheduled += stats.scheduled[level];
        let age = stats.oldest_ready_at[level].map_or(0.0, |oldest| seconds(now.since(oldest)));
        self.oldest_age_seconds = self.oldest_age_seconds.max(age);
    }
}

/// The workers by how they stand.
#[derive(Default, Serialize, ToSchema)]
pub struct WorkerCounts {
    active: usize,
    draining: usize,
    unhealthy: usize,
    dead: usize,
    /// Room of all workers that are not dead.
    total_capacity: u64,
    /// How much of it is taken.
    used_capacity: u64,
}

impl WorkerCounts {
    /// Counts workers.
    pub fn new(workers: &[Worker], engine: &Engine, now: Timestamp) -> Self {
        let mut counts = Self::default();
        for worker in workers {
            match worker.status(now, engine.config.heartbeat) {
                WorkerStatus::Active => counts.active += 1,
                WorkerStatus::Draining => counts.draining += 1,
                WorkerStatus::Unhealthy => counts.unhealthy += 1,
                WorkerStatus::Dead => {
                    counts.dead += 1;
                    continue;
                }
            }
            counts.total_capacity += u64::from(worker.profile.capacity);
            counts.used_capacity += worker.current_tasks.len() as u64;
        }
        counts
    }

    /// Counts by the name of the status.
    pub fn by_status(&self) -> [(&'static str, usize); 4] {
        [("active", self.active), ("draining", self.draining), ("unhealthy", self.unhealthy), ("dead", self.dead)]
    }

    /// All room, and how much of it is taken.
    pub fn capacity(&self) -> (u64, u64) {
        (self.total_capacity, self.used_capacity)
    }
}

/// Counts of the last minute.
#[derive(Serialize, ToSchema)]
#[allow(clippy::struct_field_names, reason = "the names on the wire")]
pub struct Throughput {
    completed_last_minute: u64,
    failed_last_minute: u64,
    enqueued_last_minute: u64,
}

/// From ready to claimed, over five minutes.
#[derive(Serialize, ToSchema)]
pub struct WaitSeconds {
    #[serde(serialize_with = "crate::number::plain_or_null")]
    p50: Option<f64>,
    #[serde(serialize_with = "crate::number::plain_or_null")]
    p95: Option<f64>,
    #[serde(serialize_with = "crate::number::plain_or_null")]
    p99: Option<f64>,
}

/// What had to be recovered.
#[derive(Serialize, ToSchema)]
pub struct Recovery {
    lease_expiries_last_hour: u64,
    timeouts_last_hour: u64,
}

/// How everything stands.
#[derive(Serialize, ToSchema)]
pub struct QueueStatsDocument {
    /// By priority, over all queues.
    queues: BTreeMap<String, Standing>,
    /// By queue.
    by_queue: BTreeMap<String, Standing>,
    /// Tasks by status.
    by_status: BTreeMap<&'static str, u64>,
    workers: WorkerCounts,
    throughput: Throughput,
    wait_seconds: WaitSeconds,
    recovery: Recovery,
}

/// How the queues stand.
#[utoipa::path(get, path = "/api/v1/queue/stats", tag = "queues", responses((status = 200, body = QueueStatsDocument)))]
pub async fn queue_stats(State(engine): State<Arc<Engine>>) -> Result<Json<QueueStatsDocument>, Problem> {
    let (stats, workers) = tokio::join!(engine.store.stats(), engine.store.workers());
    let (stats, workers, now) = (stats?, workers?, engine.store.now());
    let recent = engine.metrics.recent(now);
    let mut queues: BTreeMap<_, _> = [Priority::HIGH, Priority::MEDIUM, Priority::LOW]
        .map(|priority| (priority.to_string(), Standing::default()))
        .into_iter()
        .collect();
    let mut by_queue = BTreeMap::new();
    for (name, of_queue) in &stats.queues {
        let standing: &mut Standing = by_queue.entry(name.to_string()).or_default();
        for priority in Priority::descending() {
            let level = priority.index();
            standing.add(of_queue, level, now);
            if of_queue.queued[level] + of_queue.executing[level] + of_queue.scheduled[level] > 0 {
                queues.entry(priority.to_string()).or_default().add(of_queue, level, now);
            }
        }
    }
    let by_status = windlass_core::status::Status::ALL
        .map(|status| (status.as_str(), stats.by_status[usize::from(status.code())]))
        .into_iter()
        .collect();
    let [p50, p95, p99] = recent.wait_seconds;
    Ok(Json(QueueStatsDocument {
        queues,
        by_queue,
        by_status,
        workers: WorkerCounts::new(&workers, &engine, now),
        throughput: Throughput {
            completed_last_minute: recent.flow.completed,
            failed_last_minute: recent.flow.failed,
            enqueued_last_minute: recent.flow.enqueued,
        },
        wait_seconds: WaitSeconds { p50, p95, p99 },
        recovery: Recovery {
            lease_expiries_last_hour: recent.recoveries.lease_expiries,
            timeouts_last_hour: recent.recoveries.timeouts,
        },
    }))
}
