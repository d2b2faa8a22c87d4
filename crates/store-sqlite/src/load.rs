//! What memory holds, read from the file when the store opens. Only segments that may have
//! live tasks are looked at, however much history there is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::RuleBook;
use windlass_core::ids::TaskKey;
use windlass_core::lane::LaneKey;
use windlass_core::retry::grown_timeout;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::time::{Clock, Timestamp};
use windlass_ledger::journal::{CancelledRow, ClaimRow, LiveRow, Recovered, SEGMENT_KEYS, WorkerRow};
use windlass_ledger::ledger::Ledger;
use windlass_ledger::recover::Recovery;

use crate::error::OpenError;
use crate::rows;

/// The secret of ids and tokens, made when the file is.
pub(crate) fn secret(connection: &Connection) -> Result<[u8; 16], OpenError> {
    let sql = "SELECT value FROM secrets WHERE name = 'ids'";
    let stored: Option<Vec<u8>> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    if let Some(stored) = stored {
        return stored.try_into().map_err(|_| OpenError::Damaged("the secret of ids has a wrong length".into()));
    }
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| OpenError::Damaged(format!("no randomness: {error}")))?;
    connection.execute("INSERT INTO secrets (name, value) VALUES ('ids', ?1)", params![secret])?;
    Ok(secret)
}

/// The latest time that was written: the clock never shows an earlier one.
pub(crate) fn latest_time(connection: &Connection) -> Result<Timestamp, OpenError> {
    let sql = "SELECT at FROM events ORDER BY no DESC LIMIT 1";
    let at: Option<i64> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(at.map_or(Timestamp::EPOCH, Timestamp::from_micros))
}

/// Builds the ledger from the file.
pub(crate) fn load(
    connection: &Connection,
    ids: [u8; 16],
    clock: Arc<dyn Clock>,
    lease: Duration,
) -> Result<Ledger, OpenError> {
    let claims = claims(connection)?;
    let settings = settings(connection)?;
    let (timeouts, cancelled) = running(connection, &claims, &settings)?;
    let found = Recovered {
        secret: ids,
        next_task: number(connection, "next_task")?,
        next_claim: number(connection, "next_claim")?,
        next_event: number(connection, "next_event")?,
        timeouts,
        cancelled,
        claims,
        workers: workers(connection)?,
        breakers: breakers(connection)?,
        settings,
        ended: ended_counts(connection)?,
        dead_letters: dead_letters(connection)?,
    };
    let current_segment = (found.next_task / SEGMENT_KEYS) as i64;
    let mut recovery = Recovery::new(clock, found);
    for segment in segments(connection)? {
        let live = live_tasks(connection, segment, &mut recovery)?;
        if live == 0 && segment < current_segment {
            connection.execute("DELETE FROM segments WHERE segment = ?1", params![segment])?;
        }
    }
    Ok(recovery.finish(lease))
}

/// Sequences start at one: a zero would look like nothing.
fn number(connection: &Connection, name: &str) -> Result<u64, OpenError> {
    let sql = "SELECT value FROM numbers WHERE name = ?1";
    let value: Option<i64> = connection.query_row(sql, params![name], |row| row.get(0)).optional()?;
    Ok(value.map_or(1, |value| value as u64))
}

