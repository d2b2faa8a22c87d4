//! The client commands as people and scripts run them: the real binary against a real server.

mod commands_server;
mod support;

use commands_server::{Server, run, run_with};
use serde_json::{Value, json};

/// What is in every answer of a command without `--json`, as a script would read it.
#[test]
fn a_task_is_enqueued_seen_and_waited_for() {
    let server = Server::start();
    let id = server.ok(&[
        "enqueue",
        "send_email",
        "--parameters",
        r#"{"to": "ada", "n": 1.50}"#,
        "--priority",
        "high",
        "--queue",
        "mail",
        "--tag",
        "customer=42",
        "--timeout",
        "10m",
        "--max-retries",
        "5",
        "--tenant",
        "t1",
        "--requires",
        "smtp",
        "--expires-at",
        "2099-01-01T00:00:00Z",
    ]);
    let id = id.trim();
    let task = server.json(&["get", id, "--json"]);
    assert_eq!(task, server.api("GET", &format!("/api/v1/tasks/{id}"), None));
    for (field, wanted) in [
        ("task_type", json!("send_email")),
        ("parameters", json!({"to": "ada", "n": 1.5})),
        ("priority", json!("high")),
        ("queue", json!("mail")),
        ("tags", json!({"customer": "42"})),
        ("timeout_seconds", json!(600)),
        ("max_retries", json!(5)),
        ("tenant", json!("t1")),
        ("required_capabilities", json!(["smtp"])),
        ("status", json!("queued")),
    ] {
        assert_eq!(task[field], wanted, "{field}");
    }
    assert!(task["idempotency_key"].as_str().is_some_and(|key| key.starts_with("cli-")), "{task}");
    let card = server.ok(&["get", id]);
    for words in ["queued", "send_email", "mail", "customer=42", "No live worker", "\"to\": \"ada\""] {
        assert!(card.contains(words), "{words} is not in {card}");
    }

    let worker = server.worker(&json!({"capabilities": ["smtp"]}));
    worker.finish(&worker.poll(), &json!({"status": "completed", "result": {"a": 1.5, "b": [2]}}));
    assert_eq!(server.ok(&["wait", id]), "{\n  \"a\": 1.5,\n  \"b\": [\n    2\n  ]\n}\n");
    assert_eq!(server.json(&["wait", id, "--json"])["status"], "completed");
    let history = server.ok(&["get", id, "--history", "--no-payload"]);
    assert!(history.contains("claimed") && history.contains("completed") && !history.contains("ada"), "{history}");
    let history = server.json(&["get", id, "--history", "--json"])["history"].clone();
    assert_eq!(history.as_array().map(Vec::len), Some(3));
}

#[test]
fn delays_files_keys_and_standard_input() {
    let server = Server::start();
    let id = server.ok(&["enqueue", "report", "--delay", "1h30m"]);
    assert!(server.ok(&["get", id.trim()]).contains("in 1h 29m"));
    let keyed = ["enqueue", "report", "--idempotency-key", "k1", "--json"];
    assert_eq!(server.json(&keyed)["deduplicated"], false);
    assert_eq!(server.json(&keyed)["deduplicated"], true);
    let file = server.write("parameters.json", "{\"from\": \"file\"}");
    let id = server.ok(&["enqueue", "report", "--parameters", &format!("@{file}")]);
    assert_eq!(server.json(&["get", id.trim(), "--json"])["parameters"], json!({"from": "file"}));
    let output = server.piped(&["enqueue", "report", "-p", "-"], "[1, 2]");
    assert_eq!(output.code, 0, "{}", output.err);
    assert_eq!(server.json(&["get", output.out.trim(), "--json"])["parameters"], json!([1, 2]));
}

