//! What dead letters have in common: groups by cause, and whether a replay of one looks safe.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::breaker;
use crate::failure::{EndReason, ErrorClass};
use crate::ids::TaskId;
use crate::names::{TaskType, cut};
use crate::settings::Settings;
use crate::task::Task;
use crate::time::Timestamp;

/// How much of a message is looked at: what tells causes apart is said early.
const READ_BYTES: usize = 1024;
/// Longest normalised message.
pub const MESSAGE_BYTES: usize = 256;
/// Groups of one analysis; the rest are counted together.
pub const GROUPS: usize = 1_000;
/// The message of the group that has the rest.
pub const REST: &str = "other";

/// What differs from one failure to the next of the same cause, the longest forms first.
static VARIABLE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?x)
        (?P<quoted> '[^\s']*[0-9@][^\s']*' | "[^\s"]*[0-9@][^\s"]*" | `[^\s`]*[0-9@][^\s`]*` )
        | (?P<whole>
            \b\d{4}-\d{2}-\d{2} (?: [T\x20]\d{2}:\d{2} (?: :\d{2} (?:[.,]\d+)? )? (?: Z | [+-]\d{2}:?\d{2} )? )?
            | \b\d{2}:\d{2}:\d{2} (?:[.,]\d+)?
            | \b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b
            | \b\d{1,3}(?:\.\d{1,3}){3} (?: :\d+ )?\b
            | \[[0-9a-fA-F:]*:[0-9a-fA-F:.]*\] (?: :\d+ )?
            | \b\d+(?:[.,]\d+)+ (?:[eE][+-]?\d+)?
            | \b\d+ (?:[eE][+-]?\d+)?\b
          )
        | (?P<word> \w*\d\w* )"#,
    )
    .ok()
});

/// Lists of what varies, and gaps, are as long as they happen to be.
static REPEATED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\#(?:\s*,\s*\#)+|\s+").ok());

/// A message without what differs between failures of the same cause: numbers, hex, UUIDs,
/// quoted ids, times and addresses become `#`.
pub fn normalise(message: &str) -> String {
    let read = beginning(message, READ_BYTES);
    let (Some(variable), Some(repeated)) = (&*VARIABLE, &*REPEATED) else { return cut(read.to_owned(), MESSAGE_BYTES) };
    let marked = variable.replace_all(read, |found: &Captures<'_>| {
        if let Some(quoted) = found.name("quoted") {
            let quote = &quoted.as_str()[..1];
            return format!("{quote}#{quote}");
        }
        found.name("word").map_or_else(|| "#".to_owned(), |word| mark_word(word.as_str()))
    });
    let short = repeated.replace_all(&marked, |found: &Captures<'_>| if found[0].starts_with('#') { "#" } else { " " });
    cut(short.trim().to_owned(), MESSAGE_BYTES)
}

/// The text up to so many bytes, whole characters only.
fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A word with digits: an id as a whole, else (`utf8`, `30ms`) only its digits.
fn mark_word(word: &str) -> String {
    const HEX_LETTERS: usize = 6;
    const ID_LETTERS: usize = 8;
    const ID_SWITCHES: usize = 3;
    let hex = word.strip_prefix("0x").or(word.strip_prefix("0X"));
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex.is_some_and(is_hex) || (word.len() >= HEX_LETTERS && is_hex(word)) {
        return "#".to_owned();
    }
    let kinds: Vec<bool> = word.chars().map(|letter| letter.is_ascii_digit()).collect();
    let switches = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if kinds.len() >= ID_LETTERS && switches >= ID_SWITCHES {
        return "#".to_owned();
    }
    let mut marked = String::with_capacity(word.len());
    for letter in word.chars() {
        if !letter.is_ascii_digit() {
            marked.push(letter);
        } else if !marked.ends_with('#') {
            marked.push('#');
        }
    }
    marked
}

/// What dead letters of one group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cause {
    task_type: TaskType,
    class: Option<ErrorClass>,
    code: Option<String>,
    message: String,
}

