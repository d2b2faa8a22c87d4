//! Filters of lists and bulk calls, as query strings and as fields of a body.

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use windlass_core::failure::{EndReason, ErrorClass};
use windlass_core::filter::{ParameterTest, TaskFilter};
use windlass_core::ids::WorkerId;
use windlass_core::names::{BadName, QueueName, TagKey, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Cursor, Page};
use windlass_core::task::Task;
use windlass_core::time::Timestamp;

use crate::document::{Include, TaskDocument, TaskPage};
use crate::engine::Engine;
use crate::problem::Problem;
use crate::query::{cursor, page_limit, read};

/// Filters of the task list.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// One status or several, with commas.
    status: Option<String>,
    queue: Option<String>,
    task_type: Option<String>,
    priority: Option<String>,
    tenant: Option<String>,
    /// `key:value`.
    tag: Option<String>,
    worker_id: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
    error_code: Option<String>,
    /// A look inside the parameters, such as `user.id:eq:42`.
    parameter: Option<String>,
    /// Text in ids, types, tags, error codes and messages.
    q: Option<String>,
    /// `parameters`, `result` or both with a comma.
    include: Option<String>,
    /// 1 to 1,000; 50 unless given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl TaskQuery {
    /// The filter.
    pub fn filter(self) -> Result<TaskFilter, Problem> {
        let fields = FilterFields {
            status: self.status,
            queue: self.queue,
            task_type: self.task_type,
            priority: self.priority,
            tenant: self.tenant,
            tag: self.tag,
            worker_id: self.worker_id,
            created_after: self.created_after,
            created_before: self.created_before,
            error_code: self.error_code,
            parameter: self.parameter,
            q: self.q,
            ..FilterFields::default()
        };
        fields.filter()
    }

    /// How many items, and from where.
    pub fn page(&self) -> Result<(usize, Option<Cursor>), Problem> {
        Ok((page_limit(self.limit.as_deref())?, cursor(self.cursor.clone())))
    }

    /// Which large parts are shown.
    pub fn include(&self) -> Result<Include, Problem> {
        Ok(read("include", self.include.as_deref(), include)?.unwrap_or_default())
    }
}

fn include(text: &str) -> Result<Include, &'static str> {
    text.split(',').try_fold(Include::default(), |include, part| match part {
        "parameters" => Ok(Include { parameters: true, ..include }),
        "result" => Ok(Include { result: true, ..include }),
        _ => Err("must be parameters, result or both with a comma"),
    })
}

/// Filters of the dead letters.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct DeadLetterQuery {
    queue: Option<String>,
    task_type: Option<String>,
    priority: Option<String>,
    tenant: Option<String>,
    /// `key:value`.
    tag: Option<String>,
    error_code: Option<String>,
    /// The class of the last failure.
    class: Option<String>,
    /// `max_retries`, `permanent_error`, `poison_pill`, `max_elapsed` or `rejected_by_operator`.
    dead_reason: Option<String>,
    /// Given up before.
    before: Option<String>,
    /// Given up at or after.
    after: Option<String>,
    /// Text in ids, types, tags, error codes and messages.
    q: Option<String>,
    /// `parameters`, `result` or both with a comma.
    include: Option<String>,
    /// 1 to 1,000; 50 unless given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl DeadLetterQuery {
    /// The filter: dead letters only.
    pub fn filter(self) -> Result<TaskFilter, Problem> {
        let fields = FilterFields {
            queue: self.queue,
            task_type: self.task_type,
            priority: self.priority,
            tenant: self.tenant,
            tag: self.tag,
            error_code: self.error_code,
            class: self.class,
            dead_reason: self.dead_reason,
            before: self.before,
            after: self.after,
            q: self.q,
            ..FilterFields::default()
        };
        Ok(TaskFilter { statuses: vec![Status::DeadLetter], ..fields.filter()? })
    }

    /// How many items, and from where.
    pub fn page(&self) -> Result<(usize, Option<Cursor>), Problem> {
        Ok((page_limit(self.limit.as_deref())?, cursor(self.cursor.clone())))
    }

    /// Which large parts are shown.
    pub fn include(&self) -> Result<Include, Problem> {
        Ok(read("include", self.include.as_deref(), include)?.unwrap_or_default())
    }
}

