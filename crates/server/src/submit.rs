//! From what a submitter wrote to what the store keeps: defaults, bounds, policy.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;
use windlass_core::ids::TaskId;
use windlass_core::json::Json;
use windlass_core::keys::{FlowKey, HELD_WHILE, OnConflict, OnFailure, Unique, unique_key};
use windlass_core::limits;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::{RetryPolicy, seconds};
use windlass_core::settings::{PolicyWish, Settings};
use windlass_core::status::Status;
use windlass_core::store::SubmitError;
use windlass_core::task::{NewTask, Start, Tags, TaskSpec};
use windlass_core::time::Timestamp;

use crate::engine::Engine;
use crate::json_body::some_json;
use crate::problem::{Code, Problem};

/// A task to be stored. Only `task_type` is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBody {
    /// What kind of work; names the handler.
    #[schema(value_type = String, example = "process_video", pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    pub task_type: TaskType,
    /// What the handler gets; `{}` unless given.
    #[serde(default, deserialize_with = "some_json")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub parameters: Option<Json>,
    /// Where it waits; the type's queue or `default` unless given.
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    pub queue: Option<QueueName>,
    /// `critical`, `high`, `medium`, `low`, `bulk` or 0 to 9.
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    pub priority: Option<Priority>,
    /// What a worker must be able to do.
    #[schema(value_type = Option<Vec<String>>)]
    pub required_capabilities: Option<CapabilitySet>,
    /// Start this much later.
    #[schema(minimum = 0)]
    pub delay_seconds: Option<f64>,
    /// Start at this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub run_at: Option<Timestamp>,
    /// Not started by then, it fails as expired.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// How long an attempt may take.
    #[schema(minimum = 0.000_001, maximum = 604_800)]
    pub timeout_seconds: Option<f64>,
    /// How many retries, 0 to 100.
    #[schema(maximum = 100)]
    pub max_retries: Option<u32>,
    /// The delays between retries.
    #[schema(value_type = Option<Object>)]
    pub retry: Option<RetryPolicy>,
    /// The same key within 24 hours is the same task.
    #[schema(value_type = Option<String>)]
    pub idempotency_key: Option<Text>,
    /// Whose task it is.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Text>,
    /// What people find it by.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub tags: Option<Tags>,
    /// Tasks with the same key run one at a time, in the order of their submits.
    #[schema(value_type = Option<String>)]
    pub ordering_key: Option<Text>,
    /// What the line of the ordering key does while this task waits for a retry: `block` (wait with it) or `skip`.
    #[schema(value_type = Option<String>, example = "block")]
    pub ordering_on_failure: Option<OnFailure>,
    /// At most `concurrency_limit` tasks with the same key run at once.
    #[schema(value_type = Option<String>)]
    pub concurrency_key: Option<Text>,
    /// How many; that of the newest task of the key applies.
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub concurrency_limit: Option<u32>,
    /// What counts as the same work, and what happens to a submit of it.
    pub unique: Option<UniqueBody>,
}

/// What counts as the same work.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Unique)]
pub struct UniqueBody {
    /// What must be equal: `task_type`, `queue`, `tenant`, `parameters`, `parameters.PATH` or `tags.KEY`; type, queue
    /// and parameters unless given. Tasks of another queue or tenant are never the same.
    pub by: Option<Vec<String>>,
    /// While it has one of these statuses: `blocked`, `scheduled`, `queued`, `executing`; all of them unless given.
    #[serde(rename = "while")]
    #[schema(value_type = Option<Vec<String>>)]
    pub held_while: Option<Vec<Status>>,
    /// And at least this long after its submit, also if it has ended.
    #[schema(minimum = 0.000_001)]
    pub for_seconds: Option<f64>,
    /// `keep` the task that is there, `replace` it, `reschedule` it to when the new one would start, or refuse with
    /// `error`; `keep` unless given.
    #[schema(value_type = Option<String>, example = "keep")]
    pub on_conflict: Option<OnConflict>,
}

/// Turns wishes into tasks under one view of the settings.
pub struct Builder<'a> {
    engine: &'a Engine,
    settings: &'a Settings,
    now: Timestamp,
    trace_parent: Option<Text>,
}

