//! `windlass error-rules`: what puts a failure in its class, and a way to try it.

use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::Method;
use windlass_core::limits;

use super::settings::with_examples;
use crate::connection::{Connection, Session, raw};
use crate::exit::{Failure, Outcome};
use crate::input::{duration, json_input, moment};
use crate::show::escape::plain;
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field, render_indented};

const EXAMPLES: &str = r#"Examples:
  windlass error-rules
  windlass error-rules test --code card_declined --type charge
  windlass error-rules get --json > rules.json      edit it, try it, then set it
  windlass error-rules test --http-status 503 --rules @rules.json
  windlass error-rules set @rules.json
  windlass error-rules set '[{"code": "db_*", "class": "transient"}]'

Classes: transient, rate_limited, timeout, resource, permanent, code_bug."#;

const OF_EACH: &[(&str, &str)] = &[
    ("get", "windlass error-rules get\nwindlass error-rules get --json > rules.json"),
    (
        "set",
        "windlass error-rules set @rules.json\nwindlass error-rules set '[{\"task_type\": \"charge\", \"code\": \"card_*\", \"class\": \"permanent\"}]'\nwindlass error-rules set '{\"rules\": [{\"http_status\": \"5xx\", \"class\": \"transient\"}], \"unknown_max_retries\": 2}'\nwindlass error-rules set '[]'\n\nThe first rule that matches decides; those of a type go before the others. What is set replaces all rules.",
    ),
    (
        "test",
        "windlass error-rules test --code card_declined --type charge\nwindlass error-rules test --message 'deadlock detected' --http-status 503\nwindlass error-rules test --code db_lost --rules @rules.json\n\nNothing is changed.",
    ),
];

#[derive(Subcommand)]
enum Deed {
    /// Shows the rules and what they leave open; the same as without a command
    Get,
    /// Replaces all rules
    Set {
        /// The rules: JSON, @FILE, or - for standard input
        #[arg(value_name = "JSON")]
        rules: String,
    },
    /// Says what would follow from a failure
    Test(Trial),
}

#[derive(Args)]
struct Trial {
    /// The type that failed; without it only rules of no type apply
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// The error code
    #[arg(long)]
    code: Option<String>,
    /// The message
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// The status of an HTTP call that failed
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(100..=599))]
    http_status: Option<u16>,
    /// Whether the handler says that a retry helps
    #[arg(long, value_name = "true|false")]
    retriable: Option<bool>,
    /// How long the error asks to wait
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    retry_after: Option<Duration>,
    /// Try these rules instead of the stored ones: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    rules: Option<String>,
}

#[derive(Args)]
struct ErrorRulesArgs {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let about = "Shows, changes and tries the rules that class failures";
    with_examples(ErrorRulesArgs::augment_args(Command::new("error-rules")).about(about).after_help(EXAMPLES), OF_EACH)
}

const PATH: &str = "/api/v1/error-rules";

fn wait(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::ZERO, limits::DELAY)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = ErrorRulesArgs::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    match args.deed {
        None | Some(Deed::Get) => {
            let session = Session::open(&args.connection).await?;
            let text = session.text(PATH).await?;
            show(&session, &text)
        }
        Some(Deed::Set { rules }) => {
            let body = rules_body("the rules", &rules)?;
            let session = Session::open(&args.connection).await?;
            let answer = session.call(Method::Put, PATH, Some(&Value::Object(body))).await?;
            if session.json {
                return session.print_documents(&[raw(&answer)?]);
            }
            show(&session, &answer.to_string())
        }
        Some(Deed::Test(trial)) => {
            let body = trial_body(&trial)?;
            test(&Session::open(&args.connection).await?, &body).await
        }
    }
}

