//! The journal of one node: reads through what it has at hand, keeps every write until the
//! commit, and then appends one entry to the shared log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::Committed;
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_ledger::days::DayState;
use windlass_ledger::journal::{
    ClaimRow, Ended, Fault, Journal, JournalError, JournalResult, KeyRow, KeyScope, Missed, Needs, Overlay, Sequence,
    SubmitTimes, TaskRow, UniqueRow, WorkerRow,
};

use crate::backend::{
    Backend, BackendError, CommitError, Entry, EventRow, Found, Is, KeyChange, NodeId, OverlayChange, Tail, TaskRecord,
    Wants, Was,
};
use crate::cache::Cache;
use crate::envelope;
use crate::node::WriterRuntime;
use crate::pending::{Decided, Pending, PendingTask};

/// Entries that are read from the log at a time.
const TAIL: usize = 256;
/// How long to look for an entry whose answer was lost before the callers are told that nobody knows.
const FIND_OUT: Duration = Duration::from_millis(1_500);
/// How long to wait between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// While the database is away nobody waits for it again and again: calls fail at once for this long.
const AWAY: Duration = Duration::from_millis(250);

/// After a key turned out to be there that was taken for new, keys are looked up for so many transactions: one that is
/// sent again seldom comes alone.
const WARY: u32 = 64;

/// Entries that may turn up in the log yet and are remembered. There is hardly ever one.
const UNSURE: usize = 16;

/// What is known of the database at the moment.
struct Away {
    until: Instant,
    reason: String,
}

/// The journal of one node.
pub struct SharedJournal {
    backend: Arc<dyn Backend>,
    /// Where this thread waits for the database.
    runtime: Arc<WriterRuntime>,
    node: NodeId,
    keeps_whole_days: bool,
    /// The last entry that memory has followed.
    version: Arc<AtomicU64>,
    /// Set if nobody can have written since: this node has the turn and has read everything.
    current: bool,
    has_turn: bool,
    cache: Cache,
    /// Rows that were read in this transaction. They say what is there, and what is not.
    tasks: HashMap<TaskKey, Option<Arc<TaskRecord>>>,
    claims: HashMap<u64, Option<ClaimRow>>,
    idempotency: HashMap<KeyScope, Option<KeyRow>>,
    uniques: HashMap<UniqueKey, Option<UniqueRow>>,
    /// Idempotency keys that this transaction takes for new without a look: hardly any is not.
    assumed_new: HashSet<KeyScope>,
    /// Those of them that were asked for.
    relied_on: HashSet<KeyScope>,
    /// For how many more transactions keys are looked up.
    wary: u32,
    pending: Pending,
    redo: Option<Vec<u8>>,
    must_be_current: bool,
    /// Entries of this node of which nobody knows whether they are in the log.
    unsure: Vec<Entry>,
    away: Option<Away>,
}

#[allow(clippy::disallowed_methods, reason = "how long this process has waited is no time that decides anything")]
fn instant() -> Instant {
    Instant::now()
}

