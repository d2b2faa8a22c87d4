//! New tasks: submits and follow-ups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::ids::{TaskId, TaskKey};
use windlass_core::keys::{OnConflict, Unique, UniqueKey};
use windlass_core::lane::LaneKey;
use windlass_core::limits;
use windlass_core::names::{QueueName, Text};
use windlass_core::priority::Priority;
use windlass_core::rate::Bucket;
use windlass_core::status::Status;
use windlass_core::store::{KnownBy, SubmitError, Submitted};
use windlass_core::task::{NewTask, Start, TaskSpec};
use windlass_core::time::Timestamp;
use windlass_core::transition::{Trigger, transition};

use crate::claim::missing;
use crate::flows;
use crate::index::LiveTask;
use crate::intake::KnownAs;
use crate::journal::{Journal, JournalResult, KeyRow, KeyScope, Needs, SEGMENT_KEYS, SubmitTimes, UniqueRow};
use crate::ledger::{Ledger, Move, Noted};

/// A task to be stored, with what can be computed before it is its turn.
#[derive(Debug)]
pub struct Prepared {
    spec: TaskSpec,
    start: Start,
    key: Option<(KeyScope, u64)>,
    /// Set if the task has its id already.
    known_as: Option<KnownAs>,
}

impl Prepared {
    /// Computes what needs no look at the store.
    pub fn new(task: NewTask) -> Self {
        let NewTask { spec, start } = task;
        let key = spec.idempotency_key.clone().map(|key| {
            let digest = spec.parameters.canonical_digest()
                ^ windlass_core::json::digest(spec.task_type.as_str().as_bytes()).rotate_left(1);
            (KeyScope { queue: spec.queue.clone(), tenant: spec.tenant.clone(), key }, digest)
        });
        Self { spec, start, key, known_as: None }
    }

    /// The same task under an id that it has already.
    #[must_use]
    pub(crate) fn known_as(self, key: TaskKey, created_at: Timestamp) -> Self {
        Self { known_as: Some(KnownAs { key, created_at }), ..self }
    }

    /// The same task without anything that another could stand in the way of.
    pub(crate) fn without_keys(&self) -> Self {
        let spec = TaskSpec { idempotency_key: None, unique: None, flow_key: None, ..self.spec.clone() };
        Self { spec, start: self.start, key: None, known_as: self.known_as }
    }

    /// Adds the rows that storing it asks for.
    pub(crate) fn needs(&self, needs: &mut Needs) {
        needs.idempotency.extend(self.key.iter().map(|(scope, _)| scope.clone()));
        needs.uniques.extend(self.spec.unique.iter().map(|unique| unique.key));
    }
}

/// What the earlier items of a batch add to a queue.
#[derive(Default)]
struct Added {
    tasks: u64,
    lanes: HashSet<LaneKey>,
}

/// What the earlier items of a batch have taken.
#[derive(Default)]
struct Batch<'a> {
    keys: HashMap<&'a KeyScope, (usize, u64)>,
    /// With how the task that takes it will stand.
    uniques: HashMap<UniqueKey, Status>,
    queues: HashMap<&'a QueueName, Added>,
    tenants: HashMap<(&'a QueueName, &'a Text), (usize, u64)>,
}

enum Fate {
    New,
    /// The task that has the idempotency key.
    Known(KeyRow),
    /// The same idempotency key as an earlier item of the same batch.
    SameAs(usize),
    /// A task with the same unique key stands, perhaps one of the same batch.
    Unique(OnConflict),
}

