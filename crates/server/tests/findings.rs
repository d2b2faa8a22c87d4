//! What looks wrong, as the server tells it.

mod common;

use common::{Client, start};
use serde_json::{Value, json};
use windlass_core::breaker::{Forced, Scope};
use windlass_core::names::TaskType;

async fn findings(client: &mut Client) -> Vec<Value> {
    let body = client.get("/api/v1/findings").await.ok(200);
    let items = body["items"].as_array().expect("items").clone();
    for item in &items {
        for field in ["code", "severity", "title", "detail", "next_step", "since"] {
            assert!(item[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {item}");
        }
        assert!(item["evidence"].is_object(), "{item}");
    }
    items
}

fn codes(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["code"].as_str().expect("a code")).collect()
}

#[tokio::test]
async fn a_queue_without_a_capable_worker_is_found() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    assert_eq!(findings(&mut client).await, Vec::<Value>::new());
    let id = client.submit(&json!({"task_type": "t", "required_capabilities": ["gpu"]})).await;
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["no_workers"]);
    client.register().await;
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["no_capable_worker"]);
    assert_eq!((&found[0]["severity"], &found[0]["evidence"]["capability"]), (&json!("critical"), &json!("gpu")));
    assert_eq!((&found[0]["evidence"]["queue"], &found[0]["evidence"]["waiting"]), (&json!("default"), &json!(1)));
    let task = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
    assert_eq!(found[0]["since"], task["ready_at"]);
    let able = json!({"capabilities": ["gpu"]});
    client.json("POST", "/internal/workers/register", &able).await.ok(201);
    assert_eq!(findings(&mut client).await, Vec::<Value>::new());
}

#[tokio::test]
async fn paused_and_oversized_work_is_found() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    client.register().await;
    client.submit(&json!({"task_type": "t"})).await;
    client.call("POST", "/api/v1/queues/default/pause", b"").await.ok(200);
    assert_eq!(codes(&findings(&mut client).await), ["paused_with_work"]);
    client.call("POST", "/api/v1/queues/default/resume", b"").await.ok(200);
    client.json("PUT", "/api/v1/task-types/t", &json!({"slots": 11})).await.ok(200);
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["slots_too_large"]);
    assert_eq!(found[0]["evidence"]["largest_capacity"], 10);
}

#[tokio::test]
async fn forced_breakers_and_clusters_are_found_and_keep_their_time() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let scope = Scope::Type(TaskType::new("t").expect("a name"));
    server.store.force_breaker(scope.clone(), Some(Forced::Open)).await.expect("forced");
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["breaker_forced"]);
    server.store.force_breaker(scope, None).await.expect("left to itself");
    assert_eq!(findings(&mut client).await, Vec::<Value>::new());

    let tasks: Vec<_> = (0..11).map(|_| json!({"task_type": "t"})).collect();
    client.json("POST", "/api/v1/tasks/batch", &json!({"tasks": tasks})).await.ok(201);
    let all = json!({"task_type": "t", "reason": "x"});
    client.json("POST", "/api/v1/tasks/dead-letter", &all).await.ok(200);
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["dead_letter_cluster"]);
    assert_eq!(found[0]["evidence"], json!({"task_type": "t", "count": 11}));
    assert_eq!(findings(&mut client).await[0]["since"], found[0]["since"], "since it was first seen");
    client.json("POST", "/api/v1/dlq/discard", &json!({"confirm": true})).await.ok(200);
    assert_eq!(findings(&mut client).await, Vec::<Value>::new());
}

#[tokio::test]
async fn broken_handlers_and_unclassified_errors_are_found() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    for (task_type, error) in
        [("broken", json!({"message": "no field", "code": "panic"})), ("odd", json!({"message": "hm"}))]
    {
        client.submit(&json!({"task_type": task_type, "max_retries": 0})).await;
        let polled = client.poll(&worker, 1).await;
        let task = &polled["tasks"][0];
        let result =
            json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": "failed", "error": error});
        client.json("POST", &format!("/internal/workers/{worker}/result"), &result).await.ok(200);
    }
    let found = findings(&mut client).await;
    assert_eq!(codes(&found), ["code_bug", "unclassified_errors"]);
    assert_eq!(found[0]["evidence"]["last_message"], "no field");
    assert_eq!(found[1]["evidence"], json!({"task_type": "odd", "count": 1, "last_code": null, "last_message": "hm"}));
}
