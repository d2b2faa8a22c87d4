//! What nodes ask of the database that they share: a log that orders their transactions, and
//! the rows. A backend knows no rules of the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::Event;
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::store::InboxItem;
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::time::Timestamp;
use windlass_ledger::days::{DayState, DayStep};
use windlass_ledger::journal::{
    ClaimRow, Ended, KeyRow, KeyScope, LiveRow, Overlay, Recovered, TaskRow, UniqueRow, WorkerRow,
};

/// Who wrote an entry: a node, as long as its process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// One transaction in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number: one more than that of the entry before it. The first is 1.
    pub no: u64,
    /// Who wrote it.
    pub node: NodeId,
    /// What it did to memory; opaque to the backend.
    pub redo: Vec<u8>,
}

/// Where the row of a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Nowhere: it is new.
    Absent,
    /// Among the live.
    Live,
    /// Among the ended.
    Ended,
}

/// Where the row of a task goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Is {
    /// Among the live.
    Live,
    /// Among the ended, with how it ended. If it was ended before, this replaces how.
    Ended(Box<Ended>),
    /// Nowhere: everything about the task is deleted but its events.
    Gone,
}

/// What becomes of the overlay of a live task. One that ends drops it, if it has one; one that is gone has none.
#[derive(Clone, Debug, PartialEq)]
pub enum OverlayChange {
    /// It stays as it is.
    Keep,
    /// It is stored.
    Put(Box<Overlay>),
    /// It is dropped.
    Drop,
}

/// Everything that a transaction does to one task.
#[derive(Clone, Debug)]
pub struct TaskChange {
    /// Which task.
    pub key: TaskKey,
    /// Where its row is.
    pub was: Was,
    /// Where its row goes.
    pub is: Is,
    /// The row itself, if it is new or differs from what is stored.
    pub row: Option<Arc<TaskRow>>,
    /// Its overlay.
    pub overlay: OverlayChange,
}

/// The events of a transaction.
#[derive(Clone, Debug)]
pub struct EventRow {
    /// Its number; numbers grow from transaction to transaction.
    pub no: u64,
    /// When.
    pub at: Timestamp,
    /// What happened.
    pub events: Vec<Event>,
}

/// What becomes of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// It is stored. Nobody has looked whether it is there: if it is, the transaction is [`CommitError::Behind`].
    New(KeyRow),
    /// It is stored, whatever was there.
    Put(KeyRow),
    /// It is forgotten.
    Gone,
}

impl KeyChange {
    /// What is remembered of the key afterwards.
    pub fn row(self) -> Option<KeyRow> {
        match self {
            Self::New(row) | Self::Put(row) => Some(row),
            Self::Gone => None,
        }
    }
}

/// All rows that a transaction changes: per thing one final state. `None` deletes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Tasks, by key.
    pub tasks: Vec<TaskChange>,
    /// Claims, by their first number.
    pub claims: BTreeMap<u64, Option<ClaimRow>>,
    /// Failed attempts to add; the first and the newest are kept, [`windlass_core::limits::ATTEMPTS_KEPT`] in all.
    pub attempts: Vec<(TaskKey, FailedAttempt)>,
    /// Progress of attempts.
    pub progress: BTreeMap<TaskKey, Option<Progress>>,
    /// Durable steps to add, unless they are there.
    pub steps: Vec<(TaskKey, String, Json)>,
    /// Idempotency keys.
    pub idempotency: BTreeMap<KeyScope, KeyChange>,
    /// Unique keys.
    pub uniques: BTreeMap<UniqueKey, Option<UniqueRow>>,
    /// The events.
    pub events: Option<EventRow>,
    /// Workers.
    pub workers: BTreeMap<WorkerId, Option<WorkerRow>>,
    /// Settings of queues.
    pub queues: BTreeMap<QueueName, Option<QueueSettings>>,
    /// Settings of types.
    pub types: BTreeMap<TaskType, Option<TypeSettings>>,
    /// All error rules.
    pub error_rules: Option<ErrorRules>,
    /// Breakers.
    pub breakers: BTreeMap<Scope, Option<Record>>,
    /// Tasks that others wrote into the inbox of the database and that this transaction took: to be deleted.
    pub taken: Vec<i64>,
    /// Days of ended tasks that are closed, or go with everything about their tasks but the events.
    pub days: BTreeMap<i32, DayState>,
}

/// Rows that somebody needs.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    /// Tasks: row, overlay, end and steps.
    pub tasks: Vec<TaskKey>,
    /// Claims.
    pub claims: Vec<u64>,
    /// Idempotency keys.
    pub idempotency: Vec<KeyScope>,
    /// Unique keys.
    pub uniques: Vec<UniqueKey>,
}

impl Wants {
    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.claims.is_empty() && self.idempotency.is_empty() && self.uniques.is_empty()
    }
}

/// Everything about a task that a decision may need.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    /// As submitted.
    pub row: Arc<TaskRow>,
    /// How it stands, if not as submitted.
    pub overlay: Option<Overlay>,
    /// How it ended.
    pub ended: Option<Ended>,
    /// Its durable steps.
    pub steps: BTreeMap<String, Json>,
}

/// The rows that were wanted and are there.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Tasks.
    pub tasks: Vec<(TaskKey, TaskRecord)>,
    /// Claims.
    pub claims: Vec<ClaimRow>,
    /// Idempotency keys.
    pub idempotency: Vec<(KeyScope, KeyRow)>,
    /// Unique keys.
    pub uniques: Vec<(UniqueKey, UniqueRow)>,
}

