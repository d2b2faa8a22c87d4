//! What nodes tell each other of lanes besides tasks and leases: breakers, what is saved up under rates, and whose turn
//! it is. Only what the transaction touched is told, and always how it stands now.

use windlass_core::breaker::TypeBreaker;
use windlass_core::ids::WorkerId;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::rate::Bucket;
use windlass_core::settings::Settings;
use windlass_core::time::Timestamp;

use super::{GateIx, Lanes, TurnOf};

/// What is saved up under rates.
#[derive(Default)]
pub(crate) struct Levels {
    pub(crate) queues: Vec<(QueueName, Bucket)>,
    pub(crate) types: Vec<(TaskType, Bucket)>,
}

impl Lanes {
    /// Breakers that this transaction touched, with who last succeeded.
    pub(crate) fn changed_types(
        &self,
    ) -> impl Iterator<Item = (&TaskType, &TypeBreaker, [Option<(WorkerId, Timestamp)>; 2])> {
        self.breakers_before.keys().filter_map(|ix| {
            let state = self.types.get(ix.0)?;
            Some((&state.name, &state.breaker, state.successes()))
        })
    }

    /// What is saved up under the rates that this transaction took of, by queue and by type.
    pub(crate) fn changed_levels(&self) -> Levels {
        let Levels { mut queues, mut types } = Levels::default();
        for gate_ix in self.buckets_before.keys() {
            match gate_ix {
                GateIx::Queue(ix) => {
                    let queue = self.queues.get(ix.0);
                    queues.extend(queue.and_then(|queue| Some((queue.name.clone(), queue.gate.bucket()?))));
                }
                GateIx::Type(ix) => {
                    let state = self.types.get(ix.0);
                    types.extend(state.and_then(|state| Some((state.name.clone(), state.gate.bucket()?))));
                }
            }
        }
        Levels { queues, types }
    }

    /// Whose turn it is now, where this transaction moved it.
    pub(crate) fn changed_turns(&self) -> impl Iterator<Item = TurnOf> {
        self.turns_before.keys().filter_map(|(queue_ix, group_ix)| self.queues.get(queue_ix.0)?.turn_of(*group_ix))
    }

    /// Sets whose turn another node left it to be.
    pub(crate) fn set_turns(&mut self, turns: &[TurnOf]) {
        for told in turns {
            if let Some(ix) = self.queue_names.get(&told.queue).copied() {
                self.queue_mut(ix).set_turn(told);
            }
        }
    }

    /// Sets what another node left under its rates.
    pub(crate) fn set_levels(
        &mut self,
        queues: Vec<(QueueName, f64, i64)>,
        types: Vec<(TaskType, f64, i64)>,
        settings: &Settings,
    ) {
        for (name, tokens, as_of) in queues {
            let ix = self.open_queue(&name, settings, false);
            let rate = settings.queues.get(&name).and_then(|of_queue| of_queue.rate_limit);
            self.queue_mut(ix).gate.set_level(tokens, Timestamp::from_micros(as_of), rate);
            self.look_at_queue(ix);
        }
        for (name, tokens, as_of) in types {
            let ix = self.open_type(&name, settings, false);
            let rate = settings.types.get(&name).and_then(|of_type| of_type.rate_limit);
            self.type_mut(ix).gate.set_level(tokens, Timestamp::from_micros(as_of), rate);
            self.look_at_type(ix);
        }
    }

    /// Sets who last succeeded with tasks of a type.
    pub(crate) fn set_successes(&mut self, name: &TaskType, successes: [Option<(WorkerId, Timestamp)>; 2]) {
        if let Some(ix) = self.type_names.get(name).copied() {
            self.type_mut(ix).set_successes(successes);
        }
    }
}
