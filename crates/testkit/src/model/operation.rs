//! Random operations. They name tasks and leases by picks that are resolved when they run,
//! so that any part of a script is a script and a failing one can be shortened.

use std::time::Duration;

use windlass_core::json::digest;
use windlass_core::keys::OnConflict;

/// A seeded source of choices.
#[derive(Clone, Debug)]
pub(super) struct Dice {
    seed: u64,
    rolls: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, rolls: 0 }
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.rolls += 1;
        digest(&[self.seed.to_le_bytes(), self.rolls.to_le_bytes()].concat())
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// True once in so many.
    fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick(&mut self) -> u32 {
        self.roll() as u32
    }
}

/// How many queues, types and workers the script knows.
pub(super) const QUEUES: u64 = 4;
pub(super) const TYPES: u64 = 4;
pub(super) const WORKERS: u64 = 4;
/// The ordering or concurrency key of a task. Both kinds have the same names: they must not meet.
#[derive(Clone, Debug)]
pub(super) enum Flow {
    Ordered { key: u64, skip: bool },
    AtMost { key: u64, limit: u32 },
}

/// Uniqueness of a task by its type.
#[derive(Clone, Debug)]
pub(super) struct Sole {
    pub(super) on_conflict: OnConflict,
    /// Whether it is kept while the task runs.
    pub(super) executing: bool,
    pub(super) span: Option<Duration>,
}

/// A task to be submitted.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) task_type: u64,
    pub(super) priority: u64,
    pub(super) gpu: bool,
    pub(super) parameters: u64,
    pub(super) key: Option<u64>,
    pub(super) delay: Duration,
    pub(super) expires_in: Option<Duration>,
    pub(super) max_retries: u32,
    pub(super) max_crashes: u32,
    pub(super) dead_letter: bool,
    pub(super) max_elapsed: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) flow: Option<Flow>,
    pub(super) sole: Option<Sole>,
}

/// What a worker says of an attempt.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Complete { result: u64, follow_ups: Vec<(u64, Draft)> },
    Fail { code: &'static str, retry_after: Option<Duration>, note: u64 },
    Release,
    Snooze(Duration),
    Withdraw,
}

/// Under which token and by which worker a result is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fence {
    /// The right ones of a live lease.
    Live,
    /// Any token that was ever given, by the worker it was given to.
    Any,
    /// The token of a live lease, by another worker.
    OtherWorker,
    /// The token of another task's live lease.
    OtherTask,
}

/// How a task is to run again.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) only_dead: bool,
    pub(super) reset_retries: bool,
    pub(super) priority: Option<u64>,
    pub(super) edit: bool,
    /// Not at once, as one of many that are replayed at a pace.
    pub(super) delay: Duration,
}

/// One step of a script.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Submit { queue: u64, drafts: Vec<Draft> },
    Claim { worker: u64, up_to: u64, lease: Duration },
    Finish { results: Vec<(u32, Fence, Ending)> },
    Repeat { pick: u32 },
    Heartbeat { worker: u64, named: Option<Vec<u32>> },
    Progress { pick: u32, fence: Fence, percent: u64 },
    Step { pick: u32, fence: Fence, name: u64, result: u64 },
    Cancel { picks: Vec<u32> },
    Amend { pick: u32, priority: Option<u64>, delay: Option<Duration> },
    Requeue { pick: u32, wish: Wish },
    Bury { pick: u32 },
    Discard { pick: u32 },
    Advance(Duration),
    MakeDue { slice: usize },
    Lapse { slice: usize },
    TimeOut { slice: usize },
    Expire { slice: usize },
    Prune { slice: usize },
    Forgive(Duration),
    PauseQueue { queue: u64, paused: bool },
    PauseType { task_type: u64, paused: bool },
    LimitQueue { queue: u64, limit: Option<u32> },
    LimitType { task_type: u64, limit: Option<u32> },
    Ask { pick: u32 },
    Deregister { worker: u64 },
    Reopen,
    Compare,
}

