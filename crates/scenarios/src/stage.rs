//! A store to play on, and the few words the scenarios speak to it.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::NoObserver;
use windlass_core::ids::WorkerId;
use windlass_core::names::{QueueName, TaskType};
use windlass_core::store::{ClaimRequest, Claimed, Finish, Outcome, Store};
use windlass_core::task::{ClaimedTask, NewTask};
use windlass_core::worker::WorkerProfile;
use windlass_store_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::fixtures::profile;

/// Tasks in one call.
pub const BATCH: usize = 1_000;

/// What a scenario can fail with: a promise that was not kept, or a store that does not work.
pub type Outcomes<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A store in a folder of its own that goes with it.
pub struct Stage {
    /// The store.
    pub store: Arc<dyn Store>,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// A new embedded store on the machine's clock and disk.
    pub fn open() -> Outcomes<Self> {
        let folder = tempfile::tempdir()?;
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("data")), Arc::new(NoObserver))?;
        Ok(Self { store, _folder: folder })
    }

    /// A worker that serves everything with so much room.
    pub async fn worker(&self, capacity: u32) -> Outcomes<WorkerId> {
        let profile = WorkerProfile { capacity, ..profile() };
        let id = profile.id;
        self.store.register_worker(profile).await?;
        Ok(id)
    }

    /// Settings of a queue, as JSON.
    pub async fn set_queue(&self, name: &str, change: &str) -> Outcomes {
        self.store.change_queue(QueueName::new(name)?, serde_json::from_str(change)?).await?;
        Ok(())
    }

    /// Settings of a type, as JSON.
    pub async fn set_type(&self, name: &str, change: &str) -> Outcomes {
        self.store.change_type(TaskType::new(name)?, serde_json::from_str(change)?).await?;
        Ok(())
    }

    /// Stores many tasks.
    pub async fn submit(&self, tasks: impl IntoIterator<Item = NewTask>) -> Outcomes<usize> {
        submit(&*self.store, tasks).await
    }
}

/// Stores many tasks, a thousand at a time.
pub async fn submit(store: &dyn Store, tasks: impl IntoIterator<Item = NewTask>) -> Outcomes<usize> {
    let mut tasks = tasks.into_iter();
    let mut count = 0;
    loop {
        let batch: Vec<NewTask> = tasks.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(count);
        }
        count += batch.len();
        store.submit(batch).await?;
    }
}

/// A claim of up to so many tasks.
pub async fn claim(
    store: &dyn Store,
    worker: WorkerId,
    up_to: usize,
    wait: bool,
    lease: Duration,
) -> Outcomes<Vec<ClaimedTask>> {
    let request = ClaimRequest { worker, capabilities: None, up_to, lease, wait };
    let Claimed { tasks, .. } = store.claim(request).await?;
    Ok(tasks)
}

/// All of these succeeded.
pub async fn complete(store: &dyn Store, worker: WorkerId, tasks: &[ClaimedTask]) -> Outcomes {
    let done = |task: &ClaimedTask| {
        Finish::new(task.id, task.token, Outcome::Completed { result: None, follow_ups: Vec::new() })
    };
    for answer in store.finish(worker, tasks.iter().map(done).collect()).await? {
        answer?;
    }
    Ok(())
}

/// The value below which this share of the (sorted) values lies.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}
