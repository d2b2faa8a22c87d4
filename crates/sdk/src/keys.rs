//! Keys of a task: what runs in order, and what counts as the same work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::submission::seconds;
use crate::view::Status;

/// What the tasks behind a failed one of the same ordering key do while it waits for its retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// They wait with it: the order is kept.
    #[default]
    Block,
    /// They go on without it.
    Skip,
}

/// What counts as the same work, and what a submit does that meets it.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::{Status, Unique};
/// // One report per customer waits or runs at a time; a second submit gives the task that is there.
/// let once = Unique::by(["task_type", "parameters.customer"]);
/// // A debounce: each submit puts the start off again.
/// let debounce = Unique::by(["task_type"]).reschedule().while_in([Status::Scheduled, Status::Queued]);
/// // A throttle: at most one an hour, also after it has ended.
/// let throttle = Unique::by(["task_type"]).keep().for_at_least(Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[must_use = "give it to `unique`"]
pub struct Unique {
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<Vec<String>>,
    #[serde(rename = "while", skip_serializing_if = "Option::is_none")]
    held_while: Option<Vec<Status>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    for_seconds: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<&'static str>,
}

impl Unique {
    /// Tasks are the same if these are equal: `task_type`, `queue`, `tenant`, `parameters`, `parameters.PATH` or
    /// `tags.KEY`. Tasks of another queue or tenant are never the same. `Unique::default()` goes by the type, the queue
    /// and all parameters.
    pub fn by<F: Into<String>>(fields: impl IntoIterator<Item = F>) -> Self {
        Self { by: Some(fields.into_iter().map(Into::into).collect()), ..Self::default() }
    }

    /// The task that is there stands, and the submit gives it. So it is unless said otherwise.
    pub fn keep(self) -> Self {
        self.on_conflict("keep")
    }

    /// The task that is there takes on everything of the new one but its id. One that runs cannot: then the submit is
    /// refused with `unique_conflict`.
    pub fn replace(self) -> Self {
        self.on_conflict("replace")
    }

    /// The task that is there starts when the new one would have. One that runs cannot: then the submit is refused with
    /// `unique_conflict`.
    pub fn reschedule(self) -> Self {
        self.on_conflict("reschedule")
    }

    /// The submit is refused with `unique_conflict`.
    pub fn error(self) -> Self {
        self.on_conflict("error")
    }

    /// The task counts while it has one of these statuses: blocked, scheduled, queued, executing, all of them unless set.
    pub fn while_in(mut self, statuses: impl IntoIterator<Item = Status>) -> Self {
        self.held_while = Some(statuses.into_iter().collect());
        self
    }

    /// And at least this long after its submit, also if it has ended.
    pub fn for_at_least(mut self, span: Duration) -> Self {
        self.for_seconds = Some(span);
        self
    }

    fn on_conflict(mut self, what: &'static str) -> Self {
        self.on_conflict = Some(what);
        self
    }
}

/// By what a submit was known, and what became of the task that was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeduplicatedBy {
    /// By its idempotency key: it is the same submit.
    IdempotencyKey,
    /// By its unique key: the task that was there stands.
    UniqueKept,
    /// By its unique key: the task that was there has become the new one, under its old id.
    UniqueReplaced,
    /// By its unique key: the task that was there starts when the new one would have.
    UniqueRescheduled,
    /// By something that this version does not know.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_set_is_left_to_the_server() {
        let sent = |unique: Unique| serde_json::to_value(unique).expect("JSON");
        assert_eq!(sent(Unique::default()), json!({}));
        let all = Unique::by(["task_type", "parameters.id"])
            .reschedule()
            .while_in([Status::Scheduled, Status::Queued])
            .for_at_least(Duration::from_millis(1_500));
        let wanted = json!({
            "by": ["task_type", "parameters.id"], "on_conflict": "reschedule",
            "while": ["scheduled", "queued"], "for_seconds": 1.5,
        });
        assert_eq!(sent(all), wanted);
        // Refused by the server, not taken for the default.
        assert_eq!(sent(Unique::by::<String>([])), json!({"by": []}));
    }

    #[test]
    fn what_a_newer_server_says_is_no_error() {
        let read = |text: &str| serde_json::from_value::<DeduplicatedBy>(json!(text)).expect("read");
        assert_eq!(read("unique_replaced"), DeduplicatedBy::UniqueReplaced);
        assert_eq!(read("telepathy"), DeduplicatedBy::Other);
    }
}
