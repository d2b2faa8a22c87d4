//! What a worker says while an attempt runs: progress and finished durable steps.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::ids::{LeaseToken, TaskId};
use windlass_core::json::Json as RawJson;
use windlass_core::limits;
use windlass_core::names::{Text, cut};
use windlass_core::status::Status;
use windlass_core::store::{LeaseError, ProgressReport, StepReport};
use windlass_core::task::Progress;

use super::task_actions::only;
use super::worker_calls::Acknowledged;
use super::worker_id;
use crate::engine::Engine;
use crate::json_body::{JsonBody, some_json};
use crate::path::Path;
use crate::problem::Problem;
use crate::results::Given;
use crate::submit::check_size;

/// How far an attempt is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressBody {
    #[schema(value_type = String, format = "uuid")]
    task_id: Given<TaskId>,
    #[schema(value_type = String)]
    lease_token: Given<LeaseToken>,
    /// 0 to 100.
    #[schema(minimum = 0, maximum = 100)]
    percent: f64,
    message: Option<String>,
    step: Option<u32>,
    steps: Option<u32>,
    /// Anything else, at most 16 KiB.
    #[schema(value_type = Option<serde_json::Value>)]
    metadata: Option<RawJson>,
}

/// The answer to progress.
#[derive(Serialize, ToSchema)]
pub struct ProgressAnswer {
    /// Whether it was kept.
    acknowledged: bool,
    /// Whether the task was cancelled meanwhile.
    cancelled: bool,
}

/// Keeps the latest progress of an attempt.
#[utoipa::path(post, path = "/internal/workers/{id}/progress", tag = "worker calls", params(("id" = String, Path)),
    request_body = ProgressBody, responses((status = 200, body = ProgressAnswer)))]
pub async fn progress(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<ProgressBody>,
) -> Result<Json<ProgressAnswer>, Problem> {
    let worker = worker_id(&id)?;
    let task = body.task_id.0.ok_or(LeaseError::UnknownTask)?;
    let token = body.lease_token.0.ok_or(LeaseError::Lost)?;
    if !(0.0..=100.0).contains(&body.percent) {
        return Err(Problem::invalid_field("percent", "must be from 0 to 100"));
    }
    if let Some(metadata) = &body.metadata {
        check_size("metadata", metadata, limits::DETAILS_BYTES)?;
    }
    let progress = Progress {
        percent: body.percent,
        message: body.message.map(|message| cut(message, limits::MESSAGE_BYTES)),
        step: body.step,
        steps: body.steps,
        metadata: body.metadata,
        at: engine.store.now(),
    };
    let report = ProgressReport { task, token, progress };
    match only(engine.store.record_progress(worker, vec![report]).await)? {
        Ok(()) => Ok(Json(ProgressAnswer { acknowledged: true, cancelled: false })),
        // A worker that reports on a cancelled task should hear that, not only that the lease is gone.
        Err(LeaseError::Lost) if engine.task(task).await?.state.status == Status::Cancelled => {
            Ok(Json(ProgressAnswer { acknowledged: false, cancelled: true }))
        }
        Err(error) => Err(error.into()),
    }
}

/// A finished durable step.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepBody {
    #[schema(value_type = String, format = "uuid")]
    task_id: Given<TaskId>,
    #[schema(value_type = String)]
    lease_token: Given<LeaseToken>,
    #[schema(value_type = String)]
    name: Text,
    #[serde(default, deserialize_with = "some_json")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<RawJson>,
}

/// Keeps a finished durable step for later attempts.
#[utoipa::path(post, path = "/internal/workers/{id}/step", tag = "worker calls", params(("id" = String, Path)),
    request_body = StepBody, responses((status = 200, body = Acknowledged)))]
pub async fn step(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<StepBody>,
) -> Result<Json<Acknowledged>, Problem> {
    let worker = worker_id(&id)?;
    let task = body.task_id.0.ok_or(LeaseError::UnknownTask)?;
    let token = body.lease_token.0.ok_or(LeaseError::Lost)?;
    let result = body.result.unwrap_or_else(RawJson::null);
    check_size("result", &result, engine.config.max_payload_bytes)?;
    let report = StepReport { task, token, name: body.name.as_str().to_owned(), result };
    only(engine.store.record_steps(worker, vec![report]).await)??;
    Ok(Json(Acknowledged { acknowledged: true }))
}