/// Dead letters of the same cause.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseGroup {
    /// Their type; none for the rest beyond [`GROUPS`].
    pub task_type: Option<TaskType>,
    /// The class of the last failure; none if there was no failure.
    pub class: Option<ErrorClass>,
    /// Its code.
    pub code: Option<String>,
    /// Its message, normalised; empty if there was none.
    pub message: String,
    /// How many.
    pub count: u64,
    /// When the first of them was given up.
    pub first_seen: Timestamp,
    /// When the last of them was given up.
    pub last_seen: Timestamp,
    /// The one given up last.
    pub sample_task_id: TaskId,
    /// Why they were given up, each reason once.
    pub reasons: Vec<EndReason>,
}

impl CauseGroup {
    fn new(cause: Option<&Cause>, task: &Task, at: Timestamp) -> Self {
        Self {
            task_type: cause.map(|cause| cause.task_type.clone()),
            class: cause.and_then(|cause| cause.class),
            code: cause.and_then(|cause| cause.code.clone()),
            message: cause.map_or_else(|| REST.to_owned(), |cause| cause.message.clone()),
            count: 0,
            first_seen: at,
            last_seen: at,
            sample_task_id: task.id,
            reasons: Vec::new(),
        }
    }

    fn count(&mut self, task: &Task, at: Timestamp) {
        self.count += 1;
        self.first_seen = self.first_seen.min(at);
        if at > self.last_seen {
            self.last_seen = at;
            self.sample_task_id = task.id;
        }
        if let Some(reason) = task.state.end_reason
            && !self.reasons.contains(&reason)
        {
            self.reasons.push(reason);
        }
    }
}

/// Puts dead letters in groups, one by one, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct CauseGroups {
    groups: HashMap<Cause, CauseGroup>,
    rest: Option<CauseGroup>,
    examined: u64,
}

impl CauseGroups {
    /// Takes one dead letter.
    pub fn add(&mut self, task: &Task) {
        self.examined += 1;
        let at = task.state.ended_at.unwrap_or(task.state.created_at);
        let failure = task.state.last_failure();
        let cause = Cause {
            task_type: task.spec.task_type.clone(),
            class: failure.map(|failure| failure.class),
            code: failure.and_then(|failure| failure.error.code.clone()),
            message: failure.map(|failure| normalise(&failure.error.message)).unwrap_or_default(),
        };
        let is_full = self.groups.len() >= GROUPS;
        let group = match self.groups.get_mut(&cause) {
            Some(group) => group,
            None if is_full => self.rest.get_or_insert_with(|| CauseGroup::new(None, task, at)),
            None => {
                let group = CauseGroup::new(Some(&cause), task, at);
                self.groups.entry(cause).or_insert(group)
            }
        };
        group.count(task, at);
    }

    /// How many dead letters it took.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// The groups, the largest first, then the latest.
    pub fn into_groups(self) -> Vec<CauseGroup> {
        let mut groups: Vec<_> = self.groups.into_values().chain(self.rest).collect();
        groups.sort_by(|a, b| {
            let order = (b.count, b.last_seen, a.sample_task_id);
            order.cmp(&(a.count, a.last_seen, b.sample_task_id))
        });
        groups
    }
}

/// Whether a replay of all of a group can be expected to go well: the cause goes away by
/// itself, and nothing says that it is still there or that a person should decide.
pub fn replay_looks_safe(group: &CauseGroup, breaker: breaker::State, settings: &Settings) -> bool {
    let Some(task_type) = &group.task_type else { return false };
    group.class.is_some_and(passes_by_itself)
        && group.reasons.iter().all(|reason| allows_replay(*reason))
        && breaker == breaker::State::Closed
        && !settings.is_sensitive(task_type)
        && !settings.is_type_paused(task_type)
}

fn passes_by_itself(class: ErrorClass) -> bool {
    match class {
        ErrorClass::Transient | ErrorClass::RateLimited | ErrorClass::Timeout | ErrorClass::Resource => true,
        ErrorClass::Permanent | ErrorClass::CodeBug | ErrorClass::WorkerLost | ErrorClass::Unknown => false,
    }
}

