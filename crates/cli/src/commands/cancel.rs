//! `windlass cancel`: cancels tasks, by id or by filter.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::Map;
use windlass::Method;

use super::many::{Deed, Which};
use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::show::escape::{plain, url_part};

const EXAMPLES: &str = r"Examples:
  windlass cancel 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass cancel $first $second
  windlass cancel --queue mail --status queued --dry-run
  windlass cancel --type resize --since 1h --yes

A task that runs is cancelled at once; its worker is told. Ended tasks are never touched by a filter.";

const CANCEL: Deed = Deed { verb: "cancel", path: "/api/v1/tasks/cancel", counted: "cancelled", done: "cancelled" };

#[derive(Args)]
struct Cancel {
    #[command(flatten)]
    which: Which,
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
    let is_by_id = args.which.is_by_id(CANCEL)?;
    let session = Session::open(&args.connection).await?;
    if is_by_id {
        by_id(&session, &args.which.ids).await
    } else {
        args.which.by_filter(&session, CANCEL, Map::new()).await
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
