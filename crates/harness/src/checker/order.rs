//! Ordering keys and limits: never more at once than allowed, never a later one before an earlier one.
//!
//! A task counts as running only while it surely was: from the answer to its claim until a result or a cancel was sent,
//! or until its lease may have ended.

use std::collections::BTreeMap;

use super::{Findings, Index, Rule, Shared, TaskView};
use crate::history::{Op, Outcome, Record};

/// A span in which a task surely ran.
struct Span<'a> {
    task_id: &'a str,
    from_us: u64,
    to_us: u64,
}

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    let mut groups: BTreeMap<&str, (u64, Rule, Vec<Span<'_>>)> = BTreeMap::new();
    let mut lines: BTreeMap<&str, (bool, Vec<&str>)> = BTreeMap::new();
    for (key, shared) in &index.evidence.shared {
        let (group, at_once, rule) = match shared {
            Shared::AtMost(limit) => (&limit.group, limit.at_once, Rule::AtOnce),
            Shared::Line { line, skips } => {
                lines.entry(line).or_insert((*skips, Vec::new())).1.push(key);
                (line, 1, Rule::Order)
            }
        };
        let spans = &mut groups.entry(group).or_insert((at_once, rule, Vec::new())).2;
        for task in index.last_by_key.get(key.as_str()).into_iter().flatten() {
            if let Some((task_id, view)) = index.tasks.get_key_value(task.task_id.as_str()) {
                spans.extend(view.claims.iter().filter_map(|claim| span(index, task_id, view, claim)));
            }
        }
    }
    for (group, (at_once, rule, spans)) in groups {
        at_most(group, at_once, rule, spans, found);
    }
    for (line, (skips, keys)) in lines {
        in_order(index, line, skips, keys, found);
    }
}

/// Whether an answer came at a time whose writes may be gone.
fn in_doubt(index: &Index<'_>, record: &Record) -> bool {
    index.evidence.doubts.iter().any(|(from_us, to_us)| (*from_us..=*to_us).contains(&record.t_complete_us))
}

fn span<'a>(index: &Index<'_>, task_id: &'a str, view: &TaskView<'_>, claim: &Record) -> Option<Span<'a>> {
    if claim.outcome != Outcome::Ok || in_doubt(index, claim) {
        return None;
    }
    let limits = &index.evidence.limits;
    let renewed = view.heartbeats.iter().filter(|beat| beat.token == claim.token && beat.outcome == Outcome::Ok);
    let renewed_us = renewed.filter(|beat| !in_doubt(index, beat)).map(|beat| beat.t_invoke_us).max().unwrap_or(0);
    let lease_us = (renewed_us.max(claim.t_invoke_us) + limits.lease_us).saturating_sub(limits.lease_slack_us);
    let results = view.results.iter().filter(|result| result.token == claim.token);
    let sent = results.chain(&view.cancels).filter(|record| record.outcome.possible());
    let to_us = sent.map(|record| record.t_invoke_us).min().unwrap_or(u64::MAX).min(lease_us);
    let from_us = claim.t_complete_us;
    (from_us < to_us).then_some(Span { task_id, from_us, to_us })
}

fn at_most(group: &str, at_once: u64, rule: Rule, mut spans: Vec<Span<'_>>, found: &mut Findings) {
    spans.sort_by_key(|span| span.from_us);
    let mut running: Vec<&Span<'_>> = Vec::new();
    for span in &spans {
        running.retain(|other| other.to_us > span.from_us);
        running.push(span);
        if running.len() as u64 > at_once {
            let others: Vec<_> = running.iter().map(|span| span.task_id).collect();
            let detail = format!(
                "{group}: {} ran at {} us, at most {at_once} may: {}",
                running.len(),
                span.from_us,
                others.join(", ")
            );
            found.add(rule, Some(span.task_id), detail);
        }
    }
}

/// One task of a line, as its submitter saw it.
struct Place<'a> {
    task_id: &'a str,
    view: &'a TaskView<'a>,
    sent_us: u64,
    acknowledged_us: u64,
}

fn in_order<'a>(index: &'a Index<'a>, line: &str, skips: bool, keys: Vec<&str>, found: &mut Findings) {
    let mut places: Vec<Place<'a>> = keys.into_iter().filter_map(|key| place(index, key)).collect();
    places.sort_by_key(|place| place.sent_us);
    // That each comes after the one before it is enough: then each comes after all before it.
    for pair in places.windows(2) {
        let [earlier, later] = pair else { continue };
        if earlier.acknowledged_us >= later.sent_us {
            continue;
        }
        let sure = |claim: &&&Record| claim.outcome == Outcome::Ok && !in_doubt(index, claim);
        let given_us = later.view.claims.iter().filter(sure).map(|claim| claim.t_complete_us).min();
        // Where the line does not wait for what is tried again, only first attempts are in order. One that lapsed may
        // have been given by a poll whose answer got lost.
        let lapsed = earlier.view.last.is_none_or(|last| last.crash_count > 0);
        let asked = earlier.view.claims.iter().filter(sure).map(|claim| claim.t_invoke_us);
        let asked_us = if skips { asked.min().filter(|_| !lapsed) } else { asked.max() };
        if let (Some(given_us), Some(asked_us)) = (given_us, asked_us)
            && given_us < asked_us
        {
            let detail = format!(
                "{line}: was given at {given_us} us, the task {} before it was only asked for at {asked_us} us",
                earlier.task_id
            );
            found.add(Rule::Order, Some(later.task_id), detail);
        }
    }
}

/// Where the task of a key stands in its line, if its submit was acknowledged.
fn place<'a>(index: &'a Index<'a>, key: &str) -> Option<Place<'a>> {
    let submits = index.submits.get(key)?;
    let submits = || submits.iter().filter(|submit| submit.op == Op::Submit && submit.outcome.possible());
    let sent_us = submits().map(|submit| submit.t_invoke_us).min()?;
    let told = submits().filter(|submit| submit.outcome == Outcome::Ok);
    let acknowledged_us = told.map(|submit| submit.t_complete_us).min()?;
    let task = index.last_by_key.get(key)?.first()?;
    let view = index.tasks.get(task.task_id.as_str())?;
    Some(Place { task_id: &task.task_id, view, sent_us, acknowledged_us })
}
