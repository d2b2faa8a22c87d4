//! The life of tasks as their submitters and operators see it.

mod common;

use common::{Client, start};
use serde_json::{Value, json};

#[tokio::test]
async fn a_task_has_every_documented_field() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let body = json!({"task_type": "video", "parameters": {"id": 7}, "queue": "media", "priority": "low",
        "required_capabilities": ["gpu"], "timeout_seconds": 12.5, "max_retries": 4, "tenant": "acme",
        "idempotency_key": "k", "tags": {"customer": "42"}});
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let answer = client.call_with("POST", "/api/v1/tasks", trace, body.to_string().as_bytes()).await.ok(201);
    assert_eq!((&answer["status"], &answer["deduplicated"]), (&json!("queued"), &json!(false)));
    assert!(answer["queue_position"].is_u64() && answer["estimated_wait_seconds"].is_null());
    let id = answer["task_id"].as_str().expect("an id");
    let task = client.get(&format!("/api/v1/tasks/{id}?include=history")).await.ok(200);
    for field in [
        "task_id",
        "task_type",
        "queue",
        "status",
        "priority",
        "priority_level",
        "effective_priority",
        "parameters",
        "required_capabilities",
        "attempt",
        "retry_count",
        "max_retries",
        "crash_count",
        "created_at",
        "run_at",
        "started_at",
        "completed_at",
        "expires_at",
        "timeout_seconds",
        "assigned_worker_id",
        "lease_expires_at",
        "progress",
        "result",
        "error",
        "idempotency_key",
        "ordering_key",
        "ordering_on_failure",
        "concurrency_key",
        "concurrency_limit",
        "unique",
        "auto_replayed",
        "tenant",
        "tags",
        "trace_id",
        "workflow_run_id",
        "step",
        "group",
        "ready_at",
        "retrying",
        "end_reason",
        "dead_reason",
        "attempts",
        "original_parameters",
        "history",
    ] {
        assert!(task.get(field).is_some(), "{field} is missing: {task}");
    }
    assert_eq!(task["parameters"], json!({"id": 7}));
    assert_eq!((&task["priority"], &task["priority_level"]), (&json!("low"), &json!(3)));
    assert_eq!((&task["timeout_seconds"], &task["max_retries"]), (&json!(12.5), &json!(4)));
    assert_eq!(task["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&task["history"][0]["kind"], &task["history"][0]["actor"]), (&json!("submitted"), &json!("api")));
}

#[tokio::test]
async fn idempotency_keys() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let body = json!({"task_type": "t", "parameters": {"a": 1, "b": 2}, "idempotency_key": "k"});
    let id = client.submit(&body).await;
    let again = json!({"task_type": "t", "parameters": {"b": 2, "a": 1}, "idempotency_key": "k", "delay_seconds": 9});
    let answer = client.json("POST", "/api/v1/tasks", &again).await.ok(200);
    assert_eq!((answer["task_id"].as_str(), &answer["deduplicated"]), (Some(id.as_str()), &json!(true)));
    assert_eq!(answer["deduplicated_by"], "idempotency_key");
    let other = json!({"task_type": "t", "parameters": {"a": 2}, "idempotency_key": "k"});
    let answer = client.json("POST", "/api/v1/tasks", &other).await;
    assert_eq!(answer.refused(409, "idempotency_key_reused"), Some("idempotency_key"));
    let batch = json!({"tasks": [{"task_type": "t"}, other]});
    let answer = client.json("POST", "/api/v1/tasks/batch", &batch).await;
    answer.refused(409, "idempotency_key_reused");
    assert_eq!(answer.body["index"], 1);
    let batch = json!({"tasks": [{"task_type": "t"}, body]});
    let answer = client.json("POST", "/api/v1/tasks/batch", &batch).await.ok(201);
    assert_eq!((answer["task_ids"].as_array().map(Vec::len), &answer["deduplicated"]), (Some(2), &json!(1)));
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    client.json("PUT", "/api/v1/queues/small", &json!({"depth": {"soft": 1, "hard": 1}})).await.ok(200);
    client.submit(&json!({"task_type": "t", "queue": "small"})).await;
    let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "t", "queue": "small"})).await;
    answer.refused(429, "queue_full");
    let seconds = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
    assert_eq!(seconds, answer.body["retry_after_seconds"].as_u64());
    assert!(seconds.is_some_and(|seconds| seconds >= 1));
}

