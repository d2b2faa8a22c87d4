//! What clients get wrong: every refusal has its status, its code and its field, and the
//! connection goes on.

mod common;

use common::{Client, start, start_with};
use serde_json::json;
use windlass_server::ServerConfig;

#[tokio::test]
async fn bodies_that_are_not_acceptable_json() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let deep = format!(r#"{{"task_type":"t","parameters":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let cases: &[(&[u8], &str)] = &[
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"nonsense", "invalid_json"),
        (br#"{"task_type":"t"} trailing"#, "invalid_json"),
        (br#"{"task_type":"t","parameters":{"a":}}"#, "invalid_json"),
        (br#"{"task_type":"t","parameters":1e400}"#, "invalid_json"),
        (br#"{"task_type":"t","parameters":"\ud800"}"#, "invalid_json"),
        (br#"{"task_type":"t","parameters":"\udc00x"}"#, "invalid_json"),
        (br#"{"task_type":"t","parameters":"a\u0000b"}"#, "invalid_json"),
        (b"{\"task_type\":\"t\",\"parameters\":\"\xff\xfe\"}", "invalid_json"),
        (b"{\"task_type\":\"t\",\"parameters\":\"raw \x01 control\"}", "invalid_json"),
        (deep.as_bytes(), "payload_too_deep"),
    ];
    for (body, code) in cases {
        let answer = client.call("POST", "/api/v1/tasks", body).await;
        answer.refused(400, code);
    }
    client.submit(&json!({"task_type": "t", "parameters": "\u{1F600}"})).await;
}

#[tokio::test]
async fn fields_that_are_wrong_are_named() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let long = "x".repeat(257);
    for (body, code, field) in [
        (json!([]), "invalid_field", "body"),
        (json!(["t", null, null, null, null, null, null, null, null, null]), "invalid_field", "body"),
        (json!("t"), "invalid_field", "body"),
        (json!(null), "invalid_field", "body"),
        (json!({}), "missing_field", "task_type"),
        (json!({"task_type": 7}), "invalid_field", "task_type"),
        (json!({"task_type": null}), "invalid_field", "task_type"),
        (json!({"task_type": ""}), "invalid_field", "task_type"),
        (json!({"task_type": "../etc"}), "invalid_field", "task_type"),
        (json!({"task_type": "a b"}), "invalid_field", "task_type"),
        (json!({"task_type": "x".repeat(129)}), "invalid_field", "task_type"),
        (json!({"task_type": "t", "priorty": "high"}), "unknown_field", "priorty"),
        (json!({"task_type": "t", "priority": "urgent"}), "invalid_field", "priority"),
        (json!({"task_type": "t", "priority": 10}), "invalid_field", "priority"),
        (json!({"task_type": "t", "priority": 1.5}), "invalid_field", "priority"),
        (json!({"task_type": "t", "queue": "a/b"}), "invalid_field", "queue"),
        (json!({"task_type": "t", "delay_seconds": -1}), "invalid_field", "delay_seconds"),
        (json!({"task_type": "t", "delay_seconds": 1e300}), "invalid_field", "delay_seconds"),
        (json!({"task_type": "t", "delay_seconds": "5"}), "invalid_field", "delay_seconds"),
        (json!({"task_type": "t", "run_at": "tomorrow"}), "invalid_field", "run_at"),
        (json!({"task_type": "t", "run_at": "9998-01-01T00:00:00Z"}), "invalid_field", "run_at"),
        (json!({"task_type": "t", "delay_seconds": 1, "run_at": "2023-11-14T22:13:20Z"}), "invalid_field", "run_at"),
        (json!({"task_type": "t", "expires_at": 5}), "invalid_field", "expires_at"),
        (json!({"task_type": "t", "timeout_seconds": 0}), "invalid_field", "timeout_seconds"),
        (json!({"task_type": "t", "timeout_seconds": 700_000}), "invalid_field", "timeout_seconds"),
        (json!({"task_type": "t", "max_retries": -1}), "invalid_field", "max_retries"),
        (json!({"task_type": "t", "max_retries": 101}), "invalid_field", "max_retries"),
        (json!({"task_type": "t", "max_retries": 1.5}), "invalid_field", "max_retries"),
        (json!({"task_type": "t", "retry": {"strategy": "guess"}}), "invalid_field", "retry.strategy"),
        (json!({"task_type": "t", "retry": {"factor": 0.5}}), "invalid_field", "retry.factor"),
        (json!({"task_type": "t", "retry": {"bas_delay": 1}}), "unknown_field", "retry.bas_delay"),
        (json!({"task_type": "t", "idempotency_key": ""}), "invalid_field", "idempotency_key"),
        (json!({"task_type": "t", "idempotency_key": "a\nb"}), "invalid_field", "idempotency_key"),
        (json!({"task_type": "t", "tenant": long}), "invalid_field", "tenant"),
        (json!({"task_type": "t", "required_capabilities": ["a b"]}), "invalid_field", "required_capabilities[0]"),
        (json!({"task_type": "t", "required_capabilities": "gpu"}), "invalid_field", "required_capabilities"),
        (json!({"task_type": "t", "tags": {"k": 1}}), "invalid_field", "tags.k"),
        (json!({"task_type": "t", "ordering_key": ""}), "invalid_field", "ordering_key"),
        (json!({"task_type": "t", "concurrency_key": "k"}), "invalid_field", "concurrency_key"),
        (json!({"task_type": "t", "concurrency_limit": 1}), "invalid_field", "concurrency_limit"),
        (json!({"task_type": "t", "unique": "yes"}), "invalid_field", "unique"),
    ] {
        let answer = client.json("POST", "/api/v1/tasks", &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{body}: {}", answer.text);
    }
    // What is wrong is said in words that a reader of the API knows.
    let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "t", "max_retries": "3"})).await;
    assert_eq!(
        answer.body["detail"],
        "max_retries is not valid: invalid type: string \"3\", expected a whole number that is not negative"
    );
    let tags: serde_json::Map<_, _> = (0..33).map(|n| (format!("k{n}"), json!("v"))).collect();
    let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "t", "tags": tags})).await;
    assert_eq!(answer.refused(400, "invalid_field"), Some("tags"));
    client.submit(&json!({"task_type": "t", "ordering_key": null, "unique": null, "run_at": null})).await;
}

