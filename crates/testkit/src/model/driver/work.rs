//! Work out and results in: claims, results, heartbeats, progress, steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::failure::ErrorReport;
use windlass_core::ids::{LeaseToken, TaskId};
use windlass_core::keys::OnConflict;
use windlass_core::store::{
    ClaimRequest, Finish, Finished, Heartbeat, LeaseError, Outcome, ProgressReport, Renewal, StepReport,
};
use windlass_core::task::{ClaimedTask, NewTask, Progress, Start};
use windlass_core::time::Timestamp;

use super::{Driver, Sent, Verdict};
use crate::fixtures::{error_code, json};
use crate::model::operation::{Ending, Fence, choose};
use crate::model::reference::Served;
use crate::rig::LEASE;

impl Driver {
    pub(super) async fn claim(&mut self, worker: usize, up_to: usize, lease: Duration) -> Verdict {
        // Whether a claim or the sweep ends an expired task is not compared.
        self.sweep("expire", 100).await?;
        // Nor whether a lease that begins while others are forgiven is forgiven too: it is
        // as long as forgiveness at least, and so is every timeout.
        let lease = if self.reference.now < self.reference.forgiven_until { lease.max(LEASE) } else { lease };
        let profile = &self.workers[worker];
        let request = ClaimRequest { worker: profile.id, capabilities: None, up_to, lease, wait: false };
        let claimed = self.rig.store.claim(request).await.map_err(|error| format!("claim was refused: {error}"))?;
        let queues: Vec<&str> = profile.queues.iter().map(windlass_core::names::QueueName::as_str).collect();
        let types: Vec<&str> = profile.task_types.iter().map(windlass_core::names::TaskType::as_str).collect();
        let gpu = !profile.capabilities.is_empty();
        let served = Served { queues: &queues, types: &types, gpu };
        same!(self.sorted(claimed.cancel)?, self.revoked(worker), "cancelled tasks told by a claim");
        let got = claimed.tasks.len();
        for task in claimed.tasks {
            let item = self.item(task.id)?;
            // Every task that starts may fill a limit or a key.
            let eligible = self.reference.eligible(&served);
            if let Some(why) = self.reference.wrong_choice(&eligible, item) {
                return Err(format!("a claim gave task {item}: {why}"));
            }
            self.check_claimed(&task, item, lease)?;
            self.reference.claim(item, worker, task.token, lease);
            self.granted.push((item, worker, task.token, task.attempt as u8));
            self.touched.insert(item);
        }
        if got > up_to {
            return Err(format!("a claim of {up_to} got {got}"));
        }
        if got < up_to
            && let Some(missed) = self.reference.eligible(&served).first()
        {
            return Err(format!("a claim got {got} of {up_to} and missed task {missed}"));
        }
        self.count("claimed", got);
        Ok(())
    }

    pub(super) fn check_claimed(&self, task: &ClaimedTask, item: usize, lease: Duration) -> Verdict {
        let known = &self.reference.items[item];
        same!(task.spec, known.spec, "spec of claimed task {item}");
        same!(
            (task.attempt, task.crashes, task.timeout, task.lease_expires_at),
            (known.attempt + 1, known.crashes, known.timeout(), self.reference.now + lease),
            "attempt, crashes, timeout and lease of claimed task {item}"
        );
        let steps: BTreeMap<_, _> =
            task.steps.iter().map(|(name, result)| (name.clone(), result.as_str().to_owned())).collect();
        same!(steps, known.steps, "steps of claimed task {item}");
        if task.token.claim().0 <= self.reference.last_claim {
            return Err(format!("claim number {:?} is not above {}", task.token.claim(), self.reference.last_claim));
        }
        Ok(())
    }

    pub(super) fn revoked(&self, worker: usize) -> Vec<usize> {
        let told =
            |item: &usize| self.reference.items[*item].lease.is_some_and(|held| held.revoked && held.worker == worker);
        self.reference.live.iter().copied().filter(told).collect()
    }

    pub(super) fn item(&self, id: TaskId) -> Result<usize, String> {
        self.reference.by_id.get(&id).copied().ok_or_else(|| format!("nobody submitted {id}"))
    }

    pub(super) fn sorted(&self, ids: Vec<TaskId>) -> Result<Vec<usize>, String> {
        let mut items = ids.into_iter().map(|id| self.item(id)).collect::<Result<Vec<_>, _>>()?;
        items.sort_unstable();
        Ok(items)
    }

    /// A task, worker and token for a word about an attempt; none if there was no attempt yet.
    pub(super) fn lease(&self, pick: u32, fence: Fence) -> Option<(usize, usize, LeaseToken)> {
        let name = |item: usize| self.reference.items[item].name;
        let held = || {
            let lease = |item: &usize| self.reference.items[*item].lease.map(|held| (*item, held.worker, held.token));
            self.reference.live.iter().filter_map(lease).map(|found| (name(found.0), found))
        };
        let recent = self.granted.iter().rev().take(60);
        let any = || {
            choose(
                pick,
                recent.clone().map(|found| (name(found.0) << 8 | u64::from(found.3), (found.0, found.1, found.2))),
            )
        };
        let live = choose(pick, held());
        match fence {
            Fence::Live => live.or_else(any),
            Fence::Any => any(),
            Fence::OtherWorker => live.map(|(item, worker, token)| (item, (worker + 1) % self.workers.len(), token)),
            Fence::OtherTask => {
                let other = choose(pick.wrapping_add(1), held());
                live.zip(other).map(|((_, worker, token), (item, _, _))| (item, worker, token))
            }
        }
    }

