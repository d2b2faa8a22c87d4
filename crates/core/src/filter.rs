//! Which tasks a list shows. A pure test, so that every store lists alike.

use std::str::FromStr;

use serde_json::Value;

use crate::failure::{EndReason, ErrorClass};
use crate::ids::WorkerId;
use crate::names::{QueueName, TagKey, TaskType, Text};
use crate::priority::Priority;
use crate::status::Status;
use crate::task::Task;
use crate::time::Timestamp;

/// How a parameter is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same.
    Eq,
    /// A larger number or a later text.
    Gt,
    /// A smaller number or an earlier text.
    Lt,
    /// A text with this in it, or a list with this element.
    Contains,
}

/// A test on a value inside the parameters: `user.id:eq:42`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterTest {
    path: Vec<String>,
    comparison: Comparison,
    value: Value,
}

/// The text is no parameter test.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be PATH:OP:VALUE with OP one of eq, gt, lt, contains, such as user.id:eq:42")]
pub struct BadParameterTest;

impl FromStr for ParameterTest {
    type Err = BadParameterTest;
    fn from_str(text: &str) -> Result<Self, BadParameterTest> {
        let mut parts = text.splitn(3, ':');
        let (path, op, value) = (parts.next(), parts.next(), parts.next());
        let (Some(path), Some(op), Some(value)) = (path, op, value) else { return Err(BadParameterTest) };
        let comparison = match op {
            "eq" => Comparison::Eq,
            "gt" => Comparison::Gt,
            "lt" => Comparison::Lt,
            "contains" => Comparison::Contains,
            _ => return Err(BadParameterTest),
        };
        if path.is_empty() {
            return Err(BadParameterTest);
        }
        // What is no JSON is meant as text: user.name:eq:ada needs no quotes.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        Ok(Self { path: path.split('.').map(str::to_owned).collect(), comparison, value })
    }
}

