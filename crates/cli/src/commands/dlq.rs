//! `windlass dlq`: dead letters. Look, replay, give up.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value};
use windlass::Method;

use super::dlq_analysis;
use super::dlq_bulk::{self, Bulk, BulkArgs, DeadFilter, unconfirmed};
use super::settings::with_examples;
use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::filter::{priority, priority_value};
use crate::input::json_input;
use crate::pages::{Shape, Walk, print};
use crate::show::card::{self, Parts};
use crate::show::escape::{plain, url_part, with_query};
use crate::show::tasks::{DEAD_COLUMNS, Task, dead_row};

const EXAMPLES: &str = r#"Examples:
  windlass dlq                                     what needs a person
  windlass dlq analysis                            what they have in common
  windlass dlq get $id                             why it was given up, attempt by attempt
  windlass dlq replay $id
  windlass dlq replay $id --parameters '{"to": "ada@example.com"}' --reason 'typo in the address'
  windlass dlq replay --type send_email --limit 100 --rate 5
  windlass dlq discard --error-code gone --dry-run"#;

const OF_EACH: &[(&str, &str)] = &[
    ("list", "windlass dlq list --type send_email\nwindlass dlq list --since 1d --error-code smtp_451"),
    ("get", "windlass dlq get $id"),
    (
        "analysis",
        "windlass dlq analysis\nwindlass dlq analysis --type send_email --since 1d\n\nDead letters in groups of the same type, class, code and message; # stands for numbers, ids and the like. SAFE says\nwhether the cause goes away by itself and nothing speaks against a replay.",
    ),
    (
        "replay",
        "windlass dlq replay $first $second\nwindlass dlq replay $id --parameters @mended.json --reason 'typo in the address'\nwindlass dlq replay --type send_email --limit 100 --rate 5 --new-priority low --yes\nwindlass dlq replay --type charge --confirm --yes\nwindlass dlq replay --all-of-them --dry-run\n\nWith --rate the server gives each a start time of its own, the oldest first: the pace is kept when you are gone.",
    ),
    (
        "discard",
        "windlass dlq discard $id --reason 'the account was deleted'\nwindlass dlq discard --error-code gone --until 7d --reason 'accounts were deleted' --yes",
    ),
];

#[derive(Subcommand)]
enum Deed {
    /// Lists dead letters, the newest first; the same as without a command
    List {
        /// Show at most this many
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Show all that match
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        #[command(flatten)]
        filter: DeadFilter,
    },
    /// Shows a dead letter with every attempt and its history
    Get {
        /// The dead letter
        id: String,
    },
    /// Shows what dead letters have in common, and whether a replay looks safe
    Analysis {
        #[command(flatten)]
        filter: DeadFilter,
    },
    /// Lets dead letters run again, by id or by filter
    Replay {
        /// New parameters: JSON, @FILE, or - for standard input; the original ones are kept beside them
        #[arg(long, short = 'p', value_name = "JSON", requires = "ids", allow_hyphen_values = true)]
        parameters: Option<String>,
        /// A new priority: critical, high, medium, low, bulk or 0 to 9
        #[arg(long, value_name = "PRIORITY", value_parser = priority)]
        new_priority: Option<String>,
        /// Do not forget the retries that are used up
        #[arg(long, requires = "ids")]
        keep_retries: bool,
        /// They may run again although their type is marked as sensitive
        #[arg(long)]
        confirm: bool,
        /// With filters: this many start per second instead of all at once
        #[arg(long, value_name = "PER_SECOND", value_parser = dlq_bulk::rate, conflicts_with = "ids")]
        rate: Option<f64>,
        #[command(flatten)]
        which: BulkArgs,
    },
    /// Gives dead letters up, by id or by filter; they count as failed and are deleted after their retention
    Discard {
        #[command(flatten)]
        which: BulkArgs,
    },
}

#[derive(Args)]
struct Dlq {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let command = Dlq::augment_args(Command::new("dlq")).about("Shows dead letters, replays them, gives them up");
    with_examples(command.after_help(EXAMPLES), OF_EACH)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Dlq::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    match args.deed {
        None => list(&session, &DeadFilter::default(), Some(50)).await,
        Some(Deed::List { filter, limit, all }) => list(&session, &filter, (!all).then_some(limit as usize)).await,
        Some(Deed::Analysis { filter }) => dlq_analysis::run(&session, &filter).await,
        Some(Deed::Get { id }) => get(&session, &id).await,
        Some(Deed::Discard { which }) if which.ids.is_empty() => dlq_bulk::run(&session, &which, Bulk::Discard).await,
        Some(Deed::Discard { which }) => discard(&session, &which).await,
        Some(Deed::Replay { which, rate, new_priority, confirm, .. }) if which.ids.is_empty() => {
            dlq_bulk::run(&session, &which, Bulk::Replay { rate, new_priority, confirm }).await
        }
        Some(Deed::Replay { which, parameters, new_priority, keep_retries, confirm, .. }) => {
            which.refuse_filters()?;
            let mut body = Map::new();
            if let Some(given) = parameters {
                body.insert("parameters".to_owned(), json_input::read("--parameters", &given)?);
            }
            if let Some(priority) = new_priority {
                body.insert("new_priority".to_owned(), priority_value(&priority));
            }
            body.insert("reset_retry_count".to_owned(), Value::Bool(!keep_retries));
            body.insert("confirm".to_owned(), Value::Bool(confirm));
            if let Some(reason) = &which.reason {
                body.insert("reason".to_owned(), Value::from(reason.as_str()));
            }
            replay(&session, &which.ids, &Value::Object(body)).await
        }
    }
}

async fn list(session: &Session, filter: &DeadFilter, limit: Option<usize>) -> Outcome {
    let empty = if filter.is_empty() { "No dead letters: nothing needs you." } else { "No dead letter matches." };
    let walk = Walk::new(session, "/api/v1/dlq", filter.query(), limit);
    let more = "`windlass dlq list --all` shows them all.";
    print(walk, Shape { columns: DEAD_COLUMNS, row: dead_row, empty: empty.to_owned(), more }).await
}

async fn get(session: &Session, id: &str) -> Outcome {
    let text = session.text(&format!("/api/v1/dlq/{}", url_part(id))).await?;
    if session.json {
        return session.print_json(&text);
    }
    let task: Task = session.read(&text)?;
    session.screen.line(&card::render(&session.screen, &task, None, Parts { payload: true, history: true }))?;
    let id = plain(&task.task_id);
    session.screen.aside(&format!("\nRun it again: windlass dlq replay {id}\nGive it up:   windlass dlq discard {id}"));
    Ok(())
}

async fn replay(session: &Session, ids: &[String], body: &Value) -> Outcome {
    let replay = async |id: &str| {
        let path = format!("/api/v1/dlq/{}/replay", url_part(id));
        let answer = session.call(Method::Post, &path, Some(body)).await.map_err(unconfirmed)?;
        Ok((format!("{} queued", plain(id)), answer))
    };
    for_each(session, ids, replay).await
}

async fn discard(session: &Session, which: &BulkArgs) -> Outcome {
    which.refuse_filters()?;
    let discard = async |id: &str| {
        let path = with_query(&format!("/api/v1/dlq/{}", url_part(id)), [("reason", which.reason.clone())]);
        let answer = session.call(Method::Delete, &path, None).await?;
        Ok((format!("{} given up", plain(id)), answer))
    };
    for_each(session, &which.ids, discard).await
}
