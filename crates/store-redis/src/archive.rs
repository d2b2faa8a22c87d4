//! What people look at: tasks as they are stored, lists of them, events.

use std::collections::HashMap;

use async_trait::async_trait;
use windlass_cluster::backend::BackendError;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::TaskKey;
use windlass_core::limits;
use windlass_core::status::Status;
use windlass_core::store::StoreError;
use windlass_ledger::archive::{Archive, Cold};

use crate::RedisBackend;
use crate::error::{Damaged, Failure};
use crate::events;
use crate::inner::Inner;
use crate::keys::{SEGMENT_TASKS, log};
use crate::log::number;
use crate::places;

/// Segments of the directory that one list call looks at.
const SEGMENTS: usize = limits::SCANNED_ROWS / SEGMENT_TASKS as usize + 1;

type Entries = Vec<(String, Vec<Vec<u8>>)>;

fn in_read(error: impl Into<BackendError>) -> StoreError {
    StoreError::not_applied(error.into().reason)
}

fn unpack(fields: &[Vec<u8>]) -> Result<Vec<Event>, Damaged> {
    let packed = fields.get(1).ok_or_else(|| Damaged::new("an entry without events"))?;
    Ok(events::unpack(packed)?.1)
}

type Candidates = (Vec<TaskKey>, Option<TaskKey>);

impl Inner {
    /// Keys that may match, by what the directory says; the rest is looked at by the filter itself.
    async fn candidates(&self, below: TaskKey, filter: &TaskFilter, limit: usize) -> Result<Candidates, Failure> {
        if filter.statuses == [Status::DeadLetter] {
            return self.dead_candidates(below, limit).await;
        }
        let queue = match &filter.queue {
            Some(queue) => {
                let queues = self.places.queues(&self.reads, &self.keys).await?;
                match queues.into_iter().find(|(_, name)| name == queue) {
                    Some((number, _)) => Some(number),
                    None => return Ok((Vec::new(), None)),
                }
            }
            None => None,
        };
        let last = below.0.saturating_sub(1) / SEGMENT_TASKS;
        let mut range = redis::cmd("ZREVRANGEBYSCORE");
        range.arg(self.keys.log(log::SEGMENTS)).arg(last).arg("-inf").arg("LIMIT").arg(0).arg(SEGMENTS);
        let numbers: Vec<u64> = self.reads.command(&range).await?;
        if numbers.is_empty() {
            return Ok((Vec::new(), None));
        }
        let mut commands = redis::pipe();
        for segment in &numbers {
            commands.cmd("GET").arg(self.keys.segment(*segment));
        }
        let segments: Vec<Option<Vec<u8>>> = self.reads.pipeline(&commands).await?;
        let mut keys = Vec::new();
        for (segment, bytes) in numbers.iter().zip(segments) {
            let bytes = bytes.unwrap_or_default();
            for (offset, place) in places::segment(&bytes).enumerate().rev() {
                let key = TaskKey(segment * SEGMENT_TASKS + offset as u64);
                let Some(own_queue) = place.queue().filter(|_| key < below) else { continue };
                // A live task's status is known to memory only.
                let may_match = queue.is_none_or(|queue| queue == own_queue)
                    && place.ended().is_none_or(|status| filter.allows_status(status));
                if !may_match {
                    continue;
                }
                keys.push(key);
                if keys.len() == limit {
                    return Ok((keys, Some(key)));
                }
            }
        }
        let rest = numbers.last().filter(|first| **first > 0 && numbers.len() == SEGMENTS);
        Ok((keys, rest.map(|first| TaskKey(first * SEGMENT_TASKS))))
    }

    async fn dead_candidates(&self, below: TaskKey, limit: usize) -> Result<Candidates, Failure> {
        let mut range = redis::cmd("ZREVRANGEBYSCORE");
        range.arg(self.keys.log(log::DEAD)).arg(format!("({}", below.0)).arg("-inf").arg("LIMIT").arg(0).arg(limit);
        let found: Vec<u64> = self.reads.command(&range).await?;
        let rest = found.last().copied().filter(|_| found.len() == limit);
        Ok((found.into_iter().map(TaskKey).collect(), rest.map(TaskKey)))
    }
}

#[async_trait]
impl Archive for RedisBackend {
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError> {
        let records = self.inner.records(keys.iter().copied(), true).await.map_err(in_read)?;
        let mut by_key: HashMap<TaskKey, _> = records.into_iter().collect();
        let cold = |key: &TaskKey| {
            by_key.remove(key).map(|record| Cold {
                row: record.row,
                overlay: record.overlay,
                ended: record.ended,
                progress: record.progress,
                failed_attempts: record.attempts,
            })
        };
        Ok(keys.iter().map(cold).collect())
    }

    async fn candidates(
        &self,
        below: TaskKey,
        filter: TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError> {
        self.inner.candidates(below, &filter, limit).await.map_err(in_read)
    }

    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError> {
        if nos.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.inner.keys.log(log::EVENTS);
        let mut commands = redis::pipe();
        for no in nos {
            let id = format!("{no}-0");
            commands.cmd("XRANGE").arg(&key).arg(&id).arg(&id);
        }
        let found: Vec<Entries> = self.inner.reads.pipeline(&commands).await.map_err(in_read)?;
        let mut events = Vec::new();
        for (_, fields) in found.iter().flatten() {
            events.extend(unpack(fields).map_err(in_read)?);
        }
        Ok(events)
    }

    async fn events_from(&self, from: u64, rows: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError> {
        let mut range = redis::cmd("XRANGE");
        range.arg(self.inner.keys.log(log::EVENTS)).arg(format!("{from}-0")).arg("+").arg("COUNT").arg(rows + 1);
        let found: Entries = self.inner.reads.command(&range).await.map_err(in_read)?;
        let row = |(id, fields): &(String, Vec<Vec<u8>>)| {
            Ok((number(id).map_err(in_read)?, unpack(fields).map_err(in_read)?))
        };
        found.iter().map(row).collect()
    }

    async fn bytes(&self) -> Option<u64> {
        self.inner.pressure.used()
    }
}
