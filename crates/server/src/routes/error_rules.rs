//! Error rules: what puts a failure in its class, and a way to try it before it counts.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::error_rules::{ErrorRule, ErrorRules, RuleBook};
use windlass_core::failure::{DecidedBy, ErrorClass, ErrorReport, TaskPolicy, Verdict, after_failure, classify};
use windlass_core::limits;
use windlass_core::names::TaskType;
use windlass_core::settings::{PolicyWish, Settings};
use windlass_core::time::Timestamp;

use crate::document::seconds;
use crate::engine::Engine;
use crate::json_body::JsonBatch;
use crate::problem::Problem;
use crate::results::ErrorBody;
use crate::unclassified::UnclassifiedError;

/// One rule. Everything that it names must match; it must name a code, a status or a message.
#[derive(ToSchema)]
#[schema(as = ErrorRule)]
#[allow(dead_code, reason = "describes a type of the core for readers of the API")]
pub struct RuleDocument {
    /// A name for people.
    name: Option<String>,
    /// Only failures of this type. Rules of a type go before the others.
    task_type: Option<String>,
    /// The error code; `*` stands for any text and `?` for any character.
    code: Option<String>,
    /// The status of an HTTP call: `503`, `"5xx"`, `"500-599"`, or a list of these.
    #[schema(value_type = Option<serde_json::Value>)]
    http_status: Option<String>,
    /// A regular expression found in the first 2 KiB of the message.
    message: Option<String>,
    /// `transient`, `rate_limited`, `timeout`, `resource`, `permanent` or `code_bug`.
    class: String,
}

/// All rules anew.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RulesBody {
    /// The rules in order, at most 200; the first that matches decides.
    #[schema(value_type = Vec<RuleDocument>)]
    rules: Vec<ErrorRule>,
    /// Retries of a failure that nothing puts in a class, at most.
    #[schema(maximum = 100)]
    unknown_max_retries: Option<u32>,
}

/// A rule that is built in: these codes or these HTTP statuses mean this class.
#[derive(Clone, Copy, Serialize, ToSchema)]
pub struct BuiltInRule {
    /// The error codes.
    #[schema(value_type = Vec<String>)]
    codes: &'static [&'static str],
    /// The HTTP statuses.
    #[schema(value_type = Vec<String>)]
    http_status: &'static [&'static str],
    /// The class.
    class: &'static str,
}

/// What [`classify`] does where no rule matches, in its order. A test holds the two together.
const BUILT_IN: [BuiltInRule; 7] = [
    BuiltInRule { codes: &["timeout"], http_status: &[], class: "timeout" },
    BuiltInRule { codes: &["rate_limited"], http_status: &[], class: "rate_limited" },
    BuiltInRule { codes: &["out_of_memory", "oom", "disk_full", "cpu_limit"], http_status: &[], class: "resource" },
    BuiltInRule { codes: &["panic", "code_bug"], http_status: &[], class: "code_bug" },
    BuiltInRule { codes: &[], http_status: &["429"], class: "rate_limited" },
    BuiltInRule { codes: &[], http_status: &["408", "425", "500-599"], class: "transient" },
    BuiltInRule { codes: &[], http_status: &["400-499"], class: "permanent" },
];

/// A kind of error that nothing put in a class.
#[derive(Serialize, ToSchema)]
pub struct UnclassifiedDocument {
    #[schema(value_type = String)]
    task_type: TaskType,
    code: Option<String>,
    /// The last message of its kind.
    message: String,
    /// How often it was seen, on any node, since the one that answers started.
    count: u64,
    #[schema(value_type = String, format = DateTime)]
    last_seen: Timestamp,
}

impl From<UnclassifiedError> for UnclassifiedDocument {
    fn from(error: UnclassifiedError) -> Self {
        let UnclassifiedError { task_type, code, message, count, last_seen } = error;
        Self { task_type, code, message, count, last_seen }
    }
}

/// The rules, and what they leave open.
#[derive(Serialize, ToSchema)]
#[schema(as = ErrorRules)]
pub struct RulesDocument {
    /// The rules in order.
    #[schema(value_type = Vec<RuleDocument>)]
    rules: Vec<ErrorRule>,
    /// Retries of a failure that nothing puts in a class, at most; null for as many as the policy says.
    unknown_max_retries: Option<u32>,
    /// What applies where no rule matches, the first that fits. Where none fits, the handler's `retriable` decides.
    built_in: Vec<BuiltInRule>,
    /// Errors that nothing put in a class, the most frequent first, at most 200 kinds.
    unclassified: Vec<UnclassifiedDocument>,
}

