//! Why a task is not running: a pure function from what is known to one sentence and data.
//!
//! One reason is named: the first thing that would have to change. What holds for everybody
//! (a time, a pause) goes before what holds for the task, and what no worker can change goes
//! before what waits for one.

use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::breaker::{self, Forced, Scope, State};
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::keys::FlowKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{Capability, Text};
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::store::{Hindrance, Waiting};
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
    /// The breakers.
    pub breakers: &'a [breaker::View],
    /// What the store says a queued task waits for.
    pub waiting: Option<Waiting>,
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
    /// About how many tasks go first, if it stands in a line.
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
    /// More about the reason; only what belongs to it is there.
    #[serde(flatten)]
    pub details: Details,
}

/// What belongs to a reason.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Details {
    /// `ordering_key`: the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ordering_key: Option<Text>,
    /// `ordering_key`: the task that goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub held_by: Option<TaskId>,
    /// `ordering_key`: tasks of its line that go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// `concurrency_key`: the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub concurrency_key: Option<Text>,
    /// `concurrency_key`: some of the tasks that run under it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    pub running: Vec<TaskId>,
    /// `concurrency_key`, `type_concurrency`, `queue_concurrency`: how many may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `breaker_open`, `worker_breaker_open`: when one task is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// `worker_breaker_open`: the worker that is tried first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub worker_id: Option<WorkerId>,
    /// `type_rate`, `queue_rate`: when the next task may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_token_at: Option<Timestamp>,
    /// `too_few_slots`: how much of a worker it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// `too_few_slots`: the most that a worker has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_capacity: Option<u32>,
}

/// A reason with its sentence and its data.
struct Why {
    reason: &'static str,
    sentence: String,
    details: Details,
}

impl Why {
    fn new(reason: &'static str, sentence: impl Into<String>) -> Self {
        Self { reason, sentence: sentence.into(), details: Details::default() }
    }

    fn with(reason: &'static str, sentence: String, details: Details) -> Self {
        Self { reason, sentence, details }
    }
}

/// Says why.
pub fn explain(known: &Known<'_>) -> Explanation {
    let task = known.task;
    let fleet = Fleet::new(known);
    let why = match task.state.status {
        Status::Queued => queued(known, &fleet),
        Status::Blocked => Why::new("blocked", "It waits for other tasks of its workflow."),
        Status::Scheduled => scheduled(known),
        Status::Executing => executing(task),
        Status::Completed => Why::new("completed", "It has completed."),
        Status::Cancelled => Why::new("cancelled", "It was cancelled."),
        Status::Failed => Why::new("failed", format!("It has failed{}.", why_it_ended(task))),
        Status::DeadLetter => {
            Why::new("dead_letter", format!("It was given up{}; replay or discard it.", why_it_ended(task)))
        }
    };
    Explanation {
        task_id: task.id,
        status: task.state.status.as_str(),
        reason: why.reason,
        explanation: why.sentence,
        queue_position: match known.waiting {
            Some(Waiting::Line { ahead }) => Some(ahead),
            Some(Waiting::OrderingKey { .. } | Waiting::ConcurrencyKey { .. } | Waiting::Lane(_)) | None => None,
        },
        run_at: task.state.run_at,
        queue_paused: known.settings.is_queue_paused(&task.spec.queue),
        type_paused: known.settings.is_type_paused(&task.spec.task_type),
        capable_workers: fleet.capable.len(),
        ready_workers: fleet.ready().count(),
        missing_capabilities: fleet.missing,
        details: why.details,
    }
}

/// The workers as one task sees them.
struct Fleet<'a> {
    /// How many are not dead.
    live: usize,
    /// Capabilities that none of them has.
    missing: Vec<Capability>,
    /// Those that serve the task's queue and type and have its capabilities.
    capable: Vec<Candidate<'a>>,
}

struct Candidate<'a> {
    worker: &'a Worker,
    status: WorkerStatus,
    /// Its breaker, if that is not closed.
    breaker: Option<&'a breaker::View>,
}

impl Candidate<'_> {
    /// Whether it is given tasks when it has room.
    fn is_ready(&self) -> bool {
        let is_admitted = match self.breaker.map(|view| view.state) {
            None | Some(State::Closed) => true,
            // One task is tried, and none beside it.
            Some(State::HalfOpen) => self.worker.current_tasks.is_empty(),
            Some(State::Open) => false,
        };
        self.status == WorkerStatus::Active && is_admitted
    }

    /// About how much room it has: tasks that take more than one slot make it less.
    fn room(&self) -> u32 {
        self.worker.profile.capacity.saturating_sub(self.worker.current_tasks.len() as u32)
    }
}

