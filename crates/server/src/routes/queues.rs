//! Queues: settings and how they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::limits;
use windlass_core::names::QueueName;
use windlass_core::policy::{Band, DEFAULT_OVERDUE_SHARE, PolicyKind};
use windlass_core::rate::RateLimit;
use windlass_core::settings::{Field, QueueChange, QueueSettings, Retention};
use windlass_core::store::{QueueStats, SettingsError};
use windlass_core::time::Timestamp;

use super::settings_body::SettingsBody;
use crate::document::seconds;
use crate::engine::Engine;
use crate::path::Path;
use crate::problem::{Code, Problem};
use crate::query::{Args, page_limit, read};

/// Bounds of a queue's depth.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct DepthDocument {
    /// Above this only `high` and better is taken.
    soft: u64,
    /// Above this nothing is.
    hard: u64,
}

/// A rate: at most `count` in `per_seconds`, and `burst` at once after a pause.
#[derive(Serialize, ToSchema)]
#[schema(as = RateLimit)]
pub struct RateDocument {
    #[schema(minimum = 1, maximum = 1_000_000)]
    count: u32,
    /// 1 unless given.
    #[serde(serialize_with = "crate::number::plain")]
    #[schema(minimum = 0.001, maximum = 86_400, required = false)]
    per_seconds: f64,
    /// What a twentieth of a second allows, and at least one, unless given.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<u32>,
}

impl From<RateLimit> for RateDocument {
    fn from(limit: RateLimit) -> Self {
        Self { count: limit.count, per_seconds: limit.per_seconds, burst: limit.burst }
    }
}

/// A queue with its settings (defaults filled in) and how it stands.
#[derive(Serialize, ToSchema)]
#[schema(as = Queue)]
pub struct QueueDocument {
    #[schema(value_type = String)]
    name: QueueName,
    #[schema(value_type = String)]
    policy: PolicyKind,
    /// Offsets in seconds that differ from the defaults.
    offsets: BTreeMap<String, i64>,
    #[serde(serialize_with = "crate::number::plain")]
    overdue_share: f64,
    /// Shares of the bands `high` (7 to 9), `medium` (4 to 6) and `low` (0 to 3) where the policy is `weighted`.
    weights: BTreeMap<&'static str, u32>,
    /// Weights of tenants where the policy is `fair`; 1 for those not named.
    tenant_weights: BTreeMap<String, u32>,
    /// How many of its tasks may run at once; null for as many as there is room for.
    concurrency: Option<u32>,
    /// How fast its tasks may start.
    rate_limit: Option<RateDocument>,
    /// How fast each tenant may submit.
    tenant_rate_limit: Option<RateDocument>,
    /// How many lanes may have tasks.
    max_lanes: usize,
    depth: DepthDocument,
    #[serde(serialize_with = "crate::number::plain_within")]
    #[schema(value_type = Option<Object>)]
    retention: Option<Retention>,
    paused: bool,
    /// Tasks that are ready.
    queued: u64,
    /// Tasks that wait for a time.
    scheduled: u64,
    /// Tasks that run.
    executing: u64,
    /// How long the oldest ready task has waited.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    oldest_age_seconds: Option<f64>,
}

/// A change of a queue's settings: what is named is replaced, `null` clears, the rest stays.
#[derive(ToSchema)]
#[schema(as = QueueChange)]
#[allow(dead_code, reason = "describes a type of the core for readers of the API")]
pub struct QueueChangeBody {
    /// `aging`, `strict`, `weighted` or `fair`.
    policy: Option<String>,
    offsets: Option<BTreeMap<String, i64>>,
    overdue_share: Option<f64>,
    /// 1 to 1,000 for `high`, `medium` and `low`; those not named keep their default (70, 20, 10).
    weights: Option<BTreeMap<String, u32>>,
    /// 1 to 1,000 by tenant.
    tenant_weights: Option<BTreeMap<String, u32>>,
    #[schema(minimum = 1, maximum = 1_000_000)]
    concurrency: Option<u32>,
    rate_limit: Option<RateDocument>,
    tenant_rate_limit: Option<RateDocument>,
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_lanes: Option<u32>,
    depth: Option<DepthDocument>,
    #[schema(value_type = Option<Object>)]
    retention: Option<Retention>,
    paused: Option<bool>,
}

/// One page of queues.
#[derive(Serialize, ToSchema)]
pub struct QueuePage {
    items: Vec<QueueDocument>,
    next_cursor: Option<String>,
}

/// How a list of names is read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NameQuery {
    /// 1 to 1,000; 50 unless given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

impl NameQuery {
    /// How many, and after which name.
    pub fn page(&self) -> Result<(usize, Option<String>), Problem> {
        let name = |text: &str| match QueueName::new(text) {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err("must be a next_cursor that this list gave"),
        };
        Ok((page_limit(self.limit.as_deref())?, read("cursor", self.cursor.as_deref(), name)?))
    }
}

