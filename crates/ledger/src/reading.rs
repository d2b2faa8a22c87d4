//! Reading tasks and events: what the writer has in memory, put together with the rows of the archive.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{TaskId, TaskKey};
use windlass_core::limits;
use windlass_core::store::{Cursor, ListError, Page, StoreError};
use windlass_core::task::Task;

use crate::archive::{self, Cold, Hot};
use crate::batch::{Desk, Order};
use crate::journal::JournalResult;
use crate::store::LedgerStore;

/// How many candidates of a list are read at a time.
const LIST_CHUNK: usize = 256;

impl LedgerStore {
    /// See [`Store::get`](windlass_core::store::Store::get).
    pub(crate) async fn get_tasks(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        let keys: Vec<Option<TaskKey>> = tasks.iter().map(|id| self.0.ids.task_key(*id)).collect();
        // Somebody may ask for the same task twice.
        let known: BTreeSet<TaskKey> = keys.iter().flatten().copied().collect();
        let known: Vec<TaskKey> = known.into_iter().collect();
        let found: BTreeMap<TaskKey, Option<Task>> = known.iter().copied().zip(self.read(&known).await?).collect();
        let task = |key: Option<TaskKey>| found.get(&key?).cloned().flatten();
        // The key alone is not the task: the time in the id must be its time too.
        Ok(keys.into_iter().zip(tasks).map(|(key, id)| task(key).filter(|task| task.id == id)).collect())
    }

    /// See [`Store::list`](windlass_core::store::Store::list).
    pub(crate) async fn list_tasks(
        &self,
        filter: TaskFilter,
        limit: usize,
        after: Option<Cursor>,
    ) -> Result<Page<Task>, ListError> {
        let mut below = match &after {
            Some(cursor) => TaskKey(parse_cursor('t', cursor)?.0),
            None => TaskKey(u64::MAX >> 1),
        };
        let mut items = Vec::new();
        let mut looked_at = 0;
        loop {
            let (keys, rest) = self.candidates(below, &filter).await?;
            looked_at += keys.len();
            for (task, key) in self.read(&keys).await?.into_iter().zip(&keys) {
                let Some(mut task) = task.filter(|task| filter.matches(task)) else { continue };
                // Lists carry the last failure only.
                let failures = &mut task.state.failed_attempts;
                failures.drain(..failures.len().saturating_sub(1));
                items.push(task);
                if items.len() == limit {
                    return Ok(Page { items, next: Some(cursor('t', key.0, 0)) });
                }
            }
            let Some(rest) = rest else { return Ok(Page { items, next: None }) };
            below = rest;
            // A short chunk means that as many rows as may be were looked at for it.
            if looked_at >= limits::SCANNED_ROWS || keys.len() < LIST_CHUNK {
                return Ok(Page { items, next: Some(cursor('t', below.0, 0)) });
            }
        }
    }

    /// See [`Store::history`](windlass_core::store::Store::history).
    pub(crate) async fn history_of(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        let Some(key) = self.0.ids.task_key(task) else { return Ok(Vec::new()) };
        let hot = self.hot(vec![key]).await?.pop().flatten();
        let Some(cold) = self.0.archive.cold(vec![key]).await?.pop().flatten() else { return Ok(Vec::new()) };
        let cold: Cold = cold;
        let mut events = self.0.archive.events_in(archive::event_nos(&cold, hot.as_ref())).await?;
        events.retain(|event| event.task_id == task);
        events.sort_by_key(|event| event.version);
        events.dedup_by_key(|event| event.version);
        Ok(events)
    }

    /// See [`Store::events`](windlass_core::store::Store::events).
    pub(crate) async fn events_after(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        let (from, skip) = match &after {
            Some(cursor) => parse_cursor('e', cursor)?,
            None => (0, 0),
        };
        let mut items = Vec::new();
        let mut position = (from, skip);
        for (no, events) in self.0.archive.events_from(from, limit.max(1)).await? {
            let skip = if no == from { skip } else { 0 };
            for (offset, event) in events.into_iter().enumerate().skip(skip) {
                if items.len() == limit {
                    return Ok(Page { items, next: Some(cursor('e', position.0, position.1)) });
                }
                items.push(event);
                position = (no, offset + 1);
            }
        }
        // A feed has no end: the position is given also when nothing is left for now.
        Ok(Page { items, next: Some(cursor('e', position.0, position.1)) })
    }

    async fn hot(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Hot>>, StoreError> {
        self.call(Order::Read, 1, keys, |desk, keys| {
            let index = &desk.ledger.index;
            Ok(keys.iter().map(|key| Some(Hot { task: index.task(*key)?, lease: index.lease(*key) })).collect())
        })
        .await
    }

    /// Tasks by key. What is between two lives while we look is looked at again.
    async fn read(&self, keys: &[TaskKey]) -> Result<Vec<Option<Task>>, StoreError> {
        let mut tasks: Vec<Option<Task>> = vec![None; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..5 {
            let wanted: Vec<TaskKey> = open.iter().map(|index| keys[*index]).collect();
            let hot = self.hot(wanted.clone()).await?;
            let cold = self.0.archive.cold(wanted).await?;
            let mut again = Vec::new();
            for ((index, hot), cold) in open.into_iter().zip(hot).zip(cold) {
                let Some(cold) = cold else { continue };
                match archive::task(&self.0.ids, keys[index], cold, hot) {
                    Some(task) => tasks[index] = Some(task),
                    None => again.push(index),
                }
            }
            if again.is_empty() {
                return Ok(tasks);
            }
            open = again;
        }
        Err(StoreError::not_applied("a task changes faster than it can be read"))
    }

    async fn candidates(
        &self,
        below: TaskKey,
        filter: &TaskFilter,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError> {
        let live_only = !filter.statuses.is_empty() && filter.statuses.iter().all(|status| !status.is_ended());
        if live_only {
            return self.call(Order::Read, 1, (below, filter.clone()), live_candidates).await;
        }
        self.0.archive.candidates(below, filter.clone(), LIST_CHUNK).await
    }
}

/// Live tasks that may match, from memory.
#[allow(clippy::unnecessary_wraps, reason = "the shape of every call's work")]
fn live_candidates(
    desk: &mut Desk<'_>,
    (below, filter): &(TaskKey, TaskFilter),
) -> JournalResult<(Vec<TaskKey>, Option<TaskKey>)> {
    let index = &desk.ledger.index;
    let mut found = Vec::new();
    for (looked_at, (key, task)) in index.newest_below(*below).enumerate() {
        if looked_at >= limits::SCANNED_ROWS || found.len() >= LIST_CHUNK {
            return Ok((found, Some(TaskKey(key.0 + 1))));
        }
        let lane = index.lanes.key(task.lane);
        let fits = filter.allows_status(task.status)
            && filter.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && filter.task_type.as_ref().is_none_or(|task_type| *task_type == lane.task_type)
            && filter.priority.is_none_or(|priority| priority == lane.priority);
        if fits {
            found.push(key);
        }
    }
    Ok((found, None))
}

fn cursor(prefix: char, number: u64, offset: usize) -> Cursor {
    Cursor(format!("{prefix}{number:x}-{offset:x}"))
}

fn parse_cursor(prefix: char, cursor: &Cursor) -> Result<(u64, usize), ListError> {
    let parse = || {
        let (number, offset) = cursor.0.strip_prefix(prefix)?.split_once('-')?;
        Some((u64::from_str_radix(number, 16).ok()?, usize::from_str_radix(offset, 16).ok()?))
    };
    parse().ok_or(ListError::BadCursor)
}
