//! What the dead letters have in common.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::analysis::{CauseGroup, CauseGroups, replay_looks_safe};
use windlass_core::breaker::{self, Scope};
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::names::TaskType;
use windlass_core::settings::Settings;
use windlass_core::time::Timestamp;

use super::filters::AnalysisQuery;
use crate::engine::Engine;
use crate::problem::Problem;
use crate::query::Args;

/// Dead letters that one analysis looks at, the newest: enough to see what is the matter, in about a second.
const EXAMINED: u64 = 20_000;
/// Pages that one analysis reads: with a narrow filter a page can cost much and hold little.
const PAGES: usize = 50;

/// Dead letters of the same cause.
#[derive(Serialize, ToSchema)]
pub struct CauseDocument {
    /// Null for the rest, once there are too many groups.
    #[schema(value_type = Option<String>)]
    task_type: Option<TaskType>,
    /// The class of the last failure.
    class: Option<&'static str>,
    /// Its code.
    code: Option<String>,
    /// Its message, with `#` for numbers, ids, times and addresses.
    message: String,
    /// How many.
    count: u64,
    /// When the first of them was given up.
    #[schema(value_type = String, format = DateTime)]
    first_seen: Timestamp,
    /// When the last of them was given up.
    #[schema(value_type = String, format = DateTime)]
    last_seen: Timestamp,
    /// The one given up last.
    #[schema(value_type = String, format = "uuid")]
    sample_task_id: TaskId,
    /// Why they were given up.
    dead_reasons: Vec<&'static str>,
    /// Whether the cause goes away by itself and nothing speaks against a replay: the breaker of the type is closed, the
    /// type is neither paused nor marked as sensitive.
    replay_looks_safe: bool,
}

/// Dead letters by cause.
#[derive(Serialize, ToSchema)]
pub struct AnalysisDocument {
    /// The groups, the largest first.
    groups: Vec<CauseDocument>,
    /// How many dead letters were looked at.
    examined: u64,
    /// Whether there are more that were not.
    partial: bool,
}

/// Dead letters in groups of the same type, class, code and message. Looks at the newest
/// 20,000 that match.
#[utoipa::path(get, path = "/api/v1/dlq/analysis", tag = "dlq", params(AnalysisQuery),
    responses((status = 200, body = AnalysisDocument)))]
pub async fn analysis(
    State(engine): State<Arc<Engine>>,
    Args(query): Args<AnalysisQuery>,
) -> Result<Json<AnalysisDocument>, Problem> {
    let (groups, partial) = examine(&engine, query.filter()?).await?;
    let (settings, breakers) = (engine.store.settings(), engine.store.breakers().await?);
    let states: HashMap<_, _> = breakers.into_iter().map(|view| (view.scope, view.state)).collect();
    let examined = groups.examined();
    let groups = groups.into_groups().into_iter().map(|group| CauseDocument::new(group, &states, &settings)).collect();
    Ok(Json(AnalysisDocument { groups, examined, partial }))
}

/// Looks at the newest matches; says whether there may be more.
async fn examine(engine: &Engine, filter: TaskFilter) -> Result<(CauseGroups, bool), Problem> {
    let mut groups = CauseGroups::default();
    let mut cursor = None;
    for _ in 0..PAGES {
        let room = (EXAMINED - groups.examined()) as usize;
        let page = engine.store.list(filter.clone(), room.min(limits::PAGE_ITEMS), cursor).await?;
        page.items.iter().for_each(|task| groups.add(task));
        cursor = page.next;
        if cursor.is_none() || groups.examined() >= EXAMINED {
            break;
        }
    }
    Ok((groups, cursor.is_some()))
}

impl CauseDocument {
    fn new(group: CauseGroup, states: &HashMap<Scope, breaker::State>, settings: &Settings) -> Self {
        let scope = group.task_type.clone().map(Scope::Type);
        // A breaker that nobody lists has nothing to say.
        let state = scope.and_then(|scope| states.get(&scope).copied()).unwrap_or(breaker::State::Closed);
        Self {
            replay_looks_safe: replay_looks_safe(&group, state, settings),
            task_type: group.task_type,
            class: group.class.map(windlass_core::failure::ErrorClass::as_str),
            code: group.code,
            message: group.message,
            count: group.count,
            first_seen: group.first_seen,
            last_seen: group.last_seen,
            sample_task_id: group.sample_task_id,
            dead_reasons: group.reasons.into_iter().map(windlass_core::failure::EndReason::as_str).collect(),
        }
    }
}
