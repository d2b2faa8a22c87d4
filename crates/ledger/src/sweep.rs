//! Maintenance: each verb does a bounded slice and says when it is needed next.

use std::time::Duration;

use windlass_core::actor::Actor;
use windlass_core::event::Change;
use windlass_core::failure::EndReason;
use windlass_core::ids::TaskKey;
use windlass_core::store::Sweep;
use windlass_core::time::Timestamp;
use windlass_core::transition::{Trigger, transition};

use crate::claim::missing;
use crate::finish::given_up;
use crate::index::Lease;
use crate::journal::{Journal, JournalResult, KeyRow, Needs};
use crate::ledger::{Ending, Ledger, Move, moved};

/// An idempotency key whose task still lives is looked at again after this.
const KEY_RECHECK: Duration = Duration::from_secs(3600);
/// Old events are looked through this often, and none younger than this.
const EVENT_PRUNE_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// What falls due by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Scheduled tasks.
    Due,
    /// Leases.
    Lapsing,
    /// Attempts.
    Deadlines,
    /// Tasks that have not started.
    Expiring,
}

/// The first items of a timer that are due, and when the first that is not will be.
fn due_now(
    timer: impl Iterator<Item = (Timestamp, TaskKey)>,
    now: Timestamp,
    limit: usize,
) -> (Vec<TaskKey>, Option<Timestamp>) {
    let mut due = Vec::new();
    for (at, key) in timer {
        if at > now || due.len() == limit {
            return (due, Some(at));
        }
        due.push(key);
    }
    (due, None)
}

impl Ledger {
    /// Adds the rows that the first due items of a timer ask for.
    pub(crate) fn needs_of_sweep(&self, timer: Timer, as_of: Timestamp, limit: usize, needs: &mut Needs) {
        let (due, _) = match timer {
            Timer::Due => due_now(self.index.due(), as_of, limit),
            Timer::Lapsing => due_now(self.index.lapsing(), as_of, limit),
            Timer::Deadlines => due_now(self.index.deadlines(), as_of, limit),
            Timer::Expiring => due_now(self.index.expiring(), as_of, limit),
        };
        let ends_an_attempt = matches!(timer, Timer::Lapsing | Timer::Deadlines);
        let asks =
            |key: &TaskKey| self.index.task(*key).is_some_and(|task| ends_an_attempt || task.overlaid || task.unique);
        needs.tasks.extend(due.into_iter().filter(asks));
    }

    fn swept(&self, changed: usize, next_at: Option<Timestamp>) -> Sweep {
        Sweep { changed, more: next_at.is_some_and(|at| at <= self.now), next_at }
    }

    /// See [`windlass_core::store::Store::make_due`].
    pub fn make_due(&mut self, journal: &mut dyn Journal, limit: usize) -> JournalResult<Sweep> {
        let (due, next_due) = due_now(self.index.due(), self.now, limit);
        // What opens by itself was opened when this transaction began; a waiting claim must not miss the next.
        let next_at = next_due.into_iter().chain(self.wake_at()).min();
        for key in &due {
            let Some(task) = self.index.task(*key) else { continue };
            let Ok(effect) = transition(task.status, Trigger::Due) else { continue };
            let past = Self::past(journal, *key, &task, None)?;
            let next = moved(task, &effect, self.now, Duration::ZERO);
            self.carry_on(journal, Move::new(*key, task.status, next, effect, past, Change::Due, Actor::System))?;
        }
        Ok(self.swept(due.len(), next_at))
    }

    /// See [`windlass_core::store::Store::lapse_leases`].
    pub fn lapse_leases(&mut self, journal: &mut dyn Journal, limit: usize, as_of: Timestamp) -> JournalResult<Sweep> {
        let (lapsed, next_at) = due_now(self.index.lapsing(), as_of, limit);
        for key in &lapsed {
            if let Some(lease) = self.index.lease(*key) {
                self.lapse_one(journal, *key, &lease)?;
            }
        }
        Ok(Sweep { changed: lapsed.len(), more: next_at.is_some_and(|at| at <= as_of), next_at })
    }

    /// See [`windlass_core::store::Store::time_out`].
    pub fn time_out(&mut self, journal: &mut dyn Journal, limit: usize, as_of: Timestamp) -> JournalResult<Sweep> {
        let (over, next_at) = due_now(self.index.deadlines(), as_of, limit);
        for key in &over {
            if let Some(lease) = self.index.lease(*key) {
                self.time_out_one(journal, *key, &lease)?;
            }
        }
        Ok(Sweep { changed: over.len(), more: next_at.is_some_and(|at| at <= as_of), next_at })
    }

    /// See [`windlass_core::store::Store::expire`].
    pub fn expire(&mut self, journal: &mut dyn Journal, limit: usize) -> JournalResult<Sweep> {
        let (expired, next_at) = due_now(self.index.expiring(), self.now, limit);
        for key in &expired {
            self.expire_one(journal, *key)?;
        }
        Ok(self.swept(expired.len(), next_at))
    }

    pub(crate) fn expire_one(&mut self, journal: &mut dyn Journal, key: TaskKey) -> JournalResult<()> {
        let task = self.index.task(key).ok_or_else(|| missing(key))?;
        let Ok(effect) = transition(task.status, Trigger::Expire) else { return Ok(()) };
        let past = Self::past(journal, key, &task, None)?;
        let ended = moved(task, &effect, self.now, Duration::ZERO);
        let reason = EndReason::Expired;
        let change = given_up(ended, reason, None, None, None);
        let step = Move::new(key, task.status, ended, effect, past, change, Actor::System);
        self.end(journal, step, Ending { reason: Some(reason), result: None })
    }

    /// See [`windlass_core::store::Store::prune`].
    pub fn prune(&mut self, journal: &mut dyn Journal, limit: usize) -> JournalResult<Sweep> {
        let expired = journal.expired_tasks(self.now, limit)?;
        for (key, status) in &expired {
            journal.delete_task(*key)?;
            self.count_ended(*status, -1);
        }
        let keys = journal.expired_keys(self.now, limit)?;
        for (scope, row) in &keys {
            if self.index.task(row.task).is_some() {
                journal.put_idempotency(scope, &KeyRow { forget_at: self.now + KEY_RECHECK, ..*row })?;
            } else {
                journal.delete_key(scope)?;
            }
        }
        let uniques = journal.prune_uniques(self.now, limit)?;
        let mut more = [expired.len(), keys.len(), uniques].contains(&limit);
        if !more && self.now.since(self.events_pruned_at) >= EVENT_PRUNE_INTERVAL {
            more = journal.prune_events(self.now - EVENT_PRUNE_INTERVAL, limit)?;
            if !more {
                self.events_pruned_at = self.now;
            }
        }
        Ok(Sweep { changed: expired.len() + keys.len() + uniques, more, next_at: None })
    }

    /// See [`windlass_core::store::Store::forgive`].
    pub fn forgive(&mut self, span: Duration) {
        let until = self.now + span;
        // Leases and attempts that would be over by then get until then, not one moment each.
        let (held, _) = due_now(self.index.lapsing(), until, usize::MAX);
        for key in held {
            if let Some(lease) = self.index.lease(key) {
                let deadline = lease.deadline.max(until);
                self.index.set_lease(key, Some(Lease { expires_at: until, deadline, ..lease }));
            }
        }
        let (over, _) = due_now(self.index.deadlines(), until, usize::MAX);
        for key in over {
            if let Some(lease) = self.index.lease(key) {
                self.index.set_lease(key, Some(Lease { deadline: until, ..lease }));
            }
        }
    }
}
