//! `windlass enqueue`: hands work over.

use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use serde_json::{Map, Value};
use windlass::{Error, Method};
use windlass_core::limits;

use super::dlq_bulk::rate;
use super::enqueue_keys::{self, Keys};
use super::{batch, wait};
use crate::connection::{Connection, Session, raw};
use crate::exit::{Failure, Outcome};
use crate::filter::{priority, priority_value};
use crate::input::{duration, json_input, moment, pairs};
use crate::show::escape::plain;

const EXAMPLES: &str = r#"Examples:
  windlass enqueue send_email --parameters '{"to": "ada@example.com"}'
  windlass enqueue resize --parameters @photo.json --priority high --requires gpu
  windlass enqueue report --delay 1h30m --max-retries 5 --tag customer=42
  windlass enqueue report --wait 30s            wait for its end, print its result
  id=$(windlass enqueue send_email --idempotency-key order-17)
  windlass enqueue ship --ordering-key order-17                     one after the other
  windlass enqueue crawl --concurrency-key shop.com --concurrency-limit 3
  windlass enqueue reindex --delay 30s --on-conflict reschedule --unique      a debounce
  windlass enqueue --batch tasks.jsonl          one task per line: {"task_type": "send_email", ...}
  generate | windlass enqueue --batch - --rate 50

Standard output has the id of the task, and with --wait its result instead."#;

/// A wait without an end, nearly.
const FOR_EVER: &str = "36500d";

#[derive(Args)]
struct Enqueue {
    /// What kind of work it is; names the handler
    #[arg(value_name = "TYPE", required_unless_present = "batch", conflicts_with = "batch")]
    task_type: Option<String>,
    /// What the handler gets: JSON, @FILE, or - for standard input [default: {}]
    #[arg(long, short = 'p', value_name = "JSON", allow_hyphen_values = true)]
    parameters: Option<String>,
    /// Queue it waits in [default: that of the type, or default]
    #[arg(long, short, value_name = "NAME")]
    queue: Option<String>,
    /// How urgent it is: critical, high, medium, low, bulk or 0 to 9
    #[arg(long, value_parser = priority)]
    priority: Option<String>,
    /// Start this much later, such as 30s or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = delay, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Start at this time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    run_at: Option<String>,
    /// Fail as expired if not started by then
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    expires_at: Option<String>,
    /// How long one attempt may take, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    timeout: Option<Duration>,
    /// How often a failed attempt is tried again, 0 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(limits::RETRIES)))]
    max_retries: Option<u32>,
    /// The same key within a day is the same task
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Whose task it is
    #[arg(long)]
    tenant: Option<String>,
    /// What people find it by; may be given several times
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pairs::tag)]
    tags: Vec<(String, String)>,
    /// Only a worker with this capability runs it; may be given several times
    #[arg(long, value_name = "CAPABILITY")]
    requires: Vec<String>,
    /// Submit the tasks of a file of JSON Lines, or of standard input for -
    #[arg(long, value_name = "FILE", conflicts_with_all = ["parameters", "queue", "priority", "delay", "run_at",
        "expires_at", "timeout", "max_retries", "idempotency_key", "tenant", "tags", "requires", "wait"])]
    #[arg(conflicts_with_all = enqueue_keys::NAMES)]
    batch: Option<String>,
    /// With --batch: so many start per second instead of all at once
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, conflicts_with = "task_type")]
    rate: Option<f64>,
    /// Wait for its end, at most this long, and print its result
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = FOR_EVER, value_parser = wait_for)]
    wait: Option<Duration>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    Enqueue::augment_args(Command::new("enqueue")).about("Submits a task, or many").after_help(EXAMPLES)
}

fn delay(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::ZERO, limits::DELAY)
}

fn timeout(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::from_millis(1), limits::TIMEOUT)
}

fn wait_for(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|rule| format!("{rule}; to wait without an end put --wait last"))
}

/// Submits.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = Enqueue::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(file) = &args.batch {
        return batch::run(&Session::open(&args.connection).await?, file, args.rate).await;
    }
    // Whatever is wrong with the task is said before anything is sent.
    let body = body(&args)?;
    let session = Session::open(&args.connection).await?;
    let answer = submit(&session, "/api/v1/tasks", &body).await?;
    let Some(at_most) = args.wait else { return print(&session, &answer, &args) };
    let submitted: Submitted = session.read(&answer.to_string())?;
    let standing = match known(&submitted) {
        Some(known) => known,
        None => format!("Task {} is {}.", plain(&submitted.task_id), plain(&submitted.status)),
    };
    session.screen.aside(&standing);
    let at_most = Some(at_most).filter(|span| *span < Duration::from_hours(24 * 3650));
    wait::for_tasks(&session, &[submitted.task_id], at_most).await
}

