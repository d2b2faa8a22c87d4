//! What nobody needs any more: deleted in slices, from where the last slice ended.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio_postgres::types::Type;
use windlass_cluster::backend::BackendError;
use windlass_core::ids::IdCodec;
use windlass_core::time::Timestamp;

use crate::backend::PostgresBackend;
use crate::columns::{PackedEvent, encode};
use crate::pool::Param;
use crate::rows::{self, Rows, get};

/// Event rows that one slice looks at; each may hold thousands of events.
const PRUNED_ROWS: usize = 20;
/// Entries of the log that one slice deletes.
const PRUNED_ENTRIES: i64 = 2_000;
/// Entries that are kept whatever their age: a node that is this far behind catches up without loading everything.
const ENTRIES_KEPT: i64 = 1_000;
/// Entries that are kept whatever their number.
const ENTRY_AGE_US: i64 = 10 * 60 * 1_000_000;

/// Where the next look begins.
#[derive(Default)]
pub(crate) struct PruneFrom {
    events: AtomicI64,
    log: AtomicI64,
    /// Ended tasks were looked through up to this time.
    pub(crate) expired: AtomicI64,
}

impl PostgresBackend {
    /// One slice of old events and old entries of the log; true if there is more.
    pub(crate) async fn prune(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError> {
        let more_log = self.prune_log().await?;
        let more_events = self.prune_event_rows(before, limit.clamp(1, PRUNED_ROWS)).await?;
        Ok(more_log || more_events)
    }

    async fn prune_log(&self) -> Result<bool, BackendError> {
        let from = self.prune_from.log.load(Ordering::Relaxed);
        let params: Vec<Param<'_>> = vec![
            (&from, Type::INT8),
            (&ENTRIES_KEPT, Type::INT8),
            (&ENTRY_AGE_US, Type::INT8),
            (&PRUNED_ENTRIES, Type::INT8),
        ];
        let rows = self.one((&self.sql.prune_log, params)).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        if let Some(last) = get::<Option<i64>>(row, 1)? {
            self.prune_from.log.store(last, Ordering::Relaxed);
        }
        Ok(get::<i64>(row, 0)? == PRUNED_ENTRIES)
    }

    async fn prune_event_rows(&self, before: Timestamp, limit: usize) -> Result<bool, BackendError> {
        let from = self.prune_from.events.load(Ordering::Relaxed);
        let count = limit as i64;
        let found = self.one((&self.sql.events_from, vec![(&from, Type::INT8), (&count, Type::INT8)])).await?;
        let mut more = found.len() == limit;
        let mut old: Vec<(i64, Vec<PackedEvent<'static>>)> = Vec::new();
        for row in &found {
            if rows::time(row, 1)? >= before {
                more = false;
                break;
            }
            old.push((get(row, 0)?, rows::decode(get(row, 2)?)?));
        }
        self.delete_events_of_gone_tasks(&old).await?;
        let next = old.last().map_or(0, |(no, _)| no + 1);
        self.prune_from.events.store(if more { next } else { 0 }, Ordering::Relaxed);
        Ok(more)
    }

    async fn delete_events_of_gone_tasks(&self, old: &[(i64, Vec<PackedEvent<'_>>)]) -> Result<(), BackendError> {
        let ids = IdCodec::new(self.secret);
        let keys: HashSet<i64> = old
            .iter()
            .flat_map(|(_, events)| events)
            .filter_map(|event| ids.task_key(event.0))
            .map(|key| key.0 as i64)
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        let keys: Vec<i64> = keys.into_iter().collect();
        let known = self.one((&self.sql.known_tasks, vec![(&keys, Type::INT8_ARRAY)])).await?;
        let known: HashSet<i64> = known.iter().map(|row| get(row, 0)).collect::<Rows<_>>()?;
        let (mut deleted, mut changed, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (no, events) in old {
            let still: Vec<&PackedEvent<'_>> = events
                .iter()
                .filter(|event| ids.task_key(event.0).is_some_and(|key| known.contains(&(key.0 as i64))))
                .collect();
            if still.is_empty() {
                deleted.push(*no);
            } else if still.len() < events.len() {
                changed.push(*no);
                kept.push(encode(&still)?);
            }
        }
        if !deleted.is_empty() {
            self.one((&self.sql.delete_events, vec![(&deleted, Type::INT8_ARRAY)])).await?;
        }
        if !changed.is_empty() {
            let params: Vec<Param<'_>> = vec![(&changed, Type::INT8_ARRAY), (&kept, Type::BYTEA_ARRAY)];
            self.one((&self.sql.update_events, params)).await?;
        }
        Ok(())
    }
}
