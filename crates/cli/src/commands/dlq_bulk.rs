//! Replaying and discarding many dead letters: by a filter, counted first, asked before, at a pace if so wished.

use clap::Args;
use serde_json::{Map, Value};
use windlass::Error;
use windlass_core::settings::REPLAY_RATE;

use crate::connection::{Session, raw};
use crate::exit::{Failure, Outcome};
use crate::filter::{fields, priority, priority_value};
use crate::input::ask;
use crate::input::{duration, moment, pairs};
use crate::pages::Query;
use crate::show::escape::count;

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
    /// Dead letters of this priority: critical, high, medium, low, bulk or 0 to 9
    #[arg(long, value_parser = priority)]
    priority: Option<String>,
    /// Dead letters of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Dead letters with this tag
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs::tag)]
    tag: Option<(String, String)>,
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
            ("priority", self.priority.clone()),
            ("tenant", self.tenant.clone()),
            ("tag", self.tag.as_ref().map(|(key, value)| format!("{key}:{value}"))),
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
        let hint = match &self.filter.priority {
            Some(priority) => format!("--priority is a filter; for another priority give --new-priority {priority}."),
            None => "Name the dead letters by id, or by what they have in common.".to_owned(),
        };
        Err(Failure::usage("ids and filters cannot be given together").hint(hint))
    }
}

/// What is done to them.
#[derive(Clone, Debug)]
pub enum Bulk {
    /// They run again.
    Replay {
        /// How many start per second.
        rate: Option<f64>,
        /// A new priority.
        new_priority: Option<String>,
        /// Also those of types that are marked as sensitive.
        confirm: bool,
    },
    /// They are given up.
    Discard,
}

impl Bulk {
    fn path(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "/api/v1/dlq/replay",
            Self::Discard => "/api/v1/dlq/discard",
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "Replay",
            Self::Discard => "Discard",
        }
    }

    fn done(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "replayed",
            Self::Discard => "discarded",
        }
    }

    /// Puts what is special about it into the body of the call.
    fn put_into(&self, body: &mut Map<String, Value>) {
        let Self::Replay { rate, new_priority, confirm } = self else { return };
        body.insert("confirm".to_owned(), Value::Bool(*confirm));
        if let Some(rate) = rate {
            body.insert("rate_per_second".to_owned(), Value::from(*rate));
        }
        if let Some(priority) = new_priority {
            body.insert("new_priority".to_owned(), priority_value(priority));
        }
    }

    /// When the last of so many starts, if they start at a pace.
    fn until(&self, matched: u64) -> String {
        match self {
            Self::Replay { rate: Some(rate), .. } if matched > 1 => {
                let last = duration::rough_seconds((matched - 1) as f64 / rate);
                format!("; the last one starts in {last}")
            }
            Self::Replay { .. } | Self::Discard => String::new(),
        }
    }
}

/// Reads a pace.
pub fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|rate| REPLAY_RATE.contains(rate))
        .ok_or_else(|| format!("must be a number from {} to {}", REPLAY_RATE.start(), REPLAY_RATE.end()))
}

/// A refusal, with the flag that lets it go on if that is what is missing.
pub fn unconfirmed(error: Error) -> Failure {
    let asks = error.problem().is_some_and(|problem| problem.field.as_deref() == Some("confirm"));
    let failure = Failure::from(error);
    if asks { failure.hint("Give --confirm if they may really run again.") } else { failure }
}

/// A time that everything is after. As a filter it names all dead letters and leaves the word of confirmation to types
/// that are marked as sensitive.
const EVER: &str = "1970-01-01T00:00:00Z";

/// Counts, asks, does.
pub async fn run(session: &Session, args: &BulkArgs, deed: Bulk) -> Outcome {
    if args.filter.is_empty() && !args.all_of_them {
        let message = format!("nothing says which dead letters to {}", deed.verb().to_lowercase());
        return Err(Failure::usage(message)
            .hint("Name them by id, by filters such as --type send_email, or give --all-of-them."));
    }
    let mut body: Map<String, Value> = fields(args.filter.query());
    if args.filter.is_empty() {
        body.insert("after".to_owned(), Value::from(EVER));
    }
    deed.put_into(&mut body);
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
    ask::confirm(&format!("{} {}?", deed.verb(), count(matched, "dead letter")), args.yes)?;
    body.insert("dry_run".to_owned(), Value::Bool(false));
    let done = session.call_bulk(deed.path(), &Value::Object(body)).await.map_err(unconfirmed)?;
    let (matched, number) = (&done["matched"], done[deed.done()].as_u64().unwrap_or_default());
    let until = deed.until(matched.as_u64().unwrap_or_default());
    print(session, &done, &format!("{} {}{until}", count(number, "dead letter"), deed.done()))
}

fn print(session: &Session, document: &Value, line: &str) -> Outcome {
    if session.json { session.print_documents(&[raw(document)?]) } else { Ok(session.screen.line(line)?) }
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

    #[test]
    fn the_start_of_the_last_one_is_told() {
        let replay = |rate| Bulk::Replay { rate, new_priority: None, confirm: false };
        assert_eq!(replay(Some(5.0)).until(101), "; the last one starts in 20s");
        assert_eq!(replay(Some(5.0)).until(1), "");
        assert_eq!(replay(None).until(101), "");
        assert_eq!(Bulk::Discard.until(101), "");
    }
}
