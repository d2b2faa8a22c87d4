//! Health, metrics and the description of the API.

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::Engine;
use crate::problem::Problem;
use crate::scrape;

/// Whether the process serves.
#[derive(Serialize, ToSchema)]
pub struct HealthDocument {
    status: &'static str,
}

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = HealthDocument)))]
pub async fn healthz() -> Json<HealthDocument> {
    Json(HealthDocument { status: "ok" })
}

/// Whether this node should get requests, check by check.
#[derive(Serialize, ToSchema)]
pub struct ReadyDocument {
    ready: bool,
    /// `ok`, or what is wrong with the store.
    store: String,
    /// `ok`, or `draining` while the server shuts down.
    serving: &'static str,
}

/// Whether the store can be reached and the server is not shutting down.
#[utoipa::path(get, path = "/readyz", tag = "system", responses((status = 200, body = ReadyDocument), (status = 503, body = ReadyDocument)))]
pub async fn readyz(State(engine): State<Arc<Engine>>) -> (StatusCode, Json<ReadyDocument>) {
    let store = engine.store.check().await;
    let ready = store.is_ok() && !engine.is_closing();
    let document = ReadyDocument {
        ready,
        store: store.map_or_else(|error| error.reason, |()| "ok".to_owned()),
        serving: if engine.is_closing() { "draining" } else { "ok" },
    };
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(document))
}

/// All metrics (OpenMetrics text).
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, content_type = "application/openmetrics-text", body = String)))]
pub async fn metrics(State(engine): State<Arc<Engine>>) -> Result<impl IntoResponse, Problem> {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], scrape::scrape(&engine).await?))
}

/// Written once: the document never changes while a process runs.
static OPENAPI: LazyLock<Bytes> = LazyLock::new(|| serde_json::to_vec(&super::openapi()).unwrap_or_default().into());

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "system", responses((status = 200, content_type = "application/json", body = Object)))]
pub async fn openapi_json() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI.clone())
}

/// Where to go from here.
#[derive(Serialize, ToSchema)]
pub struct RootDocument {
    name: &'static str,
    version: &'static str,
    openapi: &'static str,
    health: &'static str,
    metrics: &'static str,
}

/// What this is and where to look next.
#[utoipa::path(get, path = "/", tag = "system", responses((status = 200, body = RootDocument)))]
pub async fn root() -> Json<RootDocument> {
    Json(RootDocument {
        name: "windlass",
        version: env!("CARGO_PKG_VERSION"),
        openapi: "/openapi.json",
        health: "/readyz",
        metrics: "/metrics",
    })
}