/// Filters of the analysis of dead letters: those of their list.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AnalysisQuery {
    queue: Option<String>,
    task_type: Option<String>,
    priority: Option<String>,
    tenant: Option<String>,
    /// `key:value`.
    tag: Option<String>,
    error_code: Option<String>,
    /// The class of the last failure.
    class: Option<String>,
    /// `max_retries`, `permanent_error`, `poison_pill`, `max_elapsed` or `rejected_by_operator`.
    dead_reason: Option<String>,
    /// Given up before.
    before: Option<String>,
    /// Given up at or after.
    after: Option<String>,
    /// Text in ids, types, tags, error codes and messages.
    q: Option<String>,
}

impl AnalysisQuery {
    /// The filter: dead letters only.
    pub fn filter(self) -> Result<TaskFilter, Problem> {
        let list = DeadLetterQuery {
            queue: self.queue,
            task_type: self.task_type,
            priority: self.priority,
            tenant: self.tenant,
            tag: self.tag,
            error_code: self.error_code,
            class: self.class,
            dead_reason: self.dead_reason,
            before: self.before,
            after: self.after,
            q: self.q,
            ..DeadLetterQuery::default()
        };
        list.filter()
    }
}

/// All filters by name, as texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FilterFields {
    /// One status or several, with commas.
    pub status: Option<String>,
    pub queue: Option<String>,
    pub task_type: Option<String>,
    pub priority: Option<String>,
    pub tenant: Option<String>,
    pub tag: Option<String>,
    pub worker_id: Option<String>,
    pub created_after: Option<String>,
    pub created_before: Option<String>,
    pub error_code: Option<String>,
    pub class: Option<String>,
    pub dead_reason: Option<String>,
    pub before: Option<String>,
    pub after: Option<String>,
    pub parameter: Option<String>,
    pub q: Option<String>,
}

impl FilterFields {
    /// The filter that these texts mean.
    pub fn filter(&self) -> Result<TaskFilter, Problem> {
        Ok(TaskFilter {
            statuses: read("status", self.status.as_deref(), statuses)?.unwrap_or_default(),
            queue: read("queue", self.queue.as_deref(), QueueName::new)?,
            task_type: read("task_type", self.task_type.as_deref(), TaskType::new)?,
            priority: read("priority", self.priority.as_deref(), Priority::from_text)?,
            tenant: read("tenant", self.tenant.as_deref(), Text::new)?,
            tag: read("tag", self.tag.as_deref(), tag)?,
            worker: read("worker_id", self.worker_id.as_deref(), str::parse::<WorkerId>)?,
            created_after: read("created_after", self.created_after.as_deref(), str::parse::<Timestamp>)?,
            created_before: read("created_before", self.created_before.as_deref(), str::parse::<Timestamp>)?,
            ended_after: read("after", self.after.as_deref(), str::parse::<Timestamp>)?,
            ended_before: read("before", self.before.as_deref(), str::parse::<Timestamp>)?,
            error_code: self.error_code.clone(),
            class: read("class", self.class.as_deref(), named::<ErrorClass>)?,
            auto_replayed: None,
            end_reason: read("dead_reason", self.dead_reason.as_deref(), named::<EndReason>)?,
            parameter: read("parameter", self.parameter.as_deref(), str::parse::<ParameterTest>)?,
            text: self.q.clone().filter(|text| !text.is_empty()),
        })
    }
}

fn statuses(text: &str) -> Result<Vec<Status>, windlass_core::status::BadStatus> {
    text.split(',').map(str::parse).collect()
}

fn tag(text: &str) -> Result<(TagKey, Text), String> {
    let (key, value) = text.split_once(':').ok_or("must be key:value")?;
    let bad = |error: BadName| error.to_string();
    Ok((TagKey::new(key).map_err(bad)?, Text::new(value).map_err(bad)?))
}

/// A value by its name on the wire.
fn named<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|error| {
        let message = error.to_string();
        let choices = message.split_once("expected one of ").map_or("a known name", |(_, choices)| choices);
        format!("must be one of {}", choices.replace('`', ""))
    })
}

/// A page of tasks as a document.
pub fn page_of(engine: &Engine, page: Page<Task>, include: Include) -> TaskPage {
    let (settings, now) = (engine.store.settings(), engine.store.now());
    let items = page.items.into_iter().map(|task| TaskDocument::new(task, &settings, now, include)).collect();
    TaskPage { items, next_cursor: page.next.map(|cursor| cursor.0) }
}
