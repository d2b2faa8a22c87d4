//! `windlass bury`: takes waiting tasks out of the flow, by id or by filter. They become dead letters.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value, json};
use windlass::Method;

use super::many::{Deed, Which};
use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::show::escape::{plain, url_part};

const EXAMPLES: &str = r"Examples:
  windlass bury 0198c6c2-7e0f-7abc-8def-0123456789ab --reason 'takes the mail server down'
  windlass bury --type import --since 1h --reason 'wrong file' --dry-run
  windlass bury --queue mail --status scheduled --reason 'address list is being mended' --yes

A buried task is a dead letter of reason rejected_by_operator: `windlass dlq get ID` shows it with your reason,
`windlass dlq replay ID` lets it run after all. Tasks that run are not touched; see `windlass cancel`.";

const BURY: Deed = Deed { verb: "bury", path: "/api/v1/tasks/dead-letter", counted: "dead_lettered", done: "buried" };

#[derive(Args)]
struct Bury {
    /// Why, for those who find it
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    reason: String,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let about = "Takes waiting tasks out of the flow; they become dead letters";
    Bury::augment_args(Command::new("bury").visible_alias("dead-letter")).about(about).after_help(EXAMPLES)
}

/// Buries.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Bury::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let is_by_id = args.which.is_by_id(BURY)?;
    let session = Session::open(&args.connection).await?;
    if !is_by_id {
        let reason = Map::from_iter([("reason".to_owned(), Value::from(args.reason))]);
        return args.which.by_filter(&session, BURY, reason).await;
    }
    let body = json!({ "reason": args.reason });
    let bury = async |id: &str| {
        let path = format!("/api/v1/tasks/{}/dead-letter", url_part(id));
        let answer = session.call(Method::Post, &path, Some(&body)).await?;
        Ok((format!("{} buried: it is a dead letter", plain(id)), answer))
    };
    for_each(&session, &args.which.ids, bury).await
}
