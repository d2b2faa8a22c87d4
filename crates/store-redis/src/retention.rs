//! What may be deleted: ended tasks, keys, events and entries of the log.

use std::collections::BTreeMap;

use redis::FromRedisValue;
use windlass_cluster::backend::BackendError;
use windlass_core::ids::{IdCodec, TaskKey};
use windlass_core::keys::UniqueKey;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{KeyRow, KeyScope};

use crate::error::{Damaged, Failure};
use crate::events;
use crate::inner::{Inner, lock};
use crate::keys::{SEGMENT_TASKS, log, queue, queue_tag, unique_tags};
use crate::log::number;
use crate::places;
use crate::rows;

/// Event rows that one slice of pruning looks at; each may hold thousands of events.
const PRUNED_ROWS: usize = 20;

impl Inner {
    /// The first members of a sorted set up to a time.
    async fn due<T: FromRedisValue>(
        &self,
        tag: &str,
        name: &str,
        until: &str,
        limit: usize,
    ) -> Result<Vec<T>, BackendError> {
        self.fresh(tag, || async {
            let mut commands = redis::pipe();
            commands.cmd("GET").arg(self.keys.of(tag, queue::APPLIED));
            let range = commands.cmd("ZRANGEBYSCORE").arg(self.keys.of(tag, name));
            range.arg("-inf").arg(until).arg("LIMIT").arg(0).arg(limit);
            let (applied, found): (Option<String>, Vec<T>) = self.reads.pipeline(&commands).await?;
            Ok((applied.unwrap_or_default(), found))
        })
        .await
    }

    /// Ended tasks whose time is over. While memory is short, the next ones that would be.
    pub(crate) async fn expired_tasks(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TaskKey, Status)>, BackendError> {
        let is_short = self.pressure.must_drop_ended(self.options.history_percent);
        let until = if is_short { "+inf".to_owned() } else { now.as_micros().to_string() };
        let mut tasks: BTreeMap<u64, Vec<TaskKey>> = BTreeMap::new();
        let mut count = 0;
        for (_, queue) in self.places.queues(&self.reads, &self.keys).await? {
            if count == limit {
                break;
            }
            let found: Vec<u64> = self.due(&queue_tag(&queue), queue::KEPT, &until, limit - count).await?;
            count += found.len();
            for task in found {
                tasks.entry(task / SEGMENT_TASKS).or_default().push(TaskKey(task));
            }
        }
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let places = places::look_up(&self.reads, &self.keys, &tasks).await?;
        Ok(places.into_iter().filter_map(|(task, place)| Some((task, place.ended()?))).collect())
    }

    pub(crate) async fn expired_keys(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(KeyScope, KeyRow)>, BackendError> {
        let mut expired = Vec::new();
        for (_, queue) in self.places.queues(&self.reads, &self.keys).await? {
            if expired.len() == limit {
                break;
            }
            let tag = queue_tag(&queue);
            let until = now.as_micros().to_string();
            let fields: Vec<Vec<u8>> = self.due(&tag, queue::KEYS_KEPT, &until, limit - expired.len()).await?;
            if fields.is_empty() {
                continue;
            }
            let mut get = redis::cmd("HMGET");
            get.arg(self.keys.of(&tag, queue::KEYS)).arg(&fields);
            let found: Vec<Option<Vec<u8>>> = self.reads.command(&get).await?;
            for (field, row) in fields.iter().zip(found) {
                if let Some(row) = row {
                    expired.push((rows::key_scope(&queue, field)?, rows::unpack_key(&row)?));
                }
            }
        }
        Ok(expired)
    }

    pub(crate) async fn expired_uniques(&self, now: Timestamp, limit: usize) -> Result<Vec<UniqueKey>, BackendError> {
        let mut expired = Vec::new();
        for tag in unique_tags() {
            if expired.len() == limit {
                break;
            }
            let until = now.as_micros().to_string();
            let found: Vec<Vec<u8>> = self.due(&tag, queue::UNIQUES_KEPT, &until, limit - expired.len()).await?;
            for field in found {
                let bytes: [u8; 16] = field.try_into().map_err(|_| Damaged::new("a unique key has a wrong length"))?;
                expired.push(UniqueKey(u128::from_be_bytes(bytes)));
            }
        }
        Ok(expired)
    }

    /// Deletes events of tasks that are gone. An entry goes when all of its tasks have.
    pub(crate) async fn prune_events(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError> {
        self.prune_log(before).await?;
        let rows = limit.min(PRUNED_ROWS);
        let from = *lock(&self.prune_from);
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys.log(log::EVENTS)).arg(format!("{from}-0")).arg("+").arg("COUNT").arg(rows);
        let found: Vec<(String, Vec<Vec<u8>>)> = self.reads.command(&range).await?;
        let mut more = found.len() == rows;
        let mut next = from;
        let mut dead = Vec::new();
        for (id, fields) in &found {
            let packed = fields.get(1).ok_or_else(|| Damaged::new("an entry without events"))?;
            let (at, events) = events::unpack(packed)?;
            if at >= before {
                more = false;
                break;
            }
            next = number(id)? + 1;
            let ids = IdCodec::new(self.secret);
            let tasks = events.iter().filter_map(|event| ids.task_key(event.task_id));
            if !self.any_is_there(tasks).await? {
                dead.push(id);
            }
        }
        if !dead.is_empty() {
            let mut delete = redis::cmd("XDEL");
            delete.arg(self.keys.log(log::EVENTS)).arg(dead);
            self.writes.command::<i64>(&delete).await?;
        }
        *lock(&self.prune_from) = if more { next } else { 0 };
        Ok(more)
    }

    async fn any_is_there(&self, tasks: impl Iterator<Item = TaskKey>) -> Result<bool, Failure> {
        let mut by_segment: BTreeMap<u64, Vec<TaskKey>> = BTreeMap::new();
        for task in tasks {
            by_segment.entry(task.0 / SEGMENT_TASKS).or_default().push(task);
        }
        if by_segment.is_empty() {
            return Ok(false);
        }
        let places = places::look_up(&self.reads, &self.keys, &by_segment).await?;
        Ok(places.iter().any(|(_, place)| place.queue().is_some()))
    }

    /// Drops entries of the log that are older than `before`, but not the last one.
    async fn prune_log(&self, before: Timestamp) -> Result<(), Failure> {
        let seconds = before.as_micros() / 1_000_000;
        let entries = self.entries("-", "+", PRUNED_ROWS).await?;
        let old = entries.iter().take_while(|logged| logged.at < seconds).count();
        // The last of the page stays, so the last of the log does.
        if let Some(kept) = entries.get(old.min(entries.len().saturating_sub(1)))
            && old > 0
        {
            let mut trim = redis::cmd("XTRIM");
            trim.arg(self.keys.log(log::LOG)).arg("MINID").arg(format!("{}-0", kept.entry.no));
            self.writes.command::<i64>(&trim).await?;
        }
        Ok(())
    }
}
