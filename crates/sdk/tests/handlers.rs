//! What handlers can do and what follows from it: a real worker on a store in memory.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::testing::{Inline, Manual, in_memory};
use windlass::{
    BreakerSettings, Context, Error, Progress, Retry, Status, StopReason, TaskError, TaskResult, Worker, task,
};

/// Everything here takes milliseconds; this is for a machine on its knees.
const PATIENCE: Duration = Duration::from_secs(60);

async fn running(worker: Worker) -> windlass::RunningWorker {
    worker.stop_grace(Duration::from_millis(100)).start().await.expect("started")
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Order {
    id: u64,
    #[serde(default)]
    items: Vec<String>,
}

#[task]
async fn total(order: Order) -> TaskResult<usize> {
    Ok(order.items.len())
}

#[tokio::test]
async fn a_task_goes_in_typed_and_comes_out_typed() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<total>()).await;
    let task = client.enqueue::<total>(Order { id: 7, items: vec!["a".into(), "b".into()] }).await.expect("stored");
    assert_eq!(task.result_within(PATIENCE).await.expect("done"), 2);
    worker.shutdown().await;
    let known = client.call(windlass::Method::Get, "/api/v1/workers", None).await.expect("listed");
    assert_eq!(known["items"], json!([]), "the worker left");
}

#[task(name = "sums.add")]
async fn add(numbers: (i64, i64)) -> TaskResult<i64> {
    Ok(numbers.0 + numbers.1)
}

type Fallible<T> = Result<T, String>;

#[task]
async fn shown_error(text: String) -> Fallible<u32> {
    Err(format!("I do not like {text}"))
}

#[task]
async fn nothing() {}

#[tokio::test]
async fn functions_of_many_shapes_are_tasks() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<add>().handle::<nothing>().handle::<shown_error>()).await;
    assert_eq!(client.enqueue::<add>((2, 3)).await.unwrap().result_within(PATIENCE).await.unwrap(), 5);
    client.enqueue::<nothing>(()).await.unwrap().result_within(PATIENCE).await.unwrap();
    // Also when it comes without parameters, as from a command line.
    let by_name = client.enqueue_untyped("nothing", &json!({})).await.unwrap();
    assert_eq!(by_name.result_within(PATIENCE).await.unwrap(), Value::Null);
    let failed = client.enqueue::<shown_error>("spam").max_retries(0).await.unwrap();
    let Err(Error::TaskDidNotSucceed(view)) = failed.result_within(PATIENCE).await else { panic!("it failed") };
    assert_eq!(view.error.as_ref().unwrap().message, "I do not like spam");
    // The function is still a function.
    assert_eq!(self::add((1, 1)).await.unwrap(), 2);
    worker.shutdown().await;
}

#[task]
async fn ends_as_told(how: String) -> TaskResult<()> {
    match how.as_str() {
        "permanent" => Err(TaskError::permanent("no such customer").code("no_customer").details(json!({"id": 7}))),
        "cancel" => Err(TaskError::cancel("the order was withdrawn")),
        "http" => Err(TaskError::from_display("the shop is closed").http_status(404)),
        "panic" => panic!("out of cheese"),
        "io" => Err(std::io::Error::other("the disk is gone"))?,
        other => unreachable!("{other}"),
    }
}

