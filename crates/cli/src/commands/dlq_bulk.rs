//! Replaying and discarding many dead letters: by a filter, counted first, asked before, at a pace if so wished.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::Method;

use crate::connection::{Session, raw};
use crate::exit::{Failure, Outcome};
use crate::filter::fields;
use crate::input::ask::confirm;
use crate::input::moment;
use crate::pages::{Query, Walk};
use crate::show::bar::Bar;
use crate::show::escape::{count, url_part};

/// Which dead letters.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filters")]
pub struct DeadFilter {
    /// Dead letters of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Dead letters of this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Dead letters whose last failure has this code
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Dead letters whose last failure is of this class, such as permanent or code_bug
    #[arg(long)]
    class: Option<String>,
    /// Why they were given up, such as max_retries or poison_pill
    #[arg(long, value_name = "REASON")]
    dead_reason: Option<String>,
    /// Given up since then: 2h ago, or a time such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_past)]
    since: Option<String>,
    /// Given up before then
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_past)]
    until: Option<String>,
    /// Dead letters with this text in their id, type, tags, error code or message
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

impl DeadFilter {
    /// The filter as a query.
    pub fn query(&self) -> Query {
        vec![
            ("queue", self.queue.clone()),
            ("task_type", self.task_type.clone()),
            ("error_code", self.error_code.clone()),
            ("class", self.class.clone()),
            ("dead_reason", self.dead_reason.clone()),
            ("after", self.since.clone()),
            ("before", self.until.clone()),
            ("q", self.search.clone()),
        ]
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.query().iter().all(|(_, value)| value.is_none())
    }
}

/// Some dead letters by id, or many by what they have in common.
#[derive(Args, Clone, Debug)]
pub struct BulkArgs {
    /// The dead letters; without any, those that match the filters
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Really all dead letters, without a filter
    #[arg(long, conflicts_with = "ids")]
    all_of_them: bool,
    /// With filters: at most this many
    #[arg(long, value_name = "N", conflicts_with = "ids", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// With filters: only say how many there are
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// With filters: do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    filter: DeadFilter,
}

impl BulkArgs {
    /// Ids and filters together could mean two things.
    pub fn refuse_filters(&self) -> Outcome {
        if self.filter.is_empty() {
            return Ok(());
        }
        Err(Failure::usage("ids and filters cannot be given together")
            .hint("Name the dead letters by id, or by what they have in common."))
    }
}

/// What is done to them.
#[derive(Clone, Copy, Debug)]
pub enum Bulk {
    /// They run again, this many a second if set.
    Replay {
        /// How many a second.
        rate: Option<f64>,
    },
    /// They are given up.
    Discard,
}

impl Bulk {
    fn path(self) -> &'static str {
        match self {
            Self::Replay { .. } => "/api/v1/dlq/replay",
            Self::Discard => "/api/v1/dlq/discard",
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Replay { .. } => "Replay",
            Self::Discard => "Discard",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Replay { .. } => "replayed",
            Self::Discard => "discarded",
        }
    }
}

/// Reads a pace.
pub fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
    number.filter(|rate| (0.01..=1_000.0).contains(rate)).ok_or_else(|| "must be a number from 0.01 to 1000".to_owned())
}

/// Counts, asks, does.
pub async fn run(session: &Session, args: &BulkArgs, deed: Bulk) -> Outcome {
    if args.filter.is_empty() && !args.all_of_them {
        let message = format!("nothing says which dead letters to {}", deed.verb().to_lowercase());
        return Err(Failure::usage(message)
            .hint("Name them by id, by filters such as --type send_email, or give --all-of-them."));
    }
    let mut body: Map<String, Value> = fields(args.filter.query());
    body.insert("confirm".to_owned(), Value::Bool(args.all_of_them));
    if let Some(limit) = args.limit {
        body.insert("limit".to_owned(), Value::from(limit));
    }
    if let Some(reason) = &args.reason {
        body.insert("reason".to_owned(), Value::from(reason.as_str()));
    }
    body.insert("dry_run".to_owned(), Value::Bool(true));
    let counted = session.call_bulk(deed.path(), &Value::Object(body.clone())).await?;
    let matched = counted["matched"].as_u64().unwrap_or_default();
    if args.dry_run || matched == 0 {
        let line = format!("{} would be {}; nothing was changed", count(matched, "dead letter"), deed.done());
        return print(session, &counted, &line);
    }
    confirm(&format!("{} {}?", deed.verb(), count(matched, "dead letter")), args.yes)?;
    let done = match deed {
        Bulk::Replay { rate: Some(rate) } => paced(session, args, rate).await?,
        Bulk::Replay { rate: None } | Bulk::Discard => {
            body.insert("dry_run".to_owned(), Value::Bool(false));
            session.call_bulk(deed.path(), &Value::Object(body)).await?
        }
    };
    let line = format!("{} {}", count(done[deed.done()].as_u64().unwrap_or_default(), "dead letter"), deed.done());
    print(session, &done, &line)
}

fn print(session: &Session, document: &Value, line: &str) -> Outcome {
    if session.json { session.print_documents(&[raw(document)?]) } else { Ok(session.screen.line(line)?) }
}

#[derive(Deserialize)]
struct Letter {
    task_id: String,
}

/// Replays one after the other at a pace. Which ones is settled first, so that one that dies again is not taken twice.
async fn paced(session: &Session, args: &BulkArgs, rate: f64) -> Outcome<Value> {
    let mut walk = Walk::new(session, "/api/v1/dlq", args.filter.query(), args.limit.map(|limit| limit as usize));
    let mut ids = Vec::new();
    while let Some(items) = walk.next().await? {
        for item in items {
            ids.push(session.read::<Letter>(item.get())?.task_id);
        }
    }
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    let mut bar = Bar::new(&session.screen, Some(ids.len() as u64), "replayed");
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let mut replayed = 0_u64;
    for (index, id) in ids.iter().enumerate() {
        ticks.tick().await;
        match session.call(Method::Post, &format!("/api/v1/dlq/{}/replay", url_part(id)), Some(&body)).await {
            Ok(_) => replayed += 1,
            // Somebody else was quicker.
            Err(error) if matches!(error.code(), Some("not_dead" | "task_not_found")) => {}
            Err(error) => {
                let failure = Failure::from(error);
                let message = format!("stopped after {replayed} of {} dead letters: {failure}", ids.len());
                return Err(Failure::new(failure.exit(), message).hint("Run it again for the rest."));
            }
        }
        bar.set(index as u64 + 1);
    }
    Ok(json!({ "matched": ids.len(), "replayed": replayed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_bounded() {
        assert_eq!(rate("5"), Ok(5.0));
        assert_eq!(rate("0.5/s"), Ok(0.5));
        for text in ["0", "-1", "fast", "1e9", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
