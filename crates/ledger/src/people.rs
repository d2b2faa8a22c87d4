//! What people do to tasks: cancel, amend, run again, take out, give up.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::failure::EndReason;
use windlass_core::ids::{TaskId, TaskKey};
use windlass_core::lane::LaneKey;
use windlass_core::limits;
use windlass_core::status::Status;
use windlass_core::store::{Amendment, Cancelled, ChangeError, Claimed, Requeue};
use windlass_core::transition::{Effect, Trigger, transition};

use crate::claim::{Served, missing};
use crate::finish::given_up;
use crate::index::{Lease, LiveTask};
use crate::journal::{Ended, Journal, JournalResult, Needs, SEGMENT_KEYS, TaskRow, UniqueRow};
use crate::ledger::{Ending, Ledger, Move, Noted, Past, moved};

impl Ledger {
    /// Adds the rows of tasks that somebody wants to change.
    pub(crate) fn needs_of_tasks(&self, ids: &[TaskId], needs: &mut Needs) {
        needs.tasks.extend(ids.iter().filter_map(|id| self.ids.task_key(*id)));
    }

    /// Where a task stands, live or ended.
    fn find(&mut self, journal: &mut dyn Journal, id: TaskId) -> JournalResult<Result<(TaskKey, Found), ChangeError>> {
        let Some(key) = self.ids.task_key(id) else { return Ok(Err(ChangeError::UnknownTask)) };
        if let Some(task) = self.index.task(key) {
            return Ok(Ok((key, Found::Live(task))));
        }
        // What is past its retention is as good as gone, and may be counted as such already.
        let kept = |ended: &Ended| ended.keep_until.is_none_or(|until| until > self.now);
        Ok(match journal.ended(key)?.filter(kept) {
            Some(ended) => Ok((key, Found::Ended(Box::new(ended)))),
            None => Err(ChangeError::UnknownTask),
        })
    }

