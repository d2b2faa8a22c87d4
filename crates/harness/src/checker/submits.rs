//! Nothing acknowledged is lost, nothing exists that nobody sent, one task per key, all or nothing.

use std::collections::{BTreeSet, HashMap};

use super::{Findings, Index, Rule};
use crate::history::{Op, Outcome, Record};

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    lost(index, found);
    ghosts(index, found);
    one_task_per_key(index, found);
    batches(index, found);
    follow_ups(index, found);
}

fn lost(index: &Index<'_>, found: &mut Findings) {
    for (key, submits) in &index.submits {
        for submit in submits.iter().filter(|submit| submit.outcome == Outcome::Ok) {
            // A follow-up's id is not told; it has to be there by its key.
            let Some(task_id) = submit.task_id.as_deref() else {
                if !index.last_by_key.contains_key(key) {
                    found.add(Rule::Lost, None, format!("the submit of key {key} was acknowledged, no task has it"));
                }
                continue;
            };
            let view = index.tasks.get(task_id);
            if view.is_none_or(|view| view.last.is_none()) {
                found.add(Rule::Lost, Some(task_id), format!("acknowledged with key {key}, gone at the end"));
            }
            let unseen = view.and_then(|view| {
                view.reads.iter().find(|read| read.outcome == Outcome::Fail && read.t_invoke_us > submit.t_complete_us)
            });
            if let Some(read) = unseen {
                let at = read.t_invoke_us;
                found.add(Rule::Lost, Some(task_id), format!("acknowledged, but a read at {at} us did not find it"));
            }
        }
    }
    for (task_id, view) in &index.tasks {
        if view.last.is_none() && !(view.runs.is_empty() && view.claims.is_empty()) {
            found.add(Rule::Lost, Some(task_id), "was given to a worker, gone at the end");
        }
    }
}

fn ghosts(index: &Index<'_>, found: &mut Findings) {
    let explained = |key: Option<&str>| {
        let submits = key.and_then(|key| index.submits.get(key));
        submits.is_some_and(|submits| submits.iter().any(|submit| submit.outcome.possible()))
    };
    for task in &index.evidence.tasks {
        if !explained(task.key.as_deref()) {
            let detail = format!("exists with key {:?}, which no ok or unknown submit sent", task.key);
            found.add(Rule::Ghost, Some(&task.task_id), detail);
        }
    }
    for run in &index.evidence.runs {
        if !explained(run.key.as_deref()) {
            let detail = format!("ran with key {:?}, which no ok or unknown submit sent", run.key);
            found.add(Rule::Ghost, Some(&run.task_id), detail);
        }
    }
}

fn one_task_per_key(index: &Index<'_>, found: &mut Findings) {
    let mut ids: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for (key, submits) in &index.submits {
        for submit in submits.iter().filter(|submit| submit.outcome == Outcome::Ok) {
            ids.entry(key).or_default().extend(submit.task_id.as_deref());
        }
    }
    for task in &index.evidence.tasks {
        if let Some(key) = &task.key {
            ids.entry(key).or_default().insert(&task.task_id);
        }
    }
    for run in &index.evidence.runs {
        if let Some(key) = &run.key {
            ids.entry(key).or_default().insert(&run.task_id);
        }
    }
    for (key, ids) in ids {
        if ids.len() > 1 {
            let ids: Vec<_> = ids.into_iter().collect();
            found.add(Rule::Idempotency, Some(ids[0]), format!("key {key} stands for {}", ids.join(", ")));
        }
    }
}

fn batches(index: &Index<'_>, found: &mut Findings) {
    let mut calls: HashMap<u64, Vec<&Record>> = HashMap::new();
    for record in index.evidence.records.iter().filter(|record| record.op == Op::Batch) {
        calls.entry(record.call).or_default().push(record);
    }
    for (call, records) in calls {
        let of = records.len();
        let first_key = records[0].key.as_deref().unwrap_or_default();
        let stored = records.iter().filter_map(|record| record.key.as_deref());
        let stored = stored.filter(|key| index.last_by_key.contains_key(key)).count();
        if stored != 0 && stored != of {
            let detail = format!("call {call}: {stored} of {of} tasks were stored (first key {first_key})");
            found.add(Rule::TornBatch, None, detail);
        }
        // A batch that is sent again finds all of its tasks or none: they are sent in no other call before.
        let there = records[0].deduplicated.unwrap_or(0);
        if records[0].outcome == Outcome::Ok && there != 0 && there != of as u64 {
            let detail = format!("call {call}: sent again, {there} of {of} tasks were there (first key {first_key})");
            found.add(Rule::TornBatch, None, detail);
        }
    }
}

/// A follow-up exists exactly when the result that carried it is the one the task ended with.
fn follow_ups(index: &Index<'_>, found: &mut Findings) {
    let mut applied: HashMap<&str, bool> = HashMap::new();
    for result in index.evidence.records.iter().filter(|record| matches!(record.op, Op::Result(_))) {
        let (Some(nonce), Some(task_id)) = (result.nonce.as_deref(), result.task_id.as_deref()) else { continue };
        let last = index.tasks.get(task_id).and_then(|view| view.last);
        applied.insert(nonce, last.is_some_and(|last| last.nonce.as_deref() == Some(nonce)));
    }
    let carried = |record: &&Record| record.op == Op::FollowUp;
    for follow_up in index.evidence.records.iter().filter(carried) {
        let (Some(key), Some(nonce)) = (follow_up.key.as_deref(), follow_up.nonce.as_deref()) else { continue };
        let exists = index.last_by_key.contains_key(key);
        let applied = applied.get(nonce).copied().unwrap_or(false);
        if exists != applied {
            let text = |yes| if yes { "was" } else { "was not" };
            let detail =
                format!("result {nonce} {} applied, its follow-up {key} {} stored", text(applied), text(exists));
            found.add(Rule::TornFollowUp, None, detail);
        }
    }
}
