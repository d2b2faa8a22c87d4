//! What statistics of the last minutes, hours and days need of a change: so little that nodes
//! tell each other with every entry of their log, and so the statistics of all are the same.

use std::sync::Arc;
use std::time::Duration;

use crate::event::{Change, Committed, FailureNote};
use crate::failure::{DecidedBy, EndReason, ErrorClass};
use crate::ids::TaskId;
use crate::names::TaskType;
use crate::status::Status;
use crate::time::Timestamp;

/// How much of the message of a failure statistics keep, in bytes.
pub const MESSAGE_BYTES: usize = 1_024;

/// What happened to a task, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was stored.
    Submitted,
    /// A worker took it.
    Claimed {
        /// How long it stood ready.
        waited: Duration,
    },
    /// It succeeded.
    Completed,
    /// An attempt failed, and a retry was scheduled.
    Retried(ErrorClass),
    /// An attempt failed: its lease lapsed, or it was the last.
    Failed(ErrorClass),
    /// An attempt failed, and the task was given up because it takes its workers down.
    Poisoned(ErrorClass, TaskId),
    /// Something that matters only by the status before and after.
    Other,
}

/// Changes of one transaction that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The type of the tasks.
    pub task_type: TaskType,
    /// What happened to them.
    pub happened: Happened,
    /// The status before, none for new tasks.
    pub from: Option<Status>,
    /// The status after.
    pub to: Status,
    /// Attempts that each of the tasks began, once it has ended; until then 0.
    pub attempts: u32,
    /// What was said of the failure, if a person should know of it.
    pub failure: Option<Arc<FailureNote>>,
    /// How many changes.
    pub count: u64,
}

impl Fact {
    /// What a single change is for statistics.
    pub fn of(committed: &Committed) -> Self {
        let (from, to) = (committed.from, committed.to);
        let failure = committed.failure.as_ref().filter(|note| note.needs_a_person());
        Self {
            at: committed.event.at,
            task_type: committed.lane.task_type.clone(),
            happened: happened(committed),
            from,
            to,
            attempts: if to.is_ended() { committed.attempt } else { 0 },
            failure: failure.cloned(),
            count: 1,
        }
    }

    /// How many tasks came and went: a task is there until it has ended.
    pub fn entered_and_left(&self) -> (u64, u64) {
        let was_live = self.from.is_some_and(|from| !from.is_ended());
        let is_live = !self.to.is_ended();
        (if is_live && !was_live { self.count } else { 0 }, if was_live && !is_live { self.count } else { 0 })
    }

    /// Whether there is anything to count.
    pub fn counts(&self) -> bool {
        self.happened != Happened::Other || self.entered_and_left() != (0, 0)
    }
}

impl FailureNote {
    /// Whether somebody should mend a handler or write a rule.
    pub fn needs_a_person(&self) -> bool {
        self.decided_by == DecidedBy::Nobody || matches!(self.class, ErrorClass::CodeBug | ErrorClass::Unknown)
    }
}

fn happened(committed: &Committed) -> Happened {
    match &committed.event.change {
        Change::Submitted { .. } => Happened::Submitted,
        Change::Claimed { .. } => Happened::Claimed { waited: committed.waited.unwrap_or_default() },
        Change::Completed => Happened::Completed,
        Change::Retrying { class, .. } => Happened::Retried(*class),
        Change::Lapsed { .. } => Happened::Failed(ErrorClass::WorkerLost),
        Change::Failed { reason, class, .. } | Change::DeadLettered { reason, class, .. } => {
            let class = class.unwrap_or(ErrorClass::Unknown);
            match (committed.from, reason) {
                (Some(Status::Executing), EndReason::PoisonPill) => Happened::Poisoned(class, committed.event.task_id),
                (Some(Status::Executing), _) => Happened::Failed(class),
                // A person or the clock gave it up: no attempt failed.
                _ => Happened::Other,
            }
        }
        Change::Due
        | Change::Released
        | Change::Snoozed { .. }
        | Change::Cancelled { .. }
        | Change::Replayed { .. }
        | Change::Discarded { .. }
        | Change::Replaced { .. }
        | Change::Amended { .. } => Happened::Other,
    }
}