impl QueueDocument {
    fn new(name: QueueName, settings: Option<&QueueSettings>, stats: Option<&QueueStats>, now: Timestamp) -> Self {
        let unset = QueueSettings::default();
        let settings = settings.unwrap_or(&unset);
        let depth = settings.depth.unwrap_or_default();
        let sum = |counts: fn(&QueueStats) -> &[u64; 10]| stats.map_or(0, |stats| counts(stats).iter().sum());
        let oldest = stats.and_then(|stats| stats.oldest_ready_at.iter().flatten().min().copied());
        Self {
            name,
            policy: settings.policy.unwrap_or_default(),
            offsets: settings.offsets.clone().unwrap_or_default(),
            overdue_share: settings.overdue_share.unwrap_or(DEFAULT_OVERDUE_SHARE),
            weights: Band::ALL.into_iter().map(Band::as_str).zip(settings.claim_policy().weights).collect(),
            tenant_weights: settings.tenant_weights.clone().unwrap_or_default(),
            concurrency: settings.concurrency,
            rate_limit: settings.rate_limit.map(RateDocument::from),
            tenant_rate_limit: settings.tenant_rate_limit.map(RateDocument::from),
            max_lanes: settings.max_lanes.map_or(limits::LANES_PER_QUEUE, |lanes| lanes as usize),
            depth: DepthDocument { soft: depth.soft, hard: depth.hard },
            retention: settings.retention,
            paused: settings.paused,
            queued: sum(|stats| &stats.queued),
            scheduled: sum(|stats| &stats.scheduled),
            executing: sum(|stats| &stats.executing),
            oldest_age_seconds: oldest.map(|oldest| seconds(now.since(oldest))),
        }
    }
}

/// A queue name from a path. One that breaks the rule names no queue that can be.
fn queue_name(text: &str) -> Result<QueueName, Problem> {
    QueueName::new(text).map_err(|error| Problem::invalid_field("name", error))
}

/// Queues with settings or live tasks, by name.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues", params(NameQuery), responses((status = 200, body = QueuePage)))]
pub async fn list(State(engine): State<Arc<Engine>>, Args(query): Args<NameQuery>) -> Result<Json<QueuePage>, Problem> {
    let (limit, after) = query.page()?;
    let (settings, stats, now) = (engine.store.settings(), engine.store.stats().await?, engine.store.now());
    let mut names: BTreeSet<_> = settings.queues.keys().chain(stats.queues.keys()).collect();
    names.insert(&engine.default_queue);
    let mut items: Vec<_> = names
        .into_iter()
        .filter(|name| after.as_ref().is_none_or(|after| name.as_str() > after.as_str()))
        .take(limit + 1)
        .map(|name| QueueDocument::new(name.clone(), settings.queues.get(name), stats.queues.get(name), now))
        .collect();
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| has_more).map(|queue| queue.name.to_string());
    Ok(Json(QueuePage { items, next_cursor }))
}

async fn document(engine: &Engine, name: QueueName) -> Result<QueueDocument, Problem> {
    let (settings, stats) = (engine.store.settings(), engine.store.stats().await?);
    let (of_queue, stats) = (settings.queues.get(&name), stats.queues.get(&name));
    if of_queue.is_none() && stats.is_none() && name != engine.default_queue {
        return Err(Problem::new(Code::QueueNotFound, format!("queue {name} has neither settings nor live tasks")));
    }
    Ok(QueueDocument::new(name, of_queue, stats, engine.store.now()))
}

/// One queue.
#[utoipa::path(get, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = QueueDocument)))]
pub async fn get(State(engine): State<Arc<Engine>>, Path(name): Path<String>) -> Result<Json<QueueDocument>, Problem> {
    document(&engine, queue_name(&name)?).await.map(Json)
}

/// Changes a queue's settings.
#[utoipa::path(put, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")), request_body = QueueChangeBody,
    responses((status = 200, body = QueueDocument)))]
pub async fn change(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    SettingsBody(change): SettingsBody<QueueChange>,
) -> Result<Json<QueueDocument>, Problem> {
    let name = queue_name(&name)?;
    engine.store.change_queue(name.clone(), change).await?;
    document(&engine, name).await.map(Json).map_err(Problem::maybe_applied)
}

/// Forgets a queue's settings; its tasks stay.
#[utoipa::path(delete, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 204, description = "The settings are gone.")))]
pub async fn clear(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Result<axum::http::StatusCode, Problem> {
    let name = queue_name(&name)?;
    match engine.store.clear_queue(name.clone()).await {
        Ok(()) => Ok(axum::http::StatusCode::NO_CONTENT),
        Err(SettingsError::Unknown) => Err(Problem::new(Code::QueueNotFound, format!("queue {name} has no settings"))),
        Err(error) => Err(error.into()),
    }
}

async fn set_paused(engine: &Engine, name: &str, paused: bool) -> Result<Json<QueueDocument>, Problem> {
    let name = queue_name(name)?;
    let change = QueueChange { paused: Field::Set(paused), ..QueueChange::default() };
    engine.store.change_queue(name.clone(), change).await?;
    document(engine, name).await.map(Json).map_err(Problem::maybe_applied)
}

/// Claims pass the queue by until it is resumed.
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", tag = "queues", params(("name" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = QueueDocument)))]
pub async fn pause(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Result<Json<QueueDocument>, Problem> {
    set_paused(&engine, &name, true).await
}

/// Claims take from the queue again.
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", tag = "queues", params(("name" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")),
    responses((status = 200, body = QueueDocument)))]
pub async fn resume(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Result<Json<QueueDocument>, Problem> {
    set_paused(&engine, &name, false).await
}
