//! The worker protocol.

mod common;

use std::time::Duration;

use common::{Client, start, start_with};
use serde_json::{Value, json};
use windlass_server::ServerConfig;

fn result(task: &Value, status: &str) -> Value {
    json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": status})
}

#[tokio::test]
async fn register_poll_result() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let registered = client.json("POST", "/internal/workers/register", &json!({})).await.ok(201);
    assert_eq!(
        (&registered["poll_interval_ms"], &registered["heartbeat_interval_ms"], &registered["lease_seconds"]),
        (&json!(1000), &json!(10_000), &json!(30))
    );
    let worker = registered["worker_id"].as_str().expect("an id");
    let id = client
        .submit(&json!({"task_type": "t", "parameters": {"big": 12_345_678_901_234_567_890_u64}, "tags": {"a": "b"}}))
        .await;
    let polled = client.poll(worker, 5).await;
    let task = &polled["tasks"][0];
    for field in [
        "task_id",
        "task_type",
        "parameters",
        "queue",
        "priority",
        "attempt",
        "max_retries",
        "timeout_seconds",
        "lease_token",
        "lease_expires_at",
        "trace_id",
        "created_at",
        "idempotency_key",
        "ordering_key",
        "crash_count",
        "tags",
        "steps",
    ] {
        assert!(task.get(field).is_some(), "{field} is missing: {task}");
    }
    assert_eq!((&polled["cancel"], &polled["results"]), (&json!([]), &json!([])));
    let path = format!("/internal/workers/{worker}/result");
    let mut done = result(task, "completed");
    done["result"] = json!({"ok": [1, 2]});
    done["enqueue"] = json!([{"task_type": "next"}]);
    let answer = client.json("POST", &path, &done).await.ok(200);
    assert_eq!((&answer["acknowledged"], &answer["status"]), (&json!(true), &json!("completed")));
    assert_eq!(answer["enqueued"].as_array().map(Vec::len), Some(1));
    // The same again changes nothing.
    assert_eq!(client.json("POST", &path, &done).await.ok(200)["status"], "completed");
    let ended = client.get(&format!("/api/v1/tasks/{id}?wait=30")).await.ok(200);
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!({"ok": [1, 2]})));
    assert!(ended["completed_at"].is_string());
    assert_eq!(client.get("/api/v1/tasks?task_type=next").await.ok(200)["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn results_ride_in_a_poll_and_are_answered_one_by_one() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    for _ in 0..5 {
        client.submit(&json!({"task_type": "t"})).await;
    }
    let polled = client.poll(&worker, 4).await;
    let tasks = polled["tasks"].as_array().expect("tasks");
    let mut failed = result(&tasks[1], "failed");
    failed["error"] = json!({"message": "no", "code": "E1", "retriable": false, "details": {"a": 1}});
    let mut forged = result(&tasks[2], "completed");
    forged["lease_token"] = json!("1.0000000000000001");
    let mut too_large = result(&tasks[3], "completed");
    too_large["result"] = json!("x".repeat(70_000));
    let results = json!([result(&tasks[0], "completed"), failed, forged, too_large,
        {"task_id": "nonsense", "lease_token": "nonsense", "status": "released"}]);
    let body = json!({"available_capacity": 5, "wait_ms": 30_000, "results": results});
    let answer = client.json("POST", &format!("/internal/workers/{worker}/poll"), &body).await.ok(200);
    assert_eq!(answer["tasks"].as_array().map(Vec::len), Some(1), "answered at once, with the fifth task");
    let answers: Vec<_> = answer["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|item| {
            (
                item["acknowledged"].as_bool().expect("a bool"),
                item["status"].as_str().or(item["code"].as_str()).expect("a word"),
            )
        })
        .collect();
    assert_eq!(
        answers,
        [
            (true, "completed"),
            (true, "dead_letter"),
            (false, "lease_lost"),
            (false, "payload_too_large"),
            (false, "task_not_found")
        ]
    );
    let dead = client.get(&format!("/api/v1/tasks/{}", tasks[1]["task_id"].as_str().expect("an id"))).await.ok(200);
    assert_eq!(
        dead["error"],
        json!({"code": "E1", "class": "permanent", "message": "no", "retriable": false,
        "http_status": null, "stack": null, "details": {"a": 1}})
    );
    assert_eq!((&dead["dead_reason"], &dead["attempts"][0]["attempt"]), (&json!("permanent_error"), &json!(1)));
}

