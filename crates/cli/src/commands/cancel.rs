//! `windlass cancel`: cancels tasks, by id or by filter.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use windlass::Method;

use crate::connection::{Connection, Session, raw};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::filter::{TaskFilter, priority_value};
use crate::input::ask::confirm;
use crate::show::escape::{count, plain, url_part};

const EXAMPLES: &str = r"Examples:
  windlass cancel 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass cancel $first $second
  windlass cancel --queue mail --status queued --dry-run
  windlass cancel --type resize --since 1h --yes

A task that runs is cancelled at once; its worker is told. Ended tasks are never touched by a filter.";

#[derive(Args)]
struct Cancel {
    /// The tasks; without any, those that match the filters
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// With filters: only say how many would be cancelled
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// With filters: cancel at most this many
    #[arg(long, value_name = "N", conflicts_with = "ids", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// With filters: do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    filter: TaskFilter,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Cancel::augment_args(Command::new("cancel")).about("Cancels tasks").after_help(EXAMPLES)
}

/// Cancels.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Cancel::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    match (args.ids.is_empty(), args.filter.is_empty()) {
        (true, true) => {
            let hint =
                "Name tasks by id, or by filters such as --queue mail --status queued; see `windlass cancel --help`.";
            Err(Failure::usage("nothing says which tasks to cancel").hint(hint))
        }
        (false, false) => Err(Failure::usage("ids and filters cannot be given together")
            .hint("Name the tasks by id, or by what they have in common.")),
        (false, true) => by_id(&Session::open(&args.connection).await?, &args.ids).await,
        (true, false) => by_filter(&Session::open(&args.connection).await?, &args).await,
    }
}

async fn by_id(session: &Session, ids: &[String]) -> Outcome {
    let cancel = async |id: &str| {
        let answer = session.call(Method::Delete, &format!("/api/v1/tasks/{}", url_part(id)), None).await?;
        let told = if answer["was_executing"] == true { "; its worker is told" } else { "" };
        Ok((format!("{} cancelled{told}", plain(id)), answer))
    };
    for_each(session, ids, cancel).await
}

async fn by_filter(session: &Session, args: &Cancel) -> Outcome {
    let mut body = args.filter.body();
    if let Some(Value::String(priority)) = body.get("priority") {
        let priority = priority_value(priority);
        body.insert("priority".to_owned(), priority);
    }
    if let Some(limit) = args.limit {
        body.insert("limit".to_owned(), Value::from(limit));
    }
    body.insert("dry_run".to_owned(), Value::Bool(true));
    let counted = session.call_bulk("/api/v1/tasks/cancel", &Value::Object(body.clone())).await?;
    let matched = counted["matched"].as_u64().unwrap_or_default();
    if args.dry_run || matched == 0 {
        return if session.json {
            session.print_documents(&[raw(&counted)?])
        } else {
            Ok(session.screen.line(&format!("{} would be cancelled; nothing was changed", count(matched, "task")))?)
        };
    }
    confirm(&format!("Cancel {}?", count(matched, "task")), args.yes)?;
    body.insert("dry_run".to_owned(), Value::Bool(false));
    let done = session.call_bulk("/api/v1/tasks/cancel", &Value::Object(body)).await?;
    if session.json {
        return session.print_documents(&[raw(&done)?]);
    }
    Ok(session.screen.line(&format!("{} cancelled", count(done["cancelled"].as_u64().unwrap_or_default(), "task")))?)
}
