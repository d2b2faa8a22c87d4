//! Workers as operators see them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Health, Worker};

use super::worker_calls::Acknowledged;
use super::worker_id;
use crate::engine::Engine;
use crate::path::Path;
use crate::problem::Problem;
use crate::query::{Args, page_limit, read};

/// A worker.
#[derive(Serialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerDocument {
    #[schema(value_type = String, format = "uuid")]
    worker_id: WorkerId,
    #[schema(value_type = Option<String>)]
    name: Option<Text>,
    /// `active`, `draining`, `unhealthy` or `dead`.
    status: &'static str,
    #[schema(value_type = Vec<String>)]
    capabilities: CapabilitySet,
    #[schema(value_type = Vec<String>)]
    queues: Vec<QueueName>,
    #[schema(value_type = Vec<String>)]
    task_types: Vec<TaskType>,
    #[schema(value_type = Option<String>)]
    pool: Option<Text>,
    capacity: u32,
    current_load: usize,
    #[schema(value_type = Vec<String>)]
    current_tasks: Vec<TaskId>,
    #[schema(value_type = Option<String>)]
    version: Option<Text>,
    #[schema(value_type = Option<String>)]
    host: Option<Text>,
    #[schema(value_type = String, format = DateTime)]
    registered_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    last_heartbeat_at: Timestamp,
    #[serde(serialize_with = "crate::number::plain_within")]
    #[schema(value_type = Option<Object>)]
    health: Option<Health>,
    completed: u64,
    failed: u64,
}

/// One page of workers.
#[derive(Serialize, ToSchema)]
pub struct WorkerPage {
    items: Vec<WorkerDocument>,
    next_cursor: Option<String>,
}

/// How the list is read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WorkerQuery {
    /// Only those of this status.
    status: Option<String>,
    /// 1 to 1,000; 50 unless given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl WorkerDocument {
    fn new(worker: Worker, engine: &Engine, now: Timestamp) -> Self {
        let status = worker.status(now, engine.config.heartbeat).as_str();
        let profile = worker.profile;
        Self {
            worker_id: profile.id,
            name: profile.name,
            status,
            capabilities: profile.capabilities,
            queues: profile.queues,
            task_types: profile.task_types,
            pool: profile.pool,
            capacity: profile.capacity,
            current_load: worker.current_tasks.len(),
            current_tasks: worker.current_tasks,
            version: profile.version,
            host: profile.host,
            registered_at: worker.registered_at,
            last_heartbeat_at: worker.last_seen_at,
            health: worker.health,
            completed: worker.completed,
            failed: worker.failed,
        }
    }
}

/// All known workers, ordered by id.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", params(WorkerQuery), responses((status = 200, body = WorkerPage)))]
pub async fn list(
    State(engine): State<Arc<Engine>>,
    Args(query): Args<WorkerQuery>,
) -> Result<Json<WorkerPage>, Problem> {
    let limit = page_limit(query.limit.as_deref())?;
    let bad_cursor = |_| "must be a next_cursor that this list gave";
    let after = read("cursor", query.cursor.as_deref(), |text| text.parse::<WorkerId>().map_err(bad_cursor))?;
    let status = read("status", query.status.as_deref(), |text| match text {
        "active" | "draining" | "unhealthy" | "dead" => Ok(text.to_owned()),
        _ => Err("must be active, draining, unhealthy or dead"),
    })?;
    let now = engine.store.now();
    let mut workers = engine.store.workers().await?;
    workers.sort_unstable_by_key(|worker| worker.profile.id);
    let mut items: Vec<_> = workers
        .into_iter()
        .filter(|worker| after.is_none_or(|after| worker.profile.id > after))
        .map(|worker| WorkerDocument::new(worker, &engine, now))
        .filter(|worker| status.as_ref().is_none_or(|status| worker.status == status))
        .take(limit + 1)
        .collect();
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| has_more).map(|worker| worker.worker_id.to_string());
    Ok(Json(WorkerPage { items, next_cursor }))
}

/// Gives the worker no more tasks.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = String, Path)),
    responses((status = 200, body = Acknowledged)))]
pub async fn drain(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Result<Json<Acknowledged>, Problem> {
    engine.store.drain_worker(worker_id(&id)?).await?;
    Ok(Json(Acknowledged { acknowledged: true }))
}