    pub(super) fn outcome(&self, ending: &Ending) -> Outcome {
        match ending {
            Ending::Complete { result, follow_ups } => Outcome::Completed {
                result: Some(json(&result.to_string())),
                follow_ups: follow_ups.iter().map(|(queue, draft)| self.spec_of(*queue, draft)).collect(),
            },
            Ending::Fail { code, retry_after, note } => Outcome::Failed(ErrorReport {
                retry_after_seconds: *retry_after,
                message: format!("note {note}"),
                ..error_code(code)
            }),
            Ending::Release => Outcome::Released,
            Ending::Snooze(span) => Outcome::Snoozed(*span),
            Ending::Withdraw => Outcome::Cancelled { note: None },
        }
    }

    pub(super) async fn finish(&mut self, results: Vec<(u32, Fence, Ending)>) -> Verdict {
        // One call per worker: results of one call are applied in order.
        let mut calls: BTreeMap<usize, Vec<Finish>> = BTreeMap::new();
        for (pick, fence, ending) in results {
            let Some((item, worker, token)) = self.lease(pick, fence) else { continue };
            let finish = Finish::new(self.reference.items[item].id, token, self.outcome(&ending));
            calls.entry(worker).or_default().push(finish);
        }
        for (worker, finishes) in calls {
            self.send(worker, finishes).await?;
        }
        Ok(())
    }

    pub(super) async fn repeat(&mut self, pick: u32) -> Verdict {
        let recent = self.sent.iter().rev().take(30).map(|sent| (sent.name, sent.clone()));
        let Some(Sent { worker, finish, .. }) = choose(pick, recent) else { return Ok(()) };
        self.send(worker, vec![finish]).await
    }

    pub(super) async fn send(&mut self, worker: usize, finishes: Vec<Finish>) -> Verdict {
        let answers = self.rig.store.finish(self.workers[worker].id, finishes.clone()).await;
        let answers = answers.map_err(|error| format!("finish failed: {error}"))?;
        same!(answers.len(), finishes.len(), "answers of finish");
        for (finish, answer) in finishes.into_iter().zip(answers) {
            let item = self.item(finish.task)?;
            self.finish_one(worker, item, &finish, answer)?;
            self.touched.insert(item);
            self.sent.push(Sent { name: self.naming.0, worker, finish });
        }
        Ok(())
    }

    pub(super) fn finish_one(
        &mut self,
        worker: usize,
        item: usize,
        finish: &Finish,
        answer: Result<Finished, LeaseError>,
    ) -> Verdict {
        let known = &self.reference.items[item];
        let Some(held) = self.reference.fenced(item, worker, finish.token) else {
            let expected = match known.applied {
                _ if known.gone => Err(LeaseError::UnknownTask),
                Some((token, digest, status)) if token == finish.token && digest == finish.digest => Ok((status, true)),
                Some(_) | None => Err(LeaseError::Lost),
            };
            same!(answer.map(|done| (done.status, done.repeated)), expected, "late result of task {item}");
            self.count("late results", 1);
            return Ok(());
        };
        if held.revoked {
            same!(answer, Err(LeaseError::Lost), "result of cancelled task {item}");
            self.reference.acknowledge(item);
            return Ok(());
        }
        let told = answer.map_err(|refused| format!("the result of task {item} was refused: {refused}"))?;
        match &finish.outcome {
            Outcome::Completed { follow_ups, .. } => {
                self.reference.complete(item);
                same!(told.follow_ups.len(), follow_ups.len(), "follow-ups of task {item}");
                for (id, new) in told.follow_ups.iter().zip(follow_ups) {
                    let delay = match new.start {
                        Start::After(delay) => delay,
                        Start::Now | Start::At(_) => Duration::ZERO,
                    };
                    self.follow_up(*id, new, delay)?;
                }
            }
            Outcome::Failed(report) => self.reference.fail(item, report, false),
            Outcome::Released => self.reference.release(item),
            Outcome::Snoozed(span) => self.reference.snooze(item, *span),
            Outcome::Cancelled { .. } => self.reference.withdraw(item),
        }
        let status = self.reference.items[item].status;
        same!((told.status, told.repeated), (status, false), "result of task {item}");
        self.reference.items[item].applied = Some((finish.token, finish.digest, status));
        self.reference.items[item].percent = None;
        self.count("results", 1);
        Ok(())
    }

