//! What the tasks of a run are like: which queue, which type, which keys and limits. Everything follows from the
//! idempotency key of a task, so that it can be told afterwards for any task that was ever sent.

use serde_json::{Value, json};

use crate::checker::{AtMost, Shared};
use crate::random::Random;

/// How many tasks of the limited type run at once.
pub const LIMITED_AT_ONCE: u64 = 20;
/// The limited type.
pub const LIMITED_TYPE: &str = "chaos.limited";
/// How many tasks of a concurrency key run at once.
const KEY_AT_ONCE: u64 = 2;
/// Concurrency keys per queue.
const KEYS: u64 = 16;
/// Lines of ordered tasks per submitter.
const LINES: u64 = 32;

/// Which tasks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One queue, one type, no keys but the idempotency key.
    Plain,
    /// Several queues; ordering keys, concurrency keys and a limited type beside plain tasks.
    Mixed,
}

/// What a task has beside its idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Limited,
    Keyed(u64),
    Line(u64),
}

impl Kind {
    fn of(key: &str) -> Self {
        let Some((_, mark)) = key.split_once('~') else { return Self::Plain };
        let number = || mark.get(1..).and_then(|number| number.parse().ok()).unwrap_or(0);
        match mark.as_bytes().first() {
            Some(b'l') => Self::Limited,
            Some(b'k') => Self::Keyed(number()),
            Some(b'o') => Self::Line(number()),
            Some(_) | None => Self::Plain,
        }
    }
}

impl Workload {
    /// The queues of the run.
    pub fn queues(self) -> &'static [&'static str] {
        match self {
            Workload::Plain => &["crash"],
            Workload::Mixed => &["chaos-even", "chaos-odd", "chaos-next"],
        }
    }

    /// A mark for the key of a task that is submitted alone: what it will have.
    pub fn mark(self, random: &mut Random) -> String {
        match self {
            Workload::Plain => String::new(),
            Workload::Mixed => match random.below(100) {
                0..35 => format!("~o{}", random.below(LINES)),
                35..55 => format!("~k{}", random.below(KEYS)),
                55..65 => "~l".to_owned(),
                _ => String::new(),
            },
        }
    }

    /// The same for one of many that are submitted together: those have no line, because they are no sequence of calls.
    pub fn mark_of_many(self, random: &mut Random) -> String {
        match self {
            Workload::Plain => String::new(),
            Workload::Mixed => match random.below(100) {
                0..20 => format!("~k{}", random.below(KEYS)),
                20..25 => "~l".to_owned(),
                _ => String::new(),
            },
        }
    }

    fn queue(self, key: &str) -> &'static str {
        let queues = self.queues();
        let last = queues.len() - 1;
        if key.starts_with('f') {
            return queues[last];
        }
        queues[submitter(key) as usize % last.max(1)]
    }

    /// Whether a line goes on past a task that is to be tried again.
    fn skips(line: u64) -> bool {
        line % 2 == 1
    }

    /// A task as it is submitted. Retries come quickly, so that all their paths are walked in a short run.
    pub fn task(self, key: &str, max_retries: u64) -> Value {
        let mut task = json!({
            "task_type": match self { Workload::Plain => "crash.step", Workload::Mixed => "chaos.step" },
            "queue": self.queue(key),
            "parameters": {"key": key},
            "idempotency_key": key,
            "max_retries": max_retries,
            "retry": {"strategy": "fixed", "base_delay": 0.05, "jitter": "none"},
        });
        match Kind::of(key) {
            Kind::Plain => {}
            Kind::Limited => task["task_type"] = json!(LIMITED_TYPE),
            Kind::Keyed(number) => {
                task["concurrency_key"] = json!(format!("k-{number}"));
                task["concurrency_limit"] = json!(KEY_AT_ONCE);
            }
            Kind::Line(number) => {
                task["ordering_key"] = json!(format!("o-{}-{number}", submitter(key)));
                task["ordering_on_failure"] = json!(if Self::skips(number) { "skip" } else { "block" });
            }
        }
        task
    }

    /// What a task shares with others, for the checker.
    pub fn shared(self, key: &str) -> Option<Shared> {
        match Kind::of(key) {
            Kind::Plain => None,
            Kind::Limited => {
                Some(Shared::AtMost(AtMost { group: format!("type {LIMITED_TYPE}"), at_once: LIMITED_AT_ONCE }))
            }
            Kind::Keyed(number) => {
                let group = format!("key k-{number} of {}", self.queue(key));
                Some(Shared::AtMost(AtMost { group, at_once: KEY_AT_ONCE }))
            }
            Kind::Line(number) => {
                let line = format!("line o-{}-{number} of {}", submitter(key), self.queue(key));
                Some(Shared::Line { line, skips: Self::skips(number) })
            }
        }
    }
}

/// The number of the client in a key such as `s3-17`.
fn submitter(key: &str) -> u64 {
    let digits = key.get(1..).and_then(|rest| rest.split('-').next()).unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_what_the_checker_is_told_go_together() {
        let task = Workload::Mixed.task("s3-17~o4", 2);
        assert_eq!(task["ordering_key"], "o-3-4");
        assert_eq!(task["queue"], "chaos-odd");
        let line = "line o-3-4 of chaos-odd".to_owned();
        assert_eq!(Workload::Mixed.shared("s3-17~o4"), Some(Shared::Line { line, skips: false }));

        let task = Workload::Mixed.task("f-w9-1-0~k2", 2);
        assert_eq!((&task["queue"], &task["concurrency_key"]), (&json!("chaos-next"), &json!("k-2")));
        let Some(Shared::AtMost(group)) = Workload::Mixed.shared("f-w9-1-0~k2") else { panic!("no group") };
        assert_eq!((group.group.as_str(), group.at_once), ("key k-2 of chaos-next", KEY_AT_ONCE));

        assert_eq!(Workload::Mixed.task("s2-1~l", 2)["task_type"], LIMITED_TYPE);
        assert_eq!(Workload::Plain.task("s2-1", 2)["queue"], "crash");
        assert_eq!(Workload::Plain.shared("s2-1"), None);
    }
}
