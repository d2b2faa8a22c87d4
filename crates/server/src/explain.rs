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
mod tests {
    use super::*;
    use std::time::Duration;
    use windlass_core::breaker::Figures;
    use windlass_core::failure::{EndReason, ErrorClass, ErrorReport, TaskPolicy};
    use windlass_core::json::Json;
    use windlass_core::keys::OnFailure;
    use windlass_core::names::{CapabilitySet, QueueName, TaskType};
    use windlass_core::priority::Priority;
    use windlass_core::retry::RetryPolicy;
    use windlass_core::settings::{QueueSettings, TypeSettings};
    use windlass_core::task::{FailedAttempt, TaskSpec, TaskState};
    use windlass_core::worker::WorkerProfile;

    const OTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    /// Everything that can be known; a test changes one thing after the other.
    struct World {
        task: Task,
        settings: Settings,
        workers: Vec<(Worker, WorkerStatus)>,
        breakers: Vec<breaker::View>,
        waiting: Option<Waiting>,
    }

    impl World {
        /// A queued task next in line, and one idle worker.
        fn new() -> Self {
            Self {
                task: task(),
                settings: Settings::default(),
                workers: vec![(worker(), WorkerStatus::Active)],
                breakers: Vec::new(),
                waiting: Some(Waiting::Line { ahead: 0 }),
            }
        }

        fn explain(&self) -> Explanation {
            explain(&Known {
                task: &self.task,
                settings: &self.settings,
                workers: &self.workers,
                breakers: &self.breakers,
                waiting: self.waiting.clone(),
                now: now(),
            })
        }

        /// Checks the reason and that the sentence says these words.
        #[track_caller]
        fn says(&self, reason: &str, words: &[&str]) -> Explanation {
            let explanation = self.explain();
            assert_eq!(explanation.reason, reason, "{explanation:?}");
            for word in words {
                assert!(explanation.explanation.contains(word), "{word}: {}", explanation.explanation);
            }
            explanation
        }

        fn needs(&mut self, capability: &str) {
            self.task.spec.capabilities = CapabilitySet::new(vec![Capability::new(capability).expect("a capability")]);
        }

        fn takes_slots(&mut self, slots: u32) {
            let settings = TypeSettings { slots: Some(slots), ..TypeSettings::default() };
            self.settings.types.insert(self.task.spec.task_type.clone(), settings);
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }

    fn other() -> TaskId {
        OTHER.parse().expect("an id")
    }

    fn text(text: &str) -> Text {
        Text::new(text).expect("a text")
    }

    fn task() -> Task {
        let spec = TaskSpec {
            task_type: TaskType::new("mail").expect("a name"),
            queue: QueueName::new("post").expect("a name"),
            priority: Priority::MEDIUM,
            capabilities: CapabilitySet::default(),
            parameters: Json::empty_object(),
            policy: TaskPolicy {
                timeout: Duration::from_secs(1),
                max_retries: 0,
                max_crashes: 1,
                dead_letter: true,
                retry: RetryPolicy::default(),
            },
            expires_at: None,
            idempotency_key: None,
            flow_key: None,
            unique: None,
            tenant: None,
            tags: std::collections::BTreeMap::new(),
            trace_parent: None,
        };
        let state = TaskState {
            status: Status::Queued,
            version: 1,
            attempt: 0,
            retries: 0,
            crashes: 0,
            created_at: now(),
            ready_at: now(),
            run_at: now(),
            retrying: false,
            started_at: None,
            ended_at: None,
            worker: None,
            lease_expires_at: None,
            timeout: Duration::from_secs(1),
            progress: None,
            result: None,
            end_reason: None,
            original_parameters: None,
            auto_replayed: false,
            failed_attempts: Vec::new(),
        };
        Task { id: "01890a5d-ac96-774b-bcce-b302099a8056".parse().expect("an id"), spec, state }
    }

    fn worker() -> Worker {
        Worker {
            profile: WorkerProfile {
                id: WorkerId::random(),
                capabilities: CapabilitySet::default(),
                capacity: 2,
                queues: Vec::new(),
                task_types: Vec::new(),
                pool: None,
                name: None,
                version: None,
                host: None,
            },
            registered_at: now(),
            last_seen_at: now(),
            draining: false,
            unhealthy: false,
            health: None,
            current_tasks: Vec::new(),
            completed: 0,
            failed: 0,
        }
    }

    fn view(scope: Scope, state: State, forced: Option<Forced>, until: Option<Timestamp>) -> breaker::View {
        breaker::View {
            scope,
            state,
            forced,
            since: Some(now()),
            until,
            reason: None,
            figures: Figures::default(),
            replay_since: None,
        }
    }

