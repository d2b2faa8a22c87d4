//! `windlass explain`: why a task is not running.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;

use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::input::moment;
use crate::show::escape::{plain, url_part};
use crate::show::screen::Tint;
use crate::show::tasks::word;

const EXAMPLES: &str = r"Examples:
  windlass explain 0198c6c2-7e0f-7abc-8def-0123456789ab
  windlass explain $id --json | jq -r .reason";

#[derive(Args)]
struct Explain {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Explain::augment_args(Command::new("explain")).about("Says why a task is not running").after_help(EXAMPLES)
}

/// Says why.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Explain::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    let explain = async |id: &str| {
        let document: Value = session.get(&format!("/api/v1/tasks/{}/explain", url_part(id))).await?;
        Ok((card(&session, &document), document))
    };
    for_each(&session, &args.ids, explain).await
}

/// Fields that the first two lines say already, or that say nothing beside the sentence.
const SAID: [&str; 7] = ["task_id", "status", "explanation", "reason", "run_at", "queue_paused", "type_paused"];

fn card(session: &Session, document: &Value) -> String {
    let screen = &session.screen;
    let text = |name: &str| document[name].as_str().map(plain).unwrap_or_default();
    let status = text("status");
    let mut lines = vec![
        format!("{}  {}", screen.tint(Tint::Bold, &text("task_id")), screen.tint(Tint::of_status(&status), &status)),
        text("explanation"),
    ];
    let has_ended = matches!(status.as_str(), "completed" | "failed" | "cancelled" | "dead_letter");
    let fact =
        |name: &str, shown: &str| format!("  {}  {shown}", screen.tint(Tint::Dim, &format!("{:<20}", plain(name))));
    if !has_ended {
        lines.push(fact("reason", &text("reason")));
    }
    let facts =
        document.as_object().into_iter().flatten().filter(|(name, _)| !has_ended && !SAID.contains(&name.as_str()));
    for (name, value) in facts {
        if let Some(shown) = shown(value) {
            lines.push(fact(name, &shown));
        }
    }
    lines.join("\n")
}

/// A fact in one line; nothing for what is not there.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().map(word).collect::<Vec<_>>().join(", ")),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => {
            Some(format!("{} ({})", moment::relative(text, moment::now()), moment::clock_time(text)))
        }
        other => Some(word(other)),
    }
}
