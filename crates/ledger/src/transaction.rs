//! A transaction of the ledger: how it begins, what it has changed so far, and its two ends, [`Ledger::keep`] and
//! [`Ledger::undo`]. What another node did is not up to this one and ends in [`Ledger::settle_followed`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use windlass_core::actor::Actor;
use windlass_core::event::{Change, Committed};
use windlass_core::ids::{TaskKey, WorkerId};
use windlass_core::names::{QueueName, Text};
use windlass_core::rate::Bucket;
use windlass_core::settings::Settings;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::journal::{Journal, JournalResult, Sequence};
use crate::ledger::Ledger;
use crate::numbers::{AllNumbers, Numbers};
use crate::workers::WorkerEntry;

/// What [`Ledger::undo`] puts back beside the index.
pub(crate) struct Before {
    pub(crate) numbers: AllNumbers,
    pub(crate) settings: Arc<Settings>,
    pub(crate) workers: Vec<(WorkerId, Option<WorkerEntry>)>,
    pub(crate) tenants: HashMap<(QueueName, Text), Option<Bucket>>,
}

impl Ledger {
    /// Nothing happens before this.
    pub fn not_before(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
    }

    /// Begins a transaction.
    pub fn start(&mut self) {
        self.now = self.clock.now().max(self.now);
        self.index.lanes.set_now(self.now);
        self.wake_workers();
        self.before.numbers = self.numbers;
        self.before.settings = Arc::clone(&self.settings);
    }

    /// Writes what is written once per transaction: its events and counters.
    pub fn seal(&mut self, journal: &mut dyn Journal) -> JournalResult<()> {
        if let Some(no) = self.event_no.take() {
            journal.insert_events(no, self.now, &self.changes)?;
        }
        for status in Status::ALL {
            let delta = std::mem::take(&mut self.ended_delta[usize::from(status.code())]);
            if delta != 0 {
                journal.count_ended(status, delta)?;
            }
        }
        Ok(())
    }

    /// The transaction is durable. Returns what changed, in order.
    pub fn keep(&mut self) -> Vec<Committed> {
        self.index.keep();
        self.before.workers.clear();
        self.before.tenants.clear();
        self.to_tell.clear();
        self.was_beaten = false;
        let changes = std::mem::take(&mut self.changes);
        self.count_for_workers(&changes);
        if !self.watchers.is_empty() {
            for change in changes.iter().filter(|change| change.to.is_ended()) {
                if let Some(key) = self.ids.task_key(change.event.task_id) {
                    self.tell_watchers(key);
                }
            }
        }
        changes
    }

    /// The transaction came to nothing.
    pub fn undo(&mut self) {
        self.index.undo();
        self.changes.clear();
        self.was_beaten = false;
        self.event_no = None;
        for (place, bucket) in std::mem::take(&mut self.before.tenants) {
            match bucket {
                Some(bucket) => self.tenant_buckets.insert(place, bucket),
                None => self.tenant_buckets.remove(&place),
            };
        }
        self.ended_delta = [0; 8];
        self.numbers = self.before.numbers;
        // Whoever undoes says that lanes have changed; to go on at once would fail at once.
        self.unfinished = false;
        if !Arc::ptr_eq(&self.settings, &self.before.settings) {
            self.settings = Arc::clone(&self.before.settings);
            // A rate that was to be taken away is not new: it begins with nothing saved up.
            self.index.lanes.apply(&self.settings, false);
        }
        while let Some((id, old)) = self.before.workers.pop() {
            match old {
                Some(entry) => self.workers.insert(id, entry),
                None => self.workers.remove(&id),
            };
            self.await_recovery(id);
        }
    }

    pub(crate) fn remember_worker(&mut self, id: WorkerId) {
        self.before.workers.push((id, self.workers.get(&id).cloned()));
    }

    /// Remembers what a tenant had before it is charged.
    pub(crate) fn remember_tenant(&mut self, place: &(QueueName, Text)) {
        if !self.before.tenants.contains_key(place) {
            self.before.tenants.insert(place.clone(), self.tenant_buckets.get(place).copied());
        }
    }

    /// The number of this transaction's event row.
    pub(crate) fn event_no(&mut self, journal: &mut dyn Journal) -> JournalResult<u64> {
        if let Some(no) = self.event_no {
            Ok(no)
        } else {
            let no = self.numbers.event.take(1, journal)?;
            self.event_no = Some(no);
            Ok(no)
        }
    }

