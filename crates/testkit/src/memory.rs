//! The in-memory reference store: the ledger over plain maps. Every call is one
//! transaction, carried out before it returns, so the same calls always give the same
//! answers. It keeps nothing: for tests, simulations and as the model of other stores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::{Committed, Observer};
use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::store::{Capabilities, StoreError};
use windlass_core::task::{FailedAttempt, Progress, TaskSpec};
use windlass_core::time::{Clock, Timestamp};
use windlass_ledger::batch::{Operation, Writer};
use windlass_ledger::journal::{
    ClaimRow, Ended, Fault, Journal, JournalError, JournalResult, KeyRow, KeyScope, Overlay, Recovered, Sequence,
    SubmitTimes, TaskRow, UniqueRow, WorkerRow,
};
use windlass_ledger::recover::Recovery;
use windlass_ledger::store::{Alone, Inbox, LedgerStore, Parts};

use crate::rows::{RowArchive, Rows, SECRET, lock};

#[derive(Default)]
struct MemoryJournal {
    rows: Arc<Mutex<Rows>>,
    is_full: Arc<AtomicBool>,
    /// What is rolled back to, where a commit will be refused.
    before: Option<Rows>,
}

impl MemoryJournal {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        lock(&self.rows)
    }
}

impl Journal for MemoryJournal {
    fn begin(&mut self) -> JournalResult<()> {
        let is_full = self.is_full.load(Ordering::SeqCst);
        self.before = is_full.then(|| self.rows().clone());
        Ok(())
    }

    fn commit(&mut self) -> JournalResult<()> {
        if self.before.is_none() {
            return Ok(());
        }
        Err(JournalError { reason: "the disk is full".into(), fault: Fault::Refused })
    }

    fn roll_back(&mut self) {
        if let Some(before) = self.before.take() {
            *self.rows() = before;
        }
    }

    fn task(&mut self, key: TaskKey) -> JournalResult<Option<TaskRow>> {
        Ok(self.rows().tasks.get(&key).map(|row| TaskRow::clone(row)))
    }

    fn overlay(&mut self, key: TaskKey) -> JournalResult<Option<Overlay>> {
        Ok(self.rows().overlays.get(&key).cloned())
    }

    fn ended(&mut self, key: TaskKey) -> JournalResult<Option<Ended>> {
        Ok(self.rows().ended.get(&key).cloned())
    }

    fn idempotency(&mut self, scope: &KeyScope) -> JournalResult<Option<KeyRow>> {
        Ok(self.rows().idempotency.get(scope).copied())
    }

    fn unique(&mut self, key: UniqueKey) -> JournalResult<Option<UniqueRow>> {
        Ok(self.rows().uniques.get(&key).copied())
    }

    fn steps(&mut self, key: TaskKey) -> JournalResult<BTreeMap<String, Json>> {
        Ok(self.rows().steps.get(&key).cloned().unwrap_or_default())
    }

