//! The state machine: what each trigger does to a task in each status. This is the whole
//! table; stores apply its rows and decide nothing. `docs/state-machine.md` is generated
//! from it.

use crate::status::Status;

/// What happens to a task after it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The last of the tasks it waited for is done.
    Unblock,
    /// Its time has come.
    Due,
    /// A worker takes it.
    Claim,
    /// The handler succeeded.
    Complete,
    /// The attempt failed or timed out and a retry is left.
    FailRetry,
    /// The attempt failed or timed out for good and the policy asks for a dead letter.
    FailDead,
    /// The attempt failed or timed out for good and the policy wants no dead letter.
    FailQuietly,
    /// The worker gives it back unworked.
    Release,
    /// The handler says: not now, again later.
    Snooze,
    /// The lease lapsed and the task may crash again.
    LapseRetry,
    /// The lease lapsed for the last time it may.
    LapseDead,
    /// The lease lapsed for the last time and the policy wants no dead letter.
    LapseQuietly,
    /// Somebody cancels it.
    Cancel,
    /// `expires_at` passed before it started.
    Expire,
    /// A person wants a waiting task to run now.
    RunNow,
    /// A person wants an ended task to run again.
    Replay,
    /// A person wants an ended task to run again, in a while.
    ReplayLater,
    /// A person takes a waiting task out of the flow.
    Bury,
    /// A person gives a dead letter up.
    Discard,
    /// A person changes priority, time or tags of a waiting task.
    Amend,
}

impl Trigger {
    /// All triggers.
    pub const ALL: [Self; 20] = [
        Self::Unblock,
        Self::Due,
        Self::Claim,
        Self::Complete,
        Self::FailRetry,
        Self::FailDead,
        Self::FailQuietly,
        Self::Release,
        Self::Snooze,
        Self::LapseRetry,
        Self::LapseDead,
        Self::LapseQuietly,
        Self::Cancel,
        Self::Expire,
        Self::RunNow,
        Self::Replay,
        Self::ReplayLater,
        Self::Bury,
        Self::Discard,
        Self::Amend,
    ];

    /// The name in documents and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unblock => "unblock",
            Self::Due => "due",
            Self::Claim => "claim",
            Self::Complete => "complete",
            Self::FailRetry => "fail, retry left",
            Self::FailDead => "fail for good",
            Self::FailQuietly => "fail for good, no dead letter",
            Self::Release => "release",
            Self::Snooze => "snooze",
            Self::LapseRetry => "lease lapsed",
            Self::LapseDead => "lease lapsed, poison pill",
            Self::LapseQuietly => "lease lapsed, poison pill, no dead letter",
            Self::Cancel => "cancel",
            Self::Expire => "expire",
            Self::RunNow => "run now",
            Self::Replay => "replay",
            Self::ReplayLater => "replay, paced",
            Self::Bury => "dead-letter by hand",
            Self::Discard => "discard",
            Self::Amend => "amend",
        }
    }
}

/// What happens to a counter of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Stays.
    Keep,
    /// One more.
    Up,
    /// One less: the attempt did not count.
    Down,
    /// Back to zero, unless a person asks otherwise.
    Reset,
}

impl Count {
    /// The counter after the change.
    pub fn apply(self, value: u32) -> u32 {
        match self {
            Self::Keep => value,
            Self::Up => value.saturating_add(1),
            Self::Down => value.saturating_sub(1),
            Self::Reset => 0,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "=",
            Self::Up => "+1",
            Self::Down => "-1",
            Self::Reset => "0",
        }
    }
}

/// What happens to the task's place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It stands where it stood.
    Keep,
    /// It stands in no line.
    Leaves,
    /// At the back: `ready_at` is now.
    JoinsNow,
    /// At the time it was due.
    JoinsAtDueTime,
    /// At its old `ready_at`.
    Returns,
    /// Waits for a delay and then joins at that time.
    WaitsThenJoins,
    /// Waits for a delay and then stands at its old `ready_at`.
    WaitsThenReturns,
    /// Its lane or its time is changed by a person; `ready_at` stays.
    Moves,
}