impl SharedJournal {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        runtime: Arc<WriterRuntime>,
        node: NodeId,
        keeps_whole_days: bool,
        version: u64,
    ) -> Self {
        Self {
            backend,
            runtime,
            node,
            keeps_whole_days,
            version: Arc::new(AtomicU64::new(version)),
            current: false,
            has_turn: false,
            cache: Cache::default(),
            tasks: HashMap::new(),
            claims: HashMap::new(),
            idempotency: HashMap::new(),
            uniques: HashMap::new(),
            assumed_new: HashSet::new(),
            relied_on: HashSet::new(),
            wary: 0,
            pending: Pending::default(),
            redo: None,
            must_be_current: false,
            unsure: Vec::new(),
            away: None,
        }
    }

    /// The last entry that memory has followed, as it grows.
    pub(crate) fn version(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.version)
    }

    /// Memory was loaded anew.
    pub(crate) fn restart_at(&mut self, version: u64) {
        self.version.store(version, Ordering::Release);
        self.cache.clear();
        self.forget();
    }

    /// Why the database is away, if the last call found it so.
    pub(crate) fn away_because(&self) -> Option<&str> {
        self.away.as_ref().map(|away| away.reason.as_str())
    }

    fn at(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }

    /// Notes whether the database answered.
    fn heard<T>(&mut self, answer: Result<T, BackendError>) -> JournalResult<T> {
        match answer {
            Ok(answer) => {
                self.away = None;
                Ok(answer)
            }
            Err(error) => Err(self.missed_it(error, Fault::Refused)),
        }
    }

    fn missed_it(&mut self, error: BackendError, fault: Fault) -> JournalError {
        self.away = Some(Away { until: instant() + AWAY, reason: error.reason.clone() });
        JournalError { reason: error.reason, fault }
    }

    fn forget(&mut self) {
        self.tasks.clear();
        self.claims.clear();
        self.idempotency.clear();
        self.uniques.clear();
        self.assumed_new.clear();
        self.relied_on.clear();
        self.pending = Pending::default();
        self.redo = None;
    }

    fn read(&mut self, wants: &Wants) -> JournalResult<()> {
        if wants.is_empty() {
            return Ok(());
        }
        let answer = self.wait(self.backend.read(wants, self.at()));
        let Found { tasks, claims, idempotency, uniques } = self.heard(answer)?;
        self.tasks.extend(wants.tasks.iter().map(|key| (*key, None)));
        self.claims.extend(wants.claims.iter().map(|first| (*first, None)));
        self.idempotency.extend(wants.idempotency.iter().map(|scope| (scope.clone(), None)));
        self.uniques.extend(wants.uniques.iter().map(|key| (*key, None)));
        for (key, record) in tasks {
            let record = Arc::new(record);
            if record.ended.is_none() {
                self.cache.put(key, Arc::clone(&record));
            }
            self.tasks.insert(key, Some(record));
        }
        self.claims.extend(claims.into_iter().map(|row| (row.first, Some(row))));
        self.idempotency.extend(idempotency.into_iter().map(|(scope, row)| (scope, Some(row))));
        self.uniques.extend(uniques.into_iter().map(|(key, row)| (key, Some(row))));
        Ok(())
    }

    fn is_at_hand(&self, key: TaskKey) -> bool {
        self.tasks.contains_key(&key)
            || self.cache.get(key).is_some()
            || self.pending.tasks.get(&key).is_some_and(PendingTask::is_new)
    }

    /// Everything about a task as it was before this transaction.
    fn record(&mut self, key: TaskKey) -> JournalResult<Option<Arc<TaskRecord>>> {
        if let Some(known) = self.tasks.get(&key) {
            return Ok(known.clone());
        }
        if let Some(record) = self.cache.get(key) {
            return Ok(Some(Arc::clone(record)));
        }
        self.read(&Wants { tasks: vec![key], ..Wants::default() })?;
        Ok(self.tasks.get(&key).cloned().flatten())
    }

    fn commit_entry(&mut self, redo: &[u8]) -> JournalResult<()> {
        let changes = self.pending.take();
        let stale = changes.tasks.iter().map(|task| task.key).chain(changes.steps.iter().map(|(key, ..)| *key));
        let entry = Entry { no: self.at() + 1, node: self.node, redo: envelope::seal(stale, redo) };
        let answer = self.wait(self.backend.commit(&entry, &changes));
        self.has_turn = false;
        self.current = false;
        match answer {
            Ok(()) => {}
            Err(CommitError::Behind) => {
                self.away = None;
                return Err(behind());
            }
            Err(CommitError::Refused(error)) if error.item_at_fault => {
                self.away = None;
                return Err(JournalError { reason: error.reason, fault: Fault::Item });
            }
            Err(CommitError::Refused(error)) => return Err(self.missed_it(error, Fault::Refused)),
            Err(CommitError::Unknown(error)) => match self.find_out(&entry) {
                Some(found) => found?,
                None => return Err(self.nobody_knows(entry, error)),
            },
            // It is followed like another node's.
            Err(CommitError::Unsafe(error)) => return Err(self.nobody_knows(entry, error)),
        }
        self.away = None;
        self.version.store(entry.no, Ordering::Release);
        for task in changes.tasks {
            let known = self.cache.get(task.key).cloned();
            self.cache.remove(task.key);
            if !matches!(task.is, Is::Live) {
                continue;
            }
            let overlay = match task.overlay {
                OverlayChange::Put(overlay) => Some(*overlay),
                OverlayChange::Drop => None,
                OverlayChange::Keep => known.as_ref().and_then(|known| known.overlay.clone()),
            };
            let row = task.row.or_else(|| known.as_ref().map(|known| Arc::clone(&known.row)));
            let steps = known.as_ref().map(|known| known.steps.clone()).unwrap_or_default();
            // Of a task that was not at hand not everything is known.
            if let Some(row) = row.filter(|_| known.is_some() || task.was == Was::Absent) {
                self.cache.put_if_room(task.key, Arc::new(TaskRecord { row, overlay, ended: None, steps }));
            }
        }
        for (key, ..) in &changes.steps {
            self.cache.remove(*key);
        }
        Ok(())
    }

    /// What is told of an entry that may turn up in the log yet.
    fn nobody_knows(&mut self, entry: Entry, error: BackendError) -> JournalError {
        if self.unsure.len() == UNSURE {
            self.unsure.remove(0);
        }
        self.unsure.push(entry);
        self.missed_it(error, Fault::Unknown)
    }

    /// The answer to a commit was lost: the log itself says what became of it, but perhaps not in time.
    fn find_out(&mut self, entry: &Entry) -> Option<JournalResult<()>> {
        let until = instant() + FIND_OUT;
        loop {
            match self.wait(self.backend.tail(entry.no - 1, 1)) {
                Ok(Tail::Entries(entries)) if !entries.is_empty() => {
                    return Some(if entries[0] == *entry { Ok(()) } else { Err(behind()) });
                }
                Ok(Tail::Gone) => return Some(Err(astray())),
                // It is not there yet; a connection that hangs may still bring it.
                Ok(Tail::Entries(_)) | Err(_) => {}
            }
            if instant() >= until {
                return None;
            }
            self.wait(async { tokio::time::sleep(LOOK_AGAIN).await });
        }
    }

    /// Looks for the keys that were taken for new and that the commit itself does not look for, because they are not
    /// stored: what was decided by their absence must be decided again if they are there.
    fn check_assumptions(&mut self) -> JournalResult<()> {
        let stored = &self.pending.rest.idempotency;
        let is_open = |scope: &&KeyScope| !matches!(stored.get(*scope), Some(KeyChange::New(_)));
        let open: Vec<KeyScope> = self.relied_on.iter().filter(is_open).cloned().collect();
        if open.is_empty() {
            return Ok(());
        }
        self.read(&Wants { idempotency: open.clone(), ..Wants::default() })?;
        if open.iter().any(|scope| self.idempotency.get(scope).is_some_and(Option::is_some)) {
            return Err(JournalError { reason: "a key that was taken for new is known".into(), fault: Fault::Behind });
        }
        Ok(())
    }

    fn pass(&mut self) {
        self.current = false;
        if std::mem::take(&mut self.has_turn) {
            self.wait(self.backend.pass());
        }
    }
}

