//! A store of several nodes that share one database: every call goes to the next node, so
//! that nothing can rely on being called by whoever was called before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
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

/// Several nodes as one store.
pub struct Hopping {
    nodes: Vec<Arc<dyn Store>>,
    calls: AtomicUsize,
}

impl Hopping {
    /// A store that goes round these nodes.
    pub fn new(nodes: Vec<Arc<dyn Store>>) -> Self {
        assert!(!nodes.is_empty(), "a store has at least one node");
        Self { nodes, calls: AtomicUsize::new(0) }
    }

    /// Settings reach other nodes a moment later. A read makes each of them look.
    async fn let_all_see(&self) {
        for node in &self.nodes {
            node.lanes().await.expect("the store reads");
        }
    }

    fn next(&self) -> &dyn Store {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.nodes[call % self.nodes.len()].as_ref()
    }
}

#[async_trait]
impl Store for Hopping {
    fn name(&self) -> &'static str {
        self.nodes[0].name()
    }

    fn capabilities(&self) -> Capabilities {
        self.nodes[0].capabilities()
    }

    fn now(&self) -> Timestamp {
        self.nodes[0].now()
    }

    fn settings(&self) -> Arc<Settings> {
        self.nodes[0].settings()
    }

    async fn submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> {
        self.next().submit(tasks).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        self.next().claim(request).await
    }

    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
        self.next().finish(worker, results).await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError> {
        self.next().heartbeat(beat).await
    }

    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> {
        self.next().record_progress(worker, reports).await
    }

    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> {
        self.next().record_steps(worker, reports).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> {
        self.next().cancel(tasks, by).await
    }

    async fn amend(
        &self,
        task: TaskId,
        amendment: Amendment,
        by: Actor,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        self.next().amend(task, amendment, by).await
    }

    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        self.next().requeue(wishes, by).await
    }

    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> {
        self.next().bury(tasks, note, by).await
    }

    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> {
        self.next().discard(tasks, note, by).await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().make_due(limit).await
    }

    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().lapse_leases(limit).await
    }

    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().time_out(limit).await
    }

    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().expire(limit).await
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().prune(limit).await
    }

    async fn settle_intents(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.next().settle_intents(limit).await
    }

    async fn forgive(&self, span: Duration) -> Result<(), StoreError> {
        self.next().forgive(span).await
    }

    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        self.next().get(tasks).await
    }

    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> {
        self.next().list(filter, limit, after).await
    }

    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        self.next().history(task).await
    }

    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        self.next().events(after, limit).await
    }

    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError> {
        self.next().until_ended(task).await
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        self.next().waiting_for(task).await
    }

    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError> {
        self.next().lanes().await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.next().stats().await
    }

    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError> {
        self.next().register_worker(profile).await
    }

    async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        self.next().workers().await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.next().drain_worker(worker).await
    }

    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.next().deregister_worker(worker).await
    }

    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError> {
        self.next().forget_workers(seen_before).await
    }

    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> {
        let answer = self.next().change_queue(queue, change).await;
        self.let_all_see().await;
        answer
    }

    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> {
        let answer = self.next().change_type(task_type, change).await;
        self.let_all_see().await;
        answer
    }

    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError> {
        let answer = self.next().clear_queue(queue).await;
        self.let_all_see().await;
        answer
    }

    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError> {
        let answer = self.next().clear_type(task_type).await;
        self.let_all_see().await;
        answer
    }

    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError> {
        let answer = self.next().change_error_rules(rules).await;
        self.let_all_see().await;
        answer
    }

    async fn breakers(&self) -> Result<Vec<breaker::View>, StoreError> {
        self.next().breakers().await
    }

    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<breaker::View, BreakerError> {
        self.next().force_breaker(scope, forced).await
    }

    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError> {
        self.next().replay_settled(task_type, since).await
    }

    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.nodes[0].lead(span).await
    }

    async fn resign(&self) {
        self.nodes[0].resign().await;
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> {
        self.next().inbox(after, limit).await
    }

    async fn inbox_grown(&self) {
        self.next().inbox_grown().await;
    }

    async fn take_in(&self, items: Vec<Intake>) -> Each<Submitted, SubmitError> {
        self.next().take_in(items).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.next().check().await
    }

    async fn close(&self) {
        for node in &self.nodes {
            node.close().await;
        }
    }
}