    #[test]
    fn a_task_that_is_next_or_in_line() {
        let mut world = World::new();
        assert_eq!(world.says("next", &[]).queue_position, Some(0));
        world.waiting = Some(Waiting::Line { ahead: 7 });
        assert_eq!(world.says("behind_others", &["about 7 tasks"]).queue_position, Some(7));
        // The store had nothing to say: it was claimed a moment ago.
        world.waiting = None;
        assert_eq!(world.says("next", &[]).queue_position, None);
    }

    #[test]
    fn pauses_go_before_everything_else_of_a_queued_task() {
        let mut world = World::new();
        world.workers.clear();
        world.waiting = Some(Waiting::OrderingKey { holder: other(), ahead: 1 });
        let paused = TypeSettings { paused: true, ..TypeSettings::default() };
        world.settings.types.insert(world.task.spec.task_type.clone(), paused);
        assert!(world.says("type_paused", &["mail"]).type_paused);
        let paused = QueueSettings { paused: true, ..QueueSettings::default() };
        world.settings.queues.insert(world.task.spec.queue.clone(), paused);
        assert!(world.says("queue_paused", &["post"]).queue_paused);
        // The store may know of a pause that came after these settings were read.
        let mut world = World::new();
        world.waiting = Some(Waiting::Lane(Hindrance::TypePaused));
        world.says("type_paused", &["mail"]);
        world.waiting = Some(Waiting::Lane(Hindrance::QueuePaused));
        world.says("queue_paused", &["post"]);
    }

    #[test]
    fn an_ordering_key_names_who_goes_first() {
        let mut world = World::new();
        world.task.spec.flow_key = Some(FlowKey::Ordering { key: text("order-7"), on_failure: OnFailure::Block });
        world.waiting = Some(Waiting::OrderingKey { holder: other(), ahead: 3 });
        // Also without workers: they would not change it.
        world.workers.clear();
        let details = world.says("ordering_key", &["order-7", "3 ahead of it", OTHER]).details;
        assert_eq!((details.held_by, details.ahead), (Some(other()), Some(3)));
        assert_eq!(details.ordering_key, Some(text("order-7")));
    }

    #[test]
    fn an_open_breaker_says_until_when() {
        let mut world = World::new();
        let scope = Scope::Type(world.task.spec.task_type.clone());
        let until = now() + Duration::from_secs(60);
        world.workers.clear();
        world.waiting = Some(Waiting::Lane(Hindrance::BreakerOpen { until: Some(until) }));
        world.breakers = vec![view(scope.clone(), State::Open, None, Some(until))];
        let explanation = world.says("breaker_open", &["mail", &until.to_string()]);
        assert_eq!(explanation.details.until, Some(until));
        world.waiting = Some(Waiting::Lane(Hindrance::BreakerOpen { until: None }));
        world.breakers = vec![view(scope.clone(), State::HalfOpen, None, None)];
        world.says("breaker_open", &["half open"]);
        world.breakers = vec![view(scope, State::Open, Some(Forced::Open), None)];
        world.says("breaker_open", &["A person forced"]);
    }

    #[test]
    fn nobody_could_ever_take_it() {
        let mut world = World::new();
        world.waiting = Some(Waiting::ConcurrencyKey { limit: 1, running: Vec::new() });
        world.workers[0].1 = WorkerStatus::Dead;
        world.says("no_workers", &[]);
        world.workers[0].1 = WorkerStatus::Active;
        world.needs("gpu");
        assert_eq!(world.says("missing_capability", &["gpu"]).missing_capabilities.len(), 1);
        let mut elsewhere = worker();
        elsewhere.profile.capabilities = world.task.spec.capabilities.clone();
        elsewhere.profile.queues = vec![QueueName::default()];
        world.workers.push((elsewhere, WorkerStatus::Active));
        assert_eq!(world.says("no_capable_worker", &["post", "mail"]).capable_workers, 0);
        world.task.spec.capabilities = CapabilitySet::default();
        world.takes_slots(3);
        let details = world.says("too_few_slots", &["3 slots", "above 2"]).details;
        assert_eq!((details.slots, details.largest_capacity), (Some(3), Some(2)));
    }

    #[test]
    fn a_full_concurrency_key_names_who_runs() {
        let mut world = World::new();
        world.task.spec.flow_key = Some(FlowKey::Concurrency { key: text("acme"), limit: 2 });
        world.waiting = Some(Waiting::ConcurrencyKey { limit: 2, running: vec![other()] });
        world.workers[0].1 = WorkerStatus::Draining;
        let details = world.says("concurrency_key", &["acme", "(2)", OTHER]).details;
        assert_eq!((details.limit, details.running), (Some(2), vec![other()]));
        assert_eq!(details.concurrency_key, Some(text("acme")));
    }

