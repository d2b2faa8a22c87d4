//! `windlass get`: one task as a card.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;

use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::show::card::{self, Parts};
use crate::show::escape::{url_part, with_query};
use crate::show::tasks::Task;

const EXAMPLES: &str = r"Examples:
  windlass get 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass get $id --history
  windlass get $id --json | jq .result";

#[derive(Args)]
struct Get {
    /// The task
    id: String,
    /// Also show everything that happened to it
    #[arg(long)]
    history: bool,
    /// Leave parameters and result out
    #[arg(long)]
    no_payload: bool,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Get::augment_args(Command::new("get")).about("Shows a task").after_help(EXAMPLES)
}

/// Shows it.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Get::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let include = args.history.then(|| "history".to_owned());
    let text =
        session.text(&with_query(&format!("/api/v1/tasks/{}", url_part(&args.id)), [("include", include)])).await?;
    if session.json {
        return print_document(&session, &text, !args.no_payload);
    }
    let task: Task = session.read(&text)?;
    let why = if task.is_waiting() { explanation(&session, &args.id).await } else { None };
    let parts = Parts { payload: !args.no_payload, history: args.history };
    Ok(session.screen.line(&card::render(&session.screen, &task, why.as_deref(), parts))?)
}

/// Prints the document, without its large parts if so wished.
fn print_document(session: &Session, text: &str, payload: bool) -> Outcome {
    if payload {
        return session.print_json(text);
    }
    let mut document: serde_json::Value = session.read(text)?;
    if let Some(fields) = document.as_object_mut() {
        for name in ["parameters", "original_parameters", "result"] {
            fields.remove(name);
        }
    }
    session.print_json(&document.to_string())
}

/// Why a task does not run. It is a help beside the task: without it the task is shown all the same.
async fn explanation(session: &Session, id: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Explanation {
        explanation: String,
    }
    let path = format!("/api/v1/tasks/{}/explain", url_part(id));
    session.get::<Explanation>(&path).await.ok().map(|explanation| explanation.explanation)
}