impl<'a> Fleet<'a> {
    fn new(known: &Known<'a>) -> Self {
        let lane = LaneKey::of(&known.task.spec, known.settings);
        let live = || known.workers.iter().filter(|(_, status)| *status != WorkerStatus::Dead);
        let has = |capability: &Capability| {
            live().any(|(worker, _)| worker.profile.capabilities.as_slice().contains(capability))
        };
        let breaker_of = |id: WorkerId| {
            known.breakers.iter().find(|view| view.scope == Scope::Worker(id) && view.state != State::Closed)
        };
        Self {
            live: live().count(),
            missing: lane.capabilities.as_slice().iter().filter(|c| !has(c)).cloned().collect(),
            capable: live()
                .filter(|(worker, _)| worker.profile.serves().covers(&lane))
                .map(|(worker, status)| Candidate { worker, status: *status, breaker: breaker_of(worker.profile.id) })
                .collect(),
        }
    }

    fn ready(&self) -> impl Iterator<Item = &Candidate<'a>> {
        self.capable.iter().filter(|candidate| candidate.is_ready())
    }
}

fn queued(known: &Known<'_>, fleet: &Fleet<'_>) -> Why {
    paused(known)
        .or_else(|| behind_its_ordering_key(known))
        .or_else(|| breaker_open(known))
        .or_else(|| nobody_could(known, fleet))
        .or_else(|| full_concurrency_key(known))
        .or_else(|| limited(known))
        .or_else(|| nobody_can_now(known, fleet))
        .unwrap_or_else(|| in_line(known))
}

fn paused(known: &Known<'_>) -> Option<Why> {
    let spec = &known.task.spec;
    let by_queue = matches!(known.waiting, Some(Waiting::Lane(Hindrance::QueuePaused)));
    let by_type = matches!(known.waiting, Some(Waiting::Lane(Hindrance::TypePaused)));
    if by_queue || known.settings.is_queue_paused(&spec.queue) {
        return Some(Why::new("queue_paused", format!("Queue {} is paused; resume it.", spec.queue)));
    }
    let is_paused = by_type || known.settings.is_type_paused(&spec.task_type);
    is_paused.then(|| Why::new("type_paused", format!("Task type {} is paused; resume it.", spec.task_type)))
}

fn key_of(known: &Known<'_>) -> Option<Text> {
    known.task.spec.flow_key.as_ref().map(FlowKey::key).cloned()
}

fn behind_its_ordering_key(known: &Known<'_>) -> Option<Why> {
    let Some(Waiting::OrderingKey { holder, ahead }) = known.waiting else { return None };
    let key = key_of(known);
    let name = key.as_ref().map(|key| format!(" {key}")).unwrap_or_default();
    let sentence = format!("It waits for its ordering key{name}: {ahead} ahead of it in line, task {holder} first.");
    let details = Details { ordering_key: key, held_by: Some(holder), ahead: Some(ahead), ..Details::default() };
    Some(Why::with("ordering_key", sentence, details))
}

fn breaker_open(known: &Known<'_>) -> Option<Why> {
    let Some(Waiting::Lane(Hindrance::BreakerOpen { until })) = known.waiting else { return None };
    let task_type = &known.task.spec.task_type;
    let is_forced = known
        .breakers
        .iter()
        .any(|view| matches!(&view.scope, Scope::Type(of) if of == task_type) && view.forced == Some(Forced::Open));
    let sentence = match until {
        _ if is_forced => {
            format!("A person forced the breaker of task type {task_type} open; close it or set it to auto.")
        }
        Some(until) => {
            format!(
                "The breaker of task type {task_type} is open because too many attempts failed; one task is tried at {until}."
            )
        }
        None => format!(
            "The breaker of task type {task_type} is half open: one task is tried, and the others wait for how it ends."
        ),
    };
    Some(Why::with("breaker_open", sentence, Details { until, ..Details::default() }))
}

/// No worker that is there could take it, however long it waits.
fn nobody_could(known: &Known<'_>, fleet: &Fleet<'_>) -> Option<Why> {
    let spec = &known.task.spec;
    if fleet.live == 0 {
        return Some(Why::new("no_workers", "No live worker is registered."));
    }
    if let Some(missing) = fleet.missing.first() {
        return Some(Why::new("missing_capability", format!("No live worker has capability {missing}.")));
    }
    let Some(largest) = fleet.capable.iter().map(|candidate| candidate.worker.profile.capacity).max() else {
        let sentence = format!(
            "No live worker serves queue {} and type {} with the capabilities it requires.",
            spec.queue, spec.task_type
        );
        return Some(Why::new("no_capable_worker", sentence));
    };
    let slots = known.settings.slots(&spec.task_type);
    (slots > largest).then(|| {
        let sentence = format!(
            "A task of type {} takes {slots} slots and no worker that could run it has a capacity above {largest}.",
            spec.task_type
        );
        let details = Details { slots: Some(slots), largest_capacity: Some(largest), ..Details::default() };
        Why::with("too_few_slots", sentence, details)
    })
}

fn full_concurrency_key(known: &Known<'_>) -> Option<Why> {
    let Some(Waiting::ConcurrencyKey { limit, running }) = &known.waiting else { return None };
    let key = key_of(known);
    let name = key.as_ref().map(|key| format!(" {key}")).unwrap_or_default();
    let who = running.first().map(|task| format!(", task {task} among them")).unwrap_or_default();
    let sentence = format!("As many tasks with concurrency key{name} run as may ({limit}){who}.");
    let details = Details { concurrency_key: key, running: running.clone(), limit: Some(*limit), ..Details::default() };
    Some(Why::with("concurrency_key", sentence, details))
}

