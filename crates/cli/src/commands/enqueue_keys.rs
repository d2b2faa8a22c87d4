//! The flags of `windlass enqueue` about keys: what runs in order, how many at once, what counts as the same work.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use windlass_core::keys::HELD_WHILE;
use windlass_core::limits;
use windlass_core::status::Status;

use crate::filter::statuses;
use crate::input::duration;

/// What makes tasks the same where `--unique` does not say.
const SAME: &str = "task_type,parameters";

// No doc comment: clap would take it for what the command is about.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Keys")]
pub struct Keys {
    /// Tasks with the same key run one at a time, in the order of their submits
    #[arg(long, value_name = "KEY", conflicts_with = "concurrency_key")]
    ordering_key: Option<String>,
    /// What tasks behind it do while it waits for a retry [default: block]
    #[arg(long, value_name = "block|skip", value_parser = ["block", "skip"], requires = "ordering_key", hide_possible_values = true)]
    on_failure: Option<String>,
    /// At most --concurrency-limit tasks with the same key run at once
    #[arg(long, value_name = "KEY", requires = "concurrency_limit")]
    concurrency_key: Option<String>,
    /// How many tasks of the concurrency key may run at once
    #[arg(long, value_name = "N", requires = "concurrency_key", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::CONCURRENCY)))]
    concurrency_limit: Option<u32>,
    /// The same work only once: where these fields are equal [without FIELDS: task_type,parameters]
    #[arg(long, value_name = "FIELDS", num_args = 0..=1, default_missing_value = SAME, value_parser = unique_fields)]
    unique: Option<String>,
    /// What happens to the task that is there: keep it, replace or reschedule it, or refuse with error [default: keep]
    #[arg(long, value_name = "keep|replace|reschedule|error", value_parser = ["keep", "replace", "reschedule", "error"], requires = "unique", hide_possible_values = true)]
    on_conflict: Option<String>,
    /// It counts as the same work at least this long after its submit, also if it has ended
    #[arg(long, value_name = "DURATION", value_parser = unique_for, requires = "unique")]
    unique_for: Option<Duration>,
    /// It counts while it has one of these statuses [default: blocked,scheduled,queued,executing]
    #[arg(long, value_name = "STATUSES", value_parser = unique_while, requires = "unique")]
    unique_while: Option<String>,
}

/// The names of these flags, for flags that exclude them.
pub const NAMES: [&str; 8] = [
    "ordering_key",
    "on_failure",
    "concurrency_key",
    "concurrency_limit",
    "unique",
    "on_conflict",
    "unique_for",
    "unique_while",
];

fn unique_fields(text: &str) -> Result<String, String> {
    let is_known = |field: &str| {
        matches!(field, "task_type" | "queue" | "tenant" | "parameters")
            || [("parameters.", field), ("tags.", field)]
                .into_iter()
                .any(|(start, field)| field.strip_prefix(start).is_some_and(|rest| !rest.is_empty()))
    };
    let fields: Vec<_> = text.split(',').map(str::trim).collect();
    if fields.iter().all(|field| is_known(field)) {
        return Ok(fields.join(","));
    }
    Err("must be one or several of task_type, queue, tenant, parameters, parameters.PATH and tags.KEY, with commas; \
         for the usual ones put --unique last"
        .to_owned())
}

fn unique_for(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::from_millis(1), limits::DELAY)
}

fn unique_while(text: &str) -> Result<String, String> {
    let rule = || format!("must be one or several of {}, with commas", HELD_WHILE.map(Status::as_str).join(", "));
    let named = statuses(text).map_err(|_| rule())?;
    let can_be_held = |name: &str| HELD_WHILE.iter().any(|status| status.as_str() == name);
    if named.split(',').all(can_be_held) { Ok(named) } else { Err(rule()) }
}

impl Keys {
    /// Puts them into the body of a submit.
    pub fn put_into(&self, body: &mut Map<String, Value>) {
        fn set(body: &mut Map<String, Value>, name: &str, value: Option<Value>) {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        }
        let text = |text: &Option<String>| text.clone().map(Value::String);
        let list = |text: &str| Value::from(text.split(',').collect::<Vec<_>>());
        set(body, "ordering_key", text(&self.ordering_key));
        set(body, "ordering_on_failure", text(&self.on_failure));
        set(body, "concurrency_key", text(&self.concurrency_key));
        set(body, "concurrency_limit", self.concurrency_limit.map(Value::from));
        let Some(by) = &self.unique else { return };
        let mut unique = Map::from_iter([("by".to_owned(), list(by))]);
        set(&mut unique, "while", self.unique_while.as_deref().map(list));
        set(&mut unique, "for_seconds", self.unique_for.map(|span| Value::from(span.as_secs_f64())));
        set(&mut unique, "on_conflict", text(&self.on_conflict));
        set(body, "unique", Some(Value::Object(unique)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_statuses_are_known_words() {
        assert_eq!(
            unique_fields("task_type, parameters.user.id,tags.customer").as_deref(),
            Ok("task_type,parameters.user.id,tags.customer")
        );
        for text in ["", "send_email", "parameters.", "tags", "task_type,,queue"] {
            assert!(unique_fields(text).is_err(), "{text}");
        }
        assert_eq!(unique_while("queued,running").as_deref(), Ok("queued,executing"));
        for text in ["completed", "waiting", ""] {
            assert!(unique_while(text).is_err(), "{text}");
        }
    }
}
