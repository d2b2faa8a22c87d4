//! A transaction: one statement, behind the entry of the log that fences it.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};
use uuid::Uuid;
use windlass_cluster::backend::{BackendError, Changes, CommitError, Entry, EventRow, Is, OverlayChange, Was};
use windlass_core::event::SCHEMA;
use windlass_core::limits::ATTEMPTS_KEPT;
use windlass_core::names::Text;
use windlass_core::time::Timestamp;
use windlass_ledger::journal::KeyScope;

use crate::columns::{ClaimColumns, EndColumns, PackedEvent, TaskColumns, encode};
use crate::error::{alone, in_commit, refused};
use crate::pieces::{Piece, Pieces, together};
use crate::pool::{Connection, Param};
use crate::sql::Statements;

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
    key: Vec<&'a str>,
    queue: Vec<&'a str>,
    tenant: Vec<&'a str>,
    task: Vec<i64>,
    created_at: Vec<i64>,
    digest: Vec<i64>,
    forget_at: Vec<i64>,
}

impl<'a> KeyColumns<'a> {
    fn scope(&mut self, scope: &'a KeyScope) {
        self.key.push(scope.key.as_str());
        self.queue.push(scope.queue.as_str());
        self.tenant.push(scope.tenant.as_ref().map_or("", Text::as_str));
    }

    fn scopes(&self) -> Vec<Param<'_>> {
        vec![(&self.key, Type::TEXT_ARRAY), (&self.queue, Type::TEXT_ARRAY), (&self.tenant, Type::TEXT_ARRAY)]
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
    attempts_trimmed: Vec<i64>,
    progress: Documents<i64>,
    step_keys: Vec<i64>,
    step_names: Vec<&'a [u8]>,
    step_results: Vec<&'a [u8]>,
    keys: KeyColumns<'a>,
    keys_deleted: KeyColumns<'a>,
    uniques: UniqueColumns,
    events: Option<(i64, i64, i16, Vec<u8>)>,
    workers: Documents<Uuid>,
    queues: Documents<&'a str>,
    types: Documents<&'a str>,
    /// Settings that there is one of.
    singles: Documents<&'static str>,
    breakers: Documents<Vec<u8>>,
    taken: &'a [i64],
}