    #[test]
    fn limits_and_rates() {
        let mut world = World::new();
        world.workers[0].1 = WorkerStatus::Unhealthy;
        let at = now() + Duration::from_millis(600);
        for (hindrance, reason, words) in [
            (Hindrance::TypeConcurrency { limit: 5 }, "type_concurrency", ["type mail", "(5)"]),
            (Hindrance::QueueConcurrency { limit: 6 }, "queue_concurrency", ["queue post", "(6)"]),
            (Hindrance::TypeRate { next_token_at: at }, "type_rate", ["type mail", &at.to_string()]),
            (Hindrance::QueueRate { next_token_at: at }, "queue_rate", ["queue post", &at.to_string()]),
        ] {
            let is_rate = reason.ends_with("rate");
            world.waiting = Some(Waiting::Lane(hindrance));
            let details = world.says(reason, &words).details;
            assert_eq!((details.limit.is_some(), details.next_token_at), (!is_rate, is_rate.then_some(at)));
        }
    }

    #[test]
    fn workers_that_take_nothing_now() {
        let mut world = World::new();
        world.waiting = Some(Waiting::Line { ahead: 4 });
        for status in [WorkerStatus::Draining, WorkerStatus::Unhealthy] {
            world.workers[0].1 = status;
            let explanation = world.says("workers_not_ready", &[]);
            assert_eq!((explanation.capable_workers, explanation.ready_workers), (1, 0));
        }
        world.workers[0].1 = WorkerStatus::Active;
        world.workers[0].0.current_tasks = vec![other(), other()];
        world.says("workers_busy", &["full", "about 4 tasks"]);
        world.waiting = Some(Waiting::Line { ahead: 0 });
        world.says("workers_busy", &["it is next"]);
        world.workers[0].0.current_tasks.pop();
        world.says("next", &[]);
        // Room for one slot is not room for two.
        world.takes_slots(2);
        world.says("workers_busy", &[]);
    }

    #[test]
    fn workers_left_alone_by_their_breaker() {
        let mut world = World::new();
        let id = world.workers[0].0.profile.id;
        let until = now() + Duration::from_secs(30);
        world.breakers = vec![view(Scope::Worker(id), State::Open, None, Some(until))];
        for status in [WorkerStatus::Active, WorkerStatus::Unhealthy] {
            world.workers[0].1 = status;
            let explanation = world.says("worker_breaker_open", &[&id.to_string(), &until.to_string()]);
            assert_eq!((explanation.details.until, explanation.details.worker_id), (Some(until), Some(id)));
        }
        world.breakers = vec![view(Scope::Worker(id), State::Open, Some(Forced::Open), None)];
        world.says("worker_breaker_open", &["a person forced"]);
        // Its trial runs.
        world.workers[0].1 = WorkerStatus::Active;
        world.breakers = vec![view(Scope::Worker(id), State::HalfOpen, None, Some(now()))];
        world.workers[0].0.current_tasks = vec![other()];
        world.says("worker_breaker_open", &["tried with one task"]);
        world.workers[0].0.current_tasks.clear();
        world.says("next", &[]);
        // A breaker of somebody else says nothing.
        world.breakers = vec![view(Scope::Worker(WorkerId::random()), State::Open, None, Some(until))];
        world.says("next", &[]);
    }

    #[test]
    fn tasks_that_wait_for_a_time() {
        let mut world = World::new();
        world.waiting = None;
        world.task.state.status = Status::Scheduled;
        world.says("due", &[]);
        world.task.state.run_at = now() + Duration::from_secs(5);
        // The time goes first, also where the queue is paused.
        let paused = QueueSettings { paused: true, ..QueueSettings::default() };
        world.settings.queues.insert(world.task.spec.queue.clone(), paused);
        let run_at = world.task.state.run_at.to_string();
        world.says("scheduled", &[&run_at]);
        world.task.state.retrying = true;
        world.task.state.attempt = 2;
        world.task.state.failed_attempts.push(FailedAttempt {
            attempt: 2,
            worker: None,
            started_at: now(),
            ended_at: now(),
            class: ErrorClass::Transient,
            error: ErrorReport::internal("x", "no route to host".to_owned()),
        });
        world.says("retry_delay", &["attempt 2", "no route to host", &run_at]);
    }

    #[test]
    fn tasks_that_do_not_wait() {
        let mut world = World::new();
        world.waiting = None;
        world.task.state.end_reason = Some(EndReason::MaxRetries);
        for (status, reason, words) in [
            (Status::Blocked, "blocked", "workflow"),
            (Status::Executing, "executing", "running"),
            (Status::Completed, "completed", "completed"),
            (Status::Cancelled, "cancelled", "cancelled"),
            (Status::Failed, "failed", "max_retries"),
            (Status::DeadLetter, "dead_letter", "replay or discard"),
        ] {
            world.task.state.status = status;
            assert_eq!(world.says(reason, &[words]).status, status.as_str());
        }
    }
}
