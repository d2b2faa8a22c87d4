//! One task on a screen.

use super::bar;
use super::escape::{plain, plain_lines};
use super::json_text::pretty;
use super::screen::{Screen, Tint};
use super::tasks::{Failure, Task, word};
use super::timeline;
use crate::input::{duration, moment};

/// Collects lines of a card.
struct Card<'a> {
    screen: &'a Screen,
    lines: Vec<String>,
}

impl Card<'_> {
    fn fact(&mut self, name: &str, value: &str) {
        let name = self.screen.tint(Tint::Dim, &format!("{name:<10}"));
        self.lines.push(format!("  {name}  {value}"));
    }

    fn time(&mut self, name: &str, time: Option<&str>) {
        if let Some(time) = time {
            let exactly = self.screen.tint(Tint::Dim, &moment::clock_time(time));
            self.fact(name, &format!("{:<12}  {exactly}", moment::relative(time, moment::now())));
        }
    }

    fn heading(&mut self, text: &str) {
        self.lines.push(String::new());
        self.lines.push(self.screen.tint(Tint::Bold, text));
    }

    fn block(&mut self, text: &str) {
        self.lines.extend(text.lines().map(|line| format!("  {line}")));
    }
}

/// What of a task is shown.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Parameters and result.
    pub payload: bool,
    /// Everything that happened to it.
    pub history: bool,
}

/// The card of a task; `why` says why it does not run, if it waits.
pub fn render(screen: &Screen, task: &Task, why: Option<&str>, parts: Parts) -> String {
    let mut card = Card { screen, lines: Vec::new() };
    let status = screen.tint(Tint::of_status(&task.status), &plain(&task.status));
    let reason = task.end_reason.as_deref().map(|reason| format!(" ({})", plain(reason))).unwrap_or_default();
    card.lines.push(format!("{}  {status}{reason}", screen.tint(Tint::Bold, &plain(&task.task_id))));
    facts(&mut card, task);
    if let Some(why) = why {
        card.lines.push(String::new());
        card.lines.push(screen.tint(Tint::Warn, &plain(why)));
    }
    if let Some(error) = &task.error {
        failure(&mut card, error, task.status != "completed");
    }
    if parts.history && task.attempts.len() > 1 {
        card.heading("Failed attempts");
        card.block(&timeline::attempts(screen, &task.attempts));
    }
    if parts.payload {
        payload(&mut card, task);
    }
    if parts.history {
        card.heading("History");
        card.block(&timeline::events(screen, &task.history));
    }
    card.lines.join("\n")
}

fn facts(card: &mut Card<'_>, task: &Task) {
    card.fact("type", &plain(&task.task_type));
    card.fact("queue", &plain(&task.queue));
    let mut priority = word(&task.priority);
    if !task.effective_priority.is_null() && task.effective_priority != task.priority {
        priority.push_str(&format!(" (counts as {} after waiting)", word(&task.effective_priority)));
    }
    card.fact("priority", &priority);
    let mut attempt = format!("{} of {}", task.attempt, task.max_retries.saturating_add(1).max(task.attempt));
    if task.crash_count > 0 {
        attempt.push_str(&format!(", {} of them lost with their worker", task.crash_count));
    }
    card.fact("attempt", &attempt);
    card.fact("timeout", &format!("{} per attempt", duration::rough_seconds(task.timeout_seconds)));
    if !task.required_capabilities.is_empty() {
        card.fact("requires", &plain(&task.required_capabilities.join(", ")));
    }
    keys(card, task);
    if let Some(tenant) = &task.tenant {
        card.fact("tenant", &plain(tenant));
    }
    if !task.tags.is_empty() {
        let tags: Vec<_> = task.tags.iter().map(|(key, value)| format!("{}={}", plain(key), plain(value))).collect();
        card.fact("tags", &tags.join("  "));
    }
    if let Some(trace) = &task.trace_id {
        card.fact("trace", &plain(trace));
    }
    card.time("submitted", Some(&task.created_at));
    if task.status == "scheduled" {
        card.time(if task.retrying { "next try" } else { "runs" }, Some(&task.run_at));
    }
    card.time("started", task.started_at.as_deref());
    card.time("ended", task.completed_at.as_deref());
    card.time("expires", task.expires_at.as_deref());
    if let Some(worker) = &task.assigned_worker_id {
        card.fact("worker", &plain(worker));
    }
    if let Some(progress) = task.progress.as_ref().filter(|_| task.status == "executing") {
        card.fact("progress", &format!("{}  {}", bar::drawn(progress.percent), progress.line()));
    }
}

/// What it shares with other tasks.
fn keys(card: &mut Card<'_>, task: &Task) {
    if let Some(key) = &task.ordering_key {
        let behind = match task.ordering_on_failure.as_deref() {
            Some("skip") => "; those behind it go on while it waits for a retry",
            _ => "; those behind it wait for its retries",
        };
        card.fact("in order", &format!("{}{behind}", plain(key)));
    }
    if let Some(key) = &task.concurrency_key {
        let limit = task.concurrency_limit.map(|limit| format!(", at most {limit}")).unwrap_or_default();
        card.fact("at once", &format!("{}{limit}", plain(key)));
    }
    if let Some(unique) = &task.unique {
        let mut text = format!("while {}", plain(&unique.held_while.join(", ")));
        if let Some(seconds) = unique.for_seconds {
            text.push_str(&format!(", and for {} after its submit", duration::rough_seconds(seconds)));
        }
        card.fact("unique", &format!("{text}; on conflict {}", plain(&unique.on_conflict)));
    }
}

fn failure(card: &mut Card<'_>, error: &Failure, is_current: bool) {
    let status = error.http_status.map(|status| format!(", HTTP {status}")).unwrap_or_default();
    let code = error.code.as_deref().map(|code| format!("{}, ", plain(code))).unwrap_or_default();
    let heading = if is_current { "Error" } else { "Last error before it succeeded" };
    card.heading(&format!("{heading} ({code}{}{status})", plain(&error.class)));
    let message = plain_lines(&error.message);
    let tint = if is_current { Tint::Bad } else { Tint::Plain };
    for line in message.lines() {
        card.lines.push(format!("  {}", card.screen.tint(tint, line)));
    }
    if let Some(stack) = &error.stack {
        for line in plain_lines(stack).lines() {
            card.lines.push(format!("  {}", card.screen.tint(Tint::Dim, line)));
        }
    }
    if let Some(details) = &error.details {
        card.block(&pretty(details.get()));
    }
}

fn payload(card: &mut Card<'_>, task: &Task) {
    if let Some(parameters) = &task.parameters {
        card.heading("Parameters");
        card.block(&pretty(parameters.get()));
    }
    if let Some(original) = &task.original_parameters {
        card.heading("Parameters as submitted");
        card.block(&pretty(original.get()));
    }
    if let Some(result) = &task.result {
        card.heading("Result");
        card.block(&pretty(result.get()));
    }
}
