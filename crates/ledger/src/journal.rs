//! What the ledger asks of the place where it writes. A journal keeps rows and knows no
//! rules: which row is written when is decided by the ledger alone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::Committed;
use windlass_core::failure::EndReason;
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::{FlowKey, UniqueKey};
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType, Text};
use windlass_core::settings::{QueueSettings, Settings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_core::worker::WorkerProfile;

use crate::days::DayState;
use crate::flows::Place;

/// A transaction of a shared journal that memory has not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// What it did to memory.
    pub redo: Vec<u8>,
    /// This node wrote it, and nobody knew: whoever asked for it was told so, and got nothing.
    pub own: bool,
}

/// A journal could not do what it was asked. The transaction is to be rolled back.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct JournalError {
    /// What went wrong, for a person.
    pub reason: String,
    /// What that means for the transaction.
    pub fault: Fault,
}

/// What a failure of a journal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was written.
    Refused,
    /// Nothing was written; the same batch, item by item, might do better.
    Item,
    /// Nothing was written: another node was first. To be tried again when this one has caught up.
    Behind,
    /// It may have been written, or may be yet. What is true is found out later.
    Unknown,
    /// Nothing was written: what memory holds is too far from the truth to catch up, and is to be loaded anew.
    Astray,
    /// What is on disk is no longer known: the process must stop.
    Fatal,
}

/// Rows that a transaction will ask for: a journal that is far away reads them at once.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Tasks, with all that belongs to them.
    pub tasks: Vec<TaskKey>,
    /// Tasks that will be asked for soon: to be read only if something else is.
    pub ahead: Vec<TaskKey>,
    /// Idempotency keys.
    pub idempotency: Vec<KeyScope>,
    /// Unique keys.
    pub uniques: Vec<UniqueKey>,
}

impl Needs {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.idempotency.is_empty() && self.uniques.is_empty()
    }
}

/// Result of a journal call.
pub type JournalResult<T> = Result<T, JournalError>;

/// A task as it was submitted.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// What was asked for.
    pub spec: TaskSpec,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it was first to run.
    pub run_at: Timestamp,
    /// The event row of the submit.
    pub event_no: u64,
    /// The parameters before a person edited them.
    pub original_parameters: Option<Json>,
    /// Whether a rule has replayed it.
    pub auto_replayed: bool,
}

/// What the store adds to a new task.
#[derive(Clone, Copy, Debug)]
pub struct SubmitTimes {
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it is first to run.
    pub run_at: Timestamp,
    /// The event row of the submit.
    pub event_no: u64,
}

/// A result that was applied: enough to recognise it when it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedResult {
    /// Under which claim.
    pub claim: u64,
    /// Its digest.
    pub digest: u64,
    /// Where it put the task.
    pub status: Status,
}

/// How a live task stands once it is no longer as it was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlay {
    /// `scheduled` or `queued`.
    pub status: Status,
    /// Number of events so far.
    pub version: u32,
    /// Attempts begun.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// Crashes counted.
    pub crashes: u32,
    /// Attempts that ran out of time or memory.
    pub timeouts: u8,
    /// Place in the line.
    pub ready_at: Timestamp,
    /// When it is to run.
    pub run_at: Timestamp,
    /// Waits between two attempts.
    pub retrying: bool,
    /// When the last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// Who ran it last.
    pub worker: Option<WorkerId>,
    /// The last result that was applied.
    pub applied: Option<AppliedResult>,
    /// Event rows after the submit's.
    pub event_nos: Vec<u64>,
    /// Its place in the line of its ordering key, if it has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// One task of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEntry {
    /// The task; zero if the entry is void.
    pub key: u64,
    /// Number of events after the claim.
    pub version: u32,
    /// Which attempt it began.
    pub attempt: u32,
}

