//! A lane: some task types, the slots they share, and the worker that Windlass knows them by.
//!
//! One loop makes all calls of a lane. Results go out inside the next poll, so that "done, next please" is one round
//! trip; while such calls are under way, what ends meanwhile gathers for the next. Only when there is nothing to send
//! does a poll wait for work.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll as Ready;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::context::Attempt;
use crate::error::{Error, Result};
use crate::protocol::{Claimed, Outcome, Outgoing, Poll, Polled, Register, Registered};
use crate::stop::StopReason;
use crate::view::TaskId;
use crate::worker::attempt;
use crate::worker::common::Common;
use crate::worker::identity::Identity;
use crate::worker::link::Link;
use crate::worker::outbox::{Outbox, Unsent};
use crate::worker::slots::Slots;

/// How long a poll waits for work. Shorter than what proxies commonly cut off.
const POLL_WAIT: Duration = Duration::from_secs(25);
/// How long an answer may take beyond that.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A waiting poll that comes back with nothing and has more than this left is not to be repeated at once.
const EARLY: Duration = Duration::from_secs(5);
/// A worker without room listens to cancellations by a poll of its own after this time.
const LISTEN_AFTER: Duration = Duration::from_secs(1);
/// A second call with results is worth its while from this many on.
const SECOND_CALL_RESULTS: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) types: Vec<String>,
    pub(crate) capacity: usize,
    pub(crate) identity: Arc<Identity>,
    pub(crate) common: Arc<Common>,
    slots: Slots,
    /// Every attempt whose lease must be renewed: those that run, and those whose result is not acknowledged yet. By
    /// lease token: two attempts at one task may be here at once, one of them lost.
    held: Mutex<HashMap<String, Arc<Attempt>>>,
    outbox: Outbox,
    wake: Notify,
    /// The connections were found dead: a poll that waits on one waits in vain.
    is_poll_suspect: AtomicBool,
}

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
    pub(crate) fn new(common: Arc<Common>, types: Vec<String>, capacity: usize) -> Self {
        Self {
            types,
            capacity,
            identity: Arc::default(),
            common,
            slots: Slots::new(capacity),
            held: Mutex::default(),
            outbox: Outbox::default(),
            wake: Notify::new(),
            is_poll_suspect: AtomicBool::new(false),
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, Arc<Attempt>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every attempt that this worker must answer for.
    pub(crate) fn attempts(&self) -> Vec<Arc<Attempt>> {
        self.held().values().cloned().collect()
    }

    /// How many tasks it has.
    pub(crate) fn load(&self) -> usize {
        self.held().len()
    }

    pub(crate) fn unsent_results(&self) -> usize {
        self.outbox.len()
    }

    /// Whether nothing runs and nothing is left to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.held().is_empty()
    }

    /// Tells whoever works on a cancelled task to stop.
    pub(crate) fn cancelled(&self, task: &TaskId) {
        for attempt in self.held().values().filter(|attempt| attempt.task.task_id == *task) {
            attempt.stop.stop(StopReason::Cancelled);
        }
    }

    /// Nothing more is owed to the server about these: they were released, or the worker is forgotten.
    pub(crate) fn let_go_all(&self, reason: StopReason) {
        let lost = self.take_rest(reason).into_iter().filter(|result| !matches!(result.outcome, Outcome::Released));
        for result in lost {
            self.common.stats.lost();
            tracing::error!(task_id = %result.task_id, "a result is lost: the server does not know its worker any more");
        }
    }

    /// What has to be said to the server before this worker leaves: results that were not sent yet, and that everything
    /// which still runs is given back. Then nothing more is owed.
    pub(crate) fn take_rest(&self, reason: StopReason) -> Vec<Outgoing> {
        let attempts: Vec<_> = self.held().drain().map(|(_, attempt)| attempt).collect();
        let unsent = self.outbox.take_all().into_iter().map(|unsent| unsent.outgoing);
        // The result of one that has ended is in the outbox, or in a call that is under way.
        let still_running = |attempt: &Arc<Attempt>| !attempt.has_ended.load(Ordering::Acquire);
        let released = attempts.iter().filter(|attempt| still_running(attempt));
        let released = released.map(|attempt| Unsent::new(Arc::clone(attempt), Outcome::Released).outgoing);
        let rest = unsent.chain(released).collect();
        for attempt in &attempts {
            attempt.stop.stop(reason);
        }
        self.wake.notify_one();
        rest
    }

    /// Gives the waiting poll up and begins another: a connection that died without a word would hold it for long.
    pub(crate) fn suspect_poll(&self) {
        self.is_poll_suspect.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// The end of an attempt whose handler ran: its result goes out, and its slot to the one that is given back.
    pub(crate) fn ended(&self, attempt: Arc<Attempt>, outcome: Outcome, took: Duration) -> Option<Arc<Attempt>> {
        self.report(attempt, outcome);
        self.slots.ended(took)
    }

    /// Gives back what was claimed ahead and not begun.
    fn release(&self, attempts: Vec<Arc<Attempt>>) {
        for attempt in attempts {
            self.report(attempt, Outcome::Released);
        }
    }

    fn report(&self, attempt: Arc<Attempt>, outcome: Outcome) {
        {
            // Whoever let it go has spoken for it. Under the lock, so that nobody does so in between.
            let held = self.held();
            if held.contains_key(&attempt.task.lease_token) {
                attempt.has_ended.store(true, Ordering::Release);
                self.outbox.push(Unsent::new(attempt, outcome));
            }
        }
        self.wake.notify_one();
    }

    /// Makes the worker known.
    pub(crate) async fn register(&self) -> Result<()> {
        let settings = &self.common.settings;
        let body = Register {
            capacity: self.capacity as u32,
            task_types: &self.types,
            queues: &settings.queues,
            capabilities: &settings.capabilities,
            name: settings.name.as_deref(),
            pool: settings.pool.as_deref(),
            version: settings.version.as_deref(),
        };
        let answer: Registered =
            self.common.client.post_once("/internal/workers/register", &body, ANSWER_WITHIN).await?;
        tracing::info!(worker_id = answer.worker_id, types = ?self.types, capacity = self.capacity, "registered");
        self.identity.registered(&answer);
        self.common.pulse.notify_one();
        Ok(())
    }

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
                        quiet_until = Some(Instant::now() + backoff.next());
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
                            let asked = error.problem().and_then(|problem| problem.retry_after_seconds);
                            let pause = backoff.next().max(Duration::from_secs(asked.unwrap_or(0)));
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

    /// The server does not know the worker by this id any more. Nothing to do if it has another one by now.
    pub(crate) fn forgotten(&self, worker_id: &str) {
        if self.identity.forgotten(worker_id) {
            tracing::warn!(worker_id, "the server does not know this worker any more; registering again");
            self.let_go_all(StopReason::LeaseLost);
        }
    }

    /// Goes through the answers to the results that a call carried.
    fn settle(&self, carried: Vec<Unsent>, polled: &Polled) {
        for (index, unsent) in carried.into_iter().enumerate() {
            let Some(taken) = polled.results.get(index) else {
                // The server must answer every result; until it does, it was not taken.
                self.outbox.put_back(vec![unsent]);
                continue;
            };
            if taken.acknowledged {
                self.held().remove(unsent.token());
                self.common.stats.settled(&unsent);
                continue;
            }
            match taken.code.as_deref() {
                Some("lease_lost" | "task_not_found") => self.lost(&unsent),
                code => {
                    let detail = taken.detail.as_deref().or(code).unwrap_or("no reason given");
                    self.refused(vec![unsent], detail);
                }
            }
        }
    }

    fn lost(&self, unsent: &Unsent) {
        self.held().remove(unsent.token());
        // After a cancellation, a timeout or a lost lease the refusal is what was to be expected.
        if unsent.was_stopped {
            tracing::debug!(task_id = %unsent.task_id(), "the end of a stopped attempt was refused, as expected");
        } else {
            self.common.stats.lost();
            tracing::error!(
                task_id = %unsent.task_id(),
                task_type = unsent.attempt.task.task_type,
                "the result is lost: its lease had lapsed, and another attempt will follow or has followed"
            );
        }
    }

    /// Results that Windlass does not take as they are: sent again one by one, and at last as failures that say why.
    fn refused(&self, refused: Vec<Unsent>, why: &str) {
        for unsent in refused {
            let (token, task_id) = (unsent.token().to_owned(), unsent.task_id().clone());
            if let Some(simpler) = unsent.after_refusal(why) {
                self.outbox.put_back(vec![simpler]);
            } else {
                // Its lease is not renewed any more, so that the server notices.
                self.held().remove(&token);
                self.common.stats.lost();
                tracing::error!(%task_id, why, "a result was refused in every form; the lease will lapse");
            }
        }
    }

    fn start(self: &Arc<Self>, task: Claimed) {
        let link = Link::Live {
            client: self.common.client.clone(),
            identity: Arc::clone(&self.identity),
            pulse: Arc::clone(&self.common.pulse),
        };
        let common = &self.common;
        let attempt = Arc::new(Attempt::new(
            task,
            link,
            common.stopping.clone(),
            Arc::clone(&common.states),
            Arc::clone(&common.breakers),
        ));
        self.held().insert(attempt.task.lease_token.clone(), Arc::clone(&attempt));
        if self.common.stopping.is_stopped() {
            // It was under way when the worker stopped: somebody else shall have it.
            self.slots.give_back(1);
            self.report(attempt, Outcome::Released);
        } else if let Some(attempt) = self.slots.admit(attempt, Instant::now()) {
            tokio::spawn(attempt::supervise(Arc::clone(self), attempt));
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
