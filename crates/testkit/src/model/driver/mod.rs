//! Runs operations on a store and on the reference, and compares every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::breaker::{Forced, Scope};
use windlass_core::ids::LeaseToken;
use windlass_core::policy::Policy;
use windlass_core::status::Status;
use windlass_core::store::Finish;
use windlass_core::worker::WorkerProfile;

use crate::fixtures::{able, handling, profile, serving, task_type};
use crate::model::operation::Operation;
use crate::model::reference::{Order, Reference};
use crate::rig::{Fixture, Rig};

const QUEUE_NAMES: [&str; 4] = ["strict-a", "strict-b", "aging", "weighted"];
const TYPE_NAMES: [&str; 4] = ["t0", "t1", "t2", "t3"];

const WAITING: [Status; 2] = [Status::Queued, Status::Scheduled];
const UNENDED: [Status; 3] = [Status::Queued, Status::Scheduled, Status::Executing];

/// A difference between store and reference, told in words.
pub(in crate::model) type Verdict = Result<(), String>;

macro_rules! same {
    ($store:expr, $reference:expr, $($what:tt)+) => {
        match (&$store, &$reference) {
            (store, reference) if store == reference => {}
            (store, reference) => {
                return Err(format!("{}: the store says {store:?}, the reference {reference:?}", format_args!($($what)+)));
            }
        }
    };
}

mod compare;
mod flow;
mod people;
mod submit;
mod upkeep;
mod work;

/// What was sent about an attempt once, to be sent again.
#[derive(Clone)]
struct Sent {
    name: u64,
    worker: usize,
    finish: Finish,
}

/// A store and the reference beside it.
pub(in crate::model) struct Driver {
    rig: Rig,
    reference: Reference,
    workers: Vec<WorkerProfile>,
    /// Every lease that was ever given.
    granted: Vec<(usize, usize, LeaseToken, u8)>,
    sent: Vec<Sent>,
    touched: BTreeSet<usize>,
    /// The number of the operation, and how many tasks it made.
    naming: (u64, u64),
    pub(in crate::model) counts: BTreeMap<&'static str, usize>,
}

impl Driver {
    pub(in crate::model) async fn new(fixture: Arc<dyn Fixture>) -> Self {
        let rig = Rig::open(fixture).await;
        let workers = vec![profile(), serving(&QUEUE_NAMES[..1]), able(&["gpu"]), handling(&TYPE_NAMES[..2])];
        for worker in &workers {
            register(&rig, worker).await;
        }
        for name in TYPE_NAMES {
            keep_closed(&rig, Scope::Type(task_type(name))).await;
        }
        for queue in &QUEUE_NAMES[..2] {
            rig.change_queue(queue, r#"{"policy":"strict"}"#).await;
        }
        rig.change_queue(QUEUE_NAMES[3], r#"{"policy":"weighted"}"#).await;
        rig.change_queue(QUEUE_NAMES[1], r#"{"retention":{"completed_days":0.01}}"#).await;
        let keeps_whole_days = rig.store.capabilities().keeps_whole_days;
        let mut reference = Reference { now: rig.now(), keeps_whole_days, ..Reference::default() };
        reference.orders.insert(QUEUE_NAMES[2].to_owned(), Order::Aging(Policy::default()));
        reference.orders.insert(QUEUE_NAMES[3].to_owned(), Order::Weighted);
        reference.retention.insert(QUEUE_NAMES[1].to_owned(), Duration::from_secs(864));
        Self {
            rig,
            reference,
            workers,
            granted: Vec::new(),
            sent: Vec::new(),
            touched: BTreeSet::new(),
            naming: (0, 0),
            counts: BTreeMap::new(),
        }
    }

    /// A name for a new task that is the same in every part of the script.
    fn new_name(&mut self) -> u64 {
        self.naming.1 += 1;
        self.naming.0 * 1_000 + self.naming.1
    }

    fn count(&mut self, what: &'static str, by: usize) {
        *self.counts.entry(what).or_default() += by;
    }

    /// Runs one operation on both and compares what they answer and what they left.
    pub(in crate::model) async fn step(&mut self, number: usize, operation: &Operation) -> Verdict {
        self.count("operations", 1);
        self.naming = (number as u64, 0);
        match operation.clone() {
            Operation::Submit { queue, drafts } => self.submit(queue, drafts).await?,
            Operation::Claim { worker, up_to, lease } => self.claim(worker as usize, up_to as usize, lease).await?,
            Operation::Finish { results } => self.finish(results).await?,
            Operation::Repeat { pick } => self.repeat(pick).await?,
            Operation::Heartbeat { worker, named } => self.heartbeat(worker as usize, named).await?,
            Operation::Progress { pick, fence, percent } => self.progress(pick, fence, percent).await?,
            Operation::Step { pick, fence, name, result } => self.record_step(pick, fence, name, result).await?,
            Operation::Cancel { picks } => self.cancel(&picks).await?,
            Operation::Amend { pick, priority, delay } => self.amend(pick, priority, delay).await?,
            Operation::Requeue { pick, wish } => self.requeue(pick, wish).await?,
            Operation::Bury { pick } => self.bury(pick).await?,
            Operation::Discard { pick } => self.discard(pick).await?,
            Operation::Advance(span) => self.reference.now = self.rig.advance(span),
            Operation::MakeDue { slice } => self.sweep("make_due", slice).await?,
            Operation::Lapse { slice } => self.sweep("lapse_leases", slice).await?,
            Operation::TimeOut { slice } => self.sweep("time_out", slice).await?,
            Operation::Expire { slice } => self.sweep("expire", slice).await?,
            Operation::Prune { slice } => self.sweep("prune", slice).await?,
            Operation::Forgive(span) => {
                self.rig.store.forgive(span).await.map_err(|error| error.to_string())?;
                self.reference.forgive(span);
            }
            Operation::PauseQueue { queue, paused } => self.pause_queue(QUEUE_NAMES[queue as usize], paused).await,
            Operation::PauseType { task_type, paused } => {
                self.pause_type(TYPE_NAMES[task_type as usize], paused).await;
            }
            Operation::LimitQueue { queue, limit } => self.limit_queue(QUEUE_NAMES[queue as usize], limit).await,
            Operation::LimitType { task_type, limit } => self.limit_type(TYPE_NAMES[task_type as usize], limit).await,
            Operation::Ask { pick } => self.ask(pick).await?,
            Operation::Deregister { worker } => self.deregister(worker as usize).await?,
            Operation::Reopen => self.reopen().await?,
            Operation::Compare => self.compare_all().await?,
        }
        self.compare_touched().await
    }

    pub(in crate::model) async fn close(&self) {
        self.rig.store.close().await;
    }
}

/// Makes a worker known whose breaker never opens.
async fn register(rig: &Rig, worker: &WorkerProfile) {
    rig.register(worker.clone()).await;
    keep_closed(rig, Scope::Worker(worker.id)).await;
}

/// The reference knows no breakers, and so many failures would open any: a person keeps them closed.
async fn keep_closed(rig: &Rig, scope: Scope) {
    rig.store.force_breaker(scope, Some(Forced::Closed)).await.expect("a breaker can be forced");
}