#[tokio::test]
async fn the_way_it_ends_decides_what_follows() {
    let mut windlass = Manual::new().handle::<ends_as_told>();
    for (how, status, class, code) in [
        ("permanent", Status::DeadLetter, "permanent", Some("no_customer")),
        ("http", Status::DeadLetter, "permanent", None),
        ("panic", Status::DeadLetter, "code_bug", Some("panic")),
        ("io", Status::Scheduled, "unknown", None),
    ] {
        let task = windlass.client().enqueue::<ends_as_told>(how).await.unwrap();
        assert_eq!(windlass.drain().await.failed, 1);
        let view = task.view().await.unwrap();
        let error = view.error.expect("kept");
        assert_eq!((view.status, error.class.as_str(), error.code.as_deref()), (status, class, code), "{how}");
        if how == "panic" {
            assert!(error.message.contains("out of cheese"), "{}", error.message);
        }
    }
    let task = windlass.client().enqueue::<ends_as_told>("cancel").await.unwrap();
    windlass.drain().await;
    assert_eq!(task.view().await.unwrap().status, Status::Cancelled);
    let path = format!("/api/v1/tasks/{}?include=history", task.id());
    let history = windlass.client().call(windlass::Method::Get, &path, None).await.unwrap();
    let last = history["history"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["kind"], &last["data"]["note"]), (&json!("cancelled"), &json!("the order was withdrawn")));
}

#[tokio::test]
async fn a_panic_names_its_place() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<ends_as_told>()).await;
    let task = client.enqueue::<ends_as_told>("panic").await.unwrap();
    let Err(Error::TaskDidNotSucceed(view)) = task.result_within(PATIENCE).await else { panic!("it panicked") };
    let message = &view.error.as_ref().unwrap().message;
    assert!(message.contains("out of cheese") && message.contains("handlers.rs:"), "{message}");
    worker.shutdown().await;
}

#[task]
async fn puts_off(context: &Context, _input: ()) -> TaskResult<u32> {
    if context.tags().contains_key("now") {
        Ok(context.attempt())
    } else {
        Err(TaskError::snooze(Duration::from_secs(30)))
    }
}

#[tokio::test]
async fn a_snooze_uses_no_attempt_up() {
    let mut windlass = Manual::new().handle::<puts_off>();
    let task = windlass.client().enqueue::<puts_off>(()).await.unwrap();
    assert_eq!(windlass.drain().await.other, 1);
    let view = task.view().await.unwrap();
    assert_eq!((view.status, view.attempt, view.retry_count), (Status::Scheduled, 0, 0));
    windlass.advance(Duration::from_secs(29)).await;
    assert_eq!(windlass.drain().await.other, 0);
    windlass.advance(Duration::from_secs(1)).await;
    assert_eq!(windlass.drain().await.other, 1);
}

struct Calls(Mutex<Vec<String>>);

#[task]
async fn order_steps(context: &Context, fail_after: String) -> TaskResult<String> {
    let calls = context.state::<Arc<Calls>>()?;
    let mut receipts = Vec::new();
    for step in ["reserve", "charge", "ship"] {
        let receipt = context
            .step(step, || async {
                calls.0.lock().unwrap().push(step.to_owned());
                Ok::<_, TaskError>(format!("{step}ed"))
            })
            .await?;
        receipts.push(receipt);
        if fail_after == step && context.attempt() == 1 {
            return Err(TaskError::retry("the network broke"));
        }
    }
    Ok(receipts.join(", "))
}

#[tokio::test]
async fn a_finished_step_is_not_done_again() {
    let calls = Arc::new(Calls(Mutex::default()));
    let mut windlass = Manual::new().state(Arc::clone(&calls)).handle::<order_steps>();
    let task = windlass.client().enqueue::<order_steps>("charge").await.unwrap();
    assert_eq!(windlass.drain().await.failed, 1);
    windlass.advance(Duration::from_secs(10)).await;
    assert_eq!(windlass.drain().await.completed, 1);
    assert_eq!(windlass.result(&task).await, "reserveed, chargeed, shiped");
    assert_eq!(*calls.0.lock().unwrap(), ["reserve", "charge", "ship"]);
}

#[task]
async fn parent(context: &Context, fails: bool) -> TaskResult<()> {
    context.follow_up::<total>(Order { id: 1, items: Vec::new() })?;
    context.follow_up_with::<add>((1, 2), |options| options.queue("later").tag("from", "parent"))?;
    if fails { Err(TaskError::retry("not this time")) } else { Ok(()) }
}

