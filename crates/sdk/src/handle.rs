//! A submitted task in the hand of its submitter.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

#[cfg(feature = "postgres")]
use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::keys::DeduplicatedBy;
use crate::view::{Status, TaskId, TaskView};

/// A task that was submitted. `O` is what its handler returns.
pub struct TaskHandle<O> {
    client: Client,
    id: TaskId,
    deduplicated_by: Option<DeduplicatedBy>,
    /// Whether it may be there only a moment later: it comes with the commit of a transaction.
    #[cfg(feature = "postgres")]
    is_to_come: bool,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for TaskHandle<O> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            id: self.id.clone(),
            deduplicated_by: self.deduplicated_by,
            #[cfg(feature = "postgres")]
            is_to_come: self.is_to_come,
            output: PhantomData,
        }
    }
}

impl<O> std::fmt::Debug for TaskHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TaskHandle").field(&self.id).finish()
    }
}

impl<O> TaskHandle<O> {
    pub(crate) fn new(client: Client, id: TaskId, deduplicated_by: Option<DeduplicatedBy>) -> Self {
        Self {
            client,
            id,
            deduplicated_by,
            #[cfg(feature = "postgres")]
            is_to_come: false,
            output: PhantomData,
        }
    }

    /// A task that is there a moment after the commit of its transaction.
    #[cfg(feature = "postgres")]
    pub(crate) fn to_come(client: Client, id: TaskId) -> Self {
        Self { is_to_come: true, ..Self::new(client, id, None) }
    }

    /// For calls that may come before the task.
    fn arrival(&self, at_most: Duration) -> Arrival {
        #[cfg(feature = "postgres")]
        return Arrival {
            begun: Instant::now(),
            at_most: self.is_to_come.then(|| at_most.min(self.client.patience())),
            backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(250)),
        };
        #[cfg(not(feature = "postgres"))]
        {
            let _ = at_most;
            Arrival {}
        }
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
        let mut arrival = self.arrival(Duration::MAX);
        loop {
            let answer = self.client.task(self.id.clone()).await;
            if !arrival.is_awaited(&answer).await {
                return answer;
            }
        }
    }

    /// Cancels it.
    pub async fn cancel(&self) -> Result<()> {
        let mut arrival = self.arrival(Duration::MAX);
        loop {
            let answer = self.client.cancel(self.id.clone()).await;
            if !arrival.is_awaited(&answer).await {
                return answer;
            }
        }
    }
}

impl<O: DeserializeOwned> TaskHandle<O> {
    /// Waits for its end, however long that takes, and gives what the handler returned.
    pub async fn result(&self) -> Result<O> {
        self.result_within(Duration::from_secs(u64::from(u32::MAX))).await
    }

    /// Waits for its end and gives what the handler returned.
    pub async fn result_within(&self, at_most: Duration) -> Result<O> {
        let view = self.ended_within(at_most).await?;
        match view.status {
            Status::Completed => view.result_as(),
            Status::Failed | Status::Cancelled | Status::DeadLetter => Err(Error::TaskDidNotSucceed(Box::new(view))),
            Status::Blocked | Status::Scheduled | Status::Queued | Status::Executing => {
                Err(Error::StillRunning { task_id: self.id.clone(), waited: at_most })
            }
        }
    }
}

impl<O> TaskHandle<O> {
    async fn ended_within(&self, at_most: Duration) -> Result<TaskView> {
        let begun = Instant::now();
        let mut arrival = self.arrival(at_most);
        loop {
            let answer = self.client.wait(self.id.clone(), at_most.saturating_sub(begun.elapsed())).await;
            if !arrival.is_awaited(&answer).await {
                return answer;
            }
        }
    }
}

/// The time in which a task that is to come may not be there yet. If its transaction was rolled back it will never be.
struct Arrival {
    #[cfg(feature = "postgres")]
    begun: Instant,
    /// None if the task is there.
    #[cfg(feature = "postgres")]
    at_most: Option<Duration>,
    #[cfg(feature = "postgres")]
    backoff: Backoff,
}

impl Arrival {
    /// Whether to ask again, after a pause: the answer is that there is no such task, and it may yet come.
    #[cfg(feature = "postgres")]
    async fn is_awaited<T>(&mut self, answer: &Result<T>) -> bool {
        let is_missing = answer.as_ref().is_err_and(|error| error.code() == Some("task_not_found"));
        let pause = self.backoff.next();
        let is_awaited = is_missing && self.at_most.is_some_and(|at_most| self.begun.elapsed() + pause <= at_most);
        if is_awaited {
            tokio::time::sleep(pause).await;
        }
        is_awaited
    }

    #[cfg(not(feature = "postgres"))]
    #[allow(clippy::unused_async, clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "as the other one")]
    async fn is_awaited<T>(&mut self, _: &Result<T>) -> bool {
        false
    }
}
