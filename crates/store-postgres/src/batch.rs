//! What a transaction writes, packed by columns: one array per column and kind of row, and the pieces of the statement
//! that take them.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;
use windlass_cluster::backend::{BackendError, Changes, EventRow, Is, KeyChange, OverlayChange, Was};
use windlass_core::event::SCHEMA;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::Text;
use windlass_core::time::Timestamp;
use windlass_ledger::days::DayState;
use windlass_ledger::journal::{KeyRow, KeyScope};

use crate::columns::{ClaimColumns, EndColumns, PackedEvent, TaskColumns, encode, scope_id};
use crate::pieces::{Piece, Pieces};
use crate::pool::Param;

/// Documents under keys, to be written or deleted.
struct Documents<K> {
    keys: Vec<K>,
    values: Vec<Vec<u8>>,
    deleted: Vec<K>,
}

impl<K> Default for Documents<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), values: Vec::new(), deleted: Vec::new() }
    }
}

impl<K> Documents<K> {
    fn change<T: serde::Serialize>(&mut self, key: K, value: Option<&T>) -> Result<(), BackendError> {
        match value {
            Some(value) => {
                self.values.push(encode(value)?);
                self.keys.push(key);
            }
            None => self.deleted.push(key),
        }
        Ok(())
    }
}

/// Idempotency keys by columns.
#[derive(Default)]
struct KeyColumns<'a> {
    scope: Vec<Uuid>,
    key: Vec<&'a str>,
    queue: Vec<&'a str>,
    tenant: Vec<&'a str>,
    task: Vec<i64>,
    created_at: Vec<i64>,
    digest: Vec<i64>,
    forget_at: Vec<i64>,
}

impl<'a> KeyColumns<'a> {
    fn push(&mut self, scope: &'a KeyScope, row: &KeyRow) {
        self.scope.push(scope_id(scope));
        self.key.push(scope.key.as_str());
        self.queue.push(scope.queue.as_str());
        self.tenant.push(scope.tenant.as_ref().map_or("", Text::as_str));
        self.task.push(row.task.0 as i64);
        self.created_at.push(row.created_at.as_micros());
        self.digest.push(row.digest as i64);
        self.forget_at.push(row.forget_at.as_micros());
    }

    fn all(&self) -> Vec<Param<'_>> {
        let mut all: Vec<Param<'_>> = vec![(&self.scope, Type::UUID_ARRAY)];
        all.extend([&self.queue, &self.tenant, &self.key].map(|texts| (texts as _, Type::TEXT_ARRAY)));
        all.extend(
            [&self.task, &self.created_at, &self.digest, &self.forget_at]
                .map(|numbers| (numbers as _, Type::INT8_ARRAY)),
        );
        all
    }
}

/// Unique keys by columns.
#[derive(Default)]
struct UniqueColumns {
    key: Vec<Uuid>,
    task: Vec<i64>,
    created_at: Vec<i64>,
    held: Vec<bool>,
    keep_until: Vec<Option<i64>>,
    deleted: Vec<Uuid>,
}

