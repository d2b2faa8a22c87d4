//! Task types: their settings.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::breaker::BreakerSettings;
use windlass_core::failure::ErrorClass;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::settings::{AutoReplay, Field, Retention, TypeChange, TypeSettings};
use windlass_core::store::SettingsError;

use super::queues::{NameQuery, RateDocument};
use super::settings_body::SettingsBody;
use crate::document::seconds;
use crate::engine::Engine;
use crate::path::Path;
use crate::problem::{Code, Problem};
use crate::query::Args;

/// When a type's breaker opens and how long it stays open.
#[derive(Serialize, ToSchema)]
#[schema(as = BreakerSettings)]
pub struct BreakerDocument {
    /// Fewer attempts than this in the window say nothing; 20 unless given.
    #[schema(minimum = 1, maximum = 100_000, required = false)]
    min_attempts: u32,
    /// It opens when more than this share of them failed; 0.8 unless given.
    #[serde(serialize_with = "crate::number::plain")]
    #[schema(exclusive_minimum = 0, maximum = 1, required = false)]
    failure_ratio: f64,
    /// How far back attempts count; 300 unless given.
    #[serde(serialize_with = "crate::number::plain")]
    #[schema(minimum = 1, maximum = 86_400, required = false)]
    window_seconds: f64,
    /// How long it stays open before one task is tried; 60 unless given.
    #[serde(serialize_with = "crate::number::plain")]
    #[schema(minimum = 0.1, maximum = 86_400, required = false)]
    recovery_seconds: f64,
}

impl From<BreakerSettings> for BreakerDocument {
    fn from(settings: BreakerSettings) -> Self {
        Self {
            min_attempts: settings.min_attempts,
            failure_ratio: settings.failure_ratio,
            window_seconds: settings.window_seconds,
            recovery_seconds: settings.recovery_seconds,
        }
    }
}

/// Which dead letters are replayed when the breaker closes, and how fast.
#[derive(Serialize, ToSchema)]
#[schema(as = AutoReplay)]
pub struct AutoReplayDocument {
    /// Of these classes; `transient` unless given.
    #[schema(value_type = Vec<String>, required = false)]
    classes: Vec<ErrorClass>,
    /// 10 unless given.
    #[serde(serialize_with = "crate::number::plain")]
    #[schema(minimum = 0.001, maximum = 100_000, required = false)]
    rate_per_second: f64,
}

impl From<AutoReplay> for AutoReplayDocument {
    fn from(rule: AutoReplay) -> Self {
        Self { classes: rule.classes, rate_per_second: rule.rate_per_second }
    }
}

/// The settings of a task type; null follows the default.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskType)]
pub struct TypeDocument {
    #[schema(value_type = String)]
    task_type: TaskType,
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    priority: Option<Priority>,
    #[serde(serialize_with = "crate::number::plain_or_null")]
    timeout_seconds: Option<f64>,
    max_retries: Option<u32>,
    #[serde(serialize_with = "crate::number::plain_within")]
    #[schema(value_type = Option<Object>)]
    retry: Option<RetryPolicy>,
    dead_letter: Option<bool>,
    max_crashes: Option<u32>,
    /// How many of its tasks may run at once.
    concurrency: Option<u32>,
    /// How fast its tasks may start.
    rate_limit: Option<RateDocument>,
    /// How much of a worker's capacity one task takes.
    slots: Option<u32>,
    /// When its breaker opens.
    breaker: Option<BreakerDocument>,
    /// Whether a replay must be confirmed.
    sensitive: Option<bool>,
    /// Dead letters that are replayed when the breaker closes, each at most once.
    auto_replay: Option<AutoReplayDocument>,
    #[serde(serialize_with = "crate::number::plain_within")]
    #[schema(value_type = Option<Object>)]
    retention: Option<Retention>,
    paused: bool,
}

/// A change of a type's settings: what is named is replaced, `null` clears, the rest stays.
#[derive(ToSchema)]
#[schema(as = TaskTypeChange)]
#[allow(dead_code, reason = "describes a type of the core for readers of the API")]
pub struct TypeChangeBody {
    /// The queue of tasks that name none.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    queue: Option<String>,
    /// The priority of tasks that name none.
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    priority: Option<Priority>,
    timeout_seconds: Option<f64>,
    #[schema(maximum = 100)]
    max_retries: Option<u32>,
    #[schema(value_type = Option<Object>)]
    retry: Option<RetryPolicy>,
    dead_letter: Option<bool>,
    #[schema(minimum = 1, maximum = 100)]
    max_crashes: Option<u32>,
    /// How many of its tasks may run at once.
    #[schema(minimum = 1, maximum = 1_000_000)]
    concurrency: Option<u32>,
    /// How fast its tasks may start.
    rate_limit: Option<RateDocument>,
    /// How much of a worker's capacity one task takes; 1 unless given.
    #[schema(minimum = 1, maximum = 10_000)]
    slots: Option<u32>,
    /// When its breaker opens.
    breaker: Option<BreakerDocument>,
    /// Whether a replay must be confirmed.
    sensitive: Option<bool>,
    /// Dead letters that are replayed when the breaker closes, each at most once.
    auto_replay: Option<AutoReplayDocument>,
    #[schema(value_type = Option<Object>)]
    retention: Option<Retention>,
    paused: Option<bool>,
}