/// How many attempts are kept of a task, as the statement takes it.
const KEPT: i64 = ATTEMPTS_KEPT as i64;

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
                (OverlayChange::Drop, Is::Live) => self.overlays.deleted.push(key),
                // What ends has none any more; what is gone is seen to with the rest.
                (_, Is::Ended(_)) if task.was == Was::Live => self.overlays.deleted.push(key),
                (_, Is::Ended(_) | Is::Gone) | (OverlayChange::Keep, Is::Live) => {}
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
        for (scope, row) in &changes.idempotency {
            let Some(row) = row else {
                self.keys_deleted.scope(scope);
                continue;
            };
            self.keys.scope(scope);
            self.keys.task.push(row.task.0 as i64);
            self.keys.created_at.push(row.created_at.as_micros());
            self.keys.digest.push(row.digest as i64);
            self.keys.forget_at.push(row.forget_at.as_micros());
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
        if !self.keys.key.is_empty() {
            let mut all = self.keys.scopes();
            for column in [&self.keys.task, &self.keys.created_at, &self.keys.digest, &self.keys.forget_at] {
                all.push((column, Type::INT8_ARRAY));
            }
            add(&pieces.put_idempotency, all);
        }
        if !self.keys_deleted.key.is_empty() {
            add(&pieces.delete_idempotency, self.keys_deleted.scopes());
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
    rows: Option<u64>,
}

/// How a transaction begins and whom it tells.
pub(crate) struct Frame<'a> {
    /// What begins it; none if it has begun.
    pub(crate) begin: Option<&'a str>,
    /// Whether it needs no beginning and no end: the session has all bounds.
    pub(crate) is_plain: bool,
    /// Channel and message of the hint to other nodes.
    pub(crate) hint: Option<(&'a str, String)>,
    /// The lock that is shared by those who do not wait for their turn.
    pub(crate) turn: i64,
    /// For messages.
    pub(crate) server: &'a str,
}

/// Carries the transaction out in one round trip.
pub(crate) async fn commit(
    connection: &Connection,
    sql: &Statements,
    pieces: &Pieces,
    frame: Frame<'_>,
    entry: &Entry,
    batch: &Batch<'_>,
) -> Result<(), CommitError> {
    let (no, node) = (entry.no as i64, entry.node.0 as i64);
    let fence = if entry.no == 1 { &pieces.first_fence } else { &pieces.fence };
    let params: Vec<Param<'_>> =
        vec![(&no, Type::INT8), (&node, Type::INT8), (&entry.redo, Type::BYTEA), (&frame.turn, Type::INT8)];
    let mut steps = vec![Step { piece: fence, params, rows: None }];
    steps.extend(batch.steps(pieces));
    if let Some((channel, message)) = &frame.hint {
        let params: Vec<Param<'_>> = vec![(channel, Type::TEXT), (message, Type::TEXT)];
        steps.push(Step { piece: &pieces.notify, params, rows: None });
    }
    let all: Vec<&Piece> = steps.iter().map(|step| step.piece).collect();
    let statement = together(&all);
    let params: Vec<Param<'_>> = steps.iter().flat_map(|step| step.params.iter().cloned()).collect();
    let trim: [Param<'_>; 2] = [(&batch.attempts_trimmed, Type::INT8_ARRAY), (&KEPT, Type::INT8)];
    let trims = !batch.attempts_trimmed.is_empty();

    let types = params.iter().map(|(_, of)| of.clone()).collect();
    let prepared = connection.prepare([(&statement, types)].into_iter()).await;
    // Nothing was begun yet.
    prepared.map_err(|error| CommitError::Refused(crate::error::failed(frame.server, &error)))?;

    if frame.is_plain && !trims {
        let rows = connection.query(&statement, &params).await;
        let rows = rows.map_err(|error| alone(frame.server, &error))?;
        check_counts(&steps, rows.first());
        return Ok(());
    }
    let mut futures: Vec<BoxFuture<'_, Result<Vec<Row>, Error>>> = Vec::with_capacity(4);
    if let Some(begin) = frame.begin {
        futures.push(Box::pin(async move { connection.batch(begin).await.map(|()| Vec::new()) }));
    }
    let first = futures.len();
    futures.push(Box::pin(connection.query(&statement, &params)));
    if trims {
        futures.push(Box::pin(connection.query(&sql.trim_attempts, &trim)));
    }
    futures.push(Box::pin(async move { connection.batch("COMMIT").await.map(|()| Vec::new()) }));
    let answers = send_all(futures).await;

    // If any statement failed, the commit was a rollback, though it says nothing.
    let (last, before) = answers.split_last().ok_or(CommitError::Refused(BackendError::new("nothing to commit")))?;
    if let Some(error) = before.iter().find_map(|answer| answer.as_ref().err()) {
        return Err(refused(frame.server, error));
    }
    if let Err(error) = last {
        return Err(in_commit(frame.server, error));
    }
    if let Some(Ok(rows)) = before.get(first) {
        check_counts(&steps, rows.first());
    }
    Ok(())
}

/// The fence makes it impossible that a row is not where it should be; if it happens all the same, somebody should know.
fn check_counts(steps: &[Step<'_>], answer: Option<&Row>) {
    let Some(answer) = answer else { return };
    let counted = steps.iter().filter(|step| step.piece.is_counted());
    for (column, step) in counted.enumerate() {
        let found: Option<i64> = answer.try_get(column).ok();
        if let (Some(expected), Some(found)) = (step.rows, found)
            && expected as i64 != found
        {
            tracing::error!(
                expected,
                found,
                piece = step.piece.name(),
                "a commit did not touch the rows that it should"
            );
        }
    }
}

/// Polls every future once, in order, so that everything is sent; then waits for the answers.
pub(crate) async fn send_all<T>(mut futures: Vec<BoxFuture<'_, Result<T, Error>>>) -> Vec<Result<T, Error>> {
    let mut answers: Vec<Option<Result<T, Error>>> = Vec::with_capacity(futures.len());
    std::future::poll_fn(|context| {
        for future in &mut futures {
            answers.push(match Pin::new(future).poll(context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            });
        }
        Poll::Ready(())
    })
    .await;
    for (future, answer) in futures.iter_mut().zip(&mut answers) {
        if answer.is_none() {
            *answer = Some(future.await);
        }
    }
    answers.into_iter().flatten().collect()
}
