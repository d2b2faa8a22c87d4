//! Task types: their settings.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::settings::{Field, Retention, TypeChange, TypeSettings};
use windlass_core::store::SettingsError;

use super::queues::NameQuery;
use super::settings_body::SettingsBody;
use crate::document::seconds;
use crate::engine::Engine;
use crate::path::Path;
use crate::problem::{Code, Problem};
use crate::query::Args;

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
