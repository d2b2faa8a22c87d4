//! The store contract: every verb that Windlass asks of the place where its work is kept.
//!
//! A store must:
//! - answer a write only when it is durable, and apply it wholly or not at all;
//! - write the events of a change in the transaction of the change;
//! - decide every time by its own clock, which never runs backwards;
//! - follow [`crate::transition`] for what a change does and the pure functions of this
//!   crate for what follows from it; it decides nothing of its own;
//! - let concurrent writes share a transaction, without a timer;
//! - refuse any word about an attempt that does not carry the token of its live lease.
//!
//! Verbs that are called often take many items and answer per item; one bad item fails
//! alone. Every future may be dropped at any point: the write then happened or it did not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::actor::Actor;
use crate::breaker::{self, Forced, Scope};
use crate::error_rules::{BadRule, ErrorRules};
use crate::event::Event;
use crate::failure::ErrorReport;
use crate::filter::TaskFilter;
use crate::ids::{LeaseToken, TaskId, TaskKey, WorkerId};
use crate::json::{self, Json};
use crate::lane::LaneKey;
use crate::names::{CapabilitySet, QueueName, TaskType, Text};
use crate::priority::Priority;
use crate::settings::{BadSetting, QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
use crate::status::Status;
use crate::task::{ClaimedTask, NewTask, Progress, Tags, Task};
use crate::time::Timestamp;
use crate::worker::{Health, Worker, WorkerProfile};

/// Whether a write that failed may have happened all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Surely not.
    No,
    /// Nobody knows.
    Unknown,
}

/// The store could not do it; the caller may try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {reason}")]
pub struct StoreError {
    /// What went wrong, without secrets.
    pub reason: String,
    /// Whether a write may have happened.
    pub applied: Applied,
}

impl StoreError {
    /// A failure before which nothing was written.
    pub fn not_applied(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), applied: Applied::No }
    }

    /// A failure of which nobody knows what it left behind.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), applied: Applied::Unknown }
    }
}

/// Why a batch was not stored. None of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The key belongs to a task of another type or with other parameters.
    #[error("the idempotency key was used for another task")]
    IdempotencyKeyReused {
        /// Which item.
        index: usize,
        /// The task that has the key; none if it is an earlier item of the same batch.
        existing: Option<TaskId>,
    },
    /// The queue is at its bound.
    #[error("queue {queue} is full: {depth} tasks wait and its bound is {bound}")]
    QueueFull {
        /// Which item.
        index: usize,
        /// The queue.
        queue: QueueName,
        /// How many wait.
        depth: u64,
        /// The bound that applies to the item's priority.
        bound: u64,
    },
    /// The queue has too many combinations of type, capabilities and priority waiting.
    #[error("queue {queue} has too many lanes")]
    TooManyLanes {
        /// Which item.
        index: usize,
        /// The queue.
        queue: QueueName,
    },
    /// The tenant submits faster than its queue allows.
    #[error("tenant {tenant} submits faster than queue {queue} allows")]
    RateLimited {
        /// Which item.
        index: usize,
        /// The queue.
        queue: QueueName,
        /// The tenant.
        tenant: Text,
        /// When there is room for the whole call.
        retry_after: Duration,
    },
    /// A task with the same unique key stands in the way.
    #[error("a task with the same unique key is {status}")]
    UniqueConflict {
        /// Which item.
        index: usize,
        /// The task that has the key; none if it is an earlier item of the same batch.
        existing: Option<TaskId>,
        /// Where it stands.
        status: Status,
    },
    /// This store cannot write to several queues in one transaction.
    #[error("the batch spans several queues")]
    BatchSpansQueues {
        /// The first item of another queue.
        index: usize,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a submit stands for a task that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// The same idempotency key.
    IdempotencyKey,
    /// The same unique key; nothing changed.
    UniqueKept,
    /// The same unique key; the task took on what the submit brought.
    UniqueReplaced,
    /// The same unique key; the task starts when the submitted one would have.
    UniqueRescheduled,
}

impl KnownBy {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IdempotencyKey => "idempotency_key",
            Self::UniqueKept => "unique_kept",
            Self::UniqueReplaced => "unique_replaced",
            Self::UniqueRescheduled => "unique_rescheduled",
        }
    }
}

/// A stored task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub id: TaskId,
    /// Where it stands.
    pub status: Status,
    /// Set if it was there before: by which key, and what the submit did to it.
    pub known_by: Option<KnownBy>,
    /// About how many tasks of the same or higher priority are ahead.
    pub position: u64,
}

