//! The calls of a lane: one loop makes them all.
//!
//! Results go out inside the next poll, so that "done, next please" is one round trip; while such calls are under way,
//! what ends meanwhile gathers for the next. Only when there is nothing to send does a poll wait for work.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll as Ready;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::protocol::{Outgoing, Poll, Polled};
use crate::worker::identity::Identity;
use crate::worker::lane::{ANSWER_WITHIN, Lane};
use crate::worker::outbox::Unsent;

/// How long a poll waits for work. Shorter than what proxies commonly cut off.
const POLL_WAIT: Duration = Duration::from_secs(25);
/// A waiting poll that comes back with nothing and has more than this left is not to be repeated at once.
const EARLY: Duration = Duration::from_secs(5);
/// A worker without room listens to cancellations by a poll of its own after this time.
const LISTEN_AFTER: Duration = Duration::from_secs(1);
/// A second call with results is worth its while from this many on.
const SECOND_CALL_RESULTS: usize = 16;
type CallFuture = Pin<Box<dyn Future<Output = Done> + Send>>;

/// A call that came back.
struct Done {
    /// Slots that it asked tasks for.
    reserved: usize,
    /// How much of its wait was left when it came back.
    came_early_by: Duration,
    /// Results that it carried.
    carried: Vec<Unsent>,
    worker_id: String,
    answer: Result<Polled>,
}

/// How a poll came back.
enum Came {
    /// With something, or after its wait.
    WithNews,
    /// With nothing, long before its wait was over.
    Early,
}

/// The calls under way.
#[derive(Default)]
struct Calls {
    /// Carry results.
    carriers: Vec<CallFuture>,
    /// Waits for work, for so many slots.
    waiting: Option<(usize, CallFuture)>,
    /// A waiting poll was given up, and with it perhaps the word of a cancellation that is told once: the next poll asks
    /// for all of them instead of waiting for news.
    lost_news: bool,
}

