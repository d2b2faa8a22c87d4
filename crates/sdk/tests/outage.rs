//! Servers that cannot serve for a while: workers keep what they have and deliver it when they can, once.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use windlass::{Client, Method, RunningWorker, TaskResult, Worker, task};
use windlass_core::event::NoObserver;
use windlass_core::store::Store;
use windlass_core::time::{Clock, Timestamp};
use windlass_server::{Metrics, ServerConfig};
use windlass_testkit::{MemoryStore, Mood, ShakyStore, SharedLead, Switch};

/// For a machine on its knees.
const PATIENCE: Duration = Duration::from_secs(30);

struct RunningClock(Instant);

impl Clock for RunningClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + self.0.elapsed()
    }
}

/// Servers that share a store, each with a switch between it and the store.
async fn servers(count: u32) -> Vec<(String, Switch)> {
    let memory: Arc<dyn Store> = MemoryStore::new(Arc::new(RunningClock(Instant::now())), Arc::new(NoObserver));
    let lead = Arc::new(SharedLead::default());
    let mut servers = Vec::new();
    for number in 0..count {
        let store = ShakyStore::of_node(Arc::clone(&memory), &lead, number);
        let switch = store.switch();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = ServerConfig {
            lease: Duration::from_secs(6),
            heartbeat: Duration::from_secs(1),
            store_wait: Duration::from_millis(300),
            ..ServerConfig::default()
        };
        let metrics = Arc::new(Metrics::default());
        tokio::spawn(windlass_server::run(config, store, metrics, listener, std::future::pending()));
        servers.push((url, switch));
    }
    servers
}

/// Handlers that ran, by the test that counts them.
static RAN: AtomicU32 = AtomicU32::new(0);

#[task]
async fn nap(millis: u64) -> TaskResult<u32> {
    sleep(Duration::from_millis(millis)).await;
    Ok(RAN.fetch_add(1, Ordering::SeqCst) + 1)
}

#[task]
async fn quick() -> TaskResult<()> {
    Ok(())
}

async fn started(worker: Worker) -> RunningWorker {
    worker.shutdown_timeout(Duration::from_secs(5)).start().await.unwrap()
}

async fn until_executing(client: &Client, id: &str) {
    let begun = Instant::now();
    while client.task(id.to_owned()).await.unwrap().status != windlass::Status::Executing {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(10)).await;
    }
}

async fn history(client: &Client, id: &str) -> Vec<String> {
    let path = format!("/api/v1/tasks/{id}?include=history");
    let task = client.call(Method::Get, &path, None).await.unwrap();
    let kind = |event: &Value| event["kind"].as_str().unwrap_or_default().to_owned();
    task["history"].as_array().unwrap().iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_delivered_once_whatever_the_store_did_meanwhile() {
    for mood in [Mood::Refuses, Mood::LosesAnswers, Mood::Hangs] {
        let servers = servers(1).await;
        let (url, switch) = &servers[0];
        let client = Client::connect(&**url).await.unwrap();
        let worker = started(Worker::new(&client).handle::<nap>()).await;
        let ran_before = RAN.load(Ordering::SeqCst);
        let task = client.enqueue::<nap>(500u64).await.unwrap();
        until_executing(&client, task.id().as_str()).await;
        switch.set(mood);
        // The handler ends, and its result is sent in vain, more than once.
        sleep(Duration::from_secs(4)).await;
        switch.set(Mood::Serves);
        task.result_within(PATIENCE).await.unwrap();
        assert_eq!(RAN.load(Ordering::SeqCst) - ran_before, 1, "{mood:?}: it ran once");
        let view = client.task(task.id().clone()).await.unwrap();
        assert_eq!(view.attempt, 1, "{mood:?}");
        let history = history(&client, task.id().as_str()).await;
        assert_eq!(history.iter().filter(|kind| *kind == "completed").count(), 1, "{mood:?}: {history:?}");
        // And the worker goes on.
        client.enqueue::<nap>(0u64).await.unwrap().result_within(PATIENCE).await.unwrap();
        worker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_store_is_left_for_another() {
    for mood in [Mood::Refuses, Mood::Hangs] {
        let servers = servers(2).await;
        let client = Client::connect(format!("{},{}", servers[0].0, servers[1].0)).await.unwrap();
        let worker = started(Worker::new(&client).handle::<quick>()).await;
        client.enqueue::<quick>(()).await.unwrap().result_within(PATIENCE).await.unwrap();
        servers[0].1.set(mood);
        let begun = Instant::now();
        let task = client.enqueue::<quick>(()).await.unwrap();
        task.result_within(PATIENCE).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(15), "{mood:?}: {:?}", begun.elapsed());
        worker.shutdown().await;
    }
}

/// When which path was called.
type Calls = Arc<Mutex<Vec<(Instant, String)>>>;

/// A server that knows workers and cannot serve them.
async fn unavailable(State(calls): State<Calls>, uri: Uri) -> Response {
    calls.lock().unwrap().push((Instant::now(), uri.path().to_owned()));
    let json = [(header::CONTENT_TYPE, "application/json")];
    if uri.path().ends_with("/register") {
        let body =
            json!({"worker_id": "w", "poll_interval_ms": 1000, "heartbeat_interval_ms": 60_000, "lease_seconds": 30});
        return (StatusCode::CREATED, json, body.to_string()).into_response();
    }
    let body = json!({"status": 503, "code": "store_unavailable", "applied": "no", "retry_after_seconds": 2});
    (StatusCode::SERVICE_UNAVAILABLE, json, body.to_string()).into_response()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_to_be_left_alone_is() {
    let calls = Calls::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(unavailable).with_state(Arc::clone(&calls));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = Client::connect(url).await.unwrap();
    let worker = started(Worker::new(&client).handle::<quick>()).await;
    let polls = || -> Vec<Instant> {
        let calls = calls.lock().unwrap();
        calls.iter().filter(|(_, path)| path.ends_with("/poll")).map(|(at, _)| *at).collect()
    };
    let begun = Instant::now();
    while polls().len() < 3 {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50)).await;
    }
    for pair in polls().windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(1_990), "{:?}", pair[1] - pair[0]);
    }
    worker.shutdown().await;
}