/// A script of random operations. Each keeps its number when others are left out, and with
/// it the names of its tasks.
pub(super) fn script(seed: u64, operations: usize) -> Vec<(usize, Operation)> {
    let mut dice = Dice::new(seed);
    (0..operations).map(|number| (number, operation(&mut dice))).collect()
}

/// Chooses one of several by their names: leaving out one that was not chosen does not
/// change the choice, so that a shortened script still means the same tasks.
pub(super) fn choose<T>(pick: u32, candidates: impl Iterator<Item = (u64, T)>) -> Option<T> {
    candidates
        .min_by_key(|(name, _)| digest(&[u64::from(pick).to_le_bytes(), name.to_le_bytes()].concat()))
        .map(|(_, chosen)| chosen)
}

fn draft(dice: &mut Dice, keys: bool) -> Draft {
    let key = (keys && dice.once_in(4)).then(|| dice.below(30));
    Draft {
        task_type: dice.below(TYPES),
        priority: dice.below(10),
        gpu: dice.once_in(5),
        parameters: dice.below(3),
        key,
        delay: if dice.once_in(4) { span(dice, 120) } else { Duration::ZERO },
        expires_in: dice.once_in(8).then(|| span(dice, 200)),
        max_retries: dice.below(4) as u32,
        max_crashes: 1 + dice.below(3) as u32,
        dead_letter: !dice.once_in(4),
        max_elapsed: dice.once_in(10).then(|| Duration::from_mins(5)),
        timeout: Duration::from_secs(31 + dice.below(100)),
        flow: flow(dice),
        // Which of two keys a submit is known by is not the model's business.
        sole: (key.is_none() && dice.once_in(8)).then(|| sole(dice)),
    }
}

fn flow(dice: &mut Dice) -> Option<Flow> {
    // Few keys, and one that most tasks have, so that they meet.
    let key = u64::from(dice.once_in(3));
    match dice.below(6) {
        0 | 1 => Some(Flow::Ordered { key, skip: dice.once_in(2) }),
        2 | 3 => Some(Flow::AtMost { key, limit: 1 + dice.below(3) as u32 }),
        _ => None,
    }
}

fn sole(dice: &mut Dice) -> Sole {
    let on_conflict = [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Error];
    Sole {
        on_conflict: on_conflict[dice.below(4) as usize],
        executing: dice.once_in(2),
        span: dice.once_in(3).then(|| span(dice, 120)),
    }
}

/// Odd microseconds, so that two times are never equal by chance: on which side of a bound
/// the very moment of it lies is not the model's business.
fn span(dice: &mut Dice, seconds: u64) -> Duration {
    Duration::from_micros(1 + dice.below(seconds * 1_000_000))
}

fn ending(dice: &mut Dice) -> Ending {
    match dice.below(10) {
        0..=4 => {
            let follow_ups = if dice.once_in(6) { 1 + dice.below(2) } else { 0 };
            let follow_ups = (0..follow_ups).map(|_| (dice.below(QUEUES), draft(dice, false))).collect();
            Ending::Complete { result: dice.below(3), follow_ups }
        }
        5..=7 => {
            let code = ["db", "db", "rate_limited", "oom", "timeout", "never", "panic"][dice.below(7) as usize];
            Ending::Fail { code, retry_after: dice.once_in(6).then(|| span(dice, 100)), note: dice.below(3) }
        }
        8 if dice.once_in(3) => Ending::Withdraw,
        8 => Ending::Release,
        _ => Ending::Snooze(span(dice, 60)),
    }
}

fn fence(dice: &mut Dice) -> Fence {
    match dice.below(12) {
        0..=7 => Fence::Live,
        8..=9 => Fence::Any,
        10 => Fence::OtherWorker,
        _ => Fence::OtherTask,
    }
}

fn slice(dice: &mut Dice) -> usize {
    [1, 3, 100][dice.below(3) as usize]
}

