//! A store that is away: every call is answered soon and says what may have happened, and all is well when it is back.

mod common;

use std::time::Duration;

use common::{Answer, Client, Server, start_shaky};
use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_server::ServerConfig;
use windlass_testkit::{Mood, Switch};

const STORE_WAIT: Duration = Duration::from_millis(300);
/// Far less than anybody would take for a hang, and enough for a busy machine.
const SOON: Duration = Duration::from_secs(5);

async fn start() -> (Server, Switch) {
    start_shaky(ServerConfig { store_wait: STORE_WAIT, ..ServerConfig::default() }).await
}

#[track_caller]
fn unavailable(answer: &Answer, applied: &str) {
    answer.refused(503, "store_unavailable");
    assert_eq!(answer.body["applied"], applied, "{}", answer.text);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

async fn submit(client: &mut Client, key: &str) -> Answer {
    client.json("POST", "/api/v1/tasks", &json!({"task_type": "t", "idempotency_key": key})).await
}

fn poll_body(wait_ms: u64) -> Value {
    json!({"available_capacity": 1, "wait_ms": wait_ms})
}

#[tokio::test]
async fn a_store_that_refuses_is_told_and_comes_back() {
    let (server, switch) = start().await;
    let mut client = Client::new(&server).await;
    switch.set(Mood::Refuses);
    unavailable(&submit(&mut client, "a").await, "no");
    unavailable(&client.get("/api/v1/tasks").await, "no");
    let ready = client.get("/readyz").await.ok(503);
    assert_eq!(ready, json!({"ready": false, "store": "switched off", "serving": "ok"}));
    client.get("/healthz").await.ok(200);
    let metrics = client.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.text.contains(r#"windlass_store_errors_total{store="memory",op="submit"} 1"#), "{}", metrics.text);
    switch.set(Mood::Serves);
    client.get("/readyz").await.ok(200);
    submit(&mut client, "a").await.ok(201);
    assert!(client.get("/metrics").await.text.contains("windlass_queue_depth"));
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_may_have_happened() {
    let (server, switch) = start().await;
    let mut client = Client::new(&server).await;
    switch.set(Mood::LosesAnswers);
    unavailable(&submit(&mut client, "a").await, "unknown");
    switch.set(Mood::Serves);
    assert_eq!(submit(&mut client, "a").await.ok(200)["deduplicated"], true);
}

#[tokio::test]
async fn a_store_that_hangs_is_not_waited_for() {
    let (server, switch) = start().await;
    let mut client = Client::new(&server).await;
    let id = client.submit(&json!({"task_type": "t"})).await;
    switch.set(Mood::Hangs);
    let begun = Instant::now();
    unavailable(&submit(&mut client, "a").await, "unknown");
    unavailable(&client.get(&format!("/api/v1/tasks/{id}")).await, "no");
    let ready = client.get("/readyz").await.ok(503);
    assert_eq!(ready["store"], "no answer within 0.3 s");
    client.get("/healthz").await.ok(200);
    assert_eq!(client.get("/metrics").await.status, 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    switch.set(Mood::Serves);
    client.get("/readyz").await.ok(200);
    submit(&mut client, "a").await.ok(201);
}

#[tokio::test]
async fn not_too_many_wait_for_a_store_that_hangs() {
    let config = ServerConfig { store_wait: Duration::from_secs(10), max_store_calls: 1, ..ServerConfig::default() };
    let (server, switch) = start_shaky(config).await;
    let (mut first, mut second) = (Client::new(&server).await, Client::new(&server).await);
    let worker = second.register().await;
    switch.set(Mood::Hangs);
    let waits = tokio::spawn(async move { submit(&mut first, "a").await });
    // The first is on its way; until it has arrived, the others are the ones that wait.
    let refused = loop {
        let asked = tokio::time::timeout(Duration::from_millis(200), second.get("/api/v1/tasks")).await;
        match asked {
            Ok(answer) => break answer,
            Err(_) => second = Client::new(&server).await,
        }
    };
    unavailable(&refused, "no");
    assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("as many calls")), "{}", refused.text);
    // Workers have room of their own: this one waits, and is not refused.
    let path = format!("/internal/workers/{worker}/heartbeat");
    let beat = tokio::time::timeout(Duration::from_millis(300), second.json("POST", &path, &json!({}))).await;
    assert!(beat.is_err(), "a heartbeat finds a place");
    switch.set(Mood::Serves);
    waits.abort();
}

#[tokio::test]
async fn long_polls_end_cleanly() {
    let (server, switch) = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let id = client.submit(&json!({"task_type": "t", "delay_seconds": 600})).await;
    let poll = format!("/internal/workers/{worker}/poll");
    let wait = format!("/api/v1/tasks/{id}?wait=60");
    let (mut polling, mut waiting) = (Client::new(&server).await, Client::new(&server).await);
    let off = async {
        // Both requests must be on their way before the store goes.
        tokio::time::sleep(Duration::from_millis(200)).await;
        switch.set(Mood::Refuses);
    };
    let (long, begun) = (poll_body(60_000), Instant::now());
    let (polled, waited, ()) = tokio::join!(polling.json("POST", &poll, &long), waiting.get(&wait), off);
    unavailable(&polled, "no");
    unavailable(&waited, "no");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    switch.set(Mood::Serves);
    client.get("/readyz").await.ok(200);
    until_polls_wait(&mut polling, &poll).await;
    // A store that hangs says nothing, and is noticed all the same.
    let hang = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        switch.set(Mood::Hangs);
    };
    let begun = Instant::now();
    let (polled, waited, ()) = tokio::join!(polling.json("POST", &poll, &long), waiting.get(&wait), hang);
    unavailable(&polled, "no");
    unavailable(&waited, "no");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    switch.set(Mood::Serves);
    until_polls_wait(&mut polling, &poll).await;
    client.submit(&json!({"task_type": "t"})).await;
    let polled = polling.json("POST", &poll, &poll_body(10_000)).await.ok(200);
    assert_eq!(polled["tasks"].as_array().map(Vec::len), Some(1));
}

/// The server notices within a moment that its store is back.
async fn until_polls_wait(client: &mut Client, poll: &str) {
    let begun = Instant::now();
    while client.json("POST", poll, &poll_body(10)).await.status != 200 {
        assert!(begun.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
