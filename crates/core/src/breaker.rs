//! Breakers: what keeps failing is left alone for a while, then tried once.
//!
//! Pure state: a store keeps the [`Record`], the figures of the window live in memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::ErrorClass;
use crate::ids::{ClaimNo, WorkerId};
use crate::names::TaskType;
use crate::time::Timestamp;

/// When a type's breaker opens and how long it stays open.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerSettings {
    /// Fewer attempts than this in the window say nothing.
    pub min_attempts: u32,
    /// It opens when more than this share of them failed.
    pub failure_ratio: f64,
    /// How far back attempts count.
    pub window_seconds: f64,
    /// How long it stays open before one task is tried.
    pub recovery_seconds: f64,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { min_attempts: 20, failure_ratio: 0.8, window_seconds: 300.0, recovery_seconds: 60.0 }
    }
}

impl BreakerSettings {
    /// Checks the bounds that types alone cannot.
    pub fn validate(&self) -> Result<(), &'static str> {
        if !(1..=100_000).contains(&self.min_attempts) {
            return Err("min_attempts must be from 1 to 100000");
        }
        if !(self.failure_ratio > 0.0 && self.failure_ratio <= 1.0) {
            return Err("failure_ratio must be more than 0 and at most 1");
        }
        if !(1.0..=86_400.0).contains(&self.window_seconds) {
            return Err("window_seconds must be from 1 to 86400");
        }
        if !(0.1..=86_400.0).contains(&self.recovery_seconds) {
            return Err("recovery_seconds must be from 0.1 to 86400");
        }
        Ok(())
    }

    /// How long it stays open.
    pub fn recovery(&self) -> Duration {
        Duration::from_secs_f64(self.recovery_seconds)
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.window_seconds)
    }
}

/// What a breaker guards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "scope", content = "name")]
pub enum Scope {
    /// A task type.
    Type(TaskType),
    /// A worker.
    Worker(WorkerId),
}

impl Scope {
    /// The kind, as on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Type(_) => "type",
            Self::Worker(_) => "worker",
        }
    }

    /// The name, as on the wire.
    pub fn name(&self) -> String {
        match self {
            Self::Type(task_type) => task_type.to_string(),
            Self::Worker(worker) => worker.to_string(),
        }
    }
}

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Work flows.
    Closed,
    /// One task is tried.
    HalfOpen,
    /// Nothing passes.
    Open,
}

impl State {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// What a person decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forced {
    /// Nothing passes until a person says otherwise.
    Open,
    /// It never opens until a person says otherwise.
    Closed,
}

/// Since when and until when a breaker is open by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Since when it has not been closed.
    pub since: Timestamp,
    /// When one task is tried.
    pub until: Timestamp,
    /// Why, for a person.
    pub reason: String,
}

/// What is kept of a breaker over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What a person decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<Forced>,
    /// When the person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_at: Option<Timestamp>,
    /// Set while it is open or half open by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<Opened>,
    /// It has closed, and dead letters of the outage are to be replayed by a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_since: Option<Timestamp>,
}

impl Record {
    /// Whether there is nothing to keep.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// How it stands.
    pub fn state(&self, now: Timestamp) -> State {
        match (self.forced, &self.opened) {
            (Some(Forced::Open), _) => State::Open,
            (Some(Forced::Closed), _) | (None, None) => State::Closed,
            (None, Some(opened)) if now < opened.until => State::Open,
            (None, Some(_)) => State::HalfOpen,
        }
    }
}

const SLOTS: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slot {
    number: i64,
    attempts: u32,
    failures: u32,
    failed_on: Option<WorkerId>,
    on_others_too: bool,
}

/// Attempts lately, in slots of a tenth of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window([Slot; SLOTS]);

impl Window {
    fn number(settings: &BreakerSettings, at: Timestamp) -> i64 {
        let slot = (settings.window().as_micros() as i64 / SLOTS as i64).max(1);
        at.as_micros() / slot
    }

    fn slot(&mut self, settings: &BreakerSettings, at: Timestamp) -> &mut Slot {
        let number = Self::number(settings, at);
        let slot = &mut self.0[number as usize % SLOTS];
        if slot.number != number {
            *slot = Slot { number, ..Slot::default() };
        }
        slot
    }