#[test]
fn batches_name_the_bad_line_and_say_what_is_stored() {
    let server = Server::start();
    let lines = "{\"task_type\": \"t\", \"parameters\": 7}\n".repeat(1_200);
    let file = server.write("tasks.jsonl", &lines);
    assert_eq!(server.ok(&["enqueue", "--batch", &file]), "1200 tasks stored\n");
    assert_eq!(server.json(&["stats", "--json"])["by_status"]["queued"], 1200);
    let all = server.json(&["list", "--all", "--json"]);
    assert_eq!((all["items"].as_array().map(Vec::len), &all["next_cursor"]), (Some(1_200), &Value::Null));

    let bad = server.write("bad.jsonl", &format!("{lines}{{\"task_type\": }}\n{lines}"));
    let output = server.run(&["enqueue", "--batch", &bad]);
    assert_eq!(output.code, 2);
    output.says(&["line 1201 is not JSON", "^", "1000 tasks stored (lines 1 to 1000)", "tail -n +1001"]);
    assert_eq!(server.json(&["stats", "--json"])["by_status"]["queued"], 2_200);
    let output =
        server.piped(&["enqueue", "--batch", "-"], "\n{\"task_type\": \"t\"}\n{\"task_type\": \"t\", \"qeue\": 1}\n");
    assert_eq!(output.code, 5);
    output.says(&["line 3 was refused: qeue", "unknown_field", "Nothing was stored"]);
    let output = server.piped(&["enqueue", "--batch", "-", "--json"], "{\"task_type\": \"t\"}\n");
    assert_eq!(serde_json::from_str::<Value>(&output.out).expect("JSON")["task_ids"].as_array().map(Vec::len), Some(1));
}

