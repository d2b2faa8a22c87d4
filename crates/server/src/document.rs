//! A task as the API shows it.

use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::event::Event;
use windlass_core::failure::EndReason;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::{FlowKey, OnConflict, OnFailure, Unique, UniqueKey};
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::settings::{Settings, is_dead_reason};
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress, Tags, Task};
use windlass_core::time::Timestamp;

/// Seconds as a number.
pub fn seconds(span: std::time::Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e6
}

/// A priority: a name, or a number from 0 to 9 where there is none.
pub fn priority_schema() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
    let names = ["critical", "high", "medium", "low", "bulk"];
    let name = ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).examples(names);
    let level = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer)).minimum(Some(0)).maximum(Some(9));
    let none = ObjectBuilder::new().schema_type(SchemaType::new(Type::Null));
    Schema::OneOf(OneOfBuilder::new().item(name).item(level).item(none).build())
}

/// A field of a later version: only null is taken.
pub fn not_yet_schema() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
    let null = ObjectBuilder::new().schema_type(SchemaType::new(Type::Null));
    Schema::Object(null.description(Some("Not supported yet.")).build())
}

/// How far an attempt has come.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProgressDocument {
    /// 0 to 100.
    #[serde(serialize_with = "crate::number::plain")]
    percent: f64,
    /// For a person.
    message: Option<String>,
    /// Which step.
    step: Option<u32>,
    /// Of how many.
    steps: Option<u32>,
    /// Anything else the worker said.
    #[schema(value_type = Option<serde_json::Value>)]
    metadata: Option<Json>,
    /// How long until it is done if it goes on as so far.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    eta_seconds: Option<f64>,
    /// When it was reported.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl ProgressDocument {
    /// The progress of an attempt that began at `started_at`.
    pub fn new(progress: Progress, started_at: Option<Timestamp>, now: Timestamp) -> Self {
        let eta = started_at.and_then(|started_at| progress.eta(started_at, now));
        Self {
            eta_seconds: eta.map(seconds),
            percent: progress.percent,
            message: progress.message,
            step: progress.step,
            steps: progress.steps,
            metadata: progress.metadata,
            updated_at: progress.at,
        }
    }
}

/// A failure.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDocument {
    /// The handler's own code.
    code: Option<String>,
    /// `transient`, `rate_limited`, `timeout`, `resource`, `permanent`, `code_bug`, `worker_lost` or `unknown`.
    class: &'static str,
    /// What happened.
    message: String,
    /// Whether another attempt can help.
    retriable: bool,
    /// The status of an HTTP call that failed.
    http_status: Option<u16>,
    /// The stack trace.
    stack: Option<String>,
    /// Anything else the handler kept.
    #[schema(value_type = Option<serde_json::Value>)]
    details: Option<Json>,
}

/// A failed attempt.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttemptDocument {
    /// Which attempt.
    attempt: u32,
    /// Who ran it.
    #[schema(value_type = Option<String>)]
    worker_id: Option<WorkerId>,
    /// When it was claimed.
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    /// When it failed.
    #[schema(value_type = String, format = DateTime)]
    ended_at: Timestamp,
    /// Why.
    error: ErrorDocument,
}

impl From<FailedAttempt> for ErrorDocument {
    fn from(failure: FailedAttempt) -> Self {
        Self {
            code: failure.error.code,
            class: failure.class.as_str(),
            message: failure.error.message,
            retriable: failure.class.is_retriable(),
            http_status: failure.error.http_status,
            stack: failure.error.stack,
            details: failure.error.details,
        }
    }
}

impl From<FailedAttempt> for AttemptDocument {
    fn from(failure: FailedAttempt) -> Self {
        Self {
            attempt: failure.attempt,
            worker_id: failure.worker,
            started_at: failure.started_at,
            ended_at: failure.ended_at,
            error: failure.into(),
        }
    }
}

/// One change of a task.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventDocument {
    /// Dense per task, from 1.
    version: u32,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Who caused it: `api`, `system` or `worker:` and an id.
    actor: String,
    /// What changed.
    kind: &'static str,
    /// More about it.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<serde_json::Value>,
}

impl From<Event> for EventDocument {
    fn from(event: Event) -> Self {
        // The core writes events as kind and data; here the data is shown beside the kind.
        let data = serde_json::to_value(&event.change).ok().and_then(|mut change| Some(change.get_mut("data")?.take()));
        let data = data.map(|mut data| {
            crate::number::make_plain(&mut data);
            data
        });
        Self { version: event.version, at: event.at, actor: event.actor.to_string(), kind: event.change.kind(), data }
    }
}

