//! The reference: a naive queue, written from the table of what each transition does. A
//! list of tasks and loops over it; nothing is fast and nothing is shared with a store but
//! value types and the pure rules of failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::error_rules::RuleBook;
use windlass_core::failure::{EndReason, ErrorClass, ErrorReport, Verdict, after_crash, after_failure, classify};
use windlass_core::ids::{LeaseToken, TaskId};
use windlass_core::keys::{FlowKey, OnFailure, Unique, UniqueKey};
use windlass_core::limits;
use windlass_core::policy::{Band, Policy};
use windlass_core::priority::Priority;
use windlass_core::retention::to_the_end_of_the_day;
use windlass_core::retry::grown_timeout;
use windlass_core::status::Status;
use windlass_core::store::{Hindrance, QueueStats};
use windlass_core::task::TaskSpec;
use windlass_core::time::Timestamp;

/// A lease as the reference knows it. It ends when maintenance or a result ends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) worker: usize,
    pub(super) token: LeaseToken,
    pub(super) expires_at: Timestamp,
    pub(super) deadline: Timestamp,
    pub(super) revoked: bool,
}

/// A task as the reference knows it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The same in every part of a script.
    pub(super) name: u64,
    pub(super) id: TaskId,
    pub(super) spec: TaskSpec,
    pub(super) status: Status,
    pub(super) attempt: u32,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) version: u32,
    pub(super) created_at: Timestamp,
    pub(super) ready_at: Timestamp,
    pub(super) run_at: Timestamp,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) end_reason: Option<EndReason>,
    pub(super) growths: u32,
    pub(super) lease: Option<Held>,
    pub(super) applied: Option<(LeaseToken, u64, Status)>,
    pub(super) keep_until: Option<Timestamp>,
    pub(super) steps: BTreeMap<String, String>,
    pub(super) percent: Option<u64>,
    pub(super) failures: u32,
    pub(super) gone: bool,
    /// Its place in the line of its ordering key, if it has joined.
    place: Option<Place>,
}

/// A place in the line of an ordering key.
#[derive(Clone, Copy, Debug)]
struct Place {
    since: Timestamp,
    /// It waits for a retry and lets others go first.
    aside: bool,
}

impl Item {
    /// Its ordering key and what the line does while it waits for a retry.
    fn ordering(&self) -> Option<(Keyed<'_>, OnFailure)> {
        match &self.spec.flow_key {
            Some(FlowKey::Ordering { key, on_failure }) => Some(((self.queue(), key.as_str()), *on_failure)),
            Some(FlowKey::Concurrency { .. }) | None => None,
        }
    }

    /// Its concurrency key and how many it lets run.
    fn concurrency(&self) -> Option<(Keyed<'_>, u32)> {
        match &self.spec.flow_key {
            Some(FlowKey::Concurrency { key, limit }) => Some(((self.queue(), key.as_str()), *limit)),
            Some(FlowKey::Ordering { .. }) | None => None,
        }
    }

    fn queue(&self) -> &str {
        self.spec.queue.as_str()
    }

    /// Joins the line of its ordering key at the time it was due, or stands in it again.
    fn join(&mut self) {
        let since = self.place.map_or(self.ready_at, |place| place.since);
        self.place = self.ordering().map(|_| Place { since, aside: false });
    }

    /// Waits for a retry: keeps its place, or steps to the back and aside.
    fn wait_in_line(&mut self, back: Timestamp) {
        if let Some((_, OnFailure::Skip)) = self.ordering() {
            self.place = Some(Place { since: back, aside: true });
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        grown_timeout(self.spec.policy.timeout, self.spec.policy.retry.timeout_growth, self.growths)
    }

    fn has_not_started(&self) -> bool {
        matches!(self.status, Status::Queued | Status::Scheduled) && self.attempt == 0
    }
}

/// An idempotency key: whose it is, what it stands for, and until when at least.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) item: usize,
    pub(super) meaning: u64,
    pub(super) kept_until: Timestamp,
    /// It may have been forgotten; a later replay does not bring it back.
    pub(super) doubtful: bool,
}

/// A key with its queue.
type Keyed<'a> = (&'a str, &'a str);

/// How a queue orders what waits.
pub(super) enum Order {
    Aging(Policy),
    Weighted,
}

