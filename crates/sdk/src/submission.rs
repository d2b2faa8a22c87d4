//! A task to be submitted: what it is and how it shall be treated.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::keys::{OnFailure, Unique};
use crate::task::Task;

/// The tag that carries the version of the parameters, where it is not 1.
pub(crate) const VERSION_TAG: &str = "windlass.version";

/// How urgent a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// 9.
    Critical,
    /// 7.
    High,
    /// 5, what tasks have unless they or their type say otherwise.
    Medium,
    /// 3.
    Low,
    /// 1.
    Bulk,
    /// Any level from 0 to 9.
    #[serde(untagged)]
    Level(u8),
}

/// The delays between attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Retry {
    strategy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    base_delay: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    max_delay: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    max_elapsed: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "many_seconds")]
    delays: Vec<Duration>,
}

impl Retry {
    fn new(strategy: &'static str, base_delay: Option<Duration>) -> Self {
        Self {
            strategy,
            base_delay,
            max_delay: None,
            max_elapsed: None,
            factor: None,
            jitter: None,
            delays: Vec::new(),
        }
    }

    /// The same delay each time.
    pub fn fixed(delay: Duration) -> Self {
        Self::new("fixed", Some(delay))
    }

    /// Delays of 1, 2, 3 … times the base.
    pub fn linear(base: Duration) -> Self {
        Self::new("linear", Some(base))
    }

    /// Delays that double each time, from the base.
    pub fn exponential(base: Duration) -> Self {
        Self::new("exponential", Some(base))
    }

    /// These delays, the last one for all later retries.
    pub fn delays(delays: impl Into<Vec<Duration>>) -> Self {
        Self { delays: delays.into(), ..Self::new("list", None) }
    }

    /// No delay is longer.
    #[must_use]
    pub fn max_delay(mut self, most: Duration) -> Self {
        self.max_delay = Some(most);
        self
    }

    /// Gives up when the task is older than this, whatever retries are left.
    #[must_use]
    pub fn max_elapsed(mut self, most: Duration) -> Self {
        self.max_elapsed = Some(most);
        self
    }

    /// Exactly the computed delays. Without it they vary, so that many failed tasks do not come back all at once.
    #[must_use]
    pub fn without_jitter(mut self) -> Self {
        self.jitter = Some("none");
        self
    }
}

#[allow(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

#[allow(clippy::ref_option, reason = "serde passes a reference to the field")]
fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(serializer)
}

fn many_seconds<S: Serializer>(spans: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(spans.iter().map(Duration::as_secs_f64))
}

/// A task on its way to Windlass.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Submission {
    pub(crate) task_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<Box<RawValue>>,
    #[serde(flatten)]
    pub(crate) options: Options,
    #[serde(skip)]
    version: u32,
}

/// How a task shall be treated. What is not set follows the settings of its type, and then the defaults of its priority.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    required_capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    delay_seconds: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "time")]
    run_at: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "time")]
    expires_at: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    timeout_seconds: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_on_failure: Option<OnFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<Unique>,
}

impl Options {
    /// Waits in this queue.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// How urgent it is.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Only a worker with this capability may run it. May be called for several.
    #[must_use]
    pub fn requires(mut self, capability: impl Into<String>) -> Self {
        self.required_capabilities.push(capability.into());
        self
    }