#[tokio::test]
async fn too_large_names_limit_and_size() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let body = json!({"task_type": "t", "parameters": "x".repeat(65_536)});
    let answer = client.json("POST", "/api/v1/tasks", &body).await;
    assert_eq!(answer.refused(413, "payload_too_large"), Some("parameters"));
    let detail = answer.body["detail"].as_str().expect("a detail");
    assert!(detail.contains("65536") && detail.contains("65538"), "{detail}");
    client.submit(&json!({"task_type": "t", "parameters": "x".repeat(65_534)})).await;

    let answer = client.call("POST", "/api/v1/tasks", &vec![b' '; 1_000_000]).await;
    assert_eq!(answer.refused(413, "payload_too_large"), Some("body"));
    // Without an announced length the limit holds all the same.
    let mut client = Client::new(&server).await;
    client.send(b"POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..4 {
        client.send(&chunk).await;
    }
    client.read().await.refused(413, "payload_too_large");
}

#[tokio::test]
async fn batches_name_the_item() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let good = json!({"task_type": "t"});
    for (body, code, field, index) in [
        (json!({"tasks": []}), "invalid_field", "tasks", None),
        (json!({"tasks": vec![good.clone(); 1001]}), "invalid_field", "tasks", None),
        (json!({"tasks": [good, {"task_type": "t", "priority": "x"}]}), "invalid_field", "tasks[1].priority", Some(1)),
        (
            json!({"tasks": [good, good, {"task_type": "t", "timeout_seconds": 0}]}),
            "invalid_field",
            "tasks[2].timeout_seconds",
            Some(2),
        ),
        (json!({"tasks": [{}]}), "missing_field", "tasks[0].task_type", Some(0)),
        (json!({"tasks": [good], "group": {}}), "invalid_field", "group", None),
        (json!({"tasks": [good], "max_per_second": 0}), "invalid_field", "max_per_second", None),
    ] {
        let answer = client.json("POST", "/api/v1/tasks/batch", &body).await;
        assert_eq!(answer.refused(400, code), Some(field));
        assert_eq!(answer.body["index"].as_u64(), index);
    }
    let stats = client.get("/api/v1/queue/stats").await.ok(200);
    assert_eq!(stats["by_status"]["queued"], 0, "nothing of a refused batch is stored");
}