fn allows_replay(reason: EndReason) -> bool {
    match reason {
        EndReason::MaxRetries | EndReason::MaxElapsed => true,
        // A poison pill takes workers down; what a person took out is for a person to put back.
        EndReason::PermanentError
        | EndReason::PoisonPill
        | EndReason::RejectedByOperator
        | EndReason::Expired
        | EndReason::Discarded => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::failure::{ErrorReport, TaskPolicy};
    use crate::ids::{IdCodec, TaskKey};
    use crate::json::Json;
    use crate::names::{CapabilitySet, QueueName};
    use crate::priority::Priority;
    use crate::retry::RetryPolicy;
    use crate::settings::TypeSettings;
    use crate::status::Status;
    use crate::task::{FailedAttempt, Tags, TaskSpec, TaskState};

    #[test]
    fn messages_of_one_cause_are_equal() {
        for (message, expected) in [
            ("order 17 not found", "order # not found"),
            ("order 3.14 not found", "order # not found"),
            ("took 1,234 of 2.5e3", "took # of #"),
            ("user 'a-17' is gone", "user '#' is gone"),
            ("user \"ada@example.org\" is gone", "user \"#\" is gone"),
            ("field 'name' is missing", "field 'name' is missing"),
            ("connect 10.0.0.7:5432 refused", "connect # refused"),
            ("connect [fe80::1]:5432 refused", "connect # refused"),
            ("at 2026-01-31T09:30:00.125Z it broke", "at # it broke"),
            ("at 2026-01-31 09:30:00 it broke", "at # it broke"),
            ("at 09:30:00 it broke", "at # it broke"),
            ("task 018f3c2a-77aa-7bbb-8ccc-0123456789ab lost", "task # lost"),
            ("address 0xDEADbeef", "address #"),
            ("commit 83c45a3 of 5123627", "commit # of #"),
            ("job x7k2m9q4 failed", "job # failed"),
            ("timed out after 30ms", "timed out after #ms"),
            ("timed out after 1.5s", "timed out after #s"),
            ("bad utf8", "bad utf#"),
            ("ids [1, 2, 3] and [4]", "ids [#] and [#]"),
            ("  two\n\tlines  ", "two lines"),
            ("std::io::Error", "std::io::Error"),
            ("", ""),
        ] {
            assert_eq!(normalise(message), expected, "{message}");
        }
    }

    #[test]
    fn messages_are_bounded_at_whole_characters() {
        let long = normalise(&"ä".repeat(10_000));
        assert!(long.len() <= MESSAGE_BYTES, "{}", long.len());
        assert_eq!(normalise(&long), long);
    }

    fn dead(number: u64, task_type: &str, class: Option<ErrorClass>, message: &str, reason: EndReason) -> Task {
        let at = Timestamp::from_micros(number as i64 * 1_000_000);
        let failed = class.map(|class| FailedAttempt {
            attempt: 1,
            worker: None,
            started_at: at,
            ended_at: at,
            class,
            error: ErrorReport::internal("E", message.to_owned()),
        });
        let policy = TaskPolicy {
            timeout: Duration::from_secs(1),
            max_retries: 0,
            max_crashes: 1,
            dead_letter: true,
            retry: RetryPolicy::default(),
        };
        Task {
            id: IdCodec::new([7; 16]).task_id(TaskKey(number), at),
            spec: TaskSpec {
                task_type: TaskType::new(task_type).expect("a name"),
                queue: QueueName::default(),
                priority: Priority::MEDIUM,
                capabilities: CapabilitySet::default(),
                parameters: Json::empty_object(),
                policy,
                expires_at: None,
                idempotency_key: None,
                flow_key: None,
                unique: None,
                tenant: None,
                tags: Tags::new(),
                trace_parent: None,
            },
            state: TaskState {
                status: Status::DeadLetter,
                version: 1,
                attempt: 1,
                retries: 0,
                crashes: 0,
                created_at: at,
                ready_at: at,
                run_at: at,
                retrying: false,
                started_at: None,
                ended_at: Some(at),
                worker: None,
                lease_expires_at: None,
                timeout: Duration::from_secs(1),
                progress: None,
                result: None,
                end_reason: Some(reason),
                original_parameters: None,
                auto_replayed: false,
                failed_attempts: failed.into_iter().collect(),
            },
        }
    }

    #[test]
    fn groups_by_cause() {
        let transient = Some(ErrorClass::Transient);
        let mut groups = CauseGroups::default();
        for task in [
            dead(5, "a", transient, "row 5 is locked", EndReason::MaxRetries),
            dead(4, "a", transient, "row 4 is locked", EndReason::MaxElapsed),
            dead(3, "a", transient, "row 3 is locked", EndReason::MaxRetries),
            dead(2, "b", transient, "row 2 is locked", EndReason::MaxRetries),
            dead(1, "a", None, "", EndReason::RejectedByOperator),
        ] {
            groups.add(&task);
        }
        assert_eq!(groups.examined(), 5);
        let groups = groups.into_groups();
        let shown: Vec<_> = groups
            .iter()
            .map(|group| (group.task_type.as_ref().map(TaskType::as_str), group.message.as_str(), group.count))
            .collect();
        assert_eq!(shown, [(Some("a"), "row # is locked", 3), (Some("b"), "row # is locked", 1), (Some("a"), "", 1)]);
        let largest = &groups[0];
        let second = |number: i64| Timestamp::from_micros(number * 1_000_000);
        assert_eq!((largest.first_seen, largest.last_seen), (second(3), second(5)));
        assert_eq!(largest.sample_task_id, dead(5, "a", transient, "", EndReason::MaxRetries).id);
        assert_eq!(largest.reasons, [EndReason::MaxRetries, EndReason::MaxElapsed]);
    }

    #[test]
    fn the_rest_is_counted_together() {
        let mut groups = CauseGroups::default();
        for number in 0..GROUPS as u64 + 5 {
            let task_type = format!("t{number}");
            groups.add(&dead(number, &task_type, Some(ErrorClass::Transient), "x", EndReason::MaxRetries));
        }
        let groups = groups.into_groups();
        assert_eq!(groups.len(), GROUPS + 1);
        assert_eq!((groups[0].message.as_str(), groups[0].count, &groups[0].task_type), (REST, 5, &None));
        assert!(!replay_looks_safe(&groups[0], breaker::State::Closed, &Settings::default()));
    }

    #[test]
    fn what_looks_safe() {
        let group = |class, reason| {
            let mut groups = CauseGroups::default();
            groups.add(&dead(1, "t", class, "x", reason));
            groups.into_groups().remove(0)
        };
        let plain = Settings::default();
        for (class, expected) in [
            (Some(ErrorClass::Transient), true),
            (Some(ErrorClass::RateLimited), true),
            (Some(ErrorClass::Timeout), true),
            (Some(ErrorClass::Resource), true),
            (Some(ErrorClass::Permanent), false),
            (Some(ErrorClass::CodeBug), false),
            (Some(ErrorClass::WorkerLost), false),
            (Some(ErrorClass::Unknown), false),
            (None, false),
        ] {
            let group = group(class, EndReason::MaxRetries);
            assert_eq!(replay_looks_safe(&group, breaker::State::Closed, &plain), expected, "{class:?}");
        }
        let sound = group(Some(ErrorClass::Transient), EndReason::MaxRetries);
        for state in [breaker::State::Open, breaker::State::HalfOpen] {
            assert!(!replay_looks_safe(&sound, state, &plain), "{state:?}");
        }
        for reason in [EndReason::PoisonPill, EndReason::RejectedByOperator] {
            let group = group(Some(ErrorClass::Transient), reason);
            assert!(!replay_looks_safe(&group, breaker::State::Closed, &plain), "{reason:?}");
        }
        for of_type in [
            TypeSettings { sensitive: Some(true), ..TypeSettings::default() },
            TypeSettings { paused: true, ..TypeSettings::default() },
        ] {
            let mut settings = Settings::default();
            settings.types.insert(TaskType::new("t").expect("a name"), of_type);
            assert!(!replay_looks_safe(&sound, breaker::State::Closed, &settings));
        }
    }
}
