//! How well retries serve, without counting a row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::engine::Engine;
use crate::outcomes::{LONGEST, Tally};
use crate::problem::Problem;
use crate::query::{Args, read};

const DEFAULT_WINDOW: Duration = Duration::from_hours(24);

/// Over which time.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WindowQuery {
    /// A number of seconds, or with a unit such as `15m`, `24h` or `7d`; 24 hours unless given, at most 7 days.
    window: Option<String>,
}

/// How tasks of one type, or of all, ended.
#[derive(Serialize, ToSchema)]
pub struct RetryFigures {
    /// Tasks that ended by running.
    total: u64,
    /// Those that completed.
    succeeded: u64,
    /// Those that failed without becoming a dead letter.
    failed: u64,
    /// Retries that were scheduled.
    retried: u64,
    /// Those that became dead letters.
    dead_lettered: u64,
    /// Attempts per task; null if none ended.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    average_attempts: Option<f64>,
    /// The share of tasks tried more than once that completed; null if there were none.
    #[serde(serialize_with = "crate::number::plain_or_null")]
    success_after_retry_ratio: Option<f64>,
}

impl From<&Tally> for RetryFigures {
    fn from(tally: &Tally) -> Self {
        Self {
            total: tally.total(),
            succeeded: tally.succeeded,
            failed: tally.failed,
            retried: tally.retried,
            dead_lettered: tally.dead_lettered,
            average_attempts: tally.average_attempts(),
            success_after_retry_ratio: tally.success_after_retry_ratio(),
        }
    }
}

/// How tasks ended within a window.
#[derive(Serialize, ToSchema)]
pub struct RetryStats {
    /// The window.
    #[serde(serialize_with = "crate::number::plain")]
    window_seconds: f64,
    #[serde(flatten)]
    all: RetryFigures,
    /// By task type; types beyond the first 200 are `other`.
    by_type: BTreeMap<String, RetryFigures>,
}

/// How well retries serve: how tasks ended within a window, and after how many attempts.
///
/// Counted in steps of 15 minutes: a window also has the rest of the step that it begins in.
/// The figures are of all nodes that share a store, and begin with the start of the one that answers.
#[utoipa::path(get, path = "/api/v1/stats/retries", tag = "queues", params(WindowQuery),
    responses((status = 200, body = RetryStats)))]
pub async fn retry_stats(
    State(engine): State<Arc<Engine>>,
    Args(query): Args<WindowQuery>,
) -> Result<Json<RetryStats>, Problem> {
    let window = read("window", query.window.as_deref(), window)?.unwrap_or(DEFAULT_WINDOW);
    let tallies = engine.metrics.tallies(window, engine.store.now());
    let mut all = Tally::default();
    for tally in tallies.values() {
        all.add(tally);
    }
    Ok(Json(RetryStats {
        window_seconds: window.as_secs_f64(),
        all: (&all).into(),
        by_type: tallies.iter().map(|(label, tally)| (label.clone(), tally.into())).collect(),
    }))
}

fn window(text: &str) -> Result<Duration, &'static str> {
    const RULE: &str = "must be seconds, or a number with s, m, h or d such as 15m, 24h or 7d; from 1 second to 7 days";
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(RULE),
    };
    let seconds = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or(RULE)?;
    let window = Duration::from_secs(seconds);
    if window.is_zero() || window > LONGEST { Err(RULE) } else { Ok(window) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read() {
        for (text, seconds) in [("15m", 900), ("24h", 86_400), ("7d", 604_800), ("90", 90), ("90s", 90)] {
            assert_eq!(window(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "0", "8d", "-1h", "1.5h", "1w", "h", "1 h", "ä", "99999999999999999999d"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }
}
