//! Settings that operators change at run time. They live in the store and are the same on
//! every node. What is not set follows the type, then the priority, then the built-in default.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::breaker::BreakerSettings;
use crate::error_rules::RuleBook;
use crate::failure::{EndReason, ErrorClass, TaskPolicy};
use crate::limits;
use crate::names::{QueueName, TaskType};
use crate::policy::{Band, DEFAULT_OFFSETS, DEFAULT_OVERDUE_SHARE, DEFAULT_WEIGHTS, Policy, PolicyKind};
use crate::priority::Priority;
use crate::rate::RateLimit;
use crate::retry::{PriorityDefaults, RetryPolicy};
use crate::status::Status;

/// How long ended tasks are kept, in days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Completed, cancelled and failed ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_days: Option<f64>,
    /// Dead letters, once they were archived; without an archive they are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_days: Option<f64>,
}

/// Days that completed, cancelled and failed tasks are kept.
pub const COMPLETED_DAYS: f64 = 7.0;
/// Days that dead letters are kept at least.
pub const DEAD_LETTER_DAYS: f64 = 30.0;

/// How many tasks may wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Depth {
    /// Above this only `high` and better is taken.
    pub soft: u64,
    /// Above this nothing is.
    pub hard: u64,
}

impl Default for Depth {
    fn default() -> Self {
        Self { soft: limits::DEPTH_SOFT, hard: limits::DEPTH_HARD }
    }
}

/// Dead letters of a type that are replayed when its breaker closes, each at most once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoReplay {
    /// Of these classes.
    #[serde(default = "transient_only")]
    pub classes: Vec<ErrorClass>,
    /// At this pace.
    #[serde(default = "ten")]
    pub rate_per_second: f64,
}

fn transient_only() -> Vec<ErrorClass> {
    vec![ErrorClass::Transient]
}

fn ten() -> f64 {
    10.0
}

/// Slowest and fastest pace of a replay.
pub const REPLAY_RATE: std::ops::RangeInclusive<f64> = 0.001..=100_000.0;

/// Settings of one queue. A field that is `None` follows the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// How priorities are ordered.
    pub policy: Option<PolicyKind>,
    /// Offsets in seconds by priority name or level; levels not named keep their default.
    pub offsets: Option<BTreeMap<String, i64>>,
    /// Share of claims for overdue work.
    pub overdue_share: Option<f64>,
    /// Weights of the bands `high`, `medium` and `low`; bands not named keep their default.
    pub weights: Option<BTreeMap<String, u32>>,
    /// Weights of tenants where the queue is fair; 1 unless named.
    pub tenant_weights: Option<BTreeMap<String, u32>>,
    /// How many of its tasks may run at once.
    pub concurrency: Option<u32>,
    /// How fast its tasks may start.
    pub rate_limit: Option<RateLimit>,
    /// How fast each tenant may submit.
    pub tenant_rate_limit: Option<RateLimit>,
    /// How many lanes may have tasks.
    pub max_lanes: Option<u32>,
    /// How many tasks may wait.
    pub depth: Option<Depth>,
    /// How long ended tasks are kept.
    pub retention: Option<Retention>,
    /// Whether claims pass it by.
    pub paused: bool,
}

/// Settings of one task type. A field that is `None` follows the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeSettings {
    /// The queue of tasks that name none.
    pub queue: Option<QueueName>,
    /// The priority of tasks that name none.
    pub priority: Option<Priority>,
    /// How long an attempt may take.
    #[serde(with = "crate::retry::seconds::optional")]
    pub timeout_seconds: Option<Duration>,
    /// How many retries.
    pub max_retries: Option<u32>,
    /// The delays.
    pub retry: Option<RetryPolicy>,
    /// Whether giving up leads to a dead letter.
    pub dead_letter: Option<bool>,
    /// Crashes until it counts as a poison pill.
    pub max_crashes: Option<u32>,
    /// How many of its tasks may run at once.
    pub concurrency: Option<u32>,
    /// How fast its tasks may start.
    pub rate_limit: Option<RateLimit>,
    /// How much of a worker's capacity one task takes.
    pub slots: Option<u32>,
    /// When its breaker opens.
    pub breaker: Option<BreakerSettings>,
    /// Whether a replay must be confirmed.
    pub sensitive: Option<bool>,
    /// Dead letters that are replayed when the breaker closes.
    pub auto_replay: Option<AutoReplay>,
    /// How long ended tasks are kept.
    pub retention: Option<Retention>,
    /// Whether claims pass it by.
    pub paused: bool,
}

