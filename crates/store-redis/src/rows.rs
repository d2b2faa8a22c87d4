//! Rows to bytes and back. What a row begins with says which fields it has; parameters and
//! results stand last and are passed through.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use windlass_core::failure::{EndReason, TaskPolicy};
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::lane::LaneKey;
use windlass_core::names::{CapabilitySet, QueueName, TaskType, Text};
use windlass_core::priority::Priority;
use windlass_core::retry::RetryPolicy;
use windlass_core::status::Status;
use windlass_core::task::{Tags, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_ledger::journal::{AppliedResult, Ended, KeyRow, KeyScope, LiveRow, Overlay, TaskRow, UniqueRow};

use crate::error::Damaged;
use crate::pack::{Packer, Unpacker};

/// The first byte of a task's row: rows that a later version writes otherwise have another.
const FORM: u8 = 1;

mod has {
    pub(super) const CAPABILITIES: u64 = 1;
    pub(super) const EXPIRES_AT: u64 = 1 << 1;
    pub(super) const RETRY: u64 = 1 << 2;
    pub(super) const IDEMPOTENCY_KEY: u64 = 1 << 3;
    pub(super) const TENANT: u64 = 1 << 4;
    pub(super) const TAGS: u64 = 1 << 5;
    pub(super) const TRACE_PARENT: u64 = 1 << 6;
    pub(super) const FLOW_KEY: u64 = 1 << 7;
    pub(super) const UNIQUE: u64 = 1 << 8;
    pub(super) const ORIGINAL: u64 = 1 << 9;
    pub(super) const AUTO_REPLAYED: u64 = 1 << 10;
    pub(super) const DEAD_LETTER: u64 = 1 << 11;
}

/// Documents that are too seldom or too small to be worth a form of their own.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Our own types have no maps with keys that JSON cannot have, nor anything else that fails.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    serde_json::from_slice(bytes).map_err(Damaged::new)
}

fn json(bytes: &[u8]) -> Result<Json, Damaged> {
    let text = String::from_utf8(bytes.to_vec()).map_err(Damaged::new)?;
    Json::from_text(text).map_err(Damaged::new)
}

/// A task as submitted. Its queue is that of the key it stands in.
pub(crate) fn pack_task(row: &TaskRow) -> Vec<u8> {
    let spec = &row.spec;
    let policy = &spec.policy;
    let retry = (policy.retry != RetryPolicy::default()).then(|| encode(&policy.retry));
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let flags = flag(!spec.capabilities.is_empty(), has::CAPABILITIES)
        | flag(spec.expires_at.is_some(), has::EXPIRES_AT)
        | flag(retry.is_some(), has::RETRY)
        | flag(spec.idempotency_key.is_some(), has::IDEMPOTENCY_KEY)
        | flag(spec.tenant.is_some(), has::TENANT)
        | flag(!spec.tags.is_empty(), has::TAGS)
        | flag(spec.trace_parent.is_some(), has::TRACE_PARENT)
        | flag(spec.flow_key.is_some(), has::FLOW_KEY)
        | flag(spec.unique.is_some(), has::UNIQUE)
        | flag(row.original_parameters.is_some(), has::ORIGINAL)
        | flag(row.auto_replayed, has::AUTO_REPLAYED)
        | flag(policy.dead_letter, has::DEAD_LETTER);
    let mut packer = Packer(Vec::with_capacity(64 + spec.parameters.len()));
    packer.byte(FORM);
    packer.number(flags);
    packer.bytes(spec.task_type.as_str().as_bytes());
    packer.byte(spec.priority.level());
    packer.time(row.created_at);
    packer.time_near(row.run_at, row.created_at);
    if !spec.capabilities.is_empty() {
        packer.bytes(&encode(&spec.capabilities));
    }
    if let Some(expires_at) = spec.expires_at {
        packer.time_near(expires_at, row.created_at);
    }
    if let Some(tenant) = &spec.tenant {
        packer.bytes(tenant.as_str().as_bytes());
    }
    if let Some(flow_key) = &spec.flow_key {
        packer.bytes(&encode(flow_key));
    }
    // What a start needs of a live task ends here.
    packer.number(row.event_no);
    packer.number(policy.timeout.as_micros() as u64);
    packer.number(policy.max_retries.into());
    packer.number(policy.max_crashes.into());
    if let Some(retry) = retry {
        packer.bytes(&retry);
    }
    for text in [&spec.idempotency_key, &spec.trace_parent].into_iter().flatten() {
        packer.bytes(text.as_str().as_bytes());
    }
    if !spec.tags.is_empty() {
        packer.bytes(&encode(&spec.tags));
    }
    if let Some(unique) = &spec.unique {
        packer.bytes(&encode(unique));
    }
    if let Some(original) = &row.original_parameters {
        packer.bytes(original.as_str().as_bytes());
    }
    packer.rest(spec.parameters.as_str().as_bytes());
    packer.0
}