#[tokio::test]
async fn foreign_and_lost_leases_are_refused() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let (mine, other) = (client.register().await, client.register().await);
    client.submit(&json!({"task_type": "t"})).await;
    let polled = client.poll(&mine, 1).await;
    let task = &polled["tasks"][0];
    let done = result(task, "completed");
    client.json("POST", &format!("/internal/workers/{other}/result"), &done).await.refused(409, "lease_lost");
    let mut progress = json!({"task_id": task["task_id"], "lease_token": "nonsense", "percent": 1});
    let path = format!("/internal/workers/{mine}/progress");
    client.json("POST", &path, &progress).await.refused(409, "lease_lost");
    progress["lease_token"] = task["lease_token"].clone();
    assert_eq!(client.json("POST", &path, &progress).await.ok(200), json!({"acknowledged": true, "cancelled": false}));
    let step = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "name": "charge", "result": 5});
    client.json("POST", &format!("/internal/workers/{mine}/step"), &step).await.ok(200);
    client.json("POST", &format!("/internal/workers/{other}/step"), &step).await.refused(409, "lease_lost");
    client.json("POST", &format!("/internal/workers/{mine}/result"), &result(task, "released")).await.ok(200);
    client.json("POST", &format!("/internal/workers/{mine}/result"), &done).await.refused(409, "lease_lost");
    let again = client.poll(&other, 1).await;
    assert_eq!((&again["tasks"][0]["steps"], &again["tasks"][0]["attempt"]), (&json!({"charge": 5}), &json!(1)));
}

#[tokio::test]
async fn results_that_make_no_sense() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    client.submit(&json!({"task_type": "t"})).await;
    let polled = client.poll(&worker, 1).await;
    let task = &polled["tasks"][0];
    let with = |status: &str, field: &str, value: Value| {
        let mut body = result(task, status);
        body[field] = value;
        body
    };
    for (body, code, field) in [
        (json!({}), "missing_field", "task_id"),
        (json!({"task_id": task["task_id"]}), "missing_field", "lease_token"),
        (json!({"task_id": task["task_id"], "lease_token": task["lease_token"]}), "missing_field", "status"),
        (with("done", "result", json!(1)), "invalid_field", "status"),
        (with("failed", "result", Value::Null), "missing_field", "error"),
        (with("failed", "error", json!({})), "missing_field", "error.message"),
        (with("failed", "error", json!({"message": "x", "why": 1})), "unknown_field", "error.why"),
        (
            with("failed", "error", json!({"message": "x", "retry_after_seconds": -1})),
            "invalid_field",
            "error.retry_after_seconds",
        ),
        (with("failed", "result", json!(1)), "invalid_field", "result"),
        (with("failed", "enqueue", json!([{"task_type": "n"}])), "invalid_field", "enqueue"),
        (with("completed", "error", json!({"message": "x"})), "invalid_field", "error"),
        (
            with("completed", "enqueue", json!([{"task_type": "n", "max_retries": 200}])),
            "invalid_field",
            "enqueue[0].max_retries",
        ),
        (with("snoozed", "result", Value::Null), "missing_field", "snooze_seconds"),
        (with("snoozed", "snooze_seconds", json!(1e30)), "invalid_field", "snooze_seconds"),
        (with("completed", "reason", json!("why")), "invalid_field", "reason"),
        (with("cancelled", "reason", json!(7)), "invalid_field", "reason"),
        (with("cancelled", "result", json!(1)), "invalid_field", "result"),
        (with("completed", "results", json!([])), "invalid_field", "results"),
    ] {
        let answer = client.json("POST", &format!("/internal/workers/{worker}/result"), &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{body}");
    }
    let large = with("completed", "result", json!("x".repeat(70_000)));
    let answer = client.json("POST", &format!("/internal/workers/{worker}/result"), &large).await;
    assert_eq!(answer.refused(413, "payload_too_large"), Some("result"));
    for (call, body, field) in [
        ("poll", json!({"available_capacity": -1}), "available_capacity"),
        ("poll", json!({"available_capacity": 1, "wait_ms": 60_001}), "wait_ms"),
        ("heartbeat", json!({"status": "odd"}), "status"),
        ("heartbeat", json!({"health": {"memory_percent": -1}}), "health.memory_percent"),
        (
            "progress",
            json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "percent": 101}),
            "percent",
        ),
        ("step", json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "name": ""}), "name"),
    ] {
        let answer = client.json("POST", &format!("/internal/workers/{worker}/{call}"), &body).await;
        assert_eq!(answer.refused(400, "invalid_field"), Some(field), "{body}");
    }
    let answer = client.json("POST", "/internal/workers/register", &json!({"capacity": 0})).await;
    assert_eq!(answer.refused(400, "invalid_field"), Some("capacity"));
    // The task is still this worker's: nothing above changed it.
    let snooze = with("snoozed", "snooze_seconds", json!(30));
    let answer = client.json("POST", &format!("/internal/workers/{worker}/result"), &snooze).await.ok(200);
    assert_eq!(answer["status"], "scheduled");
}

