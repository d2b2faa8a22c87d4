//! Ordering and concurrency keys in memory: who has the turn, who waits.
//!
//! Everything here follows from the live tasks, their leases and their [`Keyed`] entries:
//! [`Flows::sync`] is told of every change of these and keeps lines and pools in step, so
//! that undoing a change undoes its effect on keys too. Who is admitted to a lane is decided
//! afterwards, by [`Flows::unsettled`] and the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use windlass_core::ids::TaskKey;
use windlass_core::keys::{FlowKey, OnFailure, ScopedKey};
use windlass_core::names::QueueName;
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::index::LiveTask;
use crate::lanes::LaneIx;
use crate::slab::Slab;

/// A line or pool by its place in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowIx(u32);

/// A task's place in the line of its ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// When it joined: the earliest is first.
    pub since: Timestamp,
    /// It steps aside while it waits for a retry, and the line goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
}

/// What a task with a key has to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// Its line or pool.
    pub flow: FlowIx,
    /// Its place in the line; none if it has yet to join, or has no line.
    pub place: Option<Place>,
    /// What its line does while it waits for a retry.
    pub on_failure: OnFailure,
    /// How many of its pool it lets run at once.
    limit: u32,
}

/// What a task adds to its line or pool at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// Stands in line since.
    member: Option<Timestamp>,
    /// Has a lease.
    runs: bool,
    /// Is ready in this lane since then, held or not.
    ready: Option<(LaneIx, Timestamp, bool)>,
    /// Has not ended: its limit may apply.
    lives: bool,
}

#[derive(Debug, Default)]
struct Line {
    members: BTreeSet<(Timestamp, TaskKey)>,
    running: BTreeSet<TaskKey>,
    admitted: BTreeSet<TaskKey>,
}

#[derive(Debug, Default)]
struct PoolLane {
    admitted: BTreeSet<(Timestamp, TaskKey)>,
    parked: BTreeSet<(Timestamp, TaskKey)>,
}

impl PoolLane {
    /// The first that waits, if nobody before it is admitted. One that came back or moved here
    /// later is admitted without a look at the others, and must not go ahead of them.
    fn next(&self) -> Option<TaskKey> {
        let first = self.parked.first()?;
        self.admitted.first().is_none_or(|admitted| first < admitted).then_some(first.1)
    }
}

#[derive(Debug, Default)]
struct Pool {
    running: BTreeSet<TaskKey>,
    /// Limits of the live tasks; that of the newest applies.
    limits: BTreeMap<TaskKey, u32>,
    lanes: BTreeMap<LaneIx, PoolLane>,
}

#[derive(Debug)]
enum Kind {
    Line(Line),
    Pool(Pool),
}

#[derive(Debug)]
struct Flow {
    key: (bool, ScopedKey),
    kind: Kind,
    tasks: u32,
}

/// What is to be done so that the right tasks stand in lanes.
#[derive(Debug, Default)]
pub struct Unsettled {
    /// To be taken out of their lanes.
    pub hold: Vec<TaskKey>,
    /// To be put in their lanes.
    pub admit: Vec<TaskKey>,
}

/// All keys.
#[allow(clippy::struct_field_names, reason = "the one that holds them all is named after them")]
#[derive(Debug, Default)]
pub struct Flows {
    flows: Slab<Flow>,
    by_key: HashMap<(bool, ScopedKey), FlowIx>,
    shares: HashMap<TaskKey, (FlowIx, u32, Share)>,
    changed: BTreeSet<FlowIx>,
    emptied: Vec<FlowIx>,
}

impl Pool {
    fn limit(&self) -> usize {
        self.limits.last_key_value().map_or(usize::MAX, |(_, limit)| *limit as usize)
    }
}

impl Flows {
    /// What a task with this key has to do with it. `place` is its place in the line, if it has joined.
    pub fn keyed(&mut self, queue: &QueueName, key: &FlowKey, place: Option<Place>) -> Keyed {
        let (ordered, on_failure, limit) = match key {
            FlowKey::Ordering { on_failure, .. } => (true, *on_failure, 1),
            FlowKey::Concurrency { limit, .. } => (false, OnFailure::Block, *limit),
        };
        let scoped = (ordered, ScopedKey { queue: queue.clone(), key: key.key().clone() });
        let flow = self.by_key.get(&scoped).copied().unwrap_or_else(|| {
            let kind = if ordered { Kind::Line(Line::default()) } else { Kind::Pool(Pool::default()) };
            let ix = FlowIx(self.flows.insert(Flow { key: scoped.clone(), kind, tasks: 0 }));
            self.by_key.insert(scoped, ix);
            self.emptied.push(ix);
            ix
        });
        Keyed { flow, place: place.filter(|_| ordered), on_failure, limit }
    }

    /// Which key it is, as a task would name it.
    pub fn described(&self, keyed: &Keyed) -> (QueueName, FlowKey) {
        let (ordered, scoped) = &self.flows[keyed.flow.0].key;
        let key = scoped.key.clone();
        let flow_key = if *ordered {
            FlowKey::Ordering { key, on_failure: keyed.on_failure }
        } else {
            FlowKey::Concurrency { key, limit: keyed.limit }
        };
        (scoped.queue.clone(), flow_key)
    }

    /// A place behind everybody who stands in this line, also where the clock stood still meanwhile.
    pub fn back(&self, flow: FlowIx, now: Timestamp) -> Place {
        let after = |(since, _): &(Timestamp, TaskKey)| *since + Duration::from_micros(1);
        let last = match &self.flows[flow.0].kind {
            Kind::Line(line) => line.members.last().map(after),
            Kind::Pool(_) => None,
        };
        Place { since: last.map_or(now, |last| last.max(now)), aside: false }
    }