/// One page of task types.
#[derive(Serialize, ToSchema)]
pub struct TypePage {
    items: Vec<TypeDocument>,
    next_cursor: Option<String>,
}

impl TypeDocument {
    fn new(task_type: TaskType, settings: TypeSettings) -> Self {
        Self {
            task_type,
            queue: settings.queue,
            priority: settings.priority,
            timeout_seconds: settings.timeout_seconds.map(seconds),
            max_retries: settings.max_retries,
            retry: settings.retry,
            dead_letter: settings.dead_letter,
            max_crashes: settings.max_crashes,
            concurrency: settings.concurrency,
            rate_limit: settings.rate_limit.map(RateDocument::from),
            slots: settings.slots,
            breaker: settings.breaker.map(BreakerDocument::from),
            sensitive: settings.sensitive,
            auto_replay: settings.auto_replay.map(AutoReplayDocument::from),
            retention: settings.retention,
            paused: settings.paused,
        }
    }
}

fn type_name(text: &str) -> Result<TaskType, Problem> {
    TaskType::new(text).map_err(|error| Problem::invalid_field("type", error))
}

fn no_such_type(task_type: &TaskType) -> Problem {
    Problem::new(Code::TaskTypeNotFound, format!("task type {task_type} has no settings"))
}

/// Task types that have settings, by name.
#[utoipa::path(get, path = "/api/v1/task-types", tag = "task types", params(NameQuery), responses((status = 200, body = TypePage)))]
pub async fn list(State(engine): State<Arc<Engine>>, Args(query): Args<NameQuery>) -> Result<Json<TypePage>, Problem> {
    let (limit, after) = query.page()?;
    let settings = engine.store.settings();
    let mut items: Vec<_> = settings
        .types
        .iter()
        .filter(|(name, _)| after.as_ref().is_none_or(|after| name.as_str() > after.as_str()))
        .take(limit + 1)
        .map(|(name, settings)| TypeDocument::new(name.clone(), settings.clone()))
        .collect();
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| has_more).map(|item| item.task_type.to_string());
    Ok(Json(TypePage { items, next_cursor }))
}

/// The settings of one task type.
#[utoipa::path(get, path = "/api/v1/task-types/{type}", tag = "task types", params(("type" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = TypeDocument)))]
pub async fn get(State(engine): State<Arc<Engine>>, Path(name): Path<String>) -> Result<Json<TypeDocument>, Problem> {
    let task_type = type_name(&name)?;
    let settings = engine.store.settings().types.get(&task_type).cloned();
    settings
        .map(|settings| Json(TypeDocument::new(task_type.clone(), settings)))
        .ok_or_else(|| no_such_type(&task_type))
}

/// Changes the settings of a task type.
#[utoipa::path(put, path = "/api/v1/task-types/{type}", tag = "task types", params(("type" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    request_body = TypeChangeBody, responses((status = 200, body = TypeDocument)))]
pub async fn change(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    SettingsBody(change): SettingsBody<TypeChange>,
) -> Result<Json<TypeDocument>, Problem> {
    let task_type = type_name(&name)?;
    let settings = engine.store.change_type(task_type.clone(), change).await?;
    Ok(Json(TypeDocument::new(task_type, settings)))
}

/// Forgets the settings of a task type; its tasks stay.
#[utoipa::path(delete, path = "/api/v1/task-types/{type}", tag = "task types", params(("type" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 204, description = "The settings are gone.")))]
pub async fn clear(State(engine): State<Arc<Engine>>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let task_type = type_name(&name)?;
    match engine.store.clear_type(task_type.clone()).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(SettingsError::Unknown) => Err(no_such_type(&task_type)),
        Err(error) => Err(error.into()),
    }
}

async fn set_paused(engine: &Engine, name: &str, paused: bool) -> Result<Json<TypeDocument>, Problem> {
    let task_type = type_name(name)?;
    let change = TypeChange { paused: Field::Set(paused), ..TypeChange::default() };
    let settings = engine.store.change_type(task_type.clone(), change).await?;
    Ok(Json(TypeDocument::new(task_type, settings)))
}

/// Claims pass the type by until it is resumed.
#[utoipa::path(post, path = "/api/v1/task-types/{type}/pause", tag = "task types", params(("type" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = TypeDocument)))]
pub async fn pause(State(engine): State<Arc<Engine>>, Path(name): Path<String>) -> Result<Json<TypeDocument>, Problem> {
    set_paused(&engine, &name, true).await
}

/// Claims take tasks of the type again.
#[utoipa::path(post, path = "/api/v1/task-types/{type}/resume", tag = "task types", params(("type" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = TypeDocument)))]
pub async fn resume(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Result<Json<TypeDocument>, Problem> {
    set_paused(&engine, &name, false).await
}