impl<'a> Builder<'a> {
    /// A builder for the tasks of one request.
    pub fn new(engine: &'a Engine, settings: &'a Settings, trace_parent: Option<Text>) -> Self {
        Self { engine, settings, now: engine.store.now(), trace_parent }
    }

    /// The same builder for tasks that belong to another trace.
    #[must_use]
    pub fn in_trace(&self, trace_parent: Option<Text>) -> Self {
        Self { trace_parent, ..*self }
    }

    /// The task to be stored.
    pub fn build(&self, body: SubmitBody) -> Result<NewTask, Problem> {
        let start = self.start(&body)?;
        let flow_key = flow_key(&body)?;
        let config = &self.engine.config;
        let of_type = self.settings.types.get(&body.task_type);
        if config.strict_types && of_type.is_none() {
            let detail =
                format!("task type {} was not set up; PUT /api/v1/task-types/{} first", body.task_type, body.task_type);
            return Err(Problem::new(Code::UnknownTaskType, detail).on_field("task_type"));
        }
        let parameters = body.parameters.unwrap_or_else(Json::empty_object);
        check_size("parameters", &parameters, config.max_payload_bytes)?;
        if body.tags.as_ref().is_some_and(|tags| tags.len() > limits::TAGS) {
            return Err(Problem::invalid_field("tags", format_args!("must have at most {} entries", limits::TAGS)));
        }
        let queue = body.queue.or_else(|| of_type?.queue.clone()).unwrap_or_else(|| self.engine.default_queue.clone());
        let priority = body.priority.or_else(|| of_type?.priority).unwrap_or_default();
        let wish = PolicyWish {
            timeout: timeout(body.timeout_seconds)?,
            max_retries: max_retries(body.max_retries)?,
            retry: retry(body.retry)?,
        };
        let policy = self.settings.task_policy(&body.task_type, config.defaults[priority.index()], wish);
        let mut spec = TaskSpec {
            task_type: body.task_type,
            queue,
            priority,
            capabilities: body.required_capabilities.unwrap_or_default(),
            parameters,
            policy,
            expires_at: body.expires_at,
            idempotency_key: body.idempotency_key,
            flow_key,
            unique: None,
            tenant: body.tenant,
            tags: body.tags.unwrap_or_default(),
            trace_parent: self.trace_parent.clone(),
        };
        // What makes a task unique is read off the finished task, defaults and all.
        spec.unique = body.unique.map(|wish| unique(wish, &spec)).transpose()?;
        Ok(NewTask { spec, start })
    }

    /// A task that was to be stored and cannot be as it is: as much of it as can be kept, never to run.
    pub fn stand_in(&self, task_type: TaskType, queue: Option<QueueName>, parameters: Json) -> NewTask {
        let priority = Priority::default();
        let policy =
            self.settings.task_policy(&task_type, self.engine.config.defaults[priority.index()], PolicyWish::default());
        let spec = TaskSpec {
            task_type,
            queue: queue.unwrap_or_else(|| self.engine.default_queue.clone()),
            priority,
            capabilities: CapabilitySet::default(),
            parameters,
            policy,
            expires_at: None,
            idempotency_key: None,
            flow_key: None,
            unique: None,
            tenant: None,
            tags: Tags::default(),
            trace_parent: None,
        };
        NewTask { spec, start: Start::Now }
    }

    fn start(&self, body: &SubmitBody) -> Result<Start, Problem> {
        const RULE: &str = "must be from 0 to 366 days";
        match (body.delay_seconds, body.run_at) {
            (Some(delay), Some(_)) if delay > 0.0 => {
                Err(Problem::invalid_field("run_at", "cannot be given together with delay_seconds"))
            }
            (_, Some(run_at)) if run_at > self.now + limits::DELAY => {
                Err(Problem::invalid_field("run_at", "must be within 366 days"))
            }
            (_, Some(run_at)) => Ok(Start::At(run_at)),
            (Some(delay), None) => match seconds::checked(delay) {
                Some(Duration::ZERO) => Ok(Start::Now),
                Some(delay) if delay <= limits::DELAY => Ok(Start::After(delay)),
                _ => Err(Problem::invalid_field("delay_seconds", RULE)),
            },
            (None, None) => Ok(Start::Now),
        }
    }
}

