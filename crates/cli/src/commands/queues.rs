//! `windlass queues`: how they stand, their settings, pause and resume.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;

use super::settings::{self, Deed, Kind, with_examples};
use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::input::duration;
use crate::pages::{Shape, Walk, print};
use crate::show::escape::plain;
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field};

const EXAMPLES: &str = r"Examples:
  windlass queues
  windlass queues get mail
  windlass queues pause mail
  windlass queues set mail policy=strict depth.soft=1000";

const OF_EACH: &[(&str, &str)] = &[
    ("list", "windlass queues list\nwindlass queues list --json | jq -r '.items[].name'"),
    ("get", "windlass queues get mail"),
    ("pause", "windlass queues pause mail reports"),
    ("resume", "windlass queues resume mail reports"),
    (
        "set",
        "windlass queues set mail policy=strict\nwindlass queues set mail depth.soft=1000 depth.hard=5000\nwindlass queues set mail policy=weighted weights.low=30\nwindlass queues set mail concurrency=50 rate_limit.count=100 rate_limit.per_seconds=1m\nwindlass queues set mail overdue_share=null\n\nSettings: policy (aging, strict, weighted or fair), offsets, overdue_share, weights (high, medium, low),\ntenant_weights, concurrency, rate_limit and tenant_rate_limit (count, per_seconds, burst), max_lanes,\ndepth (soft, hard), retention, paused",
    ),
    ("clear", "windlass queues clear mail"),
];

const KIND: Kind = Kind {
    noun: "queue",
    path: "/api/v1/queues",
    fields: &[
        "name",
        "paused",
        "queued",
        "executing",
        "scheduled",
        "oldest_age_seconds",
        "policy",
        "offsets",
        "overdue_share",
        "weights",
        "tenant_weights",
        "concurrency",
        "rate_limit",
        "tenant_rate_limit",
        "max_lanes",
        "depth",
        "retention",
    ],
};

#[derive(Args)]
struct Queues {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let command =
        Queues::augment_args(Command::new("queues")).about("Shows queues, pauses them, changes their settings");
    with_examples(command.after_help(EXAMPLES), OF_EACH)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Queues::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    match args.deed {
        None | Some(Deed::List) => list(&session).await,
        Some(deed) => settings::run(&session, KIND, &deed).await,
    }
}

#[derive(Deserialize)]
struct Queue {
    name: String,
    policy: String,
    paused: bool,
    queued: u64,
    scheduled: u64,
    executing: u64,
    oldest_age_seconds: Option<f64>,
}

const COLUMNS: &[Column] = &[
    Column::text("name", Fit::Whole),
    Column::text("state", Fit::Whole),
    Column::number("queued", Fit::Whole),
    Column::number("executing", Fit::Whole),
    Column::number("scheduled", Fit::Whole),
    Column::number("oldest", Fit::Whole),
    Column::text("policy", Fit::Optional(1)),
];

fn row(queue: &Queue) -> Vec<Field> {
    let state = if queue.paused { (Tint::Warn, "paused".to_owned()) } else { (Tint::Good, "open".to_owned()) };
    let oldest = queue.oldest_age_seconds.filter(|_| queue.queued > 0);
    vec![
        field(plain(&queue.name)),
        state,
        field(queue.queued.to_string()),
        field(queue.executing.to_string()),
        field(queue.scheduled.to_string()),
        field(oldest.map_or_else(|| "-".to_owned(), duration::rough_seconds)),
        field(plain(&queue.policy)),
    ]
}

async fn list(session: &Session) -> Outcome {
    let empty = "No queues yet: a queue is there as soon as a task is submitted to it.".to_owned();
    print(Walk::new(session, KIND.path, Vec::new(), None), Shape { columns: COLUMNS, row, empty, more: "" }).await
}