impl Place {
    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "=",
            Self::Leaves => "leaves",
            Self::JoinsNow => "joins now",
            Self::JoinsAtDueTime => "joins at its due time (after a lost worker at its old place)",
            Self::Returns => "back to its old place",
            Self::WaitsThenJoins => "waits, then joins anew",
            Self::WaitsThenReturns => "waits, then its old place",
            Self::Moves => "new lane or time, same `ready_at`",
        }
    }
}

/// What happens to the task's turn in the line of its ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderingKey {
    /// Stays as it is.
    Keep,
    /// Joins the line if it has not.
    Joins,
    /// Joins at the back.
    JoinsAtBack,
    /// Kept while it waits, or stepped back, as the task asked.
    BlocksOrSkips,
    /// Passes the turn to the next.
    PassesOn,
    /// Held until the worker acknowledges or its lease ends, then passed on.
    PassesOnWhenLeaseEnds,
}

impl OrderingKey {
    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "=",
            Self::Joins => "joins if it has not",
            Self::JoinsAtBack => "joins at the back",
            Self::BlocksOrSkips => "kept (`block`) or stepped back (`skip`)",
            Self::PassesOn => "passes on",
            Self::PassesOnWhenLeaseEnds => "passes on when the worker acknowledges or the lease ends",
        }
    }
}

/// What happens to the running slot of limits and concurrency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// There is none.
    None,
    /// Taken.
    Taken,
    /// Given back.
    Freed,
    /// Given back when the worker acknowledges or its lease ends.
    FreedWhenLeaseEnds,
}

impl Slot {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "–",
            Self::Taken => "taken",
            Self::Freed => "freed",
            Self::FreedWhenLeaseEnds => "freed when the worker acknowledges or the lease ends",
        }
    }
}

/// What happens to the unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueKey {
    /// Stays.
    Keep,
    /// Given back.
    Freed,
    /// Taken again; a conflict refuses the trigger.
    TakenAgain,
}

impl UniqueKey {
    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "=",
            Self::Freed => "freed",
            Self::TakenAgain => "taken again",
        }
    }
}

/// What groups, runs and waiters are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It was cancelled.
    Cancelled,
}

impl Told {
    fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One row of the table: everything that a trigger changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The status afterwards.
    pub to: Status,
    /// Attempts.
    pub attempt: Count,
    /// Retries used up.
    pub retries: Count,
    /// Crashes.
    pub crashes: Count,
    /// Place in the line.
    pub place: Place,
    /// Ordering key.
    pub ordering: OrderingKey,
    /// Running slot.
    pub slot: Slot,
    /// Unique key.
    pub unique: UniqueKey,
    /// Groups, runs and waiters.
    pub told: Told,
}

/// The trigger does not apply to a task in this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' does not apply to a task that is {from}", trigger.as_str())]
pub struct Illegal {
    /// Where the task stands.
    pub from: Status,
    /// What was tried.
    pub trigger: Trigger,
}

/// A row that changes nothing but the status; every rule below names what differs.
const fn stays(to: Status) -> Effect {
    Effect {
        to,
        attempt: Count::Keep,
        retries: Count::Keep,
        crashes: Count::Keep,
        place: Place::Keep,
        ordering: OrderingKey::Keep,
        slot: Slot::None,
        unique: UniqueKey::Keep,
        told: Told::Nothing,
    }
}

/// A row by which the task ends.
const fn ends(to: Status, slot: Slot, told: Told) -> Effect {
    Effect { place: Place::Leaves, ordering: OrderingKey::PassesOn, slot, unique: UniqueKey::Freed, told, ..stays(to) }
}

