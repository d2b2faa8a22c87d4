//! Live tasks and leases in memory. Every change goes through [`Index::set_task`],
//! [`Index::set_lease`] and their like, which keep lanes, timers and counters in step and
//! note how to undo it: a transaction that does not commit leaves no trace here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use windlass_core::ids::{ClaimNo, TaskKey, WorkerId};
use windlass_core::names::{QueueName, TaskType};
use windlass_core::status::Status;
use windlass_core::time::Timestamp;

use crate::flows::{Flows, Keyed};
use crate::journal::SEGMENT_KEYS;
use crate::lanes::{LaneIx, Lanes, Standing};

/// A live task: what every claim, timer and result needs, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveTask {
    /// Where it waits.
    pub lane: LaneIx,
    /// `blocked`, `scheduled`, `queued` or `executing`.
    pub status: Status,
    /// Waits between two attempts.
    pub retrying: bool,
    /// Ready, but its key lets others go first.
    pub held: bool,
    /// Whether it has an ordering or concurrency key.
    pub keyed: bool,
    /// Whether it may have a unique key to give back.
    pub unique: bool,
    /// Whether the journal has an overlay row for it.
    pub overlaid: bool,
    /// Attempts that ran out of time or memory.
    pub timeouts: u8,
    /// Retries used up.
    pub retries: u8,
    /// Crashes counted.
    pub crashes: u8,
    /// Attempts begun.
    pub attempt: u32,
    /// Number of events so far.
    pub version: u32,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Its place in the line.
    pub ready_at: Timestamp,
    /// When it is, or was, to run.
    pub run_at: Timestamp,
}

impl LiveTask {
    fn standing(&self) -> Standing {
        match self.status {
            Status::Queued if self.held => Standing::Held(self.ready_at),
            Status::Queued => Standing::Ready(self.ready_at),
            Status::Executing => Standing::Running,
            Status::Blocked
            | Status::Scheduled
            | Status::Completed
            | Status::Failed
            | Status::Cancelled
            | Status::DeadLetter => Standing::Waiting,
        }
    }

    fn due_at(&self) -> Option<Timestamp> {
        (self.status == Status::Scheduled).then_some(self.run_at)
    }
}

/// A worker's hold on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub worker: WorkerId,
    /// Under which claim.
    pub claim: ClaimNo,
    /// The first number of the claim row that it is part of.
    pub claim_row: u64,
    /// The event row of the claim.
    pub event_no: u64,
    /// The lane of the task: what it counts for while it runs, also after the task was cancelled.
    pub lane: LaneIx,
    /// How much of the worker's capacity it takes.
    pub slots: u32,
    /// Whether the task has an ordering or concurrency key.
    pub keyed: bool,
    /// When the task was submitted: with the key it gives the id, also after the task has ended.
    pub created_at: Timestamp,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When it lapses unless renewed.
    pub expires_at: Timestamp,
    /// When the attempt's time is over.
    pub deadline: Timestamp,
    /// The task was cancelled; the worker has yet to acknowledge.
    pub revoked: bool,
    /// The worker was told so.
    pub told: bool,
}

#[derive(Debug)]
enum Undo {
    Task(TaskKey, Option<LiveTask>),
    Lease(TaskKey, Option<Lease>),
    Expiry(TaskKey, Option<Timestamp>),
    Keyed(TaskKey, Option<Keyed>),
    ClaimRow(u64, u32),
    Ended(Status, i64),
    Dead((QueueName, TaskType), i64),
}

/// Whatever a transaction changed.
#[derive(Debug, Default)]
pub struct Touched {
    /// Live tasks.
    pub tasks: BTreeSet<TaskKey>,
    /// Leases.
    pub leases: BTreeSet<TaskKey>,
    /// When tasks expire.
    pub expiries: BTreeSet<TaskKey>,
    /// What tasks have to do with their key.
    pub keyed: BTreeSet<TaskKey>,
    /// Claim rows.
    pub claims: BTreeSet<u64>,
    /// Counts of dead letters.
    pub dead: BTreeSet<(QueueName, TaskType)>,
    /// Whether a count of ended tasks changed.
    pub ended: bool,
}

impl Touched {
    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
            && self.leases.is_empty()
            && self.expiries.is_empty()
            && self.keyed.is_empty()
            && self.claims.is_empty()
            && self.dead.is_empty()
            && !self.ended
    }
}

