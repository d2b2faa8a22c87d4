//! Breakers of types, and on which workers a type lately succeeded.

use windlass_core::breaker::TypeBreaker;
use windlass_core::ids::WorkerId;
use windlass_core::names::TaskType;
use windlass_core::settings::Settings;
use windlass_core::time::Timestamp;

use super::{LaneIx, Lanes};

impl Lanes {
    /// Changes the breaker of a lane's type; says whether what is kept of it changed.
    pub fn change_breaker(&mut self, ix: LaneIx, change: impl FnOnce(&mut TypeBreaker) -> bool) -> bool {
        let task_type = self.lane(ix).task_type;
        self.remember_breaker(task_type);
        let changed = change(&mut self.type_mut(task_type).breaker);
        if changed {
            self.look_at_type(task_type);
        }
        changed
    }

    /// The same by name, for one that a person forces.
    pub fn change_breaker_of(
        &mut self,
        name: &TaskType,
        settings: &Settings,
        change: impl FnOnce(&mut TypeBreaker),
    ) -> &TypeBreaker {
        let ix = self.open_type(name, settings, true);
        self.remember_breaker(ix);
        change(&mut self.type_mut(ix).breaker);
        self.look_at_type(ix);
        &self.type_state(ix).breaker
    }

    /// The breaker of a lane's type.
    pub fn breaker(&self, ix: LaneIx) -> &TypeBreaker {
        &self.type_state(self.lane(ix).task_type).breaker
    }

    /// All breakers with their types.
    pub fn breakers(&self) -> impl Iterator<Item = (&TaskType, &TypeBreaker)> {
        self.types.values().map(|state| (&state.name, &state.breaker))
    }

    /// A task of the lane's type completed on a worker.
    pub fn succeeded_on(&mut self, ix: LaneIx, worker: WorkerId) {
        let (now, task_type) = (self.now, self.lane(ix).task_type);
        self.remember_breaker(task_type);
        self.type_mut(task_type).succeeded_on(worker, now);
    }

    /// Whether tasks of a type lately succeeded on another worker than this.
    pub fn succeeds_elsewhere(&self, name: &TaskType, worker: WorkerId, since: Timestamp) -> bool {
        self.type_names.get(name).is_some_and(|ix| self.type_state(*ix).succeeds_elsewhere(worker, since))
    }
}
