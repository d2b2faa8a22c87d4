//! One owner at a time: tokens grow, stale and forged ones are refused, nobody is given a task that is surely held.

use std::collections::HashMap;

use super::{Findings, Index, Rule, TaskView, accepted, repeats_earlier};
use crate::history::{Outcome, Record};

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    for (task_id, view) in &index.tasks {
        token_order(task_id, view, found);
        forged(task_id, view, found);
        stale(task_id, view, found);
        one_result_per_attempt(task_id, view, found);
        exclusivity(index, task_id, view, found);
    }
}

/// The claim number that a token begins with. A token of another form has no order that can be checked from outside.
fn claim_number(token: &str) -> Option<u64> {
    let number = token.split('.').next()?;
    u64::from_str_radix(number, 16).ok()
}

/// Whether the second claim surely came after the first.
fn surely_after(first: &Record, second: &Record) -> bool {
    first.t_complete_us < second.t_invoke_us
}

fn token_order(task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    for (position, first) in view.claims.iter().enumerate() {
        for second in &view.claims[position + 1..] {
            let (Some(first_token), Some(second_token)) = (&first.token, &second.token) else { continue };
            if first_token == second_token {
                found.add(Rule::TokenOrder, Some(task_id), format!("token {first_token} was given twice"));
                continue;
            }
            let (earlier, later) = if surely_after(first, second) {
                (first_token, second_token)
            } else if surely_after(second, first) {
                (second_token, first_token)
            } else {
                continue;
            };
            if let (Some(earlier_number), Some(later_number)) = (claim_number(earlier), claim_number(later))
                && later_number <= earlier_number
            {
                found.add(Rule::TokenOrder, Some(task_id), format!("token {later} was given after {earlier}"));
            }
        }
    }
}

fn forged(task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    for result in accepted(&view.results) {
        if !view.claims.iter().any(|claim| claim.token == result.token) {
            let detail = format!("a result under {:?} was accepted, which was never given for this task", result.token);
            found.add(Rule::ForgedToken, Some(task_id), detail);
        }
    }
}

fn stale(task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    for result in accepted(&view.results) {
        let Some(own) = view.claims.iter().find(|claim| claim.token == result.token) else { continue };
        let newer = view.claims.iter().find(|claim| {
            claim.token != own.token && surely_after(own, claim) && claim.t_complete_us < result.t_invoke_us
        });
        let Some(newer) = newer else { continue };
        if !repeats_earlier(result, &view.results, newer.t_complete_us) {
            let detail = format!("a result under {:?} was accepted after {:?} had been given", own.token, newer.token);
            found.add(Rule::StaleToken, Some(task_id), detail);
        }
    }
}

fn one_result_per_attempt(task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    let mut by_token: HashMap<&str, &Record> = HashMap::new();
    for result in accepted(&view.results) {
        let Some(token) = result.token.as_deref() else { continue };
        let first = by_token.entry(token).or_insert(result);
        if first.nonce != result.nonce {
            let detail = format!("results {:?} and {:?} were both accepted under {token}", first.nonce, result.nonce);
            found.add(Rule::DoubleEnd, Some(task_id), detail);
        }
    }
}

/// A lease lasts at least from the moment the claim or renewal was asked for. Until then nobody else may get the task,
/// unless its holder may have given it back.
fn exclusivity(index: &Index<'_>, task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    let limits = &index.evidence.limits;
    for held in &view.claims {
        let later = view.claims.iter().filter(|claim| claim.token != held.token && surely_after(held, claim));
        for taken in later {
            let given_back = view.results.iter().any(|result| {
                result.token == held.token && result.outcome.possible() && result.t_invoke_us < taken.t_complete_us
            });
            if given_back {
                continue;
            }
            let renewed_us = view
                .heartbeats
                .iter()
                .filter(|beat| beat.token == held.token && beat.outcome == Outcome::Ok)
                .filter(|beat| beat.t_complete_us < taken.t_invoke_us)
                .map(|beat| beat.t_invoke_us)
                .max();
            let since_us = renewed_us.unwrap_or(0).max(held.t_invoke_us);
            let until_us = (since_us + limits.lease_us).saturating_sub(limits.lease_slack_us);
            if taken.t_complete_us < until_us {
                let early_us = until_us - taken.t_complete_us;
                let detail = format!(
                    "{:?} was given to client {} {early_us} us before the lease {:?} of client {} can have ended",
                    taken.token, taken.client, held.token, held.client
                );
                found.add(Rule::LeaseExclusivity, Some(task_id), detail);
            }
        }
    }
}
