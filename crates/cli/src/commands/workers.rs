//! `windlass workers`: who works, and how to let one finish.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use serde::Deserialize;
use windlass::Method;

use super::settings::with_examples;
use crate::connection::{Connection, Session};
use crate::each::for_each;
use crate::exit::{Failure, Outcome};
use crate::input::moment;
use crate::pages::{Shape, Walk, print};
use crate::show::escape::{plain, url_part};
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field};

const EXAMPLES: &str = r"Examples:
  windlass workers
  windlass workers list --status dead
  windlass workers drain 0198c6c2-7e0f-7abc-8def-0123456789ab";

const OF_EACH: &[(&str, &str)] = &[
    ("list", "windlass workers list --status active"),
    ("drain", "windlass workers drain $worker\n\nA drained worker finishes what it has and gets no more tasks."),
];

#[derive(Subcommand)]
enum Deed {
    /// Lists the workers; the same as without a command
    List {
        /// Only those of this status
        #[arg(long, value_parser = ["active", "draining", "unhealthy", "dead"])]
        status: Option<String>,
    },
    /// Gives workers no more tasks; they finish what they have
    Drain {
        /// The workers
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Args)]
struct Workers {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let command = Workers::augment_args(Command::new("workers")).about("Shows workers, drains them");
    with_examples(command.after_help(EXAMPLES), OF_EACH)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Workers::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    match args.deed {
        None => list(&session, None).await,
        Some(Deed::List { status }) => list(&session, status).await,
        Some(Deed::Drain { ids }) => drain(&session, &ids).await,
    }
}

/// A worker of the API: what is shown of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_field_names, reason = "the names on the wire")]
pub struct Worker {
    pub worker_id: String,
    pub name: Option<String>,
    pub status: String,
    pub capabilities: Vec<String>,
    pub queues: Vec<String>,
    pub task_types: Vec<String>,
    pub capacity: u64,
    pub current_load: u64,
    pub version: Option<String>,
    pub host: Option<String>,
    pub last_heartbeat_at: String,
    pub completed: u64,
    pub failed: u64,
}

const COLUMNS: &[Column] = &[
    Column::text("id", Fit::Whole),
    Column::text("name", Fit::Cut(8)),
    Column::text("status", Fit::Whole),
    Column::number("load", Fit::Whole),
    Column::number("done", Fit::Optional(2)),
    Column::number("failed", Fit::Optional(2)),
    Column::number("seen", Fit::Whole),
    Column::text("queues", Fit::Cut(10)),
    Column::text("types", Fit::Cut(8)),
    Column::text("can", Fit::Cut(8)),
    Column::text("version", Fit::Optional(1)),
    Column::text("host", Fit::Optional(1)),
];

fn row(worker: &Worker) -> Vec<Field> {
    let all = |names: &[String]| match names {
        [] => (Tint::Dim, "all".to_owned()),
        names => field(plain(&names.join(","))),
    };
    let or_dash = |text: Option<&str>| field(text.map_or_else(|| "-".to_owned(), plain));
    vec![
        field(plain(&worker.worker_id)),
        or_dash(worker.name.as_deref()),
        (Tint::of_status(&worker.status), plain(&worker.status)),
        field(format!("{}/{}", worker.current_load, worker.capacity)),
        field(worker.completed.to_string()),
        field(worker.failed.to_string()),
        field(moment::age(&worker.last_heartbeat_at, moment::now())),
        all(&worker.queues),
        all(&worker.task_types),
        or_dash(Some(worker.capabilities.join(",")).filter(|text| !text.is_empty()).as_deref()),
        or_dash(worker.version.as_deref()),
        or_dash(worker.host.as_deref()),
    ]
}

async fn list(session: &Session, status: Option<String>) -> Outcome {
    let empty = match &status {
        Some(status) => format!("No worker is {status}."),
        None => "No workers. Tasks wait until one registers; see the README for how to write one.".to_owned(),
    };
    let walk = Walk::new(session, "/api/v1/workers", vec![("status", status)], None);
    print(walk, Shape { columns: COLUMNS, row, empty, more: "" }).await
}

async fn drain(session: &Session, ids: &[String]) -> Outcome {
    let drain = async |id: &str| {
        let answer = session.call(Method::Post, &format!("/api/v1/workers/{}/drain", url_part(id)), None).await?;
        Ok((format!("{} drains: it finishes what it has", plain(id)), answer))
    };
    for_each(session, ids, drain).await
}
