//! The rows that the open transaction changes: per thing one final state.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::ids::TaskKey;
use windlass_core::json::Json;
use windlass_ledger::journal::{Ended, Overlay, TaskRow};

use crate::backend::{Changes, Is, OverlayChange, TaskChange, Was};

/// What becomes of how a task ended.
#[derive(Debug, Default)]
enum End {
    /// Nothing.
    #[default]
    Keep,
    Put(Box<Ended>),
    Drop,
    /// Everything about the task is deleted.
    Delete,
}

/// What the open transaction says of a row.
pub(crate) enum Decided<T> {
    /// Nothing: it is as it was before.
    AsStored,
    /// There is none.
    Absent,
    /// It is this.
    There(T),
}

/// One task in the open transaction.
#[derive(Debug)]
pub(crate) struct PendingTask {
    was: Was,
    pub(crate) row: Option<Arc<TaskRow>>,
    overlay: OverlayChange,
    end: End,
}

impl PendingTask {
    fn new(was: Was) -> Self {
        Self { was, row: None, overlay: OverlayChange::Keep, end: End::Keep }
    }

    /// Whether the task is new in this transaction, so that there is nothing to read of it.
    pub(crate) fn is_new(&self) -> bool {
        self.was == Was::Absent
    }

    /// The overlay.
    pub(crate) fn overlay(&self) -> Decided<Overlay> {
        match (&self.end, &self.overlay) {
            (End::Put(_) | End::Delete, _) | (_, OverlayChange::Drop) => Decided::Absent,
            (_, OverlayChange::Put(overlay)) => Decided::There(Overlay::clone(overlay)),
            (_, OverlayChange::Keep) if self.is_new() => Decided::Absent,
            (_, OverlayChange::Keep) => Decided::AsStored,
        }
    }

    /// How it ended.
    pub(crate) fn ended(&self) -> Decided<Ended> {
        match &self.end {
            End::Put(ended) => Decided::There(Ended::clone(ended)),
            End::Drop | End::Delete => Decided::Absent,
            End::Keep if self.is_new() => Decided::Absent,
            End::Keep => Decided::AsStored,
        }
    }
}

/// Everything that the open transaction writes.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) tasks: BTreeMap<TaskKey, PendingTask>,
    /// Everything but the tasks.
    pub(crate) rest: Changes,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        let Changes {
            tasks,
            claims,
            attempts,
            progress,
            steps,
            idempotency,
            uniques,
            events,
            workers,
            queues,
            types,
            error_rules,
            breakers,
            taken,
            days,
        } = &self.rest;
        self.tasks.is_empty()
            && tasks.is_empty()
            && claims.is_empty()
            && attempts.is_empty()
            && progress.is_empty()
            && steps.is_empty()
            && idempotency.is_empty()
            && uniques.is_empty()
            && events.is_none()
            && workers.is_empty()
            && queues.is_empty()
            && types.is_empty()
            && error_rules.is_none()
            && breakers.is_empty()
            && taken.is_empty()
            && days.is_empty()
    }

    /// A task whose first change in this transaction shows where its row is.
    fn task(&mut self, key: TaskKey, was: Was) -> &mut PendingTask {
        self.tasks.entry(key).or_insert_with(|| PendingTask::new(was))
    }

    pub(crate) fn insert_task(&mut self, key: TaskKey, row: TaskRow) {
        self.task(key, Was::Absent).row = Some(Arc::new(row));
    }

    /// `ended` says that the task is not live as yet.
    pub(crate) fn change_task(&mut self, key: TaskKey, row: TaskRow, ended: bool) {
        self.task(key, if ended { Was::Ended } else { Was::Live }).row = Some(Arc::new(row));
    }

    pub(crate) fn put_overlay(&mut self, key: TaskKey, overlay: Option<&Overlay>) {
        self.task(key, Was::Live).overlay = match overlay {
            Some(overlay) => OverlayChange::Put(Box::new(overlay.clone())),
            None => OverlayChange::Drop,
        };
    }

    pub(crate) fn put_ended(&mut self, key: TaskKey, ended: &Ended) {
        self.task(key, Was::Live).end = End::Put(Box::new(ended.clone()));
    }

    pub(crate) fn drop_ended(&mut self, key: TaskKey) {
        let task = self.task(key, Was::Ended);
        // One that ended in this very transaction was live before it.
        task.end = if task.was == Was::Ended { End::Drop } else { End::Keep };
    }

    pub(crate) fn delete_task(&mut self, key: TaskKey) {
        self.task(key, Was::Ended).end = End::Delete;
    }

    /// Steps that this transaction adds to those that are there.
    pub(crate) fn steps_of(&self, key: TaskKey) -> impl Iterator<Item = (&String, &Json)> {
        self.rest.steps.iter().filter(move |(task, ..)| *task == key).map(|(_, name, result)| (name, result))
    }

    /// All changes, for the backend.
    pub(crate) fn take(&mut self) -> Changes {
        let tasks = std::mem::take(&mut self.tasks);
        let mut changes = std::mem::take(&mut self.rest);
        changes.tasks = tasks
            .into_iter()
            .map(|(key, task)| {
                let PendingTask { was, row, overlay, end } = task;
                let is = match (end, was) {
                    (End::Put(ended), _) => Is::Ended(ended),
                    (End::Delete, _) => Is::Gone,
                    (End::Keep | End::Drop, _) => Is::Live,
                };
                TaskChange { key, was, is, row, overlay }
            })
            .collect();
        changes
    }
}