fn body(args: &Enqueue) -> Outcome<Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.clone().map(Value::String);
    let seconds = |span: Option<Duration>| span.map(|span| Value::from(span.as_secs_f64()));
    set("task_type", text(&args.task_type));
    let parameters = args.parameters.as_deref().map(|given| json_input::read("--parameters", given)).transpose()?;
    set("parameters", parameters);
    set("queue", text(&args.queue));
    set("priority", args.priority.as_deref().map(priority_value));
    set("delay_seconds", seconds(args.delay));
    set("run_at", text(&args.run_at));
    set("expires_at", text(&args.expires_at));
    set("timeout_seconds", seconds(args.timeout));
    set("max_retries", args.max_retries.map(Value::from));
    set("tenant", text(&args.tenant));
    let tags: Map<_, _> = args.tags.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
    set("tags", (!tags.is_empty()).then_some(Value::Object(tags)));
    set("required_capabilities", (!args.requires.is_empty()).then(|| Value::from(args.requires.clone())));
    set("idempotency_key", text(&args.idempotency_key).or_else(|| Some(Value::from(unique_key()))));
    args.keys.put_into(&mut body);
    Ok(Value::Object(body))
}

/// A key of the client's own: with it a submit whose answer got lost can be repeated and is still one task.
pub fn unique_key() -> String {
    format!("cli-{}", uuid::Uuid::new_v4())
}

/// Sends a submit that carries keys; repeats it while it may have arrived and its answer did not.
pub async fn submit(session: &Session, path: &str, body: &Value) -> Result<Value, Error> {
    const PAUSES: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];
    for pause in PAUSES {
        match session.call(Method::Post, path, Some(body)).await {
            Err(Error::Unreachable(unreachable)) if unreachable.may_have_happened => tokio::time::sleep(pause).await,
            other => return other,
        }
    }
    session.call(Method::Post, path, Some(body)).await
}

#[derive(Deserialize)]
struct Submitted {
    task_id: String,
    status: String,
    queue_position: Option<u64>,
    estimated_wait_seconds: Option<f64>,
    #[serde(default)]
    deduplicated: bool,
    #[serde(default)]
    deduplicated_by: Option<String>,
}

fn print(session: &Session, answer: &Value, args: &Enqueue) -> Outcome {
    if session.json {
        return session.print_documents(&[raw(answer)?]);
    }
    let submitted: Submitted = session.read(&answer.to_string())?;
    session.screen.line(&plain(&submitted.task_id))?;
    session.screen.aside(&sentence(&submitted, args));
    Ok(())
}

/// By what a task was there before, and what became of it.
fn known(submitted: &Submitted) -> Option<String> {
    let (id, status) = (plain(&submitted.task_id), plain(&submitted.status));
    let by = submitted.deduplicated_by.as_deref();
    submitted.deduplicated.then(|| match by {
        Some("unique_kept") => format!("The same work was there before, by its unique key: task {id} stands, and is {status}."),
        Some("unique_replaced") => {
            format!("The same work was there before, by its unique key: task {id} was replaced by this one, and is {status}.")
        }
        Some("unique_rescheduled") => format!(
            "The same work was there before, by its unique key: task {id} now starts when this one would have, and is {status}."
        ),
        Some("idempotency_key") | None => format!("It was there before, by its idempotency key, and is {status}."),
        Some(other) => format!("It was there before, by its {}, and is {status}.", plain(other)),
    })
}

fn sentence(submitted: &Submitted, args: &Enqueue) -> String {
    if let Some(known) = known(submitted) {
        return known;
    }
    if submitted.status == "scheduled" {
        let when = match (&args.delay, &args.run_at) {
            (Some(delay), _) => format!(" to start in {}", duration::rough(*delay)),
            (None, Some(time)) => format!(" to start at {}", moment::clock_time(time)),
            (None, None) => String::new(),
        };
        return format!("Scheduled{when}.");
    }
    let ahead = match submitted.queue_position {
        None | Some(0) => "next in line".to_owned(),
        Some(ahead) => format!("about {ahead} ahead of it"),
    };
    let wait = submitted.estimated_wait_seconds.filter(|wait| *wait >= 1.0);
    let wait = wait.map(|wait| format!(", about {} to wait", duration::rough_seconds(wait))).unwrap_or_default();
    format!("Queued, {ahead}{wait}. See it with `windlass get {}`.", plain(&submitted.task_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_was_there_is_told_with_its_key() {
        let submitted = |by: Option<&str>| Submitted {
            task_id: "t7".into(),
            status: "queued".into(),
            queue_position: None,
            estimated_wait_seconds: None,
            deduplicated: by.is_some(),
            deduplicated_by: by.map(str::to_owned),
        };
        for (by, words) in [
            ("idempotency_key", "idempotency key"),
            ("unique_kept", "task t7 stands"),
            ("unique_replaced", "task t7 was replaced"),
            ("unique_rescheduled", "task t7 now starts when"),
            ("telepathy", "by its telepathy"),
        ] {
            let said = known(&submitted(Some(by))).expect("known");
            assert!(said.contains(words) && said.ends_with("is queued."), "{said}");
        }
        assert_eq!(known(&submitted(None)), None);
    }
}
