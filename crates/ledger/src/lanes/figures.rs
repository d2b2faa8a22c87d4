//! How lanes and queues stand, for people and for bounds: how much waits, since when, and why nothing starts.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::ids::TaskKey;
use windlass_core::lane::LaneKey;
use windlass_core::names::QueueName;
use windlass_core::policy::Heads;
use windlass_core::store::{Hindrance, LaneStats, QueueStats};
use windlass_core::time::Timestamp;

use super::{Lane, LaneIx, Lanes, gate};

impl Lanes {
    /// How many lanes a queue has.
    pub fn count(&self, queue: &QueueName) -> usize {
        self.queue_by_name(queue).map_or(0, |queue| queue.lanes as usize)
    }

    /// Tasks that wait in a queue, ready or not.
    pub fn depth(&self, queue: &QueueName) -> u64 {
        self.queue_by_name(queue).map_or(0, |queue| queue.ready.iter().chain(&queue.waiting).sum())
    }

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