impl Ledger {
    /// See [`windlass_core::store::Store::submit`]. Looks at every item first and writes
    /// only when all of them can be stored.
    pub fn submit(
        &mut self,
        journal: &mut dyn Journal,
        tasks: &[Prepared],
    ) -> JournalResult<Result<Vec<Submitted>, SubmitError>> {
        let mut fates = Vec::with_capacity(tasks.len());
        let mut batch = Batch::default();
        for (index, task) in tasks.iter().enumerate() {
            match self.fate(journal, index, task, &mut batch)? {
                Ok(fate) => fates.push(fate),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        if let Err(refused) = self.charge_tenants(&batch) {
            return Ok(Err(refused));
        }
        let mut answers: Vec<Submitted> = Vec::with_capacity(tasks.len());
        for (task, fate) in tasks.iter().zip(fates) {
            let answer = match fate {
                Fate::New => self.insert(journal, task, Actor::Api)?,
                Fate::Known(row) => self.known(journal, row.task, row.created_at, KnownBy::IdempotencyKey)?,
                Fate::SameAs(earlier) => Submitted { known_by: Some(KnownBy::IdempotencyKey), ..answers[earlier] },
                Fate::Unique(on_conflict) => self.meet(journal, task, on_conflict, Actor::Api)?,
            };
            answers.push(answer);
        }
        Ok(Ok(answers))
    }

    /// What becomes of one item, and what it takes from those that follow.
    fn fate<'a>(
        &mut self,
        journal: &mut dyn Journal,
        index: usize,
        task: &'a Prepared,
        batch: &mut Batch<'a>,
    ) -> JournalResult<Result<Fate, SubmitError>> {
        if let Some((scope, digest)) = &task.key {
            match self.known_key(journal, scope, *digest, &mut batch.keys, index)? {
                Ok(Fate::New) => {}
                Ok(known) => return Ok(Ok(known)),
                Err(existing) => return Ok(Err(SubmitError::IdempotencyKeyReused { index, existing })),
            }
        }
        if let Some(unique) = &task.spec.unique {
            let refused = |existing, status| Ok(Err(SubmitError::UniqueConflict { index, existing, status }));
            if let Some(status) = batch.uniques.get(&unique.key) {
                return match unique.on_conflict {
                    OnConflict::Error => refused(None, *status),
                    stands => Ok(Ok(Fate::Unique(stands))),
                };
            }
            if let Some((row, status)) = self.unique_holder(journal, unique)? {
                let existing = self.id_of(row.task, row.created_at);
                let stands = match unique.on_conflict {
                    OnConflict::Keep => true,
                    OnConflict::Replace | OnConflict::Reschedule => status != Status::Executing,
                    OnConflict::Error => false,
                };
                if !stands {
                    return refused(Some(existing), status);
                }
                return Ok(Ok(Fate::Unique(unique.on_conflict)));
            }
            batch.uniques.insert(unique.key, self.first_status(self.run_at(task.start)));
        }
        let queue = &task.spec.queue;
        let lane = LaneKey::of(&task.spec, &self.settings);
        if let Err(full) = self.has_room(index, lane, batch.queues.entry(queue).or_default()) {
            return Ok(Err(full));
        }
        if let Some(tenant) = &task.spec.tenant {
            batch.tenants.entry((queue, tenant)).or_insert((index, 0)).1 += 1;
        }
        Ok(Ok(Fate::New))
    }

    /// The task that a submit with this unique key meets, and where it stands.
    fn unique_holder(
        &mut self,
        journal: &mut dyn Journal,
        unique: &Unique,
    ) -> JournalResult<Option<(UniqueRow, Status)>> {
        let Some(row) = journal.unique(unique.key)?.filter(|row| row.is_taken(self.now)) else { return Ok(None) };
        if let Some(task) = self.index.task(row.task) {
            return Ok(Some((row, task.status)));
        }
        // It has ended and only time keeps its key: there is nothing to replace or to move.
        match unique.on_conflict {
            OnConflict::Keep | OnConflict::Error => {
                let status = journal.ended(row.task)?.map_or(Status::Completed, |ended| ended.status);
                Ok(Some((row, status)))
            }
            OnConflict::Replace | OnConflict::Reschedule => Ok(None),
        }
    }

    /// A submit meets a task with the same unique key.
    fn meet(
        &mut self,
        journal: &mut dyn Journal,
        new: &Prepared,
        on_conflict: OnConflict,
        actor: Actor,
    ) -> JournalResult<Submitted> {
        let row = match &new.spec.unique {
            Some(unique) => journal.unique(unique.key)?,
            None => None,
        };
        let Some(row) = row else { return self.insert(journal, new, actor) };
        let live = self.index.task(row.task).filter(|task| task.status != Status::Executing);
        let known_by = match (on_conflict, live) {
            (OnConflict::Keep | OnConflict::Error, _) | (_, None) => KnownBy::UniqueKept,
            (OnConflict::Replace, Some(task)) => {
                self.replace(journal, row.task, task, new, actor)?;
                KnownBy::UniqueReplaced
            }
            (OnConflict::Reschedule, Some(task)) => {
                self.reschedule(journal, row.task, task, new, actor)?;
                KnownBy::UniqueRescheduled
            }
        };
        // The same submit sent again is answered with what it met, and does nothing twice.
        self.remember_key(journal, new, row.task, row.created_at)?;
        self.known(journal, row.task, row.created_at, known_by)
    }

    /// When a new task may start.
    fn run_at(&self, start: Start) -> Timestamp {
        match start {
            Start::Now => self.now,
            Start::After(delay) => self.now + delay.min(limits::DELAY),
            Start::At(time) => time.max(self.now),
        }
    }

    /// How a new task that may start then stands at first.
    fn first_status(&self, run_at: Timestamp) -> Status {
        if run_at > self.now { Status::Scheduled } else { Status::Queued }
    }

    /// The waiting task takes on everything of the new one but its id and its age.
    fn replace(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        task: LiveTask,
        new: &Prepared,
        actor: Actor,
    ) -> JournalResult<()> {
        let Some(mut row) = journal.task(key)? else { return Err(missing(key)) };
        let spec = &new.spec;
        row.spec.task_type = spec.task_type.clone();
        row.spec.capabilities = spec.capabilities.clone();
        row.spec.priority = spec.priority;
        row.spec.parameters = spec.parameters.clone();
        row.spec.tags.clone_from(&spec.tags);
        row.spec.expires_at = spec.expires_at;
        row.spec.policy = spec.policy.clone();
        row.spec.trace_parent.clone_from(&spec.trace_parent);
        row.spec.flow_key.clone_from(&spec.flow_key);
        row.spec.unique.clone_from(&spec.unique);
        journal.replace_task(key, &row)?;
        let joins_now = task.status == Status::Queued && self.run_at(new.start) <= self.now;
        let keyed = self.keyed_anew(key, spec, joins_now);
        let task = LiveTask { keyed: keyed.is_some(), ..task };
        self.index.set_task(key, None);
        self.index.set_expiry(key, spec.expires_at);
        self.index.set_keyed(key, keyed);
        self.index.set_task(key, Some(task));
        let lane = self.lane_of(&row);
        self.start_at(journal, key, LiveTask { lane, ..task }, task.status, new.start, actor, |run_at| {
            Change::Replaced { run_at }
        })
    }

    /// What a replaced task has to do with its new key: its old place if the key is the same, else it joins at the
    /// back, now or when it is due.
    fn keyed_anew(&mut self, key: TaskKey, spec: &TaskSpec, joins_now: bool) -> Option<flows::Keyed> {
        let old = self.index.keyed(key);
        let joined = joins_now.then_some(flows::Place { since: self.now, aside: false });
        let mut new = self.index.flows.keyed(&spec.queue, spec.flow_key.as_ref()?, joined);
        if let Some(old) = old.filter(|old| old.flow == new.flow) {
            new.place = old.place;
        }
        Some(new)
    }

    /// The waiting task starts when the new one would have.
    fn reschedule(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        task: LiveTask,
        new: &Prepared,
        actor: Actor,
    ) -> JournalResult<()> {
        self.start_at(journal, key, task, task.status, new.start, actor, |run_at| Change::Amended {
            priority: None,
            run_at: Some(run_at),
            tags: None,
        })
    }

    fn start_at(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        mut next: LiveTask,
        from: Status,
        start: Start,
        actor: Actor,
        change: impl FnOnce(Timestamp) -> Change,
    ) -> JournalResult<()> {
        let past = Self::past(journal, key, &next, None)?;
        let run_at = self.run_at(start);
        let effect = transition(from, Trigger::Amend).map_err(|_| missing(key))?;
        next.run_at = run_at;
        next.ready_at = run_at;
        next.status = match from {
            Status::Queued | Status::Scheduled if run_at > self.now => Status::Scheduled,
            Status::Queued => Status::Queued,
            // Due at once: maintenance brings it in, as it does every scheduled task.
            Status::Scheduled => Status::Scheduled,
            Status::Blocked
            | Status::Executing
            | Status::Completed
            | Status::Failed
            | Status::Cancelled
            | Status::DeadLetter => from,
        };
        let step = Move::new(key, from, next, effect, past, change(run_at), actor);
        self.carry_on(journal, step)?;
        Ok(())
    }

    /// Takes the tokens of all tenants, or of none.
    fn charge_tenants(&mut self, batch: &Batch<'_>) -> Result<(), SubmitError> {
        let mut charged = Vec::new();
        for ((queue, tenant), (index, tasks)) in &batch.tenants {
            let Some(limit) = self.settings.queues.get(*queue).and_then(|queue| queue.tenant_rate_limit) else {
                continue;
            };
            let place = ((*queue).clone(), (*tenant).clone());
            let mut bucket = match self.tenant_buckets.get(&place) {
                Some(bucket) => bucket.with_limit(limit, self.now),
                None => Bucket::full(limit, self.now),
            };
            if let Err(retry_after) = bucket.take_many(*tasks, self.now) {
                let (queue, tenant) = place;
                return Err(SubmitError::RateLimited { index: *index, queue, tenant, retry_after });
            }
            charged.push((place, bucket));
        }
        if self.tenant_buckets.len() + charged.len() > limits::COUNTED_TENANTS {
            // Forgetting a full bucket changes nothing; were none full, the few that submit the
            // most would get a burst too many.
            let now = self.now;
            self.tenant_buckets.retain(|_, bucket| !bucket.is_full(now));
            if self.tenant_buckets.len() + charged.len() > limits::COUNTED_TENANTS {
                self.tenant_buckets.clear();
            }
        }
        for (place, bucket) in charged {
            self.remember_tenant(&place);
            self.tenant_buckets.insert(place, bucket);
        }
        Ok(())
    }

    fn known_key<'a>(
        &mut self,
        journal: &mut dyn Journal,
        scope: &'a KeyScope,
        digest: u64,
        keys_here: &mut HashMap<&'a KeyScope, (usize, u64)>,
        index: usize,
    ) -> JournalResult<Result<Fate, Option<TaskId>>> {
        if let Some((earlier, other)) = keys_here.get(scope) {
            return Ok(if *other == digest { Ok(Fate::SameAs(*earlier)) } else { Err(None) });
        }
        let Some(row) = journal.idempotency(scope)? else {
            keys_here.insert(scope, (index, digest));
            return Ok(Ok(Fate::New));
        };
        if row.digest != digest {
            return Ok(Err(Some(self.ids.task_id(row.task, row.created_at))));
        }
        Ok(Ok(Fate::Known(row)))
    }

