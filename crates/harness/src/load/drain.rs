//! How fast waiting tasks are worked off by one worker with several pollers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::session::{Poller, Session, batch};
use crate::clock::Clock;
use crate::error::HarnessError;

/// How long a poll waits when there is nothing: short, because at the end some pollers find nothing.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// How often the statistics are asked whether the queue is empty.
const EMPTY_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Tasks per call when the queue is filled.
const FILL_BATCH: u64 = 1_000;

/// How the queue is worked off.
#[derive(Clone, Copy, Debug)]
pub struct Pollers {
    /// Connections that poll.
    pub connections: usize,
    /// Tasks per poll.
    pub poll_size: usize,
}

/// What a drain measured.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Tasks whose result was acknowledged.
    pub tasks: u64,
    /// From the first task at the worker to the last acknowledged result.
    pub took: Duration,
}

/// Fills a queue with this many tasks.
pub async fn fill(session: &Session, queue: &str, tasks: u64) -> Result<(), HarnessError> {
    let mut line = session.connect().await?;
    let mut left = tasks;
    while left > 0 {
        let count = left.min(FILL_BATCH);
        line.call("POST", "/api/v1/tasks/batch", batch(queue, count).as_bytes()).await?;
        left -= count;
    }
    Ok(())
}

/// Works off these queues, which hold this many tasks, and waits until the statistics show them empty.
pub async fn work_off(session: &Session, queues: &[String], tasks: u64, by: Pollers) -> Result<Drained, HarnessError> {
    let worker = session.register(queues, by.connections * by.poll_size).await?;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let clock = Clock::start();
    let mut pollers = Vec::new();
    for _ in 0..by.connections {
        let mut poller = Poller::new(session, &worker).await?;
        let acknowledged = Arc::clone(&acknowledged);
        pollers.push(tokio::spawn(async move {
            let (mut first, mut last) = (None, Duration::ZERO);
            while acknowledged.load(Ordering::Relaxed) < tasks {
                let polled = poller.poll(by.poll_size, POLL_WAIT, false).await?;
                let now = clock.elapsed();
                if polled.tasks > 0 {
                    first.get_or_insert(now);
                }
                if polled.acknowledged > 0 {
                    last = now;
                    acknowledged.fetch_add(polled.acknowledged, Ordering::Relaxed);
                }
            }
            Ok::<_, HarnessError>((first, last))
        }));
    }
    let (mut first, mut last) = (None::<Duration>, Duration::ZERO);
    for poller in pollers {
        let joined = poller.await.map_err(|error| HarnessError::call("poll", error.to_string()))?;
        let (began, ended) = joined?;
        first = first.into_iter().chain(began).min();
        last = last.max(ended);
    }
    while session.live_tasks(queues).await? > 0 {
        tokio::time::sleep(EMPTY_LOOK_EVERY).await;
    }
    session.deregister(&worker).await?;
    let took = last.saturating_sub(first.unwrap_or(last));
    Ok(Drained { tasks: acknowledged.load(Ordering::Relaxed), took })
}
