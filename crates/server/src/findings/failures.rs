//! Work that fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use windlass_core::breaker::{Forced, Scope, State, View};
use windlass_core::event::FailureNote;
use windlass_core::names::{TaskType, cut};

use super::{Facts, Finding, Severity, WAITS, Waiters, counted};
use crate::outcomes::{Latest, Trouble};

/// Dead letters of a type above which they count as a cluster.
pub const CLUSTER: u64 = 10;

/// A breaker that is not closed, or was forced.
pub fn breaker(facts: &Facts<'_>, view: &View) -> Option<Finding> {
    let (kind, name) = (view.scope.kind(), view.scope.name());
    if let Some(forced) = view.forced {
        return Some(forced_breaker(view, forced, kind, &name));
    }
    if view.state == State::Closed {
        return None;
    }
    let reason = view.reason.clone().unwrap_or_default();
    let evidence = json!({"scope": kind, "name": name, "state": view.state.as_str(), "reason": reason,
        "until": view.until, "attempts": view.figures.attempts, "failures": view.figures.failures});
    let until = view.until.map(|until| format!("; one task is tried at {until}")).unwrap_or_default();
    let (code, title, detail, next_step) = match &view.scope {
        Scope::Type(task_type) => {
            let waiting = Waiters::all(facts.waiting().filter(|lane| lane.lane.task_type == *task_type)).count;
            (
                "breaker_open",
                format!("The breaker of {name} is open"),
                format!("{reason}. {} safely{until}.", counted(waiting, "task", &format!(" of type {name}"), WAITS)),
                format!(
                    "Look at why {name} fails (GET /api/v1/tasks?task_type={name}); it closes by itself when a trial succeeds."
                ),
            )
        }
        Scope::Worker(_) => (
            "worker_breaker_open",
            format!("Worker {name} gets no tasks"),
            format!("{reason}. It gets no tasks{until}."),
            "Look at that worker's machine and version; drain or restart it.".to_owned(),
        ),
    };
    let (severity, since) = (Severity::Warning, view.since);
    Some(Finding { code, severity, subject: format!("{kind} {name}"), title, detail, evidence, next_step, since })
}

fn forced_breaker(view: &View, forced: Forced, kind: &str, name: &str) -> Finding {
    let (severity, state, meaning) = match forced {
        Forced::Open => (Severity::Warning, "open", "nothing of it starts"),
        Forced::Closed => (Severity::Info, "closed", "it does not open however much fails"),
    };
    Finding {
        code: "breaker_forced",
        severity,
        subject: format!("{kind} {name}"),
        title: format!("The breaker of {kind} {name} is forced {state}"),
        detail: format!(
            "A person forced the breaker of {kind} {name} {state}: {meaning} until somebody says otherwise."
        ),
        evidence: json!({"scope": kind, "name": name, "forced": state}),
        next_step: format!("When it is no longer needed: POST /api/v1/breakers/{kind}/{name}/auto."),
        since: view.since,
    }
}

/// The code and the beginning of the message of a failure.
fn said(latest: Option<&Latest<Arc<FailureNote>>>) -> (Option<String>, Option<String>) {
    const SHOWN_BYTES: usize = 512;
    let note = latest.map(|latest| &latest.last);
    let code = note.and_then(|note| note.code.clone());
    (code, note.map(|note| cut(note.message.clone(), SHOWN_BYTES)))
}

/// What failed lately in a way that a person should know of.
pub fn troubles(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, trouble) in facts.troubles {
        if trouble.poison_pills > 0 {
            found.push(poison_pill(name, trouble));
        }
        if trouble.code_bugs > 0 {
            found.push(code_bug(name, trouble));
        }
        if trouble.unclassified > 0 {
            found.push(unclassified(name, trouble));
        }
    }
    found
}

const POISONED: [&str; 2] = ["was given up as a poison pill", "were given up as poison pills"];

fn poison_pill(name: &str, trouble: &Trouble) -> Finding {
    Finding {
        code: "poison_pill",
        severity: Severity::Warning,
        subject: name.to_owned(),
        title: format!("Tasks of {name} take their workers down"),
        detail: format!(
            "{} in the last day.",
            counted(trouble.poison_pills, "task", &format!(" of type {name}"), POISONED)
        ),
        evidence: json!({"task_type": name, "count": trouble.poison_pills, "sample_task_id": trouble.poison_pill.as_ref().map(|pill| pill.last)}),
        next_step: format!(
            "Run one of them by hand before a replay: GET /api/v1/dlq?task_type={name}&dead_reason=poison_pill."
        ),
        since: trouble.poison_pill.as_ref().map(|latest| latest.since),
    }
}

fn code_bug(name: &str, trouble: &Trouble) -> Finding {
    let (code, message) = said(trouble.code_bug.as_ref());
    Finding {
        code: "code_bug",
        severity: Severity::Warning,
        subject: name.to_owned(),
        title: format!("The handler of {name} is broken"),
        detail: format!(
            "{} with class code_bug in the last hour.",
            counted(trouble.code_bugs, "attempt", &format!(" of type {name}"), ["failed"; 2])
        ),
        evidence: json!({"task_type": name, "count": trouble.code_bugs, "last_code": code, "last_message": message}),
        next_step: format!("Correct the handler, then replay: GET /api/v1/dlq?task_type={name}&class=code_bug."),
        since: trouble.code_bug.as_ref().map(|latest| latest.since),
    }
}

fn unclassified(name: &str, trouble: &Trouble) -> Finding {
    let (code, message) = said(trouble.unclassified_error.as_ref());
    Finding {
        code: "unclassified_errors",
        severity: Severity::Info,
        subject: name.to_owned(),
        title: format!("Failures of {name} are in no class"),
        detail: format!(
            "{} in the last hour with errors that no rule knows; they are retried by policy.",
            counted(trouble.unclassified, "attempt", &format!(" of type {name}"), ["failed"; 2])
        ),
        evidence: json!({"task_type": name, "count": trouble.unclassified, "last_code": code, "last_message": message}),
        next_step: "Add an error rule (PUT /api/v1/error-rules), or let the handler say whether it is retriable."
            .to_owned(),
        since: trouble.unclassified_error.as_ref().map(|latest| latest.since),
    }
}

/// Types with many dead letters.
pub fn dead_letter_clusters(facts: &Facts<'_>) -> Vec<Finding> {
    let mut by_type: BTreeMap<&TaskType, u64> = BTreeMap::new();
    for ((_, task_type), count) in &facts.stats.dead_letters {
        *by_type.entry(task_type).or_default() += count;
    }
    let finding = |(task_type, count): (&TaskType, u64)| Finding {
        code: "dead_letter_cluster",
        severity: Severity::Warning,
        subject: task_type.to_string(),
        title: format!("{count} dead letters of {task_type}"),
        detail: format!("{count} tasks of type {task_type} were given up and wait for a person."),
        evidence: json!({"task_type": task_type, "count": count}),
        next_step: format!(
            "See their causes (GET /api/v1/dlq/analysis?task_type={task_type}), then replay or discard them."
        ),
        since: None,
    };
    by_type.into_iter().filter(|(_, count)| *count > CLUSTER).map(finding).collect()
}