    fn reserve(&mut self, _: Sequence, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn open_segment(&mut self, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn close_segment(&mut self, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn insert_task(&mut self, key: TaskKey, spec: &TaskSpec, times: SubmitTimes) -> JournalResult<()> {
        let row = TaskRow {
            spec: spec.clone(),
            created_at: times.created_at,
            run_at: times.run_at,
            event_no: times.event_no,
            original_parameters: None,
            auto_replayed: false,
        };
        self.rows().tasks.insert(key, Arc::new(row));
        Ok(())
    }

    fn update_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        self.rows().tasks.insert(key, Arc::new(row.clone()));
        Ok(())
    }

    fn replace_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        self.update_task(key, row)
    }

    fn put_overlay(&mut self, key: TaskKey, overlay: &Overlay) -> JournalResult<()> {
        self.rows().overlays.insert(key, overlay.clone());
        Ok(())
    }

    fn drop_overlay(&mut self, key: TaskKey) -> JournalResult<()> {
        self.rows().overlays.remove(&key);
        Ok(())
    }

    fn insert_claim(&mut self, _: &ClaimRow) -> JournalResult<()> {
        Ok(())
    }

    fn void_claim_entry(&mut self, _: u64, _: TaskKey) -> JournalResult<()> {
        Ok(())
    }

    fn drop_claim(&mut self, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn insert_ended(&mut self, key: TaskKey, ended: &Ended) -> JournalResult<()> {
        self.rows().ended.insert(key, ended.clone());
        Ok(())
    }

    fn drop_ended(&mut self, key: TaskKey) -> JournalResult<()> {
        self.rows().ended.remove(&key);
        Ok(())
    }

    fn insert_attempt(&mut self, key: TaskKey, attempt: &FailedAttempt) -> JournalResult<()> {
        self.rows().insert_attempt(key, attempt.clone());
        Ok(())
    }

    fn put_progress(&mut self, key: TaskKey, progress: Option<&Progress>) -> JournalResult<()> {
        match progress {
            Some(progress) => self.rows().progress.insert(key, progress.clone()),
            None => self.rows().progress.remove(&key),
        };
        Ok(())
    }

    fn insert_step(&mut self, key: TaskKey, name: &str, result: &Json) -> JournalResult<()> {
        self.rows().insert_step(key, name.to_owned(), result.clone());
        Ok(())
    }

    fn put_idempotency(&mut self, scope: &KeyScope, row: &KeyRow) -> JournalResult<()> {
        self.rows().idempotency.insert(scope.clone(), *row);
        Ok(())
    }

    fn put_unique(&mut self, key: UniqueKey, row: Option<&UniqueRow>) -> JournalResult<()> {
        match row {
            Some(row) => self.rows().uniques.insert(key, *row),
            None => self.rows().uniques.remove(&key),
        };
        Ok(())
    }

    fn insert_events(&mut self, no: u64, at: Timestamp, changes: &[Committed]) -> JournalResult<()> {
        let events = changes.iter().map(|change| change.event.clone()).collect();
        self.rows().events.insert(no, (at, events));
        Ok(())
    }

    fn count_ended(&mut self, _: Status, _: i64) -> JournalResult<()> {
        Ok(())
    }

    fn put_worker(&mut self, _: WorkerId, _: Option<&WorkerRow>) -> JournalResult<()> {
        Ok(())
    }

    fn put_queue(&mut self, _: &QueueName, _: Option<&QueueSettings>) -> JournalResult<()> {
        Ok(())
    }

    fn put_type(&mut self, _: &TaskType, _: Option<&TypeSettings>) -> JournalResult<()> {
        Ok(())
    }

    fn put_error_rules(&mut self, _: &ErrorRules) -> JournalResult<()> {
        Ok(())
    }

    fn put_breaker(&mut self, _: &Scope, _: Option<&Record>) -> JournalResult<()> {
        Ok(())
    }

    fn prune_uniques(&mut self, now: Timestamp, _: usize) -> JournalResult<usize> {
        let mut rows = self.rows();
        let before = rows.uniques.len();
        rows.uniques.retain(|_, row| row.held || row.keep_until.is_some_and(|until| until > now));
        Ok(before - rows.uniques.len())
    }

    fn expired_tasks(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(TaskKey, Status)>> {
        Ok(self.rows().expired_tasks(now, limit))
    }

    fn delete_task(&mut self, key: TaskKey) -> JournalResult<()> {
        self.rows().delete_task(key);
        Ok(())
    }

    fn expired_keys(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(KeyScope, KeyRow)>> {
        Ok(self.rows().expired_keys(now, limit))
    }

    fn delete_key(&mut self, scope: &KeyScope) -> JournalResult<()> {
        self.rows().idempotency.remove(scope);
        Ok(())
    }

    fn prune_events(&mut self, before: Timestamp, _: usize) -> JournalResult<bool> {
        self.rows().prune_events(before);
        Ok(false)
    }
}

/// Carries every operation out at once, in the call that hands it over.
struct Inline(Mutex<Option<Writer<MemoryJournal>>>);

impl Inline {
    fn run(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        let mut writer = lock(&self.0);
        let Some(writer) = writer.as_mut() else { return Err(StoreError::not_applied("the store is closed")) };
        writer.run(vec![operation]).map_err(|error| StoreError::unknown(error.reason))
    }
}

#[async_trait]
impl Inbox for Inline {
    async fn send(&self, operation: Box<dyn Operation>) -> Result<(), StoreError> {
        self.run(operation)
    }

    fn send_later(&self, operation: Box<dyn Operation>) {
        // A store that was closed has nothing left to give back to.
        let _ = self.run(operation);
    }

    async fn close(&self) {
        if let Some(mut writer) = lock(&self.0).take() {
            writer.close();
        }
    }
}

/// The in-memory reference store.
pub struct MemoryStore;

impl MemoryStore {
    /// An empty store on the given clock.
    #[allow(clippy::new_ret_no_self, reason = "a store is always used through its contract")]
    pub fn new(clock: Arc<dyn Clock>, observer: Arc<dyn Observer>) -> Arc<LedgerStore> {
        Self::with_switch(clock, observer, Arc::default())
    }

    /// An empty store that cannot commit while `is_full` is set, as if its disk were full.
    pub fn with_switch(
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        is_full: Arc<AtomicBool>,
    ) -> Arc<LedgerStore> {
        let journal = MemoryJournal { is_full, ..MemoryJournal::default() };
        let found = Recovered { secret: SECRET, next_task: 1, next_claim: 1, next_event: 1, ..Recovered::default() };
        let ledger = Recovery::new(Arc::clone(&clock), found).finish(Duration::ZERO);
        let archive = Arc::new(RowArchive(Arc::clone(&journal.rows)));
        let (writer, shared) = Writer::new(ledger, journal, observer);
        Arc::new(LedgerStore::new(Parts {
            name: "memory",
            capabilities: Capabilities { batches_span_queues: true, durable: false, keeps_whole_days: false },
            clock,
            ids: IdCodec::new(SECRET),
            inbox: Arc::new(Inline(Mutex::new(Some(writer)))),
            archive,
            shared,
            others: Arc::new(Alone),
        }))
    }
}
