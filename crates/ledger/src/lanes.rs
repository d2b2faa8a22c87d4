//! The lane index: every ready task in its lane, and the head of every lane that may be
//! claimed from. A claim looks at heads only, so a million tasks in lanes that are paused
//! or need what a worker lacks cost it nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use windlass_core::ids::TaskKey;
use windlass_core::lane::{LaneKey, Serves};
use windlass_core::names::{CapabilitySet, QueueName, TaskType};
use windlass_core::policy::{Choice, Heads, Policy, Turn};
use windlass_core::priority::Priority;
use windlass_core::settings::Settings;
use windlass_core::store::QueueStats;
use windlass_core::time::Timestamp;

/// A lane by its place in the index. Valid until [`Lanes::vanish`] finds it without a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneIx(u32);

/// What a live task does in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready since.
    Ready(Timestamp),
    /// Waits for a time or another task.
    Waiting,
    /// Runs.
    Running,
}

#[derive(Debug)]
struct Lane {
    key: Arc<LaneKey>,
    ready: BTreeSet<(Timestamp, TaskKey)>,
    members: u32,
    paused: bool,
}

/// Heads of lanes with the same required capabilities, by priority.
type HeadSets = [BTreeSet<(Timestamp, TaskKey, LaneIx)>; Priority::LEVELS];

#[derive(Debug, Default)]
struct Queue {
    policy: Policy,
    turn: Turn,
    heads: HashMap<CapabilitySet, HeadSets>,
    by_type: HashMap<TaskType, Vec<LaneIx>>,
    lanes: u32,
    ready_lanes: u32,
    ready: [u64; Priority::LEVELS],
    waiting: [u64; Priority::LEVELS],
    running: [u64; Priority::LEVELS],
}

/// What a claim takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The task.
    pub task: TaskKey,
    /// Where it waits.
    pub lane: LaneIx,
    /// Since when.
    pub ready_at: Timestamp,
    /// Set if it goes ahead of this priority by the overdue share.
    pub ahead_of: Option<Priority>,
}

/// All lanes of a store.
#[derive(Debug, Default)]
pub struct Lanes {
    slots: Vec<Option<Lane>>,
    free: Vec<LaneIx>,
    by_key: HashMap<Arc<LaneKey>, LaneIx>,
    queues: BTreeMap<QueueName, Queue>,
    emptied: Vec<LaneIx>,
}

impl Lanes {
    fn lane(&self, ix: LaneIx) -> &Lane {
        self.slots[ix.0 as usize].as_ref().expect("a lane lives while it has members")
    }

    fn lane_mut(&mut self, ix: LaneIx) -> &mut Lane {
        self.slots[ix.0 as usize].as_mut().expect("a lane lives while it has members")
    }

    /// The key of a lane.
    pub fn key(&self, ix: LaneIx) -> &Arc<LaneKey> {
        &self.lane(ix).key
    }