    /// What changed in the open transaction.
    pub(crate) fn changes(&self) -> &[Committed] {
        &self.changes
    }

    /// The settings, if the open transaction changed them.
    pub(crate) fn changed_settings(&self) -> Option<&Settings> {
        (!Arc::ptr_eq(&self.settings, &self.before.settings)).then_some(&self.settings)
    }

    /// Workers whose row or breaker the open transaction changed.
    pub(crate) fn changed_workers(&self) -> BTreeSet<WorkerId> {
        self.before.workers.iter().map(|(id, _)| *id).collect()
    }

    /// Tenants that the open transaction charged.
    pub(crate) fn changed_tenants(&self) -> impl Iterator<Item = (&(QueueName, Text), &Bucket)> {
        self.before.tenants.keys().filter_map(|place| Some((place, self.tenant_buckets.get(place)?)))
    }

    /// Others know who was heard of.
    pub fn told_others(&mut self) {
        for id in std::mem::take(&mut self.seen_workers) {
            if let Some(entry) = self.workers.get_mut(&id) {
                entry.told_at = entry.last_seen_at;
            }
        }
    }

    /// What another node left to tenants.
    pub(crate) fn follow_tenants(&mut self, levels: Vec<(QueueName, Text, f64, i64)>) {
        for (queue, tenant, tokens, as_of) in levels {
            let limit = self.settings.queues.get(&queue).and_then(|queue| queue.tenant_rate_limit);
            if let Some(limit) = limit {
                let bucket = Bucket::at_level(limit, tokens, Timestamp::from_micros(as_of));
                self.tenant_buckets.insert((queue, tenant), bucket);
            }
        }
    }

    /// The first free numbers of tasks, claims and event rows.
    pub(crate) fn next_numbers(&self) -> [u64; 3] {
        [self.numbers.task.next, self.numbers.claim.next, self.numbers.event.next]
    }

    /// Numbers below these are taken.
    pub(crate) fn set_next_numbers(&mut self, [task, claim, event]: [u64; 3]) {
        self.numbers = AllNumbers {
            task: Numbers::new(Sequence::Task, task),
            claim: Numbers::new(Sequence::Claim, claim),
            event: Numbers::new(Sequence::Event, event),
        };
    }

    /// What was followed stays; somebody may have waited for it.
    pub(crate) fn settle_followed(&mut self) {
        self.index.keep();
        self.before.settings = Arc::clone(&self.settings);
        self.lanes_changed = true;
    }

    /// Takes over who waits at a ledger that this one replaces.
    pub(crate) fn take_over(&mut self, old: Ledger) {
        self.waiters = old.waiters;
        self.watchers = old.watchers;
        self.seen_workers = old.seen_workers;
        self.unheard = old.unheard;
        self.lanes_changed = true;
        // Whoever watches a task that has ended meanwhile looks again.
        let gone: Vec<TaskKey> = self.watchers.keys().filter(|key| self.index.task(**key).is_none()).copied().collect();
        for key in gone {
            self.tell_watchers(key);
        }
    }

    /// The task has ended: whoever waits for that is told.
    pub(crate) fn tell_watchers(&mut self, key: TaskKey) {
        for watcher in self.watchers.remove(&key).into_iter().flatten() {
            // Whoever is gone does not need to know.
            let _ = watcher.send(());
        }
    }

    fn count_for_workers(&mut self, changes: &[Committed]) {
        for change in changes {
            let Actor::Worker(worker) = change.event.actor else { continue };
            let Some(entry) = self.workers.get_mut(&worker) else { continue };
            match change.event.change {
                Change::Completed => entry.completed += 1,
                Change::Retrying { .. } | Change::Failed { .. } | Change::DeadLettered { .. } => entry.failed += 1,
                Change::Submitted { .. }
                | Change::Due
                | Change::Claimed { .. }
                | Change::Released
                | Change::Snoozed { .. }
                | Change::Lapsed { .. }
                | Change::Cancelled { .. }
                | Change::Replayed { .. }
                | Change::Replaced { .. }
                | Change::Discarded { .. }
                | Change::Amended { .. } => {}
            }
        }
    }
}
