//! The work: tasks that do nothing, with the parameters of a small mail job.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use windlass::{Client, Context, TaskResult, Worker, task};

/// About 200 bytes of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mail {
    /// When the submit began, in microseconds; zero where nobody asks.
    sent_at_us: u64,
    user_id: u32,
    template: String,
    locale: String,
    to: String,
    order: Purchase,
    trace: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Purchase {
    id: String,
    total_cents: u32,
    currency: String,
    items: u8,
}

impl Mail {
    /// Parameters of a task that was submitted at a time of [`now_us`].
    pub fn sent_at(sent_at_us: u64) -> Self {
        Self {
            sent_at_us,
            user_id: 48_213_377,
            template: "receipt".to_owned(),
            locale: "en-GB".to_owned(),
            to: "somebody@mail.example".to_owned(),
            order: Purchase { id: "A-2291-77".to_owned(), total_cents: 12_995, currency: "EUR".to_owned(), items: 3 },
            trace: "5c1d9f02".to_owned(),
        }
    }

    /// Parameters of a task whose time is not measured.
    pub fn untimed() -> Self {
        Self::sent_at(0)
    }
}

/// The wall clock in microseconds: the clock that the producer's and the worker's process share.
#[allow(clippy::disallowed_methods, reason = "two processes compare their times; no decision hangs on them")]
pub fn now_us() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_micros() as u64
}

/// Does nothing.
#[task(name = "bench.noop")]
pub async fn noop(_mail: Mail, context: &Context) -> TaskResult<()> {
    context.state::<Arc<Tally>>()?.ran();
    Ok(())
}

/// Notes how long it took from the submit to here.
#[task(name = "bench.pickup")]
pub async fn pickup(mail: Mail, context: &Context) -> TaskResult<()> {
    let now_us = now_us();
    let tally = context.state::<Arc<Tally>>()?;
    if mail.sent_at_us > 0 {
        tally.picked_up(now_us.saturating_sub(mail.sent_at_us));
    }
    tally.ran();
    Ok(())
}

/// A worker of these queues, as the SDK makes it unless told otherwise.
pub fn worker(client: &Client, queues: &[String], concurrency: Option<u32>, tally: &Arc<Tally>) -> Worker {
    let worker =
        Worker::new(client).name("windlass bench").handle::<noop>().handle::<pickup>().state(Arc::clone(tally));
    let worker = queues.iter().fold(worker, Worker::queue);
    match concurrency {
        Some(tasks) => worker.concurrency(tasks as usize),
        None => worker,
    }
}

/// What the handlers of a worker noted.
#[derive(Debug)]
pub struct Tally {
    runs: AtomicU64,
    expected: AtomicU64,
    reached: Notify,
    first: OnceLock<Instant>,
    pickups_us: Mutex<Vec<u64>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            runs: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
            first: OnceLock::new(),
            pickups_us: Mutex::default(),
        }
    }
}

impl Tally {
    fn ran(&self) {
        self.first.get_or_init(Instant::now);
        let runs = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        if runs >= self.expected.load(Ordering::SeqCst) {
            self.reached.notify_one();
        }
    }

    fn picked_up(&self, after_us: u64) {
        self.pickups_us.lock().unwrap_or_else(PoisonError::into_inner).push(after_us);
    }

    /// Resolves when so many handlers have run.
    pub async fn reached(&self, tasks: u64) {
        self.expected.store(tasks, Ordering::SeqCst);
        while self.runs.load(Ordering::SeqCst) < tasks {
            self.reached.notified().await;
        }
    }

    /// When the first handler began.
    pub fn first(&self) -> Option<Instant> {
        self.first.get().copied()
    }

    /// The times from submit to handler.
    pub fn take_pickups_us(&self) -> Vec<u64> {
        std::mem::take(&mut self.pickups_us.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_have_the_promised_size() {
        let length = serde_json::to_string(&Mail::sent_at(now_us())).expect("JSON").len();
        assert!((190..=220).contains(&length), "{length}");
        let length = serde_json::to_string(&Mail::untimed()).expect("JSON").len();
        assert!((180..=220).contains(&length), "{length}");
    }

    #[tokio::test]
    async fn a_tally_wakes_whoever_waits_before_and_after() {
        let tally = Arc::new(Tally::default());
        let waiting = tokio::spawn({
            let tally = Arc::clone(&tally);
            async move { tally.reached(2).await }
        });
        tally.ran();
        tally.ran();
        waiting.await.expect("woken");
        tally.reached(2).await;
        assert!(tally.first().is_some());
    }
}
