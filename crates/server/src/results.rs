//! From what a worker wrote about an attempt to what the store takes.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::failure::ErrorReport;
use windlass_core::ids::{LeaseToken, TaskId};
use windlass_core::json::Json;
use windlass_core::limits;
use windlass_core::names::cut;
use windlass_core::retry::seconds;
use windlass_core::store::{Finish, Finished, LeaseError, Outcome};

use crate::json_body::some_json;
use crate::problem::{Code, Problem};
use crate::submit::{Builder, SubmitBody, check_size};

/// An id or token as the worker wrote it. One that cannot be read is nobody's: it fails its
/// own item as unknown or lost, not the whole call.
#[derive(Clone, Copy, Debug)]
pub struct Given<T>(pub Option<T>);

impl<'de, T: FromStr> Deserialize<'de> for Given<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self(text.parse().ok()))
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// It succeeded.
    Completed,
    /// It failed.
    Failed,
    /// Given back; the attempt does not count.
    Released,
    /// Not now; the attempt does not count.
    Snoozed,
    /// The handler found that the task is not wanted any more.
    Cancelled,
}

/// What a worker says about a failure. Only `message` is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    /// What happened, for a person; cut after 8 KiB.
    pub message: String,
    /// A stable code of the handler's own.
    pub code: Option<String>,
    /// Whether the handler thinks that a retry helps.
    pub retriable: Option<bool>,
    /// The status of an HTTP call that failed.
    #[schema(maximum = 65_535)]
    pub http_status: Option<u16>,
    /// How long to wait; wins over the computed delay.
    pub retry_after_seconds: Option<f64>,
    /// The stack trace; cut after 32 KiB.
    pub stack: Option<String>,
    /// Anything else to keep, at most 16 KiB.
    #[schema(value_type = Option<serde_json::Value>)]
    pub details: Option<Json>,
}

/// The end of one attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultBody {
    /// Which task.
    #[schema(value_type = String, format = "uuid")]
    pub task_id: Given<TaskId>,
    /// The token that came with the task.
    #[schema(value_type = String)]
    pub lease_token: Given<LeaseToken>,
    /// How it ended.
    pub status: ResultStatus,
    /// What the handler returned.
    #[serde(default, deserialize_with = "some_json")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// Why it failed; required with `failed`.
    pub error: Option<ErrorBody>,
    /// How long to wait; required with `snoozed`.
    pub snooze_seconds: Option<f64>,
    /// Why; only with `cancelled`.
    pub reason: Option<String>,
    /// Tasks to store in the same transaction; only with `completed`.
    pub enqueue: Option<Vec<SubmitBody>>,
}

/// The answer to one result of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResultAnswer {
    /// Which task; null if the id could not be read.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Whether it was taken.
    pub acknowledged: bool,
    /// Where the result put the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    /// Why it was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Ids of the tasks stored with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    pub enqueued: Vec<TaskId>,
}

impl ResultAnswer {
    /// The answer to an item.
    pub fn new(task: Option<TaskId>, outcome: Result<Finished, Problem>) -> Self {
        let mut answer =
            Self { task_id: task, acknowledged: false, status: None, code: None, detail: None, enqueued: Vec::new() };
        match outcome {
            Ok(finished) => {
                answer.acknowledged = true;
                answer.status = Some(finished.status.as_str());
                answer.enqueued = finished.follow_ups;
            }
            Err(problem) => {
                answer.code = Some(problem.code().as_str());
                answer.detail = Some(problem.detail().to_owned());
            }
        }
        answer
    }
}

impl ResultBody {
    /// The result for the store.
    pub fn into_finish(self, builder: &Builder<'_>, max_payload_bytes: usize) -> Result<Finish, Problem> {
        let task = self.task_id.0.ok_or(LeaseError::UnknownTask)?;
        let token = self.lease_token.0.ok_or(LeaseError::Lost)?;
        let outcome = self.into_outcome(builder, max_payload_bytes)?;
        Ok(Finish::new(task, token, outcome))
    }

