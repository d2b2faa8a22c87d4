//! Rows by columns: one array per column, so that a statement takes any number of rows.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_cluster::backend::BackendError;
use windlass_core::failure::EndReason;
use windlass_core::ids::TaskKey;
use windlass_core::json::Json;
use windlass_core::names::Text;
use windlass_core::retry::RetryPolicy;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{ClaimRow, Ended, KeyScope, TaskRow};

use crate::partitions::drop_day;
use crate::pool::Param;

/// Most tasks have it, so it is not written.
static PLAIN_RETRY: LazyLock<RetryPolicy> = LazyLock::new(RetryPolicy::default);

pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, BackendError> {
    serde_json::to_vec(value).map_err(|error| BackendError { reason: error.to_string(), item_at_fault: true })
}

fn encode_unless<T: Serialize>(value: &T, left_out: bool) -> Result<Option<Vec<u8>>, BackendError> {
    if left_out { Ok(None) } else { encode(value).map(Some) }
}

/// What an idempotency key is found by: half a SHA-256 of everything that tells it from others. No text has a zero byte
/// in it.
pub(crate) fn scope_id(scope: &KeyScope) -> Uuid {
    let mut hash = Sha256::new();
    for text in [scope.queue.as_str(), scope.tenant.as_ref().map_or("", Text::as_str), scope.key.as_str()] {
        hash.update(text);
        hash.update([0]);
    }
    let digest = hash.finalize();
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(half)
}

fn micros(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_micros)
}

/// Tasks as submitted.
#[derive(Default)]
pub(crate) struct TaskColumns<'a> {
    key: Vec<i64>,
    created_at: Vec<i64>,
    run_at: Vec<i64>,
    event_no: Vec<i64>,
    timeout_us: Vec<i64>,
    priority: Vec<i16>,
    max_retries: Vec<i16>,
    max_crashes: Vec<i16>,
    dead_letter: Vec<bool>,
    queue: Vec<&'a str>,
    task_type: Vec<&'a str>,
    idempotency_key: Vec<Option<&'a str>>,
    parameters: Vec<&'a [u8]>,
    rare: RareColumns<'a>,
    has_rare: bool,
}

/// What most tasks leave empty.
#[derive(Default)]
struct RareColumns<'a> {
    auto_replayed: Vec<bool>,
    expires_at: Vec<Option<i64>>,
    tenant: Vec<Option<&'a str>>,
    capabilities: Vec<Option<Vec<u8>>>,
    flow_key: Vec<Option<Vec<u8>>>,
    unique_key: Vec<Option<Vec<u8>>>,
    retry: Vec<Option<Vec<u8>>>,
    tags: Vec<Option<Vec<u8>>>,
    trace_parent: Vec<Option<&'a str>>,
    original_parameters: Vec<Option<&'a [u8]>>,
}

