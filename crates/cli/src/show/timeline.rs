//! What happened to a task, line by line.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::escape::plain;
use super::screen::{Screen, Tint};
use super::table::{Column, Field, Fit, field, render_indented};
use super::tasks::{Attempt, Event, word};
use crate::input::{duration, moment};

const EVENTS: &[Column] = &[
    Column::number("when", Fit::Whole),
    Column::number("after", Fit::Whole),
    Column::text("what", Fit::Whole),
    Column::text("", Fit::Cut(20)),
    Column::text("by", Fit::Cut(8)),
];

/// The events of a task. Each says how long after the one before it came.
pub fn events(screen: &Screen, events: &[Event]) -> String {
    let mut before: Option<&str> = None;
    let mut rows: Vec<Vec<Field>> = Vec::with_capacity(events.len());
    for event in events {
        let after = before.map(|before| between(before, &event.at)).unwrap_or_default();
        rows.push(vec![
            (Tint::Dim, moment::line_time(&event.at, before)),
            field(after),
            (tint(&event.kind), plain(&event.kind)),
            field(details(event)),
            (Tint::Dim, plain(&event.actor)),
        ]);
        before = Some(&event.at);
    }
    render_indented(screen, EVENTS, rows, false)
}

fn between(before: &str, after: &str) -> String {
    let read = |text: &str| text.parse::<Timestamp>().ok();
    let span = read(before).zip(read(after)).map(|(before, after)| after.duration_since(before));
    span.and_then(|span| Duration::try_from(span).ok())
        .map(|span| format!("+{}", duration::rough(span)))
        .unwrap_or_default()
}

fn tint(kind: &str) -> Tint {
    match kind {
        "completed" => Tint::Good,
        "claimed" => Tint::Active,
        "retrying" | "lapsed" | "released" | "snoozed" => Tint::Warn,
        "failed" | "dead_lettered" => Tint::Bad,
        _ => Tint::Plain,
    }
}

/// What an event carries, without what the line says already.
fn details(event: &Event) -> String {
    let Some(Value::Object(data)) = &event.data else { return String::new() };
    let shown = |(name, value): (&String, &Value)| match (name.as_str(), value) {
        ("worker" | "claim" | "status", _) | (_, Value::Null | Value::Bool(false)) => None,
        ("crashes" | "retries", value) if value == 0 => None,
        ("run_at", Value::String(time)) if event.kind == "submitted" && between(&event.at, time) == "+0s" => None,
        ("run_at", Value::String(time)) => Some(format!("until {}", moment::clock_time(time))),
        ("note", value) => Some(format!("“{}”", word(value))),
        (name, value) => Some(format!("{} {}", plain(name), word(value))),
    };
    data.iter().filter_map(shown).collect::<Vec<_>>().join(", ")
}

const ATTEMPTS: &[Column] = &[
    Column::number("#", Fit::Whole),
    Column::text("when", Fit::Optional(1)),
    Column::number("ran", Fit::Whole),
    Column::text("class", Fit::Whole),
    Column::text("error", Fit::Cut(10)),
];

/// The failed attempts of a task.
pub fn attempts(screen: &Screen, attempts: &[Attempt]) -> String {
    let row = |attempt: &Attempt| {
        vec![
            field(attempt.attempt.to_string()),
            (Tint::Dim, moment::clock_time(&attempt.started_at)),
            field(between(&attempt.started_at, &attempt.ended_at).replace('+', "")),
            field(plain(&attempt.error.class)),
            field(attempt.error.line()),
        ]
    };
    render_indented(screen, ATTEMPTS, attempts.iter().map(row).collect(), true)
}
