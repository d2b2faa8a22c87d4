//! How tasks ended lately, by type, in slots of a quarter of an hour: what the retry
//! statistics and the findings are made of. Fed by what nodes commit, never by counting rows;
//! begins with the start of the process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::FailureNote;
use windlass_core::fact::{Fact, Happened};
use windlass_core::failure::ErrorClass;
use windlass_core::ids::TaskId;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::recent::Window;

const SLOT_SECONDS: i64 = 15 * 60;
/// How far back one can look.
pub const LONGEST: Duration = Duration::from_hours(7 * 24);
/// Slots within the longest window, the current one included.
const SLOTS: usize = LONGEST.as_secs() as usize / SLOT_SECONDS as usize + 1;
/// How long poison pills stay a finding.
const POISON_WINDOW: Duration = Duration::from_hours(24);
/// How long broken handlers and unclassified errors stay a finding.
const TROUBLE_WINDOW: Duration = Duration::from_hours(1);
/// The trend: ten slots of half a minute.
const TREND_SLOTS: usize = 10;
const TREND_SLOT_SECONDS: i64 = 30;

/// Counts of tasks of one type over a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tasks that completed.
    pub succeeded: u64,
    /// Tasks that ran and ended as failed.
    pub failed: u64,
    /// Tasks that ran and ended as dead letters.
    pub dead_lettered: u64,
    /// Retries that were scheduled.
    pub retried: u64,
    /// Attempts of all tasks that ended.
    pub attempts: u64,
    /// Tasks that ended after more than one attempt.
    pub ended_after_retry: u64,
    /// Those of them that completed.
    pub succeeded_after_retry: u64,
    /// Tasks given up because they took their workers down.
    pub poison_pills: u64,
    /// Attempts that failed in a broken handler.
    pub code_bugs: u64,
    /// Attempts whose failure nothing put in a class.
    pub unclassified: u64,
}

impl Tally {
    /// Tasks that ended by running.
    pub fn total(&self) -> u64 {
        self.succeeded + self.failed + self.dead_lettered
    }

    /// Attempts per task that ended.
    pub fn average_attempts(&self) -> Option<f64> {
        ratio(self.attempts, self.total())
    }

    /// The share of tasks tried more than once that succeeded in the end.
    pub fn success_after_retry_ratio(&self) -> Option<f64> {
        ratio(self.succeeded_after_retry, self.ended_after_retry)
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.dead_lettered += other.dead_lettered;
        self.retried += other.retried;
        self.attempts += other.attempts;
        self.ended_after_retry += other.ended_after_retry;
        self.succeeded_after_retry += other.succeeded_after_retry;
        self.poison_pills += other.poison_pills;
        self.code_bugs += other.code_bugs;
        self.unclassified += other.unclassified;
    }

    fn count_ends(&mut self, fact: &Fact) {
        let slot = match fact.to {
            Status::Completed => &mut self.succeeded,
            Status::Failed => &mut self.failed,
            Status::DeadLetter => &mut self.dead_lettered,
            Status::Blocked | Status::Scheduled | Status::Queued | Status::Executing | Status::Cancelled => return,
        };
        *slot += fact.count;
        self.attempts += u64::from(fact.attempts) * fact.count;
        if fact.attempts > 1 {
            self.ended_after_retry += fact.count;
            self.succeeded_after_retry += if fact.to == Status::Completed { fact.count } else { 0 };
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64 * 1e4).round() / 1e4)
}

/// What one type went through. Slots in which nothing happened take no room.
#[derive(Clone, Debug, Default)]
struct TypeOutcomes {
    slots: VecDeque<(i64, Tally)>,
    poison_pill: Option<Latest<TaskId>>,
    code_bug: Option<Latest<Arc<FailureNote>>>,
    unclassified: Option<Latest<Arc<FailureNote>>>,
}

/// The last of something that goes wrong, and when that began after a time without it.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest<T> {
    /// The last.
    pub last: T,
    /// When the first of them was.
    pub since: Timestamp,
}

