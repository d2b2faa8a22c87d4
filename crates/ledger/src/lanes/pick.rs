//! Picking: which task a claim takes next. It looks at the heads of open lanes only and moves nothing; what was picked
//! has had its turn when it starts ([`Lanes::take_turn`]).

use windlass_core::ids::TaskKey;
use windlass_core::lane::Serves;
use windlass_core::names::CapabilitySet;
use windlass_core::policy::{Choice, Heads, Turn};
use windlass_core::priority::Priority;
use windlass_core::time::Timestamp;

use super::queue::{Group, GroupIx, Head, Queue};
use super::{Lane, LaneIx, Lanes, QueueIx, TypeIx};

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

impl Lanes {
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
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use windlass_core::lane::LaneKey;
    use windlass_core::names::{Capability, QueueName, TaskType};
    use windlass_core::settings::Settings;

    use super::super::Standing;
    use super::*;

    pub(crate) fn lane(queue: &str, task_type: &str, capability: Option<&str>, level: u8) -> LaneKey {
        LaneKey {
            queue: QueueName::new(queue).expect("a name"),
            task_type: TaskType::new(task_type).expect("a name"),
            capabilities: CapabilitySet::new(capability.into_iter().filter_map(|c| Capability::new(c).ok()).collect()),
            priority: Priority::from_level(u64::from(level)).expect("a level"),
            tenant: None,
        }
    }

    pub(crate) fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    pub(crate) fn pick(lanes: &Lanes, serves: &Serves, now: Timestamp) -> Option<Pick> {
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
}
