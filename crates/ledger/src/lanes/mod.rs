//! The lane index: every ready task in its lane, and the head of every lane that may be
//! claimed from. A claim looks at heads only, so a million tasks in lanes that are paused,
//! at their limit or need what a worker lacks cost it nothing.

mod gate;
mod queue;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use windlass_core::breaker::TypeBreaker;
use windlass_core::ids::{ClaimNo, TaskKey, WorkerId};
use windlass_core::lane::{LaneKey, Serves};
use windlass_core::names::{CapabilitySet, QueueName, TaskType};
use windlass_core::policy::{Choice, Heads, Turn};
use windlass_core::priority::Priority;
use windlass_core::rate::Bucket;
use windlass_core::settings::Settings;
use windlass_core::store::{Hindrance, LaneStats, QueueStats};
use windlass_core::time::Timestamp;

use crate::slab::Slab;
use gate::TypeState;
pub(crate) use queue::TurnOf;
use queue::{Group, GroupIx, Head, Queue};

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

/// What a claim takes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// The task.
    pub task: TaskKey,
    /// Where it waits.
    pub lane: LaneIx,
    /// Since when.
    pub ready_at: Timestamp,
    /// Set if it goes ahead of this priority by the overdue share.
    pub ahead_of: Option<Priority>,
    /// How much of the worker's capacity it takes.
    pub slots: u32,
    queue: QueueIx,
    group: GroupIx,
    turn: Turn,
}

/// The room that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// In all: what needs more can never run on it.
    pub capacity: u32,
    /// What its tasks take of it.
    pub taken: u32,
    /// How many tasks it has.
    pub tasks: u32,
}

impl Room {
    /// Whether a task that takes so much fits now. A worker counts tasks and knows best how many more it wants; its
    /// capacity matters only where one takes more than one slot.
    fn fits(&self, slots: u32) -> bool {
        let counts_right = slots == 1 && self.taken == self.tasks;
        counts_right || self.taken.saturating_add(slots) <= self.capacity
    }

    /// One more task.
    pub fn add(&mut self, slots: u32) {
        self.taken += slots;
        self.tasks += 1;
    }
}

/// What a worker serves, by place in the index.
#[derive(Debug)]
pub struct Served<'a> {
    queues: Option<Vec<QueueIx>>,
    types: Option<Vec<TypeIx>>,
    capabilities: &'a CapabilitySet,
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

/// What is saved up under rates.
#[derive(Default)]
pub(crate) struct Levels {
    pub(crate) queues: Vec<(QueueName, Bucket)>,
    pub(crate) types: Vec<(TaskType, Bucket)>,
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

    /// How many lanes a queue has.
    pub fn count(&self, queue: &QueueName) -> usize {
        self.queue_by_name(queue).map_or(0, |queue| queue.lanes as usize)
    }

