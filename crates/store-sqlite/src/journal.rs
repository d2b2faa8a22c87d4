//! The writer's side of the file: rows inside the one open transaction.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Params, params};
use serde::Serialize;
use windlass_core::actor::Actor;
use windlass_core::breaker::{Record, Scope};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::{Change, Committed, SCHEMA};
use windlass_core::ids::{IdCodec, TaskId, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::UniqueKey;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::{QueueName, TaskType, Text};
use windlass_core::retry::RetryPolicy;
use windlass_core::settings::{QueueSettings, TypeSettings};
use windlass_core::status::Status;
use windlass_core::task::{FailedAttempt, Progress, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{
    ClaimRow, Ended, Fault, Journal, JournalError, JournalResult, KeyRow, KeyScope, Overlay, Sequence, SubmitTimes,
    TaskRow, UniqueRow, WorkerRow,
};

use crate::error::{in_commit, in_transaction};
use crate::rows;

/// Event rows that one slice of pruning looks at; each may hold thousands of events.
const PRUNED_ROWS: usize = 20;

/// The writer's connection.
pub(crate) struct SqliteJournal {
    connection: Connection,
    ids: IdCodec,
    plain_retry: RetryPolicy,
    in_transaction: bool,
    /// Where the next look through old events begins.
    prune_from: i64,
}

/// An event as it is packed: its time is the row's.
pub(crate) type PackedEvent<'a> = (TaskId, u32, Actor, std::borrow::Cow<'a, Change>);

fn encode<T: Serialize + ?Sized>(value: &T) -> JournalResult<String> {
    serde_json::to_string(value).map_err(|error| JournalError { reason: error.to_string(), fault: Fault::Item })
}

fn sequence_name(sequence: Sequence) -> &'static str {
    match sequence {
        Sequence::Task => "next_task",
        Sequence::Claim => "next_claim",
        Sequence::Event => "next_event",
    }
}

impl SqliteJournal {
    pub(crate) fn new(connection: Connection, ids: IdCodec) -> Self {
        Self { connection, ids, plain_retry: RetryPolicy::default(), in_transaction: false, prune_from: 0 }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn execute(&self, sql: &str, params: impl Params) -> JournalResult<()> {
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        statement.execute(params).map_err(in_transaction)?;
        Ok(())
    }

    /// Writes a document under a key, or deletes it.
    fn put<T: Serialize>(
        &self,
        put: &str,
        delete: &str,
        key: impl rusqlite::ToSql,
        value: Option<&T>,
    ) -> JournalResult<()> {
        match value {
            Some(value) => self.execute(put, params![key, encode(value)?]),
            None => self.execute(delete, params![key]),
        }
    }

    fn retry(&self, retry: &RetryPolicy) -> JournalResult<Option<String>> {
        if *retry == self.plain_retry { Ok(None) } else { encode(retry).map(Some) }
    }
}

fn encoded_unless_empty<T: Serialize>(value: &T, empty: bool) -> JournalResult<Option<String>> {
    if empty { Ok(None) } else { encode(value).map(Some) }
}

fn encoded_if_any<T: Serialize>(value: Option<&T>) -> JournalResult<Option<String>> {
    value.map(encode).transpose()
}

impl Journal for SqliteJournal {
    fn begin(&mut self) -> JournalResult<()> {
        if !self.in_transaction {
            self.execute("BEGIN IMMEDIATE", [])?;
            self.in_transaction = true;
        }
        Ok(())
    }

    fn commit(&mut self) -> JournalResult<()> {
        let mut statement = self.connection.prepare_cached("COMMIT").map_err(in_transaction)?;
        statement.execute([]).map_err(in_commit)?;
        self.in_transaction = false;
        Ok(())
    }