/// All that a transaction writes, by columns.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    new: TaskColumns<'a>,
    changed: TaskColumns<'a>,
    /// Live tasks that end; ended ones that end otherwise.
    ends: EndColumns<'a>,
    ends_again: EndColumns<'a>,
    /// Ends of tasks whose row is written anew.
    ended_rows: TaskColumns<'a>,
    ended_ends: EndColumns<'a>,
    revived: Vec<i64>,
    not_live: Vec<i64>,
    not_ended: Vec<i64>,
    gone: Vec<i64>,
    overlays: Documents<i64>,
    claims: ClaimColumns,
    claims_deleted: Vec<i64>,
    attempt_keys: Vec<i64>,
    attempt_nos: Vec<i32>,
    attempts: Vec<Vec<u8>>,
    /// Tasks with more attempts than are kept.
    pub(crate) attempts_trimmed: Vec<i64>,
    progress: Documents<i64>,
    step_keys: Vec<i64>,
    step_names: Vec<&'a [u8]>,
    step_results: Vec<&'a [u8]>,
    new_keys: KeyColumns<'a>,
    keys: KeyColumns<'a>,
    keys_deleted: Vec<Uuid>,
    uniques: UniqueColumns,
    events: Option<(i64, i64, i16, Vec<u8>)>,
    workers: Documents<Uuid>,
    queues: Documents<&'a str>,
    types: Documents<&'a str>,
    /// Settings that there is one of.
    singles: Documents<&'static str>,
    breakers: Documents<Vec<u8>>,
    taken: &'a [i64],
    days_closed: Vec<i32>,
    days_gone: Vec<i32>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(changes: &'a Changes) -> Result<Self, BackendError> {
        let mut batch = Self { taken: &changes.taken, ..Self::default() };
        batch.tasks(changes)?;
        for (first, claim) in &changes.claims {
            match claim {
                Some(claim) => batch.claims.push(claim),
                None => batch.claims_deleted.push(*first as i64),
            }
        }
        batch.attempts(changes)?;
        for (key, progress) in &changes.progress {
            batch.progress.change(key.0 as i64, progress.as_ref())?;
        }
        for (key, name, result) in &changes.steps {
            batch.step_keys.push(key.0 as i64);
            batch.step_names.push(name.as_bytes());
            batch.step_results.push(result.as_str().as_bytes());
        }
        batch.keys(changes);
        batch.events = changes.events.as_ref().map(packed).transpose()?;
        for (id, worker) in &changes.workers {
            batch.workers.change(id.as_uuid(), worker.as_ref())?;
        }
        for (queue, settings) in &changes.queues {
            batch.queues.change(queue.as_str(), settings.as_ref())?;
        }
        for (task_type, settings) in &changes.types {
            batch.types.change(task_type.as_str(), settings.as_ref())?;
        }
        if let Some(rules) = &changes.error_rules {
            batch.singles.change("error_rules", Some(rules))?;
        }
        for (scope, record) in &changes.breakers {
            batch.breakers.change(encode(scope)?, record.as_ref())?;
        }
        for (day, state) in &changes.days {
            match state {
                DayState::Open => {}
                DayState::Closed => batch.days_closed.push(*day),
                DayState::Gone => batch.days_gone.push(*day),
            }
        }
        Ok(batch)
    }

    fn tasks(&mut self, changes: &'a Changes) -> Result<(), BackendError> {
        for task in &changes.tasks {
            let key = task.key.0 as i64;
            let row = task.row.as_deref();
            match (task.was, &task.is) {
                (Was::Absent, Is::Live) => self.new.push(task.key, needed(row)?)?,
                (Was::Live, Is::Live) => {
                    if let Some(row) = row {
                        self.changed.push(task.key, row)?;
                    }
                }
                (Was::Ended, Is::Live) => match row {
                    Some(row) => {
                        self.not_ended.push(key);
                        self.new.push(task.key, row)?;
                    }
                    None => self.revived.push(key),
                },
                (was, Is::Ended(ended)) => match (was, row) {
                    (Was::Live, None) => self.ends.push(task.key, ended),
                    (Was::Ended, None) => self.ends_again.push(task.key, ended),
                    (_, row) => {
                        self.ended_rows.push(task.key, needed(row)?)?;
                        self.ended_ends.push(task.key, ended);
                        match was {
                            Was::Live => self.not_live.push(key),
                            Was::Ended => self.not_ended.push(key),
                            Was::Absent => {}
                        }
                    }
                },
                (was, Is::Gone) => {
                    match was {
                        Was::Live => self.not_live.push(key),
                        Was::Ended => self.not_ended.push(key),
                        Was::Absent => {}
                    }
                    self.gone.push(key);
                    self.overlays.deleted.push(key);
                    self.progress.deleted.push(key);
                }
            }
            match (&task.overlay, &task.is) {
                (OverlayChange::Put(overlay), Is::Live) => self.overlays.change(key, Some(overlay))?,
                (OverlayChange::Drop, Is::Live | Is::Ended(_)) => self.overlays.deleted.push(key),
                // What is gone is seen to with the rest.
                (OverlayChange::Put(_), Is::Ended(_)) | (_, Is::Gone) | (OverlayChange::Keep, _) => {}
            }
        }
        Ok(())
    }

    fn attempts(&mut self, changes: &Changes) -> Result<(), BackendError> {
        // The same attempt twice in one statement is an error there; the later one counts.
        let newest: BTreeMap<_, _> =
            changes.attempts.iter().map(|(key, failure)| ((key.0 as i64, failure.attempt as i32), failure)).collect();
        let mut trimmed = BTreeSet::new();
        for ((key, attempt), failure) in newest {
            self.attempt_keys.push(key);
            self.attempt_nos.push(attempt);
            self.attempts.push(encode(failure)?);
            if attempt as usize > ATTEMPTS_KEPT {
                trimmed.insert(key);
            }
        }
        self.attempts_trimmed = trimmed.into_iter().collect();
        Ok(())
    }

    fn keys(&mut self, changes: &'a Changes) {
        for (scope, change) in &changes.idempotency {
            match change {
                KeyChange::New(row) => self.new_keys.push(scope, row),
                KeyChange::Put(row) => self.keys.push(scope, row),
                KeyChange::Gone => self.keys_deleted.push(scope_id(scope)),
            }
        }
        for (key, row) in &changes.uniques {
            let key = Uuid::from_u128(key.0);
            let uniques = &mut self.uniques;
            let Some(row) = row else {
                uniques.deleted.push(key);
                continue;
            };
            uniques.key.push(key);
            uniques.task.push(row.task.0 as i64);
            uniques.created_at.push(row.created_at.as_micros());
            uniques.held.push(row.held);
            uniques.keep_until.push(row.keep_until.map(Timestamp::as_micros));
        }
    }

    /// Partitions that must be there.
    pub(crate) fn days(&self) -> BTreeSet<i32> {
        self.ends.days().chain(self.ends_again.days()).chain(self.ended_ends.days()).collect()
    }

    /// The pieces, with their parameters. No two of them touch the same row of the same table.
    pub(crate) fn steps<'b>(&'b self, pieces: &'b Pieces) -> Vec<Step<'b>> {
        let mut steps = Vec::new();
        let mut add = |piece: &'b Piece, rows: usize, params: Vec<Param<'b>>| {
            steps.push(Step { piece, params, rows: Some(rows as u64) });
        };
        if !self.new.is_empty() {
            // Most tasks leave half the columns empty; then those are not even sent.
            if self.new.has_rare() {
                add(&pieces.insert_live, self.new.len(), self.new.all());
            } else {
                add(&pieces.insert_live_plain, self.new.len(), self.new.plain());
            }
        }
        if !self.changed.is_empty() {
            add(&pieces.update_live, self.changed.len(), self.changed.all());
        }
        if !self.ends.is_empty() {
            add(&pieces.end_live, self.ends.len(), self.ends.all());
        }
        if !self.ends_again.is_empty() {
            add(&pieces.end_again, self.ends_again.len(), self.ends_again.all());
        }
        if !self.revived.is_empty() {
            add(&pieces.revive, self.revived.len(), vec![(&self.revived, Type::INT8_ARRAY)]);
        }
        if !self.not_live.is_empty() {
            add(&pieces.delete_live, self.not_live.len(), vec![(&self.not_live, Type::INT8_ARRAY)]);
        }
        if !self.not_ended.is_empty() {
            add(&pieces.delete_ended, self.not_ended.len(), vec![(&self.not_ended, Type::INT8_ARRAY)]);
        }
        if !self.ended_rows.is_empty() {
            let mut all = self.ended_rows.all();
            all.extend(self.ended_ends.all());
            add(&pieces.insert_ended, self.ended_rows.len(), all);
        }
        if !self.days_gone.is_empty() {
            add(&pieces.drop_days, self.days_gone.len(), vec![(&self.days_gone, Type::INT4_ARRAY)]);
        }
        self.small_steps(pieces, &mut |piece, params| steps.push(Step { piece, params, rows: None }));
        steps
    }

    fn small_steps<'b>(&'b self, pieces: &'b Pieces, add: &mut impl FnMut(&'b Piece, Vec<Param<'b>>)) {
        let mut put =
            |put: &'b Piece, delete: &'b Piece, keys: Column<'b>, documents: &'b Vec<Vec<u8>>, gone: Column<'b>| {
                if !documents.is_empty() {
                    add(put, vec![(keys.values, keys.of.clone()), (documents, Type::BYTEA_ARRAY)]);
                }
                if !gone.is_empty {
                    add(delete, vec![(gone.values, gone.of)]);
                }
            };
        let overlays = &self.overlays;
        put(
            &pieces.put_overlays,
            &pieces.delete_overlays,
            keys(&overlays.keys),
            &overlays.values,
            keys(&overlays.deleted),
        );
        let progress = &self.progress;
        put(
            &pieces.put_progress,
            &pieces.delete_progress,
            keys(&progress.keys),
            &progress.values,
            keys(&progress.deleted),
        );
        let workers = &self.workers;
        put(&pieces.put_workers, &pieces.delete_workers, ids(&workers.keys), &workers.values, ids(&workers.deleted));
        let queues = &self.queues;
        put(&pieces.put_queues, &pieces.delete_queues, texts(&queues.keys), &queues.values, texts(&queues.deleted));
        let types = &self.types;
        put(&pieces.put_types, &pieces.delete_types, texts(&types.keys), &types.values, texts(&types.deleted));
        let single = &self.singles;
        put(
            &pieces.put_documents,
            &pieces.delete_documents,
            texts(&single.keys),
            &single.values,
            texts(&single.deleted),
        );
        let breakers = &self.breakers;
        put(
            &pieces.put_breakers,
            &pieces.delete_breakers,
            blobs(&breakers.keys),
            &breakers.values,
            blobs(&breakers.deleted),
        );
        if !self.claims.is_empty() {
            add(&pieces.put_claims, self.claims.all());
        }
        if !self.claims_deleted.is_empty() {
            add(&pieces.delete_claims, vec![(&self.claims_deleted, Type::INT8_ARRAY)]);
        }
        if !self.attempt_keys.is_empty() {
            add(
                &pieces.put_attempts,
                vec![
                    (&self.attempt_keys, Type::INT8_ARRAY),
                    (&self.attempt_nos, Type::INT4_ARRAY),
                    (&self.attempts, Type::BYTEA_ARRAY),
                ],
            );
        }
        if !self.step_keys.is_empty() {
            add(
                &pieces.insert_steps,
                vec![
                    (&self.step_keys, Type::INT8_ARRAY),
                    (&self.step_names, Type::BYTEA_ARRAY),
                    (&self.step_results, Type::BYTEA_ARRAY),
                ],
            );
        }
        if !self.new_keys.scope.is_empty() {
            add(&pieces.insert_idempotency, self.new_keys.all());
        }
        if !self.keys.scope.is_empty() {
            add(&pieces.put_idempotency, self.keys.all());
        }
        if !self.keys_deleted.is_empty() {
            add(&pieces.delete_idempotency, vec![(&self.keys_deleted, Type::UUID_ARRAY)]);
        }
        let uniques = &self.uniques;
        if !uniques.key.is_empty() {
            add(
                &pieces.put_uniques,
                vec![
                    (&uniques.key, Type::UUID_ARRAY),
                    (&uniques.task, Type::INT8_ARRAY),
                    (&uniques.created_at, Type::INT8_ARRAY),
                    (&uniques.held, Type::BOOL_ARRAY),
                    (&uniques.keep_until, Type::INT8_ARRAY),
                ],
            );
        }
        if !uniques.deleted.is_empty() {
            add(&pieces.delete_uniques, vec![(&uniques.deleted, Type::UUID_ARRAY)]);
        }
        if let Some((no, at, schema, events)) = &self.events {
            add(
                &pieces.insert_events,
                vec![(no, Type::INT8), (at, Type::INT8), (schema, Type::INT2), (events, Type::BYTEA)],
            );
        }
        if !self.gone.is_empty() {
            add(&pieces.delete_attempts, vec![(&self.gone, Type::INT8_ARRAY)]);
            add(&pieces.delete_steps, vec![(&self.gone, Type::INT8_ARRAY)]);
        }
        if !self.days_closed.is_empty() {
            add(&pieces.close_days, vec![(&self.days_closed, Type::INT4_ARRAY)]);
        }
        if !self.taken.is_empty() {
            add(&pieces.take_inbox, vec![(&self.taken, Type::INT8_ARRAY)]);
        }
    }
}