/// Rules as the API takes them: from a bare list, or from a document that it gave, without what it found out itself.
fn rules_body(what: &str, given: &str) -> Outcome<Map<String, Value>> {
    match json_input::read(what, given)? {
        Value::Array(rules) => Ok(Map::from_iter([("rules".to_owned(), Value::Array(rules))])),
        Value::Object(mut fields) => {
            fields.remove("built_in");
            fields.remove("unclassified");
            Ok(fields)
        }
        _ => Err(Failure::usage(format!("{what} are neither a list of rules nor an object with rules"))
            .hint("They look like [{\"code\": \"db_*\", \"class\": \"transient\"}].")),
    }
}

fn trial_body(trial: &Trial) -> Outcome<Value> {
    if trial.code.is_none() && trial.message.is_none() && trial.http_status.is_none() && trial.retriable.is_none() {
        return Err(Failure::usage("nothing says how it failed")
            .hint("Give one or several of --code, --message, --http-status and --retriable."));
    }
    let mut error = Map::from_iter([("message".to_owned(), json!(trial.message.as_deref().unwrap_or_default()))]);
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            error.insert(name.to_owned(), value);
        }
    };
    set("code", trial.code.as_deref().map(Value::from));
    set("http_status", trial.http_status.map(Value::from));
    set("retriable", trial.retriable.map(Value::from));
    set("retry_after_seconds", trial.retry_after.map(|span| Value::from(span.as_secs_f64())));
    let mut body = match &trial.rules {
        Some(given) => rules_body("--rules", given)?,
        None => Map::new(),
    };
    body.insert("error".to_owned(), Value::Object(error));
    if let Some(task_type) = &trial.task_type {
        body.insert("task_type".to_owned(), Value::from(task_type.as_str()));
    }
    Ok(Value::Object(body))
}

/// What the rules make of a failure.
#[derive(Deserialize)]
struct Verdict {
    class: String,
    decided_by: String,
    rule: Option<usize>,
    handling: String,
}

async fn test(session: &Session, body: &Value) -> Outcome {
    let answer = session.call(Method::Post, &format!("{PATH}/test"), Some(body)).await?;
    if session.json {
        return session.print_documents(&[raw(&answer)?]);
    }
    let verdict: Verdict = session.read(&answer.to_string())?;
    let by = match (verdict.decided_by.as_str(), verdict.rule) {
        (_, Some(rule)) => format!("by rule {rule}"),
        ("policy", None) => "by the codes of the retry policy".to_owned(),
        ("built_in", None) => "by a built-in rule".to_owned(),
        ("handler", None) => "by the handler's own word".to_owned(),
        ("nobody", None) => "because nothing puts it in another".to_owned(),
        (other, None) => format!("by {}", plain(other)),
    };
    let class = session.screen.tint(Tint::Bold, &plain(&verdict.class));
    Ok(session.screen.line(&format!("class {class}, {by}\n{}", plain(&verdict.handling)))?)
}

/// The rules as the API shows them.
#[derive(Deserialize)]
struct RuleBook {
    rules: Vec<Rule>,
    unknown_max_retries: Option<u32>,
    #[serde(default)]
    built_in: Vec<BuiltIn>,
    #[serde(default)]
    unclassified: Vec<Unclassified>,
}

#[derive(Deserialize)]
struct Rule {
    name: Option<String>,
    task_type: Option<String>,
    code: Option<String>,
    http_status: Option<Value>,
    message: Option<String>,
    class: String,
}

#[derive(Deserialize)]
struct BuiltIn {
    codes: Vec<String>,
    http_status: Vec<String>,
    class: String,
}

#[derive(Deserialize)]
struct Unclassified {
    task_type: String,
    code: Option<String>,
    message: String,
    count: u64,
    last_seen: String,
}

const RULES: &[Column] = &[
    Column::number("#", Fit::Whole),
    Column::text("type", Fit::Cut(8)),
    Column::text("code", Fit::Cut(8)),
    Column::text("status", Fit::Cut(8)),
    Column::text("message", Fit::Cut(12)),
    Column::text("class", Fit::Whole),
    Column::text("name", Fit::Optional(1)),
];

