//! What an asynchronous replica that took over has lost. Writes that were acknowledged shortly before may be gone; what
//! follows from that is counted, and everything else must hold as ever.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::{Evidence, FinalTask, Rule, Violation, is_ended};
use crate::history::{Op, Outcome, Record, Verdict};

/// What is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Acknowledged submits, follow-ups among them, whose task is not there.
    pub submits: u64,
    /// Acknowledged results that end a task which ended in another way, or with another result.
    pub results: u64,
    /// Broken promises to clients that follow from it, by rule.
    pub consequences: BTreeMap<String, u64>,
}

/// Takes out of the violations what writes that are in doubt explain.
pub fn split(evidence: &Evidence, violations: Vec<Violation>) -> (Vec<Violation>, Loss) {
    if evidence.doubts.is_empty() {
        return (violations, Loss::default());
    }
    let in_doubt = |record: &&Record| {
        let at_us = record.t_complete_us;
        record.outcome == Outcome::Ok && evidence.doubts.iter().any(|(from, to)| (*from..=*to).contains(&at_us))
    };
    let doubtful: Vec<&Record> = evidence.records.iter().filter(in_doubt).collect();
    let touched: HashSet<&str> = doubtful.iter().filter_map(|record| record.task_id.as_deref()).collect();
    let mut loss = count(evidence);
    let mut left = Vec::new();
    for violation in violations {
        let explained = match &violation.task_id {
            Some(task_id) => touched.contains(task_id.as_str()),
            // Of several tasks that were stored together.
            None => matches!(violation.rule, Rule::Lost | Rule::TornBatch | Rule::TornFollowUp) && !doubtful.is_empty(),
        };
        if explained {
            *loss.consequences.entry(violation.rule.to_string()).or_default() += 1;
        } else {
            left.push(violation);
        }
    }
    (left, loss)
}

fn count(evidence: &Evidence) -> Loss {
    let by_key: HashMap<&str, &FinalTask> =
        evidence.tasks.iter().filter_map(|task| Some((task.key.as_deref()?, task))).collect();
    let by_id: HashMap<&str, &FinalTask> = evidence.tasks.iter().map(|task| (task.task_id.as_str(), task)).collect();
    let told = || evidence.records.iter().filter(|record| record.outcome == Outcome::Ok);
    let submits = told().filter(|record| matches!(record.op, Op::Submit | Op::Batch | Op::FollowUp));
    let gone: HashSet<&str> =
        submits.filter_map(|record| record.key.as_deref()).filter(|key| !by_key.contains_key(key)).collect();
    let ends = told().filter(|record| record.op == Op::Result(Verdict::Completed));
    let undone: HashSet<&str> = ends
        .filter(|record| {
            let last = record.task_id.as_deref().and_then(|task_id| by_id.get(task_id));
            !last.is_some_and(|last| is_ended(&last.status) && last.nonce == record.nonce)
        })
        .filter_map(|record| record.nonce.as_deref())
        .collect();
    Loss { submits: gone.len() as u64, results: undone.len() as u64, consequences: BTreeMap::new() }
}
