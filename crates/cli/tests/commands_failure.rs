//! Commands about keys and about what goes wrong: the real binary against a real server.

mod commands_server;
mod support;

use commands_server::{Server, Worker};
use serde_json::{Value, json};

/// Submits a task and gives its id.
fn enqueue(server: &Server, args: &[&str]) -> String {
    let args: Vec<_> = ["enqueue"].iter().chain(args).copied().collect();
    server.ok(&args).trim().to_owned()
}

/// Takes the next task and lets it fail.
fn fail(worker: &Worker<'_>, error: &Value) {
    worker.finish(&worker.poll(), &json!({"status": "failed", "error": error}));
}

#[test]
fn tasks_have_ordering_and_concurrency_keys() {
    let server = Server::start();
    let first = enqueue(&server, &["ship", "--ordering-key", "order-7", "--on-failure", "skip"]);
    let second = enqueue(&server, &["ship", "--ordering-key", "order-7"]);
    let task = server.json(&["get", &first, "--json"]);
    assert_eq!((&task["ordering_key"], &task["ordering_on_failure"]), (&json!("order-7"), &json!("skip")));
    assert!(server.ok(&["get", &first]).contains("order-7; those behind it go on"));
    let worker = server.worker(&json!({}));
    let running = worker.poll();
    assert_eq!(running["task_id"], first.as_str());
    let why = server.ok(&["explain", &second]);
    for words in ["queued", "order-7", "ordering_key", "held_by", &first] {
        assert!(why.contains(words), "{words} is not in {why}");
    }
    let document = server.json(&["explain", &second, "--json"]);
    assert_eq!(document, server.api("GET", &format!("/api/v1/tasks/{second}/explain"), None));
    assert_eq!(document["reason"], "ordering_key");
    worker.finish(&running, &json!({"status": "completed"}));
    assert!(server.ok(&["explain", &first]).contains("It has completed."));
    assert_eq!(server.run(&["explain", "nope"]).code, 4);

    let limited = enqueue(&server, &["crawl", "--concurrency-key", "shop.com", "--concurrency-limit", "3"]);
    let task = server.json(&["get", &limited, "--json"]);
    assert_eq!((&task["concurrency_key"], &task["concurrency_limit"]), (&json!("shop.com"), &json!(3)));
    assert!(server.ok(&["get", &limited]).contains("shop.com, at most 3"));
    let both = ["enqueue", "t", "--ordering-key", "k", "--concurrency-key", "k", "--concurrency-limit", "3"];
    assert_eq!(server.run(&both).code, 2);
}

#[test]
fn the_same_work_is_submitted_once() {
    let server = Server::start();
    let submit = |n: &str, more: &[&str]| {
        let parameters = format!("{{\"customer\": 7, \"n\": {n}}}");
        let by = "--unique=task_type,parameters.customer";
        let args = ["enqueue", "report", "-p", &parameters, "--delay", "1h", "--json", by];
        let args: Vec<_> = args.iter().chain(more).copied().collect();
        server.run(&args)
    };
    let first = submit("1", &["--unique-while", "scheduled,queued", "--unique-for", "10m"]).json();
    assert_eq!((&first["deduplicated"], &first["deduplicated_by"]), (&json!(false), &Value::Null));
    let id = first["task_id"].as_str().expect("an id");
    let task = server.json(&["get", id, "--json"]);
    assert_eq!(
        (&task["unique"]["while"], &task["unique"]["for_seconds"]),
        (&json!(["scheduled", "queued"]), &json!(600))
    );
    assert!(server.ok(&["get", id]).contains("and for 10m after its submit; on conflict keep"));
    for (conflict, by) in
        [("keep", "unique_kept"), ("reschedule", "unique_rescheduled"), ("replace", "unique_replaced")]
    {
        let answer = submit("2", &["--on-conflict", conflict]).json();
        assert_eq!((&answer["task_id"], &answer["deduplicated_by"]), (&first["task_id"], &json!(by)), "{conflict}");
    }
    assert_eq!(server.json(&["get", id, "--json"])["parameters"]["n"], 2);
    let refused = submit("3", &["--on-conflict", "error"]);
    assert_eq!(refused.code, 5);
    refused.says(&["unique_conflict", id, "--on-conflict"]);
    let same = ["enqueue", "t", "-p", "7", "--json", "--unique"];
    assert_eq!(server.json(&same)["task_id"], server.json(&same)["task_id"]);
}

