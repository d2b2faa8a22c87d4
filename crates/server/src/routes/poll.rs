//! The poll: results in, tasks out, in one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::ids::{LeaseToken, TaskId, WorkerId};
use windlass_core::json::Json as RawJson;
use windlass_core::limits;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::store::{ClaimRequest, Claimed, StoreError, WorkerError};
use windlass_core::task::{ClaimedTask, Tags};
use windlass_core::time::Timestamp;

use super::result::{Traces, finish};
use super::worker_id;
use crate::delivery::{DeliveryBody, Undelivered};
use crate::document::{FlowKeys, seconds};
use crate::engine::Engine;
use crate::json_body::JsonBatch;
use crate::path::Path;
use crate::problem::Problem;
use crate::results::{ResultAnswer, ResultBody, check_count};

/// A worker's wish for work.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollBody {
    /// How many tasks it has room for; at most 1,000 are given at once.
    available_capacity: u32,
    /// How long to hold the request if there is nothing, up to 60,000.
    wait_ms: Option<u64>,
    /// What it can do now, if that differs from its registration.
    #[schema(value_type = Option<Vec<String>>)]
    capabilities: Option<CapabilitySet>,
    /// Results of tasks that ended; then the answer comes at once.
    results: Option<Vec<ResultBody>>,
}

/// A task as a worker gets it.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedTask)]
pub struct ClaimedDocument {
    #[schema(value_type = String, format = "uuid")]
    task_id: TaskId,
    #[schema(value_type = String)]
    task_type: TaskType,
    #[schema(value_type = serde_json::Value)]
    parameters: RawJson,
    #[schema(value_type = String)]
    queue: QueueName,
    #[schema(schema_with = crate::document::priority_schema)]
    priority: Priority,
    attempt: u32,
    max_retries: u32,
    #[serde(serialize_with = "crate::number::plain")]
    timeout_seconds: f64,
    /// Must come with every word about this attempt.
    #[schema(value_type = String)]
    lease_token: LeaseToken,
    #[schema(value_type = String, format = DateTime)]
    lease_expires_at: Timestamp,
    trace_id: Option<String>,
    #[schema(value_type = Option<String>)]
    traceparent: Option<Text>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>)]
    idempotency_key: Option<Text>,
    #[schema(value_type = Option<String>)]
    ordering_key: Option<Text>,
    crash_count: u32,
    #[schema(value_type = BTreeMap<String, String>)]
    tags: Tags,
    /// Durable steps that earlier attempts finished.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    steps: BTreeMap<String, RawJson>,
}

impl From<ClaimedTask> for ClaimedDocument {
    fn from(task: ClaimedTask) -> Self {
        Self {
            task_id: task.id,
            trace_id: task.spec.trace_id().map(str::to_owned),
            task_type: task.spec.task_type,
            parameters: task.spec.parameters,
            queue: task.spec.queue,
            priority: task.spec.priority,
            attempt: task.attempt,
            max_retries: task.spec.policy.max_retries,
            timeout_seconds: seconds(task.timeout),
            lease_token: task.token,
            lease_expires_at: task.lease_expires_at,
            traceparent: task.spec.trace_parent,
            created_at: task.created_at,
            idempotency_key: task.spec.idempotency_key,
            ordering_key: FlowKeys::from(task.spec.flow_key).ordering_key,
            crash_count: task.crashes,
            tags: task.spec.tags,
            steps: task.steps,
        }
    }
}

/// The answer to a poll.
#[derive(Serialize, ToSchema)]
pub struct PollDocument {
    tasks: Vec<ClaimedDocument>,
    /// Tasks to stop: they were cancelled.
    #[schema(value_type = Vec<String>)]
    cancel: Vec<TaskId>,
    /// One answer per result sent.
    results: Vec<ResultAnswer>,
}

/// Takes results and gives tasks.
#[utoipa::path(post, path = "/internal/workers/{id}/poll", tag = "worker calls", params(("id" = String, Path)),
    request_body = PollBody, responses((status = 200, body = PollDocument)))]
pub async fn poll(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    JsonBatch(body): JsonBatch<PollBody>,
) -> Result<Response, Problem> {
    let worker = worker_id(&id)?;
    let wait = checked_wait(&body)?;
    let results = body.results.unwrap_or_default();
    check_count(&results)?;
    let request = ClaimRequest {
        worker,
        capabilities: body.capabilities,
        up_to: (body.available_capacity as usize).min(limits::CLAIM_TASKS),
        lease: engine.config.lease,
        wait: false,
    };
    let (answers, claimed, undelivered) = if results.is_empty() {
        let (claimed, undelivered) = claim(&engine, request, wait).await?;
        (Vec::new(), claimed, undelivered)
    } else {
        let traces = Traces::of(&engine, &results).await?;
        // Enqueued in this order, so that results and claim share one transaction of the
        // store and the room that a result makes is there for the claim.
        let (answers, claimed) =
            tokio::join!(finish(&engine, worker, results, &traces), claim(&engine, request, Duration::ZERO));
        let answers = answers?;
        let (claimed, undelivered) = match claimed {
            // The results were taken: the worker must hear of it, and will ask for tasks again.
            Err(WorkerError::Store(_)) => no_tasks(&engine, worker),
            claimed => claimed?,
        };
        (answers, claimed, undelivered)
    };
    let document = PollDocument {
        tasks: claimed.tasks.into_iter().map(ClaimedDocument::from).collect(),
        cancel: claimed.cancel,
        results: answers,
    };
    deliver(&document, undelivered)
}

fn checked_wait(body: &PollBody) -> Result<Duration, Problem> {
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0));
    if wait > limits::WAIT {
        return Err(Problem::invalid_field("wait_ms", format_args!("must be from 0 to {}", limits::WAIT.as_millis())));
    }
    if body.available_capacity > limits::WORKER_CAPACITY {
        let rule = format_args!("must be from 0 to {}", limits::WORKER_CAPACITY);
        return Err(Problem::invalid_field("available_capacity", rule));
    }
    Ok(wait)
}

fn no_tasks(engine: &Engine, worker: WorkerId) -> (Claimed, Undelivered) {
    let claimed = Claimed::default();
    let undelivered = Undelivered::new(&engine.store, worker, &claimed);
    (claimed, undelivered)
}

/// Claims, holding for at most `wait`. What was claimed is watched over from here on.
async fn claim(
    engine: &Engine,
    mut request: ClaimRequest,
    wait: Duration,
) -> Result<(Claimed, Undelivered), WorkerError> {
    let worker = request.worker;
    request.wait = !wait.is_zero() && !engine.is_closing();
    let claimed = if request.wait {
        // Dropping the claim gives back what it may have taken.
        tokio::select! {
            claimed = tokio::time::timeout(wait, engine.store.claim(request)) => claimed.unwrap_or(Ok(Claimed::default()))?,
            error = engine.store_is_away() => return Err(error.into()),
            () = engine.closing() => Claimed::default(),
        }
    } else if engine.is_closing() {
        Claimed::default()
    } else {
        engine.store.claim(request).await?
    };
    let undelivered = Undelivered::new(&engine.store, worker, &claimed);
    Ok((claimed, undelivered))
}

fn deliver(document: &PollDocument, undelivered: Undelivered) -> Result<Response, Problem> {
    let bytes = serde_json::to_vec(document)
        .map_err(|error| StoreError::unknown(format!("a task cannot be written: {error}")))?;
    let mut response = Response::new(Body::new(DeliveryBody::new(bytes.into(), undelivered)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
