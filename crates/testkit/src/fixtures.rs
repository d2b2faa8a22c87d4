//! Builders for what tests hand to a store. Retry delays have no jitter unless a test asks
//! for it, so that every time can be foreseen.

use std::time::Duration;

use windlass_core::failure::{ErrorReport, TaskPolicy};
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::{FlowKey, HELD_WHILE, OnConflict, OnFailure, Unique, unique_key};
use windlass_core::names::{Capability, CapabilitySet, QueueName, TagKey, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::{Jitter, RetryPolicy};
use windlass_core::status::Status;
use windlass_core::store::{Outcome, Requeue};
use windlass_core::task::{NewTask, Start, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_core::worker::WorkerProfile;

/// A queue name.
pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue name")
}

/// A task type.
pub fn task_type(name: &str) -> TaskType {
    TaskType::new(name).expect("a task type")
}

/// A text.
pub fn text(value: &str) -> Text {
    Text::new(value).expect("a text")
}

/// A priority by its level.
pub fn priority(level: u64) -> Priority {
    Priority::from_level(level).expect("a level")
}

/// A set of capabilities.
pub fn capabilities(names: &[&str]) -> CapabilitySet {
    CapabilitySet::new(names.iter().map(|name| Capability::new(name).expect("a capability")).collect())
}

/// A JSON document.
pub fn json(text: &str) -> Json {
    Json::from_text(text.to_owned()).expect("a JSON document")
}

/// Retries after 10 s, 20 s, 40 s … without jitter.
pub fn retry_policy() -> RetryPolicy {
    RetryPolicy { base_delay: Duration::from_secs(10), jitter: Jitter::None, ..RetryPolicy::default() }
}

/// A task under construction.
#[derive(Clone, Debug)]
pub struct TaskBuilder {
    task: NewTask,
}

/// A task of this type: queue `default`, medium, three retries after 10 s, 20 s and 40 s, ten
/// minutes per attempt.
pub fn task(name: &str) -> TaskBuilder {
    TaskBuilder {
        task: NewTask {
            spec: TaskSpec {
                task_type: task_type(name),
                queue: QueueName::default(),
                priority: Priority::MEDIUM,
                capabilities: CapabilitySet::default(),
                parameters: Json::empty_object(),
                policy: TaskPolicy {
                    timeout: Duration::from_mins(10),
                    max_retries: 3,
                    max_crashes: 3,
                    dead_letter: true,
                    retry: retry_policy(),
                },
                expires_at: None,
                idempotency_key: None,
                flow_key: None,
                unique: None,
                tenant: None,
                tags: windlass_core::task::Tags::new(),
                trace_parent: None,
            },
            start: Start::Now,
        },
    }
}

impl TaskBuilder {
    /// In this queue.
    #[must_use]
    pub fn queue(mut self, name: &str) -> Self {
        self.task.spec.queue = queue(name);
        self
    }

    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.task.spec.priority = priority;
        self
    }

    /// Not before this delay is over.
    #[must_use]
    pub fn delay(mut self, span: Duration) -> Self {
        self.task.start = Start::After(span);
        self
    }

    /// Not before this time.
    #[must_use]
    pub fn run_at(mut self, at: Timestamp) -> Self {
        self.task.start = Start::At(at);
        self
    }

    /// Only for workers that can do all of these.
    #[must_use]
    pub fn requires(mut self, names: &[&str]) -> Self {
        self.task.spec.capabilities = capabilities(names);
        self
    }

    /// With these parameters, given as JSON.
    #[must_use]
    pub fn parameters(mut self, text: &str) -> Self {
        self.task.spec.parameters = json(text);
        self
    }

    /// With this idempotency key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.task.spec.idempotency_key = Some(text(key));
        self
    }

    /// One at a time with all others of this ordering key.
    #[must_use]
    pub fn ordered(mut self, key: &str, on_failure: OnFailure) -> Self {
        self.task.spec.flow_key = Some(FlowKey::Ordering { key: text(key), on_failure });
        self
    }

    /// At most so many of this concurrency key at once.
    #[must_use]
    pub fn at_most(mut self, limit: u32, key: &str) -> Self {
        self.task.spec.flow_key = Some(FlowKey::Concurrency { key: text(key), limit });
        self
    }

    /// Unique by its type and parameters, as long as it lives; call it last.
    #[must_use]
    pub fn unique(self, on_conflict: OnConflict) -> Self {
        self.unique_while(on_conflict, &HELD_WHILE, None)
    }

    /// Unique by its type and parameters, in these statuses and for this long at least; call it last.
    #[must_use]
    pub fn unique_while(mut self, on_conflict: OnConflict, statuses: &[Status], span: Option<Duration>) -> Self {
        let by = ["task_type".to_owned(), "parameters".to_owned()];
        let key = unique_key(&self.task.spec, &by).expect("fields that every task has");
        self.task.spec.unique = Some(Unique { key, held_while: statuses.to_vec(), for_seconds: span, on_conflict });
        self
    }

    /// Of this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.task.spec.tenant = Some(text(tenant));
        self
    }

    /// With this tag.
    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.task.spec.tags.insert(TagKey::new(key).expect("a tag key"), text(value));
        self
    }

    /// Fails if it has not started by then.
    #[must_use]
    pub fn expires_at(mut self, at: Timestamp) -> Self {
        self.task.spec.expires_at = Some(at);
        self
    }

    /// With so many retries.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.task.spec.policy.max_retries = retries;
        self
    }

    /// A poison pill after so many crashes.
    #[must_use]
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.task.spec.policy.max_crashes = crashes;
        self
    }

    /// Each attempt may take this long.
    #[must_use]
    pub fn timeout(mut self, span: Duration) -> Self {
        self.task.spec.policy.timeout = span;
        self
    }

    /// Giving up leads to `failed`.
    #[must_use]
    pub fn no_dead_letter(mut self) -> Self {
        self.task.spec.policy.dead_letter = false;
        self
    }

    /// With another retry policy.
    #[must_use]
    pub fn retry(mut self, change: impl FnOnce(&mut RetryPolicy)) -> Self {
        change(&mut self.task.spec.policy.retry);
        self
    }

    /// With this W3C trace parent.
    #[must_use]
    pub fn trace_parent(mut self, parent: &str) -> Self {
        self.task.spec.trace_parent = Some(text(parent));
        self
    }

    /// The task.
    pub fn build(self) -> NewTask {
        self.task
    }
}

