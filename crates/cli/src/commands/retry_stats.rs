//! `windlass stats --retries`: how tasks ended, and after how many attempts.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::connection::Session;
use crate::exit::Outcome;
use crate::input::duration;
use crate::show::escape::{plain, with_query};
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field, render};

#[derive(Deserialize)]
struct Figures {
    total: u64,
    succeeded: u64,
    failed: u64,
    retried: u64,
    dead_lettered: u64,
    average_attempts: Option<f64>,
    success_after_retry_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct RetryStats {
    window_seconds: f64,
    #[serde(flatten)]
    all: Figures,
    by_type: BTreeMap<String, Figures>,
}

const COLUMNS: &[Column] = &[
    Column::text("type", Fit::Whole),
    Column::number("ended", Fit::Whole),
    Column::number("succeeded", Fit::Whole),
    Column::number("failed", Fit::Optional(2)),
    Column::number("dead", Fit::Whole),
    Column::number("retries", Fit::Whole),
    Column::number("attempts per task", Fit::Optional(1)),
    Column::number("retries helped", Fit::Whole),
];

fn row(name: &str, tint: Tint, figures: &Figures) -> Vec<Field> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let dead = if figures.dead_lettered > 0 { Tint::Bad } else { Tint::Plain };
    vec![
        (tint, plain(name)),
        field(figures.total.to_string()),
        field(figures.succeeded.to_string()),
        field(figures.failed.to_string()),
        (dead, figures.dead_lettered.to_string()),
        field(figures.retried.to_string()),
        field(or_dash(figures.average_attempts.map(|attempts| format!("{attempts:.2}")))),
        field(or_dash(figures.success_after_retry_ratio.map(|ratio| format!("{:.0}%", ratio * 100.0)))),
    ]
}

/// Shows them by type, and for all.
pub async fn run(session: &Session, window: Option<String>) -> Outcome {
    let text = session.text(&with_query("/api/v1/stats/retries", [("window", window)])).await?;
    if session.json {
        return session.print_json(&text);
    }
    let stats: RetryStats = session.read(&text)?;
    let mut rows: Vec<_> = stats.by_type.iter().map(|(name, figures)| row(name, Tint::Plain, figures)).collect();
    rows.push(row("all", Tint::Bold, &stats.all));
    session.screen.line(&render(&session.screen, COLUMNS, rows, true))?;
    let window = duration::rough_seconds(stats.window_seconds);
    session
        .screen
        .aside(&format!("Tasks that ended in the last {window}, as far as this server has seen since its start."));
    Ok(())
}
