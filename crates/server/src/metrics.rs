//! What is counted. Counters are fed by the store's commits (see [`Observer`]), so that
//! they count what happened and not what was asked for; gauges are read at the scrape.
//!
//! Counters are this node's alone, for whoever collects them adds up the nodes. What happened
//! [`lately`](crate::lately) is of all nodes that share a database.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use windlass_core::event::{Change, Committed, Observer};
use windlass_core::fact::Fact;
use windlass_core::failure::{DecidedBy, ErrorClass};
use windlass_core::lane::LaneKey;
use windlass_core::names::TaskType;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::labels::{
    Bounded, Classed, Lane, Reasoned, RequestLabels, Run, Seconds, Shift, StoreCall, TypeLabel, Waiting,
};
use crate::lately::{Lately, Recent};
use crate::outcomes::{Tally, Trend, Trouble};
use crate::unclassified::UnclassifiedError;

/// All counters of a server.
pub struct Metrics {
    registry: Registry,
    enqueued: Family<Lane, Counter>,
    completed: Family<Lane, Counter>,
    failed: Family<Classed, Counter>,
    retried: Family<Classed, Counter>,
    dead_lettered: Family<Reasoned, Counter>,
    unclassified: Family<TypeLabel, Counter>,
    cancelled: Family<Lane, Counter>,
    expired: Family<Lane, Counter>,
    promoted: Family<Shift, Counter>,
    wait: Family<Waiting, Histogram, Seconds>,
    duration: Family<Run, Histogram, Seconds>,
    total: Family<Run, Histogram, Seconds>,
    lease_expired: Family<TypeLabel, Counter>,
    lease_lost: Family<TypeLabel, Counter>,
    deduplicated: Family<TypeLabel, Counter>,
    rejected: Family<crate::labels::Reason, Counter>,
    requests: Family<RequestLabels, Histogram, Seconds>,
    store_calls: Family<StoreCall, Histogram, Seconds>,
    store_failures: Family<StoreCall, Counter>,
    /// Claims per second over the last minute, as the bits of a float: read by every submit, and so reckoned only
    /// once a second.
    drain_rate: AtomicU64,
    rate_at_second: AtomicI64,
    counted: Mutex<Counted>,
}

/// What only the observer and the statistics touch.
struct Counted {
    lanes: HashMap<Arc<LaneKey>, Arc<LaneMetrics>>,
    /// The lane counted last: changes of one transaction are mostly of the same.
    latest: Option<(Arc<LaneKey>, Arc<LaneMetrics>)>,
    types: Bounded,
    queues: Bounded,
    lately: Lately,
}

/// The counters of one lane, looked up once: the families would hash texts for every task.
struct LaneMetrics {
    queue: String,
    task_type: String,
    priority: String,
    enqueued: Counter,
    completed: Counter,
    wait: Histogram,
    completed_duration: Histogram,
    completed_total: Histogram,
}

/// Lanes whose counters are kept at hand; beyond that the memory starts anew.
const LANES_AT_HAND: usize = 20_000;

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        macro_rules! family {
            ($name:literal, $help:literal) => {{
                let family = Family::default();
                registry.register($name, $help, family.clone());
                family
            }};
            ($name:literal, $help:literal, seconds) => {{
                let family = Family::new_with_constructor(Seconds);
                registry.register($name, $help, family.clone());
                family
            }};
        }
        Self {
            enqueued: family!("windlass_tasks_enqueued", "Tasks submitted"),
            completed: family!("windlass_tasks_completed", "Attempts that succeeded"),
            failed: family!("windlass_tasks_failed", "Attempts that failed"),
            retried: family!("windlass_tasks_retried", "Failed attempts that are tried again"),
            dead_lettered: family!("windlass_tasks_dead_lettered", "Tasks given up for a person to look at"),
            unclassified: family!("windlass_errors_unclassified", "Failed attempts that nothing put in a class"),
            cancelled: family!("windlass_tasks_cancelled", "Tasks cancelled"),
            expired: family!("windlass_tasks_expired", "Tasks not started before their expiry"),
            promoted: family!("windlass_tasks_promoted", "Claims made through the overdue share"),
            wait: family!("windlass_queue_wait_seconds", "From ready to claimed", seconds),
            duration: family!("windlass_task_duration_seconds", "From claimed to result", seconds),
            total: family!("windlass_task_total_seconds", "From submit to end", seconds),
            lease_expired: family!("windlass_lease_expired", "Leases that lapsed without a result"),
            lease_lost: family!("windlass_lease_lost_results", "Results refused because their lease was lost"),
            deduplicated: family!("windlass_tasks_deduplicated", "Submits that found their task already there"),
            rejected: family!("windlass_rejected", "Requests refused"),
            requests: family!("windlass_http_request_duration_seconds", "From request to answer", seconds),
            store_calls: family!("windlass_store_op_duration_seconds", "From call to durable answer", seconds),
            store_failures: family!("windlass_store_errors", "Calls that the store could not carry out"),
            drain_rate: AtomicU64::new(0),
            rate_at_second: AtomicI64::new(0),
            counted: Mutex::new(Counted {
                lanes: HashMap::new(),
                latest: None,
                types: Bounded::default(),
                queues: Bounded::default(),
                lately: Lately::default(),
            }),
            registry,
        }
    }
}

