//! Every bound in Windlass, with its reason. At a bound the caller gets an error with a
//! stable code; nothing is dropped and nothing grows without end.

use std::time::Duration;

/// Longest queue or task type name. Long enough for a dotted module path, short enough for a table cell.
pub const NAME_BYTES: usize = 128;
/// Longest capability or tag key.
pub const LABEL_BYTES: usize = 64;
/// Longest free text used as a key or value (idempotency keys, tags, tenants, worker names).
pub const TEXT_BYTES: usize = 256;
/// Longest error or progress message; longer ones are cut with a mark.
pub const MESSAGE_BYTES: usize = 8 * 1024;
/// Longest stack trace; longer ones are cut with a mark.
pub const STACK_BYTES: usize = 32 * 1024;
/// Largest `details` of an error and `metadata` of a progress report.
pub const DETAILS_BYTES: usize = 16 * 1024;
/// Tags on one task: enough to find it by, not a second payload.
pub const TAGS: usize = 32;
/// Capabilities one task can require or one worker can have.
pub const CAPABILITIES: usize = 32;
/// Queues or task types one worker can list.
pub const SERVED_NAMES: usize = 256;
/// Nesting of any JSON document. serde_json's own guard is 128; this keeps well below every client's.
pub const JSON_DEPTH: usize = 64;
/// Payload and result size unless set otherwise.
pub const PAYLOAD_BYTES_DEFAULT: usize = 64 * 1024;
/// Largest payload size that can be set: a queue is no blob store.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Tasks in one batch submit.
pub const BATCH_TASKS: usize = 1_000;
/// Results in one call: what a large worker finishes between two polls.
pub const RESULTS: usize = 1_000;
/// Follow-up tasks that one result may carry.
pub const FOLLOW_UPS: usize = 100;
/// Durable steps of one task.
pub const STEPS: usize = 1_000;
/// Tasks one poll may ask for.
pub const CLAIM_TASKS: usize = 1_000;
/// Tasks a worker may run at once.
pub const WORKER_CAPACITY: u32 = 10_000;
/// Registered workers, dead ones aside.
pub const WORKERS: usize = 100_000;
/// Items on one page.
pub const PAGE_ITEMS: usize = 1_000;
/// Items on a page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: usize = 50;
/// Rows one list call may look at before it answers with what it has and a cursor.
pub const SCANNED_ROWS: usize = 20_000;
/// Retries of one task.
pub const RETRIES: u32 = 100;
/// Crashes of one task before it counts as a poison pill, at most.
pub const CRASHES: u32 = 100;
/// Explicit delays of a `list` retry strategy.
pub const RETRY_DELAYS: usize = 100;
/// Longest delay, snooze, retry delay or `max_elapsed`: a year.
pub const DELAY: Duration = Duration::from_secs(366 * 24 * 3600);
/// Longest attempt: a week. What runs longer should be cut into steps.
pub const TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest that a poll or a `wait` holds a request.
pub const WAIT: Duration = Duration::from_secs(60);
/// Non-empty lanes of one queue.
pub const LANES_PER_QUEUE: usize = 10_000;
/// Waiting tasks of a queue above which only `high` and better is taken.
pub const DEPTH_SOFT: u64 = 100_000;
/// Waiting tasks of a queue above which nothing is taken.
pub const DEPTH_HARD: u64 = 500_000;
/// Error rules in all.
pub const ERROR_RULES: usize = 200;
/// Longest name, code or pattern of an error rule.
pub const RULE_BYTES: usize = 500;
/// HTTP statuses and ranges of one error rule.
pub const RULE_RANGES: usize = 50;
/// Asterisks in the code of an error rule: each can make a match longer.
pub const RULE_STARS: usize = 8;
/// Tasks of one type, queue or key that may run at once, as a setting.
pub const CONCURRENCY: u32 = 1_000_000;
/// Tenants of one queue that have a weight of their own.
pub const TENANT_WEIGHTS: usize = 10_000;
/// Largest weight: beyond it the smallest share is not noticed any more.
pub const WEIGHT: u32 = 1_000;
/// Tenants whose submits are counted at a time; the rest wait no longer than these.
pub const COUNTED_TENANTS: usize = 100_000;
/// Queues and types that have settings of their own.
pub const SETTINGS: usize = 10_000;
/// How long an idempotency key is remembered, at least.
pub const IDEMPOTENCY_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Failed attempts whose errors are kept on a task; the oldest in between go first.
pub const ATTEMPTS_KEPT: usize = 128;
/// Event rows that a task leads to: the first quarter and the newest; the feed of all events has the rest.
pub const HISTORY_ROWS: usize = 256;
/// Distinct task types shown as metric labels; the rest are `other`.
pub const METRIC_TYPES: usize = 200;
/// Shortest lease: below this a busy machine lapses leases of healthy workers.
pub const LEASE_MIN: Duration = Duration::from_millis(100);
/// Longest lease: a dead worker's tasks come back after one lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);
