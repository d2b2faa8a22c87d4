//! Dead letters: what they have in common, and how they run again.

mod common;

use common::{Client, start};
use serde_json::{Value, json};

/// A task that is not tried again.
async fn submit(client: &mut Client, task_type: &str, more: &Value) -> String {
    let mut body = json!({"task_type": task_type, "max_retries": 0});
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    client.submit(&body).await
}

/// Takes the next task, waiting for it if need be, and ends it.
async fn end_next(client: &mut Client, worker: &str, status: &str, error: Option<&Value>) -> String {
    let body = json!({"available_capacity": 1, "wait_ms": 10_000});
    let polled = client.json("POST", &format!("/internal/workers/{worker}/poll"), &body).await.ok(200);
    let task = &polled["tasks"][0];
    let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": status});
    if let Some(error) = error {
        result["error"] = error.clone();
    }
    client.json("POST", &format!("/internal/workers/{worker}/result"), &result).await.ok(200);
    task["task_id"].as_str().expect("a task").to_owned()
}

/// Submits so many tasks and buries them; their ids, the oldest first.
async fn bury(client: &mut Client, task_type: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(submit(client, task_type, &json!({})).await);
    }
    let body = json!({"task_type": task_type, "reason": "not now"});
    let answer = client.json("POST", "/api/v1/tasks/dead-letter", &body).await.ok(200);
    assert_eq!(answer, json!({"matched": count, "dead_lettered": count}));
    ids
}

async fn mark_sensitive(client: &mut Client, task_type: &str) {
    client.json("PUT", &format!("/api/v1/task-types/{task_type}"), &json!({"sensitive": true})).await.ok(200);
}

async fn status(client: &mut Client, id: &str) -> Value {
    client.get(&format!("/api/v1/tasks/{id}")).await.ok(200)["status"].clone()
}

#[tokio::test]
async fn analysis_groups_by_cause() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let mut last = String::new();
    for row in 1..=3 {
        submit(&mut client, "a", &json!({})).await;
        let error = json!({"message": format!("row {row} is locked"), "code": "LOCKED", "retriable": true});
        last = end_next(&mut client, &worker, "failed", Some(&error)).await;
    }
    submit(&mut client, "b", &json!({})).await;
    let error = json!({"message": "no such user 17", "retriable": false});
    end_next(&mut client, &worker, "failed", Some(&error)).await;
    let analysis = client.get("/api/v1/dlq/analysis").await.ok(200);
    assert_eq!((&analysis["examined"], &analysis["partial"]), (&json!(4), &json!(false)));
    let groups = analysis["groups"].as_array().expect("groups");
    assert_eq!(groups.len(), 2, "{analysis}");
    let largest = &groups[0];
    for (field, expected) in [
        ("task_type", json!("a")),
        ("class", json!("transient")),
        ("code", json!("LOCKED")),
        ("message", json!("row # is locked")),
        ("count", json!(3)),
        ("sample_task_id", json!(last)),
        ("replay_looks_safe", json!(true)),
    ] {
        assert_eq!(largest[field], expected, "{field}: {analysis}");
    }
    assert!(largest["first_seen"].as_str() < largest["last_seen"].as_str(), "{analysis}");
    let other = &groups[1];
    assert_eq!((&other["class"], &other["replay_looks_safe"]), (&json!("permanent"), &json!(false)));
    let filtered = client.get("/api/v1/dlq/analysis?task_type=b&class=permanent").await.ok(200);
    assert_eq!((&filtered["examined"], &filtered["groups"][0]["message"]), (&json!(1), &json!("no such user #")));
    mark_sensitive(&mut client, "a").await;
    let analysis = client.get("/api/v1/dlq/analysis?task_type=a").await.ok(200);
    assert_eq!(analysis["groups"][0]["replay_looks_safe"], false);
    client.get("/api/v1/dlq/analysis?limit=3").await.refused(400, "unknown_field");
}

