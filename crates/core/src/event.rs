//! Events: every change of a task is one, written in the transaction of the change.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::fact::Fact;
use crate::failure::{DecidedBy, EndReason, ErrorClass};
use crate::ids::{TaskId, WorkerId};
use crate::lane::LaneKey;
use crate::priority::Priority;
use crate::status::Status;
use crate::task::Tags;
use crate::time::Timestamp;

/// The form that events are written in. Older forms are read through upcasters.
pub const SCHEMA: u16 = 1;

/// What changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum Change {
    /// It was stored.
    Submitted {
        /// `queued` or `scheduled`.
        status: Status,
        /// When it may start.
        run_at: Timestamp,
    },
    /// Its time came.
    Due,
    /// A worker took it.
    Claimed {
        /// Who.
        worker: WorkerId,
        /// Which attempt.
        attempt: u32,
        /// Under which claim number.
        claim: u64,
    },
    /// It succeeded.
    Completed,
    /// An attempt failed and another follows.
    Retrying {
        /// The class of the failure.
        class: ErrorClass,
        /// The code that was reported.
        code: Option<String>,
        /// When it is tried again.
        run_at: Timestamp,
    },
    /// Its worker gave it back.
    Released,
    /// Its handler asked for later.
    Snoozed {
        /// When it is tried again.
        run_at: Timestamp,
    },
    /// Its lease lapsed.
    Lapsed {
        /// Crashes so far.
        crashes: u32,
        /// When it is tried again.
        run_at: Timestamp,
    },
    /// It ended without success.
    Failed {
        /// Why.
        reason: EndReason,
        /// The class of the last failure, if there was one.
        class: Option<ErrorClass>,
        /// Its code.
        code: Option<String>,
        /// Crashes so far.
        crashes: u32,
    },
    /// It was given up and waits for a person.
    DeadLettered {
        /// Why.
        reason: EndReason,
        /// The class of the last failure, if there was one.
        class: Option<ErrorClass>,
        /// Its code.
        code: Option<String>,
        /// Crashes so far.
        crashes: u32,
        /// What the person said who did it by hand.
        note: Option<String>,
    },
    /// Somebody cancelled it.
    Cancelled {
        /// Why, if the handler itself did.
        note: Option<String>,
    },
    /// A person let it run now, or again.
    Replayed {
        /// Retries used up from here on.
        retries: u32,
        /// Crashes from here on.
        crashes: u32,
        /// Whether the parameters were edited.
        edited: bool,
        /// The new priority, if it changed.
        priority: Option<Priority>,
        /// When it runs, if not at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_at: Option<Timestamp>,
        /// What the person said.
        note: Option<String>,
    },
    /// A person gave the dead letter up.
    Discarded {
        /// What the person said.
        note: Option<String>,
    },
    /// A submit with the same unique key took its place.
    Replaced {
        /// When it may start.
        run_at: Timestamp,
    },
    /// A person changed it while it waited.
    Amended {
        /// The new priority.
        priority: Option<Priority>,
        /// The new time.
        run_at: Option<Timestamp>,
        /// The new tags.
        tags: Option<Tags>,
    },
}

impl Change {
    /// The kind, as on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Submitted { .. } => "submitted",
            Self::Due => "due",
            Self::Claimed { .. } => "claimed",
            Self::Completed => "completed",
            Self::Retrying { .. } => "retrying",
            Self::Released => "released",
            Self::Snoozed { .. } => "snoozed",
            Self::Lapsed { .. } => "lapsed",
            Self::Failed { .. } => "failed",
            Self::DeadLettered { .. } => "dead_lettered",
            Self::Cancelled { .. } => "cancelled",
            Self::Replayed { .. } => "replayed",
            Self::Discarded { .. } => "discarded",
            Self::Replaced { .. } => "replaced",
            Self::Amended { .. } => "amended",
        }
    }
}

/// One change of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Which task.
    pub task_id: TaskId,
    /// Dense per task, from 1.
    pub version: u32,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Who caused it.
    pub actor: Actor,
    /// What changed.
    #[serde(flatten)]
    pub change: Change,
}

/// An event on its way to those who watch a store: with what it takes to count it.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The event.
    pub event: Event,
    /// The lane of the task.
    pub lane: Arc<LaneKey>,
    /// The status before, none for a new task.
    pub from: Option<Status>,
    /// The status after.
    pub to: Status,
    /// For a claim: how long the task stood ready.
    pub waited: Option<Duration>,
    /// For a claim by the overdue share: the priority it went ahead of.
    pub ahead_of: Option<Priority>,
    /// For an end of an attempt: how long it ran.
    pub ran: Option<Duration>,
    /// How old the task is.
    pub age: Duration,
    /// Attempts begun so far.
    pub attempt: u32,
    /// For an attempt that failed: what was said of it.
    pub failure: Option<Arc<FailureNote>>,
}

/// What was said of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureNote {
    /// Its class.
    pub class: ErrorClass,
    /// What put it there.
    pub decided_by: DecidedBy,
    /// Its code.
    pub code: Option<String>,
    /// Its message.
    pub message: String,
}

/// Is told what was committed, in order, right after the commit. Must not block.
pub trait Observer: Send + Sync {
    /// Takes the changes of one transaction of this node.
    fn committed(&self, changes: &[Committed]);

    /// Takes what this node learnt of a transaction of another node that shares its database. No default, so that
    /// whoever passes the one on does not forget the other.
    fn followed(&self, facts: &[Fact]);
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn committed(&self, _: &[Committed]) {}

    fn followed(&self, _: &[Fact]) {}
}