#[tokio::test]
async fn lists_filter_and_page() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    for n in 0..5 {
        let queue = if n % 2 == 0 { "even" } else { "odd" };
        client
            .submit(&json!({"task_type": "t", "queue": queue, "parameters": {"n": n}, "tags": {"n": n.to_string()}}))
            .await;
    }
    let page = client.get("/api/v1/tasks?limit=2&include=parameters").await.ok(200);
    let numbers = |page: &Value| -> Vec<u64> {
        page["items"].as_array().expect("items").iter().filter_map(|task| task["parameters"]["n"].as_u64()).collect()
    };
    assert_eq!(numbers(&page), [4, 3], "newest first");
    let cursor = page["next_cursor"].as_str().expect("a cursor");
    let page = client.get(&format!("/api/v1/tasks?limit=3&include=parameters&cursor={cursor}")).await.ok(200);
    assert_eq!(numbers(&page), [2, 1, 0]);
    let page = client.get("/api/v1/tasks?queue=even&include=parameters,result").await.ok(200);
    assert_eq!(numbers(&page), [4, 2, 0]);
    assert!(page["items"][0].get("result").is_some());
    let page = client.get("/api/v1/tasks?tag=n:3").await.ok(200);
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1));
    assert!(page["items"][0].get("parameters").is_none(), "left out unless asked for");
    let page = client.get("/api/v1/tasks?parameter=n:gt:2&status=queued,scheduled&include=parameters").await.ok(200);
    assert_eq!(numbers(&page), [4, 3]);
}

#[tokio::test]
async fn people_change_tasks() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let id = client.submit(&json!({"task_type": "t", "delay_seconds": 3600})).await;
    let path = format!("/api/v1/tasks/{id}");
    let task = client.json("PATCH", &path, &json!({"priority": "high", "tags": {"a": "b"}})).await.ok(200);
    assert_eq!(
        (&task["priority"], &task["tags"], &task["status"]),
        (&json!("high"), &json!({"a": "b"}), &json!("scheduled"))
    );
    client.json("PATCH", &path, &json!({})).await.refused(400, "missing_field");
    client.json("PATCH", &path, &json!({"queue": "x"})).await.refused(400, "unknown_field");
    let explained = client.get(&format!("{path}/explain")).await.ok(200);
    assert_eq!(explained["reason"], "scheduled");
    assert_eq!(client.call("POST", &format!("{path}/retry"), b"").await.ok(200)["status"], "queued");
    client.call("POST", &format!("{path}/retry"), b"").await.refused(409, "not_retryable");
    assert_eq!(client.get(&format!("{path}/explain")).await.ok(200)["reason"], "no_workers");
    let missing = client.json("POST", &format!("{path}/dead-letter"), &json!({})).await;
    assert_eq!(missing.refused(400, "missing_field"), Some("reason"));
    let dead = client.json("POST", &format!("{path}/dead-letter"), &json!({"reason": "not today"})).await.ok(200);
    assert_eq!(dead["status"], "dead_letter");
    client.json("POST", &format!("{path}/dead-letter"), &json!({"reason": "x"})).await.refused(409, "not_amendable");
    client.json("PATCH", &path, &json!({"priority": 1})).await.refused(409, "not_amendable");

    let letter = client.get(&format!("/api/v1/dlq/{id}")).await.ok(200);
    assert_eq!(letter["dead_reason"], "rejected_by_operator");
    let replay = json!({"new_priority": "critical", "parameters": {"edited": true}, "reason": "fixed"});
    assert_eq!(client.json("POST", &format!("/api/v1/dlq/{id}/replay"), &replay).await.ok(200)["status"], "queued");
    client.call("POST", &format!("/api/v1/dlq/{id}/replay"), b"").await.refused(409, "not_dead");
    client.call("DELETE", &format!("/api/v1/dlq/{id}"), b"").await.refused(409, "not_dead");
    client.get(&format!("/api/v1/dlq/{id}")).await.refused(404, "task_not_found");
    let task = client.get(&path).await.ok(200);
    assert_eq!((&task["parameters"], &task["original_parameters"]), (&json!({"edited": true}), &json!({})));

    // A field left at null changes nothing, the parameters neither.
    client.json("POST", &format!("{path}/dead-letter"), &json!({"reason": "again"})).await.ok(200);
    let unchanged = json!({"new_priority": null, "parameters": null, "reason": null, "reset_retry_count": null});
    client.json("POST", &format!("/api/v1/dlq/{id}/replay"), &unchanged).await.ok(200);
    let task = client.get(&path).await.ok(200);
    assert_eq!((&task["parameters"], &task["priority"]), (&json!({"edited": true}), &json!("critical")));

    let cancelled = client.call("DELETE", &path, b"").await.ok(200);
    assert_eq!(
        cancelled,
        json!({"task_id": id, "status": "cancelled", "was_executing": false, "worker_notified": false})
    );
    client.call("DELETE", &path, b"").await.refused(409, "not_cancellable");
}