#[tokio::test]
async fn follow_ups_come_with_success_only() {
    let mut windlass = Manual::new().handle::<parent>();
    windlass.client().enqueue::<parent>(true).await.unwrap();
    windlass.drain().await;
    windlass.refute_enqueued::<total>().await;
    windlass.client().enqueue::<parent>(false).await.unwrap();
    windlass.drain().await;
    windlass.assert_enqueued::<total>(|order| order.id == 1).await;
    windlass.assert_enqueued::<add>(|numbers| *numbers == (1, 2)).await;
    let view = &windlass.waiting("sums.add").await[0];
    assert_eq!((view.queue.as_str(), view.tags["from"].as_str()), ("later", "parent"));
}

mod old {
    use windlass::{TaskResult, task};

    #[task(name = "mail.send", aliases("send_mail"))]
    pub async fn send(to: String) -> TaskResult<String> {
        Ok(to)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    to: Vec<String>,
}

#[allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps, reason = "the shape of an upcast")]
fn from_single(parameters: Value, version: u32) -> TaskResult<Value> {
    assert_eq!(version, 1);
    Ok(json!({"to": [parameters]}))
}

#[task(name = "mail.send", aliases("send_mail"), version = 2, upcast = from_single)]
async fn send_to_many(mail: Mail) -> TaskResult<usize> {
    Ok(mail.to.len())
}

#[tokio::test]
async fn old_names_and_old_versions_are_still_served() {
    let mut windlass = Manual::new().handle::<send_to_many>();
    windlass.client().enqueue_untyped("send_mail", &json!("ada@example.com")).await.unwrap();
    windlass.client().enqueue::<old::send>("bob@example.com").await.unwrap();
    windlass.client().enqueue::<send_to_many>(Mail { to: vec!["x".into(), "y".into()] }).await.unwrap();
    assert_eq!(windlass.drain().await.completed, 3);
}

#[tokio::test]
async fn a_newer_version_is_left_for_a_newer_worker() {
    let mut windlass = Manual::new().handle::<old::send>();
    let task = windlass.client().enqueue::<send_to_many>(Mail { to: Vec::new() }).await.unwrap();
    assert_eq!(windlass.drain().await.other, 1);
    let view = task.view().await.unwrap();
    assert_eq!((view.status, view.retry_count, view.attempt), (Status::Scheduled, 0, 0));
}

#[tokio::test]
async fn parameters_that_do_not_fit_are_said_to() {
    let mut windlass = Manual::new().handle::<total>();
    let task = windlass.client().enqueue_untyped("total", &json!({"items": 5})).await.unwrap();
    windlass.drain().await;
    let view = task.view().await.unwrap();
    let error = view.error.unwrap();
    assert_eq!((view.status, error.code.as_deref()), (Status::DeadLetter, Some("invalid_parameters")));
    assert!(error.message.contains("total") && error.message.contains("expected a sequence"), "{}", error.message);
}

static TOLD: AtomicU32 = AtomicU32::new(0);

#[task]
async fn waits(context: Context, heeds: bool) -> TaskResult<()> {
    if heeds {
        let reason = context.stop_token().stopped().await;
        TOLD.fetch_add(1 + u32::from(reason == StopReason::Cancelled), Ordering::SeqCst);
        return Err(TaskError::retry("stopped"));
    }
    std::future::pending().await
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn cancellation_reaches_the_handler_and_one_that_ignores_it_is_dropped() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<waits>()).await;
    for heeds in [true, false] {
        let task = client.enqueue::<waits>(heeds).await.unwrap();
        until("running", async || worker.tasks_held() == 1).await;
        task.cancel().await.unwrap();
        assert_eq!(task.view().await.unwrap().status, Status::Cancelled, "at once");
        // A cancelled attempt gives its slot back.
        until("letting go", async || worker.tasks_held() == 0).await;
    }
    assert_eq!(TOLD.load(Ordering::SeqCst), 2);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_handler_out_of_time_is_stopped() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<waits>()).await;
    let task = client.enqueue::<waits>(false).timeout(Duration::from_millis(200)).max_retries(0).await.unwrap();
    let Err(Error::TaskDidNotSucceed(view)) = task.result_within(PATIENCE).await else { panic!("it cannot succeed") };
    assert_eq!(view.error.as_ref().unwrap().class, "timeout");
    until("letting go", async || worker.tasks_held() == 0).await;
    worker.shutdown().await;
}

