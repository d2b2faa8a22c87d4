//! A submitted task in the hand of its submitter.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::keys::DeduplicatedBy;
use crate::view::{Status, TaskId, TaskView};

/// A task that was submitted. `O` is what its handler returns.
pub struct TaskHandle<O> {
    client: Client,
    id: TaskId,
    deduplicated_by: Option<DeduplicatedBy>,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for TaskHandle<O> {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.id.clone(), self.deduplicated_by)
    }
}

impl<O> std::fmt::Debug for TaskHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TaskHandle").field(&self.id).finish()
    }
}

impl<O> TaskHandle<O> {
    pub(crate) fn new(client: Client, id: TaskId, deduplicated_by: Option<DeduplicatedBy>) -> Self {
        Self { client, id, deduplicated_by, output: PhantomData }
    }

    /// Its id.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// Whether it was there before its submit. Of tasks submitted together this is not known, and false.
    pub fn was_there_before(&self) -> bool {
        self.deduplicated_by.is_some()
    }

    /// By what its submit was known, if it was there before, and what became of it.
    pub fn deduplicated_by(&self) -> Option<DeduplicatedBy> {
        self.deduplicated_by
    }

    /// How it stands.
    pub async fn view(&self) -> Result<TaskView> {
        self.client.task(self.id.clone()).await
    }

    /// Cancels it.
    pub async fn cancel(&self) -> Result<()> {
        self.client.cancel(self.id.clone()).await
    }
}

impl<O: DeserializeOwned> TaskHandle<O> {
    /// Waits for its end, however long that takes, and gives what the handler returned.
    pub async fn result(&self) -> Result<O> {
        self.result_within(Duration::from_secs(u64::from(u32::MAX))).await
    }

    /// Waits for its end and gives what the handler returned.
    pub async fn result_within(&self, at_most: Duration) -> Result<O> {
        let view = self.client.wait(self.id.clone(), at_most).await?;
        match view.status {
            Status::Completed => view.result_as(),
            Status::Failed | Status::Cancelled | Status::DeadLetter => Err(Error::TaskDidNotSucceed(Box::new(view))),
            Status::Blocked | Status::Scheduled | Status::Queued | Status::Executing => {
                Err(Error::StillRunning { task_id: self.id.clone(), waited: at_most })
            }
        }
    }
}
