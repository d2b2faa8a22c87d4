//! Work that no worker can take.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::json;
use windlass_core::lane::{LaneKey, Serves};
use windlass_core::names::{Capability, QueueName, TaskType};

use super::{Facts, Finding, Severity, WAITS, Waiters, counted};

/// What live workers can do. Workers that are alike count once: there are many workers and
/// many lanes, but few kinds of workers.
pub struct Able<'a> {
    /// What is served, with the largest capacity of those who do.
    kinds: HashMap<Serves, u32>,
    capabilities: HashSet<&'a Capability>,
}

impl<'a> Able<'a> {
    /// Looks at all live workers.
    pub fn of(facts: &'a Facts<'_>) -> Self {
        let mut able = Self { kinds: HashMap::new(), capabilities: HashSet::new() };
        for worker in facts.live() {
            let largest = able.kinds.entry(worker.profile.serves()).or_default();
            *largest = worker.profile.capacity.max(*largest);
            able.capabilities.extend(worker.profile.capabilities.as_slice());
        }
        able
    }

    /// The capacity of the largest worker that serves the lane.
    fn largest_capacity(&self, lane: &LaneKey) -> Option<u32> {
        self.kinds.iter().filter(|(serves, _)| serves.covers(lane)).map(|(_, capacity)| *capacity).max()
    }

    /// Whether anybody serves the lane's queue and type, able or not.
    fn serves_type(&self, lane: &LaneKey) -> bool {
        let serves_type = |serves: &Serves| {
            serves.covers_queue(&lane.queue)
                && (serves.task_types.is_empty() || serves.task_types.contains(&lane.task_type))
        };
        self.kinds.keys().any(serves_type)
    }
}

/// Tasks wait and nobody takes any.
pub fn no_workers(facts: &Facts<'_>) -> Option<Finding> {
    let waiters = Waiters::all(facts.waiting());
    if waiters.count == 0 || facts.live().next().is_some() {
        return None;
    }
    Some(Finding {
        code: "no_workers",
        severity: Severity::Critical,
        subject: String::new(),
        title: "No worker takes tasks".to_owned(),
        detail: format!(
            "{} and no live worker is registered that takes any.",
            counted(waiters.count, "task", "", WAITS)
        ),
        evidence: json!({"waiting": waiters.count, "oldest_ready_at": waiters.oldest, "task_types": waiters.types(),
            "registered_workers": facts.workers.len()}),
        next_step: "Start a worker, or look at why those that ran are gone (GET /api/v1/workers).".to_owned(),
        since: waiters.oldest,
    })
}

/// What keeps a lane from every live worker.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Unserved {
    /// No live worker has this, or all of these at once.
    Capability { queue: QueueName, capability: String },
    /// No live worker serves this.
    Type { queue: QueueName, task_type: TaskType },
}

fn why_unserved(able: &Able<'_>, lane: &LaneKey) -> Option<Unserved> {
    if able.largest_capacity(lane).is_some() {
        return None;
    }
    let queue = lane.queue.clone();
    let required = lane.capabilities.as_slice();
    if let Some(missing) = required.iter().find(|capability| !able.capabilities.contains(capability)) {
        return Some(Unserved::Capability { queue, capability: missing.to_string() });
    }
    if able.serves_type(lane) {
        let all: Vec<_> = required.iter().map(ToString::to_string).collect();
        return Some(Unserved::Capability { queue, capability: all.join("+") });
    }
    Some(Unserved::Type { queue, task_type: lane.task_type.clone() })
}

/// Tasks wait for what no live worker can do or serves.
pub fn unserved(facts: &Facts<'_>, able: &Able<'_>) -> Vec<Finding> {
    // Without any worker that is all there is to say.
    if able.kinds.is_empty() {
        return Vec::new();
    }
    let mut groups: BTreeMap<Unserved, Waiters> = BTreeMap::new();
    for stats in facts.waiting() {
        if let Some(why) = why_unserved(able, &stats.lane) {
            groups.entry(why).or_default().add(stats);
        }
    }
    groups.into_iter().map(|(why, waiters)| unserved_finding(why, &waiters)).collect()
}

fn unserved_finding(why: Unserved, waiters: &Waiters) -> Finding {
    let (count, oldest) = (waiters.count, waiters.oldest);
    match why {
        Unserved::Capability { queue, capability } => Finding {
            code: "no_capable_worker",
            severity: Severity::Critical,
            subject: format!("{queue} {capability}"),
            title: format!("No live worker has capability {capability}"),
            detail: format!(
                "{} for capability {capability} that no live worker of that queue has.",
                counted(count, "task", &format!(" of queue {queue}"), WAITS)
            ),
            evidence: json!({"capability": capability, "queue": queue, "waiting": count, "oldest_ready_at": oldest,
                "task_types": waiters.types()}),
            next_step: format!(
                "Start a worker with capability {capability} that serves queue {queue}, or correct the tasks' required_capabilities."
            ),
            since: oldest,
        },
        Unserved::Type { queue, task_type } => Finding {
            code: "no_worker_for_type",
            severity: Severity::Critical,
            subject: format!("{queue} {task_type}"),
            title: format!("No live worker serves {task_type} of queue {queue}"),
            detail: format!(
                "{} in queue {queue}, which no live worker serves for this type.",
                counted(count, "task", &format!(" of type {task_type}"), WAITS)
            ),
            evidence: json!({"queue": queue, "task_type": task_type, "waiting": count, "oldest_ready_at": oldest}),
            next_step: format!(
                "Start a worker that serves queue {queue} and has a handler for {task_type}, or cancel the tasks."
            ),
            since: oldest,
        },
    }
}

/// Tasks wait that take more room than any worker has.
pub fn slots_too_large(facts: &Facts<'_>, able: &Able<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<&TaskType, (Waiters, u32)> = BTreeMap::new();
    for stats in facts.waiting() {
        let largest = able.largest_capacity(&stats.lane);
        // Without any able worker another finding says so.
        if let Some(largest) = largest.filter(|largest| facts.settings.slots(&stats.lane.task_type) > *largest) {
            let (waiters, capacity) = groups.entry(&stats.lane.task_type).or_default();
            waiters.add(stats);
            *capacity = largest.max(*capacity);
        }
    }
    let finding = |(task_type, (waiters, capacity)): (&TaskType, (Waiters, u32))| {
        let slots = facts.settings.slots(task_type);
        Finding {
            code: "slots_too_large",
            severity: Severity::Critical,
            subject: task_type.to_string(),
            title: format!("Tasks of {task_type} are too large for every worker"),
            detail: format!(
                "A task of type {task_type} takes {slots} slots and the largest live worker that serves it has {capacity}; {} wait.",
                waiters.count
            ),
            evidence: json!({"task_type": task_type, "slots": slots, "largest_capacity": capacity,
                "waiting": waiters.count, "oldest_ready_at": waiters.oldest}),
            next_step: format!(
                "Start a worker with a capacity of at least {slots}, or lower slots of the type (PUT /api/v1/task-types/{task_type})."
            ),
            since: waiters.oldest,
        }
    };
    groups.into_iter().map(finding).collect()
}
