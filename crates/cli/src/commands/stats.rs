//! `windlass stats`: how everything stands, on one screen.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Deserialize;
use windlass_core::priority::Priority;

use super::retry_stats;
use crate::connection::{Connection, Session};
use crate::exit::{Failure, Outcome};
use crate::input::duration;
use crate::show::escape::plain;
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field, render};

const EXAMPLES: &str = r"Examples:
  windlass stats
  windlass stats --json | jq .workers
  windlass stats --retries --window 7d      how tasks ended, and whether retries helped
  watch windlass stats";

#[derive(Args)]
struct StatsArgs {
    /// Show how tasks ended by type, and after how many attempts
    #[arg(long)]
    retries: bool,
    /// With --retries: over this time, at most 7d [default: 24h]
    #[arg(long, value_name = "DURATION", requires = "retries", value_parser = window)]
    window: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

/// The command.
pub fn command() -> Command {
    StatsArgs::augment_args(Command::new("stats")).about("Shows how everything stands").after_help(EXAMPLES)
}

fn window(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::from_secs(1), Duration::from_hours(7 * 24))
}

/// How one queue or priority stands.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Standing {
    pub depth: u64,
    pub oldest_age_seconds: f64,
    pub executing: u64,
    pub scheduled: u64,
}

/// Workers by how they stand.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WorkerCounts {
    pub active: u64,
    pub draining: u64,
    pub unhealthy: u64,
    pub dead: u64,
    pub total_capacity: u64,
    pub used_capacity: u64,
}

/// Numbers by their name.
type Numbers = BTreeMap<String, Option<f64>>;

/// The document of the API.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Stats {
    pub queues: BTreeMap<String, Standing>,
    pub by_queue: BTreeMap<String, Standing>,
    pub by_status: BTreeMap<String, u64>,
    pub workers: WorkerCounts,
    throughput: Numbers,
    wait_seconds: Numbers,
    recovery: Numbers,
}

/// Shows it.
pub async fn run(matches: &ArgMatches) -> Outcome {
    let args = StatsArgs::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string()))?;
    let session = Session::open(&args.connection).await?;
    if args.retries {
        return retry_stats::run(&session, args.window.map(|window| window.as_secs().to_string())).await;
    }
    let text = session.text("/api/v1/queue/stats").await?;
    if session.json {
        return session.print_json(&text);
    }
    let stats: Stats = session.read(&text)?;
    let fact =
        |name: &str, value: String| format!("{}  {value}", session.screen.tint(Tint::Dim, &format!("{name:<11}")));
    let mut lines = vec![
        fact("tasks", by_status(&session, &stats)),
        fact("workers", workers(&session, &stats.workers)),
        fact("last minute", last_minute(&stats)),
        fact("waited", waited(&stats)),
    ];
    let recovered: f64 = stats.recovery.values().flatten().sum();
    if recovered > 0.0 {
        let number = |name: &str| stats.recovery.get(name).copied().flatten().unwrap_or_default();
        let text = format!(
            "{} lapsed leases, {} timeouts in the last hour",
            number("lease_expiries_last_hour"),
            number("timeouts_last_hour")
        );
        lines.push(fact("recovered", session.screen.tint(Tint::Warn, &text)));
    }
    let mut by_priority: Vec<_> = stats.queues.iter().collect();
    // The most urgent first; a name that nobody knows goes last.
    by_priority.sort_by_key(|(name, _)| Reverse(Priority::from_text(name).ok()));
    for (heading, standings) in [("queue", stats.by_queue.iter().collect()), ("priority", by_priority)] {
        if !standings.is_empty() {
            lines.push(String::new());
            lines.push(table(&session, heading, &standings));
        }
    }
    Ok(session.screen.line(&lines.join("\n"))?)
}

fn by_status(session: &Session, stats: &Stats) -> String {
    const ORDER: [&str; 8] =
        ["queued", "executing", "scheduled", "blocked", "dead_letter", "completed", "failed", "cancelled"];
    let shown = |status: &&str| {
        let count = stats.by_status.get(*status).copied().filter(|count| *count > 0)?;
        Some(session.screen.tint(Tint::of_status(status), &format!("{count} {status}")))
    };
    let parts: Vec<_> = ORDER.iter().filter_map(shown).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join("  ") }
}

fn workers(session: &Session, workers: &WorkerCounts) -> String {
    let counts = [
        ("active", workers.active),
        ("draining", workers.draining),
        ("unhealthy", workers.unhealthy),
        ("dead", workers.dead),
    ];
    let shown = |(status, count): (&str, u64)| {
        (count > 0).then(|| session.screen.tint(Tint::of_status(status), &format!("{count} {status}")))
    };
    let mut parts: Vec<_> = counts.into_iter().filter_map(shown).collect();
    if parts.is_empty() {
        return "none".to_owned();
    }
    parts.push(format!("{} of {} slots taken", workers.used_capacity, workers.total_capacity));
    parts.join("  ")
}

fn last_minute(stats: &Stats) -> String {
    let number =
        |name: &str| stats.throughput.get(&format!("{name}_last_minute")).copied().flatten().unwrap_or_default();
    format!("{} submitted  {} completed  {} failed", number("enqueued"), number("completed"), number("failed"))
}

fn waited(stats: &Stats) -> String {
    let part = |name: &str| {
        let seconds = stats.wait_seconds.get(name).copied().flatten()?;
        Some(format!("{name} {}", duration::rough_seconds(seconds)))
    };
    let parts: Vec<_> = ["p50", "p95", "p99"].into_iter().filter_map(part).collect();
    if parts.is_empty() { "nothing started in the last five minutes".to_owned() } else { parts.join("  ") }
}

fn table(session: &Session, heading: &'static str, standings: &[(&String, &Standing)]) -> String {
    let columns = [
        Column::text(heading, Fit::Whole),
        Column::number("queued", Fit::Whole),
        Column::number("oldest", Fit::Whole),
        Column::number("executing", Fit::Whole),
        Column::number("scheduled", Fit::Whole),
    ];
    let row = |(name, standing): &(&String, &Standing)| -> Vec<Field> {
        let oldest =
            if standing.depth > 0 { duration::rough_seconds(standing.oldest_age_seconds) } else { "-".to_owned() };
        vec![
            field(plain(name)),
            field(standing.depth.to_string()),
            field(oldest),
            field(standing.executing.to_string()),
            field(standing.scheduled.to_string()),
        ]
    };
    render(&session.screen, &columns, standings.iter().map(row).collect(), true)
}