/// One field of a change of settings: `null` clears it, silence keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Field<T> {
    /// Not named.
    #[default]
    Keep,
    /// `null`.
    Clear,
    /// A value.
    Set(T),
}

impl<T: Clone> Field<T> {
    fn apply(&self, target: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *target = None,
            Self::Set(value) => *target = Some(value.clone()),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<T>::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}

/// A number of seconds inside a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub Duration);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::retry::seconds::deserialize(deserializer).map(Self)
    }
}

/// A change of a queue's settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueChange {
    /// See [`QueueSettings::policy`].
    pub policy: Field<PolicyKind>,
    /// See [`QueueSettings::offsets`].
    pub offsets: Field<BTreeMap<String, i64>>,
    /// See [`QueueSettings::overdue_share`].
    pub overdue_share: Field<f64>,
    /// See [`QueueSettings::weights`].
    pub weights: Field<BTreeMap<String, u32>>,
    /// See [`QueueSettings::tenant_weights`].
    pub tenant_weights: Field<BTreeMap<String, u32>>,
    /// See [`QueueSettings::concurrency`].
    pub concurrency: Field<u32>,
    /// See [`QueueSettings::rate_limit`].
    pub rate_limit: Field<RateLimit>,
    /// See [`QueueSettings::tenant_rate_limit`].
    pub tenant_rate_limit: Field<RateLimit>,
    /// See [`QueueSettings::max_lanes`].
    pub max_lanes: Field<u32>,
    /// See [`QueueSettings::depth`].
    pub depth: Field<Depth>,
    /// See [`QueueSettings::retention`].
    pub retention: Field<Retention>,
    /// See [`QueueSettings::paused`].
    pub paused: Field<bool>,
}

/// A change of a type's settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TypeChange {
    /// See [`TypeSettings::queue`].
    pub queue: Field<QueueName>,
    /// See [`TypeSettings::priority`].
    pub priority: Field<Priority>,
    /// See [`TypeSettings::timeout_seconds`].
    pub timeout_seconds: Field<Seconds>,
    /// See [`TypeSettings::max_retries`].
    pub max_retries: Field<u32>,
    /// See [`TypeSettings::retry`].
    pub retry: Field<RetryPolicy>,
    /// See [`TypeSettings::dead_letter`].
    pub dead_letter: Field<bool>,
    /// See [`TypeSettings::max_crashes`].
    pub max_crashes: Field<u32>,
    /// See [`TypeSettings::concurrency`].
    pub concurrency: Field<u32>,
    /// See [`TypeSettings::rate_limit`].
    pub rate_limit: Field<RateLimit>,
    /// See [`TypeSettings::slots`].
    pub slots: Field<u32>,
    /// See [`TypeSettings::breaker`].
    pub breaker: Field<BreakerSettings>,
    /// See [`TypeSettings::sensitive`].
    pub sensitive: Field<bool>,
    /// See [`TypeSettings::auto_replay`].
    pub auto_replay: Field<AutoReplay>,
    /// See [`TypeSettings::retention`].
    pub retention: Field<Retention>,
    /// See [`TypeSettings::paused`].
    pub paused: Field<bool>,
}

/// A setting out of bounds or at odds with another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}")]
pub struct BadSetting {
    /// The field at fault.
    pub field: String,
    /// What it must be.
    pub rule: String,
}

fn bad<T>(field: &str, rule: impl Into<String>) -> Result<T, BadSetting> {
    Err(BadSetting { field: field.to_owned(), rule: rule.into() })
}

impl Retention {
    fn validate(&self) -> Result<(), BadSetting> {
        let days = [self.completed_days, self.dead_letter_days];
        if days.into_iter().flatten().any(|days| !(0.0..=3650.0).contains(&days)) {
            return bad("retention", "must be from 0 to 3650 days");
        }
        Ok(())
    }
}