impl Submitted {
    /// Whether it was there before.
    pub fn is_known(&self) -> bool {
        self.known_by.is_some()
    }
}

/// A task that somebody wrote into the store's own inbox, in a transaction of their own.
#[derive(Clone, Debug)]
pub struct InboxItem {
    /// Its number in the inbox.
    pub no: i64,
    /// The key that its id was made of.
    pub key: TaskKey,
    /// When it was written.
    pub created_at: Timestamp,
    /// The task as JSON, as the API takes it.
    pub body: Vec<u8>,
}

/// An item of the inbox on its way into the queue.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Its number in the inbox.
    pub no: i64,
    /// Its key.
    pub key: TaskKey,
    /// When it was written.
    pub created_at: Timestamp,
    /// The task.
    pub task: NewTask,
    /// Why it is no task that could run: it becomes a dead letter that says so.
    pub refused: Option<String>,
}

/// A worker's wish for work.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Who asks.
    pub worker: WorkerId,
    /// What it can do now, if that differs from its registration.
    pub capabilities: Option<CapabilitySet>,
    /// How many tasks at most.
    pub up_to: usize,
    /// How long the lease lasts unless renewed.
    pub lease: Duration,
    /// Stay pending until there is something to say, instead of answering with nothing.
    pub wait: bool,
}

/// What a claim got.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// Tasks with fresh leases.
    pub tasks: Vec<ClaimedTask>,
    /// Tasks that the worker still runs and should stop: they were cancelled.
    pub cancel: Vec<TaskId>,
}

/// Why a worker's call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// Not registered, or forgotten.
    #[error("no such worker")]
    Unknown,
    /// As many workers are registered as may be.
    #[error("too many workers are registered")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It succeeded; what follows is stored in the same transaction.
    Completed {
        /// What the handler returned.
        result: Option<Json>,
        /// Tasks to store with the result.
        follow_ups: Vec<NewTask>,
    },
    /// It failed.
    Failed(ErrorReport),
    /// The worker gives it back; the attempt does not count.
    Released,
    /// Not now; the attempt does not count.
    Snoozed(Duration),
    /// The handler found that the task is not wanted any more.
    Cancelled {
        /// Why.
        note: Option<String>,
    },
}

/// A result.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Which task.
    pub task: TaskId,
    /// The fence.
    pub token: LeaseToken,
    /// How it ended.
    pub outcome: Outcome,
    /// Tells the same result sent twice from another one.
    pub digest: u64,
}

impl Finish {
    /// A result with its digest.
    pub fn new(task: TaskId, token: LeaseToken, outcome: Outcome) -> Self {
        let digest = match &outcome {
            Outcome::Completed { result, follow_ups } => {
                let result = result.as_ref().map_or(0, |result| json::digest(result.as_str().as_bytes()));
                follow_ups.iter().fold(result ^ 1, |sum, next| {
                    sum.rotate_left(5) ^ json::digest(next.spec.parameters.as_str().as_bytes())
                })
            }
            Outcome::Failed(error) => json::digest(&serde_json::to_vec(error).unwrap_or_default()) ^ 2,
            Outcome::Released => 3,
            Outcome::Snoozed(span) => json::digest(&span.as_micros().to_le_bytes()) ^ 4,
            Outcome::Cancelled { note } => json::digest(note.as_deref().unwrap_or_default().as_bytes()) ^ 5,
        };
        Self { task, token, outcome, digest }
    }
}

/// A result that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Where the result put the task.
    pub status: Status,
    /// Whether the same result had been taken before; then nothing changed.
    pub repeated: bool,
    /// Ids of the follow-ups, in order.
    pub follow_ups: Vec<TaskId>,
}

/// Why a word about an attempt was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease lapsed, was given back, was revoked, or is another worker's.
    #[error("the lease of this task is lost")]
    Lost,
    /// There is no such task.
    #[error("no such task")]
    UnknownTask,
    /// It has as many durable steps as it may have.
    #[error("the task has too many durable steps")]
    TooManySteps,
}

/// Which leases a heartbeat renews.
#[derive(Clone, Debug, PartialEq)]
pub enum Renewal {
    /// All of the worker's.
    All,
    /// These.
    Named(Vec<(TaskId, LeaseToken)>),
}

