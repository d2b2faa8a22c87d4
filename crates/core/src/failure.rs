//! What follows from a failure: its class, and whether the task is tried again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error_rules::RuleBook;
use crate::json::Json;
use crate::names::TaskType;
use crate::retry::RetryPolicy;

/// What kind of failure it was; decides how it is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// Goes away by itself.
    Transient,
    /// Somebody asked us to slow down.
    RateLimited,
    /// The attempt ran out of time.
    Timeout,
    /// Out of memory, disk or processor time.
    Resource,
    /// No retry will help.
    Permanent,
    /// The handler is broken.
    CodeBug,
    /// The lease lapsed without a result.
    WorkerLost,
    /// Nothing matched and the handler did not say.
    Unknown,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 8] = [
        Self::Transient,
        Self::RateLimited,
        Self::Timeout,
        Self::Resource,
        Self::Permanent,
        Self::CodeBug,
        Self::WorkerLost,
        Self::Unknown,
    ];

    /// A small number for what nodes tell each other; never changes its meaning.
    pub fn code(self) -> u8 {
        match self {
            Self::Transient => 0,
            Self::RateLimited => 1,
            Self::Timeout => 2,
            Self::Resource => 3,
            Self::Permanent => 4,
            Self::CodeBug => 5,
            Self::WorkerLost => 6,
            Self::Unknown => 7,
        }
    }

    /// The class of a [`Self::code`].
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code)
    }

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::RateLimited => "rate_limited",
            Self::Timeout => "timeout",
            Self::Resource => "resource",
            Self::Permanent => "permanent",
            Self::CodeBug => "code_bug",
            Self::WorkerLost => "worker_lost",
            Self::Unknown => "unknown",
        }
    }

    /// Whether another attempt can help at all.
    pub fn is_retriable(self) -> bool {
        match self {
            Self::Transient | Self::RateLimited | Self::Timeout | Self::Resource | Self::WorkerLost | Self::Unknown => {
                true
            }
            Self::Permanent | Self::CodeBug => false,
        }
    }

    /// Whether the next attempt gets a longer timeout.
    pub fn grows_timeout(self) -> bool {
        matches!(self, Self::Timeout | Self::Resource)
    }
}

/// What a worker says about a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// What happened, for a person.
    pub message: String,
    /// A stable code of the handler's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the handler thinks that a retry helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retriable: Option<bool>,
    /// The status of an HTTP call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// How long to wait; wins over the computed delay.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::retry::seconds::optional")]
    pub retry_after_seconds: Option<Duration>,
    /// The stack trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Anything else the handler wants kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}

impl ErrorReport {
    /// A report with a message and a code, as the server itself makes them.
    pub fn internal(code: &str, message: String) -> Self {
        Self {
            message,
            code: Some(code.to_owned()),
            retriable: None,
            http_status: None,
            retry_after_seconds: None,
            stack: None,
            details: None,
        }
    }
}

/// Why a task was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// No retry was left.
    MaxRetries,
    /// The error was permanent.
    PermanentError,
    /// It took its worker down too often.
    PoisonPill,
    /// It grew too old while it was tried.
    MaxElapsed,
    /// A person took it out.
    RejectedByOperator,
    /// `expires_at` passed before it started.
    Expired,
    /// A person gave the dead letter up.
    Discarded,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::MaxRetries,
        Self::PermanentError,
        Self::PoisonPill,
        Self::MaxElapsed,
        Self::RejectedByOperator,
        Self::Expired,
        Self::Discarded,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxRetries => "max_retries",
            Self::PermanentError => "permanent_error",
            Self::PoisonPill => "poison_pill",
            Self::MaxElapsed => "max_elapsed",
            Self::RejectedByOperator => "rejected_by_operator",
            Self::Expired => "expired",
            Self::Discarded => "discarded",
        }
    }
}

/// Everything about a task that decides what follows from a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPolicy {
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How many retries.
    pub max_retries: u32,
    /// How many crashes until it counts as a poison pill; see [`TaskPolicy::crash_limit`].
    pub max_crashes: u32,
    /// Whether giving up leads to a dead letter.
    pub dead_letter: bool,
    /// The delays.
    pub retry: RetryPolicy,
}

impl TaskPolicy {
    /// Crashes after which the task counts as a poison pill: a task that must not be
    /// retried is not run twice either.
    pub fn crash_limit(&self) -> u32 {
        if self.max_retries == 0 { 1 } else { self.max_crashes.max(1) }
    }
}

