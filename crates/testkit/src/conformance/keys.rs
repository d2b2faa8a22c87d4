//! Keys under everything that can happen to their tasks at once: never two of a line in
//! flight, never more of a key than may be, and no key ever stuck.

use std::collections::BTreeMap;

use windlass_core::breaker::{Forced, Scope};
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::keys::{FlowKey, OnFailure};
use windlass_core::status::Status;
use windlass_core::store::{Amendment, LeaseError, Outcome, Requeue, Waiting};
use windlass_core::task::ClaimedTask;
use windlass_core::time::Timestamp;

use super::reading;
use crate::fixtures::{TaskBuilder, again, completed, failed, failed_for_good, priority, task};
use crate::rig::{LEASE, Rig, seconds};

/// How many of a concurrency key may run.
const LIMIT: u32 = 2;

/// A task that a worker runs, whether it was cancelled or not.
struct Flight {
    worker: WorkerId,
    claimed: ClaimedTask,
    cancelled: bool,
    until: Timestamp,
}

struct World {
    rig: Rig,
    workers: Vec<WorkerId>,
    tasks: Vec<TaskId>,
    flights: BTreeMap<TaskId, Flight>,
    random: u64,
}

impl World {
    async fn new(rig: Rig, seed: u64) -> Self {
        let mut workers = Vec::new();
        // Breakers would keep back what the keys let go.
        for _ in 0..4 {
            let worker = rig.worker().await;
            rig.store.force_breaker(Scope::Worker(worker), Some(Forced::Closed)).await.expect("known");
            workers.push(worker);
        }
        for kind in ["a", "b"] {
            rig.force_type(kind, Some(Forced::Closed)).await;
        }
        Self { rig, workers, tasks: Vec::new(), flights: BTreeMap::new(), random: seed }
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn any_task(&mut self) -> Option<TaskId> {
        let count = self.tasks.len() as u64;
        (count > 0).then(|| self.pick(count)).map(|at| self.tasks[at as usize])
    }

    fn new_task(&mut self) -> TaskBuilder {
        let kind = ["a", "b"][self.pick(2) as usize];
        let built = task(kind).priority(priority(self.pick(10))).tenant(["t", "u"][self.pick(2) as usize]);
        let built = match self.pick(6) {
            0 => built.delay(seconds(self.pick(20))),
            1 => built.expires_at(self.rig.now() + seconds(self.pick(40))),
            _ => built,
        };
        let number = self.pick(3);
        match self.pick(7) {
            0..=2 => built.ordered(&format!("block{number}"), OnFailure::Block),
            3 | 4 => built.ordered(&format!("skip{number}"), OnFailure::Skip),
            5 => built.at_most(LIMIT, &format!("pool{number}")),
            _ => built,
        }
    }

    async fn submit(&mut self) {
        let batch: Vec<_> = (0..=self.pick(3)).map(|_| self.new_task()).collect();
        self.tasks.extend(self.rig.submit_all(batch).await);
    }

    async fn claim(&mut self, up_to: usize) -> usize {
        let number = self.pick(4) as usize;
        let worker = self.workers[number];
        let claimed = self.rig.claim_up_to(worker, up_to).await;
        let count = claimed.len();
        for claimed in claimed {
            let until = claimed.lease_expires_at;
            let flight = Flight { worker, claimed, cancelled: false, until };
            assert!(self.flights.insert(flight.claimed.id, flight).is_none(), "one task runs twice");
        }
        self.assert_keys();
        count
    }

    fn assert_keys(&self) {
        let mut running = BTreeMap::<(bool, String), u32>::new();
        for flight in self.flights.values() {
            match &flight.claimed.spec.flow_key {
                Some(FlowKey::Ordering { key, .. }) => *running.entry((true, key.to_string())).or_default() += 1,
                Some(FlowKey::Concurrency { key, .. }) => *running.entry((false, key.to_string())).or_default() += 1,
                None => {}
            }
        }
        for ((ordered, key), count) in running {
            assert!(count <= if ordered { 1 } else { LIMIT }, "{count} of {key} run");
        }
    }

    async fn finish(&mut self) {
        let count = self.flights.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.pick(count) as usize;
        let id = *self.flights.keys().nth(at).expect("one of them");
        let flight = self.flights.remove(&id).expect("it runs");
        let outcome = match self.pick(10) {
            0..=3 => completed(),
            4 | 5 => failed(),
            6 => failed_for_good(),
            7 => Outcome::Released,
            8 => Outcome::Snoozed(seconds(5)),
            _ => Outcome::Cancelled { note: None },
        };
        let answer = self.rig.finish(flight.worker, &flight.claimed, outcome).await;
        if flight.cancelled {
            assert_eq!(answer, Err(LeaseError::Lost));
        } else {
            answer.expect("its lease is live");
        }
    }

    /// What a person does to some task, whether it applies or not.
    async fn change(&mut self) {
        let Some(id) = self.any_task() else { return };
        match self.pick(7) {
            0 | 1 => {
                if self.rig.cancel(id).await.is_ok_and(|cancelled| cancelled.was_executing) {
                    self.flights.get_mut(&id).expect("it runs").cancelled = true;
                }
            }
            2 => drop(self.rig.bury(id, "bad").await),
            3 => {
                let priority = Some(priority(self.pick(10)));
                let _ = self.rig.amend(id, Amendment { priority, ..Amendment::default() }).await;
            }
            4 => {
                let run_at = Some(self.rig.now() + seconds(self.pick(20)));
                let _ = self.rig.amend(id, Amendment { run_at, ..Amendment::default() }).await;
            }
            5 => drop(self.rig.requeue(again(id)).await),
            _ => {
                let delay = seconds(self.pick(20));
                let _ = self.rig.requeue(Requeue { delay, ..again(id) }).await;
            }
        }
    }

    async fn pass(&mut self, span: u64) {
        self.rig.advance(seconds(span));
        self.rig.lapse().await;
        let now = self.rig.now();
        self.flights.retain(|_, flight| flight.until > now);
        self.rig.make_due().await;
        self.rig.expire().await;
    }

    async fn restart(&mut self) {
        if let Some(rig) = self.rig.reopen().await {
            self.rig = rig;
            for flight in self.flights.values_mut() {
                flight.until = self.rig.now() + LEASE;
            }
        }
    }

    /// When nothing can be claimed, everything that is queued waits for something that is there.
    async fn assert_reasons(&mut self) {
        while self.claim(10).await > 0 {}
        let queued = TaskFilter { statuses: vec![Status::Queued], ..TaskFilter::default() };
        for id in self.rig.ids(&queued).await {
            let reason = self.rig.waiting_for(id).await;
            let waits_for = match &reason {
                Some(Waiting::OrderingKey { holder, .. }) => vec![*holder],
                Some(Waiting::ConcurrencyKey { running, .. }) => running.clone(),
                other => panic!("{id} should have been claimed: {other:?}"),
            };
            for other in waits_for {
                let lives = !self.rig.status(other).await.is_ended();
                assert!(lives || self.flights.contains_key(&other), "{id} waits for {other}, which is over");
                assert_ne!(other, id, "it waits for itself");
            }
        }
        let told: u64 = self.rig.store.lanes().await.expect("read").iter().map(|lane| lane.queued).sum();
        assert_eq!(told, self.rig.ids(&queued).await.len() as u64);
        reading::assert_stats(&self.rig).await;
    }

    async fn step(&mut self) {
        match self.pick(100) {
            0..=24 => self.submit().await,
            25..=49 => {
                let up_to = 1 + self.pick(4) as usize;
                self.claim(up_to).await;
            }
            50..=74 => self.finish().await,
            75..=86 => self.change().await,
            87..=93 => {
                let span = self.pick(5);
                self.pass(span).await;
            }
            94 => self.pass(31).await,
            95 | 96 => {
                let policy = [r#"{"policy":"fair"}"#, r#"{"policy":"aging"}"#, r#"{"policy":"weighted"}"#];
                let policy = policy[self.pick(3) as usize];
                self.rig.change_queue("default", policy).await;
            }
            97 => self.restart().await,
            _ => self.assert_reasons().await,
        }
    }

    /// Everything comes to an end.
    async fn drain(&mut self) {
        let live = [Status::Queued, Status::Scheduled, Status::Executing].to_vec();
        let live = TaskFilter { statuses: live, ..TaskFilter::default() };
        for _ in 0..200 {
            while self.claim(10).await > 0 {}
            for (_, flight) in std::mem::take(&mut self.flights) {
                let answer = self.rig.finish(flight.worker, &flight.claimed, completed()).await;
                assert_eq!(answer.is_err(), flight.cancelled);
            }
            self.pass(10).await;
            if self.rig.ids(&live).await.is_empty() {
                return;
            }
        }
        panic!("stuck: {:?}", self.rig.ids(&live).await);
    }
}

pub async fn no_key_is_broken_or_stuck_whatever_happens(rig: Rig) {
    let mut world = World::new(rig, 1).await;
    for _ in 0..600 {
        world.step().await;
    }
    world.assert_reasons().await;
    world.drain().await;
    reading::assert_stats(&world.rig).await;
    // The one that was opened last is not known to whoever runs this.
    world.rig.store.close().await;
}
