//! A store under test with its clock, and the short words that tests speak to it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::actor::Actor;
use windlass_core::breaker::{Forced, Scope, View};
use windlass_core::event::{Committed, Event, Observer};
use windlass_core::fact::Fact;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::retention::to_the_end_of_the_day;
use windlass_core::settings::{QueueChange, QueueSettings, TypeChange, TypeSettings};
use windlass_core::status::Status;
use windlass_core::store::{
    Amendment, Beaten, Cancelled, ChangeError, ClaimRequest, Claimed, Cursor, Finish, Finished, Heartbeat, LeaseError,
    Outcome, Renewal, Requeue, SettingsError, Store, SubmitError, Submitted, Sweep, Waiting, WorkerError,
};
use windlass_core::task::{ClaimedTask, NewTask, Task, TaskState};
use windlass_core::time::{Clock, Timestamp};
use windlass_core::worker::{Worker, WorkerProfile};

use crate::clock::ManualClock;
use crate::fixtures::{profile, queue, task_type};

/// How a store crate opens its store for the suite and the model.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// What the store is called where results are put together.
    fn label(&self) -> &'static str;

    /// A new empty store on this clock that tells this observer.
    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store>;

    /// The same data in a new store, after the given one was closed, as if the process had
    /// started again. `None` where nothing survives ([`windlass_core::store::Capabilities::durable`]).
    /// A store that is told its lease period when it opens gets [`LEASE`].
    async fn reopen(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        observer: Arc<dyn Observer>,
    ) -> Option<Arc<dyn Store>>;
}

/// Keeps what a store told its observer.
#[derive(Debug, Default)]
pub struct Witness {
    seen: Mutex<Vec<Committed>>,
    heard: Mutex<Vec<Fact>>,
}

impl Witness {
    /// All that was told so far, in order.
    pub fn seen(&self) -> Vec<Committed> {
        self.seen.lock().expect("no test panics while it watches").clone()
    }

    /// All that it learnt of other nodes so far, in order.
    pub fn heard(&self) -> Vec<Fact> {
        self.heard.lock().expect("no test panics while it watches").clone()
    }
}

impl Observer for Witness {
    fn committed(&self, changes: &[Committed]) {
        self.seen.lock().expect("no test panics while it watches").extend_from_slice(changes);
    }

    fn followed(&self, facts: &[Fact]) {
        self.heard.lock().expect("no test panics while it watches").extend_from_slice(facts);
    }
}

/// The lease that tests claim with unless they say otherwise.
pub const LEASE: Duration = Duration::from_secs(30);

/// How long a test waits for a future that must resolve. Long, because a busy machine is
/// slow; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seconds, for short tests.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Awaits what must come.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it should have come long ago")
}

/// A store under test with its clock.
#[derive(Clone)]
pub struct Rig {
    /// The clock that the store reads.
    pub clock: Arc<ManualClock>,
    /// The store.
    pub store: Arc<dyn Store>,
    /// What the store told its observer.
    pub witness: Arc<Witness>,
    fixture: Arc<dyn Fixture>,
}

impl Rig {
    /// A new empty store.
    pub async fn open(fixture: Arc<dyn Fixture>) -> Self {
        let (clock, witness) = (Arc::new(ManualClock::new()), Arc::new(Witness::default()));
        let store = fixture.open(Arc::clone(&clock), Arc::clone(&witness) as Arc<dyn Observer>).await;
        Self { clock, store, witness, fixture }
    }