/// What every reader of a task's row needs first.
struct Head<'a> {
    flags: u64,
    task_type: TaskType,
    priority: Priority,
    created_at: Timestamp,
    run_at: Timestamp,
    capabilities: CapabilitySet,
    expires_at: Option<Timestamp>,
    tenant: Option<Text>,
    flow_key: Option<&'a [u8]>,
}

impl Head<'_> {
    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

fn text(unpacker: &mut Unpacker<'_>) -> Result<Text, Damaged> {
    Text::new(unpacker.text()?).map_err(Damaged::new)
}

fn head<'a>(unpacker: &mut Unpacker<'a>) -> Result<Head<'a>, Damaged> {
    let form = unpacker.byte()?;
    if form != FORM {
        return Err(Damaged(format!("it has the form {form}, and this version knows {FORM}")));
    }
    let flags = unpacker.number()?;
    let has = |flag| flags & flag != 0;
    let task_type = TaskType::new(unpacker.text()?).map_err(Damaged::new)?;
    let priority = Priority::from_level(unpacker.byte()?.into()).map_err(Damaged::new)?;
    let created_at = unpacker.time()?;
    let run_at = unpacker.time_near(created_at)?;
    let capabilities = if has(has::CAPABILITIES) { decode(unpacker.bytes()?)? } else { CapabilitySet::default() };
    let expires_at = if has(has::EXPIRES_AT) { Some(unpacker.time_near(created_at)?) } else { None };
    let tenant = if has(has::TENANT) { Some(text(unpacker)?) } else { None };
    let flow_key = if has(has::FLOW_KEY) { Some(unpacker.bytes()?) } else { None };
    Ok(Head { flags, task_type, priority, created_at, run_at, capabilities, expires_at, tenant, flow_key })
}

/// The type of a task alone.
pub(crate) fn task_type(bytes: &[u8]) -> Result<TaskType, Damaged> {
    Ok(head(&mut Unpacker(bytes))?.task_type)
}

/// A task as submitted.
pub(crate) fn unpack_task(queue: &QueueName, bytes: &[u8]) -> Result<TaskRow, Damaged> {
    let mut rest = Unpacker(bytes);
    let head = head(&mut rest)?;
    let event_no = rest.number()?;
    let timeout = Duration::from_micros(rest.number()?);
    let (max_retries, max_crashes) = (rest.small()?, rest.small()?);
    let retry = if head.has(has::RETRY) { decode(rest.bytes()?)? } else { RetryPolicy::default() };
    let idempotency_key = if head.has(has::IDEMPOTENCY_KEY) { Some(text(&mut rest)?) } else { None };
    let trace_parent = if head.has(has::TRACE_PARENT) { Some(text(&mut rest)?) } else { None };
    let tags = if head.has(has::TAGS) { decode(rest.bytes()?)? } else { Tags::new() };
    let unique = if head.has(has::UNIQUE) { Some(decode(rest.bytes()?)?) } else { None };
    let original_parameters = if head.has(has::ORIGINAL) { Some(json(rest.bytes()?)?) } else { None };
    Ok(TaskRow {
        created_at: head.created_at,
        run_at: head.run_at,
        event_no,
        original_parameters,
        auto_replayed: head.has(has::AUTO_REPLAYED),
        spec: TaskSpec {
            queue: queue.clone(),
            priority: head.priority,
            policy: TaskPolicy { timeout, max_retries, max_crashes, dead_letter: head.has(has::DEAD_LETTER), retry },
            expires_at: head.expires_at,
            idempotency_key,
            flow_key: head.flow_key.map(decode).transpose()?,
            unique,
            tags,
            trace_parent,
            parameters: json(rest.0)?,
            task_type: head.task_type,
            capabilities: head.capabilities,
            tenant: head.tenant,
        },
    })
}