    fn roll_back(&mut self) {
        if self.in_transaction && !self.connection.is_autocommit() {
            // SQLite may have rolled back by itself; then there is nothing left to do.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.in_transaction = false;
    }

    fn task(&mut self, key: TaskKey) -> JournalResult<Option<TaskRow>> {
        rows::task(&self.connection, key).map_err(in_transaction)
    }

    fn overlay(&mut self, key: TaskKey) -> JournalResult<Option<Overlay>> {
        rows::overlay(&self.connection, key).map_err(in_transaction)
    }

    fn ended(&mut self, key: TaskKey) -> JournalResult<Option<Ended>> {
        rows::ended(&self.connection, key).map_err(in_transaction)
    }

    fn idempotency(&mut self, scope: &KeyScope) -> JournalResult<Option<KeyRow>> {
        let sql =
            "SELECT task, created_at, digest, forget_at FROM idempotency WHERE queue = ?1 AND tenant = ?2 AND key = ?3";
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        let tenant = scope.tenant.as_ref().map_or("", Text::as_str);
        statement
            .query_row(params![scope.queue.as_str(), tenant, scope.key.as_str()], |row| {
                Ok(KeyRow {
                    task: rows::key(row, 0)?,
                    created_at: rows::time(row, 1)?,
                    digest: row.get::<_, i64>(2)? as u64,
                    forget_at: rows::time(row, 3)?,
                })
            })
            .optional()
            .map_err(in_transaction)
    }

    fn unique(&mut self, key: UniqueKey) -> JournalResult<Option<UniqueRow>> {
        let sql = "SELECT task, created_at, held, keep_until FROM unique_keys WHERE key = ?1";
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        statement
            .query_row(params![key.0.to_be_bytes()], |row| {
                Ok(UniqueRow {
                    task: rows::key(row, 0)?,
                    created_at: rows::time(row, 1)?,
                    held: row.get(2)?,
                    keep_until: rows::optional_time(row, 3)?,
                })
            })
            .optional()
            .map_err(in_transaction)
    }

    fn steps(&mut self, key: TaskKey) -> JournalResult<BTreeMap<String, Json>> {
        rows::steps(&self.connection, key).map_err(in_transaction)
    }

    fn reserve(&mut self, sequence: Sequence, ceiling: u64) -> JournalResult<()> {
        let sql = "INSERT OR REPLACE INTO numbers (name, value) VALUES (?1, ?2)";
        self.execute(sql, params![sequence_name(sequence), ceiling as i64])
    }

    fn open_segment(&mut self, segment: u64) -> JournalResult<()> {
        self.execute("INSERT OR IGNORE INTO segments (segment) VALUES (?1)", params![segment as i64])
    }

    fn close_segment(&mut self, segment: u64) -> JournalResult<()> {
        self.execute("DELETE FROM segments WHERE segment = ?1", params![segment as i64])
    }

    fn insert_task(&mut self, key: TaskKey, spec: &TaskSpec, times: SubmitTimes) -> JournalResult<()> {
        let sql = "INSERT INTO tasks (key, queue, task_type, priority, created_at, run_at, event_no, timeout_us,
            max_retries, max_crashes, dead_letter, capabilities, expires_at, retry, idempotency_key, tenant, tags,
            trace_parent, parameters, flow_key, unique_key)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)";
        self.execute(
            sql,
            params![
                key.0 as i64,
                spec.queue.as_str(),
                spec.task_type.as_str(),
                spec.priority.level(),
                times.created_at.as_micros(),
                times.run_at.as_micros(),
                times.event_no as i64,
                spec.policy.timeout.as_micros() as i64,
                spec.policy.max_retries,
                spec.policy.max_crashes,
                spec.policy.dead_letter,
                encoded_unless_empty(&spec.capabilities, spec.capabilities.is_empty())?,
                spec.expires_at.map(Timestamp::as_micros),
                self.retry(&spec.policy.retry)?,
                spec.idempotency_key.as_ref().map(Text::as_str),
                spec.tenant.as_ref().map(Text::as_str),
                encoded_unless_empty(&spec.tags, spec.tags.is_empty())?,
                spec.trace_parent.as_ref().map(Text::as_str),
                spec.parameters.as_str(),
                encoded_if_any(spec.flow_key.as_ref())?,
                encoded_if_any(spec.unique.as_ref())?,
            ],
        )
    }