/// A worker's sign of life.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Who.
    pub worker: WorkerId,
    /// Which leases to renew.
    pub renewal: Renewal,
    /// For how long.
    pub lease: Duration,
    /// Whether it says that it is not well.
    pub unhealthy: bool,
    /// Whether it says that it is draining.
    pub draining: bool,
    /// What it says of its machine. Two in a row of a machine that has too much to do make it unhealthy, whichever nodes
    /// took them.
    pub health: Option<Health>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// Whether it should finish what it has and take no more.
    pub should_drain: bool,
    /// Tasks to stop: they were cancelled.
    pub cancel: Vec<TaskId>,
    /// Named tasks whose lease is lost.
    pub lost: Vec<TaskId>,
    /// Until when the renewed leases last.
    pub lease_expires_at: Timestamp,
}

/// Progress of one attempt.
#[derive(Clone, Debug)]
pub struct ProgressReport {
    /// Which task.
    pub task: TaskId,
    /// The fence.
    pub token: LeaseToken,
    /// How far; `at` is set by the store.
    pub progress: Progress,
}

/// A finished durable step of one attempt.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Which task.
    pub task: TaskId,
    /// The fence.
    pub token: LeaseToken,
    /// The step.
    pub name: String,
    /// What it returned.
    pub result: Json,
}

/// Why a person's change of a task was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no such task.
    #[error("no such task")]
    UnknownTask,
    /// It does not apply to where the task stands.
    #[error("the task is {0}")]
    WrongStatus(Status),
    /// Another task has its unique key now.
    #[error("task {0} has its unique key")]
    UniqueConflict(TaskId),
    /// A rule has replayed it before.
    #[error("a rule has replayed the task before")]
    ReplayedBefore,
}

/// A cancelled task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Whether a worker was running it.
    pub was_executing: bool,
}

/// A change of a task that has not started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amendment {
    /// A new priority.
    pub priority: Option<Priority>,
    /// A new time. A `queued` task given a future one is scheduled again.
    pub run_at: Option<Timestamp>,
    /// New tags, all of them.
    pub tags: Option<Tags>,
}

/// A person's wish that a task runs again or now.
#[derive(Clone, Debug)]
pub struct Requeue {
    /// Which task.
    pub task: TaskId,
    /// Only if it is a dead letter; otherwise scheduled and failed ones too.
    pub only_dead: bool,
    /// Whether retries used up are forgotten.
    pub reset_retries: bool,
    /// A new priority.
    pub priority: Option<Priority>,
    /// New parameters; the original ones are kept beside them.
    pub parameters: Option<Json>,
    /// Not at once: an ended task is scheduled this much later.
    pub delay: Duration,
    /// By a rule and not by a person: at most once per task.
    pub by_rule: bool,
    /// Why.
    pub note: Option<String>,
}

/// What one slice of maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// How many items it changed.
    pub changed: usize,
    /// Whether there may be more to do right now.
    pub more: bool,
    /// When the next item falls due, if that is known.
    pub next_at: Option<Timestamp>,
}

/// A place in a list or feed: opaque to all but the store that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub String);

/// Why a list was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Not a cursor of this list.
    #[error("the cursor is not one that this list gave")]
    BadCursor,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One page. Bounded work: it may be short, even empty, and still have a `next`.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Cursor>,
}

/// How one queue stands, by priority level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Tasks that are ready.
    pub queued: [u64; Priority::LEVELS],
    /// Tasks that run.
    pub executing: [u64; Priority::LEVELS],
    /// Tasks that wait for a time.
    pub scheduled: [u64; Priority::LEVELS],
    /// When the oldest ready task became ready.
    pub oldest_ready_at: [Option<Timestamp>; Priority::LEVELS],
}

/// How the whole store stands. Kept by the writes that change it; asking counts nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Queues with live tasks.
    pub queues: BTreeMap<QueueName, QueueStats>,
    /// Tasks by status, index = [`Status::code`].
    pub by_status: [u64; 8],
    /// Dead letters.
    pub dead_letters: BTreeMap<(QueueName, TaskType), u64>,
    /// Room taken on disk or in memory.
    pub bytes: Option<u64>,
}

/// How one lane stands.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneStats {
    /// Which lane.
    pub lane: LaneKey,
    /// Tasks that are ready, those that wait for their key among them.
    pub queued: u64,
    /// When the oldest ready task became ready.
    pub oldest_ready_at: Option<Timestamp>,
    /// Tasks that run.
    pub executing: u64,
    /// Why nothing may be taken from it now, if so.
    pub closed_by: Option<Hindrance>,
}