/// Which large parts of a task a document carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Include {
    /// The parameters.
    pub parameters: bool,
    /// The result.
    pub result: bool,
    /// All failed attempts and the original parameters.
    pub attempts: bool,
}

impl Include {
    /// Everything.
    pub const ALL: Self = Self { parameters: true, result: true, attempts: true };
}

/// A flow key as its fields on the wire.
#[derive(Debug, Default)]
pub struct FlowKeys {
    /// The key, if it is an ordering key.
    pub ordering_key: Option<Text>,
    ordering_on_failure: Option<OnFailure>,
    concurrency_key: Option<Text>,
    concurrency_limit: Option<u32>,
}

impl From<Option<FlowKey>> for FlowKeys {
    fn from(key: Option<FlowKey>) -> Self {
        match key {
            None => Self::default(),
            Some(FlowKey::Ordering { key, on_failure }) => {
                Self { ordering_key: Some(key), ordering_on_failure: Some(on_failure), ..Self::default() }
            }
            Some(FlowKey::Concurrency { key, limit }) => {
                Self { concurrency_key: Some(key), concurrency_limit: Some(limit), ..Self::default() }
            }
        }
    }
}

/// What counts as the same work.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskUnique)]
pub struct UniqueDocument {
    /// A digest of what must be equal.
    #[schema(value_type = String)]
    key: UniqueKey,
    /// The statuses in which the task holds the key.
    #[serde(rename = "while")]
    #[schema(value_type = Vec<String>)]
    held_while: Vec<Status>,
    /// How long it holds it at least.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    for_seconds: Option<f64>,
    /// `keep`, `replace`, `reschedule` or `error`.
    #[schema(value_type = String)]
    on_conflict: OnConflict,
}

impl From<Unique> for UniqueDocument {
    fn from(unique: Unique) -> Self {
        Self {
            key: unique.key,
            held_while: unique.held_while,
            for_seconds: unique.for_seconds.map(seconds),
            on_conflict: unique.on_conflict,
        }
    }
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskDocument {
    #[schema(value_type = String, format = "uuid")]
    task_id: TaskId,
    #[schema(value_type = String)]
    task_type: TaskType,
    #[schema(value_type = String)]
    queue: QueueName,
    /// Where it stands.
    #[schema(value_type = String)]
    status: Status,
    #[schema(schema_with = crate::document::priority_schema)]
    priority: Priority,
    /// 0 to 9.
    priority_level: u8,
    /// What it counts as after waiting this long.
    #[schema(schema_with = crate::document::priority_schema)]
    effective_priority: Priority,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    parameters: Option<Json>,
    #[schema(value_type = Vec<String>)]
    required_capabilities: CapabilitySet,
    attempt: u32,
    retry_count: u32,
    max_retries: u32,
    crash_count: u32,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Its place in the line.
    #[schema(value_type = String, format = DateTime)]
    ready_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    /// Whether it waits between two attempts.
    retrying: bool,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[serde(serialize_with = "crate::number::plain")]
    timeout_seconds: f64,
    /// Who runs it, or who ran it last before it ended.
    #[schema(value_type = Option<String>)]
    assigned_worker_id: Option<WorkerId>,
    #[schema(value_type = Option<String>, format = DateTime)]
    lease_expires_at: Option<Timestamp>,
    progress: Option<ProgressDocument>,
    #[serde(skip_serializing_if = "Skippable::is_left_out")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Skippable,
    /// The last failure.
    error: Option<ErrorDocument>,
    /// Why it ended without success.
    #[schema(value_type = Option<String>)]
    end_reason: Option<EndReason>,
    /// Why it is a dead letter.
    #[schema(value_type = Option<String>)]
    dead_reason: Option<EndReason>,
    #[schema(value_type = Option<String>)]
    idempotency_key: Option<Text>,
    /// Tasks with the same key run one at a time, in order.
    #[schema(value_type = Option<String>)]
    ordering_key: Option<Text>,
    /// What its line does while it waits for a retry: `block` or `skip`.
    #[schema(value_type = Option<String>)]
    ordering_on_failure: Option<OnFailure>,
    /// At most `concurrency_limit` tasks with the same key run at once.
    #[schema(value_type = Option<String>)]
    concurrency_key: Option<Text>,
    concurrency_limit: Option<u32>,
    /// What counts as the same work.
    unique: Option<UniqueDocument>,
    /// Whether a rule has replayed it; it does so once.
    auto_replayed: bool,
    #[schema(value_type = Option<String>)]
    tenant: Option<Text>,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    tags: Tags,
    trace_id: Option<String>,
    workflow_run_id: Option<String>,
    step: Option<String>,
    group: Option<String>,
    /// Failed attempts, oldest first; only on the single task.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptDocument>>,
    /// What it was submitted with, if a person edited the parameters; only on the single task.
    #[serde(skip_serializing_if = "Skippable::is_left_out")]
    #[schema(value_type = Option<serde_json::Value>)]
    original_parameters: Skippable,
    /// Its events, with `include=history`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<EventDocument>>,
}

/// A value that may be null and may be left out, which are two things.
#[derive(Debug)]
enum Skippable {
    LeftOut,
    Shown(Option<Json>),
}

impl Skippable {
    fn new(shown: bool, value: Option<Json>) -> Self {
        if shown { Self::Shown(value) } else { Self::LeftOut }
    }