/// What `trigger` does to a task that is `from`.
pub fn transition(from: Status, trigger: Trigger) -> Result<Effect, Illegal> {
    use Status::{Blocked, Cancelled, Completed, DeadLetter, Executing, Failed, Queued, Scheduled};
    use Trigger as T;

    let illegal = Err(Illegal { from, trigger });
    match from {
        Blocked => match trigger {
            T::Unblock => Ok(Effect { place: Place::JoinsNow, ordering: OrderingKey::Joins, ..stays(Queued) }),
            T::Cancel => Ok(ends(Cancelled, Slot::None, Told::Cancelled)),
            T::Expire => Ok(ends(Failed, Slot::None, Told::Failure)),
            T::Bury => Ok(ends(DeadLetter, Slot::None, Told::Failure)),
            T::Amend => Ok(Effect { place: Place::Moves, ..stays(Blocked) }),
            T::Due
            | T::Claim
            | T::Complete
            | T::FailRetry
            | T::FailDead
            | T::FailQuietly
            | T::Release
            | T::Snooze
            | T::LapseRetry
            | T::LapseDead
            | T::LapseQuietly
            | T::RunNow
            | T::Replay
            | T::ReplayLater
            | T::Discard => illegal,
        },
        Scheduled => match trigger {
            T::Due => Ok(Effect { place: Place::JoinsAtDueTime, ordering: OrderingKey::Joins, ..stays(Queued) }),
            T::RunNow => Ok(Effect { place: Place::JoinsNow, ordering: OrderingKey::Joins, ..stays(Queued) }),
            T::Cancel => Ok(ends(Cancelled, Slot::None, Told::Cancelled)),
            T::Expire => Ok(ends(Failed, Slot::None, Told::Failure)),
            T::Bury => Ok(ends(DeadLetter, Slot::None, Told::Failure)),
            T::Amend => Ok(Effect { place: Place::Moves, ..stays(Scheduled) }),
            T::Unblock
            | T::Claim
            | T::Complete
            | T::FailRetry
            | T::FailDead
            | T::FailQuietly
            | T::Release
            | T::Snooze
            | T::LapseRetry
            | T::LapseDead
            | T::LapseQuietly
            | T::Replay
            | T::ReplayLater
            | T::Discard => illegal,
        },
        Queued => match trigger {
            T::Claim => Ok(Effect { attempt: Count::Up, place: Place::Leaves, slot: Slot::Taken, ..stays(Executing) }),
            T::Cancel => Ok(ends(Cancelled, Slot::None, Told::Cancelled)),
            T::Expire => Ok(ends(Failed, Slot::None, Told::Failure)),
            T::Bury => Ok(ends(DeadLetter, Slot::None, Told::Failure)),
            T::Amend => Ok(Effect { place: Place::Moves, ..stays(Queued) }),
            T::Unblock
            | T::Due
            | T::Complete
            | T::FailRetry
            | T::FailDead
            | T::FailQuietly
            | T::Release
            | T::Snooze
            | T::LapseRetry
            | T::LapseDead
            | T::LapseQuietly
            | T::RunNow
            | T::Replay
            | T::ReplayLater
            | T::Discard => illegal,
        },
        Executing => match trigger {
            T::Complete => Ok(ends(Completed, Slot::Freed, Told::Success)),
            T::FailRetry => Ok(Effect {
                retries: Count::Up,
                place: Place::WaitsThenJoins,
                ordering: OrderingKey::BlocksOrSkips,
                slot: Slot::Freed,
                ..stays(Scheduled)
            }),
            T::FailDead => Ok(ends(DeadLetter, Slot::Freed, Told::Failure)),
            T::FailQuietly => Ok(ends(Failed, Slot::Freed, Told::Failure)),
            T::Release => {
                Ok(Effect { attempt: Count::Down, place: Place::Returns, slot: Slot::Freed, ..stays(Queued) })
            }
            T::Snooze => Ok(Effect {
                attempt: Count::Down,
                place: Place::WaitsThenJoins,
                ordering: OrderingKey::BlocksOrSkips,
                slot: Slot::Freed,
                ..stays(Scheduled)
            }),
            T::LapseRetry => {
                Ok(Effect { crashes: Count::Up, place: Place::WaitsThenReturns, slot: Slot::Freed, ..stays(Scheduled) })
            }
            T::LapseDead => Ok(Effect { crashes: Count::Up, ..ends(DeadLetter, Slot::Freed, Told::Failure) }),
            T::LapseQuietly => Ok(Effect { crashes: Count::Up, ..ends(Failed, Slot::Freed, Told::Failure) }),
            T::Cancel => Ok(Effect {
                ordering: OrderingKey::PassesOnWhenLeaseEnds,
                ..ends(Cancelled, Slot::FreedWhenLeaseEnds, Told::Cancelled)
            }),
            T::Unblock
            | T::Due
            | T::Claim
            | T::Expire
            | T::RunNow
            | T::Replay
            | T::ReplayLater
            | T::Bury
            | T::Discard
            | T::Amend => illegal,
        },
        DeadLetter | Failed => match trigger {
            T::Replay => Ok(Effect {
                retries: Count::Reset,
                crashes: Count::Reset,
                place: Place::JoinsNow,
                ordering: OrderingKey::JoinsAtBack,
                unique: UniqueKey::TakenAgain,
                ..stays(Queued)
            }),
            // It joins the line of its key when it is due, as any delayed task.
            T::ReplayLater => Ok(Effect {
                retries: Count::Reset,
                crashes: Count::Reset,
                place: Place::WaitsThenJoins,
                unique: UniqueKey::TakenAgain,
                ..stays(Scheduled)
            }),
            T::Discard if from == DeadLetter => Ok(stays(Failed)),
            T::Unblock
            | T::Due
            | T::Claim
            | T::Complete
            | T::FailRetry
            | T::FailDead
            | T::FailQuietly
            | T::Release
            | T::Snooze
            | T::LapseRetry
            | T::LapseDead
            | T::LapseQuietly
            | T::Cancel
            | T::Expire
            | T::RunNow
            | T::Bury
            | T::Discard
            | T::Amend => illegal,
        },
        // Success and a person's decision are final: nothing leads out but retention.
        Completed | Cancelled => illegal,
    }
}

