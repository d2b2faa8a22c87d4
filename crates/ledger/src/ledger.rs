//! The state of a single writer, and what every change of a task has in common: the row of
//! the state machine is applied, the journal written, the event noted, the index set.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use windlass_core::actor::Actor;
use windlass_core::event::{Change, Committed, Event, FailureNote};
use windlass_core::failure::EndReason;
use windlass_core::ids::{IdCodec, TaskId, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::keys::OnFailure;
use windlass_core::limits;
use windlass_core::names::{QueueName, Text};
use windlass_core::priority::Priority;
use windlass_core::rate::Bucket;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::time::{Clock, Timestamp};
use windlass_core::transition::{Effect, OrderingKey, Place};

use crate::claim::missing;
use crate::flows;
use crate::index::{Index, Lease, LiveTask};
use crate::journal::{AppliedResult, Ended, Journal, JournalResult, Overlay, SEGMENT_KEYS, Sequence, UniqueRow};
use crate::waiters::Waiters;
use crate::workers::WorkerEntry;

/// Numbers of a sequence are reserved in blocks: one small write per block, and at most a
/// block is skipped at a restart.
const RESERVED: u64 = 65_536;

/// A sequence in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    sequence: Sequence,
    next: u64,
    ceiling: u64,
}

impl Numbers {
    pub(crate) fn new(sequence: Sequence, next: u64) -> Self {
        Self { sequence, next, ceiling: next }
    }

    /// The first of `count` fresh numbers.
    pub(crate) fn take(&mut self, count: u64, journal: &mut dyn Journal) -> JournalResult<u64> {
        let first = self.next;
        if first + count > self.ceiling {
            self.ceiling = first + count + RESERVED;
            journal.reserve(self.sequence, self.ceiling)?;
        }
        self.next = first + count;
        Ok(first)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AllNumbers {
    pub(crate) task: Numbers,
    pub(crate) claim: Numbers,
    pub(crate) event: Numbers,
}

/// What a task brings along from before a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(crate) event_nos: Vec<u64>,
    pub(crate) applied: Option<AppliedResult>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) worker: Option<WorkerId>,
}

impl Past {
    /// One more event row. A task that is snoozed every second must not carry a day of them along: the first and the
    /// newest are kept.
    pub(crate) fn add_event(&mut self, no: u64) {
        self.event_nos.push(no);
        if self.event_nos.len() > limits::HISTORY_ROWS {
            self.event_nos.remove(limits::HISTORY_ROWS / 4);
        }
    }
}

/// A change of a live task on its way to being written.
pub(crate) struct Move<'a> {
    pub(crate) key: TaskKey,
    pub(crate) from: Status,
    /// The task after the change.
    pub(crate) task: LiveTask,
    /// The row of the state machine that led there.
    pub(crate) effect: Effect,
    pub(crate) past: Past,
    pub(crate) change: Change,
    pub(crate) actor: Actor,
    /// The lease that the change ends.
    pub(crate) lease: Option<&'a Lease>,
    /// What was said of the attempt, if it failed.
    pub(crate) failure: Option<Arc<FailureNote>>,
}

impl<'a> Move<'a> {
    /// A change of a task that nobody runs.
    pub(crate) fn new(
        key: TaskKey,
        from: Status,
        task: LiveTask,
        effect: Effect,
        past: Past,
        change: Change,
        actor: Actor,
    ) -> Self {
        Self { key, from, task, effect, past, change, actor, lease: None, failure: None }
    }

    /// The change ends the attempt under this lease.
    pub(crate) fn under(self, lease: Option<&'a Lease>) -> Self {
        Self { lease, ..self }
    }
}

/// How a task ends.
#[derive(Default)]
pub(crate) struct Ending {
    pub(crate) reason: Option<EndReason>,
    pub(crate) result: Option<Json>,
}

