//! What a transaction did to tasks, as far as statistics count it: the last part of an entry.
//!
//! It is written with every commit, so it is small. Changes that are alike are told once, with
//! how many there were: a batch of submits takes about ten bytes, and a claim three more, for the
//! time that its task stood ready.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use windlass_core::analysis::normalise;
use windlass_core::event::{Committed, FailureNote};
use windlass_core::fact::{Fact, Happened, MESSAGE_BYTES};
use windlass_core::failure::{DecidedBy, ErrorClass};
use windlass_core::ids::TaskId;
use windlass_core::names::{TaskType, cut};
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::wire::{Damaged, Decoder, Encoder};

/// The first byte. Statistics are no reason to stop: what was written in a form that is not known here is left out.
const FORM: u8 = 1;
/// Stands for no status before, where four bits have the code of one.
const NEW: u8 = 0xf;

/// What changes have in common that are told together.
#[derive(PartialEq, Eq, Hash)]
struct Alike {
    task_type: u64,
    kind: u8,
    class: Option<u8>,
    from: Option<Status>,
    to: Status,
    attempts: u32,
    /// Failures of one cause, whatever ids and numbers their messages have. The last of them is told.
    failure: Option<(Option<String>, String, u64)>,
}

struct Group {
    fact: Fact,
    waits: Vec<Duration>,
    /// The place of its last change: groups are told in this order, so that the last of anything is the same on
    /// all nodes.
    last: usize,
}

/// The types, in the order in which they are met.
#[derive(Default)]
struct Types {
    numbers: HashMap<TaskType, u64>,
    names: Vec<TaskType>,
}

impl Types {
    fn number(&mut self, name: &TaskType) -> u64 {
        // Twice looked up, so that a known name is not copied; the last is mostly the next.
        if self.names.last() == Some(name) {
            return self.names.len() as u64 - 1;
        }
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u64;
        self.numbers.insert(name.clone(), number);
        self.names.push(name.clone());
        number
    }
}

/// What others need to count these changes; nothing if there is nothing to count.
pub(crate) fn encode(changes: &[Committed]) -> Vec<u8> {
    let mut types = Types::default();
    let mut groups: HashMap<Alike, Group> = HashMap::new();
    for (place, change) in changes.iter().enumerate() {
        let fact = Fact::of(change);
        if !fact.counts() {
            continue;
        }
        let alike = Alike::of(&fact, types.number(&fact.task_type));
        let group = groups.entry(alike).or_insert_with(|| Group {
            fact: Fact { count: 0, ..fact.clone() },
            waits: Vec::new(),
            last: place,
        });
        if let Happened::Claimed { waited } = fact.happened {
            group.waits.push(waited);
        }
        group.fact = Fact { count: group.fact.count + fact.count, ..fact };
        group.last = place;
    }
    if groups.is_empty() {
        return Vec::new();
    }
    let mut groups: Vec<(Alike, Group)> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(_, group)| group.last);
    let mut out = Encoder::default();
    out.byte(FORM);
    out.number(types.names.len() as u64);
    types.names.iter().for_each(|name| out.bytes(name.as_str().as_bytes()));
    out.number(groups.len() as u64);
    for (alike, group) in &groups {
        write(&mut out, alike, group);
    }
    out.into_bytes()
}

impl Alike {
    fn of(fact: &Fact, task_type: u64) -> Self {
        let (kind, class) = match fact.happened {
            Happened::Submitted => (0, None),
            Happened::Claimed { .. } => (1, None),
            Happened::Completed => (2, None),
            Happened::Retried(class) => (3, Some(class)),
            Happened::Failed(class) => (4, Some(class)),
            Happened::Poisoned(class, _) => (5, Some(class)),
            Happened::Other => (6, None),
        };
        let failure = fact.failure.as_ref().map(|note| {
            let class_and_decider = decider_code(note.decided_by) << 8 | u64::from(note.class.code());
            (note.code.clone(), normalise(&cut(note.message.clone(), MESSAGE_BYTES)), class_and_decider)
        });
        Self {
            task_type,
            kind,
            class: class.map(ErrorClass::code),
            from: fact.from,
            to: fact.to,
            attempts: fact.attempts,
            failure,
        }
    }
}

