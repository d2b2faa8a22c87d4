//! Tasks as rows of a table.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::escape::plain;
use super::screen::Tint;
use super::table::{Column, Field, Fit, field};
use crate::input::{duration, moment};

/// A task of the API: what is shown of it. Fields that an older server does not have are taken as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_field_names, reason = "the names on the wire")]
pub struct Task {
    pub task_id: String,
    pub task_type: String,
    pub queue: String,
    pub status: String,
    pub priority: Value,
    pub effective_priority: Value,
    pub attempt: u32,
    pub retry_count: u32,
    pub max_retries: u32,
    pub crash_count: u32,
    pub retrying: bool,
    pub created_at: String,
    pub run_at: String,
    pub started_at: Option<String>,
    pub completed_at: Option<String>,
    pub expires_at: Option<String>,
    pub timeout_seconds: f64,
    pub required_capabilities: Vec<String>,
    pub assigned_worker_id: Option<String>,
    pub lease_expires_at: Option<String>,
    pub progress: Option<Progress>,
    pub error: Option<Failure>,
    pub end_reason: Option<String>,
    pub idempotency_key: Option<String>,
    pub ordering_key: Option<String>,
    pub ordering_on_failure: Option<String>,
    pub concurrency_key: Option<String>,
    pub concurrency_limit: Option<u32>,
    pub unique: Option<Unique>,
    pub tenant: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub trace_id: Option<String>,
    pub parameters: Option<Box<RawValue>>,
    pub original_parameters: Option<Box<RawValue>>,
    pub result: Option<Box<RawValue>>,
    pub attempts: Vec<Attempt>,
    pub history: Vec<Event>,
}

/// What counts as the same work.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Unique {
    #[serde(rename = "while")]
    pub held_while: Vec<String>,
    pub for_seconds: Option<f64>,
    pub on_conflict: String,
}

/// How far an attempt has come.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Progress {
    pub percent: f64,
    pub message: Option<String>,
    pub step: Option<u32>,
    pub steps: Option<u32>,
    pub eta_seconds: Option<f64>,
}

/// A failure.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub code: Option<String>,
    pub class: String,
    pub message: String,
    pub http_status: Option<u16>,
    pub stack: Option<String>,
    pub details: Option<Box<RawValue>>,
}

/// A failed attempt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_field_names, reason = "the names on the wire")]
pub struct Attempt {
    pub attempt: u32,
    pub started_at: String,
    pub ended_at: String,
    pub error: Failure,
}

/// One change of a task.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub at: String,
    pub actor: String,
    pub kind: String,
    pub data: Option<Value>,
}

impl Task {
    /// Whether nothing more happens by itself.
    pub fn is_ended(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled" | "dead_letter")
    }

    /// Whether it waits.
    pub fn is_waiting(&self) -> bool {
        matches!(self.status.as_str(), "queued" | "scheduled" | "blocked")
    }

    /// Attempts so far, of how many there may be.
    pub fn attempts_shown(&self) -> String {
        format!("{}/{}", self.attempt, self.max_retries.saturating_add(1).max(self.attempt))
    }
}

/// A JSON value in a cell: texts without quotes.
pub fn word(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        Value::Null => "-".to_owned(),
        other => plain(&other.to_string()),
    }
}

impl Failure {
    /// What happened, in one line.
    pub fn line(&self) -> String {
        match &self.code {
            Some(code) => format!("{}: {}", plain(code), plain(&self.message)),
            None => plain(&self.message),
        }
    }
}

impl Progress {
    /// How far, in one line.
    pub fn line(&self) -> String {
        let mut text = format!("{:.0}%", self.percent);
        if let (Some(step), Some(steps)) = (self.step, self.steps) {
            text.push_str(&format!(" step {step}/{steps}"));
        }
        if let Some(message) = &self.message {
            text.push_str(&format!(" {}", plain(message)));
        }
        if let Some(eta) = self.eta_seconds.filter(|eta| *eta >= 1.0) {
            text.push_str(&format!(", about {} left", duration::rough_seconds(eta)));
        }
        text
    }
}