#[tokio::test]
async fn queries_that_are_wrong_are_named() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    for (query, code, field) in [
        ("limit=0", "invalid_field", "limit"),
        ("limit=1001", "invalid_field", "limit"),
        ("limit=many", "invalid_field", "limit"),
        ("limit=1&limit=2", "invalid_field", "limit"),
        ("cursor=nonsense", "invalid_field", "cursor"),
        ("statuss=queued", "unknown_field", "statuss"),
        ("status=lost", "invalid_field", "status"),
        ("queue=a/b", "invalid_field", "queue"),
        ("task_type=%20", "invalid_field", "task_type"),
        ("priority=11", "invalid_field", "priority"),
        ("tag=novalue", "invalid_field", "tag"),
        ("worker_id=7", "invalid_field", "worker_id"),
        ("created_after=yesterday", "invalid_field", "created_after"),
        ("parameter=a:like:b", "invalid_field", "parameter"),
        ("include=everything", "invalid_field", "include"),
    ] {
        let answer = client.get(&format!("/api/v1/tasks?{query}")).await;
        assert_eq!(answer.refused(400, code), Some(field), "{query}");
    }
    for (path, field) in [
        ("/api/v1/dlq?class=odd", "class"),
        ("/api/v1/dlq?dead_reason=odd", "dead_reason"),
        ("/api/v1/dlq?cursor=%00", "cursor"),
        ("/api/v1/dlq/analysis?class=odd", "class"),
        ("/api/v1/dlq/analysis?after=yesterday", "after"),
        ("/api/v1/stats/retries?window=8d", "window"),
        ("/api/v1/stats/retries?window=soon", "window"),
        ("/api/v1/workers?limit=1001", "limit"),
        ("/api/v1/workers?cursor=x", "cursor"),
        ("/api/v1/queues?cursor=%20", "cursor"),
        ("/api/v1/task-types?limit=-1", "limit"),
    ] {
        assert_eq!(client.get(path).await.refused(400, "invalid_field"), Some(field), "{path}");
    }
    let id = client.submit(&json!({"task_type": "t"})).await;
    for (query, field) in [("wait=61", "wait"), ("wait=-1", "wait"), ("include=all", "include")] {
        let answer = client.get(&format!("/api/v1/tasks/{id}?{query}")).await;
        assert_eq!(answer.refused(400, "invalid_field"), Some(field));
    }
}

