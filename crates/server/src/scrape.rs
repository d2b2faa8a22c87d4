//! What `/metrics` answers: the counters, and gauges read from the store at that moment.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use windlass_core::breaker::{self, Scope, State};
use windlass_core::limits;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::Stats;
use windlass_core::worker::Worker;

use crate::engine::Engine;
use crate::labels::{BreakerLabel, Lane, StatusLabel, StoreLabel, Waiting};
use crate::problem::Problem;
use crate::routes::WorkerCounts;

/// The whole text. What only the store knows is missing while it cannot be asked: that it cannot is among what is
/// counted here, and must be seen then.
pub async fn scrape(engine: &Engine) -> Result<String, Problem> {
    // A fresh registry per scrape, so that what is gone vanishes and two scrapes do not mix.
    let mut gauges = Registry::default();
    add_leader(&mut gauges, engine);
    let asked = tokio::try_join!(engine.store.stats(), engine.store.workers(), engine.store.breakers());
    if let Ok((stats, workers, breakers)) = asked {
        add_queues(&mut gauges, engine, &stats);
        add_tasks(&mut gauges, engine, &stats);
        add_workers(&mut gauges, engine, &workers);
        add_breakers(&mut gauges, engine, &breakers);
    }
    let mut text = String::with_capacity(64 * 1024);
    let written = encode_registry(&mut text, engine.metrics.registry())
        .and_then(|()| encode_registry(&mut text, &gauges))
        .and_then(|()| encode_eof(&mut text));
    written.map_err(|_| windlass_core::store::StoreError::not_applied("the metrics could not be written"))?;
    Ok(text)
}

fn add_leader(registry: &mut Registry, engine: &Engine) {
    let leader = Gauge::<i64>::default();
    leader.set(i64::from(engine.is_leader()));
    registry.register("windlass_leader", "Whether this node leads maintenance", leader);
}

fn add_queues(registry: &mut Registry, engine: &Engine, stats: &Stats) {
    let depth = Family::<Waiting, Gauge>::default();
    let oldest = Family::<Waiting, Gauge<f64, AtomicU64>>::default();
    let now = engine.store.now();
    for (queue, of_queue) in &stats.queues {
        let queue = engine.metrics.queue_label(queue.as_str());
        for priority in Priority::descending() {
            let level = priority.index();
            let (queued, oldest_at) = (of_queue.queued[level], of_queue.oldest_ready_at[level]);
            if queued == 0 && oldest_at.is_none() {
                continue;
            }
            let labels = Waiting { queue: queue.clone(), priority: priority.to_string() };
            depth.get_or_create(&labels).inc_by(queued as i64);
            let age = oldest_at.map_or(0.0, |oldest_at| now.since(oldest_at).as_secs_f64());
            let gauge = oldest.get_or_create(&labels);
            gauge.set(gauge.get().max(age));
        }
    }
    registry.register("windlass_queue_depth", "Tasks that are ready", depth);
    registry.register("windlass_queue_oldest_age_seconds", "How long the oldest ready task has waited", oldest);
}

fn add_tasks(registry: &mut Registry, engine: &Engine, stats: &Stats) {
    let tasks = Family::<StatusLabel, Gauge>::default();
    for status in Status::ALL {
        let count = stats.by_status[usize::from(status.code())];
        tasks.get_or_create(&StatusLabel { status: status.as_str() }).set(count as i64);
    }
    registry.register("windlass_tasks", "Tasks by status", tasks);
    let dead = Family::<Lane, Gauge>::default();
    for ((queue, task_type), count) in &stats.dead_letters {
        let queue = engine.metrics.queue_label(queue.as_str());
        let labels = Lane { queue, r#type: engine.metrics.type_label(task_type.as_str()) };
        dead.get_or_create(&labels).inc_by(*count as i64);
    }
    registry.register("windlass_dlq_depth", "Dead letters", dead);
    if let Some(bytes) = stats.bytes {
        let room = Family::<StoreLabel, Gauge>::default();
        room.get_or_create(&StoreLabel { store: engine.store.name() }).set(bytes as i64);
        registry.register("windlass_store_bytes", "Room that the store takes", room);
    }
}

fn add_workers(registry: &mut Registry, engine: &Engine, workers: &[Worker]) {
    let counts = WorkerCounts::new(workers, engine, engine.store.now());
    let by_status = Family::<StatusLabel, Gauge>::default();
    for (status, count) in counts.by_status() {
        by_status.get_or_create(&StatusLabel { status }).set(count as i64);
    }
    registry.register("windlass_workers", "Workers by status", by_status);
    let (total, used) = counts.capacity();
    for (name, help, value) in [
        ("windlass_worker_capacity", "Room of all live workers", total),
        ("windlass_worker_capacity_used", "How much of it is taken", used),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value as i64);
        registry.register(name, help, gauge);
    }
}

fn add_breakers(registry: &mut Registry, engine: &Engine, breakers: &[breaker::View]) {
    let family = Family::<BreakerLabel, Gauge>::default();
    let mut workers = 0;
    for view in breakers {
        let name = match &view.scope {
            Scope::Type(task_type) => engine.metrics.type_label(task_type.as_str()),
            // Workers come and go: only those that are left alone are worth a label, and not without end.
            Scope::Worker(_) if view.state == State::Closed => continue,
            Scope::Worker(_) if workers >= limits::METRIC_TYPES => "other".to_owned(),
            Scope::Worker(worker) => {
                workers += 1;
                worker.to_string()
            }
        };
        let gauge = family.get_or_create_owned(&BreakerLabel { scope: view.scope.kind(), name });
        // Under a shared label the worst is shown.
        gauge.set(gauge.get().max(level(view.state)));
    }
    registry.register("windlass_breaker_state", "Breakers: 0 closed, 1 half open, 2 open", family);
}

fn level(state: State) -> i64 {
    match state {
        State::Closed => 0,
        State::HalfOpen => 1,
        State::Open => 2,
    }
}