#[test]
fn dead_letters_are_seen_by_cause_and_replayed_at_a_pace() {
    let server = Server::start();
    server.run(&["dlq", "analysis"]).says(&["nothing needs you"]);
    let worker = server.worker(&json!({}));
    let mut ids = Vec::new();
    for (n, task_type) in ["mail", "mail", "mail", "charge"].into_iter().enumerate() {
        let tag = format!("n={n}");
        ids.push(enqueue(
            &server,
            &[task_type, "--tenant", "t1", "--tag", &tag, "--priority", "low", "--max-retries", "0"],
        ));
        fail(&worker, &json!({"message": format!("mailbox {n} is full"), "code": "smtp_452", "retriable": true}));
    }
    let table = server.ok(&["dlq", "analysis"]);
    for words in ["COUNT", "mailbox # is full", "smtp_452", "transient", "yes"] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    let groups = server.json(&["dlq", "analysis", "--type", "mail", "--json"]);
    assert_eq!(groups, server.api("GET", "/api/v1/dlq/analysis?task_type=mail", None));
    assert_eq!((&groups["groups"][0]["count"], &groups["examined"]), (&json!(3), &json!(3)));
    server.run(&["dlq", "analysis", "--type", "nothing"]).says(&["No dead letter matches"]);
    assert_eq!(server.run(&["dlq", "analysis", "--class", "odd"]).code, 5);

    let count = |filter: &[&str]| {
        let args: Vec<_> = ["dlq", "list", "--json"].iter().chain(filter).copied().collect();
        server.json(&args)["items"].as_array().map(Vec::len)
    };
    assert_eq!(count(&["--tenant", "t1", "--priority", "low"]), Some(4));
    assert_eq!(
        (count(&["--tag", "n=1"]), count(&["--tenant", "t2"]), count(&["--priority", "high"])),
        (Some(1), Some(0), Some(0))
    );
    let dry = ["dlq", "replay", "--priority", "low", "--tag", "n=0", "--dry-run", "--json"];
    assert_eq!(server.json(&dry)["matched"], 1);
    server.run(&["dlq", "replay", &ids[0], "--priority", "high"]).says(&["--new-priority high"]);

    let paced = ["dlq", "replay", "--type", "mail", "--rate", "0.01", "--new-priority", "high", "--yes"];
    assert_eq!(server.ok(&paced), "3 dead letters replayed; the last one starts in 3m 20s\n");
    // The first one starts at once.
    assert_eq!(worker.poll()["task_id"], ids[0].as_str());
    let task = server.json(&["get", &ids[2], "--json"]);
    assert_eq!((&task["status"], &task["priority"]), (&json!("scheduled"), &json!("high")));

    server.ok(&["types", "set", "charge", "sensitive=true"]);
    for args in [
        &["dlq", "replay", &ids[3]][..],
        &["retry", &ids[3]],
        &["dlq", "replay", "--type", "charge", "--yes"],
        &["dlq", "replay", "--all-of-them", "--yes"],
    ] {
        let refused = server.run(args);
        assert_eq!(refused.code, 5, "{args:?}: {}", refused.err);
        refused.says(&["sensitive", "Give --confirm"]);
    }
    server.ok(&["dlq", "replay", "--all-of-them", "--confirm", "--yes"]);
    fail(&worker, &json!({"message": "again", "retriable": false}));
    server.ok(&["retry", &ids[3], "--confirm"]);
}

#[test]
fn a_batch_keeps_its_pace() {
    let server = Server::start();
    let lines = "{\"task_type\": \"t\"}\n".repeat(502);
    let output = server.piped(&["enqueue", "--batch", "-", "--rate", "0.1", "--json"], &lines);
    let answer = output.json();
    let ids = answer["task_ids"].as_array().expect("ids");
    // The first starts at once, the last is the second of another call.
    let ahead = |index: usize| {
        let task = server.json(&["get", ids[index].as_str().expect("an id"), "--json"]);
        let time = |name: &str| task[name].as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");
        time("run_at").duration_since(time("created_at")).as_secs()
    };
    assert_eq!((ahead(0), ahead(1), ahead(499), ahead(500), ahead(501)), (0, 10, 4_990, 5_000, 5_010));
    assert_eq!(server.run(&["enqueue", "t", "--rate", "5"]).code, 2);
}