/// Everything about live tasks that is asked for often.
#[derive(Debug, Default)]
pub struct Index {
    /// The lanes.
    pub lanes: Lanes,
    /// The keys.
    pub flows: Flows,
    keyed: HashMap<TaskKey, Keyed>,
    tasks: BTreeMap<TaskKey, LiveTask>,
    leases: HashMap<TaskKey, Lease>,
    leases_by_worker: HashMap<WorkerId, BTreeSet<TaskKey>>,
    slots_taken: HashMap<WorkerId, u32>,
    expiries: HashMap<TaskKey, Timestamp>,
    due: BTreeSet<(Timestamp, TaskKey)>,
    lapsing: BTreeSet<(Timestamp, TaskKey)>,
    deadlines: BTreeSet<(Timestamp, TaskKey)>,
    expiring: BTreeSet<(Timestamp, TaskKey)>,
    open_claims: HashMap<u64, u32>,
    ended: [u64; 8],
    live: [u64; 8],
    dead_letters: BTreeMap<(QueueName, TaskType), u64>,
    undo: Vec<Undo>,
}

impl Index {
    /// A live task.
    pub fn task(&self, key: TaskKey) -> Option<LiveTask> {
        self.tasks.get(&key).copied()
    }

    /// The lease of a task; a cancelled task's lease is revoked, not gone.
    pub fn lease(&self, key: TaskKey) -> Option<Lease> {
        self.leases.get(&key).copied()
    }

    /// Tasks that a worker holds, revoked ones too.
    pub fn leases_of(&self, worker: WorkerId) -> impl Iterator<Item = TaskKey> {
        self.leases_by_worker.get(&worker).into_iter().flatten().copied()
    }

    /// When a task that has not started expires.
    pub fn expiry(&self, key: TaskKey) -> Option<Timestamp> {
        self.expiries.get(&key).copied()
    }

    /// Live tasks below a key, newest first.
    pub fn newest_below(&self, below: TaskKey) -> impl Iterator<Item = (TaskKey, LiveTask)> {
        self.tasks.range(..below).rev().map(|(key, task)| (*key, *task))
    }

    /// Whether the segment of a key has a live task.
    pub fn segment_is_live(&self, key: TaskKey) -> bool {
        let first = key.0 - key.0 % SEGMENT_KEYS;
        self.tasks.range(TaskKey(first)..TaskKey(first + SEGMENT_KEYS)).next().is_some()
    }

    /// Scheduled tasks in order of their time.
    pub fn due(&self) -> impl Iterator<Item = (Timestamp, TaskKey)> {
        self.due.iter().copied()
    }

    /// Leases in the order in which they lapse.
    pub fn lapsing(&self) -> impl Iterator<Item = (Timestamp, TaskKey)> {
        self.lapsing.iter().copied()
    }

    /// Attempts in the order in which their time is over.
    pub fn deadlines(&self) -> impl Iterator<Item = (Timestamp, TaskKey)> {
        self.deadlines.iter().copied()
    }

    /// Tasks that have not started, in the order in which they expire.
    pub fn expiring(&self) -> impl Iterator<Item = (Timestamp, TaskKey)> {
        self.expiring.iter().copied()
    }

    /// Tasks by status, index = [`Status::code`].
    pub fn by_status(&self) -> [u64; 8] {
        std::array::from_fn(|code| self.ended[code] + self.live[code])
    }

    /// Dead letters by queue and type.
    pub fn dead_letters(&self) -> &BTreeMap<(QueueName, TaskType), u64> {
        &self.dead_letters
    }

    /// Sets the figures found at start.
    pub fn restore_counts(&mut self, ended: [u64; 8], dead_letters: BTreeMap<(QueueName, TaskType), u64>) {
        self.ended = ended;
        self.dead_letters = dead_letters;
    }

    /// Changes, adds or removes a live task.
    pub fn set_task(&mut self, key: TaskKey, task: Option<LiveTask>) {
        let old = self.swap_task(key, task);
        self.undo.push(Undo::Task(key, old));
    }

    fn swap_task(&mut self, key: TaskKey, task: Option<LiveTask>) -> Option<LiveTask> {
        let old = match task {
            Some(task) => self.tasks.insert(key, task),
            None => self.tasks.remove(&key),
        };
        if let Some(new) = &task {
            self.live[usize::from(new.status.code())] += 1;
            let same_place = old.is_some_and(|old| old.lane == new.lane && old.standing() == new.standing());
            if !same_place {
                self.lanes.add(new.lane, key, new.standing());
                if let Some(old) = &old {
                    self.lanes.remove(old.lane, key, old.standing());
                }
            }
        } else if let Some(old) = &old {
            self.lanes.remove(old.lane, key, old.standing());
        }
        if let Some(old) = &old {
            self.live[usize::from(old.status.code())] -= 1;
            if let Some(due_at) = old.due_at() {
                self.due.remove(&(due_at, key));
            }
        }
        if let Some(due_at) = task.and_then(|task| task.due_at()) {
            self.due.insert((due_at, key));
        }
        self.arm_expiry(key, old, task);
        if old.or(task).is_some_and(|task| task.keyed) {
            self.sync_flow(key);
        }
        old
    }