impl<'a> TaskColumns<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.key.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.key.len()
    }

    /// Whether any of these tasks has something that most leave empty.
    pub(crate) fn has_rare(&self) -> bool {
        self.has_rare
    }

    pub(crate) fn push(&mut self, key: TaskKey, row: &'a TaskRow) -> Result<(), BackendError> {
        let spec = &row.spec;
        let policy = &spec.policy;
        self.key.push(key.0 as i64);
        self.created_at.push(row.created_at.as_micros());
        self.run_at.push(row.run_at.as_micros());
        self.event_no.push(row.event_no as i64);
        self.timeout_us.push(policy.timeout.as_micros() as i64);
        self.priority.push(spec.priority.level().into());
        self.max_retries.push(policy.max_retries as i16);
        self.max_crashes.push(policy.max_crashes as i16);
        self.dead_letter.push(policy.dead_letter);
        self.queue.push(spec.queue.as_str());
        self.task_type.push(spec.task_type.as_str());
        self.idempotency_key.push(spec.idempotency_key.as_ref().map(Text::as_str));
        self.parameters.push(spec.parameters.as_str().as_bytes());
        let retry = encode_unless(&policy.retry, policy.retry == *PLAIN_RETRY)?;
        self.has_rare |= row.auto_replayed
            || spec.expires_at.is_some()
            || spec.tenant.is_some()
            || !spec.capabilities.is_empty()
            || spec.flow_key.is_some()
            || spec.unique.is_some()
            || retry.is_some()
            || !spec.tags.is_empty()
            || spec.trace_parent.is_some()
            || row.original_parameters.is_some();
        let rare = &mut self.rare;
        rare.auto_replayed.push(row.auto_replayed);
        rare.expires_at.push(micros(spec.expires_at));
        rare.tenant.push(spec.tenant.as_ref().map(Text::as_str));
        rare.capabilities.push(encode_unless(&spec.capabilities, spec.capabilities.is_empty())?);
        rare.flow_key.push(spec.flow_key.as_ref().map(encode).transpose()?);
        rare.unique_key.push(spec.unique.as_ref().map(encode).transpose()?);
        rare.retry.push(retry);
        rare.tags.push(encode_unless(&spec.tags, spec.tags.is_empty())?);
        rare.trace_parent.push(spec.trace_parent.as_ref().map(Text::as_str));
        rare.original_parameters.push(row.original_parameters.as_ref().map(|json| json.as_str().as_bytes()));
        Ok(())
    }

    /// The columns that most tasks have.
    pub(crate) fn plain(&self) -> Vec<Param<'_>> {
        vec![
            (&self.key, Type::INT8_ARRAY),
            (&self.created_at, Type::INT8_ARRAY),
            (&self.run_at, Type::INT8_ARRAY),
            (&self.event_no, Type::INT8_ARRAY),
            (&self.timeout_us, Type::INT8_ARRAY),
            (&self.priority, Type::INT2_ARRAY),
            (&self.max_retries, Type::INT2_ARRAY),
            (&self.max_crashes, Type::INT2_ARRAY),
            (&self.dead_letter, Type::BOOL_ARRAY),
            (&self.queue, Type::TEXT_ARRAY),
            (&self.task_type, Type::TEXT_ARRAY),
            (&self.idempotency_key, Type::TEXT_ARRAY),
            (&self.parameters, Type::BYTEA_ARRAY),
        ]
    }

    /// All columns.
    pub(crate) fn all(&self) -> Vec<Param<'_>> {
        let rare = &self.rare;
        let mut all = self.plain();
        all.extend::<[Param<'_>; 10]>([
            (&rare.auto_replayed, Type::BOOL_ARRAY),
            (&rare.expires_at, Type::INT8_ARRAY),
            (&rare.tenant, Type::TEXT_ARRAY),
            (&rare.capabilities, Type::BYTEA_ARRAY),
            (&rare.flow_key, Type::BYTEA_ARRAY),
            (&rare.unique_key, Type::BYTEA_ARRAY),
            (&rare.retry, Type::BYTEA_ARRAY),
            (&rare.tags, Type::BYTEA_ARRAY),
            (&rare.trace_parent, Type::TEXT_ARRAY),
            (&rare.original_parameters, Type::BYTEA_ARRAY),
        ]);
        all
    }
}

/// How tasks ended.
#[derive(Default)]
pub(crate) struct EndColumns<'a> {
    key: Vec<i64>,
    drop_day: Vec<i32>,
    status: Vec<i16>,
    reason: Vec<Option<&'a str>>,
    version: Vec<i32>,
    attempt: Vec<i32>,
    retries: Vec<i32>,
    crashes: Vec<i32>,
    timeouts: Vec<i16>,
    ready_at: Vec<i64>,
    last_run_at: Vec<i64>,
    started_at: Vec<Option<i64>>,
    ended_at: Vec<i64>,
    worker: Vec<Option<Uuid>>,
    applied_claim: Vec<Option<i64>>,
    applied_digest: Vec<Option<i64>>,
    applied_status: Vec<Option<i16>>,
    event_nos: Vec<Vec<u8>>,
    keep_until: Vec<Option<i64>>,
    result: Vec<Option<&'a [u8]>>,
}

pub(crate) fn status_code(status: Status) -> i16 {
    status.code().into()
}

