//! The store contract over a ledger: every verb is one call to the writer, but for those that read tasks and events
//! (`reading`).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use windlass_core::actor::Actor;
use windlass_core::breaker::{Forced, Scope, View};
use windlass_core::error_rules::ErrorRules;
use windlass_core::event::Event;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{IdCodec, TaskId, WorkerId};
use windlass_core::names::{QueueName, TaskType};
use windlass_core::settings::{QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
use windlass_core::store::{
    Amendment, Beaten, BreakerError, Cancelled, Capabilities, ChangeError, ClaimRequest, Claimed, Cursor, Each, Finish,
    Finished, Heartbeat, InboxItem, Intake, LaneStats, LeaseError, ListError, Page, ProgressReport, Requeue,
    SettingsError, Stats, StepReport, Store, StoreError, SubmitError, Submitted, Sweep, Waiting, WorkerError,
};
use windlass_core::task::{NewTask, Task};
use windlass_core::time::{Clock, Timestamp};
use windlass_core::worker::{Worker, WorkerProfile};

use crate::archive::Archive;
use crate::batch::{Call, ClaimCall, Desk, Operation, Order, Shared, give_back};
use crate::days::{Day, DayStep};
use crate::finish::Arrived;
use crate::intake::Incoming;
use crate::journal::{JournalResult, Needs};
use crate::ledger::Ledger;
use crate::submit::Prepared;
use crate::sweep::Timer;

/// The way to the writer.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Hands an operation over; waits while the writer has too much to do.
    async fn send(&self, operation: Box<dyn Operation>) -> Result<(), StoreError>;
    /// The same where nobody can wait: what does not fit is handed over as soon as it does.
    fn send_later(&self, operation: Box<dyn Operation>);
    /// Finishes everything handed over and stops the writer.
    async fn close(&self);
}

/// What a store has to do with others that use the same database.
#[async_trait]
pub trait Others: Send + Sync {
    /// See [`Store::lead`].
    async fn lead(&self, span: Duration) -> Result<bool, StoreError>;
    /// See [`Store::resign`].
    async fn resign(&self);
    /// See [`Store::inbox`].
    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError>;
    /// See [`Store::inbox_grown`].
    async fn inbox_grown(&self);
    /// Does a slice of what needs no transaction about days that are over at `now`, or says what is next.
    async fn day_step(&self, now: Timestamp) -> Result<DayStep, StoreError>;
}

/// A store that only one process can open: it leads, and nobody else writes.
pub struct Alone;

#[async_trait]
impl Others for Alone {
    async fn lead(&self, _: Duration) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn resign(&self) {}

    async fn inbox(&self, _: i64, _: usize) -> Result<Vec<InboxItem>, StoreError> {
        Ok(Vec::new())
    }

    async fn inbox_grown(&self) {
        std::future::pending::<()>().await;
    }

    async fn day_step(&self, _: Timestamp) -> Result<DayStep, StoreError> {
        Ok(DayStep::Nothing)
    }
}

/// What a store over a ledger is made of.
pub struct Parts {
    /// A short name for metrics.
    pub name: &'static str,
    /// In what it differs.
    pub capabilities: Capabilities,
    /// Its clock.
    pub clock: Arc<dyn Clock>,
    /// Its ids.
    pub ids: IdCodec,
    /// The way to its writer.
    pub inbox: Arc<dyn Inbox>,
    /// Its rows.
    pub archive: Arc<dyn Archive>,
    /// What the writer publishes.
    pub shared: Arc<Shared>,
    /// Who else uses the database.
    pub others: Arc<dyn Others>,
}

/// A store whose lanes and leases are in the memory of one writer.
pub struct LedgerStore(pub(crate) Parts);

impl LedgerStore {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> Self {
        Self(parts)
    }