fn document(engine: &Engine) -> RulesDocument {
    let ErrorRules { rules, unknown_max_retries } = engine.store.settings().error_rules.source().clone();
    RulesDocument {
        rules,
        unknown_max_retries,
        built_in: BUILT_IN.to_vec(),
        unclassified: engine.metrics.unclassified().into_iter().map(UnclassifiedDocument::from).collect(),
    }
}

/// The error rules.
#[utoipa::path(get, path = "/api/v1/error-rules", tag = "error rules", responses((status = 200, body = RulesDocument)))]
pub async fn get(State(engine): State<Arc<Engine>>) -> Json<RulesDocument> {
    Json(document(&engine))
}

/// Replaces all error rules.
#[utoipa::path(put, path = "/api/v1/error-rules", tag = "error rules", request_body = RulesBody,
    responses((status = 200, body = RulesDocument)))]
pub async fn replace(
    State(engine): State<Arc<Engine>>,
    JsonBatch(body): JsonBatch<RulesBody>,
) -> Result<Json<RulesDocument>, Problem> {
    let rules = ErrorRules { rules: body.rules, unknown_max_retries: body.unknown_max_retries };
    engine.store.change_error_rules(rules).await?;
    Ok(Json(document(&engine)))
}

/// A failure to try the rules on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestBody {
    /// The type that failed; without it only rules of no type apply.
    #[schema(value_type = Option<String>)]
    task_type: Option<TaskType>,
    /// What a worker would report.
    error: ErrorBody,
    /// Try these instead of the stored ones.
    #[schema(value_type = Option<Vec<RuleDocument>>)]
    rules: Option<Vec<ErrorRule>>,
    /// Try this instead of the stored bound.
    #[schema(maximum = 100)]
    unknown_max_retries: Option<u32>,
}

/// What the rules make of a failure.
#[derive(Serialize, ToSchema)]
pub struct TestDocument {
    /// Its class.
    class: &'static str,
    /// What decided: `policy` (the codes of the retry policy), `rule`, `built_in`, `handler` (its `retriable`) or `nobody`.
    decided_by: &'static str,
    /// Which rule, from 0.
    rule: Option<usize>,
    /// Whether it would be tried again at all.
    retriable: bool,
    /// What follows, in one sentence.
    handling: String,
}

/// Says what would follow from a failure; changes nothing.
#[utoipa::path(post, path = "/api/v1/error-rules/test", tag = "error rules", request_body = TestBody,
    responses((status = 200, body = TestDocument)))]
pub async fn test(
    State(engine): State<Arc<Engine>>,
    JsonBatch(body): JsonBatch<TestBody>,
) -> Result<Json<TestDocument>, Problem> {
    let settings = engine.store.settings();
    let stored = settings.error_rules.source();
    let rules = RuleBook::compile(ErrorRules {
        rules: body.rules.unwrap_or_else(|| stored.rules.clone()),
        unknown_max_retries: body.unknown_max_retries.or(stored.unknown_max_retries),
    })?;
    let task_type = body.task_type.or_else(|| unnamed_type(rules.source()));
    let task_type = task_type.ok_or_else(|| Problem::missing_field("task_type"))?;
    let policy = policy_of(&engine, &settings, &task_type);
    let report = body.error.into_report()?;
    let (class, decided_by) = classify(&policy.retry, &rules, &task_type, &report);
    let (decided_by, rule) = match decided_by {
        DecidedBy::Policy => ("policy", None),
        DecidedBy::Rule(index) => ("rule", Some(index)),
        DecidedBy::BuiltIn => ("built_in", None),
        DecidedBy::Handler => ("handler", None),
        DecidedBy::Nobody => ("nobody", None),
    };
    let handling = handling(&policy, class, &report, rules.source().unknown_max_retries);
    Ok(Json(TestDocument { class: class.as_str(), decided_by, rule, retriable: class.is_retriable(), handling }))
}

/// A type that no rule is about.
fn unnamed_type(rules: &ErrorRules) -> Option<TaskType> {
    let is_named = |name: &TaskType| rules.rules.iter().any(|rule| rule.task_type.as_ref() == Some(name));
    // One more name than there are rules: one of them is free.
    (0..=rules.rules.len()).filter_map(|n| TaskType::new(&format!("any-{n}")).ok()).find(|name| !is_named(name))
}

/// The policy of a task of this type that has no wishes of its own.
fn policy_of(engine: &Engine, settings: &Settings, task_type: &TaskType) -> TaskPolicy {
    let priority = settings.types.get(task_type).and_then(|of_type| of_type.priority).unwrap_or_default();
    settings.task_policy(task_type, engine.config.defaults[priority.index()], PolicyWish::default())
}