#[task]
async fn slow_first_time(context: Context, (): ()) -> TaskResult<u32> {
    if context.attempt() == 1 {
        // Deaf: it still runs when its second attempt has come back to this very worker.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    Ok(context.attempt())
}

#[tokio::test]
async fn two_attempts_at_one_task_do_not_take_each_others_place() {
    let client = in_memory();
    let worker = Worker::new(&client).handle::<slow_first_time>().stop_grace(Duration::from_millis(300));
    let worker = worker.start().await.unwrap();
    let task = client
        .enqueue::<slow_first_time>(())
        .timeout(Duration::from_secs(1))
        .retry(Retry::fixed(Duration::from_millis(10)).without_jitter())
        .await
        .unwrap();
    assert_eq!(task.result_within(PATIENCE).await.unwrap(), 2, "the second attempt is heard");
    worker.shutdown().await;
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped");
    }
}

#[task]
async fn drops_badly((): ()) -> TaskResult<()> {
    let _guard = PanicsWhenDropped;
    std::future::pending().await
}

#[tokio::test]
async fn a_panic_in_a_drop_gives_the_slot_back() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<drops_badly>().handle::<add>().concurrency(1)).await;
    let bad = client.enqueue::<drops_badly>(()).await.unwrap();
    until("running", async || worker.tasks_held() == 1).await;
    bad.cancel().await.unwrap();
    let next = client.enqueue::<add>((1, 2)).await.unwrap();
    assert_eq!(next.result_within(PATIENCE).await.unwrap(), 3);
    worker.shutdown().await;
}

#[tokio::test]
async fn tasks_are_given_back_when_the_runtime_goes_away() {
    let client = in_memory();
    let of_worker = client.clone();
    let task = client.enqueue::<waits>(false).await.unwrap();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let worker = Worker::new(&of_worker).handle::<waits>().start().await.unwrap();
            until("running", async || worker.tasks_held() == 1).await;
        });
    });
    other.join().unwrap();
    until("given back", async || task.view().await.unwrap().status == Status::Queued).await;
}

#[tokio::test]
async fn what_does_not_finish_at_shutdown_is_released() {
    let client = in_memory();
    let worker = Worker::new(&client).handle::<waits>().shutdown_timeout(Duration::from_millis(100));
    let worker = worker.start().await.unwrap();
    let task = client.enqueue::<waits>(false).await.unwrap();
    until("executing", async || task.view().await.unwrap().status == Status::Executing).await;
    worker.shutdown().await;
    let view = task.view().await.unwrap();
    assert_eq!((view.status, view.attempt, view.retry_count), (Status::Queued, 0, 0));
}

#[task]
async fn reports(context: Context, (): ()) -> TaskResult<()> {
    for percent in 0..=100 {
        context.progress(Progress::percent(f64::from(percent)).message(format!("at {percent}")));
    }
    context.extend_lease().await?;
    context.stop_token().stopped().await;
    Err(TaskError::cancel("enough"))
}

#[tokio::test]
async fn progress_is_seen_while_it_runs() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<reports>()).await;
    let task = client.enqueue::<reports>(()).await.unwrap();
    until("progress", async || {
        task.view().await.unwrap().progress.is_some_and(|progress| progress.message.as_deref() == Some("at 100"))
    })
    .await;
    task.cancel().await.unwrap();
    worker.shutdown().await;
}

#[task]
async fn depends(context: &Context, (): ()) -> TaskResult<String> {
    context.breaker("payments").call(|| async { Err::<String, _>("the bank is closed") }).await
}