fn write(out: &mut Encoder, alike: &Alike, group: &Group) {
    out.byte(alike.kind << 1 | u8::from(group.fact.failure.is_some()));
    out.byte(alike.from.map_or(NEW, Status::code) << 4 | alike.to.code());
    out.number(alike.task_type);
    out.number(alike.attempts.into());
    out.number(group.fact.count);
    if let Some(class) = alike.class {
        out.byte(class);
    }
    if let Happened::Poisoned(_, task) = group.fact.happened {
        out.array(*task.as_uuid().as_bytes());
    }
    for waited in &group.waits {
        out.number(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
    }
    if let Some(note) = &group.fact.failure {
        out.byte(note.class.code());
        out.number(decider_code(note.decided_by));
        out.optional(note.code.as_ref(), |out, code| out.bytes(code.as_bytes()));
        out.bytes(cut(note.message.clone(), MESSAGE_BYTES).as_bytes());
    }
}

fn decider_code(decided_by: DecidedBy) -> u64 {
    match decided_by {
        DecidedBy::Nobody => 0,
        DecidedBy::Policy => 1,
        DecidedBy::BuiltIn => 2,
        DecidedBy::Handler => 3,
        DecidedBy::Rule(place) => 4 + place as u64,
    }
}

fn decider(code: u64) -> Result<DecidedBy, Damaged> {
    Ok(match code {
        0 => DecidedBy::Nobody,
        1 => DecidedBy::Policy,
        2 => DecidedBy::BuiltIn,
        3 => DecidedBy::Handler,
        place => DecidedBy::Rule(usize::try_from(place - 4).map_err(|_| Damaged)?),
    })
}

/// What [`encode`] told of a transaction of that time.
pub(crate) fn decode(bytes: &[u8], at: Timestamp) -> Result<Vec<Fact>, Damaged> {
    if bytes.first() != Some(&FORM) {
        return Ok(Vec::new());
    }
    let mut from = Decoder::new(&bytes[1..]);
    let types = from.list(|from| TaskType::new(&text(from)?).map_err(|_| Damaged))?;
    let mut facts = Vec::new();
    from.list(|from| read(from, at, &types, &mut facts))?;
    if from.is_empty() { Ok(facts) } else { Err(Damaged) }
}

fn read(from: &mut Decoder<'_>, at: Timestamp, types: &[TaskType], facts: &mut Vec<Fact>) -> Result<(), Damaged> {
    let head = from.byte()?;
    let statuses = from.byte()?;
    let before = match statuses >> 4 {
        NEW => None,
        code => Some(Status::from_code(code).ok_or(Damaged)?),
    };
    let to = Status::from_code(statuses & 0xf).ok_or(Damaged)?;
    let number = usize::try_from(from.number()?).map_err(|_| Damaged)?;
    let task_type = types.get(number).ok_or(Damaged)?.clone();
    let (attempts, count) = (from.small()?, from.number()?);
    let happened = match head >> 1 {
        0 => Happened::Submitted,
        1 => Happened::Claimed { waited: Duration::ZERO },
        2 => Happened::Completed,
        3 => Happened::Retried(class(from)?),
        4 => Happened::Failed(class(from)?),
        5 => Happened::Poisoned(class(from)?, TaskId::from_uuid(Uuid::from_bytes(from.array()?))),
        6 => Happened::Other,
        _ => return Err(Damaged),
    };
    let fact = Fact { at, task_type, happened, from: before, to, attempts, failure: None, count };
    if let Happened::Claimed { .. } = happened {
        for _ in 0..count {
            let waited = Duration::from_micros(from.number()?);
            facts.push(Fact { happened: Happened::Claimed { waited }, count: 1, ..fact.clone() });
        }
        return Ok(());
    }
    let failure = if head & 1 == 0 { None } else { Some(Arc::new(note(from)?)) };
    facts.push(Fact { failure, ..fact });
    Ok(())
}

fn class(from: &mut Decoder<'_>) -> Result<ErrorClass, Damaged> {
    ErrorClass::from_code(from.byte()?).ok_or(Damaged)
}

fn note(from: &mut Decoder<'_>) -> Result<FailureNote, Damaged> {
    Ok(FailureNote {
        class: class(from)?,
        decided_by: decider(from.number()?)?,
        code: from.optional(text)?,
        message: text(from)?,
    })
}

fn text(from: &mut Decoder<'_>) -> Result<String, Damaged> {
    std::str::from_utf8(from.bytes()?).map(str::to_owned).map_err(|_| Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use windlass_core::actor::Actor;
    use windlass_core::event::{Change, Event};
    use windlass_core::failure::EndReason;
    use windlass_core::ids::{IdCodec, TaskKey, WorkerId};
    use windlass_core::lane::LaneKey;
    use windlass_core::names::{CapabilitySet, QueueName};
    use windlass_core::priority::Priority;

    use super::*;

    const AT: Timestamp = Timestamp::EPOCH;

    fn lane(task_type: &str) -> Arc<LaneKey> {
        Arc::new(LaneKey {
            queue: QueueName::default(),
            task_type: TaskType::new(task_type).expect("a name"),
            capabilities: CapabilitySet::default(),
            priority: Priority::MEDIUM,
            tenant: None,
        })
    }

    fn changed(task_type: &str, change: Change, from: Option<Status>, to: Status) -> Committed {
        let task_id = IdCodec::new([1; 16]).task_id(TaskKey(7), AT);
        Committed {
            event: Event { task_id, version: 1, at: AT, actor: Actor::System, change },
            lane: lane(task_type),
            from,
            to,
            waited: None,
            ahead_of: None,
            ran: None,
            age: Duration::ZERO,
            attempt: 2,
            failure: None,
        }
    }

    fn claimed(waited: Duration) -> Committed {
        let change = Change::Claimed { worker: WorkerId::random(), attempt: 2, claim: 1 };
        let claimed = changed("a", change, Some(Status::Queued), Status::Executing);
        Committed { waited: Some(waited), ..claimed }
    }

    fn failed(class: ErrorClass, decided_by: DecidedBy, message: &str) -> Committed {
        let change = Change::Retrying { class, code: None, run_at: AT };
        let note = FailureNote { class, decided_by, code: Some("E".to_owned()), message: message.to_owned() };
        let failed = changed("b", change, Some(Status::Executing), Status::Scheduled);
        Committed { failure: Some(Arc::new(note)), ..failed }
    }

    fn poisoned() -> Committed {
        let (reason, class) = (EndReason::PoisonPill, Some(ErrorClass::WorkerLost));
        let change = Change::DeadLettered { reason, class, code: None, crashes: 3, note: None };
        changed("b", change, Some(Status::Executing), Status::DeadLetter)
    }

    fn submitted(task_type: &str) -> Committed {
        changed(task_type, Change::Submitted { status: Status::Queued, run_at: AT }, None, Status::Queued)
    }

    fn completed(attempt: u32) -> Committed {
        let completed = changed("a", Change::Completed, Some(Status::Executing), Status::Completed);
        Committed { attempt, ..completed }
    }

    fn told(changes: &[Committed]) -> Vec<Fact> {
        decode(&encode(changes), AT).expect("readable")
    }

    #[test]
    fn what_is_told_is_heard() {
        let changes = [
            submitted("a"),
            claimed(Duration::from_micros(1_234_567)),
            completed(3),
            failed(ErrorClass::CodeBug, DecidedBy::Rule(9), "no field"),
            poisoned(),
            changed("c", Change::Cancelled { note: None }, Some(Status::Queued), Status::Cancelled),
        ];
        assert_eq!(told(&changes), changes.iter().map(Fact::of).collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_counts_is_not_told() {
        let due = changed("a", Change::Due, Some(Status::Scheduled), Status::Queued);
        let released = changed("a", Change::Released, Some(Status::Executing), Status::Queued);
        assert_eq!(encode(&[due, released]), Vec::<u8>::new());
        assert_eq!(told(&[]), []);
    }

    #[test]
    fn changes_that_are_alike_take_little_room() {
        let submits = vec![submitted("send_email"); 1_000];
        assert!(encode(&submits).len() <= 20, "{}", encode(&submits).len());
        assert_eq!(told(&submits), [Fact { count: 1_000, ..Fact::of(&submits[0]) }]);
        let claims: Vec<_> = (1..=1_000).map(|n| claimed(Duration::from_millis(n))).collect();
        assert!(encode(&claims).len() <= 3_020, "{}", encode(&claims).len());
        assert_eq!(told(&claims), claims.iter().map(Fact::of).collect::<Vec<_>>());
    }

    #[test]
    fn failures_of_one_cause_are_told_once_with_the_last_message() {
        let unknown = |message: &str| failed(ErrorClass::Unknown, DecidedBy::Nobody, message);
        let changes = [unknown("user 1 is gone"), unknown("it is late"), unknown("user 2 is gone")];
        let expected = [Fact::of(&changes[1]), Fact { count: 2, ..Fact::of(&changes[2]) }];
        assert_eq!(told(&changes), expected, "in the order of the last of each");
        let long = told(&[unknown(&"x".repeat(9_000))]);
        assert_eq!(long[0].failure.as_ref().map(|note| note.message.len()), Some(MESSAGE_BYTES));
        // What has its rule needs nobody: its message stays where it is.
        assert_eq!(told(&[failed(ErrorClass::Transient, DecidedBy::BuiltIn, "busy")])[0].failure, None);
    }

    #[test]
    fn a_form_that_is_not_known_is_left_out() {
        let mut bytes = encode(&[submitted("a")]);
        bytes[0] = FORM + 1;
        assert_eq!(decode(&bytes, AT), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_without_a_panic(mut bytes: Vec<u8>) {
            bytes.insert(0, FORM);
            let _ = decode(&bytes, AT);
        }

        #[test]
        fn every_change_is_counted_once(kinds in prop::collection::vec((0..5_u8, 1..4_u32), 0..200)) {
            let changes: Vec<Committed> = kinds.iter().map(|(kind, number)| match kind {
                0 => submitted(["a", "b", "c"][*number as usize - 1]),
                1 => claimed(Duration::from_millis(u64::from(*number))),
                2 => completed(*number),
                3 => failed(ErrorClass::Unknown, DecidedBy::Nobody, &format!("user {number} is gone")),
                _ => poisoned(),
            }).collect();
            let facts = told(&changes);
            let count = |facts: &[Fact], alike: &dyn Fn(&Fact) -> bool| -> u64 {
                facts.iter().filter(|fact| alike(fact)).map(|fact| fact.count).sum()
            };
            let all: Vec<Fact> = changes.iter().map(Fact::of).collect();
            for fact in &all {
                let alike = |other: &Fact| other.happened == fact.happened && other.attempts == fact.attempts
                    && other.task_type == fact.task_type;
                prop_assert_eq!(count(&facts, &alike), count(&all, &alike));
            }
            prop_assert_eq!(count(&facts, &|_| true), all.len() as u64);
        }
    }
}
