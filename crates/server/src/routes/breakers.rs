//! Breakers: how they stand, and a person's hand on them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::breaker::{self, Forced, Scope};
use windlass_core::names::TaskType;
use windlass_core::time::Timestamp;

use super::worker_id;
use crate::engine::Engine;
use crate::path::Path;
use crate::problem::{Code, Problem};

/// A breaker.
#[derive(Serialize, ToSchema)]
#[schema(as = Breaker)]
pub struct BreakerView {
    /// What it guards: `type` or `worker`.
    scope: &'static str,
    /// The name of the type or the id of the worker.
    name: String,
    /// `closed`, `half_open` (one task is tried) or `open`.
    state: &'static str,
    /// What a person decided: `open` or `closed`; null while it is left to itself.
    #[schema(value_type = Option<String>)]
    forced: Option<Forced>,
    /// Since when it is so.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// When one task is tried.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Why it is not closed.
    reason: Option<String>,
    /// Attempts of a type that ended in its window.
    attempts: u32,
    /// Those that failed.
    failures: u32,
}

impl From<breaker::View> for BreakerView {
    fn from(view: breaker::View) -> Self {
        let by_hand = match view.forced {
            Some(Forced::Open) => Some("a person forced it open".to_owned()),
            Some(Forced::Closed) => Some("a person forced it closed".to_owned()),
            None => None,
        };
        Self {
            scope: view.scope.kind(),
            name: view.scope.name(),
            state: view.state.as_str(),
            forced: view.forced,
            since: view.since,
            until: view.until,
            reason: by_hand.or(view.reason),
            attempts: view.figures.attempts,
            failures: view.figures.failures,
        }
    }
}

/// All breakers that are not closed, were forced, or have counted attempts lately.
#[derive(Serialize, ToSchema)]
pub struct BreakerPage {
    items: Vec<BreakerView>,
    /// Always null: the list is whole.
    next_cursor: Option<String>,
}

/// How the breakers stand, ordered by scope and name.
#[utoipa::path(get, path = "/api/v1/breakers", tag = "breakers", responses((status = 200, body = BreakerPage)))]
pub async fn list(State(engine): State<Arc<Engine>>) -> Result<Json<BreakerPage>, Problem> {
    let mut views = engine.store.breakers().await?;
    views.sort_by(|a, b| a.scope.cmp(&b.scope));
    Ok(Json(BreakerPage { items: views.into_iter().map(BreakerView::from).collect(), next_cursor: None }))
}

/// Forces a breaker open or closed, or leaves it to itself again.
#[utoipa::path(post, path = "/api/v1/breakers/{scope}/{name}/{verb}", tag = "breakers",
    params(("scope" = String, Path, description = "`type` (or `task_type`) or `worker`"),
        ("name" = String, Path, description = "The task type, or the id of the worker"),
        ("verb" = String, Path, description = "`open`, `close` or `auto`")),
    responses((status = 200, body = BreakerView)))]
pub async fn force(
    State(engine): State<Arc<Engine>>,
    Path((scope, name, verb)): Path<(String, String, String)>,
) -> Result<Json<BreakerView>, Problem> {
    let (scope, forced) = (guarded(&scope, &name)?, forced(&verb)?);
    Ok(Json(engine.store.force_breaker(scope, forced).await?.into()))
}

fn guarded(scope: &str, name: &str) -> Result<Scope, Problem> {
    match scope {
        "type" | "task_type" => {
            TaskType::new(name).map(Scope::Type).map_err(|error| Problem::invalid_field("name", error))
        }
        "worker" => worker_id(name).map(Scope::Worker),
        _ => {
            let detail = format!("'{}' is no scope of a breaker; take type or worker", scope.escape_debug());
            Err(Problem::new(Code::BreakerNotFound, detail))
        }
    }
}

fn forced(verb: &str) -> Result<Option<Forced>, Problem> {
    match verb {
        "open" => Ok(Some(Forced::Open)),
        "close" => Ok(Some(Forced::Closed)),
        "auto" => Ok(None),
        _ => {
            let detail = format!("'{}' cannot be done to a breaker; take open, close or auto", verb.escape_debug());
            Err(Problem::new(Code::BreakerNotFound, detail))
        }
    }
}
