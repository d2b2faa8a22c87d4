//! Filters of tasks, as flags: the same for `list`, `cancel` and `bury`.

use clap::Args;
use serde_json::{Map, Value};
use windlass_core::priority::Priority;
use windlass_core::status::Status;

use crate::input::{moment, pairs};
use crate::pages::Query;

/// Which tasks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filters")]
pub struct TaskFilter {
    /// Tasks of this status, or of one of several with commas
    #[arg(long, value_parser = statuses)]
    status: Option<String>,
    /// Tasks in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Tasks of this priority: critical, high, medium, low, bulk or 0 to 9
    #[arg(long, value_parser = priority)]
    priority: Option<String>,
    /// Tasks of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Tasks with this tag
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs::tag)]
    tag: Option<(String, String)>,
    /// Tasks that this worker runs or ran last
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Tasks whose last failure has this code
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Tasks submitted since then: 2h ago, or a time such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_past)]
    since: Option<String>,
    /// Tasks submitted before then
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_past)]
    until: Option<String>,
    /// Tasks with this in their parameters, such as user.id:eq:42 (eq, gt, lt, contains)
    #[arg(long, value_name = "PATH:OP:VALUE")]
    parameter: Option<String>,
    /// Tasks with this text in their id, type, tags, error code or message
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

impl TaskFilter {
    /// The filter as a query.
    pub fn query(&self) -> Query {
        vec![
            ("status", self.status.clone()),
            ("queue", self.queue.clone()),
            ("task_type", self.task_type.clone()),
            ("priority", self.priority.clone()),
            ("tenant", self.tenant.clone()),
            ("tag", self.tag.as_ref().map(|(key, value)| format!("{key}:{value}"))),
            ("worker_id", self.worker.clone()),
            ("error_code", self.error_code.clone()),
            ("created_after", self.since.clone()),
            ("created_before", self.until.clone()),
            ("parameter", self.parameter.clone()),
            ("q", self.search.clone()),
        ]
    }

    /// The filter as fields of a body.
    pub fn body(&self) -> Map<String, Value> {
        fields(self.query())
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.query().iter().all(|(_, value)| value.is_none())
    }
}

/// A query as fields of a body. Only a priority is no text there.
pub fn fields(query: Query) -> Map<String, Value> {
    let value = |name: &str, text: String| if name == "priority" { priority_value(&text) } else { Value::String(text) };
    query.into_iter().filter_map(|(name, text)| Some((name.to_owned(), value(name, text?)))).collect()
}

/// One status or several; common other words for them are understood.
pub fn statuses(text: &str) -> Result<String, String> {
    let one = |part: &str| {
        let name = match part.trim() {
            "running" => "executing",
            "dead" | "dead-letter" => "dead_letter",
            "canceled" => "cancelled",
            other => other,
        };
        match name.parse::<Status>() {
            Ok(status) => Ok(status.as_str()),
            Err(_) => Err(format!("must be one or several of {}", Status::ALL.map(Status::as_str).join(", "))),
        }
    };
    Ok(text.split(',').map(one).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// A priority as the API knows it.
pub fn priority(text: &str) -> Result<String, String> {
    Priority::from_text(text).map(|priority| priority.to_string()).map_err(|error| error.to_string())
}

/// A priority as the value of a field.
pub fn priority_value(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_known_words() {
        assert_eq!(statuses("queued,running, dead"), Ok("queued,executing,dead_letter".to_owned()));
        let error = statuses("queued,waiting").expect_err("unknown");
        assert!(error.contains("scheduled") && error.contains("dead_letter"), "{error}");
    }

    #[test]
    fn priorities_are_names_or_levels() {
        assert_eq!(priority("normal"), Ok("medium".to_owned()));
        assert_eq!(priority_value(&priority("4").expect("a level")), 4);
        assert!(priority("10").is_err());
    }

    #[test]
    fn an_empty_filter_is_known() {
        assert!(TaskFilter::default().is_empty());
        let filter = TaskFilter { tag: Some(("k".into(), "v".into())), ..TaskFilter::default() };
        assert!(!filter.is_empty());
        assert_eq!(Value::Object(filter.body()), serde_json::json!({"tag": "k:v"}));
        let filter = TaskFilter { priority: Some("4".into()), ..TaskFilter::default() };
        assert_eq!(Value::Object(filter.body()), serde_json::json!({"priority": 4}));
    }
}