    fn update_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        let sql = "UPDATE tasks SET priority = ?2, expires_at = ?3, tags = ?4, original_parameters = ?5,
            parameters = ?6, auto_replayed = ?7 WHERE key = ?1";
        self.execute(
            sql,
            params![
                key.0 as i64,
                row.spec.priority.level(),
                row.spec.expires_at.map(Timestamp::as_micros),
                encoded_unless_empty(&row.spec.tags, row.spec.tags.is_empty())?,
                row.original_parameters.as_ref().map(Json::as_str),
                row.spec.parameters.as_str(),
                row.auto_replayed,
            ],
        )
    }

    fn replace_task(&mut self, key: TaskKey, row: &TaskRow) -> JournalResult<()> {
        self.update_task(key, row)?;
        let sql = "UPDATE tasks SET timeout_us = ?2, max_retries = ?3, max_crashes = ?4, dead_letter = ?5, retry = ?6,
            trace_parent = ?7, task_type = ?8, capabilities = ?9, flow_key = ?10, unique_key = ?11 WHERE key = ?1";
        let policy = &row.spec.policy;
        self.execute(
            sql,
            params![
                key.0 as i64,
                policy.timeout.as_micros() as i64,
                policy.max_retries,
                policy.max_crashes,
                policy.dead_letter,
                self.retry(&policy.retry)?,
                row.spec.trace_parent.as_ref().map(Text::as_str),
                row.spec.task_type.as_str(),
                encoded_unless_empty(&row.spec.capabilities, row.spec.capabilities.is_empty())?,
                encoded_if_any(row.spec.flow_key.as_ref())?,
                encoded_if_any(row.spec.unique.as_ref())?,
            ],
        )
    }

    fn put_overlay(&mut self, key: TaskKey, overlay: &Overlay) -> JournalResult<()> {
        let sql = "INSERT OR REPLACE INTO overlays (key, overlay) VALUES (?1, ?2)";
        self.execute(sql, params![key.0 as i64, encode(overlay)?])
    }

    fn drop_overlay(&mut self, key: TaskKey) -> JournalResult<()> {
        self.execute("DELETE FROM overlays WHERE key = ?1", params![key.0 as i64])
    }

    fn insert_claim(&mut self, row: &ClaimRow) -> JournalResult<()> {
        let sql = "INSERT INTO claims (first, claim) VALUES (?1, ?2)";
        self.execute(sql, params![row.first as i64, encode(row)?])
    }

    fn void_claim_entry(&mut self, first: u64, key: TaskKey) -> JournalResult<()> {
        let sql = "SELECT claim FROM claims WHERE first = ?1";
        let mut row: ClaimRow = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row(params![first as i64], |row| rows::decode(row.get_ref(0)?.as_str()?))
            })
            .map_err(in_transaction)?;
        for entry in row.entries.iter_mut().filter(|entry| entry.key == key.0) {
            entry.key = 0;
        }
        self.execute("UPDATE claims SET claim = ?2 WHERE first = ?1", params![first as i64, encode(&row)?])
    }

    fn drop_claim(&mut self, first: u64) -> JournalResult<()> {
        self.execute("DELETE FROM claims WHERE first = ?1", params![first as i64])
    }

    fn insert_ended(&mut self, key: TaskKey, ended: &Ended) -> JournalResult<()> {
        // Not OR REPLACE: with an index to keep in step that would copy every page it touches for a partial undo.
        let sql = "INSERT INTO ended (key, status, reason, version, attempt, retries, crashes, timeouts,
            ready_at, run_at, started_at, ended_at, worker, applied_claim, applied_digest, applied_status, event_nos,
            keep_until, result)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
        self.execute(
            sql,
            params![
                key.0 as i64,
                ended.status.code(),
                ended.reason.map(windlass_core::failure::EndReason::as_str),
                ended.version,
                ended.attempt,
                ended.retries,
                ended.crashes,
                ended.timeouts,
                ended.ready_at.as_micros(),
                ended.run_at.as_micros(),
                ended.started_at.map(Timestamp::as_micros),
                ended.ended_at.as_micros(),
                ended.worker.map(|worker| worker.as_uuid().into_bytes()),
                ended.applied.map(|applied| applied.claim as i64),
                ended.applied.map(|applied| applied.digest as i64),
                ended.applied.map(|applied| applied.status.code()),
                rows::blob(&ended.event_nos),
                ended.keep_until.map(Timestamp::as_micros),
                ended.result.as_ref().map(Json::as_str),
            ],
        )
    }

    fn drop_ended(&mut self, key: TaskKey) -> JournalResult<()> {
        self.execute("DELETE FROM ended WHERE key = ?1", params![key.0 as i64])
    }

    fn insert_attempt(&mut self, key: TaskKey, attempt: &FailedAttempt) -> JournalResult<()> {
        let sql = "INSERT OR REPLACE INTO attempts (key, attempt, failure) VALUES (?1, ?2, ?3)";
        self.execute(sql, params![key.0 as i64, attempt.attempt, encode(attempt)?])?;
        if attempt.attempt as usize > ATTEMPTS_KEPT {
            let sql = "DELETE FROM attempts WHERE key = ?1
                AND attempt = (SELECT attempt FROM attempts WHERE key = ?1 ORDER BY attempt LIMIT 1 OFFSET 1)
                AND (SELECT count(*) FROM attempts WHERE key = ?1) > ?2";
            self.execute(sql, params![key.0 as i64, ATTEMPTS_KEPT as i64])?;
        }
        Ok(())
    }

    fn put_progress(&mut self, key: TaskKey, progress: Option<&Progress>) -> JournalResult<()> {
        self.put(
            "INSERT OR REPLACE INTO progress (key, progress) VALUES (?1, ?2)",
            "DELETE FROM progress WHERE key = ?1",
            key.0 as i64,
            progress,
        )
    }

    fn insert_step(&mut self, key: TaskKey, name: &str, result: &Json) -> JournalResult<()> {
        let sql = "INSERT OR IGNORE INTO steps (key, name, result) VALUES (?1, ?2, ?3)";
        self.execute(sql, params![key.0 as i64, name, result.as_str()])
    }

    fn put_idempotency(&mut self, scope: &KeyScope, row: &KeyRow) -> JournalResult<()> {
        let sql = "INSERT OR REPLACE INTO idempotency (queue, tenant, key, task, created_at, digest, forget_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let tenant = scope.tenant.as_ref().map_or("", Text::as_str);
        let (task, digest) = (row.task.0 as i64, row.digest as i64);
        self.execute(
            sql,
            params![
                scope.queue.as_str(),
                tenant,
                scope.key.as_str(),
                task,
                row.created_at.as_micros(),
                digest,
                row.forget_at.as_micros()
            ],
        )
    }

    fn put_unique(&mut self, key: UniqueKey, row: Option<&UniqueRow>) -> JournalResult<()> {
        let key = key.0.to_be_bytes();
        let Some(row) = row else { return self.execute("DELETE FROM unique_keys WHERE key = ?1", params![key]) };
        let sql = "INSERT OR REPLACE INTO unique_keys (key, task, created_at, held, keep_until)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let keep_until = row.keep_until.map(Timestamp::as_micros);
        self.execute(sql, params![key, row.task.0 as i64, row.created_at.as_micros(), row.held, keep_until])
    }

    fn insert_events(&mut self, no: u64, at: Timestamp, changes: &[Committed]) -> JournalResult<()> {
        let packed: Vec<PackedEvent<'_>> = changes
            .iter()
            .map(|change| &change.event)
            .map(|event| (event.task_id, event.version, event.actor, std::borrow::Cow::Borrowed(&event.change)))
            .collect();
        let sql = "INSERT INTO events (no, at, schema, events) VALUES (?1, ?2, ?3, ?4)";
        self.execute(sql, params![no as i64, at.as_micros(), SCHEMA, encode(&packed)?])
    }

    fn count_ended(&mut self, status: Status, delta: i64) -> JournalResult<()> {
        let sql = "INSERT INTO ended_counts (status, count) VALUES (?1, ?2)
            ON CONFLICT (status) DO UPDATE SET count = count + excluded.count";
        self.execute(sql, params![status.code(), delta])
    }

    fn put_worker(&mut self, id: WorkerId, row: Option<&WorkerRow>) -> JournalResult<()> {
        self.put(
            "INSERT OR REPLACE INTO workers (id, worker) VALUES (?1, ?2)",
            "DELETE FROM workers WHERE id = ?1",
            id.as_uuid().into_bytes(),
            row,
        )
    }

    fn put_queue(&mut self, queue: &QueueName, settings: Option<&QueueSettings>) -> JournalResult<()> {
        self.put(
            "INSERT OR REPLACE INTO queue_settings (queue, settings) VALUES (?1, ?2)",
            "DELETE FROM queue_settings WHERE queue = ?1",
            queue.as_str(),
            settings,
        )
    }

    fn put_type(&mut self, task_type: &TaskType, settings: Option<&TypeSettings>) -> JournalResult<()> {
        self.put(
            "INSERT OR REPLACE INTO type_settings (task_type, settings) VALUES (?1, ?2)",
            "DELETE FROM type_settings WHERE task_type = ?1",
            task_type.as_str(),
            settings,
        )
    }

    fn put_error_rules(&mut self, rules: &ErrorRules) -> JournalResult<()> {
        let sql = "INSERT OR REPLACE INTO documents (name, document) VALUES ('error_rules', ?1)";
        self.execute(sql, params![encode(rules)?])
    }

    fn put_breaker(&mut self, scope: &Scope, record: Option<&Record>) -> JournalResult<()> {
        self.put(
            "INSERT OR REPLACE INTO breakers (scope, record) VALUES (?1, ?2)",
            "DELETE FROM breakers WHERE scope = ?1",
            encode(scope)?,
            record,
        )
    }

    fn prune_uniques(&mut self, now: Timestamp, limit: usize) -> JournalResult<usize> {
        let sql = "DELETE FROM unique_keys WHERE key IN
            (SELECT key FROM unique_keys WHERE held = 0 AND keep_until <= ?1 ORDER BY keep_until LIMIT ?2)";
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        statement.execute(params![now.as_micros(), limit as i64]).map_err(in_transaction)
    }

    fn expired_tasks(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(TaskKey, Status)>> {
        let sql = "SELECT key, status FROM ended WHERE keep_until IS NOT NULL AND keep_until <= ?1
            ORDER BY keep_until LIMIT ?2";
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        statement
            .query_map(params![now.as_micros(), limit as i64], |row| {
                Ok((rows::key(row, 0)?, rows::status(row.get(1)?)?))
            })
            .and_then(Iterator::collect)
            .map_err(in_transaction)
    }

    fn delete_task(&mut self, key: TaskKey) -> JournalResult<()> {
        for sql in [
            "DELETE FROM ended WHERE key = ?1",
            "DELETE FROM attempts WHERE key = ?1",
            "DELETE FROM progress WHERE key = ?1",
            "DELETE FROM steps WHERE key = ?1",
            "DELETE FROM tasks WHERE key = ?1",
        ] {
            self.execute(sql, params![key.0 as i64])?;
        }
        Ok(())
    }

    fn expired_keys(&mut self, now: Timestamp, limit: usize) -> JournalResult<Vec<(KeyScope, KeyRow)>> {
        let sql = "SELECT queue, tenant, key, task, created_at, digest, forget_at FROM idempotency
            WHERE forget_at <= ?1 ORDER BY forget_at LIMIT ?2";
        let mut statement = self.connection.prepare_cached(sql).map_err(in_transaction)?;
        statement
            .query_map(params![now.as_micros(), limit as i64], |row| {
                let tenant: String = row.get(1)?;
                let scope = KeyScope {
                    queue: rows::queue(row, 0)?,
                    tenant: Text::new(&tenant).ok(),
                    key: Text::new(row.get_ref(2)?.as_str()?).map_err(crate::error::damaged)?,
                };
                let row = KeyRow {
                    task: rows::key(row, 3)?,
                    created_at: rows::time(row, 4)?,
                    digest: row.get::<_, i64>(5)? as u64,
                    forget_at: rows::time(row, 6)?,
                };
                Ok((scope, row))
            })
            .and_then(Iterator::collect)
            .map_err(in_transaction)
    }

    fn delete_key(&mut self, scope: &KeyScope) -> JournalResult<()> {
        let tenant = scope.tenant.as_ref().map_or("", Text::as_str);
        self.execute(
            "DELETE FROM idempotency WHERE queue = ?1 AND tenant = ?2 AND key = ?3",
            params![scope.queue.as_str(), tenant, scope.key.as_str()],
        )
    }

    fn prune_events(&mut self, before: Timestamp, limit: usize) -> JournalResult<bool> {
        let sql = "SELECT no, at, events FROM events WHERE no >= ?1 ORDER BY no LIMIT ?2";
        let rows_per_slice = limit.min(PRUNED_ROWS);
        let found: Vec<(i64, i64, String)> = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| {
                let rows = statement.query_map(params![self.prune_from, rows_per_slice as i64], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?;
                rows.collect()
            })
            .map_err(in_transaction)?;
        let mut more = found.len() == rows_per_slice;
        for (no, at, text) in &found {
            if *at >= before.as_micros() {
                more = false;
                break;
            }
            let events: Vec<PackedEvent<'_>> = rows::decode(text).map_err(in_transaction)?;
            let mut kept = Vec::with_capacity(events.len());
            let all = events.len();
            for event in events {
                if self.has_task(event.0)? {
                    kept.push(event);
                }
            }
            if kept.is_empty() {
                self.execute("DELETE FROM events WHERE no = ?1", params![no])?;
            } else if kept.len() < all {
                self.execute("UPDATE events SET events = ?2 WHERE no = ?1", params![no, encode(&kept)?])?;
            }
            self.prune_from = no + 1;
        }
        if !more {
            self.prune_from = 0;
        }
        Ok(more)
    }
}

impl SqliteJournal {
    fn has_task(&self, id: TaskId) -> JournalResult<bool> {
        let Some(key) = self.ids.task_key(id) else { return Ok(false) };
        let mut statement =
            self.connection.prepare_cached("SELECT 1 FROM tasks WHERE key = ?1").map_err(in_transaction)?;
        statement.exists(params![key.0 as i64]).map_err(in_transaction)
    }
}
