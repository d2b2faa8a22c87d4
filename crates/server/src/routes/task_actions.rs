//! What people do to one task.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::actor::Actor;
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::names::cut;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, Each, Requeue, StoreError};
use windlass_core::task::Tags;
use windlass_core::time::Timestamp;

use super::bulk::unconfirmed;
use super::task_id;
use crate::document::{Include, ProgressDocument, TaskDocument};
use crate::engine::Engine;
use crate::explain::{self, Explanation, Known};
use crate::json_body::{JsonBody, OptionalBody};
use crate::path::Path;
use crate::problem::{Code, Problem, refused_change};

/// A task after a change.
#[derive(Serialize, ToSchema)]
pub struct ChangedDocument {
    #[schema(value_type = String, format = "uuid")]
    pub task_id: TaskId,
    /// Where the change put it.
    pub status: &'static str,
}

/// The one answer of a call about one item.
pub fn only<T, E>(answers: Each<T, E>) -> Result<Result<T, E>, StoreError> {
    answers?.pop().ok_or_else(|| StoreError::unknown("the store lost its answer"))
}

/// Why a person took tasks out of the flow: whoever finds them must be able to read it.
pub fn why(reason: String) -> Result<String, Problem> {
    if reason.trim().is_empty() {
        return Err(Problem::invalid_field("reason", "must say why"));
    }
    Ok(cut(reason, limits::MESSAGE_BYTES))
}

/// A cancelled task.
#[derive(Serialize, ToSchema)]
pub struct CancelledDocument {
    #[schema(value_type = String, format = "uuid")]
    task_id: TaskId,
    status: &'static str,
    /// Whether a worker was running it.
    was_executing: bool,
    /// Whether that worker is told with its next poll or heartbeat.
    worker_notified: bool,
}

/// Cancels a task that has not ended.
#[utoipa::path(delete, path = "/api/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = CancelledDocument)))]
pub async fn cancel(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
) -> Result<Json<CancelledDocument>, Problem> {
    let id = task_id(&id)?;
    let cancelled = only(engine.store.cancel(vec![id], Actor::Api).await)?
        .map_err(|error| refused_change(error, Code::NotCancellable))?;
    Ok(Json(CancelledDocument {
        task_id: id,
        status: Status::Cancelled.as_str(),
        was_executing: cancelled.was_executing,
        worker_notified: cancelled.was_executing,
    }))
}

/// A change of a task that has not started.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendBody {
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    priority: Option<Priority>,
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// All tags anew.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    tags: Option<Tags>,
}

/// Changes a task that waits.
#[utoipa::path(patch, path = "/api/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path)), request_body = AmendBody,
    responses((status = 200, body = TaskDocument)))]
pub async fn amend(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<AmendBody>,
) -> Result<Json<TaskDocument>, Problem> {
    let id = task_id(&id)?;
    if body.tags.as_ref().is_some_and(|tags| tags.len() > limits::TAGS) {
        return Err(Problem::invalid_field("tags", format_args!("must have at most {} entries", limits::TAGS)));
    }
    if body.run_at.is_some_and(|run_at| run_at > engine.store.now() + limits::DELAY) {
        return Err(Problem::invalid_field("run_at", "must be within 366 days"));
    }
    let amendment = Amendment { priority: body.priority, run_at: body.run_at, tags: body.tags };
    if amendment == Amendment::default() {
        return Err(
            Problem::new(Code::MissingField, "one of priority, run_at and tags is required").on_field("priority")
        );
    }
    let amended = engine.store.amend(id, amendment, Actor::Api).await?;
    amended.map_err(|error| refused_change(error, Code::NotAmendable))?;
    let task = engine.task(id).await.map_err(Problem::maybe_applied)?;
    Ok(Json(TaskDocument::new(task, &engine.store.settings(), engine.store.now(), Include::ALL)))
}

/// How a task is retried by hand.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryBody {
    /// Asked for by task types that are marked as sensitive, if the task has ended.
    confirm: Option<bool>,
}

