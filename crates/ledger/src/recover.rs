//! Memory from the journal: what happens at every start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::ids::{ClaimNo, IdCodec, TaskKey};
use windlass_core::names::QueueName;
use windlass_core::status::Status;
use windlass_core::time::Clock;

use crate::flows::Place;
use crate::index::{Index, Lease, LiveTask};
use crate::journal::{LiveRow, Recovered, Sequence};
use crate::ledger::Ledger;
use crate::numbers::{AllNumbers, Numbers};
use crate::workers::WorkerEntry;

/// Builds a ledger row by row.
pub struct Recovery {
    clock: Arc<dyn Clock>,
    found: Recovered,
    index: Index,
}

impl Recovery {
    /// Begins with everything but the live tasks.
    pub fn new(clock: Arc<dyn Clock>, mut found: Recovered) -> Self {
        let mut index = Index::default();
        index.lanes.set_now(clock.now());
        // A rate that was in force before the start begins with nothing saved up.
        index.lanes.apply(&found.settings, false);
        index.restore_counts(std::mem::take(&mut found.ended), std::mem::take(&mut found.dead_letters));
        Self { clock, found, index }
    }

    /// Whether a queue is fair between tenants.
    pub fn is_fair(&self, queue: &QueueName) -> bool {
        self.found.settings.is_fair(queue)
    }

    /// Puts one live task in its place.
    pub fn add(&mut self, row: &LiveRow) {
        let lane = self.index.lanes.open(&row.lane, &self.found.settings);
        let counted = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let mut task = match &row.overlay {
            Some(overlay) => LiveTask {
                lane,
                status: overlay.status,
                retrying: overlay.retrying,
                held: false,
                keyed: row.flow_key.is_some(),
                unique: row.unique,
                overlaid: true,
                timeouts: overlay.timeouts,
                retries: counted(overlay.retries),
                crashes: counted(overlay.crashes),
                attempt: overlay.attempt,
                version: overlay.version,
                created_at: row.created_at,
                ready_at: overlay.ready_at,
                run_at: overlay.run_at,
            },
            None => LiveTask {
                lane,
                status: if row.run_at > row.created_at { Status::Scheduled } else { Status::Queued },
                retrying: false,
                held: false,
                keyed: row.flow_key.is_some(),
                unique: row.unique,
                overlaid: false,
                timeouts: 0,
                retries: 0,
                crashes: 0,
                attempt: 0,
                version: 1,
                created_at: row.created_at,
                ready_at: row.run_at,
                run_at: row.run_at,
            },
        };
        if let Some(flow_key) = &row.flow_key {
            let joined_at_submit = task.status == Status::Queued && row.overlay.is_none();
            let place = match &row.overlay {
                Some(overlay) => overlay.place,
                None => joined_at_submit.then_some(Place { since: row.created_at, aside: false }),
            };
            let keyed = self.index.flows.keyed(&row.lane.queue, flow_key, place);
            self.index.set_keyed(row.key, Some(keyed));
            task.held = task.status == Status::Queued && self.index.flows.is_line(keyed.flow);
        }
        if let Some(expires_at) = row.expires_at {
            self.index.set_expiry(row.key, Some(expires_at));
        }
        self.index.set_task(row.key, Some(task));
        self.index.keep();
    }

    /// Gives running tasks their leases back, each for a full period: nobody could renew
    /// them while we were away.
    pub fn finish(mut self, lease_period: Duration) -> Ledger {
        let now = self.clock.now();
        let fresh = now + lease_period;
        for claim in std::mem::take(&mut self.found.claims) {
            let mut held = 0;
            for (offset, entry) in claim.entries.iter().enumerate() {
                let key = TaskKey(entry.key);
                let timeout = self.found.timeouts.get(&entry.key).copied().unwrap_or_default();
                let lease = |created_at, lane, slots, keyed, revoked| Lease {
                    worker: claim.worker,
                    claim: ClaimNo(claim.first + offset as u64),
                    claim_row: claim.first,
                    event_no: claim.event_no,
                    lane,
                    slots,
                    keyed,
                    created_at,
                    claimed_at: claim.at,
                    expires_at: fresh,
                    deadline: (claim.at + timeout).max(fresh),
                    revoked,
                    told: false,
                };
                // A version past the entry's means that the task went on since.
                if let Some(task) = self.index.task(key).filter(|task| task.version < entry.version) {
                    let running = LiveTask {
                        status: Status::Executing,
                        retrying: false,
                        held: false,
                        version: entry.version,
                        attempt: entry.attempt,
                        ..task
                    };
                    self.index.set_task(key, Some(running));
                    let slots = self.found.settings.slots(&self.index.lanes.key(task.lane).task_type);
                    self.index.set_lease(key, Some(lease(task.created_at, task.lane, slots, task.keyed, false)));
                    held += 1;
                } else if let Some(row) = self.found.cancelled.get(&entry.key)
                    && row.version == entry.version + 1
                {
                    let lane = self.index.lanes.open(&row.lane, &self.found.settings);
                    let slots = self.found.settings.slots(&row.lane.task_type);
                    if let Some(flow_key) = &row.flow_key {
                        let keyed = self.index.flows.keyed(&row.lane.queue, flow_key, None);
                        self.index.set_keyed(key, Some(keyed));
                    }
                    let keyed = row.flow_key.is_some();
                    self.index.set_lease(key, Some(lease(row.created_at, lane, slots, keyed, true)));
                    held += 1;
                }
            }
            if held > 0 {
                self.index.open_claim(claim.first, held);
            }
        }
        self.index.keep();
        let numbers = AllNumbers {
            task: Numbers::new(Sequence::Task, self.found.next_task),
            claim: Numbers::new(Sequence::Claim, self.found.next_claim),
            event: Numbers::new(Sequence::Event, self.found.next_event),
        };
        let workers: HashMap<_, _> = std::mem::take(&mut self.found.workers)
            .into_iter()
            .map(|row| (row.profile.id, WorkerEntry::new(row, now)))
            .collect();
        let settings = Arc::new(std::mem::take(&mut self.found.settings));
        let ids = IdCodec::new(self.found.secret);
        let breakers = std::mem::take(&mut self.found.breakers);
        let mut ledger = Ledger::assemble(self.clock, ids, self.index, settings, numbers, workers);
        ledger.restore_breakers(breakers);
        ledger.settle_keys();
        ledger.index.keep();
        ledger
    }
}
