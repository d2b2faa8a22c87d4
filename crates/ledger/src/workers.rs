//! Workers: who is known, who is heard of, who may have work.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::breaker::{Scope, State, WorkerBreaker};
use windlass_core::ids::{ClaimNo, TaskId, WorkerId};
use windlass_core::lane::Serves;
use windlass_core::limits;
use windlass_core::store::{Beaten, Claimed, Heartbeat, Renewal, Sweep, WorkerError};
use windlass_core::time::Timestamp;
use windlass_core::worker::{Health, Worker, WorkerProfile};

use crate::claim::Served;
use crate::index::Lease;
use crate::journal::{Journal, JournalResult, WorkerRow};
use crate::ledger::Ledger;

/// Other nodes learn that a worker lives at least this often, if it does.
const TELL_LIFE: Duration = Duration::from_secs(1);

/// A worker in memory.
#[derive(Clone, Debug)]
pub(crate) struct WorkerEntry {
    pub(crate) row: Arc<WorkerRow>,
    pub(crate) serves: Arc<Serves>,
    pub(crate) last_seen_at: Timestamp,
    /// When other nodes last learned that it lives.
    pub(crate) told_at: Timestamp,
    pub(crate) unhealthy: bool,
    /// The worker itself says so; an operator's word is in the row.
    pub(crate) says_draining: bool,
    pub(crate) health: Option<Health>,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) breaker: WorkerBreaker,
    /// The newest claim that came to a good end. What was claimed before it and is lost says nothing about the worker
    /// any more.
    pub(crate) last_good: Option<ClaimNo>,
}

impl WorkerEntry {
    pub(crate) fn new(row: WorkerRow, seen_at: Timestamp) -> Self {
        Self {
            serves: Arc::new(row.profile.serves()),
            row: Arc::new(row),
            last_seen_at: seen_at,
            told_at: seen_at,
            unhealthy: false,
            says_draining: false,
            health: None,
            completed: 0,
            failed: 0,
            breaker: WorkerBreaker::default(),
            last_good: None,
        }
    }

    fn is_draining(&self) -> bool {
        self.row.draining || self.says_draining
    }

    pub(crate) fn takes_tasks(&self, now: Timestamp) -> bool {
        !self.is_draining() && !self.unhealthy && self.breaker.admits(now) != Some(0)
    }
}

impl Ledger {
    /// Any call of a worker is a sign of life.
    pub(crate) fn seen(&mut self, worker: WorkerId) -> Option<&mut WorkerEntry> {
        let now = self.now;
        let entry = self.workers.get_mut(&worker)?;
        entry.last_seen_at = now;
        self.seen_workers.insert(worker);
        self.was_beaten |= now.since(entry.told_at) >= TELL_LIFE;
        Some(entry)
    }

    /// See [`windlass_core::store::Store::register_worker`].
    pub fn register_worker(
        &mut self,
        journal: &mut dyn Journal,
        profile: &WorkerProfile,
    ) -> JournalResult<Result<(), WorkerError>> {
        if self.workers.len() >= limits::WORKERS && !self.workers.contains_key(&profile.id) {
            return Ok(Err(WorkerError::TooMany));
        }
        let row = WorkerRow { profile: profile.clone(), registered_at: self.now, draining: false };
        journal.put_worker(profile.id, Some(&row))?;
        self.remember_worker(profile.id);
        // Registering anew is no cure.
        let breaker = self.workers.get(&profile.id).map(|entry| entry.breaker.clone()).unwrap_or_default();
        self.workers.insert(profile.id, WorkerEntry { breaker, ..WorkerEntry::new(row, self.now) });
        Ok(Ok(()))
    }

    /// See [`windlass_core::store::Store::drain_worker`].
    pub(crate) fn drain_worker(
        &mut self,
        journal: &mut dyn Journal,
        id: WorkerId,
        served: &mut Vec<Served>,
    ) -> JournalResult<Result<(), WorkerError>> {
        let Some(entry) = self.workers.get(&id) else { return Ok(Err(WorkerError::Unknown)) };
        let row = WorkerRow { draining: true, ..WorkerRow::clone(&entry.row) };
        journal.put_worker(id, Some(&row))?;
        self.remember_worker(id);
        if let Some(entry) = self.workers.get_mut(&id) {
            entry.row = Arc::new(row);
        }
        self.send_home(id, served);
        Ok(Ok(()))
    }

    /// Ends the polls of a worker that gets no more work: waiting on would be in vain.
    fn send_home(&mut self, worker: WorkerId, served: &mut Vec<Served>) {
        while let Some(waiter) = self.waiters.of_worker(worker) {
            let claimed = Claimed { tasks: Vec::new(), cancel: self.tell_revoked(worker) };
            served.push(Served { waiter, claimed });
        }
    }

    /// Ends the polls of a worker that has something to learn from another node's word.
    pub(crate) fn end_polls_of(&mut self, worker: WorkerId) {
        while let Some(waiter) = self.waiters.of_worker(worker) {
            // Whoever is gone does not need to know.
            let _ = waiter.reply.send(Ok(Claimed { tasks: Vec::new(), cancel: self.revoked(worker) }));
        }
    }