    /// See [`windlass_core::store::Store::cancel`].
    pub(crate) fn cancel(
        &mut self,
        journal: &mut dyn Journal,
        ids: &[TaskId],
        by: Actor,
        served: &mut Vec<Served>,
    ) -> JournalResult<Vec<Result<Cancelled, ChangeError>>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(match self.find(journal, *id)? {
                Err(refused) => Err(refused),
                Ok((key, found)) => match (found.legal(Trigger::Cancel), found) {
                    (Ok(effect), Found::Live(task)) => {
                        self.cancel_one(journal, key, task, &effect, by, served)?;
                        Ok(Cancelled { was_executing: task.status == Status::Executing })
                    }
                    (Err(refused), _) => Err(refused),
                    (Ok(_), Found::Ended(ended)) => Err(ChangeError::WrongStatus(ended.status)),
                },
            });
        }
        Ok(answers)
    }

    /// Cancels a task that nobody has begun, and says why.
    pub(crate) fn cancel_with_note(
        &mut self,
        journal: &mut dyn Journal,
        id: TaskId,
        note: String,
    ) -> JournalResult<()> {
        let Ok((key, Found::Live(task))) = self.find(journal, id)? else { return Ok(()) };
        let Ok(effect) = legal(task.status, Trigger::Cancel) else { return Ok(()) };
        let past = Self::past(journal, key, &task, None)?;
        let ended = moved(task, &effect, self.now, Duration::ZERO);
        let change = Change::Cancelled { note: Some(note) };
        self.end(journal, Move::new(key, task.status, ended, effect, past, change, Actor::System), Ending::default())
    }

    fn cancel_one(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        task: LiveTask,
        effect: &Effect,
        by: Actor,
        served: &mut Vec<Served>,
    ) -> JournalResult<()> {
        let lease = self.index.lease(key);
        let past = Self::past(journal, key, &task, lease.as_ref())?;
        let ended = moved(task, effect, self.now, Duration::ZERO);
        let step = Move::new(key, task.status, ended, *effect, past, Change::Cancelled { note: None }, by)
            .under(lease.as_ref());
        self.end(journal, step, Ending::default())?;
        if let Some(lease) = lease {
            // The worker still runs it: the lease stays, revoked, until it answers or lapses.
            self.index.set_lease(key, Some(Lease { revoked: true, ..lease }));
            if let Some(waiter) = self.waiters.of_worker(lease.worker) {
                let claimed = Claimed { tasks: Vec::new(), cancel: self.tell_revoked(lease.worker) };
                served.push(Served { waiter, claimed });
            }
        }
        Ok(())
    }

    /// See [`windlass_core::store::Store::amend`].
    pub fn amend(
        &mut self,
        journal: &mut dyn Journal,
        id: TaskId,
        amendment: &Amendment,
        by: Actor,
    ) -> JournalResult<Result<(), ChangeError>> {
        let (key, found) = match self.find(journal, id)? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        let (effect, task) = match (found.legal(Trigger::Amend), found) {
            (Ok(effect), Found::Live(task)) => (effect, task),
            (Err(refused), _) => return Ok(Err(refused)),
            (Ok(_), Found::Ended(ended)) => return Ok(Err(ChangeError::WrongStatus(ended.status))),
        };
        let past = Self::past(journal, key, &task, None)?;
        let mut next = task;
        if amendment.priority.is_some() || amendment.tags.is_some() {
            let Some(mut row) = journal.task(key)? else { return Err(missing(key)) };
            row.spec.priority = amendment.priority.unwrap_or(row.spec.priority);
            if let Some(tags) = &amendment.tags {
                row.spec.tags.clone_from(tags);
            }
            journal.update_task(key, &row)?;
            next.lane = self.lane_of(&row);
        }
        if let Some(run_at) = amendment.run_at {
            match next.status {
                // A time that has passed means now: nobody gets ahead by naming an old one.
                Status::Scheduled => {
                    next.run_at = run_at.max(self.now);
                    next.ready_at = next.run_at;
                }
                Status::Queued if run_at > self.now => {
                    next.status = Status::Scheduled;
                    next.run_at = run_at;
                    next.ready_at = run_at;
                }
                Status::Queued
                | Status::Blocked
                | Status::Executing
                | Status::Completed
                | Status::Failed
                | Status::Cancelled
                | Status::DeadLetter => {}
            }
        }
        let change =
            Change::Amended { priority: amendment.priority, run_at: amendment.run_at, tags: amendment.tags.clone() };
        let step = Move::new(key, task.status, next, effect, past, change, by);
        self.carry_on(journal, step)?;
        Ok(Ok(()))
    }

    /// See [`windlass_core::store::Store::requeue`].
    pub fn requeue(
        &mut self,
        journal: &mut dyn Journal,
        wishes: &[Requeue],
        by: Actor,
    ) -> JournalResult<Vec<Result<(), ChangeError>>> {
        let mut answers = Vec::with_capacity(wishes.len());
        for wish in wishes {
            answers.push(match self.find(journal, wish.task)? {
                Err(refused) => Err(refused),
                Ok((_, found)) if wish.only_dead && found.status() != Status::DeadLetter => {
                    Err(ChangeError::WrongStatus(found.status()))
                }
                Ok((key, Found::Live(task))) => match legal(task.status, Trigger::RunNow) {
                    Ok(effect) => {
                        self.run_now(journal, key, task, &effect, wish, by)?;
                        Ok(())
                    }
                    Err(refused) => Err(refused),
                },
                Ok((key, Found::Ended(ended))) => {
                    let trigger = if wish.delay.is_zero() { Trigger::Replay } else { Trigger::ReplayLater };
                    match legal(ended.status, trigger) {
                        Ok(effect) => self.replay(journal, key, &ended, &effect, wish, by)?,
                        Err(refused) => Err(refused),
                    }
                }
            });
        }
        Ok(answers)
    }

    fn run_now(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        task: LiveTask,
        effect: &Effect,
        wish: &Requeue,
        by: Actor,
    ) -> JournalResult<()> {
        let past = Self::past(journal, key, &task, None)?;
        let mut next = moved(task, effect, self.now, Duration::ZERO);
        if wish.reset_retries {
            next.retries = 0;
        }
        let Some(mut row) = journal.task(key)? else { return Err(missing(key)) };
        edit(&mut row, wish);
        journal.update_task(key, &row)?;
        next.lane = self.lane_of(&row);
        let change = replayed(&next, wish);
        let step = Move::new(key, task.status, next, *effect, past, change, by);
        self.carry_on(journal, step)?;
        Ok(())
    }

    fn replay(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        ended: &Ended,
        effect: &Effect,
        wish: &Requeue,
        by: Actor,
    ) -> JournalResult<Result<(), ChangeError>> {
        let Some(mut row) = journal.task(key)? else { return Err(missing(key)) };
        if wish.by_rule && std::mem::replace(&mut row.auto_replayed, true) {
            return Ok(Err(ChangeError::ReplayedBefore));
        }
        if let Err(refused) = self.take_unique_again(journal, key, &row)? {
            return Ok(Err(refused));
        }
        if ended.status == Status::DeadLetter {
            self.index.count_dead(&row.spec.queue, &row.spec.task_type, -1);
        }
        edit(&mut row, wish);
        // A person wants it to run whatever time it is.
        row.spec.expires_at = None;
        journal.update_task(key, &row)?;
        let counted = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let was = LiveTask {
            lane: self.lane_of(&row),
            status: ended.status,
            retrying: false,
            held: false,
            keyed: row.spec.flow_key.is_some(),
            unique: row.spec.unique.is_some(),
            overlaid: true,
            timeouts: ended.timeouts,
            retries: counted(ended.retries),
            crashes: counted(ended.crashes),
            attempt: ended.attempt,
            version: ended.version,
            created_at: row.created_at,
            ready_at: ended.ready_at,
            run_at: ended.run_at,
        };
        let mut next = moved(was, effect, self.now, wish.delay);
        if !wish.reset_retries {
            next.retries = was.retries;
        }
        let past = Past {
            event_nos: ended.event_nos.clone(),
            applied: ended.applied,
            started_at: ended.started_at,
            worker: ended.worker,
        };
        journal.drop_ended(key)?;
        journal.put_progress(key, None)?;
        journal.open_segment(key.0 / SEGMENT_KEYS)?;
        self.count_ended(ended.status, -1);
        if let Some(flow_key) = &row.spec.flow_key {
            let keyed = self.index.flows.keyed(&row.spec.queue, flow_key, None);
            self.index.set_keyed(key, Some(keyed));
        }
        let change = replayed(&next, wish);
        let step = Move::new(key, ended.status, next, *effect, past, change, by);
        self.carry_on(journal, step)?;
        Ok(Ok(()))
    }

    /// A task that runs again has its unique key again, unless another has it now.
    fn take_unique_again(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        row: &TaskRow,
    ) -> JournalResult<Result<(), ChangeError>> {
        let Some(unique) = &row.spec.unique else { return Ok(Ok(())) };
        if let Some(other) = journal.unique(unique.key)?.filter(|other| other.task != key && other.is_taken(self.now)) {
            return Ok(Err(ChangeError::UniqueConflict(self.id_of(other.task, other.created_at))));
        }
        // Counted from the submit, also where another had the key in between.
        let keep_until = unique.for_seconds.map(|span| row.created_at + span.min(limits::DELAY));
        let taken = UniqueRow { task: key, created_at: row.created_at, held: true, keep_until };
        journal.put_unique(unique.key, Some(&taken))?;
        Ok(Ok(()))
    }

    /// See [`windlass_core::store::Store::bury`].
    pub fn bury(
        &mut self,
        journal: &mut dyn Journal,
        ids: &[TaskId],
        note: &str,
        by: Actor,
    ) -> JournalResult<Vec<Result<(), ChangeError>>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(match self.find(journal, *id)? {
                Err(refused) => Err(refused),
                Ok((key, found)) => match (found.legal(Trigger::Bury), found) {
                    (Ok(effect), Found::Live(task)) => {
                        let past = Self::past(journal, key, &task, None)?;
                        let ended = moved(task, &effect, self.now, Duration::ZERO);
                        let reason = EndReason::RejectedByOperator;
                        let change = given_up(ended, reason, None, None, Some(note.to_owned()));
                        let step = Move::new(key, task.status, ended, effect, past, change, by);
                        self.end(journal, step, Ending { reason: Some(reason), result: None })?;
                        Ok(())
                    }
                    (Err(refused), _) => Err(refused),
                    (Ok(_), Found::Ended(ended)) => Err(ChangeError::WrongStatus(ended.status)),
                },
            });
        }
        Ok(answers)
    }

    /// See [`windlass_core::store::Store::discard`].
    pub fn discard(
        &mut self,
        journal: &mut dyn Journal,
        ids: &[TaskId],
        note: Option<&str>,
        by: Actor,
    ) -> JournalResult<Vec<Result<(), ChangeError>>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(match self.find(journal, *id)? {
                Err(refused) => Err(refused),
                Ok((key, found)) => match (found.legal(Trigger::Discard), found) {
                    (Ok(effect), Found::Ended(ended)) => {
                        self.discard_one(journal, key, *ended, &effect, note, by)?;
                        Ok(())
                    }
                    (Err(refused), _) => Err(refused),
                    (Ok(_), Found::Live(task)) => Err(ChangeError::WrongStatus(task.status)),
                },
            });
        }
        Ok(answers)
    }

    fn discard_one(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        mut ended: Ended,
        effect: &Effect,
        note: Option<&str>,
        by: Actor,
    ) -> JournalResult<()> {
        let Some(row) = journal.task(key)? else { return Err(missing(key)) };
        let from = ended.status;
        let spec = &row.spec;
        let kept = self.settings.kept_for(&spec.queue, &spec.task_type, effect.to);
        ended.status = effect.to;
        ended.reason = Some(EndReason::Discarded);
        ended.version += 1;
        let no = self.event_no(journal)?;
        let mut past = Past { event_nos: ended.event_nos, ..Past::default() };
        past.add_event(no);
        ended.event_nos = past.event_nos;
        ended.keep_until = self.keep_until(journal, kept);
        journal.drop_ended(key)?;
        journal.insert_ended(key, &ended)?;
        self.count_ended(from, -1);
        self.count_ended(ended.status, 1);
        self.index.count_dead(&spec.queue, &spec.task_type, -1);
        // The event needs a lane to be counted by; it has no member and vanishes again.
        let lane = self.lane_of(&row);
        let task = LiveTask {
            lane,
            status: ended.status,
            retrying: false,
            held: false,
            keyed: false,
            unique: false,
            overlaid: false,
            timeouts: ended.timeouts,
            retries: 0,
            crashes: 0,
            attempt: ended.attempt,
            version: ended.version,
            created_at: row.created_at,
            ready_at: ended.ready_at,
            run_at: ended.run_at,
        };
        let change = Change::Discarded { note: note.map(str::to_owned) };
        self.note(Noted {
            key,
            task,
            from: Some(from),
            to: task.status,
            change,
            actor: by,
            lease: None,
            ahead_of: None,
            failure: None,
        });
        Ok(())
    }

    pub(crate) fn lane_of(&mut self, row: &TaskRow) -> crate::lanes::LaneIx {
        let settings = Arc::clone(&self.settings);
        let lane = self.index.lanes.open(&LaneKey::of(&row.spec, &settings), &settings);
        // It vanishes with this transaction unless a task is put in it.
        self.index.lanes.forget_if_empty(lane);
        lane
    }
}