/// What memory needs of a live task.
pub(crate) fn unpack_live(
    key: TaskKey,
    queue: &QueueName,
    bytes: &[u8],
    overlay: Option<Overlay>,
) -> Result<LiveRow, Damaged> {
    let head = head(&mut Unpacker(bytes))?;
    Ok(LiveRow {
        key,
        created_at: head.created_at,
        run_at: head.run_at,
        expires_at: head.expires_at,
        flow_key: head.flow_key.map(decode).transpose()?,
        unique: head.has(has::UNIQUE),
        overlay,
        lane: LaneKey {
            queue: queue.clone(),
            task_type: head.task_type,
            capabilities: head.capabilities,
            priority: head.priority,
            tenant: head.tenant,
        },
    })
}

fn status(code: u8) -> Result<Status, Damaged> {
    Status::from_code(code).ok_or_else(|| Damaged(format!("there is no status {code}")))
}

/// How a task ended, with its length before it: the row of the task follows.
pub(crate) fn pack_ended(ended: &Ended) -> Vec<u8> {
    let mut packer = Packer(vec![0; 4]);
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    packer.byte(
        flag(ended.started_at.is_some(), 1)
            | flag(ended.worker.is_some(), 2)
            | flag(ended.applied.is_some(), 4)
            | flag(ended.keep_until.is_some(), 8)
            | flag(ended.result.is_some(), 16),
    );
    packer.byte(ended.status.code());
    let reason = ended.reason.and_then(|reason| EndReason::ALL.iter().position(|one| *one == reason));
    packer.byte(reason.map_or(0, |index| index as u8 + 1));
    for number in [ended.version, ended.attempt, ended.retries, ended.crashes, ended.timeouts.into()] {
        packer.number(number.into());
    }
    packer.time(ended.ended_at);
    packer.time_near(ended.ready_at, ended.ended_at);
    packer.time_near(ended.run_at, ended.ended_at);
    if let Some(started_at) = ended.started_at {
        packer.time_near(started_at, ended.ended_at);
    }
    if let Some(worker) = ended.worker {
        packer.rest(worker.as_uuid().as_bytes());
    }
    if let Some(applied) = ended.applied {
        packer.number(applied.claim);
        packer.rest(&applied.digest.to_be_bytes());
        packer.byte(applied.status.code());
    }
    if let Some(keep_until) = ended.keep_until {
        packer.time_near(keep_until, ended.ended_at);
    }
    packer.number(ended.event_nos.len() as u64);
    for no in &ended.event_nos {
        packer.number(*no);
    }
    if let Some(result) = &ended.result {
        packer.rest(result.as_str().as_bytes());
    }
    let length = (packer.0.len() as u32 - 4).to_be_bytes();
    packer.0[..4].copy_from_slice(&length);
    packer.0
}