fn segments(connection: &Connection) -> Result<Vec<i64>, OpenError> {
    let mut statement = connection.prepare("SELECT segment FROM segments ORDER BY segment")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Adds the live tasks of a segment and says how many there are.
fn live_tasks(connection: &Connection, segment: i64, recovery: &mut Recovery) -> Result<usize, OpenError> {
    let first = segment * SEGMENT_KEYS as i64;
    let mut statement = connection.prepare_cached(
        "SELECT t.key, t.queue, t.task_type, t.capabilities, t.priority, t.created_at, t.run_at, t.expires_at,
            t.tenant, t.flow_key, t.unique_key IS NOT NULL, o.overlay
        FROM tasks t LEFT JOIN ended e ON e.key = t.key LEFT JOIN overlays o ON o.key = t.key
        WHERE t.key BETWEEN ?1 AND ?2 AND e.key IS NULL ORDER BY t.key",
    )?;
    let mut found = statement.query(params![first, first + SEGMENT_KEYS as i64 - 1])?;
    let mut live = 0;
    while let Some(row) = found.next()? {
        live += 1;
        let queue = rows::queue(row, 1)?;
        let tenant = if recovery.is_fair(&queue) { rows::text(row, 8)? } else { None };
        recovery.add(&LiveRow {
            key: rows::key(row, 0)?,
            lane: LaneKey {
                queue,
                task_type: rows::task_type(row, 2)?,
                capabilities: rows::capabilities(row, 3)?,
                priority: rows::priority(row, 4)?,
                tenant,
            },
            created_at: rows::time(row, 5)?,
            run_at: rows::time(row, 6)?,
            expires_at: rows::optional_time(row, 7)?,
            flow_key: rows::optional(row, 9)?,
            unique: row.get(10)?,
            overlay: rows::optional(row, 11)?,
        });
    }
    Ok(live)
}

fn claims(connection: &Connection) -> Result<Vec<ClaimRow>, OpenError> {
    let mut statement = connection.prepare("SELECT claim FROM claims ORDER BY first")?;
    let rows = statement.query_map([], |row| rows::decode(row.get_ref(0)?.as_str()?))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

type Running = (BTreeMap<u64, Duration>, BTreeMap<u64, CancelledRow>);

/// How long the attempts under these claims may take, and which of their tasks were cancelled.
fn running(connection: &Connection, claims: &[ClaimRow], settings: &Settings) -> Result<Running, OpenError> {
    let (mut timeouts, mut cancelled) = Running::default();
    for entry in claims.iter().flat_map(|claim| &claim.entries) {
        let key = TaskKey(entry.key);
        let Some(task) = rows::task(connection, key)? else { continue };
        if let Some(ended) = rows::ended(connection, key)? {
            if ended.status == Status::Cancelled {
                let row = CancelledRow {
                    created_at: task.created_at,
                    version: ended.version,
                    lane: LaneKey::of(&task.spec, settings),
                    flow_key: task.spec.flow_key,
                };
                cancelled.insert(entry.key, row);
            }
            continue;
        }
        let growths = rows::overlay(connection, key)?.map_or(0, |overlay| overlay.timeouts);
        let policy = &task.spec.policy;
        let timeout = grown_timeout(policy.timeout, policy.retry.timeout_growth, growths.into());
        timeouts.insert(entry.key, timeout);
    }
    Ok((timeouts, cancelled))
}

fn workers(connection: &Connection) -> Result<Vec<WorkerRow>, OpenError> {
    let mut statement = connection.prepare("SELECT worker FROM workers")?;
    let rows = statement.query_map([], |row| rows::decode(row.get_ref(0)?.as_str()?))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn settings(connection: &Connection) -> Result<Settings, OpenError> {
    let mut settings = Settings::default();
    let mut statement = connection.prepare("SELECT queue, settings FROM queue_settings")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        settings.queues.insert(rows::queue(row, 0)?, rows::decode(&row.get::<_, String>(1)?)?);
    }
    let mut statement = connection.prepare("SELECT task_type, settings FROM type_settings")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        settings.types.insert(rows::task_type(row, 0)?, rows::decode(&row.get::<_, String>(1)?)?);
    }
    let sql = "SELECT document FROM documents WHERE name = 'error_rules'";
    let rules: Option<String> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    if let Some(rules) = rules {
        let damaged = |error| OpenError::Damaged(format!("the error rules cannot be used: {error}"));
        settings.error_rules = Arc::new(RuleBook::compile(rows::decode(&rules)?).map_err(damaged)?);
    }
    Ok(settings)
}

fn breakers(connection: &Connection) -> Result<Vec<(Scope, Record)>, OpenError> {
    let mut statement = connection.prepare("SELECT scope, record FROM breakers")?;
    let rows = statement.query_map([], |row| {
        Ok((rows::decode(row.get_ref(0)?.as_str()?)?, rows::decode(row.get_ref(1)?.as_str()?)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn ended_counts(connection: &Connection) -> Result<[u64; 8], OpenError> {
    let mut counts = [0; 8];
    let mut statement = connection.prepare("SELECT status, count FROM ended_counts")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let status = rows::status(row.get(0)?)?;
        counts[usize::from(status.code())] = row.get::<_, i64>(1)?.max(0) as u64;
    }
    Ok(counts)
}

type DeadLetters = BTreeMap<(windlass_core::names::QueueName, windlass_core::names::TaskType), u64>;

fn dead_letters(connection: &Connection) -> Result<DeadLetters, OpenError> {
    let mut statement = connection.prepare(
        "SELECT t.queue, t.task_type, count(*) FROM ended e JOIN tasks t ON t.key = e.key
        WHERE e.status = 7 GROUP BY t.queue, t.task_type",
    )?;
    let rows = statement
        .query_map([], |row| Ok(((rows::queue(row, 0)?, rows::task_type(row, 1)?), row.get::<_, i64>(2)? as u64)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