#[tokio::test]
async fn bulk_calls_count_first_and_want_a_filter_or_a_word() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    for _ in 0..4 {
        client.submit(&json!({"task_type": "a"})).await;
    }
    client.submit(&json!({"task_type": "b"})).await;
    let cancel = "/api/v1/tasks/cancel";
    assert_eq!(client.json("POST", cancel, &json!({})).await.refused(400, "invalid_field"), Some("confirm"));
    let counted = client.json("POST", cancel, &json!({"task_type": "a", "dry_run": true})).await.ok(200);
    assert_eq!(counted, json!({"matched": 4, "cancelled": 0}));
    let done = client.json("POST", cancel, &json!({"task_type": "a", "limit": 1})).await.ok(200);
    assert_eq!(done, json!({"matched": 1, "cancelled": 1}));
    let none = client.json("POST", cancel, &json!({"status": "completed"})).await.ok(200);
    assert_eq!(none, json!({"matched": 0, "cancelled": 0}));

    let page = client.get("/api/v1/tasks?task_type=a&status=queued").await.ok(200);
    for task in page["items"].as_array().expect("items") {
        let path = format!("/api/v1/tasks/{}/dead-letter", task["task_id"].as_str().expect("an id"));
        client.json("POST", &path, &json!({"reason": "x"})).await.ok(200);
    }
    assert_eq!(client.get("/api/v1/dlq?task_type=a").await.ok(200)["items"].as_array().map(Vec::len), Some(3));
    for path in ["/api/v1/dlq/replay", "/api/v1/dlq/discard"] {
        assert_eq!(client.json("POST", path, &json!({})).await.refused(400, "invalid_field"), Some("confirm"));
        let rate = json!({"confirm": true, "rate_per_second": 0});
        assert_eq!(client.json("POST", path, &rate).await.refused(400, "invalid_field"), Some("rate_per_second"));
        let odd = json!({"task_type": "a", "limit": 0});
        assert_eq!(client.json("POST", path, &odd).await.refused(400, "invalid_field"), Some("limit"));
    }
    let discarded = client.json("POST", "/api/v1/dlq/discard", &json!({"task_type": "a", "limit": 1})).await.ok(200);
    assert_eq!(discarded, json!({"matched": 1, "discarded": 1}));
    let counted = client.json("POST", "/api/v1/dlq/replay", &json!({"dry_run": true})).await.ok(200);
    assert_eq!(counted, json!({"matched": 2, "replayed": 0}));
    let replayed =
        client.json("POST", "/api/v1/dlq/replay", &json!({"confirm": true, "reason": "fixed"})).await.ok(200);
    assert_eq!(replayed, json!({"matched": 2, "replayed": 2}));
}

