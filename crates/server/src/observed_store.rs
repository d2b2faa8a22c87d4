//! The store as the server uses it: every verb is timed and its failures are counted, in one
//! place, so that stores stay plain. For requests it is also bounded: no call waits for long, and not too many do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::Instant;
use windlass_core::actor::Actor;
use windlass_core::breaker::{self, Forced, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
use windlass_core::store::{
    Amendment, Beaten, BreakerError, Cancelled, Capabilities, ChangeError, ClaimRequest, Claimed, Cursor, Each, Finish,
    Finished, Heartbeat, InboxItem, Intake, LaneStats, LeaseError, ListError, Page, ProgressReport, Requeue,
    SettingsError, Stats, StepReport, Store, StoreError, SubmitError, Submitted, Sweep, Waiting, WorkerError,
};
use windlass_core::task::{NewTask, Task};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Worker, WorkerProfile};

use crate::metrics::Metrics;

/// A store whose calls are measured.
pub struct ObservedStore {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    bounds: Option<Bounds>,
}

/// What a store that hangs may cost.
struct Bounds {
    /// How long a call waits.
    wait: Duration,
    /// How many calls of workers wait at once. Apart from the others: a flood of submits must not cost workers their
    /// leases.
    workers: Semaphore,
    /// How many others do.
    others: Semaphore,
}

/// An error that may be the store's own failure and not a refusal.
trait StoreFailure: From<StoreError> {
    fn is_store_failure(&self) -> bool;
}

impl StoreFailure for StoreError {
    fn is_store_failure(&self) -> bool {
        true
    }
}

macro_rules! fails_by_variant {
    ($($error:ident),*) => {$(
        impl StoreFailure for $error {
            fn is_store_failure(&self) -> bool {
                matches!(self, Self::Store(_))
            }
        }
    )*};
}

fails_by_variant!(SubmitError, WorkerError, ListError, SettingsError, BreakerError);

impl ObservedStore {
    /// Measures the calls of a store.
    pub fn new(inner: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics, bounds: None }
    }

    /// The same store with bounds.
    pub fn bounded(&self, wait: Duration, calls: usize) -> Self {
        let room = || Semaphore::new(calls.min(Semaphore::MAX_PERMITS));
        let bounds = Some(Bounds { wait, workers: room(), others: room() });
        Self { inner: Arc::clone(&self.inner), metrics: Arc::clone(&self.metrics), bounds }
    }

    /// A call that may change something.
    async fn write<T, E: StoreFailure>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.watch(verb, StoreError::unknown, call).await
    }

    /// A call that changes nothing, or nothing that stays if nobody waits for its answer.
    async fn read<T, E: StoreFailure>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.watch(verb, StoreError::not_applied, call).await
    }

    async fn watch<T, E: StoreFailure>(
        &self,
        verb: &'static str,
        overdue: fn(String) -> StoreError,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let answer = match &self.bounds {
            None => call.await,
            Some(bounds) => bounds.keep(verb, overdue, call).await,
        };
        self.metrics.store_call(self.inner.name(), verb, begun.elapsed());
        self.count_failure(verb, &answer);
        answer
    }

    fn count_failure<T, E: StoreFailure>(&self, verb: &'static str, answer: &Result<T, E>) {
        if answer.as_ref().is_err_and(StoreFailure::is_store_failure) {
            self.metrics.store_failure(self.inner.name(), verb);
        }
    }
}

impl Bounds {
    /// A place among those that wait; an error if there is none.
    fn place_for(&self, verb: &str) -> Result<Option<SemaphorePermit<'_>>, TryAcquireError> {
        match verb {
            // A crowd says nothing about whether the store can serve.
            "check" => Ok(None),
            "claim" | "finish" | "heartbeat" | "record_progress" | "record_steps" | "register_worker" => {
                self.workers.try_acquire().map(Some)
            }
            _ => self.others.try_acquire().map(Some),
        }
    }

    /// The answer of a call, or that it did not come in time. What waits in vain is dropped: a store must stand that.
    async fn keep<T, E: StoreFailure>(
        &self,
        verb: &'static str,
        overdue: fn(String) -> StoreError,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Ok(_place) = self.place_for(verb) else {
            return Err(StoreError::not_applied("as many calls wait for it as may").into());
        };
        tokio::time::timeout(self.wait, call)
            .await
            .unwrap_or_else(|_| Err(overdue(format!("no answer within {} s", self.wait.as_secs_f64())).into()))
    }
}