/// What keeps a whole lane from being claimed.
#[derive(Clone, Debug, PartialEq)]
pub enum Hindrance {
    /// The queue is paused.
    QueuePaused,
    /// The type is paused.
    TypePaused,
    /// The type's breaker is open, or half open and its trial runs.
    BreakerOpen {
        /// When one task is tried; none if a person forced it open or the trial runs.
        until: Option<Timestamp>,
    },
    /// As many tasks of the type run as may.
    TypeConcurrency {
        /// How many may.
        limit: u32,
    },
    /// As many tasks of the queue run as may.
    QueueConcurrency {
        /// How many may.
        limit: u32,
    },
    /// The type's rate has no token.
    TypeRate {
        /// When it has.
        next_token_at: Timestamp,
    },
    /// The queue's rate has no token.
    QueueRate {
        /// When it has.
        next_token_at: Timestamp,
    },
}

/// Why a `queued` task is not running, as far as the store knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Waiting {
    /// It is not the first in the line of its ordering key.
    OrderingKey {
        /// The task that is, or that still runs though it was cancelled.
        holder: TaskId,
        /// Tasks of the line that go first, the holder among them.
        ahead: u64,
    },
    /// As many tasks of its concurrency key run as may.
    ConcurrencyKey {
        /// How many may.
        limit: u32,
        /// Some of those that run.
        running: Vec<TaskId>,
    },
    /// Its lane is closed.
    Lane(Hindrance),
    /// It stands in its lane.
    Line {
        /// About how many tasks will be claimed first.
        ahead: u64,
    },
}