    fn recent(&self, settings: &BreakerSettings, now: Timestamp) -> impl Iterator<Item = &Slot> {
        let newest = Self::number(settings, now);
        self.0.iter().filter(move |slot| slot.number > newest - SLOTS as i64 && slot.number <= newest)
    }
}

/// Attempts and failures in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Attempts that ended.
    pub attempts: u32,
    /// Those that failed.
    pub failures: u32,
}

/// The one attempt by which a half-open breaker finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Trial(Option<ClaimNo>);

impl Trial {
    fn start(&mut self, record: &Record, claim: ClaimNo, now: Timestamp) {
        if record.state(now) == State::HalfOpen {
            self.0 = Some(claim);
        }
    }

    /// Whether the attempt was the trial, which is over then.
    fn ends_with(&mut self, claim: ClaimNo) -> bool {
        let was_trial = self.0 == Some(claim);
        if was_trial {
            self.0 = None;
        }
        was_trial
    }

    fn runs(self) -> bool {
        self.0.is_some()
    }
}

/// Everything about a breaker, for another node that follows what this one does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    record: Record,
    /// Slots of the window that count: number, attempts, failures, who failed, whether others too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    slots: Vec<(i64, u32, u32, Option<WorkerId>, bool)>,
    /// The types of a worker's last failures in a row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    streak: Vec<TaskType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<u64>,
}

/// The breaker of a task type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeBreaker {
    /// What is kept.
    pub record: Record,
    window: Window,
    trial: Trial,
}

impl TypeBreaker {
    /// A breaker as it was kept.
    pub fn kept(record: Record) -> Self {
        Self { record, ..Self::default() }
    }

    /// Everything about it.
    pub fn parts(&self) -> Parts {
        let used = self.window.0.iter().filter(|slot| slot.attempts > 0);
        let slots =
            used.map(|slot| (slot.number, slot.attempts, slot.failures, slot.failed_on, slot.on_others_too)).collect();
        Parts { record: self.record.clone(), slots, streak: Vec::new(), trial: self.trial.0.map(|claim| claim.0) }
    }

    /// A breaker made of its parts.
    pub fn from_parts(parts: Parts) -> Self {
        let mut window = Window::default();
        for (number, attempts, failures, failed_on, on_others_too) in parts.slots {
            window.0[number.rem_euclid(SLOTS as i64) as usize] =
                Slot { number, attempts, failures, failed_on, on_others_too };
        }
        Self { record: parts.record, window, trial: Trial(parts.trial.map(ClaimNo)) }
    }

    /// Whether a task may start.
    pub fn admits(&self, now: Timestamp) -> bool {
        match self.record.state(now) {
            State::Closed => true,
            State::HalfOpen => !self.trial.runs(),
            State::Open => false,
        }
    }

    /// When a task may start again by itself.
    pub fn admits_at(&self) -> Option<Timestamp> {
        match (self.record.forced, &self.record.opened) {
            (None, Some(opened)) => Some(opened.until),
            (Some(_), _) | (None, None) => None,
        }
    }

    /// A task starts; under a half-open breaker it is the trial.
    pub fn started(&mut self, claim: ClaimNo, now: Timestamp) {
        self.trial.start(&self.record, claim, now);
    }

    /// The attempt ended and says nothing about the type. True if another trial may start.
    pub fn ended_without_word(&mut self, claim: ClaimNo) -> bool {
        self.trial.ends_with(claim)
    }

    /// The attempt succeeded. True if the record changed.
    pub fn succeeded(&mut self, settings: &BreakerSettings, claim: ClaimNo, now: Timestamp) -> bool {
        if self.trial.ends_with(claim) {
            self.window = Window::default();
            let opened = self.record.opened.take();
            self.record.replay_since = opened.map(|opened| opened.since);
            return true;
        }
        self.window.slot(settings, now).attempts += 1;
        false
    }