#[tokio::test]
async fn what_does_not_exist() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for id in [unknown, "nonsense", "%00", "..%2f..%2fetc", "💥"] {
        for (method, path) in [
            ("GET", format!("/api/v1/tasks/{id}")),
            ("DELETE", format!("/api/v1/tasks/{id}")),
            ("POST", format!("/api/v1/tasks/{id}/retry")),
            ("GET", format!("/api/v1/tasks/{id}/progress")),
            ("GET", format!("/api/v1/tasks/{id}/explain")),
            ("GET", format!("/api/v1/dlq/{id}")),
            ("POST", format!("/api/v1/dlq/{id}/replay")),
            ("DELETE", format!("/api/v1/dlq/{id}")),
        ] {
            client.call(method, &path, b"").await.refused(404, "task_not_found");
        }
        let amendment = json!({"priority": "high"});
        client.json("PATCH", &format!("/api/v1/tasks/{id}"), &amendment).await.refused(404, "task_not_found");
        let reason = json!({"reason": "x"});
        client.json("POST", &format!("/api/v1/tasks/{id}/dead-letter"), &reason).await.refused(404, "task_not_found");
        let poll = json!({"available_capacity": 1});
        client.json("POST", &format!("/internal/workers/{id}/poll"), &poll).await.refused(404, "worker_not_found");
        client
            .json("POST", &format!("/internal/workers/{id}/heartbeat"), &json!({}))
            .await
            .refused(404, "worker_not_found");
        client.call("POST", &format!("/internal/workers/{id}/drain"), b"").await.refused(404, "worker_not_found");
        client.call("DELETE", &format!("/internal/workers/{id}"), b"").await.refused(404, "worker_not_found");
        client.call("POST", &format!("/api/v1/workers/{id}/drain"), b"").await.refused(404, "worker_not_found");
    }
    client.get("/api/v1/queues/none").await.refused(404, "queue_not_found");
    client.call("DELETE", "/api/v1/queues/none", b"").await.refused(404, "queue_not_found");
    client.get("/api/v1/task-types/none").await.refused(404, "task_type_not_found");
    client.call("DELETE", "/api/v1/task-types/none", b"").await.refused(404, "task_type_not_found");
    client.get("/api/v2/tasks").await.refused(404, "not_found");
    for path in ["/api/v1/tasks/%ff", "/api/v1/queues/%ff", "/api/v1/task-types/%c3%28", "/api/v1/dlq/%ff"] {
        client.get(path).await.refused(404, "not_found");
    }
    client.get("/api/v1/tasks/x/y/z").await.refused(404, "not_found");
    let answer = client.call("PUT", "/api/v1/tasks", b"").await;
    answer.refused(405, "method_not_allowed");
    let allow = answer.header("allow").expect("an Allow header");
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    client.call("BREW", "/healthz", b"").await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn settings_that_are_wrong() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    for (path, body, code, field) in [
        ("queues/q", json!({"polcy": "strict"}), "unknown_field", "polcy"),
        ("queues/q", json!({"policy": "odd"}), "invalid_field", "policy"),
        ("queues/q", json!({"depth": {"soft": 3, "hard": 2}}), "invalid_field", "depth"),
        ("queues/q", json!({"depth": {"sof": 3}}), "unknown_field", "depth.sof"),
        ("queues/q", json!({"concurrency": 0}), "invalid_field", "concurrency"),
        ("queues/q", json!({"paused": "yes"}), "invalid_field", "paused"),
        ("queues/a%20b", json!({}), "invalid_field", "name"),
        ("task-types/t", json!({"max_retries": 101}), "invalid_field", "max_retries"),
        ("task-types/t", json!({"retry": {"factor": 0.1}}), "invalid_field", "retry.factor"),
        ("task-types/t", json!({"rate_limit": {"count": 0}}), "invalid_field", "rate_limit"),
        ("task-types/t", json!({"schema": {"type": "object"}}), "invalid_field", "schema"),
        ("task-types/t", json!({"timout_seconds": 1}), "unknown_field", "timout_seconds"),
        ("task-types/%2e", json!({}), "invalid_field", "type"),
    ] {
        let answer = client.json("PUT", &format!("/api/v1/{path}"), &body).await;
        assert_eq!(answer.refused(400, code), Some(field), "{body}");
    }
    client.json("PUT", "/api/v1/queues/q", &json!({"concurrency": null, "policy": "strict"})).await.ok(200);
    // What says what happens anyway is taken, also where the feature is still to come.
    client.json("PUT", "/api/v1/queues/q", &json!({"events": "full"})).await.ok(200);
    client.json("PUT", "/api/v1/task-types/t", &json!({"sensitive": false, "schema": {}})).await.ok(200);
}

#[tokio::test]
async fn strict_types_must_be_set_up() {
    let server = start_with(ServerConfig { strict_types: true, ..ServerConfig::default() }).await;
    let mut client = Client::new(&server).await;
    let answer = client.json("POST", "/api/v1/tasks", &json!({"task_type": "t"})).await;
    assert_eq!(answer.refused(422, "unknown_task_type"), Some("task_type"));
    client.json("PUT", "/api/v1/task-types/t", &json!({})).await.ok(200);
    client.submit(&json!({"task_type": "t"})).await;
}

#[tokio::test]
async fn bytes_that_are_not_http_do_not_hurt() {
    let server = start().await;
    for bytes in
        [&b"\x00\x01\x02\xff\xfe"[..], b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"]
    {
        let mut client = Client::new(&server).await;
        client.send(bytes).await;
    }
    let mut client = Client::new(&server).await;
    client.get("/healthz").await.ok(200);
    // What can be told apart from HTTP/2 and is no HTTP/1 either is answered, not just cut off.
    client.send(b"NONSENSE\r\n\r\n").await;
    assert_eq!(client.read().await.status, 400);
}

#[tokio::test]
async fn half_of_the_next_request_does_not_hold_back_an_answer() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    client.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /readyz HTTP/1.1\r\nho").await;
    client.read().await.ok(200);
    client.send(b"st: x\r\n\r\n").await;
    client.read().await.ok(200);
}

#[tokio::test]
async fn request_ids_are_kept_if_they_are_sane() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let answer = client.call_with("GET", "/nowhere", "x-request-id: my-id.7\r\n", b"").await;
    answer.refused(404, "not_found");
    assert_eq!(answer.header("x-request-id"), Some("my-id.7"));
    let answer = client.call_with("GET", "/healthz", "x-request-id: <script>\r\n", b"").await;
    assert!(answer.header("x-request-id").is_some_and(|id| id != "<script>"));
}
