//! Work that waits too long.

use std::collections::BTreeMap;

use serde_json::json;
use windlass_core::names::QueueName;
use windlass_core::policy::PolicyKind;
use windlass_core::priority::Priority;
use windlass_core::settings::Settings;
use windlass_core::store::{Hindrance, LaneStats};

use super::{Facts, Finding, Severity, WAITS, Waiters, counted};
use crate::outcomes::Trend;

/// The share of its waiting bound after which a task is close to it.
const CLOSE_TO_BOUND: f64 = 0.8;
/// Waiting tasks below which a backlog is none.
const BACKLOG: u64 = 1_000;
/// How much more must come than go for a backlog to grow clearly.
const GROWTH: f64 = 1.2;

/// How long a task may wait until it counts as `high`, where its queue promises that.
fn waiting_bound_seconds(settings: &Settings, queue: &QueueName, priority: Priority) -> Option<i64> {
    let policy = settings.claim_policy(queue);
    let bound = policy.offsets[priority.index()] - policy.offsets[Priority::HIGH.index()];
    match policy.kind {
        PolicyKind::Aging | PolicyKind::Fair => (bound > 0).then_some(bound),
        PolicyKind::Strict | PolicyKind::Weighted => None,
    }
}

/// Whether the lane is held up by what has a finding of its own.
fn is_held_up(stats: &LaneStats) -> bool {
    match &stats.closed_by {
        Some(Hindrance::QueuePaused | Hindrance::TypePaused | Hindrance::BreakerOpen { .. }) => true,
        Some(
            Hindrance::TypeConcurrency { .. }
            | Hindrance::QueueConcurrency { .. }
            | Hindrance::TypeRate { .. }
            | Hindrance::QueueRate { .. },
        )
        | None => false,
    }
}

/// Tasks that have waited almost as long as their queue lets them.
pub fn close_to_bound(facts: &Facts<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<(&QueueName, Priority), (Waiters, i64)> = BTreeMap::new();
    for stats in facts.waiting().filter(|stats| !is_held_up(stats)) {
        let (queue, priority) = (&stats.lane.queue, stats.lane.priority);
        let Some(bound) = waiting_bound_seconds(facts.settings, queue, priority) else { continue };
        let waited = stats.oldest_ready_at.map_or(0.0, |oldest| facts.now.since(oldest).as_secs_f64());
        if waited >= bound as f64 * CLOSE_TO_BOUND {
            groups.entry((queue, priority)).or_insert_with(|| (Waiters::default(), bound)).0.add(stats);
        }
    }
    let finding = |((queue, priority), (waiters, bound)): ((&QueueName, Priority), (Waiters, i64))| {
        let waited = waiters.oldest.map_or(0, |oldest| facts.now.since(oldest).as_secs());
        Finding {
            code: "waiting_bound",
            severity: Severity::Warning,
            subject: format!("{queue} {priority}"),
            title: format!("Tasks of priority {priority} in queue {queue} wait long"),
            detail: format!("The oldest has waited {waited} s; after {bound} s it counts as high."),
            evidence: json!({"queue": queue, "priority": priority, "waited_seconds": waited, "bound_seconds": bound,
                "oldest_ready_at": waiters.oldest, "waiting": waiters.count, "task_types": waiters.types()}),
            next_step: format!("Add workers for queue {queue}, or let less urgent work wait in a queue of its own."),
            since: waiters.oldest,
        }
    };
    groups.into_iter().map(finding).collect()
}

/// Work that waits because somebody paused it.
pub fn paused_with_work(facts: &Facts<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<(&str, String), Waiters> = BTreeMap::new();
    for stats in facts.waiting() {
        let lane = &stats.lane;
        if facts.settings.is_queue_paused(&lane.queue) {
            groups.entry(("queue", lane.queue.to_string())).or_default().add(stats);
        }
        if facts.settings.is_type_paused(&lane.task_type) {
            groups.entry(("task type", lane.task_type.to_string())).or_default().add(stats);
        }
    }
    let finding = |((kind, name), waiters): ((&str, String), Waiters)| {
        let path = if kind == "queue" { "queues" } else { "task-types" };
        Finding {
            code: "paused_with_work",
            severity: Severity::Warning,
            title: format!("Paused {kind} {name} has work"),
            detail: format!("{} because {kind} {name} is paused.", counted(waiters.count, "task", "", WAITS)),
            evidence: json!({"kind": kind, "name": name, "waiting": waiters.count, "oldest_ready_at": waiters.oldest}),
            next_step: format!("Resume it when it may run: POST /api/v1/{path}/{name}/resume."),
            subject: format!("{kind} {name}"),
            since: waiters.oldest,
        }
    };
    groups.into_iter().map(finding).collect()
}

/// More comes than goes.
pub fn growing_backlog(facts: &Facts<'_>) -> Option<Finding> {
    let waiting: u64 = facts.stats.queues.values().flat_map(|queue| queue.queued).sum();
    let Trend { entered, left, seconds } = facts.trend;
    if waiting <= BACKLOG || entered as f64 <= left as f64 * GROWTH {
        return None;
    }
    let per_second = left as f64 / seconds.max(1) as f64;
    let drain_seconds = (left > 0).then(|| (waiting as f64 / per_second).ceil());
    let drain = drain_seconds.map_or_else(
        || "Nothing ended meanwhile.".to_owned(),
        |drain| format!("What waits takes about {drain} s at the present pace if nothing more comes."),
    );
    Some(Finding {
        code: "growing_backlog",
        severity: Severity::Warning,
        subject: String::new(),
        title: "The backlog grows".to_owned(),
        detail: format!("{waiting} tasks wait; in the last {seconds} s {entered} came and {left} ended. {drain}"),
        evidence: json!({"waiting": waiting, "entered": entered, "ended": left, "seconds": seconds,
            "time_to_drain_seconds": drain_seconds}),
        next_step: "Add workers, or slow down whoever submits.".to_owned(),
        since: None,
    })
}
