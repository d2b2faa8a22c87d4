//! The claim: tasks from the front of eligible lanes to a worker, under new leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::ids::{ClaimNo, TaskKey};
use windlass_core::lane::Serves;
use windlass_core::limits;
use windlass_core::retry::grown_timeout;
use windlass_core::status::Status;
use windlass_core::store::{ClaimRequest, Claimed, WorkerError};
use windlass_core::task::ClaimedTask;
use windlass_core::transition::{Trigger, transition};

use crate::index::Lease;
use crate::journal::{ClaimEntry, ClaimRow, Journal, JournalResult};
use crate::lanes::Pick;
use crate::ledger::{Ledger, Noted, moved};
use crate::waiters::{ClaimReply, Waiter};
use crate::workers::WorkerEntry;

/// Expired tasks that one claim clears away; the sweep does the rest.
const EXPIRED_PER_CLAIM: usize = 500;

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
        let Some(entry) = self.seen(request.worker) else { return Ok(Err(WorkerError::Unknown)) };
        let takes_tasks = entry.takes_tasks();
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
        self.waiters.join(Waiter { request, serves, reply });
    }

    /// Serves claims that wait, as far as there is work: in the very transaction that made it.
    pub(crate) fn serve_waiters(&mut self, journal: &mut dyn Journal, served: &mut Vec<Served>) -> JournalResult<()> {
        if !std::mem::take(&mut self.lanes_changed) {
            return Ok(());
        }
        for serves in self.waiters.lines() {
            while self.index.lanes.has_ready(&serves) {
                let workers = &self.workers;
                // One without room waits for cancellations only and must not be in the way of others.
                let able = |waiter: &Waiter| {
                    waiter.request.up_to > 0
                        && workers.get(&waiter.request.worker).is_some_and(WorkerEntry::takes_tasks)
                };
                let Some(waiter) = self.waiters.next(&serves, able) else { break };
                let taken = self.take(journal, &serves, &waiter.request);
                let cancel = self.tell_revoked(waiter.request.worker);
                match taken {
                    // Everything that was ready had expired.
                    Ok(tasks) if tasks.is_empty() && cancel.is_empty() => {
                        self.waiters.rejoin(waiter);
                        break;
                    }
                    Ok(tasks) => served.push(Served { waiter, claimed: Claimed { tasks, cancel } }),
                    Err(error) => {
                        self.waiters.rejoin(waiter);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        journal: &mut dyn Journal,
        serves: &Serves,
        request: &ClaimRequest,
    ) -> JournalResult<Vec<ClaimedTask>> {
        let mut picks = Vec::new();
        let mut expired = 0;
        let up_to = request.up_to.min(limits::CLAIM_TASKS);
        while picks.len() < up_to {
            let Some(pick) = self.index.lanes.pick(serves, self.now) else { break };
            if self.index.expiry(pick.task).is_some_and(|at| at <= self.now)
                && self.index.task(pick.task).is_some_and(|task| task.attempt == 0)
            {
                if expired == EXPIRED_PER_CLAIM {
                    self.lanes_changed = true;
                    break;
                }
                expired += 1;
                self.expire_one(journal, pick.task)?;
                continue;
            }
            self.start_attempt(pick);
            picks.push(pick);
        }
        if picks.is_empty() {
            return Ok(Vec::new());
        }
        self.grant(journal, request, &picks)
    }

    /// Marks the task as running, so that it is not picked again.
    fn start_attempt(&mut self, pick: Pick) {
        let effect = transition(Status::Queued, Trigger::Claim);
        if let (Some(task), Ok(effect)) = (self.index.task(pick.task), effect) {
            let mut running = moved(task, &effect, self.now, std::time::Duration::ZERO);
            running.version += 1;
            running.retrying = false;
            self.index.set_task(pick.task, Some(running));
        }
    }

    fn grant(
        &mut self,
        journal: &mut dyn Journal,
        request: &ClaimRequest,
        picks: &[Pick],
    ) -> JournalResult<Vec<ClaimedTask>> {
        let now = self.now;
        let event_no = self.event_no(journal)?;
        let first = self.numbers.claim.take(picks.len() as u64, journal)?;
        let expires_at = now + request.lease;
        let mut entries = Vec::with_capacity(picks.len());
        let mut claimed = Vec::with_capacity(picks.len());
        for (offset, pick) in picks.iter().enumerate() {
            let key = pick.task;
            let Some(task) = self.index.task(key) else { continue };
            let Some(row) = journal.task(key)? else { return Err(missing(key)) };
            let steps = if task.overlaid { journal.steps(key)? } else { BTreeMap::new() };
            let claim = ClaimNo(first + offset as u64);
            let timeout =
                grown_timeout(row.spec.policy.timeout, row.spec.policy.retry.timeout_growth, task.timeouts.into());
            let lease = Lease {
                worker: request.worker,
                claim,
                claim_row: first,
                event_no,
                created_at: task.created_at,
                claimed_at: now,
                expires_at,
                deadline: now + timeout,
                revoked: false,
                told: false,
            };
            self.index.set_lease(key, Some(lease));
            entries.push(ClaimEntry { key: key.0, version: task.version, attempt: task.attempt });
            let change = Change::Claimed { worker: request.worker, attempt: task.attempt, claim: claim.0 };
            let noted = Noted {
                key,
                task,
                from: Some(Status::Queued),
                to: Status::Executing,
                change,
                actor: Actor::Worker(request.worker),
                lease: None,
                ahead_of: pick.ahead_of,
            };
            self.note(noted);
            claimed.push(ClaimedTask {
                id: self.id_of(key, task.created_at),
                spec: row.spec,
                attempt: task.attempt,
                crashes: u32::from(task.crashes),
                created_at: task.created_at,
                timeout,
                token: self.ids.token(key, claim),
                lease_expires_at: expires_at,
                steps,
            });
        }
        self.index.open_claim(first, entries.len() as u32);
        journal.insert_claim(&ClaimRow { first, worker: request.worker, at: now, event_no, entries })?;
        Ok(claimed)
    }
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
        item_at_fault: true,
        fatal: false,
    }
}