#[tokio::test]
async fn tasks_are_dead_lettered_by_filter() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let path = "/api/v1/tasks/dead-letter";
    let worker = client.register().await;
    submit(&mut client, "a", &json!({})).await;
    client.poll(&worker, 1).await;
    submit(&mut client, "a", &json!({"delay_seconds": 600})).await;
    submit(&mut client, "a", &json!({})).await;
    let missing = client.json("POST", path, &json!({"task_type": "a"})).await;
    assert_eq!(missing.refused(400, "missing_field"), Some("reason"));
    let all = client.json("POST", path, &json!({"reason": "x"})).await;
    assert_eq!(all.refused(400, "invalid_field"), Some("confirm"));
    let counted = client.json("POST", path, &json!({"task_type": "a", "reason": "x", "dry_run": true})).await.ok(200);
    assert_eq!(counted, json!({"matched": 2, "dead_lettered": 0}), "the running one is left alone");
    let done = client.json("POST", path, &json!({"task_type": "a", "reason": "x"})).await.ok(200);
    assert_eq!(done, json!({"matched": 2, "dead_lettered": 2}));
    let running = client.json("POST", path, &json!({"status": "executing", "reason": "x"})).await.ok(200);
    assert_eq!(running, json!({"matched": 0, "dead_lettered": 0}));
    let letters = client.get("/api/v1/dlq?dead_reason=rejected_by_operator").await.ok(200);
    assert_eq!(letters["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_dry_run_and_filters_of_a_bulk_replay() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    bury(&mut client, "a", 2).await;
    submit(&mut client, "a", &json!({"tenant": "x", "tags": {"k": "1"}, "priority": "high"})).await;
    client.json("POST", "/api/v1/tasks/dead-letter", &json!({"tenant": "x", "reason": "not now"})).await.ok(200);
    let replay = "/api/v1/dlq/replay";
    assert_eq!(client.json("POST", replay, &json!({})).await.refused(400, "invalid_field"), Some("confirm"));
    for (filter, matched) in [
        (json!({"tenant": "x"}), 1),
        (json!({"tag": "k:1"}), 1),
        (json!({"priority": "high"}), 1),
        (json!({"priority": "medium"}), 2),
        (json!({}), 3),
    ] {
        let mut body = filter.clone();
        body["dry_run"] = json!(true);
        let counted = client.json("POST", replay, &body).await.ok(200);
        assert_eq!(counted, json!({"matched": matched, "replayed": 0}), "{filter}");
    }
    let body = json!({"tenant": "x", "new_priority": "bulk"});
    assert_eq!(client.json("POST", replay, &body).await.ok(200), json!({"matched": 1, "replayed": 1}));
    let tasks = client.get("/api/v1/tasks?tenant=x").await.ok(200);
    assert_eq!((&tasks["items"][0]["status"], &tasks["items"][0]["priority"]), (&json!("queued"), &json!("bulk")));
}

#[tokio::test]
async fn whoever_takes_tasks_out_of_the_flow_says_why() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let id = submit(&mut client, "a", &json!({})).await;
    for path in [format!("/api/v1/tasks/{id}/dead-letter"), "/api/v1/tasks/dead-letter".to_owned()] {
        let body = json!({"reason": "  "});
        assert_eq!(client.json("POST", &path, &body).await.refused(400, "invalid_field"), Some("reason"), "{path}");
    }
    assert_eq!(status(&mut client, &id).await, json!("queued"));
}

#[tokio::test]
async fn a_replay_at_a_rate_goes_oldest_first() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let ids = bury(&mut client, "a", 3).await;
    let path = "/api/v1/dlq/replay";
    for rate in [0.0, -1.0, 100_001.0] {
        let refused = client.json("POST", path, &json!({"task_type": "a", "rate_per_second": rate})).await;
        assert_eq!(refused.refused(400, "invalid_field"), Some("rate_per_second"));
    }
    let refused = client.json("POST", "/api/v1/dlq/discard", &json!({"task_type": "a", "rate_per_second": 1})).await;
    assert_eq!(refused.refused(400, "invalid_field"), Some("rate_per_second"));
    let done = client.json("POST", path, &json!({"task_type": "a", "rate_per_second": 0.01})).await.ok(200);
    assert_eq!(done, json!({"matched": 3, "replayed": 3}));
    let mut starts = Vec::new();
    for (id, expected) in ids.iter().zip(["queued", "scheduled", "scheduled"]) {
        let task = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
        assert_eq!(task["status"], expected);
        starts.push(task["run_at"].as_str().expect("a time").to_owned());
    }
    assert!(starts.is_sorted(), "{starts:?}");
}

#[tokio::test]
async fn sensitive_types_are_replayed_only_if_confirmed() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    mark_sensitive(&mut client, "pay").await;
    let plain = bury(&mut client, "mail", 1).await;
    let ids = bury(&mut client, "pay", 2).await;
    let bulk = "/api/v1/dlq/replay";
    let refused = client.json("POST", bulk, &json!({"queue": "default"})).await;
    assert_eq!(refused.refused(400, "invalid_field"), Some("confirm"));
    assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("pay")), "{}", refused.text);
    assert_eq!(status(&mut client, &plain[0]).await, "dead_letter", "nothing changed");
    let counted = client.json("POST", bulk, &json!({"queue": "default", "dry_run": true})).await.ok(200);
    assert_eq!(counted, json!({"matched": 3, "replayed": 0}));

    for path in [format!("/api/v1/dlq/{}/replay", ids[0]), format!("/api/v1/tasks/{}/retry", ids[0])] {
        assert_eq!(client.call("POST", &path, b"").await.refused(400, "invalid_field"), Some("confirm"));
    }
    let path = format!("/api/v1/dlq/{}/replay", ids[0]);
    assert_eq!(client.json("POST", &path, &json!({"confirm": true})).await.ok(200)["status"], "queued");
    client.json("POST", &path, &json!({"confirm": true})).await.refused(409, "not_dead");
    client.call("POST", &path, b"").await.refused(409, "not_dead");
    let done = client.json("POST", bulk, &json!({"queue": "default", "confirm": true})).await.ok(200);
    assert_eq!(done, json!({"matched": 2, "replayed": 2}));

    // What only waits for its time has not run: no word is needed.
    let later = submit(&mut client, "pay", &json!({"delay_seconds": 600})).await;
    client.call("POST", &format!("/api/v1/tasks/{later}/retry"), b"").await.ok(200);
}

