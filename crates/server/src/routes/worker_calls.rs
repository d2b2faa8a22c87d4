//! The calls of workers about themselves: register, heartbeat, drain, leave.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::ids::{LeaseToken, TaskId, WorkerId};
use windlass_core::limits;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::store::{Heartbeat, Renewal};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Health, WorkerProfile};

use super::worker_id;
use crate::document::seconds;
use crate::engine::Engine;
use crate::json_body::{OptionalBatch, OptionalBody};
use crate::path::Path;
use crate::problem::{Code, Problem};
use crate::results::Given;

/// Tasks that a worker runs at once, unless it says.
const CAPACITY_DEFAULT: u32 = 5;

/// What a worker says of itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterBody {
    /// What it can do.
    #[schema(value_type = Option<Vec<String>>)]
    capabilities: Option<CapabilitySet>,
    /// How many tasks it runs at once; 5 unless given.
    #[schema(minimum = 1, maximum = 10_000)]
    capacity: Option<u32>,
    /// The queues it serves; all unless given.
    #[schema(value_type = Option<Vec<String>>)]
    queues: Option<Vec<QueueName>>,
    /// The types it serves; all unless given.
    #[schema(value_type = Option<Vec<String>>)]
    task_types: Option<Vec<TaskType>>,
    #[schema(value_type = Option<String>)]
    pool: Option<Text>,
    #[schema(value_type = Option<String>)]
    name: Option<Text>,
    #[schema(value_type = Option<String>)]
    version: Option<Text>,
    #[schema(value_type = Option<String>)]
    host: Option<Text>,
}

/// What a worker must know.
#[derive(Serialize, ToSchema)]
pub struct RegisteredDocument {
    #[schema(value_type = String, format = "uuid")]
    worker_id: WorkerId,
    poll_interval_ms: u64,
    heartbeat_interval_ms: u64,
    #[serde(serialize_with = "crate::number::plain")]
    lease_seconds: f64,
}

/// Makes a worker known.
#[utoipa::path(post, path = "/internal/workers/register", tag = "worker calls", request_body = RegisterBody,
    responses((status = 201, body = RegisteredDocument)))]
pub async fn register(
    State(engine): State<Arc<Engine>>,
    OptionalBody(body): OptionalBody<RegisterBody>,
) -> Result<(StatusCode, Json<RegisteredDocument>), Problem> {
    if engine.is_closing() {
        let detail = "this node is shutting down; register with another one or again in a moment";
        return Err(Problem::new(Code::Draining, detail).retry_after(1));
    }
    let capacity = body.capacity.unwrap_or(CAPACITY_DEFAULT);
    if !(1..=limits::WORKER_CAPACITY).contains(&capacity) {
        return Err(Problem::invalid_field("capacity", format_args!("must be from 1 to {}", limits::WORKER_CAPACITY)));
    }
    let (queues, task_types) = (body.queues.unwrap_or_default(), body.task_types.unwrap_or_default());
    for (field, count) in [("queues", queues.len()), ("task_types", task_types.len())] {
        if count > limits::SERVED_NAMES {
            return Err(Problem::invalid_field(
                field,
                format_args!("must have at most {} names", limits::SERVED_NAMES),
            ));
        }
    }
    let id = WorkerId::random();
    let profile = WorkerProfile {
        id,
        capabilities: body.capabilities.unwrap_or_default(),
        capacity,
        queues,
        task_types,
        pool: body.pool,
        name: body.name,
        version: body.version,
        host: body.host,
    };
    engine.store.register_worker(profile).await?;
    let document = RegisteredDocument {
        worker_id: id,
        poll_interval_ms: engine.config.poll_interval.as_millis() as u64,
        heartbeat_interval_ms: engine.config.heartbeat.as_millis() as u64,
        lease_seconds: seconds(engine.config.lease),
    };
    Ok((StatusCode::CREATED, Json(document)))
}

/// How a worker says it stands.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaidStatus {
    /// Takes tasks.
    Active,
    /// Finishes what it has.
    Draining,
    /// Is not well.
    Unhealthy,
}

/// A lease that a heartbeat renews.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldTask {
    #[schema(value_type = String, format = "uuid")]
    task_id: Given<TaskId>,
    #[schema(value_type = String)]
    lease_token: Given<LeaseToken>,
}