/// A column of keys.
struct Column<'a> {
    values: &'a (dyn ToSql + Sync),
    of: Type,
    is_empty: bool,
}

fn keys(values: &Vec<i64>) -> Column<'_> {
    Column { values, of: Type::INT8_ARRAY, is_empty: values.is_empty() }
}

fn ids(values: &Vec<Uuid>) -> Column<'_> {
    Column { values, of: Type::UUID_ARRAY, is_empty: values.is_empty() }
}

fn texts<'a>(values: &'a Vec<&'a str>) -> Column<'a> {
    Column { values, of: Type::TEXT_ARRAY, is_empty: values.is_empty() }
}

fn blobs(values: &Vec<Vec<u8>>) -> Column<'_> {
    Column { values, of: Type::BYTEA_ARRAY, is_empty: values.is_empty() }
}

fn needed<T>(row: Option<T>) -> Result<T, BackendError> {
    row.ok_or_else(|| BackendError::new("a new task comes without its row"))
}

fn packed(row: &EventRow) -> Result<(i64, i64, i16, Vec<u8>), BackendError> {
    let packed: Vec<PackedEvent<'_>> = row
        .events
        .iter()
        .map(|event| (event.task_id, event.version, event.actor, std::borrow::Cow::Borrowed(&event.change)))
        .collect();
    Ok((row.no as i64, row.at.as_micros(), SCHEMA as i16, encode(&packed)?))
}

/// One piece of a transaction.
pub(crate) struct Step<'a> {
    pub(crate) piece: &'a Piece,
    pub(crate) params: Vec<Param<'a>>,
    /// How many rows it must touch, where that is known.
    pub(crate) rows: Option<u64>,
}