    /// Tasks that wait in a queue, ready or not.
    pub fn depth(&self, queue: &QueueName) -> u64 {
        self.queue_by_name(queue).map_or(0, |queue| queue.ready.iter().chain(&queue.waiting).sum())
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

    /// Opens or closes a queue's gate as things stand.
    fn look_at_queue(&mut self, ix: QueueIx) {
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
    fn look_at_type(&mut self, ix: TypeIx) {
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

    // What runs.

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

    fn remember_buckets(&mut self, queue: QueueIx, task_type: TypeIx) {
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

    // Breakers of types.

    fn remember_breaker(&mut self, ix: TypeIx) {
        let Self { breakers_before, types, .. } = self;
        breakers_before.entry(ix).or_insert_with(|| types[ix.0].breaker.clone());
    }

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

    /// Ready tasks that a worker may be given next, about in order, at most `most` of them: what is worth reading ahead.
    pub(crate) fn upcoming(&self, served: &Served<'_>, most: usize) -> Vec<TaskKey> {
        let mut lanes: Vec<LaneIx> = Vec::new();
        for (_, queue) in self.queues_of(served) {
            for (_, group) in self.groups(queue, served) {
                let fits = |ix: &&LaneIx| {
                    let lane = self.lane(**ix);
                    !lane.ready.is_empty()
                        && self.type_state(lane.task_type).gate.open
                        && served.capabilities.covers(&lane.key.capabilities)
                };
                let of_types =
                    group.by_type.iter().filter(|(ix, _)| served.types.as_ref().is_none_or(|all| all.contains(ix)));
                lanes.extend(of_types.flat_map(|(_, lanes)| lanes).filter(fits));
                if lanes.len() >= most {
                    break;
                }
            }
        }
        let each = most.checked_div(lanes.len()).unwrap_or(0).max(1);
        lanes
            .into_iter()
            .flat_map(|ix| self.lane(ix).ready.iter().take(each))
            .map(|(_, task)| *task)
            .take(most)
            .collect()
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

    // Picking.

    /// What a worker serves, looked up once per claim.
    pub fn served<'a>(&self, serves: &'a Serves) -> Served<'a> {
        let queues = (!serves.queues.is_empty())
            .then(|| serves.queues.iter().filter_map(|name| self.queue_names.get(name).copied()).collect());
        let types = (!serves.task_types.is_empty())
            .then(|| serves.task_types.iter().filter_map(|name| self.type_names.get(name).copied()).collect());
        Served { queues, types, capabilities: &serves.capabilities }
    }

    fn queues_of<'a>(&'a self, served: &'a Served<'_>) -> impl Iterator<Item = (QueueIx, &'a Queue)> {
        let named = served.queues.iter().flatten().copied();
        let all = self.queue_names.values().copied().filter(|_| served.queues.is_none());
        named.chain(all).map(|ix| (ix, self.queue(ix))).filter(|(_, queue)| queue.gate.open && queue.has_heads())
    }

    /// What a worker takes next, by the policies of its queues. The caller takes it out
    /// before it asks again. Nothing if the next needs more room than is free now.
    pub fn pick(&self, served: &Served<'_>, room: Room, now: Timestamp) -> Option<Pick> {
        let mut best: Option<(Priority, Timestamp, QueueIx, GroupIx, Choice, Turn, Head)> = None;
        for (queue_ix, queue) in self.queues_of(served) {
            let Some((group_ix, choice, turn, head)) = self.next_of(queue, served, room, now) else { continue };
            // Between queues an overdue task counts as what it goes ahead of.
            let rank = choice.ahead_of.unwrap_or(choice.priority);
            let better = best.as_ref().is_none_or(|(best_rank, best_ready, ..)| {
                rank > *best_rank || (rank == *best_rank && head.0 < *best_ready)
            });
            if better {
                best = Some((rank, head.0, queue_ix, group_ix, choice, turn, head));
            }
        }
        let (_, _, queue_ix, group_ix, choice, turn, (ready_at, task, lane)) = best?;
        let slots = self.type_state(self.lane(lane).task_type).slots;
        if !room.fits(slots) {
            return None;
        }
        Some(Pick { task, lane, ready_at, ahead_of: choice.ahead_of, slots, queue: queue_ix, group: group_ix, turn })
    }

    /// What was picked starts. Of a task that turns out to have expired or to wait for its key
    /// this is not told: nobody's turn is spent on it.
    pub fn take_turn(&mut self, pick: &Pick) {
        let queue = self.queue(pick.queue);
        let moves = queue.is_fair() || queue.group(pick.group).turn != pick.turn;
        if let Some(before) = queue.turn_of(pick.group).filter(|_| moves) {
            self.turns_before.entry((pick.queue, pick.group)).or_insert(before);
        }
        self.queue_mut(pick.queue).advance(pick.group, pick.turn);
    }

    /// Whether the room that a task leaves may be what another task of the same worker waits for.
    pub fn slots_vary(&self) -> bool {
        self.slots_vary
    }

    /// Whether a worker with these abilities could take anything.
    pub fn has_ready(&self, serves: &Serves) -> bool {
        let served = self.served(serves);
        let room = Room { capacity: u32::MAX, taken: 0, tasks: 0 };
        self.queues_of(&served)
            .any(|(_, queue)| self.groups(queue, &served).any(|(_, group)| self.heads(group, &served, room).is_some()))
    }

    fn next_of(
        &self,
        queue: &Queue,
        served: &Served<'_>,
        room: Room,
        now: Timestamp,
    ) -> Option<(GroupIx, Choice, Turn, Head)> {
        self.groups(queue, served).find_map(|(group_ix, group)| {
            let heads = self.heads(group, served, room)?;
            let times: Heads = heads.map(|head| head.map(|(ready_at, ..)| ready_at));
            let mut turn = group.turn;
            let choice = queue.policy.choose(&times, &mut turn, now)?;
            Some((group_ix, choice, turn, heads[choice.priority.index()]?))
        })
    }

    /// Groups in the order of their turns; none if all that they could have is closed.
    fn groups<'a>(&'a self, queue: &'a Queue, served: &Served<'_>) -> impl Iterator<Item = (GroupIx, &'a Group)> {
        let serves = |ix: &TypeIx| served.types.as_ref().is_none_or(|types| types.contains(ix));
        let any_open = !queue.is_fair() || queue.types.keys().any(|ix| serves(ix) && self.type_state(*ix).gate.open);
        queue.groups_in_turn().filter(move |_| any_open)
    }

    /// The oldest task of every priority that the worker may take; nothing if there is none.
    fn heads(&self, group: &Group, served: &Served<'_>, room: Room) -> Option<[Option<Head>; Priority::LEVELS]> {
        let mut heads = [None; Priority::LEVELS];
        let mut add = |level: usize, head: Head| {
            let slot: &mut Option<Head> = &mut heads[level];
            *slot = Some(slot.map_or(head, |best| best.min(head)));
        };
        let may_start = |lane: &Lane| {
            let state = self.type_state(lane.task_type);
            state.gate.open && state.slots <= room.capacity
        };
        if let Some(types) = &served.types {
            for lane_ix in types.iter().filter_map(|ix| group.by_type.get(ix)).flatten() {
                let lane = self.lane(*lane_ix);
                if may_start(lane)
                    && served.capabilities.covers(&lane.key.capabilities)
                    && let Some((ready_at, task)) = lane.ready.first()
                {
                    add(lane.key.priority.index(), (*ready_at, *task, *lane_ix));
                }
            }
        } else {
            for (_, sets) in group.heads.iter().filter(|(needed, _)| served.capabilities.covers(needed)) {
                for (level, set) in sets.iter().enumerate() {
                    if let Some(head) = set.iter().find(|(_, _, ix)| may_start(self.lane(*ix))) {
                        add(level, *head);
                    }
                }
            }
        }
        heads.iter().any(Option::is_some).then_some(heads)
    }

    // Figures.

    /// How many tasks are ahead of one that waits in this lane since `ready_at`: exact
    /// inside its own lane, and all of the same or a higher priority in the others.
    pub fn ahead(&self, ix: LaneIx, ready_at: Timestamp, task: TaskKey) -> u64 {
        let lane = self.lane(ix);
        let queue = self.queue(lane.queue);
        let same_or_higher: u64 = queue.ready[lane.key.priority.index()..].iter().sum();
        // From the back it costs nothing for a task that has just come.
        let behind = |set: &BTreeSet<_>| set.range((ready_at, task)..).rev().take(1_000).count() as u64;
        same_or_higher.saturating_sub(behind(&lane.ready) + behind(&lane.held))
    }

    /// Why nothing may be taken from a lane now, if so.
    pub fn hindrance(&mut self, ix: LaneIx) -> Option<Hindrance> {
        let now = self.now;
        let lane = self.lane(ix);
        let (queue, task_type) = (lane.queue, lane.task_type);
        let of_queue = gate::queue_hindrance(&mut self.queue_mut(queue).gate, now);
        let paused = of_queue.clone().filter(|hindrance| *hindrance == Hindrance::QueuePaused);
        paused.or_else(|| self.type_mut(task_type).hindrance(now)).or(of_queue)
    }

    /// How every lane stands.
    pub fn lane_stats(&mut self) -> Vec<LaneStats> {
        let all: Vec<LaneIx> = self.by_key.values().copied().collect();
        all.into_iter()
            .map(|ix| {
                let closed_by = self.hindrance(ix);
                let lane = self.lane(ix);
                LaneStats {
                    lane: LaneKey::clone(&lane.key),
                    queued: (lane.ready.len() + lane.held.len()) as u64,
                    oldest_ready_at: lane.oldest(),
                    executing: u64::from(lane.running),
                    closed_by,
                }
            })
            .collect()
    }

    /// How every queue stands.
    pub fn stats(&self) -> BTreeMap<QueueName, QueueStats> {
        let mut all: BTreeMap<QueueName, QueueStats> = self
            .queue_names
            .values()
            .map(|ix| self.queue(*ix))
            .filter(|queue| queue.ready.iter().chain(&queue.waiting).chain(&queue.running).any(|count| *count > 0))
            .map(|queue| {
                let stats = QueueStats {
                    queued: queue.ready,
                    executing: queue.running,
                    scheduled: queue.waiting,
                    oldest_ready_at: Heads::default(),
                };
                (queue.name.clone(), stats)
            })
            .collect();
        for lane in self.lanes.values() {
            let (Some(stats), Some(head)) = (all.get_mut(&lane.key.queue), lane.oldest()) else { continue };
            let oldest = &mut stats.oldest_ready_at[lane.key.priority.index()];
            *oldest = Some(oldest.map_or(head, |time: Timestamp| time.min(head)));
        }
        all
    }
}

impl Lane {
    /// When its oldest task became ready, claimable or not.
    fn oldest(&self) -> Option<Timestamp> {
        let first = |set: &BTreeSet<(Timestamp, TaskKey)>| set.first().map(|(ready_at, _)| *ready_at);
        first(&self.ready).into_iter().chain(first(&self.held)).min()
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
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use windlass_core::names::Capability;

    fn lane(queue: &str, task_type: &str, capability: Option<&str>, level: u8) -> LaneKey {
        LaneKey {
            queue: QueueName::new(queue).expect("a name"),
            task_type: TaskType::new(task_type).expect("a name"),
            capabilities: CapabilitySet::new(capability.into_iter().filter_map(|c| Capability::new(c).ok()).collect()),
            priority: Priority::from_level(u64::from(level)).expect("a level"),
            tenant: None,
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn pick(lanes: &Lanes, serves: &Serves, now: Timestamp) -> Option<Pick> {
        let room = Room { capacity: 1, taken: 0, tasks: 0 };
        let served = lanes.served(serves);
        lanes.pick(&served, room, now)
    }

    proptest! {
        /// The index agrees with a plain list of tasks: what it picks is what a full sort
        /// of all eligible tasks would put first, and lanes vanish with their last task.
        #[test]
        fn picks_what_a_full_sort_would(
            tasks in proptest::collection::vec((0..2u8, 0..3u8, 0..2u8, 0..10u8, 0..50u64), 1..60),
            worker_type in proptest::option::of(0..3u8), gpu: bool, one_queue: bool, paused_type in proptest::option::of(0..3u8),
        ) {
            let mut settings = Settings::default();
            if let Some(paused) = paused_type {
                let name = TaskType::new(&format!("t{paused}")).expect("a name");
                settings.types.entry(name).or_default().paused = true;
            }
            let mut lanes = Lanes::default();
            // Everything is fresh, so the policy never promotes and the order is a plain sort.
            let mut list = Vec::new();
            for (n, (queue, task_type, capability, level, ready)) in tasks.iter().enumerate() {
                let key = lane(&format!("q{queue}"), &format!("t{task_type}"), (*capability == 1).then_some("gpu"), *level);
                let ix = lanes.open(&key, &settings);
                let task = TaskKey(n as u64);
                lanes.add(ix, task, Standing::Ready(at(*ready)));
                list.push((key, at(*ready), task, ix));
            }
            let serves = Serves {
                queues: if one_queue { vec![QueueName::new("q1").expect("a name")] } else { Vec::new() },
                task_types: worker_type.iter().map(|t| TaskType::new(&format!("t{t}")).expect("a name")).collect(),
                capabilities: CapabilitySet::new(if gpu { vec![Capability::new("gpu").expect("a name")] } else { vec![] }),
            };
            loop {
                let expected = list.iter()
                    .filter(|(key, ..)| serves.covers(key) && !settings.is_type_paused(&key.task_type))
                    .min_by_key(|(key, ready_at, task, _)| (std::cmp::Reverse(key.priority), *ready_at, key.queue.clone(), *task))
                    .map(|(key, ready_at, ..)| (key.priority, *ready_at));
                let picked = pick(&lanes, &serves, at(60));
                let found = picked.map(|pick| (lanes.key(pick.lane).priority, pick.ready_at));
                prop_assert_eq!(found, expected);
                let Some(pick) = picked else { break };
                lanes.remove(pick.lane, pick.task, Standing::Ready(pick.ready_at));
                list.retain(|(_, _, task, _)| *task != pick.task);
            }
            for (_, ready_at, task, ix) in list {
                lanes.remove(ix, task, Standing::Ready(ready_at));
            }
            lanes.vanish();
            prop_assert!(lanes.queue_names.is_empty() && lanes.by_key.is_empty());
            prop_assert!(lanes.lanes.is_empty());
        }
    }

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
