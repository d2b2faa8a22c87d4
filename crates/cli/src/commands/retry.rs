//! `windlass retry`: runs tasks now that wait for a retry, failed or were given up.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::json;
use windlass::Method;

use super::dlq_bulk::unconfirmed;
use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::show::escape::{plain, url_part};

const EXAMPLES: &str = r"Examples:
  windlass retry 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass retry $first $second && windlass wait $first $second

Scheduled, failed and dead tasks can be retried; their retries count from zero again.
To change parameters or replay many dead letters see `windlass dlq replay --help`.";

#[derive(Args)]
struct Retry {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// They may run again although their type is marked as sensitive
    #[arg(long)]
    confirm: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Retry::augment_args(Command::new("retry")).about("Runs scheduled, failed or dead tasks now").after_help(EXAMPLES)
}

/// Retries.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Retry::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let body = args.confirm.then(|| json!({ "confirm": true }));
    let retry = async |id: &str| {
        let path = format!("/api/v1/tasks/{}/retry", url_part(id));
        let answer = session.call(Method::Post, &path, body.as_ref()).await.map_err(unconfirmed)?;
        Ok((format!("{} queued", plain(id)), answer))
    };
    for_each(&session, &args.ids, retry).await
}
