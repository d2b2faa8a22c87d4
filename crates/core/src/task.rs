//! A task: what was asked for, and how it stands.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{EndReason, ErrorClass, ErrorReport, TaskPolicy};
use crate::ids::{LeaseToken, TaskId, WorkerId};
use crate::json::Json;
use crate::keys::{FlowKey, Unique};
use crate::names::{CapabilitySet, QueueName, TagKey, TaskType, Text};
use crate::priority::Priority;
use crate::status::Status;
use crate::time::Timestamp;

/// Tags of a task.
pub type Tags = BTreeMap<TagKey, Text>;

/// What somebody asked for. Changed only by a person's amendment or replay.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSpec {
    /// What kind of work.
    pub task_type: TaskType,
    /// Where it waits.
    pub queue: QueueName,
    /// How urgent it is.
    pub priority: Priority,
    /// What a worker must be able to do.
    pub capabilities: CapabilitySet,
    /// What the handler gets.
    pub parameters: Json,
    /// What follows from failures.
    pub policy: TaskPolicy,
    /// Not started after this time, it fails.
    pub expires_at: Option<Timestamp>,
    /// The same key within its window is the same task.
    pub idempotency_key: Option<Text>,
    /// Who must wait for whom.
    pub flow_key: Option<FlowKey>,
    /// What counts as the same work.
    pub unique: Option<Unique>,
    /// Whose task it is.
    pub tenant: Option<Text>,
    /// What people find it by.
    pub tags: Tags,
    /// The W3C `traceparent` it came with.
    pub trace_parent: Option<Text>,
}

impl TaskSpec {
    /// The trace id inside the `traceparent`.
    pub fn trace_id(&self) -> Option<&str> {
        self.trace_parent.as_ref().and_then(|parent| parent.as_str().split('-').nth(1))
    }
}

/// When a new task may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// After a delay, counted by the store's clock.
    After(Duration),
    /// At a time; at once if it has passed.
    At(Timestamp),
}

/// A task to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    /// What is asked for.
    pub spec: TaskSpec,
    /// When it may start.
    pub start: Start,
}

/// How far an attempt has come, as its worker told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// For a person.
    #[serde(default)]
    pub message: Option<String>,
    /// Which step.
    #[serde(default)]
    pub step: Option<u32>,
    /// Of how many.
    #[serde(default)]
    pub steps: Option<u32>,
    /// Anything else.
    #[serde(default)]
    pub metadata: Option<Json>,
    /// When the store took it.
    pub at: Timestamp,
}

impl Progress {
    /// How long until it is done if it goes on as since `started_at`.
    pub fn eta(&self, started_at: Timestamp, now: Timestamp) -> Option<Duration> {
        if self.percent <= 0.0 || self.percent > 100.0 {
            return None;
        }
        let took = self.at.since(started_at).as_secs_f64();
        let left = took * (100.0 - self.percent) / self.percent - now.since(self.at).as_secs_f64();
        Some(Duration::from_secs_f64(left.clamp(0.0, 3.2e9)))
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Which attempt.
    pub attempt: u32,
    /// Who ran it.
    pub worker: Option<WorkerId>,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When it failed.
    pub ended_at: Timestamp,
    /// The class of the failure.
    pub class: ErrorClass,
    /// What was reported.
    pub error: ErrorReport,
}

/// How a task stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskState {
    /// Its status.
    pub status: Status,
    /// Number of events so far.
    pub version: u32,
    /// Attempts begun and not given back.
    pub attempt: u32,
    /// Retries used up.
    pub retries: u32,
    /// Crashes counted.
    pub crashes: u32,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Its place in the line.
    pub ready_at: Timestamp,
    /// When it is, or was last, to run: later than `ready_at` only for a delayed old place.
    pub run_at: Timestamp,
    /// Waits between two attempts.
    pub retrying: bool,
    /// When the current or last attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Who runs it, or ran it last.
    pub worker: Option<WorkerId>,
    /// When the lease lapses.
    pub lease_expires_at: Option<Timestamp>,
    /// How long the current or next attempt may take.
    pub timeout: Duration,
    /// How far the current attempt is.
    pub progress: Option<Progress>,
    /// What the handler returned.
    pub result: Option<Json>,
    /// Why it ended without success.
    pub end_reason: Option<EndReason>,
    /// The parameters it was submitted with, if a person edited them since.
    pub original_parameters: Option<Json>,
    /// Whether a rule has replayed it; it does so once.
    pub auto_replayed: bool,
    /// Failed attempts, oldest first. Lists carry only the last.
    pub failed_attempts: Vec<FailedAttempt>,
}

impl TaskState {
    /// The failure a person sees first.
    pub fn last_failure(&self) -> Option<&FailedAttempt> {
        self.failed_attempts.last()
    }
}

/// A task as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What was asked for.
    pub spec: TaskSpec,
    /// How it stands.
    pub state: TaskState,
}

/// A task as a worker gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedTask {
    /// Its id.
    pub id: TaskId,
    /// What was asked for.
    pub spec: TaskSpec,
    /// Which attempt this is.
    pub attempt: u32,
    /// Crashes so far.
    pub crashes: u32,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// How long this attempt may take.
    pub timeout: Duration,
    /// The fence: every word about this attempt must carry it.
    pub token: LeaseToken,
    /// When the lease lapses unless it is renewed.
    pub lease_expires_at: Timestamp,
    /// Durable steps that earlier attempts finished.
    pub steps: BTreeMap<String, Json>,
}
