//! Bad days of a worker made with the SDK, with real processes: what happens to its tasks.
//!
//! The worker processes are this test program itself, started again in the role of a worker.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Server, until};
use windlass::{Client, Context, StopReason, TaskError, TaskResult, Worker, task};

/// Short enough to wait for, long enough for a busy machine to send heartbeats in time.
const LEASE: [&str; 4] = ["--lease-seconds", "3", "--heartbeat-seconds", "0.5"];

// What the workers can do.

#[task]
async fn nap(context: Context, millis: u64) -> TaskResult<u32> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(context.attempt())
}

/// Computes without ever giving its thread back.
#[task]
#[allow(clippy::disallowed_methods, reason = "a test that measures real time")]
async fn burn(context: Context, millis: u64) -> TaskResult<u32> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(millis) {
        std::hint::spin_loop();
    }
    Ok(context.attempt())
}

/// Blocks a thread of its own, as one should, and ignores everything.
#[task]
async fn blocks(millis: u64) -> TaskResult<()> {
    tokio::task::spawn_blocking(move || std::thread::sleep(Duration::from_millis(millis))).await?;
    Ok(())
}

#[task]
async fn panics(what: String) -> TaskResult<()> {
    panic!("{what}")
}

#[task]
async fn aborts(_what: Value) -> TaskResult<()> {
    std::process::abort()
}

/// Does not look at its token, but awaits.
#[task]
async fn deaf(_what: Value) -> TaskResult<()> {
    std::future::pending().await
}

#[task]
async fn heeds(context: Context, _what: Value) -> TaskResult<()> {
    match context.stop_token().stopped().await {
        StopReason::Cancelled => Err(TaskError::permanent("I was told")),
        other => Err(TaskError::permanent(format!("{other:?}"))),
    }
}

/// The first attempt never ends; whoever waits for it sees that it began.
#[task]
async fn hangs_once(context: Context, begun: String) -> TaskResult<()> {
    if context.crash_count() > 0 {
        return Ok(());
    }
    std::fs::write(begun, "")?;
    std::future::pending().await
}

/// Not a test of its own: the program of the worker processes.
#[test]
fn worker_process() {
    let Ok(address) = std::env::var("TEST_WORKER_ADDRESS") else { return };
    let setting = |name: &str| std::env::var(name).ok();
    let runtime = match setting("TEST_WORKER_THREADS").map(|threads| threads.parse().expect("a number")) {
        // One thread: whatever blocks it blocks everything that shares it.
        None => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        Some(threads) => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    };
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(address).await.expect("connected");
        let mut worker = Worker::new(&client)
            .handle::<nap>()
            .handle::<burn>()
            .handle::<panics>()
            .handle::<aborts>()
            .handle::<deaf>()
            .handle::<heeds>()
            .handle::<blocks>()
            .handle::<hangs_once>()
            .stop_grace(Duration::from_millis(200));
        if let Some(tasks) = setting("TEST_WORKER_CONCURRENCY") {
            worker = worker.concurrency(tasks.parse().expect("a number"));
        }
        if let Some(millis) = setting("TEST_WORKER_SHUTDOWN_MS") {
            worker = worker.shutdown_timeout(Duration::from_millis(millis.parse().expect("a number")));
        }
        if let Some(address) = setting("TEST_WORKER_HEALTH") {
            worker = worker.health_address(address.parse().expect("an address"));
        }
        worker.run().await.expect("ran");
        client.close().await;
    });
}

