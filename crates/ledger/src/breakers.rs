//! Breakers: every attempt that ends is told to the breakers of its type and worker, in the
//! transaction of its result.

use std::time::Duration;

use windlass_core::breaker::{Figures, Forced, Record, Scope, View};
use windlass_core::failure::ErrorClass;
use windlass_core::ids::{ClaimNo, WorkerId};
use windlass_core::limits;
use windlass_core::names::TaskType;
use windlass_core::store::BreakerError;
use windlass_core::time::Timestamp;

use crate::index::Lease;
use crate::journal::{Journal, JournalResult};
use crate::ledger::Ledger;
use crate::workers::WorkerEntry;

/// A worker that called within this time is live.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
/// A type that succeeded on another worker within this time succeeds elsewhere.
const ELSEWHERE_WITHIN: Duration = Duration::from_secs(300);

impl Ledger {
    /// An attempt succeeded.
    pub(crate) fn tell_success(&mut self, journal: &mut dyn Journal, lease: &Lease) -> JournalResult<()> {
        let now = self.now;
        let lane = std::sync::Arc::clone(self.index.lanes.key(lease.lane));
        let settings = self.settings.breaker(&lane.task_type);
        let replays = self.settings.types.get(&lane.task_type).is_some_and(|of_type| of_type.auto_replay.is_some());
        let changed = self.index.lanes.change_breaker(lease.lane, |breaker| {
            let changed = breaker.succeeded(&settings, lease.claim, now);
            if !replays {
                breaker.record.replay_since = None;
            }
            changed
        });
        if changed {
            self.keep_type_breaker(journal, lease, &lane.task_type)?;
        }
        self.index.lanes.succeeded_on(lease.lane, lease.worker);
        self.tell_worker_is_well(journal, lease)
    }

    /// An attempt failed or its lease lapsed.
    pub(crate) fn tell_failure(
        &mut self,
        journal: &mut dyn Journal,
        lease: &Lease,
        class: ErrorClass,
    ) -> JournalResult<()> {
        let now = self.now;
        let lane = std::sync::Arc::clone(self.index.lanes.key(lease.lane));
        let settings = self.settings.breaker(&lane.task_type);
        let workers = &self.workers;
        let two_are_live = || {
            let live =
                workers.values().filter(|entry| now.since(entry.last_seen_at) <= LIVE_WITHIN && entry.takes_tasks(now));
            live.filter(|entry| entry.serves.covers(&lane)).take(2).count() == 2
        };
        let changed = self.index.lanes.change_breaker(lease.lane, |breaker| {
            breaker.failed(&settings, lease.claim, lease.worker, class, two_are_live, now)
        });
        if changed {
            self.keep_type_breaker(journal, lease, &lane.task_type)?;
        }
        match class {
            ErrorClass::WorkerLost | ErrorClass::CodeBug => {
                // Leases of one stall lapse together, long after the worker went on with newer tasks.
                let proved_well = |entry: &WorkerEntry| entry.last_good > Some(lease.claim);
                if self.workers.get(&lease.worker).is_some_and(proved_well) {
                    return Ok(());
                }
                let since = now - ELSEWHERE_WITHIN;
                self.tell_worker(journal, lease.worker, |entry, lanes, worker| {
                    let elsewhere = |task_type: &TaskType| lanes.succeeds_elsewhere(task_type, worker, since);
                    entry.breaker.did_badly(&lane.task_type, lease.claim, elsewhere, now)
                })
            }
            // An error that a handler reports shows that the worker itself is well.
            ErrorClass::Transient
            | ErrorClass::RateLimited
            | ErrorClass::Timeout
            | ErrorClass::Resource
            | ErrorClass::Permanent
            | ErrorClass::Unknown => self.tell_worker_is_well(journal, lease),
        }
    }

    /// A lease is over: if it was the trial of a breaker and nobody said how it went, another may start.
    pub(crate) fn end_trials(&mut self, lease: &Lease) {
        if !self.index.lanes.breaker(lease.lane).record.is_plain() {
            self.index.lanes.change_breaker(lease.lane, |breaker| breaker.ended_without_word(lease.claim));
        }
        if self.workers.get(&lease.worker).is_some_and(|entry| !entry.breaker.record.is_plain()) {
            self.remember_worker(lease.worker);
            if let Some(entry) = self.workers.get_mut(&lease.worker) {
                self.lanes_changed |= entry.breaker.ended_without_word(lease.claim);
            }
        }
    }