/// Starts the tasks of a batch at a pace instead of all at once.
pub fn pace(tasks: &mut [NewTask], per_second: f64) -> Result<(), Problem> {
    if !(0.001..=1_000_000.0).contains(&per_second) {
        return Err(Problem::invalid_field("max_per_second", "must be from 0.001 to 1000000"));
    }
    for (index, task) in tasks.iter_mut().enumerate() {
        let later = Duration::from_secs_f64(index as f64 / per_second);
        task.start = match task.start {
            Start::Now if later.is_zero() => Start::Now,
            Start::Now => Start::After(later),
            Start::After(delay) => Start::After(delay + later),
            Start::At(time) => Start::At(time + later),
        };
    }
    Ok(())
}

fn timeout(given: Option<f64>) -> Result<Option<Duration>, Problem> {
    let Some(given) = given else { return Ok(None) };
    match seconds::checked(given) {
        Some(timeout) if !timeout.is_zero() && timeout <= limits::TIMEOUT => Ok(Some(timeout)),
        _ => Err(Problem::invalid_field("timeout_seconds", "must be more than 0 and at most a week")),
    }
}

fn max_retries(given: Option<u32>) -> Result<Option<u32>, Problem> {
    if given.is_some_and(|retries| retries > limits::RETRIES) {
        return Err(Problem::invalid_field("max_retries", format_args!("must be from 0 to {}", limits::RETRIES)));
    }
    Ok(given)
}

fn retry(given: Option<RetryPolicy>) -> Result<Option<RetryPolicy>, Problem> {
    if let Some(policy) = &given {
        policy.validate().map_err(|bad| Problem::invalid_field(format!("retry.{}", bad.field), bad.rule))?;
    }
    Ok(given)
}

fn flow_key(body: &SubmitBody) -> Result<Option<FlowKey>, Problem> {
    const LIMIT_RULE: &str = "must be from 1 to 1000000";
    let needs = |field, other| Err(Problem::invalid_field(field, format_args!("can only be given with {other}")));
    if body.ordering_key.is_none() && body.ordering_on_failure.is_some() {
        return needs("ordering_on_failure", "ordering_key");
    }
    if body.concurrency_key.is_none() && body.concurrency_limit.is_some() {
        return needs("concurrency_limit", "concurrency_key");
    }
    match (&body.ordering_key, &body.concurrency_key, body.concurrency_limit) {
        (Some(_), Some(_), _) => {
            Err(Problem::invalid_field("concurrency_key", "cannot be given together with ordering_key"))
        }
        (Some(key), None, _) => {
            let on_failure = body.ordering_on_failure.unwrap_or_default();
            Ok(Some(FlowKey::Ordering { key: key.clone(), on_failure }))
        }
        (None, Some(_), None) => needs("concurrency_key", "concurrency_limit"),
        (None, Some(key), Some(limit)) if (1..=limits::CONCURRENCY).contains(&limit) => {
            Ok(Some(FlowKey::Concurrency { key: key.clone(), limit }))
        }
        (None, Some(_), Some(_)) => Err(Problem::invalid_field("concurrency_limit", LIMIT_RULE)),
        (None, None, _) => Ok(None),
    }
}

/// Fields that uniqueness may go by: more than anybody names by hand, few enough to be digested with every submit.
const UNIQUE_FIELDS: usize = 32;

fn unique(wish: UniqueBody, spec: &TaskSpec) -> Result<Unique, Problem> {
    let by = wish.by.unwrap_or_else(|| ["task_type", "queue", "parameters"].map(str::to_owned).to_vec());
    if by.len() > UNIQUE_FIELDS {
        return Err(Problem::invalid_field("unique.by", format_args!("must name at most {UNIQUE_FIELDS} fields")));
    }
    let bad_by =
        |error| Problem::new(Code::InvalidField, format!("unique.by cannot be used: {error}")).on_field("unique.by");
    let for_seconds = match wish.for_seconds.map(seconds::checked) {
        None => None,
        Some(Some(span)) if !span.is_zero() && span <= limits::DELAY => Some(span),
        Some(_) => {
            return Err(Problem::invalid_field("unique.for_seconds", "must be more than 0 and at most 366 days"));
        }
    };
    Ok(Unique {
        key: unique_key(spec, &by).map_err(bad_by)?,
        held_while: held_while(wish.held_while)?,
        for_seconds,
        on_conflict: wish.on_conflict.unwrap_or_default(),
    })
}