impl Lane {
    /// Polls, runs and reports until the worker stops and everything has ended.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut calls = Calls::default();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut quiet_until: Option<Instant> = None;
        let mut listens = false;
        loop {
            if self.is_poll_suspect.swap(false, Ordering::Relaxed) {
                calls.drop_waiting(&self);
            }
            let is_stopping = self.common.stopping.is_stopped();
            if is_stopping {
                if self.is_idle() {
                    return;
                }
                // One that waits for tasks must not bring any more; what it may have got is given back.
                if calls.waiting.as_ref().is_some_and(|(reserved, _)| *reserved > 0) {
                    calls.drop_waiting(&self);
                }
                self.release(self.slots.take_ahead());
            }
            self.release(self.slots.take_stale(Instant::now()));
            if quiet_until.is_none_or(|until| until <= Instant::now()) {
                quiet_until = None;
                if self.identity.worker_id().is_none() && !is_stopping {
                    if let Err(error) = self.register().await {
                        tracing::warn!(%error, "cannot register");
                        quiet_until = Some(Instant::now() + backoff.next().max(error.retry_after()));
                        continue;
                    }
                    backoff.reset();
                }
                let reads_on = std::mem::take(&mut listens);
                self.begin_calls(&mut calls, is_stopping, reads_on);
            }
            // With nothing under way, only heartbeats would tell of cancellations: after a moment a poll that asks for
            // no task listens to them.
            let listen_at = calls.is_empty().then(|| Instant::now() + LISTEN_AFTER);
            tokio::select! {
                done = calls.next() => {
                    match self.finish_call(done) {
                        Ok(Came::WithNews) => backoff.reset(),
                        Ok(Came::Early) => quiet_until = Some(Instant::now() + backoff.next()),
                        Err(error) => {
                            let pause = backoff.next().max(error.retry_after());
                            tracing::warn!(%error, ?pause, "no answer to a poll; trying again");
                            quiet_until = Some(Instant::now() + pause);
                        }
                    }
                }
                () = self.wake.notified() => {}
                _ = self.common.stopping.stopped(), if !is_stopping => {}
                () = sleep_until(quiet_until) => {}
                () = sleep_until(self.slots.stale_at()) => {}
                () = sleep_until(listen_at) => listens = true,
            }
        }
    }

    fn begin_calls(self: &Arc<Self>, calls: &mut Calls, is_stopping: bool, listens: bool) {
        let Some(worker_id) = self.identity.worker_id() else { return };
        let unsent = self.outbox.len();
        let carriers = calls.carriers.len();
        if unsent > 0 && (carriers == 0 || (carriers == 1 && unsent >= SECOND_CALL_RESULTS)) {
            let carried = self.outbox.take();
            let reserved = if is_stopping { 0 } else { self.slots.reserve() };
            calls.carriers.push(Box::pin(Arc::clone(self).call(worker_id, reserved, carried, Duration::ZERO)));
        } else if unsent == 0 && carriers == 0 {
            if !is_stopping && !self.slots.are_full() && matches!(calls.waiting, Some((0, _))) {
                // It only listens, and there is room for tasks.
                calls.drop_waiting(self);
            }
            if calls.waiting.is_some() {
                return;
            }
            // Once it stops, it only waits to hear of cancellations.
            let reserved = if is_stopping { 0 } else { self.slots.reserve() };
            if reserved > 0 || is_stopping || listens {
                let wait = if std::mem::take(&mut calls.lost_news) { Duration::ZERO } else { POLL_WAIT };
                let call = Arc::clone(self).call(worker_id, reserved, Vec::new(), wait);
                calls.waiting = Some((reserved, Box::pin(call)));
            }
        }
    }

    async fn call(self: Arc<Self>, worker_id: String, reserved: usize, carried: Vec<Unsent>, wait: Duration) -> Done {
        let results: Vec<&Outgoing> = carried.iter().map(|unsent| &unsent.outgoing).collect();
        let body = Poll {
            available_capacity: reserved as u32,
            wait_ms: (!wait.is_zero()).then_some(wait.as_millis() as u64),
            results: &results,
        };
        let path = Identity::path_of(&worker_id, "poll");
        let begun = Instant::now();
        let answer = self.common.client.post_once(&path, &body, wait + ANSWER_WITHIN).await;
        drop(results);
        Done { reserved, came_early_by: wait.saturating_sub(begun.elapsed()), carried, worker_id, answer }
    }

    /// Takes what a call brought. An error means that the server could not be talked to.
    fn finish_call(self: &Arc<Self>, done: Done) -> Result<Came> {
        let Done { reserved, came_early_by, carried, worker_id, answer } = done;
        match answer {
            Ok(polled) => {
                self.common.stats.connected();
                for task in &polled.cancel {
                    self.cancelled(task);
                }
                self.settle(carried, &polled);
                self.slots.give_back(reserved.saturating_sub(polled.tasks.len()));
                // A server that shuts down answers at once with nothing, over and over.
                let is_early = polled.tasks.is_empty() && polled.cancel.is_empty() && came_early_by > EARLY;
                for task in polled.tasks {
                    self.start(task);
                }
                Ok(if is_early { Came::Early } else { Came::WithNews })
            }
            Err(Error::Refused(problem)) if problem.code == "worker_not_found" => {
                // Forgotten: after a very long silence, or because the store is another one now. What this worker held
                // is not its own any more.
                self.slots.give_back(reserved);
                self.forgotten(&worker_id);
                Ok(Came::WithNews)
            }
            Err(Error::Refused(problem)) if problem.blames_the_body() && !carried.is_empty() => {
                // A call that is refused as a whole has a result in it that Windlass cannot take.
                self.slots.give_back(reserved);
                self.refused(carried, &problem.to_string());
                Ok(Came::WithNews)
            }
            Err(error) => {
                self.slots.give_back(reserved);
                self.outbox.put_back(carried);
                Err(error)
            }
        }
    }
}

impl Calls {
    fn is_empty(&self) -> bool {
        self.carriers.is_empty() && self.waiting.is_none()
    }

    /// The next call that comes back; pending for ever if there is none.
    async fn next(&mut self) -> Done {
        poll_fn(|context| {
            if let Some((_, call)) = &mut self.waiting
                && let Ready::Ready(done) = call.as_mut().poll(context)
            {
                self.waiting = None;
                return Ready::Ready(done);
            }
            for index in 0..self.carriers.len() {
                if let Ready::Ready(done) = self.carriers[index].as_mut().poll(context) {
                    drop(self.carriers.swap_remove(index));
                    return Ready::Ready(done);
                }
            }
            Ready::Pending
        })
        .await
    }

    /// Gives a poll that waits up. Calls that carry results go on.
    fn drop_waiting(&mut self, lane: &Lane) {
        if let Some((reserved, call)) = self.waiting.take() {
            drop(call);
            lane.slots.give_back(reserved);
            self.lost_news = true;
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