    /// The lane of a key, made if there is none. It vanishes again with its last member.
    pub fn open(&mut self, key: &LaneKey, settings: &Settings) -> LaneIx {
        if let Some(ix) = self.by_key.get(key) {
            return *ix;
        }
        let shared = Arc::new(key.clone());
        let paused = settings.is_queue_paused(&key.queue) || settings.is_type_paused(&key.task_type);
        let lane = Lane { key: Arc::clone(&shared), ready: BTreeSet::new(), members: 0, paused };
        let ix = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            LaneIx(u32::try_from(self.slots.len() - 1).expect("fewer than four billion lanes"))
        });
        self.slots[ix.0 as usize] = Some(lane);
        let queue = self
            .queues
            .entry(key.queue.clone())
            .or_insert_with(|| Queue { policy: settings.claim_policy(&key.queue), ..Queue::default() });
        queue.lanes += 1;
        queue.by_type.entry(key.task_type.clone()).or_default().push(ix);
        self.by_key.insert(shared, ix);
        ix
    }

    /// Whether there is such a lane.
    pub fn contains(&self, key: &LaneKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// How many lanes a queue has.
    pub fn count(&self, queue: &QueueName) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.lanes as usize)
    }

    /// Tasks that wait in a queue, ready or not.
    pub fn depth(&self, queue: &QueueName) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.ready.iter().chain(&queue.waiting).sum())
    }

    /// Puts a live task in its lane.
    pub fn add(&mut self, ix: LaneIx, task: TaskKey, standing: Standing) {
        let lane = self.lane_mut(ix);
        lane.members += 1;
        let key = Arc::clone(&lane.key);
        let old_head = lane.ready.first().copied();
        if let Standing::Ready(ready_at) = standing {
            lane.ready.insert((ready_at, task));
        }
        let new_head = lane.ready.first().copied();
        let paused = lane.paused;
        let queue = self.queues.get_mut(&key.queue).expect("a lane's queue is there");
        queue.count(standing, key.priority, 1);
        queue.move_head(&key, ix, paused, old_head, new_head);
    }

    /// Takes a live task out of its lane. An empty lane stays until [`Lanes::vanish`], so
    /// that a change can be undone.
    pub fn remove(&mut self, ix: LaneIx, task: TaskKey, standing: Standing) {
        let lane = self.lane_mut(ix);
        lane.members -= 1;
        let (key, empty, paused) = (Arc::clone(&lane.key), lane.members == 0, lane.paused);
        let old_head = lane.ready.first().copied();
        if let Standing::Ready(ready_at) = standing {
            lane.ready.remove(&(ready_at, task));
        }
        let new_head = lane.ready.first().copied();
        let queue = self.queues.get_mut(&key.queue).expect("a lane's queue is there");
        queue.count(standing, key.priority, -1);
        queue.move_head(&key, ix, paused, old_head, new_head);
        if empty {
            self.emptied.push(ix);
        }
    }

    /// Lets a lane that was opened for nothing vanish.
    pub fn forget_if_empty(&mut self, ix: LaneIx) {
        self.emptied.push(ix);
    }

    /// Closes the lanes that have no member any more.
    pub fn vanish(&mut self) {
        while let Some(ix) = self.emptied.pop() {
            let empty = self.slots[ix.0 as usize].as_ref().filter(|lane| lane.members == 0);
            if let Some(key) = empty.map(|lane| Arc::clone(&lane.key)) {
                self.close(ix, &key);
            }
        }
    }

    fn close(&mut self, ix: LaneIx, key: &Arc<LaneKey>) {
        self.slots[ix.0 as usize] = None;
        self.free.push(ix);
        self.by_key.remove(key);
        let Some(queue) = self.queues.get_mut(&key.queue) else { return };
        queue.lanes -= 1;
        if let Some(lanes) = queue.by_type.get_mut(&key.task_type) {
            lanes.retain(|lane| *lane != ix);
            if lanes.is_empty() {
                queue.by_type.remove(&key.task_type);
            }
        }
        if queue.lanes == 0 {
            self.queues.remove(&key.queue);
        }
    }

    /// Applies changed settings to every lane.
    pub fn apply(&mut self, settings: &Settings) {
        for (name, queue) in &mut self.queues {
            queue.policy = settings.claim_policy(name);
            queue.heads.clear();
            queue.ready_lanes = 0;
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(lane) = slot else { continue };
            lane.paused = settings.is_queue_paused(&lane.key.queue) || settings.is_type_paused(&lane.key.task_type);
            if let Some(queue) = self.queues.get_mut(&lane.key.queue) {
                queue.move_head(&lane.key, LaneIx(index as u32), lane.paused, None, lane.ready.first().copied());
            }
        }
    }

    /// What a worker with these abilities takes next, by the policies of its queues. The
    /// caller takes it out before it asks again.
    pub fn pick(&mut self, serves: &Serves, now: Timestamp) -> Option<Pick> {
        let mut best: Option<(Priority, Timestamp, &QueueName, Choice, Turn)> = None;
        let named = serves.queues.iter().filter_map(|name| self.queues.get_key_value(name));
        let all = self.queues.iter().filter(|_| serves.queues.is_empty());
        for (name, queue) in named.chain(all) {
            if queue.ready_lanes == 0 {
                continue;
            }
            let heads = self.heads(queue, serves);
            let mut turn = queue.turn;
            let Some(choice) = queue.policy.choose(&heads, &mut turn, now) else { continue };
            // Between queues an overdue task counts as what it goes ahead of.
            let rank = choice.ahead_of.unwrap_or(choice.priority);
            let ready_at = heads[choice.priority.index()].unwrap_or(now);
            let better = best.as_ref().is_none_or(|(best_rank, best_ready, ..)| {
                rank > *best_rank || (rank == *best_rank && ready_at < *best_ready)
            });
            if better {
                best = Some((rank, ready_at, name, choice, turn));
            }
        }
        let (_, _, name, choice, turn) = best?;
        let name = name.clone();
        let (ready_at, task, lane) = self.oldest(&self.queues[&name], serves, choice.priority)?;
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.turn = turn;
        }
        Some(Pick { task, lane, ready_at, ahead_of: choice.ahead_of })
    }

    /// Whether a worker with these abilities could take anything.
    pub fn has_ready(&self, serves: &Serves) -> bool {
        let named = serves.queues.iter().filter_map(|name| self.queues.get(name));
        let all = self.queues.values().filter(|_| serves.queues.is_empty());
        named.chain(all).any(|queue| {
            queue.ready_lanes > 0
                && Priority::descending().any(|priority| self.oldest(queue, serves, priority).is_some())
        })
    }

    fn heads(&self, queue: &Queue, serves: &Serves) -> Heads {
        let mut heads = Heads::default();
        for priority in Priority::descending() {
            heads[priority.index()] = self.oldest(queue, serves, priority).map(|(ready_at, ..)| ready_at);
        }
        heads
    }

    /// The oldest task of a priority that the worker may take.
    fn oldest(&self, queue: &Queue, serves: &Serves, priority: Priority) -> Option<(Timestamp, TaskKey, LaneIx)> {
        if serves.task_types.is_empty() {
            return queue
                .heads
                .iter()
                .filter(|(needed, _)| serves.capabilities.covers(needed))
                .filter_map(|(_, sets)| sets[priority.index()].first().copied())
                .min();
        }
        serves
            .task_types
            .iter()
            .filter_map(|task_type| queue.by_type.get(task_type))
            .flatten()
            .map(|ix| (*ix, self.lane(*ix)))
            .filter(|(_, lane)| !lane.paused && lane.key.priority == priority)
            .filter(|(_, lane)| serves.capabilities.covers(&lane.key.capabilities))
            .filter_map(|(ix, lane)| lane.ready.first().map(|(ready_at, task)| (*ready_at, *task, ix)))
            .min()
    }

    /// How many tasks are ahead of one that waits in this lane since `ready_at`: exact
    /// inside its own lane, and all of the same or a higher priority in the others.
    pub fn ahead(&self, ix: LaneIx, ready_at: Timestamp, task: TaskKey) -> u64 {
        let lane = self.lane(ix);
        let Some(queue) = self.queues.get(&lane.key.queue) else { return 0 };
        let same_or_higher: u64 = queue.ready[lane.key.priority.index()..].iter().sum();
        // From the back it costs nothing for a task that has just come.
        let behind = lane.ready.range((ready_at, task)..).rev().take(1_000).count() as u64;
        same_or_higher.saturating_sub(behind)
    }

    /// How every queue stands.
    pub fn stats(&self) -> BTreeMap<QueueName, QueueStats> {
        let mut all: BTreeMap<QueueName, QueueStats> = self
            .queues
            .iter()
            .map(|(name, queue)| {
                let stats = QueueStats {
                    queued: queue.ready,
                    executing: queue.running,
                    scheduled: queue.waiting,
                    oldest_ready_at: Heads::default(),
                };
                (name.clone(), stats)
            })
            .collect();
        for lane in self.slots.iter().flatten() {
            let (Some(stats), Some((head, _))) = (all.get_mut(&lane.key.queue), lane.ready.first()) else { continue };
            let oldest = &mut stats.oldest_ready_at[lane.key.priority.index()];
            *oldest = Some(oldest.map_or(*head, |time: Timestamp| time.min(*head)));
        }
        all
    }
}

