//! Workers as the store knows them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{TaskId, WorkerId};
use crate::lane::Serves;
use crate::names::{CapabilitySet, QueueName, TaskType, Text};
use crate::time::Timestamp;

/// What a worker said of itself when it registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// Its id.
    pub id: WorkerId,
    /// What it can do.
    pub capabilities: CapabilitySet,
    /// How many tasks it runs at once.
    pub capacity: u32,
    /// The queues it serves; all if empty.
    pub queues: Vec<QueueName>,
    /// The types it serves; all if empty.
    pub task_types: Vec<TaskType>,
    /// The pool it belongs to.
    pub pool: Option<Text>,
    /// A name for people.
    pub name: Option<Text>,
    /// The version of its code.
    pub version: Option<Text>,
    /// Where it runs.
    pub host: Option<Text>,
}

impl WorkerProfile {
    /// What it takes tasks from.
    pub fn serves(&self) -> Serves {
        Serves {
            queues: self.queues.clone(),
            task_types: self.task_types.clone(),
            capabilities: self.capabilities.clone(),
        }
    }
}

/// What a worker says of its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    /// Memory in use.
    pub memory_percent: Option<f64>,
    /// Processor in use.
    pub cpu_percent: Option<f64>,
}

impl Health {
    /// Memory from which on a machine has too much to do.
    pub const MEMORY_PERCENT_MAX: f64 = 90.0;
    /// Processor load from which on it has.
    pub const CPU_PERCENT_MAX: f64 = 95.0;

    /// Whether the machine has too much to do. Two heartbeats in a row that say so make a worker unhealthy: one may be a
    /// moment's peak.
    pub fn is_strained(&self) -> bool {
        let above = |percent: Option<f64>, bound| percent.is_some_and(|percent| percent >= bound);
        above(self.memory_percent, Self::MEMORY_PERCENT_MAX) || above(self.cpu_percent, Self::CPU_PERCENT_MAX)
    }
}

/// How a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Takes tasks.
    Active,
    /// Finishes what it has.
    Draining,
    /// Said that it is not well.
    Unhealthy,
    /// Missed three heartbeats.
    Dead,
}

impl WorkerStatus {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Dead => "dead",
        }
    }
}

/// Missed heartbeats after which a worker is shown as dead.
pub const MISSED_HEARTBEATS: u32 = 3;

/// A worker as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// What it said at registration.
    pub profile: WorkerProfile,
    /// When it registered.
    pub registered_at: Timestamp,
    /// When it last called.
    pub last_seen_at: Timestamp,
    /// Whether it is to finish what it has and take no more.
    pub draining: bool,
    /// Whether it said that it is not well.
    pub unhealthy: bool,
    /// What it last said of its machine.
    pub health: Option<Health>,
    /// The tasks it holds leases of.
    pub current_tasks: Vec<TaskId>,
    /// How many attempts it completed.
    pub completed: u64,
    /// How many attempts failed on it.
    pub failed: u64,
}

impl Worker {
    /// How it stands, given how often it should call.
    pub fn status(&self, now: Timestamp, heartbeat: Duration) -> WorkerStatus {
        if now.since(self.last_seen_at) > heartbeat.saturating_mul(MISSED_HEARTBEATS) {
            WorkerStatus::Dead
        } else if self.draining {
            WorkerStatus::Draining
        } else if self.unhealthy {
            WorkerStatus::Unhealthy
        } else {
            WorkerStatus::Active
        }
    }
}