/// The state of a single writer. One thread owns it; nobody else sees it between commits.
pub struct Ledger {
    pub(crate) clock: Arc<dyn Clock>,
    /// The time of this transaction: everything in it happens at one moment.
    pub(crate) now: Timestamp,
    pub(crate) ids: IdCodec,
    pub(crate) index: Index,
    pub(crate) settings: Arc<Settings>,
    pub(crate) numbers: AllNumbers,
    pub(crate) workers: HashMap<WorkerId, WorkerEntry>,
    /// Workers whose breaker lets one task through, by when.
    pub(crate) recovering_workers: BTreeSet<(Timestamp, WorkerId)>,
    /// How fast tenants submit.
    pub(crate) tenant_buckets: HashMap<(QueueName, Text), Bucket>,
    pub(crate) waiters: Waiters,
    pub(crate) watchers: HashMap<TaskKey, Vec<oneshot::Sender<()>>>,
    /// A lane may have become claimable for somebody who waits.
    pub(crate) lanes_changed: bool,
    /// A claim passed so many tasks by that it left the rest to the next transaction.
    pub(crate) unfinished: bool,
    /// When old events were last looked through.
    pub(crate) events_pruned_at: Timestamp,
    /// Workers that were heard of and that others have yet to be told of.
    pub(crate) seen_workers: BTreeSet<WorkerId>,
    /// Workers of which another node cancelled a task: whoever of them waits here is told.
    pub(crate) to_tell: BTreeSet<WorkerId>,
    /// A heartbeat came in this transaction: others must know.
    pub(crate) was_beaten: bool,
    changes: Vec<Committed>,
    event_no: Option<u64>,
    ended_delta: [i64; 8],
    before: Before,
}

/// What [`Ledger::undo`] puts back beside the index.
struct Before {
    numbers: AllNumbers,
    settings: Arc<Settings>,
    workers: Vec<(WorkerId, Option<WorkerEntry>)>,
    tenants: HashMap<(QueueName, Text), Option<Bucket>>,
}

impl Ledger {
    pub(crate) fn assemble(
        clock: Arc<dyn Clock>,
        ids: IdCodec,
        index: Index,
        settings: Arc<Settings>,
        numbers: AllNumbers,
        workers: HashMap<WorkerId, WorkerEntry>,
    ) -> Self {
        let now = clock.now();
        let before = Before { numbers, settings: Arc::clone(&settings), workers: Vec::new(), tenants: HashMap::new() };
        Self {
            clock,
            now,
            ids,
            index,
            settings,
            numbers,
            workers,
            recovering_workers: BTreeSet::new(),
            tenant_buckets: HashMap::new(),
            waiters: Waiters::default(),
            watchers: HashMap::new(),
            lanes_changed: false,
            unfinished: false,
            events_pruned_at: Timestamp::EPOCH,
            seen_workers: BTreeSet::new(),
            to_tell: BTreeSet::new(),
            was_beaten: false,
            changes: Vec::new(),
            event_no: None,
            ended_delta: [0; 8],
            before,
        }
    }

    /// Nothing happens before this.
    pub fn not_before(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
    }

    /// Begins a transaction.
    pub fn start(&mut self) {
        self.now = self.clock.now().max(self.now);
        self.index.lanes.set_now(self.now);
        self.wake_workers();
        self.before.numbers = self.numbers;
        self.before.settings = Arc::clone(&self.settings);
    }

    /// Writes what is written once per transaction: its events and counters.
    pub fn seal(&mut self, journal: &mut dyn Journal) -> JournalResult<()> {
        if let Some(no) = self.event_no.take() {
            journal.insert_events(no, self.now, &self.changes)?;
        }
        for status in Status::ALL {
            let delta = std::mem::take(&mut self.ended_delta[usize::from(status.code())]);
            if delta != 0 {
                journal.count_ended(status, delta)?;
            }
        }
        Ok(())
    }

    /// The transaction is durable. Returns what changed, in order.
    pub fn keep(&mut self) -> Vec<Committed> {
        self.index.keep();
        self.before.workers.clear();
        self.before.tenants.clear();
        self.to_tell.clear();
        self.was_beaten = false;
        let changes = std::mem::take(&mut self.changes);
        self.count_for_workers(&changes);
        if !self.watchers.is_empty() {
            for change in changes.iter().filter(|change| change.to.is_ended()) {
                if let Some(key) = self.ids.task_key(change.event.task_id) {
                    self.tell_watchers(key);
                }
            }
        }
        changes
    }