    /// The attempt failed. `needs_two` says that at least two workers are live, so that one
    /// alone cannot open it. True if the record changed.
    pub fn failed(
        &mut self,
        settings: &BreakerSettings,
        claim: ClaimNo,
        worker: WorkerId,
        class: ErrorClass,
        needs_two: impl FnOnce() -> bool,
        now: Timestamp,
    ) -> bool {
        let was_trial = self.ended_without_word(claim);
        if class == ErrorClass::RateLimited {
            // Being asked to slow down is no outage.
            return false;
        }
        if was_trial {
            if let Some(opened) = &mut self.record.opened {
                opened.until = now + settings.recovery();
            }
            return true;
        }
        let slot = self.window.slot(settings, now);
        slot.attempts += 1;
        slot.failures += 1;
        slot.on_others_too |= slot.failed_on.is_some_and(|other| other != worker);
        slot.failed_on.get_or_insert(worker);
        if self.record.opened.is_some() || self.record.forced.is_some() {
            return false;
        }
        let Figures { attempts, failures } = self.figures(settings, now);
        let too_many = f64::from(failures) > settings.failure_ratio * f64::from(attempts) || failures == attempts;
        if attempts < settings.min_attempts || !too_many || (!self.failed_on_two(settings, now) && needs_two()) {
            return false;
        }
        let reason = format!("{failures} of {attempts} attempts failed within {} s", settings.window_seconds);
        self.record.opened = Some(Opened { since: now, until: now + settings.recovery(), reason });
        self.record.replay_since = None;
        true
    }

    fn failed_on_two(&self, settings: &BreakerSettings, now: Timestamp) -> bool {
        let mut first = None;
        self.window.recent(settings, now).any(|slot| {
            slot.on_others_too || slot.failed_on.is_some_and(|worker| *first.get_or_insert(worker) != worker)
        })
    }

    /// Attempts and failures in the window.
    pub fn figures(&self, settings: &BreakerSettings, now: Timestamp) -> Figures {
        self.window.recent(settings, now).fold(Figures::default(), |sum, slot| Figures {
            attempts: sum.attempts + slot.attempts,
            failures: sum.failures + slot.failures,
        })
    }

    /// A person forces it, or leaves it to itself again; that forgets what came before.
    pub fn force(&mut self, forced: Option<Forced>, now: Timestamp) {
        // A person who closes it, or leaves it to itself again, ends the outage as a trial would.
        let ended = self.record.opened.as_ref().map(|opened| opened.since).filter(|_| forced != Some(Forced::Open));
        let replay_since = ended.or(self.record.replay_since);
        self.record = Record { forced, forced_at: forced.map(|_| now), opened: None, replay_since };
        self.window = Window::default();
        self.trial = Trial::default();
    }
}

/// Crashes or broken handlers in a row after which a worker is left alone.
pub const WORKER_STREAK: usize = 5;
/// How long a sick worker is left alone before one task is tried.
pub const WORKER_RECOVERY: Duration = Duration::from_secs(60);

/// The breaker of a worker: opens when what fails on it, time after time, succeeds elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerBreaker {
    /// What is kept.
    pub record: Record,
    /// The types of the last failures in a row.
    streak: Vec<TaskType>,
    trial: Trial,
}

impl WorkerBreaker {
    /// A breaker as it was kept.
    pub fn kept(record: Record) -> Self {
        Self { record, ..Self::default() }
    }

    /// Everything about it.
    pub fn parts(&self) -> Parts {
        Parts {
            record: self.record.clone(),
            slots: Vec::new(),
            streak: self.streak.clone(),
            trial: self.trial.0.map(|claim| claim.0),
        }
    }

    /// A breaker made of its parts.
    pub fn from_parts(parts: Parts) -> Self {
        Self { record: parts.record, streak: parts.streak, trial: Trial(parts.trial.map(ClaimNo)) }
    }

    /// Whether a task that goes well would change nothing.
    pub fn is_idle(&self) -> bool {
        self.streak.is_empty() && !self.trial.runs() && self.record.is_plain()
    }

    /// How many tasks it may start: all it has room for, one as a trial, or none.
    pub fn admits(&self, now: Timestamp) -> Option<usize> {
        match self.record.state(now) {
            State::Closed => None,
            State::HalfOpen => Some(usize::from(!self.trial.runs())),
            State::Open => Some(0),
        }
    }

    /// When it may start a task again by itself.
    pub fn admits_at(&self) -> Option<Timestamp> {
        self.record.opened.as_ref().filter(|_| self.record.forced.is_none()).map(|opened| opened.until)
    }

