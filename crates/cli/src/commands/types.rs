//! `windlass types`: the settings of task types, pause and resume.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::Value;

use super::settings::{self, Deed, Kind, with_examples};
use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::input::duration;
use crate::pages::{Shape, Walk, print};
use crate::show::escape::plain;
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field};
use crate::show::tasks::word;

const EXAMPLES: &str = r"Examples:
  windlass types
  windlass types get send_email
  windlass types set send_email queue=mail max_retries=5 timeout_seconds=30s
  windlass types pause send_email";

const OF_EACH: &[(&str, &str)] = &[
    ("list", "windlass types list\nwindlass types list --json"),
    ("get", "windlass types get send_email"),
    ("pause", "windlass types pause send_email"),
    ("resume", "windlass types resume send_email"),
    (
        "set",
        "windlass types set send_email queue=mail max_retries=5 timeout_seconds=10m\nwindlass types set send_email retry.strategy=exponential retry.base_delay=2s\nwindlass types set send_email concurrency=10 rate_limit.count=100 rate_limit.per_seconds=1m\nwindlass types set charge sensitive=true breaker.failure_ratio=0.5 breaker.recovery_seconds=2m\nwindlass types set send_email 'auto_replay={\"classes\": [\"transient\"], \"rate_per_second\": 10}'\nwindlass types set send_email priority=null\n\nSettings: queue, priority, timeout_seconds, max_retries, retry (strategy, base_delay, max_delay, jitter, …),\ndead_letter, max_crashes, concurrency, rate_limit (count, per_seconds, burst), slots,\nbreaker (min_attempts, failure_ratio, window_seconds, recovery_seconds), sensitive,\nauto_replay (classes, rate_per_second), retention (completed_days, dead_letter_days), paused",
    ),
    ("clear", "windlass types clear send_email"),
];

const KIND: Kind = Kind {
    noun: "task type",
    path: "/api/v1/task-types",
    fields: &[
        "task_type",
        "paused",
        "queue",
        "priority",
        "timeout_seconds",
        "max_retries",
        "retry",
        "dead_letter",
        "max_crashes",
        "concurrency",
        "rate_limit",
        "slots",
        "breaker",
        "sensitive",
        "auto_replay",
        "retention",
    ],
};

#[derive(Args)]
struct Types {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let command =
        Types::augment_args(Command::new("types")).about("Shows task types, pauses them, changes their settings");
    with_examples(command.after_help(EXAMPLES), OF_EACH)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Types::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    match args.deed {
        None | Some(Deed::List) => list(&session).await,
        Some(deed) => settings::run(&session, KIND, &deed).await,
    }
}

#[derive(Deserialize)]
#[allow(clippy::struct_field_names, reason = "the names on the wire")]
struct TaskType {
    task_type: String,
    queue: Option<String>,
    #[serde(default)]
    priority: Value,
    timeout_seconds: Option<f64>,
    max_retries: Option<u32>,
    paused: bool,
}

const COLUMNS: &[Column] = &[
    Column::text("type", Fit::Whole),
    Column::text("state", Fit::Whole),
    Column::text("queue", Fit::Cut(8)),
    Column::text("priority", Fit::Whole),
    Column::number("timeout", Fit::Whole),
    Column::number("retries", Fit::Whole),
];

fn row(kind: &TaskType) -> Vec<Field> {
    let state = if kind.paused { (Tint::Warn, "paused".to_owned()) } else { (Tint::Good, "open".to_owned()) };
    let or_default = |text: Option<String>| text.map_or((Tint::Dim, "default".to_owned()), field);
    vec![
        field(plain(&kind.task_type)),
        state,
        or_default(kind.queue.as_deref().map(plain)),
        or_default(Some(&kind.priority).filter(|priority| !priority.is_null()).map(word)),
        or_default(kind.timeout_seconds.map(duration::rough_seconds)),
        or_default(kind.max_retries.map(|retries| retries.to_string())),
    ]
}

async fn list(session: &Session) -> Outcome {
    let empty = "No task type has settings of its own; all follow the defaults. Set one up: windlass types set TYPE max_retries=5";
    let shape = Shape { columns: COLUMNS, row, empty: empty.to_owned(), more: "" };
    print(Walk::new(session, KIND.path, Vec::new(), None), shape).await
}
