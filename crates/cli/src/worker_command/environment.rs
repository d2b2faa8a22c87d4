//! What a program finds in its environment about its task.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass::Context;

/// The variables of one attempt. What a task does not have is empty and not absent: otherwise the program would see what
/// the worker itself was started with.
pub fn of(context: &Context, time_left: Duration) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = [
        ("WINDLASS_TASK_ID", context.task_id().to_string()),
        ("WINDLASS_TASK_TYPE", context.task_type().to_owned()),
        ("WINDLASS_ATTEMPT", context.attempt().to_string()),
        ("WINDLASS_MAX_RETRIES", context.max_retries().to_string()),
        ("WINDLASS_QUEUE", context.queue().to_owned()),
        ("WINDLASS_TRACE_ID", context.trace_id().unwrap_or_default().to_owned()),
        ("TRACEPARENT", context.trace_parent().unwrap_or_default().to_owned()),
        ("WINDLASS_IDEMPOTENCY_KEY", context.idempotency_key().unwrap_or_default().to_owned()),
        ("WINDLASS_DEADLINE_SECONDS", format!("{:.3}", time_left.as_secs_f64())),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    variables.extend(tags(context.tags()));
    variables
}

/// A variable per tag: `customer.id` is `WINDLASS_TAG_CUSTOMER_ID`.
fn tags(tags: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    tags.iter().map(|(key, value)| {
        let name: String =
            key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        (format!("WINDLASS_TAG_{name}"), value.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_names_that_a_shell_can_say() {
        let given = BTreeMap::from([("customer.id-7".to_owned(), "x y".to_owned())]);
        let variables: Vec<_> = tags(&given).collect();
        assert_eq!(variables, [("WINDLASS_TAG_CUSTOMER_ID_7".to_owned(), "x y".to_owned())]);
    }
}
