//! `windlass dlq analysis`: what dead letters have in common.

use serde::Deserialize;

use super::dlq_bulk::DeadFilter;
use crate::connection::Session;
use crate::exit::Outcome;
use crate::input::moment;
use crate::show::escape::{count, plain, with_query};
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, Fit, field, render};

#[derive(Deserialize)]
struct Analysis {
    groups: Vec<Group>,
    examined: u64,
    partial: bool,
}

/// Dead letters of the same cause.
#[derive(Deserialize)]
struct Group {
    task_type: Option<String>,
    class: Option<String>,
    code: Option<String>,
    message: String,
    count: u64,
    last_seen: String,
    sample_task_id: String,
    replay_looks_safe: bool,
}

const COLUMNS: &[Column] = &[
    Column::number("count", Fit::Whole),
    Column::text("type", Fit::Cut(12)),
    Column::text("class", Fit::Whole),
    Column::text("code", Fit::Cut(10)),
    Column::number("last seen", Fit::Whole),
    Column::text("safe", Fit::Whole),
    Column::text("sample", Fit::Optional(1)),
    Column::text("message", Fit::Cut(20)),
];

fn row(group: &Group) -> Vec<Field> {
    let or = |text: Option<&str>, other: &str| text.map_or((Tint::Dim, other.to_owned()), |text| field(plain(text)));
    let safe = if group.replay_looks_safe { (Tint::Good, "yes") } else { (Tint::Warn, "no") };
    vec![
        field(group.count.to_string()),
        or(group.task_type.as_deref(), "the rest"),
        or(group.class.as_deref(), "-"),
        or(group.code.as_deref(), "-"),
        field(moment::age(&group.last_seen, moment::now())),
        (safe.0, safe.1.to_owned()),
        (Tint::Dim, plain(&group.sample_task_id)),
        (Tint::Dim, plain(&group.message)),
    ]
}

/// Shows the groups, the largest first.
pub async fn run(session: &Session, filter: &DeadFilter) -> Outcome {
    let text = session.text(&with_query("/api/v1/dlq/analysis", filter.query())).await?;
    if session.json {
        return session.print_json(&text);
    }
    let analysis: Analysis = session.read(&text)?;
    if analysis.groups.is_empty() {
        let empty = if filter.is_empty() { "No dead letters: nothing needs you." } else { "No dead letter matches." };
        session.screen.say(&session.screen.tint_err(Tint::Dim, empty));
        return Ok(());
    }
    session.screen.line(&render(&session.screen, COLUMNS, analysis.groups.iter().map(row).collect(), true))?;
    if analysis.partial {
        let looked_at = count(analysis.examined, "dead letter");
        session.screen.say(&format!("There are more: only the newest {looked_at} were looked at."));
    }
    session.screen.aside("One of a group: windlass dlq get SAMPLE\nA whole group:  windlass dlq replay --type TYPE --error-code CODE --rate 5");
    Ok(())
}
