//! The model is tested too: a store with a known bug must not pass it.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use windlass_core::event::Observer;
use windlass_core::ids::LeaseToken;
use windlass_core::keys::{FlowKey, HELD_WHILE, OnFailure, Unique};
use windlass_core::names::Text;
use windlass_core::settings::Field;
use windlass_core::store::{Outcome, Renewal};
use windlass_core::task::{ClaimedTask, TaskSpec};
use windlass_testkit::front::prelude::*;
use windlass_testkit::{Fixture, ManualClock, model, pass_on};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Loses one task in fifty after it was acknowledged.
    LosesTasks,
    /// Forgets idempotency keys.
    ForgetsKeys,
    /// Takes a result from any worker that knows the token.
    SkipsTheFence,
    /// Refuses a result that it has taken before.
    RefusesRepeats,
    /// Gives a running task to a second worker.
    GrantsTwice,
    /// Gives the last first.
    ReversesTheOrder,
    /// A heartbeat renews nothing.
    RenewsNothing,
    /// A failure uses up no retry.
    CountsNoRetries,
    /// A snooze is a release.
    ReleasesSnoozes,
    /// A running task that was cancelled is not told.
    TellsNoCancellation,
    /// Nothing is ever due.
    MakesNothingDue,
    /// A replay keeps the retries that were used up.
    KeepsRetriesAtReplay,
    /// Forgets to pause.
    IgnoresPauses,
    /// Deletes nothing.
    KeepsEverything,
    /// Tasks with an ordering key run in any order.
    DropsOrderingKeys,
    /// The line waits for a retry that should step aside.
    NeverSkips,
    /// The line goes on where it should wait for a retry.
    NeverBlocks,
    /// Lets one more of a concurrency key run than may.
    RaisesKeyLimits,
    /// The first limit that a concurrency key had applies for good.
    KeepsTheFirstKeyLimit,
    /// Stores a second task with the same unique key.
    IgnoresUniqueKeys,
    /// A unique key is free as soon as its task has ended.
    ForgetsUniqueSpans,
    /// A unique key is held while its task runs, whatever it asked for.
    HoldsUniqueKeysTooLong,
    /// Forgets the concurrency limits of queues.
    IgnoresQueueLimits,
    /// Forgets the concurrency limits of types.
    IgnoresTypeLimits,
    /// A paced replay runs at once.
    ReplaysAtOnce,
    /// A task that waits for its key is said to stand in its lane.
    HidesKeys,
}

const BUGS: [Bug; 26] = [
    Bug::LosesTasks,
    Bug::ForgetsKeys,
    Bug::SkipsTheFence,
    Bug::RefusesRepeats,
    Bug::GrantsTwice,
    Bug::ReversesTheOrder,
    Bug::RenewsNothing,
    Bug::CountsNoRetries,
    Bug::ReleasesSnoozes,
    Bug::TellsNoCancellation,
    Bug::MakesNothingDue,
    Bug::KeepsRetriesAtReplay,
    Bug::IgnoresPauses,
    Bug::KeepsEverything,
    Bug::DropsOrderingKeys,
    Bug::NeverSkips,
    Bug::NeverBlocks,
    Bug::RaisesKeyLimits,
    Bug::KeepsTheFirstKeyLimit,
    Bug::IgnoresUniqueKeys,
    Bug::ForgetsUniqueSpans,
    Bug::HoldsUniqueKeysTooLong,
    Bug::IgnoresQueueLimits,
    Bug::IgnoresTypeLimits,
    Bug::ReplaysAtOnce,
    Bug::HidesKeys,
];

/// A good store with one bug in front of it.
struct Sabotaged {
    store: Arc<dyn Store>,
    bug: Bug,
    owners: Mutex<HashMap<LeaseToken, WorkerId>>,
    granted: Mutex<Vec<ClaimedTask>>,
    /// The keys that tasks were submitted with: a bug must be found by what it does, not by what is shown.
    keys: Mutex<HashMap<TaskId, Keys>>,
    first_limits: Mutex<HashMap<(QueueName, Text), u32>>,
}