#[tokio::test]
async fn whole_numbers_are_written_without_a_fraction() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let id = client.submit(&json!({"task_type": "t", "timeout_seconds": 90.0})).await;
    let task = client.get(&format!("/api/v1/tasks/{id}")).await.text;
    assert!(task.contains(r#""timeout_seconds":90,"#), "{task}");
    let stats = client.get("/api/v1/queue/stats").await.text;
    assert!(stats.contains(r#""low":{"depth":0,"oldest_age_seconds":0,"#), "{stats}");
    let body = json!({"timeout_seconds": 30, "retry": {"strategy": "list", "delays": [1, 2.5], "factor": 3},
        "retention": {"completed_days": 7}});
    let changed = client.json("PUT", "/api/v1/task-types/t", &body).await.text;
    for part in [r#""timeout_seconds":30,"#, r#""delays":[1,2.5]"#, r#""factor":3,"#, r#""completed_days":7}"#] {
        assert!(changed.contains(part), "{part} is not in {changed}");
    }
}

#[tokio::test]
async fn a_filter_takes_priorities_as_everything_does() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    client.submit(&json!({"task_type": "t", "priority": 7})).await;
    client.submit(&json!({"task_type": "t", "priority": 6})).await;
    for (priority, matched) in [(json!(7), 1), (json!("high"), 1), (json!(6), 1), (json!("6"), 1), (json!(5), 0)] {
        let body = json!({"priority": priority, "dry_run": true});
        let counted = client.json("POST", "/api/v1/tasks/cancel", &body).await.ok(200);
        assert_eq!(counted["matched"], matched, "{priority}");
    }
    let answer = client.json("POST", "/api/v1/tasks/cancel", &json!({"priority": 10})).await;
    assert_eq!(answer.refused(400, "invalid_field"), Some("priority"));
}

#[tokio::test]
async fn a_paced_batch_is_spread_out() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let tasks = vec![json!({"task_type": "t"}); 3];
    client.json("POST", "/api/v1/tasks/batch", &json!({"tasks": tasks, "max_per_second": 0.01})).await.ok(201);
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    assert_eq!((&stats["by_status"]["queued"], &stats["by_status"]["scheduled"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn queues_and_types() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let queue = client.json("PUT", "/api/v1/queues/q", &json!({"policy": "strict"})).await.ok(200);
    assert_eq!((&queue["policy"], &queue["depth"]), (&json!("strict"), &json!({"soft": 100_000, "hard": 500_000})));
    assert_eq!(client.call("POST", "/api/v1/queues/q/pause", b"").await.ok(200)["paused"], true);
    let id = client.submit(&json!({"task_type": "t", "queue": "q"})).await;
    assert_eq!(client.get(&format!("/api/v1/tasks/{id}/explain")).await.ok(200)["reason"], "queue_paused");
    let worker = client.register().await;
    assert_eq!(client.poll(&worker, 1).await["tasks"], json!([]));
    assert_eq!(client.call("POST", "/api/v1/queues/q/resume", b"").await.ok(200)["paused"], false);
    assert_eq!(client.get("/api/v1/queues/q").await.ok(200)["queued"], 1);
    let names = |list: Value, key: &str| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        items.filter_map(|item| item[key].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(client.get("/api/v1/queues").await.ok(200), "name"), ["default", "q"]);
    assert_eq!(client.call("DELETE", "/api/v1/queues/q", b"").await.status, 204);

    let settings = json!({"queue": "mail", "priority": "high", "timeout_seconds": 30, "max_retries": 1});
    client.json("PUT", "/api/v1/task-types/t", &settings).await.ok(200);
    let changed = client.json("PUT", "/api/v1/task-types/t", &json!({"max_retries": null})).await.ok(200);
    assert_eq!((&changed["timeout_seconds"], &changed["max_retries"]), (&json!(30), &Value::Null));
    let id = client.submit(&json!({"task_type": "t"})).await;
    let task = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
    assert_eq!((&task["queue"], &task["priority"], &task["max_retries"]), (&json!("mail"), &json!("high"), &json!(5)));
    assert_eq!(client.call("POST", "/api/v1/task-types/t/pause", b"").await.ok(200)["paused"], true);
    assert_eq!(client.get(&format!("/api/v1/tasks/{id}/explain")).await.ok(200)["reason"], "type_paused");
    client.call("POST", "/api/v1/task-types/t/resume", b"").await.ok(200);
    assert_eq!(names(client.get("/api/v1/task-types").await.ok(200), "task_type"), ["t"]);
    assert_eq!(client.call("DELETE", "/api/v1/task-types/t", b"").await.status, 204);
}