    fn has_room(&self, index: usize, lane: LaneKey, added: &mut Added) -> Result<(), SubmitError> {
        let bounds = self.settings.depth(&lane.queue);
        let bound = if lane.priority >= Priority::HIGH { bounds.hard } else { bounds.soft };
        let depth = self.index.lanes.depth(&lane.queue) + added.tasks;
        if depth >= bound {
            return Err(SubmitError::QueueFull { index, queue: lane.queue, depth, bound });
        }
        if !self.index.lanes.contains(&lane) {
            let queue = lane.queue.clone();
            let is_new = added.lanes.insert(lane);
            let lanes = self.index.lanes.count(&queue) + added.lanes.len();
            if is_new && lanes > self.settings.max_lanes(&queue) {
                return Err(SubmitError::TooManyLanes { index, queue });
            }
        }
        added.tasks += 1;
        Ok(())
    }

    /// The answer for a task that was there before.
    pub(crate) fn known(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        created_at: Timestamp,
        known_by: KnownBy,
    ) -> JournalResult<Submitted> {
        let (id, known_by) = (self.id_of(key, created_at), Some(known_by));
        if let Some(task) = self.index.task(key) {
            let waits = task.status == Status::Queued;
            let position = if waits { self.index.lanes.ahead(task.lane, task.ready_at, key) } else { 0 };
            return Ok(Submitted { id, status: task.status, known_by, position });
        }
        // Retention can be shorter than the key's window; what is gone had ended.
        let status = journal.ended(key)?.map_or(Status::Completed, |ended| ended.status);
        Ok(Submitted { id, status, known_by, position: 0 })
    }