/// Why a breaker was not forced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BreakerError {
    /// There is no such worker.
    #[error("no such worker")]
    UnknownWorker,
    /// As many breakers are kept as may be.
    #[error("too many breakers are forced")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a setting was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Out of bounds or at odds with another.
    #[error(transparent)]
    Bad(#[from] BadSetting),
    /// An error rule cannot be used.
    #[error(transparent)]
    BadRule(#[from] BadRule),
    /// It has no settings.
    #[error("there are no such settings")]
    Unknown,
    /// As many queues or types have settings as may have.
    #[error("too many settings")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// In what stores may differ. The conformance suite asks this and never a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Several queues in one batch are stored in one transaction.
    pub batches_span_queues: bool,
    /// What was acknowledged survives a crash of everything.
    pub durable: bool,
    /// Ended tasks go a whole day at a time, and are kept to the end of their last one
    /// ([`crate::retention::to_the_end_of_the_day`]).
    pub keeps_whole_days: bool,
}

/// One answer per item of a call, or the failure of the whole call.
pub type Each<T, E> = Result<Vec<Result<T, E>>, StoreError>;

/// Where Windlass keeps its work. See the module's documentation for what every verb must do.
#[async_trait]
pub trait Store: Send + Sync {
    /// A short name for metrics and messages (`sqlite`).
    fn name(&self) -> &'static str;

    /// In what this store differs from others.
    fn capabilities(&self) -> Capabilities;

    /// The store's clock.
    fn now(&self) -> Timestamp;

    /// The settings as last committed.
    fn settings(&self) -> Arc<Settings>;

    // Tasks in.

    /// Stores all of the tasks or none. A known idempotency key answers with the task that
    /// has it, a unique key that is taken as the task asked. New tasks are `queued`, or `scheduled` if their time has not come.
    async fn submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError>;

    /// What others wrote into the store's inbox with a number above `after`, oldest first. Numbers begin at 1, and a
    /// lower one may come to light after a higher one. A store without an inbox has nothing.
    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError>;

    /// Resolves when there may be something in the inbox; in a store without one, never.
    async fn inbox_grown(&self);

    /// Takes items out of the inbox and stores their tasks, each once. What a submit would refuse for good becomes a
    /// dead letter, and what is there already a cancelled task that says so: whoever wrote the item knows its id and
    /// finds out. What a submit would refuse for now stays in the inbox.
    async fn take_in(&self, items: Vec<Intake>) -> Each<Submitted, SubmitError>;

    // Work out and results in.

    /// Takes up to `up_to` `queued` tasks for a worker, each under a new lease and token,
    /// in the order of the queues' policies over all eligible lanes. With `wait` it stays
    /// pending until there is a task or a cancellation; of many waiting, one is woken per
    /// task. Dropping the future gives back what was claimed and not received.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError>;

    /// Ends attempts of `executing` tasks. The loser of a race gets [`LeaseError::Lost`];
    /// the same result sent again is taken again and changes nothing.
    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError>;

    /// Renews leases of `executing` tasks, notes a worker's health and answers what it must know.
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError>;

    /// Keeps the latest progress of `executing` tasks.
    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError>;

    /// Keeps finished durable steps of `executing` tasks for later attempts. A step recorded twice keeps its first result.
    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError>;

    // What people do to tasks.

    /// Cancels tasks that have not ended. A running one is `cancelled` at once and its
    /// worker told; its lease stays revoked until the worker answers or it lapses.
    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError>;

    /// Changes a task that waits (`blocked`, `scheduled`, `queued`).
    async fn amend(&self, task: TaskId, amendment: Amendment, by: Actor)
    -> Result<Result<(), ChangeError>, StoreError>;

    /// Lets `scheduled` tasks run now and `failed` or `dead_letter` ones run again.
    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError>;

    /// Takes tasks that wait out of the flow: to `dead_letter`, with a note.
    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError>;

    /// Gives dead letters up: to `failed`.
    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError>;

    // Maintenance: each a bounded slice; `Sweep::more` says whether to go on.

    /// Queues `scheduled` tasks whose time has come.
    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// Ends `executing` attempts whose lease lapsed, as crashes of their tasks.
    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// Ends `executing` attempts whose time is over, as failures of class `timeout`.
    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// Fails tasks whose `expires_at` passed before they started.
    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// Deletes ended tasks past their retention, with their history, and idempotency keys past their window.
    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// Applies durable intents that a crash left behind. A store that needs none has nothing to do.
    async fn settle_intents(&self, limit: usize) -> Result<Sweep, StoreError>;

    /// No lease that is live now lapses, and no attempt that runs now times out, for this long: Windlass was away and
    /// workers must get the chance to come back.
    async fn forgive(&self, span: Duration) -> Result<(), StoreError>;

    // Reading.

    /// The tasks, in the order asked for; `None` where there is none.
    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError>;

    /// Tasks that match, newest first.
    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError>;

    /// The events of one task, oldest first.
    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError>;

    /// Events of all tasks after a position: never skips one, never shows a later event of a task before an earlier one.
    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError>;

    /// Resolves when the task has ended or does not exist. May resolve early: look again.
    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError>;

    /// Why a task is not running; `None` if it is not `queued`.
    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError>;

    /// Lanes that have tasks.
    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError>;

    /// How everything stands.
    async fn stats(&self) -> Result<Stats, StoreError>;

    // Workers.

    /// Makes a worker known.
    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError>;

    /// All known workers.
    async fn workers(&self) -> Result<Vec<Worker>, StoreError>;

    /// Gives the worker no more tasks.
    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError>;

    /// Forgets the worker; what it still runs is released.
    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError>;

    /// Forgets workers that have been silent since before `seen_before` and hold no lease.
    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError>;

    // Settings.

    /// Changes a queue's settings.
    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError>;

    /// Changes a type's settings.
    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError>;

    /// Forgets a queue's settings; its tasks stay.
    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError>;

    /// Forgets a type's settings; its tasks stay.
    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError>;

    /// Replaces all error rules.
    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError>;

    // Breakers.

    /// Breakers that are not closed, were forced, or count attempts.
    async fn breakers(&self) -> Result<Vec<breaker::View>, StoreError>;

    /// Forces a breaker, or leaves it to itself again.
    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<breaker::View, BreakerError>;

    /// The dead letters of the outage of this type that began at `since` were replayed as its rule says. The mark of
    /// another outage, over since then, stays.
    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError>;

    // Many nodes.

    /// Leads maintenance, or goes on leading, for this long: true if this node leads now. A store that only one
    /// process can open is always led by it. Two nodes that both believe they lead do no harm, only work twice.
    async fn lead(&self, span: Duration) -> Result<bool, StoreError>;

    /// Leads no more, so that another node need not wait.
    async fn resign(&self);

    // The store itself.

    /// Fails with the reason if the store cannot serve.
    async fn check(&self) -> Result<(), StoreError>;

    /// Finishes what it was given and closes. Later calls fail.
    async fn close(&self);
}