#[tokio::test]
async fn a_handler_cancels_its_task_and_says_why() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let id = client.submit(&json!({"task_type": "t"})).await;
    let polled = client.poll(&worker, 1).await;
    let mut cancelled = result(&polled["tasks"][0], "cancelled");
    // Far above what is kept of it.
    cancelled["reason"] = json!(format!("the account is closed{}", " again".repeat(10_000)));
    let path = format!("/internal/workers/{worker}/result");
    for _ in 0..2 {
        let answer = client.json("POST", &path, &cancelled).await.ok(200);
        assert_eq!(answer["status"], "cancelled", "also when it is sent again");
    }
    let task = client.get(&format!("/api/v1/tasks/{id}?include=history")).await.ok(200);
    let last = task["history"].as_array().expect("a history").last().expect("an event");
    let note = last["data"]["note"].as_str().expect("a note");
    assert_eq!((&task["status"], &last["kind"]), (&json!("cancelled"), &json!("cancelled")));
    assert!(note.starts_with("the account is closed") && note.len() < 9_000, "{} bytes", note.len());
}

#[tokio::test]
async fn a_long_poll_wakes_for_a_task_and_ends_in_time() {
    let server = start().await;
    let (mut client, mut waiting) = (Client::new(&server).await, Client::new(&server).await);
    let worker = client.register().await;
    let path = format!("/internal/workers/{worker}/poll");
    let answer = client.json("POST", &path, &json!({"available_capacity": 1, "wait_ms": 50})).await.ok(200);
    assert_eq!(answer["tasks"], json!([]));
    let wait = json!({"available_capacity": 1, "wait_ms": 15_000});
    let task = json!({"task_type": "t"});
    let (answer, id) = tokio::join!(waiting.json("POST", &path, &wait), client.submit(&task));
    assert_eq!(answer.ok(200)["tasks"][0]["task_id"], json!(id));
}

#[tokio::test]
async fn a_client_that_is_gone_gets_no_task() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let mut gone = Client::new(&server).await;
    let body = r#"{"available_capacity":1,"wait_ms":15000}"#;
    let head =
        format!("POST /internal/workers/{worker}/poll HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    gone.send(format!("{head}{body}").as_bytes()).await;
    // The poll must have begun to wait before its client goes; nobody can be asked whether it has.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(gone);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let id = client.submit(&json!({"task_type": "t"})).await;
    let polled = client.poll(&worker, 1).await;
    assert_eq!(polled["tasks"][0]["task_id"], json!(id));
    assert_eq!(polled["tasks"][0]["attempt"], 1);
}

#[tokio::test]
async fn heartbeats_renew_cancel_and_drain() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let path = format!("/internal/workers/{worker}/heartbeat");
    for _ in 0..2 {
        client.submit(&json!({"task_type": "t"})).await;
    }
    let polled = client.poll(&worker, 2).await;
    let (first, second) = (&polled["tasks"][0], &polled["tasks"][1]);
    let tasks = json!([{"task_id": first["task_id"], "lease_token": first["lease_token"]},
        {"task_id": second["task_id"], "lease_token": "ffff.0000000000000000"}]);
    let beat =
        client.json("POST", &path, &json!({"current_load": 2, "status": "active", "tasks": tasks})).await.ok(200);
    assert_eq!((&beat["acknowledged"], &beat["should_drain"]), (&json!(true), &json!(false)));
    assert_eq!(beat["lost"], json!([second["task_id"]]));
    let id = first["task_id"].as_str().expect("an id");
    let cancelled = client.call("DELETE", &format!("/api/v1/tasks/{id}"), b"").await.ok(200);
    assert_eq!((&cancelled["was_executing"], &cancelled["worker_notified"]), (&json!(true), &json!(true)));
    let beat = client.json("POST", &path, &json!({})).await.ok(200);
    assert_eq!(beat["cancel"], json!([id]));
    let progress = json!({"task_id": id, "lease_token": first["lease_token"], "percent": 50});
    let answer = client.json("POST", &format!("/internal/workers/{worker}/progress"), &progress).await.ok(200);
    assert_eq!(answer["cancelled"], true);
    client
        .json("POST", &format!("/internal/workers/{worker}/result"), &result(first, "completed"))
        .await
        .refused(409, "lease_lost");

    client.call("POST", &format!("/api/v1/workers/{worker}/drain"), b"").await.ok(200);
    assert_eq!(client.json("POST", &path, &json!({})).await.ok(200)["should_drain"], true);
    client.submit(&json!({"task_type": "t"})).await;
    assert_eq!(client.poll(&worker, 1).await["tasks"], json!([]), "a draining worker gets nothing");
    let workers = client.get("/api/v1/workers").await.ok(200);
    assert_eq!((&workers["items"][0]["status"], &workers["items"][0]["current_load"]), (&json!("draining"), &json!(1)));
    client.call("DELETE", &format!("/internal/workers/{worker}"), b"").await.ok(200);
    let task = client.get(&format!("/api/v1/tasks/{}", second["task_id"].as_str().expect("an id"))).await.ok(200);
    assert_eq!((&task["status"], &task["attempt"]), (&json!("queued"), &json!(0)));
}

