//! The sample tasks: each shows one thing that Windlass does.

#![allow(clippy::unused_async, reason = "a task is an async function, whether it waits for something or not")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;
use windlass::{Client, Context, Method, Progress, TaskError, TaskId, TaskResult, Worker, task};

/// What each type of task is good for, for the screen.
pub const TYPES: [(&str, &str); 5] = [
    ("greet", "returns a greeting"),
    ("flaky", "fails twice, then succeeds: see the retries"),
    ("report", "takes 10 s, with progress and steps that are never done twice"),
    ("doomed", "cannot succeed: becomes a dead letter at once"),
    ("slow", "takes 2 minutes: something to cancel"),
];

#[task]
async fn greet(name: String) -> TaskResult<String> {
    Ok(format!("Hello, {name}!"))
}

#[task]
async fn flaky(context: &Context) -> TaskResult<String> {
    sleep(Duration::from_millis(200)).await;
    match context.attempt() {
        attempt @ 1..=2 => {
            let message = format!("the connection broke off (attempt {attempt}; the third will succeed)");
            Err(TaskError::retry(message).code("connection_reset"))
        }
        attempt => Ok(format!("succeeded at attempt {attempt}")),
    }
}

/// What `report` is asked for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Report {
    title: Option<String>,
}

#[task]
async fn report(input: Report, context: &Context) -> TaskResult<serde_json::Value> {
    const CHAPTERS: u32 = 10;
    let mut pages = 0;
    for chapter in 1..=CHAPTERS {
        // Stored with the task: an attempt that breaks off is continued by the next one where it was.
        pages += context
            .step(&format!("chapter {chapter}"), || async {
                sleep(Duration::from_secs(1)).await;
                Ok::<_, TaskError>(chapter + 2)
            })
            .await?;
        context.progress(Progress::step(chapter, CHAPTERS).message(format!("chapter {chapter} is written")));
    }
    Ok(json!({"title": input.title, "chapters": CHAPTERS, "pages": pages}))
}

#[task]
async fn doomed() -> TaskResult<()> {
    Err(TaskError::permanent("there is no customer 4711, and trying again will not make one").code("no_such_customer"))
}

#[task]
async fn slow(context: &Context) -> TaskResult<()> {
    const SECONDS: u32 = 120;
    for second in 1..=SECONDS {
        tokio::select! {
            reason = context.stop_token().stopped() => {
                return Err(TaskError::cancel(format!("stopped after {second} s: {reason:?}")));
            }
            () = sleep(Duration::from_secs(1)) => {}
        }
        context.progress(Progress::step(second, SECONDS));
    }
    Ok(())
}

/// A worker for all of them.
pub fn worker(client: &Client) -> Worker {
    Worker::new(client)
        .name("sample worker")
        .concurrency(10)
        // Whoever presses Ctrl-C does not want to wait for a sample.
        .shutdown_timeout(Duration::from_millis(300))
        .stop_grace(Duration::from_millis(300))
        .handle::<greet>()
        .handle::<flaky>()
        .handle::<report>()
        .handle::<doomed>()
        .handle::<slow>()
}

/// Tasks to begin with, by the names of their types.
#[derive(Debug)]
pub struct Submitted {
    /// Fails twice.
    pub flaky: TaskId,
    /// Can be cancelled.
    pub slow: TaskId,
}

/// Submits one task of each type, with short delays between attempts also for those that come later.
pub async fn submit(client: &Client) -> windlass::Result<Submitted> {
    let quick = json!({"retry": {"strategy": "fixed", "base_delay": 1, "jitter": "none"}});
    client.call(Method::Put, "/api/v1/task-types/flaky", Some(&quick)).await?;
    client.enqueue::<greet>("Ada").await?;
    let flaky = client.enqueue::<flaky>(()).await?;
    client.enqueue::<report>(Report { title: Some("Sales".to_owned()) }).await?;
    client.enqueue::<doomed>(()).await?;
    let slow = client.enqueue::<slow>(()).await?;
    Ok(Submitted { flaky: flaky.id().clone(), slow: slow.id().clone() })
}