/// What ran out of a resource is not tried more often than this, whatever the policy says.
const RESOURCE_RETRIES: u32 = 3;

/// What put a failure in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// `retryable_codes` or `non_retryable_codes` of the retry policy.
    Policy,
    /// An error rule, by its place.
    Rule(usize),
    /// A built-in rule.
    BuiltIn,
    /// The handler's `retriable`.
    Handler,
    /// Nothing.
    Nobody,
}

/// Puts a failure in its class: codes of the policy first, then error rules, then built-in
/// rules, then what the handler said.
pub fn classify(
    policy: &RetryPolicy,
    rules: &RuleBook,
    task_type: &TaskType,
    error: &ErrorReport,
) -> (ErrorClass, DecidedBy) {
    let code = error.code.as_deref().unwrap_or_default();
    let listed = |codes: &[String]| !code.is_empty() && codes.iter().any(|listed| listed == code);
    if listed(&policy.retryable_codes) {
        return (ErrorClass::Transient, DecidedBy::Policy);
    }
    if listed(&policy.non_retryable_codes) {
        return (ErrorClass::Permanent, DecidedBy::Policy);
    }
    if let Some((index, class)) = rules.find(task_type, error) {
        return (class, DecidedBy::Rule(index));
    }
    let by_code = match code {
        "timeout" => Some(ErrorClass::Timeout),
        "rate_limited" => Some(ErrorClass::RateLimited),
        "out_of_memory" | "oom" | "disk_full" | "cpu_limit" => Some(ErrorClass::Resource),
        "panic" | "code_bug" => Some(ErrorClass::CodeBug),
        _ => None,
    };
    let by_status = || match error.http_status {
        Some(429) => Some(ErrorClass::RateLimited),
        Some(408 | 425 | 500..=599) => Some(ErrorClass::Transient),
        Some(400..=499) => Some(ErrorClass::Permanent),
        _ => None,
    };
    if let Some(class) = by_code.or_else(by_status) {
        return (class, DecidedBy::BuiltIn);
    }
    match error.retriable {
        Some(true) => (ErrorClass::Transient, DecidedBy::Handler),
        Some(false) => (ErrorClass::Permanent, DecidedBy::Handler),
        None => (ErrorClass::Unknown, DecidedBy::Nobody),
    }
}

/// What follows from a failed attempt or a lapsed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this delay.
    Retry(Duration),
    /// Give up.
    GiveUp(EndReason),
}

/// What follows from a failure of the given class when `retries` were used up before it
/// and the task is `age` old.
pub fn after_failure(
    policy: &TaskPolicy,
    class: ErrorClass,
    retry_after: Option<Duration>,
    retries: u32,
    age: Duration,
    unknown_max_retries: Option<u32>,
    seed: u64,
) -> Verdict {
    if !class.is_retriable() {
        return Verdict::GiveUp(EndReason::PermanentError);
    }
    let allowed = match class {
        ErrorClass::Resource => policy.max_retries.min(RESOURCE_RETRIES),
        ErrorClass::Unknown => policy.max_retries.min(unknown_max_retries.unwrap_or(u32::MAX)),
        ErrorClass::Transient
        | ErrorClass::RateLimited
        | ErrorClass::Timeout
        | ErrorClass::Permanent
        | ErrorClass::CodeBug
        | ErrorClass::WorkerLost => policy.max_retries,
    };
    if retries >= allowed {
        return Verdict::GiveUp(EndReason::MaxRetries);
    }
    let computed = policy.retry.delay(retries + 1, seed);
    let computed = if class == ErrorClass::RateLimited { computed.saturating_mul(2) } else { computed };
    let delay = retry_after.unwrap_or(computed).min(crate::limits::DELAY);
    if policy.retry.max_elapsed.is_some_and(|most| age.saturating_add(delay) > most) {
        return Verdict::GiveUp(EndReason::MaxElapsed);
    }
    Verdict::Retry(delay)
}

