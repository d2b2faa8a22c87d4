//! Why a ready task is not running, as far as the writer knows.

use windlass_core::ids::{TaskId, TaskKey};
use windlass_core::status::Status;
use windlass_core::store::Waiting;

use crate::ledger::Ledger;

impl Ledger {
    /// See [`windlass_core::store::Store::waiting_for`].
    pub fn waiting_for(&mut self, id: TaskId) -> Option<Waiting> {
        let key = self.ids.task_key(id)?;
        let task = self.index.task(key).filter(|task| task.status == Status::Queued)?;
        if let Some(reason) = self.waits_for_its_key(key, task.held) {
            return Some(reason);
        }
        if let Some(hindrance) = self.index.lanes.hindrance(task.lane) {
            return Some(Waiting::Lane(hindrance));
        }
        Some(Waiting::Line { ahead: self.index.lanes.ahead(task.lane, task.ready_at, key) })
    }

    fn waits_for_its_key(&self, key: TaskKey, held: bool) -> Option<Waiting> {
        let keyed = self.index.keyed(key)?;
        let flows = &self.index.flows;
        if let Some(place) = keyed.place.filter(|_| held) {
            let (holder, ahead) = flows.line_before(keyed.flow, place, key)?;
            return Some(Waiting::OrderingKey { holder: self.known_id(holder)?, ahead });
        }
        if !flows.is_full(keyed.flow) {
            return None;
        }
        let (limit, running) = flows.pool_running(keyed.flow)?;
        let running = running.into_iter().filter_map(|task| self.known_id(task)).collect();
        Some(Waiting::ConcurrencyKey { limit, running })
    }

    /// The id of a task that lives, or that a worker still runs.
    fn known_id(&self, key: TaskKey) -> Option<TaskId> {
        let lease = || self.index.lease(key).map(|lease| lease.created_at);
        let created_at = self.index.task(key).map(|task| task.created_at).or_else(lease)?;
        Some(self.id_of(key, created_at))
    }
}