#[async_trait]
impl Store for ObservedStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn settings(&self) -> Arc<Settings> {
        self.inner.settings()
    }

    async fn submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> {
        self.write("submit", self.inner.submit(tasks)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        if request.wait {
            // How long somebody waits for work says nothing about the store.
            let answer = self.inner.claim(request).await;
            self.count_failure("claim", &answer);
            return answer;
        }
        self.read("claim", self.inner.claim(request)).await
    }

    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
        self.write("finish", self.inner.finish(worker, results)).await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError> {
        self.write("heartbeat", self.inner.heartbeat(beat)).await
    }

    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> {
        self.write("record_progress", self.inner.record_progress(worker, reports)).await
    }

    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> {
        self.write("record_steps", self.inner.record_steps(worker, reports)).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> {
        self.write("cancel", self.inner.cancel(tasks, by)).await
    }

    async fn amend(
        &self,
        task: TaskId,
        amendment: Amendment,
        by: Actor,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        self.write("amend", self.inner.amend(task, amendment, by)).await
    }

    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        self.write("requeue", self.inner.requeue(wishes, by)).await
    }

    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> {
        self.write("bury", self.inner.bury(tasks, note, by)).await
    }

    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> {
        self.write("discard", self.inner.discard(tasks, note, by)).await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("make_due", self.inner.make_due(limit)).await
    }

    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("lapse_leases", self.inner.lapse_leases(limit)).await
    }

    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("time_out", self.inner.time_out(limit)).await
    }

    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("expire", self.inner.expire(limit)).await
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("prune", self.inner.prune(limit)).await
    }

    async fn settle_intents(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.write("settle_intents", self.inner.settle_intents(limit)).await
    }

    async fn forgive(&self, span: Duration) -> Result<(), StoreError> {
        self.write("forgive", self.inner.forgive(span)).await
    }

    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        self.read("get", self.inner.get(tasks)).await
    }

    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> {
        self.read("list", self.inner.list(filter, limit, after)).await
    }

    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        self.read("history", self.inner.history(task)).await
    }

    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        self.read("events", self.inner.events(after, limit)).await
    }

    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError> {
        let answer = self.inner.until_ended(task).await;
        self.count_failure("until_ended", &answer);
        answer
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        self.read("waiting_for", self.inner.waiting_for(task)).await
    }

    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError> {
        self.read("lanes", self.inner.lanes()).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.read("stats", self.inner.stats()).await
    }

    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError> {
        self.write("register_worker", self.inner.register_worker(profile)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        self.read("workers", self.inner.workers()).await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.write("drain_worker", self.inner.drain_worker(worker)).await
    }

    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.write("deregister_worker", self.inner.deregister_worker(worker)).await
    }

    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError> {
        self.write("forget_workers", self.inner.forget_workers(seen_before)).await
    }

    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> {
        self.write("change_queue", self.inner.change_queue(queue, change)).await
    }

    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> {
        self.write("change_type", self.inner.change_type(task_type, change)).await
    }

    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError> {
        self.write("clear_queue", self.inner.clear_queue(queue)).await
    }

    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError> {
        self.write("clear_type", self.inner.clear_type(task_type)).await
    }

    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError> {
        self.write("change_error_rules", self.inner.change_error_rules(rules)).await
    }

    async fn breakers(&self) -> Result<Vec<breaker::View>, StoreError> {
        self.read("breakers", self.inner.breakers()).await
    }

    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<breaker::View, BreakerError> {
        self.write("force_breaker", self.inner.force_breaker(scope, forced)).await
    }

    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError> {
        self.write("replay_settled", self.inner.replay_settled(task_type, since)).await
    }

    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.write("lead", self.inner.lead(span)).await
    }

    async fn resign(&self) {
        self.inner.resign().await;
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> {
        self.read("inbox", self.inner.inbox(after, limit)).await
    }

    async fn inbox_grown(&self) {
        self.inner.inbox_grown().await;
    }

    async fn take_in(&self, items: Vec<Intake>) -> Each<Submitted, SubmitError> {
        self.write("take_in", self.inner.take_in(items)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read("check", self.inner.check()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
