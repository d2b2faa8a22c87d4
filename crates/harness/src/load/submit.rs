//! How many tasks are acknowledged per second, one by one and in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::latency::Percentiles;
use super::session::{Session, TASKS_PER_QUEUE, batch, task};
use crate::clock::Clock;
use crate::error::HarnessError;
use crate::http::write_request;

/// What a submit stage measured.
#[derive(Debug)]
pub struct Submitted {
    /// Tasks acknowledged.
    pub tasks: u64,
    /// From the first call to the last answer.
    pub took: Duration,
    /// Of single calls.
    pub latency: Percentiles,
    /// Queues that have tasks now.
    pub queues: Vec<String>,
}

/// One stage: how many connections send how many tasks per call.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The name of the stage and of its queues.
    pub name: &'static str,
    /// Connections, each with one call in flight.
    pub connections: usize,
    /// Tasks per call; 1 uses the call for single tasks.
    pub per_call: u64,
    /// At most so many tasks.
    pub tasks_max: u64,
}

/// Sends for at least `span`, unless the most tasks are reached before.
pub async fn run(session: &Session, shape: Shape, span: Duration) -> Result<Submitted, HarnessError> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut lines = Vec::new();
    for _ in 0..shape.connections {
        lines.push(session.connect().await?);
    }
    let clock = Clock::start();
    let mut senders = Vec::new();
    for mut line in lines {
        let (session, taken) = (session.clone(), Arc::clone(&taken));
        senders.push(tokio::spawn(async move {
            let path = if shape.per_call == 1 { "/api/v1/tasks" } else { "/api/v1/tasks/batch" };
            let mut request = Vec::new();
            let mut written_for = None;
            let mut latencies = Vec::new();
            let mut acknowledged = 0;
            while clock.elapsed() < span {
                let first = taken.fetch_add(shape.per_call, Ordering::Relaxed);
                if first + shape.per_call > shape.tasks_max {
                    break;
                }
                let queue_number = first / TASKS_PER_QUEUE;
                if written_for != Some(queue_number) {
                    let queue = queue_name(&session, shape.name, queue_number);
                    let body = if shape.per_call == 1 { task(&queue, 0) } else { batch(&queue, shape.per_call) };
                    write_request(&mut request, "POST", path, body.as_bytes());
                    written_for = Some(queue_number);
                }
                let begun = clock.elapsed();
                line.send(path, &request).await?;
                latencies.push(clock.elapsed().saturating_sub(begun));
                acknowledged += shape.per_call;
            }
            Ok::<_, HarnessError>((acknowledged, latencies, clock.elapsed()))
        }));
    }
    let (mut tasks, mut latencies, mut took) = (0, Vec::new(), Duration::ZERO);
    for sender in senders {
        let joined = sender.await.map_err(|error| HarnessError::call("submit", error.to_string()))?;
        let (acknowledged, measured, ended) = joined?;
        tasks += acknowledged;
        latencies.extend(measured);
        took = took.max(ended);
    }
    let last_queue = tasks.saturating_sub(1) / TASKS_PER_QUEUE;
    let queues = (0..=last_queue).map(|number| queue_name(session, shape.name, number)).collect();
    Ok(Submitted { tasks, took, latency: Percentiles::of(latencies), queues })
}

fn queue_name(session: &Session, stage: &str, number: u64) -> String {
    session.queue(&format!("{stage}-{number}"))
}