    /// A follow-up is never refused: where a submit would be, the task that is there stands.
    fn follow_up(&mut self, id: TaskId, new: &NewTask, delay: Duration) -> Verdict {
        let unique = new.spec.unique.as_ref();
        let holder = unique.and_then(|unique| self.reference.unique_holder(unique)).filter(|holder| {
            let changes =
                unique.is_some_and(|unique| matches!(unique.on_conflict, OnConflict::Replace | OnConflict::Reschedule));
            !(changes && self.reference.items[*holder].status.is_ended())
        });
        let item = if let Some(holder) = holder {
            same!(id, self.reference.items[holder].id, "follow-up with a unique key");
            self.meet(holder, new.clone(), delay);
            holder
        } else {
            if self.reference.by_id.contains_key(&id) {
                return Err(format!("a follow-up is new, but the store says {id}"));
            }
            let name = self.new_name();
            self.reference.submit(name, id, new.spec.clone(), delay)
        };
        self.touched.insert(item);
        Ok(())
    }

    pub(super) async fn heartbeat(&mut self, worker: usize, named: Option<Vec<u32>>) -> Verdict {
        let leases: Option<Vec<_>> =
            named.map(|picks| picks.into_iter().filter_map(|pick| self.lease(pick, Fence::Any)).collect());
        let renewal = leases.as_ref().map_or(Renewal::All, |leases| {
            Renewal::Named(leases.iter().map(|(item, _, token)| (self.reference.items[*item].id, *token)).collect())
        });
        let beat = Heartbeat {
            worker: self.workers[worker].id,
            renewal,
            lease: LEASE,
            unhealthy: false,
            draining: false,
            health: None,
        };
        let beaten = self.rig.store.heartbeat(beat).await.map_err(|error| format!("heartbeat was refused: {error}"))?;
        let until = self.reference.now + LEASE;
        same!(beaten.lease_expires_at, until, "lease after a heartbeat");
        same!(self.sorted(beaten.cancel)?, self.revoked(worker), "cancelled tasks told by a heartbeat");
        let mut lost = BTreeSet::new();
        let renewed: Vec<usize> = match leases {
            Some(leases) => leases
                .into_iter()
                .filter_map(|(item, _, token)| {
                    let held = self.reference.fenced(item, worker, token);
                    if held.is_none() {
                        lost.insert(item);
                    }
                    held.filter(|held| !held.revoked).map(|_| item)
                })
                .collect(),
            None => self
                .reference
                .live
                .iter()
                .copied()
                .filter(|item| {
                    self.reference.items[*item].lease.is_some_and(|held| held.worker == worker && !held.revoked)
                })
                .collect(),
        };
        for item in renewed {
            if let Some(held) = &mut self.reference.items[item].lease {
                held.expires_at = until;
            }
            self.touched.insert(item);
        }
        let told: BTreeSet<usize> = self.sorted(beaten.lost)?.into_iter().collect();
        same!(told, lost, "lost leases told by a heartbeat");
        Ok(())
    }

    /// What a fenced word about an attempt must be answered with.
    pub(super) fn fence_answer(&self, item: usize, worker: usize, token: LeaseToken) -> Result<(), LeaseError> {
        match self.reference.fenced(item, worker, token) {
            Some(held) if !held.revoked => Ok(()),
            Some(_) | None => Err(LeaseError::Lost),
        }
    }

    pub(super) async fn progress(&mut self, pick: u32, fence: Fence, percent: u64) -> Verdict {
        let Some((item, worker, token)) = self.lease(pick, fence) else { return Ok(()) };
        let progress = Progress {
            percent: percent as f64,
            message: None,
            step: None,
            steps: None,
            metadata: None,
            at: Timestamp::EPOCH,
        };
        let report = ProgressReport { task: self.reference.items[item].id, token, progress };
        let answers = self.rig.store.record_progress(self.workers[worker].id, vec![report]).await;
        let answer = answers.map_err(|error| error.to_string())?.remove(0);
        let expected = self.fence_answer(item, worker, token);
        if !(self.reference.items[item].gone && answer.is_err()) {
            same!(answer, expected, "progress of task {item}");
        }
        if expected.is_ok() {
            self.reference.items[item].percent = Some(percent);
        }
        self.touched.insert(item);
        Ok(())
    }

    pub(super) async fn record_step(&mut self, pick: u32, fence: Fence, name: u64, result: u64) -> Verdict {
        let Some((item, worker, token)) = self.lease(pick, fence) else { return Ok(()) };
        let (name, result) = (format!("s{name}"), result.to_string());
        let report =
            StepReport { task: self.reference.items[item].id, token, name: name.clone(), result: json(&result) };
        let answers = self.rig.store.record_steps(self.workers[worker].id, vec![report]).await;
        let answer = answers.map_err(|error| error.to_string())?.remove(0);
        let expected = self.fence_answer(item, worker, token);
        if !(self.reference.items[item].gone && answer.is_err()) {
            same!(answer, expected, "step of task {item}");
        }
        if expected.is_ok() {
            self.reference.items[item].steps.entry(name).or_insert(result);
        }
        Ok(())
    }
}