fn behind() -> JournalError {
    JournalError { reason: "another node was first".into(), fault: Fault::Behind }
}

fn astray() -> JournalError {
    JournalError { reason: "the log does not go back to where this node is".into(), fault: Fault::Astray }
}

impl Journal for SharedJournal {
    fn begin(&mut self) -> JournalResult<()> {
        self.forget();
        match &self.away {
            Some(away) if instant() < away.until => {
                Err(JournalError { reason: away.reason.clone(), fault: Fault::Refused })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn commit(&mut self) -> JournalResult<()> {
        self.check_assumptions()?;
        self.wary = self.wary.saturating_sub(1);
        if let Some(redo) = self.redo.take() {
            let answer = self.commit_entry(&redo);
            self.forget();
            return answer;
        }
        let was_current = self.current;
        self.pass();
        if self.must_be_current && !was_current {
            let answer = self.wait(self.backend.tail(self.at(), 1));
            match self.heard(answer)? {
                Tail::Entries(entries) if entries.is_empty() => {}
                Tail::Entries(_) => return Err(behind()),
                Tail::Gone => return Err(astray()),
            }
        }
        Ok(())
    }

    fn roll_back(&mut self) {
        self.forget();
        self.pass();
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn prefetch(&mut self, needs: &Needs) -> JournalResult<()> {
        let unknown = needs.idempotency.iter().filter(|scope| !self.idempotency.contains_key(scope)).cloned();
        let mut idempotency = Vec::new();
        if self.wary > 0 || !self.backend.refuses_known_keys() {
            idempotency.extend(unknown);
        } else {
            self.assumed_new.extend(unknown);
        }
        let mut wants = Wants {
            tasks: needs.tasks.iter().copied().filter(|key| !self.is_at_hand(*key)).collect(),
            claims: Vec::new(),
            idempotency,
            uniques: needs.uniques.iter().filter(|key| !self.uniques.contains_key(key)).copied().collect(),
        };
        if !wants.tasks.is_empty() {
            wants.tasks.extend(needs.ahead.iter().filter(|key| !self.is_at_hand(**key)));
            wants.tasks.sort_unstable();
            wants.tasks.dedup();
        }
        wants.idempotency.sort_unstable();
        wants.idempotency.dedup();
        wants.uniques.sort_unstable();
        wants.uniques.dedup();
        self.read(&wants)
    }

    fn take_from_inbox(&mut self, no: i64) {
        self.pending.rest.taken.push(no);
    }

    fn has_changes(&self) -> bool {
        !self.pending.is_empty()
    }

    fn append(&mut self, redo: Option<Vec<u8>>, must_be_current: bool) {
        self.redo = redo;
        self.must_be_current = must_be_current;
    }

    fn missed(&mut self, in_turn: bool) -> JournalResult<Vec<Missed>> {
        if self.current {
            return Ok(Vec::new());
        }
        let takes_turn = in_turn && !self.has_turn;
        let answer = if takes_turn {
            self.wait(self.backend.turn(self.at(), TAIL))
        } else {
            self.wait(self.backend.tail(self.at(), TAIL))
        };
        let tail = self.heard(answer)?;
        self.has_turn |= takes_turn;
        let entries = match tail {
            Tail::Entries(entries) => entries,
            Tail::Gone => return Err(astray()),
        };
        if in_turn {
            // It is decided again, this time by a look. If nobody was first, a key was not new.
            self.wary = self.wary.max(if entries.is_empty() { WARY } else { 1 });
        }
        self.current = self.has_turn && entries.len() < TAIL;
        let mut missed = Vec::with_capacity(entries.len());
        for entry in entries {
            if entry.no != self.at() + 1 {
                return Err(astray());
            }
            let (stale, redo) = envelope::open(&entry.redo)
                .map_err(|damaged| JournalError { reason: damaged.to_string(), fault: Fault::Astray })?;
            for key in stale {
                self.cache.remove(key);
            }
            self.version.store(entry.no, Ordering::Release);
            let own = self.unsure.contains(&entry);
            self.unsure.retain(|unsure| unsure.no > entry.no);
            missed.push(Missed { redo: redo.to_vec(), own });
        }
        Ok(missed)
    }

    fn task(&mut self, key: TaskKey) -> JournalResult<Option<TaskRow>> {
        if let Some(row) = self.pending.tasks.get(&key).and_then(|task| task.row.as_ref()) {
            return Ok(Some(TaskRow::clone(row)));
        }
        Ok(self.record(key)?.map(|record| TaskRow::clone(&record.row)))
    }

    fn overlay(&mut self, key: TaskKey) -> JournalResult<Option<Overlay>> {
        match self.pending.tasks.get(&key).map_or(Decided::AsStored, PendingTask::overlay) {
            Decided::There(overlay) => Ok(Some(overlay)),
            Decided::Absent => Ok(None),
            Decided::AsStored => Ok(self.record(key)?.and_then(|record| record.overlay.clone())),
        }
    }

    fn ended(&mut self, key: TaskKey) -> JournalResult<Option<Ended>> {
        match self.pending.tasks.get(&key).map_or(Decided::AsStored, PendingTask::ended) {
            Decided::There(ended) => Ok(Some(ended)),
            Decided::Absent => Ok(None),
            Decided::AsStored => Ok(self.record(key)?.and_then(|record| record.ended.clone())),
        }
    }

    fn idempotency(&mut self, scope: &KeyScope) -> JournalResult<Option<KeyRow>> {
        if let Some(change) = self.pending.rest.idempotency.get(scope) {
            return Ok(change.row());
        }
        if self.assumed_new.contains(scope) {
            self.relied_on.insert(scope.clone());
            return Ok(None);
        }
        if !self.idempotency.contains_key(scope) {
            self.read(&Wants { idempotency: vec![scope.clone()], ..Wants::default() })?;
        }
        Ok(self.idempotency.get(scope).copied().flatten())
    }

    fn unique(&mut self, key: UniqueKey) -> JournalResult<Option<UniqueRow>> {
        if let Some(row) = self.pending.rest.uniques.get(&key) {
            return Ok(*row);
        }
        if !self.uniques.contains_key(&key) {
            self.read(&Wants { uniques: vec![key], ..Wants::default() })?;
        }
        Ok(self.uniques.get(&key).copied().flatten())
    }

    fn steps(&mut self, key: TaskKey) -> JournalResult<BTreeMap<String, Json>> {
        let is_new = self.pending.tasks.get(&key).is_some_and(PendingTask::is_new);
        let before = if is_new { None } else { self.record(key)? };
        let mut steps = before.map(|record| record.steps.clone()).unwrap_or_default();
        for (name, result) in self.pending.steps_of(key) {
            steps.entry(name.clone()).or_insert_with(|| result.clone());
        }
        Ok(steps)
    }

    /// Numbers are in every entry of the log.
    fn reserve(&mut self, _: Sequence, _: u64) -> JournalResult<()> {
        Ok(())
    }

    /// Live tasks have a place of their own here.
    fn open_segment(&mut self, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn close_segment(&mut self, _: u64) -> JournalResult<()> {
        Ok(())
    }

    fn insert_task(&mut self, key: TaskKey, spec: &TaskSpec, times: SubmitTimes) -> JournalResult<()> {
        let SubmitTimes { created_at, run_at, event_no } = times;
        let spec = spec.clone();
        let row = TaskRow { spec, created_at, run_at, event_no, original_parameters: None, auto_replayed: false };
        self.pending.insert_task(key, row);
        Ok(())
    }

    fn update_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        let has_ended = self.ended(key)?.is_some();
        self.pending.change_task(key, row.clone(), has_ended);
        Ok(())
    }

    fn replace_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        self.update_task(key, row)
    }

    fn put_overlay(&mut self, key: TaskKey, overlay: &Overlay) -> JournalResult<()> {
        self.pending.put_overlay(key, Some(overlay));
        Ok(())
    }

    fn drop_overlay(&mut self, key: TaskKey) -> JournalResult<()> {
        self.pending.put_overlay(key, None);
        Ok(())
    }

    fn insert_claim(&mut self, row: &ClaimRow) -> JournalResult<()> {
        self.pending.rest.claims.insert(row.first, Some(row.clone()));
        Ok(())
    }

    fn void_claim_entry(&mut self, first: u64, key: TaskKey) -> JournalResult<()> {
        if !self.pending.rest.claims.contains_key(&first) && !self.claims.contains_key(&first) {
            self.read(&Wants { claims: vec![first], ..Wants::default() })?;
        }
        let row = self.pending.rest.claims.get(&first).or_else(|| self.claims.get(&first)).cloned().flatten();
        if let Some(mut row) = row {
            row.entries.iter_mut().filter(|entry| entry.key == key.0).for_each(|entry| entry.key = 0);
            self.pending.rest.claims.insert(first, Some(row));
        }
        Ok(())
    }

    fn drop_claim(&mut self, first: u64) -> JournalResult<()> {
        self.pending.rest.claims.insert(first, None);
        Ok(())
    }

    fn insert_ended(&mut self, key: TaskKey, ended: &Ended) -> JournalResult<()> {
        self.pending.put_ended(key, ended);
        Ok(())
    }

    fn drop_ended(&mut self, key: TaskKey) -> JournalResult<()> {
        self.pending.drop_ended(key);
        Ok(())
    }

    fn insert_attempt(&mut self, key: TaskKey, attempt: &FailedAttempt) -> JournalResult<()> {
        self.pending.rest.attempts.push((key, attempt.clone()));
        Ok(())
    }

    fn put_progress(&mut self, key: TaskKey, progress: Option<&Progress>) -> JournalResult<()> {
        self.pending.rest.progress.insert(key, progress.cloned());
        Ok(())
    }

    fn insert_step(&mut self, key: TaskKey, name: &str, result: &Json) -> JournalResult<()> {
        self.pending.rest.steps.push((key, name.to_owned(), result.clone()));
        Ok(())
    }

    fn put_idempotency(&mut self, scope: &KeyScope, row: &KeyRow) -> JournalResult<()> {
        let change = if self.assumed_new.contains(scope) { KeyChange::New(*row) } else { KeyChange::Put(*row) };
        self.pending.rest.idempotency.insert(scope.clone(), change);
        Ok(())
    }

    fn put_unique(&mut self, key: UniqueKey, row: Option<&UniqueRow>) -> JournalResult<()> {
        self.pending.rest.uniques.insert(key, row.copied());
        Ok(())
    }

    fn insert_events(&mut self, no: u64, at: Timestamp, changes: &[Committed]) -> JournalResult<()> {
        let events = changes.iter().map(|change| change.event.clone()).collect();
        self.pending.rest.events = Some(EventRow { no, at, events });
        Ok(())
    }

    /// Counts are in every entry of the log.
    fn count_ended(&mut self, _: Status, _: i64) -> JournalResult<()> {
        Ok(())
    }

    fn put_worker(&mut self, id: WorkerId, row: Option<&WorkerRow>) -> JournalResult<()> {
        self.pending.rest.workers.insert(id, row.cloned());
        Ok(())
    }

    fn put_queue(&mut self, queue: &QueueName, settings: Option<&QueueSettings>) -> JournalResult<()> {
        self.pending.rest.queues.insert(queue.clone(), settings.cloned());
        Ok(())
    }

    fn put_type(&mut self, task_type: &TaskType, settings: Option<&TypeSettings>) -> JournalResult<()> {
        self.pending.rest.types.insert(task_type.clone(), settings.cloned());
        Ok(())
    }

    fn put_error_rules(&mut self, rules: &ErrorRules) -> JournalResult<()> {
        self.pending.rest.error_rules = Some(rules.clone());
        Ok(())
    }

    fn put_breaker(&mut self, scope: &Scope, record: Option<&Record>) -> JournalResult<()> {
        self.pending.rest.breakers.insert(scope.clone(), record.cloned());
        Ok(())
    }

    fn keeps_whole_days(&self) -> bool {
        self.keeps_whole_days
    }

    fn day(&mut self, no: i32) -> JournalResult<DayState> {
        if let Some(state) = self.pending.rest.days.get(&no) {
            return Ok(*state);
        }
        let answer = self.wait(self.backend.day(no, self.at()));
        self.heard(answer)
    }

    fn put_day(&mut self, no: i32, state: DayState) -> JournalResult<()> {
        self.pending.rest.days.insert(no, state);
        Ok(())
    }

    // The database knows nothing of this transaction. What it changed already is left for another time, here and below: a
    // task may have been replayed in it or deleted, a key taken again.
    fn expired_tasks(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(TaskKey, Status)>> {
        let answer = self.wait(self.backend.expired_tasks(now, limit));
        let mut expired = self.heard(answer)?;
        expired.retain(|(key, _)| !self.pending.tasks.contains_key(key));
        Ok(expired)
    }

    fn delete_task(&mut self, key: TaskKey) -> JournalResult<()> {
        self.pending.delete_task(key);
        Ok(())
    }

    fn expired_keys(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(KeyScope, KeyRow)>> {
        let answer = self.wait(self.backend.expired_keys(now, limit));
        let mut expired = self.heard(answer)?;
        expired.retain(|(scope, _)| !self.pending.rest.idempotency.contains_key(scope));
        Ok(expired)
    }

    fn prune_uniques(&mut self, now: Timestamp, limit: usize) -> JournalResult<usize> {
        let answer = self.wait(self.backend.expired_uniques(now, limit));
        let mut expired = self.heard(answer)?;
        expired.retain(|key| !self.pending.rest.uniques.contains_key(key));
        let pruned = expired.len();
        self.pending.rest.uniques.extend(expired.into_iter().map(|key| (key, None)));
        Ok(pruned)
    }

    fn delete_key(&mut self, scope: &KeyScope) -> JournalResult<()> {
        self.pending.rest.idempotency.insert(scope.clone(), KeyChange::Gone);
        Ok(())
    }

    fn prune_events(&mut self, before: Timestamp, limit: usize) -> JournalResult<bool> {
        let answer = self.wait(self.backend.prune_events(before, limit));
        self.heard(answer)
    }
}
