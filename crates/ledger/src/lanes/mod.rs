//! The lane index: every ready task in its lane, and the head of every lane that may be
//! claimed from. A claim looks at heads only, so a million tasks in lanes that are paused,
//! at their limit or need what a worker lacks cost it nothing.
//!
//! This file keeps lanes: they open with their first task and vanish with their last. Beside it: what a claim takes
//! (`pick`), when something may start (`gate`, `opening`, `breakers`), the heads of one queue and whose turn it is
//! (`queue`), how all of it stands (`figures`), what a transaction takes back (`undo`) and what other nodes are told
//! (`told`).

mod breakers;
mod figures;
mod gate;
mod opening;
mod pick;
mod queue;
mod told;
mod undo;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use windlass_core::breaker::TypeBreaker;
use windlass_core::ids::TaskKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::rate::Bucket;
use windlass_core::settings::Settings;
use windlass_core::time::Timestamp;

use crate::slab::Slab;
use gate::TypeState;
pub use pick::{Pick, Room, Served};
pub(crate) use queue::TurnOf;
use queue::{GroupIx, Queue};

/// A lane by its place in the index. Valid until [`Lanes::vanish`] finds it without a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneIx(u32);

impl LaneIx {
    /// No lane: to be replaced before anybody looks.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A queue by its place in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueIx(u32);

/// A task type by its place in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TypeIx(u32);

/// What a live task does in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready since.
    Ready(Timestamp),
    /// Ready since then, and waits for its key.
    Held(Timestamp),
    /// Waits for a time or another task.
    Waiting,
    /// Runs.
    Running,
}

#[derive(Debug)]
struct Lane {
    key: Arc<LaneKey>,
    queue: QueueIx,
    task_type: TypeIx,
    group: GroupIx,
    ready: BTreeSet<(Timestamp, TaskKey)>,
    held: BTreeSet<(Timestamp, TaskKey)>,
    running: u32,
    /// Live tasks and leases: what keeps the lane.
    members: u32,
}

/// Whose gate opens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum GateIx {
    Queue(QueueIx),
    Type(TypeIx),
}

/// All lanes of a store.
#[allow(clippy::struct_field_names, reason = "the one that holds them all is named after them")]
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Slab<Lane>,
    by_key: HashMap<Arc<LaneKey>, LaneIx>,
    queues: Slab<Queue>,
    queue_names: BTreeMap<QueueName, QueueIx>,
    types: Slab<TypeState>,
    type_names: HashMap<TaskType, TypeIx>,
    emptied: Vec<LaneIx>,
    /// Gates that open by themselves, by when.
    opening: BTreeSet<(Timestamp, GateIx)>,
    now: Timestamp,
    /// A gate has opened since somebody last asked.
    opened: bool,
    /// A task of some type takes more than one slot.
    slots_vary: bool,
    /// Breakers as they were before this transaction.
    breakers_before: HashMap<TypeIx, TypeBreaker>,
    /// What was saved up under rates before this transaction took of it.
    buckets_before: HashMap<GateIx, Option<Bucket>>,
    /// Whose turn it was before this transaction, where it moved.
    turns_before: HashMap<(QueueIx, GroupIx), TurnOf>,
}

/// Types without lanes that are remembered for the figures of their breakers.
const IDLE_TYPES: usize = 4_096;

impl Lanes {
    fn lane(&self, ix: LaneIx) -> &Lane {
        &self.lanes[ix.0]
    }

    fn lane_mut(&mut self, ix: LaneIx) -> &mut Lane {
        &mut self.lanes[ix.0]
    }

    fn queue(&self, ix: QueueIx) -> &Queue {
        &self.queues[ix.0]
    }

    fn queue_mut(&mut self, ix: QueueIx) -> &mut Queue {
        &mut self.queues[ix.0]
    }

    fn type_state(&self, ix: TypeIx) -> &TypeState {
        &self.types[ix.0]
    }

    fn type_mut(&mut self, ix: TypeIx) -> &mut TypeState {
        &mut self.types[ix.0]
    }

    fn queue_by_name(&self, name: &QueueName) -> Option<&Queue> {
        self.queue_names.get(name).map(|ix| self.queue(*ix))
    }

    /// The key of a lane.
    pub fn key(&self, ix: LaneIx) -> &Arc<LaneKey> {
        &self.lane(ix).key
    }

    fn open_queue(&mut self, name: &QueueName, settings: &Settings, fresh: bool) -> QueueIx {
        if let Some(ix) = self.queue_names.get(name) {
            return *ix;
        }
        let mut queue = Queue::new(name.clone(), settings);
        gate::configure_queue(&mut queue.gate, settings.queues.get(name), fresh, self.now);
        let ix = QueueIx(self.queues.insert(queue));
        self.queue_names.insert(name.clone(), ix);
        self.look_at_queue(ix);
        ix
    }

    fn open_type(&mut self, name: &TaskType, settings: &Settings, fresh: bool) -> TypeIx {
        if let Some(ix) = self.type_names.get(name) {
            return *ix;
        }
        let mut state = TypeState::new(name.clone(), TypeBreaker::default());
        state.configure(settings.types.get(name), fresh, self.now);
        let ix = TypeIx(self.types.insert(state));
        self.type_names.insert(name.clone(), ix);
        self.look_at_type(ix);
        ix
    }

