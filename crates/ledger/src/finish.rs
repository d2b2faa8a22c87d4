//! The end of an attempt: results, lapsed leases, timeouts.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::event::{Change, FailureNote};
use windlass_core::failure::{
    DecidedBy, EndReason, ErrorClass, ErrorReport, TaskPolicy, Verdict, after_crash, after_failure, classify,
};
use windlass_core::ids::{LeaseToken, TaskId, TaskKey, WorkerId};
use windlass_core::json::Json;
use windlass_core::limits;
use windlass_core::status::Status;
use windlass_core::store::{Finish, Finished, LeaseError, Outcome, ProgressReport, StepReport};
use windlass_core::task::{FailedAttempt, Progress};
use windlass_core::transition::{Effect, Trigger, transition};

use crate::claim::missing;
use crate::index::{Lease, LiveTask};
use crate::journal::{self, AppliedResult, Journal, JournalError, JournalResult, Needs};
use crate::ledger::{Ending, Ledger, Move, Past, moved};
use crate::submit::Prepared;

/// A result on its way in, with its follow-ups prepared.
#[derive(Debug)]
pub struct Arrived {
    task: TaskId,
    token: LeaseToken,
    digest: u64,
    ending: Ended,
}

#[derive(Debug)]
enum Ended {
    Completed { result: Option<Json>, follow_ups: Vec<Prepared> },
    Failed(ErrorReport),
    Released,
    Snoozed(Duration),
    Cancelled { note: Option<String> },
}

impl From<Finish> for Arrived {
    fn from(finish: Finish) -> Self {
        let ending = match finish.outcome {
            Outcome::Completed { result, follow_ups } => {
                Ended::Completed { result, follow_ups: follow_ups.into_iter().map(Prepared::new).collect() }
            }
            Outcome::Failed(error) => Ended::Failed(error),
            Outcome::Released => Ended::Released,
            Outcome::Snoozed(span) => Ended::Snoozed(span),
            Outcome::Cancelled { note } => Ended::Cancelled { note },
        };
        Self { task: finish.task, token: finish.token, digest: finish.digest, ending }
    }
}

/// Why an attempt that did not succeed is over.
enum Fault<'a> {
    Reported(&'a ErrorReport),
    TimedOut,
    Lapsed,
}

fn effect_of(trigger: Trigger) -> JournalResult<Effect> {
    transition(Status::Executing, trigger)
        .map_err(|illegal| JournalError { reason: illegal.to_string(), fault: journal::Fault::Item })
}

impl Ledger {
    /// See [`windlass_core::store::Store::finish`].
    pub fn finish(
        &mut self,
        journal: &mut dyn Journal,
        worker: WorkerId,
        results: &[Arrived],
    ) -> JournalResult<Vec<Result<Finished, LeaseError>>> {
        self.seen(worker);
        results.iter().map(|result| self.finish_one(journal, worker, result)).collect()
    }

    /// Adds the rows that taking results asks for. Most need none: that a task completed is known from memory.
    pub(crate) fn needs_of_results(&self, results: &[Arrived], needs: &mut Needs) {
        for result in results {
            let Some(key) = self.ids.task_key(result.task) else { continue };
            let failed = matches!(result.ending, Ended::Failed(_));
            // A task that is not live has ended: the result was taken before, or comes too late.
            if self.index.task(key).is_none_or(|task| failed || task.overlaid || task.unique) {
                needs.tasks.push(key);
            }
            if let Ended::Completed { follow_ups, .. } = &result.ending {
                for task in follow_ups {
                    task.needs(needs);
                }
            }
        }
    }

    /// The live lease that a word about an attempt is fenced by.
    fn fenced(&self, worker: WorkerId, task: TaskId, token: LeaseToken) -> Result<(TaskKey, Lease), LeaseError> {
        let key = self.ids.task_key(task).ok_or(LeaseError::UnknownTask)?;
        let lease = self.index.lease(key).filter(|lease| lease.worker == worker && lease.claim == token.claim());
        match lease {
            Some(lease) if self.ids.is_genuine(key, token) => Ok((key, lease)),
            Some(_) | None => Err(LeaseError::Lost),
        }
    }

