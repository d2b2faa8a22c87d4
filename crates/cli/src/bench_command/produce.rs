//! The producer: submits through the SDK, one by one, in batches, with pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use windlass::Client;

use super::figures::Percentiles;
use super::job::{Mail, noop, now_us, pickup};
use super::orders::{PICKUP_WARM_UPS, QUEUE_TASKS, Submit, Submitted, queue_name};
use crate::exit::{Exit, Failure, Outcome};

/// Tasks per call when queues are filled.
const FILL_BATCH: u64 = 1_000;

/// Puts so many tasks into the queues of a stage.
pub async fn fill(client: &Client, stage: &str, tasks: u64) -> Outcome {
    let mut first = 0;
    while first < tasks {
        let count = FILL_BATCH.min(tasks - first);
        submit_many(client, stage, first, count).await?;
        first += count;
    }
    Ok(())
}

/// Submits as fast as the calls in flight allow.
pub async fn submit(client: &Client, order: Submit) -> Outcome<Submitted> {
    let order = Arc::new(order);
    let taken = Arc::new(AtomicU64::new(0));
    let from = Instant::now() + order.warm_up;
    let mut senders = JoinSet::new();
    for _ in 0..order.in_flight {
        senders.spawn(send(client.clone(), Arc::clone(&order), Arc::clone(&taken), from));
    }
    let (mut sent, mut left, mut latencies_us, mut window) = (0, 0, Vec::new(), None);
    while let Some(joined) = senders.join_next().await {
        let sender = joined.map_err(|error| Failure::new(Exit::Failed, error.to_string()))??;
        sent += sender.measured;
        left += sender.all;
        latencies_us.extend(sender.latencies_us);
        window = both(window, sender.window);
    }
    let took = window.map_or(Duration::ZERO, |(begun, ended)| ended.saturating_duration_since(begun));
    Ok(Submitted { tasks: sent, took, latency: Percentiles::of(latencies_us), left })
}

/// From the first call to the last answer.
type Window = (Instant, Instant);

fn both(one: Option<Window>, other: Option<Window>) -> Option<Window> {
    one.into_iter().chain(other).reduce(|(begun, ended), (first, last)| (begun.min(first), ended.max(last)))
}

/// What one line of calls did.
#[derive(Default)]
struct Sender {
    measured: u64,
    all: u64,
    latencies_us: Vec<u64>,
    window: Option<Window>,
}

/// One call after the other. Those that begin after the warm-up are measured, at least one.
async fn send(client: Client, order: Arc<Submit>, taken: Arc<AtomicU64>, from: Instant) -> Outcome<Sender> {
    let mut sender = Sender::default();
    loop {
        let begun = Instant::now();
        let first = taken.fetch_add(order.per_call, Ordering::Relaxed);
        let is_over = begun >= from + order.span && sender.measured > 0;
        if is_over || first + order.per_call > order.tasks_max {
            return Ok(sender);
        }
        if order.per_call == 1 {
            let queue = queue_name(&order.stage, first / QUEUE_TASKS);
            client.enqueue::<noop>(Mail::untimed()).queue(queue).await?;
        } else {
            submit_many(&client, &order.stage, first, order.per_call).await?;
        }
        sender.all += order.per_call;
        if begun >= from {
            let ended = Instant::now();
            sender.window = Some((sender.window.map_or(begun, |(first, _)| first), ended));
            sender.measured += order.per_call;
            sender.latencies_us.push(ended.saturating_duration_since(begun).as_micros() as u64);
        }
    }
}

async fn submit_many(client: &Client, stage: &str, first: u64, count: u64) -> Outcome {
    let queue = queue_name(stage, first / QUEUE_TASKS);
    let mails = (0..count).map(|_| Mail::untimed());
    client.enqueue_many::<noop>(mails).with(|options| options.queue(&queue)).await?;
    Ok(())
}

/// Submits one task after the other, so far apart that the queue is empty in between.
pub async fn pace(client: &Client, stage: &str, tasks: u64, every: Duration) -> Outcome<Percentiles> {
    let queue = queue_name(stage, 0);
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once; the worker's first poll has to be waiting before the first task.
    interval.tick().await;
    for _ in 0..PICKUP_WARM_UPS {
        interval.tick().await;
        client.enqueue::<pickup>(Mail::untimed()).queue(&queue).await?;
    }
    let mut latencies_us = Vec::new();
    for _ in 0..tasks {
        interval.tick().await;
        let begun = Instant::now();
        client.enqueue::<pickup>(Mail::sent_at(now_us())).queue(&queue).await?;
        latencies_us.push(begun.elapsed().as_micros() as u64);
    }
    Ok(Percentiles::of(latencies_us))
}