    /// Does what is next about days that are over, and says how many tasks went. `None` if there is nothing to do.
    async fn prune_day(&self) -> Result<Option<usize>, StoreError> {
        Ok(Some(match self.0.others.day_step(self.now()).await? {
            DayStep::Nothing => return Ok(None),
            DayStep::More => 0,
            DayStep::Close(day) => {
                self.call(Order::Change, 1, day, |desk, day| desk.ledger.close_day(desk.journal, *day)).await?;
                0
            }
            DayStep::Drop(day, ended) => {
                let work = |desk: &mut Desk<'_>, (day, ended): &(Day, [u64; 8])| {
                    desk.ledger.drop_day(desk.journal, *day, ended)
                };
                self.call(Order::Change, 1, (day, ended), work).await?
            }
        }))
    }

    pub(crate) async fn call<I: Send + 'static, O: Send + 'static>(
        &self,
        order: Order,
        weight: usize,
        input: I,
        work: fn(&mut Desk<'_>, &I) -> JournalResult<O>,
    ) -> Result<O, StoreError> {
        self.call_with(order, weight, input, |_, _, _| {}, work).await
    }

    /// A call that says beforehand which rows it will ask for.
    async fn call_with<I: Send + 'static, O: Send + 'static>(
        &self,
        order: Order,
        weight: usize,
        input: I,
        needs: fn(&Ledger, &I, &mut Needs),
        work: fn(&mut Desk<'_>, &I) -> JournalResult<O>,
    ) -> Result<O, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.0.inbox.send(Box::new(Call { order, weight, input, needs, work, output: None, reply })).await?;
        answer.await.unwrap_or_else(|_| Err(StoreError::unknown("the store was closed before it answered")))
    }
}

/// Gives back what a claim got and nobody took.
struct PendingClaim {
    worker: WorkerId,
    answer: Option<oneshot::Receiver<Result<Claimed, WorkerError>>>,
    inbox: Arc<dyn Inbox>,
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        answer.close();
        if let Ok(Ok(claimed)) = answer.try_recv()
            && let Some(release) = give_back(self.worker, &claimed)
        {
            self.inbox.send_later(release);
        }
    }
}

#[async_trait]
impl Store for LedgerStore {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.shared.settings.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    async fn submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> {
        let prepared: Vec<Prepared> = tasks.into_iter().map(Prepared::new).collect();
        self.call_with(
            Order::Submit,
            prepared.len(),
            prepared,
            |_, tasks, needs| tasks.iter().for_each(|task| task.needs(needs)),
            |desk, tasks| desk.ledger.submit(desk.journal, tasks),
        )
        .await?
    }