    /// Stores a follow-up. It is never refused: the work it belongs to was accepted long ago.
    pub(crate) fn follow_up(
        &mut self,
        journal: &mut dyn Journal,
        task: &Prepared,
        actor: Actor,
    ) -> JournalResult<TaskId> {
        if let Some((scope, _)) = &task.key
            && let Some(row) = journal.idempotency(scope)?
        {
            return Ok(self.id_of(row.task, row.created_at));
        }
        if let Some(unique) = &task.spec.unique
            && let Some((_, status)) = self.unique_holder(journal, unique)?
        {
            // A follow-up is never refused: where a submit would be, the task that is there stands.
            let on_conflict = if status == Status::Executing { OnConflict::Keep } else { unique.on_conflict };
            return Ok(self.meet(journal, task, on_conflict, actor)?.id);
        }
        Ok(self.insert(journal, task, actor)?.id)
    }

    pub(crate) fn insert(
        &mut self,
        journal: &mut dyn Journal,
        task: &Prepared,
        actor: Actor,
    ) -> JournalResult<Submitted> {
        let run_at = self.run_at(task.start);
        let status = self.first_status(run_at);
        let (key, now) = match task.known_as {
            // Its id has the time at which it was written, by the clock of the database, which may be ahead of ours.
            Some(KnownAs { key, created_at }) => (key, created_at),
            None => (TaskKey(self.numbers.task.take(1, journal)?), self.now),
        };
        // Recovery tells by these two times whether it was queued at once.
        let run_at = if status == Status::Queued { now } else { run_at.max(now + Duration::from_micros(1)) };
        if key.0.is_multiple_of(SEGMENT_KEYS) || !self.index.segment_is_live(key) {
            journal.open_segment(key.0 / SEGMENT_KEYS)?;
            let before = TaskKey(key.0.saturating_sub(SEGMENT_KEYS));
            if before.0 / SEGMENT_KEYS < key.0 / SEGMENT_KEYS && !self.index.segment_is_live(before) {
                journal.close_segment(before.0 / SEGMENT_KEYS)?;
            }
        }
        let event_no = self.event_no(journal)?;
        journal.insert_task(key, &task.spec, SubmitTimes { created_at: now, run_at, event_no })?;
        self.remember_key(journal, task, key, now)?;
        self.take_unique(journal, key, now, &task.spec)?;
        let settings = Arc::clone(&self.settings);
        // From here on nothing fails, so that the lane is not left without a member.
        let lane = self.index.lanes.open(&LaneKey::of(&task.spec, &settings), &settings);
        let joins = (status == Status::Queued).then_some(flows::Place { since: now, aside: false });
        let held = match &task.spec.flow_key {
            Some(flow_key) => {
                let keyed = self.index.flows.keyed(&task.spec.queue, flow_key, joins);
                self.index.set_keyed(key, Some(keyed));
                // The first of a line is admitted when the submit is whole.
                status == Status::Queued
                    && (self.index.flows.is_line(keyed.flow) || self.index.flows.is_full(keyed.flow))
            }
            None => false,
        };
        let live = LiveTask {
            lane,
            status,
            retrying: false,
            held,
            keyed: task.spec.flow_key.is_some(),
            unique: task.spec.unique.is_some(),
            overlaid: false,
            timeouts: 0,
            retries: 0,
            crashes: 0,
            attempt: 0,
            version: 1,
            created_at: now,
            ready_at: run_at,
            run_at,
        };
        if let Some(expires_at) = task.spec.expires_at {
            self.index.set_expiry(key, Some(expires_at));
        }
        self.index.set_task(key, Some(live));
        let change = Change::Submitted { status, run_at };
        self.note(Noted {
            key,
            task: live,
            from: None,
            to: status,
            change,
            actor,
            lease: None,
            ahead_of: None,
            failure: None,
        });
        self.lanes_changed |= status == Status::Queued;
        let position = if status == Status::Queued { self.index.lanes.ahead(lane, run_at, key) } else { 0 };
        Ok(Submitted { id: self.id_of(key, now), status, known_by: None, position })
    }

    /// Remembers which task a submit with an idempotency key led to.
    fn remember_key(
        &mut self,
        journal: &mut dyn Journal,
        new: &Prepared,
        task: TaskKey,
        created_at: Timestamp,
    ) -> JournalResult<()> {
        let Some((scope, digest)) = &new.key else { return Ok(()) };
        let forget_at = self.now + limits::IDEMPOTENCY_WINDOW;
        journal.put_idempotency(scope, &KeyRow { task, created_at, digest: *digest, forget_at })
    }

    fn take_unique(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        created_at: Timestamp,
        spec: &TaskSpec,
    ) -> JournalResult<()> {
        let Some(unique) = &spec.unique else { return Ok(()) };
        let keep_until = unique.for_seconds.map(|span| self.now + span.min(limits::DELAY));
        journal.put_unique(unique.key, Some(&UniqueRow { task: key, created_at, held: true, keep_until }))
    }
}