    /// Starts this much later.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay_seconds = Some(delay);
        self
    }

    /// Starts at this time.
    #[must_use]
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.run_at = Some(time);
        self
    }

    /// Not started by then, it fails as expired.
    #[must_use]
    pub fn expires_at(mut self, time: SystemTime) -> Self {
        self.expires_at = Some(time);
        self
    }

    /// How long one attempt may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout_seconds = Some(timeout);
        self
    }

    /// How often a failed attempt is tried again, 0 to 100.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// The delays between attempts.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Submitting the same key again within a day gives the same task.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Whose task it is.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// What people find it by. May be called for several.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Tasks of a queue with the same key run one at a time, in the order of their submits. Not together with a
    /// concurrency key.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// What the tasks behind it do while it waits for a retry; only with an ordering key.
    #[must_use]
    pub fn ordering_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.ordering_on_failure = Some(on_failure);
        self
    }

    /// At most so many tasks of a queue with the same key run at once; the limit of the newest one applies.
    #[must_use]
    pub fn concurrency_key(mut self, key: impl Into<String>, limit: u32) -> Self {
        self.concurrency_key = Some(key.into());
        self.concurrency_limit = Some(limit);
        self
    }

    /// What counts as the same work, and what happens if it is there already.
    #[must_use]
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// How far ahead it starts by its own wish.
    pub(crate) fn own_delay(&self) -> Duration {
        self.delay_seconds.unwrap_or_default()
    }

    /// Starts so much later than it would.
    pub(crate) fn put_off(&mut self, later: Duration) {
        match &mut self.run_at {
            // A time that no clock reaches is refused by the server as it is.
            Some(time) => *time = time.checked_add(later).unwrap_or(*time),
            None => self.delay_seconds = Some(self.delay_seconds.unwrap_or_default() + later),
        }
    }
}

impl Submission {
    /// The same, treated otherwise.
    pub(crate) fn with(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.options = change(self.options);
        self
    }

    /// Ready to go: with the version of its parameters, whatever was done to the options.
    pub(crate) fn sealed(mut self) -> Self {
        if self.version > 1 {
            self.options.tags.insert(VERSION_TAG.to_owned(), self.version.to_string());
        }
        self
    }

    /// A task of a type with its parameters.
    pub(crate) fn of<T: Task>(input: &T::Input) -> Result<Self> {
        let what = || format!("the parameters of {}", T::NAME);
        let parameters = serde_json::value::to_raw_value(input).map_err(Error::json(what()))?;
        // A task without input is `{}` like one that was submitted without parameters.
        let has_input = TypeId::of::<T::Input>() != TypeId::of::<()>();
        let parameters = has_input.then_some(parameters);
        Ok(Self { task_type: T::NAME.to_owned(), parameters, options: T::options(), version: T::VERSION })
    }

    /// A task of a type that is only known by name.
    pub(crate) fn untyped(task_type: String, parameters: &Value) -> Result<Self> {
        let what = format!("the parameters of {task_type}");
        let parameters = serde_json::value::to_raw_value(parameters).map_err(Error::json(what))?;
        Ok(Self { task_type, parameters: Some(parameters), options: Options::default(), version: 1 })
    }
}

/// The body of a call with many tasks.
#[derive(Serialize)]
pub(crate) struct Batch<'a> {
    pub(crate) tasks: &'a [Submission],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_per_second: Option<f64>,
}

/// A time as the API wants it.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    const DAY: i64 = 86_400;
    // Before 1970 everything is equally long ago.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, of_day) = (since.as_secs() as i64 / DAY, since.as_secs() as i64 % DAY);
    // Days to date: Howard Hinnant's civil_from_days, for years from 1970 on.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let at = |seconds, micros| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400, 5), "2000-02-29T00:00:00.000005Z");
        assert_eq!(at(1_700_000_000, 0), "2023-11-14T22:13:20.000000Z");
        assert_eq!(at(4_102_444_799, 999_999), "2099-12-31T23:59:59.999999Z");
    }

    #[test]
    fn what_is_not_set_is_not_sent() {
        let task = Submission { task_type: "t".into(), ..Submission::default() };
        assert_eq!(serde_json::to_string(&task).expect("JSON"), r#"{"task_type":"t"}"#);
        let options = Options::default()
            .queue("mail")
            .priority(Priority::High)
            .retry(Retry::fixed(Duration::from_millis(1500)).without_jitter());
        let json = serde_json::to_value(&options).expect("JSON");
        let wanted = serde_json::json!({
            "queue": "mail", "priority": "high",
            "retry": {"strategy": "fixed", "base_delay": 1.5, "jitter": "none"},
        });
        assert_eq!(json, wanted);
        assert_eq!(serde_json::to_value(Priority::Level(4)).expect("JSON"), serde_json::json!(4));
    }
}