const BUILT_IN: &[Column] =
    &[Column::text("code", Fit::Cut(12)), Column::text("status", Fit::Cut(12)), Column::text("class", Fit::Whole)];

const UNCLASSIFIED: &[Column] = &[
    Column::number("count", Fit::Whole),
    Column::text("type", Fit::Cut(12)),
    Column::text("code", Fit::Cut(8)),
    Column::number("last seen", Fit::Whole),
    Column::text("message", Fit::Cut(20)),
];

fn show(session: &Session, text: &str) -> Outcome {
    if session.json {
        return session.print_json(text);
    }
    let rules: RuleBook = session.read(text)?;
    let screen = &session.screen;
    let mut lines = Vec::new();
    let mut part = |heading: &str, columns: &[Column], rows: Vec<Vec<Field>>, empty: &str| {
        if rows.is_empty() && empty.is_empty() {
            return;
        }
        lines.push(screen.tint(Tint::Bold, heading));
        let table = if rows.is_empty() { empty.to_owned() } else { render_indented(screen, columns, rows, true) };
        lines.extend(table.lines().map(|line| format!("  {line}")));
        lines.push(String::new());
    };
    part("Rules", RULES, rules.rules.iter().enumerate().map(rule_row).collect(), "none");
    part("Where none matches", BUILT_IN, rules.built_in.iter().map(built_in_row).collect(), "");
    let unclassified = rules.unclassified.iter().map(unclassified_row).collect();
    part("Errors that nothing puts in a class", UNCLASSIFIED, unclassified, "");
    lines.push(match rules.unknown_max_retries {
        Some(retries) => format!("An error in no class is tried again at most {retries} times (unknown_max_retries)."),
        None => {
            "An error in no class is tried again as its retry policy says (unknown_max_retries is not set).".to_owned()
        }
    });
    Ok(screen.line(&lines.join("\n"))?)
}

fn or_dash(text: Option<&str>) -> Field {
    text.map_or_else(|| (Tint::Dim, "-".to_owned()), |text| field(plain(text)))
}

fn rule_row((index, rule): (usize, &Rule)) -> Vec<Field> {
    let status = rule.http_status.as_ref().map(|status| match status {
        Value::Array(ranges) => ranges.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    });
    vec![
        field(index.to_string()),
        or_dash(rule.task_type.as_deref()),
        or_dash(rule.code.as_deref()),
        or_dash(status.as_deref()),
        or_dash(rule.message.as_deref()),
        field(plain(&rule.class)),
        or_dash(rule.name.as_deref()),
    ]
}

fn built_in_row(rule: &BuiltIn) -> Vec<Field> {
    let joined = |texts: &[String]| Some(texts.join(",")).filter(|text| !text.is_empty());
    vec![
        or_dash(joined(&rule.codes).as_deref()),
        or_dash(joined(&rule.http_status).as_deref()),
        field(plain(&rule.class)),
    ]
}

fn unclassified_row(error: &Unclassified) -> Vec<Field> {
    vec![
        field(error.count.to_string()),
        field(plain(&error.task_type)),
        or_dash(error.code.as_deref()),
        field(moment::age(&error.last_seen, moment::now())),
        (Tint::Dim, plain(&error.message)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_got_can_be_set() {
        let got = r#"{"rules": [{"code": "x", "class": "permanent"}], "unknown_max_retries": 2, "built_in": [], "unclassified": []}"#;
        let wanted = json!({"rules": [{"code": "x", "class": "permanent"}], "unknown_max_retries": 2});
        assert_eq!(Value::Object(rules_body("the rules", got).expect("sound")), wanted);
        assert_eq!(Value::Object(rules_body("the rules", "[]").expect("sound")), json!({"rules": []}));
        assert!(rules_body("the rules", "7").is_err());
    }
}
