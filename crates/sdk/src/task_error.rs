//! How a handler ends when it does not return a value.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

/// What a handler returns.
pub type TaskResult<T> = Result<T, TaskError>;

/// Why an attempt ends without a value, and what shall follow.
///
/// | | what follows |
/// |---|---|
/// | any error with `?` | tried again by the retry policy of the task |
/// | [`TaskError::retry`] | the same, with a message of your own |
/// | [`TaskError::permanent`] | a dead letter at once: no retry helps |
/// | [`TaskError::snooze`] | again after this time; the attempt does not count |
/// | [`TaskError::cancel`] | the task is cancelled |
/// | [`TaskError::release`] | the task is given back, for any worker to take at once; the attempt does not count |
///
/// Every error of the standard kind turns into one that is retried, so `?` works in handlers.
#[derive(Debug)]
pub struct TaskError(Box<Ending>);

/// How an attempt ends without a value.
#[derive(Debug)]
pub(crate) enum Ending {
    Failed(Failure),
    Snoozed(Duration),
    Cancelled(String),
    Released,
}

/// A failure as it is reported.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Failure {
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retriable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stack: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Value>,
}

impl TaskError {
    fn failed(message: String, retriable: Option<bool>) -> Self {
        Self(Box::new(Ending::Failed(Failure { message, retriable, ..Failure::default() })))
    }

    /// Something that goes away by itself: tried again.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::failed(format!("{message:#}"), Some(true))
    }

    /// Something that no retry helps: a dead letter at once.
    pub fn permanent(message: impl fmt::Display) -> Self {
        Self::failed(format!("{message:#}"), Some(false))
    }

    /// Not now: again after this time. The attempt does not count.
    pub fn snooze(span: Duration) -> Self {
        Self(Box::new(Ending::Snoozed(span)))
    }

    /// The task is not wanted any more: it is cancelled.
    pub fn cancel(why: impl fmt::Display) -> Self {
        Self(Box::new(Ending::Cancelled(why.to_string())))
    }

    /// Gives the task back, for this worker or another to take at once; the attempt does not count.
    pub fn release() -> Self {
        Self(Box::new(Ending::Released))
    }

    /// An error of whatever kind: tried again, unless rules know better.
    pub fn from_display(error: impl fmt::Display) -> Self {
        Self::failed(format!("{error:#}"), None)
    }

    /// A stable code of your own, for rules and for people who look for it.
    #[must_use]
    pub fn code(self, code: impl Into<String>) -> Self {
        self.change(|failure| failure.code = Some(code.into()))
    }

    /// The next attempt not before this time has passed.
    #[must_use]
    pub fn retry_after(self, span: Duration) -> Self {
        self.change(|failure| failure.retry_after_seconds = Some(span.as_secs_f64()))
    }

    /// The status of an HTTP call that failed; decides whether a retry helps.
    #[must_use]
    pub fn http_status(self, status: u16) -> Self {
        self.change(|failure| failure.http_status = Some(status))
    }

    /// Anything else to keep, at most 16 KiB of JSON.
    #[must_use]
    pub fn details(self, details: Value) -> Self {
        self.change(|failure| failure.details = Some(details))
    }

    fn change(mut self, change: impl FnOnce(&mut Failure)) -> Self {
        if let Ending::Failed(failure) = &mut *self.0 {
            change(failure);
        }
        self
    }

    /// What happened, for a person.
    pub fn message(&self) -> String {
        match &*self.0 {
            Ending::Failed(failure) => failure.message.clone(),
            Ending::Snoozed(span) => format!("snoozed for {span:?}"),
            Ending::Cancelled(why) => format!("cancelled: {why}"),
            Ending::Released => "given back".to_owned(),
        }
    }

    /// Whether it says that no retry helps.
    pub fn is_permanent(&self) -> bool {
        matches!(&*self.0, Ending::Failed(failure) if failure.retriable == Some(false))
    }

    /// Whether it is a failure that may pass.
    pub(crate) fn is_trouble(&self) -> bool {
        matches!(&*self.0, Ending::Failed(failure) if failure.retriable != Some(false))
    }

    /// How long it wants to wait, if it is a snooze.
    pub fn snoozed_for(&self) -> Option<Duration> {
        match &*self.0 {
            Ending::Snoozed(span) => Some(*span),
            Ending::Failed(_) | Ending::Cancelled(_) | Ending::Released => None,
        }
    }

    pub(crate) fn into_ending(self) -> Ending {
        *self.0
    }
}

/// Like `anyhow`, this is not an error itself, so that every error can become one.
impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let inner_message = inner.to_string();
            if !message.contains(&inner_message) {
                message.push_str(": ");
                message.push_str(&inner_message);
            }
            cause = inner.source();
        }
        Self::failed(message, None)
    }
}

/// What the function under `#[task]` may return: any error that can be shown, or a [`TaskError`].
pub trait IntoTaskError {
    /// The same as a task error.
    fn into_task_error(self) -> TaskError;
}

impl IntoTaskError for TaskError {
    fn into_task_error(self) -> TaskError {
        self
    }
}

impl<E: fmt::Display> IntoTaskError for E {
    fn into_task_error(self) -> TaskError {
        TaskError::from_display(self)
    }
}
