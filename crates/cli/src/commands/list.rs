//! `windlass list`: tasks that match, newest first.

use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::filter::TaskFilter;
use crate::pages::{Shape, Walk, print};
use crate::show::tasks::{COLUMNS, row};

const EXAMPLES: &str = r"Examples:
  windlass list
  windlass list --status queued,scheduled --queue mail
  windlass list --status dead_letter --since 2h --error-code smtp_451
  windlass list --type resize --parameter user.id:eq:42
  windlass list --search timeout --limit 200
  windlass list --all --json | jq -r '.items[].task_id'";

#[derive(Args)]
struct List {
    /// Show at most this many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show all that match
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    filter: TaskFilter,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    List::augment_args(Command::new("list").visible_alias("ls")).about("Lists tasks, newest first").after_help(EXAMPLES)
}

/// Lists.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = List::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let empty = if args.filter.is_empty() {
        "No tasks yet. Submit one: windlass enqueue hello --parameters '{\"name\": \"Ada\"}'"
    } else {
        "No task matches. Fewer filters show more; ended tasks are deleted after their retention."
    };
    let limit = (!args.all).then_some(args.limit as usize);
    let walk = Walk::new(&session, "/api/v1/tasks", args.filter.query(), limit);
    let more = "--all shows them all, --limit N as many as you like.";
    print(walk, Shape { columns: COLUMNS, row, empty: empty.to_owned(), more }).await
}
