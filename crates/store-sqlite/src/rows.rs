//! Rows to values and back, for the writer and the readers alike.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use uuid::Uuid;
use windlass_core::failure::{EndReason, TaskPolicy};
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{AppliedResult, Ended, Overlay, TaskRow};

use crate::error::damaged;

type Rows<T> = rusqlite::Result<T>;

pub(crate) fn key(row: &Row<'_>, column: usize) -> Rows<TaskKey> {
    Ok(TaskKey(row.get::<_, i64>(column)? as u64))
}

pub(crate) fn time(row: &Row<'_>, column: usize) -> Rows<Timestamp> {
    Ok(Timestamp::from_micros(row.get(column)?))
}

pub(crate) fn optional_time(row: &Row<'_>, column: usize) -> Rows<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Rows<T> {
    serde_json::from_str(text).map_err(damaged)
}

pub(crate) fn status(code: i64) -> Rows<Status> {
    let status = u8::try_from(code).ok().and_then(Status::from_code);
    status.ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code))
}

pub(crate) fn queue(row: &Row<'_>, column: usize) -> Rows<QueueName> {
    QueueName::new(row.get_ref(column)?.as_str()?).map_err(damaged)
}

pub(crate) fn task_type(row: &Row<'_>, column: usize) -> Rows<TaskType> {
    TaskType::new(row.get_ref(column)?.as_str()?).map_err(damaged)
}

pub(crate) fn priority(row: &Row<'_>, column: usize) -> Rows<Priority> {
    Priority::from_level(row.get::<_, i64>(column)? as u64).map_err(damaged)
}

pub(crate) fn capabilities(row: &Row<'_>, column: usize) -> Rows<CapabilitySet> {
    match row.get_ref(column)?.as_str_or_null()? {
        Some(text) => decode(text),
        None => Ok(CapabilitySet::default()),
    }
}

pub(crate) fn text(row: &Row<'_>, column: usize) -> Rows<Option<Text>> {
    row.get_ref(column)?.as_str_or_null()?.map(Text::new).transpose().map_err(damaged)
}

fn json(row: &Row<'_>, column: usize) -> Rows<Option<Json>> {
    row.get::<_, Option<String>>(column)?.map(Json::from_text).transpose().map_err(damaged)
}

pub(crate) fn retry(row: &Row<'_>, column: usize) -> Rows<RetryPolicy> {
    match row.get_ref(column)?.as_str_or_null()? {
        Some(text) => decode(text),
        None => Ok(RetryPolicy::default()),
    }
}

/// A document that may be missing.
pub(crate) fn optional<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Rows<Option<T>> {
    row.get_ref(column)?.as_str_or_null()?.map(decode).transpose()
}

const SELECT_TASK: &str = "SELECT queue, task_type, priority, created_at, run_at, event_no, timeout_us, max_retries,
    max_crashes, dead_letter, capabilities, expires_at, retry, idempotency_key, tenant, tags, trace_parent,
    original_parameters, parameters, flow_key, unique_key, auto_replayed FROM tasks WHERE key = ?1";

/// A task as submitted.
pub(crate) fn task(connection: &Connection, key: TaskKey) -> Rows<Option<TaskRow>> {
    let mut statement = connection.prepare_cached(SELECT_TASK)?;
    statement
        .query_row(params![key.0 as i64], |row| {
            let tags = row.get_ref(15)?.as_str_or_null()?.map_or_else(|| Ok(BTreeMap::new()), decode)?;
            Ok(TaskRow {
                created_at: time(row, 3)?,
                run_at: time(row, 4)?,
                event_no: row.get::<_, i64>(5)? as u64,
                original_parameters: json(row, 17)?,
                auto_replayed: row.get(21)?,
                spec: TaskSpec {
                    queue: queue(row, 0)?,
                    task_type: task_type(row, 1)?,
                    priority: priority(row, 2)?,
                    capabilities: capabilities(row, 10)?,
                    policy: TaskPolicy {
                        timeout: Duration::from_micros(row.get::<_, i64>(6)? as u64),
                        max_retries: row.get(7)?,
                        max_crashes: row.get(8)?,
                        dead_letter: row.get(9)?,
                        retry: retry(row, 12)?,
                    },
                    expires_at: optional_time(row, 11)?,
                    idempotency_key: text(row, 13)?,
                    flow_key: optional(row, 19)?,
                    unique: optional(row, 20)?,
                    tenant: text(row, 14)?,
                    tags,
                    trace_parent: text(row, 16)?,
                    parameters: json(row, 18)?.unwrap_or_else(Json::null),
                },
            })
        })
        .optional()
}

