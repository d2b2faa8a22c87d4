//! Calls that change every task a filter matches.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::actor::Actor;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::names::cut;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::Requeue;

use super::filters::FilterFields;
use crate::engine::Engine;
use crate::json_body::{JsonBody, NotYet};
use crate::problem::Problem;

/// Which tasks to cancel.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelManyBody {
    /// One status or several, with commas; ended tasks are never matched.
    status: Option<String>,
    queue: Option<String>,
    task_type: Option<String>,
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    priority: Option<Priority>,
    tenant: Option<String>,
    /// `key:value`.
    tag: Option<String>,
    worker_id: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
    error_code: Option<String>,
    parameter: Option<String>,
    q: Option<String>,
    /// At most this many.
    #[schema(minimum = 1)]
    limit: Option<usize>,
    /// Count only.
    #[serde(default)]
    dry_run: bool,
    /// Required if no filter is given.
    #[serde(default)]
    confirm: bool,
    /// Why, for the record.
    #[allow(dead_code, reason = "kept by the audit log of a later version")]
    reason: Option<String>,
}

/// Which dead letters to replay or discard.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersBody {
    queue: Option<String>,
    task_type: Option<String>,
    error_code: Option<String>,
    class: Option<String>,
    dead_reason: Option<String>,
    /// Given up before.
    before: Option<String>,
    /// Given up at or after.
    after: Option<String>,
    q: Option<String>,
    /// At most this many.
    #[schema(minimum = 1)]
    limit: Option<usize>,
    /// Not supported yet.
    #[serde(default)]
    #[schema(schema_with = crate::document::not_yet_schema, required = false)]
    #[allow(dead_code, reason = "refused while it is parsed")]
    rate_per_second: NotYet,
    /// Count only.
    #[serde(default)]
    dry_run: bool,
    /// Required if no filter is given.
    #[serde(default)]
    confirm: bool,
    /// Why, for the record.
    reason: Option<String>,
}

/// What a cancellation by filter did.
#[derive(Serialize, ToSchema)]
pub struct CancelledMany {
    /// How many the filter matched, up to the limit.
    matched: usize,
    /// How many were cancelled; fewer if some ended meanwhile.
    cancelled: usize,
}

/// What a bulk replay did.
#[derive(Serialize, ToSchema)]
pub struct ReplayedMany {
    /// How many the filter matched, up to the limit.
    matched: usize,
    /// How many were replayed.
    replayed: usize,
}

/// What a bulk discard did.
#[derive(Serialize, ToSchema)]
pub struct DiscardedMany {
    /// How many the filter matched, up to the limit.
    matched: usize,
    /// How many were discarded.
    discarded: usize,
}

/// Cancels every task that matches.
#[utoipa::path(post, path = "/api/v1/tasks/cancel", tag = "tasks", request_body = CancelManyBody,
    responses((status = 200, body = CancelledMany)))]
pub async fn cancel_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<CancelManyBody>,
) -> Result<Json<CancelledMany>, Problem> {
    let fields = FilterFields {
        status: body.status,
        queue: body.queue,
        task_type: body.task_type,
        priority: body.priority.map(|priority| priority.to_string()),
        tenant: body.tenant,
        tag: body.tag,
        worker_id: body.worker_id,
        created_after: body.created_after,
        created_before: body.created_before,
        error_code: body.error_code,
        parameter: body.parameter,
        q: body.q,
        ..FilterFields::default()
    };
    let mut filter = checked(&fields, body.limit, body.dry_run || body.confirm)?;
    let wanted = |status: &Status| !status.is_ended() && filter.allows_status(*status);
    let statuses: Vec<_> = Status::ALL.into_iter().filter(wanted).collect();
    if statuses.is_empty() {
        return Ok(Json(CancelledMany { matched: 0, cancelled: 0 }));
    }
    filter.statuses = statuses;
    let deed = if body.dry_run { Deed::Count } else { Deed::Cancel };
    let (matched, cancelled) = for_each(&engine, &filter, body.limit, &deed).await?;
    Ok(Json(CancelledMany { matched, cancelled }))
}

/// Replays every dead letter that matches. Done when it answers.
#[utoipa::path(post, path = "/api/v1/dlq/replay", tag = "dlq", request_body = DeadLettersBody,
    responses((status = 200, body = ReplayedMany)))]
