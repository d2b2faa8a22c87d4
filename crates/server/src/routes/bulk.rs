//! Calls that change every task a filter matches.
//!
//! The matches are collected first and then changed in slices, the oldest first: a check of
//! all of them comes before any change, and a replay keeps the order of submits.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::actor::Actor;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskId;
use windlass_core::limits;
use windlass_core::names::{TaskType, cut};
use windlass_core::priority::Priority;
use windlass_core::settings::REPLAY_RATE;
use windlass_core::status::Status;
use windlass_core::store::Requeue;
use windlass_core::task::Task;

use super::filters::FilterFields;
use super::task_actions::why;
use crate::engine::Engine;
use crate::json_body::JsonBody;
use crate::pacing::paced;
use crate::problem::Problem;

/// Tasks changed in one transaction: a few milliseconds of the store's writer.
const SLICE: usize = 500;

/// A body that names tasks of the list by filter; whether it needs a reason differs.
macro_rules! tasks_body {
    ($(#[$about:meta])* $name:ident, $reason:ty) => {
        $(#[$about])*
        #[derive(Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// One status or several, with commas; tasks that it cannot apply to are never matched.
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
            /// At most this many, the newest.
            #[schema(minimum = 1)]
            limit: Option<usize>,
            /// Count only.
            #[serde(default)]
            dry_run: bool,
            /// Required if no filter is given.
            #[serde(default)]
            confirm: bool,
            /// Why, for the record.
            #[allow(dead_code, reason = "a cancellation keeps none yet")]
            reason: $reason,
        }

        impl $name {
            /// The filter, for tasks of these statuses only; nothing if it names none of them.
            fn filter(&self, applies_to: impl Fn(Status) -> bool) -> Result<Option<TaskFilter>, Problem> {
                let fields = FilterFields {
                    status: self.status.clone(),
                    queue: self.queue.clone(),
                    task_type: self.task_type.clone(),
                    priority: self.priority.map(|priority| priority.to_string()),
                    tenant: self.tenant.clone(),
                    tag: self.tag.clone(),
                    worker_id: self.worker_id.clone(),
                    created_after: self.created_after.clone(),
                    created_before: self.created_before.clone(),
                    error_code: self.error_code.clone(),
                    parameter: self.parameter.clone(),
                    q: self.q.clone(),
                    ..FilterFields::default()
                };
                let filter = checked(&fields, self.limit, self.dry_run || self.confirm)?;
                let wanted = |status: &Status| applies_to(*status) && filter.allows_status(*status);
                let statuses: Vec<_> = Status::ALL.into_iter().filter(wanted).collect();
                // An empty list of statuses would match all of them.
                Ok((!statuses.is_empty()).then_some(TaskFilter { statuses, ..filter }))
            }
        }
    };
}

tasks_body!(
    /// Which tasks to cancel.
    CancelManyBody,
    Option<String>
);
tasks_body!(
    /// Which waiting tasks to take out of the flow, and why.
    DeadLetterManyBody,
    String
);

/// Which dead letters to replay or discard.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersBody {
    queue: Option<String>,
    task_type: Option<String>,
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    priority: Option<Priority>,
    tenant: Option<String>,
    /// `key:value`.
    tag: Option<String>,
    error_code: Option<String>,
    class: Option<String>,
    dead_reason: Option<String>,
    /// Given up before.
    before: Option<String>,
    /// Given up at or after.
    after: Option<String>,
    q: Option<String>,
    /// At most this many, the newest.
    #[schema(minimum = 1)]
    limit: Option<usize>,
    /// Replay only: how many start per second, the oldest first, from 0.001 to 100,000; all at once unless given. The
    /// pace is kept as start times of the tasks, so it survives a restart.
    #[schema(minimum = 0.001, maximum = 100_000)]
    rate_per_second: Option<f64>,
    /// Replay only: a new priority for all of them.
    #[schema(schema_with = crate::document::priority_schema, required = false)]
    new_priority: Option<Priority>,
    /// Count only.
    #[serde(default)]
    dry_run: bool,
    /// Required if no filter is given, and to replay tasks of a type that is marked as sensitive.
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

/// What a bulk dead-lettering did.
#[derive(Serialize, ToSchema)]
pub struct DeadLetteredMany {
    /// How many the filter matched, up to the limit.
    matched: usize,
    /// How many were dead-lettered; fewer if some started meanwhile.
    dead_lettered: usize,
}

/// What a bulk replay did.
#[derive(Serialize, ToSchema)]
pub struct ReplayedMany {
    /// How many the filter matched, up to the limit.
    matched: usize,
    /// How many were replayed; fewer if the unique key of some is another task's now.
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
    let Some(filter) = body.filter(|status| !status.is_ended())? else {
        return Ok(Json(CancelledMany { matched: 0, cancelled: 0 }));
    };
    let ids = matches(&engine, filter, body.limit, |_| Ok(())).await?;
    let cancelled = if body.dry_run { 0 } else { Deed::Cancel.apply(&engine, &ids).await? };
    Ok(Json(CancelledMany { matched: ids.len(), cancelled }))
}

/// Takes every waiting task that matches out of the flow.
#[utoipa::path(post, path = "/api/v1/tasks/dead-letter", tag = "tasks", request_body = DeadLetterManyBody,
    responses((status = 200, body = DeadLetteredMany)))]