#[tokio::test]
async fn an_open_breaker_puts_tasks_off_without_using_up_attempts() {
    let client = in_memory();
    let settings = BreakerSettings { min_calls: 3, ..BreakerSettings::default() };
    let worker = running(Worker::new(&client).handle::<depends>().concurrency(1).breaker("payments", settings)).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(client.enqueue::<depends>(()).retry(Retry::fixed(Duration::from_secs(60))).await.unwrap());
    }
    let retries = async || {
        let mut retries = Vec::new();
        for task in &tasks {
            let view = task.view().await.unwrap();
            if view.status == Status::Scheduled {
                retries.push(view.retry_count);
            }
        }
        retries
    };
    until("all are put off", async || retries().await.len() == 5).await;
    assert_eq!(retries().await, [1, 1, 1, 0, 0]);
    worker.shutdown().await;
}

#[tokio::test]
async fn handlers_run_alone_too() {
    #[task]
    async fn looks(context: &Context, (): ()) -> TaskResult<bool> {
        Ok(context.is_stopped())
    }
    assert_eq!(Inline::new().run::<total>(Order { id: 1, items: Vec::new() }).await.unwrap(), 0);
    assert!(Inline::new().stopped(StopReason::Cancelled).run::<looks>(()).await.unwrap());
    let lacking = Inline::new().run::<order_steps>("").await.unwrap_err();
    assert!(lacking.is_permanent() && lacking.message().contains("Worker::state"), "{}", lacking.message());
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_so() {
    let client = in_memory();
    let error = Worker::new(&client).start().await.unwrap_err().to_string();
    assert!(error.contains("no handlers"), "{error}");
    let error = Worker::new(&client).handle::<nothing>().concurrency(0).start().await.unwrap_err().to_string();
    assert!(error.contains("from 1 to 10000"), "{error}");
    let error = Worker::new(&client).handle::<nothing>().handle_limited::<nothing>(2).start().await.unwrap_err();
    assert!(error.to_string().contains("two handlers"), "{error}");
}

#[tokio::test]
async fn a_result_that_is_refused_fails_the_task_visibly() {
    #[task]
    async fn too_much((): ()) -> TaskResult<String> {
        Ok("x".repeat(1_000_000))
    }
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<too_much>()).await;
    let task = client.enqueue::<too_much>(()).await.unwrap();
    let Err(Error::TaskDidNotSucceed(view)) = task.result_within(PATIENCE).await else { panic!("it is too large") };
    let error = view.error.as_ref().unwrap();
    assert_eq!(error.code.as_deref(), Some("result_refused"));
    assert!(error.message.contains("limit"), "{}", error.message);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_failure_whose_details_are_refused_is_still_that_failure() {
    #[task]
    async fn talks_too_much((): ()) -> TaskResult<()> {
        Err(TaskError::retry("the bank is closed").details(json!("x".repeat(100_000))))
    }
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<talks_too_much>()).await;
    let task = client.enqueue::<talks_too_much>(()).await.unwrap();
    until("a retry", async || task.view().await.unwrap().status == Status::Scheduled).await;
    let error = task.view().await.unwrap().error.unwrap();
    assert!(error.message.starts_with("the bank is closed (more about it was refused"), "{}", error.message);
    worker.shutdown().await;
}

#[tokio::test]
async fn many_tasks_at_once() {
    let client = in_memory();
    let worker = running(Worker::new(&client).handle::<add>()).await;
    let tasks = client.enqueue_many::<add>((0..2_500).map(|n| (n, n))).with(|options| options.queue("sums")).await;
    let tasks = tasks.unwrap();
    assert_eq!(tasks.len(), 2_500);
    for (n, task) in tasks.iter().enumerate().step_by(100) {
        assert_eq!(task.result_within(PATIENCE).await.unwrap(), 2 * n as i64);
    }
    worker.shutdown().await;
}