impl Queue {
    fn count(&mut self, standing: Standing, priority: Priority, delta: i64) {
        let counter = match standing {
            Standing::Ready(_) => &mut self.ready[priority.index()],
            Standing::Waiting => &mut self.waiting[priority.index()],
            Standing::Running => &mut self.running[priority.index()],
        };
        *counter = counter.saturating_add_signed(delta);
    }

    /// Keeps the set of heads in step with one lane.
    fn move_head(
        &mut self,
        key: &LaneKey,
        ix: LaneIx,
        paused: bool,
        old: Option<(Timestamp, TaskKey)>,
        new: Option<(Timestamp, TaskKey)>,
    ) {
        if old == new || paused {
            return;
        }
        if !self.heads.contains_key(&key.capabilities) {
            self.heads.insert(key.capabilities.clone(), HeadSets::default());
        }
        let Some(sets) = self.heads.get_mut(&key.capabilities) else { return };
        let heads = &mut sets[key.priority.index()];
        if let Some((ready_at, task)) = old
            && heads.remove(&(ready_at, task, ix))
        {
            self.ready_lanes -= 1;
        }
        if let Some((ready_at, task)) = new {
            heads.insert((ready_at, task, ix));
            self.ready_lanes += 1;
        }
        if new.is_none() && sets.iter().all(BTreeSet::is_empty) {
            self.heads.remove(&key.capabilities);
        }
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
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
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
                let picked = lanes.pick(&serves, at(60));
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
            prop_assert!(lanes.queues.is_empty() && lanes.by_key.is_empty());
            prop_assert_eq!(lanes.free.len(), lanes.slots.len());
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
        lanes.apply(&settings);
        assert_eq!(lanes.pick(&Serves::default(), at(2)), None);
        settings.queues.clear();
        lanes.apply(&settings);
        assert!(lanes.pick(&Serves::default(), at(2)).is_some());
    }
}