    /// The task has ended: whoever waits for that is told.
    pub(crate) fn tell_watchers(&mut self, key: TaskKey) {
        for watcher in self.watchers.remove(&key).into_iter().flatten() {
            // Whoever is gone does not need to know.
            let _ = watcher.send(());
        }
    }

    /// Others know who was heard of.
    pub fn told_others(&mut self) {
        for id in std::mem::take(&mut self.seen_workers) {
            if let Some(entry) = self.workers.get_mut(&id) {
                entry.told_at = entry.last_seen_at;
            }
        }
    }

    /// What changed in the open transaction.
    pub(crate) fn changes(&self) -> &[Committed] {
        &self.changes
    }

    /// The settings, if the open transaction changed them.
    pub(crate) fn changed_settings(&self) -> Option<&Settings> {
        (!Arc::ptr_eq(&self.settings, &self.before.settings)).then_some(&self.settings)
    }

    /// Workers whose row or breaker the open transaction changed.
    pub(crate) fn changed_workers(&self) -> BTreeSet<WorkerId> {
        self.before.workers.iter().map(|(id, _)| *id).collect()
    }

    /// Tenants that the open transaction charged.
    pub(crate) fn changed_tenants(&self) -> impl Iterator<Item = (&(QueueName, Text), &Bucket)> {
        self.before.tenants.keys().filter_map(|place| Some((place, self.tenant_buckets.get(place)?)))
    }

    /// Remembers what a tenant had before it is charged.
    pub(crate) fn remember_tenant(&mut self, place: &(QueueName, Text)) {
        if !self.before.tenants.contains_key(place) {
            self.before.tenants.insert(place.clone(), self.tenant_buckets.get(place).copied());
        }
    }

    /// What another node left to tenants.
    pub(crate) fn follow_tenants(&mut self, levels: Vec<(QueueName, Text, f64, i64)>) {
        for (queue, tenant, tokens, as_of) in levels {
            let limit = self.settings.queues.get(&queue).and_then(|queue| queue.tenant_rate_limit);
            if let Some(limit) = limit {
                let bucket = Bucket::at_level(limit, tokens, Timestamp::from_micros(as_of));
                self.tenant_buckets.insert((queue, tenant), bucket);
            }
        }
    }

    /// The first free numbers of tasks, claims and event rows.
    pub(crate) fn next_numbers(&self) -> [u64; 3] {
        [self.numbers.task.next, self.numbers.claim.next, self.numbers.event.next]
    }

    /// Numbers below these are taken.
    pub(crate) fn set_next_numbers(&mut self, [task, claim, event]: [u64; 3]) {
        self.numbers = AllNumbers {
            task: Numbers::new(Sequence::Task, task),
            claim: Numbers::new(Sequence::Claim, claim),
            event: Numbers::new(Sequence::Event, event),
        };
    }

    /// What was followed stays; somebody may have waited for it.
    pub(crate) fn settle_followed(&mut self) {
        self.index.keep();
        self.before.settings = Arc::clone(&self.settings);
        self.lanes_changed = true;
    }

    fn count_for_workers(&mut self, changes: &[Committed]) {
        for change in changes {
            let Actor::Worker(worker) = change.event.actor else { continue };
            let Some(entry) = self.workers.get_mut(&worker) else { continue };
            match change.event.change {
                Change::Completed => entry.completed += 1,
                Change::Retrying { .. } | Change::Failed { .. } | Change::DeadLettered { .. } => entry.failed += 1,
                Change::Submitted { .. }
                | Change::Due
                | Change::Claimed { .. }
                | Change::Released
                | Change::Snoozed { .. }
                | Change::Lapsed { .. }
                | Change::Cancelled { .. }
                | Change::Replayed { .. }
                | Change::Replaced { .. }
                | Change::Discarded { .. }
                | Change::Amended { .. } => {}
            }
        }
    }

    /// Takes over who waits at a ledger that this one replaces.
    pub(crate) fn take_over(&mut self, old: Ledger) {
        self.waiters = old.waiters;
        self.watchers = old.watchers;
        self.seen_workers = old.seen_workers;
        self.lanes_changed = true;
        // Whoever watches a task that has ended meanwhile looks again.
        let gone: Vec<TaskKey> = self.watchers.keys().filter(|key| self.index.task(**key).is_none()).copied().collect();
        for key in gone {
            self.tell_watchers(key);
        }
    }