impl QueueSettings {
    /// The settings after a change, if they are sound.
    pub fn changed(&self, change: &QueueChange) -> Result<Self, BadSetting> {
        let mut next = self.clone();
        change.policy.apply(&mut next.policy);
        change.offsets.apply(&mut next.offsets);
        change.overdue_share.apply(&mut next.overdue_share);
        change.weights.apply(&mut next.weights);
        change.tenant_weights.apply(&mut next.tenant_weights);
        change.concurrency.apply(&mut next.concurrency);
        change.rate_limit.apply(&mut next.rate_limit);
        change.tenant_rate_limit.apply(&mut next.tenant_rate_limit);
        change.max_lanes.apply(&mut next.max_lanes);
        change.depth.apply(&mut next.depth);
        change.retention.apply(&mut next.retention);
        let mut paused = Some(next.paused);
        change.paused.apply(&mut paused);
        next.paused = paused.unwrap_or(false);
        next.validate()?;
        Ok(next)
    }

    fn validate(&self) -> Result<(), BadSetting> {
        if self.overdue_share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return bad("overdue_share", "must be from 0 to 1");
        }
        if let Some(depth) = self.depth {
            if depth.soft > depth.hard {
                return bad("depth", "soft must not be above hard");
            }
            if depth.hard == 0 {
                return bad("depth", "hard must be at least 1; pause the queue to stop its work");
            }
        }
        self.band_weights()?;
        for (tenant, weight) in self.tenant_weights.iter().flatten() {
            if crate::names::Text::new(tenant).is_err() {
                return bad("tenant_weights", "must be 1 to 256 bytes of text without control characters per tenant");
            }
            validate_weight("tenant_weights", *weight)?;
        }
        if self.tenant_weights.as_ref().is_some_and(|weights| weights.len() > limits::TENANT_WEIGHTS) {
            return bad("tenant_weights", format!("must name at most {} tenants", limits::TENANT_WEIGHTS));
        }
        validate_flow(self.concurrency, self.rate_limit)?;
        if let Some(limit) = self.tenant_rate_limit
            && let Err(rule) = limit.validate()
        {
            return bad("tenant_rate_limit", rule);
        }
        if self.max_lanes.is_some_and(|lanes| !(1..=1_000_000).contains(&lanes)) {
            return bad("max_lanes", "must be from 1 to 1000000");
        }
        if let Some(retention) = &self.retention {
            retention.validate()?;
        }
        let offsets = self.offset_table()?;
        if offsets.windows(2).any(|pair| pair[0] < pair[1]) {
            return bad("offsets", "must not be smaller for a lower priority than for a higher one");
        }
        Ok(())
    }

    fn offset_table(&self) -> Result<[i64; Priority::LEVELS], BadSetting> {
        let mut table = DEFAULT_OFFSETS;
        for (name, seconds) in self.offsets.iter().flatten() {
            let Ok(priority) = Priority::from_text(name) else {
                return bad("offsets", format!("'{name}' names no priority"));
            };
            if seconds.unsigned_abs() > limits::DELAY.as_secs() {
                return bad("offsets", "must be at most a year");
            }
            table[priority.index()] = *seconds;
        }
        Ok(table)
    }

    fn band_weights(&self) -> Result<[u32; 3], BadSetting> {
        let mut table = DEFAULT_WEIGHTS;
        for (name, weight) in self.weights.iter().flatten() {
            let Some(band) = Band::ALL.into_iter().find(|band| band.as_str() == name) else {
                return bad("weights", format!("'{name}' is no band; take high, medium and low"));
            };
            validate_weight("weights", *weight)?;
            table[band as usize] = *weight;
        }
        Ok(table)
    }

    /// The weight of a tenant.
    pub fn tenant_weight(&self, tenant: &str) -> u32 {
        self.tenant_weights.as_ref().and_then(|weights| weights.get(tenant)).copied().unwrap_or(1)
    }

    /// The policy that claims follow.
    pub fn claim_policy(&self) -> Policy {
        Policy {
            kind: self.policy.unwrap_or_default(),
            offsets: self.offset_table().unwrap_or(DEFAULT_OFFSETS),
            overdue_share: self.overdue_share.unwrap_or(DEFAULT_OVERDUE_SHARE),
            weights: self.band_weights().unwrap_or(DEFAULT_WEIGHTS),
        }
    }
}

