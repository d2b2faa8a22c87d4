//! A database in memory that nodes share: what a real one does, without one. It can be made
//! to lose the answers of commits and to be away, so that what follows can be tested at will.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use windlass_cluster::backend::{
    Backend, BackendError, Changes, CommitError, Entry, Found, Is, KeyChange, NodeId, OverlayChange, Snapshot, Tail,
    TaskRecord, Wants,
};
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::{ErrorRules, RuleBook};
use windlass_core::ids::{IdCodec, TaskId, TaskKey, WorkerId};
use windlass_core::keys::UniqueKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::retry::grown_timeout;
use windlass_core::settings::{QueueSettings, Settings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::store::InboxItem;
use windlass_core::time::{Clock, Timestamp};
use windlass_ledger::archive::Archive;
use windlass_ledger::journal::{CancelledRow, ClaimRow, KeyRow, KeyScope, LiveRow, Recovered, WorkerRow};

use crate::rows::{RowArchive, Rows, SECRET, lock};

#[derive(Default)]
struct Tables {
    log: Vec<Entry>,
    /// Entries before the first that is still there.
    cut: u64,
    rows: Rows,
    claims: BTreeMap<u64, ClaimRow>,
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
    tables: Arc<Mutex<Tables>>,
    grown: watch::Sender<u64>,
    /// While set, every call fails.
    pub is_away: AtomicBool,
    /// The answer to every commit of this many is lost, though it was carried out; never if zero.
    pub lose_every: AtomicU64,
    /// Of the next commits this one is lost, and its answer with it, counted from 1; none if zero.
    pub drop_nth: AtomicU64,
    /// While set, nobody learns what others write.
    pub is_silent: AtomicBool,
    /// The next commit is carried out, but not safely.
    pub unsafe_next: AtomicBool,
    /// Commits wait while somebody has it for writing.
    pub hold: tokio::sync::RwLock<()>,
    commits: AtomicU64,
}

impl SharedMemory {
    /// An empty database on this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            tables: Arc::default(),
            grown: watch::Sender::new(0),
            is_away: AtomicBool::new(false),
            lose_every: AtomicU64::new(0),
            drop_nth: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            unsafe_next: AtomicBool::new(false),
            hold: tokio::sync::RwLock::default(),
            commits: AtomicU64::new(0),
        })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    fn reach(&self) -> Result<MutexGuard<'_, Tables>, BackendError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(BackendError::new("the database is away"));
        }
        Ok(self.tables())
    }

    /// Reads the rows beside the writer, also while the database is away.
    pub fn archive(&self) -> Arc<dyn Archive> {
        Arc::new(RowArchive(Arc::clone(&self.tables)))
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

    /// Empties the inbox, as somebody with a console would.
    pub fn forget_inbox(&self) {
        self.tables().inbox.clear();
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

impl AsRef<Rows> for Tables {
    fn as_ref(&self) -> &Rows {
        &self.rows
    }
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
                self.rows.tasks.insert(key, row);
            }
            match change.overlay {
                OverlayChange::Keep => {}
                OverlayChange::Put(overlay) => {
                    self.rows.overlays.insert(key, *overlay);
                }
                OverlayChange::Drop => {
                    self.rows.overlays.remove(&key);
                }
            }
            match change.is {
                Is::Live => {
                    self.rows.ended.remove(&key);
                }
                Is::Ended(ended) => {
                    self.rows.ended.insert(key, *ended);
                }
                Is::Gone => {
                    self.rows.delete_task(key);
                }
            }
        }
        for (key, attempt) in changes.attempts {
            self.rows.insert_attempt(key, attempt);
        }
        for (key, name, result) in changes.steps {
            self.rows.insert_step(key, name, result);
        }
        changes.claims.into_iter().for_each(|(first, row)| put(&mut self.claims, first, row));
        changes.progress.into_iter().for_each(|(key, row)| put(&mut self.rows.progress, key, row));
        changes.idempotency.into_iter().for_each(|(scope, key)| put(&mut self.rows.idempotency, scope, key.row()));
        changes.uniques.into_iter().for_each(|(key, row)| put(&mut self.rows.uniques, key, row));
        changes.workers.into_iter().for_each(|(id, row)| put(&mut self.workers, id, row));
        changes.queues.into_iter().for_each(|(name, row)| put(&mut self.queues, name, row));
        changes.types.into_iter().for_each(|(name, row)| put(&mut self.types, name, row));
        changes.breakers.into_iter().for_each(|(scope, row)| put(&mut self.breakers, scope, row));
        self.error_rules = changes.error_rules.or(self.error_rules.take());
        for no in changes.taken {
            self.inbox.remove(&no);
        }
        if let Some(row) = changes.events {
            self.rows.events.insert(row.no, (row.at, row.events));
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
            let Some(row) = self.rows.tasks.get(&key) else { continue };
            match self.rows.ended.get(&key) {
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
                    let growths = self.rows.overlays.get(&key).map_or(0, |overlay| overlay.timeouts);
                    let policy = &row.spec.policy;
                    timeouts
                        .insert(entry.key, grown_timeout(policy.timeout, policy.retry.timeout_growth, growths.into()));
                }
            }
        }
        let mut dead_letters = BTreeMap::new();
        for (key, _) in self.rows.ended.iter().filter(|(_, ended)| ended.status == Status::DeadLetter) {
            if let Some(row) = self.rows.tasks.get(key) {
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
        let live = self.rows.tasks.iter().filter(|(key, _)| !self.rows.ended.contains_key(key));
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
            overlay: self.rows.overlays.get(key).cloned(),
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

    fn refuses_known_keys(&self) -> bool {
        true
    }

    async fn commit(&self, entry: &Entry, changes: &Changes) -> Result<(), CommitError> {
        let _not_held = self.hold.read().await;
        let mut tables = self.reach().map_err(CommitError::Refused)?;
        if entry.no != tables.last() + 1 {
            return Err(CommitError::Behind);
        }
        if changes.taken.iter().any(|no| !tables.inbox.contains_key(no)) {
            return Err(CommitError::Behind);
        }
        let is_new = |change: &KeyChange| matches!(change, KeyChange::New(_));
        if changes.idempotency.iter().any(|(scope, key)| is_new(key) && tables.rows.idempotency.contains_key(scope)) {
            return Err(CommitError::Behind);
        }
        let commit = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        let lose_every = self.lose_every.load(Ordering::SeqCst);
        let lost = lose_every > 0 && commit.is_multiple_of(lose_every);
        let unknown = || Err(CommitError::Unknown(BackendError::new("the answer was lost")));
        let nth = self.drop_nth.load(Ordering::SeqCst);
        self.drop_nth.store(nth.saturating_sub(1), Ordering::SeqCst);
        if nth == 1 {
            return unknown();
        }
        tables.apply(changes);
        tables.log.push(entry.clone());
        self.grown.send_replace(entry.no);
        if self.unsafe_next.swap(false, Ordering::SeqCst) {
            return Err(CommitError::Unsafe(BackendError::new("no replica has it")));
        }
        if lost { unknown() } else { Ok(()) }
    }

    async fn read(&self, wants: &Wants, _: u64) -> Result<Found, BackendError> {
        let tables = self.reach()?;
        let task = |key: &TaskKey| {
            let record = TaskRecord {
                row: Arc::clone(tables.rows.tasks.get(key)?),
                overlay: tables.rows.overlays.get(key).cloned(),
                ended: tables.rows.ended.get(key).cloned(),
                steps: tables.rows.steps.get(key).cloned().unwrap_or_default(),
            };
            Some((*key, record))
        };
        let key_row = |scope: &KeyScope| Some((scope.clone(), *tables.rows.idempotency.get(scope)?));
        Ok(Found {
            tasks: wants.tasks.iter().filter_map(task).collect(),
            claims: wants.claims.iter().filter_map(|first| tables.claims.get(first).cloned()).collect(),
            idempotency: wants.idempotency.iter().filter_map(key_row).collect(),
            uniques: wants.uniques.iter().filter_map(|key| Some((*key, *tables.rows.uniques.get(key)?))).collect(),
        })
    }

    async fn expired_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<(TaskKey, Status)>, BackendError> {
        Ok(self.reach()?.rows.expired_tasks(now, limit))
    }

    async fn expired_keys(&self, now: Timestamp, limit: usize) -> Result<Vec<(KeyScope, KeyRow)>, BackendError> {
        Ok(self.reach()?.rows.expired_keys(now, limit))
    }

    async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError> {
        let tables = self.reach()?;
        let expired = tables.rows.uniques.iter().filter(|(_, row)| !row.is_taken(now));
        Ok(expired.map(|(key, _)| *key).take(limit).collect())
    }

    async fn prune_events(&self, before: Timestamp, _: usize) -> Result<bool, BackendError> {
        self.reach()?.rows.prune_events(before);
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
