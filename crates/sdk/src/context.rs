//! What a handler knows about its attempt, and can do with it.

use std::any::{Any, TypeId, type_name};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::breaker::{Breaker, Breakers};
use crate::client::Client;
use crate::error::Error;
use crate::progress::{Progress, ProgressSlot};
use crate::protocol::Claimed;
use crate::stop::StopToken;
use crate::submission::{Options, Submission};
use crate::task::Task;
use crate::task_error::{IntoTaskError, TaskError, TaskResult};
use crate::view::TaskId;
use crate::worker::link::Link;

/// Values that handlers share, one per type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<S: Any + Send + Sync>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Box::new(state));
    }

    fn get<S: Any>(&self) -> Option<&S> {
        self.0.get(&TypeId::of::<S>())?.downcast_ref()
    }
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}

/// One attempt at a task, from the inside. Cheap to clone; may be moved to other threads.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) attempt: Arc<Attempt>,
}

/// What the handler, the worker and the heartbeat know of an attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) task: Claimed,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) stop: StopToken,
    pub(crate) shutdown: StopToken,
    pub(crate) progress: ProgressSlot,
    pub(crate) link: Link,
    /// The handler has ended; only its result is under way.
    pub(crate) has_ended: AtomicBool,
    follow_ups: Mutex<Vec<Submission>>,
    steps: Mutex<BTreeMap<String, Box<RawValue>>>,
    states: Arc<States>,
    breakers: Arc<Breakers>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attempt {
    pub(crate) fn new(
        mut task: Claimed,
        link: Link,
        shutdown: StopToken,
        states: Arc<States>,
        breakers: Arc<Breakers>,
    ) -> Self {
        let steps = std::mem::take(&mut task.steps);
        let timeout = Duration::try_from_secs_f64(task.timeout_seconds).unwrap_or(Duration::MAX);
        let started = Instant::now();
        let deadline = started.checked_add(timeout).unwrap_or(started + Duration::from_hours(24 * 365));
        Self {
            task,
            started,
            deadline,
            stop: StopToken::default(),
            shutdown,
            progress: ProgressSlot::default(),
            link,
            has_ended: AtomicBool::new(false),
            follow_ups: Mutex::default(),
            steps: Mutex::new(steps),
            states,
            breakers,
        }
    }

    pub(crate) fn take_follow_ups(&self) -> Vec<Submission> {
        std::mem::take(&mut lock(&self.follow_ups))
    }
}

impl Context {
    /// The task's id.
    pub fn task_id(&self) -> &TaskId {
        &self.attempt.task.task_id
    }

    /// The type it was submitted as; an alias of the handler's name, perhaps.
    pub fn task_type(&self) -> &str {
        &self.attempt.task.task_type
    }

    /// The queue it waited in.
    pub fn queue(&self) -> &str {
        &self.attempt.task.queue
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt.task.attempt
    }

    /// How many retries the task has.
    pub fn max_retries(&self) -> u32 {
        self.attempt.task.max_retries
    }

    /// How often an attempt ended with its worker's death.
    pub fn crash_count(&self) -> u32 {
        self.attempt.task.crash_count
    }

    /// When it was submitted (RFC 3339).
    pub fn created_at(&self) -> &str {
        &self.attempt.task.created_at
    }