impl<T> Latest<T> {
    /// Takes another; `before` is how many there were lately.
    fn note(latest: &mut Option<Self>, last: T, before: u64, at: Timestamp) {
        let since = latest.as_ref().filter(|_| before > 0).map_or(at, |latest| latest.since);
        *latest = Some(Self { last, since });
    }
}

fn slot_number(at: Timestamp) -> i64 {
    at.as_micros() / 1_000_000 / SLOT_SECONDS
}

impl TypeOutcomes {
    fn slot(&mut self, at: Timestamp) -> &mut Tally {
        let number = slot_number(at);
        if self.slots.back().is_none_or(|(latest, _)| *latest < number) {
            self.slots.push_back((number, Tally::default()));
            while self.slots.front().is_some_and(|(oldest, _)| *oldest <= number - SLOTS as i64) {
                self.slots.pop_front();
            }
        }
        let latest = self.slots.len() - 1;
        &mut self.slots[latest].1
    }

    /// Counts of the window and of the rest of the slot it begins in.
    fn tally(&self, window: Duration, now: Timestamp) -> Tally {
        let first = slot_number(now - window);
        let mut sum = Tally::default();
        self.slots.iter().rev().take_while(|(number, _)| *number >= first).for_each(|(_, tally)| sum.add(tally));
        sum
    }
}

/// Tasks that came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trend {
    /// Tasks submitted or replayed.
    pub entered: u64,
    /// Tasks that ended.
    pub left: u64,
    /// Over how many seconds.
    pub seconds: u64,
}

/// What went wrong with one type lately.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    /// Poison pills of the last day.
    pub poison_pills: u64,
    /// The last of them.
    pub poison_pill: Option<Latest<TaskId>>,
    /// Failures in a broken handler in the last hour.
    pub code_bugs: u64,
    /// What was said of the last.
    pub code_bug: Option<Latest<Arc<FailureNote>>>,
    /// Failures of the last hour that nothing put in a class.
    pub unclassified: u64,
    /// What was said of the last.
    pub unclassified_error: Option<Latest<Arc<FailureNote>>>,
}

/// How tasks of all types ended lately.
pub struct Outcomes {
    /// By the type's label, of which there are not many.
    types: HashMap<String, TypeOutcomes>,
    trend: Window<Trend>,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { types: HashMap::new(), trend: Window::new(TREND_SLOTS, TREND_SLOT_SECONDS) }
    }
}

impl Outcomes {
    /// Counts changes of tasks whose type has this label.
    pub fn count(&mut self, label: &str, fact: &Fact) {
        let (entered, left) = fact.entered_and_left();
        if entered + left > 0 {
            let trend = self.trend.slot(fact.at);
            trend.entered += entered;
            trend.left += left;
        }
        // Most changes are claims and the like, which end nothing.
        if fact.from != Some(Status::Executing) {
            return;
        }
        // Twice looked up, so that a known type costs no copy of its name.
        if !self.types.contains_key(label) {
            self.types.insert(label.to_owned(), TypeOutcomes::default());
        }
        if let Some(outcomes) = self.types.get_mut(label) {
            outcomes.count_attempts(fact);
        }
    }

    /// Counts of a window, by type.
    pub fn tallies(&self, window: Duration, now: Timestamp) -> BTreeMap<String, Tally> {
        let tallies = self.types.iter().map(|(label, outcomes)| (label.clone(), outcomes.tally(window, now)));
        tallies.filter(|(_, tally)| *tally != Tally::default()).collect()
    }

    /// Types in trouble.
    pub fn troubles(&self, now: Timestamp) -> BTreeMap<String, Trouble> {
        let troubles = self.types.iter().map(|(label, outcomes)| (label.clone(), outcomes.trouble(now)));
        troubles.filter(|(_, trouble)| trouble.poison_pills + trouble.code_bugs + trouble.unclassified > 0).collect()
    }

    /// What came and went in the last minutes.
    pub fn trend(&self, now: Timestamp) -> Trend {
        let start = Trend { seconds: TREND_SLOTS as u64 * TREND_SLOT_SECONDS as u64, ..Trend::default() };
        self.trend.recent(now).fold(start, |sum, slot| Trend {
            entered: sum.entered + slot.entered,
            left: sum.left + slot.left,
            ..sum
        })
    }
}

