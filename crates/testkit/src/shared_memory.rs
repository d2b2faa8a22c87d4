//! A database in memory that nodes share: what a real one does, without one. It can be made
//! to lose the answers of commits and to be away, so that what follows can be tested at will.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use windlass_cluster::backend::{
    Backend, BackendError, Changes, CommitError, Entry, Found, Is, NodeId, OverlayChange, Snapshot, Tail, TaskRecord,
    Wants,
};
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::{ErrorRules, RuleBook};
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{IdCodec, TaskId, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::lane::LaneKey;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::retry::grown_timeout;
use windlass_core::settings::{QueueSettings, Settings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::store::{InboxItem, StoreError};
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::time::{Clock, Timestamp};
use windlass_ledger::archive::{Archive, Cold};
use windlass_ledger::journal::{
    CancelledRow, ClaimRow, Ended, KeyRow, KeyScope, LiveRow, Overlay, Recovered, TaskRow, UniqueRow, WorkerRow,
};

/// The secret of ids: fixed, so that a test that fails can be run again as it was.
const SECRET: [u8; 16] = *b"windlass-testkit";

#[derive(Default)]
struct Tables {
    log: Vec<Entry>,
    /// Entries before the first that is still there.
    cut: u64,
    tasks: BTreeMap<TaskKey, Arc<TaskRow>>,
    overlays: BTreeMap<TaskKey, Overlay>,
    ended: BTreeMap<TaskKey, Ended>,
    claims: BTreeMap<u64, ClaimRow>,
    attempts: BTreeMap<TaskKey, Vec<FailedAttempt>>,
    progress: BTreeMap<TaskKey, Progress>,
    steps: BTreeMap<TaskKey, BTreeMap<String, Json>>,
    idempotency: BTreeMap<KeyScope, KeyRow>,
    uniques: BTreeMap<UniqueKey, UniqueRow>,
    events: BTreeMap<u64, (Timestamp, Vec<Event>)>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    queues: BTreeMap<QueueName, QueueSettings>,
    types: BTreeMap<TaskType, TypeSettings>,
    error_rules: Option<ErrorRules>,
    breakers: BTreeMap<Scope, Record>,
    leader: Option<(NodeId, Timestamp)>,
    inbox: BTreeMap<i64, InboxItem>,
}

/// A database that nodes share.
pub struct SharedMemory {
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
    grown: watch::Sender<u64>,
    /// While set, every call fails.
    pub is_away: AtomicBool,
    /// The answer to every commit of this many is lost, though it was carried out; never if zero.
    pub lose_every: AtomicU64,
    /// The next commit is lost, and its answer with it.
    pub drop_next: AtomicBool,
    /// While set, nobody learns what others write.
    pub is_silent: AtomicBool,
    commits: AtomicU64,
}

impl SharedMemory {
    /// An empty database on this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            tables: Mutex::default(),
            grown: watch::Sender::new(0),
            is_away: AtomicBool::new(false),
            lose_every: AtomicU64::new(0),
            drop_next: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            commits: AtomicU64::new(0),
        })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self) -> Result<MutexGuard<'_, Tables>, BackendError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(BackendError::new("the database is away"));
        }
        Ok(self.tables())
    }

    /// Writes a task into the inbox and says under which id it will be found.
    pub fn enqueue(&self, body: &str) -> TaskId {
        let created_at = self.clock.now();
        let mut tables = self.tables();
        let no = tables.inbox.last_key_value().map_or(1, |(last, _)| last + 1);
        let key = TaskKey(TaskKey::INBOX + no as u64);
        tables.inbox.insert(no, InboxItem { no, key, created_at, body: body.as_bytes().to_vec() });
        IdCodec::new(SECRET).task_id(key, created_at)
    }

    /// Forgets the log but for its last entry, as if nobody had followed for a long time.
    pub fn cut_log(&self) {
        let mut tables = self.tables();
        if let Some(last) = tables.log.pop() {
            tables.cut = last.no - 1;
            tables.log = vec![last];
        }
    }
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl Tables {
    fn last(&self) -> u64 {
        self.log.last().map_or(self.cut, |entry| entry.no)
    }

    fn after(&self, after: u64, limit: usize) -> Tail {
        if after < self.cut || after > self.last() {
            return Tail::Gone;
        }
        Tail::Entries(self.log.iter().filter(|entry| entry.no > after).take(limit).cloned().collect())
    }

    fn apply(&mut self, changes: &Changes) {
        let changes = changes.clone();
        for change in changes.tasks {
            let key = change.key;
            if let Some(row) = change.row {
                self.tasks.insert(key, row);
            }
            match change.overlay {
                OverlayChange::Keep => {}
                OverlayChange::Put(overlay) => {
                    self.overlays.insert(key, *overlay);
                }
                OverlayChange::Drop => {
                    self.overlays.remove(&key);
                }
            }
            match change.is {
                Is::Live => {
                    self.ended.remove(&key);
                }
                Is::Ended(ended) => {
                    self.ended.insert(key, *ended);
                }
                Is::Gone => {
                    self.tasks.remove(&key);
                    self.ended.remove(&key);
                    self.attempts.remove(&key);
                    self.progress.remove(&key);
                    self.steps.remove(&key);
                }
            }
        }
        for (key, attempt) in changes.attempts {
            let attempts = self.attempts.entry(key).or_default();
            attempts.push(attempt);
            if attempts.len() > ATTEMPTS_KEPT {
                attempts.remove(1);
            }
        }
        for (key, name, result) in changes.steps {
            self.steps.entry(key).or_default().entry(name).or_insert(result);
        }
        changes.claims.into_iter().for_each(|(first, row)| put(&mut self.claims, first, row));
        changes.progress.into_iter().for_each(|(key, row)| put(&mut self.progress, key, row));
        changes.idempotency.into_iter().for_each(|(scope, row)| put(&mut self.idempotency, scope, row));
        changes.uniques.into_iter().for_each(|(key, row)| put(&mut self.uniques, key, row));
        changes.workers.into_iter().for_each(|(id, row)| put(&mut self.workers, id, row));
        changes.queues.into_iter().for_each(|(name, row)| put(&mut self.queues, name, row));
        changes.types.into_iter().for_each(|(name, row)| put(&mut self.types, name, row));
        changes.breakers.into_iter().for_each(|(scope, row)| put(&mut self.breakers, scope, row));
        self.error_rules = changes.error_rules.or(self.error_rules.take());
        for no in changes.taken {
            self.inbox.remove(&no);
        }
        if let Some(row) = changes.events {
            self.events.insert(row.no, (row.at, row.events));
        }
    }

    fn settings(&self) -> Settings {
        let rules = self.error_rules.clone().unwrap_or_default();
        Settings {
            queues: self.queues.clone(),
            types: self.types.clone(),
            error_rules: Arc::new(RuleBook::compile(rules).expect("rules that were taken compile")),
        }
    }

    fn recovered(&self) -> Recovered {
        let settings = self.settings();
        let (mut timeouts, mut cancelled) = (BTreeMap::new(), BTreeMap::new());
        for entry in self.claims.values().flat_map(|claim| &claim.entries) {
            let key = TaskKey(entry.key);
            let Some(row) = self.tasks.get(&key) else { continue };
            match self.ended.get(&key) {
                Some(ended) if ended.status == Status::Cancelled => {
                    let row = CancelledRow {
                        created_at: row.created_at,
                        version: ended.version,
                        lane: LaneKey::of(&row.spec, &settings),
                        flow_key: row.spec.flow_key.clone(),
                    };
                    cancelled.insert(entry.key, row);
                }
                Some(_) => {}
                None => {
                    let growths = self.overlays.get(&key).map_or(0, |overlay| overlay.timeouts);
                    let policy = &row.spec.policy;
                    timeouts
                        .insert(entry.key, grown_timeout(policy.timeout, policy.retry.timeout_growth, growths.into()));
                }
            }
        }
        let mut dead_letters = BTreeMap::new();
        for (key, _) in self.ended.iter().filter(|(_, ended)| ended.status == Status::DeadLetter) {
            if let Some(row) = self.tasks.get(key) {
                *dead_letters.entry((row.spec.queue.clone(), row.spec.task_type.clone())).or_default() += 1;
            }
        }
        Recovered {
            claims: self.claims.values().cloned().collect(),
            timeouts,
            cancelled,
            breakers: self.breakers.iter().map(|(scope, record)| (scope.clone(), record.clone())).collect(),
            workers: self.workers.values().cloned().collect(),
            settings,
            dead_letters,
            ..Recovered::default()
        }
    }

    fn live_rows(&self) -> Vec<LiveRow> {
        let live = self.tasks.iter().filter(|(key, _)| !self.ended.contains_key(key));
        live.map(|(key, row)| LiveRow {
            key: *key,
            lane: LaneKey {
                queue: row.spec.queue.clone(),
                task_type: row.spec.task_type.clone(),
                capabilities: row.spec.capabilities.clone(),
                priority: row.spec.priority,
                tenant: row.spec.tenant.clone(),
            },
            created_at: row.created_at,
            run_at: row.run_at,
            expires_at: row.spec.expires_at,
            flow_key: row.spec.flow_key.clone(),
            unique: row.spec.unique.is_some(),
            overlay: self.overlays.get(key).cloned(),
        })
        .collect()
    }
}

