//! New tasks: submits and follow-ups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::ids::{TaskId, TaskKey};
use windlass_core::lane::LaneKey;
use windlass_core::limits;
use windlass_core::names::QueueName;
use windlass_core::priority::Priority;
use windlass_core::status::Status;
use windlass_core::store::{SubmitError, Submitted};
use windlass_core::task::{NewTask, Start, TaskSpec};

use crate::index::LiveTask;
use crate::journal::{Journal, JournalResult, KeyRow, KeyScope, SEGMENT_KEYS, SubmitTimes};
use crate::ledger::{Ledger, Noted};

/// A task to be stored, with what can be computed before it is its turn.
#[derive(Debug)]
pub struct Prepared {
    spec: TaskSpec,
    start: Start,
    lane: LaneKey,
    key: Option<(KeyScope, u64)>,
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
        let lane = LaneKey::of(&spec);
        Self { spec, start, lane, key }
    }
}

/// What the earlier items of a batch add to a queue.
#[derive(Default)]
struct Added<'a> {
    tasks: u64,
    lanes: HashSet<&'a LaneKey>,
}

enum Fate {
    New,
    /// The task that has the key.
    Known(KeyRow),
    /// The same key as an earlier item of the same batch.
    SameAs(usize),
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
        let mut keys_here: HashMap<&KeyScope, (usize, u64)> = HashMap::new();
        let mut added: HashMap<&QueueName, Added<'_>> = HashMap::new();
        for (index, task) in tasks.iter().enumerate() {
            let fate = match &task.key {
                None => Fate::New,
                Some((scope, digest)) => match self.known_key(journal, scope, *digest, &mut keys_here, index)? {
                    Ok(fate) => fate,
                    Err(existing) => return Ok(Err(SubmitError::IdempotencyKeyReused { index, existing })),
                },
            };
            if matches!(fate, Fate::New)
                && let Err(full) = self.has_room(index, &task.lane, added.entry(&task.lane.queue).or_default())
            {
                return Ok(Err(full));
            }
            fates.push(fate);
        }
        let mut answers: Vec<Submitted> = Vec::with_capacity(tasks.len());
        for (task, fate) in tasks.iter().zip(fates) {
            let answer = match fate {
                Fate::New => self.insert(journal, task, Actor::Api)?,
                Fate::Known(row) => self.known(journal, &row)?,
                Fate::SameAs(earlier) => Submitted { deduplicated: true, ..answers[earlier] },
            };
            answers.push(answer);
        }
        Ok(Ok(answers))
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

    fn has_room<'a>(&self, index: usize, lane: &'a LaneKey, added: &mut Added<'a>) -> Result<(), SubmitError> {
        let bounds = self.settings.depth(&lane.queue);
        let bound = if lane.priority >= Priority::HIGH { bounds.hard } else { bounds.soft };
        let depth = self.index.lanes.depth(&lane.queue) + added.tasks;
        if depth >= bound {
            return Err(SubmitError::QueueFull { index, queue: lane.queue.clone(), depth, bound });
        }
        if !self.index.lanes.contains(lane) && added.lanes.insert(lane) {
            let lanes = self.index.lanes.count(&lane.queue) + added.lanes.len();
            if lanes > limits::LANES_PER_QUEUE {
                return Err(SubmitError::TooManyLanes { index, queue: lane.queue.clone() });
            }
        }
        added.tasks += 1;
        Ok(())
    }

    /// The answer for a task that was there before.
    fn known(&mut self, journal: &mut dyn Journal, row: &KeyRow) -> JournalResult<Submitted> {
        let (key, id) = (row.task, self.id_of(row.task, row.created_at));
        if let Some(task) = self.index.task(key) {
            let waits = task.status == Status::Queued;
            let position = if waits { self.index.lanes.ahead(task.lane, task.ready_at, key) } else { 0 };
            return Ok(Submitted { id, status: task.status, deduplicated: true, position });
        }
        // Retention can be shorter than the key's window; what is gone had ended.
        let status = journal.ended(key)?.map_or(Status::Completed, |ended| ended.status);
        Ok(Submitted { id, status, deduplicated: true, position: 0 })
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
        Ok(self.insert(journal, task, actor)?.id)
    }

    fn insert(&mut self, journal: &mut dyn Journal, task: &Prepared, actor: Actor) -> JournalResult<Submitted> {
        let now = self.now;
        let run_at = match task.start {
            Start::Now => now,
            Start::After(delay) => now + delay.min(limits::DELAY),
            Start::At(time) => time.max(now),
        };
        let status = if run_at > now { Status::Scheduled } else { Status::Queued };
        let key = TaskKey(self.numbers.task.take(1, journal)?);
        if key.0.is_multiple_of(SEGMENT_KEYS) || !self.index.segment_is_live(key) {
            journal.open_segment(key.0 / SEGMENT_KEYS)?;
            let before = TaskKey(key.0.saturating_sub(SEGMENT_KEYS));
            if before.0 / SEGMENT_KEYS < key.0 / SEGMENT_KEYS && !self.index.segment_is_live(before) {
                journal.close_segment(before.0 / SEGMENT_KEYS)?;
            }
        }
        let event_no = self.event_no(journal)?;
        journal.insert_task(key, &task.spec, SubmitTimes { created_at: now, run_at, event_no })?;
        if let Some((scope, digest)) = &task.key {
            let forget_at = now + limits::IDEMPOTENCY_WINDOW;
            journal.put_idempotency(scope, &KeyRow { task: key, created_at: now, digest: *digest, forget_at })?;
        }
        let settings = Arc::clone(&self.settings);
        let lane = self.index.lanes.open(&task.lane, &settings);
        let live = LiveTask {
            lane,
            status,
            retrying: false,
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
        self.note(Noted { key, task: live, from: None, to: status, change, actor, lease: None, ahead_of: None });
        self.lanes_changed |= status == Status::Queued;
        let position = if status == Status::Queued { self.index.lanes.ahead(lane, run_at, key) } else { 0 };
        Ok(Submitted { id: self.id_of(key, now), status, deduplicated: false, position })
    }
}
