//! Where a task is: a number in the directory, four bytes to a task, that says its queue and
//! whether it lives or how it ended. It is written by the same script as the log, so it is
//! never out of step with it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_core::ids::TaskKey;
use windlass_core::names::QueueName;
use windlass_core::status::Status;

use crate::error::Failure;
use crate::keys::{Keys, SEGMENT_TASKS, log};
use crate::link::Link;
use crate::scripts::Scripts;

/// Tasks whose queues are remembered; the older half is forgotten at a time.
const REMEMBERED: usize = 500_000;

/// What the directory says of a task; zero is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// In a queue, alive if it has not ended.
    pub(crate) fn new(queue: u32, ended: Option<Status>) -> Self {
        Self((queue + 1) << 3 | ended.map_or(0, |status| u32::from(status.code())))
    }

    /// The number of its queue.
    pub(crate) fn queue(self) -> Option<u32> {
        (self.0 >> 3).checked_sub(1)
    }

    /// How it ended.
    pub(crate) fn ended(self) -> Option<Status> {
        Status::from_code((self.0 & 7) as u8).filter(|status| status.is_ended())
    }
}

#[derive(Default)]
struct Memory {
    numbers: HashMap<QueueName, u32>,
    names: BTreeMap<u32, QueueName>,
    newer: HashMap<u64, u32>,
    older: HashMap<u64, u32>,
}

/// What this node knows of the directory. A task never moves to another queue.
#[derive(Default)]
pub(crate) struct Places(Mutex<Memory>);

impl Places {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: the database is not what it was.
    pub(crate) fn forget(&self) {
        *self.memory() = Memory::default();
    }

    /// The queue of a task that was just written or read.
    pub(crate) fn remember(&self, tasks: impl Iterator<Item = (TaskKey, u32)>) {
        let mut memory = self.memory();
        for (task, queue) in tasks {
            if memory.newer.len() >= REMEMBERED / 2 {
                memory.older = std::mem::take(&mut memory.newer);
            }
            memory.newer.insert(task.0, queue);
        }
    }

    /// Numbers of queues; a new queue gets one.
    pub(crate) async fn numbers<'a>(
        &self,
        link: &Link,
        keys: &Keys,
        scripts: &Scripts,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> Result<HashMap<QueueName, u32>, Failure> {
        let mut known = HashMap::new();
        let mut unknown = Vec::new();
        {
            let memory = self.memory();
            for queue in queues {
                match memory.numbers.get(queue) {
                    Some(number) => {
                        known.insert(queue.clone(), *number);
                    }
                    None if unknown.contains(queue) => {}
                    None => unknown.push(queue.clone()),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(known);
        }
        let args: Vec<Vec<u8>> = unknown.iter().map(|queue| queue.as_str().as_bytes().to_vec()).collect();
        let given: Vec<u32> = link.script(&scripts.number, &[keys.log(log::QUEUE_NUMBERS)], &args).await?;
        let mut memory = self.memory();
        for (queue, number) in unknown.into_iter().zip(given) {
            memory.names.insert(number, queue.clone());
            memory.numbers.insert(queue.clone(), number);
            known.insert(queue, number);
        }
        Ok(known)
    }

    /// All queues that ever had a task.
    pub(crate) async fn queues(&self, link: &Link, keys: &Keys) -> Result<Vec<(u32, QueueName)>, Failure> {
        let found: Vec<(String, u32)> = link.command(redis::cmd("HGETALL").arg(keys.log(log::QUEUE_NUMBERS))).await?;
        let mut memory = self.memory();
        let mut queues = Vec::with_capacity(found.len());
        for (name, number) in found {
            let queue = QueueName::new(&name).map_err(|error| Failure::odd(format!("a queue {name}: {error}")))?;
            memory.names.insert(number, queue.clone());
            memory.numbers.insert(queue.clone(), number);
            queues.push((number, queue));
        }
        Ok(queues)
    }

    /// The name of a queue that has this number.
    pub(crate) async fn name(&self, link: &Link, keys: &Keys, number: u32) -> Result<Option<QueueName>, Failure> {
        if let Some(name) = self.memory().names.get(&number).cloned() {
            return Ok(Some(name));
        }
        self.queues(link, keys).await?;
        Ok(self.memory().names.get(&number).cloned())
    }

    /// The queues of tasks; those that the directory does not have are left out.
    pub(crate) async fn find(
        &self,
        link: &Link,
        keys: &Keys,
        tasks: impl Iterator<Item = TaskKey>,
    ) -> Result<HashMap<TaskKey, QueueName>, Failure> {
        let mut found: HashMap<TaskKey, u32> = HashMap::new();
        let mut unknown: BTreeMap<u64, Vec<TaskKey>> = BTreeMap::new();
        {
            let memory = self.memory();
            for task in tasks {
                match memory.newer.get(&task.0).or_else(|| memory.older.get(&task.0)) {
                    Some(queue) => {
                        found.insert(task, *queue);
                    }
                    None => unknown.entry(task.0 / SEGMENT_TASKS).or_default().push(task),
                }
            }
        }
        if !unknown.is_empty() {
            let looked_up = look_up(link, keys, &unknown).await?;
            let queues = looked_up.iter().filter_map(|(task, place)| Some((*task, place.queue()?)));
            let queues: Vec<(TaskKey, u32)> = queues.collect();
            self.remember(queues.iter().copied());
            found.extend(queues);
        }
        let mut named = HashMap::with_capacity(found.len());
        for (task, number) in found {
            if let Some(queue) = self.name(link, keys, number).await? {
                named.insert(task, queue);
            }
        }
        Ok(named)
    }
}

pub(crate) async fn look_up(
    link: &Link,
    keys: &Keys,
    tasks: &BTreeMap<u64, Vec<TaskKey>>,
) -> Result<Vec<(TaskKey, Place)>, Failure> {
    let mut commands = redis::pipe();
    for (segment, tasks) in tasks {
        let command = commands.cmd("BITFIELD_RO").arg(keys.segment(*segment));
        for task in tasks {
            command.arg("GET").arg("u32").arg(format!("#{}", task.0 % SEGMENT_TASKS));
        }
    }
    let answers: Vec<Vec<u32>> = link.pipeline(&commands).await?;
    let tasks = tasks.values().flatten().copied();
    Ok(tasks.zip(answers.into_iter().flatten().map(Place)).collect())
}

/// One segment of the directory: the places of its tasks, in order.
pub(crate) fn segment(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Place> + ExactSizeIterator {
    bytes.chunks_exact(4).map(|four| Place(four.iter().fold(0, |place, byte| place << 8 | u32::from(*byte))))
}