fn wish(dice: &mut Dice) -> Wish {
    Wish {
        only_dead: dice.once_in(2),
        reset_retries: !dice.once_in(3),
        priority: dice.once_in(4).then(|| dice.below(10)),
        edit: dice.once_in(4),
        delay: if dice.once_in(3) { span(dice, 60) } else { Duration::ZERO },
    }
}

/// A limit that is met now and then, or none.
fn limit(dice: &mut Dice) -> Option<u32> {
    dice.once_in(2).then(|| 1 + dice.below(6) as u32)
}

fn operation(dice: &mut Dice) -> Operation {
    match dice.below(100) {
        0..=17 => {
            let count = if dice.once_in(3) { 1 + dice.below(6) } else { 1 };
            Operation::Submit { queue: dice.below(QUEUES), drafts: (0..count).map(|_| draft(dice, true)).collect() }
        }
        18..=35 => {
            let lease = Duration::from_secs([30, 30, 5, 90][dice.below(4) as usize]);
            Operation::Claim { worker: dice.below(WORKERS), up_to: 1 + dice.below(4), lease }
        }
        36..=55 => {
            let count = if dice.once_in(4) { 1 + dice.below(4) } else { 1 };
            Operation::Finish { results: (0..count).map(|_| (dice.pick(), fence(dice), ending(dice))).collect() }
        }
        56..=58 => Operation::Repeat { pick: dice.pick() },
        59..=63 => {
            let named = dice.once_in(2).then(|| (0..dice.below(4)).map(|_| dice.pick()).collect());
            Operation::Heartbeat { worker: dice.below(WORKERS), named }
        }
        64 => Operation::Progress { pick: dice.pick(), fence: fence(dice), percent: dice.below(101) },
        65 => Operation::Step { pick: dice.pick(), fence: fence(dice), name: dice.below(4), result: dice.below(100) },
        66..=68 => Operation::Cancel { picks: (0..=dice.below(2)).map(|_| dice.pick()).collect() },
        69..=71 => Operation::Amend {
            pick: dice.pick(),
            priority: dice.once_in(2).then(|| dice.below(10)),
            delay: dice.once_in(2).then(|| span(dice, 60)),
        },
        72..=74 => Operation::Requeue { pick: dice.pick(), wish: wish(dice) },
        75 => Operation::Bury { pick: dice.pick() },
        76 => Operation::Discard { pick: dice.pick() },
        77..=84 => Operation::Advance(match dice.below(40) {
            0 => span(dice, 3 * 24 * 3600),
            1..=5 => span(dice, 1200),
            _ => span(dice, 20),
        }),
        85..=88 => Operation::MakeDue { slice: slice(dice) },
        89..=90 => Operation::Lapse { slice: slice(dice) },
        91..=92 => Operation::TimeOut { slice: slice(dice) },
        93 => Operation::Expire { slice: slice(dice) },
        94 => Operation::Prune { slice: slice(dice) },
        95..=96 => match dice.below(8) {
            0 | 1 => Operation::PauseQueue { queue: dice.below(QUEUES), paused: dice.once_in(3) },
            2 | 3 => Operation::PauseType { task_type: dice.below(TYPES), paused: dice.once_in(3) },
            4 | 5 => Operation::LimitQueue { queue: dice.below(QUEUES), limit: limit(dice) },
            _ => Operation::LimitType { task_type: dice.below(TYPES), limit: limit(dice) },
        },
        97 if dice.once_in(3) => Operation::Forgive(span(dice, 30)),
        97 if dice.once_in(2) => Operation::Deregister { worker: dice.below(WORKERS) },
        98 if dice.once_in(6) => Operation::Reopen,
        _ if dice.once_in(8) => Operation::Compare,
        _ if !dice.once_in(3) => Operation::Ask { pick: dice.pick() },
        _ => Operation::MakeDue { slice: slice(dice) },
    }
}