impl TypeSettings {
    /// The settings after a change, if they are sound.
    pub fn changed(&self, change: &TypeChange) -> Result<Self, BadSetting> {
        let mut next = self.clone();
        change.queue.apply(&mut next.queue);
        change.priority.apply(&mut next.priority);
        match change.timeout_seconds {
            Field::Keep => {}
            Field::Clear => next.timeout_seconds = None,
            Field::Set(Seconds(timeout)) => next.timeout_seconds = Some(timeout),
        }
        change.max_retries.apply(&mut next.max_retries);
        change.retry.apply(&mut next.retry);
        change.dead_letter.apply(&mut next.dead_letter);
        change.max_crashes.apply(&mut next.max_crashes);
        change.concurrency.apply(&mut next.concurrency);
        change.rate_limit.apply(&mut next.rate_limit);
        change.slots.apply(&mut next.slots);
        change.breaker.apply(&mut next.breaker);
        change.sensitive.apply(&mut next.sensitive);
        change.auto_replay.apply(&mut next.auto_replay);
        change.retention.apply(&mut next.retention);
        let mut paused = Some(next.paused);
        change.paused.apply(&mut paused);
        next.paused = paused.unwrap_or(false);
        next.validate()?;
        Ok(next)
    }

    fn validate(&self) -> Result<(), BadSetting> {
        if let Some(timeout) = self.timeout_seconds
            && (timeout.is_zero() || timeout > limits::TIMEOUT)
        {
            return bad("timeout_seconds", "must be more than 0 and at most a week");
        }
        if self.max_retries.is_some_and(|retries| retries > limits::RETRIES) {
            return bad("max_retries", "must be from 0 to 100");
        }
        if self.max_crashes.is_some_and(|crashes| !(1..=limits::CRASHES).contains(&crashes)) {
            return bad("max_crashes", "must be from 1 to 100");
        }
        if let Some(retry) = &self.retry
            && let Err(error) = retry.validate()
        {
            return bad(&format!("retry.{}", error.field), error.to_string());
        }
        validate_flow(self.concurrency, self.rate_limit)?;
        if self.slots.is_some_and(|slots| !(1..=limits::WORKER_CAPACITY).contains(&slots)) {
            return bad("slots", format!("must be from 1 to {}", limits::WORKER_CAPACITY));
        }
        if let Some(breaker) = self.breaker
            && let Err(rule) = breaker.validate()
        {
            return bad("breaker", rule);
        }
        if let Some(rule) = &self.auto_replay {
            if rule.classes.is_empty() {
                return bad("auto_replay.classes", "must name at least one class");
            }
            if !REPLAY_RATE.contains(&rule.rate_per_second) {
                return bad("auto_replay.rate_per_second", "must be from 0.001 to 100000");
            }
        }
        self.retention.map_or(Ok(()), |retention| retention.validate())
    }
}

fn validate_weight(field: &str, weight: u32) -> Result<(), BadSetting> {
    if (1..=limits::WEIGHT).contains(&weight) {
        Ok(())
    } else {
        bad(field, format!("must be from 1 to {}; pause what should get nothing", limits::WEIGHT))
    }
}

fn validate_flow(concurrency: Option<u32>, rate_limit: Option<RateLimit>) -> Result<(), BadSetting> {
    if concurrency.is_some_and(|most| !(1..=limits::CONCURRENCY).contains(&most)) {
        return bad("concurrency", format!("must be from 1 to {}; pause it to stop it", limits::CONCURRENCY));
    }
    match rate_limit.map(|limit| limit.validate()) {
        Some(Err(rule)) => bad("rate_limit", rule),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Crashes until a task counts as a poison pill, unless set.
pub const MAX_CRASHES: u32 = 3;

/// What a submitter may say about failures; the rest follows the type and the priority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyWish {
    /// See [`TaskPolicy::timeout`].
    pub timeout: Option<Duration>,
    /// See [`TaskPolicy::max_retries`].
    pub max_retries: Option<u32>,
    /// See [`TaskPolicy::retry`].
    pub retry: Option<RetryPolicy>,
}

/// All settings of a store at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Queues that have settings of their own.
    pub queues: BTreeMap<QueueName, QueueSettings>,
    /// Types that have settings of their own.
    pub types: BTreeMap<TaskType, TypeSettings>,
    /// Error rules.
    pub error_rules: Arc<RuleBook>,
}