pub(crate) fn overlay(connection: &Connection, key: TaskKey) -> Rows<Option<Overlay>> {
    decoded(connection, "SELECT overlay FROM overlays WHERE key = ?1", key)
}

pub(crate) fn progress(connection: &Connection, key: TaskKey) -> Rows<Option<Progress>> {
    decoded(connection, "SELECT progress FROM progress WHERE key = ?1", key)
}

fn decoded<T: DeserializeOwned>(connection: &Connection, sql: &str, key: TaskKey) -> Rows<Option<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row(params![key.0 as i64], |row| decode(row.get_ref(0)?.as_str()?)).optional()
}

pub(crate) fn attempts(connection: &Connection, key: TaskKey) -> Rows<Vec<FailedAttempt>> {
    let mut statement = connection.prepare_cached("SELECT failure FROM attempts WHERE key = ?1 ORDER BY attempt")?;
    let rows = statement.query_map(params![key.0 as i64], |row| decode(row.get_ref(0)?.as_str()?))?;
    rows.collect()
}

pub(crate) fn steps(connection: &Connection, key: TaskKey) -> Rows<BTreeMap<String, Json>> {
    let mut statement = connection.prepare_cached("SELECT name, result FROM steps WHERE key = ?1")?;
    let rows = statement
        .query_map(params![key.0 as i64], |row| Ok((row.get(0)?, json(row, 1)?.unwrap_or_else(Json::null))))?;
    rows.collect()
}

const SELECT_ENDED: &str = "SELECT status, reason, version, attempt, retries, crashes, timeouts, ready_at, run_at,
    started_at, ended_at, worker, applied_claim, applied_digest, applied_status, event_nos, keep_until, result
    FROM ended WHERE key = ?1";

pub(crate) fn ended(connection: &Connection, key: TaskKey) -> Rows<Option<Ended>> {
    let mut statement = connection.prepare_cached(SELECT_ENDED)?;
    statement
        .query_row(params![key.0 as i64], |row| {
            let reason = row.get_ref(1)?.as_str_or_null()?;
            let reason = reason.and_then(|name| EndReason::ALL.into_iter().find(|reason| reason.as_str() == name));
            let applied = match (row.get::<_, Option<i64>>(12)?, row.get::<_, Option<i64>>(13)?) {
                (Some(claim), Some(digest)) => {
                    Some(AppliedResult { claim: claim as u64, digest: digest as u64, status: status(row.get(14)?)? })
                }
                _ => None,
            };
            Ok(Ended {
                status: status(row.get(0)?)?,
                reason,
                version: row.get(2)?,
                attempt: row.get(3)?,
                retries: row.get(4)?,
                crashes: row.get(5)?,
                timeouts: row.get(6)?,
                ready_at: time(row, 7)?,
                run_at: time(row, 8)?,
                started_at: optional_time(row, 9)?,
                ended_at: time(row, 10)?,
                worker: worker(row, 11)?,
                applied,
                event_nos: numbers(row.get_ref(15)?.as_blob()?),
                keep_until: optional_time(row, 16)?,
                result: json(row, 17)?,
            })
        })
        .optional()
}

fn worker(row: &Row<'_>, column: usize) -> Rows<Option<WorkerId>> {
    let bytes = row.get_ref(column)?.as_blob_or_null()?;
    bytes.map(|bytes| Uuid::from_slice(bytes).map(WorkerId::from_uuid)).transpose().map_err(damaged)
}

/// Event row numbers, eight bytes each.
pub(crate) fn blob(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(blob: &[u8]) -> Vec<u64> {
    blob.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
}
