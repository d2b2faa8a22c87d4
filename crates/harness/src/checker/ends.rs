//! A task ends once, stays ended, ends the way its accepted result says, for a reason that was sent, after handlers ran
//! it no more often than allowed.

use std::collections::HashSet;

use super::{Findings, Index, Limits, Rule, TaskView, accepted, is_ended, repeats_earlier};
use crate::history::{Op, Outcome, Record, Verdict};

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    for (task_id, view) in &index.tasks {
        let ends = accepted_ends(view);
        one_end(task_id, &ends, found);
        stays_ended(task_id, view, &ends, found);
        let Some(last) = view.last else { continue };
        for end in &ends {
            if end.status != last.status || (end.status == "completed" && end.nonce() != last.nonce.as_deref()) {
                let detail = format!(
                    "{} with {:?} was accepted, at the end it is {} with {:?}",
                    end.status,
                    end.nonce(),
                    last.status,
                    last.nonce
                );
                found.add(Rule::WrongEnd, Some(task_id), detail);
            }
        }
        if is_ended(&last.status) {
            explained(index, task_id, view, found);
        } else {
            found.add(Rule::Liveness, Some(task_id), format!("is still {}", last.status));
        }
        ran(task_id, view, found);
        attempts(&index.evidence.limits, task_id, view, found);
    }
}

/// An accepted call that ended the task.
struct End<'a> {
    record: &'a Record,
    status: &'a str,
}

impl<'a> End<'a> {
    fn nonce(&self) -> Option<&'a str> {
        self.record.nonce.as_deref()
    }
}

fn accepted_ends<'a>(view: &TaskView<'a>) -> Vec<End<'a>> {
    let of_result = |record: &'a Record| {
        let answered = record.status.as_deref().unwrap_or_default();
        let status = match record.op {
            Op::Result(Verdict::Completed) => "completed",
            Op::Result(Verdict::FailedFinal) if answered == "failed" => "failed",
            Op::Result(Verdict::FailedFinal) => "dead_letter",
            // Retries may be used up: only the answer tells.
            Op::Result(Verdict::FailedRetriable) if matches!(answered, "dead_letter" | "failed") => answered,
            _ => return None,
        };
        Some(End { record, status })
    };
    let mut ends: Vec<End<'a>> = accepted(&view.results).filter_map(of_result).collect();
    ends.extend(accepted(&view.cancels).map(|record| End { record, status: "cancelled" }));
    ends
}

fn one_end(task_id: &str, ends: &[End<'_>], found: &mut Findings) {
    let Some(first) = ends.first() else { return };
    for other in &ends[1..] {
        let same_result = first.nonce().is_some() && first.nonce() == other.nonce();
        if !same_result {
            let detail = format!(
                "two ends were accepted: {} ({:?}, call {}) and {} ({:?}, call {})",
                first.status,
                first.nonce(),
                first.record.call,
                other.status,
                other.nonce(),
                other.record.call
            );
            found.add(Rule::DoubleEnd, Some(task_id), detail);
        }
    }
}

fn stays_ended(task_id: &str, view: &TaskView<'_>, ends: &[End<'_>], found: &mut Findings) {
    // Whoever was told of the end, by an answer or by a read, must never see it undone.
    let told_by_read = view.reads.iter().filter(|read| read.outcome == Outcome::Ok).filter_map(|read| {
        let status = read.status.as_deref()?;
        is_ended(status).then_some((read.t_complete_us, status))
    });
    let told_by_answer = ends.iter().map(|end| (end.record.t_complete_us, end.status));
    let Some((told_us, status)) = told_by_read.chain(told_by_answer).min() else { return };

    for claim in view.claims.iter().filter(|claim| claim.t_invoke_us > told_us) {
        let detail = format!("was {status} at {told_us} us and given out again under {:?}", claim.token);
        found.add(Rule::EndedStaysEnded, Some(task_id), detail);
    }
    for read in view.reads.iter().filter(|read| read.outcome == Outcome::Ok && read.t_invoke_us > told_us) {
        if let Some(later) = read.status.as_deref()
            && later != status
        {
            let detail = format!("was {status} at {told_us} us and {later} at {} us", read.t_invoke_us);
            found.add(Rule::EndedStaysEnded, Some(task_id), detail);
        }
    }
    if let Some(last) = view.last
        && last.status != status
    {
        found.add(Rule::EndedStaysEnded, Some(task_id), format!("was {status}, at the end it is {}", last.status));
    }
    for result in accepted(&view.results).filter(|result| result.t_invoke_us > told_us) {
        if !repeats_earlier(result, &view.results, told_us) {
            let detail = format!("was {status} at {told_us} us, the new result {:?} was accepted later", result.nonce);
            found.add(Rule::EndedStaysEnded, Some(task_id), detail);
        }
    }
}

/// Tokens under which such a result may have been applied.
fn possible_tokens<'a>(view: &TaskView<'a>, wanted: impl Fn(Verdict) -> bool) -> HashSet<&'a str> {
    let matching = view
        .results
        .iter()
        .filter(|result| result.outcome.possible() && matches!(result.op, Op::Result(verdict) if wanted(verdict)));
    matching.filter_map(|result| result.token.as_deref()).collect()
}

fn explained(index: &Index<'_>, task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    let Some(last) = view.last else { return };
    let limits = &index.evidence.limits;
    let explained = match last.status.as_str() {
        "completed" => !possible_tokens(view, |verdict| verdict == Verdict::Completed).is_empty(),
        "cancelled" => view.cancels.iter().any(|cancel| cancel.outcome.possible()),
        "dead_letter" => {
            let failures = possible_tokens(view, |verdict| verdict == Verdict::FailedRetriable).len() as u64;
            !possible_tokens(view, |verdict| verdict == Verdict::FailedFinal).is_empty()
                || failures > limits.max_retries
                || last.crash_count >= limits.max_crashes
        }
        // Nothing in a run expires, and every task has a dead letter.
        _ => false,
    };
    if !explained {
        found.add(Rule::UnexplainedEnd, Some(task_id), format!("is {}, and nothing sent explains it", last.status));
    }
}

fn ran(task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    let Some(last) = view.last.filter(|last| last.status == "completed") else { return };
    let result = view.results.iter().find(|result| result.nonce.is_some() && result.nonce == last.nonce);
    let Some(result) = result else {
        let detail = format!("is completed with the result {:?}, which nobody sent", last.nonce);
        found.add(Rule::AtLeastOnce, Some(task_id), detail);
        return;
    };
    let ran = view.runs.iter().any(|run| Some(&run.token) == result.token.as_ref() && run.t_end_us.is_some());
    if !ran {
        found.add(Rule::AtLeastOnce, Some(task_id), "is completed, and no handler ran it to its end under that lease");
    }
}

fn attempts(limits: &Limits, task_id: &str, view: &TaskView<'_>, found: &mut Findings) {
    let Some(last) = view.last else { return };
    let budget = 1 + limits.max_retries + limits.max_crashes;
    let given_back = possible_tokens(view, Verdict::is_free).len() as u64;
    let bounds = [
        ("retry_count", last.retry_count, limits.max_retries),
        ("crash_count", last.crash_count, limits.max_crashes),
        ("attempt", last.attempt, budget),
        ("the number of runs", view.runs.len() as u64, budget + given_back),
    ];
    for (name, value, bound) in bounds {
        if value > bound {
            found.add(Rule::Attempts, Some(task_id), format!("{name} is {value}, at most {bound} is allowed"));
        }
    }
}
