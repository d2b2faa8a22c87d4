//! When gates open and close: as time passes, as settings change, and as tasks start and end. Lanes of a type that is
//! closed show no heads, so that picking need not look past them; only in fair queues it must.

use windlass_core::ids::ClaimNo;
use windlass_core::settings::Settings;
use windlass_core::store::Hindrance;
use windlass_core::time::Timestamp;

use super::queue::Queue;
use super::{GateIx, LaneIx, Lanes, QueueIx, TypeIx, gate};

impl Lanes {
    /// Sets the time; gates whose time has come open.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        while let Some((at, gate)) = self.opening.first().copied().filter(|(at, _)| *at <= now) {
            self.opening.remove(&(at, gate));
            match gate {
                GateIx::Queue(ix) => {
                    if let Some(queue) = self.queues.get_mut(ix.0) {
                        queue.gate.opens_at = None;
                        self.look_at_queue(ix);
                    }
                }
                GateIx::Type(ix) => {
                    if let Some(state) = self.types.get_mut(ix.0) {
                        state.gate.opens_at = None;
                        self.look_at_type(ix);
                    }
                }
            }
        }
    }

    /// When the next gate opens by itself.
    pub fn next_opening(&self) -> Option<Timestamp> {
        self.opening.first().map(|(at, _)| *at)
    }

    /// Whether a gate has opened since the last time this was asked.
    pub fn take_opened(&mut self) -> bool {
        std::mem::take(&mut self.opened)
    }

    /// Applies changed settings to every lane. `fresh` says that they have just been made and
    /// were not found at a start, so that a new rate begins with its whole burst.
    pub fn apply(&mut self, settings: &Settings, fresh: bool) {
        for (name, of_queue) in &settings.queues {
            if of_queue.rate_limit.is_some() {
                self.open_queue(name, settings, fresh);
            }
        }
        for (name, of_type) in &settings.types {
            if of_type.rate_limit.is_some() {
                self.open_type(name, settings, fresh);
            }
        }
        let now = self.now;
        self.slots_vary = settings.types.values().any(|of_type| of_type.slots.is_some_and(|slots| slots > 1));
        for queue in self.queues.values_mut() {
            queue.adopt(settings);
            gate::configure_queue(&mut queue.gate, settings.queues.get(&queue.name), fresh, now);
            queue.clear_heads();
        }
        for state in self.types.values_mut() {
            state.configure(settings.types.get(&state.name), fresh, now);
            // Nothing is shown at the moment, so nothing is open.
            state.gate.open = false;
        }
        for number in self.queues.numbers() {
            self.look_at_queue(QueueIx(number));
        }
        for number in self.types.numbers() {
            self.look_at_type(TypeIx(number));
        }
        // Fair queues show the heads of closed types too.
        for number in self.lanes.numbers() {
            let lane = &self.lanes[number];
            let queue = &mut self.queues[lane.queue.0];
            if queue.is_fair() {
                let head = lane.ready.first().map(|(ready_at, task)| (*ready_at, *task, LaneIx(number)));
                queue.move_head(lane.group, &lane.key, None, head);
            }
        }
        self.opened = true;
    }

    /// A lease begins: it keeps its lane and takes its place in the limits.
    pub fn hold(&mut self, ix: LaneIx) {
        let lane = self.lane_mut(ix);
        lane.members += 1;
        let (queue, task_type) = (lane.queue, lane.task_type);
        self.queue_mut(queue).gate.running += 1;
        self.type_mut(task_type).gate.running += 1;
        self.look_at_queue(queue);
        self.look_at_type(task_type);
    }

    /// A lease is over.
    pub fn unhold(&mut self, ix: LaneIx) {
        let lane = self.lane_mut(ix);
        lane.members -= 1;
        let empty = lane.members == 0;
        let (queue, task_type) = (lane.queue, lane.task_type);
        self.queue_mut(queue).gate.running -= 1;
        self.type_mut(task_type).gate.running -= 1;
        self.look_at_queue(queue);
        self.look_at_type(task_type);
        if empty {
            self.emptied.push(ix);
        }
    }

    /// A task starts: it takes its tokens, and may be the trial of a breaker.
    pub fn start(&mut self, ix: LaneIx, claim: ClaimNo) {
        let now = self.now;
        let lane = self.lane(ix);
        let (queue, task_type) = (lane.queue, lane.task_type);
        self.remember_buckets(queue, task_type);
        self.queue_mut(queue).gate.take_token(now);
        let state = self.type_mut(task_type);
        state.gate.take_token(now);
        if !state.breaker.record.is_plain() {
            self.remember_breaker(task_type);
            self.type_mut(task_type).breaker.started(claim, now);
        }
        self.look_at_queue(queue);
        self.look_at_type(task_type);
    }

    /// Opens or closes a queue's gate as things stand.
    pub(super) fn look_at_queue(&mut self, ix: QueueIx) {
        let now = self.now;
        let queue = self.queue_mut(ix);
        let hindrance = gate::queue_hindrance(&mut queue.gate, now);
        let opens_at = match hindrance {
            Some(Hindrance::QueueRate { next_token_at }) => Some(next_token_at),
            _ => None,
        };
        let was_open = std::mem::replace(&mut queue.gate.open, hindrance.is_none());
        let old = std::mem::replace(&mut queue.gate.opens_at, opens_at);
        self.wait_for(GateIx::Queue(ix), old, opens_at);
        self.opened |= hindrance.is_none() && !was_open;
    }

    /// Opens or closes a type's gate as things stand, and shows or hides its heads.
    pub(super) fn look_at_type(&mut self, ix: TypeIx) {
        let now = self.now;
        let state = self.type_mut(ix);
        let hindrance = state.hindrance(now);
        let opens_at = match hindrance {
            Some(Hindrance::TypeRate { next_token_at }) => Some(next_token_at),
            Some(Hindrance::BreakerOpen { until }) => until,
            _ => None,
        };
        let open = hindrance.is_none();
        let was_open = std::mem::replace(&mut state.gate.open, open);
        let old = std::mem::replace(&mut state.gate.opens_at, opens_at);
        self.wait_for(GateIx::Type(ix), old, opens_at);
        if open != was_open {
            self.show_heads(ix, open);
            self.opened |= open;
        }
    }

    fn wait_for(&mut self, gate: GateIx, old: Option<Timestamp>, new: Option<Timestamp>) {
        if old != new {
            if let Some(old) = old {
                self.opening.remove(&(old, gate));
            }
            if let Some(new) = new {
                self.opening.insert((new, gate));
            }
        }
    }

    fn show_heads(&mut self, ix: TypeIx, show: bool) {
        let Self { lanes, queues, types, .. } = self;
        for (queue_ix, _) in &types[ix.0].queues {
            let queue = &mut queues[queue_ix.0];
            // With many tenants hiding would cost more than looking past what is closed.
            if queue.is_fair() {
                continue;
            }
            for lane_ix in queue.lanes_of(ix) {
                let lane = &lanes[lane_ix.0];
                let head = lane.ready.first().map(|(ready_at, task)| (*ready_at, *task, lane_ix));
                let (old, new) = if show { (None, head) } else { (head, None) };
                queue.move_head(lane.group, &lane.key, old, new);
            }
        }
    }
}

impl Queue {
    /// Lanes of a type in the one group of a queue that is not fair.
    fn lanes_of(&self, task_type: TypeIx) -> Vec<LaneIx> {
        self.all_groups().filter_map(|group| group.by_type.get(&task_type)).flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::ids::TaskKey;
    use windlass_core::lane::Serves;

    use super::super::Standing;
    use super::super::pick::tests::{at, lane, pick};
    use super::*;

    #[test]
    fn a_change_of_settings_opens_and_closes_lanes() {
        let mut settings = Settings::default();
        let mut lanes = Lanes::default();
        let key = lane("q", "t", None, 5);
        let ix = lanes.open(&key, &settings);
        lanes.add(ix, TaskKey(1), Standing::Ready(at(1)));
        settings.queues.entry(key.queue.clone()).or_default().paused = true;
        lanes.apply(&settings, true);
        assert_eq!(pick(&lanes, &Serves::default(), at(2)), None);
        settings.queues.clear();
        lanes.apply(&settings, true);
        assert!(pick(&lanes, &Serves::default(), at(2)).is_some());
    }
}