impl From<TaskBuilder> for NewTask {
    fn from(builder: TaskBuilder) -> Self {
        builder.build()
    }
}

/// A worker that serves everything, with a fresh id.
pub fn profile() -> WorkerProfile {
    WorkerProfile {
        id: WorkerId::random(),
        capabilities: CapabilitySet::default(),
        capacity: 100,
        queues: Vec::new(),
        task_types: Vec::new(),
        pool: None,
        name: None,
        version: None,
        host: None,
    }
}

/// A worker that serves only these queues.
pub fn serving(queues: &[&str]) -> WorkerProfile {
    WorkerProfile { queues: queues.iter().map(|name| queue(name)).collect(), ..profile() }
}

/// A worker that serves only these types.
pub fn handling(types: &[&str]) -> WorkerProfile {
    WorkerProfile { task_types: types.iter().map(|name| task_type(name)).collect(), ..profile() }
}

/// A worker that serves everything and can do these things.
pub fn able(names: &[&str]) -> WorkerProfile {
    WorkerProfile { capabilities: capabilities(names), ..profile() }
}

/// An error report with nothing but a message: class `unknown`.
pub fn error(message: &str) -> ErrorReport {
    ErrorReport {
        message: message.to_owned(),
        code: None,
        retriable: None,
        http_status: None,
        retry_after_seconds: None,
        stack: None,
        details: None,
    }
}

/// An error report with a code of the handler's own.
pub fn error_code(code: &str) -> ErrorReport {
    ErrorReport { code: Some(code.to_owned()), ..error(code) }
}

/// A success without a result.
pub fn completed() -> Outcome {
    Outcome::Completed { result: None, follow_ups: Vec::new() }
}

/// A success with a result.
pub fn completed_with(result: &str) -> Outcome {
    Outcome::Completed { result: Some(json(result)), follow_ups: Vec::new() }
}

/// A failure that a retry may help.
pub fn failed() -> Outcome {
    Outcome::Failed(error("went wrong"))
}

/// A failure that no retry helps.
pub fn failed_for_good() -> Outcome {
    Outcome::Failed(ErrorReport { retriable: Some(false), ..error("cannot work") })
}

/// A person's plain wish that a task runs again: retries forgotten, nothing edited.
pub fn again(id: TaskId) -> Requeue {
    Requeue {
        task: id,
        only_dead: false,
        reset_retries: true,
        priority: None,
        parameters: None,
        note: None,
        delay: Duration::ZERO,
        by_rule: false,
    }
}
