//! The claim: tasks from the front of eligible lanes to a worker, under new leases.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::ids::{ClaimNo, TaskKey, WorkerId};
use windlass_core::lane::Serves;
use windlass_core::limits;
use windlass_core::retry::grown_timeout;
use windlass_core::status::Status;
use windlass_core::store::{ClaimRequest, Claimed, WorkerError};
use windlass_core::task::ClaimedTask;
use windlass_core::transition::{Trigger, transition};

use crate::index::{Index, Lease, LiveTask};
use crate::journal::{ClaimEntry, ClaimRow, Journal, JournalResult, Needs};
use crate::lanes::{Pick, Room};
use crate::ledger::{Ledger, Noted, moved};
use crate::waiters::{ClaimReply, Waiter};
use crate::workers::WorkerEntry;

/// Expired tasks that one claim clears away; each is written. The next claims and the sweep do the rest.
const EXPIRED_PER_CLAIM: usize = 500;
/// Tasks that one claim puts aside because their key is full: memory only, about a microsecond each.
const PARKED_PER_CLAIM: usize = 20_000;
/// Tasks whose rows are read with the first that is not at hand, where reading is far: the next claims want them.
const READ_AHEAD: usize = 256;

/// A claim that got its answer; delivered after the commit.
pub(crate) struct Served {
    pub(crate) waiter: Waiter,
    pub(crate) claimed: Claimed,
}

impl Ledger {
    /// Answers a claim now, if there is anything to say.
    pub(crate) fn try_claim(
        &mut self,
        journal: &mut dyn Journal,
        request: &ClaimRequest,
    ) -> JournalResult<Result<Claimed, WorkerError>> {
        let now = self.now;
        let Some(entry) = self.seen(request.worker) else { return Ok(Err(WorkerError::Unknown)) };
        let takes_tasks = entry.takes_tasks(now);
        let serves = serves(&entry.serves, request);
        let tasks = if takes_tasks { self.take(journal, &serves, request)? } else { Vec::new() };
        // What the worker was told already is no reason to end its wait at once, over and over.
        let news = !request.wait || !tasks.is_empty() || self.has_untold(request.worker);
        let cancel = if news { self.tell_revoked(request.worker) } else { Vec::new() };
        Ok(Ok(Claimed { tasks, cancel }))
    }

    /// Puts a claim in the line of those that wait.
    pub(crate) fn wait_for_work(&mut self, request: ClaimRequest, reply: ClaimReply) {
        let Some(entry) = self.workers.get(&request.worker) else {
            let _ = reply.send(Err(WorkerError::Unknown));
            return;
        };
        let serves = serves(&entry.serves, &request);
        // It left before those that wait were served: what it did not get to, or what became ready after it, is still there.
        self.unfinished |= self.index.lanes.has_ready(&serves);
        self.waiters.join(Waiter { request, serves, reply });
    }

    /// Serves claims that wait, as far as there is work: in the very transaction that made it.
    pub(crate) fn serve_waiters(&mut self, journal: &mut dyn Journal, served: &mut Vec<Served>) -> JournalResult<()> {
        for worker in self.to_tell.clone() {
            if self.has_untold(worker)
                && let Some(waiter) = self.waiters.of_worker(worker)
            {
                let claimed = Claimed { tasks: Vec::new(), cancel: self.tell_revoked(worker) };
                served.push(Served { waiter, claimed });
            }
        }
        loop {
            // What ended in this transaction may have passed its key on, or made room in a limit.
            self.settle_keys();
            self.lanes_changed |= self.index.lanes.take_opened();
            let lanes_changed = std::mem::take(&mut self.lanes_changed);
            if !std::mem::take(&mut self.unfinished) && !lanes_changed {
                return Ok(());
            }
            for serves in self.waiters.lines() {
                self.serve_line(journal, &serves, served)?;
            }
            // What one line cleared away may have admitted what a line before it waits for.
            if self.unfinished {
                return Ok(());
            }
        }
    }

