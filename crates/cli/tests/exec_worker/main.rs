//! `windlass worker --exec` with real programs, most of them badly behaved, against a real server. After each, nothing of
//! a program may be left running, and the stored error must tell what happened.

#[path = "../support/mod.rs"]
mod server;
mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{PATIENCE, Trial, until};
use windlass::{Retry, Status};

#[tokio::test]
async fn json_is_a_result_as_it_is_and_anything_else_is_text() {
    let trial = Trial::new();
    trial.script("echo", r#"cat > "$FOLDER/stdin"; cat "$FOLDER/stdin""#);
    trial.script("text", "echo '  two'; echo 'lines  '");
    trial.script("nothing", "echo chatter >&2");
    trial.script("bytes", r"printf 'caf\351'");
    let _worker = trial.worker(&["echo", "text", "nothing", "bytes"], &[]);

    // Neither the order of keys nor the digits of numbers may change on the way.
    let parameters = r#"{"z":1.10,"a":18446744073709551617,"s":"ü\n"}"#;
    let id = trial.post(&format!(r#"{{"task_type":"echo","parameters":{parameters}}}"#));
    let task = trial.ended(&id).await;
    assert_eq!((task.status, task.result.expect("a result").get()), (Status::Completed, parameters));
    assert_eq!(trial.read("stdin"), format!("{parameters}\n"));

    for (name, wanted) in [("text", json!("  two\nlines")), ("nothing", Value::Null), ("bytes", json!("caf\u{fffd}"))] {
        let task = trial.run(name).await;
        assert_eq!(task.status, Status::Completed, "{name}");
        assert_eq!(task.result_as::<Value>().expect("JSON"), wanted);
    }
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn a_program_finds_its_task_in_the_environment() {
    let trial = Trial::new();
    trial.script("look", r"env | grep -E '^(WINDLASS_(T|A|M|Q|I|D)|TRACEPARENT)' | sort");
    let _worker = trial.worker(&["look"], &["--queues", "slow,fast"]);
    let task = trial
        .client
        .enqueue_untyped("look", &Value::Null)
        .queue("fast")
        .idempotency_key("order 17")
        .tag("customer.id", "a b")
        .max_retries(4)
        .timeout(Duration::from_secs(100))
        .trace_parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .await
        .expect("submitted");
    let ended = trial.ended(task.id().as_str()).await;
    let text: String = ended.result_as().expect("a text");
    let id = task.id();
    for line in [
        "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "WINDLASS_ATTEMPT=1",
        "WINDLASS_IDEMPOTENCY_KEY=order 17",
        "WINDLASS_MAX_RETRIES=4",
        "WINDLASS_QUEUE=fast",
        "WINDLASS_TAG_CUSTOMER_ID=a b",
        &format!("WINDLASS_TASK_ID={id}"),
        "WINDLASS_TASK_TYPE=look",
        "WINDLASS_TRACE_ID=0af7651916cd43dd8448eb211c80319c",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    let time_left = text.lines().find_map(|line| line.strip_prefix("WINDLASS_DEADLINE_SECONDS=")).expect("a deadline");
    // A tenth at most is kept back, for the end and its report.
    assert!((60.0..100.0).contains(&time_left.parse().expect("a number")), "{time_left}");
}

#[tokio::test]
async fn exit_codes_decide() {
    let trial = Trial::new();
    trial.script("again", "echo 'the mailbox is locked' >&2; exit 75");
    trial.script("never", "echo 'not an image' >&2; exit 65");
    trial.script("three", "echo one >&2; echo two >&2; exit 3");
    trial.script("stdout", "echo 'usage: stdout FILE'; exit 64");
    trial.script("crash", "kill -SEGV $$");
    trial.script("late", r#"[ "$WINDLASS_ATTEMPT" = 2 ] && { echo '{"ok": true}'; exit; }; exit 75"#);
    let _worker = trial.worker(&["again", "never", "three", "stdout", "crash", "late"], &[]);

    for (name, code, class, reason, message) in [
        ("again", "exit_75", "transient", "max_retries", "exit 75\nthe mailbox is locked"),
        ("never", "exit_65", "permanent", "permanent_error", "exit 65\nnot an image"),
        ("three", "exit_3", "transient", "max_retries", "exit 3\none\ntwo"),
        (
            "stdout",
            "exit_64",
            "transient",
            "max_retries",
            "exit 64 (stderr is empty; stdout ends with:)\nusage: stdout FILE",
        ),
        ("crash", "signal_11", "transient", "max_retries", "killed by signal 11 (SIGSEGV)"),
    ] {
        let task = trial.run(name).await;
        let error = task.error.expect("an error");
        assert_eq!((error.code.as_deref(), error.class.as_str()), (Some(code), class), "{name}");
        assert_eq!((error.message.as_str(), task.end_reason.as_deref()), (message, Some(reason)));
    }

    let retry = Retry::fixed(Duration::from_millis(50)).without_jitter();
    let task = trial.client.enqueue_untyped("late", &Value::Null).max_retries(1).retry(retry).await.expect("submitted");
    let ended = trial.ended(task.id().as_str()).await;
    assert_eq!((ended.status, ended.attempt), (Status::Completed, 2));
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn who_uses_too_much_is_killed_and_the_error_says_of_what() {
    let trial = Trial::new();
    // What tail keeps of input without line breaks is all of it.
    trial.script("memory", "echo 'reading it all' >&2; head -c 600000000 /dev/zero | tail > /dev/null");
    trial.script("cpu", "echo thinking >&2; while :; do :; done");
    let _worker = trial.worker(&["memory", "cpu"], &["--memory-limit", "64MB", "--cpu-limit", "700ms"]);

    let error = trial.run("memory").await.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("out_of_memory"), "resource"));
    assert!(
        error.message.starts_with("out of memory: ") && error.message.contains("the limit is 64 MB"),
        "{}",
        error.message
    );
    assert!(error.message.ends_with("\nreading it all"), "{}", error.message);

    let error = trial.run("cpu").await.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("cpu_limit"), "resource"));
    assert_eq!(error.message, "used more processor time than its limit of 700ms\nthinking");
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn too_much_output_is_an_error_and_no_result() {
    let trial = Trial::new();
    trial.script("megabytes", "echo 'here it comes' >&2; head -c 3000000 /dev/zero | tr '\\0' x");
    trial.script("over_the_payload", "head -c 100000 /dev/zero | tr '\\0' x");
    trial.script("chatter", "head -c 3000000 /dev/zero | tr '\\0' y >&2; echo 'the last words' >&2; exit 1");
    let _worker = trial.worker(&["megabytes", "over_the_payload", "chatter"], &[]);

    let task = trial.run("megabytes").await;
    let error = task.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("output_too_large"), "permanent"));
    assert!(error.message.starts_with("printed more than 1 MB to stdout; "), "{}", error.message);
    assert!(error.message.ends_with("\nhere it comes"), "{}", error.message);

    let error = trial.run("over_the_payload").await.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("result_refused"), "permanent"));
    assert!(error.message.ends_with("result has 100002 bytes and the limit is 65536"), "{}", error.message);

    let error = trial.run("chatter").await.error.expect("an error");
    assert!(
        error.message.starts_with("exit 1\n…yyy") && error.message.ends_with("yythe last words"),
        "{}",
        error.message
    );
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn what_a_program_leaves_behind_is_killed() {
    let trial = Trial::new();
    trial.link("/bin/sleep", "sleeper");
    // A child, one with a session of its own, and a daemon that forgets where it came from.
    let script = r#"
        sleep 1000 &
        setsid "$FOLDER/sleeper" 1000 > /dev/null 2>&1 &
        (env -i setsid "$FOLDER/sleeper" 1000 > /dev/null 2>&1 &)
        echo '"started"'
    "#;
    trial.script("daemons", script);
    let _worker = trial.worker(&["daemons"], &[]);
    let task = trial.run("daemons").await;
    assert_eq!((task.status, task.result_as::<String>().expect("a text").as_str()), (Status::Completed, "started"));
    // At once: the result comes after the killing.
    assert_eq!(trial.left(), Vec::<String>::new());
}

const DEAF: &str = r#"trap '' TERM INT HUP; echo 'not now' >&2; : > "$FOLDER/ready"; sleep 1000; sleep 1000"#;

#[tokio::test]
async fn a_cancelled_program_is_killed_although_it_ignores_sigterm() {
    let trial = Trial::new();
    trial.script("deaf", DEAF);
    let _worker = trial.worker(&["deaf"], &["--kill-grace", "200ms"]);
    let id = trial.submit("deaf").await;
    trial.file("ready").await;
    assert!(!trial.left().is_empty());
    trial.client.cancel(id.as_str()).await.expect("cancelled");
    assert_eq!(trial.ended(&id).await.status, Status::Cancelled);
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn at_its_timeout_a_program_is_killed_and_its_last_words_are_kept() {
    let trial = Trial::new();
    trial.script("deaf", DEAF);
    let _worker = trial.worker(&["deaf"], &["--kill-grace", "200ms"]);
    let task = trial.client.enqueue_untyped("deaf", &Value::Null);
    let task = task.max_retries(0).timeout(Duration::from_secs(6)).await.expect("submitted");
    let ended = trial.ended(task.id().as_str()).await;
    let error = ended.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("timeout"), "timeout"));
    assert!(error.message.starts_with("timeout: stopped after 5."), "{}", error.message);
    assert!(error.message.ends_with("\nnot now"), "{}", error.message);
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let trial = Trial::new();
    let told = trial.refused(&["--exec", "a=./no/such/program", "--exec", "b=/etc/passwd"]);
    assert!(told.contains("--exec a: ./no/such/program does not exist"), "{told}");
    assert!(told.contains("--exec b: /etc/passwd is not executable"), "{told}");

    // Gone since the worker started.
    trial.link("/bin/true", "shortlived");
    let command = format!("gone={}", trial.path("shortlived").display());
    let worker = trial.worker_with(&["--exec", &command]);
    worker.log_has("registered").await;
    std::fs::remove_file(trial.path("shortlived")).expect("removed");
    let error = trial.run("gone").await.error.expect("an error");
    assert_eq!((error.code.as_deref(), error.class.as_str()), (Some("could_not_start"), "transient"));
    assert!(error.message.starts_with("could not start: ") && error.message.ends_with("shortlived does not exist"));
}