/// How a task ended, and the bytes of its row.
pub(crate) fn unpack_ended(bytes: &[u8]) -> Result<(Ended, &[u8]), Damaged> {
    let mut all = Unpacker(bytes);
    let length = all.take(4)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let mut rest = Unpacker(all.take(length)?);
    let flags = rest.byte()?;
    let has = |flag: u8| flags & flag != 0;
    let status_code = rest.byte()?;
    let reason = rest.byte()?;
    let reason = match reason {
        0 => None,
        _ => Some(*EndReason::ALL.get(usize::from(reason) - 1).ok_or_else(|| Damaged::new("an unknown reason"))?),
    };
    let (version, attempt, retries, crashes) = (rest.small()?, rest.small()?, rest.small()?, rest.small()?);
    let timeouts = u8::try_from(rest.number()?).map_err(Damaged::new)?;
    let ended_at = rest.time()?;
    let ready_at = rest.time_near(ended_at)?;
    let run_at = rest.time_near(ended_at)?;
    let started_at = if has(1) { Some(rest.time_near(ended_at)?) } else { None };
    let worker =
        if has(2) { Some(WorkerId::from_uuid(Uuid::from_slice(rest.take(16)?).map_err(Damaged::new)?)) } else { None };
    let applied = if has(4) {
        let claim = rest.number()?;
        let digest = eight(rest.take(8)?);
        Some(AppliedResult { claim, digest, status: status(rest.byte()?)? })
    } else {
        None
    };
    let keep_until = if has(8) { Some(rest.time_near(ended_at)?) } else { None };
    let count = rest.number()?;
    let event_nos = (0..count).map(|_| rest.number()).collect::<Result<_, _>>()?;
    let result = if has(16) { Some(json(rest.0)?) } else { None };
    let ended = Ended {
        status: status(status_code)?,
        reason,
        version,
        attempt,
        retries,
        crashes,
        timeouts,
        ready_at,
        run_at,
        started_at,
        ended_at,
        worker,
        result,
        applied,
        event_nos,
        keep_until,
    };
    Ok((ended, all.0))
}

fn eight(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The field of an idempotency key. No text has a zero byte in it.
pub(crate) fn key_field(scope: &KeyScope) -> Vec<u8> {
    let tenant = scope.tenant.as_ref().map_or("", Text::as_str);
    [tenant.as_bytes(), &[0], scope.key.as_str().as_bytes()].concat()
}

/// Whose key a field is.
pub(crate) fn key_scope(queue: &QueueName, field: &[u8]) -> Result<KeyScope, Damaged> {
    let field = std::str::from_utf8(field).map_err(Damaged::new)?;
    let (tenant, key) = field.split_once('\0').ok_or_else(|| Damaged::new("no tenant"))?;
    let tenant = if tenant.is_empty() { None } else { Some(Text::new(tenant).map_err(Damaged::new)?) };
    Ok(KeyScope { queue: queue.clone(), tenant, key: Text::new(key).map_err(Damaged::new)? })
}

/// An idempotency key.
pub(crate) fn pack_key(row: &KeyRow) -> Vec<u8> {
    let mut packer = Packer::default();
    packer.number(row.task.0);
    packer.rest(&row.digest.to_be_bytes());
    packer.time(row.created_at);
    packer.time_near(row.forget_at, row.created_at);
    packer.0
}

/// An idempotency key.
pub(crate) fn unpack_key(bytes: &[u8]) -> Result<KeyRow, Damaged> {
    let mut rest = Unpacker(bytes);
    let task = TaskKey(rest.number()?);
    let digest = eight(rest.take(8)?);
    let created_at = rest.time()?;
    Ok(KeyRow { task, created_at, digest, forget_at: rest.time_near(created_at)? })
}

/// Who has a unique key.
pub(crate) fn pack_unique(row: &UniqueRow) -> Vec<u8> {
    let mut packer = Packer::default();
    packer.byte(u8::from(row.held) | if row.keep_until.is_some() { 2 } else { 0 });
    packer.number(row.task.0);
    packer.time(row.created_at);
    if let Some(keep_until) = row.keep_until {
        packer.time_near(keep_until, row.created_at);
    }
    packer.0
}

/// Who has a unique key.
pub(crate) fn unpack_unique(bytes: &[u8]) -> Result<UniqueRow, Damaged> {
    let mut rest = Unpacker(bytes);
    let flags = rest.byte()?;
    let task = TaskKey(rest.number()?);
    let created_at = rest.time()?;
    let keep_until = if flags & 2 != 0 { Some(rest.time_near(created_at)?) } else { None };
    Ok(UniqueRow { task, created_at, held: flags & 1 != 0, keep_until })
}