/// A claim: all tasks that one request got. The nth has the claim number `first + n`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// The claim number of the first task.
    pub first: u64,
    /// Who claimed.
    pub worker: WorkerId,
    /// When.
    pub at: Timestamp,
    /// The event row of the claim.
    pub event_no: u64,
    /// The tasks.
    pub entries: Vec<ClaimEntry>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// An ended status.
    pub status: Status,
    /// Why, if not by success.
    pub reason: Option<EndReason>,
    /// Number of events so far.
    pub version: u32,
    /// Attempts begun.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// Crashes counted.
    pub crashes: u32,
    /// Attempts that ran out of time or memory.
    pub timeouts: u8,
    /// Its last place in the line.
    pub ready_at: Timestamp,
    /// When it was last to run.
    pub run_at: Timestamp,
    /// When the last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Who ran it last.
    pub worker: Option<WorkerId>,
    /// What the handler returned.
    pub result: Option<Json>,
    /// The last result that was applied.
    pub applied: Option<AppliedResult>,
    /// Event rows after the submit's.
    pub event_nos: Vec<u64>,
    /// When it may be deleted; never by itself if `None`.
    pub keep_until: Option<Timestamp>,
}

/// Whose idempotency key it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyScope {
    /// Of which queue.
    pub queue: QueueName,
    /// Of which tenant.
    pub tenant: Option<Text>,
    /// The key.
    pub key: Text,
}

/// What is remembered of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The task that has it.
    pub task: TaskKey,
    /// When that task was submitted: with the key it gives the id, also when the task is gone.
    pub created_at: Timestamp,
    /// Type and canonical parameters of that task.
    pub digest: u64,
    /// When it may be forgotten, if the task has ended by then.
    pub forget_at: Timestamp,
}

/// Who has a unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueRow {
    /// The task.
    pub task: TaskKey,
    /// When that task was submitted: with the key it gives the id, also when the task is gone.
    pub created_at: Timestamp,
    /// Whether the task holds it by its status.
    pub held: bool,
    /// Until when it is kept whatever becomes of the task.
    pub keep_until: Option<Timestamp>,
}

impl UniqueRow {
    /// Whether a submit with the same key meets it.
    pub fn is_taken(&self, now: Timestamp) -> bool {
        self.held || self.keep_until.is_some_and(|until| until > now)
    }
}

/// A cancelled task that a worker may still run.
#[derive(Clone, Debug)]
pub struct CancelledRow {
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Number of its events.
    pub version: u32,
    /// Its lane.
    pub lane: LaneKey,
    /// Its ordering or concurrency key.
    pub flow_key: Option<FlowKey>,
}

/// A sequence whose numbers are never given twice, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Task keys.
    Task,
    /// Claim numbers.
    Claim,
    /// Event rows.
    Event,
}

/// A worker as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// What it said at registration.
    pub profile: WorkerProfile,
    /// When it registered.
    pub registered_at: Timestamp,
    /// Whether it is to take no more.
    pub draining: bool,
}

/// What is needed of a live task to put it back in its lane.
#[derive(Clone, Debug)]
pub struct LiveRow {
    /// Its key.
    pub key: TaskKey,
    /// Its lane.
    pub lane: LaneKey,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it was first to run.
    pub run_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// Its ordering or concurrency key.
    pub flow_key: Option<FlowKey>,
    /// Whether it came with a unique key.
    pub unique: bool,
    /// How it stands, if not as submitted.
    pub overlay: Option<Overlay>,
}

/// Everything that memory holds, as found at start. Live tasks are streamed apart.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The secret of ids and tokens.
    pub secret: [u8; 16],
    /// The first free number of each sequence.
    pub next_task: u64,
    /// See [`Sequence::Claim`].
    pub next_claim: u64,
    /// See [`Sequence::Event`].
    pub next_event: u64,
    /// Claims with tasks that may still run.
    pub claims: Vec<ClaimRow>,
    /// How long the attempts of these claims may take, by task key.
    pub timeouts: BTreeMap<u64, Duration>,
    /// Tasks of these claims that were cancelled while they ran.
    pub cancelled: BTreeMap<u64, CancelledRow>,
    /// Breakers that are not as they were made.
    pub breakers: Vec<(Scope, Record)>,
    /// Workers.
    pub workers: Vec<WorkerRow>,
    /// Settings.
    pub settings: Settings,
    /// Ended tasks by status, index = [`Status::code`].
    pub ended: [u64; 8],
    /// Dead letters.
    pub dead_letters: BTreeMap<(QueueName, TaskType), u64>,
}