impl TypeOutcomes {
    /// Counts ends of attempts.
    fn count_attempts(&mut self, fact: &Fact) {
        let tally = self.slot(fact.at);
        tally.count_ends(fact);
        match fact.happened {
            Happened::Retried(_) => tally.retried += fact.count,
            Happened::Poisoned(_, task) => {
                let before = self.tally(POISON_WINDOW, fact.at).poison_pills;
                self.slot(fact.at).poison_pills += fact.count;
                Latest::note(&mut self.poison_pill, task, before, fact.at);
            }
            Happened::Submitted
            | Happened::Claimed { .. }
            | Happened::Completed
            | Happened::Failed(_)
            | Happened::Other => {}
        }
        if let Some(failure) = &fact.failure {
            self.count_failures(failure, fact);
        }
    }

    fn count_failures(&mut self, failure: &Arc<FailureNote>, fact: &Fact) {
        let before = self.tally(TROUBLE_WINDOW, fact.at);
        match failure.class {
            ErrorClass::CodeBug => {
                self.slot(fact.at).code_bugs += fact.count;
                Latest::note(&mut self.code_bug, Arc::clone(failure), before.code_bugs, fact.at);
            }
            ErrorClass::Unknown => {
                self.slot(fact.at).unclassified += fact.count;
                Latest::note(&mut self.unclassified, Arc::clone(failure), before.unclassified, fact.at);
            }
            ErrorClass::Transient
            | ErrorClass::RateLimited
            | ErrorClass::Timeout
            | ErrorClass::Resource
            | ErrorClass::Permanent
            | ErrorClass::WorkerLost => {}
        }
    }

