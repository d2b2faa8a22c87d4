//! Handing claimed tasks to a worker. Until the answer is on its way they belong to this
//! module: if the client is gone first, they are released at once and nobody waits for a
//! lease to lapse.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use windlass_core::ids::{LeaseToken, TaskId, WorkerId};
use windlass_core::store::{Claimed, Finish, Outcome, Store};

/// Claimed tasks that have not reached their worker yet.
pub struct Undelivered {
    store: Arc<dyn Store>,
    worker: WorkerId,
    leases: Vec<(TaskId, LeaseToken)>,
}

impl Undelivered {
    /// Watches over the tasks of a claim.
    pub fn new(store: &Arc<dyn Store>, worker: WorkerId, claimed: &Claimed) -> Self {
        let leases = claimed.tasks.iter().map(|task| (task.id, task.token)).collect();
        Self { store: Arc::clone(store), worker, leases }
    }

    /// The tasks are on their way.
    fn delivered(&mut self) {
        self.leases.clear();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, worker) = (Arc::clone(&self.store), self.worker);
        let releases = std::mem::take(&mut self.leases);
        let releases = releases.into_iter().map(|(task, token)| Finish::new(task, token, Outcome::Released)).collect();
        runtime.spawn(async move {
            if let Err(error) = store.finish(worker, releases).await {
                // The leases lapse by themselves, later.
                tracing::warn!(%worker, %error, "could not release tasks of a poll whose client is gone");
            }
        });
    }
}

/// The body of an answer to a poll.
pub struct DeliveryBody {
    bytes: Option<Bytes>,
    undelivered: Undelivered,
}

impl DeliveryBody {
    /// A body that watches over the tasks in it.
    pub fn new(bytes: Bytes, undelivered: Undelivered) -> Self {
        Self { bytes: Some(bytes), undelivered }
    }
}

impl Body for DeliveryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.undelivered.delivered();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use windlass_core::event::NoObserver;
    use windlass_core::status::Status;
    use windlass_core::store::ClaimRequest;
    use windlass_testkit::{ManualClock, MemoryStore, fixtures};

    async fn claimed() -> (Arc<dyn Store>, WorkerId, Claimed) {
        let store: Arc<dyn Store> = MemoryStore::new(Arc::new(ManualClock::new()), Arc::new(NoObserver));
        let profile = fixtures::profile();
        let worker = profile.id;
        store.register_worker(profile).await.expect("registered");
        store.submit(vec![fixtures::task("t").build()]).await.expect("stored");
        let lease = Duration::from_secs(30);
        let request = ClaimRequest { worker, capabilities: None, up_to: 1, lease, wait: false };
        let claimed = store.claim(request).await.expect("claimed");
        (store, worker, claimed)
    }

    async fn status(store: &Arc<dyn Store>, id: TaskId) -> Status {
        store.get(vec![id]).await.expect("read")[0].as_ref().expect("there").state.status
    }

    #[tokio::test]
    async fn an_answer_that_nobody_took_gives_its_tasks_back() {
        let (store, worker, claimed) = claimed().await;
        let id = claimed.tasks[0].id;
        let body = DeliveryBody::new(Bytes::from_static(b"{}"), Undelivered::new(&store, worker, &claimed));
        assert_eq!(status(&store, id).await, Status::Executing);
        drop(body);
        while status(&store, id).await == Status::Executing {
            tokio::task::yield_now().await;
        }
        assert_eq!(status(&store, id).await, Status::Queued);
    }

    #[tokio::test]
    async fn an_answer_on_its_way_keeps_them() {
        use http_body_util::BodyExt;
        let (store, worker, claimed) = claimed().await;
        let mut body = DeliveryBody::new(Bytes::from_static(b"{}"), Undelivered::new(&store, worker, &claimed));
        assert_eq!(body.size_hint().exact(), Some(2));
        assert!(body.frame().await.is_some() && body.is_end_stream());
        drop(body);
        tokio::task::yield_now().await;
        assert_eq!(status(&store, claimed.tasks[0].id).await, Status::Executing);
    }
}
