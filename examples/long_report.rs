//! A report that takes a while: progress that people can watch, and durable steps, so that a second attempt goes on
//! where the first one broke off.
//!
//! `cargo run --bin long-report` shows the progress from outside while the report is made; the first attempt fails in
//! the middle, and the second does not load the figures again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Client, Context, Progress, Retry, TaskError, TaskResult, Worker, task};

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    month: String,
    chapters: u32,
}

#[task(timeout_seconds = 600)]
async fn long_report(context: Context, report: Report) -> TaskResult<String> {
    // Done once, however many attempts the report takes: the result is stored with the task.
    let figures = context
        .step("load figures", || async {
            println!("  loading the figures of {} (attempt {})", report.month, context.attempt());
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, TaskError>(vec![17, 4, 23])
        })
        .await?;
    for chapter in 1..=report.chapters {
        let written = context
            .step(&format!("chapter {chapter}"), || async {
                println!("  writing chapter {chapter} (attempt {})", context.attempt());
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok::<_, TaskError>(figures.iter().sum::<u32>() * chapter)
            })
            .await?;
        // As often as you like: at most one report a second, or every 5 percent, is sent.
        context.progress(Progress::step(chapter, report.chapters).message(format!("chapter {chapter}: {written}")));
        if chapter == 3 && context.attempt() == 1 {
            return Err(TaskError::retry("the printer is out of paper"));
        }
        // Cancelled, out of time, shutting down: a good place to stop.
        if context.is_stopped() {
            return Err(TaskError::retry("stopped between two chapters"));
        }
    }
    Ok(format!("{}.pdf", report.month))
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let address = std::env::var("WINDLASS_SERVER").unwrap_or_else(|_| "sqlite:long-report-data".to_owned());
    let client = Client::connect(address).await?;
    let worker = Worker::new(&client).handle::<long_report>().start().await?;
    let task = client
        .enqueue::<long_report>(Report { month: "2026-10".into(), chapters: 6 })
        .retry(Retry::fixed(Duration::from_millis(500)))
        .await?;
    let mut shown = String::new();
    let view = loop {
        let view = client.wait(task.id().clone(), Duration::from_millis(200)).await?;
        if let Some(progress) = &view.progress {
            let line = format!("{:>3.0} %  {}", progress.percent, progress.message.as_deref().unwrap_or_default());
            if line != shown {
                println!("{line}");
                shown = line;
            }
        }
        if view.status.is_ended() {
            break view;
        }
    };
    println!("{} after {} attempts: {}", view.task_type, view.attempt, view.result_as::<String>()?);
    worker.shutdown().await;
    client.close().await;
    Ok(())
}