/// What follows from a lapsed lease when the task has now crashed `crashes` times.
pub fn after_crash(policy: &TaskPolicy, crashes: u32, age: Duration, seed: u64) -> Verdict {
    if crashes >= policy.crash_limit() {
        return Verdict::GiveUp(EndReason::PoisonPill);
    }
    if policy.retry.max_elapsed.is_some_and(|most| age > most) {
        return Verdict::GiveUp(EndReason::MaxElapsed);
    }
    Verdict::Retry(policy.retry.delay(crashes, seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Jitter;

    fn policy() -> TaskPolicy {
        TaskPolicy {
            timeout: Duration::from_secs(10),
            max_retries: 5,
            max_crashes: 3,
            dead_letter: true,
            retry: RetryPolicy { jitter: Jitter::None, ..RetryPolicy::default() },
        }
    }

    fn report(code: Option<&str>, status: Option<u16>, retriable: Option<bool>) -> ErrorReport {
        let mut report = ErrorReport::internal("", "x".into());
        report.code = code.map(str::to_owned);
        report.http_status = status;
        report.retriable = retriable;
        report
    }

    #[test]
    fn classes_by_code_then_status_then_word() {
        let retry = RetryPolicy {
            retryable_codes: vec!["again".into()],
            non_retryable_codes: vec!["never".into(), "timeout".into()],
            ..RetryPolicy::default()
        };
        let table = [
            (report(Some("again"), Some(404), Some(false)), ErrorClass::Transient),
            (report(Some("never"), Some(503), Some(true)), ErrorClass::Permanent),
            (report(Some("timeout"), None, None), ErrorClass::Permanent),
            (report(Some("oom"), None, None), ErrorClass::Resource),
            (report(Some("cpu_limit"), None, Some(true)), ErrorClass::Resource),
            (report(Some("panic"), None, Some(true)), ErrorClass::CodeBug),
            (report(None, Some(429), None), ErrorClass::RateLimited),
            (report(None, Some(503), Some(false)), ErrorClass::Transient),
            (report(None, Some(404), Some(true)), ErrorClass::Permanent),
            (report(Some("x"), None, Some(true)), ErrorClass::Transient),
            (report(Some("x"), None, Some(false)), ErrorClass::Permanent),
            (report(None, None, None), ErrorClass::Unknown),
        ];
        for (report, class) in table {
            let task_type = TaskType::new("t").expect("a name");
            assert_eq!(classify(&retry, &RuleBook::default(), &task_type, &report).0, class, "{report:?}");
        }
    }

    #[test]
    fn verdicts() {
        let age = Duration::from_secs(1);
        let verdict = |class, after, retries| after_failure(&policy(), class, after, retries, age, None, 0);
        assert_eq!(verdict(ErrorClass::Transient, None, 0), Verdict::Retry(Duration::from_secs(2)));
        assert_eq!(verdict(ErrorClass::RateLimited, None, 0), Verdict::Retry(Duration::from_secs(4)));
        let asked = Duration::from_secs(77);
        assert_eq!(verdict(ErrorClass::RateLimited, Some(asked), 0), Verdict::Retry(asked));
        assert_eq!(verdict(ErrorClass::Unknown, None, 5), Verdict::GiveUp(EndReason::MaxRetries));
        let capped = after_failure(&policy(), ErrorClass::Unknown, None, 1, age, Some(1), 0);
        assert_eq!(capped, Verdict::GiveUp(EndReason::MaxRetries));
        assert_eq!(verdict(ErrorClass::Resource, None, 3), Verdict::GiveUp(EndReason::MaxRetries));
        assert_eq!(verdict(ErrorClass::Permanent, Some(asked), 0), Verdict::GiveUp(EndReason::PermanentError));
        assert_eq!(verdict(ErrorClass::CodeBug, None, 0), Verdict::GiveUp(EndReason::PermanentError));
    }

    #[test]
    fn age_and_crashes_end_it() {
        let mut old = policy();
        old.retry.max_elapsed = Some(Duration::from_secs(60));
        let verdict = after_failure(&old, ErrorClass::Transient, None, 0, Duration::from_secs(59), None, 0);
        assert_eq!(verdict, Verdict::GiveUp(EndReason::MaxElapsed));
        assert!(matches!(after_crash(&policy(), 2, Duration::ZERO, 0), Verdict::Retry(_)));
        assert_eq!(after_crash(&policy(), 3, Duration::ZERO, 0), Verdict::GiveUp(EndReason::PoisonPill));
        let once = TaskPolicy { max_retries: 0, ..policy() };
        assert_eq!(after_crash(&once, 1, Duration::ZERO, 0), Verdict::GiveUp(EndReason::PoisonPill));
    }
}
