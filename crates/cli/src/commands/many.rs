//! What `windlass cancel` and `windlass bury` have in common: some tasks by id, or many by what they share, which are
//! counted first and asked about.

use clap::Args;
use serde_json::{Map, Value};

use crate::connection::{Session, raw};
use crate::exit::{Failure, Outcome};
use crate::filter::TaskFilter;
use crate::input::ask::confirm;
use crate::show::escape::count;

// Which tasks. No doc comment: clap would take it for what the command is about.
#[derive(Args)]
pub struct Which {
    /// The tasks; without any, those that match the filters
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// With filters: only say how many there are
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// With filters: at most this many, the newest
    #[arg(long, value_name = "N", conflicts_with = "ids", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// With filters: do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    filter: TaskFilter,
}

/// What is done to them.
#[derive(Clone, Copy)]
pub struct Deed {
    /// The command.
    pub verb: &'static str,
    /// The call that does it to all that match.
    pub path: &'static str,
    /// The field of its answer that counts.
    pub counted: &'static str,
    /// What they are after it.
    pub done: &'static str,
}

impl Which {
    /// Whether tasks are named by id. Naming none and naming them twice is refused.
    pub fn is_by_id(&self, deed: Deed) -> Outcome<bool> {
        match (self.ids.is_empty(), self.filter.is_empty()) {
            (true, true) => {
                let verb = deed.verb;
                let hint = format!(
                    "Name tasks by id, or by filters such as --queue mail --status queued; see `windlass {verb} --help`."
                );
                Err(Failure::usage(format!("nothing says which tasks to {verb}")).hint(hint))
            }
            (false, false) => Err(Failure::usage("ids and filters cannot be given together")
                .hint("Name the tasks by id, or by what they have in common.")),
            (is_by_filter, _) => Ok(!is_by_filter),
        }
    }

    /// Counts those that match, asks, and does it.
    pub async fn by_filter(&self, session: &Session, deed: Deed, more: Map<String, Value>) -> Outcome {
        let mut body = self.filter.body();
        body.extend(more);
        if let Some(limit) = self.limit {
            body.insert("limit".to_owned(), Value::from(limit));
        }
        body.insert("dry_run".to_owned(), Value::Bool(true));
        let counted = session.call_bulk(deed.path, &Value::Object(body.clone())).await?;
        let matched = counted["matched"].as_u64().unwrap_or_default();
        if self.dry_run || matched == 0 {
            let line = format!("{} would be {}; nothing was changed", count(matched, "task"), deed.done);
            return print(session, &counted, &line);
        }
        let mut verb = deed.verb.to_owned();
        verb[..1].make_ascii_uppercase();
        confirm(&format!("{verb} {}?", count(matched, "task")), self.yes)?;
        body.insert("dry_run".to_owned(), Value::Bool(false));
        let done = session.call_bulk(deed.path, &Value::Object(body)).await?;
        let line = format!("{} {}", count(done[deed.counted].as_u64().unwrap_or_default(), "task"), deed.done);
        print(session, &done, &line)
    }
}

fn print(session: &Session, document: &Value, line: &str) -> Outcome {
    if session.json { session.print_documents(&[raw(document)?]) } else { Ok(session.screen.line(line)?) }
}
