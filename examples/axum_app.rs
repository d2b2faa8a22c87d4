//! A web application with its background work in the same process: no server, no broker, one folder.
//!
//! `cargo run --bin axum-app`, then:
//!
//! ```sh
//! curl -s -X POST http://127.0.0.1:3000/thumbnails -H 'content-type: application/json' -d '{"image": "cat.png"}'
//! curl -s http://127.0.0.1:3000/thumbnails/ID
//! ```
//!
//! Ctrl-C lets what runs finish. Kill it instead: what was accepted is done after the next start.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::{Client, TaskResult, Worker, task};

#[derive(Debug, Serialize, Deserialize)]
struct Thumbnail {
    image: String,
}

#[task(max_retries = 3)]
async fn make_thumbnail(thumbnail: Thumbnail) -> TaskResult<String> {
    // Stands for the work.
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(format!("thumb-{}", thumbnail.image))
}

type Refusal = (StatusCode, String);

fn unavailable(error: &windlass::Error) -> Refusal {
    match error.code() {
        Some("task_not_found") => (StatusCode::NOT_FOUND, error.to_string()),
        _ => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// 202: the work is on disk before this answers, and will be done whatever happens to this process.
async fn submit(
    State(client): State<Client>,
    Json(thumbnail): Json<Thumbnail>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let task = client.enqueue::<make_thumbnail>(thumbnail).await.map_err(|error| unavailable(&error))?;
    Ok((StatusCode::ACCEPTED, Json(json!({"id": task.id()}))))
}

async fn look(State(client): State<Client>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let task = client.task(id).await.map_err(|error| unavailable(&error))?;
    Ok(Json(json!({"status": task.status, "thumbnail": task.result})))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let client = Client::connect("sqlite:axum-app-data").await?;
    // Heavy work has slots of its own: at most two thumbnails at once, whatever else there is to do.
    let worker = Worker::new(&client).handle_limited::<make_thumbnail>(2).start().await?;

    let app = Router::new()
        .route("/thumbnails", post(submit))
        .route("/thumbnails/{id}", get(look))
        .with_state(client.clone());
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async {
        // Without a signal handler the process simply ends, which loses nothing either.
        let _ = tokio::signal::ctrl_c().await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    worker.shutdown().await;
    client.close().await;
    Ok(())
}