    fn sync_flow(&mut self, key: TaskKey) {
        self.flows.sync(key, self.keyed.get(&key), self.tasks.get(&key), self.leases.contains_key(&key));
    }

    /// What a task has to do with its ordering or concurrency key.
    pub fn keyed(&self, key: TaskKey) -> Option<Keyed> {
        self.keyed.get(&key).copied()
    }

    /// Changes what a task has to do with its key.
    pub fn set_keyed(&mut self, key: TaskKey, keyed: Option<Keyed>) {
        let old = self.swap_keyed(key, keyed);
        self.undo.push(Undo::Keyed(key, old));
    }

    fn swap_keyed(&mut self, key: TaskKey, keyed: Option<Keyed>) -> Option<Keyed> {
        let old = match keyed {
            Some(keyed) => self.keyed.insert(key, keyed),
            None => self.keyed.remove(&key),
        };
        self.sync_flow(key);
        old
    }

    /// Only what has not started expires.
    fn arm_expiry(&mut self, key: TaskKey, old: Option<LiveTask>, new: Option<LiveTask>) {
        let Some(expires_at) = self.expiries.get(&key) else { return };
        let waits_unstarted =
            |task: Option<LiveTask>| task.is_some_and(|task| task.attempt == 0 && task.status != Status::Executing);
        match (waits_unstarted(old), waits_unstarted(new)) {
            (true, false) => {
                self.expiring.remove(&(*expires_at, key));
            }
            (false, true) => {
                self.expiring.insert((*expires_at, key));
            }
            (true, true) | (false, false) => {}
        }
    }

    /// Sets when a task expires. To be called before the task is added or after it is removed.
    pub fn set_expiry(&mut self, key: TaskKey, expires_at: Option<Timestamp>) {
        let old = self.swap_expiry(key, expires_at);
        self.undo.push(Undo::Expiry(key, old));
    }

    fn swap_expiry(&mut self, key: TaskKey, expires_at: Option<Timestamp>) -> Option<Timestamp> {
        match expires_at {
            Some(expires_at) => self.expiries.insert(key, expires_at),
            None => self.expiries.remove(&key),
        }
    }

    /// Grants, changes or ends a lease.
    pub fn set_lease(&mut self, key: TaskKey, lease: Option<Lease>) {
        let old = self.swap_lease(key, lease);
        self.undo.push(Undo::Lease(key, old));
    }

    fn swap_lease(&mut self, key: TaskKey, lease: Option<Lease>) -> Option<Lease> {
        let old = match lease {
            Some(lease) => self.leases.insert(key, lease),
            None => self.leases.remove(&key),
        };
        if let Some(old) = &old {
            self.lapsing.remove(&(old.expires_at, key));
            self.deadlines.remove(&(old.deadline, key));
            if let Some(held) = self.leases_by_worker.get_mut(&old.worker) {
                held.remove(&key);
                if held.is_empty() {
                    self.leases_by_worker.remove(&old.worker);
                }
            }
        }
        if let Some(lease) = &lease {
            self.lapsing.insert((lease.expires_at, key));
            // A revoked lease has no attempt that could run out of time.
            if !lease.revoked {
                self.deadlines.insert((lease.deadline, key));
            }
            self.leases_by_worker.entry(lease.worker).or_default().insert(key);
        }
        // A renewed lease holds what it held; of two the new one begins first, so that the lane stays.
        if old.map(|old| old.lane) != lease.map(|lease| lease.lane) {
            if let Some(lease) = &lease {
                self.lanes.hold(lease.lane);
            }
            if let Some(old) = &old {
                self.lanes.unhold(old.lane);
            }
        }
        if old.is_some() != lease.is_some() && old.or(lease).is_some_and(|lease| lease.keyed) {
            self.sync_flow(key);
        }
        self.count_slots(old.as_ref(), lease.as_ref());
        old
    }

    fn count_slots(&mut self, old: Option<&Lease>, new: Option<&Lease>) {
        if let Some(new) = new {
            *self.slots_taken.entry(new.worker).or_default() += new.slots;
        }
        if let Some(old) = old
            && let Some(taken) = self.slots_taken.get_mut(&old.worker)
        {
            *taken -= old.slots;
            if *taken == 0 {
                self.slots_taken.remove(&old.worker);
            }
        }
    }

