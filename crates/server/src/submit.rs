//! From what a submitter wrote to what the store keeps: defaults, bounds, policy.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;
use windlass_core::json::Json;
use windlass_core::limits;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::{RetryPolicy, seconds};
use windlass_core::settings::{PolicyWish, Settings};
use windlass_core::store::SubmitError;
use windlass_core::task::{NewTask, Start, Tags, TaskSpec};
use windlass_core::time::Timestamp;

use crate::engine::Engine;
use crate::json_body::{NotYet, some_json};
use crate::problem::{Code, Problem};

/// A task to be stored. Only `task_type` is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "fields of later versions are refused while they are parsed")]
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
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    pub ordering_key: NotYet,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    pub ordering_on_failure: NotYet,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    pub concurrency_key: NotYet,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    pub concurrency_limit: NotYet,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    pub unique: NotYet,
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
        let spec = TaskSpec {
            task_type: body.task_type,
            queue,
            priority,
            capabilities: body.required_capabilities.unwrap_or_default(),
            parameters,
            policy,
            expires_at: body.expires_at,
            idempotency_key: body.idempotency_key,
            tenant: body.tenant,
            tags: body.tags.unwrap_or_default(),
            trace_parent: self.trace_parent.clone(),
        };
        Ok(NewTask { spec, start })
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
            let seconds = drain_seconds(engine.metrics.drain_rate(), depth.saturating_sub(bound) + 1);
            (Problem::new(Code::QueueFull, detail).retry_after(seconds), index)
        }
        SubmitError::TooManyLanes { index, .. } => {
            (Problem::new(Code::TooManyLanes, detail).retry_after(LANES_DRAIN_SECONDS), index)
        }
        SubmitError::BatchSpansQueues { index } => (Problem::new(Code::BatchSpansQueues, detail), index),
        SubmitError::Store(error) => return error.into(),
    };
    if is_batch { problem.at_index(index) } else { problem }
}

/// How long until this many tasks have left, kept within what a client will wait for.
fn drain_seconds(rate: f64, tasks: u64) -> u64 {
    const UNKNOWN_RATE_SECONDS: u64 = 5;
    if rate <= 0.0 { UNKNOWN_RATE_SECONDS } else { (tasks as f64 / rate).ceil().clamp(1.0, 600.0) as u64 }
}
