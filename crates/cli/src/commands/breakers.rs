//! `windlass breakers`: how they stand, and a hand on them.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use serde::Deserialize;
use windlass::Method;

use super::settings::with_examples;
use crate::connection::{Connection, Session, raw};
use crate::exit::{Failure, Outcome};
use crate::input::moment;
use crate::pages::{Shape, Walk, print};
use crate::show::escape::{plain, url_part};
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field};

const EXAMPLES: &str = r"Examples:
  windlass breakers
  windlass breakers open type send_email           no task of this type starts until somebody says otherwise
  windlass breakers auto type send_email           it decides by itself again
  windlass breakers close worker 0198c6c2-7e0f-7abc-8def-0123456789ab

A breaker opens by itself when most attempts of a type fail, or when a worker keeps crashing. While it is open tasks
wait and use up no attempt. When it opens is a setting of the type: windlass types set TYPE breaker.failure_ratio=0.5";

const OF_EACH: &[(&str, &str)] = &[
    ("list", "windlass breakers list\nwindlass breakers list --json | jq '.items[] | select(.state != \"closed\")'"),
    ("open", "windlass breakers open type send_email\nwindlass breakers open type/send_email"),
    ("close", "windlass breakers close type send_email\n\nForced closed it does not open, however much fails."),
    ("auto", "windlass breakers auto type send_email"),
];

#[derive(Args)]
struct Named {
    /// Which one: type NAME or worker ID
    #[arg(value_name = "SCOPE NAME", num_args = 1..=2, required = true)]
    which: Vec<String>,
}

#[derive(Subcommand)]
enum Deed {
    /// Lists breakers that are not closed, were forced, or counted attempts lately; the same as without a command
    List,
    /// Forces a breaker open: what it guards gets no tasks
    Open(Named),
    /// Forces a breaker closed: it does not open
    Close(Named),
    /// Leaves a breaker to itself again
    Auto(Named),
}

#[derive(Args)]
struct Breakers {
    #[command(subcommand)]
    deed: Option<Deed>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    let about = "Shows breakers, forces them open or closed";
    with_examples(Breakers::augment_args(Command::new("breakers")).about(about).after_help(EXAMPLES), OF_EACH)
}

/// Does what was asked.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Breakers::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let (verb, named) = match &args.deed {
        None | Some(Deed::List) => return list(&Session::open(&args.connection).await?).await,
        Some(Deed::Open(named)) => ("open", named),
        Some(Deed::Close(named)) => ("close", named),
        Some(Deed::Auto(named)) => ("auto", named),
    };
    let (scope, name) = scope_and_name(&named.which)?;
    force(&Session::open(&args.connection).await?, scope, name, verb).await
}

/// What is guarded: `type NAME`, or `type/NAME` in one word.
fn scope_and_name(which: &[String]) -> Outcome<(&str, &str)> {
    let parts = match which {
        [one] => one.split_once('/'),
        [scope, name] => Some((scope.as_str(), name.as_str())),
        _ => None,
    };
    match parts {
        Some(("type" | "task_type", name)) if !name.is_empty() => Ok(("type", name)),
        Some(("worker", name)) if !name.is_empty() => Ok(("worker", name)),
        _ => {
            let message = format!("'{}' names no breaker", plain(&which.join(" ")));
            Err(Failure::usage(message)
                .hint("A breaker is named by its scope and its name: type send_email, or worker ID."))
        }
    }
}

/// A breaker of the API.
#[derive(Debug, Deserialize)]
struct Breaker {
    scope: String,
    name: String,
    state: String,
    forced: Option<String>,
    since: Option<String>,
    until: Option<String>,
    reason: Option<String>,
    attempts: u64,
    failures: u64,
}

const COLUMNS: &[Column] = &[
    Column::text("scope", Fit::Whole),
    Column::text("name", Fit::Whole),
    Column::text("state", Fit::Whole),
    Column::text("forced", Fit::Optional(1)),
    Column::number("failed", Fit::Whole),
    Column::number("since", Fit::Optional(3)),
    Column::text("next try", Fit::Optional(2)),
    Column::text("why", Fit::Cut(20)),
];

fn tint(state: &str) -> Tint {
    match state {
        "closed" => Tint::Good,
        "half_open" => Tint::Warn,
        _ => Tint::Bad,
    }
}

fn row(breaker: &Breaker) -> Vec<Field> {
    let now = moment::now();
    let or_dash = |text: Option<String>| field(text.unwrap_or_else(|| "-".to_owned()));
    vec![
        field(plain(&breaker.scope)),
        field(plain(&breaker.name)),
        (tint(&breaker.state), plain(&breaker.state)),
        or_dash(breaker.forced.as_deref().map(plain)),
        or_dash((breaker.attempts > 0).then(|| format!("{}/{}", breaker.failures, breaker.attempts))),
        or_dash(breaker.since.as_deref().map(|since| moment::age(since, now))),
        or_dash(breaker.until.as_deref().map(|until| moment::relative(until, now))),
        (Tint::Dim, breaker.reason.as_deref().map(plain).unwrap_or_default()),
    ]
}

async fn list(session: &Session) -> Outcome {
    let empty = "Every breaker is closed, and none has counted attempts lately.".to_owned();
    let walk = Walk::new(session, "/api/v1/breakers", Vec::new(), None);
    print(walk, Shape { columns: COLUMNS, row, empty, more: "" }).await
}

async fn force(session: &Session, scope: &str, name: &str, verb: &str) -> Outcome {
    let path = format!("/api/v1/breakers/{scope}/{}/{verb}", url_part(name));
    let answer = session.call(Method::Post, &path, None).await?;
    if session.json {
        return session.print_documents(&[raw(&answer)?]);
    }
    let breaker: Breaker = session.read(&answer.to_string())?;
    let state = session.screen.tint(tint(&breaker.state), &plain(&breaker.state));
    let by_whom = if breaker.forced.is_some() { "until somebody says otherwise" } else { "and left to itself" };
    Ok(session.screen.line(&format!(
        "breaker of {} {} is {state} {by_whom}",
        plain(&breaker.scope),
        plain(&breaker.name)
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breakers_are_named_in_one_word_or_two() {
        let named = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(ToString::to_string).collect();
            scope_and_name(&words).map(|(scope, name)| format!("{scope} {name}")).ok()
        };
        assert_eq!(named(&["type", "send_email"]).as_deref(), Some("type send_email"));
        assert_eq!(named(&["task_type/send_email"]).as_deref(), Some("type send_email"));
        assert_eq!(named(&["worker", "w"]).as_deref(), Some("worker w"));
        for words in [&["send_email"][..], &["queue", "mail"], &["type/"], &["type", ""]] {
            assert_eq!(named(words), None, "{words:?}");
        }
    }
}