    /// How much of a worker's capacity its tasks take, and how many they are.
    pub fn load_of(&self, worker: WorkerId) -> (u32, usize) {
        let taken = self.slots_taken.get(&worker).copied().unwrap_or(0);
        (taken, self.leases_by_worker.get(&worker).map_or(0, BTreeSet::len))
    }

    /// Notes how many tasks run under a claim row.
    pub fn open_claim(&mut self, first: u64, tasks: u32) {
        let old = self.open_claims.insert(first, tasks).unwrap_or(0);
        self.undo.push(Undo::ClaimRow(first, old));
    }

    /// One task less runs under a claim row; true if it was the last.
    pub fn leave_claim(&mut self, first: u64) -> bool {
        let old = self.open_claims.get(&first).copied().unwrap_or(0);
        self.undo.push(Undo::ClaimRow(first, old));
        self.set_claim(first, old.saturating_sub(1));
        old <= 1
    }

    fn set_claim(&mut self, first: u64, tasks: u32) {
        if tasks == 0 {
            self.open_claims.remove(&first);
        } else {
            self.open_claims.insert(first, tasks);
        }
    }

    /// How many tasks run under a claim row.
    pub fn open_claim_tasks(&self, first: u64) -> u32 {
        self.open_claims.get(&first).copied().unwrap_or(0)
    }

    /// Sets how many tasks run under a claim row, as another node says.
    pub fn set_open_claim(&mut self, first: u64, tasks: u32) {
        self.set_claim(first, tasks);
    }

    /// Ended tasks by status.
    pub fn ended_counts(&self) -> [u64; 8] {
        self.ended
    }

    /// Sets the number of ended tasks, as another node says.
    pub fn set_ended_counts(&mut self, ended: [u64; 8]) {
        self.ended = ended;
    }

    /// Sets the number of dead letters of a queue and type, as another node says.
    pub fn set_dead(&mut self, queue: QueueName, task_type: TaskType, count: u64) {
        if count == 0 {
            self.dead_letters.remove(&(queue, task_type));
        } else {
            self.dead_letters.insert((queue, task_type), count);
        }
    }

    /// What the open transaction changed.
    pub fn touched(&self) -> Touched {
        let mut touched = Touched::default();
        for step in &self.undo {
            match step {
                Undo::Task(key, _) => {
                    touched.tasks.insert(*key);
                }
                Undo::Lease(key, _) => {
                    touched.leases.insert(*key);
                }
                Undo::Expiry(key, _) => {
                    touched.expiries.insert(*key);
                }
                Undo::Keyed(key, _) => {
                    touched.keyed.insert(*key);
                }
                Undo::ClaimRow(first, _) => {
                    touched.claims.insert(*first);
                }
                Undo::Ended(..) => touched.ended = true,
                Undo::Dead(place, _) => {
                    touched.dead.insert(place.clone());
                }
            }
        }
        touched
    }

    /// Counts ended tasks.
    pub fn count_ended(&mut self, status: Status, delta: i64) {
        let counter = &mut self.ended[usize::from(status.code())];
        *counter = counter.saturating_add_signed(delta);
        self.undo.push(Undo::Ended(status, delta));
    }

    /// Counts dead letters.
    pub fn count_dead(&mut self, queue: &QueueName, task_type: &TaskType, delta: i64) {
        let place = (queue.clone(), task_type.clone());
        self.add_dead(&place, delta);
        self.undo.push(Undo::Dead(place, delta));
    }

    fn add_dead(&mut self, place: &(QueueName, TaskType), delta: i64) {
        let counter = self.dead_letters.entry(place.clone()).or_default();
        *counter = counter.saturating_add_signed(delta);
        if *counter == 0 {
            self.dead_letters.remove(place);
        }
    }

    /// The transaction is durable: nothing is undone any more.
    pub fn keep(&mut self) {
        self.undo.clear();
        self.lanes.keep();
        self.flows.vanish();
    }

    /// The transaction came to nothing: everything is as it was before.
    pub fn undo(&mut self) {
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Task(key, old) => {
                    self.swap_task(key, old);
                }
                Undo::Lease(key, old) => {
                    self.swap_lease(key, old);
                }
                Undo::Expiry(key, old) => {
                    self.swap_expiry(key, old);
                }
                Undo::Keyed(key, old) => {
                    self.swap_keyed(key, old);
                }
                Undo::ClaimRow(first, old) => self.set_claim(first, old),
                Undo::Ended(status, delta) => {
                    let counter = &mut self.ended[usize::from(status.code())];
                    *counter = counter.saturating_add_signed(-delta);
                }
                Undo::Dead(place, delta) => self.add_dead(&place, -delta),
            }
        }
        self.lanes.undo();
        self.flows.vanish();
    }
}