impl Settings {
    /// Whether a queue is paused.
    pub fn is_queue_paused(&self, queue: &QueueName) -> bool {
        self.queues.get(queue).is_some_and(|settings| settings.paused)
    }

    /// Whether a type is paused.
    pub fn is_type_paused(&self, task_type: &TaskType) -> bool {
        self.types.get(task_type).is_some_and(|settings| settings.paused)
    }

    /// Whether a queue is fair between tenants.
    pub fn is_fair(&self, queue: &QueueName) -> bool {
        self.queues.get(queue).is_some_and(|settings| settings.policy == Some(PolicyKind::Fair))
    }

    /// How many lanes of a queue may have tasks.
    pub fn max_lanes(&self, queue: &QueueName) -> usize {
        let set = self.queues.get(queue).and_then(|settings| settings.max_lanes);
        set.map_or(limits::LANES_PER_QUEUE, |lanes| lanes as usize)
    }

    /// When a type's breaker opens.
    pub fn breaker(&self, task_type: &TaskType) -> BreakerSettings {
        self.types.get(task_type).and_then(|settings| settings.breaker).unwrap_or_default()
    }

    /// How much of a worker's capacity one task of a type takes.
    pub fn slots(&self, task_type: &TaskType) -> u32 {
        self.types.get(task_type).and_then(|settings| settings.slots).unwrap_or(1)
    }

    /// Whether a replay of a type's tasks must be confirmed.
    pub fn is_sensitive(&self, task_type: &TaskType) -> bool {
        self.types.get(task_type).is_some_and(|settings| settings.sensitive == Some(true))
    }

    /// The bounds of a queue's depth.
    pub fn depth(&self, queue: &QueueName) -> Depth {
        self.queues.get(queue).and_then(|settings| settings.depth).unwrap_or_default()
    }

    /// The claim policy of a queue.
    pub fn claim_policy(&self, queue: &QueueName) -> Policy {
        self.queues.get(queue).map(QueueSettings::claim_policy).unwrap_or_default()
    }

    /// What follows from failures of a task: its own wish, then its type's, then its priority's.
    pub fn task_policy(&self, task_type: &TaskType, defaults: PriorityDefaults, wish: PolicyWish) -> TaskPolicy {
        let unset = TypeSettings::default();
        let of_type = self.types.get(task_type).unwrap_or(&unset);
        TaskPolicy {
            timeout: wish.timeout.or(of_type.timeout_seconds).unwrap_or(defaults.timeout),
            max_retries: wish.max_retries.or(of_type.max_retries).unwrap_or(defaults.max_retries),
            max_crashes: of_type.max_crashes.unwrap_or(MAX_CRASHES),
            dead_letter: of_type.dead_letter.unwrap_or(true),
            retry: wish.retry.or_else(|| of_type.retry.clone()).unwrap_or_default(),
        }
    }

    /// How long a task that ended like this is kept; `None` means until a person decides.
    pub fn kept_for(&self, queue: &QueueName, task_type: &TaskType, status: Status) -> Option<Duration> {
        if status == Status::DeadLetter {
            // Dead letters go only after they were archived, and there is no archive yet.
            return None;
        }
        let of_type = self.types.get(task_type).and_then(|settings| settings.retention?.completed_days);
        let of_queue = || self.queues.get(queue).and_then(|settings| settings.retention?.completed_days);
        let days = of_type.or_else(of_queue).unwrap_or(COMPLETED_DAYS);
        Some(Duration::from_secs_f64(days * 86_400.0))
    }
}

