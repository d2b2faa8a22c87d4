//! Submitting and reading tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::store::KnownBy;
use windlass_core::task::NewTask;

use super::filters::{TaskQuery, page_of};
use super::task_id;
use crate::document::{EventDocument, Include, TaskDocument, TaskPage};
use crate::engine::Engine;
use crate::json_body::{JsonBatch, JsonBody, NotYet};
use crate::path::Path;
use crate::problem::Problem;
use crate::query::{Args, read};
use crate::submit::{Builder, SubmitBody, pace, refused_submit, trace_parent};

/// A stored task.
#[derive(Serialize, ToSchema)]
pub struct SubmittedDocument {
    #[schema(value_type = String, format = "uuid")]
    task_id: TaskId,
    /// `queued` or `scheduled`; of a deduplicated task whatever it is now.
    status: &'static str,
    /// About how many tasks of the same or higher priority are ahead.
    queue_position: u64,
    /// The position over the recent drain rate; null until there is one.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    estimated_wait_seconds: Option<f64>,
    /// Whether the task was there before.
    deduplicated: bool,
    /// By what: `idempotency_key`, or `unique_kept`, `unique_replaced` or `unique_rescheduled` by its unique key.
    deduplicated_by: Option<&'static str>,
}

/// Submits one task.
#[utoipa::path(post, path = "/api/v1/tasks", tag = "tasks", request_body = SubmitBody,
    responses((status = 201, body = SubmittedDocument), (status = 200, description = "The task was there before.", body = SubmittedDocument)))]
pub async fn submit(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SubmitBody>,
) -> Result<(StatusCode, Json<SubmittedDocument>), Problem> {
    let settings = engine.store.settings();
    let task = Builder::new(&engine, &settings, trace_parent(&headers)).build(body)?;
    let task_type = task.spec.task_type.clone();
    let submitted = engine.store.submit(vec![task]).await.map_err(|error| refused_submit(&engine, error, false))?;
    let stored =
        submitted.first().ok_or_else(|| windlass_core::store::StoreError::unknown("the store lost its answer"))?;
    if stored.is_known() {
        engine.metrics.deduplicated(&task_type);
    }
    let document = SubmittedDocument {
        task_id: stored.id,
        status: stored.status.as_str(),
        queue_position: stored.position,
        estimated_wait_seconds: engine.estimated_wait_seconds(stored.position),
        deduplicated: stored.is_known(),
        deduplicated_by: stored.known_by.map(KnownBy::as_str),
    };
    let status = if stored.is_known() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(document)))
}

/// Many tasks, stored all or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchBody {
    /// The tasks, 1 to 1,000.
    tasks: Vec<SubmitBody>,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    #[allow(dead_code, reason = "refused while it is parsed")]
    group: NotYet,
    /// Start the tasks at this pace instead of all at once.
    max_per_second: Option<f64>,
}

/// The stored tasks of a batch.
#[derive(Serialize, ToSchema)]
pub struct BatchDocument {
    /// In the order of the request.
    #[schema(value_type = Vec<String>)]
    task_ids: Vec<TaskId>,
    /// How many of them were there before.
    deduplicated: usize,
}

/// Submits many tasks, all or nothing.
#[utoipa::path(post, path = "/api/v1/tasks/batch", tag = "tasks", request_body = BatchBody,
    responses((status = 201, body = BatchDocument)))]
pub async fn submit_batch(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    JsonBatch(body): JsonBatch<BatchBody>,
) -> Result<(StatusCode, Json<BatchDocument>), Problem> {
    if !(1..=limits::BATCH_TASKS).contains(&body.tasks.len()) {
        return Err(Problem::invalid_field("tasks", format_args!("must have 1 to {} tasks", limits::BATCH_TASKS)));
    }
    let settings = engine.store.settings();
    let builder = Builder::new(&engine, &settings, trace_parent(&headers));
    let build = |(index, body)| {
        builder.build(body).map_err(|problem: Problem| problem.within(&format!("tasks[{index}]")).at_index(index))
    };
    let mut tasks = body.tasks.into_iter().enumerate().map(build).collect::<Result<Vec<_>, _>>()?;
    if let Some(per_second) = body.max_per_second {
        pace(&mut tasks, per_second)?;
    }
    let with_key = |(index, task): (usize, &NewTask)| {
        let has_key = task.spec.idempotency_key.is_some() || task.spec.unique.is_some();
        has_key.then(|| (index, task.spec.task_type.clone()))
    };
    let keyed: Vec<_> = tasks.iter().enumerate().filter_map(with_key).collect();
    let submitted = engine.store.submit(tasks).await.map_err(|error| refused_submit(&engine, error, true))?;
    let deduplicated = submitted.iter().filter(|task| task.is_known()).count();
    for (index, task_type) in &keyed {
        if submitted.get(*index).is_some_and(windlass_core::store::Submitted::is_known) {
            engine.metrics.deduplicated(task_type);
        }
    }
    let task_ids = submitted.into_iter().map(|task| task.id).collect();
    Ok((StatusCode::CREATED, Json(BatchDocument { task_ids, deduplicated })))
}

/// How one task is read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GetQuery {
    /// `history` adds the events of the task.
    include: Option<String>,
    /// Hold the request until the task has ended, at most this many seconds (up to 60).
    #[param(value_type = Option<f64>, minimum = 0, maximum = 60)]
    wait: Option<String>,
}

/// The whole task.
#[utoipa::path(get, path = "/api/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path), GetQuery),
    responses((status = 200, body = TaskDocument)))]
pub async fn get(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    Args(query): Args<GetQuery>,
) -> Result<Json<TaskDocument>, Problem> {
    let id = task_id(&id)?;
    let with_history = read("include", query.include.as_deref(), with_history)?.unwrap_or(false);
    let wait = read("wait", query.wait.as_deref(), wait)?;
    let mut task = engine.task(id).await?;
    if let Some(wait) = wait
        && !task.state.status.is_ended()
    {
        engine.wait_for_end(id, wait).await?;
        task = engine.task(id).await?;
    }
    let mut document = TaskDocument::new(task, &engine.store.settings(), engine.store.now(), Include::ALL);
    if with_history {
        document.history = Some(engine.store.history(id).await?.into_iter().map(EventDocument::from).collect());
    }
    Ok(Json(document))
}

fn with_history(text: &str) -> Result<bool, &'static str> {
    // The parameters and the result are always there; naming them is no mistake.
    let known = |part: &str| matches!(part, "history" | "parameters" | "result");
    if text.split(',').all(known) { Ok(text.split(',').any(|part| part == "history")) } else { Err("must be history") }
}

fn wait(text: &str) -> Result<Duration, String> {
    let longest = limits::WAIT.as_secs_f64();
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=longest).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("must be a number of seconds from 0 to {longest}")),
    }
}

/// Tasks that match, newest first. An answer may be partial and still have a cursor.
#[utoipa::path(get, path = "/api/v1/tasks", tag = "tasks", params(TaskQuery), responses((status = 200, body = TaskPage)))]
pub async fn list(State(engine): State<Arc<Engine>>, Args(query): Args<TaskQuery>) -> Result<Json<TaskPage>, Problem> {
    let include = query.include()?;
    let (limit, cursor) = query.page()?;
    let page = engine.store.list(query.filter()?, limit, cursor).await?;
    Ok(Json(page_of(&engine, page, include)))
}