/// A sign of life.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatBody {
    /// How many tasks it runs. The leases say it too; they win.
    #[allow(dead_code, reason = "the store knows the load from the leases")]
    current_load: Option<u32>,
    status: Option<SaidStatus>,
    /// The leases to renew; all of the worker's unless given.
    tasks: Option<Vec<HeldTask>>,
    /// Load of its machine, in percent.
    #[schema(value_type = Option<Object>)]
    health: Option<Health>,
}

/// The answer to a heartbeat.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatDocument {
    acknowledged: bool,
    /// Whether it should finish what it has and take no more.
    should_drain: bool,
    /// Tasks to stop: they were cancelled.
    #[schema(value_type = Vec<String>)]
    cancel: Vec<TaskId>,
    /// Named tasks whose lease is lost.
    #[schema(value_type = Vec<String>)]
    lost: Vec<TaskId>,
    /// Until when the renewed leases last.
    #[schema(value_type = String, format = DateTime)]
    lease_expires_at: Timestamp,
}

/// Renews leases and tells the worker what it must know.
#[utoipa::path(post, path = "/internal/workers/{id}/heartbeat", tag = "worker calls", params(("id" = String, Path)),
    request_body = HeartbeatBody, responses((status = 200, body = HeartbeatDocument)))]
pub async fn heartbeat(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
    OptionalBatch(body): OptionalBatch<HeartbeatBody>,
) -> Result<Json<HeartbeatDocument>, Problem> {
    let worker = worker_id(&id)?;
    check_health(body.health.as_ref())?;
    let mut unreadable = Vec::new();
    let renewal = match body.tasks {
        None => Renewal::All,
        Some(tasks) if tasks.len() > limits::WORKER_CAPACITY as usize => {
            let rule = format_args!("must have at most {} entries", limits::WORKER_CAPACITY);
            return Err(Problem::invalid_field("tasks", rule));
        }
        Some(tasks) => {
            let held = |task: HeldTask| match (task.task_id.0, task.lease_token.0) {
                (Some(id), Some(token)) => Some((id, token)),
                // A token that nobody gave is a lost lease.
                (id, _) => {
                    unreadable.extend(id);
                    None
                }
            };
            Renewal::Named(tasks.into_iter().filter_map(held).collect())
        }
    };
    let beat = Heartbeat {
        worker,
        renewal,
        lease: engine.config.lease,
        unhealthy: body.status == Some(SaidStatus::Unhealthy),
        draining: body.status == Some(SaidStatus::Draining),
        health: body.health,
    };
    let mut beaten = engine.store.heartbeat(beat).await?;
    beaten.lost.extend(unreadable);
    Ok(Json(HeartbeatDocument {
        acknowledged: true,
        should_drain: beaten.should_drain,
        cancel: beaten.cancel,
        lost: beaten.lost,
        lease_expires_at: beaten.lease_expires_at,
    }))
}

fn check_health(health: Option<&Health>) -> Result<(), Problem> {
    // Processors in use can add up to more than one.
    const MAX_PERCENT: f64 = 1_000_000.0;
    let Some(health) = health else { return Ok(()) };
    for (field, percent) in
        [("health.memory_percent", health.memory_percent), ("health.cpu_percent", health.cpu_percent)]
    {
        if percent.is_some_and(|percent| !(0.0..=MAX_PERCENT).contains(&percent)) {
            return Err(Problem::invalid_field(field, "must not be negative"));
        }
    }
    Ok(())
}

/// Yes.
#[derive(Serialize, ToSchema)]
pub struct Acknowledged {
    pub acknowledged: bool,
}

/// Gives the worker no more tasks.
#[utoipa::path(post, path = "/internal/workers/{id}/drain", tag = "worker calls", params(("id" = String, Path)),
    responses((status = 200, body = Acknowledged)))]
pub async fn drain(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Result<Json<Acknowledged>, Problem> {
    engine.store.drain_worker(worker_id(&id)?).await?;
    Ok(Json(Acknowledged { acknowledged: true }))
}

/// Forgets the worker; what it still runs is released.
#[utoipa::path(delete, path = "/internal/workers/{id}", tag = "worker calls", params(("id" = String, Path)),
    responses((status = 200, body = Acknowledged)))]
pub async fn deregister(
    State(engine): State<Arc<Engine>>,
    Path(id): Path<String>,
) -> Result<Json<Acknowledged>, Problem> {
    engine.store.deregister_worker(worker_id(&id)?).await?;
    Ok(Json(Acknowledged { acknowledged: true }))
}