/// A task somebody wants to change.
enum Found {
    Live(LiveTask),
    Ended(Box<Ended>),
}

impl Found {
    fn status(&self) -> Status {
        match self {
            Self::Live(task) => task.status,
            Self::Ended(ended) => ended.status,
        }
    }

    fn legal(&self, trigger: Trigger) -> Result<Effect, ChangeError> {
        legal(self.status(), trigger)
    }
}

fn legal(status: Status, trigger: Trigger) -> Result<Effect, ChangeError> {
    transition(status, trigger).map_err(|illegal| ChangeError::WrongStatus(illegal.from))
}

fn edit(row: &mut TaskRow, wish: &Requeue) {
    row.spec.priority = wish.priority.unwrap_or(row.spec.priority);
    if let Some(parameters) = &wish.parameters {
        let before = std::mem::replace(&mut row.spec.parameters, parameters.clone());
        // The first version stays, however often it is edited.
        row.original_parameters.get_or_insert(before);
    }
}

fn replayed(next: &LiveTask, wish: &Requeue) -> Change {
    Change::Replayed {
        retries: next.retries.into(),
        crashes: next.crashes.into(),
        edited: wish.parameters.is_some(),
        priority: wish.priority,
        run_at: Some(next.run_at).filter(|_| next.status == Status::Scheduled),
        note: wish.note.clone(),
    }
}
