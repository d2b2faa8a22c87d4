//! Lanes: where ready tasks wait.

use serde::{Deserialize, Serialize};

use crate::names::{CapabilitySet, QueueName, TaskType, Text};
use crate::priority::Priority;
use crate::settings::Settings;
use crate::task::TaskSpec;

/// One combination of what decides who may take a task and how soon. Inside a lane tasks
/// stand in order of `ready_at`, then key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneKey {
    /// The queue.
    pub queue: QueueName,
    /// The task type.
    pub task_type: TaskType,
    /// What a worker must be able to do.
    pub capabilities: CapabilitySet,
    /// The priority.
    pub priority: Priority,
    /// Whose task it is, where the queue is fair between tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Text>,
}

impl LaneKey {
    /// The lane that a task waits in.
    pub fn of(spec: &TaskSpec, settings: &Settings) -> Self {
        Self {
            queue: spec.queue.clone(),
            task_type: spec.task_type.clone(),
            capabilities: spec.capabilities.clone(),
            priority: spec.priority,
            tenant: spec.tenant.clone().filter(|_| settings.is_fair(&spec.queue)),
        }
    }
}

/// What a worker takes tasks from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Serves {
    /// These queues, or every queue if empty.
    pub queues: Vec<QueueName>,
    /// These types, or every type if empty.
    pub task_types: Vec<TaskType>,
    /// What the worker can do.
    pub capabilities: CapabilitySet,
}

impl Serves {
    /// Whether the worker may take tasks from this lane.
    pub fn covers(&self, lane: &LaneKey) -> bool {
        self.covers_queue(&lane.queue)
            && (self.task_types.is_empty() || self.task_types.contains(&lane.task_type))
            && self.capabilities.covers(&lane.capabilities)
    }

    /// Whether the worker serves this queue.
    pub fn covers_queue(&self, queue: &QueueName) -> bool {
        self.queues.is_empty() || self.queues.contains(queue)
    }
}