pub async fn dead_letter_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<DeadLetterManyBody>,
) -> Result<Json<DeadLetteredMany>, Problem> {
    let waits = |status: Status| !status.is_ended() && status != Status::Executing;
    let deed = Deed::Bury(why(body.reason.clone())?);
    let Some(filter) = body.filter(waits)? else {
        return Ok(Json(DeadLetteredMany { matched: 0, dead_lettered: 0 }));
    };
    let ids = matches(&engine, filter, body.limit, |_| Ok(())).await?;
    let dead_lettered = if body.dry_run { 0 } else { deed.apply(&engine, &ids).await? };
    Ok(Json(DeadLetteredMany { matched: ids.len(), dead_lettered }))
}

/// Replays every dead letter that matches, the oldest first. Done when it answers; with
/// `rate_per_second` every task has its start time then.
#[utoipa::path(post, path = "/api/v1/dlq/replay", tag = "dlq", request_body = DeadLettersBody,
    responses((status = 200, body = ReplayedMany)))]
pub async fn replay_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<DeadLettersBody>,
) -> Result<Json<ReplayedMany>, Problem> {
    let filter = body.filter()?;
    let replay = Replay { rate: body.rate()?, priority: body.new_priority, note: body.note() };
    let settings = engine.store.settings();
    let may_go = body.confirm || body.dry_run;
    let check = |task: &Task| {
        let task_type = &task.spec.task_type;
        if may_go || !settings.is_sensitive(task_type) { Ok(()) } else { Err(unconfirmed(task_type)) }
    };
    let ids = matches(&engine, filter, body.limit, check).await?;
    let replayed = if body.dry_run { 0 } else { Deed::Replay(replay).apply(&engine, &ids).await? };
    Ok(Json(ReplayedMany { matched: ids.len(), replayed }))
}

/// Gives up every dead letter that matches.
#[utoipa::path(post, path = "/api/v1/dlq/discard", tag = "dlq", request_body = DeadLettersBody,
    responses((status = 200, body = DiscardedMany)))]
pub async fn discard_many(
    State(engine): State<Arc<Engine>>,
    JsonBody(body): JsonBody<DeadLettersBody>,
) -> Result<Json<DiscardedMany>, Problem> {
    let only_replay = "is for a replay only";
    if body.rate_per_second.is_some() {
        return Err(Problem::invalid_field("rate_per_second", only_replay));
    }
    if body.new_priority.is_some() {
        return Err(Problem::invalid_field("new_priority", only_replay));
    }
    let ids = matches(&engine, body.filter()?, body.limit, |_| Ok(())).await?;
    let discarded = if body.dry_run { 0 } else { Deed::Discard(body.note()).apply(&engine, &ids).await? };
    Ok(Json(DiscardedMany { matched: ids.len(), discarded }))
}