/// The columns of a list of tasks.
pub const COLUMNS: &[Column] = &[
    Column::text("id", Fit::Whole),
    Column::text("type", Fit::Cut(12)),
    Column::text("queue", Fit::Optional(3)),
    Column::text("priority", Fit::Optional(2)),
    Column::text("status", Fit::Whole),
    Column::number("attempt", Fit::Optional(1)),
    Column::number("age", Fit::Whole),
    Column::text("note", Fit::Cut(20)),
];

/// The row of a task.
pub fn row(task: &Task) -> Vec<Field> {
    let now = moment::now();
    vec![
        field(plain(&task.task_id)),
        field(plain(&task.task_type)),
        field(plain(&task.queue)),
        field(word(&task.priority)),
        (Tint::of_status(&task.status), plain(&task.status)),
        field(task.attempts_shown()),
        field(moment::age(&task.created_at, now)),
        note(task, now),
    ]
}

/// What is worth knowing beside the status.
fn note(task: &Task, now: jiff::Timestamp) -> Field {
    let error = task.error.as_ref().map(Failure::line);
    match (task.status.as_str(), &task.progress, error) {
        ("executing", Some(progress), _) => (Tint::Active, progress.line()),
        ("scheduled", _, Some(error)) => (Tint::Dim, format!("retry {}: {error}", moment::relative(&task.run_at, now))),
        ("scheduled", _, None) => (Tint::Dim, format!("runs {}", moment::relative(&task.run_at, now))),
        ("failed" | "dead_letter", _, Some(error)) => (Tint::Dim, error),
        ("failed" | "dead_letter" | "cancelled", _, None) => {
            (Tint::Dim, plain(task.end_reason.as_deref().unwrap_or("")))
        }
        ("queued" | "executing", _, Some(error)) => (Tint::Dim, format!("last: {error}")),
        _ => field(""),
    }
}

/// The columns of a list of dead letters.
pub const DEAD_COLUMNS: &[Column] = &[
    Column::text("id", Fit::Whole),
    Column::text("type", Fit::Cut(12)),
    Column::text("queue", Fit::Optional(2)),
    Column::text("priority", Fit::Optional(1)),
    Column::number("attempts", Fit::Optional(3)),
    Column::text("reason", Fit::Optional(4)),
    Column::number("dead for", Fit::Whole),
    Column::text("error", Fit::Cut(20)),
];

/// The row of a dead letter.
pub fn dead_row(task: &Task) -> Vec<Field> {
    let since = task.completed_at.as_deref().unwrap_or(&task.created_at);
    vec![
        field(plain(&task.task_id)),
        field(plain(&task.task_type)),
        field(plain(&task.queue)),
        field(word(&task.priority)),
        field(task.attempt.to_string()),
        (Tint::Bad, plain(task.end_reason.as_deref().unwrap_or("-"))),
        field(moment::age(since, moment::now())),
        (Tint::Dim, task.error.as_ref().map(Failure::line).unwrap_or_default()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_escape_what_users_wrote_and_have_a_field_per_column() {
        let task = Task {
            status: "dead_letter".into(),
            error: Some(Failure { message: "\u{1b}[2Jgone".into(), ..Failure::default() }),
            ..Task::default()
        };
        for (row, columns) in [(row(&task), COLUMNS), (dead_row(&task), DEAD_COLUMNS)] {
            assert_eq!(row.len(), columns.len());
            assert_eq!(row.last().expect("a note").1, "\\u{1b}[2Jgone");
        }
    }

    #[test]
    fn attempts_are_told_with_their_bound() {
        let task = |attempt, max_retries| Task { attempt, max_retries, ..Task::default() }.attempts_shown();
        assert_eq!(task(1, 3), "1/4");
        assert_eq!(task(6, 3), "6/6");
    }
}