    /// When something opens by itself that a waiting claim may wait for.
    pub fn wake_at(&self) -> Option<Timestamp> {
        if self.unfinished {
            return Some(self.now);
        }
        let of_workers = self.recovering_workers.first().map(|(at, _)| *at);
        self.index.lanes.next_opening().into_iter().chain(of_workers).min()
    }

    /// Puts into lanes whom their keys let go, and takes out whom they do not.
    pub(crate) fn settle_keys(&mut self) {
        while !self.index.flows.is_settled() {
            let todo = self.index.flows.unsettled();
            let changes =
                todo.hold.into_iter().map(|key| (key, true)).chain(todo.admit.into_iter().map(|key| (key, false)));
            for (key, held) in changes {
                if let Some(task) =
                    self.index.task(key).filter(|task| task.status == Status::Queued && task.held != held)
                {
                    self.index.set_task(key, Some(LiveTask { held, ..task }));
                    self.lanes_changed |= !held;
                }
            }
        }
    }

    /// The transaction came to nothing.
    pub fn undo(&mut self) {
        self.index.undo();
        self.changes.clear();
        self.was_beaten = false;
        self.event_no = None;
        for (place, bucket) in std::mem::take(&mut self.before.tenants) {
            match bucket {
                Some(bucket) => self.tenant_buckets.insert(place, bucket),
                None => self.tenant_buckets.remove(&place),
            };
        }
        self.ended_delta = [0; 8];
        self.numbers = self.before.numbers;
        // Whoever undoes says that lanes have changed; to go on at once would fail at once.
        self.unfinished = false;
        if !Arc::ptr_eq(&self.settings, &self.before.settings) {
            self.settings = Arc::clone(&self.before.settings);
            // A rate that was to be taken away is not new: it begins with nothing saved up.
            self.index.lanes.apply(&self.settings, false);
        }
        while let Some((id, old)) = self.before.workers.pop() {
            match old {
                Some(entry) => self.workers.insert(id, entry),
                None => self.workers.remove(&id),
            };
            self.await_recovery(id);
        }
    }