#[test]
fn lists_filter_and_print_the_page_of_the_api() {
    let server = Server::start();
    assert_eq!(server.run(&["list"]).out, "");
    server.run(&["list"]).says(&["No tasks yet", "windlass enqueue"]);
    for (task_type, queue) in [("a", "one"), ("b", "two"), ("b", "two")] {
        server.ok(&["enqueue", task_type, "--queue", queue, "--parameters", r#"{"user": {"id": 42}}"#, "--tag", "k=v"]);
    }
    assert_eq!(server.json(&["list", "--json"]), server.api("GET", "/api/v1/tasks", None));
    let page = server.json(&["list", "--json", "--limit", "2"]);
    assert_eq!(page, server.api("GET", "/api/v1/tasks?limit=2", None));
    assert!(page["next_cursor"].is_string());
    let table = server.ok(&["list"]);
    assert!(table.starts_with("ID  ") && table.lines().count() == 4 && !table.contains('\u{1b}'), "{table}");
    let count = |filter: &[&str]| {
        let args: Vec<_> = ["list", "--json"].iter().chain(filter).copied().collect();
        server.json(&args)["items"].as_array().map(Vec::len)
    };
    for (filter, wanted) in [
        (&["--queue", "two"][..], 2),
        (&["--type", "a"], 1),
        (&["--status", "queued,scheduled"], 3),
        (&["--status", "completed"], 0),
        (&["--tag", "k=v", "--priority", "medium"], 3),
        (&["--parameter", "user.id:eq:42"], 3),
        (&["--since", "1h"], 3),
        (&["--until", "1h"], 0),
        (&["--search", "nothing like it & more?"], 0),
    ] {
        assert_eq!(count(filter), Some(wanted), "{filter:?}");
    }
    server.run(&["list", "--queue", "three"]).says(&["No task matches"]);
    let colored = server.ok(&["list", "--color", "always"]);
    assert!(colored.contains("\u{1b}["), "{colored}");
}

#[test]
fn cancel_and_retry_by_id_and_by_filter() {
    let server = Server::start();
    let enqueue = || server.ok(&["enqueue", "t", "--queue", "q", "--delay", "1h"]).trim().to_owned();
    let (first, second) = (enqueue(), enqueue());
    assert_eq!(server.ok(&["retry", &first]), format!("{first} queued\n"));
    assert_eq!(server.ok(&["cancel", &first]), format!("{first} cancelled\n"));
    let again = server.run(&["cancel", &first, &second]);
    assert_eq!((again.code, again.out), (5, format!("{second} cancelled\n")));
    assert_eq!(server.run(&["retry", &first]).code, 5);
    assert_eq!(server.run(&["cancel", "nope"]).code, 4);
    let third = enqueue();
    assert_eq!(server.ok(&["cancel", "--queue", "q", "--dry-run"]), "1 task would be cancelled; nothing was changed\n");
    let unasked = server.run(&["cancel", "--queue", "q"]);
    assert_eq!(unasked.code, 2);
    unasked.says(&["Cancel 1 task?", "--yes"]);
    assert_eq!(server.json(&["cancel", "--queue", "q", "--yes", "--json"]), json!({"matched": 1, "cancelled": 1}));
    assert_eq!(server.json(&["get", &third, "--json"])["status"], "cancelled");
    assert_eq!(server.run(&["cancel"]).code, 2);
    assert_eq!(server.run(&["cancel", &third, "--queue", "q"]).code, 2);
}

#[test]
fn queues_and_types_have_settings_and_a_pause() {
    let server = Server::start();
    server.ok(&["queues", "set", "mail", "policy=strict", "depth.soft=10"]);
    server.ok(&["queues", "set", "mail", "depth.hard=20"]);
    let queue = server.json(&["queues", "get", "mail", "--json"]);
    assert_eq!((&queue["policy"], &queue["depth"]), (&json!("strict"), &json!({"soft": 10, "hard": 20})));
    assert_eq!(queue, server.api("GET", "/api/v1/queues/mail", None));
    assert_eq!(server.json(&["queues", "--json"]), server.api("GET", "/api/v1/queues", None));
    assert_eq!(server.ok(&["queues", "pause", "mail"]), "queue mail paused\n");
    assert!(server.ok(&["queues"]).contains("paused"));
    server.ok(&["queues", "resume", "mail"]);
    server.ok(&["queues", "clear", "mail"]);
    assert_eq!(server.run(&["queues", "get", "mail"]).code, 4);

    server.run(&["types"]).says(&["No task type has settings"]);
    let set =
        ["types", "set", "send_email", "queue=mail", "timeout_seconds=10m", "retry.base_delay=2s", "max_retries=5"];
    assert!(server.ok(&set).contains("timeout_seconds     600"));
    let kind = server.json(&["types", "get", "send_email", "--json"]);
    assert_eq!((&kind["timeout_seconds"], &kind["retry"]["base_delay"]), (&json!(600), &json!(2)));
    assert!(server.ok(&["types", "list"]).contains("send_email"));
    server.ok(&["types", "pause", "send_email"]);
    assert_eq!(server.json(&["types", "get", "send_email", "--json"])["paused"], true);
    let output = server.run(&["types", "set", "send_email", "max_retry=5"]);
    assert_eq!(output.code, 5);
    output.says(&["max_retry", "max_retries"]);
    assert_eq!(server.run(&["types", "set", "send_email", "max_retries=500"]).code, 5);
    assert_eq!(server.run(&["types", "set", "send_email", "max_retries"]).code, 2);
}

#[test]
fn dead_letters_are_seen_replayed_and_discarded() {
    let server = Server::start();
    let worker = server.worker(&json!({}));
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(server.ok(&["enqueue", "t", "-p", &n.to_string()]).trim().to_owned());
        let error = json!({"message": "mailbox full", "code": "smtp_550", "retriable": false});
        worker.finish(&worker.poll(), &json!({"status": "failed", "error": error}));
    }
    assert_eq!(server.json(&["dlq", "--json"]), server.api("GET", "/api/v1/dlq", None));
    let table = server.ok(&["dlq", "list", "--error-code", "smtp_550"]);
    assert!(table.contains("smtp_550: mailbox full") && table.contains(&ids[0]), "{table}");
    let card = server.ok(&["dlq", "get", &ids[0]]);
    assert!(card.contains("dead_letter") && card.contains("mailbox full") && card.contains("dead_lettered"), "{card}");

    server.ok(&[
        "dlq",
        "replay",
        &ids[0],
        "--parameters",
        "{\"mended\": true}",
        "--new-priority",
        "low",
        "--reason",
        "typo",
    ]);
    let replayed = server.json(&["get", &ids[0], "--json", "--history"]);
    assert_eq!((&replayed["status"], &replayed["priority"]), (&json!("queued"), &json!("low")));
    assert_eq!((&replayed["parameters"], &replayed["original_parameters"]), (&json!({"mended": true}), &json!(0)));
    assert_eq!(server.run(&["dlq", "replay", &ids[0]]).code, 5);
    server.ok(&["dlq", "discard", &ids[1], "--reason", "no such mailbox"]);
    let discarded = server.json(&["get", &ids[1], "--json", "--history"]);
    assert_eq!(discarded["status"], "failed");
    let last = discarded["history"].as_array().and_then(|events| events.last()).expect("an event");
    assert_eq!(last["data"]["note"], "no such mailbox");

    assert_eq!(server.run(&["dlq", "replay"]).code, 2);
    assert_eq!(server.run(&["dlq", "discard", "--type", "t"]).code, 2);
    let counted = server.json(&["dlq", "replay", "--all-of-them", "--dry-run", "--json"]);
    assert_eq!(counted, json!({"matched": 3, "replayed": 0}));
    let paced = ["dlq", "replay", "--type", "t", "--limit", "2", "--rate", "100", "--reason", "again", "--yes"];
    assert_eq!(server.ok(&paced), "2 dead letters replayed; the last one starts in 10ms\n");
    assert_eq!(server.ok(&["dlq", "discard", "--all-of-them", "--yes"]), "1 dead letter discarded\n");
    server.run(&["dlq"]).says(&["nothing needs you"]);
}

#[test]
fn workers_stats_and_doctor() {
    let server = Server::start();
    server.run(&["workers"]).says(&["No workers"]);
    let fine = server.run(&["doctor"]);
    assert_eq!(fine.code, 0, "{}", fine.out);
    assert!(fine.out.contains("answers at"), "{}", fine.out);
    let worker = server.worker(&json!({"name": "w1", "queues": ["mail"], "capacity": 3}));
    assert!(server.ok(&["workers"]).contains("0/3"));
    assert_eq!(server.json(&["workers", "--json"])["items"][0]["worker_id"], worker.id.as_str());
    server.ok(&["enqueue", "resize", "--queue", "video"]);
    server.ok(&["queues", "pause", "mail"]);
    let sick = server.run(&["doctor"]);
    assert_eq!(sick.code, 1, "{}", sick.out);
    for words in ["fail  no_worker_for_type", "queue video", "resize", "warn  paused", "resume mail"] {
        assert!(sick.out.contains(words), "{words} is not in {}", sick.out);
    }
    assert_eq!(server.run(&["doctor", "--json"]).json()["ok"], false);
    server.ok(&["workers", "drain", &worker.id]);
    assert!(server.ok(&["workers"]).contains("draining"));
    assert_eq!(server.run(&["workers", "drain", "nobody"]).code, 4);
    assert!(server.ok(&["stats"]).contains("1 queued"));

    let store = run(&["doctor", "--store", &format!("sqlite:{}", server.path("data"))]);
    assert_eq!(store.code, 0, "{}", store.out);
    assert!(store.out.contains("yes: a server has it open") && store.out.contains("free of"), "{}", store.out);
    assert_eq!(run(&["doctor", "--store", "sqlite:/nowhere/at/all"]).code, 1);
    assert_eq!(run(&["doctor", "--store", "postgres://x"]).code, 2);
}

#[test]
fn exit_codes_tell_how_it_ended() {
    let server = Server::start();
    let nobody = run(&["list", "--server", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, 3);
    nobody.says(&["no answer from http://127.0.0.1:1", "Is it running?", "windlass server"]);
    assert_eq!(run(&["doctor", "--server", "http://127.0.0.1:1"]).code, 3);
    assert_eq!(run(&["list", "--server", "localhost"]).code, 2);
    assert_eq!(server.run(&["get", "nope"]).code, 4);
    assert_eq!(server.run(&["enqueue", "no such name!"]).code, 5);
    assert_eq!(server.run(&["list", "--limit", "0"]).code, 2);
    assert_eq!(server.run(&["frobnicate"]).code, 2);

    let late = server.run(&["enqueue", "t", "--wait", "100ms"]);
    assert_eq!((late.code, late.out.as_str()), (7, ""));
    late.says(&["has not ended after 100ms", "No live worker"]);
    let id = server.ok(&["enqueue", "t"]);
    server.ok(&["cancel", id.trim()]);
    let cancelled = server.run(&["wait", id.trim()]);
    assert_eq!(cancelled.code, 6);
    cancelled.says(&["was cancelled", "--history"]);
    let both = server.run(&["wait", id.trim(), id.trim(), "--json"]);
    assert_eq!((both.code, both.json()["items"].as_array().map(Vec::len)), (6, Some(2)));
}

#[test]
fn mistakes_are_pointed_at() {
    for (args, words) in [
        (&["enqueue", "t", "-p", "{id: 7}"][..], &["--parameters is not JSON", "{id: 7}\n     ^", "single quotes"][..]),
        (&["enqueue", "t", "-p", "@/nowhere.json"], &["@/nowhere.json", "cannot read"]),
        (&["enqueue", "t", "-p", "{\"n\": 99999999999999999999}"], &["99999999999999999999", "string"]),
        (&["enqueue", "t", "--delay", "400d"], &["--delay", "400d", "0s to 366d"]),
        (&["enqueue", "t", "--max-retries", "101"], &["--max-retries", "101", "0..=100"]),
        (&["enqueue", "t", "--priority", "urgent"], &["--priority", "urgent", "0 to 9"]),
        (&["enqueue", "t", "--run-at", "tomorrow"], &["--run-at", "tomorrow", "2026-01-31T08:00:00Z"]),
        (&["enqueue", "t", "--tag", "x"], &["--tag", "KEY=VALUE"]),
        (&["enqueue", "t", "--batch", "x"], &["--batch"]),
        (&["enqueue", "t", "--unique", "name"], &["--unique", "name", "parameters.PATH", "put --unique last"]),
        (&["enqueue", "t", "--on-conflict", "keep"], &["--unique"]),
        (&["enqueue", "t", "--unique=queue", "--unique-while", "completed"], &["--unique-while", "scheduled"]),
        (&["enqueue", "t", "--on-failure", "skip"], &["--ordering-key"]),
        (&["enqueue", "t", "--concurrency-key", "k"], &["--concurrency-limit"]),
        (
            &["enqueue", "t", "--concurrency-key", "k", "--concurrency-limit", "0"],
            &["--concurrency-limit", "1..=1000000"],
        ),
        (&["enqueue", "--batch", "x", "--ordering-key", "k"], &["--batch", "--ordering-key"]),
        (&["bury", "x"], &["--reason"]),
        (&["bury", "--reason", "r"], &["which tasks to bury"]),
        (&["breakers", "open", "send_email"], &["names no breaker", "type send_email"]),
        (&["error-rules", "test"], &["nothing says how it failed", "--code"]),
        (&["error-rules", "test", "--http-status", "99"], &["--http-status", "100..=599"]),
        (&["error-rules", "set", "{oops"], &["the rules is not JSON"]),
        (&["stats", "--window", "1h"], &["--retries"]),
        (&["stats", "--retries", "--window", "8d"], &["--window", "1s to 7d"]),
        (&["list", "--status", "waiting"], &["--status", "waiting", "dead_letter"]),
        (&["list", "--since", "yesterday"], &["--since", "yesterday", "2h"]),
        (&["dlq", "replay", "--type", "t", "--rate", "0"], &["--rate", "0.001 to 100000"]),
    ] {
        let output = run(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.err);
        output.says(words);
        assert!(output.out.is_empty() && !output.err.contains("panicked"), "{args:?}");
    }
}

#[test]
fn hostile_text_is_shown_and_not_obeyed() {
    let server = Server::start();
    let worker = server.worker(&json!({}));
    let parameters = "{\"text\": \"\u{9b}31m \u{202e}\"}";
    let id = server.ok(&["enqueue", "t", "-p", parameters, "--tag", "k=\u{202e}evil"]);
    let error = json!({"message": "\u{1b}]0;owned\u{7}\u{1b}[2J\nline two", "stack": "\u{1b}[8m", "retriable": false});
    worker.finish(&worker.poll(), &json!({"status": "failed", "error": error}));
    let id = id.trim();
    for args in [
        &["list"][..],
        &["list", "--json"],
        &["get", id],
        &["get", id, "--history"],
        &["get", id, "--json"],
        &["dlq"],
        &["dlq", "get", id],
        &["dlq", "analysis"],
        &["explain", id],
        &["error-rules"],
        &["findings"],
        &["wait", id],
        &["wait", id, id],
        &["get", "\u{1b}[2J"],
        &["doctor"],
        &["workers"],
    ] {
        let output = server.run(args);
        for character in ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'] {
            assert!(!output.out.contains(character) && !output.err.contains(character), "{args:?}: {character:?}");
        }
    }
    assert!(server.ok(&["get", id]).contains("\\u{1b}[2J"));
    assert_eq!(server.json(&["get", id, "--json"])["parameters"]["text"], "\u{9b}31m \u{202e}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let server = Server::start();
    let lines = "{\"task_type\": \"t\"}\n".repeat(3_000);
    assert_eq!(server.piped(&["enqueue", "--batch", "-"], &lines).code, 0);
    for args in [&["list", "--all"][..], &["list", "--all", "--json"]] {
        let output = server.run_with_closed_output(args);
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn help_completions_and_the_environment() {
    let help = run(&["--help"]);
    assert_eq!(help.code, 0);
    for words in ["Exit codes:", "6  the task", "enqueue", "dlq", "Operation:"] {
        assert!(help.out.contains(words), "{words} is not in {}", help.out);
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert!(script.code == 0 && script.out.contains("enqueue"), "{shell}");
    }
    let server = Server::start();
    let variables = [("WINDLASS_SERVER", server.address.as_str()), ("WINDLASS_API_KEY", "secret-key")];
    assert_eq!(run_with(&["stats", "--json"], &variables).code, 0);
    let help = run_with(&["list", "--help"], &variables);
    assert!(help.out.contains("WINDLASS_API_KEY") && !help.out.contains("secret-key"), "{}", help.out);
}