    /// See [`windlass_core::store::Store::deregister_worker`].
    pub(crate) fn deregister_worker(
        &mut self,
        journal: &mut dyn Journal,
        id: WorkerId,
        served: &mut Vec<Served>,
    ) -> JournalResult<Result<(), WorkerError>> {
        if !self.workers.contains_key(&id) {
            return Ok(Err(WorkerError::Unknown));
        }
        let held: Vec<_> = self.index.leases_of(id).collect();
        for key in held {
            let Some(lease) = self.index.lease(key) else { continue };
            if lease.revoked {
                self.drop_lease(journal, key, &lease)?;
            } else {
                self.release(journal, key, &lease, None, Actor::Worker(id))?;
            }
        }
        self.forget_worker(journal, id)?;
        self.send_home(id, served);
        Ok(Ok(()))
    }

    fn forget_worker(&mut self, journal: &mut dyn Journal, id: WorkerId) -> JournalResult<()> {
        journal.put_worker(id, None)?;
        self.remember_worker(id);
        if let Some(entry) = self.workers.remove(&id)
            && !entry.breaker.record.is_plain()
        {
            journal.put_breaker(&Scope::Worker(id), None)?;
            self.recovering_workers.retain(|(_, worker)| *worker != id);
        }
        Ok(())
    }

    /// See [`windlass_core::store::Store::forget_workers`].
    pub fn forget_workers(&mut self, journal: &mut dyn Journal, seen_before: Timestamp) -> JournalResult<Sweep> {
        let silent: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(id, entry)| entry.last_seen_at < seen_before && self.index.leases_of(**id).next().is_none())
            .map(|(id, _)| *id)
            .take(1_000)
            .collect();
        for id in &silent {
            self.forget_worker(journal, *id)?;
        }
        Ok(Sweep { changed: silent.len(), more: silent.len() == 1_000, next_at: None })
    }

    /// See [`windlass_core::store::Store::workers`].
    pub fn list_workers(&self) -> Vec<Worker> {
        self.workers
            .iter()
            .map(|(id, entry)| Worker {
                profile: entry.row.profile.clone(),
                registered_at: entry.row.registered_at,
                last_seen_at: entry.last_seen_at,
                draining: entry.is_draining(),
                unhealthy: entry.unhealthy || entry.breaker.record.state(self.now) != State::Closed,
                health: entry.health,
                current_tasks: self
                    .index
                    .leases_of(*id)
                    .filter_map(|key| Some(self.id_of(key, self.index.task(key)?.created_at)))
                    .collect(),
                completed: entry.completed,
                failed: entry.failed,
            })
            .collect()
    }

    /// See [`windlass_core::store::Store::heartbeat`]. Renewals live in memory only: after
    /// a restart every lease gets a fresh period anyway.
    pub fn heartbeat(&mut self, beat: &Heartbeat) -> Result<Beaten, WorkerError> {
        let now = self.now;
        self.was_beaten |= self.workers.contains_key(&beat.worker);
        let entry = self.seen(beat.worker).ok_or(WorkerError::Unknown)?;
        let took_tasks = entry.takes_tasks(now);
        let is_strained = |health: Option<Health>| health.is_some_and(|health| health.is_strained());
        entry.unhealthy = beat.unhealthy || (is_strained(beat.health) && is_strained(entry.health));
        entry.health = beat.health.or(entry.health);
        entry.says_draining = beat.draining;
        let should_drain = entry.is_draining();
        // One that could not take tasks before may have a claim waiting.
        let takes_tasks = entry.takes_tasks(now);
        self.lanes_changed |= takes_tasks && !took_tasks;
        let expires_at = now + beat.lease;
        let mut lost = Vec::new();
        match &beat.renewal {
            Renewal::All => {
                let held: Vec<_> = self.index.leases_of(beat.worker).collect();
                for key in held {
                    if let Some(lease) = self.index.lease(key).filter(|lease| !lease.revoked) {
                        self.index.set_lease(key, Some(Lease { expires_at, ..lease }));
                    }
                }
            }
            Renewal::Named(named) => {
                for (id, token) in named {
                    let held = self.ids.task_key(*id).and_then(|key| Some((key, self.index.lease(key)?)));
                    match held {
                        Some((key, lease))
                            if lease.worker == beat.worker
                                && lease.claim == token.claim()
                                && self.ids.is_genuine(key, *token) =>
                        {
                            if !lease.revoked {
                                self.index.set_lease(key, Some(Lease { expires_at, ..lease }));
                            }
                        }
                        Some(_) | None => lost.push(*id),
                    }
                }
            }
        }
        Ok(Beaten { should_drain, cancel: self.tell_revoked(beat.worker), lost, lease_expires_at: expires_at })
    }

    /// Whether a task of the worker was cancelled and it has not been told.
    pub(crate) fn has_untold(&self, worker: WorkerId) -> bool {
        self.index.leases_of(worker).any(|key| self.index.lease(key).is_some_and(|lease| lease.revoked && !lease.told))
    }

    /// [`Self::revoked`], and notes that the worker knows.
    pub(crate) fn tell_revoked(&mut self, worker: WorkerId) -> Vec<TaskId> {
        let held: Vec<_> = self.index.leases_of(worker).collect();
        for key in held {
            if let Some(lease) = self.index.lease(key).filter(|lease| lease.revoked && !lease.told) {
                self.index.set_lease(key, Some(Lease { told: true, ..lease }));
            }
        }
        self.revoked(worker)
    }

    /// Tasks that a worker runs though they were cancelled.
    pub(crate) fn revoked(&self, worker: WorkerId) -> Vec<TaskId> {
        self.index
            .leases_of(worker)
            .filter_map(|key| {
                let lease = self.index.lease(key).filter(|lease| lease.revoked)?;
                Some(self.id_of(key, lease.created_at))
            })
            .collect()
    }
}