impl ParameterTest {
    fn matches(&self, parameters: &Value) -> bool {
        let mut found = parameters;
        for name in &self.path {
            let next = match found {
                Value::Array(items) => name.parse::<usize>().ok().and_then(|index| items.get(index)),
                Value::Object(fields) => fields.get(name),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
            };
            let Some(next) = next else { return false };
            found = next;
        }
        match self.comparison {
            Comparison::Eq => self.equals(found),
            Comparison::Gt => self.order(found).is_some_and(std::cmp::Ordering::is_gt),
            Comparison::Lt => self.order(found).is_some_and(std::cmp::Ordering::is_lt),
            Comparison::Contains => match found {
                Value::String(text) => text.contains(&self.text()),
                Value::Array(items) => items.iter().any(|item| self.equals(item)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
            },
        }
    }

    fn equals(&self, found: &Value) -> bool {
        found == &self.value
            || found.as_f64().is_some_and(|number| Some(number) == self.value.as_f64())
            // `id:eq:42` also finds the text "42".
            || found.as_str().is_some_and(|text| text == self.text())
    }

    fn order(&self, found: &Value) -> Option<std::cmp::Ordering> {
        match (found, &self.value) {
            (Value::Number(_), Value::Number(_)) => found.as_f64()?.partial_cmp(&self.value.as_f64()?),
            (Value::String(text), _) => Some(text.as_str().cmp(self.text().as_str())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// Which tasks a list shows. An empty filter shows all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    /// Any of these statuses; all if empty.
    pub statuses: Vec<Status>,
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub task_type: Option<TaskType>,
    /// Of this priority.
    pub priority: Option<Priority>,
    /// Of this tenant.
    pub tenant: Option<Text>,
    /// With this tag.
    pub tag: Option<(TagKey, Text)>,
    /// Run by this worker, now or last.
    pub worker: Option<WorkerId>,
    /// Submitted at or after.
    pub created_after: Option<Timestamp>,
    /// Submitted before.
    pub created_before: Option<Timestamp>,
    /// Ended at or after.
    pub ended_after: Option<Timestamp>,
    /// Ended before.
    pub ended_before: Option<Timestamp>,
    /// Whose last failure has this code.
    pub error_code: Option<String>,
    /// Whose last failure has this class.
    pub class: Option<ErrorClass>,
    /// That a rule has (or has not) replayed.
    pub auto_replayed: Option<bool>,
    /// That ended for this reason.
    pub end_reason: Option<EndReason>,
    /// Whose parameters pass this test.
    pub parameter: Option<ParameterTest>,
    /// With this text in id, type, tags, error code or message.
    pub text: Option<String>,
}

fn allows<T: PartialEq>(wanted: Option<&T>, found: &T) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

impl TaskFilter {
    /// Whether a task of this status can be shown at all.
    pub fn allows_status(&self, status: Status) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status)
    }

    /// Whether the task is shown.
    pub fn matches(&self, task: &Task) -> bool {
        let (spec, state) = (&task.spec, &task.state);
        let failure = state.last_failure();
        let within = |at: Option<Timestamp>, after: Option<Timestamp>, before: Option<Timestamp>| {
            after.is_none_or(|after| at.is_some_and(|at| at >= after))
                && before.is_none_or(|before| at.is_some_and(|at| at < before))
        };
        self.allows_status(state.status)
            && allows(self.queue.as_ref(), &spec.queue)
            && allows(self.task_type.as_ref(), &spec.task_type)
            && allows(self.priority.as_ref(), &spec.priority)
            && self.tenant.as_ref().is_none_or(|tenant| spec.tenant.as_ref() == Some(tenant))
            && self.tag.as_ref().is_none_or(|(key, value)| spec.tags.get(key) == Some(value))
            && self.worker.is_none_or(|worker| state.worker == Some(worker))
            && within(Some(state.created_at), self.created_after, self.created_before)
            && within(state.ended_at, self.ended_after, self.ended_before)
            && self.error_code.as_ref().is_none_or(|code| failure.is_some_and(|f| f.error.code.as_ref() == Some(code)))
            && self.class.is_none_or(|class| failure.is_some_and(|failure| failure.class == class))
            && allows(self.auto_replayed.as_ref(), &state.auto_replayed)
            && self.end_reason.is_none_or(|reason| state.end_reason == Some(reason))
            && self.text.as_ref().is_none_or(|text| has_text(task, text))
            && self.parameter.as_ref().is_none_or(|test| {
                serde_json::from_str(spec.parameters.as_str()).is_ok_and(|parameters| test.matches(&parameters))
            })
    }
}

fn has_text(task: &Task, text: &str) -> bool {
    let failure = task.state.last_failure().map(|failure| &failure.error);
    task.id.to_string().contains(text)
        || task.spec.task_type.as_str().contains(text)
        || task.spec.tags.iter().any(|(key, value)| key.as_str().contains(text) || value.as_str().contains(text))
        || failure.is_some_and(|error| {
            error.message.contains(text) || error.code.as_ref().is_some_and(|code| code.contains(text))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_path() {
        let parameters: Value =
            serde_json::from_str(r#"{"user":{"id":42,"name":"ada"},"tags":["a","b"],"n":"42"}"#).expect("valid");
        for (test, expected) in [
            ("user.id:eq:42", true),
            ("user.id:eq:43", false),
            ("user.id:gt:41", true),
            ("user.id:lt:42", false),
            ("user.name:eq:ada", true),
            ("user.name:contains:d", true),
            ("tags:contains:b", true),
            ("tags.0:eq:a", true),
            ("n:eq:42", true),
            ("missing:eq:1", false),
            ("user.id.x:eq:1", false),
        ] {
            let parsed: ParameterTest = test.parse().expect(test);
            assert_eq!(parsed.matches(&parameters), expected, "{test}");
        }
        for bad in ["", "a", "a:eq", "a:like:1", ":eq:1"] {
            assert!(bad.parse::<ParameterTest>().is_err(), "{bad}");
        }
    }
}
