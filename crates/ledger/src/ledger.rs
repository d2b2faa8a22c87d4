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
use windlass_core::retention::to_the_end_of_the_day;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::time::{Clock, Timestamp};
use windlass_core::transition::{Effect, OrderingKey, Place};

use crate::claim::missing;
use crate::flows;
use crate::index::{Index, Lease, LiveTask};
use crate::journal::{AppliedResult, Ended, Journal, JournalResult, Overlay, SEGMENT_KEYS, UniqueRow};
use crate::numbers::AllNumbers;
use crate::redo::Granted;
use crate::transaction::Before;
use crate::waiters::Waiters;
use crate::workers::WorkerEntry;

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
    /// Leases of workers that were never told of them, because nobody knew what had become of the claim.
    pub(crate) unheard: Vec<Granted>,
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
    pub(crate) changes: Vec<Committed>,
    pub(crate) event_no: Option<u64>,
    pub(crate) ended_delta: [i64; 8],
    pub(crate) before: Before,
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
            unheard: Vec::new(),
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

    /// The settings as of this transaction.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The public id of a live task.
    pub(crate) fn id_of(&self, key: TaskKey, created_at: Timestamp) -> TaskId {
        self.ids.task_id(key, created_at)
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
            keep_until: self.keep_until(journal, kept),
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

    /// Until when a task that ends now is kept.
    pub(crate) fn keep_until(&self, journal: &dyn Journal, kept: Option<Duration>) -> Option<Timestamp> {
        let whole_days = journal.keeps_whole_days();
        kept.map(|kept| if whole_days { to_the_end_of_the_day(self.now, kept) } else { self.now + kept })
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
