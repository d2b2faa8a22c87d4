//! A task as Windlass shows it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::keys::OnFailure;

/// The id of a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(String);

impl TaskId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for TaskId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

impl From<&str> for TaskId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for other tasks of its workflow.
    Blocked,
    /// Waits for a time: delayed, or between two attempts.
    Scheduled,
    /// Ready, waits for a worker.
    Queued,
    /// Leased to a worker.
    Executing,
    /// The handler succeeded.
    Completed,
    /// Ended without success and needs nobody.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Given up; waits for a person.
    DeadLetter,
}

impl Status {
    /// Whether nothing more happens by itself.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::DeadLetter => true,
            Self::Blocked | Self::Scheduled | Self::Queued | Self::Executing => false,
        }
    }
}

/// The last failure of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailureView {
    /// The handler's own code.
    pub code: Option<String>,
    /// `transient`, `rate_limited`, `timeout`, `resource`, `permanent`, `code_bug`, `worker_lost` or `unknown`.
    pub class: String,
    /// What happened.
    pub message: String,
    /// Whether another attempt can help.
    pub retriable: bool,
    /// The stack trace.
    #[serde(default)]
    pub stack: Option<String>,
}

/// How far an attempt has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgressView {
    /// 0 to 100.
    pub percent: f64,
    /// For a person.
    pub message: Option<String>,
    /// Which step.
    pub step: Option<u32>,
    /// Of how many.
    pub steps: Option<u32>,
    /// How long until it is done if it goes on as so far.
    pub eta_seconds: Option<f64>,
}

/// A task. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskView {
    /// Its id.
    pub task_id: TaskId,
    /// What kind of work.
    pub task_type: String,
    /// Where it waits.
    pub queue: String,
    /// Where it stands.
    pub status: Status,
    /// 0 to 9.
    pub priority_level: u8,
    /// Which attempt, 0 before the first.
    pub attempt: u32,
    /// Retries used up.
    pub retry_count: u32,
    /// Retries it may have.
    pub max_retries: u32,
    /// Whether it waits between two attempts.
    pub retrying: bool,
    /// When it was submitted.
    pub created_at: String,
    /// When it may start.
    pub run_at: String,
    /// When its last attempt began.
    pub started_at: Option<String>,
    /// When it ended.
    pub completed_at: Option<String>,
    /// How far it is.
    pub progress: Option<ProgressView>,
    /// What it was submitted with.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
    /// What the handler returned.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// The last failure.
    pub error: Option<FailureView>,
    /// Why it ended without success.
    pub end_reason: Option<String>,
    /// What people find it by.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Its trace.
    pub trace_id: Option<String>,
    /// The key of its submit.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// Whose task it is.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Tasks with the same key run one at a time, in the order of their submits.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// What the tasks behind it do while it waits for a retry.
    #[serde(default)]
    pub ordering_on_failure: Option<OnFailure>,
    /// At most `concurrency_limit` tasks with the same key run at once.
    #[serde(default)]
    pub concurrency_key: Option<String>,
    /// How many.
    #[serde(default)]
    pub concurrency_limit: Option<u32>,
}

impl TaskView {
    /// The result as a type.
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.result.as_ref().map_or("null", |result| result.get());
        serde_json::from_str(text).map_err(Error::json(format!("the result of task {}", self.task_id)))
    }

    /// How it ended, as the end of a sentence.
    pub(crate) fn how_it_ended(&self) -> String {
        let how = match self.status {
            Status::Completed => "completed",
            Status::Cancelled => "was cancelled",
            Status::DeadLetter => "was given up and is a dead letter",
            Status::Failed => "failed",
            Status::Blocked | Status::Scheduled | Status::Queued | Status::Executing => "has not ended",
        };
        match &self.error {
            Some(error) => format!("{how}: {} ({})", error.message, error.class),
            None => how.to_owned(),
        }
    }
}
