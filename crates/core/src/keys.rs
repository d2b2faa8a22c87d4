//! Keys of a task: who must wait for whom, and what counts as the same work.
//!
//! All keys are scoped to their queue, unique keys to the tenant as well.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use crate::names::{QueueName, Text};
use crate::status::Status;
use crate::task::TaskSpec;

/// What the line behind an ordering key does while its first task waits for a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Waits with it.
    #[default]
    Block,
    /// Goes on; the task steps to the back.
    Skip,
}

/// Who must wait for whom. A task has one kind of key or the other, never both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowKey {
    /// Tasks with the same key run one at a time, in the order of their submits.
    Ordering {
        /// The key.
        key: Text,
        /// What the line does while the task waits for a retry.
        #[serde(default)]
        on_failure: OnFailure,
    },
    /// At most so many tasks with the same key run at once.
    Concurrency {
        /// The key.
        key: Text,
        /// How many. The limit of the newest task that has not ended applies.
        limit: u32,
    },
}

impl FlowKey {
    /// The key's text.
    pub fn key(&self) -> &Text {
        match self {
            Self::Ordering { key, .. } | Self::Concurrency { key, .. } => key,
        }
    }
}

/// What happens to a submit that meets a task with the same unique key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The task that is there stands.
    #[default]
    Keep,
    /// The task that is there takes on everything of the new one but its id.
    Replace,
    /// The task that is there starts when the new one would have: a debounce.
    Reschedule,
    /// The submit is refused.
    Error,
}

/// A digest of what makes a task unique, wide enough that two never meet by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UniqueKey(#[serde(with = "hexadecimal")] pub u128);

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(key: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{key:032x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}

/// Uniqueness of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// What makes it unique.
    pub key: UniqueKey,
    /// The key is given back by the change that leads out of these.
    #[serde(rename = "while")]
    pub held_while: Vec<Status>,
    /// The key is kept at least this long after the submit, also if the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::retry::seconds::optional")]
    pub for_seconds: Option<Duration>,
    /// What a submit that meets it does.
    pub on_conflict: OnConflict,
}

impl Unique {
    /// Whether a task of this status still has its key, time aside.
    pub fn is_held(&self, status: Status) -> bool {
        self.held_while.contains(&status)
    }
}

/// Statuses in which a unique key is held unless the submitter says otherwise.
pub const HELD_WHILE: [Status; 4] = [Status::Blocked, Status::Scheduled, Status::Queued, Status::Executing];

/// A field that uniqueness cannot go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUnique {
    /// Not a field of a task.
    #[error(
        "'{0}' is no field that a task can be unique by; take task_type, queue, tenant, parameters, parameters.PATH or tags.KEY"
    )]
    UnknownField(String),
    /// The task has no such value.
    #[error("the task has no {0}")]
    Missing(String),
    /// Nothing was named.
    #[error("must name at least one field")]
    Empty,
}

/// The digest of the fields named by `by`. Queue and tenant always count: keys never reach
/// across them.
pub fn unique_key(spec: &TaskSpec, by: &[String]) -> Result<UniqueKey, BadUnique> {
    if by.is_empty() {
        return Err(BadUnique::Empty);
    }
    let mut fields: Vec<&str> = by.iter().map(String::as_str).collect();
    fields.sort_unstable();
    fields.dedup();
    let parameters: Value = serde_json::from_str(spec.parameters.as_str()).unwrap_or(Value::Null);
    let mut hasher = SipHasher13::new_with_keys(0x756e_6971, 0x7565_6b65);
    let mut add = |name: &str, value: &str| {
        for part in [name, value] {
            hasher.write_u64(part.len() as u64);
            hasher.write(part.as_bytes());
        }
    };
    add("queue", spec.queue.as_str());
    add("tenant", spec.tenant.as_ref().map_or("", Text::as_str));
    for field in fields {
        match field {
            "queue" | "tenant" => {}
            "task_type" => add(field, spec.task_type.as_str()),
            "parameters" => add(field, &parameters.to_string()),
            _ => match field.split_once('.') {
                Some(("parameters", path)) => {
                    let pointer = format!("/{}", path.replace('~', "~0").replace('/', "~1").replace('.', "/"));
                    let value = parameters.pointer(&pointer).ok_or_else(|| BadUnique::Missing(field.to_owned()))?;
                    add(field, &value.to_string());
                }
                Some(("tags", key)) => {
                    let value = spec.tags.iter().find(|(name, _)| name.as_str() == key);
                    let (_, value) = value.ok_or_else(|| BadUnique::Missing(field.to_owned()))?;
                    add(field, value.as_str());
                }
                _ => return Err(BadUnique::UnknownField(field.to_owned())),
            },
        }
    }
    Ok(UniqueKey(hasher.finish128().as_u128()))
}