    /// It starts a task.
    pub fn started(&mut self, claim: ClaimNo, now: Timestamp) {
        self.trial.start(&self.record, claim, now);
    }

    /// An attempt ended and says nothing about the worker. True if another trial may start.
    pub fn ended_without_word(&mut self, claim: ClaimNo) -> bool {
        self.trial.ends_with(claim)
    }

    /// An attempt came to an end that a sound worker can have. True if the record changed.
    pub fn did_well(&mut self, claim: ClaimNo) -> bool {
        self.streak.clear();
        if self.trial.ends_with(claim) {
            self.record.opened = None;
            return true;
        }
        false
    }

    /// The worker was lost with the task, or its handler is broken. `elsewhere` says of a type
    /// whether it lately succeeded on another worker. True if the record changed.
    pub fn did_badly(
        &mut self,
        task_type: &TaskType,
        claim: ClaimNo,
        elsewhere: impl Fn(&TaskType) -> bool,
        now: Timestamp,
    ) -> bool {
        if self.ended_without_word(claim) {
            if let Some(opened) = &mut self.record.opened {
                opened.until = now + WORKER_RECOVERY;
            }
            return true;
        }
        self.streak.push(task_type.clone());
        if self.streak.len() > WORKER_STREAK {
            self.streak.remove(0);
        }
        let sick = self.streak.len() == WORKER_STREAK && self.streak.iter().all(elsewhere);
        if !sick || self.record.opened.is_some() || self.record.forced.is_some() {
            return false;
        }
        let reason = format!("{WORKER_STREAK} crashes or broken handlers in a row, of types that succeed elsewhere");
        self.record.opened = Some(Opened { since: now, until: now + WORKER_RECOVERY, reason });
        true
    }

    /// A person forces it, or leaves it to itself again.
    pub fn force(&mut self, forced: Option<Forced>, now: Timestamp) {
        *self = Self::kept(Record { forced, forced_at: forced.map(|_| now), ..Record::default() });
    }
}

/// A breaker as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// What it guards.
    pub scope: Scope,
    /// How it stands.
    pub state: State,
    /// What a person decided.
    pub forced: Option<Forced>,
    /// Since when it is so; none for one that is closed by itself.
    pub since: Option<Timestamp>,
    /// When one task is tried.
    pub until: Option<Timestamp>,
    /// Why it is open.
    pub reason: Option<String>,
    /// Attempts and failures of a type in its window.
    pub figures: Figures,
    /// Dead letters of an outage since then wait for their rule.
    pub replay_since: Option<Timestamp>,
}

