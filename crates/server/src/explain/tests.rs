//! Every reason, with the sentence that a person reads.

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