    fn finish_one(
        &mut self,
        journal: &mut dyn Journal,
        worker: WorkerId,
        result: &Arrived,
    ) -> JournalResult<Result<Finished, LeaseError>> {
        let (key, lease) = match self.fenced(worker, result.task, result.token) {
            Ok(fenced) => fenced,
            Err(LeaseError::Lost) => return self.repeated(journal, result),
            Err(refused) => return Ok(Err(refused)),
        };
        if lease.revoked {
            // The refusal is the acknowledgement: the worker knows now.
            self.drop_lease(journal, key, &lease)?;
            return Ok(Err(LeaseError::Lost));
        }
        let actor = Actor::Worker(worker);
        let mut follow_ups = Vec::new();
        let applied = |status| AppliedResult { claim: lease.claim.0, digest: result.digest, status };
        let status = match &result.ending {
            Ended::Completed { result: value, follow_ups: next } => {
                self.complete(journal, key, &lease, applied(Status::Completed), value.clone(), actor)?;
                for task in next {
                    follow_ups.push(self.follow_up(journal, task, actor)?);
                }
                Status::Completed
            }
            Ended::Failed(error) => {
                self.fail(journal, key, &lease, &Fault::Reported(error), Some(result.digest), actor)?
            }
            Ended::Released => self.release(journal, key, &lease, Some(applied(Status::Queued)), actor)?,
            Ended::Snoozed(span) => self.snooze(journal, key, &lease, applied(Status::Scheduled), *span, actor)?,
            Ended::Cancelled { note } => {
                self.withdraw(journal, key, &lease, applied(Status::Cancelled), note.clone(), actor)?;
                Status::Cancelled
            }
        };
        Ok(Ok(Finished { status, repeated: false, follow_ups }))
    }

    /// The same result again is taken again; any other without its lease is refused.
    fn repeated(&mut self, journal: &mut dyn Journal, result: &Arrived) -> JournalResult<Result<Finished, LeaseError>> {
        let Some(key) = self.ids.task_key(result.task) else { return Ok(Err(LeaseError::UnknownTask)) };
        let applied = match self.index.task(key) {
            Some(task) if task.overlaid => journal.overlay(key)?.and_then(|overlay| overlay.applied),
            Some(_) => None,
            None => match journal.ended(key)? {
                Some(ended) => ended.applied,
                None => return Ok(Err(LeaseError::UnknownTask)),
            },
        };
        let same = |applied: &AppliedResult| {
            applied.claim == result.token.claim().0
                && applied.digest == result.digest
                && self.ids.is_genuine(key, result.token)
        };
        Ok(match applied.filter(same) {
            Some(applied) => Ok(Finished { status: applied.status, repeated: true, follow_ups: Vec::new() }),
            None => Err(LeaseError::Lost),
        })
    }

    fn running(&self, key: TaskKey) -> JournalResult<LiveTask> {
        self.index.task(key).ok_or_else(|| missing(key))
    }

    fn complete(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        lease: &Lease,
        applied: AppliedResult,
        result: Option<Json>,
        actor: Actor,
    ) -> JournalResult<()> {
        let task = self.running(key)?;
        let past = Past { applied: Some(applied), ..Self::past(journal, key, &task, Some(lease))? };
        let effect = effect_of(Trigger::Complete)?;
        let ended = moved(task, &effect, self.now, Duration::ZERO);
        self.tell_success(journal, lease)?;
        self.drop_lease(journal, key, lease)?;
        let step = Move::new(key, task.status, ended, effect, past, Change::Completed, actor).under(Some(lease));
        self.end(journal, step, Ending { reason: None, result })
    }

    /// The handler itself cancels its task: nobody runs it any more, so the lease ends with it.
    fn withdraw(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        lease: &Lease,
        applied: AppliedResult,
        note: Option<String>,
        actor: Actor,
    ) -> JournalResult<()> {
        let task = self.running(key)?;
        let past = Past { applied: Some(applied), ..Self::past(journal, key, &task, Some(lease))? };
        let effect = effect_of(Trigger::Cancel)?;
        let ended = moved(task, &effect, self.now, Duration::ZERO);
        // As one that was revoked: on disk a cancelled task looks as if its worker did not know yet.
        self.drop_lease(journal, key, &Lease { revoked: true, ..*lease })?;
        let step =
            Move::new(key, task.status, ended, effect, past, Change::Cancelled { note }, actor).under(Some(lease));
        self.end(journal, step, Ending::default())
    }

    pub(crate) fn release(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        lease: &Lease,
        applied: Option<AppliedResult>,
        actor: Actor,
    ) -> JournalResult<Status> {
        let task = self.running(key)?;
        let mut past = Self::past(journal, key, &task, Some(lease))?;
        past.applied = applied.or(past.applied);
        let effect = effect_of(Trigger::Release)?;
        let next = moved(task, &effect, self.now, Duration::ZERO);
        self.drop_lease(journal, key, lease)?;
        journal.put_progress(key, None)?;
        let step = Move::new(key, task.status, next, effect, past, Change::Released, actor).under(Some(lease));
        self.carry_on(journal, step).map(|task| task.status)
    }