fn handling(policy: &TaskPolicy, class: ErrorClass, error: &ErrorReport, unknown_max_retries: Option<u32>) -> String {
    let end = if policy.dead_letter { "a dead letter" } else { "failed" };
    let after = error.retry_after_seconds;
    // Asked of the rule itself, so that this sentence cannot say anything else.
    let is_tried = |retries: &u32| {
        let verdict = after_failure(policy, class, after, *retries, Duration::ZERO, unknown_max_retries, 0);
        matches!(verdict, Verdict::Retry(_))
    };
    let retries = (0..=limits::RETRIES).take_while(is_tried).count();
    if retries == 0 {
        let finding = if class == ErrorClass::CodeBug { " and a finding" } else { "" };
        return format!("It is {end} at once{finding}.");
    }
    let pace = match (after, class) {
        (Some(wait), _) => format!("after {} s, as the error asks", seconds(wait)),
        (None, ErrorClass::RateLimited) => "after twice the delay of its retry policy".to_owned(),
        (None, _) => "by its retry policy".to_owned(),
    };
    let more = match class {
        ErrorClass::Timeout | ErrorClass::Resource => ", each time with a longer timeout",
        ErrorClass::RateLimited => " and does not count for the breaker",
        ErrorClass::Unknown => " and is listed as unclassified",
        ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::CodeBug | ErrorClass::WorkerLost => "",
    };
    let times = if retries == 1 { "once" } else { &format!("at most {retries} times") };
    format!("It is tried again {pace}, {times}{more}; after that it is {end}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::priority::Priority;
    use windlass_core::retry::{PriorityDefaults, RetryPolicy};

    fn report(code: Option<&str>, status: Option<u16>) -> ErrorReport {
        let mut report = ErrorReport::internal("", "x".to_owned());
        report.code = code.map(str::to_owned);
        report.http_status = status;
        report
    }

    #[test]
    fn what_is_said_to_be_built_in_is() {
        let task_type = TaskType::new("t").expect("a name");
        let classified = |report: &ErrorReport| {
            let (class, by) = classify(&RetryPolicy::default(), &RuleBook::default(), &task_type, report);
            (class.as_str(), by)
        };
        for rule in BUILT_IN {
            for code in rule.codes {
                assert_eq!(classified(&report(Some(code), None)), (rule.class, DecidedBy::BuiltIn), "{code}");
            }
            for status in rule.http_status {
                for status in status.split('-') {
                    let status = status.parse().expect("a status");
                    assert_eq!(classified(&report(None, Some(status))), (rule.class, DecidedBy::BuiltIn), "{status}");
                }
            }
        }
    }

    #[test]
    fn what_follows_in_words() {
        let defaults = PriorityDefaults::of(Priority::HIGH);
        let task_type = TaskType::new("t").expect("a name");
        let mut policy = Settings::default().task_policy(&task_type, defaults, PolicyWish::default());
        let mut error = report(None, None);
        for (class, expected) in [
            (
                ErrorClass::Transient,
                "It is tried again by its retry policy, at most 5 times; after that it is a dead letter.",
            ),
            (ErrorClass::Permanent, "It is a dead letter at once."),
            (ErrorClass::CodeBug, "It is a dead letter at once and a finding."),
            (
                ErrorClass::Resource,
                "It is tried again by its retry policy, at most 3 times, each time with a longer timeout; after that it is a dead letter.",
            ),
            (
                ErrorClass::Unknown,
                "It is tried again by its retry policy, once and is listed as unclassified; after that it is a dead letter.",
            ),
            (
                ErrorClass::RateLimited,
                "It is tried again after twice the delay of its retry policy, at most 5 times and does not count for the breaker; after that it is a dead letter.",
            ),
        ] {
            assert_eq!(handling(&policy, class, &error, Some(1)), expected);
        }
        error.retry_after_seconds = Some(Duration::from_secs(30));
        policy.dead_letter = false;
        assert_eq!(
            handling(&policy, ErrorClass::RateLimited, &error, None),
            "It is tried again after 30 s, as the error asks, at most 5 times and does not count for the breaker; after that it is failed."
        );
    }

    #[test]
    fn without_a_type_no_rule_of_a_type_applies() {
        let rules = r#"{"rules":[{"task_type":"any-0","code":"a","class":"permanent"}]}"#;
        let rules: ErrorRules = serde_json::from_str(rules).expect("rules");
        assert_eq!(unnamed_type(&rules).expect("a name").as_str(), "any-1");
    }
}