    fn into_outcome(self, builder: &Builder<'_>, max_payload_bytes: usize) -> Result<Outcome, Problem> {
        let result = self.result.filter(|result| !result.is_null());
        if self.status != ResultStatus::Completed {
            only_with(result.is_none(), "result", "completed")?;
            only_with(self.enqueue.as_ref().is_none_or(Vec::is_empty), "enqueue", "completed")?;
        }
        only_with(self.status == ResultStatus::Failed || self.error.is_none(), "error", "failed")?;
        only_with(self.status == ResultStatus::Snoozed || self.snooze_seconds.is_none(), "snooze_seconds", "snoozed")?;
        only_with(self.status == ResultStatus::Cancelled || self.reason.is_none(), "reason", "cancelled")?;
        match self.status {
            ResultStatus::Completed => {
                if let Some(result) = &result {
                    check_size("result", result, max_payload_bytes)?;
                }
                Ok(Outcome::Completed { result, follow_ups: follow_ups(self.enqueue.unwrap_or_default(), builder)? })
            }
            ResultStatus::Failed => {
                self.error.ok_or_else(|| Problem::missing_field("error"))?.into_report().map(Outcome::Failed)
            }
            ResultStatus::Released => Ok(Outcome::Released),
            ResultStatus::Cancelled => {
                Ok(Outcome::Cancelled { note: self.reason.map(|reason| cut(reason, limits::MESSAGE_BYTES)) })
            }
            ResultStatus::Snoozed => {
                let given = self.snooze_seconds.ok_or_else(|| Problem::missing_field("snooze_seconds"))?;
                match seconds::checked(given) {
                    Some(span) if span <= limits::DELAY => Ok(Outcome::Snoozed(span)),
                    _ => Err(Problem::invalid_field("snooze_seconds", "must be from 0 to 366 days")),
                }
            }
        }
    }
}

fn only_with(holds: bool, field: &str, status: &str) -> Result<(), Problem> {
    if holds {
        Ok(())
    } else {
        Err(Problem::invalid_field(field, format_args!("can only be given with status {status}")))
    }
}

fn follow_ups(bodies: Vec<SubmitBody>, builder: &Builder<'_>) -> Result<Vec<windlass_core::task::NewTask>, Problem> {
    if bodies.len() > limits::FOLLOW_UPS {
        return Err(Problem::invalid_field("enqueue", format_args!("must have at most {} tasks", limits::FOLLOW_UPS)));
    }
    let build =
        |(index, body)| builder.build(body).map_err(|problem: Problem| problem.within(&format!("enqueue[{index}]")));
    bodies.into_iter().enumerate().map(build).collect()
}

impl ErrorBody {
    /// The report, within its bounds.
    pub fn into_report(self) -> Result<ErrorReport, Problem> {
        if self.code.as_ref().is_some_and(|code| code.is_empty() || code.len() > limits::TEXT_BYTES) {
            return Err(Problem::invalid_field("error.code", "must be 1 to 256 bytes"));
        }
        if let Some(details) = &self.details {
            check_size("error.details", details, limits::DETAILS_BYTES)?;
        }
        let retry_after_seconds = match self.retry_after_seconds.map(seconds::checked) {
            None => None,
            Some(Some(span)) if span <= limits::DELAY => Some(span),
            Some(_) => return Err(Problem::invalid_field("error.retry_after_seconds", "must be from 0 to 366 days")),
        };
        Ok(ErrorReport {
            message: cut(self.message, limits::MESSAGE_BYTES),
            code: self.code,
            retriable: self.retriable,
            http_status: self.http_status,
            retry_after_seconds,
            stack: self.stack.map(|stack| cut(stack, limits::STACK_BYTES)),
            details: self.details,
        })
    }
}

/// Keeps a list of results within its bound.
pub fn check_count(results: &[ResultBody]) -> Result<(), Problem> {
    if results.len() > limits::RESULTS {
        let rule = format_args!("must have at most {} results", limits::RESULTS);
        return Err(Problem::invalid_field("results", rule));
    }
    Ok(())
}

/// Whether a refused result is one of a lost lease, which operators count.
pub fn is_lost(problem: &Problem) -> bool {
    problem.code() == Code::LeaseLost
}