    fn snooze(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        lease: &Lease,
        applied: AppliedResult,
        span: Duration,
        actor: Actor,
    ) -> JournalResult<Status> {
        let task = self.running(key)?;
        let past = Past { applied: Some(applied), ..Self::past(journal, key, &task, Some(lease))? };
        let effect = effect_of(Trigger::Snooze)?;
        let next = moved(task, &effect, self.now, span);
        self.drop_lease(journal, key, lease)?;
        journal.put_progress(key, None)?;
        let change = Change::Snoozed { run_at: next.run_at };
        let step = Move::new(key, task.status, next, effect, past, change, actor).under(Some(lease));
        self.carry_on(journal, step).map(|task| task.status)
    }

    /// An attempt is over without success: another one follows, or the task is given up.
    fn fail(
        &mut self,
        journal: &mut dyn Journal,
        key: TaskKey,
        lease: &Lease,
        fault: &Fault<'_>,
        digest: Option<u64>,
        actor: Actor,
    ) -> JournalResult<Status> {
        let mut task = self.running(key)?;
        let Some(row) = journal.task(key)? else { return Err(missing(key)) };
        let policy = &row.spec.policy;
        let (class, decided_by, error) = self.describe(fault, policy, lease);
        let verdict = self.verdict(fault, policy, key, &task, class, &error);
        let mut past = Self::past(journal, key, &task, Some(lease))?;
        let attempt = FailedAttempt {
            attempt: task.attempt,
            worker: Some(lease.worker),
            started_at: lease.claimed_at,
            ended_at: self.now,
            class,
            error,
        };
        journal.insert_attempt(key, &attempt)?;
        journal.put_progress(key, None)?;
        let FailedAttempt { error: ErrorReport { code, message, .. }, .. } = attempt;
        let failure = Some(Arc::new(FailureNote { class, decided_by, code: code.clone(), message }));
        let lapsed = matches!(fault, Fault::Lapsed);
        if class.grows_timeout() {
            task.timeouts = task.timeouts.saturating_add(1);
        }
        self.tell_failure(journal, lease, class)?;
        self.drop_lease(journal, key, lease)?;
        let from = Status::Executing;
        match verdict {
            Verdict::Retry(delay) => {
                let trigger = if lapsed { Trigger::LapseRetry } else { Trigger::FailRetry };
                let effect = effect_of(trigger)?;
                let mut next = moved(task, &effect, self.now, delay);
                next.retrying = true;
                past.applied = digest
                    .map(|digest| AppliedResult { claim: lease.claim.0, digest, status: next.status })
                    .or(past.applied);
                let change = if lapsed {
                    Change::Lapsed { crashes: u32::from(next.crashes), run_at: next.run_at }
                } else {
                    Change::Retrying { class, code, run_at: next.run_at }
                };
                let step = Move { key, from, task: next, effect, past, change, actor, lease: Some(lease), failure };
                self.carry_on(journal, step).map(|task| task.status)
            }
            Verdict::GiveUp(reason) => {
                let trigger = match (lapsed, policy.dead_letter) {
                    (false, true) => Trigger::FailDead,
                    (false, false) => Trigger::FailQuietly,
                    (true, true) => Trigger::LapseDead,
                    (true, false) => Trigger::LapseQuietly,
                };
                let effect = effect_of(trigger)?;
                let ended = moved(task, &effect, self.now, Duration::ZERO);
                past.applied = digest
                    .map(|digest| AppliedResult { claim: lease.claim.0, digest, status: ended.status })
                    .or(past.applied);
                let change = given_up(ended, reason, Some(class), code, None);
                let step = Move { key, from, task: ended, effect, past, change, actor, lease: Some(lease), failure };
                self.end(journal, step, Ending { reason: Some(reason), result: None })?;
                Ok(ended.status)
            }
        }
    }