/// Tasks whose keys share a segment are looked at together at start: a segment without
/// live tasks is skipped, however much history it has.
pub const SEGMENT_KEYS: u64 = 16_384;

/// Where the ledger writes. Reads see the writes of the transaction they are in.
pub trait Journal: Send {
    /// Begins a transaction, if none is open.
    fn begin(&mut self) -> JournalResult<()>;
    /// Makes everything since [`Journal::begin`] durable.
    fn commit(&mut self) -> JournalResult<()>;
    /// Forgets everything since [`Journal::begin`].
    fn roll_back(&mut self);

    /// Whether other nodes write to it too.
    fn is_shared(&self) -> bool {
        false
    }
    /// Reads what will be asked for, if reading is far.
    fn prefetch(&mut self, _: &Needs) -> JournalResult<()> {
        Ok(())
    }
    /// An item of the inbox goes with this transaction.
    fn take_from_inbox(&mut self, _: i64) {}
    /// Of a shared journal: whether the transaction wrote anything.
    fn has_changes(&self) -> bool {
        false
    }
    /// Of a shared journal: what the transaction did to memory, for the others to follow. With nothing to tell and
    /// nothing written, a commit writes nothing, and only if `must_be_current` makes sure that no other node has.
    fn append(&mut self, _redo: Option<Vec<u8>>, _must_be_current: bool) {}
    /// Of a shared journal: what others did since the last call, in order; nothing if memory is current. With
    /// `in_turn` the next commit comes before theirs.
    fn missed(&mut self, _in_turn: bool) -> JournalResult<Vec<Missed>> {
        Ok(Vec::new())
    }

    /// A task as submitted.
    fn task(&mut self, key: TaskKey) -> JournalResult<Option<TaskRow>>;
    /// How a live task stands.
    fn overlay(&mut self, key: TaskKey) -> JournalResult<Option<Overlay>>;
    /// How a task ended.
    fn ended(&mut self, key: TaskKey) -> JournalResult<Option<Ended>>;
    /// What is remembered of an idempotency key.
    fn idempotency(&mut self, scope: &KeyScope) -> JournalResult<Option<KeyRow>>;
    /// Who has a unique key.
    fn unique(&mut self, key: UniqueKey) -> JournalResult<Option<UniqueRow>>;
    /// Durable steps of a task.
    fn steps(&mut self, key: TaskKey) -> JournalResult<BTreeMap<String, Json>>;

    /// No number below `ceiling` is given again after a restart.
    fn reserve(&mut self, sequence: Sequence, ceiling: u64) -> JournalResult<()>;
    /// Notes that a segment may have live tasks.
    fn open_segment(&mut self, segment: u64) -> JournalResult<()>;
    /// Notes that a segment has none.
    fn close_segment(&mut self, segment: u64) -> JournalResult<()>;