    /// Whether tasks of this flow stand in line.
    pub fn is_line(&self, flow: FlowIx) -> bool {
        matches!(self.flows[flow.0].kind, Kind::Line(_))
    }

    /// Keeps lines and pools in step with one task.
    pub fn sync(&mut self, task: TaskKey, keyed: Option<&Keyed>, live: Option<&LiveTask>, has_lease: bool) {
        let new = keyed.map(|keyed| {
            let ready =
                live.filter(|live| live.status == Status::Queued).map(|live| (live.lane, live.ready_at, live.held));
            let member = keyed.place.filter(|place| live.is_some() && !place.aside).map(|place| place.since);
            (keyed.flow, keyed.limit, Share { member, runs: has_lease, ready, lives: live.is_some() })
        });
        let old = match new {
            Some(new) => self.shares.insert(task, new),
            None => self.shares.remove(&task),
        };
        if old == new {
            return;
        }
        // The new flow is entered before the old one is left, so that one that stays does not vanish in between.
        if let Some((flow, ..)) = new {
            self.flows[flow.0].tasks += 1;
        }
        if let Some((flow, limit, share)) = old {
            self.change(flow, task, limit, &share, false);
            self.leave(flow);
        }
        if let Some((flow, limit, share)) = new {
            self.change(flow, task, limit, &share, true);
        }
    }

    fn leave(&mut self, ix: FlowIx) {
        let flow = &mut self.flows[ix.0];
        flow.tasks -= 1;
        if flow.tasks == 0 {
            self.emptied.push(ix);
        }
    }

    /// Forgets the keys that no task has any more. Until then a change can be undone.
    pub fn vanish(&mut self) {
        while let Some(ix) = self.emptied.pop() {
            if self.flows.get(ix.0).is_some_and(|flow| flow.tasks == 0) {
                self.changed.remove(&ix);
                if let Some(flow) = self.flows.remove(ix.0) {
                    self.by_key.remove(&flow.key);
                }
            }
        }
    }

    fn change(&mut self, flow: FlowIx, task: TaskKey, limit: u32, share: &Share, add: bool) {
        self.changed.insert(flow);
        match &mut self.flows[flow.0].kind {
            Kind::Line(line) => {
                if let Some(since) = share.member {
                    put(&mut line.members, (since, task), add);
                }
                if share.runs {
                    put(&mut line.running, task, add);
                }
                if matches!(share.ready, Some((_, _, false))) {
                    put(&mut line.admitted, task, add);
                }
            }
            Kind::Pool(pool) => {
                if share.runs {
                    put(&mut pool.running, task, add);
                }
                if share.lives {
                    if add {
                        pool.limits.insert(task, limit);
                    } else {
                        pool.limits.remove(&task);
                    }
                }
                if let Some((lane, ready_at, held)) = share.ready {
                    let of_lane = pool.lanes.entry(lane).or_default();
                    let of_standing = if held { &mut of_lane.parked } else { &mut of_lane.admitted };
                    put(of_standing, (ready_at, task), add);
                    if of_lane.admitted.is_empty() && of_lane.parked.is_empty() {
                        pool.lanes.remove(&lane);
                    }
                }
            }
        }
    }

    /// Whether as many tasks of this pool run as may.
    pub fn is_full(&self, flow: FlowIx) -> bool {
        match &self.flows[flow.0].kind {
            Kind::Line(_) => false,
            Kind::Pool(pool) => pool.running.len() >= pool.limit(),
        }
    }

    /// Whether anything has changed since it was last settled.
    pub fn is_settled(&self) -> bool {
        self.changed.is_empty()
    }

    /// Who has to be held and who admitted, after all that changed.
    pub fn unsettled(&mut self) -> Unsettled {
        let mut todo = Unsettled::default();
        for flow in std::mem::take(&mut self.changed) {
            match self.flows.get(flow.0).map(|flow| &flow.kind) {
                Some(Kind::Line(line)) => {
                    let first = line.members.first().map(|(_, task)| *task).filter(|_| line.running.is_empty());
                    todo.hold.extend(line.admitted.iter().filter(|task| Some(**task) != first));
                    todo.admit.extend(first.filter(|task| !line.admitted.contains(task)));
                }
                Some(Kind::Pool(pool)) if pool.running.len() < pool.limit() => {
                    // One per lane: which of them is claimed first is not known here, and the
                    // claim that finds the pool full again parks the others.
                    todo.admit.extend(pool.lanes.values().filter_map(PoolLane::next));
                }
                Some(Kind::Pool(_)) | None => {}
            }
        }
        todo
    }

    /// In a line: who is first, and how many stand before this task.
    pub fn line_before(&self, flow: FlowIx, place: Place, task: TaskKey) -> Option<(TaskKey, u64)> {
        let Kind::Line(line) = &self.flows[flow.0].kind else { return None };
        let running = line.running.first().copied();
        let first = running.or_else(|| line.members.first().map(|(_, task)| *task))?;
        let ahead = line.members.range(..(place.since, task)).take(10_000).count() as u64;
        Some((first, ahead.max(1)))
    }

    /// In a pool: how many may run, and some of those that do.
    pub fn pool_running(&self, flow: FlowIx) -> Option<(u32, Vec<TaskKey>)> {
        let Kind::Pool(pool) = &self.flows[flow.0].kind else { return None };
        let limit = u32::try_from(pool.limit()).unwrap_or(u32::MAX);
        Some((limit, pool.running.iter().take(10).copied().collect()))
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, item: T, add: bool) {
    if add {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}