/// The whole table as Markdown, for `docs/state-machine.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# What each transition does\n\n\
         Generated from `crates/core/src/transition.rs`; `make docs` writes it anew and a test compares it.\n\
         `=` stays, `+1` is counted, `–` there is none. A pair that is not listed is refused and changes nothing.\n\n\
         | from | trigger | to | attempt | retries | crashes | place in line | ordering key | running slot | unique key | group, run, waiters |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut refused = String::new();
    for from in Status::ALL {
        let mut names = Vec::new();
        for trigger in Trigger::ALL {
            match transition(from, trigger) {
                Ok(effect) => {
                    let cells = [
                        from.as_str(),
                        trigger.as_str(),
                        effect.to.as_str(),
                        effect.attempt.as_str(),
                        effect.retries.as_str(),
                        effect.crashes.as_str(),
                        effect.place.as_str(),
                        effect.ordering.as_str(),
                        effect.slot.as_str(),
                        effect.unique.as_str(),
                        effect.told.as_str(),
                    ];
                    text.push_str("| ");
                    text.push_str(&cells.join(" | "));
                    text.push_str(" |\n");
                }
                Err(Illegal { .. }) => names.push(trigger.as_str()),
            }
        }
        refused.push_str(&format!("- `{from}`: {}\n", names.join("; ")));
    }
    text.push_str("\nRefused:\n\n");
    text.push_str(&refused);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_either_legal_or_named_as_illegal() {
        let mut legal = 0;
        for from in Status::ALL {
            for trigger in Trigger::ALL {
                match transition(from, trigger) {
                    Ok(_) => legal += 1,
                    Err(illegal) => assert_eq!(illegal, Illegal { from, trigger }),
                }
            }
        }
        assert_eq!(legal, 31, "a new legal pair needs its row in the conformance suite");
    }

    #[test]
    fn whatever_ends_gives_everything_back_and_tells() {
        for from in Status::ALL {
            for trigger in Trigger::ALL {
                let Ok(effect) = transition(from, trigger) else { continue };
                if effect.to.is_ended() && !from.is_ended() {
                    assert_eq!(effect.unique, UniqueKey::Freed, "{from} {trigger:?}");
                    assert_ne!(effect.told, Told::Nothing, "{from} {trigger:?}");
                    assert_eq!(effect.place, Place::Leaves, "{from} {trigger:?}");
                }
                if from == Status::Executing {
                    assert!(matches!(effect.slot, Slot::Freed | Slot::FreedWhenLeaseEnds), "{trigger:?}");
                }
            }
        }
    }

    #[test]
    fn only_claims_count_attempts_and_only_failures_use_up_retries() {
        for from in Status::ALL {
            for trigger in Trigger::ALL {
                let Ok(effect) = transition(from, trigger) else { continue };
                assert_eq!(effect.attempt == Count::Up, trigger == Trigger::Claim);
                assert_eq!(effect.retries == Count::Up, trigger == Trigger::FailRetry);
            }
        }
    }

    #[test]
    fn the_document_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/state-machine.md");
        if std::env::var_os("WINDLASS_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("docs can be written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, markdown(), "docs/state-machine.md is stale: run `make docs`");
    }
}