/// Whether an end reason belongs to a dead letter.
pub fn is_dead_reason(reason: EndReason) -> bool {
    match reason {
        EndReason::MaxRetries
        | EndReason::PermanentError
        | EndReason::PoisonPill
        | EndReason::MaxElapsed
        | EndReason::RejectedByOperator => true,
        EndReason::Expired | EndReason::Discarded => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_change(json: &str) -> QueueChange {
        serde_json::from_str(json).expect("a change")
    }

    #[test]
    fn a_change_sets_clears_and_keeps() {
        let settings = QueueSettings::default()
            .changed(&queue_change(r#"{"policy":"strict","depth":{"soft":1,"hard":2}}"#))
            .and_then(|settings| settings.changed(&queue_change(r#"{"policy":null,"paused":true}"#)))
            .expect("sound");
        assert_eq!((settings.policy, settings.paused), (None, true));
        assert_eq!(settings.depth, Some(Depth { soft: 1, hard: 2 }));
        assert!(serde_json::from_str::<QueueChange>(r#"{"polic":"strict"}"#).is_err());
    }

    #[test]
    fn contradictions_are_refused() {
        for (json, field) in [
            (r#"{"depth":{"soft":3,"hard":2}}"#, "depth"),
            (r#"{"overdue_share":1.5}"#, "overdue_share"),
            (r#"{"offsets":{"high":5000}}"#, "offsets"),
            (r#"{"offsets":{"urgent":0}}"#, "offsets"),
            (r#"{"retention":{"completed_days":-1}}"#, "retention"),
            (r#"{"depth":{"soft":0,"hard":0}}"#, "depth"),
            (r#"{"weights":{"high":0}}"#, "weights"),
            (r#"{"weights":{"urgent":1}}"#, "weights"),
            (r#"{"weights":{"low":1001}}"#, "weights"),
            (r#"{"tenant_weights":{"a":0}}"#, "tenant_weights"),
            (r#"{"tenant_weights":{"":1}}"#, "tenant_weights"),
            (r#"{"concurrency":0}"#, "concurrency"),
            (r#"{"rate_limit":{"count":0}}"#, "rate_limit"),
            (r#"{"rate_limit":{"count":5,"per_seconds":0}}"#, "rate_limit"),
            (r#"{"tenant_rate_limit":{"count":5,"burst":0}}"#, "tenant_rate_limit"),
            (r#"{"max_lanes":0}"#, "max_lanes"),
        ] {
            let refused = QueueSettings::default().changed(&queue_change(json)).expect_err(json);
            assert_eq!(refused.field, field);
        }
        for (json, field) in [
            (r#"{"timeout_seconds":0}"#, "timeout_seconds"),
            (r#"{"max_retries":101}"#, "max_retries"),
            (r#"{"max_crashes":0}"#, "max_crashes"),
            (r#"{"retry":{"factor":0.5}}"#, "retry.factor"),
            (r#"{"concurrency":0}"#, "concurrency"),
            (r#"{"rate_limit":{"count":0,"per_seconds":60}}"#, "rate_limit"),
            (r#"{"slots":0}"#, "slots"),
            (r#"{"breaker":{"failure_ratio":0}}"#, "breaker"),
            (r#"{"breaker":{"min_attempts":0}}"#, "breaker"),
            (r#"{"breaker":{"recovery_seconds":0}}"#, "breaker"),
            (r#"{"auto_replay":{"classes":[]}}"#, "auto_replay.classes"),
            (r#"{"auto_replay":{"rate_per_second":0}}"#, "auto_replay.rate_per_second"),
        ] {
            let change: TypeChange = serde_json::from_str(json).expect("a change");
            assert_eq!(TypeSettings::default().changed(&change).expect_err(json).field, field);
        }
    }

    #[test]
    fn policies_follow_wish_then_type_then_priority() {
        let task_type = TaskType::new("mail").expect("a name");
        let mut settings = Settings::default();
        let of_type = TypeSettings { max_retries: Some(9), ..TypeSettings::default() };
        settings.types.insert(task_type.clone(), of_type);
        let defaults = PriorityDefaults::of(Priority::HIGH);
        let policy = settings.task_policy(&task_type, defaults, PolicyWish::default());
        assert_eq!((policy.max_retries, policy.timeout.as_secs()), (9, 300));
        let wish = PolicyWish { max_retries: Some(1), ..PolicyWish::default() };
        assert_eq!(settings.task_policy(&task_type, defaults, wish).max_retries, 1);
    }
}
