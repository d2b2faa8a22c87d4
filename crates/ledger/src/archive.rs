//! Reading what is on disk beside the writer, and putting it together with what is in memory.

use async_trait::async_trait;
use windlass_core::event::Event;
use windlass_core::failure::TaskPolicy;
use windlass_core::filter::TaskFilter;
use windlass_core::ids::{IdCodec, TaskKey};
use windlass_core::retry::grown_timeout;
use windlass_core::status::Status;
use windlass_core::store::StoreError;
use windlass_core::task::{FailedAttempt, Progress, Task, TaskState};
use windlass_core::time::Timestamp;

use crate::index::{Lease, LiveTask};
use crate::journal::{Ended, Overlay, TaskRow};

/// A task as it is on disk.
#[derive(Clone, Debug)]
pub struct Cold {
    /// As submitted.
    pub row: TaskRow,
    /// How it stands, if not as submitted.
    pub overlay: Option<Overlay>,
    /// How it ended.
    pub ended: Option<Ended>,
    /// How far its attempt is.
    pub progress: Option<Progress>,
    /// Failed attempts, oldest first.
    pub failed_attempts: Vec<FailedAttempt>,
}

/// A task as it is in memory.
#[derive(Clone, Copy, Debug)]
pub struct Hot {
    /// How it stands.
    pub task: LiveTask,
    /// Who runs it.
    pub lease: Option<Lease>,
}

/// Committed rows, read beside the writer.
#[async_trait]
pub trait Archive: Send + Sync {
    /// Tasks as they are on disk.
    async fn cold(&self, keys: Vec<TaskKey>) -> Result<Vec<Option<Cold>>, StoreError>;
    /// Keys below `below` of tasks that may match, newest first, and where a further look
    /// would begin, if anything is left. Looks at a bounded number of rows.
    async fn candidates(
        &self,
        below: TaskKey,
        filter: TaskFilter,
        limit: usize,
    ) -> Result<(Vec<TaskKey>, Option<TaskKey>), StoreError>;
    /// The events in these rows, in order.
    async fn events_in(&self, nos: Vec<u64>) -> Result<Vec<Event>, StoreError>;
    /// Rows of events from `from` on.
    async fn events_from(&self, from: u64, rows: usize) -> Result<Vec<(u64, Vec<Event>)>, StoreError>;
    /// Room taken.
    async fn bytes(&self) -> Option<u64>;
}

fn next_timeout(policy: &TaskPolicy, timeouts: u8) -> std::time::Duration {
    grown_timeout(policy.timeout, policy.retry.timeout_growth, timeouts.into())
}

/// What a reader sees. `hot` was looked at before `cold`, so an end on disk is newer.
/// `None` if the two looked at the task between two of its lives: look again.
pub fn task(ids: &IdCodec, key: TaskKey, cold: Cold, hot: Option<Hot>) -> Option<Task> {
    let Cold { row, overlay, ended, progress, failed_attempts } = cold;
    let id = ids.task_id(key, row.created_at);
    let base = TaskState {
        status: Status::Queued,
        version: 1,
        attempt: 0,
        retries: 0,
        crashes: 0,
        created_at: row.created_at,
        ready_at: row.run_at,
        run_at: row.run_at,
        retrying: false,
        started_at: None,
        ended_at: None,
        worker: None,
        lease_expires_at: None,
        timeout: row.spec.policy.timeout,
        progress,
        result: None,
        end_reason: None,
        original_parameters: row.original_parameters,
        auto_replayed: row.auto_replayed,
        failed_attempts,
    };
    let state = match (ended, hot) {
        (Some(ended), _) => TaskState {
            status: ended.status,
            version: ended.version,
            attempt: ended.attempt,
            retries: ended.retries,
            crashes: ended.crashes,
            ready_at: ended.ready_at,
            run_at: ended.run_at,
            started_at: ended.started_at,
            ended_at: Some(ended.ended_at),
            worker: ended.worker,
            timeout: next_timeout(&row.spec.policy, ended.timeouts),
            result: ended.result,
            end_reason: ended.reason,
            ..base
        },
        (None, Some(Hot { task, lease })) => {
            let started: (Option<Timestamp>, _) = match (&lease, &overlay) {
                (Some(lease), _) => (Some(lease.claimed_at), Some(lease.worker)),
                (None, Some(overlay)) => (overlay.started_at, overlay.worker),
                (None, None) => (None, None),
            };
            TaskState {
                status: task.status,
                version: task.version,
                attempt: task.attempt,
                retries: task.retries.into(),
                crashes: task.crashes.into(),
                ready_at: task.ready_at,
                run_at: task.run_at,
                retrying: task.retrying,
                started_at: started.0,
                worker: started.1,
                lease_expires_at: lease.map(|lease| lease.expires_at),
                timeout: next_timeout(&row.spec.policy, task.timeouts),
                progress: base.progress.filter(|_| task.status == Status::Executing),
                ..base
            }
        }
        (None, None) => return None,
    };
    Some(Task { id, spec: row.spec, state })
}

/// The event rows of a task.
pub fn event_nos(cold: &Cold, hot: Option<&Hot>) -> Vec<u64> {
    let mut nos = vec![cold.row.event_no];
    match (&cold.ended, &cold.overlay) {
        (Some(ended), _) => nos.extend(&ended.event_nos),
        (None, Some(overlay)) => nos.extend(&overlay.event_nos),
        (None, None) => {}
    }
    if let Some(lease) = hot.and_then(|hot| hot.lease)
        && cold.ended.is_none()
    {
        nos.push(lease.event_no);
    }
    nos.sort_unstable();
    nos.dedup();
    nos
}