    /// Serves claims that wait for the same lanes.
    fn serve_line(
        &mut self,
        journal: &mut dyn Journal,
        serves: &Arc<Serves>,
        served: &mut Vec<Served>,
    ) -> JournalResult<()> {
        let now = self.now;
        let mut empty_handed: Vec<Waiter> = Vec::new();
        // One with the same room would go away empty-handed, too.
        let mut in_vain = HashSet::new();
        let outcome = loop {
            if self.unfinished || !self.index.lanes.has_ready(serves) {
                break Ok(());
            }
            // One without room waits for cancellations only and must not be in the way of others.
            let (workers, index) = (&self.workers, &self.index);
            let able = |waiter: &Waiter| {
                let worker = waiter.request.worker;
                waiter.request.up_to > 0
                    && workers.get(&worker).is_some_and(|entry| entry.takes_tasks(now))
                    && (in_vain.is_empty() || !in_vain.contains(&room(index, workers, worker)))
            };
            let Some(waiter) = self.waiters.next(serves, able) else { break Ok(()) };
            let room = room(&self.index, &self.workers, waiter.request.worker);
            let taken = self.take(journal, serves, &waiter.request);
            let cancel = self.tell_revoked(waiter.request.worker);
            match taken {
                // What was ready had expired, waits for its key, or needs more room than this one has.
                Ok(tasks) if tasks.is_empty() && cancel.is_empty() => {
                    in_vain.insert(room);
                    empty_handed.push(waiter);
                }
                Ok(tasks) => {
                    if !tasks.is_empty() {
                        // What it took may have stood before what the others have room for.
                        in_vain.clear();
                        for waiter in empty_handed.drain(..).rev() {
                            self.waiters.rejoin(waiter);
                        }
                    }
                    served.push(Served { waiter, claimed: Claimed { tasks, cancel } });
                }
                Err(error) => {
                    empty_handed.push(waiter);
                    break Err(error);
                }
            }
        };
        for waiter in empty_handed.into_iter().rev() {
            self.waiters.rejoin(waiter);
        }
        outcome
    }

    /// Takes tasks from the front of eligible lanes, as many as the worker has room for.
    fn take(
        &mut self,
        journal: &mut dyn Journal,
        serves: &Serves,
        request: &ClaimRequest,
    ) -> JournalResult<Vec<ClaimedTask>> {
        self.settle_keys();
        let mut room = room(&self.index, &self.workers, request.worker);
        let most = request.up_to.min(limits::CLAIM_TASKS).min(self.worker_admits(request.worker, self.now));
        let mut grant = Grant { first: None, entries: Vec::new(), claimed: Vec::new() };
        let (mut expirations, mut parked) = (0, 0);
        let served = self.index.lanes.served(serves);
        if journal.is_shared() && most > 0 {
            let mut tasks = self.index.lanes.upcoming(&served, most.max(READ_AHEAD));
            let ahead = tasks.split_off(most.min(tasks.len()));
            journal.prefetch(&Needs { tasks, ahead, ..Needs::default() })?;
        }
        while grant.claimed.len() < most {
            let Some(pick) = self.index.lanes.pick(&served, room, self.now) else { break };
            let Some(task) = self.index.task(pick.task) else { return Err(missing(pick.task)) };
            let expired = task.attempt == 0 && self.index.expiry(pick.task).is_some_and(|at| at <= self.now);
            let flow = task.keyed.then(|| self.index.keyed(pick.task)).flatten().map(|keyed| keyed.flow);
            let key_is_full = flow.is_some_and(|flow| self.index.flows.is_full(flow));
            if expirations == EXPIRED_PER_CLAIM || parked == PARKED_PER_CLAIM {
                self.unfinished = true;
                break;
            }
            if expired {
                expirations += 1;
                self.expire_one(journal, pick.task)?;
                // The next of its line may be wanted by this very claim.
                self.settle_keys();
                continue;
            }
            if key_is_full {
                parked += 1;
                self.index.set_task(pick.task, Some(LiveTask { held: true, ..task }));
                continue;
            }
            room.add(pick.slots);
            self.index.lanes.take_turn(&pick);
            self.grant(journal, request, pick, task, &mut grant)?;
            if flow.is_some() {
                // The next of a pool that is not full yet may be wanted by this very claim.
                self.settle_keys();
            }
        }
        let Grant { first, entries, claimed } = grant;
        if let Some(first) = first {
            self.index.open_claim(first, entries.len() as u32);
            let event_no = self.event_no(journal)?;
            journal.insert_claim(&ClaimRow { first, worker: request.worker, at: self.now, event_no, entries })?;
        }
        Ok(claimed)
    }

