//! Health, statistics, metrics and shutdown.

mod common;

use std::time::Duration;

use common::{Client, start, start_with};
use serde_json::json;
use windlass_server::ServerConfig;

#[tokio::test]
async fn health_and_the_way_in() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.get("/healthz").await.ok(200)["status"], "ok");
    assert_eq!(client.get("/readyz").await.ok(200), json!({"ready": true, "store": "ok", "serving": "ok"}));
    assert_eq!(client.get("/").await.ok(200)["openapi"], "/openapi.json");
}

#[tokio::test]
async fn statistics_and_metrics_count_what_happened() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    client.submit(&json!({"task_type": "good", "priority": "high"})).await;
    client.submit(&json!({"task_type": "bad", "priority": 4})).await;
    for _ in 0..2 {
        let polled = client.poll(&worker, 1).await;
        let task = &polled["tasks"][0];
        let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": "completed"});
        if task["task_type"] == "bad" {
            result["status"] = json!("failed");
            result["error"] = json!({"message": "no", "retriable": false});
        }
        client.json("POST", &format!("/internal/workers/{worker}/result"), &result).await.ok(200);
    }
    client.submit(&json!({"task_type": "good", "queue": "other"})).await;
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    assert_eq!(
        stats["throughput"],
        json!({"completed_last_minute": 1, "failed_last_minute": 1, "enqueued_last_minute": 3})
    );
    assert_eq!((&stats["queues"]["medium"]["depth"], &stats["by_queue"]["other"]["depth"]), (&json!(1), &json!(1)));
    assert_eq!((&stats["workers"]["active"], &stats["workers"]["total_capacity"]), (&json!(1), &json!(10)));
    assert!(stats["wait_seconds"]["p99"].is_f64());
    let text = client.get("/metrics").await.text;
    for line in [
        r#"windlass_tasks_enqueued_total{queue="default",type="good"} 1"#,
        r#"windlass_tasks_completed_total{queue="default",type="good"} 1"#,
        r#"windlass_tasks_failed_total{queue="default",type="bad",class="permanent"} 1"#,
        r#"windlass_tasks_dead_lettered_total{queue="default",type="bad",reason="permanent_error"} 1"#,
        r#"windlass_queue_depth{queue="other",priority="medium"} 1"#,
        r#"windlass_dlq_depth{queue="default",type="bad"} 1"#,
        r#"windlass_tasks{status="completed"} 1"#,
        r#"windlass_store_op_duration_seconds_count{store="memory",op="submit"}"#,
        r#"windlass_workers{status="active"} 1"#,
        "windlass_worker_capacity 10",
        r#"windlass_http_request_duration_seconds_count{route="/api/v1/tasks",method="POST",status="201"} 3"#,
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn retry_statistics_tell_how_tasks_ended() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let retry = json!({"strategy": "fixed", "base_delay": 0, "jitter": "none"});
    client.submit(&json!({"task_type": "shaky", "retry": retry})).await;
    client.submit(&json!({"task_type": "bad", "priority": "low"})).await;
    let path = format!("/internal/workers/{worker}/result");
    for _ in 0..3 {
        let body = json!({"available_capacity": 1, "wait_ms": 10_000});
        let polled = client.json("POST", &format!("/internal/workers/{worker}/poll"), &body).await.ok(200);
        let task = &polled["tasks"][0];
        let mut result = json!({"task_id": task["task_id"], "lease_token": task["lease_token"], "status": "failed"});
        if task["task_type"] == "bad" {
            result["error"] = json!({"message": "no", "retriable": false});
        } else if task["attempt"] == 1 {
            result["error"] = json!({"message": "reset", "retriable": true});
        } else {
            result["status"] = json!("completed");
        }
        client.json("POST", &path, &result).await.ok(200);
    }
    let stats = client.get("/api/v1/stats/retries?window=15m").await.ok(200);
    assert_eq!(
        stats,
        json!({"window_seconds": 900, "total": 2, "succeeded": 1, "failed": 0, "retried": 1, "dead_lettered": 1,
            "average_attempts": 1.5, "success_after_retry_ratio": 1, "by_type": {
                "shaky": {"total": 1, "succeeded": 1, "failed": 0, "retried": 1, "dead_lettered": 0,
                    "average_attempts": 2, "success_after_retry_ratio": 1},
                "bad": {"total": 1, "succeeded": 0, "failed": 0, "retried": 0, "dead_lettered": 1,
                    "average_attempts": 1, "success_after_retry_ratio": null}}})
    );
    assert_eq!(client.get("/api/v1/stats/retries").await.ok(200)["window_seconds"], 86_400);
}

