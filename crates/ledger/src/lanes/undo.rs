//! How breakers, rates and turns stood before the transaction that runs, until it is durable or came to nothing. Tasks
//! and leases are put back by those who moved them.

use super::{GateIx, Lanes, QueueIx, TurnOf, TypeIx};

impl Lanes {
    pub(super) fn remember_buckets(&mut self, queue: QueueIx, task_type: TypeIx) {
        for gate_ix in [GateIx::Queue(queue), GateIx::Type(task_type)] {
            let gate = match gate_ix {
                GateIx::Queue(ix) => &self.queues[ix.0].gate,
                GateIx::Type(ix) => &self.types[ix.0].gate,
            };
            if gate.has_rate() {
                self.buckets_before.entry(gate_ix).or_insert(gate.bucket());
            }
        }
    }

    pub(super) fn remember_breaker(&mut self, ix: TypeIx) {
        let Self { breakers_before, types, .. } = self;
        breakers_before.entry(ix).or_insert_with(|| types[ix.0].breaker.clone());
    }

    /// The transaction is durable.
    pub fn keep(&mut self) {
        self.breakers_before.clear();
        self.buckets_before.clear();
        self.turns_before.clear();
        self.vanish();
    }

    /// The transaction came to nothing.
    pub fn undo(&mut self) {
        for ((queue_ix, group_ix), before) in std::mem::take(&mut self.turns_before) {
            if let Some(queue) = self.queues.get_mut(queue_ix.0)
                && let Some(now) = queue.turn_of(group_ix)
            {
                // Of several tenants that had a turn, the first saw the queue as it was.
                let served_until = before.served_until.min(now.served_until);
                queue.set_turn(&TurnOf { served_until, ..before });
            }
        }
        for (gate_ix, before) in std::mem::take(&mut self.buckets_before) {
            match gate_ix {
                GateIx::Queue(ix) => {
                    if let Some(queue) = self.queues.get_mut(ix.0) {
                        queue.gate.set_bucket(before);
                        self.look_at_queue(ix);
                    }
                }
                GateIx::Type(ix) => {
                    if let Some(state) = self.types.get_mut(ix.0) {
                        state.gate.set_bucket(before);
                        self.look_at_type(ix);
                    }
                }
            }
        }
        for (ix, before) in std::mem::take(&mut self.breakers_before) {
            if let Some(state) = self.types.get_mut(ix.0) {
                state.breaker = before;
                self.look_at_type(ix);
            }
        }
        self.vanish();
    }
}