    /// The lane of a key, made if there is none. It vanishes again with its last member.
    pub fn open(&mut self, key: &LaneKey, settings: &Settings) -> LaneIx {
        if let Some(ix) = self.by_key.get(key) {
            return *ix;
        }
        let shared = Arc::new(key.clone());
        let queue = self.open_queue(&key.queue, settings, true);
        let task_type = self.open_type(&key.task_type, settings, true);
        let group = self.queue_mut(queue).open_group(key.tenant.as_ref());
        let state = self.type_mut(task_type);
        state.lanes += 1;
        match state.queues.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, lanes)) => *lanes += 1,
            None => state.queues.push((queue, 1)),
        }
        let ix = LaneIx(self.lanes.insert(Lane {
            key: Arc::clone(&shared),
            queue,
            task_type,
            group,
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            running: 0,
            members: 0,
        }));
        self.queue_mut(queue).add_lane(group, ix, task_type);
        self.by_key.insert(shared, ix);
        ix
    }

    /// Whether there is such a lane.
    pub fn contains(&self, key: &LaneKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Puts a live task in its lane.
    pub fn add(&mut self, ix: LaneIx, task: TaskKey, standing: Standing) {
        let lane = self.lane_mut(ix);
        lane.members += 1;
        let old = lane.ready.first().copied();
        match standing {
            Standing::Ready(ready_at) => {
                lane.ready.insert((ready_at, task));
            }
            Standing::Held(ready_at) => {
                lane.held.insert((ready_at, task));
            }
            Standing::Running => lane.running += 1,
            Standing::Waiting => {}
        }
        self.moved(ix, standing, 1, old);
    }

    /// Takes a live task out of its lane. An empty lane stays until [`Lanes::vanish`], so
    /// that a change can be undone.
    pub fn remove(&mut self, ix: LaneIx, task: TaskKey, standing: Standing) {
        let lane = self.lane_mut(ix);
        lane.members -= 1;
        let empty = lane.members == 0;
        let old = lane.ready.first().copied();
        match standing {
            Standing::Ready(ready_at) => {
                lane.ready.remove(&(ready_at, task));
            }
            Standing::Held(ready_at) => {
                lane.held.remove(&(ready_at, task));
            }
            Standing::Running => lane.running -= 1,
            Standing::Waiting => {}
        }
        self.moved(ix, standing, -1, old);
        if empty {
            self.emptied.push(ix);
        }
    }

    /// Counters and heads after a task came or went; `old` was the first of the lane before.
    fn moved(&mut self, ix: LaneIx, standing: Standing, delta: i64, old: Option<(Timestamp, TaskKey)>) {
        let Self { lanes, queues, types, .. } = self;
        let lane = &lanes[ix.0];
        let queue = &mut queues[lane.queue.0];
        queue.count(standing, lane.key.priority, delta);
        let new = lane.ready.first().copied();
        let shows = queue.is_fair() || types[lane.task_type.0].gate.open;
        if old != new && shows {
            let head = |(ready_at, task)| (ready_at, task, ix);
            queue.move_head(lane.group, &lane.key, old.map(head), new.map(head));
        }
    }

    /// Lets a lane that was opened for nothing vanish.
    pub fn forget_if_empty(&mut self, ix: LaneIx) {
        self.emptied.push(ix);
    }

    /// Closes the lanes that have no member any more.
    pub fn vanish(&mut self) {
        while let Some(ix) = self.emptied.pop() {
            if self.lanes.get(ix.0).is_some_and(|lane| lane.members == 0) {
                self.close(ix);
            }
        }
    }

    fn close(&mut self, ix: LaneIx) {
        let Some(lane) = self.lanes.remove(ix.0) else { return };
        self.by_key.remove(&lane.key);
        let queue = self.queue_mut(lane.queue);
        queue.remove_lane(lane.group, ix, lane.task_type);
        if queue.lanes == 0 && !queue.gate.has_rate() {
            let opens_at = queue.gate.opens_at.take();
            self.queues.remove(lane.queue.0);
            self.queue_names.remove(&lane.key.queue);
            self.opening.retain(|(at, gate)| Some(*at) != opens_at || *gate != GateIx::Queue(lane.queue));
        }
        let state = self.type_mut(lane.task_type);
        state.lanes -= 1;
        if let Some(at) = state.queues.iter().position(|(queue, _)| *queue == lane.queue) {
            state.queues[at].1 -= 1;
            if state.queues[at].1 == 0 {
                state.queues.swap_remove(at);
            }
        }
        if self.type_names.len() > IDLE_TYPES && self.type_names.len() > 2 * self.by_key.len() {
            self.forget_idle_types();
        }
    }

    fn forget_idle_types(&mut self) {
        let Self { types, type_names, opening, .. } = self;
        type_names.retain(|_, ix| {
            let matters = types[ix.0].matters();
            if !matters {
                types.remove(ix.0);
            }
            matters
        });
        opening.retain(|(_, gate)| match gate {
            GateIx::Type(ix) => types.get(ix.0).is_some(),
            GateIx::Queue(_) => true,
        });
    }
}