    /// The class of a failure, what put it there, and the error as it is kept.
    fn describe(&self, fault: &Fault<'_>, policy: &TaskPolicy, lease: &Lease) -> (ErrorClass, DecidedBy, ErrorReport) {
        match fault {
            Fault::Reported(error) => {
                let task_type = &self.index.lanes.key(lease.lane).task_type;
                let (class, decided_by) = classify(&policy.retry, &self.settings.error_rules, task_type, error);
                (class, decided_by, (*error).clone())
            }
            Fault::TimedOut => {
                let allowed = lease.deadline.since(lease.claimed_at).as_secs_f64();
                let message = format!("the attempt took longer than its {allowed} s");
                (ErrorClass::Timeout, DecidedBy::BuiltIn, ErrorReport::internal("timeout", message))
            }
            Fault::Lapsed => {
                let message = "the worker was lost: its lease lapsed without a result".to_owned();
                (ErrorClass::WorkerLost, DecidedBy::BuiltIn, ErrorReport::internal("lease_expired", message))
            }
        }
    }

    fn verdict(
        &self,
        fault: &Fault<'_>,
        policy: &TaskPolicy,
        key: TaskKey,
        task: &LiveTask,
        class: ErrorClass,
        error: &ErrorReport,
    ) -> Verdict {
        let age = self.now.since(task.created_at);
        // Another seed for every attempt of every task, the same whoever computes it.
        let seed = windlass_core::json::digest(&[key.0.to_le_bytes(), u64::from(task.version).to_le_bytes()].concat());
        match fault {
            Fault::Lapsed => after_crash(policy, u32::from(task.crashes) + 1, age, seed),
            Fault::Reported(_) | Fault::TimedOut => {
                let unknown_max_retries = self.settings.error_rules.source().unknown_max_retries;
                let retries = task.retries.into();
                after_failure(policy, class, error.retry_after_seconds, retries, age, unknown_max_retries, seed)
            }
        }
    }

    /// The lease lapsed without a result.
    pub(crate) fn lapse_one(&mut self, journal: &mut dyn Journal, key: TaskKey, lease: &Lease) -> JournalResult<()> {
        if lease.revoked {
            return self.drop_lease(journal, key, lease);
        }
        self.fail(journal, key, lease, &Fault::Lapsed, None, Actor::System)?;
        Ok(())
    }

    /// The attempt's time is over.
    pub(crate) fn time_out_one(&mut self, journal: &mut dyn Journal, key: TaskKey, lease: &Lease) -> JournalResult<()> {
        self.fail(journal, key, lease, &Fault::TimedOut, None, Actor::System)?;
        Ok(())
    }

    /// See [`windlass_core::store::Store::record_progress`].
    pub fn record_progress(
        &mut self,
        journal: &mut dyn Journal,
        worker: WorkerId,
        reports: &[ProgressReport],
    ) -> JournalResult<Vec<Result<(), LeaseError>>> {
        self.seen(worker);
        let mut answers = Vec::with_capacity(reports.len());
        for report in reports {
            answers.push(match self.fenced(worker, report.task, report.token) {
                Ok((_, lease)) if lease.revoked => Err(LeaseError::Lost),
                Ok((key, _)) => {
                    let progress = Progress { at: self.now, ..report.progress.clone() };
                    journal.put_progress(key, Some(&progress))?;
                    Ok(())
                }
                Err(refused) => Err(refused),
            });
        }
        Ok(answers)
    }

    /// See [`windlass_core::store::Store::record_steps`].
    pub fn record_steps(
        &mut self,
        journal: &mut dyn Journal,
        worker: WorkerId,
        reports: &[StepReport],
    ) -> JournalResult<Vec<Result<(), LeaseError>>> {
        self.seen(worker);
        let mut answers = Vec::with_capacity(reports.len());
        for report in reports {
            answers.push(match self.fenced(worker, report.task, report.token) {
                Ok((_, lease)) if lease.revoked => Err(LeaseError::Lost),
                Ok((key, _)) => {
                    let steps = journal.steps(key)?;
                    if steps.len() >= limits::STEPS && !steps.contains_key(&report.name) {
                        Err(LeaseError::TooManySteps)
                    } else {
                        journal.insert_step(key, &report.name, &report.result)?;
                        Ok(())
                    }
                }
                Err(refused) => Err(refused),
            });
        }
        Ok(answers)
    }
}

/// The event of a task that ends without success.
pub(crate) fn given_up(
    ended: LiveTask,
    reason: EndReason,
    class: Option<ErrorClass>,
    code: Option<String>,
    note: Option<String>,
) -> Change {
    let crashes = u32::from(ended.crashes);
    if ended.status == Status::DeadLetter {
        Change::DeadLettered { reason, class, code, crashes, note }
    } else {
        Change::Failed { reason, class, code, crashes }
    }
}