impl Metrics {
    /// The registry with all counters.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Tasks that leave the queues per second.
    pub fn drain_rate(&self, now: Timestamp) -> f64 {
        let second = now.as_micros() / 1_000_000;
        if self.rate_at_second.swap(second, Ordering::Relaxed) != second {
            let rate = self.counted().lately.drain_rate(now);
            self.drain_rate.store(rate.to_bits(), Ordering::Relaxed);
        }
        f64::from_bits(self.drain_rate.load(Ordering::Relaxed))
    }

    /// Counts an answered request.
    pub fn request(&self, labels: &RequestLabels, seconds: f64) {
        self.requests.get_or_create(labels).observe(seconds);
    }

    /// Counts a refusal.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&crate::labels::Reason { reason }).inc();
    }

    /// Counts a call of the store.
    pub fn store_call(&self, store: &'static str, op: &'static str, took: std::time::Duration) {
        self.store_calls.get_or_create(&StoreCall { store, op }).observe(took.as_secs_f64());
    }

    /// Counts a call that the store could not carry out.
    pub fn store_failure(&self, store: &'static str, op: &'static str) {
        self.store_failures.get_or_create(&StoreCall { store, op }).inc();
    }

    /// Counts a submit whose task was there before.
    pub fn deduplicated(&self, task_type: &TaskType) {
        let task_type = self.counted().types.label(task_type.as_str());
        self.deduplicated.get_or_create(&TypeLabel { r#type: task_type }).inc();
    }

    /// Counts a result that came too late. Whose it was is known only for live tasks.
    pub fn lease_lost(&self) {
        self.lease_lost.get_or_create(&TypeLabel { r#type: "other".to_owned() }).inc();
    }

    /// What happened lately.
    pub fn recent(&self, now: Timestamp) -> Recent {
        self.counted().lately.recent(now)
    }

    /// How tasks ended within a window, by type.
    pub fn tallies(&self, window: Duration, now: Timestamp) -> BTreeMap<String, Tally> {
        self.counted().lately.tallies(window, now)
    }

    /// Types in trouble lately.
    pub fn troubles(&self, now: Timestamp) -> BTreeMap<String, Trouble> {
        self.counted().lately.troubles(now)
    }

    /// What came and went in the last minutes.
    pub fn trend(&self, now: Timestamp) -> Trend {
        self.counted().lately.trend(now)
    }

    /// Errors that nothing put in a class since the start, the most frequent first.
    pub fn unclassified(&self) -> Vec<UnclassifiedError> {
        self.counted().lately.unclassified()
    }

    /// A queue name as a label: the name, or `other` once there are too many.
    pub fn queue_label(&self, queue: &str) -> String {
        self.counted().queues.label(queue)
    }

    /// A type name as a label.
    pub fn type_label(&self, task_type: &str) -> String {
        self.counted().types.label(task_type)
    }

    fn counted(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, counted: &mut Counted, key: &Arc<LaneKey>) -> Arc<LaneMetrics> {
        if let Some((latest, lane)) = &counted.latest
            && Arc::ptr_eq(latest, key)
        {
            return Arc::clone(lane);
        }
        let lane = self.lane_by_name(counted, key);
        counted.latest = Some((Arc::clone(key), Arc::clone(&lane)));
        lane
    }

    fn lane_by_name(&self, counted: &mut Counted, key: &Arc<LaneKey>) -> Arc<LaneMetrics> {
        if let Some(lane) = counted.lanes.get(key) {
            return Arc::clone(lane);
        }
        if counted.lanes.len() >= LANES_AT_HAND {
            counted.lanes.clear();
        }
        let queue = counted.queues.label(key.queue.as_str());
        let task_type = counted.types.label(key.task_type.as_str());
        let priority = key.priority.to_string();
        let labels = Lane { queue: queue.clone(), r#type: task_type.clone() };
        let run = Run { r#type: task_type.clone(), priority: priority.clone(), status: Status::Completed.as_str() };
        let waiting = Waiting { queue: queue.clone(), priority: priority.clone() };
        let lane = Arc::new(LaneMetrics {
            enqueued: self.enqueued.get_or_create_owned(&labels),
            completed: self.completed.get_or_create_owned(&labels),
            wait: self.wait.get_or_create_owned(&waiting),
            completed_duration: self.duration.get_or_create_owned(&run),
            completed_total: self.total.get_or_create_owned(&run),
            queue,
            task_type,
            priority,
        });
        counted.lanes.insert(Arc::clone(key), Arc::clone(&lane));
        lane
    }

    fn count(&self, counted: &mut Counted, committed: &Committed) {
        let lane = self.lane(counted, &committed.lane);
        counted.lately.count(&lane.task_type, &Fact::of(committed));
        if committed.failure.as_ref().is_some_and(|note| note.decided_by == DecidedBy::Nobody) {
            self.unclassified.get_or_create(&TypeLabel { r#type: lane.task_type.clone() }).inc();
        }
        let of_lane = || Lane { queue: lane.queue.clone(), r#type: lane.task_type.clone() };
        match &committed.event.change {
            Change::Submitted { .. } => {
                lane.enqueued.inc();
            }
            Change::Claimed { .. } => {
                if let Some(waited) = committed.waited {
                    lane.wait.observe(waited.as_secs_f64());
                }
                if let Some(ahead_of) = committed.ahead_of {
                    let shift = Shift { from: lane.priority.clone(), to: ahead_of.to_string() };
                    self.promoted.get_or_create(&shift).inc();
                }
            }
            Change::Completed => {
                lane.completed.inc();
                lane.completed_total.observe(committed.age.as_secs_f64());
                if let Some(ran) = committed.ran {
                    lane.completed_duration.observe(ran.as_secs_f64());
                }
            }
            Change::Retrying { class, .. } => {
                self.count_failure(&lane, committed, *class);
                self.retried.get_or_create(&lane.classed(*class)).inc();
            }
            Change::Lapsed { .. } => self.count_failure(&lane, committed, ErrorClass::WorkerLost),
            Change::Failed { reason, class, .. } => {
                if committed.from == Some(Status::Executing) {
                    self.count_failure(&lane, committed, class.unwrap_or(ErrorClass::Unknown));
                }
                if *reason == windlass_core::failure::EndReason::Expired {
                    self.expired.get_or_create(&of_lane()).inc();
                }
                self.count_end(&lane, committed);
            }
            Change::DeadLettered { reason, class, .. } => {
                if committed.from == Some(Status::Executing) {
                    self.count_failure(&lane, committed, class.unwrap_or(ErrorClass::Unknown));
                }
                self.dead_lettered.get_or_create(&lane.reasoned(reason.as_str())).inc();
                self.count_end(&lane, committed);
            }
            Change::Cancelled { .. } => {
                self.cancelled.get_or_create(&of_lane()).inc();
                self.count_end(&lane, committed);
            }
            Change::Due
            | Change::Released
            | Change::Snoozed { .. }
            | Change::Replayed { .. }
            | Change::Discarded { .. }
            | Change::Replaced { .. }
            | Change::Amended { .. } => {}
        }
    }

    fn count_failure(&self, lane: &LaneMetrics, committed: &Committed, class: ErrorClass) {
        self.failed.get_or_create(&lane.classed(class)).inc();
        if class == ErrorClass::WorkerLost {
            self.lease_expired.get_or_create(&TypeLabel { r#type: lane.task_type.clone() }).inc();
        }
        if let Some(ran) = committed.ran {
            self.duration.get_or_create(&lane.run("failed")).observe(ran.as_secs_f64());
        }
    }

    fn count_end(&self, lane: &LaneMetrics, committed: &Committed) {
        self.total.get_or_create(&lane.run(committed.to.as_str())).observe(committed.age.as_secs_f64());
    }
}

impl LaneMetrics {
    fn classed(&self, class: ErrorClass) -> Classed {
        Classed { queue: self.queue.clone(), r#type: self.task_type.clone(), class: class.as_str() }
    }

    fn reasoned(&self, reason: &'static str) -> Reasoned {
        Reasoned { queue: self.queue.clone(), r#type: self.task_type.clone(), reason }
    }

    fn run(&self, status: &'static str) -> Run {
        Run { r#type: self.task_type.clone(), priority: self.priority.clone(), status }
    }
}

impl Observer for Metrics {
    fn committed(&self, changes: &[Committed]) {
        // One lock per transaction; only the statistics page competes for it.
        let mut counted = self.counted();
        for change in changes {
            self.count(&mut counted, change);
        }
    }

    /// What other nodes did is in their counters, and must not be in these.
    fn followed(&self, facts: &[Fact]) {
        let Counted { types, lately, .. } = &mut *self.counted();
        // Facts of one type mostly follow each other.
        let mut latest: Option<(&TaskType, String)> = None;
        for fact in facts {
            let (_, label) = match latest.take() {
                Some(known) if known.0 == &fact.task_type => latest.insert(known),
                _ => latest.insert((&fact.task_type, types.label(fact.task_type.as_str()))),
            };
            lately.count(label, fact);
        }
    }
}