    /// Stores a new task.
    fn insert_task(&mut self, key: TaskKey, spec: &TaskSpec, times: SubmitTimes) -> JournalResult<()>;
    /// Stores what a person changed of a task.
    fn update_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()>;
    /// Stores what another submit with the same unique key made of a task.
    fn replace_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()>;
    /// Stores how a live task stands.
    fn put_overlay(&mut self, key: TaskKey, overlay: &Overlay) -> JournalResult<()>;
    /// The task has ended, or is as submitted.
    fn drop_overlay(&mut self, key: TaskKey) -> JournalResult<()>;
    /// Stores a claim.
    fn insert_claim(&mut self, row: &ClaimRow) -> JournalResult<()>;
    /// One task of the claim is settled though nothing else that is written says so: its entry names no task any more.
    fn void_claim_entry(&mut self, first: u64, key: TaskKey) -> JournalResult<()>;
    /// No task of the claim runs under it any more.
    fn drop_claim(&mut self, first: u64) -> JournalResult<()>;
    /// Stores how a task ended. There is no such row yet.
    fn insert_ended(&mut self, key: TaskKey, ended: &Ended) -> JournalResult<()>;
    /// The task lives again.
    fn drop_ended(&mut self, key: TaskKey) -> JournalResult<()>;
    /// Stores a failed attempt; keeps the first and the newest, [`windlass_core::limits::ATTEMPTS_KEPT`] in all.
    fn insert_attempt(&mut self, key: TaskKey, attempt: &FailedAttempt) -> JournalResult<()>;
    /// Stores or clears the progress of an attempt.
    fn put_progress(&mut self, key: TaskKey, progress: Option<&Progress>) -> JournalResult<()>;
    /// Stores a durable step, unless it is there.
    fn insert_step(&mut self, key: TaskKey, name: &str, result: &Json) -> JournalResult<()>;
    /// Remembers an idempotency key.
    fn put_idempotency(&mut self, scope: &KeyScope, row: &KeyRow) -> JournalResult<()>;
    /// Gives a unique key to a task, or to nobody.
    fn put_unique(&mut self, key: UniqueKey, row: Option<&UniqueRow>) -> JournalResult<()>;
    /// Stores the events of this transaction.
    fn insert_events(&mut self, no: u64, at: Timestamp, changes: &[Committed]) -> JournalResult<()>;
    /// Adds to the number of ended tasks of a status.
    fn count_ended(&mut self, status: Status, delta: i64) -> JournalResult<()>;

    /// Stores or forgets a worker.
    fn put_worker(&mut self, id: WorkerId, row: Option<&WorkerRow>) -> JournalResult<()>;
    /// Stores or forgets settings of a queue.
    fn put_queue(&mut self, queue: &QueueName, settings: Option<&QueueSettings>) -> JournalResult<()>;
    /// Stores or forgets settings of a type.
    fn put_type(&mut self, task_type: &TaskType, settings: Option<&TypeSettings>) -> JournalResult<()>;

    /// Stores all error rules.
    fn put_error_rules(&mut self, rules: &ErrorRules) -> JournalResult<()>;
    /// Stores or forgets a breaker.
    fn put_breaker(&mut self, scope: &Scope, record: Option<&Record>) -> JournalResult<()>;

    /// Whether ended tasks go a whole day at a time, and so are kept to the end of their last one.
    fn keeps_whole_days(&self) -> bool {
        false
    }
    /// How a day stands. One that is not there is gone. Asked only where whole days are kept.
    fn day(&mut self, _: i32) -> JournalResult<DayState> {
        Ok(DayState::Gone)
    }
    /// Closes a day, or lets it go with everything about its tasks but their events.
    fn put_day(&mut self, _: i32, _: DayState) -> JournalResult<()> {
        Ok(())
    }
    /// Ended tasks that may be deleted at `now` one by one.
    fn expired_tasks(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(TaskKey, Status)>>;
    /// Deletes everything about an ended task but its events.
    fn delete_task(&mut self, key: TaskKey) -> JournalResult<()>;
    /// Idempotency keys that may be forgotten at `now`.
    fn expired_keys(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(KeyScope, KeyRow)>>;
    /// Forgets unique keys that nobody holds and that were kept until `now`; how many.
    fn prune_uniques(&mut self, now: Timestamp, limit: usize) -> JournalResult<usize>;
    /// Forgets an idempotency key.
    fn delete_key(&mut self, scope: &KeyScope) -> JournalResult<()>;
    /// Deletes events, written before `before`, of tasks that are gone; looks at `limit` rows. True if there is more to look at.
    fn prune_events(&mut self, before: Timestamp, limit: usize) -> JournalResult<bool>;
}
