//! Why a task is not running: a pure function from what is known to one sentence and data.

use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::ids::TaskId;
use windlass_core::lane::LaneKey;
use windlass_core::names::Capability;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::task::Task;
use windlass_core::time::Timestamp;
use windlass_core::worker::{Worker, WorkerStatus};

/// What is known when somebody asks.
pub struct Known<'a> {
    /// The task.
    pub task: &'a Task,
    /// The settings.
    pub settings: &'a Settings,
    /// The workers, each with how it stands.
    pub workers: &'a [(Worker, WorkerStatus)],
    /// About how many tasks go first.
    pub position: Option<u64>,
    /// What time it is.
    pub now: Timestamp,
}

/// Why a task is not running.
#[derive(Debug, Serialize, ToSchema)]
#[allow(clippy::struct_field_names, reason = "the name on the wire")]
pub struct Explanation {
    /// Which task.
    #[schema(value_type = String, format = "uuid")]
    pub task_id: TaskId,
    /// Where it stands.
    pub status: &'static str,
    /// A stable name of the reason.
    pub reason: &'static str,
    /// The reason in one sentence.
    pub explanation: String,
    /// About how many tasks go first.
    pub queue_position: Option<u64>,
    /// When it may start or is tried again.
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    /// Whether its queue is paused.
    pub queue_paused: bool,
    /// Whether its type is paused.
    pub type_paused: bool,
    /// Live workers that serve its queue and type and have its capabilities.
    pub capable_workers: usize,
    /// Those of them that take tasks.
    pub ready_workers: usize,
    /// Capabilities that no live worker has.
    #[schema(value_type = Vec<String>)]
    pub missing_capabilities: Vec<Capability>,
}

/// Says why.
pub fn explain(known: &Known<'_>) -> Explanation {
    let task = known.task;
    let lane = LaneKey::of(&task.spec);
    let live = || known.workers.iter().filter(|(_, status)| *status != WorkerStatus::Dead);
    let has =
        |capability: &Capability| live().any(|(worker, _)| worker.profile.capabilities.as_slice().contains(capability));
    let capable = || live().filter(|(worker, _)| worker.profile.serves().covers(&lane));
    let mut explanation = Explanation {
        task_id: task.id,
        status: task.state.status.as_str(),
        reason: "",
        explanation: String::new(),
        queue_position: known.position,
        run_at: task.state.run_at,
        queue_paused: known.settings.is_queue_paused(&lane.queue),
        type_paused: known.settings.is_type_paused(&lane.task_type),
        capable_workers: capable().count(),
        ready_workers: capable().filter(|(_, status)| *status == WorkerStatus::Active).count(),
        missing_capabilities: lane.capabilities.as_slice().iter().filter(|c| !has(c)).cloned().collect(),
    };
    let (reason, sentence) = match task.state.status {
        Status::Queued => queued(known, &explanation, &lane, live().count()),
        Status::Blocked => ("blocked", "It waits for other tasks of its workflow.".to_owned()),
        Status::Scheduled => scheduled(known),
        Status::Executing => executing(task),
        Status::Completed => ("completed", "It has completed.".to_owned()),
        Status::Cancelled => ("cancelled", "It was cancelled.".to_owned()),
        Status::Failed => ("failed", format!("It has failed{}.", why_it_ended(task))),
        Status::DeadLetter => ("dead_letter", format!("It was given up{}; replay or discard it.", why_it_ended(task))),
    };
    explanation.reason = reason;
    explanation.explanation = sentence;
    explanation
}

fn queued(known: &Known<'_>, facts: &Explanation, lane: &LaneKey, live: usize) -> (&'static str, String) {
    if facts.queue_paused {
        return ("queue_paused", format!("Queue {} is paused; resume it.", lane.queue));
    }
    if facts.type_paused {
        return ("type_paused", format!("Task type {} is paused; resume it.", lane.task_type));
    }
    if live == 0 {
        return ("no_workers", "No live worker is registered.".to_owned());
    }
    if let Some(missing) = facts.missing_capabilities.first() {
        return ("missing_capability", format!("No live worker has capability {missing}."));
    }
    if facts.capable_workers == 0 {
        let sentence = format!(
            "No live worker serves queue {} and type {} with the capabilities it requires.",
            lane.queue, lane.task_type
        );
        return ("no_capable_worker", sentence);
    }
    if facts.ready_workers == 0 {
        return ("workers_not_ready", "Every worker that could run it is draining or unhealthy.".to_owned());
    }
    match known.position {
        Some(0) | None => ("next", "It is next: the first capable worker with room gets it.".to_owned()),
        Some(ahead) => {
            ("behind_others", format!("It waits behind about {ahead} tasks of the same or higher priority."))
        }
    }
}

fn scheduled(known: &Known<'_>) -> (&'static str, String) {
    let state = &known.task.state;
    if state.run_at <= known.now {
        return ("due", "Its time has come; it joins its queue in a moment.".to_owned());
    }
    if state.retrying {
        let failure =
            state.last_failure().map(|failure| format!(" after: {}", failure.error.message)).unwrap_or_default();
        let sentence = format!("It is tried again at {} (attempt {} failed{failure}).", state.run_at, state.attempt);
        return ("retry_delay", sentence);
    }
    ("scheduled", format!("It is to start at {}.", state.run_at))
}

fn executing(task: &Task) -> (&'static str, String) {
    let worker = task.state.worker.map(|worker| format!(" on worker {worker}")).unwrap_or_default();
    ("executing", format!("It is running{worker}, attempt {}.", task.state.attempt))
}

fn why_it_ended(task: &Task) -> String {
    let reason = task.state.end_reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
    let failure =
        task.state.last_failure().map(|failure| format!(" after: {}", failure.error.message)).unwrap_or_default();
    format!("{reason}{failure}")
}