    fn trouble(&self, now: Timestamp) -> Trouble {
        let lately = self.tally(TROUBLE_WINDOW, now);
        Trouble {
            poison_pills: self.tally(POISON_WINDOW, now).poison_pills,
            poison_pill: self.poison_pill.clone(),
            code_bugs: lately.code_bugs,
            code_bug: self.code_bug.clone(),
            unclassified: lately.unclassified,
            unclassified_error: self.unclassified.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::actor::Actor;
    use windlass_core::event::{Change, Committed, Event};
    use windlass_core::failure::{DecidedBy, EndReason};
    use windlass_core::ids::{IdCodec, TaskKey};
    use windlass_core::lane::LaneKey;
    use windlass_core::names::{CapabilitySet, QueueName, TaskType};
    use windlass_core::priority::Priority;

    use super::*;

    fn minute(number: i64) -> Timestamp {
        Timestamp::from_micros((1_000_000 + number) * 60_000_000)
    }

    fn committed(change: Change, from: Option<Status>, to: Status, attempt: u32, at: Timestamp) -> Committed {
        let lane = LaneKey {
            queue: QueueName::default(),
            task_type: TaskType::new("t").expect("a name"),
            capabilities: CapabilitySet::default(),
            priority: Priority::MEDIUM,
            tenant: None,
        };
        let task_id = IdCodec::new([1; 16]).task_id(TaskKey(1), at);
        Committed {
            event: Event { task_id, version: 1, at, actor: Actor::System, change },
            lane: Arc::new(lane),
            from,
            to,
            waited: None,
            ahead_of: None,
            ran: None,
            age: Duration::ZERO,
            attempt,
            failure: None,
        }
    }

    fn completed(attempt: u32, at: Timestamp) -> Committed {
        committed(Change::Completed, Some(Status::Executing), Status::Completed, attempt, at)
    }

    fn dead(reason: EndReason, from: Status, at: Timestamp) -> Committed {
        let change = Change::DeadLettered { reason, class: None, code: None, crashes: 0, note: None };
        committed(change, Some(from), Status::DeadLetter, 3, at)
    }

    #[test]
    fn what_ended_by_running_is_counted() {
        let mut outcomes = Outcomes::default();
        let retrying = Change::Retrying { class: ErrorClass::Transient, code: None, run_at: minute(1) };
        for change in [
            completed(1, minute(0)),
            completed(2, minute(0)),
            committed(retrying, Some(Status::Executing), Status::Scheduled, 1, minute(0)),
            dead(EndReason::MaxRetries, Status::Executing, minute(0)),
            dead(EndReason::RejectedByOperator, Status::Queued, minute(0)),
            committed(Change::Discarded { note: None }, Some(Status::DeadLetter), Status::Failed, 3, minute(0)),
        ] {
            outcomes.count("t", &Fact::of(&change));
        }
        let tally = outcomes.tallies(Duration::from_mins(15), minute(1))["t"];
        assert_eq!((tally.total(), tally.succeeded, tally.failed, tally.dead_lettered, tally.retried), (3, 2, 0, 1, 1));
        assert_eq!((tally.average_attempts(), tally.success_after_retry_ratio()), (Some(2.0), Some(0.5)));
        assert_eq!(Tally::default().average_attempts(), None);
    }

    #[test]
    fn windows_slide() {
        let mut outcomes = Outcomes::default();
        outcomes.count("t", &Fact::of(&completed(1, minute(0))));
        outcomes.count("t", &Fact::of(&completed(1, minute(60))));
        let total = |outcomes: &Outcomes, minutes, at| {
            outcomes.tallies(Duration::from_mins(minutes), minute(at)).get("t").map_or(0, Tally::total)
        };
        assert_eq!((total(&outcomes, 15, 60), total(&outcomes, 120, 60)), (1, 2));
        assert_eq!(total(&outcomes, 7 * 24 * 60, 8 * 24 * 60), 0);
        outcomes.count("t", &Fact::of(&completed(1, minute(8 * 24 * 60))));
        assert_eq!(outcomes.types["t"].slots.len(), 1);
    }

    #[test]
    fn troubles_are_remembered_for_a_while() {
        let mut outcomes = Outcomes::default();
        outcomes.count("t", &Fact::of(&dead(EndReason::PoisonPill, Status::Executing, minute(0))));
        let mut broken = dead(EndReason::PermanentError, Status::Executing, minute(0));
        let note = |class| FailureNote { class, decided_by: DecidedBy::Nobody, code: None, message: "odd".to_owned() };
        broken.failure = Some(Arc::new(note(ErrorClass::CodeBug)));
        outcomes.count("t", &Fact::of(&broken));
        broken.failure = Some(Arc::new(note(ErrorClass::Unknown)));
        outcomes.count("t", &Fact::of(&broken));
        let trouble = outcomes.troubles(minute(1)).remove("t").expect("trouble");
        assert_eq!((trouble.poison_pills, trouble.code_bugs, trouble.unclassified), (1, 1, 1));
        assert_eq!(
            trouble.code_bug.map(|bug| (bug.last.message.clone(), bug.since)),
            Some(("odd".to_owned(), minute(0)))
        );
        let later = outcomes.troubles(minute(120)).remove("t").expect("trouble");
        assert_eq!((later.poison_pills, later.code_bugs), (1, 0));
        assert!(outcomes.troubles(minute(26 * 60)).is_empty());
    }

    #[test]
    fn the_trend_counts_who_comes_and_goes() {
        let mut outcomes = Outcomes::default();
        let submitted = Change::Submitted { status: Status::Queued, run_at: minute(0) };
        outcomes.count("t", &Fact::of(&committed(submitted.clone(), None, Status::Queued, 0, minute(0))));
        outcomes.count("t", &Fact::of(&committed(submitted, None, Status::Queued, 0, minute(0))));
        outcomes.count("t", &Fact::of(&completed(1, minute(1))));
        let discarded = Change::Discarded { note: None };
        outcomes.count("t", &Fact::of(&committed(discarded, Some(Status::DeadLetter), Status::Failed, 3, minute(1))));
        assert_eq!(outcomes.trend(minute(1)), Trend { entered: 2, left: 1, seconds: 300 });
    }
}