/// A unique key: whose it is, and whether by status or by time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    item: usize,
    held: bool,
    keep_until: Option<Timestamp>,
}

impl Taken {
    fn stands(&self, now: Timestamp) -> bool {
        self.held || self.keep_until.is_some_and(|until| until > now)
    }
}

/// How keys and limits stand, counted anew whenever it is asked.
#[derive(Default)]
struct Crowd<'a> {
    /// The first of every line; nobody while one of it runs.
    first: BTreeMap<Keyed<'a>, usize>,
    /// Who of a line runs.
    running: BTreeMap<Keyed<'a>, usize>,
    /// How many of a concurrency key may run, and who does.
    limits: BTreeMap<Keyed<'a>, u32>,
    executing: BTreeMap<Keyed<'a>, Vec<usize>>,
    leases_of_queue: BTreeMap<&'a str, u32>,
    leases_of_type: BTreeMap<&'a str, u32>,
}

/// Why a task waits.
#[derive(Debug, PartialEq)]
pub(super) enum Wait {
    InLine { holder: usize, ahead: u64 },
    KeyFull { limit: u32, running: Vec<usize> },
    Closed(Hindrance),
    Ready,
}

/// What a claim may be given.
pub(super) struct Served<'a> {
    pub(super) queues: &'a [&'a str],
    pub(super) types: &'a [&'a str],
    pub(super) gpu: bool,
}

/// The whole queue.
#[derive(Default)]
pub(super) struct Reference {
    pub(super) now: Timestamp,
    pub(super) items: Vec<Item>,
    /// Items that have not ended, or whose revoked lease has not.
    pub(super) live: BTreeSet<usize>,
    pub(super) by_id: BTreeMap<TaskId, usize>,
    pub(super) keys: BTreeMap<(String, String), Key>,
    pub(super) paused_queues: BTreeSet<String>,
    pub(super) paused_types: BTreeSet<String>,
    /// Queues that are not strict.
    pub(super) orders: BTreeMap<String, Order>,
    pub(super) queue_limits: BTreeMap<String, u32>,
    pub(super) type_limits: BTreeMap<String, u32>,
    pub(super) uniques: BTreeMap<UniqueKey, Taken>,
    pub(super) retention: BTreeMap<String, Duration>,
    /// Whether ended tasks are kept to the end of their last day.
    pub(super) keeps_whole_days: bool,
    pub(super) forgiven_until: Timestamp,
    pub(super) last_claim: u64,
}

/// How long ended tasks are kept unless set.
const DAYS: Duration = Duration::from_hours(7 * 24);

impl Reference {
    /// Submit → `queued` or `scheduled`.
    pub(super) fn submit(&mut self, name: u64, id: TaskId, spec: TaskSpec, delay: Duration) -> usize {
        let run_at = self.now + delay;
        let index = self.items.len();
        self.items.push(Item {
            name,
            id,
            spec,
            status: if run_at > self.now { Status::Scheduled } else { Status::Queued },
            attempt: 0,
            retries: 0,
            crashes: 0,
            version: 1,
            created_at: self.now,
            ready_at: run_at,
            run_at,
            ended_at: None,
            end_reason: None,
            growths: 0,
            lease: None,
            applied: None,
            keep_until: None,
            steps: BTreeMap::new(),
            percent: None,
            failures: 0,
            gone: false,
            place: None,
        });
        self.live.insert(index);
        self.by_id.insert(id, index);
        if self.items[index].status == Status::Queued {
            self.items[index].join();
        }
        self.take_unique(index);
        index
    }