fn limited(known: &Known<'_>) -> Option<Why> {
    let Some(Waiting::Lane(hindrance)) = &known.waiting else { return None };
    let (queue, task_type) = (&known.task.spec.queue, &known.task.spec.task_type);
    let full = |reason, what: String, limit: u32| {
        let sentence = format!("As many tasks of {what} run as may ({limit}).");
        Some(Why::with(reason, sentence, Details { limit: Some(limit), ..Details::default() }))
    };
    let paced = |reason, what: String, at: Timestamp| {
        let sentence = format!("The rate limit of {what} lets the next task start at {at}.");
        Some(Why::with(reason, sentence, Details { next_token_at: Some(at), ..Details::default() }))
    };
    match hindrance {
        Hindrance::TypeConcurrency { limit } => full("type_concurrency", format!("type {task_type}"), *limit),
        Hindrance::QueueConcurrency { limit } => full("queue_concurrency", format!("queue {queue}"), *limit),
        Hindrance::TypeRate { next_token_at } => paced("type_rate", format!("type {task_type}"), *next_token_at),
        Hindrance::QueueRate { next_token_at } => paced("queue_rate", format!("queue {queue}"), *next_token_at),
        // Named before.
        Hindrance::QueuePaused | Hindrance::TypePaused | Hindrance::BreakerOpen { .. } => None,
    }
}

/// Workers that could take it are there, and none of them does now.
fn nobody_can_now(known: &Known<'_>, fleet: &Fleet<'_>) -> Option<Why> {
    if fleet.ready().next().is_none() {
        let left_alone = fleet.capable.iter().filter_map(|candidate| candidate.breaker);
        return Some(match left_alone.min_by_key(|view| (view.until.is_none(), view.until)) {
            Some(view) => worker_breaker_open(view),
            None => Why::new("workers_not_ready", "Every worker that could run it is draining or unhealthy."),
        });
    }
    let slots = known.settings.slots(&known.task.spec.task_type);
    if fleet.ready().any(|candidate| candidate.room() >= slots) {
        return None;
    }
    let place = match known.waiting {
        Some(Waiting::Line { ahead }) if ahead > 0 => format!("about {ahead} tasks go first"),
        Some(_) | None => "it is next".to_owned(),
    };
    Some(Why::new("workers_busy", format!("Every worker that could run it is full; {place}.")))
}

fn worker_breaker_open(view: &breaker::View) -> Why {
    let name = view.scope.name();
    let worker_id = match &view.scope {
        Scope::Worker(worker) => Some(*worker),
        Scope::Type(_) => None,
    };
    let next = match (view.forced, view.until) {
        (Some(_), _) => format!("a person forced the breaker of worker {name} open"),
        (None, Some(until)) if view.state == State::Open => {
            format!("worker {name} failed time after time and is tried again at {until}")
        }
        (None, _) => format!("worker {name} failed time after time and is tried with one task"),
    };
    let sentence =
        format!("Every worker that could run it is draining, unhealthy or left alone by its breaker; {next}.");
    Why::with("worker_breaker_open", sentence, Details { until: view.until, worker_id, ..Details::default() })
}

fn in_line(known: &Known<'_>) -> Why {
    match known.waiting {
        Some(Waiting::Line { ahead }) if ahead > 0 => {
            let sentence = format!("It waits behind about {ahead} tasks of the same or higher priority.");
            Why::new("behind_others", sentence)
        }
        // Everything else was named before; without a word of the store it is on its way out of the line.
        Some(_) | None => Why::new("next", "It is next: the first capable worker with room gets it."),
    }
}

fn scheduled(known: &Known<'_>) -> Why {
    let state = &known.task.state;
    if state.run_at <= known.now {
        return Why::new("due", "Its time has come; it joins its queue in a moment.");
    }
    if state.retrying {
        let failure =
            state.last_failure().map(|failure| format!(" after: {}", failure.error.message)).unwrap_or_default();
        let sentence = format!("It is tried again at {} (attempt {} failed{failure}).", state.run_at, state.attempt);
        return Why::new("retry_delay", sentence);
    }
    Why::new("scheduled", format!("It is to start at {}.", state.run_at))
}

fn executing(task: &Task) -> Why {
    let worker = task.state.worker.map(|worker| format!(" on worker {worker}")).unwrap_or_default();
    Why::new("executing", format!("It is running{worker}, attempt {}.", task.state.attempt))
}

fn why_it_ended(task: &Task) -> String {
    let reason = task.state.end_reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
    let failure =
        task.state.last_failure().map(|failure| format!(" after: {}", failure.error.message)).unwrap_or_default();
    format!("{reason}{failure}")
}

#[cfg(test)]
mod tests;