#[tokio::test]
async fn two_strained_heartbeats_make_a_worker_unhealthy_until_it_is_better() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let id = client.submit(&json!({"task_type": "t"})).await;
    let path = format!("/internal/workers/{worker}/heartbeat");
    let strained = json!({"health": {"memory_percent": 95, "cpu_percent": 10}});
    for expected in ["active", "unhealthy"] {
        client.json("POST", &path, &strained).await.ok(200);
        assert_eq!(client.get("/api/v1/workers").await.ok(200)["items"][0]["status"], expected);
    }
    assert_eq!(client.poll(&worker, 1).await["tasks"], json!([]));
    assert_eq!(client.get(&format!("/api/v1/tasks/{id}/explain")).await.ok(200)["reason"], "workers_not_ready");
    client.json("POST", &path, &json!({"health": {"memory_percent": 20}})).await.ok(200);
    assert_eq!(client.poll(&worker, 1).await["tasks"][0]["task_id"], json!(id));
}

#[tokio::test]
async fn a_lapsed_lease_comes_back_promptly() {
    let config = ServerConfig {
        lease: Duration::from_millis(400),
        heartbeat: Duration::from_millis(100),
        ..ServerConfig::default()
    };
    let server = start_with(config).await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let body = json!({"task_type": "t", "retry": {"base_delay": 0, "jitter": "none"}});
    client.submit(&body).await;
    let polled = client.poll(&worker, 1).await;
    let wait = json!({"available_capacity": 1, "wait_ms": 10_000});
    let again = client.json("POST", &format!("/internal/workers/{worker}/poll"), &wait).await.ok(200);
    assert_eq!(
        (&again["tasks"][0]["task_id"], &again["tasks"][0]["crash_count"]),
        (&polled["tasks"][0]["task_id"], &json!(1))
    );
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    assert_eq!(stats["recovery"]["lease_expiries_last_hour"], 1);
}

#[tokio::test]
async fn calls_that_need_no_field_need_no_body() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let registered = client.call("POST", "/internal/workers/register", b"").await.ok(201);
    let worker = registered["worker_id"].as_str().expect("an id");
    let beaten = client.call("POST", &format!("/internal/workers/{worker}/heartbeat"), b"").await.ok(200);
    assert_eq!(beaten["acknowledged"], true);
    let workers = client.get("/api/v1/workers").await.ok(200);
    assert_eq!(workers["items"][0]["capacity"], 5);
}

#[tokio::test]
async fn follow_ups_stay_in_the_trace() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    for _ in 0..3 {
        let head = format!("traceparent: {PARENT}\r\n");
        client.call_with("POST", "/api/v1/tasks", &head, br#"{"task_type":"t"}"#).await.ok(201);
    }
    let polled = client.poll(&worker, 3).await;
    let done = |index: usize| {
        let mut done = result(&polled["tasks"][index], "completed");
        done["enqueue"] = json!([{"task_type": "next"}]);
        done
    };
    let (result_path, poll_path) =
        (format!("/internal/workers/{worker}/result"), format!("/internal/workers/{worker}/poll"));
    let single = client.json("POST", &result_path, &done(0)).await.ok(200);
    let many = client.json("POST", &result_path, &json!({"results": [done(1)]})).await.ok(200);
    let riding = json!({"available_capacity": 0, "results": [done(2)]});
    let riding = client.json("POST", &poll_path, &riding).await.ok(200);
    for enqueued in [&single, &many["results"][0], &riding["results"][0]] {
        let id = enqueued["enqueued"][0].as_str().expect("a follow-up");
        let next = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
        assert_eq!(next["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    }
}

#[tokio::test]
async fn a_task_that_waits_again_is_assigned_to_nobody() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let id = client.submit(&json!({"task_type": "t"})).await;
    let (task, results) = (format!("/api/v1/tasks/{id}"), format!("/internal/workers/{worker}/result"));
    let polled = client.poll(&worker, 1).await;
    assert_eq!(client.get(&task).await.ok(200)["assigned_worker_id"], worker.as_str());
    client.json("POST", &results, &result(&polled["tasks"][0], "released")).await.ok(200);
    assert_eq!(client.get(&task).await.ok(200)["assigned_worker_id"], Value::Null);
    let polled = client.poll(&worker, 1).await;
    client.json("POST", &results, &result(&polled["tasks"][0], "completed")).await.ok(200);
    assert_eq!(client.get(&task).await.ok(200)["assigned_worker_id"], worker.as_str());
}