    async fn inbox(&self, after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> {
        self.0.others.inbox(after, limit).await
    }

    async fn inbox_grown(&self) {
        self.0.others.inbox_grown().await;
    }

    async fn take_in(&self, items: Vec<Intake>) -> Each<Submitted, SubmitError> {
        let items: Vec<Incoming> = items.into_iter().map(Incoming::new).collect();
        self.call_with(
            Order::Submit,
            items.len(),
            items,
            |_, items, needs| items.iter().for_each(|item| item.needs(needs)),
            |desk, items| desk.ledger.take_in(desk.journal, items),
        )
        .await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        let (reply, answer) = oneshot::channel();
        let worker = request.worker;
        let inbox = Arc::clone(&self.0.inbox);
        let mut pending = PendingClaim { worker, answer: Some(answer), inbox };
        self.0.inbox.send(Box::new(ClaimCall { request, outcome: None, reply })).await?;
        let outcome = match pending.answer.as_mut() {
            Some(answer) => answer.await,
            None => return Ok(Claimed::default()),
        };
        pending.answer = None;
        outcome.unwrap_or_else(|_| Err(StoreError::unknown("the store was closed before it answered").into()))
    }

    async fn finish(&self, worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> {
        let arrived: Vec<Arrived> = results.into_iter().map(Arrived::from).collect();
        self.call_with(
            Order::Finish,
            arrived.len(),
            (worker, arrived),
            |ledger, (_, results), needs| ledger.needs_of_results(results, needs),
            |desk, (worker, results)| desk.ledger.finish(desk.journal, *worker, results),
        )
        .await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Beaten, WorkerError> {
        self.call(Order::Renew, 1, beat, |desk, beat| Ok(desk.ledger.heartbeat(beat))).await?
    }

    async fn record_progress(&self, worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> {
        self.call(Order::Change, 1, (worker, reports), |desk, (worker, reports)| {
            desk.ledger.record_progress(desk.journal, *worker, reports)
        })
        .await
    }

    async fn record_steps(&self, worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> {
        self.call_with(
            Order::Change,
            1,
            (worker, reports),
            |ledger, (_, reports), needs| {
                needs.tasks.extend(reports.iter().filter_map(|report| ledger.ids.task_key(report.task)));
            },
            |desk, (worker, reports)| desk.ledger.record_steps(desk.journal, *worker, reports),
        )
        .await
    }

    async fn cancel(&self, tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> {
        self.call_with(
            Order::Change,
            1,
            (tasks, by),
            |ledger, (tasks, _), needs| ledger.needs_of_tasks(tasks, needs),
            |desk, (tasks, by)| desk.ledger.cancel(desk.journal, tasks, *by, desk.served),
        )
        .await
    }

    async fn amend(
        &self,
        task: TaskId,
        amendment: Amendment,
        by: Actor,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        self.call(Order::Change, 1, (task, amendment, by), |desk, (task, amendment, by)| {
            desk.ledger.amend(desk.journal, *task, amendment, *by)
        })
        .await
    }

    async fn requeue(&self, wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        self.call_with(
            Order::Change,
            1,
            (wishes, by),
            |ledger, (wishes, _), needs| {
                needs.tasks.extend(wishes.iter().filter_map(|wish| ledger.ids.task_key(wish.task)));
            },
            |desk, (wishes, by)| desk.ledger.requeue(desk.journal, wishes, *by),
        )
        .await
    }

    async fn bury(&self, tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> {
        self.call_with(
            Order::Change,
            1,
            (tasks, note, by),
            |ledger, (tasks, ..), needs| ledger.needs_of_tasks(tasks, needs),
            |desk, (tasks, note, by)| desk.ledger.bury(desk.journal, tasks, note, *by),
        )
        .await
    }

    async fn discard(&self, tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> {
        self.call_with(
            Order::Change,
            1,
            (tasks, note, by),
            |ledger, (tasks, ..), needs| ledger.needs_of_tasks(tasks, needs),
            |desk, (tasks, note, by)| desk.ledger.discard(desk.journal, tasks, note.as_deref(), *by),
        )
        .await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.call_with(
            Order::Change,
            1,
            limit,
            |ledger, limit, needs| ledger.needs_of_sweep(Timer::Due, ledger.now, *limit, needs),
            |desk, limit| desk.ledger.make_due(desk.journal, *limit),
        )
        .await
    }

    async fn lapse_leases(&self, limit: usize) -> Result<Sweep, StoreError> {
        // As of now: what the writer is busy with meanwhile must not lapse a lease whose renewal waits with us.
        self.call_with(
            Order::Change,
            1,
            (limit, self.now()),
            |ledger, (limit, as_of), needs| ledger.needs_of_sweep(Timer::Lapsing, *as_of, *limit, needs),
            |desk, (limit, as_of)| desk.ledger.lapse_leases(desk.journal, *limit, *as_of),
        )
        .await
    }

    async fn time_out(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.call_with(
            Order::Change,
            1,
            (limit, self.now()),
            |ledger, (limit, as_of), needs| ledger.needs_of_sweep(Timer::Deadlines, *as_of, *limit, needs),
            |desk, (limit, as_of)| desk.ledger.time_out(desk.journal, *limit, *as_of),
        )
        .await
    }

    async fn expire(&self, limit: usize) -> Result<Sweep, StoreError> {
        self.call_with(
            Order::Change,
            1,
            limit,
            |ledger, limit, needs| ledger.needs_of_sweep(Timer::Expiring, ledger.now, *limit, needs),
            |desk, limit| desk.ledger.expire(desk.journal, *limit),
        )
        .await
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        let sweep = self.call(Order::Change, 1, limit, |desk, limit| desk.ledger.prune(desk.journal, *limit)).await?;
        match self.prune_day().await {
            Ok(None) => Ok(sweep),
            Ok(Some(gone)) => Ok(Sweep { changed: sweep.changed + gone, more: true, ..sweep }),
            // What is left to sweep must not wait for a day that cannot go. Once nothing is left, the error is told.
            Err(_) if sweep.more => Ok(sweep),
            Err(error) => Err(error),
        }
    }

    /// One transaction reaches everything here, so no intent is ever left over.
    async fn settle_intents(&self, _: usize) -> Result<Sweep, StoreError> {
        Ok(Sweep::default())
    }

    async fn forgive(&self, span: Duration) -> Result<(), StoreError> {
        self.call(Order::Change, 1, span, |desk, span| {
            desk.ledger.forgive(*span);
            Ok(())
        })
        .await
    }

    async fn get(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> {
        self.get_tasks(tasks).await
    }

    async fn list(&self, filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> {
        self.list_tasks(filter, limit, after).await
    }

    async fn history(&self, task: TaskId) -> Result<Vec<Event>, StoreError> {
        self.history_of(task).await
    }

    async fn events(&self, after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> {
        self.events_after(after, limit).await
    }

    async fn until_ended(&self, task: TaskId) -> Result<(), StoreError> {
        let Some(key) = self.0.ids.task_key(task) else { return Ok(()) };
        let waiting = self
            .call(Order::Read, 1, key, |desk, key| {
                if desk.ledger.index.task(*key).is_none() {
                    return Ok(None);
                }
                let (tell, told) = oneshot::channel();
                let watchers = desk.ledger.watchers.entry(*key).or_default();
                watchers.retain(|watcher| !watcher.is_closed());
                watchers.push(tell);
                Ok(Some(told))
            })
            .await?;
        if let Some(told) = waiting {
            // An error means that the store closes; the caller looks again and finds out.
            let _ = told.await;
        }
        Ok(())
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        self.call(Order::Read, 1, task, |desk, task| Ok(desk.ledger.waiting_for(*task))).await
    }

    async fn lanes(&self) -> Result<Vec<LaneStats>, StoreError> {
        self.call(Order::Read, 1, (), |desk, ()| Ok(desk.ledger.index.lanes.lane_stats())).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let mut stats = self
            .call(Order::Read, 1, (), |desk, ()| {
                let index = &desk.ledger.index;
                Ok(Stats {
                    queues: index.lanes.stats(),
                    by_status: index.by_status(),
                    dead_letters: index.dead_letters().clone(),
                    bytes: None,
                })
            })
            .await?;
        stats.bytes = self.0.archive.bytes().await;
        Ok(stats)
    }

    async fn register_worker(&self, profile: WorkerProfile) -> Result<(), WorkerError> {
        self.call(Order::Change, 1, profile, |desk, profile| desk.ledger.register_worker(desk.journal, profile)).await?
    }

    async fn workers(&self) -> Result<Vec<Worker>, StoreError> {
        self.call(Order::Read, 1, (), |desk, ()| Ok(desk.ledger.list_workers())).await
    }

    async fn drain_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.call(Order::Change, 1, worker, |desk, worker| desk.ledger.drain_worker(desk.journal, *worker, desk.served))
            .await?
    }

    async fn deregister_worker(&self, worker: WorkerId) -> Result<(), WorkerError> {
        self.call(Order::Change, 1, worker, |desk, worker| {
            desk.ledger.deregister_worker(desk.journal, *worker, desk.served)
        })
        .await?
    }

    async fn forget_workers(&self, seen_before: Timestamp) -> Result<Sweep, StoreError> {
        self.call(Order::Change, 1, seen_before, |desk, before| desk.ledger.forget_workers(desk.journal, *before)).await
    }

    async fn change_queue(&self, queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> {
        self.call(Order::Change, 1, (queue, change), |desk, (queue, change)| {
            desk.ledger.change_queue(desk.journal, queue, change)
        })
        .await?
    }

    async fn change_type(&self, task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> {
        self.call(Order::Change, 1, (task_type, change), |desk, (task_type, change)| {
            desk.ledger.change_type(desk.journal, task_type, change)
        })
        .await?
    }

    async fn clear_queue(&self, queue: QueueName) -> Result<(), SettingsError> {
        self.call(Order::Change, 1, queue, |desk, queue| desk.ledger.clear_queue(desk.journal, queue)).await?
    }

    async fn clear_type(&self, task_type: TaskType) -> Result<(), SettingsError> {
        self.call(Order::Change, 1, task_type, |desk, task_type| desk.ledger.clear_type(desk.journal, task_type))
            .await?
    }

    async fn change_error_rules(&self, rules: ErrorRules) -> Result<(), SettingsError> {
        self.call(Order::Change, 1, rules, |desk, rules| desk.ledger.change_error_rules(desk.journal, rules)).await?
    }

    async fn breakers(&self) -> Result<Vec<View>, StoreError> {
        self.call(Order::Read, 1, (), |desk, ()| Ok(desk.ledger.breakers())).await
    }

    async fn force_breaker(&self, scope: Scope, forced: Option<Forced>) -> Result<View, BreakerError> {
        self.call(Order::Change, 1, (scope, forced), |desk, (scope, forced)| {
            desk.ledger.force_breaker(desk.journal, scope, *forced)
        })
        .await?
    }

    async fn replay_settled(&self, task_type: TaskType, since: Timestamp) -> Result<(), StoreError> {
        self.call(Order::Change, 1, (task_type, since), |desk, (name, since)| {
            desk.ledger.replay_settled(desk.journal, name, *since)
        })
        .await
    }

    async fn lead(&self, span: Duration) -> Result<bool, StoreError> {
        self.0.others.lead(span).await
    }

    async fn resign(&self) {
        self.0.others.resign().await;
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.call(Order::Read, 1, (), |_, ()| Ok(())).await
    }

    async fn close(&self) {
        self.0.inbox.close().await;
    }
}
