//! Rows to values.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;
use windlass_cluster::backend::BackendError;
use windlass_core::event::Event;
use windlass_core::failure::{EndReason, TaskPolicy};
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::names::{BadName, CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::status::Status;
use windlass_core::task::TaskSpec;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{
    AppliedResult, ClaimEntry, ClaimRow, Ended, KeyRow, KeyScope, Overlay, TaskRow, UniqueRow,
};

use crate::columns::PackedEvent;
use crate::error::damaged;

pub(crate) type Rows<T> = Result<T, BackendError>;

/// A column.
pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Rows<T> {
    row.try_get(column).map_err(|error| damaged("row", error))
}

pub(crate) fn key(row: &Row, column: usize) -> Rows<TaskKey> {
    Ok(TaskKey(get::<i64>(row, column)? as u64))
}

pub(crate) fn number(row: &Row, column: usize) -> Rows<u64> {
    Ok(get::<i64>(row, column)? as u64)
}

pub(crate) fn time(row: &Row, column: usize) -> Rows<Timestamp> {
    Ok(Timestamp::from_micros(get(row, column)?))
}

pub(crate) fn optional_time(row: &Row, column: usize) -> Rows<Option<Timestamp>> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Rows<T> {
    serde_json::from_slice(bytes).map_err(|error| damaged("document", error))
}

/// A document that may be missing.
pub(crate) fn optional<T: DeserializeOwned>(row: &Row, column: usize) -> Rows<Option<T>> {
    get::<Option<&[u8]>>(row, column)?.map(decode).transpose()
}

pub(crate) fn status(code: i16) -> Rows<Status> {
    let status = u8::try_from(code).ok().and_then(Status::from_code);
    status.ok_or_else(|| damaged("status", code))
}

pub(crate) fn json(bytes: &[u8]) -> Rows<Json> {
    let text = std::str::from_utf8(bytes).map_err(|error| damaged("document", error))?;
    Json::from_text(text.to_owned()).map_err(|error| damaged("document", error))
}

fn optional_json(row: &Row, column: usize) -> Rows<Option<Json>> {
    get::<Option<&[u8]>>(row, column)?.map(json).transpose()
}

fn name<T>(made: Result<T, BadName>) -> Rows<T> {
    made.map_err(|error| damaged("name", error))
}

fn text(row: &Row, column: usize) -> Rows<Option<Text>> {
    get::<Option<&str>>(row, column)?.map(|text| name(Text::new(text))).transpose()
}

/// Names that come again and again are made once.
#[derive(Default)]
pub(crate) struct Names {
    queues: HashMap<String, QueueName>,
    types: HashMap<String, TaskType>,
    tenants: HashMap<String, Text>,
    capabilities: HashMap<Vec<u8>, CapabilitySet>,
}

/// More than this many and it is no longer worth it.
const NAMES: usize = 10_000;

fn known<K, O, T: Clone>(map: &mut HashMap<O, T>, key: &K, make: impl FnOnce() -> Rows<T>) -> Rows<T>
where
    K: std::hash::Hash + Eq + ToOwned<Owned = O> + ?Sized,
    O: std::hash::Hash + Eq + std::borrow::Borrow<K>,
{
    if let Some(found) = map.get(key) {
        return Ok(found.clone());
    }
    let made = make()?;
    if map.len() < NAMES {
        map.insert(key.to_owned(), made.clone());
    }
    Ok(made)
}

impl Names {
    pub(crate) fn queue(&mut self, row: &Row, column: usize) -> Rows<QueueName> {
        let text: &str = get(row, column)?;
        known(&mut self.queues, text, || name(QueueName::new(text)))
    }

    pub(crate) fn task_type(&mut self, row: &Row, column: usize) -> Rows<TaskType> {
        let text: &str = get(row, column)?;
        known(&mut self.types, text, || name(TaskType::new(text)))
    }

    pub(crate) fn tenant(&mut self, row: &Row, column: usize) -> Rows<Option<Text>> {
        let text: Option<&str> = get(row, column)?;
        text.map(|text| known(&mut self.tenants, text, || name(Text::new(text)))).transpose()
    }

    pub(crate) fn capabilities(&mut self, row: &Row, column: usize) -> Rows<CapabilitySet> {
        match get::<Option<&[u8]>>(row, column)? {
            Some(bytes) => known(&mut self.capabilities, bytes, || decode(bytes)),
            None => Ok(CapabilitySet::default()),
        }
    }
}

pub(crate) fn priority(row: &Row, column: usize) -> Rows<Priority> {
    Priority::from_level(get::<i16>(row, column)? as u64).map_err(|error| damaged("priority", error))
}

/// A task as submitted; its columns are the first 23.
pub(crate) fn task(row: &Row, names: &mut Names) -> Rows<TaskRow> {
    Ok(TaskRow {
        created_at: time(row, 1)?,
        run_at: time(row, 2)?,
        event_no: number(row, 3)?,
        auto_replayed: get(row, 13)?,
        original_parameters: optional_json(row, 22)?,
        spec: TaskSpec {
            queue: names.queue(row, 9)?,
            task_type: names.task_type(row, 10)?,
            priority: priority(row, 5)?,
            capabilities: names.capabilities(row, 16)?,
            policy: TaskPolicy {
                timeout: Duration::from_micros(number(row, 4)?),
                max_retries: get::<i16>(row, 6)? as u32,
                max_crashes: get::<i16>(row, 7)? as u32,
                dead_letter: get(row, 8)?,
                retry: optional::<RetryPolicy>(row, 19)?.unwrap_or_default(),
            },
            expires_at: optional_time(row, 14)?,
            idempotency_key: text(row, 11)?,
            flow_key: optional(row, 17)?,
            unique: optional(row, 18)?,
            tenant: names.tenant(row, 15)?,
            tags: optional::<BTreeMap<_, _>>(row, 20)?.unwrap_or_default(),
            trace_parent: text(row, 21)?,
            parameters: json(get(row, 12)?)?,
        },
    })
}

/// How a task ended; its columns follow those of the task. `None` if it has not.
pub(crate) fn ended(row: &Row) -> Rows<Option<Ended>> {
    let Some(code) = get::<Option<i16>>(row, 24)? else { return Ok(None) };
    let reason: Option<&str> = get(row, 25)?;
    let applied = match (get::<Option<i64>>(row, 36)?, get::<Option<i64>>(row, 37)?, get::<Option<i16>>(row, 38)?) {
        (Some(claim), Some(digest), Some(code)) => {
            Some(AppliedResult { claim: claim as u64, digest: digest as u64, status: status(code)? })
        }
        _ => None,
    };
    Ok(Some(Ended {
        status: status(code)?,
        reason: reason.and_then(|name| EndReason::ALL.into_iter().find(|reason| reason.as_str() == name)),
        version: get::<i32>(row, 26)? as u32,
        attempt: get::<i32>(row, 27)? as u32,
        retries: get::<i32>(row, 28)? as u32,
        crashes: get::<i32>(row, 29)? as u32,
        timeouts: get::<i16>(row, 30)? as u8,
        ready_at: time(row, 31)?,
        run_at: time(row, 32)?,
        started_at: optional_time(row, 33)?,
        ended_at: time(row, 34)?,
        worker: get::<Option<Uuid>>(row, 35)?.map(WorkerId::from_uuid),
        applied,
        event_nos: numbers(get(row, 39)?),
        keep_until: optional_time(row, 40)?,
        result: optional_json(row, 41)?,
    }))
}

/// The overlay of a live task, after the columns of the end.
pub(crate) fn overlay(row: &Row) -> Rows<Option<Overlay>> {
    optional(row, 42)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
}

pub(crate) fn claim(row: &Row) -> Rows<ClaimRow> {
    let bytes: &[u8] = get(row, 4)?;
    let half = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
    let entries = bytes.chunks_exact(16).map(|bytes| ClaimEntry {
        key: u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()),
        version: half(&bytes[8..12]),
        attempt: half(&bytes[12..]),
    });
    Ok(ClaimRow {
        first: number(row, 0)?,
        at: time(row, 1)?,
        event_no: number(row, 2)?,
        worker: WorkerId::from_uuid(get(row, 3)?),
        entries: entries.collect(),
    })
}