    fn keep_type_breaker(&mut self, journal: &mut dyn Journal, lease: &Lease, name: &TaskType) -> JournalResult<()> {
        let record = &self.index.lanes.breaker(lease.lane).record;
        journal.put_breaker(&Scope::Type(name.clone()), Some(record).filter(|record| !record.is_plain()))
    }

    fn tell_worker_is_well(&mut self, journal: &mut dyn Journal, lease: &Lease) -> JournalResult<()> {
        let Some(entry) = self.workers.get_mut(&lease.worker) else { return Ok(()) };
        entry.last_good = entry.last_good.max(Some(lease.claim));
        if entry.breaker.is_idle() {
            return Ok(());
        }
        self.tell_worker(journal, lease.worker, |entry, _, _| entry.breaker.did_well(lease.claim))
    }

    fn tell_worker(
        &mut self,
        journal: &mut dyn Journal,
        worker: WorkerId,
        tell: impl FnOnce(&mut WorkerEntry, &crate::lanes::Lanes, WorkerId) -> bool,
    ) -> JournalResult<()> {
        if !self.workers.contains_key(&worker) {
            return Ok(());
        }
        self.remember_worker(worker);
        let Some(entry) = self.workers.get_mut(&worker) else { return Ok(()) };
        if tell(entry, &self.index.lanes, worker) {
            self.keep_worker_breaker(journal, worker)?;
        }
        Ok(())
    }

    fn keep_worker_breaker(&mut self, journal: &mut dyn Journal, worker: WorkerId) -> JournalResult<()> {
        let Some(entry) = self.workers.get(&worker) else { return Ok(()) };
        let record = entry.breaker.record.clone();
        self.await_recovery(worker);
        self.lanes_changed = true;
        journal.put_breaker(&Scope::Worker(worker), Some(&record).filter(|record| !record.is_plain()))
    }

    /// Notes when a worker may have one task again, as its breaker stands now.
    pub(crate) fn await_recovery(&mut self, worker: WorkerId) {
        self.recovering_workers.retain(|(_, other)| *other != worker);
        let at = self.workers.get(&worker).and_then(|entry| entry.breaker.admits_at());
        if let Some(at) = at.filter(|at| *at > self.now) {
            self.recovering_workers.insert((at, worker));
        }
    }

    /// Workers that may have one task again: their claims may be waiting.
    pub(crate) fn wake_workers(&mut self) {
        while let Some((at, worker)) = self.recovering_workers.first().copied().filter(|(at, _)| *at <= self.now) {
            self.recovering_workers.remove(&(at, worker));
            self.lanes_changed = true;
        }
        self.lanes_changed |= self.index.lanes.take_opened();
    }

    /// Sets what was kept of the breakers, at a start.
    pub(crate) fn restore_breakers(&mut self, kept: Vec<(Scope, Record)>) {
        let settings = std::sync::Arc::clone(&self.settings);
        for (scope, record) in kept {
            match scope {
                Scope::Type(name) => {
                    self.index.lanes.change_breaker_of(&name, &settings, |breaker| breaker.record = record);
                }
                Scope::Worker(worker) => {
                    if let Some(entry) = self.workers.get_mut(&worker) {
                        entry.breaker = windlass_core::breaker::WorkerBreaker::kept(record);
                        if let Some(at) = entry.breaker.admits_at() {
                            self.recovering_workers.insert((at, worker));
                        }
                    }
                }
            }
        }
        self.restore_trials();
        self.index.keep();
    }

    /// What started when a breaker was half open is its trial, and still runs.
    fn restore_trials(&mut self) {
        let held: Vec<Lease> = self.index.lapsing().filter_map(|(_, key)| self.index.lease(key)).collect();
        for lease in held {
            if !self.index.lanes.breaker(lease.lane).record.is_plain() {
                self.index.lanes.change_breaker(lease.lane, |breaker| {
                    breaker.started(lease.claim, lease.claimed_at);
                    true
                });
            }
            if let Some(entry) = self.workers.get_mut(&lease.worker) {
                entry.breaker.started(lease.claim, lease.claimed_at);
            }
        }
    }

