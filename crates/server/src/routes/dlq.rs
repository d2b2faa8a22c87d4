//! Dead letters: look, replay, give up.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use windlass_core::actor::Actor;
use windlass_core::json::Json as RawJson;
use windlass_core::limits;
use windlass_core::names::cut;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::Requeue;

use super::filters::{DeadLetterQuery, page_of};
use super::task_actions::{ChangedDocument, confirm_replay, only};
use super::task_id;
use crate::document::{EventDocument, Include, TaskDocument, TaskPage};
use crate::engine::Engine;
use crate::json_body::OptionalBody;
use crate::path::Path;
use crate::problem::{Code, Problem, refused_change};
use crate::query::Args;
use crate::submit::check_size;

/// Dead letters that match, newest first.
#[utoipa::path(get, path = "/api/v1/dlq", tag = "dlq", params(DeadLetterQuery), responses((status = 200, body = TaskPage)))]
pub async fn list(
    State(engine): State<Arc<Engine>>,
    Args(query): Args<DeadLetterQuery>,
) -> Result<Json<TaskPage>, Problem> {
    let include = query.include()?;
    let (limit, cursor) = query.page()?;
    let page = engine.store.list(query.filter()?, limit, cursor).await?;
    Ok(Json(page_of(&engine, page, include)))
}

/// One dead letter with every attempt and its history.
#[utoipa::path(get, path = "/api/v1/dlq/{id}", tag = "dlq", params(("id" = String, Path)),
    responses((status = 200, body = TaskDocument)))]
pub async fn get(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Result<Json<TaskDocument>, Problem> {
    let id = task_id(&id)?;
    let task = engine.task(id).await?;
    if task.state.status != Status::DeadLetter {
        return Err(Problem::new(Code::TaskNotFound, format!("task {id} is {}, not a dead letter", task.state.status)));
    }
    let history = engine.store.history(id).await?;
    let mut document = TaskDocument::new(task, &engine.store.settings(), engine.store.now(), Include::ALL);
    document.history = Some(history.into_iter().map(EventDocument::from).collect());
    Ok(Json(document))
}

/// How a dead letter runs again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayBody {
    /// Whether retries used up are forgotten; true unless given.
    reset_retry_count: Option<bool>,
    /// A new priority.
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    new_priority: Option<Priority>,
    /// Edited parameters; the original ones are kept beside them. Null leaves them as they are.
    #[schema(value_type = Option<serde_json::Value>)]
    parameters: Option<RawJson>,
    /// Why, for the record.
    reason: Option<String>,
    /// Asked for by task types that are marked as sensitive.
    confirm: Option<bool>,
}

/// Lets a dead letter run again, under its id and with its history.
#[utoipa::path(post, path = "/api/v1/dlq/{id}/replay", tag = "dlq", params(("id" = String, Path)), request_body = ReplayBody,
    responses((status = 200, body = ChangedDocument)))]
pub async fn replay(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<ReplayBody>,
) -> Result<Json<ChangedDocument>, Problem> {
    let id = task_id(&id)?;
    if let Some(parameters) = &body.parameters {
        check_size("parameters", parameters, engine.config.max_payload_bytes)?;
    }
    confirm_replay(&engine, id, body.confirm).await?;
    let wish = Requeue {
        task: id,
        only_dead: true,
        reset_retries: body.reset_retry_count.unwrap_or(true),
        priority: body.new_priority,
        parameters: body.parameters,
        delay: Duration::ZERO,
        by_rule: false,
        note: body.reason.map(|reason| cut(reason, limits::MESSAGE_BYTES)),
    };
    only(engine.store.requeue(vec![wish], Actor::Api).await)?.map_err(|error| refused_change(error, Code::NotDead))?;
    Ok(Json(ChangedDocument { task_id: id, status: Status::Queued.as_str() }))
}

/// Why a dead letter is given up.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiscardQuery {
    /// For the record.
    reason: Option<String>,
}

/// Gives a dead letter up.
#[utoipa::path(delete, path = "/api/v1/dlq/{id}", tag = "dlq", params(("id" = String, Path), DiscardQuery),
    responses((status = 200, body = ChangedDocument)))]
pub async fn discard(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    Args(query): Args<DiscardQuery>,
) -> Result<Json<ChangedDocument>, Problem> {
    let id = task_id(&id)?;
    let note = query.reason.map(|reason| cut(reason, limits::MESSAGE_BYTES));
    only(engine.store.discard(vec![id], note, Actor::Api).await)?
        .map_err(|error| refused_change(error, Code::NotDead))?;
    Ok(Json(ChangedDocument { task_id: id, status: Status::Failed.as_str() }))
}
