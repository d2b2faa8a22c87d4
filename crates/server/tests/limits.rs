//! Keys, uniqueness, limits, error rules and breakers as clients see them.

mod common;

use common::{Client, Server, start};
use serde_json::{Value, json};

const UNKNOWN_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

async fn begin() -> (Server, Client) {
    let server = start().await;
    let client = Client::new(&server).await;
    (server, client)
}

async fn submit(client: &mut Client, body: &Value, status: u16) -> Value {
    client.json("POST", "/api/v1/tasks", body).await.ok(status)
}

async fn explain(client: &mut Client, id: &str) -> Value {
    client.get(&format!("/api/v1/tasks/{id}/explain")).await.ok(200)
}

/// Sends the result of a polled task.
async fn finish(client: &mut Client, worker: &str, task: &Value, result: Value) -> Value {
    let mut body = json!({"task_id": task["task_id"], "lease_token": task["lease_token"]});
    for (key, value) in result.as_object().expect("fields") {
        body[key] = value.clone();
    }
    client.json("POST", &format!("/internal/workers/{worker}/result"), &body).await.ok(200)
}

#[tokio::test]
async fn keys_and_uniqueness_that_are_wrong() {
    let (_server, mut client) = begin().await;
    let long = "x".repeat(257);
    let many: Vec<_> = (0..33).map(|n| format!("tags.k{n}")).collect();
    for (fields, code, field) in [
        (json!({"ordering_key": ""}), "invalid_field", "ordering_key"),
        (json!({"ordering_key": long}), "invalid_field", "ordering_key"),
        (json!({"ordering_key": "a\nb"}), "invalid_field", "ordering_key"),
        (json!({"ordering_key": "k", "ordering_on_failure": "wait"}), "invalid_field", "ordering_on_failure"),
        (json!({"ordering_on_failure": "skip"}), "invalid_field", "ordering_on_failure"),
        (json!({"concurrency_key": "k"}), "invalid_field", "concurrency_key"),
        (json!({"concurrency_limit": 1}), "invalid_field", "concurrency_limit"),
        (json!({"concurrency_key": "k", "concurrency_limit": 0}), "invalid_field", "concurrency_limit"),
        (json!({"concurrency_key": "k", "concurrency_limit": 1_000_001}), "invalid_field", "concurrency_limit"),
        (json!({"concurrency_key": "k", "concurrency_limit": -1}), "invalid_field", "concurrency_limit"),
        (
            json!({"ordering_key": "k", "concurrency_key": "k", "concurrency_limit": 1}),
            "invalid_field",
            "concurrency_key",
        ),
        (json!({"unique": true}), "invalid_field", "unique"),
        (json!({"unique": {"for": 5}}), "unknown_field", "unique.for"),
        (json!({"unique": {"by": []}}), "invalid_field", "unique.by"),
        (json!({"unique": {"by": ["colour"]}}), "invalid_field", "unique.by"),
        (json!({"unique": {"by": ["parameters.absent"]}}), "invalid_field", "unique.by"),
        (json!({"unique": {"by": ["tags.absent"]}}), "invalid_field", "unique.by"),
        (json!({"unique": {"by": many}}), "invalid_field", "unique.by"),
        (json!({"unique": {"while": []}}), "invalid_field", "unique.while"),
        (json!({"unique": {"while": ["queued", "completed"]}}), "invalid_field", "unique.while"),
        (json!({"unique": {"while": ["lost"]}}), "invalid_field", "unique.while[0]"),
        (json!({"unique": {"for_seconds": 0}}), "invalid_field", "unique.for_seconds"),
        (json!({"unique": {"for_seconds": -1}}), "invalid_field", "unique.for_seconds"),
        (json!({"unique": {"for_seconds": 1e9}}), "invalid_field", "unique.for_seconds"),
        (json!({"unique": {"on_conflict": "panic"}}), "invalid_field", "unique.on_conflict"),
    ] {
        let mut body = fields.clone();
        body["task_type"] = json!("t");
        let answer = client.json("POST", "/api/v1/tasks", &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{fields}: {}", answer.text);
        let batch = json!({"tasks": [{"task_type": "t"}, body]});
        let answer = client.json("POST", "/api/v1/tasks/batch", &batch).await;
        assert_eq!(answer.refused(400, code), Some(format!("tasks[1].{field}").as_str()), "{fields}");
        assert_eq!(answer.body["index"], 1);
    }
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    assert_eq!(stats["by_status"]["queued"], 0, "nothing that was refused is stored");
}

#[tokio::test]
async fn a_task_shows_its_keys() {
    let (_server, mut client) = begin().await;
    let body = json!({"task_type": "t", "ordering_key": "größe", "ordering_on_failure": "skip",
        "unique": {"by": ["task_type"], "while": ["queued", "scheduled", "queued"], "for_seconds": 60, "on_conflict": "error"}});
    let id = client.submit(&body).await;
    let task = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
    assert_eq!((&task["ordering_key"], &task["ordering_on_failure"]), (&json!("größe"), &json!("skip")));
    assert_eq!((&task["concurrency_key"], &task["concurrency_limit"]), (&Value::Null, &Value::Null));
    let unique = &task["unique"];
    assert_eq!(unique["key"].as_str().map(str::len), Some(32), "{unique}");
    assert_eq!(unique["while"], json!(["scheduled", "queued"]));
    assert_eq!((&unique["for_seconds"], &unique["on_conflict"]), (&json!(60), &json!("error")));
    assert_eq!(task["auto_replayed"], false);

    let id = client.submit(&json!({"task_type": "u", "concurrency_key": "k", "concurrency_limit": 3})).await;
    let task = client.get(&format!("/api/v1/tasks/{id}")).await.ok(200);
    assert_eq!((&task["concurrency_key"], &task["concurrency_limit"]), (&json!("k"), &json!(3)));
    assert_eq!((&task["ordering_key"], &task["unique"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_submit_says_by_what_it_is_known() {
    let (_server, mut client) = begin().await;
    let body = |on_conflict: &str| json!({"task_type": "t", "parameters": {"a": 1}, "delay_seconds": 100, "unique": {"on_conflict": on_conflict}});
    let first = submit(&mut client, &body("keep"), 201).await;
    assert_eq!((&first["deduplicated"], &first["deduplicated_by"]), (&json!(false), &Value::Null));
    for (on_conflict, known_by) in
        [("keep", "unique_kept"), ("replace", "unique_replaced"), ("reschedule", "unique_rescheduled")]
    {
        let again = submit(&mut client, &body(on_conflict), 200).await;
        assert_eq!((&again["task_id"], &again["deduplicated"]), (&first["task_id"], &json!(true)));
        assert_eq!(again["deduplicated_by"], known_by);
    }
    let refused = client.json("POST", "/api/v1/tasks", &body("error")).await;
    assert_eq!(refused.refused(409, "unique_conflict"), Some("unique"));
    let detail = refused.body["detail"].as_str().expect("a detail");
    assert!(detail.contains(first["task_id"].as_str().expect("an id")) && detail.contains("scheduled"), "{detail}");
    let batch = json!({"tasks": [{"task_type": "x"}, body("keep")]});
    let stored = client.json("POST", "/api/v1/tasks/batch", &batch).await.ok(201);
    assert_eq!((&stored["task_ids"][1], &stored["deduplicated"]), (&first["task_id"], &json!(1)));
    let answer =
        client.json("POST", "/api/v1/tasks/batch", &json!({"tasks": [{"task_type": "x"}, body("error")]})).await;
    answer.refused(409, "unique_conflict");
    assert_eq!(answer.body["index"], 1);
}

#[tokio::test]
async fn a_conflict_with_a_task_that_runs_says_the_way_out() {
    let (_server, mut client) = begin().await;
    let worker = client.register().await;
    let body = json!({"task_type": "t", "unique": {"on_conflict": "error"}});
    client.submit(&body).await;
    client.poll(&worker, 1).await;
    let answer = client.json("POST", "/api/v1/tasks", &body).await;
    answer.refused(409, "unique_conflict");
    let detail = answer.body["detail"].as_str().expect("a detail");
    assert!(detail.contains("executing") && detail.contains("`while` without executing"), "{detail}");
}

#[tokio::test]
async fn a_tenant_that_submits_too_fast_is_told_when_to_come_back() {
    let (_server, mut client) = begin().await;
    let limit = json!({"tenant_rate_limit": {"count": 1, "per_seconds": 1000, "burst": 2}});
    client.json("PUT", "/api/v1/queues/q", &limit).await.ok(200);
    let body = json!({"task_type": "t", "queue": "q", "tenant": "acme"});
    for _ in 0..2 {
        client.submit(&body).await;
    }
    let answer = client.json("POST", "/api/v1/tasks", &body).await;
    answer.refused(429, "rate_limited");
    let seconds = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
    assert_eq!(seconds, answer.body["retry_after_seconds"].as_u64());
    assert!(seconds.is_some_and(|seconds| (1..=1000).contains(&seconds)), "{seconds:?}");
    client.submit(&json!({"task_type": "t", "queue": "q", "tenant": "other"})).await;
    client.submit(&json!({"task_type": "t", "queue": "q"})).await;
}

#[tokio::test]
async fn settings_that_contradict_themselves() {
    let (_server, mut client) = begin().await;
    for (path, body, code, field) in [
        ("queues/q", json!({"weights": {"high": 0}}), "invalid_field", "weights"),
        ("queues/q", json!({"weights": {"urgent": 1}}), "invalid_field", "weights"),
        ("queues/q", json!({"weights": {"high": -1}}), "invalid_field", "weights.high"),
        ("queues/q", json!({"tenant_weights": {"a": 1001}}), "invalid_field", "tenant_weights"),
        ("queues/q", json!({"concurrency": 0}), "invalid_field", "concurrency"),
        ("queues/q", json!({"rate_limit": {"count": 0}}), "invalid_field", "rate_limit"),
        ("queues/q", json!({"rate_limit": {"count": 1, "per_seconds": 0}}), "invalid_field", "rate_limit"),
        ("queues/q", json!({"rate_limit": {"count": 1, "burts": 0}}), "unknown_field", "rate_limit.burts"),
        ("queues/q", json!({"rate_limit": {}}), "missing_field", "rate_limit.count"),
        ("queues/q", json!({"tenant_rate_limit": {"count": 1, "burst": 0}}), "invalid_field", "tenant_rate_limit"),
        ("queues/q", json!({"max_lanes": 0}), "invalid_field", "max_lanes"),
        ("task-types/t", json!({"concurrency": 1_000_001}), "invalid_field", "concurrency"),
        ("task-types/t", json!({"slots": 0}), "invalid_field", "slots"),
        ("task-types/t", json!({"slots": 10_001}), "invalid_field", "slots"),
        ("task-types/t", json!({"breaker": {"failure_ratio": 1.5}}), "invalid_field", "breaker"),
        ("task-types/t", json!({"breaker": {"ratio": 1}}), "unknown_field", "breaker.ratio"),
        ("task-types/t", json!({"sensitive": "very"}), "invalid_field", "sensitive"),
        ("task-types/t", json!({"auto_replay": {"classes": []}}), "invalid_field", "auto_replay.classes"),
        (
            "task-types/t",
            json!({"auto_replay": {"rate_per_second": 0}}),
            "invalid_field",
            "auto_replay.rate_per_second",
        ),
    ] {
        let answer = client.json("PUT", &format!("/api/v1/{path}"), &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{body}: {}", answer.text);
    }
    client.get("/api/v1/queues/q").await.refused(404, "queue_not_found");
    client.get("/api/v1/task-types/t").await.refused(404, "task_type_not_found");
}

#[tokio::test]
async fn settings_are_shown_as_they_apply() {
    let (_server, mut client) = begin().await;
    let plain = client.get("/api/v1/queues/default").await.ok(200);
    assert_eq!(plain["weights"], json!({"high": 70, "medium": 20, "low": 10}));
    assert_eq!((&plain["tenant_weights"], &plain["max_lanes"]), (&json!({}), &json!(10_000)));
    assert_eq!((&plain["concurrency"], &plain["rate_limit"]), (&Value::Null, &Value::Null));
    let settings = json!({"policy": "weighted", "weights": {"low": 30}, "tenant_weights": {"acme": 5}, "concurrency": 4,
        "rate_limit": {"count": 100, "per_seconds": 60, "burst": 10}, "tenant_rate_limit": {"count": 5}, "max_lanes": 7});
    let queue = client.json("PUT", "/api/v1/queues/q", &settings).await.ok(200);
    assert_eq!(queue["weights"], json!({"high": 70, "medium": 20, "low": 30}));
    assert_eq!((&queue["policy"], &queue["tenant_weights"]), (&json!("weighted"), &json!({"acme": 5})));
    assert_eq!(queue["rate_limit"], json!({"count": 100, "per_seconds": 60, "burst": 10}));
    assert_eq!(queue["tenant_rate_limit"], json!({"count": 5, "per_seconds": 1, "burst": null}));
    assert_eq!((&queue["concurrency"], &queue["max_lanes"]), (&json!(4), &json!(7)));
    let cleared = client.json("PUT", "/api/v1/queues/q", &json!({"rate_limit": null, "max_lanes": null})).await.ok(200);
    assert_eq!((&cleared["rate_limit"], &cleared["max_lanes"]), (&Value::Null, &json!(10_000)));

    let settings = json!({"concurrency": 50, "rate_limit": {"count": 3}, "slots": 2, "sensitive": true,
        "breaker": {"min_attempts": 5}, "auto_replay": {}});
    let of_type = client.json("PUT", "/api/v1/task-types/t", &settings).await.ok(200);
    assert_eq!((&of_type["concurrency"], &of_type["slots"]), (&json!(50), &json!(2)));
    assert_eq!(of_type["sensitive"], true);
    let breaker = json!({"min_attempts": 5, "failure_ratio": 0.8, "window_seconds": 300, "recovery_seconds": 60});
    assert_eq!(of_type["breaker"], breaker);
    assert_eq!(of_type["auto_replay"], json!({"classes": ["transient"], "rate_per_second": 10}));
    assert_eq!(client.get("/api/v1/task-types/t").await.ok(200), of_type);
}

#[tokio::test]
async fn error_rules_that_are_wrong() {
    let (_server, mut client) = begin().await;
    let many = vec![json!({"code": "x", "class": "transient"}); 201];
    for (body, code, field) in [
        (json!({}), "missing_field", "rules"),
        (json!([]), "invalid_field", "body"),
        (json!({"rules": [], "rule": []}), "unknown_field", "rule"),
        (json!({"rules": [], "unknown_max_retries": 101}), "invalid_field", "unknown_max_retries"),
        (json!({"rules": many}), "invalid_field", "rules"),
        (json!({"rules": [{"code": "x"}]}), "missing_field", "rules[0].class"),
        (json!({"rules": [{"class": "transient"}]}), "invalid_field", "rules[0]"),
        (json!({"rules": [{"code": "x", "class": "worker_lost"}]}), "invalid_field", "rules[0].class"),
        (json!({"rules": [{"code": "x", "class": "transient", "when": 1}]}), "unknown_field", "rules[0].when"),
        (json!({"rules": [{"code": "", "class": "transient"}]}), "invalid_field", "rules[0].code"),
        (json!({"rules": [{"code": "*********", "class": "transient"}]}), "invalid_field", "rules[0].code"),
        (
            json!({"rules": [{"task_type": "a b", "code": "x", "class": "transient"}]}),
            "invalid_field",
            "rules[0].task_type",
        ),
        (json!({"rules": [{"http_status": 99, "class": "transient"}]}), "invalid_field", "rules[0].http_status"),
        (json!({"rules": [{"http_status": "599-500", "class": "transient"}]}), "invalid_field", "rules[0].http_status"),
        (json!({"rules": [{"message": "(", "class": "transient"}]}), "invalid_field", "rules[0].message"),
        (
            json!({"rules": [{"code": "x", "class": "transient"}, {"message": "((a{1000}){1000}){1000}", "class": "permanent"}]}),
            "invalid_field",
            "rules[1].message",
        ),
    ] {
        let answer = client.json("PUT", "/api/v1/error-rules", &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{}", answer.text);
    }
    assert_eq!(client.get("/api/v1/error-rules").await.ok(200)["rules"], json!([]), "nothing of it is kept");
    for (body, code, field) in [
        (json!({}), "missing_field", "error"),
        (json!({"error": {}}), "missing_field", "error.message"),
        (json!({"error": {"message": "x", "colour": 1}}), "unknown_field", "error.colour"),
        (json!({"error": {"message": "x", "code": ""}}), "invalid_field", "error.code"),
        (json!({"error": {"message": "x", "retry_after_seconds": -1}}), "invalid_field", "error.retry_after_seconds"),
        (json!({"error": {"message": "x"}, "task_type": "a b"}), "invalid_field", "task_type"),
        (
            json!({"error": {"message": "x"}, "rules": [{"message": "[", "class": "permanent"}]}),
            "invalid_field",
            "rules[0].message",
        ),
    ] {
        let answer = client.json("POST", "/api/v1/error-rules/test", &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{body}: {}", answer.text);
    }
}

#[tokio::test]
async fn error_rules_are_kept_tried_and_replaced() {
    let (_server, mut client) = begin().await;
    let rules = json!({"rules": [
        {"name": "cards", "code": "card_*", "class": "permanent"},
        {"task_type": "charge", "code": "card_busy", "class": "rate_limited"},
        {"http_status": ["5xx", 404], "class": "transient"},
        {"message": "^(a+)+$", "class": "resource"}], "unknown_max_retries": 1});
    let kept = client.json("PUT", "/api/v1/error-rules", &rules).await.ok(200);
    assert_eq!((&kept["rules"][0], &kept["unknown_max_retries"]), (&rules["rules"][0], &json!(1)));
    assert_eq!(kept["rules"][2]["http_status"], json!(["500-599", "404"]));
    assert!(kept["built_in"].as_array().is_some_and(|rules| rules.iter().any(|rule| rule["class"] == "code_bug")));
    assert_eq!(client.get("/api/v1/error-rules").await.ok(200), kept);

    client
        .json("PUT", "/api/v1/task-types/charge", &json!({"retry": {"non_retryable_codes": ["never"]}}))
        .await
        .ok(200);
    let slow = format!("{}!{}", "a".repeat(1_000), "a".repeat(7_000));
    for (body, class, decided_by, rule) in [
        (
            json!({"task_type": "charge", "error": {"message": "x", "code": "never"}}),
            "permanent",
            "policy",
            Value::Null,
        ),
        (
            json!({"task_type": "charge", "error": {"message": "x", "code": "card_busy"}}),
            "rate_limited",
            "rule",
            json!(1),
        ),
        (json!({"task_type": "mail", "error": {"message": "x", "code": "card_busy"}}), "permanent", "rule", json!(0)),
        (json!({"error": {"message": "x", "http_status": 404}}), "transient", "rule", json!(2)),
        (json!({"error": {"message": "x", "http_status": 403}}), "permanent", "built_in", Value::Null),
        (json!({"error": {"message": "x", "retriable": true}}), "transient", "handler", Value::Null),
        (json!({"error": {"message": slow}}), "unknown", "nobody", Value::Null),
        (json!({"error": {"message": "x", "http_status": 404}, "rules": []}), "permanent", "built_in", Value::Null),
    ] {
        let tried = client.json("POST", "/api/v1/error-rules/test", &body).await.ok(200);
        assert_eq!((&tried["class"], &tried["decided_by"]), (&json!(class), &json!(decided_by)), "{tried}");
        assert_eq!(tried["rule"], rule);
        assert_eq!(tried["retriable"], json!(class != "permanent"));
        assert!(tried["handling"].as_str().is_some_and(|sentence| sentence.ends_with('.')), "{tried}");
    }
    assert_eq!(client.get("/api/v1/error-rules").await.ok(200), kept, "trying changes nothing");
    let empty = client.json("PUT", "/api/v1/error-rules", &json!({"rules": []})).await.ok(200);
    assert_eq!((&empty["rules"], &empty["unknown_max_retries"]), (&json!([]), &Value::Null));
}

#[tokio::test]
async fn errors_that_nothing_classifies_are_listed() {
    let (_server, mut client) = begin().await;
    let worker = client.register().await;
    for n in 0..3 {
        client.submit(&json!({"task_type": "odd"})).await;
        let polled = client.poll(&worker, 1).await;
        let error = json!({"message": format!("user {n} is gone")});
        finish(&mut client, &worker, &polled["tasks"][0], json!({"status": "failed", "error": error})).await;
    }
    let listed = client.get("/api/v1/error-rules").await.ok(200)["unclassified"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&listed[0]["task_type"], &listed[0]["count"]), (&json!("odd"), &json!(3)));
    assert_eq!((&listed[0]["code"], &listed[0]["message"]), (&Value::Null, &json!("user 2 is gone")));
    assert!(listed[0]["last_seen"].is_string());
    let text = client.get("/metrics").await.text;
    assert!(text.contains(r#"windlass_errors_unclassified_total{type="odd"} 3"#), "{text}");
}

#[tokio::test]
async fn breakers_are_forced_and_left_to_themselves() {
    let (_server, mut client) = begin().await;
    let worker = client.register().await;
    assert_eq!(client.get("/api/v1/breakers").await.ok(200), json!({"items": [], "next_cursor": null}));
    let opened = client.call("POST", "/api/v1/breakers/task_type/mail/open", b"").await.ok(200);
    assert_eq!((&opened["scope"], &opened["name"]), (&json!("type"), &json!("mail")));
    assert_eq!((&opened["state"], &opened["forced"], &opened["until"]), (&json!("open"), &json!("open"), &Value::Null));
    assert!(opened["since"].is_string() && opened["reason"].is_string(), "{opened}");
    assert_eq!((&opened["attempts"], &opened["failures"]), (&json!(0), &json!(0)));
    let id = client.submit(&json!({"task_type": "mail"})).await;
    assert_eq!(client.poll(&worker, 1).await["tasks"], json!([]));
    let explained = explain(&mut client, &id).await;
    assert_eq!(explained["reason"], "breaker_open", "{explained}");
    let text = client.get("/metrics").await.text;
    assert!(text.contains(r#"windlass_breaker_state{scope="type",name="mail"} 2"#), "{text}");
    let auto = client.call("POST", "/api/v1/breakers/type/mail/auto", b"").await.ok(200);
    assert_eq!((&auto["state"], &auto["forced"]), (&json!("closed"), &Value::Null));

    let path = format!("/api/v1/breakers/worker/{worker}");
    assert_eq!(client.call("POST", &format!("{path}/open"), b"").await.ok(200)["name"], json!(worker));
    assert_eq!(client.poll(&worker, 1).await["tasks"], json!([]));
    assert_eq!(explain(&mut client, &id).await["reason"], "worker_breaker_open");
    let text = client.get("/metrics").await.text;
    assert!(text.contains(&format!(r#"windlass_breaker_state{{scope="worker",name="{worker}"}} 2"#)), "{text}");
    let closed = client.call("POST", &format!("{path}/close"), b"").await.ok(200);
    assert_eq!((&closed["state"], &closed["forced"]), (&json!("closed"), &json!("closed")));
    assert_eq!(client.poll(&worker, 1).await["tasks"][0]["task_id"], json!(id));
}

#[tokio::test]
async fn breakers_that_do_not_exist() {
    let (_server, mut client) = begin().await;
    for (path, status, code) in [
        ("queue/q/open", 404, "breaker_not_found"),
        ("%00/q/open", 404, "breaker_not_found"),
        ("type/mail/explode", 404, "breaker_not_found"),
        ("type/a%20b/open", 400, "invalid_field"),
        ("worker/nonsense/open", 404, "worker_not_found"),
        ("type/%ff/open", 404, "not_found"),
        ("type/mail", 404, "not_found"),
    ] {
        client.call("POST", &format!("/api/v1/breakers/{path}"), b"").await.refused(status, code);
    }
    let path = format!("/api/v1/breakers/worker/{UNKNOWN_ID}/open");
    client.call("POST", &path, b"").await.refused(404, "worker_not_found");
    client.get("/api/v1/breakers/type/mail/open").await.refused(405, "method_not_allowed");
    assert_eq!(client.get("/api/v1/breakers").await.ok(200)["items"], json!([]));
}

#[tokio::test]
async fn explain_names_keys_limits_and_slots() {
    let (_server, mut client) = begin().await;
    let worker = client.register().await;
    let first = client.submit(&json!({"task_type": "a", "ordering_key": "k"})).await;
    let second = client.submit(&json!({"task_type": "a", "ordering_key": "k"})).await;
    let explained = explain(&mut client, &second).await;
    assert_eq!((&explained["reason"], &explained["held_by"]), (&json!("ordering_key"), &json!(first)), "{explained}");
    assert_eq!((&explained["ordering_key"], &explained["ahead"]), (&json!("k"), &json!(1)));
    assert_eq!(explain(&mut client, &first).await["reason"], "next");
    let polled = client.poll(&worker, 5).await;
    assert_eq!((&polled["tasks"][0]["task_id"], &polled["tasks"][0]["ordering_key"]), (&json!(first), &json!("k")));
    assert_eq!(polled["tasks"].as_array().map(Vec::len), Some(1), "one at a time");
    finish(&mut client, &worker, &polled["tasks"][0], json!({"status": "completed"})).await;
    assert_eq!(explain(&mut client, &second).await["reason"], "next");
    client.poll(&worker, 5).await;

    let keyed = json!({"task_type": "b", "concurrency_key": "k", "concurrency_limit": 1});
    let running = client.submit(&keyed).await;
    let parked = client.submit(&keyed).await;
    client.poll(&worker, 5).await;
    let explained = explain(&mut client, &parked).await;
    assert_eq!((&explained["reason"], &explained["limit"]), (&json!("concurrency_key"), &json!(1)), "{explained}");
    assert_eq!((&explained["concurrency_key"], &explained["running"]), (&json!("k"), &json!([running])));

    client.json("PUT", "/api/v1/task-types/c", &json!({"concurrency": 1})).await.ok(200);
    client.submit(&json!({"task_type": "c"})).await;
    client.poll(&worker, 1).await;
    let limited = client.submit(&json!({"task_type": "c"})).await;
    let explained = explain(&mut client, &limited).await;
    assert_eq!((&explained["reason"], &explained["limit"]), (&json!("type_concurrency"), &json!(1)), "{explained}");

    client.json("PUT", "/api/v1/queues/slow", &json!({"rate_limit": {"count": 1, "per_seconds": 600}})).await.ok(200);
    client.submit(&json!({"task_type": "d", "queue": "slow"})).await;
    client.poll(&worker, 1).await;
    let paced = client.submit(&json!({"task_type": "d", "queue": "slow"})).await;
    let explained = explain(&mut client, &paced).await;
    assert_eq!(explained["reason"], "queue_rate", "{explained}");
    assert!(explained["next_token_at"].is_string());

    client.json("PUT", "/api/v1/task-types/big", &json!({"slots": 11})).await.ok(200);
    let big = client.submit(&json!({"task_type": "big"})).await;
    let explained = explain(&mut client, &big).await;
    assert_eq!(explained["reason"], "too_few_slots", "{explained}");
    assert_eq!((&explained["slots"], &explained["largest_capacity"]), (&json!(11), &json!(10)));
}
