//! What looks wrong, in words.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::Engine;
use crate::findings::{self, Facts, Finding};
use crate::problem::Problem;

/// What looks wrong.
#[derive(Serialize, ToSchema)]
pub struct FindingsDocument {
    /// The findings, the most severe first; empty if all is well.
    items: Vec<Finding>,
}

/// What looks wrong, with the evidence and the next step.
///
/// Looked up when asked. What is counted over time (poison pills, broken handlers,
/// unclassified errors, the backlog) is of all nodes that share a store, and begins with the
/// start of the one that answers.
#[utoipa::path(get, path = "/api/v1/findings", tag = "system", responses((status = 200, body = FindingsDocument)))]
pub async fn findings(State(engine): State<Arc<Engine>>) -> Result<Json<FindingsDocument>, Problem> {
    let store = &engine.store;
    let (lanes, stats, workers, breakers) =
        tokio::join!(store.lanes(), store.stats(), store.workers(), store.breakers());
    let (lanes, stats, breakers, now) = (lanes?, stats?, breakers?, store.now());
    let with_status = |worker: windlass_core::worker::Worker| {
        let status = worker.status(now, engine.config.heartbeat);
        (worker, status)
    };
    let workers: Vec<_> = workers?.into_iter().map(with_status).collect();
    let facts = Facts {
        now,
        settings: &store.settings(),
        lanes: &lanes,
        stats: &stats,
        workers: &workers,
        breakers: &breakers,
        troubles: &engine.metrics.troubles(now),
        trend: engine.metrics.trend(now),
    };
    let mut items = findings::findings(&facts);
    engine.date_findings(&mut items, now);
    Ok(Json(FindingsDocument { items }))
}