#[test]
fn waiting_tasks_are_buried() {
    let server = Server::start();
    let first = enqueue(&server, &["import", "--queue", "files"]);
    let bury = ["bury", &first, "--reason", "wrong file"];
    assert_eq!(server.ok(&bury), format!("{first} buried: it is a dead letter\n"));
    assert_eq!(server.json(&["get", &first, "--json"])["end_reason"], "rejected_by_operator");
    assert!(server.ok(&["dlq", "get", &first]).contains("wrong file"));
    let again = server.run(&bury);
    assert_eq!(again.code, 5);
    again.says(&["not_amendable", "Only a task that waits"]);
    assert_eq!(server.run(&["bury", "nope", "--reason", "r"]).code, 4);

    for _ in 0..3 {
        enqueue(&server, &["import", "--queue", "files", "--priority", "4"]);
    }
    let by_filter = |more: &[&str]| {
        let args = ["dead-letter", "--queue", "files", "--priority", "4", "--reason", "wrong file"];
        server.run(&args.iter().chain(more).copied().collect::<Vec<_>>())
    };
    assert_eq!(by_filter(&["--dry-run"]).out, "3 tasks would be buried; nothing was changed\n");
    let unasked = by_filter(&[]);
    assert_eq!(unasked.code, 2);
    unasked.says(&["Bury 3 tasks?", "--yes"]);
    assert_eq!(by_filter(&["--yes", "--limit", "2", "--json"]).json(), json!({"matched": 2, "dead_lettered": 2}));
    assert_eq!(by_filter(&["--yes"]).out, "1 task buried\n");
    assert_eq!(server.run(&["bury", &first, "--queue", "files", "--reason", "r"]).code, 2);
}

#[test]
fn breakers_are_forced_and_left_to_themselves() {
    let server = Server::start();
    server.run(&["breakers"]).says(&["Every breaker is closed"]);
    let forced = server.ok(&["breakers", "open", "type", "send_email"]);
    assert_eq!(forced, "breaker of type send_email is open until somebody says otherwise\n");
    let table = server.ok(&["breakers", "list"]);
    assert!(table.contains("send_email") && table.contains("a person forced it open"), "{table}");
    assert_eq!(server.json(&["breakers", "--json"]), server.api("GET", "/api/v1/breakers", None));
    let id = enqueue(&server, &["send_email"]);
    assert_eq!(server.json(&["explain", &id, "--json"])["reason"], "breaker_open");
    assert_eq!(server.json(&["breakers", "close", "type/send_email", "--json"])["forced"], "closed");
    assert_eq!(
        server.ok(&["breakers", "auto", "type", "send_email"]),
        "breaker of type send_email is closed and left to itself\n"
    );
    assert_eq!(server.run(&["breakers", "open", "worker", "nobody"]).code, 4);
    assert_eq!(server.run(&["breakers", "open", "type", "no such name!"]).code, 5);
    assert_eq!(server.run(&["breakers", "open", "queue", "mail"]).code, 2);
}