    /// The settings as of this transaction.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) fn remember_worker(&mut self, id: WorkerId) {
        self.before.workers.push((id, self.workers.get(&id).cloned()));
    }

    /// The public id of a live task.
    pub(crate) fn id_of(&self, key: TaskKey, created_at: Timestamp) -> TaskId {
        self.ids.task_id(key, created_at)
    }

    /// The number of this transaction's event row.
    pub(crate) fn event_no(&mut self, journal: &mut dyn Journal) -> JournalResult<u64> {
        if let Some(no) = self.event_no {
            Ok(no)
        } else {
            let no = self.numbers.event.take(1, journal)?;
            self.event_no = Some(no);
            Ok(no)
        }
    }

    /// What a task brings along: from its overlay, if it has one, and its lease.
    pub(crate) fn past(
        journal: &mut dyn Journal,
        key: TaskKey,
        task: &LiveTask,
        lease: Option<&Lease>,
    ) -> JournalResult<Past> {
        let mut past = Past::default();
        if task.overlaid
            && let Some(overlay) = journal.overlay(key)?
        {
            past = Past {
                event_nos: overlay.event_nos,
                applied: overlay.applied,
                started_at: overlay.started_at,
                worker: overlay.worker,
            };
        }
        if let Some(lease) = lease {
            past.add_event(lease.event_no);
            past.started_at = Some(lease.claimed_at);
            past.worker = Some(lease.worker);
        }
        Ok(past)
    }

    /// Notes one change for the event row of this transaction.
    pub(crate) fn note(&mut self, noted: Noted) {
        let Noted { key, task, from, to, change, actor, lease, ahead_of, failure } = noted;
        let lane = Arc::clone(self.index.lanes.key(task.lane));
        let waited = matches!(change, Change::Claimed { .. }).then(|| self.now.since(task.ready_at));
        self.changes.push(Committed {
            event: Event {
                task_id: self.id_of(key, task.created_at),
                version: task.version,
                at: self.now,
                actor,
                change,
            },
            lane,
            from,
            to,
            waited,
            ahead_of,
            ran: lease.map(|lease| self.now.since(lease.claimed_at)),
            age: self.now.since(task.created_at),
            attempt: task.attempt,
            failure,
        });
    }

    /// A live task goes on in another status (not `executing`): overlay, event, index.
    pub(crate) fn carry_on(&mut self, journal: &mut dyn Journal, step: Move<'_>) -> JournalResult<LiveTask> {
        let Move { key, from, mut task, effect, mut past, change, actor, lease, failure } = step;
        task.version += 1;
        task.overlaid = true;
        let place = self.step_in_line(key, &mut task, effect.ordering);
        self.give_unique_back(journal, key, &mut task)?;
        let no = self.event_no(journal)?;
        past.add_event(no);
        let overlay = Overlay {
            status: task.status,
            version: task.version,
            attempt: task.attempt,
            retries: u32::from(task.retries),
            crashes: u32::from(task.crashes),
            timeouts: task.timeouts,
            ready_at: task.ready_at,
            run_at: task.run_at,
            retrying: task.retrying,
            started_at: past.started_at,
            worker: past.worker,
            applied: past.applied,
            event_nos: past.event_nos,
            place,
        };
        journal.put_overlay(key, &overlay)?;
        self.note(Noted {
            key,
            task,
            from: Some(from),
            to: task.status,
            change,
            actor,
            lease,
            ahead_of: None,
            failure,
        });
        self.index.set_task(key, Some(task));
        self.lanes_changed |= task.status == Status::Queued;
        Ok(task)
    }

    /// A live task ends: ended row, event, index, counters.
    pub(crate) fn end(&mut self, journal: &mut dyn Journal, step: Move<'_>, ending: Ending) -> JournalResult<()> {
        let Move { key, from, mut task, effect: _, mut past, change, actor, lease, failure } = step;
        task.version += 1;
        task.held = false;
        self.give_unique_back(journal, key, &mut task)?;
        let no = self.event_no(journal)?;
        past.add_event(no);
        let lane = Arc::clone(self.index.lanes.key(task.lane));
        let kept = self.settings.kept_for(&lane.queue, &lane.task_type, task.status);
        let ended = Ended {
            status: task.status,
            reason: ending.reason,
            version: task.version,
            attempt: task.attempt,
            retries: u32::from(task.retries),
            crashes: u32::from(task.crashes),
            timeouts: task.timeouts,
            ready_at: task.ready_at,
            run_at: task.run_at,
            started_at: past.started_at,
            ended_at: self.now,
            worker: past.worker,
            result: ending.result,
            applied: past.applied,
            event_nos: past.event_nos,
            keep_until: kept.map(|kept| self.now + kept),
        };
        journal.insert_ended(key, &ended)?;
        if task.overlaid {
            journal.drop_overlay(key)?;
        }
        let status = task.status;
        self.note(Noted { key, task, from: Some(from), to: status, change, actor, lease, ahead_of: None, failure });
        self.index.set_task(key, None);
        self.index.set_expiry(key, None);
        self.leave_key(key, task.keyed);
        self.count_ended(status, 1);
        if status == Status::DeadLetter {
            self.index.count_dead(&lane.queue, &lane.task_type, 1);
        }
        let segment = key.0 / SEGMENT_KEYS;
        if segment < self.numbers.task.next / SEGMENT_KEYS && !self.index.segment_is_live(key) {
            journal.close_segment(segment)?;
        }
        Ok(())
    }

    /// The task's place in the line of its ordering key after a change, if it has one.
    fn step_in_line(&mut self, key: TaskKey, task: &mut LiveTask, ordering: OrderingKey) -> Option<flows::Place> {
        task.held = false;
        if !task.keyed {
            return None;
        }
        let mut keyed = self.index.keyed(key)?;
        if !self.index.flows.is_line(keyed.flow) {
            return None;
        }
        let back = self.index.flows.back(keyed.flow, self.now);
        keyed.place = match (ordering, keyed.on_failure) {
            (OrderingKey::JoinsAtBack, _) => Some(back),
            (OrderingKey::BlocksOrSkips, OnFailure::Skip) => Some(flows::Place { aside: true, ..back }),
            // Due since then, however late maintenance found it.
            (OrderingKey::Joins, _) => {
                let joined_when_due = flows::Place { since: task.ready_at, aside: false };
                Some(keyed.place.map_or(joined_when_due, |place| flows::Place { aside: false, ..place }))
            }
            (OrderingKey::Keep | OrderingKey::BlocksOrSkips, _) => keyed.place,
            (OrderingKey::PassesOn | OrderingKey::PassesOnWhenLeaseEnds, _) => None,
        };
        self.index.set_keyed(key, Some(keyed));
        // Whoever is first is admitted when the change is whole.
        task.held = task.status == Status::Queued;
        keyed.place
    }

    /// A key is left when the task has ended and nobody runs it any more.
    fn leave_key(&mut self, key: TaskKey, keyed: bool) {
        if keyed && self.index.task(key).is_none() && self.index.lease(key).is_none() {
            self.index.set_keyed(key, None);
        }
    }

    /// Gives the unique key back if the task's new status is none in which it keeps it.
    pub(crate) fn give_unique_back(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        task: &mut LiveTask,
    ) -> JournalResult<()> {
        if !task.unique {
            return Ok(());
        }
        let Some(row) = journal.task(key)? else { return Err(missing(key)) };
        let Some(unique) = row.spec.unique.filter(|unique| !unique.is_held(task.status)) else { return Ok(()) };
        task.unique = false;
        // Another task may have it by now: this one gave it back before a restart.
        let Some(holder) = journal.unique(unique.key)?.filter(|holder| holder.task == key) else { return Ok(()) };
        let kept = holder.keep_until.is_some_and(|until| until > self.now);
        journal.put_unique(unique.key, kept.then_some(&UniqueRow { held: false, ..holder }))
    }

    pub(crate) fn count_ended(&mut self, status: Status, delta: i64) {
        self.ended_delta[usize::from(status.code())] += delta;
        self.index.count_ended(status, delta);
    }

    /// Ends a lease, and the claim row with its last one.
    pub(crate) fn drop_lease(&mut self, journal: &mut dyn Journal, key: TaskKey, lease: &Lease) -> JournalResult<()> {
        self.index.set_lease(key, None);
        self.leave_key(key, lease.keyed);
        self.end_trials(lease);
        self.lanes_changed |= lease.slots > 1 || self.index.lanes.slots_vary();
        if self.index.leave_claim(lease.claim_row) {
            journal.drop_claim(lease.claim_row)?;
        } else if lease.revoked {
            // The cancelled task was written long ago; without this a restart would revoke its lease again.
            journal.void_claim_entry(lease.claim_row, key)?;
        }
        Ok(())
    }
}