pub(crate) fn idempotency(row: &Row) -> Rows<(KeyScope, KeyRow)> {
    let tenant: &str = get(row, 2)?;
    let scope = KeyScope {
        queue: name(QueueName::new(get(row, 1)?))?,
        tenant: Text::new(tenant).ok(),
        key: name(Text::new(get(row, 3)?))?,
    };
    let row =
        KeyRow { task: key(row, 4)?, created_at: time(row, 5)?, digest: number(row, 6)?, forget_at: time(row, 7)? };
    Ok((scope, row))
}

pub(crate) fn unique_key(row: &Row) -> Rows<UniqueKey> {
    Ok(UniqueKey(get::<Uuid>(row, 0)?.as_u128()))
}

pub(crate) fn unique(row: &Row) -> Rows<(UniqueKey, UniqueRow)> {
    let unique = UniqueRow {
        task: key(row, 1)?,
        created_at: time(row, 2)?,
        held: get(row, 3)?,
        keep_until: optional_time(row, 4)?,
    };
    Ok((unique_key(row)?, unique))
}

/// A row of events: number, time and events.
pub(crate) fn events(row: &Row) -> Rows<(u64, Vec<Event>)> {
    let at = time(row, 1)?;
    let packed: Vec<PackedEvent<'_>> = decode(get(row, 2)?)?;
    let unpacked = packed.into_iter().map(|(task_id, version, actor, change)| Event {
        task_id,
        version,
        at,
        actor,
        change: change.into_owned(),
    });
    Ok((number(row, 0)?, unpacked.collect()))
}