    fn crowd(&self) -> Crowd<'_> {
        let mut crowd = Crowd::default();
        for index in &self.live {
            let item = &self.items[*index];
            if item.lease.is_some() {
                *crowd.leases_of_queue.entry(item.queue()).or_default() += 1;
                *crowd.leases_of_type.entry(item.spec.task_type.as_str()).or_default() += 1;
            }
            if let Some((key, limit)) = item.concurrency() {
                // The newest comes last.
                if !item.status.is_ended() {
                    crowd.limits.insert(key, limit);
                }
                if item.lease.is_some() {
                    crowd.executing.entry(key).or_default().push(*index);
                }
            }
            if let Some((key, _)) = item.ordering() {
                if item.lease.is_some() {
                    crowd.running.insert(key, *index);
                }
                let before = |other: usize| self.stands_at(*index) < self.stands_at(other);
                if self.stands_at(*index).is_some() && crowd.first.get(&key).is_none_or(|other| before(*other)) {
                    crowd.first.insert(key, *index);
                }
            }
        }
        crowd
    }

    /// Where in its line a task stands that has not ended and has not stepped aside.
    fn stands_at(&self, index: usize) -> Option<(Timestamp, usize)> {
        let item = &self.items[index];
        item.place.filter(|place| !place.aside && !item.status.is_ended()).map(|place| (place.since, index))
    }

    /// Why a ready task waits, whoever would claim it.
    fn why(&self, crowd: &Crowd<'_>, index: usize) -> Wait {
        let item = &self.items[index];
        if let Some((key, _)) = item.ordering() {
            let first = crowd.first.get(&key).copied();
            let running = crowd.running.get(&key).copied();
            if let Some(holder) = running.or(first).filter(|holder| *holder != index) {
                return Wait::InLine { holder, ahead: self.ahead_in_line(index, key) };
            }
        }
        if let Some((key, _)) = item.concurrency() {
            let (limit, running) = (crowd.limits.get(&key).copied(), crowd.executing.get(&key));
            let full = |limit: &u32| running.is_some_and(|running| running.len() >= *limit as usize);
            if let Some(limit) = limit.filter(full) {
                return Wait::KeyFull { limit, running: running.cloned().unwrap_or_default() };
            }
        }
        self.hindrance(crowd, item).map_or(Wait::Ready, Wait::Closed)
    }

    fn ahead_in_line(&self, index: usize, key: Keyed<'_>) -> u64 {
        let stands_before = |other: &&usize| {
            let same_line = self.items[**other].ordering().is_some_and(|(of_other, _)| of_other == key);
            same_line && self.stands_at(**other).is_some_and(|place| Some(place) < self.stands_at(index))
        };
        (self.live.iter().filter(stands_before).count() as u64).max(1)
    }

    fn hindrance(&self, crowd: &Crowd<'_>, item: &Item) -> Option<Hindrance> {
        let (queue, task_type) = (item.queue(), item.spec.task_type.as_str());
        let full = |limits: &BTreeMap<String, u32>, counts: &BTreeMap<&str, u32>, name: &str| {
            limits.get(name).copied().filter(|limit| counts.get(name).is_some_and(|running| running >= limit))
        };
        if self.paused_queues.contains(queue) {
            return Some(Hindrance::QueuePaused);
        }
        if self.paused_types.contains(task_type) {
            return Some(Hindrance::TypePaused);
        }
        if let Some(limit) = full(&self.type_limits, &crowd.leases_of_type, task_type) {
            return Some(Hindrance::TypeConcurrency { limit });
        }
        full(&self.queue_limits, &crowd.leases_of_queue, queue).map(|limit| Hindrance::QueueConcurrency { limit })
    }

    /// Why a ready task waits.
    pub(super) fn waits_for(&self, index: usize) -> Wait {
        self.why(&self.crowd(), index)
    }

    /// What a worker may be given, best first where priority alone decides.
    pub(super) fn eligible(&self, served: &Served<'_>) -> Vec<usize> {
        let crowd = self.crowd();
        let mut found: Vec<usize> = self
            .live
            .iter()
            .copied()
            .filter(|index| {
                let item = &self.items[*index];
                let (queue, task_type) = (item.spec.queue.as_str(), item.spec.task_type.as_str());
                item.status == Status::Queued
                    && self.why(&crowd, *index) == Wait::Ready
                    && (served.queues.is_empty() || served.queues.contains(&queue))
                    && (served.types.is_empty() || served.types.contains(&task_type))
                    && (served.gpu || item.spec.capabilities.is_empty())
            })
            .collect();
        found.sort_by_key(|index| self.line(*index));
        found
    }

    fn line(&self, index: usize) -> (std::cmp::Reverse<Priority>, Timestamp, usize) {
        let item = &self.items[index];
        (std::cmp::Reverse(item.spec.priority), item.ready_at, index)
    }

    /// Why `chosen` may not be the next of `eligible`, if it may not.
    pub(super) fn wrong_choice(&self, eligible: &[usize], chosen: usize) -> Option<String> {
        let item = &self.items[chosen];
        if !eligible.contains(&chosen) {
            return Some(format!("task {chosen} is {} and not eligible", item.status));
        }
        let queue = |index: &usize| &self.items[*index].spec.queue;
        let of_queue = || eligible.iter().filter(|index| queue(index) == &item.spec.queue);
        let ahead = |other: &&usize| {
            self.items[**other].spec.priority == item.spec.priority && self.line(**other) < self.line(chosen)
        };
        if let Some(other) = of_queue().find(ahead) {
            return Some(format!("task {other} of the same queue and priority was first"));
        }
        let waiting: Vec<Priority> = of_queue().map(|index| self.items[*index].spec.priority).collect();
        if let Some(why) = self.out_of_turn(item, &waiting) {
            return Some(why);
        }
        // Between queues heads are compared by priority, then age; one that is not strict may put another forward.
        let all_strict = eligible.iter().all(|index| !self.orders.contains_key(queue(index).as_str()));
        let first = &self.items[*eligible.first()?];
        let (best, oldest) = (first.spec.priority, first.ready_at);
        if all_strict && (item.spec.priority, item.ready_at) != (best, oldest) {
            return Some(format!("a task of priority {best} that is ready since {oldest} was first"));
        }
        None
    }

    /// Why a task may not go before others of its queue that have these priorities, if it may not.
    fn out_of_turn(&self, item: &Item, waiting: &[Priority]) -> Option<String> {
        let own = item.spec.priority;
        let best = waiting.iter().copied().max().filter(|best| *best > own)?;
        match self.orders.get(item.queue()) {
            None => Some(format!("priority {best} waits in its queue, which is strict")),
            Some(Order::Aging(policy)) => {
                let offset = |priority: Priority| policy.offsets[priority.index()];
                let bound = Duration::from_secs((offset(own) - offset(best)).unsigned_abs());
                let fresh = self.now.since(item.ready_at) < bound;
                fresh.then(|| format!("it is not overdue towards {best}"))
            }
            // Shares of bands are tested elsewhere; inside a band priority decides.
            Some(Order::Weighted) => {
                let better = waiting.iter().find(|other| **other > own && Band::of(**other) == Band::of(own));
                better.map(|better| format!("priority {better} of the same band waits in its queue"))
            }
        }
    }

    /// Claim: `queued` → `executing`, attempt +1.
    pub(super) fn claim(&mut self, index: usize, worker: usize, token: LeaseToken, lease: Duration) {
        let now = self.now;
        let item = &mut self.items[index];
        item.status = Status::Executing;
        item.attempt += 1;
        item.version += 1;
        item.percent = None;
        let deadline = now + item.timeout();
        item.lease = Some(Held { worker, token, expires_at: now + lease, deadline, revoked: false });
        self.last_claim = token.claim().0;
        self.give_unique_back(index);
    }

    fn take_unique(&mut self, index: usize) {
        let item = &self.items[index];
        let Some(unique) = &item.spec.unique else { return };
        let keep_until = unique.for_seconds.map(|span| item.created_at + span);
        self.uniques.insert(unique.key, Taken { item: index, held: true, keep_until });
    }

    /// A change may lead out of the statuses in which a task keeps its unique key.
    fn give_unique_back(&mut self, index: usize) {
        let item = &self.items[index];
        let Some(unique) = item.spec.unique.as_ref().filter(|unique| !unique.is_held(item.status)) else { return };
        if let Some(taken) = self.uniques.get_mut(&unique.key).filter(|taken| taken.item == index) {
            taken.held = false;
        }
    }

    /// The task that has a unique key, by status or by time.
    pub(super) fn unique_holder(&self, unique: &Unique) -> Option<usize> {
        self.uniques.get(&unique.key).filter(|taken| taken.stands(self.now)).map(|taken| taken.item)
    }

    /// The task that keeps an ended one from running again, because it has its unique key.
    pub(super) fn rival(&self, index: usize) -> Option<usize> {
        let unique = self.items[index].spec.unique.as_ref()?;
        self.unique_holder(unique).filter(|holder| *holder != index)
    }

    /// A waiting task starts when a submit that met it would have.
    pub(super) fn reschedule(&mut self, index: usize, delay: Duration) {
        let run_at = self.now + delay;
        let item = &mut self.items[index];
        item.version += 1;
        (item.run_at, item.ready_at) = (run_at, run_at);
        if run_at > self.now {
            item.status = Status::Scheduled;
        }
    }

    /// A waiting task takes on everything of a submit that met it but its id. With another ordering key it joins that
    /// line, now or when it is due.
    pub(super) fn replace(&mut self, index: usize, spec: TaskSpec, delay: Duration) {
        let now = self.now;
        let item = &mut self.items[index];
        let idempotency_key = item.spec.idempotency_key.take();
        let old_key = item.ordering().map(|(key, _)| (key.0.to_owned(), key.1.to_owned()));
        item.spec = TaskSpec { idempotency_key, ..spec };
        let new_key = item.ordering().map(|(key, _)| (key.0.to_owned(), key.1.to_owned()));
        if new_key != old_key {
            let joins = new_key.is_some() && item.status == Status::Queued && delay.is_zero();
            item.place = joins.then_some(Place { since: now, aside: false });
        }
        self.reschedule(index, delay);
    }

    /// Behind everybody in the line of a task.
    fn back(&self, index: usize) -> Timestamp {
        let Some((key, _)) = self.items[index].ordering() else { return self.now };
        let in_line = self.live.iter().filter(|other| self.items[**other].ordering().is_some_and(|(of, _)| of == key));
        let last = in_line.filter_map(|other| self.stands_at(*other)).map(|(since, _)| since).max();
        last.map_or(self.now, |last| (last + Duration::from_micros(1)).max(self.now))
    }

    /// The live lease that a token and worker belong to.
    pub(super) fn fenced(&self, index: usize, worker: usize, token: LeaseToken) -> Option<Held> {
        self.items[index].lease.filter(|held| held.worker == worker && held.token == token)
    }

    fn end(&mut self, index: usize, status: Status, reason: Option<EndReason>) {
        let kept = self.retention.get(self.items[index].spec.queue.as_str()).copied().unwrap_or(DAYS);
        let now = self.now;
        let until = if self.keeps_whole_days { to_the_end_of_the_day(now, kept) } else { now + kept };
        let item = &mut self.items[index];
        item.status = status;
        item.version += 1;
        item.ended_at = Some(now);
        item.end_reason = reason;
        item.keep_until = (status != Status::DeadLetter).then_some(until);
        item.lease = item.lease.filter(|held| held.revoked);
        item.place = None;
        if item.lease.is_none() {
            self.live.remove(&index);
        }
        self.give_unique_back(index);
    }

    /// The worker of a cancelled task knows, or its lease is over.
    pub(super) fn acknowledge(&mut self, index: usize) {
        self.items[index].lease = None;
        self.live.remove(&index);
    }

    /// Complete: `executing` → `completed`.
    pub(super) fn complete(&mut self, index: usize) {
        self.end(index, Status::Completed, None);
    }

    /// The handler cancels its own task: → `cancelled`, and the lease is over.
    pub(super) fn withdraw(&mut self, index: usize) {
        self.items[index].lease = None;
        self.end(index, Status::Cancelled, None);
    }

    /// Release: back to `queued` at the old place, attempt -1.
    pub(super) fn release(&mut self, index: usize) {
        let item = &mut self.items[index];
        item.status = Status::Queued;
        item.attempt -= 1;
        item.version += 1;
        item.lease = None;
    }

    /// Snooze: → `scheduled`, anew at now + snooze, attempt -1.
    pub(super) fn snooze(&mut self, index: usize, span: Duration) {
        let (at, back) = (self.now + span, self.back(index));
        let item = &mut self.items[index];
        item.status = Status::Scheduled;
        item.attempt -= 1;
        item.version += 1;
        item.lease = None;
        (item.run_at, item.ready_at) = (at, at);
        item.wait_in_line(back);
    }

    /// Fail: a retry anew at now + delay, or the end.
    pub(super) fn fail(&mut self, index: usize, report: &ErrorReport, timed_out: bool) {
        let back = self.back(index);
        let item = &mut self.items[index];
        let policy = item.spec.policy.clone();
        let class = if timed_out {
            ErrorClass::Timeout
        } else {
            classify(&policy.retry, &RuleBook::default(), &item.spec.task_type, report).0
        };
        let age = self.now.since(item.created_at);
        let verdict = after_failure(&policy, class, report.retry_after_seconds, item.retries, age, None, 0);
        item.failures += 1;
        if class.grows_timeout() {
            item.growths += 1;
        }
        match verdict {
            Verdict::Retry(delay) => {
                item.status = Status::Scheduled;
                item.retries += 1;
                item.version += 1;
                item.lease = None;
                item.run_at = self.now + delay;
                item.ready_at = item.run_at;
                item.wait_in_line(back);
            }
            Verdict::GiveUp(reason) => {
                let to = if policy.dead_letter { Status::DeadLetter } else { Status::Failed };
                self.end(index, to, Some(reason));
            }
        }
    }

    fn crash(&mut self, index: usize) {
        let item = &mut self.items[index];
        let policy = item.spec.policy.clone();
        item.crashes += 1;
        item.failures += 1;
        match after_crash(&policy, item.crashes, self.now.since(item.created_at), 0) {
            Verdict::Retry(delay) => {
                item.status = Status::Scheduled;
                item.version += 1;
                item.lease = None;
                item.run_at = self.now + delay;
            }
            Verdict::GiveUp(reason) => {
                let to = if policy.dead_letter { Status::DeadLetter } else { Status::Failed };
                self.end(index, to, Some(reason));
            }
        }
    }

    /// Cancel: → `cancelled` at once; a lease is revoked and ends later.
    pub(super) fn cancel(&mut self, index: usize) {
        if let Some(held) = &mut self.items[index].lease {
            held.revoked = true;
        }
        self.end(index, Status::Cancelled, None);
    }

    /// Change of priority or time: new lane, same `ready_at`, or the new time.
    pub(super) fn amend(&mut self, index: usize, priority: Option<Priority>, run_at: Option<Timestamp>) {
        let item = &mut self.items[index];
        item.version += 1;
        item.spec.priority = priority.unwrap_or(item.spec.priority);
        if let Some(at) = run_at {
            item.status = Status::Scheduled;
            (item.run_at, item.ready_at) = (at, at);
        }
    }

    /// Replay of an ended task, or a wish to run now: `queued`, at the back. Only what had ended can wait a while.
    pub(super) fn requeue(&mut self, index: usize, reset_retries: bool, priority: Option<Priority>, delay: Duration) {
        let ended = self.items[index].status.is_ended();
        let at = self.now + if ended { delay } else { Duration::ZERO };
        let back = self.back(index);
        if ended {
            self.take_unique(index);
        }
        let item = &mut self.items[index];
        if ended {
            item.crashes = 0;
        }
        if reset_retries {
            item.retries = 0;
        }
        item.status = if at > self.now { Status::Scheduled } else { Status::Queued };
        item.version += 1;
        item.spec.priority = priority.unwrap_or(item.spec.priority);
        (item.ready_at, item.run_at) = (at, at);
        if item.status == Status::Queued && ended {
            item.place = item.ordering().map(|_| Place { since: back, aside: false });
        } else if item.status == Status::Queued {
            item.join();
        }
        (item.ended_at, item.end_reason, item.keep_until) = (None, None, None);
        self.live.insert(index);
    }

    /// By hand to `dead_letter`.
    pub(super) fn bury(&mut self, index: usize) {
        self.end(index, Status::DeadLetter, Some(EndReason::RejectedByOperator));
    }

    /// A dead letter is given up.
    pub(super) fn discard(&mut self, index: usize) {
        let ended_at = self.items[index].ended_at;
        self.end(index, Status::Failed, Some(EndReason::Discarded));
        self.items[index].ended_at = ended_at;
    }

    fn all(&self, wanted: impl Fn(&Item) -> bool) -> Vec<usize> {
        self.live.iter().copied().filter(|index| wanted(&self.items[*index])).collect()
    }

    /// Due: `scheduled` → `queued`; `ready_at` was set when it began to wait.
    pub(super) fn make_due(&mut self) -> Vec<usize> {
        let now = self.now;
        let due = self.all(|item| item.status == Status::Scheduled && item.run_at <= now);
        for index in &due {
            self.items[*index].status = Status::Queued;
            self.items[*index].version += 1;
            self.items[*index].join();
        }
        due
    }

    /// Leases that are over: crashes of running tasks, silent ends of cancelled ones.
    pub(super) fn lapse(&mut self) -> (Vec<usize>, Vec<usize>) {
        let now = self.now;
        if now < self.forgiven_until {
            return (Vec::new(), Vec::new());
        }
        let over =
            |item: &Item, revoked| item.lease.is_some_and(|held| held.revoked == revoked && held.expires_at <= now);
        let (crashed, told) = (self.all(|item| over(item, false)), self.all(|item| over(item, true)));
        for index in &crashed {
            self.crash(*index);
        }
        for index in &told {
            self.acknowledge(*index);
        }
        (crashed, told)
    }

    /// Attempts whose time is over: as failures of class `timeout`.
    pub(super) fn time_out(&mut self) -> Vec<usize> {
        let now = self.now;
        if now < self.forgiven_until {
            return Vec::new();
        }
        let over = self.all(|item| item.lease.is_some_and(|held| !held.revoked && held.deadline <= now));
        let report = ErrorReport::internal("timeout", String::new());
        for index in &over {
            self.fail(*index, &report, true);
        }
        over
    }

    /// `expires_at` passed before it started: → `failed`.
    pub(super) fn expire(&mut self) -> Vec<usize> {
        let now = self.now;
        let over = self.all(|item| item.has_not_started() && item.spec.expires_at.is_some_and(|at| at <= now));
        for index in &over {
            self.end(*index, Status::Failed, Some(EndReason::Expired));
        }
        over
    }

    /// Whether an ended task is past its retention: gone, or as good as.
    pub(super) fn is_over(&self, index: usize) -> bool {
        let item = &self.items[index];
        item.gone || (item.status.is_ended() && item.keep_until.is_some_and(|at| at <= self.now))
    }

    /// Ended tasks past their retention.
    pub(super) fn prune(&mut self) -> Vec<usize> {
        let now = self.now;
        let over: Vec<usize> =
            (0..self.items.len()).filter(|index| !self.items[*index].gone && self.is_over(*index)).collect();
        for index in &over {
            self.items[*index].gone = true;
        }
        for key in self.keys.values_mut() {
            key.doubtful |= self.items[key.item].status.is_ended() && now >= key.kept_until;
        }
        over
    }

    /// Nothing lapses and nothing times out for a while; what would, gets until then.
    pub(super) fn forgive(&mut self, span: Duration) {
        let until = self.now + span;
        self.forgiven_until = self.forgiven_until.max(until);
        for index in &self.live {
            if let Some(held) = &mut self.items[*index].lease {
                held.expires_at = held.expires_at.max(until);
                held.deadline = held.deadline.max(until);
            }
        }
    }

    /// A key, and whether it surely still stands for its task.
    pub(super) fn key(&self, scope: &(String, String)) -> Option<(&Key, bool)> {
        let key = self.keys.get(scope)?;
        let lives = !self.items[key.item].status.is_ended();
        Some((key, !key.doubtful && (lives || self.now < key.kept_until)))
    }

    pub(super) fn take_key(&mut self, scope: (String, String), item: usize, meaning: u64) {
        let kept_until = self.now + limits::IDEMPOTENCY_WINDOW;
        self.keys.insert(scope, Key { item, meaning, kept_until, doubtful: false });
    }

    /// What statistics must say.
    pub(super) fn stats(&self) -> ([u64; 8], BTreeMap<String, QueueStats>) {
        let mut by_status = [0; 8];
        let mut queues: BTreeMap<String, QueueStats> = BTreeMap::new();
        for item in self.items.iter().filter(|item| !item.gone) {
            by_status[usize::from(item.status.code())] += 1;
            let level = item.spec.priority.index();
            let name = item.spec.queue.as_str().to_owned();
            match item.status {
                Status::Queued => {
                    let queue = queues.entry(name).or_default();
                    queue.queued[level] += 1;
                    let oldest = queue.oldest_ready_at[level].get_or_insert(item.ready_at);
                    *oldest = (*oldest).min(item.ready_at);
                }
                Status::Scheduled => queues.entry(name).or_default().scheduled[level] += 1,
                Status::Executing => queues.entry(name).or_default().executing[level] += 1,
                Status::Blocked | Status::Completed | Status::Failed | Status::Cancelled | Status::DeadLetter => {}
            }
        }
        (by_status, queues)
    }
}