pub async fn replay_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<DeadLettersBody>,
) -> Result<Json<ReplayedMany>, Problem> {
    let filter = body.filter()?;
    let deed = if body.dry_run { Deed::Count } else { Deed::Replay(body.note()) };
    let (matched, replayed) = for_each(&engine, &filter, body.limit, &deed).await?;
    Ok(Json(ReplayedMany { matched, replayed }))
}

/// Gives up every dead letter that matches.
#[utoipa::path(post, path = "/api/v1/dlq/discard", tag = "dlq", request_body = DeadLettersBody,
    responses((status = 200, body = DiscardedMany)))]
pub async fn discard_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<DeadLettersBody>,
) -> Result<Json<DiscardedMany>, Problem> {
    let filter = body.filter()?;
    let deed = if body.dry_run { Deed::Count } else { Deed::Discard(body.note()) };
    let (matched, discarded) = for_each(&engine, &filter, body.limit, &deed).await?;
    Ok(Json(DiscardedMany { matched, discarded }))
}

impl DeadLettersBody {
    fn filter(&self) -> Result<TaskFilter, Problem> {
        let fields = FilterFields {
            queue: self.queue.clone(),
            task_type: self.task_type.clone(),
            error_code: self.error_code.clone(),
            class: self.class.clone(),
            dead_reason: self.dead_reason.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
            q: self.q.clone(),
            ..FilterFields::default()
        };
        let filter = checked(&fields, self.limit, self.dry_run || self.confirm)?;
        Ok(TaskFilter { statuses: vec![Status::DeadLetter], ..filter })
    }

    fn note(&self) -> Option<String> {
        self.reason.clone().map(|reason| cut(reason, limits::MESSAGE_BYTES))
    }
}

/// The filter, unless it would match everything by accident.
fn checked(fields: &FilterFields, limit: Option<usize>, confirmed: bool) -> Result<TaskFilter, Problem> {
    if *fields == FilterFields::default() && !confirmed {
        return Err(Problem::invalid_field(
            "confirm",
            "must be true where no filter is given, because everything matches",
        ));
    }
    if limit == Some(0) {
        return Err(Problem::invalid_field("limit", "must be at least 1"));
    }
    fields.filter()
}

/// What is done to each match.
enum Deed {
    Count,
    Cancel,
    Replay(Option<String>),
    Discard(Option<String>),
}

impl Deed {
    /// Does it; says for how many it came off.
    async fn apply(&self, engine: &Engine, ids: Vec<TaskId>) -> Result<usize, Problem> {
        fn done<T, E>(answers: &[Result<T, E>]) -> usize {
            answers.iter().filter(|answer| answer.is_ok()).count()
        }
        let store = &engine.store;
        match self {
            Self::Count => Ok(0),
            Self::Cancel => Ok(done(&store.cancel(ids, Actor::Api).await?)),
            Self::Discard(note) => Ok(done(&store.discard(ids, note.clone(), Actor::Api).await?)),
            Self::Replay(note) => {
                let wish = |task| Requeue {
                    task,
                    only_dead: true,
                    reset_retries: true,
                    priority: None,
                    parameters: None,
                    note: note.clone(),
                };
                Ok(done(&store.requeue(ids.into_iter().map(wish).collect(), Actor::Api).await?))
            }
        }
    }
}

/// Walks over all matches page by page; counts those matched and those changed.
async fn for_each(
    engine: &Engine,
    filter: &TaskFilter,
    limit: Option<usize>,
    deed: &Deed,
) -> Result<(usize, usize), Problem> {
    let (mut matched, mut changed) = (0, 0);
    let mut cursor = None;
    loop {
        let room = limit.unwrap_or(usize::MAX) - matched;
        let page = engine.store.list(filter.clone(), room.min(limits::PAGE_ITEMS), cursor).await?;
        let ids: Vec<_> = page.items.iter().map(|task| task.id).collect();
        matched += ids.len();
        if !ids.is_empty() {
            changed += deed.apply(engine, ids).await?;
        }
        cursor = page.next;
        if cursor.is_none() || limit.is_some_and(|limit| matched >= limit) {
            return Ok((matched, changed));
        }
    }
}
