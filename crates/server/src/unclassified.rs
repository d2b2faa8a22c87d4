//! Errors that nothing put in a class, so that people can write rules for them.

use std::collections::HashMap;

use windlass_core::analysis::normalise;
use windlass_core::event::FailureNote;
use windlass_core::fact::MESSAGE_BYTES;
use windlass_core::names::{TaskType, cut};
use windlass_core::time::Timestamp;

/// Kinds of errors that are remembered; the one not seen for longest makes room.
const KINDS: usize = 200;

/// One kind of error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclassifiedError {
    /// Of this type.
    pub task_type: TaskType,
    /// With this code.
    pub code: Option<String>,
    /// The last message of its kind.
    pub message: String,
    /// How often.
    pub count: u64,
    /// When last.
    pub last_seen: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    task_type: TaskType,
    code: Option<String>,
    message: String,
}

struct Tally {
    count: u64,
    last_seen: Timestamp,
    sample: String,
}

/// Kinds of errors seen since the start, a bounded number of them.
#[derive(Default)]
pub struct Unclassified(HashMap<Kind, Tally>);

impl Unclassified {
    /// Counts so many errors of one kind, of which this is the last.
    pub fn add(&mut self, task_type: &TaskType, note: &FailureNote, count: u64, at: Timestamp) {
        // Cut first: other nodes are not told more of it, and must find the same kind.
        let sample = cut(note.message.clone(), MESSAGE_BYTES);
        let kind = Kind { task_type: task_type.clone(), code: note.code.clone(), message: normalise(&sample) };
        if !self.0.contains_key(&kind) && self.0.len() >= KINDS {
            self.make_room();
        }
        let tally = self.0.entry(kind).or_insert_with(|| Tally { count: 0, last_seen: at, sample: String::new() });
        tally.count += count;
        tally.last_seen = at;
        tally.sample = sample;
    }

    fn make_room(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, tally)| tally.last_seen).map(|(kind, _)| kind.clone());
        if let Some(oldest) = oldest {
            self.0.remove(&oldest);
        }
    }

    /// All kinds, the most frequent first.
    pub fn list(&self) -> Vec<UnclassifiedError> {
        let mut errors: Vec<_> = self
            .0
            .iter()
            .map(|(kind, tally)| UnclassifiedError {
                task_type: kind.task_type.clone(),
                code: kind.code.clone(),
                message: tally.sample.clone(),
                count: tally.count,
                last_seen: tally.last_seen,
            })
            .collect();
        errors.sort_by(|a, b| (b.count, b.last_seen, &a.message).cmp(&(a.count, a.last_seen, &b.message)));
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::failure::{DecidedBy, ErrorClass};

    fn note(code: Option<&str>, message: &str) -> FailureNote {
        FailureNote {
            class: ErrorClass::Unknown,
            decided_by: DecidedBy::Nobody,
            code: code.map(str::to_owned),
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_same_kind_is_counted_together() {
        let task_type = TaskType::new("t").expect("a name");
        let mut errors = Unclassified::default();
        errors.add(&task_type, &note(None, "user 1 is gone"), 1, Timestamp::from_micros(1));
        errors.add(&task_type, &note(None, "user 27 is gone"), 1, Timestamp::from_micros(2));
        errors.add(&task_type, &note(Some("x"), "user 1 is gone"), 1, Timestamp::from_micros(3));
        let list = errors.list();
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].count, list[0].message.as_str()), (2, "user 27 is gone"));
        assert_eq!(list[0].last_seen, Timestamp::from_micros(2));
    }

    #[test]
    fn the_list_is_bounded_and_forgets_the_oldest() {
        let task_type = TaskType::new("t").expect("a name");
        let mut errors = Unclassified::default();
        for n in 0..KINDS + 50 {
            let code = format!("c{n}");
            errors.add(&task_type, &note(Some(&code), "x"), 1, Timestamp::from_micros(n as i64));
        }
        let list = errors.list();
        assert_eq!(list.len(), KINDS);
        assert!(list.iter().all(|error| error.last_seen >= Timestamp::from_micros(50)));
    }
}