/// A worker in a process of its own; killed when it is dropped.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(address: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "worker_process", "--nocapture"]).env("TEST_WORKER_ADDRESS", address);
        command.envs(settings.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a worker"))
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill");
        assert!(status.success());
    }

    /// The exit code, once it has ended; `None` if a signal ended it.
    fn exit_code(&mut self) -> Option<i32> {
        until("the worker ends", || self.0.try_wait().expect("its state").is_some());
        self.0.try_wait().expect("its state").expect("ended").code()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn executing(server: &Server, id: &str) {
    until("a worker has the task", || server.task(id)["status"] == "executing");
}

fn ended(server: &Server, id: &str) -> Value {
    until("the task ends", || {
        matches!(server.task(id)["status"].as_str(), Some("completed" | "failed" | "cancelled" | "dead_letter"))
    });
    server.task(id)
}

#[test]
fn sigterm_lets_what_runs_finish_and_leaves_the_rest() {
    let server = Server::start(&LEASE);
    let mut worker = WorkerProcess::start(&server.url, &[("TEST_WORKER_CONCURRENCY", "1")]);
    let running = server.submit("nap", json!(1500));
    let waiting = server.submit("nap", json!(0));
    executing(&server, &running);
    worker.signal("-TERM");
    assert_eq!(worker.exit_code(), Some(0));
    let task = server.task(&running);
    assert_eq!((&task["status"], &task["result"]), (&json!("completed"), &json!(1)));
    assert_eq!(server.task(&waiting)["status"], "queued", "no new task was taken");
    assert_eq!(server.get("/api/v1/workers")["items"], json!([]), "it deregistered");
}

#[test]
fn sigterm_releases_what_does_not_finish_in_time() {
    let server = Server::start(&LEASE);
    let mut worker = WorkerProcess::start(&server.url, &[("TEST_WORKER_SHUTDOWN_MS", "300")]);
    let task = server.submit("nap", json!(600_000));
    executing(&server, &task);
    worker.signal("-TERM");
    assert_eq!(worker.exit_code(), Some(0));
    let task = server.task(&task);
    assert_eq!((&task["status"], &task["attempt"], &task["retry_count"]), (&json!("queued"), &json!(0), &json!(0)));
    assert_eq!(task["crash_count"], 0);
}

#[test]
fn sigterm_gets_through_to_a_worker_whose_only_thread_is_busy() {
    let server = Server::start(&LEASE);
    let mut worker = WorkerProcess::start(&server.url, &[("TEST_WORKER_SHUTDOWN_MS", "300")]);
    let task = server.submit("burn", json!(600_000));
    executing(&server, &task);
    worker.signal("-TERM");
    assert_eq!(worker.exit_code(), Some(0), "it leaves without the handler");
    let task = server.task(&task);
    assert_eq!((&task["status"], &task["attempt"], &task["crash_count"]), (&json!("queued"), &json!(0), &json!(0)));
}

#[test]
fn a_handler_that_keeps_a_thread_does_not_keep_the_process() {
    let server = Server::start(&LEASE);
    for kind in ["burn", "blocks"] {
        let settings = [("TEST_WORKER_SHUTDOWN_MS", "300"), ("TEST_WORKER_THREADS", "2")];
        let mut worker = WorkerProcess::start(&server.url, &settings);
        let task = server.submit(kind, json!(600_000));
        executing(&server, &task);
        worker.signal("-TERM");
        assert_eq!(worker.exit_code(), Some(0), "{kind}");
        let task = server.task(&task);
        assert_eq!((&task["status"], &task["attempt"]), (&json!("queued"), &json!(0)), "{kind}");
        server.delete(&format!("/api/v1/tasks/{}", task["task_id"].as_str().expect("an id")));
    }
}

#[test]
fn a_second_signal_stops_at_once_and_the_task_comes_back() {
    let server = Server::start(&LEASE);
    let mut worker = WorkerProcess::start(&server.url, &[]);
    let task = server.submit("nap", json!(600_000));
    executing(&server, &task);
    worker.signal("-TERM");
    until("it drains", || server.get("/api/v1/workers")["items"][0]["status"] == "draining");
    worker.signal("-INT");
    assert_eq!(worker.exit_code(), Some(130));
    until("the lease lapses", || server.task(&task)["crash_count"] == 1);
}

#[test]
fn sigkill_of_a_worker_gives_its_task_to_another() {
    let server = Server::start(&LEASE);
    let mut first = WorkerProcess::start(&server.url, &[]);
    let task = server.submit("nap", json!(1_000));
    executing(&server, &task);
    first.signal("-KILL");
    assert_eq!(first.exit_code(), None);
    let _second = WorkerProcess::start(&server.url, &[]);
    let task = ended(&server, &task);
    assert_eq!(
        (&task["status"], &task["crash_count"], &task["retry_count"]),
        (&json!("completed"), &json!(1), &json!(0))
    );
    assert_eq!(task["result"], 2, "the second attempt");
}

#[test]
fn a_handler_that_computes_keeps_its_lease() {
    let server = Server::start(&LEASE);
    let _worker = WorkerProcess::start(&server.url, &[]);
    // Three leases long, on the only thread of its runtime.
    let task = server.submit("burn", json!(9_000));
    let task = ended(&server, &task);
    assert_eq!((&task["status"], &task["result"], &task["crash_count"]), (&json!("completed"), &json!(1), &json!(0)));
}

#[test]
fn a_killed_server_gets_the_result_when_it_is_back() {
    let mut server = Server::start(&LEASE);
    let _worker = WorkerProcess::start(&server.url, &[]);
    let task = server.submit("nap", json!(1_000));
    executing(&server, &task);
    server.kill();
    // Away until the handler has long ended, and for longer than the lease.
    std::thread::sleep(Duration::from_secs(4));
    server.start_again();
    let task = ended(&server, &task);
    assert_eq!((&task["status"], &task["result"], &task["crash_count"]), (&json!("completed"), &json!(1), &json!(0)));
    // And it goes on working.
    let next = server.submit("nap", json!(0));
    assert_eq!(ended(&server, &next)["status"], "completed");
}

#[test]
fn a_store_that_is_closed_and_opened_again_goes_on() {
    let mut server = Server::start(&LEASE);
    let _worker = WorkerProcess::start(&server.url, &[]);
    let tasks: Vec<_> = (0..20).map(|n| server.submit("nap", json!(n * 100))).collect();
    executing(&server, &tasks[19]);
    server.stop();
    server.start_again();
    for task in tasks {
        let task = ended(&server, &task);
        assert_eq!((&task["status"], &task["crash_count"]), (&json!("completed"), &json!(0)));
    }
}

#[test]
fn an_embedded_application_that_is_killed_goes_on_after_its_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("sqlite:{}", folder.path().join("jobs").display());
    let begun = folder.path().join("begun");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let open = || runtime.block_on(Client::connect(&*address)).expect("opened");
    let client = open();
    let task = client.enqueue::<hangs_once>(begun.display().to_string());
    let task = runtime.block_on(async { task.await.expect("stored").id().clone() });
    runtime.block_on(client.close());

    let mut first = WorkerProcess::start(&address, &[]);
    until("the handler runs", || begun.exists());
    first.signal("-KILL");
    first.exit_code();
    let health = format!("127.0.0.1:{}", support::free_port());
    let mut second = WorkerProcess::start(&address, &[("TEST_WORKER_HEALTH", &health)]);
    // The dead worker's lease lapses at once: its process was the only one that could have come back with a result.
    let url = format!("http://{health}");
    until("it runs again", || {
        support::status(&url, "/metrics").is_some() && support::text(&url, "/metrics").contains("completed\"} 1")
    });
    second.signal("-TERM");
    assert_eq!(second.exit_code(), Some(0));
    let view = runtime.block_on(open().task(task)).expect("there");
    assert_eq!((view.status, view.attempt), (windlass::Status::Completed, 2));
}