    /// Gives one task to the worker under a new lease.
    fn grant(
        &mut self,
        journal: &mut dyn Journal,
        request: &ClaimRequest,
        pick: Pick,
        task: LiveTask,
        grant: &mut Grant,
    ) -> JournalResult<()> {
        let (now, key) = (self.now, pick.task);
        let Ok(effect) = transition(task.status, Trigger::Claim) else { return Err(missing(key)) };
        let event_no = self.event_no(journal)?;
        let claim = ClaimNo(self.numbers.claim.take(1, journal)?);
        let claim_row = *grant.first.get_or_insert(claim.0);
        let Some(row) = journal.task(key)? else { return Err(missing(key)) };
        let mut running = moved(task, &effect, now, std::time::Duration::ZERO);
        running.version += 1;
        running.retrying = false;
        self.give_unique_back(journal, key, &mut running)?;
        let steps = if running.overlaid { journal.steps(key)? } else { BTreeMap::new() };
        let policy = &row.spec.policy;
        let timeout = grown_timeout(policy.timeout, policy.retry.timeout_growth, running.timeouts.into());
        let expires_at = now + request.lease;
        self.index.set_task(key, Some(running));
        self.index.set_lease(
            key,
            Some(Lease {
                worker: request.worker,
                claim,
                claim_row,
                event_no,
                lane: running.lane,
                slots: pick.slots,
                keyed: running.keyed,
                created_at: running.created_at,
                claimed_at: now,
                expires_at,
                deadline: now + timeout,
                revoked: false,
                told: false,
            }),
        );
        self.index.lanes.start(running.lane, claim);
        self.start_worker_trial(request.worker, claim);
        grant.entries.push(ClaimEntry { key: key.0, version: running.version, attempt: running.attempt });
        self.note(Noted {
            key,
            task: running,
            from: Some(Status::Queued),
            to: Status::Executing,
            change: Change::Claimed { worker: request.worker, attempt: running.attempt, claim: claim.0 },
            actor: Actor::Worker(request.worker),
            lease: None,
            ahead_of: pick.ahead_of,
            failure: None,
        });
        grant.claimed.push(ClaimedTask {
            id: self.id_of(key, running.created_at),
            spec: row.spec,
            attempt: running.attempt,
            crashes: u32::from(running.crashes),
            created_at: running.created_at,
            timeout,
            token: self.ids.token(key, claim),
            lease_expires_at: expires_at,
            steps,
        });
        Ok(())
    }
}

/// What one claim has got so far.
struct Grant {
    /// The number of its first task: the name of its row.
    first: Option<u64>,
    entries: Vec<ClaimEntry>,
    claimed: Vec<ClaimedTask>,
}

/// The room of a worker.
fn room(index: &Index, workers: &HashMap<WorkerId, WorkerEntry>, worker: WorkerId) -> Room {
    let (taken, tasks) = index.load_of(worker);
    let capacity = workers.get(&worker).map_or(1, |entry| entry.row.profile.capacity);
    Room { capacity: capacity.max(1), taken, tasks: tasks as u32 }
}

fn serves(registered: &Arc<Serves>, request: &ClaimRequest) -> Arc<Serves> {
    match &request.capabilities {
        Some(capabilities) if *capabilities != registered.capabilities => {
            Arc::new(Serves { capabilities: capabilities.clone(), ..Serves::clone(registered) })
        }
        Some(_) | None => Arc::clone(registered),
    }
}

/// The index knows a task that the journal does not: the file was changed behind our back.
pub(crate) fn missing(key: TaskKey) -> crate::journal::JournalError {
    crate::journal::JournalError {
        reason: format!("task {} is in memory but not in the journal", key.0),
        fault: crate::journal::Fault::Item,
    }
}