/// Refuses to run an ended task of a sensitive type again unless that was confirmed. What
/// else stands against it is for the store to say.
pub async fn confirm_replay(engine: &Engine, id: TaskId, confirm: Option<bool>) -> Result<(), Problem> {
    let settings = engine.store.settings();
    let any_is_sensitive = settings.types.values().any(|of_type| of_type.sensitive == Some(true));
    if confirm == Some(true) || !any_is_sensitive {
        return Ok(());
    }
    let task = engine.task(id).await?;
    let runs_again = [Status::DeadLetter, Status::Failed].contains(&task.state.status);
    if runs_again && settings.is_sensitive(&task.spec.task_type) {
        return Err(unconfirmed(&task.spec.task_type));
    }
    Ok(())
}

/// Runs a scheduled, failed or dead task now.
#[utoipa::path(post, path = "/api/v1/tasks/{id}/retry", tag = "tasks", params(("id" = String, Path)), request_body = RetryBody,
    responses((status = 200, body = ChangedDocument)))]
pub async fn retry(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<RetryBody>,
) -> Result<Json<ChangedDocument>, Problem> {
    let id = task_id(&id)?;
    confirm_replay(&engine, id, body.confirm).await?;
    let wish = Requeue {
        task: id,
        only_dead: false,
        reset_retries: true,
        priority: None,
        parameters: None,
        delay: Duration::ZERO,
        by_rule: false,
        note: None,
    };
    only(engine.store.requeue(vec![wish], Actor::Api).await)?
        .map_err(|error| refused_change(error, Code::NotRetryable))?;
    Ok(Json(ChangedDocument { task_id: id, status: Status::Queued.as_str() }))
}

/// Why a task is taken out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterBody {
    /// For those who find it.
    reason: String,
}

/// Takes a waiting task out of the flow.
#[utoipa::path(post, path = "/api/v1/tasks/{id}/dead-letter", tag = "tasks", params(("id" = String, Path)),
    request_body = DeadLetterBody, responses((status = 200, body = ChangedDocument)))]
pub async fn dead_letter(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<DeadLetterBody>,
) -> Result<Json<ChangedDocument>, Problem> {
    let id = task_id(&id)?;
    let note = why(body.reason)?;
    only(engine.store.bury(vec![id], note, Actor::Api).await)?
        .map_err(|error| refused_change(error, Code::NotAmendable))?;
    Ok(Json(ChangedDocument { task_id: id, status: Status::DeadLetter.as_str() }))
}

/// How far a task is.
#[derive(Serialize, ToSchema)]
pub struct TaskProgress {
    #[schema(value_type = String, format = "uuid")]
    task_id: TaskId,
    status: &'static str,
    attempt: u32,
    /// The latest report of the current attempt, with an ETA.
    progress: Option<ProgressDocument>,
}

/// The progress of a task.
#[utoipa::path(get, path = "/api/v1/tasks/{id}/progress", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = TaskProgress)))]
pub async fn progress(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
) -> Result<Json<TaskProgress>, Problem> {
    let state = engine.task(task_id(&id)?).await.map(|task| (task.id, task.state))?;
    let (id, state) = state;
    let now = engine.store.now();
    Ok(Json(TaskProgress {
        task_id: id,
        status: state.status.as_str(),
        attempt: state.attempt,
        progress: state.progress.map(|progress| ProgressDocument::new(progress, state.started_at, now)),
    }))
}

/// Why a task is not running.
#[utoipa::path(get, path = "/api/v1/tasks/{id}/explain", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = Explanation)))]
pub async fn explain(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Result<Json<Explanation>, Problem> {
    let task = engine.task(task_id(&id)?).await?;
    let (waiting, workers, breakers) =
        tokio::join!(engine.store.waiting_for(task.id), engine.store.workers(), engine.store.breakers());
    let now = engine.store.now();
    let with_status = |worker: windlass_core::worker::Worker| {
        let status = worker.status(now, engine.config.heartbeat);
        (worker, status)
    };
    let workers: Vec<_> = workers?.into_iter().map(with_status).collect();
    let settings = engine.store.settings();
    let (waiting, breakers) = (waiting?, breakers?);
    let known = Known { task: &task, settings: &settings, workers: &workers, breakers: &breakers, waiting, now };
    Ok(Json(explain::explain(&known)))
}