#[test]
fn a_panic_is_one_tasks_trouble() {
    let server = Server::start(&LEASE);
    let _worker = WorkerProcess::start(&server.url, &[("TEST_WORKER_CONCURRENCY", "1")]);
    let task = server.submit("panics", json!("out of cheese"));
    let task = ended(&server, &task);
    let error = &task["error"];
    assert_eq!(
        (&task["status"], &error["class"], &error["code"]),
        (&json!("dead_letter"), &json!("code_bug"), &json!("panic"))
    );
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("out of cheese") && message.contains("sdk_worker.rs:"), "{message}");
    let next = server.submit("nap", json!(0));
    assert_eq!(ended(&server, &next)["status"], "completed", "the worker goes on");
}

#[test]
fn a_task_that_kills_its_worker_is_a_poison_pill() {
    let server = Server::start(&["--lease-seconds", "1", "--heartbeat-seconds", "0.3"]);
    let body = json!({"task_type": "aborts", "retry": {"strategy": "fixed", "base_delay": 0.1, "jitter": "none"}});
    let task = server.submit_body(&body);
    for crash in 1..=3 {
        let mut worker = WorkerProcess::start(&server.url, &[]);
        assert_eq!(worker.exit_code(), None, "it died of the task");
        until("the crash is counted", || server.task(&task)["crash_count"] == crash);
    }
    let task = ended(&server, &task);
    assert_eq!((&task["status"], &task["dead_reason"]), (&json!("dead_letter"), &json!("poison_pill")));
}

#[test]
fn a_cancelled_handler_is_told_and_a_deaf_one_is_dropped() {
    let server = Server::start(&LEASE);
    let _worker = WorkerProcess::start(&server.url, &[("TEST_WORKER_CONCURRENCY", "1")]);
    for kind in ["heeds", "deaf"] {
        let task = server.submit(kind, json!(null));
        executing(&server, &task);
        server.delete(&format!("/api/v1/tasks/{task}"));
        assert_eq!(server.task(&task)["status"], "cancelled", "at once");
        // The only slot is free again.
        let next = server.submit("nap", json!(0));
        assert_eq!(ended(&server, &next)["status"], "completed", "after {kind}");
        assert_eq!(server.task(&task)["status"], "cancelled", "whatever the worker said later");
    }
}

#[test]
fn health_is_told_even_while_every_thread_is_busy() {
    let server = Server::start(&LEASE);
    let health = format!("127.0.0.1:{}", support::free_port());
    let mut worker =
        WorkerProcess::start(&server.url, &[("TEST_WORKER_HEALTH", &health), ("TEST_WORKER_SHUTDOWN_MS", "3000")]);
    let url = format!("http://{health}");
    until("it is ready", || support::status(&url, "/readyz") == Some(200));
    let task = server.submit("burn", json!(600_000));
    executing(&server, &task);
    assert_eq!(support::status(&url, "/healthz"), Some(200));
    let metrics = support::text(&url, "/metrics");
    assert!(metrics.contains("windlass_worker_slots 50"), "{metrics}");
    worker.signal("-TERM");
    until("it is not ready", || support::status(&url, "/readyz") == Some(503));
    assert_eq!(worker.exit_code(), Some(0));
}