impl<'a> EndColumns<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.key.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.key.len()
    }

    /// Partitions that must be there.
    pub(crate) fn days(&self) -> impl Iterator<Item = i32> + '_ {
        self.drop_day.iter().copied().filter(|day| *day > 0)
    }

    pub(crate) fn push(&mut self, key: TaskKey, ended: &'a Ended) {
        self.key.push(key.0 as i64);
        self.drop_day.push(drop_day(ended));
        self.status.push(status_code(ended.status));
        self.reason.push(ended.reason.map(EndReason::as_str));
        self.version.push(ended.version as i32);
        self.attempt.push(ended.attempt as i32);
        self.retries.push(ended.retries as i32);
        self.crashes.push(ended.crashes as i32);
        self.timeouts.push(ended.timeouts.into());
        self.ready_at.push(ended.ready_at.as_micros());
        self.last_run_at.push(ended.run_at.as_micros());
        self.started_at.push(micros(ended.started_at));
        self.ended_at.push(ended.ended_at.as_micros());
        self.worker.push(ended.worker.map(windlass_core::ids::WorkerId::as_uuid));
        self.applied_claim.push(ended.applied.map(|applied| applied.claim as i64));
        self.applied_digest.push(ended.applied.map(|applied| applied.digest as i64));
        self.applied_status.push(ended.applied.map(|applied| status_code(applied.status)));
        self.event_nos.push(numbers(&ended.event_nos));
        self.keep_until.push(micros(ended.keep_until));
        self.result.push(ended.result.as_ref().map(|json: &Json| json.as_str().as_bytes()));
    }

    pub(crate) fn all(&self) -> Vec<Param<'_>> {
        vec![
            (&self.key, Type::INT8_ARRAY),
            (&self.drop_day, Type::INT4_ARRAY),
            (&self.status, Type::INT2_ARRAY),
            (&self.reason, Type::TEXT_ARRAY),
            (&self.version, Type::INT4_ARRAY),
            (&self.attempt, Type::INT4_ARRAY),
            (&self.retries, Type::INT4_ARRAY),
            (&self.crashes, Type::INT4_ARRAY),
            (&self.timeouts, Type::INT2_ARRAY),
            (&self.ready_at, Type::INT8_ARRAY),
            (&self.last_run_at, Type::INT8_ARRAY),
            (&self.started_at, Type::INT8_ARRAY),
            (&self.ended_at, Type::INT8_ARRAY),
            (&self.worker, Type::UUID_ARRAY),
            (&self.applied_claim, Type::INT8_ARRAY),
            (&self.applied_digest, Type::INT8_ARRAY),
            (&self.applied_status, Type::INT2_ARRAY),
            (&self.event_nos, Type::BYTEA_ARRAY),
            (&self.keep_until, Type::INT8_ARRAY),
            (&self.result, Type::BYTEA_ARRAY),
        ]
    }
}

/// Claims.
#[derive(Default)]
pub(crate) struct ClaimColumns {
    first: Vec<i64>,
    at: Vec<i64>,
    event_no: Vec<i64>,
    worker: Vec<Uuid>,
    entries: Vec<Vec<u8>>,
}

impl ClaimColumns {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub(crate) fn push(&mut self, claim: &ClaimRow) {
        self.first.push(claim.first as i64);
        self.at.push(claim.at.as_micros());
        self.event_no.push(claim.event_no as i64);
        self.worker.push(claim.worker.as_uuid());
        let mut entries = Vec::with_capacity(claim.entries.len() * 16);
        for entry in &claim.entries {
            entries.extend(entry.key.to_le_bytes());
            entries.extend(entry.version.to_le_bytes());
            entries.extend(entry.attempt.to_le_bytes());
        }
        self.entries.push(entries);
    }

    pub(crate) fn all(&self) -> Vec<Param<'_>> {
        vec![
            (&self.first, Type::INT8_ARRAY),
            (&self.at, Type::INT8_ARRAY),
            (&self.event_no, Type::INT8_ARRAY),
            (&self.worker, Type::UUID_ARRAY),
            (&self.entries, Type::BYTEA_ARRAY),
        ]
    }
}

/// Event row numbers, eight bytes each.
fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// An event as it is packed: its time is the row's.
pub(crate) type PackedEvent<'a> =
    (windlass_core::ids::TaskId, u32, windlass_core::actor::Actor, Cow<'a, windlass_core::event::Change>);