    fn is_left_out(&self) -> bool {
        matches!(self, Self::LeftOut)
    }
}

impl Serialize for Skippable {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Shown(Some(value)) => value.serialize(serializer),
            Self::Shown(None) | Self::LeftOut => serializer.serialize_none(),
        }
    }
}

impl TaskDocument {
    /// The document of a task.
    pub fn new(task: Task, settings: &Settings, now: Timestamp, include: Include) -> Self {
        let Task { id, spec, state } = task;
        let effective_priority = if state.status == Status::Queued {
            settings.claim_policy(&spec.queue).effective_priority(spec.priority, state.ready_at, now)
        } else {
            spec.priority
        };
        let keys = FlowKeys::from(spec.flow_key.clone());
        let trace_id = spec.trace_id().map(str::to_owned);
        let is_executing = state.status == Status::Executing;
        let started_at = state.started_at;
        let error = state.failed_attempts.last().cloned().map(ErrorDocument::from);
        let attempts = include.attempts.then(|| state.failed_attempts.into_iter().map(AttemptDocument::from).collect());
        Self {
            task_id: id,
            task_type: spec.task_type,
            queue: spec.queue,
            status: state.status,
            priority: spec.priority,
            priority_level: spec.priority.level(),
            effective_priority,
            parameters: include.parameters.then_some(spec.parameters),
            required_capabilities: spec.capabilities,
            attempt: state.attempt,
            retry_count: state.retries,
            max_retries: spec.policy.max_retries,
            crash_count: state.crashes,
            created_at: state.created_at,
            ready_at: state.ready_at,
            run_at: state.run_at,
            retrying: state.retrying,
            started_at,
            completed_at: state.ended_at,
            expires_at: spec.expires_at,
            timeout_seconds: seconds(state.timeout),
            assigned_worker_id: state.worker.filter(|_| is_executing || state.status.is_ended()),
            lease_expires_at: state.lease_expires_at.filter(|_| is_executing),
            progress: state.progress.map(|progress| ProgressDocument::new(progress, started_at, now)),
            result: Skippable::new(include.result, state.result),
            error,
            end_reason: state.end_reason,
            dead_reason: state
                .end_reason
                .filter(|reason| state.status == Status::DeadLetter && is_dead_reason(*reason)),
            idempotency_key: spec.idempotency_key,
            ordering_key: keys.ordering_key,
            ordering_on_failure: keys.ordering_on_failure,
            concurrency_key: keys.concurrency_key,
            concurrency_limit: keys.concurrency_limit,
            unique: spec.unique.map(UniqueDocument::from),
            auto_replayed: state.auto_replayed,
            tenant: spec.tenant,
            tags: spec.tags,
            trace_id,
            workflow_run_id: None,
            step: None,
            group: None,
            attempts,
            original_parameters: Skippable::new(include.attempts, state.original_parameters),
            history: None,
        }
    }
}

/// One page of tasks.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskPage {
    /// The tasks, newest first. May be short, even empty, and still have a next page.
    pub items: Vec<TaskDocument>,
    /// Give this as `cursor` for the next page.
    pub next_cursor: Option<String>,
}
