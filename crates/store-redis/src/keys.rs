//! The names of all keys. Everything that must change together has the same hash tag, so that
//! a cluster keeps it on one server: the log and what is small, each queue, and slices of the
//! unique keys.

use windlass_core::ids::TaskKey;
use windlass_core::keys::UniqueKey;
use windlass_core::names::QueueName;

/// Tasks whose places stand in one string of the directory.
pub(crate) const SEGMENT_TASKS: u64 = 4_096;

/// The tag of the log and of what is small.
pub(crate) const LOG_TAG: &str = "log";

/// Unique keys do not tell their queue, so they are spread by themselves.
const UNIQUE_SLICES: u128 = 16;

/// The names of keys under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

/// The tag of a queue.
pub(crate) fn queue_tag(queue: &QueueName) -> String {
    format!("q:{queue}")
}

/// The tag of a unique key.
pub(crate) fn unique_tag(key: UniqueKey) -> String {
    format!("u:{}", key.0 % UNIQUE_SLICES)
}

/// All tags of unique keys.
pub(crate) fn unique_tags() -> impl Iterator<Item = String> {
    (0..UNIQUE_SLICES).map(|slice| format!("u:{slice}"))
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// A key of the log's own tag.
    pub(crate) fn log(&self, name: &str) -> String {
        self.of(LOG_TAG, name)
    }

    /// A key of another tag.
    pub(crate) fn of(&self, tag: &str, name: &str) -> String {
        format!("{}:{{{tag}}}:{name}", self.prefix)
    }

    /// A key of one task.
    pub(crate) fn of_task(&self, tag: &str, name: &str, task: TaskKey) -> String {
        format!("{}:{{{tag}}}:{name}:{}", self.prefix, task.0)
    }

    /// The segment of the directory that a task is in.
    pub(crate) fn segment(&self, segment: u64) -> String {
        self.of(LOG_TAG, &format!("places:{segment}"))
    }
}

/// Names of the keys of a queue's tag.
pub(crate) mod queue {
    /// Live tasks as submitted: a hash by task.
    pub(crate) const LIVE: &str = "live";
    /// How live tasks stand: a hash by task.
    pub(crate) const OVERLAYS: &str = "overlays";
    /// Ended tasks: a hash by task of how it ended and what was submitted.
    pub(crate) const ENDED: &str = "ended";
    /// When ended tasks may be deleted: a sorted set.
    pub(crate) const KEPT: &str = "kept";
    /// Progress: a hash by task.
    pub(crate) const PROGRESS: &str = "progress";
    /// Failed attempts of a task: a list.
    pub(crate) const ATTEMPTS: &str = "attempts";
    /// Durable steps of a task: a hash.
    pub(crate) const STEPS: &str = "steps";
    /// Idempotency keys: a hash, and a sorted set of when they may be forgotten.
    pub(crate) const KEYS: &str = "keys";
    pub(crate) const KEYS_KEPT: &str = "keys-kept";
    /// Unique keys of a slice: a hash, and a sorted set of when those that nobody holds may be forgotten.
    pub(crate) const UNIQUES: &str = "uniques";
    pub(crate) const UNIQUES_KEPT: &str = "uniques-kept";
    /// The last entry of the log that was applied to the tag.
    pub(crate) const APPLIED: &str = "applied";
}

/// Names of the keys of the log's tag.
pub(crate) mod log {
    /// The entries: a stream.
    pub(crate) const LOG: &str = "log";
    /// The secret and the last entry: a hash.
    pub(crate) const META: &str = "meta";
    /// The number of the last entry alone, so that whoever waits for it gets little: a stream.
    pub(crate) const BELL: &str = "bell";
    /// Whose turn it is to write.
    pub(crate) const TURN: &str = "turn";
    /// The events: a stream.
    pub(crate) const EVENTS: &str = "events";
    /// The last entry that touched each tag: a hash.
    pub(crate) const TOUCHED: &str = "touched";
    /// What entries do in other tags: a stream.
    pub(crate) const INTENTS: &str = "intents";
    /// Who leads.
    pub(crate) const LEADER: &str = "leader";
    /// The numbers of queues: a hash by name.
    pub(crate) const QUEUE_NUMBERS: &str = "queue-numbers";
    /// The segments of the directory that are there: a sorted set.
    pub(crate) const SEGMENTS: &str = "segments";
    /// Dead letters: a sorted set by task.
    pub(crate) const DEAD: &str = "dead";
    pub(crate) const CLAIMS: &str = "claims";
    pub(crate) const WORKERS: &str = "workers";
    pub(crate) const QUEUES: &str = "queues";
    pub(crate) const TYPES: &str = "types";
    pub(crate) const BREAKERS: &str = "breakers";
    pub(crate) const DOCUMENTS: &str = "documents";
}