type Keys = (Option<FlowKey>, Option<Unique>);

impl Sabotaged {
    fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn spoil_keys(&self, spec: &mut TaskSpec) {
        match &mut spec.flow_key {
            Some(FlowKey::Ordering { on_failure, .. }) => match self.bug {
                Bug::DropsOrderingKeys => spec.flow_key = None,
                Bug::NeverSkips => *on_failure = OnFailure::Block,
                Bug::NeverBlocks => *on_failure = OnFailure::Skip,
                _ => {}
            },
            Some(FlowKey::Concurrency { key, limit }) => match self.bug {
                Bug::RaisesKeyLimits => *limit += 1,
                Bug::KeepsTheFirstKeyLimit => {
                    let mut first = self.first_limits.lock().expect("no panic");
                    *limit = *first.entry((spec.queue.clone(), key.clone())).or_insert(*limit);
                }
                _ => {}
            },
            None => {}
        }
        match (&mut spec.unique, self.bug) {
            (unique, Bug::IgnoresUniqueKeys) => *unique = None,
            (Some(unique), Bug::ForgetsUniqueSpans) => unique.for_seconds = None,
            (Some(unique), Bug::HoldsUniqueKeysTooLong) => unique.held_while = HELD_WHILE.to_vec(),
            _ => {}
        }
    }
}

