//! The reference: a naive queue, written from the table of what each transition does. A
//! list of tasks and loops over it; nothing is fast and nothing is shared with a store but
//! value types and the pure rules of failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::failure::{EndReason, ErrorClass, ErrorReport, Verdict, after_crash, after_failure, classify};
use windlass_core::ids::{LeaseToken, TaskId};
use windlass_core::limits;
use windlass_core::policy::Policy;
use windlass_core::priority::Priority;
use windlass_core::retry::grown_timeout;
use windlass_core::status::Status;
use windlass_core::store::QueueStats;
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
}

impl Item {
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
    pub(super) aging: BTreeMap<String, Policy>,
    pub(super) retention: BTreeMap<String, Duration>,
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
        });
        self.live.insert(index);
        self.by_id.insert(id, index);
        index
    }

    /// What a worker may be given, best first where priority alone decides.
    pub(super) fn eligible(&self, served: &Served<'_>) -> Vec<usize> {
        let mut found: Vec<usize> = self
            .live
            .iter()
            .copied()
            .filter(|index| {
                let item = &self.items[*index];
                let (queue, task_type) = (item.spec.queue.as_str(), item.spec.task_type.as_str());
                item.status == Status::Queued
                    && !self.paused_queues.contains(queue)
                    && !self.paused_types.contains(task_type)
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
        let best_of_queue = of_queue().map(|index| self.items[*index].spec.priority).max()?;
        if best_of_queue > item.spec.priority {
            let Some(policy) = self.aging.get(item.spec.queue.as_str()) else {
                return Some(format!("priority {best_of_queue} waits in its queue, which is strict"));
            };
            let offset = |priority: Priority| policy.offsets[priority.index()];
            let bound = Duration::from_secs((offset(item.spec.priority) - offset(best_of_queue)).unsigned_abs());
            if self.now.since(item.ready_at) < bound {
                return Some(format!("it is not overdue towards {best_of_queue}"));
            }
        }
        // Between queues heads are compared by priority, then age; an aging queue may put an overdue one forward.
        let all_strict = eligible.iter().all(|index| !self.aging.contains_key(queue(index).as_str()));
        let first = &self.items[*eligible.first()?];
        let (best, oldest) = (first.spec.priority, first.ready_at);
        if all_strict && (item.spec.priority, item.ready_at) != (best, oldest) {
            return Some(format!("a task of priority {best} that is ready since {oldest} was first"));
        }
        None
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
    }

    /// The live lease that a token and worker belong to.
    pub(super) fn fenced(&self, index: usize, worker: usize, token: LeaseToken) -> Option<Held> {
        self.items[index].lease.filter(|held| held.worker == worker && held.token == token)
    }

    fn end(&mut self, index: usize, status: Status, reason: Option<EndReason>) {
        let kept = self.retention.get(self.items[index].spec.queue.as_str()).copied().unwrap_or(DAYS);
        let now = self.now;
        let item = &mut self.items[index];
        item.status = status;
        item.version += 1;
        item.ended_at = Some(now);
        item.end_reason = reason;
        item.keep_until = (status != Status::DeadLetter).then(|| now + kept);
        item.lease = item.lease.filter(|held| held.revoked);
        if item.lease.is_none() {
            self.live.remove(&index);
        }
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
        let at = self.now + span;
        let item = &mut self.items[index];
        item.status = Status::Scheduled;
        item.attempt -= 1;
        item.version += 1;
        item.lease = None;
        (item.run_at, item.ready_at) = (at, at);
    }

    /// Fail: a retry anew at now + delay, or the end.
    pub(super) fn fail(&mut self, index: usize, report: &ErrorReport, timed_out: bool) {
        let item = &mut self.items[index];
        let policy = item.spec.policy.clone();
        let class = if timed_out { ErrorClass::Timeout } else { classify(&policy.retry, report) };
        let age = self.now.since(item.created_at);
        let verdict = after_failure(&policy, class, report.retry_after_seconds, item.retries, age, 0);
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

    /// Replay of an ended task, or a wish to run now: `queued`, at the back.
    pub(super) fn requeue(&mut self, index: usize, reset_retries: bool, priority: Option<Priority>) {
        let now = self.now;
        let item = &mut self.items[index];
        if item.status != Status::Scheduled {
            item.crashes = 0;
        }
        if reset_retries {
            item.retries = 0;
        }
        item.status = Status::Queued;
        item.version += 1;
        item.spec.priority = priority.unwrap_or(item.spec.priority);
        (item.ready_at, item.run_at) = (now, now);
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

    /// Ended tasks past their retention.
    pub(super) fn prune(&mut self) -> Vec<usize> {
        let now = self.now;
        let over = |item: &Item| !item.gone && item.status.is_ended() && item.keep_until.is_some_and(|at| at <= now);
        let over: Vec<usize> = (0..self.items.len()).filter(|index| over(&self.items[*index])).collect();
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
