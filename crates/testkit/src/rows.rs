//! The rows of tasks in plain maps: what both databases in memory keep, and how they are read beside the writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{IdCodec, TaskKey};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::status::Status;
use windlass_core::store::StoreError;
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::time::Timestamp;
use windlass_ledger::archive::{Archive, Cold};
use windlass_ledger::journal::{Ended, KeyRow, KeyScope, Overlay, TaskRow, UniqueRow};

/// The secret of ids: fixed, so that a test that fails can be run again as it was.
pub(crate) const SECRET: [u8; 16] = *b"windlass-testkit";

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Default)]
pub(crate) struct Rows {
    pub(crate) tasks: BTreeMap<TaskKey, Arc<TaskRow>>,
    pub(crate) overlays: BTreeMap<TaskKey, Overlay>,
    pub(crate) ended: BTreeMap<TaskKey, Ended>,
    pub(crate) attempts: BTreeMap<TaskKey, Vec<FailedAttempt>>,
    pub(crate) progress: BTreeMap<TaskKey, Progress>,
    pub(crate) steps: BTreeMap<TaskKey, BTreeMap<String, Json>>,
    pub(crate) idempotency: BTreeMap<KeyScope, KeyRow>,
    pub(crate) uniques: BTreeMap<UniqueKey, UniqueRow>,
    pub(crate) events: BTreeMap<u64, (Timestamp, Vec<Event>)>,
}

impl Rows {
    pub(crate) fn insert_attempt(&mut self, key: TaskKey, attempt: FailedAttempt) {
        let attempts = self.attempts.entry(key).or_default();
        attempts.push(attempt);
        if attempts.len() > ATTEMPTS_KEPT {
            attempts.remove(1);
        }
    }

    /// A step has one result: the first.
    pub(crate) fn insert_step(&mut self, key: TaskKey, name: String, result: Json) {
        self.steps.entry(key).or_default().entry(name).or_insert(result);
    }

    /// Deletes a task that has ended, and all that belongs to it.
    pub(crate) fn delete_task(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
        self.ended.remove(&key);
        self.attempts.remove(&key);
        self.progress.remove(&key);
        self.steps.remove(&key);
    }

    pub(crate) fn expired_tasks(&self, now: Timestamp, limit: usize) -> Vec<(TaskKey, Status)> {
        let expired = self.ended.iter().filter(|(_, ended)| ended.keep_until.is_some_and(|until| until <= now));
        expired.map(|(key, ended)| (*key, ended.status)).take(limit).collect()
    }

    pub(crate) fn expired_keys(&self, now: Timestamp, limit: usize) -> Vec<(KeyScope, KeyRow)> {
        let expired = self.idempotency.iter().filter(|(_, row)| row.forget_at <= now);
        expired.map(|(scope, row)| (scope.clone(), *row)).take(limit).collect()
    }

    /// Forgets events before this time whose tasks are gone.
    pub(crate) fn prune_events(&mut self, before: Timestamp) {
        let codec = IdCodec::new(SECRET);
        let Self { events, tasks, .. } = self;
        events.retain(|_, (at, events)| {
            if *at < before {
                events.retain(|event| codec.task_key(event.task_id).is_some_and(|key| tasks.contains_key(&key)));
            }
            !events.is_empty()
        });
    }
}

impl AsRef<Rows> for Rows {
    fn as_ref(&self) -> &Rows {
        self
    }
}

/// Reads the rows of whatever has them.
pub(crate) struct RowArchive<T>(pub(crate) Arc<Mutex<T>>);

#[async_trait]
impl<T: AsRef<Rows> + Send> Archive for RowArchive<T> {
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError> {
        let held = lock(&self.0);
        let rows = held.as_ref();
        let cold = |key: TaskKey| {
            Some(Cold {
                row: TaskRow::clone(rows.tasks.get(&key)?),
                overlay: rows.overlays.get(&key).cloned(),
                ended: rows.ended.get(&key).cloned(),
                progress: rows.progress.get(&key).cloned(),
                failed_attempts: rows.attempts.get(&key).cloned().unwrap_or_default(),
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
        let held = lock(&self.0);
        let keys: Vec<TaskKey> = held.as_ref().tasks.range(..below).rev().map(|(key, _)| *key).take(limit).collect();
        let rest = keys.last().copied().filter(|_| keys.len() == limit);
        Ok((keys, rest))
    }

    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError> {
        let held = lock(&self.0);
        let events = &held.as_ref().events;
        Ok(nos.iter().filter_map(|no| events.get(no)).flat_map(|(_, events)| events.clone()).collect())
    }

    async fn events_from(&self, from: u64, limit: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError> {
        let held = lock(&self.0);
        let events = held.as_ref().events.range(from..).take(limit + 1);
        Ok(events.map(|(no, (_, events))| (*no, events.clone())).collect())
    }

    async fn bytes(&self) -> Option<u64> {
        None
    }
}