#[async_trait]
impl Backend for SharedMemory {
    fn secret(&self) -> [u8; 16] {
        SECRET
    }

    async fn time(&self) -> Result<Timestamp, BackendError> {
        self.reach().map(|_| self.clock.now())
    }

    async fn load(&self) -> Result<Snapshot, BackendError> {
        let tables = self.reach()?;
        let (sender, live) = mpsc::channel(1);
        let sent = sender.try_send(Ok(tables.live_rows()));
        sent.expect("an empty channel takes one message");
        Ok(Snapshot { version: tables.last(), last: tables.log.last().cloned(), found: tables.recovered(), live })
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        let tables = self.reach()?;
        if self.is_silent.load(Ordering::SeqCst) {
            return Ok(Tail::Entries(Vec::new()));
        }
        Ok(tables.after(after, limit))
    }

    async fn grown(&self, after: u64) {
        let mut grown = self.grown.subscribe();
        let _ = tokio::time::timeout(Duration::from_millis(250), grown.wait_for(|last| *last > after)).await;
        if self.is_away.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn turn(&self, after: u64, limit: usize) -> Result<Tail, BackendError> {
        self.tail(after, limit).await
    }

    async fn pass(&self) {}

    async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError> {
        let mut tables = self.reach().map_err(CommitError::Refused)?;
        if entry.no != tables.last() + 1 {
            return Err(CommitError::Behind);
        }
        if changes.taken.iter().any(|no| !tables.inbox.contains_key(no)) {
            return Err(CommitError::Behind);
        }
        let commit = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        let lose_every = self.lose_every.load(Ordering::SeqCst);
        let lost = lose_every > 0 && commit.is_multiple_of(lose_every);
        let unknown = || Err(CommitError::Unknown(BackendError::new("the answer was lost")));
        if self.drop_next.swap(false, Ordering::SeqCst) {
            return unknown();
        }
        tables.apply(changes);
        tables.log.push(entry.clone());
        self.grown.send_replace(entry.no);
        if lost { unknown() } else { Ok(()) }
    }

    async fn read(&self, wants: &Wants, _: u64) -> Result<Found, BackendError> {
        let tables = self.reach()?;
        let task = |key: &TaskKey| {
            let record = TaskRecord {
                row: Arc::clone(tables.tasks.get(key)?),
                overlay: tables.overlays.get(key).cloned(),
                ended: tables.ended.get(key).cloned(),
                steps: tables.steps.get(key).cloned().unwrap_or_default(),
            };
            Some((*key, record))
        };
        let key_row = |scope: &KeyScope| Some((scope.clone(), *tables.idempotency.get(scope)?));
        Ok(Found {
            tasks: wants.tasks.iter().filter_map(task).collect(),
            claims: wants.claims.iter().filter_map(|first| tables.claims.get(first).cloned()).collect(),
            idempotency: wants.idempotency.iter().filter_map(key_row).collect(),
            uniques: wants.uniques.iter().filter_map(|key| Some((*key, *tables.uniques.get(key)?))).collect(),
        })
    }

    async fn expired_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<(TaskKey, Status)>, BackendError> {
        let tables = self.reach()?;
        let expired = tables.ended.iter().filter(|(_, ended)| ended.keep_until.is_some_and(|until| until <= now));
        Ok(expired.map(|(key, ended)| (*key, ended.status)).take(limit).collect())
    }

    async fn expired_keys(&self, now: Timestamp, limit: usize) -> Result<Vec<(KeyScope, KeyRow)>, BackendError> {
        let tables = self.reach()?;
        let expired = tables.idempotency.iter().filter(|(_, row)| row.forget_at <= now);
        Ok(expired.map(|(scope, row)| (scope.clone(), *row)).take(limit).collect())
    }

    async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError> {
        let tables = self.reach()?;
        let expired = tables.uniques.iter().filter(|(_, row)| !row.is_taken(now));
        Ok(expired.map(|(key, _)| *key).take(limit).collect())
    }

    async fn prune_events(&self, before: Timestamp, _: usize) -> Result<bool, BackendError> {
        let codec = IdCodec::new(SECRET);
        let mut tables = self.reach()?;
        let Tables { events, tasks, .. } = &mut *tables;
        events.retain(|_, (at, events)| {
            if *at < before {
                events.retain(|event| codec.task_key(event.task_id).is_some_and(|key| tasks.contains_key(&key)));
            }
            !events.is_empty()
        });
        Ok(false)
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, BackendError> {
        Ok(self.reach()?.inbox.range(after + 1..).take(limit).map(|(_, item)| item.clone()).collect())
    }

    async fn inbox_grown(&self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    async fn lead(&self, node: NodeId, span: Duration) -> Result<bool, BackendError> {
        let now = self.clock.now();
        let mut tables = self.reach()?;
        let free = tables.leader.is_none_or(|(leader, until)| leader == node || until <= now);
        if free {
            tables.leader = Some((node, now + span));
        }
        Ok(free)
    }

    async fn resign(&self, node: NodeId) {
        let mut tables = self.tables();
        tables.leader = tables.leader.filter(|(leader, _)| *leader != node);
    }

    async fn bytes(&self) -> Option<u64> {
        None
    }

    async fn close(&self) {}
}

#[async_trait]
impl Archive for SharedMemory {
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError> {
        let tables = self.tables();
        let cold = |key: TaskKey| {
            Some(Cold {
                row: TaskRow::clone(tables.tasks.get(&key)?),
                overlay: tables.overlays.get(&key).cloned(),
                ended: tables.ended.get(&key).cloned(),
                progress: tables.progress.get(&key).cloned(),
                failed_attempts: tables.attempts.get(&key).cloned().unwrap_or_default(),
            })
        };
        Ok(keys.into_iter().map(cold).collect())
    }

    async fn candidates(
        &self,
        below: TaskKey,
        _: TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError> {
        let keys: Vec<TaskKey> = self.tables().tasks.range(..below).rev().map(|(key, _)| *key).take(limit).collect();
        let rest = keys.last().copied().filter(|_| keys.len() == limit);
        Ok((keys, rest))
    }

    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError> {
        let tables = self.tables();
        Ok(nos.iter().filter_map(|no| tables.events.get(no)).flat_map(|(_, events)| events.clone()).collect())
    }

    async fn events_from(&self, from: u64, limit: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError> {
        let tables = self.tables();
        Ok(tables.events.range(from..).take(limit + 1).map(|(no, (_, events))| (*no, events.clone())).collect())
    }

    async fn bytes(&self) -> Option<u64> {
        None
    }
}