    /// See [`windlass_core::store::Store::breakers`].
    pub fn breakers(&self) -> Vec<View> {
        let now = self.now;
        let types = self.index.lanes.breakers().filter_map(|(name, breaker)| {
            let figures = breaker.figures(&self.settings.breaker(name), now);
            let shown = !breaker.record.is_plain() || figures != Figures::default();
            shown.then(|| View::new(Scope::Type(name.clone()), &breaker.record, figures, now))
        });
        let workers = self
            .workers
            .iter()
            .filter(|(_, entry)| !entry.breaker.record.is_plain())
            .map(|(id, entry)| View::new(Scope::Worker(*id), &entry.breaker.record, Figures::default(), now));
        let mut all: Vec<View> = types.chain(workers).collect();
        all.sort_by(|one, other| one.scope.cmp(&other.scope));
        all
    }

    /// See [`windlass_core::store::Store::force_breaker`].
    pub fn force_breaker(
        &mut self,
        journal: &mut dyn Journal,
        scope: &Scope,
        forced: Option<Forced>,
    ) -> JournalResult<Result<View, BreakerError>> {
        let now = self.now;
        match scope {
            Scope::Type(name) => {
                let kept = self.index.lanes.breakers().filter(|(_, breaker)| !breaker.record.is_plain()).count();
                if forced.is_some() && kept >= limits::SETTINGS {
                    return Ok(Err(BreakerError::TooMany));
                }
                let settings = std::sync::Arc::clone(&self.settings);
                let breaker = self.index.lanes.change_breaker_of(name, &settings, |breaker| breaker.force(forced, now));
                let record = breaker.record.clone();
                let figures = breaker.figures(&settings.breaker(name), now);
                journal.put_breaker(scope, Some(&record).filter(|record| !record.is_plain()))?;
                self.lanes_changed = true;
                Ok(Ok(View::new(scope.clone(), &record, figures, now)))
            }
            Scope::Worker(worker) => {
                if !self.workers.contains_key(worker) {
                    return Ok(Err(BreakerError::UnknownWorker));
                }
                self.remember_worker(*worker);
                let Some(entry) = self.workers.get_mut(worker) else {
                    return Ok(Err(BreakerError::UnknownWorker));
                };
                entry.breaker.force(forced, now);
                let record = entry.breaker.record.clone();
                self.keep_worker_breaker(journal, *worker)?;
                Ok(Ok(View::new(scope.clone(), &record, Figures::default(), now)))
            }
        }
    }

    /// See [`windlass_core::store::Store::replay_settled`].
    pub fn replay_settled(
        &mut self,
        journal: &mut dyn Journal,
        name: &TaskType,
        since: Timestamp,
    ) -> JournalResult<()> {
        let settings = std::sync::Arc::clone(&self.settings);
        let breaker = self.index.lanes.change_breaker_of(name, &settings, |breaker| {
            breaker.record.replay_since = breaker.record.replay_since.filter(|marked| *marked != since);
        });
        let record = breaker.record.clone();
        journal.put_breaker(&Scope::Type(name.clone()), Some(&record).filter(|record| !record.is_plain()))
    }

    /// A worker starts a task; under a half-open breaker it is the trial.
    pub(crate) fn start_worker_trial(&mut self, worker: WorkerId, claim: ClaimNo) {
        let now = self.now;
        if self.workers.get(&worker).is_some_and(|entry| !entry.breaker.record.is_plain()) {
            self.remember_worker(worker);
            if let Some(entry) = self.workers.get_mut(&worker) {
                entry.breaker.started(claim, now);
            }
        }
    }

    /// How many tasks a worker may start: fewer than it asks for only if its breaker says so.
    pub(crate) fn worker_admits(&self, worker: WorkerId, now: Timestamp) -> usize {
        self.workers.get(&worker).and_then(|entry| entry.breaker.admits(now)).unwrap_or(usize::MAX)
    }
}