#[test]
fn error_rules_are_shown_tried_and_set() {
    let server = Server::start();
    let shown = server.ok(&["error-rules"]);
    for words in ["Rules\n  none", "Where none matches", "429", "rate_limited", "unknown_max_retries is not set"] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }
    let rules = r#"{"rules": [{"name": "cards", "task_type": "charge", "code": "card_*", "class": "permanent"},
        {"http_status": ["502-504", 599], "class": "transient"}], "unknown_max_retries": 2}"#;
    let file = server.write("rules.json", rules);
    let given = format!("@{file}");
    let tried = server.ok(&["error-rules", "test", "--type", "charge", "--code", "card_lost", "--rules", &given]);
    assert_eq!(tried, "class permanent, by rule 0\nIt is a dead letter at once.\n");
    assert_eq!(server.json(&["error-rules", "--json"])["rules"], json!([]), "only tried");
    let shown = server.ok(&["error-rules", "set", &given]);
    for words in ["card_*", "502-504,599", "cards", "at most 2 times"] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }
    // What is got can be set again.
    let got = server.ok(&["error-rules", "get", "--json"]);
    let again = server.piped(&["error-rules", "set", "-", "--json"], &got);
    assert_eq!((again.code, again.json()), (0, serde_json::from_str(&got).expect("JSON")));
    let verdict = server.json(&["error-rules", "test", "--http-status", "599", "--json"]);
    assert_eq!((&verdict["class"], &verdict["rule"]), (&json!("transient"), &json!(1)));
    assert!(server.ok(&["error-rules", "test", "--code", "oom"]).contains("class resource, by a built-in rule"));
    assert!(
        server.ok(&["error-rules", "test", "--message", "odd", "--retriable", "false"]).contains("handler's own word")
    );
    assert!(server.ok(&["error-rules", "test", "--message", "odd"]).contains("class unknown, because nothing"));
    let bad = server.run(&["error-rules", "set", r#"[{"message": "(", "class": "transient"}]"#]);
    assert_eq!(bad.code, 5);
    bad.says(&["rules[0].message", "regular expression"]);

    let worker = server.worker(&json!({}));
    enqueue(&server, &["t", "--max-retries", "1"]);
    fail(&worker, &json!({"message": "what was that", "code": "odd"}));
    assert!(server.ok(&["error-rules"]).contains("what was that"));
    let stats = server.ok(&["stats", "--retries"]);
    assert!(stats.starts_with("TYPE") && stats.contains("\nall "), "{stats}");
    let stats = server.json(&["stats", "--retries", "--window", "1h", "--json"]);
    assert_eq!((&stats["window_seconds"], &stats["retried"]), (&json!(3_600), &json!(1)));
}

#[test]
fn findings_are_told_and_used_by_doctor() {
    let server = Server::start();
    assert_eq!(server.ok(&["findings"]), "Nothing looks wrong.\n");
    assert_eq!(server.json(&["findings", "--json"]), json!({"items": []}));
    enqueue(&server, &["send_email", "--queue", "mail"]);
    let found = server.ok(&["findings"]);
    for words in ["critical", "No worker takes tasks", "→ Start a worker", "since"] {
        assert!(found.contains(words), "{words} is not in {found}");
    }
    server.ok(&["queues", "pause", "mail"]);
    let sick = server.run(&["doctor"]);
    assert_eq!(sick.code, 1, "{}", sick.out);
    for words in ["fail  no_workers", "warn  paused_with_work", "ok    server"] {
        assert!(sick.out.contains(words), "{words} is not in {}", sick.out);
    }
    // A pause that the findings tell of is told once.
    assert!(!sick.out.contains("warn  paused  "), "{}", sick.out);
    let checks = server.run(&["doctor", "--json"]).json()["checks"].clone();
    let failed: Vec<_> = checks.as_array().into_iter().flatten().filter(|check| check["state"] == "fail").collect();
    assert_eq!((failed.len(), &failed[0]["check"]), (1, &json!("no_workers")));
}

#[test]
fn settings_of_limits_are_shown() {
    let server = Server::start();
    let shown = server.ok(&[
        "types",
        "set",
        "t",
        "concurrency=5",
        "rate_limit.count=10",
        "rate_limit.per_seconds=1m",
        "slots=2",
    ]);
    for words in
        ["concurrency         5", "\"per_seconds\":60", "slots               2", "breaker", "sensitive", "auto_replay"]
    {
        assert!(shown.replace(' ', "").contains(&words.replace(' ', "")), "{words} is not in {shown}");
    }
    let shown = server.ok(&["queues", "set", "q", "policy=weighted", "weights.low=30", "tenant_rate_limit.count=5"]);
    for words in ["weighted", "\"low\":30", "tenant_rate_limit", "max_lanes", "concurrency"] {
        assert!(shown.replace(' ', "").contains(words), "{words} is not in {shown}");
    }
    assert_eq!(server.run(&["types", "set", "t", "rate_limit=7"]).code, 5);
}
