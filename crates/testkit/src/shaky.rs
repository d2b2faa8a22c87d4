//! A store that can be made to fail, and a lead that several nodes fight for: what tests of outages and of many nodes
//! stand on.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
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

/// How a shaky store takes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As the store within.
    #[default]
    Serves,
    /// Every call fails, and nothing was done. Calls that wait fail, too.
    Refuses,
    /// Every call is carried out, and its answer gets lost.
    LosesAnswers,
    /// No call is ever answered; whoever calls has to give up. Nothing is done.
    Hangs,
}

/// Switches the mood of a store, also while somebody waits for it.
#[derive(Clone, Debug)]
pub struct Switch(watch::Sender<Mood>);

impl Switch {
    /// From now on.
    pub fn set(&self, mood: Mood) {
        self.0.send_replace(mood);
    }
}

/// The lead of several nodes: at most one has it at a time, by the clock of the runtime.
#[derive(Debug, Default)]
pub struct SharedLead(Mutex<Option<(u32, Instant)>>);

impl SharedLead {
    /// Who leads now.
    pub fn leader(&self) -> Option<u32> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.filter(|(_, until)| *until > Instant::now()).map(|(node, _)| node)
    }

    /// Lets a node lead, whoever did so far.
    pub fn give(&self, node: u32, span: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((node, Instant::now() + span));
    }

    fn take(&self, node: u32, span: Duration) -> bool {
        let is_free = self.leader().is_none_or(|leader| leader == node);
        if is_free {
            self.give(node, span);
        }
        is_free
    }

    fn leave(&self, node: u32) {
        if self.leader() == Some(node) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// A store that does as its switch says. Several on one store are several nodes.
pub struct ShakyStore {
    inner: Arc<dyn Store>,
    switch: Switch,
    seat: Option<(Arc<SharedLead>, u32)>,
}

impl ShakyStore {
    /// A store that serves, until it is told otherwise.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, switch: Switch(watch::Sender::default()), seat: None })
    }

    /// The store of one of several nodes that share a lead.
    pub fn of_node(inner: Arc<dyn Store>, lead: &Arc<SharedLead>, node: u32) -> Arc<Self> {
        Arc::new(Self { inner, switch: Switch(watch::Sender::default()), seat: Some((Arc::clone(lead), node)) })
    }

    /// The switch.
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }

    async fn pass<T, E: From<StoreError>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut mood = self.switch.0.subscribe();
        let now = *mood.borrow_and_update();
        let then = match now {
            Mood::Serves => tokio::select! {
                biased;
                answer = call => return answer,
                then = mood.wait_for(|mood| *mood != Mood::Serves) => then.map_or(Mood::Refuses, |mood| *mood),
            },
            Mood::LosesAnswers => {
                // Done, whatever came of it.
                let _ = call.await;
                Mood::LosesAnswers
            }
            Mood::Refuses | Mood::Hangs => now,
        };
        match then {
            Mood::Hangs => std::future::pending().await,
            Mood::LosesAnswers => Err(StoreError::unknown("the answer got lost").into()),
            Mood::Serves | Mood::Refuses => Err(StoreError::not_applied("switched off").into()),
        }
    }
}

#[async_trait]
impl Store for ShakyStore {
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
        self.pass(self.inner.submit(tasks)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        self.pass(self.inner.claim(request)).await
    }

    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
        self.pass(self.inner.finish(worker, results)).await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError> {
        self.pass(self.inner.heartbeat(beat)).await
    }

    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> {
        self.pass(self.inner.record_progress(worker, reports)).await
    }

    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> {
        self.pass(self.inner.record_steps(worker, reports)).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> {
        self.pass(self.inner.cancel(tasks, by)).await
    }

    async fn amend(
        &self,
        task: TaskId,
        amendment: Amendment,
        by: Actor,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        self.pass(self.inner.amend(task, amendment, by)).await
    }

    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        self.pass(self.inner.requeue(wishes, by)).await
    }

    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> {
        self.pass(self.inner.bury(tasks, note, by)).await
    }

    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> {
        self.pass(self.inner.discard(tasks, note, by)).await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.make_due(limit)).await
    }

    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.lapse_leases(limit)).await
    }

    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.time_out(limit)).await
    }

    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.expire(limit)).await
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.prune(limit)).await
    }

    async fn settle_intents(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.pass(self.inner.settle_intents(limit)).await
    }

    async fn forgive(&self, span: Duration) -> Result<(), StoreError> {
        self.pass(self.inner.forgive(span)).await
    }

    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        self.pass(self.inner.get(tasks)).await
    }

    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> {
        self.pass(self.inner.list(filter, limit, after)).await
    }

    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        self.pass(self.inner.history(task)).await
    }

    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        self.pass(self.inner.events(after, limit)).await
    }

    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError> {
        self.pass(self.inner.until_ended(task)).await
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        self.pass(self.inner.waiting_for(task)).await
    }

    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError> {
        self.pass(self.inner.lanes()).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.pass(self.inner.stats()).await
    }

    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError> {
        self.pass(self.inner.register_worker(profile)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        self.pass(self.inner.workers()).await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.pass(self.inner.drain_worker(worker)).await
    }

    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.pass(self.inner.deregister_worker(worker)).await
    }

    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError> {
        self.pass(self.inner.forget_workers(seen_before)).await
    }

    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> {
        self.pass(self.inner.change_queue(queue, change)).await
    }

    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> {
        self.pass(self.inner.change_type(task_type, change)).await
    }

    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError> {
        self.pass(self.inner.clear_queue(queue)).await
    }

    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError> {
        self.pass(self.inner.clear_type(task_type)).await
    }

    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError> {
        self.pass(self.inner.change_error_rules(rules)).await
    }

    async fn breakers(&self) -> Result<Vec<breaker::View>, StoreError> {
        self.pass(self.inner.breakers()).await
    }

    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<breaker::View, BreakerError> {
        self.pass(self.inner.force_breaker(scope, forced)).await
    }

    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError> {
        self.pass(self.inner.replay_settled(task_type, since)).await
    }

    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.pass(async {
            match &self.seat {
                Some((lead, node)) => Ok(lead.take(*node, span)),
                None => self.inner.lead(span).await,
            }
        })
        .await
    }

    async fn resign(&self) {
        match &self.seat {
            Some((lead, node)) => lead.leave(*node),
            None => self.inner.resign().await,
        }
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> {
        self.pass(self.inner.inbox(after, limit)).await
    }

    async fn inbox_grown(&self) {
        self.inner.inbox_grown().await;
    }

    async fn take_in(&self, items: Vec<Intake>) -> Each<Submitted, SubmitError> {
        self.pass(self.inner.take_in(items)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.pass(self.inner.check()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