/// The database as it was at one entry of the log, or later: entries after `version` are to be
/// followed, and what they say is whole, so that following one that is in already does no harm.
pub struct Snapshot {
    /// The last entry that it surely has in it; 0 if there is none.
    pub version: u64,
    /// That entry, if there is one.
    pub last: Option<Entry>,
    /// Everything but the live tasks. The numbers of sequences and the counts of ended tasks are in the last entry and
    /// not here.
    pub found: Recovered,
    /// The live tasks, in any order. `LaneKey::tenant` is always that of the task. An error ends the stream.
    pub live: mpsc::Receiver<Result<Vec<LiveRow>, BackendError>>,
}

/// Why the backend did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BackendError {
    /// What went wrong, for a person, without secrets.
    pub reason: String,
    /// Set if the same changes, item by item, might do better: one of them cannot be stored.
    pub item_at_fault: bool,
}

impl BackendError {
    /// The database is away or refuses.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), item_at_fault: false }
    }
}

/// Why an entry is not in the log, as far as anybody may rely on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// Another node took the number. Nothing was written.
    Behind,
    /// Surely nothing was written.
    Refused(BackendError),
    /// The answer was lost: the entry may be in the log, or get there yet.
    Unknown(BackendError),
    /// The entry is in the log, but not as safely as was asked for.
    Unsafe(BackendError),
}

/// Entries of the log that a node has not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// In order, without a gap; empty if there is none. More may follow if there are as many as were asked for.
    Entries(Vec<Entry>),
    /// The log does not go back that far any more: load everything anew.
    Gone,
}

/// A shared database.
///
/// Every call ends within a bounded time, also if the database is away: with an error. Calls
/// may be dropped at any point.
///
/// The writer calls from a runtime of its own, which only runs while the writer waits: what has to go on by itself is
/// spawned on the one that the backend was made on.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The secret of ids and tokens, made when the database was.
    fn secret(&self) -> [u8; 16];

    /// The clock of the database.
    async fn time(&self) -> Result<Timestamp, BackendError>;

    /// Everything that memory holds.
    async fn load(&self) -> Result<Snapshot, BackendError>;

    /// Entries after the one with number `after`, at most `limit`.
    async fn tail(&self, after: u64, limit: usize) -> Result<Tail, BackendError>;

    /// Returns when there may be entries after `after`: at once by a hint, at the latest after the poll interval. May
    /// return early. Never fails: while the database is away it returns after the interval.
    async fn grown(&self, after: u64);

    /// Waits for this node's turn to write, so that [`Backend::commit`] is not [`CommitError::Behind`] again, and
    /// answers with what it has missed. The turn ends with the next `commit` or [`Backend::pass`], and by itself if
    /// the node is gone. A backend whose turns cannot be taken answers with the tail at once. `limit` as in `tail`.
    async fn turn(&self, after: u64, limit: usize) -> Result<Tail, BackendError>;

    /// Ends the turn without a commit.
    async fn pass(&self);

    /// Whether a commit finds out by itself that a [`KeyChange::New`] is there already. Otherwise every key is looked up
    /// before anything is decided.
    fn refuses_known_keys(&self) -> bool {
        false
    }

    /// Appends an entry and changes the rows, all or nothing, durably. The entry's number must be free and next.
    async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError>;

    /// Reads rows that are at least as new as the entry with number `version`.
    async fn read(&self, wants: &Wants, version: u64) -> Result<Found, BackendError>;

    /// Does a slice of what needs no transaction about days that are over at `now`, or says what is next
    /// ([`windlass_ledger::days`]): counts those that are closed, clears away what is left of those that are gone. Asked
    /// of a backend that deletes ended tasks one by one, it has nothing to do.
    async fn day_step(&self, _now: Timestamp) -> Result<DayStep, BackendError> {
        Ok(DayStep::Nothing)
    }

    /// How a day of ended tasks stands, by rows at least as new as the entry with number `version`. One that is not
    /// there is gone.
    async fn day(&self, _no: i32, _version: u64) -> Result<DayState, BackendError> {
        Ok(DayState::Gone)
    }

    /// Ended tasks that may be deleted at `now` one by one: those that do not go with their day.
    async fn expired_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<(TaskKey, Status)>, BackendError>;

    /// Idempotency keys that may be forgotten at `now`.
    async fn expired_keys(&self, now: Timestamp, limit: usize) -> Result<Vec<(KeyScope, KeyRow)>, BackendError>;

    /// Unique keys that nobody holds and that were kept until `now`.
    async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError>;

    /// Deletes events, written before `before`, of tasks that are gone, and entries of the log before `before` that
    /// nobody needs any more; does a slice of work and says whether there is more. Needs no turn: nobody follows it.
    async fn prune_events(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError>;

    /// What others wrote into the inbox of the database with a number above `after`, oldest first. A backend without an
    /// inbox has nothing.
    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, BackendError>;

    /// Returns when there may be something in the inbox: at once by a hint, at the latest after the poll interval. A
    /// backend without an inbox never returns.
    async fn inbox_grown(&self);

    /// Leads, or goes on leading, for this long: true if this node leads now. One node leads at a time, and if it is
    /// gone, another can when the time is over.
    async fn lead(&self, node: NodeId, span: Duration) -> Result<bool, BackendError>;

    /// Leads no more.
    async fn resign(&self, node: NodeId);

    /// Room taken on disk or in memory.
    async fn bytes(&self) -> Option<u64>;

    /// Closes all connections.
    async fn close(&self);
}