    /// The same data after a restart, or `None` where nothing survives one.
    pub async fn reopen(&self) -> Option<Self> {
        let durable = self.store.capabilities().durable;
        let observer = Arc::clone(&self.witness) as Arc<dyn Observer>;
        let store = self.fixture.reopen(Arc::clone(&self.store), Arc::clone(&self.clock), observer).await;
        assert_eq!(store.is_some(), durable, "a store is reopened exactly if it says that it is durable");
        store.map(|store| Self { store, ..self.clone() })
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves the clock and nothing else.
    pub fn advance(&self, span: Duration) -> Timestamp {
        self.clock.advance(span)
    }

    /// When a task may go that ends now and is kept for this long.
    pub fn kept_until(&self, kept: Duration) -> Timestamp {
        let whole_days = self.store.capabilities().keeps_whole_days;
        if whole_days { to_the_end_of_the_day(self.now(), kept) } else { self.now() + kept }
    }

    // Tasks in.

    /// Stores tasks.
    pub async fn try_submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> {
        self.store.submit(tasks).await
    }

    /// Stores one task that must be taken.
    pub async fn submitted(&self, task: impl Into<NewTask>) -> Submitted {
        let answers = self.store.submit(vec![task.into()]).await.expect("the task is taken");
        assert_eq!(answers.len(), 1, "one answer per task");
        answers[0]
    }

    /// Stores one task and gives its id.
    pub async fn submit(&self, task: impl Into<NewTask>) -> TaskId {
        self.submitted(task).await.id
    }

    /// Stores tasks in one batch and gives their ids.
    pub async fn submit_all(&self, tasks: impl IntoIterator<Item = impl Into<NewTask>>) -> Vec<TaskId> {
        let tasks: Vec<NewTask> = tasks.into_iter().map(Into::into).collect();
        let answers = self.store.submit(tasks).await.expect("the batch is taken");
        answers.into_iter().map(|answer| answer.id).collect()
    }

    // Workers.

    /// Makes a worker known.
    pub async fn register(&self, profile: WorkerProfile) -> WorkerId {
        let id = profile.id;
        self.store.register_worker(profile).await.expect("the worker is taken");
        id
    }

    /// Makes a worker known that serves everything.
    pub async fn worker(&self) -> WorkerId {
        self.register(profile()).await
    }

    /// How a worker stands.
    pub async fn worker_state(&self, id: WorkerId) -> Option<Worker> {
        self.store.workers().await.expect("workers").into_iter().find(|worker| worker.profile.id == id)
    }

    /// A plain claim.
    pub async fn try_claim(&self, worker: WorkerId, up_to: usize) -> Result<Claimed, WorkerError> {
        self.store.claim(ClaimRequest { worker, capabilities: None, up_to, lease: LEASE, wait: false }).await
    }

    /// Takes up to so many tasks.
    pub async fn claim_up_to(&self, worker: WorkerId, up_to: usize) -> Vec<ClaimedTask> {
        self.try_claim(worker, up_to).await.expect("the claim is answered").tasks
    }

    /// Takes one task that must be there.
    pub async fn claim(&self, worker: WorkerId) -> ClaimedTask {
        let mut tasks = self.claim_up_to(worker, 1).await;
        assert_eq!(tasks.len(), 1, "one task is ready");
        tasks.remove(0)
    }

    /// Takes one task for a lease of the given length.
    pub async fn claim_for(&self, worker: WorkerId, lease: Duration) -> ClaimedTask {
        let request = ClaimRequest { worker, capabilities: None, up_to: 1, lease, wait: false };
        let mut claimed = self.store.claim(request).await.expect("the claim is answered");
        assert_eq!(claimed.tasks.len(), 1, "one task is ready");
        claimed.tasks.remove(0)
    }

    /// Finds nothing to take.
    pub async fn claim_nothing(&self, worker: WorkerId) {
        let tasks = self.claim_up_to(worker, 10).await;
        assert!(tasks.is_empty(), "nothing should be ready for this worker, but it got {tasks:?}");
    }

    /// Waits for one task in a task of its own.
    pub fn claim_waiting(&self, worker: WorkerId) -> tokio::task::JoinHandle<Claimed> {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            let request = ClaimRequest { worker, capabilities: None, up_to: 1, lease: LEASE, wait: true };
            store.claim(request).await.expect("the claim is answered")
        })
    }

    /// Stores a task, makes a worker known and lets it take the task.
    pub async fn started(&self, task: impl Into<NewTask>) -> (WorkerId, ClaimedTask) {
        let id = self.submit(task).await;
        let worker = self.worker().await;
        let claimed = self.claim(worker).await;
        assert_eq!(claimed.id, id, "the worker got the task that was just stored");
        (worker, claimed)
    }

    /// A heartbeat that renews everything.
    pub async fn beat(&self, worker: WorkerId) -> Beaten {
        self.try_beat(worker, Renewal::All).await.expect("the worker is known")
    }

    /// A heartbeat.
    pub async fn try_beat(&self, worker: WorkerId, renewal: Renewal) -> Result<Beaten, WorkerError> {
        let beat = Heartbeat { worker, renewal, lease: LEASE, unhealthy: false, draining: false, health: None };
        self.store.heartbeat(beat).await
    }

    /// Sends one result.
    pub async fn finish(&self, worker: WorkerId, task: &ClaimedTask, outcome: Outcome) -> Result<Finished, LeaseError> {
        let mut answers = self
            .store
            .finish(worker, vec![Finish::new(task.id, task.token, outcome)])
            .await
            .expect("the store takes results");
        assert_eq!(answers.len(), 1, "one answer per result");
        answers.remove(0)
    }

    /// Sends one result that must be taken and be new.
    pub async fn finished(&self, worker: WorkerId, task: &ClaimedTask, outcome: Outcome) -> Finished {
        let finished = self.finish(worker, task, outcome).await.expect("the result is taken");
        assert!(!finished.repeated, "a first result is not a repeated one");
        finished
    }

    // What people do.

    /// Cancels one task.
    pub async fn cancel(&self, id: TaskId) -> Result<Cancelled, ChangeError> {
        self.store.cancel(vec![id], Actor::Api).await.expect("the store takes it").remove(0)
    }

    /// Changes one task.
    pub async fn amend(&self, id: TaskId, amendment: Amendment) -> Result<(), ChangeError> {
        self.store.amend(id, amendment, Actor::Api).await.expect("the store takes it")
    }

    /// Lets one task run again or now.
    pub async fn requeue(&self, wish: Requeue) -> Result<(), ChangeError> {
        self.store.requeue(vec![wish], Actor::Api).await.expect("the store takes it").remove(0)
    }

    /// Takes one task out of the flow.
    pub async fn bury(&self, id: TaskId, note: &str) -> Result<(), ChangeError> {
        self.store.bury(vec![id], note.to_owned(), Actor::Api).await.expect("the store takes it").remove(0)
    }

    /// Gives one dead letter up.
    pub async fn discard(&self, id: TaskId) -> Result<(), ChangeError> {
        self.store.discard(vec![id], None, Actor::Api).await.expect("the store takes it").remove(0)
    }

    /// Changes a queue's settings, given as JSON.
    pub async fn change_queue(&self, name: &str, change: &str) -> QueueSettings {
        let change: QueueChange = serde_json::from_str(change).expect("a change of a queue");
        self.store.change_queue(queue(name), change).await.expect("the change is sound")
    }

    /// Changes a type's settings, given as JSON.
    pub async fn change_type(&self, name: &str, change: &str) -> TypeSettings {
        let change: TypeChange = serde_json::from_str(change).expect("a change of a type");
        self.store.change_type(task_type(name), change).await.expect("the change is sound")
    }

    /// Replaces the error rules, given as JSON.
    pub async fn change_error_rules(&self, rules: &str) -> Result<(), SettingsError> {
        self.store.change_error_rules(serde_json::from_str(rules).expect("error rules")).await
    }

    /// Forces the breaker of a type, or leaves it to itself again.
    pub async fn force_type(&self, name: &str, forced: Option<Forced>) -> View {
        self.store.force_breaker(Scope::Type(task_type(name)), forced).await.expect("the breaker is forced")
    }

    // Maintenance: each runs slices until there is no more, and says how much changed.

    /// Queues what is due.
    pub async fn make_due(&self) -> usize {
        self.make_due_by(100).await
    }

    /// Queues what is due in slices of the given size.
    pub async fn make_due_by(&self, slice: usize) -> usize {
        self.sweep(slice, || self.store.make_due(slice)).await
    }

    /// Ends attempts whose lease lapsed.
    pub async fn lapse(&self) -> usize {
        self.sweep(100, || self.store.lapse_leases(100)).await
    }

    /// Ends attempts whose time is over.
    pub async fn time_out(&self) -> usize {
        self.sweep(100, || self.store.time_out(100)).await
    }

    /// Fails what expired.
    pub async fn expire(&self) -> usize {
        self.sweep(100, || self.store.expire(100)).await
    }

    /// Deletes what is past its retention.
    pub async fn prune(&self) -> usize {
        self.sweep(100, || self.store.prune(100)).await
    }

    async fn sweep<F>(&self, slice: usize, run: impl Fn() -> F) -> usize
    where
        F: Future<Output = Result<Sweep, windlass_core::store::StoreError>>,
    {
        let mut total = 0;
        for _ in 0..100_000 {
            let sweep = run().await.expect("maintenance runs");
            assert!(sweep.changed <= slice, "a slice is bounded: {} of {slice}", sweep.changed);
            total += sweep.changed;
            if !sweep.more {
                return total;
            }
        }
        panic!("maintenance says without end that there is more");
    }

    // Reading.

    /// A task that must be there.
    pub async fn task(&self, id: TaskId) -> Task {
        self.find(id).await.expect("the task is there")
    }

    /// A task, if it is there.
    pub async fn find(&self, id: TaskId) -> Option<Task> {
        self.store.get(vec![id]).await.expect("the store reads").remove(0)
    }

    /// How a task stands.
    pub async fn state(&self, id: TaskId) -> TaskState {
        self.task(id).await.state
    }

    /// The status of a task.
    pub async fn status(&self, id: TaskId) -> Status {
        self.state(id).await.status
    }

    /// Why a task is not running.
    pub async fn waiting_for(&self, id: TaskId) -> Option<Waiting> {
        self.store.waiting_for(id).await.expect("the store reads")
    }

    /// The breaker of a type, if there is anything to say of it.
    pub async fn breaker(&self, name: &str) -> Option<View> {
        self.breaker_of(&Scope::Type(task_type(name))).await
    }

    /// A breaker, if there is anything to say of it.
    pub async fn breaker_of(&self, scope: &Scope) -> Option<View> {
        self.store.breakers().await.expect("the store reads").into_iter().find(|view| view.scope == *scope)
    }

    /// The events of a task.
    pub async fn history(&self, id: TaskId) -> Vec<Event> {
        self.store.history(id).await.expect("the store reads")
    }

    /// The kinds of a task's events.
    pub async fn kinds(&self, id: TaskId) -> Vec<&'static str> {
        self.history(id).await.iter().map(|event| event.change.kind()).collect()
    }

    /// All tasks that match, page by page.
    pub async fn list_by(&self, filter: &TaskFilter, page: usize) -> Vec<Task> {
        let (mut all, mut after) = (Vec::new(), None::<Cursor>);
        for _ in 0..100_000 {
            let answer = self.store.list(filter.clone(), page, after).await.expect("the list is answered");
            assert!(answer.items.len() <= page, "a page has at most the items asked for");
            all.extend(answer.items);
            match answer.next {
                Some(next) => after = Some(next),
                None => return all,
            }
        }
        panic!("the list has no end");
    }

    /// The ids of all tasks that match.
    pub async fn ids(&self, filter: &TaskFilter) -> Vec<TaskId> {
        self.list_by(filter, 100).await.into_iter().map(|task| task.id).collect()
    }

    /// All events after a place, page by page, and the last place that was given.
    pub async fn feed(&self, after: Option<Cursor>, page: usize) -> (Vec<Event>, Option<Cursor>) {
        let (mut all, mut after) = (Vec::new(), after);
        for _ in 0..100_000 {
            let answer = self.store.events(after.clone(), page).await.expect("the feed is answered");
            assert!(answer.items.len() <= page, "a page has at most the items asked for");
            all.extend(answer.items);
            let moved = answer.next.is_some() && answer.next != after;
            after = answer.next.or(after);
            if !moved {
                return (all, after);
            }
        }
        panic!("the feed has no end");
    }
}