impl View {
    /// A view of a record.
    pub fn new(scope: Scope, record: &Record, figures: Figures, now: Timestamp) -> Self {
        Self {
            scope,
            state: record.state(now),
            forced: record.forced,
            since: record.forced_at.or(record.opened.as_ref().map(|opened| opened.since)),
            until: record.opened.as_ref().filter(|_| record.forced.is_none()).map(|opened| opened.until),
            reason: record.opened.as_ref().map(|opened| opened.reason.clone()),
            figures,
            replay_since: record.replay_since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(START) + Duration::from_secs(seconds)
    }

    fn worker(n: u128) -> WorkerId {
        WorkerId::from_uuid(uuid::Uuid::from_u128(n))
    }

    fn fail(breaker: &mut TypeBreaker, claim: u64, on: u128, seconds: u64) -> bool {
        let settings = BreakerSettings::default();
        breaker.failed(&settings, ClaimNo(claim), worker(on), ErrorClass::Transient, || true, at(seconds))
    }

    #[test]
    fn it_opens_with_the_twentieth_failure_and_tries_one_task_after_a_minute() {
        let mut breaker = TypeBreaker::default();
        for claim in 1..=19 {
            assert!(!fail(&mut breaker, claim, u128::from(claim % 2), claim), "{claim}");
        }
        assert!(fail(&mut breaker, 20, 1, 20));
        assert_eq!((breaker.record.state(at(20)), breaker.admits(at(79))), (State::Open, false));
        assert!(breaker.admits(at(80)));
        breaker.started(ClaimNo(30), at(80));
        assert!(!breaker.admits(at(80)), "one trial at a time");
        assert!(fail(&mut breaker, 30, 1, 81));
        assert!(!breaker.admits(at(140)) && breaker.admits(at(141)));
        breaker.started(ClaimNo(31), at(141));
        assert!(breaker.succeeded(&BreakerSettings::default(), ClaimNo(31), at(142)));
        assert_eq!((breaker.record.state(at(142)), breaker.record.replay_since), (State::Closed, Some(at(20))));
        assert_eq!(breaker.figures(&BreakerSettings::default(), at(142)), Figures::default());
    }

    #[test]
    fn one_sick_worker_does_not_open_it_for_all() {
        let mut breaker = TypeBreaker::default();
        for claim in 1..=100 {
            assert!(!fail(&mut breaker, claim, 1, 5));
        }
        assert!(fail(&mut breaker, 101, 2, 6));
        let mut alone = TypeBreaker::default();
        let settings = BreakerSettings::default();
        let opened = (1..=20)
            .filter(|n| alone.failed(&settings, ClaimNo(*n), worker(1), ErrorClass::Timeout, || false, at(5)))
            .count();
        assert_eq!(opened, 1);
    }

    #[test]
    fn eighty_percent_are_not_more_than_eighty_percent() {
        let (mut breaker, settings) = (TypeBreaker::default(), BreakerSettings::default());
        for claim in 0..5 {
            breaker.succeeded(&settings, ClaimNo(1_000 + claim), at(1));
        }
        for claim in 1..=20 {
            assert!(!fail(&mut breaker, claim, u128::from(claim % 2), 2));
        }
        assert!(fail(&mut breaker, 21, 1, 2));
    }

    #[test]
    fn old_failures_and_slow_downs_do_not_count() {
        let (mut breaker, settings) = (TypeBreaker::default(), BreakerSettings::default());
        for claim in 1..=19 {
            fail(&mut breaker, claim, u128::from(claim % 2), 0);
        }
        assert!(!fail(&mut breaker, 20, 1, 330));
        for claim in 21..=60 {
            let on = worker(u128::from(claim % 2));
            assert!(!breaker.failed(&settings, ClaimNo(claim), on, ErrorClass::RateLimited, || true, at(331)));
        }
    }

    #[test]
    fn a_person_decides_above_all() {
        let mut breaker = TypeBreaker::default();
        breaker.force(Some(Forced::Open), at(0));
        assert!(!breaker.admits(at(1_000_000)));
        breaker.force(Some(Forced::Closed), at(1));
        for claim in 1..=100 {
            assert!(!fail(&mut breaker, claim, u128::from(claim % 2), 2));
        }
        assert!(breaker.admits(at(3)));
        breaker.force(None, at(4));
        assert!(breaker.record.is_plain() && breaker.admits(at(4)));
    }

    #[test]
    fn a_trial_that_was_given_back_says_nothing() {
        let mut breaker = TypeBreaker::kept(Record {
            opened: Some(Opened { since: at(0), until: at(60), reason: String::new() }),
            ..Record::default()
        });
        breaker.started(ClaimNo(1), at(60));
        assert!(!breaker.admits(at(61)));
        assert!(breaker.ended_without_word(ClaimNo(1)));
        assert!(breaker.admits(at(61)));
    }

    #[test]
    fn a_worker_is_left_alone_when_its_failures_succeed_elsewhere() {
        let task_type = TaskType::new("t").expect("a name");
        let mut breaker = WorkerBreaker::default();
        for claim in 1..=10 {
            assert!(!breaker.did_badly(&task_type, ClaimNo(claim), |_| false, at(claim)));
        }
        assert!(breaker.did_badly(&task_type, ClaimNo(11), |_| true, at(11)));
        assert_eq!((breaker.admits(at(12)), breaker.admits(at(71))), (Some(0), Some(1)));
        breaker.started(ClaimNo(12), at(71));
        assert_eq!(breaker.admits(at(71)), Some(0));
        assert!(breaker.did_well(ClaimNo(12)));
        assert_eq!(breaker.admits(at(72)), None);
        for claim in 20..24 {
            assert!(!breaker.did_badly(&task_type, ClaimNo(claim), |_| true, at(80)));
        }
        assert!(!breaker.did_well(ClaimNo(24)));
        assert!(!breaker.did_badly(&task_type, ClaimNo(25), |_| true, at(81)), "a success ends the row");
    }
}