/// The refusal of a replay that must be confirmed.
pub fn unconfirmed(task_type: &TaskType) -> Problem {
    let rule = format_args!("must be true to replay tasks of type {task_type}, which is marked as sensitive");
    Problem::invalid_field("confirm", rule)
}

impl DeadLettersBody {
    fn filter(&self) -> Result<TaskFilter, Problem> {
        let fields = FilterFields {
            queue: self.queue.clone(),
            task_type: self.task_type.clone(),
            priority: self.priority.map(|priority| priority.to_string()),
            tenant: self.tenant.clone(),
            tag: self.tag.clone(),
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

    fn rate(&self) -> Result<Option<f64>, Problem> {
        match self.rate_per_second {
            Some(rate) if !REPLAY_RATE.contains(&rate) => {
                let (slowest, fastest) = (REPLAY_RATE.start(), REPLAY_RATE.end());
                Err(Problem::invalid_field("rate_per_second", format_args!("must be from {slowest} to {fastest}")))
            }
            rate => Ok(rate),
        }
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

/// The ids of all matches up to the limit, the oldest first. The check sees each of them
/// before anything is changed.
async fn matches(
    engine: &Engine,
    filter: TaskFilter,
    limit: Option<usize>,
    check: impl Fn(&Task) -> Result<(), Problem>,
) -> Result<Vec<TaskId>, Problem> {
    let mut ids = Vec::new();
    let mut cursor = None;
    loop {
        let room = limit.unwrap_or(usize::MAX) - ids.len();
        let page = engine.store.list(filter.clone(), room.min(limits::PAGE_ITEMS), cursor).await?;
        for task in &page.items {
            check(task)?;
            ids.push(task.id);
        }
        cursor = page.next;
        if cursor.is_none() || limit.is_some_and(|limit| ids.len() >= limit) {
            ids.reverse();
            return Ok(ids);
        }
    }
}

/// How dead letters run again.
struct Replay {
    rate: Option<f64>,
    priority: Option<Priority>,
    note: Option<String>,
}

impl Replay {
    fn wish(&self, index: usize, task: TaskId) -> Requeue {
        Requeue {
            task,
            only_dead: true,
            reset_retries: true,
            priority: self.priority,
            parameters: None,
            delay: self.rate.map_or(Duration::ZERO, |rate| paced(index, rate)),
            by_rule: false,
            note: self.note.clone(),
        }
    }
}

/// What is done to each match.
enum Deed {
    Cancel,
    Bury(String),
    Replay(Replay),
    Discard(Option<String>),
}

impl Deed {
    /// Does it, slice by slice; says for how many it came off.
    async fn apply(&self, engine: &Engine, ids: &[TaskId]) -> Result<usize, Problem> {
        let mut done = 0;
        for (number, slice) in ids.chunks(SLICE).enumerate() {
            let applied = self.apply_slice(engine, number * SLICE, slice.to_vec()).await;
            // Of many slices some are done by now.
            done += applied.map_err(|problem| if number > 0 { problem.maybe_applied() } else { problem })?;
        }
        Ok(done)
    }

    async fn apply_slice(&self, engine: &Engine, first: usize, ids: Vec<TaskId>) -> Result<usize, Problem> {
        fn done<T, E>(answers: &[Result<T, E>]) -> usize {
            answers.iter().filter(|answer| answer.is_ok()).count()
        }
        let store = &engine.store;
        match self {
            Self::Cancel => Ok(done(&store.cancel(ids, Actor::Api).await?)),
            Self::Bury(note) => Ok(done(&store.bury(ids, note.clone(), Actor::Api).await?)),
            Self::Discard(note) => Ok(done(&store.discard(ids, note.clone(), Actor::Api).await?)),
            Self::Replay(replay) => {
                let wishes = ids.into_iter().enumerate().map(|(index, id)| replay.wish(first + index, id));
                Ok(done(&store.requeue(wishes.collect(), Actor::Api).await?))
            }
        }
    }
}