    /// The key it was submitted with.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.attempt.task.idempotency_key.as_deref()
    }

    /// The key that it runs in order by.
    pub fn ordering_key(&self) -> Option<&str> {
        self.attempt.task.ordering_key.as_deref()
    }

    /// Its tags.
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.attempt.task.tags
    }

    /// The trace it belongs to.
    pub fn trace_id(&self) -> Option<&str> {
        self.attempt.task.trace_id.as_deref()
    }

    /// The W3C `traceparent` it was submitted with, to be passed on.
    pub fn trace_parent(&self) -> Option<&str> {
        self.attempt.task.traceparent.as_deref()
    }

    /// When its time is over.
    pub fn deadline(&self) -> Instant {
        self.attempt.deadline
    }

    /// How much of its time is left.
    pub fn time_left(&self) -> Duration {
        self.attempt.deadline.saturating_duration_since(Instant::now())
    }

    /// Tells when to stop and why: cancelled, out of time, lease lost, shutdown. A handler that does not look is dropped
    /// at its next `await`, a few seconds later.
    pub fn stop_token(&self) -> &StopToken {
        &self.attempt.stop
    }

    /// Whether to stop; cheap enough for every turn of a loop.
    pub fn is_stopped(&self) -> bool {
        self.attempt.stop.is_stopped()
    }

    /// Whether the worker shuts down. The handler may still finish within the shutdown timeout; a long one had better
    /// come to a good place to stop and [snooze](TaskError::snooze).
    pub fn is_shutting_down(&self) -> bool {
        self.attempt.shutdown.is_stopped()
    }

    /// Tells when the worker begins to shut down; see [`Context::is_shutting_down`].
    pub fn shutdown_token(&self) -> &StopToken {
        &self.attempt.shutdown
    }

    /// Says how far it is. Call it as often as you like: at most one report a second or every 5 percent is sent.
    pub fn progress(&self, progress: Progress) {
        self.attempt.progress.put(progress);
        self.attempt.link.progress_changed();
    }

    /// Renews the lease now and says whether the task is still this worker's. The worker does this by itself every few
    /// seconds; call it before something that must not be done twice.
    pub async fn extend_lease(&self) -> TaskResult<()> {
        if self.attempt.stop.is_stopped() || !self.attempt.link.renew(&self.attempt).await? {
            return Err(TaskError::retry("the lease of this task is lost").code("lease_lost"));
        }
        Ok(())
    }

    /// Does something once for this task, however many attempts it takes: what the closure returned is stored with the
    /// task, and a later attempt gets it without running the closure again. Names are unique within a task.
    ///
    /// The result is durable when this returns. A worker that dies between the closure and that moment runs it again, so
    /// what it does must bear that.
    pub async fn step<T, E, F>(&self, name: &str, work: impl FnOnce() -> F) -> TaskResult<T>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, E>>,
        E: IntoTaskError,
    {
        let stored = lock(&self.attempt.steps).get(name).map(|result| result.get().to_owned());
        if let Some(stored) = stored {
            return serde_json::from_str(&stored).map_err(|error| {
                TaskError::permanent(format!("the stored result of step {name} cannot be read: {error}"))
                    .code("invalid_step")
            });
        }
        let value = work().await.map_err(IntoTaskError::into_task_error)?;
        let result = serde_json::value::to_raw_value(&value)
            .map_err(|error| TaskError::permanent(format!("the result of step {name} has no JSON form: {error}")))?;
        self.attempt.link.record_step(&self.attempt, name, &result).await?;
        lock(&self.attempt.steps).insert(name.to_owned(), result);
        Ok(value)
    }

    /// Submits a task together with the result of this one: both are stored, or neither. Nothing is submitted if this
    /// attempt does not succeed.
    pub fn follow_up<T: Task>(&self, input: impl Into<T::Input>) -> TaskResult<()> {
        self.follow_up_with::<T>(input, |options| options)
    }

    /// Like [`Context::follow_up`], and says how the task shall be treated.
    pub fn follow_up_with<T: Task>(
        &self,
        input: impl Into<T::Input>,
        options: impl FnOnce(Options) -> Options,
    ) -> TaskResult<()> {
        let submission = Submission::of::<T>(&input.into())?.with(options).sealed();
        lock(&self.attempt.follow_ups).push(submission);
        Ok(())
    }

    /// The breaker of a dependency, shared by all handlers of this worker.
    pub fn breaker(&self, name: &str) -> Breaker {
        self.attempt.breakers.get(name)
    }

    /// A value given to the worker with [`Worker::state`](crate::Worker::state).
    pub fn state<S: Any + Send + Sync>(&self) -> TaskResult<&S> {
        self.attempt.states.get().ok_or_else(|| {
            let message = format!("this worker was given no {}; see Worker::state", type_name::<S>());
            TaskError::permanent(message).code("code_bug")
        })
    }

    /// The client of this worker, to submit tasks at once instead of with the result.
    pub fn client(&self) -> Result<&Client, Error> {
        self.attempt.link.client()
    }
}