#[tokio::test]
async fn labels_from_users_are_bounded() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let tasks: Vec<_> = (0..300).map(|n| json!({"task_type": format!("t{n}")})).collect();
    client.json("POST", "/api/v1/tasks/batch", &json!({"tasks": tasks})).await.ok(201);
    let text = client.get("/metrics").await.text;
    assert!(text.contains(r#"windlass_tasks_enqueued_total{queue="default",type="other"} 100"#));
}

#[tokio::test]
async fn shutdown_ends_long_polls_and_lets_requests_finish() {
    let mut server = start().await;
    let mut client = Client::new(&server).await;
    let worker = client.register().await;
    let id = client.submit(&json!({"task_type": "t", "delay_seconds": 600})).await;
    let (mut polling, mut waiting) = (Client::new(&server).await, Client::new(&server).await);
    let path = format!("/internal/workers/{worker}/poll");
    let body = json!({"available_capacity": 1, "wait_ms": 60_000});
    let stop = server.stop.take().expect("not stopped yet");
    let task = format!("/api/v1/tasks/{id}?wait=60");
    let stopping = async {
        // Both requests must be on their way before the end begins.
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.send(()).expect("the server listens");
    };
    let (polled, waited, ()) = tokio::join!(polling.json("POST", &path, &body), waiting.get(&task), stopping);
    assert_eq!(polled.ok(200)["tasks"], json!([]));
    assert_eq!(waited.ok(200)["status"], "scheduled");
    let ended = tokio::time::timeout(Duration::from_secs(10), server.stopped).await.expect("in time");
    ended.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn connections_without_a_request_do_not_hold_up_the_end() {
    let mut server = start().await;
    let mut idle = Vec::new();
    for bytes in [&b""[..], b"PRI", b"GET /heal"] {
        let mut client = Client::new(&server).await;
        client.send(bytes).await;
        idle.push(client);
    }
    let mut used = Client::new(&server).await;
    used.get("/healthz").await.ok(200);
    server.stop.take().expect("not stopped yet").send(()).expect("the server listens");
    let ended = tokio::time::timeout(Duration::from_secs(5), server.stopped).await.expect("in time");
    ended.expect("no panic").expect("a clean end");
    drop((idle, used));
}

#[tokio::test]
async fn a_store_that_is_gone_is_told_with_what_may_have_happened() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    server.store.close().await;
    let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "t"})).await;
    answer.refused(503, "store_unavailable");
    assert!(answer.header("retry-after").is_some());
    assert!(matches!(answer.body["applied"].as_str(), Some("no" | "unknown")), "{}", answer.text);
    let ready = client.get("/readyz").await.ok(503);
    assert_eq!((&ready["ready"], &ready["serving"]), (&json!(false), &json!("ok")));
    assert_ne!(ready["store"], "ok");
    client.get("/healthz").await.ok(200);
}

#[tokio::test]
async fn half_a_protocol_does_not_hold_a_connection_for_ever() {
    let config =
        ServerConfig { header_timeout: Duration::from_millis(200), max_connections: 1, ..ServerConfig::default() };
    let server = start_with(config).await;
    for bytes in [&b""[..], b"PRI", b"GET /heal"] {
        let mut idle = Client::new(&server).await;
        idle.send(bytes).await;
        // There is room for one connection only: this one is served when the idle one was thrown out.
        let mut client = Client::new(&server).await;
        client.get("/healthz").await.ok(200);
    }
}
