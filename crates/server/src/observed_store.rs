//! The store as the server uses it: every verb is timed and its failures are counted, in one
//! place, so that stores stay plain.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
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
    Finished, Heartbeat, LaneStats, LeaseError, ListError, Page, ProgressReport, Requeue, SettingsError, Stats,
    StepReport, Store, StoreError, SubmitError, Submitted, Sweep, Waiting, WorkerError,
};
use windlass_core::task::{NewTask, Task};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Worker, WorkerProfile};

use crate::metrics::Metrics;

/// A store whose calls are measured.
pub struct ObservedStore {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
}

/// Whether an error is the store's own failure and not a refusal.
trait StoreFailure {
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
        Self { inner, metrics }
    }

    async fn watch<T, E: StoreFailure>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let answer = call.await;
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
        self.watch("submit", self.inner.submit(tasks)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        if request.wait {
            // How long somebody waits for work says nothing about the store.
            let answer = self.inner.claim(request).await;
            self.count_failure("claim", &answer);
            return answer;
        }
        self.watch("claim", self.inner.claim(request)).await
    }

    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
        self.watch("finish", self.inner.finish(worker, results)).await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError> {
        self.watch("heartbeat", self.inner.heartbeat(beat)).await
    }

    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> {
        self.watch("record_progress", self.inner.record_progress(worker, reports)).await
    }

    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> {
        self.watch("record_steps", self.inner.record_steps(worker, reports)).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> {
        self.watch("cancel", self.inner.cancel(tasks, by)).await
    }

    async fn amend(
        &self,
        task: TaskId,
        amendment: Amendment,
        by: Actor,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        self.watch("amend", self.inner.amend(task, amendment, by)).await
    }

    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        self.watch("requeue", self.inner.requeue(wishes, by)).await
    }

    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> {
        self.watch("bury", self.inner.bury(tasks, note, by)).await
    }

    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> {
        self.watch("discard", self.inner.discard(tasks, note, by)).await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("make_due", self.inner.make_due(limit)).await
    }

    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("lapse_leases", self.inner.lapse_leases(limit)).await
    }

    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("time_out", self.inner.time_out(limit)).await
    }

    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("expire", self.inner.expire(limit)).await
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("prune", self.inner.prune(limit)).await
    }

    async fn settle_intents(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.watch("settle_intents", self.inner.settle_intents(limit)).await
    }

    async fn forgive(&self, span: Duration) -> Result<(), StoreError> {
        self.watch("forgive", self.inner.forgive(span)).await
    }

    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        self.watch("get", self.inner.get(tasks)).await
    }

    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> {
        self.watch("list", self.inner.list(filter, limit, after)).await
    }

    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        self.watch("history", self.inner.history(task)).await
    }

    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        self.watch("events", self.inner.events(after, limit)).await
    }

    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError> {
        let answer = self.inner.until_ended(task).await;
        self.count_failure("until_ended", &answer);
        answer
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        self.watch("waiting_for", self.inner.waiting_for(task)).await
    }

    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError> {
        self.watch("lanes", self.inner.lanes()).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.watch("stats", self.inner.stats()).await
    }

    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError> {
        self.watch("register_worker", self.inner.register_worker(profile)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        self.watch("workers", self.inner.workers()).await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.watch("drain_worker", self.inner.drain_worker(worker)).await
    }

    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.watch("deregister_worker", self.inner.deregister_worker(worker)).await
    }

    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError> {
        self.watch("forget_workers", self.inner.forget_workers(seen_before)).await
    }

    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> {
        self.watch("change_queue", self.inner.change_queue(queue, change)).await
    }

    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> {
        self.watch("change_type", self.inner.change_type(task_type, change)).await
    }

    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError> {
        self.watch("clear_queue", self.inner.clear_queue(queue)).await
    }

    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError> {
        self.watch("clear_type", self.inner.clear_type(task_type)).await
    }

    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError> {
        self.watch("change_error_rules", self.inner.change_error_rules(rules)).await
    }

    async fn breakers(&self) -> Result<Vec<breaker::View>, StoreError> {
        self.watch("breakers", self.inner.breakers()).await
    }

    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<breaker::View, BreakerError> {
        self.watch("force_breaker", self.inner.force_breaker(scope, forced)).await
    }

    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError> {
        self.watch("replay_settled", self.inner.replay_settled(task_type, since)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.watch("check", self.inner.check()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