#[tokio::test]
async fn at_sigterm_programs_may_finish() {
    let trial = Trial::new();
    trial.script("calm", r#": > "$FOLDER/ready"; until [ -e "$FOLDER/go" ]; do sleep 0.05; done; echo '"finished"'"#);
    let mut worker = trial.worker(&["calm"], &["--shutdown-timeout", "60s"]);
    let id = trial.submit("calm").await;
    trial.file("ready").await;
    worker.signal("TERM");
    // Not taken any more: it waits for a worker that is not shutting down.
    worker.log_has("no new tasks").await;
    let second = trial.submit("calm").await;
    trial.write("go", "");
    let task = trial.ended(&id).await;
    assert_eq!(task.result_as::<String>().expect("a text"), "finished");
    assert_eq!(worker.exit_code().await, Some(0));
    assert_eq!(trial.client.task(second.as_str()).await.expect("there").status, Status::Queued);
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn what_does_not_finish_is_stopped_and_given_back() {
    let trial = Trial::new();
    trial.script("deaf", DEAF);
    let mut worker = trial.worker(&["deaf"], &["--shutdown-timeout", "100ms", "--kill-grace", "200ms"]);
    let id = trial.submit("deaf").await;
    trial.file("ready").await;
    worker.signal("TERM");
    assert_eq!(worker.exit_code().await, Some(0));
    // At once: nothing is given back before it has stopped, and the worker ends last.
    assert_eq!(trial.left(), Vec::<String>::new());
    let task = trial.client.task(id.as_str()).await.expect("there");
    assert_eq!((task.status, task.retry_count, task.error.is_none()), (Status::Queued, 0, true));

    // No retry is left, and none was used up.
    trial.script("deaf", "echo again");
    let _worker = trial.worker(&["deaf"], &[]);
    assert_eq!(trial.ended(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn a_second_signal_ends_everything_at_once() {
    let trial = Trial::new();
    trial.script("deaf", DEAF);
    let mut worker = trial.worker(&["deaf"], &["--shutdown-timeout", "60s", "--kill-grace", "60s"]);
    trial.submit("deaf").await;
    trial.file("ready").await;
    worker.signal("TERM");
    worker.log_has("a second signal stops at once").await;
    worker.signal("INT");
    assert_eq!(worker.exit_code().await, Some(130));
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn when_the_worker_is_killed_its_programs_go_and_its_tasks_come_back() {
    let trial = Trial::with_server(&["--lease-seconds", "2"]);
    trial.link("/bin/sleep", "sleeper");
    let script = r#"
        [ "$WINDLASS_ATTEMPT" = 1 ] || { echo "attempt $WINDLASS_ATTEMPT"; exit; }
        (env -i setsid "$FOLDER/sleeper" 1000 > /dev/null 2>&1 &)
    "#;
    trial.script("job", &format!("{script}\n{DEAF}"));
    let mut worker = trial.worker(&["job"], &["--kill-grace", "60s"]);
    let retry = Retry::fixed(Duration::from_millis(50)).without_jitter();
    let task = trial.client.enqueue_untyped("job", &Value::Null).max_retries(3).retry(retry).await.expect("submitted");
    trial.file("ready").await;
    until(PATIENCE, || trial.left().iter().any(|process| process.contains("sleeper"))).await;
    worker.signal("KILL");
    assert_eq!(worker.exit_code().await, None);
    trial.nothing_is_left().await;

    let _worker = trial.worker(&["job"], &[]);
    let ended = trial.ended(task.id().as_str()).await;
    assert_eq!(ended.result_as::<String>().expect("a text"), "attempt 2");
}

#[tokio::test]
async fn a_result_outlives_a_restart_of_the_server() {
    let mut trial = Trial::new();
    trial.script(
        "job",
        r#": > "$FOLDER/ready"; until [ -e "$FOLDER/go" ]; do sleep 0.05; done; : > "$FOLDER/done"; echo 17"#,
    );
    let worker = trial.worker(&["job"], &[]);
    let id = trial.submit("job").await;
    trial.file("ready").await;
    trial.kill_server();
    trial.write("go", "");
    trial.file("done").await;
    worker.log_has("trying again").await;
    trial.start_server();
    let task = trial.ended(&id).await;
    assert_eq!((task.status, task.attempt, task.result_as::<u32>().expect("a number")), (Status::Completed, 1, 17));
    trial.nothing_is_left().await;
}

#[tokio::test]
async fn only_so_many_run_at_once() {
    let trial = Trial::new();
    trial.script("count", r#": > "$FOLDER/run.$WINDLASS_TASK_ID"; until [ -e "$FOLDER/go" ]; do sleep 0.05; done"#);
    let worker = trial.worker(&["count"], &["--concurrency", "2"]);
    worker.log_has(&format!("worker runs count=sh, 2 at once, for {}", trial.url())).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(trial.submit("count").await);
    }
    let running = || ids.iter().filter(|id| trial.path(&format!("run.{id}")).exists()).count();
    until(PATIENCE, || running() == 2).await;
    assert_eq!(trial.client.task(ids[2].as_str()).await.expect("there").status, Status::Queued);
    trial.write("go", "");
    for id in &ids {
        assert_eq!(trial.ended(id).await.status, Status::Completed);
    }
    assert_eq!(running(), 3);
}
