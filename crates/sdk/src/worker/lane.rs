//! A lane: some task types, the slots they share, and the worker that Windlass knows them by. What it holds, what it owes
//! to the server, and what an answer means for that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::context::Attempt;
use crate::error::Result;
use crate::protocol::{Claimed, Outcome, Outgoing, Polled, Register, Registered};
use crate::stop::StopReason;
use crate::view::TaskId;
use crate::worker::attempt;
use crate::worker::common::Common;
use crate::worker::identity::Identity;
use crate::worker::link::Link;
use crate::worker::outbox::{Outbox, Unsent};
use crate::worker::slots::Slots;

/// How long an answer may take, beyond the time that a poll waits.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) types: Vec<String>,
    pub(crate) capacity: usize,
    pub(crate) identity: Arc<Identity>,
    pub(crate) common: Arc<Common>,
    pub(super) slots: Slots,
    /// Every attempt whose lease must be renewed: those that run, and those whose result is not acknowledged yet. By
    /// lease token: two attempts at one task may be here at once, one of them lost.
    held: Mutex<HashMap<String, Arc<Attempt>>>,
    pub(super) outbox: Outbox,
    pub(super) wake: Notify,
    /// The connections were found dead: a poll that waits on one waits in vain.
    pub(super) is_poll_suspect: AtomicBool,
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
    pub(super) fn release(&self, attempts: Vec<Arc<Attempt>>) {
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

    /// The server does not know the worker by this id any more. Nothing to do if it has another one by now.
    pub(crate) fn forgotten(&self, worker_id: &str) {
        if self.identity.forgotten(worker_id) {
            tracing::warn!(worker_id, "the server does not know this worker any more; registering again");
            self.let_go_all(StopReason::LeaseLost);
        }
    }

    /// Goes through the answers to the results that a call carried.
    pub(super) fn settle(&self, carried: Vec<Unsent>, polled: &Polled) {
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
    pub(super) fn refused(&self, refused: Vec<Unsent>, why: &str) {
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

    pub(super) fn start(self: &Arc<Self>, task: Claimed) {
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