#[tokio::test]
async fn edited_parameters_are_kept_beside_the_original() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let id = submit(&mut client, "a", &json!({"parameters": {"to": "x"}})).await;
    client.json("POST", &format!("/api/v1/tasks/{id}/dead-letter"), &json!({"reason": "typo"})).await.ok(200);
    let edited = json!({"parameters": {"to": "y"}, "reason": "corrected"});
    client.json("POST", &format!("/api/v1/dlq/{id}/replay"), &edited).await.ok(200);
    let task = client.get(&format!("/api/v1/tasks/{id}?include=history")).await.ok(200);
    assert_eq!((&task["parameters"], &task["original_parameters"]), (&json!({"to": "y"}), &json!({"to": "x"})));
    let history = task["history"].as_array().expect("a history");
    let replayed = history.iter().find(|event| event["kind"] == "replayed").expect("a replay");
    assert_eq!((&replayed["data"]["edited"], &replayed["data"]["note"]), (&json!(true), &json!("corrected")));
}

#[tokio::test]
async fn a_discard_keeps_its_reason() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let ids = bury(&mut client, "a", 2).await;
    let path = format!("/api/v1/dlq/{}?reason=no%20longer%20wanted", ids[0]);
    assert_eq!(client.call("DELETE", &path, b"").await.ok(200)["status"], "failed");
    client.call("DELETE", &path, b"").await.refused(409, "not_dead");
    let bulk = "/api/v1/dlq/discard";
    assert_eq!(client.json("POST", bulk, &json!({})).await.refused(400, "invalid_field"), Some("confirm"));
    let done = client.json("POST", bulk, &json!({"confirm": true, "reason": "no longer wanted"})).await.ok(200);
    assert_eq!(done, json!({"matched": 1, "discarded": 1}));
    for id in ids {
        let task = client.get(&format!("/api/v1/tasks/{id}?include=history")).await.ok(200);
        let last = task["history"].as_array().and_then(|history| history.last()).expect("a history");
        assert_eq!((&last["kind"], &last["data"]["note"]), (&json!("discarded"), &json!("no longer wanted")));
    }
}

#[tokio::test]
async fn a_replay_meets_the_task_that_has_its_unique_key() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let unique = json!({"unique": {"by": ["task_type"]}});
    let first = submit(&mut client, "a", &unique).await;
    client.json("POST", &format!("/api/v1/tasks/{first}/dead-letter"), &json!({"reason": "x"})).await.ok(200);
    let second = submit(&mut client, "a", &unique).await;
    let path = format!("/api/v1/dlq/{first}/replay");
    let refused = client.call("POST", &path, b"").await;
    refused.refused(409, "unique_conflict");
    assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains(&second)), "{}", refused.text);
    let bulk = client.json("POST", "/api/v1/dlq/replay", &json!({"task_type": "a"})).await.ok(200);
    assert_eq!(bulk, json!({"matched": 1, "replayed": 0}));
}

#[tokio::test]
async fn a_rule_replays_the_dead_letters_of_an_outage_once() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let settings = json!({"auto_replay": {"classes": ["transient"], "rate_per_second": 1000},
        "breaker": {"min_attempts": 2, "failure_ratio": 0.5, "window_seconds": 60, "recovery_seconds": 0.2}});
    client.json("PUT", "/api/v1/task-types/a", &settings).await.ok(200);
    let worker = client.register().await;
    for _ in 0..2 {
        submit(&mut client, "a", &json!({})).await;
    }
    let outage = json!({"message": "connection refused", "retriable": true});
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(end_next(&mut client, &worker, "failed", Some(&outage)).await);
    }
    // The breaker is open now; the trial closes it, and the rule brings the two back.
    let trial = submit(&mut client, "a", &json!({})).await;
    assert_eq!(end_next(&mut client, &worker, "completed", None).await, trial);
    for id in &dead {
        assert_eq!(end_next(&mut client, &worker, "completed", None).await, *id, "oldest first");
    }
    for id in &dead {
        let task = client.get(&format!("/api/v1/tasks/{id}?include=history")).await.ok(200);
        let history = task["history"].as_array().expect("a history");
        let replayed: Vec<_> = history.iter().filter(|event| event["kind"] == "replayed").collect();
        assert_eq!(replayed.len(), 1, "{task}");
        assert_eq!(replayed[0]["actor"], "system");
        assert_eq!(replayed[0]["data"]["note"], "replayed by rule: breaker closed");
    }
}