/// A flow key with the queue it is scoped to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedKey {
    /// The queue.
    pub queue: QueueName,
    /// The key.
    pub key: Text,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::TaskPolicy;
    use crate::json::Json;
    use crate::names::{CapabilitySet, TaskType};
    use crate::priority::Priority;
    use crate::retry::RetryPolicy;

    fn spec(queue: &str, parameters: &str) -> TaskSpec {
        TaskSpec {
            task_type: TaskType::new("t").expect("a name"),
            queue: QueueName::new(queue).expect("a name"),
            priority: Priority::MEDIUM,
            capabilities: CapabilitySet::default(),
            parameters: Json::from_text(parameters.to_owned()).expect("JSON"),
            policy: TaskPolicy {
                timeout: Duration::from_secs(1),
                max_retries: 0,
                max_crashes: 1,
                dead_letter: true,
                retry: RetryPolicy::default(),
            },
            expires_at: None,
            idempotency_key: None,
            flow_key: None,
            unique: None,
            tenant: None,
            tags: [(crate::names::TagKey::new("k").expect("a key"), Text::new("v").expect("a text"))].into(),
            trace_parent: None,
        }
    }

    fn by(fields: &[&str]) -> Vec<String> {
        fields.iter().map(|field| (*field).to_owned()).collect()
    }

    #[test]
    fn the_named_fields_decide_and_order_does_not() {
        let one = spec("q", r#"{"a": 1, "b": {"c": [5]}}"#);
        let two = spec("q", r#"{"b":{"c":[5]},"a":1}"#);
        let other = spec("q", r#"{"b":{"c":[5]},"a":2}"#);
        let key = |spec: &TaskSpec, fields: &[&str]| unique_key(spec, &by(fields)).expect("sound");
        assert_eq!(key(&one, &["task_type", "parameters"]), key(&two, &["parameters", "task_type", "queue"]));
        assert_ne!(key(&one, &["parameters"]), key(&other, &["parameters"]));
        assert_eq!(key(&one, &["parameters.b.c"]), key(&other, &["parameters.b.c"]));
        assert_eq!(key(&one, &["parameters.b.c.0", "tags.k"]), key(&two, &["tags.k", "parameters.b.c.0"]));
        assert_ne!(key(&one, &["task_type"]), key(&spec("r", "{}"), &["task_type"]));
    }

    #[test]
    fn fields_that_do_not_exist_are_refused() {
        let spec = spec("q", r#"{"a": 1}"#);
        for (fields, expected) in [
            (by(&["colour"]), BadUnique::UnknownField("colour".into())),
            (by(&["parameters.b"]), BadUnique::Missing("parameters.b".into())),
            (by(&["tags.x"]), BadUnique::Missing("tags.x".into())),
            (by(&[]), BadUnique::Empty),
        ] {
            assert_eq!(unique_key(&spec, &fields), Err(expected));
        }
    }

    #[test]
    fn a_unique_key_reads_what_it_wrote() {
        let key = UniqueKey(u128::MAX / 3);
        let text = serde_json::to_string(&key).expect("text");
        assert_eq!(serde_json::from_str::<UniqueKey>(&text).expect("a key"), key);
    }
}