fn held_while(given: Option<Vec<Status>>) -> Result<Vec<Status>, Problem> {
    let Some(mut statuses) = given else { return Ok(HELD_WHILE.to_vec()) };
    if statuses.is_empty() || statuses.iter().any(|status| !HELD_WHILE.contains(status)) {
        return Err(Problem::invalid_field(
            "unique.while",
            "must name one or more of blocked, scheduled, queued and executing",
        ));
    }
    statuses.sort_unstable();
    statuses.dedup();
    Ok(statuses)
}

/// Refuses a document above its limit.
pub fn check_size(field: &str, document: &Json, limit: usize) -> Result<(), Problem> {
    if document.len() > limit { Err(Problem::too_large(field, limit, document.len())) } else { Ok(()) }
}

/// The trace parent of a request, if it has a sound one.
pub fn trace_parent(headers: &axum::http::HeaderMap) -> Option<Text> {
    const LENGTHS: [usize; 4] = [2, 32, 16, 2];
    let text = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-');
    let sound = LENGTHS.iter().all(|length| {
        parts.next().is_some_and(|part| part.len() == *length && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    });
    (sound && parts.next().is_none()).then(|| Text::new(text).ok()).flatten()
}

/// The problem of tasks that were not stored. The index is named for batches only.
pub fn refused_submit(engine: &Engine, error: SubmitError, is_batch: bool) -> Problem {
    const LANES_DRAIN_SECONDS: u64 = 10;
    let detail = error.to_string();
    let (problem, index) = match error {
        SubmitError::IdempotencyKeyReused { index, existing } => {
            let whose = existing.map_or_else(|| "another item of this batch".to_owned(), |task| format!("task {task}"));
            let detail = format!("the idempotency key belongs to {whose}, which has another type or other parameters");
            (Problem::new(Code::IdempotencyKeyReused, detail).on_field("idempotency_key"), index)
        }
        SubmitError::QueueFull { index, depth, bound, .. } => {
            let seconds = drain_seconds(engine.metrics.drain_rate(engine.store.now()), depth.saturating_sub(bound) + 1);
            (Problem::new(Code::QueueFull, detail).retry_after(seconds), index)
        }
        SubmitError::TooManyLanes { index, .. } => {
            (Problem::new(Code::TooManyLanes, detail).retry_after(LANES_DRAIN_SECONDS), index)
        }
        SubmitError::RateLimited { index, retry_after, .. } => {
            (Problem::new(Code::RateLimited, detail).retry_after(whole_seconds(retry_after)), index)
        }
        SubmitError::UniqueConflict { index, existing, status } => {
            (Problem::new(Code::UniqueConflict, unique_conflict(existing, status)).on_field("unique"), index)
        }
        SubmitError::BatchSpansQueues { index } => (Problem::new(Code::BatchSpansQueues, detail), index),
        SubmitError::Store(error) => return error.into(),
    };
    if is_batch { problem.at_index(index) } else { problem }
}

fn unique_conflict(existing: Option<TaskId>, status: Status) -> String {
    let Some(existing) = existing else { return "an earlier item of this batch has the same unique key".to_owned() };
    let way_out = match status {
        Status::Executing => "; tasks submitted with a `while` without executing give their key back when they start",
        Status::Blocked
        | Status::Scheduled
        | Status::Queued
        | Status::Completed
        | Status::Failed
        | Status::Cancelled
        | Status::DeadLetter => "",
    };
    format!("task {existing} has the same unique key and is {status}{way_out}")
}

/// A wait as `Retry-After` can say it: whole seconds, never too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// How long until this many tasks have left, kept within what a client will wait for.
fn drain_seconds(rate: f64, tasks: u64) -> u64 {
    const UNKNOWN_RATE_SECONDS: u64 = 5;
    if rate <= 0.0 { UNKNOWN_RATE_SECONDS } else { (tasks as f64 / rate).ceil().clamp(1.0, 600.0) as u64 }
}