/// One change, to be noted as an event.
pub(crate) struct Noted<'a> {
    pub(crate) key: TaskKey,
    /// The task after the change.
    pub(crate) task: LiveTask,
    pub(crate) from: Option<Status>,
    pub(crate) to: Status,
    pub(crate) change: Change,
    pub(crate) actor: Actor,
    /// The lease that the change ends.
    pub(crate) lease: Option<&'a Lease>,
    pub(crate) ahead_of: Option<Priority>,
    pub(crate) failure: Option<Arc<FailureNote>>,
}

/// Applies a row of the state machine to a live task.
pub(crate) fn moved(task: LiveTask, effect: &Effect, now: Timestamp, delay: Duration) -> LiveTask {
    let count = |change: windlass_core::transition::Count, value: u8| {
        u8::try_from(change.apply(u32::from(value))).unwrap_or(u8::MAX)
    };
    let mut next = LiveTask {
        status: effect.to,
        attempt: effect.attempt.apply(task.attempt),
        retries: count(effect.retries, task.retries),
        crashes: count(effect.crashes, task.crashes),
        retrying: task.retrying && effect.to == Status::Scheduled,
        ..task
    };
    match effect.place {
        Place::JoinsNow => {
            next.ready_at = now;
            next.run_at = now;
        }
        Place::WaitsThenJoins => {
            next.run_at = now + delay.min(limits::DELAY);
            next.ready_at = next.run_at;
        }
        Place::WaitsThenReturns => next.run_at = now + delay.min(limits::DELAY),
        // `ready_at` was set when the task began to wait, and a claim leaves it alone.
        Place::JoinsAtDueTime | Place::Returns | Place::Keep | Place::Leaves | Place::Moves => {}
    }
    next
}
