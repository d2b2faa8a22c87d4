//! What workers and Windlass say to each other, as it is on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::submission::Submission;
use crate::task_error::Failure;
use crate::view::TaskId;

#[derive(Debug, Serialize)]
pub(crate) struct Register<'a> {
    pub(crate) capacity: u32,
    pub(crate) task_types: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) queues: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) capabilities: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Registered {
    pub(crate) worker_id: String,
    pub(crate) heartbeat_interval_ms: u64,
}

/// A task as a worker gets it.
#[derive(Debug, Deserialize)]
pub(crate) struct Claimed {
    pub(crate) task_id: TaskId,
    pub(crate) task_type: String,
    pub(crate) parameters: Box<RawValue>,
    pub(crate) queue: String,
    pub(crate) attempt: u32,
    pub(crate) max_retries: u32,
    pub(crate) timeout_seconds: f64,
    pub(crate) lease_token: String,
    pub(crate) trace_id: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) created_at: String,
    pub(crate) idempotency_key: Option<String>,
    #[serde(default)]
    pub(crate) ordering_key: Option<String>,
    pub(crate) crash_count: u32,
    #[serde(default)]
    pub(crate) tags: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) steps: BTreeMap<String, Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Poll<'a> {
    pub(crate) available_capacity: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[&Outgoing]>::is_empty")]
    pub(crate) results: &'a [&'a Outgoing],
}

/// Results without a poll.
#[derive(Debug, Serialize)]
pub(crate) struct Results<'a> {
    pub(crate) results: &'a [Outgoing],
}

#[derive(Debug, Deserialize)]
pub(crate) struct Polled {
    pub(crate) tasks: Vec<Claimed>,
    pub(crate) cancel: Vec<TaskId>,
    pub(crate) results: Vec<Taken>,
}

/// The end of an attempt on its way to the server.
#[derive(Debug, Serialize)]
pub(crate) struct Outgoing {
    pub(crate) task_id: TaskId,
    pub(crate) lease_token: String,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// How an attempt ended.
#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum Outcome {
    Completed {
        result: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        enqueue: Vec<Submission>,
    },
    Failed {
        error: Failure,
    },
    Snoozed {
        snooze_seconds: f64,
    },
    Cancelled {
        reason: String,
    },
    Released,
}

/// The answer to one result.
#[derive(Debug, Deserialize)]
pub(crate) struct Taken {
    pub(crate) acknowledged: bool,
    pub(crate) code: Option<String>,
    pub(crate) detail: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Heartbeat<'a> {
    pub(crate) current_load: usize,
    pub(crate) status: &'static str,
    pub(crate) tasks: Vec<Held<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<Health>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Held<'a> {
    pub(crate) task_id: &'a TaskId,
    pub(crate) lease_token: &'a str,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Health {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_percent: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Beaten {
    pub(crate) should_drain: bool,
    pub(crate) cancel: Vec<TaskId>,
    pub(crate) lost: Vec<TaskId>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProgressCall<'a> {
    pub(crate) task_id: &'a TaskId,
    pub(crate) lease_token: &'a str,
    #[serde(flatten)]
    pub(crate) progress: &'a crate::Progress,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ProgressTaken {
    pub(crate) cancelled: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct StepCall<'a> {
    pub(crate) task_id: &'a TaskId,
    pub(crate) lease_token: &'a str,
    pub(crate) name: &'a str,
    pub(crate) result: &'a RawValue,
}

/// An answer whose content does not matter.
#[derive(Debug, Deserialize)]
pub(crate) struct Acknowledged {}