#[async_trait]
impl Store for Sabotaged {
    fn name(&self) -> &'static str {
        "sabotaged"
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.store.now()
    }

    fn settings(&self) -> Arc<Settings> {
        self.store.settings()
    }

    pass_on! {
        (Self::store)
            inbox inbox_grown take_in record_progress record_steps cancel amend bury discard lapse_leases time_out
            expire settle_intents forgive get list history events until_ended lanes stats register_worker workers
            drain_worker deregister_worker forget_workers clear_queue clear_type change_error_rules breakers
            force_breaker replay_settled lead resign check close
    }

    async fn submit(&self, mut tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> {
        if self.has(Bug::ForgetsKeys) {
            for task in &mut tasks {
                task.spec.idempotency_key = None;
            }
        }
        let keys: Vec<Keys> = tasks.iter().map(|task| (task.spec.flow_key.clone(), task.spec.unique.clone())).collect();
        for task in &mut tasks {
            self.spoil_keys(&mut task.spec);
        }
        let stored = self.store.submit(tasks).await?;
        let new = stored.iter().zip(keys).filter(|(task, _)| !task.is_known()).map(|(task, keys)| (task.id, keys));
        self.keys.lock().expect("no panic").extend(new);
        if self.has(Bug::LosesTasks) {
            let lost = stored.iter().map(|task| task.id).filter(|id| id.as_uuid().as_u128() % 50 == 0).collect();
            self.store.cancel(lost, Actor::System).await?;
        }
        Ok(stored)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, WorkerError> {
        let worker = request.worker;
        let mut claimed = self.store.claim(request).await?;
        for task in &mut claimed.tasks {
            if let Some(keys) = self.keys.lock().expect("no panic").get(&task.id) {
                (task.spec.flow_key, task.spec.unique) = keys.clone();
            }
        }
        {
            let mut owners = self.owners.lock().expect("no panic");
            owners.extend(claimed.tasks.iter().map(|task| (task.token, worker)));
            let mut granted = self.granted.lock().expect("no panic");
            if self.has(Bug::GrantsTwice) && !claimed.tasks.is_empty() && granted.len() % 10 == 9 {
                claimed.tasks[0] = granted[granted.len() - 1].clone();
            }
            granted.extend(claimed.tasks.iter().cloned());
        }
        if self.has(Bug::ReversesTheOrder) {
            claimed.tasks.reverse();
        }
        if self.has(Bug::TellsNoCancellation) {
            claimed.cancel.clear();
        }
        Ok(claimed)
    }

    async fn finish(&self, worker: WorkerId, mut results: Vec<Finish>) -> Each<Finished, LeaseError> {
        let owner = results.first().and_then(|first| self.owners.lock().expect("no panic").get(&first.token).copied());
        let worker = if self.has(Bug::SkipsTheFence) { owner.unwrap_or(worker) } else { worker };
        for result in &mut results {
            match result.outcome {
                Outcome::Snoozed(_) if self.has(Bug::ReleasesSnoozes) => result.outcome = Outcome::Released,
                Outcome::Failed(_) if self.has(Bug::CountsNoRetries) => {
                    result.outcome = Outcome::Snoozed(Duration::from_secs(10));
                }
                _ => {}
            }
        }
        let mut answers = self.store.finish(worker, results).await?;
        if self.has(Bug::RefusesRepeats) {
            for answer in &mut answers {
                if answer.as_ref().is_ok_and(|taken| taken.repeated) {
                    *answer = Err(LeaseError::Lost);
                }
            }
        }
        Ok(answers)
    }

    async fn heartbeat(&self, mut beat: Heartbeat) -> Result<Beaten, WorkerError> {
        if self.has(Bug::RenewsNothing) {
            beat.renewal = Renewal::Named(Vec::new());
        }
        let mut beaten = self.store.heartbeat(beat).await?;
        if self.has(Bug::TellsNoCancellation) {
            beaten.cancel.clear();
        }
        Ok(beaten)
    }

    async fn requeue(&self, mut wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> {
        if self.has(Bug::KeepsRetriesAtReplay) {
            for wish in &mut wishes {
                wish.reset_retries = false;
            }
        }
        if self.has(Bug::ReplaysAtOnce) {
            for wish in &mut wishes {
                wish.delay = Duration::ZERO;
            }
        }
        self.store.requeue(wishes, by).await
    }

    async fn make_due(&self, limit: usize) -> Result<Sweep, StoreError> {
        if self.has(Bug::MakesNothingDue) { Ok(Sweep::default()) } else { self.store.make_due(limit).await }
    }

    async fn prune(&self, limit: usize) -> Result<Sweep, StoreError> {
        if self.has(Bug::KeepsEverything) { Ok(Sweep::default()) } else { self.store.prune(limit).await }
    }

    async fn waiting_for(&self, task: TaskId) -> Result<Option<Waiting>, StoreError> {
        let told = self.store.waiting_for(task).await?;
        Ok(match told {
            Some(Waiting::OrderingKey { ahead, .. }) if self.has(Bug::HidesKeys) => Some(Waiting::Line { ahead }),
            told => told,
        })
    }

    async fn change_queue(&self, queue: QueueName, mut change: QueueChange) -> Result<QueueSettings, SettingsError> {
        if self.has(Bug::IgnoresPauses) {
            change.paused = Field::Keep;
        }
        if self.has(Bug::IgnoresQueueLimits) {
            change.concurrency = Field::Keep;
        }
        self.store.change_queue(queue, change).await
    }

    async fn change_type(&self, task_type: TaskType, mut change: TypeChange) -> Result<TypeSettings, SettingsError> {
        if self.has(Bug::IgnoresTypeLimits) {
            change.concurrency = Field::Keep;
        }
        self.store.change_type(task_type, change).await
    }
}

struct WithBug(Bug);

#[async_trait]
impl Fixture for WithBug {
    fn label(&self) -> &'static str {
        "with a bug"
    }

    async fn open(&self, clock: Arc<ManualClock>, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
        let store = common::InMemory.open(clock, observer).await;
        Arc::new(Sabotaged {
            store,
            bug: self.0,
            owners: Mutex::default(),
            granted: Mutex::default(),
            keys: Mutex::default(),
            first_limits: Mutex::default(),
        })
    }

    async fn reopen(&self, _: Arc<dyn Store>, _: Arc<ManualClock>, _: Arc<dyn Observer>) -> Option<Arc<dyn Store>> {
        None
    }
}

#[test]
fn every_seeded_bug_is_caught() {
    for bug in BUGS {
        let fixture: Arc<dyn Fixture> = Arc::new(WithBug(bug));
        let found = (1..=3).find_map(|seed| model::first_difference(&fixture, seed, 1_500));
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not caught"));
        println!("{bug:?}: {found}");
    }
}
