//! What can go wrong between an application and Windlass.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::view::TaskView;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("the address {address} cannot be used: {reason}")]
    Address {
        /// As given, without secrets.
        address: String,
        /// Why.
        reason: String,
    },
    /// The embedded store cannot be opened.
    #[error("cannot open the store {address}: {reason}")]
    Store {
        /// Which store.
        address: String,
        /// Why.
        reason: String,
    },
    /// No server answered. A call that writes may have been carried out if [`Unreachable::may_have_happened`].
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Windlass refused the call. Nothing changed, unless `applied` of the problem says otherwise.
    #[error(transparent)]
    Refused(#[from] Box<Problem>),
    /// Something answered that is not Windlass, or a version that this one does not understand.
    #[error("{address} gave an answer that was not understood: {reason}")]
    BadAnswer {
        /// Who answered.
        address: String,
        /// What was wrong with it.
        reason: String,
    },
    /// PostgreSQL did not take the tasks of a transaction (feature `postgres`). As after any error, the transaction can
    /// only be rolled back.
    #[error("the tasks cannot be written{}: {reason}", in_brackets(sql_state.as_deref()))]
    Database {
        /// The five characters of the SQL state, if the server answered: `22023` is a task that is wrong.
        sql_state: Option<String>,
        /// What the server said, or what happened to the connection.
        reason: String,
        /// The error of `tokio-postgres`.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A value has no JSON form, or JSON is not of the wanted type.
    #[error("{what}: {source}")]
    Json {
        /// Which value.
        what: String,
        /// What serde says.
        source: serde_json::Error,
    },
    /// The task that was waited for ended without success.
    #[error("task {} ({}) {}", .0.task_id, .0.task_type, .0.how_it_ended())]
    TaskDidNotSucceed(Box<TaskView>),
    /// The time to wait is over and the task has not ended.
    #[error("task {task_id} has not ended after {waited:?}")]
    StillRunning {
        /// Which task.
        task_id: crate::TaskId,
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// The worker cannot be started as it is set up.
    #[error("the worker cannot start: {0}")]
    Worker(String),
}

impl Error {
    /// The problem document, if Windlass refused the call.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// The stable code of a refusal, such as `task_not_found`.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// The SQL state, if PostgreSQL refused the tasks of a transaction.
    pub fn sql_state(&self) -> Option<&str> {
        match self {
            Self::Database { sql_state, .. } => sql_state.as_deref(),
            _ => None,
        }
    }

    /// How long the server asks to be left alone.
    pub(crate) fn retry_after(&self) -> std::time::Duration {
        let seconds = self.problem().and_then(|problem| problem.retry_after_seconds);
        std::time::Duration::from_secs(seconds.unwrap_or(0))
    }

    pub(crate) fn json(what: impl Into<String>) -> impl FnOnce(serde_json::Error) -> Self {
        let what = what.into();
        move |source| Self::Json { what, source }
    }
}

fn in_brackets(sql_state: Option<&str>) -> String {
    sql_state.map(|state| format!(" ({state})")).unwrap_or_default()
}

/// Nobody answered.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no answer from {}: {reason}", addresses.join(", "))]
pub struct Unreachable {
    /// Which addresses were tried.
    pub addresses: Vec<String>,
    /// What happened at the last one.
    pub reason: String,
    /// Whether a call may have arrived although its answer did not.
    pub may_have_happened: bool,
}

/// A refusal of Windlass: a problem document (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// The kind of problem in words.
    #[serde(default)]
    pub title: String,
    /// What was wrong with this call.
    #[serde(default)]
    pub detail: String,
    /// The field at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The item of a batch at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// When to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// Whether a write may have happened: `no` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    /// The id of the request, to be found in the server's log.
    #[serde(default)]
    pub request_id: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)?;
        if let Some(index) = self.index {
            write!(f, ", item {index}")?;
        }
        Ok(())
    }
}

impl Problem {
    /// Whether what was sent is at fault: sending it again as it is will not help.
    pub(crate) fn blames_the_body(&self) -> bool {
        matches!(self.status, 400 | 413 | 422)
    }

    /// Whether the attempt is not this worker's any more, or cannot take what was sent.
    pub(crate) fn is_about_the_lease(&self) -> bool {
        matches!(self.code.as_str(), "lease_lost" | "task_not_found" | "too_many_steps")
    }

    /// Whether trying again later may help.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.status, 429 | 502..=504)
    }
}
