//! How long a task waits in an idle queue until a worker that is waiting has it.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::latency::Percentiles;
use super::session::{Poller, Session, task};
use crate::clock::Clock;
use crate::error::HarnessError;

/// How long the worker's polls wait; longer than the time between two tasks.
const POLL_WAIT: Duration = Duration::from_secs(10);

/// What the stage measured.
#[derive(Clone, Copy, Debug)]
pub struct PickedUp {
    /// From the start of the submit call to the poll's answer at the worker.
    pub pickup: Percentiles,
    /// Of the submit call.
    pub submit: Percentiles,
}

/// One task at a time, so far apart, to a worker whose poll waits.
pub async fn run(session: &Session, tasks: u64, every: Duration) -> Result<PickedUp, HarnessError> {
    let queue = session.queue("pickup");
    let worker = session.register(std::slice::from_ref(&queue), 10).await?;
    let clock = Clock::start();
    let mut poller = Poller::new(session, &worker).await?;
    let receiving = tokio::spawn(async move {
        let mut received: Vec<(u64, Duration)> = Vec::new();
        let mut acknowledged = 0;
        while acknowledged < tasks {
            let polled = poller.poll(10, POLL_WAIT, true).await?;
            let now = clock.elapsed();
            acknowledged += polled.acknowledged;
            received.extend(polled.numbers.into_iter().map(|number| (number, now)));
        }
        Ok::<_, HarnessError>(received)
    });

    let mut line = session.connect().await?;
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once; the worker's first poll has to be waiting before the first task.
    interval.tick().await;
    let mut submitted = Vec::new();
    let mut submit = Vec::new();
    for number in 0..tasks {
        interval.tick().await;
        let body = task(&queue, number);
        let begun = clock.elapsed();
        line.call("POST", "/api/v1/tasks", body.as_bytes()).await?;
        submit.push(clock.elapsed().saturating_sub(begun));
        submitted.push(begun);
    }
    let received = receiving.await.map_err(|error| HarnessError::call("poll", error.to_string()))??;
    session.deregister(&worker).await?;
    let waited = received.iter().filter_map(|(number, at)| Some(at.saturating_sub(*submitted.get(*number as usize)?)));
    Ok(PickedUp { pickup: Percentiles::of(waited.collect()), submit: Percentiles::of(submit) })
}
